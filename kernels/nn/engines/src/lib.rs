#![doc = include_str!("../README.md")]

use model::{ModelConfig, Recipe};
use nn::{Device, Engine, Evaluator, ModelError, Trainer};

/// Opens the engine that `device` names: to train by `recipe`, or to evaluate without one.
///
/// # Errors
/// As [`nn::engine::open`], or if the program was built without the engine.
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

/// A trainer on the engine that `device` names.
///
/// # Errors
/// As [`open`].
pub fn trainer(
    device: Device,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
) -> Result<Trainer, ModelError> {
    Trainer::from_engine(config, recipe, open(device, config, Some(recipe), flat)?)
}

/// An evaluator on the engine that `device` names.
///
/// # Errors
/// As [`open`].
pub fn evaluator(device: Device, config: &ModelConfig, flat: &[f32]) -> Result<Evaluator, ModelError> {
    Ok(Evaluator::from_engine(config, open(device, config, None, flat)?))
}

/// The engine of one of several ranks that train together, without an optimiser of its own.
///
/// # Errors
/// As [`open`], or if the engine trains alone only.
pub fn rank(device: Device, config: &ModelConfig, flat: &[f32]) -> Result<Box<dyn Engine>, ModelError> {
    if device.engine() == nn::EngineKind::Fused && device.name != nn::DeviceName::Cpu {
        return Err(ModelError::NoRanks);
    }
    open(device, config, None, flat)
}
