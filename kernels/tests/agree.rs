//! Every kernel against its reference, on random shapes.

mod common;

use common::{bits, noise};
use kernels::{cross_entropy, norm, sparse};
use proptest::prelude::*;
use protocol::contribution::{Schema, Sparse, SparseTensor, TensorSpec};

/// Values with every kind of exponent, signed zeros and subnormals among them, but no NaN.
fn any_value() -> impl Strategy<Value = f32> {
    use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO
}

/// A vector, and a sparse step on it: positions ascend, one value for each.
fn a_step(len: usize) -> impl Strategy<Value = (Vec<f32>, Vec<u32>, Vec<f32>, f32)> {
    let entries = prop::collection::btree_map(0..len as u32, any_value(), 0..len);
    (prop::collection::vec(any_value(), len), entries, any_value()).prop_map(|(theta, entries, rate)| {
        let (positions, values) = entries.into_iter().unzip();
        (theta, positions, values, rate)
    })
}

fn agrees_with_the_protocol(theta: Vec<f32>, positions: Vec<u32>, values: Vec<f32>, rate: f32) {
    let schema = Schema::new(vec![TensorSpec { name: "t".into(), shape: vec![theta.len() as u32] }]).unwrap();
    let mut agreed = theta.clone();
    let update = SparseTensor { positions: positions.clone(), values: values.clone(), square_norm: 0.0 };
    protocol::merge::apply(&schema, &mut agreed, &Sparse { tensors: vec![update] }, rate);

    let mut slow = theta.clone();
    let slow_previous = sparse::apply_reference(&mut slow, &positions, &values, rate);
    let mut fast = theta.clone();
    let previous = sparse::apply(&mut fast, &positions, &values, rate);

    assert!(bits(&agreed) == bits(&slow), "the reference differs from the protocol");
    assert!(bits(&agreed) == bits(&fast), "the fast version differs from the protocol");
    assert!(bits(&slow_previous) == bits(&previous));

    sparse::restore(&mut fast, &positions, &previous);
    assert!(bits(&theta) == bits(&fast), "taking the step back left a difference");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_small_sparse_step_is_the_protocols_and_leaves_no_trace((theta, positions, values, rate) in a_step(300)) {
        agrees_with_the_protocol(theta, positions, values, rate);
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

        let exact = cross_entropy::losses_reference(&logits, vocab, &targets);
        let exact_gradient = cross_entropy::gradient_reference(&logits, vocab, &targets, scale);
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
fn a_large_sparse_step_is_cut_into_blocks_and_still_the_protocols() {
    let theta = noise(400_000, 1);
    let positions: Vec<u32> = (0..400_000).filter(|position| position % 3 != 1).collect();
    let values = noise(positions.len(), 2);
    agrees_with_the_protocol(theta, positions, values, 0.7);
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
fn a_row_that_is_not_a_number_has_a_loss_that_is_not_a_number() {
    let mut logits = vec![0.0, f32::NAN, 1.0];
    assert!(cross_entropy::losses(&mut logits, 3, &[0])[0].is_nan());
}

#[test]
#[should_panic(expected = "a target lies outside the vocabulary")]
fn a_target_outside_the_vocabulary_is_refused() {
    cross_entropy::losses(&mut [0.0; 3], 3, &[3]);
}

#[test]
#[should_panic(expected = "the positions of a sparse step ascend")]
fn positions_out_of_order_are_refused_before_anything_is_cut() {
    let positions: Vec<u32> = (0..40_000).rev().collect();
    sparse::apply(&mut vec![0.0; 40_000], &positions, &vec![0.0; 40_000], 1.0);
}
