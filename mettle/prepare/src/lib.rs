#![doc = include_str!("../README.md")]

mod bucket;
mod bucket_output;
mod cargo_text;
mod default_text;
mod documents;
mod encode;
mod error;
mod files;
mod formats;
mod near;
mod options;
mod output_lock;
mod parts;
mod pipeline;
mod prepare;
mod quality;
mod scan;
mod select;
mod shard;
mod source;
mod token_stream;
mod walk;

pub use bucket::{Bucket, BucketError, BucketUrl, ObjectInfo, ReadAt, ReadFrom};
pub use bucket_output::{BucketOutput, prepare_into_bucket};
pub use cargo_text::cargo_homes;
pub use default_text::PinnedCrate;
pub use error::{PrepareError, SourceError};
pub use options::{OutputDirectory, PrepareOptions, Progress, TokenizerChoice};
pub use parts::{Part, PartError, Stage, StageResult, prepare_stage};
pub use prepare::{PrepareStats, Prepared, SourceStats, prepare};
pub use quality::{QualityRule, RuleError};
pub use source::{Source, TEXT_FIELD};
