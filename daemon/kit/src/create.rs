//! Creates a run: publishes its specification, dataset and initial weights, then registers their digests on the chain.
//!
//! With this order, a participant that sees the run on the chain finds every object that it names.

use crate::{Blocking, ModelState, checkpoint};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use chain_client::{
    Amount, Call, Chain,
    account::{self, RunRequest},
};
use dataset::Dataset;
use futures::future::BoxFuture;
use model::RunSpec;
use protocol::{Block, RunParams, Terms, keys, lineage, view::RunView};
use std::path::Path;
use store::Store;

/// Default number of blocks between the run's creation and its first window.
pub const BLOCKS_BEFORE_START: u32 = 20;

/// The parts of a new run.
pub struct NewRun<'a> {
    pub spec: RunSpec,
    /// `θ_0`, if the specification does not derive it from its seed.
    pub weights: Option<Vec<f32>>,
    /// A prepared dataset.
    pub dataset: &'a Path,
    /// Parameters. A first block of 0 is replaced by one a few blocks ahead.
    pub params: RunParams,
    pub terms: Terms,
    /// Public base URL of `store`.
    pub origin: &'a str,
    pub fund: Amount,
}

/// The checked data and first weights of a new run.
pub struct PreparedRun {
    pub manifest: protocol::Digest,
    theta: Vec<f32>,
    pub theta0: protocol::Digest,
}

impl PreparedRun {
    pub fn request(&self, new: &NewRun<'_>) -> RunRequest {
        RunRequest {
            params: new.params,
            terms: new.terms,
            spec: new.spec.digest(),
            manifest: self.manifest,
            theta0: self.theta0,
            origin: new.origin.to_owned(),
        }
    }
}

/// Checks all parts of a run. Publishes nothing.
///
/// # Errors
/// If a part cannot be read or the parts do not fit together.
pub async fn prepare(new: &mut NewRun<'_>) -> anyhow::Result<PreparedRun> {
    RunSpec::from_bytes(&new.spec.to_bytes()).context("the run's specification cannot be used")?;
    let directory = new.dataset.to_owned();
    let manifest = tokio::task::spawn_blocking(move || {
        let opened = Dataset::open(&directory, None);
        opened.map(|dataset| dataset.manifest().clone())
    });
    let manifest = manifest
        .await?
        .with_context(|| format!("could not open the dataset in {}", new.dataset.display()))?;
    ensure!(
        manifest.vocab as usize <= new.spec.model.vocab,
        "the dataset has a vocabulary of {}, the model only of {}",
        manifest.vocab,
        new.spec.model.vocab
    );
    ensure!(
        manifest.seq_len() == new.spec.model.seq_len,
        "the dataset's sequences have {} tokens, the model's {}",
        manifest.seq_len(),
        new.spec.model.seq_len
    );
    new.params.validate().context("the run's parameters cannot be used")?;
    let terms = new.terms.validate().and_then(|()| new.terms.check_limits(&new.params.limits));
    terms.context("the run's terms cannot be used")?;
    let theta = match (new.weights.take(), &new.spec.weights) {
        (None, None) => model::init_flat(&new.spec.model, new.spec.seed)?,
        (Some(weights), Some(_)) if weights.len() == new.spec.model.parameters() => weights,
        _ => bail!("the first weights are not those that the specification speaks of"),
    };
    let theta0 = lineage::weights_root(&theta);
    Ok(PreparedRun { manifest: manifest.digest(), theta, theta0 })
}

/// Publishes everything and creates the run, signed with the key of the chain client.
///
/// # Errors
/// As [`prepare`] and [`publish`].
pub fn create<'a>(
    chain: &'a dyn Chain,
    store: &'a dyn Store,
    mut new: NewRun<'a>,
) -> BoxFuture<'a, anyhow::Result<RunView>> {
    Box::pin(async move {
        let ready = prepare(&mut new).await?;
        publish(chain, store, new, ready).await
    })
}

/// Publishes the prepared parts and creates the run, signed with the key of the chain client.
///
/// # Errors
/// If the bucket or the chain refuses or cannot be reached.
pub fn publish<'a>(
    chain: &'a dyn Chain,
    store: &'a dyn Store,
    mut new: NewRun<'a>,
    ready: PreparedRun,
) -> BoxFuture<'a, anyhow::Result<RunView>> {
    Box::pin(async move {
        crate::data::publish_dataset(store, new.dataset).await?;
        store.put(&keys::spec(&new.spec.digest()), Bytes::from(new.spec.to_bytes())).await?;

        let start = &mut new.params.schedule.start;
        if *start == Block(0) {
            let now = chain.heads().borrow().block;
            *start = Block(now.0.saturating_add(BLOCKS_BEFORE_START));
        }
        let run = account::create_run(chain, &ready.request(&new)).await?;
        let mut state = ModelState::genesis(run.id, &run.params, &ready.manifest, ready.theta);
        checkpoint::publish(Blocking::Pool, store, &mut state).await?;
        if 0 < new.fund.0 {
            chain.submit(Call::Fund { run: run.id, amount: new.fund }).await?;
        }
        Ok(chain.run(run.id).await?)
    })
}
