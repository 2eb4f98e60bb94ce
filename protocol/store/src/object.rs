//! The operations of an [`S3Store`]: limits, deadlines, counting and typed errors around `object_store`.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::FuturesUnordered;
use futures::{Stream, TryStreamExt};
use object_store::aws::AmazonS3;
use object_store::path::Path as Location;
use object_store::{GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt};
use protocol::keys::ObjectKey;
use tokio::io::AsyncReadExt;

use crate::{Action, Entry, Listing, Store, StoreError, Traffic, TrafficTotals, is_below, trimmed};

/// The limits of transfers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    /// For a whole operation with all its retries.
    pub deadline: Duration,
    /// Larger objects are uploaded in parts.
    pub single_put_bytes_max: usize,
    /// The size of a part, the last one excepted. S3 wants at least 5 MiB, and some stores want all parts equal.
    pub part_bytes: usize,
    /// Parts on their way at once: with `part_bytes` it bounds the memory of a streamed upload.
    pub parts_at_once: usize,
}

/// A node's own bucket at an S3-compatible provider. Opened with [`S3Store::open`].
pub struct S3Store {
    pub(crate) backend: AmazonS3,
    pub(crate) describe: String,
    pub(crate) transfer: Transfer,
    pub(crate) traffic: Arc<Traffic>,
}

#[async_trait]
impl Store for S3Store {
    fn describe(&self) -> String {
        self.describe.clone()
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        let at = location(key)?;
        let length = bytes.len();
        self.within(Action::Write, key.as_str(), async {
            if length <= self.transfer.single_put_bytes_max {
                self.backend.put(&at, bytes.into()).await.map_err(Failure::Backend)?;
            } else {
                let size = self.transfer.part_bytes;
                let parts =
                    (0..length).step_by(size).map(|start| bytes.slice(start..length.min(start + size)));
                self.put_parts(&at, futures::stream::iter(parts.map(Ok))).await?;
            }
            Ok(())
        })
        .await?;
        self.traffic.add_up(length as u64);
        Ok(())
    }

    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let at = location(key)?;
        let unreadable = |source| StoreError::File { path: path.display().to_string(), source };
        let mut file = tokio::fs::File::open(path).await.map_err(unreadable)?;
        let length = file.metadata().await.map_err(unreadable)?.len();
        if length <= self.transfer.single_put_bytes_max as u64 {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).await.map_err(unreadable)?;
            let length = bytes.len() as u64;
            self.put(key, bytes.into()).await?;
            return Ok(length);
        }
        let size = self.transfer.part_bytes;
        let parts = futures::stream::try_unfold(file, |mut file| async move {
            let mut part = BytesMut::with_capacity(size);
            while part.len() < size {
                let room = size - part.len();
                if file.read_buf(&mut (&mut part).limit(room)).await? == 0 {
                    break;
                }
            }
            Ok((!part.is_empty()).then(|| (part.freeze(), file)))
        });
        let written = self.within(Action::Write, key.as_str(), self.put_parts(&at, parts)).await?;
        self.traffic.add_up(written);
        Ok(written)
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        let at = location(key)?;
        let too_large = |bytes| StoreError::TooLarge { key: key.to_string(), bytes, max_bytes };
        self.within(Action::Read, key.as_str(), async {
            let found = self.backend.get(&at).await.map_err(Failure::Backend)?;
            let expected = found.meta.size;
            if expected > max_bytes {
                return Err(Failure::Typed(too_large(expected)));
            }
            let bytes = self.read(found.into_stream(), expected, max_bytes, too_large).await?;
            self.whole(key, bytes, expected)
        })
        .await
    }

    async fn get_range(&self, key: &ObjectKey, range: Range<u64>) -> Result<Bytes, StoreError> {
        let at = location(key)?;
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let max_bytes = range.end - range.start;
        let too_large = |bytes| StoreError::TooLarge { key: key.to_string(), bytes, max_bytes };
        self.within(Action::Read, key.as_str(), async {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            let found = self.backend.get_opts(&at, options).await.map_err(Failure::Backend)?;
            let expected = found.range.end - found.range.start;
            let bytes = self.read(found.into_stream(), expected, max_bytes, too_large).await?;
            self.whole(key, bytes, expected)
        })
        .await
    }

    async fn head(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        let at = location(key)?;
        self.within(Action::LookUp, key.as_str(), async {
            Ok(self.backend.head(&at).await.map_err(Failure::Backend)?.size)
        })
        .await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let at = location(key)?;
        let deleted = self
            .within(Action::Delete, key.as_str(), async {
                self.backend.delete(&at).await.map_err(Failure::Backend)
            })
            .await;
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
        self.within(Action::List, prefix, async {
            let mut found = self.backend.list(below.as_ref());
            let mut entries = std::collections::BTreeSet::new();
            let mut complete = true;
            while let Some(object) = found.try_next().await.map_err(Failure::Backend)? {
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

/// The failure of an operation, before it becomes a [`StoreError`].
enum Failure {
    Backend(object_store::Error),
    Local(std::io::Error),
    Typed(StoreError),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::Local(error)
    }
}

impl S3Store {
    /// Uploads the parts in order, a few at a time. Leaves nothing behind if one of them fails.
    async fn put_parts(
        &self,
        at: &Location,
        parts: impl Stream<Item = Result<Bytes, std::io::Error>>,
    ) -> Result<u64, Failure> {
        let mut upload = self.backend.put_multipart(at).await.map_err(Failure::Backend)?;
        match send_parts(upload.as_mut(), parts, self.transfer.parts_at_once).await {
            Ok(bytes) => Ok(bytes),
            Err(failure) => {
                if let Err(error) = upload.abort().await {
                    tracing::warn!(object = %at, %error, "could not abort a failed upload");
                }
                Err(failure)
            }
        }
    }

    async fn read(
        &self,
        mut chunks: impl Stream<Item = object_store::Result<Bytes>> + Unpin,
        expected: u64,
        max_bytes: u64,
        too_large: impl Fn(u64) -> StoreError,
    ) -> Result<Bytes, Failure> {
        // The length that the node's own store announces is trusted, up to the limit.
        let mut whole = BytesMut::with_capacity(usize::try_from(expected.min(max_bytes)).unwrap_or(0));
        while let Some(chunk) = chunks.try_next().await.map_err(Failure::Backend)? {
            self.traffic.add_down(chunk.len() as u64);
            let length = whole.len() as u64 + chunk.len() as u64;
            if length > max_bytes {
                return Err(Failure::Typed(too_large(length)));
            }
            whole.extend_from_slice(&chunk);
        }
        Ok(whole.freeze())
    }

    fn whole(&self, key: &ObjectKey, bytes: Bytes, expected: u64) -> Result<Bytes, Failure> {
        let got = bytes.len() as u64;
        if got == expected {
            return Ok(bytes);
        }
        Err(Failure::Typed(StoreError::CutShort {
            store: self.describe(),
            key: key.to_string(),
            got,
            expected,
        }))
    }

    /// Runs one operation within the deadline, and names its failure.
    async fn within<T>(
        &self,
        action: Action,
        name: &str,
        operation: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, StoreError> {
        let (store, name) = (self.describe(), name.to_owned());
        let after = self.transfer.deadline;
        match tokio::time::timeout(after, operation).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(Failure::Typed(error))) => Err(error),
            Ok(Err(Failure::Local(source))) => {
                Err(StoreError::Unavailable { store, action, name, source: Box::new(source) })
            }
            Ok(Err(Failure::Backend(error))) => Err(named(error, store, action, name)),
            Err(_) => Err(StoreError::Deadline { store, action, name, after }),
        }
    }
}

async fn send_parts(
    upload: &mut dyn MultipartUpload,
    parts: impl Stream<Item = Result<Bytes, std::io::Error>>,
    at_once: usize,
) -> Result<u64, Failure> {
    let mut parts = std::pin::pin!(parts);
    let mut on_their_way = FuturesUnordered::new();
    let mut bytes = 0u64;
    while let Some(part) = parts.try_next().await? {
        bytes += part.len() as u64;
        on_their_way.push(upload.put_part(part.into()));
        while on_their_way.len() >= at_once.max(1) {
            on_their_way.try_next().await.map_err(Failure::Backend)?;
        }
    }
    while on_their_way.try_next().await.map_err(Failure::Backend)?.is_some() {}
    upload.complete().await.map_err(Failure::Backend)?;
    Ok(bytes)
}

fn named(error: object_store::Error, store: String, action: Action, name: String) -> StoreError {
    use object_store::Error as E;
    match error {
        E::NotFound { source, .. } => {
            // A write or a list that finds nothing has no bucket.
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
        // Some requests, lists among them, fail without a kind: the text of the answer has it.
        E::Generic { source, .. } => match Hint::of(source.as_ref()) {
            Hint::Full => StoreError::Full { store, action, name, source },
            Hint::Denied => StoreError::Denied { store, action, name, source },
            Hint::NoBucket => StoreError::NoBucket { store },
            Hint::None => StoreError::Unavailable { store, action, name, source },
        },
        other => StoreError::Unavailable { store, action, name, source: Box::new(other) },
    }
}

/// The kind of an error, from its sources.
enum Hint {
    Full,
    Denied,
    NoBucket,
    None,
}

impl Hint {
    fn of(error: &(dyn std::error::Error + 'static)) -> Hint {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(io) = error.downcast_ref::<std::io::Error>()
                && matches!(io.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
            {
                return Hint::Full;
            }
            let text = error.to_string();
            let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
            if says(&["InsufficientStorage", "XMinioStorageFull"]) {
                return Hint::Full;
            }
            if says(&["status code: 401", "status code: 403"]) {
                return Hint::Denied;
            }
            if says(&["NoSuchBucket"]) {
                return Hint::NoBucket;
            }
            next = error.source();
        }
        Hint::None
    }
}

fn location(key: &ObjectKey) -> Result<Location, StoreError> {
    parsed(key.as_str())
}

fn parsed(name: &str) -> Result<Location, StoreError> {
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
    fn nothing_found_on_writing_means_the_bucket() {
        let named = |action| {
            let error = object_store::Error::NotFound { path: "a".into(), source: "404".into() };
            named(error, "here".into(), action, "a".into())
        };
        assert!(matches!(named(Action::Write), StoreError::NoBucket { .. }));
        assert!(matches!(named(Action::Read), StoreError::NotFound { .. }));
    }
}
