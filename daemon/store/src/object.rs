//! The operations of an [`S3Store`]: limits, deadlines, counting and typed errors around `object_store`.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::TryStreamExt;
use futures::future::OptionFuture;
use object_store::aws::AmazonS3;
use object_store::path::Path as Location;
use object_store::{GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt};
use protocol::ensure;
use protocol::keys::ObjectKey;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::task::{JoinHandle, JoinSet};

use crate::s3::upload_deadline;
use crate::{
    Action, Entry, Listing, Store, StoreError, Traffic, TrafficTotals, error_chain, is_below, trimmed,
};

/// Size of the parts of larger objects; more if there would otherwise be more than [`PARTS_MAX`]. S3 requires at least
/// 5 MiB, and some stores require equal sizes of all parts except the last.
const PART_BYTES: usize = 8 << 20;
/// Maximum number of parts of an object: S3's limit.
const PARTS_MAX: u64 = 10_000;
/// Number of concurrent uploads of parts. With the size of a part it bounds the memory of an upload.
const PARTS_AT_ONCE: usize = 4;
/// Time limit for a store to drop the parts of a failed upload.
const ABORT_WITHIN: Duration = Duration::from_secs(10);

/// A node's own bucket at an S3-compatible provider. Opened with [`S3Store::open`].
pub struct S3Store {
    pub(crate) backend: AmazonS3,
    pub(crate) describe: String,
    /// Time limit of a whole operation with all retries. An upload has more time ([`crate::s3::upload_deadline`]).
    pub(crate) deadline: Duration,
    pub(crate) traffic: Traffic,
}

#[async_trait]
impl Store for S3Store {
    fn describe(&self) -> String {
        self.describe.clone()
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        self.upload(key.as_str(), Path::new("memory"), bytes.len() as u64, &bytes[..]).await.map(drop)
    }

    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let failed = |source| unreadable(path, source);
        let file = tokio::fs::File::open(path).await.map_err(failed)?;
        let length = file.metadata().await.map_err(failed)?.len();
        self.upload(key.as_str(), path, length, file).await
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        let at = location(key)?;
        let too_large = |bytes| StoreError::TooLarge { key: key.to_string(), bytes, max_bytes };
        self.within(self.deadline, Action::Read, key.as_str(), async {
            let found = self.backend.get(&at).await?;
            let expected = found.meta.size;
            ensure!(expected <= max_bytes, too_large(expected));
            // The length that the node's own store announces is trusted up to the limit.
            let mut whole = BytesMut::with_capacity(usize::try_from(expected).unwrap_or(0));
            let mut chunks = found.into_stream();
            while let Some(chunk) = chunks.try_next().await? {
                self.traffic.add_down(chunk.len() as u64);
                whole.extend_from_slice(&chunk);
                ensure!(whole.len() as u64 <= max_bytes, too_large(whole.len() as u64));
            }
            let got = whole.len() as u64;
            if got != expected {
                let (store, key) = (self.describe(), key.to_string());
                return Err(StoreError::CutShort { store, key, got, expected }.into());
            }
            Ok(whole.freeze())
        })
        .await
    }

    async fn read(&self, key: &ObjectKey, range: Range<u64>) -> Result<(u64, Bytes), StoreError> {
        let at = location(key)?;
        self.within(self.deadline, Action::Read, key.as_str(), async {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            let found = self.backend.get_opts(&at, options).await?;
            let length = found.meta.size;
            let bytes = found.bytes().await?;
            self.traffic.add_down(bytes.len() as u64);
            Ok((length, bytes))
        })
        .await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let at = location(key)?;
        let delete = async { Ok(self.backend.delete(&at).await?) };
        let deleted = self.within(self.deadline, Action::Delete, key.as_str(), delete).await;
        match deleted {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        let prefix = trimmed(prefix);
        let below = match prefix {
            "" => None,
            _ => Some(parsed(prefix)?),
        };
        self.within(self.deadline, Action::List, prefix, async {
            let mut found = self.backend.list(below.as_ref());
            let mut entries = std::collections::BTreeSet::new();
            let mut complete = true;
            while let Some(object) = found.try_next().await? {
                if is_below(object.location.as_ref(), prefix) {
                    entries.insert(Entry { name: object.location.to_string(), bytes: object.size });
                    if entries.len() > max_entries {
                        entries.pop_last();
                        complete = false;
                    }
                }
            }
            Ok(Listing { entries: entries.into_iter().collect(), complete })
        })
        .await
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

/// The failure of an operation, before the backend's errors are converted to [`StoreError`]s.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Backend(#[from] object_store::Error),
    #[error(transparent)]
    Typed(#[from] StoreError),
}

impl S3Store {
    /// Writes the contents of `from`, which should have `length` bytes: in parts, a few at a time, unless it is
    /// shorter than one part. `path` is for error texts.
    pub(crate) async fn upload(
        &self,
        name: &str,
        path: &Path,
        length: u64,
        mut from: impl AsyncRead + Send + Unpin,
    ) -> Result<u64, StoreError> {
        let at = parsed(name)?;
        let part_bytes = part_bytes(length);
        let mut open: Option<PartUpload> = None;
        let operation = async {
            let first = next_part(path, part_bytes, &mut from).await?;
            if first.len() < part_bytes {
                let length = first.len() as u64;
                self.backend.put(&at, first.into()).await?;
                return Ok(length);
            }
            let upload = open.insert(PartUpload::new(at.clone(), self.backend.put_multipart(&at).await?));
            upload.send(path, part_bytes, first, from).await
        };
        let deadline = upload_deadline(self.deadline, length);
        let sent = self.within(deadline, Action::Write, name, operation).await;
        if let (Err(_), Some(mut upload)) = (&sent, open) {
            upload.abort().await;
        }
        let length = sent?;
        self.traffic.add_up(length);
        Ok(length)
    }

    /// Runs one operation within a deadline, and converts its failure.
    pub(crate) async fn within<T>(
        &self,
        after: Duration,
        action: Action,
        name: &str,
        operation: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        let (store, name) = (self.describe(), name.to_owned());
        match tokio::time::timeout(after, operation).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Failure::Typed(error))) => Err(error),
            Ok(Err(Failure::Backend(error))) => Err(named(error, store, action, name)),
            Err(_) => Err(StoreError::Deadline { store, action, name, after }),
        }
    }
}

/// Returns the size of each part of an object except the last.
fn part_bytes(length: u64) -> usize {
    let needed = length.div_ceil(PARTS_MAX).next_multiple_of(1 << 20);
    usize::try_from(needed).unwrap_or(usize::MAX).max(PART_BYTES)
}

/// An upload in parts. A store keeps the parts, invisible but billed, until the upload is completed or aborted. So the
/// upload is also aborted on drop: at its deadline, or when its caller is cancelled.
struct PartUpload {
    at: Location,
    /// Parts in flight.
    parts: JoinSet<object_store::Result<()>>,
    /// The upload; `None` once it is completed or aborted.
    open: Option<Box<dyn MultipartUpload>>,
}

impl PartUpload {
    fn new(at: Location, upload: Box<dyn MultipartUpload>) -> PartUpload {
        PartUpload { at, parts: JoinSet::new(), open: Some(upload) }
    }

    /// Sends all parts and completes the upload. Returns its length.
    async fn send(
        &mut self,
        path: &Path,
        part_bytes: usize,
        first: Bytes,
        mut from: impl AsyncRead + Unpin,
    ) -> Result<u64, Failure> {
        let PartUpload { parts, open, .. } = self;
        let Some(upload) = open else { return Ok(0) };
        let sent = |part: Result<object_store::Result<()>, _>| part.map_err(object_store::Error::from)?;
        let (mut part, mut length) = (first, 0);
        while !part.is_empty() {
            length += part.len() as u64;
            parts.spawn(upload.put_part(part.into()));
            if parts.len() >= PARTS_AT_ONCE {
                parts.join_next().await.map_or(Ok(()), sent)?;
            }
            part = next_part(path, part_bytes, &mut from).await?;
        }
        while let Some(part) = parts.join_next().await {
            sent(part)?;
        }
        upload.complete().await?;
        *open = None;
        Ok(length)
    }

    /// Makes the store drop the parts, unless the upload is complete. Continues if the caller is cancelled meanwhile.
    async fn abort(&mut self) {
        if let Some(Err(died)) = OptionFuture::from(self.begin_abort()).await {
            tracing::warn!(object = %self.at, %died, "could not abort a failed upload: the store may keep its parts");
        }
    }

    fn begin_abort(&mut self) -> Option<JoinHandle<()>> {
        let upload = self.open.take()?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        Some(runtime.spawn(abort(self.at.clone(), std::mem::take(&mut self.parts), upload)))
    }
}

/// Has no [`PartUpload`], because the task is dropped when the runtime shuts down.
async fn abort(
    at: Location,
    mut parts: JoinSet<object_store::Result<()>>,
    mut upload: Box<dyn MultipartUpload>,
) {
    // A part that arrived after the abort would be kept.
    parts.shutdown().await;
    let why = match tokio::time::timeout(ABORT_WITHIN, upload.abort()).await {
        // The upload was completed, and the answer was lost.
        Ok(Ok(()) | Err(object_store::Error::NotFound { .. })) => return,
        Ok(Err(error)) => error.to_string(),
        Err(_) => format!("no answer within {} s", ABORT_WITHIN.as_secs()),
    };
    tracing::warn!(object = %at, why, "could not abort a failed upload: the store may keep its parts");
}

impl Drop for PartUpload {
    fn drop(&mut self) {
        self.begin_abort();
    }
}

/// Reads the next `part_bytes`, or the rest.
async fn next_part(
    path: &Path,
    part_bytes: usize,
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Bytes, StoreError> {
    let mut part = Vec::new();
    let read = from.take(part_bytes as u64).read_to_end(&mut part).await;
    read.map(|_| part.into()).map_err(|source| unreadable(path, source))
}

pub(crate) fn unreadable(path: &Path, source: std::io::Error) -> StoreError {
    StoreError::File { path: path.display().to_string(), source }
}

fn named(error: object_store::Error, store: String, action: Action, name: String) -> StoreError {
    use object_store::Error as E;
    match error {
        E::NotFound { source, .. } => {
            // A write or a list that finds nothing means that the bucket does not exist.
            let bucket = matches!(action, Action::Write | Action::List);
            if bucket || source.to_string().contains("NoSuchBucket") {
                StoreError::NoBucket { store }
            } else {
                StoreError::NotFound { key: name }
            }
        }
        E::PermissionDenied { source, .. } | E::Unauthenticated { source, .. } => {
            StoreError::Denied { store, action, name, source }
        }
        E::InvalidPath { source } => StoreError::BadName { name, why: source.to_string() },
        // Some requests, such as lists, fail without a kind: the answer's text has it.
        E::Generic { source, .. } => {
            let text = error_chain(source.as_ref());
            let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
            if is_full(source.as_ref()) || says(&["InsufficientStorage", "XMinioStorageFull"]) {
                StoreError::Full { store, action, name, source }
            } else if says(&["status code: 401", "status code: 403"]) {
                StoreError::Denied { store, action, name, source }
            } else if says(&["NoSuchBucket"]) {
                StoreError::NoBucket { store }
            } else {
                StoreError::Unavailable { store, action, name, source }
            }
        }
        other => StoreError::Unavailable { store, action, name, source: Box::new(other) },
    }
}

fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    use std::io::{Error, ErrorKind};
    std::iter::successors(Some(error), |error| (**error).source())
        .filter_map(|error| error.downcast_ref::<Error>())
        .any(|error| matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

fn location(key: &ObjectKey) -> Result<Location, StoreError> {
    parsed(key.as_str())
}

pub(crate) fn parsed(name: &str) -> Result<Location, StoreError> {
    Location::parse(name)
        .map_err(|error| StoreError::BadName { name: name.to_owned(), why: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_a_broken_one() {
        let named = |kind: std::io::ErrorKind| {
            let source = Box::new(std::io::Error::from(kind));
            let error = object_store::Error::Generic { store: "test", source };
            named(error, "here".into(), Action::Write, "a".into())
        };
        assert!(matches!(named(std::io::ErrorKind::StorageFull), StoreError::Full { .. }));
        assert!(matches!(named(std::io::ErrorKind::BrokenPipe), StoreError::Unavailable { .. }));
    }

    #[test]
    fn the_largest_objects_have_no_more_parts_than_a_store_takes() {
        assert_eq!(part_bytes(0), PART_BYTES);
        let most = PARTS_MAX * PART_BYTES as u64;
        assert_eq!(part_bytes(most), PART_BYTES);
        assert_eq!(part_bytes(most + 1), 9 << 20);
        // 2^38 values, all of them sent in 3 bits each.
        let largest = 3 << 35;
        assert_eq!(part_bytes(largest), 10 << 20);
        for length in [1, most, most + 1, largest, 5 << 40] {
            assert!(length.div_ceil(part_bytes(length) as u64) <= PARTS_MAX, "{length}");
        }
    }

    #[test]
    fn an_upload_has_more_time_the_larger_it_is() {
        let seconds = |bytes| upload_deadline(Duration::from_secs(120), bytes).as_secs();
        assert_eq!([0, 1 << 20, 12_290_000_000].map(seconds), [120, 121, 120 + 11_720]);
    }

    #[test]
    fn nothing_found_on_writing_means_the_bucket() {
        let named = |action| {
            let error = object_store::Error::NotFound { path: "a".into(), source: "404".into() };
            named(error, "here".into(), action, "a".into())
        };
        assert!(matches!(named(Action::Write), StoreError::NoBucket { .. }));
        assert!(matches!(named(Action::Read), StoreError::NotFound { .. }));
    }
}
