//! SwiGLU on a GPU, one pass each way.
//!
//! Bytes per value of `h`, `F` being 4 or 2: forward reads `2F` and writes `F`; backward reads and writes `3F`.

use crate::gpu::{
    Array, Gpu, GpuError,
    launch::{UNITS, area, exp, grid_of_units, lanes, line, same},
};
use cubecl::{ir::ElemType, prelude::*};

/// `1 / (1 + e^{−x})`, with [`exp`] of `−|x|`, which is never above 0.
#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let e = exp::<N>(-x.abs());
    let positive = one / (one + e);
    select_many(x.less_than(&Vector::new(0.0f32)), e * positive, positive)
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
    grad_h: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let gate_at = at + at / width * width;
        let gate = Vector::<f32, N>::cast_from(gates_and_ups[gate_at]);
        let up = Vector::<f32, N>::cast_from(gates_and_ups[gate_at + width]);
        let gradient = Vector::<f32, N>::cast_from(grad_h[at]);
        let sigmoid = sigmoid::<N>(gate);
        let silu = gate * sigmoid;
        let slope = sigmoid + silu * (Vector::new(1.0f32) - sigmoid);
        grad_h[at] = Vector::cast_from(silu * up);
        gates_and_ups[gate_at] = Vector::cast_from(gradient * up * slope);
        gates_and_ups[gate_at + width] = Vector::cast_from(gradient * silu);
    }
}

impl Gpu {
    /// Writes `h` `[N, F]`, `width` being `F`, for `[N, 2F]` of gates and ups.
    pub fn swiglu(&self, gates_and_ups: &Array, width: usize, h: &Array) -> Result<(), GpuError> {
        let lanes = check(gates_and_ups, width, h)?;
        if h.is_empty() {
            return Ok(());
        }
        forward::launch(
            &self.client,
            grid_of_units(h.len() / lanes),
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
    pub fn swiglu_backward(
        &self,
        gates_and_ups: &Array,
        width: usize,
        grad_h: &Array,
    ) -> Result<(), GpuError> {
        let lanes = check(gates_and_ups, width, grad_h)?;
        if grad_h.is_empty() {
            return Ok(());
        }
        backward::launch(
            &self.client,
            grid_of_units(grad_h.len() / lanes),
            line(UNITS),
            lanes,
            gates_and_ups.vectors(lanes),
            grad_h.vectors(lanes),
            grad_h.len() / lanes,
            width / lanes,
            grad_h.element(),
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
