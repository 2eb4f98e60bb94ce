//! Uploads after the deadline, and has its bucket report false times.
//!
//! Sees: all contributions that were published before its own. Stopped by: PROT-1 and PROT-14. No rule reads a store's
//! clock: an object that is absent at the deadline block is missing.

use crate::adversary::{Adversary, MinerContext, OwnContribution, Presentation, Timing};
use store::faults::Faults;

/// Ten years: before every deadline.
const SKEW_SECONDS: i64 = -315_360_000;

pub struct ClockLiar;

impl Adversary for ClockLiar {
    fn present(&mut self, _at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        let mut late = Presentation::honest(own);
        late.uploads.iter_mut().for_each(|show| show.when = Timing::Late);
        late
    }

    fn faults(&self) -> Faults {
        Faults { clock_skew_seconds: SKEW_SECONDS, ..Faults::default() }
    }
}
