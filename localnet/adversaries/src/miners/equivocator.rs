//! Commits twice, and publishes the bytes of the first commitment.
//!
//! Sees: its own work.
//! Stopped by: PROT-11, the last commitment in time binds; and PROT-14, that commitment's bytes are missing.

use crate::adversary::{Adversary, Commit, MinerContext, OwnContribution, Presentation, Timing};
use protocol::{Digest, submission::Header};

pub struct Equivocator;

impl Adversary for Equivocator {
    fn present(&mut self, _at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        let trained = if own.header.trained == 1 { 2 } else { 1 };
        let other = Digest::of(&own.sealed_as(Header { trained, ..own.header }));
        let mut presentation = Presentation::honest(own);
        presentation.commits.push(Commit { digest: other, when: Timing::InTime });
        presentation
    }
}
