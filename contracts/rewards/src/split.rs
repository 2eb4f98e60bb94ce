//! Divides an epoch's pay (PROT-32).

use alloc::vec::Vec;
use frame::{arithmetic::Rounding, arithmetic::helpers_128bit::multiply_by_rational_with_rounding};
use pallet_registry::{Balance, share_of};
use protocol::{Uid, params::PayShares};

/// The parts of a pot. The remainder stays in the treasury.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split {
    /// Parts by incentive, in the order given, without zeros.
    pub miners: Vec<(Uid, Balance)>,
    /// Parts by dividends, including the nominators' part.
    pub validators: Vec<(Uid, Balance)>,
    pub owner: Balance,
    pub burn: Balance,
}

/// Divides `pot` by the run's shares, and the parts of miners and validators by `incentive` and `dividends`. Rounds
/// down, so the split never exceeds the pot.
pub(crate) fn split(
    pot: Balance,
    shares: PayShares,
    incentive: &[(Uid, u64)],
    dividends: &[(Uid, u64)],
) -> Split {
    Split {
        miners: parts(share_of(pot, shares.miners), incentive),
        validators: parts(share_of(pot, shares.validators), dividends),
        owner: share_of(pot, shares.owner),
        burn: share_of(pot, shares.burn),
    }
}

fn parts(amount: Balance, parts: &[(Uid, u64)]) -> Vec<(Uid, Balance)> {
    let total: u128 = parts.iter().map(|(_, part)| u128::from(*part)).sum();
    let paid = |(uid, part): &(Uid, u64)| (*uid, fraction(amount, u128::from(*part), total));
    parts.iter().map(paid).filter(|(_, amount)| *amount > 0).collect()
}

/// Returns `⌊amount · part / total⌋`; 0 if `total` is 0.
fn fraction(amount: Balance, part: u128, total: u128) -> Balance {
    if total == 0 {
        return 0;
    }
    // At most `amount`, as a part never exceeds the total.
    multiply_by_rational_with_rounding(amount, part, total, Rounding::Down).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::params::Permille;

    const SHARES: PayShares = PayShares {
        miners: Permille(500),
        validators: Permille(400),
        owner: Permille(90),
        burn: Permille(10),
    };

    #[test]
    fn a_pot_is_divided_by_the_run_s_shares() {
        let split = split(1000, SHARES, &[(Uid(1), 1), (Uid(2), 3)], &[(Uid(7), 9)]);
        assert_eq!(split.miners, [(Uid(1), 125), (Uid(2), 375)]);
        assert_eq!(split.validators, [(Uid(7), 400)]);
        assert_eq!((split.owner, split.burn), (90, 10));
    }

    #[test]
    fn an_unearned_share_is_not_paid() {
        let split = split(1000, SHARES, &[(Uid(1), 0)], &[]);
        assert_eq!(split, Split { miners: vec![], validators: vec![], owner: 90, burn: 10 });
    }

    proptest! {
        #[test]
        fn a_split_never_exceeds_the_pot_and_leaves_less_than_a_unit_a_part(
            pot in prop_oneof![0u128..10_000, any::<u128>()],
            cuts in proptest::array::uniform3(0u16..=1000),
            incentive in proptest::collection::vec(1u64..=u64::MAX, 1..8),
            dividends in proptest::collection::vec(1u64..=1 << 32, 1..4),
        ) {
            let mut cuts = cuts;
            cuts.sort_unstable();
            let shares = PayShares {
                miners: Permille(cuts[0]),
                validators: Permille(cuts[1] - cuts[0]),
                owner: Permille(cuts[2] - cuts[1]),
                burn: Permille(1000 - cuts[2]),
            };
            let with_uids = |parts: &[u64], first: u16| -> Vec<(Uid, u64)> {
                (first..).map(Uid).zip(parts.iter().copied()).collect()
            };
            let split = split(pot, shares, &with_uids(&incentive, 0), &with_uids(&dividends, 100));
            let seats = split.miners.iter().chain(&split.validators);
            let spent = seats.map(|(_, amount)| *amount).sum::<u128>() + split.owner + split.burn;
            prop_assert!(spent <= pot);
            prop_assert!(pot - spent < 4 + incentive.len() as u128 + dividends.len() as u128);
        }
    }
}
