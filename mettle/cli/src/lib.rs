#![doc = include_str!("../README.md")]

mod account;
mod audit;
pub mod cli;
mod dataset;
mod delegation;
mod doctor;
mod help;
mod init;
mod keys;
mod model;
mod network_flags;
pub mod output;
pub mod plan;
mod quantity;
mod receipts;
mod report;
mod run;
mod run_feed;
mod seat;
mod shell;
mod signing;
mod status;
mod submit;
mod top;
mod unsigned;
mod web;
mod why;
