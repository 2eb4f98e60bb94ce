//! Starting a run: its model's shape, its data and its first weights are published, then the chain is told their digests.
//!
//! In this order, so that whoever sees the run on the chain finds what it names.

use crate::sign::{ConfirmArgs, Signer, SigningSession, TransactionPlan};
use anyhow::{Context as _, bail, ensure};
use chain_client::{Amount, Call, Chain, terms};
use dataset::Dataset;
use model::RunSpec;
use model::{ModelConfig, Recipe};
use nn::hugging_face::Import;
use node::config::{Flags, Settings};
use node::create::{self, BLOCKS_BEFORE_START, NewRun, PreparedRun};
use node::output::Output;
use protocol::{Block, Digest, RunId, RunParams, Terms};
use serde_json::json;
use std::path::{Path, PathBuf};
use store::{Credentials, S3Settings, S3Store};

#[derive(Clone, Debug, clap::Args)]
pub struct CreateRun {
    /// Settings file (TOML). Its [store] section names the bucket that everything is published in.
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    pub chain: Option<String>,
    /// The owner-to-be, who signs: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// A file whose first line is the key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// A prepared dataset on this machine.
    #[arg(long, value_name = "DIR")]
    pub dataset: Option<PathBuf>,
    /// A name for people.
    #[arg(long, default_value = "run")]
    pub name: String,
    /// The run's parameters as JSON; protocol defaults where absent. A start block of 0 means: soon.
    #[arg(long, value_name = "FILE")]
    pub params: Option<PathBuf>,
    /// The run's terms as JSON: who may sit, what is at stake, what is paid; protocol defaults for what it does not name. The
    /// owner may change them later, with `run terms`.
    #[arg(long, value_name = "FILE")]
    pub terms: Option<PathBuf>,
    /// The model's shape: a preset's name, or a JSON file.
    #[arg(long, value_name = "PRESET|FILE", default_value = "6m")]
    pub model: String,
    /// Start from this model instead of a fresh one: a directory in Hugging Face's form, with config.json and safetensors of a
    /// LlamaForCausalLM. The data must be tokenised with its own tokenizer. `mettle model import DIR` says whether it can be used.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "seed"])]
    pub weights: Option<PathBuf>,
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
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

/// `mettle run create`: reads its files, shows what it would sign, publishes, creates the run, prints its id.
pub async fn run(create: CreateRun, output: &mut Output<'_>) -> anyhow::Result<()> {
    let settings = Settings::read(&Flags {
        config: create.config.clone(),
        chain: create.chain.clone(),
        key: create.key.clone(),
        password_file: create.password_file.clone(),
        dataset: create.dataset.clone(),
        ..Flags::default()
    })?;
    let Some(directory) = &settings.dataset else {
        bail!("no dataset was given: prepare one with `mettle dataset prepare`, then add --dataset DIR");
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
    let mut terms = Terms::default();
    if let Some(path) = &create.terms {
        let json = read_json(path)?;
        terms::overwrite(&mut terms, &json).with_context(|| format!("{} holds no terms", path.display()))?;
    }
    let recipe = match &create.recipe {
        Some(path) => read_json(path)?,
        None => Recipe::default(),
    };
    let (model, weights) = match &create.weights {
        Some(from) => {
            let (model, values) = imported(from, directory)?;
            (model, Some(values))
        }
        None => (shape(&create.model)?, None),
    };
    let said = |from: &PathBuf| {
        let name = from.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.chars().take(64).collect::<String>()
    };
    let spec = RunSpec {
        version: 1,
        name: create.name.clone(),
        model,
        seed: create.seed,
        weights: create.weights.as_ref().map(said),
        recipe,
    };

    let credentials = Credentials { access_key: bucket.access_key.clone(), secret_key: bucket.secret()? };
    let store = S3Store::open(&S3Settings::new(&bucket.endpoint, &bucket.bucket, credentials))?;
    let mut new = NewRun {
        spec,
        weights,
        dataset: directory,
        params,
        terms,
        origin: &create.origin,
        fund: create.fund,
    };
    let ready = create::prepare(&mut new).await?;
    let mut session = SigningSession::open(&settings.chain).await?;
    let signer = Signer {
        source: settings.key.clone(),
        password_file: settings.password_file.clone(),
        whose: "the run's owner",
    };
    let plan = plan(&*session.chain, &new, &ready, signer, bucket.bucket.clone()).await?;
    let Some(agreed) = session.agree(output, &plan, &create.confirm).await? else {
        return Ok(());
    };
    let run = create::publish(&*agreed.chain, &store, new, ready).await?;
    output.result(
        &format!("run {}, first window at block {}", run.id, run.params.schedule.start.0),
        json!({ "run": run.id, "start": run.params.schedule.start }),
    )?;
    Ok(())
}

fn shape(wanted: &str) -> anyhow::Result<ModelConfig> {
    match ModelConfig::preset(wanted) {
        Ok(config) => Ok(config),
        Err(_) if Path::new(wanted).exists() => read_json(Path::new(wanted)),
        Err(error) => Err(error.into()),
    }
}

/// A model that was trained before, to be trained on with sequences of the dataset's length.
fn imported(from: &Path, dataset: &Path) -> anyhow::Result<(ModelConfig, Vec<f32>)> {
    let cannot = || format!("{} cannot be imported", from.display());
    let mut import = Import::open(from).with_context(cannot)?;
    let data = Dataset::open(dataset, None)
        .with_context(|| format!("could not open the dataset in {}", dataset.display()))?;
    import.limit_sequence(data.manifest().seq_len()).context("the dataset does not suit the model")?;
    // Tokens are numbers: with another tokenizer's, everything that the model has learned means something else.
    match std::fs::read(from.join("tokenizer.json")) {
        Ok(json) => ensure!(
            Digest::of(&json) == data.manifest().tokenizer,
            "the dataset was not tokenised with the model's tokenizer: prepare it with `mettle dataset prepare --tokenizer {}`",
            from.join("tokenizer.json").display()
        ),
        Err(error) => tracing::warn!(
            %error,
            "the model comes without a tokenizer.json: make sure that the dataset was tokenised with its own"
        ),
    }
    let values = import.to_flat().with_context(cannot)?;
    Ok((import.config, values))
}

/// What the owner is asked to sign.
async fn plan(
    chain: &dyn Chain,
    new: &NewRun<'_>,
    ready: &PreparedRun,
    signer: Signer,
    bucket: String,
) -> anyhow::Result<TransactionPlan> {
    let wish = ready.request(new);
    let mut calls = vec![Call::CreateRun {
        params: Box::new(wish.params),
        terms: Box::new(wish.terms),
        spec: wish.spec,
        manifest: wish.manifest,
        theta0: wish.theta0,
        origin: wish.origin,
    }];
    let mut then = vec![
        format!("first, specification, dataset and first weights are published in the bucket {bucket}"),
        "a deposit is held for as long as the run exists".into(),
        "parameters can never be changed; terms can, by the owner, from one epoch to the next".into(),
    ];
    if new.params.schedule.start == Block(0) {
        then.push(format!(
            "as no start block was given, it is filled in as the call is signed: {BLOCKS_BEFORE_START} blocks later"
        ));
    }
    if new.fund > Amount::ZERO {
        // The next id, unless somebody else creates a run meanwhile: what is signed then names the run that was created.
        let id = chain.runs().await?.last().map_or(RunId(0), |last| RunId(last.0.saturating_add(1)));
        calls.push(Call::Fund { run: id, amount: new.fund });
        then.push(format!(
            "{} go into the run's treasury, from which nothing comes back but as pay",
            new.fund
        ));
    }
    let what = format!("create the run `{}`", new.spec.name);
    Ok(TransactionPlan { what, calls, signer, proxy_of: None, then })
}

fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} does not hold what is expected", path.display()))
}
