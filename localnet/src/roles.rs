//! The processes of a network, as subcommands of this one executable: `localnet role chain`, `role store`, `role miner …`, `role validator …`.

use anyhow::Context as _;
use clap::Subcommand;
use embedded_chain::{Config, EmbeddedChain};
use seat::program;
use serde::{Deserialize, Serialize};
use std::{ffi::OsString, net::SocketAddr, path::PathBuf, time::Duration};
use store::server::{AdminConfig, BucketConfig, S3Server, ServerConfig};

#[derive(Debug, Subcommand)]
pub enum Role {
    /// The chain: the real runtime behind the real JSON-RPC, for development.
    Chain(ChainRole),
    /// The store: an S3 server with one bucket and one key for each seat.
    Store(StoreRole),
    /// The `miner` program.
    Miner(Rest),
    /// The `validator` program.
    Validator(Rest),
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
    pub port: u16,
    pub dir: PathBuf,
    /// Name, access key, secret key.
    pub buckets: Vec<(String, String, String)>,
    /// Where faults are ordered, and the token that it takes; tests use it.
    pub admin: Option<(u16, String)>,
}

/// Runs a role until it is told to stop.
pub fn run(role: Role) -> std::process::ExitCode {
    match role {
        Role::Chain(role) => program::run_to_exit(chain(role)),
        Role::Store(role) => program::run_to_exit(store(role)),
        Role::Miner(rest) => miner::cli::main_with(named("miner", rest)),
        Role::Validator(rest) => validator::cli::main_with(named("validator", rest)),
    }
}

fn named(name: &str, rest: Rest) -> Vec<OsString> {
    let mut arguments = vec![OsString::from(name)];
    arguments.extend(rest.arguments);
    arguments
}

async fn chain(role: ChainRole) -> anyhow::Result<()> {
    if role.with_parent {
        program::end_with_parent();
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
        () = program::told_to_stop() => {
            chain.shutdown().await;
            Ok(())
        }
        // It still answers, but makes no more blocks: better gone, and said.
        error = failed => Err(error).context("the chain cannot go on"),
    }
}

async fn store(role: StoreRole) -> anyhow::Result<()> {
    if role.with_parent {
        program::end_with_parent();
    }
    let bytes = std::fs::read(&role.config)
        .with_context(|| format!("could not read the store's settings {}", role.config.display()))?;
    let settings: StoreSettings =
        serde_json::from_slice(&bytes).context("the store's settings are damaged")?;
    let buckets =
        settings.buckets.iter().map(|(name, access, secret)| BucketConfig::new(name, access, secret));
    let config = ServerConfig {
        listen: SocketAddr::from(([127, 0, 0, 1], settings.port)),
        data_dir: Some(settings.dir.clone()),
        admin: settings
            .admin
            .clone()
            .map(|(port, token)| AdminConfig { listen: SocketAddr::from(([127, 0, 0, 1], port)), token }),
        ..ServerConfig::in_memory(buckets.collect())
    };
    let server = S3Server::start(config).await.context("could not start the store")?;
    tracing::info!(endpoint = server.endpoint(), "the store is up");
    program::told_to_stop().await;
    server.shutdown().await;
    Ok(())
}
