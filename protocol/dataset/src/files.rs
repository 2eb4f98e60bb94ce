//! Which file of a dataset's directory holds what, and nothing else that knows it.
//!
//! Shards are named by their digest, so whoever fetches a dataset from a store writes the objects here under
//! names that it knows from the manifest.

use protocol::Digest;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// The manifest's canonical bytes.
pub fn manifest_path(directory: &Path) -> PathBuf {
    directory.join("manifest.json")
}

/// The tokenizer, in the Hugging Face format.
pub fn tokenizer_path(directory: &Path) -> PathBuf {
    directory.join("tokenizer.json")
}

/// The tokens of one shard.
pub fn shard_path(directory: &Path, digest: &Digest) -> PathBuf {
    shards_path(directory).join(digest.to_string())
}

pub(crate) fn shards_path(directory: &Path) -> PathBuf {
    directory.join("shards")
}

/// What the directory was prepared from; only where [`crate::prepare`] made it.
pub(crate) fn prepared_path(directory: &Path) -> PathBuf {
    directory.join("prepared.json")
}

/// The unigram loss, so that it is computed once.
pub(crate) fn unigram_path(directory: &Path) -> PathBuf {
    directory.join("unigram-loss.txt")
}

/// Whether a path in a dataset's directory is one of the above.
pub(crate) fn belongs(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(Path::new(""));
    let ours = [manifest_path, tokenizer_path, shards_path, prepared_path, unigram_path];
    ours.iter().any(|name| name(directory) == path)
}

/// The whole file, or `None` if it is longer than `limit` bytes. Never holds more than `limit + 1` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((read as u64 <= limit).then_some(bytes))
}
