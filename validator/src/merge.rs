//! Merges the selected contributions into one update, and publishes update and checkpoint (PROT-16 to PROT-20).

use crate::{
    run::{UNKNOWN_WINDOW, Validator},
    step::{RunError, Stop, before},
    veto::LossRise,
};
use daemon::{
    Contribution, HeldContribution, ModelState, Node, checkpoint, error_chain, follow::OwnMergeError,
};
use protocol::{
    Block, Uid, Window, keys,
    receipt::MergeRecord,
    view::{SeatView, Vote, WindowView},
};
use std::collections::BTreeMap;
use tracing::{Instrument as _, field::Empty};

impl Validator {
    /// The window with its selection, which the chain makes after the attestations and their reveals, some blocks
    /// late under load. After the vote deadline the window is returned as it is.
    #[tracing::instrument(
        name = "select", target = "profile", level = "debug", skip_all, fields(window = window.0),
        err(level = "debug")
    )]
    pub(crate) async fn selection(&mut self, window: Window) -> Result<WindowView, Stop> {
        let schedule = self.node.schedule();
        let hidden_blocks = self.node.run().params.hidden_blocks;
        self.node.wait_past(Block(schedule.attest_deadline(window).0.saturating_add(hidden_blocks))).await?;
        let is_selected = |view: &WindowView| view.selection.is_some();
        let view = self.wait_for_view(window, schedule.vote_deadline(window), is_selected).await?;
        view.ok_or_else(|| Stop::skip(UNKNOWN_WINDOW))
    }

    /// Merges the selection, publishes the update, and returns the vote for it. The merge is kept for the next
    /// window's model. Contributions that were fetched for it are added to `held`: they are measured like the others, or
    /// a seat could keep a validator from showing measurements (PROT-30). An update that makes the model worse is not voted for (PROT-19).
    #[tracing::instrument(
        name = "merge", target = "profile", level = "debug", skip_all,
        fields(window = view.window.0, contributions = Empty), err(level = "debug")
    )]
    pub(crate) async fn merge(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        held: &mut BTreeMap<Uid, HeldContribution>,
    ) -> Result<Vote, Stop> {
        if view.selection.as_ref().is_none_or(|selection| selection.selected.is_empty()) {
            return Err(Stop::skip("the selection is empty"));
        }
        if self.node.sync.state.buffer.is_none() {
            return Err(Stop::skip("the merge-side buffer is missing until the next checkpoint"));
        }
        let skip = |error: &(dyn std::error::Error + 'static)| Stop::skip(error_chain(error));
        let contributions = self.selected_contributions(view, seats, held).await?;
        tracing::Span::current().record("contributions", contributions.len());
        self.keep_fetched(&contributions, held).await;
        let (blocking, follower, view) = (self.node.blocking, self.node.sync.follower.clone(), view.clone());
        let of = view.clone();
        let merge = move |state: &mut ModelState| follower.merge(state, &of, &contributions);
        let own = blocking.with(&mut self.node.sync.state, merge).await.map_err(|error| skip(&error))?;
        // The upload comes first: a vote for an update in no bucket would leave every node behind.
        let key = keys::update(self.node.run_id(), own.window, &own.digest);
        let span = tracing::debug_span!(target: "profile", "publish", bytes = own.bytes.len());
        if let Err(error) = self.node.store.put(&key, own.bytes.clone()).instrument(span).await {
            let reason = format!("our bucket did not take the update: {}", error_chain(&error));
            return Err(Stop::skip(reason));
        }
        let (own, worse) = self.measure_merge(&view, own).await?;
        if let Some(LossRise { before, after }) = worse {
            let selection = view.selection.as_ref();
            let inputs = selection.map(|selection| selection.selected.clone()).unwrap_or_default();
            let merged = MergeRecord { inputs, update: own.digest, state_root: None };
            self.vetoed = Some((own.window, merged));
            // The others may merge it all the same.
            self.own_merge = Some(own);
            let reason = format!("the merged model is worse: a loss of {after:.4}, before it {before:.4}");
            return Err(Stop::skip(reason));
        }
        let is_checkpoint = self.node.run().params.is_checkpoint(own.window);
        let hash = move || {
            let state_root = is_checkpoint.then(|| own.state_root());
            let vote = Vote { update: own.digest, state_root };
            (own, vote)
        };
        let (own, vote) = blocking.run(hash).await;
        self.own_merge = Some(own);
        Ok(vote)
    }

    /// The selected contributions. Those that this validator does not hold are in the bucket of their miner or, soon
    /// after the selection, of a validator that attested them: it asks again with each block while it can still vote.
    async fn selected_contributions(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        held: &BTreeMap<Uid, HeldContribution>,
    ) -> Result<BTreeMap<Uid, Contribution>, Stop> {
        let selected = view.selection.iter().flat_map(|selection| &selection.selected);
        let held: Vec<HeldContribution> = selected.filter_map(|one| held.get(&one.uid)).cloned().collect();
        let read = move || held.iter().map(HeldContribution::read).collect::<Vec<_>>();
        let mut contributions = BTreeMap::new();
        for read in self.node.blocking.run(read).await {
            match read {
                Ok(contribution) => drop(contributions.insert(contribution.header.uid, contribution)),
                Err(error) => tracing::warn!(error = %error_chain(&error), "fetching the contribution again"),
            }
        }
        let last = before(self.node.schedule().vote_deadline(view.window), 1);
        loop {
            let head = self.node.block();
            let mut heads = self.node.heads.clone();
            let fetched = tokio::select! {
                biased;
                fetched = self.node.follower().fetch_selected(view, seats, &mut contributions) => fetched,
                waited = daemon::wait_past(&mut heads, last) => {
                    waited?;
                    return Err(Stop::skip("a selected contribution did not arrive before the vote deadline"));
                }
            };
            match fetched {
                Ok(()) => return Ok(contributions),
                Err(OwnMergeError::Fetch { .. }) if head < last => self.node.wait_past(head).await?,
                Err(error) => return Err(Stop::skip(error_chain(&error))),
            }
        }
    }

    /// Adds the contributions that `held` lacks to it. One that the disk does not take is left out.
    async fn keep_fetched(
        &self,
        contributions: &BTreeMap<Uid, Contribution>,
        held: &mut BTreeMap<Uid, HeldContribution>,
    ) {
        for (uid, contribution) in contributions {
            if held.get(uid).is_some_and(|held| held.digest == contribution.digest) {
                continue;
            }
            let (spill, contribution) = (self.spill.clone(), contribution.clone());
            match self.node.blocking.run(move || spill.write(&contribution)).await {
                Ok(kept) => drop(held.insert(*uid, kept)),
                Err(error) => tracing::warn!(%uid, error = %error_chain(&error), "it will not be measured"),
            }
        }
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
}
