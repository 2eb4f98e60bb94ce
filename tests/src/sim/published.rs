//! The published Gauntlet rules, transcribed plainly, judging the same evidence on the side: what they would have paid.
//!
//! From "Incentivizing Permissionless Distributed Learning of LLMs" (arXiv 2505.21684), with the constants of the code that ran it: the sign
//! of *relative gain on own data less relative gain on random data* moves an average by a twentieth; a Plackett–Luce match by gain on random
//! data, with `β = 7` and `τ = 0.1`, rates everybody, a missing or invalid contribution being last; the score is the product of the two,
//! times 0.75 for each window with a fault; weights are proportional to its square.
//!
//! Two things favour it here. It sees as many sequences as our rules do, where it was run on eight; and everyone is evaluated in every
//! window, where it chose five or twenty. Its check of synchrony is always passed: here nobody is out of step. What it knows nothing of, the
//! declared share of the work among it, it does not use.

use super::record::SeatRecord;
use protocol::{RunParams, SeatId, Uid, Window};
use std::collections::BTreeMap;
use validator::gauntlet::{Evidence, LossPair, Observed, Rating, rating};

/// What the average keeps of itself.
const KEPT: f64 = 0.95;
/// What a window with a fault multiplies the score by.
const FAULT: f64 = 0.75;
/// Weights are proportional to this power of the score.
const POWER: i32 = 2;
/// Epochs from the end of one to its pay: as on the chain, where ballots are hidden for an epoch.
const PAID_LATER_EPOCHS: usize = 1;

/// What is remembered of the seats.
#[derive(Debug, Default)]
pub struct Judge {
    seats: BTreeMap<SeatId, Standing>,
    /// Weights of the epochs that are not paid yet, the oldest first.
    unpaid: Vec<BTreeMap<Uid, f64>>,
    earned: BTreeMap<Uid, f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Standing {
    rating: Rating,
    mark: f64,
    faults: i32,
}

impl Judge {
    /// One window.
    pub fn judge(&mut self, evidence: &[Evidence]) {
        for seen in evidence {
            self.seats.entry(seen.seat).or_default();
        }
        // The random-data gain of each seat that takes part; a fault is worse than any.
        let mut players = Vec::new();
        for seen in evidence {
            let standing = self.seats.get_mut(&seen.seat).expect("it was made above");
            match &seen.observed {
                Observed::Valid { measured: Some(measured), .. } => {
                    let (own, random) = (relative_gain(&measured.own), relative_gain(&measured.common));
                    let sign = if own > random { 1.0 } else { -1.0 };
                    standing.mark = KEPT * standing.mark + (1.0 - KEPT) * sign;
                    players.push((seen.seat, random));
                }
                Observed::Faulty { .. } => {
                    standing.faults += 1;
                    players.push((seen.seat, f64::NEG_INFINITY));
                }
                Observed::Valid { .. } | Observed::Absent | Observed::Unobserved => {}
            }
        }
        let place = |gain: f64| players.iter().filter(|(_, other)| gain < *other).count() as u32 + 1;
        let ranked: Vec<(Rating, u32)> =
            players.iter().map(|(seat, gain)| (self.seats[seat].rating.aged(1), place(*gain))).collect();
        for ((seat, _), rating) in players.iter().zip(rating::update(&ranked)) {
            self.seats.get_mut(seat).expect("it plays").rating = rating;
        }
    }

    /// Weights of the seats as they stand: squares of the scores, as shares of one.
    pub fn weights(&self) -> BTreeMap<Uid, f64> {
        let score = |standing: &Standing| {
            standing.rating.ordinal().max(0.0) * standing.mark.max(0.0) * FAULT.powi(standing.faults)
        };
        let powers: BTreeMap<Uid, f64> =
            self.seats.iter().map(|(seat, standing)| (seat.uid, score(standing).powi(POWER))).collect();
        let sum: f64 = powers.values().sum();
        powers.into_iter().map(|(uid, power)| (uid, if 0.0 < sum { power / sum } else { 0.0 })).collect()
    }

    /// At the end of a window: what was credited by now is written into the records of the miners, in uid order. An epoch is paid as late
    /// as the chain pays it, and as much.
    pub fn credit(&mut self, params: &RunParams, window: Window, records: &mut [SeatRecord]) {
        if window.next().epoch(params.epoch_windows) != window.epoch(params.epoch_windows) {
            self.unpaid.push(self.weights());
            if PAID_LATER_EPOCHS < self.unpaid.len() {
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

/// Mean loss before less mean loss after, over mean loss before.
fn relative_gain(pairs: &[LossPair]) -> f64 {
    let before: f64 = pairs.iter().map(|pair| pair.before).sum();
    let after: f64 = pairs.iter().map(|pair| pair.after).sum();
    if 0.0 < before { (before - after) / before } else { 0.0 }
}
