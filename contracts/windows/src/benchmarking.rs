//! Worst-case cost of each call and task: the largest run, in which every seat participates (PROT-33).

use crate::*;
use ed25519_dalek::SigningKey;
use frame::{benchmarking::prelude::*, prelude::fungible::Mutate as _};
use pallet_registry::{Balance, Pallet as Registry, Url};
use protocol::{
    Hotkey, Role, RunParams, Schedule, Terms,
    identity::Signer,
    reveal,
    select::Selected,
    statement::{Equivocation, SignedStatement, Statement, StatementKind},
    view::{Outcome, Verdict, Vote},
};

const RUN: RunId = RunId(0);
const NOW: Window = Window(0);
const START: u32 = 10;
const STAKE: Balance = 1_000_000_000_000;
const FUNDS: Balance = STAKE * 1_000_000;
/// Number of validators of the largest run; every other seat is a miner's.
const VALIDATORS: u32 = 64;
const SALT: [u8; 32] = [9; 32];

const SCHEDULE: Schedule = Schedule {
    start: Block(START),
    blocks_per_window: 60,
    commit_by: 10,
    reveal_by: 20,
    attest_by: 30,
    vote_by: 45,
};
/// First block of each phase, with a reveal phase of five blocks.
const ATTEST: u32 = 11;
const REVEAL_ATTESTATION: u32 = 31;
const VOTE: u32 = 36;
const REVEAL_VOTE: u32 = 46;

fn params(hidden_blocks: u32) -> RunParams {
    RunParams { schedule: SCHEDULE, hidden_blocks, newcomer_windows: 0, ..RunParams::default() }
}

fn terms(miners: u32) -> Terms {
    Terms {
        active_set_max: VALIDATORS as u16,
        miner_seats_max: miners.max(1) as u16,
        validator_seats_max: VALIDATORS as u16,
        miner_stake_min: 1,
        validator_stake_min: STAKE,
        seat_price_min: 0,
        ..Terms::default()
    }
}

fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

fn ballot(update: u8) -> Vote {
    Vote { update: digest(update), state_root: None }
}

/// Returns the key of `uid`. Miners come first, then validators.
fn public(uid: u32) -> Hotkey {
    Hotkey(key(uid).verifying_key().to_bytes())
}

fn key(uid: u32) -> SigningKey {
    let mut secret = [7; 32];
    secret[..4].copy_from_slice(&uid.to_le_bytes());
    SigningKey::from_bytes(&secret)
}

fn hotkey<T: Config>(uid: u32) -> T::AccountId {
    public(uid).0.into()
}

fn uid(index: u32) -> Uid {
    Uid(index as u16)
}

fn miners_max<T: Config>() -> u32 {
    T::MaxSeats::get().saturating_sub(VALIDATORS)
}

fn go_to<T: Config>(offset: u32) {
    frame_system::Pallet::<T>::set_block_number((START + offset).into());
}

/// Creates a run with these seats, at the block before it starts.
fn create<T: Config>(miners: u32, validators: u32, hidden_blocks: u32) -> Result<(), BenchmarkError> {
    frame_system::Pallet::<T>::set_block_number(1u32.into());
    let owner: T::AccountId = account("owner", 0, 0);
    T::Currency::set_balance(&owner, FUNDS);
    let url = || Url::truncate_from(b"http://10.0.0.1/seat".to_vec());
    let signed = || RawOrigin::Signed(owner.clone()).into();
    let (params, terms, digest) = (params(hidden_blocks), terms(miners), digest(1));
    pallet_registry::FloorsOf::<T>::put(protocol::params::Floors::NONE);
    Registry::<T>::create_run(signed(), params, terms, digest, digest, digest, url())?;
    for index in 0..miners + validators {
        // The price of a seat is not measured here.
        let _ = pallet_registry::Prices::<T>::clear(u32::MAX, None);
        let role = if index < miners { Role::Miner } else { Role::Validator };
        let (hotkey, signer) = (hotkey::<T>(index), Signer::new(key(index), Registry::<T>::genesis()));
        let proof = signer.prove_possession(RUN, &owner.clone().into());
        Registry::<T>::register(signed(), RUN, role, hotkey, url(), STAKE, Balance::MAX, proof)
            .map_err(|error| error.error)?;
    }
    Ok(())
}

/// Changes the record of window 0.
fn edit<T: Config>(change: impl FnOnce(&mut Record<T>)) {
    Records::<T>::mutate(RUN, NOW, |record| record.as_mut().map(change));
}

/// Opens window 0 of a run with these seats, with a consensus weight for each miner.
fn open_window<T: Config>(miners: u32, validators: u32, hidden_blocks: u32) -> Result<(), BenchmarkError> {
    create::<T>(miners, validators, hidden_blocks)?;
    go_to::<T>(0);
    let _ = Pallet::<T>::run_due_tasks(Block(START));
    go_to::<T>(1);
    frame_system::BlockHash::<T>::insert(BlockNumberFor::<T>::from(START), T::Hash::repeat_byte(7));
    let _ = Pallet::<T>::run_due_tasks(Block(START + 1));
    edit::<T>(|record| {
        let weights = (0..miners).map(|index| (uid(index), index as u16 + 1)).collect();
        record.weights = BoundedVec::truncate_from(weights);
    });
    assert_eq!(Records::<T>::get(RUN, NOW).map(|record| record.slots.len() as u32), Some(miners));
    Ok(())
}

/// Opens window 0 of the largest run. Returns the uid of its first validator.
fn largest<T: Config>(hidden_blocks: u32) -> Result<u32, BenchmarkError> {
    open_window::<T>(miners_max::<T>(), VALIDATORS, hidden_blocks)?;
    Ok(miners_max::<T>())
}

/// Makes every miner commit.
fn commit_all<T: Config>(miners: u32) {
    for index in 0..miners {
        Commitments::<T>::insert((RUN, NOW), uid(index), digest(index as u8));
    }
    let times = (0..miners).map(|_| 1u8).collect();
    TimesCommitted::<T>::insert(RUN, NOW, BoundedVec::<u8, T::MaxSeats>::truncate_from(times));
}

fn verdicts<T: Config>(count: u32) -> Verdicts<T> {
    BoundedVec::truncate_from((0..count).map(|index| (uid(index), Verdict::Valid)).collect())
}

/// Makes every validator attest every contribution as valid.
fn attest_all<T: Config>(miners: u32, validators: u32) {
    for index in miners..miners + validators {
        Attestations::<T>::insert((RUN, NOW), uid(index), verdicts::<T>(miners));
    }
}

/// Stores a selection.
fn select_one<T: Config>() {
    edit::<T>(|record| {
        let selected = Selected { uid: uid(0), digest: digest(0) };
        record.selection = Some(Choice {
            selected: BoundedVec::truncate_from([selected].to_vec()),
            valid: BoundedVec::truncate_from((0..record.slots.len() as u32).map(uid).collect()),
            faulty: BoundedVec::new(),
        });
    });
}

fn end_window<T: Config>() {
    edit::<T>(|record| {
        record.outcome = Some(Outcome::Merged(ballot(50)));
    });
}

fn statement<T: Config>(index: u32, kind: StatementKind, of: u8) -> SignedStatement {
    Statement { run: RUN, window: NOW, uid: uid(index), kind, digest: digest(of) }
        .sign(&Signer::new(key(index), Registry::<T>::genesis()))
}

#[benchmarks]
mod benchmarks {
    use super::*;

    #[benchmark]
    fn commit() -> Result<(), BenchmarkError> {
        largest::<T>(0)?;
        commit_all::<T>(miners_max::<T>());
        let last = miners_max::<T>().saturating_sub(1);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(last)), RUN, NOW, digest(99));
        assert_eq!(Commitments::<T>::get((RUN, NOW), uid(last)), Some(digest(99)));
        Ok(())
    }

    /// Checks whether a commitment is free, which reads the most.
    #[benchmark]
    fn free_call_check() -> Result<(), BenchmarkError> {
        largest::<T>(0)?;
        commit_all::<T>(miners_max::<T>());
        let origin: T::RuntimeOrigin = RawOrigin::Signed(hotkey::<T>(0)).into();
        let permit;

        #[block]
        {
            permit = Pallet::<T>::may_commit(origin, RUN, NOW);
        }

        assert!(permit.is_ok_and(|permit| permit.times == 1));
        Ok(())
    }

    #[benchmark]
    fn attest(v: Linear<0, { miners_max::<T>() }>) -> Result<(), BenchmarkError> {
        let validator = largest::<T>(0)?;
        commit_all::<T>(miners_max::<T>());
        go_to::<T>(ATTEST);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, verdicts::<T>(v), digest(99));
        assert!(Attestations::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn vote() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(0)?;
        select_one::<T>();
        go_to::<T>(VOTE);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, ballot(50));
        assert!(Votes::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn attest_hidden() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(5)?;
        go_to::<T>(ATTEST);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, digest(1), digest(2));
        assert!(HiddenAttestations::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn reveal_attestation(v: Linear<0, { miners_max::<T>() }>) -> Result<(), BenchmarkError> {
        let validator = largest::<T>(5)?;
        commit_all::<T>(miners_max::<T>());
        go_to::<T>(REVEAL_ATTESTATION);
        let hash = reveal::commitment(&verdicts::<T>(v), &SALT, &public(validator));
        HiddenAttestations::<T>::insert((RUN, NOW), uid(validator), hash);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, verdicts::<T>(v), SALT);
        assert!(Attestations::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn vote_hidden() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(5)?;
        select_one::<T>();
        go_to::<T>(VOTE);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, digest(1));
        assert!(HiddenVotes::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn reveal_vote() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(5)?;
        go_to::<T>(REVEAL_VOTE);
        let hash = reveal::commitment(&ballot(50), &SALT, &public(validator));
        HiddenVotes::<T>::insert((RUN, NOW), uid(validator), hash);
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, ballot(50), SALT);
        assert!(Votes::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn anchor_receipts() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(0)?;
        end_window::<T>();
        #[extrinsic_call]
        _(RawOrigin::Signed(hotkey::<T>(validator)), RUN, NOW, digest(9), digest(8));
        assert!(Receipts::<T>::contains_key((RUN, NOW), uid(validator)));
        Ok(())
    }

    #[benchmark]
    fn report_equivocation() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(0)?;
        let (one, other) = (
            statement::<T>(validator, StatementKind::Vote, 1),
            statement::<T>(validator, StatementKind::Vote, 2),
        );
        let proof = Equivocation { hotkey: public(validator), one, other };
        let reporter: T::AccountId = whitelisted_caller();
        #[extrinsic_call]
        _(RawOrigin::Signed(reporter), proof);
        assert_eq!(Punished::<T>::iter_prefix(RUN).count(), 1);
        Ok(())
    }

    #[benchmark]
    fn report_contradiction() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(0)?;
        // The attestation is the largest record that a statement can contradict.
        attest_all::<T>(miners_max::<T>(), 1);
        let signed = statement::<T>(validator, StatementKind::Attestation, 2);
        let reporter: T::AccountId = whitelisted_caller();
        #[extrinsic_call]
        _(RawOrigin::Signed(reporter), public(validator), signed);
        assert_eq!(Punished::<T>::iter_prefix(RUN).count(), 1);
        Ok(())
    }

    /// All other validators have voted.
    #[benchmark]
    fn vote_rewind() -> Result<(), BenchmarkError> {
        let validator = largest::<T>(0)?;
        let to = NOW.next();
        edit::<T>(|record| {
            let fixed = Vote { state_root: Some(digest(6)), ..ballot(50) };
            record.outcome = Some(Outcome::Merged(fixed));
        });
        ProgressOf::<T>::mutate_extant(RUN, |progress| progress.window = Some(to));
        let others = (validator + 1..validator + VALIDATORS).map(|index| (uid(index), to)).collect();
        RewindVotes::<T>::insert(RUN, BoundedVec::truncate_from(others));
        let owner: T::AccountId = account("owner", 0, 0);
        #[extrinsic_call]
        _(RawOrigin::Signed(owner), RUN, uid(validator), Some(to));
        assert_eq!(RewindVotes::<T>::get(RUN).len() as u32, VALIDATORS);
        Ok(())
    }

    /// A task that has nothing left to do.
    #[benchmark]
    fn task() -> Result<(), BenchmarkError> {
        largest::<T>(0)?;
        end_window::<T>();
        let finalising = Block(START + SCHEDULE.vote_by + 1);
        let before = ProgressOf::<T>::get(RUN).ok_or(BenchmarkError::Stop("a run has progress"))?.next_step;
        ScheduledTasks::<T>::remove(before);
        ProgressOf::<T>::mutate_extant(RUN, |progress| progress.next_step = finalising);
        Pallet::<T>::schedule(RUN, finalising, crate::Turn::default());
        #[block]
        {
            let _ = Pallet::<T>::run_due_tasks(finalising);
        }
        assert!(ProgressOf::<T>::get(RUN).is_some_and(|progress| progress.next_step > finalising));
        Ok(())
    }

    #[benchmark]
    fn open(m: Linear<0, { miners_max::<T>() }>, v: Linear<1, 64>) -> Result<(), BenchmarkError> {
        create::<T>(m, v, 0)?;
        // Every validator has new stake, so that all share the budget for it.
        let established = STAKE / 2;
        let validators =
            Registry::<T>::roster(RUN).into_iter().filter(|(_, entry)| entry.role == Role::Validator);
        for (uid, entry) in validators {
            let seat = SeatId { uid, registered_at: entry.registered_at };
            let stake = CountedStake { seat, established, counted: established };
            CountedStakes::<T>::try_append(RUN, stake)
                .map_err(|()| BenchmarkError::Stop("too many seats"))?;
        }
        go_to::<T>(0);
        #[block]
        {
            let _ = Pallet::<T>::open(RUN, NOW);
        }
        assert_eq!(Records::<T>::get(RUN, NOW).map(|record| record.active_set.len() as u32), Some(v));
        Ok(())
    }

    #[benchmark]
    fn record_hash() -> Result<(), BenchmarkError> {
        largest::<T>(0)?;
        frame_system::BlockHash::<T>::insert(BlockNumberFor::<T>::from(START + 11), T::Hash::repeat_byte(8));
        #[block]
        {
            let _ =
                Pallet::<T>::record_hash(RUN, NOW, Block(START + 12), |record| &mut record.evaluation_hash);
        }
        assert!(Records::<T>::get(RUN, NOW).is_some_and(|record| record.evaluation_hash.is_some()));
        Ok(())
    }

    #[benchmark]
    fn record_deal_seed(v: Linear<1, 64>) -> Result<(), BenchmarkError> {
        let miners = miners_max::<T>();
        open_window::<T>(miners, v, 2)?;
        attest_all::<T>(miners, v);
        RevealedSalts::<T>::insert(RUN, NOW, digest(9));
        let record = Records::<T>::get(RUN, NOW).ok_or(BenchmarkError::Stop("a window is open"))?;
        Records::<T>::insert(RUN, NOW.next(), Record { deal_seed: None, ..record });
        #[block]
        {
            let _ = Pallet::<T>::record_deal_seed(RUN, NOW.next());
        }
        assert_eq!(Records::<T>::get(RUN, NOW.next()).and_then(|record| record.deal_seed), Some(digest(9)));
        Ok(())
    }

    #[benchmark]
    fn deal_next(m: Linear<1, { miners_max::<T>() }>, v: Linear<1, 64>) -> Result<(), BenchmarkError> {
        open_window::<T>(m, v, 2)?;
        attest_all::<T>(m, v);
        RevealedSalts::<T>::insert(RUN, NOW, digest(9));
        let record = Records::<T>::get(RUN, NOW).ok_or(BenchmarkError::Stop("a window is open"))?;
        Records::<T>::insert(RUN, NOW.next(), record);
        #[block]
        {
            let _ = Pallet::<T>::deal_next(RUN, NOW.next(), Block(u32::MAX));
        }
        let dealt = NextDeal::<T>::get(RUN).map(|dealt| (dealt.seed, dealt.slots.len() as u32));
        assert_eq!(dealt, Some((digest(9), m)));
        Ok(())
    }

    #[benchmark]
    fn draw_probes(w: Linear<2, 64>) -> Result<(), BenchmarkError> {
        largest::<T>(0)?;
        commit_all::<T>(miners_max::<T>());
        select_one::<T>();
        end_window::<T>();
        let params = RunParams { epoch_windows: w, reveal_windows: 1, ..params(0) };
        let first = Window(w.saturating_mul(2));
        let record = Records::<T>::get(RUN, NOW).ok_or(BenchmarkError::Stop("a window is open"))?;
        for window in params.probe_windows(1).chain([first.0]) {
            Records::<T>::insert(RUN, Window(window), record.clone());
        }
        #[block]
        {
            let _ = Pallet::<T>::draw_probes(RUN, first, &params);
        }
        assert_eq!(DrawnProbes::<T>::get(RUN, first).len() as u32, w.min(probe::PROBES));
        Ok(())
    }

    #[benchmark]
    fn select(m: Linear<1, { miners_max::<T>() }>, v: Linear<1, 64>) -> Result<(), BenchmarkError> {
        open_window::<T>(m, v, 0)?;
        commit_all::<T>(m);
        attest_all::<T>(m, v);
        edit::<T>(|record| {
            record.evaluation_hash = record.opening_hash;
            record.deal_seed = record.opening_hash;
        });
        #[block]
        {
            let _ = Pallet::<T>::select(RUN, NOW, &params(0));
        }
        let valid = Records::<T>::get(RUN, NOW).and_then(|record| record.selection);
        assert_eq!(valid.map(|selection| selection.valid.len() as u32), Some(m));
        Ok(())
    }

    /// A third of the active set casts minority votes; all of it is recorded in the epoch's participation.
    #[benchmark]
    fn finalise(v: Linear<1, 64>) -> Result<(), BenchmarkError> {
        let miners = miners_max::<T>();
        open_window::<T>(miners, v, 0)?;
        select_one::<T>();
        for index in 0..v {
            let update = if index < v / 3 { 51 } else { 50 };
            Votes::<T>::insert((RUN, NOW), uid(miners + index), ballot(update));
        }
        let members = (0..v).map(|index| MemberParticipation { uid: uid(miners + index), owed: 1, cast: 0 });
        let participation =
            Participation { merged: 1, members: BoundedVec::truncate_from(members.collect()) };
        Participations::<T>::insert(RUN, NOW.epoch(params(0).epoch_windows), participation);
        #[block]
        {
            let _ = Pallet::<T>::finalise(RUN, NOW, &params(0));
        }
        let outcome = Records::<T>::get(RUN, NOW).and_then(|record| record.outcome);
        assert_eq!(outcome, Some(Outcome::Merged(ballot(50))));
        Ok(())
    }

    #[benchmark]
    fn prune(
        e: Linear<0, { <T as pallet_registry::Config>::MaxSeats::get() }>,
    ) -> Result<(), BenchmarkError> {
        for index in 0..e {
            Commitments::<T>::insert((RUN, NOW), uid(index), digest(1));
        }
        #[block]
        {
            let _ = Pallet::<T>::prune(RUN, NOW);
        }
        assert_eq!(Commitments::<T>::iter_key_prefix((RUN, NOW)).count(), 0);
        Ok(())
    }

    impl_benchmark_test_suite!(Pallet, crate::mock::chain(), crate::mock::Test);
}
