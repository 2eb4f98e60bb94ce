//! The buckets of a network: stores in memory, which answer each reader as their proxies and the network between decide.

use adversaries::{FaultyProxy, faulty_proxy::ChooseProxy};
use async_trait::async_trait;
use bytes::Bytes;
use protocol::{Digest, keys::ObjectKey};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::{Fetch, FetchError, Limits, MemoryStore, Store, TrafficTotals, memory::MemoryFetcher};

/// All buckets of one network.
#[derive(Default)]
pub struct Buckets {
    open: MemoryFetcher,
    /// By base URL.
    proxies: Mutex<BTreeMap<String, ChooseProxy>>,
}

/// One reader of all buckets.
pub struct Reader {
    buckets: Arc<Buckets>,
    /// Its place among the validators, which a proxy tells apart; `None` comes after all of them.
    place: Option<usize>,
    seed: Digest,
    /// Of a million objects, those that the network between this reader and a bucket does not let through.
    failures_ppm: u32,
}

impl Buckets {
    /// Makes a bucket at `base_url`.
    pub fn add(&self, base_url: &str) -> Arc<MemoryStore> {
        let store = Arc::new(MemoryStore::new());
        self.open.serve(base_url, store.clone() as Arc<dyn Store>);
        store
    }

    /// Has the readers of the bucket at `base_url` answered as `proxy` decides at each fetch.
    pub fn answer(&self, base_url: &str, proxy: ChooseProxy) {
        self.proxies.lock().unwrap_or_else(PoisonError::into_inner).insert(base_url.to_owned(), proxy);
    }

    fn proxy(&self, base_url: &str) -> FaultyProxy {
        let proxies = self.proxies.lock().unwrap_or_else(PoisonError::into_inner);
        proxies.get(base_url).map_or(FaultyProxy::Store, |proxy| proxy())
    }
}

impl Reader {
    pub fn new(buckets: Arc<Buckets>, place: Option<usize>, seed: Digest, failures_ppm: u32) -> Reader {
        Reader { buckets, place, seed, failures_ppm }
    }

    /// Whether a fetch fails by the network's fault. Another fetch of the same object from the same bucket fails too.
    fn fails(&self, base_url: &str, key: &ObjectKey) -> bool {
        let drawn = Digest::of_parts(&[&self.seed.0, b"fetch", base_url.as_bytes(), key.as_str().as_bytes()]);
        let drawn = u32::from_le_bytes([drawn.0[0], drawn.0[1], drawn.0[2], drawn.0[3]]);
        (u64::from(drawn) * 1_000_000) >> 32 < u64::from(self.failures_ppm)
    }
}

#[async_trait]
impl Fetch for Reader {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        if self.fails(base_url, key) {
            return Err(FetchError::Unavailable { status: 503 });
        }
        match self.buckets.proxy(base_url) {
            FaultyProxy::ForTheFirst(readers)
                if self.place.is_none_or(|place| usize::from(readers) <= place) =>
            {
                return Err(FetchError::Missing);
            }
            FaultyProxy::Crawling(_) => {
                return Err(FetchError::Crawled { bytes: 1, window: Duration::from_secs(5) });
            }
            // No reader here looks at the times that a bucket sends.
            FaultyProxy::Store | FaultyProxy::ForTheFirst(_) | FaultyProxy::Backdating => {}
        }
        self.buckets.open.fetch(base_url, key, limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.buckets.open.traffic()
    }
}
