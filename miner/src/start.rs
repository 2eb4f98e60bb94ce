//! Mining as settings and flags say, until Ctrl-C.

use crate::{
    command::{CommandEngine, CommandGroup, CommandOptions},
    miner::{AHEAD, Miner, MinerOptions, RESIDUAL_SHARE},
    progress::SnapshotInterval,
    ranks::{self, Leader, Place},
    shutdown::ShutdownHandle,
    strategy::Strategy,
    train,
};
use anyhow::Context as _;
use daemon::{
    Flags, Metrics, NodeContext, ServiceManager, Settings, SyncDriver,
    config::{TrainEngine, TrainFile},
    metrics::MetricsFlag,
    program,
    traces::Collector,
};
use futures::future::LocalBoxFuture;
use model::{ModelConfig, Recipe};
use nn::{Device, ModelError, Trainer};
use protocol::Role;
use std::{sync::Arc, time::Duration};

#[derive(Clone, Debug, clap::Args)]
pub struct Start {
    #[command(flatten)]
    pub flags: Flags,
    #[command(flatten)]
    pub metrics: MetricsFlag,
    /// Stop after this many windows.
    #[arg(long, value_name = "N")]
    pub windows: Option<u32>,
    /// Train in N processes on this machine, a GPU each. Without it, `--device cuda:all` is one for each GPU, and ranks
    /// of a cluster's launcher are found.
    #[arg(long, value_name = "N")]
    pub ranks: Option<usize>,
    /// Stop when standard input closes.
    #[arg(long, hide = true)]
    pub with_parent: bool,
}

/// Function that creates the strategy of an opened node.
pub type MakeStrategy = Box<dyn FnOnce(&NodeContext) -> Box<dyn Strategy>>;

/// Mines until Ctrl-C.
///
/// # Errors
/// If the settings are invalid, the seat cannot be opened, or the miner fails.
pub fn start(start: Start, strategy: MakeStrategy) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    mine_until(start, strategy, Box::pin(std::future::pending()))
}

/// Mines until Ctrl-C or the end of `enough`.
pub(crate) fn mine_until(
    start: Start,
    strategy: MakeStrategy,
    enough: LocalBoxFuture<'static, ()>,
) -> LocalBoxFuture<'static, anyhow::Result<()>> {
    Box::pin(async move {
        if start.with_parent {
            program::exit_with_parent();
        }
        let settings = Settings::read(&start.flags)?;
        let (device, gpus) = ranks::device(&settings)?;
        let place = ranks::place(&settings.train, start.ranks, gpus, |name| std::env::var(name).ok())?;
        if let Place::Launched { launched, leader } = &place
            && launched.rank != 0
        {
            return ranks::member(&settings, launched, leader, device).await;
        }
        let shutdown = Arc::new(ShutdownHandle::default());
        let group = Arc::new(CommandGroup::default());
        let work = mine(settings, start, place, device, strategy, shutdown.clone(), group.clone());
        let done = shutdown.run_until_stopped(Box::pin(work), enough).await;
        group.close();
        done
    })
}

async fn mine(
    settings: Settings,
    start: Start,
    place: Place,
    device: Device,
    strategy: MakeStrategy,
    shutdown: Arc<ShutdownHandle>,
    group: Arc<CommandGroup>,
) -> anyhow::Result<()> {
    let command = command_options(&settings.train)?;
    let ahead = share("ahead", settings.train.ahead, AHEAD)?;
    let residual_share = share("residual_share", settings.train.residual_share, RESIDUAL_SHARE)?;
    if command.is_some() && place != Place::Alone {
        anyhow::bail!(
            "`engine = \"command\"` and several ranks exclude each other: set `ranks = 1` under [train], and let the command start its own"
        );
    }
    if command.is_none() && place == Place::Alone {
        // Fails here, before a checkpoint is fetched in vain.
        device.check()?;
    }
    // Ranks of a launcher connect from now on.
    let leader = Leader::new(&place, &settings, device)?;
    let traces = Collector::from_environment()?;
    // First, so that monitoring sees a node during its start.
    let mut metrics = match start.metrics.metrics {
        Some(address) => Some(Metrics::serve(address, Role::Miner).await?),
        None => None,
    };
    let mut service = ServiceManager::from_environment();
    let mut opened = daemon::open(&settings, Role::Miner).await?;
    let strategy = strategy(&opened);
    if let Some(metrics) = &mut metrics {
        let peers = opened.peers.clone();
        metrics.follow(&opened.seat, &opened.follower, opened.traffic(), peers, &mut opened.journal);
    }
    service.follow(&mut opened.journal);
    if let Some(traces) = traces {
        traces.follow(opened.traced());
    }
    let recipe = settings.train.recipe(&opened.spec.recipe);
    let path = settings.reading.directory.join("model.state");
    let (mut sync, _) = SyncDriver::open(opened.follower.clone(), path, &mut opened.journal).await?;
    let loss_max = settings.train.loss_max.unwrap_or_else(|| train::loss_max(opened.spec.model.vocab));
    let options = MinerOptions {
        commit_margin_blocks: settings.train.commit_margin_blocks.unwrap_or(3),
        batch_sequences: recipe.batch,
        ahead,
        pace: None,
        residual_share,
        snapshot_interval: snapshot_interval(&settings.train),
    };
    let model = opened.spec.model.clone();
    let blocking = sync.follower.blocking;
    let handle = shutdown.clone();
    let trainer = blocking.with(&mut sync.state, move |state| {
        let mut trainer = match (command, leader) {
            (Some(options), _) => by_command(&model, &recipe, &state.theta, options, group, handle)?,
            (None, Some(leader)) => leader.trainer(&model, &recipe, &state.theta, device, group)?,
            (None, None) => engines::trainer(device, &model, &recipe, &state.theta)?,
        };
        trainer.refuse_loss_above(loss_max);
        Ok::<_, ModelError>(trainer)
    });
    let trainer = trainer
        .await
        .context("could not make the trainer (its micro_batch is micro_batch_sequences under [train])")?;
    tracing::info!(uid = opened.seat.id.uid.0, window = sync.window().0, "mining");
    service.ready();
    let ended = daemon::peers::ended(opened.peers.clone());
    let node = opened.into_node(sync, settings.reading.directory, start.windows);
    let miner = Miner::open(node, trainer, strategy, options, shutdown).await?;
    tokio::select! {
        mined = miner.run() => Ok(mined?),
        ended = ended => ended,
    }
}

/// Returns a trainer whose steps a command computes.
fn by_command(
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
    options: CommandOptions,
    group: Arc<CommandGroup>,
    shutdown: Arc<ShutdownHandle>,
) -> Result<Trainer, ModelError> {
    let engine = CommandEngine::open(config, recipe, flat, options, group, shutdown)?;
    Trainer::from_engine(config, recipe, Box::new(engine))
}

/// Returns the options of the command of `engine = "command"`; `None` for another engine.
fn command_options(train: &TrainFile) -> anyhow::Result<Option<CommandOptions>> {
    let (engine, file) = (train.engine.unwrap_or_default(), train.command.clone());
    let file = match (engine, file) {
        (TrainEngine::Command, Some(file)) if !file.program.is_empty() => file,
        (TrainEngine::Device, None) => return Ok(None),
        (TrainEngine::Command, _) => anyhow::bail!(
            "`engine = \"command\"` under [train] needs `program = [\"…\"]` under [train.command]: name a program and its arguments"
        ),
        (TrainEngine::Device, Some(_)) => anyhow::bail!(
            "[train.command] is set, but the device trains: add `engine = \"command\"` under [train], or remove it"
        ),
    };
    let seconds =
        |value: Option<u64>, default| Duration::from_secs(value.unwrap_or(default).clamp(1, SECONDS_MAX));
    Ok(Some(CommandOptions {
        program: file.program,
        start: seconds(file.start_seconds, 300),
        heartbeat: seconds(file.heartbeat_seconds, 60),
        step: seconds(file.step_seconds, 600),
        stop: seconds(file.stop_seconds, 10),
    }))
}

/// Maximum deadline of a command, in seconds: a week.
const SECONDS_MAX: u64 = 7 * 24 * 3600;

/// Returns the setting `name` under [train], from 0 to 1; `default` if it is absent.
fn share(name: &str, value: Option<f64>, default: f64) -> anyhow::Result<f64> {
    let value = value.unwrap_or(default);
    anyhow::ensure!(
        (0.0..=1.0).contains(&value),
        "`{name} = {value}` under [train] is not from 0 to 1: leave it out for {default}"
    );
    Ok(value)
}

/// Returns the interval of snapshots inside a window. The default is five minutes: little if a window takes hours,
/// and a snapshot of 12 bytes per parameter takes a second or two for a billion of them.
fn snapshot_interval(train: &TrainFile) -> SnapshotInterval {
    match (train.snapshot_every_steps, train.snapshot_every_seconds) {
        (Some(steps), _) => SnapshotInterval::Steps(steps),
        (None, Some(0)) => SnapshotInterval::Never,
        (None, seconds) => SnapshotInterval::Time(Duration::from_secs(seconds.unwrap_or(300))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Option<CommandOptions>, String> {
        let train: TrainFile = toml::from_str(text).map_err(|error| error.to_string())?;
        command_options(&train).map_err(|error| error.to_string())
    }

    #[test]
    fn a_share_is_from_0_to_1() {
        assert_eq!(share("ahead", None, 0.5).unwrap(), 0.5);
        assert_eq!(share("ahead", Some(0.0), 0.5).unwrap(), 0.0);
        assert_eq!(share("ahead", Some(1.0), 0.5).unwrap(), 1.0);
        for wrong in [-0.1, 1.5, f64::NAN, f64::INFINITY] {
            let refused = share("residual_share", Some(wrong), 0.75).unwrap_err().to_string();
            assert!(refused.contains("residual_share") && refused.contains("0.75"), "{refused}");
        }
    }

    #[test]
    fn a_command_needs_the_engine_and_a_program() {
        assert_eq!(options(""), Ok(None));
        assert_eq!(options("engine = \"device\""), Ok(None));
        let text = "engine = \"command\"\n[command]\nprogram = [\"x\", \"y\"]\nheartbeat_seconds = 0";
        let found = options(text).unwrap().unwrap();
        assert_eq!(found.program, ["x", "y"]);
        assert_eq!((found.heartbeat, found.step), (Duration::from_secs(1), Duration::from_secs(600)));
        for (text, says) in [
            ("engine = \"command\"", "needs `program"),
            ("engine = \"command\"\n[command]\nprogram = []", "needs `program"),
            ("[command]\nprogram = [\"x\"]", "add `engine = \"command\"`"),
            ("engine = \"other\"", "unknown variant"),
            ("[command]\nprogram = [\"x\"]\nhearbeat_seconds = 1", "unknown field"),
        ] {
            let refused = options(text).unwrap_err();
            assert!(refused.contains(says), "{refused}");
        }
    }
}
