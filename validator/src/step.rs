//! Common parts of a window's steps: early end, and storage before a call to the chain.

use crate::signed_db::{SignedDb, SignedDbError};
use chain_client::ChainError;
use daemon::{
    Entry, Node, NodeError, WorkDied,
    durable::{DiskFullRetry, is_full},
    error_chain,
};
use measure::EvaluateError;
use protocol::{Block, Window, view::WindowView};

/// Blocks before a deadline at which a step stops waiting for a full disk: finality may be three behind, and a call
/// takes two.
pub(crate) const SUBMIT_BLOCKS: u32 = 5;

pub(crate) const UNKNOWN_WINDOW: &str = "the chain does not know the window";

/// Early end of a step of a window.
pub type Stop = daemon::Stop<RunError>;

/// Errors that end a validator.
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

/// Runs `store`, which writes what must be on disk before the call to the chain, by `deadline`. While the disk is full
/// it retries, as long as the call can still be in time; at least once.
pub(crate) async fn store_before<T>(
    node: &mut Node,
    signed: &mut SignedDb,
    deadline: Block,
    store: impl FnMut(&mut SignedDb) -> Result<T, SignedDbError>,
) -> Result<T, Stop> {
    store_by(node, signed, before(deadline, SUBMIT_BLOCKS), store).await
}

/// Runs `store` and, while the disk is full, retries until the chain reaches `until`.
pub(crate) async fn store_by<T>(
    node: &mut Node,
    signed: &mut SignedDb,
    until: Block,
    mut store: impl FnMut(&mut SignedDb) -> Result<T, SignedDbError>,
) -> Result<T, Stop> {
    let mut retry = DiskFullRetry::new(&node.journal.disk);
    let stored = retry.wait_until(until, &mut node.heads, async || Ok(store(signed)?));
    stored.await.map_err(|error: RunError| match is_full(&error) {
        true => Stop::skip(format!("the disk was full: {}", error_chain(&error))),
        false => Stop::Fail(error),
    })
}

/// Journals why a step did not happen. The window continues without it.
pub(crate) fn journal_skip(
    node: &mut Node,
    window: Window,
    what: &str,
    step: Result<(), Stop>,
) -> Result<(), RunError> {
    match step {
        Err(Stop::Skip(skip)) => {
            let reason = format!("{what}: {}", skip.reason);
            tracing::warn!(window = window.0, reason, "skipped a step");
            daemon::traces::failed(&reason);
            node.journal.write(&Entry::Abstained { window, reason });
            Ok(())
        }
        Err(Stop::Fail(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// The window on the chain once `is_ready`, which under load is some blocks late; when the chain reaches `until`,
/// as it is. `None` if the chain does not know the window.
pub(crate) async fn wait_for_view(
    node: &mut Node,
    window: Window,
    until: Block,
    is_ready: impl Fn(&WindowView) -> bool,
) -> Result<Option<WindowView>, RunError> {
    loop {
        let head = node.heads.borrow_and_update().block;
        let view = node.window_view(window).await?;
        if until <= head || view.as_ref().is_none_or(&is_ready) {
            return Ok(view);
        }
        node.wait_past(head).await?;
    }
}

/// Returns whether the run hides attestations and votes until their deadline (PROT-30).
pub(crate) fn hides(node: &Node) -> bool {
    node.run().params.hidden_blocks > 0
}

/// Returns whether this validator held its seat when the window opened. The chain takes no receipt for an earlier window.
pub(crate) fn held_seat_in(node: &Node, window: Window) -> bool {
    node.schedule().window_at(node.seat.id.registered_at) < Some(window)
}

pub(crate) fn before(block: Block, blocks: u32) -> Block {
    Block(block.0.saturating_sub(blocks))
}
