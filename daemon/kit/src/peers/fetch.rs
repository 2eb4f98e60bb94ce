//! Reads from buckets, from peers, and from the receivers of a contribution that is not in a bucket.

use super::{Peers, Receivers, reach::ANSWERS_WITHIN};
use crate::error_chain;
use async_trait::async_trait;
use bytes::Bytes;
use network::{OpenError, PeerUrl};
use protocol::{
    Digest, Window, ensure,
    keys::{self, ObjectKey},
};
use std::{ops::Range, time::Duration};
use store::{
    DirectoryStore, Fetch, FetchError, Limits, Sink, Store as _, StoreError, TrafficTotals,
    fetch_verified_into,
};

/// Interval between checks of the inbox while others are asked.
const INBOX_EVERY: Duration = Duration::from_millis(100);
/// Maximum size of one read from the inbox, in bytes.
const PART_BYTES: u64 = 4 << 20;

#[async_trait]
impl Fetch for Peers {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let mut whole = store::BufferSink::default();
        self.fetch_into(base_url, key, limits, &mut whole).await?;
        Ok(whole.into_bytes())
    }

    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        match without_bucket(base_url, key) {
            Some(wanted) => {
                let fetched = self.read_from_receivers(base_url, wanted, key, limits, to);
                let ended = tokio::time::timeout(limits.deadline, fetched).await;
                ended.unwrap_or(Err(FetchError::Deadline { after: limits.deadline }))
            }
            None => self.any.fetch_into(base_url, key, limits, to).await,
        }
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        self.any.fetch_range(base_url, key, range, limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.any.traffic()
    }
}

impl Peers {
    /// Reads a contribution that is not in a bucket: from the own inbox, or from a receiver. It is
    /// [missing](FetchError::Missing) only if every receiver reports so; other failures are not blamed on its miner.
    async fn read_from_receivers(
        &self,
        endpoint: &str,
        wanted: (Window, Digest),
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let Some(inbox) = &self.inbox else {
            return self.ask_receivers(endpoint, wanted, key, limits, to).await;
        };
        let arrived = async {
            while !inbox.contains(key) {
                tokio::time::sleep(INBOX_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            () = arrived => {}
            asked = self.ask_receivers(endpoint, wanted, key, limits, to) => return asked,
        }
        from_inbox(inbox, key, limits, to).await
    }

    async fn ask_receivers(
        &self,
        endpoint: &str,
        (window, digest): (Window, Digest),
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let committed =
            self.committed(window).await.map_err(|error| FetchError::Ours { what: error_chain(&error) })?;
        let committed =
            committed.ok_or_else(|| FetchError::Ours { what: "the window takes commitments".into() })?;
        let limits = Limits { first_byte: limits.first_byte.min(ANSWERS_WITHIN), ..*limits };
        let Receivers { found, some_unknown } = self.receivers(&committed, endpoint).await;
        let (own, others): (Vec<_>, Vec<_>) =
            found.into_iter().partition(|(_, urls)| urls.iter().any(|url| url.peer == self.network.peer()));
        // This validator is a receiver, but has not received it.
        let mut asked = own.len();
        // A validator with an unavailable bucket may have it.
        let mut failed =
            some_unknown.then(|| "the bucket of a validator that may have it did not answer".to_owned());
        // If none answered recently, this node itself may have been disconnected.
        let some_answer = others.iter().any(|(validator, _)| !self.is_silent(&validator.hotkey));
        for (validator, urls) in others {
            let reached = match some_answer && self.is_silent(&validator.hotkey) {
                true => Err(OpenError::Unreachable("it did not answer lately".into())),
                false => self.reach(validator, &urls).await,
            };
            let read = match reached {
                Ok(url) => {
                    let url = url.to_string();
                    let read = fetch_verified_into(&self.any, &url, key, &digest, &limits, to).await;
                    // The connection may be open although the node no longer exists.
                    if let Err(FetchError::Unreachable { .. } | FetchError::Stalled { .. }) = &read {
                        self.leave_alone(validator.hotkey);
                    }
                    read
                }
                Err(error) => Err(FetchError::Unreachable { what: error.to_string() }),
            };
            match read {
                Ok(()) => return Ok(()),
                Err(FetchError::Missing) => asked += 1,
                Err(error) => {
                    let uid = validator.id.uid;
                    tracing::debug!(%uid, %error, object = %key, "could not read a contribution from its receiver");
                    failed = Some(format!("validator {uid}, which may have it: {error}"));
                }
            }
        }
        Err(match failed {
            Some(what) => FetchError::Unreachable { what },
            None if asked == 0 => {
                FetchError::Unreachable { what: "no validator tells where it takes contributions".into() }
            }
            None => FetchError::Missing,
        })
    }
}

async fn from_inbox(
    inbox: &DirectoryStore,
    key: &ObjectKey,
    limits: &Limits,
    to: &mut dyn Sink,
) -> Result<(), FetchError> {
    let ours = |error: StoreError| FetchError::Ours { what: error_chain(&error) };
    let max_bytes = limits.max_bytes;
    let (length, mut bytes) = inbox.read(key, 0..PART_BYTES).await.map_err(ours)?;
    ensure!(length <= max_bytes, FetchError::TooLarge { bytes: length, max_bytes });
    to.begin(length);
    let (mut at, mut hasher) = (0, blake3::Hasher::new());
    while !bytes.is_empty() {
        hasher.update(&bytes);
        to.piece(&bytes);
        at += bytes.len() as u64;
        bytes = inbox.read(key, at..at + PART_BYTES).await.map_err(ours)?.1;
    }
    if Digest(*hasher.finalize().as_bytes()) != key.digest() {
        // The damage is on this validator's own disk.
        inbox.delete(key).await.map_err(ours)?;
        return Err(FetchError::Ours { what: format!("{key} was damaged in the inbox, and is removed") });
    }
    Ok(())
}

/// Returns the wanted contribution if it belongs to a seat without a bucket.
fn without_bucket(base_url: &str, key: &ObjectKey) -> Option<(Window, Digest)> {
    let url: PeerUrl = base_url.parse().ok()?;
    let (_, window, digest) = keys::contribution_of(key)?;
    url.address.is_none().then_some((window, digest))
}
