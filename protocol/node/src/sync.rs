//! Keeps a node's model on disk and up to the window that is open. The loop that both miners and validators turn.

use crate::{
    disk_full::{self, DiskFullRetry},
    error_chain,
    files::FileError,
    follow::{FollowError, Followed, Follower, OwnMerge},
    journal::{Entry, Journal},
    state::{ModelState, StateError},
};
use chain_client::{ChainError, Head};
use futures::future::BoxFuture;
use protocol::{Block, Digest, Window, view::Checkpoint};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::watch;

/// Between two looks at an outcome that is due, or two tries of a mirror.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

/// A follower and the state it brings forward.
pub struct SyncDriver {
    pub follower: Arc<Follower>,
    pub state: ModelState,
    path: PathBuf,
    /// A checkpoint that we held by our own account, and the root our weights had then: to be compared once somebody has published it.
    unchecked: Option<(Checkpoint, Digest)>,
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
    /// Takes up the saved state, or joins the run. The flag says which: true for a saved one.
    pub fn open(
        follower: Arc<Follower>,
        path: PathBuf,
        journal: &mut Journal,
    ) -> BoxFuture<'_, Result<(SyncDriver, bool), SyncError>> {
        Box::pin(SyncDriver::load_or_join(follower, path, journal))
    }

    async fn load_or_join(
        follower: Arc<Follower>,
        path: PathBuf,
        journal: &mut Journal,
    ) -> Result<(SyncDriver, bool), SyncError> {
        let saved = match ModelState::load(&path, follower.run.id, follower.schema().values()) {
            // What everyone holds can be fetched again.
            Err(StateError::File(error @ FileError::Damaged { .. })) => {
                tracing::error!(%error, "fetching the model from a checkpoint");
                None
            }
            saved => saved?,
        };
        let resumed = saved.is_some();
        let mut disk_full_retry = DiskFullRetry::default();
        let state = match saved {
            Some(state) => state,
            None => loop {
                match follower.join().await {
                    Ok(state) => {
                        disk_full_retry.found();
                        save(&state, &path).await?;
                        break state;
                    }
                    // What has come is kept, and only the rest is asked for again.
                    Err(error) if error.is_full() => {
                        tokio::time::sleep(disk_full_retry.refused(&error)).await
                    }
                    Err(error) if may_pass(&error) => {
                        tracing::warn!(error = %error_chain(&error), "cannot join yet, trying again");
                        tokio::time::sleep(LOOK_AGAIN * 5).await;
                    }
                    Err(error) => return Err(error.into()),
                }
            },
        };
        follower.saved();
        journal.write(&Entry::Started { window: state.window, resumed });
        journal.write(&Entry::Holds { window: state.window, lineage: state.lineage, outcome_before: None });
        Ok((SyncDriver { follower, state, path, unchecked: None }, resumed))
    }

    /// Walks to the window that is open, or to the one that comes next: one fixed outcome after the other, none skipped, and past `done`,
    /// the window that the caller is through with. `own` is this node's merge of a window on the way, where it made one. Returns whether
    /// the state moved.
    pub fn sync_to_open_window<'a>(
        &'a mut self,
        heads: &'a mut watch::Receiver<Head>,
        done: Option<Window>,
        own: &'a mut Option<OwnMerge>,
        journal: &'a mut Journal,
    ) -> BoxFuture<'a, Result<bool, SyncError>> {
        Box::pin(self.walk_to_open_window(heads, done, own, journal))
    }

    async fn walk_to_open_window(
        &mut self,
        heads: &mut watch::Receiver<Head>,
        done: Option<Window>,
        own: &mut Option<OwnMerge>,
        journal: &mut Journal,
    ) -> Result<bool, SyncError> {
        let mut moved = false;
        let mut disk_full_retry = DiskFullRetry::default();
        loop {
            let head = *heads.borrow_and_update();
            let open = self.follower.run.params.schedule.window_at(head.block);
            let there = open.is_none_or(|open| open <= self.state.window);
            if there && done.is_none_or(|done| done < self.state.window) {
                self.compare_with_checkpoint(journal).await?;
                return Ok(moved);
            }
            let own = own.take_if(|own| own.window <= self.state.window);
            match self.follower.step(&mut self.state, own).await {
                Ok(Followed::Advanced { outcome }) => {
                    self.note_checkpoint().await?;
                    save(&self.state, &self.path).await?;
                    moved = true;
                    let (window, lineage) = (self.state.window, self.state.lineage);
                    tracing::info!(window = window.0, %lineage, ?outcome, "holds the model");
                    journal.write(&Entry::Holds { window, lineage, outcome_before: Some(outcome) });
                }
                Ok(Followed::Rejoined) => {
                    disk_full_retry.found();
                    save(&self.state, &self.path).await?;
                    self.follower.saved();
                    moved = true;
                    let (window, lineage) = (self.state.window, self.state.lineage);
                    journal.write(&Entry::Holds { window, lineage, outcome_before: None });
                }
                Ok(Followed::Waiting) => wait_briefly(heads).await?,
                Err(error) if error.is_full() => tokio::time::sleep(disk_full_retry.refused(&error)).await,
                // No mirror has it yet, or the chain is away for a moment: nothing is skipped meanwhile.
                Err(error) if may_pass(&error) => {
                    tracing::warn!(window = self.state.window.0, error = %error_chain(&error), "cannot follow yet, trying again");
                    wait_briefly(heads).await?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Remembers what we hold where a checkpoint was just fixed for it.
    async fn note_checkpoint(&mut self) -> Result<(), SyncError> {
        let run = self.follower.chain.run(self.follower.run.id).await?;
        if let Some(checkpoint) = run.checkpoint.filter(|checkpoint| checkpoint.window == self.state.window) {
            self.unchecked = Some((checkpoint, self.state.weights_root()));
        }
        Ok(())
    }

    /// Compares what we held with the checkpoint, once it can be had (PROT-20). A difference is repaired piece by piece, or, where the
    /// model has moved on meanwhile, by taking the checkpoint and walking again. What cannot be had yet is asked for in the next window.
    async fn compare_with_checkpoint(&mut self, journal: &mut Journal) -> Result<(), SyncError> {
        let Some((checkpoint, held)) = self.unchecked else { return Ok(()) };
        let repaired = match self.follower.compare(&mut self.state, &checkpoint, &held).await {
            Ok(repaired) => repaired,
            Err(error) if error.is_full() => {
                let (window, error) = (checkpoint.window.0, error_chain(&error));
                tracing::error!(
                    window,
                    error,
                    "no room on the disk for the checkpoint that our model is compared with: make room. It is fetched in the next window"
                );
                return Ok(());
            }
            Err(error) if may_pass(&error) => {
                tracing::debug!(window = checkpoint.window.0, error = %error_chain(&error), "the checkpoint is not to be had yet");
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        };
        self.unchecked = None;
        if 0 < repaired {
            tracing::warn!(
                window = checkpoint.window.0,
                repaired,
                "our model differed from the checkpoint and was repaired"
            );
            journal.write(&Entry::Repaired { window: checkpoint.window, pieces: repaired });
            save(&self.state, &self.path).await?;
            self.follower.saved();
        }
        Ok(())
    }

    pub fn window(&self) -> Window {
        self.state.window
    }
}

/// Saves a state. Where there is no room for it, that is waited for: nothing is followed meanwhile, and all of it afterwards.
async fn save(state: &ModelState, path: &Path) -> Result<(), StateError> {
    disk_full::wait(StateError::is_full, || state.save(path)).await
}

fn may_pass(error: &FollowError) -> bool {
    matches!(error, FollowError::Update { .. } | FollowError::Checkpoint(_))
}

/// Waits until a block above `block` is finalised: what was included up to `block` is then final, and the block's own hash known.
pub async fn wait_past(heads: &mut watch::Receiver<Head>, block: Block) -> Result<(), ChainError> {
    heads
        .wait_for(|head| block < head.block)
        .await
        .map_err(|_| ChainError::Stopped { part: "head follower" })?;
    Ok(())
}

/// Waits for the next finalised block, but not for long.
pub async fn wait_briefly(heads: &mut watch::Receiver<Head>) -> Result<(), ChainError> {
    match tokio::time::timeout(LOOK_AGAIN, heads.changed()).await {
        Ok(Err(_)) => Err(ChainError::Stopped { part: "head follower" }),
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}
