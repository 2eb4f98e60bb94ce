//! Validators' signed receipts: fetched, and checked against chain and signature (PROT-27).

use crate::{Error, Run};
use daemon::receipts::signed_receipt_of;
use futures::{FutureExt as _, StreamExt as _, future::BoxFuture, stream};
use protocol::{
    Digest, GenesisHash, Role, RunParams, Uid, Window,
    receipt::{Receipt, SignedReceipt},
};

/// Maximum number of receipts that are fetched at once.
const FETCHES_AT_ONCE: usize = 8;

/// A receipt that matches the chain and is signed by its validator. Its bytes prove that to others.
#[derive(Clone, Debug, PartialEq)]
pub struct SealedReceipt {
    pub signed: SignedReceipt,
    pub receipt: Receipt,
}

/// Reads the bytes of a receipt. They must be within the bounds of the run's parameters, canonical, and signed for
/// the chain of this genesis by the hotkey that they name. With `anchored`, the digest on the chain, they must have
/// it.
///
/// It does not check that the hotkey belongs to a validator ([`Run::receipts`] does), or that the content is true
/// ([`crate::Replayer`] does).
///
/// ```
/// use mettle_sdk::{Kind, verify_receipt};
/// use protocol::{Digest, GenesisHash, RunParams};
///
/// let (params, genesis) = (RunParams::default(), GenesisHash([1; 32]));
/// let refused = verify_receipt(b"MTLR and not much more", None, &params, &genesis).unwrap_err();
/// assert_eq!(refused.kind(), Kind::Verification);
/// let refused = verify_receipt(b"MTLR", Some(&Digest([2; 32])), &params, &genesis).unwrap_err();
/// assert!(refused.to_string().contains("the chain has 0202"));
/// ```
///
/// # Errors
/// [`Error::OtherReceipt`] or [`Error::BadReceipt`].
pub fn verify_receipt(
    bytes: &[u8],
    anchored: Option<&Digest>,
    params: &RunParams,
    genesis: &GenesisHash,
) -> Result<Receipt, Error> {
    if let Some(anchored) = anchored {
        let found = Digest::of(bytes);
        if found != *anchored {
            return Err(Error::OtherReceipt { anchored: *anchored, found });
        }
    }
    Ok(Receipt::open(bytes, params, genesis)?)
}

impl Run {
    /// Fetches the receipt of each validator for a window, in uid order. An error concerns one validator: it has not
    /// anchored a receipt, the receipt is not public yet, or no bucket has it.
    ///
    /// # Errors
    /// If the chain does not answer, or does not have the window.
    pub async fn receipts(&self, window: Window) -> Result<Vec<(Uid, Result<SealedReceipt, Error>)>, Error> {
        let (view, run) = (self.window(window).await?, self.chain().run(self.id()).await?);
        let (seats, now) = (self.chain().seats(self.id()).await?, self.now());
        let (run, view) = (&run, &view);
        // A stream of a closure's futures is not `Send`, so each future gets its type first.
        let validators = seats.iter().filter(|seat| seat.role == Role::Validator);
        let reads: Vec<BoxFuture<'_, _>> = validators
            .map(|seat| {
                let read = async move {
                    let (signed, receipt) =
                        signed_receipt_of(self.fetcher(), self.genesis(), run, now, view, seat).await?;
                    let uid = seat.id.uid;
                    if (receipt.run, receipt.window, receipt.validator.uid) != (run.id, window, uid) {
                        return Err(Error::WrongSubject { uid, window });
                    }
                    Ok(SealedReceipt { signed, receipt })
                };
                read.map(|receipt| (seat.id.uid, receipt)).boxed()
            })
            .collect();
        Ok(stream::iter(reads).buffered(FETCHES_AT_ONCE).collect().await)
    }
}
