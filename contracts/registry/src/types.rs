//! What is stored of runs and seats.

use crate::{Balance, Url};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use protocol::{Block, Digest, Role, RunParams, SeatId, Terms, Uid, Window, params::Permille};
use scale_info::TypeInfo;

/// A run. Only its terms ever change.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Run<AccountId> {
    pub owner: AccountId,
    pub params: RunParams,
    /// As they stand now.
    pub terms: Terms,
    /// Digest of the run's specification.
    pub spec: Digest,
    /// Digest of the dataset's manifest (PROT-4).
    pub manifest: Digest,
    /// Weights root of `θ_0` (PROT-19).
    pub theta0: Digest,
    /// Where specification, dataset and `θ_0` are published.
    pub origin: Url,
    /// Held from the owner for as long as the run exists.
    pub deposit: Balance,
    /// Whether the owner has stopped it: its windows are void until the owner lets it go on (PROT-3).
    pub stopped: bool,
}

/// A seat in a run, as it stands now.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Seat<AccountId> {
    pub registered_at: Block,
    /// The first window in which the seat counts. Its immunity begins with it.
    pub since: Window,
    pub role: Role,
    pub hotkey: AccountId,
    pub coldkey: AccountId,
    pub endpoint: Url,
    /// When the endpoint last moved; `None` while it is the one that was registered.
    pub endpoint_set_at: Option<Block>,
    /// Held from the coldkey.
    pub stake: Balance,
}

impl<AccountId> Seat<AccountId> {
    /// The seat's identity: a uid may have other holders before and after.
    pub fn id(&self, uid: Uid) -> SeatId {
        SeatId { uid, registered_at: self.registered_at }
    }
}

/// What the roster says of a seat: as much as a window's opening and its selection ask of each of them.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Entry {
    pub role: Role,
    pub registered_at: Block,
    /// The first window in which the seat counts.
    pub since: Window,
}

impl<AccountId> From<&Seat<AccountId>> for Entry {
    fn from(seat: &Seat<AccountId>) -> Entry {
        Entry { role: seat.role, registered_at: seat.registered_at, since: seat.since }
    }
}

/// What happens to a seat as the next window opens.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub enum Change<AccountId> {
    /// It gets this hotkey.
    Rotates(AccountId),
    /// It is given up.
    Leaves,
    /// This one takes its place, whose stake is held already.
    Replaced(Seat<AccountId>),
}

/// Stake that was taken out of a seat, and can still be slashed.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Chunk {
    pub amount: Balance,
    /// The first window in which it can be withdrawn.
    pub until: Window,
}

/// What the owner has asked for and a window's opening will bring.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Waiting {
    pub terms: Option<Terms>,
    pub stopped: Option<bool>,
}

/// Who reports an offence, and which part of what is taken it gets.
pub type Reporter<'a, AccountId> = Option<(&'a AccountId, Permille)>;
