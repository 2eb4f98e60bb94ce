//! Commits to another seat's digest of this window, and publishes that seat's bytes once they are published.
//!
//! Sees: the commitments on the chain before its own, and after the deadline the other bucket. Stopped by: PROT-9 and
//! PROT-11. The header names another seat, and before the deadline only a digest could be copied.

use crate::adversary::{
    Adversary, Commit, Content, MinerContext, OwnContribution, Presentation, Timing, Upload,
};

pub struct Copycat;

impl Adversary for Copycat {
    fn sequences(&mut self, _at: &MinerContext<'_>, _assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        Vec::new()
    }

    fn declares(&mut self, _at: &MinerContext<'_>, _trained: u32, assigned: u32) -> u32 {
        assigned
    }

    fn waits_for_commitments(&self) -> bool {
        true
    }

    fn present(&mut self, at: &MinerContext<'_>, _own: &OwnContribution<'_>) -> Presentation {
        let others: Vec<_> = at.commitments.iter().filter(|(uid, _)| *uid != at.uid).collect();
        let place = at.rng("victim").below(others.len() as u64);
        let Some((victim, digest)) = usize::try_from(place).ok().and_then(|place| others.get(place)) else {
            return Presentation::default();
        };
        Presentation {
            commits: vec![Commit { digest: *digest, when: Timing::InTime }],
            uploads: vec![Upload { under: *digest, what: Content::BytesOf(*victim), when: Timing::InTime }],
        }
    }
}
