//! What other accounts put behind validators, what they earn by it, and what they lose with it (PROT-29, PROT-32).
//!
//! Everybody may nominate a validator: the amount counts as the validator's stake, earns a part of its pay, and is slashed
//! with it. What is behind one holder of a seat is a pool; a nominator holds shares of it, so that slashes and payments
//! touch the pool alone, however many nominators there are. Nothing here walks through nominators.
//!
//! All money lies in one account of this pallet's own, and the ledger says what it is: at every block
//!
//! `balance = nominated + unclaimed + dust + the existential deposit`, to the last unit,
//!
//! unless somebody gave the account more. The first nominator ever pays the deposit, so that the account cannot die with
//! somebody's last units in it.
//!
//! Taking out takes as long as for the validator's own stake (`unbonding_windows`), and what is on its way out is slashed
//! like the rest: nobody leaves between a misdeed and its proof. A commission may rise only after the same time, so that
//! whoever nominates knows the terms until it can be out again. When the seat changes hands the pool is closed: the new
//! holder begins with nothing behind it, and what was behind the old one unbonds as the old one's own stake does. Until it is
//! free it answers for what that holder did.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::deps::sp_core::U256;
use pallet_registry::Balance;
use protocol::{Window, params::Permille};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod pool;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use pool::{Pool, Stage};
pub use weights::WeightInfo;

/// Pools are numbered in the order in which they began, over all runs.
pub type PoolId = u64;

/// What an account has behind a seat. `L` is a bounded list of [`Leaving`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Nomination<L> {
    /// The seat's pool, or the pool of a former holder of the seat.
    pub pool: PoolId,
    /// Those that earn.
    pub shares: u128,
    /// The pool's pay for a share up to which `claimable` is counted.
    pub mark: U256,
    /// Pay earned up to there and not claimed.
    pub claimable: Balance,
    /// What is on its way out, the earliest first.
    pub leaving: L,
}

/// Shares on their way out.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Leaving {
    pub shares: u128,
    /// The first window in which they can be withdrawn.
    pub until: Window,
}

/// What a validator keeps of its nominators' pay.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Commission {
    pub share: Permille,
    /// A higher one, and the window from which it holds.
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

/// What this pallet's account holds, and why.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Ledger {
    /// The value of all pools.
    pub nominated: Balance,
    /// Pay of all pools that was not claimed yet.
    pub unclaimed: Balance,
    /// What roundings left in pools that are gone. Nobody's.
    pub dust: Balance,
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::pool::{nominators_part, thousandths};
    use alloc::{collections::BTreeMap, vec::Vec};
    use frame::prelude::{
        fungible::{Inspect, Mutate},
        *,
    };
    use pallet_registry::{Ending, OnSeats, Run, Seat, Seats};
    use protocol::{
        Block, Role, RunId, SeatId, Uid,
        view::{NominationView, UnbondingView},
    };

    /// The first layout; a chain from before there was this pallet says 0, and has nothing of it.
    const STORAGE_VERSION: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config {
        type Currency: Inspect<Self::AccountId, Balance = Balance> + Mutate<Self::AccountId>;

        type Registry: Seats<Self::AccountId>;

        type WeightInfo: WeightInfo;

        /// Nominators of one seat, at most.
        #[pallet::constant]
        type MaxNominators: Get<u32>;

        /// Amounts that a nominator can have on their way out of one pool, at most.
        #[pallet::constant]
        type MaxUnbonding: Get<u32>;

        /// The least that an account has behind a seat.
        #[pallet::constant]
        type MinNomination: Get<Balance>;

        /// What this pallet's account derives from.
        #[pallet::constant]
        type PalletId: Get<PalletId>;
    }

    pub type NominationOf<T> = Nomination<BoundedVec<Leaving, <T as Config>::MaxUnbonding>>;

    /// Pools begun so far, which is also the next pool's number.
    #[pallet::storage]
    pub type PoolCount<T: Config> = StorageValue<_, PoolId, ValueQuery>;

    /// Every pool that somebody has something in.
    #[pallet::storage]
    pub type Pools<T: Config> = StorageMap<_, Twox64Concat, PoolId, Pool>;

    /// The pool that counts for a seat now.
    #[pallet::storage]
    pub type PoolOf<T: Config> = StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, PoolId>;

    /// The pools of seats that are gone, for as long as somebody has something in them.
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

    /// `None` until the first nomination, which pays the account's existential deposit.
    #[pallet::storage]
    pub type Holdings<T: Config> = StorageValue<_, Ledger>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// An account put `amount` behind a validator.
        Nominated { run: RunId, uid: Uid, who: T::AccountId, amount: Balance },
        /// So much is on its way out, and can be withdrawn from `until` on.
        Unnominated { run: RunId, uid: Uid, who: T::AccountId, amount: Balance, until: Window },
        /// A nominator has `amount` back.
        Withdrawn { run: RunId, uid: Uid, who: T::AccountId, amount: Balance },
        /// A nominator's pay went to its account.
        Claimed { run: RunId, uid: Uid, who: T::AccountId, amount: Balance },
        /// A validator keeps so much of its nominators' pay, from window `from` on.
        CommissionSet { run: RunId, uid: Uid, commission: Permille, from: Window },
        /// A seat's nominators earned `amount`.
        Shared { run: RunId, uid: Uid, amount: Balance },
        /// A seat's nominators lost `amount`; of that, `rewarded` went to whoever reported, and the rest is burnt.
        Slashed { run: RunId, uid: Uid, amount: Balance, rewarded: Balance },
        /// What is behind a seat does not count any more, and can be withdrawn from `until` on.
        PoolClosed { run: RunId, uid: Uid, value: Balance, until: Window },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// There is no run with this id. List the runs and pick one of them.
        UnknownRun,
        /// There is no seat with this uid. List the run's seats.
        UnknownSeat,
        /// Only validators can be nominated, and have a commission. Pick a validator's seat.
        NotAValidator,
        /// The seat has as many nominators as it can. Nominate another validator.
        TooManyNominators,
        /// The account would have less than the minimum behind the seat. Nominate more.
        TooLittle,
        /// The sum would exceed what a number can hold.
        TooMuch,
        /// The account cannot pay this and stay alive. Transfer to it first, or nominate less.
        NotEnoughFunds,
        /// What the account has here was behind a former holder of the seat. Withdraw and claim it first, once it is free, or
        /// nominate from another account.
        WithdrawFirst,
        /// The account has nothing behind this seat. List its nominations.
        NotANominator,
        /// The seat's holder is gone, and everything that was behind it is on its way out. Withdraw it once it is free.
        PoolClosed,
        /// The amount is zero. Take out something.
        NothingToTakeOut,
        /// The account has less than that behind the seat. Take out what it has, or less.
        NotSoMuch,
        /// What would stay behind the seat is below the minimum. Take out less, or everything.
        TooLittleLeft,
        /// As many amounts are on their way out as there can be. Withdraw those that are free, or wait.
        TooManyUnbonding,
        /// Nothing is free yet. Take it out first, and wait for the window named then.
        NothingToWithdraw,
        /// There is nothing to claim. Nominators are paid as an epoch is.
        NothingToClaim,
        /// The amount cannot reach the account, which is below the existential deposit. Transfer to it first.
        CannotPay,
        /// Only the seat's coldkey sets its commission. Sign with the key that registered the seat.
        NotTheColdkey,
        /// A commission is at most 1000 thousandths.
        BadCommission,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            assert!(T::MaxUnbonding::get() > 0, "somebody must be able to leave");
            assert!(T::MinNomination::get() > 0, "a nomination is of something");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Puts `amount` of the signer's behind a validator. It counts as the validator's stake from the next window that
        /// opens, earns a part of its pay, and is slashed with it.
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::nominate())]
        pub fn nominate(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let who = ensure_signed(origin)?;
            ensure!(T::Registry::run(run).is_some(), Error::<T>::UnknownRun);
            let seat = T::Registry::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
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
            Self::settle(&pool, &mut nomination);
            let whole = pool.worth(nomination.shares).checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            ensure!(whole >= T::MinNomination::get(), Error::<T>::TooLittle);
            let shares = pool.join(amount).ok_or(Error::<T>::TooMuch)?;
            ensure!(shares > 0, Error::<T>::TooLittle);
            nomination.shares = nomination.shares.checked_add(shares).ok_or(Error::<T>::TooMuch)?;
            let (mut ledger, deposit) = match Holdings::<T>::get() {
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
            Holdings::<T>::put(ledger);
            Self::deposit_event(Event::Nominated { run, uid, who, amount });
            Ok(())
        }

        /// Begins to take `amount` out from behind a validator. Until it can be withdrawn it is slashed with the
        /// validator, but earns nothing.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::unnominate())]
        pub fn unnominate(origin: OriginFor<T>, run: RunId, uid: Uid, amount: Balance) -> DispatchResult {
            let who = ensure_signed(origin)?;
            let details = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?;
            let (mut nomination, mut pool) = Self::nomination(run, &who, uid)?;
            ensure!(pool.stage == Stage::Open, Error::<T>::PoolClosed);
            let worth = pool.worth(nomination.shares);
            let left = worth.checked_sub(amount).ok_or(Error::<T>::NotSoMuch)?;
            let shares = pool.shares_for(amount, nomination.shares);
            ensure!(shares > 0, Error::<T>::NothingToTakeOut);
            ensure!(left == 0 || left >= T::MinNomination::get(), Error::<T>::TooLittleLeft);
            let until = Self::unbonded(&details);
            Self::settle(&pool, &mut nomination);
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

        /// Pays to the signer what it took out and is free by now, at what that is worth now; if the seat's holder is gone,
        /// everything, once it has unbonded.
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::withdraw())]
        pub fn withdraw(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let who = ensure_signed(origin)?;
            let details = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?;
            let (mut nomination, mut pool) = Self::nomination(run, &who, uid)?;
            Self::settle(&pool, &mut nomination);
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
            let mut ledger = Holdings::<T>::get().unwrap_or_default();
            ledger.nominated = ledger.nominated.saturating_sub(amount);
            Self::pay_out(&who, amount)?;

            Self::keep(run, &who, uid, nomination, pool, ledger);
            Self::deposit_event(Event::Withdrawn { run, uid, who, amount });
            Ok(())
        }

        /// Pays to the signer what it earned behind a seat, or behind its former holder.
        #[pallet::call_index(3)]
        #[pallet::weight(T::WeightInfo::claim())]
        pub fn claim(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let who = ensure_signed(origin)?;
            ensure!(T::Registry::run(run).is_some(), Error::<T>::UnknownRun);
            let (mut nomination, mut pool) = Self::nomination(run, &who, uid)?;
            Self::settle(&pool, &mut nomination);
            let amount = core::mem::take(&mut nomination.claimable);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            pool.unclaimed = pool.unclaimed.saturating_sub(amount);
            let mut ledger = Holdings::<T>::get().unwrap_or_default();
            ledger.unclaimed = ledger.unclaimed.saturating_sub(amount);
            Self::pay_out(&who, amount)?;

            Self::keep(run, &who, uid, nomination, pool, ledger);
            Self::deposit_event(Event::Claimed { run, uid, who, amount });
            Ok(())
        }

        /// Sets what the signer, the seat's coldkey, keeps of the seat's nominators' pay. Lower than now holds at once; higher
        /// holds only when everybody who nominated before can be out.
        #[pallet::call_index(4)]
        #[pallet::weight(T::WeightInfo::set_commission())]
        pub fn set_commission(
            origin: OriginFor<T>,
            run: RunId,
            uid: Uid,
            commission: Permille,
        ) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            let details = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?;
            let seat = T::Registry::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
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

    impl<T: Config> Pallet<T> {
        /// The account that holds everything that is nominated, and nominators' pay.
        pub fn account() -> T::AccountId {
            T::PalletId::get().into_account_truncating()
        }

        /// What is behind a seat now; `None` where nobody nominated it.
        pub fn pool(run: RunId, uid: Uid) -> Option<Pool> {
            Self::current(run, uid).map(|(_, pool)| pool)
        }

        /// What a seat keeps of its nominators' pay now.
        pub fn commission(run: RunId, uid: Uid) -> Permille {
            let now = T::Registry::run(run).map_or(Window(0), |details| Self::now(&details));
            Commissions::<T>::get(run, uid).at(now)
        }

        /// A higher commission of a seat that waits, and the window from which it holds.
        pub fn commission_raise(run: RunId, uid: Uid) -> Option<(Permille, Window)> {
            let now = T::Registry::run(run).map_or(Window(0), |details| Self::now(&details));
            Commissions::<T>::get(run, uid).raise.filter(|(_, from)| now < *from)
        }

        /// Everything that an account has behind seats of a run, in uid order. What was behind a former holder is all on
        /// its way out.
        pub fn nominations_of(run: RunId, who: &T::AccountId) -> Vec<NominationView> {
            let now = T::Registry::run(run).map_or(Window(0), |details| Self::now(&details));
            let mut views: Vec<_> = Nominations::<T>::iter_prefix((run, who))
                .filter_map(|(uid, mut nomination)| {
                    let pool = Pools::<T>::get(nomination.pool)?;
                    Self::settle(&pool, &mut nomination);
                    let view = |shares, until| UnbondingView { uid, amount: pool.worth(shares), until };
                    let rest = match pool.stage {
                        Stage::Open => None,
                        Stage::Unbonding { until, .. } => Some((nomination.shares, until)),
                        Stage::Spent => Some((nomination.shares, now)),
                    };
                    let amount = if rest.is_some() { 0 } else { pool.worth(nomination.shares) };
                    let leaving = nomination
                        .leaving
                        .iter()
                        .map(|leaving| (leaving.shares, pool.frees(leaving.until, now)))
                        .chain(rest.filter(|(shares, _)| *shares > 0));
                    let mut unbonding: Vec<UnbondingView> = Vec::new();
                    // In one line what is free in one window.
                    let mut by_window = BTreeMap::<Window, u128>::new();
                    for (shares, until) in leaving {
                        let sum = by_window.entry(until).or_default();
                        *sum = sum.saturating_add(shares);
                    }
                    unbonding.extend(by_window.into_iter().map(|(until, shares)| view(shares, until)));
                    Some(NominationView {
                        validator: uid,
                        amount,
                        unbonding,
                        claimable: nomination.claimable,
                    })
                })
                .collect();
            views.sort_unstable_by_key(|view| view.validator);
            views
        }

        fn now(details: &Run<T::AccountId>) -> Window {
            let block = Block(frame_system::Pallet::<T>::block_number().saturated_into());
            details.params.schedule.window_at(block).unwrap_or(Window(0))
        }

        /// When what is taken out now is free: it counts in the window that is open, so its time begins with the next.
        fn unbonded(details: &Run<T::AccountId>) -> Window {
            let block = Block(frame_system::Pallet::<T>::block_number().saturated_into());
            let next = details.params.schedule.window_at(block).map_or(Window(0), Window::next);
            Window(next.0.saturating_add(details.terms.unbonding_windows))
        }

        fn current(run: RunId, uid: Uid) -> Option<(PoolId, Pool)> {
            let id = PoolOf::<T>::get(run, uid)?;
            Some((id, Pools::<T>::get(id)?))
        }

        fn nomination(run: RunId, who: &T::AccountId, uid: Uid) -> Result<(NominationOf<T>, Pool), Error<T>> {
            let nomination = Nominations::<T>::get((run, who, uid)).ok_or(Error::<T>::NotANominator)?;
            let pool = Pools::<T>::get(nomination.pool).ok_or(Error::<T>::NotANominator)?;
            Ok((nomination, pool))
        }

        /// Counts what a nomination's shares earned since this was last done. Always before the shares change.
        fn settle(pool: &Pool, nomination: &mut NominationOf<T>) {
            let earned = pool.earned(nomination.shares, nomination.mark);
            nomination.claimable = nomination.claimable.saturating_add(earned);
            nomination.mark = pool.pay_per_share;
        }

        /// The pool of a seat, whether its holder is there or gone.
        fn of_seat(run: RunId, seat: SeatId) -> Option<(PoolId, Pool)> {
            let present = Self::current(run, seat.uid).filter(|(_, pool)| pool.seat == seat);
            present.or_else(|| {
                let id = FormerPools::<T>::get(run, seat)?;
                Some((id, Pools::<T>::get(id)?))
            })
        }

        /// Forgets where a pool is found, by its seat.
        fn unlist(pool: &Pool) {
            match pool.stage {
                Stage::Open => PoolOf::<T>::remove(pool.run, pool.seat.uid),
                Stage::Unbonding { .. } => FormerPools::<T>::remove(pool.run, pool.seat),
                Stage::Spent => {}
            }
        }

        fn pay_out(to: &T::AccountId, amount: Balance) -> DispatchResult {
            if amount > 0 {
                T::Currency::transfer(&Self::account(), to, amount, Preservation::Preserve)
                    .map_err(|_| Error::<T>::CannotPay)?;
            }
            Ok(())
        }

        /// Writes back what somebody took something of, or forgets it where nothing is left.
        fn keep(
            run: RunId,
            who: &T::AccountId,
            uid: Uid,
            nomination: NominationOf<T>,
            mut pool: Pool,
            mut ledger: Ledger,
        ) {
            let id = nomination.pool;
            if nomination.shares == 0 && nomination.claimable == 0 && nomination.leaving.is_empty() {
                Nominations::<T>::remove((run, who, uid));
                pool.nominators = pool.nominators.saturating_sub(1);
            } else {
                Nominations::<T>::insert((run, who, uid), nomination);
            }
            if pool.nominators == 0 {
                Pools::<T>::remove(id);
                Self::unlist(&pool);
                ledger.nominated = ledger.nominated.saturating_sub(pool.value);
                ledger.unclaimed = ledger.unclaimed.saturating_sub(pool.unclaimed);
                ledger.dust = ledger.dust.saturating_add(pool.value).saturating_add(pool.unclaimed);
            } else {
                Pools::<T>::insert(id, pool);
            }
            Holdings::<T>::put(ledger);
        }

        /// Ends a pool's time behind a seat; what is in it can be withdrawn from `until` on.
        fn close(id: PoolId, mut pool: Pool, stage: Stage, until: Window) {
            let Pool { run, seat, value, .. } = pool;
            Self::unlist(&pool);
            pool.stage = stage;
            if matches!(stage, Stage::Unbonding { .. }) {
                FormerPools::<T>::insert(run, seat, id);
            }
            Pools::<T>::insert(id, pool);
            Self::deposit_event(Event::PoolClosed { run, uid: seat.uid, value, until });
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            /// What nominations say of a pool.
            #[derive(Default)]
            struct Sums {
                shares: u128,
                leaving: u128,
                claimable: Balance,
                nominators: u32,
            }
            let mut sums = BTreeMap::<PoolId, Sums>::new();
            for ((run, _, uid), mut nomination) in Nominations::<T>::iter() {
                let pool = Pools::<T>::get(nomination.pool).ok_or("a nomination is in no pool")?;
                if (pool.run, pool.seat.uid) != (run, uid) {
                    return Err("a nomination is in another seat's pool");
                }
                Self::settle(&pool, &mut nomination);
                let sum = sums.entry(nomination.pool).or_default();
                let leaving = nomination
                    .leaving
                    .iter()
                    .try_fold(0u128, |sum, leaving| sum.checked_add(leaving.shares))
                    .ok_or("shares overflow")?;
                let add = |a: u128, b: u128| a.checked_add(b).ok_or("a pool overflows");
                sum.leaving = add(sum.leaving, leaving)?;
                sum.shares = add(add(sum.shares, leaving)?, nomination.shares)?;
                sum.claimable = add(sum.claimable, nomination.claimable)?;
                sum.nominators = sum.nominators.saturating_add(1);
            }
            let (mut nominated, mut unclaimed): (Balance, Balance) = (0, 0);
            for (id, pool) in Pools::<T>::iter() {
                let sum = sums.remove(&id).ok_or("a pool has no nominator")?;
                if (sum.shares, sum.leaving, sum.nominators) != (pool.shares, pool.leaving, pool.nominators) {
                    return Err("a pool's shares are not its nominators'");
                }
                if sum.nominators > T::MaxNominators::get() {
                    return Err("a pool has too many nominators");
                }
                if sum.claimable > pool.unclaimed {
                    return Err("nominators may claim more than is there");
                }
                if pool.shares == 0 && pool.value > 0 {
                    return Err("a pool holds something of nobody's");
                }
                let counts = PoolOf::<T>::get(pool.run, pool.seat.uid) == Some(id);
                if counts != (pool.stage == Stage::Open) {
                    return Err("a pool counts that is closed, or does not that is open");
                }
                let seat = T::Registry::seat(pool.run, pool.seat.uid);
                if counts && seat.is_none_or(|seat| seat.id(pool.seat.uid) != pool.seat) {
                    return Err("a pool counts behind a seat that is gone");
                }
                let answers = FormerPools::<T>::get(pool.run, pool.seat) == Some(id);
                if answers != matches!(pool.stage, Stage::Unbonding { .. }) {
                    return Err("a pool unbonds and cannot be found, or is found and does not");
                }
                if id >= PoolCount::<T>::get() {
                    return Err("a pool has a number that was not given out");
                }
                nominated = nominated.checked_add(pool.value).ok_or("pools overflow")?;
                unclaimed = unclaimed.checked_add(pool.unclaimed).ok_or("pay overflows")?;
            }
            if PoolOf::<T>::iter_values()
                .chain(FormerPools::<T>::iter_values())
                .any(|id| !Pools::<T>::contains_key(id))
            {
                return Err("a seat's pool is missing");
            }
            let Some(ledger) = Holdings::<T>::get() else {
                return if nominated == 0 { Ok(()) } else { Err("there are pools and no ledger") };
            };
            if (ledger.nominated, ledger.unclaimed) != (nominated, unclaimed) {
                return Err("the ledger is not the sum of the pools");
            }
            // Anybody may transfer to the account, so it may hold more.
            let owed = nominated
                .checked_add(unclaimed)
                .and_then(|sum| sum.checked_add(ledger.dust))
                .and_then(|sum| sum.checked_add(T::Currency::minimum_balance()))
                .ok_or("the ledger overflows")?;
            if T::Currency::balance(&Self::account()) < owed {
                return Err("the account holds less than the ledger says");
            }
            Ok(())
        }
    }

    impl<T: Config> pallet_registry::Nominations<T::AccountId> for Pallet<T> {
        fn behind(run: RunId, uid: Uid) -> Balance {
            Self::pool(run, uid).map_or(0, |pool| pool.behind())
        }

        fn share_pay(
            run: RunId,
            seat: SeatId,
            own_stake: Balance,
            amount: Balance,
            payer: &T::AccountId,
        ) -> Balance {
            let (Some((id, mut pool)), Some(mut ledger)) = (Self::of_seat(run, seat), Holdings::<T>::get())
            else {
                return 0;
            };
            let uid = seat.uid;
            let commission = match pool.stage {
                Stage::Unbonding { commission, .. } => commission,
                Stage::Open | Stage::Spent => Self::commission(run, uid),
            };
            let part = nominators_part(amount, own_stake, pool.behind(), commission);
            let fits =
                pool.unclaimed.checked_add(part).is_some() && ledger.unclaimed.checked_add(part).is_some();
            // Where the payer cannot pay, the seat keeps it all.
            if part == 0
                || !fits
                || T::Currency::transfer(payer, &Self::account(), part, Preservation::Preserve).is_err()
            {
                return 0;
            }
            pool.pay(part);
            ledger.unclaimed = ledger.unclaimed.saturating_add(part);
            Pools::<T>::insert(id, pool);
            Holdings::<T>::put(ledger);
            Self::deposit_event(Event::Shared { run, uid, amount: part });
            part
        }

        fn slash(
            run: RunId,
            seat: SeatId,
            share: Permille,
            reporter: Option<(&T::AccountId, Permille)>,
        ) -> Balance {
            let (Some((id, mut pool)), Some(mut ledger)) = (Self::of_seat(run, seat), Holdings::<T>::get())
            else {
                return 0;
            };
            let now = T::Registry::run(run).map_or(Window(0), |details| Self::now(&details));
            if pool.is_free(now) {
                return 0;
            }
            let uid = seat.uid;
            let amount = pool.slash(share);
            if amount == 0 {
                return 0;
            }
            ledger.nominated = ledger.nominated.saturating_sub(amount);
            let account = Self::account();
            let rewarded = match reporter {
                Some((to, part)) => {
                    let reward = thousandths(amount, part);
                    // What cannot reach the reporter is burnt with the rest.
                    match T::Currency::transfer(&account, to, reward, Preservation::Preserve) {
                        Ok(_) => reward,
                        Err(_) => 0,
                    }
                }
                None => 0,
            };
            T::Currency::burn_from(
                &account,
                amount.saturating_sub(rewarded),
                Preservation::Preserve,
                Precision::Exact,
                Fortitude::Polite,
            )
            .defensive_proof("the account holds what is nominated and more")
            .ok();
            Holdings::<T>::put(ledger);
            Self::deposit_event(Event::Slashed { run, uid, amount, rewarded });
            if pool.is_spent() {
                Self::close(id, pool, Stage::Spent, now);
            } else {
                Pools::<T>::insert(id, pool);
            }
            amount
        }
    }

    impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
        fn vacated(run: RunId, uid: Uid, _: &Seat<T::AccountId>, ending: Ending) -> Weight {
            let Ending { window, until } = ending;
            let commission = Commissions::<T>::take(run, uid).at(window);
            if let Some((id, pool)) = Self::current(run, uid) {
                Self::close(id, pool, Stage::Unbonding { until, commission }, until);
            }
            T::WeightInfo::vacated()
        }
    }
}
