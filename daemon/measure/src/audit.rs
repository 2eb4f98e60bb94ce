//! Collects the facts of an audit from the chain and public buckets, and repeats the validator's merge and
//! measurements.
//!
//! The window's model comes from the previous checkpoint and the updates since, or from `θ_0`; contributions from
//! their miners or from the validators that attested them; losses from the dataset.

use crate::{EvaluateError, Job, SEATS_TOGETHER, measure};
use chain_client::ChainError;
use daemon::{
    Contribution, Followed, Follower, HeldContribution, ModelState, checkpoint, error_chain,
    follow::{ContributionError, FollowError},
    receipts::{ReceiptUnavailable, fetch_receipt, receipt_of},
};
use dataset::Dataset;
use gauntlet::{
    Measured, Sketch,
    audit::{Facts, Found, RevealedWeights, TOLERANCE, measured_seats, to_fetch},
};
use nn::Evaluator;
use protocol::{
    Digest, GenesisHash, Role, Uid, Window,
    receipt::{self, Judgement, Observed, PreviousReceipt, Receipt},
    submission::Fault,
    view::{Checkpoint, Outcome, SeatView, WindowView},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

/// Number of windows that are searched for the two receipts before a weight vote.
const WEIGHT_VOTE_WINDOWS: u32 = 16;

/// Audits with read access only: no key, seat or saved state.
pub struct Auditor {
    pub follower: Arc<Follower>,
    pub dataset: Arc<Dataset>,
    /// The evaluator; `None` during a measurement.
    pub evaluator: Option<Evaluator>,
    /// A saved model to start from, if it is not later than the window.
    pub model_at: Option<PathBuf>,
    /// The model of the last audited window, with or without its error-feedback buffer.
    pub state: Option<ModelState>,
}

/// Error of a receipt that cannot be audited.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("could not read the chain")]
    Chain(#[from] ChainError),
    #[error(
        "the chain does not know window {}: it has not opened yet, or opened more than 128 windows ago. Audit a later one",
        window.0
    )]
    NoWindow { window: Window },
    #[error("window {} is not finalised yet. Wait for its end", window.0)]
    NotFixed { window: Window },
    #[error("uid {uid} is not a validator now, so the endpoint of its receipts is unknown")]
    NoValidator { uid: Uid },
    #[error(transparent)]
    Receipt(#[from] ReceiptUnavailable),
    #[error("the measurements could not be repeated")]
    Evaluate(#[from] EvaluateError),
    #[error("the measuring thread died")]
    Died(#[from] tokio::task::JoinError),
}

impl Auditor {
    /// Returns the view of a window.
    ///
    /// # Errors
    /// If the chain does not have it, or has not finalised it.
    pub async fn window(&self, window: Window) -> Result<WindowView, AuditError> {
        let view = self.view(window).await?.ok_or(AuditError::NoWindow { window })?;
        if view.outcome.is_none() {
            return Err(AuditError::NotFixed { window });
        }
        Ok(view)
    }

    /// Returns all facts to compare with the receipt of `uid` for a window.
    ///
    /// # Errors
    /// If the chain cannot be read, or there is no readable receipt of this validator.
    pub async fn facts(&mut self, view: &WindowView, uid: Uid) -> Result<Facts, AuditError> {
        let run = self.follower.run.clone();
        let seats = self.follower.chain.seats(run.id).await?;
        let Some(seat) = seats.iter().find(|seat| seat.id.uid == uid && seat.role == Role::Validator) else {
            return Err(AuditError::NoValidator { uid });
        };
        let receipt = receipt_of(&*self.follower.fetch, self.genesis(), &run, self.now(), view, seat).await?;
        let attestation = self.follower.chain.attestation(run.id, view.window, uid).await?;
        let (earlier, kept_from) = self.earlier(view.window, uid).await?;
        let remembered = match receipt.previous {
            Some(previous) => self.receipt_named(seat, previous).await.map(|receipt| receipt.after().clone()),
            None => None,
        };
        let state = self.model(view.window).await;
        let named = to_fetch(view, &receipt, &run.params);
        let (contributions, found) = self.contributions(view, &named, &seats, state.as_ref()).await;
        let alike = match &receipt.judgement {
            Some(judgement) => self.alike(view, &seats, judgement, &contributions).await,
            None => BTreeMap::new(),
        };
        let weight_vote = self.weight_vote(view.window, seat).await?;
        let mut facts = Facts {
            params: run.params,
            view: view.clone(),
            training_sequences: self.dataset.training_sequences(),
            uid,
            attestation,
            earlier,
            kept_from,
            remembered,
            has_model: state.is_some(),
            found,
            alike,
            measured: None,
            merged: None,
            weight_vote,
            tolerance: TOLERANCE,
            receipt,
            seats,
        };
        if let Some(state) = state {
            facts.merged = self.merge(&state, &facts, &contributions).await?;
            facts.measured = self.measure(&state, &facts, &contributions).await?;
        }
        Ok(facts)
    }

    async fn view(&self, window: Window) -> Result<Option<WindowView>, ChainError> {
        self.follower.chain.window(self.follower.run.id, window).await
    }

    /// Returns the validator's latest receipt on the chain before `window`, and the oldest window that the chain
    /// keeps.
    async fn earlier(
        &self,
        window: Window,
        uid: Uid,
    ) -> Result<(Option<PreviousReceipt>, Window), ChainError> {
        let mut at = window;
        while let Some(before) = at.previous() {
            let Some(view) = self.view(before).await? else { break };
            if let Some((_, digest)) = view.receipts.iter().find(|(of, _)| *of == uid) {
                return Ok((Some(PreviousReceipt { window: before, digest: *digest }), before));
            }
            at = before;
        }
        Ok((None, at))
    }

    fn genesis(&self) -> GenesisHash {
        self.follower.chain.genesis()
    }

    /// Returns the window that is open at the latest finalised block.
    fn now(&self) -> Window {
        let head = self.follower.chain.heads().borrow().block;
        self.follower.run.params.schedule.window_at(head).unwrap_or(Window::FIRST)
    }

    async fn receipt_named(&self, seat: &SeatView, named: PreviousReceipt) -> Option<Receipt> {
        let PreviousReceipt { window, digest } = named;
        fetch_receipt(&*self.follower.fetch, self.genesis(), &self.follower.run, seat, window, digest)
            .await
            .ok()
            .map(|(_, receipt)| receipt)
    }

    /// Returns the contributions of the seats `named` that are in public buckets, and the finding for each.
    async fn contributions(
        &self,
        view: &WindowView,
        named: &BTreeSet<Uid>,
        seats: &[SeatView],
        state: Option<&ModelState>,
    ) -> (BTreeMap<Uid, Contribution>, BTreeMap<Uid, Found>) {
        let rate = self.follower.run.params.outer_rate.get();
        let has_effect = |contribution: &Contribution| {
            state.is_none_or(|state| self.follower.sent.changes_any(contribution.body(), rate, &state.theta))
        };
        let (mut held, mut found) = (BTreeMap::new(), BTreeMap::new());
        let sources = self.follower.contribution_sources(view, seats);
        for (uid, digest) in view.commitments.iter().filter(|(uid, _)| named.contains(uid)) {
            let what = match self.follower.fetch_contribution(&sources, *uid, digest).await {
                Ok(contribution) if !has_effect(&contribution) => {
                    let fault = Fault::NoEffect;
                    Found::Faulty { label: fault.label().to_owned(), detail: fault.to_string() }
                }
                Ok(contribution) => {
                    let trained = contribution.header.trained;
                    held.insert(*uid, contribution);
                    Found::Valid { trained }
                }
                Err(error) => {
                    tracing::debug!(window = view.window.0, uid = uid.0, error = %error_chain(&error), "the contribution cannot be used");
                    found_by(&error)
                }
            };
            found.insert(*uid, what);
        }
        (held, found)
    }

    /// Returns the similarity of each pair of available contributions, and of each one and its reported
    /// near-duplicate.
    async fn alike(
        &self,
        view: &WindowView,
        seats: &[SeatView],
        judgement: &Judgement,
        contributions: &BTreeMap<Uid, Contribution>,
    ) -> BTreeMap<(Uid, Digest), f64> {
        let sketch = |contribution: &Contribution| {
            self.follower.sent.decode(contribution.body()).ok().map(|update| Sketch::of(&update))
        };
        let held = judgement.held.iter().filter_map(|uid| {
            let contribution = contributions.get(uid)?;
            Some((*uid, contribution.digest, sketch(contribution)?))
        });
        let held: Vec<(Uid, Digest, Sketch)> = held.collect();
        let mut alike = BTreeMap::new();
        for (uid, _, one) in &held {
            for (other, digest, theirs) in &held {
                if uid != other {
                    alike.insert((*uid, *digest), one.alike(theirs));
                }
            }
        }
        for (uid, _, one) in &held {
            let judged = judgement.seats.iter().find(|judged| judged.seat.uid == *uid);
            let Some(Observed::Valid { near_duplicate: Some(near_duplicate), .. }) =
                judged.map(|judged| &judged.observed)
            else {
                continue;
            };
            if near_duplicate.window == view.window {
                continue;
            }
            let Ok(Some(then)) = self.view(near_duplicate.window).await else { continue };
            let sources = self.follower.contribution_sources(&then, seats);
            let receipt::NearDuplicate { uid: copied, digest, .. } = near_duplicate;
            let fetched = self.follower.fetch_contribution(&sources, *copied, digest).await;
            if let Some(theirs) = fetched.ok().as_ref().and_then(sketch) {
                alike.insert((*uid, near_duplicate.digest), one.alike(&theirs));
            }
        }
        alike
    }

    /// Returns the model of `window`; `None` if it can no longer be rebuilt.
    async fn model(&mut self, window: Window) -> Option<ModelState> {
        if self.state.as_ref().is_none_or(|state| state.window != window) {
            match self.rebuild(window).await {
                Ok(state) => self.state = state,
                // Keeps the model of another window, which may be the nearest to the next one.
                Err(error) => {
                    tracing::warn!(window = window.0, error = %error_chain(&error), "the window's model cannot be rebuilt");
                    return None;
                }
            }
        }
        self.state.clone()
    }

    async fn rebuild(&self, window: Window) -> Result<Option<ModelState>, FollowError> {
        let Some(mut state) = self.nearest(window).await? else { return Ok(None) };
        while state.window < window {
            match self.follower.step(&mut state, None).await? {
                Followed::Advanced { .. } => {}
                Followed::Waiting | Followed::Rejoined => return Ok(None),
            }
        }
        Ok(Some(state))
    }

    /// Returns the latest available state at or before `window`: the saved one, a checkpoint, or `θ_0`.
    async fn nearest(&self, window: Window) -> Result<Option<ModelState>, FollowError> {
        let follower = &self.follower;
        let run = follower.run.id;
        if let Some(path) = &self.model_at
            && let Ok(Some(state)) =
                ModelState::load(path, run, follower.schema().values(), &follower.storage)
            && state.window <= window
            && self.view(state.window).await?.is_some_and(|view| view.lineage == state.lineage)
        {
            return Ok(Some(state));
        }
        let mirrors = follower.mirrors().await?;
        let rewound = follower.chain.run(run).await?.rewound;
        let mut at = window;
        loop {
            if rewound == Some(at) {
                tracing::warn!(
                    window = window.0,
                    rewound = at.0,
                    "the run went back to an earlier checkpoint: models from there to the next checkpoint are not rebuilt"
                );
                return Ok(None);
            }
            let Some(view) = self.view(at).await? else { return Ok(None) };
            let Some(before) = at.previous() else {
                return match follower.genesis().await {
                    Ok(state) => Ok((state.lineage == view.lineage).then_some(state)),
                    Err(FollowError::Genesis { .. } | FollowError::Checkpoint(_)) => Ok(None),
                    Err(error) => Err(error),
                };
            };
            let Some(fixed_by) = self.view(before).await? else { return Ok(None) };
            if let Some(Outcome::Merged(vote)) = fixed_by.outcome
                && let Some(state_root) = vote.state_root
            {
                let checkpoint = Checkpoint { window: at, state_root, lineage: view.lineage };
                let (fetch, schema) = (&*follower.fetch, follower.schema());
                match checkpoint::fetch(&follower.storage, fetch, &mirrors, run, &checkpoint, schema, true)
                    .await
                {
                    Ok(state) => return Ok(Some(state)),
                    Err(error) => {
                        tracing::debug!(window = at.0, error = %error_chain(&error), "trying an older checkpoint");
                    }
                }
            }
            at = before;
        }
    }

    /// Returns the digest of the repeated merge.
    async fn merge(
        &self,
        state: &ModelState,
        facts: &Facts,
        contributions: &BTreeMap<Uid, Contribution>,
    ) -> Result<Option<Digest>, AuditError> {
        let Some(selection) = &facts.view.selection else { return Ok(None) };
        let all = selection.selected.iter().all(|one| contributions.contains_key(&one.uid));
        if selection.selected.is_empty() || !all || state.buffer.is_none() {
            return Ok(None);
        }
        let (follower, state) = (self.follower.clone(), state.clone());
        let (view, contributions) = (facts.view.clone(), contributions.clone());
        let merged =
            tokio::task::spawn_blocking(move || follower.merge(&state, &view, &contributions)).await?;
        Ok(merged.ok().map(|merged| merged.digest))
    }

    /// Repeats the measurements, on the validator's sequences, of the contributions that are still available. Needs
    /// every selected one that the validator had, because the scale of each depends on them.
    async fn measure(
        &mut self,
        state: &ModelState,
        facts: &Facts,
        contributions: &BTreeMap<Uid, Contribution>,
    ) -> Result<Option<BTreeMap<Uid, Measured>>, AuditError> {
        let Some(judgement) = &facts.receipt.judgement else { return Ok(None) };
        let selected = facts.view.selection.iter().flat_map(|selection| &selection.selected);
        let is_gone = |uid: &Uid| judgement.held.contains(uid) && !contributions.contains_key(uid);
        if selected.map(|one| one.uid).any(|uid| is_gone(&uid)) {
            return Ok(None);
        }
        let held = judgement.held.iter();
        let held: BTreeMap<Uid, HeldContribution> =
            held.filter_map(|uid| Some((*uid, contributions.get(uid)?.clone().into()))).collect();
        let (Some(seeds), Some(assignment)) = (facts.seeds(), facts.assignment()) else { return Ok(None) };
        let Some(mut evaluator) = self.evaluator.take() else { return Ok(None) };
        let measured: Vec<Uid> = measured_seats(judgement).map(|(judged, _)| judged.seat.uid).collect();
        // The same seats share a batch, so that losses are equal to the last bit.
        let reached =
            judgement.order.iter().rposition(|uid| measured.contains(uid)).map_or(0, |last| last + 1);
        let mut asked = reached + reached.div_ceil(SEATS_TOGETHER);
        let order = judgement.order.clone();
        let state = state.without_buffer();
        let job = Job::new(state, &self.follower, &facts.view, held, order, &assignment, seeds);
        let dataset = self.dataset.clone();
        let (evaluator, measured) = tokio::task::spawn_blocking(move || {
            let mut time_left = || {
                let left = 0 < asked;
                asked = asked.saturating_sub(1);
                left
            };
            let measured = measure(&mut evaluator, &dataset, &job, &mut time_left);
            (evaluator, measured)
        })
        .await?;
        self.evaluator = Some(evaluator);
        Ok(Some(measured?.seats))
    }

    /// Returns the weight vote for the window's epoch, and the weights of its receipts; `None` before the reveal.
    async fn weight_vote(
        &self,
        window: Window,
        seat: &SeatView,
    ) -> Result<Option<RevealedWeights>, AuditError> {
        let (run, params) = (&self.follower.run, self.follower.run.params);
        let epoch = window.epoch(params.epoch_windows);
        let over = Window(epoch.saturating_add(1).saturating_mul(params.epoch_windows));
        let posted = self.follower.chain.weight_vote(run.id, epoch, &seat.hotkey).await?;
        let (Some(posted), Some(last)) = (posted, over.previous()) else { return Ok(None) };
        let mut earned = Vec::new();
        let mut at = last;
        for _ in 0..WEIGHT_VOTE_WINDOWS {
            let Some(before) = at.previous().filter(|_| earned.len() < 2) else { break };
            at = before;
            let Some(view) = self.view(at).await? else { break };
            let receipt =
                receipt_of(&*self.follower.fetch, self.genesis(), run, self.now(), &view, seat).await;
            let receipt = match receipt {
                Ok(receipt) => receipt,
                Err(ReceiptUnavailable::NotAnchored { .. }) => continue,
                // The vote may follow from a receipt that is not public yet or unavailable: no evidence.
                Err(_) => {
                    earned.clear();
                    break;
                }
            };
            if let Some(judgement) = receipt.judgement {
                earned.insert(0, (at, judgement.weights));
            }
        }
        Ok(Some(RevealedWeights { epoch, posted, earned }))
    }
}

/// Returns the finding for a contribution that can no longer be fetched or used.
fn found_by(error: &ContributionError) -> Found {
    match error {
        // The seat may have had another hotkey: the chain only has the current one.
        ContributionError::Fault(fault) if *fault != Fault::WrongHotkey => {
            Found::Faulty { label: fault.label().to_owned(), detail: fault.to_string() }
        }
        _ => Found::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_fault_in_the_bytes_can_be_found_later() {
        let faulty = found_by(&ContributionError::Fault(Fault::BadSignature));
        assert!(matches!(faulty, Found::Faulty { label, .. } if label == "bad-signature"));
        for error in [
            // The seat now has another key or owner.
            ContributionError::Fault(Fault::WrongHotkey),
            ContributionError::NoSeat { uid: Uid(3) },
            ContributionError::Fetch(store::fetch::AllMirrorsFailed {
                key: String::new(),
                asked: 0,
                failures: vec![],
            }),
        ] {
            assert_eq!(found_by(&error), Found::Gone);
        }
    }
}
