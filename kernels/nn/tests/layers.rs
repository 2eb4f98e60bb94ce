//! Tests of the CPU's kernels against their references on random shapes, and for different numbers of threads.

#[path = "../../tests/common/mod.rs"]
mod common;

use common::{assert_close, bits, noise};
use kernels::lanes::{self, Width};
use mettle_nn::{
    StepParams,
    layers::{
        attention::{self, CachedHead},
        cross_entropy,
        matmul::{Mat, MatMut, Threads, Write, few_rows, matmul, reference::matmul as matmul_reference},
        rms_norm,
        rope::{self, Angles, Rotation},
        swiglu,
    },
    optim::{
        adamw::{self, Coefficients, Parameter},
        norm,
    },
};
use model::Recipe;
use proptest::prelude::*;

/// Checks that `work` returns the same bits on any number of threads.
#[track_caller]
fn assert_same_on_any_threads(work: impl Fn() -> Vec<f32> + Sync) {
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        bits(&pool.install(&work))
    };
    let alone = on(1);
    for threads in [2, 3, 5] {
        assert!(on(threads) == alone, "{threads} threads give other bits than one");
    }
}

fn attend(shape: &attention::Shape, rows: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let count = rows.len() / shape.row_width();
    let mut mixed = vec![f32::NAN; count * shape.heads * shape.head_width];
    let mut log_sums = vec![f32::NAN; count * shape.heads];
    attention::forward(shape, rows, &mut mixed, &mut log_sums);
    (mixed, log_sums)
}

fn attend_backward(shape: &attention::Shape, rows: &[f32], grad_mixed: &[f32]) -> Vec<f32> {
    let (mixed, log_sums) = attend(shape, rows);
    let mut grad_rows = vec![f32::NAN; rows.len()];
    attention::backward(shape, rows, &mixed, &log_sums, grad_mixed, &mut grad_rows);
    grad_rows
}

/// Returns the exact `Σ mixed·grad_mixed`.
fn along(shape: &attention::Shape, rows: &[f32], grad_mixed: &[f32]) -> f64 {
    let mixed = attention::reference::forward(shape, rows);
    mixed.iter().zip(grad_mixed).map(|(mixed, &of)| mixed * f64::from(of)).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn products_of_blocks_and_transposes_are_close_to_the_exact_ones(
        rows in 1usize..70, inner in 1usize..70, columns in 1usize..70, left in 0usize..9, rotated: [bool; 2], add: bool,
    ) {
        // Both are parts of larger matrices, transposed or not.
        let (a, b) = (noise(200 * 200, 1), noise(200 * 200, 2));
        let part = |values, [rows, columns]: [usize; 2], rotated: bool| {
            let whole = Mat::new(values, [200, 200]);
            let whole = if rotated { whole.transposed() } else { whole };
            whole.block(left..left + rows, 3..3 + columns)
        };
        let (a, b) = (part(&a, [rows, inner], rotated[0]), part(&b, [inner, columns], rotated[1]));
        let before = noise(100 * 100, 3);
        let mut into = before.clone();
        let write = if add { Write::Add } else { Write::Set };
        let mut target = MatMut::new(&mut into, [100, 100]).block(7..7 + rows, left..left + columns);
        matmul(write, &mut target, a, b, Threads::Pool);

        let exact = matmul_reference(a, b);
        for (index, (&into, &before)) in into.iter().zip(&before).enumerate() {
            let (row, column) = ((index / 100).wrapping_sub(7), (index % 100).wrapping_sub(left));
            if row < rows && column < columns {
                let exact = exact[row * columns + column] + if add { f64::from(before) } else { 0.0 };
                prop_assert!((f64::from(into) - exact).abs() < 1e-4, "{into}, exactly {exact}");
            } else {
                prop_assert_eq!(into.to_bits(), before.to_bits(), "written beside the block");
            }
        }
    }

    #[test]
    fn norms_and_their_gradients_are_close_to_the_exact_ones(
        rows in 1usize..150, width in 1usize..100, spread in 0.01f32..30.0, seed: u32,
    ) {
        let x: Vec<f32> = noise(rows * width, seed).into_iter().map(|x| x * spread).collect();
        let (gain, grad_y) = (noise(width, seed ^ 1), noise(rows * width, seed ^ 2));
        let (mut y, mut inverse_roots) = (vec![0.0; x.len()], vec![0.0; rows]);
        rms_norm::forward(&x, &gain, 1e-5, &mut y, &mut inverse_roots);
        assert_close(&y, &rms_norm::reference::forward(&x, &gain, 1e-5), 1e-5);
        let mut again = vec![0.0; x.len()];
        rms_norm::forward_from_roots(&x, &gain, &inverse_roots, &mut again);
        prop_assert_eq!(bits(&again), bits(&y));

        // Both gradients are added to the existing values.
        let (mut grad_x, mut grad_gain) = (vec![1.0; x.len()], vec![2.0; width]);
        rms_norm::backward(&x, &gain, &inverse_roots, &grad_y, &mut grad_x, &mut grad_gain);
        let (exact_of_x, exact_of_gain) = rms_norm::reference::backward(&x, &gain, 1e-5, &grad_y);
        let largest = exact_of_x.iter().fold(1.0, |max: f64, x| max.max(x.abs()));
        let grad_x: Vec<f32> = grad_x.iter().map(|x| ((f64::from(*x) - 1.0) / largest) as f32).collect();
        let exact_of_x: Vec<f64> = exact_of_x.iter().map(|x| x / largest).collect();
        assert_close(&grad_x, &exact_of_x, 1e-5);
        assert_close(&grad_gain, &exact_of_gain.iter().map(|x| x + 2.0).collect::<Vec<_>>(), 1e-4);
    }

    #[test]
    fn swiglu_and_its_gradients_are_close_to_the_exact_ones(
        rows in 1usize..40, width in 1usize..100, spread in 0.1f32..60.0, seed: u32,
    ) {
        let mut values: Vec<f32> = noise(rows * 2 * width, seed).into_iter().map(|x| x * spread).collect();
        let mut h = vec![0.0; rows * width];
        swiglu::forward(&values, width, &mut h);
        let exact = swiglu::reference::forward(&values, width);
        assert_close(&h, &exact, 1e-6);

        let grad_h = noise(rows * width, seed ^ 1);
        let exact_gradient = swiglu::reference::backward(&values, width, &grad_h);
        let mut of_h_then_h = grad_h;
        swiglu::backward(&mut values, width, &mut of_h_then_h);
        prop_assert_eq!(bits(&of_h_then_h), bits(&h), "the way back gives h again");
        assert_close(&values, &exact_gradient, 1e-5);
    }

    #[test]
    fn rotations_are_undone_and_close_to_the_exact_ones(
        sequences in 1usize..4, seq_len in 1usize..50, queries in 1usize..4, keys in 1usize..3, half in 1usize..20, seed: u32,
    ) {
        let (width, base) = (2 * half, 10_000.0);
        let row_width = (queries + 2 * keys) * width;
        let x = noise(sequences * seq_len * row_width, seed);
        let angles = Angles::new(seq_len + 3, width, base);
        let mut rotated = x.clone();
        rope::rotate(&mut rotated, row_width, [queries, keys], seq_len, &angles, Rotation::Forward);
        let rows = || x.chunks_exact(row_width).zip(rotated.chunks_exact(row_width)).enumerate();
        for (row, (x, rotated)) in rows() {
            let (x, values) = x.split_at((queries + keys) * width);
            let (rotated, same) = rotated.split_at((queries + keys) * width);
            assert_close(rotated, &rope::reference::rotate(x, queries, width, row % seq_len, base), 1e-6);
            prop_assert_eq!(bits(values), bits(same), "values are not rotated");
        }
        for (row, (x, rotated)) in rows() {
            let mut x = x.to_vec();
            rope::rotate_at(&mut x, [queries, keys], row % seq_len, &angles);
            prop_assert_eq!(bits(&x), bits(rotated));
        }
        // The inverse is the transpose, so queries are then scaled twice by 1/√width.
        rope::rotate(&mut rotated, row_width, [queries, keys], seq_len, &angles, Rotation::Back);
        for (index, (&x, &back)) in x.iter().zip(&rotated).enumerate() {
            let scale = if index % row_width < queries * width { 1.0 / width as f32 } else { 1.0 };
            prop_assert!((x * scale - back).abs() < 1e-5, "{x} came back as {back}");
        }
    }

    #[test]
    fn attention_and_its_gradient_are_close_to_the_exact_ones(
        sequences in 1usize..3, seq_len in 1usize..90, kv_heads in 1usize..3, shared in 1usize..4, half in 1usize..6, seed: u32,
    ) {
        let shape = attention::Shape { seq_len, heads: kv_heads * shared, kv_heads, head_width: 2 * half };
        let rows: Vec<f32> = noise(sequences * seq_len * shape.row_width(), seed).into_iter().map(|x| 2.0 * x).collect();
        let (mixed, _) = attend(&shape, &rows);
        assert_close(&mixed, &attention::reference::forward(&shape, &rows), 1e-5);

        let grad_mixed = noise(mixed.len(), seed ^ 1);
        let gradient = attend_backward(&shape, &rows, &grad_mixed);
        // A key's gradient is a sum over all rows that attend to it. The worst error in a thousand samples is a
        // quarter of this bound.
        assert_close(&gradient, &attention::reference::backward(&shape, &rows, &grad_mixed), 2e-5);
    }

    #[test]
    fn attention_to_a_cache_is_close_to_the_exact_one_and_the_same_in_parts(
        seq_len in 1usize..60, part in 1usize..60, kv_heads in 1usize..3, shared in 1usize..4, half in 1usize..6, seed: u32,
    ) {
        let shape = attention::Shape { seq_len, heads: kv_heads * shared, kv_heads, head_width: 2 * half };
        let rows: Vec<f32> = noise(seq_len * shape.row_width(), seed).into_iter().map(|x| 2.0 * x).collect();
        let read = |part: usize| {
            let mut heads: Vec<CachedHead> = (0..kv_heads).map(|_| CachedHead::with_room(3)).collect();
            let mut mixed = Vec::new();
            for rows in rows.chunks(part * shape.row_width()) {
                attention::append(&shape, rows, &mut heads);
                let count = rows.len() / shape.row_width();
                let mut out = vec![f32::NAN; count * shape.heads * shape.head_width];
                attention::forward_cached(&shape, rows, &[&heads], &mut out);
                mixed.extend(out);
            }
            mixed
        };
        let whole = read(seq_len);
        assert_close(&whole, &attention::reference::forward(&shape, &rows), 1e-5);
        prop_assert_eq!(bits(&read(part)), bits(&whole));
    }

    #[test]
    fn few_rows_are_close_to_the_exact_product_and_each_is_as_if_alone(
        rows in 1usize..9, inner in 1usize..70, outer in 1usize..30, add: bool, seed: u32,
    ) {
        let (x, weight, before) = (noise(rows * inner, seed), noise(outer * inner, seed ^ 1), noise(rows * outer, 3));
        let write = if add { Write::Add } else { Write::Set };
        let product = |x: &[f32], before: &[f32]| {
            let mut into = before.to_vec();
            few_rows(write, &mut into, x, &weight, inner);
            into
        };
        let together = product(&x, &before);
        let exact = matmul_reference(Mat::new(&x, [rows, inner]), Mat::new(&weight, [outer, inner]).transposed());
        let exact: Vec<f64> =
            exact.iter().zip(&before).map(|(exact, before)| exact + if add { f64::from(*before) } else { 0.0 }).collect();
        assert_close(&together, &exact, 1e-5);
        let alone = x.chunks_exact(inner).zip(before.chunks_exact(outer)).flat_map(|(x, before)| product(x, before));
        prop_assert_eq!(bits(&alone.collect::<Vec<_>>()), bits(&together));
    }

    #[test]
    fn a_step_of_adamw_has_the_bits_of_its_reference_and_is_the_textbooks(
        len in 0usize..40_000, step in 1u64..3000, gradient_scale in 0.1f64..1.0, seed: u32,
    ) {
        let ([b1, b2], epsilon, rate, decay) = ([0.9, 0.95], 1e-8, 1e-2, 0.1);
        let recipe = Recipe { betas: [b1, b2], epsilon, ..Recipe::default() };
        let params = StepParams { step, learning_rate: rate, gradient_scale };
        let coefficients = Coefficients::new(&recipe, &params, decay);
        let square: Vec<f32> = noise(len, seed ^ 3).into_iter().map(|square| square * square).collect();
        let (gradient, start) = (noise(len, seed), [noise(len, seed ^ 1), noise(len, seed ^ 2), square]);
        let [mut weights, mut mean, mut square] = start.clone();
        let parameter = Parameter { weights: &mut weights, mean: &mut mean, square: &mut square };
        adamw::step_reference(&coefficients, parameter, &gradient);
        let reference = [weights, mean, square];
        let [mut weights, mut mean, mut square] = start.clone();
        let parameter = Parameter { weights: &mut weights, mean: &mut mean, square: &mut square };
        adamw::step(&coefficients, parameter, &gradient);
        prop_assert_eq!([weights, mean, square].map(|values| bits(&values)), reference.clone().map(|values| bits(&values)));

        let exact: Vec<f64> = (0..len).map(|i| {
            let [w, m, v] = [0, 1, 2].map(|of: usize| f64::from(start[of][i]));
            let g = f64::from(gradient[i]) * gradient_scale;
            let mean = (b1 * m + (1.0 - b1) * g) / (1.0 - b1.powf(step as f64));
            let square = (b2 * v + (1.0 - b2) * g * g) / (1.0 - b2.powf(step as f64));
            w - rate * (mean / (square.sqrt() + epsilon) + decay * w)
        }).collect();
        assert_close(&reference[0], &exact, 1e-5);
    }

    #[test]
    fn the_sum_of_squares_is_the_references_to_the_bit(values in prop::collection::vec(-1e3f32..1e3, 0..20_000)) {
        let reference = norm::norm_squared_reference(&values);
        prop_assert_eq!(norm::norm_squared(&values).to_bits(), reference.to_bits());
    }

    #[test]
    fn losses_and_gradients_are_close_to_the_exact_ones(
        rows in 1usize..40, vocab in 1usize..300, spread in 0.1f32..30.0, seed in any::<u32>(),
    ) {
        let logits: Vec<f32> = noise(rows * vocab, seed).into_iter().map(|x| x * spread).collect();
        let targets: Vec<u32> = (0..rows as u32).map(|row| row.wrapping_mul(seed | 1) % vocab as u32).collect();
        let scale = 0.25;

        let exact = cross_entropy::reference::losses(&logits, vocab, &targets);
        let exact_gradient = cross_entropy::reference::gradient(&logits, vocab, &targets, scale);
        let close = cross_entropy::losses(&mut logits.clone(), vocab, &targets);
        let mut gradient = logits.clone();
        let with_gradient = cross_entropy::losses_and_gradient(&mut gradient, vocab, &targets, scale);

        prop_assert_eq!(&close, &with_gradient);
        for (close, exact) in close.iter().zip(&exact) {
            prop_assert!((close - exact).abs() <= 1e-5 * exact.abs().max(1.0), "{close} against {exact}");
        }
        for (&close, exact) in gradient.iter().zip(&exact_gradient) {
            prop_assert!((f64::from(close) - exact).abs() <= 1e-5 * f64::from(scale), "{close} against {exact}");
        }
    }
}

#[test]
fn every_entry_of_attentions_gradient_is_the_slope_of_its_value() {
    let shape = attention::Shape { seq_len: 11, heads: 4, kv_heads: 2, head_width: 2 };
    let rows = noise(2 * 11 * shape.row_width(), 5);
    let grad_mixed = noise(2 * 11 * 8, 6);
    let gradient = attend_backward(&shape, &rows, &grad_mixed);
    for (index, &gradient) in gradient.iter().enumerate() {
        let moved = |by: f32| {
            let mut rows = rows.clone();
            rows[index] += by;
            (along(&shape, &rows, &grad_mixed), f64::from(rows[index]))
        };
        let ((above, to), (below, from)) = (moved(1e-3), moved(-1e-3));
        let slope = (above - below) / (to - from);
        assert!((slope - f64::from(gradient)).abs() < 1e-5, "{gradient} at {index}, the slope is {slope}");
    }
}

#[test]
fn long_sequences_are_cut_into_blocks_of_queries() {
    let shape = attention::Shape { seq_len: 1100, heads: 2, kv_heads: 1, head_width: 8 };
    let rows = noise(1100 * shape.row_width(), 9);
    let (mixed, _) = attend(&shape, &rows);
    assert_close(&mixed, &attention::reference::forward(&shape, &rows), 1e-5);
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let shape = attention::Shape { seq_len: 100, heads: 4, kv_heads: 2, head_width: 16 };
    let (rows, grad_mixed) = (noise(3 * 100 * shape.row_width(), 1), noise(3 * 100 * 64, 2));
    assert_same_on_any_threads(|| attend(&shape, &rows).0);
    assert_same_on_any_threads(|| attend_backward(&shape, &rows, &grad_mixed));

    for [m, n, k] in [[700, 300, 500], [2048, 64, 300], [64, 1000, 2000]] {
        let (a, b) = (noise(m * k, 3), noise(k * n, 4));
        for (turned_a, turned_b) in [(false, false), (false, true), (true, false)] {
            assert_same_on_any_threads(|| {
                let of = |values, [rows, columns]: [usize; 2], rotated: bool| match rotated {
                    true => Mat::new(values, [columns, rows]).transposed(),
                    false => Mat::new(values, [rows, columns]),
                };
                let mut into = vec![0.5; m * n];
                let mut target = MatMut::new(&mut into, [m, n]);
                matmul(
                    Write::Add,
                    &mut target,
                    of(&a, [m, k], turned_a),
                    of(&b, [k, n], turned_b),
                    Threads::Pool,
                );
                into
            });
        }
    }

    let (gain, x, grad_y) = (noise(96, 5), noise(1000 * 96, 6), noise(1000 * 96, 7));
    assert_same_on_any_threads(|| {
        let (mut y, mut inverse_roots) = (vec![0.0; x.len()], vec![0.0; 1000]);
        rms_norm::forward(&x, &gain, 1e-5, &mut y, &mut inverse_roots);
        let mut grad_gain = vec![0.0; 96];
        rms_norm::backward(&x, &gain, &inverse_roots, &grad_y, &mut y, &mut grad_gain);
        y.extend(grad_gain);
        y
    });
}

#[test]
fn the_width_of_vectors_changes_no_bit() {
    let shape = attention::Shape { seq_len: 70, heads: 4, kv_heads: 2, head_width: 10 };
    let rows = noise(140 * shape.row_width(), 1);
    let grad_mixed = noise(140 * 40, 2);
    let (x, gain, grad_y) = (noise(33 * 50, 3), noise(50, 4), noise(33 * 50, 5));
    let angles = Angles::new(70, 10, 10_000.0);
    let all = || {
        let (mixed, log_sums) = attend(&shape, &rows);
        let grad_rows = attend_backward(&shape, &rows, &grad_mixed);
        let mut rotated = rows.clone();
        rope::rotate(&mut rotated, shape.row_width(), [4, 2], 70, &angles, Rotation::Forward);

        let (mut y, mut roots) = (vec![0.0; x.len()], vec![0.0; 33]);
        rms_norm::forward(&x, &gain, 1e-5, &mut y, &mut roots);
        let (mut grad_x, mut grad_gain) = (x.clone(), gain.clone());
        rms_norm::backward(&x, &gain, &roots, &grad_y, &mut grad_x, &mut grad_gain);

        let mut h = vec![0.0; 33 * 25];
        swiglu::forward(&x, 25, &mut h);
        let (mut gates_and_ups, mut grad_h) = (x.clone(), grad_y[..33 * 25].to_vec());
        swiglu::backward(&mut gates_and_ups, 25, &mut grad_h);

        let mut logits = x.clone();
        let losses = cross_entropy::losses_and_gradient(&mut logits, 50, &[7; 33], 0.1);

        let params = StepParams { step: 3, learning_rate: 1e-2, gradient_scale: 0.7 };
        let coefficients = Coefficients::new(&Recipe::default(), &params, 0.1);
        let (mut weights, mut mean, mut square) = (x.clone(), y.clone(), vec![0.5; x.len()]);
        let parameter = Parameter { weights: &mut weights, mean: &mut mean, square: &mut square };
        adamw::step(&coefficients, parameter, &grad_y);

        let all = [
            mixed,
            log_sums,
            grad_rows,
            rotated,
            y,
            roots,
            grad_x,
            grad_gain,
            h,
            gates_and_ups,
            grad_h,
            logits,
        ];
        let losses: Vec<u64> = losses.iter().map(|loss| loss.to_bits()).collect();
        (bits(&all.concat()), losses, bits(&[weights, mean, square].concat()))
    };
    lanes::limit(Width::Portable);
    let narrow = all();
    for width in Width::available() {
        lanes::limit(width);
        assert!(all() == narrow, "{width:?} gives other bits");
    }
}

#[test]
fn the_sigmoid_is_within_four_units_in_the_last_place() {
    let mut worst = 0.0f64;
    for step in 0..2_000_000i32 {
        let x = (step - 1_000_000) as f32 / 1_000_000.0 * 85.0;
        let exact = 1.0 / (1.0 + (-f64::from(x)).exp());
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        worst = worst.max((f64::from(swiglu::sigmoid(x)) - exact).abs() / ulp);
    }
    assert!(worst <= 4.0, "{worst} units in the last place");
    assert_eq!(swiglu::sigmoid(0.0), 0.5);
    assert_eq!(swiglu::sigmoid(f32::INFINITY), 1.0);
    assert_eq!(swiglu::sigmoid(f32::NEG_INFINITY), 0.0);
    assert!(swiglu::sigmoid(f32::NAN).is_nan());
}

#[test]
fn nan_stays_nan() {
    let shape = attention::Shape { seq_len: 3, heads: 1, kv_heads: 1, head_width: 2 };
    let mut rows = noise(3 * 6, 1);
    rows[6 + 2] = f32::NAN; // A key of the second row, to which the first query does not attend.
    let (mixed, _) = attend(&shape, &rows);
    assert!(mixed[..2].iter().all(|value| value.is_finite()), "{mixed:?}");
    assert!(mixed[2..].iter().all(|value| value.is_nan()), "{mixed:?}");
}

#[test]
#[should_panic(expected = "inner dimensions")]
fn matrices_that_do_not_fit_are_refused() {
    let (a, b, mut c) = (noise(6, 1), noise(8, 2), vec![0.0; 8]);
    matmul(
        Write::Set,
        &mut MatMut::new(&mut c, [2, 4]),
        Mat::new(&a, [2, 3]),
        Mat::new(&b, [2, 4]),
        Threads::One,
    );
}

#[test]
#[should_panic(expected = "rows or columns")]
fn a_block_outside_its_matrix_is_refused() {
    let _ = Mat::new(&noise(6, 1), [2, 3]).block(0..2, 2..4);
}

#[test]
#[should_panic(expected = "whole sequences")]
fn attention_over_part_of_a_sequence_is_refused() {
    let shape = attention::Shape { seq_len: 3, heads: 1, kv_heads: 1, head_width: 2 };
    attend(&shape, &noise(4 * 6, 1));
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let mut worst = 0.0f64;
    for step in 0..2_000_000u32 {
        let x = -87.0 * step as f32 / 2_000_000.0;
        let exact = f64::from(x).exp();
        let ulp = f64::from(f32::from_bits((exact as f32).to_bits() + 1)) - f64::from(exact as f32);
        worst = worst.max((f64::from(cross_entropy::exp(x)) - exact).abs() / ulp);
    }
    assert!(worst <= 2.0, "{worst} units in the last place");
    assert_eq!(cross_entropy::exp(0.0), 1.0);
    assert_eq!(cross_entropy::exp(-88.0), 0.0);
    assert_eq!(cross_entropy::exp(f32::NEG_INFINITY), 0.0);
    assert!(cross_entropy::exp(f32::NAN).is_nan());
}

#[test]
fn a_row_with_nan_has_a_loss_of_nan() {
    let mut logits = vec![0.0, f32::NAN, 1.0];
    assert!(cross_entropy::losses(&mut logits, 3, &[0])[0].is_nan());
}

#[test]
#[should_panic(expected = "a target is outside the vocabulary")]
fn a_target_outside_the_vocabulary_is_refused() {
    cross_entropy::losses(&mut [0.0; 3], 3, &[3]);
}

#[test]
fn few_rows_of_large_weights_are_the_same_on_any_threads() {
    let (x, weight) = (noise(3 * 300, 1), noise(1001 * 300, 2));
    assert_same_on_any_threads(|| {
        let mut into = vec![f32::NAN; 3 * 1001];
        few_rows(Write::Set, &mut into, &x, &weight, 300);
        into
    });
}
