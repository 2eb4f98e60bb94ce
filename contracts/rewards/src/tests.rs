//! Funding, pay and claims, and every refusal with storage unchanged (PROT-33). Uses the real registry and
//! nominations.

use crate::{self as pallet_rewards, *};
use frame::deps::frame_support::storage::with_storage_layer;
use frame::{prelude::fungible::InspectHold as _, testing_prelude::*};
use pallet_mock::{consent, pallet_balances};
use pallet_registry::{Ending, HoldReason, OnSeats as _, Payslips as _, Url};
use proptest::prelude::*;
use protocol::{
    Digest, Role, RunId, RunParams, Schedule, Terms, Uid, Window,
    params::{PayShares, Permille, TermsLimits},
    view::{Payslip, TreasuryView},
};

pallet_mock::runtime! {
    account: u128, deposit: DEPOSIT;
    2 Registry: pallet_registry,
    3 Nomination: pallet_nomination,
    4 Rewards: pallet_rewards,
}

pallet_mock::registry! {
    on_run_created: (), on_run_closed: (Rewards, Nomination), on_seats: (Nomination, Rewards),
    nominations: Nomination, payslips: Rewards, miner_weights: (), hotkey: Consents
}

pallet_mock::consents!(u128, pallet_registry::HotkeyProof<u128>);

parameter_types! {
    pub const TreasuryId: PalletId = PalletId(*b"mettle/t");
    pub const NominationId: PalletId = PalletId(*b"mettle/n");
    pub const SharePay: Weight = Weight::from_parts(7, 0);
}

impl pallet_nomination::Config for Test {
    type MaxNominators = ConstU32<3>;
    type MaxUnbonding = ConstU32<2>;
    type MinNomination = ConstU128<10>;
    type PalletId = NominationId;
}

impl Config for Test {
    type SharePayWeight = SharePay;
    type PalletId = TreasuryId;
}

/// The existential deposit.
const DEPOSIT: Balance = 5;
const EMISSION: Balance = 1000;
/// Number of windows of an epoch.
const ALL: u32 = 10;
const STAKE: Balance = 100;
const FUNDS: Balance = 100_000;
const OWNER: u128 = 1;
const COLDKEY: u128 = 2;
const PATRON: u128 = 3;
const NOMINATOR: u128 = 4;
const RICH: u128 = 5;
const HOTKEY: u128 = 1000;
const RUN: RunId = RunId(0);
const UNBONDING: u32 = 6;

fn params() -> RunParams {
    RunParams {
        schedule: Schedule { start: protocol::Block(5), ..RunParams::default().schedule },
        epoch_windows: ALL,
        limits: TermsLimits { emission_per_epoch: Balance::MAX, ..TermsLimits::default() },
        ..RunParams::default()
    }
}

fn terms() -> Terms {
    Terms {
        validator_stake_min: 10,
        miner_stake_min: 10,
        miner_seats_max: 16,
        validator_seats_max: 16,
        unbonding_windows: UNBONDING,
        seat_price_min: 0,
        emission_per_epoch: EMISSION,
        emission_halving_epochs: 0,
        shares: PayShares {
            miners: Permille(500),
            validators: Permille(400),
            owner: Permille(90),
            burn: Permille(10),
        },
        ..Terms::default()
    }
}

pub(crate) fn chain() -> TestState {
    let mut balances = [OWNER, COLDKEY, PATRON, NOMINATOR].map(|who| (who, FUNDS)).to_vec();
    balances.push((RICH, Balance::MAX / 2));
    pallet_mock::chain::<Test>(balances)
}

/// Runs `story` with two runs. In the first, seats 0 and 1 mine and seat 2 validates.
fn with_terms(terms: Terms, story: impl FnOnce()) {
    chain().execute_with(|| {
        let url: Url = b"http://a".to_vec().try_into().unwrap();
        let digest = Digest([0; 32]);
        for _ in 0..2 {
            let owner = RuntimeOrigin::signed(OWNER);
            assert_ok!(Registry::create_run(owner, params(), terms, digest, digest, digest, url.clone()));
        }
        for (uid, role) in [Role::Miner, Role::Miner, Role::Validator].into_iter().enumerate() {
            assert_ok!(register(COLDKEY, role, HOTKEY + uid as u128));
        }
        story();
        check();
    });
}

/// Registers a hotkey that consents.
fn register(who: u128, role: Role, hotkey: u128) -> DispatchResult {
    let url: Url = b"http://a".to_vec().try_into().unwrap();
    let (signer, proof) = (RuntimeOrigin::signed(who), consent(&hotkey, RUN, &who));
    let taken = Registry::register(signer, RUN, role, hotkey, url, STAKE, Balance::MAX, proof);
    taken.map(|_| ()).map_err(|error| error.error)
}

fn with_run(story: impl FnOnce()) {
    with_terms(terms(), story);
}

fn check() {
    Rewards::check_invariants().unwrap();
    Nomination::check_invariants().unwrap();
    Registry::check_invariants().unwrap();
}

fn window(number: u32) {
    System::set_block_number(params().schedule.opens_at(Window(number)).0.into());
}

/// Moves to the first block of an epoch.
fn epoch(number: u32) {
    window(number * params().epoch_windows);
}

fn fund(amount: Balance) -> DispatchResult {
    Rewards::fund(RuntimeOrigin::signed(PATRON), RUN, amount)
}

const INCENTIVE: [(Uid, u64); 2] = [(Uid(0), 3), (Uid(1), 1)];
const DIVIDENDS: [(Uid, u64); 1] = [(Uid(2), 7)];

/// Builds the consensus on the seats in these lists.
fn consensus(incentive: &[(Uid, u64)], dividends: &[(Uid, u64)]) -> Vec<(Uid, SeatConsensus)> {
    let mut seats = std::collections::BTreeMap::<Uid, SeatConsensus>::new();
    for (uid, share) in incentive {
        seats.entry(*uid).or_default().incentive = *share;
    }
    for (uid, share) in dividends {
        seats.entry(*uid).or_default().dividends = *share;
    }
    seats.into_iter().collect()
}

fn pay(epoch: u32) {
    let mut seats = consensus(&INCENTIVE, &DIVIDENDS);
    seats[0].1.weight = u16::MAX;
    seats[1].1.weight = u16::MAX / 3;
    seats[2].1.trust = 99;
    Rewards::pay_epoch(RUN, epoch, ALL, &seats, &[]);
    Rewards::check_invariants().unwrap();
}

fn claim(who: u128, uid: u16) -> DispatchResult {
    Rewards::claim(RuntimeOrigin::signed(who), RUN, Uid(uid))
}

fn is_feeless(who: u128, uid: u16) -> bool {
    use frame::deps::frame_support::dispatch::CheckIfFeeless as _;
    Call::<Test>::claim { run: RUN, uid: Uid(uid) }.is_feeless(&RuntimeOrigin::signed(who))
}

fn vacate(uid: u16) {
    let seat = Registry::seat(RUN, Uid(uid)).unwrap();
    let ending = Ending { window: Window(1), until: Window(1 + UNBONDING) };
    <Test as pallet_registry::Config>::OnSeats::vacated(RUN, Uid(uid), &seat, ending);
}

fn stake(uid: u16) -> Balance {
    Registry::seat(RUN, Uid(uid)).unwrap().stake
}

fn books() -> Treasury {
    Treasuries::<Test>::get(RUN).unwrap()
}

fn earnings(uid: u16) -> (Balance, Balance) {
    let earnings = EarningsOf::<Test>::get(RUN, Uid(uid));
    (earnings.claimable, earnings.earned)
}

#[test]
fn any_account_funds_a_run_and_the_first_pays_the_existential_deposit() {
    with_run(|| {
        assert_ok!(fund(300));
        assert_eq!(Balances::free_balance(PATRON), FUNDS - 300 - DEPOSIT);
        assert_ok!(Rewards::fund(RuntimeOrigin::signed(OWNER), RUN, 200));
        assert_eq!(Balances::free_balance(OWNER), FUNDS - 200);
        assert_eq!((books().funded, Rewards::treasury(RUN)), (500, 500));
        assert_eq!(Balances::free_balance(Rewards::account(RUN)), 500 + DEPOSIT);
        System::assert_last_event(
            Event::<Test>::Funded { run: RUN, from: OWNER, amount: 200, treasury: 500 }.into(),
        );
    });
}

#[test]
fn an_epoch_is_split_by_the_run_s_shares() {
    with_run(|| {
        assert_ok!(fund(5000));
        let issuance = Balances::total_issuance();
        pay(0);
        assert_eq!([earnings(0), earnings(1), earnings(2)], [(375, 375), (125, 125), (400, 400)]);
        let Treasury { treasury, owner_claimable, burnt, .. } = books();
        assert_eq!((treasury, owner_claimable, burnt), (4000, 90, 10));
        assert_eq!(Balances::total_issuance(), issuance - 10);
        System::assert_last_event(
            Event::<Test>::EpochPaid {
                run: RUN,
                epoch: 0,
                seats: 900,
                nominators: 0,
                owner: 90,
                burnt: 10,
                treasury: 4000,
            }
            .into(),
        );
        assert_eq!(
            Rewards::treasury_view(RUN),
            TreasuryView {
                funded: 5000,
                treasury: 4000,
                claimable: 990,
                owner_claimable: 90,
                paid: 0,
                burnt: 10
            }
        );
        assert_eq!(Rewards::treasury_view(RunId(1)), TreasuryView::default());
    });
}

#[test]
fn an_epoch_pays_at_most_the_treasury_and_leaves_the_remainder() {
    with_run(|| {
        pay(0);
        assert_eq!(Treasuries::<Test>::get(RUN), None);
        assert_ok!(fund(101));
        pay(1);
        // 50, 40, 9 and 1 of 101; of the 50 one seat gets 37 and the other 12.
        assert_eq!([earnings(0).0, earnings(1).0, earnings(2).0], [37, 12, 40]);
        let Treasury { treasury, owner_claimable, burnt, .. } = books();
        assert_eq!((treasury, owner_claimable, burnt), (2, 9, 1));
        for epoch in 2..10 {
            pay(epoch);
        }
        assert!(books().treasury < 10);
    });
}

#[test]
fn the_emission_halves_as_the_terms_say() {
    let halving = Terms { emission_halving_epochs: 2, ..terms() };
    with_terms(halving, || {
        assert_ok!(fund(50_000));
        (0..6).for_each(pay);
        let pots: Vec<_> = Rewards::payslips(RUN, Uid(0)).iter().map(|slip| slip.pot).collect();
        assert_eq!(pots, [1000, 1000, 500, 500, 250, 250]);
        // 375 twice, 187 twice, 93 twice.
        assert_eq!(earnings(0).1, 2 * (375 + 187 + 93));
    });
}

#[test]
fn an_epoch_is_paid_once_and_no_earlier_one_after_it() {
    with_run(|| {
        assert_ok!(fund(5000));
        pay(3);
        let before = (books(), earnings(0));
        pay(3);
        pay(2);
        assert_eq!((books(), earnings(0)), before);
        pay(4);
        assert_eq!(earnings(0).0, 2 * 375);
    });
}

#[test]
fn an_unearned_share_stays_in_the_treasury() {
    with_run(|| {
        assert_ok!(fund(1000));
        Rewards::pay_epoch(RUN, 0, ALL, &consensus(&[], &DIVIDENDS), &[]);
        assert_eq!((earnings(2).0, books().treasury), (400, 500));
    });
}

#[test]
fn a_later_holder_is_not_paid_for_its_predecessor_s_work() {
    with_run(|| {
        assert_ok!(fund(1000));
        epoch(1);
        assert_ok!(register(COLDKEY, Role::Miner, 77));
        // Seat 3 is new and seat 9 does not exist: their halves of 500 stay in the treasury.
        let incentive = [(Uid(0), 2), (Uid(3), 1), (Uid(9), 1)];
        Rewards::pay_epoch(RUN, 0, ALL, &consensus(&incentive, &[]), &[]);
        assert_eq!((earnings(0).0, earnings(3).0, earnings(9).0), (250, 0, 0));
        assert_eq!(books().treasury, 1000 - 250 - 100);
        assert_eq!(Rewards::payslips(RUN, Uid(3)), []);
        Rewards::pay_epoch(RUN, 1, ALL, &consensus(&incentive, &[]), &[]);
        assert!(earnings(3).0 > 0);
    });
}

/// Computed by hand: of 1000, the miner that left gets 3/4 of 500; the validator that left gets 400, of which 3/4 go
/// to its nominator.
#[test]
fn the_holder_at_the_end_of_an_epoch_is_paid_even_if_it_has_left() {
    with_run(|| {
        assert_ok!(fund(1000));
        Registry::window_opens(RUN, Window(0));
        window(0);
        assert_ok!(Nomination::nominate(RuntimeOrigin::signed(NOMINATOR), RUN, Uid(2), 300));
        let former: Vec<Former<u128>> = [0, 2]
            .map(|uid| {
                let seat = Registry::seat(RUN, Uid(uid)).unwrap();
                Former { seat: seat.id(Uid(uid)), coldkey: COLDKEY, stake: seat.stake }
            })
            .to_vec();
        for uid in [0, 2] {
            assert_ok!(Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(uid)));
        }
        epoch(1);
        Registry::window_opens(RUN, Window(params().epoch_windows));
        // Both seats have new holders when the epoch is paid.
        for (hotkey, role) in [(77, Role::Miner), (78, Role::Validator)] {
            assert_ok!(register(PATRON, role, hotkey));
        }
        assert_eq!([0, 2].map(|uid| Registry::seat(RUN, Uid(uid)).unwrap().coldkey), [PATRON; 2]);

        let earned = consensus(&INCENTIVE, &DIVIDENDS);
        Rewards::pay_epoch(RUN, 0, ALL, &earned, &former);
        check();
        assert_eq!([earnings(0), earnings(1), earnings(2)], [(0, 0), (125, 125), (0, 0)]);
        assert_eq!(FormerPay::<Test>::get(RUN, COLDKEY), 375 + 100);
        assert_eq!(Nomination::nominations_of(RUN, &NOMINATOR)[0].claimable, 300);
        assert_eq!(books().treasury, 0);
        // The record names the former holder, so the present one gets none of it.
        assert_eq!((Rewards::payslips(RUN, Uid(0)), Rewards::payslips(RUN, Uid(1)).len()), (vec![], 1));
        assert_eq!((Rewards::recent_pay(RUN, Uid(0)), Rewards::recent_pay(RUN, Uid(2))), (0, 0));
        let before = Balances::free_balance(COLDKEY);
        assert_ok!(Rewards::claim_former(RuntimeOrigin::signed(COLDKEY), RUN));
        assert_eq!(Balances::free_balance(COLDKEY), before + 475);
    });
}

#[test]
fn nominators_get_a_part_of_their_validator_s_pay_and_of_no_miner_s() {
    with_run(|| {
        assert_ok!(fund(5000));
        assert_ok!(Nomination::nominate(RuntimeOrigin::signed(NOMINATOR), RUN, Uid(2), 300));
        pay(0);
        // Of 400, three quarters.
        assert_eq!([earnings(0), earnings(2)], [(375, 375), (100, 100)]);
        let nominator = &Nomination::nominations_of(RUN, &NOMINATOR)[0];
        assert_eq!(nominator.claimable, 300);
        assert_eq!((books().paid, Rewards::treasury_view(RUN).claimable), (300, 375 + 125 + 100 + 90));
        System::assert_last_event(
            Event::<Test>::EpochPaid {
                run: RUN,
                epoch: 0,
                seats: 600,
                nominators: 300,
                owner: 90,
                burnt: 10,
                treasury: 4000,
            }
            .into(),
        );
        // The pay of its nominators counts as the seat's when seats compete.
        assert_eq!(Rewards::recent_pay(RUN, Uid(2)), 400);
        let slip = Rewards::payslips(RUN, Uid(2))[0];
        assert_eq!((slip.amount, slip.nominators), (100, 300));
    });
}

#[test]
fn the_weight_of_paying_grows_with_seats_and_validators() {
    with_run(|| {
        assert_ok!(fund(5000));
        let earned = consensus(&INCENTIVE, &DIVIDENDS);
        let three_seats = weight_info::pay_epoch::<Test>(3);
        assert_eq!(Rewards::pay_epoch(RUN, 0, ALL, &earned, &[]), three_seats + SharePay::get());
        let none = weight_info::pay_epoch::<Test>(0);
        assert_eq!(Rewards::pay_epoch(RunId(9), 0, ALL, &earned, &[]), none);
    });
}

#[test]
fn a_claim_pays_the_coldkey_for_either_signer() {
    with_run(|| {
        assert_ok!(fund(5000));
        pay(0);
        let before = Balances::free_balance(COLDKEY);
        assert_ok!(claim(HOTKEY, 0));
        assert_ok!(claim(COLDKEY, 1));
        assert_eq!(Balances::free_balance(COLDKEY), before + 375 + 125);
        assert_eq!([earnings(0), earnings(1)], [(0, 375), (0, 125)]);
        assert_eq!(books().paid, 500);
        System::assert_last_event(
            Event::<Test>::Claimed { run: RUN, uid: Uid(1), to: COLDKEY, amount: 125, staked: false }.into(),
        );
        pay(1);
        assert_eq!(earnings(0), (375, 750));
    });
}

#[test]
fn pay_is_added_to_the_stake_if_the_seat_is_set_so() {
    with_run(|| {
        assert_ok!(fund(5000));
        assert_ok!(Rewards::set_payout(RuntimeOrigin::signed(COLDKEY), RUN, Uid(0), Payout::Stake));
        System::assert_last_event(
            Event::<Test>::PayoutSet { run: RUN, uid: Uid(0), payout: Payout::Stake }.into(),
        );
        assert!(Rewards::pays_into_stake(RUN, Uid(0)) && !Rewards::pays_into_stake(RUN, Uid(1)));
        pay(0);
        let before = Balances::free_balance(COLDKEY);
        assert_ok!(claim(HOTKEY, 0));
        assert_ok!(claim(HOTKEY + 1, 1));
        assert_eq!((stake(0), stake(1)), (STAKE + 375, STAKE));
        assert_eq!(Balances::free_balance(COLDKEY), before + 125);
        assert_eq!(Balances::balance_on_hold(&HoldReason::Stake.into(), &COLDKEY), 3 * STAKE + 375);
        assert_eq!(books().paid, 500);

        assert_ok!(Rewards::set_payout(RuntimeOrigin::signed(COLDKEY), RUN, Uid(0), Payout::Account));
        assert!(!PayoutOf::<Test>::contains_key(RUN, Uid(0)));
        pay(1);
        assert_ok!(claim(HOTKEY, 0));
        assert_eq!(Balances::free_balance(COLDKEY), before + 125 + 375);
        System::assert_last_event(
            Event::<Test>::Claimed { run: RUN, uid: Uid(0), to: COLDKEY, amount: 375, staked: false }.into(),
        );
    });
}

#[test]
fn pay_that_cannot_be_added_to_the_stake_goes_to_the_account() {
    with_run(|| {
        assert_ok!(fund(5000));
        assert_ok!(Rewards::set_payout(RuntimeOrigin::signed(COLDKEY), RUN, Uid(0), Payout::Stake));
        pay(0);
        let set_stake = |stake| {
            pallet_registry::SeatsOf::<Test>::mutate(RUN, Uid(0), |seat| {
                seat.as_mut().unwrap().stake = stake;
            });
        };
        set_stake(Balance::MAX);
        let before = Balances::free_balance(COLDKEY);
        assert_ok!(claim(HOTKEY, 0));
        assert_eq!(Balances::free_balance(COLDKEY), before + 375);
        System::assert_last_event(
            Event::<Test>::Claimed { run: RUN, uid: Uid(0), to: COLDKEY, amount: 375, staked: false }.into(),
        );
        set_stake(STAKE);
    });
}

#[test]
fn a_seat_that_is_given_up_frees_its_pay_and_later_its_nominations() {
    with_run(|| {
        assert_ok!(fund(5000));
        Registry::window_opens(RUN, Window(0));
        window(0);
        assert_ok!(Nomination::nominate(RuntimeOrigin::signed(NOMINATOR), RUN, Uid(2), 100));
        pay(0);
        assert_ok!(Registry::leave(RuntimeOrigin::signed(COLDKEY), RUN, Uid(2)));
        window(1);
        Registry::window_opens(RUN, Window(1));
        assert_eq!(Registry::seat(RUN, Uid(2)), None);
        assert_eq!((FormerPay::<Test>::get(RUN, COLDKEY), earnings(2)), (200, (0, 0)));
        let before = Balances::free_balance(NOMINATOR);
        window(1 + UNBONDING);
        assert_ok!(Nomination::withdraw(RuntimeOrigin::signed(NOMINATOR), RUN, Uid(2)));
        assert_ok!(Nomination::claim(RuntimeOrigin::signed(NOMINATOR), RUN, Uid(2)));
        assert_eq!(Balances::free_balance(NOMINATOR), before + 300);
        assert_noop!(claim(COLDKEY, 2), Error::<Test>::UnknownSeat);
        assert_ok!(Rewards::claim_former(RuntimeOrigin::signed(COLDKEY), RUN));
    });
}

#[test]
fn a_hotkey_claims_for_free_once_per_epoch_if_there_is_pay() {
    with_run(|| {
        assert!(!is_feeless(HOTKEY, 0), "there is nothing to claim, and no epoch");
        epoch(1);
        assert_ok!(fund(5000));
        assert!(!is_feeless(HOTKEY, 0), "there is nothing to claim");
        pay(0);
        assert!(is_feeless(HOTKEY, 0));
        assert!(!is_feeless(COLDKEY, 0), "the coldkey pays its fees");
        assert!(!is_feeless(HOTKEY + 1, 0), "another seat's hotkey");
        assert!(!is_feeless(HOTKEY, 9), "no such seat");
        assert_ok!(claim(HOTKEY, 0));
        assert!(!is_feeless(HOTKEY, 0));
        // A second claim in one epoch pays a fee.
        pay(1);
        assert!(!is_feeless(HOTKEY, 0));
        assert_ok!(claim(HOTKEY, 0));
        pay(2);
        epoch(2);
        assert!(is_feeless(HOTKEY, 0));
        // The coldkey's claim does not use up the hotkey's free one.
        assert_ok!(claim(COLDKEY, 0));
        pay(3);
        assert!(is_feeless(HOTKEY, 0));
        assert!(is_feeless(HOTKEY + 1, 1));
    });
}

#[test]
fn the_owner_claims_the_owner_s_share() {
    with_run(|| {
        assert_ok!(fund(5000));
        pay(0);
        assert_ok!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN));
        assert_eq!(Balances::free_balance(OWNER), FUNDS + 90);
        System::assert_last_event(Event::<Test>::OwnerClaimed { run: RUN, to: OWNER, amount: 90 }.into());
        assert_noop!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN), Error::<Test>::NothingToClaim);
        assert_noop!(Rewards::claim_owner(RuntimeOrigin::signed(COLDKEY), RUN), Error::<Test>::NotTheOwner);
    });
}

#[test]
fn a_former_seat_s_pay_waits_for_its_coldkey_and_the_next_holder_has_none() {
    with_run(|| {
        assert_ok!(fund(5000));
        assert_ok!(Rewards::set_payout(RuntimeOrigin::signed(COLDKEY), RUN, Uid(0), Payout::Stake));
        pay(0);
        let claimable = Rewards::treasury_view(RUN).claimable;
        vacate(0);
        System::assert_last_event(
            Event::<Test>::FormerPayCredited { run: RUN, uid: Uid(0), coldkey: COLDKEY, amount: 375 }.into(),
        );
        vacate(1);
        check();
        assert_eq!((earnings(0), Rewards::recent_pay(RUN, Uid(0))), ((0, 0), 0));
        assert!(!Rewards::pays_into_stake(RUN, Uid(0)));
        assert_eq!(FormerPay::<Test>::get(RUN, COLDKEY), 500);
        assert_eq!(Rewards::treasury_view(RUN).claimable, claimable);
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);

        let before = Balances::free_balance(COLDKEY);
        assert_ok!(Rewards::claim_former(RuntimeOrigin::signed(COLDKEY), RUN));
        assert_eq!(Balances::free_balance(COLDKEY), before + 500);
        System::assert_last_event(Event::<Test>::FormerClaimed { run: RUN, to: COLDKEY, amount: 500 }.into());
        assert_noop!(
            Rewards::claim_former(RuntimeOrigin::signed(COLDKEY), RUN),
            Error::<Test>::NothingToClaim
        );
        // A seat that was never paid keeps no pay.
        vacate(0);
        assert_eq!(FormerPay::<Test>::iter().count(), 0);
    });
}

#[test]
fn a_payslip_says_why_a_seat_was_paid_and_is_kept_for_sixty_four_epochs() {
    with_run(|| {
        assert_ok!(fund(80_000));
        for epoch in 0..70 {
            // An epoch without a consensus is not paid, and has no record.
            if epoch != 68 {
                pay(epoch);
            }
        }
        let slips = Rewards::payslips(RUN, Uid(0));
        let epochs: Vec<_> = slips.iter().map(|slip| slip.epoch).collect();
        assert_eq!(epochs, (6..68).chain([69]).collect::<Vec<_>>());
        let consensus = SeatConsensus { weight: u16::MAX, incentive: 3, trust: 0, dividends: 0 };
        assert_eq!(
            slips[0],
            Payslip { epoch: 6, pot: EMISSION, merged: ALL, consensus, amount: 375, nominators: 0 }
        );
        let consensus = SeatConsensus { weight: 0, incentive: 0, trust: 99, dividends: 7 };
        assert_eq!(Rewards::payslips(RUN, Uid(2))[0].consensus, consensus);
        assert_eq!(Rewards::payslips(RUN, Uid(9)), []);
        assert_eq!(Rewards::payslips(RunId(1), Uid(0)), []);
        assert_eq!(History::<Test>::iter().count(), 64);
    });
}

#[test]
fn a_payslip_records_an_empty_treasury() {
    with_run(|| {
        pay(0);
        let slip = Rewards::payslips(RUN, Uid(0))[0];
        assert_eq!((slip.pot, slip.amount, slip.consensus.incentive), (0, 0, 3));
    });
}

#[test]
fn a_holder_does_not_see_its_predecessor_s_payslips() {
    with_run(|| {
        pay(0);
        pallet_registry::SeatsOf::<Test>::mutate(RUN, Uid(0), |seat| {
            seat.as_mut().unwrap().registered_at = protocol::Block(4);
        });
        pallet_registry::Rosters::<Test>::mutate(RUN, |roster| {
            roster[0].as_mut().unwrap().registered_at = protocol::Block(4);
        });
        assert_eq!(Rewards::payslips(RUN, Uid(0)), []);
        pay(1);
        assert_eq!(Rewards::payslips(RUN, Uid(0)).len(), 1);
    });
}

#[test]
fn recent_pay_halves_with_each_paid_epoch() {
    with_run(|| {
        assert_ok!(fund(20_000));
        assert_eq!(Rewards::recent_pay(RUN, Uid(0)), 0);
        pay(0);
        pay(1);
        assert_eq!(Rewards::recent_pay(RUN, Uid(0)), 375 / 2 + 375);
        let others = consensus(&INCENTIVE[1..], &[]);
        Rewards::pay_epoch(RUN, 3, ALL, &others, &[]);
        assert_eq!(Rewards::recent_pay(RUN, Uid(0)), 562 / 4);
        // Nothing decays while no epoch is paid.
        epoch(50);
        assert_eq!(Rewards::recent_pay(RUN, Uid(0)), 562 / 4);
        Rewards::pay_epoch(RUN, 200, ALL, &others, &[]);
        assert_eq!(Rewards::recent_pay(RUN, Uid(0)), 0);
        pay(201);
        assert_eq!(Rewards::recent_pay(RUN, Uid(0)), 375);
    });
}

#[test]
fn everything_can_be_claimed_to_the_last_unit() {
    with_run(|| {
        assert_ok!(fund(101));
        for epoch in 0..20 {
            pay(epoch);
        }
        vacate(1);
        for uid in [0, 2] {
            assert_ok!(claim(COLDKEY, uid));
        }
        assert_ok!(Rewards::claim_former(RuntimeOrigin::signed(COLDKEY), RUN));
        assert_ok!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN));
        let left = books().treasury;
        assert_eq!(Balances::free_balance(Rewards::account(RUN)), left + DEPOSIT);
        assert_eq!(books().funded, left + books().paid + books().burnt);
    });
}

#[test]
fn an_epoch_pays_the_part_of_its_emission_that_its_merged_windows_are() {
    with_run(|| {
        assert_ok!(fund(5000));
        let earned = consensus(&INCENTIVE, &DIVIDENDS);
        for (epoch, merged, spent) in
            [(0, ALL, 1000), (1, 3, 1300), (2, 0, 1300), (3, 1, 1400), (4, 99, 2400)]
        {
            Rewards::pay_epoch(RUN, epoch, merged, &earned, &[]);
            check();
            assert!((5000 - books().treasury).abs_diff(spent) < 9, "epoch {epoch}: {:?}", books());
        }
        let slips = Rewards::payslips(RUN, Uid(0));
        let of_epochs: Vec<_> = slips.iter().map(|slip| (slip.merged, slip.pot, slip.amount)).collect();
        assert_eq!(of_epochs, [(10, 1000, 375), (3, 300, 112), (0, 0, 0), (1, 100, 37), (99, 1000, 375)]);
    });
}

#[test]
fn runs_share_no_money() {
    with_run(|| {
        assert_ok!(fund(5000));
        Rewards::pay_epoch(RunId(1), 0, ALL, &consensus(&[(Uid(0), 1)], &[]), &[]);
        assert_eq!(Treasuries::<Test>::get(RunId(1)), None);
        assert_ne!(Rewards::account(RUN), Rewards::account(RunId(1)));
    });
}

#[test]
fn invalid_funding_is_refused() {
    with_run(|| {
        assert_noop!(fund(0), Error::<Test>::NothingToFund);
        assert_noop!(fund(FUNDS), Error::<Test>::NotEnoughFunds);
        assert_noop!(fund(Balance::MAX), Error::<Test>::TooMuch);
        assert_noop!(Rewards::fund(RuntimeOrigin::signed(PATRON), RunId(9), 1), Error::<Test>::UnknownRun);
        assert_noop!(Rewards::fund(RuntimeOrigin::none(), RUN, 1), DispatchError::BadOrigin);
        assert_noop!(Rewards::fund(RuntimeOrigin::root(), RUN, 1), DispatchError::BadOrigin);
    });
}

#[test]
fn claims_of_nothing_and_by_strangers_are_refused() {
    with_run(|| {
        let signed = RuntimeOrigin::signed;
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);
        assert_ok!(fund(5000));
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);
        pay(0);
        assert_noop!(claim(PATRON, 0), Error::<Test>::NotTheSeat);
        assert_noop!(claim(HOTKEY + 1, 0), Error::<Test>::NotTheSeat);
        assert_noop!(claim(COLDKEY, 9), Error::<Test>::UnknownSeat);
        assert_noop!(Rewards::claim(signed(COLDKEY), RunId(9), Uid(0)), Error::<Test>::UnknownRun);
        assert_noop!(Rewards::claim_owner(signed(OWNER), RunId(9)), Error::<Test>::UnknownRun);
        assert_noop!(Rewards::claim_former(signed(COLDKEY), RunId(9)), Error::<Test>::UnknownRun);
        assert_noop!(Rewards::claim_former(signed(COLDKEY), RUN), Error::<Test>::NothingToClaim);
        for origin in [RuntimeOrigin::none(), RuntimeOrigin::root()] {
            assert_noop!(Rewards::claim(origin.clone(), RUN, Uid(0)), DispatchError::BadOrigin);
            assert_noop!(Rewards::claim_owner(origin.clone(), RUN), DispatchError::BadOrigin);
            assert_noop!(Rewards::claim_former(origin, RUN), DispatchError::BadOrigin);
        }
        assert_ok!(claim(COLDKEY, 0));
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);
    });
}

#[test]
fn a_payout_is_set_by_the_seat_s_coldkey_alone() {
    with_run(|| {
        let set = |origin, run, uid| Rewards::set_payout(origin, run, Uid(uid), Payout::Stake);
        let signed = RuntimeOrigin::signed;
        assert_noop!(set(RuntimeOrigin::none(), RUN, 0), DispatchError::BadOrigin);
        assert_noop!(set(RuntimeOrigin::root(), RUN, 0), DispatchError::BadOrigin);
        assert_noop!(set(signed(COLDKEY), RunId(9), 0), Error::<Test>::UnknownRun);
        assert_noop!(set(signed(COLDKEY), RUN, 9), Error::<Test>::UnknownSeat);
        assert_noop!(set(signed(HOTKEY), RUN, 0), Error::<Test>::NotTheColdkey);
        assert_noop!(set(signed(PATRON), RUN, 0), Error::<Test>::NotTheColdkey);
    });
}

#[test]
fn pay_that_cannot_reach_an_account_stays_claimable() {
    with_run(|| {
        assert_ok!(fund(20));
        pay(0);
        let all = Balances::free_balance(OWNER);
        assert_ok!(Balances::transfer_allow_death(RuntimeOrigin::signed(OWNER), PATRON, all));
        // One unit of pay; the existential deposit is five.
        let claim_owner = || Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN);
        assert_noop!(claim_owner(), Error::<Test>::CannotPay);
        assert_ok!(Balances::transfer_keep_alive(RuntimeOrigin::signed(PATRON), OWNER, DEPOSIT));
        assert_ok!(claim_owner());
        assert_eq!(Balances::free_balance(OWNER), DEPOSIT + 1);
    });
}

#[test]
fn the_largest_amounts_do_not_panic() {
    let shares = terms().shares;
    let most = Terms { emission_per_epoch: Balance::MAX, shares, ..terms() };
    with_terms(most, || {
        let most = Balance::MAX / 2 - 100;
        assert_ok!(Rewards::fund(RuntimeOrigin::signed(RICH), RUN, most));
        let uids = [(Uid(0), u64::MAX), (Uid(1), u64::MAX)];
        let dividends = [(Uid(2), u64::MAX)];
        for epoch in [0, 1, u32::MAX] {
            let earned = consensus(&uids, &dividends);
            Rewards::pay_epoch(RUN, epoch, ALL, &earned, &[]);
            check();
        }
        assert!(earnings(0).0 > most / 5);
        assert_ok!(claim(COLDKEY, 0));
        assert_ok!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN));
        assert!(Rewards::payslips(RUN, Uid(0)).len() == 1, "older records are overwritten");
        // The sum of all funds ever is bounded too.
        let all = Balances::free_balance(COLDKEY) - FUNDS;
        assert_ok!(Rewards::fund(RuntimeOrigin::signed(COLDKEY), RUN, all));
        Rewards::pay_epoch(RUN, u32::MAX, ALL, &[], &[]);
    });
}

#[derive(Clone, Debug)]
enum Op {
    Fund { who: u128, run: u32, amount: Balance },
    Pay { run: u32, merged: u32, incentive: Vec<(u16, u64)>, dividends: Vec<(u16, u64)> },
    Claim { who: u128, uid: u16 },
    ClaimOwner { who: u128, run: u32 },
    ClaimFormer(u128),
    Payout { uid: u16, stake: bool },
    Gift(Balance),
    Nominate { who: u128, amount: Balance },
    Unnominate { who: u128, amount: Balance },
    Withdraw(u128),
    ClaimNomination(u128),
    Commission(u16),
    Slash { uid: u16, share: u16, reporter: Option<u128> },
    Leave(u16),
    Register { uid: u128, validator: bool },
    NextWindow,
}

fn op() -> impl Strategy<Value = Op> {
    let parts = || proptest::collection::btree_map(0u16..4, 0u64..1 << 32, 0..4);
    let (who, run, uid) = (|| 1u128..5, || 0u32..3, || 0u16..4);
    prop_oneof![
        3 => (who(), run(), prop_oneof![0u128..20, 0u128..5000])
            .prop_map(|(who, run, amount)| Op::Fund { who, run, amount }),
        4 => (run(), 0..=ALL, parts(), parts()).prop_map(|(run, merged, incentive, dividends)| Op::Pay {
            run,
            merged,
            incentive: incentive.into_iter().collect(),
            dividends: dividends.into_iter().collect(),
        }),
        2 => (prop_oneof![1u128..4, HOTKEY..HOTKEY + 3], uid())
            .prop_map(|(who, uid)| Op::Claim { who, uid }),
        1 => (who(), run()).prop_map(|(who, run)| Op::ClaimOwner { who, run }),
        1 => who().prop_map(Op::ClaimFormer),
        1 => (uid(), any::<bool>()).prop_map(|(uid, stake)| Op::Payout { uid, stake }),
        1 => (1u128..100).prop_map(Op::Gift),
        3 => (who(), 0u128..3000).prop_map(|(who, amount)| Op::Nominate { who, amount }),
        2 => (who(), 0u128..3000).prop_map(|(who, amount)| Op::Unnominate { who, amount }),
        2 => who().prop_map(Op::Withdraw),
        1 => who().prop_map(Op::ClaimNomination),
        1 => (0u16..1100).prop_map(Op::Commission),
        1 => (uid(), 0u16..1001, proptest::option::of(1u128..9))
            .prop_map(|(uid, share, reporter)| Op::Slash { uid, share, reporter }),
        1 => uid().prop_map(Op::Leave),
        1 => (0u128..1000, any::<bool>()).prop_map(|(uid, validator)| Op::Register { uid, validator }),
        4 => Just(Op::NextWindow),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_calls_create_or_lose_a_unit(ops in proptest::collection::vec(op(), 0..80)) {
        with_run(|| {
            let signed = RuntimeOrigin::signed;
            let start = Balances::total_issuance();
            let (mut slashed, mut priced) = (0, 0);
            let mut now = 0;
            for (step, op) in ops.into_iter().enumerate() {
                let with_uids = |parts: Vec<(u16, u64)>| -> Vec<(Uid, u64)> {
                    parts.into_iter().map(|(uid, part)| (Uid(uid), part)).collect()
                };
                let validator = Uid(2);
                let issuance = Balances::total_issuance();
                match op {
                    Op::Fund { who, run, amount } => {
                        let _ = Rewards::fund(signed(who), RunId(run), amount);
                    }
                    Op::Pay { run, merged, incentive, dividends } => {
                        let (incentive, dividends) = (with_uids(incentive), with_uids(dividends));
                        let earned =
                            consensus(&incentive, &dividends);
                        // Every third time, a former seat is paid.
                        let seat = SeatId { uid: Uid(step as u16 % 4), registered_at: protocol::Block(1) };
                        let gone = [Former { seat, coldkey: PATRON, stake: STAKE }];
                        let gone = if step % 3 == 0 { &gone[..] } else { &[] };
                        Rewards::pay_epoch(RunId(run), step as u32, merged, &earned, gone);
                    }
                    Op::Claim { who, uid } => {
                        let feeless = is_feeless(who, uid);
                        let done = with_storage_layer(|| claim(who, uid));
                        assert!(!feeless || done.is_ok(), "a free call succeeds");
                    }
                    Op::ClaimOwner { who, run } => {
                        let _ = with_storage_layer(|| Rewards::claim_owner(signed(who), RunId(run)));
                    }
                    Op::ClaimFormer(who) => {
                        let _ = with_storage_layer(|| Rewards::claim_former(signed(who), RUN));
                    }
                    Op::Payout { uid, stake } => {
                        let payout = if stake { Payout::Stake } else { Payout::Account };
                        let _ = Rewards::set_payout(signed(COLDKEY), RUN, Uid(uid), payout);
                    }
                    Op::Gift(amount) => {
                        let to = Rewards::account(RUN);
                        let _ = Balances::transfer_keep_alive(signed(PATRON), to, amount);
                    }
                    Op::Nominate { who, amount } => {
                        let _ = Nomination::nominate(signed(who), RUN, validator, amount);
                    }
                    Op::Unnominate { who, amount } => {
                        let _ = Nomination::unnominate(signed(who), RUN, validator, amount);
                    }
                    Op::Withdraw(who) => {
                        let _ = Nomination::withdraw(signed(who), RUN, validator);
                    }
                    Op::ClaimNomination(who) => {
                        let _ = Nomination::claim(signed(who), RUN, validator);
                    }
                    Op::Commission(share) => {
                        let _ = Nomination::set_commission(signed(COLDKEY), RUN, validator, Permille(share));
                    }
                    Op::Slash { uid, share, reporter } => {
                        if let Some(seat) = Registry::seat(RUN, Uid(uid)) {
                            Registry::slash(RUN, seat.id(Uid(uid)), Permille(share), reporter.as_ref());
                        }
                        slashed += issuance - Balances::total_issuance();
                    }
                    Op::Leave(uid) => {
                        let _ = Registry::leave(signed(COLDKEY), RUN, Uid(uid));
                    }
                    Op::Register { uid, validator } => {
                        let role = if validator { Role::Validator } else { Role::Miner };
                        let _ = with_storage_layer(|| register(COLDKEY, role, 2 * HOTKEY + uid));
                        priced += issuance - Balances::total_issuance();
                    }
                    Op::NextWindow => {
                        window(now);
                        Registry::window_opens(RUN, Window(now));
                        now += 1;
                    }
                }
                check();
                let burnt: Balance = Treasuries::<Test>::iter_values().map(|books| books.burnt).sum();
                assert_eq!(Balances::total_issuance() + burnt + slashed + priced, start);
            }
        });
    }
}
