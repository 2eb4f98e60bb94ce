//! Runs and seats, and every refusal with storage unchanged (PROT-29, 33).

use crate::{mock::*, *};
use frame::{
    deps::frame_support::dispatch::CheckIfFeeless as _, prelude::fungible::InspectHold as _,
    testing_prelude::*,
};
use pallet_mock::consent;
use proptest::prelude::*;
use protocol::{
    Schedule,
    params::{Density, F32Bits, PayShares, TermsLimits},
};

mod owner;

type E = Error<Test>;
type R = Registry;

fn staked(who: u64) -> Balance {
    Balances::balance_on_hold(&HoldReason::Stake.into(), &who)
}

fn deposited(who: u64) -> Balance {
    Balances::balance_on_hold(&HoldReason::RunDeposit.into(), &who)
}

fn free(who: u64) -> Balance {
    Balances::free_balance(who)
}

fn unbonding(who: u64) -> Vec<(u16, Balance, u32)> {
    let views = R::unbonding(RUN, &who).into_iter();
    views.map(|view| (view.uid.0, view.amount, view.until.0)).collect()
}

fn seats_of_coldkey() -> Vec<Uid> {
    let seats = R::seats(RUN).into_iter();
    seats.filter(|(_, seat)| seat.coldkey == COLDKEY).map(|(uid, _)| uid).collect()
}

fn next_uid() -> Option<Uid> {
    crate::permits::free_uid(&Rosters::<Test>::get(RUN), <<Test as Config>::MaxSeats as Get<u32>>::get())
}

fn holder(hotkey: u64) -> Option<SeatId> {
    R::holder_of(RUN, &(HOTKEY + hotkey))
}

/// Sets new terms, and opens the first window with them.
fn change_terms(terms: Terms) -> u32 {
    assert_ok!(R::set_terms(signed(OWNER), RUN, terms));
    let from = PendingChanges::<Test>::get(RUN).terms.unwrap().from.0;
    open(from);
    assert_eq!(R::run(RUN).unwrap().terms, terms);
    from
}

fn slash(seat: SeatId, share: u16, reporter: Option<u64>) -> Balance {
    R::slash(RUN, seat, Permille(share), reporter.as_ref())
}

// Runs.

#[test]
fn a_run_is_created_with_its_deposit_held() {
    with_a_run(|| {
        let run = R::run(RUN).unwrap();
        assert_eq!((run.owner, run.params, run.terms, run.deposit), (OWNER, params(), terms(), 100));
        assert!(!run.stopped);
        assert_eq!(deposited(OWNER), 100);
        System::assert_last_event(
            Event::<Test>::RunCreated { run: RUN, owner: OWNER, start: Block(5) }.into(),
        );
        assert_ok!(create(OWNER, params(), terms()));
        assert_eq!(R::run_ids(), [RunId(0), RunId(1)]);
    });
}

#[test]
fn parameters_and_terms_out_of_bounds_are_refused_with_their_own_error() {
    empty_chain().execute_with(|| {
        let good = params();
        let schedule = |commit_by| Schedule { commit_by, ..good.schedule };
        for (params, error) in [
            (RunParams { schedule: schedule(0), ..good }, E::BadSchedule),
            (RunParams { epoch_windows: 0, ..good }, E::ZeroParameter),
            (RunParams { density: Density(0), ..good }, E::BadDensity),
            (RunParams { error_feedback_decay: F32Bits::of(f32::NAN), ..good }, E::BadRate),
            (RunParams { min_contributions: 9, ..good }, E::BadPlaces),
            (RunParams { min_contributions: 3, localnet: false, ..good }, E::TooFewContributions),
            (RunParams { reveal_windows: 9, ..good }, E::BadReveal),
            (RunParams { hidden_blocks: 100, ..good }, E::BadHidden),
            (RunParams { checkpoint_windows: 65, ..good }, E::CheckpointsTooRare),
        ] {
            assert_noop!(create(OWNER, params, terms()), error);
        }
        let bad_terms = bad_terms();
        for (terms, error) in bad_terms {
            assert_noop!(create(OWNER, params(), terms), error);
        }
    });
}

fn bad_terms() -> [(Terms, E); 13] {
    let good = terms();
    let shares = PayShares { owner: Permille(201), miners: Permille(399), ..good.shares };
    let limits = params().limits;
    [
        (Terms { shares, ..good }, E::OwnerShareLimit),
        (Terms { emission_per_epoch: limits.emission_per_epoch + 1, ..good }, E::EmissionLimit),
        (Terms { equivocation_slash: Permille(301), ..good }, E::SlashLimit),
        (Terms { unbonding_windows: limits.unbonding_windows + 1, ..good }, E::UnbondingLimit),
        (Terms { validator_stake_min: limits.validator_stake_min + 1, ..good }, E::StakeLimit),
        (Terms { miner_stake_min: limits.miner_stake_min + 1, ..good }, E::StakeLimit),
        (Terms { seat_price_min: limits.seat_price_min + 1, ..good }, E::PriceLimit),
        (Terms { active_set_max: 0, ..good }, E::ZeroParameter),
        (Terms { quorum: Permille(0), ..good }, E::BadQuorum),
        (Terms { shares: PayShares { owner: Permille(0), ..good.shares }, ..good }, E::BadShares),
        (Terms { equivocation_slash: Permille(1001), ..good }, E::BadSlash),
        (Terms { unbonding_windows: 100_001, ..good }, E::BadUnbonding),
        (Terms { miner_seats_max: 7, ..good }, E::TooManySeats),
    ]
}

#[test]
fn a_run_starts_after_the_block_that_creates_it() {
    empty_chain().execute_with(|| {
        let at =
            |start| RunParams { schedule: Schedule { start: Block(start), ..params().schedule }, ..params() };
        assert_noop!(create(OWNER, at(1), terms()), E::StartPassed);
        assert_ok!(create(OWNER, at(2), terms()));
    });
}

#[test]
fn the_number_of_runs_is_bounded() {
    empty_chain().execute_with(|| {
        for _ in 0..3 {
            assert_ok!(create(OWNER, params(), terms()));
        }
        assert_noop!(create(OWNER, params(), terms()), E::TooManyRuns);
    });
}

#[test]
fn terms_change_with_an_epoch_and_pay_follows_the_terms_of_its_epoch() {
    with_a_run(|| {
        let of = |epoch| R::terms_of(RUN, epoch).unwrap();
        let now = || R::run(RUN).unwrap().terms;
        let new = Terms { miner_seats_max: 4, miner_stake_min: 1, ..terms() };
        open(0);
        assert_noop!(R::set_terms(signed(COLDKEY), RUN, new), E::NotTheOwner);
        assert_noop!(R::cancel_terms(signed(OWNER), RUN), E::NoTermsWaiting);
        assert_ok!(R::set_terms(signed(OWNER), RUN, Terms { miner_stake_min: 2, ..new }));
        assert_ok!(R::set_terms(signed(OWNER), RUN, new));
        let pending = PendingTerms { terms: new, from: Window(3) };
        assert_eq!(PendingChanges::<Test>::get(RUN).terms, Some(pending));
        for window in [1, 2] {
            open(window);
            assert_eq!(now(), terms());
        }
        open(3);
        assert_eq!((now(), PendingChanges::<Test>::get(RUN).terms), (new, None));
        assert_eq!((of(0), of(1)), (terms(), new));
        System::assert_last_event(Event::<Test>::TermsChanged { run: RUN, epoch: 1 }.into());

        assert_ok!(R::set_terms(signed(OWNER), RUN, terms()));
        assert_ok!(R::cancel_terms(signed(OWNER), RUN));
        open(6);
        assert_eq!((now(), of(1), of(2)), (new, new, new));
        for (terms, error) in bad_terms() {
            assert_noop!(R::set_terms(signed(OWNER), RUN, terms), error);
        }
    });
}

#[test]
fn terms_set_before_the_first_window_hold_from_the_first_window() {
    with_a_run(|| {
        let new = Terms { immunity_windows: 9, ..terms() };
        assert_ok!(R::set_terms(signed(OWNER), RUN, new));
        open(0);
        assert_eq!(R::run(RUN).unwrap().terms, new);
        assert_eq!(R::terms_of(RUN, 0), Some(new));
    });
}

#[test]
fn the_owner_stops_and_restarts_a_run_at_the_next_opening() {
    with_a_run(|| {
        let stopped = || R::run(RUN).unwrap().stopped;
        open(0);
        assert_noop!(R::set_stopped(signed(OTHER), RUN, true), E::NotTheOwner);
        assert_ok!(R::set_stopped(signed(OWNER), RUN, true));
        assert_eq!((stopped(), R::is_stopped(RUN)), (false, true));
        open(1);
        assert_eq!((stopped(), R::is_stopped(RUN)), (true, true));
        open(2);
        assert!(stopped());
        assert_ok!(R::set_stopped(signed(OWNER), RUN, false));
        assert_eq!((stopped(), R::is_stopped(RUN)), (true, false));
        assert_ok!(R::set_stopped(signed(OWNER), RUN, true));
        open(3);
        assert!(stopped());
        assert_ok!(R::set_stopped(signed(OWNER), RUN, false));
        open(4);
        assert!(!stopped());
    });
}

#[test]
fn an_offered_run_passes_to_the_new_owner_with_its_deposit() {
    with_a_run(|| {
        assert_noop!(R::offer_run(signed(OTHER), RUN, OTHER), E::NotTheOwner);
        assert_noop!(R::accept_run(signed(OTHER), RUN), E::NotOffered);
        assert_ok!(R::offer_run(signed(OWNER), RUN, COLDKEY));
        assert_ok!(R::offer_run(signed(OWNER), RUN, OTHER));
        assert_noop!(R::accept_run(signed(COLDKEY), RUN), E::NotOffered);
        assert_ok!(R::accept_run(signed(OTHER), RUN));
        assert_eq!((deposited(OWNER), deposited(OTHER)), (0, 100));
        assert_noop!(R::set_stopped(signed(OWNER), RUN, true), E::NotTheOwner);
        assert_ok!(R::set_stopped(signed(OTHER), RUN, true));
        assert_noop!(R::accept_run(signed(OTHER), RUN), E::NotOffered);

        assert_ok!(R::offer_run(signed(OTHER), RUN, STRANGER));
        assert_noop!(R::accept_run(signed(STRANGER), RUN), E::NotEnoughFunds);
        // An offer to the owner itself changes nothing.
        assert_ok!(R::offer_run(signed(OTHER), RUN, OTHER));
        assert_ok!(R::accept_run(signed(OTHER), RUN));
        assert_eq!(deposited(OTHER), 100);
    });
}

// Seats.

#[test]
fn a_seat_is_taken_with_its_stake_held_from_the_coldkey() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 30));
        assert_ok!(register(COLDKEY, Role::Validator, HOTKEY + 1, 60));
        assert_eq!(staked(COLDKEY), 90);
        assert_eq!(R::seat_of(RUN, &HOTKEY), Some((Uid(0), Role::Miner)));
        assert_eq!(R::seat_of(RUN, &(HOTKEY + 1)), Some((Uid(1), Role::Validator)));
        assert_eq!(holder(1), Some(SeatId { uid: Uid(1), registered_at: Block(1) }));
        let seats = R::seats(RUN);
        let stakes: Vec<_> = seats.iter().map(|(uid, seat)| (uid.0, seat.stake)).collect();
        assert_eq!(stakes, [(0, 30), (1, 60)]);
        assert_eq!((seats[0].1.registered_at, seats[0].1.since), (Block(1), Window(0)));
        assert_eq!((R::taken(RUN, Role::Miner), R::taken(RUN, Role::Validator)), ((1, 3), (1, 2)));
        assert_eq!(seats_of_coldkey(), [Uid(0), Uid(1)]);
        assert_eq!(next_uid(), Some(Uid(2)));
        open(0);
        assert_ok!(mine(2));
        assert_eq!((seat(2).since, R::immune_until(RUN, Uid(2))), (Window(1), Some(Window(5))));
    });
}

#[test]
fn an_endpoint_is_set_once_per_window_for_free_and_stake_can_be_added() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 30));
        let set = |text: &str| R::set_endpoint(signed(HOTKEY), RUN, url(text));
        let is_feeless = |who: u64, text: &str| {
            Call::<Test>::set_endpoint { run: RUN, endpoint: url(text) }.is_feeless(&signed(who))
        };
        assert!(is_feeless(HOTKEY, "http://a") && !is_feeless(COLDKEY, "http://a"));
        assert!(!is_feeless(HOTKEY, "nonsense"));
        assert_ok!(set("https://elsewhere"));
        assert!(!is_feeless(HOTKEY, "http://a"));
        assert_noop!(set("https://again"), E::EndpointJustSet);
        open(0);
        assert_ok!(set("https://again"));
        System::set_block_number(6);
        assert_noop!(set("https://third"), E::EndpointJustSet);
        open(1);
        assert_ok!(set("https://third"));

        assert_ok!(R::add_stake(signed(COLDKEY), RUN, Uid(0), 12));
        assert_eq!((seat(0).endpoint, seat(0).stake, staked(COLDKEY)), (url("https://third"), 42, 42));
        System::assert_last_event(
            Event::<Test>::StakeAdded { run: RUN, uid: Uid(0), amount: 12, stake: 42 }.into(),
        );
    });
}

#[test]
fn the_seats_of_each_role_are_bounded_separately() {
    with_a_run(|| {
        for hotkey in 0..3 {
            assert_ok!(mine(hotkey));
        }
        assert_noop!(mine(3), E::RunFull);
        assert_ok!(validate(4, VALIDATOR_STAKE));
        assert_ok!(validate(5, VALIDATOR_STAKE));
        assert_noop!(validate(6, VALIDATOR_STAKE), E::RunFull);
    });
}

#[test]
fn a_hotkey_holds_one_seat_in_a_run_but_may_hold_one_in_another() {
    with_a_run(|| {
        assert_ok!(mine(0));
        assert_noop!(validate(0, VALIDATOR_STAKE), E::HotkeyInUse);
        assert_ok!(create(OWNER, params(), terms()));
        let elsewhere = url("http://a");
        assert_ok!(register_in(COLDKEY, RunId(1), Role::Miner, HOTKEY, elsewhere, MINER_STAKE, 0));
    });
}

#[test]
fn a_hotkey_needs_no_balance_to_sign_for_its_seat() {
    with_a_run(|| {
        assert_ok!(mine(0));
        assert_eq!((System::sufficients(&HOTKEY), free(HOTKEY)), (1, 0));
        open(0);
        assert_ok!(rotate(0, 1));
        assert_eq!((System::sufficients(&HOTKEY), System::sufficients(&(HOTKEY + 1))), (1, 1));
        open(1);
        assert_eq!((System::sufficients(&HOTKEY), System::sufficients(&(HOTKEY + 1))), (0, 1));
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        open(2);
        assert!(!System::account_exists(&(HOTKEY + 1)));
    });
}

#[test]
fn a_stake_is_at_least_the_minimum_of_the_role() {
    with_a_run(|| {
        assert_noop!(register(COLDKEY, Role::Miner, HOTKEY, MINER_STAKE - 1), E::StakeTooLow);
        assert_noop!(validate(0, VALIDATOR_STAKE - 1), E::StakeTooLow);
        assert_ok!(validate(0, VALIDATOR_STAKE));
    });
}

#[test]
fn stakes_and_deposits_need_funds() {
    with_a_run(|| {
        assert_noop!(create(STRANGER, params(), terms()), E::NotEnoughFunds);
        assert_noop!(register(COLDKEY, Role::Miner, HOTKEY, 996), E::NotEnoughFunds);
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 900));
        let more = |amount| R::add_stake(signed(COLDKEY), RUN, Uid(0), amount);
        assert_noop!(more(96), E::NotEnoughFunds);
        assert_noop!(more(Balance::MAX), E::StakeTooLarge);
        assert_ok!(more(95));
    });
}

#[test]
fn unknown_runs_and_seats_are_refused() {
    with_a_run(|| {
        let (nowhere, seat) = (RunId(7), url("http://a"));
        let cold = || signed(COLDKEY);
        assert_noop!(
            register_in(COLDKEY, nowhere, Role::Miner, HOTKEY, seat.clone(), MINER_STAKE, 0),
            E::UnknownRun
        );
        assert_noop!(R::set_endpoint(signed(HOTKEY), nowhere, seat.clone()), E::UnknownRun);
        assert_noop!(R::add_stake(cold(), nowhere, Uid(0), 1), E::UnknownRun);
        assert_noop!(R::unstake(cold(), nowhere, Uid(0), 1), E::UnknownRun);
        assert_noop!(R::leave(cold(), nowhere, Uid(0)), E::UnknownRun);
        assert_noop!(R::withdraw(cold(), nowhere), E::UnknownRun);
        assert_noop!(rotate_in(COLDKEY, nowhere, 0, 7), E::UnknownRun);
        assert_noop!(R::set_terms(cold(), nowhere, terms()), E::UnknownRun);
        assert_noop!(R::cancel_terms(cold(), nowhere), E::UnknownRun);
        assert_noop!(R::set_stopped(cold(), nowhere, true), E::UnknownRun);
        assert_noop!(R::offer_run(cold(), nowhere, OTHER), E::UnknownRun);
        assert_noop!(R::accept_run(cold(), nowhere), E::UnknownRun);

        assert_noop!(R::set_endpoint(signed(HOTKEY), RUN, seat), E::NotASeat);
        assert_noop!(R::add_stake(cold(), RUN, Uid(0), 1), E::UnknownSeat);
        assert_noop!(R::unstake(cold(), RUN, Uid(0), 1), E::UnknownSeat);
        assert_noop!(R::leave(cold(), RUN, Uid(0)), E::UnknownSeat);
        assert_noop!(rotate(0, 7), E::UnknownSeat);
        assert_noop!(R::add_to_stake(RUN, Uid(0), &OWNER, 1), E::UnknownSeat);

        let unknown_seat = SeatId { uid: Uid(0), registered_at: Block(1) };
        assert_storage_noop!(assert_eq!(slash(unknown_seat, 1000, Some(OTHER)), 0));
        assert_storage_noop!(assert_eq!(R::slash(nowhere, unknown_seat, Permille(1000), None), 0));
        assert_storage_noop!({
            R::window_opens(nowhere, Window(0));
        });
        assert_eq!((R::price(nowhere, Role::Miner), R::taken(nowhere, Role::Miner)), (0, (0, 0)));
        assert_eq!((R::immune_until(RUN, Uid(0)), R::terms_of(nowhere, 0)), (None, None));
        assert_eq!((holder(0), R::is_stopped(nowhere)), (None, false));
    });
}

#[test]
fn only_the_coldkey_controls_a_seat_and_its_stake() {
    with_a_run(|| {
        assert_ok!(mine(0));
        for who in [HOTKEY, OTHER] {
            assert_noop!(R::add_stake(signed(who), RUN, Uid(0), 1), E::NotTheColdkey);
            assert_noop!(R::unstake(signed(who), RUN, Uid(0), 1), E::NotTheColdkey);
            assert_noop!(R::leave(signed(who), RUN, Uid(0)), E::NotTheColdkey);
            assert_noop!(rotate_in(who, RUN, 0, 7), E::NotTheColdkey);
            assert_noop!(R::withdraw(signed(who), RUN), E::NothingToWithdraw);
        }
        assert_noop!(R::add_stake(signed(COLDKEY), RUN, Uid(0), 0), E::NothingToAdd);
        assert_noop!(R::unstake(signed(COLDKEY), RUN, Uid(0), 0), E::NothingToTake);
    });
}

#[test]
fn unsigned_and_root_calls_are_refused() {
    with_a_run(|| {
        assert_ok!(mine(0));
        let (digest, seat, uid, unsigned) = (Digest([0; 32]), url("http://a"), Uid(0), Signature([0; 64]));
        for who in [RuntimeOrigin::none(), RuntimeOrigin::root()] {
            let origin = || who.clone();
            assert_noop!(
                R::create_run(origin(), params(), terms(), digest, digest, digest, seat.clone()),
                BadOrigin
            );
            assert_noop!(
                R::register(origin(), RUN, Role::Miner, HOTKEY + 1, seat.clone(), MINER_STAKE, 0, unsigned),
                BadOrigin
            );
            assert_noop!(R::set_endpoint(origin(), RUN, seat.clone()), BadOrigin);
            assert_noop!(R::add_stake(origin(), RUN, uid, 1), BadOrigin);
            assert_noop!(R::unstake(origin(), RUN, uid, 1), BadOrigin);
            assert_noop!(R::leave(origin(), RUN, uid), BadOrigin);
            assert_noop!(R::withdraw(origin(), RUN), BadOrigin);
            assert_noop!(R::rotate_hotkey(origin(), RUN, uid, 7, unsigned), BadOrigin);
            assert_noop!(R::set_terms(origin(), RUN, terms()), BadOrigin);
            assert_noop!(R::cancel_terms(origin(), RUN), BadOrigin);
            assert_noop!(R::set_stopped(origin(), RUN, true), BadOrigin);
            assert_noop!(R::offer_run(origin(), RUN, OTHER), BadOrigin);
            assert_noop!(R::accept_run(origin(), RUN), BadOrigin);
        }
    });
}

#[test]
fn an_endpoint_is_a_peer_where_there_is_no_bucket_and_the_origin_of_a_run_is_none() {
    const PEER: &str = "p2p://12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
    with_a_run(|| {
        assert_ok!(mine(0));
        open(0);
        assert_ok!(R::set_endpoint(signed(HOTKEY), RUN, url(PEER)));
        open(1);
        let address = format!("{PEER}/ip4/203.0.113.5/udp/4100/quic-v1");
        assert_ok!(R::set_endpoint(signed(HOTKEY), RUN, url(&address)));
        open(2);
        for bad in
            ["p2p://", "p2p:///ip4", "p2p://somebody", &format!("{PEER}x"), &format!("{PEER}/@"), &PEER[..57]]
        {
            assert_noop!(R::set_endpoint(signed(HOTKEY), RUN, url(bad)), E::BadUrl);
        }
        let (digest, start) = (Digest([0; 32]), Block(10_000));
        let later = RunParams { schedule: Schedule { start, ..params().schedule }, ..params() };
        assert_noop!(
            R::create_run(signed(OWNER), later, terms(), digest, digest, digest, url(PEER)),
            E::BadUrl
        );
    });
}

#[test]
fn a_base_url_is_http_with_a_host_and_without_a_credential() {
    with_a_run(|| {
        assert_ok!(mine(0));
        for (window, good) in (0..).zip(["http://127.0.0.1:9000/miner-0", "https://a", "http://[::1]:80/b"]) {
            open(window);
            assert_ok!(R::set_endpoint(signed(HOTKEY), RUN, url(good)));
        }
        open(3);
        for bad in [
            "",
            "http://",
            "http:///bucket",
            "http://:80",
            "ftp://a",
            "a.example",
            "http://user:secret@a",
            "http://a b",
            "http://\u{e4}",
            "http://a\n",
        ] {
            assert_noop!(R::set_endpoint(signed(HOTKEY), RUN, url(bad)), E::BadUrl);
        }
        assert_noop!(register_in(COLDKEY, RUN, Role::Miner, HOTKEY + 1, url("x"), MINER_STAKE, 0), E::BadUrl);
        let (digest, start) = (Digest([0; 32]), Block(10_000));
        let later = RunParams { schedule: Schedule { start, ..params().schedule }, ..params() };
        assert_noop!(
            R::create_run(signed(OWNER), later, terms(), digest, digest, digest, url("x")),
            E::BadUrl
        );
    });
}

// The price of a seat.

#[test]
fn a_seat_costs_more_with_each_newcomer_and_less_with_each_window() {
    // The price halves in two windows.
    with_terms(Terms { seat_price_min: 80, immunity_windows: 8, ..terms() }, || {
        open(0);
        let issued = Balances::total_issuance();
        let bid = |hotkey, price_max| {
            let seat = url("http://a");
            register_in(COLDKEY, RUN, Role::Miner, HOTKEY + hotkey, seat, MINER_STAKE, price_max)
        };
        assert_eq!(R::price(RUN, Role::Miner), 80);
        assert_noop!(bid(0, 79), E::PriceAboveMax);
        assert_ok!(bid(0, 80));
        System::assert_has_event(
            Event::<Test>::PricePaid { run: RUN, role: Role::Miner, coldkey: COLDKEY, price: 80 }.into(),
        );
        assert_eq!((free(COLDKEY), staked(COLDKEY)), (1_000 - 80 - 10, 10));
        assert_eq!(R::price(RUN, Role::Miner), 90);
        assert_noop!(bid(1, 89), E::PriceAboveMax);
        assert_ok!(bid(1, 90));
        // No validator has registered.
        assert_eq!((R::price(RUN, Role::Miner), R::price(RUN, Role::Validator)), (102, 80));
        assert_ok!(bid(2, 102));
        assert_eq!(Balances::total_issuance(), issued - 80 - 90 - 102);

        // 102 plus an eighth, rounded up, is 115. It falls by a quarter in one window, by half in two.
        assert_eq!(R::price(RUN, Role::Miner), 115);
        open(1);
        assert_eq!(R::price(RUN, Role::Miner), 115 - 57 / 2);
        open(2);
        assert_eq!(R::price(RUN, Role::Miner), 80);
    });
}

#[test]
fn an_account_that_cannot_pay_the_price_keeps_its_stake() {
    with_terms(Terms { seat_price_min: 990, ..terms() }, || {
        assert_noop!(mine(0), E::NotEnoughFunds);
        assert_eq!((free(COLDKEY), staked(COLDKEY)), (1_000, 0));
    });
}

// Replacement.

/// Three miners, uids 0 to 2 with stakes 10, 20 and 10, since window 0.
fn with_a_full_run(story: impl FnOnce()) {
    with_a_run(|| {
        for (hotkey, stake) in [(0, 10), (1, 20), (2, 10)] {
            assert_ok!(register(COLDKEY, Role::Miner, HOTKEY + hotkey, stake));
        }
        story();
    });
}

fn newcomer(hotkey: u64) -> DispatchResult {
    register(OTHER, Role::Miner, HOTKEY + hotkey, 15)
}

#[test]
fn a_full_run_replaces_the_lowest_paid_seat_that_is_past_its_immunity() {
    with_a_full_run(|| {
        Paid::set([(0, 5), (1, 3), (2, 3)].into());
        for window in 0..3 {
            open(window);
            assert_noop!(newcomer(3), E::RunFull);
        }
        open(3);
        // Immune in windows 0 to 3; window 4 opens next. Of the two with equal pay, uid 2 has less stake.
        assert_ok!(newcomer(3));
        assert_noop!(newcomer(4), E::TooManyReplacements);
        assert_noop!(newcomer(3), E::HotkeyInUse);
        // Paid for, but not replaced before the opening.
        assert_eq!(hotkeys(), [(0, 0), (1, 1), (2, 2)]);
        assert_eq!((staked(OTHER), holder(3)), (15, None));
        assert_eq!(Gone::get(), []);

        open(4);
        assert_eq!(hotkeys(), [(0, 0), (1, 1), (2, 3)]);
        let before = |uid| (RUN, SeatId { uid: Uid(uid), registered_at: Block(1) });
        assert_eq!(Gone::get(), [before(2)]);
        let opening = params().schedule.opens_at(Window(4));
        assert_eq!((seat(2).registered_at, seat(2).since, seat(2).coldkey), (opening, Window(4), OTHER));
        assert_eq!(holder(2), Some(before(2).1));
        assert_eq!(holder(3), Some(SeatId { uid: Uid(2), registered_at: opening }));
        assert_ok!(newcomer(4));
        open(5);
        assert_ok!(newcomer(5));
        open(6);
        assert_eq!(hotkeys(), [(0, 5), (1, 4), (2, 3)]);
        assert_eq!(unbonding(COLDKEY), [(2, 10, 9), (1, 20, 10), (0, 10, 11)]);
        assert_noop!(newcomer(2), E::HotkeyInUse);
        assert_noop!(newcomer(7), E::RunFull);

        open(8);
        assert_noop!(R::withdraw(signed(COLDKEY), RUN), E::NothingToWithdraw);
        open(11);
        assert_ok!(R::withdraw(signed(COLDKEY), RUN));
        assert_eq!((free(COLDKEY), staked(COLDKEY), unbonding(COLDKEY)), (1_000, 0, vec![]));
    });
}

#[test]
fn of_equal_seats_the_newest_is_replaced() {
    with_a_run(|| {
        assert_ok!(mine(0));
        assert_ok!(mine(1));
        System::set_block_number(2);
        assert_ok!(mine(2));
        open(3);
        assert_ok!(newcomer(3));
        open(4);
        assert_ok!(newcomer(4));
        open(5);
        assert_eq!(hotkeys(), [(0, 0), (1, 4), (2, 3)]);
    });
}

#[test]
fn at_most_a_sixteenth_of_a_role_s_seats_and_at_least_one_are_replaced_per_window() {
    let most =
        |seats| crate::rules::replacements_max(&Terms { miner_seats_max: seats, ..terms() }, Role::Miner);
    assert_eq!([1, 15, 16, 31, 32, 192, 1024].map(most), [1, 1, 1, 1, 2, 12, 64]);
}

#[test]
fn a_miner_with_a_weight_is_replaced_after_those_without() {
    with_a_full_run(|| {
        Paid::set([(0, 9), (1, 0), (2, 5)].into());
        Weighted::set(vec![(Uid(0), 0), (Uid(1), 65_535)]);
        open(4);
        // Uid 1 has the least pay, and a weight. Of the two without a weight, uid 2 has less pay.
        assert_ok!(newcomer(3));
        open(5);
        assert_ok!(newcomer(4));
        open(6);
        assert_eq!(hotkeys(), [(0, 4), (1, 1), (2, 3)]);
        // The two newcomers are immune and have shown no work, so uid 1 stays.
        assert_noop!(newcomer(5), E::RunFull);
        Weighted::set(vec![(Uid(0), 7), (Uid(1), 65_535)]);
        assert_noop!(newcomer(5), E::RunFull);
        Weighted::set(vec![(Uid(0), 7), (Uid(1), 65_535), (Uid(2), 1)]);
        assert_ok!(newcomer(5));
        open(7);
        assert_eq!(hotkeys(), [(0, 4), (1, 5), (2, 3)]);
    });
}

#[test]
fn the_price_of_a_seat_follows_what_a_seat_is_paid() {
    let paying = Terms { emission_per_epoch: 1_200, seat_price_min: 7, ..terms() };
    with_terms(paying, || {
        // A treasury without money pays nothing.
        assert_eq!((R::price(RUN, Role::Miner), R::price(RUN, Role::Validator)), (7, 7));
        Treasury::set(10_000);
        // Half of 600 over three seats, or of 480 over two, for four windows; an epoch has three.
        assert_eq!((R::price(RUN, Role::Miner), R::price(RUN, Role::Validator)), (133, 160));
        assert_ok!(mine(0));
        assert_eq!((free(COLDKEY), staked(COLDKEY)), (1_000 - 133 - 10, 10));
    });
}

#[test]
fn a_validator_is_replaced_only_by_one_with_more_stake_by_a_tenth() {
    with_a_run(|| {
        assert_ok!(validate(0, 60));
        assert_ok!(validate(1, 50));
        Behind::set([(1, 20)].into());
        Paid::set([(0, 9)].into());
        let outbid = |stake| register(OTHER, Role::Validator, HOTKEY + 2, stake);
        open(2);
        assert_noop!(outbid(900), E::RunFull);
        open(3);
        assert_noop!(outbid(66), E::StakeTooLowToReplace);
        // Uid 1 is paid less; its nominations protect it.
        assert_ok!(outbid(67));
        open(4);
        assert_eq!(hotkeys(), [(0, 2), (1, 1)]);
    });
}

#[test]
fn nominations_above_ten_times_the_own_stake_protect_no_validator() {
    with_a_run(|| {
        assert_ok!(validate(0, 50));
        assert_ok!(validate(1, 50));
        Behind::set([(0, 900), (1, 90_000)].into());
        let behind = |uid: u16| R::stake_behind(RUN, Uid(uid), &seat(uid));
        assert_eq!([0, 1].map(behind), [550, 550]);
        open(3);
        let outbid = |stake| register(OTHER, Role::Validator, HOTKEY + 2, stake);
        assert_noop!(outbid(605), E::StakeTooLowToReplace);
        assert_ok!(outbid(606));
    });
}

#[test]
fn a_newcomer_takes_a_seat_that_is_given_up_before_it_replaces_one() {
    with_a_full_run(|| {
        Paid::set([(0, 5), (1, 9), (2, 3)].into());
        open(0);
        assert_noop!(newcomer(3), E::RunFull);
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(1)));
        assert_ok!(newcomer(3));
        assert_noop!(newcomer(4), E::TooManyReplacements);
        assert_noop!(R::leave(signed(COLDKEY), RUN, Uid(1)), E::ChangeWaiting);
        open(1);
        assert_eq!(hotkeys(), [(0, 0), (1, 3), (2, 2)]);
        assert_eq!(unbonding(COLDKEY), [(1, 20, 6)]);
    });
}

#[test]
fn the_lowest_free_uid_is_taken_first() {
    with_a_full_run(|| {
        open(0);
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(1)));
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        System::assert_last_event(Event::<Test>::Leaving { run: RUN, uid: Uid(0) }.into());
        // The holder stays until the opening.
        assert_eq!((R::taken(RUN, Role::Miner), hotkeys().len()), ((3, 3), 3));
        open(1);
        assert_eq!((R::taken(RUN, Role::Miner), hotkeys()), ((1, 3), vec![(2, 2)]));
        assert_noop!(R::leave(signed(COLDKEY), RUN, Uid(0)), E::UnknownSeat);
        assert_ok!(validate(3, VALIDATOR_STAKE));
        assert_ok!(mine(4));
        assert_ok!(mine(5));
        assert_eq!(hotkeys(), [(0, 3), (1, 4), (2, 2), (3, 5)]);
        assert_eq!(seat(0).role, Role::Validator);
    });
}

#[test]
fn lowering_the_number_of_seats_evicts_no_holder_but_seats_given_up_stay_empty() {
    with_a_full_run(|| {
        let now = change_terms(Terms { miner_seats_max: 1, ..terms() });
        assert_eq!(R::taken(RUN, Role::Miner), (3, 1));
        // Two seats too many: a leaving holder frees none.
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(1)));
        // The remaining one can still be replaced.
        assert_ok!(newcomer(3));
        assert_noop!(newcomer(4), E::TooManyReplacements);
        open(now + 1);
        assert_eq!(hotkeys(), [(2, 3)]);

        change_terms(terms());
        assert_ok!(newcomer(4));
        assert_ok!(newcomer(5));
        assert_noop!(newcomer(6), E::RunFull);
        assert_eq!(hotkeys(), [(0, 4), (1, 5), (2, 3)]);
    });
}

#[test]
fn a_role_below_its_maximum_may_find_every_uid_taken() {
    with_terms(Terms { miner_seats_max: 6, ..terms() }, || {
        for hotkey in 0..6 {
            assert_ok!(mine(hotkey));
        }
        let swapped = Terms { miner_seats_max: 2, validator_seats_max: 6, ..terms() };
        let now = change_terms(swapped);
        assert_ok!(validate(6, VALIDATOR_STAKE));
        assert_ok!(validate(7, VALIDATOR_STAKE));
        assert_eq!((next_uid(), R::taken(RUN, Role::Validator)), (None, (2, 6)));
        assert_noop!(validate(8, VALIDATOR_STAKE), E::RunFull);
        open(now + 4);
        assert_noop!(validate(8, VALIDATOR_STAKE), E::StakeTooLowToReplace);
        assert_ok!(validate(8, VALIDATOR_STAKE * 2));
    });
}

#[test]
fn the_changes_of_an_opening_are_bounded_and_at_most_half_are_rotations() {
    with_terms(Terms { miner_seats_max: 6, ..terms() }, || {
        for hotkey in 0..6 {
            assert_ok!(mine(hotkey));
        }
        open(4);
        assert_ok!(rotate(0, 10));
        assert_ok!(rotate(1, 11));
        assert_noop!(rotate(2, 12), E::TooManyChanges);
        // uid 5 is replaced. Rotations keep their place.
        assert_ok!(newcomer(20));
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(3)));
        assert_noop!(rotate(4, 12), E::TooManyChanges);
        // A holder can leave anyway.
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(4)));
        // A seat with a waiting rotation needs no further entry.
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        open(5);
        assert_eq!(hotkeys(), [(1, 11), (2, 2), (5, 20)]);
    });
}

#[test]
fn a_full_list_of_changes_keeps_no_expelled_holder() {
    with_terms(Terms { miner_seats_max: 6, ..terms() }, || {
        for hotkey in 0..6 {
            assert_ok!(mine(hotkey));
        }
        open(4);
        assert_ok!(rotate(0, 10));
        for uid in [1, 2, 3] {
            assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(uid)));
        }
        assert_noop!(rotate(4, 11), E::TooManyChanges);
        let former = SeatId { uid: Uid(5), registered_at: Block(0) };
        for id in [seat(0).id(Uid(0)), seat(3).id(Uid(3)), seat(4).id(Uid(4)), former] {
            R::expel(RUN, id);
        }
        assert_eq!(Changes::<Test>::get(RUN).len(), 5);
        R::check_invariants().unwrap();
        // A newcomer takes the seat of an expelled holder.
        assert_ok!(newcomer(20));
        R::expel(RUN, seat(0).id(Uid(0)));
        open(5);
        assert_eq!(hotkeys(), [(0, 20), (5, 5)]);
    });
}

// Hotkeys.

#[test]
fn a_hotkey_takes_no_seat_without_its_consent_to_run_and_coldkey() {
    with_a_run(|| {
        assert_ok!(create(OWNER, params(), terms()));
        assert_ok!(mine(0));
        let (victim, nobody) = (HOTKEY + 1, Signature([0; 64]));
        // The victim consents to a seat of run 0 for OTHER, and the proof is public in the pool.
        let proofs = [consent(&victim, RUN, &OTHER), consent(&victim, RunId(1), &COLDKEY), nobody];
        for proof in proofs {
            let (by, seat) = (signed(COLDKEY), url("http://a"));
            assert_noop!(
                R::register(by.clone(), RUN, Role::Miner, victim, seat, MINER_STAKE, Balance::MAX, proof),
                E::HotkeyNotProven
            );
            assert_noop!(R::rotate_hotkey(by, RUN, Uid(0), victim, proof), E::HotkeyNotProven);
        }
        assert_ok!(register(OTHER, Role::Miner, victim, MINER_STAKE));
    });
}

#[test]
fn a_seat_gets_a_new_hotkey_at_the_opening_and_the_old_one_is_never_used_again() {
    with_a_full_run(|| {
        let id = SeatId { uid: Uid(0), registered_at: Block(1) };
        open(0);
        for used in [0, 1] {
            assert_noop!(rotate(0, used), E::HotkeyInUse);
        }
        assert_ok!(rotate(0, 7));
        assert_noop!(rotate(0, 8), E::ChangeWaiting);
        assert_noop!(rotate(1, 7), E::HotkeyInUse);
        assert_noop!(validate(7, VALIDATOR_STAKE), E::HotkeyInUse);
        assert_eq!((holder(0), holder(7)), (Some(id), None));
        open(1);
        // The same holder.
        assert_eq!((holder(0), holder(7), seat(0).registered_at), (Some(id), Some(id), Block(1)));
        assert_eq!(R::seat_of(RUN, &HOTKEY), None);
        assert_eq!(R::seat_of(RUN, &(HOTKEY + 7)), Some((Uid(0), Role::Miner)));
        assert_eq!(Gone::get(), []);
        assert_noop!(R::set_endpoint(signed(HOTKEY), RUN, url("http://a")), E::NotASeat);
        assert_noop!(rotate(1, 0), E::HotkeyInUse);
        assert_noop!(validate(0, VALIDATOR_STAKE), E::HotkeyInUse);
    });
}

#[test]
fn a_waiting_rotation_does_not_prevent_a_replacement() {
    with_a_full_run(|| {
        open(3);
        assert_ok!(rotate(2, 7));
        assert_ok!(rotate(1, 8));
        assert_ok!(newcomer(3));
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(1)));
        assert_noop!(rotate(2, 9), E::ChangeWaiting);
        assert_noop!(rotate(1, 9), E::ChangeWaiting);
        // Keys that never held a seat may be used.
        assert_eq!((System::sufficients(&(HOTKEY + 7)), System::sufficients(&(HOTKEY + 8))), (0, 0));
        assert_ok!(rotate(0, 7));
        open(4);
        assert_eq!(hotkeys(), [(0, 7), (2, 3)]);
    });
}

// Unbonding.

#[test]
fn stake_is_removed_down_to_the_minimum_and_released_after_it_has_unbonded() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 100));
        let take = |amount| R::unstake(signed(COLDKEY), RUN, Uid(0), amount);
        assert_noop!(take(91), E::StakeTooLow);
        assert_noop!(take(Balance::MAX), E::StakeTooLow);
        open(0);
        assert_ok!(take(30));
        System::assert_last_event(
            Event::<Test>::Unstaked { run: RUN, uid: Uid(0), amount: 30, stake: 70, until: Window(6) }.into(),
        );
        // One chunk per window.
        assert_ok!(take(10));
        assert_eq!((seat(0).stake, staked(COLDKEY), unbonding(COLDKEY)), (60, 100, vec![(0, 40, 6)]));
        open(1);
        assert_ok!(take(5));
        open(2);
        // The third chunk is reserved for the seat's end.
        assert_noop!(take(5), E::TooManyUnbonding);
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        open(3);
        assert_eq!(unbonding(COLDKEY), [(0, 40, 6), (0, 5, 7), (0, 55, 8)]);
        assert_eq!((staked(COLDKEY), seats_of_coldkey()), (100, vec![]));

        open(5);
        assert_noop!(R::withdraw(signed(COLDKEY), RUN), E::NothingToWithdraw);
        open(6);
        assert_ok!(R::withdraw(signed(COLDKEY), RUN));
        System::assert_last_event(Event::<Test>::Withdrawn { run: RUN, coldkey: COLDKEY, amount: 40 }.into());
        assert_eq!((free(COLDKEY), staked(COLDKEY)), (940, 60));
        open(9);
        assert_ok!(R::withdraw(signed(COLDKEY), RUN));
        assert_eq!((free(COLDKEY), staked(COLDKEY)), (1_000, 0));
        assert_noop!(R::withdraw(signed(COLDKEY), RUN), E::NothingToWithdraw);
        assert_eq!(FormerSeats::<Test>::iter().count(), 0);
    });
}

#[test]
fn a_seat_leaves_by_the_terms_of_the_time_of_its_request() {
    with_a_full_run(|| {
        open(2);
        assert_ok!(R::set_terms(signed(OWNER), RUN, Terms { unbonding_windows: 1000, ..terms() }));
        open(11);
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        open(12);
        assert_eq!(R::run(RUN).unwrap().terms.unbonding_windows, 1000);
        assert_eq!(unbonding(COLDKEY), [(0, 10, 17)]);
    });
}

#[test]
fn a_withdrawal_visits_a_bounded_number_of_seats_and_can_be_repeated() {
    with_terms(Terms { miner_seats_max: 6, unbonding_windows: 0, ..terms() }, || {
        for hotkey in 0..6 {
            assert_ok!(mine(hotkey));
        }
        for (window, uids) in [(0, 0..3), (1, 3..6)] {
            open(window);
            for uid in uids {
                assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(uid)));
            }
        }
        open(2);
        assert_ok!(R::withdraw(signed(COLDKEY), RUN));
        assert_eq!((staked(COLDKEY), unbonding(COLDKEY).len()), (20, 2));
        assert_ok!(R::withdraw(signed(COLDKEY), RUN));
        assert_eq!((staked(COLDKEY), free(COLDKEY)), (0, 1_000));
    });
}

#[test]
fn pay_becomes_stake_out_of_the_payers_account() {
    with_a_run(|| {
        assert_ok!(mine(0));
        let add = |amount| R::add_to_stake(RUN, Uid(0), &OTHER, amount);
        assert_ok!(add(40));
        assert_eq!((seat(0).stake, staked(COLDKEY), free(COLDKEY), free(OTHER)), (50, 50, 990, 960));
        assert_noop!(add(0), E::NothingToAdd);
        assert_noop!(add(Balance::MAX), E::StakeTooLarge);
        assert_noop!(add(961), TokenError::FundsUnavailable);
    });
}

// Slashing.

#[test]
fn a_slash_takes_its_share_of_stake_unbonding_stake_and_nominations() {
    with_a_run(|| {
        assert_ok!(validate(0, 100));
        assert_ok!(validate(1, 100));
        Behind::set([(0, 500), (1, 500)].into());
        open(0);
        assert_ok!(R::unstake(signed(COLDKEY), RUN, Uid(0), 20));
        open(1);
        assert_ok!(R::unstake(signed(COLDKEY), RUN, Uid(0), 30));
        let issued = Balances::total_issuance();
        // A tenth of 50, 20, 30 and 500. The reporter gets a tenth of the first three.
        let taken = slash(seat(0).id(Uid(0)), 100, Some(OTHER));
        assert_eq!(taken, 5 + 2 + 3 + 50);
        System::assert_last_event(
            Event::<Test>::Slashed {
                run: RUN,
                seat: seat(0).id(Uid(0)),
                stake: 10,
                rewarded: 1,
                nominated: 50,
            }
            .into(),
        );
        assert_eq!((seat(0).stake, unbonding(COLDKEY)), (45, vec![(0, 18, 6), (0, 27, 7)]));
        assert_eq!((free(OTHER), Balances::total_issuance()), (1_001, issued - 9));
        assert_eq!((staked(COLDKEY), Behind::get()), (190, [(0, 450), (1, 500)].into()));

        // Unbonded stake is not slashed, withdrawn or not. Without a reporter all is burnt.
        open(6);
        assert_eq!(slash(seat(0).id(Uid(0)), 1000, None), 45 + 27 + 450);
        assert_eq!((seat(0).stake, unbonding(COLDKEY)), (0, vec![(0, 18, 6)]));
        assert_eq!(Balances::total_issuance(), issued - 9 - 72);
        assert_ok!(R::withdraw(signed(COLDKEY), RUN));
        assert_eq!(slash(seat(0).id(Uid(0)), 1000, None), 0);
        assert_eq!(seat(1).stake, 100);
    });
}

#[test]
fn a_slash_reaches_no_earlier_or_later_holder_of_the_uid() {
    with_a_run(|| {
        assert_ok!(validate(0, 100));
        let first = seat(0).id(Uid(0));
        open(0);
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        open(1);
        assert_ok!(register(COLDKEY, Role::Validator, HOTKEY + 1, 200));
        let second = seat(0).id(Uid(0));
        Behind::set([(0, 500)].into());

        // A former holder is liable with its unbonding stake only.
        assert_eq!(slash(first, 500, None), 50);
        assert_eq!(
            (seat(0).stake, unbonding(COLDKEY), Behind::get()),
            (200, vec![(0, 50, 6)], [(0, 500)].into())
        );
        assert_eq!(slash(second, 500, None), 100 + 250);
        assert_eq!((seat(0).stake, unbonding(COLDKEY)), (100, vec![(0, 50, 6)]));
        assert_eq!(slash(first, 1000, None), 50);
        assert_eq!((slash(first, 1000, None), unbonding(COLDKEY)), (0, vec![]));
        assert_eq!(staked(COLDKEY), 100);
    });
}

#[test]
fn a_reporter_gets_at_most_one_mtl() {
    const MTL: Balance = 1_000_000_000_000;
    with_a_run(|| {
        assert_ok!(Balances::force_set_balance(RuntimeOrigin::root(), COLDKEY, 10_000 * MTL));
        assert_ok!(validate(0, 5_000 * MTL));
        let issued = Balances::total_issuance();
        assert_eq!(slash(seat(0).id(Uid(0)), 100, Some(OTHER)), 500 * MTL);
        assert_eq!((free(OTHER), issued - Balances::total_issuance()), (1_000 + MTL, 499 * MTL));
    });
}

#[test]
fn a_reporter_without_an_account_gets_no_reward_below_the_existential_deposit() {
    with_a_run(|| {
        assert_ok!(validate(0, 400));
        let issued = Balances::total_issuance();
        // A tenth of a tenth is four; a new account needs five.
        assert_eq!(slash(seat(0).id(Uid(0)), 100, Some(STRANGER)), 40);
        assert_eq!((free(STRANGER), Balances::total_issuance()), (0, issued - 40));
        assert_eq!(slash(seat(0).id(Uid(0)), 500, Some(STRANGER)), 180);
        assert_eq!((free(STRANGER), Balances::total_issuance()), (18, issued - 40 - 162));
    });
}

#[test]
fn a_share_is_rounded_down_and_never_exceeds_the_amount() {
    use crate::rules::share_of;
    assert_eq!([0, 9, 10, 19, 1000].map(|amount| share_of(amount, Permille(100))), [0, 0, 1, 1, 100]);
    assert_eq!(share_of(Balance::MAX, Permille(1000)), Balance::MAX);
    assert_eq!(share_of(Balance::MAX, Permille(u16::MAX)), Balance::MAX);
    assert_eq!(share_of(Balance::MAX, Permille(1)), Balance::MAX / 1000);
}

#[test]
fn nothing_overflows_in_the_last_possible_window() {
    let terms = Terms { immunity_windows: u32::MAX, unbonding_windows: 99_999, ..terms() };
    with_terms(terms, || {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 900));
        let last = params().schedule.window_at(Block(u32::MAX)).unwrap();
        System::set_block_number(u32::MAX.into());
        R::window_opens(RUN, Window(u32::MAX));
        assert_ok!(mine(1));
        assert_eq!(seat(1).since, last.next());
        assert_eq!(R::immune_until(RUN, Uid(1)), Some(Window(u32::MAX)));
        assert_ok!(R::unstake(signed(COLDKEY), RUN, Uid(0), 100));
        assert_ok!(R::leave(signed(COLDKEY), RUN, Uid(0)));
        R::window_opens(RUN, Window(u32::MAX));
        assert_eq!(unbonding(COLDKEY).len(), 2);
    });
}

// Random calls.

#[derive(Clone, Debug)]
enum Op {
    Create(u64),
    Register { who: u64, run: u32, validator: bool, hotkey: u64, stake: Balance },
    AddStake { who: u64, run: u32, uid: u16, amount: Balance },
    Unstake { who: u64, run: u32, uid: u16, amount: Balance },
    Leave { who: u64, run: u32, uid: u16 },
    Withdraw { who: u64, run: u32 },
    Rotate { who: u64, run: u32, uid: u16, hotkey: u64 },
    SetEndpoint { hotkey: u64, run: u32 },
    SetTerms { run: u32, miners: u16, unbonding: u32, price: Balance },
    CancelTerms { run: u32 },
    Stop { run: u32, stopped: bool },
    Offer { who: u64, run: u32, to: u64 },
    Accept { who: u64, run: u32 },
    AddToStake { run: u32, uid: u16, amount: Balance },
    Slash { hotkey: u64, run: u32, share: u16, reporter: Option<u64> },
    Pay { uid: u16, amount: Balance },
    Open,
}

fn op() -> impl Strategy<Value = Op> {
    let (who, hotkey, run, uid, amount) = (1u64..7, 1000u64..1020, 0u32..2, 0u16..6, 0u128..60);
    let seat = (who.clone(), run.clone(), uid.clone());
    prop_oneof![
        1 => who.clone().prop_map(Op::Create),
        8 => (who.clone(), run.clone(), any::<bool>(), hotkey.clone(), 10u128..120).prop_map(
            |(who, run, validator, hotkey, stake)| Op::Register { who, run, validator, hotkey, stake }
        ),
        2 => (seat.clone(), amount.clone())
            .prop_map(|((who, run, uid), amount)| Op::AddStake { who, run, uid, amount }),
        4 => (seat.clone(), amount.clone())
            .prop_map(|((who, run, uid), amount)| Op::Unstake { who, run, uid, amount }),
        4 => seat.clone().prop_map(|(who, run, uid)| Op::Leave { who, run, uid }),
        3 => (who.clone(), run.clone()).prop_map(|(who, run)| Op::Withdraw { who, run }),
        3 => (seat, hotkey.clone())
            .prop_map(|((who, run, uid), hotkey)| Op::Rotate { who, run, uid, hotkey }),
        1 => (hotkey.clone(), run.clone()).prop_map(|(hotkey, run)| Op::SetEndpoint { hotkey, run }),
        1 => (run.clone(), 1u16..6, 0u32..6, 0u128..20).prop_map(
            |(run, miners, unbonding, price)| Op::SetTerms { run, miners, unbonding, price }
        ),
        1 => run.clone().prop_map(|run| Op::CancelTerms { run }),
        1 => (run.clone(), any::<bool>()).prop_map(|(run, stopped)| Op::Stop { run, stopped }),
        1 => (who.clone(), run.clone(), who.clone()).prop_map(|(who, run, to)| Op::Offer { who, run, to }),
        1 => (who.clone(), run.clone()).prop_map(|(who, run)| Op::Accept { who, run }),
        1 => (run.clone(), uid.clone(), amount.clone())
            .prop_map(|(run, uid, amount)| Op::AddToStake { run, uid, amount }),
        3 => (hotkey, run, 0u16..1001, proptest::option::of(who.clone())).prop_map(
            |(hotkey, run, share, reporter)| Op::Slash { hotkey, run, share, reporter }
        ),
        1 => (uid, amount).prop_map(|(uid, amount)| Op::Pay { uid, amount }),
        6 => Just(Op::Open),
    ]
}

fn done(call: DispatchResultWithPostInfo) -> DispatchResult {
    call.map(|_| ()).map_err(|error| error.error)
}

/// Makes the call of `op`, signed by its account. A refusal is a valid result.
fn call(op: Op, window: &mut u32) -> DispatchResult {
    match op {
        Op::Create(who) => create(who, params(), Terms { immunity_windows: 1, seat_price_min: 8, ..terms() }),
        Op::Register { who, run, validator, hotkey, stake } => {
            let role = if validator { Role::Validator } else { Role::Miner };
            let run = RunId(run);
            register_in(who, run, role, hotkey, url("http://a"), stake, Balance::MAX)
        }
        Op::AddStake { who, run, uid, amount } => R::add_stake(signed(who), RunId(run), Uid(uid), amount),
        Op::Unstake { who, run, uid, amount } => R::unstake(signed(who), RunId(run), Uid(uid), amount),
        Op::Leave { who, run, uid } => R::leave(signed(who), RunId(run), Uid(uid)),
        Op::Withdraw { who, run } => done(R::withdraw(signed(who), RunId(run))),
        Op::Rotate { who, run, uid, hotkey } => rotate_in(who, RunId(run), uid, hotkey),
        Op::SetEndpoint { hotkey, run } => R::set_endpoint(signed(hotkey), RunId(run), url("http://b")),
        Op::SetTerms { run, miners, unbonding, price } => {
            let run = RunId(run);
            let owner = Runs::<Test>::get(run).map_or(OWNER, |details| details.owner);
            let terms = Terms {
                miner_seats_max: miners,
                unbonding_windows: unbonding,
                seat_price_min: price,
                immunity_windows: 1,
                ..terms()
            };
            R::set_terms(signed(owner), run, terms)
        }
        Op::CancelTerms { run } => R::cancel_terms(signed(OWNER), RunId(run)),
        Op::Stop { run, stopped } => R::set_stopped(signed(OWNER), RunId(run), stopped),
        Op::Offer { who, run, to } => R::offer_run(signed(who), RunId(run), to),
        Op::Accept { who, run } => R::accept_run(signed(who), RunId(run)),
        Op::AddToStake { run, uid, amount } => R::add_to_stake(RunId(run), Uid(uid), &OWNER, amount),
        Op::Slash { hotkey, run, share, reporter } => {
            if let Some(seat) = R::holder_of(RunId(run), &hotkey) {
                R::slash(RunId(run), seat, Permille(share), reporter.as_ref());
                if share > 500 {
                    R::expel(RunId(run), seat);
                }
            }
            Ok(())
        }
        Op::Pay { uid, amount } => {
            Paid::mutate(|pay| pay.insert(uid, amount));
            Ok(())
        }
        Op::Open => {
            System::set_block_number(params().schedule.opens_at(Window(*window)).0.into());
            for run in R::run_ids() {
                R::window_opens(run, Window(*window));
            }
            *window += 1;
            Ok(())
        }
    }
}

/// Returns the burnt amount, from the events.
fn burnt() -> Balance {
    let burnt = |event| match event {
        RuntimeEvent::Registry(Event::PricePaid { price, .. }) => price,
        RuntimeEvent::Registry(Event::Slashed { stake, rewarded, .. }) => stake - rewarded,
        _ => 0,
    };
    System::events().into_iter().map(|record| burnt(record.event)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn seats_held_stake_and_issuance_agree_after_any_calls(ops in proptest::collection::vec(op(), 0..120)) {
        empty_chain().execute_with(|| {
            let issued = Balances::total_issuance();
            let _ = create(OWNER, params(), Terms { immunity_windows: 1, seat_price_min: 8, ..terms() });
            let mut window = 0;
            for op in ops {
                let text = format!("{op:?}");
                let _ = call(op, &mut window);
                if let Err(broken) = R::check_invariants() {
                    panic!("after {text}: {broken}");
                }
                assert_eq!(Balances::total_issuance() + burnt(), issued, "after {text}");
            }
            // At the end, every account can withdraw everything.
            let _ = call(Op::Open, &mut window);
            for run in R::run_ids() {
                for (uid, seat) in R::seats(run) {
                    assert_ok!(R::leave(signed(seat.coldkey), run, uid));
                    let _ = call(Op::Open, &mut window);
                }
            }
            window += 5;
            let _ = call(Op::Open, &mut window);
            for run in R::run_ids() {
                for who in 1..7 {
                    while R::withdraw(signed(who), run).is_ok() {}
                }
            }
            R::check_invariants().unwrap();
            let seats: usize = R::run_ids().into_iter().map(|run| R::seats(run).len()).sum();
            assert_eq!(seats, 0, "every seat could be given up");
            assert!((1..7).all(|who| staked(who) == 0), "all stake could be withdrawn");
        });
    }
}
