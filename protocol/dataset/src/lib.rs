#![doc = include_str!("../README.md")]

mod bpe;
mod cargo_text;
mod files;
mod manifest;
mod prepare;
mod reader;
mod shard;
mod source;
mod stream;
mod tokenizer;

pub use cargo_text::{DEFAULT_TEXT, PinnedCrate, cargo_homes};
pub use files::{manifest_path, shard_path, tokenizer_path};
pub use manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError, ShardInfo};
pub use prepare::{
    Figures, Place, PrepareError, PrepareOptions, Prepared, Progress, TokenizerChoice, prepare,
};
pub use reader::{Dataset, OpenError, ReadError};
pub use source::{Source, SourceError};
pub use stream::{BatchStream, Position, StreamError};
pub use tokenizer::{TextTokenizer, TokenizerError};
