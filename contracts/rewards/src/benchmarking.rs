//! Worst-case cost of each call and step (PROT-33). Runs and seats are written directly into the registry's storage,
//! so that only this pallet is measured.

use crate::{Call, Config, EarningsOf, FormerPay, History, Pallet, Payout, PayoutOf, Treasuries};
use alloc::vec::Vec;
use frame::benchmarking::prelude::{
    fungible::{Inspect as _, Mutate as _},
    *,
};
use pallet_registry::{
    Balance, Ending, Entry, OnSeats as _, Seat,
    benchmarking::{newcomer, put_run},
};
use protocol::{
    Role, RunId, RunParams, Terms, Uid, Window,
    params::{PayShares, Permille},
    view::SeatConsensus,
};

const RUN: RunId = RunId(0);

/// Emission large enough to pay every seat more than the existential deposit.
fn emission<T: Config>() -> Balance {
    T::Currency::minimum_balance().saturating_mul(1_000_000)
}

fn caller<T: Config>() -> T::AccountId {
    let who = whitelisted_caller::<T::AccountId>();
    let _ = T::Currency::mint_into(&who, emission::<T>().saturating_mul(1000));
    who
}

/// Creates a funded run of the caller, after epoch 0.
fn run<T: Config>() -> T::AccountId {
    let owner = caller::<T>();
    let shares = PayShares {
        miners: Permille(400),
        validators: Permille(400),
        owner: Permille(100),
        burn: Permille(100),
    };
    let terms = Terms { emission_per_epoch: emission::<T>(), shares, ..Terms::default() };
    let params = put_run::<T>(RUN, owner.clone(), terms);
    let opens = params.schedule.opens_at(Window(params.epoch_windows));
    System::<T>::set_block_number(opens.0.into());
    let funds = emission::<T>().saturating_mul(100);
    Pallet::<T>::fund(RawOrigin::Signed(owner.clone()).into(), RUN, funds).expect("a run, and funds");
    owner
}

/// Registers seats of the caller, with their shares in the consensus.
fn seats<T: Config>(role: Role, uids: core::ops::Range<u32>) -> Vec<(Uid, SeatConsensus)> {
    uids.map(|index| {
        let uid = Uid(index as u16);
        let seat = Seat { role, coldkey: whitelisted_caller(), stake: 1, ..newcomer::<T>(index) };
        pallet_registry::Rosters::<T>::mutate(RUN, |roster| {
            roster.bounded_resize(index as usize, None);
            let _ = roster.try_push(Some(Entry::from(&seat)));
        });
        pallet_registry::SeatsOf::<T>::insert(RUN, uid, seat);
        let share = |of: Role| if role == of { 1_000_000 } else { 0 };
        let (incentive, dividends) = (share(Role::Miner), share(Role::Validator));
        (uid, SeatConsensus { incentive, dividends, ..SeatConsensus::default() })
    })
    .collect()
}

/// Creates a run that has paid the caller's one seat, uid 0.
fn paid<T: Config>() -> T::AccountId {
    let owner = run::<T>();
    let consensus = seats::<T>(Role::Miner, 0..1);
    Pallet::<T>::pay_epoch(RUN, 0, RunParams::default().epoch_windows, &consensus, &[]);
    assert!(EarningsOf::<T>::get(RUN, Uid(0)).claimable > 0);
    owner
}

fn vacate<T: Config>() {
    let seat = pallet_registry::SeatsOf::<T>::take(RUN, Uid(0)).expect("uid 0 is taken");
    let ending = Ending { window: Window(10), until: Window(20) };
    Pallet::<T>::vacated(RUN, Uid(0), &seat, ending);
}

#[benchmarks]
mod benchmarks {
    use super::*;

    #[benchmark]
    fn fund() {
        let who = run::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(who), RUN, emission::<T>());

        assert_eq!(Pallet::<T>::treasury(RUN), emission::<T>() * 101);
    }

    /// Claims with the pay added to the stake.
    #[benchmark]
    fn claim() {
        let who = paid::<T>();
        PayoutOf::<T>::insert(RUN, Uid(0), Payout::Stake);

        #[extrinsic_call]
        _(RawOrigin::Signed(who), RUN, Uid(0));

        assert_eq!(EarningsOf::<T>::get(RUN, Uid(0)).claimable, 0);
    }

    #[benchmark]
    fn claim_owner() {
        let owner = paid::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN);

        assert_eq!(Treasuries::<T>::get(RUN).map(|books| books.owner_claimable), Some(0));
    }

    #[benchmark]
    fn claim_former() {
        let who = paid::<T>();
        vacate::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(who.clone()), RUN);

        assert!(!FormerPay::<T>::contains_key(RUN, &who));
    }

    #[benchmark]
    fn set_payout() {
        let who = paid::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(who), RUN, Uid(0), Payout::Stake);

        assert!(Pallet::<T>::pays_into_stake(RUN, Uid(0)));
    }

    /// One seat in seventeen is a validator's, as with 64 validators and 1,024 miners.
    #[benchmark]
    fn pay_epoch(s: Linear<0, { <T as pallet_registry::Config>::MaxSeats::get() }>) {
        run::<T>();
        let validators = s / 17;
        let mut consensus = seats::<T>(Role::Validator, 0..validators);
        consensus.extend(seats::<T>(Role::Miner, validators..s));

        #[block]
        {
            Pallet::<T>::pay_epoch(RUN, 0, RunParams::default().epoch_windows, &consensus, &[]);
        }

        assert_eq!(History::<T>::get(RUN, 0).map(|record| record.slips.len()), Some(s as usize));
    }

    #[benchmark]
    fn vacated() {
        let who = paid::<T>();
        PayoutOf::<T>::insert(RUN, Uid(0), Payout::Stake);

        #[block]
        {
            vacate::<T>();
        }

        assert!(FormerPay::<T>::contains_key(RUN, &who));
    }

    impl_benchmark_test_suite!(Pallet, crate::tests::chain(), crate::tests::Test);
}
