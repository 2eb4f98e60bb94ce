//! Trains as much as it should, on sequences of its own choice.
//!
//! Sees: its own assignment.
//! Ends at: PROT-24, the gain on the sequences that it was dealt is no larger than elsewhere.

use crate::adversary::{Adversary, MinerContext};

pub struct WrongData;

impl Adversary for WrongData {
    fn sequences(&mut self, at: &MinerContext<'_>, assigned: Vec<u64>, of: u64) -> Vec<u64> {
        let mut rng = at.rng("data");
        assigned.iter().map(|_| rng.below(of)).collect()
    }
}
