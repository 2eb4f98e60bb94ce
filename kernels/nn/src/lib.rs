#![doc = include_str!("../README.md")]
#![cfg_attr(
    feature = "gpu",
    allow(
        clippy::assign_op_pattern,
        clippy::collapsible_if,
        clippy::duplicate_underscore_argument,
        clippy::manual_div_ceil,
        clippy::needless_range_loop,
        clippy::too_many_arguments,
        reason = "a kernel's arguments are its buffers, and its forms those that CubeCL expands"
    )
)]

mod batch;
pub mod collective;
pub mod conformance;
mod device;
mod driver;
pub mod engine;
mod estimate;
mod evaluate;
mod generate;
#[cfg(feature = "gpu")]
pub mod gpu;
pub mod hugging_face;
pub mod layers;
mod memory;
pub mod nccl;
pub mod optim;
mod precision;
mod probe;
mod safetensors;
mod session;
mod slices;
mod train;

pub use batch::BatchError;
pub use device::{
    ActivationCheckpointing, Device, DeviceError, DeviceName, DeviceSetting, EngineKind, KernelSet,
};
pub use driver::GpuInfo;
pub use engine::{Blocks, Engine, Gradients, RankEngine};
pub use estimate::{Advice, MemoryError, MemoryEstimate, RankMemoryError};
pub use evaluate::{Evaluator, Undo};
pub use generate::{Likelihood, LogProbabilities, Sampler, Sampling, SamplingError};
pub use memory::{DeviceMemory, available_memory, keep_freed_memory};
pub use optim::{StepParams, state::StateError};
pub use precision::Precision;
pub use safetensors::FormatError;
pub use session::Session;
pub use train::{Step, Trainer};

use model::{ConfigError, RecipeError};

/// Reason why a model cannot be created, trained or evaluated.
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
    RankMemory(#[from] RankMemoryError),
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    #[error("the continuation has {tokens} tokens, but this model reads {seen} at once")]
    ContinuationTooLong { tokens: usize, seen: usize },
    #[error("a model of this shape has {expected} parameters, but {got} were given")]
    FlatLength { expected: usize, got: usize },
    #[error("the update has {got} tensors, but this model has {expected}")]
    UpdateTensors { expected: usize, got: usize },
    #[error("the update's positions in {tensor} are out of order or out of bounds")]
    UpdatePositions { tensor: String },
    #[error("this engine has no cache of keys and values")]
    NoCache,
    #[error("this engine was opened for evaluation: it has no optimiser")]
    NotForTraining,
    #[error("the training command failed: {why}")]
    Command { why: String },
    #[error("the ranks that train together failed: {why}")]
    Ranks { why: String },
    #[error("training has diverged: loss {loss}, gradient norm {gradient_norm}; the step was not taken")]
    NotFinite { loss: f64, gradient_norm: f64 },
    #[error("training has diverged: loss {loss} is above the bound of {loss_max}; the step was not taken")]
    Exploded { loss: f64, gradient_norm: f64, loss_max: f64 },
}
