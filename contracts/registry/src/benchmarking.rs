//! Worst-case cost of each call: the longest lists and endpoints, with every seat a candidate (PROT-33).

use crate::*;
use alloc::{vec, vec::Vec};
use frame::{
    benchmarking::prelude::*,
    prelude::fungible::{Mutate as _, MutateHold as _},
};
use protocol::{Schedule, view::PendingTerms};

const RUN: RunId = RunId(0);
const STAKE: Balance = 1_000_000_000_000;
/// Covers any deposit and a thousand stakes.
const FUNDS: Balance = STAKE * 1_000_000;

fn rich<T: Config>(name: &'static str) -> T::AccountId {
    let who: T::AccountId = account(name, 0, 0);
    T::Currency::set_balance(&who, FUNDS);
    who
}

fn hotkey<T: Config>(index: u32) -> T::AccountId {
    account("hotkey", index, 0)
}

/// Returns an unused hotkey and its consent to hold a seat for `coldkey`.
fn proven<T: Config>(coldkey: &T::AccountId) -> (T::AccountId, Signature) {
    T::Hotkey::prove(0, &Pallet::<T>::genesis(), RUN, coldkey)
}

fn signed<T: Config>(who: &T::AccountId) -> T::RuntimeOrigin {
    RawOrigin::Signed(who.clone()).into()
}

fn url() -> Url {
    let mut url = b"http://".to_vec();
    url.resize(URL_BYTES_MAX as usize, b'a');
    BoundedVec::truncate_from(url)
}

/// Terms without immunity, under which stake unbonds at once.
fn terms(miners: u32) -> Terms {
    Terms {
        miner_seats_max: miners.max(1) as u16,
        validator_seats_max: 1,
        miner_stake_min: 1,
        immunity_windows: 0,
        unbonding_windows: 0,
        seat_price_min: 1,
        ..Terms::default()
    }
}

fn params() -> RunParams {
    RunParams {
        schedule: Schedule { start: Block(10), ..RunParams::default().schedule },
        ..RunParams::default()
    }
}

/// Creates run 0 with `miners` seats of one coldkey and no free seat. Returns the coldkey.
fn full_run<T: Config>(miners: u32) -> Result<T::AccountId, BenchmarkError> {
    create::<T>(miners)?;
    let coldkey = rich::<T>("coldkey");
    T::Currency::hold(&HoldReason::Stake.into(), &coldkey, STAKE * Balance::from(miners))?;
    let mut roster = Vec::new();
    for index in 0..miners {
        let seat = newcomer::<T>(index);
        frame_system::Pallet::<T>::inc_sufficients(&seat.hotkey);
        Hotkeys::<T>::insert(RUN, &seat.hotkey, Uid(index as u16));
        roster.push(Some(Entry::from(&seat)));
        SeatsOf::<T>::insert(RUN, Uid(index as u16), seat);
    }
    Rosters::<T>::insert(RUN, BoundedVec::<_, T::MaxSeats>::truncate_from(roster));
    Ok(coldkey)
}

fn create<T: Config>(miners: u32) -> Result<T::AccountId, BenchmarkError> {
    frame_system::Pallet::<T>::set_block_number(1u32.into());
    FloorsOf::<T>::put(Floors::NONE);
    let owner = rich::<T>("owner");
    let digest = Digest([1; 32]);
    Pallet::<T>::create_run(signed::<T>(&owner), params(), terms(miners), digest, digest, digest, url())?;
    Ok(owner)
}

/// Writes a run that starts at block 1 into the storage, for benchmarks of other pallets.
pub fn put_run<T: Config>(run: RunId, owner: T::AccountId, terms: Terms) -> RunParams {
    let schedule = Schedule { start: Block(1), ..RunParams::default().schedule };
    let params = RunParams { schedule, ..RunParams::default() };
    let (spec, manifest, theta0) = Default::default();
    let (origin, deposit, stopped) = (url(), 0, false);
    let details = Run { owner, params, terms, spec, manifest, theta0, origin, deposit, stopped };
    Runs::<T>::insert(run, details);
    LiveRuns::<T>::put(1);
    params
}

/// Returns the seat of a present or waiting miner.
pub fn newcomer<T: Config>(index: u32) -> Seat<T::AccountId> {
    Seat {
        registered_at: Block(1),
        since: Window(0),
        role: Role::Miner,
        hotkey: hotkey::<T>(index),
        coldkey: account("coldkey", 0, 0),
        endpoint: url(),
        endpoint_set_at: None,
        stake: STAKE,
    }
}

/// Fills the list of changes except for one entry, without a change of any seat.
fn almost_full_queue<T: Config>() -> ChangesOf<T> {
    let waiting = 1..T::MaxChanges::get();
    let change = |index: u32| {
        let uid = Uid(u16::MAX.saturating_sub(index as u16));
        (uid, Change::Replaced(newcomer::<T>(100_000 + index)))
    };
    BoundedVec::truncate_from(waiting.map(change).collect())
}

fn chunks<T: Config>(count: u32) -> BoundedVec<Chunk, T::MaxUnbonding> {
    let chunk = |index| Chunk { amount: STAKE, until: Window(1 + index) };
    BoundedVec::truncate_from((0..count).map(chunk).collect())
}

/// Records and holds unbonding stake of a seat in all but `spare` chunks.
fn unbond<T: Config>(coldkey: &T::AccountId, seat: SeatId, spare: u32) -> Result<(), BenchmarkError> {
    let chunks = chunks::<T>(T::MaxUnbonding::get() - spare);
    T::Currency::hold(&HoldReason::Stake.into(), coldkey, STAKE * chunks.len() as Balance)?;
    Unbonding::<T>::insert((RUN, coldkey, seat), chunks);
    Ok(())
}

/// Moves to the first block of a window in which all stake has unbonded.
fn late<T: Config>() {
    let late = params().schedule.opens_at(Window(1_000));
    frame_system::Pallet::<T>::set_block_number(late.0.into());
}

#[benchmarks]
mod benchmarks {
    use super::*;

    #[benchmark]
    fn create_run() {
        frame_system::Pallet::<T>::set_block_number(1u32.into());
        FloorsOf::<T>::put(Floors::NONE);
        let owner = rich::<T>("owner");
        let digest = Digest([1; 32]);

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), params(), terms(1), digest, digest, digest, url());

        assert!(Runs::<T>::contains_key(RUN));
    }

    #[benchmark]
    fn register() -> Result<(), BenchmarkError> {
        let seats = T::MaxSeats::get() - 2;
        let coldkey = full_run::<T>(seats)?;
        Runs::<T>::mutate_extant(RUN, |run| run.terms = terms(seats + 1));
        Changes::<T>::insert(RUN, almost_full_queue::<T>());
        let (hotkey, proof) = proven::<T>(&coldkey);

        #[extrinsic_call]
        _(RawOrigin::Signed(coldkey), RUN, Role::Miner, hotkey, url(), STAKE, Balance::MAX, proof);

        assert_eq!(Pallet::<T>::taken(RUN, Role::Miner).0, (seats + 1) as u16);
        Ok(())
    }

    /// All `n` seats have equal pay and can be replaced.
    #[benchmark]
    fn replace(n: Linear<1, { T::MaxSeats::get() - 1 }>) -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(n)?;
        Changes::<T>::insert(RUN, almost_full_queue::<T>());
        let (hotkey, proof) = proven::<T>(&coldkey);
        let signer = RawOrigin::Signed(coldkey);

        #[extrinsic_call]
        Pallet::<T>::register(signer, RUN, Role::Miner, hotkey, url(), STAKE, Balance::MAX, proof);

        assert_eq!(Changes::<T>::get(RUN).len() as u32, T::MaxChanges::get());
        Ok(())
    }

    #[benchmark]
    fn set_endpoint() -> Result<(), BenchmarkError> {
        full_run::<T>(1)?;

        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(0)), RUN, url());

        assert!(SeatsOf::<T>::get(RUN, Uid(0)).is_some_and(|seat| seat.endpoint_set_at.is_some()));
        Ok(())
    }

    #[benchmark]
    fn add_stake() -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(1)?;

        #[extrinsic_call]
        _(RawOrigin::Signed(coldkey), RUN, Uid(0), STAKE);

        assert!(SeatsOf::<T>::get(RUN, Uid(0)).is_some_and(|seat| seat.stake == 2 * STAKE));
        Ok(())
    }

    #[benchmark]
    fn unstake() -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(1)?;
        unbond::<T>(&coldkey, newcomer::<T>(0).id(Uid(0)), 2)?;

        #[extrinsic_call]
        _(RawOrigin::Signed(coldkey), RUN, Uid(0), STAKE / 2);

        assert!(SeatsOf::<T>::get(RUN, Uid(0)).is_some_and(|seat| seat.stake == STAKE / 2));
        Ok(())
    }

    #[benchmark]
    fn leave() -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(1)?;
        Changes::<T>::insert(RUN, almost_full_queue::<T>());

        #[extrinsic_call]
        _(RawOrigin::Signed(coldkey), RUN, Uid(0));

        assert_eq!(Changes::<T>::get(RUN).len() as u32, T::MaxChanges::get());
        Ok(())
    }

    /// All unbonding stake of `n` former seats is free.
    #[benchmark]
    fn withdraw(n: Linear<1, { T::MaxChanges::get() }>) -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(1)?;
        for index in 0..n {
            let seat = SeatId { uid: Uid(index as u16), registered_at: Block(0) };
            unbond::<T>(&coldkey, seat, 0)?;
            FormerSeats::<T>::insert(RUN, seat, &coldkey);
        }
        late::<T>();

        #[extrinsic_call]
        _(RawOrigin::Signed(coldkey.clone()), RUN);

        assert_eq!(Pallet::<T>::unbonding(RUN, &coldkey), vec![]);
        Ok(())
    }

    #[benchmark]
    fn rotate_hotkey() -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(1)?;
        Changes::<T>::insert(RUN, almost_full_queue::<T>());
        let (hotkey, proof) = proven::<T>(&coldkey);

        #[extrinsic_call]
        _(RawOrigin::Signed(coldkey), RUN, Uid(0), hotkey, proof);

        assert_eq!(Changes::<T>::get(RUN).len() as u32, T::MaxChanges::get());
        Ok(())
    }

    #[benchmark]
    fn set_terms() -> Result<(), BenchmarkError> {
        let owner = create::<T>(1)?;

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN, terms(1));

        assert_eq!(PendingChanges::<T>::get(RUN).terms.map(|pending| pending.terms), Some(terms(1)));
        Ok(())
    }

    #[benchmark]
    fn cancel_terms() -> Result<(), BenchmarkError> {
        let owner = create::<T>(1)?;
        Pallet::<T>::set_terms(signed::<T>(&owner), RUN, terms(1))?;

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN);

        assert_eq!(PendingChanges::<T>::get(RUN).terms, None);
        Ok(())
    }

    #[benchmark]
    fn set_stopped() -> Result<(), BenchmarkError> {
        let owner = create::<T>(1)?;

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN, true);

        assert!(Pallet::<T>::is_stopped(RUN));
        Ok(())
    }

    #[benchmark]
    fn offer_run() -> Result<(), BenchmarkError> {
        let owner = create::<T>(1)?;
        let to: T::AccountId = account("heir", 0, 0);

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN, to.clone());

        assert_eq!(Offers::<T>::get(RUN), Some(to));
        Ok(())
    }

    #[benchmark]
    fn accept_run() -> Result<(), BenchmarkError> {
        let owner = create::<T>(1)?;
        let to = rich::<T>("heir");
        Pallet::<T>::offer_run(signed::<T>(&owner), RUN, to.clone())?;

        #[extrinsic_call]
        _(RawOrigin::Signed(to.clone()), RUN);

        assert!(Runs::<T>::get(RUN).is_some_and(|run| run.owner == to));
        Ok(())
    }

    /// A run that has not started.
    #[benchmark]
    fn close_run() -> Result<(), BenchmarkError> {
        let owner = create::<T>(1)?;

        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN);

        assert!(ClosedRuns::<T>::contains_key(RUN));
        Ok(())
    }

    /// `n` seats of a full run are replaced, each with unbonding stake; new terms take effect too.
    #[benchmark]
    fn window_opens(n: Linear<0, { T::MaxChanges::get() }>) -> Result<(), BenchmarkError> {
        let seats = T::MaxSeats::get() - 1;
        let coldkey = full_run::<T>(seats)?;
        let mut changes = Vec::new();
        for index in 0..n {
            let uid = Uid(index as u16);
            unbond::<T>(&coldkey, newcomer::<T>(0).id(uid), 1)?;
            changes.push((uid, Change::Replaced(newcomer::<T>(seats + index))));
        }
        if n > 0 {
            Changes::<T>::insert(RUN, ChangesOf::<T>::truncate_from(changes));
        }
        PendingChanges::<T>::insert(
            RUN,
            Waiting {
                terms: Some(PendingTerms { terms: terms(seats), from: Window(0) }),
                stopped: Some(true),
            },
        );
        frame_system::Pallet::<T>::set_block_number(params().schedule.start.0.into());

        #[block]
        {
            Pallet::<T>::window_opens(RUN, Window(0));
        }

        assert_eq!(FormerHotkeys::<T>::iter().count() as u32, n);
        assert!(Runs::<T>::get(RUN).is_some_and(|run| run.stopped));
        Ok(())
    }

    /// Stake and unbonding stake are slashed, and the reporter is paid.
    #[benchmark]
    fn slash() -> Result<(), BenchmarkError> {
        let coldkey = full_run::<T>(1)?;
        let reporter = rich::<T>("reporter");
        let seat = newcomer::<T>(0).id(Uid(0));
        unbond::<T>(&coldkey, seat, 0)?;
        let taken;

        #[block]
        {
            taken = Pallet::<T>::slash(RUN, seat, Permille(500), Some(&reporter));
        }

        assert_eq!(taken, STAKE / 2 * (1 + Balance::from(T::MaxUnbonding::get())));
        Ok(())
    }

    impl_benchmark_test_suite!(Pallet, crate::mock::empty_chain(), crate::mock::Test);
}
