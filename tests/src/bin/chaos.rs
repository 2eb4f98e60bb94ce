//! Runs simulated networks under random faults, and fails if a rule is broken; see `tests::chaos`.

use std::{error::Error, path::PathBuf, process::ExitCode};
use tests::{
    chaos::{self, FaultCounts, Options, Report},
    sim::world::World,
};

/// The networks' thread allocates for every node; with the system's allocator, that takes a quarter of its time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs a network of honest and cheating nodes in virtual time, lets drawn faults happen, and checks what must hold
/// whatever goes wrong. The same arguments repeat it to the last bit.
#[derive(clap::Parser)]
#[command(name = "chaos")]
struct Settings {
    /// Draws the faults and their times.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, from `--seed` on. Stops at the first that breaks a rule.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seeds: u64,
    #[arg(long, value_name = "N", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..=1000))]
    miners: u16,
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    validators: u16,
    /// Windows. The last ones, half of them but at most six, have no faults.
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(8..=1000))]
    windows: u32,
    /// Numbers of the faults that happen, of those that the seed draws; by default all.
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    keep: Option<Vec<usize>>,
    /// Run each network twice and compare all events.
    #[arg(long)]
    twice: bool,
    /// Print one line of JSON per network instead of text.
    #[arg(long)]
    json: bool,
    /// Directory of the prepared dataset; by default the user's cache.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match run(&clap::Parser::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{}", tests::describe_error(&*error));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether every rule holds.
fn run(settings: &Settings) -> Result<bool, Box<dyn Error>> {
    let world = World::tiny(&settings.cache.clone().map_or_else(World::default_cache, Ok)?)?;
    let (miners, validators) = (usize::from(settings.miners), usize::from(settings.validators));
    for seed in settings.seed..settings.seed.saturating_add(settings.seeds) {
        let keep = settings.keep.as_ref().map(|keep| keep.iter().copied().collect());
        let options = Options { keep, ..Options::new(seed, miners, validators, settings.windows) };
        let report = chaos::run(&world, &options)?;
        print(settings, &report)?;
        if settings.twice {
            let again = chaos::run(&world, &options)?;
            if again.trace != report.trace {
                eprintln!("seed {seed} is not repeatable: {} and {}", report.trace, again.trace);
                return Ok(false);
            }
        }
        if let Some(violation) = report.violations.first() {
            let (check, what) = (violation.check, &violation.what);
            eprintln!("seed {seed} breaks a rule: {check}: {what}\nleaving out faults that do not matter");
            let smallest = chaos::shrink(&world, report.clone())?;
            print(settings, &smallest)?;
            eprintln!("repeat it: chaos {}", smallest.options.arguments());
            return Ok(false);
        }
    }
    Ok(true)
}

fn print(settings: &Settings, report: &Report) -> Result<(), Box<dyn Error>> {
    if settings.json {
        println!("{}", serde_json::to_string(report)?);
        return Ok(());
    }
    let Report { options, faults, violations, trace, events, valid_contributions, seconds, .. } = report;
    let Report { merged_windows, merged_under_faults, checked_windows, .. } = report;
    let FaultCounts { cheats, of_all, of_validators, of_miners } = report.fault_counts;
    let (windows, disturbed) = (options.windows, options.windows - options.calm_windows());
    println!("{}", options.arguments());
    faults.iter().for_each(|fault| println!("  {fault}"));
    println!(
        "  {cheats} seats cheat; faults: {of_miners} of miners, {of_validators} of validators, {of_all} of all\n  \
         {merged_windows} of {windows} windows merged, of the {disturbed} with faults {merged_under_faults}; two \
         thirds undisturbed in {checked_windows}\n  {valid_contributions} valid contributions of honest seats, {events} \
         events, {seconds:.1} s, trace {trace}"
    );
    for violation in violations {
        println!("  BROKEN at block {}: {}: {}", violation.block, violation.check, violation.what);
    }
    Ok(())
}
