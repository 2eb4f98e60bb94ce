//! Measures training on this machine: speed, CPU time, memory, and the share of matrix products.
//!
//!     cargo run --release -p mettle-engines --bin train-report -- --json
//!
//! Each preset is measured in a process of its own, so that the peak of memory is that preset's. With `--device`, a
//! GPU is measured instead, or compared with the CPU: `docs/gpu.md`.

mod agree;
#[cfg(feature = "gpu")]
mod closeness;
mod cpu_products;
mod measure;
#[cfg(feature = "gpu")]
mod rates;
mod train;
mod twin;

use anyhow::Context as _;
use clap::Parser;
use kernels::measure::{Column, text};
use model::ModelConfig;
use nn::{Device, DeviceError, DeviceName, ModelError};
use serde_json::Value;
use std::{
    fs,
    path::PathBuf,
    process::{Command, ExitCode},
};

const MIB: f64 = 1.0 / (1 << 20) as f64;
/// Columns of the tables in a report's text.
const COLUMNS: [Column; 28] = [
    Column::new("name", "name", 1.0, 0),
    Column::new("preset", "preset", 1.0, 0),
    Column::new("parameters", "parameters", 1.0, 0),
    Column::new("batch", "batch", 1.0, 0),
    Column::new("micro", "micro_batch", 1.0, 0),
    Column::new("seq_len", "seq_len", 1.0, 0),
    Column::new("threads", "threads", 1.0, 0),
    Column::new("vectors", "instructions", 1.0, 0),
    Column::new("products", "precision", 1.0, 0),
    Column::new("recompute", "recompute", 1.0, 0),
    Column::new("tokens/s", "tokens_per_second", 1.0, 0),
    Column::new("ms/step", "ms_per_step", 1.0, 1),
    Column::new("tokens/CPU-s", "tokens_per_cpu_second", 1.0, 0),
    Column::new("CPU ms/step", "cpu_ms_per_step", 1.0, 1),
    Column::new("GFLOP/CPU-s", "gflops_per_cpu_second", 1.0, 1),
    Column::new("utilisation, %", "utilisation", 100.0, 0),
    Column::new("matmul, %", "matmul_share", 100.0, 0),
    Column::new("MFU, %", "mfu", 100.0, 1),
    Column::new("memory, MiB", "memory_peak_bytes", MIB, 0),
    Column::new("estimate, MiB", "memory_estimate_bytes", MIB, 0),
    Column::new("ms", "seconds", 1e3, 3),
    Column::new("moved GB/s", "moved_gbps", 1.0, 2),
    Column::new("of a copy, %", "share_of_copy", 100.0, 1),
    Column::new("TFLOP/s", "tflops", 1.0, 3),
    Column::new("device", "device", 1.0, 0),
    Column::new("losses apart, 1e-6", "difference", 1e6, 2),
    Column::new("bound, 1e-6", "bound", 1e6, 0),
    Column::new("error", "error", 1.0, 0),
];

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

impl Options {
    fn on_cpu(&self) -> bool {
        self.device.name == DeviceName::Cpu
    }
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
    let on_cpu = options.on_cpu();
    let presets: Vec<&str> = match &options.presets[..] {
        [] if options.agree || options.losses => vec!["117k"],
        [] if on_cpu => PRESETS.to_vec(),
        [] => GPU_PRESETS.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    // Wrong preset names and absent devices are refused before the first measurement.
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
    anyhow::ensure!(!on_cpu || !options.kernels, "--kernels is for a GPU: name one with --device");
    anyhow::ensure!(!on_cpu || options.twin.is_none(), "--twin is for a GPU: name one with --device");
    if options.kernels {
        print(options, measure_kernels(options)?)
    } else if options.losses {
        train::print_losses(presets[0], options)
    } else if options.agree {
        print(options, agree::agree(presets[0], options)?)
    } else if options.alone {
        println!("{}", train::measure(presets[0], options)?);
        Ok(())
    } else {
        let measured = presets.iter().map(|preset| in_own_process(preset, options));
        print(options, train::report(options, &measured.collect::<anyhow::Result<Vec<Value>>>()?))
    }
}

#[cfg(feature = "gpu")]
fn measure_kernels(options: &Options) -> anyhow::Result<Value> {
    rates::measure(options)
}

#[cfg(not(feature = "gpu"))]
fn measure_kernels(options: &Options) -> anyhow::Result<Value> {
    Err(DeviceError::WithoutGpu { device: options.device }.into())
}

/// Prints a report, as JSON or as text.
fn print(options: &Options, report: Value) -> anyhow::Result<()> {
    let json = format!("{report:#}");
    if let Some(file) = &options.out {
        fs::write(file, &json).with_context(|| format!("could not write {}", file.display()))?;
    }
    if options.json {
        println!("{json}");
    } else {
        print!("{}", text(&report, &COLUMNS));
    }
    Ok(())
}

fn in_own_process(preset: &str, options: &Options) -> anyhow::Result<Value> {
    let program = std::env::current_exe().context("could not find this program's own file")?;
    let mut command = Command::new(program);
    command.args(["--alone", "--preset", preset, "--steps", &options.steps.to_string()]);
    command.args(["--device", &options.device.to_string()]);
    for (flag, value) in [("--batch", options.batch), ("--micro-batch", options.micro_batch)] {
        command.args(value.map(|value| [flag.to_owned(), value.to_string()]).into_iter().flatten());
    }
    command.args(options.peak_tflops.map(|peak| format!("--peak-tflops={peak}")));
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
