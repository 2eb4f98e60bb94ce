//! The largest run that the chain allows: 1,024 miners and 64 validators.

use super::*;
use std::time::Instant;

const MANY_MINERS: u16 = 1024;
const MANY_VALIDATORS: u16 = 64;

/// Plays one window of the largest run, with every seat taking part. Returns each task, or all calls of a kind, with
/// its weight and the time that the native code took, in microseconds.
fn play_largest() -> Vec<(&'static str, Weight, u128)> {
    let mut measured = Vec::new();
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
        let task = |measured: &mut Vec<_>, name, offset: u32| {
            let number = u64::from(SCHEDULE.start.0 + offset);
            go_to_block(number - 1);
            System::set_block_number(number);
            frame_system::BlockHash::<Test>::insert(number - 1, hash_of(number - 1));
            let started = Instant::now();
            let weight = Windows::on_initialize(number);
            measured.push((name, weight, started.elapsed().as_micros()));
        };
        task(&mut measured, "open", 0);
        task(&mut measured, "record_hash", 1);
        let started = Instant::now();
        for uid in 0..MANY_MINERS {
            assert_ok!(commit(uid, 0, uid as u8));
        }
        measured.push(("1024 commits", weight_info::commit::<Test>() * 1024, started.elapsed().as_micros()));
        go_to(0, 9);
        let all: Vec<_> = (0..MANY_MINERS).map(|uid| (uid, VALID)).collect();
        let started = Instant::now();
        for uid in MANY_MINERS..MANY_MINERS + MANY_VALIDATORS {
            assert_ok!(attest(uid, 0, &all));
        }
        measured.push((
            "64 attestations",
            weight_info::attest::<Test>(1024) * 64,
            started.elapsed().as_micros(),
        ));
        task(&mut measured, "select", 15);
        // Twenty places by weight, four for newcomers.
        assert_eq!(selected(0).len(), 24);
        assert_eq!(view(0).selection.unwrap().valid.len(), 1024);
        for uid in MANY_MINERS..MANY_MINERS + MANY_VALIDATORS {
            assert_ok!(vote(uid, 0, 50, None));
        }
        task(&mut measured, "finalise", 18);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        let started = Instant::now();
        let weight = Windows::prune(RUN, Window(0));
        measured.push(("prune", weight, started.elapsed().as_micros()));
        assert_eq!(Commitments::<Test>::iter().count() + Attestations::<Test>::iter().count(), 0);
    });
    measured
}

/// The weight of a block of two seconds, filled to three quarters, in picoseconds.
const BLOCK: u64 = 1_500_000_000_000;

#[test]
fn every_task_of_the_largest_run_fits_into_a_block() {
    for (name, weight, _) in play_largest() {
        let calls = name.contains(' ');
        assert!(calls || weight.ref_time() < BLOCK / 2, "{name} costs {weight:?}");
    }
}

#[test]
#[ignore = "measures time, which other programs disturb"]
fn the_largest_run_takes_less_time_than_its_weight() {
    for (name, weight, micros) in play_largest() {
        let weight = u128::from(weight.ref_time() / 1_000_000);
        println!("{name}: {weight} µs of weight, {micros} µs measured");
        assert!(micros < weight, "{name} takes {micros} µs with a weight of {weight} µs");
    }
}
