//! Finds the largest values of a chunk (PROT-7) by counting, while `protocol::contribution` sorts.
//!
//! The magnitudes of finite floats are ordered as their bits, so this module compares integers. A chunk of 4096 values
//! is read twice. The first pass finds the largest magnitude of each group of values. The `k`-th largest of these
//! bounds the chunk's `k`-th largest magnitude from below, because at least `k` groups reach it. The second pass
//! collects the values that reach the bound: about 75 of 4096 random values for `k` = 64. Steps and bisection find the
//! exact threshold among these.
//!
//! A search needs at most about 40 counts of at most 4096 magnitudes, so the worst case is bounded. Equal values, slow
//! for a quick-select, end it at once.
//!
//! With AVX-512 or AVX2 a random chunk with `k` = 64 costs 0.2 ns per value (Zen 4), less than a cycle. These are
//! three loads and a dozen instructions per 16 values, and about twenty counts over groups and candidates.

use crate::{
    lanes::{self, LANES, widest},
    wire::CHUNK,
};
use std::ops::{Range, RangeInclusive};

/// Mask of the bits of a magnitude, without the sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// Magnitude of infinity; NaNs are above it.
const INFINITE: u32 = 0x7f80_0000;

/// Capacity of the buffers: a whole vector is stored even if only its first lanes are valid.
const ROOM: usize = CHUNK + LANES;

/// Arrays of the next chunk, prefetched into the second-level cache during this one, so that memory and processor work
/// in parallel.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead<'a> {
    pub arrays: [&'a [f32]; 3],
}

impl Ahead<'_> {
    /// Prefetches the line at value `index`.
    #[inline(always)]
    fn fetch(self, index: usize) {
        #[cfg(target_arch = "x86_64")]
        for place in self.arrays.iter().filter_map(|array| array.get(index)) {
            use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
            // SAFETY: a hint; the address is that of a value.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(std::ptr::from_ref(place).cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = index;
    }
}

/// Chosen values of a chunk, and buffers for the search: 100 KiB.
#[derive(Clone, Debug)]
pub struct TopK {
    maxima: Vec<u32>,
    /// Bound of the previous chunk.
    guess: u32,
    kept: Candidates,
    wider: Candidates,
}

#[derive(Clone, Debug)]
struct Candidates {
    /// Positions of the valid values, and [`LANES`] more.
    positions: Vec<u32>,
    values: Vec<f32>,
    count: usize,
}

impl Default for TopK {
    fn default() -> TopK {
        TopK {
            maxima: Vec::with_capacity(CHUNK),
            guess: 0,
            kept: Candidates::new(),
            wider: Candidates::new(),
        }
    }
}

impl TopK {
    /// Chooses the `count` values of `chunk` largest in magnitude, ties to the lower index, and prefetches the next
    /// chunk. Returns `None` if a value of the chunk is not finite.
    ///
    /// # Panics
    /// If the chunk has more than 4096 values, or `count` is not from 1 to their number.
    pub(crate) fn select(&mut self, chunk: &[f32], count: usize, ahead: Ahead<'_>) -> Option<()> {
        assert!(
            (1..=chunk.len()).contains(&count) && chunk.len() <= CHUNK,
            "from 1 to all of a chunk are chosen"
        );
        largest_of_groups(chunk, groups_for(count), &mut self.maxima);
        let (bound, largest) = bound(&self.maxima, count, self.guess);
        self.guess = bound;
        if largest >= INFINITE {
            return None;
        }
        let kept = &mut self.kept;
        kept.count = collect(chunk, None, bound, &mut kept.positions, &mut kept.values, ahead);
        if kept.count == count {
            return Some(());
        }

        let wider = &mut self.wider;
        std::mem::swap(kept, wider);
        let among = &wider.values[..wider.count];
        let smallest = threshold(among, bound, largest, count);
        let positions = Some(&wider.positions[..wider.count]);
        kept.count =
            collect(among, positions, smallest, &mut kept.positions, &mut kept.values, Ahead::default());
        kept.drop_ties(smallest, count);
        Some(())
    }

    /// Returns the positions of the chosen values in the chunk, ascending, and the values.
    pub(crate) fn chosen(&mut self) -> (&[u32], &mut [f32]) {
        let Candidates { positions, values, count } = &mut self.kept;
        (&positions[..*count], &mut values[..*count])
    }
}

impl Candidates {
    fn new() -> Candidates {
        Candidates { positions: vec![0; ROOM], values: vec![0.0; ROOM], count: 0 }
    }

    /// Keeps `count` candidates: of those of magnitude `smallest`, the first.
    fn drop_ties(&mut self, smallest: u32, count: usize) {
        let mut excess = self.count - count;
        if excess == 0 {
            return;
        }
        let is_tie = |value: f32| magnitude(value) == smallest;
        let ties = self.values[..self.count].iter().filter(|value| is_tie(**value)).count();
        let mut ties_left = ties - excess;
        let mut next = 0;
        for at in 0..self.count {
            let (position, value) = (self.positions[at], self.values[at]);
            (self.positions[next], self.values[next]) = (position, value);
            let dropped = is_tie(value) && ties_left == 0;
            ties_left -= usize::from(is_tie(value) && !dropped);
            excess -= usize::from(dropped);
            next += usize::from(!dropped);
        }
        debug_assert_eq!(excess, 0);
        self.count = next;
    }
}

/// Returns the number of groups of a chunk, chosen so that their bound for `count` values is close.
///
/// With four times as many groups as wanted values, hardly any group has two of them. Fewer groups let more candidates
/// through; more groups take longer to count.
fn groups_for(count: usize) -> usize {
    match count {
        0..=128 => CHUNK / 16,
        129..=512 => CHUNK / 4,
        _ => CHUNK,
    }
}

widest! {
    /// Computes the largest magnitude of each group: the values at one index modulo the number of groups.
    fn largest_of_groups(chunk: &[f32], groups: usize, maxima: &mut Vec<u32>) = largest_of_groups_body;
}

#[inline(always)]
fn largest_of_groups_body(chunk: &[f32], groups: usize, maxima: &mut Vec<u32>) {
    maxima.clear();
    let (first, rest) = chunk.split_at(groups.min(chunk.len()));
    maxima.extend(first.iter().map(|value| magnitude(*value)));
    for row in rest.chunks(groups) {
        for (largest, value) in maxima.iter_mut().zip(row) {
            *largest = magnitude(*value).max(*largest);
        }
    }
}

/// Returns a magnitude that `count` groups or slightly more reach, and the largest of all. The bound of the previous
/// chunk is a good guess, since neighbours are similar.
fn bound(maxima: &[u32], count: usize, guess: u32) -> (u32, u32) {
    let (smallest, largest) = extremes(maxima);
    let few = count + count / 8 + 4;
    let bound = match maxima.len() {
        groups if groups < count => 0,
        groups if groups <= few || largest >= INFINITE => smallest,
        _ => narrow(smallest..largest + 1, guess, count..=few, |bound| reaching_magnitudes(maxima, bound)),
    };
    (bound, largest)
}

/// Returns the `count`-th largest magnitude of `values`, or one that only the `count` largest reach. At least `count`
/// values must reach `bound`, and none may exceed `largest`.
fn threshold(values: &[f32], bound: u32, largest: u32, count: usize) -> u32 {
    narrow(bound..largest + 1, bound + FIRST_STEP, count..=count, |bound| reaching_values(values, bound))
}

/// Distance between the first two guesses, in units of the last place: under a hundredth of the magnitude.
const FIRST_STEP: u32 = 1 << 16;

/// Returns a magnitude that `wanted` values reach, or if there is none, the largest that more values reach. At least
/// as many must reach the start of `range`, and fewer its end.
///
/// It steps away from the guess, each time four times as far, until the result lies in between; then it bisects.
#[inline]
fn narrow(
    range: Range<u32>,
    mut guess: u32,
    wanted: RangeInclusive<usize>,
    reaching: impl Fn(u32) -> usize,
) -> u32 {
    let Range { start: mut low, end: mut high } = range;
    let (mut raised, mut lowered) = (false, false);
    let mut step = FIRST_STEP;
    while high - low > 1 {
        let half = (high - low) / 2;
        if !(low + 1..high).contains(&guess) {
            guess = low + half;
        }
        let count = reaching(guess);
        if wanted.contains(&count) {
            return guess;
        }
        if count > *wanted.end() {
            (low, raised) = (guess, true);
        } else {
            (high, lowered) = (guess, true);
        }
        let half = (high - low) / 2;
        guess = match (raised, lowered) {
            (true, false) => low + half.min(step),
            (false, true) => high - half.min(step),
            _ => low + half,
        };
        step = step.saturating_mul(4);
    }
    low
}

widest! {
    fn extremes(maxima: &[u32]) -> (u32, u32) = extremes_body;
}

#[inline(always)]
fn extremes_body(maxima: &[u32]) -> (u32, u32) {
    maxima.iter().fold((u32::MAX, 0), |(low, high), value| (low.min(*value), high.max(*value)))
}

widest! {
    fn reaching_magnitudes(magnitudes: &[u32], bound: u32) -> usize = reaching_magnitudes_body;
}

#[inline(always)]
fn reaching_magnitudes_body(magnitudes: &[u32], bound: u32) -> usize {
    magnitudes.iter().map(|magnitude| u32::from(*magnitude >= bound)).sum::<u32>() as usize
}

widest! {
    fn reaching_values(values: &[f32], bound: u32) -> usize = reaching_values_body;
}

#[inline(always)]
fn reaching_values_body(values: &[f32], bound: u32) -> usize {
    values.iter().map(|value| u32::from(magnitude(*value) >= bound)).sum::<u32>() as usize
}

/// Collects the values whose magnitude reaches `bound`, in order, with their positions: the indices, or `positions`.
/// Returns their number.
///
/// # Panics
/// If the buffers are shorter than `values` and [`LANES`] more, or the number of positions differs.
fn collect(
    values: &[f32],
    positions: Option<&[u32]>,
    bound: u32,
    places: &mut [u32],
    kept: &mut [f32],
    ahead: Ahead<'_>,
) -> usize {
    assert!(places.len().min(kept.len()) >= values.len() + LANES, "all may reach the bound");
    assert!(positions.is_none_or(|positions| positions.len() == values.len()), "each value has a position");
    match lanes::width() {
        // SAFETY: the processor supports AVX-512, and the buffers have capacity for all values and one more vector.
        #[cfg(target_arch = "x86_64")]
        lanes::Width::Avx512 => unsafe { x86::collect_avx512(values, positions, bound, places, kept, ahead) },
        // SAFETY: as above, for AVX2.
        #[cfg(target_arch = "x86_64")]
        lanes::Width::Avx2 => unsafe { x86::collect_avx2(values, positions, bound, places, kept, ahead) },
        _ => collect_portable(values, positions, bound, 0..values.len(), places, kept, 0),
    }
}

/// Collects from a range of the values, after `count` collected values.
fn collect_portable(
    values: &[f32],
    positions: Option<&[u32]>,
    bound: u32,
    range: Range<usize>,
    places: &mut [u32],
    kept: &mut [f32],
    mut count: usize,
) -> usize {
    // Each value is written, and the next overwrites it if it is not selected. This avoids a branch.
    for index in range {
        let value = values[index];
        places[count] = positions.map_or(index as u32, |positions| positions[index]);
        kept[count] = value;
        count += usize::from(magnitude(value) >= bound);
    }
    count
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Ahead, MAGNITUDE, collect_portable};
    use std::arch::x86_64::*;

    /// # Safety
    /// The processor must support AVX-512, `places` and `kept` must have capacity for `values.len() + 16`, and there
    /// must be as many positions as values.
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub unsafe fn collect_avx512(
        values: &[f32],
        positions: Option<&[u32]>,
        bound: u32,
        places: &mut [u32],
        kept: &mut [f32],
        ahead: Ahead<'_>,
    ) -> usize {
        let (rows, _) = values.as_chunks::<16>();
        let without_sign = _mm512_set1_epi32(MAGNITUDE as i32);
        let bounds = _mm512_set1_epi32(bound as i32);
        let step = _mm512_set1_epi32(16);
        let mut indices = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        let mut count = 0;
        for (row, index) in rows.iter().zip((0..).step_by(16)) {
            ahead.fetch(index);
            // SAFETY: a row is 16 values.
            let bits = unsafe { _mm512_loadu_epi32(row.as_ptr().cast()) };
            let here = match positions {
                None => indices,
                // SAFETY: there are as many positions as values, and 16 values from this index on.
                Some(positions) => unsafe { _mm512_loadu_epi32(positions.as_ptr().add(index).cast()) },
            };
            let reaching = _mm512_cmpge_epu32_mask(_mm512_and_si512(bits, without_sign), bounds);
            // Compressed in a register, because the instruction that compresses into memory is slow.
            let found = _mm512_maskz_compress_epi32(reaching, bits);
            let found_at = _mm512_maskz_compress_epi32(reaching, here);
            // SAFETY: `count` is at most the number of values before this row, and there is capacity for 16 more.
            unsafe {
                _mm512_storeu_epi32(kept.as_mut_ptr().add(count).cast(), found);
                _mm512_storeu_epi32(places.as_mut_ptr().add(count).cast(), found_at);
            }
            count += reaching.count_ones() as usize;
            indices = _mm512_add_epi32(indices, step);
        }
        collect_portable(values, positions, bound, 16 * rows.len()..values.len(), places, kept, count)
    }

    /// Lanes of each set of lanes, in order.
    static LANES_OF: [[u8; 8]; 256] = {
        let mut table = [[0; 8]; 256];
        let mut set = 0;
        while set < 256 {
            let (mut lane, mut next) = (0, 0);
            while lane < 8 {
                if set >> lane & 1 == 1 {
                    table[set][next] = lane;
                    next += 1;
                }
                lane += 1;
            }
            set += 1;
        }
        table
    };

    /// # Safety
    /// The processor must support AVX2, `places` and `kept` must have capacity for `values.len() + 8`, and there must
    /// be as many positions as values.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub unsafe fn collect_avx2(
        values: &[f32],
        positions: Option<&[u32]>,
        bound: u32,
        places: &mut [u32],
        kept: &mut [f32],
        ahead: Ahead<'_>,
    ) -> usize {
        let (rows, _) = values.as_chunks::<8>();
        let without_sign = _mm256_set1_epi32(MAGNITUDE as i32);
        // The highest bit of magnitudes is zero, so signed comparison orders them.
        let below = _mm256_set1_epi32((bound as i32).wrapping_sub(1));
        let step = _mm256_set1_epi32(8);
        let mut indices = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        let mut count = 0;
        for (row, index) in rows.iter().zip((0..).step_by(8)) {
            if index % 16 == 0 {
                ahead.fetch(index);
            }
            // SAFETY: a row is 8 values.
            let bits = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
            let here = match positions {
                None => indices,
                // SAFETY: there are as many positions as values, and 8 values from this index on.
                Some(positions) => unsafe { _mm256_loadu_si256(positions.as_ptr().add(index).cast()) },
            };
            let reaching = _mm256_cmpgt_epi32(_mm256_and_si256(bits, without_sign), below);
            let reaching = _mm256_movemask_ps(_mm256_castsi256_ps(reaching)) as u8;
            let lanes = _mm_cvtsi64_si128(i64::from_le_bytes(LANES_OF[usize::from(reaching)]));
            let lanes = _mm256_cvtepu8_epi32(lanes);
            let found = _mm256_permutevar8x32_epi32(bits, lanes);
            let found_at = _mm256_permutevar8x32_epi32(here, lanes);
            // SAFETY: `count` is at most the number of values before this row, and there is capacity for 8 more.
            unsafe {
                _mm256_storeu_si256(kept.as_mut_ptr().add(count).cast(), found);
                _mm256_storeu_si256(places.as_mut_ptr().add(count).cast(), found_at);
            }
            count += reaching.count_ones() as usize;
            indices = _mm256_add_epi32(indices, step);
        }
        collect_portable(values, positions, bound, 8 * rows.len()..values.len(), places, kept, count)
    }
}

#[inline(always)]
pub(crate) fn magnitude(value: f32) -> u32 {
    value.to_bits() & MAGNITUDE
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn the_choice_is_that_of_a_stable_sort(
            chunks in prop::collection::vec((prop::collection::vec(-40i32..40, 1..=CHUNK), 0.0f64..1.0, any::<bool>()), 1..4),
        ) {
            // One after the other, since the second starts its search at the result of the first.
            let mut top = TopK::default();
            for (numbers, share, distinct) in chunks {
                let values: Vec<f32> = numbers
                    .iter()
                    .zip(0..)
                    .map(|(number, index)| *number as f32 + if distinct { index as f32 * 1e-4 } else { 0.0 })
                    .collect();
                let count = ((values.len() as f64 * share.powi(3)) as usize).max(1);
                let mut expected: Vec<u32> = (0..values.len() as u32).collect();
                expected.sort_by_key(|index| std::cmp::Reverse(magnitude(values[*index as usize])));
                expected.truncate(count);
                expected.sort_unstable();

                prop_assert_eq!(top.select(&values, count, Ahead::default()), Some(()));
                let (positions, chosen) = top.chosen();
                prop_assert_eq!(positions, &expected[..]);
                prop_assert!(positions.iter().zip(chosen).all(|(at, value)| values[*at as usize] == *value));
            }
        }
    }

    #[test]
    fn a_chunk_with_a_value_that_is_not_finite_has_no_choice() {
        let mut top = TopK::default();
        for length in [1, 16, 300, CHUNK] {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                for (at, count) in [(0, 1), (length - 1, length), (length / 2, length.div_ceil(64))] {
                    let mut chunk = vec![1.0; length];
                    chunk[at] = bad;
                    assert_eq!(top.select(&chunk, count, Ahead::default()), None);
                }
            }
        }
    }
}
