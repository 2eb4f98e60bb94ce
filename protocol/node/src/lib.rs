#![doc = include_str!("../README.md")]

pub mod checkpoint;
pub mod codec;
pub mod config;
pub mod create;
pub mod data;
pub mod files;
pub mod follow;
pub mod hold;
pub mod journal;
pub mod kept;
pub mod metrics;
pub mod mirrors;
pub mod moved;
pub mod open;
pub mod output;
mod partial;
pub mod pieces;
pub mod program;
pub mod room;
pub mod shards;
pub mod shares;
pub mod state;
pub mod tidy;

pub use crate::codec::{Codec, Contribution};
pub use config::{Flags, Reading, Settings};
pub use follow::{FollowError, Followed, Follower};
pub use hold::{HoldError, Holder, causes, wait_a_little, wait_past};
pub use journal::{Entry, Journal};
pub use metrics::Metrics;
pub use open::{Opened, Published, Reader, open, open_published, open_to_read};
pub use state::{ModelState, StateError};
pub use tidy::tidy;
