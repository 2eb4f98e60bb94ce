//! Commit–reveal: an attestation or vote is a hash until its deadline, so that no validator can copy it (PROT-30).

use super::*;

/// The first block of each phase: reveal attestations, commit votes, reveal votes.
const REVEAL: u32 = 15;
const VOTE: u32 = 17;
const REVEAL_VOTE: u32 = 19;
const FIXED: u32 = 21;

fn committed(window: u32) {
    go_to(window, 0);
    for uid in MINERS {
        assert_ok!(commit(uid, window, uid as u8));
    }
    go_to(window, 9);
}

fn seen() -> Vec<(u16, Verdict)> {
    vec![(0, VALID), (1, VALID), (2, FAULTY)]
}

/// Plays a window up to the first block in which votes are committed.
fn attested(window: u32) {
    committed(window);
    for uid in VALIDATORS {
        assert_ok!(attest_hidden(uid, window, &seen()));
    }
    go_to(window, REVEAL);
    for uid in VALIDATORS {
        assert_ok!(reveal_attestation(uid, window, &seen()));
    }
    go_to(window, VOTE);
}

#[test]
fn a_window_with_commit_reveal_is_merged_like_any_other() {
    with_run(hidden_params(), || {
        committed(0);
        for uid in VALIDATORS {
            assert_ok!(attest_hidden(uid, 0, &seen()));
        }
        go_to(0, 14);
        assert_eq!(view(0).attested, []);
        go_to(0, 16);
        for uid in VALIDATORS {
            assert_ok!(reveal_attestation(uid, 0, &seen()));
        }
        assert_eq!((view(0).attested, view(0).selection), (uids(&VALIDATORS), None));
        go_to(0, VOTE);
        assert_eq!(selected(0), [0, 1]);
        for uid in VALIDATORS {
            assert_ok!(vote_hidden(uid, 0, 50));
        }
        assert_eq!(view(0).votes, []);
        go_to(0, 20);
        for uid in VALIDATORS {
            assert_ok!(reveal_vote(uid, 0, 50));
        }
        assert_eq!(outcome(0), None);
        go_to(0, FIXED);
        assert_eq!(outcome(0), Some(Outcome::Merged(ballot(50, None))));
        assert_eq!(HiddenAttestations::<Test>::iter().count() + HiddenVotes::<Test>::iter().count(), 0);
        go_to(1, 0);
        assert_eq!(view(1).salts.len(), 3);
    });
}

#[test]
fn attestations_and_votes_that_are_not_revealed_do_not_count() {
    with_run(hidden_params(), || {
        committed(0);
        for uid in VALIDATORS {
            assert_ok!(attest_hidden(uid, 0, &seen()));
        }
        go_to(0, REVEAL);
        assert_ok!(reveal_attestation(3, 0, &seen()));
        assert_ok!(reveal_attestation(4, 0, &seen()));
        go_to(0, VOTE);
        assert_noop!(reveal_attestation(5, 0, &seen()), Error::<Test>::TooLate);
        // Two thirds of the stake revealed. A validator that did not reveal may still vote.
        assert_eq!(selected(0), [0, 1]);
        assert_eq!(PresenceOf::<Test>::get(RUN, Uid(5)).unwrap().last_attested, None);
        for uid in VALIDATORS {
            assert_ok!(vote_hidden(uid, 0, 50));
        }
        go_to(0, REVEAL_VOTE);
        assert_ok!(reveal_vote(3, 0, 50));
        go_to(0, FIXED);
        assert_noop!(reveal_vote(4, 0, 50), Error::<Test>::TooLate);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::NoAgreement)));
    });
}

#[test]
fn each_phase_has_its_own_blocks() {
    with_run(hidden_params(), || {
        go_to(0, 8);
        assert_noop!(attest_hidden(3, 0, &[]), Error::<Test>::TooEarly);
        committed(0);
        assert_ok!(attest_hidden(3, 0, &seen()));
        assert_noop!(reveal_attestation(3, 0, &seen()), Error::<Test>::TooEarly);
        assert_noop!(vote_hidden(3, 0, 50), Error::<Test>::TooEarly);
        go_to(0, 14);
        assert_ok!(attest_hidden(4, 0, &seen()));
        go_to(0, 15);
        assert_noop!(attest_hidden(5, 0, &seen()), Error::<Test>::TooLate);
        assert_ok!(reveal_attestation(3, 0, &seen()));
        go_to(0, 16);
        assert_ok!(reveal_attestation(4, 0, &seen()));
        assert_noop!(vote_hidden(3, 0, 50), Error::<Test>::TooEarly);
        go_to(0, 17);
        assert_ok!(vote_hidden(3, 0, 50));
        assert_noop!(reveal_vote(3, 0, 50), Error::<Test>::TooEarly);
        go_to(0, 18);
        assert_ok!(vote_hidden(4, 0, 50));
        go_to(0, 19);
        assert_noop!(vote_hidden(5, 0, 50), Error::<Test>::TooLate);
        assert_ok!(reveal_vote(3, 0, 50));
        go_to(0, 20);
        assert_ok!(reveal_vote(4, 0, 50));
        go_to(0, 21);
        assert_noop!(reveal_vote(5, 0, 50), Error::<Test>::TooLate);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
    });
}

#[test]
fn only_the_committed_values_can_be_revealed() {
    with_run(hidden_params(), || {
        committed(0);
        assert_ok!(attest_hidden(3, 0, &seen()));
        // The fourth commits to the third's hash, and cannot reveal it.
        let hash = HiddenAttestations::<Test>::get((RUN, Window(0)), Uid(3)).unwrap();
        assert_ok!(Windows::attest_hidden(signed(4), RUN, Window(0), hash, digest(4)));
        go_to(0, REVEAL);
        assert_noop!(reveal_attestation(3, 0, &[(0, VALID)]), Error::<Test>::OtherThanCommitted);
        assert_noop!(
            Windows::reveal_attestation(signed(3), RUN, Window(0), verdicts(&seen()), salt(4)),
            Error::<Test>::OtherThanCommitted
        );
        assert_noop!(
            Windows::reveal_attestation(signed(4), RUN, Window(0), verdicts(&seen()), salt(3)),
            Error::<Test>::OtherThanCommitted
        );
        assert_noop!(reveal_attestation(5, 0, &seen()), Error::<Test>::NothingHidden);
        assert_ok!(reveal_attestation(3, 0, &seen()));
        assert_noop!(reveal_attestation(3, 0, &seen()), Error::<Test>::AlreadyAttested);
    });
    with_run(hidden_params(), || {
        attested(0);
        assert_ok!(vote_hidden(3, 0, 50));
        go_to(0, REVEAL_VOTE);
        assert_noop!(reveal_vote(3, 0, 51), Error::<Test>::OtherThanCommitted);
        assert_noop!(
            Windows::reveal_vote(signed(3), RUN, Window(0), ballot(50, None), salt(4)),
            Error::<Test>::OtherThanCommitted
        );
        assert_noop!(reveal_vote(4, 0, 50), Error::<Test>::NothingHidden);
        assert_ok!(reveal_vote(3, 0, 50));
        assert_noop!(reveal_vote(3, 0, 50), Error::<Test>::AlreadyVoted);
    });
}

#[test]
fn a_hash_is_committed_once() {
    with_run(hidden_params(), || {
        committed(0);
        assert_ok!(attest_hidden(3, 0, &seen()));
        assert_noop!(attest_hidden(3, 0, &[]), Error::<Test>::AlreadyAttested);
        for uid in [4, 5] {
            assert_ok!(attest_hidden(uid, 0, &seen()));
        }
        go_to(0, REVEAL);
        for uid in VALIDATORS {
            assert_ok!(reveal_attestation(uid, 0, &seen()));
        }
        go_to(0, VOTE);
        assert_ok!(vote_hidden(3, 0, 50));
        assert_noop!(vote_hidden(3, 0, 51), Error::<Test>::AlreadyVoted);
    });
}

#[test]
fn revealed_values_obey_the_same_rules_as_posted_ones() {
    with_run(hidden_params(), || {
        committed(0);
        assert_ok!(attest_hidden(3, 0, &[(1, VALID), (0, VALID)]));
        assert_ok!(attest_hidden(4, 0, &[(9, VALID)]));
        assert_ok!(attest_hidden(5, 0, &seen()));
        go_to(0, REVEAL);
        assert_noop!(reveal_attestation(3, 0, &[(1, VALID), (0, VALID)]), Error::<Test>::VerdictsNotSorted);
        assert_noop!(reveal_attestation(4, 0, &[(9, VALID)]), Error::<Test>::NothingCommitted);
    });
    with_run(RunParams { checkpoint_windows: 1, ..hidden_params() }, || {
        attested(0);
        assert_ok!(vote_hidden(3, 0, 50));
        go_to(0, REVEAL_VOTE);
        assert_noop!(reveal_vote(3, 0, 50), Error::<Test>::StateRootMissing);
    });
    with_run(hidden_params(), || {
        attested(0);
        let with_root = ballot(50, Some(1));
        let hash = protocol::reveal::commitment(&with_root, &salt(3), &public(3));
        assert_ok!(Windows::vote_hidden(signed(3), RUN, Window(0), hash));
        go_to(0, REVEAL_VOTE);
        assert_noop!(
            Windows::reveal_vote(signed(3), RUN, Window(0), with_root, salt(3)),
            Error::<Test>::StateRootUnexpected
        );
    });
}

#[test]
fn a_run_takes_either_posted_calls_or_commit_reveal_calls() {
    with_run(hidden_params(), || {
        committed(0);
        assert_noop!(attest(3, 0, &seen()), Error::<Test>::MustBeHidden);
        assert_noop!(vote(3, 0, 50, None), Error::<Test>::MustBeHidden);
    });
    with_run(params(), || {
        committed(0);
        assert_noop!(attest_hidden(3, 0, &seen()), Error::<Test>::NotHidden);
        assert_noop!(reveal_attestation(3, 0, &seen()), Error::<Test>::NotHidden);
        assert_noop!(vote_hidden(3, 0, 50), Error::<Test>::NotHidden);
        assert_noop!(reveal_vote(3, 0, 50), Error::<Test>::NotHidden);
    });
}

#[test]
fn only_validators_commit_and_reveal_and_only_in_the_open_window() {
    with_run(hidden_params(), || {
        assert_noop!(attest_hidden(3, 0, &[]), Error::<Test>::NotStarted);
        committed(0);
        for (uid, refused) in [(0, Error::<Test>::NotAValidator), (40, Error::<Test>::NotASeat)] {
            assert_noop!(attest_hidden(uid, 0, &[]), refused);
        }
        for window in [1, 2] {
            assert_noop!(attest_hidden(3, window, &[]), Error::<Test>::TooEarly);
        }
        let newcomer = register(RUN, Role::Validator, STAKE);
        for uid in [3, 4, 5, newcomer] {
            assert_ok!(attest_hidden(uid, 0, &seen()));
        }
        go_to(0, REVEAL);
        for uid in [3, 4, 5, newcomer] {
            assert_ok!(reveal_attestation(uid, 0, &seen()));
        }
        for (uid, refused) in [(0, Error::<Test>::NotAValidator), (40, Error::<Test>::NotASeat)] {
            assert_noop!(reveal_attestation(uid, 0, &[]), refused);
        }
        go_to(0, VOTE);
        assert_noop!(vote_hidden(newcomer, 0, 50), Error::<Test>::NotInActiveSet);
        for (uid, refused) in [(0, Error::<Test>::NotAValidator), (40, Error::<Test>::NotASeat)] {
            assert_noop!(vote_hidden(uid, 0, 50), refused);
        }
        go_to(0, REVEAL_VOTE);
        for (uid, refused) in [(0, Error::<Test>::NotAValidator), (40, Error::<Test>::NotASeat)] {
            assert_noop!(reveal_vote(uid, 0, 50), refused);
        }
        go_to(1, 9);
        assert_noop!(attest_hidden(3, 0, &[]), Error::<Test>::TooLate);
        let none = RuntimeOrigin::none;
        let (window, hash) = (Window(1), digest(1));
        assert_noop!(Windows::attest_hidden(none(), RUN, window, hash, hash), DispatchError::BadOrigin);
        assert_noop!(
            Windows::reveal_attestation(none(), RUN, window, verdicts(&[]), salt(3)),
            DispatchError::BadOrigin
        );
        assert_noop!(Windows::vote_hidden(none(), RUN, window, hash), DispatchError::BadOrigin);
        assert_noop!(
            Windows::reveal_vote(none(), RUN, window, ballot(50, None), salt(3)),
            DispatchError::BadOrigin
        );
    });
}

#[test]
fn an_empty_selection_takes_no_votes() {
    with_run(hidden_params(), || {
        go_to(0, VOTE);
        assert_noop!(vote_hidden(3, 0, 50), Error::<Test>::NothingSelected);
    });
}

#[test]
fn reveals_that_end_with_the_window_are_counted_at_the_next_opening() {
    let schedule = Schedule { blocks_per_window: 21, ..hidden_params().schedule };
    with_run(RunParams { schedule, ..hidden_params() }, || {
        attested(0);
        for uid in VALIDATORS {
            assert_ok!(vote_hidden(uid, 0, 50));
        }
        go_to(0, 20);
        for uid in VALIDATORS {
            assert_ok!(reveal_vote(uid, 0, 50));
        }
        assert_eq!(outcome(0), None);
        go_to(1, 0);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        assert_ne!(view(1).lineage, view(0).lineage);
    });
}

/// Reveals the attestations of `revealing` in window 0. Returns the seed with which window 1 deals the next window's
/// data. `hash` is that of the block before the deal.
fn deal_seed_after(revealing: &[u16], hash: u8) -> Option<Digest> {
    let mut seed = None;
    with_run(hidden_params(), || {
        committed(0);
        for uid in VALIDATORS {
            assert_ok!(attest_hidden(uid, 0, &seen()));
        }
        go_to(0, REVEAL);
        for uid in revealing {
            assert_ok!(reveal_attestation(*uid, 0, &seen()));
        }
        let deal = hidden_params().schedule.deals_next_at(Window(1));
        go_to(1, 2);
        let before = u64::from(deal.0) - 1;
        frame_system::BlockHash::<Test>::insert(
            before,
            <Test as frame_system::Config>::Hash::from([hash; 32]),
        );
        Windows::deal_next(RUN, Window(1), deal);
        seed = view(1).next_deal.map(|deal| deal.seed);
    });
    seed
}

#[test]
fn the_author_of_a_block_does_not_choose_the_assignment() {
    let [a, b] = [1, 2].map(|hash| deal_seed_after(&VALIDATORS, hash));
    assert!(a.is_some());
    assert_eq!(a, b);
    let backwards: Vec<u16> = VALIDATORS.into_iter().rev().collect();
    assert_eq!(deal_seed_after(&backwards, 1), a, "the order of the reveals chooses nothing");
}

#[test]
fn without_the_salts_of_two_thirds_a_block_hash_deals() {
    for revealing in [&[][..], &VALIDATORS[..1]] {
        assert_eq!(deal_seed_after(revealing, 7), Some(Digest([7; 32])), "{revealing:?}");
    }
    assert_ne!(deal_seed_after(&VALIDATORS[..2], 7), Some(Digest([7; 32])));
}
