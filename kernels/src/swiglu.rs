//! SwiGLU: `h = g · σ(g) · u`, with `σ(g) = 1 / (1 + e^{−g})`, and its gradients, in one pass each.
//!
//! A row of the input has all of `g`, then all of `u`, so that one product makes both. `σ` uses [`exp`] on `−|g|`, which is
//! never above 0: it is within 4 units in the last place of the exact value while that is above 1e-37 (`tests/training.rs`).

use crate::{
    cross_entropy::exp,
    lanes::{LANES, widest},
};
use rayon::prelude::*;
use std::array;

/// Values that one thread takes at a time, at least.
const VALUES: usize = 1 << 14;

/// `h` of each row in `f64`: what [`forward`] comes close to.
pub fn forward_reference(gates_and_ups: &[f32], width: usize) -> Vec<f64> {
    let rows = gates_and_ups.chunks_exact(2 * width);
    let exact = |(&g, &u): (&f32, &f32)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
    rows.flat_map(|row| row[..width].iter().zip(&row[width..]).map(exact)).collect()
}

/// The gradient of `Σ h·of_h` with respect to the input, in `f64`: what [`backward`] comes close to.
pub fn backward_reference(gates_and_ups: &[f32], width: usize, of_h: &[f32]) -> Vec<f64> {
    let mut gradient = Vec::with_capacity(gates_and_ups.len());
    for (row, of_h) in gates_and_ups.chunks_exact(2 * width).zip(of_h.chunks_exact(width)) {
        let sigmoid = |g: f64| 1.0 / (1.0 + (-g).exp());
        gradient.extend((0..width).map(|i| {
            let (g, u) = (f64::from(row[i]), f64::from(row[i + width]));
            f64::from(of_h[i]) * u * sigmoid(g) * (1.0 + g * (1.0 - sigmoid(g)))
        }));
        gradient.extend((0..width).map(|i| {
            let g = f64::from(row[i]);
            f64::from(of_h[i]) * g * sigmoid(g)
        }));
    }
    gradient
}

/// Writes `h` for rows of `g` and `u`, each `width` wide.
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

/// Turns `g` and `u` into the gradients of `Σ h·of_h` with respect to them, and `of_h` into `h`, which is needed next.
///
/// # Panics
/// As [`forward`].
pub fn backward(gates_and_ups: &mut [f32], width: usize, of_h: &mut [f32]) {
    let rows = check(gates_and_ups, width, of_h);
    gates_and_ups
        .par_chunks_mut(rows * 2 * width)
        .zip(of_h.par_chunks_mut(rows * width))
        .for_each(|(gates_and_ups, of_h)| backward_rows(gates_and_ups, width, of_h));
}

/// Checks the lengths; returns the rows that one thread takes.
fn check(gates_and_ups: &[f32], width: usize, h: &[f32]) -> usize {
    assert!(h.len().is_multiple_of(width), "whole rows");
    assert_eq!(gates_and_ups.len(), 2 * h.len(), "a gate and an up for each value");
    VALUES.div_ceil(width)
}

widest! {
    fn forward_rows(gates_and_ups: &[f32], width: usize, h: &mut [f32]) = forward_rows_body;
}

widest! {
    fn backward_rows(gates_and_ups: &mut [f32], width: usize, of_h: &mut [f32]) = backward_rows_body;
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
fn backward_rows_body(gates_and_ups: &mut [f32], width: usize, of_h: &mut [f32]) {
    for (row, of_h) in gates_and_ups.chunks_exact_mut(2 * width).zip(of_h.chunks_exact_mut(width)) {
        let (gates, ups) = row.split_at_mut(width);
        let (gates, last_gates) = gates.as_chunks_mut::<LANES>();
        let (ups, last_ups) = ups.as_chunks_mut();
        let (of_h, last_of_h) = of_h.as_chunks_mut();
        for ((gates, ups), of_h) in gates.iter_mut().zip(ups).zip(of_h) {
            backward_values(gates, ups, of_h);
        }
        for ((gate, up), of_h) in last_gates.iter_mut().zip(last_ups).zip(last_of_h) {
            backward_values(array::from_mut(gate), array::from_mut(up), array::from_mut(of_h));
        }
    }
}

/// All is read before anything is written: three rows that may be written keep the compiler from using vectors.
#[inline(always)]
fn backward_values<const N: usize>(gates: &mut [f32; N], ups: &mut [f32; N], of_h: &mut [f32; N]) {
    let (g, u, gradient) = (*gates, *ups, *of_h);
    let mut silus = [0.0; N];
    for i in 0..N {
        let sigmoid = sigmoid(g[i]);
        let silu = g[i] * sigmoid;
        silus[i] = silu;
        gates[i] = gradient[i] * u[i] * (sigmoid + silu * (1.0 - sigmoid));
    }
    for i in 0..N {
        of_h[i] = silus[i] * u[i];
        ups[i] = gradient[i] * silus[i];
    }
}

/// `1 / (1 + e^{−x})`.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let of_positive = 1.0 / (1.0 + e);
    if x < 0.0 { e * of_positive } else { of_positive }
}
