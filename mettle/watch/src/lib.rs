#![doc = include_str!("../README.md")]

pub mod block_clock;
pub mod draw;
pub mod evidence;
pub mod history;
pub mod observe;
pub mod page;
pub mod receipts;
pub mod sample;
pub mod server;
pub mod text;
pub mod timeline;
pub mod units;
pub mod why;
