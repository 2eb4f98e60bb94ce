//! The training of one window: the assigned data, a thread for the inner loop, and snapshots while it runs.

use crate::{
    error::{Missed, RunError, Stop},
    local::LocalState,
    miner::{Begun, Miner},
    observer::{Observer, ThreadResult},
    progress::{self, Base, Progress, SnapshotKey},
    train::{self, Trained, TrainingError, WindowSteps},
};
use daemon::{Entry, ModelState, Work, WorkDied, error_chain};
use nn::{ModelError, Trainer};
use protocol::{
    Block, Window,
    assign::Assignment,
    view::{SeatDeal, SeatWindow},
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tracing::field::Empty;

/// The result of a window's training.
pub(crate) struct TrainedWindow {
    /// Sequences that the contribution declares as trained (PROT-6).
    pub declared: u32,
    pub weights: Vec<f32>,
    /// The weights at the start of the training; `None`: the window's model.
    pub start: Option<Arc<Vec<f32>>>,
}

impl Miner {
    /// Trains on the assigned sequences until the commit margin begins.
    #[tracing::instrument(
        name = "train", target = "profile", level = "debug", skip_all, fields(window = view.window.0),
        err(level = "debug")
    )]
    pub(crate) async fn train(&mut self, view: &SeatWindow) -> Result<TrainedWindow, Stop> {
        let window = view.window;
        let deal = view.deal.ok_or(Missed::NotASlot)?;
        let (sequences, assigned) = self.sequences(window, &deal);
        let commit_by = self.node.schedule().commit_deadline(window);
        if commit_by <= self.node.block() {
            return Err(Missed::TooLate.into());
        }
        let (trained, weights, start) = self.train_until(view, sequences, self.stop_at(window)).await?;
        let declared = self.strategy.declares(trained.sequences, assigned);
        if declared == 0 {
            return Err(Missed::NoData.into());
        }
        self.record_trained(window, &trained);
        Ok(TrainedWindow { declared, weights, start })
    }

    /// Returns the sequences of `window` to train on, and the number that the chain assigned (PROT-5).
    pub(crate) fn sequences(&mut self, window: Window, deal: &SeatDeal) -> (Vec<u64>, u32) {
        let run = self.node.run();
        let assignment = Assignment {
            run: run.id,
            window,
            deal_seed: deal.seed,
            slots: &[],
            cursor: deal.cursor,
            sequences_per_seat: run.params.sequences_per_seat,
            training_sequences: self.node.dataset.training_sequences(),
        };
        let sequences = assignment.of_slot(deal.slot);
        let sequences = self.strategy.sequences(window, sequences, assignment.training_sequences);
        (sequences, assignment.sequences_per_seat)
    }

    /// Returns the block at which the training of `window` stops: the commit margin begins.
    pub(crate) fn stop_at(&self, window: Window) -> Block {
        let commit_by = self.node.schedule().commit_deadline(window);
        Block(commit_by.0.saturating_sub(self.options.commit_margin_blocks))
    }

    /// Trains from a killed process's state, or from the window's start. If that is ahead of the window's model and
    /// cannot be trained from, restarts at the model. Returns the progress, the weights, and [those at the
    /// start](TrainedWindow::start).
    async fn train_until(
        &mut self,
        view: &SeatWindow,
        sequences: Vec<u64>,
        stop_at: Block,
    ) -> Result<(Trained, Vec<f32>, Option<Arc<Vec<f32>>>), Stop> {
        let window = view.window;
        let (mut progress, mut begun) = self.begin_training(view, &sequences).await?;
        loop {
            let start = progress.reference.clone();
            let trained = self.inner_loop(window, sequences.clone(), begun, progress, stop_at).await?;
            let error = match trained {
                Ok((trained, weights)) => return Ok((trained, weights, start)),
                Err(error) => error,
            };
            // Freed before the optimiser is read again: it is as long as the model.
            let is_ahead = start.is_some();
            drop(start);
            self.forget_training().await?;
            if !is_ahead || !error.may_be_of_the_start() || stop_at <= self.node.block() {
                return Err(Missed::GivenUp(error).into());
            }
            let error = error_chain(&error);
            tracing::warn!(
                window = window.0,
                error,
                "training again from the window's model, not ahead of it: if this comes often, lower train.residual_share"
            );
            (progress, begun) = (self.begin_at_model(window, &sequences).await?, Trained::default());
        }
    }

    /// Runs the inner loop on a thread, and stops it when the chain reaches `stop_at`. Returns the progress and the
    /// weights.
    async fn inner_loop(
        &mut self,
        window: Window,
        sequences: Vec<u64>,
        begun: Trained,
        progress: Progress,
        stop_at: Block,
    ) -> Result<Result<(Trained, Vec<f32>), TrainingError>, RunError> {
        let (from, before) = (self.node.block(), begun.sequences);
        let stop = Arc::new(AtomicBool::new(stop_at <= self.node.block()));
        let work = self.start_training(window, sequences, begun, progress, stop.clone());
        let ended = self.wait_for_training(work, &stop, stop_at).await;
        let (local, trained, observer) = ended.map_err(RunError::TrainerDied)?;
        self.local = local;
        let trained = match self.trained(window, trained, &observer) {
            Ok(trained) => trained,
            Err(error) => return Ok(Err(error)),
        };
        let new = trained.sequences.saturating_sub(before);
        if 0 < new {
            let blocks = self.node.block().0.saturating_sub(from.0).saturating_add(1);
            self.pace = Some(f64::from(new) / f64::from(blocks));
        }
        let weights = self.compute(|local, _| local.trainer.weights_flat()).await;
        Ok(weights.map(|weights| (trained, weights)).map_err(TrainingError::Weights))
    }

    /// Records the observations of the training thread. Returns its progress.
    pub(crate) fn trained(
        &mut self,
        window: Window,
        trained: Result<Trained, TrainingError>,
        observer: &Observer,
    ) -> Result<Trained, TrainingError> {
        observer.repeated.iter().for_each(|entry| self.node.journal.write(entry));
        let written = observer.progress.written;
        if 0 < written.snapshots {
            let (count, bytes, seconds) = (written.snapshots, written.bytes, written.seconds);
            tracing::info!(window = window.0, count, bytes, seconds, "snapshots inside the window");
        }
        if let Err(error @ TrainingError::GivenUp { step, .. }) = &trained {
            // The whole error: it names the failed rank, and a window that was trained ahead is not missed.
            self.node.journal.write(&Entry::Repeated { window, step: *step, found: error_chain(error) });
        }
        trained
    }

    /// Resets the trainer to this or a killed process's state in this window, or to the window's
    /// [start](crate::contribution_store::Snapshot::start). Training that began at the miner's own weights is
    /// rebased.
    #[tracing::instrument(
        name = "rebase",
        target = "profile",
        level = "debug",
        skip_all,
        err(level = "debug")
    )]
    async fn begin_training(
        &mut self,
        view: &SeatWindow,
        sequences: &[u64],
    ) -> Result<(Progress, Trained), RunError> {
        let (window, begun) = (view.window, self.begun.take());
        let (directory, every) = (self.node.directory.clone(), self.options.snapshot_interval);
        let before = self.lineage_before(view).await?;
        let key = self.snapshot_keys(window, sequences);
        let own = before.map(|lineage| key(Base::Own { lineage }));
        let share = ResidualShare {
            start: match self.strategy.trains_ahead() {
                true => ResidualShare::of(self.options.residual_share, window),
                false => 0.0,
            },
            decay: self.node.run().params.error_feedback_decay.get(),
        };
        let begun = self.compute(move |local, state| {
            let model = Base::Model { lineage: state.lineage, weights: state.weights_root() };
            let mut progress = Progress::new(&directory, key(model), every);
            if let Some(Begun { progress: ahead, trained }) = begun {
                let rebased = match &ahead.reference {
                    Some(reference) if own.as_ref() == Some(ahead.key()) => {
                        let start = share.start(local, state);
                        let rebased =
                            begin(&mut local.trainer, &mut progress, start, &state.theta, Some(reference));
                        rebased.map_err(|error| error_chain(&error))
                    }
                    _ => Err("it is of other data, or of a model that the run undid".into()),
                };
                drop(ahead);
                let Err(why) = rebased else { return Ok((progress, trained, None)) };
                tracing::warn!(window = window.0, why, "what was trained ahead is dropped");
                local.store.restore(&mut local.trainer)?;
                let start = share.start(local, state);
                begin(&mut local.trainer, &mut progress, start, &state.theta, None)?;
                return Ok((progress, Trained::default(), None));
            }
            let found = resume(local, state, &mut progress, own, share)?;
            Ok::<_, RunError>((progress, Trained::default(), found))
        });
        let (progress, trained, resumed) = begun.await?;
        let Some(resumed) = resumed else { return Ok((progress, trained)) };
        if resumed.from_backup {
            self.node.journal.write(&Entry::FellBack { file: "training.snapshot".into() });
        }
        let Trained { sequences, steps, .. } = resumed.value;
        tracing::info!(window = window.0, sequences, steps, "resuming inside the window");
        self.node.journal.write(&Entry::Resumed { window, sequences, steps });
        Ok((progress, resumed.value))
    }

    /// Resets the trainer to the window's model.
    async fn begin_at_model(&mut self, window: Window, sequences: &[u64]) -> Result<Progress, RunError> {
        let (directory, every) = (self.node.directory.clone(), self.options.snapshot_interval);
        let key = self.snapshot_keys(window, sequences);
        let begun = self.compute(move |local, state| {
            let model = Base::Model { lineage: state.lineage, weights: state.weights_root() };
            let mut progress = Progress::new(&directory, key(model), every);
            begin(&mut local.trainer, &mut progress, None, &state.theta, None)?;
            Ok::<_, RunError>(progress)
        });
        begun.await
    }

    /// Returns the keys of the snapshots of a window's training, by its possible starts.
    pub(crate) fn snapshot_keys(
        &self,
        window: Window,
        sequences: &[u64],
    ) -> impl Fn(Base) -> SnapshotKey + use<> {
        let (run, seat, sequences) = (self.node.run_id(), self.node.seat.id, progress::digest_of(sequences));
        move |base| SnapshotKey { run, seat, window, base, sequences }
    }

    pub(crate) fn start_training(
        &mut self,
        window: Window,
        sequences: Vec<u64>,
        begun: Trained,
        progress: Progress,
        stop: Arc<AtomicBool>,
    ) -> Work<ThreadResult> {
        let mut local = std::mem::take(&mut self.local);
        let dataset = self.node.dataset.clone();
        let steps = WindowSteps {
            batch: self.options.batch_sequences,
            run_batch: self.node.follower().spec.recipe.batch,
            windows_before: window.0,
            sequences_per_seat: self.node.run().params.sequences_per_seat,
        };
        let shutdown = self.shutdown.clone();
        let reading = self.strategy.reading();
        shutdown.ends_with(&stop);
        shutdown.training(true);
        self.node.blocking.start(move || {
            let span = tracing::debug_span!(
                target: "profile",
                "training",
                window = window.0,
                sequences = Empty,
                steps = Empty,
                loss_first = Empty,
                loss_last = Empty,
                data_seconds = Empty
            );
            let span = span.entered();
            let mut observer = Observer {
                window,
                progress,
                repeated: Vec::new(),
                reading,
                shutdown: shutdown.clone(),
                stop: stop.clone(),
            };
            let trainer = &mut local.trainer;
            let trained = train::train(trainer, &dataset, &sequences, &steps, begun, &stop, &mut observer);
            match &trained {
                Ok(trained) => {
                    let Trained { sequences, steps, loss_first, loss_last, data_seconds, .. } = trained;
                    span.record("sequences", sequences).record("steps", steps);
                    span.record("loss_first", loss_first).record("loss_last", loss_last);
                    span.record("data_seconds", data_seconds);
                    observer.ended(trainer, trained);
                }
                Err(error) => daemon::traces::failed(&error_chain(error)),
            }
            shutdown.training(false);
            (local, trained, observer)
        })
    }

    /// Waits for the thread, and stops it when the chain reaches `stop_at`.
    async fn wait_for_training(
        &mut self,
        mut work: Work<ThreadResult>,
        stop: &AtomicBool,
        stop_at: Block,
    ) -> Result<ThreadResult, WorkDied> {
        loop {
            tokio::select! {
                biased;
                ended = &mut work => return ended,
                changed = self.node.heads.changed(), if !stop.load(Ordering::Relaxed) => {
                    // A lost connection to the chain is noticed after the window; the work is finished first.
                    if changed.is_err() || stop_at <= self.node.block() {
                        self.node.blocking.stop(stop);
                    }
                }
            }
        }
    }

    /// Drops the window's training: reads the optimiser again. The residual does not include the training yet.
    pub(crate) async fn forget_training(&mut self) -> Result<(), RunError> {
        let directory = self.node.directory.clone();
        let forgotten = self.compute(move |local, _| {
            local.store.restore(&mut local.trainer)?;
            progress::file(&directory).remove();
            Ok(())
        });
        forgotten.await
    }

    pub(crate) fn record_trained(&mut self, window: Window, trained: &Trained) {
        let Trained { sequences, steps, loss_first, loss_last, seconds, data_seconds } = *trained;
        let losses = format_args!("{loss_first:.4} to {loss_last:.4}").to_string();
        tracing::info!(window = window.0, sequences, steps, losses, "trained");
        let train_seconds = seconds;
        self.node.journal.write(&Entry::Trained {
            window,
            sequences,
            loss_first,
            loss_last,
            train_seconds,
            data_seconds,
        });
    }
}

/// Resets the trainer to the window's `start`, or to its model `theta` without one. Training that began at `own` is
/// moved there.
pub(crate) fn begin(
    trainer: &mut Trainer,
    progress: &mut Progress,
    start: Option<Vec<f32>>,
    theta: &[f32],
    own: Option<&[f32]>,
) -> Result<(), ModelError> {
    let base = start.as_deref().unwrap_or(theta);
    match own {
        Some(own) => rebase(trainer, base, own)?,
        None => trainer.load(base)?,
    }
    progress.reference = start.map(Arc::new);
    Ok(())
}

/// Computes `x ← x + (s − y)`: moves training that began at the miner's own weights `y` to `s`.
pub(crate) fn rebase(trainer: &mut Trainer, start: &[f32], reference: &[f32]) -> Result<(), ModelError> {
    let mut weights = trainer.weights_flat()?;
    for ((weight, start), reference) in weights.iter_mut().zip(start).zip(reference) {
        *weight += start - reference;
    }
    trainer.load(&weights)
}

/// Fraction of the residual that is subtracted at the start of a window's training, and the part that a window
/// leaves.
#[derive(Clone, Copy)]
struct ResidualShare {
    start: f32,
    decay: f32,
}

impl ResidualShare {
    /// Returns the fraction in `window`. It rises to `most` over the run's first ten windows: the model moves fast
    /// then, and unsent values are soon outdated (ADR 0046).
    fn of(most: f64, window: Window) -> f32 {
        (most * f64::from(window.0.min(10)) / 10.0) as f32
    }

    fn start(self, local: &LocalState, state: &ModelState) -> Option<Vec<f32>> {
        local.snapshot.start(state.window, &state.theta, self.start, self.decay)
    }
}

/// Reads the snapshot of this window into the trainer, or resets it to the window's start. A snapshot with the key
/// `own` began at the miner's own weights and is rebased. An unusable snapshot is logged, and its training time is
/// lost.
fn resume(
    local: &mut LocalState,
    state: &ModelState,
    progress: &mut Progress,
    own: Option<SnapshotKey>,
    share: ResidualShare,
) -> Result<Option<daemon::durable::Recovered<Trained>>, RunError> {
    let mut found = progress.resume(&mut local.trainer);
    if let (Ok(None), Some(own)) = (&found, own) {
        let mut ahead = progress.of(own);
        found = ahead.resume(&mut local.trainer);
        if let (Ok(Some(_)), Some(reference)) = (&found, &ahead.reference) {
            let start = share.start(local, state);
            begin(&mut local.trainer, progress, start, &state.theta, Some(reference))?;
        }
    }
    match found {
        Ok(Some(found)) => return Ok(Some(found)),
        Ok(None) => {}
        Err(error) => {
            let error = error_chain(&error);
            tracing::error!(window = state.window.0, error, "training the window from its beginning");
            local.store.restore(&mut local.trainer)?;
        }
    }
    let start = share.start(local, state);
    begin(&mut local.trainer, progress, start, &state.theta, None)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_the_residual_rises_over_ten_windows() {
        let shares = [0, 1, 5, 10, 11, u32::MAX].map(|window| ResidualShare::of(0.5, Window(window)));
        assert_eq!(shares, [0.0, 0.05, 0.25, 0.5, 0.5, 0.5]);
    }
}
