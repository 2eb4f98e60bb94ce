//! Networks of real processes, with the real chain and the real store, on this machine. Three run at once.

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
#[path = "../support/mod.rs"]
mod support;
#[path = "../../../miner/tests/support/test_command.rs"]
mod test_command;

mod adversaries;
mod bad_input;
mod kills;
mod lies;
mod network;
mod peers;
mod recovery;
mod sessions;
mod traces;

use std::process::ExitCode;

/// Number of networks at once: they mostly wait, and two cores carry three.
const LANES: usize = 3;

fn main() -> ExitCode {
    // A miner of `recovery.rs` starts this program to train.
    test_command::run();
    // The longest tests first.
    let tests = [
        recovery::tests(),
        kills::tests(),
        network::tests(),
        adversaries::tests(),
        lies::tests(),
        sessions::tests(),
        traces::tests(),
        peers::tests(),
        bad_input::tests(),
    ];
    support::harness::main(LANES, tests.into_iter().flatten().collect())
}
