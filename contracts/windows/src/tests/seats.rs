//! The active set with nominations, seats that change hands, and an owner that stops the run.

use super::*;
use pallet_registry::{Ending, OnSeats as _};

fn active_set(window: u32) -> Vec<(u16, u128)> {
    view(window).active_set.iter().map(|(uid, stake)| (uid.0, *stake)).collect()
}

fn owner() -> RuntimeOrigin {
    RuntimeOrigin::signed(COLDKEY)
}

#[test]
fn nominations_count_as_the_validators_stake() {
    with_terms(params(), Terms { active_set_max: 2, ..terms() }, || {
        Behind::set([(Uid(5), 50), (Uid(4), 7)].into());
        go_to(0, 0);
        assert_eq!(active_set(0), [(4, STAKE + 7), (5, STAKE + 50)]);
        // Takes effect at the next opening.
        Behind::set([(Uid(3), 500)].into());
        go_to(0, 19);
        assert_eq!(active_set(0), [(4, STAKE + 7), (5, STAKE + 50)]);
        go_to(1, 0);
        // In the epoch's second window, two tenths of the active set's established stake, 200, count.
        assert_eq!(active_set(1), [(3, STAKE + 40), (4, STAKE)]);
    });
}

#[test]
fn a_validator_without_stake_of_its_own_decides_nothing_whatever_is_nominated() {
    with_run(params(), || {
        let stake = |uid: u16, stake| {
            pallet_registry::SeatsOf::<Test>::mutate(RUN, Uid(uid), |seat| {
                seat.as_mut().unwrap().stake = stake;
            });
        };
        stake(3, 0);
        Behind::set([(Uid(3), 1_000_000)].into());
        go_to(0, 0);
        assert_eq!(active_set(0), [(4, STAKE), (5, STAKE)]);
        stake(3, STAKE);
    });
}

#[test]
fn two_thirds_are_of_stake_and_nominations_together() {
    with_run(params(), || {
        // 100, 100 and 200: the third alone holds half.
        Behind::set([(Uid(5), 100)].into());
        go_to(0, 0);
        assert_ok!(commit(0, 0, 1));
        go_to(0, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 0, &[(0, VALID)]));
        }
        go_to(0, 15);
        assert_ok!(vote(3, 0, 50, None));
        assert_ok!(vote(4, 0, 50, None));
        go_to(0, 18);
        assert_eq!(outcome(0), Some(Outcome::Void(VoidReason::NoAgreement)));
    });
}

#[test]
fn a_stopped_run_spends_no_data_and_continues_where_it_was() {
    with_run(params(), || {
        play(0, &VALIDATORS);
        assert_ok!(Registry::set_stopped(owner(), RUN, true));
        // The open window is still finalised.
        assert!(matches!(outcome(0), Some(Outcome::Merged(_))));
        go_to(1, 0);
        assert_eq!((view(1).slots, view(1).cursor), (vec![], 21));
        assert!(ProgressOf::<Test>::get(RUN).unwrap().paused);
        assert!(events().contains(&Event::Stopped { run: RUN, window: Window(1) }));
        assert_noop!(commit(0, 1, 1), Error::<Test>::NotInThisWindow);
        // Validators may still attest.
        go_to(1, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 1, &[]));
        }
        go_to(1, 15);
        assert_noop!(vote(3, 1, 50, None), Error::<Test>::NothingSelected);
        go_to(1, 18);
        assert_eq!(outcome(1), Some(Outcome::Void(VoidReason::Paused)));
        go_to(4, 0);
        assert_eq!(view(4).cursor, 21);
        assert_eq!(events().iter().filter(|event| matches!(event, Event::Stopped { .. })).count(), 1);
        assert_ok!(Registry::set_stopped(owner(), RUN, false));
        // The validators absent since window 1 return by attesting, and the run has its quorum again.
        go_to(4, 9);
        for uid in VALIDATORS {
            assert_ok!(attest(uid, 4, &[]));
        }
        play(5, &VALIDATORS);
        assert_eq!((view(5).cursor, view(5).slots.len()), (21, 3));
        assert!(matches!(outcome(5), Some(Outcome::Merged(_))));
        assert!(events().contains(&Event::Resumed { run: RUN, window: Window(5) }));
        go_to(6, 0);
        assert_eq!(view(6).cursor, 42);
        assert_eq!(view(6).lineage, ProgressOf::<Test>::get(RUN).unwrap().lineage);
    });
}

#[test]
fn a_run_that_stops_after_the_deal_drops_it_and_deals_again_as_it_resumes() {
    with_run(params(), || {
        go_to(0, SCHEDULE.deal_offset());
        let dropped = view(0).next_deal.unwrap();
        assert_ok!(Registry::set_stopped(owner(), RUN, true));
        go_to(1, 19);
        assert_eq!((view(1).slots, view(1).deal_seed), (vec![], view(1).opening_hash));
        assert_eq!(view(1).next_deal, None, "a stopped run deals nothing");
        assert_ok!(Registry::set_stopped(owner(), RUN, false));
        go_to(2, 1);
        assert_eq!((view(2).slots, view(2).cursor), (dropped.slots, dropped.cursor));
        assert_eq!(view(2).deal_seed, view(2).opening_hash);
    });
}

#[test]
fn a_new_holder_inherits_nothing_of_a_seat() {
    with_terms(params(), Terms { absence_windows: 9, ..terms() }, || {
        for window in 0..2 {
            play(window, &VALIDATORS);
        }
        MinorityVotes::<Test>::insert((RUN, 0), Uid(5), 1);
        assert_ok!(Registry::leave(owner(), RUN, Uid(5)));
        go_to(2, 0);
        assert_eq!(active_set(2), [(3, STAKE), (4, STAKE)]);
        assert_eq!(PresenceOf::<Test>::get(RUN, Uid(5)), None);
        assert_eq!(view(2).salts, [(Uid(3), digest(3)), (Uid(4), digest(4))]);
        assert_eq!(MinorityVotes::<Test>::iter().count(), 0);
        assert_ok!(validate_with(60, STAKE));
        go_to(3, 0);
        // Its predecessor's established stake does not transfer to it: three tenths of 200 count.
        assert_eq!(active_set(3), [(3, STAKE), (4, STAKE), (5, 60)]);
        assert_eq!(PresenceOf::<Test>::get(RUN, Uid(5)).unwrap().since, Window(3));
    });
}

#[test]
fn a_seat_may_be_vacated_before_its_run_starts_or_without_a_run() {
    with_run(params(), || {
        let seat = pallet_registry::SeatsOf::<Test>::get(RUN, Uid(5)).unwrap();
        let ending = Ending { window: Window(0), until: Window(3) };
        let _ = Windows::vacated(RUN, Uid(5), &seat, ending);
        let _ = Windows::vacated(RunId(9), Uid(5), &seat, ending);
    });
}

#[test]
fn a_rotated_hotkey_signs_from_the_next_opening() {
    with_run(params(), || {
        go_to(0, 0);
        assert_ok!(Registry::rotate_hotkey(owner(), RUN, Uid(0), hotkey(60), proof(60, RUN)));
        let commit_with =
            |key| Windows::commit(RuntimeOrigin::signed(hotkey(key)), RUN, Window(0), digest(1));
        assert_noop!(commit_with(60), Error::<Test>::NotASeat);
        assert_ok!(commit_with(0));
        go_to(1, 0);
        let commit_with =
            |key| Windows::commit(RuntimeOrigin::signed(hotkey(key)), RUN, Window(1), digest(1));
        assert_noop!(commit_with(0), Error::<Test>::NotASeat);
        assert_ok!(commit_with(60));
    });
}
