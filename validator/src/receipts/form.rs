//! Between the gauntlet's types and those of a receipt, both ways and to the last bit (PROT-27).
//!
//! Every struct is taken apart field by field: what the gauntlet learns to remember is in the receipt too, or this does not
//! compile.

use crate::gauntlet::{
    self, Earned, Evidence, LossPair, Measured, Observed, OwnData, Penalty, PenaltyReason, Rating,
    SeatReport, Standing, Standings, Twin, Verdict,
};
use protocol::{
    Uid,
    receipt::{self, Exact, text},
};
use std::collections::BTreeMap;

/// What a validator set out to measure, and with what.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Contributions at hand, in uid order.
    pub held: Vec<Uid>,
    pub budget: u32,
    /// Whom to measure, in this order.
    pub order: Vec<Uid>,
}

/// A window's judgement, as a receipt holds it.
pub fn judgement(plan: Plan, evidence: &[Evidence], verdict: &Verdict) -> receipt::Judgement {
    let Plan { held, budget, order } = plan;
    let common: Vec<receipt::Baseline> = evidence
        .iter()
        .find_map(|evidence| match &evidence.observed {
            Observed::Valid { measured: Some(measured), .. } => Some(&measured.common),
            _ => None,
        })
        .map(|pairs| {
            let baseline = |pair: &LossPair| receipt::Baseline {
                sequence: pair.sequence,
                before: Exact::of(pair.before),
            };
            pairs.iter().map(baseline).collect()
        })
        .unwrap_or_default();
    let observed: BTreeMap<_, _> =
        evidence.iter().map(|evidence| (evidence.seat, &evidence.observed)).collect();
    let seats = verdict.reports.iter().filter_map(|report| {
        let observed = observed_in_receipt(observed.get(&report.seat)?, &common);
        Some(receipt::Judged { seat: report.seat, observed, result: result(report) })
    });
    receipt::Judgement {
        held,
        budget,
        order,
        seats: seats.collect(),
        common,
        after: standings(&verdict.standings),
        weights: verdict.weights.clone(),
    }
}

/// The evidence that a receipt holds.
pub fn evidence(judgement: &receipt::Judgement) -> Vec<Evidence> {
    let of = |judged: &receipt::Judged| Evidence {
        seat: judged.seat,
        observed: observed(&judged.observed, &judgement.common),
    };
    judgement.seats.iter().map(of).collect()
}

fn observed_in_receipt(observed: &Observed, common: &[receipt::Baseline]) -> receipt::Observed {
    match observed {
        Observed::Absent => receipt::Observed::Absent,
        Observed::Unobserved => receipt::Observed::Unobserved,
        Observed::Faulty { label, detail } => {
            receipt::Observed::Faulty { label: text(label), detail: text(detail) }
        }
        Observed::Valid { trained, measured, twin } => receipt::Observed::Valid {
            trained: *trained,
            twin: twin.map(|Twin { uid, window, digest, alike }| receipt::Twin {
                uid,
                window,
                digest,
                alike: Exact::of(alike),
            }),
            measured: measured.as_ref().map(|measured| measured_in_receipt(measured, common)),
        },
    }
}

fn measured_in_receipt(measured: &Measured, common: &[receipt::Baseline]) -> receipt::Measured {
    let Measured { own, common: pairs } = measured;
    let own = own.iter().map(|pair| {
        let LossPair { sequence, before, after } = *pair;
        receipt::LossPair { sequence, before: Exact::of(before), after: Exact::of(after) }
    });
    // One loss for each of the window's common sequences, whoever was measured on them.
    let after = |place: usize, baseline: &receipt::Baseline| {
        pairs.get(place).map_or(baseline.before, |pair| Exact::of(pair.after))
    };
    receipt::Measured {
        own: own.collect(),
        common_after: common.iter().enumerate().map(|(place, baseline)| after(place, baseline)).collect(),
    }
}

fn observed(said: &receipt::Observed, common: &[receipt::Baseline]) -> Observed {
    match said {
        receipt::Observed::Absent => Observed::Absent,
        receipt::Observed::Unobserved => Observed::Unobserved,
        receipt::Observed::Faulty { label, detail } => {
            Observed::Faulty { label: label.clone(), detail: detail.clone() }
        }
        receipt::Observed::Valid { trained, measured: said, twin } => Observed::Valid {
            trained: *trained,
            measured: said.as_ref().map(|said| measured(said, common)),
            twin: twin.map(|receipt::Twin { uid, window, digest, alike }| Twin {
                uid,
                window,
                digest,
                alike: alike.get(),
            }),
        },
    }
}

fn measured(said: &receipt::Measured, common: &[receipt::Baseline]) -> Measured {
    let receipt::Measured { own, common_after } = said;
    let pair = |sequence: u64, before: Exact, after: Exact| LossPair {
        sequence,
        before: before.get(),
        after: after.get(),
    };
    Measured {
        own: own.iter().map(|said| pair(said.sequence, said.before, said.after)).collect(),
        common: common
            .iter()
            .zip(common_after)
            .map(|(baseline, after)| pair(baseline.sequence, baseline.before, *after))
            .collect(),
    }
}

/// What follows for one seat.
pub fn result(report: &SeatReport) -> receipt::Outcome {
    let exact = |number: Option<f64>| number.map(Exact::of);
    let own_data = report.own_data.map(|OwnData { gap, error, scale, outcome }| receipt::OwnData {
        gap: Exact::of(gap),
        error: Exact::of(error),
        scale: Exact::of(scale),
        outcome: Exact::of(outcome),
    });
    receipt::Outcome {
        own_gain: exact(report.own_gain),
        common_gain: exact(report.common_gain),
        common_error: exact(report.common_error),
        own_data,
        place: report.rank,
        ordinal: Exact::of(report.ordinal),
        field_ordinal: Exact::of(report.field_ordinal),
        merit: Exact::of(report.merit),
        score: Exact::of(report.score),
        weight: report.weight,
    }
}

/// What is remembered, as a receipt holds it.
pub fn standings(standings: &Standings) -> receipt::Standings {
    let Standings { judged, seats } = standings;
    let remembered = |(seat, of): (&protocol::SeatId, &Standing)| {
        let Standing {
            rating: Rating { mu, sigma },
            mark,
            mark_variance,
            penalties,
            first_seen,
            last_evaluated,
            unmeasured,
            evaluations,
            faults,
            share,
            recent,
        } = of;
        let standing = receipt::Standing {
            mu: Exact::of(*mu),
            sigma: Exact::of(*sigma),
            mark: Exact::of(*mark),
            mark_variance: Exact::of(*mark_variance),
            penalties: penalties.iter().map(penalty_in_receipt).collect(),
            first_seen: *first_seen,
            last_evaluated: *last_evaluated,
            unmeasured: *unmeasured,
            evaluations: *evaluations,
            faults: *faults,
            share: Exact::of(*share),
            recent: recent
                .iter()
                .map(|Earned { score, penalty }| receipt::Earned {
                    score: Exact::of(*score),
                    penalty: Exact::of(*penalty),
                })
                .collect(),
        };
        receipt::Remembered { seat: *seat, standing }
    };
    receipt::Standings { judged: *judged, seats: seats.iter().map(remembered).collect() }
}

/// What a receipt says is remembered.
pub fn remembered(said: &receipt::Standings) -> Standings {
    let receipt::Standings { judged, seats } = said;
    let standing = |said: &receipt::Remembered| {
        let receipt::Standing {
            mu,
            sigma,
            mark,
            mark_variance,
            penalties,
            first_seen,
            last_evaluated,
            unmeasured,
            evaluations,
            faults,
            share,
            recent,
        } = &said.standing;
        let standing = Standing {
            rating: Rating { mu: mu.get(), sigma: sigma.get() },
            mark: mark.get(),
            mark_variance: mark_variance.get(),
            penalties: penalties.iter().map(penalty).collect(),
            first_seen: *first_seen,
            last_evaluated: *last_evaluated,
            unmeasured: *unmeasured,
            evaluations: *evaluations,
            faults: *faults,
            share: share.get(),
            recent: recent
                .iter()
                .map(|receipt::Earned { score, penalty }| Earned {
                    score: score.get(),
                    penalty: penalty.get(),
                })
                .collect(),
        };
        (said.seat, standing)
    };
    Standings { judged: *judged, seats: seats.iter().map(standing).collect() }
}

fn penalty_in_receipt(penalty: &Penalty) -> receipt::Penalty {
    let Penalty { reason, since, remaining } = *penalty;
    let reason = match reason {
        PenaltyReason::Harm => receipt::PenaltyReason::Harm,
        PenaltyReason::Duplicate => receipt::PenaltyReason::Duplicate,
        PenaltyReason::Fault => receipt::PenaltyReason::Fault,
    };
    receipt::Penalty { reason, since, remaining }
}

fn penalty(said: &receipt::Penalty) -> Penalty {
    let receipt::Penalty { reason, since, remaining } = *said;
    let reason = match reason {
        receipt::PenaltyReason::Harm => PenaltyReason::Harm,
        receipt::PenaltyReason::Duplicate => PenaltyReason::Duplicate,
        receipt::PenaltyReason::Fault => PenaltyReason::Fault,
    };
    Penalty { reason, since, remaining }
}

/// The window judged again from the receipt alone: what it remembered before, and its evidence.
pub fn judged_again(
    params: &protocol::RunParams,
    receipt: &receipt::Receipt,
    judgement: &receipt::Judgement,
) -> Verdict {
    gauntlet::judge(params, &remembered(&receipt.before), receipt.window, &evidence(judgement))
}
