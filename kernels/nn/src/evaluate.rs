//! Losses of single sequences, with and without a contribution (PROT-22).
//!
//! A contribution is judged by a difference of losses that is small beside the losses themselves. So one evaluator on
//! one device measures both on the same sequences, and adds up a sequence's tokens in `f64`. A contribution is
//! applied to the weights in place and taken back to the bit: there is no second copy of the model.

use crate::{Device, Engine, ModelError, batch, engine, train};
use kernels::sparse;
use model::ModelConfig;
use protocol::contribution::Sparse;

/// A model that is only read, except for contributions applied to it.
pub struct Evaluator {
    config: ModelConfig,
    pub(crate) engine: Box<dyn Engine>,
}

/// The values that [`Evaluator::apply_sparse`] overwrote. Give it back to [`Evaluator::undo`], the latest first.
#[derive(Debug)]
#[must_use = "the contribution stays applied until it is undone"]
pub struct Undo {
    /// For each tensor: positions, and their previous values.
    tensors: Vec<(Vec<u32>, Vec<f32>)>,
}

impl Evaluator {
    /// An evaluator of the weights `flat` on the fused engine of `device`.
    ///
    /// # Errors
    /// As [`engine::open`].
    pub fn new(config: &ModelConfig, device: Device, flat: &[f32]) -> Result<Evaluator, ModelError> {
        Ok(Evaluator::from_engine(config, engine::open(device, config, None, flat)?))
    }

    /// An evaluator on an engine that was opened with this configuration.
    pub fn from_engine(config: &ModelConfig, engine: Box<dyn Engine>) -> Evaluator {
        Evaluator { config: config.clone(), engine }
    }

    /// Replaces the weights.
    ///
    /// # Errors
    /// If `flat` has another length, and the weights stay; or if the device fails.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        engine::check_len(&self.config, flat)?;
        self.engine.load(flat)
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The weights as the flat parameter vector, with every contribution applied.
    ///
    /// # Errors
    /// If the device fails.
    pub fn weights_flat(&self) -> Result<Vec<f32>, ModelError> {
        train::flat(self.engine.as_ref(), &self.config)
    }

    /// The mean loss of each sequence (`seq_len + 1` tokens), in nats per token. Memory does not grow with the number
    /// of sequences.
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

    /// The logits `[T, V]` after each of `tokens`, of which there are 1 to `seq_len`.
    ///
    /// # Errors
    /// If the number of tokens or a token is out of bounds, or the device fails.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        batch::check_text(&self.config, tokens)?;
        // The network reads `seq_len` tokens at once. Attention is causal, so padding behind them changes nothing.
        let mut padded = tokens.to_vec();
        padded.resize(self.config.seq_len, 0);
        self.engine.logits(&padded, tokens.len())
    }

    /// `θ ← fl(θ − fl(rate·u))` at the entries of `update`: the bits of `protocol::merge::apply`.
    ///
    /// # Errors
    /// If `update` does not have this model's tensors, and nothing has changed; or if the device fails.
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
            // A device that has failed may refuse this too; the first error is the one to report.
            let _ = self.undo(undo);
            return Err(error);
        }
        Ok(undo)
    }

    /// Takes back one [`apply_sparse`](Self::apply_sparse): the weights have the bits they had before it.
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

    /// The losses of `sequences` with `update` applied. The update is taken back before this returns.
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

    /// Checks what a decoder has checked already, for updates from another source.
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
