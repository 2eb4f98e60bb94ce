//! The paths in the directory of a dataset.
//!
//! Shards are named by their digest, so a node that fetches a dataset knows the paths from the manifest.

use protocol::Digest;
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// The manifest's canonical bytes.
pub fn manifest_path(directory: &Path) -> PathBuf {
    directory.join(MANIFEST)
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
    directory.join(SHARDS)
}

/// The description of a directory that [`crate::prepare`] made.
pub(crate) fn prepared_path(directory: &Path) -> PathBuf {
    directory.join("prepared.json")
}

/// The unigram loss, which is computed once.
pub(crate) fn unigram_path(directory: &Path) -> PathBuf {
    directory.join("unigram-loss.txt")
}

/// Whether a path is one of the above in the directory of a dataset.
pub(crate) fn belongs(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(Path::new(""));
    let ours = [manifest_path, tokenizer_path, shards_path, prepared_path, unigram_path];
    ours.iter().any(|name| name(directory) == path)
}

/// The names of a dataset's files but its shards and its manifest.
pub(crate) const SMALL_FILES: [&str; 3] = ["tokenizer.json", "unigram-loss.txt", "prepared.json"];
pub(crate) const MANIFEST: &str = "manifest.json";
pub(crate) const SHARDS: &str = "shards";
/// In a copy of all but the shards of a dataset in a bucket.
pub(crate) const SHARDS_ELSEWHERE: &str = "shards-in-bucket";

/// The whole file, or `None` if it is longer than `limit` bytes. Reads at most `limit + 1` bytes.
pub(crate) fn read_bounded(path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    Ok((read as u64 <= limit).then_some(bytes))
}
