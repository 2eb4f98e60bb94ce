//! The checks of each call, without writes, and the seat that a newcomer gets.

use crate::{pallet::*, rules, *};
use core::cmp::Reverse;
use frame::prelude::*;

type RunOf<T> = Run<<T as frame_system::Config>::AccountId>;
type SeatOf<T> = Seat<<T as frame_system::Config>::AccountId>;

/// The seat that a newcomer gets.
pub(crate) enum Place {
    Free(Uid),
    /// Replaces its holder at the next opening.
    Replacing(Uid),
}

impl<T: Config> Pallet<T> {
    /// The present block.
    pub fn now() -> Block {
        Block(frame_system::Pallet::<T>::block_number().saturated_into())
    }

    /// The open window; `None` before the run starts.
    pub fn window_now(details: &Run<T::AccountId>) -> Option<Window> {
        details.params.schedule.window_at(Self::now())
    }

    /// The next window to open.
    pub fn opens_next(details: &Run<T::AccountId>) -> Window {
        Self::window_now(details).map_or(Window(0), Window::next)
    }

    pub(crate) fn check_terms(terms: &Terms) -> DispatchResult {
        terms.validate().map_err(Error::<T>::from)?;
        let seats = u32::from(terms.miner_seats_max).saturating_add(terms.validator_seats_max.into());
        ensure!(seats <= T::MaxSeats::get(), Error::<T>::TooManySeats);
        rules::check_floors::<T>(terms, &FloorsOf::<T>::get())?;
        Ok(())
    }

    /// The deposit that a run needs (PROT-33).
    pub fn deposit_of(params: &RunParams, terms: &Terms) -> Balance {
        rules::deposit(T::RunDeposit::get(), T::RateDeposit::get(), &params.schedule, terms)
    }

    /// The run, if the signer owns it.
    pub(crate) fn run_of_owner(origin: OriginFor<T>, run: RunId) -> Result<Run<T::AccountId>, DispatchError> {
        let owner = ensure_signed(origin)?;
        let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
        ensure!(details.owner == owner, Error::<T>::NotTheOwner);
        Ok(details)
    }

    /// The run and the seat, if the signer is the seat's coldkey.
    pub(crate) fn seat_of_coldkey(
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

    /// The signer's seat, if it may set its endpoint to `endpoint` now.
    pub(crate) fn may_set_endpoint(
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

    /// Whether `hotkey` holds, held or will hold a seat.
    pub(crate) fn is_used(
        run: RunId,
        hotkey: &T::AccountId,
        changes: &[(Uid, Change<T::AccountId>)],
    ) -> bool {
        let waits = changes.iter().any(|(_, change)| incoming(change) == Some(hotkey));
        waits || Hotkeys::<T>::contains_key(run, hotkey) || FormerHotkeys::<T>::contains_key(run, hotkey)
    }

    /// The seat that a newcomer of `role` gets; `None` if there is none.
    ///
    /// New terms may allow fewer seats than are taken. Then holders stay, a newcomer may still replace one, and seats
    /// that are given up stay empty until the number is right.
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
        let mut surplus = taken.saturating_sub(seats_max);
        let mut lowest = None;
        for (uid, entry) in of_role {
            match changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change) {
                Some(Change::Replaced(_)) => continue,
                Some(Change::Leaves) if surplus > 0 => {
                    surplus = surplus.saturating_sub(1);
                    continue;
                }
                Some(Change::Leaves) => return Some(Place::Replacing(uid)),
                Some(Change::Rotates(_)) | None => {}
            }
            if entry.since.0.saturating_add(terms.immunity_windows) > opens.0 {
                continue;
            }
            let Some(seat) = SeatsOf::<T>::get(run, uid) else {
                defensive!("every uid on the roster has a seat");
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
        lowest.map(|(_, _, _, Reverse(uid))| Place::Replacing(uid))
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

/// The lowest free uid.
pub(crate) fn free_uid(roster: &[Option<Entry>], seats_max: u32) -> Option<Uid> {
    let index = roster.iter().position(Option::is_none).unwrap_or(roster.len());
    if index >= seats_max as usize {
        return None;
    }
    u16::try_from(index).ok().map(Uid)
}
