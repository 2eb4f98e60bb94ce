//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A benchmark replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn fund() -> Weight;
    /// The pay becoming stake included.
    fn claim() -> Weight;
    fn claim_owner() -> Weight;
    fn claim_former() -> Weight;
    fn set_payout() -> Weight;
    /// By the number of seats that the consensus names. What sharing with nominators costs comes on top.
    fn pay_epoch(seats: u32) -> Weight;
    /// Setting aside the pay of a seat whose holder is gone.
    fn vacated() -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);
const PER_SEAT: Weight = Weight::from_parts(8_000_000, 0);

impl<T: frame_system::Config> CountedByHand<T> {
    fn counted(reads: u64, writes: u64) -> Weight {
        CALL.saturating_add(T::DbWeight::get().reads_writes(reads, writes))
    }
}

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn fund() -> Weight {
        // Reads: run, books, two accounts. Writes: books, two accounts.
        Self::counted(4, 3)
    }

    fn claim() -> Weight {
        // Reads: run, seat, the seat's pay and payout, books, two accounts, holds. Writes: seat, the seat's pay, books, two
        // accounts, holds.
        Self::counted(8, 6)
    }

    fn claim_owner() -> Weight {
        // Reads: run, books, two accounts. Writes: books, two accounts.
        Self::counted(4, 3)
    }

    fn claim_former() -> Weight {
        // Reads: run, the pay set aside, books, two accounts. Writes: the pay set aside, books, two accounts.
        Self::counted(5, 4)
    }

    fn set_payout() -> Weight {
        // Reads: run, seat. Writes: payout.
        Self::counted(2, 1)
    }

    fn pay_epoch(seats: u32) -> Weight {
        // Reads: run, terms, books, last epoch, account, issuance; each seat and its pay. Writes: books, last epoch, record,
        // account, issuance; each seat's pay.
        let per_seat = T::DbWeight::get().reads_writes(2, 1).saturating_add(PER_SEAT);
        Self::counted(6, 5).saturating_add(per_seat.saturating_mul(u64::from(seats)))
    }

    fn vacated() -> Weight {
        // Reads: the seat's pay, the pay set aside. Writes: those, payout.
        Self::counted(2, 3)
    }
}

/// For tests, where nothing has a price.
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
