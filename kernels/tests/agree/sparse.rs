//! Tests of sparse steps against the reference, on random shapes.

use crate::common::{bits, noise};
use kernels::sparse;
use proptest::prelude::*;
use protocol::contribution::{Schema, Sparse, SparseTensor, TensorSpec};

/// Generates values with every kind of exponent, including signed zeros and subnormals, without NaN.
fn any_value() -> impl Strategy<Value = f32> {
    use proptest::num::f32::{NEGATIVE, NORMAL, POSITIVE, SUBNORMAL, ZERO};
    POSITIVE | NEGATIVE | NORMAL | SUBNORMAL | ZERO
}

/// Generates a vector and a sparse step on it, with ascending positions and one value for each.
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

    sparse::restore(&mut fast, &positions, previous);
    assert!(bits(&theta) == bits(&fast), "taking the step back left a difference");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_small_sparse_step_is_the_protocols_and_leaves_no_trace((theta, positions, values, rate) in a_step(300)) {
        agrees_with_the_protocol(theta, positions, values, rate);
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
#[should_panic(expected = "the positions of a sparse step ascend")]
fn positions_out_of_order_are_refused_before_anything_is_cut() {
    let positions: Vec<u32> = (0..40_000).rev().collect();
    sparse::apply(&mut vec![0.0; 40_000], &positions, &vec![0.0; 40_000], 1.0);
}
