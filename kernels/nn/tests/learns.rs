//! Training on text that has a structure, the gradient, and what must come out the same twice.

use mettle_nn::{BatchError, DeviceChoice, Evaluator, ModelError, StateError, Trainer};
use model::{ModelConfig, Optimiser, Recipe, init_flat};

const ON: DeviceChoice = DeviceChoice::Cpu;

/// Small enough for a hundred steps in a second; two query heads for each key head.
fn tiny() -> ModelConfig {
    ModelConfig {
        vocab: 40,
        d_model: 16,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        d_ff: 32,
        seq_len: 12,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    }
}

fn recipe() -> Recipe {
    Recipe { batch: 8, micro_batch: 8, learning_rate: 1e-2, warmup_steps: 5, ..Recipe::default() }
}

/// Text whose next token follows from the one before the last: the last alone says nothing about it.
fn sequences(config: &ModelConfig, count: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    let vocab = config.vocab as u32;
    (0..count)
        .map(|_| {
            let mut tokens = vec![next() % vocab, next() % vocab];
            while tokens.len() < config.seq_len + 1 {
                tokens.push((tokens[tokens.len() - 2] + 3) % vocab);
            }
            tokens
        })
        .collect()
}

fn trainer(config: &ModelConfig, recipe: &Recipe) -> Trainer {
    Trainer::new(config, recipe, ON, &init_flat(config, 1).unwrap()).unwrap()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn the_loss_falls_below_what_the_last_token_tells() {
    let config = tiny();
    let mut trainer = trainer(&config, &recipe());
    let unseen = sequences(&config, 32, 99);
    let before =
        mean(&Evaluator::new(&config, ON, &trainer.weights_flat()).unwrap().losses(&unseen).unwrap());

    for step in 0..250 {
        trainer.step(&sequences(&config, 16, 1000 + step)).unwrap();
    }

    let after = mean(&Evaluator::new(&config, ON, &trainer.weights_flat()).unwrap().losses(&unseen).unwrap());
    let uniform = (config.vocab as f64).ln();
    assert!((before - uniform).abs() < 0.5, "a fresh model knows nothing: {before}, uniform {uniform}");
    // The first two tokens of a sequence are drawn, so no model gets below 1/12 of the uniform loss.
    assert!(after < 0.5 * uniform, "{after}, from {before}");
}

#[test]
fn the_gradient_is_that_of_the_loss() {
    // With a large epsilon and no memory, AdamW goes straight down the gradient `g`, by `rate/epsilon · g`. Along that
    // step the loss must fall by `rate/epsilon · |g|²`, with `|g|` the norm told: a wrong entry anywhere would show.
    let config = tiny();
    let (rate, epsilon) = (1.0, 100.0);
    let recipe = Recipe { betas: [0.0, 0.0], epsilon, weight_decay: 0.0, clip_norm: 1e9, ..recipe() };
    let batch = sequences(&config, 8, 3);
    let start = init_flat(&config, 1).unwrap();

    let mut trainer = Trainer::new(&config, &recipe, ON, &start).unwrap();
    let step = trainer.step_at(&batch, rate).unwrap();
    let stepped = trainer.weights_flat();

    let along = |share: f32| {
        let flat: Vec<f32> = start.iter().zip(&stepped).map(|(&a, &b)| a + share * (b - a)).collect();
        mean(&Evaluator::new(&config, ON, &flat).unwrap().losses(&batch).unwrap())
    };
    let slope = (along(1.0) - along(-1.0)) / 2.0;
    let expected = -rate / epsilon * step.gradient_norm.powi(2);
    assert!((slope / expected - 1.0).abs() < 0.02, "{slope}, expected {expected}");
    assert!((along(0.0) - step.loss).abs() < 1e-6, "trainer and evaluator see one loss");
}

#[test]
fn micro_batches_add_up_to_the_batch() {
    let config = tiny();
    let batch = sequences(&config, 8, 5);
    let mut whole = trainer(&config, &recipe());
    let mut parts = trainer(&config, &Recipe { micro_batch: 3, ..recipe() });
    let (one, other) = (whole.step(&batch).unwrap(), parts.step(&batch).unwrap());
    assert!((one.loss - other.loss).abs() < 1e-6);
    assert!((one.gradient_norm - other.gradient_norm).abs() < 1e-5 * one.gradient_norm);
}

#[test]
fn clipping_leaves_a_short_gradient_and_shortens_a_long_one() {
    let config = tiny();
    let batch = sequences(&config, 8, 5);
    let run = |clip_norm| {
        let recipe = Recipe { clip_norm, epsilon: 1.0, weight_decay: 0.0, betas: [0.0, 0.0], ..recipe() };
        let start = init_flat(&config, 1).unwrap();
        let mut trainer = Trainer::new(&config, &recipe, ON, &start).unwrap();
        let norm = trainer.step_at(&batch, 1e-3).unwrap().gradient_norm;
        let moved =
            trainer.weights_flat().iter().zip(&start).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
        (norm, moved.sqrt())
    };
    // With such an epsilon a step is nearly the rate times the gradient, so its length shows the clipping.
    let (norm, free) = run(1e9);
    let (same_norm, untouched) = run(norm * 1.01);
    let (told_norm, clipped) = run(norm * 0.1);
    assert_eq!((norm, free), (same_norm, untouched));
    assert_eq!(norm, told_norm, "the norm is told as it was before clipping");
    assert!((clipped / free - 0.1).abs() < 0.02, "{clipped} of {free}");
}

#[test]
fn two_runs_end_with_the_same_bits() {
    let config = tiny();
    let run = || {
        let mut trainer = trainer(&config, &recipe());
        let losses: Vec<u64> =
            (0..5).map(|step| trainer.step(&sequences(&config, 8, step)).unwrap().loss.to_bits()).collect();
        (losses, bits(&trainer.weights_flat()))
    };
    assert_eq!(run(), run());
}

#[test]
fn a_restored_trainer_goes_on_as_if_nothing_had_happened() {
    let config = tiny();
    let mut first = trainer(&config, &recipe());
    for step in 0..4 {
        first.step(&sequences(&config, 8, step)).unwrap();
    }
    let (weights, state) = (first.weights_flat(), first.state());

    let mut second = Trainer::new(&config, &recipe(), ON, &weights).unwrap();
    second.restore(&state).unwrap();
    assert_eq!(second.steps(), 4);
    assert_eq!(second.state(), state, "state is written as it was read");
    for step in 4..8 {
        let batch = sequences(&config, 8, step);
        assert_eq!(first.step(&batch).unwrap(), second.step(&batch).unwrap());
    }
    assert_eq!(bits(&first.weights_flat()), bits(&second.weights_flat()));
    assert_eq!(first.state(), second.state());
}

#[test]
fn a_damaged_or_foreign_state_is_refused_and_changes_nothing() {
    let config = tiny();
    let mut trainer = trainer(&config, &recipe());
    trainer.step(&sequences(&config, 8, 1)).unwrap();
    let state = trainer.state();
    let mut refused = |bytes: &[u8]| trainer.restore(bytes).unwrap_err();

    assert_eq!(refused(b""), StateError::NotOurs);
    assert_eq!(refused(b"mtl-adm\x02 of another release"), StateError::NotOurs);
    assert_eq!(refused(&state[..20]), StateError::Damaged { len: 20 });
    let cut = &state[..state.len() - 1];
    assert_eq!(refused(cut), StateError::Damaged { len: cut.len() });
    let mut flipped = state.clone();
    flipped[100] ^= 1;
    assert_eq!(refused(&flipped), StateError::Damaged { len: state.len() });

    let other = ModelConfig { d_ff: 48, ..config.clone() };
    let of_other = Trainer::new(&other, &recipe(), ON, &init_flat(&other, 1).unwrap()).unwrap().state();
    assert!(matches!(refused(&of_other), StateError::OtherModel { .. }));
    assert_eq!(trainer.state(), state);
}

#[test]
fn state_and_weights_are_streamed_as_they_are_kept() {
    let config = tiny();
    let mut first = trainer(&config, &recipe());
    first.step(&sequences(&config, 8, 1)).unwrap();
    let (mut state, mut weights) = (Vec::new(), Vec::new());
    first.write_state(&mut state).unwrap();
    first.write_weights(&mut weights).unwrap();
    assert_eq!(state, first.state());
    assert!(first.weights_flat().iter().flat_map(|value| value.to_le_bytes()).eq(weights.iter().copied()));

    let mut second = Trainer::new(&config, &recipe(), ON, &first.weights_flat()).unwrap();
    let behind = [&state[..], b"behind"].concat();
    let mut source = &behind[..];
    second.read_state(&mut source).unwrap();
    assert_eq!((second.state(), source), (state.clone(), &b"behind"[..]));

    let cut = second.read_state(&mut &state[..state.len() - 5]).unwrap_err();
    assert_eq!(cut, StateError::Damaged { len: state.len() - 5 });
    let mut full: &mut [u8] = &mut [0; 100];
    assert_eq!(first.write_state(&mut full).unwrap_err().kind(), std::io::ErrorKind::WriteZero);
}

#[test]
fn a_step_above_the_bound_on_the_loss_is_not_taken() {
    let config = tiny();
    let mut trainer = trainer(&config, &recipe());
    let batch = sequences(&config, 8, 1);
    let loss = trainer.step(&batch).unwrap().loss;
    let (weights, state) = (bits(&trainer.weights_flat()), trainer.state());
    trainer.refuse_loss_above(loss / 100.0);
    let refused = trainer.step(&batch).unwrap_err();
    assert!(
        matches!(refused, ModelError::Exploded { loss_max, .. } if loss_max == loss / 100.0),
        "{refused:?}"
    );
    assert_eq!(trainer.step(&batch).unwrap_err(), refused, "from the same state it is the same again");
    assert_eq!((bits(&trainer.weights_flat()), trainer.state()), (weights, state));
    assert!(trainer.is_finite().unwrap());
    trainer.refuse_loss_above(f64::INFINITY);
    trainer.step(&batch).unwrap();
    let nan = vec![f32::NAN; config.parameters()];
    trainer.load(&nan).unwrap();
    assert!(!trainer.is_finite().unwrap());
}

#[test]
fn the_weights_come_back_as_they_were_loaded() {
    // The small ones.
    for name in &ModelConfig::PRESETS[..4] {
        let config = ModelConfig::preset(name).unwrap();
        let flat: Vec<f32> = (0..config.parameters()).map(|i| (i as f32).sin()).collect();
        let trainer = Trainer::new(&config, &recipe(), ON, &flat).unwrap();
        assert!(bits(&trainer.weights_flat()) == bits(&flat), "{name}");
    }
}

#[test]
fn loading_weights_keeps_the_optimiser() {
    let config = tiny();
    let mut trainer = trainer(&config, &recipe());
    trainer.step(&sequences(&config, 8, 1)).unwrap();
    let (state, other) = (trainer.state(), init_flat(&config, 2).unwrap());
    trainer.load(&other).unwrap();
    assert_eq!(bits(&trainer.weights_flat()), bits(&other));
    assert_eq!(trainer.state(), state);
}

#[test]
fn what_does_not_fit_the_model_is_refused_and_changes_nothing() {
    let config = tiny();
    let mut trainer = trainer(&config, &recipe());
    let (weights, state) = (trainer.weights_flat(), trainer.state());
    let mut refused = |batch: &[Vec<u32>]| trainer.step(batch).unwrap_err();

    assert_eq!(refused(&[]), BatchError::Empty.into());
    assert_eq!(refused(&[vec![0; 12]]), BatchError::Length { sequence: 0, len: 12, expected: 13 }.into());
    let mut outside = sequences(&config, 2, 1);
    outside[1][7] = 40;
    assert_eq!(
        refused(&outside),
        BatchError::Token { sequence: 1, position: 7, token: 40, vocab: 40 }.into()
    );

    let expected = config.parameters();
    assert_eq!(trainer.load(&[0.0; 3]).unwrap_err(), ModelError::FlatLength { expected, got: 3 });
    assert_eq!(bits(&trainer.weights_flat()), bits(&weights));
    assert_eq!(trainer.state(), state);
}

#[test]
fn a_loss_that_is_no_number_stops_the_step_before_the_weights() {
    let config = tiny();
    let mut flat = init_flat(&config, 1).unwrap();
    flat[5] = f32::INFINITY;
    let mut trainer = Trainer::new(&config, &recipe(), ON, &flat).unwrap();
    let state = trainer.state();
    let mut batch = sequences(&config, 4, 1);
    batch[0][0] = 0;
    assert!(matches!(trainer.step(&batch), Err(ModelError::NotFinite { .. })));
    assert_eq!(trainer.state(), state);
    assert_eq!(bits(&trainer.weights_flat()), bits(&flat));
}

#[test]
fn a_trainer_needs_a_model_a_recipe_and_a_device() {
    let config = tiny();
    let flat = init_flat(&config, 1).unwrap();
    let new = |config: &ModelConfig, recipe: &Recipe, on| {
        Trainer::new(config, recipe, on, &flat).map(|_| ()).unwrap_err()
    };
    assert!(matches!(new(&ModelConfig { heads: 3, ..config.clone() }, &recipe(), ON), ModelError::Config(_)));
    assert!(matches!(new(&config, &Recipe { batch: 0, ..recipe() }, ON), ModelError::Recipe(_)));
    assert!(matches!(
        new(&config, &recipe(), DeviceChoice::parse("cuda:99").unwrap()),
        ModelError::Device(_)
    ));
}

fn muon() -> Recipe {
    Recipe { optimiser: Optimiser::Muon, ..recipe() }
}

#[test]
fn muon_learns_too() {
    let config = tiny();
    let mut trainer = trainer(&config, &muon());
    let unseen = sequences(&config, 32, 99);
    for step in 0..250 {
        trainer.step(&sequences(&config, 16, 1000 + step)).unwrap();
    }
    let after = mean(&Evaluator::new(&config, ON, &trainer.weights_flat()).unwrap().losses(&unseen).unwrap());
    let uniform = (config.vocab as f64).ln();
    assert!(after < 0.5 * uniform, "{after} of {uniform}");
}

#[test]
fn muon_steps_matrices_and_leaves_the_embedding_and_the_gains_to_adamw() {
    let config = tiny();
    let (by_muon, by_adamw) = {
        let step = |recipe: &Recipe| {
            let mut trainer = trainer(&config, recipe);
            trainer.step(&sequences(&config, 8, 1)).unwrap();
            trainer.weights_flat()
        };
        (step(&muon()), step(&recipe()))
    };
    let schema = config.schema().unwrap();
    for (range, tensor) in schema.ranges().zip(schema.tensors()) {
        let same = bits(&by_muon[range.clone()]) == bits(&by_adamw[range]);
        let is_matrix = tensor.shape.len() == 2 && !tensor.name.contains("embed_tokens");
        assert_eq!(same, !is_matrix, "{}", tensor.name);
    }
}

#[test]
fn a_saved_state_of_muon_goes_on_to_the_bit_and_is_not_taken_for_adamws() {
    let config = tiny();
    let mut first = trainer(&config, &muon());
    for step in 0..3 {
        first.step(&sequences(&config, 8, step)).unwrap();
    }
    let (state, weights) = (first.state(), first.weights_flat());
    let mut second = Trainer::new(&config, &muon(), ON, &weights).unwrap();
    second.restore(&state).unwrap();
    assert_eq!(second.state(), state);
    for step in 3..6 {
        let batch = sequences(&config, 8, step);
        assert_eq!(first.step(&batch).unwrap(), second.step(&batch).unwrap());
    }
    assert_eq!(bits(&first.weights_flat()), bits(&second.weights_flat()));
    assert_eq!(first.state(), second.state());

    let mut by_adamw = trainer(&config, &recipe());
    let untouched = by_adamw.state();
    assert!(state.len() < untouched.len(), "one average for a matrix, not two");
    let refused = by_adamw.restore(&state).unwrap_err();
    assert_eq!(refused, StateError::OtherOptimiser { expected: Optimiser::AdamW, got: Optimiser::Muon });
    assert_eq!(by_adamw.state(), untouched);
    let refused = second.read_state(&mut &untouched[..]).unwrap_err();
    assert_eq!(refused, StateError::OtherOptimiser { expected: Optimiser::Muon, got: Optimiser::AdamW });
}
