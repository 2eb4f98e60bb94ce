//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for signatures and documentation: 10 steps per size, 5 repetitions,
//! on 2026-11-21, on 2 × AMD EPYC, in the Wasm runtime with BLAKE2b-256
//! 66e054fd61c940074f8d6d44926a99e57f8b698b34e5ef34fc60f9cd67226543.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

pub fn commit<T: frame_system::Config>() -> Weight {
    // 25.0 to 26.7 µs.
    Weight::from_parts(25_868_000, 0).saturating_add(T::DbWeight::get().reads_writes(4, 1))
}

/// Weight by the number of seats with a weight.
pub fn reveal<T: frame_system::Config>(seats: u32) -> Weight {
    // 227 to 242 µs with 1024 seats.
    Weight::from_parts(185_457_540, 0)
        .saturating_add(T::DbWeight::get().reads_writes(4, 2))
        .saturating_add(Weight::from_parts(103_695, 0).saturating_mul(u64::from(seats)))
}

/// Weight with an answer for each drawn contribution.
pub fn answer_probes<T: frame_system::Config>() -> Weight {
    // Estimated by hand: reads of run, hotkey, seat, draw, answers and eight anchors; a hundred hashes of 2 µs.
    Weight::from_parts(300_000_000, 0).saturating_add(T::DbWeight::get().reads_writes(15, 1))
}

/// Weight by the validators with votes or bonds, and the miners' seats; without the payroll's part.
pub fn close<T: frame_system::Config>(validators: u32, seats: u32) -> Weight {
    // 33878 to 35925 µs with 64 validators and 1024 seats. A read, a write and 100 µs per validator, and a read, are
    // added by hand, for the probes.
    Weight::from_parts(892_168_385, 0)
        .saturating_add(T::DbWeight::get().reads_writes(9, 4))
        .saturating_add(Weight::from_parts(110_024_182, 0).saturating_mul(u64::from(validators)))
        .saturating_add(T::DbWeight::get().reads_writes(4, 4).saturating_mul(u64::from(validators)))
        .saturating_add(Weight::from_parts(1_978_447, 0).saturating_mul(u64::from(seats)))
        .saturating_add(
            Weight::from_parts(488_680, 0).saturating_mul(u64::from(validators) * u64::from(seats)),
        )
}

/// Weight for one seat.
pub fn vacated<T: frame_system::Config>() -> Weight {
    // 100 to 197 µs. Two reads are added by hand, for the participation of two epochs.
    Weight::from_parts(148_731_000, 0).saturating_add(T::DbWeight::get().reads_writes(6, 6))
}
