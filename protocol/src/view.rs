//! What the chain tells about a run, as its runtime API returns it and every client reads it.

use crate::{Block, Digest, Hotkey, Role, RunId, RunParams, SeatId, Uid, Window, select::Selected};
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
    /// Digest of the run's specification: the model's shape and the inner recipe.
    pub spec: Digest,
    /// Digest of the dataset's manifest (PROT-4).
    pub manifest: Digest,
    /// Weights root of `θ_0` (PROT-19).
    pub theta0: Digest,
    /// Base URL where specification, dataset and `θ_0` are published.
    pub origin: String,
    pub treasury: u128,
    /// The latest checkpoint that two thirds voted (PROT-20); `None` while that is still `θ_0`.
    pub checkpoint: Option<Checkpoint>,
    /// Whether the electorate is below its quorum of the bonded stake (PROT-3).
    pub paused: bool,
}

/// The state that everyone holds when `window` opens, fixed by vote (PROT-20).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
    Serialize,
    Deserialize,
)]
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
    /// Hash of block `commit_by + 1`, known one block later (PROT-2).
    pub evaluation_hash: Option<Digest>,
    /// Miners' seats active when the window opened, in uid order (PROT-5).
    pub slots: Vec<Uid>,
    /// First position of the training order that this window hands out (PROT-5).
    pub cursor: u64,
    /// Validators that decide this window, and their stake (PROT-3).
    pub electorate: Vec<(Uid, u128)>,
    /// `lineage_w`: the model everyone starts from (PROT-19).
    pub lineage: Digest,
    /// Consensus weights as they stood at the opening: selection draws by them (PROT-16).
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

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
    Serialize,
    Deserialize,
)]
pub struct Vote {
    /// Digest of the merged update's exact bytes (PROT-19).
    pub update: Digest,
    /// Present exactly at checkpoint windows (PROT-20).
    pub state_root: Option<Digest>,
}

/// How a window ended. Fixed one block after `vote_by`, never changed (PROT-19).
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    Merged(Vote),
    Void(VoidReason),
}

#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum VoidReason {
    /// Fewer valid contributions than the run asks for.
    TooFewContributions,
    /// No two thirds of the stake voted the same update.
    NoAgreement,
    /// The electorate held too little of the bonded stake (PROT-3).
    Paused,
}

/// What a validator says of one committed contribution (PROT-14). A seat it does not name, it did not observe.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
    Serialize,
    Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    Valid,
    Faulty,
}

/// Where the chain stands in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Position {
    pub block: Block,
    pub window: Option<Window>,
}
