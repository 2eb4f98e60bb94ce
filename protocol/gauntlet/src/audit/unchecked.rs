//! Parts of a receipt that an audit could not check.

use super::{Facts, facts::named, judgement::measured_seats};
use protocol::Uid;
use serde::Serialize;
use std::collections::BTreeSet;

/// An unchecked part, with the reason and the user's options.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unchecked {
    pub what: String,
    pub why: String,
    pub to_do: String,
}

/// Lists the parts that these facts do not cover.
pub fn unchecked(facts: &Facts) -> Vec<Unchecked> {
    let mut list = Vec::new();
    let mut add = |what: &str, why: &str, to_do: &str| {
        list.push(Unchecked { what: what.into(), why: why.into(), to_do: to_do.into() });
    };
    if facts.receipt.previous.is_some() && facts.remembered.is_none() {
        add(
            "whether its reputations are those of its last receipt",
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
            "ask the validator when it changed its key; for `mettle report` the chain accepts the earlier key",
        );
    }
    let judgement = facts.receipt.judgement.as_ref();
    let measured_any = judgement.is_some_and(|judgement| measured_seats(judgement).next().is_some());
    if measured_any && facts.measured.is_none() {
        add(
            "the losses",
            "a contribution or the window's model is in no bucket any more",
            "audit within 64 windows: contributions and checkpoints are kept that long",
        );
    }
    let lost = judgement.into_iter().flat_map(measured_seats).map(|(judged, _)| judged.seat.uid);
    let lost = lost.filter(|uid| facts.measured.as_ref().is_some_and(|again| !again.contains_key(uid)));
    let lost: Vec<String> = lost.map(|uid| uid.to_string()).collect();
    if !lost.is_empty() {
        add(
            &format!("the losses of uid {}", lost.join(", ")),
            "its contribution was not selected, so no validator copied it, and its miner has removed it",
            "audit sooner: only selected contributions are kept by validators",
        );
    }
    let passed: BTreeSet<Uid> =
        named(&facts.view, &facts.receipt).filter(|uid| !facts.found.contains_key(uid)).collect();
    if !passed.is_empty() {
        add(
            &format!("what it says of {} contributions without a weight", passed.len()),
            "it names more of them than a validator fetches in a window",
            "look at a few of them in their miners' buckets",
        );
    }
    if facts.weight_vote.as_ref().is_some_and(|vote| vote.earned.is_empty()) {
        add(
            "its weight vote for the epoch",
            "a receipt that it may follow from is not public yet, or in no bucket",
            "audit again two windows later",
        );
    }
    if facts.receipt.merged.is_some() && facts.merged.is_none() {
        add(
            "the merge",
            "a selected contribution or the merge-side buffer is in no bucket any more",
            "audit within 64 windows, or from a checkpoint that was finalised before the window",
        );
    }
    list
}
