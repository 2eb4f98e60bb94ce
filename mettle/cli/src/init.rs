//! `mettle init`: creates a seat or a run, step by step: keys, settings, checks, money, registration.
//!
//! A completed step is skipped, so the command can be repeated: after an interruption, or when money has arrived.

mod run;

use crate::{
    doctor, help, keys,
    output::Output,
    seat::register::{HOTKEY_FUNDS, Register, register},
    signing::{ConfirmArgs, Signer, SigningSession, TransactionPlan},
};
use anyhow::{Context as _, bail, ensure};
use chain_client::{
    Amount, Call, Chain,
    account::{self, FEES_RESERVE},
    keys::{Key, KeySource, address},
};
use daemon::{
    config::{ChainFlags, EndpointArgs, File, PeerFile, StoreFile},
    durable::write_atomic,
    peers,
};
use protocol::{GenesisHash, Role, RunId, view::Account};
use serde_json::json;
use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

/// The funded account of a development chain.
const FAUCET: &str = "//Alice";

/// The object to create.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum InitCommand {
    /// Create a miner's seat: keys, settings, checks, money
    ///
    /// Asks before it signs, and skips completed steps: run it again after an interruption, or when the coldkey has
    /// money. Without the flags of a bucket the miner sends its contributions to validators, and needs no open port.
    /// On a development chain the money comes from //Alice.
    #[command(after_help = help::signing(&[
        "mettle init miner",
        "mettle init miner --dir seat0 --device cuda:0 --password-file password",
    ]))]
    Miner(Box<InitSeat>),
    /// Create a validator's seat: keys, settings, checks, money
    ///
    /// Asks before it signs, and skips completed steps: run it again after an interruption, or when the coldkey has
    /// money. On a development chain the money comes from //Alice.
    #[command(after_help = help::signing(&[
        "mettle init validator --store https://s3.example.org --bucket my-bucket \\",
        "    --access-key ID --secret-file secret --endpoint https://bucket.example.org \\",
        "    --peer-listen 0.0.0.0:4100 --peer-announce 203.0.113.5:4100",
    ]))]
    Validator(Box<InitValidator>),
    #[command(after_help = help::signing(&[
        "mettle init run --name my-run --model 6m --dataset my-dataset \\",
        "    --store https://s3.example.org --bucket my-bucket --access-key ID \\",
        "    --secret-file secret --endpoint https://bucket.example.org --fund 1000",
        "mettle init run --like 0 --dataset my-dataset --yes …",
    ]))]
    Run(Box<run::InitRun>),
}

#[derive(Clone, Debug, clap::Args)]
pub struct InitValidator {
    #[command(flatten)]
    seat: InitSeat,
    /// Receive contributions of miners without a bucket at this address and port, of UDP and TCP.
    #[arg(long, value_name = "ADDRESS:PORT")]
    peer_listen: Option<SocketAddr>,
    /// The public address and port, if it differs from --peer-listen.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "peer_listen")]
    peer_announce: Option<SocketAddr>,
}

impl InitValidator {
    fn peer(&self) -> anyhow::Result<Option<PeerFile>> {
        let Some(listen) = self.peer_listen else { return Ok(None) };
        ensure!(
            !listen.ip().is_unspecified() || self.peer_announce.is_some(),
            "--peer-listen {listen} names no address that miners could connect to: add --peer-announce with the public \
             address and port"
        );
        Ok(Some(PeerFile { listen: Some(listen), announce: self.peer_announce }))
    }
}

#[derive(Clone, Debug, clap::Args)]
pub struct InitSeat {
    /// The directory for keys, settings and data; created if it is missing [default: `mettle-miner` or
    /// `mettle-validator`].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// URL of the chain's JSON-RPC, such as ws://127.0.0.1:9944.
    #[arg(long, value_name = "URL", env = "METTLE_CHAIN")]
    chain: Option<String>,
    /// The hash of the chain's block 0; required except on a development chain.
    #[arg(long, value_name = "HASH", env = "METTLE_GENESIS")]
    genesis: Option<GenesisHash>,
    /// The run [default: the chain's only one].
    #[arg(long, value_name = "ID", env = "METTLE_RUN")]
    run: Option<u32>,
    /// The device: cpu, or cuda:0 if built with it.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: String,
    /// A file whose first line is the password of both keys. Otherwise METTLE_KEY_PASSWORD, or a prompt.
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
    #[command(flatten)]
    bucket: BucketFlags,
    /// The stake to hold from the coldkey [default: the run's minimum].
    #[arg(long, value_name = "AMOUNT")]
    stake: Option<Amount>,
    /// The account that pays the coldkey's missing balance: a key file [default on a development chain: //Alice].
    #[arg(long, value_name = "KEY")]
    from: Option<String>,
    /// Register even if a check fails.
    #[arg(long)]
    force: bool,
    /// Sign without asking. Required without a terminal, and with --json.
    #[arg(long)]
    yes: bool,
}

/// The seat's bucket, which a validator needs.
#[derive(Clone, Debug, clap::Args)]
struct BucketFlags {
    /// The S3 server of the seat's bucket.
    #[arg(long, value_name = "URL", requires_all = ["bucket", "access_key", "secret_file", "endpoint"])]
    store: Option<String>,
    /// The seat's bucket there.
    #[arg(long, value_name = "NAME", requires = "store")]
    bucket: Option<String>,
    /// The name of the key that may write to the bucket.
    #[arg(long, value_name = "ID", requires = "store")]
    access_key: Option<String>,
    /// A file with the secret of the access key.
    #[arg(long, value_name = "FILE", requires = "store")]
    secret_file: Option<PathBuf>,
    /// Base URL under which everyone can read the bucket.
    #[arg(long, value_name = "URL", requires = "store")]
    endpoint: Option<String>,
}

impl BucketFlags {
    /// Returns the section of the settings; `None` without flags.
    fn store(&self) -> anyhow::Result<Option<StoreFile>> {
        let BucketFlags { store, bucket, access_key, secret_file, .. } = self.clone();
        let (Some(endpoint), Some(bucket), Some(access_key), Some(secret)) =
            (store, bucket, access_key, secret_file)
        else {
            return Ok(None);
        };
        let secret = absolute(&secret)?;
        Ok(Some(StoreFile { endpoint, bucket, access_key, secret_key: None, secret_key_file: Some(secret) }))
    }
}

fn absolute(file: &Path) -> anyhow::Result<PathBuf> {
    file.canonicalize().with_context(|| format!("could not read {}", file.display()))
}

/// The files of the seat.
struct Home {
    directory: PathBuf,
    settings: PathBuf,
    coldkey: PathBuf,
    hotkey: PathBuf,
    data: PathBuf,
}

impl Home {
    fn make(directory: &Path) -> anyhow::Result<Home> {
        fs::create_dir_all(directory).with_context(|| format!("could not make {}", directory.display()))?;
        let directory = absolute(directory)?;
        Ok(Home {
            settings: directory.join("settings.toml"),
            coldkey: directory.join("coldkey.json"),
            hotkey: directory.join("hotkey.json"),
            data: directory.join("data"),
            directory,
        })
    }
}

/// Creates the requested object; prints and asks through `output`.
pub async fn init(command: InitCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    match command {
        InitCommand::Miner(seat) => make_seat(Role::Miner, *seat, None, output).await,
        InitCommand::Validator(validator) => {
            let peer = validator.peer()?;
            make_seat(Role::Validator, validator.seat, peer, output).await
        }
        InitCommand::Run(run) => run::init(*run, output).await,
    }
}

/// Returns the chain and the run of the flags. Existing settings must name the same, because some steps use the flags
/// and others the settings.
fn read_flags(flags: &ChainFlags) -> anyhow::Result<EndpointArgs> {
    let args = flags.read(None)?;
    let Some(settings) = &flags.config else { return Ok(args) };
    let kept = ChainFlags { config: Some(settings.clone()), ..ChainFlags::default() }.read(None)?;
    let text = |genesis: Option<GenesisHash>| genesis.map(|genesis| genesis.to_string()).unwrap_or_default();
    for (name, kept, given) in [
        ("chain", kept.chain.url, args.chain.url.clone()),
        ("genesis", text(kept.chain.genesis.or(args.chain.genesis)), text(args.chain.genesis)),
        ("run", kept.run.to_string(), args.run.to_string()),
    ] {
        ensure!(
            kept == given,
            "{} names the {name} {kept}, and --{name} or METTLE_{} names {given}: money would go to one, and what is made \
             with it to the other. Leave it out, or use another --dir",
            settings.display(),
            name.to_uppercase()
        );
    }
    Ok(args)
}

async fn make_seat(
    role: Role,
    command: InitSeat,
    peer: Option<PeerFile>,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    let directory = command.dir.clone().unwrap_or_else(|| format!("mettle-{role}").into());
    let known = directory.join("settings.toml").exists();
    ensure!(
        known || role == Role::Miner || command.bucket.store.is_some(),
        "a validator needs a bucket: add --store, --bucket, --access-key, --secret-file and --endpoint (docs/store.md)"
    );
    let flags = ChainFlags {
        config: known.then(|| directory.join("settings.toml")),
        chain: command.chain.clone(),
        genesis: command.genesis,
        run: command.run,
    };
    let args = read_flags(&flags)?;
    // Before the first write: a wrong URL leaves no files.
    let mut session = SigningSession::open(&args.chain).await?;
    let run = match known || command.run.is_some() {
        true => args.run,
        false => only_run(&*session.chain).await?,
    };
    let status = session.chain.status(run).await?;

    let home = Home::make(&directory)?;
    for (file, what) in [(&home.coldkey, "owns the stake"), (&home.hotkey, "signs the daily work")] {
        make_key(file, what, command.password_file.as_deref(), output)?;
    }
    if known {
        output.note(&format!("The settings in {} are kept as they are.", home.settings.display()))?;
    } else {
        write_settings(&command, &home, &args.chain.url, run, peer)?;
        output.note(&format!("Wrote {}.", home.settings.display()))?;
    }

    output.note("Checking what the node needs.")?;
    let failed = doctor::failures(&home.settings, role, output).await?;
    if !failed.is_empty() {
        output.note(failed.trim_end())?;
        ensure!(
            command.force,
            "a check failed, and nothing was signed: correct it and enter the command again, or add --force"
        );
    }

    let hotkey = KeySource::File(home.hotkey.clone()).hotkey()?;
    let already = account::seat_of(&*session.chain, run, &hotkey).await?;
    let stake = command.stake.unwrap_or(Amount(status.run.terms.stake_min(role)));
    let endpoint = match (&already, &command.bucket.endpoint) {
        (Some(seat), _) => seat.endpoint.clone(),
        (None, Some(endpoint)) => endpoint.clone(),
        (None, None) if args.store.is_none() => peers::endpoint(&home.data)?,
        (None, None) => {
            bail!("the settings name a bucket: add --endpoint with the URL at which everyone reads it")
        }
    };
    if already.is_none() {
        let price = match role {
            Role::Miner => status.miners.price,
            Role::Validator => status.validators.price,
        };
        // The price rises while others register.
        let price = Amount(price.saturating_mul(2));
        let needed = [price, HOTKEY_FUNDS, FEES_RESERVE].into_iter().fold(stake, Amount::saturating_add);
        let coldkey = KeySource::File(home.coldkey.clone()).account()?;
        let payer = Payer { from: command.from.as_deref(), yes: command.yes, whose: "the coldkey" };
        payer.pay(&mut session, &coldkey, needed, &home.directory, output).await?;
    }
    let (password, yes) = (command.password_file, command.yes);
    let seat = Register::new(role, &home.settings, &home.coldkey, password, stake, endpoint.clone(), yes);
    register(seat, output).await?;

    let (program, settings) = (daemon(role), home.settings.display());
    let value = json!({ "settings": home.settings, "directory": home.directory, "endpoint": endpoint });
    let next = format!(
        "\nStart it with `{program} --config {settings}`. `mettle doctor`, `mettle status` and `mettle why` take the same \
         `--config`."
    );
    Ok(output.result(&next, value)?)
}

fn daemon(role: Role) -> &'static str {
    match role {
        Role::Miner => "miner start",
        Role::Validator => "validator serve",
    }
}

async fn only_run(chain: &dyn Chain) -> anyhow::Result<RunId> {
    match chain.runs().await?[..] {
        [run] => Ok(run),
        [] => bail!("there is no run on this chain yet"),
        ref runs => {
            bail!("this chain has {} runs: `mettle run list` shows them; choose one with --run", runs.len())
        }
    }
}

fn write_settings(
    command: &InitSeat,
    home: &Home,
    chain: &str,
    run: RunId,
    peer: Option<PeerFile>,
) -> anyhow::Result<()> {
    let password_file = command.password_file.as_deref().map(absolute).transpose()?;
    let settings = File {
        chain: Some(chain.to_owned()),
        genesis: command.genesis,
        run: Some(run.0),
        key: Some(home.hotkey.display().to_string()),
        password_file,
        directory: Some(home.data.clone()),
        device: Some(toml::Value::String(command.device.clone())),
        store: command.bucket.store()?,
        peer,
        ..File::default()
    };
    Ok(write_atomic(&home.settings, toml::to_string_pretty(&settings)?.as_bytes())?)
}

/// Creates a key file if it is missing. `what` is the key's purpose.
fn make_key(
    file: &Path,
    what: &str,
    password_file: Option<&Path>,
    output: &mut Output<'_>,
) -> anyhow::Result<()> {
    if !file.exists() {
        keys::create(file, password_file, &Key::generate()?)?;
        output.note(&format!("Wrote {}, which {what}. {}", file.display(), keys::KEEP_A_COPY))?;
    }
    Ok(())
}

/// The payer of an account's missing balance.
struct Payer<'a> {
    /// A key; by default //Alice on a development chain.
    from: Option<&'a str>,
    yes: bool,
    /// The receiving account, as in "the coldkey".
    whose: &'a str,
}

impl Payer<'_> {
    /// Ensures that `account` has at least `needed`.
    async fn pay(
        &self,
        session: &mut SigningSession,
        account: &Account,
        needed: Amount,
        home: &Path,
        output: &mut Output<'_>,
    ) -> anyhow::Result<()> {
        let free = session.chain.balance(account).await?.free;
        if needed <= free {
            return Ok(());
        }
        let (missing, one) = (needed.saturating_sub(free).0, Amount::mtl(1).0);
        let lacking = Amount(missing.div_ceil(one).saturating_mul(one));
        let (whose, name) = (self.whose, address(account));
        let from = match self.from {
            Some(from) => from,
            None if session.chain.is_development() => FAUCET,
            None => bail!(
                "{whose} {name} has {free}, and needs {needed} with fees. Send {lacking} to it and enter the same command \
                 again, or name the account that pays with --from; keys and settings stay in {}",
                home.display()
            ),
        };
        let transfer = TransactionPlan {
            what: format!("move {lacking} to {whose} {name}"),
            calls: vec![Call::Transfer { to: *account, amount: lacking }],
            signer: Signer {
                source: from.parse()?,
                password_file: None,
                whose: "the account that pays",
                proxy_of: None,
                confirm: ConfirmArgs { yes: self.yes, ..ConfirmArgs::default() },
            },
            then: vec![format!("it pays what follows and its fees; the rest stays with {whose}")],
        };
        session.sign(output, &transfer).await.map(drop)
    }
}
