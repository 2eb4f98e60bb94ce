//! Sum of squares of a gradient, with the same bits for every number of threads.
//!
//! Order of summation: the vector is split into chunks of 4096. In a chunk the square of value `i`, exact in `f64`, is
//! added to partial sum `i mod 16`; the sixteen are added in ascending order, and then the chunks.

use kernels::lanes::{LANES, widest};
use rayon::prelude::*;

/// Number of values of a chunk.
pub const CHUNK: usize = 4096;

/// Computes `Σ x²` one value at a time, in the order above.
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

/// Computes `Σ x²` with vectors and threads, with the bits of [`norm_squared_reference`].
pub fn norm_squared(values: &[f32]) -> f64 {
    sum_chunks(&chunks_squared(values))
}

/// Computes `Σ x²` of each chunk.
pub fn chunks_squared(values: &[f32]) -> Vec<f64> {
    values.par_chunks(CHUNK).map(chunk).collect()
}

/// Returns the sum of the results of [`chunks_squared`] for a whole vector.
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
