//! Sends another's work of the last window under its own header.
//!
//! Sees: every valid contribution of earlier windows, which validators' buckets serve to anybody (PROT-15).
//! Ends at: PROT-24, what was learned elsewhere helps no more on its own sequences than on common ones.

use crate::adversary::{Adversary, Moment, moved, values};
use replica::Contribution;

pub struct CopycatLast;

impl Adversary for CopycatLast {
    fn sequences(&mut self, _at: &Moment<'_>, _assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        Vec::new()
    }

    fn declares(&mut self, _at: &Moment<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn looks_back(&self) -> u32 {
        1
    }

    /// With nothing to copy it sends nothing of worth: the window as it was.
    fn outcome(
        &mut self,
        at: &Moment<'_>,
        seen: &[Contribution],
        before: &[f32],
        _after: &[f32],
    ) -> Option<Vec<f32>> {
        let place = at.dice("victim").below(seen.len() as u64);
        let victim = usize::try_from(place).ok().and_then(|place| seen.get(place));
        let copied = victim.and_then(|victim| values(at.codec, victim));
        Some(copied.map_or_else(|| before.to_vec(), |copied| moved(before, &copied)))
    }
}
