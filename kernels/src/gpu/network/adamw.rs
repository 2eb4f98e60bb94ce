//! AdamW, one pass over a tensor: weights, gradient and both moments.
//!
//! The reference is [`crate::adamw`], with the same operations in the same order; a device may fuse a product and the sum
//! after it, so the last bits may be others. What the products read is written in the same pass, in its own precision.
//!
//! Bytes a value, `F` being 4 or 2 of them: reads 16, writes `12 + F`.

use super::{
    Array,
    launch::{UNITS, a_unit_each, lanes, line},
};
use crate::{
    adamw::Numbers,
    gpu::{Device, GpuError},
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
    rest_mean: f32,
    rest_square: f32,
    rate: f32,
    root_scale: f32,
    epsilon: f32,
    keep: f32,
    shrink: f32,
    #[comptime] copies: bool,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let g = gradient[at] * Vector::new(shrink);
        let m = mean[at] * Vector::new(beta_mean) + g * Vector::new(rest_mean);
        let v = square[at] * Vector::new(beta_square) + g * g * Vector::new(rest_square);
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

impl Device {
    /// One step of a tensor along `gradient`. All arrays are f32, but for `copy`, where there is one: what the products read,
    /// which gets the weights in its own precision.
    pub fn adamw(
        &self,
        numbers: &Numbers,
        weights: &Array,
        copy: Option<&Array>,
        mean: &Array,
        square: &Array,
        gradient: &Array,
    ) -> Result<(), GpuError> {
        for array in [Some(mean), Some(square), Some(gradient), copy].into_iter().flatten() {
            array.expect_len(weights.len())?;
        }
        if weights.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[weights.len()]);
        // Where there is no copy, the argument is never touched.
        let written = copy.unwrap_or(gradient);
        let Numbers { betas, rests, rate, root_scale, epsilon, keep, shrink } = *numbers;
        step::launch(
            &self.client,
            a_unit_each(weights.len() / lanes),
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
            rests[0],
            rests[1],
            rate,
            root_scale,
            epsilon,
            keep,
            shrink,
            copy.is_some(),
            written.element(),
        );
        Ok(())
    }
}
