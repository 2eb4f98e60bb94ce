//! The command line.

use crate::{
    profile::command::ProfileArgs,
    ranks,
    start::{self, Start},
    strategy::DefaultStrategy,
};
use clap::{Parser, Subcommand};
use daemon::program;
use std::{ffi::OsString, path::PathBuf, process::ExitCode};

/// Trains on the data that the chain assigns, and is paid by what the work was worth.
#[derive(Debug, Parser)]
#[command(name = "miner", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Mine window after window, until Ctrl-C.
    Start(Box<Start>),
    /// One of the ranks of `start --ranks`, which starts it.
    #[command(hide = true)]
    Worker,
    /// Show where the time of a window goes, or of a training step without a seat.
    ///
    /// Mines like `start`: it needs the seat, commits and uploads. After N whole windows it stops as on Ctrl-C, writes
    /// a trace for ui.perfetto.dev and prints the share of each phase. With --model it measures training steps on
    /// random tokens instead, and needs no seat, key or chain.
    Profile(Box<ProfileArgs>),
    /// Print the endpoint to register a seat without a bucket with.
    ///
    /// It names the key of this node in the directory, which is made if it is not there.
    Endpoint {
        /// The directory of the settings file.
        #[arg(long, value_name = "DIR", env = "METTLE_DIRECTORY", default_value = "mettle-data")]
        directory: PathBuf,
    },
}

/// Runs the program named by this process's arguments.
pub fn main() -> ExitCode {
    main_with(std::env::args_os())
}

/// Runs the program with `arguments`, the program's name first.
pub fn main_with(arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Cli::parse_from(arguments).command {
        Command::Worker => program::run_to_exit(Box::pin(ranks::child())),
        Command::Start(start) => {
            program::run_to_exit(start::start(*start, Box::new(|_| Box::new(DefaultStrategy))))
        }
        Command::Profile(profile) => profile.run_to_exit(),
        Command::Endpoint { directory } => program::run_to_exit(Box::pin(async move {
            println!("{}", daemon::peers::endpoint(&directory)?);
            Ok(())
        })),
    }
}
