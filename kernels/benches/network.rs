//! What the network does on a CPU, each kernel beside its plain twin; and products of several weights as one and as several.
//! `RAYON_NUM_THREADS=1 cargo bench -p kernels --bench network`
//!
//! Measured is the CPU time of the process, which other work on the machine changes little. Shapes are those of preset `6m`.

use criterion::{
    BatchSize, Bencher, BenchmarkGroup, BenchmarkId, Criterion, criterion_group, criterion_main,
    measurement::{Measurement, ValueFormatter, WallTime},
};
use kernels::{
    adamw::{self, Numbers},
    attention, cross_entropy,
    lanes::{self, Width},
    matmul::{Mat, MatMut, Threads, Write, matmul, matmul_reference},
    rms_norm,
    rotary::{self, Angles, Rotation},
    swiglu,
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
        // SAFETY: the call writes to `time` and to nothing else.
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

/// All in one group, so that they are measured one after the other: the kernel with every width of vectors that the processor
/// has (its products choose their own), and the twin.
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
        bencher.iter(|| matmul(Write::Over, &mut into, x, weight, Threads::Pool));
    });
    group.bench_function("twin", |bencher| bencher.iter(|| matmul_reference(x, weight)));
}

/// `x·Wᵀ`, `of_y·W` and `of_yᵀ·x` for weights that share their `x`, and lie one below the other: as one product, and as several
/// that read and write parts of the same matrices.
fn shared_inputs(criterion: &mut Criterion<CpuTime>) {
    let rows = 2048;
    for (name, parts) in
        [("queries, keys and values", &[256usize, 128, 128][..]), ("gates and ups", &[INNER, INNER])]
    {
        let all: usize = parts.iter().sum();
        let (x, weight, of_y) = (noise(rows * WIDTH, 1), noise(all * WIDTH, 2), noise(rows * all, 3));
        let (x, weight, of_y) =
            (Mat::new(&x, [rows, WIDTH]), Mat::new(&weight, [all, WIDTH]), Mat::new(&of_y, [rows, all]));
        let (mut y, mut of_x) = (vec![0.0; rows * all], vec![0.0; rows * WIDTH]);
        let mut of_weight = vec![0.0; all * WIDTH];
        let mut group = criterion.benchmark_group(name);
        for (how, parts) in [("as one", &[all][..]), ("apart", parts)] {
            group.bench_function(BenchmarkId::new("forward and back", how), |bencher| {
                bencher.iter(|| {
                    let mut first = 0;
                    let mut write = Write::Over;
                    for part in parts {
                        let of_part = first..first + part;
                        first = of_part.end;
                        let weight = weight.block(of_part.clone(), 0..WIDTH);
                        let of_y = of_y.block(0..rows, of_part.clone());
                        let mut y = MatMut::new(&mut y, [rows, all]).block(0..rows, of_part.clone());
                        let mut of_weight =
                            MatMut::new(&mut of_weight, [all, WIDTH]).block(of_part, 0..WIDTH);
                        let mut of_x = MatMut::new(&mut of_x, [rows, WIDTH]);
                        matmul(Write::Over, &mut y, x, weight.transposed(), Threads::Pool);
                        matmul(write, &mut of_x, of_y, weight, Threads::Pool);
                        matmul(Write::Over, &mut of_weight, of_y.transposed(), x, Threads::Pool);
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
    let of_mixed = noise(count * mixed_width, 2);
    let (mut mixed, mut log_sums) = (vec![0.0; count * mixed_width], vec![0.0; count * SHAPE.heads]);
    let mut of_rows = vec![0.0; rows.len()];
    beside(
        &mut criterion.benchmark_group("attention, forward and back"),
        |bencher| {
            bencher.iter(|| {
                attention::forward(&SHAPE, &rows, &mut mixed, &mut log_sums);
                attention::backward(&SHAPE, &rows, &mixed, &log_sums, &of_mixed, &mut of_rows);
            });
        },
        |bencher| {
            bencher.iter(|| {
                black_box(attention::forward_reference(&SHAPE, &rows));
                attention::backward_reference(&SHAPE, &rows, &of_mixed)
            });
        },
    );
}

fn norm(criterion: &mut Criterion<CpuTime>) {
    let rows = 1024;
    let (x, gain, of_y) = (noise(rows * WIDTH, 1), noise(WIDTH, 2), noise(rows * WIDTH, 3));
    let (mut y, mut roots) = (vec![0.0; rows * WIDTH], vec![0.0; rows]);
    let (mut of_x, mut of_gain) = (vec![0.0; rows * WIDTH], vec![0.0; WIDTH]);
    beside(
        &mut criterion.benchmark_group("rms_norm, forward and back"),
        |bencher| {
            bencher.iter(|| {
                rms_norm::forward(&x, &gain, EPSILON, &mut y, &mut roots);
                rms_norm::backward(&x, &gain, &roots, &of_y, &mut of_x, &mut of_gain);
            });
        },
        |bencher| {
            bencher.iter(|| {
                black_box(rms_norm::forward_reference(&x, &gain, EPSILON));
                rms_norm::backward_reference(&x, &gain, EPSILON, &of_y)
            });
        },
    );
}

fn gated(criterion: &mut Criterion<CpuTime>) {
    let rows = 256;
    let (values, of_h) = (noise(rows * 2 * INNER, 1), noise(rows * INNER, 2));
    let mut h = vec![0.0; rows * INNER];
    beside(
        &mut criterion.benchmark_group("swiglu"),
        |bencher| bencher.iter(|| swiglu::forward(&values, INNER, &mut h)),
        |bencher| bencher.iter(|| swiglu::forward_reference(&values, INNER)),
    );
    let both = [&values[..], &of_h].concat();
    beside(
        &mut criterion.benchmark_group("swiglu, back"),
        |bencher| {
            in_place(bencher, &both, |both| {
                let (values, of_h) = both.split_at_mut(values.len());
                swiglu::backward(values, INNER, of_h);
            });
        },
        |bencher| bencher.iter(|| swiglu::backward_reference(&values, INNER, &of_h)),
    );
}

fn turns(criterion: &mut Criterion<CpuTime>) {
    let (rows, width) = (SHAPE.seq_len, SHAPE.row_width());
    let turned = (SHAPE.heads + SHAPE.kv_heads) * SHAPE.head_width;
    let (x, angles) = (noise(rows * width, 1), Angles::new(rows, SHAPE.head_width, 10_000.0));
    let heads = [SHAPE.heads, SHAPE.kv_heads];
    beside(
        &mut criterion.benchmark_group("rotary"),
        |bencher| {
            in_place(bencher, &x, |x| rotary::rotate(x, width, heads, rows, &angles, Rotation::Forward))
        },
        |bencher| {
            bencher.iter(|| {
                for (position, row) in x.chunks_exact(width).enumerate() {
                    let row = &row[..turned];
                    black_box(rotary::rotate_reference(
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
                black_box(cross_entropy::losses_reference(&logits, VOCAB, &targets));
                cross_entropy::gradient_reference(&logits, VOCAB, &targets, 1e-3)
            });
        },
    );
}

fn steps(criterion: &mut Criterion<CpuTime>) {
    let len = VOCAB * WIDTH;
    let numbers = Numbers::new([0.9, 0.95], 10, 1e-8, 1e-3, 0.1, 0.5);
    let (mut weights, gradient) = (noise(len, 1), noise(len, 2));
    let [mut mean, mut square] = [vec![0.0; len], vec![0.0; len]];
    let [mut other_weights, mut other_mean, mut other_square] = [(); 3].map(|()| vec![0.0; len]);
    beside(
        &mut criterion.benchmark_group("adamw"),
        |bencher| {
            bencher.iter(|| adamw::step(&numbers, &mut weights, &gradient, &mut mean, &mut square));
        },
        |bencher| {
            bencher.iter(|| {
                adamw::step_reference(
                    &numbers,
                    &mut other_weights,
                    &gradient,
                    &mut other_mean,
                    &mut other_square,
                );
            });
        },
    );
}

criterion_group! {
    name = network;
    config = Criterion::default()
        .with_measurement(CpuTime)
        .sample_size(10)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = products, shared_inputs, attend, norm, gated, turns, losses, steps
}
criterion_main!(network);
