//! Interfaces to other pallets.

use crate::{Balance, Run, Seat};
use alloc::vec::Vec;
use frame::prelude::{DispatchResult, Get as _, Weight, frame_system};
use protocol::{
    GenesisHash, Hotkey, RunId, SeatId, Uid, Window,
    identity::{self, Signature},
    params::Permille,
};

/// Checks the proofs of possession of hotkeys (PROT-29).
pub trait HotkeyProof<AccountId> {
    /// Returns whether `hotkey` consented, on the chain of this genesis, to hold a seat of `run` for `coldkey`.
    fn is_valid(
        hotkey: &AccountId,
        genesis: &GenesisHash,
        run: RunId,
        coldkey: &AccountId,
        proof: &Signature,
    ) -> bool;

    /// Returns the hotkey of this index and its proof, for benchmarks.
    #[cfg(feature = "runtime-benchmarks")]
    fn prove(index: u32, genesis: &GenesisHash, run: RunId, coldkey: &AccountId) -> (AccountId, Signature);
}

/// Hotkeys of the protocol: an account that is an ed25519 public key.
pub struct Ed25519;

impl<AccountId> HotkeyProof<AccountId> for Ed25519
where
    AccountId: Clone + From<[u8; 32]> + Into<[u8; 32]>,
{
    fn is_valid(
        hotkey: &AccountId,
        genesis: &GenesisHash,
        run: RunId,
        coldkey: &AccountId,
        proof: &Signature,
    ) -> bool {
        let (hotkey, coldkey) = (Hotkey(hotkey.clone().into()), coldkey.clone().into());
        identity::verify_possession(&hotkey, genesis, run, &coldkey, proof).is_ok()
    }

    #[cfg(feature = "runtime-benchmarks")]
    fn prove(index: u32, genesis: &GenesisHash, run: RunId, coldkey: &AccountId) -> (AccountId, Signature) {
        let mut secret = [11; 32];
        secret[..4].copy_from_slice(&index.to_le_bytes());
        let key = ed25519_dalek::SigningKey::from_bytes(&secret);
        let signer = identity::Signer::new(key, *genesis);
        (signer.hotkey().0.into(), signer.prove_possession(run, &coldkey.clone().into()))
    }
}

/// The end of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// First window without the seat.
    pub window: Window,
    /// First window in which its stake and nominations are free.
    pub until: Window,
}

/// Hook for a uid that becomes free because its seat's holder has left.
pub trait OnSeats<AccountId> {
    /// Clears the state of `seat`, or sets it aside for the old holder. Returns its weight.
    fn vacated(run: RunId, uid: Uid, seat: &Seat<AccountId>, ending: Ending) -> Weight;
}

impl<AccountId> OnSeats<AccountId> for () {
    fn vacated(_: RunId, _: Uid, _: &Seat<AccountId>, _: Ending) -> Weight {
        Weight::zero()
    }
}

impl<AccountId, A: OnSeats<AccountId>, B: OnSeats<AccountId>> OnSeats<AccountId> for (A, B) {
    fn vacated(run: RunId, uid: Uid, seat: &Seat<AccountId>, ending: Ending) -> Weight {
        A::vacated(run, uid, seat, ending).saturating_add(B::vacated(run, uid, seat, ending))
    }
}

/// Nominations: stake of other accounts behind validators.
pub trait Nominations<AccountId> {
    /// Returns the nominations of a seat's present holder, including those that do not count as its stake.
    fn behind(run: RunId, uid: Uid) -> Balance;

    /// Shares `amount`, earned by a present or former seat with `own_stake`, with its nominators, out of `payer`'s
    /// account. Returns the nominators' part.
    fn share_pay(run: RunId, seat: SeatId, own_stake: Balance, amount: Balance, payer: &AccountId)
    -> Balance;

    /// Burns `share` of the nominations of a present seat, or of the unbonding ones of a former seat. Returns the
    /// burnt amount.
    fn slash(run: RunId, seat: SeatId, share: Permille) -> Balance;
}

impl<AccountId> Nominations<AccountId> for () {
    fn behind(_: RunId, _: Uid) -> Balance {
        0
    }
    fn share_pay(_: RunId, _: SeatId, _: Balance, _: Balance, _: &AccountId) -> Balance {
        0
    }
    fn slash(_: RunId, _: SeatId, _: Permille) -> Balance {
        0
    }
}

/// Pay: a full run replaces the lowest paid seat, and the price of a seat follows its pay (PROT-29).
pub trait Payslips {
    /// Returns the pay of the last epochs, decaying with age.
    fn recent_pay(run: RunId, uid: Uid) -> Balance;

    /// Returns the funds from which a run pays its seats.
    fn treasury(run: RunId) -> Balance;
}

impl Payslips for () {
    fn recent_pay(_: RunId, _: Uid) -> Balance {
        0
    }
    fn treasury(_: RunId) -> Balance {
        0
    }
}

/// Consensus weights of miners. They decide the merge and the miners that a newcomer may replace (PROT-29).
pub trait MinerWeights {
    /// Returns the current consensus weights, in uid order.
    fn weights(run: RunId) -> Vec<(Uid, u16)>;
}

impl MinerWeights for () {
    fn weights(_: RunId) -> Vec<(Uid, u16)> {
        Vec::new()
    }
}

/// Hook for each new run, before it starts. An error refuses the run.
pub trait OnRunCreated<AccountId> {
    fn run_created(run: RunId, details: &Run<AccountId>) -> DispatchResult;
}

impl<AccountId> OnRunCreated<AccountId> for () {
    fn run_created(_: RunId, _: &Run<AccountId>) -> DispatchResult {
        Ok(())
    }
}

/// Result of one step of clearing a closed run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Number of entries removed. The run is cleared if it is below the limit.
    pub entries: u32,
    pub weight: Weight,
}

impl Cleared {
    /// Counts `entries`, each with one read and three writes.
    pub fn count<T: frame_system::Config>(&mut self, entries: u32) {
        self.entries = self.entries.saturating_add(entries);
        let each = T::DbWeight::get().reads_writes(1, 3).saturating_add(Weight::from_parts(20_000_000, 0));
        self.weight.saturating_accrue(each.saturating_mul(entries.into()));
    }

    /// Returns how many entries of `limit` are left.
    pub fn room(&self, limit: u32) -> u32 {
        limit.saturating_sub(self.entries)
    }
}

/// Clears a pallet's entries of a closed run.
pub trait OnRunClosed {
    /// Called when the owner closes the run.
    fn closed(run: RunId);

    /// Removes at most about `limit` entries, and pays out their funds to the accounts.
    fn clear(run: RunId, limit: u32) -> Cleared;
}

impl OnRunClosed for () {
    fn closed(_: RunId) {}
    fn clear(_: RunId, _: u32) -> Cleared {
        Cleared::default()
    }
}

impl<A: OnRunClosed, B: OnRunClosed> OnRunClosed for (A, B) {
    fn closed(run: RunId) {
        A::closed(run);
        B::closed(run);
    }

    /// Clears the second pallet after the first is empty.
    fn clear(run: RunId, limit: u32) -> Cleared {
        let first = A::clear(run, limit);
        if first.room(limit) == 0 {
            return first;
        }
        let second = B::clear(run, first.room(limit));
        Cleared {
            entries: first.entries.saturating_add(second.entries),
            weight: first.weight.saturating_add(second.weight),
        }
    }
}
