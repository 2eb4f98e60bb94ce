//! Rows of the embedding on a GPU, and their gradients.
//!
//! Atomic additions by many rows of one token would have no fixed order. So the CPU sorts a batch's rows by token
//! ([`Segments`]), and a cube adds up a token's rows in the order of the batch. A frequent token is split into pieces,
//! whose sums are added in order afterwards, so two runs have the same bits.
//!
//! Bytes per value of a row, `F` being 4 or 2: forward reads `F` and writes 4; backward reads 4, and reads and writes
//! 4 per distinct token instead of per row.

use crate::gpu::{
    Array, Gpu, GpuError, Result, VALUES_MAX, argument,
    launch::{area, grid, lanes, line, units_for},
};
use cubecl::{ir::ElemType, prelude::*, server::Handle};

/// Minimum number of rows of a piece, for a token with more rows.
const PIECE_MIN: usize = 32;
/// Maximum number of pieces of a token.
const PIECES_MAX: usize = 256;
/// Number of words of a span: its first row, its number of rows, and the row of the result.
const SPAN: usize = 3;

#[cube(launch)]
fn gather<F: Float, N: Size>(
    embedding: &[Vector<F, N>],
    tokens: &[u32],
    x: &mut [Vector<f32, N>],
    rows: usize,
    width: usize,
    blocks: usize,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    let row = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * units + UNIT_POS as usize;
    if row < rows {
        if column < width {
            x[row * width + column] = Vector::cast_from(embedding[tokens[row] as usize * width + column]);
        }
    }
}

/// Adds up the rows `from` of each span, in the order of `order` or their own. Writes the sum to the span's row of
/// `to`, or adds it.
#[cube(launch)]
fn sum_spans<N: Size>(
    spans: &[u32],
    order: &[u32],
    from: &[Vector<f32, N>],
    to: &mut [Vector<f32, N>],
    count: usize,
    width: usize,
    blocks: usize,
    #[comptime] ordered: bool,
    #[comptime] adds: bool,
    #[comptime] units: usize,
) {
    let span = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * units + UNIT_POS as usize;
    if span < count {
        if column < width {
            let first = spans[SPAN * span] as usize;
            let end = first + spans[SPAN * span + 1usize] as usize;
            let at = spans[SPAN * span + 2usize] as usize * width + column;
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for index in first..end {
                let mut row = index;
                if comptime!(ordered) {
                    row = order[index] as usize;
                }
                sum += from[row * width + column];
            }
            if comptime!(adds) {
                to[at] += sum;
            } else {
                to[at] = sum;
            }
        }
    }
}

/// Tokens on a GPU.
#[derive(Clone)]
pub struct Tokens {
    words: Handle,
    len: usize,
    vocab: usize,
}

impl Tokens {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn vocab(&self) -> usize {
        self.vocab
    }

    pub(crate) fn arg(&self) -> BufferArg {
        argument(&self.words, self.len)
    }
}

/// Rows of a batch sorted by token, on a GPU.
#[derive(Clone)]
pub struct Segments {
    order: Handle,
    len: usize,
    vocab: usize,
    /// Spans of `order`: tokens with few rows, summed into the gradient, and pieces of the others, summed into the
    /// buffer.
    short: Spans,
    pieces: Spans,
    /// Spans of that buffer, summed into the gradient.
    long: Spans,
}

#[derive(Clone)]
struct Spans {
    words: Handle,
    count: usize,
}

/// [`Segments`] on the CPU.
#[derive(Default)]
struct Sorted {
    order: Vec<u32>,
    short: Vec<[u32; SPAN]>,
    pieces: Vec<[u32; SPAN]>,
    long: Vec<[u32; SPAN]>,
}

impl Sorted {
    fn new(tokens: &[u32]) -> Sorted {
        let mut order: Vec<u32> = (0..tokens.len() as u32).collect();
        // The sort is stable: rows of a token keep their order.
        order.sort_by_key(|row| tokens[*row as usize]);
        let mut sorted = Sorted::default();
        let mut first = 0;
        for segment in order.chunk_by(|one, other| tokens[*one as usize] == tokens[*other as usize]) {
            let (token, len) = (tokens[segment[0] as usize], segment.len() as u32);
            let piece = segment.len().div_ceil(PIECES_MAX).max(PIECE_MIN);
            if segment.len() <= piece {
                sorted.short.push([first, len, token]);
            } else {
                let sum = sorted.pieces.len() as u32;
                sorted.long.push([sum, segment.len().div_ceil(piece) as u32, token]);
                for (rows, index) in segment.chunks(piece).zip(0..) {
                    sorted.pieces.push([first + index * piece as u32, rows.len() as u32, sum + index]);
                }
            }
            first += len;
        }
        Sorted { order, ..sorted }
    }
}

impl Gpu {
    /// Copies tokens of a vocabulary of `vocab` to the device.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, or there are too many.
    pub fn upload_tokens(&self, vocab: usize, tokens: &[u32]) -> Result<Tokens> {
        check(vocab, tokens)?;
        Ok(Tokens { words: self.words(tokens), len: tokens.len(), vocab })
    }

    /// Sorts the rows of a batch by token and copies the order to the device.
    ///
    /// # Errors
    /// Same as [`Gpu::upload_tokens`].
    pub fn upload_segments(&self, vocab: usize, tokens: &[u32]) -> Result<Segments> {
        check(vocab, tokens)?;
        let Sorted { order, short, pieces, long } = Sorted::new(tokens);
        let spans =
            |spans: &[[u32; SPAN]]| Spans { words: self.words(spans.as_flattened()), count: spans.len() };
        Ok(Segments {
            order: self.words(&order),
            len: tokens.len(),
            vocab,
            short: spans(&short),
            pieces: spans(&pieces),
            long: spans(&long),
        })
    }

    /// Writes to `x` f32 `[N, D]` the rows of `embedding` `[V, D]` for the tokens.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn embedding(&self, embedding: &Array, tokens: &Tokens, x: &Array) -> Result {
        let width = embedding.len().checked_div(tokens.vocab).unwrap_or(0);
        embedding.expect_len(area(tokens.vocab, width)?)?;
        x.expect_len(area(tokens.len, width)?)?;
        if x.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[width]);
        let units = units_for(width / lanes);
        let blocks = (width / lanes).div_ceil(units);
        gather::launch(
            &self.client,
            grid(tokens.len * blocks),
            line(units),
            lanes,
            embedding.vectors(lanes),
            tokens.arg(),
            x.f32s(lanes)?,
            tokens.len,
            width / lanes,
            blocks,
            units,
            embedding.element(),
        );
        Ok(())
    }

    /// Adds the rows of `grad_x` f32 `[N, D]` to `grad_embedding` f32 `[V, D]`, each at its token.
    ///
    /// Allocates another `D` f32 for each 32 rows of a token with more rows, or for each of its 256th parts.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn embedding_backward(&self, segments: &Segments, grad_x: &Array, grad_embedding: &Array) -> Result {
        let width = grad_embedding.len().checked_div(segments.vocab).unwrap_or(0);
        grad_embedding.expect_len(area(segments.vocab, width)?)?;
        grad_x.expect_len(area(segments.len, width)?)?;
        if grad_x.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[width]);
        let units = units_for(width / lanes);
        let blocks = (width / lanes).div_ceil(units);
        let sum = |spans: &Spans, ordered, adds, from: BufferArg, to: BufferArg| {
            if spans.count > 0 {
                sum_spans::launch(
                    &self.client,
                    grid(spans.count * blocks),
                    line(units),
                    lanes,
                    argument(&spans.words, SPAN * spans.count),
                    argument(&segments.order, segments.len),
                    from,
                    to,
                    spans.count,
                    width / lanes,
                    blocks,
                    ordered,
                    adds,
                    units,
                );
            }
        };
        let sums_len = area(segments.pieces.count, width)?;
        let sums = self.uninit_words(sums_len.max(lanes));
        let sums = || argument(&sums, sums_len / lanes);
        sum(&segments.short, true, true, grad_x.f32s(lanes)?, grad_embedding.f32s(lanes)?);
        sum(&segments.pieces, true, false, grad_x.f32s(lanes)?, sums());
        sum(&segments.long, false, true, sums(), grad_embedding.f32s(lanes)?);
        Ok(())
    }
}

fn check(vocab: usize, tokens: &[u32]) -> Result {
    if tokens.len() > VALUES_MAX / SPAN {
        return Err(GpuError::TooLong { max: VALUES_MAX / SPAN });
    }
    match tokens.iter().position(|token| *token as usize >= vocab) {
        Some(position) => Err(GpuError::Token { position, token: tokens[position], vocab }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that every row is in one piece, of its token, in the batch's order, and that each long token has its own
    /// pieces.
    #[track_caller]
    fn check_sorted(tokens: &[u32]) {
        let sorted = Sorted::new(tokens);
        let mut seen = vec![false; tokens.len()];
        let mut token_of_sum = vec![None; sorted.pieces.len()];
        let mut spans: Vec<_> = sorted.short.iter().map(|span| (span, false)).collect();
        spans.extend(sorted.pieces.iter().map(|span| (span, true)));
        spans.sort_unstable();
        let mut after = 0;
        for ([first, count, to], is_piece) in spans {
            assert_eq!(*first, after);
            after += count;
            let rows = &sorted.order[*first as usize..after as usize];
            assert!(rows.is_sorted() && !rows.is_empty());
            let token = tokens[rows[0] as usize];
            assert!(rows.iter().all(|row| tokens[*row as usize] == token));
            for row in rows {
                assert!(!std::mem::replace(&mut seen[*row as usize], true));
            }
            match is_piece {
                false => assert_eq!(*to, token),
                true => assert_eq!(token_of_sum[*to as usize].replace(token), None),
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        let mut sums = 0;
        for [first, count, token] in &sorted.long {
            assert_eq!(*first, sums);
            sums += count;
            assert!(*count as usize <= PIECES_MAX);
            assert!(token_of_sum[*first as usize..sums as usize].iter().all(|of| *of == Some(*token)));
        }
        assert_eq!(sums as usize, sorted.pieces.len());
        // Each token's gradient has at most one span that adds to it.
        let mut targets: Vec<u32> = sorted.short.iter().chain(&sorted.long).map(|span| span[2]).collect();
        targets.sort_unstable();
        assert!(targets.is_sorted_by(|one, other| one < other));
    }

    #[test]
    fn every_row_is_added_once_and_no_token_from_two_cubes() {
        check_sorted(&[]);
        check_sorted(&[7]);
        check_sorted(&[3; 100_000]);
        check_sorted(&(0..5000).rev().collect::<Vec<u32>>());
        check_sorted(
            &(0..20_000u32).map(|row| if row % 2 == 0 { 9 } else { row * 7919 % 613 }).collect::<Vec<_>>(),
        );
        for count in
            [PIECE_MIN - 1, PIECE_MIN, PIECE_MIN + 1, PIECE_MIN * PIECES_MAX, PIECE_MIN * PIECES_MAX + 1]
        {
            check_sorted(&vec![2; count]);
        }
    }
}
