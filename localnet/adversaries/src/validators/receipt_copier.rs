//! Evaluates nothing: posts the consensus that follows from the latest receipts of other validators.
//!
//! Sees: the receipts in public buckets, each with the weights for which its validator would vote. Ends at: PROT-27, a
//! receipt becomes public when the weight votes that it discloses are bound; PROT-30, it has no probe to open.

use async_trait::async_trait;
use daemon::Follower;
use protocol::{
    Block, Uid, Window,
    consensus::{ONE, ValidatorWeights, yuma},
    keys,
    receipt::{self, Receipt},
    view::{SeatView, WindowView},
};
use store::Limits;
use validator::{evaluate::Measurements, strategy::Strategy};

#[derive(Default)]
pub struct ReceiptCopier {
    copied: Vec<(Uid, u16)>,
}

/// Number of windows back that are searched for a validator's latest receipt.
const WINDOWS_BACK: u32 = 24;

#[async_trait]
impl Strategy for ReceiptCopier {
    async fn wait_and_look(
        &mut self,
        follower: &Follower,
        window: Window,
        _deadline: Block,
    ) -> Option<WindowView> {
        let epoch_windows = follower.run.params.epoch_windows;
        if window.next().epoch(epoch_windows) != window.epoch(epoch_windows) {
            self.copied = majority(follower, window).await.unwrap_or_default();
        }
        None
    }

    /// Discards the program's measurements, and reports that it reached no seat.
    fn measured(&mut self, _window: Window, mut own: Measurements) -> Measurements {
        own.seats.clear();
        own
    }

    /// Returns the copied weights, or the consensus of the previous epoch if there is no receipt.
    fn weights(&mut self, view: &WindowView, _own: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        match self.copied.is_empty() {
            true => view.weights.iter().copied().filter(|(_, weight)| 0 < *weight).collect(),
            false => std::mem::take(&mut self.copied),
        }
    }
}

/// Returns the consensus of the others' latest receipts, by their stake; `None` if there is none.
async fn majority(follower: &Follower, window: Window) -> Option<Vec<(Uid, u16)>> {
    let chain = &follower.chain;
    let view = chain.window(follower.run.id, window).await.ok()??;
    let seats = chain.seats(follower.run.id).await.ok()?;
    let own = chain.account();
    let mut ballots = Vec::new();
    for (validator, stake) in &view.active_set {
        let seat = seats.iter().find(|seat| seat.id.uid == *validator)?;
        if Some(seat.hotkey.0) == own {
            continue;
        }
        let weights = latest_weights(follower, window, seat).await.unwrap_or_default();
        ballots.push(ValidatorWeights {
            validator: *validator,
            stake: *stake,
            weights,
            bonds: Vec::new(),
            earns: ONE,
        });
    }
    Some(yuma(&ballots)?.weights)
}

/// Returns the weights in the latest receipt in a validator's bucket.
async fn latest_weights(follower: &Follower, window: Window, seat: &SeatView) -> Option<Vec<(Uid, u16)>> {
    let (run, params) = (follower.run.id, follower.run.params);
    let limits = Limits::for_bytes(u64::try_from(receipt::largest_bytes(&params)).unwrap_or(u64::MAX));
    for back in 1..=WINDOWS_BACK.min(window.0) {
        let at = Window(window.0 - back);
        let Ok(Some(view)) = follower.chain.window(run, at).await else { return None };
        let Some((_, digest)) = view.receipts.iter().find(|(of, _)| *of == seat.id.uid) else { continue };
        let key = keys::receipt(run, at, seat.id.uid, digest);
        let Ok(bytes) = follower.fetch.fetch(&seat.endpoint, &key, &limits).await else { continue };
        let Ok(receipt) = Receipt::open(&bytes, &params, &follower.chain.genesis()) else { continue };
        if let Some(judgement) = receipt.judgement {
            return Some(judgement.weights);
        }
    }
    None
}
