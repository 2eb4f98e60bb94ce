//! Tests of the fused engine on the CPU: the suite of all engines, and training on structured text.

use mettle_nn::{
    Device, Evaluator, Trainer,
    conformance::{
        self, Recorded, Reference, Suite, bits, recipe, sequences, state, strong_weights, tiny, update,
        weight_bits,
    },
    engine,
};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
use proptest::prelude::*;

fn suite() -> Suite {
    Suite::new(|config, recipe, flat| engine::open(Device::CPU, config, recipe, flat))
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                conformance::$name(&suite());
            }
        )*
    };
}
mettle_nn::for_each_check!(tests);

#[test]
fn losses_gradients_and_steps_are_those_recorded_from_burn() {
    Recorded::of_burn().check(&suite());
}

/// Returns the loss of unseen sequences after training, relative to that of a uniform guess.
fn share_of_uniform_loss(recipe: &Recipe) -> f64 {
    let config = tiny();
    let flat = init_flat(&config, 1).unwrap();
    let unseen = sequences(&config, 32, 99);
    let loss = |flat: &[f32]| {
        let losses = Evaluator::new(&config, Device::CPU, flat).unwrap().losses(&unseen).unwrap();
        losses.iter().sum::<f64>() / losses.len() as f64
    };
    let uniform = (config.vocab as f64).ln();
    assert!((loss(&flat) - uniform).abs() < 0.5, "a fresh model guesses: {}, uniform {uniform}", loss(&flat));
    let mut trainer = Trainer::new(&config, recipe, Device::CPU, &flat).unwrap();
    for step in 0..250 {
        trainer.step(&sequences(&config, 16, 1000 + step)).unwrap();
    }
    loss(&trainer.weights_flat().unwrap()) / uniform
}

// The first two tokens of a sequence are random, so no model gets below 1/12 of the uniform loss.

#[test]
fn adamw_learns_what_the_last_token_alone_does_not_tell() {
    let share = share_of_uniform_loss(&recipe());
    assert!(share < 0.5, "{share}");
}

#[test]
fn muon_learns_it_too() {
    let share = share_of_uniform_loss(&Recipe { optimiser: Optimiser::Muon, ..recipe() });
    assert!(share < 0.5, "{share}");
}

/// For every order of sums, a machine's loss differs from the exact one only by rounding. An audit tolerates 1e-5 nats
/// per token between two machines, twenty times the error of one.
#[test]
fn rounding_changes_a_loss_by_less_than_an_audit_tolerates() {
    for preset in ["117k", "localnet", "1m"] {
        let config = ModelConfig::preset(preset).unwrap();
        let flat = strong_weights(&config);
        let token = |i: usize, j: usize| ((i * 13 + j * j * 7 + j) % config.vocab) as u32;
        let sequences: Vec<Vec<u32>> =
            (0..4).map(|i| (0..=config.seq_len).map(|j| token(i, j)).collect()).collect();
        let reference = Reference::new(&config, &flat);
        let losses = Evaluator::new(&config, Device::CPU, &flat).unwrap().losses(&sequences).unwrap();
        let errors =
            sequences.iter().zip(losses).map(|(sequence, loss)| (loss - reference.loss(sequence)).abs());
        let error = errors.fold(0.0, f64::max);
        assert!(error < 5e-6, "{preset}: {error:e}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let config = ModelConfig { vocab: 700, ..ModelConfig::preset("1m").unwrap() };
    let flat = init_flat(&config, 1).unwrap();
    let batch = sequences(&config, 4, 3);
    let recipe = Recipe { batch: 4, micro_batch: 4, ..recipe() };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut trainer = Trainer::new(&config, &recipe, Device::CPU, &flat).unwrap();
            let step = trainer.step(&batch).unwrap();
            let losses = Evaluator::new(&config, Device::CPU, &flat).unwrap().losses(&batch).unwrap();
            (step, losses, state(&trainer), weight_bits(&trainer))
        })
    };
    let alone = on(1);
    for threads in [2, 3, 5] {
        assert!(on(threads) == alone, "{threads} threads give other bits than one");
    }
}

#[test]
fn the_weights_of_presets_come_back_as_they_were_loaded() {
    // Only the small presets.
    for name in &ModelConfig::PRESETS[..4] {
        let config = ModelConfig::preset(name).unwrap();
        let flat: Vec<f32> = (0..config.parameters()).map(|i| (i as f32).sin()).collect();
        let trainer = Trainer::new(&config, &recipe(), Device::CPU, &flat).unwrap();
        assert!(bits(&trainer.weights_flat().unwrap()) == bits(&flat), "{name}");
    }
}

#[test]
fn a_trainer_on_an_absent_device_is_refused() {
    let config = tiny();
    let device = "cuda:99".parse().unwrap();
    let error = Trainer::new(&config, &recipe(), device, &init_flat(&config, 1).unwrap()).err();
    assert!(matches!(error, Some(mettle_nn::ModelError::Device(_))), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn any_update_is_undone_to_the_bit(stride in 1u32..40, size in -1e30f32..1e30, rate in -1e10f32..1e10) {
        let config = tiny();
        let start = init_flat(&config, 3).unwrap();
        let mut evaluator = Evaluator::new(&config, Device::CPU, &start).unwrap();
        let undo = evaluator.apply_sparse(&update(&config, stride, size), rate).unwrap();
        evaluator.undo(undo).unwrap();
        prop_assert_eq!(bits(&evaluator.weights_flat().unwrap()), bits(&start));
    }
}
