//! Compares a validator's receipt with public data, and lists the differences (PROT-27).
//!
//! [`audit()`] is a pure function of [`Facts`]. `daemon/measure` gets them from the chain, the buckets and the
//! dataset, and by repeating merge and measurements. [`unchecked()`] lists the parts that the facts do not cover;
//! that is not evidence.
//!
//! Everything but losses is compared to the last bit; see [`TOLERANCE`].

mod compare;
mod difference;
mod facts;
mod judgement;
#[cfg(test)]
mod tests;
mod unchecked;
mod window;

pub use difference::{Difference, Kind, Moment};
pub use facts::{Facts, Found, RevealedWeights, named, to_fetch};
pub use judgement::measured_seats;
pub use unchecked::{Unchecked, unchecked};
pub use window::dissent;

use protocol::{
    Uid,
    receipt::Receipt,
    statement::{SignedStatement, StatementKind},
    view::{Verdict, Vote},
};

/// Largest difference of a repeated loss, in nats per token. One build on one machine gives equal losses; other
/// instruction sets, thread counts and devices sum in another order. `docs/receipts.md` has measurements.
pub const TOLERANCE: f64 = 1e-5;

/// Lists every difference between a receipt and the facts.
pub fn audit(facts: &Facts) -> Vec<Difference> {
    let mut found = Vec::new();
    window::identity(facts, &mut found);
    window::probe_root(facts, &mut found);
    window::history(facts, &mut found);
    window::statements(facts, &mut found);
    window::attestation(facts, &mut found);
    window::merge(facts, &mut found);
    if let Some(judgement) = &facts.receipt.judgement {
        judgement::observations(facts, judgement, &mut found);
        judgement::turns(facts, judgement, &mut found);
        judgement::sequences(facts, judgement, &mut found);
        judgement::losses(facts, judgement, &mut found);
        judgement::near_duplicates(facts, judgement, &mut found);
        judgement::conclusions(facts, judgement, &mut found);
    }
    judgement::weight_vote(facts, &mut found);
    found
}

/// Returns the signed statements of a receipt that contradict the chain's attestation or vote (PROT-21).
pub fn evidence(
    receipt: &Receipt,
    attestation: Option<&[(Uid, Verdict)]>,
    vote: Option<Vote>,
) -> Vec<SignedStatement> {
    let contradicts = |signed: &SignedStatement| match signed.statement.kind {
        StatementKind::Attestation => attestation.is_some_and(|on_chain| on_chain != receipt.verdicts()),
        StatementKind::Vote => vote.is_some_and(|on_chain| Some(on_chain) != receipt.vote()),
        StatementKind::Receipts => false,
    };
    receipt.signed_statements().into_iter().filter(contradicts).collect()
}
