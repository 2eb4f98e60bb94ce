//! A window block by block, and every refusal with storage unchanged (PROT-33).

use crate::{Member, mock::*, *};
use frame::testing_prelude::*;

use proptest::prelude::*;
use protocol::{
    Role, RunParams, Schedule, Terms, Uid, Window, assign, lineage,
    select::{self, Candidate},
    statement::{Equivocation, StatementKind},
    view::{Checkpoint, Outcome, Verdict, VoidReason, Vote},
};
use std::collections::{BTreeMap, BTreeSet};

mod commit_reveal;
mod equivocation;
mod feeless;
mod late;
mod minority_votes;
mod participation;
mod presence;
mod rewind;
mod scale;
mod seats;

const VALID: Verdict = Verdict::Valid;
const FAULTY: Verdict = Verdict::Faulty;

fn uids(range: &[u16]) -> Vec<Uid> {
    range.iter().copied().map(Uid).collect()
}

fn genesis() -> Digest {
    lineage::genesis(&params(), &digest(2), &digest(3))
}

// Valid windows.

#[test]
fn a_window_records_its_participants_as_it_opens() {
    with_run(params(), || {
        go_to_block(9);
        assert_eq!(Windows::window_view(RUN, Window(0)), None);
        assert_eq!(Windows::position(RUN).unwrap().window, None);
        go_to(0, 0);
        let view = view(0);
        assert_eq!(view.slots, uids(&MINERS));
        assert_eq!(view.active_set, VALIDATORS.map(|uid| (Uid(uid), STAKE)));
        assert_eq!((view.cursor, view.lineage), (0, genesis()));
        assert_eq!((view.opening_hash, view.evaluation_hash, view.outcome), (None, None, None));
        assert_eq!(Windows::position(RUN).unwrap().window, Some(Window(0)));
        assert!(events().contains(&Event::WindowOpened {
            run: RUN,
            window: Window(0),
            slots: 3,
            active_set: 3,
            cursor: 0,
            lineage: genesis(),
        }));
    });
}

#[test]
fn the_hashes_that_seed_a_window_are_recorded_one_block_later() {
    with_run(params(), || {
        go_to(0, 1);
        assert_eq!(view(0).opening_hash, Some(Digest(hash_of(10).0)));
        go_to(0, 9);
        assert_eq!(view(0).evaluation_hash, None);
        go_to(0, 10);
        assert_eq!(view(0).evaluation_hash, Some(Digest(hash_of(19).0)));
    });
}

#[test]
fn a_window_deals_the_data_of_the_next_one() {
    with_run(params(), || {
        go_to(0, 1);
        assert_eq!(view(0).deal_seed, view(0).opening_hash, "no window before it dealt the first one's data");
        let deal = SCHEDULE.deal_offset();
        let early = register(RUN, Role::Miner, 1);
        go_to(0, deal - 1);
        assert_eq!(view(0).next_deal, None);
        go_to(0, deal);
        let late = register(RUN, Role::Miner, 1);
        let next = view(0).next_deal.unwrap();
        assert_eq!(next.slots, uids(&[0, 1, 2, early]));
        assert_eq!((next.seed, next.cursor), (Digest(hash_of(10 + u64::from(deal) - 1).0), 21));

        // The window opens in this block, and a seat registered after the deal waits.
        go_to(1, 0);
        let opened = view(1);
        assert_eq!(
            (opened.deal_seed, opened.slots, opened.cursor),
            (Some(next.seed), next.slots, next.cursor)
        );
        assert_eq!((view(0).next_deal, opened.next_deal), (None, None));
        assert_ok!(commit(early, 1, 1));
        assert_noop!(commit(late, 1, 1), Error::<Test>::NotInThisWindow);
        go_to(2, 0);
        assert_eq!(view(2).slots, uids(&[0, 1, 2, early, late]));
        assert_eq!(view(2).cursor, 21 + 28);
    });
}

#[test]
fn a_seat_that_leaves_after_the_deal_takes_no_part_and_its_later_holder_waits() {
    with_run(params(), || {
        go_to(0, SCHEDULE.deal_offset());
        let left = pallet_registry::SeatsOf::<Test>::get(RUN, Uid(2)).unwrap();
        pallet_registry::SeatsOf::<Test>::remove(RUN, Uid(2));
        go_to(1, 0);
        assert_eq!(view(1).slots, uids(&MINERS), "the other seats keep the data that they were dealt");
        assert_noop!(commit(2, 1, 1), Error::<Test>::NotASeat);
        let newcomer = pallet_registry::Seat { since: Window(2), ..left.clone() };
        pallet_registry::SeatsOf::<Test>::insert(RUN, Uid(2), newcomer);
        assert_noop!(commit(2, 1, 1), Error::<Test>::NotInThisWindow);
        pallet_registry::SeatsOf::<Test>::insert(RUN, Uid(2), left);
        assert_ok!(commit(2, 1, 1));
    });
}

#[test]
fn a_good_window_is_merged_and_moves_the_lineage() {
    with_run(params(), || {
        go_to(0, 0);
        for uid in MINERS {
            assert_ok!(commit(uid, 0, uid as u8));
        }
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID), (1, VALID), (2, FAULTY)]));
        }
        go_to(0, 14);
        assert_eq!(view(0).selection, None);
        go_to(0, 15);
        let selection = view(0).selection.unwrap();
        assert_eq!((selection.valid, selection.faulty), (uids(&[0, 1]), uids(&[2])));
        assert_eq!(
            selection.selected.iter().map(|seat| seat.digest).collect::<Vec<_>>(),
            [digest(0), digest(1)]
        );
        for uid in VALIDATORS {
            assert_ok!(vote(uid, 0, 50, None));
        }
        go_to(0, 17);
        assert_eq!(outcome(0), None);
        go_to(0, 18);
        let merged = Outcome::Merged(Vote { update: digest(50), state_root: None });
        let after = lineage::next(&genesis(), &digest(50));
        assert_eq!(outcome(0), Some(merged));
        assert!(events().contains(&Event::WindowFinalised {
            run: RUN,
            window: Window(0),
            outcome: merged,
            lineage: after,
        }));
        go_to(1, 0);
        assert_eq!(view(1).lineage, after);
    });
}

#[test]
fn the_salts_for_a_window_are_committed_in_the_one_before() {
    with_run(params(), || {
        play(0, &VALIDATORS);
        assert_eq!(view(0).salts, []);
        assert_eq!(view(0).attested, uids(&VALIDATORS));
        go_to(1, 0);
        assert_eq!(view(1).salts, VALIDATORS.map(|uid| (Uid(uid), digest(uid as u8))));
        assert_eq!(view(1).attested, []);
    });
}

#[test]
fn the_last_commitment_counts() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        assert_ok!(commit(0, 0, 2));
        assert_eq!(view(0).commitments, [(Uid(0), digest(2))]);
        let replaced =
            Event::Committed { run: RUN, window: Window(0), uid: Uid(0), digest: digest(2), replaced: true };
        assert_eq!(events().last(), Some(&replaced));
    });
}

// Deadlines.

#[test]
fn a_commitment_is_in_time_up_to_the_block_of_its_deadline() {
    with_run(params(), || {
        go_to(0, SCHEDULE.commit_by);
        assert_ok!(commit(0, 0, 1));
        go_to(0, SCHEDULE.commit_by + 1);
        assert_noop!(commit(1, 0, 1), Error::<Test>::TooLate);
        go_to(1, 0);
        assert_ok!(commit(0, 1, 1));
    });
}

#[test]
fn an_attestation_is_in_time_after_the_commitments_and_up_to_its_deadline() {
    with_run(params(), || {
        go_to(0, SCHEDULE.commit_by);
        assert_noop!(attest(3, 0, &[]), Error::<Test>::TooEarly);
        go_to(0, SCHEDULE.commit_by + 1);
        assert_ok!(attest(3, 0, &[]));
        go_to(0, SCHEDULE.attest_by);
        assert_ok!(attest(4, 0, &[]));
        go_to(0, SCHEDULE.attest_by + 1);
        assert_noop!(attest(5, 0, &[]), Error::<Test>::TooLate);
    });
}

#[test]
fn a_vote_is_in_time_after_the_selection_and_up_to_its_deadline() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, SCHEDULE.attest_by);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        assert_noop!(vote(3, 0, 50, None), Error::<Test>::TooEarly);
        go_to(0, SCHEDULE.attest_by + 1);
        assert_ok!(vote(3, 0, 50, None));
        go_to(0, SCHEDULE.vote_by);
        assert_ok!(vote(4, 0, 50, None));
        go_to(0, SCHEDULE.vote_by + 1);
        assert_noop!(vote(5, 0, 50, None), Error::<Test>::TooLate);
        assert_eq!(outcome(0), Some(Outcome::Merged(Vote { update: digest(50), state_root: None })));
    });
}

#[test]
fn only_the_open_window_takes_calls() {
    with_run(params(), || {
        assert_noop!(commit(0, 0, 1), Error::<Test>::NotStarted);
        assert_noop!(attest(3, 0, &[]), Error::<Test>::NotStarted);
        assert_noop!(vote(3, 0, 1, None), Error::<Test>::NotStarted);
        let other = RunId(8);
        assert_noop!(Windows::commit(signed(0), other, Window(0), digest(1)), Error::<Test>::UnknownRun);
        go_to(1, 9);
        assert_noop!(commit(0, 0, 1), Error::<Test>::TooLate);
        assert_noop!(commit(0, 2, 1), Error::<Test>::TooEarly);
        assert_noop!(attest(3, 0, &[]), Error::<Test>::TooLate);
        assert_noop!(attest(3, 2, &[]), Error::<Test>::TooEarly);
        assert_noop!(vote(3, 0, 1, None), Error::<Test>::TooLate);
        assert_noop!(vote(3, 2, 1, None), Error::<Test>::TooEarly);
    });
}

// Permissions.

#[test]
fn only_miners_commit_and_only_validators_attest_and_vote() {
    with_run(params(), || {
        go_to(0, 0);
        assert_noop!(commit(3, 0, 1), Error::<Test>::NotAMiner);
        assert_noop!(commit(40, 0, 1), Error::<Test>::NotASeat);
        assert_noop!(
            Windows::commit(RuntimeOrigin::none(), RUN, Window(0), digest(1)),
            DispatchError::BadOrigin
        );
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        assert_noop!(attest(0, 0, &[]), Error::<Test>::NotAValidator);
        assert_noop!(attest(40, 0, &[]), Error::<Test>::NotASeat);
        go_to(0, 15);
        assert_noop!(vote(0, 0, 1, None), Error::<Test>::NotAValidator);
        assert_noop!(vote(40, 0, 1, None), Error::<Test>::NotASeat);
    });
}

#[test]
fn a_seat_counts_from_the_first_window_opened_after_its_registration() {
    with_run(params(), || {
        go_to(0, 0);
        let miner = register(RUN, Role::Miner, 1);
        let validator = register(RUN, Role::Validator, STAKE);
        assert_noop!(commit(miner, 0, 1), Error::<Test>::NotInThisWindow);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        // A newcomer may attest, which records its salt; its verdicts do not count yet.
        assert_ok!(attest(validator, 0, &[(0, FAULTY)]));
        go_to(0, 15);
        assert_noop!(vote(validator, 0, 50, None), Error::<Test>::NotInActiveSet);
        go_to(1, 0);
        assert_eq!(view(1).slots, uids(&[0, 1, 2, 6]));
        // In the epoch's second window, two tenths of the established 300 count of its stake.
        assert_eq!(view(1).active_set.last(), Some(&(Uid(validator), 60)));
        assert_ok!(commit(miner, 1, 1));
    });
}

#[test]
fn one_attestation_is_final() {
    with_run(params(), || {
        go_to(0, 9);
        assert_ok!(attest(3, 0, &[]));
        assert_noop!(attest(3, 0, &[]), Error::<Test>::AlreadyAttested);
    });
}

#[test]
fn verdicts_ascend_and_name_seats_that_committed() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        assert_ok!(commit(1, 0, 1));
        go_to(0, 9);
        assert_noop!(attest(3, 0, &[(1, VALID), (0, VALID)]), Error::<Test>::VerdictsNotSorted);
        assert_noop!(attest(3, 0, &[(0, VALID), (0, FAULTY)]), Error::<Test>::VerdictsNotSorted);
        assert_noop!(attest(3, 0, &[(0, VALID), (2, FAULTY)]), Error::<Test>::NothingCommitted);
        assert_noop!(attest(3, 0, &[(0, VALID), (9, VALID)]), Error::<Test>::NothingCommitted);
        assert_ok!(attest(3, 0, &[(0, VALID), (1, FAULTY)]));
    });
}

#[test]
fn one_vote_is_final() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 15);
        assert_ok!(vote(3, 0, 50, None));
        assert_noop!(vote(3, 0, 50, None), Error::<Test>::AlreadyVoted);
        assert_noop!(vote(3, 0, 51, None), Error::<Test>::AlreadyVoted);
    });
}

#[test]
fn a_state_root_is_voted_at_checkpoints_and_only_there() {
    with_run(params(), || {
        for window in 0..3 {
            go_to(window, 0);
            assert_ok!(commit(0, window, 1));
            go_to(window, 9);
            for uid in VALIDATORS {
                assert_ok!(attest(uid, window, &[(0, VALID)]));
            }
            go_to(window, 15);
            if window < 2 {
                assert_noop!(vote(3, window, 50, Some(1)), Error::<Test>::StateRootUnexpected);
            } else {
                assert_noop!(vote(3, window, 50, None), Error::<Test>::StateRootMissing);
            }
        }
    });
}

// The two-thirds threshold.

#[test]
fn exactly_two_thirds_of_the_stake_make_a_contribution_valid() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        assert_ok!(commit(1, 0, 2));
        go_to(0, 9);
        // With three equal stakes, two are two thirds and one is not.
        assert_ok!(attest(3, 0, &[(0, VALID), (1, VALID)]));
        assert_ok!(attest(4, 0, &[(0, VALID), (1, FAULTY)]));
        go_to(0, 15);
        let selection = view(0).selection.unwrap();
        assert_eq!((selection.valid, selection.faulty), (uids(&[0]), vec![]));
        assert_eq!(selected(0), [0]);
    });
}

#[test]
fn one_unit_less_than_two_thirds_of_the_stake_is_no_agreement() {
    with_run(params(), || {
        // Stakes of 100, 100 and 101: 200 of 301 is less than two thirds.
        let add = Registry::add_stake(RuntimeOrigin::signed(COLDKEY), RUN, Uid(5), 1);
        assert_ok!(add);
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 15);
        assert_ok!(vote(3, 0, 50, None));
        assert_ok!(vote(4, 0, 50, None));
        assert_ok!(vote(5, 0, 51, None));
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::NoAgreement)));
    });
}

#[test]
fn windows_are_merged_with_one_of_three_validators_absent_and_void_with_two() {
    with_terms(params(), Terms { absence_windows: 9, ..terms() }, || {
        play(0, &[3, 4]);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        play(1, &[3]);
        assert_eq!(outcome(1), Some(Outcome::Void(VoidReason::TooFewContributions)));
        play(2, &[3, 5]);
        assert!(matches!(outcome(2), Some(Outcome::Merged(_))));
    });
}

// Void windows.

#[test]
fn a_window_without_enough_contributions_is_void_and_leaves_the_lineage() {
    with_run(RunParams { min_contributions: 2, ..params() }, || {
        let before = ProgressOf::<Test>::get(RUN).unwrap().lineage;
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 15);
        assert_eq!(view(0).selection.unwrap().valid, uids(&[0]));
        assert!(selected(0).is_empty());
        assert_noop!(vote(3, 0, 50, None), Error::<Test>::NothingSelected);
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::TooFewContributions)));
        go_to(1, 0);
        assert_eq!(view(1).lineage, before);
    });
}

#[test]
fn a_window_without_votes_is_void() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::NoAgreement)));
    });
}

#[test]
fn a_void_window_consumes_its_data() {
    with_run(params(), || {
        play(0, &VALIDATORS);
        play(1, &[]);
        play(2, &VALIDATORS);
        go_to(3, 0);
        // Three slots of seven sequences per window.
        assert_eq!([0, 1, 2, 3].map(|window| view(window).cursor), [0, 21, 42, 63]);
        register(RUN, Role::Miner, 1);
        go_to(5, 0);
        assert_eq!([4, 5].map(|window| view(window).cursor), [84, 84 + 28]);
    });
}

// Absence and pause.

#[test]
fn an_absent_validator_leaves_the_active_set_and_returns_by_attesting() {
    with_run(params(), || {
        let members = |window| view(window).active_set.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>();
        play(0, &VALIDATORS);
        play(1, &[3, 4]);
        play(2, &[3, 4]);
        go_to(2, 18);
        assert_eq!(members(2), VALIDATORS);
        go_to(3, 0);
        // Absent in windows 1 and 2.
        assert_eq!(members(3), [3, 4]);
        play(3, &[3, 4]);
        assert!(matches!(outcome(3), Some(Outcome::Merged(_))));
        play(4, &VALIDATORS);
        assert_eq!(members(4), [3, 4]);
        go_to(5, 0);
        assert_eq!(members(5), VALIDATORS);
    });
}

#[test]
fn a_run_is_paused_while_its_active_set_is_below_quorum() {
    with_run(params(), || {
        play(0, &VALIDATORS);
        play(1, &[3]);
        play(2, &[3]);
        go_to(3, 0);
        // 100 of 300 bonded.
        assert_eq!(view(3).active_set, [(Uid(3), STAKE)]);
        assert!(ProgressOf::<Test>::get(RUN).unwrap().paused);
        assert!(events().contains(&Event::Paused {
            run: RUN,
            window: Window(3),
            active_set_stake: 100,
            bonded_stake: 300,
        }));
        play(3, &VALIDATORS);
        assert_eq!(view(3).selection.unwrap().valid, uids(&MINERS));
        assert!(selected(3).is_empty());
        assert_eq!(outcome(3), Some(Outcome::Void(VoidReason::Paused)));
        go_to(4, 0);
        assert!(!ProgressOf::<Test>::get(RUN).unwrap().paused);
        assert!(events().contains(&Event::Resumed { run: RUN, window: Window(4) }));
        play(4, &VALIDATORS);
        assert!(matches!(outcome(4), Some(Outcome::Merged(_))));
    });
}

#[test]
fn a_run_without_validators_is_paused() {
    chain().execute_with(|| {
        create_run(params(), terms());
        register(RUN, Role::Miner, 1);
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::Paused)));
        assert!(ProgressOf::<Test>::get(RUN).unwrap().paused);
    });
}

#[test]
fn the_active_set_is_the_largest_validators_with_the_minimum_stake() {
    with_terms(params(), Terms { active_set_max: 2, ..terms() }, || {
        assert_eq!(register(RUN, Role::Validator, STAKE + 1), 6);
        go_to(0, 0);
        assert_eq!(view(0).active_set, [(Uid(3), STAKE), (Uid(6), STAKE + 1)]);
        go_to(0, 9);
        assert_ok!(attest(4, 0, &[]));
        go_to(0, 15);
        assert_noop!(vote(4, 0, 1, None), Error::<Test>::NotInActiveSet);
    });
}

// Checkpoints.

#[test]
fn a_checkpoint_is_the_state_that_two_thirds_voted() {
    with_run(params(), || {
        play(0, &VALIDATORS);
        play(1, &VALIDATORS);
        assert_eq!(ProgressOf::<Test>::get(RUN).unwrap().checkpoint, None);
        play(2, &VALIDATORS);
        let lineage = (50..53).fold(genesis(), |lineage, update| lineage::next(&lineage, &digest(update)));
        let checkpoint = Checkpoint { window: Window(3), state_root: digest(77), lineage };
        assert_eq!(ProgressOf::<Test>::get(RUN).unwrap().checkpoint, Some(checkpoint));
        assert!(events().contains(&Event::CheckpointFinalised { run: RUN, checkpoint }));
        go_to(3, 0);
        assert_eq!(view(3).lineage, lineage);
    });
}

#[test]
fn an_update_is_merged_if_only_the_state_roots_differ() {
    with_run(RunParams { checkpoint_windows: 1, ..params() }, || {
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 15);
        for uid in VALIDATORS {
            assert_ok!(vote(uid, 0, 50, Some(uid as u8)));
        }
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Merged(Vote { update: digest(50), state_root: None })));
        assert_eq!(ProgressOf::<Test>::get(RUN).unwrap().checkpoint, None);
    });
}

// Selection, epochs and scheduled tasks.

#[test]
fn selection_draws_by_the_weights_recorded_at_the_opening() {
    with_run(RunParams { places: 1, reserve_places: 1, newcomer_windows: 0, ..params() }, || {
        play(0, &VALIDATORS);
        StandingWeights::set(vec![(Uid(1), 65535), (Uid(2), 100)]);
        go_to(1, 0);
        StandingWeights::set(vec![(Uid(2), 65535)]);
        play(1, &VALIDATORS);
        assert_eq!(view(1).weights, [(Uid(1), 65535), (Uid(2), 100)]);
        assert_eq!(selected(1), [1]);
        play(2, &VALIDATORS);
        assert_eq!(selected(2), [2]);
    });
}

#[test]
fn a_seat_is_a_newcomer_for_newcomer_windows_after_its_registration() {
    with_run(RunParams { newcomer_windows: 1, ..params() }, || {
        // The consensus has weights, none of them for a seat that commits.
        StandingWeights::set(vec![(Uid(200), 65535)]);
        play(0, &VALIDATORS);
        assert_eq!(selected(0), MINERS);
        play(1, &VALIDATORS);
        assert_eq!(selected(1), MINERS);
        play(2, &VALIDATORS);
        assert!(selected(2).is_empty());
    });
}

#[test]
fn every_seat_is_a_newcomer_before_the_first_consensus() {
    with_run(RunParams { newcomer_windows: 1, ..params() }, || {
        for window in 0..4 {
            play(window, &VALIDATORS);
            assert_eq!(selected(window), MINERS);
        }
        // After the first consensus, newcomers age.
        StandingWeights::set(vec![(Uid(200), 65535)]);
        play(4, &VALIDATORS);
        play(5, &VALIDATORS);
        assert!(selected(5).is_empty());
    });
}

#[test]
fn the_opening_hash_does_not_tell_which_newcomers_are_drawn() {
    let params = RunParams { places: 1, reserve_places: 1, ..params() };
    with_run(params, || {
        let miners: Vec<u16> =
            MINERS.into_iter().chain((0..9).map(|_| register(RUN, Role::Miner, 1))).collect();
        let windows = 1..41;
        let is_foretold = |window: &u32| {
            go_to(*window, 1);
            let opening_hash = view(*window).opening_hash.unwrap();
            for uid in &miners {
                assert_ok!(commit(*uid, *window, 1));
            }
            let candidates: Vec<_> = view(*window)
                .commitments
                .iter()
                .map(|(uid, digest)| Candidate {
                    uid: *uid,
                    digest: *digest,
                    weight: 0,
                    windows_since_registration: 0,
                })
                .collect();
            let seed = assign::seed(assign::domain::SELECT, RUN, Window(*window), &opening_hash);
            let guess = select::select(&params, &seed, &candidates);
            go_to(*window, 9);
            let all: Vec<_> = miners.iter().map(|uid| (*uid, VALID)).collect();
            for uid in VALIDATORS {
                assert_ok!(attest(uid, *window, &all));
            }
            go_to(*window, 15);
            let selected = view(*window).selection.unwrap().selected;
            assert_eq!(selected.len(), 2);
            selected == guess
        };
        // In each of 40 windows, one of 66 pairs is drawn.
        let foretold = windows.clone().filter(is_foretold).count();
        assert!(foretold < 5, "{foretold} of {} draws were known before the commitments", windows.len());
    });
}

#[test]
fn an_epoch_closes_after_its_reveal_windows_and_reports_which_members_attested() {
    let params = RunParams { epoch_windows: 2, reveal_windows: 1, ..params() };
    with_terms(params, Terms { absence_windows: 9, ..terms() }, || {
        play(0, &VALIDATORS);
        play(1, &[3]);
        play(2, &[3, 4]);
        assert_eq!(Closed::get(), []);
        play(3, &[3]);
        // A validator absent from the merged window 2 did not vote in it.
        let member = |uid, attested: bool| {
            let silent = !attested;
            Member { uid: Uid(uid), stake: STAKE, attested, minority_votes: 0, silent }
        };
        let all = vec![member(3, true), member(4, true), member(5, true)];
        assert_eq!(Closed::get(), [(RUN, 0, all)]);
        play(4, &VALIDATORS);
        go_to(5, 0);
        // The fifth attested in window 4, of the next epoch, which does not count for epoch 1.
        let two = vec![member(3, true), member(4, true), member(5, false)];
        assert_eq!(Closed::get()[1..], [(RUN, 1, two)]);
    });
}

#[test]
fn an_epoch_may_close_as_the_one_after_the_next_begins() {
    let params = RunParams { epoch_windows: 2, reveal_windows: 2, ..params() };
    with_terms(params, Terms { absence_windows: 9, ..terms() }, || {
        play(0, &[4, 5]);
        play(1, &[4]);
        play(2, &VALIDATORS);
        play(3, &VALIDATORS);
        assert_eq!(Closed::get(), []);
        go_to(4, 0);
        let attested = Closed::get()[0].2.iter().map(|member| member.attested).collect::<Vec<_>>();
        assert_eq!((Closed::get()[0].1, attested), (0, vec![false, true, true]));
    });
}

#[test]
fn a_window_whose_votes_end_with_its_last_block_is_finalised_at_the_next_opening() {
    let schedule = Schedule { blocks_per_window: 18, ..SCHEDULE };
    with_run(RunParams { schedule, ..params() }, || {
        go_to_block(10);
        assert_ok!(commit(0, 0, 1));
        go_to_block(19);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to_block(27);
        for uid in VALIDATORS {
            assert_ok!(vote(uid, 0, 50, None));
        }
        assert_eq!(outcome(0), None);
        go_to_block(28);
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        assert_eq!(view(1).lineage, ProgressOf::<Test>::get(RUN).unwrap().lineage);
        assert_ne!(view(1).lineage, view(0).lineage);
    });
}

#[test]
fn the_tightest_allowed_schedule_runs_every_task() {
    let schedule = Schedule {
        start: Block(10),
        blocks_per_window: 5,
        commit_by: 1,
        reveal_by: 2,
        attest_by: 3,
        vote_by: 4,
    };
    with_run(RunParams { schedule, ..params() }, || {
        for window in 0..4 {
            let block = |offset| u64::from(10 + window * 5 + offset);
            go_to_block(block(1));
            assert_ok!(commit(0, window, 1));
            go_to_block(block(3));
            for uid in VALIDATORS {
                assert_ok!(attest(uid, window, &[(0, VALID)]));
            }
            go_to_block(block(4));
            let state_root = params().is_checkpoint(Window(window)).then_some(1);
            for uid in VALIDATORS {
                assert_ok!(vote(uid, window, 50, state_root));
            }
            go_to_block(block(5));
            assert!(matches!(outcome(window), Some(Outcome::Merged(_))));
            assert_eq!(view(window).evaluation_hash, Some(Digest(hash_of(block(2)).0)));
        }
    });
}

#[test]
fn each_run_follows_its_own_schedule() {
    with_run(params(), || {
        let schedule = Schedule {
            start: Block(13),
            blocks_per_window: 7,
            commit_by: 1,
            reveal_by: 2,
            attest_by: 3,
            vote_by: 4,
        };
        create_run(RunParams { schedule, ..params() }, terms());
        go_to_block(60);
        let window = |run| ProgressOf::<Test>::get(RunId(run)).unwrap().window;
        assert_eq!((window(0), window(1)), (Some(Window(2)), Some(Window(6))));
        assert_eq!(
            Windows::window_view(RunId(1), Window(5)).unwrap().outcome,
            Some(Outcome::Void(VoidReason::Paused))
        );
    });
}

#[test]
fn a_block_with_no_task_due_costs_two_reads() {
    with_run(params(), || {
        let two_reads = <Test as frame_system::Config>::DbWeight::get().reads(2);
        go_to(0, 4);
        System::set_block_number(15);
        assert_eq!(Windows::on_initialize(15), two_reads);
        System::set_block_number(14);
    });
}

#[test]
fn old_windows_are_pruned_completely() {
    // Short windows keep the test short.
    let schedule = Schedule {
        start: Block(10),
        blocks_per_window: 5,
        commit_by: 1,
        reveal_by: 2,
        attest_by: 3,
        vote_by: 4,
    };
    with_terms(RunParams { schedule, ..params() }, Terms { absence_windows: 1000, ..terms() }, || {
        go_to_block(10);
        assert_ok!(commit(0, 0, 1));
        go_to_block(13);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to_block(14);
        assert_ok!(vote(3, 0, 50, None));
        go_to_block(10 + 64 * 5 - 1);
        assert!(Windows::window_view(RUN, Window(0)).is_some());
        go_to_block(10 + 66 * 5);
        assert!(
            Windows::window_view(RUN, Window(1)).is_none() && Windows::window_view(RUN, Window(2)).is_some()
        );
        go_to_block(10 + 66 * 5 + 1);
        assert_eq!(Windows::window_view(RUN, Window(0)), None);
        assert_eq!(Records::<Test>::iter_prefix(RUN).count(), 64);
        assert_eq!(Commitments::<Test>::iter().count(), 0);
        assert_eq!(Salts::<Test>::iter().count(), 0);
        assert_eq!(Attestations::<Test>::iter().count(), 0);
        assert_eq!(Votes::<Test>::iter().count(), 0);
    });
}

// Random calls.

#[derive(Clone, Debug)]
enum Op {
    Blocks(u64),
    Commit {
        key: u16,
        behind: bool,
        of: u8,
    },
    Attest {
        key: u16,
        verdicts: Vec<(u16, bool)>,
    },
    Vote {
        key: u16,
        update: u8,
        root: Option<u8>,
    },
    Register {
        validator: bool,
        stake: u128,
    },
    Leave(u16),
    Stop(bool),
    Nominate(u16, u128),
    Anchor(u16),
    /// Reports two statements of a key on a window some windows back.
    Report {
        key: u16,
        kind: StatementKind,
        behind: u32,
    },
    /// Reports a signed statement that may differ from the chain's record.
    Contradict {
        key: u16,
        kind: StatementKind,
        behind: u32,
    },
    /// Limits a block to this many tasks.
    Budget(Option<u64>),
    /// Lets miners and validators act in agreement, as far as the block allows.
    Agree,
    Reweigh(Vec<(u16, u16)>),
    AddRun(u32),
}

/// The first key of later registrations: a key is not used twice.
const LATER: u16 = 100;

fn op() -> impl Strategy<Value = Op> {
    let key = prop_oneof![4 => 0u16..6, 1 => LATER..LATER + 4];
    let kind = prop_oneof![
        Just(StatementKind::Attestation),
        Just(StatementKind::Vote),
        Just(StatementKind::Receipts)
    ];
    let whose = (key.clone(), kind, 0u32..3);
    prop_oneof![
        4 => (1u64..6).prop_map(Op::Blocks),
        4 => (key.clone(), any::<bool>(), 0u8..4).prop_map(|(key, behind, of)| Op::Commit { key, behind, of }),
        4 => (key.clone(), proptest::collection::btree_map(0u16..4, any::<bool>(), 0..4))
            .prop_map(|(key, verdicts)| Op::Attest { key, verdicts: verdicts.into_iter().collect() }),
        4 => (key.clone(), 50u8..52, proptest::option::of(1u8..3))
            .prop_map(|(key, update, root)| Op::Vote { key, update, root }),
        8 => Just(Op::Agree),
        1 => (any::<bool>(), 1u128..300).prop_map(|(validator, stake)| Op::Register { validator, stake }),
        1 => (0u16..8).prop_map(Op::Leave),
        1 => any::<bool>().prop_map(Op::Stop),
        1 => (3u16..7, 0u128..500).prop_map(|(uid, amount)| Op::Nominate(uid, amount)),
        1 => key.prop_map(Op::Anchor),
        1 => whose.clone().prop_map(|(key, kind, behind)| Op::Report { key, kind, behind }),
        1 => whose.prop_map(|(key, kind, behind)| Op::Contradict { key, kind, behind }),
        1 => proptest::option::of(0u64..3).prop_map(Op::Budget),
        1 => proptest::collection::btree_map(0u16..10, 1u16.., 0..5)
            .prop_map(|weights| Op::Reweigh(weights.into_iter().collect())),
        1 => (1u32..30).prop_map(Op::AddRun),
    ]
}

/// Makes the calls of a seat in `window` that the block allows, with commit–reveal if the run uses it.
fn take_part(key: u16, window: u32, of: &[(u16, Verdict)], update: u8, root: Option<u8>) {
    let _ = attest(key, window, of);
    let _ = attest_hidden(key, window, of);
    let _ = reveal_attestation(key, window, of);
    let _ = vote(key, window, update, root);
    let vote = ballot(update, root);
    let hash = protocol::reveal::commitment(&vote, &salt(key), &public(key));
    let _ = Windows::vote_hidden(signed(key), RUN, Window(window), hash);
    let _ = Windows::reveal_vote(signed(key), RUN, Window(window), vote, salt(key));
}

/// Returns the number of merged windows.
fn run_ops(ops: Vec<Op>, hidden_blocks: u32) -> usize {
    let mut merged = 0;
    // Short windows, so that many fit into a case.
    let schedule = Schedule {
        start: Block(3),
        blocks_per_window: 8 + 2 * hidden_blocks,
        commit_by: 2,
        reveal_by: 3,
        attest_by: 5,
        vote_by: 7 + hidden_blocks,
    };
    let params = RunParams { schedule, hidden_blocks, checkpoint_windows: 2, epoch_windows: 2, ..params() };
    with_run(params, || {
        let mut fixed = BTreeMap::new();
        let mut later = LATER;
        for op in ops {
            let now = System::block_number();
            let open = schedule.window_at(Block(now as u32)).unwrap_or(Window(0)).0;
            let root = (open % 2 == 1).then_some(1);
            match op {
                Op::Blocks(count) => go_to_block(now + count),
                Op::Commit { key, behind, of } => {
                    let _ = commit(key, open.saturating_sub(u32::from(behind)), of);
                }
                Op::Attest { key, verdicts } => {
                    let side = |valid| if valid { VALID } else { FAULTY };
                    let verdicts: Vec<_> =
                        verdicts.into_iter().map(|(uid, valid)| (uid, side(valid))).collect();
                    let _ = attest(key, open, &verdicts);
                    let _ = attest_hidden(key, open, &verdicts);
                    let _ = reveal_attestation(key, open, &verdicts);
                }
                Op::Vote { key, update, root } => {
                    let root = root.filter(|_| open % 2 == 1);
                    take_part(key, open, &[], update, root);
                }
                Op::Agree => {
                    let committed: Vec<_> = Commitments::<Test>::iter_key_prefix((RUN, Window(open)))
                        .map(|uid| uid.0)
                        .collect::<BTreeSet<_>>()
                        .into_iter()
                        .map(|uid| (uid, VALID))
                        .collect();
                    for key in (0..6).chain(LATER..later) {
                        let _ = commit(key, open, key as u8);
                        take_part(key, open, &committed, 50, root);
                    }
                }
                Op::Register { validator, stake } => {
                    let role = if validator { Role::Validator } else { Role::Miner };
                    if later < LATER + 4 {
                        let owner = RuntimeOrigin::signed(COLDKEY);
                        let hotkey = hotkey(later);
                        let proof = proof(later, RUN);
                        let taken =
                            Registry::register(owner, RUN, role, hotkey, url(), stake, u128::MAX, proof);
                        later += u16::from(taken.is_ok());
                    }
                }
                Op::Leave(uid) => {
                    let _ = Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(uid));
                }
                Op::Stop(stopped) => {
                    assert_ok!(Registry::set_stopped(RuntimeOrigin::signed(COLDKEY), RUN, stopped));
                }
                Op::Nominate(uid, amount) => Behind::mutate(|behind| {
                    behind.insert(Uid(uid), amount);
                }),
                Op::Anchor(key) => {
                    for window in 0..=open {
                        let _ =
                            Windows::anchor_receipts(signed(key), RUN, Window(window), digest(9), digest(8));
                    }
                }
                Op::Report { key, kind, behind } => {
                    let window = open.saturating_sub(behind);
                    let said = |of| {
                        let mut said = statement(key, window, kind, digest(of)).statement;
                        said.uid = uid_of(key);
                        said.sign(&signer(key))
                    };
                    let proof = Equivocation { hotkey: public(key), one: said(1), other: said(2) };
                    let _ = Windows::report_equivocation(RuntimeOrigin::signed(REPORTER), proof);
                }
                Op::Contradict { key, kind, behind } => {
                    let window = open.saturating_sub(behind);
                    let mut said = statement(key, window, kind, digest(1)).statement;
                    said.uid = uid_of(key);
                    let signed = said.sign(&signer(key));
                    let _ =
                        Windows::report_contradiction(RuntimeOrigin::signed(REPORTER), public(key), signed);
                }
                Op::Budget(steps) => {
                    let step = weight_info::open::<Test>(3, 3);
                    TaskBudget::set(steps.map_or(Weight::MAX, |steps| step * steps));
                }
                Op::Reweigh(weights) => {
                    StandingWeights::set(
                        weights.into_iter().map(|(uid, weight)| (Uid(uid), weight)).collect(),
                    );
                }
                Op::AddRun(wait) => {
                    if Registry::run_ids().len() < 4 {
                        let schedule = Schedule { start: Block(now as u32 + wait), ..schedule };
                        create_run(RunParams { schedule, ..params }, terms());
                    }
                }
            }
            Windows::check_invariants().unwrap();
            Registry::check_invariants().unwrap();
            // A finalised window never changes.
            for window in 0..=open {
                if let Some(view) = Windows::window_view(RUN, Window(window))
                    && let Some(outcome) = view.outcome
                {
                    assert_eq!(
                        *fixed.entry(window).or_insert((outcome, view.lineage)),
                        (outcome, view.lineage)
                    );
                }
            }
        }
        merged = fixed.values().filter(|(outcome, _)| matches!(outcome, Outcome::Merged(_))).count();
    });
    merged
}

/// Returns the seat that a key holds or held; an unused uid for a key without a seat.
fn uid_of(key: u16) -> Uid {
    Registry::holder_of(RUN, &hotkey(key)).map_or(Uid(u16::MAX), |seat| seat.uid)
}

#[test]
fn every_window_is_merged_while_all_agree() {
    let ops = |blocks| (0..blocks).flat_map(|_| [Op::Agree, Op::Blocks(1)]).collect();
    assert_eq!(run_ops(ops(40), 0), 4);
    assert_eq!(run_ops(ops(50), 1), 4);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn invariants_hold_and_finalised_windows_never_change_under_any_calls(
        ops in proptest::collection::vec(op(), 0..80), hidden_blocks in 0u32..2,
    ) {
        let _ = run_ops(ops, hidden_blocks);
    }
}
