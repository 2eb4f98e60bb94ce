//! RMSNorm: `y = x / √(mean x² + ε) · gain`, row by row, and its gradients.
//!
//! Composed of tensor operations it walks the rows six times forward and a dozen times backward. Here a row stays in the
//! cache. Sums over a row are kept in sixteen lanes; those over rows (the gain's gradient) are added in blocks of 64 rows,
//! then block after block: the bits depend on nothing but the input.

use crate::lanes::{LANES, dot, widest};
use rayon::prelude::*;

/// Rows that one thread takes at a time, and that the gain's gradient adds up first.
const ROWS: usize = 64;

/// `y` of each row in `f64`: what [`forward`] comes close to.
pub fn forward_reference(x: &[f32], gain: &[f32], epsilon: f32) -> Vec<f64> {
    let rows = x.chunks_exact(gain.len());
    rows.flat_map(|x| {
        let inverse = inverse_root_reference(x, epsilon);
        x.iter().zip(gain).map(move |(&x, &gain)| f64::from(x) * inverse * f64::from(gain))
    })
    .collect()
}

/// The gradients of `Σ y·of_y` with respect to `x` and `gain`, in `f64`: what [`backward`] comes close to.
pub fn backward_reference(x: &[f32], gain: &[f32], epsilon: f32, of_y: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let width = gain.len();
    let (mut of_x, mut of_gain) = (Vec::new(), vec![0.0; width]);
    for (x, of_y) in x.chunks_exact(width).zip(of_y.chunks_exact(width)) {
        let inverse = inverse_root_reference(x, epsilon);
        let value = |i: usize| (f64::from(x[i]), f64::from(gain[i]) * f64::from(of_y[i]));
        let along: f64 = (0..width).map(|i| value(i).0 * value(i).1).sum();
        for (i, of_gain) in of_gain.iter_mut().enumerate() {
            let (x, of_normed) = value(i);
            of_x.push(inverse * of_normed - x * inverse.powi(3) * along / width as f64);
            *of_gain += x * inverse * f64::from(of_y[i]);
        }
    }
    (of_x, of_gain)
}

fn inverse_root_reference(x: &[f32], epsilon: f32) -> f64 {
    let squares: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
    1.0 / (squares / x.len() as f64 + f64::from(epsilon)).sqrt()
}

/// Writes `y`, and for each row `1 / √(mean x² + ε)`, which the other functions need.
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

/// Writes the same `y` again.
///
/// # Panics
/// As [`forward`].
pub fn forward_from_roots(x: &[f32], gain: &[f32], inverse_roots: &[f32], y: &mut [f32]) {
    let width = gain.len();
    check(x, y, inverse_roots, width);
    x.par_chunks(ROWS * width)
        .zip(y.par_chunks_mut(ROWS * width))
        .zip(inverse_roots.par_chunks(ROWS))
        .for_each(|((x, y), inverse_roots)| scale_rows(x, gain, inverse_roots, y));
}

/// Adds to `of_x` and `of_gain` the gradients of `Σ y·of_y`.
///
/// # Panics
/// As [`forward`].
pub fn backward(
    x: &[f32],
    gain: &[f32],
    inverse_roots: &[f32],
    of_y: &[f32],
    of_x: &mut [f32],
    of_gain: &mut [f32],
) {
    let width = gain.len();
    check(x, of_y, inverse_roots, width);
    check(x, of_x, inverse_roots, width);
    assert_eq!(of_gain.len(), width, "one gradient for each gain");
    let of_blocks: Vec<Vec<f32>> = x
        .par_chunks(ROWS * width)
        .zip(of_y.par_chunks(ROWS * width))
        .zip(of_x.par_chunks_mut(ROWS * width))
        .zip(inverse_roots.par_chunks(ROWS))
        .map(|(((x, of_y), of_x), inverse_roots)| {
            let mut of_gain = vec![0.0; width];
            backward_rows(x, gain, inverse_roots, of_y, of_x, &mut of_gain);
            of_gain
        })
        .collect();
    for of_block in of_blocks {
        for (sum, of_block) in of_gain.iter_mut().zip(of_block) {
            *sum += of_block;
        }
    }
}

fn check(one: &[f32], other: &[f32], inverse_roots: &[f32], width: usize) {
    assert_eq!(one.len(), inverse_roots.len() * width, "rows as wide as the gain");
    assert_eq!(one.len(), other.len(), "as many rows here as there");
}

widest! {
    fn forward_rows(x: &[f32], gain: &[f32], epsilon: f32, y: &mut [f32], inverse_roots: &mut [f32]) = forward_rows_body;
}

widest! {
    fn scale_rows(x: &[f32], gain: &[f32], inverse_roots: &[f32], y: &mut [f32]) = scale_rows_body;
}

widest! {
    fn backward_rows(
        x: &[f32], gain: &[f32], inverse_roots: &[f32], of_y: &[f32], of_x: &mut [f32], of_gain: &mut [f32],
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
    of_y: &[f32],
    of_x: &mut [f32],
    of_gain: &mut [f32],
) {
    let width = gain.len();
    let rows = x.chunks_exact(width).zip(of_y.chunks_exact(width)).zip(of_x.chunks_exact_mut(width));
    for (((x, of_y), of_x), &inverse) in rows.zip(inverse_roots) {
        // mean of (x / root) · (gain · of_y): how far the gradient only makes the row longer, which the root takes back.
        let along = sum_of_three(x, gain, of_y) * inverse / width as f32;
        let values = x.iter().zip(gain).zip(of_y).zip(of_x.iter_mut()).zip(of_gain.iter_mut());
        for ((((&x, &gain), &of_y), of_x), of_gain) in values {
            let normed = x * inverse;
            *of_x += inverse * (gain * of_y - normed * along);
            *of_gain += normed * of_y;
        }
    }
}

#[inline(always)]
fn sum_of_three(a: &[f32], b: &[f32], c: &[f32]) -> f32 {
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
