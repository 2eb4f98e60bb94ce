//! Causal attention with grouped heads, and its gradients, without ever holding all scores.
//!
//! The reference is [`crate::attention`], and the form is the CPU's: a block of queries meets all keys up to its last one,
//! half of the full square is never computed, and what is kept for the way back is the logarithm of each query's sum of
//! exponentials (Dao et al., "FlashAttention", 2022, section 3.1, with blocks of queries only). The products are
//! [`super::matmul`]'s, so that they go to tensor cores where the others do; between them lies one kernel over a block's
//! scores. At most [`SCORES`] of them are held, or those of [`QUERIES`] queries of one sequence if that is more.
//!
//! The query heads that share a head of keys are rows of the same matrix, query by query: gradients of keys and values are
//! sums over all of them in one product. Blocks follow one another, the last first on the way back, and each is added to
//! those before it: no sum depends on which cube came first.
//!
//! Bytes a score, `F` being 4 or 2 of them: forward writes 4, reads 4 up to three times (twice from the cache, if a row
//! fits it), writes `F`, reads `F`; backward writes and reads 8, writes `2F`, and reads `3F`.

use super::{
    Array, Precision,
    launch::{UNITS, a_unit_each, area, cube_max, cube_sum, exp_of, grid, lanes, line, ln, same},
    matmul::{Each, View},
};
use crate::{
    attention::Shape,
    gpu::{Device, GpuError},
};
use cubecl::{ir::ElemType, prelude::*};
use std::ops::Range;

/// Scores of a block that are aimed at, if nothing else was said ([`Device::with_scores`]): 128 MiB in f32.
pub const SCORES: usize = 1 << 25;
/// Queries of a block, at least and at most, if the sequence has as many.
pub const QUERIES: [usize; 2] = [128, 512];
/// Matrices of a product at most: a grid has 65,535 cubes along a side at the least.
const MATRICES: usize = 1 << 14;
/// Units for a row of scores.
const ROW_UNITS: usize = 128;

/// How many sequences are worked on at a time, and how many queries of each, for so many scores.
fn at_once(scores: usize, shape: &Shape, sequences: usize) -> [usize; 2] {
    let least = QUERIES[0].min(shape.seq_len);
    let most = sequences.min(MATRICES / shape.kv_heads).max(1);
    let sequences = (scores / (shape.heads * least * shape.seq_len)).clamp(1, most);
    let queries = scores / (sequences * shape.heads * shape.seq_len) / QUERIES[0] * QUERIES[0];
    [sequences, queries.clamp(QUERIES[0], QUERIES[1]).min(shape.seq_len)]
}

/// Bytes that [`Device::attention_backward`] needs beside its arguments, for so many sequences, with [`SCORES`]. [`Device::attention`]
/// needs less.
pub fn room(shape: &Shape, sequences: usize, precision: Precision) -> usize {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    let [sequences, queries] = at_once(SCORES, shape, sequences);
    let scores = sequences * heads * queries * seq_len;
    let of_queries = sequences * heads * queries * head_width;
    let of_keys = sequences * kv_heads * seq_len * head_width;
    (2 * scores + 4 * of_queries + 2 * of_keys) * precision.bytes() + (2 * scores + 3 * of_keys) * 4
}

/// Where a block lies in packed rows: the rows `first..first + rows` of each of some sequences, and a range of heads.
#[derive(Clone, Copy)]
struct Place {
    /// Row of the first sequence's first row.
    first: usize,
    rows: usize,
    /// Where the first head begins in a row.
    column: usize,
    row_width: usize,
    /// Heads of a row that are rows of one matrix.
    shared: usize,
}

/// `dense[sequence, served, row, sharer, ·] ← rows[sequence, row, served, sharer, ·]`.
#[cube(launch)]
fn take<F: Float, N: Size>(
    rows: &[Vector<F, N>],
    dense: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    shared: usize,
    block: usize,
    kv_heads: usize,
    seq_len: usize,
    first: usize,
    column: usize,
    row_width: usize,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        dense[at] = rows[place(at, width, shared, block, kv_heads, seq_len, first, column, row_width)];
    }
}

/// The other way.
#[cube(launch)]
fn put<S: Float, F: Float, N: Size>(
    dense: &[Vector<S, N>],
    rows: &mut [Vector<F, N>],
    count: usize,
    width: usize,
    shared: usize,
    block: usize,
    kv_heads: usize,
    seq_len: usize,
    first: usize,
    column: usize,
    row_width: usize,
    #[define(S)] _from: ElemType,
    #[define(F)] _kept: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let to = place(at, width, shared, block, kv_heads, seq_len, first, column, row_width);
        rows[to] = Vector::cast_from(dense[at]);
    }
}

/// Where in the packed rows the vector at `at` of a dense block belongs.
#[cube]
fn place(
    at: usize,
    width: usize,
    shared: usize,
    block: usize,
    kv_heads: usize,
    seq_len: usize,
    first: usize,
    column: usize,
    row_width: usize,
) -> usize {
    let head = at / width;
    let query = head / shared;
    let group = query / block;
    let row = first + group / kv_heads * seq_len + query % block;
    row * row_width + column + (group % kv_heads * shared + head % shared) * width + at % width
}

/// Softmax of a row of scores over the keys that its query sees, and the logarithm of its sum. A cube has a row.
#[cube(launch)]
fn softmax<F: Float>(
    scores: &[f32],
    looks: &mut [F],
    log_sums: &mut [f32],
    rows: usize,
    keys: usize,
    shared: usize,
    block: usize,
    first: usize,
    first_group: usize,
    seq_len: usize,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let unit = UNIT_POS as usize;
        let query = first + row / shared % block;
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
            let mut look = 0.0f32;
            if at < seen {
                look = exp_of(scores[begin + at] - top) * share;
            }
            looks[begin + at] = F::cast_from(look);
            at += units;
        }
        if unit == 0usize {
            let group = first_group + row / shared / block;
            log_sums[(group * shared + row % shared) * seq_len + query] = top + ln(sum);
        }
    }
}

/// The same softmax from scores and logarithms, and the gradient of the scores, `look · (of_look − Σ mixed·of_mixed)`.
#[cube(launch)]
fn of_softmax<F: Float>(
    scores: &[f32],
    of_looks: &[f32],
    log_sums: &[f32],
    mixed: &[F],
    of_mixed: &[F],
    looks: &mut [F],
    of_scores: &mut [F],
    rows: usize,
    keys: usize,
    width: usize,
    shared: usize,
    block: usize,
    first: usize,
    first_group: usize,
    seq_len: usize,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let unit = UNIT_POS as usize;
        let query = first + row / shared % block;
        let seen = query + 1usize;
        let begin = row * keys;
        let mut along = 0.0f32;
        let mut at = unit;
        while at < width {
            along += f32::cast_from(mixed[row * width + at]) * f32::cast_from(of_mixed[row * width + at]);
            at += units;
        }
        let along = cube_sum(along, units);
        let group = first_group + row / shared / block;
        let log_sum = log_sums[(group * shared + row % shared) * seq_len + query];
        let mut at = unit;
        while at < keys {
            let mut look = 0.0f32;
            let mut of_score = 0.0f32;
            if at < seen {
                look = exp_of(scores[begin + at] - log_sum);
                of_score = look * (of_looks[begin + at] - along);
            }
            looks[begin + at] = F::cast_from(look);
            of_scores[begin + at] = F::cast_from(of_score);
            at += units;
        }
    }
}

/// What the blocks of one call have in common.
struct Call<'a> {
    device: &'a Device,
    shape: Shape,
    /// Query heads for each head of keys.
    shared: usize,
    sequences: Range<usize>,
}

/// A block of queries of some sequences.
struct Block {
    first: usize,
    /// One after the last, which is how many keys are met.
    end: usize,
    /// Matrices: heads of keys of all the sequences.
    count: usize,
    /// Rows of each: queries of all heads that share.
    rows: usize,
}

impl Device {
    /// The same device, on which attention aims at so many scores of a block. Which number is fastest is the card's to say: fewer of
    /// them may stay in its cache, more are fewer launches.
    pub fn with_scores(mut self, scores: usize) -> Device {
        self.scores = scores;
        self
    }

    /// For each query the softmax of its scores with the keys up to its own position, times the values. Queries carry the
    /// scale.
    ///
    /// `rows` as [`Shape`] tells; writes `mixed` `[N, heads · head_width]` and `log_sums` f32 `[sequences, heads, seq_len]`,
    /// which [`Device::attention_backward`] needs.
    ///
    /// # Panics
    /// If query heads cannot share key heads evenly.
    pub fn attention(
        &self,
        shape: &Shape,
        rows: &Array,
        mixed: &Array,
        log_sums: &Array,
    ) -> Result<(), GpuError> {
        let all = check(shape, rows, mixed, log_sums)?;
        let precision = rows.precision();
        let [sequences, queries] = at_once(self.scores, shape, all);
        let (heads, kv_heads, width) = (shape.heads, shape.kv_heads, shape.head_width);
        let [of_queries, of_keys] =
            [sequences * heads * queries * width, sequences * kv_heads * shape.seq_len * width];
        let scores_len = area(sequences * heads * queries, shape.seq_len)?;
        if all == 0 {
            return Ok(());
        }
        let [keys, values] = [self.passing(of_keys, precision)?, self.passing(of_keys, precision)?];
        let [asked, mix] = [self.passing(of_queries, precision)?, self.passing(of_queries, precision)?];
        let scores = self.passing(scores_len, Precision::F32)?;
        let looks = self.passing(scores_len, precision)?;

        for first in (0..all).step_by(sequences) {
            let call = Call::of(self, shape, first..(first + sequences).min(all));
            call.take(call.keys(), rows, &keys);
            call.take(call.values(), rows, &values);
            for block in call.blocks(queries) {
                let Block { end, count, .. } = block;
                call.take(call.queries(&block, shape.row_width()), rows, &asked);
                self.products(count, &scores, call.asked(&block, &asked), call.met(end, &keys, true))?;
                softmax::launch(
                    &self.client,
                    grid(count * block.rows),
                    line(ROW_UNITS),
                    scores.f32s(1)?,
                    looks.vectors(1),
                    log_sums.f32s(1)?,
                    count * block.rows,
                    end,
                    call.shared,
                    block.end - block.first,
                    block.first,
                    call.sequences.start * kv_heads,
                    shape.seq_len,
                    ROW_UNITS,
                    looks.element(),
                );
                self.products(
                    count,
                    &mix,
                    call.scored(&block, &looks, false),
                    call.met(end, &values, false),
                )?;
                call.put(call.queries(&block, heads * width), &mix, mixed);
            }
        }
        Ok(())
    }

    /// Writes over `of_rows` the gradients of `Σ mixed·of_mixed` with respect to `rows`. `mixed` and `log_sums` are what
    /// [`Device::attention`] wrote.
    ///
    /// # Panics
    /// As [`Device::attention`].
    pub fn attention_backward(
        &self,
        shape: &Shape,
        rows: &Array,
        mixed: &Array,
        log_sums: &Array,
        of_mixed: &Array,
        of_rows: &Array,
    ) -> Result<(), GpuError> {
        let all = check(shape, rows, mixed, log_sums)?;
        check(shape, of_rows, of_mixed, log_sums)?;
        same(rows, of_rows)?;
        let precision = rows.precision();
        let [sequences, queries] = at_once(self.scores, shape, all);
        let (heads, kv_heads, width) = (shape.heads, shape.kv_heads, shape.head_width);
        let [of_queries, of_keys] =
            [sequences * heads * queries * width, sequences * kv_heads * shape.seq_len * width];
        let scores_len = area(sequences * heads * queries, shape.seq_len)?;
        if all == 0 {
            return Ok(());
        }
        let [keys, values] = [self.passing(of_keys, precision)?, self.passing(of_keys, precision)?];
        let of_key_sums = self.passing(of_keys, Precision::F32)?;
        let of_value_sums = self.passing(of_keys, Precision::F32)?;
        let part = self.passing(of_keys, Precision::F32)?;
        let [asked, mix] = [self.passing(of_queries, precision)?, self.passing(of_queries, precision)?];
        let [of_mix, of_asked] = [self.passing(of_queries, precision)?, self.passing(of_queries, precision)?];
        let [scores, of_looks] =
            [self.passing(scores_len, Precision::F32)?, self.passing(scores_len, Precision::F32)?];
        let [looks, of_scores] = [self.passing(scores_len, precision)?, self.passing(scores_len, precision)?];

        for first in (0..all).step_by(sequences) {
            let call = Call::of(self, shape, first..(first + sequences).min(all));
            call.take(call.keys(), rows, &keys);
            call.take(call.values(), rows, &values);
            // The last block meets all keys, so that it can write where nothing stands yet.
            for block in call.blocks(queries).rev() {
                let Block { end, count, .. } = block;
                call.take(call.queries(&block, shape.row_width()), rows, &asked);
                call.take(call.queries(&block, heads * width), mixed, &mix);
                call.take(call.queries(&block, heads * width), of_mixed, &of_mix);
                self.products(count, &scores, call.asked(&block, &asked), call.met(end, &keys, true))?;
                self.products(count, &of_looks, call.asked(&block, &of_mix), call.met(end, &values, true))?;
                of_softmax::launch(
                    &self.client,
                    grid(count * block.rows),
                    line(ROW_UNITS),
                    scores.f32s(1)?,
                    of_looks.f32s(1)?,
                    log_sums.f32s(1)?,
                    mix.vectors(1),
                    of_mix.vectors(1),
                    looks.vectors(1),
                    of_scores.vectors(1),
                    count * block.rows,
                    end,
                    width,
                    call.shared,
                    block.end - block.first,
                    block.first,
                    call.sequences.start * kv_heads,
                    shape.seq_len,
                    ROW_UNITS,
                    looks.element(),
                );
                for (sums, scored, other) in
                    [(&of_value_sums, &looks, &of_mix), (&of_key_sums, &of_scores, &asked)]
                {
                    let all_keys = end == shape.seq_len;
                    let out = if all_keys { sums } else { &part };
                    self.products(count, out, call.scored(&block, scored, true), call.asked(&block, other))?;
                    if !all_keys {
                        let block = end * width;
                        self.add_blocks(sums, 0, &part, count * block, [block, shape.seq_len * width])?;
                    }
                }
                let met = call.met(end, &keys, false);
                self.products(count, &of_asked, call.scored(&block, &of_scores, false), met)?;
                call.put(call.queries(&block, shape.row_width()), &of_asked, of_rows);
            }
            call.put(call.keys(), &of_key_sums, of_rows);
            call.put(call.values(), &of_value_sums, of_rows);
        }
        Ok(())
    }
}

/// How many sequences there are, if the arrays fit one another.
fn check(shape: &Shape, rows: &Array, mixed: &Array, log_sums: &Array) -> Result<usize, GpuError> {
    let Shape { seq_len, heads, kv_heads, head_width } = *shape;
    assert!(seq_len * heads * kv_heads * head_width > 0, "rows have heads, and heads have values");
    assert!(heads.is_multiple_of(kv_heads), "query heads share key heads");
    let sequences = rows.len() / (seq_len * shape.row_width());
    let count = sequences * seq_len;
    rows.expect_len(area(count, shape.row_width())?)?;
    mixed.expect_len(area(count, heads * head_width)?)?;
    log_sums.expect_len(count * heads)?;
    log_sums.expect_precision(Precision::F32)?;
    same(rows, mixed)?;
    Ok(sequences)
}

impl Call<'_> {
    fn of<'a>(device: &'a Device, shape: &Shape, sequences: Range<usize>) -> Call<'a> {
        Call { device, shape: *shape, shared: shape.heads / shape.kv_heads, sequences }
    }

    fn blocks(&self, queries: usize) -> impl DoubleEndedIterator<Item = Block> + use<> {
        let (seq_len, shared) = (self.shape.seq_len, self.shared);
        let count = self.sequences.len() * self.shape.kv_heads;
        (0..seq_len.div_ceil(queries)).map(move |block| {
            let (first, end) = (block * queries, ((block + 1) * queries).min(seq_len));
            Block { first, end, count, rows: (end - first) * shared }
        })
    }

    /// Queries of a block, or their mixes, which begin a row.
    fn queries(&self, block: &Block, row_width: usize) -> Place {
        let first = self.sequences.start * self.shape.seq_len + block.first;
        Place { first, rows: block.end - block.first, column: 0, row_width, shared: self.shared }
    }

    fn keys(&self) -> Place {
        self.others(self.shape.heads)
    }

    fn values(&self) -> Place {
        self.others(self.shape.heads + self.shape.kv_heads)
    }

    fn others(&self, head: usize) -> Place {
        let Shape { seq_len, head_width, .. } = self.shape;
        let first = self.sequences.start * seq_len;
        Place {
            first,
            rows: seq_len,
            column: head * head_width,
            row_width: self.shape.row_width(),
            shared: 1,
        }
    }

    /// One row for each query of a block.
    fn asked<'b>(&self, block: &Block, dense: &'b Array) -> Each<'b> {
        let width = self.shape.head_width;
        Each { view: View::new(dense, [block.rows, width]), between: block.rows * width }
    }

    /// The first keys or values, one to a row, or one to a column.
    fn met<'b>(&self, keys: usize, dense: &'b Array, transposed: bool) -> Each<'b> {
        let Shape { seq_len, head_width, .. } = self.shape;
        let view = View::new(dense, [keys, head_width]);
        Each { view: View { transposed, ..view }, between: seq_len * head_width }
    }

    /// Something for each query and each key, a query to a row, or to a column.
    fn scored<'b>(&self, block: &Block, dense: &'b Array, transposed: bool) -> Each<'b> {
        let view = View::new(dense, [block.rows, block.end]);
        Each { view: View { transposed, ..view }, between: block.rows * block.end }
    }

    fn take(&self, place: Place, rows: &Array, dense: &Array) {
        let lanes = self.lanes();
        let count = self.count(&place) / lanes;
        take::launch(
            &self.device.client,
            a_unit_each(count),
            line(UNITS),
            lanes,
            rows.vectors(lanes),
            dense.vectors(lanes),
            count,
            self.shape.head_width / lanes,
            place.shared,
            place.rows,
            self.shape.kv_heads,
            self.shape.seq_len,
            place.first,
            place.column / lanes,
            place.row_width / lanes,
            rows.element(),
        );
    }

    fn put(&self, place: Place, dense: &Array, rows: &Array) {
        let lanes = self.lanes();
        let count = self.count(&place) / lanes;
        put::launch(
            &self.device.client,
            a_unit_each(count),
            line(UNITS),
            lanes,
            dense.vectors(lanes),
            rows.vectors(lanes),
            count,
            self.shape.head_width / lanes,
            place.shared,
            place.rows,
            self.shape.kv_heads,
            self.shape.seq_len,
            place.first,
            place.column / lanes,
            place.row_width / lanes,
            dense.element(),
            rows.element(),
        );
    }

    /// Values of a dense block.
    fn count(&self, place: &Place) -> usize {
        self.sequences.len() * self.shape.kv_heads * place.rows * place.shared * self.shape.head_width
    }

    fn lanes(&self) -> usize {
        lanes(&[self.shape.head_width])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stay_within_what_was_aimed_at() {
        for seq_len in [1, 100, 128, 1000, 2048, 4096, 8192] {
            for (heads, aimed) in
                [(1, SCORES), (12, SCORES), (32, SCORES), (32, SCORES / 8), (32, 4 * SCORES)]
            {
                let shape = Shape { seq_len, heads, kv_heads: 1, head_width: 64 };
                for all in [1, 3, 64, 1000, 100_000] {
                    let [sequences, queries] = at_once(aimed, &shape, all);
                    assert!(sequences >= 1 && sequences <= all && queries >= 1 && queries <= seq_len);
                    let scores = sequences * heads * queries * seq_len;
                    assert!(
                        scores <= aimed || (sequences == 1 && queries <= QUERIES[0]),
                        "{shape:?}: {scores}"
                    );
                    // What the presets for GPUs have stays within it.
                    assert!(scores <= SCORES || aimed != SCORES, "{shape:?}: {scores}");
                    let least = heads * QUERIES[0].min(seq_len) * seq_len;
                    assert!(sequences == all || sequences == MATRICES || (sequences + 1) * least > aimed);
                }
            }
        }
    }
}
