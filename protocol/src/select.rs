//! Selection of the contributions for a merge: a pure function of weights, attestations and a seed (PROT-14,
//! PROT-16).
//!
//! The highest weights get half of the places, the other half is drawn, so that every seat with a weight is merged
//! sometimes and the top seats cannot stop working. Newcomers have places of their own, at most a quarter of all:
//! their work has not been judged yet.

use crate::{Digest, RunParams, Uid, draw::first_u64};
use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// A contribution that is merged: the seat, and the digest of its exact bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Selected {
    pub uid: Uid,
    pub digest: Digest,
}

/// A seat whose contribution two thirds of the stake attested as valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    pub uid: Uid,
    /// Digest of the contribution's exact bytes, as committed.
    pub digest: Digest,
    /// Consensus weight at the opening of the window; 0 if the seat has none.
    pub weight: u16,
    /// Windows from the seat's registration to this one.
    pub windows_since_registration: u32,
}

/// Returns the seats to merge, in uid order: at most `places + reserve_places`, and none if there are fewer than
/// `min_contributions` (PROT-16). The order of the candidates does not matter; of two with the same uid the one with
/// the lower digest counts.
///
/// `seed` is [`crate::assign::seed`] with [`crate::assign::domain::SELECT`] and the hash of a block after the last
/// commitment, so that no miner knows the draw when it commits.
pub fn select(params: &RunParams, seed: &Digest, candidates: &[Candidate]) -> Vec<Selected> {
    let mut candidates = candidates.to_vec();
    candidates.sort_unstable();
    candidates.dedup_by_key(|candidate| candidate.uid);
    let places = usize::from(params.places);

    // Half of the places, rounded up, to the highest weights.
    let (mut weighted, unweighted): (Vec<_>, Vec<_>) =
        candidates.into_iter().partition(|candidate| candidate.weight > 0);
    weighted.sort_by_key(|candidate| (core::cmp::Reverse(candidate.weight), candidate.uid));
    let drawn_from = weighted.split_off(weighted.len().min(places.div_ceil(2)));
    let mut taken = weighted;

    // Half drawn in proportion to weight, without replacement.
    let mut left = drawn_from;
    left.sort_by_key(|candidate| candidate.uid);
    for draw in 0..places / 2 {
        let Some(place) = drawn_place(seed, draw as u64, &left) else { break };
        taken.push(left.remove(place));
    }

    // The reserve, and places that are still free, to newcomers in seeded order.
    let free = (places + usize::from(params.reserve_places)).saturating_sub(taken.len());
    let free = free.min(newcomers_max(params, taken.len()));
    let mut newcomers: Vec<_> = left
        .into_iter()
        .chain(unweighted)
        .filter(|candidate| candidate.windows_since_registration <= params.newcomer_windows)
        .collect();
    // Cached: a rank is a hash, and there may be a thousand of them.
    newcomers.sort_by_cached_key(|candidate| newcomer_rank(seed, candidate.uid));
    taken.extend(newcomers.into_iter().take(free));

    if taken.len() < usize::from(params.min_contributions) {
        return Vec::new();
    }
    let mut selected: Vec<_> =
        taken.into_iter().map(|Candidate { uid, digest, .. }| Selected { uid, digest }).collect();
    selected.sort_unstable();
    selected
}

/// Returns the maximum number of newcomers beside `weighted` seats that are merged by weight. It is a quarter of all,
/// at least one, and as many as reach `min_contributions`. Unlimited if no seat is merged by weight: before the first
/// consensus every seat is new.
fn newcomers_max(params: &RunParams, weighted: usize) -> usize {
    match weighted {
        0 => usize::MAX,
        _ => (weighted / 3).max(1).max(usize::from(params.min_contributions).saturating_sub(weighted)),
    }
}

/// Returns whether `stake` is at least two thirds of `total`. False if `total` is 0.
pub fn two_thirds(stake: u128, total: u128) -> bool {
    // `⌈2·total / 3⌉`, written so that it cannot overflow.
    let needed = 2 * (total / 3) + total % 3;
    total > 0 && stake >= needed
}

/// Returns the index of one candidate, drawn with a probability proportional to its weight; `None` if the weights add
/// up to 0.
fn drawn_place(seed: &Digest, draw: u64, candidates: &[Candidate]) -> Option<usize> {
    let total = candidates.iter().map(|candidate| u64::from(candidate.weight)).sum::<u64>();
    if total == 0 {
        return None;
    }
    // 64 bits over a total below 2^32: the bias of the remainder is below 2^-32.
    let mut ticket = first_u64(&Digest::of_parts(&[&seed.0, b"draw", &draw.to_le_bytes()]).0) % total;
    candidates.iter().position(|candidate| match ticket.checked_sub(candidate.weight.into()) {
        Some(rest) => {
            ticket = rest;
            false
        }
        None => true,
    })
}

/// Returns the rank of a newcomer in the draw: the lowest come first (PROT-16). `seed` is that of [`select`].
pub fn newcomer_rank(seed: &Digest, uid: Uid) -> Digest {
    Digest::of_parts(&[&seed.0, b"newcomer", &uid.0.to_le_bytes()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn params(places: u16, reserve_places: u16) -> RunParams {
        RunParams {
            places,
            reserve_places,
            newcomer_windows: 20,
            min_contributions: 1,
            ..RunParams::default()
        }
    }

    fn candidate(uid: u16, weight: u16, windows_since_registration: u32) -> Candidate {
        Candidate {
            uid: Uid(uid),
            digest: Digest::of(&uid.to_le_bytes()),
            weight,
            windows_since_registration,
        }
    }

    fn uids(selected: &[Selected]) -> Vec<u16> {
        selected.iter().map(|seat| seat.uid.0).collect()
    }

    fn seeds(count: u64) -> impl Iterator<Item = Digest> {
        (0..count).map(|number| Digest::of(&number.to_le_bytes()))
    }

    #[test]
    fn the_highest_weights_are_always_in_and_ties_go_to_the_lower_uid() {
        let candidates: Vec<_> = [(9, 100), (3, 50), (5, 50), (7, 50), (1, 1)]
            .map(|(uid, weight)| candidate(uid, weight, 1000))
            .to_vec();
        for seed in seeds(50) {
            let selected = uids(&select(&params(4, 0), &seed, &candidates));
            assert_eq!(selected.len(), 4);
            assert!(selected.contains(&9) && selected.contains(&3), "{selected:?}");
        }
    }

    #[test]
    fn every_seat_with_a_weight_is_merged_sometimes_and_as_often_as_its_weight_says() {
        // Uid 0 is in outright; 1, 2 and 3 share the one place that is drawn.
        let candidates =
            [candidate(0, 1000, 99), candidate(1, 600, 99), candidate(2, 300, 99), candidate(3, 100, 99)];
        let mut times = [0i32; 4];
        for seed in seeds(2000) {
            for uid in uids(&select(&params(2, 0), &seed, &candidates)) {
                times[usize::from(uid)] += 1;
            }
        }
        assert_eq!(times[0], 2000);
        for (uid, expected) in [(1, 1200), (2, 600), (3, 200)] {
            assert!((times[uid] - expected).abs() < 90, "{times:?}");
        }
    }

    #[test]
    fn newcomers_fill_their_places_in_seeded_order() {
        let mut candidates: Vec<_> = (20..26).map(|uid| candidate(uid, 5, 99)).collect();
        candidates.extend((1..=8).map(|uid| candidate(uid, 0, 20)));
        candidates.extend((10..=18).map(|uid| candidate(uid, 0, 21)));
        let mut ever = alloc::collections::BTreeSet::new();
        for seed in seeds(60) {
            let selected = uids(&select(&params(6, 2), &seed, &candidates));
            let (weighted, newcomers): (Vec<_>, Vec<_>) = selected.into_iter().partition(|uid| 20 <= *uid);
            assert_eq!((weighted.len(), newcomers.len()), (6, 2));
            assert!(
                newcomers.iter().all(|uid| *uid <= 8),
                "a seat past its newcomer time was let in: {newcomers:?}"
            );
            ever.extend(newcomers);
        }
        assert_eq!(ever.len(), 8, "every newcomer's turn comes");
    }

    #[test]
    fn sixteen_unjudged_seats_are_no_majority_beside_eight_with_a_weight() {
        let mut candidates: Vec<_> = (0..8).map(|uid| candidate(uid, 100, 99)).collect();
        candidates.extend((8..24).map(|uid| candidate(uid, 0, 1)));
        for seed in seeds(50) {
            let selected = uids(&select(&RunParams::default(), &seed, &candidates));
            let newcomers = selected.iter().filter(|uid| 8 <= **uid).count();
            assert_eq!((selected.len(), newcomers), (10, 2));
        }
    }

    #[test]
    fn newcomers_take_a_quarter_at_least_one_place_and_what_is_missing_to_the_minimum() {
        let params = RunParams { min_contributions: 4, ..params(20, 4) };
        let newcomers = |weighted: u16| {
            let candidates: Vec<_> = (0..weighted)
                .map(|uid| candidate(uid, 9, 99))
                .chain((50..90).map(|uid| candidate(uid, 0, 1)))
                .collect();
            uids(&select(&params, &Digest::default(), &candidates)).iter().filter(|uid| 50 <= **uid).count()
        };
        let counts = [0, 1, 2, 3, 5, 6, 9, 20, 40].map(newcomers);
        assert_eq!(counts, [24, 3, 2, 1, 1, 2, 3, 4, 4]);
    }

    #[test]
    fn a_newcomer_that_already_has_a_weight_may_take_the_reserve_too() {
        let candidates = [candidate(0, 9, 99), candidate(1, 8, 99), candidate(2, 7, 3)];
        for seed in seeds(20) {
            assert_eq!(
                uids(&select(&params(2, 1), &seed, &candidates)).len(),
                if drew_two(&seed) { 2 } else { 3 }
            );
        }
        // If the newcomer won the draw, the reserve stays empty: uid 1 is not a newcomer.
        fn drew_two(seed: &Digest) -> bool {
            drawn_place(seed, 0, &[candidate(1, 8, 99), candidate(2, 7, 3)]) == Some(1)
        }
    }

    #[test]
    fn fewer_than_the_run_asks_for_is_nobody() {
        let params = RunParams { min_contributions: 3, reserve_places: 3, ..params(4, 3) };
        let two = [candidate(0, 9, 99), candidate(1, 0, 3)];
        assert_eq!(select(&params, &Digest::default(), &two), []);
        let three = [two[0], two[1], candidate(2, 1, 99)];
        assert_eq!(uids(&select(&params, &Digest::default(), &three)), [0, 1, 2]);
        assert_eq!(select(&params, &Digest::default(), &[]), []);
    }

    #[test]
    fn two_thirds_counts_to_the_last_unit_and_does_not_overflow() {
        assert!(two_thirds(2, 3) && !two_thirds(1, 3));
        assert!(two_thirds(3, 4) && !two_thirds(2, 4));
        assert!(two_thirds(4, 5) && !two_thirds(3, 5));
        assert!(two_thirds(1, 1) && !two_thirds(0, 1));
        assert!(!two_thirds(0, 0));
        assert!(two_thirds(u128::MAX, u128::MAX));
        let needed = u128::MAX / 3 * 2;
        assert!(two_thirds(needed, u128::MAX) && !two_thirds(needed - 1, u128::MAX));
    }

    fn any_candidates() -> impl Strategy<Value = Vec<Candidate>> {
        let one = (0u16..40, prop_oneof![Just(0u16), any::<u16>()], 0u32..40)
            .prop_map(|(uid, weight, age)| candidate(uid, weight, age));
        proptest::collection::vec(one, 0..40)
    }

    proptest! {
        #[test]
        fn a_selection_is_bounded_distinct_sorted_and_made_of_those_that_could_be(
            candidates in any_candidates(), places in 1u16..12, reserve in 1u16..6, seed in any::<[u8; 32]>(),
        ) {
            let params = params(places, reserve);
            let selected = select(&params, &Digest(seed), &candidates);
            prop_assert!(selected.len() <= usize::from(places + reserve));
            prop_assert!(selected.windows(2).all(|pair| pair[0].uid < pair[1].uid));
            for seat in &selected {
                let eligible = candidates.iter().any(|candidate| {
                    let is_newcomer = candidate.windows_since_registration <= params.newcomer_windows;
                    (candidate.uid, candidate.digest) == (seat.uid, seat.digest) && (candidate.weight > 0 || is_newcomer)
                });
                prop_assert!(eligible);
            }
        }

        #[test]
        fn the_order_of_the_candidates_does_not_matter(
            candidates in any_candidates(), seed in any::<[u8; 32]>(), turn in any::<prop::sample::Index>(),
        ) {
            let params = params(5, 2);
            let expected = select(&params, &Digest(seed), &candidates);
            let mut turned = candidates.clone();
            if !turned.is_empty() {
                turned.rotate_left(turn.index(candidates.len()));
            }
            prop_assert_eq!(&select(&params, &Digest(seed), &turned), &expected);
            turned.reverse();
            prop_assert_eq!(&select(&params, &Digest(seed), &turned), &expected);
        }

        #[test]
        fn no_place_stays_free_while_a_seat_may_take_it(
            mut candidates in any_candidates(), places in 1u16..12, reserve in 1u16..6, seed in any::<[u8; 32]>(),
        ) {
            let params = params(places, reserve);
            let selected = select(&params, &Digest(seed), &candidates);
            candidates.sort_unstable();
            candidates.dedup_by_key(|candidate| candidate.uid);
            let weighted = candidates.iter().filter(|candidate| candidate.weight > 0).count().min(places.into());
            let most = weighted.saturating_add(newcomers_max(&params, weighted)).min(usize::from(places + reserve));
            prop_assert!(selected.len() <= most);
            let mut left_out =
                candidates.iter().filter(|candidate| selected.iter().all(|seat| seat.uid != candidate.uid));
            if selected.len() < most {
                prop_assert!(left_out.clone().all(|candidate| params.newcomer_windows < candidate.windows_since_registration));
            }
            if selected.len() < usize::from(places) {
                prop_assert!(left_out.all(|candidate| candidate.weight == 0));
            }
        }

        #[test]
        fn two_thirds_agrees_with_the_plain_sum(stake in 0u128..u128::from(u64::MAX), total in 0u128..u128::from(u64::MAX)) {
            prop_assert_eq!(two_thirds(stake, total), total > 0 && 3 * stake >= 2 * total);
        }
    }
}
