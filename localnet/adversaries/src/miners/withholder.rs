//! Trains a step, declares all, and shows what it commits to to some validators only: to fewer than two thirds, so that it is not valid, and
//! to more than one third where that can be, so that it is not faulty either.
//!
//! Sees: how many validators there are, and the order in which its readers ask.
//! Ends at: PROT-14 and PROT-15. A seat that nobody could judge is unpaid: its window counts for half of the one before it, and that one
//! for nothing.

use crate::adversary::{Adversary, FaultyProxy, MinerContext};

pub struct Withholder {
    pub validators: u16,
}

/// One step, so that what it shows to some looks like something.
const STEP: usize = 8;

impl Adversary for Withholder {
    fn sequences(&mut self, _at: &MinerContext<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned.truncate(STEP);
        assigned
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn proxy(&self) -> FaultyProxy {
        FaultyProxy::ForTheFirst((self.validators / 2).max(1))
    }
}
