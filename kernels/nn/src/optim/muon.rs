//! Muon's step for one matrix: momentum whose singular values are all moved close to one (Keller Jordan, 2024).
//!
//! Nesterov momentum, then five steps of a Newton–Schulz iteration whose quintic polynomial moves every singular value
//! to between 0.7 and 1.2. The step is scaled by `0.2·√max(rows, columns)` (Liu et al., "Muon is scalable for LLM
//! training", 2025), so that it changes a weight about as much as AdamW and both share one learning rate and weight
//! decay. PyTorch's `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")` is the same, but iterates in bf16 instead of
//! f32.

use super::{StepParams, norm::norm_squared};
use crate::layers::matmul::{Mat, MatMut, Threads, Write, matmul};

/// Share of the mean gradient that a step keeps.
pub const MOMENTUM: f64 = 0.95;
pub const ITERATIONS: usize = 5;
/// Coefficients of the quintic `a·x + b·x³ + c·x⁵`.
pub const QUINTIC: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Lower bound of the norm that avoids division by zero.
pub const NORM_MIN: f64 = 1e-7;

/// Returns the factor of a step of this shape that gives it AdamW's root mean square, 0.2 learning rates.
pub fn step_scale([rows, columns]: [usize; 2]) -> f64 {
    0.2 * (rows.max(columns) as f64).sqrt()
}

/// Buffers of a step, together smaller than four matrices.
#[derive(Debug, Default)]
pub struct Scratch {
    direction: Vec<f32>,
    product: Vec<f32>,
    square: Vec<f32>,
    fourth: Vec<f32>,
}

/// Weights and momentum of a matrix.
pub struct Matrix<'a> {
    pub shape: [usize; 2],
    pub weights: &'a mut [f32],
    pub mean: &'a mut [f32],
}

/// Takes one step with weight decay `decay`.
///
/// # Panics
/// If a slice does not have the matrix's shape.
pub fn step(params: &StepParams, decay: f64, matrix: Matrix, gradient: &[f32], scratch: &mut Scratch) {
    let Matrix { shape, weights, mean } = matrix;
    let len = shape[0] * shape[1];
    assert!(
        [weights.len(), mean.len(), gradient.len()] == [len; 3],
        "a gradient and a moment for each weight"
    );
    let [keep, take] = [MOMENTUM as f32, (1.0 - MOMENTUM) as f32];
    let scale = params.gradient_scale as f32;
    scratch.direction.clear();
    scratch.direction.extend(mean.iter_mut().zip(gradient).map(|(mean, gradient)| {
        let gradient = gradient * scale;
        *mean = *mean * keep + gradient * take;
        gradient * take + *mean * keep
    }));
    orthogonalise(shape, scratch);
    let (weight_scale, step_scale) = ((1.0 - params.learning_rate * decay) as f32, step_scale(shape) as f32);
    let rate = params.learning_rate as f32;
    for (weight, direction) in weights.iter_mut().zip(&scratch.direction) {
        *weight = *weight * weight_scale - direction * step_scale * rate;
    }
}

/// Replaces `scratch.direction` with the nearly orthogonal result of the iterations.
fn orthogonalise(shape: [usize; 2], scratch: &mut Scratch) {
    let Scratch { direction: x, product, square, fourth } = scratch;
    let norm = (norm_squared(x).sqrt() as f32).max(NORM_MIN as f32);
    x.iter_mut().for_each(|value| *value /= norm);
    let [a, b, c] = QUINTIC.map(|coefficient| coefficient as f32);
    // The product along the short side is cheaper.
    let tall = shape[0] > shape[1];
    let short = shape[0].min(shape[1]);
    product.resize(x.len(), 0.0);
    square.resize(short * short, 0.0);
    fourth.resize(short * short, 0.0);
    for _ in 0..ITERATIONS {
        let matrix = Mat::new(x, shape);
        let (left, right) = if tall { (matrix.transposed(), matrix) } else { (matrix, matrix.transposed()) };
        set(square, [short, short], left, right);
        let squared = Mat::new(square, [short, short]);
        set(fourth, [short, short], squared, squared);
        square.iter_mut().zip(&*fourth).for_each(|(square, fourth)| *square = *square * b + fourth * c);
        let polynomial = Mat::new(square, [short, short]);
        let (left, right) = if tall { (matrix, polynomial) } else { (polynomial, matrix) };
        set(product, shape, left, right);
        x.iter_mut().zip(&*product).for_each(|(x, product)| *x = *x * a + product);
    }
}

fn set(into: &mut [f32], shape: [usize; 2], a: Mat, b: Mat) {
    matmul(Write::Set, &mut MatMut::new(into, shape), a, b, Threads::Pool);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns noise between −1 and 1 of full rank. A plain sine of the position would have rank two.
    fn noise([rows, columns]: [usize; 2], seed: usize) -> Vec<f64> {
        let value = |at: usize| (((at * 7919 + seed * 104_729) as f64).sin() * 43_758.545).fract();
        (0..rows * columns).map(value).collect()
    }

    fn narrow(values: &[f64]) -> Vec<f32> {
        values.iter().map(|value| *value as f32).collect()
    }

    fn wide(values: &[f32]) -> Vec<f64> {
        values.iter().map(|value| f64::from(*value)).collect()
    }

    fn orthogonal(matrix: &[f64], shape: [usize; 2]) -> Vec<f64> {
        let mut scratch = Scratch { direction: narrow(matrix), ..Scratch::default() };
        orthogonalise(shape, &mut scratch);
        wide(&scratch.direction)
    }

    /// Multiplies rows by columns.
    fn product(one: &[f64], other: &[f64], inner: usize) -> Vec<f64> {
        let (rows, columns) = (one.len() / inner, other.len() / inner);
        let at = |row: usize, column: usize| -> f64 {
            (0..inner).map(|k| one[row * inner + k] * other[k * columns + column]).sum()
        };
        (0..rows).flat_map(|row| (0..columns).map(move |column| at(row, column))).collect()
    }

    fn transpose(matrix: &[f64], columns: usize) -> Vec<f64> {
        (0..columns).flat_map(|column| matrix.iter().skip(column).step_by(columns).copied()).collect()
    }

    /// Computes `zeropower_via_newtonschulz5` of the published code, in `f64`.
    fn published(matrix: &[f64], [rows, columns]: [usize; 2]) -> Vec<f64> {
        let (a, b, c) = (3.4445, -4.7750, 2.0315);
        let tall = rows > columns;
        let (mut x, short, long) =
            if tall { (transpose(matrix, columns), columns, rows) } else { (matrix.to_vec(), rows, columns) };
        let norm = x.iter().map(|value| value * value).sum::<f64>().sqrt();
        x.iter_mut().for_each(|value| *value /= norm + 1e-7);
        for _ in 0..5 {
            let big_a = product(&x, &transpose(&x, long), long);
            let a_squared = product(&big_a, &big_a, short);
            let big_b: Vec<f64> = big_a.iter().zip(&a_squared).map(|(one, two)| b * one + c * two).collect();
            let moved = product(&big_b, &x, short);
            x = x.iter().zip(&moved).map(|(x, moved)| a * x + moved).collect();
        }
        if tall { transpose(&x, long) } else { x }
    }

    #[track_caller]
    fn assert_close(one: &[f64], other: &[f64]) {
        assert_eq!(one.len(), other.len());
        for (one, other) in one.iter().zip(other) {
            assert!((one - other).abs() < 1e-4, "{one} {other}");
        }
    }

    #[test]
    fn the_iteration_is_the_published_one_for_wide_square_and_tall_matrices() {
        for shape in [[6, 20], [16, 16], [33, 8]] {
            let matrix = noise(shape, 1);
            assert_close(&orthogonal(&matrix, shape), &published(&matrix, shape));
        }
    }

    #[test]
    fn all_directions_become_about_equally_long() {
        let shape = [8, 40];
        let spread: Vec<f64> =
            noise(shape, 2).iter().enumerate().map(|(at, value)| value * [1.0, 30.0][at / 40 % 2]).collect();
        let made = orthogonal(&spread, shape);
        let square = product(&made, &transpose(&made, 40), 40);
        for row in 0..8 {
            let length = square[row * 8 + row].sqrt();
            assert!((0.6..1.3).contains(&length), "{length}");
        }
        assert_eq!(orthogonal(&[0.0; 12], [3, 4]), [0.0; 12]);
    }

    #[test]
    fn steps_look_ahead_and_are_as_long_as_adamws() {
        let shape = [4, 24];
        let (first, second) = (noise(shape, 3), noise(shape, 4));
        let (rate, decay) = (0.01, 0.1);
        let mut buffer = vec![0.0; 96];
        let (mut expected, mut weights, mut mean) =
            (noise(shape, 5), narrow(&noise(shape, 5)), vec![0.0; 96]);
        let mut scratch = Scratch::default();
        for (step, gradient) in [&first, &second].into_iter().enumerate() {
            // As torch.optim.Muon: buf.lerp_(grad, 1 − μ); grad.lerp(buf, μ); lr · 0.2·√max(rows, columns).
            buffer.iter_mut().zip(gradient).for_each(|(buf, grad)| *buf += (grad - *buf) * 0.05);
            let ahead: Vec<f64> =
                gradient.iter().zip(&buffer).map(|(grad, buf)| grad + (buf - grad) * 0.95).collect();
            for (weight, direction) in expected.iter_mut().zip(published(&ahead, shape)) {
                *weight = *weight * (1.0 - rate * decay) - rate * 0.2 * 24f64.sqrt() * direction;
            }
            let params = StepParams { step: step as u64 + 1, learning_rate: rate, gradient_scale: 0.5 };
            // Clipping scales the gradient first.
            let doubled: Vec<f32> = gradient.iter().map(|value| (2.0 * value) as f32).collect();
            let matrix = Matrix { shape, weights: &mut weights, mean: &mut mean };
            super::step(&params, decay, matrix, &doubled, &mut scratch);
            assert_close(&wide(&weights), &expected);
            assert_close(&wide(&mean), &buffer);
        }
    }
}
