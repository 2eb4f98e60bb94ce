//! Advances a node's model to the open window: one fixed outcome after the other.
//!
//! Miners and validators use the same code. A validator also keeps the error-feedback buffer of the merge. It merges a
//! window that it missed later, from the same contributions. If these are no longer available, it has no buffer, and
//! so no vote, until the next checkpoint.

use super::{
    checkpoint::{self, CheckpointError},
    mirrors::Mirrors,
};
use crate::{
    blocking::Blocking,
    codec::{self, Arrived, Codec, Contribution, Frame, Incoming, MergeFailed, Update},
    durable::FileError,
    error_chain,
    state::ModelState,
    storage::{Row, Storage},
};
use bytes::Bytes;
use chain_client::{Chain, ChainError};
use futures::future::{self, BoxFuture};
use model::RunSpec;
use protocol::{
    Digest, Hotkey, Uid, Window,
    contribution::Schema,
    ensure, keys, lineage, merge,
    norms::RunningNorms,
    submission::{self, Expected, Fault, PREFIX_BYTES, SIGNATURE_BYTES, Submission},
    view::{Checkpoint, Outcome, RunView, SeatView, Vote, WindowView},
};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use store::{Fetch, Limits, fetch::AllMirrorsFailed};
use tokio::task::JoinSet;
use tracing::{Instrument as _, field::Empty};

/// Number of validators asked for an update before the full list is read.
const UPDATE_MIRRORS: u32 = 4;

/// The buckets that may have the contributions of one window. Built once per window, because it reads every seat.
#[derive(Debug)]
pub struct ContributionSources<'a> {
    view: &'a WindowView,
    seats: BTreeMap<Uid, &'a SeatView>,
    /// The attesters, the other validators, and the origin.
    validators: Mirrors,
}

/// Advances a [`ModelState`]. Clones share all large data.
#[derive(Clone)]
pub struct Follower {
    pub chain: Arc<dyn Chain>,
    pub fetch: Arc<dyn Fetch>,
    pub run: RunView,
    pub spec: RunSpec,
    /// Codec of contributions.
    pub sent: Arc<Codec>,
    /// Codec of merged updates, of the same schema.
    pub merged: Arc<Codec>,
    /// True to keep the error-feedback buffer, as validators do.
    pub keeps_buffer: bool,
    /// Index of the first mirror to use, which distributes nodes over the mirrors.
    pub turn: usize,
    /// Storage of rows, objects and fetched pieces of a checkpoint. With a directory, a killed process resumes a
    /// fetch.
    pub storage: Storage,
    /// Place in which work on the whole model runs.
    pub blocking: Blocking,
}

/// A validator's own merge of a window, until the window is fixed.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnMerge {
    pub window: Window,
    pub digest: Digest,
    /// The update's exact bytes.
    pub bytes: Bytes,
    /// The error-feedback buffer after the merge.
    pub buffer: Row,
    /// The running norms after the merge.
    pub norms: RunningNorms,
    /// The model after the merge.
    pub theta: Row,
    pub inputs: Vec<Uid>,
}

impl OwnMerge {
    /// Returns the root of the state after the merge, which validators vote for at checkpoint windows (PROT-20).
    pub fn state_root(&self) -> Digest {
        lineage::state_root(&self.theta.root(), &self.buffer.root(), &self.norms.root())
    }
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    /// The window is not fixed yet.
    Waiting,
    /// The state is now the next window's.
    Advanced { outcome: Outcome },
    /// The state was too old, or contained merges that the run has undone. It was replaced by the latest checkpoint.
    Rejoined,
}

#[derive(Debug, thiserror::Error)]
pub enum FollowError {
    #[error("could not read the chain")]
    Chain(#[from] ChainError),
    #[error("could not fetch the merged update of window {}", window.0)]
    Update { window: Window, source: AllMirrorsFailed },
    #[error("the update of window {} has the voted digest but cannot be read; two thirds of the stake voted for nonsense", window.0)]
    BadUpdate { window: Window, source: merge::UpdateError },
    #[error("could not join from a checkpoint")]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "the model that the run's seed gives has root {made}, the chain says {expected}: this release initialises differently"
    )]
    Genesis { made: Digest, expected: Digest },
    #[error("the run's model has an impossible shape")]
    Shape(#[from] model::ConfigError),
    #[error("our lineage of window {} is {ours}, the chain's is {chain}: this state belongs to another history; remove it to join afresh", window.0)]
    Diverged { window: Window, ours: Digest, chain: Digest },
    #[error(transparent)]
    File(#[from] FileError),
}

/// A download of an update that continues while its owner does something else. Dropping it cancels the download.
pub struct Download {
    window: Window,
    task: JoinSet<Result<Arrived, FollowError>>,
}

/// The condition for leaving a download, and the slot that keeps it until the next step.
pub struct Leave<'a> {
    /// Completes when the download should be left.
    pub when: BoxFuture<'a, ()>,
    pub download: &'a mut Option<Download>,
}

impl Leave<'_> {
    /// Waits for the download of the update of `window`: the current one, or else `fetch`. Returns `None` if it was
    /// left.
    async fn arrived(
        self,
        window: Window,
        fetch: impl Future<Output = Result<Arrived, FollowError>> + Send + 'static,
    ) -> Result<Option<Arrived>, FollowError> {
        let Leave { when, download } = self;
        let mut under_way =
            download.take().filter(|download| download.window == window).unwrap_or_else(|| {
                let mut task = JoinSet::new();
                task.spawn(fetch);
                Download { window, task }
            });
        tokio::select! {
            biased;
            Some(arrived) = under_way.task.join_next() => match arrived {
                Ok(arrived) => arrived.map(Some),
                Err(died) => match died.try_into_panic() {
                    Ok(panic) => std::panic::resume_unwind(panic),
                    // The runtime is shutting down and drops this future next.
                    Err(_) => future::pending().await,
                },
            },
            () = when => {
                *download = Some(under_way);
                Ok(None)
            }
        }
    }
}

/// Error of a merge by this node.
#[derive(Debug, thiserror::Error)]
pub enum OwnMergeError {
    #[error("could not read the chain")]
    Chain(#[from] ChainError),
    #[error("the chain has forgotten window {}", window.0)]
    Forgotten { window: Window },
    #[error("the selected contribution of uid {uid} is not at hand")]
    Contribution { uid: Uid },
    #[error("could not get the selected contribution of uid {uid}")]
    Fetch { uid: Uid, source: ContributionError },
    #[error("our merge is {ours}, and the vote is for {voted}")]
    Differs { ours: Digest, voted: Digest },
    #[error("the selection cannot be merged")]
    Merge(#[from] merge::MergeError),
    #[error("the merge-side buffer is not at hand")]
    NoBuffer,
    #[error(transparent)]
    File(#[from] FileError),
}

impl From<MergeFailed> for OwnMergeError {
    fn from(failed: MergeFailed) -> OwnMergeError {
        match failed {
            MergeFailed::Refused(error) => error.into(),
            MergeFailed::File(error) => error.into(),
        }
    }
}

/// Number of tries to fetch the contributions of a window that a validator merges late. Without one of them it has no
/// vote until the next checkpoint, and the failure of a bucket may be temporary.
const AFTERWARDS_TRIES: u32 = 5;
/// First pause between these tries; each pause is twice the previous one: 30 s in all, plus the buckets' response
/// time.
const AFTERWARDS_PAUSE: Duration = Duration::from_secs(2);

/// Logs that a validator has no error-feedback buffer. Only a merge that differs from the vote is this node's error.
fn log_missing_buffer(window: Window, error: &OwnMergeError) {
    const TEXT: &str = "cannot merge afterwards: no vote until the next checkpoint";
    match error {
        OwnMergeError::Differs { .. } => {
            tracing::error!(window = window.0, error = %error_chain(error), "{TEXT}");
        }
        error => tracing::warn!(window = window.0, error = %error_chain(error), "{TEXT}"),
    }
}

impl Follower {
    pub fn schema(&self) -> &Schema {
        self.sent.schema()
    }

    /// Returns the state of the latest checkpoint, or `θ_0`. After a rewind it is the state of the window that the run
    /// returned to (PROT-20).
    ///
    /// # Errors
    /// If the chain cannot be read, no mirror has the state, or the disk is full.
    pub fn join(&self) -> BoxFuture<'_, Result<ModelState, FollowError>> {
        Box::pin(async move {
            // Read again, because the run's checkpoint changes.
            let run = self.chain.run(self.run.id).await?;
            match run.checkpoint {
                Some(checkpoint) => {
                    let mirrors = self.mirrors().await?;
                    let mut state = self.fetch_from(&mirrors, &checkpoint, self.keeps_buffer).await?;
                    state.window = run.goes_on_at(&checkpoint);
                    Ok(state)
                }
                None => self.genesis().await,
            }
        })
    }

    /// Returns `θ_0`, generated or fetched according to the run's specification, and checked against the root on the
    /// chain (PROT-19).
    ///
    /// # Errors
    /// If it has another root, no mirror has it, or the disk is full.
    pub fn genesis(&self) -> BoxFuture<'_, Result<ModelState, FollowError>> {
        Box::pin(async move {
            let mut state = match &self.spec.weights {
                None => {
                    let (run, spec, storage) = (self.run.clone(), self.spec.clone(), self.storage.clone());
                    self.blocking.run(move || genesis_of_seed(&run, &spec, &storage)).await?
                }
                Some(_) => {
                    let mirrors = Mirrors::one(&self.run.origin).and(self.mirrors().await?);
                    self.fetch_from(&mirrors, &first_checkpoint(&self.run, &self.spec)?, false).await?
                }
            };
            if self.keeps_buffer {
                state.buffer = Some(self.storage.zeros(state.theta.len())?);
            }
            Ok(state)
        })
    }

    /// Returns all validators' buckets and the origin.
    ///
    /// # Errors
    /// If the chain cannot be read.
    pub async fn mirrors(&self) -> Result<Mirrors, ChainError> {
        let seats = self.chain.seats(self.run.id).await?;
        Ok(Mirrors::validators(&seats, &[], &self.run.origin, self.turn))
    }

    async fn fetch_from(
        &self,
        mirrors: &Mirrors,
        checkpoint: &Checkpoint,
        with_buffer: bool,
    ) -> Result<ModelState, CheckpointError> {
        let (storage, schema) = (&self.storage, self.schema());
        checkpoint::fetch(storage, &*self.fetch, mirrors, self.run.id, checkpoint, schema, with_buffer).await
    }

    /// Removes the pieces of a checkpoint whose state is saved.
    pub fn saved(&self) {
        self.storage.directory().into_iter().for_each(checkpoint::forget);
    }

    /// Processes one fixed window, if there is one. `own` is this node's merge of that window. The caller saves the
    /// state. Outcomes never change, so a crash costs only the repetition.
    ///
    /// # Errors
    /// If the chain cannot be read, the update cannot be fetched or applied, or the lineage differs from the chain's.
    pub fn step<'a>(
        &'a self,
        state: &'a mut ModelState,
        own: Option<OwnMerge>,
    ) -> BoxFuture<'a, Result<Followed, FollowError>> {
        self.step_unless(state, own, None)
    }

    /// Processes one window like [`Follower::step`], but returns [`Followed::Waiting`] if a download of an update is
    /// left.
    ///
    /// # Errors
    /// As [`Follower::step`].
    pub fn step_unless<'a>(
        &'a self,
        state: &'a mut ModelState,
        own: Option<OwnMerge>,
        leave: Option<Leave<'a>>,
    ) -> BoxFuture<'a, Result<Followed, FollowError>> {
        Box::pin(async move {
            let window = state.window;
            let Some(fixed) = self.chain.window_summary(self.run.id, window).await? else {
                return self.rejoin_if_behind(state).await;
            };
            if fixed.lineage != state.lineage {
                let diverged = FollowError::Diverged { window, ours: state.lineage, chain: fixed.lineage };
                return self.rejoin_if_rewound(state, window, diverged).await;
            }
            let Some(outcome) = fixed.outcome else { return Ok(Followed::Waiting) };
            match outcome {
                Outcome::Void(_) => state.void(),
                Outcome::Merged(vote) => {
                    // An update that no mirror has, or that no node can read, does not matter if it was undone.
                    match self.take_update(state, vote, own, leave).await {
                        Ok(true) => {}
                        Ok(false) => return Ok(Followed::Waiting),
                        Err(error) => return self.rejoin_if_rewound(state, window.next(), error).await,
                    }
                }
            }
            Ok(Followed::Advanced { outcome })
        })
    }

    /// Joins from the latest checkpoint if `from` or a later window was rewound to one (PROT-20).
    ///
    /// # Errors
    /// `otherwise` if there was no rewind.
    async fn rejoin_if_rewound(
        &self,
        state: &mut ModelState,
        from: Window,
        otherwise: FollowError,
    ) -> Result<Followed, FollowError> {
        let run = self.chain.run(self.run.id).await?;
        let Some(rewound) = run.rewound.filter(|rewound| from <= *rewound) else { return Err(otherwise) };
        tracing::warn!(
            held = state.window.0,
            rewound = rewound.0,
            "two thirds of the stake went back to an earlier checkpoint: joining from it"
        );
        *state = self.join().await?;
        Ok(Followed::Rejoined)
    }

    /// Compares a checkpoint with `held`, the root of this node's weights at its window, and repairs differences
    /// (PROT-20). Also restores a validator's missing buffer. Returns the number of replaced pieces.
    ///
    /// # Errors
    /// If the chain cannot be read, no mirror has the checkpoint, or the disk is full.
    pub async fn compare(
        &self,
        state: &mut ModelState,
        checkpoint: &Checkpoint,
        held: &Digest,
    ) -> Result<usize, FollowError> {
        let still_there = state.window == checkpoint.window;
        // With its buffer, a validator computes the state root without fetching anything.
        if still_there {
            let held = self.blocking.with(state, |state| state.state_root()).await;
            if held == Some(checkpoint.state_root) {
                return Ok(0);
            }
        }
        let (mirrors, schema) = (self.mirrors().await?, self.schema());
        let manifest = checkpoint::manifest(&*self.fetch, &mirrors, self.run.id, checkpoint, schema).await?;
        let buffer_is_lost = self.keeps_buffer && state.buffer.is_none();
        let in_place = still_there && state.lineage == checkpoint.lineage;
        let same_weights = manifest.weights_root() == *held && !buffer_is_lost;
        if same_weights && !(self.keeps_buffer && in_place) {
            return Ok(0);
        }
        if in_place && !buffer_is_lost {
            let repaired = checkpoint::repair(self.blocking, &*self.fetch, &mirrors, state, &manifest).await;
            return repaired.map_err(Into::into);
        }
        let whole = self.fetch_from(&mirrors, checkpoint, self.keeps_buffer).await?;
        let pieces = manifest.weights.len();
        *state = whole;
        Ok(pieces)
    }

    /// Fetches the voted update and applies it. Returns false if the download was left.
    async fn take_update(
        &self,
        state: &mut ModelState,
        vote: Vote,
        own: Option<OwnMerge>,
        leave: Option<Leave<'_>>,
    ) -> Result<bool, FollowError> {
        let window = state.window;
        let own = own.filter(|own| own.window == window && own.digest == vote.update);
        let arrived = match &own {
            Some(own) => Arrived { bytes: own.bytes.clone(), square_norms: None },
            None => {
                let fetched = self.clone().fetch_update(state.window, state.lineage, vote);
                // Not the spawned task: the profile shows only the time that the loop waits.
                let wait = async {
                    let arrived = match leave {
                        None => fetched.await.map(Some),
                        Some(leave) => leave.arrived(window, fetched).await,
                    };
                    if let Ok(Some(arrived)) = &arrived {
                        tracing::Span::current().record("bytes", arrived.bytes.len());
                    }
                    arrived
                };
                let span = tracing::debug_span!(target: "profile", "download", bytes = Empty);
                let wait = wait.instrument(span);
                let Some(arrived) = wait.await? else { return Ok(false) };
                arrived
            }
        };
        // Before any merge, so that an unreadable update costs nothing more.
        self.open_update(window, state.lineage, &arrived.bytes)
            .map_err(|source| FollowError::BadUpdate { window, source })?;
        if let Some(OwnMerge { theta, buffer, norms, digest, .. }) = own {
            *state = ModelState {
                window: window.next(),
                lineage: lineage::next(&state.lineage, &digest),
                norms,
                theta,
                buffer: Some(buffer),
                ..*state
            };
            return Ok(true);
        }
        let buffer = match self.keeps_buffer {
            true => match self.merge_afterwards(state, &vote).await {
                // Succeeds once the disk has space.
                Err(
                    OwnMergeError::File(error)
                    | OwnMergeError::Fetch { source: ContributionError::File(error), .. },
                ) => return Err(error.into()),
                Err(OwnMergeError::Chain(error)) => return Err(error.into()),
                merged => merged.inspect_err(|error| log_missing_buffer(window, error)).ok(),
            },
            false => None,
        };
        let (follower, span) = (self.clone(), tracing::Span::current());
        let apply = move |state: &mut ModelState| {
            span.in_scope(|| follower.apply(state, &vote.update, &arrived, buffer))
        };
        self.blocking.with(state, apply).await?;
        Ok(true)
    }

    /// Applies a fetched update to the state.
    #[tracing::instrument(name = "apply", target = "profile", level = "debug", skip_all)]
    fn apply(
        &self,
        state: &mut ModelState,
        digest: &Digest,
        arrived: &Arrived,
        buffer: Option<Row>,
    ) -> Result<(), FollowError> {
        let window = state.window;
        let bad = |source| FollowError::BadUpdate { window, source };
        let (header, body) = self.open_update(window, state.lineage, &arrived.bytes).map_err(bad)?;
        let update = Update::check(&self.merged, body, arrived.square_norms.is_some());
        let update = update.map_err(|error| bad(error.into()))?;
        state.merged(self.run.params.outer_rate.get(), digest, header.norms, &update, buffer)?;
        Ok(())
    }

    fn open_update<'a>(
        &self,
        window: Window,
        lineage: Digest,
        bytes: &'a [u8],
    ) -> Result<(merge::UpdateHeader, &'a [u8]), merge::UpdateError> {
        let (schema, density) = (self.schema(), self.merged.density());
        merge::open_update(bytes, schema, density, self.run.id, window, lineage)
    }

    /// Fetches the voted update of `window`, which opened with `lineage`, from a few of its voters, else from any
    /// validator.
    async fn fetch_update(self, window: Window, lineage: Digest, vote: Vote) -> Result<Arrived, FollowError> {
        let turn = u32::try_from(self.turn).unwrap_or(u32::MAX);
        let first = self.chain.update_mirrors(self.run.id, window, turn, UPDATE_MIRRORS).await?;
        let first = Mirrors::of(first).and(Mirrors::one(&self.run.origin));
        match self.fetch_update_from(&first, window, lineage, vote).await {
            Err(FollowError::Update { source, .. }) => {
                tracing::debug!(window = window.0, error = %error_chain(&source), "asking all validators for the update");
                let all = self.mirrors().await?;
                self.fetch_update_from(&all, window, lineage, vote).await
            }
            fetched => fetched,
        }
    }

    /// Fetches the update from one of `mirrors` and decodes it while it arrives.
    async fn fetch_update_from(
        &self,
        mirrors: &Mirrors,
        window: Window,
        lineage: Digest,
        vote: Vote,
    ) -> Result<Arrived, FollowError> {
        let places = usize::from(self.run.params.places) + usize::from(self.run.params.reserve_places);
        let (schema, density) = (self.schema(), self.merged.density());
        let largest = merge::largest_update(schema, density, places);
        let limits = Limits::for_bytes(u64::try_from(largest).unwrap_or(u64::MAX));
        let key = keys::update(self.run.id, window, &vote.update);
        let frame = Frame {
            head: largest.saturating_sub(schema.largest_body(density)),
            start: Box::new(|bytes| {
                Some(bytes.len() - self.open_update(window, lineage, bytes).ok()?.1.len())
            }),
            tail: 0,
        };
        let mut incoming = Incoming::new(&self.merged, frame, &self.storage);
        mirrors
            .get_into(&*self.fetch, &key, &vote.update, &limits, &mut incoming)
            .await
            .map_err(|source| FollowError::Update { window, source })?;
        Ok(incoming.finish()?)
    }

    /// Returns the buffer after a window that this node did not merge in time.
    async fn merge_afterwards(&self, state: &mut ModelState, vote: &Vote) -> Result<Row, OwnMergeError> {
        let (run, window) = (self.run.id, state.window);
        ensure!(state.buffer.is_some(), OwnMergeError::NoBuffer);
        let view = self.chain.window(run, window).await?.ok_or(OwnMergeError::Forgotten { window })?;
        let seats = self.chain.seats(run).await?;
        let (mut contributions, mut tries, mut pause) = (BTreeMap::new(), 1, AFTERWARDS_PAUSE);
        loop {
            match self.fetch_selected(&view, &seats, &mut contributions).await {
                Err(OwnMergeError::Fetch { uid, source: ContributionError::Fetch(error) })
                    if tries < AFTERWARDS_TRIES =>
                {
                    let error = error_chain(&error);
                    tracing::info!(window = window.0, uid = uid.0, error, "asking again for a contribution");
                    tokio::time::sleep(pause).await;
                    (tries, pause) = (tries + 1, pause * 2);
                }
                fetched => break fetched?,
            }
        }
        let follower = self.clone();
        let own =
            self.blocking.with(state, move |state| follower.merge(state, &view, &contributions)).await?;
        match own.digest == vote.update {
            true => Ok(own.buffer),
            false => Err(OwnMergeError::Differs { ours: own.digest, voted: vote.update }),
        }
    }

    /// Adds the selected contributions that are missing in `contributions`, from their miners or attesters (PROT-15).
    ///
    /// # Errors
    /// If no bucket has one of them. Those fetched before it have been added.
    pub async fn fetch_selected(
        &self,
        view: &WindowView,
        seats: &[SeatView],
        contributions: &mut BTreeMap<Uid, Contribution>,
    ) -> Result<(), OwnMergeError> {
        let mut sources = None;
        for selected in view.selection.iter().flat_map(|selection| &selection.selected) {
            let uid = selected.uid;
            if contributions.get(&uid).is_none_or(|held| held.digest != selected.digest) {
                let sources = sources.get_or_insert_with(|| self.contribution_sources(view, seats));
                let fetched = self.fetch_attested(sources, uid, &selected.digest).await;
                contributions.insert(uid, fetched.map_err(|source| OwnMergeError::Fetch { uid, source })?);
            }
        }
        Ok(())
    }

    /// Merges the selected contributions (PROT-17, PROT-18). Deterministic: the same on every node.
    ///
    /// # Errors
    /// If a contribution or the buffer is missing, the merge refuses its inputs, or the disk is full.
    pub fn merge(
        &self,
        state: &ModelState,
        view: &WindowView,
        contributions: &BTreeMap<Uid, Contribution>,
    ) -> Result<OwnMerge, OwnMergeError> {
        let selected = view.selection.as_ref().map(|selection| &selection.selected[..]).unwrap_or_default();
        let mut inputs = Vec::with_capacity(selected.len());
        for choice in selected {
            let uid = choice.uid;
            let contribution = contributions.get(&uid).ok_or(OwnMergeError::Contribution { uid })?;
            let square_norms = &contribution.square_norms;
            inputs.push(codec::Input {
                uid,
                weight: view.weight_of(uid),
                body: contribution.body(),
                square_norms,
            });
        }
        let params = &self.run.params;
        let (before, norms) = (state.buffer.as_ref().ok_or(OwnMergeError::NoBuffer)?, &state.norms);
        let (rule, storage) = (params.merge_rule, &self.storage);
        let codec::Merged { body, norms: added, buffer } =
            codec::merge(&self.sent, &self.merged, rule, &inputs, norms, before, storage)?;
        let mut norms = norms.clone();
        norms.push(added.clone());
        let header = merge::UpdateHeader {
            codec: protocol::PROTOCOL_VERSION,
            run: self.run.id,
            window: view.window,
            base: state.lineage,
            schema: self.schema().digest(),
            density: params.merge_density,
            inputs: selected.to_vec(),
            norms: added,
        };
        let bytes = sealed(&header, &body, storage)?;
        let mut theta = state.theta.clone();
        Update::check(&self.merged, &body, false)
            .expect("what the encoder wrote, the decoder reads")
            .apply(params.outer_rate.get(), theta.edit()?);
        let inputs = selected.iter().map(|choice| choice.uid).collect();
        let (window, digest) = (view.window, Digest::of(&bytes));
        Ok(OwnMerge { window, digest, bytes, buffer, norms, theta, inputs })
    }

    /// Fetches one committed contribution from its attesters or its miner (PROT-15) and checks it in full. The miner
    /// comes last, because it may serve some validators as slowly as the limits allow.
    ///
    /// # Errors
    /// If the seat does not exist, no source has the bytes, the contribution is faulty, or the disk is full.
    pub fn fetch_contribution<'a>(
        &'a self,
        sources: &'a ContributionSources<'_>,
        uid: Uid,
        digest: &'a Digest,
    ) -> BoxFuture<'a, Result<Contribution, ContributionError>> {
        Box::pin(async move {
            let seat = sources.seats.get(&uid).ok_or(ContributionError::NoSeat { uid })?;
            let arrived = self.fetch_committed(sources, uid, digest).await?;
            Ok(self.verify(sources.view, seat, digest, arrived).await?)
        })
    }

    /// Returns the buckets that may have the contributions of `view`'s window (PROT-15).
    pub fn contribution_sources<'a>(
        &self,
        view: &'a WindowView,
        seats: &'a [SeatView],
    ) -> ContributionSources<'a> {
        ContributionSources {
            view,
            seats: seats.iter().map(|seat| (seat.id.uid, seat)).collect(),
            validators: Mirrors::validators(seats, &view.attested, &self.run.origin, self.turn),
        }
    }

    /// Fetches a selected contribution. Two thirds have attested these bytes, so the hotkey in them is trusted: the
    /// miner may have left since, and its seat may have a new owner.
    async fn fetch_attested(
        &self,
        sources: &ContributionSources<'_>,
        uid: Uid,
        digest: &Digest,
    ) -> Result<Contribution, ContributionError> {
        let arrived = self.fetch_committed(sources, uid, digest).await?;
        let hotkey = Submission::read(&arrived.bytes)?.header.hotkey;
        Ok(self.verify_for_hotkey(sources.view, uid, hotkey, digest, arrived).await?)
    }

    /// Fetches the bytes of `digest` and decodes them while they arrive.
    async fn fetch_committed(
        &self,
        sources: &ContributionSources<'_>,
        uid: Uid,
        digest: &Digest,
    ) -> Result<Arrived, ContributionError> {
        let mut mirrors = sources.validators.clone();
        if let Some(seat) = sources.seats.get(&uid) {
            mirrors = mirrors.and(Mirrors::one(&seat.endpoint));
        }
        let limits = self.contribution_limits();
        let key = keys::contribution(self.run.id, sources.view.window, digest);
        let mut incoming = self.incoming_contribution();
        mirrors.get_into(&*self.fetch, &key, digest, &limits, &mut incoming).await?;
        Ok(incoming.finish()?)
    }

    /// Returns the limits of a contribution's download: its maximum size is known before the first byte (PROT-8).
    pub fn contribution_limits(&self) -> Limits {
        let largest = submission::largest_bytes(self.schema(), self.sent.density());
        Limits::for_bytes(u64::try_from(largest).unwrap_or(u64::MAX))
    }

    /// Returns a sink that decodes a contribution while it arrives.
    pub fn incoming_contribution(&self) -> Incoming<'_> {
        let start = Box::new(|_: &[u8]| Some(PREFIX_BYTES));
        let frame = Frame { head: PREFIX_BYTES, start, tail: SIGNATURE_BYTES };
        Incoming::new(&self.sent, frame, &self.storage)
    }

    /// Checks a received contribution of `seat` in full (PROT-8, PROT-9). Runs as blocking work, because it hashes all
    /// bytes.
    ///
    /// # Errors
    /// The fault that makes the contribution invalid.
    ///
    /// # Cancel safety
    /// If the future is dropped, the bytes stay in memory until the work has ended.
    pub async fn verify(
        &self,
        view: &WindowView,
        seat: &SeatView,
        digest: &Digest,
        arrived: Arrived,
    ) -> Result<Contribution, Fault> {
        self.verify_for_hotkey(view, seat.id.uid, seat.hotkey, digest, arrived).await
    }

    async fn verify_for_hotkey(
        &self,
        view: &WindowView,
        uid: Uid,
        hotkey: Hotkey,
        digest: &Digest,
        arrived: Arrived,
    ) -> Result<Contribution, Fault> {
        let (codec, digest) = (self.sent.clone(), *digest);
        let (genesis, run, window, base) = (self.chain.genesis(), self.run.id, view.window, view.lineage);
        let sequences_per_seat = self.run.params.sequences_per_seat;
        let check = move || {
            let (schema, density) = (codec.schema(), codec.density());
            let expected = Expected {
                genesis,
                run,
                window,
                uid,
                hotkey,
                base,
                schema,
                density,
                sequences_per_seat,
                digest,
            };
            codec::verify(&codec, &expected, arrived)
        };
        self.blocking.run(check).await
    }

    /// Joins from the latest checkpoint if the chain has pruned the state's window; waits if it is not open yet.
    async fn rejoin_if_behind(&self, state: &mut ModelState) -> Result<Followed, FollowError> {
        let run = self.chain.run(self.run.id).await?;
        let behind = run.checkpoint.is_some_and(|checkpoint| state.window < run.goes_on_at(&checkpoint));
        if !behind {
            return Ok(Followed::Waiting);
        }
        tracing::info!(held = state.window.0, "too far behind to walk: joining from the latest checkpoint");
        *state = self.join().await?;
        Ok(Followed::Rejoined)
    }
}

/// Returns the exact bytes of an update, like `merge::seal_update`.
fn sealed(header: &merge::UpdateHeader, body: &[u8], storage: &Storage) -> Result<Bytes, FileError> {
    let head = merge::seal_update(header, &[]);
    let mut bytes = storage.object();
    bytes.begin((head.len() + body.len()) as u64);
    bytes.push(&head);
    bytes.push(body);
    bytes.finish()
}

/// Generates `θ_0` without a buffer from the run's seed, and checks it against the root on the chain.
///
/// # Errors
/// If the root differs, the specification is invalid, or the disk is full.
pub fn genesis_of_seed(run: &RunView, spec: &RunSpec, storage: &Storage) -> Result<ModelState, FollowError> {
    spec.model.validate()?;
    let mut theta = storage.zeros(spec.model.parameters())?;
    model::init_into(&spec.model, spec.seed, theta.edit()?)?;
    let made = theta.root();
    if made != run.theta0 {
        return Err(FollowError::Genesis { made, expected: run.theta0 });
    }
    Ok(ModelState::first(run.id, &run.params, &run.manifest, theta))
}

/// Returns the checkpoint that opens window 0: the weights whose root is on the chain, an empty buffer and no norms.
/// It needs no vote.
///
/// # Errors
/// If the specification has no valid schema.
pub fn first_checkpoint(run: &RunView, spec: &RunSpec) -> Result<Checkpoint, FollowError> {
    let empty = lineage::root_of_zeros(spec.schema()?.values());
    Ok(Checkpoint {
        window: Window::FIRST,
        state_root: lineage::state_root(&run.theta0, &empty, &RunningNorms::default().root()),
        lineage: lineage::genesis(&run.params, &run.manifest, &run.theta0),
    })
}

#[derive(Debug, thiserror::Error)]
pub enum ContributionError {
    #[error("uid {uid} has no seat")]
    NoSeat { uid: Uid },
    #[error(transparent)]
    Fetch(#[from] AllMirrorsFailed),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(transparent)]
    File(#[from] FileError),
}
