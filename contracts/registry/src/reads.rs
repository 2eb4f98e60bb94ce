//! Reads for the runtime API.

use crate::{pallet::*, *};
use frame::prelude::{BlockNumberFor, frame_system};

impl<T: Config> Pallet<T> {
    /// Returns the chain's genesis hash: a signature for another chain proves nothing here. The system prunes later
    /// hashes and keeps this one. It is not known in block 0, which has no calls.
    pub fn genesis() -> GenesisHash {
        GenesisHash(frame_system::Pallet::<T>::block_hash(BlockNumberFor::<T>::default()).0)
    }

    /// Returns the ids of all runs, ascending.
    pub fn run_ids() -> Vec<RunId> {
        let mut runs: Vec<RunId> = Runs::<T>::iter_keys().collect();
        runs.sort_unstable();
        runs
    }

    /// Returns the number of taken seats of `role`, and their maximum. More may be taken than newer terms allow.
    pub fn taken(run: RunId, role: Role) -> (u16, u16) {
        let roster = Rosters::<T>::get(run);
        let taken = roster.iter().flatten().filter(|entry| entry.role == role).count();
        let seats_max = Runs::<T>::get(run).map_or(0, |details| details.terms.seats_max(role));
        (u16::try_from(taken).unwrap_or(u16::MAX), seats_max)
    }

    /// Returns the present price of a seat of `role`; zero if the run does not exist.
    pub fn price(run: RunId, role: Role) -> Balance {
        Runs::<T>::get(run).map_or(0, |details| {
            let now = Self::window_now(&details).unwrap_or_default();
            Self::price_in(run, role, &details, now)
        })
    }

    /// Returns the price of a seat of `role` in `window`.
    pub(crate) fn price_in(run: RunId, role: Role, details: &Run<T::AccountId>, window: Window) -> Balance {
        let Run { params, terms, .. } = details;
        let floor = price::floor(terms, params, role, window, T::Payslips::treasury(run));
        Prices::<T>::get(run, role).in_window(window, terms, floor)
    }

    /// Returns whether the run is stopped, or will be at the next opening.
    pub fn is_stopped(run: RunId) -> bool {
        let stopped = Runs::<T>::get(run).is_some_and(|details| details.stopped);
        PendingChanges::<T>::get(run).stopped.unwrap_or(stopped)
    }

    /// Returns the change of a seat at the next opening.
    pub fn pending_change(run: RunId, uid: Uid) -> Option<view::PendingChange>
    where
        T::AccountId: Into<[u8; 32]>,
    {
        let change = Changes::<T>::get(run).into_iter().find(|(seat, _)| *seat == uid)?.1;
        Some(match change {
            Change::Rotates(hotkey) => view::PendingChange::Rotates(protocol::Hotkey(hotkey.into())),
            Change::Leaves => view::PendingChange::Leaves,
            Change::Replaced(_) => view::PendingChange::Replaced,
        })
    }

    /// Returns the first window in which the seat can be replaced; `None` if the seat does not exist.
    pub fn immune_until(run: RunId, uid: Uid) -> Option<Window> {
        let immunity = Runs::<T>::get(run)?.terms.immunity_windows;
        Some(Window(SeatsOf::<T>::get(run, uid)?.since.0.saturating_add(immunity)))
    }

    /// Returns the unbonding stake of an account, by window.
    pub fn unbonding(run: RunId, account: &T::AccountId) -> Vec<view::UnbondingView> {
        let mut views: Vec<view::UnbondingView> = Unbonding::<T>::iter_prefix((run, account))
            .flat_map(|(seat, chunks)| {
                chunks.into_iter().map(move |chunk| view::UnbondingView {
                    uid: seat.uid,
                    amount: chunk.amount,
                    until: chunk.until,
                })
            })
            .collect();
        views.sort_unstable_by_key(|view| (view.until, view.uid, view.amount));
        views
    }
}
