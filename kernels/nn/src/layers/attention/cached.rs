//! Attention of new tokens to cached ones, on the CPU.
//!
//! Each query is computed separately, in the order of the keys, so its bits do not depend on other queries or on the
//! number of threads.

use super::Shape;
use crate::layers::{cross_entropy::exponentiate, dot};
use kernels::lanes::widest;
use rayon::prelude::*;

/// Rotated keys, and values, `[t, C]` each, of one key head.
pub struct CachedHead {
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl CachedHead {
    /// Returns an empty head with capacity for this number of keys and of values.
    pub fn with_room(values: usize) -> CachedHead {
        CachedHead { keys: Vec::with_capacity(values), values: Vec::with_capacity(values) }
    }

    /// Returns the reserved bytes.
    pub fn bytes(&self) -> u64 {
        4 * (self.keys.capacity() + self.values.capacity()) as u64
    }
}

/// Appends the rotated keys and the values of `rows` `[n, W]` to those of each head. Capacity doubles when it runs
/// out, up to `seq_len` tokens.
pub fn append(shape: &Shape, rows: &[f32], heads: &mut [CachedHead]) {
    let &Shape { heads: queries, kv_heads, head_width, .. } = shape;
    for row in rows.chunks_exact(shape.row_width()) {
        let (keys, values) = row[queries * head_width..].split_at(kv_heads * head_width);
        let parts = keys.chunks_exact(head_width).zip(values.chunks_exact(head_width));
        for (head, (key, value)) in heads.iter_mut().zip(parts) {
            for (all, new) in [(&mut head.keys, key), (&mut head.values, value)] {
                let needed = all.len() + head_width;
                if all.capacity() < needed {
                    let room = (2 * needed).min(shape.seq_len * head_width);
                    all.reserve_exact(room - all.len());
                }
                all.extend_from_slice(new);
            }
        }
    }
}

/// Writes `out` `[N, H·C]` for the queries of `rows` `[N, W]`. Each of `caches` has `K` heads, and the same number of
/// rows in `rows`, which are its last tokens.
///
/// # Panics
/// If the lengths do not fit.
pub fn forward_cached(shape: &Shape, rows: &[f32], caches: &[&[CachedHead]], out: &mut [f32]) {
    let &Shape { heads, kv_heads, head_width, .. } = shape;
    let (width, group) = (shape.row_width(), shape.group() * head_width);
    let each = rows.len() / width / caches.len();
    assert_eq!(rows.len(), each * caches.len() * width, "the same number of rows for each cache");
    assert_eq!(out.len() * width, rows.len() * heads * head_width, "a result for each query");
    out.par_chunks_mut(group).enumerate().for_each_init(Vec::new, |probs, (part, out)| {
        let (row, kv_head) = (part / kv_heads, part % kv_heads);
        let head = &caches[row / each][kv_head];
        // The last row attends to all keys.
        let seen = head.keys.len() - (each - 1 - row % each) * head_width;
        let queries = &rows[row * width + kv_head * group..][..group];
        probs.resize(seen / head_width, 0.0);
        for (query, out) in queries.chunks_exact(head_width).zip(out.chunks_exact_mut(head_width)) {
            attend(query, &head.keys[..seen], &head.values[..seen], probs, out);
        }
    });
}

widest! {
    /// Writes `out` `[C]` for one query. `probs` has as many values as there are keys.
    fn attend(query: &[f32], keys: &[f32], values: &[f32], probs: &mut [f32], out: &mut [f32]) = attend_body;
}

#[inline(always)]
fn attend_body(query: &[f32], keys: &[f32], values: &[f32], probs: &mut [f32], out: &mut [f32]) {
    let width = query.len();
    for (score, key) in probs.iter_mut().zip(keys.chunks_exact(width)) {
        *score = dot(query, key);
    }
    let (_, sum) = exponentiate(probs);
    let share = 1.0 / sum;
    out.fill(0.0);
    for (&prob, value) in probs.iter().zip(values.chunks_exact(width)) {
        let prob = prob * share;
        for (out, &value) in out.iter_mut().zip(value) {
            *out += prob * value;
        }
    }
}
