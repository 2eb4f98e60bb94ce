//! Harms the model on purpose.
//!
//! Sees: its own work. Stopped by: PROT-17, a norm above the median is scaled down to it; PROT-14, the residual of a
//! huge one soon exceeds every legal norm; PROT-22 and PROT-25, certain harm costs most of the score for ten
//! evaluations.

use crate::adversary::{Adversary, MinerContext, TrainedWindow, delta, moved};
use protocol::submission::RMS_MAX;

#[derive(Clone, Copy, Debug)]
pub enum Poison {
    /// Negates its own work.
    SignFlip,
    /// Negates and scales its work so that it would dominate the merge.
    HugeNorm,
    /// Works honestly for `good_windows` windows, then sends one huge negated contribution.
    OneShot { good_windows: u32, worked: u32 },
}

/// Factor of a huge contribution.
const HUGE: f32 = 1000.0;

impl Poison {
    pub fn one_shot(good_windows: u32) -> Poison {
        Poison::OneShot { good_windows, worked: 0 }
    }
}

impl Adversary for Poison {
    fn outcome(&mut self, _at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { before, after, .. } = *trained;
        let factor = match self {
            Poison::SignFlip => -1.0,
            Poison::HugeNorm => -HUGE,
            Poison::OneShot { good_windows, worked } => {
                *worked = worked.saturating_add(1);
                if *worked == good_windows.saturating_add(1) { -HUGE } else { 1.0 }
            }
        };
        if factor == 1.0 {
            return Some(after.to_vec());
        }
        // A larger one would be a fault, and detected immediately (PROT-14).
        let most = RMS_MAX as f32 * 0.9;
        let work: Vec<f32> =
            delta(before, after).into_iter().map(|value| (value * factor).clamp(-most, most)).collect();
        Some(moved(before, &work))
    }
}
