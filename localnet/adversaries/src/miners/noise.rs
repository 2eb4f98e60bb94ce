//! Adds noise to its honest work: as large as the work, or four times as large.
//!
//! Sees: its own work.
//! Stopped by: PROT-22 and PROT-23, it helps less than the seats it is compared with; and PROT-25 if it harms.

use crate::adversary::{Adversary, MinerContext, TrainedWindow, delta, moved, norm};

pub struct Noise {
    /// Norm of the noise, as a multiple of the work's.
    pub times: f64,
}

/// Factor of the louder variant.
pub const LOUD: f64 = 4.0;

impl Adversary for Noise {
    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { before, after, .. } = *trained;
        let mut work = delta(before, after);
        let mut rng = at.rng("noise");
        let rms = self.times * norm(&work) / libm::sqrt(work.len().max(1) as f64);
        for value in &mut work {
            *value += (rng.normal() * rms) as f32;
        }
        Some(moved(before, &work))
    }
}
