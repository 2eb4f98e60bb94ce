//! Invents its measurements, and judges by them as if they were true, so that receipts, ratings and weights are
//! consistent.
//!
//! Sees: the seats. Ends at: PROT-27, an audit finds other losses, and PROT-31, weights above the median of the stake
//! are clipped.

use crate::seeded_rng::SeededRng;
use gauntlet::LossPair;
use protocol::Window;
use validator::{evaluate::Measurements, strategy::Strategy};

pub struct Inventor {
    pub seed: u64,
}

/// Standard deviation of invented losses from those before, in nats per token.
const SPREAD: f64 = 0.05;

impl Strategy for Inventor {
    fn measured(&mut self, window: Window, mut own: Measurements) -> Measurements {
        let mut rng = SeededRng::new(&[b"inventor", &self.seed.to_le_bytes(), &window.0.to_le_bytes()]);
        for measured in own.seats.values_mut() {
            // A bias for each seat, so that the result is more than noise.
            let liking = [rng.normal(), rng.normal()].map(|throw| throw * SPREAD);
            let mut invent = |pairs: &mut Vec<LossPair>, liking: f64| {
                for pair in pairs {
                    let after = pair.before - liking + rng.normal() * SPREAD / 4.0;
                    *pair = LossPair::new(pair.sequence, pair.before, after);
                }
            };
            invent(&mut measured.own, liking[0]);
            invent(&mut measured.common, liking[1]);
        }
        own
    }
}
