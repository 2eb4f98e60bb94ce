//! Submits the other seats' work of the last window under its own header: one seat's work unchanged, or the mean of
//! three, which is better than each of them and similar to none.
//!
//! Sees: valid contributions of earlier windows, which validators' buckets serve to every reader (PROT-15).
//! Stopped by: PROT-24. Work on other sequences helps no more on the own ones than on common ones; the mean of three
//! raises the common gain only.

use crate::adversary::{Adversary, MinerContext, TrainedWindow, moved, values};

pub struct CopycatLast {
    /// Number of contributions in the submitted mean.
    pub mixed: usize,
}

/// Number of contributions in a mixture.
pub const MIXTURE: usize = 3;

impl Adversary for CopycatLast {
    fn sequences(&mut self, _at: &MinerContext<'_>, _assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        Vec::new()
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn looks_back(&self) -> u32 {
        1
    }

    /// Returns the copied weights, or those of the window's model if there is nothing to copy.
    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { seen, before, .. } = *trained;
        // Start at a random contribution, and wrap around.
        let start = usize::try_from(at.rng("victims").below(seen.len() as u64)).unwrap_or(0);
        let mixed = seen.len().min(self.mixed);
        let mut mean = vec![0.0f32; before.len()];
        for victim in seen.iter().cycle().skip(start).take(mixed) {
            for (sum, value) in mean.iter_mut().zip(values(at.codec, victim)?) {
                *sum += value / mixed as f32;
            }
        }
        Some(moved(before, &mean))
    }
}
