//! Comparison of a GPU's layer kernels with the CPU's, for a machine with a GPU but without a toolchain. The tests
//! check more.
//!
//! The error is the largest difference over the root mean square of the expected values. The bound is the sum of the
//! precision's rounding errors.

use crate::measure::noise;
use anyhow::Context as _;
use nn::{
    Device, Precision,
    gpu::{Array, Gpu, View},
    layers::{
        attention::{self, Shape},
        cross_entropy,
        matmul::{Mat, MatMut, Threads, Write, gpu::algorithms, matmul},
        rms_norm,
        rope::{self, Angles, Rotation},
        swiglu,
    },
};
use std::fmt;

/// Result of one comparison.
pub struct Closeness {
    /// Name of the kernel, with its shapes.
    what: String,
    error: f64,
    bound: f64,
}

impl Closeness {
    pub fn is_close(&self) -> bool {
        self.error <= self.bound
    }
}

impl fmt::Display for Closeness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "  {}: {:.1e}, bound {:.1e}", self.what, self.error, self.bound)
    }
}

/// `[m, n, k]`: sides that are not multiples of a tile, a small layer, and a long sum.
const PRODUCTS: [[usize; 3]; 3] = [[130, 259, 67], [512, 768, 256], [256, 256, 4096]];
/// Shapes of two sequences: short; three blocks, the last one short; wide heads.
const ATTENTIONS: [Shape; 3] = [
    Shape { seq_len: 67, heads: 6, kv_heads: 2, head_width: 64 },
    Shape { seq_len: 1101, heads: 4, kv_heads: 1, head_width: 32 },
    Shape { seq_len: 256, heads: 4, kv_heads: 2, head_width: 128 },
];

/// Compares products, attention and the other layers on the device with the CPU's, in every precision of the device,
/// with and without tensor cores.
///
/// # Errors
/// If the device fails; the error names the computation.
pub fn closeness(device: Device) -> anyhow::Result<Vec<Closeness>> {
    let gpu = Gpu::open(device)?;
    let mut all = Vec::new();
    for precision in [Precision::F32, Precision::Bf16, Precision::F16] {
        if gpu.supports(precision) {
            compare(&gpu, precision, &mut all)?;
            if gpu.has_tensor_cores(precision) {
                compare(&Gpu::open(device)?.without_tensor_cores(), precision, &mut all)?;
            }
        }
    }
    Ok(all)
}

fn compare(gpu: &Gpu, precision: Precision, all: &mut Vec<Closeness>) -> anyhow::Result<()> {
    let cores = if gpu.has_tensor_cores(precision) { "tensor cores" } else { "units" };
    let context = format!("{precision:?} on {cores}");
    for [m, n, k] in PRODUCTS {
        let what = format!("product {m}·{k}·{n}, {context}");
        all.extend(product(gpu, [m, n, k], precision, &what).context(what)?);
    }
    for shape in ATTENTIONS {
        let what = format!("attention of {shape:?}, {context}");
        all.extend(attends(gpu, &shape, precision, &what).context(what)?);
    }
    // The bound allows for a few values far larger than the others, with larger rounding errors.
    let bound = 4e-5 + 8.0 * rounding(precision);
    let outputs = others(gpu, precision).with_context(|| format!("a pass in {context}"))?;
    all.extend(outputs.into_iter().map(|Output { what, expected, got }| Closeness {
        what: format!("{what}, {context}"),
        error: apart(&expected, &got),
        bound,
    }));
    Ok(())
}

/// Compares [`Gpu::product`] into f32 and into the operands' precision, and each fallback algorithm.
fn product(
    gpu: &Gpu,
    [m, n, k]: [usize; 3],
    precision: Precision,
    what: &str,
) -> nn::gpu::Result<Vec<Closeness>> {
    let (lhs, lhs_values) = rounded(gpu, m * k, 1, precision)?;
    let (rhs, rhs_values) = rounded(gpu, k * n, 2, precision)?;
    let mut expected = vec![0.0; m * n];
    let (a, b) = (Mat::new(&lhs_values, [m, k]), Mat::new(&rhs_values, [k, n]));
    matmul(Write::Set, &mut MatMut::new(&mut expected, [m, n]), a, b, Threads::Pool);
    // Bound for two f32 sums of the same products in different orders.
    let sums = 4e-6 + 1e-6 * (k as f64).sqrt();
    let mut all = Vec::new();
    for to in [Precision::F32, precision] {
        let out = gpu.array(m * n, to)?;
        gpu.product(Write::Set, &out, [m, n], View::new(&lhs, [m, k]), View::new(&rhs, [k, n]))?;
        let error = distance(&expected, &gpu.download(&out)?);
        all.push(Closeness { what: format!("{what}, in {to:?}"), error, bound: sums + rounding(to) });
    }
    let out = gpu.array(m * n, Precision::F32)?;
    for algorithm in algorithms(gpu.has_tensor_cores(precision), precision, [m, n, k]) {
        // An unavailable algorithm is refused before any work is queued.
        if gpu.product_by(*algorithm, &out, View::new(&lhs, [m, k]), View::new(&rhs, [k, n])).is_ok() {
            let error = distance(&expected, &gpu.download(&out)?);
            all.push(Closeness {
                what: format!("{what}, by {algorithm:?}"),
                error,
                bound: sums + rounding(Precision::F32),
            });
        }
    }
    Ok(all)
}

fn attends(gpu: &Gpu, shape: &Shape, precision: Precision, what: &str) -> nn::gpu::Result<Vec<Closeness>> {
    let count = 2 * shape.seq_len;
    let [of_rows, of_mixed, of_sums] =
        [count * shape.row_width(), count * shape.heads * shape.head_width, count * shape.heads];
    let (rows, row_values) = rounded(gpu, of_rows, 3, precision)?;
    let (gradient, gradient_values) = rounded(gpu, of_mixed, 4, precision)?;
    let mixed_there = gpu.array(of_mixed, precision)?;
    let (sums_there, out_there) = (gpu.array(of_sums, Precision::F32)?, gpu.array(of_rows, precision)?);
    gpu.attention(shape, &rows, &mixed_there, &sums_there)?;
    gpu.attention_backward(shape, &rows, &mixed_there, &sums_there, &gradient, &out_there)?;

    let (mut mixed, mut sums, mut out) = (vec![0.0; of_mixed], vec![0.0; of_sums], vec![0.0; of_rows]);
    attention::forward(shape, &row_values, &mut mixed, &mut sums);
    attention::backward(shape, &row_values, &mixed, &sums, &gradient_values, &mut out);
    let [of_mixes, of_logarithms, of_gradients] = bounds(precision);
    let parts = [
        ("output", of_mixes, &mixed, &mixed_there),
        ("log-sums", of_logarithms, &sums, &sums_there),
        ("gradients", of_gradients, &out, &out_there),
    ];
    let closeness = |(name, bound, expected, got): (_, _, &Vec<f32>, _)| {
        let error = distance(expected, &gpu.download(got)?);
        Ok(Closeness { what: format!("{name} of {what}"), error, bound })
    };
    parts.into_iter().map(closeness).collect()
}

/// A kernel's expected and actual output.
struct Output {
    what: &'static str,
    expected: Vec<f64>,
    got: Vec<f32>,
}

/// Number of rows of the other layers, their width, positions of a sequence, and vocabulary.
const ROWS: usize = 65;
const WIDTH: usize = 384;
const POSITIONS: usize = 13;
const VOCAB: usize = 1000;
/// Query heads and key heads of a row, with as many value heads as key heads, and their width.
const HEADS: [usize; 2] = [2, 1];
const HEAD_WIDTH: usize = 96;
const EPSILON: f32 = 1e-5;
const SCALE: f32 = 0.25;

/// Compares RMSNorm, RoPE, SwiGLU and cross-entropy, and their gradients.
fn others(gpu: &Gpu, precision: Precision) -> nn::gpu::Result<Vec<Output>> {
    let mut all = Vec::new();
    let mut add = |what, expected, array: &Array| -> nn::gpu::Result<()> {
        all.push(Output { what, expected, got: gpu.download(array)? });
        Ok(())
    };
    let zeros = |len| -> nn::gpu::Result<Array> {
        let array = gpu.array(len, Precision::F32)?;
        gpu.fill(&array, 0.0)?;
        Ok(array)
    };

    let (x, x_here) = rounded(gpu, ROWS * WIDTH, 5, Precision::F32)?;
    let (gain, gain_here) = rounded(gpu, WIDTH, 6, Precision::F32)?;
    let (grad_y, grad_y_here) = rounded(gpu, ROWS * WIDTH, 7, precision)?;
    let (y, roots) = (gpu.array(ROWS * WIDTH, precision)?, gpu.array(ROWS, Precision::F32)?);
    gpu.rms_norm(&x, &gain, Some(EPSILON), &y, &roots)?;
    add("norms", rms_norm::reference::forward(&x_here, &gain_here, EPSILON), &y)?;
    let (grad_x, grad_gain) = (zeros(ROWS * WIDTH)?, zeros(WIDTH)?);
    gpu.rms_norm_backward(&x, &gain, &roots, &grad_y, &grad_x, &grad_gain)?;
    let (expected_x, expected_gain) =
        rms_norm::reference::backward(&x_here, &gain_here, EPSILON, &grad_y_here);
    add("norms' gradients", expected_x, &grad_x)?;
    add("gradients of norms' gains", expected_gain, &grad_gain)?;

    let (rotated, before) = rounded(gpu, ROWS * WIDTH, 8, precision)?;
    let angles = gpu.upload_angles(&Angles::new(POSITIONS, HEAD_WIDTH, 1e4))?;
    gpu.rope(&rotated, WIDTH, HEADS, POSITIONS, &angles, Rotation::Forward)?;
    let mut expected = Vec::new();
    for (row, before) in before.chunks_exact(WIDTH).enumerate() {
        let (rotates, stays) = before.split_at((HEADS[0] + HEADS[1]) * HEAD_WIDTH);
        expected.extend(rope::reference::rotate(rotates, HEADS[0], HEAD_WIDTH, row % POSITIONS, 1e4));
        expected.extend(stays.iter().map(|value| f64::from(*value)));
    }
    add("positions", expected, &rotated)?;

    let (both, both_here) = rounded(gpu, ROWS * WIDTH, 9, precision)?;
    let (grad_h, grad_h_here) = rounded(gpu, ROWS * WIDTH / 2, 10, precision)?;
    gpu.swiglu_backward(&both, WIDTH / 2, &grad_h)?;
    add("gates", swiglu::reference::forward(&both_here, WIDTH / 2), &grad_h)?;
    add("gates' gradients", swiglu::reference::backward(&both_here, WIDTH / 2, &grad_h_here), &both)?;

    let (logits, logits_here) = rounded(gpu, ROWS * VOCAB, 11, precision)?;
    let targets: Vec<u32> = (0..ROWS).map(|row| (row * 389 % VOCAB) as u32).collect();
    let tokens = gpu.upload_tokens(VOCAB, &targets)?;
    let losses = gpu.array(ROWS, Precision::F32)?;
    gpu.cross_entropy(&logits, &tokens, 0, &losses, Some(SCALE))?;
    add("losses", cross_entropy::reference::losses(&logits_here, VOCAB, &targets), &losses)?;
    add(
        "losses' gradients",
        cross_entropy::reference::gradient(&logits_here, VOCAB, &targets, SCALE),
        &logits,
    )?;
    Ok(all)
}

/// Returns the bounds for attention's output, log-sums and gradients. In 16 bits, probabilities and gradients of
/// scores are rounded too.
fn bounds(precision: Precision) -> [f64; 3] {
    match precision {
        Precision::F32 => [4e-5, 1e-5, 1e-4],
        _ => [3.0 * rounding(precision), 1e-5, 12.0 * rounding(precision)],
    }
}

/// Returns half a unit in the last place of the largest of many values, about five times their root mean square.
fn rounding(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 0.0,
        Precision::Bf16 => 5.0 / 256.0,
        Precision::F16 => 5.0 / 2048.0,
    }
}

/// Returns [`apart`] for expected values in f32.
fn distance(expected: &[f32], got: &[f32]) -> f64 {
    let expected: Vec<f64> = expected.iter().map(|value| f64::from(*value)).collect();
    apart(&expected, got)
}

/// Returns the largest difference over the root mean square of the expected values.
fn apart(expected: &[f64], got: &[f32]) -> f64 {
    let squares: f64 = expected.iter().map(|value| value.powi(2)).sum();
    let root = (squares / expected.len() as f64).sqrt().max(1e-30);
    let differences = expected.iter().zip(got).map(|(a, b)| (a - f64::from(*b)).abs());
    // Comparisons with NaN are false, so NaN needs its own test.
    differences.fold(0.0, |worst: f64, it| if it.is_nan() || it > worst { it } else { worst }) / root
}

/// Returns [`noise`] on the device, and the values as rounded there.
fn rounded(gpu: &Gpu, len: usize, seed: u64, precision: Precision) -> nn::gpu::Result<(Array, Vec<f32>)> {
    let values = noise(len, seed);
    let array = gpu.upload(&values, precision)?;
    let rounded = gpu.download(&array)?;
    Ok((array, rounded))
}
