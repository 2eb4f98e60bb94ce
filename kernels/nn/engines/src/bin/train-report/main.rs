//! Measures training on this machine: speed, CPU time, memory, and the share of matrix products.
//!
//!     cargo run --release -p mettle-engines --bin train-report -- --json
//!
//! Each preset is measured in a process of its own, so that the peak of memory is that preset's. With `--device`, a
//! GPU is measured instead, or compared with the CPU: `docs/gpu.md`.

mod agree;
mod cpu;
mod gpu;
#[cfg(feature = "gpu")]
mod kernels;
mod measure;
mod products;
mod twin;

use anyhow::Context as _;
use clap::Parser;
use cpu::Report;
use model::ModelConfig;
use nn::{Device, DeviceError, DeviceName, ModelError};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt, fs,
    path::PathBuf,
    process::{Command, ExitCode},
};

/// Default presets, on the CPU and on a GPU.
const PRESETS: [&str; 3] = ["117k", "1m", "6m"];
const GPU_PRESETS: [&str; 2] = ["150m", "1b"];

/// Measures training steps on random tokens: on the CPU tokens per second, CPU time, memory and the share of matrix
/// products; on a GPU tokens per second, model FLOP/s utilisation and memory. RAYON_NUM_THREADS sets the CPU's
/// threads.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Preset to measure; may be given several times [default: 117k, 1m and 6m; on a GPU 150m and 1b].
    #[arg(long = "preset")]
    presets: Vec<String>,
    /// Steps to measure, at least; two more warm up, on a GPU three. Small presets fill a second of CPU time.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    steps: u32,
    /// Sequences per step [default: 16; on a GPU 16,384 tokens].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    batch: Option<u32>,
    /// Sequences on the device at once [default: all of a step].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    micro_batch: Option<u32>,
    /// Measure on a GPU: cuda:0, cuda:1, vulkan, with settings behind it as in docs/gpu.md. Needs a build with
    /// --features cuda or vulkan.
    #[arg(long, default_value = "cpu")]
    device: Device,
    /// The GPU's peak rate of dense products in this precision, in 10^12 operations per second [default: from a list
    /// of known GPUs, for bf16; for others utilisation is left out].
    #[arg(long, value_parser = teraflops)]
    peak_tflops: Option<f64>,
    /// Measure nothing; compare the device with the CPU: its kernels, and the losses of 20 steps of the only preset
    /// [default: 117k].
    #[arg(long)]
    agree: bool,
    /// Measure the kernels of the device, beside a copy in its memory.
    #[arg(long, conflicts_with = "agree")]
    kernels: bool,
    /// Values that each of --kernels works on, in Mi (2^20).
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mebivalues: u64,
    /// Runs of each of --kernels; the shortest counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Print the losses of all steps of the only preset with all digits instead.
    #[arg(long)]
    losses: bool,
    /// Write the input for another program that trains the same into this directory first: weights, tokens and recipe
    /// of the only preset.
    #[arg(long, value_name = "DIRECTORY")]
    twin: Option<PathBuf>,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Also write the JSON into this file.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure the only preset in this process and print its part of the JSON.
    #[arg(long, hide = true)]
    alone: bool,
}

/// Exit status: 0 measured, or agreed; 4 the device is absent or cannot be used; 1 everything else.
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
    let on_cpu = options.device.name == DeviceName::Cpu;
    let presets: Vec<&str> = match &options.presets[..] {
        [] if options.agree || options.losses => vec!["117k"],
        [] if on_cpu => PRESETS.to_vec(),
        [] => GPU_PRESETS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    // A wrong name is refused before the first measurement, and so is an absent device.
    for preset in &presets {
        ModelConfig::preset(preset)?;
    }
    options.device.check()?;
    if options.agree || options.losses || options.twin.is_some() {
        anyhow::ensure!(
            presets.len() == 1,
            "name one preset: --agree, --losses and --twin are for a single one"
        );
    }
    if options.kernels {
        anyhow::ensure!(!on_cpu, "--kernels is for a GPU: name one with --device");
        return measure_kernels(options);
    }
    if options.losses {
        return cpu::print_losses(presets[0], options);
    }
    if options.agree {
        return print(options, &agree::agree(presets[0], options)?);
    }
    if options.alone {
        let measured = match on_cpu {
            true => serde_json::to_string(&cpu::measure(presets[0], options)?)?,
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

/// Compares the kernels of a GPU with the CPU's, and returns the number of comparisons; 0 for a device without
/// kernels of ours.
///
/// # Errors
/// If a kernel in use is too far off.
#[cfg(feature = "gpu")]
fn kernels_agree(device: Device) -> anyhow::Result<usize> {
    if device.name == DeviceName::Cpu || device.engine() == nn::EngineKind::Burn {
        return Ok(0);
    }
    let all = kernels::closeness(device)?;
    let describe =
        |it: &kernels::Closeness| format!("  {}: {:.1e}, bound {:.1e}", it.what, it.error, it.bound);
    let unused: Vec<String> = all.iter().filter(|it| it.holds() && !it.is_close()).map(describe).collect();
    if !unused.is_empty() {
        eprintln!(
            "{device}: unused algorithms for products are off, which is no failure:\n{}",
            unused.join("\n")
        );
    }
    let apart: Vec<String> = all.iter().filter(|it| !it.holds()).map(describe).collect();
    anyhow::ensure!(
        apart.is_empty(),
        "{} of {} kernels are too far from the CPU's:\n{}",
        apart.len(),
        all.len(),
        apart.join("\n")
    );
    Ok(all.len())
}

#[cfg(not(feature = "gpu"))]
fn kernels_agree(_: Device) -> anyhow::Result<usize> {
    Ok(0)
}

#[cfg(feature = "gpu")]
fn measure_kernels(options: &Options) -> anyhow::Result<()> {
    let limits = kernels::Options { mebivalues: options.mebivalues, rounds: options.rounds };
    print(options, &kernels::measure(&limits, options.device)?)
}

#[cfg(not(feature = "gpu"))]
fn measure_kernels(options: &Options) -> anyhow::Result<()> {
    Err(DeviceError::WithoutGpu { device: options.device }.into())
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
