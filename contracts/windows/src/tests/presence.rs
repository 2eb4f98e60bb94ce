//! Attestations that count as presence, and the members that stay in the active set (PROT-3).

use super::*;

/// Plays a window in which every miner commits, the validators in `present` attest everything as valid and vote, and
/// the validators in `mute` attest `said`.
fn play_mute(window: u32, present: &[u16], mute: &[u16], said: &[(u16, Verdict)]) {
    go_to(window, 1);
    for uid in MINERS {
        assert_ok!(commit(uid, window, uid as u8));
    }
    go_to(window, 9);
    let valid: Vec<_> = MINERS.iter().map(|uid| (*uid, VALID)).collect();
    for uid in present {
        assert_ok!(attest(*uid, window, &valid));
    }
    for uid in mute {
        assert_ok!(attest(*uid, window, said));
    }
    go_to(window, 15);
    let state_root = params().is_checkpoint(Window(window)).then_some(77);
    for uid in present {
        assert_ok!(vote(*uid, window, 50, state_root));
    }
    go_to(window, 18);
}

fn active_set(window: u32) -> Vec<u16> {
    view(window).active_set.iter().map(|(uid, _)| uid.0).collect()
}

#[test]
fn a_validator_that_attests_nothing_leaves_the_active_set() {
    with_run(params(), || {
        for window in 0..4 {
            play_mute(window, &[3, 4], &[5], &[]);
        }
        // An absence of two windows is the limit.
        assert_eq!([1, 2, 3].map(|window| active_set(window).len()), [3, 2, 2]);
        assert_eq!(PresenceOf::<Test>::get(RUN, Uid(5)).unwrap().last_attested, None);
    });
}

#[test]
fn verdicts_on_half_of_the_valid_seats_keep_a_validator_and_bring_an_absent_one_back() {
    with_run(params(), || {
        for window in 0..3 {
            play_mute(window, &[3, 4], &[5], &[(0, VALID), (2, FAULTY)]);
        }
        assert_eq!(active_set(2), VALIDATORS);
        for window in 3..5 {
            play_mute(window, &[3, 4], &[5], &[(1, VALID)]);
        }
        // It returns one window after verdicts on two of three.
        play_mute(5, &[3, 4], &[5], &[(0, VALID), (1, VALID)]);
        go_to(6, 0);
        assert_eq!([4, 5, 6].map(|window| active_set(window).len()), [3, 2, 3]);
    });
}

#[test]
fn any_attestation_is_presence_while_two_thirds_call_nothing_valid() {
    with_run(params(), || {
        for window in 0..4 {
            play_mute(window, &[], &VALIDATORS, &[]);
        }
        assert_eq!(active_set(3), VALIDATORS);
    });
}

#[test]
fn an_owner_cannot_exclude_validators_by_a_higher_minimum_of_stake() {
    with_terms(params(), Terms { unbonding_windows: 3, ..terms() }, || {
        play(0, &VALIDATORS);
        let rich = register(RUN, Role::Validator, 9 * STAKE);
        let higher = Terms { validator_stake_min: 9 * STAKE, ..terms() };
        assert_ok!(Registry::set_terms(RuntimeOrigin::signed(COLDKEY), RUN, higher));
        let all = [3, 4, 5, rich];
        for window in 1..20 {
            play(window, &all);
        }
        assert_eq!(Registry::run(RUN).unwrap().terms, higher);
        assert_eq!(active_set(19), all);
        // It applies to validators that register or remove stake.
        let refused = Err(pallet_registry::Error::<Test>::StakeTooLow.into());
        assert_eq!(validate_with(7, 9 * STAKE - 1), refused);
        assert!(Registry::unstake(RuntimeOrigin::signed(COLDKEY), RUN, Uid(3), 1).is_err());
    });
}
