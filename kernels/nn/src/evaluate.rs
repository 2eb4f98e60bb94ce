//! Losses of single sequences, with and without a contribution (PROT-22).
//!
//! A contribution is judged by a difference of losses that is small compared with the losses themselves. So one
//! evaluator on one device measures both on the same sequences, and adds up a sequence's tokens in `f64`. A
//! contribution is applied to the weights in place and undone bit for bit, without a second copy of the model.

use crate::{Device, Engine, ModelError, batch, engine, slices, train};
use kernels::sparse;
use model::ModelConfig;
use protocol::contribution::Sparse;

/// Evaluates a model, with and without contributions applied to it.
pub struct Evaluator {
    config: ModelConfig,
    pub(crate) engine: Box<dyn Engine>,
}

/// The values that [`Evaluator::apply_sparse`] overwrote. Pass it to [`Evaluator::undo`], the latest first.
#[derive(Debug)]
#[must_use = "the contribution stays applied until it is undone"]
pub struct Undo {
    /// Positions and their previous values, by tensor.
    tensors: Vec<(Vec<u32>, Vec<f32>)>,
}

impl Evaluator {
    /// Opens an evaluator of the weights `flat` on the fused engine of `device`.
    ///
    /// # Errors
    /// Same as [`engine::open`].
    pub fn new(config: &ModelConfig, device: Device, flat: &[f32]) -> Result<Evaluator, ModelError> {
        Ok(Evaluator::from_engine(config, engine::open(device, config, None, flat)?))
    }

    /// Returns an evaluator on an engine that was opened with this configuration.
    pub fn from_engine(config: &ModelConfig, engine: Box<dyn Engine>) -> Evaluator {
        Evaluator { config: config.clone(), engine }
    }

    /// Replaces the weights.
    ///
    /// # Errors
    /// If `flat` has another length, which leaves the weights unchanged, or if the device fails.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        slices::check_len(&self.config, flat)?;
        self.engine.load(flat)
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the weights as the flat parameter vector, with every contribution applied.
    ///
    /// # Errors
    /// If the device fails.
    pub fn weights_flat(&self) -> Result<Vec<f32>, ModelError> {
        train::flat(self.engine.as_ref(), &self.config)
    }

    /// Returns the mean loss of each sequence (`seq_len + 1` tokens), in nats per token. Memory does not grow with the
    /// number of sequences.
    ///
    /// # Errors
    /// If a sequence does not fit the model, or the device fails.
    pub fn losses<S: AsRef<[u32]>>(&self, sequences: &[S]) -> Result<Vec<f64>, ModelError> {
        let sequences: Vec<&[u32]> = sequences.iter().map(AsRef::as_ref).collect();
        batch::check(&self.config, &sequences)?;
        let tokens = self.engine.losses(&sequences)?;
        let seq_len = self.config.seq_len;
        Ok(tokens.chunks(seq_len).map(|losses| losses.iter().sum::<f64>() / seq_len as f64).collect())
    }

    /// Returns the logits `[T, V]` after each of `tokens`, of which there are 1 to `seq_len`.
    ///
    /// # Errors
    /// If the number of tokens or a token is out of bounds, or the device fails.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        batch::check_text(&self.config, tokens)?;
        // The network reads `seq_len` tokens at once. Attention is causal, so padding after them has no effect.
        let mut padded = tokens.to_vec();
        padded.resize(self.config.seq_len, 0);
        self.engine.logits(&padded, tokens.len())
    }

    /// Computes `θ ← fl(θ − fl(rate·u))` at the entries of `update`, with the bits of `protocol::merge::apply`.
    ///
    /// # Errors
    /// If `update` does not have this model's tensors, which leaves the weights unchanged, or if the device fails.
    pub fn apply_sparse(&mut self, update: &Sparse, rate: f32) -> Result<Undo, ModelError> {
        self.check(update)?;
        let mut tensors = Vec::with_capacity(update.tensors.len());
        let applied = self.engine.edit(&mut |tensor, weights| {
            let update = &update.tensors[tensor];
            let previous = sparse::apply(weights, &update.positions, &update.values, rate);
            tensors.push((update.positions.clone(), previous));
        });
        let undo = Undo { tensors };
        if let Err(error) = applied {
            // Ignored: a failed device may refuse this too, and the first error is the one to report.
            let _ = self.undo(undo);
            return Err(error);
        }
        Ok(undo)
    }

    /// Undoes one [`apply_sparse`](Self::apply_sparse) and restores the weights' previous bits.
    ///
    /// # Errors
    /// If `undo` is of another model, or the device fails.
    pub fn undo(&mut self, mut undo: Undo) -> Result<(), ModelError> {
        let (expected, got) = (self.config.shapes().len(), undo.tensors.len());
        if expected != got {
            return Err(ModelError::UpdateTensors { expected, got });
        }
        self.engine.edit(&mut |tensor, weights| {
            let (positions, previous) = std::mem::take(&mut undo.tensors[tensor]);
            sparse::restore(weights, &positions, previous);
        })
    }

    /// Returns the losses of `sequences` with `update` applied. The update is undone before this returns.
    ///
    /// # Errors
    /// If the update or a sequence does not fit the model, or the device fails.
    pub fn losses_with<S: AsRef<[u32]>>(
        &mut self,
        update: &Sparse,
        rate: f32,
        sequences: &[S],
    ) -> Result<Vec<f64>, ModelError> {
        let undo = self.apply_sparse(update, rate)?;
        let losses = self.losses(sequences);
        self.undo(undo)?;
        losses
    }

    /// Repeats the decoder's checks, for updates from other sources.
    fn check(&self, update: &Sparse) -> Result<(), ModelError> {
        let shapes = self.config.shapes();
        if update.tensors.len() != shapes.len() {
            return Err(ModelError::UpdateTensors { expected: shapes.len(), got: update.tensors.len() });
        }
        for (update, (tensor, [rows, columns])) in update.tensors.iter().zip(shapes) {
            let ascends = update.positions.is_sorted_by(|a, b| a < b);
            let inside = update.positions.last().is_none_or(|&last| (last as usize) < rows * columns);
            if !(ascends && inside && update.positions.len() == update.values.len()) {
                return Err(ModelError::UpdatePositions { tensor });
            }
        }
        Ok(())
    }
}
