//! Merges the selected contributions into one update, and publishes update and checkpoint (PROT-16 to PROT-20).

use crate::{
    run::{RunError, Validator},
    stop::{Stop, skip},
};
use node::{
    Contribution, Follower, ModelState, checkpoint, error_chain,
    follow::{ContributionError, OwnMerge, OwnMergeError},
};
use protocol::{
    Block, Uid, Window, keys,
    view::{SeatView, Vote, WindowView},
};
use std::{collections::BTreeMap, sync::Arc};
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

/// Merges on a thread of its own: no other step takes as long while other nodes wait.
async fn merge(
    follower: Arc<Follower>,
    state: ModelState,
    view: WindowView,
    contributions: BTreeMap<Uid, Contribution>,
) -> Result<OwnMerge, OwnMergeError> {
    let merged = tokio::task::spawn_blocking(move || follower.merge(&state, &view, &contributions)).await;
    match merged {
        Ok(merged) => merged,
        Err(died) => std::panic::resume_unwind(died.into_panic()),
    }
}

/// Uploads the update and returns the vote for it. The upload comes first: a vote for an update in no bucket would leave every node behind.
pub async fn publish(store: &dyn Store, follower: &Follower, own: &OwnMerge) -> Result<Vote, StoreError> {
    store.put(&keys::update(follower.run.id, own.window, &own.digest), own.bytes.clone()).await?;
    let state_root = follower.run.params.is_checkpoint(own.window).then(|| {
        let weights = protocol::lineage::weights_root(&own.theta);
        protocol::lineage::state_root(&weights, &protocol::lineage::weights_root(&own.buffer))
    });
    Ok(Vote { update: own.digest, state_root })
}

impl Validator {
    /// The window with its selection, which the chain makes after the attestations and their reveals, some blocks late under load.
    /// After the vote deadline the window is returned as it is.
    pub(crate) async fn selection(&mut self, window: Window) -> Result<WindowView, Stop> {
        let schedule = self.schedule();
        let hidden_blocks = self.run_view().params.hidden_blocks;
        self.wait_past(Block(schedule.attest_deadline(window).0.saturating_add(hidden_blocks))).await?;
        loop {
            let head = self.heads.borrow_and_update().block;
            let view = self.window_view(window).await?;
            if view.selection.is_some() || schedule.vote_deadline(window) <= head {
                return Ok(view);
            }
            self.wait_past(head).await?;
        }
    }

    /// Merges the selection, publishes the update, and returns the vote for it. The merge is kept for the next window's model.
    pub(crate) async fn merge(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        at_hand: &BTreeMap<Uid, Contribution>,
    ) -> Result<Vote, Stop> {
        if view.selection.as_ref().is_none_or(|selection| selection.selected.is_empty()) {
            return skip("the selection is empty");
        }
        if self.sync_driver.state.buffer.is_none() {
            return skip("the merge-side buffer is missing until the next checkpoint");
        }
        let contributions = match selected(self.follower(), view, seats, at_hand).await {
            Ok(contributions) => contributions,
            Err(error) => return skip(error_chain(&error)),
        };
        let (follower, state) = (self.sync_driver.follower.clone(), self.sync_driver.state.clone());
        let own = match merge(follower, state, view.clone(), contributions).await {
            Ok(own) => own,
            Err(error) => return skip(error_chain(&error)),
        };
        let vote = match publish(&*self.store, self.follower(), &own).await {
            Ok(vote) => vote,
            Err(error) => {
                return skip(format!("our bucket did not take the update: {}", error_chain(&error)));
            }
        };
        self.own_merge = Some(own);
        Ok(vote)
    }

    /// Publishes the model as a checkpoint if the chain has just finalised one for it. A failure is logged: other validators publish it too.
    pub(crate) async fn publish_checkpoint(&mut self) -> Result<(), RunError> {
        let run = self.chain().run(self.run_view().id).await?;
        let state = &self.sync_driver.state;
        let Some(checkpoint) = run.checkpoint else { return Ok(()) };
        if checkpoint.window != state.window || state.state_root() != Some(checkpoint.state_root) {
            return Ok(());
        }
        match checkpoint::publish(&*self.store, state).await {
            Ok(published) => {
                tracing::info!(window = published.window.0, state_root = %published.state_root, "published the checkpoint");
            }
            Err(error) => {
                tracing::warn!(window = state.window.0, error = %error_chain(&error), "could not publish the checkpoint");
            }
        }
        Ok(())
    }
}
