//! SwiGLU on the CPU, one pass each way.
//!
//! `σ` uses [`exp`] on `−|g|`, which is never above 0. It is within 4 units in the last place of the exact value if
//! that is above 1e-37 (`tests/layers.rs`).

use crate::layers::cross_entropy::exp;
use kernels::lanes::{LANES, widest};
use rayon::prelude::*;
use std::array;

/// Minimum number of values that one thread processes at a time.
const VALUES: usize = 1 << 14;

/// Writes `h` `[N, F]` for `gates_and_ups` `[N, 2F]`; `width` is `F`.
///
/// # Panics
/// If `gates_and_ups` does not have twice the values of `h`, in whole rows.
pub fn forward(gates_and_ups: &[f32], width: usize, h: &mut [f32]) {
    let rows = check(gates_and_ups, width, h);
    gates_and_ups
        .par_chunks(rows * 2 * width)
        .zip(h.par_chunks_mut(rows * width))
        .for_each(|(gates_and_ups, h)| forward_rows(gates_and_ups, width, h));
}

/// Replaces gates and ups with the gradients of `Σ h·grad_h`, and `grad_h` with `h`, which the next product needs.
///
/// # Panics
/// Same as [`forward`].
pub fn backward(gates_and_ups: &mut [f32], width: usize, grad_h: &mut [f32]) {
    let rows = check(gates_and_ups, width, grad_h);
    gates_and_ups
        .par_chunks_mut(rows * 2 * width)
        .zip(grad_h.par_chunks_mut(rows * width))
        .for_each(|(gates_and_ups, grad_h)| backward_rows(gates_and_ups, width, grad_h));
}

/// Checks the lengths; returns the number of rows that one thread processes.
fn check(gates_and_ups: &[f32], width: usize, h: &[f32]) -> usize {
    assert!(h.len().is_multiple_of(width), "whole rows");
    assert_eq!(gates_and_ups.len(), 2 * h.len(), "a gate and an up for each value");
    VALUES.div_ceil(width)
}

widest! {
    fn forward_rows(gates_and_ups: &[f32], width: usize, h: &mut [f32]) = forward_rows_body;
}

widest! {
    fn backward_rows(gates_and_ups: &mut [f32], width: usize, grad_h: &mut [f32]) = backward_rows_body;
}

#[inline(always)]
fn forward_rows_body(gates_and_ups: &[f32], width: usize, h: &mut [f32]) {
    for (row, h) in gates_and_ups.chunks_exact(2 * width).zip(h.chunks_exact_mut(width)) {
        let (gates, ups) = row.split_at(width);
        for ((&g, &u), h) in gates.iter().zip(ups).zip(h) {
            *h = g * sigmoid(g) * u;
        }
    }
}

#[inline(always)]
fn backward_rows_body(gates_and_ups: &mut [f32], width: usize, grad_h: &mut [f32]) {
    for (row, grad_h) in gates_and_ups.chunks_exact_mut(2 * width).zip(grad_h.chunks_exact_mut(width)) {
        let (gates, ups) = row.split_at_mut(width);
        let (gates, last_gates) = gates.as_chunks_mut::<LANES>();
        let (ups, last_ups) = ups.as_chunks_mut();
        let (grad_h, last_grad_h) = grad_h.as_chunks_mut();
        for ((gates, ups), grad_h) in gates.iter_mut().zip(ups).zip(grad_h) {
            backward_values(gates, ups, grad_h);
        }
        for ((gate, up), grad_h) in last_gates.iter_mut().zip(last_ups).zip(last_grad_h) {
            backward_values(array::from_mut(gate), array::from_mut(up), array::from_mut(grad_h));
        }
    }
}

/// Reads everything before it writes: otherwise the compiler would not use vectors for three mutable rows.
#[inline(always)]
fn backward_values<const N: usize>(gates: &mut [f32; N], ups: &mut [f32; N], grad_h: &mut [f32; N]) {
    let (g, u, gradient) = (*gates, *ups, *grad_h);
    let mut silus = [0.0; N];
    for i in 0..N {
        let sigmoid = sigmoid(g[i]);
        let silu = g[i] * sigmoid;
        silus[i] = silu;
        gates[i] = gradient[i] * u[i] * (sigmoid + silu * (1.0 - sigmoid));
    }
    for i in 0..N {
        grad_h[i] = silus[i] * u[i];
        ups[i] = gradient[i] * silus[i];
    }
}

/// Computes `1 / (1 + e^{−x})`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let positive = 1.0 / (1.0 + e);
    if x < 0.0 { e * positive } else { positive }
}
