//! Votes for the digest of the merged update (PROT-19).

use crate::{
    signed_db::SignedDb,
    step::{Stop, hides, store_before},
    validator::Validator,
    veto::sequences_before_vote,
};
use chain_client::{Call, Refusal};
use daemon::{Entry, HeldContribution};
use protocol::{
    Uid, Window,
    receipt::MergeRecord,
    view::{SeatView, Vote, WindowView},
};
use std::collections::BTreeMap;
use tracing::field::Empty;

impl Validator {
    /// Merges the selection and votes for the result. If this validator cannot, the others may still merge the
    /// window.
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
        // One vote per window: an earlier process may have voted.
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

    /// Merges the selection, publishes the update, and returns the vote for it. The merge is kept for the next window's
    /// model. An update that makes the model worse is not voted for (PROT-19).
    #[tracing::instrument(
        name = "merge", target = "profile", level = "debug", skip_all,
        fields(window = view.window.0, contributions = Empty), err(level = "debug")
    )]
    async fn merge(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        held: &mut BTreeMap<Uid, HeldContribution>,
    ) -> Result<Vote, Stop> {
        let node = &mut self.node;
        let own = self.merger.merge(node, &self.gatherer, (view, seats), held).await?;
        let has_voted = view.votes.iter().any(|(of, _)| *of == node.uid())
            || self.signed.report(view.window).is_some_and(|report| report.merged.is_some());
        let (own, rise) = if has_voted || node.schedule().vote_deadline(view.window) <= node.block() {
            (own, None)
        } else {
            let sequences = sequences_before_vote(node, &self.salts, view);
            self.evaluation.measure_merge(node, &mut *self.strategy, sequences, own).await?
        };
        self.merger.vote(node, view, own, rise).await
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
        let deadline = self.node.schedule().vote_deadline(window);
        let store = |signed: &mut SignedDb| signed.store_merge(window, view.lineage, merged.clone());
        let stored = store_before(&mut self.node, &mut self.signed, deadline, store).await?;
        let MergeRecord { update, state_root, .. } = stored;
        let vote = Vote { update, state_root };

        let run = self.node.run_id();
        let call = if hides(&self.node) {
            let hash = self.salts.hidden_commitment(run, window, &vote, &self.node.seat.hotkey);
            Call::VoteHidden { run, window, hash }
        } else {
            Call::Vote { run, window, vote }
        };
        self.node.submit_once(call, Refusal::AlreadyVoted).await?;
        if let Some(own) = &self.merger.own {
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
        let Some(vote) = vote.filter(|_| hides(&self.node)) else { return Ok(()) };
        let salt = self.salts.commit_reveal(run, window, &vote);
        self.node.submit_once(Call::RevealVote { run, window, vote, salt }, Refusal::AlreadyVoted).await
    }
}
