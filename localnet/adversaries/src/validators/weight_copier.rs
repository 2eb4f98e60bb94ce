//! Scores no seat: posts the consensus of the previous epoch as its own weights.
//!
//! Sees: the consensus, which is public. Ends at: PROT-30 and PROT-31, the copied weights are an epoch old, and its
//! bonds grow in seats that were good before instead of seats that are good now.

use protocol::{Uid, Window, view::WindowView};
use validator::{evaluate::Measurements, strategy::Strategy};

pub struct WeightCopier;

impl Strategy for WeightCopier {
    /// Discards the program's measurements, and reports that it reached no seat.
    fn measured(&mut self, _window: Window, mut own: Measurements) -> Measurements {
        own.seats.clear();
        own
    }

    fn weights(&mut self, view: &WindowView, _own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        view.weights.iter().copied().filter(|(_, weight)| 0 < *weight).collect()
    }
}
