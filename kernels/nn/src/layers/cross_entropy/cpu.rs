//! Loss and gradient on the CPU, in one pass over the logits.
//!
//! A row stays in the cache, and `exp` is a polynomial that fills the vector unit. [`exp`] is within 2 units in the
//! last place of the exact value; losses and gradients are within 1e-5 of the reference (`tests/layers.rs` measures
//! both).

use kernels::lanes::{LANES, widest};
use rayon::prelude::*;

/// Number of rows that one thread processes at a time.
const ROWS: usize = 16;

/// Returns the loss of each row of `logits` `[N, V]`, in nats. Overwrites the logits.
///
/// # Panics
/// If `logits` is not `targets.len() · vocab` long or a target is outside the vocabulary.
pub fn losses(logits: &mut [f32], vocab: usize, targets: &[u32]) -> Vec<f64> {
    by_rows(logits, vocab, targets, loss_row)
}

/// Returns the loss of each row, in nats. Replaces `logits` with the gradient of `scale · Σ losses`.
///
/// # Panics
/// Same as [`losses`].
pub fn losses_and_gradient(logits: &mut [f32], vocab: usize, targets: &[u32], scale: f32) -> Vec<f64> {
    by_rows(logits, vocab, targets, |row, target| gradient_row(row, target, scale))
}

fn check(logits: &[f32], vocab: usize, targets: &[u32]) {
    assert_eq!(logits.len(), vocab * targets.len(), "a logit for each token of the vocabulary");
    assert!(targets.iter().all(|&target| (target as usize) < vocab), "a target is outside the vocabulary");
}

fn by_rows(
    logits: &mut [f32],
    vocab: usize,
    targets: &[u32],
    row: impl Fn(&mut [f32], usize) -> f64 + Sync,
) -> Vec<f64> {
    check(logits, vocab, targets);
    let mut losses = vec![0.0; targets.len()];
    logits
        .par_chunks_mut(vocab * ROWS)
        .zip(targets.par_chunks(ROWS))
        .zip(losses.par_chunks_mut(ROWS))
        .for_each(|((logits, targets), losses)| {
            for ((logits, &target), loss) in logits.chunks_exact_mut(vocab).zip(targets).zip(losses) {
                *loss = row(logits, target as usize);
            }
        });
    losses
}

widest! {
    fn loss_row(row: &mut [f32], target: usize) -> f64 = loss_row_body;
}

widest! {
    fn gradient_row(row: &mut [f32], target: usize, scale: f32) -> f64 = gradient_row_body;
}

#[inline(always)]
fn loss_row_body(row: &mut [f32], target: usize) -> f64 {
    let target_logit = row[target];
    let (max, sum) = exponentiate(row);
    f64::from(sum).ln() + f64::from(max) - f64::from(target_logit)
}

#[inline(always)]
fn gradient_row_body(row: &mut [f32], target: usize, scale: f32) -> f64 {
    let target_logit = row[target];
    let (max, sum) = exponentiate(row);
    let factor = scale / sum;
    for value in row.iter_mut() {
        *value *= factor;
    }
    row[target] -= scale;
    f64::from(sum).ln() + f64::from(max) - f64::from(target_logit)
}

/// Computes `row ← exp(row − max)`; returns the maximum and the sum.
#[inline(always)]
pub(crate) fn exponentiate(row: &mut [f32]) -> (f32, f32) {
    let mut maxima = [f32::NEG_INFINITY; LANES];
    let mut groups = row.chunks_exact(LANES);
    for group in groups.by_ref() {
        for (max, &value) in maxima.iter_mut().zip(group) {
            *max = if value > *max { value } else { *max };
        }
    }
    let max = maxima.iter().chain(groups.remainder()).copied().fold(f32::NEG_INFINITY, f32::max);

    let mut sums = [0.0; LANES];
    let mut groups = row.chunks_exact_mut(LANES);
    for group in groups.by_ref() {
        for (sum, value) in sums.iter_mut().zip(group) {
            *value = exp(*value - max);
            *sum += *value;
        }
    }
    for (sum, value) in sums.iter_mut().zip(groups.into_remainder()) {
        *value = exp(*value - max);
        *sum += *value;
    }
    (max, sums.iter().sum())
}

/// Computes `eˣ` for `x ≤ 0`; 0 below −87, where the result would be subnormal. NaN stays NaN.
///
/// It splits `x = n·ln 2 + r` with `|r| ≤ ln 2 / 2`, evaluates a polynomial of degree 6 in `r`, and adds `n` to the
/// exponent's bits.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // ln 2 in two parts; the first is short enough that n·HIGH is exact.
    const LN2_HIGH: f32 = 355.0 / 512.0;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5·2²³ rounds to the nearest integer, which stays in the low bits.
    const ROUND: f32 = 12_582_912.0;

    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = x - n * LN2_HIGH - n * LN2_LOW;

    let mut polynomial = 1.987_569_1e-4;
    polynomial = polynomial * r + 1.398_199_9e-3;
    polynomial = polynomial * r + 8.333_452e-3;
    polynomial = polynomial * r + 4.166_579_6e-2;
    polynomial = polynomial * r + 1.666_666_5e-1;
    polynomial = polynomial * r + 5.000_000_3e-1;
    let e_to_r = polynomial * r * r + r + 1.0;

    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    if x < -87.0 { 0.0 } else { e_to_r * scale }
}
