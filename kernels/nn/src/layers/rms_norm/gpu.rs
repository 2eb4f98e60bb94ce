//! RMSNorm on a GPU. In the forward pass a cube processes a row; in the backward pass it processes several, and adds
//! up the gain's gradient in registers.
//!
//! The cubes' sums are added in a fixed order afterwards, so two runs have the same bits.
//!
//! Bytes per value, `F` being 4 or 2: forward reads 4 and writes `F`; backward reads `8 + F` and writes 4. The second
//! read of a row hits the cache.

use crate::gpu::{
    Array, Gpu, Result, argument,
    launch::{across, area, cube_sum, grid, lanes, line, units_for},
};
use cubecl::{
    ir::ElemType,
    prelude::{Array as Registers, *},
};

/// Minimum number of rows per cube in the backward pass, and maximum number of cubes.
const ROWS: usize = 16;
const BLOCKS_MAX: usize = 1024;
/// Number of columns of a cube of [`add_blocks`], and of units per column.
const COLUMNS: usize = 32;
const SHARES: usize = 8;
/// Number of vectors per row that a unit keeps in registers in the backward pass. Wider rows spill.
const UNROLLED: usize = 8;

/// Computes a row's `y` and its inverse root, which is read instead if it is `known`.
#[cube(launch)]
fn forward<F: Float, N: Size>(
    x: &[Vector<f32, N>],
    gain: &[Vector<f32, N>],
    y: &mut [Vector<F, N>],
    inverse_roots: &mut [f32],
    rows: usize,
    width: usize,
    inverse_width: f32,
    epsilon: f32,
    #[comptime] known: bool,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    let row = CUBE_POS;
    if row < rows {
        let unit = UNIT_POS as usize;
        let first = row * width;
        let mut inverse = inverse_roots[row];
        if comptime!(!known) {
            let mut squares = Vector::<f32, N>::new(0.0f32);
            let mut at = unit;
            while at < width {
                let value = x[first + at];
                squares += value * value;
                at += units;
            }
            let squares = cube_sum(across::<N>(squares), units);
            inverse = 1.0f32 / (squares * inverse_width + epsilon).sqrt();
            if unit == 0usize {
                inverse_roots[row] = inverse;
            }
        }
        let inverse = Vector::<f32, N>::new(inverse);
        let mut at = unit;
        while at < width {
            y[first + at] = Vector::cast_from(x[first + at] * inverse * gain[at]);
            at += units;
        }
    }
}

/// Adds to the gradients of a block's rows, and writes the block's part of the gain's gradient.
#[cube(launch)]
fn backward<F: Float, N: Size>(
    x: &[Vector<f32, N>],
    gain: &[Vector<f32, N>],
    inverse_roots: &[f32],
    grad_y: &[Vector<F, N>],
    grad_x: &mut [Vector<f32, N>],
    block_sums: &mut [Vector<f32, N>],
    rows: usize,
    block: usize,
    blocks: usize,
    width: usize,
    inverse_width: f32,
    #[comptime] turns: usize,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    if CUBE_POS < blocks {
        let unit = UNIT_POS as usize;
        let mut sums = Registers::<Vector<f32, N>>::new(turns);
        #[unroll(turns <= UNROLLED)]
        for turn in 0..turns {
            sums[turn] = Vector::new(0.0f32);
        }
        let from = CUBE_POS * block;
        let to = min(from + block, rows);
        for row in from..to {
            let first = row * width;
            let mut along = Vector::<f32, N>::new(0.0f32);
            #[unroll(turns <= UNROLLED)]
            for turn in 0..turns {
                let at = turn * units + unit;
                if at < width {
                    along += x[first + at] * (gain[at] * Vector::cast_from(grad_y[first + at]));
                }
            }
            // The part of the gradient along x, which the root cancels.
            let inverse = inverse_roots[row];
            let along = Vector::<f32, N>::new(cube_sum(across::<N>(along), units) * inverse * inverse_width);
            let inverse = Vector::<f32, N>::new(inverse);
            #[unroll(turns <= UNROLLED)]
            for turn in 0..turns {
                let at = turn * units + unit;
                if at < width {
                    let grad_y = Vector::<f32, N>::cast_from(grad_y[first + at]);
                    let normed = x[first + at] * inverse;
                    let grad_here = inverse * (gain[at] * grad_y - normed * along);
                    grad_x[first + at] += grad_here;
                    sums[turn] += normed * grad_y;
                }
            }
        }
        #[unroll(turns <= UNROLLED)]
        for turn in 0..turns {
            let at = turn * units + unit;
            if at < width {
                block_sums[CUBE_POS * width + at] = sums[turn];
            }
        }
    }
}

/// Adds the rows of `block_sums` to `sums`.
#[cube(launch)]
fn add_blocks(block_sums: &[f32], sums: &mut [f32], width: usize, blocks: usize, share: usize) {
    let mut shares = Shared::<[f32]>::new_slice(COLUMNS * SHARES);
    let unit = UNIT_POS as usize;
    let column = CUBE_POS * COLUMNS + unit % COLUMNS;
    let mut sum = 0.0f32;
    if column < width {
        let from = min(unit / COLUMNS * share, blocks);
        let to = min(from + share, blocks);
        for block in from..to {
            sum += block_sums[block * width + column];
        }
    }
    shares[unit] = sum;
    sync_cube();
    if unit < COLUMNS {
        if column < width {
            let mut total = shares[unit];
            for other in 1..SHARES {
                total += shares[other * COLUMNS + unit];
            }
            sums[column] += total;
        }
    }
}

/// Returns the number of blocks of rows in the backward pass, and of rows per block.
fn blocks(rows: usize) -> (usize, usize) {
    let block = rows.div_ceil(BLOCKS_MAX).max(ROWS);
    (rows.div_ceil(block), block)
}

impl Gpu {
    /// Writes `y` `[N, D]` and `inverse_roots` f32 `[N]`, `1 / √(mean x² + ε)`, which the backward pass needs. `x` is
    /// f32 `[N, D]`, `gain` f32 `[D]`. Without an `epsilon` it reads the roots of an earlier call, and `y` has the
    /// same bits.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn rms_norm(
        &self,
        x: &Array,
        gain: &Array,
        epsilon: Option<f32>,
        y: &Array,
        inverse_roots: &Array,
    ) -> Result {
        let (rows, width) = rows_of(x, gain, inverse_roots)?;
        y.expect_len(x.len())?;
        if x.is_empty() {
            return Ok(());
        }
        let lanes = lanes(&[width]);
        let units = units_for(width / lanes);
        forward::launch(
            &self.client,
            grid(rows),
            line(units),
            lanes,
            x.f32s(lanes)?,
            gain.f32s(lanes)?,
            y.vectors(lanes),
            inverse_roots.f32s(1)?,
            rows,
            width / lanes,
            1.0 / width as f32,
            epsilon.unwrap_or(0.0),
            epsilon.is_none(),
            units,
            y.element(),
        );
        Ok(())
    }

    /// Adds the gradients of `Σ y·grad_y` to `grad_x` f32 `[N, D]` and `grad_gain` f32 `[D]`.
    ///
    /// Allocates up to 1,024 rows of `D` f32.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn rms_norm_backward(
        &self,
        x: &Array,
        gain: &Array,
        inverse_roots: &Array,
        grad_y: &Array,
        grad_x: &Array,
        grad_gain: &Array,
    ) -> Result {
        let (rows, width) = rows_of(x, gain, inverse_roots)?;
        grad_y.expect_len(x.len())?;
        grad_x.expect_len(x.len())?;
        grad_gain.expect_len(width)?;
        if x.is_empty() {
            return Ok(());
        }
        let (blocks, block) = blocks(rows);
        let block_sums_len = area(blocks, width)?;
        let block_sums = self.uninit_words(block_sums_len);
        let lanes = lanes(&[width]);
        let units = units_for(width / lanes);
        backward::launch(
            &self.client,
            grid(blocks),
            line(units),
            lanes,
            x.f32s(lanes)?,
            gain.f32s(lanes)?,
            inverse_roots.f32s(1)?,
            grad_y.vectors(lanes),
            grad_x.f32s(lanes)?,
            argument(&block_sums, block_sums_len / lanes),
            rows,
            block,
            blocks,
            width / lanes,
            1.0 / width as f32,
            (width / lanes).div_ceil(units),
            units,
            grad_y.element(),
        );
        add_blocks::launch(
            &self.client,
            grid(width.div_ceil(COLUMNS)),
            line(COLUMNS * SHARES),
            argument(&block_sums, block_sums_len),
            grad_gain.f32s(1)?,
            width,
            blocks,
            blocks.div_ceil(SHARES),
        );
        Ok(())
    }
}

/// Checks the lengths; returns the number and width of the rows.
fn rows_of(x: &Array, gain: &Array, inverse_roots: &Array) -> Result<(usize, usize)> {
    let (rows, width) = (inverse_roots.len(), gain.len());
    x.expect_len(area(rows, width)?)?;
    Ok((rows, width))
}
