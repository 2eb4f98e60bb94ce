//! Networks of real processes that need more than this repository: root and network namespaces (`nat`, `household`),
//! the node's program (`node`), a container engine (`compose`), SLURM (`slurm`). Those tests are ignored by default;
//! the module's name selects one kind:
//!
//! ```text
//! cargo test -p localnet --test labs -- --ignored node::
//! ```

#[allow(dead_code, reason = "shared with the other tests of whole networks")]
#[path = "../support/mod.rs"]
mod support;

mod compose;
mod household;
mod lab;
mod line;
mod nat;
mod node;
#[cfg(target_os = "linux")]
mod slurm;

use std::process::ExitCode;

fn main() -> ExitCode {
    let tests = [
        compose::tests(),
        household::tests(),
        line::tests(),
        nat::tests(),
        node::tests(),
        #[cfg(target_os = "linux")]
        slurm::tests(),
    ];
    // Real nodes and containers load the machine more than networks on the development chain.
    support::harness::main(1, tests.into_iter().flatten().collect())
}
