//! Removes old objects from the bucket, window by window.

use futures::future::BoxFuture;
use protocol::{
    RunId, Window,
    keys::{self, ObjectKey},
    view::REWIND_WINDOWS,
};
use store::Store;

/// Number of windows for which a node keeps its objects. More than any distance between checkpoints, so that a
/// validator that was offline can merge afterwards (PROT-15, PROT-20).
const WINDOWS_KEPT: u32 = 64;
const _: () =
    assert!(2 * REWIND_WINDOWS <= WINDOWS_KEPT, "a checkpoint is there for a while after a rewind to it");
/// Number of windows for which a validator keeps its receipts: 1.5 times what the chain keeps, so that each receipt's
/// predecessor is available (PROT-27).
pub const RECEIPT_WINDOWS_KEPT: u32 = 192;
/// Windows between two removals.
const EVERY: u32 = 8;
/// Maximum number of objects listed per window.
const LISTED_MAX: usize = 1_000;

/// Removes this seat's objects of old windows, every few windows. Failures are ignored.
pub fn prune(store: &dyn Store, run: RunId, now: Window) -> BoxFuture<'_, ()> {
    Box::pin(async move {
        if !now.0.is_multiple_of(EVERY) {
            return;
        }
        // A run's first model may have been trained elsewhere, and then has no other copy.
        let first = |key: &ObjectKey| {
            key.as_str().starts_with(&keys::window_prefix(run, Window::FIRST)) && keys::is_checkpoint(key)
        };
        drop_before(store, run, now.0.saturating_sub(WINDOWS_KEPT), |key| {
            !keys::is_receipt(key) && !first(key)
        })
        .await;
        drop_before(store, run, now.0.saturating_sub(RECEIPT_WINDOWS_KEPT), |key| !first(key)).await;
    })
}

/// Removes the `old` objects of the last windows before `end`.
async fn drop_before(store: &dyn Store, run: RunId, end: u32, old: impl Fn(&ObjectKey) -> bool) {
    for window in end.saturating_sub(EVERY)..end {
        let Ok(listing) = store.list(&keys::window_prefix(run, Window(window)), LISTED_MAX).await else {
            continue;
        };
        for key in listing.entries.iter().filter_map(store::Entry::key).filter(&old) {
            if let Err(error) = store.delete(&key).await {
                tracing::debug!(%key, %error, "could not remove an old object");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Digest, Uid};
    use store::MemoryStore;

    #[tokio::test]
    async fn old_windows_leave_and_recent_ones_stay() {
        let store = MemoryStore::new();
        let digest = Digest::of(b"bytes");
        let (old, recent) =
            (keys::update(RunId(0), Window(3), &digest), keys::update(RunId(0), Window(9), &digest));
        for key in [&old, &recent] {
            store.put(key, b"bytes".to_vec().into()).await.unwrap();
        }
        prune(&store, RunId(0), Window(71)).await;
        assert!(store.get(&old, 1 << 30).await.is_ok(), "not every window is worth a look");
        prune(&store, RunId(0), Window(72)).await;
        assert!(store.get(&old, 1 << 30).await.unwrap_err().is_not_found());
        assert!(store.get(&recent, 1 << 30).await.is_ok());
    }

    #[tokio::test]
    async fn the_first_model_of_a_run_stays_and_later_checkpoints_leave() {
        let store = MemoryStore::new();
        let digest = Digest::of(b"bytes");
        let checkpoint = |window| keys::checkpoint(RunId(0), Window(window), &digest);
        for window in [0, 4] {
            store.put(&checkpoint(window), b"bytes".to_vec().into()).await.unwrap();
        }
        for now in [64, 72, 192, 200] {
            prune(&store, RunId(0), Window(now)).await;
        }
        assert!(store.get(&checkpoint(0), 1 << 30).await.is_ok());
        assert!(store.get(&checkpoint(4), 1 << 30).await.unwrap_err().is_not_found());
    }

    #[tokio::test]
    async fn receipts_stay_longer_than_what_they_are_about() {
        let store = MemoryStore::new();
        let digest = Digest::of(b"bytes");
        let update = keys::update(RunId(0), Window(3), &digest);
        let receipt = keys::receipt(RunId(0), Window(3), Uid(1), &digest);
        for key in [&update, &receipt] {
            store.put(key, b"bytes".to_vec().into()).await.unwrap();
        }
        prune(&store, RunId(0), Window(72)).await;
        assert!(store.get(&update, 1 << 30).await.unwrap_err().is_not_found());
        assert!(store.get(&receipt, 1 << 30).await.is_ok());
        prune(&store, RunId(0), Window(200)).await;
        assert!(store.get(&receipt, 1 << 30).await.unwrap_err().is_not_found());
    }
}
