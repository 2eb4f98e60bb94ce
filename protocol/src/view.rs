//! What the chain tells about a run, as its runtime API returns it and every client reads it.

use crate::{
    Block, Digest, Hotkey, Role, RunId, RunParams, SeatId, Terms, Uid, Window, assign::Slot,
    params::Permille, probe::Probe, select::Selected,
};
use alloc::{string::String, vec::Vec};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// An account of the chain.
pub type Account = [u8; 32];

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
    /// The latest checkpoint that two thirds voted, or the one that the run went back to since (PROT-20); `None` while
    /// that is still `θ_0`.
    pub checkpoint: Option<Checkpoint>,
    /// The last window that opened with the state of an earlier checkpoint (PROT-20). `checkpoint` is that one until a
    /// later window fixes another.
    pub rewound: Option<Window>,
    /// Whether the active set is below its quorum of the bonded stake (PROT-3).
    pub paused: bool,
}

/// Windows to the oldest checkpoint that a run can go back to (PROT-20). Nodes keep their objects for twice as long:
/// the other half is for joining from it, until there is a newer one.
pub const REWIND_WINDOWS: u32 = 32;

/// How much of the active set wants to go back to a checkpoint (PROT-20).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct RewindTally {
    /// The checkpoint's window.
    pub to: Window,
    /// The stake of the validators that vote for it.
    pub stake: u128,
    /// The active set's stake: at two thirds of it, the next window opens with the checkpoint's state.
    pub of: u128,
}

/// The state that everyone holds when `window` opens, fixed by vote (PROT-20).
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

/// One window as the chain holds it. Grows as the window goes on; never changes once `outcome` is there.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct WindowView {
    pub window: Window,
    /// Hash of block `w·L`, known one block later (PROT-2).
    pub opening_hash: Option<Digest>,
    /// The seed of the assignment (PROT-2). Known as the window opens if the window before dealt its data, otherwise
    /// with the opening hash.
    pub deal_seed: Option<Digest>,
    /// Hash of block `commit_by + 1`, known one block later (PROT-2).
    pub evaluation_hash: Option<Digest>,
    /// Miners' seats when the window's data was dealt, in uid order (PROT-5). A seat may have another holder since, or
    /// none.
    pub slots: Vec<Uid>,
    /// First position of the training order that this window hands out (PROT-5).
    pub cursor: u64,
    /// Validators that decide this window, and the stake of each that counts (PROT-3).
    pub active_set: Vec<(Uid, u128)>,
    /// `lineage_w`: the model everyone starts from (PROT-19).
    pub lineage: Digest,
    /// Consensus weights as they stood at the opening: selection draws by them, and the merge's median counts them
    /// (PROT-16, PROT-17).
    pub weights: Vec<(Uid, u16)>,
    pub commitments: Vec<(Uid, Digest)>,
    /// Digests of the salts that validators committed before the window opened (PROT-2).
    pub salts: Vec<(Uid, Digest)>,
    /// Who attested so far (PROT-14).
    pub attested: Vec<Uid>,
    pub selection: Option<Selection>,
    /// Who voted so far, and what (PROT-19).
    pub votes: Vec<(Uid, Vote)>,
    pub outcome: Option<Outcome>,
    /// Digests of the receipts that validators published for the window (PROT-27).
    pub receipts: Vec<(Uid, Digest)>,
    /// The roots over their measurements that validators anchored with the receipts (PROT-27).
    pub probe_roots: Vec<ProbeRoot>,
    /// What the opening of this window, the first of an epoch, drew of the epoch before it: each validator shows its
    /// measurements of these contributions (PROT-30). Known one block after the opening.
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

/// One seat's part of a [`WindowView`]: what a miner needs of it, the same few bytes for any number of seats.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatWindow {
    pub window: Window,
    pub opening_hash: Option<Digest>,
    pub lineage: Digest,
    pub outcome: Option<Outcome>,
    /// The seat's data; `None` before it is dealt, and of a seat without a slot.
    pub deal: Option<SeatDeal>,
    /// What the seat committed.
    pub commitment: Option<Digest>,
    /// The seat's data of the next window, as in [`WindowView::next_deal`].
    pub next_deal: Option<SeatDeal>,
}

/// One seat's part of a [`Deal`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatDeal {
    pub seed: Digest,
    pub slot: Slot,
    /// First position of the training order that the window hands out.
    pub cursor: u64,
}

/// A window's data, dealt before the window opens (PROT-5).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Deal {
    pub seed: Digest,
    /// Miners' seats, in uid order.
    pub slots: Vec<Uid>,
    /// First position of the training order that the window hands out.
    pub cursor: u64,
}

/// The root over what a validator measured in a window (PROT-27).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct ProbeRoot {
    pub validator: Uid,
    pub root: Digest,
    /// The window in which it was anchored.
    pub at: Window,
}

impl RunView {
    /// The window that opens with the state of `checkpoint`: its own, or the one that went back to it (PROT-20).
    pub fn goes_on_at(&self, checkpoint: &Checkpoint) -> Window {
        self.rewound.map_or(checkpoint.window, |rewound| rewound.max(checkpoint.window))
    }
}

impl SeatDeal {
    /// The part of `uid`; `None` without a slot.
    pub fn of(uid: Uid, seed: Digest, slots: &[Uid], cursor: u64) -> Option<SeatDeal> {
        Some(SeatDeal { seed, slot: Slot::of(uid, slots)?, cursor })
    }
}

impl WindowView {
    pub fn summary(&self) -> WindowSummary {
        let WindowView { opening_hash, lineage, outcome, .. } = *self;
        WindowSummary { opening_hash, lineage, outcome }
    }

    /// The part of `uid`.
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

    /// The seat's consensus weight at the opening; 0 where it has none.
    pub fn weight_of(&self, uid: Uid) -> u16 {
        self.weights.iter().find(|(of, _)| *of == uid).map_or(0, |(_, weight)| *weight)
    }
}

/// What attestation came to: fixed one block after `attest_by`.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Selection {
    /// In uid order, which is the order of the merge's additions (PROT-17).
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

/// How a window ended. Fixed one block after `vote_by`, never changed (PROT-19).
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
    /// Fewer valid contributions than the run asks for.
    TooFewContributions,
    /// No two thirds of the stake voted the same update.
    NoAgreement,
    /// The active set held too little of the bonded stake (PROT-3).
    Paused,
}

/// What a validator says of one committed contribution (PROT-14). A seat it does not name, it did not observe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Valid,
    Faulty,
}

/// Where a run stands, in one answer: what a dashboard shows on top.
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
    /// Standing votes to go back to a checkpoint, by its window (PROT-20).
    pub rewind_votes: Vec<RewindTally>,
    /// Whether the owner has stopped the run, or has asked to (PROT-3).
    pub stopped_by_owner: bool,
    pub treasury: TreasuryView,
}

/// Terms that the owner asked for, and the first window in which they hold (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct PendingTerms {
    pub terms: Terms,
    pub from: Window,
}

/// How full a run is, and what a seat costs there (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatOccupancy {
    pub taken: u16,
    pub max: u16,
    /// What the next seat costs now, burnt.
    pub price: u128,
}

/// What became of a run's money: `funded = treasury + claimable + paid + burnt` (PROT-32).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct TreasuryView {
    pub funded: u128,
    pub treasury: u128,
    /// Of seats, former seats and the owner.
    pub claimable: u128,
    pub owner_claimable: u128,
    pub paid: u128,
    pub burnt: u128,
}

/// A seat with everything that the chain knows of it now.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct SeatStatus {
    pub seat: SeatView,
    /// The first window in which the seat can be replaced (PROT-29).
    pub immune_until: Window,
    /// What happens to the seat when the next window opens, in a word; `None` if nothing.
    pub pending: Option<PendingChange>,
    /// Whether pay becomes stake when it is claimed.
    pub pays_into_stake: bool,
    /// What others have put behind a validator; it counts as its stake.
    pub nominated: u128,
    pub commission: Permille,
    /// A higher commission that waits, and the window from which it holds.
    pub commission_raise: Option<(Permille, Window)>,
    pub consensus: SeatConsensus,
    /// Pay of the last epochs, fading: the seat with the least is replaced first.
    pub recent_pay: u128,
    pub last_attested: Option<Window>,
}

/// What the next opening of a window brings for a seat (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PendingChange {
    /// The seat changes its hotkey.
    Rotates(Hotkey),
    /// The seat is given up.
    Leaves,
    /// Somebody else takes it.
    Replaced,
}

/// What the last consensus said of a seat, in parts of `consensus::ONE` (PROT-31).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct SeatConsensus {
    /// Consensus weight, the highest seat's being 65535.
    pub weight: u16,
    /// Share of the miners' pay.
    pub incentive: u64,
    /// Of a validator: how much of its weights the consensus let stand. Of a miner: how much of what stake gave it.
    pub trust: u64,
    /// Share of the validators' pay.
    pub dividends: u64,
}

/// Why a seat was paid what it was paid in an epoch (PROT-32).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Payslip {
    pub epoch: u32,
    /// What the run paid at most in that epoch: the emission's part for its merged windows.
    pub pot: u128,
    /// Merged windows of the epoch.
    pub merged: u32,
    pub consensus: SeatConsensus,
    /// Credited to the seat.
    pub amount: u128,
    /// Credited to those who nominated it.
    pub nominators: u128,
}

/// What an account has in a run: what a wallet shows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct AccountStatus {
    /// Seats whose coldkey the account is.
    pub seats: Vec<Uid>,
    /// Held as their stake.
    pub staked: u128,
    /// Pay of those seats, and of seats that the account had, waiting to be claimed.
    pub claimable: u128,
    pub unbonding: Vec<UnbondingView>,
    pub nominations: Vec<NominationView>,
}

/// Stake that was taken out and is not free yet (PROT-29).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct UnbondingView {
    pub uid: Uid,
    pub amount: u128,
    /// The first window in which it can be withdrawn.
    pub until: Window,
}

/// What an account has put behind a validator (PROT-29).
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct NominationView {
    pub validator: Uid,
    /// What it is worth now.
    pub amount: u128,
    pub unbonding: Vec<UnbondingView>,
    pub claimable: u128,
}

/// Where the chain stands in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Position {
    pub block: Block,
    pub window: Option<Window>,
}
