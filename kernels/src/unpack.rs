//! Unpacks one section: gaps, signs and magnitudes; refuses bytes that the encoder cannot have written (PROT-8).
//!
//! A section's signs start at the end of its gaps, which only the gaps determine. So the gaps are read first, into two
//! bytes per entry ([`INDEX`]), and signs and magnitudes are merged in afterwards, many at a time. Lists, sums and
//! steps of the model are computed from those two bytes.
//!
//! A gap starts at the end of the previous one, which is a dependent chain of a bit count and two shifts. The code
//! needs eight instructions per gap: bits are fetched once for several gaps, and bounds are checked once per group. A
//! group that fails the check, with a gap far longer than usual, is read again gap by gap. Vector code does the
//! independent work.

use crate::{
    lanes::widest,
    wire::{CHUNK, RICE_MAX, kept, value_of},
};

/// Mask of an entry's index in its chunk.
pub const INDEX: u16 = 0x0fff;
/// Right shift that gives an entry's index in [`Chunk::levels`].
pub const LEVEL_SHIFT: u32 = 12;
const NEGATIVE: u16 = 1 << LEVEL_SHIFT;
const HIGH: u16 = 2 << LEVEL_SHIFT;

/// One unpacked section, in buffers that the next one reuses: two bytes per entry.
#[derive(Default)]
pub struct Unpacked {
    values: usize,
    density: u16,
    entries: Vec<u16>,
    /// `lo` and `hi` of each chunk.
    levels: Vec<[f32; 2]>,
    /// `n_lo·lo² + n_hi·hi²` of each chunk.
    squares: Vec<f64>,
}

/// One chunk of an unpacked section.
#[derive(Clone, Copy)]
pub struct Chunk<'a> {
    /// Offset of the chunk in its section.
    pub start: usize,
    /// Number of values of the chunk.
    pub length: usize,
    /// Entries, ascending by their [`INDEX`].
    pub entries: &'a [u16],
    /// Levels `+lo`, `−lo`, `+hi`, `−hi`.
    pub levels: [f32; 4],
}

impl Unpacked {
    /// Unpacks a section of `values` values (1 to [`SECTION`](crate::wire::SECTION)), of which `density` in 4096 are
    /// sent. Returns whether these bytes are a valid encoding; if not, the contents are undefined.
    #[must_use]
    pub fn read(&mut self, density: u16, values: usize, bytes: &[u8]) -> bool {
        (self.values, self.density) = (values, density);
        self.levels.clear();
        self.squares.clear();
        // Lengths are checked first, so that memory is not allocated for entries that the bytes cannot hold.
        if bytes.len() < smallest(density, values) {
            return false;
        }
        self.entries.resize(entries_of(density, values), 0);
        read(bytes, self)
    }

    pub fn chunks(&self) -> impl Iterator<Item = Chunk<'_>> {
        (0..self.levels.len()).map(|index| self.chunk(index))
    }

    /// # Panics
    /// If `index` is out of bounds.
    pub fn chunk(&self, index: usize) -> Chunk<'_> {
        let start = index * CHUNK;
        let length = CHUNK.min(self.values - start);
        let entries = &self.entries[index * kept(self.density, CHUNK)..][..kept(self.density, length)];
        let [lo, hi] = self.levels[index];
        Chunk { start, length, entries, levels: [lo, -lo, hi, -hi] }
    }

    /// Returns `n_lo·lo² + n_hi·hi²` of each chunk in order, the terms of a norm (PROT-17).
    pub fn squares(&self) -> &[f64] {
        &self.squares
    }
}

/// Returns the minimum length of a section in bytes, with every gap zero.
pub fn smallest(density: u16, values: usize) -> usize {
    1 + 2 * values.div_ceil(CHUNK) + (3 * entries_of(density, values)).div_ceil(8)
}

/// Returns the maximum length of a section in bytes.
///
/// With parameter `r` the quotients of a chunk's gaps add up to at most `(len − kept) >> r`, and the encoder uses the
/// best parameter.
pub fn largest(density: u16, values: usize) -> usize {
    let entries = entries_of(density, values);
    let (full, rest) = (values / CHUNK, values % CHUNK);
    let longest_gaps = |rice: u8| {
        let quotients = |length: usize| (length - kept(density, length)) >> rice;
        full * quotients(CHUNK) + quotients(rest) + entries * (1 + usize::from(rice))
    };
    let gap_bits = (0..=RICE_MAX).map(longest_gaps).min().unwrap_or(0);
    1 + 2 * values.div_ceil(CHUNK) + (gap_bits + 2 * entries).div_ceil(8)
}

fn entries_of(density: u16, values: usize) -> usize {
    values / CHUNK * kept(density, CHUNK) + kept(density, values % CHUNK)
}

widest! {
    fn read(bytes: &[u8], section: &mut Unpacked) -> bool = read_body;
}

/// Reads a section. `bytes` must not be shorter than the smallest section, and `section.entries` must have the number
/// of kept entries.
#[inline(always)]
fn read_body(bytes: &[u8], section: &mut Unpacked) -> bool {
    let Unpacked { values, density, entries, levels, squares } = section;
    let (values, full) = (*values, kept(*density, CHUNK));
    let (rice, rest) = (bytes[0], &bytes[1..]);
    let (codes, stream) = rest.split_at(2 * values.div_ceil(CHUNK));
    if rice > RICE_MAX {
        return false;
    }

    // Number of gaps per fetch whose bits usually fit: a gap has about `rice + 2.5`.
    let Some(gap_bits) = (match rice {
        0..=1 => double_sums::<12>(stream, rice, values, full, entries),
        2..=3 => double_sums::<8>(stream, rice, values, full, entries),
        4..=5 => double_sums::<6>(stream, rice, values, full, entries),
        6..=8 => double_sums::<4>(stream, rice, values, full, entries),
        _ => double_sums::<3>(stream, rice, values, full, entries),
    }) else {
        return false;
    };

    // Only signs, magnitudes and padding remain.
    let bits = gap_bits + 2 * entries.len();
    if bits.div_ceil(8) != stream.len() || !bits.is_multiple_of(8) && stream[bits / 8] >> (bits % 8) != 0 {
        return false;
    }
    let mut sign_at = gap_bits;
    let mut high_at = gap_bits + entries.len();
    let lengths = (0..values).step_by(CHUNK).map(|start| CHUNK.min(values - start));
    for ((codes, length), chunk) in codes.as_chunks::<2>().0.iter().zip(lengths).zip(entries.chunks_mut(full))
    {
        let [lo, hi] = *codes;
        debug_assert_eq!(chunk.len(), kept(*density, length));
        // Zero has no sign: if the lower level is zero, its entries are unsigned. If both levels are zero, no
        // magnitude bit may be set.
        let unsigned = if lo == 0 { u64::MAX } else { 0 };
        let mut signed_zeros = 0;
        let mut highs = 0;
        for (first, entries) in (0..).step_by(64).zip(chunk.chunks_mut(64)) {
            let all = u64::MAX >> (64 - entries.len());
            let (negative, high) = (bits_at(stream, sign_at) & all, bits_at(stream, high_at) & all);
            sign_at += entries.len();
            high_at += entries.len();
            signed_zeros |= negative & !high & unsigned;
            highs += high.count_ones();
            finish(first, entries, negative, high);
        }
        let used = if lo == hi { highs == 0 } else { lo < hi && highs != 0 && highs as usize != chunk.len() };
        if !used || signed_zeros != 0 {
            return false;
        }
        let (lo, hi) = (value_of(lo), value_of(hi));
        levels.push([lo, hi]);
        squares.push(square_sum(chunk.len() as u32 - highs, lo) + square_sum(highs, hi));
    }
    true
}

#[inline(always)]
fn square_sum(count: u32, level: f32) -> f64 {
    f64::from(count) * (f64::from(level) * f64::from(level))
}

/// Computes up to 64 entries, the chunk's `first` and those that follow it, from twice the sum of the gaps up to each.
#[inline(always)]
fn finish(first: u16, entries: &mut [u16], negative: u64, high: u64) {
    let finished = |index: u16, double_sum: u16, negative: u16, high: u16| {
        let bit = 1 << (index % 16);
        let index = (double_sum >> 1) + first + index;
        index | if negative & bit != 0 { NEGATIVE } else { 0 } | if high & bit != 0 { HIGH } else { 0 }
    };
    let (rows, rest) = entries.as_chunks_mut::<16>();
    let mut start = 0;
    for row in rows {
        let (negative, high) = ((negative >> start) as u16, (high >> start) as u16);
        for (index, entry) in (start..start + 16).zip(row) {
            *entry = finished(index, *entry, negative, high);
        }
        start += 16;
    }
    for (index, entry) in (start..).zip(rest) {
        *entry = finished(index, *entry, (negative >> start) as u16, (high >> start) as u16);
    }
}

/// Reads all gaps of a section; leaves at each entry twice the sum of the gaps in its chunk up to its own. Returns the
/// number of bits read, or `None` if an index is outside its chunk or `rice` is not the smallest parameter with the
/// shortest code.
///
/// May read zeros past the end: the caller compares the bits with those of the section.
#[inline(always)]
fn double_sums<const GROUP: usize>(
    stream: &[u8],
    rice: u8,
    values: usize,
    full: usize,
    entries: &mut [u16],
) -> Option<usize> {
    let mut at = 0;
    let (mut halves, mut doubles) = (0, 0);
    for (start, chunk) in (0..).step_by(CHUNK).zip(entries.chunks_mut(full)) {
        let mut double_sum = 0u64;
        for group in chunk.chunks_mut(GROUP) {
            double_sum = match <&mut [u16; GROUP]>::try_from(&mut *group) {
                Ok(group) => read_group(stream, &mut at, u32::from(rice), double_sum, group),
                Err(_) => read_group(stream, &mut at, u32::from(rice), double_sum, group),
            };
        }
        // Gaps are not negative, so the last index is the largest.
        if double_sum / 2 + chunk.len() as u64 > CHUNK.min(values - start) as u64 {
            return None;
        }
        halves += quotients(chunk, rice + 1);
        doubles += quotients(chunk, rice.saturating_sub(1));
    }
    // The gaps' bits give the sum of their quotients. The length is convex in the parameter: each step up saves `Σ
    // ⌈(gap >> r) / 2⌉` bits, ever fewer, and costs one bit per gap. So the parameter is the smallest with the least
    // length if the step up saves nothing and the step to it did.
    let count = entries.len();
    let whole = at - count * (1 + usize::from(rice));
    let saves_nothing = whole <= halves + count;
    let saved = rice == 0 || doubles > whole + count;
    (saves_nothing && saved).then_some(at)
}

/// Returns `Σ (gap >> rice)` of one chunk, from twice the sums of its gaps.
#[inline(always)]
fn quotients(double_sums: &[u16], rice: u8) -> usize {
    // Gaps of a chunk add up to less than 4096, so sixteen bits hold every sum.
    let shift = rice + 1;
    let gaps = double_sums.iter().zip(&double_sums[1..]).map(|(before, sum)| sum.wrapping_sub(*before));
    let sum = gaps.fold(0u16, |sum, double_gap| sum.wrapping_add(double_gap >> shift));
    usize::from(sum) + usize::from(double_sums[0] >> shift)
}

/// Number of bits of one fetch, at any offset in a byte.
const FETCHED: u32 = 57;

/// Reads a few gaps. `double_sum` is twice the sum of the gaps before them in the chunk; returns the new double sum.
/// Entries beyond sixteen bits are invalid, but the returned sum is right and reveals this.
#[inline(always)]
fn read_group(stream: &[u8], at: &mut usize, rice: u32, double_sum: u64, group: &mut [u16]) -> u64 {
    if let Some(word) = stream.get(*at / 8..).and_then(<[u8]>::first_chunk::<8>) {
        // Inverted, so that a run of ones is counted as zeros. The bit far above the fetched ones shifts down with
        // them and finally gives the number of used bits. A run of ones beyond the fetched bits ends there, or has no
        // end.
        let fetched = !u64::from_le_bytes(*word) >> (*at % 8) & ((1 << FETCHED) - 1);
        let mut bits = fetched | 1 << 63;
        let mut sum = double_sum;
        for entry in group.iter_mut() {
            let ones = bits.trailing_zeros();
            // The lowest bit ends the run. Above it, and so doubled, are the low bits of the gap.
            let ended = bits.wrapping_shr(ones);
            sum = sum.wrapping_add(u64::from(ones) << (rice + 1)).wrapping_add(!ended & ((2 << rice) - 2));
            *entry = sum as u16;
            bits = ended >> (rice + 1);
        }
        let used = bits.leading_zeros();
        if used <= FETCHED {
            *at += used as usize;
            return sum;
        }
    }
    let mut sum = double_sum;
    for entry in group {
        sum += 2 * gap(stream, at, rice);
        *entry = sum as u16;
    }
    sum
}

/// Reads one gap with a unary part of any length.
#[inline(always)]
fn gap(stream: &[u8], at: &mut usize, rice: u32) -> u64 {
    let mut quotient = 0u64;
    loop {
        let ones = bits_at(stream, *at).trailing_ones();
        quotient += u64::from(ones);
        *at += ones as usize;
        if ones < 64 {
            break;
        }
    }
    let gap = quotient << rice | bits_at(stream, *at + 1) & ((1 << rice) - 1);
    *at += 1 + rice as usize;
    gap
}

/// Returns 64 bits from the given one on; zeros after the last byte.
#[inline(always)]
fn bits_at(stream: &[u8], at: usize) -> u64 {
    let (first, shift) = (at / 8, at % 8);
    let (word, above) = match stream.get(first..).and_then(<[u8]>::first_chunk::<9>) {
        Some([word @ .., above]) => (u64::from_le_bytes(*word), *above),
        None => {
            let rest = stream.get(first..).unwrap_or(&[]);
            let mut bytes = [0; 9];
            bytes[..rest.len()].copy_from_slice(rest);
            let [word @ .., above] = bytes;
            (u64::from_le_bytes(word), above)
        }
    };
    word >> shift | u64::from(above) << 1 << (63 - shift)
}
