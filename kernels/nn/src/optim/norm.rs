//! The sum of squares of a gradient, the same bits for every number of threads.
//!
//! Order of summation: the vector is cut into chunks of 4096. In a chunk the square of value `i`, exact in `f64`, is
//! added to partial sum `i mod 16`; the sixteen are added in ascending order, and then the chunks.

use kernels::lanes::{LANES, widest};
use rayon::prelude::*;

/// Values of a chunk.
pub const CHUNK: usize = 4096;

/// `Σ x²`, one value after the other in the order above.
pub fn norm_squared_reference(values: &[f32]) -> f64 {
    let mut total = 0.0;
    for chunk in values.chunks(CHUNK) {
        let mut partial = [0.0; LANES];
        for (index, &value) in chunk.iter().enumerate() {
            partial[index % LANES] += f64::from(value) * f64::from(value);
        }
        total += partial.iter().sum::<f64>();
    }
    total
}

/// `Σ x²`: the bits of [`norm_squared_reference`], by vectors and threads.
pub fn norm_squared(values: &[f32]) -> f64 {
    sum_chunks(&chunks_squared(values))
}

/// `Σ x²` of each chunk.
pub fn chunks_squared(values: &[f32]) -> Vec<f64> {
    values.par_chunks(CHUNK).map(chunk).collect()
}

/// The sum of what [`chunks_squared`] gave for a whole vector.
pub fn sum_chunks(chunks: &[f64]) -> f64 {
    // Not `sum`, which starts at −0 and would return it for an empty vector.
    chunks.iter().fold(0.0, |total, chunk| total + chunk)
}

widest! {
    fn chunk(values: &[f32]) -> f64 = chunk_body;
}

#[inline(always)]
fn chunk_body(values: &[f32]) -> f64 {
    let mut partial = [0.0; LANES];
    let mut rows = values.chunks_exact(LANES);
    for row in rows.by_ref() {
        for (sum, &value) in partial.iter_mut().zip(row) {
            *sum += f64::from(value) * f64::from(value);
        }
    }
    for (sum, &value) in partial.iter_mut().zip(rows.remainder()) {
        *sum += f64::from(value) * f64::from(value);
    }
    partial.iter().sum()
}
