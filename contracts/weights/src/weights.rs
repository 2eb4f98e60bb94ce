//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! `benchmarking` measures each of them; measured figures replace these, which err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn commit() -> Weight;
    /// By the number of seats weighed.
    fn reveal(seats: u32) -> Weight;
    /// By the number of validators that decide or hold bonds, and of miners' seats. What the payroll does besides, it
    /// says itself.
    fn close(validators: u32, seats: u32) -> Weight;
    /// Of one seat.
    fn vacated() -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);
const PER_SEAT: Weight = Weight::from_parts(2_000_000, 0);
/// Hashing and sorting one entry of a ballot.
const PER_WEIGHT: Weight = Weight::from_parts(50_000, 0);
/// One validator's weight for a seat and its bond, from storage through the consensus to storage. Native code takes less
/// than half of it.
const PER_ENTRY: Weight = Weight::from_parts(2_000_000, 0);
/// A list of all seats, decoded, searched and encoded.
const LIST: Weight = Weight::from_parts(100_000_000, 0);

fn times(weight: Weight, count: u32) -> Weight {
    weight.saturating_mul(u64::from(count))
}

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn commit() -> Weight {
        // Reads: block, run, hotkey, seat, commit. Writes: commit.
        CALL.saturating_add(T::DbWeight::get().reads_writes(5, 1))
    }

    fn reveal(seats: u32) -> Weight {
        // Reads: block, run, hotkey, seat, ballot, commit. Writes: commit, ballot.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 2)).saturating_add(times(PER_WEIGHT, seats))
    }

    fn close(validators: u32, seats: u32) -> Weight {
        // Reads: run, roster, vacated; each seat; each ballot, bonds and commit, found by iteration.
        // Writes: weights, standings, vacated; each ballot, bonds and commit.
        let fixed = CALL.saturating_add(T::DbWeight::get().reads_writes(3, 3));
        let per_seat = T::DbWeight::get().reads(1).saturating_add(PER_SEAT);
        let per_validator = T::DbWeight::get().reads_writes(6, 3);
        fixed
            .saturating_add(times(per_seat, seats))
            .saturating_add(times(per_validator, validators))
            .saturating_add(times(PER_ENTRY, validators.saturating_mul(seats)))
    }

    fn vacated() -> Weight {
        // Reads: block, run, weights, standings, vacated. Writes: weights, standings, vacated or seven of a validator's.
        CALL.saturating_add(T::DbWeight::get().reads_writes(5, 9)).saturating_add(LIST)
    }
}

/// For tests, where nothing has a price.
impl WeightInfo for () {
    fn commit() -> Weight {
        Weight::zero()
    }
    fn reveal(_: u32) -> Weight {
        Weight::zero()
    }
    fn close(_: u32, _: u32) -> Weight {
        Weight::zero()
    }
    fn vacated() -> Weight {
        Weight::zero()
    }
}
