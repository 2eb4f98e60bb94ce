//! Pays an epoch: divides its pay into claimable balances.

use crate::{
    pallet::*,
    split::{Split, split},
    *,
};
use alloc::{collections::BTreeMap, vec::Vec};
use frame::prelude::{fungible::Mutate as _, *};
use pallet_registry::{Ending, Nominations as _, OnSeats, Pallet as Registry, Payslips, Run, Seat};
use protocol::{RunId, Window};

/// Seats, by uid, that an epoch pays and whose holders have left.
type Formers<'a, T> = BTreeMap<Uid, &'a Former<<T as frame_system::Config>::AccountId>>;

impl<T: Config> Pallet<T> {
    /// Pays `epoch` by its `consensus`, which is in uid order. The pot is the emission's part for the `merged`
    /// windows, or the rest of the treasury if that is less.
    ///
    /// Pay for a uid goes to its seat in `former`, or else to the seat's present holder, if it held the seat in that
    /// epoch. The remainder of this and of the rounding stays in the treasury. An epoch is paid once, and never after
    /// a later epoch.
    pub fn pay_epoch(
        run: RunId,
        epoch: u32,
        merged: u32,
        consensus: &[(Uid, SeatConsensus)],
        former: &[Former<T::AccountId>],
    ) -> Weight {
        let (Some(details), Some(terms)) = (Registry::<T>::run(run), Registry::<T>::terms_of(run, epoch))
        else {
            return weight_info::pay_epoch::<T>(0);
        };
        if LastPaid::<T>::get(run).is_some_and(|last| epoch <= last) {
            return weight_info::pay_epoch::<T>(0);
        }
        let former: Formers<'_, T> = former.iter().map(|former| (former.seat.uid, former)).collect();
        let mut slips = Self::new_slips(run, &details, epoch, consensus, &former);
        let seats = slips.len() as u32;
        let shares = |share: fn(&SeatConsensus) -> u64| -> Vec<(Uid, u64)> {
            let shares = consensus.iter().map(|(uid, consensus)| (*uid, share(consensus)));
            shares.filter(|(_, share)| *share > 0).collect()
        };
        let (incentive, dividends) = (shares(|seat| seat.incentive), shares(|seat| seat.dividends));
        let mut books = Treasuries::<T>::get(run);
        let earned = terms.earned_emission(epoch, merged, details.params.epoch_windows);
        let pot = earned.min(books.map_or(0, |books| books.treasury));
        // A run that was never funded pays nothing; its record still contains the consensus.
        if let Some(books) = &mut books {
            let split = split(pot, terms.shares, &incentive, &dividends);
            Self::pay_out_epoch(run, epoch, split, &mut slips, &former, books);
            Treasuries::<T>::insert(run, books);
        }

        // The list is never longer than the number of seats.
        let slips = BoundedVec::truncate_from(slips.into_values().collect());
        History::<T>::insert(run, epoch % KEPT_EPOCHS, EpochRecord { epoch, pot, merged, slips });
        LastPaid::<T>::insert(run, epoch);
        let validators = dividends.len().min(seats as usize) as u64;
        weight_info::pay_epoch::<T>(seats).saturating_add(T::SharePayWeight::get().saturating_mul(validators))
    }

    /// Returns a slip without pay for each seat of the consensus that was held in that epoch. A later holder earns
    /// nothing for its predecessor's work.
    fn new_slips(
        run: RunId,
        details: &Run<T::AccountId>,
        epoch: u32,
        consensus: &[(Uid, SeatConsensus)],
        former: &Formers<'_, T>,
    ) -> BTreeMap<Uid, Slip> {
        let roster: BTreeMap<_, _> = Registry::<T>::roster(run).into_iter().collect();
        let in_time = |since: Window| since.epoch(details.params.epoch_windows) <= epoch;
        let registered_at = |uid: &Uid| match former.get(uid) {
            Some(former) => Some(former.seat.registered_at),
            None => roster.get(uid).filter(|entry| in_time(entry.since)).map(|entry| entry.registered_at),
        };
        let slip = |(uid, consensus): &(Uid, SeatConsensus)| {
            let registered_at = registered_at(uid)?;
            Some((*uid, Slip { uid: *uid, registered_at, consensus: *consensus, amount: 0, nominators: 0 }))
        };
        consensus.iter().filter_map(slip).collect()
    }

    fn pay_out_epoch(
        run: RunId,
        epoch: u32,
        split: Split,
        slips: &mut BTreeMap<Uid, Slip>,
        former: &Formers<'_, T>,
        books: &mut Treasury,
    ) {
        let account = Self::account(run);
        let burnt = Self::burn(&account, split.burn);
        for (uid, amount) in split.miners {
            if let Some(slip) = slips.get_mut(&uid) {
                slip.amount = slip.amount.saturating_add(amount);
            }
        }
        for (uid, amount) in split.validators {
            let Some(slip) = slips.get_mut(&uid) else { continue };
            let seat = SeatId { uid, registered_at: slip.registered_at };
            let own_stake = match former.get(&uid) {
                Some(former) => former.stake,
                None => Registry::<T>::seat(run, uid).map_or(0, |seat| seat.stake),
            };
            let part = T::Nominations::share_pay(run, seat, own_stake, amount, &account).min(amount);
            slip.nominators = slip.nominators.saturating_add(part);
            slip.amount = slip.amount.saturating_add(amount.saturating_sub(part));
        }

        let (mut credited, mut shared): (Balance, Balance) = (0, 0);
        for slip in slips.values() {
            Self::credit(run, epoch, slip, former.get(&slip.uid).copied());
            credited = credited.saturating_add(slip.amount);
            shared = shared.saturating_add(slip.nominators);
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

    /// Credits a slip's pay to the seat's holder, or to the former holder's coldkey.
    fn credit(run: RunId, epoch: u32, slip: &Slip, former: Option<&Former<T::AccountId>>) {
        let Slip { uid, amount, nominators, .. } = *slip;
        let whole = amount.saturating_add(nominators);
        if whole == 0 {
            return;
        }
        if let Some(former) = former {
            return Self::set_aside(run, uid, &former.coldkey, amount);
        }
        EarningsOf::<T>::mutate(run, uid, |earnings| {
            earnings.claimable = earnings.claimable.saturating_add(amount);
            earnings.earned = earnings.earned.saturating_add(amount);
            earnings.recent = decayed_pay(earnings, epoch).saturating_add(whole);
            earnings.recent_at = epoch;
        });
        Self::deposit_event(Event::Credited { run, epoch, uid, amount });
    }

    /// Burns `amount` of a run's account. Returns the burnt amount.
    fn burn(account: &T::AccountId, amount: Balance) -> Balance {
        if amount == 0 {
            return 0;
        }
        T::Currency::burn_from(account, amount, Preservation::Preserve, Precision::Exact, Fortitude::Polite)
            .defensive_proof("the account holds the treasury and more")
            .unwrap_or(0)
    }

    /// Keeps `amount` for the coldkey of a former seat.
    fn set_aside(run: RunId, uid: Uid, coldkey: &T::AccountId, amount: Balance) {
        if amount > 0 {
            FormerPay::<T>::mutate(run, coldkey, |former| *former = former.saturating_add(amount));
            Self::deposit_event(Event::FormerPayCredited { run, uid, coldkey: coldkey.clone(), amount });
        }
    }
}

/// Returns the recent pay of a seat as of `epoch`: it halves with each epoch.
fn decayed_pay(earnings: &Earnings, epoch: u32) -> Balance {
    let epochs = epoch.saturating_sub(earnings.recent_at);
    earnings.recent.checked_shr(epochs).unwrap_or(0)
}

impl<T: Config> Payslips for Pallet<T> {
    fn recent_pay(run: RunId, uid: Uid) -> Balance {
        // As of the last paid epoch, so that nothing decays while a run is stopped.
        let last = LastPaid::<T>::get(run).unwrap_or(0);
        decayed_pay(&EarningsOf::<T>::get(run, uid), last)
    }

    fn treasury(run: RunId) -> Balance {
        Self::treasury(run)
    }
}

impl<T: Config> OnSeats<T::AccountId> for Pallet<T> {
    fn vacated(run: RunId, uid: Uid, seat: &Seat<T::AccountId>, _: Ending) -> Weight {
        PayoutOf::<T>::remove(run, uid);
        let amount = EarningsOf::<T>::take(run, uid).claimable;
        Self::set_aside(run, uid, &seat.coldkey, amount);
        weight_info::vacated::<T>()
    }
}
