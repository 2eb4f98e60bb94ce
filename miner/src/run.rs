//! One window of a miner, top to bottom: follow, train, compress, commit, publish.

use crate::{
    compress,
    contribution_store::ContributionStoreError,
    pending_store::{PendingStore, PendingStoreError},
    progress::{self, Progress, SnapshotInterval, SnapshotKey},
    publish,
    snapshot::{PendingContribution, Snapshot, SnapshotError},
    strategy::Strategy,
    train::{self, TrainObserver, Trained, TrainingError},
};
use chain_client::{Call, ChainError, Head};
use futures::future::LocalBoxFuture;
use kernels::encode::Source;
use nn::{ModelError, Trainer};
use node::{
    Entry, Follower, Node, NodeError, SyncError,
    durable::{self, DiskFullRetry},
    error_chain, wait_past,
};
use protocol::{Block, Window, assign::Assignment, submission::Header, view::WindowView};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};
use tokio::sync::watch;

/// Everything a miner is made of. Time comes from the chain's heads; store, chain and data are given.
pub struct Miner {
    pub node: Node,
    /// The inner loop's model and optimiser; away while it trains.
    pub trainer: Option<Trainer>,
    /// What it decides that another might decide otherwise.
    pub strategy: Box<dyn Strategy>,
    /// Blocks before the commit deadline at which training stops, so that the commitment is included in time.
    pub commit_margin_blocks: u32,
    /// Sequences in one step.
    pub batch_sequences: usize,
    /// How often a snapshot is written inside a window.
    pub snapshot_every: SnapshotInterval,
    pub leaving: Arc<ShutdownHandle>,
}

/// How a process that is told to stop leaves the middle of a window: with a snapshot of where it is.
#[derive(Debug, Default)]
pub struct ShutdownHandle {
    asked: AtomicBool,
    training: AtomicBool,
}

impl ShutdownHandle {
    /// Asks for a snapshot after the step that is running. False if nothing is being trained.
    pub fn ask(&self) -> bool {
        self.asked.store(true, Ordering::SeqCst);
        self.training.load(Ordering::SeqCst)
    }

    /// Whether the trainer has stopped, its snapshot written.
    pub fn has_left(&self) -> bool {
        !self.training.load(Ordering::SeqCst)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the trainer could not take the model")]
    Trainer(#[from] nn::ModelError),
    #[error("could not keep the contribution; start again, and the miner goes on from what is on the disk")]
    PendingStore(#[from] PendingStoreError),
    #[error("the snapshot is gone from the disk: start again, and it begins with an empty residual")]
    SnapshotGone,
    #[error("the trainer is gone: its thread died in an earlier window")]
    TrainerLost,
    #[error(
        "the thread that trains died. If its device was out of memory, lower train.micro_batch_sequences: the next start goes on where this one was"
    )]
    TrainerDied(#[source] tokio::task::JoinError),
    #[error(transparent)]
    Node(#[from] NodeError),
}

/// Why a window passed without our contribution. Said in the journal; the next window is a new one.
enum Missed {
    NotASlot,
    TooLate,
    PassedBy,
    NoData,
    /// The disk was full until it was too late.
    NoRoom(PendingStoreError),
    GivenUp(TrainingError),
    Refused(ChainError),
    Lost(ContributionStoreError),
    NotUploaded(publish::PublishError),
}

impl Miner {
    /// Mines window after window until the process is stopped or something is lost that it cannot go on without.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), RunError>> {
        Box::pin(self.mine_windows())
    }

    async fn mine_windows(mut self) -> Result<(), RunError> {
        let mut heads = self.node.heads.clone();
        let mut snapshot = self.take_up_snapshot().await?;
        let mut mined = 0;
        let mut done = None;
        loop {
            // Follow.
            self.node.sync.sync_to_open_window(&mut heads, done, &mut None, &mut self.node.journal).await?;
            let window = self.node.sync.window();
            self.log_skipped(done, window);
            self.node.record_traffic();
            if self.node.windows_max.is_some_and(|max| max <= mined) {
                return Ok(());
            }

            // Train, compress, commit, publish.
            mined += 1;
            if let Err(missed) = self.mine(&mut snapshot, &mut heads).await? {
                let reason = missed.to_string();
                tracing::warn!(window = window.0, reason, "no contribution");
                self.node.journal.write(&Entry::Missed { window, reason });
            }
            node::prune(&*self.node.store, self.follower().run.id, window).await;

            // The window is fixed one block after the vote deadline.
            wait_past(&mut heads, self.schedule().vote_deadline(window)).await?;
            done = Some(window);
        }
    }

    /// Says of each window after `done` that it was over before this node held the model of `open`.
    fn log_skipped(&mut self, done: Option<Window>, open: Window) {
        let Some(done) = done else { return };
        let passed = (done.0.saturating_add(1)..open.0).map(Window);
        for window in passed {
            let reason = Missed::PassedBy.to_string();
            tracing::warn!(window = window.0, reason, "no contribution");
            self.node.journal.write(&Entry::Missed { window, reason });
        }
    }

    async fn take_up_snapshot(&mut self) -> Result<Snapshot, RunError> {
        let mut trainer = self.trainer.take().ok_or(RunError::TrainerLost)?;
        let found = self.pending_store().open(&mut trainer)?;
        let snapshot = match found {
            Some(found) => {
                if found.from_backup {
                    self.node.journal.write(&Entry::FellBack { file: "miner.snapshot".into() });
                }
                found.value
            }
            None => {
                let fresh = Snapshot::fresh(self.node.sync.window(), self.follower().schema().values());
                durable::retry_while_full(SnapshotError::is_full, || {
                    self.pending_store().begin(&fresh, &trainer)
                })
                .await?;
                fresh
            }
        };
        self.trainer = Some(trainer);
        Ok(snapshot)
    }

    /// One window, from the model that everyone holds to the bytes that everyone can fetch.
    async fn mine(
        &mut self,
        snapshot: &mut Snapshot,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<(), Missed>, RunError> {
        let window = self.node.sync.window();
        let schedule = self.schedule();

        // Which data? The hash of the opening block decides, and is known one block later.
        wait_past(heads, schedule.opens_at(window)).await?;
        let Some(view) = self.window_view(window).await? else { return Ok(Err(Missed::TooLate)) };
        self.node.keep_seat().await?;
        if !view.slots.contains(&self.node.seat.id.uid) {
            return Ok(Err(Missed::NotASlot));
        }

        if let Err(missed) = self.reconcile(snapshot, heads).await? {
            return Ok(Err(missed));
        }

        // Train, unless a killed predecessor already has.
        let pending = match snapshot.pending.clone().filter(|pending| pending.window == window) {
            Some(pending) => {
                let (header, until) = (self.header(pending.trained), schedule.commit_deadline(window));
                let taken_up = self.with_room(snapshot, until, heads, |miner, snapshot| {
                    let optimiser = miner.optimiser()?;
                    Ok(miner.pending_store().resume(snapshot, pending.clone(), &header, optimiser)?)
                });
                match taken_up.await? {
                    Ok(Ok(pending)) => pending,
                    Ok(Err(lost)) => return Ok(Err(Missed::Lost(lost))),
                    Err(full) => return Ok(Err(Missed::NoRoom(full))),
                }
            }
            None => match self.make(snapshot, &view, heads).await? {
                Ok(pending) => pending,
                Err(missed) => return Ok(Err(missed)),
            },
        };

        // Commit. Sent again after a crash, it is the same commitment.
        if let Err(missed) = self.commit(snapshot, &pending, heads).await? {
            return Ok(Err(missed));
        }

        // Publish: never before the deadline, or somebody could copy it in time (PROT-11).
        wait_past(heads, schedule.commit_deadline(window)).await?;
        if let Err(lost) = self.pending_store().check(&pending) {
            return Ok(Err(Missed::Lost(lost)));
        }
        let (path, reveal_by) = (self.pending_store().path(&pending), schedule.reveal_deadline(window));
        match publish::upload(&*self.node.store, self.follower().run.id, &pending, &path, heads, reveal_by)
            .await
        {
            Ok(()) => {
                let bytes = pending.length;
                tracing::info!(window = window.0, bytes, "uploaded");
                self.node.journal.write(&Entry::Uploaded { window, bytes });
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(Missed::NotUploaded(error))),
        }
    }

    /// A predecessor may have been killed when its commitment was on its way, and its window be over by now; or there was no room to note it.
    /// If it was included, its body leaves the residual all the same (PROT-10).
    async fn reconcile(
        &mut self,
        snapshot: &mut Snapshot,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<(), Missed>, RunError> {
        let open = self.node.sync.window();
        let Some(pending) =
            snapshot.pending.clone().filter(|pending| pending.window < open && !pending.committed)
        else {
            return Ok(Ok(()));
        };
        let view = self.window_view(pending.window).await?;
        if view.is_none_or(|view| !view.commitments.contains(&(self.node.seat.id.uid, pending.digest))) {
            return Ok(Ok(()));
        }
        if let Err(error) = self.pending_store().check(&pending) {
            let window = pending.window.0;
            tracing::warn!(window, %error, "what was committed stays in the residual, and will be sent again");
            return Ok(Ok(()));
        }
        let until = self.schedule().commit_deadline(open);
        let settled = self.with_room(snapshot, until, heads, |miner, snapshot| {
            Ok(miner.pending_store().committed(snapshot, &pending, miner.optimiser()?)?)
        });
        Ok(settled.await?.map_err(Missed::NoRoom))
    }

    /// Does what changes the snapshot. Where the disk has no room for it, the snapshot becomes what it was on disk, and it is done again, as soon as
    /// there is room, until the chain reaches `until`; then the `Err` inside is what was said last.
    async fn with_room<T>(
        &mut self,
        snapshot: &mut Snapshot,
        until: Block,
        heads: &mut watch::Receiver<Head>,
        mut act: impl FnMut(&Miner, &mut Snapshot) -> Result<T, RunError>,
    ) -> Result<Result<T, PendingStoreError>, RunError> {
        let mut disk_full_retry = DiskFullRetry::default();
        let is_full = |error: &RunError| matches!(error, RunError::PendingStore(full) if full.is_full());
        let kept = disk_full_retry.wait_until(until, heads, is_full, async || {
            let done = act(self, snapshot);
            if done.as_ref().is_err_and(is_full) {
                // Not both at once: it is as large as the model.
                snapshot.residual = Vec::new();
                *snapshot = self.pending_store().reload()?.ok_or(RunError::SnapshotGone)?;
            }
            done
        });
        match kept.await {
            Err(RunError::PendingStore(full)) if full.is_full() => Ok(Err(full)),
            done => done.map(Ok),
        }
    }

    /// Train and compress: the contribution, saved before anything is said about it.
    async fn make(
        &mut self,
        snapshot: &mut Snapshot,
        view: &WindowView,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<PendingContribution, Missed>, RunError> {
        let window = self.node.sync.window();
        let run = &self.follower().run;
        let assignment = Assignment {
            run: run.id,
            window,
            opening_hash: view.opening_hash.unwrap_or_default(),
            slots: &view.slots,
            cursor: view.cursor,
            sequences_per_seat: run.params.sequences_per_seat,
            training_sequences: self.node.dataset.training_sequences(),
        };
        let Some(sequences) = assignment.of(self.node.seat.id.uid).filter(|_| view.opening_hash.is_some())
        else {
            return Ok(Err(Missed::NotASlot));
        };
        let sequences = self.strategy.sequences(window, sequences, assignment.training_sequences);
        let assigned = assignment.sequences_per_seat;

        let commit_by = self.schedule().commit_deadline(window);
        let stop_at = Block(commit_by.0.saturating_sub(self.commit_margin_blocks));
        if commit_by <= heads.borrow().block {
            return Ok(Err(Missed::TooLate));
        }
        let (trained, theta) = match self.train_until(sequences, stop_at, heads).await? {
            Ok(done) => done,
            Err(error) => {
                self.forget_training()?;
                return Ok(Err(Missed::GivenUp(error)));
            }
        };
        let declared = self.strategy.declares(trained.sequences, assigned);
        if declared == 0 {
            return Ok(Err(Missed::NoData));
        }
        tracing::info!(
            window = window.0,
            sequences = trained.sequences,
            steps = trained.steps,
            loss_first = trained.loss_first,
            loss_last = trained.loss_last,
            "trained"
        );
        self.node.journal.write(&Entry::Trained {
            window,
            sequences: trained.sequences,
            loss_first: trained.loss_first,
            loss_last: trained.loss_last,
            train_seconds: trained.seconds,
            data_seconds: trained.data_seconds,
        });

        // Compress: e ← decay^away·e, then e ← decay·e + Δ, and the largest entries of e into a file.
        let decay = self.follower().run.params.error_feedback_decay.get();
        let header = self.header(declared);
        let (follower, before) = (&self.node.sync.follower, &self.node.sync.state.theta);
        let theta = self.strategy.outcome(follower, view, before, theta).await;
        let made = self.with_room(snapshot, commit_by, heads, |miner, snapshot| {
            let away = window.0.saturating_sub(snapshot.residual_for.0);
            compress::decay_residual(&mut snapshot.residual, decay, away);
            let source = Source::Difference { decay, before: &miner.node.sync.state.theta, after: &theta };
            Ok(miner.pending_store().make(snapshot, &header, source, miner.optimiser()?)?)
        });
        match made.await? {
            Ok(pending) => {
                progress::kept(&self.node.directory).remove();
                Ok(Ok(pending))
            }
            Err(full) => {
                self.forget_training()?;
                Ok(Err(Missed::NoRoom(full)))
            }
        }
    }

    /// The window's training is worth nothing. What there was before it stays: the residual, which nothing was folded into, and the optimiser,
    /// which is read back.
    fn forget_training(&mut self) -> Result<(), RunError> {
        let mut trainer = self.trainer.take().ok_or(RunError::TrainerLost)?;
        self.pending_store().restore(&mut trainer)?;
        self.trainer = Some(trainer);
        progress::kept(&self.node.directory).remove();
        Ok(())
    }

    /// What our contribution to the window that we hold is bound to.
    fn header(&self, trained: u32) -> Header {
        Header {
            codec: protocol::PROTOCOL_VERSION,
            run: self.follower().run.id,
            window: self.node.sync.window(),
            uid: self.node.seat.id.uid,
            hotkey: self.node.seat.hotkey,
            base: self.node.sync.state.lineage,
            schema: self.follower().schema().digest(),
            density: self.follower().run.params.density,
            trained,
        }
    }

    /// Runs the inner loop on a thread of its own, from where a predecessor was killed if one was, and stops it when the chain reaches
    /// `stop_at`. The `Err` inside says why the window is given up.
    async fn train_until(
        &mut self,
        sequences: Vec<u64>,
        stop_at: Block,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<(Trained, Vec<f32>), TrainingError>, RunError> {
        let window = self.node.sync.window();
        let of = SnapshotKey {
            run: self.follower().run.id,
            seat: self.node.seat.id,
            window,
            lineage: self.node.sync.state.lineage,
            weights: self.node.sync.state.weights_root(),
            sequences: progress::digest_of(&sequences),
        };
        let mut progress = Progress::new(&self.node.directory, of, self.snapshot_every);
        let mut trainer = self.trainer.take().ok_or(RunError::TrainerLost)?;
        let trained = self.go_on_from(&mut progress, &mut trainer)?;
        let stop = Arc::new(AtomicBool::new(stop_at <= heads.borrow().block));
        let (dataset, batch) = (self.node.dataset.clone(), self.batch_sequences);
        let work = {
            let (stop, leaving) = (stop.clone(), self.leaving.clone());
            leaving.training.store(true, Ordering::SeqCst);
            tokio::task::spawn_blocking(move || {
                let mut watched = Watched {
                    window,
                    progress,
                    repeated: Vec::new(),
                    leaving: leaving.clone(),
                    stop: stop.clone(),
                };
                let trained =
                    train::train(&mut trainer, &dataset, &sequences, batch, trained, &stop, &mut watched);
                if let Ok(trained) = &trained {
                    watched.left(&trainer, trained);
                }
                leaving.training.store(false, Ordering::SeqCst);
                (trainer, trained, watched)
            })
        };
        let mut work = std::pin::pin!(work);
        let done = loop {
            tokio::select! {
                done = &mut work => break done,
                changed = heads.changed(), if !stop.load(Ordering::Relaxed) => {
                    // A chain that went away for good is noticed after the window; the work is finished first.
                    if changed.is_err() || stop_at <= heads.borrow().block {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            }
        };
        let (trainer, trained, watched) = done.map_err(RunError::TrainerDied)?;
        watched.repeated.iter().for_each(|entry| self.node.journal.write(entry));
        let written = watched.progress.written;
        if 0 < written.snapshots {
            let (count, bytes, seconds) = (written.snapshots, written.bytes, written.seconds);
            tracing::info!(window = window.0, count, bytes, seconds, "snapshots inside the window");
        }
        let done = trained.and_then(|trained| {
            let weights = trainer.try_weights_flat().map_err(TrainingError::Weights)?;
            Ok((trained, weights))
        });
        if let Err(TrainingError::GivenUp { step, cause, .. }) = &done {
            self.node.journal.write(&Entry::Repeated { window, step: *step, found: cause.to_string() });
        }
        self.trainer = Some(trainer);
        Ok(done)
    }

    /// Puts the trainer where a predecessor was in this window, or else at the window's model. What cannot be used costs time and nothing
    /// else: it is said, and the window is trained from its beginning.
    fn go_on_from(&mut self, progress: &mut Progress, trainer: &mut Trainer) -> Result<Trained, RunError> {
        let window = self.node.sync.window();
        match progress.resume(trainer) {
            Ok(Some(found)) => {
                let Trained { sequences, steps, .. } = found.value;
                if found.from_backup {
                    self.node.journal.write(&Entry::FellBack { file: "training.snapshot".into() });
                }
                tracing::info!(window = window.0, sequences, steps, "going on inside the window");
                self.node.journal.write(&Entry::Resumed { window, sequences, steps });
                return Ok(found.value);
            }
            Ok(None) => {}
            Err(error) => {
                tracing::error!(window = window.0, error = %error_chain(&error), "training the window from its beginning");
                self.pending_store().restore(trainer)?;
            }
        }
        trainer.load(&self.node.sync.state.theta)?;
        Ok(Trained::default())
    }

    async fn commit(
        &mut self,
        snapshot: &mut Snapshot,
        pending: &PendingContribution,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<(), Missed>, RunError> {
        if pending.committed {
            return Ok(Ok(()));
        }
        let (run, window, digest) = (self.follower().run.id, pending.window, pending.digest);
        let already = match self.window_view(window).await? {
            Some(view) => view.commitments.contains(&(self.node.seat.id.uid, digest)),
            None => false,
        };
        if !already {
            match self.follower().chain.submit(Call::Commit { run, window, digest }).await {
                Ok(_) => {}
                Err(error) if !error.is_transient() => return Ok(Err(Missed::Refused(error))),
                Err(error) => return Err(error.into()),
            }
        }
        // What was committed leaves the residual, merged or not (PROT-10).
        let until = self.schedule().commit_deadline(window);
        let noted = self.with_room(snapshot, until, heads, |miner, snapshot| {
            Ok(miner.pending_store().committed(snapshot, pending, miner.optimiser()?)?)
        });
        if let Err(full) = noted.await? {
            // The bytes are there, and the chain knows of them: the next window begins with the note.
            let error = error_chain(&full);
            tracing::warn!(
                window = window.0,
                error,
                "committed, and uploaded all the same; noted once there is room"
            );
        }
        let bytes = pending.length;
        tracing::info!(window = window.0, %digest, bytes, "committed");
        self.node.journal.write(&Entry::Committed { window, digest, bytes });
        Ok(Ok(()))
    }

    async fn window_view(&self, window: Window) -> Result<Option<WindowView>, ChainError> {
        self.follower().chain.window(self.follower().run.id, window).await
    }

    fn optimiser(&self) -> Result<&Trainer, RunError> {
        self.trainer.as_ref().ok_or(RunError::TrainerLost)
    }

    fn follower(&self) -> &Follower {
        &self.node.sync.follower
    }

    fn schedule(&self) -> protocol::Schedule {
        self.follower().run.params.schedule
    }

    fn pending_store(&self) -> PendingStore<'_> {
        PendingStore {
            directory: &self.node.directory,
            run: self.follower().run.id,
            seat: self.node.seat.id,
            key: &self.node.key,
            codec: &self.follower().sent,
        }
    }
}

/// What goes on beside the steps of one window.
struct Watched {
    window: Window,
    progress: Progress,
    /// For the journal.
    repeated: Vec<Entry>,
    leaving: Arc<ShutdownHandle>,
    stop: Arc<AtomicBool>,
}

impl Watched {
    /// Where the process was told to stop while no step was running, but data awaited: the snapshot that a step would have ended with.
    fn left(&mut self, trainer: &Trainer, trained: &Trained) {
        if self.is_leaving() && !self.stop.load(Ordering::Relaxed) && 0 < trained.steps {
            self.stepped(trainer, trained);
        }
    }
}

impl TrainObserver for Watched {
    fn is_leaving(&self) -> bool {
        self.leaving.asked.load(Ordering::SeqCst)
    }

    fn stepped(&mut self, trainer: &Trainer, trained: &Trained) {
        let written = if self.is_leaving() {
            // The process ends with this step, and nothing is made of the window now.
            self.stop.store(true, Ordering::Relaxed);
            self.progress.write(trainer, trained)
        } else {
            self.progress.stepped(trainer, trained)
        };
        if let Err(error) = written {
            let window = self.window.0;
            tracing::error!(
                window,
                error = %error_chain(&error),
                "no snapshot inside the window: the last one stands, and training goes on; make room, or a miner killed now trains again what \
                 came after it"
            );
        }
    }

    fn repeated(&mut self, step: u32, error: &ModelError) {
        let window = self.window;
        tracing::warn!(window = window.0, step, %error, "{DEVICE_FAULT}");
        self.repeated.push(Entry::Repeated { window, step, found: format!("{error}; {DEVICE_FAULT}") });
    }
}

/// What a step shows that was fine the second time.
const DEVICE_FAULT: &str = "run again from the same state the step was fine: the device had computed wrongly, and the work goes on; \
                            if it happens again, check its memory, temperature and clock";

impl std::fmt::Display for Missed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missed::NotASlot => {
                f.write_str("the seat is not active yet: it takes part from the next window on")
            }
            Missed::TooLate => f.write_str("too little of the window was left"),
            Missed::PassedBy => f.write_str(
                "it was over before this node held its model: the log says whether that was for want of room on the disk, of mirrors, or of the chain",
            ),
            Missed::NoRoom(error) => write!(
                f,
                "the disk was full, and everything is as it was before: {}",
                error_chain(error)
            ),
            Missed::NoData => f.write_str("not one step was finished before the commit deadline"),
            Missed::GivenUp(error) => {
                write!(f, "given up, and everything kept as it was before: {}", error_chain(error))
            }
            Missed::Refused(error) => write!(f, "the chain refused the commitment: {}", error_chain(error)),
            Missed::Lost(error) => write!(f, "what was committed cannot be uploaded: {}", error_chain(error)),
            Missed::NotUploaded(error) => write!(f, "{}", error_chain(error)),
        }
    }
}
