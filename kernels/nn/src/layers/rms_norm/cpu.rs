//! RMSNorm on the CPU: a row stays in the cache.
//!
//! A row's sums have sixteen lanes. The gain's gradient is added up over blocks of 64 rows, then block by block, so
//! that the bits depend only on the input.

use crate::layers::dot;
use kernels::lanes::{LANES, widest};
use rayon::prelude::*;

/// Number of rows that one thread processes at a time, and of a block of the gain's gradient.
const ROWS: usize = 64;

/// Writes `y` `[N, D]`, and `inverse_roots` `[N]`, `1 / √(mean x² + ε)`, which the other functions need.
///
/// # Panics
/// If `x`, `y` and `inverse_roots` do not have the same rows of as many values as `gain`.
pub fn forward(x: &[f32], gain: &[f32], epsilon: f32, y: &mut [f32], inverse_roots: &mut [f32]) {
    let width = gain.len();
    check(x, y, inverse_roots, width);
    x.par_chunks(ROWS * width)
        .zip(y.par_chunks_mut(ROWS * width))
        .zip(inverse_roots.par_chunks_mut(ROWS))
        .for_each(|((x, y), inverse_roots)| forward_rows(x, gain, epsilon, y, inverse_roots));
}

/// Recomputes the `y` of [`forward`], with the same bits.
///
/// # Panics
/// Same as [`forward`].
pub fn forward_from_roots(x: &[f32], gain: &[f32], inverse_roots: &[f32], y: &mut [f32]) {
    let width = gain.len();
    check(x, y, inverse_roots, width);
    x.par_chunks(ROWS * width)
        .zip(y.par_chunks_mut(ROWS * width))
        .zip(inverse_roots.par_chunks(ROWS))
        .for_each(|((x, y), inverse_roots)| scale_rows(x, gain, inverse_roots, y));
}

/// Adds the gradients of `Σ y·grad_y` to `grad_x` `[N, D]` and `grad_gain` `[D]`.
///
/// # Panics
/// Same as [`forward`].
pub fn backward(
    x: &[f32],
    gain: &[f32],
    inverse_roots: &[f32],
    grad_y: &[f32],
    grad_x: &mut [f32],
    grad_gain: &mut [f32],
) {
    let width = gain.len();
    check(x, grad_y, inverse_roots, width);
    check(x, grad_x, inverse_roots, width);
    assert_eq!(grad_gain.len(), width, "one gradient for each gain");
    let blocks: Vec<Vec<f32>> = x
        .par_chunks(ROWS * width)
        .zip(grad_y.par_chunks(ROWS * width))
        .zip(grad_x.par_chunks_mut(ROWS * width))
        .zip(inverse_roots.par_chunks(ROWS))
        .map(|(((x, grad_y), grad_x), inverse_roots)| {
            let mut grad_gain = vec![0.0; width];
            backward_rows(x, gain, inverse_roots, grad_y, grad_x, &mut grad_gain);
            grad_gain
        })
        .collect();
    for block in blocks {
        for (sum, value) in grad_gain.iter_mut().zip(block) {
            *sum += value;
        }
    }
}

fn check(one: &[f32], other: &[f32], inverse_roots: &[f32], width: usize) {
    assert_eq!(one.len(), inverse_roots.len() * width, "rows as wide as the gain");
    assert_eq!(one.len(), other.len(), "the same number of rows");
}

widest! {
    fn forward_rows(x: &[f32], gain: &[f32], epsilon: f32, y: &mut [f32], inverse_roots: &mut [f32]) = forward_rows_body;
}

widest! {
    fn scale_rows(x: &[f32], gain: &[f32], inverse_roots: &[f32], y: &mut [f32]) = scale_rows_body;
}

widest! {
    fn backward_rows(
        x: &[f32], gain: &[f32], inverse_roots: &[f32], grad_y: &[f32], grad_x: &mut [f32], grad_gain: &mut [f32],
    ) = backward_rows_body;
}

#[inline(always)]
fn forward_rows_body(x: &[f32], gain: &[f32], epsilon: f32, y: &mut [f32], inverse_roots: &mut [f32]) {
    let width = gain.len();
    for ((x, y), inverse) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(inverse_roots) {
        let squares = dot(x, x);
        *inverse = 1.0 / (squares / width as f32 + epsilon).sqrt();
        scale_row(x, gain, *inverse, y);
    }
}

#[inline(always)]
fn scale_rows_body(x: &[f32], gain: &[f32], inverse_roots: &[f32], y: &mut [f32]) {
    let width = gain.len();
    for ((x, y), &inverse) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(inverse_roots) {
        scale_row(x, gain, inverse, y);
    }
}

#[inline(always)]
fn scale_row(x: &[f32], gain: &[f32], inverse: f32, y: &mut [f32]) {
    for ((&x, &gain), y) in x.iter().zip(gain).zip(y) {
        *y = x * inverse * gain;
    }
}

#[inline(always)]
fn backward_rows_body(
    x: &[f32],
    gain: &[f32],
    inverse_roots: &[f32],
    grad_y: &[f32],
    grad_x: &mut [f32],
    grad_gain: &mut [f32],
) {
    let width = gain.len();
    let rows = x.chunks_exact(width).zip(grad_y.chunks_exact(width)).zip(grad_x.chunks_exact_mut(width));
    for (((x, grad_y), grad_x), &inverse) in rows.zip(inverse_roots) {
        // Mean of (x / root) · (gain · grad_y): the part along x, which the root cancels.
        let along = sum_of_products(x, gain, grad_y) * inverse / width as f32;
        let values = x.iter().zip(gain).zip(grad_y).zip(grad_x.iter_mut()).zip(grad_gain.iter_mut());
        for ((((&x, &gain), &grad_y), grad_x), grad_gain) in values {
            let normed = x * inverse;
            *grad_x += inverse * (gain * grad_y - normed * along);
            *grad_gain += normed * grad_y;
        }
    }
}

/// Returns `Σ a·(b·c)`, summed in lanes.
#[inline(always)]
fn sum_of_products(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
    let mut sums = [0.0; LANES];
    let (mut a, mut b, mut c) = (a.chunks_exact(LANES), b.chunks_exact(LANES), c.chunks_exact(LANES));
    for ((a, b), c) in a.by_ref().zip(b.by_ref()).zip(c.by_ref()) {
        for (((sum, &a), &b), &c) in sums.iter_mut().zip(a).zip(b).zip(c) {
            *sum += a * (b * c);
        }
    }
    let rest = a.remainder().iter().zip(b.remainder()).zip(c.remainder());
    for (sum, ((&a, &b), &c)) in sums.iter_mut().zip(rest) {
        *sum += a * (b * c);
    }
    sums.iter().sum()
}
