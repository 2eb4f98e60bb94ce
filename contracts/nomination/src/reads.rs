//! Reads for the runtime API and other pallets.

use crate::{pallet::*, *};
use alloc::{collections::BTreeMap, vec::Vec};
use frame::prelude::*;
use pallet_registry::Pallet as Registry;
use protocol::{
    RunId, Uid,
    view::{NominationView, UnbondingView},
};

impl<T: Config> Pallet<T> {
    /// Returns the account that holds nominations and their pay.
    pub fn account() -> T::AccountId {
        T::PalletId::get().into_account_truncating()
    }

    /// Returns the pool of a seat; `None` without nominations.
    pub fn pool(run: RunId, uid: Uid) -> Option<Pool> {
        Self::current(run, uid).map(|(_, pool)| pool)
    }

    /// Returns the present commission of a seat.
    pub fn commission(run: RunId, uid: Uid) -> Permille {
        let now = Registry::<T>::run(run).map_or(Window(0), |details| Self::now(&details));
        Commissions::<T>::get(run, uid).at(now)
    }

    /// Returns a waiting higher commission, and the window from which it applies.
    pub fn commission_raise(run: RunId, uid: Uid) -> Option<(Permille, Window)> {
        let now = Registry::<T>::run(run).map_or(Window(0), |details| Self::now(&details));
        Commissions::<T>::get(run, uid).raise.filter(|(_, from)| now < *from)
    }

    /// Returns the nominations of an account in a run, in uid order. Those of a former holder are all unbonding.
    pub fn nominations_of(run: RunId, who: &T::AccountId) -> Vec<NominationView> {
        let now = Registry::<T>::run(run).map_or(Window(0), |details| Self::now(&details));
        let mut views: Vec<_> = Nominations::<T>::iter_prefix((run, who))
            .filter_map(|(uid, mut nomination)| {
                let pool = Pools::<T>::get(nomination.pool)?;
                Self::credit(&pool, &mut nomination);
                let view = |shares, until| UnbondingView { uid, amount: pool.worth(shares), until };
                let rest = match pool.stage {
                    Stage::Open => None,
                    Stage::Unbonding { until, .. } => Some((nomination.shares, until)),
                    Stage::Spent => Some((nomination.shares, now)),
                };
                let amount = if rest.is_some() { 0 } else { pool.worth(nomination.shares) };
                let leaving = nomination
                    .leaving
                    .iter()
                    .map(|leaving| (leaving.shares, pool.frees(leaving.until, now)))
                    .chain(rest.filter(|(shares, _)| *shares > 0));
                let mut unbonding: Vec<UnbondingView> = Vec::new();
                // One entry per window.
                let mut by_window = BTreeMap::<Window, u128>::new();
                for (shares, until) in leaving {
                    let sum = by_window.entry(until).or_default();
                    *sum = sum.saturating_add(shares);
                }
                unbonding.extend(by_window.into_iter().map(|(until, shares)| view(shares, until)));
                Some(NominationView { validator: uid, amount, unbonding, claimable: nomination.claimable })
            })
            .collect();
        views.sort_unstable_by_key(|view| view.validator);
        views
    }
}
