//! Connections to validators, and the validators that did not answer recently.

use super::Peers;
use network::{OpenError, PeerUrl};
use protocol::{Hotkey, view::SeatView};
use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};
use tokio::time::Instant;

/// Time limit for a connection to a validator, over QUIC or TCP, and for its answer.
pub(super) const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// Period without contact to a validator that did not answer.
const SILENT_FOR: Duration = Duration::from_secs(60);

impl Peers {
    /// Connects to a validator and returns its address. If that fails, reads its record again, because the address may
    /// have changed. A validator that does not answer is not contacted for a while.
    pub(super) async fn reach(&self, validator: &SeatView, urls: &[PeerUrl]) -> Result<PeerUrl, OpenError> {
        // Takes effect even if the caller drops this future.
        self.expect_answer(validator.hotkey);
        let mut connected = self.connect(urls).await;
        if connected.is_err() {
            self.records().remove(&validator.hotkey);
            let now = self.addresses(validator).await.unwrap_or_default();
            if now != urls {
                connected = self.connect(&now).await;
            }
        }
        match &connected {
            Ok(_) => drop(self.silent().remove(&validator.hotkey)),
            Err(_) => self.leave_alone(validator.hotkey),
        }
        connected
    }

    async fn connect(&self, urls: &[PeerUrl]) -> Result<PeerUrl, OpenError> {
        let connected = tokio::time::timeout(ANSWERS_WITHIN, self.network.connect(urls)).await;
        connected.unwrap_or_else(|_| {
            Err(OpenError::Unreachable(format!("it did not answer within {} s", ANSWERS_WITHIN.as_secs())))
        })?;
        urls.first().cloned().ok_or(OpenError::NoAddress)
    }

    fn expect_answer(&self, validator: Hotkey) {
        let now = Instant::now();
        let from = now + ANSWERS_WITHIN;
        let mut silent = self.silent();
        let when = silent.entry(validator).or_insert(now..now);
        if when.end <= now {
            *when = from..from + SILENT_FOR;
        }
    }

    pub(super) fn leave_alone(&self, validator: Hotkey) {
        let from = Instant::now();
        self.silent().insert(validator, from..from + SILENT_FOR);
    }

    pub(super) fn is_silent(&self, validator: &Hotkey) -> bool {
        self.silent().get(validator).is_some_and(|when| when.contains(&Instant::now()))
    }

    pub(super) fn silent(&self) -> MutexGuard<'_, BTreeMap<Hotkey, Range<Instant>>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
