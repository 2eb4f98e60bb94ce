//! Tests of the miner's program and its training: commands, faults, kills. `ranks` is a separate program, as it
//! inspects the children and the memory of its process.

mod cli;
mod command;
mod gives_up;
mod resume;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/test_command.rs"]
mod test_command;
