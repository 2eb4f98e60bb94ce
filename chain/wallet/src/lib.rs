#![doc = include_str!("../README.md")]

pub mod audit;
pub mod cli;
pub mod commands;
pub mod create;
pub mod evaluation;
mod formats;
pub mod model;
pub mod nominate;
pub mod owner;
pub mod prepare;
pub mod receipts;
pub mod report;
pub mod sign;
pub mod status;
pub mod time;

pub use commands::WalletCommand;
