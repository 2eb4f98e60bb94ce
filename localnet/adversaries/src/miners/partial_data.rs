//! Trains on a part of its sequences, a tenth or a half, and declares all of them.
//!
//! Sees: its own assignment.
//! Ends at: PROT-24, the test on sequences drawn from the whole declared prefix shows that part of the mark; honestly declared, it
//! would be paid as what it is (PROT-6, PROT-25).

use crate::adversary::{Adversary, MinerContext};

pub struct PartialData {
    /// One part of so many is trained on.
    pub parts: usize,
}

impl Adversary for PartialData {
    fn sequences(&mut self, _at: &MinerContext<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned.truncate(assigned.len().div_ceil(self.parts.max(1)));
        assigned
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }
}
