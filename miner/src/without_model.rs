//! Contributes to a window whose model arrives late (ADR 0046).
//!
//! A contribution needs two things: the steps of its window, and the lineage of the window's model. The steps are `y
//! − x`, from the miner's own weights `y` to `x`, the result of the training [ahead](crate::ahead). The lineage is on
//! the chain when the window opens. A miner that still waits for the model when the commit margin begins interrupts
//! the download, and commits and uploads its training. Then it continues to wait. Once it holds the model, it rebases
//! and continues with the next window.

use crate::{
    error::{Missed, RunError, Stop},
    miner::{Begun, Miner},
    progress::{self, Base},
    train::TrainingError,
    train_window::TrainedWindow,
    train_window::rebase,
};
use daemon::error_chain;
use protocol::{Block, Window, view::SeatWindow};

impl Miner {
    /// Updates the model to the open window, and past `done`, the last window that the miner has finished.
    /// Contributes to the next window meanwhile if its model does not arrive in time.
    pub(crate) async fn follow(&mut self, done: Option<Window>) -> Result<(), RunError> {
        loop {
            let due_at = self.due.as_ref().map(|due| due.at);
            let leave_at = due_at.into_iter().chain(self.leaves_at()).min();
            if self.node.follow_until(done, leave_at).await? {
                return Ok(());
            }
            self.start_due(self.node.block()).await?;
            if self.leaves_at().is_some_and(|at| at <= self.node.block()) {
                self.contribute_without_model().await?;
            }
        }
    }

    /// Returns the block at which the commit margin of the window after the held one begins, if there is anything to
    /// contribute: training ahead, or the contribution of a killed process.
    fn leaves_at(&self) -> Option<Block> {
        let next = self.node.window().next();
        let trains = self.ahead.as_ref().is_some_and(|ahead| ahead.window() == next);
        let has_work = trains || (self.local.is_here() && self.pending_of(next).is_some());
        (has_work && self.without_model != Some(next)).then(|| self.stop_at(next))
    }

    /// Contributes the training of the window after the held one, once.
    #[tracing::instrument(
        name = "without model", target = "profile", level = "debug", skip_all,
        fields(window = self.node.window().next().0)
    )]
    async fn contribute_without_model(&mut self) -> Result<(), RunError> {
        let window = self.node.window().next();
        self.without_model = Some(window);
        self.end_ahead().await?;
        match self.commit_and_publish(window).await {
            Ok(()) => Ok(()),
            Err(Stop::Skip(skip)) => {
                self.record_missed(window, skip);
                match self.begun.take() {
                    Some(_) => self.forget_training().await,
                    None => Ok(()),
                }
            }
            Err(Stop::Fail(error)) => Err(error),
        }
    }

    async fn commit_and_publish(&mut self, window: Window) -> Result<(), Stop> {
        let view = self.node.seat_window(window).await?.ok_or(Missed::TooLate)?;
        self.node.keep_seat().await?;
        if view.deal.is_none() {
            return Err(Missed::NotASlot.into());
        }
        self.reconcile(window).await?;
        let pending = match self.pending_of(window) {
            Some(pending) => self.resume_contribution(&view, pending).await?,
            None => {
                let trained = self.trained_ahead(&view).await?;
                self.compress(&view, trained).await?
            }
        };
        tracing::warn!(
            window = window.0,
            sequences = pending.trained,
            "the window's model has not arrived: contributing what was trained ahead of it"
        );
        self.commit(&pending).await?;
        self.node.wait_past(self.node.schedule().commit_deadline(window)).await?;
        let store = self.local.store.clone();
        self.publish_and_record(&pending, store).await
    }

    /// Returns the training of the window of `view` from the miner's own weights.
    async fn trained_ahead(&mut self, view: &SeatWindow) -> Result<TrainedWindow, Stop> {
        let window = view.window;
        if self.node.schedule().commit_deadline(window) <= self.node.block() {
            return Err(Missed::TooLate.into());
        }
        let deal = view.deal.ok_or(Missed::NotASlot)?;
        let (sequences, assigned) = self.sequences(window, &deal);
        let lineage = self.lineage_before(view).await?;
        let (of, begun) = (progress::digest_of(&sequences), self.begun.as_ref().ok_or(Missed::NoData)?);
        let (key, trained) = (begun.progress.key(), begun.trained);
        let is_of_view = key.window == window && key.sequences == of;
        let start = begun.progress.reference.clone();
        if !is_of_view
            || start.is_none()
            || lineage.map(|lineage| Base::Own { lineage }).as_ref() != Some(&key.base)
        {
            return Err(Missed::OtherBase.into());
        }
        let declared = self.strategy.declares(trained.sequences, assigned);
        if declared == 0 {
            return Err(Missed::NoData.into());
        }
        let weights = self.compute(|local, _| local.trainer.weights_flat()).await;
        let weights = weights.map_err(|error| Missed::GivenUp(TrainingError::Weights(error)))?;
        self.record_trained(window, &trained);
        Ok(TrainedWindow { declared, weights, start })
    }

    /// Moves the trainer to the model of the window of `view`, to which the miner contributed before it held that
    /// model. Returns false if nothing of that training is left.
    pub(crate) async fn rebase_contributed(&mut self, view: &SeatWindow) -> Result<bool, RunError> {
        let Some(Begun { progress, .. }) = self.begun.take() else { return Ok(false) };
        let Some(own) = progress.reference.as_ref().filter(|_| progress.key().window == view.window).cloned()
        else {
            return Ok(false);
        };
        let rebased = self.compute(move |local, state| rebase(&mut local.trainer, &state.theta, &own));
        match rebased.await {
            Ok(()) => Ok(true),
            Err(error) => {
                let (window, error) = (view.window.0, error_chain(&error));
                tracing::warn!(window, error, "the next window begins with its model");
                self.forget_training().await?;
                Ok(false)
            }
        }
    }
}
