//! Whether a device does a network's passes as this machine's processor does, asked on the device itself.
//!
//! For a machine that has a GPU and nothing else, as [`crate::gpu::agreement`] is; the tests ask more. Nothing here is equal
//! bit for bit: what is reported is the largest difference over the root mean square of what is expected, and whether that
//! is what roundings of the arrays' precision come to.

use super::{
    Array, Precision,
    matmul::{View, Way, ways},
};
use crate::{
    attention::{self, Shape},
    cross_entropy,
    gpu::{Device, GpuError},
    matmul::{Mat, MatMut, Threads, Write, matmul},
    rms_norm,
    rotary::{self, Angles, Rotation},
    swiglu,
};

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub struct Closeness {
    /// What was compared, with its shapes.
    pub what: String,
    pub error: f64,
    /// What it may be.
    pub bound: f64,
    /// Whether a network's passes go this way. What they do not use is reported, and not judged.
    pub used: bool,
}

impl Closeness {
    pub fn close(&self) -> bool {
        self.error <= self.bound
    }

    pub fn holds(&self) -> bool {
        self.close() || !self.used
    }
}

/// `[m, n, k]`: sides of no tile, a small layer's, and a long sum.
const PRODUCTS: [[usize; 3]; 3] = [[130, 259, 67], [512, 768, 256], [256, 256, 4096]];
/// Two sequences each: short, of three blocks the last of which is short, and of wide heads.
const ATTENTIONS: [Shape; 3] = [
    Shape { seq_len: 67, heads: 6, kv_heads: 2, head_width: 64 },
    Shape { seq_len: 1101, heads: 4, kv_heads: 1, head_width: 32 },
    Shape { seq_len: 256, heads: 4, kv_heads: 2, head_width: 128 },
];

/// Compares products, attention and the passes between on the device with the processor's, in every precision that the device has, with and without
/// tensor cores, and each way of multiplying that is there.
pub fn closeness(name: &str) -> Result<Vec<Closeness>, crate::gpu::OpenError> {
    let precisions = [Precision::F32, Precision::Bf16, Precision::F16];
    let (mut all, mut all_cores) = (Vec::new(), Vec::new());
    let device = Device::open(name)?;
    let other = Device::open(name)?.without_tensor_cores();
    for (device, again) in [(device, false), (other, true)] {
        for precision in precisions {
            // Without tensor cores nothing would be different a second time.
            let different = !again || all_cores.contains(&precision);
            if device.supports(precision) && different {
                let cores = if device.has_tensor_cores(precision) { "tensor cores" } else { "units" };
                let context = format!("{precision:?} on {cores}");
                all_cores.extend(device.has_tensor_cores(precision).then_some(precision));
                for shape in PRODUCTS {
                    products(&device, shape, precision, &context, true, &mut all);
                }
                ATTENTIONS.iter().for_each(|shape| attends(&device, shape, precision, &context, &mut all));
                match passes(&device, precision) {
                    Ok(results) => all.extend(results.into_iter().map(|result| result.judged(precision))),
                    Err(error) => take(&mut all, format!("a pass in {context}"), 0.0, Err(error)),
                }
            }
        }
    }
    // Last: a kernel that nothing uses must not spoil the device for those that are used.
    let device = Device::open(name)?;
    for precision in precisions.into_iter().filter(|precision| device.supports(*precision)) {
        for shape in PRODUCTS {
            products(&device, shape, precision, &format!("{precision:?}"), false, &mut all);
        }
    }
    Ok(all)
}

/// What is wrong with a result that did not come: it is as far off as can be.
fn take(all: &mut Vec<Closeness>, what: String, bound: f64, error: Result<f64, GpuError>) {
    match error {
        Ok(error) => all.push(Closeness { what, error, bound, used: true }),
        Err(error) => {
            all.push(Closeness { what: format!("{what}: {error}"), error: f64::INFINITY, bound, used: true })
        }
    }
}

/// Compares what [`Device::product`] does and the ways that it may go, or the ways that it does not go.
fn products(
    device: &Device,
    [m, n, k]: [usize; 3],
    precision: Precision,
    context: &str,
    used: bool,
    all: &mut Vec<Closeness>,
) {
    let operands = || -> Result<_, GpuError> {
        Ok([rounded(device, m * k, 1, precision)?, rounded(device, k * n, 2, precision)?])
    };
    let [(lhs, lhs_values), (rhs, rhs_values)] = match operands() {
        Ok(operands) => operands,
        Err(error) => return take(all, format!("a product's operands in {context}"), 0.0, Err(error)),
    };
    let mut expected = vec![0.0; m * n];
    let (a, b) = (Mat::new(&lhs_values, [m, k]), Mat::new(&rhs_values, [k, n]));
    matmul(Write::Over, &mut MatMut::new(&mut expected, [m, n]), a, b, Threads::Pool);
    let views = (View::new(&lhs, [m, k]), View::new(&rhs, [k, n]));
    let mut compare =
        |what: String, bound: f64, run: &dyn Fn(&Array) -> Result<(), GpuError>, to: Precision| {
            let got =
                device.array(m * n, to).and_then(|out| run(&out).and_then(|()| device.download_array(&out)));
            take(all, what, bound, got.map(|got| distance(&expected, &got)));
            all.last_mut().into_iter().for_each(|last| last.used = used);
        };
    // Two f32 sums of the same products in other orders.
    let sums = 4e-6 + 1e-6 * (k as f64).sqrt();
    let what = format!("product {m}·{k}·{n}, {context}");
    let product = |out: &Array| device.product(Write::Over, out, [m, n], views.0, views.1);
    if used {
        compare(format!("{what}, in f32"), sums, &product, Precision::F32);
        compare(what.clone(), sums + rounding(precision), &product, precision);
    }
    let goes = ways(device.has_tensor_cores(precision), precision, [m, n, k]);
    for way in Way::ALL.into_iter().filter(|way| goes.contains(way) == used) {
        let run = |out: &Array| device.product_by(way, out, views.0, views.1);
        let there = device.array(m * n, Precision::F32).and_then(|out| run(&out));
        if there.is_ok() {
            // Tensor cores take 11 bits of an operand of f32.
            let plain = precision != Precision::F32 || matches!(way, Way::Units | Way::Plain);
            compare(format!("{what}, by {way:?}"), if plain { sums } else { 5e-3 }, &run, Precision::F32);
        }
    }
}

fn attends(device: &Device, shape: &Shape, precision: Precision, context: &str, all: &mut Vec<Closeness>) {
    let count = 2 * shape.seq_len;
    let [of_rows, of_mixed, of_sums] =
        [count * shape.row_width(), count * shape.heads * shape.head_width, count * shape.heads];
    let run = || -> Result<_, GpuError> {
        let (rows, row_values) = rounded(device, of_rows, 3, precision)?;
        let (gradient, gradient_values) = rounded(device, of_mixed, 4, precision)?;
        let mixed = device.array(of_mixed, precision)?;
        let (sums, out) = (device.array(of_sums, Precision::F32)?, device.array(of_rows, precision)?);
        device.attention(shape, &rows, &mixed, &sums)?;
        device.attention_backward(shape, &rows, &mixed, &sums, &gradient, &out)?;
        let got =
            [device.download_array(&mixed)?, device.download_array(&sums)?, device.download_array(&out)?];
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
        ("mixes", of_mixes, &mixed, &got[0]),
        ("logarithms of sums", of_logarithms, &sums, &got[1]),
        ("gradients", of_gradients, &out, &got[2]),
    ] {
        take(all, format!("attention's {name}, {what}"), bound, Ok(distance(expected, got)));
    }
}

/// What a pass should have come to, and did.
struct Pass {
    what: &'static str,
    expected: Vec<f64>,
    got: Vec<f32>,
}

impl Pass {
    /// A few values are far larger than the others, and so are their roundings.
    fn judged(self, precision: Precision) -> Closeness {
        let what = format!("{}, {precision:?}", self.what);
        let bound = 4e-5 + 8.0 * rounding(precision);
        Closeness { what, error: apart(&self.expected, &self.got), bound, used: true }
    }
}

/// Rows of the passes between products, their width, positions of a sequence, and a vocabulary.
const ROWS: usize = 65;
const WIDTH: usize = 384;
const POSITIONS: usize = 13;
const VOCAB: usize = 1000;
/// Heads of queries and of keys in a row, which has as many of values, and their width.
const HEADS: [usize; 2] = [2, 1];
const HEAD_WIDTH: usize = 96;
const EPSILON: f32 = 1e-5;
const SCALE: f32 = 0.25;

/// Norms, positions, gates and losses, and their gradients.
fn passes(device: &Device, precision: Precision) -> Result<Vec<Pass>, GpuError> {
    let mut all = Vec::new();
    let mut add = |what, expected, array: &Array| -> Result<(), GpuError> {
        all.push(Pass { what, expected, got: device.download_array(array)? });
        Ok(())
    };
    let zeros = |len| -> Result<Array, GpuError> {
        let array = device.array(len, Precision::F32)?;
        device.fill(&array, 0.0)?;
        Ok(array)
    };

    let (x, x_here) = rounded(device, ROWS * WIDTH, 5, Precision::F32)?;
    let (gain, gain_here) = rounded(device, WIDTH, 6, Precision::F32)?;
    let (of_y, of_y_here) = rounded(device, ROWS * WIDTH, 7, precision)?;
    let (y, roots) = (device.array(ROWS * WIDTH, precision)?, device.array(ROWS, Precision::F32)?);
    device.rms_norm(&x, &gain, EPSILON, &y, &roots)?;
    add("norms", rms_norm::forward_reference(&x_here, &gain_here, EPSILON), &y)?;
    let (of_x, of_gain) = (zeros(ROWS * WIDTH)?, zeros(WIDTH)?);
    device.rms_norm_backward(&x, &gain, &roots, &of_y, &of_x, &of_gain)?;
    let (expected_x, expected_gain) = rms_norm::backward_reference(&x_here, &gain_here, EPSILON, &of_y_here);
    add("norms' gradients", expected_x, &of_x)?;
    add("gradients of norms' gains", expected_gain, &of_gain)?;

    let (turned, before) = rounded(device, ROWS * WIDTH, 8, precision)?;
    let angles = device.upload_angles(&Angles::new(POSITIONS, HEAD_WIDTH, 1e4))?;
    device.rotary(&turned, WIDTH, HEADS, POSITIONS, &angles, Rotation::Forward)?;
    let mut expected = Vec::new();
    for (row, before) in before.chunks_exact(WIDTH).enumerate() {
        let (turns, stays) = before.split_at((HEADS[0] + HEADS[1]) * HEAD_WIDTH);
        expected.extend(rotary::rotate_reference(turns, HEADS[0], HEAD_WIDTH, row % POSITIONS, 1e4));
        expected.extend(stays.iter().map(|value| f64::from(*value)));
    }
    add("positions", expected, &turned)?;

    let (both, both_here) = rounded(device, ROWS * WIDTH, 9, precision)?;
    let (of_h, of_h_here) = rounded(device, ROWS * WIDTH / 2, 10, precision)?;
    device.swiglu_backward(&both, WIDTH / 2, &of_h)?;
    add("gates", swiglu::forward_reference(&both_here, WIDTH / 2), &of_h)?;
    add("gates' gradients", swiglu::backward_reference(&both_here, WIDTH / 2, &of_h_here), &both)?;

    let (logits, logits_here) = rounded(device, ROWS * VOCAB, 11, precision)?;
    let targets: Vec<u32> = (0..ROWS).map(|row| (row * 389 % VOCAB) as u32).collect();
    let tokens = device.upload_tokens(VOCAB, &targets)?;
    let losses = device.array(ROWS, Precision::F32)?;
    device.cross_entropy_gradient(&logits, &tokens, 0, &losses, SCALE)?;
    add("losses", cross_entropy::losses_reference(&logits_here, VOCAB, &targets), &losses)?;
    add(
        "losses' gradients",
        cross_entropy::gradient_reference(&logits_here, VOCAB, &targets, SCALE),
        &logits,
    )?;
    Ok(all)
}

/// Bounds for attention's mixes, logarithms and gradients. In 16 bits, looks and gradients of scores are rounded too.
fn bounds(precision: Precision) -> [f64; 3] {
    match precision {
        Precision::F32 => [4e-5, 1e-5, 1e-4],
        _ => [3.0 * rounding(precision), 1e-5, 12.0 * rounding(precision)],
    }
}

/// Half a step of the largest of many values, which is some five times their root mean square.
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
    // A NaN is above nothing, and must show.
    differences.fold(0.0, |worst: f64, it| if it.is_nan() || it > worst { it } else { worst }) / root
}

/// Values that look like noise of a mean square of a half, on the device and as they were rounded there.
fn rounded(
    device: &Device,
    len: usize,
    seed: u64,
    precision: Precision,
) -> Result<(Array, Vec<f32>), GpuError> {
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
    let array = device.upload_array(&values, precision)?;
    let rounded = device.download_array(&array)?;
    Ok((array, rounded))
}
