//! Computes nothing, and holds no model: it attests what another has attested, votes what most others have voted, and
//! posts the consensus of the epoch before.
//!
//! Sees: commitments, votes as they come in, the consensus, and from others' buckets whom they attest as valid
//! ([`crate::idle`]). Ends at: PROT-14, what it attests does not stand alone; PROT-30, where attestations and votes
//! are hidden there is nothing to copy, and who votes never earns nothing; it reveals no salt and publishes no receipt
//! (PROT-2, PROT-27), and bonds follow who was good before (PROT-31).

use protocol::{
    Digest, Uid,
    view::{Verdict, Vote, WindowView},
};
use std::collections::BTreeMap;
use validator::strategy::Strategy;

pub struct LazyVoter;

impl Strategy for LazyVoter {
    /// `own` is what it has copied. Without that it calls every seat valid that committed: most are.
    fn verdicts(&mut self, view: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        if !own.is_empty() {
            return Some(own);
        }
        let mut verdicts: Vec<_> = view.commitments.iter().map(|(uid, _)| (*uid, Verdict::Valid)).collect();
        verdicts.sort_by_key(|(uid, _)| *uid);
        Some(verdicts)
    }

    /// The vote with the most stake behind it; with none to copy, none.
    fn vote(&mut self, view: &WindowView, _own: Option<Vote>) -> Option<Vote> {
        let mut behind: BTreeMap<(Digest, Option<Digest>), (u128, Vote)> = BTreeMap::new();
        for (uid, vote) in &view.votes {
            let stake = view.electorate.iter().find(|(of, _)| of == uid).map_or(0, |(_, stake)| *stake);
            let (sum, _) = behind.entry((vote.update, vote.state_root)).or_insert((0, *vote));
            *sum = sum.saturating_add(stake);
        }
        behind.into_values().max_by_key(|(stake, _)| *stake).map(|(_, vote)| vote)
    }

    fn weights(&mut self, view: &WindowView, _own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        view.weights.iter().copied().filter(|(_, weight)| 0 < *weight).collect()
    }
}
