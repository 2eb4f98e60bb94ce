//! Who is paid: each run's treasury, what every seat may claim of it, and what was paid out (PROT-32).
//!
//! A run's money lies in an account of the run's own. The books beside it say whose it is: the treasury's, a seat's or
//! the owner's. Funding adds to the treasury; the end of an epoch moves some of it to seats and owner, and burns the
//! burn share; a claim pays out. Nothing else moves, so at every block
//!
//! `funded = treasury + claimable + paid + burnt`, to the last unit,
//!
//! and the account holds what is the treasury's and what is claimable, and the existential deposit that the first
//! funder leaves in it, so that the account cannot die with somebody's last units in it.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use pallet_registry::Balance;
use scale_info::TypeInfo;

mod split;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use weights::WeightInfo;

/// What became of a run's money.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Books {
    /// Ever paid in.
    pub funded: Balance,
    /// Not promised to anybody yet.
    pub treasury: Balance,
    /// The owner's share, not claimed yet.
    pub owner_claimable: Balance,
    /// Ever paid out, to seats and owner.
    pub paid: Balance,
    pub burnt: Balance,
}

/// What a seat was paid.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Earnings {
    /// Waits to be claimed.
    pub claimable: Balance,
    /// Ever credited, claimed or not.
    pub earned: Balance,
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::split::{Split, split};
    use frame::prelude::{
        fungible::{Inspect, Mutate},
        *,
    };
    use pallet_registry::Seats;
    use protocol::{RunId, Uid};

    #[pallet::pallet]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config {
        type Currency: Inspect<Self::AccountId, Balance = Balance> + Mutate<Self::AccountId>;

        type Registry: Seats<Self::AccountId>;

        type WeightInfo: WeightInfo;

        /// What the accounts of the runs' treasuries derive from.
        #[pallet::constant]
        type PalletId: Get<PalletId>;
    }

    /// The books of each run that was ever funded.
    #[pallet::storage]
    pub type BooksOf<T: Config> = StorageMap<_, Twox64Concat, RunId, Books>;

    #[pallet::storage]
    pub type EarningsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Earnings, ValueQuery>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// Somebody paid into a run's treasury.
        Funded { run: RunId, from: T::AccountId, amount: Balance, treasury: Balance },
        /// An epoch was paid, into claimable balances; `burnt` is gone.
        EpochPaid {
            run: RunId,
            epoch: u32,
            seats: Balance,
            owner: Balance,
            burnt: Balance,
            treasury: Balance,
        },
        /// A seat may claim `amount` more.
        Credited { run: RunId, epoch: u32, uid: Uid, amount: Balance },
        /// A seat's pay went to its coldkey.
        Claimed { run: RunId, uid: Uid, to: T::AccountId, amount: Balance },
        /// The owner's share went to the owner.
        OwnerClaimed { run: RunId, to: T::AccountId, amount: Balance },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// There is no run with this id. List the runs and pick one of them.
        UnknownRun,
        /// The amount is zero. Fund the run with something.
        NothingToFund,
        /// The account cannot pay this and stay alive. Transfer to it first, or fund less.
        NotEnoughFunds,
        /// The sum would exceed what a number can hold.
        TooMuch,
        /// There is no seat with this uid. List the run's seats.
        UnknownSeat,
        /// Only the seat's coldkey or hotkey may claim its pay. Sign with one of them.
        NotTheSeat,
        /// Only the run's owner may claim the owner's share.
        NotTheOwner,
        /// There is nothing to claim. Pay is credited as an epoch closes.
        NothingToClaim,
        /// The pay cannot reach the coldkey's account, which is below the existential deposit. Transfer to it first.
        CannotPay,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            let (one, other) = (Self::account(RunId(0)), Self::account(RunId(1)));
            assert!(one != other, "an account id has room for the number of a run");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Pays `amount` into the treasury of `run`. Whoever funds a run first pays the existential deposit of its
        /// account too.
        #[pallet::call_index(0)]
        #[pallet::weight(T::WeightInfo::fund())]
        pub fn fund(origin: OriginFor<T>, run: RunId, amount: Balance) -> DispatchResult {
            let from = ensure_signed(origin)?;
            ensure!(T::Registry::run(run).is_some(), Error::<T>::UnknownRun);
            ensure!(amount > 0, Error::<T>::NothingToFund);
            let (mut books, deposit) = match BooksOf::<T>::get(run) {
                Some(books) => (books, 0),
                None => (Books::default(), T::Currency::minimum_balance()),
            };
            books.funded = books.funded.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            books.treasury = books.treasury.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            let transferred = amount.checked_add(deposit).ok_or(Error::<T>::TooMuch)?;
            T::Currency::transfer(&from, &Self::account(run), transferred, Preservation::Preserve)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            BooksOf::<T>::insert(run, books);
            Self::deposit_event(Event::Funded { run, from, amount, treasury: books.treasury });
            Ok(())
        }

        /// Pays everything that a seat may claim to its coldkey. Signed by the seat's coldkey or hotkey.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::claim())]
        pub fn claim(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let signer = ensure_signed(origin)?;
            ensure!(T::Registry::run(run).is_some(), Error::<T>::UnknownRun);
            let seat = T::Registry::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(signer == seat.coldkey || signer == seat.hotkey, Error::<T>::NotTheSeat);
            let earnings = EarningsOf::<T>::get(run, uid);
            let amount = earnings.claimable;
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            let mut books = BooksOf::<T>::get(run).ok_or(Error::<T>::NothingToClaim)?;
            books.paid = books.paid.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            Self::pay_out(run, &seat.coldkey, amount)?;

            EarningsOf::<T>::insert(run, uid, Earnings { claimable: 0, ..earnings });
            BooksOf::<T>::insert(run, books);
            Self::deposit_event(Event::Claimed { run, uid, to: seat.coldkey, amount });
            Ok(())
        }

        /// Pays the owner's share to the signer, the run's owner.
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::claim_owner())]
        pub fn claim_owner(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let signer = ensure_signed(origin)?;
            let owner = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?.owner;
            ensure!(signer == owner, Error::<T>::NotTheOwner);
            let mut books = BooksOf::<T>::get(run).ok_or(Error::<T>::NothingToClaim)?;
            let amount = books.owner_claimable;
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            books.owner_claimable = 0;
            books.paid = books.paid.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            Self::pay_out(run, &owner, amount)?;

            BooksOf::<T>::insert(run, books);
            Self::deposit_event(Event::OwnerClaimed { run, to: owner, amount });
            Ok(())
        }
    }

    impl<T: Config> Pallet<T> {
        /// The account that holds a run's money.
        pub fn account(run: RunId) -> T::AccountId {
            T::PalletId::get().into_sub_account_truncating(run.0)
        }

        /// What `run` has left to pay with.
        pub fn treasury(run: RunId) -> Balance {
            BooksOf::<T>::get(run).map_or(0, |books| books.treasury)
        }

        /// Pays an epoch: the run's emission, or what the treasury has left of it. `incentive` and `dividends` are
        /// shares of what goes to miners and to validators, by seat; only their proportions matter. What they do not
        /// divide without a rest stays in the treasury. Returns the number of seats credited.
        pub fn pay_epoch(run: RunId, epoch: u32, incentive: &[(Uid, u64)], dividends: &[(Uid, u64)]) -> u32 {
            let (Some(details), Some(mut books)) = (T::Registry::run(run), BooksOf::<T>::get(run)) else {
                // Never funded: there is nothing to pay with.
                return 0;
            };
            let pot = details.terms.emission(epoch).min(books.treasury);
            let Split { seats, owner, burn } = split(pot, details.terms.shares, incentive, dividends);
            let burnt = match burn {
                0 => 0,
                amount => T::Currency::burn_from(
                    &Self::account(run),
                    amount,
                    Preservation::Preserve,
                    Precision::Exact,
                    Fortitude::Polite,
                )
                .defensive_proof("the account holds the treasury and more")
                .unwrap_or(0),
            };

            let mut credited: Balance = 0;
            for (uid, amount) in &seats {
                EarningsOf::<T>::mutate(run, uid, |earnings| {
                    earnings.claimable = earnings.claimable.saturating_add(*amount);
                    earnings.earned = earnings.earned.saturating_add(*amount);
                });
                credited = credited.saturating_add(*amount);
                Self::deposit_event(Event::Credited { run, epoch, uid: *uid, amount: *amount });
            }
            let spent = credited.saturating_add(owner).saturating_add(burnt);
            books.treasury = books.treasury.saturating_sub(spent);
            books.owner_claimable = books.owner_claimable.saturating_add(owner);
            books.burnt = books.burnt.saturating_add(burnt);
            BooksOf::<T>::insert(run, books);
            let treasury = books.treasury;
            Self::deposit_event(Event::EpochPaid { run, epoch, seats: credited, owner, burnt, treasury });
            seats.len() as u32
        }

        fn pay_out(run: RunId, to: &T::AccountId, amount: Balance) -> DispatchResult {
            T::Currency::transfer(&Self::account(run), to, amount, Preservation::Preserve)
                .map_err(|_| Error::<T>::CannotPay)?;
            Ok(())
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            for run in EarningsOf::<T>::iter_keys().map(|(run, _)| run) {
                if !BooksOf::<T>::contains_key(run) {
                    return Err("a seat was paid by a run that was never funded");
                }
            }
            for (run, books) in BooksOf::<T>::iter() {
                let claimable = EarningsOf::<T>::iter_prefix_values(run)
                    .try_fold(books.owner_claimable, |sum, earnings| sum.checked_add(earnings.claimable))
                    .ok_or("claims overflow")?;
                let promised = books.treasury.checked_add(claimable).ok_or("the books overflow")?;
                let gone = books.paid.checked_add(books.burnt).ok_or("the books overflow")?;
                if promised.checked_add(gone) != Some(books.funded) {
                    return Err("what was funded is not what is there, was paid and was burnt");
                }
                // Anybody may transfer to the account, so it may hold more.
                let balance = T::Currency::balance(&Self::account(run));
                if balance < promised.saturating_add(T::Currency::minimum_balance()) {
                    return Err("a run's account holds less than its books say");
                }
                if EarningsOf::<T>::iter_prefix_values(run)
                    .any(|earnings| earnings.claimable > earnings.earned)
                {
                    return Err("a seat may claim more than it ever earned");
                }
            }
            Ok(())
        }
    }
}
