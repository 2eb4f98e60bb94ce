//! AdamW (Loshchilov and Hutter, 2019), one pass over weights, gradient and both moments.
//!
//! With `g` the gradient of step `t`, shortened where it is too long, `m` the mean of gradients and `v` that of their squares:
//!
//! `m ← β₁m + (1 − β₁)g`, `v ← β₂v + (1 − β₂)g²`, `w ← (1 − ηλ)w − η/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)`
//!
//! The operations and their order are those of the reference, so the bits are too, for every width of vectors and number of
//! threads.

use crate::lanes::widest;
use rayon::prelude::*;

/// Values that one thread takes at a time.
const VALUES: usize = 1 << 14;

/// The numbers of one step, the same for all values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Numbers {
    /// `β₁` and `β₂`: the share of its past that each average keeps.
    pub betas: [f32; 2],
    /// `1 − β₁` and `1 − β₂`.
    pub rests: [f32; 2],
    /// `η/(1 − β₁ᵗ)`: an average that began at zero is too small at first.
    pub rate: f32,
    /// `1/√(1 − β₂ᵗ)`, for the same reason.
    pub root_scale: f32,
    /// `ε`
    pub epsilon: f32,
    /// `1 − ηλ`: what decay leaves of a weight.
    pub keep: f32,
    /// What the gradient is multiplied by first: 1, or less where it is too long.
    pub shrink: f32,
}

impl Numbers {
    /// Of step `t`, counted from 1, at learning rate `η` and weight decay `λ`. All is computed in `f64` and rounded once.
    pub fn new(betas: [f64; 2], step: u64, epsilon: f64, rate: f64, decay: f64, shrink: f64) -> Numbers {
        let [so_far, root_so_far] = betas.map(|beta| 1.0 - beta.powf(step as f64));
        Numbers {
            betas: betas.map(|beta| beta as f32),
            rests: betas.map(|beta| (1.0 - beta) as f32),
            rate: (rate / so_far) as f32,
            root_scale: (1.0 / root_so_far.sqrt()) as f32,
            epsilon: epsilon as f32,
            keep: (1.0 - rate * decay) as f32,
            shrink: shrink as f32,
        }
    }
}

/// One step, value after value.
///
/// # Panics
/// If the slices differ in length.
pub fn step_reference(
    numbers: &Numbers,
    weights: &mut [f32],
    gradient: &[f32],
    mean: &mut [f32],
    square: &mut [f32],
) {
    check(weights, gradient, mean, square);
    for i in 0..weights.len() {
        let g = gradient[i] * numbers.shrink;
        mean[i] = mean[i] * numbers.betas[0] + g * numbers.rests[0];
        square[i] = square[i] * numbers.betas[1] + g * g * numbers.rests[1];
        let root = square[i].sqrt() * numbers.root_scale + numbers.epsilon;
        weights[i] = weights[i] * numbers.keep - numbers.rate * mean[i] / root;
    }
}

/// One step: the bits of [`step_reference`], by vectors and threads.
///
/// # Panics
/// If the slices differ in length.
pub fn step(numbers: &Numbers, weights: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32]) {
    check(weights, gradient, mean, square);
    weights
        .par_chunks_mut(VALUES)
        .zip(gradient.par_chunks(VALUES))
        .zip(mean.par_chunks_mut(VALUES))
        .zip(square.par_chunks_mut(VALUES))
        .for_each(|(((weights, gradient), mean), square)| part(numbers, weights, gradient, mean, square));
}

fn check(weights: &[f32], gradient: &[f32], mean: &[f32], square: &[f32]) {
    assert!(
        [gradient.len(), mean.len(), square.len()] == [weights.len(); 3],
        "a gradient and two moments for each weight"
    );
}

widest! {
    fn part(numbers: &Numbers, weights: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32]) = part_body;
}

#[inline(always)]
fn part_body(numbers: &Numbers, weights: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32]) {
    let Numbers { betas, rests, rate, root_scale, epsilon, keep, shrink } = *numbers;
    let values = weights.iter_mut().zip(gradient).zip(mean).zip(square);
    for (((weight, &gradient), mean), square) in values {
        let g = gradient * shrink;
        *mean = *mean * betas[0] + g * rests[0];
        *square = *square * betas[1] + g * g * rests[1];
        let root = square.sqrt() * root_scale + epsilon;
        *weight = *weight * keep - rate * *mean / root;
    }
}
