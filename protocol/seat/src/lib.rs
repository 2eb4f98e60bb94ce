#![doc = include_str!("../README.md")]

pub mod create;
pub mod metrics;
pub mod nominate;
pub mod open;
pub mod owner;
pub mod program;
pub mod settings;
pub mod sign;
pub mod status;
pub mod time;
pub mod verbs;

pub use metrics::Metrics;
pub use open::{Opened, Published, Reader, open, open_published, open_to_read};
pub use settings::{Flags, Reading, Settings};
pub use verbs::Verb;
