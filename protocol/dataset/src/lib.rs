#![doc = include_str!("../README.md")]

pub mod durable;
mod files;
mod held_out;
mod manifest;
mod reader;
mod stream;
mod tree;

pub use files::{manifest_path, read_bounded, shard_path, shards_path, tokenizer_path, unigram_path};
pub use held_out::LossEstimate;
pub use manifest::{
    MAX_MANIFEST_BYTES, MAX_SEQUENCE_TOKENS, MAX_SHARD_BYTES, MAX_VOCAB, Manifest, ManifestError, ShardInfo,
    token_bytes_for,
};
pub use reader::{
    Dataset, MAX_TOKENIZER_BYTES, OpenError, PieceSource, PieceSourceError, ReadError, ShardRange,
    ShardRepair,
};
pub use stream::Prefetch;
pub use tree::{PIECE_BYTES, ShardTree, TreeBuilder, TreeMismatch};
