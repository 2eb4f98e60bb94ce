#![doc = include_str!("../README.md")]
#![allow(non_snake_case, reason = "a tensor's name ends in its shape: see llama.rs")]

mod head;
mod llama;
mod optim;

use burn::tensor::{Device as BurnDevice, Int, Tensor, TensorData};
use llama::{Constants, Llama};
use model::{ModelConfig, Optimiser, Recipe};
use nn::{
    Blocks, Device, DeviceError, DeviceName, Engine, Gradients, ModelError, StepParams,
    engine::{self, Batch, MicroBatch, take},
    optim::{optimiser_of, weight_decay},
};
use optim::Moments;
use std::borrow::Cow;

/// Tokens that are evaluated at once.
const TOKENS_MAX: usize = 2048;

/// A model in Burn's tensors.
pub struct BurnEngine {
    config: ModelConfig,
    name: Device,
    device: BurnDevice,
    constants: Constants,
    model: Llama,
    training: Option<Training>,
}

struct Training {
    recipe: Recipe,
    gradients: Vec<Tensor<2>>,
    moments: Vec<Moments>,
}

/// Opens Burn's engine on `device`, `cpu` or `cuda`, with the weights `flat`: to train by `recipe`, or to evaluate
/// without one.
///
/// # Errors
/// As [`engine::check`]; on CUDA also if this crate was built without it.
pub fn open(
    device: Device,
    config: &ModelConfig,
    recipe: Option<&Recipe>,
    flat: &[f32],
) -> Result<Box<dyn Engine>, ModelError> {
    engine::check(device, config, recipe, flat)?;
    let burn_device = match device.name {
        DeviceName::Cpu => {
            nn::keep_freed_memory();
            BurnDevice::flex()
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(index) => BurnDevice::cuda(usize::from(index)),
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda(_) => return Err(DeviceError::WithoutGpu { device }.into()),
        DeviceName::Vulkan => return Err(DeviceError::NotBurns { device }.into()),
    };
    let model = Llama::load(config, flat, &burn_device);
    let training = recipe.map(|recipe| Training {
        gradients: Vec::new(),
        moments: model
            .tensors
            .iter()
            .enumerate()
            .map(|(index, tensor)| Moments {
                mean: tensor.zeros_like(),
                square: match optimiser_of(recipe.optimiser, index, tensor.dims()) {
                    Optimiser::AdamW => Some(tensor.zeros_like()),
                    Optimiser::Muon => None,
                },
            })
            .collect(),
        recipe: recipe.clone(),
    });
    Ok(Box::new(BurnEngine {
        constants: Constants::new(config, &burn_device),
        config: config.clone(),
        name: device,
        device: burn_device,
        model,
        training,
    }))
}

impl BurnEngine {
    /// The values of tensors, read from the device one by one.
    fn blocks<'a>(&self, tensors: impl Iterator<Item = &'a Tensor<2>> + 'a) -> Blocks<'a> {
        let device = self.name;
        Box::new(tensors.map(move |tensor| {
            let data = tensor.try_to_data().map_err(|error| failed(device, &error))?;
            Ok(Cow::Owned(data.try_into_vec::<f32>().map_err(|error| failed(device, &error))?))
        }))
    }

    /// Hidden states `[N, D]` after the last norm.
    fn hidden(&self, tokens: &[u32]) -> Tensor<2> {
        let shape = [tokens.len() / self.config.seq_len, self.config.seq_len];
        self.model.hidden(ids(tokens, shape, &self.device), &self.constants)
    }
}

impl Engine for BurnEngine {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.model = Llama::load(&self.config, flat, &self.device);
        Ok(())
    }

    fn weights(&self) -> Blocks<'_> {
        self.blocks(self.model.tensors.iter())
    }

    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        let device = self.name;
        for (index, tensor) in self.model.tensors.iter_mut().enumerate() {
            let mut data = tensor.try_to_data().map_err(|error| failed(device, &error))?;
            edit(index, data.as_mut_slice().map_err(|error| failed(device, &error))?);
            *tensor = Tensor::from_data(data, &self.device);
        }
        Ok(())
    }

    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        let mut losses = Vec::new();
        for batch in sequences.chunks((TOKENS_MAX / self.config.seq_len).max(1)) {
            let Batch { tokens, targets } = Batch::new(batch);
            let chunks = head::losses(self.hidden(&tokens), self.model.embedding_VD(), &targets);
            losses.extend(read(self.name, chunks)?);
        }
        Ok(losses)
    }

    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        let hidden_nD = self.hidden(tokens).narrow(0, 0, rows);
        let logits_nV = hidden_nD.matmul(self.model.embedding_VD().clone().transpose());
        let data = logits_nV.try_into_data().map_err(|error| failed(self.name, &error))?;
        data.try_into_vec::<f32>().map_err(|error| failed(self.name, &error))
    }

    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        let BurnEngine { config, name, device, constants, model, training } = self;
        let Training { recipe, gradients, .. } = training.as_mut().ok_or(ModelError::NotForTraining)?;
        gradients.clear();
        let rows = sequences.len() * config.seq_len;
        let mut losses = Vec::new();
        for batch in sequences.chunks(recipe.micro_batch) {
            let (micro_batch_losses, micro_batch) =
                micro_batch_gradients(*name, config, device, constants, model, batch, rows)?;
            losses.extend(micro_batch_losses);
            *gradients = match gradients.is_empty() {
                true => micro_batch,
                false => {
                    std::iter::zip(gradients.drain(..), micro_batch).map(|(sum, part)| sum + part).collect()
                }
            };
            finish_if_profiled(*name, device)?;
        }
        let _norm = tracing::trace_span!(target: "profile", "norm").entered();
        // Squares are summed per row on the device, then in `f64` and in order: a full sum there may vary between
        // runs.
        let squares =
            gradients.iter().map(|gradient| gradient.clone().square().sum_dim(1).reshape([-1])).collect();
        let norm = read(*name, squares)?.into_iter().sum::<f64>().sqrt();
        Ok(Gradients { loss: read(*name, losses)?.into_iter().sum::<f64>() / rows as f64, norm })
    }

    fn micro_batch(&mut self, sequences: &[&[u32]], rows: usize) -> Result<MicroBatch<'_>, ModelError> {
        let BurnEngine { name, config, device, constants, model, .. } = &*self;
        let (losses, gradients) =
            micro_batch_gradients(*name, config, device, constants, model, sequences, rows)?;
        let mut gradient = Vec::with_capacity(self.config.parameters());
        for block in self.blocks(gradients.iter()) {
            gradient.extend_from_slice(&block?);
        }
        Ok(MicroBatch { losses: read(self.name, losses)?, gradient: Cow::Owned(gradient) })
    }

    #[tracing::instrument(name = "optimiser", target = "profile", level = "trace", skip_all)]
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let Training { recipe, gradients, moments } =
            self.training.as_mut().ok_or(ModelError::NotForTraining)?;
        for ((weights, moments), gradient) in
            self.model.tensors.iter_mut().zip(moments).zip(gradients.drain(..))
        {
            let decay = weight_decay(recipe, weights.dims());
            moments.step(recipe, params, decay, weights, gradient);
        }
        finish_if_profiled(self.name, &self.device)
    }

    fn moments(&self) -> Blocks<'_> {
        let moments = self.training.iter().flat_map(|training| &training.moments);
        self.blocks(moments.flat_map(|Moments { mean, square }| [Some(mean), square.as_ref()]).flatten())
    }

    fn load_moments(&mut self, values: &[f32]) -> Result<(), ModelError> {
        let training = self.training.as_mut().ok_or(ModelError::NotForTraining)?;
        let moments = training.moments.iter_mut();
        let tensors = moments.flat_map(|Moments { mean, square }| [Some(mean), square.as_mut()]).flatten();
        let mut rest = values;
        for tensor in tensors {
            let values = take(&mut rest, tensor.shape().num_elements()).to_vec();
            *tensor = Tensor::from_data(TensorData::new(values, tensor.dims()), &self.device);
        }
        Ok(())
    }
}

/// The losses of a micro-batch's tokens, and the gradient of `Σ losses / rows`, tensor by tensor.
fn micro_batch_gradients(
    name: Device,
    config: &ModelConfig,
    device: &BurnDevice,
    constants: &Constants,
    model: &Llama,
    batch: &[&[u32]],
    rows: usize,
) -> Result<(Vec<Tensor<1>>, Vec<Tensor<2>>), ModelError> {
    let Batch { tokens, targets } = Batch::new(batch);
    let shape = [batch.len(), config.seq_len];
    let forward = tracing::trace_span!(target: "profile", "forward").entered();
    let tracked = model.tracked();
    let hidden = tracked.hidden(ids(&tokens, shape, device), constants);
    finish_if_profiled(name, device)?;
    drop(forward);

    // The vocabulary, forward and backward, outside of autograd.
    let loss = tracing::trace_span!(target: "profile", "loss").entered();
    let inner = hidden.clone().inner();
    let head = head::losses_and_gradients(inner, model.embedding_VD(), &targets, 1.0 / rows as f32);
    finish_if_profiled(name, device)?;
    drop(loss);

    // The rest. The value of this sum means nothing; its gradient at `hidden` is the head's.
    let _backward = tracing::trace_span!(target: "profile", "backward").entered();
    let mut grads = (hidden * head.grad_hidden_ND.autodiff()).sum().backward();
    let mut grad_head = Some(head.grad_embedding_VD);
    let gradients = tracked.tensors.iter().map(|tensor| {
        let gradient = tensor.grad_remove(&mut grads).expect("every weight takes part in the loss");
        // The first tensor is the embedding, which is also the output's matrix.
        match grad_head.take() {
            Some(head) => gradient + head,
            None => gradient,
        }
    });
    let gradients = gradients.collect();
    finish_if_profiled(name, device)?;
    Ok((head.losses, gradients))
}

/// Waits for the device if a profile is taken, so that a span ends with the work that it queued.
fn finish_if_profiled(name: Device, device: &BurnDevice) -> Result<(), ModelError> {
    if tracing::span_enabled!(target: "profile", tracing::Level::TRACE) {
        device.sync().map_err(|error| failed(name, &error))?;
    }
    Ok(())
}

/// Token ids as a tensor.
fn ids<const RANK: usize>(ids: &[u32], shape: [usize; RANK], device: &BurnDevice) -> Tensor<RANK, Int> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    Tensor::from_data(TensorData::new(ids, shape), device)
}

/// Values of the device's tensors, one after the other. Waits for the device.
fn read(device: Device, tensors: Vec<Tensor<1>>) -> Result<Vec<f64>, ModelError> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let data = Tensor::cat(tensors, 0).try_into_data().map_err(|error| failed(device, &error))?;
    let values = data.as_slice::<f32>().map_err(|error| failed(device, &error))?;
    Ok(values.iter().map(|&value| f64::from(value)).collect())
}

fn failed(device: Device, error: &impl std::fmt::Debug) -> ModelError {
    DeviceError::Failed { device, why: format!("{error:?}") }.into()
}
