//! Pays out and clears a closed run's money (PROT-33).

use crate::{pallet::*, *};
use alloc::vec::Vec;
use frame::prelude::{
    fungible::{Inspect as _, Mutate as _},
    *,
};
use pallet_registry::{Cleared, ClosedRun, OnRunClosed, Pallet as Registry};
use protocol::RunId;

impl<T: Config> OnRunClosed for Pallet<T> {
    fn closed(_: RunId) {}

    /// Pays claimable pay to its accounts, and burns the rest of the treasury: the owner of a closed run receives none
    /// of the sponsors' money.
    fn clear(run: RunId, limit: u32) -> Cleared {
        let mut cleared = Cleared::default();
        let Some(ClosedRun { details, .. }) = Registry::<T>::closed_run(run) else {
            return cleared;
        };
        let earned: Vec<(Uid, Earnings)> = EarningsOf::<T>::iter_prefix(run).take(limit as usize).collect();
        cleared.count::<T>(earned.len() as u32);
        for (uid, earnings) in earned {
            EarningsOf::<T>::remove(run, uid);
            if let Some(seat) = Registry::<T>::seat(run, uid) {
                Self::pay_out(run, &seat.coldkey, earnings.claimable);
            }
        }
        let room = cleared.room(limit) as usize;
        let former: Vec<(T::AccountId, Balance)> = FormerPay::<T>::iter_prefix(run).take(room).collect();
        cleared.count::<T>(former.len() as u32);
        for (coldkey, amount) in former {
            FormerPay::<T>::remove(run, &coldkey);
            Self::pay_out(run, &coldkey, amount);
        }
        if cleared.room(limit) > 0 {
            cleared.count::<T>(PayoutOf::<T>::clear_prefix(run, cleared.room(limit), None).unique);
        }
        if cleared.room(limit) > 0 {
            cleared.count::<T>(History::<T>::clear_prefix(run, cleared.room(limit), None).unique);
        }
        if cleared.room(limit) > 0
            && let Some(books) = Treasuries::<T>::get(run)
        {
            Self::pay_out(run, &details.owner, books.owner_claimable);
            Treasuries::<T>::remove(run);
            LastPaid::<T>::remove(run);
            let account = Self::account(run);
            let left = T::Currency::balance(&account);
            let burnt = T::Currency::burn_from(
                &account,
                left,
                Preservation::Expendable,
                Precision::BestEffort,
                Fortitude::Polite,
            );
            Self::deposit_event(Event::TreasuryBurnt { run, amount: burnt.unwrap_or(0) });
            cleared.count::<T>(3);
        }
        cleared
    }
}

impl<T: Config> Pallet<T> {
    /// Pays `amount` to `to`. Returns to the treasury what would leave the account below the existential deposit.
    fn pay_out(run: RunId, to: &T::AccountId, amount: Balance) {
        if amount == 0 {
            return;
        }
        let paid = T::Currency::transfer(&Self::account(run), to, amount, Preservation::Preserve).is_ok();
        Treasuries::<T>::mutate_extant(run, |books| match paid {
            true => books.paid = books.paid.saturating_add(amount),
            false => books.treasury = books.treasury.saturating_add(amount),
        });
        if paid {
            Self::deposit_event(Event::FinalPay { run, to: to.clone(), amount });
        }
    }
}
