//! Rotary positions on a GPU, in place. The tables of cosines and sines are uploaded once.
//!
//! Bytes per rotated value, `F` being 4 or 2: reads and writes `F`. A unit rotates a pair of vectors in each of up to
//! eight heads, so that the tables are read once for eight.

use super::{Angles, Rotation};
use crate::gpu::{
    Array, Gpu, GpuError, Precision, Result,
    launch::{UNITS, area, grid_of_units, lanes, line},
};
use cubecl::{ir::ElemType, prelude::*};

/// Maximum number of heads per unit.
const HEADS: usize = 8;

#[cube(launch)]
fn rotate<F: Float, N: Size>(
    x: &mut [Vector<F, N>],
    angles: &[Vector<f32, N>],
    rows: usize,
    row_width: usize,
    half: usize,
    queries: usize,
    heads: usize,
    query_groups: usize,
    groups: usize,
    seq_len: usize,
    positions: usize,
    #[comptime] back: bool,
    #[define(F)] _kept: ElemType,
) {
    let column = ABSOLUTE_POS % half;
    let group = ABSOLUTE_POS / half % groups;
    let row = ABSOLUTE_POS / half / groups;
    if row < rows {
        // Tables: cosines and sines of queries, then of keys.
        let mut table = 0usize;
        let mut head = group * HEADS;
        let mut end = queries;
        if group >= query_groups {
            table = 2usize;
            head = queries + (group - query_groups) * HEADS;
            end = heads;
        }
        let to = min(head + HEADS, end);
        let position = row % seq_len;
        let cos = angles[(table * positions + position) * half + column];
        let mut sin = angles[((table + 1usize) * positions + position) * half + column];
        if comptime!(back) {
            sin = -sin;
        }
        for head in head..to {
            let at = row * row_width + 2usize * head * half + column;
            let a = Vector::<f32, N>::cast_from(x[at]);
            let b = Vector::<f32, N>::cast_from(x[at + half]);
            x[at] = Vector::cast_from(a * cos - b * sin);
            x[at + half] = Vector::cast_from(b * cos + a * sin);
        }
    }
}

/// [`Angles`] on a GPU.
#[derive(Clone)]
pub struct GpuAngles {
    /// `[2, 2, positions, half]`: cosines and sines of queries, then of keys.
    tables: Array,
    half: usize,
    positions: usize,
}

impl Gpu {
    /// Copies the angles to the device.
    ///
    /// # Errors
    /// Same as [`Gpu::array`].
    pub fn upload_angles(&self, angles: &Angles) -> Result<GpuAngles> {
        let [half, positions] = [angles.half(), angles.positions()];
        let tables = self.upload(&angles.tables().concat(), Precision::F32)?;
        Ok(GpuAngles { tables, half, positions })
    }

    /// Rotates the first `queries + keys` heads of each row of `x` `[N, row_width]`; a row's other values do not
    /// change. Row `n` is at position `n mod seq_len`.
    ///
    /// # Errors
    /// If rows are incomplete or too short, or there are more positions than angles.
    pub fn rope(
        &self,
        x: &Array,
        row_width: usize,
        [queries, keys]: [usize; 2],
        seq_len: usize,
        angles: &GpuAngles,
        rotation: Rotation,
    ) -> Result {
        let rows = x.len().checked_div(row_width).unwrap_or(0);
        x.expect_len(area(rows, row_width)?)?;
        let half = angles.half;
        let rotated = area(queries + keys, 2 * half)?;
        if row_width < rotated {
            return Err(GpuError::WrongLength { expected: rotated, got: row_width });
        }
        if !(1..=angles.positions).contains(&seq_len) {
            return Err(GpuError::WrongLength { expected: angles.positions, got: seq_len });
        }
        if rows == 0 || rotated == 0 {
            return Ok(());
        }
        let lanes = lanes(&[row_width, half]);
        let query_groups = queries.div_ceil(HEADS);
        let groups = query_groups + keys.div_ceil(HEADS);
        rotate::launch(
            &self.client,
            grid_of_units(rows * groups * (half / lanes)),
            line(UNITS),
            lanes,
            x.vectors(lanes),
            angles.tables.f32s(lanes)?,
            rows,
            row_width / lanes,
            half / lanes,
            queries,
            queries + keys,
            query_groups,
            groups,
            seq_len,
            angles.positions,
            rotation == Rotation::Back,
            x.element(),
        );
        Ok(())
    }
}
