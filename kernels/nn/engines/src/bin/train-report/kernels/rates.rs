//! The rates of a GPU's kernels, beside a copy in its own memory.

use super::{
    Options,
    products::{self, Rate, Rates},
};
use crate::measure::shortest;
use model::Recipe;
use nn::{
    Device, Precision, StepParams,
    gpu::{Array, Gpu, GpuError},
    layers::rope::{Angles, Rotation},
    optim::adamw::Coefficients,
};
use serde::Serialize;
use std::fmt;

/// Values of a row of the residual stream, and of a head: a row holds 8 heads of queries, 4 of keys and 4 of values.
const WIDTH: usize = 1024;
const HEAD_WIDTH: usize = 64;
const HEADS: [usize; 2] = [8, 4];
/// Tokens of a vocabulary at most.
const VOCAB_MAX: usize = 1 << 15;
const SEQ_LEN: usize = 1024;

#[derive(Debug, Serialize)]
pub struct Report {
    device: String,
    /// Of products. The residual stream, sums and weights are f32.
    precision: String,
    /// Values that each kernel works on.
    values: usize,
    /// 10^9 bytes read and written per second by a copy in the device's memory.
    copy_moved_gbps: f64,
    kernels: Vec<Kernel>,
    products: Rates,
}

#[derive(Debug, Serialize)]
struct Kernel {
    name: &'static str,
    seconds: f64,
    /// 10^9 bytes per second that the kernel must read and write. Reading a value again does not count.
    moved_gbps: f64,
    share_of_copy: f64,
}

/// A kernel's name, the bytes that it must move, and a run of it.
type Case<'a> = (&'static str, usize, Box<dyn FnMut() -> Result<(), GpuError> + 'a>);

pub fn measure(options: &Options, device: Device) -> anyhow::Result<Report> {
    let gpu = Gpu::open(device)?;
    let precision = if gpu.supports(Precision::Bf16) { Precision::Bf16 } else { Precision::F32 };
    let values = usize::try_from(options.mebivalues << 20)?;
    let (rows, kept) = (values / WIDTH, precision.bytes());

    let row = noise(values);
    let wide: Vec<Array> = (0..4).map(|_| gpu.upload(&row, Precision::F32)).collect::<Result<_, _>>()?;
    let [x, grad_x, mean, square] = &wide[..] else { unreachable!("four were made") };
    let (y, grad_y) = (gpu.upload(&row, precision)?, gpu.upload(&row, precision)?);
    let half = gpu.array(values / 2, precision)?;
    let gain = gpu.upload(&row[..WIDTH], Precision::F32)?;
    let (grad_gain, roots) = (gpu.array(WIDTH, Precision::F32)?, gpu.array(rows, Precision::F32)?);
    let angles = gpu.upload_angles(&Angles::new(SEQ_LEN, HEAD_WIDTH, 1e4))?;

    // Tokens as in a text: a few are frequent, many are rare.
    let vocab = rows.min(VOCAB_MAX);
    let token =
        |index: usize| ((vocab as f64).powf(row[index].abs().min(4.0).into()) as usize % vocab) as u32;
    let tokens: Vec<u32> = (0..rows).map(token).collect();
    let mut different = tokens.clone();
    different.sort_unstable();
    different.dedup();
    let embedding = gpu.array(vocab * WIDTH, precision)?;
    let grad_embedding = gpu.array(vocab * WIDTH, Precision::F32)?;
    gpu.fill(&embedding, 0.5)?;
    gpu.fill(&grad_embedding, 0.0)?;
    let segments = gpu.upload_segments(vocab, &tokens)?;
    let tokens = gpu.upload_tokens(vocab, &tokens)?;
    let targets = vec![0; values / VOCAB_MAX];
    let losses = gpu.array(targets.len(), Precision::F32)?;
    let targets = gpu.upload_tokens(VOCAB_MAX, &targets)?;
    let params = StepParams { step: 10, learning_rate: 1e-3, gradient_scale: 1.0 };
    let coefficients = Coefficients::new(&Recipe::default(), &params, 0.1);
    let rotated = rows * (HEADS[0] + HEADS[1]) * HEAD_WIDTH;
    drop(row);

    let mut cases: Vec<Case> = vec![
        ("copy", 8 * values, Box::new(|| gpu.cast(x, mean))),
        ("rms_norm", (4 + kept) * values, Box::new(|| gpu.rms_norm(x, &gain, 1e-5, &y, &roots))),
        (
            "rms_norm, backward",
            (12 + kept) * values,
            Box::new(|| gpu.rms_norm_backward(x, &gain, &roots, &y, grad_x, &grad_gain)),
        ),
        (
            "rope",
            2 * kept * rotated,
            Box::new(|| gpu.rope(&y, WIDTH, HEADS, SEQ_LEN, &angles, Rotation::Forward)),
        ),
        ("swiglu", 3 * kept * (values / 2), Box::new(|| gpu.swiglu(&y, WIDTH / 2, &half))),
        ("swiglu, backward", 6 * kept * (values / 2), Box::new(|| gpu.swiglu_backward(&y, WIDTH / 2, &half))),
        ("losses", kept * values, Box::new(|| gpu.cross_entropy(&grad_y, &targets, 0, &losses))),
        (
            "losses and gradient",
            2 * kept * values,
            Box::new(|| gpu.cross_entropy_gradient(&grad_y, &targets, 0, &losses, 1e-3)),
        ),
        ("embedding", (4 + kept) * values, Box::new(|| gpu.embedding(&embedding, &tokens, x))),
        (
            "embedding, backward",
            4 * values + 8 * WIDTH * different.len(),
            Box::new(|| gpu.embedding_backward(&segments, grad_x, &grad_embedding)),
        ),
        ("sum", (8 + kept) * values, Box::new(|| gpu.add_to(x, &y))),
        ("cast", (4 + kept) * values, Box::new(|| gpu.cast(x, &y))),
        ("sum of squares", 4 * values, Box::new(|| gpu.sum_of_squares(&[grad_x]).map(drop))),
        (
            "adamw",
            (28 + kept) * values,
            Box::new(|| gpu.adamw(&coefficients, x, Some(&y), mean, square, grad_x)),
        ),
    ];
    let mut kernels: Vec<Kernel> = Vec::new();
    for (name, bytes, run) in &mut cases {
        // The first run compiles.
        run()?;
        gpu.finish()?;
        let mut failed = None;
        let seconds = shortest(usize::from(options.rounds), || {
            failed = failed.take().or(run().and_then(|()| gpu.finish()).err());
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let moved_gbps = *bytes as f64 / seconds / 1e9;
        let copy = kernels.first().map_or(moved_gbps, |copy| copy.moved_gbps);
        kernels.push(Kernel { name, seconds, moved_gbps, share_of_copy: moved_gbps / copy });
    }
    drop(cases);
    let products = products::measure(options, &gpu, precision);
    Ok(Report {
        device: device.to_string(),
        precision: format!("{precision:?}").to_lowercase(),
        values,
        copy_moved_gbps: kernels[0].moved_gbps,
        kernels,
        products,
    })
}

/// Noise with a variance of about one: the sum of four uniform numbers, scaled.
fn noise(values: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..values).map(|_| (next() + next() + next() + next()) * 1.73).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} values, kept in {}", self.device, self.values, self.precision)?;
        writeln!(f, "\n{:<30} {:>12} {:>12} {:>10}", "kernel", "ms", "moved GB/s", "of a copy")?;
        for Kernel { name, seconds, moved_gbps, share_of_copy } in &self.kernels {
            let share = 100.0 * share_of_copy;
            writeln!(f, "{name:<30} {:>12.3} {moved_gbps:>12.2} {share:>9.1}%", 1e3 * seconds)?;
        }
        writeln!(f, "\n{:<70} {:>12} {:>10}", "product or attention", "ms", "TFLOP/s")?;
        for Rate { name, seconds, tflops } in &self.products.measured {
            writeln!(f, "{name:<70} {:>12.3} {tflops:>10.3}", 1e3 * seconds)?;
        }
        for failed in &self.products.failed {
            writeln!(f, "failed: {failed}")?;
        }
        Ok(())
    }
}
