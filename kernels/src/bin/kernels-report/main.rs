//! Measures every kernel on this machine, beside a plain copy of memory, in one run and in the same units.
//!
//!     cargo run --release -p kernels --bin kernels-report -- --json

mod measure;
mod random;
mod report;

use clap::Parser;
use kernels::{lanes::Width, measure::text};

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
    /// The widest vectors to use: portable, avx2 or avx512 [default: the widest that the processor has].
    #[arg(long, value_parser = width)]
    simd: Option<Width>,
    /// Only encode, once, and say how much memory that added: for rows that nearly fill the machine.
    #[arg(long)]
    memory_only: bool,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

fn width(name: &str) -> Result<Width, String> {
    let width = match name {
        "portable" => Width::Portable,
        "avx2" => Width::Avx2,
        "avx512" => Width::Avx512,
        _ => return Err("there are portable, avx2 and avx512".into()),
    };
    if width.is_available() {
        Ok(width)
    } else {
        Err("this processor has it not; choose a narrower one".into())
    }
}

fn main() -> anyhow::Result<()> {
    let options = Options::parse();
    if let Some(width) = options.simd {
        kernels::lanes::limit(width);
    }
    let report = serde_json::to_value(report::measure(&options)?)?;
    if options.json {
        println!("{report:#}");
    } else {
        print!("{}", text(&report, &report::COLUMNS));
    }
    Ok(())
}
