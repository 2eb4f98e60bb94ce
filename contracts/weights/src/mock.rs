//! A chain with the real registry and windows, and a payroll that only writes down what it is told.

use crate::{self as pallet_weights, Departed, Payroll, SeatWeights};
use frame::{
    deps::{
        sp_core::H256,
        sp_runtime::{AccountId32, traits::IdentityLookup},
    },
    prelude::fungible::Mutate as _,
    testing_prelude::*,
};
use pallet_registry::{Balance, Url};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, consensus::Consensus, reveal,
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
    pub type Windows = pallet_windows::Pallet<Test>;
    #[runtime::pallet_index(4)]
    pub type Weights = pallet_weights::Pallet<Test>;
}

#[derive_impl(frame_system::config_preludes::TestDefaultConfig)]
impl frame_system::Config for Test {
    type Block = MockBlock<Test>;
    type AccountId = AccountId32;
    type Lookup = IdentityLookup<AccountId32>;
    type AccountData = pallet_balances::AccountData<Balance>;
}

#[derive_impl(pallet_balances::config_preludes::TestDefaultConfig)]
impl pallet_balances::Config for Test {
    type Balance = Balance;
    type AccountStore = System;
}

impl pallet_registry::Config for Test {
    type Currency = Balances;
    type RuntimeHoldReason = RuntimeHoldReason;
    type OnRunCreated = Windows;
    type OnSeats = (Weights, Windows);
    type Nominations = ();
    type Payslips = ();
    type WeightInfo = ();
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<1088>;
    type MaxChanges = ConstU32<64>;
    type MaxUnbonding = ConstU32<8>;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = ConstU128<0>;
}

parameter_types! {
    pub static Paid: Vec<(RunId, u32, Consensus)> = Vec::new();
    /// Who had left when an epoch was last paid.
    pub static Left: Vec<Departed<AccountId32>> = Vec::new();
    pub const StepBudget: Weight = Weight::MAX;
}

impl pallet_windows::Config for Test {
    type Registry = Registry;
    type Nominations = ();
    type HotkeyOf = AccountIsHotkey;
    type Epochs = Weights;
    type WeightInfo = ();
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<1088>;
    type KeptWindows = ConstU32<64>;
    type MaxStepWeight = StepBudget;
}

impl pallet_weights::Config for Test {
    type Registry = Registry;
    type HotkeyOf = AccountIsHotkey;
    type Payroll = Payslips;
    type Members = Windows;
    type WeightInfo = ();
    type MaxSeats = ConstU32<1088>;
}

/// As on the real chain: a hotkey's account is its public key.
pub struct AccountIsHotkey;

impl Convert<AccountId32, Hotkey> for AccountIsHotkey {
    fn convert(account: AccountId32) -> Hotkey {
        Hotkey(account.into())
    }
}

impl ConvertBack<AccountId32, Hotkey> for AccountIsHotkey {
    fn convert_back(hotkey: Hotkey) -> AccountId32 {
        AccountId32::new(hotkey.0)
    }
}

/// A payroll that only writes down what it is told.
pub struct Payslips;

impl Payroll<AccountId32> for Payslips {
    fn pay(run: RunId, epoch: u32, consensus: &Consensus, departed: &[Departed<AccountId32>]) -> Weight {
        Paid::mutate(|paid| paid.push((run, epoch, consensus.clone())));
        Left::set(departed.to_vec());
        Weight::zero()
    }
}

pub const RUN: RunId = RunId(0);
pub const COLDKEY: AccountId32 = AccountId32::new([1; 32]);
/// Seats 0 to 2 mine, seats 3 to 5 validate with equal stakes.
pub const STAKE: Balance = 100;
pub const VALIDATORS: [u16; 3] = [3, 4, 5];
/// Windows of five blocks, two an epoch: epoch 0 is blocks 10 to 19, revealed in blocks 20 to 24 and closed by block 25.
pub const SCHEDULE: Schedule =
    Schedule { start: Block(10), blocks_per_window: 5, commit_by: 1, reveal_by: 2, attest_by: 3, vote_by: 4 };

pub fn params() -> RunParams {
    RunParams { schedule: SCHEDULE, epoch_windows: 2, reveal_windows: 1, ..RunParams::default() }
}

pub fn hotkey(uid: u16) -> AccountId32 {
    let mut key = [9; 32];
    key[..2].copy_from_slice(&uid.to_le_bytes());
    AccountId32::new(key)
}

pub fn signed(uid: u16) -> RuntimeOrigin {
    RuntimeOrigin::signed(hotkey(uid))
}

pub fn coldkey() -> RuntimeOrigin {
    RuntimeOrigin::signed(COLDKEY)
}

/// The salt with which `uid` hides its ballots in these tests.
pub fn salt(uid: u16) -> [u8; 32] {
    [uid as u8; 32]
}

pub fn register(role: Role, key: u16) {
    let url: Url = b"http://a".to_vec().try_into().unwrap();
    let stake = if role == Role::Miner { 1 } else { STAKE };
    assert_ok!(Registry::register(coldkey(), RUN, role, hotkey(key), url, stake, Balance::MAX));
}

pub fn empty_chain() -> TestState {
    frame_system::GenesisConfig::<Test>::default().build_storage().unwrap().into()
}

pub fn with_run(story: impl FnOnce()) {
    with_params(params(), story);
}

/// Tells `story` on a chain with one run of three miners and three validators.
pub fn with_params(params: RunParams, story: impl FnOnce()) {
    empty_chain().execute_with(|| {
        Paid::set(Vec::new());
        System::set_block_number(1);
        Balances::mint_into(&COLDKEY, 1_000_000).unwrap();
        let terms = Terms {
            validator_stake_min: STAKE,
            miner_stake_min: 1,
            miner_seats_max: 8,
            validator_seats_max: 8,
            seat_price_min: 0,
            unbonding_windows: 1,
            ..Terms::default()
        };
        let url: Url = b"http://a".to_vec().try_into().unwrap();
        let digest = Digest([0; 32]);
        assert_ok!(Registry::create_run(coldkey(), params, terms, digest, digest, digest, url));
        for uid in 0..6 {
            register(if uid < 3 { Role::Miner } else { Role::Validator }, uid);
        }
        story();
        check();
    });
}

pub fn check() {
    Weights::check_invariants().unwrap();
    Windows::check_invariants().unwrap();
    Registry::check_invariants().unwrap();
}

/// Makes blocks up to `number`, each with a hash: where its opening has none, a window is void.
pub fn go_to_block(number: u64) {
    let hooks = RunToBlockHooks::default().before_initialize(|number: u64| {
        frame_system::BlockHash::<Test>::insert(number - 1, H256::repeat_byte(number as u8 | 1))
    });
    System::run_to_block_with::<AllPalletsWithSystem>(number, hooks);
    check();
}

pub fn weights(of: &[(u16, u16)]) -> SeatWeights<Test> {
    of.iter().map(|(uid, weight)| (Uid(*uid), *weight)).collect::<Vec<_>>().try_into().unwrap()
}

pub fn hash(uid: u16, of: &[(u16, u16)]) -> Digest {
    reveal::commitment(&weights(of), &salt(uid), &AccountIsHotkey::convert(hotkey(uid)))
}

pub fn commit(uid: u16, epoch: u32, of: &[(u16, u16)]) -> DispatchResult {
    Weights::commit(signed(uid), RUN, epoch, hash(uid, of))
}

pub fn reveal(uid: u16, epoch: u32, of: &[(u16, u16)]) -> DispatchResult {
    Weights::reveal(signed(uid), RUN, epoch, weights(of), salt(uid))
}

/// Attests the window that is open, so that the validator is not absent.
pub fn attest(uid: u16) -> DispatchResult {
    let window = SCHEDULE.window_at(Block(System::block_number() as u32)).unwrap();
    Windows::attest(signed(uid), RUN, window, Default::default(), Digest([0; 32]))
}
