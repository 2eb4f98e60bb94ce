//! Writes changes of seats: requests for the next opening, and their application at the opening.

use crate::{pallet::*, rules::share_of, *};
use frame::{
    deps::frame_support::traits::tokens::Restriction,
    prelude::{fungible::hold::Mutate as _, *},
};

impl<T: Config> Pallet<T> {
    /// Queues a change requested by a call; replaces a waiting rotation of the same seat.
    pub(crate) fn queue(
        changes: &mut ChangesOf<T>,
        uid: Uid,
        change: Change<T::AccountId>,
    ) -> DispatchResult {
        let waits = changes.iter().any(|(seat, _)| *seat == uid);
        ensure!(waits || changes.len() < T::MaxChanges::get() as usize, Error::<T>::TooManyChanges);
        Self::put_change(changes, uid, change)
    }

    /// Expels the holder of a seat at the next opening, even if the list of changes is full.
    pub fn expel(run: RunId, id: SeatId) {
        let uid = id.uid;
        let mut changes = Changes::<T>::get(run);
        let waiting = changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change);
        let stays = SeatsOf::<T>::get(run, uid).is_some_and(|seat| seat.id(uid) == id)
            && matches!(waiting, None | Some(Change::Rotates(_)));
        if !stays {
            return;
        }
        if Self::put_change(&mut changes, uid, Change::Leaves).is_err() {
            defensive!("the list has room for a change of every seat");
        }
        Self::put_changes(run, changes);
        Self::deposit_event(Event::Leaving { run, uid });
    }

    /// Puts a change for `uid`, in the place of a waiting rotation of the same seat, even if calls would be refused.
    pub(crate) fn put_change(
        changes: &mut ChangesOf<T>,
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

    pub(crate) fn put_changes(run: RunId, changes: ChangesOf<T>) {
        if changes.is_empty() {
            Changes::<T>::remove(run);
        } else {
            Changes::<T>::insert(run, changes);
        }
    }

    pub(crate) fn put_waiting(run: RunId, waiting: Waiting) {
        if waiting == Waiting::default() {
            PendingChanges::<T>::remove(run);
        } else {
            PendingChanges::<T>::insert(run, waiting);
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

    /// Returns whether a chunk has unbonded: it can be withdrawn and cannot be slashed.
    pub(crate) fn is_free(details: &Run<T::AccountId>, chunk: &Chunk) -> bool {
        Self::window_now(details).is_some_and(|window| window >= chunk.until)
    }

    /// Adds `amount` to a seat's unbonding stake. Returns `false` if that leaves fewer than `reserved` free chunks.
    pub(crate) fn unbond(
        run: RunId,
        coldkey: &T::AccountId,
        seat: SeatId,
        amount: Balance,
        until: Window,
        reserved: u32,
    ) -> bool {
        let mut chunks = Unbonding::<T>::get((run, coldkey, seat));
        if let Some(chunk) = chunks.iter_mut().find(|chunk| chunk.until == until) {
            chunk.amount = chunk.amount.saturating_add(amount);
        } else {
            let room = T::MaxUnbonding::get().saturating_sub(reserved) as usize;
            if chunks.len() >= room || chunks.try_push(Chunk { amount, until }).is_err() {
                return false;
            }
        }
        Unbonding::<T>::insert((run, coldkey, seat), chunks);
        true
    }

    /// Starts a seat. Its stake must already be held and its hotkey counted.
    pub(crate) fn take_seat(
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

    /// Ends a seat: its stake unbonds, its hotkey is retired, and the other pallets are notified.
    pub(crate) fn vacate(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, ending: Ending) -> Weight {
        let (id, until) = (seat.id(uid), ending.until);
        SeatsOf::<T>::remove(run, uid);
        Self::retire(run, &seat.hotkey, id);
        if seat.stake > 0 && !Self::unbond(run, &seat.coldkey, id, seat.stake, until, 0) {
            defensive!("a chunk is reserved for the seat's end");
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

    /// Marks a hotkey as used permanently.
    pub(crate) fn retire(run: RunId, hotkey: &T::AccountId, seat: SeatId) {
        Hotkeys::<T>::remove(run, hotkey);
        FormerHotkeys::<T>::insert(run, hotkey, seat);
        frame_system::Pallet::<T>::dec_sufficients(hotkey);
    }

    /// Applies the changes of an opening. Returns the weight of the work of other pallets.
    pub(crate) fn apply(
        run: RunId,
        window: Window,
        details: &Run<T::AccountId>,
        changes: ChangesOf<T>,
    ) -> Weight {
        let until = Window(window.0.saturating_add(details.terms.unbonding_windows));
        let ending = Ending { window, until };
        let mut roster = Rosters::<T>::get(run);
        let mut weight = Weight::zero();
        for (uid, change) in changes {
            let Some(mut seat) = SeatsOf::<T>::get(run, uid) else {
                defensive!("a seat with a waiting change exists");
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
                    // Uses the time of the opening, not of the payment, so that two holders of a uid never share one
                    // identity.
                    let newcomer = Seat { registered_at: Self::now(), since: window, ..newcomer };
                    if Self::take_seat(run, uid, newcomer, &mut roster).is_err() {
                        defensive!("a replaced seat is on the roster");
                    }
                }
            }
        }
        Rosters::<T>::insert(run, roster);
        weight
    }

    /// Takes `amount` of `coldkey`'s held stake: pays and returns the reporter's reward, and burns the rest.
    pub(crate) fn confiscate(
        coldkey: &T::AccountId,
        amount: Balance,
        reporter: Option<&T::AccountId>,
    ) -> Balance {
        let reason = HoldReason::Stake.into();
        let rewarded = reporter.map_or(0, |reporter| {
            // A transfer below the existential deposit of a new account fails; then everything is burnt.
            T::Currency::transfer_on_hold(
                &reason,
                coldkey,
                reporter,
                share_of(amount, REPORTER_SHARE).min(REPORTER_REWARD_MAX),
                Precision::Exact,
                Restriction::Free,
                Fortitude::Force,
            )
            .unwrap_or(0)
        });
        let rest = amount.saturating_sub(rewarded);
        let burnt = T::Currency::burn_held(&reason, coldkey, rest, Precision::Exact, Fortitude::Force);
        if burnt.is_err() {
            defensive!("recorded stake is held");
        }
        rewarded
    }
}
