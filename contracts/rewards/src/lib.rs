//! Who is paid: each run's treasury, what every seat may claim of it, and what was paid out (PROT-32).
//!
//! A run's money lies in an account of the run's own. The books beside it say whose it is: the treasury's, a seat's, a
//! former seat's or the owner's. Funding adds to the treasury; the end of an epoch moves some of it to seats and owner,
//! hands nominators' part over to where they claim it, and burns the burn share; a claim pays out. Nothing else moves, so
//! at every block
//!
//! `funded = treasury + claimable + paid + burnt`, to the last unit,
//!
//! and the account holds what is the treasury's and what is claimable, and the existential deposit that the first
//! funder leaves in it, so that the account cannot die with somebody's last units in it.
//!
//! Of each of the last epochs one record is kept: what was paid, and what the consensus said of every seat. It answers the
//! question *why was I paid this?* without anybody's log.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use pallet_registry::Balance;
use protocol::{Block, SeatId, Uid, view::SeatConsensus};
use scale_info::TypeInfo;

#[cfg(feature = "runtime-benchmarks")]
mod benchmarking;
pub mod migrations;
mod split;
#[cfg(test)]
mod tests;
pub mod weights;

pub use pallet::*;
pub use weights::WeightInfo;

/// Epochs whose records are kept.
pub const KEPT_EPOCHS: u32 = 64;

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
    /// Ever paid out, to seats, nominators and owner.
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
    /// What the seat and its nominators were paid up to epoch `recent_at`, each epoch counting half of the one after it.
    pub recent: Balance,
    pub recent_at: u32,
    /// The epoch in which the hotkey last claimed: once an epoch that costs no fee.
    pub claimed_in: Option<u32>,
}

/// Where a seat's pay goes when it is claimed.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub enum Payout {
    /// To the coldkey's account.
    #[default]
    Account,
    /// Into the seat's stake.
    Stake,
}

/// What an epoch's consensus says of the seats: what they are paid by.
#[derive(Clone, Copy, Debug, Default)]
pub struct Earned<'a> {
    pub weights: &'a [(Uid, u16)],
    /// Shares of what goes to miners. Only their proportions matter.
    pub incentive: &'a [(Uid, u64)],
    pub trust: &'a [(Uid, u64)],
    /// Shares of what goes to validators. Only their proportions matter.
    pub dividends: &'a [(Uid, u64)],
}

/// A seat whose holder held it as an epoch ended and is gone as the epoch is paid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Former<AccountId> {
    pub seat: SeatId,
    pub coldkey: AccountId,
    /// Its own stake as it left.
    pub stake: Balance,
}

/// What was paid for an epoch, and why. `L` is a bounded list of [`Slip`], in uid order.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct EpochRecord<L> {
    pub epoch: u32,
    pub pot: Balance,
    pub slips: L,
}

/// What one seat was paid for an epoch, and why.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct Slip {
    pub uid: Uid,
    /// Tells one holder of the seat from the next.
    pub registered_at: Block,
    pub consensus: SeatConsensus,
    pub amount: Balance,
    /// Went to the seat's nominators.
    pub nominators: Balance,
}

#[frame::pallet]
pub mod pallet {
    use super::*;
    use crate::split::{Split, split};
    use alloc::{
        collections::{BTreeMap, BTreeSet},
        vec::Vec,
    };
    use frame::{
        deps::frame_support::storage::with_storage_layer,
        prelude::{
            fungible::{Inspect, Mutate},
            *,
        },
    };
    use pallet_registry::{Ending, Nominations, OnSeats, Payslips, Run, Seat, Seats};
    use protocol::{
        RunId, Window,
        view::{Payslip, TreasuryView},
    };

    /// 0 was the first layout; [`crate::migrations`] leads from there to this one.
    const STORAGE_VERSION: StorageVersion = StorageVersion::new(1);

    #[pallet::pallet]
    #[pallet::storage_version(STORAGE_VERSION)]
    pub struct Pallet<T>(_);

    #[pallet::config]
    pub trait Config: frame_system::Config {
        type Currency: Inspect<Self::AccountId, Balance = Balance> + Mutate<Self::AccountId>;

        type Registry: Seats<Self::AccountId>;

        /// Takes nominators' part of validators' pay.
        type Nominations: Nominations<Self::AccountId>;

        type WeightInfo: WeightInfo;

        /// What it costs to share one seat's pay with its nominators.
        type SharePayWeight: Get<Weight>;

        /// As many seats as the registry allows.
        #[pallet::constant]
        type MaxSeats: Get<u32>;

        /// What the accounts of the runs' treasuries derive from.
        #[pallet::constant]
        type PalletId: Get<PalletId>;
    }

    pub type EpochRecordOf<T> = EpochRecord<BoundedVec<Slip, <T as Config>::MaxSeats>>;

    /// The books of each run that was ever funded.
    #[pallet::storage]
    pub type BooksOf<T: Config> = StorageMap<_, Twox64Concat, RunId, Books>;

    #[pallet::storage]
    pub type EarningsOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Earnings, ValueQuery>;

    /// Where a seat's pay goes, if not to the account.
    #[pallet::storage]
    pub type PayoutOf<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, Uid, Payout, ValueQuery>;

    /// Pay of former seats, by coldkey.
    #[pallet::storage]
    pub type FormerPay<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Blake2_128Concat, T::AccountId, Balance, ValueQuery>;

    /// The last epoch that was paid.
    #[pallet::storage]
    pub type LastPaid<T: Config> = StorageMap<_, Twox64Concat, RunId, u32>;

    /// The last epochs, each in the place of its number modulo [`KEPT_EPOCHS`].
    #[pallet::storage]
    pub type History<T: Config> =
        StorageDoubleMap<_, Twox64Concat, RunId, Twox64Concat, u32, EpochRecordOf<T>>;

    #[pallet::event]
    #[pallet::generate_deposit(pub(super) fn deposit_event)]
    pub enum Event<T: Config> {
        /// Somebody paid into a run's treasury.
        Funded { run: RunId, from: T::AccountId, amount: Balance, treasury: Balance },
        /// An epoch was paid: `seats` and `owner` into claimable balances, `nominators` to where they claim it; `burnt` is
        /// gone.
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
        /// A seat's pay became its coldkey's: stake of the seat where that was asked for and possible, or else in the account.
        Claimed { run: RunId, uid: Uid, to: T::AccountId, amount: Balance, staked: bool },
        /// The pay of seats that somebody had went to its account.
        FormerClaimed { run: RunId, to: T::AccountId, amount: Balance },
        /// The owner's share went to the owner.
        OwnerClaimed { run: RunId, to: T::AccountId, amount: Balance },
        /// A seat's pay goes elsewhere from now on.
        PayoutSet { run: RunId, uid: Uid, payout: Payout },
        /// A seat's holder is gone, and may still claim `amount`.
        SetAside { run: RunId, uid: Uid, coldkey: T::AccountId, amount: Balance },
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
        /// Only the seat's coldkey says where its pay goes. Sign with the key that registered the seat.
        NotTheColdkey,
        /// Only the run's owner may claim the owner's share.
        NotTheOwner,
        /// There is nothing to claim. Pay is credited as an epoch closes.
        NothingToClaim,
        /// The pay cannot reach the account, which is below the existential deposit. Transfer to it first.
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

        /// Pays everything that a seat may claim to its coldkey, and makes it stake where the seat wants that. Signed by the
        /// seat's coldkey or hotkey; once an epoch the hotkey pays no fee.
        #[pallet::call_index(1)]
        #[pallet::weight(T::WeightInfo::claim())]
        #[pallet::feeless_if(|origin: &OriginFor<T>, run: &RunId, uid: &Uid| -> bool {
            Pallet::<T>::claims_without_fee(origin, *run, *uid)
        })]
        pub fn claim(origin: OriginFor<T>, run: RunId, uid: Uid) -> DispatchResult {
            let signer = ensure_signed(origin)?;
            let details = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?;
            let seat = T::Registry::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(signer == seat.coldkey || signer == seat.hotkey, Error::<T>::NotTheSeat);
            let mut earnings = EarningsOf::<T>::get(run, uid);
            let amount = core::mem::take(&mut earnings.claimable);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            if signer == seat.hotkey {
                earnings.claimed_in = Self::epoch_now(&details);
            }
            Self::book(run, amount, |_| ())?;
            // Where it cannot become stake it goes to the account: it is the coldkey's either way.
            let staked = PayoutOf::<T>::get(run, uid) == Payout::Stake
                && with_storage_layer(|| T::Registry::add_to_stake(run, uid, &Self::account(run), amount))
                    .is_ok();
            if !staked {
                Self::transfer(run, &seat.coldkey, amount)?;
            }

            EarningsOf::<T>::insert(run, uid, earnings);
            Self::deposit_event(Event::Claimed { run, uid, to: seat.coldkey, amount, staked });
            Ok(())
        }

        /// Pays the owner's share to the signer, the run's owner.
        #[pallet::call_index(2)]
        #[pallet::weight(T::WeightInfo::claim_owner())]
        pub fn claim_owner(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let signer = ensure_signed(origin)?;
            let owner = T::Registry::run(run).ok_or(Error::<T>::UnknownRun)?.owner;
            ensure!(signer == owner, Error::<T>::NotTheOwner);
            let amount = BooksOf::<T>::get(run).map_or(0, |books| books.owner_claimable);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            Self::book(run, amount, |books| books.owner_claimable = 0)?;
            Self::transfer(run, &owner, amount)?;

            Self::deposit_event(Event::OwnerClaimed { run, to: owner, amount });
            Ok(())
        }

        /// Pays to the signer what seats earned whose coldkey it was, and that are not its any more.
        #[pallet::call_index(3)]
        #[pallet::weight(T::WeightInfo::claim_former())]
        pub fn claim_former(origin: OriginFor<T>, run: RunId) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            ensure!(T::Registry::run(run).is_some(), Error::<T>::UnknownRun);
            let amount = FormerPay::<T>::get(run, &coldkey);
            ensure!(amount > 0, Error::<T>::NothingToClaim);
            Self::book(run, amount, |_| ())?;
            Self::transfer(run, &coldkey, amount)?;

            FormerPay::<T>::remove(run, &coldkey);
            Self::deposit_event(Event::FormerClaimed { run, to: coldkey, amount });
            Ok(())
        }

        /// Says where a seat's pay goes when it is claimed. Signed by the seat's coldkey.
        #[pallet::call_index(4)]
        #[pallet::weight(T::WeightInfo::set_payout())]
        pub fn set_payout(origin: OriginFor<T>, run: RunId, uid: Uid, payout: Payout) -> DispatchResult {
            let coldkey = ensure_signed(origin)?;
            ensure!(T::Registry::run(run).is_some(), Error::<T>::UnknownRun);
            let seat = T::Registry::seat(run, uid).ok_or(Error::<T>::UnknownSeat)?;
            ensure!(seat.coldkey == coldkey, Error::<T>::NotTheColdkey);

            match payout {
                Payout::Account => PayoutOf::<T>::remove(run, uid),
                Payout::Stake => PayoutOf::<T>::insert(run, uid, payout),
            }
            Self::deposit_event(Event::PayoutSet { run, uid, payout });
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

        /// What became of a run's money.
        pub fn treasury_view(run: RunId) -> TreasuryView {
            let Books { funded, treasury, owner_claimable, paid, burnt } =
                BooksOf::<T>::get(run).unwrap_or_default();
            // What is not the treasury's and not gone is somebody's, see the invariant.
            let claimable = funded.saturating_sub(treasury).saturating_sub(paid).saturating_sub(burnt);
            TreasuryView { funded, treasury, claimable, owner_claimable, paid, burnt }
        }

        /// Pay of seats that `coldkey` had, waiting to be claimed.
        pub fn former_claimable(run: RunId, coldkey: &T::AccountId) -> Balance {
            FormerPay::<T>::get(run, coldkey)
        }

        /// Whether a seat's pay becomes stake when it is claimed.
        pub fn pays_into_stake(run: RunId, uid: Uid) -> bool {
            PayoutOf::<T>::get(run, uid) == Payout::Stake
        }

        /// Why the present holder of a seat was paid what it was paid, in the last epochs, the oldest first.
        pub fn payslips(run: RunId, uid: Uid) -> Vec<Payslip> {
            let (Some(seat), Some(last)) = (T::Registry::seat(run, uid), LastPaid::<T>::get(run)) else {
                return Vec::new();
            };
            let first = last.saturating_sub(KEPT_EPOCHS - 1);
            (first..=last)
                .filter_map(|epoch| {
                    let record = History::<T>::get(run, epoch % KEPT_EPOCHS)?;
                    // An epoch without a consensus leaves an older one's record in its place.
                    let slip = match record.slips.binary_search_by_key(&uid, |slip| slip.uid) {
                        Ok(index) if record.epoch == epoch => record.slips.get(index)?,
                        _ => return None,
                    };
                    (slip.registered_at == seat.registered_at).then_some(Payslip {
                        epoch,
                        pot: record.pot,
                        consensus: slip.consensus,
                        amount: slip.amount,
                        nominators: slip.nominators,
                    })
                })
                .collect()
        }

        /// Pays an epoch: the run's emission, or what the treasury has left of it. What is earned by a uid goes to the seat that
        /// `former` names for it, where its coldkey claims it; or else to the seat that holds the uid, if it did in that
        /// epoch. What that leaves, and what the shares do not divide without a rest, stays in the treasury. An epoch is
        /// paid once, and none before one that was paid.
        pub fn pay_epoch(
            run: RunId,
            epoch: u32,
            earned: Earned<'_>,
            former: &[Former<T::AccountId>],
        ) -> Weight {
            let (Some(details), Some(terms)) = (T::Registry::run(run), T::Registry::terms_of(run, epoch))
            else {
                return T::WeightInfo::pay_epoch(0);
            };
            if LastPaid::<T>::get(run).is_some_and(|last| epoch <= last) {
                return T::WeightInfo::pay_epoch(0);
            }
            let former: BTreeMap<Uid, &Former<T::AccountId>> =
                former.iter().map(|former| (former.seat.uid, former)).collect();
            let mut slips = Self::standings(run, &details, epoch, earned, &former);
            let seats = slips.len() as u32;
            let mut books = BooksOf::<T>::get(run);
            let pot = terms.emission(epoch).min(books.map_or(0, |books| books.treasury));
            // Never funded: there is nothing to pay with, and nothing to write down but the standings.
            if let Some(books) = &mut books {
                let split = split(pot, terms.shares, earned.incentive, earned.dividends);
                Self::pay_out_epoch(run, epoch, split, &mut slips, &former, books);
                BooksOf::<T>::insert(run, books);
            }

            // The longest list is as long as there are seats; what a run cannot have is left out.
            let slips: Vec<_> = slips.into_values().collect();
            let slips = BoundedVec::truncate_from(slips);
            History::<T>::insert(run, epoch % KEPT_EPOCHS, EpochRecord { epoch, pot, slips });
            LastPaid::<T>::insert(run, epoch);
            let validators = earned.dividends.len().min(seats as usize) as u64;
            T::WeightInfo::pay_epoch(seats)
                .saturating_add(T::SharePayWeight::get().saturating_mul(validators))
        }

        /// What the consensus says of each seat that was held in that epoch. Whoever came later gets nothing for what its
        /// predecessor did.
        fn standings(
            run: RunId,
            details: &Run<T::AccountId>,
            epoch: u32,
            earned: Earned<'_>,
            former: &BTreeMap<Uid, &Former<T::AccountId>>,
        ) -> BTreeMap<Uid, Slip> {
            let roster: BTreeMap<_, _> = T::Registry::roster(run).into_iter().collect();
            let in_time = |since: Window| since.epoch(details.params.epoch_windows) <= epoch;
            // Since when somebody held the seat in that epoch.
            let registered_at = |uid: &Uid| match former.get(uid) {
                Some(former) => Some(former.seat.registered_at),
                None => roster.get(uid).filter(|entry| in_time(entry.since)).map(|entry| entry.registered_at),
            };
            let wide = |list: &[(Uid, u64)]| list.iter().map(|(uid, _)| *uid).collect::<Vec<_>>();
            let named: BTreeSet<Uid> = earned
                .weights
                .iter()
                .map(|(uid, _)| *uid)
                .chain([earned.incentive, earned.trust, earned.dividends].into_iter().flat_map(wide))
                .collect();
            let mut slips: BTreeMap<Uid, Slip> = named
                .into_iter()
                .filter_map(|uid| {
                    let registered_at = registered_at(&uid)?;
                    let consensus = SeatConsensus::default();
                    Some((uid, Slip { uid, registered_at, consensus, amount: 0, nominators: 0 }))
                })
                .collect();
            let mut set = |uid: &Uid, write: &dyn Fn(&mut SeatConsensus)| {
                if let Some(slip) = slips.get_mut(uid) {
                    write(&mut slip.consensus);
                }
            };
            for (uid, value) in earned.weights {
                set(uid, &|consensus| consensus.weight = *value);
            }
            for (uid, value) in earned.incentive {
                set(uid, &|consensus| consensus.incentive = *value);
            }
            for (uid, value) in earned.trust {
                set(uid, &|consensus| consensus.trust = *value);
            }
            for (uid, value) in earned.dividends {
                set(uid, &|consensus| consensus.dividends = *value);
            }
            slips
        }

        fn pay_out_epoch(
            run: RunId,
            epoch: u32,
            split: Split,
            slips: &mut BTreeMap<Uid, Slip>,
            former: &BTreeMap<Uid, &Former<T::AccountId>>,
            books: &mut Books,
        ) {
            let account = Self::account(run);
            let burnt = match split.burn {
                0 => 0,
                amount => T::Currency::burn_from(
                    &account,
                    amount,
                    Preservation::Preserve,
                    Precision::Exact,
                    Fortitude::Polite,
                )
                .defensive_proof("the account holds the treasury and more")
                .unwrap_or(0),
            };
            for (uid, amount) in split.miners {
                if let Some(slip) = slips.get_mut(&uid) {
                    slip.amount = slip.amount.saturating_add(amount);
                }
            }
            for (uid, amount) in split.validators {
                if let Some(slip) = slips.get_mut(&uid) {
                    let seat = SeatId { uid, registered_at: slip.registered_at };
                    let own = match former.get(&uid) {
                        Some(former) => former.stake,
                        None => T::Registry::seat(run, uid).map_or(0, |seat| seat.stake),
                    };
                    let part = T::Nominations::share_pay(run, seat, own, amount, &account).min(amount);
                    slip.nominators = slip.nominators.saturating_add(part);
                    slip.amount = slip.amount.saturating_add(amount.saturating_sub(part));
                }
            }

            let (mut credited, mut shared): (Balance, Balance) = (0, 0);
            for slip in slips.values() {
                let Slip { uid, amount, nominators, .. } = *slip;
                let whole = amount.saturating_add(nominators);
                if whole == 0 {
                    continue;
                }
                credited = credited.saturating_add(amount);
                shared = shared.saturating_add(nominators);
                if let Some(former) = former.get(&uid) {
                    Self::set_aside(run, uid, &former.coldkey, amount);
                    continue;
                }
                EarningsOf::<T>::mutate(run, uid, |earnings| {
                    earnings.claimable = earnings.claimable.saturating_add(amount);
                    earnings.earned = earnings.earned.saturating_add(amount);
                    earnings.recent = faded(earnings, epoch).saturating_add(whole);
                    earnings.recent_at = epoch;
                });
                Self::deposit_event(Event::Credited { run, epoch, uid, amount });
            }
            let owner = split.owner;
            let spent = credited.saturating_add(shared).saturating_add(owner).saturating_add(burnt);
            books.treasury = books.treasury.saturating_sub(spent);
            books.owner_claimable = books.owner_claimable.saturating_add(owner);
            books.paid = books.paid.saturating_add(shared);
            books.burnt = books.burnt.saturating_add(burnt);
            Self::deposit_event(Event::EpochPaid {
                run,
                epoch,
                seats: credited,
                nominators: shared,
                owner,
                burnt,
                treasury: books.treasury,
            });
        }

        /// Keeps `amount` for the coldkey of a seat that is gone.
        fn set_aside(run: RunId, uid: Uid, coldkey: &T::AccountId, amount: Balance) {
            if amount > 0 {
                FormerPay::<T>::mutate(run, coldkey, |former| *former = former.saturating_add(amount));
                Self::deposit_event(Event::SetAside { run, uid, coldkey: coldkey.clone(), amount });
            }
        }

        /// Writes `amount` into the books as paid out, and `change` with it.
        fn book(run: RunId, amount: Balance, change: impl FnOnce(&mut Books)) -> DispatchResult {
            let mut books = BooksOf::<T>::get(run).ok_or(Error::<T>::NothingToClaim)?;
            books.paid = books.paid.checked_add(amount).ok_or(Error::<T>::TooMuch)?;
            change(&mut books);
            BooksOf::<T>::insert(run, books);
            Ok(())
        }

        fn transfer(run: RunId, to: &T::AccountId, amount: Balance) -> DispatchResult {
            T::Currency::transfer(&Self::account(run), to, amount, Preservation::Preserve)
                .map_err(|_| Error::<T>::CannotPay)?;
            Ok(())
        }

        /// Whether `claim` would succeed, is signed by the seat's hotkey, and is its first in this epoch.
        fn claims_without_fee(origin: &OriginFor<T>, run: RunId, uid: Uid) -> bool {
            let (Ok(signer), Some(details), Some(seat), Some(books)) = (
                ensure_signed(origin.clone()),
                T::Registry::run(run),
                T::Registry::seat(run, uid),
                BooksOf::<T>::get(run),
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
            let block = Block(frame_system::Pallet::<T>::block_number().saturated_into());
            let window = details.params.schedule.window_at(block)?;
            Some(window.epoch(details.params.epoch_windows))
        }

        /// What must hold at every block; an error names what does not.
        pub fn check_invariants() -> Result<(), &'static str> {
            let paid_runs = EarningsOf::<T>::iter_keys().map(|(run, _)| run);
            if paid_runs
                .chain(FormerPay::<T>::iter_keys().map(|(run, _)| run))
                .any(|run| !BooksOf::<T>::contains_key(run))
            {
                return Err("a seat was paid by a run that was never funded");
            }
            if FormerPay::<T>::iter_values().any(|amount| amount == 0) {
                return Err("nothing is set aside for somebody");
            }
            if PayoutOf::<T>::iter_values().any(|payout| payout == Payout::Account) {
                return Err("a seat's payout is written down that needs none");
            }
            for (run, place, record) in History::<T>::iter() {
                if record.epoch % KEPT_EPOCHS != place
                    || LastPaid::<T>::get(run).is_none_or(|last| record.epoch > last)
                {
                    return Err("an epoch's record is not in its place");
                }
                if !record.slips.windows(2).all(|pair| pair[0].uid < pair[1].uid) {
                    return Err("an epoch's record is not in uid order");
                }
                let slips = record.slips.iter();
                let paid = slips.flat_map(|slip| [slip.amount, slip.nominators]);
                if paid.fold(0, Balance::saturating_add) > record.pot {
                    return Err("an epoch paid more than its pot");
                }
            }
            for (run, books) in BooksOf::<T>::iter() {
                let seats = EarningsOf::<T>::iter_prefix_values(run).map(|earnings| earnings.claimable);
                let claimable = seats
                    .chain(FormerPay::<T>::iter_prefix_values(run))
                    .try_fold(books.owner_claimable, Balance::checked_add)
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

    /// What `earnings` says of recent pay, as of `epoch`: half of it is forgotten with each epoch.
    fn faded(earnings: &Earnings, epoch: u32) -> Balance {
        let epochs = epoch.saturating_sub(earnings.recent_at);
        earnings.recent.checked_shr(epochs).unwrap_or(0)
    }

    impl<T: Config> Payslips for Pallet<T> {
        fn recent_pay(run: RunId, uid: Uid) -> Balance {
            // As of the last epoch that was paid: a run that stands still forgets nothing.
            let last = LastPaid::<T>::get(run).unwrap_or(0);
            faded(&EarningsOf::<T>::get(run, uid), last)
        }
    }

    impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
        fn vacated(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, _: Ending) -> Weight {
            PayoutOf::<T>::remove(run, uid);
            let amount = EarningsOf::<T>::take(run, uid).claimable;
            Self::set_aside(run, uid, &seat.coldkey, amount);
            T::WeightInfo::vacated()
        }
    }
}
