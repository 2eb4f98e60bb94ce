//! Losses that a run's owner cannot impose on holders of seats, nominators and sponsors by a change of terms (PROT-29,
//! 32).

use super::*;

fn set(terms: Terms) -> DispatchResult {
    R::set_terms(signed(OWNER), RUN, terms)
}

fn now() -> Terms {
    R::run(RUN).unwrap().terms
}

fn pending() -> Option<(Terms, u32)> {
    PendingChanges::<Test>::get(RUN).terms.map(|pending| (pending.terms, pending.from.0))
}

/// Opens windows until the terms change. Returns the first window with the new ones.
fn opens_until_changed(mut window: u32) -> u32 {
    let before = now();
    while now() == before {
        window += 1;
        open(window);
    }
    window
}

#[test]
fn an_owner_cannot_raise_its_share_of_the_pay_to_all_of_it() {
    with_a_run(|| {
        open(2);
        let [all, none] = [1000, 0].map(Permille);
        let shares = PayShares { miners: none, validators: none, owner: all, burn: none };
        assert_noop!(set(Terms { shares, ..terms() }), E::OwnerShareLimit);
        let shares = PayShares { owner: Permille(200), miners: Permille(400), ..terms().shares };
        assert_ok!(set(Terms { shares, ..terms() }));
    });
}

#[test]
fn an_owner_cannot_raise_the_emission_to_all_of_the_treasury() {
    with_a_run(|| {
        open(2);
        let limit = params().limits.emission_per_epoch;
        assert_noop!(set(Terms { emission_per_epoch: Balance::MAX, ..terms() }), E::EmissionLimit);
        assert_noop!(set(Terms { emission_per_epoch: limit + 1, ..terms() }), E::EmissionLimit);
        assert_ok!(set(Terms { emission_per_epoch: limit, ..terms() }));
    });
}

#[test]
fn a_run_is_not_created_with_terms_above_its_limits() {
    empty_chain().execute_with(|| {
        let limits = TermsLimits { owner_share: Permille(99), ..TermsLimits::default() };
        assert_noop!(create(OWNER, RunParams { limits, ..params() }, terms()), E::OwnerShareLimit);
    });
}

#[test]
fn stake_leaves_before_a_higher_slash_and_a_longer_unbonding_hold() {
    for asked in 2..9 {
        with_a_run(|| {
            assert_ok!(validate(1, VALIDATOR_STAKE));
            open(asked);
            let worse = Terms { equivocation_slash: Permille(200), unbonding_windows: 50, ..terms() };
            assert_ok!(set(worse));
            // The holder is notified an epoch later.
            let learns = asked + params().epoch_windows;
            open(learns);
            assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
            open(learns + 1);
            let (_, _, free_from) = unbonding(COLDKEY)[0];
            let changed = opens_until_changed(learns + 1);
            assert!(free_from <= changed, "free from {free_from}, changed in {changed}");
            assert_eq!(now(), worse);
            assert_ok!(R::withdraw(signed(COLDKEY), RUN));
            assert_eq!(staked(COLDKEY), 0);
        });
    }
}

#[test]
fn worse_terms_are_pending_with_their_window_and_better_ones_hold_with_the_next_epoch() {
    with_a_run(|| {
        open(4);
        let better = Terms { seat_price_min: 0, miner_seats_max: 4, ..terms() };
        assert_ok!(set(better));
        assert_eq!(pending(), Some((better, 6)));
        // The replacement waits for its own notice: 5 windows of unbonding and an epoch, then the next epoch.
        let worse = Terms { quorum: Permille(1), ..better };
        assert_ok!(set(worse));
        assert_eq!(pending(), Some((worse, 15)));
        System::assert_last_event(
            Event::<Test>::TermsProposed { run: RUN, terms: worse, from: Window(15) }.into(),
        );
        assert_eq!(opens_until_changed(4), 15);
        assert_eq!((now(), pending()), (worse, None));
    });
}

#[test]
fn a_shorter_unbonding_does_not_shorten_the_notice_of_the_next_change() {
    with_a_run(|| {
        open(0);
        assert_ok!(set(Terms { unbonding_windows: 0, ..terms() }));
        assert_eq!(opens_until_changed(0), 9);
        // Even then, the notice is one epoch.
        open(11);
        assert_ok!(set(Terms { equivocation_slash: Permille(300), unbonding_windows: 0, ..terms() }));
        assert_eq!(opens_until_changed(11), 15);
    });
}

#[test]
fn an_epoch_is_paid_by_its_own_terms_after_two_changes_in_a_row() {
    empty_chain().execute_with(|| {
        assert_ok!(create(OWNER, RunParams { reveal_windows: 3, ..params() }, terms()));
        let cheaper = |validator_stake_min| Terms { validator_stake_min, ..terms() };
        let of = |epoch| R::terms_of(RUN, epoch).unwrap().validator_stake_min;
        for (window, stake) in [(0, 40), (3, 30), (6, 20), (9, 10)] {
            open(window);
            assert_ok!(set(cheaper(stake)));
            R::check_invariants().unwrap();
        }
        // Epoch 2 closes here, after the changes of this opening.
        open(12);
        assert_eq!([2, 3, 4, 5].map(of), [30, 20, 10, 10]);
        assert_eq!(FormerTerms::<Test>::get(RUN).len(), 2);
    });
}
