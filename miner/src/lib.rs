#![doc = include_str!("../README.md")]

pub mod cli;
pub mod compress;
pub mod conduct;
pub mod outbox;
pub mod progress;
pub mod publish;
pub mod run;
pub mod snapshot;
pub mod spool;
pub mod train;
