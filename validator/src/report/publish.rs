//! Anchors the digests of signed receipts on the chain, and uploads the receipts.

use crate::signed_db::StoredReceipt;
use chain_client::{Call, Chain, Refusal};
use daemon::error_chain;
use gauntlet::probes;
use protocol::{Digest, RunId, Uid, Window, keys, receipt::Receipt, view::RunView};
use std::sync::Arc;
use store::Store;

/// Result of anchoring or uploading one receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub window: Window,
    pub digest: Digest,
    pub bytes: u64,
    pub outcome: Result<(), Undelivered>,
}

/// Reason why a receipt did not arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Undelivered {
    Retry(String),
    /// The chain has forgotten the window, or has another receipt for it, or the receipt is lost.
    Never(String),
}

impl Delivery {
    fn of(receipt: &StoredReceipt, outcome: Result<(), Undelivered>) -> Delivery {
        let bytes = u64::try_from(receipt.bytes.as_ref().map_or(0, Vec::len)).unwrap_or(u64::MAX);
        Delivery { window: receipt.window, digest: receipt.digest, bytes, outcome }
    }

    /// Returns whether no further attempt is needed.
    pub fn is_over(&self) -> bool {
        !matches!(self.outcome, Err(Undelivered::Retry(_)))
    }
}

const LOST: &str = "its file is missing or damaged: an audit finds it missing";

/// Anchors the digest of each receipt with the root over its measurements ([`probes`]), oldest first. Stops at the
/// first that must be tried again: each receipt names the previous one.
///
/// # Cancel safety
/// A repeated call recognises receipts that a dropped one has anchored.
pub async fn anchor(
    chain: Arc<dyn Chain>,
    run: RunView,
    uid: Uid,
    unanchored: Vec<StoredReceipt>,
) -> Vec<Delivery> {
    let mut done = Vec::new();
    for receipt in unanchored {
        let outcome = match &receipt.bytes {
            Some(bytes) => anchor_one(&*chain, &run, uid, &receipt, bytes).await,
            None => never(LOST.to_owned()),
        };
        let delivery = Delivery::of(&receipt, outcome);
        let is_over = delivery.is_over();
        done.push(delivery);
        if !is_over {
            break;
        }
    }
    done
}

/// Uploads each receipt to this validator's bucket, oldest first. Stops at the first that must be tried again.
///
/// # Cancel safety
/// A repeated call uploads the same objects again.
pub async fn publish(
    store: Arc<dyn Store>,
    run: RunId,
    uid: Uid,
    unpublished: Vec<StoredReceipt>,
) -> Vec<Delivery> {
    let mut done = Vec::new();
    for receipt in unpublished {
        let key = keys::receipt(run, receipt.window, uid, &receipt.digest);
        let outcome = match &receipt.bytes {
            Some(bytes) => store.put(&key, bytes.clone().into()).await.map_err(|error| {
                Undelivered::Retry(format!("our bucket did not take it: {}", error_chain(&error)))
            }),
            None => never(LOST.to_owned()),
        };
        let delivery = Delivery::of(&receipt, outcome);
        let is_over = delivery.is_over();
        done.push(delivery);
        if !is_over {
            break;
        }
    }
    done
}

async fn anchor_one(
    chain: &dyn Chain,
    run: &RunView,
    uid: Uid,
    receipt: &StoredReceipt,
    bytes: &[u8],
) -> Result<(), Undelivered> {
    let StoredReceipt { window, digest, .. } = *receipt;
    let view = match chain.window(run.id, window).await {
        Ok(view) => view,
        Err(error) => return Err(Undelivered::Retry(error_chain(&error))),
    };
    let selected = view.and_then(|view| view.selection).map_or_else(Vec::new, |made| made.selected);
    let probes = match Receipt::open(bytes, &run.params, &chain.genesis()) {
        Ok(receipt) => probes::root(&receipt, &selected, &run.params),
        Err(error) => return never(error_chain(&error)),
    };
    let call = Call::AnchorReceipts { run: run.id, window, digest, probes };
    let error = match chain.submit(call).await {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    if error.refusal() == Some(Refusal::AlreadyAnchored) {
        // This one, anchored before a crash; or another one, from a lost disk.
        let view = chain.window(run.id, window).await.ok().flatten();
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
        _ => Err(Undelivered::Retry(error_chain(&error))),
    }
}

fn never(reason: String) -> Result<(), Undelivered> {
    Err(Undelivered::Never(reason))
}
