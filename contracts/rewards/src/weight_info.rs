//! Weights of calls and tasks, measured in the Wasm runtime (PROT-33).
//!
//! Written by `scripts/benchmark-pallets`, except for the trait: 10 steps per size, 5 repetitions, on 2026-11-21,
//! on 2 × AMD EPYC, in the Wasm runtime with BLAKE2b-256
//! 66e054fd61c940074f8d6d44926a99e57f8b698b34e5ef34fc60f9cd67226543.
//! Time is processor time. Storage accesses are counted, at the prices of `T::DbWeight`; proof sizes are not used.

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn fund() -> Weight;
    /// With the pay added to the stake.
    fn claim() -> Weight;
    fn claim_owner() -> Weight;
    fn claim_former() -> Weight;
    fn set_payout() -> Weight;
    /// By the seats of the consensus, without the nominators' part.
    fn pay_epoch(seats: u32) -> Weight;
    /// Sets aside the pay of a former seat.
    fn vacated() -> Weight;
}

/// The measured weights.
pub struct Measured<T>(PhantomData<T>);

impl<T: frame_system::Config> WeightInfo for Measured<T> {
    fn fund() -> Weight {
        // 58.3 to 59.4 µs.
        Weight::from_parts(58_822_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 2))
    }

    fn claim() -> Weight {
        // 92.3 to 207 µs.
        Weight::from_parts(175_041_000, 0).saturating_add(T::DbWeight::get().reads_writes(7, 5))
    }

    fn claim_owner() -> Weight {
        // 62.5 to 145 µs.
        Weight::from_parts(103_904_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 2))
    }

    fn claim_former() -> Weight {
        // 67.4 to 71.3 µs.
        Weight::from_parts(69_368_000, 0).saturating_add(T::DbWeight::get().reads_writes(4, 3))
    }

    fn set_payout() -> Weight {
        // 17.8 to 28.5 µs.
        Weight::from_parts(23_159_000, 0).saturating_add(T::DbWeight::get().reads_writes(2, 1))
    }

    fn pay_epoch(seats: u32) -> Weight {
        // 7464 to 7753 µs with 1088 seats.
        Weight::from_parts(135_847_320, 0)
            .saturating_add(T::DbWeight::get().reads_writes(199, 4))
            .saturating_add(Weight::from_parts(6_979_289, 0).saturating_mul(u64::from(seats)))
            .saturating_add(T::DbWeight::get().reads_writes(1, 1).saturating_mul(u64::from(seats)))
    }

    fn vacated() -> Weight {
        // 20.2 to 119 µs.
        Weight::from_parts(69_373_000, 0).saturating_add(T::DbWeight::get().reads_writes(3, 4))
    }
}

/// For tests: every weight is zero.
impl WeightInfo for () {
    fn fund() -> Weight {
        Weight::zero()
    }
    fn claim() -> Weight {
        Weight::zero()
    }
    fn claim_owner() -> Weight {
        Weight::zero()
    }
    fn claim_former() -> Weight {
        Weight::zero()
    }
    fn set_payout() -> Weight {
        Weight::zero()
    }
    fn pay_epoch(_: u32) -> Weight {
        Weight::zero()
    }
    fn vacated() -> Weight {
        Weight::zero()
    }
}
