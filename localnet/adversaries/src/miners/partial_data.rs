//! Trains on a tenth or a half of its sequences, and declares all of them.
//!
//! Sees: its own assignment. Stopped by: PROT-24. The test on sequences drawn from the whole declared prefix shows the
//! missing part. Declared honestly, the work would be paid in proportion (PROT-6, PROT-25).

use crate::adversary::{Adversary, MinerContext};

pub struct PartialData {
    /// Number of parts of its data, of which it trains on one.
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
