//! A store in memory, and a network of such stores, for simulations of many nodes in one process.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use protocol::ensure;
use protocol::keys::ObjectKey;

use crate::fetch::{Fetch, FetchError, Limits, cut};
use crate::{Entry, Listing, Store, StoreError, Traffic, TrafficTotals, is_below, trimmed};

/// A [`Store`] that keeps everything in memory.
#[derive(Debug, Default)]
pub struct MemoryStore {
    objects: Mutex<BTreeMap<String, Bytes>>,
    traffic: Traffic,
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        // Every change of the map is a single step, so a panic elsewhere leaves it consistent.
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn describe(&self) -> String {
        "memory".into()
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        self.traffic.add_up(bytes.len() as u64);
        // Copied, because a slice would keep a larger buffer alive.
        self.objects().insert(key.to_string(), Bytes::copy_from_slice(&bytes));
        Ok(())
    }

    /// Reads the file on the calling thread, the only one of a simulation.
    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let bytes = std::fs::read(path)
            .map_err(|source| StoreError::File { path: path.display().to_string(), source })?;
        let length = bytes.len() as u64;
        self.put(key, bytes.into()).await?;
        Ok(length)
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        let found = self.objects().get(key.as_str()).cloned();
        let found = found.ok_or_else(|| StoreError::NotFound { key: key.to_string() })?;
        let bytes = found.len() as u64;
        ensure!(bytes <= max_bytes, StoreError::TooLarge { key: key.to_string(), bytes, max_bytes });
        self.traffic.add_down(bytes);
        Ok(found)
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

/// A [`Fetch`] that finds stores of this process by their base URL and replaces [`crate::HttpFetcher`].
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
        self.stores().insert(base_url.into(), store);
    }

    /// Stops serving at `base_url`.
    pub fn vanish(&self, base_url: &str) {
        self.stores().remove(base_url);
    }

    fn stores(&self) -> MutexGuard<'_, BTreeMap<String, Arc<dyn Store>>> {
        self.stores.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object or a range of it.
    async fn get(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Option<Range<u64>>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        let store = self.stores().get(base_url).cloned();
        let store = store
            .ok_or_else(|| FetchError::Unreachable { what: format!("there is no server at {base_url}") })?;
        let started = tokio::time::Instant::now();
        let max_bytes = if range.is_some() { u64::MAX } else { limits.max_bytes };
        let answer = tokio::time::timeout(limits.deadline, store.get(key, max_bytes)).await;
        let whole = answer.map_err(|_| FetchError::Deadline { after: limits.deadline })?.map_err(
            |error| match error {
                StoreError::NotFound { .. } => FetchError::Missing,
                StoreError::TooLarge { bytes, max_bytes, .. } => FetchError::TooLarge { bytes, max_bytes },
                StoreError::CutShort { got, expected, .. } => FetchError::CutShort { got, expected },
                StoreError::Unavailable { .. } => FetchError::Unavailable { status: 503 },
                other => FetchError::Unreachable { what: other.to_string() },
            },
        )?;
        let bytes = range.map_or(Ok(whole.clone()), |range| cut(&whole, &range))?;
        let (length, took) = (bytes.len() as u64, started.elapsed());
        self.traffic.add_down(length);
        // The whole object arrives in one piece, so a slow one is refused at its end.
        let read = whole.len() as u64;
        if limits.rate_window <= took && read < limits.min_bytes_per_second.saturating_mul(took.as_secs()) {
            return Err(FetchError::Crawled { bytes: length, window: limits.rate_window });
        }
        Ok(bytes)
    }
}

#[async_trait]
impl Fetch for MemoryFetcher {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        self.get(base_url, key, None, limits).await
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        self.get(base_url, key, Some(range), limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}
