//! The buckets of a network: stores in memory, with faults of their seats and of the network to a reader.

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{
    Digest,
    keys::{self, ObjectKey},
};
use std::{
    collections::BTreeSet,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use store::{
    Fetch, FetchError, Limits, Listing, MemoryStore, Store, StoreError, TrafficTotals,
    faults::{Faults, FaultyStore},
    memory::MemoryFetcher,
};

/// All buckets of one network.
#[derive(Default)]
pub struct Buckets {
    open: MemoryFetcher,
    /// Base URLs of seats that cannot read from others, and of seats that others cannot read from.
    cut: Mutex<[BTreeSet<String>; 2]>,
}

/// A reader of all buckets, with its own network failures.
pub struct Reader {
    buckets: Arc<Buckets>,
    /// The base URL of the reader's own bucket; empty without one.
    url: String,
    seed: Digest,
    /// Fetches per million that fail for this reader.
    failures_ppm: u32,
    /// Delay of an update of the model.
    update_delay: Duration,
}

/// A bucket as its owner uses it. Its faults can be changed, and writes are counted.
pub struct OwnBucket {
    store: Arc<FaultyStore>,
    writes: AtomicU64,
}

impl OwnBucket {
    /// Replaces the faults.
    pub fn inject(&self, faults: Faults) {
        self.store.inject(faults);
    }

    /// Number of writes that the owner has requested.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl Store for OwnBucket {
    fn describe(&self) -> String {
        self.store.describe()
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.put(key, bytes).await
    }

    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.store.put_file(key, path).await
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.store.get(key, max_bytes).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.store.delete(key).await
    }

    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        self.store.list(prefix, max_entries).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.store.traffic()
    }
}

impl Buckets {
    /// Adds a bucket at `base_url`.
    pub fn add(&self, base_url: &str) -> Arc<MemoryStore> {
        self.add_faulty(base_url, Faults::default())
    }

    /// Adds a bucket at `base_url` that injects `faults` into reads by others.
    pub fn add_faulty(&self, base_url: &str, faults: Faults) -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::new());
        self.open.serve(base_url, Arc::new(FaultyStore::new(store.clone(), 0, faults)));
        store
    }

    /// Adds a bucket at `base_url` whose faults can be changed; they apply to its owner too.
    pub fn add_injected(&self, base_url: &str, seed: u64) -> Arc<OwnBucket> {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), seed, Faults::default()));
        self.open.serve(base_url, store.clone());
        Arc::new(OwnBucket { store, writes: AtomicU64::new(0) })
    }

    /// Disconnects the seats at these base URLs, as readers and as owners, and connects all others.
    pub fn cut_off(&self, readers: BTreeSet<String>, read: BTreeSet<String>) {
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = [readers, read];
    }

    /// Returns whether the reader is disconnected from the owner. Seats that are disconnected together exchange
    /// objects.
    fn is_between(&self, reader: &str, owner: &str) -> bool {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        let [readers, read] = &*cut;
        (readers.contains(reader) && !readers.contains(owner))
            || (read.contains(owner) && !read.contains(reader))
    }
}

impl Reader {
    pub fn new(buckets: Arc<Buckets>, url: String, seed: Digest, failures_ppm: u32) -> Reader {
        Reader { buckets, url, seed, failures_ppm, update_delay: Duration::ZERO }
    }

    /// Returns the reader with a slow link, which delays an update of the model by `update_delay`.
    pub fn with_update_delay(self, update_delay: Duration) -> Reader {
        Reader { update_delay, ..self }
    }

    /// Returns whether the network fails a fetch. Repeated fetches of one object from one bucket have the same result.
    fn fails(&self, base_url: &str, key: &ObjectKey) -> bool {
        let drawn = Digest::of_parts(&[&self.seed.0, b"fetch", base_url.as_bytes(), key.as_str().as_bytes()]);
        let drawn = u32::from_le_bytes([drawn.0[0], drawn.0[1], drawn.0[2], drawn.0[3]]);
        (u64::from(drawn) * 1_000_000) >> 32 < u64::from(self.failures_ppm)
    }
}

#[async_trait]
impl Fetch for Reader {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        if self.fails(base_url, key) || self.buckets.is_between(&self.url, base_url) {
            return Err(FetchError::Unavailable { status: 503 });
        }
        let bytes = self.buckets.open.fetch(base_url, key, limits).await?;
        if keys::is_update(key) && !self.update_delay.is_zero() {
            tokio::time::sleep(self.update_delay).await;
        }
        Ok(bytes)
    }

    fn traffic(&self) -> TrafficTotals {
        self.buckets.open.traffic()
    }
}
