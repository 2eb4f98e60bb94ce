//! A node of a Mettle chain: makes blocks, agrees with others on which are final, and answers clients.
//!
//! All of it is stock: Aura says whose turn it is to make a block, GRANDPA what is final, ParityDB keeps it, litep2p
//! carries it. What the chain decides is in the runtime, which is data of the chain itself: a node runs whatever
//! runtime the chain says, and this program carries one only for the first block of a new chain.

mod cli;
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
