//! Errors that end a miner, and reasons for a missed window.

use crate::{
    contribution_store::{ContributionFileError, ContributionStoreError, SnapshotError},
    train::TrainingError,
};
use chain_client::ChainError;
use daemon::{NodeError, WorkDied, error_chain};
use nn::ModelError;
use store::StoreError;

/// Errors that end a miner.
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

/// Early end of a step of a window.
pub(crate) type Stop = daemon::Stop<RunError>;

/// Reason for a window without a contribution. Written to the journal; the miner continues with the next window.
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
    #[error("the bucket did not take the contribution before the reveal deadline: {}", refusal(.0))]
    NotUploaded(StoreError),
    #[error(
        "the upload ended {blocks} block(s) after the reveal deadline, too late for validators: the bucket or the uplink is slow"
    )]
    UploadedLate { blocks: u32 },
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

/// Returns the store's complete answer to an upload, with its code at the end. A wrong clock comes first, because the
/// store reports it by refusing the signature.
pub(crate) fn refusal(error: &StoreError) -> String {
    let chain = error_chain(error);
    match error.blames_clock() {
        true => format!("the clock of this machine or of the store is wrong: {chain}"),
        false => chain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Action;

    #[test]
    fn a_wrong_clock_is_named_before_the_key_that_the_store_refused() {
        let refused = |code: &str| {
            let source = format!("403 Forbidden: <Code>{code}</Code>").into();
            refusal(&StoreError::Denied {
                store: "a".into(),
                action: Action::Write,
                name: "b".into(),
                source,
            })
        };
        assert!(refused("RequestTimeTooSkewed").starts_with("the clock of this machine"));
        assert!(!refused("AccessDenied").contains("clock"));
    }
}
