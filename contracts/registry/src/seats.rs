//! Runs and seats for other pallets: lookups, openings, slashes.

use crate::{
    pallet::*,
    rules::{counted_nominations, share_of},
    *,
};
use frame::prelude::{fungible::MutateHold as _, *};

impl<T: Config> Pallet<T> {
    pub fn run(run: RunId) -> Option<Run<T::AccountId>> {
        Runs::<T>::get(run)
    }

    /// Returns the terms of `epoch`: the open one, or one of the two before it. Pay follows the terms at the time of
    /// the work, even if it is shared later.
    pub fn terms_of(run: RunId, epoch: u32) -> Option<Terms> {
        let details = Runs::<T>::get(run)?;
        let former = FormerTerms::<T>::get(run).into_iter().find(|(last, _)| epoch <= *last);
        Some(former.map_or(details.terms, |(_, terms)| terms))
    }

    /// Returns the uid and role of the seat that `hotkey` holds in `run`.
    pub fn seat_of(run: RunId, hotkey: &T::AccountId) -> Option<(Uid, Role)> {
        let uid = Hotkeys::<T>::get(run, hotkey)?;
        Some((uid, SeatsOf::<T>::get(run, uid)?.role))
    }

    pub fn seat(run: RunId, uid: Uid) -> Option<Seat<T::AccountId>> {
        SeatsOf::<T>::get(run, uid)
    }

    /// Returns the roster of `run`, in uid order, with gaps. One storage read.
    pub fn roster(run: RunId) -> Vec<(Uid, Entry)> {
        let roster = Rosters::<T>::get(run).into_iter().zip(0u32..);
        roster.filter_map(|(taken, index)| Some((Uid(u16::try_from(index).ok()?), taken?))).collect()
    }

    /// Returns every seat of `run`, in uid order. One storage read per seat.
    pub fn seats(run: RunId) -> Vec<(Uid, Seat<T::AccountId>)> {
        let roster = Self::roster(run).into_iter();
        roster.filter_map(|(uid, _)| Some((uid, SeatsOf::<T>::get(run, uid)?))).collect()
    }

    /// Applies the changes that wait for `window` to open: terms, hotkeys, seats given up or replaced, the owner's
    /// stop. Called once, before other reads for the window.
    pub fn window_opens(run: RunId, window: Window) -> Weight {
        let Some(mut details) = Runs::<T>::get(run) else {
            return T::DbWeight::get().reads(1);
        };
        let changes = Changes::<T>::take(run);
        let mut weight = weight_info::window_opens::<T>(changes.len() as u32);
        if !changes.is_empty() {
            // Before new terms: a seat leaves under the terms at the time of its request.
            weight.saturating_accrue(Self::apply(run, window, &details, changes));
        }

        let mut waiting = PendingChanges::<T>::get(run);
        let before = waiting;
        if let Some(stopped) = waiting.stopped.take() {
            details.stopped = stopped;
            match stopped {
                true => StoppedSince::<T>::insert(run, window),
                false => StoppedSince::<T>::remove(run),
            }
            Self::deposit_event(Event::Stopped { run, window, stopped });
        }
        let epoch_windows = details.params.epoch_windows;
        if window.0.is_multiple_of(epoch_windows.max(1))
            && let Some(pending) = waiting.terms.take_if(|pending| pending.from <= window)
        {
            let epoch = window.epoch(epoch_windows);
            Self::keep_former_terms(run, epoch, details.terms);
            let by = Window(window.0.saturating_add(details.terms.unbonding_windows));
            UnbondsBy::<T>::mutate(run, |until| *until = by.max(*until));
            details.terms = pending.terms;
            Self::deposit_event(Event::TermsChanged { run, epoch });
        }
        if waiting != before {
            Runs::<T>::insert(run, details);
            Self::put_waiting(run, waiting);
        }
        weight
    }

    /// Keeps the terms that apply until `epoch` begins, for the two epochs before it. The older one may be paid only
    /// now, when this epoch's first window opens.
    fn keep_former_terms(run: RunId, epoch: u32, terms: Terms) {
        let Some(last) = epoch.checked_sub(1) else { return };
        FormerTerms::<T>::mutate(run, |former| {
            former.retain(|(last, _)| last.saturating_add(2) >= epoch);
            if former.try_push((last, terms)).is_err() {
                defensive!("terms change at most once per epoch");
            }
        });
    }

    /// Returns the present or former seat of a hotkey. A hotkey cannot be used twice in a run.
    pub fn holder_of(run: RunId, hotkey: &T::AccountId) -> Option<SeatId> {
        match Hotkeys::<T>::get(run, hotkey) {
            Some(uid) => Some(SeatsOf::<T>::get(run, uid)?.id(uid)),
            None => FormerHotkeys::<T>::get(run, hotkey),
        }
    }

    /// Returns the stake behind a seat: its own, and the nominations that count (PROT-3).
    pub fn stake_behind(run: RunId, uid: Uid, seat: &Seat<T::AccountId>) -> Balance {
        let nominated = match seat.role {
            Role::Miner => 0,
            Role::Validator => T::Nominations::behind(run, uid),
        };
        seat.stake.saturating_add(counted_nominations(seat.stake, nominated))
    }

    /// Slashes `share` of a seat's stake, unbonding stake and nominations. The reporter receives a part of the
    /// holder's own stake; the rest is burnt. Returns the slashed amount.
    pub fn slash(run: RunId, id: SeatId, share: Permille, reporter: Option<&T::AccountId>) -> Balance {
        let Some(details) = Runs::<T>::get(run) else {
            return 0;
        };
        // Nominators may have unbonding stake when the seat has none.
        let nominated = T::Nominations::slash(run, id, share);
        let present = SeatsOf::<T>::get(run, id.uid).filter(|seat| seat.id(id.uid) == id);
        let coldkey = present.as_ref().map(|seat| seat.coldkey.clone());
        let Some(coldkey) = coldkey.or_else(|| FormerSeats::<T>::get(run, id)) else {
            if nominated > 0 {
                Self::deposit_event(Event::Slashed { run, seat: id, stake: 0, rewarded: 0, nominated });
            }
            return nominated;
        };

        let mut stake: Balance = 0;
        if let Some(mut seat) = present {
            stake = share_of(seat.stake, share);
            seat.stake = seat.stake.saturating_sub(stake);
            SeatsOf::<T>::insert(run, id.uid, seat);
        }
        let mut chunks = Unbonding::<T>::get((run, &coldkey, id));
        for chunk in chunks.iter_mut().filter(|chunk| !Self::is_free(&details, chunk)) {
            let taken = share_of(chunk.amount, share);
            chunk.amount = chunk.amount.saturating_sub(taken);
            stake = stake.saturating_add(taken);
        }
        chunks.retain(|chunk| chunk.amount > 0);
        Self::put_chunks(run, &coldkey, id, chunks);
        let rewarded = Self::confiscate(&coldkey, stake, reporter);
        Self::deposit_event(Event::Slashed { run, seat: id, stake, rewarded, nominated });
        stake.saturating_add(nominated)
    }

    /// Moves `amount` from `from`'s account into a seat's stake.
    ///
    /// # Errors
    /// `UnknownSeat`, `NothingToAdd` or `StakeTooLarge`, and errors of the transfer from `from`.
    pub fn add_to_stake(run: RunId, uid: Uid, from: &T::AccountId, amount: Balance) -> DispatchResult {
        let mut seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
        ensure!(amount > 0, Error::<T>::NothingToAdd);
        seat.stake = seat.stake.checked_add(amount).ok_or(Error::<T>::StakeTooLarge)?;
        T::Currency::transfer_and_hold(
            &HoldReason::Stake.into(),
            from,
            &seat.coldkey,
            amount,
            Precision::Exact,
            Preservation::Expendable,
            Fortitude::Polite,
        )?;

        let stake = seat.stake;
        SeatsOf::<T>::insert(run, uid, seat);
        Self::deposit_event(Event::StakeAdded { run, uid, amount, stake });
        Ok(())
    }
}
