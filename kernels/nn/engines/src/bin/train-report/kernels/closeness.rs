//! The layers' kernels of a GPU beside those of the CPU, for a machine that has a GPU and no toolchain; the tests
//! check more.
//!
//! The error is the largest difference over the root mean square of the expected values. The bound is what roundings
//! of the precision add up to.

use nn::{
    Device, DeviceError, Precision,
    gpu::{Array, Gpu, GpuError},
    layers::{
        attention::{self, Shape},
        cross_entropy,
        matmul::{
            Mat, MatMut, Threads, Write,
            gpu::{Algorithm, View, algorithms},
            matmul,
        },
        rms_norm,
        rope::{self, Angles, Rotation},
        swiglu,
    },
};

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Closeness {
    /// What was compared, with its shapes.
    pub what: String,
    pub error: f64,
    pub bound: f64,
    /// Whether the engine uses this algorithm. An unused one is reported, and is no failure.
    pub used: bool,
}

impl Closeness {
    pub fn is_close(&self) -> bool {
        self.error <= self.bound
    }

    pub fn holds(&self) -> bool {
        self.is_close() || !self.used
    }
}

/// `[m, n, k]`: sides that no tile divides, a small layer's, and a long sum.
const PRODUCTS: [[usize; 3]; 3] = [[130, 259, 67], [512, 768, 256], [256, 256, 4096]];
/// Two sequences each: short; three blocks, the last one short; wide heads.
const ATTENTIONS: [Shape; 3] = [
    Shape { seq_len: 67, heads: 6, kv_heads: 2, head_width: 64 },
    Shape { seq_len: 1101, heads: 4, kv_heads: 1, head_width: 32 },
    Shape { seq_len: 256, heads: 4, kv_heads: 2, head_width: 128 },
];

/// Compares products, attention and the other layers on the device with the CPU's: in every precision that the device
/// has, with and without tensor cores, by each algorithm for products.
pub fn closeness(device: Device) -> Result<Vec<Closeness>, DeviceError> {
    let precisions = [Precision::F32, Precision::Bf16, Precision::F16];
    let (mut all, mut all_cores) = (Vec::new(), Vec::new());
    let gpus = [(Gpu::open(device)?, false), (Gpu::open(device)?.without_tensor_cores(), true)];
    for (gpu, again) in gpus {
        for precision in precisions {
            // Without tensor cores nothing would be different a second time.
            let different = !again || all_cores.contains(&precision);
            if gpu.supports(precision) && different {
                let cores = if gpu.has_tensor_cores(precision) { "tensor cores" } else { "units" };
                let context = format!("{precision:?} on {cores}");
                all_cores.extend(gpu.has_tensor_cores(precision).then_some(precision));
                for shape in PRODUCTS {
                    products(&gpu, shape, precision, &context, true, &mut all);
                }
                ATTENTIONS.iter().for_each(|shape| attends(&gpu, shape, precision, &context, &mut all));
                match others(&gpu, precision) {
                    Ok(results) => all.extend(results.into_iter().map(|result| result.closeness(precision))),
                    Err(error) => take(&mut all, format!("a pass in {context}"), 0.0, Err(error)),
                }
            }
        }
    }
    // Last: an unused kernel must not spoil the device for those in use.
    let gpu = Gpu::open(device)?;
    for precision in precisions.into_iter().filter(|precision| gpu.supports(*precision)) {
        for shape in PRODUCTS {
            products(&gpu, shape, precision, &format!("{precision:?}"), false, &mut all);
        }
    }
    Ok(all)
}

/// A result that failed is as far off as can be.
fn take(all: &mut Vec<Closeness>, what: String, bound: f64, error: Result<f64, GpuError>) {
    match error {
        Ok(error) => all.push(Closeness { what, error, bound, used: true }),
        Err(error) => {
            all.push(Closeness { what: format!("{what}: {error}"), error: f64::INFINITY, bound, used: true })
        }
    }
}

/// Compares [`Gpu::product`] and the algorithms that it may choose, or those that it never chooses.
fn products(
    gpu: &Gpu,
    [m, n, k]: [usize; 3],
    precision: Precision,
    context: &str,
    used: bool,
    all: &mut Vec<Closeness>,
) {
    let operands = || -> Result<_, GpuError> {
        Ok([rounded(gpu, m * k, 1, precision)?, rounded(gpu, k * n, 2, precision)?])
    };
    let [(lhs, lhs_values), (rhs, rhs_values)] = match operands() {
        Ok(operands) => operands,
        Err(error) => return take(all, format!("a product's operands in {context}"), 0.0, Err(error)),
    };
    let mut expected = vec![0.0; m * n];
    let (a, b) = (Mat::new(&lhs_values, [m, k]), Mat::new(&rhs_values, [k, n]));
    matmul(Write::Set, &mut MatMut::new(&mut expected, [m, n]), a, b, Threads::Pool);
    let views = (View::new(&lhs, [m, k]), View::new(&rhs, [k, n]));
    let mut compare =
        |what: String, bound: f64, run: &dyn Fn(&Array) -> Result<(), GpuError>, to: Precision| {
            let got = gpu.array(m * n, to).and_then(|out| run(&out).and_then(|()| gpu.download(&out)));
            take(all, what, bound, got.map(|got| distance(&expected, &got)));
            all.last_mut().into_iter().for_each(|last| last.used = used);
        };
    // Two f32 sums of the same products in other orders.
    let sums = 4e-6 + 1e-6 * (k as f64).sqrt();
    let what = format!("product {m}·{k}·{n}, {context}");
    let product = |out: &Array| gpu.product(Write::Set, out, [m, n], views.0, views.1);
    if used {
        compare(format!("{what}, in f32"), sums, &product, Precision::F32);
        compare(what.clone(), sums + rounding(precision), &product, precision);
    }
    let chosen = algorithms(gpu.has_tensor_cores(precision), precision, [m, n, k]);
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| chosen.contains(algorithm) == used) {
        let run = |out: &Array| gpu.product_by(algorithm, out, views.0, views.1);
        let there = gpu.array(m * n, Precision::F32).and_then(|out| run(&out));
        if there.is_ok() {
            // Tensor cores take 11 bits of an operand of f32.
            let plain =
                precision != Precision::F32 || matches!(algorithm, Algorithm::Units | Algorithm::Plain);
            compare(
                format!("{what}, by {algorithm:?}"),
                if plain { sums } else { 5e-3 },
                &run,
                Precision::F32,
            );
        }
    }
}

fn attends(gpu: &Gpu, shape: &Shape, precision: Precision, context: &str, all: &mut Vec<Closeness>) {
    let count = 2 * shape.seq_len;
    let [of_rows, of_mixed, of_sums] =
        [count * shape.row_width(), count * shape.heads * shape.head_width, count * shape.heads];
    let run = || -> Result<_, GpuError> {
        let (rows, row_values) = rounded(gpu, of_rows, 3, precision)?;
        let (gradient, gradient_values) = rounded(gpu, of_mixed, 4, precision)?;
        let mixed = gpu.array(of_mixed, precision)?;
        let (sums, out) = (gpu.array(of_sums, Precision::F32)?, gpu.array(of_rows, precision)?);
        gpu.attention(shape, &rows, &mixed, &sums)?;
        gpu.attention_backward(shape, &rows, &mixed, &sums, &gradient, &out)?;
        let got = [gpu.download(&mixed)?, gpu.download(&sums)?, gpu.download(&out)?];
        Ok((row_values, gradient_values, got))
    };
    let what = format!("{shape:?}, {context}");
    let (rows, gradient, got) = match run() {
        Ok(all) => all,
        Err(error) => return take(all, format!("attention of {what}"), 0.0, Err(error)),
    };
    let (mut mixed, mut sums, mut out) = (vec![0.0; of_mixed], vec![0.0; of_sums], vec![0.0; of_rows]);
    attention::forward(shape, &rows, &mut mixed, &mut sums);
    attention::backward(shape, &rows, &mixed, &sums, &gradient, &mut out);
    let [of_mixes, of_logarithms, of_gradients] = bounds(precision);
    for (name, bound, expected, got) in [
        ("output", of_mixes, &mixed, &got[0]),
        ("log-sums", of_logarithms, &sums, &got[1]),
        ("gradients", of_gradients, &out, &got[2]),
    ] {
        take(all, format!("attention's {name} of {what}"), bound, Ok(distance(expected, got)));
    }
}

/// A kernel's expected and actual output.
struct Output {
    what: &'static str,
    expected: Vec<f64>,
    got: Vec<f32>,
}

impl Output {
    /// The bound allows for a few values that are far larger than the others, and so are their roundings.
    fn closeness(self, precision: Precision) -> Closeness {
        let what = format!("{}, {precision:?}", self.what);
        let bound = 4e-5 + 8.0 * rounding(precision);
        Closeness { what, error: apart(&self.expected, &self.got), bound, used: true }
    }
}

/// Rows of the other layers, their width, positions of a sequence, and a vocabulary.
const ROWS: usize = 65;
const WIDTH: usize = 384;
const POSITIONS: usize = 13;
const VOCAB: usize = 1000;
/// Heads of queries and of keys in a row, which has as many of values, and their width.
const HEADS: [usize; 2] = [2, 1];
const HEAD_WIDTH: usize = 96;
const EPSILON: f32 = 1e-5;
const SCALE: f32 = 0.25;

/// RMSNorm, RoPE, SwiGLU and cross-entropy, and their gradients.
fn others(gpu: &Gpu, precision: Precision) -> Result<Vec<Output>, GpuError> {
    let mut all = Vec::new();
    let mut add = |what, expected, array: &Array| -> Result<(), GpuError> {
        all.push(Output { what, expected, got: gpu.download(array)? });
        Ok(())
    };
    let zeros = |len| -> Result<Array, GpuError> {
        let array = gpu.array(len, Precision::F32)?;
        gpu.fill(&array, 0.0)?;
        Ok(array)
    };

    let (x, x_here) = rounded(gpu, ROWS * WIDTH, 5, Precision::F32)?;
    let (gain, gain_here) = rounded(gpu, WIDTH, 6, Precision::F32)?;
    let (grad_y, grad_y_here) = rounded(gpu, ROWS * WIDTH, 7, precision)?;
    let (y, roots) = (gpu.array(ROWS * WIDTH, precision)?, gpu.array(ROWS, Precision::F32)?);
    gpu.rms_norm(&x, &gain, EPSILON, &y, &roots)?;
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
    gpu.cross_entropy_gradient(&logits, &tokens, 0, &losses, SCALE)?;
    add("losses", cross_entropy::reference::losses(&logits_here, VOCAB, &targets), &losses)?;
    add(
        "losses' gradients",
        cross_entropy::reference::gradient(&logits_here, VOCAB, &targets, SCALE),
        &logits,
    )?;
    Ok(all)
}

/// Bounds for attention's output, log-sums and gradients. In 16 bits, probabilities and gradients of scores are
/// rounded too.
fn bounds(precision: Precision) -> [f64; 3] {
    match precision {
        Precision::F32 => [4e-5, 1e-5, 1e-4],
        _ => [3.0 * rounding(precision), 1e-5, 12.0 * rounding(precision)],
    }
}

/// Half a unit in the last place of the largest of many values, which is about five times their root mean square.
fn rounding(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 0.0,
        Precision::Bf16 => 5.0 / 256.0,
        Precision::F16 => 5.0 / 2048.0,
    }
}

/// [`apart`] of what was computed in f32.
fn distance(expected: &[f32], got: &[f32]) -> f64 {
    let expected: Vec<f64> = expected.iter().map(|value| f64::from(*value)).collect();
    apart(&expected, got)
}

/// The largest difference over the root mean square of what is expected.
fn apart(expected: &[f64], got: &[f32]) -> f64 {
    let squares: f64 = expected.iter().map(|value| value.powi(2)).sum();
    let root = (squares / expected.len() as f64).sqrt().max(1e-30);
    let differences = expected.iter().zip(got).map(|(a, b)| (a - f64::from(*b)).abs());
    // A NaN compares as neither, and must show.
    differences.fold(0.0, |worst: f64, it| if it.is_nan() || it > worst { it } else { worst }) / root
}

/// Noise with a mean square of a half: on the device, and as it was rounded there.
fn rounded(gpu: &Gpu, len: usize, seed: u64, precision: Precision) -> Result<(Array, Vec<f32>), GpuError> {
    let mut state = seed;
    let mut next = || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bits = bits ^ (bits >> 31);
        let uniform = |shift: u32| ((bits >> shift) & 0xffff) as f32 / 65_536.0 - 0.5;
        (uniform(0) + uniform(16) + uniform(32) + uniform(48)) * 1.2
    };
    let values: Vec<f32> = (0..len).map(|_| next()).collect();
    let array = gpu.upload(&values, precision)?;
    let rounded = gpu.download(&array)?;
    Ok((array, rounded))
}
