//! Effects of pay, slashes and the end of a seat on its nominators.

use crate::{pallet::*, pool::nominators_part, *};
use frame::prelude::{fungible::Mutate as _, *};
use pallet_registry::{Ending, OnSeats, Pallet as Registry, Seat};
use protocol::{RunId, SeatId, Uid};

impl<T: Config> pallet_registry::Nominations<T::AccountId> for Pallet<T> {
    fn behind(run: RunId, uid: Uid) -> Balance {
        Self::pool(run, uid).map_or(0, |pool| pool.behind())
    }

    fn share_pay(
        run: RunId,
        seat: SeatId,
        own_stake: Balance,
        amount: Balance,
        payer: &T::AccountId,
    ) -> Balance {
        let (Some((id, mut pool)), Some(mut ledger)) = (Self::of_seat(run, seat), PoolLedger::<T>::get())
        else {
            return 0;
        };
        let uid = seat.uid;
        let commission = match pool.stage {
            Stage::Unbonding { commission, .. } => commission,
            Stage::Open | Stage::Spent => Self::commission(run, uid),
        };
        let part = nominators_part(amount, own_stake, pool.behind(), commission);
        let fits = pool.unclaimed.checked_add(part).is_some() && ledger.unclaimed.checked_add(part).is_some();
        // If the payer cannot pay, the seat keeps everything.
        if part == 0
            || !fits
            || T::Currency::transfer(payer, &Self::account(), part, Preservation::Preserve).is_err()
        {
            return 0;
        }
        pool.pay(part);
        ledger.unclaimed = ledger.unclaimed.saturating_add(part);
        Pools::<T>::insert(id, pool);
        PoolLedger::<T>::put(ledger);
        Self::deposit_event(Event::Shared { run, uid, amount: part });
        part
    }

    fn slash(run: RunId, seat: SeatId, share: Permille) -> Balance {
        let (Some((id, mut pool)), Some(mut ledger)) = (Self::of_seat(run, seat), PoolLedger::<T>::get())
        else {
            return 0;
        };
        let now = Registry::<T>::run(run).map_or(Window(0), |details| Self::now(&details));
        if pool.is_free(now) {
            return 0;
        }
        let uid = seat.uid;
        let amount = pool.slash(share);
        if amount == 0 {
            return 0;
        }
        ledger.nominated = ledger.nominated.saturating_sub(amount);
        T::Currency::burn_from(
            &Self::account(),
            amount,
            Preservation::Preserve,
            Precision::Exact,
            Fortitude::Polite,
        )
        .defensive_proof("the account holds all nominations")
        .ok();
        PoolLedger::<T>::put(ledger);
        Self::deposit_event(Event::Slashed { run, uid, amount });
        if pool.is_spent() {
            Self::close(id, pool, Stage::Spent, now);
        } else {
            Pools::<T>::insert(id, pool);
        }
        amount
    }
}

impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
    fn vacated(run: RunId, uid: Uid, _: &Seat<T::AccountId>, ending: Ending) -> Weight {
        let Ending { window, until } = ending;
        let commission = Commissions::<T>::take(run, uid).at(window);
        if let Some((id, pool)) = Self::current(run, uid) {
            Self::close(id, pool, Stage::Unbonding { until, commission }, until);
        }
        weight_info::vacated::<T>()
    }
}
