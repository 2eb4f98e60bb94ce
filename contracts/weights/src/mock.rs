//! The registry, the windows and the weights pallets, with a payroll that records its calls.

use crate::{self as pallet_weights, Departed, Payroll, SeatWeights};
use frame::{
    deps::{sp_core::H256, sp_runtime::AccountId32},
    testing_prelude::*,
};
use pallet_mock::{consent, pallet_balances};
use pallet_registry::{Balance, Url};
use protocol::{Block, Digest, Role, RunId, RunParams, Schedule, Terms, Uid, consensus::Consensus, reveal};

pallet_mock::runtime! {
    account: AccountId32, deposit: 1;
    2 Registry: pallet_registry,
    3 Windows: pallet_windows,
    4 Weights: pallet_weights,
}

pallet_mock::registry! {
    on_run_created: Windows, on_run_closed: (Weights, Windows), on_seats: (Weights, Windows), nominations: (),
    payslips: (), miner_weights: Weights, hotkey: Consents
}

pallet_mock::consents!(AccountId32, pallet_registry::HotkeyProof<AccountId32>);

parameter_types! {
    pub static Paid: Vec<(RunId, u32, Consensus)> = Vec::new();
    /// Departed seats of the last payment.
    pub static Left: Vec<Departed<AccountId32>> = Vec::new();
    pub const TaskBudget: Weight = Weight::MAX;
}

impl pallet_windows::Config for Test {
    type Epochs = Weights;
    type KeptWindows = ConstU32<64>;
    type MaxTaskWeight = TaskBudget;
}

impl pallet_weights::Config for Test {
    type Payroll = Payslips;
    type Members = Windows;
    type Probes = Windows;
}

/// A payroll that records its calls.
pub struct Payslips;

impl Payroll<AccountId32> for Payslips {
    fn pay(
        run: RunId,
        epoch: u32,
        _merged: u32,
        consensus: &Consensus,
        departed: &[Departed<AccountId32>],
    ) -> Weight {
        Paid::mutate(|paid| paid.push((run, epoch, consensus.clone())));
        Left::set(departed.to_vec());
        Weight::zero()
    }
}

pub const RUN: RunId = RunId(0);
pub const COLDKEY: AccountId32 = AccountId32::new([1; 32]);
/// Seats 0 to 2 mine; seats 3 to 5 validate with equal stakes.
pub const STAKE: Balance = 100;
pub const VALIDATORS: [u16; 3] = [3, 4, 5];
/// Two epochs of two windows of five blocks: epoch 0 is blocks 10 to 19, revealed in blocks 20 to 24, closed at block
/// 25.
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

/// Returns the test salt of `uid`.
pub fn salt(uid: u16) -> [u8; 32] {
    [uid as u8; 32]
}

pub fn register(role: Role, key: u16) {
    let url: Url = b"http://a".to_vec().try_into().unwrap();
    let stake = if role == Role::Miner { 1 } else { STAKE };
    let proof = consent(&hotkey(key), RUN, &COLDKEY);
    assert_ok!(Registry::register(coldkey(), RUN, role, hotkey(key), url, stake, Balance::MAX, proof));
}

pub fn empty_chain() -> TestState {
    pallet_mock::chain::<Test>(vec![(COLDKEY, 1_000_000)])
}

pub fn with_run(story: impl FnOnce()) {
    with_params(params(), story);
}

/// Runs `story` with one run, three miners and three validators.
pub fn with_params(params: RunParams, story: impl FnOnce()) {
    empty_chain().execute_with(|| {
        Paid::set(Vec::new());
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

/// Produces blocks up to `number`, each with a hash: without the opening's hash a window is void.
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
    reveal::commitment(&weights(of), &salt(uid), &protocol::Hotkey(hotkey(uid).into()))
}

pub fn commit(uid: u16, epoch: u32, of: &[(u16, u16)]) -> DispatchResult {
    Weights::commit(signed(uid), RUN, epoch, hash(uid, of))
}

pub fn reveal(uid: u16, epoch: u32, of: &[(u16, u16)]) -> DispatchResult {
    Weights::reveal(signed(uid), RUN, epoch, weights(of), salt(uid))
}

/// Attests the open window, so that the validator is not absent.
pub fn attest(uid: u16) -> DispatchResult {
    let window = SCHEDULE.window_at(Block(System::block_number() as u32)).unwrap();
    Windows::attest(signed(uid), RUN, window, Default::default(), Digest([0; 32]))
}
