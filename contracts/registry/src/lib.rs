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
use frame::prelude::{BoundedVec, ConstU32, DispatchResult, Weight};
use protocol::{Block, Digest, Role, RunId, RunParams, SeatId, Terms, Uid, Window, params::Permille, view};

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod changes;
mod invariants;
pub mod migrations;
#[cfg(test)]
mod mock;
mod permits;
mod price;
mod reads;
mod rules;
mod seats;
#[cfg(test)]
mod tests;
mod traits;
mod types;
pub mod weights;

pub use pallet::*;
pub use price::Price;
pub use traits::*;
pub use types::*;
pub use weights::WeightInfo;

/// An amount of the chain's token, in its smallest unit.
pub type Balance = u128;

/// The longest URL that the chain stores.
pub const URL_BYTES_MAX: u32 = 256;

/// A base URL as stored: printable ASCII, `http` or `https`, without a credential (PROT-12).
pub type Url = BoundedVec<u8, ConstU32<URL_BYTES_MAX>>;

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::permits::Place;
    use frame::prelude::{
        fungible::{Inspect, Mutate, MutateHold as _, hold},
        *,
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
}
