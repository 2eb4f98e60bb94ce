#![doc = include_str!("../README.md")]

mod bucket;
mod cargo_text;
mod default_text;
mod documents;
mod encode;
mod error;
mod files;
mod formats;
mod join;
mod near;
mod options;
mod output_lock;
mod pipeline;
mod prepare;
mod quality;
mod scan;
mod select;
mod shard;
mod source;
mod text_file;
mod upload;
mod walk;

pub use bucket::{Bucket, BucketUrl};
pub use cargo_text::cargo_homes;
pub use default_text::PinnedCrate;
pub use error::{BucketError, PrepareError, SourceError};
pub use join::join;
pub use options::{OutputDirectory, PrepareOptions, Progress, TokenizerChoice};
pub use prepare::{PrepareStats, Prepared, SourceStats, prepare};
pub use quality::{QualityRule, RuleError};
pub use source::{Source, TEXT_FIELD};
pub use upload::{BucketOutput, prepare_into_bucket};
