//! A validator's weights for seats, as the chain accepts them: whole numbers, the best seat 65535 (PROT-26).

use crate::Uid;
use alloc::vec::Vec;

/// Converts scores to weights: proportional, the highest score becoming 65535, in uid order.
///
/// Only positive, finite scores count; each of them gets a weight of at least 1, as a seat with a weight is merged
/// sometimes. Of two scores for one uid the higher counts.
pub fn normalise(scores: &[(Uid, f64)]) -> Vec<(Uid, u16)> {
    let mut positive: Vec<(Uid, f64)> =
        scores.iter().copied().filter(|(_, score)| score.is_finite() && *score > 0.0).collect();
    positive.sort_by(|one, other| one.0.cmp(&other.0).then(other.1.total_cmp(&one.1)));
    positive.dedup_by_key(|(uid, _)| *uid);

    let highest = positive.iter().map(|(_, score)| *score).fold(0.0, f64::max);
    let weight_of = |score: f64| {
        // From 0 to 1, so the product is from 0 to 65535 and the conversion exact.
        let scaled = libm::round(score / highest * f64::from(u16::MAX)) as u16;
        scaled.max(1)
    };
    positive.into_iter().map(|(uid, score)| (uid, weight_of(score))).collect()
}

/// Returns whether weights are in canonical form: uids ascending, none twice, no zeros.
pub fn is_canonical(weights: &[(Uid, u16)]) -> bool {
    weights.iter().all(|(_, weight)| *weight > 0) && weights.windows(2).all(|pair| pair[0].0 < pair[1].0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(scores: &[(u16, f64)], expected: &[(u16, u16)]) {
        let scores: Vec<_> = scores.iter().map(|(uid, score)| (Uid(*uid), *score)).collect();
        let expected: Vec<_> = expected.iter().map(|(uid, weight)| (Uid(*uid), *weight)).collect();
        assert_eq!(normalise(&scores), expected);
    }

    #[test]
    fn weights_are_proportional_and_the_best_seat_has_them_all() {
        check(&[(4, 1.0), (2, 2.0), (9, 0.5)], &[(2, 65535), (4, 32768), (9, 16384)]);
        check(&[(1, 1e-300)], &[(1, 65535)]);
        check(&[(1, f64::MAX), (2, f64::MAX / 2.0)], &[(1, 65535), (2, 32768)]);
    }

    #[test]
    fn what_is_no_positive_number_gets_nothing() {
        check(&[(1, 0.0), (2, -1.0), (3, f64::NAN), (4, f64::INFINITY), (5, 3.0), (6, -0.0)], &[(5, 65535)]);
        check(&[], &[]);
        check(&[(1, -5.0)], &[]);
    }

    #[test]
    fn the_smallest_positive_score_still_has_a_weight() {
        check(&[(1, 1.0), (2, 1e-12)], &[(1, 65535), (2, 1)]);
    }

    #[test]
    fn a_seat_named_twice_counts_once_with_its_higher_score() {
        check(&[(1, 1.0), (1, 4.0), (2, 4.0)], &[(1, 65535), (2, 65535)]);
    }

    #[test]
    fn only_one_spelling_is_canonical() {
        assert!(is_canonical(&[]));
        assert!(is_canonical(&[(Uid(1), 5), (Uid(2), 1)]));
        assert!(!is_canonical(&[(Uid(2), 5), (Uid(1), 1)]));
        assert!(!is_canonical(&[(Uid(1), 5), (Uid(1), 1)]));
        assert!(!is_canonical(&[(Uid(1), 0)]));
    }

    proptest! {
        #[test]
        fn any_scores_become_canonical_weights(scores in proptest::collection::vec((0u16..9, any::<f64>()), 0..20)) {
            let scores: Vec<_> = scores.into_iter().map(|(uid, score)| (Uid(uid), score)).collect();
            let weights = normalise(&scores);
            prop_assert!(is_canonical(&weights));
            prop_assert!(weights.is_empty() || weights.iter().any(|(_, weight)| *weight == u16::MAX));
            prop_assert!(weights.iter().all(|(uid, _)| scores.iter().any(|(seat, score)| seat == uid && *score > 0.0)));
        }
    }
}
