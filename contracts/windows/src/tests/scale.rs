//! The largest run that the chain allows: 1,024 miners and 64 validators.

use super::*;

const MANY_MINERS: u16 = 1024;
const MANY_VALIDATORS: u16 = 64;

/// Plays one window of the largest run, in which every seat participates. Returns each task with its weight.
fn play_largest() -> Vec<(&'static str, Weight)> {
    let mut tasks = Vec::new();
    chain().execute_with(|| {
        let terms = Terms { active_set_max: 64, ..terms() };
        create_run(RunParams { places: 20, reserve_places: 4, newcomer_windows: 0, ..params() }, terms);
        for _ in 0..MANY_MINERS {
            register(RUN, Role::Miner, 1);
        }
        for _ in 0..MANY_VALIDATORS {
            register(RUN, Role::Validator, STAKE);
        }
        StandingWeights::set((0..MANY_MINERS).map(|uid| (Uid(uid), uid * 60 + 1)).collect());
        let mut task = |name, offset: u32| {
            let number = u64::from(SCHEDULE.start.0 + offset);
            go_to_block(number - 1);
            System::set_block_number(number);
            frame_system::BlockHash::<Test>::insert(number - 1, hash_of(number - 1));
            tasks.push((name, Windows::on_initialize(number)));
        };
        task("open", 0);
        task("record_hash", 1);
        task("deal_next", SCHEDULE.deal_offset());
        assert_eq!(view(0).next_deal.map(|deal| deal.slots.len()), Some(usize::from(MANY_MINERS)));
        for uid in 0..MANY_MINERS {
            assert_ok!(commit(uid, 0, uid as u8));
        }
        go_to(0, 9);
        let all: Vec<_> = (0..MANY_MINERS).map(|uid| (uid, VALID)).collect();
        for uid in MANY_MINERS..MANY_MINERS + MANY_VALIDATORS {
            assert_ok!(attest(uid, 0, &all));
        }
        task("select", 15);
        // Twenty places by weight, four for newcomers.
        assert_eq!(selected(0).len(), 24);
        assert_eq!(view(0).selection.unwrap().valid.len(), 1024);
        for uid in MANY_MINERS..MANY_MINERS + MANY_VALIDATORS {
            assert_ok!(vote(uid, 0, 50, None));
        }
        task("finalise", 18);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        tasks.push(("prune", Windows::prune(RUN, Window(0))));
        assert_eq!(Commitments::<Test>::iter().count() + Attestations::<Test>::iter().count(), 0);
    });
    tasks
}

/// The weight of a block of two seconds, filled to three quarters, in picoseconds.
const BLOCK: u64 = 1_500_000_000_000;

#[test]
fn a_task_of_the_largest_run_is_charged_for_every_seat_and_fits_into_a_block() {
    let (miners, validators) = (u32::from(MANY_MINERS), u32::from(MANY_VALIDATORS));
    let task = weight_info::task::<Test>();
    let least = [
        ("open", task + weight_info::open::<Test>(miners, validators)),
        ("record_hash", task + weight_info::record_hash::<Test>()),
        ("deal_next", task + weight_info::deal_next::<Test>(miners, 0)),
        ("select", task + weight_info::select::<Test>(miners, validators)),
        ("finalise", task + weight_info::finalise::<Test>(validators)),
        // A removal does not count the entries that the same block wrote, as here.
        ("prune", weight_info::prune::<Test>(0)),
    ];
    let tasks = play_largest();
    assert_eq!(tasks.len(), least.len());
    for ((name, found), (expected, least)) in tasks.into_iter().zip(least) {
        assert_eq!(name, expected);
        assert!(found.all_gte(least), "{name} costs {found:?}, and visits {least:?}");
        assert!(found.ref_time() < BLOCK / 2, "{name} costs {found:?}");
    }
}
