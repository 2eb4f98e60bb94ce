//! SwiGLU: `h = g · σ(g) · u`, with `σ(g) = 1 / (1 + e^{−g})`, and its gradients, in one pass each.
//!
//! The reference is [`crate::swiglu`]: a row of the input has all of `g`, then all of `u`.
//!
//! Bytes a value of `h`, `F` being 4 or 2 of them: forward reads `2F` and writes `F`; backward reads `3F` and writes `3F`.

use super::{
    Array,
    launch::{UNITS, a_unit_each, area, exp, lanes, line, same},
};
use crate::gpu::{Device, GpuError};
use cubecl::{ir::ElemType, prelude::*};

/// `1 / (1 + e^{−x})`, with [`exp`] of `−|x|`, which is never above 0.
#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let e = exp::<N>(-x.abs());
    let of_positive = one / (one + e);
    select_many(x.less_than(&Vector::new(0.0f32)), e * of_positive, of_positive)
}

#[cube(launch)]
fn forward<F: Float, N: Size>(
    gates_and_ups: &[Vector<F, N>],
    h: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let gate_at = at + at / width * width;
        let gate = Vector::<f32, N>::cast_from(gates_and_ups[gate_at]);
        let up = Vector::<f32, N>::cast_from(gates_and_ups[gate_at + width]);
        h[at] = Vector::cast_from(gate * sigmoid::<N>(gate) * up);
    }
}

#[cube(launch)]
fn backward<F: Float, N: Size>(
    gates_and_ups: &mut [Vector<F, N>],
    of_h: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let gate_at = at + at / width * width;
        let gate = Vector::<f32, N>::cast_from(gates_and_ups[gate_at]);
        let up = Vector::<f32, N>::cast_from(gates_and_ups[gate_at + width]);
        let gradient = Vector::<f32, N>::cast_from(of_h[at]);
        let sigmoid = sigmoid::<N>(gate);
        let silu = gate * sigmoid;
        let slope = sigmoid + silu * (Vector::new(1.0f32) - sigmoid);
        of_h[at] = Vector::cast_from(silu * up);
        gates_and_ups[gate_at] = Vector::cast_from(gradient * up * slope);
        gates_and_ups[gate_at + width] = Vector::cast_from(gradient * silu);
    }
}

impl Device {
    /// Writes `h` `[N, F]`, `width` being `F`, for `[N, 2F]` of gates and ups.
    pub fn swiglu(&self, gates_and_ups: &Array, width: usize, h: &Array) -> Result<(), GpuError> {
        let lanes = check(gates_and_ups, width, h)?;
        if h.is_empty() {
            return Ok(());
        }
        forward::launch(
            &self.client,
            a_unit_each(h.len() / lanes),
            line(UNITS),
            lanes,
            gates_and_ups.vectors(lanes),
            h.vectors(lanes),
            h.len() / lanes,
            width / lanes,
            h.element(),
        );
        Ok(())
    }

    /// Turns gates and ups into their gradients, and the gradient of `h` into `h`.
    pub fn swiglu_backward(&self, gates_and_ups: &Array, width: usize, of_h: &Array) -> Result<(), GpuError> {
        let lanes = check(gates_and_ups, width, of_h)?;
        if of_h.is_empty() {
            return Ok(());
        }
        backward::launch(
            &self.client,
            a_unit_each(of_h.len() / lanes),
            line(UNITS),
            lanes,
            gates_and_ups.vectors(lanes),
            of_h.vectors(lanes),
            of_h.len() / lanes,
            width / lanes,
            of_h.element(),
        );
        Ok(())
    }
}

/// Vectors' width, if the arrays fit one another.
fn check(gates_and_ups: &Array, width: usize, h: &Array) -> Result<usize, GpuError> {
    let rows = h.len().checked_div(width).unwrap_or(0);
    h.expect_len(area(rows, width)?)?;
    gates_and_ups.expect_len(area(rows, 2 * width)?)?;
    same(gates_and_ups, h)?;
    Ok(lanes(&[width]))
}
