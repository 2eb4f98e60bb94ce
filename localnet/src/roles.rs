//! The processes of a network, as subcommands of this one executable: `localnet role chain`, `role node …`, `role
//! store`, `role miner …`, `role validator …`; and, for networks in containers, `role plan`, `role set-up` and `role
//! check`.

use crate::{
    buckets,
    containers::{self, Check, MakePlan, SetUp},
    idle,
    layout::{BucketPlan, ORIGIN, Plan, SeatPlan},
};
use adversaries::act::ActingStrategy;
use anyhow::{Context as _, bail};
use clap::Subcommand;
use daemon::{Follower, program};
use embedded_chain::{Config, EmbeddedChain, Sealing};
use protocol::identity::Signer;
use s3_server::{AdminConfig, BucketConfig, S3Server, ServerConfig};
use std::{
    ffi::OsString,
    io::Read as _,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::Stdio,
    sync::Arc,
    time::Duration,
};

#[derive(Debug, Subcommand)]
pub enum Role {
    /// The chain: the real runtime behind the real JSON-RPC, for development.
    Chain(ChainRole),
    /// A program that is stopped when its parent ends: a real node.
    Node(NodeRole),
    /// The store: an S3 server with one bucket and one key for each seat.
    Store(StoreRole),
    /// The `miner` program.
    Miner(Rest),
    /// The `validator` program.
    Validator(Rest),
    /// A miner or validator with the strategy of an adversary.
    Adversary(Box<AdversaryRole>),
    /// Write the plan of a network in containers, once.
    Plan(MakePlan),
    /// Create the run and register the seats of a planned network; steps that are done already are skipped.
    SetUp(SetUp),
    /// Check the health of a container.
    Check(Check),
}

#[derive(Debug, clap::Args)]
pub struct AdversaryRole {
    /// The name of the strategy.
    pub name: String,
    /// Counts the seats of this name, from 0.
    #[arg(long, default_value_t = 0)]
    pub index: u16,
    /// Validators in the network.
    #[arg(long, default_value_t = 3)]
    pub validators: u16,
    /// The directory through which colluding seats exchange values.
    #[arg(long)]
    pub mailbox: PathBuf,
    #[command(flatten)]
    pub start: miner::start::Start,
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
    pub listen: SocketAddr,
    #[arg(long)]
    pub block_millis: u64,
    /// For tests: make a block as soon as the processes of the network in this directory wait for it, at the earliest
    /// after --block-millis
    #[arg(long, value_name = "DIR")]
    pub when_idle: Option<PathBuf>,
    #[arg(long, default_value_t = 0)]
    pub finality_lag: u32,
    #[arg(long)]
    pub with_parent: bool,
}

#[derive(Debug, clap::Args)]
pub struct StoreRole {
    /// The plan of the network: the buckets and their keys.
    #[arg(long)]
    pub plan: PathBuf,
    /// The directory of the objects.
    #[arg(long)]
    pub data: PathBuf,
    #[arg(long)]
    pub with_parent: bool,
}

#[derive(Debug, clap::Args)]
pub struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub arguments: Vec<OsString>,
}

/// Runs a role until it is stopped.
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

/// Runs an adversary: the honest program with another strategy.
async fn adversary(role: AdversaryRole) -> anyhow::Result<()> {
    let AdversaryRole { name, index, validators, mailbox, start } = role;
    if adversaries::kind(&name).is_none() {
        bail!("there is no strategy {name}");
    }
    let mailbox = adversaries::SharedMailbox::Directory(mailbox);
    let setup = adversaries::Setup { index, validators, mailbox, ..adversaries::Setup::default() };
    tracing::info!(strategy = name, index, "this seat is an adversary");
    if let Some(adversary) = adversaries::miner(&name, &setup) {
        let strategy = |opened: &daemon::NodeContext| -> Box<dyn miner::strategy::Strategy> {
            let signer = Signer::new(opened.key.clone(), opened.chain.genesis());
            Box::new(ActingStrategy::new(adversary, opened.follower.clone(), signer, opened.seat.id.uid))
        };
        return miner::start::start(start, Box::new(strategy)).await;
    }
    if let Some(strategy) = adversaries::validator(&name, &setup) {
        let miner::start::Start { flags, metrics, windows, ranks: _, with_parent } = start;
        let serve = validator::cli::Serve { flags, metrics, windows, with_parent };
        let changed = |mut context: daemon::NodeContext| {
            if !strategy.computes() {
                // It does not merge, so it needs no merge buffer.
                context.follower = Arc::new(Follower { keeps_buffer: false, ..(*context.follower).clone() });
            }
            Ok((context, strategy))
        };
        return validator::cli::start(serve, Box::new(changed)).await;
    }
    bail!("there is no strategy {name}")
}

/// Error context of a chain that ended.
const STOPPED: &str = "the chain cannot go on";

async fn chain(role: ChainRole) -> anyhow::Result<()> {
    if role.with_parent {
        program::exit_with_parent();
    }
    let block_interval = Duration::from_millis(role.block_millis);
    let mut config = Config {
        listen: role.listen,
        dir: Some(role.dir),
        block_interval,
        finality_lag: role.finality_lag,
        ..Config::default()
    };
    if role.when_idle.is_some() {
        config.sealing = Sealing::Manual;
        // No block is made sooner, so that the chain's time matches the clock.
        config.genesis_patch =
            Some(serde_json::json!({ "authorities": { "slotMillis": role.block_millis } }));
    }
    let chain = EmbeddedChain::start(config).await.context("could not start the chain")?;
    tracing::info!(url = chain.url(), "the development chain is up");
    let (ask, mut asked) = tokio::sync::mpsc::channel(1);
    if let Some(directory) = role.when_idle {
        let watch = std::thread::Builder::new().name("idle".into());
        watch.spawn(move || idle::ask_for_blocks(&directory, block_interval, &ask))?;
    }
    let mut failed = std::pin::pin!(chain.failed());
    let mut stop = std::pin::pin!(program::stop_requested());
    loop {
        tokio::select! {
            () = &mut stop => {
                chain.shutdown().await;
                return Ok(());
            }
            // The chain still answers but makes no more blocks, so the process ends with the reason.
            error = &mut failed => return Err(error).context(STOPPED),
            Some(made) = asked.recv() => {
                chain.seal_now().await.context(STOPPED)?;
                // The requesting thread waits for this.
                let _ = made.send(());
            }
        }
    }
}

/// Maximum time for a node to stop.
const NODE_STOPS_WITHIN: Duration = Duration::from_secs(4);

/// Runs the program until it ends, this process is stopped, or its parent ends.
async fn node(role: NodeRole) -> anyhow::Result<()> {
    let (tell, orphaned) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = [0; 64];
        while stdin.read(&mut buffer).is_ok_and(|read| 0 < read) {}
        // The receiver was dropped if the program has ended by itself.
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
        // SIGTERM lets it close its database. The standard library has no call for it.
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
    let plan = Plan::read(&role.plan)?;
    let plan = plan.with_context(|| format!("there is no plan at {}", role.plan.display()))?;
    let server =
        S3Server::start(store_config(&plan, role.data)).await.context("could not start the store")?;
    // The bucket of an adversary may answer readers with faults.
    let validators = plan.seats_of(protocol::Role::Validator).count();
    let validators = u16::try_from(validators).unwrap_or(u16::MAX);
    for seat in plan.seats.iter().filter(|seat| !seat.bucketless) {
        let setup = adversaries::Setup { validators, ..adversaries::Setup::default() };
        if let Some(adversary) = adversaries::miner(&seat.strategy, &setup) {
            server.inject(&seat.name, adversary.faults())?;
        }
    }
    tracing::info!(endpoint = server.endpoint(), "the store is up");
    tokio::select! {
        () = program::stop_requested() => {}
        () = buckets::follow(&role.plan, &server) => {}
    }
    server.shutdown().await;
    Ok(())
}

/// Returns the settings of a network's store: a bucket for the origin and for each seat.
pub(crate) fn store_config(plan: &Plan, data: PathBuf) -> ServerConfig {
    let (access_key, secret_key) = &plan.origin_keys;
    let mut buckets = vec![BucketConfig::new(ORIGIN, access_key, secret_key)];
    let of_seat = |seat: &SeatPlan| BucketConfig::new(&seat.name, &seat.access_key, &seat.secret_key);
    buckets.extend(plan.seats.iter().filter(|seat| !seat.bucketless).map(of_seat));
    let of_guest =
        |bucket: &BucketPlan| BucketConfig::new(&bucket.name, &bucket.access_key, &bucket.secret_key);
    buckets.extend(plan.buckets.iter().map(of_guest));
    // It listens on every address only if its seats are on other machines.
    let host: Option<IpAddr> = plan.host.parse().ok();
    let ip = host.filter(IpAddr::is_loopback).unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let admin = |(port, token)| AdminConfig { listen: SocketAddr::from(([127, 0, 0, 1], port)), token };
    ServerConfig {
        listen: SocketAddr::new(ip, plan.store_port),
        data_dir: Some(data),
        admin: plan.store_admin.clone().map(admin),
        ..ServerConfig::temporary(buckets)
    }
}
