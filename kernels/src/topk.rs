//! The largest values of a chunk (PROT-7): what `protocol::contribution` finds by sorting, found by counting.
//!
//! The magnitudes of finite floats are in the order of their bits, so everything here compares integers. A chunk of 4096
//! values is read twice. The first reading leaves the largest magnitude of each group of values ; the
//! `k`-th largest of these is a lower bound of the chunk's `k`-th largest magnitude, because at least `k` groups reach it.
//! The second reading collects what reaches the bound: of 4096 random values, 64 of them wanted, some 75. Among these
//! the exact threshold is found by bisection.
//!
//! Whatever the values, a bisection takes at most 31 counts of at most 4096 magnitudes, so the worst case is bounded;
//! equal values, for which sorting networks and quick-selects are slow, end it at once. On AVX-512 a random chunk with
//! 64 wanted costs about one cycle a value, less than a core waits for memory.

use crate::{
    lanes::{self, LANES, Width, widest},
    wire::CHUNK,
};

/// Magnitudes without their sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// A magnitude that is infinite or no number is this or more.
const INFINITE: u32 = 0x7f80_0000;

/// A vector is stored whole where only its first lanes count.
const ROOM: usize = CHUNK + LANES;

/// The arrays of the chunk that comes next, which are fetched into the second-level cache while this one is worked on.
///
/// Memory would else stand still while the processor counts, and the processor while memory is read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ahead<'a> {
    pub arrays: [&'a [f32]; 3],
}

impl Ahead<'_> {
    /// Fetches what lies `index` values in.
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

/// The values chosen of a chunk, and room to choose them in: 100 KiB.
#[derive(Clone, Debug)]
pub struct TopK {
    maxima: Vec<u32>,
    kept: Candidates,
    wider: Candidates,
}

#[derive(Clone, Debug)]
struct Candidates {
    /// As many as count, and [`LANES`] more.
    positions: Vec<u32>,
    values: Vec<f32>,
    count: usize,
}

impl Default for TopK {
    fn default() -> TopK {
        TopK { maxima: Vec::with_capacity(CHUNK), kept: Candidates::new(), wider: Candidates::new() }
    }
}

impl TopK {
    /// Chooses the `count` values of `chunk` largest in magnitude, ties to the lower index. `None` if a value of the
    /// chunk is not finite.
    ///
    /// # Panics
    /// If the chunk has more than 4096 values, or not from 1 to all of them are wanted.
    pub fn select(&mut self, chunk: &[f32], count: usize) -> Option<()> {
        self.select_ahead(chunk, count, Ahead::default())
    }

    /// As [`TopK::select`], and fetches what comes next.
    pub(crate) fn select_ahead(&mut self, chunk: &[f32], count: usize, ahead: Ahead<'_>) -> Option<()> {
        assert!(
            (1..=chunk.len()).contains(&count) && chunk.len() <= CHUNK,
            "from 1 to all of a chunk are chosen"
        );
        largest_of_groups(chunk, groups_for(count), &mut self.maxima);
        let (bound, largest) = bound(&self.maxima, count);
        if largest >= INFINITE {
            return None;
        }
        let kept = &mut self.kept;
        kept.count = collect(chunk, bound, &mut kept.positions, &mut kept.values, ahead);
        if kept.count == count {
            return Some(());
        }

        let wider = &mut self.wider;
        std::mem::swap(kept, wider);
        let among = &wider.values[..wider.count];
        let smallest = threshold(among, bound, largest, count);
        kept.count = collect(among, smallest, &mut kept.positions, &mut kept.values, Ahead::default());
        for position in &mut kept.positions[..kept.count] {
            *position = wider.positions[*position as usize];
        }
        kept.drop_ties(smallest, count);
        Some(())
    }

    /// Positions in the chunk of what was chosen, ascending.
    pub fn positions(&self) -> &[u32] {
        &self.kept.positions[..self.kept.count]
    }

    /// The values chosen, each at its position.
    pub fn values(&self) -> &[f32] {
        &self.kept.values[..self.kept.count]
    }

    /// As [`TopK::values`], to work in.
    pub(crate) fn positions_and_values(&mut self) -> (&[u32], &mut [f32]) {
        let Candidates { positions, values, count } = &mut self.kept;
        (&positions[..*count], &mut values[..*count])
    }
}

impl Candidates {
    fn new() -> Candidates {
        Candidates { positions: vec![0; ROOM], values: vec![0.0; ROOM], count: 0 }
    }

    /// Keeps `count`: of those that are no larger than `smallest`, the first.
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

/// Groups of a chunk, small enough that the bound they give for `count` values is close.
///
/// With four times as many groups as values wanted, hardly any group has two of them. Fewer groups let more candidates
/// through; more are more to count.
fn groups_for(count: usize) -> usize {
    match count {
        0..=128 => CHUNK / 16,
        129..=512 => CHUNK / 4,
        _ => CHUNK,
    }
}

widest! {
    /// The largest magnitude of each group: the values at one index modulo the number of groups.
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

/// A magnitude that at least `count` of the groups reach, and not many more; and the largest of all.
fn bound(maxima: &[u32], count: usize) -> (u32, u32) {
    let (smallest, largest) = extremes(maxima);
    if maxima.len() < count {
        return (0, largest);
    }
    // At least `count` reach `low`, and fewer `high`.
    let (mut low, mut high) = (smallest, largest.saturating_add(1));
    let few = count + count / 8 + 4;
    let mut reaching = maxima.len();
    while reaching > few && high - low > 1 {
        let middle = low + (high - low) / 2;
        let counted = reaching_magnitudes(maxima, middle);
        if counted >= count {
            (low, reaching) = (middle, counted);
        } else {
            high = middle;
        }
    }
    (low, largest)
}

/// The `count`-th largest magnitude of `values`, or one that only the `count` largest reach. At least `count` reach
/// `bound`, and none is above `largest`.
fn threshold(values: &[f32], bound: u32, largest: u32, count: usize) -> u32 {
    let (mut low, mut high) = (bound, largest + 1);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match reaching_values(values, middle) {
            counted if counted == count => return middle,
            counted if counted > count => low = middle,
            _ => high = middle,
        }
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

/// Appends the values whose magnitude reaches `bound`, in order, with their indices. Returns how many.
///
/// # Panics
/// If there is no room for all of `values` and [`LANES`] more.
fn collect(values: &[f32], bound: u32, positions: &mut [u32], kept: &mut [f32], ahead: Ahead<'_>) -> usize {
    assert!(
        positions.len() >= values.len() + LANES && kept.len() >= values.len() + LANES,
        "all may reach the bound"
    );
    match lanes::width() {
        // SAFETY: the processor has said that it has AVX-512, and there is room for all values and a vector more.
        #[cfg(target_arch = "x86_64")]
        Width::Avx512 => unsafe { x86::collect_avx512(values, bound, positions, kept, ahead) },
        // SAFETY: the same of AVX2.
        #[cfg(target_arch = "x86_64")]
        Width::Avx2 => unsafe { x86::collect_avx2(values, bound, positions, kept, ahead) },
        _ => collect_portable(values, bound, 0, positions, kept, 0),
    }
}

/// Collects from `start` on, `count` having been collected before.
fn collect_portable(
    values: &[f32],
    bound: u32,
    start: usize,
    positions: &mut [u32],
    kept: &mut [f32],
    mut count: usize,
) -> usize {
    // Each value is written, and the next overwrites it if it does not count: no branch to foretell.
    for (index, value) in values.iter().enumerate().skip(start) {
        positions[count] = index as u32;
        kept[count] = *value;
        count += usize::from(magnitude(*value) >= bound);
    }
    count
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Ahead, MAGNITUDE, collect_portable};
    use std::arch::x86_64::*;

    /// # Safety
    /// The processor has AVX-512, and `positions` and `kept` have room for `values.len() + 16`.
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub unsafe fn collect_avx512(
        values: &[f32],
        bound: u32,
        positions: &mut [u32],
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
            let reaching = _mm512_cmpge_epu32_mask(_mm512_and_si512(bits, without_sign), bounds);
            // Compressed in a register: the instruction that compresses into memory is slow.
            let (found, at) =
                (_mm512_maskz_compress_epi32(reaching, bits), _mm512_maskz_compress_epi32(reaching, indices));
            // SAFETY: `count` is at most the values before this row, and there is room for 16 more.
            unsafe {
                _mm512_storeu_epi32(kept.as_mut_ptr().add(count).cast(), found);
                _mm512_storeu_epi32(positions.as_mut_ptr().add(count).cast(), at);
            }
            count += reaching.count_ones() as usize;
            indices = _mm512_add_epi32(indices, step);
        }
        collect_portable(values, bound, 16 * rows.len(), positions, kept, count)
    }

    /// For each set of lanes, the lanes in it, in order.
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
    /// The processor has AVX2, and `positions` and `kept` have room for `values.len() + 8`.
    #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
    pub unsafe fn collect_avx2(
        values: &[f32],
        bound: u32,
        positions: &mut [u32],
        kept: &mut [f32],
        ahead: Ahead<'_>,
    ) -> usize {
        let (rows, _) = values.as_chunks::<8>();
        let without_sign = _mm256_set1_epi32(MAGNITUDE as i32);
        // Magnitudes have no highest bit, so that signed comparison orders them.
        let below = _mm256_set1_epi32((bound as i32).wrapping_sub(1));
        let mut count = 0;
        for (row, index) in rows.iter().zip((0..).step_by(8)) {
            if index % 16 == 0 {
                ahead.fetch(index as usize);
            }
            // SAFETY: a row is 8 values.
            let bits = unsafe { _mm256_loadu_si256(row.as_ptr().cast()) };
            let reaching = _mm256_cmpgt_epi32(_mm256_and_si256(bits, without_sign), below);
            let reaching = _mm256_movemask_ps(_mm256_castsi256_ps(reaching));
            let lanes = _mm_cvtsi64_si128(i64::from_le_bytes(LANES_OF[reaching as u8 as usize]));
            let lanes = _mm256_cvtepu8_epi32(lanes);
            let at = _mm256_add_epi32(lanes, _mm256_set1_epi32(index));
            // SAFETY: `count` is at most the values before this row, and there is room for 8 more.
            unsafe {
                let found = _mm256_permutevar8x32_epi32(bits, lanes);
                _mm256_storeu_si256(kept.as_mut_ptr().add(count).cast(), found);
                _mm256_storeu_si256(positions.as_mut_ptr().add(count).cast(), at);
            }
            count += reaching.count_ones() as usize;
        }
        collect_portable(values, bound, 8 * rows.len(), positions, kept, count)
    }
}

#[inline(always)]
pub(crate) fn magnitude(value: f32) -> u32 {
    value.to_bits() & MAGNITUDE
}
