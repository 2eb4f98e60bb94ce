//! Files in a directory during preparation, beside those of every dataset.

use dataset::{manifest_path, shards_path, tokenizer_path, unigram_path};
use std::path::{Path, PathBuf};

/// Returns the path of the description of a directory that [`crate::prepare`] made.
pub(crate) fn prepared_path(directory: &Path) -> PathBuf {
    directory.join("prepared.json")
}

/// Returns whether a path belongs in the directory of a dataset.
pub(crate) fn belongs(path: &Path) -> bool {
    let directory = path.parent().unwrap_or(Path::new(""));
    let ours = [manifest_path, tokenizer_path, shards_path, prepared_path, unigram_path];
    ours.iter().any(|name| name(directory) == path)
}
