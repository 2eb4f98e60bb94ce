//! Serial reporters: accounts that have a validator's hotkey, or are the validator, and report every possible
//! statement.

use super::*;
use frame::deps::frame_support::traits::fungible::Inspect as _;
use protocol::statement::{Equivocation, Statement, StatementKind};

const KINDS: [StatementKind; 3] = [StatementKind::Attestation, StatementKind::Vote, StatementKind::Receipts];
/// The validator that equivocates.
const UID: Uid = Uid(5);
const HOTKEY: Ed25519Keyring = Ed25519Keyring::Ferdie;
const VALIDATOR: Sr25519Keyring = Sr25519Keyring::Dave;
const REPORTER: Sr25519Keyring = Sr25519Keyring::Eve;
const NOMINATOR: Sr25519Keyring = Sr25519Keyring::Ferdie;

/// Builds the run of [`with_run`] with a sixth seat: a validator with `own` stake and `nominated` behind it.
fn with_equivocator(own: Balance, nominated: Balance) -> Chain {
    let mut chain = with_run();
    let register = chain.registration(VALIDATOR, Role::Validator, &HOTKEY, own);
    chain.all_accepted(vec![(&VALIDATOR, register)]);
    if nominated > 0 {
        let nominate = pallet_nomination::Call::nominate { run: RUN, uid: UID, amount: nominated };
        chain.all_accepted(vec![(&NOMINATOR, nominate.into())]);
    }
    chain
}

/// Reports two statements of the validator on `kind` in `window`. Returns the chain's result.
fn report(window: u32, kind: StatementKind) -> Result<(), DispatchError> {
    let sign = |byte| {
        let statement = Statement { run: RUN, window: Window(window), uid: UID, kind, digest: digest(byte) };
        statement.sign(&HOTKEY.on_chain())
    };
    let hotkey = Hotkey(HOTKEY.to_raw_public());
    let proof = Equivocation { hotkey, one: sign(1), other: sign(2) };
    let reporter = RuntimeOrigin::signed(REPORTER.to_account_id());
    Windows::report_equivocation(reporter, proof).map(|_| ()).map_err(|error| error.error)
}

fn owns(who: Sr25519Keyring) -> Balance {
    Balances::total_balance(&who.to_account_id())
}

#[test]
fn a_stolen_hotkey_signs_384_statements_and_the_validator_is_slashed_once() {
    let mut chain = with_equivocator(100 * UNIT, 1_000 * UNIT);
    // Presence does not matter here: only its conviction removes the validator from the active set.
    chain.read(|| {
        pallet_registry::Runs::<Runtime>::mutate_extant(RUN, |run| run.terms.absence_windows = 1_000);
    });
    chain.go_to(params().schedule.opens_at(Window(127)).0 + 2);
    chain.read(|| {
        let before = owns(REPORTER);
        let mut slashed = 0;
        for (window, kind) in (0..128).flat_map(|window| KINDS.map(|kind| (window, kind))) {
            slashed += usize::from(report(window, kind).is_ok());
        }
        let left = Registry::seat(RUN, UID).unwrap().stake;
        let nominated = Nomination::pool(RUN, UID).map_or(0, |pool| pool.value);
        let reward = owns(REPORTER) - before;
        println!("384 statements: {slashed} slashes, {left} of 100 MTL and {nominated} of 1000 left, {reward} to the thief");
        assert_eq!((slashed, left, nominated), (1, 90 * UNIT, 900 * UNIT));
        // A tenth of the validator's own ten, and nothing of its nominators' hundred.
        assert_eq!(reward, UNIT);
        check_invariants();
    });
    // The former seat is closed too.
    chain.go_to(params().schedule.opens_at(Window(128)).0 + 2);
    chain.read(|| {
        assert_eq!(Registry::seat(RUN, UID), None);
        for kind in KINDS {
            let refused = pallet_windows::Error::<Runtime>::AlreadyPunished;
            assert_eq!(report(100, kind), Err(refused.into()));
        }
    });
}

#[test]
fn a_validator_that_reports_itself_loses_whatever_is_nominated_behind_it() {
    for nominated in [0, 10, 100, 10_000, 500_000] {
        let mut chain = with_equivocator(UNIT, nominated * UNIT);
        play(&mut chain, 0);
        chain.read(|| {
            let before = owns(VALIDATOR) + owns(REPORTER);
            for kind in KINDS {
                let _ = report(0, kind);
            }
            let after = owns(VALIDATOR) + owns(REPORTER);
            println!("{nominated} MTL nominated: {} becomes {}", before, after);
            assert!(after < before, "{nominated}: {before} becomes {after}");
        });
    }
}
