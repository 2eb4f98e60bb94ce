//! What the registry offers to other pallets, and what it asks of them.

use crate::{Balance, Entry, Run, Seat};
use alloc::vec::Vec;
use frame::prelude::{Convert, ConvertBack, DispatchResult, Weight};
use protocol::{Hotkey, Role, RunId, SeatId, Terms, Uid, Window, params::Permille};

/// Runs and seats, for other pallets.
pub trait Seats<AccountId> {
    fn run(run: RunId) -> Option<Run<AccountId>>;

    /// The terms of `epoch`: the present or the previous one. Pay follows the terms of the time of the work, also
    /// when it is shared later.
    fn terms_of(run: RunId, epoch: u32) -> Option<Terms>;

    /// The seat that `hotkey` holds in `run`, and its role.
    fn seat_of(run: RunId, hotkey: &AccountId) -> Option<(Uid, Role)>;

    fn seat(run: RunId, uid: Uid) -> Option<Seat<AccountId>>;

    /// The roster of `run`, in uid order, with gaps. One storage read.
    fn roster(run: RunId) -> Vec<(Uid, Entry)>;

    /// Every seat of `run`, in uid order. One storage read per seat.
    fn seats(run: RunId) -> Vec<(Uid, Seat<AccountId>)>;

    /// Applies the changes that wait for `window` to open: terms, hotkeys, seats given up or replaced, the owner's
    /// stop. Called once, before anything is read for the window.
    fn window_opens(run: RunId, window: Window) -> Weight;

    /// The present or former seat of a hotkey. No hotkey is used twice in a run.
    fn holder_of(run: RunId, hotkey: &AccountId) -> Option<SeatId>;

    /// Slashes `share` of a seat's stake, unbonding stake and nominations. The reporter gets its part, the rest is
    /// burnt. Returns the amount slashed.
    fn slash(run: RunId, seat: SeatId, share: Permille, reporter: Option<(&AccountId, Permille)>) -> Balance;

    /// Moves `amount` from `from`'s account into a seat's stake.
    fn add_to_stake(run: RunId, uid: Uid, from: &AccountId, amount: Balance) -> DispatchResult;
}

/// The end of a seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The first window without the seat.
    pub window: Window,
    /// The first window in which its stake and nominations are free.
    pub until: Window,
}

/// Called when a seat's holder has left and its uid is free for another.
pub trait OnSeats<AccountId> {
    /// Clears the state of `seat`, or sets it aside for the old holder. Returns the weight of that.
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
    /// The nominations of a seat's present holder. They count as its stake.
    fn behind(run: RunId, uid: Uid) -> Balance;

    /// Shares `amount`, earned by a present or former seat with `own_stake`, with its nominators, out of `payer`'s
    /// account. Returns the nominators' part.
    fn share_pay(run: RunId, seat: SeatId, own_stake: Balance, amount: Balance, payer: &AccountId)
    -> Balance;

    /// Slashes `share` of the nominations of a present seat, or of the unbonding ones of a former seat. The reporter
    /// gets its part, the rest is burnt. Returns the amount slashed.
    fn slash(run: RunId, seat: SeatId, share: Permille, reporter: Option<(&AccountId, Permille)>) -> Balance;
}

impl<AccountId> Nominations<AccountId> for () {
    fn behind(_: RunId, _: Uid) -> Balance {
        0
    }
    fn share_pay(_: RunId, _: SeatId, _: Balance, _: Balance, _: &AccountId) -> Balance {
        0
    }
    fn slash(_: RunId, _: SeatId, _: Permille, _: Option<(&AccountId, Permille)>) -> Balance {
        0
    }
}

/// Recent pay of seats: a full run replaces the lowest paid seat (PROT-29).
pub trait Payslips {
    /// Pay of the last epochs, decaying with age.
    fn recent_pay(run: RunId, uid: Uid) -> Balance;
}

impl Payslips for () {
    fn recent_pay(_: RunId, _: Uid) -> Balance {
        0
    }
}

/// Called for each new run, before it starts. An error refuses the run.
pub trait OnRunCreated<AccountId> {
    fn run_created(run: RunId, details: &Run<AccountId>) -> DispatchResult;
}

impl<AccountId> OnRunCreated<AccountId> for () {
    fn run_created(_: RunId, _: &Run<AccountId>) -> DispatchResult {
        Ok(())
    }
}

/// A hotkey is an account: the 32 bytes of its account id are its public key.
pub struct AccountIsHotkey;

impl<AccountId: Into<[u8; 32]>> Convert<AccountId, Hotkey> for AccountIsHotkey {
    fn convert(account: AccountId) -> Hotkey {
        Hotkey(account.into())
    }
}

impl<AccountId: Into<[u8; 32]> + From<[u8; 32]>> ConvertBack<AccountId, Hotkey> for AccountIsHotkey {
    fn convert_back(hotkey: Hotkey) -> AccountId {
        hotkey.0.into()
    }
}
