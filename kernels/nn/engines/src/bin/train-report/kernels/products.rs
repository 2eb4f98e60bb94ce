//! Products and attention at the shapes of models, in operations per second.
//!
//! A product of `m · k · n` is `2·m·n·k` operations. Attention is `4·C` forward and `10·C` backward for each head and
//! each pair of a query and a key that it sees: two products of a head's width `C`, and five. Scores that are
//! computed twice or for keys that are not seen do not count.

use super::Options;
use crate::measure::shortest;
use nn::{
    Precision,
    gpu::{Gpu, GpuError},
    layers::{
        attention::{Shape, gpu::SCORES},
        matmul::{
            Write,
            gpu::{Algorithm, View, algorithms},
        },
    },
};
use serde::Serialize;

/// A model's widths.
struct Model {
    name: &'static str,
    width: usize,
    inner: usize,
    attention: Shape,
}

/// The presets `150m` and `1b`, and a model for a CPU that stands in for a GPU.
const MODELS: [Model; 2] = [
    Model {
        name: "150m",
        width: 768,
        inner: 2048,
        attention: Shape { seq_len: 1024, heads: 12, kv_heads: 4, head_width: 64 },
    },
    Model {
        name: "1b",
        width: 2048,
        inner: 8192,
        attention: Shape { seq_len: 2048, heads: 32, kv_heads: 8, head_width: 64 },
    },
];
const SMALL: [Model; 1] = [Model {
    name: "small",
    width: 128,
    inner: 256,
    attention: Shape { seq_len: 128, heads: 4, kv_heads: 2, head_width: 32 },
}];
/// Lengths of sequences for attention, in those of the model.
const LENGTHS: [usize; 2] = [1, 4];
/// Scores of a block that attention aims at: the fastest depends on the GPU.
const AIMS: [usize; 5] = [SCORES / 8, SCORES / 4, SCORES / 2, SCORES, 2 * SCORES];
/// From this `--mebivalues` on, the shapes are those of models for GPUs.
const LARGE: u64 = 16;
/// Tokens of a product for each Mi of `--mebivalues`, and at most.
const TOKENS: usize = 128;
const TOKENS_MAX: usize = 16_384;
/// Columns of a chunk of the vocabulary.
const VOCAB: usize = 1 << 15;

#[derive(Debug, Serialize)]
pub struct Rate {
    pub name: String,
    pub seconds: f64,
    /// 10^12 operations per second.
    pub tflops: f64,
}

#[derive(Debug, Default, Serialize)]
pub struct Rates {
    pub measured: Vec<Rate>,
    /// Names and errors of those that failed.
    pub failed: Vec<String>,
}

/// Measures products, by the chosen algorithm and by each that is available, and attention.
pub fn measure(options: &Options, gpu: &Gpu, precision: Precision) -> Rates {
    let (models, vocab, aims) = match options.mebivalues < LARGE {
        true => (&SMALL[..], 512, &[SCORES][..]),
        false => (&MODELS[..], VOCAB, &AIMS[..]),
    };
    let tokens = tokens_of(options);
    let mut rates = Rates::default();
    // Unused algorithms come last: one that fails may spoil the device.
    for used in [true, false] {
        for model in models {
            let shapes = [
                ("queries, keys, values", model.attention.row_width()),
                ("gates and ups", 2 * model.inner),
                ("vocabulary", vocab),
            ];
            for (what, columns) in shapes {
                let (name, sides) = (format!("{}, {what}", model.name), [tokens, columns, model.width]);
                let done = products(options, gpu, precision, &name, sides, used, &mut rates);
                rates.failed.extend(done.err().map(|error| format!("{name}: {error}")));
            }
            for length in LENGTHS.into_iter().filter(|_| used) {
                let shape = Shape { seq_len: length * model.attention.seq_len, ..model.attention };
                let name = format!("{}, attention", model.name);
                let done = attention(options, gpu, precision, &name, &shape, aims, &mut rates);
                rates.failed.extend(done.err().map(|error| format!("{name}: {error}")));
            }
        }
    }
    rates
}

fn tokens_of(options: &Options) -> usize {
    (TOKENS * options.mebivalues as usize).min(TOKENS_MAX)
}

fn products(
    options: &Options,
    gpu: &Gpu,
    precision: Precision,
    what: &str,
    [tokens, outputs, inputs]: [usize; 3],
    used: bool,
    rates: &mut Rates,
) -> Result<(), GpuError> {
    let make = |len| gpu.array(len, precision).and_then(|array| gpu.fill(&array, 0.5).map(|()| array));
    let (x, weights, y) = (make(tokens * inputs)?, make(outputs * inputs)?, make(tokens * outputs)?);
    let (rows, seen) = (View::new(&x, [tokens, inputs]), View::new(&weights, [outputs, inputs]));
    let operations = 2.0 * tokens as f64 * outputs as f64 * inputs as f64;
    let name = format!("{what} {tokens}·{inputs}·{outputs}");
    let mut time = |name: String, run: &dyn Fn() -> Result<(), GpuError>| {
        rates.time(options, gpu, name, operations, run);
    };
    let chosen = algorithms(gpu.has_tensor_cores(precision), precision, [tokens, outputs, inputs]);
    for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| chosen.contains(algorithm) == used) {
        // An algorithm that is not available is refused before the device gets work.
        if algorithm != Algorithm::Plain && gpu.product_by(algorithm, &y, rows, seen.transposed()).is_ok() {
            time(format!("{name}, forward by {algorithm:?}"), &|| {
                gpu.product_by(algorithm, &y, rows, seen.transposed())
            });
        }
    }
    if !used {
        return Ok(());
    }
    time(format!("{name}, forward"), &|| {
        gpu.product(Write::Set, &y, [tokens, outputs], rows, seen.transposed())
    });
    let (grad_x, grad_weights) = (make(tokens * inputs)?, gpu.array(outputs * inputs, Precision::F32)?);
    gpu.fill(&grad_weights, 0.0)?;
    let grad_y = View::new(&y, [tokens, outputs]);
    time(format!("{name}, backward to inputs"), &|| {
        gpu.product(Write::Set, &grad_x, [tokens, inputs], grad_y, seen)
    });
    for (write, how) in [(Write::Set, "set"), (Write::Add, "added")] {
        time(format!("{name}, backward to weights, {how}"), &|| {
            gpu.product(write, &grad_weights, [outputs, inputs], grad_y.transposed(), rows)
        });
    }
    Ok(())
}

fn attention(
    options: &Options,
    gpu: &Gpu,
    precision: Precision,
    what: &str,
    shape: &Shape,
    aims: &[usize],
    rates: &mut Rates,
) -> Result<(), GpuError> {
    let sequences = (tokens_of(options) / shape.seq_len).max(1);
    let count = sequences * shape.seq_len;
    let make = |len| gpu.array(len, precision).and_then(|array| gpu.fill(&array, 0.1).map(|()| array));
    let (rows, grad_rows) = (make(count * shape.row_width())?, make(count * shape.row_width())?);
    let mixes = count * shape.heads * shape.head_width;
    let (mixed, grad_mixed) = (make(mixes)?, make(mixes)?);
    let sums = gpu.array(count * shape.heads, Precision::F32)?;
    let pairs = (sequences * shape.heads * shape.seq_len * (shape.seq_len + 1) / 2) as f64;
    for &scores in aims {
        let aiming = Gpu::open(gpu.device()).map_err(|error| GpuError::Device(error.to_string()))?;
        let aiming = aiming.with_scores(scores);
        let name = format!("{what} of {sequences} · {}, {} Mi scores", shape.seq_len, scores >> 20);
        let mut time = |algorithm: &str, products: f64, run: &dyn Fn() -> Result<(), GpuError>| {
            let operations = products * 2.0 * pairs * shape.head_width as f64;
            rates.time(options, &aiming, format!("{name}, {algorithm}"), operations, run);
        };
        time("forward", 2.0, &|| aiming.attention(shape, &rows, &mixed, &sums));
        time("backward", 5.0, &|| {
            aiming.attention_backward(shape, &rows, &mixed, &sums, &grad_mixed, &grad_rows)
        });
    }
    Ok(())
}

impl Rates {
    fn time(
        &mut self,
        options: &Options,
        gpu: &Gpu,
        name: String,
        operations: f64,
        run: &dyn Fn() -> Result<(), GpuError>,
    ) {
        let whole = || run().and_then(|()| gpu.finish());
        // The first run compiles.
        let mut failed = whole().err();
        let seconds = shortest(usize::from(options.rounds), || {
            if failed.is_none() {
                failed = whole().err();
            }
        });
        match failed {
            Some(error) => self.failed.push(format!("{name}: {error}")),
            None => self.measured.push(Rate { name, seconds, tflops: operations / seconds / 1e12 }),
        }
    }
}
