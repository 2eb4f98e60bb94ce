//! The command line of `mettle`: everything a person does with a network that is no daemon.

use crate::{
    audit::{self, Audit},
    commands::{self, WalletCommand},
    model::{self, ModelCommand},
    nominate::{self, NominateCommand},
    owner::{self, RunCommand},
    prepare::{self, Prepare},
    receipts::{self, Receipts},
    report::{self, Report},
};
use clap::{Parser, Subcommand};
use node::{output::Output, program};
use std::process::ExitCode;

/// Keys, seats, stake, runs, models, data and audits of a Mettle network.
#[derive(Debug, Parser)]
#[command(name = "mettle", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Seat(WalletCommand),
    #[command(flatten)]
    Nominate(NominateCommand),
    /// Create a run, fund it, and change what its owner may change.
    #[command(subcommand)]
    Run(RunCommand),
    Receipts(Receipts),
    Audit(Audit),
    Report(Report),
    /// Export, import, evaluate and sample a model.
    #[command(subcommand)]
    Model(ModelCommand),
    /// Prepare training data.
    #[command(subcommand)]
    Dataset(DatasetCommand),
}

#[derive(Debug, Subcommand)]
enum DatasetCommand {
    Prepare(Prepare),
}

/// Runs the program named by this process's arguments.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let json = cli.json();
    program::run_to_exit(Box::pin(program::with_output(json, async |output| cli.execute(output).await)))
}

impl Cli {
    /// Whether one JSON object is wanted on standard output.
    pub fn json(&self) -> bool {
        match &self.command {
            Command::Seat(command) => command.json(),
            Command::Nominate(command) => command.json(),
            Command::Run(command) => command.json(),
            Command::Receipts(receipts) => receipts.json,
            Command::Audit(audit) => audit.json,
            Command::Report(report) => report.confirm.json,
            // They print their own.
            Command::Model(_) | Command::Dataset(_) => false,
        }
    }

    /// Runs the command; it prints and asks through `output`.
    pub async fn execute(self, output: &mut Output<'_>) -> anyhow::Result<()> {
        match self.command {
            Command::Seat(command) => commands::act(command, output).await,
            Command::Nominate(command) => nominate::act(command, output).await,
            Command::Run(command) => owner::act(command, output).await,
            Command::Receipts(receipts) => receipts::act(receipts, output).await,
            Command::Audit(audit) => audit::act(audit, output).await,
            Command::Report(report) => report::act(report, output).await,
            Command::Model(command) => model::run(command, output).await,
            Command::Dataset(DatasetCommand::Prepare(prepare)) => prepare::run(prepare).await,
        }
    }
}
