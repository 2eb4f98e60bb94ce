//! The validator's loop: one window, top to bottom. Each step has a file of its own.

use crate::{
    evaluate::{Evaluate, Evaluation},
    gather::Gathered,
    gauntlet::Sketches,
    report::Published,
    salt::Salts,
    signed_db::SignedDb,
    step::{RunError, Stop, before},
    strategy::Strategy,
};
use futures::future::LocalBoxFuture;
use node::{Node, durable::DiskFullRetry, follow::OwnMerge};
use protocol::{Window, view::WindowView};
use tokio::task::JoinHandle;

/// An evaluation is waited for until this many blocks before the window ends.
const LAST_CALL_BLOCKS: u32 = 2;

/// Everything that a validator consists of.
pub struct Parts {
    pub node: Node,
    pub evaluator: Box<dyn Evaluate>,
    pub signed: SignedDb,
    /// Of the hotkey, in a program. Validators of a simulation may share them, and so their evaluations.
    pub salts: Salts,
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
    pub(crate) disk_full_retry: DiskFullRetry,
}

impl Validator {
    pub fn new(parts: Parts) -> Validator {
        let Parts { node, evaluator, signed, salts, strategy, evaluations_max, held_out_sequences } = parts;
        Validator {
            node,
            signed,
            salts,
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
        let gathered = match self.strategy.computes() {
            true => self.gather(&view, &seats).await,
            false => Gathered::default(),
        };

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
        if self.strategy.computes() {
            self.start_evaluation(&view, &seats, gathered).await;
        }
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

    /// Whether the run hides attestations and votes until their deadline (PROT-30).
    pub(crate) fn hides(&self) -> bool {
        self.node.run().params.hidden_blocks > 0
    }
}
