//! What is behind one seat: who owns how much of it, and who earned what. Plain arithmetic (PROT-29, PROT-32).
//!
//! A nominator holds shares, not an amount: a slash lowers what all shares are worth at once, and no nominator has to
//! be looked up. Likewise pay is written down once, for a share, however many there are. All roundings are against whoever
//! acts, so that a pool never owes more than it holds; what they leave is dust, which stays in the pool.

use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use frame::{
    arithmetic::{Rounding, helpers_128bit::multiply_by_rational_with_rounding},
    deps::sp_core::U256,
};
use pallet_registry::Balance;
use protocol::{RunId, SeatId, Window, params::Permille};
use scale_info::TypeInfo;

/// Pay for a share is counted in parts of a unit, of which there are 2^120: what rounding them down loses is less than a unit
/// for each payment while there are fewer than 2^120 shares.
const PAY_BITS: u32 = 120;

/// A pool whose shares have kept no more than a 2^20th of their worth is closed: shares would become too many to count.
const WORTH_BITS: u32 = 20;

/// How far a pool has come.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub enum Stage {
    /// It counts behind the seat, and anybody may join.
    Open,
    /// The seat's holder is gone, and everything is on its way out: it answers for what the holder did like the holder's own
    /// stake, and is free from the window `until` on.
    Unbonding {
        until: Window,
        /// What the holder kept of its nominators' pay in the end: the last epoch may be paid after it left.
        commission: Permille,
    },
    /// Next to nothing is left: everybody may leave at once.
    Spent,
}

/// Everything that others have put behind one holder of a seat.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Pool {
    pub run: RunId,
    /// The seat as this holder has it, or had.
    pub seat: SeatId,
    /// What all shares together are worth.
    pub value: Balance,
    /// Those on their way out included.
    pub shares: u128,
    /// On their way out: slashed like the others, but they earn nothing and do not count as stake.
    pub leaving: u128,
    /// What a share that was here from the beginning has earned, in parts of a unit.
    pub pay_per_share: U256,
    /// Pay that came in and was not claimed yet.
    pub unclaimed: Balance,
    /// Accounts that hold shares or have pay to claim.
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

    /// Shares that earn and count as stake.
    pub(crate) fn active(&self) -> u128 {
        self.shares.saturating_sub(self.leaving)
    }

    /// What counts as the seat's stake.
    pub fn behind(&self) -> Balance {
        self.worth(self.active())
    }

    /// What `shares` of the pool would bring now.
    pub fn worth(&self, shares: u128) -> Balance {
        mul_div(self.value, shares, self.shares, Rounding::Down).unwrap_or(0)
    }

    /// Takes `amount` in and returns the shares that it buys; `None` where they exceed what a number can hold.
    pub(crate) fn join(&mut self, amount: Balance) -> Option<u128> {
        let bought = match self.shares {
            0 => amount,
            shares => mul_div(amount, shares, self.value, Rounding::Down)?,
        };
        let (value, shares) = (self.value.checked_add(amount)?, self.shares.checked_add(bought)?);
        (self.value, self.shares) = (value, shares);
        Some(bought)
    }

    /// How many of `own` shares have to go so that `amount` leaves: all of them where that is all they are worth.
    pub(crate) fn shares_for(&self, amount: Balance, own: u128) -> u128 {
        if amount >= self.worth(own) {
            return own;
        }
        mul_div(amount, self.shares, self.value, Rounding::Up).unwrap_or(own).min(own)
    }

    /// Takes `active` shares, and `leaving` ones that were on their way out, out of the pool. Returns what they are
    /// worth.
    pub(crate) fn release(&mut self, active: u128, leaving: u128) -> Balance {
        let shares = active.saturating_add(leaving);
        let amount = self.worth(shares);
        self.value = self.value.saturating_sub(amount);
        self.shares = self.shares.saturating_sub(shares);
        self.leaving = self.leaving.saturating_sub(leaving);
        amount
    }

    /// Whether everybody may leave at once.
    pub(crate) fn is_free(&self, now: Window) -> bool {
        match self.stage {
            Stage::Open => false,
            Stage::Unbonding { until, .. } => now >= until,
            Stage::Spent => true,
        }
    }

    /// The first window in which shares can be withdrawn that were to be free from `until` on; at `now`, those of a spent
    /// pool.
    pub(crate) fn frees(&self, until: Window, now: Window) -> Window {
        match self.stage {
            Stage::Open => until,
            Stage::Unbonding { until: all, .. } => until.min(all),
            Stage::Spent => now,
        }
    }

    /// Takes `share` of the value from everybody, and returns it.
    pub(crate) fn slash(&mut self, share: Permille) -> Balance {
        let taken = thousandths(self.value, share);
        self.value = self.value.saturating_sub(taken);
        taken
    }

    /// Whether shares are worth so little that the pool cannot go on.
    pub(crate) fn is_spent(&self) -> bool {
        self.shares > 0 && self.value <= self.shares >> WORTH_BITS
    }

    /// Books `amount` as earned by the shares that earn. There must be one.
    pub(crate) fn pay(&mut self, amount: Balance) {
        let each = (U256::from(amount) << PAY_BITS).checked_div(self.active().into()).unwrap_or_default();
        self.pay_per_share = self.pay_per_share.saturating_add(each);
        self.unclaimed = self.unclaimed.saturating_add(amount);
    }

    /// What `shares` earned since the pool's pay for a share was `mark`.
    pub(crate) fn earned(&self, shares: u128, mark: U256) -> Balance {
        let each = self.pay_per_share.saturating_sub(mark);
        let earned = each.saturating_mul(shares.into()) >> PAY_BITS;
        Balance::try_from(earned).unwrap_or(Balance::MAX).min(self.unclaimed)
    }
}

/// Of `amount`, which a seat with `own` stake and `behind` behind it earned: what its nominators get after
/// `commission`.
pub(crate) fn nominators_part(
    amount: Balance,
    own: Balance,
    behind: Balance,
    commission: Permille,
) -> Balance {
    // Where the sum exceeds a number, so does the token's issuance.
    let gross = mul_div(amount, behind, own.saturating_add(behind), Rounding::Down).unwrap_or(0).min(amount);
    thousandths(gross, Permille(1000u16.saturating_sub(commission.0)))
}

/// `⌊amount · share / 1000⌋`, never more than `amount`.
pub(crate) fn thousandths(amount: Balance, share: Permille) -> Balance {
    mul_div(amount, u128::from(share.0.min(1000)), 1000, Rounding::Down).unwrap_or(0)
}

/// `a · b / c`; `None` where `c` is zero or a number cannot hold it.
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
    fn two_nominators_bear_a_slash_and_earn_by_what_they_put_in() {
        let mut pool = pool();
        assert_eq!((pool.join(300), pool.join(100)), (Some(300), Some(100)));
        pool.pay(200);
        let one = U256::zero();
        assert_eq!((pool.earned(300, one), pool.earned(100, one)), (150, 50));
        assert_eq!(pool.slash(Permille(250)), 100);
        assert_eq!((pool.worth(300), pool.worth(100), pool.behind()), (225, 75, 300));
        // Whoever comes after the slash bears none of it, and earns nothing of what came before.
        assert_eq!(pool.join(150), Some(200));
        let mark = pool.pay_per_share;
        assert_eq!((pool.worth(200), pool.earned(200, mark)), (150, 0));
        pool.pay(300);
        assert_eq!([pool.earned(300, one), pool.earned(100, one), pool.earned(200, mark)], [300, 100, 100]);
    }

    #[test]
    fn leaving_shares_are_slashed_and_earn_nothing() {
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
    fn who_takes_out_part_gives_up_shares_rounded_up_and_who_takes_all_gives_up_all() {
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
    fn a_seat_keeps_its_own_stake_s_part_and_its_commission() {
        assert_eq!(nominators_part(1000, 100, 300, Permille(0)), 750);
        assert_eq!(nominators_part(1000, 100, 300, Permille(100)), 675);
        assert_eq!(nominators_part(1000, 100, 300, Permille(1000)), 0);
        // The commission is rounded up.
        assert_eq!(nominators_part(10, 0, 1, Permille(1)), 9);
        assert_eq!(nominators_part(1000, 0, 0, Permille(0)), 0);
        assert_eq!(nominators_part(u128::MAX, u128::MAX, u128::MAX, Permille(0)), u128::MAX);
    }

    #[test]
    fn a_pool_is_spent_when_its_shares_are_worth_next_to_nothing() {
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
    fn more_shares_than_a_number_holds_are_refused_and_change_nothing() {
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
        fn no_order_of_joining_and_leaving_takes_out_more_than_was_put_in(
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
            // A unit for each payment and each holder, at most.
            prop_assert!(paid - earned <= 2 * held.len() as u128);
            let out: u128 = held.iter().map(|(shares, _)| pool.release(*shares, 0)).sum();
            prop_assert_eq!(out + taken, put_in);
            prop_assert_eq!((pool.value, pool.shares), (0, 0));
        }
    }
}
