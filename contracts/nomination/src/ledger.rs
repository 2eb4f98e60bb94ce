//! Reads and writes nominations, pools and the ledger.

use crate::{pallet::*, *};
use frame::prelude::{fungible::Mutate as _, *};
use pallet_registry::{Pallet as Registry, Run};
use protocol::{RunId, SeatId, Uid};

impl<T: Config> Pallet<T> {
    /// Returns the open window; window 0 before the run starts.
    pub(crate) fn now(details: &Run<T::AccountId>) -> Window {
        Registry::<T>::window_now(details).unwrap_or_default()
    }

    /// Returns the window in which a nomination withdrawn now is free. It still counts in the open window, so the
    /// unbonding time begins with the next one.
    pub(crate) fn unbonded(details: &Run<T::AccountId>) -> Window {
        Window(Registry::<T>::opens_next(details).0.saturating_add(details.terms.unbonding_windows))
    }

    /// Returns the pool that counts for a seat.
    pub(crate) fn current(run: RunId, uid: Uid) -> Option<(PoolId, Pool)> {
        let id = PoolOf::<T>::get(run, uid)?;
        Some((id, Pools::<T>::get(id)?))
    }

    /// Returns a nomination and its pool.
    pub(crate) fn nomination(
        run: RunId,
        who: &T::AccountId,
        uid: Uid,
    ) -> Result<(NominationOf<T>, Pool), Error<T>> {
        let nomination = Nominations::<T>::get((run, who, uid)).ok_or(Error::<T>::NotANominator)?;
        let pool = Pools::<T>::get(nomination.pool).ok_or(Error::<T>::NotANominator)?;
        Ok((nomination, pool))
    }

    /// Credits a nomination with its shares' pay since the last credit. Must precede any change of its shares.
    pub(crate) fn credit(pool: &Pool, nomination: &mut NominationOf<T>) {
        let earned = pool.earned(nomination.shares, nomination.mark);
        nomination.claimable = nomination.claimable.saturating_add(earned);
        nomination.mark = pool.pay_per_share;
    }

    /// Returns the pool of a present or former seat.
    pub(crate) fn of_seat(run: RunId, seat: SeatId) -> Option<(PoolId, Pool)> {
        let present = Self::current(run, seat.uid).filter(|(_, pool)| pool.seat == seat);
        present.or_else(|| {
            let id = FormerPools::<T>::get(run, seat)?;
            Some((id, Pools::<T>::get(id)?))
        })
    }

    /// Removes a pool from the lists by seat.
    pub(crate) fn unlist(pool: &Pool) {
        match pool.stage {
            Stage::Open => PoolOf::<T>::remove(pool.run, pool.seat.uid),
            Stage::Unbonding { .. } => FormerPools::<T>::remove(pool.run, pool.seat),
            Stage::Spent => {}
        }
    }

    /// Pays `amount` from the pallet's account.
    pub(crate) fn pay_out(to: &T::AccountId, amount: Balance) -> DispatchResult {
        if amount > 0 {
            T::Currency::transfer(&Self::account(), to, amount, Preservation::Preserve)
                .map_err(|_| Error::<T>::CannotPay)?;
        }
        Ok(())
    }

    /// Stores a nomination, its pool and the ledger; removes an empty nomination or pool.
    pub(crate) fn put(
        run: RunId,
        who: &T::AccountId,
        uid: Uid,
        nomination: NominationOf<T>,
        mut pool: Pool,
        mut ledger: Ledger,
    ) {
        let id = nomination.pool;
        if nomination.shares == 0 && nomination.claimable == 0 && nomination.leaving.is_empty() {
            Nominations::<T>::remove((run, who, uid));
            pool.nominators = pool.nominators.saturating_sub(1);
        } else {
            Nominations::<T>::insert((run, who, uid), nomination);
        }
        if pool.nominators == 0 {
            Pools::<T>::remove(id);
            Self::unlist(&pool);
            ledger.nominated = ledger.nominated.saturating_sub(pool.value);
            ledger.unclaimed = ledger.unclaimed.saturating_sub(pool.unclaimed);
            ledger.dust = ledger.dust.saturating_add(pool.value).saturating_add(pool.unclaimed);
        } else {
            Pools::<T>::insert(id, pool);
        }
        PoolLedger::<T>::put(ledger);
    }

    /// Closes a pool: it no longer counts for its seat, and can be withdrawn from window `until`.
    pub(crate) fn close(id: PoolId, mut pool: Pool, stage: Stage, until: Window) {
        let Pool { run, seat, value, .. } = pool;
        Self::unlist(&pool);
        pool.stage = stage;
        if matches!(stage, Stage::Unbonding { .. }) {
            FormerPools::<T>::insert(run, seat, id);
        }
        Pools::<T>::insert(id, pool);
        Self::deposit_event(Event::PoolClosed { run, uid: seat.uid, value, until });
    }
}
