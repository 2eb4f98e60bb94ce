//! Its own honest work, with noise on top: as large as the work, or four times as large.
//!
//! Sees: its own work.
//! Ends at: PROT-22 and PROT-23, it helps less than those it is compared with, and PROT-25 where it harms.

use crate::adversary::{Adversary, MinerContext, delta, moved, norm};
use node::Contribution;

pub struct Noise {
    /// How much larger the noise is than the work.
    pub times: f64,
}

/// Of the louder one.
pub const LOUD: f64 = 4.0;

impl Adversary for Noise {
    fn outcome(
        &mut self,
        at: &MinerContext<'_>,
        _seen: &[Contribution],
        before: &[f32],
        after: &[f32],
    ) -> Option<Vec<f32>> {
        let mut work = delta(before, after);
        let mut rng = at.rng("noise");
        let rms = self.times * norm(&work) / libm::sqrt(work.len().max(1) as f64);
        for value in &mut work {
            *value += (rng.normal() * rms) as f32;
        }
        Some(moved(before, &work))
    }
}
