//! The command line: converts settings into a running validator.

use crate::{
    evaluate::DeviceEvaluator,
    run::Validator,
    salt::Salts,
    signed_db::{LOSS, Origin, SignedDb},
    strategy::{DefaultStrategy, Strategy},
};
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use daemon::{
    Flags, Metrics, NodeContext, ServiceManager, Settings, SyncDriver,
    config::ServeFile,
    durable::{self, ballast::BALLAST_BYTES},
    metrics::MetricsFlag,
    program,
    traces::Collector,
};
use futures::future::LocalBoxFuture;
use nn::Device;
use protocol::Role;
use std::{ffi::OsString, process::ExitCode};
use zeroize::Zeroizing;

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
    Serve(Box<Serve>),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Serve {
    #[command(flatten)]
    pub flags: Flags,
    #[command(flatten)]
    pub metrics: MetricsFlag,
    /// Stop after N windows.
    #[arg(long, value_name = "N")]
    pub windows: Option<u32>,
    /// Stop when standard input closes.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Runs the program with this process's arguments.
pub fn main() -> ExitCode {
    exit(Cli::parse())
}

/// Runs the program with `arguments`, of which the first is its name.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    exit(Cli::parse_from(arguments))
}

fn exit(cli: Cli) -> ExitCode {
    program::run_to_exit(Box::pin(run(cli)))
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Serve(serve) => {
            start(*serve, Box::new(|context| Ok((context, Box::new(DefaultStrategy))))).await
        }
    }
}

/// Function that replaces the store, chain or strategy of the settings.
pub type Change = Box<dyn FnOnce(NodeContext) -> anyhow::Result<(NodeContext, Box<dyn Strategy>)>>;

/// Serves until Ctrl-C, with the node that `change` returns.
///
/// # Errors
/// If the settings are invalid, the seat cannot be opened, or the validator fails.
pub fn start(serve: Serve, change: Change) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        if serve.with_parent {
            program::exit_with_parent();
        }
        let settings = Settings::read(&serve.flags)?;
        tokio::select! {
            done = self::serve(settings, serve, change) => done,
            () = program::stop_requested() => {
                tracing::info!("stopping; files are complete, and the next start resumes from them");
                Ok(())
            }
        }
    })
}

async fn serve(settings: Settings, serve: Serve, change: Change) -> anyhow::Result<()> {
    let traces = Collector::from_environment()?;
    // First, so that `/health` reports a node during its start.
    let mut metrics = match serve.metrics.metrics {
        Some(address) => Some(Metrics::serve(address, Role::Validator).await?),
        None => None,
    };
    let device = settings.reading.device.clone().try_into::<Device>().context("device")?;
    // Fails here, before a checkpoint is fetched in vain.
    device.check()?;
    let mut service = ServiceManager::from_environment();
    let (mut context, strategy) = change(daemon::open(&settings, Role::Validator).await?)?;
    if let Some(metrics) = &mut metrics {
        let peers = context.peers.clone();
        metrics.follow(&context.seat, &context.follower, context.traffic(), peers, &mut context.journal);
    }
    service.follow(&mut context.journal);
    if let Some(traces) = traces {
        traces.follow(context.traced());
    }
    let path = settings.reading.directory.join("model.state");
    let (sync_driver, is_resumed) =
        SyncDriver::open(context.follower.clone(), path, &mut context.journal).await?;
    let evaluator = engines::evaluator(device, &context.spec.model, &sync_driver.state.theta)
        .context("could not make the evaluator")?;
    let (run, genesis) = (context.run(), context.chain.genesis());
    let directory = &settings.reading.directory;
    let ballast_bytes = settings.serve.ballast_bytes.unwrap_or(BALLAST_BYTES);
    let open = || async { SignedDb::open(directory, genesis, run.id, ballast_bytes) };
    let (signed, origin) = durable::retry_while_full(&context.journal.disk, open).await?;
    log_origin(&origin, is_resumed);
    tracing::info!(uid = context.seat.id.uid.0, window = sync_driver.window().0, "serving");
    service.ready();

    let seed = Zeroizing::new(context.key.to_bytes());
    let salts = Salts::new(&seed, &genesis);
    let evaluator = Box::new(DeviceEvaluator { evaluator, dataset: context.dataset.clone() });
    let ended = daemon::peers::ended(context.peers.clone());
    let node = context.into_node(sync_driver, directory.clone(), serve.windows);
    let mut validator = Validator::new(node, evaluator, signed, salts, strategy);
    let ServeFile { evaluations_max, held_out_sequences, held_out_first, .. } = settings.serve;
    let evaluation = &mut validator.evaluation;
    evaluation.contributions_max = evaluations_max.unwrap_or(evaluation.contributions_max);
    evaluation.held_out_sequences = held_out_sequences.unwrap_or(evaluation.held_out_sequences);
    evaluation.held_out_first = held_out_first.unwrap_or(evaluation.held_out_first);
    tokio::select! {
        served = validator.run() => Ok(served?),
        ended = ended => ended,
    }
}

/// A validator with a saved model has served before, and so had a database.
fn log_origin(origin: &Origin, is_resumed: bool) {
    match origin {
        Origin::Created if is_resumed => {
            tracing::warn!("this validator has served before, and its signed.redb is gone. {LOSS}");
        }
        Origin::Created | Origin::Found => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_gpus_are_refused_before_the_chain_is_opened() {
        for (device, first) in [("cuda:all", "cuda:0"), ("vulkan:all,f32", "vulkan:0")] {
            let flags =
                Flags { key: Some("//Alice".into()), device: Some(device.into()), ..Flags::default() };
            let settings = Settings::read(&flags).unwrap();
            let command = Serve { flags, metrics: MetricsFlag::default(), windows: None, with_parent: false };
            let change: Change = Box::new(|context| Ok((context, Box::new(DefaultStrategy))));
            let refused = format!("{:#}", serve(settings, command, change).await.unwrap_err());
            assert!(refused.contains("only a miner uses several"), "{refused}");
            assert!(refused.contains(&format!("name one device, such as {first}")), "{refused}");
        }
    }
}
