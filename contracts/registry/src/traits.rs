//! What this pallet answers to others, and what it asks of them.

use crate::{Balance, Entry, Run, Seat};
use alloc::vec::Vec;
use frame::prelude::{DispatchResult, Weight};
use protocol::{Role, RunId, SeatId, Terms, Uid, Window, params::Permille};

/// What other pallets may ask about runs and seats.
pub trait Seats<AccountId> {
    fn run(run: RunId) -> Option<Run<AccountId>>;

    /// The terms that stood in `epoch`, which is the present one or the one before: pay follows the terms under which the
    /// work was done, also where it is shared out later.
    fn terms_of(run: RunId, epoch: u32) -> Option<Terms>;

    /// The seat that `hotkey` holds in `run`, and what it is for.
    fn seat_of(run: RunId, hotkey: &AccountId) -> Option<(Uid, Role)>;

    fn seat(run: RunId, uid: Uid) -> Option<Seat<AccountId>>;

    /// What the roster says of every seat of `run`, in uid order. There may be gaps. One read, however many there are.
    fn roster(run: RunId) -> Vec<(Uid, Entry)>;

    /// Every seat of `run`, in uid order: a read for each.
    fn seats(run: RunId) -> Vec<(Uid, Seat<AccountId>)>;

    /// Applies what waits for `window` to open: terms, hotkeys, seats that are given up or replaced, the owner's stop.
    /// Called once, as the window opens and before anything is read for it.
    fn window_opens(run: RunId, window: Window) -> Weight;

    /// Whose seat a hotkey holds or ever held: no hotkey is used twice in a run.
    fn holder_of(run: RunId, hotkey: &AccountId) -> Option<SeatId>;

    /// Takes `share` of everything that a seat has at risk: its stake, what of it is being taken out, and what others
    /// have put behind it. Of that, `reporter` gets its part and the rest is burnt. Returns what was taken.
    fn slash(run: RunId, seat: SeatId, share: Permille, reporter: Option<(&AccountId, Permille)>) -> Balance;

    /// Turns `amount` out of `from`'s account into stake of a seat: how pay becomes stake.
    fn add_to_stake(run: RunId, uid: Uid, from: &AccountId, amount: Balance) -> DispatchResult;
}

/// How a seat ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// The window that opens without it.
    pub window: Window,
    /// The first window in which what it has at risk is free.
    pub until: Window,
}

/// Told when a seat's holder is gone and somebody else may get its uid.
pub trait OnSeats<AccountId> {
    /// Clears, or sets aside for the old holder, what belonged to `seat`; returns what that cost.
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

/// What other accounts have put behind validators.
pub trait Nominations<AccountId> {
    /// What is nominated behind the present holder of a seat. It counts as the seat's stake.
    fn behind(run: RunId, uid: Uid) -> Balance;

    /// Takes the nominators' part of `amount`, which a present or former seat with `own_stake` earned, out of `payer`'s
    /// account. Returns that part; the rest is the seat's.
    fn share_pay(run: RunId, seat: SeatId, own_stake: Balance, amount: Balance, payer: &AccountId)
    -> Balance;

    /// Takes `share` of what is behind a present seat, or was behind a former one and is unbonding; for `reporter` its part
    /// and the rest burnt. Returns what was taken.
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

/// What seats were paid of late: a full run replaces the seat with the least (PROT-29).
pub trait Payslips {
    /// Pay of the last epochs, older ones fading.
    fn recent_pay(run: RunId, uid: Uid) -> Balance;
}

impl Payslips for () {
    fn recent_pay(_: RunId, _: Uid) -> Balance {
        0
    }
}

/// Told once about each new run, before it starts. An error refuses the run.
pub trait OnRunCreated<AccountId> {
    fn run_created(run: RunId, details: &Run<AccountId>) -> DispatchResult;
}

impl<AccountId> OnRunCreated<AccountId> for () {
    fn run_created(_: RunId, _: &Run<AccountId>) -> DispatchResult {
        Ok(())
    }
}
