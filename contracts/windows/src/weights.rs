//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! `benchmarking` measures each of them; measured figures replace these, which err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn commit() -> Weight;
    /// By the number of verdicts.
    fn attest(verdicts: u32) -> Weight;
    fn vote() -> Weight;
    fn attest_hidden() -> Weight;
    /// By the number of verdicts.
    fn reveal_attestation(verdicts: u32) -> Weight;
    fn vote_hidden() -> Weight;
    fn reveal_vote() -> Weight;
    fn anchor_receipts() -> Weight;
    /// Of two statements.
    fn report_equivocation() -> Weight;
    /// Of one statement and the chain's own record.
    fn report_contradiction() -> Weight;
    /// What every step of a run costs beside the step itself.
    fn agenda() -> Weight;
    /// By the run's miners and validators. What registry and epochs do besides, they say themselves.
    fn open(miners: u32, validators: u32) -> Weight;
    fn note_hash() -> Weight;
    /// By the window's slots and its electorate.
    fn choose(slots: u32, electorate: u32) -> Weight;
    /// By the window's electorate.
    fn fix(electorate: u32) -> Weight;
    /// By the entries that are removed with the window.
    fn forget(entries: u32) -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);
const PER_SEAT: Weight = Weight::from_parts(2_000_000, 0);
const PER_VERDICT: Weight = Weight::from_parts(50_000, 0);
/// Checking one signature.
const SIGNATURE: Weight = Weight::from_parts(200_000_000, 0);

fn times(weight: Weight, count: u32) -> Weight {
    weight.saturating_mul(u64::from(count))
}

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn commit() -> Weight {
        // Reads: block, run, hotkey, seat, record, times, commitment. Writes: times, commitment.
        CALL.saturating_add(T::DbWeight::get().reads_writes(7, 2))
    }

    fn attest(verdicts: u32) -> Weight {
        // Reads: block, run, hotkey, seat, attestation, record, times, presence. Writes: attestation, salt, presence.
        CALL.saturating_add(T::DbWeight::get().reads_writes(8, 3))
            .saturating_add(times(PER_VERDICT, verdicts))
    }

    fn vote() -> Weight {
        // Reads: block, run, hotkey, seat, record, vote. Writes: vote.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 1))
    }

    fn attest_hidden() -> Weight {
        // Reads: block, run, hotkey, seat, record, hash. Writes: hash, salt.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 2))
    }

    fn reveal_attestation(verdicts: u32) -> Weight {
        // Reads: block, run, hotkey, seat, attestation, hash, record, times, presence.
        // Writes: attestation, hash, presence.
        CALL.saturating_add(T::DbWeight::get().reads_writes(9, 3))
            .saturating_add(times(PER_VERDICT, verdicts))
    }

    fn vote_hidden() -> Weight {
        // Reads: block, run, hotkey, seat, record, hash. Writes: hash.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 1))
    }

    fn reveal_vote() -> Weight {
        // Reads: block, run, hotkey, seat, vote, hash. Writes: vote, hash.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 2))
    }

    fn anchor_receipts() -> Weight {
        // Reads: run, hotkey, seat twice, record, receipts. Writes: receipts.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 1))
    }

    fn report_equivocation() -> Weight {
        // Reads: run, record, holder, seat, punished; slashing: stake, unbonding, pool, and the accounts of the coldkey, the
        // pool and the reporter with their holds. Writes: punished, and what slashing changes.
        CALL.saturating_add(T::DbWeight::get().reads_writes(20, 12)).saturating_add(times(SIGNATURE, 2))
    }

    fn report_contradiction() -> Weight {
        // As above, and the chain's own record.
        CALL.saturating_add(T::DbWeight::get().reads_writes(23, 12)).saturating_add(SIGNATURE)
    }

    fn agenda() -> Weight {
        // Reads: run, agenda, progress. Writes: agenda, progress.
        T::DbWeight::get().reads_writes(3, 2)
    }

    fn open(miners: u32, validators: u32) -> Weight {
        // Reads: progress, run, seats taken, weights; of each seat: itself; of each validator: what is behind it and its
        // presence. Writes: progress, record; of each validator: its presence.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 2))
            .saturating_add(times(T::DbWeight::get().reads(1).saturating_add(PER_SEAT), miners))
            .saturating_add(times(T::DbWeight::get().reads_writes(3, 1).saturating_add(PER_SEAT), validators))
    }

    fn note_hash() -> Weight {
        // Reads: block hash, record. Writes: record.
        CALL.saturating_add(T::DbWeight::get().reads_writes(2, 1))
    }

    fn choose(slots: u32, electorate: u32) -> Weight {
        // Reads: record, times; of each slot: commitment and seat; of each validator: attestation. Writes: record.
        let verdicts = times(times(PER_VERDICT, slots), electorate);
        CALL.saturating_add(T::DbWeight::get().reads_writes(2, 1))
            .saturating_add(times(T::DbWeight::get().reads(2).saturating_add(PER_SEAT), slots))
            .saturating_add(times(T::DbWeight::get().reads(1), electorate))
            .saturating_add(verdicts)
    }

    fn fix(electorate: u32) -> Weight {
        // Reads: record, progress; of each validator: vote, dissents. Writes: record, progress; of each validator:
        // dissents.
        CALL.saturating_add(T::DbWeight::get().reads_writes(2, 2))
            .saturating_add(times(T::DbWeight::get().reads_writes(2, 1).saturating_add(PER_SEAT), electorate))
    }

    fn forget(entries: u32) -> Weight {
        // Writes: record, times, and each entry, which is also looked for.
        CALL.saturating_add(T::DbWeight::get().writes(2))
            .saturating_add(times(T::DbWeight::get().reads_writes(1, 1), entries))
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
    fn attest_hidden() -> Weight {
        Weight::zero()
    }
    fn reveal_attestation(_: u32) -> Weight {
        Weight::zero()
    }
    fn vote_hidden() -> Weight {
        Weight::zero()
    }
    fn reveal_vote() -> Weight {
        Weight::zero()
    }
    fn anchor_receipts() -> Weight {
        Weight::zero()
    }
    fn report_equivocation() -> Weight {
        Weight::zero()
    }
    fn report_contradiction() -> Weight {
        Weight::zero()
    }
    fn agenda() -> Weight {
        Weight::zero()
    }
    fn open(_: u32, _: u32) -> Weight {
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
    fn forget(_: u32) -> Weight {
        Weight::zero()
    }
}
