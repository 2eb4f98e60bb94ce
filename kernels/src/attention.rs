//! Causal attention with grouped heads, and its gradients, without ever holding all scores.
//!
//! A block of queries is multiplied with the keys up to its last one, the scores' softmax stays in the cache, and is
//! multiplied with the values: half of the full square is never computed. What is kept for the way back is one number a
//! query, the logarithm of the sum of exponentials; the block's scores are computed again there (Dao et al.,
//! "FlashAttention", 2022, section 3.1, with blocks of queries only).
//!
//! A sequence's queries that share a head of keys are worked on by one thread, in the order of heads and then of blocks, so
//! that no sum depends on the number of threads.

use crate::{
    cross_entropy::{exp, exponentiate},
    lanes::{LANES, dot, widest},
    matmul::{Mat, MatMut, Threads, Write, matmul},
};
use rayon::prelude::*;
use std::array;

/// Scores of a block of queries: 256 KiB, a part of a core's own cache.
const SCORES: usize = 1 << 16;
/// Queries in a block, at most and at least.
const QUERIES: [usize; 2] = [8, 64];

/// How rows are cut. A row has `heads` queries, `kv_heads` keys and `kv_heads` values, each `head_width` wide, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of a sequence. Row `n` is of sequence `n / seq_len`.
    pub seq_len: usize,
    pub heads: usize,
    /// Each serves `heads / kv_heads` query heads that stand side by side.
    pub kv_heads: usize,
    pub head_width: usize,
}

impl Shape {
    /// Values of a row.
    pub fn row_width(&self) -> usize {
        (self.heads + 2 * self.kv_heads) * self.head_width
    }

    fn queries_at_once(&self) -> usize {
        (SCORES / self.seq_len).clamp(QUERIES[0], QUERIES[1]).min(self.seq_len)
    }

    fn query_heads_for_each(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Blocks of queries: the first, and the one after the last.
    fn blocks(&self) -> impl DoubleEndedIterator<Item = (usize, usize)> + use<> {
        let (at_once, seq_len) = (self.queries_at_once(), self.seq_len);
        (0..seq_len.div_ceil(at_once))
            .map(move |block| (block * at_once, ((block + 1) * at_once).min(seq_len)))
    }

    fn check(&self, rows: &[f32], mixed: &[f32], log_sums: &[f32]) -> usize {
        assert!(self.kv_heads > 0 && self.heads.is_multiple_of(self.kv_heads), "query heads share key heads");
        let count = rows.len() / self.row_width();
        assert_eq!(rows.len(), count * self.row_width(), "whole rows");
        assert!(count.is_multiple_of(self.seq_len), "whole sequences");
        assert_eq!(mixed.len(), count * self.heads * self.head_width, "a result for each query");
        assert_eq!(log_sums.len(), count * self.heads, "a sum for each query");
        count
    }
}

/// The mix of values for each query, `[rows, heads · head_width]`, in `f64`: what [`forward`] comes close to.
pub fn forward_reference(shape: &Shape, rows: &[f32]) -> Vec<f64> {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let width = shape.row_width();
    let mut mixed = Vec::new();
    for sequence in rows.chunks_exact(seq_len * width) {
        let at = |row: usize, column: usize| f64::from(sequence[row * width + column]);
        for row in 0..seq_len {
            for head in 0..heads {
                let served = head / (heads / kv_heads);
                let (key, value) = ((heads + served) * head_width, (heads + kv_heads + served) * head_width);
                let score = |other: usize| -> f64 {
                    (0..head_width).map(|i| at(row, head * head_width + i) * at(other, key + i)).sum()
                };
                let scores: Vec<f64> = (0..=row).map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
                mixed.extend((0..head_width).map(|i| {
                    let looks = scores.iter().enumerate();
                    looks.map(|(other, score)| (score - max).exp() / sum * at(other, value + i)).sum::<f64>()
                }));
            }
        }
    }
    mixed
}

/// The gradients of `Σ mixed·of_mixed` with respect to `rows`, in `f64`: what [`backward`] comes close to.
pub fn backward_reference(shape: &Shape, rows: &[f32], of_mixed: &[f32]) -> Vec<f64> {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let (width, mixed_width) = (shape.row_width(), heads * head_width);
    let mut gradient = vec![0.0; rows.len()];
    let sequences = rows.chunks_exact(seq_len * width).zip(of_mixed.chunks_exact(seq_len * mixed_width));
    for ((sequence, of_mixed), gradient) in sequences.zip(gradient.chunks_exact_mut(seq_len * width)) {
        for (row, head) in (0..seq_len).flat_map(|row| (0..heads).map(move |head| (row, head))) {
            let served = head / (heads / kv_heads);
            let query = row * width + head * head_width;
            let key = |other: usize| other * width + (heads + served) * head_width;
            let value = |other: usize| other * width + (heads + kv_heads + served) * head_width;
            let at = |place: usize| f64::from(sequence[place]);
            let of_mixed = |i: usize| f64::from(of_mixed[row * mixed_width + head * head_width + i]);

            let score = |other| (0..head_width).map(|i| at(query + i) * at(key(other) + i)).sum::<f64>();
            let scores: Vec<f64> = (0..=row).map(score).collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
            let looks: Vec<f64> = scores.iter().map(|score| (score - max).exp() / sum).collect();
            let of_look = |other| (0..head_width).map(|i| of_mixed(i) * at(value(other) + i)).sum::<f64>();
            let of_looks: Vec<f64> = (0..=row).map(of_look).collect();
            let along: f64 = looks.iter().zip(&of_looks).map(|(look, of_look)| look * of_look).sum();
            for (other, (look, of_look)) in looks.iter().zip(of_looks).enumerate() {
                let of_score = look * (of_look - along);
                for i in 0..head_width {
                    gradient[query + i] += of_score * at(key(other) + i);
                    gradient[key(other) + i] += of_score * at(query + i);
                    gradient[value(other) + i] += look * of_mixed(i);
                }
            }
        }
    }
    gradient
}

/// For each query the softmax of its scores with the keys up to its own position, times the values. Queries carry the scale.
///
/// `rows` as [`Shape`] tells; writes `mixed` (`[rows, heads · head_width]`) and `log_sums` (`[sequences, heads, seq_len]`),
/// which [`backward`] needs.
///
/// # Panics
/// If the lengths are not those of whole sequences.
pub fn forward(shape: &Shape, rows: &[f32], mixed: &mut [f32], log_sums: &mut [f32]) {
    let count = shape.check(rows, mixed, log_sums);
    let Shape { seq_len, heads, head_width, .. } = *shape;
    let shared = shape.query_heads_for_each();
    let mixed = MatMut::new(mixed, [count, heads * head_width]).tiles(seq_len, shared * head_width);
    mixed.into_par_iter().zip(log_sums.par_chunks_mut(shared * seq_len)).enumerate().for_each_init(
        || Room { looks: vec![0.0; shape.queries_at_once() * seq_len], ..Room::default() },
        |room, (part, (mixed, log_sums))| {
            forward_part(shape, &Part::of(shape, rows, part), room, mixed, log_sums);
        },
    );
}

/// Turns `of_rows` into the gradients of `Σ mixed·of_mixed` with respect to `rows`. `mixed` and `log_sums` are what
/// [`forward`] wrote.
///
/// # Panics
/// As [`forward`].
pub fn backward(
    shape: &Shape,
    rows: &[f32],
    mixed: &[f32],
    log_sums: &[f32],
    of_mixed: &[f32],
    of_rows: &mut [f32],
) {
    let count = shape.check(rows, mixed, log_sums);
    shape.check(of_rows, of_mixed, log_sums);
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let shared = shape.query_heads_for_each();

    let of_rows = MatMut::new(of_rows, [count, shape.row_width()]);
    let (of_queries, of_others) = of_rows.split_columns(heads * head_width);
    let (of_keys, of_values) = of_others.split_columns(kv_heads * head_width);
    let of_queries = of_queries.tiles(seq_len, shared * head_width);
    let of_keys = of_keys.tiles(seq_len, head_width);
    let of_values = of_values.tiles(seq_len, head_width);
    let parts = of_queries.into_par_iter().zip(of_keys).zip(of_values).enumerate();

    let all_mixed = [mixed, of_mixed].map(|mixed| Mat::new(mixed, [count, heads * head_width]));
    parts.for_each_init(
        || Room {
            looks: vec![0.0; shape.queries_at_once() * seq_len],
            of_looks: vec![0.0; shape.queries_at_once() * seq_len],
            ..Room::default()
        },
        |room, (index, ((of_queries, of_keys), of_values))| {
            let part = Part::of(shape, rows, index);
            let columns = index % kv_heads * shared * head_width;
            let [mixed, of_mixed] = all_mixed
                .map(|mixed| mixed.block(part.rows(seq_len), columns..columns + shared * head_width));
            let log_sums = &log_sums[index * shared * seq_len..][..shared * seq_len];
            backward_part(shape, &part, room, [mixed, of_mixed], log_sums, [of_queries, of_keys, of_values]);
        },
    );
}

/// What one thread works on: a sequence, and a head of keys and values with all queries that it serves.
struct Part<'a> {
    sequence: usize,
    queries: Mat<'a>,
    keys: Mat<'a>,
    values: Mat<'a>,
}

/// Where a thread works.
#[derive(Default)]
struct Room {
    /// A block's scores, then how much each query looks at each key, and the gradient of that.
    looks: Vec<f32>,
    of_looks: Vec<f32>,
    /// See [`turned_over`].
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Part<'_> {
    fn of<'a>(shape: &Shape, rows: &'a [f32], index: usize) -> Part<'a> {
        let Shape { seq_len, heads, kv_heads, head_width } = *shape;
        let (sequence, served) = (index / kv_heads, index % kv_heads);
        let width = shape.row_width();
        let of_sequence = Mat::new(&rows[sequence * seq_len * width..][..seq_len * width], [seq_len, width]);
        let columns = |head: usize, count: usize| {
            of_sequence.block(0..seq_len, head * head_width..(head + count) * head_width)
        };
        let shared = shape.query_heads_for_each();
        Part {
            sequence,
            queries: columns(served * shared, shared),
            keys: columns(heads + served, 1),
            values: columns(heads + kv_heads + served, 1),
        }
    }

    /// The rows of the sequence among all.
    fn rows(&self, seq_len: usize) -> std::ops::Range<usize> {
        self.sequence * seq_len..(self.sequence + 1) * seq_len
    }
}

fn forward_part(shape: &Shape, part: &Part, room: &mut Room, mut mixed: MatMut, log_sums: &mut [f32]) {
    let width = shape.head_width;
    let keys = turned_over(shape, part.keys, &mut room.keys);
    for head in 0..shape.query_heads_for_each() {
        let columns = head * width..(head + 1) * width;
        for (first, end) in shape.blocks() {
            let queries = part.queries.block(first..end, columns.clone());
            let scores = &mut room.looks[..(end - first) * end];
            let shape_of_scores = [end - first, end];
            let keys = keys.block(0..width, 0..end);
            matmul(Write::Over, &mut MatMut::new(scores, shape_of_scores), queries, keys, Threads::One);
            softmax_rows(scores, end, first, &mut log_sums[head * shape.seq_len + first..][..end - first]);
            let values = part.values.block(0..end, 0..width);
            let mut mixed = mixed.lend().block(first..end, columns.clone());
            matmul(Write::Over, &mut mixed, Mat::new(scores, shape_of_scores), values, Threads::One);
        }
    }
}

fn backward_part(
    shape: &Shape,
    part: &Part,
    room: &mut Room,
    [mixed, of_mixed]: [Mat; 2],
    log_sums: &[f32],
    [mut of_queries, mut of_keys, mut of_values]: [MatMut; 3],
) {
    let width = shape.head_width;
    let keys_turned = turned_over(shape, part.keys, &mut room.keys);
    let values_turned = turned_over(shape, part.values, &mut room.values);
    // The last block sees all keys, so that it can write where nothing stands yet.
    let mut write = Write::Over;
    for head in 0..shape.query_heads_for_each() {
        let columns = head * width..(head + 1) * width;
        for (first, end) in shape.blocks().rev() {
            let shape_of_looks = [end - first, end];
            let [mixed, of_mixed] = [mixed, of_mixed].map(|mixed| mixed.block(first..end, columns.clone()));
            let queries = part.queries.block(first..end, columns.clone());
            let [keys_turned, values_turned] =
                [keys_turned, values_turned].map(|turned| turned.block(0..width, 0..end));
            let looks = &mut room.looks[..(end - first) * end];
            let of_looks = &mut room.of_looks[..(end - first) * end];
            let one = Threads::One;

            matmul(Write::Over, &mut MatMut::new(looks, shape_of_looks), queries, keys_turned, one);
            again_rows(looks, end, first, &log_sums[head * shape.seq_len + first..][..end - first]);
            let looks_seen = Mat::new(looks, shape_of_looks);
            let mut of_values = of_values.lend().block(0..end, 0..width);
            matmul(write, &mut of_values, looks_seen.transposed(), of_mixed, one);

            matmul(Write::Over, &mut MatMut::new(of_looks, shape_of_looks), of_mixed, values_turned, one);
            of_score_rows(looks, end, mixed, of_mixed, of_looks);
            let of_scores = Mat::new(of_looks, shape_of_looks);
            let mut of_queries = of_queries.lend().block(first..end, columns.clone());
            matmul(Write::Over, &mut of_queries, of_scores, part.keys.block(0..end, 0..width), one);
            matmul(write, &mut of_keys.lend().block(0..end, 0..width), of_scores.transposed(), queries, one);
            write = Write::Add;
        }
    }
}

widest! {
    /// Scores to softmax, row by row; the query in row `i` sees `first + i + 1` keys of `width`, the others get 0.
    fn softmax_rows(scores: &mut [f32], width: usize, first: usize, log_sums: &mut [f32]) = softmax_rows_body;
}

widest! {
    /// The same softmax from scores and the logarithms that [`softmax_rows`] gave.
    fn again_rows(scores: &mut [f32], width: usize, first: usize, log_sums: &[f32]) = again_rows_body;
}

widest! {
    /// From the gradient of a softmax to that of its scores: `of_look ← look · (of_look − mixed·of_mixed)`, row by row.
    fn of_score_rows(looks: &[f32], width: usize, mixed: Mat, of_mixed: Mat, of_looks: &mut [f32]) = of_score_rows_body;
}

widest! {
    fn turn_over(from: Mat, shape: [usize; 2], into: &mut [f32]) = turn_over_body;
}

/// The transpose of a part's keys or values, `[head_width, seq_len]`. A product would turn them over again for each block, so
/// where there are several, they are written into the buffer turned over.
fn turned_over<'a>(shape: &Shape, from: Mat<'a>, buffer: &'a mut Vec<f32>) -> Mat<'a> {
    let &Shape { seq_len, head_width, .. } = shape;
    if shape.query_heads_for_each() == 1 && shape.queries_at_once() == seq_len {
        return from.transposed();
    }
    buffer.resize(seq_len * head_width, 0.0);
    turn_over(from, [seq_len, head_width], buffer);
    Mat::new(buffer, [head_width, seq_len])
}

#[inline(always)]
fn turn_over_body(from: Mat, [rows, columns]: [usize; 2], into: &mut [f32]) {
    // A cache line of the result at a time.
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
fn again_rows_body(scores: &mut [f32], width: usize, first: usize, log_sums: &[f32]) {
    for (row, (scores, &log_sum)) in scores.chunks_exact_mut(width).zip(log_sums).enumerate() {
        let (seen, unseen) = scores.split_at_mut(first + row + 1);
        for score in seen {
            // A rounding can lift the largest score above the logarithm of the sum. `exp` is for what is not above 0.
            let below = *score - log_sum;
            *score = exp(if below > 0.0 { 0.0 } else { below });
        }
        unseen.fill(0.0);
    }
}

#[inline(always)]
fn of_score_rows_body(looks: &[f32], width: usize, mixed: Mat, of_mixed: Mat, of_looks: &mut [f32]) {
    let rows = looks.chunks_exact(width).zip(of_looks.chunks_exact_mut(width)).enumerate();
    for (row, (looks, of_looks)) in rows {
        let along = dot(mixed.row(row), of_mixed.row(row));
        for (&look, of_look) in looks.iter().zip(of_looks) {
            *of_look = look * (*of_look - along);
        }
    }
}
