//! Addresses of validators: each publishes a signed record in its bucket, which others read (PROT-34).

use super::{Peers, RETRY};
use crate::error_chain;
use anyhow::bail;
use bytes::Bytes;
use chain_client::ChainError;
use futures::{StreamExt as _, future::BoxFuture};
use network::{Network, PeerId, PeerUrl};
use protocol::{
    Block, Hotkey, Role, Uid, ensure,
    keys::{self, ObjectKey},
    peer::{MessageError, PeerRecord, RECORD_BYTES_MAX, RecordError},
    view::SeatView,
};
use std::{
    collections::{BTreeMap, HashSet},
    net::SocketAddr,
    sync::{Arc, MutexGuard, PoisonError, Weak},
    time::Duration,
};
use store::{FetchError, Limits, Store};
use tokio::{sync::Mutex as AsyncMutex, time::Instant};

/// Number of windows for which a record is valid, from the block at which it was signed (PROT-34). Its owner signs a
/// new one every window.
const RECORD_WINDOWS_MAX: u32 = 4;
/// Lifetime of cached addresses, and of their absence.
const FOUND_FOR: Duration = Duration::from_secs(600);
const MISSING_FOR: Duration = Duration::from_secs(15);
/// Time limit for reading the addresses of one validator.
const RECORD_WITHIN: Duration = Duration::from_secs(10);
/// Time limit for reading the records of all validators, to reserve connections for them.
const RESERVED_WITHIN: Duration = Duration::from_secs(30);
/// Number of validators whose addresses are read concurrently.
const SURVEYED_AT_ONCE: usize = 8;

/// The cached addresses of a validator.
pub(super) struct Known {
    until: Instant,
    /// The block at which its record was signed, if it has one.
    signed: Option<Block>,
    /// The addresses; `None` if its bucket did not answer or has an old record.
    urls: Option<Vec<PeerUrl>>,
}

/// Error of a lookup of a validator's addresses.
#[derive(Debug, thiserror::Error)]
enum NoRecord {
    #[error(transparent)]
    Fetch(#[from] FetchError),
    #[error(transparent)]
    Record(#[from] RecordError),
    #[error(
        "its record was signed at block {signed}, the chain is at block {now}, and a record is used for {blocks} blocks"
    )]
    Ended { signed: Block, now: Block, blocks: u32 },
}

impl Peers {
    /// Returns the addresses at which a validator accepts contributions and serves objects, from its record; empty
    /// without a record. `None` if its bucket did not answer or has an old record.
    pub(super) async fn addresses(&self, validator: &SeatView) -> Option<Vec<PeerUrl>> {
        let known = self.records().entry(validator.hotkey).or_default().clone();
        let mut known = known.lock().await;
        let is_believed = |known: &&Known| {
            Instant::now() < known.until && known.signed.is_none_or(|signed| self.judge_age(signed).is_ok())
        };
        if let Some(known) = known.as_ref().filter(is_believed) {
            return known.urls.clone();
        }
        let found = self.record(validator).await;
        if let Err(error) = &found {
            tracing::debug!(uid = validator.id.uid.0, %error, "no addresses of a validator");
        }
        let kept_for = if found.is_ok() { FOUND_FOR } else { MISSING_FOR };
        let (signed, urls) = match found {
            Ok((signed, urls)) => (Some(signed), Some(urls)),
            Err(NoRecord::Fetch(FetchError::Missing) | NoRecord::Record(_)) => (None, Some(Vec::new())),
            // A bucket with an old record does not give the validator's address.
            Err(NoRecord::Fetch(_) | NoRecord::Ended { .. }) => (None, None),
        };
        *known = Some(Known { until: Instant::now() + kept_for, signed, urls: urls.clone() });
        urls
    }

    /// Reads a validator's record: the block at which it was signed, and the addresses.
    async fn record(&self, validator: &SeatView) -> Result<(Block, Vec<PeerUrl>), NoRecord> {
        let limits = Limits::for_bytes(RECORD_BYTES_MAX as u64).within(RECORD_WITHIN);
        let bytes = self.http.fetch(&validator.endpoint, &keys::peer(&validator.hotkey), &limits).await?;
        let record = PeerRecord::open(&bytes, &validator.hotkey, &self.genesis)?;
        self.judge_age(record.block)?;
        let urls = record.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        Ok((record.block, urls))
    }

    /// Checks that a record signed at this block is still valid. It may be a window ahead of this node's chain.
    fn judge_age(&self, signed: Block) -> Result<(), NoRecord> {
        let now = self.chain.heads().borrow().block;
        let window = self.schedule.blocks_per_window;
        let blocks = RECORD_WINDOWS_MAX.saturating_mul(window);
        let is_used = now.0.saturating_sub(blocks) <= signed.0 && signed.0 <= now.0.saturating_add(window);
        ensure!(is_used, NoRecord::Ended { signed, now, blocks });
        Ok(())
    }

    /// Reserves connections for the run's seats by their node keys: a miner without a bucket has it in its endpoint, a
    /// validator in its record. `known` keeps the keys of earlier records.
    pub(super) async fn reserve_places(
        &self,
        known: &mut BTreeMap<Hotkey, PeerId>,
    ) -> Result<(), ChainError> {
        let seats = self.chain.seats(self.run).await?;
        let (validators, miners): (Vec<_>, Vec<_>) =
            seats.into_iter().partition(|seat| seat.role == Role::Validator);
        let miners = miners.iter().filter_map(|seat| seat.endpoint.parse().ok());
        let miners: HashSet<_> = miners.map(|url: PeerUrl| url.peer).collect();
        known.retain(|hotkey, _| validators.iter().any(|seat| seat.hotkey == *hotkey));
        self.network.reserve_for(miners.iter().chain(known.values()).copied().collect());
        // Bypasses the cache: a record that is missing now must not be remembered as missing.
        let record = |seat: SeatView| -> BoxFuture<'_, _> {
            Box::pin(async move { (seat.hotkey, self.record(&seat).await) })
        };
        let records: Vec<_> = validators.into_iter().map(record).collect();
        let mut records = futures::stream::iter(records).buffer_unordered(SURVEYED_AT_ONCE);
        // Limited, because the own record must be renewed meanwhile.
        let _ = tokio::time::timeout(RESERVED_WITHIN, async {
            while let Some((hotkey, found)) = records.next().await {
                // All addresses of a record belong to one peer.
                if let Ok((_, urls)) = found
                    && let Some(url) = urls.first()
                {
                    known.insert(hotkey, url.peer);
                }
            }
        })
        .await;
        self.network.reserve_for(miners.into_iter().chain(known.values().copied()).collect());
        Ok(())
    }

    /// Connects to all of the run's validators. Returns, for each, the reason why contributions cannot be sent to it,
    /// if any.
    ///
    /// # Errors
    /// If the chain cannot be read.
    pub async fn survey(&self) -> Result<Vec<(Uid, Result<(), String>)>, ChainError> {
        let seats = self.chain.seats(self.run).await?;
        let validators = seats.iter().filter(|seat| seat.role == Role::Validator);
        let reached = validators.map(async |validator| {
            let reached = match self.record(validator).await {
                Ok((_, urls)) => self.network.connect(&urls).await.map_err(|error| error.to_string()),
                Err(error) => Err(format!("it does not say where it takes contributions ({error})")),
            };
            (validator.id.uid, reached)
        });
        Ok(futures::stream::iter(reached).buffered(SURVEYED_AT_ONCE).collect().await)
    }

    pub(super) fn records(&self) -> MutexGuard<'_, BTreeMap<Hotkey, Arc<AsyncMutex<Option<Known>>>>> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Publishes a validator's record in its bucket, a new one every window, while the node has its network. Reserves
/// connections for the seats of the window.
pub(super) async fn publish_record(
    peers: Weak<Peers>,
    store: Arc<dyn Store>,
    key: ObjectKey,
    seal: impl Fn(Block) -> Result<Bytes, MessageError> + Send,
) {
    let node = peers.upgrade().map(|peers| (peers.chain.heads(), peers.schedule.blocks_per_window));
    let Some((mut heads, blocks)) = node else { return };
    let (mut signed, mut known) = (None::<Block>, BTreeMap::new());
    while peers.strong_count() > 0 {
        let block = heads.borrow_and_update().block;
        if signed.is_none_or(|signed| signed.0.saturating_add(blocks) <= block.0) {
            let Ok(bytes) = seal(block) else { return };
            if let Err(error) = store.put(&key, bytes).await {
                let error = error_chain(&error);
                tracing::warn!(error, "could not publish this validator's addresses, trying again");
                tokio::time::sleep(RETRY).await;
                continue;
            }
            signed = Some(block);
            if let Some(peers) = peers.upgrade()
                && let Err(error) = peers.reserve_places(&mut known).await
            {
                tracing::warn!(error = error_chain(&error), "could not read the seats to keep places for");
            }
        }
        if heads.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the addresses of a validator that listens.
pub(super) fn announced(
    network: &Network,
    listen: SocketAddr,
    announce: Option<SocketAddr>,
) -> anyhow::Result<Vec<PeerUrl>> {
    match announce {
        Some(address) if address.ip().is_unspecified() || address.port() == 0 => {
            bail!(
                "`announce` under [peer] is {address}, which no peer can connect to: give the public address and port"
            )
        }
        Some(address) => Ok(PeerUrl::at(network.peer(), address).to_vec()),
        None if listen.ip().is_unspecified() => bail!(
            "`listen` under [peer] is {listen}, which names no address: add `announce` with the public address and port"
        ),
        None => Ok(network.listening()),
    }
}
