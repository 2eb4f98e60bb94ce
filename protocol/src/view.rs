//! Views of a run's chain state, as the runtime API returns them and every client reads them.

pub use crate::{consensus::SeatConsensus, identity::Account};

use crate::{
    Block, Digest, Hotkey, Role, RunId, RunParams, SeatId, Terms, Uid, Window, assign::Slot,
    params::Permille, probe::Probe, select::Selected,
};
use alloc::{string::String, vec::Vec};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct RunView {
    pub id: RunId,
    pub owner: Account,
    pub params: RunParams,
    pub terms: Terms,
    /// Digest of the run's specification: the model's shape and the inner recipe.
    pub spec: Digest,
    /// Digest of the dataset's manifest (PROT-4).
    pub manifest: Digest,
    /// Weights root of `θ_0` (PROT-19).
    pub theta0: Digest,
    /// Base URL where specification, dataset and `θ_0` are published.
    pub origin: String,
    pub treasury: u128,
    /// The latest checkpoint with two thirds of the votes, or the one that the run has rewound to since (PROT-20);
    /// `None` while that is still `θ_0`.
    pub checkpoint: Option<Checkpoint>,
    /// The last window that opened with the state of an earlier checkpoint (PROT-20). `checkpoint` is that one until
    /// a later window fixes another.
    pub rewound: Option<Window>,
    /// True if the active set is below its quorum of the bonded stake (PROT-3).
    pub paused: bool,
}

/// Age in windows of the oldest checkpoint that a run can rewind to (PROT-20). Nodes keep their objects for twice as
/// long: the second half is for joining from it, until there is a newer one.
pub const REWIND_WINDOWS: u32 = 32;

/// Stake of the active set that votes for a rewind to a checkpoint (PROT-20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct RewindTally {
    /// The checkpoint's window.
    pub to: Window,
    /// The stake of the validators that vote for it.
    pub stake: u128,
    /// The active set's stake. At two thirds of it, the next window opens with the checkpoint's state.
    pub of: u128,
}

/// The model state at the opening of `window`, fixed by vote (PROT-20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Checkpoint {
    pub window: Window,
    pub state_root: Digest,
    pub lineage: Digest,
}

#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatView {
    pub id: SeatId,
    pub role: Role,
    pub hotkey: Hotkey,
    pub coldkey: Account,
    /// Base URL of the seat's public bucket (PROT-12).
    pub endpoint: String,
    pub stake: u128,
    /// Pay that waits to be claimed.
    pub claimable: u128,
    /// Pay ever credited, claimed or not.
    pub earned: u128,
}

/// One window in the chain's state. Grows during the window; does not change once `outcome` is set.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct WindowView {
    pub window: Window,
    /// Hash of block `w·L`, known one block later (PROT-2).
    pub opening_hash: Option<Digest>,
    /// The seed of the assignment (PROT-2). Known at the opening if the previous window dealt its data, otherwise
    /// with the opening hash.
    pub deal_seed: Option<Digest>,
    /// Hash of block `commit_by + 1`, known one block later (PROT-2).
    pub evaluation_hash: Option<Digest>,
    /// Miners' seats at the time when the window's data was dealt, in uid order (PROT-5). A seat may have another
    /// holder since, or none.
    pub slots: Vec<Uid>,
    /// First position of the training order that this window assigns (PROT-5).
    pub cursor: u64,
    /// Validators that decide this window, with the stake of each that counts (PROT-3).
    pub active_set: Vec<(Uid, u128)>,
    /// `lineage_w`: the model at the start of the window (PROT-19).
    pub lineage: Digest,
    /// Consensus weights at the opening: the selection and the merge's median use them (PROT-16, PROT-17).
    pub weights: Vec<(Uid, u16)>,
    pub commitments: Vec<(Uid, Digest)>,
    /// Digests of the salts that validators committed before the window opened (PROT-2).
    pub salts: Vec<(Uid, Digest)>,
    /// Validators that have attested (PROT-14).
    pub attested: Vec<Uid>,
    pub selection: Option<Selection>,
    /// Votes so far, with their validators (PROT-19).
    pub votes: Vec<(Uid, Vote)>,
    pub outcome: Option<Outcome>,
    /// Digests of the receipts that validators published for the window (PROT-27).
    pub receipts: Vec<(Uid, Digest)>,
    /// The roots over their measurements that validators anchored with the receipts (PROT-27).
    pub probe_roots: Vec<ProbeRoot>,
    /// Contributions of the previous epoch that the opening of this window, the first of an epoch, drew: each validator
    /// shows its measurements of them (PROT-30). Known one block after the opening.
    pub probes: Vec<Probe>,
    /// The data of the next window, from [`crate::Schedule::deals_next_at`] until that window opens (PROT-5).
    pub next_deal: Option<Deal>,
}

/// A window without its lists: the same few bytes for any number of seats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct WindowSummary {
    pub opening_hash: Option<Digest>,
    pub lineage: Digest,
    pub outcome: Option<Outcome>,
}

/// One seat's part of a [`WindowView`] for its miner: the same few bytes for any number of seats.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatWindow {
    pub window: Window,
    pub opening_hash: Option<Digest>,
    pub lineage: Digest,
    pub outcome: Option<Outcome>,
    /// The seat's data; `None` before it is dealt, and for a seat without a slot.
    pub deal: Option<SeatDeal>,
    /// The seat's commitment.
    pub commitment: Option<Digest>,
    /// The seat's data of the next window, as in [`WindowView::next_deal`].
    pub next_deal: Option<SeatDeal>,
}

/// One seat's part of a [`Deal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatDeal {
    pub seed: Digest,
    pub slot: Slot,
    /// First position of the training order that the window assigns.
    pub cursor: u64,
}

/// A window's data, dealt before the window opens (PROT-5).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Deal {
    pub seed: Digest,
    /// Miners' seats, in uid order.
    pub slots: Vec<Uid>,
    /// First position of the training order that the window assigns.
    pub cursor: u64,
}

/// The root over a validator's measurements of a window (PROT-27).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct ProbeRoot {
    pub validator: Uid,
    pub root: Digest,
    /// The window in which the root was anchored.
    pub at: Window,
}

impl RunView {
    /// Returns the window that opens with the state of `checkpoint`: its own, or the one that rewound to it
    /// (PROT-20).
    pub fn goes_on_at(&self, checkpoint: &Checkpoint) -> Window {
        self.rewound.map_or(checkpoint.window, |rewound| rewound.max(checkpoint.window))
    }
}

impl SeatDeal {
    /// Returns the part of `uid`; `None` if it has no slot.
    pub fn of(uid: Uid, seed: Digest, slots: &[Uid], cursor: u64) -> Option<SeatDeal> {
        Some(SeatDeal { seed, slot: Slot::of(uid, slots)?, cursor })
    }
}

impl WindowView {
    pub fn summary(&self) -> WindowSummary {
        let WindowView { opening_hash, lineage, outcome, .. } = *self;
        WindowSummary { opening_hash, lineage, outcome }
    }

    /// Returns the part of `uid`.
    pub fn of_seat(&self, uid: Uid) -> SeatWindow {
        let WindowSummary { opening_hash, lineage, outcome } = self.summary();
        let committed = self.commitments.iter().find(|(of, _)| *of == uid);
        let next = self.next_deal.as_ref();
        SeatWindow {
            window: self.window,
            opening_hash,
            lineage,
            outcome,
            deal: self.deal_seed.and_then(|seed| SeatDeal::of(uid, seed, &self.slots, self.cursor)),
            commitment: committed.map(|(_, digest)| *digest),
            next_deal: next.and_then(|next| SeatDeal::of(uid, next.seed, &next.slots, next.cursor)),
        }
    }

    /// Returns the seat's consensus weight at the opening; 0 if it has none.
    pub fn weight_of(&self, uid: Uid) -> u16 {
        self.weights.iter().find(|(of, _)| *of == uid).map_or(0, |(_, weight)| *weight)
    }
}

/// Result of the attestations: fixed one block after `attest_by`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Selection {
    /// Selected contributions in uid order, which is the order of the merge's additions (PROT-17).
    pub selected: Vec<Selected>,
    /// Seats that two thirds of the stake attested as valid, selected or not.
    pub valid: Vec<Uid>,
    /// Seats that two thirds of the stake attested as faulty.
    pub faulty: Vec<Uid>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Vote {
    /// Digest of the merged update's exact bytes (PROT-19).
    pub update: Digest,
    /// Present exactly at checkpoint windows (PROT-20).
    pub state_root: Option<Digest>,
}

/// Result of a window. Fixed one block after `vote_by`, never changed (PROT-19).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Merged(Vote),
    Void(VoidReason),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VoidReason {
    /// Fewer valid contributions than the run requires.
    TooFewContributions,
    /// No update had the votes of two thirds of the stake.
    NoAgreement,
    /// The active set held too little of the bonded stake (PROT-3).
    Paused,
}

/// A validator's verdict on one committed contribution (PROT-14). It did not observe seats that it does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Valid,
    Faulty,
}

/// State of a run in one response: the head of a dashboard.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct RunStatus {
    pub run: RunView,
    pub block: Block,
    /// The window that is open; `None` before the run starts.
    pub window: Option<Window>,
    pub epoch: Option<u32>,
    pub miners: SeatOccupancy,
    pub validators: SeatOccupancy,
    pub pending_terms: Option<PendingTerms>,
    /// Current votes for a rewind, by the checkpoint's window (PROT-20).
    pub rewind_votes: Vec<RewindTally>,
    /// True if the owner has stopped the run, or has requested it (PROT-3).
    pub stopped_by_owner: bool,
    pub treasury: TreasuryView,
}

/// Terms that the owner requested, and the first window in which they hold (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct PendingTerms {
    pub terms: Terms,
    pub from: Window,
}

/// Occupied seats of a run, and the price of a seat (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatOccupancy {
    pub taken: u16,
    pub max: u16,
    /// Price of the next seat, burnt.
    pub price: u128,
}

/// Balance of a run's money: `funded = treasury + claimable + paid + burnt` (PROT-32).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct TreasuryView {
    pub funded: u128,
    pub treasury: u128,
    /// Pay of seats, former seats and the owner that waits to be claimed.
    pub claimable: u128,
    pub owner_claimable: u128,
    pub paid: u128,
    pub burnt: u128,
}

/// A seat with all of its chain state.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatStatus {
    pub seat: SeatView,
    /// The first window in which the seat can be replaced (PROT-29).
    pub immune_until: Window,
    /// Change of the seat at the opening of the next window; `None` if there is none.
    pub pending: Option<PendingChange>,
    /// True if pay becomes stake when it is claimed.
    pub pays_into_stake: bool,
    /// Stake that others nominated to a validator; it counts as its stake.
    pub nominated: u128,
    pub commission: Permille,
    /// A pending higher commission, and the window from which it holds.
    pub commission_raise: Option<(Permille, Window)>,
    pub consensus: SeatConsensus,
    /// Decaying sum of the pay of past epochs: the seat with the least is replaced first.
    pub recent_pay: u128,
    pub last_attested: Option<Window>,
}

/// Change of a seat at the next opening of a window (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PendingChange {
    /// The seat changes its hotkey.
    Rotates(Hotkey),
    /// The seat is released.
    Leaves,
    /// Another holder gets it.
    Replaced,
}

/// Account of a seat's pay in an epoch (PROT-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Payslip {
    pub epoch: u32,
    /// Maximum pay of the run in that epoch: the emission's part for its merged windows.
    pub pot: u128,
    /// Merged windows of the epoch.
    pub merged: u32,
    pub consensus: SeatConsensus,
    /// Pay credited to the seat.
    pub amount: u128,
    /// Pay credited to its nominators.
    pub nominators: u128,
}

/// An account's holdings in a run, for a wallet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct AccountStatus {
    /// Seats whose coldkey the account is.
    pub seats: Vec<Uid>,
    /// Stake locked behind those seats.
    pub staked: u128,
    /// Pay of those seats, and of the account's former seats, that waits to be claimed.
    pub claimable: u128,
    pub unbonding: Vec<UnbondingView>,
    pub nominations: Vec<NominationView>,
}

/// Withdrawn stake that is still locked (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct UnbondingView {
    pub uid: Uid,
    pub amount: u128,
    /// The first window in which it can be withdrawn.
    pub until: Window,
}

/// An account's nomination of a validator (PROT-29).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct NominationView {
    pub validator: Uid,
    /// Present value of the nomination.
    pub amount: u128,
    pub unbonding: Vec<UnbondingView>,
    pub claimable: u128,
}

/// The chain's position in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Position {
    pub block: Block,
    pub window: Option<Window>,
}
