#![doc = include_str!("../README.md")]

use model::{ModelConfig, Recipe};
use nn::{Device, Engine, Evaluator, ModelError, RankEngine, Trainer};

/// Opens the engine that `device` names, for training with `recipe`, or without one for evaluation.
///
/// # Errors
/// Same as [`nn::engine::open`], or if the program was built without the engine.
pub fn open(
    device: Device,
    config: &ModelConfig,
    recipe: Option<&Recipe>,
    flat: &[f32],
) -> Result<Box<dyn Engine>, ModelError> {
    #[cfg(feature = "cuda")]
    if device.engine() == nn::EngineKind::Burn {
        return nn_burn::open(device, config, recipe, flat);
    }
    nn::engine::open(device, config, recipe, flat)
}

/// Opens a trainer on the engine that `device` names.
///
/// # Errors
/// Same as [`open`].
pub fn trainer(
    device: Device,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
) -> Result<Trainer, ModelError> {
    Trainer::from_engine(config, recipe, open(device, config, Some(recipe), flat)?)
}

/// Opens an evaluator on the engine that `device` names.
///
/// # Errors
/// Same as [`open`].
pub fn evaluator(device: Device, config: &ModelConfig, flat: &[f32]) -> Result<Evaluator, ModelError> {
    Ok(Evaluator::from_engine(config, open(device, config, None, flat)?))
}

/// Opens the engine of one of `ranks` that train together. It has no optimiser of its own.
///
/// # Errors
/// Same as [`nn::engine::open_rank`], or if the program was built without the engine.
pub fn rank(
    device: Device,
    ranks: usize,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
) -> Result<Box<dyn RankEngine>, ModelError> {
    #[cfg(feature = "cuda")]
    if device.engine() == nn::EngineKind::Burn {
        return nn_burn::open_rank(device, config, recipe, flat);
    }
    nn::engine::open_rank(device, ranks, config, recipe, flat)
}

/// Returns sequences of `seq_len + 1` tokens for measurements: evenly spread over the vocabulary, and the same each
/// time.
pub fn random_sequences(config: &ModelConfig, count: usize) -> Vec<Vec<u32>> {
    let mut state = 1u64;
    let mut token = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % config.vocab as u32
    };
    (0..count).map(|_| (0..=config.seq_len).map(|_| token()).collect()).collect()
}
