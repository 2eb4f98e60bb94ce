//! Training steps on batches of sequences, the same for all engines.
//!
//! A miner may train in any other way. Only the weights at the start of a window and the format of a contribution are
//! agreed.

use crate::{
    BatchError, Device, DeviceMemory, Engine, ModelError, StateError, StepParams, batch, engine,
    optim::{self, state},
    slices,
};
use model::{ModelConfig, Recipe};
use protocol::Digest;
use std::io::{self, Read, Write};

/// A model in training, with its optimiser.
pub struct Trainer {
    config: ModelConfig,
    recipe: Recipe,
    schema: Digest,
    engine: Box<dyn Engine>,
    steps: u64,
    /// See [`Trainer::refuse_loss_above`].
    loss_max: f64,
}

/// Measurements of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Mean loss of the batch before the step, in nats per token.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient_norm: f64,
    pub learning_rate: f64,
}

impl Trainer {
    /// Opens a trainer on the fused engine of `device`, with the weights `flat` and a fresh optimiser.
    ///
    /// # Errors
    /// Same as [`engine::open`].
    pub fn new(
        config: &ModelConfig,
        recipe: &Recipe,
        device: Device,
        flat: &[f32],
    ) -> Result<Trainer, ModelError> {
        Trainer::from_engine(config, recipe, engine::open(device, config, Some(recipe), flat)?)
    }

    /// Returns a trainer on an engine that was opened with this configuration and recipe.
    ///
    /// # Errors
    /// If configuration or recipe are invalid.
    pub fn from_engine(
        config: &ModelConfig,
        recipe: &Recipe,
        engine: Box<dyn Engine>,
    ) -> Result<Trainer, ModelError> {
        recipe.validate()?;
        Ok(Trainer {
            schema: config.schema()?.digest(),
            config: config.clone(),
            recipe: recipe.clone(),
            engine,
            steps: 0,
            loss_max: f64::INFINITY,
        })
    }

    /// Replaces the weights with those at the start of a window. The optimiser's state does not change (PROT-10).
    ///
    /// # Errors
    /// If `flat` has another length, which leaves the weights unchanged, or if the device fails.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        slices::check_len(&self.config, flat)?;
        self.engine.load(flat)
    }

    /// Returns the weights as the flat parameter vector, in schema order.
    ///
    /// # Errors
    /// If the device fails.
    pub fn weights_flat(&self) -> Result<Vec<f32>, ModelError> {
        flat(self.engine.as_ref(), &self.config)
    }

    /// Returns the length of the flat parameter vector.
    pub fn parameters(&self) -> usize {
        self.config.parameters()
    }

    /// Returns the recipe of the training.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// Returns the number of steps since the optimiser was fresh.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes one step at the recipe's learning rate for the optimiser's number of steps.
    ///
    /// # Errors
    /// Same as [`step_at`](Self::step_at).
    pub fn step<S: AsRef<[u32]>>(&mut self, sequences: &[S]) -> Result<Step, ModelError> {
        self.step_at(sequences, self.recipe.learning_rate_at(self.steps))
    }

    /// Takes one step on `sequences`, each of `seq_len + 1` tokens, at the caller's learning rate.
    ///
    /// # Errors
    /// If a sequence does not fit the model, or the loss is not finite or above the bound, which leaves the trainer
    /// unchanged. If the device fails or runs out of memory.
    pub fn step_at<S: AsRef<[u32]>>(
        &mut self,
        sequences: &[S],
        learning_rate: f64,
    ) -> Result<Step, ModelError> {
        let sequences: Vec<&[u32]> = sequences.iter().map(AsRef::as_ref).collect();
        batch::check(&self.config, &sequences)?;
        if sequences.is_empty() {
            return Err(BatchError::Empty.into());
        }
        let engine::Gradients { loss, norm } = self.engine.gradients(&sequences)?;
        let step = Step { loss, gradient_norm: norm, learning_rate };
        let gradient_scale = self.clip_scale(&step)?;
        self.engine.step(&StepParams { step: self.steps + 1, learning_rate, gradient_scale })?;
        self.steps += 1;
        Ok(step)
    }

    /// Returns the factor that clips the gradient to the recipe's `clip_norm`, or an error if the step is refused.
    fn clip_scale(&self, step: &Step) -> Result<f64, ModelError> {
        let (&Step { loss, gradient_norm, .. }, loss_max) = (step, self.loss_max);
        if !(loss.is_finite() && gradient_norm.is_finite()) {
            return Err(ModelError::NotFinite { loss, gradient_norm });
        }
        if loss_max < loss {
            return Err(ModelError::Exploded { loss, gradient_norm, loss_max });
        }
        let clip_norm = self.recipe.clip_norm;
        Ok(if gradient_norm > clip_norm { clip_norm / gradient_norm } else { 1.0 })
    }

    /// Refuses every later step whose loss is above `nats` per token.
    pub fn refuse_loss_above(&mut self, nats: f64) {
        self.loss_max = nats;
    }

    /// Writes the optimiser's exact state, moments and number of steps, without the weights. Its length is that of the
    /// moments plus 80 bytes.
    ///
    /// # Errors
    /// If `sink` or the device fails.
    pub fn write_state(&self, sink: &mut dyn Write) -> io::Result<()> {
        state::write(self.recipe.optimiser, &self.schema, self.steps, self.engine.moments(), sink)
    }

    /// Continues from a state that [`write_state`](Self::write_state) wrote, of this or another engine. Reads exactly
    /// the bytes of that state.
    ///
    /// # Errors
    /// If the bytes are damaged or of another model or optimiser, which leaves the optimiser unchanged. If `source` or
    /// the device fails.
    pub fn read_state(&mut self, source: &mut dyn Read) -> Result<(), StateError> {
        let optimiser = self.recipe.optimiser;
        let count = optim::moment_count(&self.config, optimiser);
        let (steps, moments) = state::read(optimiser, &self.schema, count, source)?;
        let loaded = self.engine.take_moments(moments);
        loaded.map_err(|error| StateError::Device { why: error.to_string() })?;
        self.steps = steps;
        Ok(())
    }

    /// Writes the flat parameter vector as little-endian `f32`.
    ///
    /// # Errors
    /// If `sink` or the device fails.
    pub fn write_weights(&self, sink: &mut dyn Write) -> io::Result<()> {
        state::write_values(self.engine.weights(), &mut |bytes| sink.write_all(bytes))
    }

    /// Returns whether every weight and moment is finite. If not, all later steps are invalid for any data.
    ///
    /// # Errors
    /// If the device fails.
    pub fn is_finite(&self) -> Result<bool, ModelError> {
        for block in self.engine.weights().chain(self.engine.moments()) {
            if !block?.iter().all(|value| value.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the use of the device's memory, if the engine reports it.
    pub fn device_memory(&self) -> Option<DeviceMemory> {
        self.engine.device_memory()
    }
}

/// Returns an engine's weights as one vector.
pub(crate) fn flat(engine: &dyn Engine, config: &ModelConfig) -> Result<Vec<f32>, ModelError> {
    let mut flat = Vec::with_capacity(config.parameters());
    for block in engine.weights() {
        flat.extend_from_slice(&block?);
    }
    Ok(flat)
}
