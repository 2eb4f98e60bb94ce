//! Runs and seats: who trains which model, under which key, and with how much at stake (PROT-29).
//!
//! A run is a set of parameters that nobody can change afterwards; a seat is a uid in it, held by a hotkey (an online
//! signing key) on behalf of a coldkey (the account that owns the stake). Nothing here knows a window: what is
//! registered takes effect when the windows pallet next looks, as a window opens.
//!
//! Not here yet: unbonding, the replacement of seats in a full run, and the closing of a run. A stake or deposit once
//! held stays held.
#![cfg_attr(not(feature = "std"), no_std)]
#![allow(
    clippy::large_enum_variant,
    reason = "the call enum is generated, and a run's parameters travel in it by value"
)]

extern crate alloc;

use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::prelude::{BoundedVec, ConstU32, DispatchResult, Weight};
use protocol::{Block, Digest, Role, RunId, RunParams, SeatId, Terms, Uid, Window, params::Permille};
use scale_info::TypeInfo;

mod rules;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
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
    pub role: Role,
    pub hotkey: AccountId,
    pub coldkey: AccountId,
    pub endpoint: Url,
    /// Held from the coldkey.
    pub stake: Balance,
}

/// What other pallets may ask about runs and seats.
pub trait Seats<AccountId> {
    fn run(run: RunId) -> Option<Run<AccountId>>;

    /// The terms that stood in `epoch`, which is the present one or the one before: pay follows the terms under which the
    /// work was done, also where it is shared out later.
    fn terms_of(run: RunId, epoch: u32) -> Option<Terms>;

    /// The seat that `hotkey` holds in `run`, and what it is for.
    fn seat_of(run: RunId, hotkey: &AccountId) -> Option<(Uid, Role)>;

    fn seat(run: RunId, uid: Uid) -> Option<Seat<AccountId>>;

    /// Every seat of `run`, in uid order. There may be gaps.
    fn seats(run: RunId) -> Vec<(Uid, Seat<AccountId>)>;

    /// Applies what waits for `window` to open: terms, hotkeys, seats that are given up or replaced, the owner's stop.
    /// Called once, as the window opens and before anything is read for it.
    fn window_opens(run: RunId, window: Window) -> Weight;

    /// Whose seat a hotkey holds or ever held: no hotkey is used twice in a run.
    fn holder_of(run: RunId, hotkey: &AccountId) -> Option<SeatId>;

    /// Takes `share` of everything that a seat has at risk: its stake, what of it is being taken out, and what others
    /// have put behind it. Of that, `reporter` gets its part and the rest is burnt. Returns what was taken.
    fn slash(run: RunId, seat: SeatId, share: Permille, reporter: Option<(&AccountId, Permille)>) -> Balance;
}

/// Told when a seat's holder is gone and somebody else may get its uid.
pub trait OnSeats<AccountId> {
    /// Clears, or sets aside for the old holder, what belonged to `seat`; returns what that cost.
    fn vacated(run: RunId, uid: Uid, seat: &Seat<AccountId>) -> Weight;
}

impl<AccountId> OnSeats<AccountId> for () {
    fn vacated(_: RunId, _: Uid, _: &Seat<AccountId>) -> Weight {
        Weight::zero()
    }
}

impl<AccountId, A: OnSeats<AccountId>, B: OnSeats<AccountId>> OnSeats<AccountId> for (A, B) {
    fn vacated(run: RunId, uid: Uid, seat: &Seat<AccountId>) -> Weight {
        A::vacated(run, uid, seat).saturating_add(B::vacated(run, uid, seat))
    }
}

/// What other accounts have put behind validators.
pub trait Nominations<AccountId> {
    /// What is nominated behind a seat. It counts as the seat's stake.
    fn behind(run: RunId, uid: Uid) -> Balance;

    /// Takes the nominators' part of `amount`, which a seat with `own_stake` earned, out of `payer`'s account. Returns
    /// that part; the rest is the seat's.
    fn share_pay(run: RunId, uid: Uid, own_stake: Balance, amount: Balance, payer: &AccountId) -> Balance;

    /// Takes `share` of what is behind a seat, for `reporter` its part and the rest burnt. Returns what was taken.
    fn slash(run: RunId, uid: Uid, share: Permille, reporter: Option<(&AccountId, Permille)>) -> Balance;
}

impl<AccountId> Nominations<AccountId> for () {
    fn behind(_: RunId, _: Uid) -> Balance {
        0
    }
    fn share_pay(_: RunId, _: Uid, _: Balance, _: Balance, _: &AccountId) -> Balance {
        0
    }
    fn slash(_: RunId, _: Uid, _: Permille, _: Option<(&AccountId, Permille)>) -> Balance {
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
    use frame::prelude::{
        fungible::{Inspect, Mutate, MutateHold as _, hold},
        *,
    };

    #[pallet::pallet]
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

        /// Seats of a run that change hands or keys as one window opens, at most.
        #[pallet::constant]
        type MaxChanges: Get<u32>;

        /// Times that a seat may have taken stake out and not have it back yet.
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
        /// The stake of the seats whose coldkey the account is.
        Stake,
        /// The deposit for the runs that the account created.
        RunDeposit,
    }

    /// Runs created so far, which is also the next run's id.
    #[pallet::storage]
    pub type RunCount<T: Config> = StorageValue<_, u32, ValueQuery>;

    #[pallet::storage]
    pub type Runs<T: Config> = StorageMap<_, Twox64Concat, RunId, Run<T::AccountId>>;

    /// Seats taken in a run, which is also the next seat's uid.
    #[pallet::storage]
    pub type SeatCount<T: Config> = StorageMap<_, Twox64Concat, RunId, u32, ValueQuery>;

    #[pallet::storage]
    pub type SeatsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Seat<T::AccountId>>;

    /// Which seat a hotkey holds.
    #[pallet::storage]
    pub type Hotkeys<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, Uid>;

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
        /// A seat publishes elsewhere from now on.
        EndpointSet { run: RunId, uid: Uid, endpoint: Url },
        /// A seat has more at stake. It counts from the next window that opens.
        StakeAdded { run: RunId, uid: Uid, amount: Balance, stake: Balance },
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
        /// A parameter is zero that must not be. See `RunParams` for which.
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
        /// Checkpoints would be too far apart for a node to join. Lower `checkpoint_windows`.
        CheckpointsTooRare,
        /// Not a base URL: `http://` or `https://`, a host, printable ASCII, and never a user or password in it.
        BadUrl,
        /// All seats of the run are taken. Wait for a free one, or join another run.
        RunFull,
        /// The hotkey holds a seat in this run already. Use another hotkey: each seat needs its own.
        HotkeyInUse,
        /// The stake is below the run's minimum for the role. Stake more.
        StakeTooLow,
        /// The account cannot pay this and stay alive. Transfer to it first.
        NotEnoughFunds,
        /// The signer holds no seat in this run. Register its hotkey first.
        NotASeat,
        /// There is no seat with this uid. List the run's seats.
        UnknownSeat,
        /// Only the seat's coldkey may do this. Sign with the key that registered the seat.
        NotTheColdkey,
        /// The amount is zero. Add something.
        NothingToAdd,
        /// The stake would exceed what a number can hold.
        StakeTooLarge,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            assert!(T::MaxSeats::get() <= u32::from(u16::MAX) + 1, "a uid holds 16 bits");
            assert!(T::MaxCheckpointWindows::get() > 0, "a run must have checkpoints");
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
            terms.validate().map_err(Error::<T>::from)?;
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

        /// Takes the next free seat of `run` for `hotkey`, and holds `stake` from the signer, its coldkey.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::register())]
        pub fn register(
            origin: OriginFor<T>,
            run: RunId,
            role: Role,
            hotkey: T::AccountId,
            endpoint: Url,
            stake: Balance,
            price_max: Balance,
        ) -> DispatchResult {
            let _ = price_max;
            let coldkey = ensure_signed(origin)?;
            let terms = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?.terms;
            ensure!(stake >= terms.stake_min(role), Error::<T>::StakeTooLow);
            ensure!(rules::is_base_url(&endpoint), Error::<T>::BadUrl);
            ensure!(!Hotkeys::<T>::contains_key(run, &hotkey), Error::<T>::HotkeyInUse);
            let taken = SeatCount::<T>::get(run);
            ensure!(taken < T::MaxSeats::get(), Error::<T>::RunFull);
            let uid = Uid(u16::try_from(taken).map_err(|_| Error::<T>::RunFull)?);
            T::Currency::hold(&HoldReason::Stake.into(), &coldkey, stake)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            let seat = Seat {
                registered_at: Self::now(),
                role,
                hotkey: hotkey.clone(),
                coldkey: coldkey.clone(),
                endpoint,
                stake,
            };
            SeatsOf::<T>::insert(run, uid, seat);
            Hotkeys::<T>::insert(run, &hotkey, uid);
            SeatCount::<T>::insert(run, taken.saturating_add(1));
            Self::deposit_event(Event::Registered { run, uid, role, hotkey, coldkey, stake });
            Ok(())
        }

        /// Says where the signer's seat publishes from now on. Signed by the hotkey.
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::set_endpoint())]
        pub fn set_endpoint(origin: OriginFor<T>, run: RunId, endpoint: Url) -> DispatchResult {
            let hotkey = ensure_signed(origin)?;
            ensure!(Runs::<T>::contains_key(run), Error::<T>::UnknownRun);
            let uid = Hotkeys::<T>::get(run, &hotkey).ok_or(Error::<T>::NotASeat)?;
            ensure!(rules::is_base_url(&endpoint), Error::<T>::BadUrl);

            SeatsOf::<T>::try_mutate(run, uid, |seat| -> DispatchResult {
                seat.as_mut().ok_or(Error::<T>::UnknownSeat)?.endpoint = endpoint.clone();
                Ok(())
            })?;
            Self::deposit_event(Event::EndpointSet { run, uid, endpoint });
            Ok(())
        }

        /// Holds `amount` more from the signer, the seat's coldkey, as the seat's stake.
        #[pallet::call_index(3)]
        #[pallet::weight(T::WeightInfo::add_stake())]
        pub fn add_stake(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            ensure!(Runs::<T>::contains_key(run), Error::<T>::UnknownRun);
            let mut seat = SeatsOf::<T>::get(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(seat.coldkey == coldkey, Error::<T>::NotTheColdkey);
            ensure!(amount > 0, Error::<T>::NothingToAdd);
            seat.stake = seat.stake.checked_add(amount).ok_or(Error::<T>::StakeTooLarge)?;
            T::Currency::hold(&HoldReason::Stake.into(), &coldkey, amount)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            let stake = seat.stake;
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::StakeAdded { run, uid, amount, stake });
            Ok(())
        }
    }

    impl<T: Config> Pallet<T> {
        /// The runs, in the order of their ids.
        pub fn run_ids() -> Vec<RunId> {
            (0..RunCount::<T>::get()).map(RunId).collect()
        }

        /// The uid that the next seat gets; `None` in a run whose seats are all taken.
        pub fn next_uid(run: RunId) -> Option<Uid> {
            u16::try_from(SeatCount::<T>::get(run)).ok().map(Uid)
        }

        fn now() -> Block {
            Block(frame_system::Pallet::<T>::block_number().saturated_into())
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            use alloc::collections::BTreeMap;
            use fungible::InspectHold as _;

            let mut staked = BTreeMap::<T::AccountId, Balance>::new();
            let mut deposited = BTreeMap::<T::AccountId, Balance>::new();
            if Runs::<T>::iter().count() != RunCount::<T>::get() as usize {
                return Err("runs are not numbered from 0 without a gap");
            }
            for run in Self::run_ids() {
                let details = Runs::<T>::get(run).ok_or("a run is missing")?;
                let held = deposited.entry(details.owner).or_default();
                *held = held.checked_add(details.deposit).ok_or("deposits overflow")?;

                let seats = <Self as Seats<T::AccountId>>::seats(run);
                let count = SeatCount::<T>::get(run) as usize;
                if seats.len() != count || SeatsOf::<T>::iter_prefix(run).count() != count {
                    return Err("seats are not numbered from 0 without a gap");
                }
                if Hotkeys::<T>::iter_prefix(run).count() != count {
                    return Err("a hotkey leads to no seat");
                }
                for (uid, seat) in seats {
                    if Hotkeys::<T>::get(run, &seat.hotkey) != Some(uid) {
                        return Err("a seat's hotkey does not lead back to it");
                    }
                    let held = staked.entry(seat.coldkey).or_default();
                    *held = held.checked_add(seat.stake).ok_or("stakes overflow")?;
                }
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

        fn terms_of(run: RunId, _: u32) -> Option<Terms> {
            Some(Runs::<T>::get(run)?.terms)
        }

        fn seat_of(run: RunId, hotkey: &T::AccountId) -> Option<(Uid, Role)> {
            let uid = Hotkeys::<T>::get(run, hotkey)?;
            Some((uid, SeatsOf::<T>::get(run, uid)?.role))
        }

        fn seat(run: RunId, uid: Uid) -> Option<Seat<T::AccountId>> {
            SeatsOf::<T>::get(run, uid)
        }

        fn seats(run: RunId) -> Vec<(Uid, Seat<T::AccountId>)> {
            (0..SeatCount::<T>::get(run))
                .filter_map(|index| {
                    let uid = Uid(u16::try_from(index).ok()?);
                    Some((uid, SeatsOf::<T>::get(run, uid)?))
                })
                .collect()
        }

        fn window_opens(_: RunId, _: Window) -> Weight {
            Weight::zero()
        }

        fn holder_of(run: RunId, hotkey: &T::AccountId) -> Option<SeatId> {
            let uid = Hotkeys::<T>::get(run, hotkey)?;
            Some(SeatId { uid, registered_at: SeatsOf::<T>::get(run, uid)?.registered_at })
        }

        fn slash(_: RunId, _: SeatId, _: Permille, _: Option<(&T::AccountId, Permille)>) -> Balance {
            0
        }
    }
}
