//! Measures the weights of calls and tasks, and writes the pallets' `weight_info.rs`.
//!
//! The benchmarks are those of the pallets (`contracts/*/src/benchmarking.rs`). They run in the Wasm runtime, from an
//! empty state, as with Substrate's `benchmark pallet`, which would add a hundred crates. Storage accesses are counted
//! rather than timed: the runtime has a price for a read and a write.
//!
//! `scripts/benchmark-pallets` builds the Wasm runtime and calls this program.

use clap::Parser;
use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

mod bench;
mod fit;
mod source;

use fit::Cost;

/// Measured pallets, by their directories in `contracts/`.
const PALLETS: [&str; 5] = ["nomination", "registry", "rewards", "weights", "windows"];

/// Measures the weights of calls and tasks in the Wasm runtime, and writes the pallets' `weight_info.rs`.
#[derive(Debug, Parser)]
struct Options {
    /// The Wasm runtime, built with `runtime-benchmarks`.
    runtime: PathBuf,

    /// The repository's `contracts`.
    #[arg(long)]
    contracts: PathBuf,

    /// The date of the measurement, for the files' headers.
    #[arg(long)]
    date: String,

    /// The file of all measurements: later runs may measure some benchmarks only.
    #[arg(long)]
    measured: PathBuf,

    /// Measure only these pallets (`registry`) or benchmarks (`registry::slash`).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,

    /// Values of each size, from the smallest to the largest.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(2..))]
    steps: u32,

    /// Repetitions of each measurement.
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
    #[error("unknown benchmark or pallet: {0}")]
    Unknown(String),
}

/// Cost of each benchmark, by `pallet::benchmark`.
type Measured = std::collections::BTreeMap<String, Cost>;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("mettle-benchmark: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Failure> {
    let runtime = read(&options.runtime)?;
    let mut measured: Measured = match read(&options.measured) {
        Ok(json) => serde_json::from_slice(&json)
            .map_err(|source| Failure::Measured { path: options.measured.clone(), source })?,
        // The first run. Writing a pallet fails if some of its benchmarks were never measured.
        Err(_) if !options.measured.exists() => Measured::new(),
        Err(failure) => return Err(failure),
    };

    let bench = bench::Bench::new(runtime)?;
    let benchmarks = bench.list()?;
    let wanted = |name: &str| {
        let pallet = name.split("::").next().unwrap_or(name);
        options.only.is_empty() || options.only.iter().any(|only| only == name || only == pallet)
    };
    if let Some(unknown) = options
        .only
        .iter()
        .find(|only| !benchmarks.iter().any(|known| known.name() == **only || known.pallet == only.as_str()))
    {
        return Err(Failure::Unknown(unknown.clone()));
    }
    measured.retain(|name, _| benchmarks.iter().any(|known| known.name() == *name));
    let conditions = source::Conditions {
        date: options.date.clone(),
        machine: machine(),
        runtime: bench.hash(),
        steps: options.steps,
        repeat: options.repeat,
    };
    for benchmark in benchmarks.iter().filter(|benchmark| wanted(&benchmark.name())) {
        let results = bench.measure(benchmark, options.steps, options.repeat)?;
        let name = benchmark.name();
        let cost = fit::fit(&results).map_err(|reason| Failure::Fit { benchmark: name.clone(), reason })?;
        eprintln!("{name:40} {cost}");
        measured.insert(name, cost);
        // Saved after each benchmark, so that an interrupted run loses little.
        let json = serde_json::to_vec_pretty(&measured).expect("a map of structs of numbers is JSON");
        write(&options.measured, &json)?;
    }

    for pallet in PALLETS
        .iter()
        .filter(|pallet| benchmarks.iter().any(|known| wanted(&known.name()) && known.pallet == **pallet))
    {
        let path = options.contracts.join(pallet).join("src/weight_info.rs");
        let before = String::from_utf8_lossy(&read(&path)?).into_owned();
        let costs = measured.iter().filter_map(|(name, cost)| Some((name.split_once("::")?, cost)));
        let costs = costs.filter(|((of, _), _)| of == pallet).map(|((_, name), cost)| (name, cost)).collect();
        write(&path, source::write(pallet, &before, &costs, &conditions)?.as_bytes())?;
    }
    Ok(())
}

/// Returns the number and name of the processors, from Linux.
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
