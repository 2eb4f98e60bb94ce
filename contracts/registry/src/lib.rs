//! Runs and seats: who trains which model, under which key, and with how much at stake (PROT-29).
//!
//! A run is a set of parameters that nobody can change afterwards, and terms that its owner may; a seat is a uid in it, held
//! by a hotkey (an online signing key) on behalf of a coldkey (the account that owns the stake).
//!
//! Nobody's seat, key or terms change within a window. A free seat is taken at once and counts from the next opening;
//! whatever else changes waits in a list, and happens as the windows pallet opens a window (`Seats::window_opens`):
//!
//! | what                            | waits for                       |
//! |---------------------------------|---------------------------------|
//! | a seat given up, or taken over  | the next opening                |
//! | another hotkey                  | the next opening                |
//! | the owner's stop                | the next opening                |
//! | terms                           | the first opening of an epoch   |
//!
//! Stake that leaves a seat, in whichever way, stays held for a while and answers for what the seat did: a slash reaches it,
//! and never the uid's former or later holder. A run is never closed: its deposit stays held.
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(
    clippy::large_enum_variant,
    reason = "the call enum is generated, and a run's parameters travel in it by value"
)]

extern crate alloc;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::{BoundedVec, ConstU32, DispatchResult, Weight};
use protocol::{Block, Digest, Role, RunId, RunParams, SeatId, Terms, Uid, Window, params::Permille, view};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
pub mod migrations;
#[cfg(test)]
mod mock;
mod price;
mod rules;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use price::Price;
pub use weights::WeightInfo;

/// An amount of the chain's token, in its smallest unit.
pub type Balance = u128;

/// The longest URL that the chain stores.
pub const URL_BYTES_MAX: u32 = 256;

/// A base URL as stored: printable ASCII, `http` or `https`, without a credential (PROT-12).
pub type Url = BoundedVec<u8, ConstU32<URL_BYTES_MAX>>;

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

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::rules::part;
    use core::cmp::Reverse;
    use frame::{
        deps::frame_support::traits::tokens::Restriction,
        prelude::{
            fungible::{Inspect, Mutate, MutateHold as _, hold},
            *,
        },
    };

    /// The layout of what is stored. It rises with a migration.
    const LAYOUT: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(LAYOUT)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config {
        /// What deposits and stakes are held in.
        type Currency: Inspect<Self::AccountId, Balance = Balance>
            + Mutate<Self::AccountId>
            + hold::Mutate<Self::AccountId, Reason = Self::RuntimeHoldReason>;

        type RuntimeHoldReason: From<HoldReason>;

        type OnRunCreated: OnRunCreated<Self::AccountId>;

        /// Told when a seat changes hands.
        type OnSeats: OnSeats<Self::AccountId>;

        /// What others have put behind validators: it is slashed with them.
        type Nominations: Nominations<Self::AccountId>;

        /// Who is replaced in a run that is full.
        type Payslips: Payslips;

        type WeightInfo: WeightInfo;

        /// Runs that the chain carries, at most.
        #[pallet::constant]
        type MaxRuns: Get<u32>;

        /// Seats in a run, at most; at most 65536, so that a uid fits.
        #[pallet::constant]
        type MaxSeats: Get<u32>;

        /// Seats of a run that change hands or keys as one window opens, at most. Half of them may change keys, so that
        /// nobody keeps newcomers out by changing keys.
        #[pallet::constant]
        type MaxChanges: Get<u32>;

        /// Times that a seat may have taken stake out and not have it back yet; the last is for the seat's end.
        #[pallet::constant]
        type MaxUnbonding: Get<u32>;

        /// `checkpoint_windows` of a run, at most: a node that joins needs every update since the latest checkpoint,
        /// and the chain remembers windows for a limited time.
        #[pallet::constant]
        type MaxCheckpointWindows: Get<u32>;

        /// Held from whoever creates a run.
        #[pallet::constant]
        type RunDeposit: Get<Balance>;
    }

    /// Why funds of an account are held.
    #[pallet::composite_enum]
    pub enum HoldReason {
        /// The stake of the seats whose coldkey the account is or was, what is unbonding included.
        Stake,
        /// The deposit for the runs that the account owns.
        RunDeposit,
    }

    type RunOf<T> = Run<<T as frame_system::Config>::AccountId>;
    type SeatOf<T> = Seat<<T as frame_system::Config>::AccountId>;

    /// Runs created so far, which is also the next run's id.
    #[pallet::storage]
    pub type RunCount<T: Config> = StorageValue<_, u32, ValueQuery>;

    #[pallet::storage]
    pub type Runs<T: Config> = StorageMap<_, Twox64Concat, RunId, Run<T::AccountId>>;

    /// What a run's owner has asked for.
    #[pallet::storage]
    pub type WaitingOf<T: Config> = StorageMap<_, Twox64Concat, RunId, Waiting, ValueQuery>;

    /// The terms before the present ones, and the first epoch in which they stood no longer.
    #[pallet::storage]
    pub type FormerTerms<T: Config> = StorageMap<_, Twox64Concat, RunId, (u32, Terms)>;

    /// To whom a run's owner has offered the run.
    #[pallet::storage]
    pub type Offers<T: Config> = StorageMap<_, Twox64Concat, RunId, T::AccountId>;

    /// Which uids of a run are taken, and what has to be known of every one of them at once: the item at index `u` is uid
    /// `u`'s.
    #[pallet::storage]
    pub type Rosters<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<Option<Entry>, T::MaxSeats>, ValueQuery>;

    #[pallet::storage]
    pub type SeatsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Seat<T::AccountId>>;

    /// Which seat a hotkey holds.
    #[pallet::storage]
    pub type Hotkeys<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, Uid>;

    /// Which seat a hotkey held. Remembered for good, as no hotkey is used twice in a run; it grows by at most
    /// `MaxChanges` in a window, and each of them was paid for.
    #[pallet::storage]
    pub type FormerHotkeys<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, SeatId>;

    /// What happens as a run's next window opens, in this order; at most one change for a seat.
    #[pallet::storage]
    pub type Changes<T: Config> = StorageMap<
        _,
        Twox64Concat,
        RunId,
        BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>,
        ValueQuery,
    >;

    /// What the last seat of a role left of its price.
    #[pallet::storage]
    pub type Prices<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Role, Price, ValueQuery>;

    /// What was taken out of a seat and is not withdrawn, by the coldkey that it belongs to.
    #[pallet::storage]
    pub type Unbonding<T: Config> = StorageNMap<
        _,
        (
            NMapKey<Twox64Concat, RunId>,
            NMapKey<Blake2_128Concat, T::AccountId>,
            NMapKey<Twox64Concat, SeatId>,
        ),
        BoundedVec<Chunk, T::MaxUnbonding>,
        ValueQuery,
    >;

    /// The coldkeys of seats that are gone, for as long as anything of theirs is unbonding.
    #[pallet::storage]
    pub type FormerSeats<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, SeatId, T::AccountId>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A run was created. Its first window opens at `start`.
        RunCreated { run: RunId, owner: T::AccountId, start: Block },
        /// A seat was taken. It counts from the next window that opens.
        Registered {
            run: RunId,
            uid: Uid,
            role: Role,
            hotkey: T::AccountId,
            coldkey: T::AccountId,
            stake: Balance,
        },
        /// A newcomer paid for a seat; the price was burnt.
        PricePaid { run: RunId, role: Role, coldkey: T::AccountId, price: Balance },
        /// A newcomer takes this seat over as the next window opens.
        TakingOver { run: RunId, uid: Uid, hotkey: T::AccountId, coldkey: T::AccountId, stake: Balance },
        /// A seat publishes elsewhere from now on.
        EndpointSet { run: RunId, uid: Uid, endpoint: Url },
        /// A seat has more at stake. It counts from the next window that opens.
        StakeAdded { run: RunId, uid: Uid, amount: Balance, stake: Balance },
        /// A seat has less at stake; the amount can be withdrawn in the window `until`.
        Unstaked { run: RunId, uid: Uid, amount: Balance, stake: Balance, until: Window },
        /// A seat is given up as the next window opens.
        Leaving { run: RunId, uid: Uid },
        /// A seat's holder is gone; its stake can be withdrawn in the window `until`.
        Vacated { run: RunId, seat: SeatId, coldkey: T::AccountId, stake: Balance, until: Window },
        /// Stake that was unbonding is free.
        Withdrawn { run: RunId, coldkey: T::AccountId, amount: Balance },
        /// A seat gets another hotkey as the next window opens.
        Rotating { run: RunId, uid: Uid, hotkey: T::AccountId },
        /// A seat has another hotkey.
        Rotated { run: RunId, uid: Uid, hotkey: T::AccountId },
        /// New terms wait for an epoch to begin.
        TermsProposed { run: RunId, terms: Terms },
        /// The owner has taken them back.
        TermsDropped { run: RunId },
        /// A run has new terms.
        TermsChanged { run: RunId, epoch: u32 },
        /// The owner stops the run, or lets it go on, as the next window opens.
        StopAsked { run: RunId, stopped: bool },
        /// The owner's word counts from this window on.
        Stopped { run: RunId, window: Window, stopped: bool },
        /// A run's owner has offered the run to `to`.
        RunOffered { run: RunId, to: T::AccountId },
        /// A run has another owner.
        OwnerChanged { run: RunId, owner: T::AccountId },
        /// A seat was slashed, and what is nominated behind it. `rewarded` went to the reporter out of `stake`; the rest of
        /// that was burnt.
        Slashed { run: RunId, seat: SeatId, stake: Balance, rewarded: Balance, nominated: Balance },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// There is no run with this id. List the runs and pick one of them.
        UnknownRun,
        /// The chain carries as many runs as it can. Nothing helps but another chain.
        TooManyRuns,
        /// The deadlines do not rise. Set 0 < commit_by < reveal_by < attest_by < vote_by < blocks_per_window.
        BadSchedule,
        /// The run would have started already. Set `schedule.start` to a later block.
        StartPassed,
        /// A parameter is zero that must not be. See `RunParams` and `Terms` for which.
        ZeroParameter,
        /// A density is not from 1 to 4096 values in 4096.
        BadDensity,
        /// A rate is not finite, not above zero, or too large.
        BadRate,
        /// The places contradict each other. Set min_contributions ≤ reserve_places.
        BadPlaces,
        /// The quorum is not from 1 to 1000 thousandths.
        BadQuorum,
        /// The pay shares do not add up to 1000 thousandths.
        BadShares,
        /// Weights would be revealed for longer than an epoch. Lower `reveal_windows`.
        BadReveal,
        /// Hidden attestations or votes would be revealed too late. Lower `hidden_blocks`, or give them more blocks.
        BadHidden,
        /// The slash for equivocation is above 1000 thousandths.
        BadSlash,
        /// Stake would stay held for too long. Lower `unbonding_windows`.
        BadUnbonding,
        /// The run would have more seats than the chain can carry. Lower `miner_seats_max` or `validator_seats_max`.
        TooManySeats,
        /// Checkpoints would be too far apart for a node to join. Lower `checkpoint_windows`.
        CheckpointsTooRare,
        /// Not a base URL: `http://` or `https://`, a host, printable ASCII, and never a user or password in it.
        BadUrl,
        /// All seats of the role are taken, and each is immune or about to change hands. Wait for the next window.
        RunFull,
        /// The hotkey holds, held or is about to hold a seat in this run. Use one that never did: each seat needs its own.
        HotkeyInUse,
        /// The stake is below the run's minimum for the role, or would be. Stake more, or give the seat up.
        StakeTooLow,
        /// A seat costs more now than the signer is willing to pay. Wait for the price to fall, or pay it.
        PriceAboveMax,
        /// The account cannot pay this and stay alive. Transfer to it first.
        NotEnoughFunds,
        /// The signer holds no seat in this run. Register its hotkey first.
        NotASeat,
        /// There is no seat with this uid. List the run's seats.
        UnknownSeat,
        /// Only the seat's coldkey may do this. Sign with the key that registered the seat.
        NotTheColdkey,
        /// Only the run's owner may do this.
        NotTheOwner,
        /// The amount is zero. Add something.
        NothingToAdd,
        /// The amount is zero. Take something out.
        NothingToTake,
        /// The stake would exceed what a number can hold.
        StakeTooLarge,
        /// The endpoint has moved in this window already. Wait for the next one.
        EndpointJustSet,
        /// As many changes wait for the next window as one can take. Wait for it.
        TooManyChanges,
        /// The seat is given up, taken over or gets another hotkey as the next window opens. Wait for it.
        ChangeWaiting,
        /// Stake of this seat is unbonding in as many parts as can be. Withdraw what is free, or wait.
        TooManyUnbonding,
        /// Nothing of the signer's is free yet. See until when it is unbonding.
        NothingToWithdraw,
        /// No new terms are waiting.
        NoTermsWaiting,
        /// The run was not offered to the signer. Its owner has to do so first.
        NotOffered,
    }

    /// Where a newcomer sits.
    enum Place {
        Free(Uid),
        /// In the place of whoever holds it now, from the next opening.
        Of(Uid),
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            assert!(T::MaxSeats::get() <= u32::from(u16::MAX) + 1, "a uid holds 16 bits");
            assert!(T::MaxCheckpointWindows::get() > 0, "a run must have checkpoints");
            assert!(T::MaxChanges::get() > 1, "a hotkey must be able to change");
            assert!(T::MaxUnbonding::get() > 1, "a seat's end must find room beside an earlier unstake");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Creates a run that the signer owns, and holds its deposit. Runs are numbered from 0. Specification, dataset and
        /// `θ_0` are published at the base URL `published_at`.
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::create_run())]
        pub fn create_run(
            origin: OriginFor<T>,
            params: RunParams,
            terms: Terms,
            spec: Digest,
            manifest: Digest,
            theta0: Digest,
            published_at: Url,
        ) -> DispatchResult {
            let owner = ensure_signed(origin)?;
            params.validate().map_err(Error::<T>::from)?;
            Self::check_terms(&terms)?;
            ensure!(params.schedule.start > Self::now(), Error::<T>::StartPassed);
            ensure!(
                params.checkpoint_windows <= T::MaxCheckpointWindows::get(),
                Error::<T>::CheckpointsTooRare
            );
            ensure!(rules::is_base_url(&published_at), Error::<T>::BadUrl);
            let count = RunCount::<T>::get();
            ensure!(count < T::MaxRuns::get(), Error::<T>::TooManyRuns);
            let deposit = T::RunDeposit::get();
            T::Currency::hold(&HoldReason::RunDeposit.into(), &owner, deposit)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            let run = RunId(count);
            let details = Run {
                owner: owner.clone(),
                params,
                terms,
                spec,
                manifest,
                theta0,
                origin: published_at,
                deposit,
                stopped: false,
            };
            T::OnRunCreated::run_created(run, &details)?;
            Runs::<T>::insert(run, details);
            RunCount::<T>::put(count.saturating_add(1));
            Self::deposit_event(Event::RunCreated { run, owner, start: params.schedule.start });
            Ok(())
        }

        /// Takes a seat of `run` for `hotkey`: burns what it costs now, `price_max` at most, from the signer, its coldkey, and
        /// holds `stake`.
        ///
        /// The lowest free uid is taken at once. Where the role has none, the newcomer takes over as the next window opens:
        /// a seat that is given up, or else the one that was paid the least of late and is past its immunity.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::replace(T::MaxSeats::get()).max(T::WeightInfo::register()))]
        pub fn register(
            origin: OriginFor<T>,
            run: RunId,
            role: Role,
            hotkey: T::AccountId,
            endpoint: Url,
            stake: Balance,
            price_max: Balance,
        ) -> DispatchResultWithPostInfo {
            let coldkey = ensure_signed(origin)?;
            let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            let terms = &details.terms;
            ensure!(stake >= terms.stake_min(role), Error::<T>::StakeTooLow);
            ensure!(rules::is_base_url(&endpoint), Error::<T>::BadUrl);
            let mut changes = Changes::<T>::get(run);
            ensure!(!Self::is_used(run, &hotkey, &changes), Error::<T>::HotkeyInUse);
            let mut roster = Rosters::<T>::get(run);
            let opens = Self::opens_next(&details);
            let place = Self::place(run, role, terms, opens, &roster, &changes).ok_or(Error::<T>::RunFull)?;
            let now = Self::window_now(&details).unwrap_or_default();
            let price = Prices::<T>::get(run, role).in_window(now, terms);
            ensure!(price <= price_max, Error::<T>::PriceAboveMax);
            T::Currency::hold(&HoldReason::Stake.into(), &coldkey, stake)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;
            T::Currency::burn_from(
                &coldkey,
                price,
                Preservation::Preserve,
                Precision::Exact,
                Fortitude::Polite,
            )
            .map_err(|_| Error::<T>::NotEnoughFunds)?;

            frame_system::Pallet::<T>::inc_sufficients(&hotkey);
            let free = matches!(place, Place::Free(_));
            Prices::<T>::insert(run, role, Price::after(price, now, terms, role, free));
            Self::deposit_event(Event::PricePaid { run, role, coldkey: coldkey.clone(), price });
            let seat = Seat {
                registered_at: Self::now(),
                since: opens,
                role,
                hotkey: hotkey.clone(),
                coldkey: coldkey.clone(),
                endpoint,
                endpoint_set_at: None,
                stake,
            };
            let weight = match place {
                Place::Free(uid) => {
                    Self::seat_down(run, uid, seat, &mut roster)?;
                    Rosters::<T>::insert(run, roster);
                    T::WeightInfo::register()
                }
                Place::Of(uid) => {
                    Self::queue(&mut changes, uid, Change::Replaced(seat))?;
                    Self::put_changes(run, changes);
                    Self::deposit_event(Event::TakingOver { run, uid, hotkey, coldkey, stake });
                    T::WeightInfo::replace(roster.len() as u32)
                }
            };
            Ok(Some(weight).into())
        }

        /// Says where the signer's seat publishes from now on. Signed by the hotkey, once a window at most; and as it is so
        /// rare, it costs no fee.
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::set_endpoint())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, endpoint: &Url| -> bool {
            Pallet::<T>::moving(origin.clone(), *run, endpoint).is_ok()
        })]
        pub fn set_endpoint(origin: OriginFor<T>, run: RunId, endpoint: Url) -> DispatchResult {
            let (uid, mut seat) = Self::moving(origin, run, &endpoint)?;

            seat.endpoint = endpoint.clone();
            seat.endpoint_set_at = Some(Self::now());
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::EndpointSet { run, uid, endpoint });
            Ok(())
        }

        /// Holds `amount` more from the signer, the seat's coldkey, as the seat's stake.
        #[pallet::call_index(3)]
        #[pallet::weight(T::WeightInfo::add_stake())]
        pub fn add_stake(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let (_, mut seat) = Self::owned(origin, run, uid)?;
            ensure!(amount > 0, Error::<T>::NothingToAdd);
            seat.stake = seat.stake.checked_add(amount).ok_or(Error::<T>::StakeTooLarge)?;
            T::Currency::hold(&HoldReason::Stake.into(), &seat.coldkey, amount)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            let stake = seat.stake;
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::StakeAdded { run, uid, amount, stake });
            Ok(())
        }

        /// Takes `amount` out of a seat's stake, down to the role's minimum. Signed by the coldkey. It stays held, and can be
        /// slashed, until it has unbonded.
        #[pallet::call_index(4)]
        #[pallet::weight(T::WeightInfo::unstake())]
        pub fn unstake(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let (details, mut seat) = Self::owned(origin, run, uid)?;
            let terms = &details.terms;
            ensure!(amount > 0, Error::<T>::NothingToTake);
            let left = seat.stake.checked_sub(amount).ok_or(Error::<T>::StakeTooLow)?;
            ensure!(left >= terms.stake_min(seat.role), Error::<T>::StakeTooLow);
            let until = Window(Self::opens_next(&details).0.saturating_add(terms.unbonding_windows));
            let room_kept = 1;
            ensure!(
                Self::unbond(run, &seat.coldkey, seat.id(uid), amount, until, room_kept),
                Error::<T>::TooManyUnbonding
            );

            seat.stake = left;
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::Unstaked { run, uid, amount, stake: left, until });
            Ok(())
        }

        /// Gives a seat up as the next window opens. Signed by the coldkey. All its stake unbonds.
        #[pallet::call_index(5)]
        #[pallet::weight(T::WeightInfo::leave())]
        pub fn leave(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            Self::owned(origin, run, uid)?;
            let mut changes = Changes::<T>::get(run);
            let waiting = changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change);
            ensure!(matches!(waiting, None | Some(Change::Rotates(_))), Error::<T>::ChangeWaiting);
            Self::queue(&mut changes, uid, Change::Leaves)?;

            Self::put_changes(run, changes);
            Self::deposit_event(Event::Leaving { run, uid });
            Ok(())
        }

        /// Releases what has unbonded of the signer's seats in `run`, present and former ones. It looks at `MaxChanges` seats
        /// at most: who has more on their way out calls again.
        #[pallet::call_index(6)]
        #[pallet::weight(T::WeightInfo::withdraw(T::MaxChanges::get()))]
        pub fn withdraw(origin: OriginFor<T>, run: RunId) -> DispatchResultWithPostInfo {
            let coldkey = ensure_signed(origin)?;
            let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            let seats: Vec<(SeatId, BoundedVec<Chunk, T::MaxUnbonding>)> =
                Unbonding::<T>::iter_prefix((run, &coldkey)).take(T::MaxChanges::get() as usize).collect();
            let looked_at = seats.len() as u32;
            let mut amount: Balance = 0;
            for (seat, mut chunks) in seats {
                chunks.retain(|chunk| {
                    let free = Self::is_free(&details, chunk);
                    if free {
                        amount = amount.saturating_add(chunk.amount);
                    }
                    !free
                });
                Self::put_chunks(run, &coldkey, seat, chunks);
            }
            ensure!(amount > 0, Error::<T>::NothingToWithdraw);
            T::Currency::release(&HoldReason::Stake.into(), &coldkey, amount, Precision::Exact)?;

            Self::deposit_event(Event::Withdrawn { run, coldkey, amount });
            Ok(Some(T::WeightInfo::withdraw(looked_at)).into())
        }

        /// Gives a seat another hotkey as the next window opens: one that never was a hotkey in this run. Signed by the
        /// coldkey. The old one is never used again.
        #[pallet::call_index(7)]
        #[pallet::weight(T::WeightInfo::rotate_hotkey())]
        pub fn rotate_hotkey(
            origin: OriginFor<T>,
            run: RunId,
            uid: Uid,
            hotkey: T::AccountId,
        ) -> DispatchResult {
            Self::owned(origin, run, uid)?;
            let mut changes = Changes::<T>::get(run);
            ensure!(changes.iter().all(|(seat, _)| *seat != uid), Error::<T>::ChangeWaiting);
            ensure!(!Self::is_used(run, &hotkey, &changes), Error::<T>::HotkeyInUse);
            let rotating = changes.iter().filter(|(_, change)| matches!(change, Change::Rotates(_))).count();
            ensure!(rotating < T::MaxChanges::get() as usize / 2, Error::<T>::TooManyChanges);
            Self::queue(&mut changes, uid, Change::Rotates(hotkey.clone()))?;

            frame_system::Pallet::<T>::inc_sufficients(&hotkey);
            Self::put_changes(run, changes);
            Self::deposit_event(Event::Rotating { run, uid, hotkey });
            Ok(())
        }

        /// Changes a run's terms as its next epoch begins. Signed by the owner, who may set others until then.
        #[pallet::call_index(8)]
        #[pallet::weight(T::WeightInfo::set_terms())]
        pub fn set_terms(origin: OriginFor<T>, run: RunId, terms: Terms) -> DispatchResult {
            Self::ruled(origin, run)?;
            Self::check_terms(&terms)?;

            WaitingOf::<T>::mutate(run, |waiting| waiting.terms = Some(terms));
            Self::deposit_event(Event::TermsProposed { run, terms });
            Ok(())
        }

        /// Takes back terms that wait for an epoch to begin. Signed by the owner.
        #[pallet::call_index(9)]
        #[pallet::weight(T::WeightInfo::drop_terms())]
        pub fn drop_terms(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            Self::ruled(origin, run)?;
            let mut waiting = WaitingOf::<T>::get(run);
            ensure!(waiting.terms.take().is_some(), Error::<T>::NoTermsWaiting);

            Self::put_waiting(run, waiting);
            Self::deposit_event(Event::TermsDropped { run });
            Ok(())
        }

        /// Stops a run, or lets it go on, as the next window opens (PROT-3). Signed by the owner.
        #[pallet::call_index(10)]
        #[pallet::weight(T::WeightInfo::set_stopped())]
        pub fn set_stopped(origin: OriginFor<T>, run: RunId, stopped: bool) -> DispatchResult {
            let details = Self::ruled(origin, run)?;

            let mut waiting = WaitingOf::<T>::get(run);
            waiting.stopped = (stopped != details.stopped).then_some(stopped);
            Self::put_waiting(run, waiting);
            Self::deposit_event(Event::StopAsked { run, stopped });
            Ok(())
        }

        /// Offers a run to another account, in place of whomever it was offered to before. Signed by the owner.
        #[pallet::call_index(11)]
        #[pallet::weight(T::WeightInfo::offer_run())]
        pub fn offer_run(origin: OriginFor<T>, run: RunId, to: T::AccountId) -> DispatchResult {
            Self::ruled(origin, run)?;

            Offers::<T>::insert(run, &to);
            Self::deposit_event(Event::RunOffered { run, to });
            Ok(())
        }

        /// Makes the signer, to whom it was offered, the owner of a run. Its deposit is held from the signer from now on, and
        /// no longer from the owner before.
        #[pallet::call_index(12)]
        #[pallet::weight(T::WeightInfo::accept_run())]
        pub fn accept_run(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let owner = ensure_signed(origin)?;
            let mut details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            ensure!(Offers::<T>::get(run).as_ref() == Some(&owner), Error::<T>::NotOffered);
            let reason = HoldReason::RunDeposit.into();
            T::Currency::release(&reason, &details.owner, details.deposit, Precision::Exact)?;
            T::Currency::hold(&reason, &owner, details.deposit).map_err(|_| Error::<T>::NotEnoughFunds)?;

            details.owner = owner.clone();
            Runs::<T>::insert(run, details);
            Offers::<T>::remove(run);
            Self::deposit_event(Event::OwnerChanged { run, owner });
            Ok(())
        }
    }

    /// What the calls ask, and what they write.
    impl<T: Config> Pallet<T> {
        fn now() -> Block {
            Block(frame_system::Pallet::<T>::block_number().saturated_into())
        }

        /// The window that is open; `None` before the run starts.
        fn window_now(details: &Run<T::AccountId>) -> Option<Window> {
            details.params.schedule.window_at(Self::now())
        }

        /// The window that opens next.
        fn opens_next(details: &Run<T::AccountId>) -> Window {
            Self::window_now(details).map_or(Window(0), Window::next)
        }

        fn check_terms(terms: &Terms) -> DispatchResult {
            terms.validate().map_err(Error::<T>::from)?;
            let seats = u32::from(terms.miner_seats_max).saturating_add(terms.validator_seats_max.into());
            ensure!(seats <= T::MaxSeats::get(), Error::<T>::TooManySeats);
            Ok(())
        }

        /// A run, for its owner.
        fn ruled(origin: OriginFor<T>, run: RunId) -> Result<Run<T::AccountId>, DispatchError> {
            let owner = ensure_signed(origin)?;
            let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            ensure!(details.owner == owner, Error::<T>::NotTheOwner);
            Ok(details)
        }

        /// A seat, for its coldkey.
        fn owned(origin: OriginFor<T>, run: RunId, uid: Uid) -> Result<(RunOf<T>, SeatOf<T>), DispatchError> {
            let coldkey = ensure_signed(origin)?;
            let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            let seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(seat.coldkey == coldkey, Error::<T>::NotTheColdkey);
            Ok((details, seat))
        }

        /// A seat that may move to `endpoint` now, for its hotkey.
        fn moving(
            origin: OriginFor<T>,
            run: RunId,
            endpoint: &Url,
        ) -> Result<(Uid, Seat<T::AccountId>), DispatchError> {
            let hotkey = ensure_signed(origin)?;
            let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            let uid = Hotkeys::<T>::get(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
            let seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(rules::is_base_url(endpoint), Error::<T>::BadUrl);
            let window_of = |block| details.params.schedule.window_at(block);
            let moved = seat.endpoint_set_at.map(window_of);
            ensure!(moved != Some(window_of(Self::now())), Error::<T>::EndpointJustSet);
            Ok((uid, seat))
        }

        /// Whether `hotkey` holds or held a seat, or is about to.
        fn is_used(run: RunId, hotkey: &T::AccountId, changes: &[(Uid, Change<T::AccountId>)]) -> bool {
            let waits = changes.iter().any(|(_, change)| incoming(change) == Some(hotkey));
            waits || Hotkeys::<T>::contains_key(run, hotkey) || FormerHotkeys::<T>::contains_key(run, hotkey)
        }

        /// Where a newcomer of `role` sits; `None` if nowhere.
        ///
        /// Terms may have lowered the number of seats below what is taken. Then nobody is sent away; a newcomer still takes
        /// somebody's place, and seats that are given up stay empty until the number is right.
        fn place(
            run: RunId,
            role: Role,
            terms: &Terms,
            opens: Window,
            roster: &[Option<Entry>],
            changes: &[(Uid, Change<T::AccountId>)],
        ) -> Option<Place> {
            let of_role = || {
                (roster.iter().zip(0u32..))
                    .filter(move |(taken, _)| taken.is_some_and(|entry| entry.role == role))
            };
            let taken = of_role().count();
            let seats_max = usize::from(terms.seats_max(role));
            if taken < seats_max
                && let Some(uid) = free_uid(roster, T::MaxSeats::get())
            {
                return Some(Place::Free(uid));
            }
            let of_role = of_role()
                .filter_map(|(entry, index)| Some((Uid(u16::try_from(index).ok()?), entry.as_ref()?)));
            let mut given_up_for_good = taken.saturating_sub(seats_max);
            let mut lowest = None;
            for (uid, entry) in of_role {
                match changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change) {
                    Some(Change::Replaced(_)) => continue,
                    Some(Change::Leaves) if given_up_for_good > 0 => {
                        given_up_for_good = given_up_for_good.saturating_sub(1);
                        continue;
                    }
                    Some(Change::Leaves) => return Some(Place::Of(uid)),
                    Some(Change::Rotates(_)) | None => {}
                }
                if entry.since.0.saturating_add(terms.immunity_windows) > opens.0 {
                    continue;
                }
                let Some(seat) = SeatsOf::<T>::get(run, uid) else {
                    defensive!("a uid on the roster is a seat's");
                    continue;
                };
                let stake = match role {
                    Role::Miner => seat.stake,
                    Role::Validator => seat.stake.saturating_add(T::Nominations::behind(run, uid)),
                };
                let pay = T::Payslips::recent_pay(run, uid);
                let rank = (pay, stake, Reverse(seat.registered_at), Reverse(uid));
                if lowest.is_none_or(|lowest| rank < lowest) {
                    lowest = Some(rank);
                }
            }
            lowest.map(|(_, _, _, Reverse(uid))| Place::Of(uid))
        }

        /// Puts a change for `uid` on the list, in the place of a new hotkey that waits for the same seat.
        fn queue(
            changes: &mut BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>,
            uid: Uid,
            change: Change<T::AccountId>,
        ) -> DispatchResult {
            match changes.iter_mut().find(|(seat, _)| *seat == uid) {
                Some((_, waiting)) => {
                    if let Change::Rotates(hotkey) = waiting {
                        frame_system::Pallet::<T>::dec_sufficients(hotkey);
                    }
                    *waiting = change;
                }
                None => changes.try_push((uid, change)).map_err(|_| Error::<T>::TooManyChanges)?,
            }
            Ok(())
        }

        fn put_changes(run: RunId, changes: BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>) {
            if changes.is_empty() {
                Changes::<T>::remove(run);
            } else {
                Changes::<T>::insert(run, changes);
            }
        }

        fn put_waiting(run: RunId, waiting: Waiting) {
            if waiting == Waiting::default() {
                WaitingOf::<T>::remove(run);
            } else {
                WaitingOf::<T>::insert(run, waiting);
            }
        }

        fn put_chunks(
            run: RunId,
            coldkey: &T::AccountId,
            seat: SeatId,
            chunks: BoundedVec<Chunk, T::MaxUnbonding>,
        ) {
            if chunks.is_empty() {
                Unbonding::<T>::remove((run, coldkey, seat));
                FormerSeats::<T>::remove(run, seat);
            } else {
                Unbonding::<T>::insert((run, coldkey, seat), chunks);
            }
        }

        /// Whether nothing can be done to a chunk any more but to withdraw it.
        fn is_free(details: &Run<T::AccountId>, chunk: &Chunk) -> bool {
            Self::window_now(details).is_some_and(|window| window >= chunk.until)
        }

        /// Writes down that `amount` of a seat's stake is unbonding; false if that leaves no room for `room_kept` more.
        fn unbond(
            run: RunId,
            coldkey: &T::AccountId,
            seat: SeatId,
            amount: Balance,
            until: Window,
            room_kept: u32,
        ) -> bool {
            let mut chunks = Unbonding::<T>::get((run, coldkey, seat));
            if let Some(chunk) = chunks.iter_mut().find(|chunk| chunk.until == until) {
                chunk.amount = chunk.amount.saturating_add(amount);
            } else {
                let room = T::MaxUnbonding::get().saturating_sub(room_kept) as usize;
                if chunks.len() >= room || chunks.try_push(Chunk { amount, until }).is_err() {
                    return false;
                }
            }
            Unbonding::<T>::insert((run, coldkey, seat), chunks);
            true
        }

        /// Lets a seat begin. Its stake is held, its hotkey counted.
        fn seat_down(
            run: RunId,
            uid: Uid,
            seat: Seat<T::AccountId>,
            roster: &mut BoundedVec<Option<Entry>, T::MaxSeats>,
        ) -> DispatchResult {
            let index = usize::from(uid.0);
            let entry = Some(Entry::from(&seat));
            match roster.get_mut(index) {
                Some(taken) => *taken = entry,
                None => roster.try_push(entry).map_err(|_| Error::<T>::RunFull)?,
            }
            Hotkeys::<T>::insert(run, &seat.hotkey, uid);
            Self::deposit_event(Event::Registered {
                run,
                uid,
                role: seat.role,
                hotkey: seat.hotkey.clone(),
                coldkey: seat.coldkey.clone(),
                stake: seat.stake,
            });
            SeatsOf::<T>::insert(run, uid, seat);
            Ok(())
        }

        /// Ends a seat: its stake unbonds, its hotkey is remembered, and whoever kept something for it is told.
        fn vacate(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, ending: Ending) -> Weight {
            let (id, until) = (seat.id(uid), ending.until);
            SeatsOf::<T>::remove(run, uid);
            Self::retire(run, &seat.hotkey, id);
            if seat.stake > 0 && !Self::unbond(run, &seat.coldkey, id, seat.stake, until, 0) {
                defensive!("an unstake leaves room for the seat's end");
            }
            if Unbonding::<T>::contains_key((run, &seat.coldkey, id)) {
                FormerSeats::<T>::insert(run, id, &seat.coldkey);
            }
            Self::deposit_event(Event::Vacated {
                run,
                seat: id,
                coldkey: seat.coldkey.clone(),
                stake: seat.stake,
                until,
            });
            T::OnSeats::vacated(run, uid, seat, ending)
        }

        /// Remembers a hotkey as one that is used no more.
        fn retire(run: RunId, hotkey: &T::AccountId, seat: SeatId) {
            Hotkeys::<T>::remove(run, hotkey);
            FormerHotkeys::<T>::insert(run, hotkey, seat);
            frame_system::Pallet::<T>::dec_sufficients(hotkey);
        }

        /// Does what waits for a window to open; returns the cost of what others did about it.
        fn apply(
            run: RunId,
            window: Window,
            details: &Run<T::AccountId>,
            changes: BoundedVec<(Uid, Change<T::AccountId>), T::MaxChanges>,
        ) -> Weight {
            let until = Window(window.0.saturating_add(details.terms.unbonding_windows));
            let ending = Ending { window, until };
            let mut roster = Rosters::<T>::get(run);
            let mut weight = Weight::zero();
            for (uid, change) in changes {
                let Some(mut seat) = SeatsOf::<T>::get(run, uid) else {
                    defensive!("a seat that changes is there until it does");
                    continue;
                };
                match change {
                    Change::Rotates(hotkey) => {
                        Self::retire(run, &seat.hotkey, seat.id(uid));
                        Hotkeys::<T>::insert(run, &hotkey, uid);
                        seat.hotkey = hotkey.clone();
                        SeatsOf::<T>::insert(run, uid, seat);
                        Self::deposit_event(Event::Rotated { run, uid, hotkey });
                    }
                    Change::Leaves => {
                        weight.saturating_accrue(Self::vacate(run, uid, &seat, ending));
                        if let Some(taken) = roster.get_mut(usize::from(uid.0)) {
                            *taken = None;
                        }
                    }
                    Change::Replaced(newcomer) => {
                        weight.saturating_accrue(Self::vacate(run, uid, &seat, ending));
                        // Not when it was paid for, or two holders of a uid could have one identity.
                        let newcomer = Seat { registered_at: Self::now(), since: window, ..newcomer };
                        if Self::seat_down(run, uid, newcomer, &mut roster).is_err() {
                            defensive!("a seat that is taken over is on the roster");
                        }
                    }
                }
            }
            Rosters::<T>::insert(run, roster);
            weight
        }

        /// Takes `amount` of `coldkey`'s held stake; returns the reporter's part, which it has. The rest is burnt.
        fn confiscate(coldkey: &T::AccountId, amount: Balance, reporter: Reporter<T::AccountId>) -> Balance {
            let reason = HoldReason::Stake.into();
            let rewarded = reporter.map_or(0, |(reporter, share)| {
                // An account that cannot be paid so little gets nothing, and all is burnt.
                T::Currency::transfer_on_hold(
                    &reason,
                    coldkey,
                    reporter,
                    part(amount, share),
                    Precision::Exact,
                    Restriction::Free,
                    Fortitude::Force,
                )
                .unwrap_or(0)
            });
            let rest = amount.saturating_sub(rewarded);
            let burnt = T::Currency::burn_held(&reason, coldkey, rest, Precision::Exact, Fortitude::Force);
            if burnt.is_err() {
                defensive!("what is recorded as stake is held");
            }
            rewarded
        }
    }

    /// The hotkey that a change brings.
    fn incoming<AccountId>(change: &Change<AccountId>) -> Option<&AccountId> {
        match change {
            Change::Rotates(hotkey) => Some(hotkey),
            Change::Leaves => None,
            Change::Replaced(newcomer) => Some(&newcomer.hotkey),
        }
    }

    /// The lowest uid that nobody has.
    fn free_uid(roster: &[Option<Entry>], seats_max: u32) -> Option<Uid> {
        let index = roster.iter().position(Option::is_none).unwrap_or(roster.len());
        if index >= seats_max as usize {
            return None;
        }
        u16::try_from(index).ok().map(Uid)
    }

    /// What the runtime API reads.
    impl<T: Config> Pallet<T> {
        /// The runs, in the order of their ids.
        pub fn run_ids() -> Vec<RunId> {
            (0..RunCount::<T>::get()).map(RunId).collect()
        }

        /// The uid that the next seat gets if its role has a free one; `None` if all of the run are taken.
        pub fn next_uid(run: RunId) -> Option<Uid> {
            free_uid(&Rosters::<T>::get(run), T::MaxSeats::get())
        }

        /// Seats of `role` that are taken, and how many there may be. More may be taken, where the terms once allowed it.
        pub fn taken(run: RunId, role: Role) -> (u16, u16) {
            let roster = Rosters::<T>::get(run);
            let taken = roster.iter().flatten().filter(|entry| entry.role == role).count();
            let seats_max = Runs::<T>::get(run).map_or(0, |details| details.terms.seats_max(role));
            (u16::try_from(taken).unwrap_or(u16::MAX), seats_max)
        }

        /// What a seat of `role` costs now; zero in a run that does not exist.
        pub fn price(run: RunId, role: Role) -> Balance {
            Runs::<T>::get(run).map_or(0, |details| {
                let now = Self::window_now(&details).unwrap_or_default();
                Prices::<T>::get(run, role).in_window(now, &details.terms)
            })
        }

        /// Terms that wait for an epoch to begin.
        pub fn pending_terms(run: RunId) -> Option<Terms> {
            WaitingOf::<T>::get(run).terms
        }

        /// Whether the owner has stopped the run, or has asked to; not if the owner has asked that it go on.
        pub fn is_stopped(run: RunId) -> bool {
            let stopped = Runs::<T>::get(run).is_some_and(|details| details.stopped);
            WaitingOf::<T>::get(run).stopped.unwrap_or(stopped)
        }

        /// What the next opening brings for a seat.
        pub fn pending_change(run: RunId, uid: Uid) -> Option<view::PendingChange>
        where
            T::AccountId: Into<[u8; 32]>,
        {
            let change = Changes::<T>::get(run).into_iter().find(|(seat, _)| *seat == uid)?.1;
            Some(match change {
                Change::Rotates(hotkey) => view::PendingChange::Rotates(protocol::Hotkey(hotkey.into())),
                Change::Leaves => view::PendingChange::Leaves,
                Change::Replaced(_) => view::PendingChange::Replaced,
            })
        }

        /// The first window in which the seat can be replaced; `None` if there is no such seat.
        pub fn immune_until(run: RunId, uid: Uid) -> Option<Window> {
            let immunity = Runs::<T>::get(run)?.terms.immunity_windows;
            Some(Window(SeatsOf::<T>::get(run, uid)?.since.0.saturating_add(immunity)))
        }

        /// What an account has taken out of its seats and not withdrawn, the soonest first.
        pub fn unbonding(run: RunId, account: &T::AccountId) -> Vec<view::UnbondingView> {
            let mut views: Vec<view::UnbondingView> = Unbonding::<T>::iter_prefix((run, account))
                .flat_map(|(seat, chunks)| {
                    chunks.into_iter().map(move |chunk| view::UnbondingView {
                        uid: seat.uid,
                        amount: chunk.amount,
                        until: chunk.until,
                    })
                })
                .collect();
            views.sort_unstable_by_key(|view| (view.until, view.uid, view.amount));
            views
        }

        /// The seats whose coldkey is `account`, in uid order.
        pub fn seats_of_coldkey(run: RunId, account: &T::AccountId) -> Vec<Uid> {
            let seats = <Self as Seats<T::AccountId>>::seats(run).into_iter();
            seats.filter(|(_, seat)| seat.coldkey == *account).map(|(uid, _)| uid).collect()
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            use alloc::collections::{BTreeMap, BTreeSet};
            use fungible::InspectHold as _;

            fn add<K: Ord>(
                sums: &mut BTreeMap<K, Balance>,
                key: K,
                amount: Balance,
            ) -> Result<(), &'static str> {
                let sum = sums.entry(key).or_default();
                *sum = sum.checked_add(amount).ok_or("what is held overflows")?;
                Ok(())
            }
            let mut staked = BTreeMap::<T::AccountId, Balance>::new();
            let mut deposited = BTreeMap::<T::AccountId, Balance>::new();
            let mut counted = BTreeMap::<T::AccountId, u32>::new();
            if Runs::<T>::iter().count() != RunCount::<T>::get() as usize {
                return Err("runs are not numbered from 0 without a gap");
            }
            for run in Self::run_ids() {
                let details = Runs::<T>::get(run).ok_or("a run is missing")?;
                add(&mut deposited, details.owner.clone(), details.deposit)?;
                Self::check_terms(&details.terms).map_err(|_| "a run's terms are not valid")?;
                if WaitingOf::<T>::contains_key(run) && WaitingOf::<T>::get(run) == Waiting::default() {
                    return Err("nothing is kept as if it waited");
                }

                let roster = Rosters::<T>::get(run);
                let seats = <Self as Seats<T::AccountId>>::seats(run);
                let count = roster.iter().flatten().count();
                if seats.len() != count || SeatsOf::<T>::iter_prefix(run).count() != count {
                    return Err("the roster does not name the seats that there are");
                }
                if Hotkeys::<T>::iter_prefix(run).count() != count {
                    return Err("a hotkey leads to no seat");
                }
                for (uid, seat) in &seats {
                    if roster.get(usize::from(uid.0)) != Some(&Some(Entry::from(seat))) {
                        return Err("the roster does not say of a seat what the seat does");
                    }
                    if Hotkeys::<T>::get(run, &seat.hotkey) != Some(*uid) {
                        return Err("a seat's hotkey does not lead back to it");
                    }
                    let keys = counted.entry(seat.hotkey.clone()).or_default();
                    *keys = keys.saturating_add(1);
                    add(&mut staked, seat.coldkey.clone(), seat.stake)?;
                }
                if FormerHotkeys::<T>::iter_key_prefix(run).any(|key| Hotkeys::<T>::contains_key(run, key)) {
                    return Err("a hotkey that is used no more holds a seat");
                }

                let mut changing = BTreeSet::new();
                let mut coming = BTreeSet::new();
                for (uid, change) in Changes::<T>::get(run) {
                    if !changing.insert(uid) {
                        return Err("two changes wait for one seat");
                    }
                    let seat = SeatsOf::<T>::get(run, uid).ok_or("a change waits for no seat")?;
                    if let Some(hotkey) = incoming(&change) {
                        if Self::is_used(run, hotkey, &[]) || !coming.insert(hotkey.clone()) {
                            return Err("a hotkey is about to be used twice");
                        }
                        let keys = counted.entry(hotkey.clone()).or_default();
                        *keys = keys.saturating_add(1);
                    }
                    if let Change::Replaced(newcomer) = change {
                        if newcomer.role != seat.role {
                            return Err("a seat is taken over for another role");
                        }
                        add(&mut staked, newcomer.coldkey, newcomer.stake)?;
                    }
                }

                for ((coldkey, id), chunks) in Unbonding::<T>::iter_prefix((run,)) {
                    let present = SeatsOf::<T>::get(run, id.uid).filter(|seat| seat.id(id.uid) == id);
                    let holder = present.map(|seat| seat.coldkey).or_else(|| FormerSeats::<T>::get(run, id));
                    if holder.as_ref() != Some(&coldkey) {
                        return Err("stake is unbonding that is not its holder's");
                    }
                    if chunks.is_empty() {
                        return Err("nothing is kept as if it were unbonding");
                    }
                    for chunk in chunks {
                        add(&mut staked, coldkey.clone(), chunk.amount)?;
                    }
                }
                for (id, coldkey) in FormerSeats::<T>::iter_prefix(run) {
                    if SeatsOf::<T>::get(run, id.uid).is_some_and(|seat| seat.id(id.uid) == id) {
                        return Err("a seat is present and gone");
                    }
                    if !Unbonding::<T>::contains_key((run, coldkey, id)) {
                        return Err("a seat is remembered that has nothing unbonding");
                    }
                }
            }
            if counted.iter().any(|(key, uses)| frame_system::Pallet::<T>::sufficients(key) < *uses) {
                return Err("a hotkey's account is not kept alive by its seats");
            }
            let held = |reason: HoldReason, who: &T::AccountId| {
                T::Currency::balance_on_hold(&T::RuntimeHoldReason::from(reason), who)
            };
            if staked.iter().any(|(who, stake)| held(HoldReason::Stake, who) != *stake) {
                return Err("the stake held differs from the stake recorded");
            }
            if deposited.iter().any(|(who, deposit)| held(HoldReason::RunDeposit, who) != *deposit) {
                return Err("the deposit held differs from the deposit recorded");
            }
            Ok(())
        }
    }

    impl<T: Config> Seats<T::AccountId> for Pallet<T> {
        fn run(run: RunId) -> Option<Run<T::AccountId>> {
            Runs::<T>::get(run)
        }

        fn terms_of(run: RunId, epoch: u32) -> Option<Terms> {
            let details = Runs::<T>::get(run)?;
            match FormerTerms::<T>::get(run) {
                Some((since, former)) if epoch < since => Some(former),
                _ => Some(details.terms),
            }
        }

        fn seat_of(run: RunId, hotkey: &T::AccountId) -> Option<(Uid, Role)> {
            let uid = Hotkeys::<T>::get(run, hotkey)?;
            Some((uid, SeatsOf::<T>::get(run, uid)?.role))
        }

        fn seat(run: RunId, uid: Uid) -> Option<Seat<T::AccountId>> {
            SeatsOf::<T>::get(run, uid)
        }

        fn roster(run: RunId) -> Vec<(Uid, Entry)> {
            let roster = Rosters::<T>::get(run).into_iter().zip(0u32..);
            roster.filter_map(|(taken, index)| Some((Uid(u16::try_from(index).ok()?), taken?))).collect()
        }

        fn seats(run: RunId) -> Vec<(Uid, Seat<T::AccountId>)> {
            let roster = <Self as Seats<T::AccountId>>::roster(run).into_iter();
            roster.filter_map(|(uid, _)| Some((uid, SeatsOf::<T>::get(run, uid)?))).collect()
        }

        fn window_opens(run: RunId, window: Window) -> Weight {
            let Some(mut details) = Runs::<T>::get(run) else {
                return T::DbWeight::get().reads(1);
            };
            let changes = Changes::<T>::take(run);
            let mut weight = T::WeightInfo::window_opens(changes.len() as u32);
            if !changes.is_empty() {
                // Before any new terms: whoever leaves, leaves by those that stood when they said so.
                weight.saturating_accrue(Self::apply(run, window, &details, changes));
            }

            let mut waiting = WaitingOf::<T>::get(run);
            let before = waiting;
            if let Some(stopped) = waiting.stopped.take() {
                details.stopped = stopped;
                Self::deposit_event(Event::Stopped { run, window, stopped });
            }
            let epoch_windows = details.params.epoch_windows;
            if window.0.is_multiple_of(epoch_windows.max(1))
                && let Some(terms) = waiting.terms.take()
            {
                let epoch = window.epoch(epoch_windows);
                FormerTerms::<T>::insert(run, (epoch, details.terms));
                details.terms = terms;
                Self::deposit_event(Event::TermsChanged { run, epoch });
            }
            if waiting != before {
                Runs::<T>::insert(run, details);
                Self::put_waiting(run, waiting);
            }
            weight
        }

        fn holder_of(run: RunId, hotkey: &T::AccountId) -> Option<SeatId> {
            match Hotkeys::<T>::get(run, hotkey) {
                Some(uid) => Some(SeatsOf::<T>::get(run, uid)?.id(uid)),
                None => FormerHotkeys::<T>::get(run, hotkey),
            }
        }

        fn slash(
            run: RunId,
            id: SeatId,
            share: Permille,
            reporter: Option<(&T::AccountId, Permille)>,
        ) -> Balance {
            let Some(details) = Runs::<T>::get(run) else {
                return 0;
            };
            // Nominators may have more on its way out than the seat itself, or something where that has nothing any more.
            let nominated = T::Nominations::slash(run, id, share, reporter);
            let present = SeatsOf::<T>::get(run, id.uid).filter(|seat| seat.id(id.uid) == id);
            let coldkey = present.as_ref().map(|seat| seat.coldkey.clone());
            let Some(coldkey) = coldkey.or_else(|| FormerSeats::<T>::get(run, id)) else {
                if nominated > 0 {
                    Self::deposit_event(Event::Slashed { run, seat: id, stake: 0, rewarded: 0, nominated });
                }
                return nominated;
            };

            let mut stake: Balance = 0;
            if let Some(mut seat) = present {
                stake = part(seat.stake, share);
                seat.stake = seat.stake.saturating_sub(stake);
                SeatsOf::<T>::insert(run, id.uid, seat);
            }
            let mut chunks = Unbonding::<T>::get((run, &coldkey, id));
            for chunk in chunks.iter_mut().filter(|chunk| !Self::is_free(&details, chunk)) {
                let taken = part(chunk.amount, share);
                chunk.amount = chunk.amount.saturating_sub(taken);
                stake = stake.saturating_add(taken);
            }
            chunks.retain(|chunk| chunk.amount > 0);
            Self::put_chunks(run, &coldkey, id, chunks);
            let rewarded = Self::confiscate(&coldkey, stake, reporter);
            Self::deposit_event(Event::Slashed { run, seat: id, stake, rewarded, nominated });
            stake.saturating_add(nominated)
        }

        fn add_to_stake(run: RunId, uid: Uid, from: &T::AccountId, amount: Balance) -> DispatchResult {
            let mut seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(amount > 0, Error::<T>::NothingToAdd);
            seat.stake = seat.stake.checked_add(amount).ok_or(Error::<T>::StakeTooLarge)?;
            T::Currency::transfer_and_hold(
                &HoldReason::Stake.into(),
                from,
                &seat.coldkey,
                amount,
                Precision::Exact,
                Preservation::Expendable,
                Fortitude::Polite,
            )?;

            let stake = seat.stake;
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::StakeAdded { run, uid, amount, stake });
            Ok(())
        }
    }
}
