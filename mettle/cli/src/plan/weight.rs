//! Weight of a window's calls and tasks in the chain's blocks.
//!
//! These are the weights of the runtime, which this crate does not import. `tests/nodes/plan.rs` compares each of
//! them with the runtime's.

/// Time of a read and of a write, in picoseconds.
const READ: u64 = 25_000_000;
const WRITE: u64 = 100_000_000;

/// Time in a block for tasks and calls, in picoseconds.
pub const BLOCK: u64 = 1_000_000_000_000;
/// Time in a block for the free calls of one run, in picoseconds.
pub const ROOM_OF_RUN: u64 = BLOCK / 32 * 9;
/// Time of a transaction beside its call and the check whether it is free, in picoseconds: Substrate's 108 µs, and
/// about 50 µs for the checks of nonce, era, weight and fee.
pub const TRANSACTION: u64 = 160_000_000;

/// Maximum number of seats of a run: miners and validators.
pub const SEATS_MAX: u32 = 1088;

const fn cost(picoseconds: u64, reads: u64, writes: u64) -> u64 {
    picoseconds + reads * READ + writes * WRITE
}

/// Weight of a miner's commitment.
pub fn commit() -> u64 {
    cost(340_752_000, 6, 2)
}

/// Weight of a validator's attestation.
pub fn attest() -> u64 {
    cost(417_538_044, 7, 3)
}

/// Weight of a validator's vote.
pub fn vote() -> u64 {
    cost(271_013_000, 5, 1)
}

/// Weight of a validator's digest of its receipt.
pub fn anchor_receipts() -> u64 {
    cost(284_207_000, 5, 1)
}

/// Weight of the check whether one of the calls above is free.
pub fn free_call_check() -> u64 {
    250_000_000
}

/// Weight of a validator's hash of its weights, once per epoch.
pub fn commit_weights() -> u64 {
    cost(25_868_000, 4, 1)
}

/// Weight of a validator's weights for all miners, once per epoch.
pub fn reveal_weights(miners: u64) -> u64 {
    cost(185_457_540, 4, 2) + 103_695 * miners
}

/// Weight of a validator's answers to the epoch's probes.
pub fn answer_probes() -> u64 {
    cost(300_000_000, 15, 1)
}

/// Base weight of every task.
pub fn task() -> u64 {
    cost(196_673_000, 6, 3)
}

/// Weight of opening a window, with the registry's part and without seat changes.
pub fn open(miners: u64, validators: u64) -> u64 {
    let registry = cost(273_005_028, 7, 7);
    let each = 12_481_612 + cost(0, 3, 1);
    registry + cost(230_241_656, 8, 5) + 84_759 * miners + each * validators + 2_851 * miners * validators
}

pub fn record_hash() -> u64 {
    cost(45_467_000, 2, 1)
}

pub fn record_deal_seed(active_set: u64) -> u64 {
    cost(91_000_000, 3, 1) + (2_600_000 + READ) * active_set
}

pub fn deal_next(miners: u64, active_set: u64) -> u64 {
    record_deal_seed(active_set) + cost(30_000_000, 2, 1) + 84_759 * miners
}

pub fn select(miners: u64, active_set: u64) -> u64 {
    cost(392_870_270, 3, 1)
        + (5_258_920 + READ) * miners
        + (2_606_177 + cost(0, 2, 1)) * active_set
        + 26_088 * miners * active_set
}

pub fn finalise(active_set: u64) -> u64 {
    cost(269_905_814, 24, 24) + (8_042_963 + READ) * active_set
}

/// Weight of removing an old window with its commitments and attestations.
pub fn prune(entries: u64) -> u64 {
    cost(29_599_000, 0, 2) + (1_293_130 + cost(0, 1, 1)) * entries
}

pub fn draw_probes(windows: u64) -> u64 {
    cost(60_000_000, 1, 1) + (60_000_000 + READ) * windows
}

/// Weight of closing an epoch.
pub fn close_epoch(validators: u64, miners: u64) -> u64 {
    cost(892_168_385, 9, 4)
        + (110_024_182 + cost(0, 4, 4)) * validators
        + 1_978_447 * miners
        + 488_680 * validators * miners
}

/// Weight of paying all seats.
pub fn pay_epoch(seats: u64) -> u64 {
    cost(135_847_320, 199, 4) + (6_979_289 + cost(0, 1, 1)) * seats
}

/// Weight of a call with its transaction and its check.
pub fn included(call: u64, check: u64) -> u64 {
    call + check + TRANSACTION
}

/// Weight of one window's tasks, and of an epoch's divided by its windows.
pub fn tasks(miners: u64, validators: u64, active_set: u64, epoch_windows: u64) -> u64 {
    let of_window = 6 * task()
        + open(miners, validators)
        + 2 * record_hash()
        + record_deal_seed(active_set)
        + deal_next(miners, active_set)
        + select(miners, active_set)
        + finalise(active_set)
        + prune(miners + validators);
    of_window + epoch(miners, validators, epoch_windows) / epoch_windows.max(1)
}

/// Weight of the tasks at an epoch's end.
pub fn epoch(miners: u64, validators: u64, epoch_windows: u64) -> u64 {
    close_epoch(validators, miners) + pay_epoch(miners + validators) + draw_probes(epoch_windows)
}

/// Weight of one window's free calls, and of an epoch's divided by its windows.
pub fn calls(miners: u64, validators: u64, epoch_windows: u64) -> u64 {
    let check = free_call_check();
    let of_validator =
        [attest(), vote(), anchor_receipts()].map(|call| included(call, check)).iter().sum::<u64>();
    let of_epoch = [commit_weights(), reveal_weights(miners), answer_probes()]
        .map(|call| included(call, call))
        .iter()
        .sum::<u64>();
    miners * included(commit(), check)
        + validators * of_validator
        + validators * of_epoch / epoch_windows.max(1)
}
