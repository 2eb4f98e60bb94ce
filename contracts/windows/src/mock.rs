//! A chain with the real registry, the windows pallet, and epochs that only write down what they are told.

use crate::{self as pallet_windows, Epochs, Event, Member};
use frame::{deps::sp_core::H256, testing_prelude::*};
use pallet_registry::{Balance, Url};
use protocol::{
    Block as Height, Digest, Role, RunId, RunParams, Schedule, Uid, Window,
    params::Permille,
    view::{Outcome, Verdict, Vote, WindowView},
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
}

#[derive_impl(frame_system::config_preludes::TestDefaultConfig)]
impl frame_system::Config for Test {
    type Block = MockBlock<Test>;
    type AccountData = pallet_balances::AccountData<Balance>;
    type DbWeight = frame::weights_prelude::RocksDbWeight;
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
    type WeightInfo = ();
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<16>;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = ConstU128<0>;
}

impl pallet_windows::Config for Test {
    type Registry = Registry;
    type Epochs = Notebook;
    type WeightInfo = pallet_windows::weights::CountedByHand<Test>;
    type MaxRuns = ConstU32<4>;
    type MaxSeats = ConstU32<16>;
    type KeptWindows = ConstU32<64>;
}

parameter_types! {
    pub static StandingWeights: Vec<(Uid, u16)> = Vec::new();
    pub static Closed: Vec<(RunId, u32, Vec<Member>)> = Vec::new();
}

/// Epochs whose weights a test sets, and whose closings it reads.
pub struct Notebook;

impl Epochs for Notebook {
    fn weights(_: RunId) -> Vec<(Uid, u16)> {
        StandingWeights::get()
    }

    fn close(run: RunId, epoch: u32, electorate: &[Member]) -> Weight {
        Closed::mutate(|closed| closed.push((run, epoch, electorate.to_vec())));
        Weight::zero()
    }
}

pub const RUN: RunId = RunId(0);
/// Miners are the seats 0, 1 and 2, validators the seats 3, 4 and 5; whoever registers later comes after.
pub const MINERS: [u16; 3] = [0, 1, 2];
pub const VALIDATORS: [u16; 3] = [3, 4, 5];
pub const STAKE: Balance = 100;
const COLDKEY: u64 = 1;

pub const SCHEDULE: Schedule = Schedule {
    start: Height(10),
    blocks_per_window: 20,
    commit_by: 8,
    reveal_by: 11,
    attest_by: 14,
    vote_by: 17,
};

pub fn params() -> RunParams {
    RunParams {
        schedule: SCHEDULE,
        epoch_windows: 5,
        sequences_per_seat: 7,
        checkpoint_windows: 3,
        electorate_max: 8,
        absence_windows: 2,
        quorum: Permille(500),
        min_contributions: 1,
        validator_stake_min: STAKE,
        miner_stake_min: 1,
        ..RunParams::default()
    }
}

pub fn hotkey(uid: u16) -> u64 {
    1000 + u64::from(uid)
}

pub fn signed(uid: u16) -> RuntimeOrigin {
    RuntimeOrigin::signed(hotkey(uid))
}

pub fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

/// The hash that block `number` has in these tests.
pub fn hash_of(number: u64) -> H256 {
    H256::from_low_u64_be(0xb10c_0000 + number)
}

pub fn url() -> Url {
    b"http://10.0.0.1/seat".to_vec().try_into().unwrap()
}

pub fn create_run(params: RunParams) {
    let signed = RuntimeOrigin::signed(COLDKEY);
    assert_ok!(Registry::create_run(signed, params, digest(1), digest(2), digest(3), url()));
}

pub fn register(run: RunId, role: Role, stake: Balance) -> u16 {
    let uid = pallet_registry::SeatCount::<Test>::get(run) as u16;
    let signed = RuntimeOrigin::signed(COLDKEY);
    assert_ok!(Registry::register(signed, run, role, hotkey(uid), url(), stake));
    uid
}

/// A chain at block 1 without a run.
pub fn chain() -> TestState {
    let mut storage = frame_system::GenesisConfig::<Test>::default().build_storage().unwrap();
    let balances = vec![(COLDKEY, 1_000_000_000)];
    pallet_balances::GenesisConfig::<Test> { balances, ..Default::default() }
        .assimilate_storage(&mut storage)
        .unwrap();
    let mut chain: TestState = storage.into();
    chain.execute_with(|| {
        StandingWeights::set(Vec::new());
        Closed::set(Vec::new());
        go_to_block(1);
    });
    chain
}

/// Tells `story` on a chain with one run of these parameters, three miners, and three validators of equal stake.
pub fn with_run(params: RunParams, story: impl FnOnce()) {
    chain().execute_with(|| {
        create_run(params);
        for _ in MINERS {
            register(RUN, Role::Miner, 1);
        }
        for _ in VALIDATORS {
            register(RUN, Role::Validator, STAKE);
        }
        story();
        Windows::check_invariants().unwrap();
        Registry::check_invariants().unwrap();
    });
}

/// Makes blocks up to `number`. Invariants hold at each.
pub fn go_to_block(number: u64) {
    let hooks = RunToBlockHooks::default()
        .before_initialize(|number: u64| System::set_parent_hash(hash_of(number - 1)))
        .after_initialize(|_| Windows::check_invariants().unwrap());
    System::run_to_block_with::<AllPalletsWithSystem>(number, hooks);
}

/// Makes blocks up to `offset` in `window` of a run with the schedule of these tests.
pub fn go_to(window: u32, offset: u32) {
    go_to_block(u64::from(SCHEDULE.opens_at(Window(window)).0 + offset));
}

pub fn commit(uid: u16, window: u32, of: u8) -> DispatchResult {
    Windows::commit(signed(uid), RUN, Window(window), digest(of))
}

pub fn attest(uid: u16, window: u32, verdicts: &[(u16, Verdict)]) -> DispatchResult {
    let verdicts: Vec<_> = verdicts.iter().map(|(uid, verdict)| (Uid(*uid), *verdict)).collect();
    let salt = digest(uid as u8);
    Windows::attest(signed(uid), RUN, Window(window), verdicts.try_into().unwrap(), salt)
}

pub fn vote(uid: u16, window: u32, update: u8, state_root: Option<u8>) -> DispatchResult {
    let vote = Vote { update: digest(update), state_root: state_root.map(digest) };
    Windows::vote(signed(uid), RUN, Window(window), vote)
}

pub fn view(window: u32) -> WindowView {
    Windows::window_view(RUN, Window(window)).unwrap()
}

pub fn outcome(window: u32) -> Option<Outcome> {
    view(window).outcome
}

pub fn selected(window: u32) -> Vec<u16> {
    view(window).selection.unwrap().selected.iter().map(|seat| seat.uid.0).collect()
}

/// Plays `window` up to the block at which it is fixed: all miners commit, and of the validators those in `present`
/// find everything valid and vote the same.
pub fn play(window: u32, present: &[u16]) {
    go_to(window, 1);
    for uid in MINERS {
        assert_ok!(commit(uid, window, uid as u8));
    }
    go_to(window, SCHEDULE.commit_by + 1);
    let valid: Vec<_> = MINERS.iter().map(|uid| (*uid, Verdict::Valid)).collect();
    for uid in present {
        assert_ok!(attest(*uid, window, &valid));
    }
    go_to(window, SCHEDULE.attest_by + 1);
    let state_root = params().is_checkpoint(Window(window)).then_some(77);
    for uid in present {
        let _ = vote(*uid, window, 50 + window as u8, state_root);
    }
    go_to(window, SCHEDULE.vote_by + 1);
}

/// The pallet's own events so far.
pub fn events() -> Vec<Event<Test>> {
    let own = |event| match event {
        RuntimeEvent::Windows(event) => Some(event),
        _ => None,
    };
    System::events().into_iter().filter_map(|record| own(record.event)).collect()
}
