//! What the validators' weights come to: Yuma consensus, in fixed point (PROT-31).
//!
//! A seat's consensus weight is the highest that more than half of the stake stands behind. What a validator gave beyond
//! it is clipped: it moves no pay, and costs the validator dividends. So a minority can neither raise a seat nor sink it.
//!
//! Integers only, as the chain computes this and everyone recomputes it. Fractions are parts of [`ONE`].
//!
//! Not here yet: bonds, the moving averages of clipped weights that would earn the dividends. Until then a dividend is
//! what a bond without a memory earns: stake times the part of the ballot that stood.

use crate::Uid;
use alloc::{collections::BTreeMap, vec::Vec};

/// The whole of which shares are parts.
pub const ONE: u64 = 1 << 32;

/// One validator's weights. A validator that posted none is an empty ballot: its stake counts, for nobody.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ballot {
    pub validator: Uid,
    pub stake: u128,
    /// Only the proportions within one ballot matter. Of two weights for one seat the lower counts.
    pub weights: Vec<(Uid, u16)>,
}

/// All lists are in uid order and leave out zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consensus {
    /// Consensus weight of each seat, the highest being 65535: the selection draws by them (PROT-16).
    pub weights: Vec<(Uid, u16)>,
    /// Seats' shares of what is paid to miners. They add up to [`ONE`].
    pub incentive: Vec<(Uid, u64)>,
    /// Validators' shares of what is paid to validators. They add up to [`ONE`].
    pub dividends: Vec<(Uid, u64)>,
    /// Per validator, how much of its ballot the consensus let stand, in parts of [`ONE`].
    pub trust: Vec<(Uid, u64)>,
}

/// The consensus of `ballots`; `None` where no seat has more than half of the stake behind it, and the last weights stay.
///
/// The order of the ballots does not matter; of two by one validator only one counts.
pub fn yuma(ballots: &[Ballot]) -> Option<Consensus> {
    let voters = voters(ballots);
    let total: u128 = voters.iter().map(|voter| voter.stake).sum();

    // What everyone gave to each seat, and of that the most that more than half of the stake stands behind.
    let mut given = BTreeMap::<Uid, Vec<(u64, u128)>>::new();
    for voter in &voters {
        for (seat, weight) in &voter.weights {
            given.entry(*seat).or_default().push((*weight, voter.stake));
        }
    }
    let consensus: BTreeMap<Uid, u64> = given
        .into_iter()
        .map(|(seat, given)| (seat, lower_median(given, total)))
        .filter(|(_, weight)| *weight > 0)
        .collect();

    // Clip, and add up by seat and by validator.
    let mut rank = BTreeMap::<Uid, u128>::new();
    let mut earned = Vec::new();
    let mut trust = Vec::new();
    for voter in &voters {
        let mut stood = 0;
        for (seat, weight) in &voter.weights {
            let clipped = (*weight).min(consensus.get(seat).copied().unwrap_or(0));
            *rank.entry(*seat).or_default() += voter.stake * u128::from(clipped);
            stood += clipped;
        }
        earned.push((voter.uid, voter.stake * u128::from(stood)));
        trust.push((voter.uid, stood));
    }
    trust.retain(|(_, stood)| *stood > 0);

    let incentive = shares_of_one(rank.into_iter().collect())?;
    let dividends = shares_of_one(earned)?;
    Some(Consensus { weights: as_weights(&consensus), incentive, dividends, trust })
}

struct Voter {
    uid: Uid,
    /// Below `2^STAKE_BITS`.
    stake: u128,
    /// In parts of [`ONE`], adding up to at most [`ONE`]; no zeros.
    weights: BTreeMap<Uid, u64>,
}

/// With 2^16 validators and weights below 2^32, sums stay below 2^94, and a sum times [`ONE`] below 2^126.
const STAKE_BITS: u32 = 46;

/// Ballots as fractions, one per validator. All stakes lose the same low bits, where the largest has too many.
fn voters(ballots: &[Ballot]) -> Vec<Voter> {
    let mut ballots: Vec<&Ballot> = ballots.iter().collect();
    ballots.sort_unstable();
    ballots.dedup_by_key(|ballot| ballot.validator);

    let largest = ballots.iter().map(|ballot| ballot.stake).max().unwrap_or(0);
    let excess_bits = (u128::BITS - largest.leading_zeros()).saturating_sub(STAKE_BITS);
    ballots
        .into_iter()
        .map(|ballot| Voter {
            uid: ballot.validator,
            stake: ballot.stake >> excess_bits,
            weights: fractions(&ballot.weights),
        })
        .collect()
}

fn fractions(weights: &[(Uid, u16)]) -> BTreeMap<Uid, u64> {
    let mut by_seat = BTreeMap::<Uid, u64>::new();
    for (seat, weight) in weights {
        let weight = u64::from(*weight);
        by_seat.entry(*seat).and_modify(|known| *known = weight.min(*known)).or_insert(weight);
    }
    // At most 2^16 seats of less than 2^16 each.
    let sum: u64 = by_seat.values().sum();
    by_seat.retain(|_, weight| *weight > 0);
    for weight in by_seat.values_mut() {
        *weight = *weight * ONE / sum;
    }
    by_seat
}

/// The highest weight that more than half of `total` gave at least; 0 where no more than half gave any.
fn lower_median(mut given: Vec<(u64, u128)>, total: u128) -> u64 {
    given.sort_unstable_by_key(|(weight, _)| core::cmp::Reverse(*weight));
    let mut behind = 0;
    for (weight, stake) in given {
        behind += stake;
        if behind > total / 2 {
            return weight;
        }
    }
    0
}

/// Amounts as parts of [`ONE`] that add up to it exactly: rounded down, and what is missing to the largest remainders
/// (ties: lower uid). `None` where all amounts are 0.
fn shares_of_one(amounts: Vec<(Uid, u128)>) -> Option<Vec<(Uid, u64)>> {
    let total: u128 = amounts.iter().map(|(_, amount)| *amount).sum();
    if total == 0 {
        return None;
    }
    let mut parts: Vec<(Uid, u64, u128)> = amounts
        .into_iter()
        .map(|(uid, amount)| {
            let scaled = amount * u128::from(ONE);
            // At most `ONE`, as no amount is above the total.
            (uid, (scaled / total) as u64, scaled % total)
        })
        .collect();

    // Fewer units are missing than there are amounts: each lost less than one.
    let missing = ONE - parts.iter().map(|(_, share, _)| *share).sum::<u64>();
    parts.sort_unstable_by_key(|(uid, _, remainder)| (core::cmp::Reverse(*remainder), *uid));
    for (_, share, _) in parts.iter_mut().take(missing as usize) {
        *share += 1;
    }
    let mut shares: Vec<_> =
        parts.into_iter().filter(|(_, share, _)| *share > 0).map(|(uid, share, _)| (uid, share)).collect();
    shares.sort_unstable();
    Some(shares)
}

/// The highest becomes 65535; what has any weight keeps at least 1.
fn as_weights(consensus: &BTreeMap<Uid, u64>) -> Vec<(Uid, u16)> {
    let highest = consensus.values().copied().max().unwrap_or(0).max(1);
    let scaled = |weight: u64| {
        u16::try_from((weight * u64::from(u16::MAX) + highest / 2) / highest).unwrap_or(u16::MAX).max(1)
    };
    consensus.iter().map(|(seat, weight)| (*seat, scaled(*weight))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use proptest::prelude::*;

    fn ballot(validator: u16, stake: u128, weights: &[(u16, u16)]) -> Ballot {
        let weights = weights.iter().map(|(seat, weight)| (Uid(*seat), *weight)).collect();
        Ballot { validator: Uid(validator), stake, weights }
    }

    fn sum(shares: &[(Uid, u64)]) -> u64 {
        shares.iter().map(|(_, share)| share).sum()
    }

    fn share_of(shares: &[(Uid, u64)], uid: u16) -> u64 {
        shares.iter().find(|(seat, _)| *seat == Uid(uid)).map_or(0, |(_, share)| *share)
    }

    #[test]
    fn where_all_agree_everyone_gets_what_they_say() {
        let honest = &[(0, 65535), (1, 32768), (2, 32767)];
        let ballots = [ballot(10, 5, honest), ballot(11, 5, honest), ballot(12, 5, honest)];
        let consensus = yuma(&ballots).unwrap();
        assert_eq!(consensus.weights, [(Uid(0), 65535), (Uid(1), 32768), (Uid(2), 32767)]);
        assert!(share_of(&consensus.incentive, 0).abs_diff(ONE / 2) < 3);
        assert_eq!(sum(&consensus.incentive), ONE);
        // A third each; the odd unit goes to the lowest uid.
        assert_eq!(consensus.dividends, [(Uid(10), ONE / 3 + 1), (Uid(11), ONE / 3), (Uid(12), ONE / 3)]);
        assert!(consensus.trust.iter().all(|(_, trust)| ONE - trust < 3));
    }

    #[test]
    fn a_minority_that_pays_itself_moves_nothing_and_earns_nothing() {
        let ballots = [
            ballot(10, 34, &[(0, 10), (1, 10)]),
            ballot(11, 17, &[(0, 10), (1, 10)]),
            ballot(12, 49, &[(7, 65535)]),
        ];
        let consensus = yuma(&ballots).unwrap();
        assert_eq!(consensus.weights, [(Uid(0), 65535), (Uid(1), 65535)]);
        assert_eq!(share_of(&consensus.incentive, 7), 0);
        assert_eq!(consensus.dividends.iter().map(|(uid, _)| uid.0).collect::<Vec<_>>(), [10, 11]);
        assert_eq!(share_of(&consensus.trust, 12), 0);
    }

    #[test]
    fn exactly_half_of_the_stake_is_no_majority() {
        assert_eq!(yuma(&[ballot(1, 50, &[(0, 1)]), ballot(2, 50, &[(1, 1)])]), None);
        assert_eq!(
            yuma(&[ballot(1, 51, &[(0, 1)]), ballot(2, 50, &[(1, 1)])]).unwrap().weights,
            [(Uid(0), 65535)]
        );
    }

    #[test]
    fn without_ballots_stake_or_weights_there_is_no_consensus() {
        assert_eq!(yuma(&[]), None);
        assert_eq!(yuma(&[ballot(1, 0, &[(0, 1)])]), None);
        assert_eq!(yuma(&[ballot(1, 5, &[])]), None);
        assert_eq!(yuma(&[ballot(1, 5, &[(0, 0)])]), None);
        // Whoever posted nothing still has its stake counted.
        assert_eq!(yuma(&[ballot(1, 5, &[(0, 1)]), ballot(2, 5, &[]), ballot(3, 5, &[])]), None);
        assert!(yuma(&[ballot(1, 5, &[(0, 1)]), ballot(2, 5, &[(0, 3)]), ballot(3, 5, &[])]).is_some());
    }

    #[test]
    fn what_a_validator_gave_beyond_the_consensus_costs_it_dividends() {
        let consensus = yuma(&[
            ballot(1, 10, &[(0, 50), (1, 50)]),
            ballot(2, 10, &[(0, 50), (1, 50)]),
            ballot(3, 10, &[(0, 90), (1, 10)]),
        ])
        .unwrap();
        // Validator 3 keeps 50 + 10 of its 100.
        assert_eq!(share_of(&consensus.trust, 3), ONE / 2 + ONE / 10);
        assert!(share_of(&consensus.dividends, 3) < share_of(&consensus.dividends, 1));
        assert!(share_of(&consensus.dividends, 1) - share_of(&consensus.dividends, 2) <= 1);
    }

    #[test]
    fn extreme_stakes_neither_overflow_nor_panic() {
        let many: Vec<(u16, u16)> = (0..3000).map(|seat| (seat, u16::MAX)).collect();
        let ballots: Vec<_> = (0..200).map(|validator| ballot(validator, u128::MAX, &many)).collect();
        let consensus = yuma(&ballots).unwrap();
        assert_eq!(sum(&consensus.incentive), ONE);
        assert_eq!(sum(&consensus.dividends), ONE);
        assert_eq!(consensus.weights.len(), 3000);

        let dust = [ballot(1, u128::MAX, &[(0, 1)]), ballot(2, 1, &[(1, 1)])];
        assert_eq!(yuma(&dust).unwrap().dividends, [(Uid(1), ONE)]);
    }

    #[test]
    fn a_second_ballot_or_a_second_weight_counts_for_nothing_more() {
        let once = [ballot(1, 10, &[(0, 5), (1, 5)]), ballot(2, 9, &[(0, 1)])];
        let mut twice = once.to_vec();
        twice.push(ballot(2, 9, &[(1, 1)]));
        assert_eq!(yuma(&twice).unwrap().dividends.len(), 2);
        let doubled = [ballot(1, 10, &[(0, 5), (1, 5), (0, 900)]), once[1].clone()];
        assert_eq!(yuma(&doubled), yuma(&once));
    }

    fn any_ballots() -> impl Strategy<Value = Vec<Ballot>> {
        let weights = proptest::collection::btree_map(0u16..8, any::<u16>(), 0..8);
        let stake = prop_oneof![0u128..1000, any::<u128>(), Just(u128::MAX)];
        proptest::collection::vec((stake, weights), 0..8).prop_map(|ballots| {
            ballots
                .into_iter()
                .enumerate()
                .map(|(validator, (stake, weights))| {
                    ballot(100 + validator as u16, stake, &weights.into_iter().collect::<Vec<_>>())
                })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn shares_add_up_exactly_whatever_is_posted(ballots in any_ballots()) {
            if let Some(consensus) = yuma(&ballots) {
                prop_assert_eq!(sum(&consensus.incentive), ONE);
                prop_assert_eq!(sum(&consensus.dividends), ONE);
                prop_assert!(crate::weights::is_canonical(&consensus.weights));
                prop_assert!(consensus.weights.iter().any(|(_, weight)| *weight == u16::MAX));
                prop_assert!(consensus.trust.iter().all(|(_, trust)| *trust <= ONE));
            }
        }

        #[test]
        fn the_order_of_the_validators_does_not_matter(ballots in any_ballots()) {
            let mut reversed = ballots.clone();
            reversed.reverse();
            for ballot in &mut reversed {
                ballot.weights.reverse();
            }
            prop_assert_eq!(yuma(&reversed), yuma(&ballots));
        }

        /// Two thirds say the same; whatever the last third says, the consensus weights are theirs.
        #[test]
        fn a_minority_cannot_move_the_consensus(
            honest in proptest::collection::btree_map(0u16..6, 1u16.., 1..6),
            lies in proptest::collection::vec((0u16..8, any::<u16>()), 0..8),
            stake in 1u128..1_000_000_000,
        ) {
            let honest: Vec<_> = honest.into_iter().collect();
            let majority = vec![ballot(1, stake, &honest), ballot(2, stake, &honest)];
            let alone = yuma(&majority).unwrap();
            let mut attacked = majority.clone();
            attacked.push(ballot(3, stake, &lies));
            let consensus = yuma(&attacked).unwrap();
            prop_assert_eq!(&consensus.weights, &alone.weights);
            for (seat, _) in &consensus.incentive {
                prop_assert!(honest.iter().any(|(known, _)| known == &seat.0), "a seat only the minority named is paid");
            }
            prop_assert!(share_of(&consensus.dividends, 3) <= share_of(&consensus.dividends, 1));
        }
    }
}
