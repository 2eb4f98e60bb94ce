//! The miner's own state, which moves to a thread for every computation on the whole model.

use crate::{
    contribution_store::{ContributionStore, ContributionStoreError, Snapshot, SnapshotError},
    error::is_full,
};
use nn::Trainer;
use protocol::Window;

/// Trainer, residual and files of one seat.
pub struct LocalState {
    /// The inner loop's model and optimiser.
    pub trainer: Trainer,
    /// The residual and the pending contribution, as in memory.
    pub snapshot: Snapshot,
    pub store: ContributionStore,
}

/// What a start found on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    Snapshot,
    /// The snapshot was damaged or missing, and its backup is used.
    Backup,
}

impl LocalState {
    /// Reads the snapshot and puts the trainer's optimiser there. Without one, the residual for `window` is empty.
    pub fn load(
        store: ContributionStore,
        mut trainer: Trainer,
        window: Window,
    ) -> Result<(LocalState, Found), SnapshotError> {
        let (snapshot, found) = match store.open(&mut trainer)? {
            Some(read) => (read.value, if read.from_backup { Found::Backup } else { Found::Snapshot }),
            None => (Snapshot::fresh(window, store.codec.schema().values()), Found::Nothing),
        };
        Ok((LocalState { trainer, snapshot, store }, found))
    }

    /// Runs `change` on the snapshot. If the disk is full, reads the snapshot again, as `change` may have left it half
    /// changed.
    pub fn change<T>(
        &mut self,
        change: impl FnOnce(&mut LocalState) -> Result<T, ContributionStoreError>,
    ) -> Result<T, ContributionStoreError> {
        let done = change(self);
        if done.as_ref().is_err_and(is_full) {
            // Freed first: the residual is as large as the model.
            self.snapshot.residual = Vec::new();
            self.snapshot = self.store.reload()?;
        }
        done
    }
}
