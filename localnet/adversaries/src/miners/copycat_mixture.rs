//! Sends the mean of what three others showed in the last window: better than any one of them, and like none.
//!
//! Sees: every valid contribution of earlier windows, which validators' buckets serve to anybody (PROT-15).
//! Ends at: PROT-24, as for a plain copy; the mean makes its common gain higher, not its gain on its own sequences.

use crate::adversary::{Adversary, Moment, moved, values};
use replica::Contribution;

/// So many are mixed.
pub const MIXED: usize = 3;

pub struct CopycatMixture;

impl Adversary for CopycatMixture {
    fn sequences(&mut self, _at: &Moment<'_>, _assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        Vec::new()
    }

    fn declares(&mut self, _at: &Moment<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn looks_back(&self) -> u32 {
        1
    }

    fn outcome(
        &mut self,
        at: &Moment<'_>,
        seen: &[Contribution],
        before: &[f32],
        _after: &[f32],
    ) -> Option<Vec<f32>> {
        // Any three: it begins somewhere and goes round.
        let start = usize::try_from(at.dice("victims").below(seen.len() as u64)).unwrap_or(0);
        let mut mean = vec![0.0f32; before.len()];
        let mixed = seen.len().min(MIXED);
        for victim in seen.iter().cycle().skip(start).take(mixed) {
            for (sum, value) in mean.iter_mut().zip(values(at.codec, victim)?) {
                *sum += value / mixed as f32;
            }
        }
        Some(moved(before, &mean))
    }
}
