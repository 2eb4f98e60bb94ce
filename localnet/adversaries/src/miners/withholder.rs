//! Trains one step, declares all, and answers some validators only. These are fewer than two thirds, so that its
//! contribution is not valid, and more than one third if possible, so that it is not faulty either.
//!
//! Sees: the number of validators, and the order of its readers' requests. Stopped by: PROT-14 and PROT-15. A seat
//! that no validator could judge is unpaid: its window counts half of the one before it, and the next none.

use crate::adversary::{Adversary, MinerContext};
use store::faults::{Faults, Rate};

pub struct Withholder {
    pub validators: u16,
}

/// Number of sequences: one step, so that the contribution looks real.
const STEP: usize = 8;

impl Adversary for Withholder {
    fn sequences(&mut self, _at: &MinerContext<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned.truncate(STEP);
        assigned
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn faults(&self) -> Faults {
        let readers = u32::from(self.validators / 2).max(1);
        Faults { missing: Rate::AfterFirst(readers), ..Faults::default() }
    }
}
