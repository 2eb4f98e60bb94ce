//! Admission of peers' contributions by a validator, and their removal.

use super::Peers;
use crate::error_chain;
use async_trait::async_trait;
use protocol::{
    Window, keys,
    peer::{PutHeader, Receiver, Refusal},
};
use std::sync::{Arc, Mutex, PoisonError};
use store::{DirectoryStore, Store as _};

/// Number of windows before the latest one whose contributions are kept in the inbox.
const WINDOWS_KEPT: u32 = 1;

/// Decides on peers' offers to a validator.
pub(super) struct Judge {
    peers: Arc<Peers>,
    bytes_max: u64,
    /// The latest window for which the inbox was cleared.
    cleared: Mutex<Option<Window>>,
}

#[async_trait]
impl network::Admission for Judge {
    async fn judge(&self, offer: &PutHeader) -> Result<(), Refusal> {
        let Peers { chain, genesis, run, schedule, .. } = &*self.peers;
        let block = chain.heads().borrow().block;
        let receiver =
            Receiver { genesis: *genesis, run: *run, schedule: *schedule, bytes_max: self.bytes_max, block };
        receiver.judge_offer(offer)?;
        let committed = self.peers.committed(offer.window).await.map_err(|error| {
            tracing::warn!(error = error_chain(&error), "could not read the chain for a peer's offer");
            Refusal::Failed
        })?;
        let committed = committed.ok_or(Refusal::Failed)?;
        receiver.judge_seat(offer, &committed.view, &committed.seats)?;
        self.clear_before(offer.window);
        Ok(())
    }
}

impl Judge {
    pub(super) fn new(peers: Arc<Peers>, bytes_max: u64) -> Judge {
        Judge { peers, bytes_max, cleared: Mutex::default() }
    }

    /// Removes the contributions to old windows, on the first contribution to a window.
    fn clear_before(&self, window: Window) {
        let mut cleared = self.cleared.lock().unwrap_or_else(PoisonError::into_inner);
        if cleared.is_some_and(|cleared| window <= cleared) {
            return;
        }
        *cleared = Some(window);
        let Some(inbox) = self.peers.inbox.clone() else { return };
        tokio::spawn(clear(inbox, window.0.saturating_sub(WINDOWS_KEPT)));
    }
}

/// Removes the contributions to windows before `first`. Failures are logged; the next window tries again.
async fn clear(inbox: Arc<DirectoryStore>, first: u32) {
    let all = match inbox.list("", 100_000).await {
        Ok(all) => all,
        Err(error) => return tracing::warn!(error = error_chain(&error), "could not list the inbox"),
    };
    for key in all.entries.iter().filter_map(store::Entry::key) {
        let is_old = keys::contribution_of(&key).is_none_or(|(_, window, _)| window.0 < first);
        if is_old && let Err(error) = inbox.delete(&key).await {
            tracing::warn!(error = error_chain(&error), object = %key, "could not remove an old contribution");
        }
    }
}
