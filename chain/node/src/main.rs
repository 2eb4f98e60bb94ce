//! A node of a Mettle chain: makes and finalises blocks, and serves clients.
//!
//! All parts are Substrate's: Aura chooses block authors, GRANDPA finalises, ParityDB stores, litep2p connects. The
//! rules are in the runtime, which is part of the chain's state. A node runs the chain's runtime, and uses the one in
//! this program only for the first block of a new chain.

mod cli;
mod parts;
mod rpc;
mod service;
mod spec;

use std::process::ExitCode;

fn main() -> ExitCode {
    match cli::run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mettle-node: {error}");
            ExitCode::FAILURE
        }
    }
}
