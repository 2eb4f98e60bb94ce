#![doc = include_str!("../README.md")]

mod batch;
mod config;
mod device;
mod evaluate;
mod init;
mod llama;
mod loss;
mod memory;
mod optimiser;
mod recipe;
mod train;

pub use batch::BatchError;
pub use config::{ConfigError, ModelConfig};
pub use device::{DeviceChoice, DeviceError};
pub use evaluate::{Evaluator, Undo};
pub use init::init_flat;
pub use optimiser::StateError;
pub use recipe::{Recipe, RecipeError};
pub use train::{Step, Trainer};

/// Why a model cannot be made, trained or evaluated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Batch(#[from] BatchError),
    #[error(transparent)]
    State(#[from] StateError),
    #[error("a model of this shape has {expected} values, but {got} were given")]
    FlatLength { expected: usize, got: usize },
    #[error("the update has {got} tensors, but this model has {expected}")]
    UpdateTensors { expected: usize, got: usize },
    #[error("the update's positions in {tensor} are out of order or outside it")]
    UpdatePositions { tensor: String },
    #[error("training has diverged: loss {loss}, gradient norm {gradient_norm}; the step was not taken")]
    NotFinite { loss: f64, gradient_norm: f64 },
}
