//! `mettle run create`: publishes a model's configuration, data and initial weights, then creates the run on the
//! chain.
//!
//! Publication comes first, so that a participant that sees the run on the chain finds all data that it names.

use crate::{
    output::Output,
    signing::{ConfirmArgs, Signer, SigningSession, TransactionPlan, check_bucket},
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{Amount, Call, Chain, account::RunRequest, terms};
use daemon::config::{Flags, Settings};
use daemon::create::{self, BLOCKS_BEFORE_START, NewRun, PreparedRun};
use dataset::Dataset;
use model::RunSpec;
use model::{ModelConfig, Recipe};
use nn::hugging_face::Import;
use protocol::{Block, Digest, GenesisHash, RunId, RunParams, Terms, view::RunView};
use serde_json::json;
use std::path::{Path, PathBuf};
use store::S3Store;

/// Create a run: publish its model, data and first weights
///
/// Publishes everything in the bucket of the settings file's [store] section, which is checked first. Then sends the
/// digests to the chain.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct CreateRun {
    /// Settings file (TOML). Its [store] section names the bucket to publish in.
    #[arg(long, value_name = "FILE", env = "METTLE_CONFIG")]
    pub config: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    pub chain: Option<String>,
    /// The hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    pub genesis: Option<GenesisHash>,
    /// The owner's key, which signs: a key file, or a development key such as //Alice.
    #[arg(long, value_name = "KEY", env = "METTLE_KEY")]
    pub key: Option<String>,
    /// A file whose first line is the key's password. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// A prepared dataset on this machine.
    #[arg(long, value_name = "DIR")]
    pub dataset: Option<PathBuf>,
    /// A name for the run.
    #[arg(long, default_value = "run")]
    pub name: String,
    /// The run's parameters as JSON [default: the protocol's]. With a start block of 0 the run starts soon.
    #[arg(long, value_name = "FILE")]
    pub params: Option<PathBuf>,
    /// The run's economic terms as JSON [default: the protocol's]. The owner may change them later with `run terms`,
    /// up to the `limits` of the parameters.
    #[arg(long, value_name = "FILE")]
    pub terms: Option<PathBuf>,
    /// The model's configuration: a preset's name, or a JSON file.
    #[arg(long, value_name = "PRESET|FILE", default_value = "6m")]
    pub model: String,
    /// Start from this model: a Hugging Face directory with config.json and safetensors of a LlamaForCausalLM. The
    /// data must be tokenised with its tokenizer. `mettle model import DIR` checks whether it can be used.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "seed"])]
    pub weights: Option<PathBuf>,
    /// The training recipe as JSON [default: the protocol's].
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Seed of the initial weights.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Base URL under which everyone can read the bucket.
    #[arg(long, value_name = "URL")]
    pub origin: String,
    /// The amount to pay into the run's treasury.
    #[arg(long, value_name = "AMOUNT", default_value = "0")]
    pub fund: Amount,
    #[command(flatten)]
    pub confirm: ConfirmArgs,
}

impl CreateRun {
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        Settings::read(&Flags {
            config: self.config.clone(),
            chain: self.chain.clone(),
            genesis: self.genesis,
            key: self.key.clone(),
            password_file: self.password_file.clone(),
            dataset: self.dataset.clone(),
            ..Flags::default()
        })
    }
}

/// Reads the files, shows the transaction, publishes, creates the run, and prints its id.
pub(super) async fn create(create: CreateRun, output: &mut Output<'_>) -> anyhow::Result<()> {
    let settings = create.settings()?;
    let mut session = SigningSession::open(&settings.reading.chain).await?;
    let checked = CheckedRun::check(&create, &settings, &session, output).await?;
    let Some(run) = checked.publish(&create, &settings, &mut session, output).await? else {
        return Ok(());
    };
    let start = run.params.schedule.start;
    let text = format!("run {}, first window at block {}", run.id, start.0);
    Ok(output.result(&text, json!({ "run": run.id, "start": start }))?)
}

/// A run with valid data, model, parameters and bucket. Nothing is published or signed yet.
pub(crate) struct CheckedRun<'a> {
    new: NewRun<'a>,
    ready: PreparedRun,
    store: S3Store,
    bucket: &'a str,
    /// The run on the chain, if an interrupted command created it.
    made: Option<RunId>,
}

impl<'a> CheckedRun<'a> {
    /// Reads the files and checks the bucket.
    ///
    /// # Errors
    /// If something is missing or does not fit.
    pub(crate) async fn check(
        create: &'a CreateRun,
        settings: &'a Settings,
        session: &SigningSession,
        output: &mut Output<'_>,
    ) -> anyhow::Result<CheckedRun<'a>> {
        ensure!(
            create.confirm.sign_elsewhere.is_none(),
            "a run is published and created in one step, by a key of this machine: `mettle run offer` gives it to another \
             account"
        );
        let Some(dataset) = &settings.reading.dataset else {
            bail!("no dataset: prepare one with `mettle dataset prepare`, then add --dataset DIR");
        };
        let Some(bucket) = &settings.store else {
            bail!(
                "no bucket: add a [store] section with endpoint, bucket and access_key to the settings file"
            );
        };
        let (spec, weights) = specification(create, dataset)?;
        let store = bucket.open()?;
        let mut new = NewRun {
            spec,
            weights,
            dataset,
            params: parameters(create.params.as_deref())?,
            terms: terms(create.terms.as_deref())?,
            origin: &create.origin,
            fund: create.fund,
        };
        let ready = create::prepare(&mut new).await?;
        check_bucket(output, &store, &*session.chain, &new.params, &create.origin).await?;
        Ok(CheckedRun { new, ready, store, bucket: &bucket.bucket, made: None })
    }

    /// Returns the run's creation request for the chain.
    pub(crate) fn request(&self) -> RunRequest {
        self.ready.request(&self.new)
    }

    /// Continues with a run that is on the chain, but whose publication or funding was interrupted.
    pub(crate) fn go_on_with(&mut self, run: &RunView, paid: Amount) {
        self.made = Some(run.id);
        self.new.params.schedule.start = run.params.schedule.start;
        self.new.fund = self.new.fund.saturating_sub(paid);
    }

    /// Returns the owner's required balance, without fees.
    pub(crate) async fn cost(&self, chain: &dyn Chain) -> anyhow::Result<Amount> {
        let deposit = match self.made {
            Some(_) => None,
            None => chain.run_deposit(&self.new.params, &self.new.terms).await?,
        };
        Ok(deposit.unwrap_or_default().saturating_add(self.new.fund))
    }

    /// Shows the transaction, asks for confirmation, then publishes and creates the run. Returns `None` after a dry
    /// run.
    pub(crate) async fn publish(
        self,
        create: &CreateRun,
        settings: &Settings,
        session: &mut SigningSession,
        output: &mut Output<'_>,
    ) -> anyhow::Result<Option<RunView>> {
        let signer = Signer {
            source: settings.key.clone(),
            password_file: settings.password_file.clone(),
            whose: "the run's owner",
            proxy_of: None,
            confirm: create.confirm.clone(),
        };
        let plan = self.plan(&*session.chain, signer).await?;
        if !session.confirm(output, &plan).await? {
            return Ok(None);
        }
        Ok(Some(create::publish(&*session.chain, &self.store, self.new, self.ready).await?))
    }

    /// Returns the transaction for the owner to sign.
    async fn plan(&self, chain: &dyn Chain, signer: Signer) -> anyhow::Result<TransactionPlan> {
        let (new, bucket) = (&self.new, self.bucket);
        let mut calls = Vec::new();
        let mut then = vec![format!(
            "first, specification, dataset and initial weights are published in the bucket {bucket}"
        )];
        if self.made.is_none() {
            let request = self.request();
            calls.push(Call::CreateRun {
                params: Box::new(request.params),
                terms: Box::new(request.terms),
                spec: request.spec,
                manifest: request.manifest,
                theta0: request.theta0,
                origin: request.origin,
            });
            let deposit = chain.run_deposit(&new.params, &new.terms).await?;
            let deposit = deposit.map_or_else(|| "a deposit".into(), |amount| amount.to_string());
            then.push(format!(
                "{deposit} is held as a deposit, which grows with the seats that a block serves, until `mettle run close`"
            ));
            then.push(
                "parameters can never be changed; the owner can change the terms as an epoch begins, up to these \
                 limits, which are parameters"
                    .into(),
            );
            then.extend(
                terms::limit_lines(&new.params.limits)
                    .map(|(name, value)| format!("{name}: at most {value}")),
            );
        }
        if new.params.schedule.start == Block(0) {
            then.push(format!(
                "without a start block in the parameters, the run starts {BLOCKS_BEFORE_START} blocks after the call is signed"
            ));
        }
        if new.fund > Amount::ZERO {
            // The next id, unless another run is created meanwhile. The signed call names the run that was created.
            let next = chain.runs().await?.last().map_or(RunId(0), |last| RunId(last.0.saturating_add(1)));
            calls.push(Call::Fund { run: self.made.unwrap_or(next), amount: new.fund });
            then.push(format!("{} goes into the run's treasury, which it leaves only as pay", new.fund));
        }
        let what = match self.made {
            Some(run) => format!("finish run {run}, which is on the chain already"),
            None => format!("create the run `{}`", new.spec.name),
        };
        Ok(TransactionPlan { what, calls, signer, then })
    }
}

fn parameters(file: Option<&Path>) -> anyhow::Result<RunParams> {
    if let Some(path) = file {
        return read_json(path);
    }
    let mut params = RunParams::default();
    params.schedule.start = Block(0);
    Ok(params)
}

fn terms(file: Option<&Path>) -> anyhow::Result<Terms> {
    let mut terms = Terms::default();
    if let Some(path) = file {
        terms::overwrite(&mut terms, &read_json(path)?)
            .with_context(|| format!("{} does not hold terms", path.display()))?;
    }
    Ok(terms)
}

/// Returns the run's specification, and the initial weights if a model is imported.
fn specification(create: &CreateRun, dataset: &Path) -> anyhow::Result<(RunSpec, Option<Vec<f32>>)> {
    let recipe = match &create.recipe {
        Some(path) => read_json(path)?,
        None => Recipe::default(),
    };
    let imported = create.weights.as_ref().map(|from| imported(from, dataset)).transpose()?;
    let (model, weights) = match imported {
        Some((model, values)) => (model, Some(values)),
        None => (configuration(&create.model)?, None),
    };
    let source_name = |from: &PathBuf| {
        let name = from.file_name().unwrap_or_default().to_string_lossy();
        name.chars().take(64).collect::<String>()
    };
    let spec = RunSpec {
        version: 1,
        name: create.name.clone(),
        model,
        seed: create.seed,
        weights: create.weights.as_ref().map(source_name),
        recipe,
    };
    Ok((spec, weights))
}

fn configuration(wanted: &str) -> anyhow::Result<ModelConfig> {
    match ModelConfig::preset(wanted) {
        Ok(config) => Ok(config),
        Err(_) if Path::new(wanted).exists() => read_json(Path::new(wanted)),
        Err(error) => Err(error.into()),
    }
}

/// Reads a trained model, with its sequence length set to the dataset's.
fn imported(from: &Path, dataset: &Path) -> anyhow::Result<(ModelConfig, Vec<f32>)> {
    let cannot = || format!("{} cannot be imported", from.display());
    let mut import = Import::open(from).with_context(cannot)?;
    let data = Dataset::open(dataset, None)
        .with_context(|| format!("could not open the dataset in {}", dataset.display()))?;
    import.limit_sequence(data.manifest().seq_len()).context("the dataset does not fit the model")?;
    // Another tokenizer gives the token ids another meaning.
    match std::fs::read(from.join("tokenizer.json")) {
        Ok(json) => ensure!(
            Digest::of(&json) == data.manifest().tokenizer,
            "the dataset was not tokenised with the model's tokenizer: prepare it with `mettle dataset prepare --tokenizer {}`",
            from.join("tokenizer.json").display()
        ),
        Err(error) => tracing::warn!(
            %error,
            "the model has no tokenizer.json: make sure that the dataset was tokenised with the model's own"
        ),
    }
    let values = import.to_flat().with_context(cannot)?;
    Ok((import.config, values))
}

pub(crate) fn read_json<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let bytes = std::fs::read(path).with_context(|| format!("could not read {}", path.display()))?;
    serde_json::from_slice(&bytes)
        .with_context(|| format!("{} is not JSON, or has not the expected content", path.display()))
}
