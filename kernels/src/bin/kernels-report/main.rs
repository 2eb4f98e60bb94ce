//! Measures every kernel on this machine, beside a plain copy of memory, in one run and in the same units.
//!
//!     cargo run --release -p kernels --bin kernels-report -- --json

#[cfg(feature = "gpu")]
mod gpu;
mod measure;
#[cfg(feature = "gpu")]
mod network;
#[cfg(feature = "gpu")]
mod products;
mod random;
mod report;

use clap::{Parser, ValueEnum};
use kernels::lanes::Width;
use std::process::ExitCode;

/// Measures every kernel on this machine, beside a plain copy of memory, in one run and in the same units.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Values in the dense row, in Mi (2^20). Two rows are held, of 4 bytes a value: e and Δ.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    mebivalues: u64,
    /// Values sent of each 4096.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=4096))]
    density: u16,
    /// Contributions in the merge.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    inputs: u16,
    /// Values in the merge, in Mi.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    merge_mebivalues: u64,
    /// Times that each kernel is run; the shortest time counts.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Numbers of threads to measure with [default: 1 and all].
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Vec<u16>,
    /// The widest vectors to use [default: the widest that the processor has].
    #[arg(long, value_enum)]
    simd: Option<Simd>,
    /// Only encode, once, and say how much memory that added: for rows that nearly fill the machine.
    #[arg(long)]
    memory_only: bool,
    /// Measure on a GPU instead: cuda:0, cuda:1, vulkan. Needs a build with --features cuda or vulkan.
    #[arg(long, conflicts_with_all = ["threads", "simd", "memory_only"])]
    device: Option<String>,
    /// Measure nothing; compare every kernel of the device with the processor's: bit for bit where bits are agreed on, and a
    /// network's passes within roundings.
    #[arg(long, requires = "device")]
    agree: bool,
    /// Measure the kernels that a network's passes on the device are made of.
    #[arg(long, requires = "device", conflicts_with = "agree")]
    network: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Simd {
    Portable,
    Avx2,
    Avx512,
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

#[cfg(feature = "gpu")]
fn status_of(error: &anyhow::Error) -> u8 {
    if error.is::<kernels::gpu::OpenError>() { 4 } else { 1 }
}

#[cfg(not(feature = "gpu"))]
fn status_of(_: &anyhow::Error) -> u8 {
    1
}

fn run(options: &Options) -> anyhow::Result<()> {
    if let Some(simd) = options.simd {
        let width = match simd {
            Simd::Portable => Width::Portable,
            Simd::Avx2 => Width::Avx2,
            Simd::Avx512 => Width::Avx512,
        };
        anyhow::ensure!(
            Width::available().any(|available| available == width),
            "this processor has no {simd:?}; choose a narrower one"
        );
        kernels::lanes::limit(width);
    }
    match &options.device {
        Some(device) => on_device(options, device),
        None => print(options, &report::measure(options)?),
    }
}

#[cfg(feature = "gpu")]
fn on_device(options: &Options, device: &str) -> anyhow::Result<()> {
    if options.agree {
        println!("{}", gpu::agree(device)?);
        return Ok(());
    }
    if options.network {
        return print(options, &network::measure(options, device)?);
    }
    print(options, &gpu::measure(options, device)?)
}

#[cfg(not(feature = "gpu"))]
fn on_device(_: &Options, device: &str) -> anyhow::Result<()> {
    anyhow::bail!(
        "{device}: this program was built without GPUs; build it with --features cuda or --features vulkan"
    )
}

fn print(options: &Options, report: &(impl serde::Serialize + std::fmt::Display)) -> anyhow::Result<()> {
    if options.json {
        println!("{}", serde_json::to_string_pretty(report)?);
    } else {
        print!("{report}");
    }
    Ok(())
}
