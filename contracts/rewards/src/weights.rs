//! What the calls and steps cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A benchmark replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn fund() -> Weight;
    fn claim() -> Weight;
    fn claim_owner() -> Weight;
    /// By the number of seats credited.
    fn pay_epoch(seats: u32) -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);
const PER_SEAT: Weight = Weight::from_parts(5_000_000, 0);

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn fund() -> Weight {
        // Reads: run, books, two accounts. Writes: books, two accounts.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 3))
    }

    fn claim() -> Weight {
        // Reads: run, seat, the seat's pay, books, two accounts. Writes: the seat's pay, books, two accounts.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 4))
    }

    fn claim_owner() -> Weight {
        // Reads: run, books, two accounts. Writes: books, two accounts.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 3))
    }

    fn pay_epoch(seats: u32) -> Weight {
        // Reads: run, books, account, issuance; each seat's pay. Writes: books, account, issuance; each seat's pay.
        let per_seat = T::DbWeight::get().reads_writes(1, 1).saturating_add(PER_SEAT);
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 3))
            .saturating_add(per_seat.saturating_mul(u64::from(seats)))
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
    fn pay_epoch(_: u32) -> Weight {
        Weight::zero()
    }
}
