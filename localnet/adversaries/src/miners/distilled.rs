//! Several seats share one training: the first trains, and each other adds one step on its own data, large enough that
//! no two contributions are near-duplicates.
//!
//! Sees: everything of its seats, by a private channel ([`crate::SharedMailbox`]). Stopped by: PROT-24 for each seat:
//! one step on eight sequences shows a small gap on the whole prefix.

use crate::{
    adversary::{Adversary, MinerContext, TrainedWindow, delta, moved, norm},
    shared_mailbox::SharedMailbox,
};

/// Mailbox number of the seats. No pair of sybils has it.
const GROUP: u16 = u16::MAX;
/// Number of sequences in the own step.
const STEP: usize = 8;
/// Norm of the own step as a multiple of the shared work's: their cosine is at most 0.88.
const OWN_PART: f64 = 0.55;

pub struct Distilled {
    trains: bool,
    mailbox: SharedMailbox,
}

impl Distilled {
    /// Returns a seat's strategy. The seat with index 0 trains for all.
    pub fn new(index: u16, mailbox: SharedMailbox) -> Distilled {
        Distilled { trains: index == 0, mailbox }
    }
}

impl Adversary for Distilled {
    fn sequences(&mut self, _at: &MinerContext<'_>, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        if !self.trains {
            assigned.truncate(STEP);
        }
        assigned
    }

    /// Returns true: the first seat has no more time than an honest one, so it does not wait either.
    fn trains_ahead(&self) -> bool {
        self.trains
    }

    fn declares(&mut self, _at: &MinerContext<'_>, trained: u32, assigned: u32) -> u32 {
        if self.trains { trained } else { assigned }
    }

    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { before, after, .. } = *trained;
        let own = delta(before, after);
        if self.trains {
            if let Err(error) = self.mailbox.put(GROUP, at.window, &own) {
                tracing::warn!(%error, "the other seats will find nothing");
            }
            return Some(after.to_vec());
        }
        let shared = self.mailbox.get(GROUP, at.window).filter(|work| work.len() == before.len())?;
        let step = norm(&own);
        let factor = if 0.0 < step { (OWN_PART * norm(&shared) / step) as f32 } else { 0.0 };
        let sum: Vec<f32> = shared.iter().zip(&own).map(|(shared, own)| shared + factor * own).collect();
        Some(moved(before, &sum))
    }
}
