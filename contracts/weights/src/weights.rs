//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A benchmark replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    /// By the number of seats weighed.
    fn post(seats: u32) -> Weight;
    /// By the number of ballots.
    fn close(ballots: u32) -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);
const PER_SEAT: Weight = Weight::from_parts(2_000_000, 0);
/// A full ballot in the consensus: a few hundred seats, each in a map and a sort.
const PER_BALLOT: Weight = Weight::from_parts(250_000_000, 0);

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn post(seats: u32) -> Weight {
        // Reads: block, run, hotkey, own seat, ballot, and each seat. Writes: ballot.
        let per_seat = T::DbWeight::get().reads(1).saturating_add(PER_SEAT);
        CALL.saturating_add(T::DbWeight::get().reads_writes(5, 1))
            .saturating_add(per_seat.saturating_mul(u64::from(seats)))
    }

    fn close(ballots: u32) -> Weight {
        // Reads: each ballot. Writes: the weights; each ballot of the epoch before.
        let per_ballot = T::DbWeight::get().reads_writes(1, 1).saturating_add(PER_BALLOT);
        CALL.saturating_add(T::DbWeight::get().writes(1))
            .saturating_add(per_ballot.saturating_mul(u64::from(ballots)))
    }
}

/// For tests, where nothing has a price.
impl WeightInfo for () {
    fn post(_: u32) -> Weight {
        Weight::zero()
    }
    fn close(_: u32) -> Weight {
        Weight::zero()
    }
}
