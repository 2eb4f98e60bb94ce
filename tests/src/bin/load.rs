//! Loads one part of the network and fails if it breaks a promise; see `tests::load`.

use clap::Parser as _;
use std::process::ExitCode;
use tests::{
    heap::CountingAllocator,
    load::{self, Report},
};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Loads a part of the network far beyond what a localnet does, prints what that costs, and fails if a deadline is
/// missed, a declared pace is not kept, memory or files grow, or anything is lost.
#[derive(clap::Parser)]
#[command(name = "load")]
struct Settings {
    #[arg(value_enum)]
    scenario: Scenario,
    /// Print one line of JSON instead of text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Scenario {
    /// All calls of 1,088 seats through the embedded chain's RPC, with blocks every half second.
    Chain,
    /// A thousand readers of the localnet's S3 server, some slow, some that read nothing.
    Store,
    /// A thousand readers of a validator's network, some of them hostile, and all that send it contributions.
    Peers,
    /// Chain, store and networks of peers of eight nodes, for a thousand windows.
    Soak,
    /// A validator that gathers 124 honest contributions among 900 that are none.
    Validator,
}

fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let settings = Settings::parse();
    match run(&settings) {
        Ok(report) => {
            match settings.json {
                true => println!("{}", serde_json::to_string(&report).expect("a report is JSON")),
                false => print!("{report}"),
            }
            if report.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("{}", tests::describe_error(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(settings: &Settings) -> anyhow::Result<Report> {
    let runtime = || tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match settings.scenario {
        Scenario::Chain => runtime()?.block_on(load::chain::run(&load::chain::Size::FULL)),
        Scenario::Store => runtime()?.block_on(load::store::run(&load::store::Size::FULL)),
        Scenario::Peers => runtime()?.block_on(load::peers::run(&load::peers::Size::FULL)),
        Scenario::Soak => runtime()?.block_on(load::soak::run(&load::soak::Size::FULL)),
        Scenario::Validator => load::validator::run(&load::validator::Size::FULL),
    }
}
