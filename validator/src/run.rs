//! The validator's loop: one window, top to bottom. Each step has its own file.

pub use crate::validator::Validator;

use crate::{
    attest::{mirror, selected_of},
    gather::Gathered,
    merge::{publish_checkpoint, selection},
    step::{RunError, Stop, UNKNOWN_WINDOW, before, journal_skip},
};
use futures::future::LocalBoxFuture;
use protocol::Window;
use tokio::task::JoinSet;
use tracing::Instrument as _;

/// Blocks before the end of a window until which the loop waits for an evaluation.
const LAST_CALL_BLOCKS: u32 = 2;
impl Validator {
    /// Serves window after window, until the process ends or an error makes it impossible to continue.
    ///
    /// # Errors
    /// [`RunError`] if the validator cannot continue.
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

    /// Updates the model to the open window, and past `finished`.
    async fn follow(&mut self, finished: Option<Window>) -> Result<(), RunError> {
        if self.node.follow(finished, &mut self.merger.own).await? {
            publish_checkpoint(&mut self.node).await?;
        }
        Ok(())
    }

    /// Serves one window. Each step may run twice: after a crash the window is served again from the start.
    async fn serve_window(&mut self, window: Window) -> Result<(), Stop> {
        let schedule = self.node.schedule();
        self.node.keep_seat().await?;
        self.reveal_weights(window).await?;
        self.probes.answer(&mut self.node, &self.signed, window).await?;
        self.node.wait_past(schedule.opens_at(window)).await?;
        // A process was killed before the next window's model was saved. Its statements are in the receipt, and
        // others would contradict it.
        if self.signed.signed_until() >= Some(window) {
            return Err(Stop::skip("its receipt is signed"));
        }
        if let Some(opened) = self.node.seat_window(window).await? {
            self.node.take_rewind(window, opened.lineage).await?;
        }

        // While miners train, judge the contributions of the previous window.
        self.judge_by(schedule.commit_deadline(window)).await?;
        self.evaluation.end(self.node.blocking);

        // Gather.
        self.node.wait_past(schedule.commit_deadline(window)).await?;
        self.receipts.deliver(&mut self.node, &mut self.signed).await?;
        let view = self.node.window_view(window).await?.ok_or_else(|| Stop::skip(UNKNOWN_WINDOW))?;
        let seats = self.node.seats().await?;
        let mut gathered = match self.strategy.computes() {
            true => self.gatherer.gather(&self.node, &view, &seats).await,
            false => Gathered::default(),
        };

        // Attest.
        let attested = self.attest(&view, &gathered).await;
        journal_skip(&mut self.node, window, "nothing attested", attested)?;
        self.node.wait_past(schedule.attest_deadline(window)).await?;
        let revealed = self.reveal_attestation(window, &gathered.valid).await;
        journal_skip(&mut self.node, window, "attestation not revealed", revealed)?;

        // Merge and vote.
        let view = selection(&mut self.node, window).await?;
        // Ends with the window, at the latest.
        let mut mirroring = JoinSet::new();
        let mut selected = selected_of(self.node.run_id(), &view, &gathered.valid);
        // Validators begin with different ones, so that each is soon in a bucket.
        let first = usize::from(self.node.uid().0) % selected.len().max(1);
        selected.rotate_left(first);
        let span = tracing::debug_span!(target: "profile", "mirror", contributions = selected.len());
        mirroring.spawn(mirror(self.node.store.clone(), selected).instrument(span));
        let voted = self.merge_and_vote(&view, &seats, &mut gathered.valid).await;
        journal_skip(&mut self.node, window, "no vote", voted)?;

        // Before the window is finalised, as its epoch may end then.
        self.commit_weights(&view).await?;

        // Evaluate. No other node waits for it: an evaluation longer than its window is judged in the next one.
        if self.strategy.computes() {
            // A stopped evaluation is judged first: otherwise this window would not be measured.
            self.judge_by(self.node.block()).await?;
            let reputations = self.signed.reputations();
            let window = (&view, &seats[..]);
            self.evaluation.start(&mut self.node, &self.salts, reputations, window, gathered).await;
        }
        self.node.wait_past(schedule.vote_deadline(window)).await?;
        let revealed = self.reveal_vote(window).await;
        journal_skip(&mut self.node, window, "vote not revealed", revealed)?;
        self.judge_by(before(schedule.opens_at(window.next()), LAST_CALL_BLOCKS)).await?;
        self.receipts.deliver(&mut self.node, &mut self.signed).await?;
        self.node.prune(window).await;
        Ok(())
    }
}
