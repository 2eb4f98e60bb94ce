//! The miner's own state, which moves to a thread for every computation on the whole model.

use crate::{
    contribution_store::{ContributionStore, ContributionStoreError, Snapshot, SnapshotError},
    ranks::is_of_ranks,
};
use daemon::{
    durable::{Recovered, is_full},
    error_chain,
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

impl LocalState {
    /// Reads the snapshot and resets the trainer's optimiser to it. Without one, the residual for `window` is empty.
    /// Also returns the file that was read, if any.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot cannot be read.
    pub fn load(
        store: ContributionStore,
        mut trainer: Trainer,
        window: Window,
    ) -> Result<(LocalState, Option<Recovered<()>>), SnapshotError> {
        let found = store.open(&mut trainer)?;
        let read = found.as_ref().map(|found| Recovered { value: (), from_backup: found.from_backup });
        let snapshot = match found {
            Some(found) => found.value,
            None => Snapshot::fresh(window, store.codec.schema().values()),
        };
        Ok((LocalState { trainer, snapshot, store }, read))
    }

    /// Runs `change` on the snapshot. If the disk is full, reads the snapshot again, as `change` may have changed it
    /// partly. If a rank failed that had a part of the optimiser, continues with the snapshot's optimiser.
    ///
    /// # Errors
    /// The error of `change`, or of reading the snapshot again.
    pub fn change<T>(
        &mut self,
        change: impl Fn(&mut LocalState) -> Result<T, ContributionStoreError>,
    ) -> Result<T, ContributionStoreError> {
        let mut done = change(self);
        if let Err(error) = &done
            && is_of_ranks(error)
        {
            let error = error_chain(error);
            tracing::warn!(error, "going on with the optimiser of the last snapshot");
            self.snapshot.residual = Vec::new();
            self.snapshot = self.store.reload()?;
            self.store.restore(&mut self.trainer)?;
            done = change(self);
        }
        if done.as_ref().is_err_and(|error| is_full(error)) {
            // Freed first: the residual is as large as the model.
            self.snapshot.residual = Vec::new();
            self.snapshot = self.store.reload()?;
        }
        done
    }
}
