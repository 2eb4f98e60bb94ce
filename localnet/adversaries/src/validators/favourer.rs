//! Posts ten times a friend's weight.
//!
//! Sees: the seats, and its friend's uid. Ends at: PROT-31, weight above the median of the stake is clipped and its
//! bond with it; PROT-27, the weights do not follow from the scores.

use protocol::{Uid, view::WindowView, weights};
use validator::strategy::Strategy;

pub struct Favourer {
    /// The favoured seat; `None`: the last seat of the window.
    pub friend: Option<Uid>,
}

/// Factor of the friend's weight.
pub const FAVOUR: f64 = 10.0;

impl Strategy for Favourer {
    fn weights(&mut self, view: &WindowView, own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        let Some(friend) = self.friend.or(view.slots.last().copied()) else { return own };
        let mean = own.iter().map(|(_, weight)| f64::from(*weight)).sum::<f64>() / own.len().max(1) as f64;
        let mut wanted: Vec<(Uid, f64)> = own
            .iter()
            .filter(|(uid, _)| *uid != friend)
            .map(|(uid, weight)| (*uid, f64::from(*weight)))
            .collect();
        let earned =
            own.iter().find(|(uid, _)| *uid == friend).map_or(mean, |(_, weight)| f64::from(*weight));
        // A friend that earned nothing is treated as an average seat; a friend without others gets everything.
        wanted.push((friend, FAVOUR * if 0.0 < earned { earned } else { 1.0 }));
        wanted.sort_by_key(|(uid, _)| *uid);
        weights::normalise(&wanted)
    }
}
