#![doc = include_str!("../README.md")]

mod batch;
mod device;
mod evaluate;
#[cfg(feature = "gpu")]
mod gpu;
mod host;
pub mod hugging_face;
mod llama;
mod loss;
mod memory;
mod muon;
mod optimiser;
mod safetensors;
mod text;
mod train;

pub use batch::BatchError;
pub use device::{ActivationCheckpointing, DeviceChoice, DeviceError, Gpu, GpuInfo, GpuSettings, Precision};
pub use evaluate::{Evaluator, Undo};
pub use memory::{Advice, MemoryError, MemoryEstimate, available_memory};
pub use optimiser::StateError;
pub use safetensors::{Dtype, FormatError};
pub use text::{Likelihood, Sampling, SamplingError};
pub use train::{Step, Trainer};

use model::{ConfigError, RecipeError};

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
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("the continuation has {tokens} tokens, but this model sees {seen} at once")]
    ContinuationTooLong { tokens: usize, seen: usize },
    #[error("a model of this shape has {expected} values, but {got} were given")]
    FlatLength { expected: usize, got: usize },
    #[error("the update has {got} tensors, but this model has {expected}")]
    UpdateTensors { expected: usize, got: usize },
    #[error("the update's positions in {tensor} are out of order or outside it")]
    UpdatePositions { tensor: String },
    #[error("training has diverged: loss {loss}, gradient norm {gradient_norm}; the step was not taken")]
    NotFinite { loss: f64, gradient_norm: f64 },
    #[error("training has diverged: loss {loss} is above the bound of {loss_max}; the step was not taken")]
    Exploded { loss: f64, gradient_norm: f64, loss_max: f64 },
}
