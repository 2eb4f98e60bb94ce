//! A row copied on the device: what the other kernels' speed is measured against.

use super::{Device, GpuError, Values, array, cubes, select::UNITS};
use cubecl::prelude::*;

/// Words that a unit copies at most.
const TURNS: usize = 16;

#[cube(launch)]
pub(super) fn copy(from: &[u32], to: &mut [u32]) {
    let first = CUBE_POS * comptime!(UNITS * TURNS) + UNIT_POS as usize;
    for turn in 0..TURNS {
        let at = first + turn * UNITS;
        if at < to.len() {
            to[at] = from[at];
        }
    }
}

impl Device {
    /// Copies a row to another of the same parts, on the device.
    pub fn copy(&self, from: &Values, to: &mut Values) -> Result<(), GpuError> {
        if from.ends != to.ends {
            return Err(GpuError::OtherParts);
        }
        let mut start = 0;
        for ((from, to), end) in from.parts.iter().zip(&to.parts).zip(&to.ends) {
            let words = end - start;
            start = *end;
            copy::launch(
                &self.client,
                cubes(words.div_ceil(UNITS * TURNS)),
                CubeDim::new_1d(UNITS as u32),
                array(from, words),
                array(to, words),
            );
        }
        Ok(())
    }
}
