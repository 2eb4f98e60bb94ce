//! What is written as seats come, change and go: what waits for an opening, and what the opening does about it.

use crate::{pallet::*, rules::part, *};
use frame::{
    deps::frame_support::traits::tokens::Restriction,
    prelude::{fungible::hold::Mutate as _, *},
};

impl<T: Config> Pallet<T> {
    /// Puts a change for `uid` on the list, in the place of a new hotkey that waits for the same seat.
    pub(crate) fn queue(
        changes: &mut BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>,
        uid: Uid,
        change: Change<T::AccountId>,
    ) -> DispatchResult {
        match changes.iter_mut().find(|(seat, _)| *seat == uid) {
            Some((_, waiting)) => {
                if let Change::Rotates(hotkey) = waiting {
                    frame_system::Pallet::<T>::dec_sufficients(hotkey);
                }
                *waiting = change;
            }
            None => changes.try_push((uid, change)).map_err(|_| Error::<T>::TooManyChanges)?,
        }
        Ok(())
    }

    pub(crate) fn put_changes(run: RunId, changes: BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>) {
        if changes.is_empty() {
            Changes::<T>::remove(run);
        } else {
            Changes::<T>::insert(run, changes);
        }
    }

    pub(crate) fn put_waiting(run: RunId, waiting: Waiting) {
        if waiting == Waiting::default() {
            WaitingOf::<T>::remove(run);
        } else {
            WaitingOf::<T>::insert(run, waiting);
        }
    }

    pub(crate) fn put_chunks(
        run: RunId,
        coldkey: &T::AccountId,
        seat: SeatId,
        chunks: BoundedVec<Chunk, T::MaxUnbonding>,
    ) {
        if chunks.is_empty() {
            Unbonding::<T>::remove((run, coldkey, seat));
            FormerSeats::<T>::remove(run, seat);
        } else {
            Unbonding::<T>::insert((run, coldkey, seat), chunks);
        }
    }

    /// Whether nothing can be done to a chunk any more but to withdraw it.
    pub(crate) fn is_free(details: &Run<T::AccountId>, chunk: &Chunk) -> bool {
        Self::window_now(details).is_some_and(|window| window >= chunk.until)
    }

    /// Writes down that `amount` of a seat's stake is unbonding; false if that leaves no room for `room_kept` more.
    pub(crate) fn unbond(
        run: RunId,
        coldkey: &T::AccountId,
        seat: SeatId,
        amount: Balance,
        until: Window,
        room_kept: u32,
    ) -> bool {
        let mut chunks = Unbonding::<T>::get((run, coldkey, seat));
        if let Some(chunk) = chunks.iter_mut().find(|chunk| chunk.until == until) {
            chunk.amount = chunk.amount.saturating_add(amount);
        } else {
            let room = T::MaxUnbonding::get().saturating_sub(room_kept) as usize;
            if chunks.len() >= room || chunks.try_push(Chunk { amount, until }).is_err() {
                return false;
            }
        }
        Unbonding::<T>::insert((run, coldkey, seat), chunks);
        true
    }

    /// Lets a seat begin. Its stake is held, its hotkey counted.
    pub(crate) fn seat_down(
        run: RunId,
        uid: Uid,
        seat: Seat<T::AccountId>,
        roster: &mut BoundedVec<Option<Entry>, T::MaxSeats>,
    ) -> DispatchResult {
        let index = usize::from(uid.0);
        let entry = Some(Entry::from(&seat));
        match roster.get_mut(index) {
            Some(taken) => *taken = entry,
            None => roster.try_push(entry).map_err(|_| Error::<T>::RunFull)?,
        }
        Hotkeys::<T>::insert(run, &seat.hotkey, uid);
        Self::deposit_event(Event::Registered {
            run,
            uid,
            role: seat.role,
            hotkey: seat.hotkey.clone(),
            coldkey: seat.coldkey.clone(),
            stake: seat.stake,
        });
        SeatsOf::<T>::insert(run, uid, seat);
        Ok(())
    }

    /// Ends a seat: its stake unbonds, its hotkey is remembered, and whoever kept something for it is told.
    pub(crate) fn vacate(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, ending: Ending) -> Weight {
        let (id, until) = (seat.id(uid), ending.until);
        SeatsOf::<T>::remove(run, uid);
        Self::retire(run, &seat.hotkey, id);
        if seat.stake > 0 && !Self::unbond(run, &seat.coldkey, id, seat.stake, until, 0) {
            defensive!("an unstake leaves room for the seat's end");
        }
        if Unbonding::<T>::contains_key((run, &seat.coldkey, id)) {
            FormerSeats::<T>::insert(run, id, &seat.coldkey);
        }
        Self::deposit_event(Event::Vacated {
            run,
            seat: id,
            coldkey: seat.coldkey.clone(),
            stake: seat.stake,
            until,
        });
        T::OnSeats::vacated(run, uid, seat, ending)
    }

    /// Remembers a hotkey as one that is used no more.
    pub(crate) fn retire(run: RunId, hotkey: &T::AccountId, seat: SeatId) {
        Hotkeys::<T>::remove(run, hotkey);
        FormerHotkeys::<T>::insert(run, hotkey, seat);
        frame_system::Pallet::<T>::dec_sufficients(hotkey);
    }

    /// Does what waits for a window to open; returns the cost of what others did about it.
    pub(crate) fn apply(
        run: RunId,
        window: Window,
        details: &Run<T::AccountId>,
        changes: BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>,
    ) -> Weight {
        let until = Window(window.0.saturating_add(details.terms.unbonding_windows));
        let ending = Ending { window, until };
        let mut roster = Rosters::<T>::get(run);
        let mut weight = Weight::zero();
        for (uid, change) in changes {
            let Some(mut seat) = SeatsOf::<T>::get(run, uid) else {
                defensive!("a seat that changes is there until it does");
                continue;
            };
            match change {
                Change::Rotates(hotkey) => {
                    Self::retire(run, &seat.hotkey, seat.id(uid));
                    Hotkeys::<T>::insert(run, &hotkey, uid);
                    seat.hotkey = hotkey.clone();
                    SeatsOf::<T>::insert(run, uid, seat);
                    Self::deposit_event(Event::Rotated { run, uid, hotkey });
                }
                Change::Leaves => {
                    weight.saturating_accrue(Self::vacate(run, uid, &seat, ending));
                    if let Some(taken) = roster.get_mut(usize::from(uid.0)) {
                        *taken = None;
                    }
                }
                Change::Replaced(newcomer) => {
                    weight.saturating_accrue(Self::vacate(run, uid, &seat, ending));
                    // Not when it was paid for, or two holders of a uid could have one identity.
                    let newcomer = Seat { registered_at: Self::now(), since: window, ..newcomer };
                    if Self::seat_down(run, uid, newcomer, &mut roster).is_err() {
                        defensive!("a seat that is taken over is on the roster");
                    }
                }
            }
        }
        Rosters::<T>::insert(run, roster);
        weight
    }

    /// Takes `amount` of `coldkey`'s held stake; returns the reporter's part, which it has. The rest is burnt.
    pub(crate) fn confiscate(
        coldkey: &T::AccountId,
        amount: Balance,
        reporter: Reporter<T::AccountId>,
    ) -> Balance {
        let reason = HoldReason::Stake.into();
        let rewarded = reporter.map_or(0, |(reporter, share)| {
            // An account that cannot be paid so little gets nothing, and all is burnt.
            T::Currency::transfer_on_hold(
                &reason,
                coldkey,
                reporter,
                part(amount, share),
                Precision::Exact,
                Restriction::Free,
                Fortitude::Force,
            )
            .unwrap_or(0)
        });
        let rest = amount.saturating_sub(rewarded);
        let burnt = T::Currency::burn_held(&reason, coldkey, rest, Precision::Exact, Fortitude::Force);
        if burnt.is_err() {
            defensive!("what is recorded as stake is held");
        }
        rewarded
    }
}
