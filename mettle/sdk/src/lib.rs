#![doc = include_str!("../README.md")]

mod error;
pub mod model;
pub mod receipt;
pub mod replay;
mod run;

pub use self::model::{Model, Saved, Which};
pub use error::{Error, Kind};
pub use receipt::{SealedReceipt, verify_receipt};
pub use replay::{Replay, Replayed, Replayer};
pub use run::{Run, Source, WINDOWS_KEPT, runs};

/// The crates whose types this one returns.
pub use chain_client;
pub use daemon;
pub use gauntlet;
pub use measure;
pub use protocol;
