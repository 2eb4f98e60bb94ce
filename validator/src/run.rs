//! The validator's loop: one window, top to bottom. Each step has a file of its own.

use crate::{
    evaluate::{Evaluate, EvaluateError, Evaluation},
    gauntlet::Sketches,
    report::Published,
    salt::Salts,
    signed_db::{SignedDb, SignedDbError},
    strategy::Strategy,
};
use chain_client::ChainError;
use futures::future::LocalBoxFuture;
use node::{Entry, Node, NodeError, WorkDied, durable::DiskFullRetry, error_chain, follow::OwnMerge};
use protocol::{Block, Window, view::WindowView};
use tokio::task::JoinHandle;

/// An evaluation is waited for until this many blocks before the window ends.
const LAST_CALL_BLOCKS: u32 = 2;

/// Blocks before a deadline at which a full disk is no longer waited for: finality may be three behind, and a call
/// takes two.
const SUBMIT_BLOCKS: u32 = 5;

/// Why a step of a window ended early.
pub type Stop = node::Stop<RunError>;

/// Everything that a validator consists of.
pub struct Parts {
    pub node: Node,
    pub evaluator: Box<dyn Evaluate>,
    pub signed: SignedDb,
    pub strategy: Box<dyn Strategy>,
    /// Contributions evaluated in one window, at most (PROT-28).
    pub evaluations_max: usize,
    /// Held-out sequences on which the model's loss is reported.
    pub held_out_sequences: u64,
}

/// A validator between two steps of its loop.
pub struct Validator {
    pub(crate) node: Node,
    pub(crate) signed: SignedDb,
    pub(crate) salts: Salts,
    pub(crate) strategy: Box<dyn Strategy>,
    pub(crate) evaluations_max: usize,
    pub(crate) held_out_sequences: u64,
    /// `None` while an evaluation has it.
    pub(crate) evaluator: Option<Box<dyn Evaluate>>,
    /// The evaluation that runs, or waits to be judged.
    pub(crate) evaluation: Option<Evaluation>,
    /// Sketches of the last windows' contributions. After a restart, copies of older work are found again only as the
    /// sketches fill.
    pub(crate) sketches: Sketches,
    /// Receipts on their way to the bucket and the chain.
    pub(crate) publishing: Option<JoinHandle<Vec<Published>>>,
    /// This validator's merge of the window that is open.
    pub(crate) own_merge: Option<OwnMerge>,
    disk_full_retry: DiskFullRetry,
}

/// What ends a validator.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    SignedDb(#[from] SignedDbError),
    #[error("the evaluation failed")]
    Evaluate(#[from] EvaluateError),
    #[error(transparent)]
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
    pub fn new(parts: Parts) -> Validator {
        let Parts { node, evaluator, signed, strategy, evaluations_max, held_out_sequences } = parts;
        Validator {
            salts: Salts::new(&node.key.to_bytes()),
            node,
            signed,
            strategy,
            evaluations_max,
            held_out_sequences,
            evaluator: Some(evaluator),
            evaluation: None,
            sketches: Sketches::default(),
            publishing: None,
            own_merge: None,
            disk_full_retry: DiskFullRetry::default(),
        }
    }

    /// Serves window after window, until the process ends or something is lost that it cannot continue without.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), RunError>> {
        Box::pin(self.serve_windows())
    }

    async fn serve_windows(mut self) -> Result<(), RunError> {
        let (mut served, mut finished) = (0, None);
        loop {
            if self.node.follow(finished, &mut self.own_merge).await? {
                self.publish_checkpoint().await?;
            }
            let window = self.node.window();
            self.node.record_traffic();
            if self.node.windows_max.is_some_and(|max| max <= served) {
                return Ok(());
            }
            served += 1;
            match self.serve_window(window).await {
                Ok(()) => {}
                Err(Stop::Skip(skip)) => {
                    tracing::debug!(window = window.0, reason = skip.reason, "left the window");
                }
                Err(Stop::Fail(error)) => return Err(error),
            }
            finished = Some(window);
        }
    }

    /// Serves one window. Each step may run twice: after a crash the window is served again from the start.
    async fn serve_window(&mut self, window: Window) -> Result<(), Stop> {
        let schedule = self.node.schedule();
        self.node.keep_seat().await?;
        self.reveal_weights(window).await?;
        self.publish_receipts().await?;

        // While miners train, judge the contributions of the window before.
        self.judge_by(schedule.commit_deadline(window)).await?;
        self.end_evaluation();

        // Gather.
        self.node.wait_past(schedule.commit_deadline(window)).await?;
        let view = self.view(window).await?;
        let seats = self.node.seats().await?;
        let gathered = self.gather(&view, &seats).await;

        // Attest.
        let attested = self.attest(&view, &gathered).await;
        self.journal_skip(window, "nothing attested", attested)?;
        self.node.wait_past(schedule.attest_deadline(window)).await?;
        let revealed = self.reveal_attestation(window, &gathered.valid).await;
        self.journal_skip(window, "attestation not revealed", revealed)?;

        // Merge and vote.
        let view = self.selection(window).await?;
        let voted = self.merge_and_vote(&view, &seats, &gathered.valid).await;
        self.journal_skip(window, "no vote", voted)?;

        // Before the window is finalised: its epoch may be over by then.
        self.commit_weights(&view).await?;

        // Evaluate. No other node waits for it: an evaluation longer than its window is judged in the next one.
        self.start_evaluation(&view, &seats, gathered).await;
        self.node.wait_past(schedule.vote_deadline(window)).await?;
        let revealed = self.reveal_vote(window).await;
        self.journal_skip(window, "vote not revealed", revealed)?;
        self.judge_by(before(schedule.opens_at(window.next()), LAST_CALL_BLOCKS)).await?;
        self.publish_receipts().await?;
        self.node.prune(window).await;
        Ok(())
    }

    /// The window on the chain. A window that the chain does not know is skipped.
    pub(crate) async fn view(&self, window: Window) -> Result<WindowView, Stop> {
        let view = self.node.window_view(window).await?;
        view.ok_or_else(|| Stop::skip("the chain does not know the window"))
    }

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
        let Validator { disk_full_retry, node, signed, .. } = self;
        let is_full = |error: &RunError| matches!(error, RunError::SignedDb(error) if error.is_full());
        let stored =
            disk_full_retry.wait_until(until, &mut node.heads, is_full, async || Ok(store(signed)?)).await;
        stored.map_err(|error| match is_full(&error) {
            true => Stop::skip(format!("the disk was full: {}", error_chain(&error))),
            false => Stop::Fail(error),
        })
    }

    /// Journals why a step did not happen. The window goes on without it.
    fn journal_skip(&mut self, window: Window, what: &str, step: Result<(), Stop>) -> Result<(), RunError> {
        match step {
            Err(Stop::Skip(skip)) => {
                let reason = format!("{what}: {}", skip.reason);
                tracing::warn!(window = window.0, reason, "skipped a step");
                self.node.journal.write(&Entry::Abstained { window, reason });
                Ok(())
            }
            Err(Stop::Fail(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }

    /// Whether the run hides attestations and votes until their deadline (PROT-30).
    pub(crate) fn hides(&self) -> bool {
        self.node.run().params.hidden_blocks > 0
    }
}

fn before(block: Block, blocks: u32) -> Block {
    Block(block.0.saturating_sub(blocks))
}
