//! Reads from other parties' buckets (PROT-13, PROT-15).
//!
//! The owner of a seat may publish any endpoint on the chain. So a fetch knows the maximum size, the digest and the
//! deadline in advance. A failure is attributed to the endpoint, so that a validator may attest a fault, or else to
//! this node: then it is not an observation (PROT-14). In doubt it is attributed to this node: a fault needs two
//! thirds of the stake anyway, and a contribution that no validator can read is not merged either.

pub mod address;
pub mod http;
mod rate;

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::Digest;
use protocol::keys::ObjectKey;

use crate::TrafficTotals;
pub use address::AddressClass;
pub use http::{FetchPolicy, HttpFetcher, Resolver, check_base_url};
pub use rate::RateWindow;

/// Reads objects from any bucket, without a credential.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Gets the object `key` below `base_url`, within `limits`. Does not check its digest: see [`fetch_verified`].
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError>;

    /// Gets an object and passes it to `to` piece by piece as it arrives. After a failure `to` may have received a
    /// part of it. The default implementation passes it in one piece.
    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let bytes = self.fetch(base_url, key, limits).await?;
        to.begin(bytes.len() as u64);
        to.piece(&bytes);
        Ok(())
    }

    /// Gets exactly the bytes `range` of an object; a different range in the answer is an error. The default
    /// implementation fetches the whole object.
    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        let whole = self.fetch(base_url, key, &Limits { max_bytes: u64::MAX, ..*limits }).await?;
        cut(&whole, &range)
    }

    /// Returns the bytes downloaded since this fetcher was created, including those of failed fetches.
    fn traffic(&self) -> TrafficTotals;
}

/// Returns a range of a whole object.
pub(crate) fn cut(whole: &Bytes, range: &Range<u64>) -> Result<Bytes, FetchError> {
    let at = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let cut = (at(range.end) <= whole.len() && range.start <= range.end)
        .then(|| whole.slice(at(range.start)..at(range.end)));
    cut.ok_or(FetchError::CutShort { got: whole.len() as u64, expected: range.end })
}

/// Receives an object while it arrives. No part of it is verified before the fetch has succeeded.
///
/// Called between two reads of the network, so it must not block.
pub trait Sink: Send {
    /// Starts an object of `length` bytes. Earlier bytes belong to a failed fetch and are dropped.
    fn begin(&mut self, length: u64);

    /// Receives the next bytes, in order; never more than `length` in total.
    fn piece(&mut self, bytes: &[u8]);
}

/// Receives an object in memory.
#[derive(Debug, Default)]
pub struct BufferSink {
    bytes: Vec<u8>,
    length: u64,
}

impl BufferSink {
    /// Returns the bytes received so far.
    pub fn so_far(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the announced length of the object.
    pub fn length(&self) -> u64 {
        self.length
    }

    pub fn into_bytes(self) -> Bytes {
        self.bytes.into()
    }
}

impl Sink for BufferSink {
    fn begin(&mut self, length: u64) {
        *self = BufferSink { bytes: Vec::new(), length };
    }

    /// Allocates memory for received bytes, not for the announced length, and never more than that.
    fn piece(&mut self, bytes: &[u8]) {
        let held = self.bytes.len();
        if self.bytes.capacity() - held < bytes.len() {
            let missing = usize::try_from(self.length).unwrap_or(usize::MAX).saturating_sub(held);
            self.bytes.reserve_exact(missing.min(held.max(64 << 10)).max(bytes.len()));
        }
        self.bytes.extend_from_slice(bytes);
    }
}

/// The limits of one fetch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Maximum legal size of the object, known from the schema (PROT-8).
    pub max_bytes: u64,
    /// Time limit of the whole fetch, regardless of its progress. Exceeding it counts as this node's own failure.
    pub deadline: Duration,
    /// Time limit from the connection to the first line of the answer.
    pub first_byte: Duration,
    /// Minimum rate. An endpoint that sends less over a whole `rate_window` is disconnected.
    pub min_bytes_per_second: u64,
    pub rate_window: Duration,
}

impl Limits {
    /// Returns the limits for an object of at most `max_bytes`: one minute plus the time at the minimum rate of 64
    /// KiB/s over 5 seconds, and an answer within 10 seconds.
    pub fn for_bytes(max_bytes: u64) -> Limits {
        let min_bytes_per_second = 64 << 10;
        Limits {
            max_bytes,
            deadline: Duration::from_secs(60 + max_bytes / min_bytes_per_second),
            first_byte: Duration::from_secs(10),
            min_bytes_per_second,
            rate_window: Duration::from_secs(5),
        }
    }

    /// Replaces the deadline.
    pub fn within(self, deadline: Duration) -> Limits {
        Limits { deadline, ..self }
    }
}

/// Error of a fetch. [`FetchError::is_theirs`] attributes it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FetchError {
    #[error("the endpoint's URL cannot be used: {why}")]
    BadUrl { why: String },
    #[error("the endpoint is at {address}, {class}: a node fetches from no such address")]
    ForbiddenAddress { address: IpAddr, class: AddressClass },
    #[error("the endpoint does not have the object")]
    Missing,
    #[error("the endpoint refused with status {status}")]
    Refused { status: u16 },
    #[error("the endpoint redirects with status {status}")]
    Redirected { status: u16 },
    #[error("the endpoint does not say how large the object is")]
    NoLength,
    #[error("the endpoint sends the object encoded as {encoding:?}")]
    Encoded { encoding: String },
    #[error("the object has {bytes} bytes, more than the {max_bytes} allowed")]
    TooLarge { bytes: u64, max_bytes: u64 },
    #[error("no answer within {after:?} of connecting")]
    Stalled { after: Duration },
    #[error("only {bytes} bytes within {window:?}")]
    Crawled { bytes: u64, window: Duration },
    #[error("the endpoint closed the connection after {got} of {expected} bytes")]
    CutShort { got: u64, expected: u64 },
    #[error("the endpoint was asked for bytes {first} to {last} and answered with {said}")]
    OtherRange { first: u64, last: u64, said: String },
    #[error("the bytes have the digest {got}, not {expected}")]
    WrongDigest { expected: Digest, got: Digest },

    #[error("the endpoint's name could not be resolved: {what}")]
    Unresolved { what: String },
    #[error("the endpoint could not be reached: {what}")]
    Unreachable { what: String },
    #[error("the connection broke after {got} of {expected} bytes: {what}")]
    Broken { got: u64, expected: u64, what: String },
    #[error("the endpoint is unavailable for now, status {status}")]
    Unavailable { status: u16 },
    #[error("the fetch did not end within {after:?}")]
    Deadline { after: Duration },
    #[error("this node could not fetch: {what}")]
    Ours { what: String },
}

impl FetchError {
    /// Returns whether the owner of the endpoint is to blame, so that a validator may attest a fault. Otherwise the
    /// failure is not an observation.
    pub fn is_theirs(&self) -> bool {
        match self {
            FetchError::BadUrl { .. }
            | FetchError::ForbiddenAddress { .. }
            | FetchError::Missing
            | FetchError::Refused { .. }
            | FetchError::Redirected { .. }
            | FetchError::NoLength
            | FetchError::Encoded { .. }
            | FetchError::TooLarge { .. }
            | FetchError::Stalled { .. }
            | FetchError::Crawled { .. }
            | FetchError::CutShort { .. }
            | FetchError::OtherRange { .. }
            | FetchError::WrongDigest { .. } => true,
            FetchError::Unresolved { .. }
            | FetchError::Unreachable { .. }
            | FetchError::Broken { .. }
            | FetchError::Unavailable { .. }
            | FetchError::Deadline { .. }
            | FetchError::Ours { .. } => false,
        }
    }

    /// Returns whether the same fetch may succeed soon.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            FetchError::Missing
                | FetchError::Stalled { .. }
                | FetchError::Crawled { .. }
                | FetchError::CutShort { .. }
                | FetchError::Unresolved { .. }
                | FetchError::Unreachable { .. }
                | FetchError::Broken { .. }
                | FetchError::Unavailable { .. }
        )
    }
}

/// Fetches an object and compares its digest.
///
/// # Errors
/// If the fetch fails, or [`FetchError::WrongDigest`].
pub async fn fetch_verified(
    fetch: &dyn Fetch,
    base_url: &str,
    key: &ObjectKey,
    digest: &Digest,
    limits: &Limits,
) -> Result<Bytes, FetchError> {
    let mut whole = BufferSink::default();
    fetch_verified_into(fetch, base_url, key, digest, limits, &mut whole).await?;
    Ok(whole.into_bytes())
}

/// Fetches like [`fetch_verified`], but passes the object to `to` as it arrives. It is verified only when this
/// succeeds.
///
/// # Errors
/// As [`fetch_verified`].
pub async fn fetch_verified_into(
    fetch: &dyn Fetch,
    base_url: &str,
    key: &ObjectKey,
    digest: &Digest,
    limits: &Limits,
    to: &mut dyn Sink,
) -> Result<(), FetchError> {
    let mut hashed = Hashed { hasher: blake3::Hasher::new(), to };
    fetch.fetch_into(base_url, key, limits, &mut hashed).await?;
    let got = Digest(*hashed.hasher.finalize().as_bytes());
    if got == *digest { Ok(()) } else { Err(FetchError::WrongDigest { expected: *digest, got }) }
}

/// Hashes the bytes that are written through it.
struct Hashed<'a> {
    hasher: blake3::Hasher,
    to: &'a mut dyn Sink,
}

impl Sink for Hashed<'_> {
    fn begin(&mut self, length: u64) {
        self.hasher.reset();
        self.to.begin(length);
    }

    fn piece(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.to.piece(bytes);
    }
}

/// The base URLs to ask for an object, in order, and the number of rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchPlan {
    mirrors: Vec<String>,
    rounds: u32,
    pause: Duration,
}

/// The failure of one mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Its base URL.
    pub mirror: String,
    pub error: FetchError,
}

/// Error of an object that no mirror delivered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of {asked} mirrors gave {key}{last}", last = self.last())]
pub struct AllMirrorsFailed {
    pub key: String,
    /// The number of mirrors.
    pub asked: usize,
    /// The failures of all rounds, in the order of the requests.
    pub failures: Vec<Failure>,
}

impl AllMirrorsFailed {
    fn last(&self) -> String {
        self.failures.last().map_or(String::new(), |failure| format!("; the last failure: {}", failure.error))
    }
}

impl FetchPlan {
    /// Creates a plan that asks each mirror once.
    pub fn new<M: Into<String>>(mirrors: impl IntoIterator<Item = M>) -> FetchPlan {
        let mirrors = mirrors.into_iter().map(Into::into).collect();
        FetchPlan { mirrors, rounds: 1, pause: Duration::ZERO }
    }

    /// Asks all mirrors up to `rounds` times, with a pause between rounds. A mirror with a permanent failure is asked
    /// only once.
    pub fn rounds(self, rounds: u32, pause: Duration) -> FetchPlan {
        FetchPlan { rounds, pause, ..self }
    }

    /// Asks one mirror after the other until one delivers bytes with the right digest. Also returns the failures
    /// before it, in the order of the requests.
    ///
    /// # Errors
    /// If all mirrors fail.
    pub async fn fetch(
        &self,
        fetch: &dyn Fetch,
        key: &ObjectKey,
        digest: &Digest,
        limits: &Limits,
    ) -> Result<(Bytes, Vec<Failure>), AllMirrorsFailed> {
        let mut whole = BufferSink::default();
        let failures = self.fetch_into(fetch, key, digest, limits, &mut whole).await?;
        Ok((whole.into_bytes(), failures))
    }

    /// Fetches like [`FetchPlan::fetch`], but passes the object to `to` as it arrives, from the start for each mirror.
    /// It is verified only when this succeeds.
    ///
    /// # Errors
    /// If all mirrors fail.
    pub async fn fetch_into(
        &self,
        fetch: &dyn Fetch,
        key: &ObjectKey,
        digest: &Digest,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<Vec<Failure>, AllMirrorsFailed> {
        let mut failures = Vec::new();
        let mut left: Vec<&String> = self.mirrors.iter().collect();
        for round in 0..self.rounds {
            if round > 0 && !left.is_empty() {
                tokio::time::sleep(self.pause).await;
            }
            let mut again = Vec::new();
            for mirror in left {
                let Err(error) = fetch_verified_into(fetch, mirror, key, digest, limits, to).await else {
                    return Ok(failures);
                };
                tracing::debug!(object = %key, mirror, %error, "a mirror failed");
                if error.may_pass() {
                    again.push(mirror);
                }
                failures.push(Failure { mirror: mirror.clone(), error });
            }
            left = again;
        }
        Err(AllMirrorsFailed { key: key.to_string(), asked: self.mirrors.len(), failures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_whole_object_takes_no_more_memory_than_came_of_it_or_was_promised() {
        let mut whole = BufferSink::default();
        whole.begin(1 << 40);
        whole.piece(&[1; 1000]);
        assert!(whole.bytes.capacity() < 1 << 20, "a promise takes no memory");
        whole.begin(1_000_000);
        (0..1000).for_each(|_| whole.piece(&[7; 1000]));
        assert_eq!((whole.length(), whole.so_far().len()), (1_000_000, 1_000_000));
        assert_eq!(whole.bytes.capacity(), 1_000_000);
        assert_eq!(whole.into_bytes(), vec![7; 1_000_000]);
    }

    #[test]
    fn limits_leave_time_for_the_slowest_allowed() {
        let limits = Limits::for_bytes(64 << 20);
        assert!(limits.deadline.as_secs() * limits.min_bytes_per_second > limits.max_bytes);
        assert_eq!(limits.within(Duration::from_secs(1)).deadline, Duration::from_secs(1));
    }
}
