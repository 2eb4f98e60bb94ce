//! The command line: settings in, a running miner out.

use crate::progress::SnapshotInterval;
use crate::run::{Miner, ShutdownHandle};
use crate::strategy::{DefaultStrategy, Strategy};
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;
use nn::{DeviceChoice, Trainer};
use node::SyncDriver;
use node::{Flags, Metrics, NodeContext, Settings, config::TrainFile, metrics::MetricsFlag, moved, program};
use protocol::Role;
use std::{ffi::OsString, process::ExitCode, sync::Arc, time::Duration};

/// Trains on the data that the chain assigns, and is paid by what the work was worth.
#[derive(Debug, Parser)]
#[command(name = "miner", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mine window after window, until Ctrl-C.
    Start(Start),
    /// A command that moved to `mettle`.
    #[command(external_subcommand)]
    Moved(Vec<OsString>),
}

#[derive(Clone, Debug, clap::Args)]
pub struct Start {
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
        Command::Moved(arguments) => moved::forward(Role::Miner, &arguments),
        Command::Start(start) => {
            self::start(start, Box::new(|opened| Ok((opened, Box::new(DefaultStrategy))))).await
        }
    }
}

/// Puts another store, chain or strategy in the place of those that the settings name.
pub type Change = Box<dyn FnOnce(NodeContext) -> anyhow::Result<(NodeContext, Box<dyn Strategy>)>>;

/// Mines until Ctrl-C, with what `changed` makes of the opened node.
pub fn start(start: Start, changed: Change) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(mine_until_told(start, changed))
}

async fn mine_until_told(start: Start, changed: Change) -> anyhow::Result<()> {
    if start.with_parent {
        program::exit_with_parent();
    }
    let settings = Settings::read(&start.flags)?;
    let leaving = Arc::new(ShutdownHandle::default());
    let mut stop = program::StopSignal::listen();
    tokio::select! {
        done = mine(settings, start, changed, leaving.clone()) => return done,
        () = stop.told() => {}
    }
    if leaving.ask() {
        tracing::info!("stopping after this step, with a snapshot; once more, and it stops at once");
        let left = async {
            while !leaving.has_left() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::select! {
            () = left => {}
            () = stop.told() => {}
        }
    }
    tracing::info!("stopped; what is on disk is whole, and the next start goes on from it");
    Ok(())
}

/// Between two looks whether the trainer has left.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

async fn mine(
    settings: Settings,
    start: Start,
    changed: Change,
    leaving: Arc<ShutdownHandle>,
) -> anyhow::Result<()> {
    // First, so that whoever watches sees a role that is starting.
    let mut metrics = match start.metrics.metrics {
        Some(address) => Some(Metrics::serve(address, Role::Miner).await?),
        None => None,
    };
    let (mut opened, strategy) = changed(node::open(&settings, Role::Miner).await?)?;
    if let Some(metrics) = &mut metrics {
        metrics.follow(&mut opened);
    }
    let mut recipe = opened.spec.recipe.clone();
    recipe.batch = settings.train.batch_sequences.unwrap_or(recipe.batch).max(1);
    recipe.learning_rate = settings.train.learning_rate.unwrap_or(recipe.learning_rate);
    recipe.optimiser = settings.train.optimiser.unwrap_or(recipe.optimiser);
    recipe.micro_batch =
        settings.train.micro_batch_sequences.unwrap_or(recipe.micro_batch).clamp(1, recipe.batch);
    let device = DeviceChoice::parse(&settings.device)?;
    let path = settings.directory.join("model.state");
    let (sync_driver, _) = SyncDriver::open(opened.follower.clone(), path, &mut opened.journal).await?;
    let mut trainer = Trainer::new(&opened.spec.model, &recipe, device, &sync_driver.state.theta)
        .context("could not make the trainer (its micro_batch is micro_batch_sequences under [train])")?;
    trainer.refuse_loss_above(settings.train.loss_max.unwrap_or_else(|| loss_max(opened.spec.model.vocab)));
    tracing::info!(uid = opened.seat.id.uid.0, window = sync_driver.window().0, "mining");

    let miner = Miner {
        node: opened.into_node(sync_driver, settings.directory.clone(), start.windows),
        trainer: Some(trainer),
        strategy,
        commit_margin_blocks: settings.train.commit_margin_blocks.unwrap_or(3),
        batch_sequences: recipe.batch,
        snapshot_every: every(&settings.train),
        leaving,
    };
    Ok(miner.run().await?)
}

/// How often a snapshot is written inside a window, as the settings say. Five minutes lost is little where a window takes hours, and a snapshot
/// of 12 bytes a parameter is a second or two of them for a billion.
fn every(train: &TrainFile) -> SnapshotInterval {
    match (train.snapshot_every_steps, train.snapshot_every_seconds) {
        (Some(steps), _) => SnapshotInterval::Steps(steps),
        (None, Some(0)) => SnapshotInterval::Never,
        (None, seconds) => SnapshotInterval::Time(Duration::from_secs(seconds.unwrap_or(300))),
    }
}

/// The loss that no sound training gets to, in nats per token: twice what it costs to know nothing at all, `ln vocab`. A fresh model is there or
/// a little above, a trained one far below, and hard data does not double it; a model that is confidently wrong does.
fn loss_max(vocab: usize) -> f64 {
    2.0 * (vocab.max(2) as f64).ln()
}
