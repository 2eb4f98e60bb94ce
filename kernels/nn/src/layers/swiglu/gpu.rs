//! SwiGLU on a GPU, one pass each way.
//!
//! Bytes per value of `h`, `F` being 4 or 2: forward reads `2F` and writes `F`; backward reads and writes `3F`.

use crate::gpu::{
    Array, Gpu, Result,
    launch::{UNITS, area, exp, grid_of_units, line, same},
};
use cubecl::{ir::ElemType, prelude::*};

/// Computes `1 / (1 + e^{−x})`, with [`exp`] of `−|x|`, which is never above 0.
#[cube]
fn sigmoid<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0f32);
    let e = exp::<N>(-x.abs());
    let positive = one / (one + e);
    select_many(x.less_than(&Vector::new(0.0f32)), e * positive, positive)
}

/// Computes `h`, and optionally replaces gates and ups with their gradients; `h` then initially holds its gradient.
#[cube(launch)]
fn pass<F: Float, N: Size>(
    gates_and_ups: &mut [Vector<F, N>],
    h: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    #[comptime] backward: bool,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let gate_at = at + at / width * width;
        let gate = Vector::<f32, N>::cast_from(gates_and_ups[gate_at]);
        let up = Vector::<f32, N>::cast_from(gates_and_ups[gate_at + width]);
        let sigmoid = sigmoid::<N>(gate);
        let silu = gate * sigmoid;
        if comptime!(backward) {
            let gradient = Vector::<f32, N>::cast_from(h[at]);
            let slope = sigmoid + silu * (Vector::new(1.0f32) - sigmoid);
            gates_and_ups[gate_at] = Vector::cast_from(gradient * up * slope);
            gates_and_ups[gate_at + width] = Vector::cast_from(gradient * silu);
        }
        h[at] = Vector::cast_from(silu * up);
    }
}

impl Gpu {
    /// Writes `h` `[N, F]`, `width` being `F`, for `[N, 2F]` of gates and ups.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn swiglu(&self, gates_and_ups: &Array, width: usize, h: &Array) -> Result {
        self.swiglu_pass(gates_and_ups, width, h, false)
    }

    /// Replaces gates and ups with their gradients, and the gradient of `h` with `h`.
    ///
    /// # Errors
    /// Same as [`Gpu::swiglu`].
    pub fn swiglu_backward(&self, gates_and_ups: &Array, width: usize, grad_h: &Array) -> Result {
        self.swiglu_pass(gates_and_ups, width, grad_h, true)
    }

    fn swiglu_pass(&self, gates_and_ups: &Array, width: usize, h: &Array, backward: bool) -> Result {
        let rows = h.len().checked_div(width).unwrap_or(0);
        h.expect_len(area(rows, width)?)?;
        gates_and_ups.expect_len(area(rows, 2 * width)?)?;
        same(gates_and_ups, h)?;
        if h.is_empty() {
            return Ok(());
        }
        let lanes = self.lanes(h.precision(), &[width]);
        pass::launch(
            &self.client,
            grid_of_units(h.len() / lanes),
            line(UNITS),
            lanes,
            gates_and_ups.vectors(lanes),
            h.vectors(lanes),
            h.len() / lanes,
            width / lanes,
            backward,
            h.element(),
        );
        Ok(())
    }
}
