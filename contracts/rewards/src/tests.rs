//! Money in, money out, and every refusal with storage left as it was (PROT-33).

use crate::{self as pallet_rewards, *};
use frame::{testing_prelude::*, traits::IdentityLookup};
use pallet_registry::Url;
use proptest::prelude::*;
use protocol::{
    Digest, Role, RunId, RunParams, Schedule, Uid,
    params::{PayShares, Permille},
};

#[frame_construct_runtime]
mod runtime {
    #[runtime::runtime]
    #[runtime::derive(
        RuntimeCall,
        RuntimeEvent,
        RuntimeError,
        RuntimeOrigin,
        RuntimeFreezeReason,
        RuntimeHoldReason,
        RuntimeTask
    )]
    pub struct Test;
    #[runtime::pallet_index(0)]
    pub type System = frame_system::Pallet<Test>;
    #[runtime::pallet_index(1)]
    pub type Balances = pallet_balances::Pallet<Test>;
    #[runtime::pallet_index(2)]
    pub type Registry = pallet_registry::Pallet<Test>;
    #[runtime::pallet_index(3)]
    pub type Rewards = pallet_rewards::Pallet<Test>;
}

#[derive_impl(frame_system::config_preludes::TestDefaultConfig)]
impl frame_system::Config for Test {
    type Block = MockBlock<Test>;
    type AccountData = pallet_balances::AccountData<Balance>;
    // Wide enough that the runs' accounts differ.
    type AccountId = u128;
    type Lookup = IdentityLookup<u128>;
}

#[derive_impl(pallet_balances::config_preludes::TestDefaultConfig)]
impl pallet_balances::Config for Test {
    type Balance = Balance;
    type AccountStore = System;
    type ExistentialDeposit = ConstU128<DEPOSIT>;
}

impl pallet_registry::Config for Test {
    type Currency = Balances;
    type RuntimeHoldReason = RuntimeHoldReason;
    type OnRunCreated = ();
    type WeightInfo = ();
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<16>;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = ConstU128<0>;
}

parameter_types! {
    pub const TreasuryId: PalletId = PalletId(*b"mettle/t");
}

impl Config for Test {
    type Currency = Balances;
    type Registry = Registry;
    type WeightInfo = ();
    type PalletId = TreasuryId;
}

/// The existential deposit.
const DEPOSIT: Balance = 5;
const EMISSION: Balance = 1000;
const OWNER: u128 = 1;
const COLDKEY: u128 = 2;
const PATRON: u128 = 3;
const HOTKEY: u128 = 1000;
const RUN: RunId = RunId(0);

/// Two runs. In the first, seats 0 and 1 mine and seat 2 validates.
fn with_run(story: impl FnOnce()) {
    let mut storage = frame_system::GenesisConfig::<Test>::default().build_storage().unwrap();
    let balances = [OWNER, COLDKEY, PATRON].map(|who| (who, 100_000)).to_vec();
    pallet_balances::GenesisConfig::<Test> { balances, ..Default::default() }
        .assimilate_storage(&mut storage)
        .unwrap();
    let mut chain: TestState = storage.into();
    chain.execute_with(|| {
        System::set_block_number(1);
        let params = RunParams {
            schedule: Schedule { start: protocol::Block(5), ..RunParams::default().schedule },
            validator_stake_min: 10,
            miner_stake_min: 10,
            emission_per_epoch: EMISSION,
            shares: PayShares {
                miners: Permille(500),
                validators: Permille(400),
                owner: Permille(90),
                burn: Permille(10),
            },
            ..RunParams::default()
        };
        let url: Url = b"http://a".to_vec().try_into().unwrap();
        let digest = Digest([0; 32]);
        for _ in 0..2 {
            let owner = RuntimeOrigin::signed(OWNER);
            assert_ok!(Registry::create_run(owner, params, digest, digest, digest, url.clone()));
        }
        for (uid, role) in [Role::Miner, Role::Miner, Role::Validator].into_iter().enumerate() {
            let coldkey = RuntimeOrigin::signed(COLDKEY);
            assert_ok!(Registry::register(coldkey, RUN, role, HOTKEY + uid as u128, url.clone(), 10));
        }
        story();
        Rewards::check_invariants().unwrap();
    });
}

fn fund(amount: Balance) -> DispatchResult {
    Rewards::fund(RuntimeOrigin::signed(PATRON), RUN, amount)
}

fn pay(epoch: u32) {
    Rewards::pay_epoch(RUN, epoch, &[(Uid(0), 3), (Uid(1), 1)], &[(Uid(2), 7)]);
    Rewards::check_invariants().unwrap();
}

fn claim(who: u128, uid: u16) -> DispatchResult {
    Rewards::claim(RuntimeOrigin::signed(who), RUN, Uid(uid))
}

fn books() -> Books {
    BooksOf::<Test>::get(RUN).unwrap()
}

fn earnings(uid: u16) -> (Balance, Balance) {
    let earnings = EarningsOf::<Test>::get(RUN, Uid(uid));
    (earnings.claimable, earnings.earned)
}

#[test]
fn a_run_is_funded_by_anybody_and_the_first_pays_its_account_s_deposit() {
    with_run(|| {
        assert_ok!(fund(300));
        assert_eq!(Balances::free_balance(PATRON), 100_000 - 300 - DEPOSIT);
        assert_ok!(Rewards::fund(RuntimeOrigin::signed(OWNER), RUN, 200));
        assert_eq!(Balances::free_balance(OWNER), 100_000 - 200);
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
        let Books { treasury, owner_claimable, burnt, .. } = books();
        assert_eq!((treasury, owner_claimable, burnt), (4000, 90, 10));
        assert_eq!(Balances::total_issuance(), issuance - 10);
        System::assert_last_event(
            Event::<Test>::EpochPaid { run: RUN, epoch: 0, seats: 900, owner: 90, burnt: 10, treasury: 4000 }
                .into(),
        );
    });
}

#[test]
fn an_epoch_pays_no_more_than_the_treasury_has_and_leaves_the_rest_there() {
    with_run(|| {
        pay(0);
        assert_eq!(BooksOf::<Test>::get(RUN), None);
        assert_ok!(fund(101));
        pay(1);
        // 50, 40, 9 and 1 of 101; of the 50 one seat gets 37 and the other 12.
        assert_eq!([earnings(0).0, earnings(1).0, earnings(2).0], [37, 12, 40]);
        let Books { treasury, owner_claimable, burnt, .. } = books();
        assert_eq!((treasury, owner_claimable, burnt), (2, 9, 1));
        for epoch in 2..10 {
            pay(epoch);
        }
        assert!(books().treasury < 10);
    });
}

#[test]
fn a_share_that_nobody_earned_stays_in_the_treasury() {
    with_run(|| {
        assert_ok!(fund(1000));
        Rewards::pay_epoch(RUN, 0, &[], &[(Uid(2), 7)]);
        assert_eq!((earnings(2).0, books().treasury), (400, 500));
    });
}

#[test]
fn a_claim_pays_the_coldkey_whichever_of_the_seat_s_keys_signs() {
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
            Event::<Test>::Claimed { run: RUN, uid: Uid(1), to: COLDKEY, amount: 125 }.into(),
        );
        pay(1);
        assert_eq!(earnings(0), (375, 750));
    });
}

#[test]
fn the_owner_claims_the_owner_s_share() {
    with_run(|| {
        assert_ok!(fund(5000));
        pay(0);
        assert_ok!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN));
        assert_eq!(Balances::free_balance(OWNER), 100_000 + 90);
        assert_noop!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN), Error::<Test>::NothingToClaim);
        assert_noop!(Rewards::claim_owner(RuntimeOrigin::signed(COLDKEY), RUN), Error::<Test>::NotTheOwner);
    });
}

#[test]
fn everything_can_be_claimed_to_the_last_unit() {
    with_run(|| {
        assert_ok!(fund(101));
        for epoch in 0..20 {
            pay(epoch);
        }
        for uid in 0..3 {
            assert_ok!(claim(COLDKEY, uid));
        }
        assert_ok!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN));
        let left = books().treasury;
        assert_eq!(Balances::free_balance(Rewards::account(RUN)), left + DEPOSIT);
        assert_eq!(books().funded, left + books().paid + books().burnt);
    });
}

#[test]
fn runs_share_no_money() {
    with_run(|| {
        assert_ok!(fund(5000));
        Rewards::pay_epoch(RunId(1), 0, &[(Uid(0), 1)], &[]);
        assert_eq!(BooksOf::<Test>::get(RunId(1)), None);
        assert_ne!(Rewards::account(RUN), Rewards::account(RunId(1)));
    });
}

#[test]
fn funding_refuses_what_cannot_be() {
    with_run(|| {
        assert_noop!(fund(0), Error::<Test>::NothingToFund);
        assert_noop!(fund(100_000), Error::<Test>::NotEnoughFunds);
        assert_noop!(fund(Balance::MAX), Error::<Test>::TooMuch);
        assert_noop!(Rewards::fund(RuntimeOrigin::signed(PATRON), RunId(9), 1), Error::<Test>::UnknownRun);
        assert_noop!(Rewards::fund(RuntimeOrigin::none(), RUN, 1), DispatchError::BadOrigin);
    });
}

#[test]
fn claiming_refuses_what_is_not_there_or_another_s() {
    with_run(|| {
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);
        assert_ok!(fund(5000));
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);
        pay(0);
        assert_noop!(claim(PATRON, 0), Error::<Test>::NotTheSeat);
        assert_noop!(claim(HOTKEY + 1, 0), Error::<Test>::NotTheSeat);
        assert_noop!(claim(COLDKEY, 9), Error::<Test>::UnknownSeat);
        assert_noop!(
            Rewards::claim(RuntimeOrigin::signed(COLDKEY), RunId(9), Uid(0)),
            Error::<Test>::UnknownRun
        );
        assert_noop!(Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RunId(9)), Error::<Test>::UnknownRun);
        assert_noop!(Rewards::claim(RuntimeOrigin::none(), RUN, Uid(0)), DispatchError::BadOrigin);
        assert_noop!(Rewards::claim_owner(RuntimeOrigin::none(), RUN), DispatchError::BadOrigin);
        assert_ok!(claim(COLDKEY, 0));
        assert_noop!(claim(COLDKEY, 0), Error::<Test>::NothingToClaim);
    });
}

#[test]
fn pay_that_cannot_reach_an_account_stays_claimable() {
    with_run(|| {
        assert_ok!(fund(20));
        pay(0);
        let all = Balances::free_balance(OWNER);
        assert_ok!(Balances::transfer_allow_death(RuntimeOrigin::signed(OWNER), PATRON, all));
        // One unit of pay, and the existential deposit is five.
        let claim_owner = || Rewards::claim_owner(RuntimeOrigin::signed(OWNER), RUN);
        assert_noop!(claim_owner(), Error::<Test>::CannotPay);
        assert_ok!(Balances::transfer_keep_alive(RuntimeOrigin::signed(PATRON), OWNER, DEPOSIT));
        assert_ok!(claim_owner());
        assert_eq!(Balances::free_balance(OWNER), DEPOSIT + 1);
    });
}

#[derive(Clone, Debug)]
enum Op {
    Fund { who: u128, run: u32, amount: Balance },
    Pay { run: u32, incentive: Vec<(u16, u64)>, dividends: Vec<(u16, u64)> },
    Claim { who: u128, uid: u16 },
    ClaimOwner { who: u128, run: u32 },
    Gift(Balance),
}

fn op() -> impl Strategy<Value = Op> {
    let parts = || proptest::collection::btree_map(0u16..3, 0u64..1 << 32, 0..3);
    let (who, run) = (1u128..4, 0u32..3);
    prop_oneof![
        (who.clone(), run.clone(), prop_oneof![0u128..20, 0u128..5000])
            .prop_map(|(who, run, amount)| Op::Fund { who, run, amount }),
        (run.clone(), parts(), parts()).prop_map(|(run, incentive, dividends)| Op::Pay {
            run,
            incentive: incentive.into_iter().collect(),
            dividends: dividends.into_iter().collect(),
        }),
        (prop_oneof![1u128..4, HOTKEY..HOTKEY + 3], 0u16..4).prop_map(|(who, uid)| Op::Claim { who, uid }),
        (who, run).prop_map(|(who, run)| Op::ClaimOwner { who, run }),
        (1u128..100).prop_map(Op::Gift),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_called_no_unit_is_made_or_lost(ops in proptest::collection::vec(op(), 0..60)) {
        with_run(|| {
            let signed = RuntimeOrigin::signed;
            let issuance = Balances::total_issuance();
            for op in ops {
                let with_uids = |parts: Vec<(u16, u64)>| -> Vec<(Uid, u64)> {
                    parts.into_iter().map(|(uid, part)| (Uid(uid), part)).collect()
                };
                match op {
                    Op::Fund { who, run, amount } => {
                        let _ = Rewards::fund(signed(who), RunId(run), amount);
                    }
                    Op::Pay { run, incentive, dividends } => {
                        Rewards::pay_epoch(RunId(run), 0, &with_uids(incentive), &with_uids(dividends));
                    }
                    Op::Claim { who, uid } => {
                        let _ = claim(who, uid);
                    }
                    Op::ClaimOwner { who, run } => {
                        let _ = Rewards::claim_owner(signed(who), RunId(run));
                    }
                    Op::Gift(amount) => {
                        let to = Rewards::account(RUN);
                        let _ = Balances::transfer_keep_alive(signed(PATRON), to, amount);
                    }
                }
                Rewards::check_invariants().unwrap();
                let burnt: Balance = BooksOf::<Test>::iter_values().map(|books| books.burnt).sum();
                assert_eq!(Balances::total_issuance() + burnt, issuance);
            }
        });
    }
}
