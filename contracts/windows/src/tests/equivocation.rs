//! Anchored receipts, and validators that sign contradicting statements (PROT-21, 27).

use super::*;
use frame::traits::fungible::Inspect as _;
use protocol::{
    GenesisHash,
    identity::Signer,
    statement::{SignedStatement, Statement},
};

fn proof(uid: u16, one: SignedStatement, other: SignedStatement) -> Equivocation {
    Equivocation { hotkey: public(uid), one, other }
}

fn two(uid: u16, window: u32, kind: StatementKind) -> Equivocation {
    proof(uid, statement(uid, window, kind, digest(1)), statement(uid, window, kind, digest(2)))
}

fn report(proof: Equivocation) -> DispatchResultWithPostInfo {
    Windows::report_equivocation(RuntimeOrigin::signed(REPORTER), proof)
}

fn contradict(uid: u16, signed: SignedStatement) -> DispatchResultWithPostInfo {
    Windows::report_contradiction(RuntimeOrigin::signed(REPORTER), public(uid), signed)
}

const KINDS: [StatementKind; 3] = [StatementKind::Attestation, StatementKind::Vote, StatementKind::Receipts];

fn seat_of(uid: u16) -> SeatId {
    Registry::seat(RUN, Uid(uid)).unwrap().id(Uid(uid))
}

fn stake(uid: u16) -> u128 {
    pallet_registry::SeatsOf::<Test>::get(RUN, Uid(uid)).unwrap().stake
}

/// Runs `story` with stakes so large that a tenth of a tenth is not zero.
fn with_stakes(story: impl FnOnce()) {
    with_run(params(), || {
        for uid in VALIDATORS {
            assert_ok!(Registry::add_stake(RuntimeOrigin::signed(COLDKEY), RUN, Uid(uid), 900));
        }
        story();
    });
}

#[test]
fn two_statements_cost_a_tenth_of_the_stake_and_the_reporter_gets_a_tenth_of_that() {
    with_stakes(|| {
        play(0, &VALIDATORS);
        let before = (Balances::free_balance(REPORTER), Balances::total_issuance());
        let paid = report(two(3, 0, StatementKind::Vote)).unwrap();
        assert_eq!(paid.pays_fee, Pays::No);
        assert_eq!((stake(3), stake(4)), (900, 1000));
        assert_eq!(Balances::free_balance(REPORTER), before.0 + 10);
        assert_eq!(Balances::total_issuance(), before.1 - 90);
        assert!(events().contains(&Event::EquivocationPunished {
            run: RUN,
            window: Window(0),
            uid: Uid(3),
            kind: StatementKind::Vote,
            reporter: REPORTER,
            slashed: 100,
        }));
        // It decides only the open window.
        go_to(0, 19);
        assert_eq!(view(0).active_set.len(), 3);
        go_to(1, 0);
        assert_eq!(view(1).active_set.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), [4, 5]);
        assert_eq!(Registry::seat(RUN, Uid(3)), None);
    });
}

#[test]
fn a_seat_is_punished_once_for_whatever_it_signed() {
    with_stakes(|| {
        play(0, &VALIDATORS);
        go_to(1, 0);
        assert_ok!(report(two(3, 0, StatementKind::Vote)));
        let refused = || {
            for (window, kind) in (0..2).flat_map(|window| KINDS.map(|kind| (window, kind))) {
                assert_noop!(report(two(3, window, kind)), Error::<Test>::AlreadyPunished);
            }
            let said = statement(3, 0, StatementKind::Vote, digest(9));
            assert_noop!(contradict(3, said), Error::<Test>::AlreadyPunished);
        };
        refused();
        assert_ok!(report(two(4, 0, StatementKind::Vote)));
        assert_eq!(Punished::<Test>::iter().count(), 2);
        // Reported as a former holder, with a successor on its uid, and after all windows of its time are pruned.
        go_to(2, 0);
        assert_ok!(validate_with(60, STAKE));
        assert_eq!(Registry::seat_of(RUN, &hotkey(60)).unwrap().0, Uid(3));
        refused();
        go_to(70, 0);
        assert_noop!(report(two(3, 1, StatementKind::Vote)), Error::<Test>::WindowNotKept);
        assert_eq!(Punished::<Test>::iter().count(), 2);
    });
}

#[test]
fn only_windows_in_which_the_validator_was_in_the_active_set_convict() {
    with_terms(params(), Terms { active_set_max: 2, absence_windows: 1_000, ..terms() }, || {
        play(0, &[3, 4]);
        assert_noop!(report(two(5, 0, StatementKind::Vote)), Error::<Test>::NotInActiveSet);
        assert_ok!(Registry::add_stake(RuntimeOrigin::signed(COLDKEY), RUN, Uid(5), 1));
        go_to(1, 0);
        assert_eq!(view(1).active_set, [(Uid(3), STAKE), (Uid(5), STAKE + 1)]);
        assert_noop!(report(two(5, 0, StatementKind::Vote)), Error::<Test>::NotInActiveSet);
        assert_ok!(report(two(5, 1, StatementKind::Vote)));
        // Successor and predecessor are not liable for each other's windows.
        go_to(2, 0);
        assert_ok!(validate_with(60, 9 * STAKE));
        go_to(3, 0);
        let by_successor = |window| {
            let sign = |byte| {
                let statement = statement(5, window, StatementKind::Vote, digest(byte)).statement;
                statement.sign(&signer(60))
            };
            report(proof(60, sign(1), sign(2)))
        };
        assert_noop!(by_successor(1), Error::<Test>::NotInActiveSet);
        assert_noop!(report(two(5, 3, StatementKind::Vote)), Error::<Test>::NotInActiveSet);
        // In the epoch's third window, more of its stake counts.
        go_to(7, 0);
        assert_eq!(view(7).active_set, [(Uid(3), STAKE), (Uid(5), STAKE + 20)]);
        assert_noop!(report(two(5, 7, StatementKind::Vote)), Error::<Test>::NotInActiveSet);
        assert_ok!(by_successor(7));
    });
}

#[test]
fn statements_that_prove_nothing_cost_nothing() {
    with_stakes(|| {
        go_to(0, 3);
        let (vote, receipts) = (StatementKind::Vote, StatementKind::Receipts);
        let one = statement(3, 0, vote, digest(1));
        assert_noop!(report(proof(3, one, one)), Error::<Test>::NoContradiction);
        let other = statement(3, 0, receipts, digest(2));
        assert_noop!(report(proof(3, one, other)), Error::<Test>::DifferentSubjects);
        // Another key signs in its name.
        let forged = Statement { digest: digest(2), ..one.statement }.sign(&signer(4));
        assert_noop!(report(proof(3, one, forged)), Error::<Test>::NotSigned);
        assert_noop!(report(proof(4, one, forged)), Error::<Test>::NotSigned);
        // Keys without a seat, and with another seat.
        assert_noop!(report(two(40, 0, vote)), Error::<Test>::NotASeat);
        let as_another = |digest| Statement { uid: Uid(4), digest, ..one.statement }.sign(&signer(3));
        let named = proof(3, as_another(digest(1)), as_another(digest(2)));
        assert_noop!(report(named), Error::<Test>::NotItsSeat);
        assert_noop!(report(two(0, 0, vote)), Error::<Test>::NotInActiveSet);
        assert_noop!(report(two(3, 1, vote)), Error::<Test>::WindowNotKept);
        let elsewhere = |digest| Statement { run: RunId(9), digest, ..one.statement }.sign(&signer(3));
        let elsewhere = proof(3, elsewhere(digest(1)), elsewhere(digest(2)));
        assert_noop!(report(elsewhere), Error::<Test>::UnknownRun);
        assert_noop!(
            Windows::report_equivocation(RuntimeOrigin::none(), two(3, 0, vote)),
            DispatchError::BadOrigin
        );
        assert_eq!(VALIDATORS.map(stake), [1000; 3]);
    });
}

/// The same hotkey serves run 0 of another chain. Its honest receipts there hold another vote and another attestation
/// for the same window and uid.
#[test]
fn an_honest_statement_of_another_chain_convicts_no_validator() {
    with_stakes(|| {
        play(0, &VALIDATORS);
        let there = Signer::new(key(3), GenesisHash([9; 32]));
        assert_ne!(there.genesis(), Registry::genesis());
        for kind in [StatementKind::Attestation, StatementKind::Vote] {
            let here = statement(3, 0, kind, digest(1));
            let elsewhere = Statement { digest: digest(2), ..here.statement }.sign(&there);
            assert_noop!(report(proof(3, here, elsewhere)), Error::<Test>::NotSigned);
            assert_noop!(contradict(3, elsewhere), Error::<Test>::NotSigned);
        }
        assert_eq!(stake(3), 1000);
    });
}

#[test]
fn a_holder_does_not_answer_for_windows_before_its_time() {
    with_stakes(|| {
        go_to(1, 2);
        let late = register(RUN, Role::Validator, STAKE);
        for window in [0, 1] {
            assert_noop!(report(two(late, window, StatementKind::Vote)), Error::<Test>::NotInActiveSet);
        }
        go_to(2, 0);
        assert_ok!(report(two(late, 2, StatementKind::Vote)));
    });
}

#[test]
fn a_statement_that_contradicts_the_chain_is_proof() {
    with_stakes(|| {
        play(0, &VALIDATORS);
        assert_ok!(Windows::anchor_receipts(signed(3), RUN, Window(0), digest(9), digest(8)));
        let valid: Vec<_> = MINERS.iter().map(|uid| (*uid, VALID)).collect();
        let said = [
            (StatementKind::Attestation, Digest::of(&verdicts(&valid).encode())),
            (StatementKind::Vote, Digest::of(&ballot(50, None).encode())),
            (StatementKind::Receipts, digest(9)),
        ];
        for (kind, digest_of) in said {
            Punished::<Test>::remove(RUN, seat_of(3));
            let truth = statement(3, 0, kind, digest_of);
            assert_noop!(contradict(3, truth), Error::<Test>::NoContradiction);
            let other = statement(3, 0, kind, digest(77));
            let forged = other.statement.sign(&signer(4));
            assert_noop!(contradict(3, forged), Error::<Test>::NotSigned);
            let before = stake(3);
            assert_eq!(contradict(3, other).unwrap().pays_fee, Pays::No);
            assert_eq!(stake(3), before - before / 10);
            assert_noop!(contradict(3, other), Error::<Test>::AlreadyPunished);
        }
    });
}

#[test]
fn a_statement_contradicts_nothing_if_the_chain_has_no_record() {
    with_stakes(|| {
        play(0, &[3, 4]);
        for kind in KINDS {
            let said = statement(5, 0, kind, digest(1));
            assert_noop!(contradict(5, said), Error::<Test>::NothingOnRecord);
        }
        let said = statement(3, 0, StatementKind::Vote, digest(1));
        assert_noop!(
            Windows::report_contradiction(RuntimeOrigin::none(), public(3), said),
            DispatchError::BadOrigin
        );
        assert_noop!(contradict(40, said), Error::<Test>::NotASeat);
        assert_noop!(contradict(4, said), Error::<Test>::NotItsSeat);
        let later = statement(3, 5, StatementKind::Vote, digest(1));
        assert_noop!(contradict(3, later), Error::<Test>::WindowNotKept);
    });
}

#[test]
fn a_former_holder_answers_with_its_unbonding_stake_and_not_for_its_successor() {
    with_stakes(|| {
        play(0, &VALIDATORS);
        let total = Balances::total_balance(&COLDKEY);
        assert_ok!(Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(5)));
        go_to(1, 0);
        assert_eq!(PresenceOf::<Test>::get(RUN, Uid(5)), None);
        assert_ok!(validate_with(60, STAKE));
        assert_eq!(Registry::seat_of(RUN, &hotkey(60)).unwrap().0, Uid(5));
        // The old hotkey's statements on its own window: its stake is still held.
        assert_ok!(report(two(5, 0, StatementKind::Vote)));
        assert_eq!(Balances::total_balance(&COLDKEY), total - 100);
        // The newcomer votes in window 2. The old hotkey's statement on it contradicts no record of its own.
        play(1, &[3, 4]);
        go_to(2, 0);
        assert_ok!(commit(0, 2, 1));
        go_to(2, 9);
        assert_ok!(Windows::attest(
            RuntimeOrigin::signed(hotkey(60)),
            RUN,
            Window(2),
            verdicts(&[(0, VALID)]),
            digest(1)
        ));
        let said = statement(5, 2, StatementKind::Attestation, digest(1));
        assert_noop!(contradict(5, said), Error::<Test>::NotInActiveSet);
    });
}

#[test]
fn receipts_are_anchored_once_and_after_the_window_is_finalised() {
    with_run(params(), || {
        let anchor =
            |uid, window| Windows::anchor_receipts(signed(uid), RUN, Window(window), digest(9), digest(8));
        assert_noop!(anchor(3, 0), Error::<Test>::WindowNotKept);
        go_to(0, 17);
        assert_noop!(anchor(3, 0), Error::<Test>::TooEarly);
        go_to(0, 18);
        assert_ok!(anchor(4, 0));
        assert_ok!(anchor(3, 0));
        assert_noop!(anchor(3, 0), Error::<Test>::AlreadyAnchored);
        assert_eq!(view(0).receipts, [(Uid(3), digest(9)), (Uid(4), digest(9))]);
        assert_noop!(anchor(0, 0), Error::<Test>::NotAValidator);
        assert_noop!(anchor(40, 0), Error::<Test>::NotASeat);
        let other = Windows::anchor_receipts(signed(3), RunId(8), Window(0), digest(9), digest(8));
        assert_eq!(other, Err(Error::<Test>::UnknownRun.into()));
        assert_noop!(
            Windows::anchor_receipts(RuntimeOrigin::none(), RUN, Window(0), digest(9), digest(8)),
            DispatchError::BadOrigin
        );
        go_to(1, 0);
        let late = register(RUN, Role::Validator, STAKE);
        go_to(3, 0);
        for window in [0, 1] {
            assert_noop!(anchor(late, window), Error::<Test>::NotInThisWindow);
        }
        assert_ok!(anchor(late, 2));
        assert_ok!(anchor(5, 0));
    });
}
