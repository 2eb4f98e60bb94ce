//! Rotary positions on the CPU, in place.

use super::{Angles, KEY, QUERY, Rotation};
use kernels::lanes::widest;
use rayon::prelude::*;

/// Number of rows that one thread processes at a time.
const ROWS: usize = 32;

/// Rotates the first `queries + keys` heads of each row of `x` `[N, row_width]`; a row's other values do not change.
/// Row `n` is at position `n mod seq_len`.
///
/// # Panics
/// If rows are incomplete or too short, or there are more positions than angles.
pub fn rotate(
    x: &mut [f32],
    row_width: usize,
    heads: [usize; 2],
    seq_len: usize,
    angles: &Angles,
    rotation: Rotation,
) {
    let [queries, keys] = heads;
    assert!(x.len().is_multiple_of(row_width), "whole rows");
    assert!(2 * angles.half * (queries + keys) <= row_width, "heads fit into a row");
    assert!(seq_len <= angles.positions(), "an angle for each position");
    x.par_chunks_mut(ROWS * row_width).enumerate().for_each(|(block, x)| {
        for (row, x) in x.chunks_exact_mut(row_width).enumerate() {
            rotate_row(x, heads, (block * ROWS + row) % seq_len, angles, rotation);
        }
    });
}

/// Rotates the first `queries + keys` heads of a single row at `position`.
///
/// # Panics
/// If the row is too short, or `angles` lacks the position.
pub fn rotate_at(row: &mut [f32], heads: [usize; 2], position: usize, angles: &Angles) {
    let [queries, keys] = heads;
    assert!(2 * angles.half * (queries + keys) <= row.len(), "heads fit into a row");
    assert!(position < angles.positions(), "an angle for the position");
    rotate_row(row, heads, position, angles, Rotation::Forward);
}

widest! {
    fn rotate_row(x: &mut [f32], heads: [usize; 2], position: usize, angles: &Angles, rotation: Rotation) = rotate_row_body;
}

#[inline(always)]
fn rotate_row_body(
    x: &mut [f32],
    [queries, keys]: [usize; 2],
    position: usize,
    angles: &Angles,
    rotation: Rotation,
) {
    let half = angles.half;
    let at = position * half..(position + 1) * half;
    let (query_heads, rest) = x.split_at_mut(queries * 2 * half);
    for (kind, heads) in [(QUERY, query_heads), (KEY, &mut rest[..keys * 2 * half])] {
        let (cosines, sines) = (&angles.cosines[kind][at.clone()], &angles.sines[kind][at.clone()]);
        for head in heads.chunks_exact_mut(2 * half) {
            let (a, b) = head.split_at_mut(half);
            match rotation {
                Rotation::Forward => {
                    for (((a, b), &cos), &sin) in a.iter_mut().zip(b).zip(cosines).zip(sines) {
                        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
                    }
                }
                Rotation::Back => {
                    for (((a, b), &cos), &sin) in a.iter_mut().zip(b).zip(cosines).zip(sines) {
                        (*a, *b) = (*a * cos + *b * sin, *b * cos - *a * sin);
                    }
                }
            }
        }
    }
}
