//! The command line of `localnet`.

use crate::{buckets, log, roles, up};
use clap::{Parser, Subcommand};
use daemon::program;
use std::process::ExitCode;

/// The whole Mettle network on one machine.
#[derive(Debug, Parser)]
#[command(name = "localnet", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a chain, a store, miners and validators, and show the state of the network.
    Up(Box<up::Up>),
    /// Add buckets to the S3 server of a network.
    #[command(subcommand)]
    Store(buckets::StoreCommand),
    /// One process of a network; started by `up`.
    #[command(subcommand, hide = true)]
    Role(roles::Role),
}

pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Up(up) => {
            log::init();
            program::run_to_exit(Box::pin(up::run(*up)))
        }
        Command::Store(command) => {
            log::init();
            program::run_to_exit(Box::pin(buckets::run(command)))
        }
        Command::Role(role) => roles::run(role),
    }
}
