//! Training of the next window before its model arrives (ADR 0046).
//!
//! A miner that has committed has its own weights `y`, and the next window's data is dealt already (PROT-5). It
//! continues to train from `y` on a thread, to `x`. Once the node holds the next window's model, the thread stops,
//! and the miner *rebases* onto the window's [start](crate::contribution_store::Snapshot::start) `s`: `x ← x + (s −
//! y)`. The window's pseudo-gradient `s − x` is then the earlier `y − x`: the sum of the window's own steps.
//!
//! Steps from the window's model are better steps. So the thread starts as late as possible, at the pace of the
//! previous window: a machine that finishes its sequences inside the window trains ahead only if the model is late.

use crate::{
    error::RunError,
    miner::{Ahead, Begun, Due, Miner},
    progress::{Base, Progress},
    train::Trained,
};
use daemon::{Entry, error_chain};
use protocol::{
    Block, Digest, Window, lineage,
    view::{Outcome, SeatDeal, SeatWindow},
};
use std::sync::{Arc, atomic::AtomicBool};

/// Returns the last block from which `sequences` can be trained by `stop_at`, at `pace` sequences per block. It plans
/// for a quarter more time. Without a pace: the first block.
fn latest_start(stop_at: Block, sequences: usize, pace: Option<f64>) -> Block {
    let blocks = pace.map_or(u32::MAX, |pace| (1.25 * sequences as f64 / pace).ceil() as u32);
    Block(stop_at.0.saturating_sub(blocks))
}

impl Miner {
    /// Schedules training on the data of the window after `view`. It starts at once if it is due before the upload of
    /// this window's contribution may end. `at_end`: see [`Due`].
    pub(crate) async fn plan_ahead(&mut self, view: &SeatWindow, at_end: bool) -> Result<(), RunError> {
        if self.options.ahead <= 0.0 || !self.strategy.trains_ahead() {
            return Ok(());
        }
        let (window, lineage, schedule) = (view.window, view.lineage, self.node.schedule());
        // The deal is in the state of its block.
        let (dealt_at, uploaded_by) = (schedule.deals_next_at(window), schedule.reveal_deadline(window));
        self.node.wait_past(Block(dealt_at.0.saturating_sub(1))).await?;
        let Some(deal) = self.deal_after(window).await? else { return Ok(()) };
        let (sequences, _) = self.sequences(window.next(), &deal);
        let pace = self.options.pace.or(self.pace);
        let at = latest_start(self.stop_at(window.next()), sequences.len(), pace);
        self.due = Some(Due { window, lineage, deal, at, at_end });
        self.start_due(uploaded_by).await
    }

    /// Starts the training ahead that is due by `block`, if the node still holds the preceding model.
    pub(crate) async fn start_due(&mut self, block: Block) -> Result<(), RunError> {
        let Some(due) = self.due.take_if(|due| due.at <= block) else { return Ok(()) };
        if self.node.window() != due.window {
            return Ok(());
        }
        self.train_ahead(due.window, due.lineage, due.deal, due.at_end).await
    }

    /// Waits until the chain is past `block`. Meanwhile starts the training ahead if it is due.
    pub(crate) async fn wait_past(&mut self, block: Block) -> Result<(), RunError> {
        if let Some(at) = self.due.as_ref().map(|due| due.at).filter(|at| *at < block) {
            self.node.wait_past(at).await?;
            self.start_due(at).await?;
        }
        Ok(self.node.wait_past(block).await?)
    }

    /// Returns the deal of the window after `window`, which may be open already; `None` if the chain has not dealt
    /// it, or if the seat does not participate.
    async fn deal_after(&self, window: Window) -> Result<Option<SeatDeal>, RunError> {
        let (run, uid, chain) = (self.node.run_id(), self.node.uid(), self.node.chain());
        if let Some(open) = chain.seat_window(run, window.next(), uid).await? {
            return Ok(open.deal);
        }
        Ok(chain.seat_window(run, window, uid).await?.and_then(|view| view.next_deal))
    }

    /// Starts to train on `deal`, the data of the window after `window`.
    async fn train_ahead(
        &mut self,
        window: Window,
        lineage: Digest,
        deal: SeatDeal,
        at_end: bool,
    ) -> Result<(), RunError> {
        let next = window.next();
        let (mut sequences, _) = self.sequences(next, &deal);
        let key = self.snapshot_keys(next, &sequences)(Base::Own { lineage });
        let most = sequences.len() as f64 * self.options.ahead.min(1.0);
        let batch = self.options.batch_sequences.max(1);
        sequences.truncate(most as usize / batch * batch);

        let (directory, every) = (self.node.directory.clone(), self.options.snapshot_interval);
        let found_key = key.clone();
        let begun = self.compute(move |local, _| {
            let mut progress = Progress::new(&directory, found_key, every);
            if at_end {
                progress.reference = Some(Arc::new(local.trainer.weights_flat()?));
                return Ok(Some(Begun { progress, trained: Trained::default() }));
            }
            match progress.resume(&mut local.trainer) {
                Ok(found) => Ok(found.map(|found| Begun { progress, trained: found.value })),
                Err(error) => {
                    tracing::error!(error = error_chain(&error), "the next window waits for its model");
                    local.store.restore(&mut local.trainer)?;
                    Ok::<_, RunError>(None)
                }
            }
        });
        let Some(Begun { progress, trained }) = begun.await? else { return Ok(()) };
        if !at_end {
            let Trained { sequences, steps, .. } = trained;
            self.node.journal.write(&Entry::Resumed { window: next, sequences, steps });
        }
        tracing::info!(window = next.0, sequences = trained.sequences, "training ahead of the model");
        let stop = Arc::new(AtomicBool::new(false));
        let work = self.start_training(next, sequences, trained, progress, stop.clone());
        self.ahead = Some(Ahead { key, stop, work, blocking: self.node.blocking });
        Ok(())
    }

    /// Does the same as [`Miner::plan_ahead`] after a killed process. If the window after the held one is open
    /// already, it resumes from the killed process's state while it waits for the window's model.
    pub(crate) async fn resume_ahead(&mut self) -> Result<(), RunError> {
        let (held, block) = (self.node.window(), self.node.block());
        let next = held.next();
        let trains = 0.0 < self.options.ahead && self.strategy.trains_ahead();
        if !trains || self.node.schedule().window_at(block) != Some(next) || self.pending_of(next).is_some() {
            return Ok(());
        }
        let (run, uid) = (self.node.run_id(), self.node.uid());
        let Some(view) = self.node.chain().seat_window(run, held, uid).await? else { return Ok(()) };
        match self.deal_after(held).await? {
            Some(deal) => self.train_ahead(held, view.lineage, deal, false).await,
            None => Ok(()),
        }
    }

    /// Stops the thread that trains ahead, if there is one, and keeps its result.
    #[tracing::instrument(name = "end ahead", target = "profile", level = "debug", skip_all)]
    pub(crate) async fn end_ahead(&mut self) -> Result<(), RunError> {
        let Some(mut ahead) = self.ahead.take() else { return Ok(()) };
        ahead.blocking.stop(&ahead.stop);
        let (local, trained, observer) = (&mut ahead.work).await.map_err(RunError::TrainerDied)?;
        self.local = local;
        let window = ahead.key.window;
        match self.trained(window, trained, &observer) {
            Ok(trained) => self.begun = Some(Begun { progress: observer.progress, trained }),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(
                    window = window.0,
                    error,
                    "not trained ahead: the window begins with its model"
                );
                // Before the optimiser is read back: its reference is as long as the model.
                drop(observer);
                self.forget_training().await?;
            }
        }
        Ok(())
    }

    /// Drops training ahead of the held window or an earlier one, because it has no contribution.
    pub(crate) async fn drop_ahead(&mut self) -> Result<(), RunError> {
        if self.ahead.as_ref().is_some_and(|ahead| ahead.key.window <= self.node.window()) {
            self.end_ahead().await?;
        }
        if self.begun.take().is_some() {
            self.forget_training().await?;
        }
        Ok(())
    }

    /// Returns the lineage of the window before `view`, if the model of `view` follows it directly. It does not after
    /// a rewind to a checkpoint (PROT-20).
    pub(crate) async fn lineage_before(&self, view: &SeatWindow) -> Result<Option<Digest>, RunError> {
        let Some(before) = view.window.previous().filter(|_| 0.0 < self.options.ahead) else {
            return Ok(None);
        };
        let before = self.node.chain().window_summary(self.node.run_id(), before).await?;
        Ok(before.and_then(|before| {
            let after = match before.outcome? {
                Outcome::Merged(vote) => lineage::next(&before.lineage, &vote.update),
                Outcome::Void(_) => before.lineage,
            };
            (after == view.lineage).then_some(before.lineage)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        progress::{self, SnapshotInterval, SnapshotKey},
        train_window,
    };
    use model::{ModelConfig, Recipe};
    use nn::{Device, Trainer};
    use protocol::{RunId, SeatId, Uid, Window};

    fn config() -> ModelConfig {
        ModelConfig {
            vocab: 64,
            d_model: 32,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            d_ff: 48,
            seq_len: 8,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
        }
    }

    fn trainer(theta: &[f32]) -> Trainer {
        let recipe = Recipe { batch: 2, micro_batch: 2, ..Recipe::default() };
        Trainer::new(&config(), &recipe, Device::CPU, theta).unwrap()
    }

    fn key(base: Base) -> SnapshotKey {
        SnapshotKey {
            run: RunId(1),
            seat: SeatId { uid: Uid(4), registered_at: Block(9) },
            window: Window(7),
            base,
            sequences: progress::digest_of(&[1, 2]),
        }
    }

    #[test]
    fn training_ahead_starts_as_late_as_all_sequences_are_done_in_time() {
        let start = |pace| latest_start(Block(100), 1000, pace);
        // 20 blocks at this pace, and a quarter more.
        assert_eq!(start(Some(50.0)), Block(75));
        assert_eq!(start(Some(1000.0)), Block(98));
        assert_eq!(start(Some(1e9)), Block(99));
        for slow in [None, Some(1.0), Some(f64::MIN_POSITIVE)] {
            assert_eq!(start(slow), Block(0));
        }
    }

    #[test]
    fn a_rebase_keeps_the_steps_of_the_window_wherever_it_starts() {
        let [own, theta, start] = [1, 2, 3].map(|seed| model::init_flat(&config(), seed).unwrap());
        let home = tempfile::tempdir().unwrap();
        let key = key(Base::Model { lineage: Digest([1; 32]), weights: Digest([2; 32]) });
        for start in [None, Some(start)] {
            let mut trainer = trainer(&own);
            let sequence: Vec<u32> = (0..9).collect();
            trainer.step(&[&sequence[..], &sequence[..]]).unwrap();
            let steps: Vec<f32> = std::iter::zip(&own, trainer.weights_flat().unwrap())
                .map(|(before, after)| before - after)
                .collect();
            assert!(steps.iter().any(|step| 1e-5 < step.abs()));
            let mut progress = Progress::new(home.path(), key.clone(), SnapshotInterval::Never);
            train_window::begin(&mut trainer, &mut progress, start.clone(), &theta, Some(&own)).unwrap();
            // The contribution's source: the weights at the start, less those at the end.
            let before = progress.reference.as_deref().unwrap_or(&theta);
            assert_eq!(before, start.as_ref().unwrap_or(&theta));
            for ((before, weight), step) in before.iter().zip(trainer.weights_flat().unwrap()).zip(steps) {
                assert!((before - weight - step).abs() < 1e-6, "{before} {weight} {step}");
            }

            train_window::begin(&mut trainer, &mut progress, start, &theta, None).unwrap();
            let before = progress.reference.as_deref().unwrap_or(&theta);
            assert_eq!(*before, trainer.weights_flat().unwrap());
        }
    }

    #[test]
    fn a_snapshot_inside_a_window_holds_where_the_window_started() {
        let home = tempfile::tempdir().unwrap();
        let [start, theta] = [1, 2].map(|seed| model::init_flat(&config(), seed).unwrap());
        let key = key(Base::Model { lineage: Digest([1; 32]), weights: Digest([2; 32]) });
        let progress = || Progress::new(home.path(), key.clone(), SnapshotInterval::Never);
        for began in [None, Some(Arc::new(start))] {
            let mut written = progress();
            written.reference = began.clone();
            written.write(&trainer(&theta), &Trained::default()).unwrap();
            let mut found = progress();
            assert!(found.resume(&mut trainer(&theta)).unwrap().is_some());
            assert_eq!(found.reference, began);
        }
    }

    #[test]
    fn a_snapshot_of_training_ahead_holds_where_it_began_and_serves_no_other_training() {
        let home = tempfile::tempdir().unwrap();
        let [own, theta] = [1, 2].map(|seed| model::init_flat(&config(), seed).unwrap());
        let progress = |base| Progress::new(home.path(), key(base), SnapshotInterval::Never);
        let lineage = Digest([1; 32]);
        let trained = Trained { sequences: 2, steps: 1, ..Trained::default() };
        let mut written = progress(Base::Own { lineage });
        written.reference = Some(Arc::new(own.clone()));
        written.write(&trainer(&theta), &trained).unwrap();

        let mut resumed = trainer(&own);
        let mut found = progress(Base::Own { lineage });
        assert_eq!(found.resume(&mut resumed).unwrap().map(|found| found.value), Some(trained));
        assert_eq!(resumed.weights_flat().unwrap(), theta);
        assert_eq!(found.reference.as_deref(), Some(&own));

        // The run was rewound to a checkpoint, or the model is held and nothing was trained ahead of it.
        let undone = Base::Own { lineage: Digest([2; 32]) };
        for other in [undone, Base::Model { lineage, weights: Digest([3; 32]) }] {
            let mut other = progress(other);
            assert!(other.resume(&mut resumed).unwrap().is_none());
            assert_eq!(other.reference, None);
        }
    }
}
