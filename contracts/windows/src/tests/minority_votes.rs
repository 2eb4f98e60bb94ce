//! Minority votes: the votes that count as one, and those that never do (PROT-19).

use super::*;

fn minority_votes(epoch: u32) -> Vec<(u16, u32)> {
    let mut all: Vec<_> =
        MinorityVotes::<Test>::iter_prefix((RUN, epoch)).map(|(uid, count)| (uid.0, count)).collect();
    all.sort_unstable();
    all
}

/// Plays a window in which the validators vote for these updates; an omitted validator does not vote.
fn play_votes(window: u32, votes: &[(u16, u8)]) {
    go_to(window, 1);
    assert_ok!(commit(0, window, 1));
    go_to(window, 9);
    for uid in VALIDATORS {
        assert_ok!(attest(uid, window, &[(0, VALID)]));
    }
    go_to(window, 15);
    let state_root = params().is_checkpoint(Window(window)).then_some(7);
    for (uid, update) in votes {
        assert_ok!(vote(*uid, window, *update, state_root));
    }
    go_to(window, 18);
}

#[test]
fn a_vote_against_two_thirds_counts_when_the_epoch_closes() {
    let params = RunParams { epoch_windows: 2, reveal_windows: 1, ..params() };
    with_terms(params, Terms { absence_windows: 9, ..terms() }, || {
        play_votes(0, &[(3, 50), (4, 50), (5, 51)]);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        assert_eq!(minority_votes(0), [(5, 1)]);
        let (run, window) = (RUN, Window(0));
        assert!(events().contains(&Event::MinorityVote { run, window, uid: Uid(5), update: digest(51) }));
        play_votes(1, &[(3, 50), (4, 50), (5, 51)]);
        play_votes(2, &[(3, 50), (4, 51), (5, 50)]);
        assert_eq!((minority_votes(0), minority_votes(1)), (vec![(5, 2)], vec![(4, 1)]));
        go_to(3, 0);
        let told = |epoch: usize| {
            Closed::get()[epoch].2.iter().map(|member| member.minority_votes).collect::<Vec<_>>()
        };
        assert_eq!(told(0), [0, 0, 2]);
        assert_eq!((minority_votes(0), minority_votes(1)), (vec![], vec![(4, 1)]));
        go_to(5, 0);
        assert_eq!(told(1), [0, 1, 0]);
        assert_eq!(minority_votes(1), []);
    });
}

#[test]
fn a_missing_vote_is_no_minority_vote() {
    with_run(params(), || {
        play_votes(0, &[(3, 50), (4, 50)]);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        assert_eq!(minority_votes(0), []);
    });
}

#[test]
fn a_void_window_has_no_minority_votes() {
    with_run(params(), || {
        play_votes(0, &[(3, 50), (4, 51), (5, 52)]);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::NoAgreement)));
        play_votes(1, &[(3, 50), (4, 51)]);
        assert_eq!(outcome(1), Some(Outcome::Void(VoidReason::NoAgreement)));
        assert_eq!(minority_votes(0), []);
    });
}

#[test]
fn another_state_root_with_the_same_update_is_no_minority_vote() {
    with_run(RunParams { checkpoint_windows: 1, ..params() }, || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 15);
        for (uid, root) in [(3, 1), (4, 1), (5, 2)] {
            assert_ok!(vote(uid, 0, 50, Some(root)));
        }
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Merged(ballot(50, Some(1)))));
        assert_eq!(minority_votes(0), []);
    });
}
