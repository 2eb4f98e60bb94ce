//! Uploads signed receipts and anchors their digests on the chain.

use chain_client::{Call, Chain, Refusal};
use node::error_chain;
use protocol::{Digest, RunId, Uid, Window, keys};
use std::sync::Arc;
use store::Store;

/// What became of one receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    pub window: Window,
    pub digest: Digest,
    pub bytes: u64,
    pub anchored: Result<(), NotAnchored>,
}

/// Why a receipt is not on the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAnchored {
    pub reason: String,
    /// It never will be: the chain has forgotten the window, or has another receipt for it, or the receipt is lost.
    pub for_good: bool,
}

impl Published {
    /// Whether there is nothing left to try.
    pub fn is_over(&self) -> bool {
        self.anchored.as_ref().map_or_else(|not| not.for_good, |()| true)
    }
}

/// Uploads each receipt to our bucket and then anchors its digest, oldest first. Stops at the first that must be
/// tried again: each receipt names the one before it.
pub async fn publish(
    store: Arc<dyn Store>,
    chain: Arc<dyn Chain>,
    run: RunId,
    uid: Uid,
    pending: Vec<(Window, Digest, Option<Vec<u8>>)>,
) -> Vec<Published> {
    let mut done = Vec::new();
    for (window, digest, bytes) in pending {
        let length = u64::try_from(bytes.as_ref().map_or(0, Vec::len)).unwrap_or(u64::MAX);
        let anchored = match bytes {
            Some(bytes) => publish_one(&*store, &*chain, run, uid, window, digest, bytes).await,
            None => not_anchored("its file is missing or damaged: an audit finds it missing", true),
        };
        let published = Published { window, digest, bytes: length, anchored };
        let is_over = published.is_over();
        done.push(published);
        if !is_over {
            break;
        }
    }
    done
}

async fn publish_one(
    store: &dyn Store,
    chain: &dyn Chain,
    run: RunId,
    uid: Uid,
    window: Window,
    digest: Digest,
    bytes: Vec<u8>,
) -> Result<(), NotAnchored> {
    if let Err(error) = store.put(&keys::receipt(run, window, uid, &digest), bytes.into()).await {
        return not_anchored(format!("our bucket did not take it: {}", error_chain(&error)), false);
    }
    let error = match chain.submit(Call::AnchorReceipts { run, window, digest }).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if error.refusal() == Some(Refusal::AlreadyAnchored) {
        // This one, anchored before a crash; or another, of which a lost disk knows nothing.
        let view = chain.window(run, window).await.ok().flatten();
        let anchored = view.and_then(|view| view.receipts.iter().find(|(of, _)| *of == uid).copied());
        return match anchored {
            Some((_, anchored)) if anchored != digest => not_anchored(
                format!("the chain has another receipt of ours for this window, {anchored}"),
                true,
            ),
            _ => Ok(()),
        };
    }
    let for_good = matches!(
        error.refusal(),
        Some(Refusal::WindowNotKept | Refusal::NotInThisWindow | Refusal::NotASeat | Refusal::NotAValidator)
    );
    not_anchored(error_chain(&error), for_good)
}

fn not_anchored(reason: impl Into<String>, for_good: bool) -> Result<(), NotAnchored> {
    Err(NotAnchored { reason: reason.into(), for_good })
}
