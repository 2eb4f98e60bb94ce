//! Merges the selected contributions into one update, and publishes update and checkpoint (PROT-16 to PROT-20).

use crate::{
    run::Validator,
    step::{RunError, Stop},
};
use node::{
    Blocking, Contribution, Follower, ModelState, Node, checkpoint, error_chain,
    follow::{ContributionError, OwnMerge},
};
use protocol::{
    Block, Uid, Window, keys, lineage,
    view::{SeatView, Vote, WindowView},
};
use std::collections::BTreeMap;
use store::{Store, StoreError};

/// Why a selection was not merged.
#[derive(Debug, thiserror::Error)]
pub enum MergeError {
    #[error("could not get the selected contribution of uid {uid}")]
    Contribution { uid: Uid, source: ContributionError },
}

/// The selected contributions: those at hand, and the others from the validators that attested them.
pub async fn selected(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    at_hand: &BTreeMap<Uid, Contribution>,
) -> Result<BTreeMap<Uid, Contribution>, MergeError> {
    let mut contributions = BTreeMap::new();
    for selected in view.selection.iter().flat_map(|selection| &selection.selected) {
        let uid = selected.uid;
        let contribution = match at_hand.get(&uid).filter(|held| held.digest == selected.digest) {
            Some(held) => held.clone(),
            None => {
                let fetched = follower.fetch_contribution(view, seats, uid, &selected.digest).await;
                fetched.map_err(|source| MergeError::Contribution { uid, source })?
            }
        };
        contributions.insert(uid, contribution);
    }
    Ok(contributions)
}

/// Uploads the update. Returns the merge with the vote for it. The upload comes first: a vote for an update in no
/// bucket would leave every node behind.
pub async fn publish(
    blocking: Blocking,
    store: &dyn Store,
    follower: &Follower,
    own: OwnMerge,
) -> Result<(OwnMerge, Vote), StoreError> {
    store.put(&keys::update(follower.run.id, own.window, &own.digest), own.bytes.clone()).await?;
    let is_checkpoint = follower.run.params.is_checkpoint(own.window);
    let hash = move || {
        let state_root = is_checkpoint.then(|| {
            let weights = lineage::weights_root(&own.theta);
            lineage::state_root(&weights, &lineage::weights_root(&own.buffer))
        });
        let vote = Vote { update: own.digest, state_root };
        (own, vote)
    };
    Ok(blocking.run(hash).await)
}

impl Validator {
    /// The window with its selection, which the chain makes after the attestations and their reveals, some blocks
    /// late under load. After the vote deadline the window is returned as it is.
    pub(crate) async fn selection(&mut self, window: Window) -> Result<WindowView, Stop> {
        let schedule = self.node.schedule();
        let hidden_blocks = self.node.run().params.hidden_blocks;
        self.node.wait_past(Block(schedule.attest_deadline(window).0.saturating_add(hidden_blocks))).await?;
        loop {
            let head = self.node.heads.borrow_and_update().block;
            let view = self.view(window).await?;
            if view.selection.is_some() || schedule.vote_deadline(window) <= head {
                return Ok(view);
            }
            self.node.wait_past(head).await?;
        }
    }

    /// Merges the selection, publishes the update, and returns the vote for it. The merge is kept for the next
    /// window's model.
    pub(crate) async fn merge(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        at_hand: &BTreeMap<Uid, Contribution>,
    ) -> Result<Vote, Stop> {
        if view.selection.as_ref().is_none_or(|selection| selection.selected.is_empty()) {
            return Err(Stop::skip("the selection is empty"));
        }
        if self.node.sync.state.buffer.is_none() {
            return Err(Stop::skip("the merge-side buffer is missing until the next checkpoint"));
        }
        let skip = |error: &(dyn std::error::Error + 'static)| Stop::skip(error_chain(error));
        let selected = selected(self.node.follower(), view, seats, at_hand).await;
        let contributions = selected.map_err(|error| skip(&error))?;
        let (blocking, follower, view) = (self.node.blocking, self.node.sync.follower.clone(), view.clone());
        let merge = move |state: &mut ModelState| follower.merge(state, &view, &contributions);
        let own = blocking.with(&mut self.node.sync.state, merge).await.map_err(|error| skip(&error))?;
        let published = publish(blocking, &*self.node.store, self.node.follower(), own).await;
        let (own, vote) = published.map_err(|error| {
            Stop::skip(format!("our bucket did not take the update: {}", error_chain(&error)))
        })?;
        self.own_merge = Some(own);
        Ok(vote)
    }

    /// Publishes the model as a checkpoint if the chain has just finalised one for it. A failure is logged: other
    /// validators publish it too.
    pub(crate) async fn publish_checkpoint(&mut self) -> Result<(), RunError> {
        let run = self.node.chain().run(self.node.run_id()).await?;
        let Node { sync, store, blocking, .. } = &mut self.node;
        let window = sync.window();
        let Some(checkpoint) = run.checkpoint.filter(|checkpoint| checkpoint.window == window) else {
            return Ok(());
        };
        if blocking.with(&mut sync.state, |state| state.state_root()).await != Some(checkpoint.state_root) {
            return Ok(());
        }
        match checkpoint::publish(*blocking, &**store, &mut sync.state).await {
            Ok(published) => {
                tracing::info!(window = published.window.0, state_root = %published.state_root, "published the checkpoint");
            }
            Err(error) => {
                tracing::warn!(window = window.0, error = %error_chain(&error), "could not publish the checkpoint");
            }
        }
        Ok(())
    }
}
