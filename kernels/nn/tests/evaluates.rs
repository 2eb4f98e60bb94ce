//! Losses of sequences, and contributions tried on a model and taken back.

use mettle_nn::{DeviceChoice, Evaluator, ModelError};
use model::{ModelConfig, init_flat};
use proptest::prelude::*;
use protocol::contribution::{Sparse, SparseTensor};

const ON: DeviceChoice = DeviceChoice::Cpu;

fn tiny() -> ModelConfig {
    ModelConfig {
        vocab: 50,
        d_model: 16,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        d_ff: 24,
        seq_len: 8,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    }
}

fn sequences(config: &ModelConfig, count: usize) -> Vec<Vec<u32>> {
    let token = |i: usize, j: usize| ((i * 31 + j * 17 + i * j) % config.vocab) as u32;
    (0..count).map(|i| (0..=config.seq_len).map(|j| token(i, j)).collect()).collect()
}

fn evaluator(config: &ModelConfig) -> Evaluator {
    Evaluator::new(config, ON, &init_flat(config, 3).unwrap()).unwrap()
}

/// Touches every `stride`-th value of each tensor, beginning with the first.
fn update(config: &ModelConfig, stride: u32, size: f32) -> Sparse {
    let tensor = |len: u32| {
        let positions: Vec<u32> = (0..len).step_by(stride as usize).collect();
        let values = positions.iter().map(|&p| if p % 3 == 0 { size } else { -0.3 * size }).collect();
        SparseTensor { positions, values, square_norm: 0.0 }
    };
    let schema = config.schema().unwrap();
    Sparse { tensors: schema.tensors().iter().map(|spec| tensor(spec.shape.iter().product())).collect() }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn a_sequence_has_the_same_loss_alone_and_among_others() {
    let config = tiny();
    let evaluator = evaluator(&config);
    let sequences = sequences(&config, 300);
    let together = evaluator.losses(&sequences).unwrap();
    assert_eq!(together, evaluator.losses(&sequences).unwrap(), "and the same twice");
    for (index, together) in together.iter().enumerate().step_by(37) {
        let alone = evaluator.losses(&sequences[index..=index]).unwrap()[0];
        assert!((together - alone).abs() < 1e-5, "{together} {alone}");
    }
    assert!(evaluator.losses::<Vec<u32>>(&[]).unwrap().is_empty());
}

#[test]
fn a_model_of_zeros_finds_every_token_equally_likely() {
    let config = tiny();
    let evaluator = Evaluator::new(&config, ON, &vec![0.0; config.parameters()]).unwrap();
    for loss in evaluator.losses(&sequences(&config, 3)).unwrap() {
        assert!((loss - 50f64.ln()).abs() < 1e-6, "{loss}");
    }
}

#[test]
fn applying_gives_the_protocols_bits_and_undoing_the_first_ones() {
    let config = tiny();
    let schema = config.schema().unwrap();
    let mut evaluator = evaluator(&config);
    let start = evaluator.weights_flat();
    let sequences = sequences(&config, 5);
    let losses = evaluator.losses(&sequences).unwrap();

    let (first, second) = (update(&config, 3, 0.1), update(&config, 5, -0.07));
    let mut agreed = start.clone();
    protocol::merge::apply(&schema, &mut agreed, &first, 0.2);
    let undo_first = evaluator.apply_sparse(&first, 0.2).unwrap();
    assert_eq!(bits(&evaluator.weights_flat()), bits(&agreed));

    protocol::merge::apply(&schema, &mut agreed, &second, 1.0);
    let undo_second = evaluator.apply_sparse(&second, 1.0).unwrap();
    assert_eq!(bits(&evaluator.weights_flat()), bits(&agreed));
    assert_ne!(evaluator.losses(&sequences).unwrap(), losses);

    evaluator.undo(undo_second);
    evaluator.undo(undo_first);
    assert_eq!(bits(&evaluator.weights_flat()), bits(&start));
    assert_eq!(evaluator.losses(&sequences).unwrap(), losses);
}

#[test]
fn losses_with_an_update_leave_no_trace() {
    let config = tiny();
    let mut evaluator = evaluator(&config);
    let start = evaluator.weights_flat();
    let sequences = sequences(&config, 5);
    let update = update(&config, 3, 0.1);

    let with = evaluator.losses_with(&update, 0.2, &sequences).unwrap();
    assert_eq!(bits(&evaluator.weights_flat()), bits(&start));
    assert_eq!(with, evaluator.losses_with(&update, 0.2, &sequences).unwrap());

    let mut stepped = start.clone();
    protocol::merge::apply(&config.schema().unwrap(), &mut stepped, &update, 0.2);
    assert_eq!(with, Evaluator::new(&config, ON, &stepped).unwrap().losses(&sequences).unwrap());

    assert!(evaluator.losses_with(&update, 0.2, &[vec![1u32]]).is_err());
    assert_eq!(bits(&evaluator.weights_flat()), bits(&start), "also when the sequences do not fit");
}

#[test]
fn an_update_of_another_shape_is_refused_and_changes_nothing() {
    let config = tiny();
    let mut evaluator = evaluator(&config);
    let start = evaluator.weights_flat();
    let good = update(&config, 4, 0.1);
    let count = good.tensors.len();
    let mut refused = |change: &dyn Fn(&mut Sparse)| {
        let mut update = good.clone();
        change(&mut update);
        evaluator.apply_sparse(&update, 1.0).unwrap_err()
    };
    let in_norm = || ModelError::UpdatePositions { tensor: "model.norm.weight".into() };

    assert_eq!(
        refused(&|u| u.tensors.truncate(count - 1)),
        ModelError::UpdateTensors { expected: count, got: count - 1 }
    );
    assert_eq!(refused(&|u| u.tensors[count - 1].positions = vec![0, 4, 8, 16]), in_norm());
    assert_eq!(refused(&|u| u.tensors[count - 1].positions = vec![0, 8, 4, 12]), in_norm());
    assert_eq!(refused(&|u| u.tensors[count - 1].values.truncate(1)), in_norm());
    assert_eq!(bits(&evaluator.weights_flat()), bits(&start));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_update_is_taken_back_to_the_bit(stride in 1u32..40, size in -1e30f32..1e30, rate in -1e10f32..1e10) {
        let config = tiny();
        let mut evaluator = evaluator(&config);
        let start = evaluator.weights_flat();
        let undo = evaluator.apply_sparse(&update(&config, stride, size), rate).unwrap();
        evaluator.undo(undo);
        prop_assert_eq!(bits(&evaluator.weights_flat()), bits(&start));
    }
}
