//! Clears the storage of a closed run, a limited number of entries per block, and pays out its funds (PROT-33).
//!
//! The other pallets are cleared first, because their entries name seats. Then stakes are released, both bonded and
//! unbonding: a closed run has been stopped for its unbonding time. The deposit is released last.

use crate::{pallet::*, permits::incoming, *};
use alloc::vec::Vec;
use frame::prelude::{fungible::MutateHold as _, *};

/// Entries cleared per step.
pub const CLEARED_PER_STEP: u32 = 256;

impl<T: Config> Pallet<T> {
    /// Returns a run that is being cleared.
    pub fn closed_run(run: RunId) -> Option<ClosedRun<T::AccountId>> {
        ClosedRuns::<T>::get(run)
    }

    /// Holds the difference between the present deposit and the deposit for `terms`.
    pub(crate) fn raise_deposit(run: RunId, mut details: Run<T::AccountId>, terms: &Terms) -> DispatchResult {
        let deposit = Self::deposit_of(&details.params, terms);
        let Some(missing) = deposit.checked_sub(details.deposit).filter(|missing| *missing > 0) else {
            return Ok(());
        };
        T::Currency::hold(&HoldReason::RunDeposit.into(), &details.owner, missing)
            .map_err(|_| Error::<T>::NotEnoughFunds)?;
        details.deposit = deposit;
        Runs::<T>::insert(run, details);
        Ok(())
    }

    /// Clears one step of a closed run. Returns whether the run is cleared, and the weight.
    pub fn clear_step(run: RunId) -> (bool, Weight) {
        let Some(ClosedRun { details, .. }) = ClosedRuns::<T>::get(run) else {
            defensive!("a run is cleared after it was closed");
            return (true, T::DbWeight::get().reads(1));
        };
        let limit = CLEARED_PER_STEP;
        let mut cleared = T::OnRunClosed::clear(run, limit);
        if cleared.room(limit) > 0 {
            Self::clear_own(run, limit, &mut cleared);
        }
        let weight = cleared.weight.saturating_add(T::DbWeight::get().reads_writes(12, 12));
        if cleared.room(limit) == 0 {
            return (false, weight);
        }
        let Run { owner, deposit, .. } = details;
        let released =
            T::Currency::release(&HoldReason::RunDeposit.into(), &owner, deposit, Precision::BestEffort);
        if released != Ok(deposit) {
            defensive!("a run's deposit is held");
        }
        ClosedRuns::<T>::remove(run);
        LiveRuns::<T>::mutate(|live| *live = live.saturating_sub(1));
        Self::deposit_event(Event::RunCleared { run, owner, deposit });
        (true, weight)
    }

    fn clear_own(run: RunId, limit: u32, cleared: &mut Cleared) {
        // At most `MaxChanges` entries, so they are removed together.
        let changes = Changes::<T>::take(run);
        cleared.count::<T>(changes.len() as u32);
        for (_, change) in changes {
            if let Some(hotkey) = incoming(&change) {
                frame_system::Pallet::<T>::dec_sufficients(hotkey);
            }
            if let Change::Replaced(newcomer) = change {
                Self::release_stake(&newcomer.coldkey, newcomer.stake);
            }
        }
        let room = cleared.room(limit) as usize;
        let seats: Vec<(Uid, Seat<T::AccountId>)> = SeatsOf::<T>::iter_prefix(run).take(room).collect();
        cleared.count::<T>(seats.len() as u32);
        for (uid, seat) in seats {
            SeatsOf::<T>::remove(run, uid);
            Hotkeys::<T>::remove(run, &seat.hotkey);
            frame_system::Pallet::<T>::dec_sufficients(&seat.hotkey);
            Self::release_stake(&seat.coldkey, seat.stake);
        }
        let room = cleared.room(limit) as usize;
        let unbonding: Vec<_> = Unbonding::<T>::iter_prefix((run,)).take(room).collect();
        cleared.count::<T>(unbonding.len() as u32);
        for ((coldkey, seat), chunks) in unbonding {
            Unbonding::<T>::remove((run, &coldkey, seat));
            FormerSeats::<T>::remove(run, seat);
            let amount = chunks.iter().fold(0, |sum: Balance, chunk| sum.saturating_add(chunk.amount));
            Self::release_stake(&coldkey, amount);
        }
        let room = cleared.room(limit);
        if room > 0 {
            cleared.count::<T>(FormerHotkeys::<T>::clear_prefix(run, room, None).unique);
        }
        if cleared.room(limit) > 0 {
            Rosters::<T>::remove(run);
            PendingChanges::<T>::remove(run);
            FormerTerms::<T>::remove(run);
            Offers::<T>::remove(run);
            StoppedSince::<T>::remove(run);
            UnbondsBy::<T>::remove(run);
            for role in [Role::Miner, Role::Validator] {
                Prices::<T>::remove(run, role);
            }
        }
    }

    fn release_stake(coldkey: &T::AccountId, amount: Balance) {
        let released =
            T::Currency::release(&HoldReason::Stake.into(), coldkey, amount, Precision::BestEffort);
        if released != Ok(amount) {
            defensive!("recorded stake is held");
        }
    }
}
