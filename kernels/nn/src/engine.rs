//! The engines: what holds weights and moments, and computes with them.
//!
//! | engine | where | how |
//! |---|---|---|
//! | fused, CPU | [`cpu`] | kernels over slices, without autograd; the default |
//! | fused, GPU | `gpu` | the same over buffers of a GPU, in CubeCL (features `vulkan`, `cuda`) |
//! | data parallel | `ranks` | one of these per rank, each with a part of the micro-batches and of the optimiser |
//! | Burn | crate `mettle-nn-burn` | tensor operations and autograd: the oracle of the tests, and the default on CUDA |
//!
//! Engines may differ in the last bits. [`conformance`](crate::conformance) is the suite that all must pass.

pub mod cpu;
#[cfg(feature = "gpu")]
mod gpu;
mod ranks;
mod stacks;

use crate::{Device, DeviceName, EngineKind, MemoryEstimate, ModelError, StepParams, device::DeviceError};
use model::{ModelConfig, Optimiser, Recipe};
use std::borrow::Cow;

pub use crate::batch::Batch;
pub use ranks::{Connect, DataParallel, OpenLocal, serve};

/// Values on their way from a device, block by block. A block may be of any length.
pub type Blocks<'a> = Box<dyn Iterator<Item = Result<Cow<'a, [f32]>, ModelError>> + 'a>;

/// Holds one model on one device, and computes its losses, gradients and steps.
///
/// [`Trainer`](crate::Trainer) and [`Evaluator`](crate::Evaluator) check what they hand over: sequences have
/// `seq_len + 1` tokens of the vocabulary.
pub trait Engine: Send + Sync {
    /// Replaces the weights by `flat`, in schema order. The moments stay. The caller has checked the length.
    ///
    /// # Errors
    /// If the device fails.
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError>;

    /// The weights: together, the blocks are the flat parameter vector in schema order.
    fn weights(&self) -> Blocks<'_>;

    /// Calls `edit` with each tensor's index and values in schema order, and puts what it changed on the device.
    ///
    /// # Errors
    /// If the device fails. `edit` may have been called for all tensors; losses fail until another edit succeeds.
    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError>;

    /// The loss of each token `[N]`, in nats, sequence by sequence.
    ///
    /// # Errors
    /// If the device fails.
    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError>;

    /// The logits `[rows, V]` after the first `rows` of `seq_len` tokens.
    ///
    /// # Errors
    /// If the device fails.
    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError>;

    /// Computes the gradient of the mean loss of `sequences` and keeps it for [`step`](Self::step). A batch is added
    /// up in micro-batches of the recipe's size.
    ///
    /// # Errors
    /// If the device fails or runs out of memory, or the engine was opened for evaluation.
    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError>;

    /// Steps weights and moments along the gradient that [`gradients`](Self::gradients) left.
    ///
    /// # Errors
    /// If the device fails, or the engine was opened for evaluation.
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError>;

    /// The optimiser's moments, tensor by tensor in schema order: mean, then square where there is one
    /// ([`optim::moment_count`](crate::optim::moment_count)). Nothing where the engine was opened for evaluation.
    fn moments(&self) -> Blocks<'_>;

    /// Replaces the moments by what [`moments`](Self::moments) gave. The caller has checked the length.
    ///
    /// # Errors
    /// If the device fails, or the engine was opened for evaluation.
    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError>;

    /// Computes the gradient of `Σ losses / rows` of one micro-batch from zero, instead of the one that
    /// [`gradients`](Self::gradients) left. An engine that was opened for evaluation does it too: where several ranks
    /// train as one, [`DataParallel`] has the optimiser.
    ///
    /// # Errors
    /// If the device fails, or this engine trains alone only.
    fn micro_batch(&mut self, _sequences: &[&[u32]], _rows: usize) -> Result<MicroBatch<'_>, ModelError> {
        Err(ModelError::NoRanks)
    }

    /// Calls `change` with the weights as one vector in schema order, and puts what it changed on the device.
    ///
    /// # Errors
    /// If the device or `change` fails. The weights may be partly changed then.
    fn update(
        &mut self,
        change: &mut dyn FnMut(&mut [f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut flat = Vec::new();
        for block in self.weights() {
            flat.extend_from_slice(&block?);
        }
        change(&mut flat)?;
        self.load(&flat)
    }

    /// The device's memory, where the engine can tell.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }
}

/// A batch before its step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradients {
    /// Mean loss, in nats per token.
    pub loss: f64,
    /// Euclidean length of the whole gradient.
    pub norm: f64,
}

/// One micro-batch, forward and backward.
#[derive(Clone, Debug, PartialEq)]
pub struct MicroBatch<'a> {
    /// Of each token, in nats.
    pub losses: Vec<f64>,
    /// Of the flat parameter vector.
    pub gradient: Cow<'a, [f32]>,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In use by this process.
    pub used: u64,
    /// Reserved by this process. It never shrinks, so it is also the peak.
    pub reserved: u64,
}

/// Opens the fused engine of `device` with the weights `flat`: to train by `recipe`, or to evaluate without one.
/// The crate `mettle-engines` opens Burn's as well.
///
/// # Errors
/// If the configuration or the recipe is invalid, the device is absent or lacks something, `flat` has another length,
/// or free memory is below the estimate.
pub fn open(
    device: Device,
    config: &ModelConfig,
    recipe: Option<&Recipe>,
    flat: &[f32],
) -> Result<Box<dyn Engine>, ModelError> {
    check(device, config, recipe, flat)?;
    match (device.engine(), device.name) {
        (EngineKind::Burn, _) => Err(DeviceError::WithoutBurn.into()),
        (EngineKind::Fused, DeviceName::Cpu) => Ok(Box::new(cpu::CpuEngine::new(config, recipe, flat))),
        #[cfg(feature = "gpu")]
        (EngineKind::Fused, _) => Ok(Box::new(gpu::GpuEngine::new(device, config, recipe, flat)?)),
        #[cfg(not(feature = "gpu"))]
        (EngineKind::Fused, _) => Err(DeviceError::WithoutGpu { device }.into()),
    }
}

/// The checks before any engine is opened.
///
/// # Errors
/// As [`open`].
pub fn check(
    device: Device,
    config: &ModelConfig,
    recipe: Option<&Recipe>,
    flat: &[f32],
) -> Result<(), ModelError> {
    config.validate()?;
    check_len(config, flat)?;
    device.check()?;
    let Some(recipe) = recipe else { return Ok(()) };
    recipe.validate()?;
    if recipe.optimiser == Optimiser::Muon && !device.has_muon() {
        return Err(DeviceError::NoMuon.into());
    }
    Ok(MemoryEstimate::check(config, recipe, device, device.free_memory())?)
}

pub(crate) fn check_len(config: &ModelConfig, flat: &[f32]) -> Result<(), ModelError> {
    match (config.parameters(), flat.len()) {
        (expected, got) if expected == got => Ok(()),
        (expected, got) => Err(ModelError::FlatLength { expected, got }),
    }
}

/// Takes the first `len` values off `rest`.
///
/// # Panics
/// If there are fewer.
pub fn take<'a>(rest: &mut &'a [f32], len: usize) -> &'a [f32] {
    rest.split_off(..len).expect("the lengths of the parts add up to the whole")
}

pub(crate) fn take_mut<'a>(rest: &mut &'a mut [f32], len: usize) -> &'a mut [f32] {
    rest.split_off_mut(..len).expect("the lengths of the parts add up to the whole")
}
