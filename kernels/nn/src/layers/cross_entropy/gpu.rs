//! Loss and gradient on a GPU, in two passes over the logits; a cube processes a row.
//!
//! In the first pass each unit keeps its largest value and the sum of exponentials relative to it, and rescales the
//! sum at a larger value (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). The second pass
//! writes the gradient in place.
//!
//! Bytes per logit, `F` being 4 or 2: losses read `F`; losses and gradient read `2F` and write `F`. The second read
//! hits the cache if the rows of all running cubes fit.

use crate::{
    gpu::{
        Array, Gpu, GpuError, Result,
        launch::{UNITS, across, area, cube_max, cube_sum, exp, exp_of, grid, line, ln},
    },
    layers::embedding::gpu::Tokens,
};
use cubecl::{ir::ElemType, prelude::*};

/// Smallest vocabulary for which a cube has as many units as the device allows, up to [`WIDE_UNITS`], so that fewer
/// rows compete for the cache.
const WIDE_VOCAB: usize = 1 << 14;
const WIDE_UNITS: usize = 1024;

/// Computes the losses of rows, and optionally the gradient in place.
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

        // Read before the gradient overwrites it. The sums over the cube end in a barrier after every unit's last
        // read.
        if unit == 0usize {
            let vector = Vector::<f32, N>::cast_from(logits[first + target_at]);
            let mut target_logit = vector.extract(0usize);
            #[unroll]
            for lane in 1..N::value() {
                if target_at * N::value() + lane == target {
                    target_logit = vector.extract(lane);
                }
            }
            losses[first_row + CUBE_POS] = ln(sum) + (top - target_logit);
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

impl Gpu {
    /// Writes to `losses` f32 `[N]`, from row `first` on, the loss of each row of `logits` `[rows, V]`, in nats. Their
    /// targets are `targets[first..first + rows]` of the batch's `N`. With a `scale`, also replaces `logits` with the
    /// gradient of `scale · Σ losses`.
    ///
    /// # Errors
    /// If lengths or precisions differ from these.
    pub fn cross_entropy(
        &self,
        logits: &Array,
        targets: &Tokens,
        first: usize,
        losses: &Array,
        scale: Option<f32>,
    ) -> Result {
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
        let lanes = self.lanes(logits.precision(), &[vocab]);
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
