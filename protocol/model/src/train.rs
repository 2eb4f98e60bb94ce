//! The inner loop: a step on a batch of sequences.
//!
//! Written out as a recipe, in the order of the textbook. A miner may do all of it another way: what is agreed on are the
//! weights that a window starts from and the format of what comes out.

use crate::{
    ModelError, batch,
    config::ModelConfig,
    device::{DeviceChoice, Place},
    llama::{Constants, Llama, as_slice},
    loss,
    optimiser::{AdamW, StateError},
    recipe::Recipe,
};
use burn::tensor::{Device, Tensor};
use protocol::Digest;

/// A model being trained, with its optimiser.
pub struct Trainer {
    config: ModelConfig,
    recipe: Recipe,
    schema: Digest,
    device: Device,
    place: Place,
    constants: Constants,
    model: Llama,
    optimiser: AdamW,
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
    /// If configuration or recipe are not valid, the device is not there, or `flat` is not the state of such a model.
    pub fn new(
        config: &ModelConfig,
        recipe: &Recipe,
        on: DeviceChoice,
        flat: &[f32],
    ) -> Result<Trainer, ModelError> {
        recipe.validate()?;
        let schema = config.schema()?;
        let device = on.open()?;
        let model = Llama::load(config, flat, &device)?;
        Ok(Trainer {
            recipe: recipe.clone(),
            schema: schema.digest(),
            place: on.place(),
            constants: Constants::new(config, &device),
            optimiser: AdamW::new(&model),
            model,
            device,
            config: config.clone(),
        })
    }

    /// Takes on the weights that a window starts from. The optimiser lives on (PROT-10).
    ///
    /// # Errors
    /// If `flat` is not the state of such a model; the trainer keeps the weights it has.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.model = Llama::load(&self.config, flat, &self.device)?;
        Ok(())
    }

    /// The weights as the flat model state.
    pub fn weights_flat(&self) -> Vec<f32> {
        self.model.to_flat()
    }

    /// Steps taken since the optimiser began.
    pub fn steps(&self) -> u64 {
        self.optimiser.steps
    }

    /// One step at the learning rate that the recipe has for it.
    ///
    /// # Errors
    /// As [`step_at`](Self::step_at).
    pub fn step<S: AsRef<[u32]>>(&mut self, sequences: &[S]) -> Result<Step, ModelError> {
        self.step_at(sequences, self.recipe.learning_rate_at(self.optimiser.steps))
    }

    /// One step on `sequences`, each of `seq_len + 1` tokens, at a learning rate of the caller's.
    ///
    /// # Errors
    /// If a sequence does not fit the model, or the loss is no number. Nothing has changed then.
    pub fn step_at<S: AsRef<[u32]>>(
        &mut self,
        sequences: &[S],
        learning_rate: f64,
    ) -> Result<Step, ModelError> {
        batch::check(&self.config, sequences)?;
        if sequences.is_empty() {
            return Err(batch::BatchError::Empty.into());
        }
        let tokens = sequences.len() * self.config.seq_len;

        // Add up the gradients of a batch too big for the device, one micro-batch at a time.
        let mut losses = Vec::new();
        let mut gradients: Vec<Option<Tensor<2>>> = vec![None; self.model.tensors().len()];
        for sequences in sequences.chunks(self.recipe.micro_batch) {
            let (tokens_bt, targets) = batch::tokens_and_targets(sequences, &self.device);
            let tracked = self.model.tracked();
            let hidden = tracked.hidden(tokens_bt, &self.constants);

            // The vocabulary's part of both passes, which leaves no tape behind.
            let head = loss::losses_and_gradients(
                hidden.clone().inner(),
                &self.model.embedding_VD,
                &targets,
                1.0 / tokens as f32,
                self.place,
            );
            losses.push(head.losses);

            // The network's part. The sum's value means nothing; its gradient at `hidden` is the one from above.
            let mut tape = (hidden * head.hidden_ND.autodiff()).sum().backward();
            let mut of_head = Some(head.embedding_VD);
            for (sum, tensor) in gradients.iter_mut().zip(tracked.tensors()) {
                // The first tensor is the embedding, which is the output too.
                for gradient in [tensor.grad_remove(&mut tape), of_head.take()].into_iter().flatten() {
                    *sum = Some(match sum.take() {
                        Some(sum) => sum + gradient,
                        None => gradient,
                    });
                }
            }
        }
        let mut gradients: Vec<Tensor<2>> = gradients
            .into_iter()
            .map(|gradient| gradient.expect("every weight takes part in the loss"))
            .collect();

        // Clip. Norm and losses are read here, once a step: the only time that the host waits for the device.
        let gradient_norm = norm_squared(&mut gradients, self.place).sqrt();
        let loss = losses.into_iter().flat_map(loss::RowLosses::read).sum::<f64>() / tokens as f64;
        if !(loss.is_finite() && gradient_norm.is_finite()) {
            return Err(ModelError::NotFinite { loss, gradient_norm });
        }
        if gradient_norm > self.recipe.clip_norm {
            let shrink = self.recipe.clip_norm / gradient_norm;
            gradients = gradients.into_iter().map(|gradient| gradient.mul_scalar(shrink)).collect();
        }

        // Step.
        self.optimiser.step(&self.recipe, learning_rate, &mut self.model, gradients);
        Ok(Step { loss, gradient_norm, learning_rate })
    }

    /// The optimiser's state, for a snapshot: moments and number of steps, to the bit. The weights are not in it.
    pub fn state(&self) -> Vec<u8> {
        self.optimiser.to_bytes(&self.schema)
    }

    /// Goes on where [`state`](Self::state) was taken.
    ///
    /// # Errors
    /// If the bytes are damaged or of another model; the optimiser stays as it is.
    pub fn restore(&mut self, state: &[u8]) -> Result<(), StateError> {
        self.optimiser = AdamW::from_bytes(state, &self.schema, &self.model)?;
        Ok(())
    }
}

/// Sum of squares of all gradients, in `f64` and in a fixed order: a device's own full sum may change from run to run.
fn norm_squared(gradients: &mut [Tensor<2>], place: Place) -> f64 {
    match place {
        Place::Host => gradients
            .iter_mut()
            .map(|gradient| as_slice(gradient, |values| kernels::norm::norm_squared(values)))
            .sum(),
        Place::Device => {
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
        let gradient = |shape: [usize; 2]| {
            let values: Vec<f32> = (0..shape[0] * shape[1]).map(|i| (i as f32).cos()).collect();
            Tensor::<2>::from_data(TensorData::new(values, shape), &device)
        };
        // The second stands in memory as its transpose, as gradients of projections do.
        let mut gradients = vec![gradient([30, 40]), gradient([70, 9]).transpose(), gradient([1, 17])];
        let on_device = norm_squared(&mut gradients, Place::Device);
        let on_host = norm_squared(&mut gradients, Place::Host);
        assert!((on_host / on_device - 1.0).abs() < 1e-6, "{on_host} {on_device}");
        assert_eq!(gradients[1].dims(), [9, 70]);
        assert_eq!(norm_squared(&mut gradients, Place::Host), on_host, "measuring changes nothing");
    }
}
