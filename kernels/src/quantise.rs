//! Computes the two levels of a chunk (PROT-7): the chosen values are split at their mean magnitude, and each half has
//! its own mean.
//!
//! The format sums in ascending order, in `f64`. Magnitudes are `f32`, with 24 bits of mantissa. If the largest and
//! the smallest are within 17 octaves, every sum of 4096 of them is a multiple, below 2^53, of the smallest one's unit
//! in the last place. No addition rounds, so any order gives the same bits, and vectors may add in theirs. Values
//! further apart, or with zeros, are added one after the other.

use crate::{
    lanes::{LANES, widest},
    topk::magnitude,
    wire::{level_of, value_of},
};

/// Range in octaves within which any 4096 magnitudes add up without rounding: 24 + 12 + 17 = 53 bits.
const EXACT_OCTAVES: u32 = 17;

/// The two levels of a chunk, and the bound between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Levels {
    /// Codes of the lower and the higher level.
    pub codes: [u8; 2],
    /// Bound above which magnitudes have the higher level.
    pub high_above: f32,
    /// Bound above which negative values have a sign: a level of zero has no sign.
    pub sign_above: f32,
}

widest! {
    /// Returns the levels of a chunk's chosen values: 1 to 4096 finite values.
    pub fn levels(values: &[f32]) -> Levels = levels_body;
}

widest! {
    /// Returns two words for at most 64 values: bit `i` is the sign and the magnitude of value `i`.
    pub fn marks(values: &[f32], levels: Levels) -> (u64, u64) = marks_body;
}

widest! {
    /// Computes `v ← fl(v − sent)` for each value.
    pub fn subtract(values: &mut [f32], levels: Levels) = subtract_body;
}

#[inline(always)]
fn levels_body(values: &[f32]) -> Levels {
    let (smallest, largest) = values
        .iter()
        .map(|value| magnitude(*value))
        .fold((u32::MAX, 0), |(low, high), magnitude| (low.min(magnitude), high.max(magnitude)));
    // Subnormals have the exponent of the smallest normal numbers.
    let octaves = (largest >> 23).max(1) - (smallest >> 23).max(1);
    let any_order = octaves <= EXACT_OCTAVES;

    let total = if any_order { sum_above(values, -1.0).0 } else { serial_sum(values, |_| true) };
    let threshold = total / values.len() as f64;
    let high_above = round_down(threshold);
    let (high_sum, high_count) = sum_above(values, high_above);
    let low_count = values.len() - high_count;
    let sums = if any_order {
        [total - high_sum, high_sum]
    } else {
        [serial_sum(values, |value| value <= high_above), serial_sum(values, |value| value > high_above)]
    };

    let low = || level_of(sums[0] / low_count as f64);
    let high = || level_of(sums[1] / high_count as f64);
    let codes = match (low_count, high_count) {
        (_, 0) => [low(); 2],
        (0, _) => [high(); 2],
        _ => [low(), high()],
    };
    let high_above = if codes[0] == codes[1] { f32::INFINITY } else { high_above };
    Levels { codes, high_above, sign_above: if codes[0] == 0 { high_above } else { 0.0 } }
}

/// Returns the sum and the number of the magnitudes above `bound`. The sum is exact if no partial sum rounds.
#[inline(always)]
fn sum_above(values: &[f32], bound: f32) -> (f64, usize) {
    let (mut sums, mut counts) = ([0.0f64; LANES], [0u32; LANES]);
    let (rows, rest) = values.as_chunks::<LANES>();
    for row in rows {
        for ((sum, count), value) in sums.iter_mut().zip(&mut counts).zip(row) {
            let above = value.abs() > bound;
            *sum += if above { f64::from(value.abs()) } else { 0.0 };
            *count += u32::from(above);
        }
    }
    for ((sum, count), value) in sums.iter_mut().zip(&mut counts).zip(rest) {
        let above = value.abs() > bound;
        *sum += if above { f64::from(value.abs()) } else { 0.0 };
        *count += u32::from(above);
    }
    (sums.iter().sum(), counts.iter().sum::<u32>() as usize)
}

/// Returns the sum of the `wanted` magnitudes, added one after the other.
#[inline(always)]
fn serial_sum(values: &[f32], wanted: impl Fn(f32) -> bool) -> f64 {
    // Adding zero does not change a sum that is not negative.
    values
        .iter()
        .map(|value| value.abs())
        .fold(0.0, |sum, value| sum + if wanted(value) { f64::from(value) } else { 0.0 })
}

/// Returns the largest `f32` that is not above `threshold`. An `f32` is above both or neither.
#[inline(always)]
fn round_down(threshold: f64) -> f32 {
    let nearest = threshold as f32;
    if f64::from(nearest) > threshold { nearest.next_down() } else { nearest }
}

#[inline(always)]
fn marks_body(values: &[f32], levels: Levels) -> (u64, u64) {
    let (mut signs, mut highs) = (0u64, 0u64);
    for (value, bit) in values.iter().zip(0..64) {
        signs |= u64::from(*value < 0.0 && value.abs() > levels.sign_above) << bit;
        highs |= u64::from(value.abs() > levels.high_above) << bit;
    }
    (signs, highs)
}

#[inline(always)]
fn subtract_body(values: &mut [f32], levels: Levels) {
    let [low, high] = levels.codes.map(value_of);
    for value in values {
        let level = if value.abs() > levels.high_above { high } else { low };
        let negative = *value < 0.0 && value.abs() > levels.sign_above;
        *value -= if negative { -level } else { level };
    }
}
