//! Tests of products and attention on a GPU against the CPU's, on the device that `GPU_DEVICE` names.
//!
//! Inputs are rounded to the arrays' precision first. An error is the largest difference over the root mean square of
//! the expected values.

#[path = "common/device.rs"]
mod device;

use device::{Test, precisions};
use mettle_nn::{
    Precision,
    gpu::{Array, Gpu, GpuError, View},
    layers::{
        attention::{self, Shape},
        matmul::{Mat, SUM_VALUES, Write, gpu::Algorithm, reference::matmul as matmul_reference},
    },
};

const TESTS: &[Test] = &[
    ("values_are_downloaded_as_they_were_rounded", come_back),
    ("products_are_close_to_the_exact_ones", products),
    ("products_read_parts_of_rows_and_transposes", parts_and_transposes),
    ("a_product_is_added_to_the_values_there", added),
    ("a_product_too_large_for_its_buffer_is_added_in_parts", added_in_turns),
    ("products_of_the_shapes_of_models_are_close", shapes_of_models),
    ("each_available_algorithm_agrees", all_ways),
    ("attention_is_close_to_the_exact_one", attention_forward),
    ("the_gradients_of_attention_are_the_cpus", attention_backward),
    ("long_sequences_are_computed_in_blocks", long_sequences),
    ("extreme_scores_give_finite_values", extreme_scores),
    ("two_runs_have_the_same_bits", same_bits),
    ("arrays_that_do_not_fit_are_refused", refused),
];

fn main() {
    device::main(TESTS)
}

/// Random numbers by SplitMix64, the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn row(&mut self, length: usize, scale: f32) -> Vec<f32> {
        (0..length)
            .map(|_| {
                let (a, b) = (self.unit().max(1e-300), self.unit());
                ((-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()) as f32 * scale
            })
            .collect()
    }
}

/// Returns values on the GPU, and the values as rounded there.
fn random(
    gpu: &Gpu,
    random: &mut Random,
    length: usize,
    scale: f32,
    precision: Precision,
) -> (Array, Vec<f32>) {
    let array = gpu.upload(&random.row(length, scale), precision).unwrap();
    let rounded = gpu.download(&array).unwrap();
    (array, rounded)
}

/// Returns the largest difference over the root mean square of the expected values.
fn error(expected: &[f64], got: &[f32]) -> f64 {
    assert_eq!(expected.len(), got.len());
    let squares: f64 = expected.iter().map(|value| value * value).sum();
    let root = (squares / expected.len() as f64).sqrt().max(1e-30);
    let differences = expected.iter().zip(got).map(|(expected, got)| (expected - f64::from(*got)).abs());
    // Comparisons with NaN are false, so NaN needs its own test.
    let worst = differences.fold(0.0, |worst: f64, it| if it.is_nan() || it > worst { it } else { worst });
    worst / root
}

#[track_caller]
fn close(expected: &[f64], got: &[f32], bound: f64, what: &str) {
    let error = error(expected, got);
    if std::env::var_os("GPU_ERRORS").is_some() {
        println!("{what}: {error:.1e} of {bound:.1e}");
    }
    assert!(error <= bound, "{what}: error {error:.2e}, and {bound:.2e} was allowed");
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

/// Returns half a step of this precision, relative to a value.
fn half_a_step(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 2f64.powi(-24),
        Precision::Bf16 => 2f64.powi(-8),
        Precision::F16 => 2f64.powi(-11),
    }
}

/// Returns the rounding error of the largest of many values, about five times their root mean square.
fn rounding(precision: Precision) -> f64 {
    5.0 * half_a_step(precision)
}

/// Returns the bound for a sum of `inner` products in f32: four times the worst error on lavapipe.
fn sums(inner: usize) -> f64 {
    4e-6 + 4e-7 * (inner as f64).sqrt()
}

fn come_back(gpu: &Gpu) {
    let mut random = Random(1);
    for precision in precisions(gpu) {
        for length in [0, 1, 7, 4096, 100_003] {
            let values = random.row(length, 3.0);
            let array = gpu.upload(&values, precision).unwrap();
            assert_eq!(array.len(), length);
            let got = gpu.download(&array).unwrap();
            let step = if precision == Precision::F32 { 0.0 } else { half_a_step(precision) };
            for (value, got) in values.iter().zip(&got) {
                let difference = f64::from((value - got).abs());
                assert!(difference <= f64::from(value.abs()) * step + 1e-7, "{value} came back as {got}");
            }
        }
    }
    let array = gpu.upload(&(0..2000).map(|value| value as f32).collect::<Vec<_>>(), Precision::F32).unwrap();
    let part = gpu.part(&array, 1024, 500).unwrap();
    let expected: Vec<f32> = (1024..1524).map(|value| value as f32).collect();
    assert_eq!(gpu.download(&part).unwrap(), expected);
    gpu.overwrite(&part, &vec![-1.0; 500]).unwrap();
    let got = gpu.download(&array).unwrap();
    assert_eq!((got[1023], got[1024], got[1523], got[1524]), (1023.0, -1.0, -1.0, 1524.0));
}

/// Compares a product, with transposed operands or not, with the exact one.
fn check_product(
    gpu: &Gpu,
    [m, n, k]: [usize; 3],
    transposed: [bool; 2],
    precision: Precision,
    out_precision: Precision,
) {
    let mut seed = Random((m * 31 + n * 7 + k) as u64);
    let (lhs, lhs_values) = random(gpu, &mut seed, m * k, 1.0, precision);
    let (rhs, rhs_values) = random(gpu, &mut seed, k * n, 1.0, precision);
    let out = gpu.array(m * n, out_precision).unwrap();
    let views =
        [(&lhs, [m, k], transposed[0]), (&rhs, [k, n], transposed[1])].map(|(array, shape, transposed)| {
            if transposed {
                View::new(array, [shape[1], shape[0]]).transposed()
            } else {
                View::new(array, shape)
            }
        });
    gpu.product(Write::Set, &out, [m, n], views[0], views[1]).unwrap();
    let mats = [(&lhs_values, [m, k], transposed[0]), (&rhs_values, [k, n], transposed[1])].map(
        |(values, shape, transposed)| {
            if transposed {
                Mat::new(values, [shape[1], shape[0]]).transposed()
            } else {
                Mat::new(values, shape)
            }
        },
    );
    let expected = matmul_reference(mats[0], mats[1]);
    let what = format!("{m}·{k}·{n} {transposed:?} {precision:?} to {out_precision:?}");
    close(&expected, &gpu.download(&out).unwrap(), sums(k) + rounding(out_precision), &what);
}

fn products(gpu: &Gpu) {
    let shapes = [
        [1, 1, 1],
        [3, 5, 7],
        [64, 64, 64],
        [65, 33, 129],
        [1, 100, 64],
        [100, 1, 64],
        [130, 258, 31],
        [256, 192, 128],
    ];
    for precision in precisions(gpu) {
        for shape in shapes {
            check_product(gpu, shape, [false, false], precision, precision);
        }
    }
}

fn parts_and_transposes(gpu: &Gpu) {
    for precision in precisions(gpu) {
        for shape in [[64, 96, 32], [37, 70, 19]] {
            for transposed in [[true, false], [false, true], [true, true]] {
                check_product(gpu, shape, transposed, precision, Precision::F32);
            }
        }
    }
    // The middle columns of wider rows, and rows from the 16th on.
    let mut seed = Random(2);
    let (wide_rows, values) = random(gpu, &mut seed, 80 * 96, 1.0, Precision::F32);
    let (rhs, rhs_values) = random(gpu, &mut seed, 32 * 40, 1.0, Precision::F32);
    let out = gpu.array(64 * 40, Precision::F32).unwrap();
    let lhs = View { columns: 32, first: 16 * 96 + 64, rows: 64, ..View::new(&wide_rows, [80, 96]) };
    gpu.product(Write::Set, &out, [64, 40], lhs, View::new(&rhs, [32, 40])).unwrap();
    let lhs = Mat::new(&values, [80, 96]).block(16..80, 64..96);
    let expected = matmul_reference(lhs, Mat::new(&rhs_values, [32, 40]));
    close(&expected, &gpu.download(&out).unwrap(), sums(32), "middle columns");
}

/// Checks a product that is added to its output.
fn check_added(gpu: &Gpu, [m, n, k]: [usize; 3], precision: Precision) {
    let mut seed = Random(3);
    let (lhs, lhs_values) = random(gpu, &mut seed, k * m, 1.0, precision);
    let (rhs, rhs_values) = random(gpu, &mut seed, k * n, 1.0, precision);
    let (out, before) = random(gpu, &mut seed, m * n, 1.0, Precision::F32);
    let views = (View::new(&lhs, [k, m]).transposed(), View::new(&rhs, [k, n]));
    gpu.product(Write::Add, &out, [m, n], views.0, views.1).unwrap();
    let product = matmul_reference(Mat::new(&lhs_values, [k, m]).transposed(), Mat::new(&rhs_values, [k, n]));
    let expected: Vec<f64> =
        product.iter().zip(&before).map(|(product, before)| product + f64::from(*before)).collect();
    close(&expected, &gpu.download(&out).unwrap(), sums(k), &format!("added {m}·{k}·{n} {precision:?}"));
}

fn added(gpu: &Gpu) {
    for precision in precisions(gpu) {
        check_added(gpu, [96, 64, 128], precision);
        check_added(gpu, [51, 33, 20], precision);
    }
}

fn added_in_turns(gpu: &Gpu) {
    let n = 40_000;
    let m = SUM_VALUES / n + 200;
    check_added(gpu, [m, n, 2], Precision::F32);
}

fn shapes_of_models(gpu: &Gpu) {
    for precision in precisions(gpu) {
        // A chunk of a vocabulary, wide and narrow sides of a large layer, and the shapes of its weights' gradients.
        for shape in [[4, 32_003, 64], [3, 14_336, 40], [8, 64, 14_336]] {
            check_product(gpu, shape, [false, true], precision, precision);
        }
        check_product(gpu, [14_336, 8, 16], [true, false], precision, Precision::F32);
    }
}

fn all_ways(gpu: &Gpu) {
    let (m, n, k) = (128, 128, 128);
    for precision in precisions(gpu) {
        let mut seed = Random(4);
        let (lhs, lhs_values) = random(gpu, &mut seed, m * k, 1.0, precision);
        let (rhs, rhs_values) = random(gpu, &mut seed, k * n, 1.0, precision);
        let expected = matmul_reference(Mat::new(&lhs_values, [m, k]), Mat::new(&rhs_values, [k, n]));
        let mut there = Vec::new();
        for algorithm in Algorithm::ALL {
            let out = gpu.array(m * n, Precision::F32).unwrap();
            if gpu.product_by(algorithm, &out, View::new(&lhs, [m, k]), View::new(&rhs, [k, n])).is_err() {
                continue;
            }
            there.push(algorithm);
            // Tensor cores round operands of f32 to 11 bits.
            let bound =
                if precision == Precision::F32 && !matches!(algorithm, Algorithm::Units | Algorithm::Plain) {
                    3e-3
                } else {
                    sums(k)
                };
            close(&expected, &gpu.download(&out).unwrap(), bound, &format!("{algorithm:?} {precision:?}"));
        }
        println!("{precision:?} by {there:?}");
        assert!(there.contains(&Algorithm::Units) && there.contains(&Algorithm::Plain), "{there:?}");
    }
}

/// Attention's inputs, and the CPU's results.
struct Case {
    shape: Shape,
    rows: Vec<f32>,
    grad_mixed: Vec<f32>,
}

fn case(gpu: &Gpu, shape: Shape, sequences: usize, scale: f32, precision: Precision) -> (Case, Array, Array) {
    let mut seed = Random((shape.seq_len * 13 + shape.heads) as u64);
    let count = sequences * shape.seq_len;
    let (rows, row_values) = random(gpu, &mut seed, count * shape.row_width(), scale, precision);
    let (grad_mixed, of_values) =
        random(gpu, &mut seed, count * shape.heads * shape.head_width, 1.0, precision);
    (Case { shape, rows: row_values, grad_mixed: of_values }, rows, grad_mixed)
}

/// Runs both passes on the device; returns outputs, log-sums and gradients.
fn on_device(gpu: &Gpu, case: &Case, rows: &Array, grad_mixed: &Array) -> [Vec<f32>; 3] {
    let count = case.rows.len() / case.shape.row_width();
    let precision = rows.precision();
    let mixed = gpu.array(case.grad_mixed.len(), precision).unwrap();
    let log_sums = gpu.array(count * case.shape.heads, Precision::F32).unwrap();
    let grad_rows = gpu.array(case.rows.len(), precision).unwrap();
    gpu.attention(&case.shape, rows, &mixed, &log_sums).unwrap();
    gpu.attention_backward(&case.shape, rows, &mixed, &log_sums, grad_mixed, &grad_rows).unwrap();
    [&mixed, &log_sums, &grad_rows].map(|array| gpu.download(array).unwrap())
}

/// Runs both passes on the CPU, in f32.
fn on_cpu(case: &Case) -> [Vec<f32>; 3] {
    let count = case.rows.len() / case.shape.row_width();
    let (mut mixed, mut log_sums) = (vec![0.0; case.grad_mixed.len()], vec![0.0; count * case.shape.heads]);
    let mut grad_rows = vec![0.0; case.rows.len()];
    attention::forward(&case.shape, &case.rows, &mut mixed, &mut log_sums);
    attention::backward(&case.shape, &case.rows, &mixed, &log_sums, &case.grad_mixed, &mut grad_rows);
    [mixed, log_sums, grad_rows]
}

/// Returns the bounds for outputs, log-sums and gradients. In 16 bits, probabilities and gradients of scores are
/// rounded between the products.
fn bounds(precision: Precision) -> [f64; 3] {
    match precision {
        Precision::F32 => [4e-5, 2e-6, 1e-4],
        _ => [3.0 * rounding(precision), 2e-6, 12.0 * rounding(precision)],
    }
}

fn check_attention(gpu: &Gpu, shape: Shape, sequences: usize) {
    for precision in precisions(gpu) {
        let (case, rows, grad_mixed) = case(gpu, shape, sequences, 0.7, precision);
        let got = on_device(gpu, &case, &rows, &grad_mixed);
        let expected = on_cpu(&case);
        for ((expected, got), (bound, what)) in expected
            .iter()
            .zip(&got)
            .zip(bounds(precision).into_iter().zip(["mixes", "logarithms", "gradients"]))
        {
            close(&wide(expected), got, bound, &format!("{what} of {shape:?} {precision:?}"));
        }
    }
}

const fn shape(seq_len: usize, heads: usize, kv_heads: usize, head_width: usize) -> Shape {
    Shape { seq_len, heads, kv_heads, head_width }
}

fn attention_forward(gpu: &Gpu) {
    for shape in [shape(1, 1, 1, 32), shape(33, 4, 2, 32), shape(64, 2, 1, 64)] {
        let (case, rows, grad_mixed) = case(gpu, shape, 2, 0.7, Precision::F32);
        let [mixed, ..] = on_device(gpu, &case, &rows, &grad_mixed);
        close(
            &attention::reference::forward(&shape, &case.rows),
            &mixed,
            1e-5,
            &format!("mixes of {shape:?}"),
        );
    }
}

fn attention_backward(gpu: &Gpu) {
    check_attention(gpu, shape(5, 2, 2, 32), 3);
    check_attention(gpu, shape(67, 6, 2, 64), 2);
    check_attention(gpu, shape(40, 4, 1, 128), 1);
    check_attention(gpu, shape(129, 3, 3, 20), 1);
}

fn long_sequences(gpu: &Gpu) {
    // Three blocks, the last one short; a large one; and a number of heads that leaves one sequence at a time.
    check_attention(gpu, shape(1101, 2, 1, 32), 1);
    check_attention(gpu, shape(2048, 1, 1, 64), 1);
    // Blocks of two sequences, the last of one.
    let small_blocks = Gpu::open(gpu.device()).unwrap().with_scores(2 * 2 * 128 * 300);
    check_attention(&small_blocks, shape(300, 2, 1, 32), 3);
}

fn extreme_scores(gpu: &Gpu) {
    let shape = shape(50, 2, 1, 32);
    let (case, rows, grad_mixed) = case(gpu, shape, 1, 20.0, Precision::F32);
    let got = on_device(gpu, &case, &rows, &grad_mixed);
    for (expected, got) in on_cpu(&case).iter().zip(&got) {
        assert!(got.iter().all(|value| value.is_finite()));
        // Scores near 1e4 are accurate to 1e-3 in f32, and so are their results.
        close(&wide(expected), got, 1e-2, "extreme scores");
    }
}

fn same_bits(gpu: &Gpu) {
    for precision in precisions(gpu) {
        let (case, rows, grad_mixed) = case(gpu, shape(150, 4, 2, 32), 2, 0.7, precision);
        let runs = [0, 1].map(|_| on_device(gpu, &case, &rows, &grad_mixed));
        for (one, other) in runs[0].iter().zip(&runs[1]) {
            assert!(one.iter().map(|value| value.to_bits()).eq(other.iter().map(|value| value.to_bits())));
        }
    }
}

fn refused(gpu: &Gpu) {
    let array = |len, precision| gpu.array(len, precision).unwrap();
    let (six, out) = (array(6, Precision::F32), array(5, Precision::F32));
    let view = View::new(&six, [2, 3]);
    assert_eq!(
        gpu.product(Write::Set, &out, [2, 2], view, view.transposed()),
        Err(GpuError::WrongLength { expected: 4, got: 5 })
    );
    let beyond = View::new(&six, [3, 3]);
    assert_eq!(
        gpu.product(Write::Set, &array(9, Precision::F32), [3, 3], beyond, beyond),
        Err(GpuError::WrongLength { expected: 9, got: 6 })
    );
    assert!(matches!(gpu.part(&six, 1, 2), Err(GpuError::Misplaced { first: 1, .. })));
    assert_eq!(gpu.part(&six, 0, 7).err(), Some(GpuError::WrongLength { expected: 7, got: 6 }));
    assert!(matches!(gpu.array(usize::MAX, Precision::F32), Err(GpuError::TooLong { .. })));
    let shape = shape(2, 2, 1, 4);
    let (rows, mixed) = (array(2 * shape.row_width(), Precision::F32), array(16, Precision::F32));
    assert_eq!(
        gpu.attention(&shape, &rows, &mixed, &array(3, Precision::F32)),
        Err(GpuError::WrongLength { expected: 4, got: 3 })
    );
    for precision in precisions(gpu).into_iter().filter(|precision| *precision != Precision::F32) {
        let other = array(6, precision);
        let mixed_up =
            gpu.product(Write::Set, &array(4, Precision::F32), [2, 2], view, View::new(&other, [3, 2]));
        assert_eq!(mixed_up, Err(GpuError::Precision { expected: Precision::F32, got: precision }));
    }
}
