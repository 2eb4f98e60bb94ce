//! Compares a receipt's window, history, attestation and merge.

use super::{Difference, Facts, Found, compare::compare_reputations};
use crate::probes;
use protocol::{
    Digest, Uid,
    receipt::Reputations,
    view::{Outcome, Verdict, WindowView},
};
use std::collections::{BTreeMap, BTreeSet};

/// Compares window, seat, model and salt (PROT-2, PROT-19, PROT-27).
pub(super) fn identity(facts: &Facts, found: &mut Vec<Difference>) {
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

/// Compares the root on the chain with the one that follows from the receipt's measurements (PROT-27).
pub(super) fn probe_root(facts: &Facts, found: &mut Vec<Difference>) {
    let Facts { receipt, view, uid, params, .. } = facts;
    let Some(anchored) = view.probe_roots.iter().find(|anchored| anchored.validator == *uid) else { return };
    let selected = view.selection.as_ref().map(|made| &made.selected[..]).unwrap_or_default();
    let ours = probes::root(receipt, selected, params);
    if anchored.root != ours {
        found.push(Difference::OtherProbeRoot { anchored: anchored.root, ours });
    }
}

/// Compares with the receipt before it (PROT-25, PROT-27).
pub(super) fn history(facts: &Facts, found: &mut Vec<Difference>) {
    let said = facts.receipt.previous;
    // The chain cannot contradict data that it no longer keeps.
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

/// Compares the receipt's attestation with the chain's, and looks for its signed statements (PROT-21).
pub(super) fn statements(facts: &Facts, found: &mut Vec<Difference>) {
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
            found.push(Difference::NotSigned { what: "attestation" });
        }
    }
    if facts.vote().is_some() && receipt.statements.vote.is_none() {
        found.push(Difference::NotSigned { what: "vote" });
    }
}

/// Compares each attested seat with its contribution (PROT-14).
pub(super) fn attestation(facts: &Facts, found: &mut Vec<Difference>) {
    let Facts { receipt, view, .. } = facts;
    let committed = |uid: &Uid| view.commitments.iter().any(|(of, _)| of == uid);
    let said = receipt.verdicts();
    // The chain's attestation counts, not the receipt's.
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
        // Bytes that exist now do not refute that they were missing, late or slow.
        let refutable = match said.label.as_str() {
            "missing" | "late" | "wrong-digest" | "too-large" => false,
            // Only the window's model shows whether bytes have an effect.
            "no-effect" => facts.has_model,
            _ => true,
        };
        if refutable && matches!(facts.found.get(&said.uid), Some(Found::Valid { .. })) {
            found.push(Difference::InventedFault { uid: said.uid, label: said.label.clone() });
        }
    }
}

/// Compares the merge with the selection, and the vote with the merge (PROT-16, PROT-17, PROT-19).
pub(super) fn merge(facts: &Facts, found: &mut Vec<Difference>) {
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
    // The chain's vote counts, not the receipt's.
    let update = voted.or(receipt.merged.as_ref().map(|merged| merged.update));
    if let (Some(said), Some(ours)) = (update, facts.merged)
        && said != ours
    {
        found.push(Difference::WrongMerge { said, ours });
    }
    found.extend(dissent(view, facts.uid));
}

/// A vote for another update than the one that two thirds finalised. It shows without a receipt (PROT-19).
pub fn dissent(view: &WindowView, uid: Uid) -> Option<Difference> {
    let (_, vote) = view.votes.iter().find(|(of, _)| *of == uid)?;
    match view.outcome {
        Some(Outcome::Merged(fixed)) if fixed.update != vote.update => {
            Some(Difference::Dissent { voted: vote.update, fixed: fixed.update })
        }
        _ => None,
    }
}
