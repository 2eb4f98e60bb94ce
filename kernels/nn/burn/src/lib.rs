#![cfg_attr(feature = "burn", doc = include_str!("../README.md"))]
#![cfg(feature = "burn")]
#![allow(non_snake_case, reason = "a tensor's name ends in its shape: see llama.rs")]

mod head;
mod llama;
mod optim;

use burn::tensor::{Device as BurnDevice, Int, Tensor, TensorData};
use llama::{Constants, Llama};
use model::{ModelConfig, Optimiser, Recipe};
use nn::{
    Blocks, Device, DeviceError, DeviceName, Engine, Gradients, ModelError, RankEngine, StepParams,
    engine::{self, Batch, Reduce, parts_of, take},
    optim::{optimiser_of, weight_decay},
};
use optim::Moments;
use std::{borrow::Cow, ops::Range};

/// Maximum number of tokens that are evaluated at once.
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
    /// `None` for a rank, whose optimiser is on the host.
    moments: Option<Vec<Moments>>,
}

/// Opens Burn's engine on `device` (`cpu` or `cuda`) with the weights `flat`, for training with `recipe`, or without
/// one for evaluation.
///
/// # Errors
/// Same as [`engine::check`]; on CUDA also if this crate was built without it.
pub fn open(
    device: Device,
    config: &ModelConfig,
    recipe: Option<&Recipe>,
    flat: &[f32],
) -> Result<Box<dyn Engine>, ModelError> {
    engine::check(device, config, recipe, flat)?;
    let moments = |model: &Llama, recipe: &Recipe| {
        let of = |(index, tensor): (usize, &Tensor<2>)| Moments {
            mean: tensor.zeros_like(),
            square: match optimiser_of(recipe.optimiser, index, tensor.dims()) {
                Optimiser::AdamW => Some(tensor.zeros_like()),
                Optimiser::Muon => None,
            },
        };
        Some(model.tensors.iter().enumerate().map(of).collect())
    };
    Ok(Box::new(BurnEngine::load(device, config, recipe, &moments, flat)?))
}

/// Opens Burn's engine for one of several ranks.
///
/// # Errors
/// Same as [`open`], or if the recipe is invalid.
pub fn open_rank(
    device: Device,
    config: &ModelConfig,
    recipe: &Recipe,
    flat: &[f32],
) -> Result<Box<dyn RankEngine>, ModelError> {
    recipe.validate()?;
    engine::check(device, config, None, flat)?;
    Ok(Box::new(BurnEngine::load(device, config, Some(recipe), &|_, _| None, flat)?))
}

/// Creates the moments of a trainer.
type MakeMoments<'a> = dyn Fn(&Llama, &Recipe) -> Option<Vec<Moments>> + 'a;

fn find(device: Device) -> Result<BurnDevice, ModelError> {
    Ok(match device.name {
        DeviceName::Cpu => {
            nn::keep_freed_memory();
            BurnDevice::flex()
        }
        #[cfg(feature = "cuda")]
        DeviceName::Cuda(index) => BurnDevice::cuda(usize::from(index)),
        #[cfg(not(feature = "cuda"))]
        DeviceName::Cuda(_) => return Err(DeviceError::WithoutGpu { device }.into()),
        DeviceName::Vulkan(_) => return Err(DeviceError::NotBurns { device }.into()),
    })
}

impl BurnEngine {
    fn load(
        name: Device,
        config: &ModelConfig,
        recipe: Option<&Recipe>,
        moments: &MakeMoments<'_>,
        flat: &[f32],
    ) -> Result<BurnEngine, ModelError> {
        let device = find(name)?;
        let model = Llama::load(config, flat, &device);
        let training = recipe.map(|recipe| Training {
            gradients: Vec::new(),
            moments: moments(&model, recipe),
            recipe: recipe.clone(),
        });
        let constants = Constants::new(config, &device);
        Ok(BurnEngine { constants, config: config.clone(), name, device, model, training })
    }

    /// Returns the losses of micro-batches and leaves the gradient of `Σ losses / rows` in `training`.
    fn losses_and_gradients(
        &mut self,
        sequences: &[&[u32]],
        rows: usize,
    ) -> Result<Vec<Tensor<1>>, ModelError> {
        let BurnEngine { config, name, device, constants, model, training } = self;
        let Training { recipe, gradients, .. } = training.as_mut().ok_or(ModelError::NotForTraining)?;
        gradients.clear();
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
        Ok(losses)
    }

    /// Appends a part of the flat vector that these tensors form.
    fn read_part(
        &self,
        tensors: &[Tensor<2>],
        range: Range<usize>,
        values: &mut Vec<f32>,
    ) -> Result<(), ModelError> {
        for (index, part) in parts_of(range, tensors.iter().map(|tensor| tensor.shape().num_elements())) {
            let flat = tensors[index].clone().reshape([-1]).slice([part]);
            let data = flat.try_into_data().map_err(|error| failed(self.name, &error))?;
            values.extend_from_slice(data.as_slice::<f32>().map_err(|error| failed(self.name, &error))?);
        }
        Ok(())
    }

    /// Returns the values of tensors, read from the device one by one.
    fn blocks<'a>(&self, tensors: impl Iterator<Item = &'a Tensor<2>> + 'a) -> Blocks<'a> {
        let device = self.name;
        Box::new(tensors.map(move |tensor| {
            let data = tensor.try_to_data().map_err(|error| failed(device, &error))?;
            Ok(Cow::Owned(data.try_into_vec::<f32>().map_err(|error| failed(device, &error))?))
        }))
    }

    /// Returns the hidden states `[N, D]` after the last norm.
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
        let rows = sequences.len() * self.config.seq_len;
        let losses = self.losses_and_gradients(sequences, rows)?;
        let BurnEngine { name, training, .. } = self;
        let Training { gradients, .. } = training.as_mut().ok_or(ModelError::NotForTraining)?;
        let _norm = tracing::trace_span!(target: "profile", "norm").entered();
        // Squares are summed per row on the device, then in `f64` and in order on the host: a full sum on the device
        // may vary between runs.
        let squares =
            gradients.iter().map(|gradient| gradient.clone().square().sum_dim(1).reshape([-1])).collect();
        let norm = read(*name, squares)?.into_iter().sum::<f64>().sqrt();
        Ok(Gradients { loss: read(*name, losses)?.into_iter().sum::<f64>() / rows as f64, norm })
    }

    #[tracing::instrument(name = "optimiser", target = "profile", level = "trace", skip_all)]
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let Training { recipe, gradients, moments } =
            self.training.as_mut().ok_or(ModelError::NotForTraining)?;
        let moments = moments.as_mut().ok_or(ModelError::NotForTraining)?;
        for ((weights, moments), gradient) in
            self.model.tensors.iter_mut().zip(moments).zip(gradients.drain(..))
        {
            let decay = weight_decay(recipe, weights.dims());
            moments.step(recipe, params, decay, weights, gradient);
        }
        finish_if_profiled(self.name, &self.device)
    }

    fn moments(&self) -> Blocks<'_> {
        let moments = self.training.iter().filter_map(|training| training.moments.as_ref()).flatten();
        self.blocks(moments.flat_map(|Moments { mean, square }| [Some(mean), square.as_ref()]).flatten())
    }

    fn load_moments(&mut self, values: &[f32]) -> Result<(), ModelError> {
        let training = self.training.as_mut().ok_or(ModelError::NotForTraining)?;
        let moments = training.moments.as_mut().ok_or(ModelError::NotForTraining)?;
        let tensors =
            moments.iter_mut().flat_map(|Moments { mean, square }| [Some(mean), square.as_mut()]).flatten();
        let mut rest = values;
        for tensor in tensors {
            let values = take(&mut rest, tensor.shape().num_elements()).to_vec();
            *tensor = Tensor::from_data(TensorData::new(values, tensor.dims()), &self.device);
        }
        Ok(())
    }
}

impl RankEngine for BurnEngine {
    fn engine(&self) -> &dyn Engine {
        self
    }

    fn engine_mut(&mut self) -> &mut dyn Engine {
        self
    }

    fn adds_micro_batches(&self) -> bool {
        true
    }

    fn micro_batches(
        &mut self,
        sequences: &[&[u32]],
        rows: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Vec<f64>, ModelError> {
        let losses = self.losses_and_gradients(sequences, rows)?;
        let training = self.training.as_ref().ok_or(ModelError::NotForTraining)?;
        let read_part = &mut |part, values: &mut Vec<f32>| self.read_part(&training.gradients, part, values);
        reduce(0..self.config.parameters(), read_part)?;
        read(self.name, losses)
    }

    fn read_weights(&self, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError> {
        self.read_part(&self.model.tensors, range, values)
    }

    fn write_weights(&mut self, first: usize, values: &[f32]) -> Result<(), ModelError> {
        let lens: Vec<usize> =
            self.model.tensors.iter().map(|tensor| tensor.shape().num_elements()).collect();
        let mut rest = values;
        for (index, part) in parts_of(first..first + values.len(), lens) {
            let tensor = &mut self.model.tensors[index];
            let values = TensorData::new(take(&mut rest, part.len()).to_vec(), [part.len()]);
            let flat = tensor.clone().reshape([-1]);
            let flat: Tensor<1> = flat.slice_assign([part], Tensor::from_data(values, &self.device));
            *tensor = flat.reshape(tensor.dims());
        }
        Ok(())
    }

    fn finish_weights(&mut self) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Returns the losses of a micro-batch's tokens, and the gradient of `Σ losses / rows`, tensor by tensor.
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

    // The product with the vocabulary runs forward and backward outside of autograd.
    let loss = tracing::trace_span!(target: "profile", "loss").entered();
    let inner = hidden.clone().inner();
    let head = head::losses_and_gradients(inner, model.embedding_VD(), &targets, 1.0 / rows as f32);
    finish_if_profiled(name, device)?;
    drop(loss);

    // The other layers. Only the gradient of this sum is used: at `hidden` it equals the head's gradient.
    let _backward = tracing::trace_span!(target: "profile", "backward").entered();
    let mut grads = (hidden * head.grad_hidden_ND.autodiff()).sum().backward();
    let mut grad_head = Some(head.grad_embedding_VD);
    let gradients = tracked.tensors.iter().map(|tensor| {
        let gradient = tensor.grad_remove(&mut grads).expect("every weight takes part in the loss");
        // The first tensor is the embedding, which is also the output matrix.
        match grad_head.take() {
            Some(head) => gradient + head,
            None => gradient,
        }
    });
    let gradients = gradients.collect();
    finish_if_profiled(name, device)?;
    Ok((head.losses, gradients))
}

/// Waits for the device if profiling is on, so that a span ends after the work that it queued.
fn finish_if_profiled(name: Device, device: &BurnDevice) -> Result<(), ModelError> {
    if tracing::span_enabled!(target: "profile", tracing::Level::TRACE) {
        device.sync().map_err(|error| failed(name, &error))?;
    }
    Ok(())
}

/// Returns token ids as a tensor.
fn ids<const RANK: usize>(ids: &[u32], shape: [usize; RANK], device: &BurnDevice) -> Tensor<RANK, Int> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    Tensor::from_data(TensorData::new(ids, shape), device)
}

/// Reads the values of the device's tensors in order. Waits for the device.
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
