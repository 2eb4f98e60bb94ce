//! The validator's loop: one window, top to bottom. Each step has a file of its own.

use crate::{
    attest::{mirror, selected_of},
    evaluate::{Evaluate, Evaluation},
    gather::{Gathered, order::FetchHistory},
    report::Delivery,
    salt::Salts,
    signed_db::SignedDb,
    step::{RunError, Stop, before},
    strategy::Strategy,
};
use daemon::{Node, Spill, follow::OwnMerge};
use futures::future::LocalBoxFuture;
use gauntlet::Sketches;
use protocol::{Block, Window, receipt::MergeRecord, view::WindowView};
use tokio::task::{JoinHandle, JoinSet};
use tracing::Instrument as _;

/// An evaluation is waited for until this many blocks before the window ends.
const LAST_CALL_BLOCKS: u32 = 2;
/// The size of the sample of held-out sequences on which the model's loss is reported, if the settings do not say.
pub const HELD_OUT_SEQUENCES: u64 = 128;
pub(crate) const UNKNOWN_WINDOW: &str = "the chain does not know the window";

/// A validator between two steps of its loop.
pub struct Validator {
    pub(crate) node: Node,
    pub(crate) signed: SignedDb,
    pub(crate) salts: Salts,
    pub(crate) strategy: Box<dyn Strategy>,
    /// Contributions evaluated in one window, at most (PROT-28).
    pub evaluations_max: usize,
    /// The size of the sample of held-out sequences on which the model's loss is reported.
    pub held_out_sequences: u64,
    /// The position of the first of them in the sample's order.
    pub held_out_first: u64,
    /// `None` while an evaluation has it.
    pub(crate) evaluator: Option<Box<dyn Evaluate>>,
    /// The evaluation that runs, or waits to be judged.
    pub(crate) evaluation: Option<Evaluation>,
    /// Sketches of the last windows' contributions. After a restart, copies of older work are found again only as the
    /// sketches fill.
    pub(crate) sketches: Sketches,
    /// The bytes of gathered contributions.
    pub(crate) spill: Spill,
    pub(crate) fetch_history: FetchHistory,
    /// Digests of receipts on their way to the chain.
    pub(crate) anchoring: Option<JoinHandle<Vec<Delivery>>>,
    /// Receipts on their way to the bucket.
    pub(crate) publishing: Option<JoinHandle<Vec<Delivery>>>,
    /// The latest epoch whose probes were answered by this process.
    pub(crate) probes_opened: Option<u32>,
    /// This validator's merge of the window that is open.
    pub(crate) own_merge: Option<OwnMerge>,
    /// The latest window whose merge it vetoed, and that merge.
    pub(crate) vetoed: Option<(Window, MergeRecord)>,
}

impl Validator {
    /// `salts` are of the hotkey, in a program. Validators of a simulation may share them, and so their evaluations.
    pub fn new(
        node: Node,
        evaluator: Box<dyn Evaluate>,
        signed: SignedDb,
        salts: Salts,
        strategy: Box<dyn Strategy>,
    ) -> Validator {
        Validator {
            spill: Spill::new(&node.directory.join("gathered")),
            fetch_history: FetchHistory::default(),
            node,
            signed,
            salts,
            strategy,
            evaluations_max: 64,
            held_out_sequences: HELD_OUT_SEQUENCES,
            held_out_first: 0,
            evaluator: Some(evaluator),
            evaluation: None,
            sketches: Sketches::default(),
            anchoring: None,
            publishing: None,
            probes_opened: None,
            own_merge: None,
            vetoed: None,
        }
    }

    /// Serves window after window, until the process ends or something is lost that it cannot continue without.
    pub fn run(mut self) -> LocalBoxFuture<'static, Result<(), RunError>> {
        Box::pin(async move {
            let mut served = 0;
            self.follow(None).await?;
            loop {
                let window = self.node.window();
                self.node.record_traffic();
                if self.node.windows_max.is_some_and(|max| max <= served) {
                    return Ok(());
                }
                served += 1;
                self.take_window(window).await?;
            }
        })
    }

    /// Serves the held window, and follows the run to the next one.
    #[tracing::instrument(name = "window", target = "profile", level = "debug", skip_all, fields(window = window.0))]
    async fn take_window(&mut self, window: Window) -> Result<(), RunError> {
        match self.serve_window(window).await {
            Ok(()) => {}
            Err(Stop::Skip(skip)) => {
                tracing::debug!(window = window.0, reason = skip.reason, "left the window");
                daemon::traces::failed(&skip.reason);
            }
            Err(Stop::Fail(error)) => return Err(error),
        }
        self.follow(Some(window)).await
    }

    /// Brings the model to the open window, and past `finished`.
    async fn follow(&mut self, finished: Option<Window>) -> Result<(), RunError> {
        if self.node.follow(finished, &mut self.own_merge).await? {
            self.publish_checkpoint().await?;
        }
        Ok(())
    }

    /// Serves one window. Each step may run twice: after a crash the window is served again from the start.
    async fn serve_window(&mut self, window: Window) -> Result<(), Stop> {
        let schedule = self.node.schedule();
        self.node.keep_seat().await?;
        self.reveal_weights(window).await?;
        self.answer_probes(window).await?;
        self.node.wait_past(schedule.opens_at(window)).await?;
        // Killed before the next window's model was saved. What was stored for this window is in the receipt, and another
        // statement would contradict it.
        if self.signed.signed_until() >= Some(window) {
            return Err(Stop::skip("its receipt is signed"));
        }
        if let Some(opened) = self.node.seat_window(window).await? {
            self.node.take_rewind(window, opened.lineage).await?;
        }

        // While miners train, judge the contributions of the window before.
        self.judge_by(schedule.commit_deadline(window)).await?;
        self.end_evaluation();

        // Gather.
        self.node.wait_past(schedule.commit_deadline(window)).await?;
        self.deliver_receipts().await?;
        let view = self.node.window_view(window).await?.ok_or_else(|| Stop::skip(UNKNOWN_WINDOW))?;
        let seats = self.node.seats().await?;
        let mut gathered = match self.strategy.computes() {
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
        // Ends with the window, at the latest.
        let mut mirroring = JoinSet::new();
        let mut selected = selected_of(self.node.run_id(), &view, &gathered.valid);
        // Validators begin with different ones, so that each is soon in some bucket.
        let first = usize::from(self.node.uid().0) % selected.len().max(1);
        selected.rotate_left(first);
        let span = tracing::debug_span!(target: "profile", "mirror", contributions = selected.len());
        mirroring.spawn(mirror(self.node.store.clone(), selected).instrument(span));
        let voted = self.merge_and_vote(&view, &seats, &mut gathered.valid).await;
        self.journal_skip(window, "no vote", voted)?;

        // Before the window is finalised: its epoch may be over by then.
        self.commit_weights(&view).await?;

        // Evaluate. No other node waits for it: an evaluation longer than its window is judged in the next one.
        if self.strategy.computes() {
            // One that was told to end is judged first, or this window would not be measured.
            self.judge_by(self.node.block()).await?;
            self.start_evaluation(&view, &seats, gathered).await;
        }
        self.node.wait_past(schedule.vote_deadline(window)).await?;
        let revealed = self.reveal_vote(window).await;
        self.journal_skip(window, "vote not revealed", revealed)?;
        self.judge_by(before(schedule.opens_at(window.next()), LAST_CALL_BLOCKS)).await?;
        self.deliver_receipts().await?;
        self.node.prune(window).await;
        Ok(())
    }

    /// The window on the chain once `is_ready`, which under load is some blocks late; when the chain reaches `until`,
    /// as it is. `None` if the chain does not know the window.
    pub(crate) async fn wait_for_view(
        &mut self,
        window: Window,
        until: Block,
        is_ready: impl Fn(&WindowView) -> bool,
    ) -> Result<Option<WindowView>, RunError> {
        loop {
            let head = self.node.heads.borrow_and_update().block;
            let view = self.node.window_view(window).await?;
            if until <= head || view.as_ref().is_none_or(&is_ready) {
                return Ok(view);
            }
            self.node.wait_past(head).await?;
        }
    }

    /// Whether the run hides attestations and votes until their deadline (PROT-30).
    pub(crate) fn hides(&self) -> bool {
        self.node.run().params.hidden_blocks > 0
    }
}
