//! The buckets of a network: stores in memory, with faults of their seats and of the network to a reader.

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{
    Digest,
    keys::{self, ObjectKey},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::{
    Fetch, FetchError, Limits, MemoryStore, TrafficTotals,
    faults::{Faults, FaultyStore},
    memory::MemoryFetcher,
};

/// All buckets of one network.
#[derive(Default)]
pub struct Buckets {
    open: MemoryFetcher,
    /// Base URLs of the seats that are cut off from all others.
    cut: Mutex<BTreeSet<String>>,
}

/// A reader of all buckets, with its own network failures.
pub struct Reader {
    buckets: Arc<Buckets>,
    /// The base URL of the reader's own bucket; empty without one.
    url: String,
    seed: Digest,
    /// Objects per million that this reader cannot fetch.
    failures_ppm: u32,
    /// The time that an update of the model takes to arrive.
    update_delay: Duration,
}

impl Buckets {
    /// Adds a bucket at `base_url`.
    pub fn add(&self, base_url: &str) -> Arc<MemoryStore> {
        self.add_faulty(base_url, Faults::default())
    }

    /// Adds a bucket at `base_url` whose answers to readers have `faults`.
    pub fn add_faulty(&self, base_url: &str, faults: Faults) -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::new());
        self.open.serve(base_url, Arc::new(FaultyStore::new(store.clone(), 0, faults)));
        store
    }

    /// Cuts off the seats at these base URLs, and connects all others.
    pub fn cut_off(&self, urls: BTreeSet<String>) {
        *self.cut.lock().unwrap_or_else(PoisonError::into_inner) = urls;
    }

    /// Whether exactly one of the two seats is cut off.
    fn is_between(&self, one: &str, other: &str) -> bool {
        let cut = self.cut.lock().unwrap_or_else(PoisonError::into_inner);
        cut.contains(one) != cut.contains(other)
    }
}

impl Reader {
    pub fn new(buckets: Arc<Buckets>, url: String, seed: Digest, failures_ppm: u32) -> Reader {
        Reader { buckets, url, seed, failures_ppm, update_delay: Duration::ZERO }
    }

    /// The same reader with a slow link: an update of the model takes this long to arrive.
    pub fn with_update_delay(self, update_delay: Duration) -> Reader {
        Reader { update_delay, ..self }
    }

    /// Whether the network fails a fetch. Repeated fetches of one object from one bucket have the same result.
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
