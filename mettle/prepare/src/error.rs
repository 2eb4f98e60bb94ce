//! Errors of the preparation of a dataset.

use crate::default_text::PinnedCrate;
use dataset::{MAX_TOKENIZER_BYTES, ManifestError, OpenError, ReadError, durable, durable::Readers};
use protocol::Digest;
use std::{
    io,
    ops::RangeInclusive,
    path::{Path, PathBuf},
};
use tokenizer::TokenizerError;

/// Maximum size of a document, in bytes. One document must fit into memory.
pub(crate) const MAX_DOCUMENT_BYTES: usize = 64 << 20;
/// The similarities of near-duplicates. Below, unlike documents are found; above, only equal ones.
pub(crate) const SIMILARITIES: RangeInclusive<f64> = 0.5..=0.99;

/// Failure of an operation on a [`Bucket`](crate::Bucket).
pub type BucketError = Box<dyn std::error::Error + Send + Sync>;

/// Reason why a text could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} is not UTF-8 text: its first {valid_bytes} bytes are, the next one is not", path.display())]
    NotText { path: PathBuf, valid_bytes: usize },
    #[error("the name of {} is not UTF-8", path.display())]
    NameNotText { path: PathBuf },
    #[error("document {number} of {} has more than {MAX_DOCUMENT_BYTES} bytes; cut it into several", path.display())]
    TooLong { path: PathBuf, number: u64 },
    #[error("line or row {number} of {} cannot be used: {reason}", path.display())]
    Item { path: PathBuf, number: u64, reason: String },
    #[error("{} cannot be read as Parquet: {reason}", path.display())]
    Parquet { path: PathBuf, reason: String },
    #[error("{} has no column {field:?}; it has {columns}", path.display())]
    NoColumn { path: PathBuf, field: String, columns: String },
    #[error("{} changed while it was being read; run the same command again", path.display())]
    Changed { path: PathBuf },
    #[error("{url:?} names no place in a bucket: {reason}; write s3://BUCKET/PREFIX")]
    Url { url: String, reason: &'static str },
    #[error("cannot use {place}")]
    Bucket { place: String, source: BucketError },
    #[error("{place} is no object, and no object is below it: check bucket and prefix")]
    NoObject { place: String },
    #[error("more than {most} objects are below {place}; name a longer prefix")]
    TooManyObjects { place: String, most: usize },
    #[error("{} describes no mixture: {reason}", path.display())]
    Mixture { path: PathBuf, reason: String },
    #[error("{name} has the weight {weight}; it must be a number between 0.000001 and 1000000")]
    Weight { name: String, weight: f64 },
    #[error(
        "the source of {wanted}, which is part of the default text, is not under {}; \
         run `cargo fetch` in the project, or name a text of your own",
        listed(homes)
    )]
    CrateMissing { wanted: PinnedCrate, homes: Vec<PathBuf> },
    #[error(
        "{} differs from what was published as {wanted} (its digest is {found}, not {}); \
         remove that directory and run `cargo fetch` in the project",
        path.display(), wanted.digest
    )]
    CrateDiffers { wanted: PinnedCrate, path: PathBuf, found: Digest },
}

/// Reason why a dataset could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("the text cannot be used")]
    Source(#[from] SourceError),
    #[error("the tokenizer {} cannot be used", path.display())]
    TokenizerFile { path: PathBuf, source: TokenizerError },
    #[error("cannot read the tokenizer {}", path.display())]
    TokenizerUnreadable { path: PathBuf, source: io::Error },
    #[error("{} has more than {MAX_TOKENIZER_BYTES} bytes and is no tokenizer", path.display())]
    TokenizerTooLarge { path: PathBuf },
    #[error("the text cannot be turned into tokens")]
    Tokenizer(#[from] TokenizerError),
    #[error("document {number} of {} cannot be turned into tokens", path.display())]
    NotEncoded { path: PathBuf, number: u64, source: TokenizerError },
    #[error(
        "{place} is part of the text {text}: the dataset would be read as text; write it to a prefix outside"
    )]
    BelowText { place: String, text: String },
    #[error("the source {name} of the mixture has no text of its own")]
    EmptySource { name: String },
    #[error("{option} is {value}; it must be between {least} and {most}")]
    BadOption { option: &'static str, value: u64, least: u64, most: u64 },
    #[error("near-duplicates of similarity {given}; it must be between {} and {}", SIMILARITIES.start(), SIMILARITIES.end())]
    Similarity { given: f64 },
    #[error("too little text: {bytes} bytes, where sequences of {seq_len} tokens need at least {needed}")]
    TooLittleText { bytes: u64, needed: u64, seq_len: u32 },
    #[error(
        "{} has files that are no dataset of this program; choose another directory",
        directory.display()
    )]
    Foreign { directory: PathBuf },
    #[error(
        "{} has a dataset of another text or with other options; remove it or choose another directory",
        directory.display()
    )]
    OtherInputs { directory: PathBuf },
    #[error("the dataset in {} is damaged; remove it to prepare it again", directory.display())]
    Damaged { directory: PathBuf, source: OpenError },
    #[error("cannot read {}", directory.display())]
    Unreadable { directory: PathBuf, source: io::Error },
    #[error("the disk is full: cannot write {}; free some space and run the same command again, which resumes", path.display())]
    DiskFull { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("the text makes a dataset that no manifest can describe")]
    Manifest(#[from] ManifestError),
    #[error("the dataset in {} cannot be read back; remove it to prepare it again", directory.display())]
    NotReadBack { directory: PathBuf, source: ReadError },
    #[error("cannot use {place}, where the dataset is to be; the same command resumes")]
    Bucket { place: String, source: BucketError },
    #[error(
        "{} has the {what} {found}, and {} has {expected}; prepare every part with the same --tokenizer and --sequence",
        part.display(), first.display()
    )]
    PartDiffers { part: PathBuf, first: PathBuf, what: &'static str, found: String, expected: String },
    #[error("{} and {} have the same shard {shard}; name each part once", part.display(), other.display())]
    PartTwice { part: PathBuf, other: PathBuf, shard: Digest },
}

impl PrepareError {
    /// Returns whether a later attempt may succeed, so that this one is worth keeping.
    pub(crate) fn may_pass(&self) -> bool {
        matches!(
            self,
            PrepareError::DiskFull { .. }
                | PrepareError::Unwritable { .. }
                | PrepareError::Bucket { .. }
                | PrepareError::Source(SourceError::Unreadable { .. } | SourceError::Bucket { .. })
        )
    }
}

/// Returns the error of a failed write to `path`.
pub(crate) fn unwritable(path: &Path, source: io::Error) -> PrepareError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PrepareError::DiskFull { path },
        _ => PrepareError::Unwritable { path, source },
    }
}

/// Writes a file of a dataset completely or not at all.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), PrepareError> {
    durable::write_atomic(path, bytes, Readers::Umask).map_err(|source| unwritable(path, source))
}

fn listed(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "any directory of cargo's (neither CARGO_HOME nor HOME is set)".to_owned();
    }
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" or ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_has_its_own_message() {
        use std::io::Write as _;
        let mut full = std::fs::OpenOptions::new().write(true).open("/dev/full").expect("every Linux has it");
        let error = full.write_all(b"text").expect_err("it is always full");
        let error = unwritable(Path::new("file"), error);
        assert!(matches!(&error, PrepareError::DiskFull { path: full } if full == Path::new("file")));
        assert!(error.to_string().contains("the disk is full"));
    }

    #[test]
    fn an_error_is_cheap_to_return() {
        assert!(
            size_of::<PrepareError>() < 128 && size_of::<OpenError>() < 128 && size_of::<ReadError>() < 128
        );
    }
}
