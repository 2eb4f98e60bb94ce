#![doc = include_str!("../README.md")]

pub mod checkpoint;
pub mod codec;
pub mod data;
pub mod files;
pub mod follow;
pub mod hold;
pub mod journal;
pub mod kept;
pub mod mirrors;
mod partial;
pub mod pieces;
pub mod room;
pub mod shards;
pub mod shares;
pub mod spec;
pub mod state;
pub mod tidy;

pub use crate::codec::{Codec, Contribution};
pub use follow::{FollowError, Followed, Follower};
pub use hold::{HoldError, Holder, causes, wait_a_little, wait_past};
pub use journal::{Entry, Journal};
pub use spec::RunSpec;
pub use state::{ModelState, StateError};
pub use tidy::tidy;
