//! The registry and the windows pallet, with an epochs pallet that records its calls.

use crate::{self as pallet_windows, Epochs, Event, Member};
use ed25519_dalek::SigningKey;
use frame::{
    deps::{sp_core::H256, sp_runtime::AccountId32},
    testing_prelude::*,
};
use pallet_mock::pallet_balances;
use pallet_registry::{Balance, MinerWeights, Nominations, Url};
use protocol::{
    Block as Height, Digest, Hotkey, Role, RunId, RunParams, Schedule, SeatId, Terms, Uid, Window,
    identity::{Signature, Signer},
    params::Permille,
    reveal,
    statement::{SignedStatement, Statement, StatementKind},
    view::{Outcome, Verdict, Vote, WindowView},
};
use std::collections::BTreeMap;

pallet_mock::runtime! {
    account: AccountId32, deposit: 1, db_weight: frame::weights_prelude::RocksDbWeight;
    2 Registry: pallet_registry,
    3 Windows: pallet_windows,
}

pallet_mock::registry! {
    on_run_created: Windows, on_run_closed: Windows, on_seats: Windows, nominations: Nominated, payslips: (),
    miner_weights: RecordedEpochs, hotkey: pallet_registry::Ed25519
}

impl pallet_windows::Config for Test {
    type Epochs = RecordedEpochs;
    type KeptWindows = ConstU32<64>;
    type MaxTaskWeight = TaskBudget;
}

parameter_types! {
    pub static StandingWeights: Vec<(Uid, u16)> = Vec::new();
    pub static Closed: Vec<(RunId, u32, Vec<Member>)> = Vec::new();
    /// Merged windows of each closed epoch.
    pub static Merged: Vec<u32> = Vec::new();
    /// Nominations by validator.
    pub static Behind: BTreeMap<Uid, Balance> = BTreeMap::new();
    pub static TaskBudget: Weight = Weight::MAX;
}

/// Nominations set by a test.
pub struct Nominated;

impl Nominations<AccountId32> for Nominated {
    fn behind(_: RunId, uid: Uid) -> Balance {
        Behind::get().get(&uid).copied().unwrap_or(0)
    }
    fn share_pay(_: RunId, _: SeatId, _: Balance, _: Balance, _: &AccountId32) -> Balance {
        0
    }
    fn slash(_: RunId, _: SeatId, _: Permille) -> Balance {
        0
    }
}

/// An epochs pallet with weights set by a test, which records each close.
pub struct RecordedEpochs;

impl MinerWeights for RecordedEpochs {
    fn weights(_: RunId) -> Vec<(Uid, u16)> {
        StandingWeights::get()
    }
}

impl Epochs for RecordedEpochs {
    fn close(run: RunId, epoch: u32, merged: u32, active_set: &[Member]) -> Weight {
        Closed::mutate(|closed| closed.push((run, epoch, active_set.to_vec())));
        Merged::mutate(|of| of.push(merged));
        Weight::zero()
    }
}

pub const RUN: RunId = RunId(0);
/// Seats 0, 1 and 2 mine; seats 3, 4 and 5 validate. Later registrations follow.
pub const MINERS: [u16; 3] = [0, 1, 2];
pub const VALIDATORS: [u16; 3] = [3, 4, 5];
pub const STAKE: Balance = 100;
pub const COLDKEY: AccountId32 = AccountId32::new([1; 32]);
pub const REPORTER: AccountId32 = AccountId32::new([2; 32]);

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
        min_contributions: 1,
        localnet: true,
        ..RunParams::default()
    }
}

/// Attestations are revealed at offsets 15 and 16, votes committed at 17 and 18 and revealed at 19 and 20.
pub fn hidden_params() -> RunParams {
    let schedule = Schedule { blocks_per_window: 24, vote_by: 18, ..SCHEDULE };
    RunParams { schedule, hidden_blocks: 2, ..params() }
}

pub fn terms() -> Terms {
    Terms {
        active_set_max: 8,
        absence_windows: 2,
        quorum: Permille(500),
        validator_stake_min: STAKE,
        miner_stake_min: 1,
        miner_seats_max: 1024,
        validator_seats_max: 64,
        seat_price_min: 0,
        equivocation_slash: Permille(100),
        ..Terms::default()
    }
}

pub fn key(uid: u16) -> SigningKey {
    let mut secret = [7; 32];
    secret[..2].copy_from_slice(&uid.to_le_bytes());
    SigningKey::from_bytes(&secret)
}

pub fn hotkey(uid: u16) -> AccountId32 {
    AccountId32::new(key(uid).verifying_key().to_bytes())
}

pub fn signed(uid: u16) -> RuntimeOrigin {
    RuntimeOrigin::signed(hotkey(uid))
}

pub fn digest(byte: u8) -> Digest {
    Digest([byte; 32])
}

/// Returns the test hash of block `number`.
pub fn hash_of(number: u64) -> H256 {
    H256::from_low_u64_be(0xb10c_0000 + number)
}

pub fn url() -> Url {
    b"http://10.0.0.1/seat".to_vec().try_into().unwrap()
}

pub fn create_run(params: RunParams, terms: Terms) {
    let signed = RuntimeOrigin::signed(COLDKEY);
    assert_ok!(Registry::create_run(signed, params, terms, digest(1), digest(2), digest(3), url()));
}

pub fn register(run: RunId, role: Role, stake: Balance) -> u16 {
    // The lowest free uid.
    let roster = pallet_registry::Rosters::<Test>::get(run);
    let uid = roster.iter().position(Option::is_none).unwrap_or(roster.len()) as u16;
    let signed = RuntimeOrigin::signed(COLDKEY);
    assert_ok!(Registry::register(
        signed,
        run,
        role,
        hotkey(uid),
        url(),
        stake,
        Balance::MAX,
        proof(uid, run)
    ));
    uid
}

/// Registers a validator with the hotkey of `key`, independent of its uid.
pub fn validate_with(key: u16, stake: Balance) -> DispatchResult {
    let (signed, proof) = (RuntimeOrigin::signed(COLDKEY), proof(key, RUN));
    let taken =
        Registry::register(signed, RUN, Role::Validator, hotkey(key), url(), stake, Balance::MAX, proof);
    taken.map(|_| ()).map_err(|error| error.error)
}

/// Returns the consent of the hotkey of `uid` to hold a seat for [`COLDKEY`].
pub fn proof(uid: u16, run: RunId) -> Signature {
    signer(uid).prove_possession(run, &COLDKEY.into())
}

/// Builds a chain at block 1 without a run.
pub fn chain() -> TestState {
    let mut chain = pallet_mock::chain::<Test>(vec![(COLDKEY, 1_000_000_000_000), (REPORTER, 1_000)]);
    chain.execute_with(|| {
        StandingWeights::set(Vec::new());
        Closed::set(Vec::new());
        Merged::set(Vec::new());
        Behind::set(BTreeMap::new());
        TaskBudget::set(Weight::MAX);
        go_to_block(1);
    });
    chain
}

/// Runs `story` with one run, three miners, and three validators of equal stake.
pub fn with_run(params: RunParams, story: impl FnOnce()) {
    with_terms(params, terms(), story);
}

pub fn with_terms(params: RunParams, terms: Terms, story: impl FnOnce()) {
    chain().execute_with(|| {
        create_run(params, terms);
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

/// Produces blocks up to `number`, and checks the invariants at each.
pub fn go_to_block(number: u64) {
    let hooks = RunToBlockHooks::default()
        .before_initialize(|number: u64| {
            frame_system::BlockHash::<Test>::insert(number - 1, hash_of(number - 1))
        })
        .after_initialize(|_| Windows::check_invariants().unwrap());
    System::run_to_block_with::<AllPalletsWithSystem>(number, hooks);
}

/// Produces blocks up to `offset` in `window` of the run.
pub fn go_to(window: u32, offset: u32) {
    let schedule = pallet_registry::Runs::<Test>::get(RUN).unwrap().params.schedule;
    go_to_block(u64::from(schedule.opens_at(Window(window)).0 + offset));
}

pub fn commit(uid: u16, window: u32, of: u8) -> DispatchResult {
    Windows::commit(signed(uid), RUN, Window(window), digest(of))
}

pub fn verdicts(of: &[(u16, Verdict)]) -> pallet_windows::Verdicts<Test> {
    of.iter().map(|(uid, verdict)| (Uid(*uid), *verdict)).collect::<Vec<_>>().try_into().unwrap()
}

pub fn attest(uid: u16, window: u32, of: &[(u16, Verdict)]) -> DispatchResult {
    Windows::attest(signed(uid), RUN, Window(window), verdicts(of), digest(uid as u8))
}

pub fn ballot(update: u8, state_root: Option<u8>) -> Vote {
    Vote { update: digest(update), state_root: state_root.map(digest) }
}

pub fn vote(uid: u16, window: u32, update: u8, state_root: Option<u8>) -> DispatchResult {
    Windows::vote(signed(uid), RUN, Window(window), ballot(update, state_root))
}

pub fn public(uid: u16) -> Hotkey {
    Hotkey(hotkey(uid).into())
}

/// Returns the test salt of `uid`.
pub fn salt(uid: u16) -> [u8; 32] {
    [uid as u8 + 100; 32]
}

pub fn attest_hidden(uid: u16, window: u32, of: &[(u16, Verdict)]) -> DispatchResult {
    let hash = reveal::commitment(&verdicts(of), &salt(uid), &public(uid));
    Windows::attest_hidden(signed(uid), RUN, Window(window), hash, digest(uid as u8))
}

pub fn reveal_attestation(uid: u16, window: u32, of: &[(u16, Verdict)]) -> DispatchResult {
    Windows::reveal_attestation(signed(uid), RUN, Window(window), verdicts(of), salt(uid))
}

pub fn vote_hidden(uid: u16, window: u32, update: u8) -> DispatchResult {
    let hash = reveal::commitment(&ballot(update, None), &salt(uid), &public(uid));
    Windows::vote_hidden(signed(uid), RUN, Window(window), hash)
}

pub fn reveal_vote(uid: u16, window: u32, update: u8) -> DispatchResult {
    Windows::reveal_vote(signed(uid), RUN, Window(window), ballot(update, None), salt(uid))
}

/// Returns the hotkey of `uid` as a signer for this chain.
pub fn signer(uid: u16) -> Signer {
    Signer::new(key(uid), Registry::genesis())
}

/// Returns a statement that `uid` signs off the chain.
pub fn statement(uid: u16, window: u32, kind: StatementKind, digest: Digest) -> SignedStatement {
    Statement { run: RUN, window: Window(window), uid: Uid(uid), kind, digest }.sign(&signer(uid))
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

/// Plays `window` until it is finalised: all miners commit; the validators in `present` attest everything as valid
/// and vote the same.
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

/// Returns the pallet's own events.
pub fn events() -> Vec<Event<Test>> {
    let own = |event| match event {
        RuntimeEvent::Windows(event) => Some(event),
        _ => None,
    };
    System::events().into_iter().filter_map(|record| own(record.event)).collect()
}
