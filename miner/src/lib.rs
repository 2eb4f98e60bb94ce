#![doc = include_str!("../README.md")]

pub mod cli;
pub mod compress;
pub mod contribution_store;
pub mod pending_store;
pub mod progress;
pub mod publish;
pub mod run;
pub mod snapshot;
pub mod strategy;
pub mod train;
