//! Keeps a node's model on disk and advances it to the open window, for both roles.

pub mod checkpoint;
pub mod follow;
pub mod mirrors;
mod partial;
pub mod pieces;
pub mod shares;

pub use follow::{FollowError, Followed, Follower};

use crate::{
    blocking::Blocking,
    durable::{DiskFullRetry, DiskStatus, DurableFile, FileError, is_full, retry_while_full},
    error_chain,
    journal::{Entry, Journal},
    state::{ModelState, StateError},
    storage::Storage,
};
use chain_client::{ChainError, Head};
use follow::{Download, Leave, OwnMerge};
use futures::future::{self, BoxFuture};
use protocol::{
    Block, Digest, RunId, Window,
    view::{Checkpoint, Outcome},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// Interval between checks for an outcome that is due, or between tries of a mirror.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// A follower and its state.
pub struct SyncDriver {
    pub follower: Arc<Follower>,
    pub state: ModelState,
    path: PathBuf,
    /// A checkpoint at whose window this node held its own state, with the root of its weights then. Compared as soon
    /// as a mirror has the checkpoint.
    unchecked: Option<(Checkpoint, Digest)>,
    /// An update whose download continues in the background.
    download: Option<Download>,
}

#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    #[error("lost the chain")]
    Chain(#[from] ChainError),
    #[error("lost the model")]
    Follow(#[from] FollowError),
    #[error(transparent)]
    State(#[from] StateError),
}

impl SyncDriver {
    /// Loads the saved state, or joins the run. Returns true if there was a saved state.
    ///
    /// # Errors
    /// If the state cannot be read, or the run cannot be joined for a permanent reason.
    pub fn open(
        follower: Arc<Follower>,
        path: PathBuf,
        journal: &mut Journal,
    ) -> BoxFuture<'_, Result<(SyncDriver, bool), SyncError>> {
        Box::pin(async move {
            follower.storage.remove_unfinished();
            let (run, values, from) = (follower.run.id, follower.schema().values(), path.clone());
            let storage = follower.storage.clone();
            let saved = match follower.blocking.run(move || load(&from, run, values, &storage)).await {
                Err(error @ (StateError::File(FileError::Damaged { .. }) | StateError::Row { .. })) => {
                    tracing::error!(%error, "fetching the model from a checkpoint");
                    None
                }
                saved => saved?,
            };
            let resumed = saved.is_some();
            let mut driver =
                SyncDriver { follower, state: ModelState::default(), path, unchecked: None, download: None };
            match saved {
                Some(state) => driver.state = state,
                None => {
                    driver.state = driver.join(&journal.disk).await?;
                    driver.save(&journal.disk).await?;
                }
            }
            driver.follower.saved();
            let (window, lineage) = (driver.state.window, driver.state.lineage);
            journal.write(&Entry::Started { window, resumed });
            journal.write(&Entry::Holds { window, lineage, outcome_before: None });
            Ok((driver, resumed))
        })
    }

    /// Returns the state of the latest checkpoint, or `θ_0`. Retries while the disk is full or no mirror has it;
    /// fetched pieces are kept.
    async fn join(&self, disk: &DiskStatus) -> Result<ModelState, SyncError> {
        loop {
            match retry_while_full(disk, || self.follower.join()).await {
                Err(error) if may_pass(&error) => {
                    tracing::warn!(error = %error_chain(&error), "cannot join yet, trying again");
                    tokio::time::sleep(LOOK_AGAIN * 5).await;
                }
                joined => return Ok(joined?),
            }
        }
    }

    /// Advances the state to the open window or the next one, one fixed outcome after the other. Also passes `done`,
    /// the last window that the caller has finished. `own` is this node's merge of a window in between. Returns
    /// whether the state changed.
    ///
    /// # Errors
    /// If the connection to the chain has ended, or a window cannot be processed for a permanent reason.
    pub fn sync_to_open_window<'a>(
        &'a mut self,
        heads: &'a mut watch::Receiver<Head>,
        done: Option<Window>,
        own: &'a mut Option<OwnMerge>,
        journal: &'a mut Journal,
    ) -> BoxFuture<'a, Result<bool, SyncError>> {
        self.sync_until(heads, done, None, own, journal)
    }

    /// Advances like [`SyncDriver::sync_to_open_window`], but returns when block `leave_at` is finalised, if given,
    /// with any state ([`SyncDriver::is_current`]). A download of an update then continues in the background.
    ///
    /// # Errors
    /// As [`SyncDriver::sync_to_open_window`].
    pub fn sync_until<'a>(
        &'a mut self,
        heads: &'a mut watch::Receiver<Head>,
        done: Option<Window>,
        leave_at: Option<Block>,
        own: &'a mut Option<OwnMerge>,
        journal: &'a mut Journal,
    ) -> BoxFuture<'a, Result<bool, SyncError>> {
        Box::pin(async move {
            let mut moved = false;
            let mut retry = DiskFullRetry::new(&journal.disk);
            loop {
                let head = *heads.borrow_and_update();
                if self.is_current(head.block, done) {
                    self.compare_with_checkpoint(journal).await?;
                    return Ok(moved);
                }
                if leave_at.is_some_and(|at| at <= head.block) {
                    return Ok(moved);
                }
                let own = own.take_if(|own| own.window <= self.state.window);
                let leaves = leave_at.is_some() || self.download.is_some();
                let leave = leaves
                    .then(|| Leave { when: reached(heads.clone(), leave_at), download: &mut self.download });
                let outcome_before = match self.follower.step_unless(&mut self.state, own, leave).await {
                    Ok(Followed::Advanced { outcome }) => Some(outcome),
                    Ok(Followed::Rejoined) => None,
                    // The chain has no news until the next block.
                    Ok(Followed::Waiting) => {
                        wait_past(heads, head.block).await?;
                        continue;
                    }
                    Err(error) if is_full(&error) => {
                        tokio::time::sleep(retry.refused(&error)).await;
                        continue;
                    }
                    // No mirror has it yet, or the chain is temporarily unavailable. No window is skipped.
                    Err(error) if may_pass(&error) => {
                        tracing::warn!(window = self.state.window.0, error = %error_chain(&error), "cannot follow yet, trying again");
                        wait_briefly(heads).await?;
                        continue;
                    }
                    Err(error) => return Err(error.into()),
                };
                retry.found();
                if matches!(outcome_before, Some(Outcome::Merged(vote)) if vote.state_root.is_some()) {
                    self.note_checkpoint().await?;
                }
                self.save(&journal.disk).await?;
                // An interrupted fetch of a checkpoint for comparison continues in the next window.
                if outcome_before.is_none() {
                    self.unchecked = None;
                    self.follower.saved();
                }
                moved = true;
                let (window, lineage) = (self.state.window, self.state.lineage);
                let outcome = match outcome_before {
                    Some(Outcome::Merged(_)) => "merged",
                    Some(Outcome::Void(_)) => "void",
                    None => "checkpoint",
                };
                tracing::Span::current().record("outcome", outcome);
                tracing::info!(window = window.0, %lineage, outcome, "holds the model");
                journal.write(&Entry::Holds { window, lineage, outcome_before });
            }
        })
    }

    /// Returns whether the held model is at least that of the window which is open at `block`, and of a window after
    /// `done`.
    pub fn is_current(&self, block: Block, done: Option<Window>) -> bool {
        let open = self.follower.run.params.schedule.window_at(block);
        let held = self.state.window;
        open.is_none_or(|open| open <= held) && done.is_none_or(|done| done < held)
    }

    /// Returns to an earlier checkpoint if the node holds `window` with another `lineage` (PROT-20): a node has a
    /// window's model before the window opens. Retries like [`SyncDriver::sync_to_open_window`].
    ///
    /// # Errors
    /// If the connection to the chain has ended, or the window's lineage differs although there was no rewind.
    pub async fn take_rewind(
        &mut self,
        heads: &mut watch::Receiver<Head>,
        window: Window,
        lineage: Digest,
        journal: &mut Journal,
    ) -> Result<(), SyncError> {
        let mut retry = DiskFullRetry::new(&journal.disk);
        while window == self.state.window && lineage != self.state.lineage {
            match self.follower.step(&mut self.state, None).await {
                Ok(Followed::Rejoined) => {
                    self.unchecked = None;
                    self.save(&journal.disk).await?;
                    self.follower.saved();
                    let (window, lineage) = (self.state.window, self.state.lineage);
                    tracing::info!(window = window.0, %lineage, outcome = "checkpoint", "holds the model");
                    journal.write(&Entry::Holds { window, lineage, outcome_before: None });
                }
                // Only a window with the same lineage can advance.
                Ok(Followed::Waiting | Followed::Advanced { .. }) => return Ok(()),
                Err(error) if is_full(&error) => tokio::time::sleep(retry.refused(&error)).await,
                Err(error) if may_pass(&error) => {
                    tracing::warn!(window = self.state.window.0, error = %error_chain(&error), "cannot go back yet, trying again");
                    wait_briefly(heads).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Remembers the checkpoint if the chain has just fixed one for the held state.
    async fn note_checkpoint(&mut self) -> Result<(), SyncError> {
        let run = self.follower.chain.run(self.follower.run.id).await?;
        if let Some(checkpoint) = run.checkpoint.filter(|checkpoint| checkpoint.window == self.state.window) {
            let root = self.blocking().with(&mut self.state, |state| state.weights_root()).await;
            self.unchecked = Some((checkpoint, root));
        }
        Ok(())
    }

    /// Compares the remembered state with its checkpoint once a mirror has it (PROT-20). Repairs a difference piece by
    /// piece or, if the model has advanced, by fetching the checkpoint and following again.
    async fn compare_with_checkpoint(&mut self, journal: &mut Journal) -> Result<(), SyncError> {
        let Some((checkpoint, held)) = self.unchecked else { return Ok(()) };
        let repaired = match self.follower.compare(&mut self.state, &checkpoint, &held).await {
            Ok(repaired) => repaired,
            Err(error) if is_full(&error) => {
                let (window, error) = (checkpoint.window.0, error_chain(&error));
                tracing::error!(
                    window,
                    error,
                    "the disk is full: the checkpoint to compare the model with is fetched in the next window"
                );
                return Ok(());
            }
            Err(error) if may_pass(&error) => {
                tracing::debug!(window = checkpoint.window.0, error = %error_chain(&error), "no mirror has the checkpoint yet");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.unchecked = None;
        if 0 < repaired {
            tracing::warn!(
                window = checkpoint.window.0,
                repaired,
                "the model differed from the checkpoint and was repaired"
            );
            journal.write(&Entry::Repaired { window: checkpoint.window, pieces: repaired });
            self.save(&journal.disk).await?;
            self.follower.saved();
        }
        Ok(())
    }

    /// Saves the state; retries while the disk is full.
    #[tracing::instrument(name = "save", target = "profile", level = "debug", skip_all)]
    async fn save(&mut self, disk: &DiskStatus) -> Result<(), StateError> {
        let mut retry = DiskFullRetry::new(disk);
        loop {
            let path = self.path.clone();
            match self.blocking().with(&mut self.state, move |state| state.save(&path)).await {
                Err(error) if is_full(&error) => tokio::time::sleep(retry.refused(&error)).await,
                saved => {
                    retry.found();
                    return saved;
                }
            }
        }
    }

    fn blocking(&self) -> Blocking {
        self.follower.blocking
    }

    pub fn window(&self) -> Window {
        self.state.window
    }
}

/// Loads the saved state, or its backup if a row of the newest is missing or damaged.
fn load(path: &Path, run: RunId, values: usize, storage: &Storage) -> Result<Option<ModelState>, StateError> {
    match ModelState::load(path, run, values, storage) {
        Err(error @ StateError::Row { .. }) => {
            tracing::error!(path = %path.display(), %error, "reading the backup");
            DurableFile::new(path).set_aside()?;
            ModelState::load(path, run, values, storage)
        }
        loaded => loaded,
    }
}

fn may_pass(error: &FollowError) -> bool {
    matches!(error, FollowError::Update { .. } | FollowError::Checkpoint(_))
}

/// Completes when block `at` is finalised or the chain's connection has ended; never without `at`.
fn reached(mut heads: watch::Receiver<Head>, at: Option<Block>) -> BoxFuture<'static, ()> {
    let Some(at) = at else { return Box::pin(future::pending()) };
    Box::pin(async move {
        // The caller notices the end of the connection when it waits for the next block.
        let _ = heads.wait_for(|head| at <= head.block).await;
    })
}

/// Waits until a block above `block` is finalised. Calls included up to `block` are then final, and the block's own
/// hash is known.
///
/// # Errors
/// If the connection to the chain has ended.
#[tracing::instrument(name = "wait", target = "profile", level = "trace", skip_all)]
pub async fn wait_past(heads: &mut watch::Receiver<Head>, block: Block) -> Result<(), ChainError> {
    until_past(heads, block).await
}

/// Waits like [`wait_past`], without a span.
pub(crate) async fn until_past(heads: &mut watch::Receiver<Head>, block: Block) -> Result<(), ChainError> {
    heads
        .wait_for(|head| block < head.block)
        .await
        .map_err(|_| ChainError::Stopped { part: "head follower" })?;
    Ok(())
}

/// Waits for the next finalised block, for a short time at most.
///
/// # Errors
/// If the connection to the chain has ended.
#[tracing::instrument(name = "wait", target = "profile", level = "trace", skip_all)]
pub async fn wait_briefly(heads: &mut watch::Receiver<Head>) -> Result<(), ChainError> {
    match tokio::time::timeout(LOOK_AGAIN, heads.changed()).await {
        Ok(Err(_)) => Err(ChainError::Stopped { part: "head follower" }),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}
