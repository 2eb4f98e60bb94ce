//! Attention on the CPU. A block's scores stay in the cache, and masked blocks are not computed.
//!
//! One thread processes the queries of one sequence that share a key head, in the order of heads and then of blocks.
//! So sums do not depend on the number of threads.

use super::Shape;
use crate::layers::{
    cross_entropy::{exp, exponentiate},
    dot,
    matmul::{Mat, MatMut, Threads, Write, matmul},
};
use kernels::lanes::{LANES, widest};
use rayon::prelude::*;
use std::{array, ops::Range};

/// Maximum number of scores of a block of queries: 256 KiB, a part of a core's private cache.
const SCORES: usize = 1 << 16;
/// Minimum and maximum number of queries of a block.
const QUERIES: [usize; 2] = [8, 64];

impl Shape {
    fn block_queries(&self) -> usize {
        (SCORES / self.seq_len).clamp(QUERIES[0], QUERIES[1]).min(self.seq_len)
    }

    /// Returns the blocks of queries, each as first query and one after the last.
    fn blocks(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let (queries, seq_len) = (self.block_queries(), self.seq_len);
        (0..seq_len.div_ceil(queries))
            .map(move |block| (block * queries, ((block + 1) * queries).min(seq_len)))
    }

    /// Checks the lengths; returns `N`.
    fn check(&self, rows: &[f32], out: &[f32], log_sums: &[f32]) -> usize {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "query heads share key heads");
        let count = rows.len() / self.row_width();
        assert_eq!(rows.len(), count * self.row_width(), "whole rows");
        assert!(count.is_multiple_of(self.seq_len), "whole sequences");
        assert_eq!(out.len(), count * self.heads * self.head_width, "a result for each query");
        assert_eq!(log_sums.len(), count * self.heads, "a sum for each query");
        count
    }
}

/// Writes `out` `[N, H·C]` for `rows` `[N, W]`, and `log_sums` `[B, H, T]`, which [`backward`] needs.
///
/// # Panics
/// If the lengths are not those of whole sequences.
pub fn forward(shape: &Shape, rows: &[f32], out: &mut [f32], log_sums: &mut [f32]) {
    let count = shape.check(rows, out, log_sums);
    let Shape { seq_len, heads, head_width, .. } = *shape;
    let group = shape.group();
    let out = MatMut::new(out, [count, heads * head_width]).tiles(seq_len, group * head_width);
    out.into_par_iter().zip(log_sums.par_chunks_mut(group * seq_len)).enumerate().for_each_init(
        || Scratch { probs: vec![0.0; shape.block_queries() * seq_len], ..Scratch::default() },
        |scratch, (part, (out, log_sums))| {
            forward_part(shape, &Part::new(shape, rows, part), scratch, out, log_sums);
        },
    );
}

/// Writes `grad_rows` `[N, W]`, the gradient of `Σ out·grad_out`. `out` and `log_sums` are the outputs of [`forward`].
///
/// # Panics
/// Same as [`forward`].
pub fn backward(
    shape: &Shape,
    rows: &[f32],
    out: &[f32],
    log_sums: &[f32],
    grad_out: &[f32],
    grad_rows: &mut [f32],
) {
    let count = shape.check(rows, out, log_sums);
    shape.check(grad_rows, grad_out, log_sums);
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let group = shape.group();

    let grad_rows = MatMut::new(grad_rows, [count, shape.row_width()]);
    let (grad_queries, grad_rest) = grad_rows.split_columns(heads * head_width);
    let (grad_keys, grad_values) = grad_rest.split_columns(kv_heads * head_width);
    let grad_queries = grad_queries.tiles(seq_len, group * head_width);
    let grad_keys = grad_keys.tiles(seq_len, head_width);
    let grad_values = grad_values.tiles(seq_len, head_width);
    let parts = grad_queries.into_par_iter().zip(grad_keys).zip(grad_values).enumerate();

    let outs = [out, grad_out].map(|out| Mat::new(out, [count, heads * head_width]));
    parts.for_each_init(
        || Scratch {
            probs: vec![0.0; shape.block_queries() * seq_len],
            grad_probs: vec![0.0; shape.block_queries() * seq_len],
            ..Scratch::default()
        },
        |scratch, (index, ((grad_queries, grad_keys), grad_values))| {
            let part = Part::new(shape, rows, index);
            let columns = index % kv_heads * group * head_width;
            let outs = outs.map(|out| out.block(part.rows(seq_len), columns..columns + group * head_width));
            let log_sums = &log_sums[index * group * seq_len..][..group * seq_len];
            backward_part(shape, &part, scratch, outs, log_sums, [grad_queries, grad_keys, grad_values]);
        },
    );
}

/// Work of one thread: a sequence, and a key and value head with all query heads that share it.
struct Part<'a> {
    sequence: usize,
    queries: Mat<'a>,
    keys: Mat<'a>,
    values: Mat<'a>,
}

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    /// Scores of a block, then its probabilities, and their gradient.
    probs: Vec<f32>,
    grad_probs: Vec<f32>,
    /// Transposed keys and values; see [`transposed`].
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Part<'_> {
    fn new<'a>(shape: &Shape, rows: &'a [f32], index: usize) -> Part<'a> {
        let Shape { seq_len, heads, kv_heads, head_width } = *shape;
        let (sequence, kv_head) = (index / kv_heads, index % kv_heads);
        let width = shape.row_width();
        let rows = Mat::new(&rows[sequence * seq_len * width..][..seq_len * width], [seq_len, width]);
        let columns = |head: usize, count: usize| {
            rows.block(0..seq_len, head * head_width..(head + count) * head_width)
        };
        let group = shape.group();
        Part {
            sequence,
            queries: columns(kv_head * group, group),
            keys: columns(heads + kv_head, 1),
            values: columns(heads + kv_heads + kv_head, 1),
        }
    }

    /// Returns the sequence's rows.
    fn rows(&self, seq_len: usize) -> Range<usize> {
        self.sequence * seq_len..(self.sequence + 1) * seq_len
    }
}

fn forward_part(shape: &Shape, part: &Part, scratch: &mut Scratch, mut out: MatMut, log_sums: &mut [f32]) {
    let width = shape.head_width;
    let keys = transposed(shape, part.keys, &mut scratch.keys);
    for head in 0..shape.group() {
        let columns = head * width..(head + 1) * width;
        for (first, end) in shape.blocks() {
            let queries = part.queries.block(first..end, columns.clone());
            let probs = &mut scratch.probs[..(end - first) * end];
            let probs_shape = [end - first, end];
            let keys = keys.block(0..width, 0..end);
            matmul(Write::Set, &mut MatMut::new(probs, probs_shape), queries, keys, Threads::One);
            softmax_rows(probs, end, first, &mut log_sums[head * shape.seq_len + first..][..end - first]);
            let values = part.values.block(0..end, 0..width);
            let mut out = out.reborrow().block(first..end, columns.clone());
            matmul(Write::Set, &mut out, Mat::new(probs, probs_shape), values, Threads::One);
        }
    }
}

fn backward_part(
    shape: &Shape,
    part: &Part,
    scratch: &mut Scratch,
    [out, grad_out]: [Mat; 2],
    log_sums: &[f32],
    [mut grad_queries, mut grad_keys, mut grad_values]: [MatMut; 3],
) {
    let width = shape.head_width;
    let keys_t = transposed(shape, part.keys, &mut scratch.keys);
    let values_t = transposed(shape, part.values, &mut scratch.values);
    // The last block uses all keys, so it is computed first and overwrites; the others add.
    let mut write = Write::Set;
    for head in 0..shape.group() {
        let columns = head * width..(head + 1) * width;
        for (first, end) in shape.blocks().rev() {
            let probs_shape = [end - first, end];
            let [out, grad_out] = [out, grad_out].map(|out| out.block(first..end, columns.clone()));
            let queries = part.queries.block(first..end, columns.clone());
            let [keys_t, values_t] = [keys_t, values_t].map(|matrix| matrix.block(0..width, 0..end));
            let probs = &mut scratch.probs[..(end - first) * end];
            let grad_probs = &mut scratch.grad_probs[..(end - first) * end];
            let one = Threads::One;

            matmul(Write::Set, &mut MatMut::new(probs, probs_shape), queries, keys_t, one);
            probs_from_log_sums(probs, end, first, &log_sums[head * shape.seq_len + first..][..end - first]);
            let seen = Mat::new(probs, probs_shape);
            let mut grad_values = grad_values.reborrow().block(0..end, 0..width);
            matmul(write, &mut grad_values, seen.transposed(), grad_out, one);

            matmul(Write::Set, &mut MatMut::new(grad_probs, probs_shape), grad_out, values_t, one);
            score_gradients(probs, end, out, grad_out, grad_probs);
            let grad_scores = Mat::new(grad_probs, probs_shape);
            let mut grad_queries = grad_queries.reborrow().block(first..end, columns.clone());
            matmul(Write::Set, &mut grad_queries, grad_scores, part.keys.block(0..end, 0..width), one);
            let mut grad_keys = grad_keys.reborrow().block(0..end, 0..width);
            matmul(write, &mut grad_keys, grad_scores.transposed(), queries, one);
            write = Write::Add;
        }
    }
}

widest! {
    /// Converts scores to probabilities, row by row. The query of row `i` attends to `first + i + 1` of the `width`
    /// keys; others get 0.
    fn softmax_rows(scores: &mut [f32], width: usize, first: usize, log_sums: &mut [f32]) = softmax_rows_body;
}

widest! {
    /// Recomputes the probabilities from scores and the log-sum-exps of [`softmax_rows`].
    fn probs_from_log_sums(scores: &mut [f32], width: usize, first: usize, log_sums: &[f32]) = probs_from_log_sums_body;
}

widest! {
    /// Converts gradients of probabilities to those of scores: `prob · (grad_prob − out·grad_out)`, row by row.
    fn score_gradients(probs: &[f32], width: usize, out: Mat, grad_out: Mat, grad_probs: &mut [f32]) = score_gradients_body;
}

widest! {
    fn transpose_into(from: Mat, shape: [usize; 2], into: &mut [f32]) = transpose_into_body;
}

/// Returns the transpose `[C, T]` of a part's keys or values. A product would transpose them for each block, so
/// several blocks share one copy in `buffer`.
fn transposed<'a>(shape: &Shape, from: Mat<'a>, buffer: &'a mut Vec<f32>) -> Mat<'a> {
    let &Shape { seq_len, head_width, .. } = shape;
    if shape.group() == 1 && shape.block_queries() == seq_len {
        return from.transposed();
    }
    buffer.resize(seq_len * head_width, 0.0);
    transpose_into(from, [seq_len, head_width], buffer);
    Mat::new(buffer, [head_width, seq_len])
}

#[inline(always)]
fn transpose_into_body(from: Mat, [rows, columns]: [usize; 2], into: &mut [f32]) {
    // One cache line of the result at a time.
    let whole = rows - rows % LANES;
    for first in (0..whole).step_by(LANES) {
        let lines: [&[f32]; LANES] = array::from_fn(|line| &from.row(first + line)[..columns]);
        for column in 0..columns {
            for (into, line) in into[column * rows + first..][..LANES].iter_mut().zip(&lines) {
                *into = line[column];
            }
        }
    }
    for row in whole..rows {
        for (column, &value) in from.row(row).iter().enumerate() {
            into[column * rows + row] = value;
        }
    }
}

#[inline(always)]
fn softmax_rows_body(scores: &mut [f32], width: usize, first: usize, log_sums: &mut [f32]) {
    for (row, (scores, log_sum)) in scores.chunks_exact_mut(width).zip(log_sums).enumerate() {
        let (seen, unseen) = scores.split_at_mut(first + row + 1);
        let (max, sum) = exponentiate(seen);
        let share = 1.0 / sum;
        for score in seen {
            *score *= share;
        }
        unseen.fill(0.0);
        *log_sum = max + sum.ln();
    }
}

#[inline(always)]
fn probs_from_log_sums_body(scores: &mut [f32], width: usize, first: usize, log_sums: &[f32]) {
    for (row, (scores, &log_sum)) in scores.chunks_exact_mut(width).zip(log_sums).enumerate() {
        let (seen, unseen) = scores.split_at_mut(first + row + 1);
        for score in seen {
            // Rounding can lift the largest score above the log-sum-exp, but `exp` requires values up to 0.
            let below = *score - log_sum;
            *score = exp(if below > 0.0 { 0.0 } else { below });
        }
        unseen.fill(0.0);
    }
}

#[inline(always)]
fn score_gradients_body(probs: &[f32], width: usize, out: Mat, grad_out: Mat, grad_probs: &mut [f32]) {
    let rows = probs.chunks_exact(width).zip(grad_probs.chunks_exact_mut(width)).enumerate();
    for (row, (probs, grad_probs)) in rows {
        let mean = dot(out.row(row), grad_out.row(row));
        for (&prob, grad_prob) in probs.iter().zip(grad_probs) {
            *grad_prob = prob * (*grad_prob - mean);
        }
    }
}
