//! Rates of a GPU's kernels: bytes per second, compared with a copy in its own memory, and operations per second of
//! products and attention with shapes of models.
//!
//! A product of `m · k · n` is `2·m·n·k` operations. Attention is `4·C` forward and `10·C` backward, that is, two and
//! five products of a head's width `C`, per head and pair of a query and a visible key. Recomputed scores and scores
//! of masked keys do not count.

use crate::{Options, measure::noise};
use kernels::measure::shortest;
use model::Recipe;
use nn::{
    Precision, StepParams,
    gpu::{Array, Gpu, Result, View},
    layers::{
        attention::Shape,
        matmul::{Write, gpu::Algorithm},
        rope::{Angles, Rotation},
    },
    optim::adamw::Coefficients,
};
use serde::Serialize;
use serde_json::{Value, json};

/// Number of values of a row of the residual stream, and of a head. A row holds 8 query heads, 4 key heads and 4 value
/// heads.
const WIDTH: usize = 1024;
const HEAD_WIDTH: usize = 64;
const HEADS: [usize; 2] = [8, 4];
/// Maximum size of a vocabulary, in tokens.
const VOCAB_MAX: usize = 1 << 15;
const SEQ_LEN: usize = 1024;

/// A model's widths.
struct Model {
    name: &'static str,
    width: usize,
    inner: usize,
    /// Number of columns of a chunk of the vocabulary.
    vocab: usize,
    attention: Shape,
}

/// The presets `150m` and `1b`, and a model for a software Vulkan driver.
const MODELS: [Model; 2] = [
    Model {
        name: "150m",
        width: 768,
        inner: 2048,
        vocab: VOCAB_MAX,
        attention: Shape { seq_len: 1024, heads: 12, kv_heads: 4, head_width: 64 },
    },
    Model {
        name: "1b",
        width: 2048,
        inner: 8192,
        vocab: VOCAB_MAX,
        attention: Shape { seq_len: 2048, heads: 32, kv_heads: 8, head_width: 64 },
    },
];
const SMALL: [Model; 1] = [Model {
    name: "small",
    width: 128,
    inner: 256,
    vocab: 512,
    attention: Shape { seq_len: 128, heads: 4, kv_heads: 2, head_width: 32 },
}];
/// Sequence lengths for attention, in multiples of the model's.
const LENGTHS: [usize; 2] = [1, 4];
/// Smallest `--mebivalues` for which the shapes are those of models for GPUs.
const LARGE: u64 = 16;
/// Tokens of a product per Mi of `--mebivalues`, and their maximum.
const TOKENS: u64 = 128;
const TOKENS_MAX: u64 = 16_384;

#[derive(Debug, Serialize)]
struct Kernel {
    name: &'static str,
    seconds: f64,
    /// 10^9 bytes per second that the kernel must read and write. Repeated reads of a value do not count.
    moved_gbps: f64,
    share_of_copy: f64,
}

#[derive(Debug, Serialize)]
struct Product {
    name: String,
    seconds: f64,
    /// 10^12 operations per second.
    tflops: f64,
}

#[derive(Default)]
struct Products {
    measured: Vec<Product>,
    /// Measurements that failed. The others continue.
    failed: Vec<Value>,
}

struct Meter<'a> {
    gpu: &'a Gpu,
    rounds: usize,
    /// Precision of the products and of the kernels' inputs, where these are not f32.
    precision: Precision,
}

/// Measures every kernel of the device and returns the report.
///
/// # Errors
/// If the device is absent or fails.
pub fn measure(options: &Options) -> anyhow::Result<Value> {
    let gpu = &Gpu::open(options.device)?;
    let precision = if gpu.supports(Precision::Bf16) { Precision::Bf16 } else { Precision::F32 };
    let meter = Meter { gpu, rounds: usize::from(options.rounds), precision };
    let values = usize::try_from(options.mebivalues << 20)?;
    let kernels = meter.kernels(values)?;
    let tokens = (TOKENS * options.mebivalues).min(TOKENS_MAX) as usize;
    let models = if options.mebivalues < LARGE { &SMALL[..] } else { &MODELS[..] };
    let mut products = Products::default();
    for model in models {
        let done = meter.products(model, tokens, &mut products);
        products.note(model.name, done);
        for length in LENGTHS {
            let shape = Shape { seq_len: length * model.attention.seq_len, ..model.attention };
            let done = meter.attention(model.name, &shape, tokens, &mut products);
            products.note(model.name, done);
        }
    }
    // Last, because a failing algorithm may leave the device unusable.
    for model in models {
        let done = meter.algorithms(model, tokens, &mut products);
        products.note(model.name, done);
    }
    Ok(json!({
        "device": options.device.to_string(),
        // Precision of products. The residual stream, sums and weights are f32.
        "precision": precision.name(),
        "values": values,
        // 10^9 bytes read and written per second by a copy in the device's memory.
        "copy_moved_gbps": kernels[0].moved_gbps,
        "kernels": kernels,
        "products": products.measured,
        "failed": products.failed,
    }))
}

impl Meter<'_> {
    /// Returns the seconds of the shortest run.
    fn seconds(&self, mut run: impl FnMut() -> Result) -> Result<f64> {
        let mut whole = || run().and_then(|()| self.gpu.finish());
        // The first run compiles the kernels.
        let mut done = whole();
        let seconds = shortest(self.rounds, || {
            if done.is_ok() {
                done = whole();
            }
        });
        done.map(|()| seconds)
    }

    fn filled(&self, len: usize, precision: Precision) -> Result<Array> {
        let array = self.gpu.array(len, precision)?;
        self.gpu.fill(&array, 0.1)?;
        Ok(array)
    }

    /// Measures every kernel except products and attention on `values` values, starting with a copy.
    fn kernels(&self, values: usize) -> Result<Vec<Kernel>> {
        let (gpu, precision) = (self.gpu, self.precision);
        let (rows, kept) = (values / WIDTH, precision.bytes());
        let row = noise(values, 1);
        let wide = |values: &[f32]| gpu.upload(values, Precision::F32);
        let (x, grad_x, mean, square) = (wide(&row)?, wide(&row)?, wide(&row)?, wide(&row)?);
        let (y, grad_y) = (gpu.upload(&row, precision)?, gpu.upload(&row, precision)?);
        let half = gpu.array(values / 2, precision)?;
        let gain = wide(&row[..WIDTH])?;
        let (grad_gain, roots) = (gpu.array(WIDTH, Precision::F32)?, gpu.array(rows, Precision::F32)?);
        let angles = gpu.upload_angles(&Angles::new(SEQ_LEN, HEAD_WIDTH, 1e4))?;

        // Token frequencies as in a text: a few are frequent, many are rare.
        let vocab = rows.min(VOCAB_MAX);
        let token = |value: &f32| ((vocab as f64).powf(value.abs().min(4.0).into()) as usize % vocab) as u32;
        let tokens: Vec<u32> = row[..rows].iter().map(token).collect();
        let different = std::collections::BTreeSet::from_iter(&tokens).len();
        let embedding = self.filled(vocab * WIDTH, precision)?;
        let grad_embedding = self.filled(vocab * WIDTH, Precision::F32)?;
        let segments = gpu.upload_segments(vocab, &tokens)?;
        let tokens = gpu.upload_tokens(vocab, &tokens)?;
        let targets = gpu.upload_tokens(VOCAB_MAX, &vec![0; values / VOCAB_MAX])?;
        let losses = gpu.array(targets.len(), Precision::F32)?;
        let params = StepParams { step: 10, learning_rate: 1e-3, gradient_scale: 1.0 };
        let coefficients = Coefficients::new(&Recipe::default(), &params, 0.1);
        let rotated = rows * (HEADS[0] + HEADS[1]) * HEAD_WIDTH;
        drop(row);

        let mut kernels: Vec<Kernel> = Vec::new();
        let mut time = |name, bytes: usize, run: &dyn Fn() -> Result| -> Result {
            let seconds = self.seconds(run)?;
            let moved_gbps = bytes as f64 / seconds / 1e9;
            let copy = kernels.first().map_or(moved_gbps, |copy| copy.moved_gbps);
            kernels.push(Kernel { name, seconds, moved_gbps, share_of_copy: moved_gbps / copy });
            Ok(())
        };
        time("copy", 8 * values, &|| gpu.cast(&x, &mean))?;
        time("rms_norm", (4 + kept) * values, &|| gpu.rms_norm(&x, &gain, Some(1e-5), &y, &roots))?;
        time("rms_norm, backward", (12 + kept) * values, &|| {
            gpu.rms_norm_backward(&x, &gain, &roots, &y, &grad_x, &grad_gain)
        })?;
        time("rope", 2 * kept * rotated, &|| {
            gpu.rope(&y, WIDTH, HEADS, SEQ_LEN, &angles, Rotation::Forward)
        })?;
        time("swiglu", 3 * kept * (values / 2), &|| gpu.swiglu(&y, WIDTH / 2, &half))?;
        time("swiglu, backward", 6 * kept * (values / 2), &|| gpu.swiglu_backward(&y, WIDTH / 2, &half))?;
        time("losses", kept * values, &|| gpu.cross_entropy(&grad_y, &targets, 0, &losses, None))?;
        time("losses and gradient", 2 * kept * values, &|| {
            gpu.cross_entropy(&grad_y, &targets, 0, &losses, Some(1e-3))
        })?;
        time("embedding", (4 + kept) * values, &|| gpu.embedding(&embedding, &tokens, &x))?;
        time("embedding, backward", 4 * values + 8 * WIDTH * different, &|| {
            gpu.embedding_backward(&segments, &grad_x, &grad_embedding)
        })?;
        time("sum", (8 + kept) * values, &|| gpu.add(&x, &y, &mean))?;
        time("cast", (4 + kept) * values, &|| gpu.cast(&x, &y))?;
        time("sum of squares", 4 * values, &|| gpu.sum_of_squares(&[&grad_x]).map(drop))?;
        time("adamw", (28 + kept) * values, &|| {
            gpu.adamw(&coefficients, &x, Some(&y), &mean, &square, &grad_x)
        })?;
        Ok(kernels)
    }

    fn time(&self, all: &mut Products, name: String, operations: f64, run: &dyn Fn() -> Result) {
        match self.seconds(run) {
            Ok(seconds) => all.measured.push(Product { name, seconds, tflops: operations / seconds / 1e12 }),
            Err(error) => all.failed.push(json!({ "name": name, "error": error.to_string() })),
        }
    }

    fn products(&self, model: &Model, tokens: usize, all: &mut Products) -> Result {
        let (gpu, inputs) = (self.gpu, model.width);
        for (what, outputs) in model.products() {
            let make = |len| self.filled(len, self.precision);
            let (x, weights, y) = (make(tokens * inputs)?, make(outputs * inputs)?, make(tokens * outputs)?);
            let (grad_x, grad_weights) =
                (make(tokens * inputs)?, self.filled(outputs * inputs, Precision::F32)?);
            let [rows, weights] = [View::new(&x, [tokens, inputs]), View::new(&weights, [outputs, inputs])];
            let grad_y = View::new(&y, [tokens, outputs]);
            let operations = 2.0 * tokens as f64 * outputs as f64 * inputs as f64;
            let name = format!("{}, {what} {tokens}·{inputs}·{outputs}", model.name);
            self.time(all, format!("{name}, forward"), operations, &|| {
                gpu.product(Write::Set, &y, [tokens, outputs], rows, weights.transposed())
            });
            self.time(all, format!("{name}, backward to inputs"), operations, &|| {
                gpu.product(Write::Set, &grad_x, [tokens, inputs], grad_y, weights)
            });
            self.time(all, format!("{name}, backward to weights, added"), operations, &|| {
                gpu.product(Write::Add, &grad_weights, [outputs, inputs], grad_y.transposed(), rows)
            });
        }
        Ok(())
    }

    /// Measures the forward products with each algorithm of the device.
    fn algorithms(&self, model: &Model, tokens: usize, all: &mut Products) -> Result {
        let inputs = model.width;
        for (what, outputs) in model.products() {
            let make = |len| self.filled(len, self.precision);
            let (x, weights, y) = (make(tokens * inputs)?, make(outputs * inputs)?, make(tokens * outputs)?);
            let [rows, weights] = [View::new(&x, [tokens, inputs]), View::new(&weights, [outputs, inputs])];
            let operations = 2.0 * tokens as f64 * outputs as f64 * inputs as f64;
            for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Plain) {
                let run = || self.gpu.product_by(algorithm, &y, rows, weights.transposed());
                // An unavailable algorithm is refused before any work is queued.
                if run().is_ok() {
                    let name = format!("{}, {what} {tokens}·{inputs}·{outputs}", model.name);
                    self.time(all, format!("{name}, forward by {algorithm:?}"), operations, &run);
                }
            }
        }
        Ok(())
    }

    fn attention(&self, model: &str, shape: &Shape, tokens: usize, all: &mut Products) -> Result {
        let sequences = (tokens / shape.seq_len).max(1);
        let count = sequences * shape.seq_len;
        let make = |width| self.filled(count * width, self.precision);
        let (rows, grad_rows) = (make(shape.row_width())?, make(shape.row_width())?);
        let width = shape.heads * shape.head_width;
        let (mixed, grad_mixed) = (make(width)?, make(width)?);
        let sums = self.gpu.array(count * shape.heads, Precision::F32)?;
        let product = (count * (shape.seq_len + 1) * width) as f64;
        let name = format!("{model}, attention of {sequences} · {}", shape.seq_len);
        self.time(all, format!("{name}, forward"), 2.0 * product, &|| {
            self.gpu.attention(shape, &rows, &mixed, &sums)
        });
        self.time(all, format!("{name}, backward"), 5.0 * product, &|| {
            self.gpu.attention_backward(shape, &rows, &mixed, &sums, &grad_mixed, &grad_rows)
        });
        Ok(())
    }
}

impl Model {
    /// Returns the names and output widths of the products with `width` inputs.
    fn products(&self) -> [(&'static str, usize); 3] {
        [
            ("queries, keys, values", self.attention.row_width()),
            ("gates and ups", 2 * self.inner),
            ("vocabulary", self.vocab),
        ]
    }
}

impl Products {
    /// Records the error of a measurement whose setup failed.
    fn note(&mut self, what: &str, done: Result) {
        self.failed.extend(done.err().map(|error| json!({ "name": what, "error": error.to_string() })));
    }
}
