//! Does not train, and sends valid bytes that do not improve the model.
//!
//! Sees: nothing. Many such seats shift the medians of a window. If medians count seats, honest work is scaled down to
//! almost nothing, and a seat that stops working keeps its share. Stopped by: PROT-14, a contribution that changes no
//! weight is a fault; PROT-17 and PROT-24, medians count consensus weight and proven work.

use crate::adversary::{Adversary, MinerContext, OwnContribution, Presentation};
use protocol::{Window, contribution, submission};

/// Level of a contribution that changes no weight: the smallest one.
const MUTE_LEVEL: f32 = 1.0 / (1u32 << 30) as f32;
/// Level of a contribution that changes weights by a few units in their last place.
const JUNK_LEVEL: f32 = 1e-7;

/// A seat that sends one small level with random signs.
#[derive(Clone, Copy, Debug)]
pub struct Useless {
    level: f32,
    /// Number of honest windows before the first one without work.
    good_windows: u32,
    /// First window without work.
    since: Option<Window>,
}

impl Useless {
    pub fn mute() -> Useless {
        Useless { level: MUTE_LEVEL, good_windows: 0, since: None }
    }

    pub fn junk() -> Useless {
        Useless { level: JUNK_LEVEL, good_windows: 0, since: None }
    }

    /// Returns a seat that works for `good_windows` windows, then sends junk.
    pub fn quitter(good_windows: u32) -> Useless {
        Useless { level: JUNK_LEVEL, good_windows, since: None }
    }

    fn works(&mut self, window: Window) -> bool {
        window < *self.since.get_or_insert(Window(window.0.saturating_add(self.good_windows)))
    }
}

impl Adversary for Useless {
    fn sequences(&mut self, at: &MinerContext<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        if !self.works(at.window) {
            assigned.clear();
        }
        assigned
    }

    fn declares(&mut self, at: &MinerContext<'_>, trained: u32, assigned: u32) -> u32 {
        if self.works(at.window) { trained } else { assigned }
    }

    fn present(&mut self, at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        if self.works(at.window) { Presentation::honest(own) } else { of_level(self.level, at, own) }
    }
}

/// Returns a contribution with this level at every entry, and random signs.
pub(crate) fn of_level(level: f32, at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
    let mut rng = at.rng("signs");
    let values: Vec<f32> =
        (0..at.codec.schema().values()).map(|_| level.copysign(rng.normal() as f32)).collect();
    let body = contribution::encode(at.codec.schema(), at.codec.density(), &values);
    let body = body.expect("finite values of the schema's number can be encoded");
    Presentation::of(submission::seal(&own.header, &body, own.signer).into())
}
