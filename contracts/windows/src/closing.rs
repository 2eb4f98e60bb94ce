//! Clears the windows of a closed run (PROT-33).

use crate::pallet::*;
use frame::prelude::*;
use pallet_registry::{Cleared, ClosedRun, OnRunClosed, Pallet as Registry};
use protocol::{Block, RunId};

impl<T: Config> OnRunClosed for Pallet<T> {
    /// Moves the run's task to the next block, where clearing begins. A late task keeps its block.
    fn closed(run: RunId) {
        let Some(progress) = ProgressOf::<T>::get(run) else {
            defensive!("a run has progress since it was created");
            return;
        };
        let mut turn = None;
        ScheduledTasks::<T>::mutate_exists(progress.next_step, |due| {
            let Some(runs) = due else { return };
            runs.retain(|(id, place)| {
                if *id == run {
                    turn = Some(*place);
                }
                *id != run
            });
            if runs.is_empty() {
                *due = None;
            }
        });
        if let Some(turn) = turn {
            let next = Block(Registry::<T>::now().0.saturating_add(1));
            ProgressOf::<T>::insert(run, crate::Progress { next_step: next, ..progress });
            Self::schedule(run, next, turn);
        }
    }

    /// Removes the windows first, each in one step.
    fn clear(run: RunId, limit: u32) -> Cleared {
        let mut cleared = Cleared::default();
        let Some(ClosedRun { details, window }) = Registry::<T>::closed_run(run) else {
            return cleared;
        };
        while cleared.room(limit) > 0
            && let Some(stored) = Records::<T>::iter_key_prefix(run).next()
        {
            let entries = Self::remove_window(run, stored);
            cleared.count::<T>(entries.saturating_add(9));
        }
        if cleared.room(limit) > 0 {
            cleared.count::<T>(PresenceOf::<T>::clear_prefix(run, cleared.room(limit), None).unique);
        }
        if cleared.room(limit) > 0 {
            cleared.count::<T>(Participations::<T>::clear_prefix(run, cleared.room(limit), None).unique);
        }
        if cleared.room(limit) > 0 {
            cleared.count::<T>(Punished::<T>::clear_prefix(run, cleared.room(limit), None).unique);
        }
        // Each remaining map has at most one entry per seat. The salts are those of a window that has not opened.
        let epoch = window.epoch(details.params.epoch_windows);
        for epoch in epoch.saturating_sub(3)..=epoch {
            if cleared.room(limit) > 0 {
                cleared.count::<T>(
                    MinorityVotes::<T>::clear_prefix((run, epoch), T::MaxSeats::get(), None).unique,
                );
            }
        }
        if cleared.room(limit) > 0 && ProgressOf::<T>::take(run).is_some() {
            CountedStakes::<T>::remove(run);
            RewindVotes::<T>::remove(run);
            NextDeal::<T>::remove(run);
            // A late opening may have left the open window without a record.
            for of in [window, window.next()] {
                cleared.count::<T>(Self::remove_window(run, of));
            }
        }
        cleared
    }
}
