//! The processes of a network, as subcommands of this one executable: `localnet role chain`, `role node …`, `role store`, `role miner …`,
//! `role validator …`; and, for containers, what prepares a network whose processes somebody else starts: `role plan`, `role set-up`, `role check`.

use crate::{
    containers::{self, Check, MakePlan, SetUp},
    layout::{ORIGIN, Plan},
};
use anyhow::{Context as _, bail};
use clap::Subcommand;
use embedded_chain::{Config, EmbeddedChain};
use node::program;
use s3_server::{AdminConfig, BucketConfig, S3Server, ServerConfig};
use serde::{Deserialize, Serialize};
use std::{
    ffi::OsString,
    io::Read as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

#[derive(Debug, Subcommand)]
pub enum Role {
    /// The chain: the real runtime behind the real JSON-RPC, for development.
    Chain(ChainRole),
    /// A program that knows nothing of its parent, kept from outliving it: a node.
    Node(NodeRole),
    /// The store: an S3 server with one bucket and one key for each seat.
    Store(StoreRole),
    /// The `miner` program.
    Miner(Rest),
    /// The `validator` program.
    Validator(Rest),
    /// A miner or validator that cheats.
    Adversary(Box<AdversaryRole>),
    /// Write down what a network in containers is made of, once.
    Plan(MakePlan),
    /// Create the run and register the seats of a planned network; what is done already is left as it is.
    SetUp(SetUp),
    /// Say whether something is up: for a container's health.
    Check(Check),
}

#[derive(Debug, clap::Args)]
pub struct AdversaryRole {
    /// Which one.
    pub name: String,
    /// Counts the seats of this name, from 0.
    #[arg(long, default_value_t = 0)]
    pub index: u16,
    /// Validators in the network.
    #[arg(long, default_value_t = 3)]
    pub validators: u16,
    /// Where colluding seats meet.
    #[arg(long)]
    pub den: PathBuf,
    /// The port at which it answers its readers itself.
    #[arg(long)]
    pub door: Option<u16>,
    #[command(flatten)]
    pub start: miner::cli::Start,
}

#[derive(Debug, clap::Args)]
pub struct NodeRole {
    #[arg(long)]
    pub program: PathBuf,
    #[arg(last = true)]
    pub arguments: Vec<OsString>,
}

#[derive(Debug, clap::Args)]
pub struct ChainRole {
    #[arg(long)]
    pub dir: PathBuf,
    #[arg(long)]
    pub port: u16,
    #[arg(long)]
    pub block_millis: u64,
    #[arg(long, default_value_t = 0)]
    pub finality_lag: u32,
    #[arg(long)]
    pub with_parent: bool,
}

#[derive(Debug, clap::Args)]
pub struct StoreRole {
    /// The server's settings, as JSON.
    #[arg(long)]
    pub config: PathBuf,
    #[arg(long)]
    pub with_parent: bool,
}

#[derive(Debug, clap::Args)]
pub struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// What the store's process reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StoreSettings {
    pub listen: SocketAddr,
    pub dir: PathBuf,
    /// Name, access key, secret key.
    pub buckets: Vec<(String, String, String)>,
    /// Where faults are ordered, and the token that it takes; tests use it.
    pub admin: Option<(u16, String)>,
}

impl StoreSettings {
    /// The store of a plan, with its objects in `dir`. It listens to everyone only where its seats are elsewhere.
    pub fn of(plan: &Plan, dir: PathBuf) -> StoreSettings {
        let host: Option<IpAddr> = plan.store_host.parse().ok();
        let ip = host.filter(IpAddr::is_loopback).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
        let (access_key, secret_key) = plan.origin_keys.clone();
        let mut buckets = vec![(ORIGIN.to_owned(), access_key, secret_key)];
        buckets.extend(
            plan.seats
                .iter()
                .map(|seat| (seat.name.clone(), seat.access_key.clone(), seat.secret_key.clone())),
        );
        let listen = SocketAddr::new(ip, plan.store_port);
        StoreSettings { listen, dir, buckets, admin: plan.store_admin.clone() }
    }

    /// Replaces the file, which only this user can read.
    pub fn write(&self, file: &Path) -> anyhow::Result<()> {
        Ok(node::durable::write_atomic(file, &serde_json::to_vec_pretty(self)?)?)
    }
}

/// Runs a role until it is told to stop.
pub fn run(role: Role) -> std::process::ExitCode {
    match role {
        Role::Chain(role) => program::run_to_exit(Box::pin(chain(role))),
        Role::Store(role) => program::run_to_exit(Box::pin(store(role))),
        Role::Miner(rest) => miner::cli::main_with(named("miner", rest)),
        Role::Validator(rest) => validator::cli::main_with(named("validator", rest)),
        Role::Adversary(role) => program::run_to_exit(Box::pin(adversary(*role))),
        Role::Node(role) => program::run_to_exit(Box::pin(node(role))),
        Role::Plan(make) => program::run_to_exit(Box::pin(containers::plan(make))),
        Role::SetUp(set_up) => program::run_to_exit(Box::pin(containers::set_up(set_up))),
        Role::Check(check) => program::run_to_exit(Box::pin(containers::check(check))),
    }
}

fn named(name: &str, rest: Rest) -> Vec<OsString> {
    let mut arguments = vec![OsString::from(name)];
    arguments.extend(rest.arguments);
    arguments
}

/// An adversary is the honest program with another strategy, but for the lazy voter, which is less than a program.
async fn adversary(role: AdversaryRole) -> anyhow::Result<()> {
    let AdversaryRole { name, index, validators, den, door, start } = role;
    if adversaries::kind(&name).is_none() {
        bail!("nobody is called {name}");
    }
    let mailbox = adversaries::SharedMailbox::Directory(den);
    let setup = adversaries::Setup { index, validators, mailbox, ..adversaries::Setup::default() };
    tracing::info!(name, index, "this seat cheats");
    if name == LAZY {
        return lazy(start, &setup).await;
    }
    let directory = node::Settings::read(&start.flags)?.directory;
    if let Some(adversary) = adversaries::miner(&name, &setup) {
        let door = door.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let changed =
            move |opened| Ok(adversaries::act::install_adversary(opened, adversary, &directory, door)?);
        return miner::cli::start(start, Box::new(changed)).await;
    }
    if let Some(strategy) = adversaries::validator(&name, &setup) {
        let miner::cli::Start { flags, metrics, windows, with_parent } = start;
        let serve = validator::cli::Serve { flags, metrics, windows, with_parent };
        return validator::cli::start(serve, Box::new(|context| Ok((context, strategy)))).await;
    }
    bail!("nobody is called {name}")
}

/// Whose program computes nothing.
const LAZY: &str = "lazy-voter";

async fn lazy(start: miner::cli::Start, setup: &adversaries::Setup) -> anyhow::Result<()> {
    if start.with_parent {
        program::exit_with_parent();
    }
    let settings = node::Settings::read(&start.flags)?;
    let mut strategy = adversaries::validator(LAZY, setup).context("nobody is lazy")?;
    let opened = node::open(&settings, protocol::Role::Validator).await?;
    let secret = opened.key.signing_key().to_bytes();
    let served = adversaries::idle::serve(
        &opened.follower,
        &opened.seat,
        &secret,
        &settings.directory,
        &mut *strategy,
    );
    tokio::select! {
        ended = served => Ok(ended?),
        () = program::stop_requested() => Ok(()),
    }
}

async fn chain(role: ChainRole) -> anyhow::Result<()> {
    if role.with_parent {
        program::exit_with_parent();
    }
    let config = Config {
        listen: SocketAddr::from(([127, 0, 0, 1], role.port)),
        dir: Some(role.dir),
        block_interval: Duration::from_millis(role.block_millis),
        finality_lag: role.finality_lag,
        ..Config::default()
    };
    let chain = EmbeddedChain::start(config).await.context("could not start the chain")?;
    tracing::info!(url = chain.url(), "the development chain is up");
    let failed = chain.failed();
    tokio::select! {
        () = program::stop_requested() => {
            chain.shutdown().await;
            Ok(())
        }
        // It still answers, but makes no more blocks: better gone, and said.
        error = failed => Err(error).context("the chain cannot go on"),
    }
}

/// How long a node may take to stop when told to.
const NODE_STOPS_WITHIN: Duration = Duration::from_secs(4);

/// Runs the program until it ends, we are told to stop, or our parent goes away.
async fn node(role: NodeRole) -> anyhow::Result<()> {
    let (tell, orphaned) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = [0; 64];
        while stdin.read(&mut buffer).is_ok_and(|read| 0 < read) {}
        // Nobody listens any more where the program has ended by itself.
        let _ = tell.send(());
    });
    let mut child = tokio::process::Command::new(&role.program)
        .args(&role.arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("could not start {}", role.program.display()))?;
    tokio::select! {
        status = child.wait() => bail!("{} has ended: {}", role.program.display(), status?),
        () = program::stop_requested() => {}
        _ = orphaned => {}
    }
    if let Some(id) = child.id() {
        // Politely, so that its database is closed. There is no call for this in the standard library.
        tokio::process::Command::new("kill").args(["-TERM", &id.to_string()]).status().await?;
    }
    if tokio::time::timeout(NODE_STOPS_WITHIN, child.wait()).await.is_err() {
        child.kill().await?;
    }
    Ok(())
}

async fn store(role: StoreRole) -> anyhow::Result<()> {
    if role.with_parent {
        program::exit_with_parent();
    }
    let bytes = std::fs::read(&role.config)
        .with_context(|| format!("could not read the store's settings {}", role.config.display()))?;
    let settings: StoreSettings =
        serde_json::from_slice(&bytes).context("the store's settings are damaged")?;
    let buckets =
        settings.buckets.iter().map(|(name, access, secret)| BucketConfig::new(name, access, secret));
    let config = ServerConfig {
        listen: settings.listen,
        data_dir: Some(settings.dir.clone()),
        admin: settings
            .admin
            .clone()
            .map(|(port, token)| AdminConfig { listen: SocketAddr::from(([127, 0, 0, 1], port)), token }),
        ..ServerConfig::in_memory(buckets.collect())
    };
    let server = S3Server::start(config).await.context("could not start the store")?;
    tracing::info!(endpoint = server.endpoint(), "the store is up");
    program::stop_requested().await;
    server.shutdown().await;
    Ok(())
}
