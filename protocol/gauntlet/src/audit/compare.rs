//! Compares reputations and weights, field by field.

use protocol::{Uid, Window, receipt::Reputations};
use std::collections::{BTreeMap, BTreeSet};

pub(super) fn compare_weights(
    said: &[(Uid, u16)],
    ours: &[(Uid, u16)],
    mut differs: impl FnMut(Uid, u16, u16),
) {
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

/// Compares to the last bit: Rust writes a fraction as the shortest text that reads back as the same number.
pub(super) fn compare_reputations(
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
        ("own-data score", format!("{own_data_score:?}")),
        ("variance of the own-data score", format!("{own_data_variance:?}")),
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
