//! Attention on a GPU. On CUDA it is `flash.cu` if NVRTC is installed, in bf16 and for heads of 64 and 128. Otherwise
//! it has the form of the CPU's: a block of queries attends to all keys up to its last one.
//!
//! Products are [`matmul::gpu`](crate::layers::matmul::gpu)'s, and use tensor cores like others; between them runs one
//! kernel over a block's scores. At most [`SCORES`] scores are in memory, or those of [`QUERIES`] queries of one
//! sequence if that is more.
//!
//! The query heads of one key head are rows of the same matrix, query by query. So one product sums the gradients of
//! keys and values over all of them. Blocks run one after the other, in the backward pass from the last, so the order
//! of sums is fixed.
//!
//! Bytes per score, `F` being 4 or 2: forward writes 4, reads 4 up to three times (twice from the cache, if a row
//! fits), writes and reads `F`; backward writes and reads 8, writes `2F`, and reads `3F`.

use super::{Lengths, Shape, block_size};
use crate::gpu::{
    Array, Batch, Gpu, Precision, Result, View,
    launch::{UNITS, area, cube_max, cube_sum, exp_of, grid, grid_of_units, lanes, line, ln, same},
};
use cubecl::{ir::ElemType, prelude::*};
use std::ops::Range;

/// Number of units for a row of scores.
const ROW_UNITS: usize = 128;

/// Position of a block in packed rows: rows `first..first + rows` of each of some sequences, and a range of heads.
#[derive(Clone, Copy)]
struct Place {
    /// First row in the first sequence.
    first: usize,
    rows: usize,
    /// First column of the first head.
    column: usize,
    row_width: usize,
    /// Number of heads of a row that are rows of one matrix.
    group: usize,
}

/// Copies `dense[sequence, kv head, row, head of group, ·] ← rows[sequence, row, kv head, head of group, ·]`, or the
/// reverse.
#[cube(launch)]
fn copy_heads<S: Float, F: Float, N: Size>(
    from: &[Vector<S, N>],
    to: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    group: usize,
    block: usize,
    kv_heads: usize,
    seq_len: usize,
    first: usize,
    column: usize,
    row_width: usize,
    #[comptime] reverse: bool,
    #[define(S)] _from: ElemType,
    #[define(F)] _to: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let place = place(at, width, group, block, kv_heads, seq_len, first, column, row_width);
        if comptime!(reverse) {
            to[place] = Vector::cast_from(from[at]);
        } else {
            to[at] = Vector::cast_from(from[place]);
        }
    }
}

/// Returns the index in packed rows of vector `at` of a dense block.
#[cube]
fn place(
    at: usize,
    width: usize,
    group: usize,
    block: usize,
    kv_heads: usize,
    seq_len: usize,
    first: usize,
    column: usize,
    row_width: usize,
) -> usize {
    let head = at / width;
    let query = head / group;
    let matrix = query / block;
    let row = first + matrix / kv_heads * seq_len + query % block;
    row * row_width + column + (matrix % kv_heads * group + head % group) * width + at % width
}

/// Computes the softmax of a row of scores over the keys that its query attends to, and its log-sum-exp. A cube
/// processes a row.
#[cube(launch)]
fn softmax<F: Float>(
    scores: &[f32],
    probs: &mut [F],
    log_sums: &mut [f32],
    rows: usize,
    keys: usize,
    group: usize,
    block: usize,
    first: usize,
    first_matrix: usize,
    seq_len: usize,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let unit = UNIT_POS as usize;
        let query = first + row / group % block;
        let seen = query + 1usize;
        let begin = row * keys;
        let mut largest = f32::new(f32::MIN);
        let mut at = unit;
        while at < seen {
            largest = max(largest, scores[begin + at]);
            at += units;
        }
        let top = cube_max(largest, units);
        let mut sum = 0.0f32;
        let mut at = unit;
        while at < seen {
            sum += exp_of(scores[begin + at] - top);
            at += units;
        }
        let sum = cube_sum(sum, units);
        let share = 1.0f32 / sum;
        let mut at = unit;
        while at < keys {
            let mut prob = 0.0f32;
            if at < seen {
                prob = exp_of(scores[begin + at] - top) * share;
            }
            probs[begin + at] = F::cast_from(prob);
            at += units;
        }
        if unit == 0usize {
            let matrix = first_matrix + row / group / block;
            log_sums[(matrix * group + row % group) * seq_len + query] = top + ln(sum);
        }
    }
}

/// Recomputes the probabilities from scores and log-sum-exps, and computes the gradient of the scores, `prob ·
/// (grad_prob − out·grad_out)`.
#[cube(launch)]
fn softmax_backward<F: Float>(
    scores: &[f32],
    grad_probs: &[f32],
    log_sums: &[f32],
    out: &[F],
    grad_out: &[F],
    probs: &mut [F],
    grad_scores: &mut [F],
    rows: usize,
    keys: usize,
    width: usize,
    group: usize,
    block: usize,
    first: usize,
    first_matrix: usize,
    seq_len: usize,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let unit = UNIT_POS as usize;
        let query = first + row / group % block;
        let seen = query + 1usize;
        let begin = row * keys;
        let mut mean = 0.0f32;
        let mut at = unit;
        while at < width {
            mean += f32::cast_from(out[row * width + at]) * f32::cast_from(grad_out[row * width + at]);
            at += units;
        }
        let mean = cube_sum(mean, units);
        let matrix = first_matrix + row / group / block;
        let log_sum = log_sums[(matrix * group + row % group) * seq_len + query];
        let mut at = unit;
        while at < keys {
            let mut prob = 0.0f32;
            let mut grad_score = 0.0f32;
            if at < seen {
                prob = exp_of(scores[begin + at] - log_sum);
                grad_score = prob * (grad_probs[begin + at] - mean);
            }
            probs[begin + at] = F::cast_from(prob);
            grad_scores[begin + at] = F::cast_from(grad_score);
            at += units;
        }
    }
}

impl Gpu {
    /// Returns the same GPU with portable kernels and this target number of scores of an attention block. Fewer may
    /// stay in the cache; more need fewer launches.
    pub fn with_scores(mut self, scores: usize) -> Gpu {
        self.scores = scores;
        #[cfg(feature = "cuda")]
        {
            self.nvidia = None;
        }
        self
    }

    /// Writes `out` `[N, H·C]` for `rows` `[N, W]`, and `log_sums` f32 `[B, H, T]`, which [`Gpu::attention_backward`]
    /// needs.
    ///
    /// # Errors
    /// If lengths or precisions differ from these, or the device has too little memory.
    ///
    /// # Panics
    /// If query heads cannot share key heads evenly.
    pub fn attention(&self, shape: &Shape, rows: &Array, out: &Array, log_sums: &Array) -> Result {
        let all = check(shape, rows, out, log_sums)?;
        if all == 0 {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let Some(nvidia) = &self.nvidia
            && nvidia.attention(&self.client, shape, rows, out, log_sums)?
        {
            return Ok(());
        }
        let [sequences, queries] = block_size(self.scores, shape, all);
        let lengths = Lengths::new(shape, [sequences, queries]);
        let kept = |len| self.temporary(len, rows.precision());
        let (keys, values) = (kept(lengths.keys)?, kept(lengths.keys)?);
        let (block_queries, block_out) = (kept(lengths.queries)?, kept(lengths.queries)?);
        area(lengths.scores, 1)?;
        let (scores, probs) = (self.temporary(lengths.scores, Precision::F32)?, kept(lengths.scores)?);

        for first in (0..all).step_by(sequences) {
            let call = Call::new(self, shape, first..(first + sequences).min(all));
            call.gather(call.keys(), rows, &keys);
            call.gather(call.values(), rows, &values);
            for block in call.blocks(queries) {
                call.gather(call.queries(&block, shape.row_width()), rows, &block_queries);
                let (by_query, by_key) =
                    (call.of_queries(&block, &block_queries), call.of_keys(block.end, &keys));
                self.products(block.count, &scores, by_query, by_key.transposed())?;
                call.softmax(&block, &scores, &probs, log_sums)?;
                let (probs, values) = (call.of_scores(&block, &probs), call.of_keys(block.end, &values));
                self.products(block.count, &block_out, probs, values)?;
                call.scatter(call.queries(&block, shape.heads * shape.head_width), &block_out, out);
            }
        }
        Ok(())
    }

    /// Writes `grad_rows` `[N, W]`, the gradient of `Σ out·grad_out`. `out` and `log_sums` are the outputs of
    /// [`Gpu::attention`].
    ///
    /// # Errors
    /// Same as [`Gpu::attention`].
    ///
    /// # Panics
    /// Same as [`Gpu::attention`].
    pub fn attention_backward(
        &self,
        shape: &Shape,
        rows: &Array,
        out: &Array,
        log_sums: &Array,
        grad_out: &Array,
        grad_rows: &Array,
    ) -> Result {
        let all = check(shape, rows, out, log_sums)?;
        check(shape, grad_rows, grad_out, log_sums)?;
        same(rows, grad_rows)?;
        if all == 0 {
            return Ok(());
        }
        #[cfg(feature = "cuda")]
        if let Some(nvidia) = &self.nvidia
            && nvidia.attention_backward(&self.client, shape, [rows, out, log_sums, grad_out], grad_rows)?
        {
            return Ok(());
        }
        let [sequences, queries] = block_size(self.scores, shape, all);
        let scratch = Scratch::new(self, &Lengths::new(shape, [sequences, queries]), rows.precision())?;
        let out_width = shape.heads * shape.head_width;
        for first in (0..all).step_by(sequences) {
            let call = Call::new(self, shape, first..(first + sequences).min(all));
            call.gather(call.keys(), rows, &scratch.keys);
            call.gather(call.values(), rows, &scratch.values);
            for block in call.blocks(queries).rev() {
                call.gather(call.queries(&block, shape.row_width()), rows, &scratch.queries);
                call.gather(call.queries(&block, out_width), out, &scratch.out);
                call.gather(call.queries(&block, out_width), grad_out, &scratch.grad_out);
                call.block_backward(&block, &scratch, log_sums)?;
                call.scatter(call.queries(&block, shape.row_width()), &scratch.grad_queries, grad_rows);
            }
            call.scatter(call.keys(), &scratch.grad_keys, grad_rows);
            call.scatter(call.values(), &scratch.grad_values, grad_rows);
        }
        Ok(())
    }
}

/// Checks the arrays' lengths and precisions; returns `B`.
fn check(shape: &Shape, rows: &Array, out: &Array, log_sums: &Array) -> Result<usize> {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    assert!(seq_len * heads * kv_heads * head_width > 0, "rows have heads, and heads have values");
    assert!(heads.is_multiple_of(kv_heads), "query heads share key heads");
    let sequences = rows.len() / (seq_len * shape.row_width());
    let count = sequences * seq_len;
    rows.expect_len(area(count, shape.row_width())?)?;
    out.expect_len(area(count, heads * head_width)?)?;
    log_sums.expect_len(count * heads)?;
    log_sums.expect_precision(Precision::F32)?;
    same(rows, out)?;
    Ok(sequences)
}

/// Arrays of a backward pass.
struct Scratch {
    keys: Array,
    values: Array,
    /// Sums over the blocks so far, and one block's part of them, in f32.
    grad_keys: Array,
    grad_values: Array,
    part: Array,
    queries: Array,
    out: Array,
    grad_out: Array,
    grad_queries: Array,
    /// Scores and their gradients, in f32.
    scores: Array,
    grad_probs: Array,
    probs: Array,
    grad_scores: Array,
}

impl Scratch {
    fn new(gpu: &Gpu, lengths: &Lengths, precision: Precision) -> Result<Scratch> {
        let kept = |len| gpu.temporary(len, precision);
        let wide = |len| gpu.temporary(len, Precision::F32);
        let Lengths { queries, keys, scores } = *lengths;
        area(scores, 1)?;
        Ok(Scratch {
            keys: kept(keys)?,
            values: kept(keys)?,
            grad_keys: wide(keys)?,
            grad_values: wide(keys)?,
            part: wide(keys)?,
            queries: kept(queries)?,
            out: kept(queries)?,
            grad_out: kept(queries)?,
            grad_queries: kept(queries)?,
            scores: wide(scores)?,
            grad_probs: wide(scores)?,
            probs: kept(scores)?,
            grad_scores: kept(scores)?,
        })
    }
}

/// State that the blocks of some sequences share.
struct Call<'a> {
    gpu: &'a Gpu,
    shape: Shape,
    sequences: Range<usize>,
}

/// A block of queries of these sequences.
struct Block {
    first: usize,
    /// One after the last query, which is the number of keys that the block attends to.
    end: usize,
    /// Number of matrices: key heads of all sequences.
    count: usize,
    /// Number of rows of a matrix: queries of all heads of a group.
    rows: usize,
}

impl Call<'_> {
    fn new<'a>(gpu: &'a Gpu, shape: &Shape, sequences: Range<usize>) -> Call<'a> {
        Call { gpu, shape: *shape, sequences }
    }

    fn blocks(&self, queries: usize) -> impl DoubleEndedIterator<Item = Block> + use<> {
        let (seq_len, group) = (self.shape.seq_len, self.shape.group());
        let count = self.sequences.len() * self.shape.kv_heads;
        (0..seq_len.div_ceil(queries)).map(move |block| {
            let (first, end) = (block * queries, ((block + 1) * queries).min(seq_len));
            Block { first, end, count, rows: (end - first) * group }
        })
    }

    fn softmax(&self, block: &Block, scores: &Array, probs: &Array, log_sums: &Array) -> Result {
        softmax::launch(
            &self.gpu.client,
            grid(block.count * block.rows),
            line(ROW_UNITS),
            scores.f32s(1)?,
            probs.vectors(1),
            log_sums.f32s(1)?,
            block.count * block.rows,
            block.end,
            self.shape.group(),
            block.end - block.first,
            block.first,
            self.sequences.start * self.shape.kv_heads,
            self.shape.seq_len,
            ROW_UNITS,
            probs.element(),
        );
        Ok(())
    }

    fn softmax_backward(&self, block: &Block, scratch: &Scratch, log_sums: &Array) -> Result {
        softmax_backward::launch(
            &self.gpu.client,
            grid(block.count * block.rows),
            line(ROW_UNITS),
            scratch.scores.f32s(1)?,
            scratch.grad_probs.f32s(1)?,
            log_sums.f32s(1)?,
            scratch.out.vectors(1),
            scratch.grad_out.vectors(1),
            scratch.probs.vectors(1),
            scratch.grad_scores.vectors(1),
            block.count * block.rows,
            block.end,
            self.shape.head_width,
            self.shape.group(),
            block.end - block.first,
            block.first,
            self.sequences.start * self.shape.kv_heads,
            self.shape.seq_len,
            ROW_UNITS,
            scratch.probs.element(),
        );
        Ok(())
    }

    /// Computes the gradients of a block's queries, and its part of those of keys and values, from its queries, `out`
    /// and `grad_out`. The last block uses all keys, so it is computed first and overwrites; the others add.
    fn block_backward(&self, block: &Block, scratch: &Scratch, log_sums: &Array) -> Result {
        let Shape { seq_len, head_width, .. } = self.shape;
        let (gpu, count, end) = (self.gpu, block.count, block.end);
        let (queries, grad_out) =
            (self.of_queries(block, &scratch.queries), self.of_queries(block, &scratch.grad_out));
        let (keys, values) = (self.of_keys(end, &scratch.keys), self.of_keys(end, &scratch.values));
        gpu.products(count, &scratch.scores, queries, keys.transposed())?;
        gpu.products(count, &scratch.grad_probs, grad_out, values.transposed())?;
        self.softmax_backward(block, scratch, log_sums)?;
        let probs = self.of_scores(block, &scratch.probs);
        let grad_scores = self.of_scores(block, &scratch.grad_scores);
        for (sums, left, right) in
            [(&scratch.grad_values, probs, grad_out), (&scratch.grad_keys, grad_scores, queries)]
        {
            let is_last = end == seq_len;
            let part = if is_last { sums } else { &scratch.part };
            gpu.products(count, part, left.transposed(), right)?;
            if !is_last {
                let len = end * head_width;
                gpu.add_blocks(sums, 0, part, count * len, [len, seq_len * head_width])?;
            }
        }
        gpu.products(count, &scratch.grad_queries, grad_scores, keys)
    }

    /// Returns the position of a block's queries, or of their outputs, at the start of a row.
    fn queries(&self, block: &Block, row_width: usize) -> Place {
        let first = self.sequences.start * self.shape.seq_len + block.first;
        Place { first, rows: block.end - block.first, column: 0, row_width, group: self.shape.group() }
    }

    fn keys(&self) -> Place {
        self.heads(self.shape.heads)
    }

    fn values(&self) -> Place {
        self.heads(self.shape.heads + self.shape.kv_heads)
    }

    /// Returns the position of all keys or values, whose first head is `head`.
    fn heads(&self, head: usize) -> Place {
        let Shape { seq_len, head_width, .. } = self.shape;
        Place {
            first: self.sequences.start * seq_len,
            rows: seq_len,
            column: head * head_width,
            row_width: self.shape.row_width(),
            group: 1,
        }
    }

    /// Returns matrices with a row per query of a block.
    fn of_queries<'b>(&self, block: &Block, dense: &'b Array) -> Batch<'b> {
        let width = self.shape.head_width;
        Batch { view: View::new(dense, [block.rows, width]), between: block.rows * width }
    }

    /// Returns matrices with a row per key or value, for the first `keys`.
    fn of_keys<'b>(&self, keys: usize, dense: &'b Array) -> Batch<'b> {
        let Shape { seq_len, head_width, .. } = self.shape;
        Batch { view: View::new(dense, [keys, head_width]), between: seq_len * head_width }
    }

    /// Returns matrices with a row per query and a column per key.
    fn of_scores<'b>(&self, block: &Block, dense: &'b Array) -> Batch<'b> {
        Batch { view: View::new(dense, [block.rows, block.end]), between: block.rows * block.end }
    }

    /// Copies packed rows to dense matrices.
    fn gather(&self, place: Place, rows: &Array, dense: &Array) {
        self.copy(place, rows, dense, false);
    }

    /// Copies dense matrices to packed rows.
    fn scatter(&self, place: Place, dense: &Array, rows: &Array) {
        self.copy(place, dense, rows, true);
    }

    fn copy(&self, place: Place, from: &Array, to: &Array, reverse: bool) {
        let Shape { seq_len, kv_heads, head_width, .. } = self.shape;
        let Place { first, rows, column, row_width, group } = place;
        let lanes = lanes(&[head_width]);
        let count = self.sequences.len() * kv_heads * rows * group * head_width / lanes;
        copy_heads::launch(
            &self.gpu.client,
            grid_of_units(count),
            line(UNITS),
            lanes,
            from.vectors(lanes),
            to.vectors(lanes),
            count,
            head_width / lanes,
            group,
            rows,
            kv_heads,
            seq_len,
            first,
            column / lanes,
            row_width / lanes,
            reverse,
            from.element(),
            to.element(),
        );
    }
}
