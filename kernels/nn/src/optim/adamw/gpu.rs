//! AdamW on a GPU, one pass over a tensor: weights, gradient, both moments, and the weights' copy for products.
//!
//! Bytes per value, `F` being 4 or 2: reads 16, writes `12 + F`.

use super::Coefficients;
use crate::gpu::{
    Array, Gpu, Result,
    launch::{UNITS, grid_of_units, lanes, line},
};
use cubecl::{ir::ElemType, prelude::*};

#[cube(launch)]
fn step<F: Float, N: Size>(
    weights: &mut [Vector<f32, N>],
    copy: &mut [Vector<F, N>],
    mean: &mut [Vector<f32, N>],
    square: &mut [Vector<f32, N>],
    gradient: &[Vector<f32, N>],
    count: usize,
    beta_mean: f32,
    beta_square: f32,
    one_minus_beta_mean: f32,
    one_minus_beta_square: f32,
    rate: f32,
    root_scale: f32,
    epsilon: f32,
    keep: f32,
    gradient_scale: f32,
    #[comptime] copies: bool,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let g = gradient[at] * Vector::new(gradient_scale);
        let m = mean[at] * Vector::new(beta_mean) + g * Vector::new(one_minus_beta_mean);
        let v = square[at] * Vector::new(beta_square) + g * g * Vector::new(one_minus_beta_square);
        let root = v.sqrt() * Vector::new(root_scale) + Vector::new(epsilon);
        let weight = weights[at] * Vector::new(keep) - Vector::new(rate) * m / root;
        mean[at] = m;
        square[at] = v;
        weights[at] = weight;
        if comptime!(copies) {
            copy[at] = Vector::cast_from(weight);
        }
    }
}

impl Gpu {
    /// Updates one tensor with `gradient`. All arrays are f32 except `copy`, the weights for products in their own
    /// precision.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn adamw(
        &self,
        coefficients: &Coefficients,
        weights: &Array,
        copy: Option<&Array>,
        mean: &Array,
        square: &Array,
        gradient: &Array,
    ) -> Result {
        for array in [Some(mean), Some(square), Some(gradient), copy].into_iter().flatten() {
            array.expect_len(weights.len())?;
        }
        if weights.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[weights.len()]);
        // Without a copy, the kernel does not use this argument.
        let written = copy.unwrap_or(gradient);
        let Coefficients { betas, one_minus_betas, rate, root_scale, epsilon, keep, gradient_scale } =
            *coefficients;
        step::launch(
            &self.client,
            grid_of_units(weights.len() / lanes),
            line(UNITS),
            lanes,
            weights.f32s(lanes)?,
            written.vectors(lanes),
            mean.f32s(lanes)?,
            square.f32s(lanes)?,
            gradient.f32s(lanes)?,
            weights.len() / lanes,
            betas[0],
            betas[1],
            one_minus_betas[0],
            one_minus_betas[1],
            rate,
            root_scale,
            epsilon,
            keep,
            gradient_scale,
            copy.is_some(),
            written.element(),
        );
        Ok(())
    }
}
