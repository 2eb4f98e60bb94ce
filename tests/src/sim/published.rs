//! The published Gauntlet rules, applied to the same evidence, and the pay that they would give.
//!
//! From "Incentivizing Permissionless Distributed Learning of LLMs" (arXiv 2505.21684), with the constants of its
//! published code. The own-data score is an exponential average (weight 0.05) of the sign of the relative gain on own
//! data minus the relative gain on random data. A Plackett–Luce rating round per window ranks seats by their gain on
//! random data (`β = 7`, `τ = 0.1`); an invalid contribution ranks last. The score is the product of own-data score
//! and rating, times 0.75 for each window with a fault. Weights are proportional to the squared score.
//!
//! Two conditions here favour the published rules. They see as many sequences as ours instead of eight, and every seat
//! is evaluated in every window instead of five or twenty seats. Their check of synchrony always passes, because all
//! seats hold the same model. They ignore evidence that they do not define, such as the declared share of the work.

use super::record::SeatRecord;
use gauntlet::{Evidence, LossPair, Observed, Rating, rating};
use protocol::{RunParams, SeatId, Uid, Window};
use std::collections::BTreeMap;

/// Decay of the own-data score per window.
const DECAY: f64 = 0.95;
/// Factor of the score for each window with a fault.
const FAULT_FACTOR: f64 = 0.75;
/// Weights are proportional to this power of the score.
const POWER: i32 = 2;
/// Epochs between the end of an epoch and its pay, as on the chain: weight votes are revealed in the next epoch.
const PAY_DELAY_EPOCHS: usize = 1;

/// The reputations of all seats, and their pay.
#[derive(Debug, Default)]
pub struct Judge {
    seats: BTreeMap<SeatId, Reputation>,
    /// Weights of unpaid epochs, oldest first.
    unpaid: Vec<BTreeMap<Uid, f64>>,
    earned: BTreeMap<Uid, f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Reputation {
    rating: Rating,
    own_data_score: f64,
    faults: i32,
}

impl Judge {
    /// Updates the reputations with the evidence of one window.
    pub fn judge(&mut self, evidence: &[Evidence]) {
        for seen in evidence {
            self.seats.entry(seen.seat).or_default();
        }
        // Each participant's gain on random data; a fault ranks below every gain.
        let mut participants = Vec::new();
        for seen in evidence {
            let reputation = self.seats.get_mut(&seen.seat).expect("inserted above");
            match &seen.observed {
                Observed::Valid { measured: Some(measured), .. } => {
                    let (own, random) = (relative_gain(&measured.own), relative_gain(&measured.common));
                    let sign = if own > random { 1.0 } else { -1.0 };
                    reputation.own_data_score = DECAY * reputation.own_data_score + (1.0 - DECAY) * sign;
                    participants.push((seen.seat, random));
                }
                Observed::Faulty { .. } => {
                    reputation.faults += 1;
                    participants.push((seen.seat, f64::NEG_INFINITY));
                }
                Observed::Valid { .. } | Observed::Absent | Observed::Unobserved | Observed::Unfetched => {}
            }
        }
        let rank = |gain: f64| participants.iter().filter(|(_, other)| gain < *other).count() as u32 + 1;
        let ranked: Vec<(Rating, u32)> =
            participants.iter().map(|(seat, gain)| (self.seats[seat].rating.aged(1), rank(*gain))).collect();
        for ((seat, _), rating) in participants.iter().zip(rating::update(&ranked)) {
            self.seats.get_mut(seat).expect("every participant has a reputation").rating = rating;
        }
    }

    /// Returns the current weights: squared scores, normalised to a sum of 1.
    pub fn weights(&self) -> BTreeMap<Uid, f64> {
        let score = |reputation: &Reputation| {
            reputation.rating.ordinal().max(0.0)
                * reputation.own_data_score.max(0.0)
                * FAULT_FACTOR.powi(reputation.faults)
        };
        let powers: BTreeMap<Uid, f64> =
            self.seats.iter().map(|(seat, reputation)| (seat.uid, score(reputation).powi(POWER))).collect();
        let sum: f64 = powers.values().sum();
        powers.into_iter().map(|(uid, power)| (uid, if 0.0 < sum { power / sum } else { 0.0 })).collect()
    }

    /// Writes the pay until the end of `window` into the miners' records, in uid order. Every epoch pays 1 in total,
    /// with the chain's delay.
    pub fn credit(&mut self, params: &RunParams, window: Window, records: &mut [SeatRecord]) {
        if window.next().epoch(params.epoch_windows) != window.epoch(params.epoch_windows) {
            self.unpaid.push(self.weights());
            if PAY_DELAY_EPOCHS < self.unpaid.len() {
                for (uid, share) in self.unpaid.remove(0) {
                    *self.earned.entry(uid).or_default() += share;
                }
            }
        }
        for (uid, record) in (0..).map(Uid).zip(records) {
            record.earned_published = self.earned.get(&uid).copied().unwrap_or_default();
        }
    }
}

/// Returns the share of the mean loss that a contribution removes.
fn relative_gain(pairs: &[LossPair]) -> f64 {
    let before: f64 = pairs.iter().map(|pair| pair.before).sum();
    let after: f64 = pairs.iter().map(|pair| pair.after).sum();
    if 0.0 < before { (before - after) / before } else { 0.0 }
}
