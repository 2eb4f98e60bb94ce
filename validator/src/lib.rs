#![doc = include_str!("../README.md")]

pub mod aggregator;
pub mod audit;
pub mod cli;
pub mod commit_reveal;
pub mod evaluate;
pub mod gather;
pub mod gauntlet;
pub mod receipts;
pub mod salt;
pub mod serve;
pub mod strategy;
pub mod weight_vote;
