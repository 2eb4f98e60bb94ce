//! The registry with test doubles for the other pallets.

use crate::{self as pallet_registry, *};
use frame::testing_prelude::*;
use pallet_mock::{consent, pallet_balances};
use protocol::{Schedule, params::TermsLimits};
use std::collections::BTreeMap;

pallet_mock::runtime! {
    account: u64, deposit: EXISTENTIAL_DEPOSIT;
    2 Registry: pallet_registry,
}

pallet_mock::consents!(u64, HotkeyProof<u64>);

impl Config for Test {
    type Currency = Balances;
    type RuntimeHoldReason = RuntimeHoldReason;
    type Hotkey = Consents;
    type OnRunCreated = ();
    type OnRunClosed = ();
    type OnSeats = Others;
    type Nominations = Others;
    type Payslips = Others;
    type MinerWeights = Others;
    type MaxRuns = ConstU32<3>;
    type MaxSeats = ConstU32<8>;
    type MaxChanges = ConstU32<4>;
    type MaxUnbonding = ConstU32<3>;
    type MaxCheckpointWindows = ConstU32<64>;
    type RunDeposit = ConstU128<100>;
    type RateDeposit = ConstU128<0>;
    type DefaultFloors = NoFloors;
}

parameter_types! {
    pub const NoFloors: protocol::params::Floors = protocol::params::Floors::NONE;
    /// Recent pay of the seats of run 0.
    pub static Paid: BTreeMap<u16, Balance> = BTreeMap::new();
    /// Consensus weights of the seats.
    pub static Weighted: Vec<(Uid, u16)> = Vec::new();
    /// Treasury of the run.
    pub static Treasury: Balance = 0;
    /// Nominations of the seats.
    pub static Behind: BTreeMap<u16, Balance> = BTreeMap::new();
    /// Seats reported as vacated.
    pub static Gone: Vec<(RunId, SeatId)> = Vec::new();
}

/// Test double for the other pallets.
pub struct Others;

impl Payslips for Others {
    fn recent_pay(_: RunId, uid: Uid) -> Balance {
        Paid::get().get(&uid.0).copied().unwrap_or(0)
    }
    fn treasury(_: RunId) -> Balance {
        Treasury::get()
    }
}

impl MinerWeights for Others {
    fn weights(_: RunId) -> Vec<(Uid, u16)> {
        Weighted::get()
    }
}

impl OnSeats<u64> for Others {
    fn vacated(run: RunId, uid: Uid, seat: &Seat<u64>, _: Ending) -> Weight {
        Gone::mutate(|gone| gone.push((run, seat.id(uid))));
        Weight::from_parts(1, 0)
    }
}

impl Nominations<u64> for Others {
    fn behind(_: RunId, uid: Uid) -> Balance {
        Behind::get().get(&uid.0).copied().unwrap_or(0)
    }
    fn share_pay(_: RunId, _: SeatId, _: Balance, _: Balance, _: &u64) -> Balance {
        0
    }
    /// These tests have no nominations of former seats.
    fn slash(_: RunId, id: SeatId, share: Permille) -> Balance {
        let uid = id.uid;
        if SeatsOf::<Test>::get(RUN, uid).is_none_or(|seat| seat.id(uid) != id) {
            return 0;
        }
        let taken = Self::behind(RUN, uid) * Balance::from(share.0) / 1000;
        Behind::mutate(|behind| {
            behind.entry(uid.0).and_modify(|amount| *amount -= taken);
        });
        taken
    }
}

pub const EXISTENTIAL_DEPOSIT: Balance = 5;
pub const OWNER: u64 = 1;
pub const COLDKEY: u64 = 2;
pub const OTHER: u64 = 3;
pub const STRANGER: u64 = 9;
pub const HOTKEY: u64 = 1000;
pub const MINER_STAKE: Balance = 10;
pub const VALIDATOR_STAKE: Balance = 50;
pub const RUN: RunId = RunId(0);

/// Window 0 opens at block 5, an epoch has three windows.
pub fn params() -> RunParams {
    let schedule = Schedule { start: Block(5), ..RunParams::default().schedule };
    let limits = TermsLimits { unbonding_windows: 99_999, ..TermsLimits::default() };
    RunParams { schedule, epoch_windows: 3, limits, ..RunParams::default() }
}

/// Three miners, two validators; immunity of four windows, unbonding of five, no price.
pub fn terms() -> Terms {
    Terms {
        miner_stake_min: MINER_STAKE,
        validator_stake_min: VALIDATOR_STAKE,
        miner_seats_max: 3,
        validator_seats_max: 2,
        immunity_windows: 4,
        unbonding_windows: 5,
        seat_price_min: 0,
        ..Terms::default()
    }
}

pub fn url(text: &str) -> Url {
    text.as_bytes().to_vec().try_into().unwrap()
}

pub fn signed(who: u64) -> RuntimeOrigin {
    RuntimeOrigin::signed(who)
}

pub fn create(who: u64, params: RunParams, terms: Terms) -> DispatchResult {
    let digest = |byte| Digest([byte; 32]);
    let origin = url("http://origin.example/run");
    Registry::create_run(signed(who), params, terms, digest(1), digest(2), digest(3), origin)
}

pub fn register(who: u64, role: Role, hotkey: u64, stake: Balance) -> DispatchResult {
    let endpoint = url("http://10.0.0.1:9000/seat");
    register_in(who, RUN, role, hotkey, endpoint, stake, Balance::MAX)
}

/// Registers `hotkey` with its consent.
pub fn register_in(
    who: u64,
    run: RunId,
    role: Role,
    hotkey: u64,
    endpoint: Url,
    stake: Balance,
    price_max: Balance,
) -> DispatchResult {
    let proof = consent(&hotkey, run, &who);
    let taken = Registry::register(signed(who), run, role, hotkey, endpoint, stake, price_max, proof);
    taken.map(|_| ()).map_err(|error| error.error)
}

/// Requests `hotkey` for a seat, with its consent.
pub fn rotate_in(who: u64, run: RunId, uid: u16, hotkey: u64) -> DispatchResult {
    Registry::rotate_hotkey(signed(who), run, Uid(uid), hotkey, consent(&hotkey, run, &who))
}

/// Requests a hotkey for a seat of [`COLDKEY`].
pub fn rotate(uid: u16, hotkey: u64) -> DispatchResult {
    rotate_in(COLDKEY, RUN, uid, HOTKEY + hotkey)
}

pub fn mine(hotkey: u64) -> DispatchResult {
    register(COLDKEY, Role::Miner, HOTKEY + hotkey, MINER_STAKE)
}

pub fn validate(hotkey: u64, stake: Balance) -> DispatchResult {
    register(COLDKEY, Role::Validator, HOTKEY + hotkey, stake)
}

/// Moves to the first block of `window` and opens it.
pub fn open(window: u32) {
    System::set_block_number(params().schedule.opens_at(Window(window)).0.into());
    Registry::window_opens(RUN, Window(window));
}

pub fn seat(uid: u16) -> Seat<u64> {
    Registry::seat(RUN, Uid(uid)).unwrap()
}

pub fn hotkeys() -> Vec<(u16, u64)> {
    let seats = Registry::seats(RUN).into_iter();
    seats.map(|(uid, seat)| (uid.0, seat.hotkey - HOTKEY)).collect()
}

/// Accounts 1 to 5 have a thousand each.
pub fn empty_chain() -> TestState {
    Paid::set(BTreeMap::new());
    Behind::set(BTreeMap::new());
    Weighted::set(Vec::new());
    Treasury::set(0);
    Gone::set(Vec::new());
    pallet_mock::chain::<Test>((1..=5).map(|who| (who, 1_000)).collect())
}

/// Runs `story` with one run under `terms`.
pub fn with_terms(terms: Terms, story: impl FnOnce()) {
    empty_chain().execute_with(|| {
        assert_ok!(create(OWNER, params(), terms));
        story();
        Registry::check_invariants().unwrap();
    });
}

pub fn with_a_run(story: impl FnOnce()) {
    with_terms(terms(), story);
}
