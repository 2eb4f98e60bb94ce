//! What lies in everybody's buckets, and what each reader is given of it.
//!
//! Most of it lies in the stores in memory that the product brings. What a bucket shows to some readers only, or not in time, or too slowly,
//! is decided here, reader by reader.

use async_trait::async_trait;
use bytes::Bytes;
use protocol::{Digest, keys::ObjectKey};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use store::{Fetch, FetchError, Limits, MemoryStore, Store, TrafficTotals, memory::MemoryFetcher};

/// All buckets of one network.
#[derive(Default)]
pub struct Buckets {
    open: MemoryFetcher,
    guarded: Mutex<BTreeMap<(String, ObjectKey), Guarded>>,
}

/// An object that is not simply there.
#[derive(Clone)]
struct Guarded {
    bytes: Bytes,
    to: Access,
}

/// Whom an object is given to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To the first so many readers, and to nobody else.
    First(usize),
    /// To everybody, so slowly that nobody waits for its end.
    Crawls,
}

/// One reader of all buckets.
pub struct Reader {
    buckets: Arc<Buckets>,
    /// Its place among those that a bucket tells apart; `None` comes after all of them.
    place: Option<usize>,
    seed: Digest,
    /// How many of a million fetches fail by nobody's fault.
    failures_ppm: u32,
    fetches: AtomicU64,
}

impl Buckets {
    /// A bucket of its own at `base_url`.
    pub fn add(&self, base_url: &str) -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::new());
        self.open.serve(base_url, store.clone() as Arc<dyn Store>);
        store
    }

    pub fn guard(&self, base_url: &str, key: ObjectKey, bytes: Bytes, to: Access) {
        self.guarded().insert((base_url.to_owned(), key), Guarded { bytes, to });
    }

    /// Forgets what was guarded: it belonged to a window that is over.
    pub fn forget(&self) {
        self.guarded().clear();
    }

    fn guarded(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, ObjectKey), Guarded>> {
        // The map is whole whatever happened to a holder of the lock: no change to it has two steps.
        self.guarded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    pub fn new(buckets: Arc<Buckets>, place: Option<usize>, seed: Digest, failures_ppm: u32) -> Reader {
        Reader { buckets, place, seed, failures_ppm, fetches: AtomicU64::new(0) }
    }

    /// Whether this fetch fails, by the network's fault.
    fn fails(&self) -> bool {
        let fetch = self.fetches.fetch_add(1, Ordering::Relaxed);
        let drawn = Digest::of_parts(&[&self.seed.0, b"fetch", &fetch.to_le_bytes()]);
        let drawn = u32::from_le_bytes([drawn.0[0], drawn.0[1], drawn.0[2], drawn.0[3]]);
        (u64::from(drawn) * 1_000_000) >> 32 < u64::from(self.failures_ppm)
    }
}

#[async_trait]
impl Fetch for Reader {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        if self.fails() {
            return Err(FetchError::Unavailable { status: 503 });
        }
        let guarded = self.buckets.guarded().get(&(base_url.to_owned(), key.clone())).cloned();
        match guarded {
            None => self.buckets.open.fetch(base_url, key, limits).await,
            Some(Guarded { to: Access::Crawls, .. }) => {
                Err(FetchError::Crawled { bytes: 1, window: Duration::from_secs(5) })
            }
            Some(Guarded { bytes, to: Access::First(readers) }) => {
                if self.place.is_none_or(|place| readers <= place) {
                    return Err(FetchError::Missing);
                }
                let length = bytes.len() as u64;
                if limits.max_bytes < length {
                    return Err(FetchError::TooLarge { bytes: length, max_bytes: limits.max_bytes });
                }
                Ok(bytes)
            }
        }
    }

    fn traffic(&self) -> TrafficTotals {
        self.buckets.open.traffic()
    }
}
