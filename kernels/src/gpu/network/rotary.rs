//! Rotary positions, in place: value `i` of a head is turned with value `i + half` by `position · base^{−i/half}`.
//!
//! The reference is [`crate::rotary`], whose tables of cosines and sines are copied to the device once. Turning back is the
//! gradient. Queries are also scaled by `1/√(2·half)`, both ways.
//!
//! Bytes a value turned, `F` being 4 or 2 of them: reads `F` and writes `F`. A unit turns a pair of vectors in each of up
//! to eight heads, so that the tables are read once for eight.

use super::{
    Array, Precision,
    launch::{UNITS, a_unit_each, area, lanes, line},
};
use crate::{
    gpu::{Device, GpuError},
    rotary::{self, Rotation},
};
use cubecl::{ir::ElemType, prelude::*};

/// Heads that a unit turns at most.
const HEADS: usize = 8;

#[cube(launch)]
fn turn<F: Float, N: Size>(
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

/// Cosines and sines of all positions, on a device.
#[derive(Clone)]
pub struct Angles {
    /// `[2, 2, positions, half]`: cosines and sines of queries, then of keys.
    tables: Array,
    half: usize,
    positions: usize,
}

impl Device {
    /// Copies the angles to the device.
    pub fn upload_angles(&self, angles: &rotary::Angles) -> Result<Angles, GpuError> {
        let [half, positions] = [angles.half(), angles.positions()];
        let tables = self.upload_array(&angles.tables().concat(), Precision::F32)?;
        Ok(Angles { tables, half, positions })
    }

    /// Turns the first `queries + keys` heads of each row of `x` `[N, row_width]`; the row's other values stay. Row `n` is
    /// at position `n mod seq_len`.
    pub fn rotary(
        &self,
        x: &Array,
        row_width: usize,
        [queries, keys]: [usize; 2],
        seq_len: usize,
        angles: &Angles,
        way: Rotation,
    ) -> Result<(), GpuError> {
        let rows = x.len().checked_div(row_width).unwrap_or(0);
        x.expect_len(area(rows, row_width)?)?;
        let half = angles.half;
        let turned = area(queries + keys, 2 * half)?;
        if row_width < turned {
            return Err(GpuError::WrongLength { expected: turned, got: row_width });
        }
        if !(1..=angles.positions).contains(&seq_len) {
            return Err(GpuError::WrongLength { expected: angles.positions, got: seq_len });
        }
        if rows == 0 || turned == 0 {
            return Ok(());
        }
        let lanes = lanes(&[row_width, half]);
        let query_groups = queries.div_ceil(HEADS);
        let groups = query_groups + keys.div_ceil(HEADS);
        turn::launch(
            &self.client,
            a_unit_each(rows * groups * (half / lanes)),
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
            way == Rotation::Back,
            x.element(),
        );
        Ok(())
    }
}
