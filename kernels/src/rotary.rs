//! Rotary positions, in place: value `i` of a head is turned with value `i + half` by `position · base^{−i/half}`.
//!
//! That is the rotate-half layout of Llama checkpoints on Hugging Face. Turning back is the gradient.

use crate::lanes::widest;
use rayon::prelude::*;

/// Rows that one thread takes at a time.
const ROWS: usize = 32;

/// Cosines and sines of all positions.
#[derive(Clone, Debug)]
pub struct Angles {
    /// Half a head's width.
    half: usize,
    /// For each position, `half` cosines. The one for queries also carries attention's `1/√(2·half)`.
    cosines: [Vec<f32>; 2],
    sines: [Vec<f32>; 2],
}

/// Which way to turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotation {
    Forward,
    Back,
}

const QUERY: usize = 0;
const KEY: usize = 1;

impl Angles {
    /// For `positions` positions and heads of `head_width`, which must be even.
    pub fn new(positions: usize, head_width: usize, base: f64) -> Angles {
        let half = head_width / 2;
        let scale = 1.0 / (head_width as f64).sqrt();
        let table = |of: fn(f64) -> f64, scale: f64| -> Vec<f32> {
            let angle = |i: usize| (i / half) as f64 / base.powf((i % half) as f64 / half as f64);
            (0..positions * half).map(|i| (of(angle(i)) * scale) as f32).collect()
        };
        Angles {
            half,
            cosines: [table(f64::cos, scale), table(f64::cos, 1.0)],
            sines: [table(f64::sin, scale), table(f64::sin, 1.0)],
        }
    }

    /// Half a head's width.
    pub fn half(&self) -> usize {
        self.half
    }

    pub fn positions(&self) -> usize {
        self.cosines[KEY].len() / self.half
    }

    /// Cosines and sines of queries, then of keys: `[positions, half]` each.
    pub fn tables(&self) -> [&[f32]; 4] {
        [&self.cosines[QUERY], &self.sines[QUERY], &self.cosines[KEY], &self.sines[KEY]]
    }
}

/// One row in `f64`: what [`turn`] comes close to. The row has `queries` query heads, then key heads.
pub fn rotate_reference(
    row: &[f32],
    queries: usize,
    head_width: usize,
    position: usize,
    base: f64,
) -> Vec<f64> {
    let half = head_width / 2;
    let mut turned = Vec::new();
    for (head, x) in row.chunks_exact(head_width).enumerate() {
        let scale = if head < queries { 1.0 / (head_width as f64).sqrt() } else { 1.0 };
        let value = |i: usize| {
            let angle = position as f64 / base.powf((i % half) as f64 / half as f64);
            let (a, b) = (f64::from(x[i % half]), f64::from(x[i % half + half]));
            scale
                * if i < half { a * angle.cos() - b * angle.sin() } else { b * angle.cos() + a * angle.sin() }
        };
        turned.extend((0..head_width).map(value));
    }
    turned
}

/// Turns the first `queries + keys` heads of each row of `x`; the row's other values stay. Row `n` is at position
/// `n mod seq_len`. Queries are also scaled by `1/√head_width`, both ways.
///
/// # Panics
/// If rows are not whole or too short, or there are more positions than angles.
pub fn rotate(
    x: &mut [f32],
    row_width: usize,
    [queries, keys]: [usize; 2],
    seq_len: usize,
    angles: &Angles,
    way: Rotation,
) {
    assert!(x.len().is_multiple_of(row_width), "whole rows");
    assert!(2 * angles.half * (queries + keys) <= row_width, "heads fit into a row");
    assert!(seq_len <= angles.positions(), "an angle for each position");
    x.par_chunks_mut(ROWS * row_width).enumerate().for_each(|(block, x)| {
        turn_rows(x, row_width, [queries, keys], block * ROWS, seq_len, angles, way);
    });
}

widest! {
    fn turn_rows(
        x: &mut [f32], row_width: usize, heads: [usize; 2], first: usize, seq_len: usize, angles: &Angles, way: Rotation,
    ) = turn_rows_body;
}

#[inline(always)]
fn turn_rows_body(
    x: &mut [f32],
    row_width: usize,
    [queries, keys]: [usize; 2],
    first: usize,
    seq_len: usize,
    angles: &Angles,
    way: Rotation,
) {
    let half = angles.half;
    for (row, x) in x.chunks_exact_mut(row_width).enumerate() {
        let position = (first + row) % seq_len;
        let at = position * half..(position + 1) * half;
        let (of_queries, rest) = x.split_at_mut(queries * 2 * half);
        for (kind, heads) in [(QUERY, of_queries), (KEY, &mut rest[..keys * 2 * half])] {
            let (cosines, sines) = (&angles.cosines[kind][at.clone()], &angles.sines[kind][at.clone()]);
            for head in heads.chunks_exact_mut(2 * half) {
                let (a, b) = head.split_at_mut(half);
                match way {
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
}
