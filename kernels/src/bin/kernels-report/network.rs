//! The kernels that a network's passes on a GPU are made of, beside a copy of its own memory.

use crate::{
    Options,
    measure::shortest,
    products::{self, Rate, Rates},
    random::{self, Distribution},
    report::{Gbps, values_of, zeros},
};
use kernels::{
    adamw,
    gpu::{
        Device, GpuError,
        network::{Array, Precision},
    },
    rotary::{Angles, Rotation},
    wire::Layout,
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
pub struct NetworkReport {
    device: String,
    /// What products read: the stream, sums and weights are f32 beside it.
    precision: String,
    /// Values that each kernel works on.
    values: usize,
    /// Bytes read and written a second by a copy in the device's memory.
    copy_moved_gbps: Gbps,
    kernels: Vec<NetworkKernel>,
    products: Rates,
}

#[derive(Debug, Serialize)]
struct NetworkKernel {
    name: &'static str,
    seconds: f64,
    /// Bytes read and written a second: what cannot be helped. A second look at what was just read does not count.
    moved_gbps: Gbps,
    share_of_copy: f64,
}

/// A kernel's name, the bytes that it must move, and a run of it.
type Case<'a> = (&'static str, usize, Box<dyn FnMut() -> Result<(), GpuError> + 'a>);

pub fn measure(options: &Options, name: &str) -> anyhow::Result<NetworkReport> {
    let device = Device::open(name)?;
    let precision = if device.supports(Precision::Bf16) { Precision::Bf16 } else { Precision::F32 };
    let values = values_of(options.mebivalues)?;
    let (rows, kept) = (values / WIDTH, precision.bytes());

    let mut row = zeros(values)?;
    random::fill(&mut row, Distribution::Gaussian, 1);
    let layout = Layout::new(&[values], options.density)?;
    let (from, mut to) = (device.upload(&layout, &row)?, device.zeros(&layout));
    let wide: Vec<Array> =
        (0..4).map(|_| device.upload_array(&row, Precision::F32)).collect::<Result<_, _>>()?;
    let [x, of_x, mean, square] = &wide[..] else { unreachable!("four were made") };
    let (y, of_y) = (device.upload_array(&row, precision)?, device.upload_array(&row, precision)?);
    let half = device.array(values / 2, precision)?;
    let gain = device.upload_array(&row[..WIDTH], Precision::F32)?;
    let (of_gain, roots) = (device.array(WIDTH, Precision::F32)?, device.array(rows, Precision::F32)?);
    let angles = device.upload_angles(&Angles::new(SEQ_LEN, HEAD_WIDTH, 1e4))?;

    // Tokens as a text has them: few that come often, many that seldom come.
    let vocab = rows.min(VOCAB_MAX);
    let token =
        |index: usize| ((vocab as f64).powf(row[index].abs().min(4.0).into()) as usize % vocab) as u32;
    let tokens: Vec<u32> = (0..rows).map(token).collect();
    let mut different = tokens.clone();
    different.sort_unstable();
    different.dedup();
    let embedding = device.array(vocab * WIDTH, precision)?;
    let of_embedding = device.array(vocab * WIDTH, Precision::F32)?;
    device.fill(&embedding, 0.5)?;
    device.fill(&of_embedding, 0.0)?;
    let segments = device.upload_segments(vocab, &tokens)?;
    let tokens = device.upload_tokens(vocab, &tokens)?;
    let targets = vec![0; values / VOCAB_MAX];
    let losses = device.array(targets.len(), Precision::F32)?;
    let targets = device.upload_tokens(VOCAB_MAX, &targets)?;
    let numbers = adamw::Numbers::new([0.9, 0.95], 10, 1e-8, 1e-3, 0.1, 1.0);
    let turned = rows * (HEADS[0] + HEADS[1]) * HEAD_WIDTH;
    drop(row);

    let mut cases: Vec<Case> = vec![
        ("copy", 8 * values, Box::new(|| device.copy(&from, &mut to))),
        ("rms_norm", (4 + kept) * values, Box::new(|| device.rms_norm(x, &gain, 1e-5, &y, &roots))),
        (
            "rms_norm, back",
            (12 + kept) * values,
            Box::new(|| device.rms_norm_backward(x, &gain, &roots, &y, of_x, &of_gain)),
        ),
        (
            "rotary",
            2 * kept * turned,
            Box::new(|| device.rotary(&y, WIDTH, HEADS, SEQ_LEN, &angles, Rotation::Forward)),
        ),
        ("swiglu", 3 * kept * (values / 2), Box::new(|| device.swiglu(&y, WIDTH / 2, &half))),
        ("swiglu, back", 6 * kept * (values / 2), Box::new(|| device.swiglu_backward(&y, WIDTH / 2, &half))),
        ("losses", kept * values, Box::new(|| device.cross_entropy(&of_y, &targets, 0, &losses))),
        (
            "losses and gradient",
            2 * kept * values,
            Box::new(|| device.cross_entropy_gradient(&of_y, &targets, 0, &losses, 1e-3)),
        ),
        ("embedding", (4 + kept) * values, Box::new(|| device.embedding(&embedding, &tokens, x))),
        (
            "embedding, back",
            4 * values + 8 * WIDTH * different.len(),
            Box::new(|| device.embedding_backward(&segments, of_x, &of_embedding)),
        ),
        ("sum", (8 + kept) * values, Box::new(|| device.add_to(x, &y))),
        ("cast", (4 + kept) * values, Box::new(|| device.cast(x, &y))),
        ("sum of squares", 4 * values, Box::new(|| device.sum_of_squares(&[of_x]).map(drop))),
        ("adamw", (28 + kept) * values, Box::new(|| device.adamw(&numbers, x, Some(&y), mean, square, of_x))),
    ];
    let mut kernels: Vec<NetworkKernel> = Vec::new();
    for (name, bytes, run) in &mut cases {
        // The first run compiles.
        run()?;
        device.finish()?;
        let mut failed = None;
        let seconds = shortest(usize::from(options.rounds), || {
            failed = failed.take().or(run().and_then(|()| device.finish()).err());
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let moved_gbps = *bytes as f64 / seconds / 1e9;
        let of_copy = kernels.first().map_or(moved_gbps, |copy| copy.moved_gbps);
        kernels.push(NetworkKernel { name, seconds, moved_gbps, share_of_copy: moved_gbps / of_copy });
    }
    drop(cases);
    let products = products::measure(options, &device, precision);
    Ok(NetworkReport {
        device: device.name().to_owned(),
        precision: format!("{precision:?}").to_lowercase(),
        values,
        copy_moved_gbps: kernels[0].moved_gbps,
        kernels,
        products,
    })
}

impl fmt::Display for NetworkReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} values, kept in {}", self.device, self.values, self.precision)?;
        writeln!(f, "\n{:<30} {:>12} {:>12} {:>10}", "kernel", "ms", "moved GB/s", "of a copy")?;
        for NetworkKernel { name, seconds, moved_gbps, share_of_copy } in &self.kernels {
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
