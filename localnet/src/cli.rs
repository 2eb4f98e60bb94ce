//! The command line of `localnet`.

use crate::{roles, up};
use clap::{Parser, Subcommand};
use node::program;
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
    /// Start chain, store, miners and validators, and show what they do.
    Up(Box<up::Up>),
    /// One process of a network; `up` starts these.
    #[command(subcommand, hide = true)]
    Role(roles::Role),
}

pub fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Up(up) => program::run_to_exit(Box::pin(up::run(*up))),
        Command::Role(role) => roles::run(role),
    }
}
