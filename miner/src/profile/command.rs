//! The command `miner profile`.

use super::{Profile, Profiler, SPANS_MAX, check_output};
use crate::{
    start::{self, Start},
    strategy::DefaultStrategy,
    train,
};
use anyhow::Context as _;
use daemon::{Blocking, Flags, config::ReadOnlyConfig, metrics::MetricsFlag, program};
use model::{ModelConfig, Recipe, init_flat};
use nn::{Device, ModelError};
use serde::Serialize;
use std::{
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

/// Steps before the first that is measured: a GPU's first one compiles the kernels.
const WARM_UP: u32 = 3;
/// The recipe's default is for the smallest model.
const LEARNING_RATE: f64 = 3e-4;

#[derive(Clone, Debug, clap::Args)]
pub struct ProfileArgs {
    /// Whole windows to measure, from the first in which the seat trains.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=1000))]
    windows: u32,
    /// Measure training steps of this preset on random tokens instead, without a seat.
    #[arg(long, value_name = "PRESET", conflicts_with = "windows")]
    model: Option<String>,
    /// Steps to measure with --model; three more warm up.
    #[arg(long, value_name = "N", default_value_t = 20, requires = "model", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Sequences per step with --model.
    #[arg(long, value_name = "N", default_value_t = 16, requires = "model", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: u32,
    /// Sequences on the device at once with --model [default: all of a step].
    #[arg(long, value_name = "N", requires = "model", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    micro_batch: Option<u32>,
    /// The trace, at most 25 MB. A file that exists is not replaced.
    #[arg(long, value_name = "FILE", default_value = "trace.json")]
    output: PathBuf,
    /// Print the shares as JSON instead of a table.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags,
    #[command(flatten)]
    metrics: MetricsFlag,
}

/// Measurements besides phases, with --model.
#[derive(Debug, Serialize)]
struct Steps {
    model: String,
    device: String,
    batch: u32,
    steps: u32,
    tokens_per_step: u64,
}

#[derive(Serialize)]
struct Report<'a> {
    /// `None` if it could not be written.
    trace: Option<&'a PathBuf>,
    #[serde(flatten)]
    steps: Option<&'a Steps>,
    #[serde(flatten)]
    profile: &'a Profile,
}

impl ProfileArgs {
    pub(crate) fn run_to_exit(self) -> ExitCode {
        let profiler = Profiler::new(self.model.is_none().then_some(self.windows));
        program::run_to_exit_with(profiler.layer(), Box::pin(self.run(profiler)))
    }

    async fn run(self, profiler: Profiler) -> anyhow::Result<()> {
        check_output(&self.output)?;
        // Measurements from before Ctrl-C or an error are shown as well.
        let (steps, ended) = match &self.model {
            Some(model) => (Some(self.take_steps(model, &profiler).await?), Ok(())),
            None => (None, self.mine(&profiler).await),
        };
        let Some(mut profile) = profiler.end() else {
            ended?;
            anyhow::bail!("nothing was measured: it stopped before the training began");
        };
        profile.is_complete &= steps.as_ref().is_none_or(|steps| steps.steps == self.steps);
        let written = profiler.write(&self.output);
        let trace = written.is_ok().then_some(&self.output);
        if self.json {
            println!(
                "{:#}",
                serde_json::to_value(Report { trace, steps: steps.as_ref(), profile: &profile })?
            );
        } else {
            print!("{}", text(&profile, steps.as_ref(), trace));
        }
        written?;
        ended
    }

    /// Mines until the requested windows are over, or Ctrl-C.
    async fn mine(&self, profiler: &Profiler) -> anyhow::Result<()> {
        let start = Start {
            flags: self.flags.clone(),
            metrics: self.metrics.clone(),
            windows: None,
            ranks: None,
            with_parent: false,
        };
        let over = profiler.clone();
        let enough = Box::pin(async move { over.windows_over().await });
        start::mine_until(start, Box::new(|_| Box::new(DefaultStrategy)), enough).await
    }

    /// Trains `model` for the requested steps, or until Ctrl-C. A step that still runs then ends with the process.
    async fn take_steps(&self, model: &str, profiler: &Profiler) -> anyhow::Result<Steps> {
        let config = ModelConfig::preset(model)?;
        let device: Device = ReadOnlyConfig::read(&self.flags)?.device.try_into().context("device")?;
        let (batch, steps) = (self.batch as usize, self.steps);
        let micro_batch = self.micro_batch.map_or(batch, |micro_batch| micro_batch as usize).min(batch);
        let recipe = Recipe { batch, micro_batch, learning_rate: LEARNING_RATE, ..Recipe::default() };
        let tokens_per_step = (batch * config.seq_len) as u64;
        let (profiler, taken) = (profiler.clone(), Arc::new(AtomicU32::new(0)));
        let (counted, mut stop) = (taken.clone(), program::StopSignal::listen());
        let train = Blocking::Pool.start(move || -> Result<(), ModelError> {
            let mut trainer = engines::trainer(device, &config, &recipe, &init_flat(&config, 1)?)?;
            let sequences = engines::random_sequences(&config, batch);
            let _span = tracing::trace_span!(target: "profile", "training").entered();
            for _ in 0..WARM_UP {
                trainer.step(&sequences)?;
            }
            tracing::info!(steps, "measuring training steps");
            profiler.begin();
            for _ in 0..steps {
                train::step(&mut trainer, &sequences, LEARNING_RATE, |_| ()).map_err(|(_, error)| error)?;
                counted.fetch_add(1, Ordering::Relaxed);
            }
            profiler.end();
            Ok(())
        });
        tokio::select! {
            ended = train => ended.context("the training thread died")??,
            () = stop.told() => {}
        }
        let steps = taken.load(Ordering::Relaxed);
        Ok(Steps {
            model: model.to_owned(),
            device: device.to_string(),
            batch: self.batch,
            steps,
            tokens_per_step,
        })
    }
}

/// Returns the table with its heading.
fn text(profile: &Profile, steps: Option<&Steps>, trace: Option<&PathBuf>) -> String {
    let Profile { windows, seconds, compute_share, spans, spans_dropped, is_complete, .. } = profile;
    let mut text = match (steps, &windows[..]) {
        (Some(Steps { model, device, batch, steps, tokens_per_step }), _) => {
            let rate = f64::from(*steps) * *tokens_per_step as f64 / seconds.max(f64::MIN_POSITIVE);
            format!("{steps} steps of {batch} sequences, {model} on {device}: {rate:.0} tokens/s")
        }
        (None, [first, .., last]) => format!("windows {first} to {last}"),
        (None, windows) => format!("window {}", windows.first().unwrap_or(&0)),
    };
    if steps.is_none() {
        text += &format!("; the training thread ran {:.1} % of the time", compute_share * 100.0);
    }
    text += if *is_complete { "\n\n" } else { "; stopped early\n\n" };
    text += &profile.table();
    if let Some(trace) = trace {
        text += &format!("\n{spans} spans in {}: open it in ui.perfetto.dev\n", trace.display());
    }
    if 0 < *spans_dropped {
        text +=
            &format!("{spans_dropped} more are over the limit of {SPANS_MAX}; their time is in the table\n");
    }
    text
}
