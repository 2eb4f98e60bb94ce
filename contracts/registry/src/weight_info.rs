//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for signatures and documentation: 10 steps per size, 5 repetitions,
//! on 2026-11-21, on 2 × AMD EPYC, in the Wasm runtime with BLAKE2b-256
//! 66e054fd61c940074f8d6d44926a99e57f8b698b34e5ef34fc60f9cd67226543.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

pub fn create_run<T: frame_system::Config>() -> Weight {
    // 69.1 to 71.9 µs. Reads of the floors and of the number of runs are added by hand.
    Weight::from_parts(70_484_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 7))
}

/// Weight of one ed25519 verification: half of the two in `report_equivocation`.
fn proof<T: frame_system::Config>() -> Weight {
    Weight::from_parts(315_479_000, 0).saturating_add(T::DbWeight::get().reads(1))
}

/// Weight of taking a free seat.
pub fn register<T: frame_system::Config>() -> Weight {
    // 263 to 361 µs. A read is added by hand, for the treasury, and the hotkey's proof.
    Weight::from_parts(312_118_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(10, 7))
        .saturating_add(proof::<T>())
}

/// Weight of replacing one of `seats` miners. A validator's nominations cost more (`replace_weight`).
pub fn replace<T: frame_system::Config>(seats: u32) -> Weight {
    // 11929 to 12030 µs with 1087 seats. Two reads are added by hand, for treasury and consensus weights, and the
    // hotkey's proof.
    Weight::from_parts(256_359_570, 0)
        .saturating_add(T::DbWeight::get().reads_writes(12, 5))
        .saturating_add(proof::<T>())
        .saturating_add(Weight::from_parts(10_937_430, 0).saturating_mul(u64::from(seats)))
        .saturating_add(T::DbWeight::get().reads(2).saturating_mul(u64::from(seats)))
}

pub fn set_endpoint<T: frame_system::Config>() -> Weight {
    // 28.6 to 149 µs.
    Weight::from_parts(88_722_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 1))
}

pub fn add_stake<T: frame_system::Config>() -> Weight {
    // 71.6 to 179 µs.
    Weight::from_parts(125_496_000, 0).saturating_add(T::DbWeight::get().reads_writes(4, 3))
}

pub fn unstake<T: frame_system::Config>() -> Weight {
    // 34.4 to 110 µs.
    Weight::from_parts(72_427_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 2))
}

pub fn leave<T: frame_system::Config>() -> Weight {
    // 61.9 to 81.7 µs.
    Weight::from_parts(80_440_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 1))
}

/// Weight with unbonding stake of `seats` present and former seats.
pub fn withdraw<T: frame_system::Config>(seats: u32) -> Weight {
    // 1102 to 1231 µs with 64 seats.
    Weight::from_parts(270_504_367, 0)
        .saturating_add(T::DbWeight::get().reads_writes(4, 2))
        .saturating_add(Weight::from_parts(16_036_677, 0).saturating_mul(u64::from(seats)))
        .saturating_add(T::DbWeight::get().reads_writes(1, 2).saturating_mul(u64::from(seats)))
}

pub fn rotate_hotkey<T: frame_system::Config>() -> Weight {
    // 114 to 138 µs. The hotkey's proof is added by hand.
    Weight::from_parts(129_412_000, 0)
        .saturating_add(T::DbWeight::get().reads_writes(6, 2))
        .saturating_add(proof::<T>())
}

pub fn set_terms<T: frame_system::Config>() -> Weight {
    // 24.2 to 119 µs. The hold of a higher deposit is added by hand.
    Weight::from_parts(121_546_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 4))
}

pub fn cancel_terms<T: frame_system::Config>() -> Weight {
    // 15.6 to 39.9 µs.
    Weight::from_parts(27_781_000, 0).saturating_add(T::DbWeight::get().reads_writes(2, 1))
}

pub fn set_stopped<T: frame_system::Config>() -> Weight {
    // 15.6 to 19.3 µs.
    Weight::from_parts(17_496_000, 0).saturating_add(T::DbWeight::get().reads_writes(2, 1))
}

pub fn offer_run<T: frame_system::Config>() -> Weight {
    // 13.2 to 14.1 µs.
    Weight::from_parts(13_650_000, 0).saturating_add(T::DbWeight::get().reads_writes(1, 1))
}

pub fn accept_run<T: frame_system::Config>() -> Weight {
    // 109 to 131 µs.
    Weight::from_parts(122_101_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 6))
}

/// Weight without the steps that clear the run, which are counted when they run.
pub fn close_run<T: frame_system::Config>() -> Weight {
    // Estimated, and not measured yet.
    Weight::from_parts(60_000_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 6))
}

/// Weight with `changes` of seats, without the other pallets' part.
pub fn window_opens<T: frame_system::Config>(changes: u32) -> Weight {
    // 6038 to 6067 µs with 64 changes.
    Weight::from_parts(273_005_028, 0)
        .saturating_add(T::DbWeight::get().reads_writes(7, 7))
        .saturating_add(Weight::from_parts(91_652_998, 0).saturating_mul(u64::from(changes)))
        .saturating_add(T::DbWeight::get().reads_writes(6, 11).saturating_mul(u64::from(changes)))
}

/// Weight of expelling a seat's holder.
pub fn expel<T: frame_system::Config>() -> Weight {
    // The same as `leave`, which also reads the run.
    leave::<T>()
}

/// Weight for a seat with the maximum number of unbonding chunks, without its nominations.
pub fn slash<T: frame_system::Config>() -> Weight {
    // 107 to 184 µs.
    Weight::from_parts(145_676_000, 0).saturating_add(T::DbWeight::get().reads_writes(9, 5))
}
