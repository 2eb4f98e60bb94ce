//! Error feedback, the largest of every chunk, and their two levels, in one pass over the values (PROT-7, PROT-10).
//!
//! In the words of the reference, `protocol::contribution::encode_with_feedback`: the residual is `e ← fl(fl(β·e) + Δ)`;
//! of each chunk the `⌈len·ρ⌉` largest magnitudes are entries, ties to the lower index; the threshold is their mean in
//! f64, added in the order of the indices; the levels are the means of what lies above it and of the rest, rounded to
//! 8-bit floats; and where the residual pays for what is sent, `e ← fl(e − sent)`.
//!
//! One cube a chunk, whose values stay in shared memory from the first read to the last write. The smallest magnitude
//! kept is found digit by digit, with a histogram of the values that share the digits before. Sums are in integers
//! where every partial sum of the reference is exact, which is where 53 bits span the magnitudes kept and their number;
//! elsewhere one unit adds in the written order.

use super::{
    Device, GpuError, Values, array, cubes,
    number::{add, add_wide, divide_wide, from_integer, level_of, step, value_of, widen},
    parts::Part,
    position,
};
use crate::{
    encode::Feedback,
    wire::{CHUNK, Layout},
};
use cubecl::{prelude::*, server::Handle};

/// Units of a cube. Each looks after this many values of a full chunk.
pub(super) const UNITS: usize = 256;
const OWN: usize = 4096 / UNITS;
const BINS: usize = 2048;

/// Words of the chunk table: where the chunk starts in the part, its length and its entries in 16 bits each, its first
/// entry in the part, its tensor counted from the part's first.
pub(super) const CHUNK_WORDS: usize = 4;

/// An entry as all kernels hand it on: its index in the chunk, and above it the sign and the magnitude.
pub(super) const ENTRY_INDEX: u32 = 0xfff;
pub(super) const ENTRY_SIGN: u32 = 12;
pub(super) const ENTRY_HIGH: u32 = 13;

/// What is added to the residual, as the kernel is compiled for it.
pub(super) const SOURCE_NOTHING: u32 = 0;
pub(super) const SOURCE_DELTA: u32 = 1;
pub(super) const SOURCE_DIFFERENCE: u32 = 2;

/// Control words of a cube.
const PREFIX: usize = 0;
const TIES: usize = 1;
const CODES: usize = 2;
const HIGH: usize = 3;

/// Where a value of the chunk lies in shared memory, so that the values of neighbouring units lie in different banks.
#[cube]
fn slot(index: usize) -> usize {
    index + (index >> 5usize)
}

/// Adds up a value of each unit. All get the sum.
#[cube]
fn reduce(sums: &mut Shared<[u64]>, value: u64, unit: usize) -> u64 {
    sync_cube();
    sums[unit] = value;
    sync_cube();
    let mut half = comptime!(UNITS / 2).runtime();
    while half > 0usize {
        if unit < half {
            let other = sums[unit + half];
            sums[unit] += other;
        }
        sync_cube();
        half /= 2usize;
    }
    sums[0]
}

/// The sum of the values of this unit and of those before it.
#[cube]
pub(super) fn scan(sums: &mut Shared<[u32]>, value: u32, unit: usize, #[comptime] units: usize) -> u32 {
    sync_cube();
    sums[unit] = value;
    sync_cube();
    let mut sum = value;
    let mut back = 1usize.runtime();
    while back < units {
        let mut before = 0u32;
        if unit >= back {
            before = sums[unit - back];
        }
        sync_cube();
        sum += before;
        sums[unit] = sum;
        sync_cube();
        back *= 2usize;
    }
    sum
}

/// A magnitude in steps of the smallest one's last bit. Exact where both are of a few exponents.
#[cube]
fn steps(magnitude: u32, least: u32) -> u64 {
    let mut exponent = magnitude >> 23u32;
    let mut mantissa = magnitude & 0x007f_ffffu32;
    if exponent == 0u32 {
        exponent = 1u32;
    } else {
        mantissa |= 0x0080_0000u32;
    }
    let mut steps = 0u64;
    if mantissa != 0u32 {
        steps = (mantissa as u64) << ((exponent - least) as u64);
    }
    steps
}

#[cube(launch)]
pub(super) fn select(
    residual: &mut [u32],
    first: &[u32],
    second: &[u32],
    chunks: &[u32],
    entries: &mut [u32],
    levels: &mut [u32],
    refused: &mut [u32],
    decay: u32,
    fence: u32,
    #[comptime] source: u32,
    #[comptime] spend: bool,
    #[comptime] hardware: bool,
) {
    let chunk = CUBE_POS;
    let unit = UNIT_POS as usize;
    let start = chunks[CHUNK_WORDS * chunk] as usize;
    let counts = chunks[CHUNK_WORDS * chunk + 1usize];
    let first_entry = chunks[CHUNK_WORDS * chunk + 2usize] as usize;
    let length = (counts & 0xffffu32) as usize;
    let kept = counts >> 16u32;

    let mut values = Shared::<[u32]>::new_slice(4096usize + 128usize);
    let bins = Shared::<[Atomic<u32>]>::new_slice(BINS);
    let mut row = Shared::<[u32]>::new_slice(UNITS);
    let mut sums = Shared::<[u64]>::new_slice(UNITS);
    let mut control = Shared::<[u32]>::new_slice(8usize);
    // Exponents of the magnitudes kept, zeros apart: the least and the largest. And the first value that is not finite.
    let extremes = Shared::<[Atomic<u32>]>::new_slice(3usize);

    if unit == 0usize {
        control[PREFIX] = 0u32;
        control[TIES] = kept;
        extremes[0].store(255u32);
        extremes[1].store(0u32);
        extremes[2].store(0xffff_ffffu32);
    }
    sync_cube();

    for turn in 0..OWN {
        let index = turn * UNITS + unit;
        if index < length {
            let mut value = residual[start + index];
            if comptime!(source == SOURCE_DELTA) {
                value = step(value, first[start + index], decay, fence, hardware);
            }
            if comptime!(source == SOURCE_DIFFERENCE) {
                let delta = add(first[start + index], second[start + index] ^ 0x8000_0000u32);
                value = step(value, delta, decay, fence, hardware);
            }
            if (value & 0x7f80_0000u32) == 0x7f80_0000u32 {
                extremes[2].fetch_min(index as u32);
            }
            values[slot(index)] = value;
        }
    }

    // The smallest magnitude kept, from its highest digit to its lowest: 11, 10 and 10 bits.
    for digit in 0..3u32 {
        let shift = 20u32 - 10u32 * digit;
        let mut above = 10u32;
        let mut mask = 0x3ffu32;
        if digit == 0u32 {
            above = 11u32;
            mask = 0x7ffu32;
        }
        for turn in 0..BINS / UNITS {
            bins[turn * UNITS + unit].store(0u32);
        }
        sync_cube();
        let prefix = control[PREFIX];
        let want = control[TIES];
        for turn in 0..OWN {
            let index = turn * UNITS + unit;
            if index < length {
                let magnitude = values[slot(index)] & 0x7fff_ffffu32;
                // The digits above are shifted out in two steps: a shift by all 31 bits is fine, one by 32 is not.
                if ((magnitude >> shift) >> above) == ((prefix >> shift) >> above) {
                    bins[((magnitude >> shift) & mask) as usize].fetch_add(1u32);
                }
            }
        }
        sync_cube();
        let top = (BINS - 1usize) - unit * (BINS / UNITS);
        let mut own = 0u32;
        for turn in 0..BINS / UNITS {
            own += bins[top - turn].load();
        }
        let through = scan(&mut row, own, unit, UNITS);
        let mut higher = through - own;
        if higher < want && want <= through {
            let mut bin = top;
            let mut here = bins[bin].load();
            while higher + here < want {
                higher += here;
                bin -= 1usize;
                here = bins[bin].load();
            }
            control[PREFIX] = prefix | ((bin as u32) << shift);
            control[TIES] = want - higher;
        }
        sync_cube();
    }
    let smallest = control[PREFIX];
    let ties = control[TIES];

    // Which values are entries: those above the smallest, and the first ones that equal it.
    let own_first = unit * OWN;
    let mut greater = 0u32;
    let mut equal = 0u32;
    for turn in 0..OWN {
        let index = own_first + turn;
        if index < length {
            let magnitude = values[slot(index)] & 0x7fff_ffffu32;
            if magnitude > smallest {
                greater += 1u32;
            }
            if magnitude == smallest {
                equal += 1u32;
            }
        }
    }
    let own = (greater << 16u32) | equal;
    let before = scan(&mut row, own, unit, UNITS) - own;
    let mut equal_before = before & 0xffffu32;
    let mut rank = before >> 16u32;
    if equal_before < ties {
        rank += equal_before;
    } else {
        rank += ties;
    }
    let mut is_entry = 0u32;
    for turn in 0..OWN {
        let index = own_first + turn;
        if index < length {
            let magnitude = values[slot(index)] & 0x7fff_ffffu32;
            let mut keep = magnitude > smallest;
            if magnitude == smallest {
                keep = equal_before < ties;
                equal_before += 1u32;
            }
            if keep {
                is_entry |= 1u32 << (turn as u32);
                if magnitude != 0u32 {
                    let mut exponent = magnitude >> 23u32;
                    if exponent == 0u32 {
                        exponent = 1u32;
                    }
                    extremes[0].fetch_min(exponent);
                    extremes[1].fetch_max(exponent);
                }
            }
        }
    }
    sync_cube();

    // The threshold, and the levels of both sides.
    let least = extremes[0].load();
    let largest = extremes[1].load();
    let count_bits = 32u32 - kept.leading_zeros();
    // No magnitude but zero: any steps will do.
    let exact = largest < least || largest - least + 24u32 + count_bits <= 53u32;
    if exact {
        let mut sum = 0u64;
        for turn in 0..OWN {
            if ((is_entry >> (turn as u32)) & 1u32) == 1u32 {
                sum += steps(values[slot(own_first + turn)] & 0x7fff_ffffu32, least);
            }
        }
        let total = reduce(&mut sums, sum, unit);
        let threshold = divide_wide(from_integer(total, least as i32 - 150i32), kept);

        let mut high_sum = 0u64;
        let mut high_own = 0u64;
        for turn in 0..OWN {
            if ((is_entry >> (turn as u32)) & 1u32) == 1u32 {
                let magnitude = values[slot(own_first + turn)] & 0x7fff_ffffu32;
                if widen(magnitude) > threshold {
                    high_sum += steps(magnitude, least);
                    high_own += 1u64;
                }
            }
        }
        let high_total = reduce(&mut sums, high_sum, unit);
        let high_count = reduce(&mut sums, high_own, unit) as u32;
        if unit == 0usize {
            control[HIGH] = high_count;
            sums[0] = from_integer(total - high_total, least as i32 - 150i32);
            sums[1] = from_integer(high_total, least as i32 - 150i32);
            sums[2] = threshold;
        }
    } else {
        if unit == 0usize {
            let mut total = 0u64;
            let mut ties_left = ties;
            for index in 0..length {
                let magnitude = values[slot(index)] & 0x7fff_ffffu32;
                let mut keep = magnitude > smallest;
                if magnitude == smallest && ties_left > 0u32 {
                    keep = true;
                    ties_left -= 1u32;
                }
                if keep {
                    total = add_wide(total, widen(magnitude));
                }
            }
            let cut = divide_wide(total, kept);
            let mut low_sum = 0u64;
            let mut high_sum = 0u64;
            let mut high_count = 0u32;
            ties_left = ties;
            for index in 0..length {
                let magnitude = values[slot(index)] & 0x7fff_ffffu32;
                let mut keep = magnitude > smallest;
                if magnitude == smallest && ties_left > 0u32 {
                    keep = true;
                    ties_left -= 1u32;
                }
                if keep {
                    let wide = widen(magnitude);
                    if wide > cut {
                        high_sum = add_wide(high_sum, wide);
                        high_count += 1u32;
                    } else {
                        low_sum = add_wide(low_sum, wide);
                    }
                }
            }
            control[HIGH] = high_count;
            sums[0] = low_sum;
            sums[1] = high_sum;
            sums[2] = cut;
        }
    }
    sync_cube();
    let threshold = sums[2];
    if unit == 0usize {
        // Where one side is empty, its level is the other's.
        let high_count = control[HIGH];
        let low_count = kept - high_count;
        let mut low = 0u32;
        if low_count > 0u32 {
            low = level_of(divide_wide(sums[0], low_count));
        }
        let mut high = low;
        if high_count > 0u32 {
            high = level_of(divide_wide(sums[1], high_count));
        }
        if low_count == 0u32 {
            low = high;
        }
        control[CODES] = low | (high << 8u32);
        levels[chunk] = low | (high << 8u32);
        refused[chunk] = extremes[2].load();
    }
    sync_cube();

    // The entries, and what is left of them.
    let codes = control[CODES];
    let low = codes & 0xffu32;
    let high = codes >> 8u32;
    let low_value = value_of(low);
    let high_value = value_of(high);
    for turn in 0..OWN {
        if ((is_entry >> (turn as u32)) & 1u32) == 1u32 {
            let index = own_first + turn;
            let value = values[slot(index)];
            let is_high = low != high && widen(value & 0x7fff_ffffu32) > threshold;
            let mut code = low;
            let mut sent = low_value;
            let mut word = index as u32;
            if is_high {
                code = high;
                sent = high_value;
                word |= 1u32 << ENTRY_HIGH;
            }
            if value > 0x8000_0000u32 && code != 0u32 {
                word |= 1u32 << ENTRY_SIGN;
                sent |= 0x8000_0000u32;
            }
            entries[first_entry + rank as usize] = word;
            rank += 1u32;
            if comptime!(spend) {
                let left = add(value, sent ^ 0x8000_0000u32);
                values[slot(index)] = left;
                if comptime!(source == SOURCE_NOTHING) {
                    residual[start + index] = left;
                }
            }
        }
    }
    if comptime!(source != SOURCE_NOTHING) {
        sync_cube();
        for turn in 0..OWN {
            let index = turn * UNITS + unit;
            if index < length {
                residual[start + index] = values[slot(index)];
            }
        }
    }
}

/// What a residual on a device is stepped by before the largest of it are sent.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Nothing: the residual as it is.
    Nothing,
    /// `e ← fl(fl(decay · e) + Δ)`.
    Delta { decay: f32, delta: &'a Values },
    /// `e ← fl(fl(decay · e) + fl(before − after))`.
    Difference { decay: f32, before: &'a Values, after: &'a Values },
}

impl<'a> Source<'a> {
    fn rows(&self) -> Vec<&'a Values> {
        match *self {
            Source::Nothing => Vec::new(),
            Source::Delta { delta, .. } => vec![delta],
            Source::Difference { before, after, .. } => vec![before, after],
        }
    }

    fn decay(&self) -> f32 {
        match *self {
            Source::Nothing => 1.0,
            Source::Delta { decay, .. } | Source::Difference { decay, .. } => decay,
        }
    }

    fn code(&self) -> u32 {
        match self {
            Source::Nothing => SOURCE_NOTHING,
            Source::Delta { .. } => SOURCE_DELTA,
            Source::Difference { .. } => SOURCE_DIFFERENCE,
        }
    }
}

/// What [`select`] found in a part, on the device.
pub(super) struct Selected {
    pub entries: Handle,
    pub levels: Handle,
    pub refused: Handle,
}

impl Device {
    /// Encodes the largest of a residual after its step: the body that `protocol::contribution::encode_with_feedback`
    /// gives, or `encode`, if the residual keeps what is sent.
    ///
    /// On an error the residual may be stepped in part.
    pub fn encode(
        &self,
        layout: &Layout,
        residual: &mut Values,
        source: Source<'_>,
        feedback: Feedback,
    ) -> Result<Vec<u8>, GpuError> {
        let rows: Vec<&Values> = std::iter::once(&*residual).chain(source.rows()).collect();
        let parts = self.parts_of(layout, &rows)?;
        let mut body = Vec::new();
        let mut written = None;
        for (index, part) in parts.iter().enumerate() {
            let chunks = self.words(&part.chunk_table(layout, 1));
            let selected = self.select(part, index, &chunks, residual, source, feedback);
            let packed = self.pack(layout, part, &selected);
            // One part is copied while the next one is worked on.
            if let Some((part, selected, packed)) = written.replace((part, selected, packed)) {
                self.collect(layout, part, &selected, &packed, &mut body)?;
            }
        }
        if let Some((part, selected, packed)) = written {
            self.collect(layout, part, &selected, &packed, &mut body)?;
        }
        Ok(body)
    }

    pub(super) fn select(
        &self,
        part: &Part,
        index: usize,
        chunks: &Handle,
        residual: &Values,
        source: Source<'_>,
        feedback: Feedback,
    ) -> Selected {
        let found = Selected {
            entries: self.room(part.entries),
            levels: self.room(part.chunks),
            refused: self.room(part.chunks),
        };
        let nothing = self.room(1);
        let rows = source.rows();
        let row = |which: usize| match rows.get(which) {
            Some(row) => array(&row.parts[index], part.values.len()),
            None => array(&nothing, 1),
        };
        select::launch(
            &self.client,
            cubes(part.chunks),
            CubeDim::new_1d(UNITS as u32),
            array(&residual.parts[index], part.values.len()),
            row(0),
            row(1),
            array(chunks, CHUNK_WORDS * part.chunks),
            array(&found.entries, part.entries),
            array(&found.levels, part.chunks),
            array(&found.refused, part.chunks),
            source.decay().to_bits(),
            0,
            source.code(),
            feedback == Feedback::Spend,
            self.hardware,
        );
        found
    }

    /// Appends a part's bytes to the body, if all its values were finite.
    fn collect(
        &self,
        layout: &Layout,
        part: &Part,
        selected: &Selected,
        packed: &super::pack::Packed,
        body: &mut Vec<u8>,
    ) -> Result<(), GpuError> {
        let refused = self.read(&selected.refused)?;
        let mut chunk = 0;
        for section in &layout.sections()[part.sections.clone()] {
            for (at, &value) in refused[chunk..chunk + section.chunks()].iter().enumerate() {
                if value != u32::MAX {
                    let (tensor, position) = position(section, at * CHUNK + value as usize);
                    return Err(GpuError::NotFinite { tensor, position });
                }
            }
            chunk += section.chunks();
        }
        self.unload(packed, body)
    }
}
