//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A benchmark replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn commit() -> Weight;
    /// By the number of verdicts.
    fn attest(verdicts: u32) -> Weight;
    fn vote() -> Weight;
    /// What every step of a run costs beside the step itself.
    fn agenda() -> Weight;
    /// By the run's seats.
    fn open(seats: u32) -> Weight;
    fn note_hash() -> Weight;
    /// By the window's slots and its electorate.
    fn choose(slots: u32, electorate: u32) -> Weight;
    /// By the window's electorate.
    fn fix(electorate: u32) -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);
const PER_SEAT: Weight = Weight::from_parts(2_000_000, 0);

fn times(weight: Weight, count: u32) -> Weight {
    weight.saturating_mul(u64::from(count))
}

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn commit() -> Weight {
        // Reads: block, run, hotkey, seat, record, commitment. Writes: commitment.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 1))
    }

    fn attest(verdicts: u32) -> Weight {
        // Reads: block, run, hotkey, seat, attestation, presence, and a commitment for each verdict.
        // Writes: attestation, salt, presence.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 3))
            .saturating_add(times(T::DbWeight::get().reads(1).saturating_add(PER_SEAT), verdicts))
    }

    fn vote() -> Weight {
        // Reads: block, run, hotkey, seat, record, vote. Writes: vote.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 1))
    }

    fn agenda() -> Weight {
        // Reads: run, agenda, progress. Writes: agenda, progress.
        T::DbWeight::get().reads_writes(3, 2)
    }

    fn open(seats: u32) -> Weight {
        // Reads: progress, number of seats, weights; of each seat: itself and its presence. Writes: progress, record;
        // of each seat: its presence, and of the forgotten window: commitment, or salt, attestation and vote.
        CALL.saturating_add(T::DbWeight::get().reads_writes(3, 3))
            .saturating_add(times(T::DbWeight::get().reads_writes(2, 4).saturating_add(PER_SEAT), seats))
    }

    fn note_hash() -> Weight {
        // Reads: parent hash, record. Writes: record.
        CALL.saturating_add(T::DbWeight::get().reads_writes(2, 1))
    }

    fn choose(slots: u32, electorate: u32) -> Weight {
        // Reads: record; of each slot: commitment and seat; of each validator: attestation. Writes: record.
        let verdicts = times(times(PER_SEAT, slots), electorate);
        CALL.saturating_add(T::DbWeight::get().reads_writes(1, 1))
            .saturating_add(times(T::DbWeight::get().reads(2).saturating_add(PER_SEAT), slots))
            .saturating_add(times(T::DbWeight::get().reads(1), electorate))
            .saturating_add(verdicts)
    }

    fn fix(electorate: u32) -> Weight {
        // Reads: record, progress; of each validator: vote. Writes: record, progress.
        CALL.saturating_add(T::DbWeight::get().reads_writes(2, 2))
            .saturating_add(times(T::DbWeight::get().reads(1).saturating_add(PER_SEAT), electorate))
    }
}

/// For tests, where nothing has a price.
impl WeightInfo for () {
    fn commit() -> Weight {
        Weight::zero()
    }
    fn attest(_: u32) -> Weight {
        Weight::zero()
    }
    fn vote() -> Weight {
        Weight::zero()
    }
    fn agenda() -> Weight {
        Weight::zero()
    }
    fn open(_: u32) -> Weight {
        Weight::zero()
    }
    fn note_hash() -> Weight {
        Weight::zero()
    }
    fn choose(_: u32, _: u32) -> Weight {
        Weight::zero()
    }
    fn fix(_: u32) -> Weight {
        Weight::zero()
    }
}
