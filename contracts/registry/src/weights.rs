//! What the calls cost, counted by hand: each storage item read and written, and a margin for the computing.
//!
//! A measurement replaces these figures; until then they err on the dear side (PROT-33).

use frame::weights_prelude::*;

/// One function for each benchmark.
pub trait WeightInfo {
    fn create_run() -> Weight;
    /// A seat is free.
    fn register() -> Weight;
    /// None is free, and one of `seats` is replaced.
    fn replace(seats: u32) -> Weight;
    fn set_endpoint() -> Weight;
    fn add_stake() -> Weight;
    fn unstake() -> Weight;
    fn leave() -> Weight;
    /// `seats` of the signer's, current and former, have stake on its way out.
    fn withdraw(seats: u32) -> Weight;
    fn rotate_hotkey() -> Weight;
    fn set_terms() -> Weight;
    fn drop_terms() -> Weight;
    fn set_stopped() -> Weight;
    fn offer_run() -> Weight;
    fn accept_run() -> Weight;
    /// `changes` seats change hands as a window opens, without what others do about it.
    fn window_opens(changes: u32) -> Weight;
    /// A seat with as many chunks unbonding as it can have, without what is nominated behind it.
    fn slash() -> Weight;
}

/// Counted by hand, in the reads and writes of `T::DbWeight`.
pub struct CountedByHand<T>(PhantomData<T>);

const CALL: Weight = Weight::from_parts(30_000_000, 0);

/// A list as long as it gets is read, changed and written.
const LIST: Weight = Weight::from_parts(60_000_000, 0);

/// A seat is looked at.
const SEAT: Weight = Weight::from_parts(3_000_000, 0);

impl<T: frame_system::Config> WeightInfo for CountedByHand<T> {
    fn create_run() -> Weight {
        // Reads: block, count, account, holds, agenda. Writes: account, holds, run, count, agenda, state.
        CALL.saturating_add(T::DbWeight::get().reads_writes(5, 6))
    }

    fn register() -> Weight {
        // Reads: run, hotkey (2), changes, price, roster, coldkey, holds, issuance, block, hotkey's account.
        // Writes: coldkey, holds, issuance, price, seat, hotkey, roster, hotkey's account.
        CALL.saturating_add(LIST).saturating_add(T::DbWeight::get().reads_writes(11, 8))
    }

    fn replace(seats: u32) -> Weight {
        // Of each seat: itself, its pay, what is behind it. Else as above, with changes written and not the seat.
        let looked_at = SEAT.saturating_add(T::DbWeight::get().reads(3)).saturating_mul(seats.into());
        Self::register().saturating_add(LIST).saturating_add(looked_at)
    }

    fn set_endpoint() -> Weight {
        // Reads: run, hotkey, seat, block. Writes: seat.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 1))
    }

    fn add_stake() -> Weight {
        // Reads: run, seat, account, holds. Writes: account, holds, seat.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 3))
    }

    fn unstake() -> Weight {
        // Reads: run, seat, block, chunks. Writes: seat, chunks.
        CALL.saturating_add(T::DbWeight::get().reads_writes(4, 2))
    }

    fn leave() -> Weight {
        // Reads: run, seat, changes, hotkey's account. Writes: changes, hotkey's account.
        CALL.saturating_add(LIST).saturating_add(T::DbWeight::get().reads_writes(4, 2))
    }

    fn withdraw(seats: u32) -> Weight {
        // Reads: run, block, account, holds; of each seat: the next key, chunks. Writes: account, holds; of each seat: chunks, holder.
        let each = SEAT.saturating_add(T::DbWeight::get().reads_writes(2, 2)).saturating_mul(seats.into());
        CALL.saturating_add(T::DbWeight::get().reads_writes(5, 2)).saturating_add(each)
    }

    fn rotate_hotkey() -> Weight {
        // Reads: run, seat, hotkey (2), changes, hotkey's account. Writes: changes, hotkey's account.
        CALL.saturating_add(LIST).saturating_add(T::DbWeight::get().reads_writes(6, 2))
    }

    fn set_terms() -> Weight {
        // Reads: run, what waits. Writes: what waits.
        CALL.saturating_add(T::DbWeight::get().reads_writes(2, 1))
    }

    fn drop_terms() -> Weight {
        Self::set_terms()
    }

    fn set_stopped() -> Weight {
        Self::set_terms()
    }

    fn offer_run() -> Weight {
        // Reads: run. Writes: offer.
        CALL.saturating_add(T::DbWeight::get().reads_writes(1, 1))
    }

    fn accept_run() -> Weight {
        // Reads: run, offer, two accounts with their holds. Writes: all of these.
        CALL.saturating_add(T::DbWeight::get().reads_writes(6, 6))
    }

    fn window_opens(changes: u32) -> Weight {
        // Reads: run, what waits, changes, roster, block. Writes: run, what waits, changes, roster, former terms.
        // Of each change: seat, hotkey (2), hotkey's account, chunks, former seat are read and written.
        let each = SEAT.saturating_add(T::DbWeight::get().reads_writes(7, 7)).saturating_mul(changes.into());
        CALL.saturating_add(LIST).saturating_add(T::DbWeight::get().reads_writes(5, 5)).saturating_add(each)
    }

    fn slash() -> Weight {
        // Reads: run, block, seat, former seat, chunks, two accounts, holds, issuance. Writes: seat, chunks, two accounts, holds, issuance.
        CALL.saturating_add(T::DbWeight::get().reads_writes(9, 6))
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
    fn replace(_: u32) -> Weight {
        Weight::zero()
    }
    fn set_endpoint() -> Weight {
        Weight::zero()
    }
    fn add_stake() -> Weight {
        Weight::zero()
    }
    fn unstake() -> Weight {
        Weight::zero()
    }
    fn leave() -> Weight {
        Weight::zero()
    }
    fn withdraw(_: u32) -> Weight {
        Weight::zero()
    }
    fn rotate_hotkey() -> Weight {
        Weight::zero()
    }
    fn set_terms() -> Weight {
        Weight::zero()
    }
    fn drop_terms() -> Weight {
        Weight::zero()
    }
    fn set_stopped() -> Weight {
        Weight::zero()
    }
    fn offer_run() -> Weight {
        Weight::zero()
    }
    fn accept_run() -> Weight {
        Weight::zero()
    }
    fn window_opens(_: u32) -> Weight {
        Weight::zero()
    }
    fn slash() -> Weight {
        Weight::zero()
    }
}
