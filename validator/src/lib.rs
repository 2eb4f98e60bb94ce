#![doc = include_str!("../README.md")]

pub mod attest;
pub mod cli;
pub mod evaluate;
pub mod gather;
pub mod judge;
pub mod merge;
pub mod probes;
pub mod report;
pub mod run;
pub mod salt;
pub mod signed_db;
pub mod step;
pub mod strategy;
mod validator;
pub mod veto;
mod vote;
mod weights;
