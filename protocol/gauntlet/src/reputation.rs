//! The reputation of each seat, kept from window to window. It is saved with each verdict: a restart changes no
//! rating and forgives no penalty (PROT-25).

use super::{exact, median::weighted_median, rating::Rating, score};
pub use protocol::receipt::{Penalty, PenaltyReason};
use protocol::{SeatId, Uid, Window};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The part of the score that a new penalty leaves (PROT-25).
const PENALTY_FACTOR: f64 = 0.25;
/// Evaluations after which a penalty ends.
const RECOVERY_EVALUATIONS: u32 = 10;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Reputations {
    /// The last window judged.
    pub judged: Option<Window>,
    #[serde(with = "as_list")]
    pub seats: BTreeMap<SeatId, Reputation>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reputation {
    pub rating: Rating,
    /// `m`: the moving average of own-data outcomes, from −1 to 1 (PROT-24).
    #[serde(with = "exact")]
    pub own_data_score: f64,
    /// The variance of `own_data_score`, from the errors of its gaps (PROT-24).
    #[serde(with = "exact")]
    pub own_data_variance: f64,
    /// Current penalties, oldest first. Each ends after ten evaluations, so there are at most ten for one reason.
    pub penalties: Vec<Penalty>,
    /// The window in which this validator first saw the seat. Its wait for an evaluation counts from here.
    pub first_seen: Window,
    pub last_evaluated: Option<Window>,
    /// Windows of valid work since the last evaluation. The next measurement counts for all of them (PROT-24).
    pub unmeasured: u32,
    pub evaluations: u32,
    pub faults: u32,
    /// `t/n` of the last window in which it was observed (PROT-6).
    #[serde(with = "exact")]
    pub share: f64,
    /// The scores of the last epoch's number of judged windows, oldest first (PROT-26).
    pub recent: Vec<WindowScore>,
}

/// One window's score and penalty.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct WindowScore {
    /// Score before penalties.
    #[serde(with = "exact")]
    pub score: f64,
    /// The product of the penalties' factors.
    #[serde(with = "exact")]
    pub penalty: f64,
}

impl WindowScore {
    /// Returns the score after penalties.
    pub fn paid(&self) -> f64 {
        self.score * self.penalty
    }
}

/// Returns the factor of a penalty: 0.25 at first, rising linearly to 1.
pub fn factor(penalty: &Penalty) -> f64 {
    1.0 - (1.0 - PENALTY_FACTOR) * f64::from(penalty.remaining) / f64::from(RECOVERY_EVALUATIONS)
}

impl Reputation {
    fn new(first_seen: Window) -> Reputation {
        Reputation {
            rating: Rating::START,
            own_data_score: 0.0,
            own_data_variance: 0.0,
            penalties: Vec::new(),
            first_seen,
            last_evaluated: None,
            unmeasured: 0,
            evaluations: 0,
            faults: 0,
            share: 0.0,
            recent: Vec::new(),
        }
    }

    /// `rating factor · settled own-data score · (t/n)`: the score before penalties, at a median ordinal of `median`
    /// and the field's own-data score `field` (PROT-25).
    pub fn score(&self, median: f64, field: f64) -> f64 {
        let settled = score::settled(self.own_data_score, self.own_data_variance, field);
        self.rating.rating_factor(median) * settled * self.share
    }

    /// The share of a window's work that the seat has proven: `t/n` times the proven own-data score.
    pub(super) fn claim(&self) -> f64 {
        score::proven(self.own_data_score, self.own_data_variance) * self.share
    }

    pub fn penalty_factor(&self) -> f64 {
        self.penalties.iter().map(factor).product()
    }

    /// Returns the number of windows since the seat was last evaluated, or first seen.
    pub fn waited(&self, window: Window) -> u32 {
        window.0.saturating_sub(self.last_evaluated.unwrap_or(self.first_seen).0)
    }

    pub(super) fn penalise(&mut self, reason: PenaltyReason, window: Window) {
        self.penalties.push(Penalty { reason, since: window, remaining: RECOVERY_EVALUATIONS });
    }

    /// Adds the penalty for a fault that the seat's own bytes prove, in place of an earlier one.
    pub(super) fn proved_faulty(&mut self, window: Window) {
        self.penalties.retain(|penalty| penalty.reason != PenaltyReason::Fault);
        self.penalise(PenaltyReason::Fault, window);
    }

    /// Counts one more evaluation.
    pub(super) fn recover(&mut self) {
        for penalty in &mut self.penalties {
            penalty.remaining = penalty.remaining.saturating_sub(1);
        }
        self.penalties.retain(|penalty| penalty.remaining > 0);
    }
}

impl Reputations {
    /// Returns these reputations with an entry for each of `seats`. Earlier holders of their uids are removed: a new
    /// holder inherits nothing.
    pub(super) fn opened_for(&self, window: Window, seats: impl Iterator<Item = SeatId>) -> Reputations {
        let seats: BTreeMap<Uid, SeatId> = seats.map(|seat| (seat.uid, seat)).collect();
        let mut opened = self.clone();
        opened.seats.retain(|known, _| seats.get(&known.uid).is_none_or(|seat| known == seat));
        for seat in seats.into_values() {
            opened.seats.entry(seat).or_insert_with(|| Reputation::new(window));
        }
        opened
    }

    /// Ages every rating by the windows since the last verdict, including windows that this validator missed
    /// (PROT-23).
    pub(super) fn grow_uncertainty(&mut self, window: Window) {
        let windows = self.judged.map_or(1, |judged| window.0.saturating_sub(judged.0));
        for seat in self.seats.values_mut() {
            seat.rating = seat.rating.aged(windows);
        }
    }

    /// The field's own-data score: the median, each seat counted by its proven work (PROT-25).
    pub(super) fn median_own_data_score(&self) -> f64 {
        let scores = self.seats.values().map(|seat| (seat.own_data_score, seat.claim()));
        weighted_median(scores).unwrap_or(0.0)
    }

    /// Returns the reputation of a seat that was passed to [`Reputations::opened_for`].
    pub(super) fn seat_mut(&mut self, seat: SeatId) -> &mut Reputation {
        self.seats.get_mut(&seat).expect("the reputations were opened for every seat of the evidence")
    }
}

/// A map as a list of pairs, as JSON has only text keys.
mod as_list {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(
        map: &BTreeMap<SeatId, Reputation>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<BTreeMap<SeatId, Reputation>, D::Error> {
        Ok(Vec::<(SeatId, Reputation)>::deserialize(deserializer)?.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_penalty_takes_three_quarters_and_is_gone_after_ten_evaluations() {
        let mut seat = Reputation::new(Window(0));
        seat.penalise(PenaltyReason::Harm, Window(3));
        assert_eq!(seat.penalty_factor(), 0.25);
        for evaluation in 1..10 {
            seat.recover();
            let expected = 0.25 + 0.075 * f64::from(evaluation);
            assert!((seat.penalty_factor() - expected).abs() < 1e-12);
        }
        seat.recover();
        assert_eq!(seat.penalty_factor(), 1.0);
        assert!(seat.penalties.is_empty());
    }

    #[test]
    fn a_second_fault_restarts_the_penalty() {
        let mut seat = Reputation::new(Window(0));
        seat.penalise(PenaltyReason::Harm, Window(1));
        for window in 2..100 {
            seat.proved_faulty(Window(window));
        }
        assert_eq!(seat.penalties.len(), 2);
        assert_eq!(
            seat.penalties[1],
            Penalty { reason: PenaltyReason::Fault, since: Window(99), remaining: RECOVERY_EVALUATIONS }
        );
        assert_eq!(seat.penalty_factor(), 0.25 * 0.25);
    }

    #[test]
    fn a_score_needs_a_rating_own_work_and_training() {
        let rating = Rating { mu: 30.0, sigma: 5.0 };
        let good = Reputation { rating, own_data_score: 0.5, share: 0.5, ..Reputation::new(Window(0)) };
        assert_eq!(good.score(15.0, 0.5), 0.25);
        assert_eq!(Reputation { own_data_score: -0.5, ..good.clone() }.score(15.0, 0.5), 0.0);
        assert_eq!(Reputation { share: 0.0, ..good.clone() }.score(15.0, 0.5), 0.0);
        assert_eq!(Reputation { rating: Rating { mu: 2.0, sigma: 5.0 }, ..good }.score(15.0, 0.5), 0.0);
    }
}
