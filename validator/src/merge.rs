//! Merges the selected contributions into one update, and publishes update and checkpoint (PROT-16 to PROT-20).

use crate::{
    gather::Gatherer,
    step::{RunError, Stop, UNKNOWN_WINDOW, before, wait_for_view},
    veto::LossRise,
};
use daemon::{
    Contribution, HeldContribution, ModelState, Node, checkpoint, error_chain,
    follow::{OwnMerge, OwnMergeError},
};
use protocol::{
    Block, Uid, Window, keys,
    receipt::MergeRecord,
    view::{SeatView, Vote, WindowView},
};
use std::collections::BTreeMap;
use tracing::Instrument as _;

/// The window with its selection, which the chain makes after the attestations and their reveals, some blocks
/// late under load. After the vote deadline the window is returned as it is.
#[tracing::instrument(
    name = "select", target = "profile", level = "debug", skip_all, fields(window = window.0),
    err(level = "debug")
)]
pub(crate) async fn selection(node: &mut Node, window: Window) -> Result<WindowView, Stop> {
    let schedule = node.schedule();
    let hidden_blocks = node.run().params.hidden_blocks;
    node.wait_past(Block(schedule.attest_deadline(window).0.saturating_add(hidden_blocks))).await?;
    let is_selected = |view: &WindowView| view.selection.is_some();
    let view = wait_for_view(node, window, schedule.vote_deadline(window), is_selected).await?;
    view.ok_or_else(|| Stop::skip(UNKNOWN_WINDOW))
}

/// Merges a window's selection, and keeps the result.
#[derive(Default)]
pub struct Merger {
    /// This validator's merge of the window that is open.
    pub(crate) own: Option<OwnMerge>,
    /// The latest window whose merge it vetoed, and that merge.
    vetoed: Option<(Window, MergeRecord)>,
}

impl Merger {
    /// Merges the selection and publishes the update. Contributions that were fetched for it are added to `held`: they
    /// are measured like the others, or a seat could keep a validator from showing measurements (PROT-30).
    pub(crate) async fn merge(
        &self,
        node: &mut Node,
        gatherer: &Gatherer,
        (view, seats): (&WindowView, &[SeatView]),
        held: &mut BTreeMap<Uid, HeldContribution>,
    ) -> Result<OwnMerge, Stop> {
        if view.selection.as_ref().is_none_or(|selection| selection.selected.is_empty()) {
            return Err(Stop::skip("the selection is empty"));
        }
        if node.sync.state.buffer.is_none() {
            return Err(Stop::skip("the merge-side buffer is missing until the next checkpoint"));
        }
        let skip = |error: &(dyn std::error::Error + 'static)| Stop::skip(error_chain(error));
        let contributions = selected_contributions(node, view, seats, held).await?;
        tracing::Span::current().record("contributions", contributions.len());
        gatherer.keep_fetched(node.blocking, &contributions, held).await;
        let (follower, view) = (node.sync.follower.clone(), view.clone());
        let merge = move |state: &mut ModelState| follower.merge(state, &view, &contributions);
        let merged = node.blocking.with(&mut node.sync.state, merge).await;
        let own = merged.map_err(|error| skip(&error))?;
        // The upload comes first: a vote for an update in no bucket would leave every node behind.
        let key = keys::update(node.run_id(), own.window, &own.digest);
        let span = tracing::debug_span!(target: "profile", "publish", bytes = own.bytes.len());
        if let Err(error) = node.store.put(&key, own.bytes.clone()).instrument(span).await {
            let reason = format!("our bucket did not take the update: {}", error_chain(&error));
            return Err(Stop::skip(reason));
        }
        Ok(own)
    }

    /// The vote for `own`, which is kept for the next window's model. An update that makes the model worse is not voted
    /// for (PROT-19).
    pub(crate) async fn vote(
        &mut self,
        node: &Node,
        view: &WindowView,
        own: OwnMerge,
        rise: Option<LossRise>,
    ) -> Result<Vote, Stop> {
        if let Some(LossRise { before, after }) = rise {
            let selection = view.selection.as_ref();
            let inputs = selection.map(|selection| selection.selected.clone()).unwrap_or_default();
            let merged = MergeRecord { inputs, update: own.digest, state_root: None };
            self.vetoed = Some((own.window, merged));
            // The others may merge it all the same.
            self.own = Some(own);
            let reason = format!("the merged model is worse: a loss of {after:.4}, before it {before:.4}");
            return Err(Stop::skip(reason));
        }
        let is_checkpoint = node.run().params.is_checkpoint(own.window);
        let hash = move || {
            let state_root = is_checkpoint.then(|| own.state_root());
            let vote = Vote { update: own.digest, state_root };
            (own, vote)
        };
        let (own, vote) = node.blocking.run(hash).await;
        self.own = Some(own);
        Ok(vote)
    }

    /// The merge of a window that this validator did not vote for, as it made the model worse.
    pub(crate) fn vetoed_in(&self, window: Window) -> Option<&MergeRecord> {
        self.vetoed.as_ref().filter(|(of, _)| *of == window).map(|(_, merged)| merged)
    }
}

/// The selected contributions. Those that this validator does not hold are in the bucket of their miner or, soon
/// after the selection, of a validator that attested them: it asks again with each block while it can still vote.
async fn selected_contributions(
    node: &mut Node,
    view: &WindowView,
    seats: &[SeatView],
    held: &BTreeMap<Uid, HeldContribution>,
) -> Result<BTreeMap<Uid, Contribution>, Stop> {
    let selected = view.selection.iter().flat_map(|selection| &selection.selected);
    let held: Vec<HeldContribution> = selected.filter_map(|one| held.get(&one.uid)).cloned().collect();
    let read = move || held.iter().map(HeldContribution::read).collect::<Vec<_>>();
    let mut contributions = BTreeMap::new();
    for read in node.blocking.run(read).await {
        match read {
            Ok(contribution) => drop(contributions.insert(contribution.header.uid, contribution)),
            Err(error) => tracing::warn!(error = %error_chain(&error), "fetching the contribution again"),
        }
    }
    let last = before(node.schedule().vote_deadline(view.window), 1);
    loop {
        let head = node.block();
        let mut heads = node.heads.clone();
        let fetched = tokio::select! {
            biased;
            fetched = node.follower().fetch_selected(view, seats, &mut contributions) => fetched,
            waited = daemon::wait_past(&mut heads, last) => {
                waited?;
                return Err(Stop::skip("a selected contribution did not arrive before the vote deadline"));
            }
        };
        match fetched {
            Ok(()) => return Ok(contributions),
            Err(OwnMergeError::Fetch { .. }) if head < last => node.wait_past(head).await?,
            Err(error) => return Err(Stop::skip(error_chain(&error))),
        }
    }
}

/// Publishes the model as a checkpoint if the chain has just finalised one for it. A failure is logged: other
/// validators publish it too.
pub(crate) async fn publish_checkpoint(node: &mut Node) -> Result<(), RunError> {
    let run = node.chain().run(node.run_id()).await?;
    let Node { sync, store, blocking, .. } = node;
    let window = sync.window();
    let Some(checkpoint) = run.checkpoint.filter(|checkpoint| checkpoint.window == window) else {
        return Ok(());
    };
    if blocking.with(&mut sync.state, |state| state.state_root()).await != Some(checkpoint.state_root) {
        return Ok(());
    }
    let span = tracing::debug_span!(target: "profile", "publish checkpoint");
    match checkpoint::publish(*blocking, &**store, &mut sync.state).instrument(span).await {
        Ok(published) => {
            tracing::info!(window = published.window.0, state_root = %published.state_root, "published the checkpoint");
        }
        Err(error) => {
            tracing::warn!(window = window.0, error = %error_chain(&error), "could not publish the checkpoint");
        }
    }
    Ok(())
}
