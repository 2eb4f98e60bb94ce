//! Uploads signed receipts and anchors their digests on the chain.

use chain_client::{Call, Chain, Refusal};
use node::error_chain;
use protocol::{Digest, RunId, Uid, Window, keys, probe};
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
pub enum NotAnchored {
    Retry(String),
    /// The chain has forgotten the window, or has another receipt for it, or the receipt is lost.
    Never(String),
}

impl Published {
    /// Whether there is nothing left to try.
    pub fn is_over(&self) -> bool {
        !matches!(self.anchored, Err(NotAnchored::Retry(_)))
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
            None => never("its file is missing or damaged: an audit finds it missing".to_owned()),
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
        let reason = format!("our bucket did not take it: {}", error_chain(&error));
        return Err(NotAnchored::Retry(reason));
    }
    let error =
        match chain.submit(Call::AnchorReceipts { run, window, digest, probes: probe::root(&[]) }).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
    if error.refusal() == Some(Refusal::AlreadyAnchored) {
        // This one, anchored before a crash; or another, of which a lost disk knows nothing.
        let view = chain.window(run, window).await.ok().flatten();
        let anchored = view.and_then(|view| view.receipts.iter().find(|(of, _)| *of == uid).copied());
        return match anchored {
            Some((_, anchored)) if anchored != digest => {
                never(format!("the chain has another receipt of ours for this window, {anchored}"))
            }
            _ => Ok(()),
        };
    }
    match error.refusal() {
        Some(
            Refusal::WindowNotKept | Refusal::NotInThisWindow | Refusal::NotASeat | Refusal::NotAValidator,
        ) => never(error_chain(&error)),
        _ => Err(NotAnchored::Retry(error_chain(&error))),
    }
}

fn never(reason: String) -> Result<(), NotAnchored> {
    Err(NotAnchored::Never(reason))
}
