//! `put/1`: a miner without a bucket sends its contribution to a validator.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::AsyncWriteExt as _;
use protocol::ensure;
use protocol::peer::{MessageError, PutAnswer, PutHeader, Refusal};
use protocol::{Digest, Uid, Window, keys};
use store::{DirectoryStore, FetchError, Limits};
use tokio::io::AsyncReadExt as _;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use crate::blob::{AlreadyServed, Places, Visitor};
use crate::streams::OpenError;
use crate::streams::Stream;
use crate::swarm::Network;
use crate::url::PeerUrl;
use crate::wire::{self, Body, WireError};

const PROTOCOL: &str = "put/1";
/// Maximum number of contributions that a node receives concurrently.
pub const PUTS_MAX: usize = 8;
/// Number of failed transfers of a seat in a window after which it is refused.
const FAILURES_MAX: u32 = 3;
/// Time limit of a message, and of [`wire::CHUNK_BYTES`] of a contribution.
const PATIENCE: Duration = Duration::from_secs(10);

/// Decides which offers are accepted.
#[async_trait]
pub trait Admission: Send + Sync + 'static {
    async fn judge(&self, offer: &PutHeader) -> Result<(), Refusal>;
}

/// Receives contributions from peers into `inbox`.
pub struct PutServer {
    pub admission: Arc<dyn Admission>,
    pub inbox: Arc<DirectoryStore>,
    /// Returns the limits for a contribution of this number of bytes.
    pub limits: fn(u64) -> Limits,
    pub(crate) underway: Mutex<BTreeSet<(Window, Uid)>>,
    /// Number of failed transfers in the latest window, by seat.
    pub(crate) failures: Mutex<(Window, BTreeMap<Uid, u32>)>,
    pub(crate) puts: Semaphore,
}

impl PutServer {
    pub fn new(admission: Arc<dyn Admission>, inbox: Arc<DirectoryStore>) -> PutServer {
        PutServer {
            admission,
            inbox,
            limits: Limits::for_bytes,
            underway: Mutex::default(),
            failures: Mutex::default(),
            puts: Semaphore::new(PUTS_MAX),
        }
    }

    /// Serves all peers until the network ends.
    ///
    /// # Errors
    /// If contributions are already accepted.
    pub fn serve(self, network: &Network) -> Result<(), AlreadyServed> {
        let mut incoming = network.accept(PROTOCOL).ok_or(AlreadyServed(PROTOCOL))?;
        let (server, streams, strangers) = (Arc::new(self), Places::of_streams(), network.strangers());
        tokio::spawn(async move {
            while let Some((peer, mut stream)) = incoming.recv().await {
                let visitor = Visitor { peer, is_stranger: strangers(&peer) };
                let Some(open) = streams.admit(visitor) else { continue };
                let server = server.clone();
                tokio::spawn(async move {
                    let answer = match server.take(&mut stream).await {
                        Ok(offer) => {
                            tracing::info!(%peer, uid = offer.uid.0, window = offer.window.0, "a peer's contribution");
                            PutAnswer::Have
                        }
                        Err(refusal) => {
                            tracing::debug!(%peer, %refusal, "refused a peer's contribution");
                            PutAnswer::Refused(refusal)
                        }
                    };
                    if wire::send(&mut stream, &answer, PATIENCE).await.is_ok() {
                        let _ = timeout(PATIENCE, stream.close()).await;
                    }
                    drop(open);
                });
            }
        });
        Ok(())
    }

    /// Receives one contribution. Does not read one again that is already in the inbox.
    async fn take(&self, stream: &mut Stream) -> Result<PutHeader, Refusal> {
        let offer: PutHeader = match wire::receive(stream, PATIENCE).await {
            Ok(offer) => offer,
            Err(WireError::Message(MessageError::Version { theirs, ours })) => {
                return Err(Refusal::Version { theirs, ours });
            }
            Err(WireError::Stalled(_)) => return Err(Refusal::TooSlow),
            Err(_) => return Err(Refusal::Malformed),
        };
        let _place = self.puts.try_acquire().map_err(|_| Refusal::Busy)?;
        self.admission.judge(&offer).await?;
        let key = keys::contribution(offer.run, offer.window, &offer.digest);
        if self.inbox.contains(&key) {
            return Ok(offer);
        }
        ensure!(!self.has_failed_often(&offer), Refusal::TooSlow);
        let _underway = self.begin(&offer)?;
        wire::send(stream, &PutAnswer::Send, PATIENCE).await.map_err(|_| Refusal::CutShort)?;
        let limits = (self.limits)(offer.length);
        let received = timeout(limits.deadline, self.receive(stream, &offer, &limits)).await;
        let received = received.unwrap_or(Err(Refusal::TooSlow));
        if received.is_err() {
            self.count_failure(&offer);
        }
        let partial = received?;
        let inbox = self.inbox.clone();
        let kept = tokio::task::spawn_blocking(move || inbox.keep(&key, partial)).await;
        kept.unwrap_or_else(|died| Err(io::Error::other(died))).map_err(|error| failed(&error))?;
        Ok(offer)
    }

    /// Receives the bytes and hashes them as they arrive.
    async fn receive(
        &self,
        stream: &mut Stream,
        offer: &PutHeader,
        limits: &Limits,
    ) -> Result<store::Partial, Refusal> {
        let mut partial = self.inbox.begin().map_err(|error| failed(&error))?;
        let mut hasher = blake3::Hasher::new();
        let mut body = Body::new(stream, offer.length, limits);
        loop {
            let read = body.next().await.map_err(|error| match error {
                FetchError::Crawled { .. } => Refusal::TooSlow,
                _ => Refusal::CutShort,
            });
            let Some(chunk) = read? else { break };
            let came = Instant::now();
            hasher.update(chunk);
            // At most one chunk, so the executor waits no longer than for a page of the disk's cache.
            partial.write(chunk).map_err(|error| failed(&error))?;
            body.pause(came.elapsed());
        }
        match Digest(*hasher.finalize().as_bytes()) == offer.digest {
            true => Ok(partial),
            false => Err(Refusal::OtherDigest),
        }
    }

    /// Returns whether a seat has failed too often. Otherwise it could occupy a slot all the time by repeated slow
    /// transfers.
    fn has_failed_often(&self, offer: &PutHeader) -> bool {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.0 == offer.window && failures.1.get(&offer.uid).is_some_and(|count| FAILURES_MAX <= *count)
    }

    fn count_failure(&self, offer: &PutHeader) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.0 != offer.window {
            *failures = (offer.window, BTreeMap::new());
        }
        *failures.1.entry(offer.uid).or_default() += 1;
    }

    fn begin(&self, offer: &PutHeader) -> Result<Underway<'_>, Refusal> {
        let of = (offer.window, offer.uid);
        let mut underway = self.underway.lock().unwrap_or_else(PoisonError::into_inner);
        match underway.insert(of) {
            true => Ok(Underway { server: self, of }),
            false => Err(Refusal::InProgress),
        }
    }
}

fn failed(error: &io::Error) -> Refusal {
    tracing::warn!(%error, "could not keep a peer's contribution");
    Refusal::Failed
}

/// A seat's contribution that is being received.
struct Underway<'a> {
    server: &'a PutServer,
    of: (Window, Uid),
}

impl Drop for Underway<'_> {
    fn drop(&mut self) {
        self.server.underway.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.of);
    }
}

/// Error of sending a contribution to a validator.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{0}")]
    Refused(Refusal),
    #[error("the connection broke: {0}")]
    Wire(#[from] WireError),
    #[error("could not read the contribution {}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("not done within {after:?}")]
    Deadline { after: Duration },
}

impl PushError {
    /// Returns whether the same push may succeed soon.
    pub fn may_pass(&self) -> bool {
        match self {
            PushError::Refused(refusal) => refusal.may_pass(),
            PushError::Open(error) => matches!(error, OpenError::Unreachable(_)),
            PushError::Wire(_) => true,
            PushError::File { .. } | PushError::Deadline { .. } => false,
        }
    }
}

/// Sends the contribution in `file` to a validator. When this succeeds, the validator has it.
///
/// # Errors
/// If the validator cannot be reached or refuses, the file cannot be read, or the deadline passes.
pub async fn push(network: &Network, to: &PeerUrl, offer: &PutHeader, file: &Path) -> Result<(), PushError> {
    let after = Limits::for_bytes(offer.length).deadline;
    timeout(after, exchange(network, to, offer, file)).await.unwrap_or(Err(PushError::Deadline { after }))
}

async fn exchange(network: &Network, to: &PeerUrl, offer: &PutHeader, file: &Path) -> Result<(), PushError> {
    let unreadable = |source| PushError::File { path: file.to_owned(), source };
    let mut stream = network.open(to, PROTOCOL).await?;
    wire::send(&mut stream, offer, PATIENCE).await?;
    match wire::receive(&mut stream, PATIENCE).await? {
        PutAnswer::Have => return Ok(()),
        PutAnswer::Refused(refusal) => return Err(PushError::Refused(refusal)),
        PutAnswer::Send => {}
    }
    let mut from = tokio::fs::File::open(file).await.map_err(unreadable)?;
    let mut chunk = vec![0; wire::CHUNK_BYTES];
    loop {
        let bytes = from.read(&mut chunk).await.map_err(unreadable)?;
        if bytes == 0 {
            break;
        }
        match timeout(PATIENCE, stream.write_all(&chunk[..bytes])).await {
            Ok(Ok(())) => {}
            // The receiver may have sent a reason before it stopped reading.
            Ok(Err(_)) => break,
            Err(_) => return Err(WireError::Stalled(PATIENCE).into()),
        }
    }
    let _ = timeout(PATIENCE, stream.flush()).await;
    match wire::receive(&mut stream, PATIENCE).await? {
        PutAnswer::Have => Ok(()),
        PutAnswer::Refused(refusal) => Err(PushError::Refused(refusal)),
        PutAnswer::Send => Err(WireError::Message(MessageError::Malformed).into()),
    }
}
