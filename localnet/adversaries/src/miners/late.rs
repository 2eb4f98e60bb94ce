//! Is late: with its commitment in even windows, with its upload in odd ones.
//!
//! Sees: all commitments, or uploads, before its own. Stopped by: PROT-11 and PROT-14. The chain accepts no commitment
//! after the deadline, and validators attest the objects found by their own deadline.

use crate::adversary::{Adversary, MinerContext, OwnContribution, Presentation, Timing};

pub struct Late;

impl Adversary for Late {
    fn present(&mut self, at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        let mut honest = Presentation::honest(own);
        if at.window.0.is_multiple_of(2) {
            honest.commits.iter_mut().for_each(|commit| commit.when = Timing::Late);
        } else {
            honest.uploads.iter_mut().for_each(|show| show.when = Timing::Late);
        }
        honest
    }
}
