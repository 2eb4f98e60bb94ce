//! Muon's step for one matrix: momentum whose singular values are all made nearly one.
//!
//! As Keller Jordan published it (2024): Nesterov's momentum, then five steps of a Newton–Schulz iteration whose quintic
//! polynomial pushes every singular value to between 0.7 and 1.2. The size of the step is scaled by
//! `0.2·√max(rows, columns)` (Liu et al., "Muon is scalable for LLM training", 2025): a step then changes a weight by about
//! as much as one of AdamW's, so that both go by one learning rate and one weight decay. PyTorch has the same as
//! `torch.optim.Muon(adjust_lr_fn="match_rms_adamw")`, with the iteration in bf16 where this one is in f32.

use burn::tensor::Tensor;

/// How much of the mean gradient a step keeps.
const MOMENTUM: f64 = 0.95;
const ITERATIONS: usize = 5;
/// The quintic `a·x + b·x³ + c·x⁵`.
const QUINTIC: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// A matrix of zeros has no direction.
const NORM_MIN: f64 = 1e-7;
/// Root mean square of an AdamW step, in learning rates.
const LIKE_ADAMW: f64 = 0.2;

/// The mean gradient with this one in it.
pub(crate) fn momentum(before: Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
    before.mul_scalar(MOMENTUM) + gradient.mul_scalar(1.0 - MOMENTUM)
}

/// What the learning rate is multiplied by and the weights go against, from this step's mean gradient and gradient.
pub(crate) fn direction(momentum: Tensor<2>, gradient: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = gradient.dims();
    let ahead = gradient.mul_scalar(1.0 - MOMENTUM) + momentum.mul_scalar(MOMENTUM);
    orthogonalised(ahead).mul_scalar(LIKE_ADAMW * (rows.max(columns) as f64).sqrt())
}

/// The nearest thing to an orthogonal matrix that five iterations give.
fn orthogonalised(matrix: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = matrix.dims();
    // The product of the short side with itself is the cheaper one.
    let tall = rows > columns;
    let x = if tall { matrix.transpose() } else { matrix };
    let norm = x.clone().square().sum().sqrt().clamp_min(NORM_MIN);
    let mut x = x / norm.reshape([1, 1]);
    let [a, b, c] = QUINTIC;
    for _ in 0..ITERATIONS {
        let square = x.clone().matmul(x.clone().transpose());
        let polynomial = square.clone().mul_scalar(b) + square.clone().matmul(square).mul_scalar(c);
        x = x.clone().mul_scalar(a) + polynomial.matmul(x);
    }
    if tall { x.transpose() } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    /// Between −1 and 1, and of full rank: a sine of the position alone has rank two.
    fn noise([rows, columns]: [usize; 2], seed: usize) -> Vec<f64> {
        let value = |at: usize| (((at * 7919 + seed * 104_729) as f64).sin() * 43_758.545).fract();
        (0..rows * columns).map(value).collect()
    }

    fn tensor(values: &[f64], shape: [usize; 2]) -> Tensor<2> {
        let values: Vec<f32> = values.iter().map(|value| *value as f32).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn values(tensor: Tensor<2>) -> Vec<f64> {
        tensor.into_data().as_slice::<f32>().unwrap().iter().map(|value| f64::from(*value)).collect()
    }

    /// Row by column.
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

    /// `zeropower_via_newtonschulz5` of the published code, in loops of f64.
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
            assert_close(&values(orthogonalised(tensor(&matrix, shape))), &published(&matrix, shape));
        }
    }

    #[test]
    fn all_directions_become_about_equally_long() {
        let shape = [8, 40];
        let spread: Vec<f64> =
            noise(shape, 2).iter().enumerate().map(|(at, value)| value * [1.0, 30.0][at / 40 % 2]).collect();
        let made = values(orthogonalised(tensor(&spread, shape)));
        let square = product(&made, &transpose(&made, 40), 40);
        for row in 0..8 {
            let length = square[row * 8 + row].sqrt();
            assert!((0.6..1.3).contains(&length), "{length}");
        }
        let nothing = values(orthogonalised(tensor(&[0.0; 12], [3, 4])));
        assert_eq!(nothing, [0.0; 12]);
    }

    #[test]
    fn steps_look_ahead_and_are_as_long_as_adamws() {
        let shape = [4, 24];
        let (first, second) = (noise(shape, 3), noise(shape, 4));
        let mut of_torch = vec![0.0; 96];
        let mut ours = Tensor::zeros(shape, &Device::flex());
        for gradient in [&first, &second] {
            // As torch.optim.Muon: buf.lerp_(grad, 1 − μ); grad.lerp(buf, μ); lr · 0.2·√max(rows, columns).
            of_torch.iter_mut().zip(gradient).for_each(|(buf, grad)| *buf += (grad - *buf) * 0.05);
            let ahead: Vec<f64> =
                gradient.iter().zip(&of_torch).map(|(grad, buf)| grad + (buf - grad) * 0.95).collect();
            let expected: Vec<f64> =
                published(&ahead, shape).iter().map(|value| value * 0.2 * 24f64.sqrt()).collect();

            ours = momentum(ours, tensor(gradient, shape));
            assert_close(&values(direction(ours.clone(), tensor(gradient, shape))), &expected);
        }
    }
}
