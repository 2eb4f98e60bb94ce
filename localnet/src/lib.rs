#![doc = include_str!("../README.md")]

pub mod cli;
pub mod containers;
pub mod defaults;
pub mod layout;
pub mod log;
pub mod network;
pub mod nodes;
pub mod observe;
pub mod process;
pub mod report;
pub mod roles;
pub mod seats;
pub mod setup;
pub mod table;
pub mod units;
pub mod up;
