//! Runs and seats: accounts that train a model, their keys and their stake (PROT-29).
//!
//! A run has parameters that never change and terms that its owner may change. A seat is a uid in a run, held by a
//! hotkey (an online signing key) for a coldkey (the account that owns the stake).
//!
//! Seats, keys and terms do not change within a window. A free seat is assigned at once and counts from the next
//! opening. Every other change waits until the windows pallet opens a window (`Pallet::window_opens`):
//!
//! | change                          | takes effect at                 |
//! |---------------------------------|---------------------------------|
//! | a seat is given up or replaced  | the next opening                |
//! | a new hotkey                    | the next opening                |
//! | the owner stops the run         | the next opening                |
//! | new terms                       | the first opening of an epoch   |
//! | terms that worsen the present   | the same, after a notice        |
//!
//! Stake that leaves a seat stays held while it unbonds. A slash for an offence of the holder reaches this stake, and
//! never the stake of another holder of the uid.
//!
//! The owner may close a run that has been stopped for the unbonding time. A closed run does not exist for calls. Its
//! storage is cleared in bounded steps (`closing`), which pay out its funds; the deposit is released last.
#![cfg_attr(not(test), no_std)]
#![allow(
    clippy::large_enum_variant,
    clippy::too_many_arguments,
    reason = "calls and their enum are the chain's format; a run's parameters travel in it by value"
)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use alloc::vec::Vec;
use frame::prelude::{BoundedVec, ConstU32, DispatchResult, Weight};
use protocol::{
    Block, Digest, GenesisHash, Role, RunId, RunParams, SeatId, Terms, Uid, Window,
    identity::Signature,
    params::{Floors, Permille},
    view::{self, PendingTerms},
};

#[cfg(feature = "runtime-benchmarks")]
pub mod benchmarking;
mod changes;
mod closing;
mod invariants;
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
pub mod weight_info;

pub use pallet::*;
pub use price::Price;
pub use rules::{NOMINATIONS_PER_STAKE, share_of};
pub use traits::*;
pub use types::*;

/// An amount of the chain's token, in its smallest unit.
pub type Balance = u128;

/// Part of an offender's own slashed stake that the reporter receives (PROT-21).
pub const REPORTER_SHARE: Permille = Permille(100);

/// Maximum reward for a report: one MTL.
pub const REPORTER_REWARD_MAX: Balance = 1_000_000_000_000;

/// Maximum length of a stored URL, in bytes.
pub const URL_BYTES_MAX: u32 = 256;

/// A base URL as stored: printable ASCII, `http` or `https`, without credentials (PROT-12). A seat's URL may also be
/// `p2p` (PROT-34).
pub type Url = BoundedVec<u8, ConstU32<URL_BYTES_MAX>>;

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::permits::Place;
    use frame::{
        deps::sp_core::H256,
        prelude::{
            fungible::{Inspect, Mutate, MutateHold as _, hold},
            *,
        },
    };

    /// Storage version, raised by each migration.
    const LAYOUT: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(LAYOUT)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config<Hash = H256> {
        /// Currency of deposits and stakes.
        type Currency: Inspect<Self::AccountId, Balance = Balance>
            + Mutate<Self::AccountId>
            + hold::Mutate<Self::AccountId, Reason = Self::RuntimeHoldReason>;

        type RuntimeHoldReason: From<HoldReason>;

        type OnRunCreated: OnRunCreated<Self::AccountId>;

        /// Clears the entries of the other pallets for a closed run.
        type OnRunClosed: OnRunClosed;

        /// Verifier of the signatures by which hotkeys consent to hold a seat.
        type Hotkey: HotkeyProof<Self::AccountId>;

        /// Hook for the end of a seat's tenure.
        type OnSeats: OnSeats<Self::AccountId>;

        /// Nominations, which are slashed with their validators.
        type Nominations: Nominations<Self::AccountId>;

        /// Pay records, which determine the price of a seat and the seat that a newcomer replaces in a full run.
        type Payslips: Payslips;

        /// Consensus weights of miners. Miners with a weight are replaced last.
        type MinerWeights: MinerWeights;

        /// Maximum number of runs.
        #[pallet::constant]
        type MaxRuns: Get<u32>;

        /// Maximum number of seats per run: at most 65536, so that a uid fits.
        #[pallet::constant]
        type MaxSeats: Get<u32>;

        /// Maximum number of changes of seats that calls may request for one opening. At most half may be new hotkeys,
        /// so that rotations cannot keep newcomers out. Expulsions are not limited by it.
        #[pallet::constant]
        type MaxChanges: Get<u32>;

        /// Maximum number of unbonding chunks per seat; the last is reserved for the seat's end.
        #[pallet::constant]
        type MaxUnbonding: Get<u32>;

        /// Maximum `checkpoint_windows`: a joining node needs every update since the last checkpoint, and the chain
        /// stores a limited number of windows.
        #[pallet::constant]
        type MaxCheckpointWindows: Get<u32>;

        /// Part of a run's deposit that does not depend on its size. The deposit is held from the owner.
        #[pallet::constant]
        type RunDeposit: Get<Balance>;

        /// Deposit for each seat that a run serves per block: `seats / blocks_per_window` measures the free calls
        /// and the tasks that the run can request.
        #[pallet::constant]
        type RateDeposit: Get<Balance>;

        /// Floors of a chain whose genesis sets none.
        type DefaultFloors: Get<Floors>;
    }

    /// Reason for a hold on an account's funds.
    #[pallet::composite_enum]
    pub enum HoldReason {
        /// Stake of the account's present and former seats, including unbonding stake.
        Stake,
        /// Deposits of the runs that the account owns.
        RunDeposit,
    }

    /// Minimum requirements of every run for its seats. Set at genesis.
    #[pallet::storage]
    pub type FloorsOf<T: Config> = StorageValue<_, Floors, ValueQuery, <T as Config>::DefaultFloors>;

    #[pallet::genesis_config]
    #[derive(DefaultNoBound)]
    pub struct GenesisConfig<T: Config> {
        /// Floors of the chain; `None` for those of the runtime.
        pub floors: Option<Floors>,
        #[serde(skip)]
        pub _config: PhantomData<T>,
    }

    #[pallet::genesis_build]
    impl<T: Config> BuildGenesisConfig for GenesisConfig<T> {
        fn build(&self) {
            if let Some(floors) = self.floors {
                FloorsOf::<T>::put(floors);
            }
        }
    }

    /// Number of runs ever created, which is the next run's id: the id of a closed run is not used again.
    #[pallet::storage]
    pub type RunCount<T: Config> = StorageValue<_, u32, ValueQuery>;

    /// Number of runs that are not cleared; at most `MaxRuns`.
    #[pallet::storage]
    pub type LiveRuns<T: Config> = StorageValue<_, u32, ValueQuery>;

    /// First window of a stopped run without work.
    #[pallet::storage]
    pub type StoppedSince<T: Config> = StorageMap<_, Twox64Concat, RunId, Window>;

    /// Window by which all stake has unbonded that left seats under former terms with a longer unbonding time.
    #[pallet::storage]
    pub type UnbondsBy<T: Config> = StorageMap<_, Twox64Concat, RunId, Window, ValueQuery>;

    /// Runs that are being cleared.
    #[pallet::storage]
    pub type ClosedRuns<T: Config> = StorageMap<_, Twox64Concat, RunId, ClosedRun<T::AccountId>>;

    #[pallet::storage]
    pub type Runs<T: Config> = StorageMap<_, Twox64Concat, RunId, Run<T::AccountId>>;

    /// Changes requested by a run's owner.
    #[pallet::storage]
    pub type PendingChanges<T: Config> = StorageMap<_, Twox64Concat, RunId, Waiting, ValueQuery>;

    /// Former terms of a run, each with its last epoch, ascending. They cover the two epochs before the open one,
    /// which may be unpaid.
    #[pallet::storage]
    pub type FormerTerms<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<(u32, Terms), ConstU32<2>>, ValueQuery>;

    /// Account to which a run's owner has offered the run.
    #[pallet::storage]
    pub type Offers<T: Config> = StorageMap<_, Twox64Concat, RunId, T::AccountId>;

    /// Taken uids of a run, with the data needed for all of them at once. Item `u` is uid `u`.
    #[pallet::storage]
    pub type Rosters<T: Config> =
        StorageMap<_, Twox64Concat, RunId, BoundedVec<Option<Entry>, T::MaxSeats>, ValueQuery>;

    #[pallet::storage]
    pub type SeatsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Seat<T::AccountId>>;

    /// Uid of the seat that a hotkey holds.
    #[pallet::storage]
    pub type Hotkeys<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, Uid>;

    /// The seat that a former hotkey held. Kept permanently, because a hotkey cannot be used twice in a run. Grows by
    /// at most `MaxChanges` paid entries per window.
    #[pallet::storage]
    pub type FormerHotkeys<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, SeatId>;

    /// Changes of seats, in order; at most one per seat.
    pub type ChangesOf<T> =
        BoundedVec<(Uid, Change<<T as frame_system::Config>::AccountId>), <T as Config>::MaxSeats>;

    /// Changes for the next opening.
    #[pallet::storage]
    pub type Changes<T: Config> = StorageMap<_, Twox64Concat, RunId, ChangesOf<T>, ValueQuery>;

    /// Price after the last registration of a role.
    #[pallet::storage]
    pub type Prices<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Role, Price, ValueQuery>;

    /// Unbonding stake, by coldkey and seat.
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

    /// Coldkeys of former seats with unbonding stake.
    #[pallet::storage]
    pub type FormerSeats<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, SeatId, T::AccountId>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// A run was created. Its first window opens at `start`.
        RunCreated { run: RunId, owner: T::AccountId, start: Block },
        /// A seat was taken. It counts from the next opening.
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
        /// A newcomer replaces this seat at the next opening.
        ReplacementScheduled {
            run: RunId,
            uid: Uid,
            hotkey: T::AccountId,
            coldkey: T::AccountId,
            stake: Balance,
        },
        /// A seat has a new endpoint.
        EndpointSet { run: RunId, uid: Uid, endpoint: Url },
        /// A seat has more stake, which counts from the next opening.
        StakeAdded { run: RunId, uid: Uid, amount: Balance, stake: Balance },
        /// A seat has less stake; the amount can be withdrawn from window `until`.
        Unstaked { run: RunId, uid: Uid, amount: Balance, stake: Balance, until: Window },
        /// A seat is given up, or its holder expelled, at the next opening.
        Leaving { run: RunId, uid: Uid },
        /// A seat's holder has left; its stake can be withdrawn from window `until`.
        Vacated { run: RunId, seat: SeatId, coldkey: T::AccountId, stake: Balance, until: Window },
        /// Unbonded stake was released.
        Withdrawn { run: RunId, coldkey: T::AccountId, amount: Balance },
        /// A seat gets a new hotkey at the next opening.
        RotationScheduled { run: RunId, uid: Uid, hotkey: T::AccountId },
        /// A seat has a new hotkey.
        Rotated { run: RunId, uid: Uid, hotkey: T::AccountId },
        /// The owner requested new terms. They apply from window `from`.
        TermsProposed { run: RunId, terms: Terms, from: Window },
        /// The owner withdrew the waiting terms.
        TermsCancelled { run: RunId },
        /// The run has new terms.
        TermsChanged { run: RunId, epoch: u32 },
        /// The owner requested to stop or restart the run at the next opening.
        StopRequested { run: RunId, stopped: bool },
        /// The run was stopped or restarted.
        Stopped { run: RunId, window: Window, stopped: bool },
        /// The owner offered the run to `to`.
        RunOffered { run: RunId, to: T::AccountId },
        /// The run has a new owner.
        OwnerChanged { run: RunId, owner: T::AccountId },
        /// The owner closed the run: calls no longer find it, and its storage is being cleared.
        RunClosed { run: RunId },
        /// The storage of a closed run is cleared, and `deposit` was released to its owner.
        RunCleared { run: RunId, owner: T::AccountId, deposit: Balance },
        /// A seat and its nominations were slashed. The reporter received `rewarded` of `stake`; the rest was burnt.
        Slashed { run: RunId, seat: SeatId, stake: Balance, rewarded: Balance, nominated: Balance },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// The run does not exist. List the runs and pick one of them.
        UnknownRun,
        /// The chain has the maximum number of runs. Wait until a run is closed and cleared.
        TooManyRuns,
        /// The deadlines do not increase. Set 0 < commit_by < reveal_by < attest_by < vote_by < blocks_per_window.
        BadSchedule,
        /// The run would start in the past. Set `schedule.start` to a later block.
        StartPassed,
        /// A parameter that must be positive is zero. See `RunParams` and `Terms`.
        ZeroParameter,
        /// A density must be from 1 to 4096 values in 4096.
        BadDensity,
        /// A rate must be finite, above zero, and within its maximum.
        BadRate,
        /// The numbers of places contradict each other. Set min_contributions ≤ reserve_places.
        BadPlaces,
        /// The tolerance of probes is out of range: a larger one accepts guesses, a smaller one rejects other
        /// machines. Change `probe_tolerance`.
        BadProbeTolerance,
        /// Receipts would become public after contributions are deleted. Lower `epoch_windows`.
        EpochTooLong,
        /// A window needs more contributions. Raise `min_contributions`; only a localnet may have fewer than 4.
        TooFewContributions,
        /// The quorum must be from 1 to 1000 thousandths.
        BadQuorum,
        /// The pay shares must add up to 1000 thousandths.
        BadShares,
        /// The reveal phase would be longer than an epoch. Lower `reveal_windows`.
        BadReveal,
        /// Attestations or votes would be revealed too late. Lower `hidden_blocks`, or move the deadlines.
        BadHidden,
        /// The slash for equivocation must be at most 1000 thousandths.
        BadSlash,
        /// Stake would unbond too slowly. Lower `unbonding_windows`.
        BadUnbonding,
        /// The owner's share is above the limit fixed at the run's creation. Lower `shares.owner`.
        OwnerShareLimit,
        /// The emission is above the limit fixed at the run's creation. Lower `emission_per_epoch`.
        EmissionLimit,
        /// The slash is above the limit fixed at the run's creation. Lower `equivocation_slash`.
        SlashLimit,
        /// The unbonding time is above the limit fixed at the run's creation. Lower `unbonding_windows`.
        UnbondingLimit,
        /// A minimum stake is above the limit fixed at the run's creation. Lower `validator_stake_min` or
        /// `miner_stake_min`.
        StakeLimit,
        /// The lowest price is above the limit fixed at the run's creation. Lower `seat_price_min`.
        PriceLimit,
        /// The run would have more seats than the chain allows. Lower `miner_seats_max` or `validator_seats_max`.
        TooManySeats,
        /// Checkpoints would be too rare for a node to join. Lower `checkpoint_windows`.
        CheckpointsTooRare,
        /// The URL is not a base URL. Use `http://` or `https://`, a host, printable ASCII, and no user or password. A
        /// seat without a bucket uses `p2p://` and the name of its peer.
        BadUrl,
        /// All seats of the role are taken and none is replaceable: each is immune, about to change hands, or has a
        /// consensus weight while newer seats have none. Wait for a later opening.
        RunFull,
        /// All validators' seats are taken. Stake over a tenth more than the stake of a present holder, including its
        /// counted nominations.
        StakeTooLowToReplace,
        /// The maximum number of the role's seats already change hands at the next opening. Register after it.
        TooManyReplacements,
        /// The hotkey holds, held or will hold a seat in this run. Use a new one.
        HotkeyInUse,
        /// The hotkey did not sign for this chain, run and coldkey. Sign the proof with the hotkey's ed25519 key.
        HotkeyNotProven,
        /// The stake is, or would be, below the run's minimum for the role. Stake more, or leave.
        StakeTooLow,
        /// The price is above the signer's maximum. Wait for it to fall, or raise the maximum.
        PriceAboveMax,
        /// The account cannot pay this and keep the existential deposit. Transfer to it first.
        NotEnoughFunds,
        /// The signer holds no seat in this run. Register its hotkey first.
        NotASeat,
        /// The seat does not exist. List the run's seats.
        UnknownSeat,
        /// The signer is not the seat's coldkey. Sign with the key that registered the seat.
        NotTheColdkey,
        /// The signer is not the run's owner. Sign with the owner's key.
        NotTheOwner,
        /// The amount is zero. Add a positive amount.
        NothingToAdd,
        /// The amount is zero. Remove a positive amount.
        NothingToTake,
        /// The stake would overflow. Add less.
        StakeTooLarge,
        /// The endpoint was already set in this window. Wait for the next one.
        EndpointJustSet,
        /// The list of changes for the next opening is full. Wait for it.
        TooManyChanges,
        /// The seat already has a change waiting. Wait for the next opening.
        ChangeWaiting,
        /// The seat has the maximum number of unbonding chunks. Withdraw the unbonded ones, or wait.
        TooManyUnbonding,
        /// None of the signer's stake has unbonded yet. Wait for the window in which it does.
        NothingToWithdraw,
        /// No terms are waiting. Nothing needs to be cancelled.
        NoTermsWaiting,
        /// The run was not offered to the signer. Request an offer from its owner.
        NotOffered,
        /// The run's windows have fewer blocks than this chain allows. Raise `blocks_per_window`.
        WindowTooShort,
        /// A minimum stake or the seat price is below this chain's floor. Raise it.
        BelowFloor,
        /// The run is not stopped. Stop it first.
        NotStopped,
        /// The run was not stopped for its unbonding time and two epochs, or stake of former terms still unbonds.
        /// Wait.
        StoppedTooBriefly,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            assert!(T::MaxSeats::get() <= u32::from(u16::MAX) + 1, "a uid has 16 bits");
            assert!(T::MaxCheckpointWindows::get() > 0, "a run must have checkpoints");
            assert!(T::MaxChanges::get() > 1, "a hotkey can be rotated");
            assert!(T::MaxUnbonding::get() > 1, "a chunk is left for a seat's end");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Creates a run owned by the signer, and holds its deposit. Runs are numbered from 0. Specification, dataset
        /// and `θ_0` are published at the base URL `published_at`.
        #[pallet::call_index(0)]
        #[pallet::weight(weight_info::create_run::<T>())]
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
            rules::check_schedule::<T>(&params.schedule, &FloorsOf::<T>::get())?;
            Self::check_terms(&terms, &params.limits)?;
            ensure!(params.schedule.start > Self::now(), Error::<T>::StartPassed);
            ensure!(
                params.checkpoint_windows <= T::MaxCheckpointWindows::get(),
                Error::<T>::CheckpointsTooRare
            );
            ensure!(rules::is_base_url(&published_at), Error::<T>::BadUrl);
            let count = RunCount::<T>::get();
            let live = LiveRuns::<T>::get();
            ensure!(live < T::MaxRuns::get() && count < u32::MAX, Error::<T>::TooManyRuns);
            let deposit = Self::deposit_of(&params, &terms);
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
            LiveRuns::<T>::put(live.saturating_add(1));
            Self::deposit_event(Event::RunCreated { run, owner, start: params.schedule.start });
            Ok(())
        }

        /// Takes a seat of `run` for `hotkey`. The signer is its coldkey: the price, at most `price_max`, is burnt,
        /// and `stake` is held. `proof` is the hotkey's signature over run and coldkey, so that no other account can
        /// use up a hotkey.
        ///
        /// The lowest free uid is assigned at once. If the role has none, the newcomer replaces a seat at the next
        /// opening: one that is given up, or else the lowest paid one that is past its immunity. Miners without a
        /// consensus weight are replaced before those with one. A validator is replaced only by a stake that exceeds
        /// the stake behind it by a tenth. At most a sixteenth of the role's seats are replaced per window.
        #[pallet::call_index(1)]
        #[pallet::weight(permits::replace_weight::<T>(*role, T::MaxSeats::get()).max(weight_info::register::<T>()))]
        pub fn register(
            origin: OriginFor<T>,
            run: RunId,
            role: Role,
            hotkey: T::AccountId,
            endpoint: Url,
            stake: Balance,
            price_max: Balance,
            proof: Signature,
        ) -> DispatchResultWithPostInfo {
            let coldkey = ensure_signed(origin)?;
            let details = Runs::<T>::get(run).ok_or(Error::<T>::UnknownRun)?;
            let terms = &details.terms;
            ensure!(stake >= terms.stake_min(role), Error::<T>::StakeTooLow);
            ensure!(rules::is_endpoint(&endpoint), Error::<T>::BadUrl);
            let mut changes = Changes::<T>::get(run);
            ensure!(!Self::is_used(run, &hotkey, &changes), Error::<T>::HotkeyInUse);
            ensure!(Self::is_proven(&hotkey, run, &coldkey, &proof), Error::<T>::HotkeyNotProven);
            let mut roster = Rosters::<T>::get(run);
            let opens = Self::opens_next(&details);
            let place = Self::place(run, role, stake, terms, opens, &roster, &changes)?;
            let now = Self::window_now(&details).unwrap_or_default();
            let price = Self::price_in(run, role, &details, now);
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
                    Self::take_seat(run, uid, seat, &mut roster)?;
                    Rosters::<T>::insert(run, roster);
                    weight_info::register::<T>()
                }
                Place::Replacing(uid) => {
                    Self::queue(&mut changes, uid, Change::Replaced(seat))?;
                    Self::put_changes(run, changes);
                    Self::deposit_event(Event::ReplacementScheduled { run, uid, hotkey, coldkey, stake });
                    permits::replace_weight::<T>(role, roster.len() as u32)
                }
            };
            Ok(Some(weight).into())
        }

        /// Sets the endpoint of the signer's seat. Signed by the hotkey; free of charge, once per window.
        #[pallet::call_index(2)]
        #[pallet::weight(weight_info::set_endpoint::<T>())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, endpoint: &Url| -> bool {
            Pallet::<T>::may_set_endpoint(origin.clone(), *run, endpoint).is_ok()
        })]
        pub fn set_endpoint(origin: OriginFor<T>, run: RunId, endpoint: Url) -> DispatchResult {
            let (uid, mut seat) = Self::may_set_endpoint(origin, run, &endpoint)?;

            seat.endpoint = endpoint.clone();
            seat.endpoint_set_at = Some(Self::now());
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::EndpointSet { run, uid, endpoint });
            Ok(())
        }

        /// Adds `amount` to a seat's stake, held from the signer, its coldkey.
        #[pallet::call_index(3)]
        #[pallet::weight(weight_info::add_stake::<T>())]
        pub fn add_stake(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let (_, mut seat) = Self::seat_of_coldkey(origin, run, uid)?;
            ensure!(amount > 0, Error::<T>::NothingToAdd);
            seat.stake = seat.stake.checked_add(amount).ok_or(Error::<T>::StakeTooLarge)?;
            T::Currency::hold(&HoldReason::Stake.into(), &seat.coldkey, amount)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            let stake = seat.stake;
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::StakeAdded { run, uid, amount, stake });
            Ok(())
        }

        /// Removes `amount` from a seat's stake, down to the role's minimum. Signed by the coldkey. The amount stays
        /// held and can be slashed until it has unbonded.
        #[pallet::call_index(4)]
        #[pallet::weight(weight_info::unstake::<T>())]
        pub fn unstake(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let (details, mut seat) = Self::seat_of_coldkey(origin, run, uid)?;
            let terms = &details.terms;
            ensure!(amount > 0, Error::<T>::NothingToTake);
            let left = seat.stake.checked_sub(amount).ok_or(Error::<T>::StakeTooLow)?;
            ensure!(left >= terms.stake_min(seat.role), Error::<T>::StakeTooLow);
            let until = Window(Self::opens_next(&details).0.saturating_add(terms.unbonding_windows));
            let reserved = 1;
            ensure!(
                Self::unbond(run, &seat.coldkey, seat.id(uid), amount, until, reserved),
                Error::<T>::TooManyUnbonding
            );

            seat.stake = left;
            SeatsOf::<T>::insert(run, uid, seat);
            Self::deposit_event(Event::Unstaked { run, uid, amount, stake: left, until });
            Ok(())
        }

        /// Gives up a seat at the next opening. Signed by the coldkey. All its stake unbonds.
        #[pallet::call_index(5)]
        #[pallet::weight((weight_info::leave::<T>(), DispatchClass::Operational))]
        pub fn leave(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            Self::seat_of_coldkey(origin, run, uid)?;
            let mut changes = Changes::<T>::get(run);
            let waiting = changes.iter().find(|(seat, _)| *seat == uid).map(|(_, change)| change);
            ensure!(matches!(waiting, None | Some(Change::Rotates(_))), Error::<T>::ChangeWaiting);
            // Works even if the list is full: a holder can always leave before worse terms apply.
            Self::put_change(&mut changes, uid, Change::Leaves)?;

            Self::put_changes(run, changes);
            Self::deposit_event(Event::Leaving { run, uid });
            Ok(())
        }

        /// Releases the unbonded stake of the signer's present and former seats in `run`. One call covers at most
        /// `MaxChanges` seats; for more, call again.
        #[pallet::call_index(6)]
        #[pallet::weight(weight_info::withdraw::<T>(T::MaxChanges::get()))]
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
            Ok(Some(weight_info::withdraw::<T>(looked_at)).into())
        }

        /// Gives a seat a new hotkey at the next opening. Signed by the coldkey. The hotkey must be unused in this
        /// run; the old one cannot be used again. `proof` is the new hotkey's, as in `register`.
        #[pallet::call_index(7)]
        #[pallet::weight(weight_info::rotate_hotkey::<T>())]
        pub fn rotate_hotkey(
            origin: OriginFor<T>,
            run: RunId,
            uid: Uid,
            hotkey: T::AccountId,
            proof: Signature,
        ) -> DispatchResult {
            let (_, seat) = Self::seat_of_coldkey(origin, run, uid)?;
            let mut changes = Changes::<T>::get(run);
            ensure!(changes.iter().all(|(seat, _)| *seat != uid), Error::<T>::ChangeWaiting);
            ensure!(!Self::is_used(run, &hotkey, &changes), Error::<T>::HotkeyInUse);
            let rotating = changes.iter().filter(|(_, change)| matches!(change, Change::Rotates(_))).count();
            ensure!(rotating < T::MaxChanges::get() as usize / 2, Error::<T>::TooManyChanges);
            ensure!(Self::is_proven(&hotkey, run, &seat.coldkey, &proof), Error::<T>::HotkeyNotProven);
            Self::queue(&mut changes, uid, Change::Rotates(hotkey.clone()))?;

            frame_system::Pallet::<T>::inc_sufficients(&hotkey);
            Self::put_changes(run, changes);
            Self::deposit_event(Event::RotationScheduled { run, uid, hotkey });
            Ok(())
        }

        /// Sets the terms of the next epoch, or, if they worsen the present ones, of the first epoch after a notice;
        /// see [`RunParams::terms_hold_from`]. Signed by the owner. The owner may replace waiting terms; the
        /// replacement has its own notice. The deposit for more seats is held at once, and stays held if the terms do
        /// not take effect.
        #[pallet::call_index(8)]
        #[pallet::weight(weight_info::set_terms::<T>())]
        pub fn set_terms(origin: OriginFor<T>, run: RunId, terms: Terms) -> DispatchResult {
            let details = Self::run_of_owner(origin, run)?;
            Self::check_terms(&terms, &details.params.limits)?;
            let from = details.params.terms_hold_from(Self::window_now(&details), &details.terms, &terms);
            Self::raise_deposit(run, details, &terms)?;

            PendingChanges::<T>::mutate(run, |waiting| waiting.terms = Some(PendingTerms { terms, from }));
            Self::deposit_event(Event::TermsProposed { run, terms, from });
            Ok(())
        }

        /// Cancels the waiting terms. Signed by the owner.
        #[pallet::call_index(9)]
        #[pallet::weight(weight_info::cancel_terms::<T>())]
        pub fn cancel_terms(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            Self::run_of_owner(origin, run)?;
            let mut waiting = PendingChanges::<T>::get(run);
            ensure!(waiting.terms.take().is_some(), Error::<T>::NoTermsWaiting);

            Self::put_waiting(run, waiting);
            Self::deposit_event(Event::TermsCancelled { run });
            Ok(())
        }

        /// Stops or restarts a run at the next opening (PROT-3). Signed by the owner.
        #[pallet::call_index(10)]
        #[pallet::weight((weight_info::set_stopped::<T>(), DispatchClass::Operational))]
        pub fn set_stopped(origin: OriginFor<T>, run: RunId, stopped: bool) -> DispatchResult {
            let details = Self::run_of_owner(origin, run)?;

            let mut waiting = PendingChanges::<T>::get(run);
            waiting.stopped = (stopped != details.stopped).then_some(stopped);
            Self::put_waiting(run, waiting);
            Self::deposit_event(Event::StopRequested { run, stopped });
            Ok(())
        }

        /// Offers a run to another account; replaces an earlier offer. Signed by the owner.
        #[pallet::call_index(11)]
        #[pallet::weight(weight_info::offer_run::<T>())]
        pub fn offer_run(origin: OriginFor<T>, run: RunId, to: T::AccountId) -> DispatchResult {
            Self::run_of_owner(origin, run)?;

            Offers::<T>::insert(run, &to);
            Self::deposit_event(Event::RunOffered { run, to });
            Ok(())
        }

        /// Makes the signer the owner of a run that was offered to it. The deposit is released from the old owner and
        /// held from the new one.
        #[pallet::call_index(12)]
        #[pallet::weight(weight_info::accept_run::<T>())]
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

        /// Closes a run permanently. The run must have been stopped for its unbonding time, or not have started.
        /// Signed by the owner. In the following blocks, stakes, nominations and claimable pay return to their
        /// accounts, the rest of the treasury is burnt, and the deposit is released.
        #[pallet::call_index(20)]
        #[pallet::weight(weight_info::close_run::<T>())]
        pub fn close_run(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let details = Self::run_of_owner(origin, run)?;
            let window = Self::window_now(&details);
            if let Some(now) = window {
                ensure!(details.stopped, Error::<T>::NotStopped);
                let since = StoppedSince::<T>::get(run).ok_or(Error::<T>::NotStopped)?;
                let stopped_for = now.0.saturating_sub(since.0);
                // The last epoch with work is paid within the next one.
                let epochs = details.params.epoch_windows.saturating_mul(2);
                let wait = details.terms.unbonding_windows.max(epochs);
                let has_unbonded = UnbondsBy::<T>::get(run) <= now;
                ensure!(wait <= stopped_for && has_unbonded, Error::<T>::StoppedTooBriefly);
            }

            Runs::<T>::remove(run);
            ClosedRuns::<T>::insert(run, ClosedRun { details, window: window.unwrap_or_default() });
            T::OnRunClosed::closed(run);
            Self::deposit_event(Event::RunClosed { run });
            Ok(())
        }
    }
}
