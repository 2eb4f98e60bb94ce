//! Reading from the buckets of strangers (PROT-13, PROT-15).
//!
//! The owner of a seat may write any endpoint to the chain. So a fetch knows in advance how many bytes it may get,
//! their digest, and its deadline. Each failure is either the endpoint's, which a validator may attest as a fault, or
//! may be this node's own, which is no observation (PROT-14). In doubt it is this node's: a fault needs two thirds of
//! the stake anyway, and a contribution that no validator can read is not merged either.

pub mod address;
pub mod http;

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::keys::ObjectKey;
use protocol::{Digest, Uid};

use crate::TrafficTotals;
pub use address::AddressClass;
pub use http::{FetchPolicy, HttpFetcher, Resolver};

/// Reads objects from any bucket, without a credential.
#[async_trait]
pub trait Fetch: Send + Sync {
    /// Gets the object `key` below `base_url`, within `limits`. Its digest is not checked: see [`fetch_verified`].
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError>;

    /// The same, but passes the object to `to` piece by piece as it arrives. After a failure `to` may have a part of
    /// it. By default the object comes in one piece.
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

    /// Gets exactly the bytes `range` of an object; another range in the answer is an error. By default the whole
    /// object is fetched.
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

    /// The bytes that came down since this fetcher was made, including those of failed fetches.
    fn traffic(&self) -> TrafficTotals;
}

/// Bytes of a whole object.
fn cut(whole: &Bytes, range: &Range<u64>) -> Result<Bytes, FetchError> {
    let at = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let cut = (at(range.end) <= whole.len() && range.start <= range.end)
        .then(|| whole.slice(at(range.start)..at(range.end)));
    cut.ok_or(FetchError::CutShort { got: whole.len() as u64, expected: range.end })
}

#[async_trait]
impl<F: Fetch + ?Sized> Fetch for std::sync::Arc<F> {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        (**self).fetch(base_url, key, limits).await
    }
    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        (**self).fetch_into(base_url, key, limits, to).await
    }
    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        (**self).fetch_range(base_url, key, range, limits).await
    }
    fn traffic(&self) -> TrafficTotals {
        (**self).traffic()
    }
}

/// Receives an object while it arrives. None of it is verified before the fetch has succeeded.
///
/// It is called between two reads of the network, so it must not block.
pub trait Sink: Send {
    /// An object of `length` bytes begins. Any bytes before were of a failed fetch and are dropped.
    fn begin(&mut self, length: u64);

    /// The next bytes, in order; in total never more than `length`.
    fn piece(&mut self, bytes: &[u8]);
}

/// Receives an object whole.
#[derive(Debug, Default)]
pub struct BufferSink {
    bytes: Vec<u8>,
    length: u64,
}

impl BufferSink {
    /// The bytes so far.
    pub fn so_far(&self) -> &[u8] {
        &self.bytes
    }

    /// The announced length of the object.
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

    /// Memory grows with the bytes that arrive, not with the announced length, and never beyond it.
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
    /// The largest legal size of the object, known from the schema (PROT-8).
    pub max_bytes: u64,
    /// The fetch ends after this, however well it goes. This counts as the node's own failure.
    pub deadline: Duration,
    /// From the connection to the first line of the answer.
    pub first_byte: Duration,
    /// An endpoint that sends fewer bytes per second over a whole `rate_window` is too slow, and is cut off.
    pub min_bytes_per_second: u64,
    pub rate_window: Duration,
}

impl Limits {
    /// Limits for an object of at most `max_bytes`: a minute and what the minimum rate needs, 64 KiB/s over 5 seconds,
    /// an answer within 10 seconds.
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

    /// The same with another deadline.
    pub fn within(self, deadline: Duration) -> Limits {
        Limits { deadline, ..self }
    }
}

/// Why a fetch failed. [`FetchError::is_theirs`] tells whose failure it is.
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
    /// Whether the owner of the endpoint is to blame, so that a validator may attest a fault. Otherwise it is no
    /// observation.
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

    /// Whether the same fetch may succeed soon.
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

    /// A stable short name for logs, tables and metrics.
    pub fn label(&self) -> &'static str {
        match self {
            FetchError::BadUrl { .. } => "bad-url",
            FetchError::ForbiddenAddress { .. } => "forbidden-address",
            FetchError::Missing => "missing",
            FetchError::Refused { .. } => "refused",
            FetchError::Redirected { .. } => "redirected",
            FetchError::NoLength => "no-length",
            FetchError::Encoded { .. } => "encoded",
            FetchError::TooLarge { .. } => "too-large",
            FetchError::Stalled { .. } => "stalled",
            FetchError::Crawled { .. } => "crawled",
            FetchError::CutShort { .. } => "cut-short",
            FetchError::OtherRange { .. } => "other-range",
            FetchError::WrongDigest { .. } => "wrong-digest",
            FetchError::Unresolved { .. } => "unresolved",
            FetchError::Unreachable { .. } => "unreachable",
            FetchError::Broken { .. } => "broken",
            FetchError::Unavailable { .. } => "unavailable",
            FetchError::Deadline { .. } => "deadline",
            FetchError::Ours { .. } => "ours",
        }
    }
}

/// Fetches an object and compares its digest.
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

/// As [`fetch_verified`], but passes the object to `to` while it arrives. The object is verified once this succeeds.
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

/// Hashes the bytes that pass.
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

/// An endpoint that may have the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The seat, if it is a seat's endpoint.
    pub uid: Option<Uid>,
    pub base_url: String,
}

/// The mirrors to ask for an object, their order, and the number of rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct FetchPlan {
    mirrors: Vec<Mirror>,
    rounds: u32,
    pause: Duration,
    total: Option<Duration>,
}

/// The mirror that had an object, and those that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FetchedFrom {
    pub from: Mirror,
    /// In the order of the requests.
    pub failures: Vec<Failure>,
}

/// An object, the mirror that had it, and those that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetched {
    pub bytes: Bytes,
    pub from: Mirror,
    /// In the order of the requests.
    pub failures: Vec<Failure>,
}

/// The failure of one mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    pub mirror: Mirror,
    pub error: FetchError,
}

/// No mirror gave the object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("none of {asked} mirrors gave {key}{last}", last = self.last())]
pub struct AllMirrorsFailed {
    pub key: String,
    /// The number of mirrors.
    pub asked: usize,
    /// Of all rounds, in the order of the requests.
    pub failures: Vec<Failure>,
}

impl AllMirrorsFailed {
    fn last(&self) -> String {
        self.failures.last().map_or(String::new(), |failure| format!("; the last failure: {}", failure.error))
    }
}

impl FetchPlan {
    /// No mirror, one round.
    pub fn new() -> FetchPlan {
        FetchPlan { mirrors: Vec::new(), rounds: 1, pause: Duration::from_millis(500), total: None }
    }

    /// Adds a mirror.
    pub fn then(mut self, uid: Option<Uid>, base_url: impl Into<String>) -> FetchPlan {
        self.mirrors.push(Mirror { uid, base_url: base_url.into() });
        self
    }

    /// Adds mirrors in an order that `seed` decides, so that different nodes begin with different mirrors.
    pub fn then_shuffled(mut self, mirrors: impl IntoIterator<Item = Mirror>, seed: &[u8]) -> FetchPlan {
        let mut keyed: Vec<_> = mirrors
            .into_iter()
            .map(|mirror| {
                let uid =
                    mirror.uid.map_or([0; 3], |uid| [1, uid.0.to_le_bytes()[0], uid.0.to_le_bytes()[1]]);
                (Digest::of_parts(&[seed, &[0], &uid, mirror.base_url.as_bytes()]), mirror)
            })
            .collect();
        keyed.sort_by_key(|(digest, _)| *digest);
        self.mirrors.extend(keyed.into_iter().map(|(_, mirror)| mirror));
        self
    }

    /// Asks all mirrors up to `rounds` times, with a pause between. A mirror that failed for good is asked only once.
    pub fn rounds(mut self, rounds: u32, pause: Duration) -> FetchPlan {
        self.rounds = rounds.max(1);
        self.pause = pause;
        self
    }

    /// Ends all rounds together after `total`.
    pub fn within(mut self, total: Duration) -> FetchPlan {
        self.total = Some(total);
        self
    }

    pub fn mirrors(&self) -> &[Mirror] {
        &self.mirrors
    }

    /// Asks one mirror after the other until one gives bytes with the right digest.
    pub async fn fetch(
        &self,
        fetch: &dyn Fetch,
        key: &ObjectKey,
        digest: &Digest,
        limits: &Limits,
    ) -> Result<Fetched, AllMirrorsFailed> {
        let mut whole = BufferSink::default();
        let FetchedFrom { from, failures } = self.fetch_into(fetch, key, digest, limits, &mut whole).await?;
        Ok(Fetched { bytes: whole.into_bytes(), from, failures })
    }

    /// As [`FetchPlan::fetch`], but passes the object to `to` while it arrives, from the beginning for each mirror.
    /// The object is verified once this succeeds.
    pub async fn fetch_into(
        &self,
        fetch: &dyn Fetch,
        key: &ObjectKey,
        digest: &Digest,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<FetchedFrom, AllMirrorsFailed> {
        let end = self.total.map(|total| tokio::time::Instant::now() + total);
        let mut failures: Vec<Failure> = Vec::new();
        let mut left: Vec<&Mirror> = self.mirrors.iter().collect();
        'rounds: for round in 0..self.rounds {
            if round > 0 {
                tokio::time::sleep(self.pause).await;
            }
            let mut again = Vec::new();
            for mirror in left {
                let limits = match end {
                    None => *limits,
                    Some(end) => {
                        let left = end.saturating_duration_since(tokio::time::Instant::now());
                        if left.is_zero() {
                            break 'rounds;
                        }
                        limits.within(limits.deadline.min(left))
                    }
                };
                match fetch_verified_into(fetch, &mirror.base_url, key, digest, &limits, to).await {
                    Ok(()) => return Ok(FetchedFrom { from: mirror.clone(), failures }),
                    Err(error) => {
                        tracing::debug!(object = %key, mirror = mirror.base_url, %error, "a mirror failed");
                        if error.may_pass() {
                            again.push(mirror);
                        }
                        failures.push(Failure { mirror: mirror.clone(), error });
                    }
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
        }
        Err(AllMirrorsFailed { key: key.to_string(), asked: self.mirrors.len(), failures })
    }
}

impl Default for FetchPlan {
    fn default() -> FetchPlan {
        FetchPlan::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(uid: u16) -> Mirror {
        Mirror { uid: Some(Uid(uid)), base_url: format!("http://host-{uid}/bucket") }
    }

    #[test]
    fn a_seed_alone_decides_the_order_of_mirrors() {
        let plan = |seed: &[u8], order: &[u16]| {
            FetchPlan::new().then_shuffled(order.iter().map(|&uid| mirror(uid)), seed)
        };
        let first = plan(b"one", &[0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(first, plan(b"one", &[7, 6, 5, 4, 3, 2, 1, 0]));
        assert_ne!(first, plan(b"two", &[0, 1, 2, 3, 4, 5, 6, 7]));
        assert_eq!(first.mirrors().len(), 8);
    }

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
