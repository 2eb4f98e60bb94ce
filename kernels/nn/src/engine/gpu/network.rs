//! The network's constants and weights in a GPU's memory.

use crate::{
    ActivationCheckpointing, Device, DeviceError, ModelError, Precision,
    engine::stacks::{Stack, stacks},
    estimate::logits_rows,
    gpu::{Array, Gpu, Result, View},
    layers::{
        attention::Shape,
        rope::{Angles, gpu::GpuAngles},
    },
    slices::take,
};
use model::ModelConfig;

/// Constants of the passes.
pub(super) struct Network {
    pub gpu: Gpu,
    pub config: ModelConfig,
    pub shape: Shape,
    pub angles: GpuAngles,
    pub precision: Precision,
    /// Maximum number of rows whose logits are in memory at once.
    pub logits_rows: usize,
}

/// Weights of a stack.
pub(super) struct Weight {
    pub shape: [usize; 2],
    /// The agreed weights, in f32.
    pub values: Array,
    /// Copy of the weights for products, if those are not in f32.
    pub copy: Option<Array>,
}

impl Weight {
    /// Returns the operand for products.
    pub fn view(&self) -> View<'_> {
        View::new(self.copy.as_ref().unwrap_or(&self.values), self.shape)
    }
}

impl Network {
    pub fn open(config: &ModelConfig, device: Device, precision: Precision) -> Result<Network, ModelError> {
        let gpu = Gpu::open(device)?;
        if !gpu.supports(precision) {
            return Err(DeviceError::NoSuchPrecision { device }.into());
        }
        let angles = Angles::new(config.seq_len, config.head_width(), config.rope_theta);
        Ok(Network {
            angles: gpu.upload_angles(&angles).map_err(|error| error.on(device))?,
            shape: config.into(),
            precision,
            logits_rows: logits_rows(device.name, precision.bytes(), config.vocab, usize::MAX),
            config: config.clone(),
            gpu,
        })
    }

    pub fn checkpointing(&self) -> ActivationCheckpointing {
        self.gpu.device().activation_checkpointing
    }

    /// Allocates weights without writing them.
    pub fn weights(&self) -> Result<Vec<Weight>> {
        let make = |stack: Stack| {
            // A norm's gain is not an operand of a product.
            let copied = stack.shape[0] > 1 && self.precision != Precision::F32;
            Ok(Weight {
                shape: stack.shape,
                values: self.gpu.array(stack.len(), Precision::F32)?,
                copy: if copied { Some(self.gpu.array(stack.len(), self.precision)?) } else { None },
            })
        };
        stacks(&self.config).into_iter().map(make).collect()
    }

    /// Overwrites these weights with `flat`.
    pub fn overwrite(&self, weights: &[Weight], flat: &[f32]) -> Result {
        let mut rest = flat;
        weights.iter().try_for_each(|Weight { values, .. }| {
            self.gpu.overwrite(values, take(&mut rest, values.len()))
        })?;
        self.copy(weights)
    }

    /// Rounds these weights into their copies for products.
    pub fn copy(&self, weights: &[Weight]) -> Result {
        weights.iter().try_for_each(|Weight { values, copy, .. }| {
            copy.as_ref().map_or(Ok(()), |copy| self.gpu.cast(values, copy))
        })
    }
}
