//! What must hold at every block.

use crate::{pallet::*, permits::incoming, *};
use alloc::collections::{BTreeMap, BTreeSet};
use frame::prelude::{fungible::InspectHold as _, *};

impl<T: Config> Pallet<T> {
    /// What must hold at every block; an error names what does not.
    pub fn check_invariants() -> Result<(), &'static str> {
        fn add<K: Ord>(sums: &mut BTreeMap<K, Balance>, key: K, amount: Balance) -> Result<(), &'static str> {
            let sum = sums.entry(key).or_default();
            *sum = sum.checked_add(amount).ok_or("what is held overflows")?;
            Ok(())
        }
        let mut staked = BTreeMap::<T::AccountId, Balance>::new();
        let mut deposited = BTreeMap::<T::AccountId, Balance>::new();
        let mut counted = BTreeMap::<T::AccountId, u32>::new();
        if Runs::<T>::iter().count() != RunCount::<T>::get() as usize {
            return Err("runs are not numbered from 0 without a gap");
        }
        for run in Self::run_ids() {
            let details = Runs::<T>::get(run).ok_or("a run is missing")?;
            add(&mut deposited, details.owner.clone(), details.deposit)?;
            Self::check_terms(&details.terms).map_err(|_| "a run's terms are not valid")?;
            if WaitingOf::<T>::contains_key(run) && WaitingOf::<T>::get(run) == Waiting::default() {
                return Err("nothing is kept as if it waited");
            }

            let roster = Rosters::<T>::get(run);
            let seats = <Self as Seats<T::AccountId>>::seats(run);
            let count = roster.iter().flatten().count();
            if seats.len() != count || SeatsOf::<T>::iter_prefix(run).count() != count {
                return Err("the roster does not name the seats that there are");
            }
            if Hotkeys::<T>::iter_prefix(run).count() != count {
                return Err("a hotkey leads to no seat");
            }
            for (uid, seat) in &seats {
                if roster.get(usize::from(uid.0)) != Some(&Some(Entry::from(seat))) {
                    return Err("the roster does not say of a seat what the seat does");
                }
                if Hotkeys::<T>::get(run, &seat.hotkey) != Some(*uid) {
                    return Err("a seat's hotkey does not lead back to it");
                }
                let keys = counted.entry(seat.hotkey.clone()).or_default();
                *keys = keys.saturating_add(1);
                add(&mut staked, seat.coldkey.clone(), seat.stake)?;
            }
            if FormerHotkeys::<T>::iter_key_prefix(run).any(|key| Hotkeys::<T>::contains_key(run, key)) {
                return Err("a hotkey that is used no more holds a seat");
            }

            let mut changing = BTreeSet::new();
            let mut coming = BTreeSet::new();
            for (uid, change) in Changes::<T>::get(run) {
                if !changing.insert(uid) {
                    return Err("two changes wait for one seat");
                }
                let seat = SeatsOf::<T>::get(run, uid).ok_or("a change waits for no seat")?;
                if let Some(hotkey) = incoming(&change) {
                    if Self::is_used(run, hotkey, &[]) || !coming.insert(hotkey.clone()) {
                        return Err("a hotkey is about to be used twice");
                    }
                    let keys = counted.entry(hotkey.clone()).or_default();
                    *keys = keys.saturating_add(1);
                }
                if let Change::Replaced(newcomer) = change {
                    if newcomer.role != seat.role {
                        return Err("a seat is taken over for another role");
                    }
                    add(&mut staked, newcomer.coldkey, newcomer.stake)?;
                }
            }

            for ((coldkey, id), chunks) in Unbonding::<T>::iter_prefix((run,)) {
                let present = SeatsOf::<T>::get(run, id.uid).filter(|seat| seat.id(id.uid) == id);
                let holder = present.map(|seat| seat.coldkey).or_else(|| FormerSeats::<T>::get(run, id));
                if holder.as_ref() != Some(&coldkey) {
                    return Err("stake is unbonding that is not its holder's");
                }
                if chunks.is_empty() {
                    return Err("nothing is kept as if it were unbonding");
                }
                for chunk in chunks {
                    add(&mut staked, coldkey.clone(), chunk.amount)?;
                }
            }
            for (id, coldkey) in FormerSeats::<T>::iter_prefix(run) {
                if SeatsOf::<T>::get(run, id.uid).is_some_and(|seat| seat.id(id.uid) == id) {
                    return Err("a seat is present and gone");
                }
                if !Unbonding::<T>::contains_key((run, coldkey, id)) {
                    return Err("a seat is remembered that has nothing unbonding");
                }
            }
        }
        if counted.iter().any(|(key, uses)| frame_system::Pallet::<T>::sufficients(key) < *uses) {
            return Err("a hotkey's account is not kept alive by its seats");
        }
        let held = |reason: HoldReason, who: &T::AccountId| {
            T::Currency::balance_on_hold(&T::RuntimeHoldReason::from(reason), who)
        };
        if staked.iter().any(|(who, stake)| held(HoldReason::Stake, who) != *stake) {
            return Err("the stake held differs from the stake recorded");
        }
        if deposited.iter().any(|(who, deposit)| held(HoldReason::RunDeposit, who) != *deposit) {
            return Err("the deposit held differs from the deposit recorded");
        }
        Ok(())
    }
}
