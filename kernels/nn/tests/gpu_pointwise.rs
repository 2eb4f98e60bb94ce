//! Tests of the GPU's kernels between two products against their references, on the device that `GPU_DEVICE` names.
//!
//! Inputs are rounded to the arrays' precision first. In f32 a bound is at least three times the worst error on
//! lavapipe; in 16 bits it is one rounding.

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "common/device.rs"]
mod device;

use device::{Test, precisions};
use mettle_nn::{
    Precision, StepParams,
    gpu::{Array, Gpu, GpuError},
    layers::{
        cross_entropy, rms_norm,
        rope::{self, Angles, Rotation},
        swiglu,
    },
    optim::{
        adamw::{self, Coefficients, Parameter},
        norm,
    },
};
use model::Recipe;

const TESTS: &[Test] = &[
    ("norms_and_their_gradients_are_close_to_the_exact_ones", norms),
    ("norms_of_large_small_and_zero_rows_are_numbers", norms_of_odd_rows),
    ("rotations_are_close_to_the_exact_ones_and_undone", turns),
    ("swiglu_and_its_gradients_are_close_to_the_exact_ones", gates),
    ("losses_and_gradients_are_close_to_the_exact_ones", losses),
    ("exponentials_and_logarithms_are_close_however_small", exponentials),
    ("losses_of_extreme_logits_are_those_of_the_cpu", extreme_logits),
    ("a_chunk_of_losses_is_written_to_its_place", chunks_of_losses),
    ("rows_of_the_embedding_are_gathered", gathered),
    ("gradients_of_rows_are_added_at_their_tokens", added_at_tokens),
    ("a_step_of_adamw_is_the_cpus", steps),
    ("sums_of_squares_are_close_to_the_exact_ones", squares),
    ("casts_sums_and_fills_are_the_cpus", casts_sums_and_fills),
    ("slices_are_added_in_their_order_to_the_cpus_bits", slices),
    ("two_runs_have_the_same_bits", same_bits),
    ("more_rows_than_a_grid_has_columns_are_all_computed", many_rows),
    ("empty_arrays_are_no_error", nothing),
    ("values_behind_a_part_stay", neighbours),
    ("arrays_that_do_not_fit_are_refused", refused),
];

fn main() {
    device::main(TESTS)
}

/// Returns numbers between −`spread` and `spread`, the same for the same seed.
fn noise(len: usize, spread: f32, seed: u32) -> Vec<f32> {
    common::noise(len, seed).into_iter().map(|value| value * spread).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns AdamW's coefficients with the recipe's betas and epsilon.
fn coefficients(step: u64, gradient_scale: f64) -> Coefficients {
    Coefficients::new(&Recipe::default(), &StepParams { step, learning_rate: 4e-3, gradient_scale }, 0.1)
}

/// Returns the relative rounding error of a precision.
fn rounding(precision: Precision) -> f64 {
    match precision {
        Precision::F32 => 0.0,
        Precision::Bf16 => 2f64.powi(-8),
        Precision::F16 => 2f64.powi(-11),
    }
}

/// Checks that all values are within `bound` of the exact ones, or within that share of those larger than 1.
#[track_caller]
fn close(what: &str, got: &[f32], exact: &[f64], bound: f64) {
    assert_eq!(got.len(), exact.len(), "{what}");
    let apart = |(got, exact): (&f32, &f64)| (f64::from(*got) - exact).abs() / exact.abs().max(1.0);
    let mut worst = 0.0;
    for (at, pair) in got.iter().zip(exact).enumerate() {
        let apart = apart(pair);
        assert!(apart <= bound, "{what}: {} at {at}, exactly {}: {apart:e} apart", pair.0, pair.1);
        worst = f64::max(worst, apart);
    }
    if std::env::var_os("GPU_WORST").is_some() {
        println!("{what}: at most {worst:e}, of {bound:e}");
    }
}

/// Uploads values; returns the array, and the values as rounded there.
fn put(gpu: &Gpu, values: &[f32], precision: Precision) -> (Array, Vec<f32>) {
    let array = gpu.upload(values, precision).unwrap();
    let rounded = gpu.download(&array).unwrap();
    (array, rounded)
}

fn get(gpu: &Gpu, array: &Array) -> Vec<f32> {
    gpu.download(array).unwrap()
}

/// Returns an array of NaN, so that unwritten values are detected.
fn unwritten(gpu: &Gpu, len: usize, precision: Precision) -> Array {
    gpu.upload(&vec![f32::NAN; len], precision).unwrap()
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

const EPSILON: f32 = 1e-5;

fn norms(gpu: &Gpu) {
    for precision in precisions(gpu) {
        for (rows, width) in
            [(1, 1), (1, 64), (3, 7), (40, 130), (17, 96), (33, 1023), (5, 4096), (2, 8195), (300, 12)]
        {
            let what = format!("{precision:?} {rows} x {width}");
            let (x, x_here) = put(gpu, &noise(rows * width, 3.0, 1), Precision::F32);
            let (gain, gain_here) = put(gpu, &noise(width, 1.0, 2), Precision::F32);
            let y = unwritten(gpu, rows * width, precision);
            let roots = unwritten(gpu, rows, Precision::F32);
            gpu.rms_norm(&x, &gain, Some(EPSILON), &y, &roots).unwrap();
            let exact = rms_norm::reference::forward(&x_here, &gain_here, EPSILON);
            close(&what, &get(gpu, &y), &exact, 2e-6 + rounding(precision));
            let again = unwritten(gpu, rows * width, precision);
            gpu.rms_norm(&x, &gain, None, &again, &roots).unwrap();
            assert_eq!(bits(&get(gpu, &again)), bits(&get(gpu, &y)), "{what}");

            // Both gradients are added to the existing values.
            let (grad_y, of_y_here) = put(gpu, &noise(rows * width, 1.0, 3), precision);
            let (grad_x, of_x_here) = put(gpu, &noise(rows * width, 1.0, 4), Precision::F32);
            let (grad_gain, of_gain_here) = put(gpu, &noise(width, 1.0, 5), Precision::F32);
            gpu.rms_norm_backward(&x, &gain, &roots, &grad_y, &grad_x, &grad_gain).unwrap();
            let (mut exact_x, mut exact_gain) =
                rms_norm::reference::backward(&x_here, &gain_here, EPSILON, &of_y_here);
            exact_x.iter_mut().zip(of_x_here).for_each(|(exact, before)| *exact += f64::from(before));
            exact_gain.iter_mut().zip(of_gain_here).for_each(|(exact, before)| *exact += f64::from(before));
            close(&format!("{what}, of x"), &get(gpu, &grad_x), &exact_x, 4e-6);
            close(&format!("{what}, of the gain"), &get(gpu, &grad_gain), &exact_gain, 1e-5);
        }
    }
}

fn norms_of_odd_rows(gpu: &Gpu) {
    let width = 100;
    for spread in [0.0, 1e-30, 1e-6, 1e15] {
        let (x, x_here) = put(gpu, &noise(3 * width, spread, 1), Precision::F32);
        let (gain, gain_here) = put(gpu, &noise(width, 1.0, 2), Precision::F32);
        let y = unwritten(gpu, 3 * width, Precision::F32);
        let roots = unwritten(gpu, 3, Precision::F32);
        gpu.rms_norm(&x, &gain, Some(EPSILON), &y, &roots).unwrap();
        let exact = rms_norm::reference::forward(&x_here, &gain_here, EPSILON);
        close(&format!("spread {spread:e}"), &get(gpu, &y), &exact, 2e-6);
        let (grad_y, _) = put(gpu, &noise(3 * width, 1.0, 3), Precision::F32);
        let (grad_x, grad_gain) = (
            put(gpu, &vec![0.0; 3 * width], Precision::F32).0,
            put(gpu, &vec![0.0; width], Precision::F32).0,
        );
        gpu.rms_norm_backward(&x, &gain, &roots, &grad_y, &grad_x, &grad_gain).unwrap();
        assert!(get(gpu, &grad_x).iter().chain(&get(gpu, &grad_gain)).all(|value| value.is_finite()));
    }
}

fn turns(gpu: &Gpu) {
    let base = 10_000.0;
    for precision in precisions(gpu) {
        for (sequences, seq_len, queries, keys, half) in
            [(1, 1, 1, 1, 1), (3, 7, 9, 2, 3), (2, 33, 4, 4, 16), (1, 20, 17, 9, 2), (2, 5, 1, 0, 32)]
        {
            let what = format!("{precision:?} {sequences} x {seq_len}, heads {queries} and {keys} of {half}");
            let width = 2 * half;
            let row_width = (queries + 2 * keys) * width;
            let (x, before) = put(gpu, &noise(sequences * seq_len * row_width, 1.0, 7), precision);
            let angles = Angles::new(seq_len + 3, width, base);
            let here = gpu.upload_angles(&angles).unwrap();
            gpu.rope(&x, row_width, [queries, keys], seq_len, &here, Rotation::Forward).unwrap();
            let rotated = get(gpu, &x);
            for (row, (x, rotated)) in
                before.chunks_exact(row_width).zip(rotated.chunks_exact(row_width)).enumerate()
            {
                let (x, values) = x.split_at((queries + keys) * width);
                let (rotated, same) = rotated.split_at((queries + keys) * width);
                let exact = rope::reference::rotate(x, queries, width, row % seq_len, base);
                close(&what, rotated, &exact, 1e-6 + rounding(precision));
                assert_eq!(bits(values), bits(same), "{what}: values are not rotated");
            }
            // The inverse is the transpose, so queries are then scaled twice by 1/√width.
            gpu.rope(&x, row_width, [queries, keys], seq_len, &here, Rotation::Back).unwrap();
            let scaled: Vec<f64> = (0..before.len())
                .map(|at| {
                    let scale = if at % row_width < queries * width { 1.0 / width as f64 } else { 1.0 };
                    f64::from(before[at]) * scale
                })
                .collect();
            close(&format!("{what}, back"), &get(gpu, &x), &scaled, 1e-6 + 4.0 * rounding(precision));
        }
    }
}

fn gates(gpu: &Gpu) {
    for precision in precisions(gpu) {
        for (rows, width, spread) in
            [(1, 1, 1.0), (3, 5, 6.0), (20, 34, 60.0), (9, 256, 3.0), (2, 1000, 200.0), (70, 12, 0.1)]
        {
            let what = format!("{precision:?} {rows} x {width}, spread {spread}");
            let (both, both_here) = put(gpu, &noise(rows * 2 * width, spread, 1), precision);
            let h = unwritten(gpu, rows * width, precision);
            gpu.swiglu(&both, width, &h).unwrap();
            let exact = swiglu::reference::forward(&both_here, width);
            close(&what, &get(gpu, &h), &exact, 1e-6 + rounding(precision));

            let (grad_h, of_h_here) = put(gpu, &noise(rows * width, 1.0, 2), precision);
            gpu.swiglu_backward(&both, width, &grad_h).unwrap();
            assert_eq!(bits(&get(gpu, &grad_h)), bits(&get(gpu, &h)), "the way back gives h again");
            let exact = swiglu::reference::backward(&both_here, width, &of_h_here);
            close(&format!("{what}, back"), &get(gpu, &both), &exact, 4e-6 + 1.1 * rounding(precision));
        }
    }
    // Gates whose exponential overflows f32.
    let both = [-1e4, -200.0, -90.0, 90.0, 200.0, 1e4, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0];
    let (array, _) = put(gpu, &both, Precision::F32);
    let h = unwritten(gpu, 6, Precision::F32);
    gpu.swiglu(&array, 6, &h).unwrap();
    close("far gates", &get(gpu, &h), &swiglu::reference::forward(&both, 6), 1e-6);
    let (grad_h, of_h_here) = put(gpu, &[1.0; 6], Precision::F32);
    gpu.swiglu_backward(&array, 6, &grad_h).unwrap();
    close("far gates, back", &get(gpu, &array), &swiglu::reference::backward(&both, 6, &of_h_here), 1e-6);
}

/// Compares losses and gradients of some logits with the exact ones of the rounded logits.
#[track_caller]
fn check_losses(gpu: &Gpu, what: &str, logits: &[f32], vocab: usize, targets: &[u32], precision: Precision) {
    let scale = 0.25;
    let what = format!("{what} {precision:?} {} x {vocab}", targets.len());
    let (array, here) = put(gpu, logits, precision);
    let tokens = gpu.upload_tokens(vocab, targets).unwrap();
    let losses = unwritten(gpu, targets.len(), Precision::F32);
    gpu.cross_entropy(&array, &tokens, 0, &losses, None).unwrap();
    let got = get(gpu, &losses);
    close(&what, &got, &cross_entropy::reference::losses(&here, vocab, targets), 2e-6);
    assert_eq!(bits(&get(gpu, &array)), bits(&here), "{what}: logits are only read");

    let again = unwritten(gpu, targets.len(), Precision::F32);
    gpu.cross_entropy(&array, &tokens, 0, &again, Some(scale)).unwrap();
    assert_eq!(bits(&get(gpu, &again)), bits(&got), "{what}");
    let exact = cross_entropy::reference::gradient(&here, vocab, targets, scale);
    close(&format!("{what}, back"), &get(gpu, &array), &exact, 2e-6 + rounding(precision) * 0.25);
}

fn losses(gpu: &Gpu) {
    for precision in precisions(gpu) {
        for (rows, vocab) in
            [(1, 1), (1, 2), (4, 3), (7, 257), (3, 1021), (5, 5000), (2, 32_000), (2, 128_256), (2, 50_257)]
        {
            let targets: Vec<u32> =
                (0..rows).map(|row| [vocab - 1, 0, vocab / 2, vocab / 3][row % 4] as u32).collect();
            check_losses(gpu, "", &noise(rows * vocab, 8.0, 5), vocab, &targets, precision);
        }
    }
}

/// For two logits, `0` and `x`, the gradient is `eˣ / (1 + eˣ)`, and the loss of the first is `ln (1 + eˣ)`; for many
/// zeros it is `ln` of their number.
fn exponentials(gpu: &Gpu) {
    let rows = 100_000;
    let of_row = |row: usize| -100.0 * row as f32 / rows as f32;
    let logits: Vec<f32> = (0..rows).flat_map(|row| [0.0, of_row(row)]).collect();
    let (array, _) = put(gpu, &logits, Precision::F32);
    let targets = gpu.upload_tokens(2, &vec![0; rows]).unwrap();
    let losses = unwritten(gpu, rows, Precision::F32);
    gpu.cross_entropy(&array, &targets, 0, &losses, Some(1.0)).unwrap();
    let mut worst = [0.0f64; 2];
    for (row, (gradient, loss)) in get(gpu, &array).chunks(2).zip(get(gpu, &losses)).enumerate() {
        let x = f64::from(of_row(row));
        if x < -87.0 {
            assert_eq!(gradient[1], 0.0, "e to {x} is less than any normal number");
            continue;
        }
        let exact = x.exp() / (1.0 + x.exp());
        // A compiler may multiply by ln 2 rounded once, instead of in two parts.
        let allowed = 4e-7 - x * 2f64.powi(-24);
        worst[0] = worst[0].max((f64::from(gradient[1]) / exact - 1.0).abs() / allowed);
        worst[1] = worst[1].max((f64::from(loss) - x.exp().ln_1p()).abs());
    }
    assert!(worst[0] < 1.0 && worst[1] < 2.5e-7, "{worst:?}");
    for vocab in [1usize, 2, 3, 1000, 4097, 65_535, 100_000] {
        let (zeros, _) = put(gpu, &vec![0.0; vocab], Precision::F32);
        let loss = unwritten(gpu, 1, Precision::F32);
        gpu.cross_entropy(&zeros, &gpu.upload_tokens(vocab, &[0]).unwrap(), 0, &loss, None).unwrap();
        close("ln", &get(gpu, &loss), &[(vocab as f64).ln()], 1.5e-7);
    }
}

fn extreme_logits(gpu: &Gpu) {
    let vocab = 300;
    let check = |what, change: &dyn Fn(usize, f32) -> f32| {
        let logits: Vec<f32> = noise(4 * vocab, 1.0, 6)
            .into_iter()
            .enumerate()
            .map(|(at, value)| change(at % vocab, value))
            .collect();
        check_losses(gpu, what, &logits, vocab, &[0, 7, 298, 299], Precision::F32);
    };
    check("all the same", &|_, _| 3.5);
    check("all at once far away", &|_, value| value - 1e6);
    check("large", &|_, value| 1e4 * value);
    check("huge", &|_, value| 1e38 * value);
    check("one above all", &|at, value| if at == 7 { 1e6 } else { value });
    check("one beneath all", &|at, value| if at == 7 { -1e6 } else { value });
    check("rising", &|at, _| at as f32);
    check("falling", &|at, _| -(at as f32));
    // Impossible tokens, as masks mark them. The targets are not among them.
    check("masked", &|at, value| if [0, 7, 298, 299].contains(&at) { value } else { f32::NEG_INFINITY });
    check("nearly masked", &|at, value| if at == 299 || at == 0 { value } else { f32::MIN });

    // An impossible target: the loss is infinite, as on the CPU, and NaN stays NaN.
    for (bad, of_loss) in
        [(f32::NEG_INFINITY, f64::INFINITY), (f32::NAN, f64::NAN), (f32::INFINITY, f64::NAN)]
    {
        let mut logits = noise(vocab, 1.0, 6);
        logits[9] = bad;
        let (array, _) = put(gpu, &logits, Precision::F32);
        let tokens = gpu.upload_tokens(vocab, &[9]).unwrap();
        let losses = unwritten(gpu, 1, Precision::F32);
        gpu.cross_entropy(&array, &tokens, 0, &losses, None).unwrap();
        let got = f64::from(get(gpu, &losses)[0]);
        assert!(got == of_loss || got.is_nan() && of_loss.is_nan(), "{got} for a logit of {bad}");
        let on_cpu = cross_entropy::losses(&mut logits, vocab, &[9])[0];
        assert!(on_cpu == of_loss || on_cpu.is_nan() && of_loss.is_nan(), "{on_cpu} for a logit of {bad}");
    }
}

fn chunks_of_losses(gpu: &Gpu) {
    let (vocab, rows) = (33, 11);
    let targets: Vec<u32> = (0..rows as u32).map(|row| row * 3).collect();
    let logits = noise(rows * vocab, 2.0, 8);
    let tokens = gpu.upload_tokens(vocab, &targets).unwrap();
    let losses = unwritten(gpu, rows, Precision::F32);
    let exact = cross_entropy::reference::losses(&logits, vocab, &targets);
    let mut first = 0;
    for rows in [4, 1, 6] {
        let (array, _) = put(gpu, &logits[first * vocab..][..rows * vocab], Precision::F32);
        gpu.cross_entropy(&array, &tokens, first, &losses, Some(1.0)).unwrap();
        first += rows;
        let got = get(gpu, &losses);
        close("chunks", &got[..first], &exact[..first], 2e-6);
        assert!(got[first..].iter().all(|loss| loss.is_nan()), "beyond the chunk");
    }
}

fn gathered(gpu: &Gpu) {
    for precision in precisions(gpu) {
        for (vocab, width, count) in [(1, 1, 1), (7, 3, 20), (300, 1026, 50), (1000, 64, 3000)] {
            let (embedding, here) = put(gpu, &noise(vocab * width, 1.0, 1), precision);
            let tokens: Vec<u32> = (0..count as u32).map(|row| row * 7919 % vocab as u32).collect();
            let x = unwritten(gpu, count * width, Precision::F32);
            let tokens_here = gpu.upload_tokens(vocab, &tokens).unwrap();
            gpu.embedding(&embedding, &tokens_here, &x).unwrap();
            let rows = tokens.iter().flat_map(|token| &here[*token as usize * width..][..width]);
            assert!(get(gpu, &x).iter().eq(rows), "{precision:?} {vocab} x {width}");
        }
    }
}

/// Returns rows of tokens: all different, only one, one in half of the rows, few, and arbitrary ones.
fn batches(vocab: u32) -> Vec<(&'static str, Vec<u32>)> {
    vec![
        ("one row", vec![vocab - 1]),
        ("all different", (0..vocab).rev().collect()),
        ("one token", vec![3; 20_000]),
        ("half one token", (0..3000).map(|row| if row % 2 == 0 { 5 } else { row * 7919 % vocab }).collect()),
        ("few", (0..500).map(|row| row % 3).collect()),
    ]
}

fn added_at_tokens(gpu: &Gpu) {
    for (vocab, width) in [(613u32, 5), (613, 64), (613, 260)] {
        for (what, tokens) in batches(vocab) {
            let grad_x = noise(tokens.len() * width, 1.0, 2);
            let (before, _) = (noise(vocab as usize * width, 1.0, 3), ());
            let (of_x_here, grad_embedding) =
                (put(gpu, &grad_x, Precision::F32).0, put(gpu, &before, Precision::F32).0);
            let segments = gpu.upload_segments(vocab as usize, &tokens).unwrap();
            gpu.embedding_backward(&segments, &of_x_here, &grad_embedding).unwrap();
            let mut exact = wide(&before);
            for (row, token) in grad_x.chunks_exact(width).zip(&tokens) {
                for (sum, value) in exact[*token as usize * width..][..width].iter_mut().zip(row) {
                    *sum += f64::from(*value);
                }
            }
            close(&format!("{what} of {width}"), &get(gpu, &grad_embedding), &exact, 1e-4);
        }
    }
}

fn steps(gpu: &Gpu) {
    for copy in [None, Some(Precision::F32), Some(Precision::Bf16), Some(Precision::F16)] {
        if copy.is_some_and(|precision| !gpu.supports(precision)) {
            continue;
        }
        for len in [1, 3, 1000, 70_001] {
            let mut weights = noise(len, 1.0, 1);
            let (mut mean, mut square) = (vec![0.0; len], vec![0.0; len]);
            let [weights_here, mean_here, square_here] =
                [&weights, &mean, &square].map(|values| put(gpu, values, Precision::F32).0);
            let copy_here = copy.map(|precision| unwritten(gpu, len, precision));
            for step in 1..=3 {
                let mut gradient = noise(len, 1e-3, step as u32 + 5);
                gradient[0] = 0.0;
                let gradient_here = put(gpu, &gradient, Precision::F32).0;
                let gradient_scale = if step == 2 { 0.37 } else { 1.0 };
                let coefficients = coefficients(step, gradient_scale);
                let parameter = Parameter { weights: &mut weights, mean: &mut mean, square: &mut square };
                adamw::step_reference(&coefficients, parameter, &gradient);
                gpu.adamw(
                    &coefficients,
                    &weights_here,
                    copy_here.as_ref(),
                    &mean_here,
                    &square_here,
                    &gradient_here,
                )
                .unwrap();
            }
            // Moments are small, so differences are relative to the largest.
            let scaled =
                |values: &[f32], scale: f32| values.iter().map(|value| value * scale).collect::<Vec<_>>();
            let what = format!("{copy:?}, {len} values");
            close(&format!("{what}, weights"), &get(gpu, &weights_here), &wide(&weights), 1e-6);
            let of_mean = scaled(&get(gpu, &mean_here), 1e3);
            close(&format!("{what}, means"), &of_mean, &wide(&scaled(&mean, 1e3)), 1e-6);
            let of_square = scaled(&get(gpu, &square_here), 1e7);
            close(&format!("{what}, squares"), &of_square, &wide(&scaled(&square, 1e7)), 1e-6);
            if let (Some(copy_here), Some(precision)) = (&copy_here, copy) {
                let rounded = put(gpu, &get(gpu, &weights_here), precision).1;
                assert_eq!(
                    bits(&get(gpu, copy_here)),
                    bits(&rounded),
                    "{what}: the copy is the weights, rounded"
                );
            }
        }
    }
}

fn squares(gpu: &Gpu) {
    for precision in precisions(gpu) {
        let rows: Vec<Vec<f32>> =
            [1, 3, 4096, 5001, 600_000].into_iter().map(|len| noise(len, 2.0, len as u32)).collect();
        let put: Vec<(Array, Vec<f32>)> = rows.iter().map(|row| put(gpu, row, precision)).collect();
        let arrays: Vec<&Array> = put.iter().map(|(array, _)| array).collect();
        let exact: f64 = put.iter().map(|(_, here)| norm::norm_squared(here)).sum();
        let got = gpu.sum_of_squares(&arrays).unwrap();
        assert!((got - exact).abs() <= 1e-6 * exact, "{got}, exactly {exact}");
        assert_eq!(gpu.sum_of_squares(&arrays).unwrap().to_bits(), got.to_bits());
    }
    let bad = put(gpu, &[1.0, f32::NAN, 2.0], Precision::F32).0;
    assert!(gpu.sum_of_squares(&[&bad]).unwrap().is_nan());
    let huge = put(gpu, &[1e30; 5], Precision::F32).0;
    assert_eq!(gpu.sum_of_squares(&[&huge]).unwrap(), f64::INFINITY, "no number, and so no step");
    assert_eq!(gpu.sum_of_squares(&[]).unwrap(), 0.0);
}

fn casts_sums_and_fills(gpu: &Gpu) {
    for len in [1, 2, 255, 100_000] {
        let values = noise(len, 30.0, 3);
        let (x, _) = put(gpu, &values, Precision::F32);
        for precision in precisions(gpu) {
            let what = format!("{precision:?}, {len} values");
            let (rounded, here) = put(gpu, &values, precision);
            let cast = unwritten(gpu, len, precision);
            gpu.cast(&x, &cast).unwrap();
            assert_eq!(bits(&get(gpu, &cast)), bits(&here), "{what}: to the nearest");
            let back = unwritten(gpu, len, Precision::F32);
            gpu.cast(&rounded, &back).unwrap();
            assert_eq!(bits(&get(gpu, &back)), bits(&here), "{what}: and back");

            let sum = unwritten(gpu, len, Precision::F32);
            gpu.add(&x, &rounded, &sum).unwrap();
            let exact: Vec<f32> = values.iter().zip(&here).map(|(x, y)| x + y).collect();
            assert_eq!(bits(&get(gpu, &sum)), bits(&exact), "{what}: a sum beside");

            gpu.fill(&cast, 0.5).unwrap();
            assert!(get(gpu, &cast).iter().all(|value| *value == 0.5), "{what}: filled");
        }
    }
}

/// Tests arrays that are longer than the slices, with gaps between them, and no slices.
fn slices(gpu: &Gpu) {
    for (stride, count, len) in [(8, 1, 8), (12, 3, 8), (1024, 8, 1000), (7, 5, 3), (5, 0, 5)] {
        let values = noise(stride * count.max(1) + 3, 1e3, 7);
        let mut expected = vec![0.0f32; len];
        for slice in values.chunks(stride).take(count) {
            expected.iter_mut().zip(slice).for_each(|(sum, value)| *sum += value);
        }
        let (all, sum) =
            (gpu.upload(&values, Precision::F32).unwrap(), gpu.array(len, Precision::F32).unwrap());
        gpu.add_slices(&all, stride, count, &sum).unwrap();
        assert_eq!(bits(&gpu.download(&sum).unwrap()), bits(&expected), "{count} of {len} by {stride}");
        assert!(gpu.add_slices(&all, stride, count.max(1) + 1, &sum).is_err());
        assert!(gpu.add_slices(&all, len - 1, 1, &sum).is_err());
    }
}

fn same_bits(gpu: &Gpu) {
    let (rows, width, vocab) = (3000, 96, 700);
    let run = || -> Vec<u32> {
        let precision = *precisions(gpu).last().unwrap();
        let x = put(gpu, &noise(rows * width, 1.0, 1), Precision::F32).0;
        let gain = put(gpu, &noise(width, 1.0, 2), Precision::F32).0;
        let (y, roots) = (unwritten(gpu, rows * width, precision), unwritten(gpu, rows, Precision::F32));
        gpu.rms_norm(&x, &gain, Some(EPSILON), &y, &roots).unwrap();
        let grad_gain = put(gpu, &vec![0.0; width], Precision::F32).0;
        gpu.rms_norm_backward(&x, &gain, &roots, &y, &x, &grad_gain).unwrap();
        let tokens: Vec<u32> =
            (0..rows as u32).map(|row| if row % 2 == 0 { 5 } else { row * 7919 % vocab }).collect();
        let segments = gpu.upload_segments(vocab as usize, &tokens).unwrap();
        let grad_embedding = put(gpu, &vec![0.0; vocab as usize * width], Precision::F32).0;
        gpu.embedding_backward(&segments, &x, &grad_embedding).unwrap();
        let logits = put(gpu, &noise(rows * vocab as usize, 4.0, 3), precision).0;
        let targets = gpu.upload_tokens(vocab as usize, &tokens).unwrap();
        let losses = unwritten(gpu, rows, Precision::F32);
        gpu.cross_entropy(&logits, &targets, 0, &losses, Some(1.0)).unwrap();
        [&y, &roots, &x, &grad_gain, &grad_embedding, &logits, &losses]
            .into_iter()
            .flat_map(|array| bits(&get(gpu, array)))
            .collect()
    };
    let first = run();
    assert!(run() == first && run() == first);
}

/// Tests more cubes than one side of a grid supports.
fn many_rows(gpu: &Gpu) {
    let rows = 70_000;
    let (x, x_here) = put(gpu, &noise(rows, 1.0, 1), Precision::F32);
    let (gain, gain_here) = put(gpu, &[1.5], Precision::F32);
    let (y, roots) = (unwritten(gpu, rows, Precision::F32), unwritten(gpu, rows, Precision::F32));
    gpu.rms_norm(&x, &gain, Some(EPSILON), &y, &roots).unwrap();
    close("norms", &get(gpu, &y), &rms_norm::reference::forward(&x_here, &gain_here, EPSILON), 1e-6);

    let targets = vec![0; rows];
    let tokens = gpu.upload_tokens(1, &targets).unwrap();
    let losses = unwritten(gpu, rows, Precision::F32);
    gpu.cross_entropy(&x, &tokens, 0, &losses, None).unwrap();
    assert!(get(gpu, &losses).iter().all(|loss| *loss == 0.0));

    let tokens: Vec<u32> = (0..rows as u32).collect();
    let segments = gpu.upload_segments(rows, &tokens).unwrap();
    let grad_embedding = put(gpu, &vec![0.0; rows], Precision::F32).0;
    gpu.embedding_backward(&segments, &x, &grad_embedding).unwrap();
    assert_eq!(bits(&get(gpu, &grad_embedding)), bits(&x_here));
    let tokens = gpu.upload_tokens(rows, &tokens).unwrap();
    let row = unwritten(gpu, rows, Precision::F32);
    gpu.embedding(&x, &tokens, &row).unwrap();
    assert_eq!(bits(&get(gpu, &row)), bits(&x_here));
}

fn nothing(gpu: &Gpu) {
    let array = |len| array_of(gpu, len);
    let none = array(0);
    gpu.rms_norm(&none, &array(8), Some(EPSILON), &none, &none).unwrap();
    let grad_gain = array(8);
    gpu.rms_norm_backward(&none, &array(8), &none, &none, &none, &grad_gain).unwrap();
    assert_eq!(get(gpu, &grad_gain), [1.0; 8]);
    gpu.swiglu(&none, 8, &none).unwrap();
    gpu.swiglu_backward(&none, 8, &none).unwrap();
    let angles = gpu.upload_angles(&Angles::new(2, 4, 1e4)).unwrap();
    gpu.rope(&none, 12, [1, 1], 2, &angles, Rotation::Forward).unwrap();
    let tokens = gpu.upload_tokens(8, &[]).unwrap();
    gpu.cross_entropy(&none, &tokens, 0, &none, None).unwrap();
    gpu.embedding(&array(16), &tokens, &none).unwrap();
    let grad_embedding = array(16);
    gpu.embedding_backward(&gpu.upload_segments(8, &[]).unwrap(), &none, &grad_embedding).unwrap();
    assert_eq!(get(gpu, &grad_embedding), [1.0; 16]);
    gpu.cast(&none, &none).unwrap();
    gpu.add(&none, &none, &none).unwrap();
    gpu.fill(&none, 1.0).unwrap();
    let coefficients = coefficients(1, 1.0);
    gpu.adamw(&coefficients, &none, None, &none, &none, &none).unwrap();
    assert_eq!(gpu.sum_of_squares(&[&none]).unwrap(), 0.0);
}

/// A part of an array ends with the block of its last value. Values after the part in that block do not change.
fn neighbours(gpu: &Gpu) {
    let whole = array_of(gpu, 256);
    let part = gpu.part(&whole, 0, 5).unwrap();
    gpu.fill(&part, 2.0).unwrap();
    gpu.add(&array_of(gpu, 5), &array_of(gpu, 5), &part).unwrap();
    gpu.cast(&array_of(gpu, 5), &part).unwrap();
    assert_eq!(gpu.sum_of_squares(&[&part]).unwrap(), 5.0);
    let coefficients = coefficients(1, 1.0);
    let [mean, square, gradient] = [(); 3].map(|()| array_of(gpu, 5));
    gpu.adamw(&coefficients, &part, None, &mean, &square, &gradient).unwrap();
    gpu.swiglu(&array_of(gpu, 10), 5, &part).unwrap();
    gpu.rms_norm(&array_of(gpu, 5), &array_of(gpu, 5), Some(EPSILON), &part, &array_of(gpu, 1)).unwrap();
    assert!(get(gpu, &whole)[5..].iter().all(|value| *value == 1.0));
}

fn array_of(gpu: &Gpu, len: usize) -> Array {
    put(gpu, &vec![1.0; len], Precision::F32).0
}

fn refused(gpu: &Gpu) {
    #[track_caller]
    fn wrong<T>(result: Result<T, GpuError>) {
        match result {
            Err(GpuError::WrongLength { .. }) => {}
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("it was taken"),
        }
    }
    let array = |len| array_of(gpu, len);
    wrong(gpu.rms_norm(&array(7), &array(4), Some(EPSILON), &array(7), &array(2)));
    wrong(gpu.rms_norm(&array(8), &array(4), Some(EPSILON), &array(7), &array(2)));
    wrong(gpu.rms_norm_backward(&array(8), &array(4), &array(2), &array(8), &array(8), &array(5)));
    wrong(gpu.swiglu(&array(8), 3, &array(4)));
    wrong(gpu.swiglu(&array(8), 0, &array(4)));
    wrong(gpu.swiglu_backward(&array(9), 4, &array(4)));
    let angles = gpu.upload_angles(&Angles::new(2, 4, 1e4)).unwrap();
    wrong(gpu.rope(&array(24), 12, [2, 2], 2, &angles, Rotation::Forward));
    wrong(gpu.rope(&array(24), 12, [1, 1], 3, &angles, Rotation::Forward));
    wrong(gpu.rope(&array(24), 12, [1, 1], 0, &angles, Rotation::Forward));
    wrong(gpu.rope(&array(25), 12, [1, 1], 2, &angles, Rotation::Forward));
    let tokens = gpu.upload_tokens(8, &[1, 2, 3]).unwrap();
    wrong(gpu.cross_entropy(&array(17), &tokens, 0, &array(3), None));
    wrong(gpu.cross_entropy(&array(16), &tokens, 2, &array(3), None));
    wrong(gpu.cross_entropy(&array(16), &tokens, usize::MAX, &array(3), None));
    wrong(gpu.cross_entropy(&array(16), &tokens, 0, &array(2), None));
    wrong(gpu.embedding(&array(17), &tokens, &array(6)));
    wrong(gpu.embedding(&array(16), &tokens, &array(5)));
    let segments = gpu.upload_segments(8, &[1, 2, 3]).unwrap();
    wrong(gpu.embedding_backward(&segments, &array(5), &array(16)));
    wrong(gpu.cast(&array(3), &array(4)));
    wrong(gpu.add(&array(3), &array(3), &array(4)));
    wrong(gpu.add(&array(3), &array(4), &array(3)));
    let coefficients = coefficients(1, 1.0);
    wrong(gpu.adamw(&coefficients, &array(3), None, &array(3), &array(2), &array(3)));

    let outside = |result: Option<GpuError>| {
        assert_eq!(result, Some(GpuError::Token { position: 2, token: 8, vocab: 8 }));
    };
    outside(gpu.upload_tokens(8, &[0, 7, 8, 9]).err());
    outside(gpu.upload_segments(8, &[0, 7, 8, 9]).err());

    if let Some(precision) = precisions(gpu).into_iter().find(|precision| *precision != Precision::F32) {
        let half = put(gpu, &[1.0; 8], precision).0;
        let other = |result: Result<(), GpuError>| {
            assert!(matches!(result, Err(GpuError::Precision { .. })), "{result:?}");
        };
        other(gpu.rms_norm(&half, &array(4), Some(EPSILON), &array(8), &array(2)));
        other(gpu.swiglu(&half, 4, &array(4)));
        other(gpu.add(&half, &array(8), &array(8)));
        other(gpu.adamw(&coefficients, &half, None, &array(8), &array(8), &array(8)));
    }
}
