//! Trains as much as assigned, on sequences of its own choice.
//!
//! Sees: its own assignment.
//! Stopped by: PROT-24. The gain on its assigned sequences is no larger than elsewhere.

use crate::adversary::{Adversary, MinerContext};

pub struct WrongData;

impl Adversary for WrongData {
    fn sequences(&mut self, at: &MinerContext<'_>, assigned: Vec<u64>, of: u64) -> Vec<u64> {
        let mut rng = at.rng("data");
        assigned.iter().map(|_| rng.below(of)).collect()
    }
}
