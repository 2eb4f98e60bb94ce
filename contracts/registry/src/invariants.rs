//! Invariants that hold at every block.

use crate::{pallet::*, permits::incoming, *};
use alloc::collections::{BTreeMap, BTreeSet};
use frame::prelude::{fungible::InspectHold as _, *};

/// Sums that the records of all runs require an account to have on hold.
struct Held<AccountId> {
    staked: BTreeMap<AccountId, Balance>,
    deposited: BTreeMap<AccountId, Balance>,
    /// Number of seats that keep a hotkey's account alive.
    hotkeys: BTreeMap<AccountId, u32>,
}

fn add<K: Ord>(sums: &mut BTreeMap<K, Balance>, key: K, amount: Balance) -> Result<(), &'static str> {
    let sum = sums.entry(key).or_default();
    *sum = sum.checked_add(amount).ok_or("held amounts overflow")?;
    Ok(())
}

fn count<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K) {
    let count = counts.entry(key).or_default();
    *count = count.saturating_add(1);
}

impl<T: Config> Pallet<T> {
    /// Checks the invariants that hold at every block.
    ///
    /// # Errors
    /// Names the first violated invariant.
    pub fn check_invariants() -> Result<(), &'static str> {
        let live = Runs::<T>::iter().count().saturating_add(ClosedRuns::<T>::iter().count());
        if live != LiveRuns::<T>::get() as usize {
            return Err("the number of runs is not that of the open and the closed ones");
        }
        if Runs::<T>::iter_keys().any(|run| run.0 >= RunCount::<T>::get()) {
            return Err("a run has an id that is still to be given");
        }
        let mut held = Held { staked: BTreeMap::new(), deposited: BTreeMap::new(), hotkeys: BTreeMap::new() };
        for run in Self::run_ids() {
            let details = Runs::<T>::get(run).ok_or("a run is missing")?;
            add(&mut held.deposited, details.owner.clone(), details.deposit)?;
            Self::check_run_terms(run, &details)?;
            if PendingChanges::<T>::contains_key(run) && PendingChanges::<T>::get(run) == Waiting::default() {
                return Err("an empty list of waiting changes is stored");
            }
            Self::check_seats(run, &mut held)?;
            Self::check_changes(run, &mut held)?;
            Self::check_unbonding(run, &mut held)?;
        }
        for (run, ClosedRun { details, .. }) in ClosedRuns::<T>::iter() {
            ensure!(!Runs::<T>::contains_key(run), "a closed run is open");
            Self::count_closed(run, details, &mut held)?;
        }
        Self::check_held(&held)
    }

    /// Checks that terms are valid and within their limits, and change when an epoch begins.
    fn check_run_terms(run: RunId, details: &Run<T::AccountId>) -> Result<(), &'static str> {
        let RunParams { epoch_windows, limits, .. } = details.params;
        Self::check_terms(&details.terms, &limits).map_err(|_| "a run's terms are not valid")?;
        if let Some(PendingTerms { terms, from }) = PendingChanges::<T>::get(run).terms {
            Self::check_terms(&terms, &limits).map_err(|_| "a run's pending terms are not valid")?;
            ensure!(from.0.is_multiple_of(epoch_windows), "pending terms do not wait for an epoch to begin");
        }
        let former = FormerTerms::<T>::get(run);
        if !former.windows(2).all(|pair| pair[0].0 < pair[1].0) {
            return Err("former terms are not in the order of their epochs");
        }
        Ok(())
    }

    /// Adds the remaining holds of a closed run.
    fn count_closed(
        run: RunId,
        details: Run<T::AccountId>,
        held: &mut Held<T::AccountId>,
    ) -> Result<(), &'static str> {
        add(&mut held.deposited, details.owner, details.deposit)?;
        for (_, seat) in SeatsOf::<T>::iter_prefix(run) {
            count(&mut held.hotkeys, seat.hotkey);
            add(&mut held.staked, seat.coldkey, seat.stake)?;
        }
        for (_, change) in Changes::<T>::get(run) {
            if let Some(hotkey) = incoming(&change) {
                count(&mut held.hotkeys, hotkey.clone());
            }
            if let Change::Replaced(newcomer) = change {
                add(&mut held.staked, newcomer.coldkey, newcomer.stake)?;
            }
        }
        for ((coldkey, _), chunks) in Unbonding::<T>::iter_prefix((run,)) {
            for chunk in chunks {
                add(&mut held.staked, coldkey.clone(), chunk.amount)?;
            }
        }
        Ok(())
    }

    /// Checks that roster, seats and hotkeys refer to each other.
    fn check_seats(run: RunId, held: &mut Held<T::AccountId>) -> Result<(), &'static str> {
        let roster = Rosters::<T>::get(run);
        let seats = Self::seats(run);
        let taken = roster.iter().flatten().count();
        if seats.len() != taken || SeatsOf::<T>::iter_prefix(run).count() != taken {
            return Err("the roster does not name exactly the seats that exist");
        }
        ensure!(Hotkeys::<T>::iter_prefix(run).count() == taken, "there are not as many hotkeys as seats");
        for (uid, seat) in &seats {
            if roster.get(usize::from(uid.0)) != Some(&Some(Entry::from(seat))) {
                return Err("a roster entry differs from its seat");
            }
            if Hotkeys::<T>::get(run, &seat.hotkey) != Some(*uid) {
                return Err("a seat's hotkey does not lead back to the seat");
            }
            count(&mut held.hotkeys, seat.hotkey.clone());
            add(&mut held.staked, seat.coldkey.clone(), seat.stake)?;
        }
        if FormerHotkeys::<T>::iter_key_prefix(run).any(|key| Hotkeys::<T>::contains_key(run, key)) {
            return Err("a former hotkey holds a seat");
        }
        Ok(())
    }

    /// Checks that each waiting change belongs to an existing seat, with one per seat and an unused hotkey.
    fn check_changes(run: RunId, held: &mut Held<T::AccountId>) -> Result<(), &'static str> {
        let mut changing = BTreeSet::new();
        let mut coming = BTreeSet::new();
        for (uid, change) in Changes::<T>::get(run) {
            ensure!(changing.insert(uid), "two changes wait for one seat");
            let seat = SeatsOf::<T>::get(run, uid).ok_or("a change waits for a seat that does not exist")?;
            if let Some(hotkey) = incoming(&change) {
                if Self::is_used(run, hotkey, &[]) || !coming.insert(hotkey.clone()) {
                    return Err("a waiting change has a hotkey that is used");
                }
                count(&mut held.hotkeys, hotkey.clone());
            }
            if let Change::Replaced(newcomer) = change {
                ensure!(newcomer.role == seat.role, "a newcomer has another role than the seat");
                add(&mut held.staked, newcomer.coldkey, newcomer.stake)?;
            }
        }
        Ok(())
    }

    /// Checks that unbonding stake belongs to the coldkey of a present or former seat.
    fn check_unbonding(run: RunId, held: &mut Held<T::AccountId>) -> Result<(), &'static str> {
        for ((coldkey, id), chunks) in Unbonding::<T>::iter_prefix((run,)) {
            let present = SeatsOf::<T>::get(run, id.uid).filter(|seat| seat.id(id.uid) == id);
            let holder = present.map(|seat| seat.coldkey).or_else(|| FormerSeats::<T>::get(run, id));
            if holder.as_ref() != Some(&coldkey) {
                return Err("unbonding stake does not belong to its seat's coldkey");
            }
            ensure!(!chunks.is_empty(), "an empty list of unbonding stake is stored");
            for chunk in chunks {
                add(&mut held.staked, coldkey.clone(), chunk.amount)?;
            }
        }
        for (id, coldkey) in FormerSeats::<T>::iter_prefix(run) {
            if SeatsOf::<T>::get(run, id.uid).is_some_and(|seat| seat.id(id.uid) == id) {
                return Err("a seat is both present and former");
            }
            if !Unbonding::<T>::contains_key((run, coldkey, id)) {
                return Err("a former seat without unbonding stake is stored");
            }
        }
        Ok(())
    }

    /// Checks that the currency holds the recorded amounts.
    fn check_held(recorded: &Held<T::AccountId>) -> Result<(), &'static str> {
        let Held { staked, deposited, hotkeys } = recorded;
        if hotkeys.iter().any(|(key, uses)| frame_system::Pallet::<T>::sufficients(key) < *uses) {
            return Err("a hotkey's account is not kept alive by its seats");
        }
        let held = |reason: HoldReason, account: &T::AccountId| {
            T::Currency::balance_on_hold(&T::RuntimeHoldReason::from(reason), account)
        };
        if staked.iter().any(|(account, stake)| held(HoldReason::Stake, account) != *stake) {
            return Err("the stake held differs from the stake recorded");
        }
        if deposited.iter().any(|(account, deposit)| held(HoldReason::RunDeposit, account) != *deposit) {
            return Err("the deposit held differs from the deposit recorded");
        }
        Ok(())
    }
}
