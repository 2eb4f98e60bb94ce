//! Views that combine several pallets.

use crate::{AccountId, Nomination, Registry, Rewards, Runtime, Weights, Windows};
use alloc::{string::String, vec::Vec};
use pallet_registry::{Nominations as _, Payslips as _, Seat, Url};
use protocol::{
    Hotkey, Role, RunId, SeatId, Uid, Window,
    view::{Account, AccountStatus, RunStatus, RunView, SeatOccupancy, SeatStatus, SeatView},
};

/// Maximum number of seats in one answer; a client pages.
const PAGE_MAX: u32 = 256;
/// Maximum number of mirrors in one answer.
const MIRRORS_MAX: u32 = 16;

pub fn run(id: RunId) -> Option<RunView> {
    let run = Registry::run(id)?;
    let progress = pallet_windows::ProgressOf::<Runtime>::get(id)?;
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
        rewound: progress.rewound,
        paused: progress.paused,
    })
}

pub fn run_status(id: RunId) -> Option<RunStatus> {
    let run = run(id)?;
    let position = Windows::position(id)?;
    let seats = |role| {
        let (taken, max) = Registry::taken(id, role);
        SeatOccupancy { taken, max, price: Registry::price(id, role) }
    };
    Some(RunStatus {
        block: position.block,
        window: position.window,
        epoch: position.window.map(|window| window.epoch(run.params.epoch_windows)),
        miners: seats(Role::Miner),
        validators: seats(Role::Validator),
        pending_terms: pallet_registry::PendingChanges::<Runtime>::get(id).terms,
        rewind_votes: Windows::rewind_tallies(id),
        stopped_by_owner: Registry::is_stopped(id),
        treasury: Rewards::treasury_view(id),
        run,
    })
}

pub fn seats(run: RunId) -> Vec<SeatView> {
    Registry::seats(run).into_iter().map(|(uid, seat)| view_of(run, uid, seat)).collect()
}

pub fn seat(run: RunId, uid: Uid) -> Option<SeatView> {
    Registry::seat(run, uid).map(|seat| view_of(run, uid, seat))
}

pub fn update_mirrors(run: RunId, window: Window, turn: u32, limit: u32) -> Vec<String> {
    let mut voters = Windows::voters(run, window);
    if let Some(turn) = turn.checked_rem(voters.len() as u32) {
        voters.rotate_left(turn as usize);
    }
    let is_other = |uid: &Uid| !voters.contains(uid);
    // Read only if there are too few voters: the roster has every seat.
    let roster = core::iter::once_with(|| Registry::roster(run)).flatten();
    let others = roster.filter(|(_, entry)| entry.role == Role::Validator).map(|(uid, _)| uid);
    // A voter may have left since.
    let uids = voters.iter().copied().chain(others.filter(is_other));
    let seats = uids.filter_map(|uid| Registry::seat(run, uid));
    let validators = seats.filter(|seat| seat.role == Role::Validator);
    validators.take(limit.min(MIRRORS_MAX) as usize).map(|seat| text(seat.endpoint)).collect()
}

pub fn seat_statuses(run: RunId, from: Uid, limit: u32) -> Vec<SeatStatus> {
    let page = Registry::seats(run).into_iter().filter(|(uid, _)| *uid >= from);
    page.take(limit.min(PAGE_MAX) as usize).map(|(uid, seat)| status_of(run, uid, seat)).collect()
}

pub fn account_status(run: RunId, account: Account) -> AccountStatus {
    let who = AccountId::from(account);
    let own: Vec<(Uid, Seat<AccountId>)> =
        Registry::seats(run).into_iter().filter(|(_, seat)| seat.coldkey == who).collect();
    let earned = own.iter().map(|(uid, _)| pallet_rewards::EarningsOf::<Runtime>::get(run, uid).claimable);
    AccountStatus {
        staked: own.iter().fold(0, |sum: u128, (_, seat)| sum.saturating_add(seat.stake)),
        claimable: earned.fold(pallet_rewards::FormerPay::<Runtime>::get(run, &who), u128::saturating_add),
        unbonding: Registry::unbonding(run, &who),
        nominations: Nomination::nominations_of(run, &who),
        seats: own.into_iter().map(|(uid, _)| uid).collect(),
    }
}

fn status_of(run: RunId, uid: Uid, seat: Seat<AccountId>) -> SeatStatus {
    SeatStatus {
        immune_until: Registry::immune_until(run, uid).unwrap_or_default(),
        pending: Registry::pending_change(run, uid),
        pays_into_stake: Rewards::pays_into_stake(run, uid),
        nominated: Nomination::behind(run, uid),
        commission: Nomination::commission(run, uid),
        commission_raise: Nomination::commission_raise(run, uid),
        consensus: Weights::consensus_of(run, uid),
        recent_pay: Rewards::recent_pay(run, uid),
        last_attested: pallet_windows::PresenceOf::<Runtime>::get(run, uid)
            .and_then(|presence| presence.last_attested),
        seat: view_of(run, uid, seat),
    }
}

fn view_of(run: RunId, uid: Uid, seat: Seat<AccountId>) -> SeatView {
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
}

fn account(id: &AccountId) -> Account {
    *id.as_ref()
}

/// Converts a URL to text. Lossless: the registry accepts printable ASCII only.
fn text(url: Url) -> String {
    String::from_utf8_lossy(&url).into_owned()
}
