//! Pays out and clears a closed run's nominations (PROT-33).

use crate::{pallet::*, *};
use alloc::vec::Vec;
use frame::prelude::*;
use pallet_registry::{Cleared, OnRunClosed};
use protocol::RunId;

impl<T: Config> OnRunClosed for Pallet<T> {
    fn closed(_: RunId) {}

    /// Pays each nominator its shares and its pay. Amounts that cannot reach an account stay as dust.
    fn clear(run: RunId, limit: u32) -> Cleared {
        let mut cleared = Cleared::default();
        let nominations: Vec<_> = Nominations::<T>::iter_prefix((run,)).take(limit as usize).collect();
        cleared.count::<T>(nominations.len() as u32);
        for ((who, uid), mut nomination) in nominations {
            let Some(mut pool) = Pools::<T>::get(nomination.pool) else {
                defensive!("a nomination has a pool");
                Nominations::<T>::remove((run, &who, uid));
                continue;
            };
            Self::credit(&pool, &mut nomination);
            let leaving = nomination.leaving.iter().fold(0u128, |sum, part| sum.saturating_add(part.shares));
            let value = pool.release(nomination.shares, leaving);
            let pay = nomination.claimable;
            pool.unclaimed = pool.unclaimed.saturating_sub(pay);
            let mut ledger = PoolLedger::<T>::get().unwrap_or_default();
            ledger.nominated = ledger.nominated.saturating_sub(value);
            ledger.unclaimed = ledger.unclaimed.saturating_sub(pay);
            let amount = value.saturating_add(pay);
            if Self::pay_out(&who, amount).is_err() {
                ledger.dust = ledger.dust.saturating_add(amount);
            }
            nomination.shares = 0;
            nomination.claimable = 0;
            nomination.leaving = BoundedVec::new();
            Self::put(run, &who, uid, nomination, pool, ledger);
            Self::deposit_event(Event::Withdrawn { run, uid, who, amount });
        }
        if cleared.room(limit) > 0 {
            cleared.count::<T>(Commissions::<T>::clear_prefix(run, cleared.room(limit), None).unique);
        }
        cleared
    }
}
