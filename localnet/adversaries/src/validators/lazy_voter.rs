//! Computes nothing: it copies another validator's attestation and the vote with the most stake, and posts the
//! consensus of the previous epoch.
//!
//! Attests and votes at the last moment, when most can be copied.
//!
//! Sees: commitments, attestations and votes as they arrive, and the consensus. Ends at: PROT-14, its attestation
//! alone has no effect; PROT-30, hidden attestations and votes cannot be copied, and a validator that never votes
//! earns nothing; it publishes no receipt (PROT-27), and its bonds follow the seats that were good before (PROT-31).

use async_trait::async_trait;
use daemon::{Follower, wait_past};
use protocol::{
    Block, Digest, Uid, Window,
    view::{Verdict, Vote, WindowView},
};
use std::collections::BTreeMap;
use validator::strategy::Strategy;

#[derive(Default)]
pub struct LazyVoter {
    /// Attestation of another validator.
    pub(crate) copied: Vec<(Uid, Verdict)>,
}

#[async_trait]
impl Strategy for LazyVoter {
    fn computes(&self) -> bool {
        false
    }

    async fn wait_and_look(
        &mut self,
        follower: &Follower,
        window: Window,
        deadline: Block,
    ) -> Option<WindowView> {
        // The next block is the last one that counts.
        wait_past(&mut follower.chain.heads(), Block(deadline.0.saturating_sub(2))).await.ok()?;
        let view = follower.chain.window(follower.run.id, window).await.ok()??;
        self.copied = copied(follower, &view).await.unwrap_or_default();
        Some(view)
    }

    /// Returns the copied verdicts. `own` is empty, because this validator has gathered nothing. If there is nothing
    /// to copy, it attests every commitment as valid, because most are.
    fn verdicts(&mut self, view: &WindowView, _own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        if !self.copied.is_empty() {
            return Some(std::mem::take(&mut self.copied));
        }
        let mut verdicts: Vec<_> = view.commitments.iter().map(|(uid, _)| (*uid, Verdict::Valid)).collect();
        verdicts.sort_by_key(|(uid, _)| *uid);
        Some(verdicts)
    }

    /// Returns the vote with the most stake; `None` if there is no vote to copy.
    fn vote(&mut self, view: &WindowView, _own: Option<Vote>) -> Option<Vote> {
        let mut behind: BTreeMap<(Digest, Option<Digest>), (u128, Vote)> = BTreeMap::new();
        for (uid, vote) in &view.votes {
            let stake = view.active_set.iter().find(|(of, _)| of == uid).map_or(0, |(_, stake)| *stake);
            let (sum, _) = behind.entry((vote.update, vote.state_root)).or_insert((0, *vote));
            *sum = sum.saturating_add(stake);
        }
        behind.into_values().max_by_key(|(stake, _)| *stake).map(|(_, vote)| vote)
    }

    fn weights(&mut self, view: &WindowView, _own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        view.weights.iter().copied().filter(|(_, weight)| 0 < *weight).collect()
    }
}

/// Returns the verdicts that another validator attested on the chain; `None` if no validator has attested.
async fn copied(follower: &Follower, view: &WindowView) -> Option<Vec<(Uid, Verdict)>> {
    let attester = *view.attested.first()?;
    follower.chain.attestation(follower.run.id, view.window, attester).await.ok()?
}
