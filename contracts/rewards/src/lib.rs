//! Pay: the treasury of each run, the claimable balances, and the payment records (PROT-32).
//!
//! Each run has its own account. The books divide its balance between the treasury, seats, former seats and the owner.
//! Funding adds to the treasury. The end of an epoch moves some of it to seats and owner, pays the nominators' part to
//! the nomination pallet, and burns the burn share. A claim pays out. At every block, to the last unit,
//!
//! `funded = treasury + claimable + paid + burnt`,
//!
//! and the account holds treasury, claimable, and the existential deposit. The first funder pays this deposit, so that
//! the account is never removed while it holds money.
//!
//! For each of the last epochs, a record holds every seat's pay and the consensus from which it follows.
#![cfg_attr(not(test), no_std)]

extern crate alloc;
#[cfg(feature = "std")]
extern crate std;

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use pallet_registry::Balance;
use protocol::{Block, SeatId, Uid, view::SeatConsensus};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
mod closing;
mod epochs;
mod invariants;
mod reads;
mod split;
#[cfg(test)]
mod tests;
pub mod weight_info;

pub use pallet::*;

/// Number of epochs whose records are kept.
pub const KEPT_EPOCHS: u32 = 64;

/// The books of a run's money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Treasury {
    /// Total of all funds paid in.
    pub funded: Balance,
    /// Unassigned funds.
    pub treasury: Balance,
    /// The owner's unclaimed share.
    pub owner_claimable: Balance,
    /// Total paid out to seats, nominators and owner.
    pub paid: Balance,
    pub burnt: Balance,
}

/// The pay of a seat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Earnings {
    /// Unclaimed pay.
    pub claimable: Balance,
    /// Total of all pay credited.
    pub earned: Balance,
    /// Pay of the seat and its nominators up to epoch `recent_at`, halved with each epoch of age.
    pub recent: Balance,
    pub recent_at: u32,
    /// Epoch of the hotkey's last claim: one claim per epoch is free.
    pub claimed_in: Option<u32>,
}

/// The destination of a seat's pay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub enum Payout {
    /// The coldkey's account.
    #[default]
    Account,
    /// The seat's stake.
    Stake,
}

/// A former seat whose holder held it at the end of an epoch, and left before the epoch was paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former<AccountId> {
    pub seat: SeatId,
    pub coldkey: AccountId,
    /// Its own stake when it left.
    pub stake: Balance,
}

/// The record of an epoch. `L` is a bounded list of [`Slip`], in uid order.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct EpochRecord<L> {
    pub epoch: u32,
    pub pot: Balance,
    /// Number of merged windows of the epoch.
    pub merged: u32,
    pub slips: L,
}

/// Pay of one seat for an epoch, and the consensus behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Slip {
    pub uid: Uid,
    /// Block of the registration, which identifies the holder.
    pub registered_at: Block,
    pub consensus: SeatConsensus,
    pub amount: Balance,
    /// Amount paid to the seat's nominators.
    pub nominators: Balance,
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use frame::{
        deps::frame_support::storage::with_storage_layer,
        prelude::{
            fungible::{Inspect, Mutate},
            *,
        },
    };
    use pallet_registry::{Pallet as Registry, Run};
    use protocol::RunId;

    /// Storage version, raised by each migration.
    const STORAGE_VERSION: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config + pallet_registry::Config {
        /// Weight of sharing one seat's pay with its nominators.
        type SharePayWeight: Get<Weight>;

        /// Source of the account ids of the runs' treasuries.
        #[pallet::constant]
        type PalletId: Get<PalletId>;
    }

    pub type EpochRecordOf<T> = EpochRecord<BoundedVec<Slip, <T as pallet_registry::Config>::MaxSeats>>;

    /// The books of each funded run.
    #[pallet::storage]
    pub type Treasuries<T: Config> = StorageMap<_, Twox64Concat, RunId, Treasury>;

    #[pallet::storage]
    pub type EarningsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Earnings, ValueQuery>;

    /// Destination of a seat's pay, if it is not the account.
    #[pallet::storage]
    pub type PayoutOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Payout, ValueQuery>;

    /// Pay of former seats, by coldkey.
    #[pallet::storage]
    pub type FormerPay<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, Balance, ValueQuery>;

    /// The last paid epoch.
    #[pallet::storage]
    pub type LastPaid<T: Config> = StorageMap<_, Twox64Concat, RunId, u32>;

    /// Records of the last epochs, each at its number modulo [`KEPT_EPOCHS`].
    #[pallet::storage]
    pub type History<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, u32, EpochRecordOf<T>>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// An account paid into a run's treasury.
        Funded { run: RunId, from: T::AccountId, amount: Balance, treasury: Balance },
        /// An epoch was paid: `seats` and `owner` as claimable balances, `nominators` to the nomination pallet;
        /// `burnt` was burnt.
        EpochPaid {
            run: RunId,
            epoch: u32,
            seats: Balance,
            nominators: Balance,
            owner: Balance,
            burnt: Balance,
            treasury: Balance,
        },
        /// A seat may claim `amount` more.
        Credited { run: RunId, epoch: u32, uid: Uid, amount: Balance },
        /// A seat's pay was claimed: added to its stake if this was requested and possible, or else paid to the
        /// coldkey's account.
        Claimed { run: RunId, uid: Uid, to: T::AccountId, amount: Balance, staked: bool },
        /// The pay of an account's former seats was claimed.
        FormerClaimed { run: RunId, to: T::AccountId, amount: Balance },
        /// The owner's share was claimed.
        OwnerClaimed { run: RunId, to: T::AccountId, amount: Balance },
        /// A closed run paid the balance that `to` could claim.
        FinalPay { run: RunId, to: T::AccountId, amount: Balance },
        /// A closed run's account was emptied: the rest of the treasury was burnt.
        TreasuryBurnt { run: RunId, amount: Balance },
        /// A seat's pay has a new destination.
        PayoutSet { run: RunId, uid: Uid, payout: Payout },
        /// A seat's holder has left, and may still claim `amount`.
        FormerPayCredited { run: RunId, uid: Uid, coldkey: T::AccountId, amount: Balance },
    }

    #[pallet::error]
    pub enum Error<T> {
        /// The run does not exist. List the runs and pick one of them.
        UnknownRun,
        /// The amount is zero. Pay a positive amount.
        NothingToFund,
        /// The account cannot pay this and keep the existential deposit. Transfer to it first, or fund less.
        NotEnoughFunds,
        /// The sum would overflow. Pay less.
        TooMuch,
        /// The seat does not exist. List the run's seats.
        UnknownSeat,
        /// The signer is neither the seat's coldkey nor its hotkey. Sign with one of them.
        NotTheSeat,
        /// The signer is not the seat's coldkey. Sign with the key that registered the seat.
        NotTheColdkey,
        /// The signer is not the run's owner. Sign with the owner's key.
        NotTheOwner,
        /// There is no pay to claim. Wait until an epoch closes, when pay is credited.
        NothingToClaim,
        /// The account would stay below the existential deposit. Transfer to it first.
        CannotPay,
    }

    #[pallet::hooks]
    impl<T: Config> Hooks<BlockNumberFor<T>> for Pallet<T> {
        fn integrity_test() {
            let (one, other) = (Self::account(RunId(0)), Self::account(RunId(1)));
            assert!(one != other, "an account id holds the number of a run");
        }

        #[cfg(feature = "try-runtime")]
        fn try_state(_: BlockNumberFor<T>) -> Result<(), frame::try_runtime::TryRuntimeError> {
            Self::check_invariants().map_err(Into::into)
        }
    }

    #[pallet::call]
    impl<T: Config> Pallet<T> {
        /// Pays `amount` into the treasury of `run`. The first funder also pays the existential deposit of the run's
        /// account.
        #[pallet::call_index(0)]
        #[pallet::weight(weight_info::fund::<T>())]
        pub fn fund(origin: OriginFor<T>, run: RunId, amount: Balance) -> DispatchResult {
            let from = ensure_signed(origin)?;
            ensure!(Registry::<T>::run(run).is_some(), Error::<T>::UnknownRun);
            ensure!(amount > 0, Error::<T>::NothingToFund);
            let (mut books, deposit) = match Treasuries::<T>::get(run) {
                Some(books) => (books, 0),
                None => (Treasury::default(), T::Currency::minimum_balance()),
            };
            books.funded = books.funded.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            books.treasury = books.treasury.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            let transferred = amount.checked_add(deposit).ok_or(Error::<T>::TooMuch)?;
            T::Currency::transfer(&from, &Self::account(run), transferred, Preservation::Preserve)
                .map_err(|_| Error::<T>::NotEnoughFunds)?;

            Treasuries::<T>::insert(run, books);
            Self::deposit_event(Event::Funded { run, from, amount, treasury: books.treasury });
            Ok(())
        }

        /// Claims a seat's pay: pays it to its coldkey, or adds it to its stake if this is the seat's setting. Signed
        /// by the coldkey or the hotkey; for the hotkey, free once per epoch.
        #[pallet::call_index(1)]
        #[pallet::weight(weight_info::claim::<T>())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, uid: &Uid| -> bool {
            Pallet::<T>::claims_without_fee(origin, *run, *uid)
        })]
        pub fn claim(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let signer = ensure_signed(origin)?;
            let details = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?;
            let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(signer == seat.coldkey || signer == seat.hotkey, Error::<T>::NotTheSeat);
            let mut earnings = EarningsOf::<T>::get(run, uid);
            let amount = core::mem::take(&mut earnings.claimable);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            if signer == seat.hotkey {
                earnings.claimed_in = Self::epoch_now(&details);
            }
            Self::book(run, amount, |_| ())?;
            // If it cannot be added to the stake, it is paid to the account: both belong to the coldkey.
            let staked = PayoutOf::<T>::get(run, uid) == Payout::Stake
                && with_storage_layer(|| Registry::<T>::add_to_stake(run, uid, &Self::account(run), amount))
                    .is_ok();
            if !staked {
                Self::transfer(run, &seat.coldkey, amount)?;
            }

            EarningsOf::<T>::insert(run, uid, earnings);
            Self::deposit_event(Event::Claimed { run, uid, to: seat.coldkey, amount, staked });
            Ok(())
        }

        /// Claims the owner's share. Signed by the run's owner.
        #[pallet::call_index(2)]
        #[pallet::weight(weight_info::claim_owner::<T>())]
        pub fn claim_owner(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let signer = ensure_signed(origin)?;
            let owner = Registry::<T>::run(run).ok_or(Error::<T>::UnknownRun)?.owner;
            ensure!(signer == owner, Error::<T>::NotTheOwner);
            let amount = Treasuries::<T>::get(run).map_or(0, |books| books.owner_claimable);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            Self::book(run, amount, |books| books.owner_claimable = 0)?;
            Self::transfer(run, &owner, amount)?;

            Self::deposit_event(Event::OwnerClaimed { run, to: owner, amount });
            Ok(())
        }

        /// Claims the pay of the signer's former seats.
        #[pallet::call_index(3)]
        #[pallet::weight(weight_info::claim_former::<T>())]
        pub fn claim_former(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            ensure!(Registry::<T>::run(run).is_some(), Error::<T>::UnknownRun);
            let amount = FormerPay::<T>::get(run, &coldkey);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            Self::book(run, amount, |_| ())?;
            Self::transfer(run, &coldkey, amount)?;

            FormerPay::<T>::remove(run, &coldkey);
            Self::deposit_event(Event::FormerClaimed { run, to: coldkey, amount });
            Ok(())
        }

        /// Sets the destination of a seat's pay. Signed by the seat's coldkey.
        #[pallet::call_index(4)]
        #[pallet::weight(weight_info::set_payout::<T>())]
        pub fn set_payout(origin: OriginFor<T>, run: RunId, uid: Uid, payout: Payout) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            ensure!(Registry::<T>::run(run).is_some(), Error::<T>::UnknownRun);
            let seat = Registry::<T>::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(seat.coldkey == coldkey, Error::<T>::NotTheColdkey);

            match payout {
                Payout::Account => PayoutOf::<T>::remove(run, uid),
                Payout::Stake => PayoutOf::<T>::insert(run, uid, payout),
            }
            Self::deposit_event(Event::PayoutSet { run, uid, payout });
            Ok(())
        }
    }

    /// Changes of the books by calls.
    impl<T: Config> Pallet<T> {
        /// Records `amount` as paid out, together with `change`.
        fn book(run: RunId, amount: Balance, change: impl FnOnce(&mut Treasury)) -> DispatchResult {
            let mut books = Treasuries::<T>::get(run).ok_or(Error::<T>::NothingToClaim)?;
            books.paid = books.paid.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            change(&mut books);
            Treasuries::<T>::insert(run, books);
            Ok(())
        }

        fn transfer(run: RunId, to: &T::AccountId, amount: Balance) -> DispatchResult {
            T::Currency::transfer(&Self::account(run), to, amount, Preservation::Preserve)
                .map_err(|_| Error::<T>::CannotPay)?;
            Ok(())
        }

        /// Returns whether `claim` would succeed, signed by the seat's hotkey for the first time in this epoch.
        fn claims_without_fee(origin: &OriginFor<T>, run: RunId, uid: Uid) -> bool {
            let (Ok(signer), Some(details), Some(seat), Some(books)) = (
                ensure_signed(origin.clone()),
                Registry::<T>::run(run),
                Registry::<T>::seat(run, uid),
                Treasuries::<T>::get(run),
            ) else {
                return false;
            };
            let Earnings { claimable, claimed_in, .. } = EarningsOf::<T>::get(run, uid);
            let epoch = Self::epoch_now(&details);
            signer == seat.hotkey
                && epoch.is_some()
                && claimed_in != epoch
                && claimable > 0
                && books.paid.checked_add(claimable).is_some()
                && T::Currency::can_deposit(&seat.coldkey, claimable, Provenance::Extant)
                    == DepositConsequence::Success
        }

        fn epoch_now(details: &Run<T::AccountId>) -> Option<u32> {
            Some(Registry::<T>::window_now(details)?.epoch(details.params.epoch_windows))
        }
    }
}
