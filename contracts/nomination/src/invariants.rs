//! Invariants that hold at every block.

use crate::{pallet::*, *};
use alloc::collections::BTreeMap;
use frame::prelude::{fungible::Inspect as _, *};
use pallet_registry::Pallet as Registry;

/// Sums over the nominations of one pool.
#[derive(Default)]
struct Sums {
    /// All shares, including the unbonding ones.
    shares: u128,
    leaving: u128,
    claimable: Balance,
    nominators: u32,
}

impl<T: Config> Pallet<T> {
    /// Checks the invariants that hold at every block.
    ///
    /// # Errors
    /// Names the first violated invariant.
    pub fn check_invariants() -> Result<(), &'static str> {
        let mut sums = Self::nominations_by_pool()?;
        let (mut nominated, mut unclaimed): (Balance, Balance) = (0, 0);
        for (id, pool) in Pools::<T>::iter() {
            let sum = sums.remove(&id).ok_or("a pool has no nominator")?;
            Self::check_pool(id, &pool, &sum)?;
            nominated = nominated.checked_add(pool.value).ok_or("the pools' values overflow")?;
            unclaimed = unclaimed.checked_add(pool.unclaimed).ok_or("the pools' unclaimed pay overflows")?;
        }
        if PoolOf::<T>::iter_values()
            .chain(FormerPools::<T>::iter_values())
            .any(|id| !Pools::<T>::contains_key(id))
        {
            return Err("a seat's pool is missing");
        }
        Self::check_ledger(nominated, unclaimed)
    }

    fn nominations_by_pool() -> Result<BTreeMap<PoolId, Sums>, &'static str> {
        let mut sums = BTreeMap::<PoolId, Sums>::new();
        for ((run, _, uid), mut nomination) in Nominations::<T>::iter() {
            let pool = Pools::<T>::get(nomination.pool).ok_or("a nomination names no pool")?;
            ensure!((pool.run, pool.seat.uid) == (run, uid), "a nomination names the pool of another seat");
            Self::credit(&pool, &mut nomination);
            let sum = sums.entry(nomination.pool).or_default();
            let leaving = nomination
                .leaving
                .iter()
                .try_fold(0u128, |sum, leaving| sum.checked_add(leaving.shares))
                .ok_or("shares overflow")?;
            let add = |a: u128, b: u128| a.checked_add(b).ok_or("a pool's sums overflow");
            sum.leaving = add(sum.leaving, leaving)?;
            sum.shares = add(add(sum.shares, leaving)?, nomination.shares)?;
            sum.claimable = add(sum.claimable, nomination.claimable)?;
            sum.nominators = sum.nominators.saturating_add(1);
        }
        Ok(sums)
    }

    fn check_pool(id: PoolId, pool: &Pool, sum: &Sums) -> Result<(), &'static str> {
        if (sum.shares, sum.leaving, sum.nominators) != (pool.shares, pool.leaving, pool.nominators) {
            return Err("a pool's shares are not the sum of its nominators' shares");
        }
        ensure!(sum.nominators <= T::MaxNominators::get(), "a pool has too many nominators");
        ensure!(sum.claimable <= pool.unclaimed, "nominators may claim more than their pool holds");
        ensure!(pool.shares != 0 || pool.value == 0, "a pool without shares has a value");
        let counts = PoolOf::<T>::get(pool.run, pool.seat.uid) == Some(id);
        if counts != (pool.stage == Stage::Open) {
            return Err("a closed pool counts for its seat, or an open one does not");
        }
        let seat = Registry::<T>::seat(pool.run, pool.seat.uid);
        if counts && seat.is_none_or(|seat| seat.id(pool.seat.uid) != pool.seat) {
            return Err("a pool counts for a former seat");
        }
        let answers = FormerPools::<T>::get(pool.run, pool.seat) == Some(id);
        if answers != matches!(pool.stage, Stage::Unbonding { .. }) {
            return Err("an unbonding pool is not listed as a former seat's, or another one is");
        }
        ensure!(id < PoolCount::<T>::get(), "a pool's number is above the count of pools");
        Ok(())
    }

    fn check_ledger(nominated: Balance, unclaimed: Balance) -> Result<(), &'static str> {
        let Some(ledger) = PoolLedger::<T>::get() else {
            return if nominated == 0 { Ok(()) } else { Err("there are pools and no ledger") };
        };
        if (ledger.nominated, ledger.unclaimed) != (nominated, unclaimed) {
            return Err("the ledger is not the sum of the pools");
        }
        // Any account may transfer to this one, so it may hold more.
        let owed = nominated
            .checked_add(unclaimed)
            .and_then(|sum| sum.checked_add(ledger.dust))
            .and_then(|sum| sum.checked_add(T::Currency::minimum_balance()))
            .ok_or("the ledger overflows")?;
        if T::Currency::balance(&Self::account()) < owed {
            return Err("the account holds less than the ledger says");
        }
        Ok(())
    }
}
