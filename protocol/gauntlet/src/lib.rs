#![doc = include_str!("../README.md")]

pub mod audit;
pub mod evidence;
pub mod form;
pub mod gathering;
pub mod near_duplicates;
pub mod probes;
pub mod rating;
pub mod report;
pub mod reputation;
pub mod schedule;
pub mod score;
pub mod weights;

mod exact;
mod median;
#[cfg(test)]
mod tests;

pub use evidence::{Evidence, LossPair, Measured, Observed, Seeds};
pub use near_duplicates::{NearDuplicate, Sketch, Sketches};
pub use rating::Rating;
pub use report::{OwnData, SeatReport};
pub use reputation::{Penalty, PenaltyReason, Reputation, Reputations, WindowScore};
pub use schedule::{in_turn, whom_to_evaluate};
pub use weights::weights;

use protocol::{RunParams, SeatId, Uid, Window};
use score::{Gains, Scale};
use std::collections::BTreeMap;

/// The part of the last share that an unobserved window is paid.
const UNOBSERVED_SHARE: f64 = 0.5;

/// The judgement of one window.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Replaces the reputations that the window was judged with.
    pub reputations: Reputations,
    /// One per seat of the evidence, in seat order.
    pub reports: Vec<SeatReport>,
    /// The weights to post, as the chain accepts them: proportional to the scores of the last epoch's number of
    /// windows (PROT-26).
    pub weights: Vec<(Uid, u16)>,
}

/// Judges one window.
///
/// `evidence` has every miner's seat that was active in `window`, in any order; a seat that is missing counts as
/// absent. The caller does not judge void windows: no seat loses by them (PROT-19). To judge a window again, pass the
/// reputations from before it: `reputations.judged` is the last window judged.
pub fn judge(
    params: &RunParams,
    reputations: &Reputations,
    window: Window,
    evidence: &[Evidence],
) -> Verdict {
    let observed = by_seat(evidence);
    let gains: BTreeMap<SeatId, Gains> = observed
        .iter()
        .filter_map(|(seat, observed)| Some((*seat, score::gains(observed.measured()?)?)))
        .collect();
    let before = reputations.opened_for(window, observed.keys().copied());
    let mut after = before.clone();

    // The rating round: ranks by gain on the common sequences, faults last (PROT-23).
    after.grow_uncertainty(window);
    let ranks = ranks(params, &observed, &gains);
    let players: Vec<(Rating, u32)> =
        ranks.iter().map(|(seat, rank)| (after.seats[seat].rating, *rank)).collect();
    for (seat, rating) in ranks.keys().zip(rating::update_all_orders(&players, window.0)) {
        after.seat_mut(*seat).rating = rating;
    }

    // The own-data test, on the scale of this window (PROT-24), and penalties (PROT-25).
    let scale = score::scale(
        gains.iter().map(|(seat, gains)| score::Sample { gains, claim: before.seats[seat].claim() }),
    );
    let mut outcomes = BTreeMap::new();
    for (seat, observed) in &observed {
        let remembered = after.seat_mut(*seat);
        if let Observed::Valid { .. } = observed {
            remembered.unmeasured = remembered.unmeasured.saturating_add(1);
        }
        if let Some(gains) = gains.get(seat) {
            // An untrained model's first steps help all text alike: the gaps are mostly noise, the same for all
            // validators as they have no salts yet (PROT-24).
            if reputations.judged.is_some() {
                let outcome = test_own_data(params, observed, gains, scale, remembered);
                outcomes.extend(outcome.map(|of| (*seat, of)));
            }
            record_evaluation(window, observed, gains, remembered);
        }
    }

    let median = score_seats(params, window, &observed, &mut after);
    after.judged = Some(window);
    let weights = weights(&after);
    let weight_of: BTreeMap<Uid, u16> = weights.iter().copied().collect();

    let reports = observed
        .iter()
        .map(|(seat, observed)| {
            let facts = report::Facts {
                observed,
                gains: gains.get(seat),
                own_data: outcomes.get(seat).copied(),
                rank: ranks.get(seat).copied(),
                median_rating: median,
                weight: weight_of.get(&seat.uid).copied().unwrap_or(0),
            };
            report::of(*seat, facts, &before.seats[seat], &after.seats[seat])
        })
        .collect();
    Verdict { reputations: after, reports, weights }
}

/// Moves the own-data score of a measured seat; `None` if too little was measured (PROT-24).
fn test_own_data(
    params: &RunParams,
    observed: &Observed,
    gains: &Gains,
    scale: Scale,
    remembered: &mut Reputation,
) -> Option<OwnData> {
    let gap = gains.gap()?;
    let share = observed.trained_share(params.sequences_per_seat).unwrap_or(1.0);
    let outcome = score::outcome(gains, scale, share)?;
    let windows = remembered.unmeasured.min(params.evaluation_wait_max).max(1);
    (remembered.own_data_score, remembered.own_data_variance) = score::updated_own_data_score(
        remembered.own_data_score,
        remembered.own_data_variance,
        outcome,
        windows,
        score::score_rate(remembered.evaluations, !remembered.penalties.is_empty()),
    );
    Some(OwnData { gap: gap.mean, error: gap.error, scale: scale.gap, outcome: outcome.value })
}

/// Counts an evaluation: earlier penalties recover, and harm and copies are penalised (PROT-25).
fn record_evaluation(window: Window, observed: &Observed, gains: &Gains, remembered: &mut Reputation) {
    remembered.recover();
    if gains.harms() {
        remembered.penalise(PenaltyReason::Harm, window);
    }
    let near_duplicate = observed.near_duplicate();
    if near_duplicate.is_some_and(|of| near_duplicates::is_copied(of, window, gains.gap_in_errors())) {
        remembered.penalise(PenaltyReason::Duplicate, window);
    }
    remembered.evaluations = remembered.evaluations.saturating_add(1);
    remembered.last_evaluated = Some(window);
    remembered.unmeasured = 0;
}

/// Adds each seat's score (PROT-25) to the last ones (PROT-26). A seat that is not in the evidence was absent. Returns
/// the median rating.
fn score_seats(
    params: &RunParams,
    window: Window,
    observed: &BTreeMap<SeatId, &Observed>,
    after: &mut Reputations,
) -> f64 {
    for (seat, remembered) in &mut after.seats {
        let observed = observed.get(seat).copied().unwrap_or(&Observed::Absent);
        if let Observed::Faulty { .. } = observed {
            remembered.faults = remembered.faults.saturating_add(1);
            if observed.is_proved() {
                remembered.proved_faulty(window);
            }
        }
        // Unobserved: half of the last share, so that showing bytes to few validators does not pay.
        let unobserved_share = match observed {
            Observed::Unfetched => remembered.share,
            _ => remembered.share * UNOBSERVED_SHARE,
        };
        remembered.share = observed.trained_share(params.sequences_per_seat).unwrap_or(unobserved_share);
    }
    // Weighted by their proven work.
    let ordinals: Vec<(f64, f64)> =
        after.seats.values().map(|seat| (seat.rating.ordinal(), seat.claim())).collect();
    let median = rating::median_rating(&ordinals);
    let field = after.median_own_data_score();
    for (seat, remembered) in &mut after.seats {
        let is_unfetched = observed.get(seat).is_some_and(|observed| **observed == Observed::Unfetched);
        let score = if is_unfetched { 0.0 } else { remembered.score(median, field) };
        let earned = WindowScore { score, penalty: remembered.penalty_factor() };
        weights::remember(&mut remembered.recent, earned, params.epoch_windows);
    }
    median
}

/// Returns the observations in seat order. Of two holders of one uid, the later registration counts.
fn by_seat(evidence: &[Evidence]) -> BTreeMap<SeatId, &Observed> {
    let mut by_uid = BTreeMap::<Uid, &Evidence>::new();
    for evidence in evidence {
        let holder = by_uid.entry(evidence.seat.uid).or_insert(evidence);
        if evidence.seat.registered_at > holder.seat.registered_at {
            *holder = evidence;
        }
    }
    by_uid.into_values().map(|evidence| (evidence.seat, &evidence.observed)).collect()
}

/// Ranks in the window's rating round, from 1: a seat ranks behind every seat whose work is significantly better, so
/// that seats whose difference may be chance share a rank (PROT-23). All faults share the last rank. Unmeasured seats
/// are not ranked.
fn ranks(
    params: &RunParams,
    observed: &BTreeMap<SeatId, &Observed>,
    gains: &BTreeMap<SeatId, Gains>,
) -> BTreeMap<SeatId, u32> {
    let player = |seat: &SeatId| {
        let seen = observed.get(seat)?;
        let share = seen.trained_share(params.sequences_per_seat)?;
        Some(score::Player { common: &seen.measured()?.common[..], share })
    };
    let ahead_of = |seat: &SeatId| {
        let Some(own) = player(seat) else { return 0 };
        gains
            .keys()
            .filter(|other| *other != seat)
            .filter_map(player)
            .filter(|other| score::better_work(*other, own))
            .count()
    };
    let place = |(seat, observed): (&SeatId, &&Observed)| {
        let ahead = match (gains.get(seat), observed) {
            (Some(_), _) => ahead_of(seat),
            (None, Observed::Faulty { .. }) => gains.len(),
            (None, _) => return None,
        };
        // Seats are counted in u16: this fits.
        Some((*seat, u32::try_from(ahead).unwrap_or(u32::MAX - 1) + 1))
    };
    observed.iter().filter_map(place).collect()
}
