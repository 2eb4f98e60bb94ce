//! Stored types of runs and seats.

use crate::{Balance, Url};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use protocol::{Block, Digest, Role, RunParams, SeatId, Terms, Uid, Window, view::PendingTerms};
use scale_info::TypeInfo;

/// A run. Only its owner, terms and stop change.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Run<AccountId> {
    pub owner: AccountId,
    pub params: RunParams,
    /// Present terms.
    pub terms: Terms,
    /// Digest of the run's specification.
    pub spec: Digest,
    /// Digest of the dataset's manifest (PROT-4).
    pub manifest: Digest,
    /// Weights root of `θ_0` (PROT-19).
    pub theta0: Digest,
    /// Base URL of specification, dataset and `θ_0`.
    pub origin: Url,
    /// Deposit held from the owner.
    pub deposit: Balance,
    /// True if the owner has stopped the run: then its windows are void (PROT-3).
    pub stopped: bool,
}

/// A run that its owner has closed, until its storage is cleared.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct ClosedRun<AccountId> {
    pub details: Run<AccountId>,
    /// Window in which it was closed.
    pub window: Window,
}

/// A seat in a run.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Seat<AccountId> {
    pub registered_at: Block,
    /// First window in which the seat counts, and in which its immunity begins.
    pub since: Window,
    pub role: Role,
    pub hotkey: AccountId,
    pub coldkey: AccountId,
    pub endpoint: Url,
    /// Block in which the endpoint was last set; `None` for the registered one.
    pub endpoint_set_at: Option<Block>,
    /// Stake held from the coldkey.
    pub stake: Balance,
}

impl<AccountId> Seat<AccountId> {
    /// Returns the seat's identity: a uid has other holders before and after.
    pub fn id(&self, uid: Uid) -> SeatId {
        SeatId { uid, registered_at: self.registered_at }
    }
}

/// A seat in the roster: the data of every seat that an opening and a selection need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Entry {
    pub role: Role,
    pub registered_at: Block,
    /// First window in which the seat counts.
    pub since: Window,
}

impl<AccountId> From<&Seat<AccountId>> for Entry {
    fn from(seat: &Seat<AccountId>) -> Entry {
        Entry { role: seat.role, registered_at: seat.registered_at, since: seat.since }
    }
}

/// A change of a seat at the next opening.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub enum Change<AccountId> {
    /// The seat gets this hotkey.
    Rotates(AccountId),
    /// The seat is given up, or its holder is expelled.
    Leaves,
    /// This newcomer replaces the holder. Its stake is held already.
    Replaced(Seat<AccountId>),
}

/// Unbonding stake, which can still be slashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Chunk {
    pub amount: Balance,
    /// First window in which it can be withdrawn.
    pub until: Window,
}

/// Changes requested by the owner and applied by an opening.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Waiting {
    pub terms: Option<PendingTerms>,
    pub stopped: Option<bool>,
}
