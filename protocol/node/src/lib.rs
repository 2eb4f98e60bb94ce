#![doc = include_str!("../README.md")]

pub mod checkpoint;
pub mod codec;
pub mod config;
pub mod create;
pub mod data;
pub mod disk_full;
pub mod durable;
pub mod files;
pub mod follow;
pub mod journal;
pub mod metrics;
pub mod mirrors;
pub mod moved;
pub mod open;
pub mod output;
mod partial;
pub mod pieces;
pub mod program;
pub mod prune;
pub mod shards;
pub mod shares;
pub mod state;
pub mod sync;

pub use crate::codec::{Codec, Contribution};
pub use config::{Flags, ReadOnlyConfig, Settings};
pub use follow::{FollowError, Followed, Follower};
pub use journal::{Entry, Journal};
pub use metrics::Metrics;
pub use open::{NodeContext, PublishedRun, ReadOnlyContext, open, open_published_run, open_read_only};
pub use prune::prune;
pub use state::{ModelState, StateError};
pub use store::error_chain;
pub use sync::{SyncDriver, SyncError, wait_briefly, wait_past};
