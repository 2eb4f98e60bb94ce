//! Measures what calls and steps cost and writes the pallets' weights.
//!
//! The benchmarks are the pallets' own (`contracts/*/src/benchmarking.rs`). They run within the runtime's blob, as calls do on
//! a chain, from an empty state, as Substrate's `benchmark pallet` does it; that one command alone would bring a hundred
//! crates more. Storage is counted rather than timed: a read and a write have a price in the runtime.
//!
//! `scripts/weigh` builds the blob and calls this program.

use clap::Parser;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

mod bench;
mod fit;
mod source;

use fit::Cost;

/// The pallets whose weights are measured. Each has a directory in `contracts/`.
const PALLETS: [&str; 5] = ["nomination", "registry", "rewards", "weights", "windows"];

/// Measures what calls and steps cost within the runtime's blob, and writes the pallets' weights.
#[derive(Debug, Parser)]
struct Options {
    /// The blob, built with `runtime-benchmarks`.
    blob: PathBuf,

    /// The repository's `contracts`.
    #[arg(long)]
    contracts: PathBuf,

    /// The day of the measurement, for the files' headers.
    #[arg(long)]
    date: String,

    /// Where measurements are kept, so that a later one may measure some benchmarks alone.
    #[arg(long)]
    measured: PathBuf,

    /// Measure these pallets' benchmarks alone (`registry`), or single ones (`registry::slash`).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Values that a benchmark's size takes, from the smallest to the largest.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..))]
    steps: u32,

    /// Measurements of each of them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
}

#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path} does not hold measurements: {source}")]
    Measured { path: PathBuf, source: serde_json::Error },
    #[error(transparent)]
    Bench(#[from] bench::Failure),
    #[error("{benchmark}: {reason}")]
    Fit { benchmark: String, reason: String },
    #[error(transparent)]
    Source(#[from] source::Misfit),
    #[error("no benchmark is called like that: {0}")]
    Nothing(String),
}

/// What is known of each benchmark, by the names of pallet and benchmark.
type Measured = std::collections::BTreeMap<String, Cost>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("weigh: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let blob = read(&options.blob)?;
    let mut measured: Measured = match read(&options.measured) {
        Ok(json) => serde_json::from_slice(&json)
            .map_err(|source| Failure::Measured { path: options.measured.clone(), source })?,
        // The first time here. A pallet of which some is not measured yet is refused when it is written.
        Err(_) if !options.measured.exists() => Measured::new(),
        Err(failure) => return Err(failure),
    };

    let chamber = bench::Chamber::new(blob)?;
    let benchmarks = chamber.list()?;
    let wanted = |name: &str| {
        let pallet = name.split("::").next().unwrap_or(name);
        options.only.is_empty() || options.only.iter().any(|only| only == name || only == pallet)
    };
    if let Some(unknown) = options
        .only
        .iter()
        .find(|only| !benchmarks.iter().any(|bench| bench.name() == **only || bench.pallet == only.as_str()))
    {
        return Err(Failure::Nothing(unknown.clone()));
    }
    measured.retain(|name, _| benchmarks.iter().any(|bench| bench.name() == *name));
    let conditions = source::Conditions {
        date: options.date.clone(),
        machine: machine(),
        blob: chamber.hash(),
        steps: options.steps,
        repeat: options.repeat,
    };
    for benchmark in benchmarks.iter().filter(|benchmark| wanted(&benchmark.name())) {
        let results = chamber.measure(benchmark, options.steps, options.repeat)?;
        let name = benchmark.name();
        let cost = fit::fit(&results).map_err(|reason| Failure::Fit { benchmark: name.clone(), reason })?;
        eprintln!("{name:40} {cost}");
        measured.insert(name, cost);
        // Kept as it comes, so that a measurement that is broken off is not lost.
        let json = serde_json::to_vec_pretty(&measured).expect("a map of structs of numbers is JSON");
        write(&options.measured, &json)?;
    }

    for pallet in PALLETS
        .iter()
        .filter(|pallet| benchmarks.iter().any(|bench| wanted(&bench.name()) && bench.pallet == **pallet))
    {
        let path = options.contracts.join(pallet).join("src/weights.rs");
        let before = String::from_utf8_lossy(&read(&path)?).into_owned();
        let costs = measured.iter().filter_map(|(name, cost)| Some((name.split_once("::")?, cost)));
        let costs = costs.filter(|((of, _), _)| of == pallet).map(|((_, name), cost)| (name, cost)).collect();
        write(&path, source::write(pallet, &before, &costs, &conditions)?.as_bytes())?;
    }
    Ok(())
}

/// The processor's name and how many there are, as Linux tells.
fn machine() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name =
        text.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{count} × {}", name.map_or("an unknown processor", |(_, name)| name))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|source| Failure::File { path: path.to_owned(), source })
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|source| Failure::File { path: path.to_owned(), source })
}
