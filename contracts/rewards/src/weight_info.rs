//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for signatures and documentation: 10 steps per size, 5 repetitions,
//! on 2026-11-21, on 2 × AMD EPYC, in the Wasm runtime with BLAKE2b-256
//! 66e054fd61c940074f8d6d44926a99e57f8b698b34e5ef34fc60f9cd67226543.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

pub fn fund<T: frame_system::Config>() -> Weight {
    // 58.3 to 59.4 µs.
    Weight::from_parts(58_822_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 2))
}

/// Weight with the pay added to the stake.
pub fn claim<T: frame_system::Config>() -> Weight {
    // 92.3 to 207 µs.
    Weight::from_parts(175_041_000, 0).saturating_add(T::DbWeight::get().reads_writes(7, 5))
}

pub fn claim_owner<T: frame_system::Config>() -> Weight {
    // 62.5 to 145 µs.
    Weight::from_parts(103_904_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 2))
}

pub fn claim_former<T: frame_system::Config>() -> Weight {
    // 67.4 to 71.3 µs.
    Weight::from_parts(69_368_000, 0).saturating_add(T::DbWeight::get().reads_writes(4, 3))
}

pub fn set_payout<T: frame_system::Config>() -> Weight {
    // 17.8 to 28.5 µs.
    Weight::from_parts(23_159_000, 0).saturating_add(T::DbWeight::get().reads_writes(2, 1))
}

/// Weight by the seats of the consensus, without the nominators' part.
pub fn pay_epoch<T: frame_system::Config>(seats: u32) -> Weight {
    // 7464 to 7753 µs with 1088 seats.
    Weight::from_parts(135_847_320, 0)
        .saturating_add(T::DbWeight::get().reads_writes(199, 4))
        .saturating_add(Weight::from_parts(6_979_289, 0).saturating_mul(u64::from(seats)))
        .saturating_add(T::DbWeight::get().reads_writes(1, 1).saturating_mul(u64::from(seats)))
}

/// Weight of setting aside the pay of a former seat.
pub fn vacated<T: frame_system::Config>() -> Weight {
    // 20.2 to 119 µs.
    Weight::from_parts(69_373_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 4))
}
