//! The inner loop: a step on a batch of sequences.
//!
//! Written out as a recipe, in the order of the textbook. A miner may do all of it another way: what is agreed on are the
//! weights that a window starts from and the format of what comes out.

use crate::{
    ModelError, batch,
    device::{DeviceChoice, DeviceError, Place},
    host::{Host, Room},
    llama::{Constants, Llama},
    loss::{self, ids},
    memory::{self, MemoryEstimate},
    optimiser::{Gradients, OptimiserState, StateError, check_bytes, pieces},
};
#[cfg(feature = "gpu")]
use crate::{gpu, optimiser::values_as_bytes};
use burn::tensor::{Device, Tensor};
use model::{ModelConfig, Recipe};
use protocol::Digest;
use std::io::{self, Read, Write};

/// A model being trained, with its optimiser.
pub struct Trainer {
    config: ModelConfig,
    recipe: Recipe,
    schema: Digest,
    engine: Engine,
    /// See [`Trainer::refuse_loss_above`].
    loss_max: f64,
}

/// What holds weights and moments, and computes with them.
#[allow(clippy::large_enum_variant, reason = "a trainer has one, and never moves it")]
enum Engine {
    Tensors(Learner),
    #[cfg(feature = "gpu")]
    Gpu(gpu::Learner),
}

/// Weights and moments in tensors of Burn's.
struct Learner {
    on: DeviceChoice,
    device: Device,
    way: Way,
    model: Llama,
    optimiser: OptimiserState,
}

/// What computes losses and gradients of tensors.
#[allow(clippy::large_enum_variant, reason = "a trainer has one, and never moves it")]
enum Way {
    /// On the CPU, over slices.
    Host { host: Host, room: Room },
    /// Anywhere, by tensor operations and a gradient tape.
    Tape(Constants),
}

/// What one step was like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Mean loss of the batch before the step, in nats per token.
    pub loss: f64,
    /// Length of the gradient before clipping.
    pub gradient_norm: f64,
    pub learning_rate: f64,
}

impl Trainer {
    /// A trainer at the weights `flat`, its optimiser without a past.
    ///
    /// # Errors
    /// If configuration or recipe are not valid, the device is not there, `flat` is not the state of such a model, or this
    /// machine's free memory is too small for the training.
    pub fn new(
        config: &ModelConfig,
        recipe: &Recipe,
        on: DeviceChoice,
        flat: &[f32],
    ) -> Result<Trainer, ModelError> {
        recipe.validate()?;
        let schema = config.schema()?.digest();
        let available = match on.place() {
            Place::Host => memory::available_memory(),
            Place::Gpu(_) => on.gpu_info().map(|card| card.memory_free),
            // What a tape takes is only known roughly.
            Place::Tape => None,
        };
        if let Some(available) = available {
            MemoryEstimate::check(config, recipe, on, available)?;
        }
        let engine = match on.place() {
            Place::Gpu(_) => Engine::on_gpu(config, recipe, on, flat)?,
            Place::Host | Place::Tape => Engine::Tensors(Learner::new(config, recipe, on, flat)?),
        };
        Ok(Trainer {
            config: config.clone(),
            recipe: recipe.clone(),
            schema,
            engine,
            loss_max: f64::INFINITY,
        })
    }

    /// Takes on the weights that a window starts from. The optimiser lives on (PROT-10).
    ///
    /// # Errors
    /// If `flat` is not the state of such a model; the trainer keeps the weights it has.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        match &mut self.engine {
            Engine::Tensors(learner) => learner.model = Llama::load(&self.config, flat, &learner.device)?,
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.load(flat)?,
        }
        Ok(())
    }

    /// The weights as the flat model state.
    ///
    /// # Panics
    /// If a GPU fails: [`try_weights_flat`](Self::try_weights_flat) says so instead.
    pub fn weights_flat(&self) -> Vec<f32> {
        self.try_weights_flat().unwrap_or_else(|error| panic!("the weights could not be read: {error}"))
    }

    /// The weights as the flat model state.
    ///
    /// # Errors
    /// If a GPU fails.
    pub fn try_weights_flat(&self) -> Result<Vec<f32>, ModelError> {
        match &self.engine {
            Engine::Tensors(learner) => Ok(learner.model.to_flat()),
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.flat(),
        }
    }

    /// Values of the flat model state.
    pub fn parameters(&self) -> usize {
        self.config.parameters()
    }

    /// Steps taken since the optimiser began.
    pub fn steps(&self) -> u64 {
        match &self.engine {
            Engine::Tensors(learner) => learner.optimiser.steps,
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.steps,
        }
    }

    /// One step at the learning rate that the recipe has for it.
    ///
    /// # Errors
    /// As [`step_at`](Self::step_at).
    pub fn step<S: AsRef<[u32]>>(&mut self, sequences: &[S]) -> Result<Step, ModelError> {
        self.step_at(sequences, self.recipe.learning_rate_at(self.steps()))
    }

    /// One step on `sequences`, each of `seq_len + 1` tokens, at a learning rate of the caller's.
    ///
    /// # Errors
    /// If a sequence does not fit the model, or the loss is no number or above the bound set. Nothing has changed then.
    pub fn step_at<S: AsRef<[u32]>>(
        &mut self,
        sequences: &[S],
        learning_rate: f64,
    ) -> Result<Step, ModelError> {
        batch::check(&self.config, sequences)?;
        if sequences.is_empty() {
            return Err(batch::BatchError::Empty.into());
        }
        match &mut self.engine {
            Engine::Tensors(learner) => {
                learner.step(&self.config, &self.recipe, sequences, learning_rate, self.loss_max)
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.step(&self.recipe, sequences, learning_rate, self.loss_max),
        }
    }

    /// The optimiser's state, for a snapshot: moments and number of steps, to the bit. The weights are not in it.
    ///
    /// # Panics
    /// If a GPU fails: [`write_state`](Self::write_state) says so instead.
    pub fn state(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Err(error) = self.write_state(&mut bytes) {
            panic!("the optimiser's state could not be read: {error}");
        }
        bytes
    }

    /// [`state`](Self::state) into a sink, tensor by tensor, without a second copy of all of it.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write_state(&self, sink: &mut dyn Write) -> io::Result<()> {
        match &self.engine {
            Engine::Tensors(learner) => learner.optimiser.write(&self.schema, sink),
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.write_state(&self.schema, sink),
        }
    }

    /// Goes on where [`write_state`](Self::write_state) was called. Reads what that wrote and not a byte more.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), or if `source` cannot be read.
    pub fn read_state(&mut self, source: &mut dyn Read) -> Result<(), StateError> {
        self.take_state(source, false)
    }

    fn take_state(&mut self, source: &mut dyn Read, whole: bool) -> Result<(), StateError> {
        match &mut self.engine {
            Engine::Tensors(Learner { model, optimiser, .. }) => {
                *optimiser = OptimiserState::read(self.recipe.optimiser, &self.schema, model, source, whole)?;
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.read_state(&self.schema, source, whole)?,
        }
        Ok(())
    }

    /// The weights as the flat model state, `f32`s as little-endian bytes, into a sink.
    ///
    /// # Errors
    /// Those of `sink`.
    pub fn write_weights(&self, sink: &mut dyn Write) -> io::Result<()> {
        let mut put = |bytes: &[u8]| sink.write_all(bytes);
        match &self.engine {
            Engine::Tensors(learner) => {
                learner.model.tensors().into_iter().try_for_each(|tensor| pieces(tensor, &mut put))
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.each_weight(|values| values_as_bytes(&values, &mut put)),
        }
    }

    /// Whether every weight and all that the optimiser remembers is a number: if not, something other than a step's data is wrong.
    ///
    /// # Errors
    /// If the device cannot be read: then nothing is known of what it holds.
    pub fn is_finite(&self) -> Result<bool, ModelError> {
        match &self.engine {
            Engine::Tensors(learner) => learner.is_finite(),
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => learner.is_finite(),
        }
    }

    /// Bytes of a GPU's memory that this process uses, and that it holds, where kernels train on one. It holds what it once took, so
    /// the second is also the most that there was.
    pub fn gpu_memory(&self) -> Option<[u64; 2]> {
        match &self.engine {
            Engine::Tensors(_) => None,
            #[cfg(feature = "gpu")]
            Engine::Gpu(learner) => Some(learner.memory()),
        }
    }

    /// From now on a step whose loss is above `nats` per token is not taken.
    pub fn refuse_loss_above(&mut self, nats: f64) {
        self.loss_max = nats;
    }

    /// Goes on where [`state`](Self::state) was taken.
    ///
    /// # Errors
    /// If the bytes are damaged or of another model; the optimiser stays as it is.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        check_bytes(self.recipe.optimiser, state)?;
        let mut source = state;
        self.take_state(&mut source, true)
    }
}

impl Engine {
    #[cfg(feature = "gpu")]
    fn on_gpu(
        config: &ModelConfig,
        recipe: &Recipe,
        on: DeviceChoice,
        flat: &[f32],
    ) -> Result<Engine, ModelError> {
        Ok(Engine::Gpu(gpu::Learner::new(config, recipe, on, flat)?))
    }

    #[cfg(not(feature = "gpu"))]
    fn on_gpu(_: &ModelConfig, _: &Recipe, on: DeviceChoice, _: &[f32]) -> Result<Engine, ModelError> {
        Err(on.check().err().unwrap_or(DeviceError::BuiltWithout).into())
    }
}

impl Learner {
    fn new(
        config: &ModelConfig,
        recipe: &Recipe,
        on: DeviceChoice,
        flat: &[f32],
    ) -> Result<Learner, ModelError> {
        let device = on.open()?;
        let model = Llama::load(config, flat, &device)?;
        Ok(Learner {
            way: match on.place() {
                Place::Tape => Way::Tape(Constants::new(config, &device)),
                Place::Host | Place::Gpu(_) => Way::Host { host: Host::new(config), room: Room::default() },
            },
            optimiser: OptimiserState::new(recipe.optimiser, &model),
            model,
            device,
            on,
        })
    }

    /// Whether every weight and moment is a number.
    fn is_finite(&self) -> Result<bool, ModelError> {
        for tensor in self.model.tensors().into_iter().chain(self.optimiser.tensors()) {
            let data = tensor.try_to_data().map_err(|error| DeviceError::Failed {
                device: self.on.to_string(),
                why: error.to_string(),
            })?;
            let values = data.as_slice::<f32>().expect("weights and moments are f32 on every device");
            if !values.iter().all(|value| value.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn step<S: AsRef<[u32]>>(
        &mut self,
        config: &ModelConfig,
        recipe: &Recipe,
        sequences: &[S],
        learning_rate: f64,
        loss_max: f64,
    ) -> Result<Step, ModelError> {
        let tokens = sequences.len() * config.seq_len;
        let (losses, gradients) = self.losses_and_gradients(config, recipe, sequences, 1.0 / tokens as f32);

        // Norm and losses are read here, once a step: the only time that the host waits for the device.
        let gradient_norm = norm_squared(&gradients).sqrt();
        let loss = losses.read().iter().sum::<f64>() / tokens as f64;
        let step = Step { loss, gradient_norm, learning_rate };
        let shrink = step.accepted(recipe, loss_max)?;
        self.optimiser.step(recipe, learning_rate, shrink, &mut self.model, gradients);
        Ok(step)
    }

    /// The losses of all rows, and the gradients of `scale · Σ losses` in schema order. A batch too big for the device is
    /// added up, one micro-batch at a time.
    fn losses_and_gradients<S: AsRef<[u32]>>(
        &mut self,
        config: &ModelConfig,
        recipe: &Recipe,
        sequences: &[S],
        scale: f32,
    ) -> (Losses, Gradients) {
        match &mut self.way {
            Way::Host { host, room } => {
                let mut losses = Vec::new();
                let zeros = |(_, [rows, columns]): (_, [usize; 2])| vec![0.0; rows * columns];
                let mut gradients: Vec<Vec<f32>> = config.shapes().into_iter().map(zeros).collect();
                self.model.with_values(|weights| {
                    for sequences in sequences.chunks(recipe.micro_batch) {
                        let (tokens, targets) = batch::tokens_and_targets(sequences);
                        losses.extend(host.losses_and_gradients(
                            weights,
                            &tokens,
                            &targets,
                            scale,
                            &mut gradients,
                            room,
                        ));
                    }
                });
                (Losses::Read(losses), Gradients::Slices(gradients))
            }
            Way::Tape(constants) => {
                let mut losses = Vec::new();
                let mut gradients: Vec<Option<Tensor<2>>> = vec![None; self.model.tensors().len()];
                for sequences in sequences.chunks(recipe.micro_batch) {
                    let (tokens, targets) = batch::tokens_and_targets(sequences);
                    let shape = [sequences.len(), config.seq_len];
                    let tracked = self.model.tracked();
                    let hidden = tracked.hidden(ids(&tokens, shape, &self.device), constants);

                    // The vocabulary's part of both passes, which leaves no tape behind.
                    let head = loss::losses_and_gradients(
                        hidden.clone().inner(),
                        &self.model.embedding_VD,
                        &targets,
                        scale,
                    );
                    losses.push(head.losses);

                    // The network's part. The sum's value means nothing; its gradient at `hidden` is the one from above.
                    let mut tape = (hidden * head.hidden_ND.autodiff()).sum().backward();
                    let mut of_head = Some(head.embedding_VD);
                    for (sum, tensor) in gradients.iter_mut().zip(tracked.tensors()) {
                        // The first tensor is the embedding, which is the output too.
                        for gradient in [tensor.grad_remove(&mut tape), of_head.take()].into_iter().flatten()
                        {
                            *sum = Some(match sum.take() {
                                Some(sum) => sum + gradient,
                                None => gradient,
                            });
                        }
                    }
                }
                let all = |gradient: Option<_>| gradient.expect("every weight takes part in the loss");
                (Losses::OnDevice(losses), Gradients::Tensors(gradients.into_iter().map(all).collect()))
            }
        }
    }
}

impl Step {
    /// What the gradient is multiplied by so that it is not too long, if the step is to be taken.
    pub(crate) fn accepted(&self, recipe: &Recipe, loss_max: f64) -> Result<f64, ModelError> {
        let &Step { loss, gradient_norm, .. } = self;
        if !(loss.is_finite() && gradient_norm.is_finite()) {
            return Err(ModelError::NotFinite { loss, gradient_norm });
        }
        if loss_max < loss {
            return Err(ModelError::Exploded { loss, gradient_norm, loss_max });
        }
        Ok(if gradient_norm > recipe.clip_norm { recipe.clip_norm / gradient_norm } else { 1.0 })
    }
}

/// The losses of a step's rows.
enum Losses {
    Read(Vec<f64>),
    OnDevice(Vec<loss::RowLosses>),
}

impl Losses {
    /// Waits for the device, if they are still there.
    fn read(self) -> Vec<f64> {
        match self {
            Losses::Read(losses) => losses,
            Losses::OnDevice(losses) => losses.into_iter().flat_map(loss::RowLosses::read).collect(),
        }
    }
}

/// Sum of squares of all gradients, in `f64` and in a fixed order: a device's own full sum may change from run to run.
fn norm_squared(gradients: &Gradients) -> f64 {
    match gradients {
        Gradients::Slices(gradients) => {
            gradients.iter().map(|gradient| kernels::norm::norm_squared(gradient)).sum()
        }
        Gradients::Tensors(gradients) => {
            let of_rows = gradients.iter().map(|gradient| gradient.clone().square().sum_dim(1)).collect();
            let data = Tensor::cat(of_rows, 0).into_data();
            data.as_slice::<f32>().expect("gradients are f32").iter().map(|&square| f64::from(square)).sum()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    #[test]
    fn the_norm_is_the_same_by_kernels_and_by_tensor_operations() {
        let device = Device::flex();
        let shapes = [[30, 40], [9, 70], [1, 17]];
        let values = shapes.map(|[rows, columns]| (0..rows * columns).map(|i| (i as f32).cos()).collect());
        let tensors = shapes.iter().zip(values.clone()).map(|(shape, values): (_, Vec<f32>)| {
            Tensor::<2>::from_data(TensorData::new(values, *shape), &device)
        });
        let on_device = norm_squared(&Gradients::Tensors(tensors.collect()));
        let on_host = norm_squared(&Gradients::Slices(values.to_vec()));
        assert!((on_host / on_device - 1.0).abs() < 1e-6, "{on_host} {on_device}");
    }
}
