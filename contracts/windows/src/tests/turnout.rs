//! Who votes in none of the windows that an epoch merged: what counts, and what never does (PROT-30).

use super::*;

const NEWCOMER: u16 = 6;

fn short_epochs(epoch_windows: u32) -> RunParams {
    RunParams { epoch_windows, reveal_windows: 1, checkpoint_windows: 20, ..params() }
}

/// All of `present` attest in `window`, and those in `voters` vote, each at its offset.
fn play_turnout(window: u32, present: &[u16], voters: &[(u16, u32, u8)]) {
    go_to(window, 1);
    assert_ok!(commit(0, window, 1));
    go_to(window, 9);
    for uid in present {
        assert_ok!(attest(*uid, window, &[(0, VALID)]));
    }
    for (uid, offset, update) in voters {
        go_to(window, *offset);
        assert_ok!(vote(*uid, window, *update, None));
    }
    go_to(window, 18);
}

/// Everybody attests, and `voters` vote the same as soon as that counts.
fn play_voters(window: u32, present: &[u16], voters: &[u16]) {
    let voters: Vec<_> = voters.iter().map(|uid| (*uid, 15, 50)).collect();
    play_turnout(window, present, &voters);
}

fn is_merged(window: u32) -> bool {
    matches!(outcome(window), Some(Outcome::Merged(_)))
}

/// Who was told of as silent, of the epochs that are closed.
fn silent() -> Vec<Vec<u16>> {
    let silent = |members: Vec<Member>| {
        members.into_iter().filter(|member| member.silent).map(|member| member.uid.0).collect()
    };
    Closed::get().into_iter().map(|(_, _, members)| silent(members)).collect()
}

#[test]
fn who_attests_and_never_votes_where_windows_are_merged_is_silent() {
    with_run(short_epochs(2), || {
        for window in 0..2 {
            play_voters(window, &VALIDATORS, &[3, 4]);
            assert!(is_merged(window));
        }
        assert_eq!(
            Turnouts::<Test>::get(RUN, 0).into_inner(),
            [(Uid(3), true), (Uid(4), true), (Uid(5), false)]
        );
        // Voting in the next epoch does not mend it, and counts there.
        play_voters(2, &VALIDATORS, &VALIDATORS);
        go_to(3, 0);
        assert_eq!(silent(), [[5]]);
        assert!(events().contains(&Event::NeverVoted { run: RUN, epoch: 0, uid: Uid(5) }));
        play_voters(3, &VALIDATORS, &[3, 4]);
        go_to(5, 0);
        assert_eq!(silent(), [vec![5], vec![]]);
        assert_eq!(events().iter().filter(|event| matches!(event, Event::NeverVoted { .. })).count(), 1);
        assert_eq!(Turnouts::<Test>::iter().count(), 0, "nothing is kept of epochs that are closed");
    });
}

#[test]
fn a_vote_after_two_thirds_have_voted_counts_up_to_the_deadline_s_block_and_one_an_epoch_is_enough() {
    with_run(short_epochs(3), || {
        play_voters(0, &VALIDATORS, &[3, 4]);
        play_turnout(1, &VALIDATORS, &[(3, 15, 50), (4, 15, 50), (5, 17, 50)]);
        play_voters(2, &VALIDATORS, &[3, 4]);
        assert!((0..3).all(is_merged));
        go_to(4, 0);
        assert_eq!(silent(), [[0; 0]]);
    });
}

#[test]
fn a_hidden_vote_counts_once_it_is_shown() {
    let hidden = RunParams { epoch_windows: 1, reveal_windows: 1, ..hidden_params() };
    with_run(hidden, || {
        for window in 0..2 {
            go_to(window, 0);
            assert_ok!(commit(0, window, 1));
            go_to(window, 9);
            for uid in VALIDATORS {
                assert_ok!(attest_hidden(uid, window, &[(0, VALID)]));
            }
            go_to(window, 15);
            for uid in VALIDATORS {
                assert_ok!(reveal_attestation(uid, window, &[(0, VALID)]));
            }
            go_to(window, 17);
            for uid in VALIDATORS {
                assert_ok!(vote_hidden(uid, window, 50));
            }
            go_to(window, 19);
            assert_ok!(reveal_vote(3, window, 50));
            assert_ok!(reveal_vote(4, window, 50));
            // The last one shows its vote after two thirds have, and in the other window never.
            go_to(window, 20);
            if window == 0 {
                assert_ok!(reveal_vote(5, window, 50));
            }
        }
        go_to(3, 0);
        assert!((0..2).all(is_merged));
        assert_eq!(silent(), [vec![], vec![5]]);
    });
}

#[test]
fn where_no_window_is_merged_nobody_is_silent() {
    with_run(short_epochs(2), || {
        play_voters(0, &VALIDATORS, &[3]);
        play_voters(1, &VALIDATORS, &[]);
        assert!(!is_merged(0) && !is_merged(1));
        assert_eq!(Turnouts::<Test>::iter().count(), 0);
        go_to(3, 0);
        assert_eq!(silent(), [[0; 0]]);
    });
}

#[test]
fn a_vote_in_a_window_that_came_to_nothing_proves_nothing() {
    with_run(short_epochs(2), || {
        play_turnout(0, &VALIDATORS, &[(3, 15, 50), (5, 15, 51)]);
        play_voters(1, &VALIDATORS, &[3, 4]);
        assert!(!is_merged(0) && is_merged(1));
        go_to(3, 0);
        assert_eq!(silent(), [[5]]);
    });
}

#[test]
fn who_is_seated_in_the_middle_of_an_epoch_answers_for_its_votes_from_the_next_one_on() {
    with_run(short_epochs(2), || {
        play_voters(0, &VALIDATORS, &VALIDATORS);
        assert_eq!(register(RUN, Role::Validator, STAKE), NEWCOMER);
        let all = [3, 4, 5, NEWCOMER];
        for window in 1..4 {
            play_voters(window, &all, &VALIDATORS);
            assert!(is_merged(window));
            let decides = view(window).electorate.iter().any(|(uid, _)| *uid == Uid(NEWCOMER));
            assert!(decides, "it could have voted");
        }
        go_to(5, 0);
        assert_eq!(silent(), [vec![], vec![NEWCOMER]]);
    });
}

#[test]
fn who_comes_back_in_the_middle_of_an_epoch_owes_a_vote_in_it() {
    // Away until window 6, the third of the second epoch, so that it decides only the last one.
    let silent_after = |last: &'static [u16]| {
        let mut found = Vec::new();
        with_run(short_epochs(4), || {
            for window in 0..6 {
                play_voters(window, &[3, 4], &[3, 4]);
            }
            play_voters(6, &VALIDATORS, &[3, 4]);
            assert_eq!(view(6).electorate.len(), 2);
            play_voters(7, &VALIDATORS, last);
            assert_eq!(view(7).electorate.len(), 3);
            go_to(9, 0);
            found = silent().pop().unwrap();
        });
        found
    };
    assert_eq!(silent_after(&VALIDATORS), [0; 0]);
    assert_eq!(silent_after(&[3, 4]), [5]);
    // The one window that it decided was void: it was away from those that were merged.
    assert_eq!(silent_after(&[3]), [5]);
}

#[test]
fn with_one_validator_or_two_a_window_is_merged_by_all_of_them_or_not_at_all() {
    for validators in [&[1][..], &[1, 2]] {
        chain().execute_with(|| {
            create_run(short_epochs(2), terms());
            register(RUN, Role::Miner, 1);
            for uid in validators {
                assert_eq!(register(RUN, Role::Validator, STAKE), *uid);
            }
            play_voters(0, validators, validators);
            play_voters(1, validators, &validators[1..]);
            assert!(is_merged(0) && !is_merged(1));
            play_voters(2, validators, &validators[1..]);
            play_voters(3, validators, &validators[1..]);
            go_to(5, 0);
            assert_eq!(silent(), [[0; 0]; 2]);
        });
    }
}

#[test]
fn the_next_holder_of_a_seat_is_not_told_of_by_its_predecessor_s_silence() {
    with_terms(short_epochs(4), Terms { absence_windows: 9, ..terms() }, || {
        play_voters(0, &VALIDATORS, &[3, 4]);
        assert!(Turnouts::<Test>::get(RUN, 0).contains(&(Uid(5), false)));
        assert_ok!(Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(5)));
        go_to(1, 0);
        assert_eq!(Turnouts::<Test>::get(RUN, 0).into_inner(), [(Uid(3), true), (Uid(4), true)]);
    });
}
