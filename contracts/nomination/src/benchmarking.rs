//! Worst-case cost of each call and step (PROT-33). Runs and seats are written directly into the registry's storage,
//! so that only this pallet is measured.

use crate::{Call, Config, FormerPools, NominationOf, Nominations, Pallet, PoolLedger, PoolOf};
use frame::benchmarking::prelude::{
    fungible::{Inspect as _, Mutate as _},
    *,
};
use pallet_registry::{
    Balance, Ending, Nominations as _, OnSeats as _, Seat,
    benchmarking::{newcomer, put_run},
};
use protocol::{Role, RunId, RunParams, Terms, Uid, Window, params::Permille};

const RUN: RunId = RunId(0);
const UID: Uid = Uid(0);
const ENDING: Ending = Ending { window: Window(100), until: Window(300) };

fn validator<T: Config>() -> (Seat<T::AccountId>, RunParams) {
    let params = put_run::<T>(RUN, whitelisted_caller(), Terms::default());
    let (role, coldkey, stake) = (Role::Validator, whitelisted_caller(), stake::<T>());
    let seat = Seat { role, coldkey, stake, ..newcomer::<T>(0) };
    pallet_registry::SeatsOf::<T>::insert(RUN, UID, &seat);
    at_window::<T>(&params, Window(0));
    (seat, params)
}

fn at_window<T: frame_system::Config>(params: &RunParams, window: Window) {
    System::<T>::set_block_number(params.schedule.opens_at(window).0.into());
}

fn stake<T: Config>() -> Balance {
    T::MinNomination::get().max(T::Currency::minimum_balance()).saturating_mul(1000)
}

fn rich<T: Config>(who: &T::AccountId) {
    let _ = T::Currency::mint_into(who, stake::<T>().saturating_mul(1000));
}

/// Creates a nominator with the maximum number of unbonding amounts less `free`, each of another window.
fn nominated<T: Config>(params: &RunParams, free: u32) -> T::AccountId {
    let who = whitelisted_caller::<T::AccountId>();
    rich::<T>(&who);
    let origin = || RawOrigin::Signed(who.clone()).into();
    Pallet::<T>::nominate(origin(), RUN, UID, stake::<T>().saturating_mul(100)).expect("a seat, and funds");
    for window in free..<T as Config>::MaxUnbonding::get() {
        at_window::<T>(params, Window(window));
        Pallet::<T>::unnominate(origin(), RUN, UID, 1).expect("it has much more");
    }
    who
}

/// Ends the seat, and moves to the window in which its nominations have unbonded.
fn vacate<T: Config>(params: &RunParams, seat: &Seat<T::AccountId>) {
    Pallet::<T>::vacated(RUN, UID, seat, ENDING);
    at_window::<T>(params, ENDING.until);
}

fn nomination<T: Config>(who: &T::AccountId) -> Option<NominationOf<T>> {
    Nominations::<T>::get((RUN, who, UID))
}

#[benchmarks]
mod benchmarks {
    use super::*;

    /// The first nomination: ledger, pool and nomination are new.
    #[benchmark]
    fn nominate() {
        validator::<T>();
        let who = whitelisted_caller::<T::AccountId>();
        rich::<T>(&who);
        let amount = stake::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(who.clone()), RUN, UID, amount);

        assert_eq!(Pallet::<T>::behind(RUN, UID), amount);
    }

    #[benchmark]
    fn unnominate() {
        let (_, params) = validator::<T>();
        let who = nominated::<T>(&params, 1);
        at_window::<T>(&params, Window(<T as Config>::MaxUnbonding::get()));

        #[extrinsic_call]
        _(RawOrigin::Signed(who.clone()), RUN, UID, 1);

        let leaving = nomination::<T>(&who).map(|nomination| nomination.leaving.len() as u32);
        assert_eq!(leaving, Some(<T as Config>::MaxUnbonding::get()));
    }

    /// The last nominator leaves a closed pool.
    #[benchmark]
    fn withdraw() {
        let (seat, params) = validator::<T>();
        let who = nominated::<T>(&params, 0);
        vacate::<T>(&params, &seat);

        #[extrinsic_call]
        _(RawOrigin::Signed(who.clone()), RUN, UID);

        assert!(nomination::<T>(&who).is_none());
    }

    /// The last nominator claims, and the pool is removed.
    #[benchmark]
    fn claim() {
        let (seat, params) = validator::<T>();
        let who = nominated::<T>(&params, 0);
        let payer = account("payer", 0, 0);
        rich::<T>(&payer);
        Pallet::<T>::share_pay(RUN, seat.id(UID), 0, stake::<T>(), &payer);
        vacate::<T>(&params, &seat);
        Pallet::<T>::withdraw(RawOrigin::Signed(who.clone()).into(), RUN, UID).expect("the seat is vacated");

        #[extrinsic_call]
        _(RawOrigin::Signed(who.clone()), RUN, UID);

        assert!(nomination::<T>(&who).is_none());
    }

    #[benchmark]
    fn set_commission() {
        let (seat, _) = validator::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(seat.coldkey), RUN, UID, Permille(100));

        assert_eq!(Pallet::<T>::commission(RUN, UID), Permille(0));
    }

    #[benchmark]
    fn share_pay() {
        let (seat, params) = validator::<T>();
        nominated::<T>(&params, 0);
        let payer: T::AccountId = account("payer", 0, 0);
        rich::<T>(&payer);
        let shared;

        #[block]
        {
            shared = Pallet::<T>::share_pay(RUN, seat.id(UID), stake::<T>(), stake::<T>(), &payer);
        }

        assert!(shared > 0);
        assert_eq!(PoolLedger::<T>::get().map(|ledger| ledger.unclaimed), Some(shared));
    }

    #[benchmark]
    fn slash() {
        let (seat, params) = validator::<T>();
        nominated::<T>(&params, 0);
        let taken;

        #[block]
        {
            taken = Pallet::<T>::slash(RUN, seat.id(UID), Permille(1000));
        }

        assert!(taken > 0);
        assert!(!PoolOf::<T>::contains_key(RUN, UID));
    }

    #[benchmark]
    fn vacated() {
        let (seat, params) = validator::<T>();
        nominated::<T>(&params, 0);

        #[block]
        {
            Pallet::<T>::vacated(RUN, UID, &seat, ENDING);
        }

        assert!(FormerPools::<T>::contains_key(RUN, seat.id(UID)));
    }

    impl_benchmark_test_suite!(Pallet, crate::tests::chain(), crate::tests::Test);
}
