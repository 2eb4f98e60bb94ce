//! Measures no contribution: it answers probes with the losses before the contributions, and posts the consensus of
//! the previous epoch.
//!
//! Sees: the sequences that all validators share, on which it runs the window's model once. Ends at: PROT-30, a
//! contribution changes a loss by more than the tolerance.

use gauntlet::{LossPair, Measured};
use protocol::{Uid, Window, view::WindowView};
use validator::{evaluate::Measurements, strategy::Strategy};

pub struct Prober;

impl Strategy for Prober {
    /// Reports for each seat that its contribution changed nothing.
    fn measured(&mut self, _window: Window, mut own: Measurements) -> Measurements {
        let unchanged = |pairs: &mut Vec<LossPair>| {
            pairs.iter_mut().for_each(|pair| *pair = LossPair::new(pair.sequence, pair.before, pair.before));
        };
        for Measured { own, common } in own.seats.values_mut() {
            unchanged(own);
            unchanged(common);
        }
        own
    }

    fn weights(&mut self, view: &WindowView, _own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        view.weights.iter().copied().filter(|(_, weight)| 0 < *weight).collect()
    }
}
