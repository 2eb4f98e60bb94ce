//! Measures the pay and the harm of cheats in simulated networks; see `tests::sim`. Progress goes to standard error,
//! the table or JSON to standard output.

use clap::Parser as _;
use std::{error::Error, num::NonZeroUsize, path::PathBuf, process::ExitCode, time::Instant};
use tests::sim::{
    bounds::{self, Bound},
    experiment,
    table::Table,
    world::World,
};

/// Runs every adversary in a network of honest seats and prints its pay, by this project's rules and the published
/// ones.
#[derive(clap::Parser)]
#[command(name = "gauntlet-table")]
struct Settings {
    /// Number of seeds; each gives other initial weights, data and random numbers.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first seed; the others follow.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    /// Windows per network.
    #[arg(long, value_name = "W", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    windows: u32,
    /// Run only these networks, the networks of these adversaries, and the honest baseline.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// The share of the residual that an honest miner's training starts with, 0 to 1.
    #[arg(long, value_name = "C", default_value_t = miner::run::RESIDUAL_SHARE)]
    residual_share: f64,
    /// Networks to run at once; by default the number of cores.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Directory of the prepared dataset; by default the user's cache.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// A prepared dataset to use.
    #[arg(long, value_name = "DIR", conflicts_with = "cache")]
    data: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Fail if a cheat's pay, an honest seat's penalties or a network's loss exceeds its bound.
    #[arg(long)]
    check: bool,
    /// Write the record of every window of every network to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    histories: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", tests::describe_error(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Box<dyn Error>> {
    if let Some(unknown) =
        settings.only.iter().find(|name| experiment::names().all(|known| known != name.as_str()))
    {
        let names: Vec<&str> = experiment::names().collect();
        return Err(format!("unknown adversary or network {unknown:?}; known: {}", names.join(", ")).into());
    }
    if !(0.0..=1.0).contains(&settings.residual_share) {
        return Err(format!("--residual-share {} is not from 0 to 1", settings.residual_share).into());
    }
    let world = match &settings.data {
        Some(directory) => World::open(directory)?,
        None => World::tiny(&settings.cache.clone().map_or_else(World::default_cache, Ok)?)?,
    };
    let started = Instant::now();
    let seeds: Vec<u64> = (settings.first_seed..).take(usize::try_from(settings.seeds)?).collect();
    let threads = match settings.threads {
        Some(threads) => threads.get(),
        None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    let on_done = |plan: &experiment::Plan, seed| {
        eprintln!("{}, seed {seed}: done after {:.0} s", plan.name, started.elapsed().as_secs_f64());
    };
    let share = settings.residual_share;
    let histories =
        experiment::run(&world, &seeds, settings.windows, &settings.only, share, threads, &on_done)?;
    if let Some(path) = &settings.histories {
        std::fs::write(path, serde_json::to_vec(&histories)?)?;
    }
    let table = Table::new(&histories, world.spec.model.parameters());
    if settings.json {
        println!("{}", serde_json::to_string_pretty(&table)?);
    } else {
        println!("{}", table.text());
    }
    if settings.check {
        let bounds = bounds::bounds(&table);
        let broken: Vec<_> = bounds.iter().filter(|bound| !bound.holds()).collect();
        for Bound { name, number, max } in &broken {
            eprintln!("broken: {name}: {number:.4}, at most {max:.4}");
        }
        let seats = table.honest.get("seat_windows").copied().unwrap_or_default();
        let (adversaries, count) = (table.adversaries.len(), bounds.len());
        eprintln!(
            "{adversaries} adversaries, {seats} honest seat-windows, {count} bounds, {} broken",
            broken.len()
        );
        if !broken.is_empty() {
            return Err("bounds are broken: see above".into());
        }
    }
    Ok(())
}
