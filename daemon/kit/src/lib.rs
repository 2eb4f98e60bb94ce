#![doc = include_str!("../README.md")]

pub mod blocking;
pub mod codec;
pub mod config;
pub mod create;
pub mod data;
pub mod durable;
pub mod exit;
pub mod http;
pub mod journal;
pub mod metrics;
pub mod node;
pub mod open;
pub mod peers;
pub mod program;
pub mod prune;
pub mod receipts;
pub mod service;
pub mod shards;
pub mod spill;
pub mod state;
pub mod step;
pub mod storage;
pub mod sync;
pub mod traces;
pub mod witness;

pub use crate::codec::{Codec, Contribution};
pub use crate::node::{Node, NodeError};
pub use blocking::{Blocking, Executor, Lent, Work, WorkDied};
pub use config::{Flags, ReadOnlyConfig, Settings};
pub use journal::{Entry, Journal};
pub use metrics::Metrics;
pub use open::{NodeContext, PublishedRun, ReadOnlyContext, open, open_published_run, open_read_only};
pub use peers::Peers;
pub use prune::prune;
pub use service::ServiceManager;
pub use spill::{HeldContribution, Spill};
pub use state::{ModelState, StateError};
pub use step::{Skip, Stop};
pub use storage::{Row, Storage};
pub use store::error_chain;
pub use sync::{
    FollowError, Followed, Follower, SyncDriver, SyncError, checkpoint, follow, mirrors, pieces, shares,
    wait_briefly, wait_past,
};
pub use witness::{ChainWitness, WitnessError};
