//! Rewinds to an earlier checkpoint: permitted voters, permitted checkpoints, and the state of the next window
//! (PROT-20).

use super::*;
use protocol::view::{REWIND_WINDOWS, RewindTally};

fn rewind(uid: u16, to: Option<u32>) -> DispatchResult {
    Windows::vote_rewind(RuntimeOrigin::signed(COLDKEY), RUN, Uid(uid), to.map(Window))
}

fn progress() -> Progress {
    ProgressOf::<Test>::get(RUN).unwrap()
}

/// Returns the checkpoint of window `at` as `play` produces it.
fn checkpoint(at: u32) -> Checkpoint {
    let lineage =
        (0..at).fold(genesis(), |lineage, window| lineage::next(&lineage, &digest(50 + window as u8)));
    Checkpoint { window: Window(at), state_root: digest(77), lineage }
}

/// Plays windows up to `last`; all validators participate.
fn play_to(last: u32) {
    for window in 0..=last {
        play(window, &VALIDATORS);
    }
}

#[test]
fn two_thirds_undo_a_bad_merge_by_going_back_to_the_checkpoint_before_it() {
    with_run(params(), || {
        play_to(4);
        assert_eq!(progress().checkpoint, Some(checkpoint(3)));
        let bad = progress().lineage;
        assert_ok!(rewind(3, Some(3)));
        assert_ok!(rewind(4, Some(3)));
        assert_eq!(
            Windows::rewind_tallies(RUN),
            [RewindTally { to: Window(3), stake: 2 * STAKE, of: 3 * STAKE }]
        );
        assert_eq!(progress().lineage, bad, "votes count as a window opens");

        go_to(5, 0);
        assert_eq!(view(5).lineage, checkpoint(3).lineage);
        assert_eq!(progress().rewound, Some(Window(5)));
        assert_eq!(progress().checkpoint, Some(checkpoint(3)));
        assert_eq!(view(5).cursor, 5 * 3 * 7, "no data is assigned twice");
        assert_eq!(Windows::rewind_tallies(RUN), []);
        let (run, window) = (RUN, Window(5));
        assert!(events().contains(&Event::Rewound { run, window, to: checkpoint(3) }));

        // The run continues from there, up to its next checkpoint and past it.
        for window in 5..9 {
            play(window, &VALIDATORS);
            assert!(matches!(outcome(window), Some(Outcome::Merged(_))));
        }
        assert_eq!(view(6).lineage, lineage::next(&checkpoint(3).lineage, &digest(55)));
        assert_eq!(progress().checkpoint.unwrap().window, Window(9));
        assert_eq!(progress().rewound, Some(Window(5)));
    });
}

#[test]
fn a_third_cannot_force_a_rewind() {
    with_run(params(), || {
        play_to(4);
        assert_ok!(rewind(3, Some(3)));
        play(5, &VALIDATORS);
        go_to(6, 0);
        assert_eq!(progress().rewound, None);
        assert_eq!(Windows::rewind_tallies(RUN).len(), 1, "the vote stands");
        // Votes for different checkpoints do not add up.
        assert_ok!(rewind(4, Some(6)));
        go_to(7, 0);
        assert_eq!(progress().rewound, None);
        assert_eq!(Windows::rewind_tallies(RUN).len(), 2);
        assert_eq!(view(7).lineage, view(6).lineage);
    });
}

#[test]
fn a_vote_to_go_back_is_replaced_and_withdrawn() {
    with_run(params(), || {
        play_to(6);
        assert_ok!(rewind(3, Some(3)));
        assert_ok!(rewind(4, Some(3)));
        assert_ok!(rewind(4, Some(6)));
        let stakes = |tallies: Vec<RewindTally>| -> Vec<(u32, u128)> {
            tallies.into_iter().map(|tally| (tally.to.0, tally.stake)).collect()
        };
        assert_eq!(stakes(Windows::rewind_tallies(RUN)), [(3, STAKE), (6, STAKE)]);
        assert_ok!(rewind(4, None));
        assert!(events().contains(&Event::RewindVoted { run: RUN, uid: Uid(4), to: None }));
        assert_noop!(rewind(4, None), Error::<Test>::NoRewindVote);
        assert_eq!(stakes(Windows::rewind_tallies(RUN)), [(3, STAKE)]);
        assert_ok!(rewind(3, None));
        assert!(!RewindVotes::<Test>::contains_key(RUN));
        go_to(7, 0);
        assert_eq!(progress().rewound, None);
    });
}

#[test]
fn a_rewind_needs_a_checkpoint_that_every_bucket_keeps() {
    with_run(params(), || {
        assert_noop!(rewind(3, Some(0)), Error::<Test>::NotACheckpoint);
        play_to(2);
        for to in [0, 1, 2, 3, 4, u32::MAX] {
            // The checkpoint of window 3 exists, and the next window opens with it in any case.
            assert_noop!(rewind(3, Some(to)), Error::<Test>::NotACheckpoint);
        }
        go_to(3, 0);
        assert_ok!(rewind(3, Some(3)));
        assert_noop!(rewind(0, Some(3)), Error::<Test>::NotAValidator);
        let stranger = RuntimeOrigin::signed(REPORTER);
        assert_noop!(
            Windows::vote_rewind(stranger, RUN, Uid(3), Some(Window(3))),
            pallet_registry::Error::<Test>::NotTheColdkey
        );
        go_to(3 + REWIND_WINDOWS - 1, 0);
        assert_ok!(rewind(4, Some(3)));
        assert_ok!(rewind(4, None));
        go_to(3 + REWIND_WINDOWS, 0);
        assert_noop!(rewind(4, Some(3)), Error::<Test>::NotACheckpoint);
        assert_eq!(Windows::rewind_tallies(RUN), [], "a vote for it is dropped");
    });
}

#[test]
fn a_validator_that_leaves_or_is_absent_has_no_say_in_a_rewind() {
    with_run(params(), || {
        play_to(4);
        for uid in [3, 4] {
            assert_ok!(rewind(uid, Some(3)));
        }
        assert_ok!(Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(4)));
        go_to(5, 0);
        // Of three equal stakes, one left and one votes: half of the new active set.
        assert_eq!(progress().rewound, None);
        assert_eq!(
            Windows::rewind_tallies(RUN),
            [RewindTally { to: Window(3), stake: STAKE, of: 2 * STAKE }]
        );
        // Only the other one attests: the voter is absent from the active set two windows later.
        for window in 5..8 {
            play(window, &[5]);
        }
        go_to(8, 0);
        assert_eq!(view(8).active_set.len(), 1);
        assert_eq!(Windows::rewind_tallies(RUN), [RewindTally { to: Window(3), stake: 0, of: STAKE }]);
        assert_eq!(progress().rewound, None);
    });
}

#[test]
fn an_active_set_without_its_quorum_cannot_rewind() {
    with_terms(params(), Terms { quorum: protocol::params::Permille(700), ..terms() }, || {
        play_to(4);
        assert_ok!(rewind(5, Some(3)));
        for window in 5..8 {
            play(window, &[5]);
        }
        go_to(9, 0);
        assert!(progress().paused);
        let RewindTally { stake, of, .. } = Windows::rewind_tallies(RUN)[0];
        assert_eq!((stake, of), (STAKE, STAKE), "all of a small active set wants it");
        assert_eq!(progress().rewound, None);
    });
}

#[test]
fn a_rewind_can_be_undone_by_going_to_the_checkpoint_that_it_left_behind() {
    with_run(params(), || {
        play_to(6);
        for uid in [3, 4] {
            assert_ok!(rewind(uid, Some(3)));
        }
        go_to(7, 0);
        assert_eq!(view(7).lineage, checkpoint(3).lineage);
        for uid in VALIDATORS {
            assert_ok!(rewind(uid, Some(6)));
        }
        go_to(8, 0);
        assert_eq!(view(8).lineage, checkpoint(6).lineage);
        assert_eq!((progress().rewound, progress().checkpoint), (Some(Window(8)), Some(checkpoint(6))));
    });
}
