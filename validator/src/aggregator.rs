//! From the selection to a vote: the selected contributions, merged, in our own bucket (PROT-15 to PROT-20).

use node::{
    Contribution, Follower, ModelState, SyncDriver, checkpoint, error_chain,
    follow::{ContributionError, OwnMerge, OwnMergeError},
};
use protocol::{
    Uid, Window, keys,
    view::{SeatView, Vote, WindowView},
};
use std::{collections::BTreeMap, sync::Arc};
use store::{Store, StoreError};

#[derive(Debug, thiserror::Error)]
pub enum AggregateError {
    #[error("could not get the selected contribution of uid {uid}")]
    Contribution { uid: Uid, source: ContributionError },
    #[error(transparent)]
    Merge(#[from] OwnMergeError),
    #[error("our bucket did not take the merged update")]
    Put(#[from] StoreError),
}

/// Puts attested contributions into our bucket under their own names, so that a miner cannot show its bytes to us alone (PROT-15).
pub async fn mirror(
    store: &dyn Store,
    follower: &Follower,
    window: Window,
    contributions: &BTreeMap<Uid, Contribution>,
) -> Result<(), StoreError> {
    for contribution in contributions.values() {
        let key = keys::contribution(follower.run.id, window, &contribution.digest);
        store.put(&key, contribution.bytes.clone()).await?;
    }
    Ok(())
}

/// The contributions of everyone selected: those at hand, and the rest from whoever attested to them.
pub async fn selected(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    at_hand: &BTreeMap<Uid, Contribution>,
) -> Result<BTreeMap<Uid, Contribution>, AggregateError> {
    let mut contributions = BTreeMap::new();
    for selected in view.selection.iter().flat_map(|selection| &selection.selected) {
        let uid = selected.uid;
        let contribution = match at_hand.get(&uid).filter(|held| held.digest == selected.digest) {
            Some(held) => held.clone(),
            None => {
                let fetched = follower.fetch_contribution(view, seats, uid, &selected.digest).await;
                fetched.map_err(|source| AggregateError::Contribution { uid, source })?
            }
        };
        contributions.insert(uid, contribution);
    }
    Ok(contributions)
}

/// Merges on a thread of its own: it is the longest computation that others wait for.
pub async fn merge(
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

/// Puts the update where everyone looks for it, and says what to vote. The upload comes first: a vote for bytes that nobody can fetch
/// would leave everyone behind.
pub async fn publish(store: &dyn Store, follower: &Follower, own: &OwnMerge) -> Result<Vote, StoreError> {
    store.put(&keys::update(follower.run.id, own.window, &own.digest), own.bytes.clone()).await?;
    let state_root = follower.run.params.is_checkpoint(own.window).then(|| {
        let weights = protocol::lineage::weights_root(&own.theta);
        protocol::lineage::state_root(&weights, &protocol::lineage::weights_root(&own.buffer))
    });
    Ok(Vote { update: own.digest, state_root })
}

/// Publishes the checkpoint that was fixed for the model we hold, if there is one. What fails is said: others hold it too.
pub async fn publish_checkpoint(store: &Arc<dyn Store>, sync: &mut SyncDriver) {
    let window = sync.window();
    match checkpoint::publish(sync.follower.blocking, &**store, &mut sync.state).await {
        Ok(published) => {
            tracing::info!(window = published.window.0, state_root = %published.state_root, "published the checkpoint");
        }
        Err(error) => {
            tracing::warn!(window = window.0, error = %error_chain(&error), "could not publish the checkpoint");
        }
    }
}
