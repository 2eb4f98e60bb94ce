//! Starting a run: its model's shape, its data and its first weights are published, then the chain is told their digests.
//!
//! In this order, so that whoever sees the run on the chain finds what it names.

use crate::{
    open,
    settings::{Flags, Settings},
};
use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use chain_client::{
    Amount, Call, Chain,
    account::{self, RunWish},
};
use model::{ModelConfig, Recipe};
use protocol::{Block, RunParams, Terms, keys, lineage, view::RunView};
use replica::{ModelState, RunSpec, checkpoint};
use std::path::{Path, PathBuf};
use store::{Credentials, S3Settings, S3Store, Store};

/// Blocks between the run's creation and its first window, unless the parameters say otherwise.
const BLOCKS_BEFORE_START: u32 = 20;

#[derive(Clone, Debug, clap::Args)]
pub struct CreateRun {
    #[command(flatten)]
    pub flags: Flags,
    /// A name for people.
    #[arg(long, default_value = "run")]
    pub name: String,
    /// The run's parameters as JSON; protocol defaults where absent. A start block of 0 means: soon.
    #[arg(long, value_name = "FILE")]
    pub params: Option<PathBuf>,
    /// The run's terms as JSON: who may sit, what is at stake, what is paid; protocol defaults where absent. The owner may
    /// change them later.
    #[arg(long, value_name = "FILE")]
    pub terms: Option<PathBuf>,
    /// The model's shape: a preset's name, or a JSON file.
    #[arg(long, value_name = "PRESET|FILE", default_value = "6m")]
    pub model: String,
    /// The inner recipe as JSON; a sensible one where absent.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Seed of the first weights.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Base URL under which everyone can read the bucket of the settings file.
    #[arg(long, value_name = "URL")]
    pub origin: String,
    /// What to move into the run's treasury.
    #[arg(long, value_name = "AMOUNT", default_value = "0")]
    pub fund: Amount,
}

/// What a new run is made of.
pub struct NewRun<'a> {
    pub spec: RunSpec,
    /// A prepared dataset.
    pub dataset: &'a Path,
    /// With the first block at 0, it is set to a few blocks from now.
    pub params: RunParams,
    pub terms: Terms,
    /// Base URL of `store` for everyone else.
    pub origin: &'a str,
    pub fund: Amount,
}

/// `validator run create`: reads its files, creates the run, prints its id.
pub async fn run(create: CreateRun) -> anyhow::Result<()> {
    let settings = Settings::read(&create.flags)?;
    let Some(directory) = &settings.dataset else {
        bail!("no dataset was given: prepare one with `miner dataset prepare`, then add --dataset DIR");
    };
    let Some(bucket) = &settings.store else {
        bail!(
            "no bucket was given: add a [store] section with endpoint, bucket and access_key to the settings file"
        );
    };
    let params: RunParams = match &create.params {
        Some(path) => read_json(path)?,
        None => {
            let mut params = RunParams::default();
            params.schedule.start = Block(0);
            params
        }
    };
    let terms: Terms = match &create.terms {
        Some(path) => read_json(path)?,
        None => Terms::default(),
    };
    let model = match ModelConfig::preset(&create.model) {
        Ok(config) => config,
        Err(_) if Path::new(&create.model).exists() => read_json(Path::new(&create.model))?,
        Err(error) => return Err(error.into()),
    };
    let recipe = match &create.recipe {
        Some(path) => read_json(path)?,
        None => Recipe::default(),
    };
    let spec = RunSpec { version: 1, name: create.name.clone(), model, seed: create.seed, recipe };

    let credentials = Credentials { access_key: bucket.access_key.clone(), secret_key: bucket.secret()? };
    let store = S3Store::open(&S3Settings::new(&bucket.endpoint, &bucket.bucket, credentials))?;
    let chain = open::chain(&settings.chain, Some(open::key(&settings)?)).await?;
    let new = NewRun { spec, dataset: directory, params, terms, origin: &create.origin, fund: create.fund };
    let run = self::create(&*chain, &store, new).await?;
    println!("run {}, first window at block {}", run.id, run.params.schedule.start.0);
    Ok(())
}

/// Publishes everything and creates the run, signed by the chain client's key.
pub async fn create(chain: &dyn Chain, store: &dyn Store, new: NewRun<'_>) -> anyhow::Result<RunView> {
    let NewRun { spec, dataset, mut params, terms, origin, fund } = new;
    RunSpec::from_bytes(&spec.to_bytes()).context("the run's specification cannot be used")?;

    // Publish.
    let manifest = replica::data::publish_dataset(store, dataset).await?;
    ensure!(
        manifest.vocab as usize <= spec.model.vocab,
        "the dataset has a vocabulary of {}, the model only of {}",
        manifest.vocab,
        spec.model.vocab
    );
    ensure!(
        manifest.seq_len() == spec.model.seq_len,
        "the dataset's sequences have {} tokens, the model's {}",
        manifest.seq_len(),
        spec.model.seq_len
    );
    store.put(&keys::spec(&spec.digest()), Bytes::from(spec.to_bytes())).await?;
    let theta = model::init_flat(&spec.model, spec.seed)?;
    let theta0 = lineage::weights_root(&theta);

    // Tell the chain.
    if params.schedule.start == Block(0) {
        let now = chain.heads().borrow().block;
        params.schedule.start = Block(now.0.saturating_add(BLOCKS_BEFORE_START));
    }
    params.validate().context("the run's parameters cannot be used")?;
    terms.validate().context("the run's terms cannot be used")?;
    let manifest = manifest.digest();
    let wish = RunWish { params, terms, spec: spec.digest(), manifest, theta0, origin: origin.to_owned() };
    let run = account::create_run(chain, &wish).await?;
    let state = ModelState::genesis(run.id, &run.params, &manifest, theta);
    checkpoint::publish(store, &state).await?;
    if 0 < fund.0 {
        chain.submit(Call::Fund { run: run.id, amount: fund }).await?;
    }
    Ok(chain.run(run.id).await?)
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} does not hold what is expected", path.display()))
}
