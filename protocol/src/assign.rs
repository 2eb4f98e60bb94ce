//! Assignment of sequences: those that a seat trains on in a window, and those that it is judged by
//! (PROT-2, PROT-4, PROT-5, PROT-6, PROT-22).
//!
//! All training sequences, in one shuffled order per epoch of the data, form one endless line of
//! *positions*. A window takes the next `slots × n` of them, and the chain stores the position after the
//! last one (the *cursor*). So no sequence is assigned twice in an epoch, even if seats join or leave. No
//! list is stored: the order is a keyed permutation, which is computed for single positions.
//!
//! The order of an epoch is known in advance. The part of it that each seat gets, and the sequences that
//! validators measure on, are not: hashes of blocks that do not exist yet draw them.

pub use crate::draw::{Permutation, domain, seed};

use crate::{Digest, RunId, Uid, Window, probe};
use alloc::{collections::BTreeSet, vec::Vec};
use codec::{Decode, Encode};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// Returns a validator's seed for judging `window`, from two values: the hash of block `commit_by + 1`,
/// unknown to miners when they commit, and the validator's own salt, unknown to block authors (PROT-2).
///
/// `salt` is `None` if the chain holds no digest of one: a salt that is not bound could be chosen for its result.
pub fn evaluation_seed(
    run: RunId,
    window: Window,
    evaluation_hash: &Digest,
    salt: Option<&[u8; 32]>,
) -> Digest {
    let drawn = seed(domain::EVALUATE, run, window, evaluation_hash);
    salt.map_or(drawn, |salt| Digest::of_parts(&[&drawn.0, salt]))
}

/// Returns the seed of the common sequences that are the same for all validators, from the hash of block
/// `commit_by + 1` alone (PROT-2).
pub fn probe_seed(run: RunId, window: Window, evaluation_hash: &Digest) -> Digest {
    seed(domain::PROBE, run, window, evaluation_hash)
}

/// Positions that a window takes, and the seats that get them (PROT-5). All fields are read from the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment<'a> {
    pub run: RunId,
    pub window: Window,
    /// [`crate::view::WindowView::deal_seed`] of the window, or the seed of its [`crate::view::Deal`].
    pub deal_seed: Digest,
    /// Miners' seats when the window was dealt, in uid order.
    pub slots: &'a [Uid],
    /// The first position that this window takes.
    pub cursor: u64,
    /// `n`: positions that each seat gets.
    pub sequences_per_seat: u32,
    /// Number of training sequences in the dataset.
    pub training_sequences: u64,
}

/// A seat's place in a window's deal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, TypeInfo, Serialize, Deserialize)]
pub struct Slot {
    pub index: u32,
    /// The number of slots.
    pub of: u32,
}

impl Slot {
    /// Returns the slot of `uid`; `None` if it has none.
    pub fn of(uid: Uid, slots: &[Uid]) -> Option<Slot> {
        let index = slots.iter().position(|seat| *seat == uid)?;
        Some(Slot { index: index as u32, of: slots.len() as u32 })
    }
}

impl Assignment<'_> {
    /// Returns the training sequences of `uid`, in training order; `None` if the seat has no slot in this
    /// window. There are `n` of them, or none if the dataset is empty. If the window crosses the end of an
    /// epoch of the data, a sequence may occur once on each side of it.
    pub fn of(&self, uid: Uid) -> Option<Vec<u64>> {
        Some(self.of_slot(Slot::of(uid, self.slots)?))
    }

    /// Returns the same for a seat that knows only its own slot: `slots` is not read.
    pub fn of_slot(&self, slot: Slot) -> Vec<u64> {
        if self.training_sequences == 0 {
            return Vec::new();
        }
        let each = u64::from(self.sequences_per_seat);
        let deal = Permutation::new(
            &seed(domain::ASSIGN, self.run, self.window, &self.deal_seed),
            u64::from(slot.of).saturating_mul(each),
        );
        let first = u64::from(slot.index) * each;
        (first..first + each).map(|place| self.sequence_at(self.line_position(deal.at(place)))).collect()
    }

    /// Returns the number of positions that the window takes. The chain's cursor advances by as many, even
    /// if the window ends void.
    pub fn positions(&self) -> u64 {
        // At most 2^16 seats of 2^32 sequences each.
        (self.slots.len() as u64).saturating_mul(u64::from(self.sequences_per_seat))
    }

    /// Returns the position in the endless line. Wide enough that no cursor of the chain can overflow it.
    fn line_position(&self, place: u64) -> u128 {
        u128::from(self.cursor) + u128::from(place)
    }

    /// Returns the sequence at a position of that line. There must be training sequences.
    fn sequence_at(&self, line_position: u128) -> u64 {
        let len = u128::from(self.training_sequences);
        epoch_order(self.run, line_position / len, self.training_sequences).at((line_position % len) as u64)
    }

    fn coverage(&self) -> Coverage {
        let (len, mut parts, mut everything) = (u128::from(self.training_sequences), Vec::new(), false);
        let (mut from, end) = (self.line_position(0), self.line_position(self.positions()));
        while len > 0 && from < end && !everything {
            let (epoch, offset) = (from / len, from % len);
            let until = end.min(from + (len - offset));
            everything = until - from == len;
            // Both are below `len`, or at most `len` itself: they fit where `training_sequences` does.
            let positions = offset as u64..(offset + (until - from)) as u64;
            parts.push((epoch_order(self.run, epoch, self.training_sequences), positions));
            from = until;
        }
        Coverage { everything, parts }
    }
}

/// Sequences that a window takes: a range of positions in each epoch of the data that it touches.
struct Coverage {
    everything: bool,
    /// At most three: the two ends, and one whole epoch in between.
    parts: Vec<(Permutation, core::ops::Range<u64>)>,
}

impl Coverage {
    /// Returns whether the window takes `sequence`, which must be one of the dataset's.
    fn contains(&self, sequence: u64) -> bool {
        let taken = |(order, positions): &(Permutation, core::ops::Range<u64>)| {
            positions.contains(&order.position_of(sequence))
        };
        self.everything || self.parts.iter().any(taken)
    }
}

/// Returns the order of one epoch of the data. It depends on no block, as it must be known before the
/// epoch's first window and stay the same until its last.
fn epoch_order(run: RunId, epoch: u128, training_sequences: u64) -> Permutation {
    let key = Digest::of_parts(&[b"mettle/1/epoch", &run.0.to_le_bytes(), &epoch.to_le_bytes()]);
    Permutation::new(&key, training_sequences)
}

/// Returns `count` distinct training sequences that were assigned to no seat in the window: the same for
/// all seats, drawn after they committed (PROT-22). Fewer if the dataset has no more.
pub fn common_sequences(seed: &Digest, assignment: &Assignment<'_>, count: usize) -> Vec<u64> {
    let coverage = assignment.coverage();
    if coverage.everything {
        return Vec::new();
    }
    let order = Permutation::new(&Digest::of_parts(&[&seed.0, b"common"]), assignment.training_sequences);
    order.iter().filter(|sequence| !coverage.contains(*sequence)).take(count).collect()
}

/// Returns the `count` common sequences that a validator judges by (PROT-22). The first
/// [`probe::sequences`] of them are drawn by `probe_seed` and the same for all validators; the others are
/// drawn by the validator's own `seed`. Fewer if the dataset has no more.
pub fn evaluation_sequences(
    probe_seed: &Digest,
    seed: &Digest,
    assignment: &Assignment<'_>,
    count: u32,
) -> Vec<u64> {
    let mut sequences = common_sequences(probe_seed, assignment, probe::sequences(count));
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let shared = sequences.len();
    // Draw as many extra as may already be among the shared ones.
    let own = common_sequences(seed, assignment, count);
    let others = own.into_iter().filter(|sequence| !sequences.contains(sequence)).take(count - shared);
    let others: Vec<u64> = others.collect();
    sequences.extend(others);
    sequences
}

/// Returns `count` distinct sequences of a seat's declared prefix, those that it trained on (PROT-6,
/// PROT-22). Fewer if it has no more.
pub fn own_sequences(seed: &Digest, uid: Uid, own: &[u64], count: usize) -> Vec<u64> {
    let key = Digest::of_parts(&[&seed.0, b"own", &uid.0.to_le_bytes()]);
    let mut seen = BTreeSet::new();
    Permutation::new(&key, own.len() as u64)
        .iter()
        .filter_map(|place| usize::try_from(place).ok().and_then(|place| own.get(place)).copied())
        .filter(|sequence| seen.insert(*sequence))
        .take(count)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(number: u64) -> Digest {
        Digest::of(&number.to_le_bytes())
    }

    fn seats(count: u16) -> Vec<Uid> {
        // Uids with gaps, as in a run with validators between the miners.
        (0..count).map(|slot| Uid(slot * 3 + 1)).collect()
    }

    fn window<'a>(slots: &'a [Uid], window: u32, cursor: u64, each: u32, sequences: u64) -> Assignment<'a> {
        Assignment {
            run: RunId(1),
            window: Window(window),
            deal_seed: key(u64::from(window)),
            slots,
            cursor,
            sequences_per_seat: each,
            training_sequences: sequences,
        }
    }

    /// Returns every sequence assigned in the window, ascending, each once.
    fn handed_out(assignment: &Assignment<'_>) -> Vec<u64> {
        let line =
            (0..assignment.positions()).map(|place| assignment.sequence_at(assignment.line_position(place)));
        line.collect::<BTreeSet<u64>>().into_iter().collect()
    }

    fn distinct(values: &[u64]) -> usize {
        values.iter().collect::<BTreeSet<_>>().len()
    }

    #[test]
    fn seeds_for_different_purposes_runs_windows_and_blocks_differ() {
        let base = seed(domain::ASSIGN, RunId(1), Window(2), &key(3));
        assert_eq!(base, seed("assign", RunId(1), Window(2), &key(3)));
        let others = [
            seed(domain::SELECT, RunId(1), Window(2), &key(3)),
            seed(domain::ASSIGN, RunId(2), Window(2), &key(3)),
            seed(domain::ASSIGN, RunId(1), Window(3), &key(3)),
            seed(domain::ASSIGN, RunId(1), Window(2), &key(4)),
            evaluation_seed(RunId(1), Window(2), &key(3), Some(&[0; 32])),
            evaluation_seed(RunId(1), Window(2), &key(3), Some(&[1; 32])),
            evaluation_seed(RunId(1), Window(2), &key(3), None),
        ];
        let all: BTreeSet<Digest> = others.into_iter().chain([base]).collect();
        assert_eq!(all.len(), 8);
    }

    /// The values are a golden vector of the first release.
    #[test]
    fn the_permutation_is_the_one_that_was_published() {
        let order: Vec<u64> = Permutation::new(&Digest([7; 32]), 10).iter().collect();
        assert_eq!(order, GOLDEN_ORDER);
        assert_eq!(Permutation::new(&Digest([7; 32]), u64::MAX).at(12345), GOLDEN_HUGE);
    }
    const GOLDEN_ORDER: [u64; 10] = [6, 7, 8, 2, 4, 3, 9, 5, 1, 0];
    const GOLDEN_HUGE: u64 = 7076808557648826189;

    #[test]
    fn an_assignment_is_the_one_that_was_published() {
        let slots = seats(3);
        assert_eq!(window(&slots, 5, 98, 2, 100).of(Uid(4)), Some(GOLDEN_ASSIGNMENT.to_vec()));
    }
    const GOLDEN_ASSIGNMENT: [u64; 2] = [65, 83];

    #[test]
    fn tiny_permutations_are_bijections_too() {
        assert_eq!(Permutation::new(&key(0), 0).iter().count(), 0);
        assert_eq!(Permutation::new(&key(0), 0).at(5), 0);
        assert_eq!(Permutation::new(&key(0), 1).iter().collect::<Vec<_>>(), [0]);
        let pairs: BTreeSet<Vec<u64>> =
            (0..40).map(|n| Permutation::new(&key(n), 2).iter().collect()).collect();
        assert_eq!(pairs.into_iter().collect::<Vec<_>>(), [[0, 1], [1, 0]]);
    }

    #[test]
    fn every_order_of_a_small_set_comes_about_equally_often() {
        let mut counts = alloc::collections::BTreeMap::<Vec<u64>, u32>::new();
        for number in 0..4800 {
            *counts.entry(Permutation::new(&key(number), 4).iter().collect()).or_default() += 1;
        }
        // 24 orders of 4, 200 of each expected, standard deviation 14.
        assert_eq!(counts.len(), 24);
        assert!(counts.values().all(|count| (130..=270).contains(count)), "{counts:?}");
    }

    #[test]
    fn the_seats_share_a_window_out_among_them_and_another_block_deals_anew() {
        let slots = seats(5);
        let assignment = window(&slots, 3, 40, 7, 1000);
        let mut all: Vec<u64> = slots.iter().flat_map(|uid| assignment.of(*uid).unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, handed_out(&assignment));
        assert_eq!(all.len(), 35);
        assert_eq!(assignment.of(Uid(2)), None);

        let elsewhere = Assignment { deal_seed: key(99), ..assignment };
        assert_ne!(elsewhere.of(slots[0]), assignment.of(slots[0]));
        assert_eq!(handed_out(&elsewhere), handed_out(&assignment));
    }

    #[test]
    fn an_empty_dataset_hands_out_nothing() {
        let slots = seats(2);
        let assignment = window(&slots, 0, 5, 3, 0);
        assert_eq!(assignment.of(slots[0]), Some(Vec::new()));
        assert_eq!(common_sequences(&key(0), &assignment, 4), []);
        assert_eq!(own_sequences(&key(0), slots[0], &[], 4), []);
    }

    #[test]
    fn the_largest_numbers_a_chain_can_hold_overflow_nothing() {
        let slots = seats(2);
        let assignment =
            Assignment { run: RunId(u32::MAX), ..window(&slots, u32::MAX, u64::MAX, 8, u64::MAX) };
        assert_eq!(distinct(&assignment.of(slots[1]).unwrap()), 8);
        assert_eq!(handed_out(&assignment).len(), 16);
        assert_eq!(common_sequences(&key(1), &assignment, 5).len(), 5);
        let vast = Assignment { sequences_per_seat: u32::MAX, ..assignment };
        assert_eq!(vast.positions(), 2 * u64::from(u32::MAX));
        assert_eq!(common_sequences(&key(1), &vast, 5).len(), 5);
    }

    #[test]
    fn where_everything_is_handed_out_nothing_common_is_left() {
        let slots = seats(3);
        assert_eq!(common_sequences(&key(1), &window(&slots, 1, 7, 10, 9), 4), []);
        assert_eq!(common_sequences(&key(1), &window(&slots, 1, 0, 3, 9), 4), []);
        let almost = window(&slots, 1, 0, 3, 11);
        assert_eq!(common_sequences(&key(1), &almost, 4).len(), 2);
    }

    #[test]
    fn a_quarter_of_the_common_sequences_is_the_same_for_all_validators() {
        let slots = seats(3);
        let assignment = window(&slots, 1, 0, 4, 200);
        let shared = probe_seed(RunId(1), Window(1), &key(3));
        let of = |own: u64, count| evaluation_sequences(&shared, &key(own), &assignment, count);
        let (one, other) = (of(1, 64), of(2, 64));
        assert_eq!((distinct(&one), distinct(&other)), (64, 64));
        assert_eq!(one[..16], other[..16]);
        assert_eq!(one[..16], common_sequences(&shared, &assignment, 16));
        assert_ne!(one[16..], other[16..]);
        // The shared ones depend on the block alone, and a small dataset's remaining sequences are used
        // once.
        assert_eq!(distinct(&of(1, u32::MAX)), 188);
        assert_eq!([0, 1, 6].map(|count| of(1, count).len()), [0, 1, 6]);
        let none_left = window(&slots, 1, 0, 4, 12);
        assert_eq!(evaluation_sequences(&shared, &key(1), &none_left, 8), []);
        assert_ne!(shared, probe_seed(RunId(1), Window(1), &key(4)));
    }

    #[test]
    fn two_seats_are_judged_by_different_draws_of_the_same_list() {
        let own: Vec<u64> = (100..200).collect();
        let drawn = own_sequences(&key(1), Uid(1), &own, 10);
        assert_eq!(distinct(&drawn), 10);
        assert_ne!(drawn, own_sequences(&key(1), Uid(2), &own, 10));
        assert_ne!(drawn, own_sequences(&key(2), Uid(1), &own, 10));
        assert_eq!(own_sequences(&key(1), Uid(1), &[4, 4, 4], 10), [4]);
    }

    proptest! {
        #[test]
        fn a_permutation_is_a_bijection_of_any_length(number in any::<u64>(), len in 0u64..700) {
            let permutation = Permutation::new(&key(number), len);
            let values: Vec<u64> = permutation.iter().collect();
            prop_assert_eq!(distinct(&values) as u64, len);
            prop_assert!(values.iter().all(|value| *value < len));
            for (position, value) in values.iter().enumerate() {
                prop_assert_eq!(permutation.position_of(*value), position as u64);
            }
        }

        #[test]
        fn a_huge_permutation_stays_inside_and_can_be_undone(
            number in any::<u64>(),
            len in prop_oneof![1u64.., (u64::MAX - 3)..=u64::MAX, (1u64 << 32) - 2..(1u64 << 32) + 2],
            position in any::<u64>(),
        ) {
            let permutation = Permutation::new(&key(number), len);
            let value = permutation.at(position);
            prop_assert!(value < len);
            prop_assert_eq!(permutation.position_of(value), position % len);
        }

        /// PROT-5, over windows whose seats come and go, and over several epochs of the data.
        #[test]
        fn nothing_is_handed_out_twice_in_an_epoch_of_the_data(
            sequences in 1u64..60,
            windows in proptest::collection::vec((0u16..5, 1u32..9), 1..8),
            start in 0u64..100,
        ) {
            let mut cursor = start;
            let mut line = Vec::new();
            for (number, (count, each)) in windows.iter().enumerate() {
                let slots = seats(*count);
                let assignment = window(&slots, number as u32, cursor, *each, sequences);
                let mut taken: Vec<u64> = slots.iter().flat_map(|uid| assignment.of(*uid).unwrap()).collect();
                prop_assert_eq!(taken.len() as u64, assignment.positions());

                // Together the seats got the values at the window's positions.
                let mut positions: Vec<u64> =
                    (cursor..cursor + assignment.positions()).map(|at| assignment.sequence_at(at.into())).collect();
                line.extend_from_slice(&positions);
                taken.sort_unstable();
                positions.sort_unstable();
                prop_assert_eq!(taken, positions);
                cursor += assignment.positions();
            }
            let to_boundary = (sequences - start % sequences) as usize;
            let (first, rest) = line.split_at(to_boundary.min(line.len()));
            for epoch in core::iter::once(first).chain(rest.chunks(sequences as usize)) {
                prop_assert_eq!(distinct(epoch), epoch.len());
            }
        }

        #[test]
        fn common_sequences_are_distinct_and_nobody_was_given_them(
            number in any::<u64>(), sequences in 1u64..80, count in 0u16..5, each in 1u32..12, cursor in 0u64..200,
            wanted in 0usize..20,
        ) {
            let slots = seats(count);
            let assignment = window(&slots, 4, cursor, each, sequences);
            let handed_out: BTreeSet<u64> = handed_out(&assignment).into_iter().collect();
            for sequence in 0..sequences {
                prop_assert_eq!(assignment.coverage().contains(sequence), handed_out.contains(&sequence));
            }
            let common = common_sequences(&key(number), &assignment, wanted);
            prop_assert_eq!(distinct(&common), common.len());
            prop_assert!(common.iter().all(|sequence| *sequence < sequences && !handed_out.contains(sequence)));
            prop_assert_eq!(common.len(), wanted.min(sequences as usize - handed_out.len()));
        }

        #[test]
        fn own_sequences_are_a_distinct_sample_of_the_seats_own(
            number in any::<u64>(), own in proptest::collection::vec(0u64..50, 0..40), wanted in 0usize..50,
        ) {
            let drawn = own_sequences(&key(number), Uid(3), &own, wanted);
            prop_assert_eq!(drawn.len(), wanted.min(distinct(&own)));
            prop_assert_eq!(distinct(&drawn), drawn.len());
            prop_assert!(drawn.iter().all(|sequence| own.contains(sequence)));
        }
    }
}
