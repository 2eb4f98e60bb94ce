//! Free calls: those that would succeed, and the first few commitments.

use super::*;
use frame::deps::frame_support::dispatch::CheckIfFeeless as _;

type Call = crate::Call<Test>;

fn is_free(uid: u16, call: Call) -> bool {
    RuntimeCall::from(call).is_feeless(&signed(uid))
}

const NOW: Window = Window(0);

fn commit_call(digest: Digest) -> Call {
    Call::commit { run: RUN, window: NOW, digest }
}

fn attest_call(of: &[(u16, Verdict)]) -> Call {
    Call::attest { run: RUN, window: NOW, verdicts: verdicts(of), next_salt: digest(1) }
}

#[test]
fn a_commitment_is_free_four_times_and_then_allowed_for_a_fee() {
    with_run(params(), || {
        assert!(!is_free(0, commit_call(digest(1))));
        go_to(0, 0);
        for times in 0..4 {
            assert!(is_free(0, commit_call(digest(times))));
            assert_ok!(commit(0, 0, times));
        }
        assert!(!is_free(0, commit_call(digest(5))));
        assert_ok!(commit(0, 0, 5));
        assert_eq!(view(0).commitments, [(Uid(0), digest(5))]);
        // A seat that may not commit gets no free call.
        assert!(!is_free(3, commit_call(digest(1))));
        assert!(!is_free(40, commit_call(digest(1))));
        assert!(!RuntimeCall::from(commit_call(digest(1))).is_feeless(&RuntimeOrigin::none()));
        for _ in 0..300 {
            assert_ok!(commit(1, 0, 5));
        }
        assert!(!is_free(1, commit_call(digest(5))));
        go_to(0, 9);
        assert!(!is_free(2, commit_call(digest(1))));
    });
}

#[test]
fn attestations_and_votes_are_free_while_they_would_succeed() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        assert!(!is_free(3, attest_call(&[(0, VALID)])));
        go_to(0, 9);
        assert!(is_free(3, attest_call(&[(0, VALID)])));
        assert!(!is_free(3, attest_call(&[(1, VALID)])));
        assert!(!is_free(0, attest_call(&[(0, VALID)])));
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        assert!(!is_free(3, attest_call(&[(0, VALID)])));
        let vote_call = || Call::vote { run: RUN, window: NOW, vote: ballot(50, None) };
        assert!(!is_free(3, vote_call()));
        go_to(0, 15);
        assert!(is_free(3, vote_call()));
        assert_ok!(vote(3, 0, 50, None));
        assert!(!is_free(3, vote_call()));
        let anchor = || Call::anchor_receipts { run: RUN, window: NOW, digest: digest(1), probes: digest(2) };
        assert!(!is_free(3, anchor()));
        go_to(0, 18);
        assert!(is_free(3, anchor()));
        assert_ok!(Windows::anchor_receipts(signed(3), RUN, NOW, digest(1), digest(2)));
        assert!(!is_free(3, anchor()));
    });
}

#[test]
fn commits_and_reveals_are_free_while_they_would_succeed() {
    with_run(hidden_params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        let seen = [(0, VALID)];
        let commit = || Call::attest_hidden { run: RUN, window: NOW, hash: digest(1), next_salt: digest(1) };
        let reveal =
            |of| Call::reveal_attestation { run: RUN, window: NOW, verdicts: verdicts(of), salt: salt(3) };
        assert!(is_free(3, commit()));
        for uid in VALIDATORS {
            assert_ok!(attest_hidden(uid, 0, &seen));
        }
        assert!(!is_free(3, commit()) && !is_free(3, reveal(&seen)));
        go_to(0, 15);
        assert!(is_free(3, reveal(&seen)) && !is_free(3, reveal(&[])));
        for uid in VALIDATORS {
            assert_ok!(reveal_attestation(uid, 0, &seen));
        }
        assert!(!is_free(3, reveal(&seen)));
        go_to(0, 17);
        let commit = || Call::vote_hidden { run: RUN, window: NOW, hash: digest(1) };
        let reveal =
            |update| Call::reveal_vote { run: RUN, window: NOW, vote: ballot(update, None), salt: salt(3) };
        assert!(is_free(3, commit()));
        assert_ok!(vote_hidden(3, 0, 50));
        assert!(!is_free(3, commit()) && !is_free(3, reveal(50)));
        go_to(0, 19);
        assert!(is_free(3, reveal(50)) && !is_free(3, reveal(51)));
        assert_ok!(reveal_vote(3, 0, 50));
        assert!(!is_free(3, reveal(50)));
    });
}

#[test]
fn a_report_pays_a_fee_until_it_proves_an_equivocation() {
    with_run(params(), || {
        go_to(0, 0);
        let kind = protocol::statement::StatementKind::Vote;
        let signed = statement(3, 0, kind, digest(1));
        let call = Call::report_contradiction { hotkey: public(3), statement: signed };
        assert_eq!(call.get_dispatch_info().pays_fee, Pays::Yes);
        assert!(!is_free(3, call));
    });
}
