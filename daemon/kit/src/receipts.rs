//! Fetches validators' receipts from their buckets, each checked against the digest on the chain (PROT-27).

use crate::sync::mirrors::Mirrors;
use protocol::{
    Digest, GenesisHash, Uid, Window, keys,
    receipt::{self, Receipt, ReceiptError, SignedReceipt},
    view::{RunView, SeatView, WindowView},
};
use store::{Fetch, Limits, fetch::AllMirrorsFailed};

/// Error for a validator's receipt that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReceiptUnavailable {
    #[error(
        "uid {uid} has no receipt for window {} on the chain. A validator anchors it one or two windows later. Without a receipt there is \
         nothing to audit",
        window.0
    )]
    NotAnchored { uid: Uid, window: Window },
    #[error(
        "the receipt that uid {uid} anchored for window {} is public from window {} on, when the weight votes that it \
         discloses are bound. Audit the window then",
        window.0,
        from.0
    )]
    Sealed { uid: Uid, window: Window, from: Window },
    #[error("the receipt that uid {uid} anchored for window {} is in no bucket. Ask the validator for it", window.0)]
    NotPublished { uid: Uid, window: Window, source: AllMirrorsFailed },
    #[error("this release cannot read the receipt that uid {uid} anchored for window {}", window.0)]
    NoReceipt { uid: Uid, window: Window, source: ReceiptError },
}

/// Fetches the receipt that a validator anchored for a window, if it is public when the window `now` is open.
///
/// # Errors
/// If the receipt is not anchored, not public yet, cannot be fetched, or is invalid.
pub async fn receipt_of(
    fetch: &dyn Fetch,
    genesis: GenesisHash,
    run: &RunView,
    now: Window,
    view: &WindowView,
    seat: &SeatView,
) -> Result<Receipt, ReceiptUnavailable> {
    Ok(signed_receipt_of(fetch, genesis, run, now, view, seat).await?.1)
}

/// Fetches like [`receipt_of`], and also returns the signed bytes.
///
/// # Errors
/// As [`receipt_of`].
pub async fn signed_receipt_of(
    fetch: &dyn Fetch,
    genesis: GenesisHash,
    run: &RunView,
    now: Window,
    view: &WindowView,
    seat: &SeatView,
) -> Result<(SignedReceipt, Receipt), ReceiptUnavailable> {
    let (uid, window) = (seat.id.uid, view.window);
    let anchored = view.receipts.iter().find(|(of, _)| *of == uid);
    let Some((_, digest)) = anchored else { return Err(ReceiptUnavailable::NotAnchored { uid, window }) };
    let from = receipt::public_from(window, &run.params);
    if now < from {
        return Err(ReceiptUnavailable::Sealed { uid, window, from });
    }
    fetch_receipt(fetch, genesis, run, seat, window, *digest).await
}

/// Fetches the receipt with this digest from the validator's bucket.
///
/// # Errors
/// [`ReceiptUnavailable::NotPublished`] or [`ReceiptUnavailable::NoReceipt`].
pub async fn fetch_receipt(
    fetch: &dyn Fetch,
    genesis: GenesisHash,
    run: &RunView,
    seat: &SeatView,
    window: Window,
    digest: Digest,
) -> Result<(SignedReceipt, Receipt), ReceiptUnavailable> {
    let uid = seat.id.uid;
    let key = keys::receipt(run.id, window, uid, &digest);
    let largest = u64::try_from(receipt::largest_bytes(&run.params)).unwrap_or(u64::MAX);
    let mirrors = Mirrors::one(&seat.endpoint);
    let fetched = mirrors.get(fetch, &key, &digest, &Limits::for_bytes(largest)).await;
    let bytes = fetched.map_err(|source| ReceiptUnavailable::NotPublished { uid, window, source })?;
    let opened = Receipt::open(&bytes, &run.params, &genesis);
    let receipt = opened.map_err(|source| ReceiptUnavailable::NoReceipt { uid, window, source })?;
    Ok((SignedReceipt { digest, bytes: bytes.to_vec() }, receipt))
}
