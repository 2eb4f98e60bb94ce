//! Whether what a validator says of a window is so: its receipt beside public data, difference by difference (PROT-27).
//!
//! [`audit`] decides and never waits: facts in, differences out. What the facts are, the chain says, the buckets, the dataset, and
//! whoever audits, by doing the validator's work again; [`gather`] gets them. What cannot be had is `None` in the facts, and
//! listed by [`unchecked`]: nothing is held against a validator that nobody can show.
//!
//! Almost everything is compared to the last bit. Losses are not: see [`TOLERANCE`].

pub mod difference;
pub mod gather;

#[cfg(test)]
mod tests;

pub use difference::{Difference, Kind, Moment};

use crate::{
    gauntlet::{self, Measured, near_duplicates::ALIKE_MIN},
    receipts::form,
};
use protocol::{
    Block, Digest, RunParams, SeatId, Uid, Window,
    assign::{self, Assignment},
    receipt::{Judgement, LossPair, Observed, PreviousReceipt, Receipt, Reputations},
    statement::{SignedStatement, StatementKind},
    view::{Outcome, SeatView, Verdict, Vote, WindowView},
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// By how much a loss that is measured again may differ, in nats per token. On one build and machine the same comes out to the last
/// bit; other instruction sets, thread counts and devices add up in another order. `docs/receipts.md` has what was measured.
pub const TOLERANCE: f64 = 1e-5;

/// Shares of a ballot that are no further apart are not told: they follow from other seats' weights.
const SHARE_ALIKE: f64 = 1e-3;

/// All that is held against a receipt.
#[derive(Clone, Debug)]
pub struct Facts {
    pub params: RunParams,
    /// The window, fixed.
    pub view: WindowView,
    /// Seats as they are now. A seat that was given to somebody else since the window is not compared.
    pub seats: Vec<SeatView>,
    pub training_sequences: u64,
    /// Whose receipt it is.
    pub uid: Uid,
    /// It has the digest that the chain anchored, and is signed by the hotkey that it names: it would not be here otherwise.
    pub receipt: Receipt,
    /// What the chain took as its attestation; `None` where it took none.
    pub attestation: Option<Vec<(Uid, Verdict)>>,
    /// The validator's latest anchored receipt before this one, as far back as the chain remembers.
    pub earlier: Option<PreviousReceipt>,
    /// The oldest window that the chain remembers.
    pub kept_from: Window,
    /// What the receipt before this one says was remembered after it; `None` where it cannot be had.
    pub remembered: Option<Reputations>,
    /// What everyone can find of the window's contributions now. Who is not in it was not looked for.
    pub found: BTreeMap<Uid, Found>,
    /// How much alike contributions are: every two that the validator held, and every one beside the twin that it is said to have.
    pub alike: BTreeMap<(Uid, Digest), f64>,
    /// The measurements made again; `None` where that was not possible.
    pub measured: Option<BTreeMap<Uid, Measured>>,
    /// The update that the selection comes to; `None` where it could not be merged again.
    pub merged: Option<Digest>,
    /// What the validator posted for the window's epoch; `None` while it is not revealed, and where nobody can say.
    pub weight_vote: Option<RevealedWeights>,
    pub tolerance: f64,
}

/// A contribution, looked at now.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Found {
    Valid {
        trained: u32,
    },
    /// The bytes that were committed to are there, and they are faulty.
    Faulty {
        label: String,
        detail: String,
    },
    /// Nobody has them any more: that says nothing.
    Gone,
}

/// What was posted, and what could have been.
#[derive(Clone, Debug, PartialEq)]
pub struct RevealedWeights {
    pub epoch: u32,
    pub posted: Vec<(Uid, u16)>,
    /// What the scores came to after each of the windows judged last before the ballot was bound, the latest last.
    pub earned: Vec<(Window, Vec<(Uid, u16)>)>,
}

/// Something that could not be checked, why, and what can be done about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    pub what: String,
    pub why: String,
    pub to_do: String,
}

/// Every difference between what the receipt says and what is so.
pub fn audit(facts: &Facts) -> Vec<Difference> {
    let mut found = Vec::new();
    identity(facts, &mut found);
    history(facts, &mut found);
    statements(facts, &mut found);
    attestation(facts, &mut found);
    merge(facts, &mut found);
    if let Some(judgement) = &facts.receipt.judgement {
        observations(facts, judgement, &mut found);
        turns(facts, judgement, &mut found);
        sequences(facts, judgement, &mut found);
        losses(facts, judgement, &mut found);
        near_duplicates(facts, judgement, &mut found);
        conclusions(facts, judgement, &mut found);
    }
    weight_vote(facts, &mut found);
    found
}

/// What the receipt's own signatures prove (PROT-21): statements on what was attested and voted that differ from what the chain took.
pub fn evidence(
    receipt: &Receipt,
    attestation: Option<&[(Uid, Verdict)]>,
    vote: Option<Vote>,
) -> Vec<SignedStatement> {
    let contradicts = |signed: &SignedStatement| match signed.statement.kind {
        StatementKind::Attestation => attestation.is_some_and(|taken| taken != receipt.verdicts()),
        StatementKind::Vote => vote.is_some_and(|taken| Some(taken) != receipt.vote()),
        StatementKind::Receipts => false,
    };
    receipt.signed_statements().into_iter().filter(contradicts).collect()
}

/// What could not be checked with these facts.
pub fn unchecked(facts: &Facts) -> Vec<Unchecked> {
    let mut list = Vec::new();
    let mut add = |what: &str, why: &str, to_do: &str| {
        list.push(Unchecked { what: what.into(), why: why.into(), to_do: to_do.into() });
    };
    if facts.receipt.previous.is_some() && facts.remembered.is_none() {
        add(
            "whether its standings are those of its last receipt",
            "the receipt before this one is in no bucket",
            "ask the validator for it: receipts are kept for 192 windows",
        );
    }
    if facts
        .seats
        .iter()
        .any(|seat| seat.id == facts.receipt.validator && seat.hotkey != facts.receipt.hotkey)
    {
        add(
            "whether the key that signed it was the seat's",
            "the seat has another hotkey now, and the chain does not tell which it had",
            "ask the validator when it changed its key; `mettle report` has the chain look at a key of then",
        );
    }
    let measured_any = facts.receipt.judgement.as_ref().is_some_and(|judgement| {
        judgement
            .seats
            .iter()
            .any(|judged| matches!(judged.observed, Observed::Valid { measured: Some(_), .. }))
    });
    if measured_any && facts.measured.is_none() {
        add(
            "the losses",
            "a contribution or the window's model cannot be had any more",
            "audit within 64 windows: that long contributions and checkpoints are kept",
        );
    }
    if facts.receipt.merged.is_some() && facts.merged.is_none() {
        add(
            "the merge",
            "a selected contribution, or the merge-side buffer, cannot be had any more",
            "audit within 64 windows, or from a checkpoint that was fixed before the window",
        );
    }
    list
}

/// Whether the receipt is about this window and this seat (PROT-2, PROT-19, PROT-27).
fn identity(facts: &Facts, found: &mut Vec<Difference>) {
    let Facts { receipt, view, uid, .. } = facts;
    if receipt.window != view.window {
        found.push(Difference::OtherSubject {
            what: "window",
            said: receipt.window.0,
            anchored: view.window.0,
        });
    }
    if receipt.validator.uid != *uid {
        found.push(Difference::OtherSubject {
            what: "seat",
            said: receipt.validator.uid.0.into(),
            anchored: uid.0.into(),
        });
    }
    if receipt.base != view.lineage {
        found.push(Difference::WrongBase { said: receipt.base, chain: view.lineage });
    }
    let committed = view.salts.iter().find(|(of, _)| of == uid).map(|(_, digest)| *digest);
    let revealed = Digest::of(&receipt.salt);
    if let Some(committed) = committed.filter(|committed| *committed != revealed) {
        found.push(Difference::WrongSalt { revealed, committed });
    }
}

/// Whether it follows on the receipt before it (PROT-25, PROT-27).
fn history(facts: &Facts, found: &mut Vec<Difference>) {
    let said = facts.receipt.previous;
    // What the chain has forgotten, it cannot contradict.
    let comparable = said.is_none_or(|said| facts.kept_from <= said.window) || facts.earlier.is_some();
    if comparable && said != facts.earlier {
        found.push(Difference::OtherPrevious { said, chain: facts.earlier });
    }
    let fresh = Reputations::default();
    let remembered = match said {
        Some(_) => facts.remembered.as_ref(),
        None => Some(&fresh),
    };
    if let Some(remembered) = remembered {
        compare_reputations(remembered, &facts.receipt.before, |uid, field, was, is| {
            found.push(Difference::ReputationChanged { uid, field, was, is });
        });
    }
}

/// Whether the receipt says of attestation and vote what the chain was told, and signs it (PROT-21).
fn statements(facts: &Facts, found: &mut Vec<Difference>) {
    let Facts { receipt, .. } = facts;
    let said: BTreeMap<Uid, Verdict> = receipt.verdicts().into_iter().collect();
    if let Some(attestation) = &facts.attestation {
        let taken: BTreeMap<Uid, Verdict> = attestation.iter().copied().collect();
        let uids: BTreeSet<Uid> = said.keys().chain(taken.keys()).copied().collect();
        for uid in uids {
            let (said, taken) = (said.get(&uid).copied(), taken.get(&uid).copied());
            if said != taken {
                found.push(Difference::AttestedOther { uid, said, taken });
            }
        }
        if receipt.statements.attestation.is_none() {
            found.push(Difference::NotStated { what: "attestation" });
        }
    }
    if facts.vote().is_some() && receipt.statements.vote.is_none() {
        found.push(Difference::NotStated { what: "vote" });
    }
}

/// Whether each attested seat is as was attested (PROT-14).
fn attestation(facts: &Facts, found: &mut Vec<Difference>) {
    let Facts { receipt, view, .. } = facts;
    let committed = |uid: &Uid| view.commitments.iter().any(|(of, _)| of == uid);
    let said = receipt.verdicts();
    // What the chain took counts, whatever the receipt says of it.
    let verdicts = facts.attestation.as_ref().unwrap_or(&said);
    for (uid, verdict) in verdicts {
        if !committed(uid) {
            found.push(Difference::AttestedNothing { uid: *uid });
        }
        if let (Verdict::Valid, Some(Found::Faulty { label, detail })) = (verdict, facts.found.get(uid)) {
            found.push(Difference::SkippedFault { uid: *uid, label: label.clone(), detail: detail.clone() });
        }
    }
    for said in &receipt.attestation.faulty {
        // That bytes were missing, late or slow then, bytes that are there now do not refute.
        let refutable = !matches!(said.label.as_str(), "missing" | "late" | "wrong-digest" | "too-large");
        if refutable && matches!(facts.found.get(&said.uid), Some(Found::Valid { .. })) {
            found.push(Difference::InventedFault { uid: said.uid, label: said.label.clone() });
        }
    }
}

/// Whether it merged what was selected, and voted what that comes to (PROT-16, PROT-17, PROT-19).
fn merge(facts: &Facts, found: &mut Vec<Difference>) {
    let Facts { receipt, view, .. } = facts;
    let voted = facts.vote().map(|vote| vote.update);
    if let Some(merged) = &receipt.merged {
        let selected = view.selection.as_ref().map(|selection| &selection.selected[..]).unwrap_or_default();
        if merged.inputs != selected {
            let list = |of: &[protocol::select::Selected]| of.iter().map(|one| one.uid).collect();
            found.push(Difference::MergedOthers { said: list(&merged.inputs), selected: list(selected) });
        }
        if let Some(voted) = voted.filter(|voted| *voted != merged.update) {
            found.push(Difference::VotedOther { said: merged.update, voted });
        }
    }
    // The vote counts, whatever the receipt says of it.
    let update = voted.or(receipt.merged.as_ref().map(|merged| merged.update));
    if let (Some(said), Some(ours)) = (update, facts.merged)
        && said != ours
    {
        found.push(Difference::WrongMerge { said, ours });
    }
    found.extend(dissent(view, facts.uid));
}

/// A vote for another update than the one that two thirds fixed: for that no receipt is needed (PROT-19).
pub fn dissent(view: &WindowView, uid: Uid) -> Option<Difference> {
    let (_, vote) = view.votes.iter().find(|(of, _)| *of == uid)?;
    match view.outcome {
        Some(Outcome::Merged(fixed)) if fixed.update != vote.update => {
            Some(Difference::Dissent { voted: vote.update, fixed: fixed.update })
        }
        _ => None,
    }
}

/// Whether every seat was seen as the chain saw it (PROT-6, PROT-14).
fn observations(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let view = &facts.view;
    if !matches!(view.outcome, Some(Outcome::Merged(_))) {
        found.push(Difference::JudgedVoid);
    }
    let Some(selection) = &view.selection else { return };
    let opened = facts.params.schedule.opens_at(view.window);
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
        } else if selection.valid.contains(uid) && judgement.held.contains(uid) {
            Kind::Valid
        } else {
            Kind::Unobserved
        };
        let said = Kind::of(&judged.observed);
        if said != is {
            found.push(Difference::SeenOtherwise { uid: *uid, said, is });
        }
        if let (Observed::Valid { trained: said, .. }, Some(Found::Valid { trained })) =
            (&judged.observed, facts.found.get(uid))
            && said != trained
        {
            found.push(Difference::WrongTrained { uid: *uid, said: *said, declared: *trained });
        }
    }
    for judged in judgement.seats.iter().filter(|judged| !view.slots.contains(&judged.seat.uid)) {
        found.push(Difference::SeatPutIn { uid: judged.seat.uid });
    }
}

/// Whether it measured whom it had to, in turn (PROT-28).
fn turns(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let Some(seed) = facts.seed() else { return };
    let seat =
        |uid: &Uid| judgement.seats.iter().find(|judged| judged.seat.uid == *uid).map(|judged| judged.seat);
    let candidates: Vec<SeatId> = judgement.held.iter().filter_map(seat).collect();
    let due = gauntlet::whom_to_evaluate(
        &seed,
        facts.view.window,
        &candidates,
        &form::remembered(&facts.receipt.before),
        usize::try_from(judgement.budget).unwrap_or(usize::MAX),
        facts.params.evaluation_wait_max,
    );
    let due: Vec<Uid> = due.into_iter().map(|seat| seat.uid).collect();
    if judgement.order != due {
        found.push(Difference::WrongOrder { said: judgement.order.clone(), due: due.clone() });
    }
    let reached: BTreeSet<Uid> = judgement
        .seats
        .iter()
        .filter(|judged| matches!(judged.observed, Observed::Valid { measured: Some(_), .. }))
        .map(|judged| judged.seat.uid)
        .collect();
    // Also those count as reached whose measurement does not show: the electorate did not find them valid.
    let shows = |uid: &Uid| {
        let selection = facts.view.selection.as_ref();
        selection.is_some_and(|selection| selection.valid.contains(uid))
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

/// Whether the sequences are those that salt and chain draw (PROT-2, PROT-22).
fn sequences(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let (Some(seed), Some(assignment)) = (facts.seed(), facts.assignment()) else { return };
    let count = usize::try_from(facts.params.evaluation_sequences).unwrap_or(usize::MAX);
    let said = judgement.common.iter().map(|baseline| baseline.sequence);
    let anyone = judgement.seats.iter().any(|judged| measured_of(&judged.observed).is_some());
    if anyone && !said.eq(assign::common_sequences(&seed, &assignment, count)) {
        found.push(Difference::WrongSequences { uid: None });
    }
    for judged in &judgement.seats {
        let Observed::Valid { trained, measured: Some(measured), .. } = &judged.observed else { continue };
        let uid = judged.seat.uid;
        let assigned = assignment.of(uid).unwrap_or_default();
        let prefix = assigned.len().min(usize::try_from(*trained).unwrap_or(usize::MAX));
        let drawn = assign::own_sequences(&seed, uid, assigned.get(..prefix).unwrap_or_default(), count);
        if !measured.own.iter().map(|pair| pair.sequence).eq(drawn) {
            found.push(Difference::WrongSequences { uid: Some(uid) });
        }
    }
}

/// Whether the losses are what comes out again (PROT-22).
fn losses(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let Some(again) = &facts.measured else { return };
    for judged in &judgement.seats {
        let uid = judged.seat.uid;
        let (Some(said), Some(ours)) = (measured_of(&judged.observed), again.get(&uid)) else { continue };
        let common = judgement.common.iter().zip(&said.common_after).map(|(baseline, after)| LossPair {
            sequence: baseline.sequence,
            before: baseline.before,
            after: *after,
        });
        let common: Vec<LossPair> = common.collect();
        for (own, said, ours) in [(true, &said.own, &ours.own), (false, &common, &ours.common)] {
            for (moment, of_said, of_ours) in [
                (
                    Moment::Before,
                    (|pair: &LossPair| pair.before.get()) as fn(&LossPair) -> f64,
                    before as fn(&_) -> f64,
                ),
                (Moment::After, |pair: &LossPair| pair.after.get(), after),
            ] {
                let off = said.iter().filter_map(|pair| {
                    let ours = ours.iter().find(|ours| ours.sequence == pair.sequence)?;
                    let (said, ours) = (of_said(pair), of_ours(ours));
                    let apart = (said - ours).abs();
                    (facts.tolerance < apart).then_some((pair.sequence, said, ours, apart))
                });
                let off: Vec<_> = off.collect();
                let worst = off.iter().max_by(|one, other| one.3.total_cmp(&other.3));
                if let Some((sequence, said, ours, _)) = worst {
                    found.push(Difference::WrongLosses {
                        uid,
                        own,
                        moment,
                        sequences: off.len(),
                        worst: *sequence,
                        said: *said,
                        ours: *ours,
                    });
                }
            }
        }
    }
}

fn before(pair: &gauntlet::LossPair) -> f64 {
    pair.before
}

fn after(pair: &gauntlet::LossPair) -> f64 {
    pair.after
}

/// Whether near-duplicates were seen where they are, and nowhere else (PROT-25).
fn near_duplicates(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
    let view = &facts.view;
    let digest = |uid: &Uid| view.commitments.iter().find(|(of, _)| of == uid).map(|(_, digest)| *digest);
    for judged in &judgement.seats {
        let Observed::Valid { near_duplicate, .. } = &judged.observed else { continue };
        let uid = judged.seat.uid;
        // The closest of the same window is there for everyone who held both; older ones a restart forgets.
        let others = judgement.held.iter().filter(|other| **other != uid).filter_map(|other| {
            let alike = *facts.alike.get(&(uid, digest(other)?))?;
            (ALIKE_MIN <= alike).then_some((*other, alike))
        });
        let closest = others.max_by(|one, other| one.1.total_cmp(&other.1));
        match (near_duplicate, closest) {
            (None, Some((other, alike))) => {
                found.push(Difference::TwinPassedOver { uid, other, alike });
            }
            (Some(near_duplicate), closest) => {
                let ours = facts.alike.get(&(uid, near_duplicate.digest)).copied();
                let invented =
                    ours.is_some_and(|ours| ours.to_bits() != near_duplicate.alike.get().to_bits());
                let same_window = near_duplicate.window == view.window
                    && digest(&near_duplicate.uid) != Some(near_duplicate.digest);
                if invented || same_window {
                    found.push(Difference::WrongTwin {
                        uid,
                        other: near_duplicate.uid,
                        said: near_duplicate.alike.get(),
                        ours: ours.unwrap_or(0.0),
                    });
                } else if let Some((other, alike)) =
                    closest.filter(|(_, alike)| near_duplicate.alike.get() < *alike)
                {
                    found.push(Difference::TwinPassedOver { uid, other, alike });
                }
            }
            (None, None) => {}
        }
    }
}

/// Whether standings, scores and weights follow from the evidence, to the last bit (PROT-23 to PROT-26).
fn conclusions(facts: &Facts, judgement: &Judgement, found: &mut Vec<Difference>) {
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

/// Whether the weights that it posted are those that its scores come to (PROT-26, PROT-30).
fn weight_vote(facts: &Facts, found: &mut Vec<Difference>) {
    let Some(RevealedWeights { epoch, posted, earned }) = &facts.weight_vote else { return };
    let Some((_, latest)) = earned.last() else { return };
    if earned.iter().any(|(_, weights)| weights == posted) {
        return;
    }
    // The highest weight is 65535, whoever has it: what a friend was given more shows in what all others have less, and in its share.
    let share = |weights: &[(Uid, u16)], uid: Uid| {
        let all: f64 = weights.iter().map(|(_, weight)| f64::from(*weight)).sum();
        let own = weights.iter().find(|(of, _)| *of == uid).map_or(0.0, |(_, weight)| f64::from(*weight));
        if 0.0 < all { own / all } else { 0.0 }
    };
    let uids: BTreeSet<Uid> = posted.iter().chain(latest).map(|(uid, _)| *uid).collect();
    for uid in uids {
        let of = |weights: &[(Uid, u16)]| {
            weights.iter().find(|(of, _)| *of == uid).map_or(0, |(_, weight)| *weight)
        };
        let (weight, worth) = (of(posted), of(latest));
        let (posted_share, earned_share) = (share(posted, uid), share(latest, uid));
        if weight != worth || SHARE_ALIKE < posted_share - earned_share {
            found.push(Difference::WrongBallot {
                epoch: *epoch,
                uid,
                posted: weight,
                earned: worth,
                posted_share,
                earned_share,
            });
        }
    }
}

fn compare_weights(said: &[(Uid, u16)], ours: &[(Uid, u16)], mut differs: impl FnMut(Uid, u16, u16)) {
    let (said, ours): (BTreeMap<_, _>, BTreeMap<_, _>) =
        (said.iter().copied().collect(), ours.iter().copied().collect());
    let uids: BTreeSet<Uid> = said.keys().chain(ours.keys()).copied().collect();
    for uid in uids {
        let of = |weights: &BTreeMap<Uid, u16>| weights.get(&uid).copied().unwrap_or(0);
        if of(&said) != of(&ours) {
            differs(uid, of(&said), of(&ours));
        }
    }
}

/// Field by field, to the last bit: a fraction is written as the shortest text that names it alone.
fn compare_reputations(
    one: &Reputations,
    other: &Reputations,
    mut differs: impl FnMut(Option<Uid>, &'static str, String, String),
) {
    if one.judged != other.judged {
        let text = |judged: Option<Window>| judged.map_or("none".to_owned(), |window| window.0.to_string());
        differs(None, "last window judged", text(one.judged), text(other.judged));
    }
    let uids: BTreeSet<Uid> =
        one.seats.iter().chain(&other.seats).map(|remembered| remembered.seat.uid).collect();
    for uid in uids {
        match (one.of(uid), other.of(uid)) {
            (Some(one), Some(other)) => {
                for (was, is) in fields(one).into_iter().zip(fields(other)) {
                    if was.1 != is.1 {
                        differs(Some(uid), was.0, was.1, is.1);
                    }
                }
            }
            (one, _) => {
                let text = |there: bool| if there { "known" } else { "unknown" }.to_owned();
                differs(Some(uid), "seat", text(one.is_some()), text(one.is_none()));
            }
        }
    }
}

fn fields(of: &protocol::receipt::SeatReputation) -> [(&'static str, String); 13] {
    let protocol::receipt::SeatReputation { seat, reputation } = of;
    let protocol::receipt::Reputation {
        mu,
        sigma,
        own_data_score,
        own_data_variance,
        unmeasured,
        penalties,
        first_seen,
        last_evaluated,
        evaluations,
        faults,
        share,
        recent,
    } = reputation;
    [
        ("holder", format!("{:?}", seat.registered_at)),
        ("rating", format!("{mu:?}")),
        ("uncertainty", format!("{sigma:?}")),
        ("mark", format!("{own_data_score:?}")),
        ("uncertainty of the mark", format!("{own_data_variance:?}")),
        ("unmeasured windows", format!("{unmeasured:?}")),
        ("penalties", format!("{penalties:?}")),
        ("first seen", format!("{first_seen:?}")),
        ("last evaluated", format!("{last_evaluated:?}")),
        ("evaluations", evaluations.to_string()),
        ("faults", faults.to_string()),
        ("trained share", format!("{share:?}")),
        ("recent scores", format!("{recent:?}")),
    ]
}

fn measured_of(observed: &Observed) -> Option<&protocol::receipt::Measured> {
    match observed {
        Observed::Valid { measured, .. } => measured.as_ref(),
        _ => None,
    }
}

impl Facts {
    /// What the chain took as the validator's vote.
    pub fn vote(&self) -> Option<Vote> {
        self.view.votes.iter().find(|(of, _)| *of == self.uid).map(|(_, vote)| *vote)
    }

    /// What chose the validator's sequences (PROT-2).
    pub fn seed(&self) -> Option<Digest> {
        let hash = self.view.evaluation_hash?;
        Some(assign::evaluation_seed(self.receipt.run, self.view.window, &hash, &self.receipt.salt))
    }

    /// What the window handed out (PROT-5).
    pub fn assignment(&self) -> Option<Assignment<'_>> {
        Some(Assignment {
            run: self.receipt.run,
            window: self.view.window,
            opening_hash: self.view.opening_hash?,
            slots: &self.view.slots,
            cursor: self.view.cursor,
            sequences_per_seat: self.params.sequences_per_seat,
            training_sequences: self.training_sequences,
        })
    }

    /// Who holds a seat now, if that was its holder then.
    fn holder(&self, uid: Uid, opened: Block) -> Option<SeatId> {
        let seat = self.seats.iter().find(|seat| seat.id.uid == uid)?;
        (seat.id.registered_at <= opened).then_some(seat.id)
    }
}
