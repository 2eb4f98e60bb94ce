//! The engines, which hold weights and moments and compute with them.
//!
//! | engine | where | how |
//! |---|---|---|
//! | fused, CPU | [`cpu`] | kernels over slices, without autograd; the default |
//! | fused, GPU | `gpu` | the same over buffers of a GPU, in CubeCL (features `vulkan`, `cuda`) |
//! | data parallel | `ranks` | one of these per rank, each with a part of the micro-batches and of the optimiser |
//! | Burn | crate `mettle-nn-burn` | tensor operations and autograd: the oracle of the tests |
//!
//! Engines may differ in the last bits. [`conformance`](crate::conformance) is the suite that all must pass.

pub mod cpu;
#[cfg(feature = "gpu")]
pub(crate) mod gpu;
mod ranks;
mod stacks;
mod traits;

pub use crate::{
    batch::Batch,
    memory::DeviceMemory,
    slices::{parts_of, take},
};
pub use ranks::{Connect, DataParallel, OpenLocal, ROUND, serve};
pub use traits::{Blocks, Engine, GpuExchange, Gradients, KvCache, RankEngine, Read, ReadPart, Reduce};

use crate::{
    Device, DeviceName, EngineKind, MemoryEstimate, ModelError, device::DeviceError, slices::check_len,
};
use model::{ModelConfig, Optimiser, Recipe};

/// Opens the fused engine of `device` with the weights `flat`, for training with `recipe`, or without one for
/// evaluation. The crate `mettle-engines` opens Burn's as well.
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
        (EngineKind::Fused, _) => {
            let purpose = recipe.map_or(gpu::Purpose::Evaluation, gpu::Purpose::Training);
            Ok(Box::new(gpu::GpuEngine::new(device, config, purpose, flat)?))
        }
        #[cfg(not(feature = "gpu"))]
        (EngineKind::Fused, _) => Err(DeviceError::WithoutGpu { device }.into()),
    }
}

/// Opens the fused engine of `device` for one of `ranks`, with the weights `flat`.
/// The crate `mettle-engines` opens Burn's as well.
///
/// # Errors
/// If configuration or recipe are invalid, the device is absent or lacks something, or `flat` has another length.
pub fn open_rank(
    device: Device,
    ranks: usize,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
) -> Result<Box<dyn RankEngine>, ModelError> {
    recipe.validate()?;
    check(device, config, None, flat)?;
    match (device.engine(), device.name) {
        (EngineKind::Burn, _) => Err(DeviceError::WithoutBurn.into()),
        (EngineKind::Fused, DeviceName::Cpu) => Ok(Box::new(cpu::CpuEngine::new(config, None, flat))),
        #[cfg(feature = "gpu")]
        (EngineKind::Fused, _) => {
            Ok(Box::new(gpu::GpuEngine::new(device, config, gpu::Purpose::Rank { recipe, ranks }, flat)?))
        }
        #[cfg(not(feature = "gpu"))]
        (EngineKind::Fused, _) => {
            let _ = ranks;
            Err(DeviceError::WithoutGpu { device }.into())
        }
    }
}

/// Checks the arguments before an engine is opened.
///
/// # Errors
/// Same as [`open`].
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
