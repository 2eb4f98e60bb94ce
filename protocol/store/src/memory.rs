//! A store in memory, and a network of such stores: for simulations of many nodes in one process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use protocol::keys::ObjectKey;

use crate::fetch::{Fetch, FetchError, Limits};
use crate::{Action, Entry, Listing, Store, StoreError, Traffic, TrafficTotals, is_below, trimmed};

/// A [`Store`] that keeps everything in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<BTreeMap<String, Bytes>>,
    capacity_bytes: Option<u64>,
    traffic: Traffic,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// A store that is full when its objects together have `capacity_bytes`.
    pub fn with_capacity(capacity_bytes: u64) -> MemoryStore {
        MemoryStore { capacity_bytes: Some(capacity_bytes), ..MemoryStore::default() }
    }

    fn objects(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Bytes>> {
        // No change to the map has two steps, so a panic elsewhere leaves it whole.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self, key: &ObjectKey) -> Result<Bytes, StoreError> {
        let found = self.objects().get(key.as_str()).cloned();
        found.ok_or_else(|| StoreError::NotFound { key: key.to_string() })
    }

    fn insert(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        let mut objects = self.objects();
        let others: u64 = objects
            .iter()
            .filter(|(name, _)| *name != key.as_str())
            .map(|(_, bytes)| bytes.len() as u64)
            .sum();
        if self.capacity_bytes.is_some_and(|capacity| others + bytes.len() as u64 > capacity) {
            return Err(StoreError::Full {
                store: self.describe(),
                action: Action::Write,
                name: key.to_string(),
                source: format!("{others} bytes are taken").into(),
            });
        }
        self.traffic.add_up(bytes.len() as u64);
        // A slice of something large would keep all of it alive.
        objects.insert(key.to_string(), Bytes::copy_from_slice(&bytes));
        Ok(())
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn describe(&self) -> String {
        "memory".into()
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        self.insert(key, bytes)
    }

    /// Reads the file on the calling thread: a simulation has no other.
    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let bytes = std::fs::read(path)
            .map_err(|source| StoreError::File { path: path.display().to_string(), source })?;
        self.insert(key, bytes.into())?;
        self.head(key).await
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        let found = self.found(key)?;
        let bytes = found.len() as u64;
        if bytes > max_bytes {
            return Err(StoreError::TooLarge { key: key.to_string(), bytes, max_bytes });
        }
        self.traffic.add_down(bytes);
        Ok(found)
    }

    async fn get_range(&self, key: &ObjectKey, range: Range<u64>) -> Result<Bytes, StoreError> {
        let found = self.found(key)?;
        let clamp = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(found.len());
        let slice = found.slice(clamp(range.start)..clamp(range.end).max(clamp(range.start)));
        self.traffic.add_down(slice.len() as u64);
        Ok(slice)
    }

    async fn head(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        Ok(self.found(key)?.len() as u64)
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.objects().remove(key.as_str());
        Ok(())
    }

    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        let prefix = trimmed(prefix);
        let objects = self.objects();
        let mut below = objects.iter().filter(|(name, _)| is_below(name, prefix));
        let entry =
            |(name, bytes): (&String, &Bytes)| Entry { name: name.clone(), bytes: bytes.len() as u64 };
        let entries = below.by_ref().take(max_entries).map(entry).collect();
        Ok(Listing { entries, complete: below.next().is_none() })
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

/// A [`Fetch`] that finds stores of this process by their base URL, in place of [`crate::HttpFetcher`].
#[derive(Default)]
pub struct MemoryFetcher {
    stores: Mutex<BTreeMap<String, Arc<dyn Store>>>,
    traffic: Traffic,
}

impl MemoryFetcher {
    pub fn new() -> MemoryFetcher {
        MemoryFetcher::default()
    }

    /// Serves `store` at `base_url`.
    pub fn serve(&self, base_url: impl Into<String>, store: Arc<dyn Store>) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).insert(base_url.into(), store);
    }

    fn at(&self, base_url: &str) -> Result<Arc<dyn Store>, FetchError> {
        let store = self.stores.lock().unwrap_or_else(PoisonError::into_inner).get(base_url).cloned();
        store.ok_or_else(|| FetchError::Unreachable { what: format!("there is no server at {base_url}") })
    }

    async fn answer(
        &self,
        limits: &Limits,
        read: impl Future<Output = Result<Bytes, StoreError>> + Send,
    ) -> Result<Bytes, FetchError> {
        let started = tokio::time::Instant::now();
        let bytes = match tokio::time::timeout(limits.deadline, read).await {
            Err(_) => Err(FetchError::Deadline { after: limits.deadline }),
            Ok(Ok(bytes)) => Ok(bytes),
            Ok(Err(StoreError::NotFound { .. })) => Err(FetchError::Missing),
            Ok(Err(StoreError::TooLarge { bytes, max_bytes, .. })) => {
                Err(FetchError::TooLarge { bytes, max_bytes })
            }
            Ok(Err(StoreError::CutShort { got, expected, .. })) => {
                Err(FetchError::CutShort { got, expected })
            }
            Ok(Err(StoreError::Unavailable { .. } | StoreError::Full { .. })) => {
                Err(FetchError::Unavailable { status: 503 })
            }
            Ok(Err(other)) => Err(FetchError::Unreachable { what: other.to_string() }),
        }?;
        self.traffic.add_down(bytes.len() as u64);
        // The whole object comes at once, so a slow one is refused at its end.
        let (length, took) = (bytes.len() as u64, started.elapsed());
        if limits.rate_window <= took && length < limits.min_bytes_per_second.saturating_mul(took.as_secs()) {
            return Err(FetchError::Crawled { bytes: length, window: limits.rate_window });
        }
        Ok(bytes)
    }

    /// Serves nothing at `base_url` any more.
    pub fn vanish(&self, base_url: &str) {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner).remove(base_url);
    }
}

#[async_trait]
impl Fetch for MemoryFetcher {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let store = self.at(base_url)?;
        self.answer(limits, store.get(key, limits.max_bytes)).await
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        let expected = range.end.saturating_sub(range.start);
        let store = self.at(base_url)?;
        let bytes = self.answer(limits, store.get_range(key, range)).await?;
        let got = bytes.len() as u64;
        if got == expected { Ok(bytes) } else { Err(FetchError::CutShort { got, expected }) }
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}
