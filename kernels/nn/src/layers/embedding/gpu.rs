//! Rows of the embedding on a GPU, and their gradients.
//!
//! Atomic additions by many rows of one token would have no order. So the CPU sorts a batch's rows by token
//! ([`Segments`]), and a cube adds up a token's rows in the order of the batch. A frequent token is cut into pieces,
//! whose sums are added in order afterwards: two runs have the same bits.
//!
//! Bytes per value of a row, `F` being 4 or 2: forward reads `F` and writes 4; backward reads 4, and reads and writes
//! 4 per distinct token instead of per row.

#![allow(clippy::too_many_arguments, reason = "a kernel's arguments are its buffers")]
#![allow(
    clippy::collapsible_if,
    clippy::assign_op_pattern,
    clippy::needless_range_loop,
    reason = "the forms that CubeCL expands"
)]

use crate::gpu::{
    Array, Gpu, GpuError, VALUES_MAX, argument,
    launch::{area, grid, lanes, line, units_for},
};
use cubecl::{ir::ElemType, prelude::*, server::Handle};

/// Rows of a piece at least, of a token with more.
const PIECE_MIN: usize = 32;
/// Pieces of a token at most.
const PIECES_MAX: usize = 256;
/// Words of a piece: its first row in sorted order, its number of rows, the row of its sum, and whether that is in the
/// buffer of sums instead of the gradient.
const PIECE_WORDS: usize = 4;
/// Words of a token in pieces: its first sum, its number of sums, the token.
const LONG_WORDS: usize = 3;

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

/// Adds up the rows of a piece into their token's gradient, or into `sums` for [`add_pieces`].
#[cube(launch)]
fn add_rows<N: Size>(
    pieces: &[u32],
    rows: &[u32],
    grad_x: &[Vector<f32, N>],
    grad_embedding: &mut [Vector<f32, N>],
    sums: &mut [Vector<f32, N>],
    count: usize,
    width: usize,
    blocks: usize,
    #[comptime] units: usize,
) {
    let piece = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * units + UNIT_POS as usize;
    if piece < count {
        if column < width {
            let words = PIECE_WORDS * piece;
            let from = pieces[words] as usize;
            let to = from + pieces[words + 1usize] as usize;
            let at = pieces[words + 2usize] as usize * width + column;
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for index in from..to {
                sum += grad_x[rows[index] as usize * width + column];
            }
            if pieces[words + 3usize] == 0u32 {
                grad_embedding[at] += sum;
            } else {
                sums[at] = sum;
            }
        }
    }
}

/// Adds the sums of each token's pieces to its gradient.
#[cube(launch)]
fn add_pieces<N: Size>(
    longs: &[u32],
    sums: &[Vector<f32, N>],
    grad_embedding: &mut [Vector<f32, N>],
    count: usize,
    width: usize,
    blocks: usize,
    #[comptime] units: usize,
) {
    let long = CUBE_POS / blocks;
    let column = CUBE_POS % blocks * units + UNIT_POS as usize;
    if long < count {
        if column < width {
            let words = LONG_WORDS * long;
            let from = longs[words] as usize;
            let to = from + longs[words + 1usize] as usize;
            let at = longs[words + 2usize] as usize * width + column;
            let mut sum = Vector::<f32, N>::new(0.0f32);
            for index in from..to {
                sum += sums[index * width + column];
            }
            grad_embedding[at] += sum;
        }
    }
}

/// Tokens of the vocabulary on a GPU.
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

/// The rows of a batch sorted by token, on a GPU.
#[derive(Clone)]
pub struct Segments {
    rows: Handle,
    len: usize,
    vocab: usize,
    pieces: Handle,
    piece_count: usize,
    longs: Handle,
    long_count: usize,
    /// Rows of the buffer of sums.
    sums: usize,
}

/// [`Segments`] on the CPU.
struct Sorted {
    rows: Vec<u32>,
    pieces: Vec<[u32; PIECE_WORDS]>,
    longs: Vec<[u32; LONG_WORDS]>,
    sums: usize,
}

impl Sorted {
    fn new(tokens: &[u32]) -> Sorted {
        let mut rows: Vec<u32> = (0..tokens.len() as u32).collect();
        // A stable sort: rows of a token keep their order.
        rows.sort_by_key(|row| tokens[*row as usize]);
        let (mut pieces, mut longs, mut sums) = (Vec::new(), Vec::new(), 0);
        let mut first = 0;
        for segment in rows.chunk_by(|one, other| tokens[*one as usize] == tokens[*other as usize]) {
            let token = tokens[segment[0] as usize];
            let piece = segment.len().div_ceil(PIECES_MAX).max(PIECE_MIN);
            if segment.len() <= piece {
                pieces.push([first, segment.len() as u32, token, 0]);
            } else {
                longs.push([sums, segment.len().div_ceil(piece) as u32, token]);
                for (index, rows) in segment.chunks(piece).enumerate() {
                    pieces.push([first + (index * piece) as u32, rows.len() as u32, sums, 1]);
                    sums += 1;
                }
            }
            first += segment.len() as u32;
        }
        Sorted { rows, pieces, longs, sums: sums as usize }
    }
}

impl Gpu {
    /// Copies tokens of a vocabulary of `vocab` to the device.
    ///
    /// # Errors
    /// If a token is outside the vocabulary, or there are too many.
    pub fn upload_tokens(&self, vocab: usize, tokens: &[u32]) -> Result<Tokens, GpuError> {
        check(vocab, tokens)?;
        Ok(Tokens { words: self.words(tokens), len: tokens.len(), vocab })
    }

    /// Sorts the rows of a batch by token and copies the order to the device.
    ///
    /// # Errors
    /// As [`Gpu::upload_tokens`].
    pub fn upload_segments(&self, vocab: usize, tokens: &[u32]) -> Result<Segments, GpuError> {
        check(vocab, tokens)?;
        let sorted = Sorted::new(tokens);
        Ok(Segments {
            rows: self.words(&sorted.rows),
            len: tokens.len(),
            vocab,
            pieces: self.words(sorted.pieces.as_flattened()),
            piece_count: sorted.pieces.len(),
            longs: self.words(sorted.longs.as_flattened()),
            long_count: sorted.longs.len(),
            sums: sorted.sums,
        })
    }

    /// Writes to `x` f32 `[N, D]` the rows of `embedding` `[V, D]` for the tokens.
    ///
    /// # Errors
    /// If lengths or precisions differ from that.
    pub fn embedding(&self, embedding: &Array, tokens: &Tokens, x: &Array) -> Result<(), GpuError> {
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
    /// Takes another `D` f32 for each 32 rows of a token with more rows, or for each of its 256th parts.
    ///
    /// # Errors
    /// If lengths or precisions differ from that.
    pub fn embedding_backward(
        &self,
        segments: &Segments,
        grad_x: &Array,
        grad_embedding: &Array,
    ) -> Result<(), GpuError> {
        let width = grad_embedding.len().checked_div(segments.vocab).unwrap_or(0);
        grad_embedding.expect_len(area(segments.vocab, width)?)?;
        grad_x.expect_len(area(segments.len, width)?)?;
        if grad_x.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[width]);
        let units = units_for(width / lanes);
        let blocks = (width / lanes).div_ceil(units);
        let sums_len = area(segments.sums, width)?;
        let sums = self.uninit_words(sums_len.max(lanes));
        add_rows::launch(
            &self.client,
            grid(segments.piece_count * blocks),
            line(units),
            lanes,
            argument(&segments.pieces, PIECE_WORDS * segments.piece_count),
            argument(&segments.rows, segments.len),
            grad_x.f32s(lanes)?,
            grad_embedding.f32s(lanes)?,
            argument(&sums, sums_len / lanes),
            segments.piece_count,
            width / lanes,
            blocks,
            units,
        );
        if segments.long_count > 0 {
            add_pieces::launch(
                &self.client,
                grid(segments.long_count * blocks),
                line(units),
                lanes,
                argument(&segments.longs, LONG_WORDS * segments.long_count),
                argument(&sums, sums_len / lanes),
                grad_embedding.f32s(lanes)?,
                segments.long_count,
                width / lanes,
                blocks,
                units,
            );
        }
        Ok(())
    }
}

fn check(vocab: usize, tokens: &[u32]) -> Result<(), GpuError> {
    if tokens.len() > VALUES_MAX / PIECE_WORDS {
        return Err(GpuError::TooLong { max: VALUES_MAX / PIECE_WORDS });
    }
    match tokens.iter().position(|token| *token as usize >= vocab) {
        Some(position) => Err(GpuError::Token { position, token: tokens[position], vocab }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every row is in one piece, of its token, in the batch's order; and each long token's pieces are its own.
    #[track_caller]
    fn check_sorted(tokens: &[u32]) {
        let sorted = Sorted::new(tokens);
        let mut seen = vec![false; tokens.len()];
        let mut pieces_of_sum = vec![None; sorted.sums];
        let mut after = 0;
        for [first, count, to, beside] in &sorted.pieces {
            assert_eq!(*first, after);
            after += count;
            let rows = &sorted.rows[*first as usize..after as usize];
            assert!(rows.is_sorted() && !rows.is_empty());
            let token = tokens[rows[0] as usize];
            assert!(rows.iter().all(|row| tokens[*row as usize] == token));
            for row in rows {
                assert!(!std::mem::replace(&mut seen[*row as usize], true));
            }
            match beside {
                0 => assert_eq!(*to, token),
                _ => assert_eq!(pieces_of_sum[*to as usize].replace(token), None),
            }
        }
        assert!(seen.iter().all(|seen| *seen));
        let mut sums = 0;
        for [first, count, token] in &sorted.longs {
            assert_eq!(*first, sums);
            sums += count;
            assert!(*count as usize <= PIECES_MAX);
            assert!(pieces_of_sum[*first as usize..sums as usize].iter().all(|of| *of == Some(*token)));
        }
        assert_eq!(sums as usize, sorted.sums);
        // No token has two places that add to its gradient.
        let mut targets: Vec<u32> =
            sorted.pieces.iter().filter(|piece| piece[3] == 0).map(|piece| piece[2]).collect();
        targets.extend(sorted.longs.iter().map(|long| long[2]));
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
