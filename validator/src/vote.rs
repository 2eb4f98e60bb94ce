//! Votes for the digest of the merged update (PROT-19).

use crate::{run::Validator, step::Stop};
use chain_client::{Call, Refusal};
use daemon::{Entry, HeldContribution};
use protocol::{
    Uid, Window,
    receipt::MergeRecord,
    view::{SeatView, Vote, WindowView},
};
use std::collections::BTreeMap;

impl Validator {
    /// Merges the selection and votes for the result. If this validator cannot, the window may still be merged by the
    /// others.
    pub(crate) async fn merge_and_vote(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        held: &mut BTreeMap<Uid, HeldContribution>,
    ) -> Result<(), Stop> {
        let own = match self.strategy.computes() {
            true => Some(self.merge(view, seats, held).await?),
            false => None,
        };
        // One vote per window: a process before this one may have voted.
        if view.votes.iter().any(|(uid, _)| *uid == self.node.uid()) {
            return Ok(());
        }
        let deadline = self.node.schedule().vote_deadline(view.window);
        let looked = self.strategy.wait_and_look(&self.node.sync.follower, view.window, deadline).await;
        let view = looked.as_ref().unwrap_or(view);
        match self.strategy.vote(view, own) {
            Some(vote) => self.vote(view, vote).await,
            None => Ok(()),
        }
    }

    /// Stores the vote, then submits it, or its hash in a run that hides votes.
    #[tracing::instrument(
        name = "vote", target = "profile", level = "debug", skip_all, fields(window = view.window.0),
        err(level = "debug")
    )]
    async fn vote(&mut self, view: &WindowView, vote: Vote) -> Result<(), Stop> {
        let window = view.window;
        let inputs = view.selection.as_ref().map(|selection| selection.selected.clone()).unwrap_or_default();
        let merged = MergeRecord { inputs, update: vote.update, state_root: vote.state_root };
        let store = self.store_before(self.node.schedule().vote_deadline(window), |signed| {
            signed.store_merge(window, view.lineage, merged.clone())
        });
        let MergeRecord { update, state_root, .. } = store.await?;
        let vote = Vote { update, state_root };

        let run = self.node.run_id();
        let call = if self.hides() {
            let hash = self.salts.hidden_commitment(run, window, &vote, &self.node.seat.hotkey);
            Call::VoteHidden { run, window, hash }
        } else {
            Call::Vote { run, window, vote }
        };
        self.node.submit_once(call, Refusal::AlreadyVoted).await?;
        if let Some(own) = &self.own_merge {
            let (update, inputs) = (own.digest, own.inputs.clone());
            let bytes = u64::try_from(own.bytes.len()).unwrap_or(u64::MAX);
            tracing::info!(window = window.0, update = %update, bytes, contributions = inputs.len(), "voted");
            self.node.journal.write(&Entry::Voted { window, update, bytes, inputs });
        }
        Ok(())
    }

    /// In a run that hides votes, reveals the one that was committed (PROT-30).
    pub(crate) async fn reveal_vote(&mut self, window: Window) -> Result<(), Stop> {
        let run = self.node.run_id();
        let vote = self.signed.report(window).and_then(|report| report.vote());
        let Some(vote) = vote.filter(|_| self.hides()) else { return Ok(()) };
        let salt = self.salts.commit_reveal(run, window, &vote);
        self.node.submit_once(Call::RevealVote { run, window, vote, salt }, Refusal::AlreadyVoted).await
    }
}
