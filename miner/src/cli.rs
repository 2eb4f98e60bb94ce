//! The command line: settings in, a running miner out.

use crate::{
    progress::SnapshotInterval,
    run::{Miner, MinerOptions},
    shutdown::ShutdownHandle,
    strategy::{DefaultStrategy, Strategy},
};
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;
use nn::Device;
use node::{
    Flags, Metrics, NodeContext, Settings, SyncDriver, config::TrainFile, metrics::MetricsFlag, moved,
    program,
};
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
    Start(Box<Start>),
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
    /// Stop after this many windows.
    #[arg(long, value_name = "N")]
    pub windows: Option<u32>,
    /// Stop when standard input closes.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Runs the program named by this process's arguments.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the program as if it had been started with `arguments`, the program's name first.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    program::run_to_exit(Box::pin(run(Cli::parse_from(arguments))))
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Moved(arguments) => moved::forward(Role::Miner, &arguments),
        Command::Start(start) => self::start(*start, Box::new(|_| Box::new(DefaultStrategy))).await,
    }
}

/// Makes the strategy of an opened node.
pub type MakeStrategy = Box<dyn FnOnce(&NodeContext) -> Box<dyn Strategy>>;

/// Mines until Ctrl-C.
pub fn start(start: Start, strategy: MakeStrategy) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        if start.with_parent {
            program::exit_with_parent();
        }
        let settings = Settings::read(&start.flags)?;
        let shutdown = Arc::new(ShutdownHandle::default());
        let work = mine(settings, start, strategy, shutdown.clone());
        shutdown.run_until_stopped(Box::pin(work)).await
    })
}

async fn mine(
    settings: Settings,
    start: Start,
    strategy: MakeStrategy,
    shutdown: Arc<ShutdownHandle>,
) -> anyhow::Result<()> {
    // First, so that monitoring sees a node that is starting.
    let mut metrics = match start.metrics.metrics {
        Some(address) => Some(Metrics::serve(address, Role::Miner).await?),
        None => None,
    };
    let mut opened = node::open(&settings, Role::Miner).await?;
    let strategy = strategy(&opened);
    if let Some(metrics) = &mut metrics {
        metrics.follow(&opened.seat, &opened.follower, opened.traffic(), &mut opened.journal);
    }
    let mut recipe = opened.spec.recipe.clone();
    recipe.batch = settings.train.batch_sequences.unwrap_or(recipe.batch).max(1);
    recipe.learning_rate = settings.train.learning_rate.unwrap_or(recipe.learning_rate);
    recipe.optimiser = settings.train.optimiser.unwrap_or(recipe.optimiser);
    recipe.micro_batch =
        settings.train.micro_batch_sequences.unwrap_or(recipe.micro_batch).clamp(1, recipe.batch);
    let device: Device = settings.reading.device.clone().try_into().context("device")?;
    let path = settings.reading.directory.join("model.state");
    let (mut sync, _) = SyncDriver::open(opened.follower.clone(), path, &mut opened.journal).await?;
    let loss_max = settings.train.loss_max.unwrap_or_else(|| loss_max(opened.spec.model.vocab));
    let options = MinerOptions {
        commit_margin_blocks: settings.train.commit_margin_blocks.unwrap_or(3),
        batch_sequences: recipe.batch,
        ahead: settings.train.ahead.unwrap_or(0.5),
        snapshot_interval: snapshot_interval(&settings.train),
    };
    let model = opened.spec.model.clone();
    let blocking = sync.follower.blocking;
    let trainer = blocking.with(&mut sync.state, move |state| {
        let mut trainer = engines::trainer(device, &model, &recipe, &state.theta)?;
        trainer.refuse_loss_above(loss_max);
        Ok::<_, nn::ModelError>(trainer)
    });
    let trainer = trainer
        .await
        .context("could not make the trainer (its micro_batch is micro_batch_sequences under [train])")?;
    tracing::info!(uid = opened.seat.id.uid.0, window = sync.window().0, "mining");
    let node = opened.into_node(sync, settings.reading.directory, start.windows);
    let miner = Miner::open(node, trainer, strategy, options, shutdown).await?;
    Ok(miner.run().await?)
}

/// How often the training of a window is written to the disk. By default every five minutes: little where a window
/// takes hours, and a snapshot of 12 bytes per parameter takes a second or two for a billion of them.
fn snapshot_interval(train: &TrainFile) -> SnapshotInterval {
    match (train.snapshot_every_steps, train.snapshot_every_seconds) {
        (Some(steps), _) => SnapshotInterval::Steps(steps),
        (None, Some(0)) => SnapshotInterval::Never,
        (None, seconds) => SnapshotInterval::Time(Duration::from_secs(seconds.unwrap_or(300))),
    }
}

/// The loss above which training has diverged, in nats per token: twice that of uniform guesses, `ln vocab`. A fresh
/// model starts at or a little above `ln vocab`; hard data does not double it.
fn loss_max(vocab: usize) -> f64 {
    2.0 * (vocab.max(2) as f64).ln()
}
