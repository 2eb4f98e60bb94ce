//! Writes the bytes of a section (PROT-7): Rice-coded gaps, then signs, then magnitudes, least significant bit first.
//!
//! The length of a section is known before its first bit is written, since the best Rice parameter is found by
//! counting bits. So the bytes are allocated once, and each code is a shift, an or and a store of eight bytes; the
//! next store overwrites the incomplete ones.

use crate::{
    lanes::widest,
    wire::{CHUNK, RICE_MAX},
};

/// A sequence of bits in words of 64, least significant first.
#[derive(Clone, Debug, Default)]
pub struct BitRow {
    words: Vec<u64>,
    length: usize,
}

impl BitRow {
    pub fn clear(&mut self) {
        self.words.clear();
        self.length = 0;
    }

    /// Appends the `count` lowest bits of `bits`, from 1 to 64; the others are zero.
    pub fn push(&mut self, bits: u64, count: usize) {
        let held = self.length % 64;
        if held == 0 {
            self.words.push(bits);
        } else {
            if let Some(last) = self.words.last_mut() {
                *last |= bits << held;
            }
            if held + count > 64 {
                self.words.push(bits >> (64 - held));
            }
        }
        self.length += count;
    }

    /// Returns the number of bits.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

/// Appends a section: `gaps` and one sign and magnitude for each, and the codes of the levels of each chunk.
///
/// A gap is the distance of an entry from the one before it in its chunk, less one; the first is the entry's index.
pub fn section(out: &mut Vec<u8>, levels: &[[u8; 2]], gaps: &[u16], signs: &BitRow, magnitudes: &BitRow) {
    let (rice, gap_bits) = rice_parameter(gaps);
    out.push(rice);
    out.extend_from_slice(levels.as_flattened());

    let start = out.len();
    let bits = gap_bits + signs.len() + magnitudes.len();
    // The last store writes beyond the last bit.
    out.resize(start + bits.div_ceil(8) + size_of::<u64>(), 0);
    let mut writer = Writer { bytes: &mut out[start..], at: 0, pending: 0, held: 0 };
    put_gaps(&mut writer, gaps, u32::from(rice));
    for row in [signs, magnitudes] {
        put_row(&mut writer, row);
    }
    out.truncate(start + bits.div_ceil(8));
}

/// Returns the smallest Rice parameter with the shortest code of the gaps, and the number of bits of that code.
///
/// The length is convex in the parameter, so the first step that saves nothing ends the search.
pub fn rice_parameter(gaps: &[u16]) -> (u8, usize) {
    let mut at = quotients(gaps, 0);
    let mut rice = 0;
    while rice < RICE_MAX {
        let above = quotients(gaps, rice + 1);
        if at <= above + gaps.len() {
            break;
        }
        (at, rice) = (above, rice + 1);
    }
    (rice, at + gaps.len() * (1 + usize::from(rice)))
}

widest! {
    fn quotients(gaps: &[u16], rice: u8) -> usize = quotients_body;
}

#[inline(always)]
fn quotients_body(gaps: &[u16], rice: u8) -> usize {
    // A chunk's gaps add up to less than 4096, and a section has 64 chunks.
    gaps.iter().map(|gap| u32::from(gap >> rice)).sum::<u32>() as usize
}

/// Writes bits into zeroed bytes.
struct Writer<'a> {
    bytes: &'a mut [u8],
    /// Number of complete bytes.
    at: usize,
    /// Bits after the complete bytes: under 8 between two calls.
    pending: u64,
    held: u32,
}

/// Maximum number of bits that fit beside the pending ones.
const PUT_MAX: u32 = 56;

impl Writer<'_> {
    /// Writes the `count` low bits of `bits`, at most [`PUT_MAX`]; the other bits must be zero.
    #[inline(always)]
    fn put(&mut self, bits: u64, count: u32) {
        self.pending |= bits << self.held;
        self.held += count;
        self.bytes[self.at..][..size_of::<u64>()].copy_from_slice(&self.pending.to_le_bytes());
        self.at += (self.held / 8) as usize;
        self.pending >>= self.held & !7;
        self.held &= 7;
    }
}

widest! {
    fn put_gaps(writer: &mut Writer<'_>, gaps: &[u16], rice: u32) = put_gaps_body;
}

/// Number of gaps whose codes are computed together, four per word.
const BLOCK: usize = 256;

#[inline(always)]
fn put_gaps_body(writer: &mut Writer<'_>, gaps: &[u16], rice: u32) {
    let (blocks, last) = gaps.as_chunks::<BLOCK>();
    let mut words = [0u64; BLOCK / 4];
    let (mut codes, mut counts) = ([0u64; BLOCK / 4], [0u64; BLOCK / 4]);
    for block in blocks {
        for (word, [a, b, c, d]) in words.iter_mut().zip(block.as_chunks::<4>().0) {
            *word = u64::from(*a) | u64::from(*b) << 16 | u64::from(*c) << 32 | u64::from(*d) << 48;
        }
        let mut longest = 0;
        for ((code, count), word) in codes.iter_mut().zip(&mut counts).zip(&words) {
            (*code, *count) = code_of_four(*word, u64::from(rice));
            longest = longest.max(*count);
        }
        if longest <= u64::from(PUT_MAX) {
            for (code, count) in codes.iter().zip(&counts) {
                writer.put(*code, *count as u32);
            }
        } else {
            block.iter().for_each(|gap| put_gap(writer, *gap, rice));
        }
    }
    last.iter().for_each(|gap| put_gap(writer, *gap, rice));
}

/// Returns the codes of four gaps in a row, and their length. Above [`PUT_MAX`] the codes are wrong and must not be
/// used.
#[inline(always)]
fn code_of_four(gaps: u64, rice: u64) -> (u64, u64) {
    let (mut code, mut count) = (0, 0);
    for place in 0..4 {
        let gap = gaps >> (16 * place) & 0xffff;
        let (ones, low) = (gap >> rice, gap & ((1 << rice) - 1));
        let joined = shifted(low << 1, ones) | (shifted(1, ones) - 1);
        code |= shifted(joined, count);
        count += 1 + ones + rice;
    }
    (code, count)
}

/// Returns `bits << count`; an arbitrary number from 64 on.
#[inline(always)]
fn shifted(bits: u64, count: u64) -> u64 {
    bits.wrapping_shl(count as u32)
}

/// Writes a code of any length.
fn put_gap(writer: &mut Writer<'_>, gap: u16, rice: u32) {
    let (mut ones, low) = (u32::from(gap) >> rice, u64::from(gap) & ((1 << rice) - 1));
    while ones >= PUT_MAX {
        writer.put((1 << PUT_MAX) - 1, PUT_MAX);
        ones -= PUT_MAX;
    }
    writer.put((1 << ones) - 1, ones);
    writer.put(low << 1, 1 + rice);
}

fn put_row(writer: &mut Writer<'_>, row: &BitRow) {
    let mut left = row.len();
    for word in &row.words {
        for half in [*word as u32, (*word >> 32) as u32] {
            let count = left.min(32);
            writer.put(u64::from(half), count as u32);
            left -= count;
        }
    }
}

widest! {
    /// Appends the gaps between ascending positions in a chunk.
    pub fn gaps_between(positions: &[u32], gaps: &mut Vec<u16>) = gaps_between_body;
}

#[inline(always)]
fn gaps_between_body(positions: &[u32], gaps: &mut Vec<u16>) {
    let Some(first) = positions.first() else { return };
    debug_assert!(positions.is_sorted_by(|a, b| a < b) && (positions[positions.len() - 1] as usize) < CHUNK);
    gaps.push(*first as u16);
    gaps.extend(positions.array_windows().map(|[before, position]| position.wrapping_sub(before + 1) as u16));
}
