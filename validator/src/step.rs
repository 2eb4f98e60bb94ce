//! What a step of a window has in common with the others: how it ends early, and how it stores before the chain is
//! told.

use crate::{
    evaluate::EvaluateError,
    run::Validator,
    signed_db::{SignedDb, SignedDbError},
};
use chain_client::ChainError;
use daemon::{
    Entry, NodeError, WorkDied,
    durable::{DiskFullRetry, is_full},
    error_chain,
};
use protocol::{Block, Window};

/// Blocks before a deadline at which a full disk is no longer waited for: finality may be three behind, and a call
/// takes two.
pub(crate) const SUBMIT_BLOCKS: u32 = 5;

/// Why a step of a window ended early.
pub type Stop = daemon::Stop<RunError>;

/// What ends a validator.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    SignedDb(#[from] SignedDbError),
    #[error("the evaluation failed")]
    Evaluate(#[from] EvaluateError),
    #[error("the thread of the evaluation died")]
    EvaluatorDied(#[from] WorkDied),
    #[error("the task that publishes receipts died")]
    PublisherDied(#[source] tokio::task::JoinError),
}

impl From<ChainError> for RunError {
    fn from(error: ChainError) -> RunError {
        NodeError::from(error).into()
    }
}

impl From<RunError> for Stop {
    fn from(error: RunError) -> Stop {
        Stop::Fail(error)
    }
}

impl Validator {
    /// Runs `store`, which writes what must be on disk before the chain is told by `deadline`. While the disk is full
    /// it retries, as long as the call can still be in time; at least once.
    pub(crate) async fn store_before<T>(
        &mut self,
        deadline: Block,
        store: impl FnMut(&mut SignedDb) -> Result<T, SignedDbError>,
    ) -> Result<T, Stop> {
        self.store_by(before(deadline, SUBMIT_BLOCKS), store).await
    }

    /// Runs `store` and, while the disk is full, retries until the chain reaches `until`.
    pub(crate) async fn store_by<T>(
        &mut self,
        until: Block,
        mut store: impl FnMut(&mut SignedDb) -> Result<T, SignedDbError>,
    ) -> Result<T, Stop> {
        let mut retry = DiskFullRetry::new(&self.node.journal.disk);
        let stored = retry.wait_until(until, &mut self.node.heads, async || Ok(store(&mut self.signed)?));
        stored.await.map_err(|error: RunError| match is_full(&error) {
            true => Stop::skip(format!("the disk was full: {}", error_chain(&error))),
            false => Stop::Fail(error),
        })
    }

    /// Journals why a step did not happen. The window goes on without it.
    pub(crate) fn journal_skip(
        &mut self,
        window: Window,
        what: &str,
        step: Result<(), Stop>,
    ) -> Result<(), RunError> {
        match step {
            Err(Stop::Skip(skip)) => {
                let reason = format!("{what}: {}", skip.reason);
                tracing::warn!(window = window.0, reason, "skipped a step");
                daemon::traces::failed(&reason);
                self.node.journal.write(&Entry::Abstained { window, reason });
                Ok(())
            }
            Err(Stop::Fail(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }
}

pub(crate) fn before(block: Block, blocks: u32) -> Block {
    Block(block.0.saturating_sub(blocks))
}
