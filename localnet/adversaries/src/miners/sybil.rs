//! Two seats share one training: the first trains, the second submits the same work under its own header.
//!
//! Sees: everything of both seats, by a private channel ([`crate::SharedMailbox`]). Stopped by: PROT-24 for each seat,
//! because the second seat's work was made on the first one's sequences; and near-duplicates (PROT-14).

use crate::{
    adversary::{Adversary, MinerContext, TrainedWindow, delta, moved},
    shared_mailbox::SharedMailbox,
};

pub struct Sybil {
    pair: u16,
    trains: bool,
    mailbox: SharedMailbox,
}

impl Sybil {
    /// Returns a seat's strategy. Indices 0 and 1 are a pair, then 2 and 3, and so on; the even seat trains.
    pub fn new(index: u16, mailbox: SharedMailbox) -> Sybil {
        Sybil { pair: index / 2, trains: index.is_multiple_of(2), mailbox }
    }
}

impl Adversary for Sybil {
    fn sequences(&mut self, _at: &MinerContext<'_>, assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        if self.trains { assigned } else { Vec::new() }
    }

    fn declares(&mut self, _at: &MinerContext<'_>, trained: u32, assigned: u32) -> u32 {
        if self.trains { trained } else { assigned }
    }

    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { before, after, .. } = *trained;
        if self.trains {
            if let Err(error) = self.mailbox.put(self.pair, at.window, &delta(before, after)) {
                tracing::warn!(%error, "the other seat will find nothing");
            }
            return Some(after.to_vec());
        }
        let work = self.mailbox.get(self.pair, at.window).filter(|work| work.len() == before.len())?;
        Some(moved(before, &work))
    }
}
