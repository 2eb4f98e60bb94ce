//! The command line: settings in, a serving validator out.

use crate::{
    commit_reveal::CommitRevealStore,
    gauntlet::Sketches,
    receipts::Receipts,
    salt::Salts,
    serve::Validator,
    strategy::{DefaultStrategy, Strategy},
    weight_vote::{Found, WeightVoteError, WeightVotes},
};
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;
use nn::Device;
use node::{Flags, Metrics, NodeContext, Settings, metrics::MetricsFlag, moved, program};
use node::{
    SyncDriver,
    durable::{self, DiskFullRetry},
};
use protocol::Role;
use std::{ffi::OsString, process::ExitCode};

/// Judges contributions by what they do to the loss, merges the best, and votes.
#[derive(Debug, Parser)]
#[command(name = "validator", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve window after window, until Ctrl-C.
    Serve(Serve),
    /// A command that moved to `mettle`.
    #[command(external_subcommand)]
    Moved(Vec<OsString>),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    pub flags: Flags,
    #[command(flatten)]
    pub metrics: MetricsFlag,
    /// Stop after so many windows.
    #[arg(long, value_name = "N")]
    pub windows: Option<u32>,
    /// Stop when standard input closes.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Runs the program named by this process's arguments.
pub fn main() -> ExitCode {
    exit(Cli::parse())
}

/// Runs the program as if it had been started with `arguments`, the program's name first.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    exit(Cli::parse_from(arguments))
}

fn exit(cli: Cli) -> ExitCode {
    program::run_to_exit(Box::pin(run(cli)))
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Moved(arguments) => moved::forward(Role::Validator, &arguments),
        Command::Serve(serve) => {
            self::start(serve, Box::new(|opened| Ok((opened, Box::new(DefaultStrategy))))).await
        }
    }
}

/// Puts another store, chain or strategy in the place of those that the settings name.
pub type Change = Box<dyn FnOnce(NodeContext) -> anyhow::Result<(NodeContext, Box<dyn Strategy>)>>;

/// Serves until Ctrl-C, with what `changed` makes of the opened node.
pub fn start(serve: Serve, changed: Change) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(serve_until_told(serve, changed))
}

async fn serve_until_told(serve: Serve, changed: Change) -> anyhow::Result<()> {
    if serve.with_parent {
        program::exit_with_parent();
    }
    let settings = Settings::read(&serve.flags)?;
    tokio::select! {
        done = self::serve(settings, serve, changed) => done,
        () = program::stop_requested() => {
            tracing::info!("stopping; what is on disk is whole, and the next start goes on from it");
            Ok(())
        }
    }
}

async fn serve(settings: Settings, serve: Serve, changed: Change) -> anyhow::Result<()> {
    // First, so that whoever watches sees a role that is starting.
    let mut metrics = match serve.metrics.metrics {
        Some(address) => Some(Metrics::serve(address, Role::Validator).await?),
        None => None,
    };
    let (mut opened, strategy) = changed(node::open(&settings, Role::Validator).await?)?;
    if let Some(metrics) = &mut metrics {
        metrics.follow(&mut opened);
    }
    let device: Device = settings.device.clone().try_into().context("device")?;
    let reputations = crate::serve::load_reputations(&settings.directory)?;
    let path = settings.directory.join("model.state");
    let (sync_driver, _) = SyncDriver::open(opened.follower.clone(), path, &mut opened.journal).await?;
    let evaluator = engines::evaluator(device, &opened.spec.model, &sync_driver.state.theta)
        .context("could not make the evaluator")?;
    tracing::info!(uid = opened.seat.id.uid.0, window = sync_driver.window().0, "serving");
    let secret = opened.key.signing_key().to_bytes();
    let load = || WeightVotes::load(&settings.directory, &secret, reputations.judged.is_some());
    let (weight_votes, found) = durable::retry_while_full(WeightVoteError::is_full, load).await?;
    if found == Found::Lost {
        tracing::warn!(
            directory = %settings.directory.display(),
            "the kept ballots are gone: weights that were committed to cannot be revealed, and earn no dividends"
        );
    }

    let run = opened.run();
    let receipts =
        Receipts::load(&settings.directory, run.id, &run.params, opened.key.signing_key().clone())?;
    let reputations = crate::serve::later(reputations, receipts.reputations());

    let validator = Validator {
        node: opened.into_node(sync_driver, settings.directory.clone(), serve.windows),
        evaluator: Some(evaluator),
        salts: Salts::new(&secret),
        weight_votes,
        commit_reveal: CommitRevealStore::load(&settings.directory, &secret)?,
        receipts,
        publishing: None,
        reputations,
        sketches: Sketches::default(),
        strategy,
        evaluations_max: settings.serve.evaluations_max.unwrap_or(64),
        held_out_sequences: settings.serve.held_out_sequences.unwrap_or(128),
        disk_full_retry: DiskFullRetry::default(),
    };
    Ok(validator.serve().await?)
}
