//! Views that take more than one pallet.

use crate::{AccountId, Registry, Rewards, Runtime, Windows};
use alloc::{string::String, vec::Vec};
use pallet_registry::{Seats as _, Url};
use protocol::{
    Hotkey, RunId, SeatId,
    view::{Account, RunView, SeatView},
};

pub fn run(id: RunId) -> Option<RunView> {
    let run = Registry::run(id)?;
    let progress = Windows::progress(id)?;
    Some(RunView {
        id,
        owner: account(&run.owner),
        params: run.params,
        terms: run.terms,
        spec: run.spec,
        manifest: run.manifest,
        theta0: run.theta0,
        origin: text(run.origin),
        treasury: Rewards::treasury(id),
        checkpoint: progress.checkpoint,
        paused: progress.paused,
    })
}

pub fn seats(run: RunId) -> Vec<SeatView> {
    let view = |(uid, seat): (_, pallet_registry::Seat<AccountId>)| {
        let earnings = pallet_rewards::EarningsOf::<Runtime>::get(run, uid);
        SeatView {
            id: SeatId { uid, registered_at: seat.registered_at },
            role: seat.role,
            hotkey: Hotkey(account(&seat.hotkey)),
            coldkey: account(&seat.coldkey),
            endpoint: text(seat.endpoint),
            stake: seat.stake,
            claimable: earnings.claimable,
            earned: earnings.earned,
        }
    };
    Registry::seats(run).into_iter().map(view).collect()
}

fn account(id: &AccountId) -> Account {
    *id.as_ref()
}

/// The registry takes printable ASCII only, so nothing is lost.
fn text(url: Url) -> String {
    String::from_utf8_lossy(&url).into_owned()
}
