//! Clears the weight votes of a closed run (PROT-33).

use crate::pallet::*;
use pallet_registry::{Cleared, ClosedRun, OnRunClosed, Pallet as Registry};
use protocol::RunId;

impl<T: Config> OnRunClosed for Pallet<T> {
    fn closed(_: RunId) {}

    fn clear(run: RunId, limit: u32) -> Cleared {
        let mut cleared = Cleared::default();
        let Some(ClosedRun { details, window }) = Registry::<T>::closed_run(run) else {
            return cleared;
        };
        ConsensusWeights::<T>::remove(run);
        LastConsensus::<T>::remove(run);
        cleared.count::<T>(BondsOf::<T>::clear_prefix(run, limit, None).unique);
        // The epochs that have not closed; the next one may have begun since.
        let epoch = window.epoch(details.params.epoch_windows);
        for key in (epoch.saturating_sub(3)..=epoch.saturating_add(1)).map(|epoch| (run, epoch)) {
            if cleared.room(limit) > 0 {
                cleared
                    .count::<T>(WeightCommitments::<T>::clear_prefix(key, cleared.room(limit), None).unique);
            }
            if cleared.room(limit) > 0 {
                cleared.count::<T>(WeightVotes::<T>::clear_prefix(key, cleared.room(limit), None).unique);
            }
            if cleared.room(limit) > 0 {
                cleared.count::<T>(ShownProbes::<T>::clear_prefix(key, cleared.room(limit), None).unique);
            }
            if cleared.room(limit) > 0 {
                cleared.count::<T>(DepartedOf::<T>::clear_prefix(key, cleared.room(limit), None).unique);
            }
        }
        cleared
    }
}
