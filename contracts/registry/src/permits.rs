//! Checks of each call, without writes, and the choice of a newcomer's seat.

use crate::{pallet::*, rules, *};
use core::cmp::Reverse;
use frame::prelude::*;
use protocol::params::TermsLimits;

type RunOf<T> = Run<<T as frame_system::Config>::AccountId>;
type SeatOf<T> = Seat<<T as frame_system::Config>::AccountId>;

/// A newcomer's seat.
pub(crate) enum Place {
    Free(Uid),
    /// A taken seat, whose holder is replaced at the next opening.
    Replacing(Uid),
}

/// Weight of replacing one of `seats` of a role: each validator's nominations are read too.
pub(crate) fn replace_weight<T: Config>(role: Role, seats: u32) -> Weight {
    let nominations = match role {
        Role::Miner => 0,
        Role::Validator => u64::from(seats).saturating_mul(2),
    };
    weight_info::replace::<T>(seats).saturating_add(T::DbWeight::get().reads(nominations))
}

impl<T: Config> Pallet<T> {
    /// Returns the present block.
    pub fn now() -> Block {
        Block(frame_system::Pallet::<T>::block_number().saturated_into())
    }

    /// Returns the open window; `None` before the run starts.
    pub fn window_now(details: &Run<T::AccountId>) -> Option<Window> {
        details.params.schedule.window_at(Self::now())
    }

    /// Returns the next window to open.
    pub fn opens_next(details: &Run<T::AccountId>) -> Window {
        Self::window_now(details).map_or(Window(0), Window::next)
    }

    pub(crate) fn check_terms(terms: &Terms, limits: &TermsLimits) -> DispatchResult {
        terms.validate().map_err(Error::<T>::from)?;
        terms.check_limits(limits).map_err(Error::<T>::from)?;
        let seats = u32::from(terms.miner_seats_max).saturating_add(terms.validator_seats_max.into());
        ensure!(seats <= T::MaxSeats::get(), Error::<T>::TooManySeats);
        rules::check_floors::<T>(terms, &FloorsOf::<T>::get())?;
        Ok(())
    }

    /// Returns the deposit that a run needs (PROT-33).
    pub fn deposit_of(params: &RunParams, terms: &Terms) -> Balance {
        rules::deposit(T::RunDeposit::get(), T::RateDeposit::get(), &params.schedule, terms)
    }

    /// Returns the run, if the signer owns it.
    pub(crate) fn run_of_owner(origin: OriginFor<T>, run: RunId) -> Result<Run<T::AccountId>, DispatchError> {
        let owner = ensure_signed(origin)?;
        let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
        ensure!(details.owner == owner, Error::<T>::NotTheOwner);
        Ok(details)
    }

    /// Returns the run and the seat, if the signer is the seat's coldkey.
    ///
    /// # Errors
    /// `UnknownRun`, `UnknownSeat` or `NotTheColdkey`; `BadOrigin` for an unsigned call.
    pub fn seat_of_coldkey(
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

    /// Returns the signer's seat, if it may set its endpoint to `endpoint` now.
    pub(crate) fn may_set_endpoint(
        origin: OriginFor<T>,
        run: RunId,
        endpoint: &Url,
    ) -> Result<(Uid, Seat<T::AccountId>), DispatchError> {
        let hotkey = ensure_signed(origin)?;
        let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
        let uid = Hotkeys::<T>::get(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
        let seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
        ensure!(rules::is_endpoint(endpoint), Error::<T>::BadUrl);
        let window_of = |block| details.params.schedule.window_at(block);
        let moved = seat.endpoint_set_at.map(window_of);
        ensure!(moved != Some(window_of(Self::now())), Error::<T>::EndpointJustSet);
        Ok((uid, seat))
    }

    /// Returns whether `hotkey` holds, held or will hold a seat.
    pub(crate) fn is_used(
        run: RunId,
        hotkey: &T::AccountId,
        changes: &[(Uid, Change<T::AccountId>)],
    ) -> bool {
        let waits = changes.iter().any(|(_, change)| incoming(change) == Some(hotkey));
        waits || Hotkeys::<T>::contains_key(run, hotkey) || FormerHotkeys::<T>::contains_key(run, hotkey)
    }

    /// Returns whether `hotkey` consented to hold a seat of `run` for `coldkey`.
    pub(crate) fn is_proven(
        hotkey: &T::AccountId,
        run: RunId,
        coldkey: &T::AccountId,
        proof: &Signature,
    ) -> bool {
        T::Hotkey::is_valid(hotkey, &Self::genesis(), run, coldkey, proof)
    }

    /// Chooses the seat of a newcomer of `role` with `stake`.
    ///
    /// New terms may allow fewer seats than are taken. Then holders stay, a newcomer may still replace one, and seats
    /// that are given up stay empty until the number is within the terms.
    ///
    /// # Errors
    /// `TooManyReplacements`, `StakeTooLowToReplace`, or `RunFull` if there is none.
    pub(crate) fn place(
        run: RunId,
        role: Role,
        stake: Balance,
        terms: &Terms,
        opens: Window,
        roster: &[Option<Entry>],
        changes: &[(Uid, Change<T::AccountId>)],
    ) -> Result<Place, Error<T>> {
        let of_role: Vec<(Uid, &Entry)> = roster
            .iter()
            .zip(0u32..)
            .filter_map(|(entry, index)| Some((Uid(u16::try_from(index).ok()?), entry.as_ref()?)))
            .filter(|(_, entry)| entry.role == role)
            .collect();
        let seats_max = usize::from(terms.seats_max(role));
        if of_role.len() < seats_max
            && let Some(uid) = free_uid(roster, T::MaxSeats::get())
        {
            return Ok(Place::Free(uid));
        }
        let change_of = |uid: Uid| changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change);
        let replaced = |uid: &Uid| matches!(change_of(*uid), Some(Change::Replaced(_)));
        let replacements_max = rules::replacements_max(terms, role);
        if of_role.iter().filter(|(uid, _)| replaced(uid)).count() >= replacements_max {
            return Err(Error::<T>::TooManyReplacements);
        }
        // A validator is replaced by stake, a miner by work.
        let weights = match role {
            Role::Miner => T::MinerWeights::weights(run),
            Role::Validator => Vec::new(),
        };
        let has_weight = |uid: Uid| {
            let place = weights.binary_search_by_key(&uid, |(seat, _)| *seat);
            place.is_ok_and(|place| weights.get(place).is_some_and(|(_, weight)| *weight > 0))
        };
        let mut surplus = of_role.len().saturating_sub(seats_max);
        let mut lowest = None;
        let mut outstaked = false;
        for (uid, entry) in &of_role {
            let uid = *uid;
            match change_of(uid) {
                Some(Change::Replaced(_)) => continue,
                Some(Change::Leaves) if surplus > 0 => {
                    surplus = surplus.saturating_sub(1);
                    continue;
                }
                Some(Change::Leaves) => return Ok(Place::Replacing(uid)),
                Some(Change::Rotates(_)) | None => {}
            }
            if entry.since.0.saturating_add(terms.immunity_windows) > opens.0 {
                continue;
            }
            let Some(seat) = SeatsOf::<T>::get(run, uid) else {
                defensive!("every uid on the roster has a seat");
                continue;
            };
            let held = Self::stake_behind(run, uid, &seat);
            if role == Role::Validator && !rules::outstakes(stake, held) {
                outstaked = true;
                continue;
            }
            let pay = T::Payslips::recent_pay(run, uid);
            let rank = (has_weight(uid), pay, held, Reverse(seat.registered_at), Reverse(uid));
            if lowest.is_none_or(|lowest| rank < lowest) {
                lowest = Some(rank);
            }
        }
        match lowest {
            // Otherwise idle newcomers could displace all working seats: newcomers must show work before more may
            // join.
            Some((true, ..)) => {
                let unproven = of_role.iter().filter(|(uid, _)| replaced(uid) || !has_weight(*uid)).count();
                ensure!(unproven < replacements_max, Error::<T>::RunFull);
            }
            None if outstaked => return Err(Error::<T>::StakeTooLowToReplace),
            _ => {}
        }
        lowest.map(|(.., Reverse(uid))| Place::Replacing(uid)).ok_or(Error::<T>::RunFull)
    }
}

/// Returns the hotkey that a change introduces.
pub(crate) fn incoming<AccountId>(change: &Change<AccountId>) -> Option<&AccountId> {
    match change {
        Change::Rotates(hotkey) => Some(hotkey),
        Change::Leaves => None,
        Change::Replaced(newcomer) => Some(&newcomer.hotkey),
    }
}

/// Returns the lowest free uid.
pub(crate) fn free_uid(roster: &[Option<Entry>], seats_max: u32) -> Option<Uid> {
    let index = roster.iter().position(Option::is_none).unwrap_or(roster.len());
    if index >= seats_max as usize {
        return None;
    }
    u16::try_from(index).ok().map(Uid)
}
