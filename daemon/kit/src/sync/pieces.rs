//! Fetches named pieces from all mirrors concurrently, and passes on each piece with the right digest.
//!
//! At most [`AT_ONCE`] pieces are in memory. `shares` chooses the mirrors; this module waits for them. Near the end, a
//! slow piece is requested again from a faster mirror, so that the slowest mirror does not decide the total time.

use crate::{
    durable::FileError,
    mirrors::Mirrors,
    shares::{Share, Shares},
    sync::partial::Layout,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::{
    StreamExt as _,
    future::{AbortHandle, Abortable, BoxFuture},
    stream::FuturesUnordered,
};
use protocol::{Digest, keys, lineage};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use store::{
    Fetch, FetchError, Limits,
    fetch::{AllMirrorsFailed, Failure, fetch_verified},
};
use tokio::time::Instant;

/// Maximum number of pieces in flight, of 1 MiB each.
pub const AT_ONCE: usize = 8;
/// Interval between checks for late pieces, when all are requested.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Interval between lines in the log.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// One piece to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Index of the piece in the row.
    pub index: usize,
    pub digest: Digest,
}

/// Receives pieces in any order.
#[async_trait]
pub trait PieceSink: Send {
    /// Receives bytes with the digest of this index.
    async fn put(&mut self, index: usize, bytes: &Bytes) -> Result<(), FileError>;
}

#[derive(Debug, thiserror::Error)]
pub enum PiecesError {
    #[error("could not fetch a part of the checkpoint")]
    Fetch(#[from] AllMirrorsFailed),
    #[error(transparent)]
    File(#[from] FileError),
}

/// The result of a fetch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// Pieces that were already present.
    pub at_hand: usize,
    /// Fetched pieces, each counted once even if several places need it.
    pub fetched: usize,
    pub mirrors: Vec<Share>,
}

impl Report {
    /// Logs each mirror's share.
    pub fn log(&self) {
        tracing::info!(at_hand = self.at_hand, fetched = self.fetched, "all pieces are there");
        for share in &self.mirrors {
            let last_failure = share.last_failure.as_ref().map(ToString::to_string);
            tracing::info!(
                mirror = share.base,
                pieces = share.pieces,
                bytes = share.bytes,
                failures = share.failures,
                lies = share.lies,
                last_failure,
                "gave"
            );
        }
    }
}

/// A piece that has not arrived yet.
#[derive(Default)]
struct Flight {
    /// Positions of the piece; the same bytes may belong to several.
    indices: Vec<usize>,
    /// The mirrors from which it was requested.
    asked: BTreeSet<usize>,
    failures: Vec<Failure>,
    /// Requests in flight: mirror, start time, and handle to abort it.
    requests: Vec<(usize, Duration, AbortHandle)>,
}

/// A piece, the mirror from which it was requested, and the answer; `None` for an aborted request.
type Answer = (Digest, usize, Option<Result<Bytes, FetchError>>);

/// Fetches `wanted` into `place`.
///
/// # Errors
/// If all mirrors fail to deliver a piece, or `place` cannot store one. Pieces fetched before are kept in `place`.
pub async fn fetch_pieces(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    wanted: &[Wanted],
    place: &mut dyn PieceSink,
) -> Result<Report, PiecesError> {
    let mut pieces = PieceFetch::new(fetch, mirrors, wanted);
    let (all, mut said) = (pieces.flights.len(), pieces.began);
    while !pieces.flights.is_empty() {
        pieces.request_queued()?;
        let Some((digest, mirror, answer)) = pieces.next_answer().await else { continue };
        match answer {
            None => {}
            Some(Ok(bytes)) => {
                for index in pieces.arrived(&digest, mirror, bytes.len()) {
                    place.put(index, &bytes).await?;
                }
            }
            Some(Err(error)) => pieces.failed(digest, mirror, error),
        }
        if SAY_AGAIN <= said.elapsed() {
            said = Instant::now();
            let fetched = all - pieces.flights.len();
            let bytes: u64 = pieces.shares.mirrors().iter().map(|share| share.bytes).sum();
            let rate = bytes as f64 / pieces.began.elapsed().as_secs_f64() / 1e6;
            let mb_per_second = format!("{rate:.1}");
            tracing::info!(pieces = fetched, of = all, mb_per_second, "fetching the checkpoint");
        }
    }
    Ok(Report { at_hand: 0, fetched: all, mirrors: pieces.shares.mirrors().to_vec() })
}

/// The state of one [`fetch_pieces`].
struct PieceFetch<'a> {
    fetch: &'a dyn Fetch,
    bases: Vec<&'a str>,
    shares: Shares,
    /// The pieces that have not arrived yet.
    flights: BTreeMap<Digest, Flight>,
    /// Pieces to request: new ones, and those that no mirror has delivered yet.
    queue: VecDeque<Digest>,
    answers: FuturesUnordered<BoxFuture<'a, Answer>>,
    began: Instant,
}

impl<'a> PieceFetch<'a> {
    fn new(fetch: &'a dyn Fetch, mirrors: &'a Mirrors, wanted: &[Wanted]) -> PieceFetch<'a> {
        let (mut flights, mut queue) = (BTreeMap::<Digest, Flight>::new(), VecDeque::new());
        for Wanted { index, digest } in wanted {
            let flight = flights.entry(*digest).or_insert_with(|| {
                queue.push_back(*digest);
                Flight::default()
            });
            flight.indices.push(*index);
        }
        PieceFetch {
            fetch,
            bases: mirrors.bases().collect(),
            shares: Shares::new(mirrors.bases()),
            flights,
            queue,
            answers: FuturesUnordered::new(),
            began: Instant::now(),
        }
    }

    /// Requests queued pieces, until [`AT_ONCE`] are in flight.
    ///
    /// # Errors
    /// If all mirrors failed to deliver one of them.
    fn request_queued(&mut self) -> Result<(), AllMirrorsFailed> {
        while self.answers.len() < AT_ONCE
            && let Some(digest) = self.queue.pop_front()
        {
            let Some(flight) = self.flights.get_mut(&digest) else { continue };
            let Some(mirror) = self.shares.choose(&flight.asked) else {
                let (key, failures) =
                    (keys::piece(&digest).to_string(), std::mem::take(&mut flight.failures));
                return Err(AllMirrorsFailed { key, asked: self.bases.len(), failures });
            };
            self.request(digest, mirror);
        }
        Ok(())
    }

    fn request(&mut self, digest: Digest, mirror: usize) {
        let Some(flight) = self.flights.get_mut(&digest) else { return };
        let (handle, registration) = AbortHandle::new_pair();
        let (fetch, base, now) = (self.fetch, self.bases[mirror], self.began.elapsed());
        self.shares.asked(mirror, now);
        flight.asked.insert(mirror);
        flight.requests.push((mirror, now, handle));
        self.answers.push(Box::pin(async move {
            let (key, limits) = (keys::piece(&digest), Limits::for_bytes(lineage::PIECE_BYTES as u64));
            let answer = fetch_verified(fetch, base, &key, &digest, &limits);
            (digest, mirror, Abortable::new(answer, registration).await.ok())
        }));
    }

    /// Waits for an answer. With an empty queue, it waits only [`LOOK_AGAIN`], then requests late pieces a second time
    /// and returns `None`.
    async fn next_answer(&mut self) -> Option<Answer> {
        if !self.queue.is_empty() {
            return self.answers.next().await;
        }
        match tokio::time::timeout(LOOK_AGAIN, self.answers.next()).await {
            Ok(answer) => answer,
            Err(_) => {
                self.late().into_iter().for_each(|(digest, mirror)| self.request(digest, mirror));
                None
            }
        }
    }

    /// Records that a piece arrived, and aborts its other requests. Returns its positions.
    fn arrived(&mut self, digest: &Digest, mirror: usize, bytes: usize) -> Vec<usize> {
        let now = self.began.elapsed();
        self.shares.gave(mirror, bytes as u64, now);
        let flight = self.flights.remove(digest).unwrap_or_default();
        for (other, _, handle) in flight.requests.into_iter().filter(|request| request.0 != mirror) {
            handle.abort();
            self.shares.given_up(other, now);
        }
        flight.indices
    }

    /// Records a failed request, and queues its piece again if no other request is in flight.
    fn failed(&mut self, digest: Digest, mirror: usize, error: FetchError) {
        self.shares.failed(mirror, error.clone(), self.began.elapsed());
        let Some(flight) = self.flights.get_mut(&digest) else { return };
        let base_url = self.bases[mirror].to_owned();
        tracing::debug!(piece = %digest, mirror = base_url, %error, "a mirror failed");
        flight.requests.retain(|request| request.0 != mirror);
        flight.failures.push(Failure { mirror: base_url, error });
        if flight.requests.is_empty() {
            self.queue.push_front(digest);
        }
    }

    /// Returns the pieces to request a second time, with their mirrors: those in flight for more than twice the
    /// expected time of another mirror.
    fn late(&self) -> Vec<(Digest, usize)> {
        let now = self.began.elapsed();
        let mut late = Vec::new();
        for (digest, flight) in &self.flights {
            let [(_, since, _)] = flight.requests[..] else { continue };
            let Some(other) = self.shares.choose(&flight.asked) else { continue };
            let waited = now.saturating_sub(since);
            // One second if no rate has been measured.
            let expected = self.shares.seconds_for(other, lineage::PIECE_BYTES);
            let patience = expected.map_or(1.0, |seconds| 2.0 * seconds);
            if self.shares.mirrors()[other].lies == 0 && patience < waited.as_secs_f64() {
                late.push((waited, *digest, other));
            }
        }
        late.sort_by_key(|one| std::cmp::Reverse(one.0));
        late.truncate(AT_ONCE.saturating_sub(self.answers.len()));
        late.into_iter().map(|(_, digest, mirror)| (digest, mirror)).collect()
    }
}

/// Pieces as values in memory: rows of equal length, one after the other.
pub(crate) struct InMemory<'a> {
    pub rows: Vec<&'a mut [f32]>,
}

#[async_trait]
impl PieceSink for InMemory<'_> {
    async fn put(&mut self, index: usize, bytes: &Bytes) -> Result<(), FileError> {
        let layout = Layout { values: self.rows.first().map_or(0, |row| row.len()) };
        let (row, start, length) = layout.at(index);
        // The manifest's root fixes the digests, which fix the bytes and so their length.
        for (value, bytes) in self.rows[row][start..start + length].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}
