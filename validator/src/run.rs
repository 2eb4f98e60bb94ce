//! The validator's loop: one window, top to bottom. Each step has a file of its own.

use crate::{
    evaluate::{Evaluate, EvaluateError, Evaluation},
    gauntlet::Sketches,
    report::Published,
    salt::Salts,
    signed_db::{SignedDb, SignedDbError},
    stop::{Stop, skip},
    strategy::Strategy,
};
use chain_client::{Call, Chain, ChainError, Head};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use futures::future::LocalBoxFuture;
use node::{
    Entry, Follower, Journal, SyncDriver, SyncError, disk_full::DiskFullRetry, error_chain, follow::OwnMerge,
};
use protocol::{
    Block, Schedule, Window,
    view::{RunView, SeatView, WindowView},
};
use std::sync::Arc;
use store::Store;
use tokio::{sync::watch, task::JoinHandle};

/// An evaluation is waited for until this many blocks before the window ends.
const LAST_CALL_BLOCKS: u32 = 2;

/// Blocks before a deadline at which a full disk is no longer waited for: finality may be three behind, and a call takes two.
const SUBMIT_BLOCKS: u32 = 5;

/// Everything that a validator consists of. Time comes from the chain's finalised blocks.
pub struct Parts {
    pub sync_driver: SyncDriver,
    pub store: Arc<dyn Store>,
    pub dataset: Arc<Dataset>,
    pub evaluator: Box<dyn Evaluate>,
    pub signed: SignedDb,
    /// The hotkey. Evaluation and hiding salts are derived from it, too.
    pub key: SigningKey,
    pub seat: SeatView,
    pub journal: Journal,
    pub strategy: Box<dyn Strategy>,
    /// Contributions evaluated in one window, at most (PROT-28).
    pub evaluations_max: usize,
    /// Held-out sequences on which the model's loss is reported.
    pub held_out_sequences: u64,
    /// Bytes up and down, so far.
    pub traffic: Box<dyn Fn() -> (u64, u64) + Send>,
    /// Windows to serve; `None`: no end.
    pub windows_max: Option<u32>,
}

/// A validator between two steps of its loop.
pub struct Validator {
    pub(crate) sync_driver: SyncDriver,
    pub(crate) heads: watch::Receiver<Head>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) dataset: Arc<Dataset>,
    pub(crate) signed: SignedDb,
    pub(crate) key: SigningKey,
    pub(crate) salts: Salts,
    pub(crate) seat: SeatView,
    pub(crate) journal: Journal,
    pub(crate) strategy: Box<dyn Strategy>,
    pub(crate) evaluations_max: usize,
    pub(crate) held_out_sequences: u64,
    /// `None` while an evaluation has it.
    pub(crate) evaluator: Option<Box<dyn Evaluate>>,
    /// The evaluation that runs, or waits to be judged.
    pub(crate) evaluation: Option<Evaluation>,
    /// Sketches of the last windows' contributions. After a restart, copies of older work are found again only as the sketches fill.
    pub(crate) sketches: Sketches,
    /// Receipts on their way to the bucket and the chain.
    pub(crate) publishing: Option<JoinHandle<Vec<Published>>>,
    /// This validator's merge of the window that is open.
    pub(crate) own_merge: Option<OwnMerge>,
    disk_full_retry: DiskFullRetry,
    traffic: Box<dyn Fn() -> (u64, u64) + Send>,
    windows_max: Option<u32>,
}

/// What ends a validator.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error(transparent)]
    Sync(#[from] SyncError),
    #[error(transparent)]
    SignedDb(#[from] SignedDbError),
    #[error("the evaluation failed")]
    Evaluate(#[from] EvaluateError),
    #[error("the evaluation's thread died")]
    EvaluatorDied(#[source] tokio::task::JoinError),
    #[error("the task that publishes receipts died")]
    PublisherDied(#[source] tokio::task::JoinError),
    #[error("the seat has had another holder since block {registered_at}; register again")]
    SeatLost { registered_at: Block },
}

impl Validator {
    pub fn new(parts: Parts) -> Validator {
        Validator {
            heads: parts.sync_driver.follower.chain.heads(),
            sync_driver: parts.sync_driver,
            store: parts.store,
            dataset: parts.dataset,
            signed: parts.signed,
            salts: Salts::new(&parts.key.to_bytes()),
            key: parts.key,
            seat: parts.seat,
            journal: parts.journal,
            strategy: parts.strategy,
            evaluations_max: parts.evaluations_max,
            held_out_sequences: parts.held_out_sequences,
            evaluator: Some(parts.evaluator),
            evaluation: None,
            sketches: Sketches::default(),
            publishing: None,
            own_merge: None,
            disk_full_retry: DiskFullRetry::default(),
            traffic: parts.traffic,
            windows_max: parts.windows_max,
        }
    }

    /// Serves window after window, until the process ends or something is lost that it cannot continue without.
    pub fn run(self) -> LocalBoxFuture<'static, Result<(), RunError>> {
        Box::pin(self.serve_windows())
    }

    async fn serve_windows(mut self) -> Result<(), RunError> {
        let (mut served, mut finished) = (0, None);
        loop {
            let Validator { sync_driver, heads, own_merge, journal, .. } = &mut self;
            if sync_driver.sync_to_open_window(heads, finished, own_merge, journal).await? {
                self.publish_checkpoint().await?;
            }
            let window = self.sync_driver.window();
            self.journal_traffic(window);
            if self.windows_max.is_some_and(|max| max <= served) {
                return Ok(());
            }
            served += 1;
            match self.serve_window(window).await {
                Err(Stop::Skip(reason)) => tracing::debug!(window = window.0, reason, "left the window"),
                served => served.or_else(Stop::into_error)?,
            }
            finished = Some(window);
        }
    }

    /// Serves one window. Each step may run twice: after a crash the window is served again from the start.
    async fn serve_window(&mut self, window: Window) -> Result<(), Stop> {
        let schedule = self.schedule();
        self.keep_seat().await?;
        self.reveal_weights(window).await?;
        self.publish_receipts().await?;

        // While miners train, judge the contributions of the window before.
        self.judge_by(schedule.commit_deadline(window)).await?;
        self.end_evaluation();

        // Gather.
        self.wait_past(schedule.commit_deadline(window)).await?;
        let view = self.window_view(window).await?;
        let seats = self.chain().seats(self.run_view().id).await?;
        let gathered = self.gather(&view, &seats).await;

        // Attest.
        let attested = self.attest(&view, &gathered).await;
        self.journal_skip(window, "nothing attested", attested)?;
        self.wait_past(schedule.attest_deadline(window)).await?;
        let revealed = self.reveal_attestation(window, &gathered.valid).await;
        self.journal_skip(window, "attestation not revealed", revealed)?;

        // Merge and vote.
        let view = self.selection(window).await?;
        let voted = self.merge_and_vote(&view, &seats, &gathered.valid).await;
        self.journal_skip(window, "no vote", voted)?;

        // Before the window is finalised: its epoch may be over by then.
        self.commit_weights(&view).await?;

        // Evaluate. No other node waits for it: an evaluation longer than its window is judged in the next one.
        self.start_evaluation(&view, &seats, gathered);
        self.wait_past(schedule.vote_deadline(window)).await?;
        let revealed = self.reveal_vote(window).await;
        self.journal_skip(window, "vote not revealed", revealed)?;
        self.judge_by(before(schedule.opens_at(window.next()), LAST_CALL_BLOCKS)).await?;
        self.publish_receipts().await?;
        node::prune(&*self.store, self.run_view().id, window).await;
        Ok(())
    }

    /// Waits until a block above `block` is finalised.
    pub(crate) async fn wait_past(&mut self, block: Block) -> Result<(), ChainError> {
        node::wait_past(&mut self.heads, block).await
    }

    /// The window on the chain. The caller leaves a window that the chain does not know.
    pub(crate) async fn window_view(&self, window: Window) -> Result<WindowView, Stop> {
        match self.chain().window(self.run_view().id, window).await? {
            Some(view) => Ok(view),
            None => skip("the chain does not know the window"),
        }
    }

    /// Submits a call that the chain takes once. `already` is the refusal by which it says that it has ours, from before a crash.
    pub(crate) async fn submit_once(&self, call: Call, already: &str) -> Result<(), Stop> {
        match self.chain().submit(call).await {
            Err(error) if error.is_refusal("Windows", already) => Ok(()),
            Err(error) if !error.is_transient() => skip(format!("refused: {}", error_chain(&error))),
            submitted => submitted.map(|_| ()).map_err(Stop::from),
        }
    }

    /// Runs `store`, which writes what must be on disk before the chain is told by `deadline`. While the disk is full it retries, as long
    /// as the call can still be in time; at least once.
    pub(crate) async fn store_before<T>(
        &mut self,
        deadline: Block,
        store: impl FnMut(&mut SignedDb) -> Result<T, SignedDbError>,
    ) -> Result<T, Stop> {
        self.store_by(before(deadline, SUBMIT_BLOCKS), store).await
    }

    /// Runs `store` and, while the disk is full, retries until the chain reaches `until`.
    pub(crate) async fn store_by<T>(
        &mut self,
        until: Block,
        mut store: impl FnMut(&mut SignedDb) -> Result<T, SignedDbError>,
    ) -> Result<T, Stop> {
        let Validator { disk_full_retry, heads, signed, .. } = self;
        let stored = disk_full_retry.wait_until(until, heads, || match store(signed) {
            Err(full) if full.is_full() => Ok(Err(full)),
            stored => stored.map(Ok).map_err(RunError::from),
        });
        stored.await?.or_else(|full| skip(format!("the disk is full: {}", error_chain(&full))))
    }

    /// Journals why a step did not happen. The window goes on without it.
    pub(crate) fn journal_skip(
        &mut self,
        window: Window,
        what: &str,
        step: Result<(), Stop>,
    ) -> Result<(), RunError> {
        match step {
            Err(Stop::Skip(reason)) => {
                let reason = format!("{what}: {reason}");
                tracing::warn!(window = window.0, reason, "skipped a step");
                self.journal.write(&Entry::Abstained { window, reason });
                Ok(())
            }
            step => step.or_else(Stop::into_error),
        }
    }

    /// Takes over the seat's current endpoint. Fails if the seat has another holder.
    async fn keep_seat(&mut self) -> Result<(), RunError> {
        let seats = self.chain().seats(self.run_view().id).await?;
        let Some(seat) = seats.into_iter().find(|seat| seat.id.uid == self.seat.id.uid) else {
            return Ok(());
        };
        if seat.hotkey != self.seat.hotkey {
            return Err(RunError::SeatLost { registered_at: seat.id.registered_at });
        }
        self.seat = seat;
        Ok(())
    }

    fn journal_traffic(&mut self, window: Window) {
        let (bytes_up, bytes_down) = (self.traffic)();
        self.journal.write(&Entry::Traffic { window, bytes_up, bytes_down });
    }

    pub(crate) fn follower(&self) -> &Follower {
        &self.sync_driver.follower
    }

    pub(crate) fn chain(&self) -> &dyn Chain {
        &*self.sync_driver.follower.chain
    }

    pub(crate) fn run_view(&self) -> &RunView {
        &self.sync_driver.follower.run
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.run_view().params.schedule
    }

    /// Whether the run hides attestations and votes until their deadline (PROT-30).
    pub(crate) fn hides(&self) -> bool {
        self.run_view().params.hidden_blocks > 0
    }
}

fn before(block: Block, blocks: u32) -> Block {
    Block(block.0.saturating_sub(blocks))
}
