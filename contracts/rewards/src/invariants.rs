//! Invariants that hold at every block.

use crate::{pallet::*, *};
use frame::prelude::{ensure, fungible::Inspect};
use protocol::RunId;

impl<T: Config> Pallet<T> {
    /// Checks the invariants that hold at every block.
    ///
    /// # Errors
    /// Names the first violated invariant.
    pub fn check_invariants() -> Result<(), &'static str> {
        let paid_runs = EarningsOf::<T>::iter_keys().map(|(run, _)| run);
        if paid_runs
            .chain(FormerPay::<T>::iter_keys().map(|(run, _)| run))
            .any(|run| !Treasuries::<T>::contains_key(run))
        {
            return Err("a run that was never funded has paid a seat");
        }
        if FormerPay::<T>::iter_values().any(|amount| amount == 0) {
            return Err("an amount of zero is set aside for a former seat");
        }
        if PayoutOf::<T>::iter_values().any(|payout| payout == Payout::Account) {
            return Err("the default payout is stored for a seat");
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
            if record.merged == 0 && record.pot > 0 {
                return Err("an epoch without merged windows has a pot");
            }
            let paid = record.slips.iter().flat_map(|slip| [slip.amount, slip.nominators]);
            ensure!(paid.fold(0, Balance::saturating_add) <= record.pot, "an epoch paid more than its pot");
        }
        for (run, books) in Treasuries::<T>::iter() {
            Self::check_books(run, &books)?;
        }
        Ok(())
    }

    fn check_books(run: RunId, books: &Treasury) -> Result<(), &'static str> {
        let seats = EarningsOf::<T>::iter_prefix_values(run).map(|earnings| earnings.claimable);
        let claimable = seats
            .chain(FormerPay::<T>::iter_prefix_values(run))
            .try_fold(books.owner_claimable, Balance::checked_add)
            .ok_or("claimable pay overflows")?;
        let left = books.treasury.checked_add(claimable).ok_or("the books overflow")?;
        let gone = books.paid.checked_add(books.burnt).ok_or("the books overflow")?;
        if left.checked_add(gone) != Some(books.funded) {
            return Err("treasury, claimable, paid and burnt do not add up to the funds");
        }
        // Any account may transfer to this one, so it may hold more.
        let balance = T::Currency::balance(&Self::account(run));
        if balance < left.saturating_add(T::Currency::minimum_balance()) {
            return Err("a run's account holds less than its books say");
        }
        if EarningsOf::<T>::iter_prefix_values(run).any(|earnings| earnings.claimable > earnings.earned) {
            return Err("a seat may claim more than it ever earned");
        }
        Ok(())
    }
}
