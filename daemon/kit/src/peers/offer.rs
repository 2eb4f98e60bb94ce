//! Offers of contributions to validators, by a miner without a bucket.

use super::{Peers, RETRY};
use async_trait::async_trait;
use bytes::Bytes;
use chain_client::ChainError;
use futures::{StreamExt as _, stream::FuturesUnordered};
use network::{PeerUrl, PushError, push};
use protocol::{
    Uid, Window, ensure,
    identity::Signer,
    keys::{self, ObjectKey},
    peer::{PutHeader, RECEIVERS_WANTED},
    view::SeatView,
};
use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use store::{Action, Listing, Store, StoreError, Traffic, TrafficTotals};
use tokio::time::Instant;

/// Interval between offers to one validator.
const OFFER_AGAIN: Duration = Duration::from_millis(500);
/// Number of receivers after which slow ones are no longer awaited: those that take more than twice as long.
const RECEIVERS_ENOUGH: usize = 2;
/// Minimum time to wait for these slow receivers.
const GRACE_MIN: Duration = Duration::from_secs(1);
/// Maximum number of further offers to a validator that may accept the contribution later.
const TRIES_MAX: u32 = 5;

/// The store of a miner without a bucket: it sends contributions to validators.
pub struct PeerStore {
    pub peers: Arc<Peers>,
    pub uid: Uid,
    /// The seat's endpoint, from which validators derive the receivers.
    pub endpoint: String,
    pub signer: Signer,
    pub traffic: Traffic,
}

#[async_trait]
impl Store for PeerStore {
    fn describe(&self) -> String {
        "the validators that take contributions from peers".into()
    }

    async fn put(&self, key: &ObjectKey, _: Bytes) -> Result<(), StoreError> {
        let why = "a seat without a bucket publishes nothing but contributions".into();
        Err(StoreError::BadName { name: key.to_string(), why })
    }

    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let Some((run, window, digest)) = keys::contribution_of(key) else {
            return self.put(key, Bytes::new()).await.map(|()| 0);
        };
        let about = tokio::fs::metadata(path).await;
        let about = about.map_err(|source| StoreError::File { path: path.display().to_string(), source })?;
        let length = about.len();
        let offer = PutHeader::sign(run, window, self.uid, digest, length, &self.signer);
        match self.peers.offer(&self.endpoint, &offer, path).await {
            Ok(have) => {
                if have.len() < RECEIVERS_WANTED {
                    tracing::info!(
                        window = window.0,
                        ?have,
                        "these validators have the contribution, and no others"
                    );
                }
                if have.len() < RECEIVERS_ENOUGH {
                    tokio::spawn(self.peers.clone().offer_to_more(
                        self.endpoint.clone(),
                        offer,
                        path.to_owned(),
                    ));
                }
                self.traffic.add_up(length * have.len() as u64);
                Ok(length)
            }
            Err(error) => Err(StoreError::Unavailable {
                store: self.describe(),
                action: Action::Write,
                name: key.to_string(),
                source: Box::new(error),
            }),
        }
    }

    async fn get(&self, key: &ObjectKey, _: u64) -> Result<Bytes, StoreError> {
        Err(StoreError::NotFound { key: key.to_string() })
    }

    async fn delete(&self, _: &ObjectKey) -> Result<(), StoreError> {
        Ok(())
    }

    async fn list(&self, _: &str, _: usize) -> Result<Listing, StoreError> {
        Ok(Listing { entries: Vec::new(), complete: true })
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

impl Peers {
    /// Offers a contribution to its receivers until [`RECEIVERS_WANTED`] of them have it, or no receivers are left.
    /// Returns those that have it.
    async fn offer(&self, endpoint: &str, offer: &PutHeader, file: &Path) -> Result<Vec<Uid>, NotDelivered> {
        let committed = self.committed(offer.window).await?.ok_or(NotDelivered::TooEarly)?;
        let receivers = self.receivers(&committed, endpoint).await.found;
        ensure!(!receivers.is_empty(), NotDelivered::NoReceiver);
        // Validators that did not answer recently are asked only if the others are too few or fail.
        let (away, others): (Vec<_>, Vec<_>) =
            receivers.iter().partition(|(validator, _)| self.is_silent(&validator.hotkey));
        let began = Instant::now();
        // Set once enough receivers have it.
        let mut until = None;
        let (mut have, mut failures) = (Vec::new(), BTreeMap::new());
        let others = others.into_iter().map(|receiver| (receiver, RECEIVERS_WANTED));
        let away = away.into_iter().map(|receiver| (receiver, RECEIVERS_ENOUGH));
        let (mut next, mut pushes) = (others.chain(away).collect::<VecDeque<_>>(), FuturesUnordered::new());
        loop {
            let is_open = failures.is_empty() || self.is_open(offer.window);
            while is_open
                && let Some(&(receiver, wanted)) = next.front()
                && have.len() + pushes.len() < wanted
            {
                next.pop_front();
                pushes.push(async move { (receiver.0.id.uid, self.push_to(receiver, offer, file).await) });
            }
            let pushed = match until {
                None => pushes.next().await,
                Some(until) => tokio::time::timeout_at(until, pushes.next()).await.unwrap_or(None),
            };
            match pushed {
                None => break,
                Some((uid, Ok(()))) => {
                    have.push(uid);
                    if have.len() == RECEIVERS_ENOUGH {
                        until = Some(Instant::now() + began.elapsed().max(GRACE_MIN));
                    }
                }
                Some((uid, Err(error))) => {
                    tracing::debug!(%uid, %error, "a validator did not take the contribution");
                    failures.insert(uid, error.to_string());
                }
            }
        }
        ensure!(!have.is_empty(), NotDelivered::Refused(failures));
        Ok(have)
    }

    /// Offers a contribution repeatedly until [`RECEIVERS_ENOUGH`] validators have it or the deadline has passed.
    async fn offer_to_more(self: Arc<Peers>, endpoint: String, offer: PutHeader, file: PathBuf) {
        while self.is_open(offer.window) {
            tokio::time::sleep(RETRY).await;
            if self.offer(&endpoint, &offer, &file).await.is_ok_and(|have| RECEIVERS_ENOUGH <= have.len()) {
                return;
            }
        }
    }

    /// Returns whether validators still accept contributions to a window. Later offers would take the next window's
    /// time on a slow line.
    fn is_open(&self, window: Window) -> bool {
        self.chain.heads().borrow().block <= self.schedule.reveal_deadline(window)
    }

    async fn push_to(
        &self,
        (validator, urls): &(&SeatView, Vec<PeerUrl>),
        offer: &PutHeader,
        file: &Path,
    ) -> Result<(), PushError> {
        let mut tries = 0;
        loop {
            let url = self.reach(validator, urls).await?;
            match push(&self.network, &url, offer, file).await {
                Err(error) if error.may_pass() && tries < TRIES_MAX && self.is_open(offer.window) => {
                    tries += 1
                }
                ended => return ended,
            }
            tokio::time::sleep(OFFER_AGAIN).await;
        }
    }
}

/// Error of a contribution that no validator accepted.
#[derive(Debug, thiserror::Error)]
enum NotDelivered {
    #[error("could not read the chain")]
    Chain(#[from] ChainError),
    #[error("the commit deadline is not final yet")]
    TooEarly,
    #[error("no validator of the window tells where it takes contributions")]
    NoReceiver,
    #[error("{}", refusals(.0))]
    Refused(BTreeMap<Uid, String>),
}

fn refusals(failures: &BTreeMap<Uid, String>) -> String {
    let each = failures.iter().map(|(uid, why)| format!("validator {uid}: {why}"));
    each.collect::<Vec<_>>().join("; ")
}
