//! Elementwise kernels: casts, sums, fills.
//!
//! Bytes per value, `F` being 4 or 2: a cast reads one and writes the other; a sum reads `4 + F` and writes 4; a fill
//! writes `F`.

use super::{
    Array, Gpu, Result,
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
    /// Writes the values of `from` to `to`, each rounded to the nearest that `to` can hold.
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

    /// `sum ← x + y`: `x` and `sum` are f32.
    ///
    /// # Errors
    /// If lengths or precisions differ from that.
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

    /// Writes `value` everywhere, rounded to the nearest that the array can hold.
    ///
    /// # Errors
    /// None today; the signature is that of the other kernels.
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
