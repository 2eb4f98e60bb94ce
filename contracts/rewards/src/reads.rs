//! Reads for the runtime API.

use crate::{pallet::*, *};
use alloc::vec::Vec;
use frame::prelude::*;
use pallet_registry::Pallet as Registry;
use protocol::{
    RunId,
    view::{Payslip, TreasuryView},
};

impl<T: Config> Pallet<T> {
    /// Returns the account of a run.
    pub fn account(run: RunId) -> T::AccountId {
        T::PalletId::get().into_sub_account_truncating(run.0)
    }

    /// Returns the unassigned funds of `run`.
    pub fn treasury(run: RunId) -> Balance {
        Treasuries::<T>::get(run).map_or(0, |books| books.treasury)
    }

    /// Returns the books of a run, as clients read them.
    pub fn treasury_view(run: RunId) -> TreasuryView {
        let Treasury { funded, treasury, owner_claimable, paid, burnt } =
            Treasuries::<T>::get(run).unwrap_or_default();
        // By the invariant of the books, the rest is claimable.
        let claimable = funded.saturating_sub(treasury).saturating_sub(paid).saturating_sub(burnt);
        TreasuryView { funded, treasury, claimable, owner_claimable, paid, burnt }
    }

    /// Returns whether a seat's pay is added to its stake.
    pub fn pays_into_stake(run: RunId, uid: Uid) -> bool {
        PayoutOf::<T>::get(run, uid) == Payout::Stake
    }

    /// Returns the payslips of a seat's present holder in the last epochs, the oldest first.
    pub fn payslips(run: RunId, uid: Uid) -> Vec<Payslip> {
        let (Some(seat), Some(last)) = (Registry::<T>::seat(run, uid), LastPaid::<T>::get(run)) else {
            return Vec::new();
        };
        let first = last.saturating_sub(KEPT_EPOCHS - 1);
        (first..=last)
            .filter_map(|epoch| {
                let record = History::<T>::get(run, epoch % KEPT_EPOCHS)?;
                // An epoch without a consensus leaves an older record in its place.
                let slip = match record.slips.binary_search_by_key(&uid, |slip| slip.uid) {
                    Ok(index) if record.epoch == epoch => record.slips.get(index)?,
                    _ => return None,
                };
                (slip.registered_at == seat.registered_at).then_some(Payslip {
                    epoch,
                    pot: record.pot,
                    merged: record.merged,
                    consensus: slip.consensus,
                    amount: slip.amount,
                    nominators: slip.nominators,
                })
            })
            .collect()
    }
}
