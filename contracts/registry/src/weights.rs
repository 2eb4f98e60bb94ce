//! What the calls cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A benchmark replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

pub trait WeightInfo {
    fn create_run() -> Weight;
    fn register() -> Weight;
    fn set_endpoint() -> Weight;
    fn add_stake() -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn create_run() -> Weight {
        // Reads: block, count, account, holds, agenda. Writes: account, holds, run, count, agenda, state.
        CALL.saturating_add(T::DbWeight::get().reads_writes(5, 6))
    }

    fn register() -> Weight {
        // Reads: run, hotkey, count, account, holds, block. Writes: account, holds, seat, hotkey, count.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 5))
    }

    fn set_endpoint() -> Weight {
        // Reads: run, hotkey, seat. Writes: seat.
        CALL.saturating_add(T::DbWeight::get().reads_writes(3, 1))
    }

    fn add_stake() -> Weight {
        // Reads: run, seat, account, holds. Writes: account, holds, seat.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 3))
    }
}

/// For tests, where nothing has a price.
impl WeightInfo for () {
    fn create_run() -> Weight {
        Weight::zero()
    }
    fn register() -> Weight {
        Weight::zero()
    }
    fn set_endpoint() -> Weight {
        Weight::zero()
    }
    fn add_stake() -> Weight {
        Weight::zero()
    }
}
