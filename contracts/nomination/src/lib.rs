//! Nominations: stake that other accounts put behind validators, their pay and their slashes (PROT-29, PROT-32).
//!
//! Any account may nominate a validator. The amount counts as the validator's stake up to a multiple of the
//! validator's own (`NOMINATIONS_PER_STAKE`), earns a part of its pay, and is slashed with it. An excess over the
//! multiple dilutes the nominators' pay. The nominations of one holder of a seat form a pool, in which nominators hold
//! shares: slashes and payments change only the pool, and nothing iterates over nominators.
//!
//! One account of the pallet holds all money, and the ledger accounts for it. At every block, to the last unit,
//!
//! `balance = nominated + unclaimed + dust + the existential deposit`,
//!
//! plus transfers from other accounts. The first nominator pays the existential deposit, so that the account is never
//! removed while it holds money.
//!
//! Nominations unbond as slowly as a validator's own stake (`unbonding_windows`) and can be slashed meanwhile, so that
//! nominators cannot leave between an offence and its proof. A commission rises only after the same time, so that
//! nominators can leave first. When a seat changes hands, its pool is closed. The pool unbonds and is slashed together
//! with the former holder's stake; the new holder starts without nominations.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::deps::sp_core::U256;
use pallet_registry::Balance;
use protocol::{Window, params::Permille};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod closing;
mod invariants;
mod ledger;
mod pool;
mod reads;
mod seats;
#[cfg(test)]
mod tests;
pub mod weight_info;

pub use pallet::*;
pub use pool::{Pool, Stage};

/// Number of a pool, in the order of creation over all runs.
pub type PoolId = u64;

/// The nomination of one account for one seat. `L` is a bounded list of [`Leaving`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Nomination<L> {
    /// Pool of the seat's present holder, or of a former one.
    pub pool: PoolId,
    /// Shares that earn pay.
    pub shares: u128,
    /// Value of the pool's pay per share at the last credit of `claimable`.
    pub mark: U256,
    /// Credited and unclaimed pay.
    pub claimable: Balance,
    /// Unbonding shares, the earliest first.
    pub leaving: L,
}

/// Unbonding shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Leaving {
    pub shares: u128,
    /// First window in which they can be withdrawn.
    pub until: Window,
}

/// The validator's part of its nominators' pay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Commission {
    pub share: Permille,
    /// A higher commission, and the window from which it applies.
    pub raise: Option<(Permille, Window)>,
}

impl Default for Commission {
    fn default() -> Commission {
        Commission { share: Permille(0), raise: None }
    }
}

impl Commission {
    fn at(&self, window: Window) -> Permille {
        match self.raise {
            Some((share, from)) if window >= from => share,
            _ => self.share,
        }
    }
}

/// Balances in the pallet's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Ledger {
    /// Value of all pools.
    pub nominated: Balance,
    /// Unclaimed pay of all pools.
    pub unclaimed: Balance,
    /// Rounding remainders of removed pools, which belong to no account.
    pub dust: Balance,
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use frame::prelude::{
        fungible::{Inspect, Mutate},
        *,
    };
    use pallet_registry::Pallet as Registry;
    use protocol::{Role, RunId, SeatId, Uid};

    /// The first layout of this pallet is version 1; a chain without the pallet reports 0.
    const STORAGE_VERSION: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config + pallet_registry::Config {
        /// Maximum number of nominators per seat.
        #[pallet::constant]
        type MaxNominators: Get<u32>;

        /// Maximum number of unbonding amounts per nominator and pool.
        #[pallet::constant]
        type MaxUnbonding: Get<u32>;

        /// Minimum nomination per account and seat.
        #[pallet::constant]
        type MinNomination: Get<Balance>;

        /// Source of the pallet's account id.
        #[pallet::constant]
        type PalletId: Get<PalletId>;
    }

    pub type NominationOf<T> = Nomination<BoundedVec<Leaving, <T as Config>::MaxUnbonding>>;

    /// Number of pools created, which is the next pool's number.
    #[pallet::storage]
    pub type PoolCount<T: Config> = StorageValue<_, PoolId, ValueQuery>;

    /// Pools that have nominators.
    #[pallet::storage]
    pub type Pools<T: Config> = StorageMap<_, Twox64Concat, PoolId, Pool>;

    /// Pool that counts for a seat.
    #[pallet::storage]
    pub type PoolOf<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, PoolId>;

    /// Pools of former seats while they unbond.
    #[pallet::storage]
    pub type FormerPools<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, SeatId, PoolId>;

    #[pallet::storage]
    pub type Nominations<T: Config> = StorageNMap<
        _,
        (NMapKey<Twox64Concat, RunId>, NMapKey<Blake2_128Concat, T::AccountId>, NMapKey<Twox64Concat, Uid>),
        NominationOf<T>,
    >;

    #[pallet::storage]
    pub type Commissions<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Commission, ValueQuery>;

    /// Balances of the pallet's account; `None` until the first nomination, which pays the existential deposit.
    #[pallet::storage]
    pub type PoolLedger<T: Config> = StorageValue<_, Ledger>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// An account nominated a validator.
        Nominated { run: RunId, uid: Uid, who: T::AccountId, amount: Balance },
        /// An amount is unbonding, and can be withdrawn from window `until`.
        Unnominated { run: RunId, uid: Uid, who: T::AccountId, amount: Balance, until: Window },
        /// A nominator withdrew `amount`.
        Withdrawn { run: RunId, uid: Uid, who: T::AccountId, amount: Balance },
        /// A nominator claimed its pay.
        Claimed { run: RunId, uid: Uid, who: T::AccountId, amount: Balance },
        /// A validator has a new commission, from window `from`.
        CommissionSet { run: RunId, uid: Uid, commission: Permille, from: Window },
        /// A seat's nominators earned `amount`.
        Shared { run: RunId, uid: Uid, amount: Balance },
        /// A seat's nominators lost `amount`, which was burnt.
        Slashed { run: RunId, uid: Uid, amount: Balance },
        /// A pool no longer counts for its seat, and can be withdrawn from window `until`.
        PoolClosed { run: RunId, uid: Uid, value: Balance, until: Window },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// The run does not exist. List the runs and pick one of them.
        UnknownRun,
        /// The seat does not exist. List the run's seats.
        UnknownSeat,
        /// The seat is not a validator's, so it has neither nominations nor a commission. Choose a validator's seat.
        NotAValidator,
        /// The seat has the maximum number of nominators. Nominate another validator.
        TooManyNominators,
        /// The nomination would be below the minimum. Nominate more.
        TooLittle,
        /// The sum would overflow. Nominate less.
        TooMuch,
        /// The account cannot pay this and keep the existential deposit. Transfer to it first, or nominate less.
        NotEnoughFunds,
        /// The account still has a nomination for a former holder of this seat. Withdraw and claim it once it has
        /// unbonded, or use another account.
        WithdrawFirst,
        /// The account has no nomination for this seat. List the account's nominations.
        NotANominator,
        /// The seat's holder has left, and all its nominations are unbonding. Withdraw when they have unbonded.
        PoolClosed,
        /// The amount is zero. Remove a positive amount.
        NothingToTakeOut,
        /// The amount is larger than the account's nomination. Remove less.
        NotSoMuch,
        /// The rest of the nomination would be below the minimum. Remove less, or everything.
        TooLittleLeft,
        /// The nominator has the maximum number of unbonding amounts. Withdraw the unbonded ones, or wait.
        TooManyUnbonding,
        /// Nothing has unbonded yet. Remove an amount first, and wait for its window.
        NothingToWithdraw,
        /// There is no pay to claim. Wait until an epoch is paid.
        NothingToClaim,
        /// The account would stay below the existential deposit. Transfer to it first.
        CannotPay,
        /// The signer is not the seat's coldkey. Sign with the key that registered the seat.
        NotTheColdkey,
        /// The commission is above 1000 thousandths. Lower it.
        BadCommission,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            assert!(<T as Config>::MaxUnbonding::get() > 0, "a nominator can leave");
            assert!(T::MinNomination::get() > 0, "a nomination is above zero");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Nominates a validator with `amount`. From the next opening, it counts as the validator's stake, up to the
        /// multiple of the validator's own stake. It earns a part of the validator's pay, and is slashed with it.
        #[pallet::call_index(0)]
        #[pallet::weight(weight_info::nominate::<T>())]
        pub fn nominate(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let who = ensure_signed(origin)?;
            ensure!(Registry::<T>::run(run).is_some(), Error::<T>::UnknownRun);
            let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(seat.role == Role::Validator, Error::<T>::NotAValidator);
            let current = Self::current(run, uid);
            let (id, mut pool) =
                current.clone().unwrap_or_else(|| (PoolCount::<T>::get(), Pool::new(run, seat.id(uid))));
            let mut nomination = match Nominations::<T>::get((run, &who, uid)) {
                Some(nomination) => {
                    ensure!(nomination.pool == id, Error::<T>::WithdrawFirst);
                    nomination
                }
                None => {
                    ensure!(pool.nominators < T::MaxNominators::get(), Error::<T>::TooManyNominators);
                    pool.nominators = pool.nominators.saturating_add(1);
                    let mark = pool.pay_per_share;
                    Nomination { pool: id, shares: 0, mark, claimable: 0, leaving: BoundedVec::new() }
                }
            };
            Self::credit(&pool, &mut nomination);
            let whole = pool.worth(nomination.shares).checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            ensure!(whole >= T::MinNomination::get(), Error::<T>::TooLittle);
            let shares = pool.join(amount).ok_or(Error::<T>::TooMuch)?;
            ensure!(shares > 0, Error::<T>::TooLittle);
            nomination.shares = nomination.shares.checked_add(shares).ok_or(Error::<T>::TooMuch)?;
            let (mut ledger, deposit) = match PoolLedger::<T>::get() {
                Some(ledger) => (ledger, 0),
                None => (Ledger::default(), T::Currency::minimum_balance()),
            };
            ledger.nominated = ledger.nominated.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            let transferred = amount.checked_add(deposit).ok_or(Error::<T>::TooMuch)?;
            T::Currency::transfer(&who, &Self::account(), transferred, Preservation::Preserve)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            if current.is_none() {
                PoolCount::<T>::put(id.saturating_add(1));
                PoolOf::<T>::insert(run, uid, id);
            }
            Pools::<T>::insert(id, pool);
            Nominations::<T>::insert((run, &who, uid), nomination);
            PoolLedger::<T>::put(ledger);
            Self::deposit_event(Event::Nominated { run, uid, who, amount });
            Ok(())
        }

        /// Starts to unbond `amount` of a nomination. While it unbonds, it can be slashed and earns nothing.
        #[pallet::call_index(1)]
        #[pallet::weight(weight_info::unnominate::<T>())]
        pub fn unnominate(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let who = ensure_signed(origin)?;
            let details = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?;
            let (mut nomination, mut pool) = Self::nomination(run, &who, uid)?;
            ensure!(pool.stage == Stage::Open, Error::<T>::PoolClosed);
            let worth = pool.worth(nomination.shares);
            let left = worth.checked_sub(amount).ok_or(Error::<T>::NotSoMuch)?;
            let shares = pool.shares_for(amount, nomination.shares);
            ensure!(shares > 0, Error::<T>::NothingToTakeOut);
            ensure!(left == 0 || left >= T::MinNomination::get(), Error::<T>::TooLittleLeft);
            let until = Self::unbonded(&details);
            Self::credit(&pool, &mut nomination);
            match nomination.leaving.iter_mut().find(|leaving| leaving.until == until) {
                Some(leaving) => leaving.shares = leaving.shares.saturating_add(shares),
                None => nomination
                    .leaving
                    .try_push(Leaving { shares, until })
                    .map_err(|_| Error::<T>::TooManyUnbonding)?,
            }
            nomination.shares = nomination.shares.saturating_sub(shares);
            pool.leaving = pool.leaving.saturating_add(shares);

            Pools::<T>::insert(nomination.pool, pool);
            Nominations::<T>::insert((run, &who, uid), nomination);
            Self::deposit_event(Event::Unnominated { run, uid, who, amount, until });
            Ok(())
        }

        /// Pays out the signer's unbonded shares at their present value; all shares, if the seat's holder has left
        /// and they have unbonded.
        #[pallet::call_index(2)]
        #[pallet::weight(weight_info::withdraw::<T>())]
        pub fn withdraw(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let who = ensure_signed(origin)?;
            let details = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?;
            let (mut nomination, mut pool) = Self::nomination(run, &who, uid)?;
            Self::credit(&pool, &mut nomination);
            let now = Self::now(&details);
            let all = pool.is_free(now);
            let mut free: u128 = 0;
            nomination.leaving.retain(|leaving| {
                let stays = !all && leaving.until > now;
                if !stays {
                    free = free.saturating_add(leaving.shares);
                }
                stays
            });
            let active = if all { core::mem::take(&mut nomination.shares) } else { 0 };
            ensure!(free > 0 || active > 0, Error::<T>::NothingToWithdraw);
            let amount = pool.release(active, free);
            let mut ledger = PoolLedger::<T>::get().unwrap_or_default();
            ledger.nominated = ledger.nominated.saturating_sub(amount);
            Self::pay_out(&who, amount)?;

            Self::put(run, &who, uid, nomination, pool, ledger);
            Self::deposit_event(Event::Withdrawn { run, uid, who, amount });
            Ok(())
        }

        /// Pays out the signer's pay as a nominator of a seat, or of its former holder.
        #[pallet::call_index(3)]
        #[pallet::weight(weight_info::claim::<T>())]
        pub fn claim(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let who = ensure_signed(origin)?;
            ensure!(Registry::<T>::run(run).is_some(), Error::<T>::UnknownRun);
            let (mut nomination, mut pool) = Self::nomination(run, &who, uid)?;
            Self::credit(&pool, &mut nomination);
            let amount = core::mem::take(&mut nomination.claimable);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            pool.unclaimed = pool.unclaimed.saturating_sub(amount);
            let mut ledger = PoolLedger::<T>::get().unwrap_or_default();
            ledger.unclaimed = ledger.unclaimed.saturating_sub(amount);
            Self::pay_out(&who, amount)?;

            Self::put(run, &who, uid, nomination, pool, ledger);
            Self::deposit_event(Event::Claimed { run, uid, who, amount });
            Ok(())
        }

        /// Sets the commission: the seat's part of its nominators' pay. Signed by the seat's coldkey. A lower
        /// commission applies at once, a higher one after a notice in which every nominator can leave.
        #[pallet::call_index(4)]
        #[pallet::weight(weight_info::set_commission::<T>())]
        pub fn set_commission(
            origin: OriginFor<T>,
            run: RunId,
            uid: Uid,
            commission: Permille,
        ) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            let details = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?;
            let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(seat.role == Role::Validator, Error::<T>::NotAValidator);
            ensure!(seat.coldkey == coldkey, Error::<T>::NotTheColdkey);
            ensure!(commission.0 <= 1000, Error::<T>::BadCommission);
            let now = Self::now(&details);
            let held = Commissions::<T>::get(run, uid).at(now);
            let (new, from) = if commission <= held {
                (Commission { share: commission, raise: None }, now)
            } else {
                let from = Self::unbonded(&details);
                (Commission { share: held, raise: Some((commission, from)) }, from)
            };

            Commissions::<T>::insert(run, uid, new);
            Self::deposit_event(Event::CommissionSet { run, uid, commission, from });
            Ok(())
        }
    }
}
