//! Sum of squares of many arrays: the squared norm of a gradient.
//!
//! The reference is [`optim::norm`](crate::optim::norm), which adds in f64. Here a unit adds up to a few thousand
//! squares in f32, and a cube adds its units' sums. The CPU adds all cubes' sums in f64. The order is always the same.
//! All arrays are read with one wait.
//!
//! Bytes per value, `F` being 4 or 2: reads `F`.

use super::{
    Array, Gpu, Result, argument,
    launch::{UNITS, across, cube_sum, grid, lanes, line},
};
use cubecl::{ir::ElemType, prelude::*};

/// Minimum number of vectors per unit, for arrays that long, and maximum number of cubes per array.
const TURNS_MIN: usize = 8;
const CUBES_MAX: usize = 1024;

#[cube(launch)]
fn squares<F: Float, N: Size>(
    values: &[Vector<F, N>],
    sums: &mut [f32],
    count: usize,
    first: usize,
    cubes: usize,
    #[define(F)] _kept: ElemType,
) {
    if CUBE_POS < cubes {
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let mut at = CUBE_POS * UNITS + UNIT_POS as usize;
        while at < count {
            let value = Vector::<f32, N>::cast_from(values[at]);
            sum += value * value;
            at += cubes * UNITS;
        }
        let sum = cube_sum(across::<N>(sum), UNITS);
        if UNIT_POS == 0 {
            sums[first + CUBE_POS] = sum;
        }
    }
}

fn cubes(vectors: usize) -> usize {
    vectors.div_ceil(UNITS * TURNS_MIN).clamp(1, CUBES_MAX)
}

impl Gpu {
    /// Returns `Σ x²` over all values of all arrays. Waits for the device.
    ///
    /// # Errors
    /// If earlier work failed.
    pub fn sum_of_squares(&self, arrays: &[&Array]) -> Result<f64> {
        let cubes_of = |array: &Array| cubes(array.len() / lanes(&[array.len()]));
        let total = arrays.iter().map(|array| cubes_of(array)).sum();
        let sums = self.uninit_words(total);
        let mut first = 0;
        for values in arrays {
            let lanes = lanes(&[values.len()]);
            let cubes = cubes_of(values);
            squares::launch(
                &self.client,
                grid(cubes),
                line(UNITS),
                lanes,
                values.vectors(lanes),
                argument(&sums, total),
                values.len() / lanes,
                first,
                cubes,
                values.element(),
            );
            first += cubes;
        }
        let sums = self.read(&sums)?;
        let sums = &sums.as_chunks::<4>().0[..total];
        Ok(sums.iter().map(|sum| f64::from(f32::from_le_bytes(*sum))).sum())
    }
}
