#![doc = include_str!("../README.md")]

pub mod aggregator;
pub mod audit;
pub mod ballot;
pub mod cli;
pub mod conduct;
pub mod evaluate;
pub mod gather;
pub mod gauntlet;
pub mod hidden;
pub mod receipts;
pub mod salt;
pub mod serve;
