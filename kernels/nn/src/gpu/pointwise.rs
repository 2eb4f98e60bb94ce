//! Elementwise kernels: casts, sums, fills.
//!
//! Bytes per value, `F` being 4 or 2: a cast reads one and writes the other; a sum reads `4 + F` and writes 4. A fill
//! writes `F`; a sum of `n` slices reads `4n` and writes 4.

use super::{
    Array, Gpu, GpuError, Result,
    launch::{UNITS, grid_of_units, lanes, line},
};
use cubecl::{ir::ElemType, prelude::*};

#[cube(launch)]
fn convert<A: Float, B: Float, N: Size>(
    from: &[Vector<A, N>],
    to: &mut [Vector<B, N>],
    count: usize,
    #[define(A)] _from: ElemType,
    #[define(B)] _to: ElemType,
) {
    if ABSOLUTE_POS < count {
        to[ABSOLUTE_POS] = Vector::cast_from(from[ABSOLUTE_POS]);
    }
}

#[cube(launch)]
fn total<F: Float, N: Size>(
    x: &[Vector<f32, N>],
    y: &[Vector<F, N>],
    sum: &mut [Vector<f32, N>],
    count: usize,
    #[define(F)] _kept: ElemType,
) {
    if ABSOLUTE_POS < count {
        sum[ABSOLUTE_POS] = x[ABSOLUTE_POS] + Vector::cast_from(y[ABSOLUTE_POS]);
    }
}

#[cube(launch)]
fn total_of_slices<N: Size>(
    slices: &[Vector<f32, N>],
    sum: &mut [Vector<f32, N>],
    count: usize,
    stride: usize,
    end: usize,
) {
    if ABSOLUTE_POS < count {
        let mut total = Vector::<f32, N>::new(0.0f32);
        let mut at = ABSOLUTE_POS;
        while at < end {
            total += slices[at];
            at += stride;
        }
        sum[ABSOLUTE_POS] = total;
    }
}

#[cube(launch)]
fn fill_all<F: Float, N: Size>(
    values: &mut [Vector<F, N>],
    count: usize,
    value: f32,
    #[define(F)] _kept: ElemType,
) {
    if ABSOLUTE_POS < count {
        values[ABSOLUTE_POS] = Vector::cast_from(Vector::<f32, N>::new(value));
    }
}

impl Gpu {
    /// Writes the values of `from` to `to`, each rounded to the precision of `to`.
    ///
    /// # Errors
    /// If the lengths differ.
    pub fn cast(&self, from: &Array, to: &Array) -> Result {
        to.expect_len(from.len())?;
        if to.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[to.len()]);
        convert::launch(
            &self.client,
            grid_of_units(to.len() / lanes),
            line(UNITS),
            lanes,
            from.vectors(lanes),
            to.vectors(lanes),
            to.len() / lanes,
            from.element(),
            to.element(),
        );
        Ok(())
    }

    /// Computes `sum ← x + y`; `x` and `sum` are f32.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn add(&self, x: &Array, y: &Array, sum: &Array) -> Result {
        y.expect_len(x.len())?;
        sum.expect_len(x.len())?;
        if sum.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[sum.len()]);
        total::launch(
            &self.client,
            grid_of_units(sum.len() / lanes),
            line(UNITS),
            lanes,
            x.f32s(lanes)?,
            y.vectors(lanes),
            sum.f32s(lanes)?,
            sum.len() / lanes,
            y.element(),
        );
        Ok(())
    }

    /// Computes `sum ← 0 + s₀ + s₁ + …`, in this order: the sum of the first `count` slices of `slices`. A slice has
    /// as many values as `sum`, and starts `stride` values after the start of the previous one. All are f32.
    ///
    /// # Errors
    /// If the slices are not within the array, or an array is not f32.
    pub fn add_slices(&self, slices: &Array, stride: usize, count: usize, sum: &Array) -> Result {
        let expected = count.saturating_mul(stride);
        if stride < sum.len() || slices.len() < expected {
            return Err(GpuError::WrongLength { expected, got: slices.len() });
        }
        if sum.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[sum.len(), stride]);
        total_of_slices::launch(
            &self.client,
            grid_of_units(sum.len() / lanes),
            line(UNITS),
            lanes,
            slices.f32s(lanes)?,
            sum.f32s(lanes)?,
            sum.len() / lanes,
            stride / lanes,
            expected / lanes,
        );
        Ok(())
    }

    /// Fills the array with `value`, rounded to the array's precision.
    ///
    /// # Errors
    /// Never today; the signature matches the other kernels.
    pub fn fill(&self, array: &Array, value: f32) -> Result {
        if array.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[array.len()]);
        fill_all::launch(
            &self.client,
            grid_of_units(array.len() / lanes),
            line(UNITS),
            lanes,
            array.vectors(lanes),
            array.len() / lanes,
            value,
            array.element(),
        );
        Ok(())
    }
}
