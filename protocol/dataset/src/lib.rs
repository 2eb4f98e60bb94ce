#![doc = include_str!("../README.md")]

mod bpe;
mod cargo_text;
mod claim;
mod documents;
mod encode;
mod files;
mod formats;
mod manifest;
mod pipeline;
mod prepare;
mod reader;
mod scan;
mod select;
mod shard;
mod source;
mod stream;
mod tokenizer;
mod tree;
mod words;

pub use cargo_text::{DEFAULT_TEXT, PinnedCrate, cargo_homes};
pub use files::{manifest_path, shard_path, tokenizer_path};
pub use formats::{Compression, Formats, PlainFormats, Rows};
pub use manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError, ShardInfo};
pub use prepare::{
    OutputDirectory, PrepareError, PrepareOptions, PrepareStats, Prepared, Progress, SourceStats,
    TokenizerChoice, prepare,
};
pub use reader::{Dataset, OpenError, PieceSource, PieceSourceError, ReadError, ShardRange, ShardRepair};
pub use source::{Source, SourceError, TEXT_FIELD};
pub use stream::{BatchStream, Position, Prefetch, StreamError};
pub use tokenizer::{TextEncoder, TextTokenizer, TokenizerError};
pub use tree::{PIECE_BYTES, ShardTree, TreeBuilder, TreeMismatch};
