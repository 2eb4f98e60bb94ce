//! `blob/1`: objects read by name. What arrives is checked by its reader, exactly as over HTTP.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::AsyncWriteExt as _;
use libp2p::PeerId;
use protocol::ensure;
use protocol::keys::ObjectKey;
use protocol::peer::{BlobAnswer, BlobRequest, VERSION};
use store::{BufferSink, Fetch, FetchError, Limits, Sink, Store, StoreError, Traffic, TrafficTotals};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use crate::streams::Stream;
use crate::swarm::{Network, OpenError};
use crate::url::PeerUrl;
use crate::wire::{self, Body, WireError};

const PROTOCOL: &str = "blob/1";
/// Reads that are served at once: with [`PART_BYTES`] it bounds the memory.
const READS_MAX: usize = 16;
/// … of one peer.
const READS_PER_PEER_MAX: usize = 4;
/// Streams that are open at once, with those that are told that there are too many.
const STREAMS_MAX: usize = 64;
/// … of one peer.
const STREAMS_PER_PEER_MAX: usize = 8;
/// Bytes that are read from a store at once.
const PART_BYTES: u64 = 4 << 20;
/// For a message, and for [`wire::CHUNK_BYTES`] of an object: a reader that takes less holds a place too long.
const PATIENCE: Duration = Duration::from_secs(10);
/// Fetches at once, as over HTTP.
const FETCHES_AT_ONCE: usize = 64;

/// Serves what is in `stores` to all peers, until the network ends. A name is looked up in one after the other.
///
/// # Errors
/// If objects are served already.
pub fn serve_blobs(network: &Network, stores: Vec<Arc<dyn Store>>) -> Result<(), AlreadyServed> {
    let mut incoming = network.accept(PROTOCOL).ok_or(AlreadyServed(PROTOCOL))?;
    let (streams, reads) = (Places::of_streams(), Places::new(READS_MAX, READS_PER_PEER_MAX));
    let stores: Arc<[Arc<dyn Store>]> = stores.into();
    tokio::spawn(async move {
        while let Some((peer, stream)) = incoming.recv().await {
            // Dropping the stream tells the peer enough: it has many open.
            let Some(open) = streams.admit(peer) else { continue };
            let (reads, stores) = (reads.clone(), stores.clone());
            tokio::spawn(async move {
                if let Err(error) = serve(peer, stream, &stores, &reads).await {
                    tracing::debug!(%peer, %error, "a peer's read ended early");
                }
                drop(open);
            });
        }
    });
    Ok(())
}

/// The protocol is served already.
#[derive(Debug, thiserror::Error)]
#[error("this node serves {0} already")]
pub struct AlreadyServed(pub &'static str);

/// Places that peers take, so many at once and so many each.
pub(crate) struct Places {
    all: Arc<Semaphore>,
    each_max: usize,
    taken: Mutex<HashMap<PeerId, usize>>,
}

/// A place that is taken. It is given back when this is dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    peer: PeerId,
    _permit: OwnedSemaphorePermit,
}

impl Places {
    fn new(at_once: usize, each_max: usize) -> Arc<Places> {
        Arc::new(Places { all: Arc::new(Semaphore::new(at_once)), each_max, taken: Mutex::default() })
    }

    /// For the streams of a protocol.
    pub(crate) fn of_streams() -> Arc<Places> {
        Places::new(STREAMS_MAX, STREAMS_PER_PEER_MAX)
    }

    pub(crate) fn admit(self: &Arc<Places>, peer: PeerId) -> Option<Place> {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_peer = taken.get(&peer).copied().unwrap_or(0);
        if self.each_max <= of_peer {
            return None;
        }
        let permit = self.all.clone().try_acquire_owned().ok()?;
        taken.insert(peer, of_peer + 1);
        Some(Place { places: self.clone(), peer, _permit: permit })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(of_peer) = taken.get_mut(&self.peer) {
            *of_peer -= 1;
            if *of_peer == 0 {
                taken.remove(&self.peer);
            }
        }
    }
}

async fn serve(
    peer: PeerId,
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
    let Some(_place) = reads.admit(peer) else {
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
    // A reader that takes longer than one may over HTTP holds a place that others want.
    let deadline = Limits::for_bytes(end - offset).deadline;
    let sent = timeout(deadline, send_object(&mut stream, store, &key, (offset, end), bytes)).await;
    sent.map_err(|_| WireError::Stalled(deadline))??;
    timeout(PATIENCE, stream.close()).await.map_err(|_| WireError::Stalled(PATIENCE))??;
    Ok(())
}

/// Sends the bytes `at..end` of an object, of which the first part was read.
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
        // A store that fails here cuts the object short, which its reader notices.
        let next = store.read(key, at..at.saturating_add(PART_BYTES).min(end)).await;
        bytes = next.map_err(std::io::Error::other)?.1;
    }
    Ok(())
}

type Found<'a> = Option<(&'a Arc<dyn Store>, (u64, Bytes))>;

/// The first part of an object, from the first store that has it; otherwise the answer.
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

/// The failure of a question.
fn asked(error: WireError, limits: &Limits) -> FetchError {
    match error {
        WireError::Stalled(_) => FetchError::Stalled { after: limits.first_byte },
        // A connection may break by itself, and a peer with too many streams drops this one.
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
    /// An [`store::HttpFetcher`] in a program.
    pub http: Arc<dyn Fetch>,
    /// `None` in programs that have no network of peers.
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
