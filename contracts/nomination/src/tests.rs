//! Nominations, their pay and slashes, and every refusal with storage unchanged (PROT-33).

use crate::{self as pallet_nomination, *};
use frame::testing_prelude::*;
use pallet_mock::{consent, pallet_balances};
use pallet_registry::{Ending, Nominations as _, OnSeats as _, Url};
use proptest::prelude::*;
use protocol::{
    Block, Digest, Role, RunId, RunParams, Schedule, SeatId, Terms, Uid,
    view::{NominationView, UnbondingView},
};

pallet_mock::runtime! {
    account: u128, deposit: DEPOSIT;
    2 Registry: pallet_registry,
    3 Nomination: pallet_nomination,
}

pallet_mock::registry! {
    on_run_created: (), on_run_closed: Nomination, on_seats: Nomination, nominations: Nomination, payslips: (),
    miner_weights: (), hotkey: Consents
}

pallet_mock::consents!(u128, pallet_registry::HotkeyProof<u128>);

parameter_types! {
    pub const NominationId: PalletId = PalletId(*b"mettle/n");
}

impl Config for Test {
    type MaxNominators = ConstU32<3>;
    type MaxUnbonding = ConstU32<2>;
    type MinNomination = ConstU128<MIN>;
    type PalletId = NominationId;
}

/// The existential deposit.
const DEPOSIT: Balance = 5;
const MIN: Balance = 10;
const UNBONDING: u32 = 6;
const OWNER: u128 = 1;
const COLDKEY: u128 = 2;
const ONE: u128 = 3;
const OTHER: u128 = 4;
const THIRD: u128 = 5;
const FOURTH: u128 = 6;
const PAYER: u128 = 7;
const POOR: u128 = 8;
const RICH: u128 = 9;
const HOTKEY: u128 = 1000;
const FUNDS: Balance = 100_000;
const RUN: RunId = RunId(0);
/// Uids of a miner and a validator.
const MINER: Uid = Uid(0);
const UID: Uid = Uid(1);

fn params() -> RunParams {
    RunParams {
        schedule: Schedule { start: Block(5), ..RunParams::default().schedule },
        ..RunParams::default()
    }
}

pub(crate) fn chain() -> TestState {
    let mut balances = [OWNER, COLDKEY, ONE, OTHER, THIRD, FOURTH, PAYER].map(|who| (who, FUNDS)).to_vec();
    balances.push((RICH, Balance::MAX / 2));
    pallet_mock::chain::<Test>(balances)
}

/// Runs `story` with a miner and a validator, each with 100 staked.
fn with_run(story: impl FnOnce()) {
    chain().execute_with(|| {
        let terms = Terms {
            validator_stake_min: 10,
            miner_stake_min: 10,
            unbonding_windows: UNBONDING,
            seat_price_min: 0,
            miner_seats_max: 8,
            validator_seats_max: 8,
            ..Terms::default()
        };
        let url: Url = b"http://a".to_vec().try_into().unwrap();
        let digest = Digest([0; 32]);
        let owner = RuntimeOrigin::signed(OWNER);
        assert_ok!(Registry::create_run(owner, params(), terms, digest, digest, digest, url.clone()));
        for (uid, role) in [Role::Miner, Role::Validator].into_iter().enumerate() {
            let coldkey = RuntimeOrigin::signed(COLDKEY);
            let hotkey = HOTKEY + uid as u128;
            let (url, proof) = (url.clone(), consent(&hotkey, RUN, &COLDKEY));
            assert_ok!(Registry::register(coldkey, RUN, role, hotkey, url, 100, Balance::MAX, proof));
        }
        story();
        check();
    });
}

/// Checks the invariants. Tests do not transfer to the account, so its balance equals the ledger's.
fn check() {
    Nomination::check_invariants().unwrap();
    let Ledger { nominated, unclaimed, dust } = PoolLedger::<Test>::get().unwrap_or_default();
    let deposit = if PoolLedger::<Test>::exists() { DEPOSIT } else { 0 };
    assert_eq!(Balances::free_balance(Nomination::account()), nominated + unclaimed + dust + deposit);
}

fn window(number: u32) {
    System::set_block_number(params().schedule.opens_at(Window(number)).0.into());
}

fn nominate(who: u128, amount: Balance) -> DispatchResult {
    Nomination::nominate(RuntimeOrigin::signed(who), RUN, UID, amount)
}

fn unnominate(who: u128, amount: Balance) -> DispatchResult {
    Nomination::unnominate(RuntimeOrigin::signed(who), RUN, UID, amount)
}

fn withdraw(who: u128) -> DispatchResult {
    Nomination::withdraw(RuntimeOrigin::signed(who), RUN, UID)
}

fn claim(who: u128) -> DispatchResult {
    Nomination::claim(RuntimeOrigin::signed(who), RUN, UID)
}

fn set_commission(share: u16) -> DispatchResult {
    Nomination::set_commission(RuntimeOrigin::signed(COLDKEY), RUN, UID, Permille(share))
}

/// Returns the seat with its present holder.
fn seat() -> SeatId {
    Registry::seat(RUN, UID).unwrap().id(UID)
}

fn pay_to(seat: SeatId, own: Balance, amount: Balance) -> Balance {
    Nomination::share_pay(RUN, seat, own, amount, &PAYER)
}

fn pay(own: Balance, amount: Balance) -> Balance {
    pay_to(seat(), own, amount)
}

/// Pays an amount of which the nominators' part is `amount` before the commission.
fn pay_nominators(amount: Balance) -> Balance {
    pay(behind(), 2 * amount)
}

fn slash_of(seat: SeatId, share: u16) -> Balance {
    <Nomination as pallet_registry::Nominations<u128>>::slash(RUN, seat, Permille(share))
}

fn slash(share: u16) -> Balance {
    slash_of(seat(), share)
}

/// Gives the seat a new holder. The old holder's nominations unbond in `UNBONDING` windows.
fn vacate() {
    let gone = Registry::seat(RUN, UID).unwrap();
    let block = Block(System::block_number() as u32);
    let window = params().schedule.window_at(block).unwrap_or_default();
    let ending = Ending { window, until: Window(window.0 + UNBONDING) };
    Nomination::vacated(RUN, UID, &gone, ending);
    pallet_registry::SeatsOf::<Test>::mutate(RUN, UID, |seat| {
        seat.as_mut().unwrap().registered_at.0 += 1;
    });
}

fn behind() -> Balance {
    Nomination::behind(RUN, UID)
}

fn view(who: u128) -> NominationView {
    let mut views = Nomination::nominations_of(RUN, &who);
    assert_eq!(views.len(), 1);
    views.remove(0)
}

#[test]
fn a_nomination_leaves_the_account_and_counts_as_stake() {
    with_run(|| {
        assert_ok!(nominate(ONE, 300));
        assert_ok!(nominate(OTHER, 100));
        assert_ok!(nominate(ONE, 50));
        // The first nominator paid the existential deposit.
        assert_eq!(Balances::free_balance(ONE), FUNDS - 350 - DEPOSIT);
        assert_eq!(Balances::free_balance(OTHER), FUNDS - 100);
        assert_eq!((behind(), Nomination::behind(RUN, MINER)), (450, 0));
        System::assert_last_event(
            Event::<Test>::Nominated { run: RUN, uid: UID, who: ONE, amount: 50 }.into(),
        );
        let pool = Nomination::pool(RUN, UID).unwrap();
        assert_eq!((pool.value, pool.shares, pool.nominators), (450, 450, 2));
        assert_eq!(view(ONE).amount, 350);
        assert_eq!(Nomination::nominations_of(RUN, &COLDKEY), []);
    });
}

/// Computed by hand: stakes 100 (own), 300 and 100; the commission is a quarter.
#[test]
fn pay_is_shared_by_stake_after_the_commission() {
    with_run(|| {
        assert_ok!(set_commission(250));
        window(UNBONDING);
        assert_eq!(Nomination::commission(RUN, UID), Permille(250));
        assert_ok!(nominate(ONE, 300));
        assert_ok!(nominate(OTHER, 100));
        // Of 1000, the nominators' part is four fifths, less a quarter: 600, as 450 and 150.
        assert_eq!(pay(100, 1000), 600);
        assert_eq!((view(ONE).claimable, view(OTHER).claimable), (450, 150));
        assert_eq!(Balances::free_balance(PAYER), FUNDS - 600);
        System::assert_last_event(Event::<Test>::Shared { run: RUN, uid: UID, amount: 600 }.into());

        // Half is slashed: 150 and 50 are left. The registry slashes the own stake.
        assert_eq!(slash(500), 200);
        assert_eq!((view(ONE).amount, view(OTHER).amount), (150, 50));
        System::assert_last_event(Event::<Test>::Slashed { run: RUN, uid: UID, amount: 200 }.into());
        // 200 more buys as many shares as exist; 400 of 500 is nominated.
        assert_ok!(nominate(THIRD, 200));
        assert_eq!((behind(), view(THIRD).amount, view(THIRD).claimable), (400, 200, 0));
        assert_eq!(pay(100, 1000), 600);
        assert_eq!([ONE, OTHER, THIRD].map(|who| view(who).claimable), [450 + 225, 150 + 75, 300]);

        assert_ok!(claim(ONE));
        assert_eq!(Balances::free_balance(ONE), FUNDS - 300 - DEPOSIT + 675);
        System::assert_last_event(
            Event::<Test>::Claimed { run: RUN, uid: UID, who: ONE, amount: 675 }.into(),
        );
        assert_noop!(claim(ONE), Error::<Test>::NothingToClaim);
        // A lower commission applies at once. Of 1000, half goes to the own stake; of the rest 187.5, 62.5 and 250.
        assert_ok!(set_commission(0));
        assert_eq!(pay(400, 1000), 500);
        assert_eq!([ONE, OTHER, THIRD].map(|who| view(who).claimable), [187, 225 + 62, 300 + 250]);
    });
}

#[test]
fn rounding_remainders_are_counted_as_dust() {
    with_run(|| {
        for who in [ONE, OTHER, THIRD] {
            assert_ok!(nominate(who, MIN));
        }
        assert_eq!(pay_nominators(100), 100);
        assert_eq!([ONE, OTHER, THIRD].map(|who| view(who).claimable), [33, 33, 33]);
        vacate();
        window(UNBONDING);
        for who in [ONE, OTHER, THIRD] {
            assert_ok!(claim(who));
            assert_ok!(withdraw(who));
            check();
        }
        assert_eq!(PoolLedger::<Test>::get(), Some(Ledger { nominated: 0, unclaimed: 0, dust: 1 }));
        assert_eq!((Pools::<Test>::iter().count(), Nominations::<Test>::iter().count()), (0, 0));
    });
}

#[test]
fn an_unbonding_nomination_earns_nothing_can_be_slashed_and_is_paid_back_in_the_end() {
    with_run(|| {
        window(2);
        assert_ok!(nominate(ONE, 100));
        assert_ok!(nominate(OTHER, 100));
        assert_ok!(unnominate(ONE, 60));
        let until = Window(3 + UNBONDING);
        System::assert_last_event(
            Event::<Test>::Unnominated { run: RUN, uid: UID, who: ONE, amount: 60, until }.into(),
        );
        assert_eq!(behind(), 140);
        assert_eq!(pay_nominators(140), 140);
        assert_eq!(view(ONE).claimable, 40);
        assert_eq!(slash(500), 100);
        assert_eq!((view(ONE).amount, behind()), (20, 70));
        assert_eq!(view(ONE).unbonding, [UnbondingView { uid: UID, amount: 30, until }]);

        window(2 + UNBONDING);
        assert_noop!(withdraw(ONE), Error::<Test>::NothingToWithdraw);
        window(3 + UNBONDING);
        let before = Balances::free_balance(ONE);
        assert_ok!(withdraw(ONE));
        assert_eq!(Balances::free_balance(ONE), before + 30);
        System::assert_last_event(
            Event::<Test>::Withdrawn { run: RUN, uid: UID, who: ONE, amount: 30 }.into(),
        );
        assert_eq!((view(ONE).amount, view(ONE).unbonding.len(), behind()), (20, 0, 70));
    });
}

#[test]
fn an_empty_nomination_and_an_empty_pool_are_removed() {
    with_run(|| {
        assert_ok!(nominate(ONE, 100));
        assert_ok!(unnominate(ONE, 100));
        assert_eq!(behind(), 0);
        assert_eq!(pay(100, 1000), 0);
        window(UNBONDING);
        assert_ok!(withdraw(ONE));
        assert_eq!(Nomination::nominations_of(RUN, &ONE), []);
        assert_eq!((Nomination::pool(RUN, UID), Pools::<Test>::iter().count()), (None, 0));
        assert_ok!(nominate(ONE, 20));
        assert_eq!(behind(), 20);
    });
}

#[test]
fn amounts_unbonding_in_one_window_are_merged() {
    with_run(|| {
        assert_ok!(nominate(ONE, 100));
        window(1);
        for _ in 0..5 {
            assert_ok!(unnominate(ONE, 10));
        }
        assert_eq!(view(ONE).unbonding.len(), 1);
        window(2);
        assert_ok!(unnominate(ONE, 10));
        window(3);
        assert_noop!(unnominate(ONE, 10), Error::<Test>::TooManyUnbonding);
        window(2 + UNBONDING);
        assert_ok!(withdraw(ONE));
        assert_ok!(unnominate(ONE, 10));
    });
}

#[test]
fn a_raised_commission_waits_until_earlier_nominators_could_leave() {
    with_run(|| {
        window(3);
        assert_ok!(set_commission(200));
        System::assert_last_event(
            Event::<Test>::CommissionSet {
                run: RUN,
                uid: UID,
                commission: Permille(200),
                from: Window(4 + UNBONDING),
            }
            .into(),
        );
        assert_ok!(nominate(ONE, 100));
        window(3 + UNBONDING);
        assert_eq!(Nomination::commission(RUN, UID), Permille(0));
        let waits = Some((Permille(200), Window(4 + UNBONDING)));
        assert_eq!(Nomination::commission_raise(RUN, UID), waits);
        assert_eq!(pay_nominators(100), 100);
        window(4 + UNBONDING);
        assert_eq!(Nomination::commission(RUN, UID), Permille(200));
        assert_eq!(Nomination::commission_raise(RUN, UID), None);
        assert_eq!(pay_nominators(100), 80);
        // Another raise waits anew; a lower commission applies at once and cancels the waiting one.
        assert_ok!(set_commission(300));
        assert_eq!(Nomination::commission(RUN, UID), Permille(200));
        assert_ok!(set_commission(150));
        assert_eq!(Nomination::commission(RUN, UID), Permille(150));
        window(100);
        assert_eq!(Nomination::commission(RUN, UID), Permille(150));
    });
}

#[test]
fn nominations_unbond_when_the_seat_changes_hands_and_the_next_holder_has_none() {
    with_run(|| {
        window(2);
        assert_ok!(set_commission(0));
        assert_ok!(nominate(ONE, 100));
        assert_ok!(unnominate(ONE, 40));
        assert_eq!(pay_nominators(30), 30);
        assert_ok!(set_commission(500));
        vacate();
        let until = Window(2 + UNBONDING);
        System::assert_last_event(Event::<Test>::PoolClosed { run: RUN, uid: UID, value: 100, until }.into());
        assert_eq!((behind(), pay_nominators(100), slash(500)), (0, 0, 0));
        assert!(!Commissions::<Test>::contains_key(RUN, UID));
        // An amount that would have unbonded a window later is free together with the rest.
        let free = UnbondingView { uid: UID, amount: 100, until };
        let view = view(ONE);
        assert_eq!((view.amount, view.unbonding, view.claimable), (0, vec![free], 30));

        assert_ok!(nominate(OTHER, 50));
        assert_eq!(behind(), 50);
        assert_noop!(nominate(ONE, 100), Error::<Test>::WithdrawFirst);
        assert_noop!(unnominate(ONE, 10), Error::<Test>::PoolClosed);
        window(1 + UNBONDING);
        assert_noop!(withdraw(ONE), Error::<Test>::NothingToWithdraw);
        window(2 + UNBONDING);
        assert_ok!(withdraw(ONE));
        assert_noop!(withdraw(ONE), Error::<Test>::NothingToWithdraw);
        assert_noop!(nominate(ONE, 100), Error::<Test>::WithdrawFirst);
        assert_ok!(claim(ONE));
        assert_eq!(Balances::free_balance(ONE), FUNDS - DEPOSIT + 30);
        assert_ok!(nominate(ONE, 100));
        assert_eq!(behind(), 150);
    });
}

/// Computed by hand: 300 and 100 behind a holder that leaves, 50 behind the next; then the former one is convicted.
#[test]
fn nominations_of_a_former_holder_are_slashed_with_it_until_they_are_free() {
    with_run(|| {
        window(2);
        assert_ok!(nominate(ONE, 300));
        assert_ok!(nominate(OTHER, 100));
        assert_ok!(unnominate(OTHER, 40));
        let old = seat();
        vacate();
        assert_ok!(nominate(THIRD, 50));
        window(3);

        let issuance = Balances::total_issuance();
        assert_eq!(slash_of(old, 100), 40);
        assert_eq!(Balances::total_issuance(), issuance - 40);
        check();
        // The nominators of the two holders are independent.
        assert_eq!((behind(), view(THIRD).amount), (50, 50));
        assert_eq!(slash(500), 25);
        let lost = |who| view(who).unbonding.iter().map(|part| part.amount).sum::<Balance>();
        assert_eq!((lost(ONE), lost(OTHER)), (270, 90));

        window(2 + UNBONDING);
        assert_eq!(slash_of(old, 100), 0);
        let before = [ONE, OTHER].map(Balances::free_balance);
        assert_ok!(withdraw(ONE));
        // A later conviction does not reach free amounts.
        assert_eq!(slash_of(old, 1000), 0);
        assert_ok!(withdraw(OTHER));
        assert_eq!([ONE, OTHER].map(Balances::free_balance), [before[0] + 270, before[1] + 90]);
        assert_eq!((FormerPools::<Test>::iter().count(), slash_of(old, 1000)), (0, 0));
    });
}

#[test]
fn nominators_of_a_former_holder_get_their_part_of_late_pay() {
    with_run(|| {
        assert_ok!(set_commission(250));
        window(UNBONDING);
        assert_ok!(nominate(ONE, 300));
        let old = seat();
        vacate();
        // The next holder has no commission and other nominators.
        assert_ok!(nominate(OTHER, 100));
        // Of 800, three quarters, less the old holder's commission of a quarter.
        assert_eq!(pay_to(old, 100, 800), 450);
        assert_eq!((view(ONE).claimable, view(OTHER).claimable), (450, 0));
        assert_ok!(claim(ONE));
        // Once all nominators have left, the former seat keeps everything.
        window(2 * UNBONDING);
        assert_ok!(withdraw(ONE));
        assert_eq!(pay_to(old, 100, 1000), 0);
    });
}

#[test]
fn a_former_holder_s_pool_without_value_frees_its_nominators() {
    with_run(|| {
        assert_ok!(nominate(ONE, 100));
        assert_eq!(pay_nominators(50), 50);
        let old = seat();
        vacate();
        assert_eq!(slash_of(old, 1000), 100);
        check();
        assert_eq!(FormerPools::<Test>::iter().count(), 0);
        assert_ok!(withdraw(ONE));
        assert_ok!(claim(ONE));
        assert_ok!(nominate(ONE, 20));
    });
}

#[test]
fn a_slash_is_burnt() {
    with_run(|| {
        assert_ok!(nominate(ONE, 1000));
        let issuance = Balances::total_issuance();
        assert_eq!(slash(100), 100);
        assert_eq!((Balances::total_issuance(), behind()), (issuance - 100, 900));
    });
}

#[test]
fn nominations_above_ten_times_the_own_stake_dilute_the_nominators_pay_and_not_the_validators() {
    with_run(|| {
        assert_ok!(nominate(ONE, 1000));
        assert_eq!((pay(100, 1100), view(ONE).claimable), (1000, 1000));
        assert_ok!(nominate(OTHER, 3000));
        assert_eq!(pay(100, 1100), 1000);
        assert_eq!([ONE, OTHER].map(|who| view(who).claimable), [1250, 750]);
        // The own stake shrinks, and fewer nominations count: the validator gains nothing by it.
        assert_eq!(pay(50, 1100), 1000);
        assert_eq!(pay(0, 1100), 1000);
    });
}

#[test]
fn a_pool_without_value_is_closed_and_a_new_one_can_begin() {
    with_run(|| {
        assert_ok!(nominate(ONE, 100));
        assert_eq!(pay_nominators(50), 50);
        assert_eq!(slash(1000), 100);
        assert_eq!(behind(), 0);
        check();
        assert_ok!(nominate(OTHER, 30));
        assert_eq!((behind(), slash(0)), (30, 0));
        assert_ok!(withdraw(ONE));
        assert_ok!(claim(ONE));
        assert_eq!(Balances::free_balance(ONE), FUNDS - 100 - DEPOSIT + 50);
        assert_ok!(nominate(ONE, 30));
        assert_eq!(behind(), 60);
    });
}

#[test]
fn invalid_nominations_are_refused() {
    with_run(|| {
        let signed = RuntimeOrigin::signed;
        assert_noop!(Nomination::nominate(RuntimeOrigin::none(), RUN, UID, 50), DispatchError::BadOrigin);
        assert_noop!(Nomination::nominate(RuntimeOrigin::root(), RUN, UID, 50), DispatchError::BadOrigin);
        assert_noop!(Nomination::nominate(signed(ONE), RunId(9), UID, 50), Error::<Test>::UnknownRun);
        assert_noop!(Nomination::nominate(signed(ONE), RUN, Uid(9), 50), Error::<Test>::UnknownSeat);
        assert_noop!(Nomination::nominate(signed(ONE), RUN, MINER, 50), Error::<Test>::NotAValidator);
        assert_noop!(nominate(ONE, MIN - 1), Error::<Test>::TooLittle);
        assert_noop!(nominate(ONE, 0), Error::<Test>::TooLittle);
        assert_noop!(nominate(ONE, FUNDS), Error::<Test>::NotEnoughFunds);
        assert_noop!(nominate(POOR, MIN), Error::<Test>::NotEnoughFunds);
        assert_noop!(nominate(ONE, Balance::MAX), Error::<Test>::TooMuch);
        for who in [ONE, OTHER, THIRD] {
            assert_ok!(nominate(who, MIN));
        }
        assert_noop!(nominate(FOURTH, MIN), Error::<Test>::TooManyNominators);
        assert_noop!(nominate(ONE, 0), Error::<Test>::TooLittle);
        assert_noop!(nominate(ONE, Balance::MAX), Error::<Test>::TooMuch);
        assert_ok!(nominate(ONE, 1));
    });
}

#[test]
fn invalid_removals_are_refused() {
    with_run(|| {
        let signed = RuntimeOrigin::signed;
        assert_noop!(Nomination::unnominate(RuntimeOrigin::none(), RUN, UID, 1), DispatchError::BadOrigin);
        assert_noop!(Nomination::unnominate(signed(ONE), RunId(9), UID, 1), Error::<Test>::UnknownRun);
        assert_noop!(unnominate(ONE, 1), Error::<Test>::NotANominator);
        assert_ok!(nominate(ONE, 50));
        assert_noop!(unnominate(OTHER, 1), Error::<Test>::NotANominator);
        assert_noop!(unnominate(ONE, 0), Error::<Test>::NothingToTakeOut);
        assert_noop!(unnominate(ONE, 51), Error::<Test>::NotSoMuch);
        assert_noop!(unnominate(ONE, 50 - MIN + 1), Error::<Test>::TooLittleLeft);
        assert_ok!(unnominate(ONE, 50 - MIN));
        assert_ok!(unnominate(ONE, MIN));
        assert_noop!(unnominate(ONE, 0), Error::<Test>::NothingToTakeOut);
        vacate();
        assert_noop!(unnominate(ONE, 0), Error::<Test>::PoolClosed);
    });
}

#[test]
fn withdrawals_and_claims_of_nothing_are_refused() {
    with_run(|| {
        let signed = RuntimeOrigin::signed;
        assert_noop!(Nomination::withdraw(RuntimeOrigin::none(), RUN, UID), DispatchError::BadOrigin);
        assert_noop!(Nomination::withdraw(signed(ONE), RunId(9), UID), Error::<Test>::UnknownRun);
        assert_noop!(withdraw(ONE), Error::<Test>::NotANominator);
        assert_noop!(Nomination::claim(RuntimeOrigin::none(), RUN, UID), DispatchError::BadOrigin);
        assert_noop!(Nomination::claim(signed(ONE), RunId(9), UID), Error::<Test>::UnknownRun);
        assert_noop!(claim(ONE), Error::<Test>::NotANominator);
        assert_ok!(nominate(ONE, 64));
        assert_noop!(withdraw(ONE), Error::<Test>::NothingToWithdraw);
        assert_noop!(claim(ONE), Error::<Test>::NothingToClaim);
        // An account below the existential deposit cannot be paid less than this deposit.
        let all = Balances::free_balance(ONE);
        assert_ok!(Balances::transfer_allow_death(signed(ONE), OTHER, all));
        assert_eq!(pay_nominators(DEPOSIT - 1), DEPOSIT - 1);
        assert_noop!(claim(ONE), Error::<Test>::CannotPay);
        assert_eq!(slash(950), 60);
        vacate();
        window(UNBONDING);
        assert_noop!(withdraw(ONE), Error::<Test>::CannotPay);
        assert_ok!(Balances::transfer_keep_alive(signed(OTHER), ONE, DEPOSIT));
        assert_ok!(withdraw(ONE));
        assert_ok!(claim(ONE));
        assert_eq!(Balances::free_balance(ONE), DEPOSIT + 4 + DEPOSIT - 1);
    });
}

#[test]
fn only_a_validator_s_coldkey_sets_a_commission_of_at_most_one() {
    with_run(|| {
        let set = |origin, run, uid, share| Nomination::set_commission(origin, run, uid, Permille(share));
        let signed = RuntimeOrigin::signed;
        assert_noop!(set(RuntimeOrigin::none(), RUN, UID, 1), DispatchError::BadOrigin);
        assert_noop!(set(signed(COLDKEY), RunId(9), UID, 1), Error::<Test>::UnknownRun);
        assert_noop!(set(signed(COLDKEY), RUN, Uid(9), 1), Error::<Test>::UnknownSeat);
        assert_noop!(set(signed(COLDKEY), RUN, MINER, 1), Error::<Test>::NotAValidator);
        assert_noop!(set(signed(ONE), RUN, UID, 1), Error::<Test>::NotTheColdkey);
        assert_noop!(set(signed(HOTKEY + 1), RUN, UID, 1), Error::<Test>::NotTheColdkey);
        assert_noop!(set_commission(1001), Error::<Test>::BadCommission);
        assert_ok!(set_commission(1000));
        assert_ok!(nominate(ONE, 50));
        window(UNBONDING);
        assert_eq!(pay_nominators(100), 0);
    });
}

#[test]
fn the_seat_keeps_all_pay_if_the_payer_cannot_pay() {
    with_run(|| {
        assert_ok!(nominate(ONE, 100));
        assert_eq!(Nomination::share_pay(RUN, seat(), 100, 1000, &POOR), 0);
        assert_eq!(view(ONE).claimable, 0);
    });
}

#[test]
fn the_largest_amounts_do_not_panic() {
    with_run(|| {
        let most = Balance::MAX / 2 - 10 * DEPOSIT;
        assert_ok!(nominate(RICH, most));
        assert_ok!(nominate(ONE, MIN));
        assert_eq!(behind(), most + MIN);
        assert_eq!(pay(Balance::MAX, 1000), 499);
        let lost = slash(999);
        assert!(lost > most / 1000 * 998);
        assert_ok!(nominate(OTHER, MIN));
        check();
        assert_ok!(claim(RICH));
        let worth = view(RICH).amount;
        assert_ok!(unnominate(RICH, worth));
        window(UNBONDING);
        assert_ok!(withdraw(RICH));
        assert_ok!(nominate(RICH, worth));
        let all = PoolLedger::<Test>::get().unwrap().nominated;
        assert_eq!((slash(u16::MAX), behind()), (all, 0));
    });
}

#[derive(Clone, Debug)]
enum Op {
    Nominate {
        who: u128,
        amount: Balance,
    },
    Unnominate {
        who: u128,
        amount: Balance,
    },
    TakeAllOut(u128),
    Withdraw(u128),
    Claim(u128),
    Commission(u16),
    /// Pays the seat's present or former holder.
    Pay {
        former: bool,
        own: Balance,
        amount: Balance,
    },
    /// Slashes the present or former holder.
    Slash {
        former: bool,
        share: u16,
    },
    Vacate,
    Windows(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let who = || ONE..=FOURTH;
    prop_oneof![
        4 => (who(), prop_oneof![0u128..30, 0u128..5000])
            .prop_map(|(who, amount)| Op::Nominate { who, amount }),
        3 => (who(), 0u128..2000).prop_map(|(who, amount)| Op::Unnominate { who, amount }),
        1 => who().prop_map(Op::TakeAllOut),
        3 => who().prop_map(Op::Withdraw),
        2 => who().prop_map(Op::Claim),
        1 => (0u16..1100).prop_map(Op::Commission),
        3 => (any::<bool>(), 0u128..3000, 0u128..2000)
            .prop_map(|(former, own, amount)| Op::Pay { former, own, amount }),
        2 => (any::<bool>(), 0u16..=1000).prop_map(|(former, share)| Op::Slash { former, share }),
        1 => Just(Op::Vacate),
        2 => (1u32..8).prop_map(Op::Windows),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    #[test]
    fn no_calls_create_or_lose_a_unit(ops in proptest::collection::vec(op(), 0..80)) {
        with_run(|| {
            let mut now = 0;
            let issuance = Balances::total_issuance();
            let mut burnt = 0;
            let mut old = seat();
            for op in ops {
                match op {
                    Op::Nominate { who, amount } => {
                        let _ = nominate(who, amount);
                    }
                    Op::Unnominate { who, amount } => {
                        let _ = unnominate(who, amount);
                    }
                    Op::TakeAllOut(who) => {
                        if let Some(view) = Nomination::nominations_of(RUN, &who).first() {
                            let _ = unnominate(who, view.amount);
                        }
                    }
                    Op::Withdraw(who) => {
                        let _ = withdraw(who);
                    }
                    Op::Claim(who) => {
                        let _ = claim(who);
                    }
                    Op::Commission(share) => {
                        let _ = set_commission(share);
                    }
                    Op::Pay { former, own, amount } => {
                        assert!(pay_to(if former { old } else { seat() }, own, amount) <= amount);
                    }
                    Op::Slash { former, share } => {
                        let before = Balances::total_issuance();
                        slash_of(if former { old } else { seat() }, share);
                        burnt += before - Balances::total_issuance();
                    }
                    Op::Vacate => {
                        old = seat();
                        vacate();
                    }
                    Op::Windows(windows) => {
                        now += windows;
                        window(now);
                    }
                }
                check();
                assert_eq!(Balances::total_issuance() + burnt, issuance);
            }
            // Every nominator can withdraw everything, and only dust stays.
            vacate();
            window(now + UNBONDING + 1);
            for who in ONE..=FOURTH {
                let _ = withdraw(who);
                let _ = claim(who);
            }
            check();
            let Ledger { nominated, unclaimed, .. } = PoolLedger::<Test>::get().unwrap_or_default();
            assert_eq!((nominated, unclaimed), (0, 0));
            assert_eq!(Nominations::<Test>::iter().count(), 0);
        });
    }
}
