#![doc = include_str!("../README.md")]

mod bucket;
mod directory;
pub mod faults;
pub mod fetch;
pub mod memory;
mod named;
mod object;
mod post;
pub mod s3;
pub mod tls;
mod traffic;

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::keys::ObjectKey;

pub use bucket::{BucketError, check_bucket};
pub use directory::{DirectoryStore, Partial};
pub use faults::{Faults, FaultyStore, Rate};
pub use fetch::{
    BufferSink, Fetch, FetchError, FetchPlan, HttpFetcher, Limits, Sink, fetch_verified, fetch_verified_into,
};
pub use memory::MemoryStore;
pub use named::NamedObject;
pub use post::{HttpPoster, PostError};
pub use s3::{Credentials, S3Settings, S3Store};
pub use traffic::{Traffic, TrafficTotals};

/// A node's own bucket. The node writes to it; others read it through [`Fetch`].
///
/// Names derive from contents (PROT-12), so every operation may be repeated after a failure with an unknown outcome.
/// No operation is conditional, because some stores accept a conditional write and ignore the condition. None returns
/// a time, because the clock of a store is its owner's (PROT-1).
#[async_trait]
pub trait Store: Send + Sync {
    /// Returns a description of the bucket, for logs and error texts. Never contains a secret.
    fn describe(&self) -> String;

    /// Writes an object atomically: no reader ever sees a part of it. Replaces an object of the same name.
    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError>;

    /// Writes the contents of a file, in parts if the store supports them. Returns the bytes written.
    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError>;

    /// Reads a whole object of at most `max_bytes`. A larger one is refused before its contents are read.
    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError>;

    /// Reads the bytes `range` of an object, or fewer if it ends earlier, and returns the object's length too. The
    /// default implementation reads the whole object.
    async fn read(&self, key: &ObjectKey, range: Range<u64>) -> Result<(u64, Bytes), StoreError> {
        let whole = self.get(key, u64::MAX).await?;
        let at = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX).min(whole.len());
        Ok((whole.len() as u64, whole.slice(at(range.start).min(at(range.end))..at(range.end))))
    }

    /// Removes an object. Succeeds if the object does not exist.
    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError>;

    /// Lists at most `max_entries` objects below `prefix`, in the order of their names. The prefix is a whole number
    /// of name parts (`a/b` finds `a/b/c`, never `a/bc`); an empty one lists all objects.
    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError>;

    /// Returns the bytes of object contents that were uploaded and downloaded since the store was opened.
    fn traffic(&self) -> TrafficTotals;
}

/// The result of [`Store::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The objects in the order of their names.
    pub entries: Vec<Entry>,
    /// False if there are more objects than requested.
    pub complete: bool,
}

/// An object in a [`Listing`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Name in the bucket. Foreign objects may have names that are not an [`ObjectKey`].
    pub name: String,
    pub bytes: u64,
}

impl Entry {
    /// Returns the name as a key, if it is one.
    pub fn key(&self) -> Option<ObjectKey> {
        self.name.parse().ok()
    }
}

/// An operation of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    Write,
    Read,
    LookUp,
    Delete,
    List,
}

impl std::fmt::Display for Action {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Action::Write => "write",
            Action::Read => "read",
            Action::LookUp => "look up",
            Action::Delete => "delete",
            Action::List => "list",
        })
    }
}

/// The cause of a [`StoreError`].
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Error of an operation of the node's own store.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("there is no object {key}")]
    NotFound { key: String },
    #[error("object {key} has {bytes} bytes, more than the {max_bytes} allowed")]
    TooLarge { key: String, bytes: u64, max_bytes: u64 },
    #[error("there is no bucket at {store}: create it, or correct its name")]
    NoBucket { store: String },
    #[error("{store} refused to {action} {name}: check the access key, its secret and what it may do")]
    Denied { store: String, action: Action, name: String, source: Source },
    #[error("{store} has no space to {action} {name}: free some space, then try again")]
    Full { store: String, action: Action, name: String, source: Source },
    #[error("could not {action} {name} in {store} within {after:?}")]
    Deadline { store: String, action: Action, name: String, after: Duration },
    #[error("could not {action} {name} in {store}")]
    Unavailable { store: String, action: Action, name: String, source: Source },
    #[error("{store} gave {got} of the {expected} bytes of {key}")]
    CutShort { store: String, key: String, got: u64, expected: u64 },
    #[error("{name} in {store} has changed since it was listed; run the same command again")]
    Changed { store: String, name: String },
    #[error("{name} cannot be the name of an object: {why}")]
    BadName { name: String, why: String },
    #[error("could not read the file {path}")]
    File { path: String, source: std::io::Error },
    #[error("the settings of the store cannot be used: {what}")]
    Settings { what: String },
}

impl StoreError {
    pub fn is_not_found(&self) -> bool {
        matches!(self, StoreError::NotFound { .. })
    }

    /// Returns whether the store refused a signature for its time: one of the two clocks is wrong, not the key.
    pub fn blames_clock(&self) -> bool {
        error_chain(self).contains("RequestTimeTooSkewed")
    }

    /// Returns whether the same call may succeed later with the same settings.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            StoreError::Full { .. }
                | StoreError::Deadline { .. }
                | StoreError::Unavailable { .. }
                | StoreError::CutShort { .. }
        )
    }
}

/// Returns a caller's prefix without slashes at its ends.
fn trimmed(prefix: &str) -> &str {
    prefix.trim_matches('/')
}

/// Returns whether `name` is below `prefix`, counted in whole parts.
fn is_below(name: &str, prefix: &str) -> bool {
    prefix.is_empty() || name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'))
}

/// Formats an error and its sources on one line, without sources that repeat the text before them.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let errors = std::iter::successors(Some(error), |error| (**error).source());
    let mut texts: Vec<String> = errors.map(ToString::to_string).collect();
    texts.dedup();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_counts_in_whole_parts() {
        assert!(is_below("a/b/c", "a/b"));
        assert!(!is_below("a/bc", "a/b"));
        assert!(!is_below("a/b", "a/b"));
        assert!(is_below("anything", ""));
        assert_eq!(trimmed("/a/b/"), "a/b");
    }

    #[test]
    fn only_an_error_that_may_pass_is_worth_a_retry() {
        let source = || Box::<dyn std::error::Error + Send + Sync>::from("x");
        let (store, name) = (String::new(), String::new());
        let full = StoreError::Full {
            store: store.clone(),
            action: Action::Write,
            name: name.clone(),
            source: source(),
        };
        let denied = StoreError::Denied { store, action: Action::Write, name, source: source() };
        assert!(full.may_pass() && !denied.may_pass());
        assert!(!StoreError::NotFound { key: String::new() }.may_pass());
    }
}
