//! Compares each CPU kernel of the network with its reference, products of several weights as one and as several, and
//! generation with and without a cache.
//!
//!     RAYON_NUM_THREADS=1 cargo bench -p mettle-benches --features criterion --bench layers
//!
//! Measures the CPU time of the process, which other load on the machine hardly changes. Shapes are those of preset
//! `6m`.

use criterion::{
    BatchSize, Bencher, BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use kernels::lanes::{self, Width};
use model::{ModelConfig, Recipe, init_flat};
use nn::{
    Device, Evaluator, LogProbabilities, Session, StepParams,
    layers::{
        attention, cross_entropy,
        matmul::{Mat, MatMut, Threads, Write, matmul, reference::matmul as matmul_reference},
        rms_norm,
        rope::{self, Angles, Rotation},
        swiglu,
    },
    optim::adamw::{self, Coefficients, Parameter},
};
use std::{hint::black_box, time::Duration};

const WIDTH: usize = 256;
const INNER: usize = 704;
const VOCAB: usize = 4096;
const SHAPE: attention::Shape = attention::Shape { seq_len: 256, heads: 8, kv_heads: 4, head_width: 32 };
const EPSILON: f32 = 1e-5;

/// User and system time of all threads.
struct CpuTime;

impl Measurement for CpuTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call writes only to `time`.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        assert_eq!(failed, 0, "this system has no clock of a process's CPU time");
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    }

    fn end(&self, began: Duration) -> Duration {
        self.start() - began
    }

    fn add(&self, one: &Duration, other: &Duration) -> Duration {
        *one + *other
    }

    fn zero(&self) -> Duration {
        Duration::ZERO
    }

    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }

    fn formatter(&self) -> &dyn ValueFormatter {
        const NANOSECONDS: &WallTime = &WallTime;
        NANOSECONDS.formatter()
    }
}

type Group<'a> = BenchmarkGroup<'a, CpuTime>;

fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = u64::from(seed) << 1 | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Measures the kernel with every vector width of the processor (its products choose their own), and the twin, in one
/// group, so that they run one after the other.
fn beside(
    group: &mut Group,
    mut fast: impl FnMut(&mut Bencher<CpuTime>),
    twin: impl FnMut(&mut Bencher<CpuTime>),
) {
    for width in Width::available() {
        lanes::limit(width);
        group.bench_function(format!("kernel, {width:?}"), &mut fast);
    }
    lanes::limit(Width::Avx512);
    group.bench_function("twin", twin);
}

/// Measures work that changes values in place, each time on the same ones.
fn in_place<T>(bencher: &mut Bencher<CpuTime>, values: &[f32], mut work: impl FnMut(&mut [f32]) -> T) {
    bencher.iter_batched_ref(|| values.to_vec(), |values| black_box(work(values)), BatchSize::LargeInput);
}

fn products(criterion: &mut Criterion<CpuTime>) {
    let rows = 256;
    let (x, weight) = (noise(rows * WIDTH, 1), noise(INNER * WIDTH, 2));
    let (x, weight) = (Mat::new(&x, [rows, WIDTH]), Mat::new(&weight, [INNER, WIDTH]).transposed());
    let mut into = vec![0.0; rows * INNER];
    let mut group = criterion.benchmark_group("matmul");
    group.bench_function("kernel", |bencher| {
        let mut into = MatMut::new(&mut into, [rows, INNER]);
        bencher.iter(|| matmul(Write::Set, &mut into, x, weight, Threads::Pool));
    });
    group.bench_function("twin", |bencher| bencher.iter(|| matmul_reference(x, weight)));
}

/// Measures `x·Wᵀ`, `grad_y·W` and `of_yᵀ·x` for stacked weights with a common `x`: as one product, and as several
/// that read and write parts of the same matrices.
fn shared_inputs(criterion: &mut Criterion<CpuTime>) {
    let rows = 2048;
    for (name, parts) in
        [("queries, keys and values", &[256usize, 128, 128][..]), ("gates and ups", &[INNER, INNER])]
    {
        let all: usize = parts.iter().sum();
        let (x, weight, grad_y) = (noise(rows * WIDTH, 1), noise(all * WIDTH, 2), noise(rows * all, 3));
        let (x, weight, grad_y) =
            (Mat::new(&x, [rows, WIDTH]), Mat::new(&weight, [all, WIDTH]), Mat::new(&grad_y, [rows, all]));
        let (mut y, mut grad_x) = (vec![0.0; rows * all], vec![0.0; rows * WIDTH]);
        let mut of_weight = vec![0.0; all * WIDTH];
        let mut group = criterion.benchmark_group(name);
        for (how, parts) in [("as one", &[all][..]), ("apart", parts)] {
            group.bench_function(BenchmarkId::new("forward and back", how), |bencher| {
                bencher.iter(|| {
                    let mut first = 0;
                    let mut write = Write::Set;
                    for part in parts {
                        let of_part = first..first + part;
                        first = of_part.end;
                        let weight = weight.block(of_part.clone(), 0..WIDTH);
                        let grad_y = grad_y.block(0..rows, of_part.clone());
                        let mut y = MatMut::new(&mut y, [rows, all]).block(0..rows, of_part.clone());
                        let mut of_weight =
                            MatMut::new(&mut of_weight, [all, WIDTH]).block(of_part, 0..WIDTH);
                        let mut grad_x = MatMut::new(&mut grad_x, [rows, WIDTH]);
                        matmul(Write::Set, &mut y, x, weight.transposed(), Threads::Pool);
                        matmul(write, &mut grad_x, grad_y, weight, Threads::Pool);
                        matmul(Write::Set, &mut of_weight, grad_y.transposed(), x, Threads::Pool);
                        write = Write::Add;
                    }
                });
            });
        }
    }
}

fn attend(criterion: &mut Criterion<CpuTime>) {
    let count = SHAPE.seq_len;
    let rows = noise(count * SHAPE.row_width(), 1);
    let mixed_width = SHAPE.heads * SHAPE.head_width;
    let grad_mixed = noise(count * mixed_width, 2);
    let (mut mixed, mut log_sums) = (vec![0.0; count * mixed_width], vec![0.0; count * SHAPE.heads]);
    let mut grad_rows = vec![0.0; rows.len()];
    beside(
        &mut criterion.benchmark_group("attention, forward and back"),
        |bencher| {
            bencher.iter(|| {
                attention::forward(&SHAPE, &rows, &mut mixed, &mut log_sums);
                attention::backward(&SHAPE, &rows, &mixed, &log_sums, &grad_mixed, &mut grad_rows);
            });
        },
        |bencher| {
            bencher.iter(|| {
                black_box(attention::reference::forward(&SHAPE, &rows));
                attention::reference::backward(&SHAPE, &rows, &grad_mixed)
            });
        },
    );
}

fn norm(criterion: &mut Criterion<CpuTime>) {
    let rows = 1024;
    let (x, gain, grad_y) = (noise(rows * WIDTH, 1), noise(WIDTH, 2), noise(rows * WIDTH, 3));
    let (mut y, mut roots) = (vec![0.0; rows * WIDTH], vec![0.0; rows]);
    let (mut grad_x, mut grad_gain) = (vec![0.0; rows * WIDTH], vec![0.0; WIDTH]);
    beside(
        &mut criterion.benchmark_group("rms_norm, forward and back"),
        |bencher| {
            bencher.iter(|| {
                rms_norm::forward(&x, &gain, EPSILON, &mut y, &mut roots);
                rms_norm::backward(&x, &gain, &roots, &grad_y, &mut grad_x, &mut grad_gain);
            });
        },
        |bencher| {
            bencher.iter(|| {
                black_box(rms_norm::reference::forward(&x, &gain, EPSILON));
                rms_norm::reference::backward(&x, &gain, EPSILON, &grad_y)
            });
        },
    );
}

fn gated(criterion: &mut Criterion<CpuTime>) {
    let rows = 256;
    let (values, grad_h) = (noise(rows * 2 * INNER, 1), noise(rows * INNER, 2));
    let mut h = vec![0.0; rows * INNER];
    beside(
        &mut criterion.benchmark_group("swiglu"),
        |bencher| bencher.iter(|| swiglu::forward(&values, INNER, &mut h)),
        |bencher| bencher.iter(|| swiglu::reference::forward(&values, INNER)),
    );
    let both = [&values[..], &grad_h].concat();
    beside(
        &mut criterion.benchmark_group("swiglu, back"),
        |bencher| {
            in_place(bencher, &both, |both| {
                let (values, grad_h) = both.split_at_mut(values.len());
                swiglu::backward(values, INNER, grad_h);
            });
        },
        |bencher| bencher.iter(|| swiglu::reference::backward(&values, INNER, &grad_h)),
    );
}

fn turns(criterion: &mut Criterion<CpuTime>) {
    let (rows, width) = (SHAPE.seq_len, SHAPE.row_width());
    let rotated = (SHAPE.heads + SHAPE.kv_heads) * SHAPE.head_width;
    let (x, angles) = (noise(rows * width, 1), Angles::new(rows, SHAPE.head_width, 10_000.0));
    let heads = [SHAPE.heads, SHAPE.kv_heads];
    beside(
        &mut criterion.benchmark_group("rotary"),
        |bencher| in_place(bencher, &x, |x| rope::rotate(x, width, heads, rows, &angles, Rotation::Forward)),
        |bencher| {
            bencher.iter(|| {
                for (position, row) in x.chunks_exact(width).enumerate() {
                    let row = &row[..rotated];
                    black_box(rope::reference::rotate(
                        row,
                        SHAPE.heads,
                        SHAPE.head_width,
                        position,
                        10_000.0,
                    ));
                }
            });
        },
    );
}

fn losses(criterion: &mut Criterion<CpuTime>) {
    let rows = 64;
    let logits = noise(rows * VOCAB, 1);
    let targets: Vec<u32> = (0..rows as u32).map(|row| row * 61 % VOCAB as u32).collect();
    beside(
        &mut criterion.benchmark_group("cross_entropy, loss and gradient"),
        |bencher| {
            in_place(bencher, &logits, |logits| {
                cross_entropy::losses_and_gradient(logits, VOCAB, &targets, 1e-3)
            });
        },
        |bencher| {
            bencher.iter(|| {
                black_box(cross_entropy::reference::losses(&logits, VOCAB, &targets));
                cross_entropy::reference::gradient(&logits, VOCAB, &targets, 1e-3)
            });
        },
    );
}

fn steps(criterion: &mut Criterion<CpuTime>) {
    let len = VOCAB * WIDTH;
    let params = StepParams { step: 10, learning_rate: 1e-3, gradient_scale: 0.5 };
    let coefficients = Coefficients::new(&Recipe::default(), &params, 0.1);
    let (mut weights, gradient) = (noise(len, 1), noise(len, 2));
    let [mut mean, mut square] = [vec![0.0; len], vec![0.0; len]];
    let mut others = [(); 3].map(|()| vec![0.0; len]);
    beside(
        &mut criterion.benchmark_group("adamw"),
        |bencher| {
            bencher.iter(|| {
                let parameter = Parameter { weights: &mut weights, mean: &mut mean, square: &mut square };
                adamw::step(&coefficients, parameter, &gradient);
            });
        },
        |bencher| {
            bencher.iter(|| {
                let [weights, mean, square] = &mut others;
                adamw::step_reference(&coefficients, Parameter { weights, mean, square }, &gradient);
            });
        },
    );
}

/// Measures greedy continuation by as many tokens as the prompt has.
fn texts(criterion: &mut Criterion<CpuTime>) {
    const TOKENS: usize = 64;
    let config = ModelConfig::preset("6m").expect("a preset");
    let flat = init_flat(&config, 1).expect("a preset is valid");
    let evaluator = Evaluator::new(&config, Device::CPU, &flat).expect("every machine has a CPU");
    let likeliest = |logits: &[f32]| LogProbabilities::new(logits).likeliest(1)[0].0;
    let prompt: Vec<u32> = (0..TOKENS as u32).map(|at| at * 37 % config.vocab as u32).collect();
    let mut group = criterion.benchmark_group("text");
    group.throughput(Throughput::Elements(TOKENS as u64));
    group.bench_function("without a cache", |bencher| {
        bencher.iter(|| {
            let mut text = prompt.clone();
            for _ in 0..TOKENS {
                let logits = evaluator.logits(&text).expect("it fits");
                text.push(likeliest(&logits[(text.len() - 1) * config.vocab..]));
            }
            text
        });
    });
    for count in [1, 4, 16] {
        group.throughput(Throughput::Elements((count * TOKENS) as u64));
        group.bench_function(BenchmarkId::new("with a cache, texts at once", count), |bencher| {
            bencher.iter(|| {
                let start = |_| {
                    let mut session = evaluator.session(2 * TOKENS);
                    let token = likeliest(&evaluator.read(&mut session, &prompt).expect("it fits"));
                    (session, token)
                };
                let mut texts: Vec<(Session, u32)> = (0..count).map(start).collect();
                for _ in 1..TOKENS {
                    let mut steps: Vec<_> =
                        texts.iter_mut().map(|(session, token)| (session, *token)).collect();
                    let logits = evaluator.step(&mut steps).expect("it fits");
                    for ((_, token), logits) in texts.iter_mut().zip(logits.chunks_exact(config.vocab)) {
                        *token = likeliest(logits);
                    }
                }
                texts
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = network;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = products, shared_inputs, attend, norm, gated, turns, losses, steps, texts
}
criterion_main!(network);
