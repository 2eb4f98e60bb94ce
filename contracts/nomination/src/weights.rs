//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A benchmark replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn nominate() -> Weight;
    fn unnominate() -> Weight;
    fn withdraw() -> Weight;
    fn claim() -> Weight;
    fn set_commission() -> Weight;
    /// Sharing one seat's pay with its nominators, however many.
    fn share_pay() -> Weight;
    /// Slashing what is behind one seat.
    fn slash() -> Weight;
    /// Closing the pool of a seat whose holder is gone.
    fn vacated() -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(40_000_000, 0);

impl<T: frame_system::Config> CountedByHand<T> {
    fn counted(reads: u64, writes: u64) -> Weight {
        CALL.saturating_add(T::DbWeight::get().reads_writes(reads, writes))
    }
}

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn nominate() -> Weight {
        // Reads: run, seat, the seat's pool and its number, pools so far, nomination, ledger, two accounts.
        // Writes: the same but run and seat.
        Self::counted(9, 7)
    }

    fn unnominate() -> Weight {
        // Reads: run, nomination, pool. Writes: nomination, pool.
        Self::counted(3, 2)
    }

    fn withdraw() -> Weight {
        // Reads: run, nomination, pool and its number, ledger, two accounts. Writes: the same but the run.
        Self::counted(7, 6)
    }

    fn claim() -> Weight {
        // As a withdrawal.
        Self::counted(7, 6)
    }

    fn set_commission() -> Weight {
        // Reads: run, seat, commission. Writes: commission.
        Self::counted(3, 1)
    }

    fn share_pay() -> Weight {
        // Reads: run, the pool and its number, commission, ledger, two accounts. Writes: pool, ledger, two accounts.
        Self::counted(7, 4)
    }

    fn slash() -> Weight {
        // Reads: the pool and its number, ledger, two accounts, issuance. Writes: the same.
        Self::counted(6, 6)
    }

    fn vacated() -> Weight {
        // Reads: the pool and its number. Writes: those, commission.
        Self::counted(2, 3)
    }
}

/// For tests, where nothing has a price.
impl WeightInfo for () {
    fn nominate() -> Weight {
        Weight::zero()
    }
    fn unnominate() -> Weight {
        Weight::zero()
    }
    fn withdraw() -> Weight {
        Weight::zero()
    }
    fn claim() -> Weight {
        Weight::zero()
    }
    fn set_commission() -> Weight {
        Weight::zero()
    }
    fn share_pay() -> Weight {
        Weight::zero()
    }
    fn slash() -> Weight {
        Weight::zero()
    }
    fn vacated() -> Weight {
        Weight::zero()
    }
}
