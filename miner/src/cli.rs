//! The command line: settings in, a running miner out.

use crate::conduct::{Conduct, Honest};
use crate::prepare::{self, Prepare};
use crate::receipts::{self, Receipts};
use crate::run::Miner;
use anyhow::Context as _;
use clap::{Parser, Subcommand};
use model::{DeviceChoice, Trainer};
use protocol::Role;
use replica::Holder;
use seat::{Flags, Metrics, Opened, Settings, Verb, metrics::MetricsFlag, program};
use std::process::ExitCode;

/// Trains on the data that the chain assigns, and is paid by what the work was worth.
#[derive(Debug, Parser)]
#[command(name = "miner", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Seat(Verb),
    /// Mine window after window, until Ctrl-C.
    Start(Start),
    Receipts(Receipts),
    /// Prepare training data.
    #[command(subcommand)]
    Dataset(DatasetCommand),
}

#[derive(Debug, Subcommand)]
enum DatasetCommand {
    /// Turn text into tokenised shards and a manifest.
    Prepare(Prepare),
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
pub fn main_with(arguments: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    exit(Cli::parse_from(arguments))
}

fn exit(cli: Cli) -> ExitCode {
    program::run_to_exit(run(cli))
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    match cli.command {
        Command::Seat(verb) => seat::verbs::run(Role::Miner, verb).await,
        Command::Dataset(DatasetCommand::Prepare(prepare)) => {
            tokio::task::spawn_blocking(move || prepare::run(prepare)).await??;
            Ok(())
        }
        Command::Receipts(receipts) => {
            program::on_paper(receipts.json, async |paper| receipts::act(receipts, paper).await).await
        }
        Command::Start(start) => self::start(start, |opened| Ok((opened, Box::new(Honest)))).await,
    }
}

/// Mines until Ctrl-C. `changed` may put another store, chain or conduct in the place of those that the settings name.
pub async fn start(
    start: Start,
    changed: impl FnOnce(Opened) -> anyhow::Result<(Opened, Box<dyn Conduct>)>,
) -> anyhow::Result<()> {
    if start.with_parent {
        program::end_with_parent();
    }
    let settings = Settings::read(&start.flags)?;
    tokio::select! {
        done = mine(settings, start, changed) => done,
        () = program::told_to_stop() => {
            tracing::info!("stopping; what is on disk is whole, and the next start goes on from it");
            Ok(())
        }
    }
}

async fn mine(
    settings: Settings,
    start: Start,
    changed: impl FnOnce(Opened) -> anyhow::Result<(Opened, Box<dyn Conduct>)>,
) -> anyhow::Result<()> {
    // First, so that whoever watches sees a role that is starting.
    let mut metrics = match start.metrics.metrics {
        Some(address) => Some(Metrics::serve(address, Role::Miner).await?),
        None => None,
    };
    let (mut opened, conduct) = changed(seat::open(&settings, Role::Miner).await?)?;
    if let Some(metrics) = &mut metrics {
        metrics.follow(&mut opened);
    }
    let traffic = opened.traffic();
    let mut recipe = opened.spec.recipe.clone();
    recipe.batch = settings.train.batch_sequences.unwrap_or(recipe.batch).max(1);
    recipe.learning_rate = settings.train.learning_rate.unwrap_or(recipe.learning_rate);
    let device = DeviceChoice::parse(&settings.device)?;
    let path = settings.directory.join("model.state");
    let (holder, _) = Holder::open(opened.follower.clone(), path, &mut opened.journal).await?;
    let trainer = Trainer::new(&opened.spec.model, &recipe, device, &holder.state.theta)
        .context("could not make the trainer")?;
    tracing::info!(uid = opened.seat.id.uid.0, window = holder.window().0, "mining");

    let miner = Miner {
        holder,
        store: opened.store,
        dataset: opened.dataset,
        trainer: Some(trainer),
        key: opened.key.signing_key().clone(),
        seat: opened.seat,
        directory: settings.directory,
        journal: opened.journal,
        conduct,
        commit_margin_blocks: settings.train.commit_margin_blocks.unwrap_or(3),
        batch_sequences: recipe.batch,
        traffic,
        windows_max: start.windows,
    };
    Ok(miner.run().await?)
}
