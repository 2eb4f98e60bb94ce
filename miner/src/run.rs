//! One window of a miner, top to bottom: follow, train, compress, commit, publish. After its commitment it trains on
//! the next window's data, so it never idles.

pub use crate::miner::{AHEAD, Miner, MinerOptions, RESIDUAL_SHARE};

use crate::{
    contribution_store::{ContributionStore, PendingContribution},
    error::{Missed, RunError, Stop, refusal},
    local::LocalState,
    shutdown::ShutdownHandle,
    strategy::Strategy,
};
use daemon::{
    Entry, Lent, ModelState, Node, Skip,
    durable::{DiskFullRetry, Recovered, is_full},
};
use futures::future::LocalBoxFuture;
use nn::Trainer;
use protocol::Window;
use std::{sync::Arc, time::Duration};

/// Interval between two attempts of an upload.
const RETRY_UPLOAD: Duration = Duration::from_millis(500);

impl Miner {
    /// Reads the seat's snapshot, or writes its first one.
    ///
    /// # Errors
    /// [`RunError`] if the snapshot cannot be read, or cannot be written for another reason than a full disk.
    pub async fn open(
        mut node: Node,
        trainer: Trainer,
        strategy: Box<dyn Strategy>,
        options: MinerOptions,
        shutdown: Arc<ShutdownHandle>,
    ) -> Result<Miner, RunError> {
        let store = ContributionStore {
            directory: node.directory.clone(),
            run: node.run_id(),
            seat: node.seat.id,
            signer: node.signer.clone(),
            codec: node.follower().sent.clone(),
        };
        let window = node.window();
        let loaded = node.blocking.run(move || LocalState::load(store, trainer, window)).await;
        let (local, read) = loaded?;
        let mut local = Lent::new(local);
        match read {
            Some(Recovered { from_backup: false, .. }) => {}
            Some(Recovered { from_backup: true, .. }) => {
                node.journal.write(&Entry::FellBack { file: "miner.snapshot".into() })
            }
            None => {
                let mut retry = DiskFullRetry::new(&node.journal.disk);
                let begin = |local: &mut Lent<LocalState>| local.store.save(&local.snapshot, &local.trainer);
                while let Err(error) = node.blocking.with(&mut local, begin).await {
                    if !is_full(&error) {
                        return Err(error.into());
                    }
                    tokio::time::sleep(retry.refused(&error)).await;
                }
                retry.found();
            }
        }
        let (due, ahead, begun, without_model, pace) = (None, None, None, None, None);
        Ok(Miner { node, local, strategy, options, shutdown, due, ahead, begun, without_model, pace })
    }

    /// Mines window after window until the process is stopped or the node fails.
    ///
    /// # Errors
    /// [`RunError`] if the miner cannot continue.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), RunError>> {
        Box::pin(self.mine_windows())
    }

    async fn mine_windows(mut self) -> Result<(), RunError> {
        let mut mined = 0;
        self.resume_ahead().await?;
        self.follow(None).await?;
        loop {
            let window = self.node.window();
            self.node.record_traffic();
            if self.node.windows_max.is_some_and(|max| max <= mined) {
                return Ok(());
            }

            mined += 1;
            let is_last = self.node.windows_max.is_some_and(|max| max <= mined);
            self.take_window(window, is_last).await?;
            self.record_passed(window, self.node.window());
        }
    }

    /// Mines the held window, and follows the run to the next one.
    #[tracing::instrument(name = "window", target = "profile", level = "debug", skip_all, fields(window = window.0))]
    async fn take_window(&mut self, window: Window, is_last: bool) -> Result<(), RunError> {
        match self.mine(window, is_last).await {
            Ok(()) => {}
            Err(Stop::Skip(skip)) => {
                self.record_missed(window, skip);
                self.drop_ahead().await?;
            }
            Err(Stop::Fail(error)) => return Err(error),
        }
        self.node.prune(window).await;

        // The window is fixed one block after the vote deadline.
        self.wait_past(self.node.schedule().vote_deadline(window)).await?;
        self.follow(Some(window)).await
    }

    /// Mines one window, from the shared model to the uploaded contribution. Schedules the training ahead of the next
    /// one, unless it `is_last`.
    async fn mine(&mut self, window: Window, is_last: bool) -> Result<(), Stop> {
        self.due = None;
        // One block later the hash of the opening block is known, which draws a first window's deal.
        let schedule = self.node.schedule();
        self.node.wait_past(schedule.opens_at(window)).await?;
        let view = self.node.seat_window(window).await?.ok_or(Missed::TooLate)?;
        self.node.take_rewind(window, view.lineage).await?;
        self.node.keep_seat().await?;
        if view.deal.is_none() {
            return Err(Missed::NotASlot.into());
        }
        self.end_ahead().await?;
        self.reconcile(window).await?;
        // Drops a contribution without a model whose model came after the window's end.
        self.begun.take_if(|begun| begun.progress.key().window < window);
        if self.without_model == Some(window) {
            if self.rebase_contributed(&view).await? && !is_last {
                self.plan_ahead(&view, true).await?;
            }
            return Ok(());
        }

        // Train and compress, unless a killed process has done so.
        let made = self.pending_of(window);
        let at_end = made.is_none();
        let pending = match made {
            Some(pending) => self.resume_contribution(&view, pending).await?,
            None => {
                let trained = self.train(&view).await?;
                self.compress(&view, trained).await?
            }
        };
        self.commit(&pending).await?;
        let store = self.local.store.clone();
        if !is_last {
            self.plan_ahead(&view, at_end).await?;
        }

        // Never before the deadline: another miner could copy it in time (PROT-11).
        self.node.wait_past(schedule.commit_deadline(window)).await?;
        self.publish_and_record(&pending, store).await
    }

    /// Uploads the contribution, in parts if it is large. Retries until the reveal deadline is finalised. Returns the
    /// reason for a missed window if the upload ended after that.
    #[tracing::instrument(
        name = "upload", target = "profile", level = "debug", skip_all,
        fields(window = pending.window.0, bytes = pending.length), err(level = "debug")
    )]
    async fn publish(
        &mut self,
        pending: &PendingContribution,
        store: ContributionStore,
    ) -> Result<Option<Missed>, Stop> {
        let window = pending.window;
        let (path, checked, began) = (store.path(pending), pending.clone(), self.node.block());
        self.node.blocking.run(move || store.check(&checked)).await.map_err(Missed::Lost)?;
        let reveal_by = self.node.schedule().reveal_deadline(window);
        let node = &self.node;
        while let Err(error) = self.strategy.upload(node.follower(), &*node.store, pending, &path).await {
            if reveal_by <= node.block() {
                return Err(Missed::NotUploaded(error).into());
            }
            tracing::warn!(window = window.0, error = refusal(&error), "upload failed, trying again");
            tokio::time::sleep(RETRY_UPLOAD).await;
        }
        let bytes = pending.length;
        let blocks = node.block().0.saturating_sub(reveal_by.0);
        if blocks == 0 {
            tracing::info!(window = window.0, bytes, "uploaded");
            self.node.journal.write(&Entry::Uploaded { window, bytes });
        } else if reveal_by < began {
            // Only a restarted process begins so late, and the previous one may have uploaded it in time.
            tracing::warn!(
                window = window.0,
                "uploaded after the reveal deadline: it counts if it was uploaded before the restart"
            );
        } else {
            // Most validators do not find it; without this report only the pay would show it.
            return Ok(Some(Missed::UploadedLate { blocks }));
        }
        Ok(None)
    }

    /// Calls [`publish`](Self::publish) and records a late upload, which does not affect the next window's training.
    pub(crate) async fn publish_and_record(
        &mut self,
        pending: &PendingContribution,
        store: ContributionStore,
    ) -> Result<(), Stop> {
        if let Some(late) = self.publish(pending, store).await? {
            self.record_missed(pending.window, Skip::new(late.to_string()));
        }
        Ok(())
    }

    /// Runs `work` on the local state and the shared model, off the executor.
    pub(crate) async fn compute<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut LocalState, &ModelState) -> T + Send + 'static,
    ) -> T {
        let mut both = (std::mem::take(&mut self.local), std::mem::take(&mut self.node.sync.state));
        let done = self.node.blocking.with(&mut both, move |(local, state)| work(local, state)).await;
        (self.local, self.node.sync.state) = both;
        done
    }

    /// Returns the contribution to this window that a killed process has made.
    pub(crate) fn pending_of(&self, window: Window) -> Option<PendingContribution> {
        self.local.snapshot.pending.clone().filter(|pending| pending.window == window)
    }

    pub(crate) fn record_missed(&mut self, window: Window, skip: Skip) {
        let reason = skip.reason;
        tracing::warn!(window = window.0, reason, "no contribution");
        daemon::traces::failed(&reason);
        self.node.journal.write(&Entry::Missed { window, reason });
    }

    /// Records each window after `done` that was over before this node held the model of `open`.
    fn record_passed(&mut self, done: Window, open: Window) {
        for window in (done.0.saturating_add(1)..open.0).map(Window) {
            if self.without_model != Some(window) {
                self.record_missed(window, Skip::new(Missed::PassedBy.to_string()));
            }
        }
    }
}
