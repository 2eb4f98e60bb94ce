//! Products of a few rows with a matrix of weights on the CPU. Each weight is read from memory once.
//!
//! The sum of a value has the order of [`dot`] for any other rows, so a text continues with the same bits alone and in
//! a batch. For many rows, [`matmul`](super::matmul) is faster.

use super::Write;
use crate::layers::dot;
use kernels::lanes::{LANES, widest};
use rayon::prelude::*;

/// Number of weight rows that are multiplied in parallel. A single sum would wait for its own additions.
const SIDE_BY_SIDE: usize = 4;
/// Number of weights that one thread processes at a time.
const WEIGHTS: usize = 1 << 16;

/// Writes or adds `x · weightᵀ`, with `x` `[rows, inner]`, `weight` `[outer, inner]` and `into` `[rows, outer]`.
///
/// # Panics
/// If the lengths do not fit.
pub fn few_rows(write: Write, into: &mut [f32], x: &[f32], weight: &[f32], inner: usize) {
    let (rows, outer) = (x.len() / inner, weight.len() / inner);
    assert_eq!((x.len(), weight.len()), (rows * inner, outer * inner), "whole rows");
    assert_eq!(into.len(), rows * outer, "shape of the result");
    let block = (WEIGHTS / inner).next_multiple_of(SIDE_BY_SIDE).max(SIDE_BY_SIDE);
    // `[outer, rows]`, so that each thread writes neighbouring values.
    let mut transposed = vec![0.0; outer * rows];
    transposed
        .par_chunks_mut(block * rows)
        .zip(weight.par_chunks(block * inner))
        .for_each(|(into, weight)| products(into, x, weight, inner));
    for (row, into) in into.chunks_exact_mut(outer).enumerate() {
        for (into, value) in into.iter_mut().zip(transposed.iter().skip(row).step_by(rows)) {
            *into = if write == Write::Add { *into + value } else { *value };
        }
    }
}

widest! {
    fn products(into: &mut [f32], x: &[f32], weight: &[f32], inner: usize) = products_body;
}

#[inline(always)]
fn products_body(into: &mut [f32], x: &[f32], weight: &[f32], inner: usize) {
    let rows = x.len() / inner;
    let groups = into.chunks_mut(SIDE_BY_SIDE * rows).zip(weight.chunks(SIDE_BY_SIDE * inner));
    for (into, weights) in groups {
        for (row, x) in x.chunks_exact(inner).enumerate() {
            if weights.len() == SIDE_BY_SIDE * inner {
                for (outer, sum) in dots(x, weights).into_iter().enumerate() {
                    into[outer * rows + row] = sum;
                }
            } else {
                for (outer, weight) in weights.chunks_exact(inner).enumerate() {
                    into[outer * rows + row] = dot(x, weight);
                }
            }
        }
    }
}

/// Computes [`dot`] of `x` with each of the weights, with the same bits. The sums are single variables, because the
/// compiler would not keep an array of them in vectors.
#[inline(always)]
fn dots(x: &[f32], weights: &[f32]) -> [f32; SIDE_BY_SIDE] {
    let inner = x.len();
    let (x, x_rest) = x.as_chunks::<LANES>();
    let parts: [_; SIDE_BY_SIDE] =
        std::array::from_fn(|outer| weights[outer * inner..][..inner].as_chunks::<LANES>());
    let [(w0, _), (w1, _), (w2, _), (w3, _)] = parts;
    let [mut s0, mut s1, mut s2, mut s3] = [[0.0; LANES]; SIDE_BY_SIDE];
    for ((((x, w0), w1), w2), w3) in x.iter().zip(w0).zip(w1).zip(w2).zip(w3) {
        add_products(&mut s0, x, w0);
        add_products(&mut s1, x, w1);
        add_products(&mut s2, x, w2);
        add_products(&mut s3, x, w3);
    }
    let mut sums = [s0, s1, s2, s3];
    for (sums, (_, rest)) in sums.iter_mut().zip(parts) {
        for ((sum, &x), &weight) in sums.iter_mut().zip(x_rest).zip(rest) {
            *sum += x * weight;
        }
    }
    sums.map(|sums| sums.iter().sum())
}

#[inline(always)]
fn add_products(sums: &mut [f32; LANES], x: &[f32; LANES], weight: &[f32; LANES]) {
    for i in 0..LANES {
        sums[i] += x[i] * weight[i];
    }
}
