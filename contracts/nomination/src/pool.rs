//! The pool of one seat's nominations: shares, value and pay, as plain arithmetic (PROT-29, PROT-32).
//!
//! A nominator holds shares rather than an amount. A slash lowers the value of all shares and a payment raises the pay
//! per share, without iterating over nominators. Every rounding is against the account that acts, so that a pool never
//! owes more than it holds. The remainders stay in the pool as dust.

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::{
    arithmetic::{Rounding, helpers_128bit::multiply_by_rational_with_rounding},
    deps::sp_core::U256,
};
use pallet_registry::{Balance, NOMINATIONS_PER_STAKE, share_of};
use protocol::{RunId, SeatId, Window, params::Permille};
use scale_info::TypeInfo;

/// Pay per share is counted in 2^-120 of a unit: rounding it down loses less than a unit per payment while there are
/// fewer than 2^120 shares.
const PAY_BITS: u32 = 120;

/// A pool is closed once its shares retain at most 2^-20 of their value: the number of shares would overflow.
const WORTH_BITS: u32 = 20;

/// Stage of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub enum Stage {
    /// The pool counts for its seat, and any account may join.
    Open,
    /// The seat's holder has left, and everything unbonds. The pool is slashed with the former holder's stake, and
    /// is free from window `until`.
    Unbonding {
        until: Window,
        /// Commission of the former holder: its last epoch may be paid after it left.
        commission: Permille,
    },
    /// Almost nothing is left: every nominator may withdraw at once.
    Spent,
}

/// Nominations of one holder of a seat.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Pool {
    pub run: RunId,
    /// Seat of the holder.
    pub seat: SeatId,
    /// Value of all shares.
    pub value: Balance,
    /// All shares, including the unbonding ones.
    pub shares: u128,
    /// Unbonding shares: they can be slashed, earn nothing, and do not count as stake.
    pub leaving: u128,
    /// Pay of one share since the creation of the pool, in 2^-120 of a unit.
    pub pay_per_share: U256,
    /// Unclaimed pay.
    pub unclaimed: Balance,
    /// Number of accounts that hold shares or have unclaimed pay.
    pub nominators: u32,
    pub stage: Stage,
}

impl Pool {
    pub(crate) fn new(run: RunId, seat: SeatId) -> Pool {
        Pool {
            run,
            seat,
            value: 0,
            shares: 0,
            leaving: 0,
            pay_per_share: U256::zero(),
            unclaimed: 0,
            nominators: 0,
            stage: Stage::Open,
        }
    }

    /// Returns the shares that earn and count as stake.
    pub(crate) fn active(&self) -> u128 {
        self.shares.saturating_sub(self.leaving)
    }

    /// Returns the value that counts as the seat's stake.
    pub fn behind(&self) -> Balance {
        self.worth(self.active())
    }

    /// Returns the present value of `shares`.
    pub fn worth(&self, shares: u128) -> Balance {
        mul_div(self.value, shares, self.shares, Rounding::Down).unwrap_or(0)
    }

    /// Adds `amount` and returns the shares for it; `None` on overflow.
    pub(crate) fn join(&mut self, amount: Balance) -> Option<u128> {
        let bought = match self.shares {
            0 => amount,
            shares => mul_div(amount, shares, self.value, Rounding::Down)?,
        };
        let (value, shares) = (self.value.checked_add(amount)?, self.shares.checked_add(bought)?);
        (self.value, self.shares) = (value, shares);
        Some(bought)
    }

    /// Returns the number of `own` shares to remove for `amount`: all of them if `amount` is their whole value.
    pub(crate) fn shares_for(&self, amount: Balance, own: u128) -> u128 {
        if amount >= self.worth(own) {
            return own;
        }
        mul_div(amount, self.shares, self.value, Rounding::Up).unwrap_or(own).min(own)
    }

    /// Removes `active` and `leaving` shares. Returns their value.
    pub(crate) fn release(&mut self, active: u128, leaving: u128) -> Balance {
        let shares = active.saturating_add(leaving);
        let amount = self.worth(shares);
        self.value = self.value.saturating_sub(amount);
        self.shares = self.shares.saturating_sub(shares);
        self.leaving = self.leaving.saturating_sub(leaving);
        amount
    }

    /// Returns whether every nominator may withdraw at once.
    pub(crate) fn is_free(&self, now: Window) -> bool {
        match self.stage {
            Stage::Open => false,
            Stage::Unbonding { until, .. } => now >= until,
            Stage::Spent => true,
        }
    }

    /// Returns the first window in which shares unbonding until `until` can be withdrawn.
    pub(crate) fn frees(&self, until: Window, now: Window) -> Window {
        match self.stage {
            Stage::Open => until,
            Stage::Unbonding { until: all, .. } => until.min(all),
            Stage::Spent => now,
        }
    }

    /// Removes `share` of the pool's value, and returns it.
    pub(crate) fn slash(&mut self, share: Permille) -> Balance {
        let taken = share_of(self.value, share);
        self.value = self.value.saturating_sub(taken);
        taken
    }

    /// Returns whether the shares' value is too low for the pool to continue.
    pub(crate) fn is_spent(&self) -> bool {
        self.shares > 0 && self.value <= self.shares >> WORTH_BITS
    }

    /// Adds `amount` as pay of the active shares, of which there is at least one.
    pub(crate) fn pay(&mut self, amount: Balance) {
        let each = (U256::from(amount) << PAY_BITS).checked_div(self.active().into()).unwrap_or_default();
        self.pay_per_share = self.pay_per_share.saturating_add(each);
        self.unclaimed = self.unclaimed.saturating_add(amount);
    }

    /// Returns the pay of `shares` since the pay per share was `mark`.
    pub(crate) fn earned(&self, shares: u128, mark: U256) -> Balance {
        let each = self.pay_per_share.saturating_sub(mark);
        let earned = each.saturating_mul(shares.into()) >> PAY_BITS;
        Balance::try_from(earned).unwrap_or(Balance::MAX).min(self.unclaimed)
    }
}

/// Returns the nominators' part, after the commission, of `amount` earned by a seat with `own` stake and `behind`
/// nominated. The part is by stake, and at most that of the nominations that count.
pub(crate) fn nominators_part(
    amount: Balance,
    own: Balance,
    behind: Balance,
    commission: Permille,
) -> Balance {
    // The sum is below the token's issuance, so it does not overflow.
    let by_stake = mul_div(amount, behind, own.saturating_add(behind), Rounding::Down).unwrap_or(0);
    let most =
        mul_div(amount, NOMINATIONS_PER_STAKE, NOMINATIONS_PER_STAKE.saturating_add(1), Rounding::Down);
    let gross = by_stake.min(most.unwrap_or(0));
    share_of(gross, Permille(1000u16.saturating_sub(commission.0)))
}

/// Returns `a · b / c`; `None` if `c` is zero or on overflow.
fn mul_div(a: u128, b: u128, c: u128, rounding: Rounding) -> Option<u128> {
    multiply_by_rational_with_rounding(a, b, c, rounding)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::{Block, Uid};

    fn pool() -> Pool {
        Pool::new(RunId(0), SeatId { uid: Uid(0), registered_at: Block(0) })
    }

    #[test]
    fn nominators_share_slashes_and_pay_by_their_amounts() {
        let mut pool = pool();
        assert_eq!((pool.join(300), pool.join(100)), (Some(300), Some(100)));
        pool.pay(200);
        let one = U256::zero();
        assert_eq!((pool.earned(300, one), pool.earned(100, one)), (150, 50));
        assert_eq!(pool.slash(Permille(250)), 100);
        assert_eq!((pool.worth(300), pool.worth(100), pool.behind()), (225, 75, 300));
        // A later nominator is not affected by an earlier slash, and receives none of the earlier pay.
        assert_eq!(pool.join(150), Some(200));
        let mark = pool.pay_per_share;
        assert_eq!((pool.worth(200), pool.earned(200, mark)), (150, 0));
        pool.pay(300);
        assert_eq!([pool.earned(300, one), pool.earned(100, one), pool.earned(200, mark)], [300, 100, 100]);
    }

    #[test]
    fn unbonding_shares_are_slashed_and_earn_nothing() {
        let mut pool = pool();
        pool.join(300);
        pool.join(100);
        pool.leaving = 100;
        pool.pay(150);
        assert_eq!((pool.behind(), pool.earned(300, U256::zero())), (300, 150));
        pool.slash(Permille(500));
        assert_eq!(pool.release(0, 100), 50);
        assert_eq!((pool.value, pool.shares, pool.leaving), (150, 300, 0));
    }

    #[test]
    fn a_partial_withdrawal_costs_shares_rounded_up_and_a_full_one_costs_all() {
        let mut pool = pool();
        pool.join(3);
        pool.join(7);
        pool.slash(Permille(300));
        assert_eq!((pool.value, pool.worth(3)), (7, 2));
        assert_eq!(pool.shares_for(1, 3), 2);
        assert_eq!(pool.shares_for(2, 3), 3);
        assert_eq!(pool.shares_for(0, 3), 0);
        assert_eq!(pool.release(3, 0), 2);
        assert_eq!(pool.release(7, 0), 5);
        assert_eq!((pool.value, pool.shares), (0, 0));
    }

    #[test]
    fn a_seat_keeps_the_part_of_its_own_stake_and_its_commission() {
        assert_eq!(nominators_part(1000, 100, 300, Permille(0)), 750);
        assert_eq!(nominators_part(1000, 100, 300, Permille(100)), 675);
        assert_eq!(nominators_part(1000, 100, 300, Permille(1000)), 0);
        // The commission is rounded up.
        assert_eq!(nominators_part(11, 1, 10, Permille(1)), 9);
        assert_eq!(nominators_part(1000, 0, 0, Permille(0)), 0);
        // Above ten times the own stake, nominations earn no more.
        assert_eq!(
            [1000, 1001, 9_000_000].map(|behind| nominators_part(1100, 100, behind, Permille(0))),
            [1000; 3]
        );
        assert_eq!(nominators_part(1100, 0, 1, Permille(0)), 1000);
        let largest = nominators_part(u128::MAX, u128::MAX, u128::MAX, Permille(0));
        assert!(largest > u128::MAX / 12 * 10);
    }

    #[test]
    fn a_pool_is_spent_when_its_shares_lost_almost_all_value() {
        let mut pool = pool();
        assert!(!pool.is_spent());
        pool.join(1 << 40);
        for _ in 0..6 {
            pool.slash(Permille(900));
            assert!(!pool.is_spent());
        }
        pool.slash(Permille(900));
        assert!(pool.is_spent());
        let mut pool = self::pool();
        pool.join(5);
        pool.slash(Permille(1000));
        assert!(pool.is_spent());
    }

    #[test]
    fn an_overflow_of_shares_is_refused_and_changes_nothing() {
        let mut pool = pool();
        pool.join(u128::MAX - 5);
        let before = pool.clone();
        assert_eq!(pool.join(6), None);
        assert_eq!(pool, before);
        pool.slash(Permille(999));
        let before = pool.clone();
        assert_eq!(pool.join(u128::MAX / 2), None);
        assert_eq!(pool, before);
        pool.pay(u128::MAX);
        assert!(pool.earned(u128::MAX - 5, U256::zero()) >= u128::MAX - 1024);
    }

    proptest! {
        #[test]
        fn no_order_of_joins_and_withdrawals_pays_out_more_than_was_paid_in(
            joins in proptest::collection::vec(1u128..1 << 90, 1..8),
            slashes in proptest::collection::vec(0u16..300, 1..8),
            pays in proptest::collection::vec(0u128..1 << 90, 1..8),
        ) {
            let mut pool = pool();
            let mut held = Vec::new();
            let (mut put_in, mut taken, mut paid) = (0u128, 0u128, 0u128);
            for (index, amount) in joins.iter().enumerate() {
                let mark = pool.pay_per_share;
                let Some(shares) = pool.join(*amount) else { continue };
                put_in += amount;
                prop_assert!(pool.worth(shares) <= *amount);
                held.push((shares, mark));
                taken += pool.slash(Permille(slashes[index % slashes.len()]));
                if pool.active() > 0 {
                    pool.pay(pays[index % pays.len()]);
                    paid += pays[index % pays.len()];
                }
            }
            let earned: u128 = held.iter().map(|(shares, mark)| pool.earned(*shares, *mark)).sum();
            prop_assert!(earned <= paid);
            // At most one unit per payment and holder.
            prop_assert!(paid - earned <= 2 * held.len() as u128);
            let out: u128 = held.iter().map(|(shares, _)| pool.release(*shares, 0)).sum();
            prop_assert_eq!(out + taken, put_in);
            prop_assert_eq!((pool.value, pool.shares), (0, 0));
        }
    }
}
