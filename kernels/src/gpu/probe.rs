//! Whether a device's own additions and multiplications are those of the agreement.
//!
//! Asked once, when a device is opened: pairs that round up, down and to even, that cancel, and that differ where a
//! product and a sum are fused. A device that gets one of them wrong computes in integers.

use super::{Device, GpuError, array, number::step, select::UNITS};
use cubecl::prelude::*;

/// Triples that are asked.
const COUNT: usize = 1 << 14;

/// `fl(fl(decay · residual) + delta)` of each pair, by the device's own arithmetic.
#[cube(launch)]
pub(super) fn steps(
    residual: &[u32],
    delta: &[u32],
    out: &mut [u32],
    decay: u32,
    fence: u32,
    #[comptime] hardware: bool,
) {
    let at = ABSOLUTE_POS;
    if at < out.len() {
        out[at] = step(residual[at], delta[at], decay, fence, hardware);
    }
}

impl Device {
    pub(super) fn adds_and_multiplies_alike(&self) -> Result<bool, GpuError> {
        // An LCG's upper halves, with exponents that meet: sums that cancel, and ties.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut draw = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 32) as u32
        };
        let mut number = |spread: u32| {
            let (bits, kind) = (draw(), draw());
            let fraction = match kind % 4 {
                0 => bits & 0x007f_0000,
                1 => bits & 0x0000_0fff,
                _ => bits & 0x007f_ffff,
            };
            (bits & 0x8000_0000) | (127 - spread / 2 + (kind >> 8) % spread) << 23 | fraction
        };
        let mut alike = true;
        for decay in [0.95f32, 1.0, 0.1] {
            let residual: Vec<u32> = (0..COUNT).map(|_| number(6)).collect();
            let mut delta: Vec<u32> = (0..COUNT).map(|_| number(40)).collect();
            for (index, delta) in delta.iter_mut().enumerate().filter(|(index, _)| index % 3 == 0) {
                // Fused, the sum is what the product's rounding lost; in two steps it is zero.
                *delta = (-(f32::from_bits(residual[index]) * decay)).to_bits();
            }
            let stepped = self.step(&residual, &delta, decay, true)?;
            alike &= stepped.iter().zip(residual.iter().zip(&delta)).all(|(stepped, (residual, delta))| {
                let product = decay * f32::from_bits(*residual);
                *stepped == (product + f32::from_bits(*delta)).to_bits()
            });
        }
        Ok(alike)
    }

    /// Steps each pair on the device, by its own arithmetic or by integers.
    pub(super) fn step(
        &self,
        residual: &[u32],
        delta: &[u32],
        decay: f32,
        hardware: bool,
    ) -> Result<Vec<u32>, GpuError> {
        let (left, right) = (self.words(residual), self.words(delta));
        let out = self.room(residual.len());
        steps::launch(
            &self.client,
            super::cubes(residual.len().div_ceil(UNITS)),
            CubeDim::new_1d(UNITS as u32),
            array(&left, residual.len()),
            array(&right, residual.len()),
            array(&out, residual.len()),
            decay.to_bits(),
            0,
            hardware,
        );
        self.read(&out)
    }
}
