//! Trains on a tenth of its sequences and declares all of them.
//!
//! Sees: its own assignment.
//! Ends at: PROT-24, the test on sequences drawn from the whole declared prefix shows a tenth of the mark; honestly declared, the tenth
//! would be paid as what it is (PROT-6, PROT-25).

use crate::adversary::{Adversary, Moment};

/// One part of so many is trained on.
pub const PARTS: usize = 10;

pub struct PartialData;

impl Adversary for PartialData {
    fn sequences(&mut self, _at: &Moment<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned.truncate(assigned.len().div_ceil(PARTS));
        assigned
    }

    fn declares(&mut self, _at: &Moment<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }
}
