//! One window of a miner, top to bottom: follow, train, compress, commit, publish.

use crate::{
    compress,
    conduct::Conduct,
    outbox::{Outbox, OutboxError},
    publish,
    snapshot::{Pending, Snapshot, SnapshotError},
    spool::SpoolError,
    train::{self, Trained, TrainingError},
};
use chain_client::{Call, ChainError, Head};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use kernels::encode::Source;
use model::Trainer;
use protocol::{
    Block, Window,
    assign::Assignment,
    submission::Header,
    view::{SeatView, WindowView},
};
use replica::{Entry, Follower, HoldError, Holder, Journal, causes, wait_past};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use store::Store;
use tokio::sync::watch;

/// Everything a miner is made of. Time comes from the chain's heads; store, chain and data are given.
pub struct Miner {
    pub holder: Holder,
    pub store: Arc<dyn Store>,
    pub dataset: Arc<Dataset>,
    /// The inner loop's model and optimiser; away while it trains.
    pub trainer: Option<Trainer>,
    pub key: SigningKey,
    pub seat: SeatView,
    pub directory: PathBuf,
    pub journal: Journal,
    /// What it decides that another might decide otherwise.
    pub conduct: Box<dyn Conduct>,
    /// Blocks before the commit deadline at which training stops, so that the commitment is included in time.
    pub commit_margin_blocks: u32,
    /// Sequences in one step.
    pub batch_sequences: usize,
    /// Bytes moved, up and down, so far.
    pub traffic: Box<dyn Fn() -> (u64, u64) + Send>,
    /// Stop after so many windows; `None`: never.
    pub windows_max: Option<u32>,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Hold(#[from] HoldError),
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("training failed")]
    Training(#[from] TrainingError),
    #[error("the trainer could not take the model")]
    Trainer(#[from] model::ModelError),
    #[error("the snapshot's optimiser does not fit the model; remove the snapshot to start with a fresh one")]
    Optimiser(#[from] model::StateError),
    #[error("could not keep the contribution")]
    Outbox(#[from] OutboxError),
    #[error("the trainer is gone: its thread died in an earlier window")]
    TrainerLost,
    #[error("the thread that trains died")]
    TrainerDied(#[source] tokio::task::JoinError),
    #[error("this seat was given to somebody else at block {registered_at}; register again")]
    SeatLost { registered_at: Block },
}

/// Why a window passed without our contribution. Said in the journal; the next window is a new one.
enum Missed {
    NotASlot,
    TooLate,
    NoData,
    Refused(ChainError),
    Lost(SpoolError),
    NotUploaded(publish::PublishError),
}

impl Miner {
    /// Mines window after window until the process is stopped or something is lost that it cannot go on without.
    pub async fn run(mut self) -> Result<(), RunError> {
        let mut heads = self.holder.follower.chain.heads();
        let mut snapshot = self.take_up_snapshot()?;
        let mut mined = 0;
        let mut done = None;
        loop {
            // Follow.
            self.holder.to_open_window(&mut heads, done, &mut None, &mut self.journal).await?;
            let window = self.holder.window();
            self.traffic_entry(window);
            if self.windows_max.is_some_and(|max| max <= mined) {
                return Ok(());
            }

            // Train, compress, commit, publish.
            mined += 1;
            if let Err(missed) = self.mine(&mut snapshot, &mut heads).await? {
                let reason = missed.to_string();
                tracing::warn!(window = window.0, reason, "no contribution");
                self.journal.write(&Entry::Missed { window, reason });
            }
            replica::tidy(&*self.store, self.follower().run.id, window).await;

            // The window is fixed one block after the vote deadline.
            wait_past(&mut heads, self.schedule().vote_deadline(window)).await?;
            done = Some(window);
        }
    }

    fn take_up_snapshot(&mut self) -> Result<Snapshot, RunError> {
        match self.outbox().open()? {
            Some(snapshot) => {
                if !snapshot.optimiser.is_empty() {
                    self.trainer()?.restore(&snapshot.optimiser)?;
                }
                Ok(snapshot)
            }
            None => Ok(Snapshot::fresh(self.holder.window(), self.follower().schema().values())),
        }
    }

    /// One window, from the model that everyone holds to the bytes that everyone can fetch.
    async fn mine(
        &mut self,
        snapshot: &mut Snapshot,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<(), Missed>, RunError> {
        let window = self.holder.window();
        let schedule = self.schedule();

        // Which data? The hash of the opening block decides, and is known one block later.
        wait_past(heads, schedule.opens_at(window)).await?;
        let Some(view) = self.window_view(window).await? else { return Ok(Err(Missed::TooLate)) };
        self.still_ours().await?;
        if !view.slots.contains(&self.seat.id.uid) {
            return Ok(Err(Missed::NotASlot));
        }

        self.settle(snapshot).await?;

        // Train, unless a killed predecessor already has.
        let pending = match snapshot.pending.clone().filter(|pending| pending.window == window) {
            Some(pending) => {
                let header = self.header(pending.trained);
                match self.outbox().take_up(snapshot, pending, &header)? {
                    Ok(pending) => pending,
                    Err(lost) => return Ok(Err(Missed::Lost(lost))),
                }
            }
            None => match self.make(snapshot, &view, heads).await? {
                Ok(pending) => pending,
                Err(missed) => return Ok(Err(missed)),
            },
        };

        // Commit. Sent again after a crash, it is the same commitment.
        if let Err(missed) = self.commit(snapshot, &pending).await? {
            return Ok(Err(missed));
        }

        // Publish: never before the deadline, or somebody could copy it in time (PROT-11).
        wait_past(heads, schedule.commit_deadline(window)).await?;
        if let Err(lost) = self.outbox().check(&pending) {
            return Ok(Err(Missed::Lost(lost)));
        }
        let (path, reveal_by) = (self.outbox().path(&pending), schedule.reveal_deadline(window));
        match publish::upload(&*self.store, self.follower().run.id, &pending, &path, heads, reveal_by).await {
            Ok(()) => {
                let bytes = pending.length;
                tracing::info!(window = window.0, bytes, "uploaded");
                self.journal.write(&Entry::Uploaded { window, bytes });
                Ok(Ok(()))
            }
            Err(error) => Ok(Err(Missed::NotUploaded(error))),
        }
    }

    /// A predecessor may have been killed when its commitment was on its way, and its window be over by now. If it was included, its body
    /// leaves the residual all the same (PROT-10).
    async fn settle(&mut self, snapshot: &mut Snapshot) -> Result<(), RunError> {
        let open = self.holder.window();
        let Some(pending) =
            snapshot.pending.clone().filter(|pending| pending.window < open && !pending.committed)
        else {
            return Ok(());
        };
        let view = self.window_view(pending.window).await?;
        if view.is_some_and(|view| view.commitments.contains(&(self.seat.id.uid, pending.digest))) {
            match self.outbox().check(&pending) {
                Ok(()) => self.outbox().committed(snapshot, &pending)?,
                Err(error) => {
                    let window = pending.window.0;
                    tracing::warn!(window, %error, "what was committed stays in the residual, and will be sent again");
                }
            }
        }
        Ok(())
    }

    /// Train and compress: the contribution, saved before anything is said about it.
    async fn make(
        &mut self,
        snapshot: &mut Snapshot,
        view: &WindowView,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<Result<Pending, Missed>, RunError> {
        let window = self.holder.window();
        let run = &self.follower().run;
        let assignment = Assignment {
            run: run.id,
            window,
            opening_hash: view.opening_hash.unwrap_or_default(),
            slots: &view.slots,
            cursor: view.cursor,
            sequences_per_seat: run.params.sequences_per_seat,
            training_sequences: self.dataset.training_sequences(),
        };
        let Some(sequences) = assignment.of(self.seat.id.uid).filter(|_| view.opening_hash.is_some()) else {
            return Ok(Err(Missed::NotASlot));
        };
        let sequences = self.conduct.sequences(window, sequences, assignment.training_sequences);
        let assigned = assignment.sequences_per_seat;

        let commit_by = self.schedule().commit_deadline(window);
        let stop_at = Block(commit_by.0.saturating_sub(self.commit_margin_blocks));
        if stop_at <= heads.borrow().block {
            return Ok(Err(Missed::TooLate));
        }
        let (trained, theta) = self.train_until(sequences, stop_at, heads).await?;
        let declared = self.conduct.declares(trained.sequences, assigned);
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
        self.journal.write(&Entry::Trained {
            window,
            sequences: trained.sequences,
            loss_first: trained.loss_first,
            loss_last: trained.loss_last,
            train_seconds: trained.seconds,
        });

        // Compress: e ← decay^away·e, then e ← decay·e + Δ, and the largest entries of e into a file.
        let decay = self.follower().run.params.error_feedback_decay.get();
        let away = window.0.saturating_sub(snapshot.residual_for.0);
        compress::fade(&mut snapshot.residual, decay, away);
        let optimiser = self.trainer()?.state();
        let header = self.header(declared);
        let (follower, before) = (&self.holder.follower, &self.holder.state.theta);
        let theta = self.conduct.outcome(follower, view, before, theta).await;
        let source = Source::Difference { decay, before: &self.holder.state.theta, after: &theta };
        Ok(Ok(self.outbox().make(snapshot, &header, source, optimiser)?))
    }

    /// What our contribution to the window that we hold is bound to.
    fn header(&self, trained: u32) -> Header {
        Header {
            codec: protocol::PROTOCOL_VERSION,
            run: self.follower().run.id,
            window: self.holder.window(),
            uid: self.seat.id.uid,
            hotkey: self.seat.hotkey,
            base: self.holder.state.lineage,
            schema: self.follower().schema().digest(),
            density: self.follower().run.params.density,
            trained,
        }
    }

    /// Runs the inner loop on a thread of its own, and stops it when the chain reaches `stop_at`.
    async fn train_until(
        &mut self,
        sequences: Vec<u64>,
        stop_at: Block,
        heads: &mut watch::Receiver<Head>,
    ) -> Result<(Trained, Vec<f32>), RunError> {
        let mut trainer = self.trainer.take().ok_or(RunError::TrainerLost)?;
        trainer.load(&self.holder.state.theta)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (dataset, batch) = (self.dataset.clone(), self.batch_sequences);
        let work = {
            let stop = stop.clone();
            tokio::task::spawn_blocking(move || {
                let trained = train::train(&mut trainer, &dataset, &sequences, batch, &stop);
                (trainer, trained)
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
        let (trainer, trained) = done.map_err(RunError::TrainerDied)?;
        let theta = trainer.weights_flat();
        self.trainer = Some(trainer);
        Ok((trained?, theta))
    }

    async fn commit(
        &mut self,
        snapshot: &mut Snapshot,
        pending: &Pending,
    ) -> Result<Result<(), Missed>, RunError> {
        if pending.committed {
            return Ok(Ok(()));
        }
        let (run, window, digest) = (self.follower().run.id, pending.window, pending.digest);
        let already = match self.window_view(window).await? {
            Some(view) => view.commitments.contains(&(self.seat.id.uid, digest)),
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
        self.outbox().committed(snapshot, pending)?;
        let bytes = pending.length;
        tracing::info!(window = window.0, %digest, bytes, "committed");
        self.journal.write(&Entry::Committed { window, digest, bytes });
        Ok(Ok(()))
    }

    async fn window_view(&self, window: Window) -> Result<Option<WindowView>, ChainError> {
        self.follower().chain.window(self.follower().run.id, window).await
    }

    /// Keeps the endpoint current, and notices when the seat went to somebody else.
    async fn still_ours(&mut self) -> Result<(), RunError> {
        let seats = self.follower().chain.seats(self.follower().run.id).await?;
        let Some(seat) = seats.into_iter().find(|seat| seat.id.uid == self.seat.id.uid) else {
            return Ok(());
        };
        if seat.hotkey != self.seat.hotkey {
            return Err(RunError::SeatLost { registered_at: seat.id.registered_at });
        }
        self.seat = seat;
        Ok(())
    }

    fn traffic_entry(&mut self, window: Window) {
        let (bytes_up, bytes_down) = (self.traffic)();
        self.journal.write(&Entry::Traffic { window, bytes_up, bytes_down });
    }

    fn trainer(&mut self) -> Result<&mut Trainer, RunError> {
        self.trainer.as_mut().ok_or(RunError::TrainerLost)
    }

    fn follower(&self) -> &Follower {
        &self.holder.follower
    }

    fn schedule(&self) -> protocol::Schedule {
        self.follower().run.params.schedule
    }

    fn outbox(&self) -> Outbox<'_> {
        Outbox {
            directory: &self.directory,
            run: self.follower().run.id,
            seat: self.seat.id,
            key: &self.key,
            codec: &self.follower().sent,
        }
    }
}

impl std::fmt::Display for Missed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Missed::NotASlot => {
                f.write_str("the seat is not active yet: it takes part from the next window on")
            }
            Missed::TooLate => f.write_str("too little of the window was left"),
            Missed::NoData => f.write_str("not one step was finished before the commit deadline"),
            Missed::Refused(error) => write!(f, "the chain refused the commitment: {}", causes(error)),
            Missed::Lost(error) => write!(f, "what was committed cannot be uploaded: {}", causes(error)),
            Missed::NotUploaded(error) => write!(f, "{}", causes(error)),
        }
    }
}
