//! Inactive validators: those that vote in less than two thirds of the merged windows that they decide (PROT-30).

use super::*;

const NEWCOMER: u16 = 6;

fn short_epochs(epoch_windows: u32) -> RunParams {
    RunParams { epoch_windows, reveal_windows: 1, checkpoint_windows: 20, ..params() }
}

/// Plays a window: the validators in `present` attest; those in `voters` vote, each at its offset.
fn play_votes(window: u32, present: &[u16], voters: &[(u16, u32, u8)]) {
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

/// Plays a window: the validators in `present` attest; `voters` vote the same at the first block of the phase.
fn play_voters(window: u32, present: &[u16], voters: &[u16]) {
    let voters: Vec<_> = voters.iter().map(|uid| (*uid, 15, 50)).collect();
    play_votes(window, present, &voters);
}

fn is_merged(window: u32) -> bool {
    matches!(outcome(window), Some(Outcome::Merged(_)))
}

/// Returns the validators reported as inactive, by closed epoch.
fn inactive() -> Vec<Vec<u16>> {
    let silent = |members: Vec<Member>| {
        members.into_iter().filter(|member| member.silent).map(|member| member.uid.0).collect()
    };
    Closed::get().into_iter().map(|(_, _, members)| silent(members)).collect()
}

#[test]
fn a_validator_that_attests_and_never_votes_is_inactive() {
    with_run(short_epochs(2), || {
        for window in 0..2 {
            play_voters(window, &VALIDATORS, &[3, 4]);
            assert!(is_merged(window));
        }
        let member = |uid, cast| MemberParticipation { uid: Uid(uid), owed: 2, cast };
        let participation = Participations::<Test>::get(RUN, 0);
        assert_eq!(
            (participation.merged, &participation.members[..]),
            (2, &[member(3, 2), member(4, 2), member(5, 0)][..])
        );
        // Voting in the next epoch counts for that epoch only.
        play_voters(2, &VALIDATORS, &VALIDATORS);
        go_to(3, 0);
        assert_eq!(inactive(), [[5]]);
        assert!(events().contains(&Event::Inactive { run: RUN, epoch: 0, uid: Uid(5) }));
        play_voters(3, &VALIDATORS, &[3, 4]);
        go_to(5, 0);
        assert_eq!((inactive(), Merged::get()), (vec![vec![5], vec![5]], vec![2, 2]), "one vote of two");
        assert_eq!(Participations::<Test>::iter().count(), 0, "nothing is kept of epochs that are closed");
    });
}

#[test]
fn two_votes_of_three_are_enough_and_count_until_the_deadline_even_after_two_thirds() {
    with_run(short_epochs(3), || {
        play_voters(0, &VALIDATORS, &VALIDATORS);
        play_votes(1, &VALIDATORS, &[(3, 15, 50), (4, 15, 50), (5, 17, 50)]);
        play_voters(2, &VALIDATORS, &[3, 4]);
        assert!((0..3).all(is_merged));
        go_to(4, 0);
        assert_eq!(inactive(), [[0; 0]]);
    });
}

#[test]
fn a_committed_vote_counts_once_it_is_revealed() {
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
            // The last one reveals one vote after two thirds have, and the other vote never.
            go_to(window, 20);
            if window == 0 {
                assert_ok!(reveal_vote(5, window, 50));
            }
        }
        go_to(3, 0);
        assert!((0..2).all(is_merged));
        assert_eq!(inactive(), [vec![], vec![5]]);
    });
}

#[test]
fn no_validator_is_inactive_if_no_window_is_merged() {
    with_run(short_epochs(2), || {
        play_voters(0, &VALIDATORS, &[3]);
        play_voters(1, &VALIDATORS, &[]);
        assert!(!is_merged(0) && !is_merged(1));
        assert_eq!(Participations::<Test>::iter().count(), 0);
        go_to(3, 0);
        assert_eq!((inactive(), Merged::get()), (vec![vec![]], vec![0]));
    });
}

#[test]
fn a_vote_in_a_void_window_does_not_count() {
    with_run(short_epochs(2), || {
        play_votes(0, &VALIDATORS, &[(3, 15, 50), (5, 15, 51)]);
        play_voters(1, &VALIDATORS, &[3, 4]);
        assert!(!is_merged(0) && is_merged(1));
        go_to(3, 0);
        assert_eq!(inactive(), [[5]]);
    });
}

#[test]
fn a_validator_seated_during_an_epoch_owes_votes_from_the_next_epoch() {
    with_run(short_epochs(2), || {
        play_voters(0, &VALIDATORS, &VALIDATORS);
        assert_eq!(register(RUN, Role::Validator, STAKE), NEWCOMER);
        let all = [3, 4, 5, NEWCOMER];
        for window in 1..4 {
            play_voters(window, &all, &VALIDATORS);
            assert!(is_merged(window));
            let decides = view(window).active_set.iter().any(|(uid, _)| *uid == Uid(NEWCOMER));
            assert!(decides, "it could have voted");
        }
        go_to(5, 0);
        assert_eq!(inactive(), [vec![], vec![NEWCOMER]]);
    });
}

#[test]
fn a_validator_that_returns_during_an_epoch_owes_a_vote_in_it() {
    // Absent until window 6, the third of the second epoch, so that it is a member in the last one only.
    let inactive_after = |last: &'static [u16]| {
        let mut found = Vec::new();
        with_run(short_epochs(4), || {
            for window in 0..6 {
                play_voters(window, &[3, 4], &[3, 4]);
            }
            play_voters(6, &VALIDATORS, &[3, 4]);
            assert_eq!(view(6).active_set.len(), 2);
            play_voters(7, &VALIDATORS, last);
            assert_eq!(view(7).active_set.len(), 3);
            go_to(9, 0);
            found = inactive().pop().unwrap();
        });
        found
    };
    assert_eq!(inactive_after(&VALIDATORS), [0; 0]);
    assert_eq!(inactive_after(&[3, 4]), [5]);
    // The only window with it as a member was void; it was absent from the merged ones.
    assert_eq!(inactive_after(&[3]), [5]);
}

#[test]
fn one_or_two_validators_merge_a_window_only_together() {
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
            assert_eq!(inactive(), [[0; 0]; 2]);
        });
    }
}

#[test]
fn a_new_holder_is_not_inactive_because_of_its_predecessor() {
    with_terms(short_epochs(4), Terms { absence_windows: 9, ..terms() }, || {
        play_voters(0, &VALIDATORS, &[3, 4]);
        let members = || Participations::<Test>::get(RUN, 0).members.into_iter().map(|member| member.uid.0);
        assert!(members().eq([3, 4, 5]));
        assert_ok!(Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(5)));
        go_to(1, 0);
        assert!(members().eq([3, 4]));
    });
}
