//! The miner's program and its training: commands, faults, kills. `ranks` is a program of its own, as it looks at the
//! children and the memory of its process.

mod cli;
mod command;
mod gives_up;
mod resume;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/test_command.rs"]
mod test_command;
