#![doc = include_str!("../README.md")]
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

pub mod assign;
pub mod consensus;
pub mod contribution;
mod draw;
pub mod identity;
pub mod keys;
pub mod lineage;
pub mod merge;
pub mod norms;
pub mod params;
pub mod peer;
pub mod probe;
pub mod receipt;
pub mod reveal;
pub mod select;
pub mod statement;
pub mod submission;
pub mod view;
pub mod weights;
pub mod window;

pub use identity::{Digest, GenesisHash, Hotkey, Role, RunId, SeatId, Uid};
pub use params::{RunParams, Terms};
pub use window::{Block, Phase, Schedule, Window};

/// Returns the error unless the condition holds.
#[macro_export]
macro_rules! ensure {
    ($condition:expr, $error:expr $(,)?) => {
        if !$condition {
            return Err($error.into());
        }
    };
}

/// The version of the rules themselves. Releases change; this changes only when a rule does.
pub const PROTOCOL_VERSION: u16 = 1;
