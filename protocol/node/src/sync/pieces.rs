//! Fetches named pieces from all mirrors at once, and hands on each one whose digest is right.
//!
//! At most [`AT_ONCE`] pieces are in memory. `shares` chooses the mirrors; this module waits for them. Near the end, a
//! piece that takes long is requested a second time, from a faster mirror, so that the slowest mirror does not decide
//! the total time.

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
    future::{AbortHandle, Abortable, Aborted},
    stream::FuturesUnordered,
};
use protocol::{Digest, keys, lineage};
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};
use store::{
    Fetch, Limits,
    fetch::{AllMirrorsFailed, Failure, fetch_verified},
};
use tokio::time::Instant;

/// Pieces in flight at once, of a MiB each.
pub const AT_ONCE: usize = 8;
/// Between two checks of missing pieces, when all are requested.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Between two lines in the log.
const SAY_AGAIN: Duration = Duration::from_secs(5);

/// One piece to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its place in the row.
    pub index: usize,
    pub digest: Digest,
}

/// Takes pieces in any order.
#[async_trait]
pub trait PieceSink: Send {
    /// Takes bytes with the digest of this index.
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
    /// Pieces that were there already.
    pub at_hand: usize,
    /// Fetched pieces, each counted once although several places may need it.
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

/// A requested piece.
struct Flight {
    /// Where it belongs; the same bytes may belong in several places.
    indices: Vec<usize>,
    /// The mirrors that were asked for it.
    asked: BTreeSet<usize>,
    failures: Vec<Failure>,
    /// Requests in flight: mirror, since when, and how to stop it.
    requests: Vec<(usize, Duration, AbortHandle)>,
}

/// Fetches `wanted` into `place`. On an error, fetched pieces stay there and need not be fetched again.
pub async fn fetch_pieces(
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    wanted: &[Wanted],
    place: &mut dyn PieceSink,
) -> Result<Report, PiecesError> {
    let mut shares = Shares::new(mirrors.bases());
    let bases: Vec<&str> = mirrors.bases().collect();
    let mut flights: BTreeMap<Digest, Flight> = BTreeMap::new();
    let mut queue = VecDeque::new();
    for Wanted { index, digest } in wanted {
        let flight = flights.entry(*digest).or_insert_with(|| {
            queue.push_back(*digest);
            Flight { indices: Vec::new(), asked: BTreeSet::new(), failures: Vec::new(), requests: Vec::new() }
        });
        flight.indices.push(*index);
    }
    let (all, begun) = (flights.len(), Instant::now());
    let (mut fetched, mut bytes_fetched, mut said) = (0, 0, begun);
    let mut answers = FuturesUnordered::new();
    let ask = |digest: Digest, mirror: usize| {
        let (handle, registration) = AbortHandle::new_pair();
        let base = bases[mirror];
        let asked = async move {
            let limits = Limits::for_bytes(lineage::PIECE_BYTES as u64);
            fetch_verified(fetch, base, &keys::piece(&digest), &digest, &limits).await
        };
        let answer = Abortable::new(asked, registration);
        (handle, async move { (digest, mirror, answer.await) })
    };
    while !flights.is_empty() {
        // Request pieces that were not requested yet, or not delivered.
        while answers.len() < AT_ONCE
            && let Some(digest) = queue.pop_front()
        {
            let Some(flight) = flights.get_mut(&digest) else { continue };
            let Some(mirror) = shares.choose(&flight.asked) else {
                let failures = std::mem::take(&mut flight.failures);
                return Err(AllMirrorsFailed {
                    key: keys::piece(&digest).to_string(),
                    asked: bases.len(),
                    failures,
                }
                .into());
            };
            let now = begun.elapsed();
            let (handle, answer) = ask(digest, mirror);
            shares.asked(mirror, now);
            flight.asked.insert(mirror);
            flight.requests.push((mirror, now, handle));
            answers.push(answer);
        }

        // Wait for an answer; near the end, not for long.
        let answer = match queue.is_empty() {
            false => answers.next().await,
            true => match tokio::time::timeout(LOOK_AGAIN, answers.next()).await {
                Ok(answer) => answer,
                Err(_) => {
                    let spare = AT_ONCE.saturating_sub(answers.len());
                    for (digest, mirror) in again(&flights, &shares, begun.elapsed(), spare) {
                        let Some(flight) = flights.get_mut(&digest) else { continue };
                        let now = begun.elapsed();
                        let (handle, answer) = ask(digest, mirror);
                        shares.asked(mirror, now);
                        flight.asked.insert(mirror);
                        flight.requests.push((mirror, now, handle));
                        answers.push(answer);
                    }
                    continue;
                }
            },
        };
        let Some((digest, mirror, answer)) = answer else { continue };
        let now = begun.elapsed();
        match answer {
            Err(Aborted) => {}
            Ok(Ok(bytes)) => {
                shares.gave(mirror, bytes.len() as u64, now);
                let Some(flight) = flights.remove(&digest) else { continue };
                for (other, _, handle) in flight.requests.into_iter().filter(|request| request.0 != mirror) {
                    handle.abort();
                    shares.given_up(other, now);
                }
                for index in flight.indices {
                    place.put(index, &bytes).await?;
                }
                fetched += 1;
                bytes_fetched += bytes.len() as u64;
            }
            Ok(Err(error)) => {
                shares.failed(mirror, error.clone(), now);
                let Some(flight) = flights.get_mut(&digest) else { continue };
                tracing::debug!(piece = %digest, mirror = bases[mirror], %error, "a mirror failed");
                flight.requests.retain(|request| request.0 != mirror);
                flight.failures.push(Failure { mirror: bases[mirror].to_owned(), error });
                if flight.requests.is_empty() {
                    queue.push_front(digest);
                }
            }
        }
        if SAY_AGAIN <= said.elapsed() {
            said = Instant::now();
            let rate = bytes_fetched as f64 / now.as_secs_f64() / 1e6;
            tracing::info!(
                pieces = fetched,
                of = all,
                mb_per_second = format!("{rate:.1}"),
                "fetching the checkpoint"
            );
        }
    }
    Ok(Report { at_hand: 0, fetched, mirrors: shares.mirrors().to_vec() })
}

/// Pieces to request a second time, and the mirrors: those in flight for longer than twice the time that another
/// mirror should need.
fn again(
    flights: &BTreeMap<Digest, Flight>,
    shares: &Shares,
    now: Duration,
    spare: usize,
) -> Vec<(Digest, usize)> {
    let mut late = Vec::new();
    for (digest, flight) in flights {
        let [(_, since, _)] = flight.requests[..] else { continue };
        let Some(other) = shares.choose(&flight.asked).filter(|other| shares.mirrors()[*other].lies == 0)
        else {
            continue;
        };
        let waited = now.saturating_sub(since);
        // Without a measured rate the expectation is no time; then a second of waiting is patience enough.
        let patience =
            if shares.is_measured() { 2.0 * shares.seconds_for(other, lineage::PIECE_BYTES) } else { 1.0 };
        if patience < waited.as_secs_f64() {
            late.push((waited, *digest, other));
        }
    }
    late.sort_by_key(|one| std::cmp::Reverse(one.0));
    late.truncate(spare);
    late.into_iter().map(|(_, digest, mirror)| (digest, mirror)).collect()
}

/// Pieces as values in memory: rows of equal length, one behind the other.
pub(crate) struct InMemory<'a> {
    pub rows: Vec<&'a mut [f32]>,
}

#[async_trait]
impl PieceSink for InMemory<'_> {
    async fn put(&mut self, index: usize, bytes: &Bytes) -> Result<(), FileError> {
        let layout = Layout { values: self.rows.first().map_or(0, |row| row.len()) };
        let (row, start, length) = layout.at(index);
        // The manifest's root fixes the digests, the digest fixes the bytes: what has the digest has the length.
        for (value, bytes) in self.rows[row][start..start + length].iter_mut().zip(bytes.as_chunks::<4>().0) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(())
    }
}
