//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for signatures and documentation: 10 steps per size, 5 repetitions,
//! on 2026-11-21, on 2 × AMD EPYC, in the Wasm runtime with BLAKE2b-256
//! 66e054fd61c940074f8d6d44926a99e57f8b698b34e5ef34fc60f9cd67226543.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

pub fn commit<T: frame_system::Config>() -> Weight {
    // 255 to 362 µs. A read is added by hand, for the seat's first window.
    Weight::from_parts(340_752_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 2))
}

/// Weight of the check whether a call is free. The call then reads the same values from memory.
pub fn free_call_check<T: frame_system::Config>() -> Weight {
    // 82.3 to 85.1 µs when the values are in memory. Counted by hand is a whole vote, whose values are not: 211 to 262
    // µs.
    Weight::from_parts(250_000_000, 0)
}

/// Weight by the number of verdicts.
pub fn attest<T: frame_system::Config>(_verdicts: u32) -> Weight {
    // 266 to 270 µs with 1024 verdicts.
    Weight::from_parts(417_538_044, 0).saturating_add(T::DbWeight::get().reads_writes(7, 3))
}

pub fn vote<T: frame_system::Config>() -> Weight {
    // 222 to 320 µs.
    Weight::from_parts(271_013_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 1))
}

pub fn attest_hidden<T: frame_system::Config>() -> Weight {
    // 253 to 371 µs.
    Weight::from_parts(334_547_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 2))
}

/// Weight by the number of verdicts.
pub fn reveal_attestation<T: frame_system::Config>(verdicts: u32) -> Weight {
    // 268 to 328 µs with 1024 verdicts. A read and a write are added by hand, for the mix of the salts.
    Weight::from_parts(281_003_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(9, 4))
        .saturating_add(Weight::from_parts(42_691, 0).saturating_mul(u64::from(verdicts)))
}

pub fn vote_hidden<T: frame_system::Config>() -> Weight {
    // 226 to 350 µs.
    Weight::from_parts(295_800_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 1))
}

pub fn reveal_vote<T: frame_system::Config>() -> Weight {
    // 203 to 269 µs.
    Weight::from_parts(235_870_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 2))
}

pub fn anchor_receipts<T: frame_system::Config>() -> Weight {
    // 210 to 358 µs.
    Weight::from_parts(284_207_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 1))
}

pub fn vote_rewind<T: frame_system::Config>() -> Weight {
    // Estimated by hand: a vote, and the reads of a seat, of the progress and of a window's record.
    Weight::from_parts(330_000_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 1))
}

/// Weight with two statements.
pub fn report_equivocation<T: frame_system::Config>() -> Weight {
    // 579 to 639 µs. Expelling the holder is added by hand.
    Weight::from_parts(630_958_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(12, 6))
        .saturating_add(pallet_registry::weight_info::expel::<T>())
}

/// Weight with one statement and the chain's record.
pub fn report_contradiction<T: frame_system::Config>() -> Weight {
    // 485 to 598 µs. Expelling the holder is added by hand.
    Weight::from_parts(562_036_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(13, 6))
        .saturating_add(pallet_registry::weight_info::expel::<T>())
}

/// Weight of the overhead of any scheduled task.
pub fn task<T: frame_system::Config>() -> Weight {
    // 182 to 208 µs.
    Weight::from_parts(196_673_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 3))
}

/// Weight by the run's miners and validators, without the part of registry and epochs.
pub fn open<T: frame_system::Config>(miners: u32, validators: u32) -> Weight {
    // 981 to 994 µs with 1024 miners and 64 validators. A read, a write and 1 µs per validator are added by hand, for
    // the counted stakes; two reads, a write and 60 µs, for the votes to go back; a read and a write, for the deal.
    Weight::from_parts(230_241_656, 0)
        .saturating_add(T::DbWeight::get().reads_writes(8, 5))
        .saturating_add(Weight::from_parts(84_759, 0).saturating_mul(u64::from(miners)))
        .saturating_add(Weight::from_parts(12_481_612, 0).saturating_mul(u64::from(validators)))
        .saturating_add(T::DbWeight::get().reads_writes(3, 1).saturating_mul(u64::from(validators)))
        .saturating_add(
            Weight::from_parts(2_851, 0).saturating_mul(u64::from(miners) * u64::from(validators)),
        )
}

pub fn record_hash<T: frame_system::Config>() -> Weight {
    // 44.4 to 46.6 µs.
    Weight::from_parts(45_467_000, 0).saturating_add(T::DbWeight::get().reads_writes(2, 1))
}

/// Weight by the run's miners, and by the active set of the previous window.
pub fn deal_next<T: frame_system::Config>(miners: u32, active_set: u32) -> Weight {
    // Estimated by hand: the seed, the roster, and a copy of the slots.
    record_deal_seed::<T>(active_set)
        .saturating_add(Weight::from_parts(30_000_000, 0))
        .saturating_add(T::DbWeight::get().reads_writes(2, 1))
        .saturating_add(Weight::from_parts(84_759, 0).saturating_mul(u64::from(miners)))
}

/// Weight by the active set of the previous window.
pub fn record_deal_seed<T: frame_system::Config>(active_set: u32) -> Weight {
    // Estimated by hand: two hashes recorded, and a key looked up for each member.
    Weight::from_parts(91_000_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(3, 1))
        .saturating_add(Weight::from_parts(2_600_000, 0).saturating_mul(u64::from(active_set)))
        .saturating_add(T::DbWeight::get().reads(1).saturating_mul(u64::from(active_set)))
}

/// Weight by the number of windows from which contributions are drawn.
pub fn draw_probes<T: frame_system::Config>(windows: u32) -> Weight {
    // Estimated by hand: as much as recording a hash, and the decoding of a window's record for each.
    Weight::from_parts(60_000_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(1, 1))
        .saturating_add(Weight::from_parts(60_000_000, 0).saturating_mul(u64::from(windows)))
        .saturating_add(T::DbWeight::get().reads(1).saturating_mul(u64::from(windows)))
}

/// Weight by the window's slots, and by the larger of its active set and its attestations.
pub fn select<T: frame_system::Config>(slots: u32, active_set: u32) -> Weight {
    // 6156 to 6715 µs with 1024 slots and 64 active set. A read, a write and 13 ns for each slot per member are added
    // by hand, for the presence.
    Weight::from_parts(392_870_270, 0)
        .saturating_add(T::DbWeight::get().reads_writes(3, 1))
        .saturating_add(Weight::from_parts(5_258_920, 0).saturating_mul(u64::from(slots)))
        .saturating_add(T::DbWeight::get().reads(1).saturating_mul(u64::from(slots)))
        .saturating_add(Weight::from_parts(2_606_177, 0).saturating_mul(u64::from(active_set)))
        .saturating_add(T::DbWeight::get().reads_writes(2, 1).saturating_mul(u64::from(active_set)))
        .saturating_add(
            Weight::from_parts(26_088, 0).saturating_mul(u64::from(slots) * u64::from(active_set)),
        )
}

/// Weight by the window's active set.
pub fn finalise<T: frame_system::Config>(active_set: u32) -> Weight {
    // 551 to 659 µs with 64 active set. A read, a write and 1 µs per member are added by hand, for the participation.
    Weight::from_parts(269_905_814, 0)
        .saturating_add(T::DbWeight::get().reads_writes(24, 24))
        .saturating_add(Weight::from_parts(8_042_963, 0).saturating_mul(u64::from(active_set)))
        .saturating_add(T::DbWeight::get().reads(1).saturating_mul(u64::from(active_set)))
}

/// Weight by the number of entries removed with the window.
pub fn prune<T: frame_system::Config>(entries: u32) -> Weight {
    // 1387 to 1483 µs with 1088 entries.
    Weight::from_parts(29_599_000, 0)
        .saturating_add(T::DbWeight::get().writes(2))
        .saturating_add(Weight::from_parts(1_293_130, 0).saturating_mul(u64::from(entries)))
        .saturating_add(T::DbWeight::get().reads_writes(1, 1).saturating_mul(u64::from(entries)))
}
