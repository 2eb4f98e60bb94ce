//! Paths in the directory of a dataset.
//!
//! Shards are named by their digest, so a node that fetches a dataset knows the paths from the manifest.

use protocol::Digest;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Returns the path of the manifest's canonical bytes.
pub fn manifest_path(directory: &Path) -> PathBuf {
    directory.join("manifest.json")
}

/// Returns the path of the tokenizer, in the Hugging Face format.
pub fn tokenizer_path(directory: &Path) -> PathBuf {
    directory.join("tokenizer.json")
}

/// Returns the path of one shard's tokens.
pub fn shard_path(directory: &Path, digest: &Digest) -> PathBuf {
    shards_path(directory).join(digest.to_string())
}

/// Returns the directory of all shards.
pub fn shards_path(directory: &Path) -> PathBuf {
    directory.join("shards")
}

/// Returns the path of the unigram loss, which is computed once.
pub fn unigram_path(directory: &Path) -> PathBuf {
    directory.join("unigram-loss.txt")
}

/// Reads a whole file; `None` if it is longer than `limit` bytes. Reads at most `limit + 1` bytes.
///
/// # Errors
/// If the file cannot be read.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((read as u64 <= limit).then_some(bytes))
}
