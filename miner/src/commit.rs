//! Commitment of trained weights: first to the disk, then to the chain, then subtracted from the residual.

use crate::{
    compress,
    contribution_store::{ContributionStoreError, PendingContribution},
    error::{Missed, RunError, Stop},
    local::LocalState,
    miner::Miner,
    progress,
    train_window::TrainedWindow,
};
use daemon::{
    Entry, ModelState,
    durable::{DiskFullRetry, is_full},
    error_chain,
};
use kernels::encode::Source;
use protocol::{Block, Window, submission::Header, view::SeatWindow};
use std::sync::Arc;
use tracing::field::Empty;

impl Miner {
    /// Compresses the trained weights into a contribution: `e ← decay^away·e`, then `e ← decay·e + Δ`, then the
    /// largest entries of `e` into a file (PROT-9, PROT-10).
    #[tracing::instrument(
        name = "encode", target = "profile", level = "debug", skip_all,
        fields(window = view.window.0, sequences = trained.declared, bytes = Empty), err(level = "debug")
    )]
    pub(crate) async fn compress(
        &mut self,
        view: &SeatWindow,
        trained: TrainedWindow,
    ) -> Result<PendingContribution, Stop> {
        let window = view.window;
        let TrainedWindow { declared, weights, start } = trained;
        let header = self.header(view, declared);
        let decay = self.node.run().params.error_feedback_decay.get();
        let follower = &*self.node.sync.follower;
        let before = start.as_deref().map_or(&*self.node.sync.state.theta, |start| start);
        let after = self.strategy.outcome(follower, view, before, weights).await;

        let commit_by = self.node.schedule().commit_deadline(window);
        let made = self.change_snapshot(commit_by, move |local, state| {
            let LocalState { trainer, snapshot, store } = local;
            let away = window.0.saturating_sub(snapshot.residual_for.0);
            compress::decay_residual(&mut snapshot.residual, decay, away);
            let before = start.as_deref().map_or(&*state.theta, |start| start);
            let source = Source::Difference { decay, before, after: &after };
            store.make(snapshot, &header, source, trainer)
        });
        match made.await {
            Ok(pending) => {
                tracing::Span::current().record("bytes", pending.length);
                progress::file(&self.node.directory).remove();
                Ok(pending)
            }
            Err(full) if is_full(&full) => {
                self.forget_training().await?;
                Err(Missed::NoRoom(full).into())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Resumes a contribution left by a crash; rewrites a lost file.
    pub(crate) async fn resume_contribution(
        &mut self,
        view: &SeatWindow,
        pending: PendingContribution,
    ) -> Result<PendingContribution, Stop> {
        let header = self.header(view, pending.trained);
        let until = self.node.schedule().commit_deadline(pending.window);
        let resumed = self.change_snapshot(until, move |local, _| {
            let LocalState { trainer, snapshot, store } = local;
            store.resume(snapshot, pending.clone(), &header, trainer)
        });
        match resumed.await {
            Err(RunError::Contribution(ContributionStoreError::Lost(lost))) => Err(Missed::Lost(lost).into()),
            Err(full) if is_full(&full) => Err(Missed::NoRoom(full).into()),
            resumed => Ok(resumed?),
        }
    }

    /// Reconciles a commitment left by a crash or a full disk: if the chain included it, subtracts its body from the
    /// residual, although its window is over (PROT-10). Skips the window `open`.
    pub(crate) async fn reconcile(&mut self, open: Window) -> Result<(), Stop> {
        let left = self.local.snapshot.pending.clone();
        let Some(pending) = left.filter(|pending| pending.window < open && !pending.committed) else {
            return Ok(());
        };
        if !self.is_committed(&pending).await? {
            return Ok(());
        }
        let (store, checked) = (self.local.store.clone(), pending.clone());
        if let Err(error) = self.node.blocking.run(move || store.check(&checked)).await {
            let window = pending.window.0;
            tracing::warn!(window, %error, "a committed contribution is lost: its values stay in the residual and are sent again");
            return Ok(());
        }
        match self.record_commitment(&pending, self.node.schedule().commit_deadline(open)).await {
            Err(full) if is_full(&full) => Err(Missed::NoRoom(full).into()),
            recorded => Ok(recorded?),
        }
    }

    /// Sends the commitment, unless the chain has it. A second one after a crash has the same digest.
    #[tracing::instrument(
        name = "commit", target = "profile", level = "debug", skip_all, fields(window = pending.window.0),
        err(level = "debug")
    )]
    pub(crate) async fn commit(&mut self, pending: &PendingContribution) -> Result<(), Stop> {
        if pending.committed {
            return Ok(());
        }
        let (window, digest) = (pending.window, pending.digest);
        if !self.is_committed(pending).await? {
            let file = self.local.store.path(pending);
            match self.strategy.commit(self.node.follower(), pending, &file).await {
                Err(error) if !error.is_transient() => return Err(Missed::Refused(error).into()),
                committed => committed.map_err(RunError::from)?,
            }
        }
        // A committed body leaves the residual, merged or not (PROT-10).
        let until = self.node.schedule().commit_deadline(window);
        match self.record_commitment(pending, until).await {
            Err(full) if is_full(&full) => {
                // The bytes are on the disk and the commitment is on the chain: the next window begins by recording
                // it.
                let error = error_chain(&full);
                tracing::warn!(
                    window = window.0,
                    error,
                    "committed; the disk is full, so the residual is updated in the next window"
                );
            }
            recorded => recorded?,
        }
        let bytes = pending.length;
        tracing::info!(window = window.0, %digest, bytes, "committed");
        self.node.journal.write(&Entry::Committed { window, digest, bytes });
        Ok(())
    }

    async fn is_committed(&self, pending: &PendingContribution) -> Result<bool, RunError> {
        let view = self.node.seat_window(pending.window).await?;
        Ok(view.is_some_and(|view| view.commitment == Some(pending.digest)))
    }

    async fn record_commitment(
        &mut self,
        pending: &PendingContribution,
        until: Block,
    ) -> Result<(), RunError> {
        let pending = pending.clone();
        let change = move |local: &mut LocalState, _: &ModelState| {
            let LocalState { trainer, snapshot, store } = local;
            store.committed(snapshot, &pending, trainer)
        };
        self.change_snapshot(until, change).await
    }

    /// Runs `change` on the snapshot, off the executor. If the disk is full, retries until `until` is finalised.
    ///
    /// # Errors
    /// The last error, which [is full](is_full) if `until` passed. The snapshot then equals the one on disk.
    async fn change_snapshot<T: Send + 'static>(
        &mut self,
        until: Block,
        change: impl Fn(&mut LocalState, &ModelState) -> Result<T, ContributionStoreError> + Send + Sync + 'static,
    ) -> Result<T, RunError> {
        let change = Arc::new(change);
        let mut heads = self.node.heads.clone();
        let mut retry = DiskFullRetry::new(&self.node.journal.disk);
        let attempt = async || {
            let change = change.clone();
            let done = self.compute(move |local, state| local.change(|local| change(local, state))).await;
            done.map_err(RunError::from)
        };
        retry.wait_until(until, &mut heads, attempt).await
    }

    /// Returns the header of this seat's contribution to the window of `view`.
    fn header(&self, view: &SeatWindow, trained: u32) -> Header {
        let follower = self.node.follower();
        Header {
            codec: protocol::PROTOCOL_VERSION,
            run: follower.run.id,
            window: view.window,
            uid: self.node.uid(),
            hotkey: self.node.seat.hotkey,
            base: view.lineage,
            schema: follower.schema().digest(),
            density: follower.run.params.density,
            trained,
        }
    }
}
