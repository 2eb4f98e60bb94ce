//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for signatures and documentation: 10 steps per size, 5 repetitions,
//! on 2026-11-21, on 2 × AMD EPYC, in the Wasm runtime with BLAKE2b-256
//! 66e054fd61c940074f8d6d44926a99e57f8b698b34e5ef34fc60f9cd67226543.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

pub fn nominate<T: frame_system::Config>() -> Weight {
    // 81.2 to 86.8 µs.
    Weight::from_parts(84_040_000, 0).saturating_add(T::DbWeight::get().reads_writes(7, 6))
}

pub fn unnominate<T: frame_system::Config>() -> Weight {
    // 33.9 to 150 µs.
    Weight::from_parts(92_152_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 2))
}

pub fn withdraw<T: frame_system::Config>() -> Weight {
    // 83.6 to 90.2 µs.
    Weight::from_parts(86_869_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 5))
}

pub fn claim<T: frame_system::Config>() -> Weight {
    // 81.5 to 207 µs.
    Weight::from_parts(202_290_000, 0).saturating_add(T::DbWeight::get().reads_writes(5, 5))
}

pub fn set_commission<T: frame_system::Config>() -> Weight {
    // 20.8 to 32.3 µs.
    Weight::from_parts(26_554_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 1))
}

/// Weight of sharing one seat's pay with any number of nominators.
pub fn share_pay<T: frame_system::Config>() -> Weight {
    // 70.6 to 120 µs.
    Weight::from_parts(116_874_000, 0).saturating_add(T::DbWeight::get().reads_writes(7, 4))
}

/// Weight of slashing the pool of one seat.
pub fn slash<T: frame_system::Config>() -> Weight {
    // 94.0 to 206 µs.
    Weight::from_parts(150_113_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 5))
}

/// Weight of closing the pool of a former seat.
pub fn vacated<T: frame_system::Config>() -> Weight {
    // 23.7 to 126 µs.
    Weight::from_parts(75_106_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 3))
}
