#![doc = include_str!("../README.md")]

mod ahead;
pub mod cli;
pub mod command;
mod commit;
pub mod compress;
pub mod contribution_store;
pub mod error;
pub mod local;
mod miner;
mod observer;
pub mod profile;
pub mod progress;
pub mod ranks;
pub mod run;
pub mod shutdown;
pub mod start;
pub mod strategy;
pub mod train;
mod train_window;
mod without_model;
