//! Products and attention at the shapes of models, in operations a second.
//!
//! A product of `m · k · n` is `2·m·n·k` operations. Attention is `4 · width` forward and `10 · width` back for each head and
//! each pair of a query and a key that it sees: two products of a head's width, and five. What is done twice, as scores are, or
//! for keys that are not seen, does not count.

use crate::{Options, measure::shortest};
use kernels::{
    attention::Shape,
    gpu::{
        Device, GpuError,
        network::{
            Precision,
            attention::SCORES,
            matmul::{View, Way, ways},
        },
    },
    matmul::Write,
};
use serde::Serialize;

/// A model's sides.
struct Model {
    name: &'static str,
    width: usize,
    inner: usize,
    attention: Shape,
}

/// The presets `150m` and `1b`, and sides that a processor bears.
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
/// Attention is measured with a model's sequences, and with some so many times as long.
const LENGTHS: [usize; 2] = [1, 4];
/// Scores of a block that attention aims at: which is fastest is the card's to say.
const AIMS: [usize; 5] = [SCORES / 8, SCORES / 4, SCORES / 2, SCORES, 2 * SCORES];
/// From this `--mebivalues` on the shapes are those of models that are trained on GPUs.
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
    /// 10^12 operations a second.
    pub tflops: f64,
}

#[derive(Debug, Default, Serialize)]
pub struct Rates {
    pub measured: Vec<Rate>,
    /// What failed, and why.
    pub failed: Vec<String>,
}

/// The rates of products, by the way that is chosen and by each that is there, and of attention.
pub fn measure(options: &Options, device: &Device, precision: Precision) -> Rates {
    let (models, vocab, aims) = match options.mebivalues < LARGE {
        true => (&SMALL[..], 512, &[SCORES][..]),
        false => (&MODELS[..], VOCAB, &AIMS[..]),
    };
    let tokens = tokens_of(options);
    let mut rates = Rates::default();
    // Ways that nothing goes come last: one that fails may spoil the device.
    for used in [true, false] {
        for model in models {
            let shapes = [
                ("queries, keys, values", model.attention.row_width()),
                ("gates and ups", 2 * model.inner),
                ("vocabulary", vocab),
            ];
            for (what, columns) in shapes {
                let (name, sides) = (format!("{}, {what}", model.name), [tokens, columns, model.width]);
                let done = products(options, device, precision, &name, sides, used, &mut rates);
                rates.failed.extend(done.err().map(|error| format!("{name}: {error}")));
            }
            for length in LENGTHS.into_iter().filter(|_| used) {
                let shape = Shape { seq_len: length * model.attention.seq_len, ..model.attention };
                let name = format!("{}, attention", model.name);
                let done = attention(options, device, precision, &name, &shape, aims, &mut rates);
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
    device: &Device,
    precision: Precision,
    what: &str,
    [tokens, outputs, inputs]: [usize; 3],
    used: bool,
    rates: &mut Rates,
) -> Result<(), GpuError> {
    let make = |len| device.array(len, precision).and_then(|array| device.fill(&array, 0.5).map(|()| array));
    let (x, weights, y) = (make(tokens * inputs)?, make(outputs * inputs)?, make(tokens * outputs)?);
    let (rows, seen) = (View::new(&x, [tokens, inputs]), View::new(&weights, [outputs, inputs]));
    let operations = 2.0 * tokens as f64 * outputs as f64 * inputs as f64;
    let name = format!("{what} {tokens}·{inputs}·{outputs}");
    let mut time = |name: String, run: &dyn Fn() -> Result<(), GpuError>| {
        rates.time(options, device, name, operations, run);
    };
    let goes = ways(device.has_tensor_cores(precision), precision, [tokens, outputs, inputs]);
    for way in Way::ALL.into_iter().filter(|way| goes.contains(way) == used) {
        // A way that is not there is refused before anything is asked of the device.
        if way != Way::Plain && device.product_by(way, &y, rows, seen.transposed()).is_ok() {
            time(format!("{name}, forward by {way:?}"), &|| {
                device.product_by(way, &y, rows, seen.transposed())
            });
        }
    }
    if !used {
        return Ok(());
    }
    time(format!("{name}, forward"), &|| {
        device.product(Write::Over, &y, [tokens, outputs], rows, seen.transposed())
    });
    let (of_x, of_weights) = (make(tokens * inputs)?, device.array(outputs * inputs, Precision::F32)?);
    device.fill(&of_weights, 0.0)?;
    let of_y = View::new(&y, [tokens, outputs]);
    time(format!("{name}, back to inputs"), &|| {
        device.product(Write::Over, &of_x, [tokens, inputs], of_y, seen)
    });
    for (write, how) in [(Write::Over, "over"), (Write::Add, "added")] {
        time(format!("{name}, back to weights, {how}"), &|| {
            device.product(write, &of_weights, [outputs, inputs], of_y.transposed(), rows)
        });
    }
    Ok(())
}

fn attention(
    options: &Options,
    device: &Device,
    precision: Precision,
    what: &str,
    shape: &Shape,
    aims: &[usize],
    rates: &mut Rates,
) -> Result<(), GpuError> {
    let sequences = (tokens_of(options) / shape.seq_len).max(1);
    let count = sequences * shape.seq_len;
    let make = |len| device.array(len, precision).and_then(|array| device.fill(&array, 0.1).map(|()| array));
    let (rows, of_rows) = (make(count * shape.row_width())?, make(count * shape.row_width())?);
    let mixes = count * shape.heads * shape.head_width;
    let (mixed, of_mixed) = (make(mixes)?, make(mixes)?);
    let sums = device.array(count * shape.heads, Precision::F32)?;
    let pairs = (sequences * shape.heads * shape.seq_len * (shape.seq_len + 1) / 2) as f64;
    for &scores in aims {
        let aiming = Device::open(device.name()).map_err(|error| GpuError::Device(error.to_string()))?;
        let aiming = aiming.with_scores(scores);
        let name = format!("{what} of {sequences} · {}, {} Mi scores", shape.seq_len, scores >> 20);
        let mut time = |way: &str, products: f64, run: &dyn Fn() -> Result<(), GpuError>| {
            let operations = products * 2.0 * pairs * shape.head_width as f64;
            rates.time(options, &aiming, format!("{name}, {way}"), operations, run);
        };
        time("forward", 2.0, &|| aiming.attention(shape, &rows, &mixed, &sums));
        time("back", 5.0, &|| aiming.attention_backward(shape, &rows, &mixed, &sums, &of_mixed, &of_rows));
    }
    Ok(())
}

impl Rates {
    fn time(
        &mut self,
        options: &Options,
        device: &Device,
        name: String,
        operations: f64,
        run: &dyn Fn() -> Result<(), GpuError>,
    ) {
        let whole = || run().and_then(|()| device.finish());
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
