//! The checks that every engine must pass, for tests of engines.
//!
//! A test program calls [`for_each_check`](crate::for_each_check) with a macro that makes a test of each name, or runs
//! [`CHECKS`].
//!
//! ```
//! use mettle_nn::{Device, conformance::{self, Suite}, engine};
//!
//! let suite = Suite::new(|config, recipe, flat| engine::open(Device::CPU, config, recipe, flat));
//! conformance::two_runs_end_with_the_same_bits(&suite);
//! ```

mod nccl;
mod recorded;
mod reference;

pub use nccl::{NcclAgreement, nccl_gives_the_bits_of_memory};
pub use recorded::Recorded;
pub use reference::Reference;

use crate::{
    BatchError, DeviceError, Engine, Evaluator, ModelError, StateError, Step, StepParams, Trainer,
    engine::take,
};
use model::{ModelConfig, Optimiser, Recipe, init_flat};
use protocol::contribution::{Sparse, SparseTensor};
use serde::{Deserialize, Serialize};

/// Function that opens an engine, for training with the recipe, or without one for evaluation.
pub type Open = dyn Fn(&ModelConfig, Option<&Recipe>, &[f32]) -> Result<Box<dyn Engine>, ModelError> + Sync;

/// An engine under test.
pub struct Suite {
    pub open: Box<Open>,
    /// `true` if the engine supports Muon. An engine that does not must refuse it.
    pub has_muon: bool,
}

/// Calls the macro `$then` with the names of all checks.
#[macro_export]
macro_rules! for_each_check {
    ($then:ident) => {
        $then! {
            losses_are_those_of_the_reference
            gradients_are_slopes_of_the_loss
            logits_explain_the_losses
            micro_batches_add_up_to_the_batch
            clipping_leaves_a_short_gradient_and_shortens_a_long_one
            two_runs_end_with_the_same_bits
            threads_that_take_turns_give_the_bits_of_one
            a_restored_trainer_continues_to_the_same_bits
            a_damaged_or_foreign_state_is_refused_and_changes_nothing
            state_and_weights_are_streamed_as_they_are
            a_loss_above_the_bound_is_refused_and_changes_nothing
            a_loss_that_is_not_finite_is_refused_and_changes_nothing
            weights_come_back_as_they_were_loaded
            loading_weights_keeps_the_optimiser
            a_batch_that_does_not_fit_the_model_is_refused_and_changes_nothing
            an_engine_for_evaluation_does_not_train
            muon_steps_matrices_or_is_refused
            muons_state_continues_to_the_bit_and_is_not_read_as_adamws
            a_sequence_has_the_same_loss_alone_and_among_others
            a_model_of_zeros_finds_every_token_equally_likely
            applying_gives_the_protocols_bits_and_undoing_the_first_ones
            losses_with_an_update_leave_no_trace
            an_update_of_another_shape_is_refused_and_changes_nothing
        }
    };
}

macro_rules! list {
    ($($name:ident)*) => {
        /// All checks, by name.
        pub const CHECKS: &[(&str, fn(&Suite))] = &[$((stringify!($name), $name)),*];
    };
}
for_each_check!(list);

impl Suite {
    pub fn new(
        open: impl Fn(&ModelConfig, Option<&Recipe>, &[f32]) -> Result<Box<dyn Engine>, ModelError>
        + Sync
        + 'static,
    ) -> Suite {
        Suite { open: Box::new(open), has_muon: true }
    }

    /// # Panics
    /// If the engine does not open.
    pub fn trainer(&self, config: &ModelConfig, recipe: &Recipe, flat: &[f32]) -> Trainer {
        let engine = (self.open)(config, Some(recipe), flat).expect("the engine opens");
        Trainer::from_engine(config, recipe, engine).expect("configuration and recipe are valid")
    }

    /// # Panics
    /// If the engine does not open.
    pub fn evaluator(&self, config: &ModelConfig, flat: &[f32]) -> Evaluator {
        Evaluator::from_engine(config, (self.open)(config, None, flat).expect("the engine opens"))
    }

    fn fresh(&self, config: &ModelConfig, recipe: &Recipe) -> Trainer {
        self.trainer(config, recipe, &initial(config))
    }

    /// Returns a trainer of [`tiny`] with [`recipe`] after one step.
    fn stepped(&self) -> Trainer {
        let mut trainer = self.fresh(&tiny(), &recipe());
        trainer.step(&sequences(&tiny(), 8, 1)).expect("the batch fits the model");
        trainer
    }

    fn losses(&self, config: &ModelConfig, flat: &[f32], sequences: &[Vec<u32>]) -> Vec<f64> {
        self.evaluator(config, flat).losses(sequences).expect("the sequences fit the model")
    }
}

/// Returns a model small enough for hundreds of steps, with two query heads per key head.
pub fn tiny() -> ModelConfig {
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

/// Returns a recipe for [`tiny`].
pub fn recipe() -> Recipe {
    Recipe { batch: 8, micro_batch: 8, learning_rate: 1e-2, warmup_steps: 5, ..Recipe::default() }
}

fn muon() -> Recipe {
    Recipe { optimiser: Optimiser::Muon, ..recipe() }
}

/// Returns sequences whose next token depends on the last but one only.
pub fn sequences(config: &ModelConfig, count: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as u32
    };
    let vocab = config.vocab as u32;
    let mut sequence = |_| {
        let mut tokens = vec![next() % vocab, next() % vocab];
        while tokens.len() < config.seq_len + 1 {
            tokens.push((tokens[tokens.len() - 2] + 3) % vocab);
        }
        tokens
    };
    (0..count).map(&mut sequence).collect()
}

/// Returns random sequences with small ids more frequent, which twenty steps partly learn.
pub fn skewed_sequences(config: &ModelConfig, count: usize, seed: u64) -> Vec<Vec<u32>> {
    let mut state = seed;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let uniform = (state >> 33) as f64 / f64::from(1u32 << 31);
        (uniform * uniform * config.vocab as f64) as u32
    };
    (0..count).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect()
}

/// Returns the optimiser's state as bytes.
///
/// # Panics
/// If the device fails.
pub fn state(trainer: &Trainer) -> Vec<u8> {
    let mut bytes = Vec::new();
    trainer.write_state(&mut bytes).expect("a vector takes all bytes, and the device works");
    bytes
}

/// Returns the bits of all weights.
///
/// # Panics
/// If the device fails.
pub fn weight_bits(trainer: &Trainer) -> Vec<u32> {
    bits(&trainer.weights_flat().expect("the device works"))
}

/// Returns the bits of all values. Equality of the values themselves would ignore the sign of zero.
pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the bits of the weights and of the optimiser's state.
fn contents(trainer: &Trainer) -> (Vec<u32>, Vec<u8>) {
    (weight_bits(trainer), state(trainer))
}

fn evaluated_bits(evaluator: &Evaluator) -> Vec<u32> {
    bits(&evaluator.weights_flat().expect("the device works"))
}

fn initial(config: &ModelConfig) -> Vec<f32> {
    init_flat(config, 1).expect("the configuration is valid")
}

/// Returns weights far from the initial ones, so that every part matters: gains other than 1, large projections.
pub fn strong_weights(config: &ModelConfig) -> Vec<f32> {
    let mut flat = init_flat(config, 5).expect("the configuration is valid");
    let schema = config.schema().expect("the configuration is valid");
    for (spec, range) in schema.tensors().iter().zip(schema.ranges()) {
        for (index, value) in flat[range].iter_mut().enumerate() {
            *value = if spec.shape.len() == 1 { 1.0 + 0.3 * (index as f32).sin() } else { *value * 2.0 };
        }
    }
    flat
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn losses_are_those_of_the_reference(suite: &Suite) {
    for (heads, kv_heads) in [(4, 4), (4, 2), (6, 1), (1, 1)] {
        let config = ModelConfig {
            vocab: 60,
            d_model: 24,
            layers: 2,
            heads,
            kv_heads,
            d_ff: 40,
            seq_len: 10,
            rope_theta: 100.0,
            norm_epsilon: 1e-3,
        };
        let flat = strong_weights(&config);
        let sequences = skewed_sequences(&config, 4, 7);
        let reference = Reference::new(&config, &flat);
        for (sequence, loss) in sequences.iter().zip(suite.losses(&config, &flat, &sequences)) {
            let exact = reference.loss(sequence);
            assert!((loss - exact).abs() < 1e-5 * exact, "{loss}, but the reference has {exact}");
        }
    }
}

pub fn gradients_are_slopes_of_the_loss(suite: &Suite) {
    // With a large epsilon and betas of 0, AdamW steps along the gradient `g`, by `rate/epsilon · g`. Along that step
    // the loss must fall by `rate/epsilon · |g|²`, with `|g|` the reported norm: any wrong entry would change it.
    let config = tiny();
    let (rate, epsilon) = (1.0, 100.0);
    let recipe = Recipe { betas: [0.0, 0.0], epsilon, weight_decay: 0.0, clip_norm: 1e9, ..recipe() };
    let batch = sequences(&config, 8, 3);
    let start = initial(&config);

    let mut trainer = suite.trainer(&config, &recipe, &start);
    let step = trainer.step_at(&batch, rate).unwrap();
    let stepped = trainer.weights_flat().unwrap();

    let along = |share: f32| {
        let flat: Vec<f32> = start.iter().zip(&stepped).map(|(&a, &b)| a + share * (b - a)).collect();
        mean(&suite.losses(&config, &flat, &batch))
    };
    let slope = (along(1.0) - along(-1.0)) / 2.0;
    let expected = -rate / epsilon * step.gradient_norm.powi(2);
    assert!((slope / expected - 1.0).abs() < 0.02, "{slope}, expected {expected}");
    assert!((along(0.0) - step.loss).abs() < 1e-6, "trainer and evaluator have the same loss");
}

pub fn logits_explain_the_losses(suite: &Suite) {
    let config = tiny();
    let flat = strong_weights(&config);
    let evaluator = suite.evaluator(&config, &flat);
    for sequence in sequences(&config, 3, 4) {
        let loss = evaluator.losses(std::slice::from_ref(&sequence)).unwrap()[0];
        let logits = evaluator.logits(&sequence[..config.seq_len]).unwrap();
        assert_eq!(logits.len(), config.seq_len * config.vocab);
        let row_loss = |(row, &target): (&[f32], &u32)| {
            let sum: f64 = row.iter().map(|&logit| f64::from(logit).exp()).sum();
            sum.ln() - f64::from(row[target as usize])
        };
        let losses: Vec<f64> = logits.chunks(config.vocab).zip(&sequence[1..]).map(row_loss).collect();
        assert!((mean(&losses) - loss).abs() < 1e-5, "{losses:?}, mean loss {loss}");
        for len in [1, 5] {
            let part = evaluator.logits(&sequence[..len]).unwrap();
            assert_eq!(part.len(), len * config.vocab);
            for (one, other) in part.iter().zip(&logits) {
                assert!((one - other).abs() < 1e-4, "later tokens change nothing: {one} {other}");
            }
        }
    }
    let too_long = vec![0; config.seq_len + 1];
    for (tokens, token) in [(&too_long[..], 0), (&[], 0), (&[40][..], 40)] {
        assert!(
            matches!(evaluator.logits(tokens), Err(ModelError::Batch(_))),
            "{} tokens, {token}",
            tokens.len()
        );
    }
}

pub fn micro_batches_add_up_to_the_batch(suite: &Suite) {
    let config = tiny();
    let batch = sequences(&config, 8, 5);
    let whole = suite.fresh(&config, &recipe()).step(&batch).unwrap();
    // 3 leaves a smaller micro-batch at the end; 16 exceeds the recipe's batch, which is larger than this one.
    for (micro_batch, batch_sequences) in [(3, 8), (1, 8), (16, 4), (16, 10)] {
        let recipe = Recipe { micro_batch, batch: batch_sequences, ..recipe() };
        let parts = suite.fresh(&config, &recipe).step(&batch).unwrap();
        assert!((whole.loss - parts.loss).abs() < 1e-6, "{micro_batch}");
        assert!(
            (whole.gradient_norm - parts.gradient_norm).abs() < 1e-5 * whole.gradient_norm,
            "{micro_batch}"
        );
    }
}

pub fn clipping_leaves_a_short_gradient_and_shortens_a_long_one(suite: &Suite) {
    let config = tiny();
    let batch = sequences(&config, 8, 5);
    let start = initial(&config);
    let run = |clip_norm| {
        let recipe = Recipe { clip_norm, epsilon: 1.0, weight_decay: 0.0, betas: [0.0, 0.0], ..recipe() };
        let mut trainer = suite.trainer(&config, &recipe, &start);
        let norm = trainer.step_at(&batch, 1e-3).unwrap().gradient_norm;
        let moved = trainer
            .weights_flat()
            .unwrap()
            .iter()
            .zip(&start)
            .map(|(a, b)| f64::from(a - b).powi(2))
            .sum::<f64>();
        (norm, moved.sqrt())
    };
    // With such an epsilon a step is nearly the rate times the gradient, so its length shows the clipping.
    let (norm, free) = run(1e9);
    let (same_norm, untouched) = run(norm * 1.01);
    let (reported_norm, clipped) = run(norm * 0.1);
    assert_eq!((norm, free), (same_norm, untouched));
    assert_eq!(norm, reported_norm, "the reported norm is that before clipping");
    assert!((clipped / free - 0.1).abs() < 0.02, "{clipped} of {free}");
}

pub fn two_runs_end_with_the_same_bits(suite: &Suite) {
    let config = tiny();
    let recipe = Recipe { micro_batch: 3, ..recipe() };
    let run = || {
        let mut trainer = suite.fresh(&config, &recipe);
        let losses: Vec<u64> =
            (0..5).map(|step| trainer.step(&sequences(&config, 8, step)).unwrap().loss.to_bits()).collect();
        (losses, contents(&trainer))
    };
    assert!(run() == run());
}

/// Checks that a trainer may be opened, loaded and read by one thread and stepped by another, as in a miner.
pub fn threads_that_take_turns_give_the_bits_of_one(suite: &Suite) {
    let config = tiny();
    let run = |elsewhere: bool| {
        let mut trainer = suite.fresh(&config, &recipe());
        let mut seen = Vec::new();
        for window in 0..3 {
            let mut steps = || {
                for seed in 3 * window..3 * window + 3 {
                    trainer.step(&sequences(&config, 4, seed)).unwrap();
                }
            };
            if elsewhere {
                std::thread::scope(|scope| scope.spawn(steps).join().unwrap());
            } else {
                steps();
            }
            let (flat, optimiser) = (trainer.weights_flat().unwrap(), state(&trainer));
            let next: Vec<f32> = flat.iter().map(|value| 0.5 * value).collect();
            trainer.load(&next).unwrap();
            trainer.read_state(&mut &optimiser[..]).unwrap();
            seen.push((bits(&flat), optimiser));
        }
        seen
    };
    assert!(run(false) == run(true));
}

pub fn a_restored_trainer_continues_to_the_same_bits(suite: &Suite) {
    continues_to_the_bit(suite, &recipe());
}

fn continues_to_the_bit(suite: &Suite, recipe: &Recipe) {
    let config = tiny();
    let mut first = suite.fresh(&config, recipe);
    for step in 0..4 {
        first.step(&sequences(&config, 8, step)).unwrap();
    }
    let (weights, saved) = (first.weights_flat().unwrap(), state(&first));

    // Not a new trainer: no earlier state may remain.
    let mut second = suite.trainer(&config, recipe, &init_flat(&config, 9).unwrap());
    second.step(&sequences(&config, 8, 99)).unwrap();
    second.load(&weights).unwrap();
    second.read_state(&mut &saved[..]).unwrap();
    assert_eq!(second.steps(), 4);
    assert!(state(&second) == saved, "the state is written as it was read");
    for step in 4..8 {
        let batch = sequences(&config, 8, step);
        assert_eq!(first.step(&batch).unwrap(), second.step(&batch).unwrap());
    }
    assert!(contents(&first) == contents(&second));
}

pub fn a_damaged_or_foreign_state_is_refused_and_changes_nothing(suite: &Suite) {
    let mut trainer = suite.stepped();
    let saved = state(&trainer);
    let mut refused = |bytes: &[u8]| trainer.read_state(&mut &bytes[..]).unwrap_err();

    assert_eq!(refused(b""), StateError::NotOurs);
    assert_eq!(refused(b"mtl-adm\x02 of another release"), StateError::NotOurs);
    assert_eq!(refused(&saved[..20]), StateError::Damaged { len: 20 });
    let cut = &saved[..saved.len() - 1];
    assert_eq!(refused(cut), StateError::Damaged { len: cut.len() });
    let mut flipped = saved.clone();
    flipped[100] ^= 1;
    assert_eq!(refused(&flipped), StateError::Damaged { len: saved.len() });

    let other = ModelConfig { d_ff: 48, ..tiny() };
    let foreign = state(&suite.fresh(&other, &recipe()));
    assert!(matches!(refused(&foreign), StateError::OtherModel { .. }));
    assert!(state(&trainer) == saved);
}

pub fn state_and_weights_are_streamed_as_they_are(suite: &Suite) {
    let config = tiny();
    let first = suite.stepped();
    let (saved, flat) = (state(&first), first.weights_flat().unwrap());
    let mut weights = Vec::new();
    first.write_weights(&mut weights).unwrap();
    assert!(flat.iter().flat_map(|value| value.to_le_bytes()).eq(weights.iter().copied()));
    assert_eq!(saved.len(), 80 + 8 * config.parameters());

    let mut second = suite.trainer(&config, &recipe(), &flat);
    let longer = [&saved[..], b"behind"].concat();
    let mut source = &longer[..];
    second.read_state(&mut source).unwrap();
    assert_eq!(source, b"behind", "not a byte more is read");
    assert!(state(&second) == saved);
    let mut full: &mut [u8] = &mut [0; 100];
    assert_eq!(first.write_state(&mut full).unwrap_err().kind(), std::io::ErrorKind::WriteZero);
}

pub fn a_loss_above_the_bound_is_refused_and_changes_nothing(suite: &Suite) {
    let config = tiny();
    let mut trainer = suite.fresh(&config, &recipe());
    let batch = sequences(&config, 8, 1);
    let loss = trainer.step(&batch).unwrap().loss;
    let (weights, before) = (trainer.weights_flat().unwrap(), contents(&trainer));
    trainer.refuse_loss_above(loss / 100.0);
    let refused = trainer.step(&batch).unwrap_err();
    assert!(
        matches!(refused, ModelError::Exploded { loss_max, .. } if loss_max == loss / 100.0),
        "{refused:?}"
    );
    assert_eq!(trainer.step(&batch).unwrap_err(), refused, "the same state gives the same error");
    assert!(contents(&trainer) == before && trainer.is_finite().unwrap());
    trainer.refuse_loss_above(f64::INFINITY);
    let loss = trainer.step(&batch).unwrap().loss;
    let undisturbed = suite.trainer(&config, &recipe(), &weights).step(&batch).unwrap().loss;
    assert_eq!(loss, undisturbed, "nothing of the refused steps is left");
}

pub fn a_loss_that_is_not_finite_is_refused_and_changes_nothing(suite: &Suite) {
    let config = tiny();
    let mut trainer = suite.stepped();
    let saved = state(&trainer);
    let mut batch = sequences(&config, 4, 1);
    batch[0][0] = 0;
    for wrong in [f32::INFINITY, f32::NAN] {
        let mut flat = initial(&config);
        flat[5] = wrong;
        trainer.load(&flat).unwrap();
        assert!(!trainer.is_finite().unwrap());
        assert!(matches!(trainer.step(&batch), Err(ModelError::NotFinite { .. })));
        assert_eq!(trainer.steps(), 1);
        assert!(contents(&trainer) == (bits(&flat), saved.clone()));
    }
}

pub fn weights_come_back_as_they_were_loaded(suite: &Suite) {
    for config in [tiny(), ModelConfig::preset("117k").unwrap()] {
        let flat: Vec<f32> = (0..config.parameters()).map(|i| (i as f32).sin()).collect();
        assert!(weight_bits(&suite.trainer(&config, &recipe(), &flat)) == bits(&flat));
        assert!(bits(&suite.evaluator(&config, &flat).weights_flat().unwrap()) == bits(&flat));
    }
}

pub fn loading_weights_keeps_the_optimiser(suite: &Suite) {
    let config = tiny();
    let mut trainer = suite.stepped();
    let (saved, other) = (state(&trainer), init_flat(&config, 2).unwrap());
    trainer.load(&other).unwrap();
    assert!(contents(&trainer) == (bits(&other), saved));
}

pub fn a_batch_that_does_not_fit_the_model_is_refused_and_changes_nothing(suite: &Suite) {
    let config = tiny();
    let mut trainer = suite.fresh(&config, &recipe());
    let before = contents(&trainer);
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
    let mut evaluator = suite.evaluator(&config, &initial(&config));
    assert_eq!(evaluator.load(&[0.0; 3]).unwrap_err(), ModelError::FlatLength { expected, got: 3 });
    assert!(contents(&trainer) == before);

    let flat = initial(&config);
    let error = |config: &ModelConfig, recipe: &Recipe, flat: &[f32]| {
        (suite.open)(config, Some(recipe), flat).err().unwrap()
    };
    let uneven = ModelConfig { heads: 3, ..config.clone() };
    assert!(matches!(error(&uneven, &recipe(), &flat), ModelError::Config(_)));
    assert!(matches!(error(&config, &Recipe { batch: 0, ..recipe() }, &flat), ModelError::Recipe(_)));
    assert!(matches!(error(&config, &recipe(), &flat[1..]), ModelError::FlatLength { .. }));
}

pub fn an_engine_for_evaluation_does_not_train(suite: &Suite) {
    let config = tiny();
    let mut engine = (suite.open)(&config, None, &initial(&config)).unwrap();
    let batch = sequences(&config, 2, 1);
    let batch: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
    let params = StepParams { step: 1, learning_rate: 1e-3, gradient_scale: 1.0 };
    assert_eq!(engine.gradients(&batch), Err(ModelError::NotForTraining));
    assert_eq!(engine.step(&params), Err(ModelError::NotForTraining));
    assert_eq!(engine.load_moments(&[]), Err(ModelError::NotForTraining));
    assert_eq!(engine.moments().count(), 0);
}

pub fn muon_steps_matrices_or_is_refused(suite: &Suite) {
    let config = tiny();
    if !suite.has_muon {
        let refused = (suite.open)(&config, Some(&muon()), &initial(&config)).err();
        assert_eq!(refused, Some(DeviceError::NoMuon.into()));
        return;
    }
    let step = |recipe: &Recipe| {
        let mut trainer = suite.fresh(&config, recipe);
        trainer.step(&sequences(&config, 8, 1)).unwrap();
        trainer.weights_flat().unwrap()
    };
    let (by_muon, by_adamw) = (step(&muon()), step(&recipe()));
    let schema = config.schema().unwrap();
    for (range, tensor) in schema.ranges().zip(schema.tensors()) {
        let same = bits(&by_muon[range.clone()]) == bits(&by_adamw[range]);
        let is_matrix = tensor.shape.len() == 2 && !tensor.name.contains("embed_tokens");
        assert_eq!(same, !is_matrix, "{}", tensor.name);
    }
}

pub fn muons_state_continues_to_the_bit_and_is_not_read_as_adamws(suite: &Suite) {
    if !suite.has_muon {
        return;
    }
    continues_to_the_bit(suite, &muon());
    let config = tiny();
    let (mut by_muon, mut by_adamw) = (suite.fresh(&config, &muon()), suite.fresh(&config, &recipe()));
    let (muons, adamws) = (state(&by_muon), state(&by_adamw));
    assert!(muons.len() < adamws.len(), "one average for a matrix, not two");
    let refused = by_adamw.read_state(&mut &muons[..]).unwrap_err();
    assert_eq!(refused, StateError::OtherOptimiser { expected: Optimiser::AdamW, got: Optimiser::Muon });
    assert!(state(&by_adamw) == adamws);
    let refused = by_muon.read_state(&mut &adamws[..]).unwrap_err();
    assert_eq!(refused, StateError::OtherOptimiser { expected: Optimiser::Muon, got: Optimiser::AdamW });
}

pub fn a_sequence_has_the_same_loss_alone_and_among_others(suite: &Suite) {
    let config = tiny();
    let evaluator = suite.evaluator(&config, &strong_weights(&config));
    let sequences = sequences(&config, 300, 6);
    let together = evaluator.losses(&sequences).unwrap();
    assert_eq!(together, evaluator.losses(&sequences).unwrap(), "and the same twice");
    for (index, together) in together.iter().enumerate().step_by(37) {
        let alone = evaluator.losses(&sequences[index..=index]).unwrap()[0];
        assert!((together - alone).abs() < 1e-5, "{together} {alone}");
    }
    assert!(evaluator.losses::<Vec<u32>>(&[]).unwrap().is_empty());
}

pub fn a_model_of_zeros_finds_every_token_equally_likely(suite: &Suite) {
    let config = tiny();
    for loss in suite.losses(&config, &vec![0.0; config.parameters()], &sequences(&config, 3, 1)) {
        assert!((loss - (config.vocab as f64).ln()).abs() < 1e-6, "{loss}");
    }
}

/// Returns an update of every `stride`-th value of each tensor, beginning with the first.
pub fn update(config: &ModelConfig, stride: u32, size: f32) -> Sparse {
    let tensor = |len: u32| {
        let positions: Vec<u32> = (0..len).step_by(stride as usize).collect();
        let values = positions.iter().map(|&p| if p % 3 == 0 { size } else { -0.3 * size }).collect();
        SparseTensor { positions, values, square_norm: 0.0 }
    };
    let schema = config.schema().expect("the configuration is valid");
    Sparse { tensors: schema.tensors().iter().map(|spec| tensor(spec.shape.iter().product())).collect() }
}

pub fn applying_gives_the_protocols_bits_and_undoing_the_first_ones(suite: &Suite) {
    let config = tiny();
    let schema = config.schema().unwrap();
    let start = initial(&config);
    let mut evaluator = suite.evaluator(&config, &start);
    let sequences = sequences(&config, 5, 2);
    let losses = evaluator.losses(&sequences).unwrap();

    let (first, second) = (update(&config, 3, 0.1), update(&config, 5, -0.07));
    let mut agreed = start.clone();
    protocol::merge::apply(&schema, &mut agreed, &first, 0.2);
    let undo_first = evaluator.apply_sparse(&first, 0.2).unwrap();
    assert_eq!(evaluated_bits(&evaluator), bits(&agreed));

    protocol::merge::apply(&schema, &mut agreed, &second, 1.0);
    let undo_second = evaluator.apply_sparse(&second, 1.0).unwrap();
    assert_eq!(evaluated_bits(&evaluator), bits(&agreed));
    assert_ne!(evaluator.losses(&sequences).unwrap(), losses);

    evaluator.undo(undo_second).unwrap();
    evaluator.undo(undo_first).unwrap();
    assert_eq!(evaluated_bits(&evaluator), bits(&start));
    assert_eq!(evaluator.losses(&sequences).unwrap(), losses);
}

pub fn losses_with_an_update_leave_no_trace(suite: &Suite) {
    let config = tiny();
    let start = initial(&config);
    let mut evaluator = suite.evaluator(&config, &start);
    let sequences = sequences(&config, 5, 2);
    let update = update(&config, 3, 0.1);

    let with = evaluator.losses_with(&update, 0.2, &sequences).unwrap();
    assert_eq!(evaluated_bits(&evaluator), bits(&start));
    assert_eq!(with, evaluator.losses_with(&update, 0.2, &sequences).unwrap());

    let mut stepped = start.clone();
    protocol::merge::apply(&config.schema().unwrap(), &mut stepped, &update, 0.2);
    assert_eq!(with, suite.losses(&config, &stepped, &sequences));

    assert!(evaluator.losses_with(&update, 0.2, &[vec![1u32]]).is_err());
    assert_eq!(evaluated_bits(&evaluator), bits(&start), "also when the sequences do not fit");
}

pub fn an_update_of_another_shape_is_refused_and_changes_nothing(suite: &Suite) {
    let config = tiny();
    let start = initial(&config);
    let mut evaluator = suite.evaluator(&config, &start);
    let good = update(&config, 4, 0.1);
    let count = good.tensors.len();
    let mut refused = |change: fn(&mut Vec<SparseTensor>)| {
        let mut update = good.clone();
        change(&mut update.tensors);
        evaluator.apply_sparse(&update, 1.0).unwrap_err()
    };
    let in_norm = || ModelError::UpdatePositions { tensor: "model.norm.weight".into() };
    const WRONG: &[fn(&mut Vec<SparseTensor>)] = &[
        |tensors| tensors.last_mut().unwrap().positions = vec![0, 4, 8, 16],
        |tensors| tensors.last_mut().unwrap().positions = vec![0, 8, 4, 12],
        |tensors| tensors.last_mut().unwrap().values.truncate(1),
    ];

    assert_eq!(
        refused(|tensors| drop(tensors.pop())),
        ModelError::UpdateTensors { expected: count, got: count - 1 }
    );
    for change in WRONG {
        assert_eq!(refused(*change), in_norm());
    }
    assert_eq!(evaluated_bits(&evaluator), bits(&start));
}

/// Returns the loss and all gradients of a batch on the weights `flat`, tensor by tensor. After a first step AdamW's
/// mean is a tenth of the gradient.
pub fn loss_and_gradients(
    suite: &Suite,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
    batch: &[Vec<u32>],
) -> (f64, Vec<Vec<f32>>) {
    let recipe = Recipe { betas: [0.9, 0.95], ..recipe.clone() };
    let mut engine = (suite.open)(config, Some(&recipe), flat).expect("the engine opens");
    let batch: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
    let loss = engine.gradients(&batch).unwrap().loss;
    engine.step(&StepParams { step: 1, learning_rate: 1e-3, gradient_scale: 1.0 }).unwrap();
    let moments = engine.moments().collect::<Result<Vec<_>, _>>().unwrap().concat();
    let mut rest = &moments[..];
    let gradient = |(_, [rows, columns]): (String, [usize; 2])| {
        let mean = take(&mut rest, rows * columns);
        take(&mut rest, rows * columns);
        mean.iter().map(|mean| mean / 0.1).collect()
    };
    (loss, config.shapes().into_iter().map(gradient).collect())
}

/// Returns the largest difference of gradients, relative to each tensor's largest entry.
pub fn gradient_error(ours: &[Vec<f32>], exact: &[Vec<f32>]) -> f64 {
    let largest_of_all = exact.iter().flatten().fold(0.0f32, |max, x| max.max(x.abs()));
    let tensors = ours.iter().zip(exact).map(|(ours, exact)| {
        let largest = exact.iter().fold(0.0f32, |max, x| max.max(x.abs())) + 1e-2 * largest_of_all;
        let furthest = ours.iter().zip(exact).fold(0.0f32, |max, (one, other)| max.max((one - other).abs()));
        f64::from(furthest / largest)
    });
    tensors.fold(0.0, f64::max)
}

/// Maximum difference of two engines' gradients, relative to a tensor's largest entry.
const GRADIENT_ERROR_MAX: f64 = 1e-4;

/// Model, weights and batch for a comparison of engines.
struct GradientCase {
    config: ModelConfig,
    flat: Vec<f32>,
    batch: Vec<Vec<u32>>,
}

impl GradientCase {
    /// Returns cases of several shapes.
    fn all() -> Vec<GradientCase> {
        let shape = |vocab, layers, [heads, kv_heads, head_width]: [usize; 3], d_ff, seq_len| ModelConfig {
            vocab,
            layers,
            d_model: heads * head_width,
            heads,
            kv_heads,
            d_ff,
            seq_len,
            ..tiny()
        };
        let shapes = [
            (shape(256, 2, [2, 2, 32], 176, 64), 2),
            (shape(100, 2, [4, 2, 16], 96, 32), 3),
            // One key head for all, a single layer, lengths that are not multiples of a vector, and more logits than
            // one sequence has.
            (shape(301, 1, [6, 1, 10], 70, 19), 5),
            (shape(40, 3, [3, 3, 8], 50, 1), 4),
            (shape(64, 1, [2, 1, 64], 64, 130), 1),
        ];
        let case = |(config, count)| {
            // Twice the initial weights, so that a layer's output and uneven attention matter.
            let flat = initial(&config).into_iter().map(|value| 2.0 * value).collect();
            let batch = skewed_sequences(&config, count, 7);
            GradientCase { config, flat, batch }
        };
        shapes.into_iter().map(case).collect()
    }

    fn loss_and_gradients(&self, suite: &Suite) -> (f64, Vec<Vec<f32>>) {
        let count = self.batch.len();
        let recipe = Recipe { batch: count, micro_batch: count, ..recipe() };
        loss_and_gradients(suite, &self.config, &recipe, &self.flat, &self.batch)
    }

    /// # Panics
    /// If two engines' losses differ by more than rounding in f32.
    fn check_loss(&self, loss: f64, other: f64) {
        assert!((loss - other).abs() < 1e-5 * other, "{:?}: losses {loss} and {other}", self.config);
    }
}

/// Checks that two engines have the same losses and gradients, to rounding in f32, for models of several shapes.
pub fn losses_and_gradients_are_those_of(suite: &Suite, other: &Suite) {
    for case in GradientCase::all() {
        let (loss, gradients) = case.loss_and_gradients(suite);
        let (other_loss, others) = case.loss_and_gradients(other);
        let error = gradient_error(&gradients, &others);
        println!("  losses {loss:.7} and {other_loss:.7}; gradients {error:.1e} apart");
        case.check_loss(loss, other_loss);
        assert!(error < GRADIENT_ERROR_MAX, "{:?}: gradients {error:.1e} apart", case.config);
    }
}

/// Twenty steps of preset `117k`.
struct Run {
    config: ModelConfig,
    recipe: Recipe,
}

impl Run {
    fn new(recipe: &Recipe) -> Run {
        let recipe =
            Recipe { batch: 4, micro_batch: 2, learning_rate: 4e-3, warmup_steps: 5, ..recipe.clone() };
        Run { config: ModelConfig::preset("117k").expect("the preset exists"), recipe }
    }

    fn train(&self, suite: &Suite) -> (Trainer, Steps) {
        let Run { config, recipe } = self;
        let mut trainer = suite.fresh(config, recipe);
        let batches = (0..20).map(|step| skewed_sequences(config, 4, 1 + step % 5));
        let steps: Vec<Step> =
            batches.map(|batch| trainer.step(&batch).expect("the batch fits the model")).collect();
        let losses = steps.iter().map(|step| step.loss).collect();
        (trainer, Steps { first_norm: steps[0].gradient_norm, losses })
    }

    /// # Panics
    /// If the steps of two engines differ by more than rounding in f32, or train nothing.
    fn check(&self, steps: &Steps, others: &Steps) {
        let (norm, other_norm) = (steps.first_norm, others.first_norm);
        assert!((norm / other_norm - 1.0).abs() < 1e-5, "norms {norm} and {other_norm}");
        let (losses, other_losses) = (&steps.losses, &others.losses);
        assert_eq!((losses.len(), other_losses.len()), (20, 20));
        let apart =
            losses.iter().zip(other_losses).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
        println!("  from {:.4} to {:.4}, {apart:.1e} apart", losses[0], losses[19]);
        assert!(losses[19] < losses[0] - 0.5, "{losses:?}");
        let bound = match self.recipe.optimiser {
            Optimiser::AdamW => 1e-4,
            Optimiser::Muon => 1e-3,
        };
        assert!(apart < bound, "{losses:?} {other_losses:?}");
    }
}

/// Results of the steps of a [`Run`].
#[derive(Serialize, Deserialize)]
struct Steps {
    /// The first gradient's norm.
    first_norm: f64,
    losses: Vec<f64>,
}

/// Checks that twenty steps of two engines stay close, and that each engine continues from the other's state.
pub fn steps_are_those_of(suite: &Suite, other: &Suite, recipe: &Recipe) {
    let run = Run::new(recipe);
    let ((ours, steps), (theirs, other_steps)) = (run.train(suite), run.train(other));
    run.check(&steps, &other_steps);
    let Run { config, recipe } = &run;

    for (from, to) in [(&ours, other), (&theirs, suite)] {
        let mut continued = to.trainer(config, recipe, &from.weights_flat().unwrap());
        continued.read_state(&mut &state(from)[..]).unwrap();
        assert!(contents(&continued) == contents(from), "the same bytes for the same numbers");
        assert_eq!(continued.steps(), 20);
    }
}
