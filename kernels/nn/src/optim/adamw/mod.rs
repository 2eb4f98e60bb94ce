//! AdamW (Loshchilov and Hutter, 2019), one pass over weights, gradient and both moments.
//!
//! With `g` the clipped gradient of step `t`, `m` the mean of gradients and `v` the mean of their squares:
//!
//! `m ← β₁m + (1 − β₁)g`, `v ← β₂v + (1 − β₂)g²`, `w ← (1 − ηλ)w − η/(1 − β₁ᵗ) · m / (√v/√(1 − β₂ᵗ) + ε)`
//!
//! Operations and their order are those of the reference, so the bits are the same for every vector width and number
//! of threads. A GPU may fuse a product and a sum, so its last bits may differ.

#[cfg(feature = "gpu")]
mod gpu;

use super::StepParams;
use kernels::lanes::widest;
use model::Recipe;
use rayon::prelude::*;

/// Number of values that one thread processes at a time.
const VALUES: usize = 1 << 14;

/// Coefficients of one step, the same for all values of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// `β₁`, `β₂`
    pub betas: [f32; 2],
    /// `1 − β₁`, `1 − β₂`
    pub one_minus_betas: [f32; 2],
    /// `η/(1 − β₁ᵗ)`: corrects the bias of an average that started at zero.
    pub rate: f32,
    /// `1/√(1 − β₂ᵗ)`, likewise.
    pub root_scale: f32,
    /// `ε`
    pub epsilon: f32,
    /// `1 − ηλ`
    pub keep: f32,
    /// Factor that clips the gradient, at most 1.
    pub gradient_scale: f32,
}

impl Coefficients {
    /// Computes the coefficients for weight decay `λ = decay`, in `f64` and rounded once.
    pub fn new(recipe: &Recipe, params: &StepParams, decay: f64) -> Coefficients {
        let StepParams { step, learning_rate, gradient_scale } = *params;
        let [mean_weight, square_weight] = recipe.betas.map(|beta| 1.0 - beta.powf(step as f64));
        Coefficients {
            betas: recipe.betas.map(|beta| beta as f32),
            one_minus_betas: recipe.betas.map(|beta| (1.0 - beta) as f32),
            rate: (learning_rate / mean_weight) as f32,
            root_scale: (1.0 / square_weight.sqrt()) as f32,
            epsilon: recipe.epsilon as f32,
            keep: (1.0 - learning_rate * decay) as f32,
            gradient_scale: gradient_scale as f32,
        }
    }
}

/// A tensor's weights and moments, of the same length.
pub struct Parameter<'a> {
    pub weights: &'a mut [f32],
    /// `m`
    pub mean: &'a mut [f32],
    /// `v`
    pub square: &'a mut [f32],
}

/// Takes one step, value by value.
///
/// # Panics
/// If the slices differ in length.
pub fn step_reference(coefficients: &Coefficients, parameter: Parameter, gradient: &[f32]) {
    let Coefficients { betas, one_minus_betas, rate, root_scale, epsilon, keep, gradient_scale } =
        *coefficients;
    let Parameter { weights, mean, square } = parameter;
    check(weights, gradient, mean, square);
    for i in 0..weights.len() {
        let g = gradient[i] * gradient_scale;
        mean[i] = mean[i] * betas[0] + g * one_minus_betas[0];
        square[i] = square[i] * betas[1] + g * g * one_minus_betas[1];
        let root = square[i].sqrt() * root_scale + epsilon;
        weights[i] = weights[i] * keep - rate * mean[i] / root;
    }
}

/// Takes one step with vectors and threads, with the bits of [`step_reference`].
///
/// # Panics
/// If the slices differ in length.
pub fn step(coefficients: &Coefficients, parameter: Parameter, gradient: &[f32]) {
    let Parameter { weights, mean, square } = parameter;
    check(weights, gradient, mean, square);
    weights
        .par_chunks_mut(VALUES)
        .zip(gradient.par_chunks(VALUES))
        .zip(mean.par_chunks_mut(VALUES))
        .zip(square.par_chunks_mut(VALUES))
        .for_each(|(((weights, gradient), mean), square)| {
            part(coefficients, weights, gradient, mean, square)
        });
}

fn check(weights: &[f32], gradient: &[f32], mean: &[f32], square: &[f32]) {
    assert!(
        [gradient.len(), mean.len(), square.len()] == [weights.len(); 3],
        "a gradient and two moments for each weight"
    );
}

widest! {
    fn part(
        coefficients: &Coefficients, weights: &mut [f32], gradient: &[f32], mean: &mut [f32], square: &mut [f32],
    ) = part_body;
}

#[inline(always)]
fn part_body(
    coefficients: &Coefficients,
    weights: &mut [f32],
    gradient: &[f32],
    mean: &mut [f32],
    square: &mut [f32],
) {
    let Coefficients { betas, one_minus_betas, rate, root_scale, epsilon, keep, gradient_scale } =
        *coefficients;
    let values = weights.iter_mut().zip(gradient).zip(mean).zip(square);
    for (((weight, &gradient), mean), square) in values {
        let g = gradient * gradient_scale;
        *mean = *mean * betas[0] + g * one_minus_betas[0];
        *square = *square * betas[1] + g * g * one_minus_betas[1];
        let root = square.sqrt() * root_scale + epsilon;
        *weight = *weight * keep - rate * *mean / root;
    }
}
