//! Who may do what now, and where a newcomer sits. Nothing here writes.

use crate::{pallet::*, rules, *};
use core::cmp::Reverse;
use frame::prelude::*;

type RunOf<T> = Run<<T as frame_system::Config>::AccountId>;
type SeatOf<T> = Seat<<T as frame_system::Config>::AccountId>;

/// Where a newcomer sits.
pub(crate) enum Place {
    Free(Uid),
    /// In the place of whoever holds it now, from the next opening.
    Of(Uid),
}

impl<T: Config> Pallet<T> {
    pub(crate) fn now() -> Block {
        Block(frame_system::Pallet::<T>::block_number().saturated_into())
    }

    /// The window that is open; `None` before the run starts.
    pub(crate) fn window_now(details: &Run<T::AccountId>) -> Option<Window> {
        details.params.schedule.window_at(Self::now())
    }

    /// The window that opens next.
    pub(crate) fn opens_next(details: &Run<T::AccountId>) -> Window {
        Self::window_now(details).map_or(Window(0), Window::next)
    }

    pub(crate) fn check_terms(terms: &Terms) -> DispatchResult {
        terms.validate().map_err(Error::<T>::from)?;
        let seats = u32::from(terms.miner_seats_max).saturating_add(terms.validator_seats_max.into());
        ensure!(seats <= T::MaxSeats::get(), Error::<T>::TooManySeats);
        Ok(())
    }

    /// A run, for its owner.
    pub(crate) fn ruled(origin: OriginFor<T>, run: RunId) -> Result<Run<T::AccountId>, DispatchError> {
        let owner = ensure_signed(origin)?;
        let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
        ensure!(details.owner == owner, Error::<T>::NotTheOwner);
        Ok(details)
    }

    /// A seat, for its coldkey.
    pub(crate) fn owned(
        origin: OriginFor<T>,
        run: RunId,
        uid: Uid,
    ) -> Result<(RunOf<T>, SeatOf<T>), DispatchError> {
        let coldkey = ensure_signed(origin)?;
        let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
        let seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
        ensure!(seat.coldkey == coldkey, Error::<T>::NotTheColdkey);
        Ok((details, seat))
    }

    /// A seat that may move to `endpoint` now, for its hotkey.
    pub(crate) fn moving(
        origin: OriginFor<T>,
        run: RunId,
        endpoint: &Url,
    ) -> Result<(Uid, Seat<T::AccountId>), DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
        let uid = Hotkeys::<T>::get(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
        let seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
        ensure!(rules::is_base_url(endpoint), Error::<T>::BadUrl);
        let window_of = |block| details.params.schedule.window_at(block);
        let moved = seat.endpoint_set_at.map(window_of);
        ensure!(moved != Some(window_of(Self::now())), Error::<T>::EndpointJustSet);
        Ok((uid, seat))
    }

    /// Whether `hotkey` holds or held a seat, or is about to.
    pub(crate) fn is_used(
        run: RunId,
        hotkey: &T::AccountId,
        changes: &[(Uid, Change<T::AccountId>)],
    ) -> bool {
        let waits = changes.iter().any(|(_, change)| incoming(change) == Some(hotkey));
        waits || Hotkeys::<T>::contains_key(run, hotkey) || FormerHotkeys::<T>::contains_key(run, hotkey)
    }

    /// Where a newcomer of `role` sits; `None` if nowhere.
    ///
    /// Terms may have lowered the number of seats below what is taken. Then nobody is sent away; a newcomer still takes
    /// somebody's place, and seats that are given up stay empty until the number is right.
    pub(crate) fn place(
        run: RunId,
        role: Role,
        terms: &Terms,
        opens: Window,
        roster: &[Option<Entry>],
        changes: &[(Uid, Change<T::AccountId>)],
    ) -> Option<Place> {
        let of_role = || {
            (roster.iter().zip(0u32..))
                .filter(move |(taken, _)| taken.is_some_and(|entry| entry.role == role))
        };
        let taken = of_role().count();
        let seats_max = usize::from(terms.seats_max(role));
        if taken < seats_max
            && let Some(uid) = free_uid(roster, T::MaxSeats::get())
        {
            return Some(Place::Free(uid));
        }
        let of_role =
            of_role().filter_map(|(entry, index)| Some((Uid(u16::try_from(index).ok()?), entry.as_ref()?)));
        let mut given_up_for_good = taken.saturating_sub(seats_max);
        let mut lowest = None;
        for (uid, entry) in of_role {
            match changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change) {
                Some(Change::Replaced(_)) => continue,
                Some(Change::Leaves) if given_up_for_good > 0 => {
                    given_up_for_good = given_up_for_good.saturating_sub(1);
                    continue;
                }
                Some(Change::Leaves) => return Some(Place::Of(uid)),
                Some(Change::Rotates(_)) | None => {}
            }
            if entry.since.0.saturating_add(terms.immunity_windows) > opens.0 {
                continue;
            }
            let Some(seat) = SeatsOf::<T>::get(run, uid) else {
                defensive!("a uid on the roster is a seat's");
                continue;
            };
            let stake = match role {
                Role::Miner => seat.stake,
                Role::Validator => seat.stake.saturating_add(T::Nominations::behind(run, uid)),
            };
            let pay = T::Payslips::recent_pay(run, uid);
            let rank = (pay, stake, Reverse(seat.registered_at), Reverse(uid));
            if lowest.is_none_or(|lowest| rank < lowest) {
                lowest = Some(rank);
            }
        }
        lowest.map(|(_, _, _, Reverse(uid))| Place::Of(uid))
    }
}

/// The hotkey that a change brings.
pub(crate) fn incoming<AccountId>(change: &Change<AccountId>) -> Option<&AccountId> {
    match change {
        Change::Rotates(hotkey) => Some(hotkey),
        Change::Leaves => None,
        Change::Replaced(newcomer) => Some(&newcomer.hotkey),
    }
}

/// The lowest uid that nobody has.
pub(crate) fn free_uid(roster: &[Option<Entry>], seats_max: u32) -> Option<Uid> {
    let index = roster.iter().position(Option::is_none).unwrap_or(roster.len());
    if index >= seats_max as usize {
        return None;
    }
    u16::try_from(index).ok().map(Uid)
}
