//! Compares a receipt's judgement: the observed and measured seats, the sequences, the losses, and the scores that
//! follow.

use super::{
    Difference, Facts, Found, Kind, Moment, RevealedWeights,
    compare::{compare_reputations, compare_weights},
};
use crate::{self as gauntlet, LossPair, Seeds, form, gathering::unweighted_max, near_duplicates::ALIKE_MIN};
use protocol::{
    SeatId, Uid, assign,
    receipt::{Judgement, Measured, Observed, SeatJudgement},
    view::Outcome,
};
use std::collections::BTreeSet;

/// Differences in a seat's share of all weights up to this value are not listed: they follow from other seats'
/// weights.
const SHARE_ALIKE: f64 = 1e-3;

/// Compares each seat's observation with the chain's (PROT-6, PROT-14).
pub(super) fn observations(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let view = &facts.view;
    // A validator that merged and did not vote, because the model became worse, also judges the void window.
    let merged = facts.receipt.merged.as_ref().is_some_and(|merged| !merged.inputs.is_empty());
    let vetoed = merged && facts.vote().is_none();
    if !matches!(view.outcome, Some(Outcome::Merged(_))) && !vetoed {
        found.push(Difference::JudgedVoid);
    }
    let Some(selection) = &view.selection else { return };
    let opened = facts.params.schedule.opens_at(view.window);
    let unweighted = view.commitments.iter().filter(|(uid, _)| view.weight_of(*uid) == 0).count();
    let fetches_some_only = unweighted_max(&facts.params) < unweighted;
    for uid in &view.slots {
        let Some(judged) = judgement.seats.iter().find(|judged| judged.seat.uid == *uid) else {
            if facts.holder(*uid, opened).is_some() {
                found.push(Difference::SeatLeftOut { uid: *uid });
            }
            continue;
        };
        if let Some(holder) = facts.holder(*uid, opened).filter(|holder| *holder != judged.seat) {
            let (said, chain) = (judged.seat.registered_at, holder.registered_at);
            found.push(Difference::OtherHolder { uid: *uid, said, chain });
        }
        let committed = view.commitments.iter().any(|(of, _)| of == uid);
        let is = if !committed {
            Kind::Absent
        } else if selection.faulty.contains(uid) {
            Kind::Faulty
        } else if judgement.held.contains(uid) {
            Kind::Valid
        } else {
            Kind::Unobserved
        };
        let said = Kind::of(&judged.observed);
        // A seat may have to wait for its turn only if it has no weight, and more such seats committed than are
        // fetched in a window (PROT-13).
        let may_wait = is == Kind::Unobserved && view.weight_of(*uid) == 0 && fetches_some_only;
        if said != is && !(said == Kind::Unfetched && may_wait) {
            found.push(Difference::SeenOtherwise { uid: *uid, said, is });
        }
        match (&judged.observed, facts.found.get(uid)) {
            (Observed::Valid { trained: said, .. }, Some(Found::Valid { trained })) if said != trained => {
                found.push(Difference::WrongTrained { uid: *uid, said: *said, declared: *trained });
            }
            // The comparison of attestations reports a fault that was attested as valid.
            (Observed::Valid { .. }, Some(Found::Faulty { label, detail }))
                if !facts.receipt.attestation.valid.contains(uid) =>
            {
                let (label, detail) = (label.clone(), detail.clone());
                found.push(Difference::SkippedFault { uid: *uid, label, detail });
            }
            _ => {}
        }
    }
    for judged in judgement.seats.iter().filter(|judged| !view.slots.contains(&judged.seat.uid)) {
        found.push(Difference::SeatPutIn { uid: judged.seat.uid });
    }
}

/// Compares the measured seats with the seats that were due (PROT-28).
pub(super) fn turns(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let Some(Seeds { own: seed, probe }) = facts.seeds() else { return };
    let seat =
        |uid: &Uid| judgement.seats.iter().find(|judged| judged.seat.uid == *uid).map(|judged| judged.seat);
    let candidates: Vec<SeatId> = judgement.held.iter().filter_map(seat).collect();
    let selection = facts.view.selection.iter();
    let selected = gauntlet::in_turn(&probe, selection.flat_map(|made| &made.selected).map(|one| one.uid));
    let due = gauntlet::whom_to_evaluate(
        &seed,
        facts.view.window,
        &candidates,
        &selected,
        &form::remembered(&facts.receipt.before),
        usize::try_from(judgement.budget).unwrap_or(usize::MAX),
        facts.params.evaluation_wait_max,
    );
    let due: Vec<Uid> = due.into_iter().map(|seat| seat.uid).collect();
    if judgement.order != due {
        found.push(Difference::WrongOrder { said: judgement.order.clone(), due: due.clone() });
    }
    let reached: BTreeSet<Uid> = measured_seats(judgement).map(|(judged, _)| judged.seat.uid).collect();
    // A seat that two thirds attested as faulty may have been measured without a trace.
    let shows = |uid: &Uid| {
        let selection = facts.view.selection.as_ref();
        selection.is_some_and(|selection| !selection.faulty.contains(uid))
    };
    let last = due.iter().rposition(|uid| reached.contains(uid));
    let passed_over = due.iter().take(last.unwrap_or(0)).filter(|uid| shows(uid) && !reached.contains(uid));
    for uid in passed_over {
        found.push(Difference::PassedOver { uid: *uid });
    }
    for uid in reached.iter().filter(|uid| !due.contains(uid)) {
        found.push(Difference::OutOfTurn { uid: *uid });
    }
}

/// Compares the sequences with those that salt and chain draw (PROT-2, PROT-22).
pub(super) fn sequences(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let (Some(seeds), Some(assignment)) = (facts.seeds(), facts.assignment()) else { return };
    let count = facts.params.evaluation_sequences;
    let said = judgement.common.iter().map(|baseline| baseline.sequence);
    let anyone = measured_seats(judgement).next().is_some();
    if anyone && !said.eq(assign::evaluation_sequences(&seeds.probe, &seeds.own, &assignment, count)) {
        found.push(Difference::WrongSequences { uid: None });
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    for (judged, measured) in measured_seats(judgement) {
        let Observed::Valid { trained, .. } = &judged.observed else { continue };
        let uid = judged.seat.uid;
        let assigned = assignment.of(uid).unwrap_or_default();
        let prefix = assigned.len().min(usize::try_from(*trained).unwrap_or(usize::MAX));
        let drawn = assign::own_sequences(&seeds.own, uid, assigned.get(..prefix).unwrap_or_default(), count);
        if !measured.own.iter().map(|pair| pair.sequence).eq(drawn) {
            found.push(Difference::WrongSequences { uid: Some(uid) });
        }
    }
}

/// Compares the losses with the repeated measurements (PROT-22).
pub(super) fn losses(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let Some(again) = &facts.measured else { return };
    for (judged, said) in measured_seats(judgement) {
        let uid = judged.seat.uid;
        let Some(ours) = again.get(&uid) else { continue };
        let said = form::measured(said, &judgement.common);
        for (own, said, ours) in [(true, &said.own, &ours.own), (false, &said.common, &ours.common)] {
            for moment in [Moment::Before, Moment::After] {
                let loss = |pair: &LossPair| match moment {
                    Moment::Before => pair.before,
                    Moment::After => pair.after,
                };
                let off = said.iter().filter_map(|pair| {
                    let ours = ours.iter().find(|ours| ours.sequence == pair.sequence)?;
                    let (said, ours) = (loss(pair), loss(ours));
                    (facts.tolerance < (said - ours).abs()).then_some((pair.sequence, said, ours))
                });
                let off: Vec<_> = off.collect();
                let apart = |one: &&(u64, f64, f64)| (one.1 - one.2).abs();
                let worst = off.iter().max_by(|one, other| apart(one).total_cmp(&apart(other)));
                if let Some(&(worst, said, ours)) = worst {
                    let sequences = off.len();
                    found.push(Difference::WrongLosses { uid, own, moment, sequences, worst, said, ours });
                }
            }
        }
    }
}

/// Compares the reported near-duplicates with those that the contributions show (PROT-25).
pub(super) fn near_duplicates(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let view = &facts.view;
    let digest = |uid: &Uid| view.commitments.iter().find(|(of, _)| of == uid).map(|(_, digest)| *digest);
    for judged in &judgement.seats {
        let Observed::Valid { near_duplicate, .. } = &judged.observed else { continue };
        let uid = judged.seat.uid;
        // A validator that held both must report the closest of the same window. A restart forgets older ones.
        let others = judgement.held.iter().filter(|other| **other != uid).filter_map(|other| {
            let alike = *facts.alike.get(&(uid, digest(other)?))?;
            (ALIKE_MIN <= alike).then_some((*other, alike))
        });
        let closest = others.max_by(|one, other| one.1.total_cmp(&other.1));
        match (near_duplicate, closest) {
            (None, Some((other, alike))) => {
                found.push(Difference::MissedNearDuplicate { uid, other, alike });
            }
            (Some(near_duplicate), closest) => {
                let ours = facts.alike.get(&(uid, near_duplicate.digest)).copied();
                let invented =
                    ours.is_some_and(|ours| ours.to_bits() != near_duplicate.alike.get().to_bits());
                let same_window = near_duplicate.window == view.window
                    && digest(&near_duplicate.uid) != Some(near_duplicate.digest);
                if invented || same_window {
                    found.push(Difference::WrongNearDuplicate {
                        uid,
                        other: near_duplicate.uid,
                        said: near_duplicate.alike.get(),
                        ours: ours.unwrap_or(0.0),
                    });
                } else if let Some((other, alike)) =
                    closest.filter(|(_, alike)| near_duplicate.alike.get() < *alike)
                {
                    found.push(Difference::MissedNearDuplicate { uid, other, alike });
                }
            }
            (None, None) => {}
        }
    }
}

/// Compares reputations, scores and weights with those that follow from the evidence, to the last bit (PROT-23 to
/// PROT-26).
pub(super) fn conclusions(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let verdict = form::judged_again(&facts.params, &facts.receipt, judgement);
    compare_reputations(
        &form::reputations(&verdict.reputations),
        &judgement.after,
        |uid, field, ours, said| {
            found.push(Difference::Misjudged { uid, field, said, ours });
        },
    );
    for report in &verdict.reports {
        let Some(judged) = judgement.seats.iter().find(|judged| judged.seat == report.seat) else { continue };
        let (said, ours) = (format!("{:?}", judged.result), format!("{:?}", form::result(report)));
        if said != ours {
            found.push(Difference::Misjudged { uid: Some(report.seat.uid), field: "result", said, ours });
        }
    }
    compare_weights(&judgement.weights, &verdict.weights, |uid, said, ours| {
        found.push(Difference::WrongWeight { uid, said, ours });
    });
}

/// Compares the revealed weight vote with the validator's scores (PROT-26, PROT-30).
pub(super) fn weight_vote(facts: &Facts, found: &mut Vec<Difference>) {
    let Some(RevealedWeights { epoch, posted, earned }) = &facts.weight_vote else { return };
    let Some((_, latest)) = earned.last() else { return };
    if earned.iter().any(|(_, weights)| weights == posted) {
        return;
    }
    // The highest weight is always 65535: a raised seat shows in its share, and in the lower weights of the others.
    let of = |weights: &[(Uid, u16)], uid: Uid| {
        let weight = weights.iter().find(|(of, _)| *of == uid).map_or(0, |(_, weight)| *weight);
        let all: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
        (weight, if 0.0 < all { f64::from(weight) / all } else { 0.0 })
    };
    let uids: BTreeSet<Uid> = posted.iter().chain(latest).map(|(uid, _)| *uid).collect();
    for uid in uids {
        let ((posted, posted_share), (earned, earned_share)) = (of(posted, uid), of(latest, uid));
        if posted != earned || SHARE_ALIKE < posted_share - earned_share {
            let epoch = *epoch;
            found.push(Difference::WrongWeightVote {
                epoch,
                uid,
                posted,
                earned,
                posted_share,
                earned_share,
            });
        }
    }
}

/// Returns the seats that the receipt reports as measured.
pub fn measured_seats(judgement: &Judgement) -> impl Iterator<Item = (&SeatJudgement, &Measured)> + Clone {
    judgement.seats.iter().filter_map(|judged| match &judged.observed {
        Observed::Valid { measured: Some(measured), .. } => Some((judged, measured)),
        _ => None,
    })
}
