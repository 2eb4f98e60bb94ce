//! How fast this machine trains, and what that takes: CPU time, memory, and how much of it is matrix products.
//!
//!     cargo run --release -p mettle-nn --bin train-report -- --json
//!
//! Each preset is measured in a process of its own, so that the peak of memory is that preset's. With `--device`, a GPU is
//! measured instead, or compared with the CPU: `docs/gpu.md`.

mod agree;
mod gpu;
mod measure;
mod products;
mod report;
mod twin;

use anyhow::Context as _;
use clap::Parser;
use mettle_nn::{DeviceChoice, DeviceError, ModelError};
use model::ModelConfig;
use report::Report;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt, fs,
    path::PathBuf,
    process::{Command, ExitCode},
};

/// Presets that are measured where none is named: on the CPU, and on a GPU.
const PRESETS: [&str; 3] = ["117k", "1m", "6m"];
const PRESETS_OF_GPUS: [&str; 2] = ["150m", "1b"];

/// Measures training steps on random tokens: on the CPU tokens a second, CPU time, memory, share of matrix products; on a GPU tokens a
/// second, model FLOP/s utilisation and memory. RAYON_NUM_THREADS sets the number of threads on the CPU.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Preset to measure; may be given several times [default: 117k, 1m and 6m; on a GPU 150m and 1b].
    #[arg(long = "preset")]
    presets: Vec<String>,
    /// Steps to measure, at least; two more warm up, on a GPU three. Small presets take as many as a second of CPU time holds.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Sequences in a step [default: 16; on a GPU as many as make 16,384 tokens].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// Sequences on the device at once [default: all of a step].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    micro_batch: Option<u32>,
    /// Measure on a GPU: cuda:0, cuda:1, vulkan, with settings behind it as in docs/gpu.md. Needs a build with --features cuda or
    /// vulkan.
    #[arg(long, default_value = "cpu")]
    device: DeviceChoice,
    /// What the GPU reaches in dense products of this precision at best, in 10^12 operations a second [default: from a list of known
    /// cards, for bf16; of others no utilisation is told].
    #[arg(long, value_parser = teraflops)]
    peak_tflops: Option<f64>,
    /// Measure nothing; train the only preset (default 117k) for 20 steps on the CPU and on the device, and compare the losses.
    #[arg(long)]
    agree: bool,
    /// Write what another program needs to train the same into this directory first: weights, tokens and recipe of the only preset.
    #[arg(long, value_name = "DIRECTORY")]
    twin: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the JSON into this file besides.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure the only preset in this very process and print its part of the JSON.
    #[arg(long, hide = true)]
    alone: bool,
}

/// Exit status: 0 measured, or agreed; 4 the device is not there or cannot be used; 1 everything else.
fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:#}");
            ExitCode::from(status_of(&error))
        }
    }
}

fn status_of(error: &anyhow::Error) -> u8 {
    let device = error.downcast_ref::<ModelError>().and_then(|error| match error {
        ModelError::Device(error) => Some(error),
        _ => None,
    });
    match device.or(error.downcast_ref()) {
        None | Some(DeviceError::Failed { .. } | DeviceError::NoMuon) => 1,
        Some(_) => 4,
    }
}

fn teraflops(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("it must be a number above 0".into()),
    }
}

fn run(options: &Options) -> anyhow::Result<()> {
    let on_cpu = options.device == DeviceChoice::Cpu;
    let presets: Vec<&str> = match &options.presets[..] {
        [] if options.agree => vec!["117k"],
        [] if on_cpu => PRESETS.to_vec(),
        [] => PRESETS_OF_GPUS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    // A wrong name is refused before the first measurement, and so is a device that is not there.
    for preset in &presets {
        ModelConfig::preset(preset)?;
    }
    options.device.check()?;
    if options.agree || options.twin.is_some() {
        anyhow::ensure!(presets.len() == 1, "name one preset: --agree and --twin are for a single one");
    }
    if options.agree {
        return print(options, &agree::agree(presets[0], options)?);
    }
    if options.alone {
        let measured = match on_cpu {
            true => serde_json::to_string(&report::measure(presets[0], options)?)?,
            false => serde_json::to_string(&gpu::measure(presets[0], options)?)?,
        };
        println!("{measured}");
        return Ok(());
    }
    if on_cpu {
        anyhow::ensure!(options.twin.is_none(), "--twin is for a GPU: name one with --device");
        print(options, &Report::new(in_own_processes(&presets, options)?))
    } else {
        print(options, &gpu::Report::new(options.device, in_own_processes(&presets, options)?))
    }
}

fn print(options: &Options, report: &(impl Serialize + fmt::Display)) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)?;
    if let Some(file) = &options.out {
        fs::write(file, &json).with_context(|| format!("could not write {}", file.display()))?;
    }
    if options.json {
        println!("{json}");
    } else {
        print!("{report}");
    }
    Ok(())
}

fn in_own_processes<P: DeserializeOwned>(presets: &[&str], options: &Options) -> anyhow::Result<Vec<P>> {
    presets.iter().map(|preset| in_own_process(preset, options)).collect()
}

fn in_own_process<P: DeserializeOwned>(preset: &str, options: &Options) -> anyhow::Result<P> {
    let program = std::env::current_exe().context("could not find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["--alone", "--preset", preset, "--steps", &options.steps.to_string()]);
    command.args(["--device", &options.device.to_string()]);
    if let Some(batch) = options.batch {
        command.args(["--batch", &batch.to_string()]);
    }
    if let Some(micro_batch) = options.micro_batch {
        command.args(["--micro-batch", &micro_batch.to_string()]);
    }
    if let Some(peak) = options.peak_tflops {
        command.args(["--peak-tflops", &peak.to_string()]);
    }
    if let Some(directory) = &options.twin {
        command.arg("--twin").arg(directory);
    }
    let output = command.output().context("could not start this program for one preset")?;
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.trim().trim_start_matches("Error: ");
    anyhow::ensure!(output.status.success(), "preset {preset} could not be measured: {reason}");
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the process for {preset} printed no report"))
}
