//! What cheats earn, and what they harm, in simulated networks; see `tests::sim`. Progress goes to standard error, the table or JSON to
//! standard output.

use clap::Parser as _;
use std::{error::Error, num::NonZeroUsize, path::PathBuf, process::ExitCode, time::Instant};
use tests::sim::{
    bounds::{self, Bound},
    experiment,
    table::Table,
    world::World,
};

/// Puts every adversary into a network of honest ones and tells what it is paid, by our rules and by the published ones.
#[derive(clap::Parser)]
#[command(name = "gauntlet-table")]
struct Settings {
    /// How many times everything is run, each time with other weights, data and draws.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// The first of them; the others follow.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    first_seed: u64,
    #[arg(long, value_name = "W", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    windows: u32,
    /// Only these networks, or those in which these adversaries sit, and the honest one.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Networks at once; as many as there are cores where nothing is said.
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroUsize>,
    /// Where the prepared text is kept; the user's cache where nothing is said.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    /// A prepared dataset, taken as it is.
    #[arg(long, value_name = "DIR", conflicts_with = "cache")]
    data: Option<PathBuf>,
    /// JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Fail if a cheat is paid above its bound, an honest seat is punished, or a loss is harmed.
    #[arg(long)]
    check: bool,
    /// Also write every window of every network there, as JSON.
    #[arg(long, value_name = "FILE")]
    histories: Option<PathBuf>,
}

fn main() -> ExitCode {
    match run(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", tests::explained(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> Result<(), Box<dyn Error>> {
    if let Some(unknown) =
        settings.only.iter().find(|name| experiment::names().all(|known| known != name.as_str()))
    {
        let names: Vec<&str> = experiment::names().collect();
        return Err(
            format!("there is no adversary or network {unknown:?}; there are: {}", names.join(", ")).into()
        );
    }
    let world = match &settings.data {
        Some(directory) => World::of(directory)?,
        None => World::tiny(&settings.cache.clone().map_or_else(World::cache, Ok)?)?,
    };
    let started = Instant::now();
    let seeds: Vec<u64> = (settings.first_seed..).take(usize::try_from(settings.seeds)?).collect();
    let threads = match settings.threads {
        Some(threads) => threads.get(),
        None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
    };
    let said = |plan: &experiment::Plan, seed| {
        eprintln!("{}, seed {seed}: done after {:.0} s", plan.name, started.elapsed().as_secs_f64());
    };
    let histories = experiment::run(&world, &seeds, settings.windows, &settings.only, threads, &said)?;
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
        for Bound { of, number, most } in &broken {
            eprintln!("broken: {of}: {number:.4}, at most {most:.4}");
        }
        let seats = table.honest.get("seat_windows").copied().unwrap_or_default();
        let (tried, count) = (table.adversaries.len(), bounds.len());
        eprintln!(
            "{tried} adversaries, {seats} honest seat-windows, {count} bounds, {} broken",
            broken.len()
        );
        if !broken.is_empty() {
            return Err("not every bound holds: see above".into());
        }
    }
    Ok(())
}
