//! Converts between the gauntlet's types and those of a receipt, both ways and to the last bit (PROT-27).
//!
//! Every struct is destructured field by field: a new field of the gauntlet that is not in the receipt does not
//! compile.

use crate::{
    Evidence, LossPair, Measured, NearDuplicate, Observed, OwnData, Rating, Reputation, Reputations,
    SeatReport, Verdict, WindowScore,
};
use protocol::{
    Uid,
    receipt::{self, ExactF64, text},
};
use std::collections::BTreeMap;

/// A validator's plan of measurements in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Available contributions, in uid order.
    pub held: Vec<Uid>,
    pub budget: u32,
    /// Seats to measure, in this order.
    pub order: Vec<Uid>,
}

/// The judgement of a window, in the receipt's types.
pub fn judgement(plan: Plan, evidence: &[Evidence], verdict: &Verdict) -> receipt::Judgement {
    let Plan { held, budget, order } = plan;
    let common: Vec<receipt::Baseline> = evidence
        .iter()
        .find_map(|evidence| evidence.observed.measured())
        .into_iter()
        .flat_map(|measured| &measured.common)
        .map(|pair| receipt::Baseline { sequence: pair.sequence, before: ExactF64::of(pair.before) })
        .collect();
    let observed: BTreeMap<_, _> =
        evidence.iter().map(|evidence| (evidence.seat, &evidence.observed)).collect();
    let seats = verdict.reports.iter().filter_map(|report| {
        let observed = observed_in_receipt(observed.get(&report.seat)?, &common);
        Some(receipt::SeatJudgement { seat: report.seat, observed, result: result(report) })
    });
    receipt::Judgement {
        held,
        budget,
        order,
        seats: seats.collect(),
        common,
        after: reputations(&verdict.reputations),
        weights: verdict.weights.clone(),
    }
}

/// The evidence in a receipt, in the gauntlet's types.
pub fn evidence(judgement: &receipt::Judgement) -> Vec<Evidence> {
    let of = |judged: &receipt::SeatJudgement| Evidence {
        seat: judged.seat,
        observed: observed(&judged.observed, &judgement.common),
    };
    judgement.seats.iter().map(of).collect()
}

fn observed_in_receipt(observed: &Observed, common: &[receipt::Baseline]) -> receipt::Observed {
    match observed {
        Observed::Absent => receipt::Observed::Absent,
        Observed::Unobserved => receipt::Observed::Unobserved,
        Observed::Unfetched => receipt::Observed::Unfetched,
        Observed::Faulty { label, detail } => {
            receipt::Observed::Faulty { label: text(label), detail: text(detail) }
        }
        Observed::Valid { trained, measured, near_duplicate } => receipt::Observed::Valid {
            trained: *trained,
            near_duplicate: near_duplicate.map(|NearDuplicate { uid, window, digest, alike }| {
                receipt::NearDuplicate { uid, window, digest, alike: ExactF64::of(alike) }
            }),
            measured: measured.as_ref().map(|measured| measured_in_receipt(measured, common)),
        },
    }
}

fn measured_in_receipt(measured: &Measured, common: &[receipt::Baseline]) -> receipt::Measured {
    let Measured { own, common: pairs } = measured;
    let own = own.iter().map(|pair| {
        let LossPair { sequence, before, after } = *pair;
        receipt::LossPair { sequence, before: ExactF64::of(before), after: ExactF64::of(after) }
    });
    // One loss for each of the window's common sequences.
    let after = |place: usize, baseline: &receipt::Baseline| {
        pairs.get(place).map_or(baseline.before, |pair| ExactF64::of(pair.after))
    };
    receipt::Measured {
        own: own.collect(),
        common_after: common.iter().enumerate().map(|(place, baseline)| after(place, baseline)).collect(),
    }
}

fn observed(observed: &receipt::Observed, common: &[receipt::Baseline]) -> Observed {
    match observed {
        receipt::Observed::Absent => Observed::Absent,
        receipt::Observed::Unobserved => Observed::Unobserved,
        receipt::Observed::Unfetched => Observed::Unfetched,
        receipt::Observed::Faulty { label, detail } => {
            Observed::Faulty { label: label.clone(), detail: detail.clone() }
        }
        receipt::Observed::Valid { trained, measured: measurement, near_duplicate } => Observed::Valid {
            trained: *trained,
            measured: measurement.as_ref().map(|measurement| measured(measurement, common)),
            near_duplicate: near_duplicate.map(|receipt::NearDuplicate { uid, window, digest, alike }| {
                NearDuplicate { uid, window, digest, alike: alike.get() }
            }),
        },
    }
}

pub(crate) fn measured(measured: &receipt::Measured, common: &[receipt::Baseline]) -> Measured {
    let receipt::Measured { own, common_after } = measured;
    let pair = |sequence: u64, before: ExactF64, after: ExactF64| LossPair {
        sequence,
        before: before.get(),
        after: after.get(),
    };
    Measured {
        own: own.iter().map(|own| pair(own.sequence, own.before, own.after)).collect(),
        common: common
            .iter()
            .zip(common_after)
            .map(|(baseline, after)| pair(baseline.sequence, baseline.before, *after))
            .collect(),
    }
}

/// The result for one seat, in the receipt's types.
pub fn result(report: &SeatReport) -> receipt::Outcome {
    let exact = |number: Option<f64>| number.map(ExactF64::of);
    let own_data = report.own_data.map(|OwnData { gap, error, scale, outcome }| receipt::OwnData {
        gap: ExactF64::of(gap),
        error: ExactF64::of(error),
        scale: ExactF64::of(scale),
        outcome: ExactF64::of(outcome),
    });
    receipt::Outcome {
        own_gain: exact(report.own_gain),
        common_gain: exact(report.common_gain),
        common_error: exact(report.common_error),
        own_data,
        rank: report.rank,
        ordinal: ExactF64::of(report.ordinal),
        median_rating: ExactF64::of(report.median_rating),
        rating_factor: ExactF64::of(report.rating_factor),
        score: ExactF64::of(report.score),
        weight: report.weight,
    }
}

/// Reputations, in the receipt's types.
pub fn reputations(reputations: &Reputations) -> receipt::Reputations {
    let Reputations { judged, seats } = reputations;
    let remembered = |(seat, of): (&protocol::SeatId, &Reputation)| {
        let Reputation {
            rating: Rating { mu, sigma },
            own_data_score,
            own_data_variance,
            penalties,
            first_seen,
            last_evaluated,
            unmeasured,
            evaluations,
            faults,
            share,
            recent,
        } = of;
        let reputation = receipt::Reputation {
            mu: ExactF64::of(*mu),
            sigma: ExactF64::of(*sigma),
            own_data_score: ExactF64::of(*own_data_score),
            own_data_variance: ExactF64::of(*own_data_variance),
            penalties: penalties.clone(),
            first_seen: *first_seen,
            last_evaluated: *last_evaluated,
            unmeasured: *unmeasured,
            evaluations: *evaluations,
            faults: *faults,
            share: ExactF64::of(*share),
            recent: recent
                .iter()
                .map(|WindowScore { score, penalty }| receipt::WindowScore {
                    score: ExactF64::of(*score),
                    penalty: ExactF64::of(*penalty),
                })
                .collect(),
        };
        receipt::SeatReputation { seat: *seat, reputation }
    };
    receipt::Reputations { judged: *judged, seats: seats.iter().map(remembered).collect() }
}

/// The reputations in a receipt, in the gauntlet's types.
pub fn remembered(reputations: &receipt::Reputations) -> Reputations {
    let receipt::Reputations { judged, seats } = reputations;
    let reputation = |of: &receipt::SeatReputation| {
        let receipt::Reputation {
            mu,
            sigma,
            own_data_score,
            own_data_variance,
            penalties,
            first_seen,
            last_evaluated,
            unmeasured,
            evaluations,
            faults,
            share,
            recent,
        } = &of.reputation;
        let reputation = Reputation {
            rating: Rating { mu: mu.get(), sigma: sigma.get() },
            own_data_score: own_data_score.get(),
            own_data_variance: own_data_variance.get(),
            penalties: penalties.clone(),
            first_seen: *first_seen,
            last_evaluated: *last_evaluated,
            unmeasured: *unmeasured,
            evaluations: *evaluations,
            faults: *faults,
            share: share.get(),
            recent: recent
                .iter()
                .map(|receipt::WindowScore { score, penalty }| WindowScore {
                    score: score.get(),
                    penalty: penalty.get(),
                })
                .collect(),
        };
        (of.seat, reputation)
    };
    Reputations { judged: *judged, seats: seats.iter().map(reputation).collect() }
}

/// Judges the window again from the receipt alone: its earlier reputations and its evidence.
pub fn judged_again(
    params: &protocol::RunParams,
    receipt: &receipt::Receipt,
    judgement: &receipt::Judgement,
) -> Verdict {
    crate::judge(params, &remembered(&receipt.before), receipt.window, &evidence(judgement))
}
