//! A run and its seats, and every refusal with storage left as it was (PROT-33).

use crate::{self as pallet_registry, *};
use frame::{prelude::fungible::InspectHold as _, testing_prelude::*};
use proptest::prelude::*;
use protocol::{
    Schedule,
    params::{Density, F32Bits, PayShares, Permille},
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
}

#[derive_impl(frame_system::config_preludes::TestDefaultConfig)]
impl frame_system::Config for Test {
    type Block = MockBlock<Test>;
    type AccountData = pallet_balances::AccountData<Balance>;
}

#[derive_impl(pallet_balances::config_preludes::TestDefaultConfig)]
impl pallet_balances::Config for Test {
    type Balance = Balance;
    type AccountStore = System;
}

impl Config for Test {
    type Currency = Balances;
    type RuntimeHoldReason = RuntimeHoldReason;
    type OnRunCreated = ();
    type WeightInfo = ();
    type MaxRuns = ConstU32<3>;
    type MaxSeats = ConstU32<4>;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = ConstU128<100>;
}

const OWNER: u64 = 1;
const COLDKEY: u64 = 2;
const STRANGER: u64 = 9;
const HOTKEY: u64 = 1000;
const MINER_STAKE: Balance = 10;
const VALIDATOR_STAKE: Balance = 50;
const RUN: RunId = RunId(0);

fn params() -> RunParams {
    RunParams {
        schedule: Schedule { start: Block(5), ..RunParams::default().schedule },
        miner_stake_min: MINER_STAKE,
        validator_stake_min: VALIDATOR_STAKE,
        ..RunParams::default()
    }
}

fn url(text: &str) -> Url {
    text.as_bytes().to_vec().try_into().unwrap()
}

fn create(who: u64, params: RunParams) -> DispatchResult {
    let digest = |byte| Digest([byte; 32]);
    let origin = RuntimeOrigin::signed(who);
    Registry::create_run(origin, params, digest(1), digest(2), digest(3), url("http://origin.example/run"))
}

fn register(who: u64, role: Role, hotkey: u64, stake: Balance) -> DispatchResult {
    Registry::register(RuntimeOrigin::signed(who), RUN, role, hotkey, url("http://10.0.0.1:9000/seat"), stake)
}

fn empty_chain() -> TestState {
    let mut storage = frame_system::GenesisConfig::<Test>::default().build_storage().unwrap();
    let balances = (1..=5).map(|who| (who, 1_000)).collect();
    pallet_balances::GenesisConfig::<Test> { balances, ..Default::default() }
        .assimilate_storage(&mut storage)
        .unwrap();
    let mut chain: TestState = storage.into();
    chain.execute_with(|| System::set_block_number(1));
    chain
}

/// Runs `story` on a chain with one run.
fn with_a_run(story: impl FnOnce()) {
    empty_chain().execute_with(|| {
        assert_ok!(create(OWNER, params()));
        story();
        Registry::check_invariants().unwrap();
    });
}

#[test]
fn a_run_is_created_with_its_deposit_held() {
    with_a_run(|| {
        let run = <Registry as Seats<u64>>::run(RUN).unwrap();
        assert_eq!((run.owner, run.params, run.deposit), (OWNER, params(), 100));
        assert_eq!(Balances::balance_on_hold(&HoldReason::RunDeposit.into(), &OWNER), 100);
        System::assert_last_event(
            Event::<Test>::RunCreated { run: RUN, owner: OWNER, start: Block(5) }.into(),
        );
        assert_ok!(create(OWNER, params()));
        assert_eq!(Registry::run_ids(), [RunId(0), RunId(1)]);
    });
}

#[test]
fn a_seat_is_taken_with_its_stake_held_from_the_coldkey() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 30));
        assert_ok!(register(COLDKEY, Role::Validator, HOTKEY + 1, 60));
        assert_eq!(Balances::balance_on_hold(&HoldReason::Stake.into(), &COLDKEY), 90);
        assert_eq!(<Registry as Seats<u64>>::seat_of(RUN, &HOTKEY), Some((Uid(0), Role::Miner)));
        assert_eq!(<Registry as Seats<u64>>::seat_of(RUN, &(HOTKEY + 1)), Some((Uid(1), Role::Validator)));
        let seats = <Registry as Seats<u64>>::seats(RUN);
        assert_eq!(
            seats.iter().map(|(uid, seat)| (uid.0, seat.stake)).collect::<Vec<_>>(),
            [(0, 30), (1, 60)]
        );
        assert_eq!(seats[0].1.registered_at, Block(1));
    });
}

#[test]
fn an_endpoint_moves_and_a_stake_grows() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 30));
        assert_ok!(Registry::set_endpoint(RuntimeOrigin::signed(HOTKEY), RUN, url("https://elsewhere")));
        assert_ok!(Registry::add_stake(RuntimeOrigin::signed(COLDKEY), RUN, Uid(0), 12));
        let seat = <Registry as Seats<u64>>::seat(RUN, Uid(0)).unwrap();
        assert_eq!((seat.endpoint, seat.stake), (url("https://elsewhere"), 42));
        assert_eq!(Balances::balance_on_hold(&HoldReason::Stake.into(), &COLDKEY), 42);
        System::assert_last_event(
            Event::<Test>::StakeAdded { run: RUN, uid: Uid(0), amount: 12, stake: 42 }.into(),
        );
    });
}

#[test]
fn parameters_out_of_bounds_are_refused_by_name() {
    empty_chain().execute_with(|| {
        let good = params();
        let rates = |decay| RunParams { error_feedback_decay: F32Bits::of(decay), ..good };
        let refused = [
            (RunParams { schedule: Schedule { commit_by: 0, ..good.schedule }, ..good }, Error::BadSchedule),
            (RunParams { epoch_windows: 0, ..good }, Error::ZeroParameter),
            (RunParams { density: Density(0), ..good }, Error::BadDensity),
            (rates(f32::NAN), Error::BadRate),
            (RunParams { min_contributions: 9, ..good }, Error::BadPlaces),
            (RunParams { quorum: Permille(0), ..good }, Error::BadQuorum),
            (
                RunParams { shares: PayShares { owner: Permille(0), ..good.shares }, ..good },
                Error::<Test>::BadShares,
            ),
            (RunParams { checkpoint_windows: 65, ..good }, Error::CheckpointsTooRare),
        ];
        for (params, error) in refused {
            assert_noop!(create(OWNER, params), error);
        }
    });
}

#[test]
fn a_run_must_start_later_than_the_block_that_creates_it() {
    empty_chain().execute_with(|| {
        let at =
            |start| RunParams { schedule: Schedule { start: Block(start), ..params().schedule }, ..params() };
        assert_noop!(create(OWNER, at(1)), Error::<Test>::StartPassed);
        assert_ok!(create(OWNER, at(2)));
    });
}

#[test]
fn the_chain_carries_so_many_runs_and_no_more() {
    empty_chain().execute_with(|| {
        for _ in 0..3 {
            assert_ok!(create(OWNER, params()));
        }
        assert_noop!(create(OWNER, params()), Error::<Test>::TooManyRuns);
    });
}

#[test]
fn a_run_has_so_many_seats_and_no_more() {
    with_a_run(|| {
        for hotkey in 0..4 {
            assert_ok!(register(COLDKEY, Role::Miner, HOTKEY + hotkey, MINER_STAKE));
        }
        assert_noop!(register(COLDKEY, Role::Miner, HOTKEY + 4, MINER_STAKE), Error::<Test>::RunFull);
    });
}

#[test]
fn a_hotkey_holds_one_seat_in_a_run_but_may_hold_one_in_another() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, MINER_STAKE));
        let again = register(COLDKEY, Role::Validator, HOTKEY, VALIDATOR_STAKE);
        assert_noop!(again, Error::<Test>::HotkeyInUse);
        assert_ok!(create(OWNER, params()));
        let origin = RuntimeOrigin::signed(COLDKEY);
        assert_ok!(Registry::register(origin, RunId(1), Role::Miner, HOTKEY, url("http://a"), MINER_STAKE));
    });
}

#[test]
fn a_stake_is_at_least_the_minimum_of_the_role() {
    with_a_run(|| {
        assert_noop!(register(COLDKEY, Role::Miner, HOTKEY, MINER_STAKE - 1), Error::<Test>::StakeTooLow);
        let validator = |stake| register(COLDKEY, Role::Validator, HOTKEY, stake);
        assert_noop!(validator(VALIDATOR_STAKE - 1), Error::<Test>::StakeTooLow);
        assert_ok!(validator(VALIDATOR_STAKE));
    });
}

#[test]
fn nobody_stakes_or_deposits_what_they_do_not_have() {
    with_a_run(|| {
        assert_noop!(create(STRANGER, params()), Error::<Test>::NotEnoughFunds);
        assert_noop!(register(COLDKEY, Role::Miner, HOTKEY, 1_001), Error::<Test>::NotEnoughFunds);
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, 900));
        let more = |amount| Registry::add_stake(RuntimeOrigin::signed(COLDKEY), RUN, Uid(0), amount);
        assert_noop!(more(101), Error::<Test>::NotEnoughFunds);
        assert_noop!(more(Balance::MAX), Error::<Test>::StakeTooLarge);
    });
}

#[test]
fn what_does_not_exist_is_refused() {
    with_a_run(|| {
        let signed = RuntimeOrigin::signed;
        let seat = url("http://a");
        assert_noop!(
            Registry::register(signed(COLDKEY), RunId(7), Role::Miner, HOTKEY, seat.clone(), MINER_STAKE),
            Error::<Test>::UnknownRun
        );
        assert_noop!(
            Registry::set_endpoint(signed(HOTKEY), RunId(7), seat.clone()),
            Error::<Test>::UnknownRun
        );
        assert_noop!(Registry::add_stake(signed(COLDKEY), RunId(7), Uid(0), 1), Error::<Test>::UnknownRun);
        assert_noop!(Registry::set_endpoint(signed(HOTKEY), RUN, seat), Error::<Test>::NotASeat);
        assert_noop!(Registry::add_stake(signed(COLDKEY), RUN, Uid(0), 1), Error::<Test>::UnknownSeat);
    });
}

#[test]
fn only_the_coldkey_adds_stake_and_it_adds_something() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, MINER_STAKE));
        let add = |who, amount| Registry::add_stake(RuntimeOrigin::signed(who), RUN, Uid(0), amount);
        assert_noop!(add(HOTKEY, 1), Error::<Test>::NotTheColdkey);
        assert_noop!(add(3, 1), Error::<Test>::NotTheColdkey);
        assert_noop!(add(COLDKEY, 0), Error::<Test>::NothingToAdd);
    });
}

#[test]
fn an_unsigned_call_is_refused() {
    with_a_run(|| {
        let none = RuntimeOrigin::none;
        let digest = Digest([0; 32]);
        assert_noop!(
            Registry::create_run(none(), params(), digest, digest, digest, url("http://a")),
            DispatchError::BadOrigin
        );
        assert_noop!(
            Registry::register(none(), RUN, Role::Miner, HOTKEY, url("http://a"), MINER_STAKE),
            DispatchError::BadOrigin
        );
        assert_noop!(Registry::set_endpoint(none(), RUN, url("http://a")), DispatchError::BadOrigin);
        assert_noop!(Registry::add_stake(none(), RUN, Uid(0), 1), DispatchError::BadOrigin);
    });
}

#[test]
fn a_base_url_is_http_with_a_host_and_without_a_credential() {
    with_a_run(|| {
        assert_ok!(register(COLDKEY, Role::Miner, HOTKEY, MINER_STAKE));
        let set = |text: &str| Registry::set_endpoint(RuntimeOrigin::signed(HOTKEY), RUN, url(text));
        for good in ["http://127.0.0.1:9000/miner-0", "https://a", "http://[::1]:80/b"] {
            assert_ok!(set(good));
        }
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
            assert_noop!(set(bad), Error::<Test>::BadUrl);
        }
        let origin = RuntimeOrigin::signed(COLDKEY);
        assert_noop!(
            Registry::register(origin, RUN, Role::Miner, HOTKEY + 1, url("x"), MINER_STAKE),
            Error::<Test>::BadUrl
        );
        let digest = Digest([0; 32]);
        assert_noop!(
            Registry::create_run(RuntimeOrigin::signed(OWNER), params(), digest, digest, digest, url("x")),
            Error::<Test>::BadUrl
        );
    });
}

#[derive(Clone, Debug)]
enum Op {
    Create(u64),
    Register { who: u64, run: u32, validator: bool, hotkey: u64, stake: Balance },
    AddStake { who: u64, run: u32, uid: u16, amount: Balance },
    SetEndpoint { hotkey: u64, run: u32 },
}

fn op() -> impl Strategy<Value = Op> {
    let (who, hotkey, run, amount) = (1u64..7, 1000u64..1008, 0u32..4, 0u128..400);
    prop_oneof![
        who.clone().prop_map(Op::Create),
        (who.clone(), run.clone(), any::<bool>(), hotkey.clone(), amount.clone()).prop_map(
            |(who, run, validator, hotkey, stake)| Op::Register { who, run, validator, hotkey, stake }
        ),
        (who, run.clone(), 0u16..5, amount).prop_map(|(who, run, uid, amount)| Op::AddStake {
            who,
            run,
            uid,
            amount
        }),
        (hotkey, run).prop_map(|(hotkey, run)| Op::SetEndpoint { hotkey, run }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_called_seats_and_holds_agree(ops in proptest::collection::vec(op(), 0..40)) {
        empty_chain().execute_with(|| {
            let issuance = Balances::total_issuance();
            for op in ops {
                let signed = RuntimeOrigin::signed;
                let _ = match op {
                    Op::Create(who) => create(who, params()),
                    Op::Register { who, run, validator, hotkey, stake } => {
                        let role = if validator { Role::Validator } else { Role::Miner };
                        Registry::register(signed(who), RunId(run), role, hotkey, url("http://a"), stake)
                    }
                    Op::AddStake { who, run, uid, amount } => {
                        Registry::add_stake(signed(who), RunId(run), Uid(uid), amount)
                    }
                    Op::SetEndpoint { hotkey, run } => {
                        Registry::set_endpoint(signed(hotkey), RunId(run), url("http://b"))
                    }
                };
                Registry::check_invariants().unwrap();
            }
            assert_eq!(Balances::total_issuance(), issuance);
        });
    }
}
