//! What ends a miner, and what makes it miss a window.

use crate::{
    contribution_store::{ContributionFileError, ContributionStoreError, SnapshotError},
    train::TrainingError,
};
use chain_client::ChainError;
use nn::ModelError;
use node::{NodeError, WorkDied, error_chain};
use store::StoreError;

/// What a miner cannot go on without.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the trainer could not load the model")]
    Trainer(#[from] ModelError),
    #[error("could not write the contribution; the next start resumes from what is on the disk")]
    Contribution(#[from] ContributionStoreError),
    #[error(
        "the thread that trains died. If its device was out of memory, lower train.micro_batch_sequences: the next start resumes here"
    )]
    TrainerDied(#[source] WorkDied),
}

/// How a step of a window ends early.
pub(crate) type Stop = node::Stop<RunError>;

/// Why a window passes without a contribution. Written to the journal; the miner goes on with the next window.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Missed {
    #[error("the seat is not active yet: it takes part from the next window on")]
    NotASlot,
    #[error("too little of the window was left")]
    TooLate,
    #[error(
        "the window was over before this node held its model: the log says whether it waited for the disk, for mirrors, or for the chain"
    )]
    PassedBy,
    #[error("no step was finished before the commit deadline")]
    NoData,
    #[error(
        "the window's model had not arrived, and what was trained ahead of it is of other data, or of a model that the run undid"
    )]
    OtherBase,
    #[error("the disk was full, and everything is as before the window: {}", error_chain(.0))]
    NoRoom(RunError),
    #[error("training was given up, and everything is as before the window: {}", error_chain(.0))]
    GivenUp(TrainingError),
    #[error("the chain refused the commitment: {}", error_chain(.0))]
    Refused(ChainError),
    #[error("the committed contribution cannot be uploaded: {}", error_chain(.0))]
    Lost(ContributionFileError),
    #[error("the bucket did not take the contribution before the reveal deadline: {}", error_chain(.0))]
    NotUploaded(StoreError),
}

impl From<ChainError> for RunError {
    fn from(error: ChainError) -> RunError {
        RunError::Node(error.into())
    }
}

impl From<Missed> for Stop {
    fn from(missed: Missed) -> Stop {
        Stop::skip(missed.to_string())
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Stop {
        Stop::Fail(error)
    }
}
