//! `blob/1`: reads of objects by name. The reader checks the bytes, exactly as over HTTP.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::AsyncWriteExt as _;
use libp2p::PeerId;
use protocol::ensure;
use protocol::keys::ObjectKey;
use protocol::peer::{BlobAnswer, BlobRequest, VERSION};
use store::{BufferSink, Fetch, FetchError, Limits, Sink, Store, StoreError, Traffic, TrafficTotals};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::streams::OpenError;
use crate::streams::Stream;
use crate::swarm::Network;
use crate::url::PeerUrl;
use crate::wire::{self, Body, WireError};

const PROTOCOL: &str = "blob/1";
/// Maximum number of concurrent reads. With [`PART_BYTES`] it bounds the memory.
const READS_MAX: usize = 32;
/// Maximum number of concurrent reads per peer.
const READS_PER_PEER_MAX: usize = 4;
/// Maximum number of open streams, including those that are answered that there are too many.
const STREAMS_MAX: usize = 64;
/// Maximum number of open streams per peer.
const STREAMS_PER_PEER_MAX: usize = 8;
/// Size of one read from a store, in bytes.
const PART_BYTES: u64 = 4 << 20;
/// Time limit of a message, and of [`wire::CHUNK_BYTES`] of an object: a slower reader occupies a slot for too long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of concurrent fetches, as over HTTP.
const FETCHES_AT_ONCE: usize = 64;

/// Serves the objects in `stores` to all peers, until the network ends. Stores are searched in order.
///
/// # Errors
/// If objects are already served.
pub fn serve_blobs(network: &Network, stores: Vec<Arc<dyn Store>>) -> Result<(), AlreadyServed> {
    let mut incoming = network.accept(PROTOCOL).ok_or(AlreadyServed(PROTOCOL))?;
    let (streams, reads) = (Places::of_streams(), Places::new(READS_MAX, READS_PER_PEER_MAX));
    let (stores, strangers): (Arc<[Arc<dyn Store>]>, _) = (stores.into(), network.strangers());
    tokio::spawn(async move {
        while let Some((peer, stream)) = incoming.recv().await {
            let visitor = Visitor { peer, is_stranger: strangers(&peer) };
            // Dropping the stream suffices as an answer: the peer has many open.
            let Some(open) = streams.admit(visitor) else { continue };
            let (reads, stores) = (reads.clone(), stores.clone());
            tokio::spawn(async move {
                if let Err(error) = serve(visitor, stream, &stores, &reads).await {
                    tracing::debug!(%peer, %error, "a peer's read ended early");
                }
                drop(open);
            });
        }
    });
    Ok(())
}

/// Error of a protocol that is already served.
#[derive(Debug, thiserror::Error)]
#[error("this node serves {0} already")]
pub struct AlreadyServed(pub &'static str);

/// A peer, and whether it is a stranger: not one of those for which slots are reserved.
#[derive(Clone, Copy)]
pub(crate) struct Visitor {
    pub peer: PeerId,
    pub is_stranger: bool,
}

/// Slots for peers: a total number, half of it for strangers, and a number per peer.
pub(crate) struct Places {
    at_once: usize,
    each_max: usize,
    taken: Mutex<Taken>,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_strangers: usize,
    of_peers: HashMap<PeerId, usize>,
}

/// An occupied slot. Dropping it frees the slot.
pub(crate) struct Place {
    places: Arc<Places>,
    visitor: Visitor,
}

impl Places {
    fn new(at_once: usize, each_max: usize) -> Arc<Places> {
        Arc::new(Places { at_once, each_max, taken: Mutex::default() })
    }

    /// Creates the slots for the streams of a protocol.
    pub(crate) fn of_streams() -> Arc<Places> {
        Places::new(STREAMS_MAX, STREAMS_PER_PEER_MAX)
    }

    pub(crate) fn admit(self: &Arc<Places>, visitor: Visitor) -> Option<Place> {
        let mut taken = self.taken();
        let of_peer = taken.of_peers.get(&visitor.peer).copied().unwrap_or(0);
        let is_full = self.at_once <= taken.all || self.each_max <= of_peer;
        if is_full || visitor.is_stranger && self.at_once / 2 <= taken.by_strangers {
            return None;
        }
        taken.all += 1;
        taken.by_strangers += usize::from(visitor.is_stranger);
        taken.of_peers.insert(visitor.peer, of_peer + 1);
        Some(Place { places: self.clone(), visitor })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Visitor { peer, is_stranger } = self.visitor;
        let mut taken = self.places.taken();
        taken.all -= 1;
        taken.by_strangers -= usize::from(is_stranger);
        if let Some(of_peer) = taken.of_peers.get_mut(&peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                taken.of_peers.remove(&peer);
            }
        }
    }
}

async fn serve(
    visitor: Visitor,
    mut stream: Stream,
    stores: &[Arc<dyn Store>],
    reads: &Arc<Places>,
) -> Result<(), WireError> {
    let request = match wire::receive::<BlobRequest>(&mut stream, PATIENCE).await {
        Err(error @ WireError::Message(_)) => {
            wire::send(&mut stream, &BlobAnswer::Refused { ours: VERSION }, PATIENCE).await?;
            return Err(error);
        }
        other => other?,
    };
    let Some(_place) = reads.admit(visitor) else {
        return wire::send(&mut stream, &BlobAnswer::Busy, PATIENCE).await;
    };
    let BlobRequest { key, offset, length } = request;
    let end = offset.saturating_add(length);
    let part = |at: u64| at..at.saturating_add(PART_BYTES).min(end);
    let (found, first) = look_up(stores, &key, part(offset)).await;
    let Some((store, (total, bytes))) = found else {
        return wire::send(&mut stream, &first, PATIENCE).await;
    };
    let end = end.min(total).max(offset);
    wire::send(&mut stream, &BlobAnswer::Found { total, length: end - offset }, PATIENCE).await?;
    // A reader slower than allowed over HTTP occupies a slot that others need.
    let deadline = Limits::for_bytes(end - offset).deadline;
    let sent = timeout(deadline, send_object(&mut stream, store, &key, (offset, end), bytes)).await;
    sent.map_err(|_| WireError::Stalled(deadline))??;
    timeout(PATIENCE, stream.close()).await.map_err(|_| WireError::Stalled(PATIENCE))??;
    Ok(())
}

/// Sends the bytes `at..end` of an object whose first part has been read.
async fn send_object(
    stream: &mut Stream,
    store: &Arc<dyn Store>,
    key: &ObjectKey,
    (mut at, end): (u64, u64),
    mut bytes: Bytes,
) -> Result<(), WireError> {
    loop {
        for chunk in bytes.chunks(wire::CHUNK_BYTES) {
            let written = timeout(PATIENCE, stream.write_all(chunk)).await;
            written.map_err(|_| WireError::Stalled(PATIENCE))??;
        }
        at += bytes.len() as u64;
        if end <= at || bytes.is_empty() {
            break;
        }
        // A store that fails here truncates the object, which its reader notices.
        let next = store.read(key, at..at.saturating_add(PART_BYTES).min(end)).await;
        bytes = next.map_err(std::io::Error::other)?.1;
    }
    Ok(())
}

type Found<'a> = Option<(&'a Arc<dyn Store>, (u64, Bytes))>;

/// Returns the first part of an object, from the first store that has it; otherwise the answer.
async fn look_up<'a>(
    stores: &'a [Arc<dyn Store>],
    key: &ObjectKey,
    range: Range<u64>,
) -> (Found<'a>, BlobAnswer) {
    let mut answer = BlobAnswer::Missing;
    for store in stores {
        match store.read(key, range.clone()).await {
            Ok(part) => return (Some((store, part)), answer),
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => {
                tracing::debug!(object = %key, %error, "could not read an object for a peer");
                answer = BlobAnswer::Busy;
            }
        }
    }
    (None, answer)
}

/// A [`Fetch`] of `p2p://` URLs with an address, with all limits of a fetch over HTTP.
pub struct PeerFetcher {
    network: Arc<Network>,
    at_once: Semaphore,
    traffic: Traffic,
}

impl PeerFetcher {
    pub fn new(network: Arc<Network>) -> PeerFetcher {
        PeerFetcher { network, at_once: Semaphore::new(FETCHES_AT_ONCE), traffic: Traffic::default() }
    }

    async fn get(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Option<&Range<u64>>,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let url: PeerUrl = base_url
            .parse()
            .map_err(|error: crate::PeerUrlError| FetchError::BadUrl { why: error.to_string() })?;
        let ended = timeout(limits.deadline, self.exchange(&url, key, range, limits, to)).await;
        ended.unwrap_or(Err(FetchError::Deadline { after: limits.deadline }))
    }

    async fn exchange(
        &self,
        url: &PeerUrl,
        key: &ObjectKey,
        range: Option<&Range<u64>>,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let _permit =
            self.at_once.acquire().await.map_err(|error| FetchError::Ours { what: error.to_string() })?;
        let opened = timeout(limits.first_byte, self.network.open(url, PROTOCOL)).await;
        let opened = opened.map_err(|_| FetchError::Stalled { after: limits.first_byte })?;
        let mut stream = opened.map_err(|error| match error {
            OpenError::Forbidden(error) => error,
            OpenError::Ended => FetchError::Ours { what: error.to_string() },
            other => FetchError::Unreachable { what: other.to_string() },
        })?;
        let (offset, wanted) = range.map_or((0, u64::MAX), |range| (range.start, range.end - range.start));
        let request = BlobRequest { key: key.clone(), offset, length: wanted };
        wire::send(&mut stream, &request, limits.first_byte).await.map_err(|error| asked(error, limits))?;
        let answer = wire::receive(&mut stream, limits.first_byte).await;
        let (total, length) = match answer.map_err(|error| asked(error, limits))? {
            BlobAnswer::Found { total, length } => (total, length),
            BlobAnswer::Missing => return Err(FetchError::Missing),
            BlobAnswer::Busy => return Err(FetchError::Unavailable { status: 503 }),
            BlobAnswer::Refused { ours } => {
                let what = format!("the peer speaks version {ours} of {PROTOCOL}, and this node {VERSION}");
                return Err(FetchError::Unreachable { what });
            }
        };
        let max_bytes = limits.max_bytes;
        ensure!(length <= max_bytes, FetchError::TooLarge { bytes: length, max_bytes });
        match range {
            None => ensure!(length == total, FetchError::CutShort { got: length, expected: total }),
            Some(_) if wanted < length => {
                let (first, last, said) = (offset, offset + wanted - 1, format!("{length} bytes"));
                return Err(FetchError::OtherRange { first, last, said });
            }
            Some(_) => ensure!(length == wanted, FetchError::CutShort { got: length, expected: wanted }),
        }
        to.begin(length);
        let mut body = Body::new(&mut stream, length, limits);
        while let Some(chunk) = body.next().await? {
            self.traffic.add_down(chunk.len() as u64);
            let handed = Instant::now();
            to.piece(chunk);
            body.pause(handed.elapsed());
        }
        Ok(())
    }
}

/// Converts the failure of a request.
fn asked(error: WireError, limits: &Limits) -> FetchError {
    match error {
        WireError::Stalled(_) => FetchError::Stalled { after: limits.first_byte },
        // A connection may break for any reason, and a peer with too many streams drops this one.
        other => FetchError::Broken { got: 0, expected: 0, what: other.to_string() },
    }
}

#[async_trait]
impl Fetch for PeerFetcher {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let mut whole = BufferSink::default();
        self.get(base_url, key, None, limits, &mut whole).await?;
        Ok(whole.into_bytes())
    }

    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        self.get(base_url, key, None, limits, to).await
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let limits = Limits { max_bytes: range.end - range.start, ..*limits };
        let mut whole = BufferSink::default();
        self.get(base_url, key, Some(&range), &limits, &mut whole).await?;
        Ok(whole.into_bytes())
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

/// A [`Fetch`] of both kinds of URLs, so that the mirrors of one object may be buckets and peers.
pub struct AnyFetcher {
    /// A [`store::HttpFetcher`], except in tests.
    pub http: Arc<dyn Fetch>,
    /// `None` in programs without a network of peers.
    pub peers: Option<PeerFetcher>,
}

impl AnyFetcher {
    fn of(&self, base_url: &str) -> Result<&dyn Fetch, FetchError> {
        match &self.peers {
            _ if !PeerUrl::is_one(base_url) => Ok(&*self.http),
            Some(peers) => Ok(peers),
            None => Err(FetchError::Ours { what: "this program connects to no peers".into() }),
        }
    }
}

#[async_trait]
impl Fetch for AnyFetcher {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        self.of(base_url)?.fetch(base_url, key, limits).await
    }

    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        self.of(base_url)?.fetch_into(base_url, key, limits, to).await
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        self.of(base_url)?.fetch_range(base_url, key, range, limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        let mut all = self.http.traffic();
        if let Some(peers) = &self.peers {
            all.down_bytes = all.down_bytes.saturating_add(peers.traffic().down_bytes);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_have_half_of_the_places_and_each_peer_so_many() {
        let places = Places::new(8, 3);
        let visitor = |is_stranger| Visitor { peer: PeerId::random(), is_stranger };
        let (one, seat) = (visitor(true), visitor(false));
        let mut taken: Vec<Place> = (0..4).filter_map(|_| places.admit(one)).collect();
        assert_eq!(taken.len(), 3, "of one peer");
        taken.extend(places.admit(visitor(true)));
        assert!(taken.len() == 4 && places.admit(visitor(true)).is_none());
        taken.extend((0..3).filter_map(|_| places.admit(seat)));
        taken.extend(places.admit(visitor(false)));
        assert!(taken.len() == 8 && places.admit(visitor(false)).is_none());
        taken.remove(0);
        assert!(places.admit(visitor(true)).is_some());
        drop(taken);
        let left = places.taken();
        assert_eq!((left.all, left.by_strangers, left.of_peers.len()), (0, 0, 0));
    }
}
