//! The largest run that the chain carries: 1,024 miners and 64 validators.

use super::*;
use std::time::Instant;

const MANY_MINERS: u16 = 1024;
const MANY_VALIDATORS: u16 = 64;

/// Plays one window of the largest run, every seat taking part; returns what its calls and steps cost in weight, and
/// how long the native code took for the steps, in microseconds.
fn play_largest() -> Vec<(&'static str, Weight, u128)> {
    let mut told = Vec::new();
    chain().execute_with(|| {
        let terms = Terms { electorate_max: 64, ..terms() };
        create_run(RunParams { places: 20, reserve_places: 4, newcomer_windows: 0, ..params() }, terms);
        for _ in 0..MANY_MINERS {
            register(RUN, Role::Miner, 1);
        }
        for _ in 0..MANY_VALIDATORS {
            register(RUN, Role::Validator, STAKE);
        }
        StandingWeights::set((0..MANY_MINERS).map(|uid| (Uid(uid), uid * 60 + 1)).collect());
        let step = |told: &mut Vec<_>, name, offset: u32| {
            let number = u64::from(SCHEDULE.start.0 + offset);
            go_to_block(number - 1);
            System::set_block_number(number);
            frame_system::BlockHash::<Test>::insert(number - 1, hash_of(number - 1));
            let started = Instant::now();
            let weight = Windows::on_initialize(number);
            told.push((name, weight, started.elapsed().as_micros()));
        };
        step(&mut told, "open", 0);
        step(&mut told, "note_hash", 1);
        let started = Instant::now();
        for uid in 0..MANY_MINERS {
            assert_ok!(commit(uid, 0, uid as u8));
        }
        told.push((
            "1024 commits",
            <Test as Config>::WeightInfo::commit() * 1024,
            started.elapsed().as_micros(),
        ));
        go_to(0, 9);
        let all: Vec<_> = (0..MANY_MINERS).map(|uid| (uid, VALID)).collect();
        let started = Instant::now();
        for uid in MANY_MINERS..MANY_MINERS + MANY_VALIDATORS {
            assert_ok!(attest(uid, 0, &all));
        }
        told.push((
            "64 attestations",
            <Test as Config>::WeightInfo::attest(1024) * 64,
            started.elapsed().as_micros(),
        ));
        step(&mut told, "choose", 15);
        // Twenty places by weight, four for newcomers.
        assert_eq!(selected(0).len(), 24);
        assert_eq!(view(0).selection.unwrap().valid.len(), 1024);
        for uid in MANY_MINERS..MANY_MINERS + MANY_VALIDATORS {
            assert_ok!(vote(uid, 0, 50, None));
        }
        step(&mut told, "fix", 18);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        let started = Instant::now();
        let weight = Windows::forget(RUN, Window(0));
        told.push(("forget", weight, started.elapsed().as_micros()));
        assert_eq!(Commitments::<Test>::iter().count() + Attestations::<Test>::iter().count(), 0);
    });
    told
}

/// What a block of two seconds has for everything, at the three quarters that it is to be filled.
const BLOCK: u64 = 1_500_000_000_000;

#[test]
fn every_step_of_the_largest_run_fits_into_a_block() {
    for (name, weight, _) in play_largest() {
        let calls = name.contains(' ');
        assert!(calls || weight.ref_time() < BLOCK / 2, "{name} costs {weight:?}");
    }
}

#[test]
#[ignore = "prints how long the steps of the largest run take"]
fn the_largest_run_by_the_clock() {
    for (name, weight, micros) in play_largest() {
        println!("{name}: {} us of weight, {micros} us by the clock", weight.ref_time() / 1_000_000);
    }
}
