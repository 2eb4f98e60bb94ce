//! `mettle init run`: creates a run: the owner's key, settings, parameters, checks, money, and the run itself.

use super::{BucketFlags, Payer, absolute, make_key, read_flags};
use crate::{
    output::Output,
    run::create::{self, CheckedRun, CreateRun},
    signing::{ConfirmArgs, SigningSession, units},
};
use anyhow::{Context as _, bail};
use chain_client::{Amount, Chain, account, keys::KeySource};
use daemon::{
    config::{ChainFlags, File, Settings},
    durable::write_atomic,
};
use protocol::{Block, GenesisHash, RunId, RunParams, view::RunView};
use serde_json::json;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Upper bound of the calls' fees and the existential deposit of the run's treasury.
const RESERVE: Amount = Amount::mtl(1);

/// Create a run: the owner's key, settings, parameters, checks, money
///
/// Asks for values that no flag gives. Checks dataset, model and bucket, asks before it signs, and skips completed
/// steps: run it again after an interruption, after a change of params.json, or when the owner has money. On a
/// development chain the money comes from //Alice. `mettle run create` has more options: weights, recipe, seed.
#[derive(Clone, Debug, clap::Args)]
pub struct InitRun {
    /// The directory for key, settings and parameters; created if it is missing.
    #[arg(long, value_name = "DIR", default_value = "mettle-run")]
    dir: PathBuf,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// The hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    genesis: Option<GenesisHash>,
    /// A file whose first line is the password of the owner's key. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    /// A name for the run.
    #[arg(long, default_value = "run")]
    name: String,
    /// A prepared dataset on this machine, from `mettle dataset prepare`.
    #[arg(long, value_name = "DIR")]
    dataset: Option<PathBuf>,
    /// The model's configuration: a preset's name, or a JSON file.
    #[arg(long, value_name = "PRESET|FILE", default_value = "6m")]
    model: String,
    /// The run's parameters as JSON [default: the protocol's].
    #[arg(long, value_name = "FILE", conflicts_with = "like")]
    params: Option<PathBuf>,
    /// Copy the parameters of this run of the chain.
    #[arg(long, value_name = "ID")]
    like: Option<u32>,
    /// The run's economic terms as JSON [default: the protocol's].
    #[arg(long, value_name = "FILE")]
    terms: Option<PathBuf>,
    #[command(flatten)]
    bucket: BucketFlags,
    /// The amount to pay into the run's treasury.
    #[arg(long, value_name = "AMOUNT", default_value = "0")]
    fund: Amount,
    /// The account that pays the owner's missing balance: a key file [default on a development chain: //Alice].
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Sign without asking. Required without a terminal, and with --json.
    #[arg(long)]
    yes: bool,
}

/// The files of the run's owner.
struct Home {
    directory: PathBuf,
    settings: PathBuf,
    params: PathBuf,
    key: PathBuf,
}

impl Home {
    fn of(directory: &Path) -> Home {
        Home {
            settings: directory.join("settings.toml"),
            params: directory.join("params.json"),
            key: directory.join("owner.json"),
            directory: directory.to_owned(),
        }
    }
}

/// Creates the run; prints and asks through `output`.
pub(super) async fn init(mut command: InitRun, output: &mut Output<'_>) -> anyhow::Result<()> {
    let known = command.dir.join("settings.toml").exists();
    let flags = ChainFlags {
        config: known.then(|| command.dir.join("settings.toml")),
        chain: command.chain.clone(),
        genesis: command.genesis,
        run: None,
    };
    // Before the first question and the first write: a wrong URL leaves no files.
    let args = read_flags(&flags)?;
    let mut session = SigningSession::open(&args.chain).await?;
    let params = new_params(&command, &*session.chain).await?;
    let origin = ask(&mut command, known, output)?;

    fs::create_dir_all(&command.dir).with_context(|| format!("could not make {}", command.dir.display()))?;
    let home = Home::of(&absolute(&command.dir)?);
    make_key(&home.key, "owns the run", command.password_file.as_deref(), output)?;
    if known {
        output.note(&format!("The settings in {} are kept as they are.", home.settings.display()))?;
    } else {
        write_settings(&command, &home, &args.chain.url)?;
        output.note(&format!("Wrote {}.", home.settings.display()))?;
    }
    if home.params.exists() {
        output.note(&format!("The parameters in {} are kept as they are.", home.params.display()))?;
    } else {
        write_atomic(&home.params, &serde_json::to_vec_pretty(&params)?)?;
        output.note(&format!("Wrote {}: change it before you sign, never after.", home.params.display()))?;
    }

    output.note("Checking dataset and model.")?;
    let create = CreateRun {
        config: Some(home.settings.clone()),
        name: command.name,
        params: Some(home.params.clone()),
        terms: command.terms,
        model: command.model,
        origin,
        fund: command.fund,
        confirm: ConfirmArgs { yes: command.yes, ..ConfirmArgs::default() },
        ..CreateRun::default()
    };
    let settings = create.settings()?;
    let mut checked = CheckedRun::check(&create, &settings, &session, output).await?;

    let owner = KeySource::File(home.key.clone()).account()?;
    let made = account::find_run(&*session.chain, &owner, &checked.request()).await?;
    let written = written_run(&home.settings)?;
    let run = match made {
        Some(run) if written == Some(run.id) => {
            output.note("The run exists already.")?;
            let paid = Amount(session.chain.status(run.id).await?.treasury.funded);
            let rest = command.fund.saturating_sub(paid);
            if rest > Amount::ZERO {
                output.note(&format!(
                    "It was paid {paid}, and gets no more here: `mettle run fund --config {} --amount \"{rest}\"` pays the \
                     rest.",
                    home.settings.display()
                ))?;
            }
            run
        }
        made => {
            if let Some(other) = written {
                let why = match session.chain.runs().await?.contains(&other) {
                    true => "which was made of something else, or has another owner now",
                    false => "which is no longer on the chain",
                };
                bail!(
                    "{} belongs to run {other}, {why}: use another --dir for another run",
                    home.settings.display()
                );
            }
            if let Some(run) = &made {
                let paid = Amount(session.chain.status(run.id).await?.treasury.funded);
                checked.go_on_with(run, paid);
            }
            // A command that continues with a run had the reserve before.
            let reserve = if made.is_some() { Amount::ZERO } else { RESERVE };
            let needed = checked.cost(&*session.chain).await?.saturating_add(reserve);
            let payer = Payer { from: command.from.as_deref(), yes: command.yes, whose: "the run's owner" };
            payer.pay(&mut session, &owner, needed, &home.directory, output).await?;
            let run = checked.publish(&create, &settings, &mut session, output).await?;
            let Some(run) = run else { return Ok(()) };
            write_run(&home.settings, run.id)?;
            run
        }
    };
    print(&home, &settings, &run, output)
}

/// Asks for the required values. Returns the URL at which everyone reads the run's bucket.
fn ask(command: &mut InitRun, known: bool, output: &mut Output<'_>) -> anyhow::Result<String> {
    if command.dataset.is_none() && !known {
        let dataset = output.question("The directory of a prepared dataset", "--dataset")?;
        command.dataset = Some(dataset.into());
    }
    let bucket = &mut command.bucket;
    if bucket.store.is_none() && !known {
        bucket.store = Some(output.question("The URL of the S3 server of the run's bucket", "--store")?);
        bucket.bucket = Some(output.question("The name of the bucket", "--bucket")?);
        bucket.access_key = Some(output.question("The name of the key that writes to it", "--access-key")?);
        let secret = output.question("A file with the secret of that key", "--secret-file")?;
        bucket.secret_file = Some(secret.into());
    }
    match &bucket.endpoint {
        Some(endpoint) => Ok(endpoint.clone()),
        None => output.question("The URL under which everyone reads the bucket", "--endpoint"),
    }
}

/// Returns the parameters of a new directory.
async fn new_params(command: &InitRun, chain: &dyn Chain) -> anyhow::Result<RunParams> {
    let mut params = match (&command.params, command.like) {
        (Some(file), _) => return create::read_json(file),
        (None, Some(like)) => chain.run(RunId(like)).await?.params,
        // A development chain's buckets have private addresses.
        (None, None) => RunParams { localnet: chain.is_development(), ..RunParams::default() },
    };
    // The run starts soon after its creation.
    params.schedule.start = Block(0);
    Ok(params)
}

fn write_settings(command: &InitRun, home: &Home, chain: &str) -> anyhow::Result<()> {
    let settings = File {
        chain: Some(chain.to_owned()),
        genesis: command.genesis,
        key: Some(home.key.display().to_string()),
        password_file: command.password_file.as_deref().map(absolute).transpose()?,
        dataset: command.dataset.as_deref().map(absolute).transpose()?,
        store: command.bucket.store()?,
        ..File::default()
    };
    Ok(write_atomic(&home.settings, toml::to_string_pretty(&settings)?.as_bytes())?)
}

fn read_settings(settings: &Path) -> anyhow::Result<String> {
    fs::read_to_string(settings).with_context(|| format!("could not read {}", settings.display()))
}

/// Returns the run that the settings name.
fn written_run(settings: &Path) -> anyhow::Result<Option<RunId>> {
    let table: toml::Table = toml::from_str(&read_settings(settings)?)?;
    let run = table.get("run").and_then(toml::Value::as_integer);
    Ok(run.and_then(|run| u32::try_from(run).ok()).map(RunId))
}

/// Adds the run to the settings, so that later commands find it. The rest of the file is unchanged.
fn write_run(settings: &Path, run: RunId) -> anyhow::Result<()> {
    let text = read_settings(settings)?;
    Ok(write_atomic(settings, format!("run = {}\n{text}", run.0).as_bytes())?)
}

/// Prints the run, and the commands with which others participate.
fn print(home: &Home, settings: &Settings, run: &RunView, output: &mut Output<'_>) -> anyhow::Result<()> {
    let chain = &settings.reading.chain;
    let genesis = chain.genesis.map(|genesis| format!(" --genesis {genesis}")).unwrap_or_default();
    let at = format!("--chain {}{genesis} --run {}", chain.url, run.id);
    let validator = format!(
        "mettle init validator {at} --store URL --bucket NAME --access-key ID --secret-file FILE --endpoint URL \
         --peer-listen ADDRESS:PORT"
    );
    let miner = format!("mettle init miner {at}");
    let (settings, start) = (home.settings.display(), run.params.schedule.start);
    let text = format!(
        "run {}, first window at block {}\n\nIt needs a validator, which has a bucket of its own, and miners:\n  {validator}\n  \
         {miner}\n\n`mettle run terms`, `mettle run fund` and `mettle run pause` take `--config {settings}`.",
        run.id, start.0
    );
    let value = json!({
        "run": run.id, "start": start, "settings": home.settings, "directory": home.directory,
        "treasury": units(Amount(run.treasury)), "next": [validator, miner],
    });
    Ok(output.result(&text, value)?)
}
