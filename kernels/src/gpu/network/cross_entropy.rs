//! Loss and gradient at the vocabulary, in two passes over the logits.
//!
//! The reference is [`crate::cross_entropy`]: for a row of logits `x` and the token `t` that came, loss
//! `= ln Σ exp(x − max) + max − x_t`, and the gradient `softmax(x) − onehot(t)`. A cube has a row. In the first pass each
//! unit keeps the largest value that it met and the sum beside it, and scales the sum when it meets a larger one (Milakov
//! and Gimelshein, "Online normalizer calculation for softmax", 2018); the second writes the gradient in place.
//!
//! Bytes a logit, `F` being 4 or 2 of them: losses read `F`; losses and gradient read `2F` and write `F`, where the
//! second look finds the row in the cache if the rows of all running cubes fit.

use super::{
    Array, Tokens,
    launch::{UNITS, across, area, cube_max, cube_sum, exp, exp_of, grid, lanes, line, ln},
};
use crate::gpu::{Device, GpuError};
use cubecl::{ir::ElemType, prelude::*};

/// From this vocabulary on a row has as many units as the device allows a cube, up to [`WIDE_UNITS`]: fewer rows are in the
/// cache at a time.
const WIDE_VOCAB: usize = 1 << 14;
const WIDE_UNITS: usize = 1024;

/// The losses of rows, and the gradient in place if it is asked for.
#[cube(launch)]
fn losses<F: Float, N: Size>(
    logits: &mut [Vector<F, N>],
    targets: &[u32],
    losses: &mut [f32],
    rows: usize,
    width: usize,
    first_row: usize,
    scale: f32,
    #[comptime] gradient: bool,
    #[comptime] units: usize,
    #[define(F)] _kept: ElemType,
) {
    if CUBE_POS < rows {
        let unit = UNIT_POS as usize;
        let first = CUBE_POS * width;
        let target = targets[first_row + CUBE_POS] as usize;
        let target_at = target / N::value();

        let mut largest = f32::new(f32::MIN);
        let mut sums = Vector::<f32, N>::new(0.0f32);
        let mut at = unit;
        while at < width {
            let value = Vector::<f32, N>::cast_from(logits[first + at]);
            let mut most = value.extract(0usize);
            #[unroll]
            for lane in 1..N::value() {
                most = max(most, value.extract(lane));
            }
            if most > largest {
                sums = sums * Vector::new(exp_of(largest - most));
                largest = most;
            }
            sums += exp::<N>(value - Vector::new(largest));
            at += units;
        }
        let top = cube_max(largest, units);
        let sum = cube_sum(across::<N>(sums) * exp_of(largest - top), units);

        // Before the gradient is written over it. Both sums over the cube above end in a barrier that all units passed after
        // their last read.
        if unit == 0usize {
            let vector = Vector::<f32, N>::cast_from(logits[first + target_at]);
            let mut of_target = vector.extract(0usize);
            #[unroll]
            for lane in 1..N::value() {
                if target_at * N::value() + lane == target {
                    of_target = vector.extract(lane);
                }
            }
            losses[first_row + CUBE_POS] = ln(sum) + (top - of_target);
        }
        if comptime!(gradient) {
            sync_cube();
            let top = Vector::<f32, N>::new(top);
            let factor = Vector::<f32, N>::new(scale / sum);
            let mut at = unit;
            while at < width {
                let mut value = exp::<N>(Vector::<f32, N>::cast_from(logits[first + at]) - top) * factor;
                if at == target_at {
                    #[unroll]
                    for lane in 0..N::value() {
                        if at * N::value() + lane == target {
                            value.insert(lane, value.extract(lane) - scale);
                        }
                    }
                }
                logits[first + at] = Vector::cast_from(value);
                at += units;
            }
        }
    }
}

impl Device {
    /// Writes to `losses` f32 `[N]`, from row `first` on, the loss of each row of `logits`, in nats. `logits` are
    /// `[rows, V]`, for the tokens `targets[first..first + rows]` of all of the batch's `N`.
    pub fn cross_entropy(
        &self,
        logits: &Array,
        targets: &Tokens,
        first: usize,
        losses: &Array,
    ) -> Result<(), GpuError> {
        self.losses(logits, targets, first, losses, None)
    }

    /// Writes the same losses, and turns `logits` into the gradient of `scale · Σ losses`.
    pub fn cross_entropy_gradient(
        &self,
        logits: &Array,
        targets: &Tokens,
        first: usize,
        losses: &Array,
        scale: f32,
    ) -> Result<(), GpuError> {
        self.losses(logits, targets, first, losses, Some(scale))
    }

    fn losses(
        &self,
        logits: &Array,
        targets: &Tokens,
        first: usize,
        losses: &Array,
        scale: Option<f32>,
    ) -> Result<(), GpuError> {
        let vocab = targets.vocab();
        let rows = logits.len().checked_div(vocab).unwrap_or(0);
        logits.expect_len(area(rows, vocab)?)?;
        losses.expect_len(targets.len())?;
        if targets.len().saturating_sub(first) < rows {
            return Err(GpuError::WrongLength { expected: first.saturating_add(rows), got: targets.len() });
        }
        if rows == 0 {
            return Ok(());
        }
        let lanes = lanes(&[vocab]);
        let allowed = self.client.properties().hardware.max_units_per_cube as usize;
        let units = if vocab < WIDE_VOCAB { UNITS } else { WIDE_UNITS.min(1 << allowed.ilog2()) };
        losses::launch(
            &self.client,
            grid(rows),
            line(units),
            lanes,
            logits.vectors(lanes),
            targets.arg(),
            losses.f32s(1)?,
            rows,
            vocab / lanes,
            first,
            scale.unwrap_or(0.0),
            scale.is_some(),
            units,
            logits.element(),
        );
        Ok(())
    }
}
