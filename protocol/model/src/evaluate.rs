//! Losses of single sequences, with and without a contribution (PROT-22).
//!
//! A contribution is judged by a difference of losses that is small beside the losses themselves, so both are measured by
//! one evaluator, on one device, on the same sequences, and a sequence's tokens are added up in `f64` on the host. The
//! contribution is applied to the weights in place and taken back exactly: there is no copy of the model.

use crate::{
    ModelError, batch,
    config::ModelConfig,
    device::{DeviceChoice, Place},
    llama::{Constants, Llama, as_slice},
    loss,
};
use burn::tensor::Device;
use kernels::sparse;
use protocol::contribution::Sparse;

/// Tokens on the device at once. More would not be faster on a CPU, and on a GPU fills it well enough.
const TOKENS_MAX: usize = 2048;

/// A model that is only read, but for contributions tried on it.
pub struct Evaluator {
    config: ModelConfig,
    device: Device,
    place: Place,
    constants: Constants,
    model: Llama,
}

/// What [`Evaluator::apply_sparse`] wrote over. Give it back to [`Evaluator::undo`], the latest first.
#[derive(Debug)]
#[must_use = "the contribution stays applied until it is undone"]
pub struct Undo {
    /// For each tensor: positions, and the values that stood there.
    tensors: Vec<(Vec<u32>, Vec<f32>)>,
}

impl Evaluator {
    /// An evaluator of the weights `flat`.
    ///
    /// # Errors
    /// If the configuration is not valid, the device is not there, or `flat` is not the state of such a model.
    pub fn new(config: &ModelConfig, on: DeviceChoice, flat: &[f32]) -> Result<Evaluator, ModelError> {
        config.validate()?;
        let device = on.open()?;
        Ok(Evaluator {
            place: on.place(),
            constants: Constants::new(config, &device),
            model: Llama::load(config, flat, &device)?,
            device,
            config: config.clone(),
        })
    }

    /// Takes on other weights.
    ///
    /// # Errors
    /// If `flat` is not the state of such a model; the evaluator keeps the weights it has.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.model = Llama::load(&self.config, flat, &self.device)?;
        Ok(())
    }

    /// The weights as the flat model state, with whatever is applied.
    pub fn weights_flat(&self) -> Vec<f32> {
        self.model.to_flat()
    }

    /// The loss of each sequence (`seq_len + 1` tokens): the mean over its tokens, in nats per token.
    ///
    /// Memory is bounded, however many sequences there are.
    ///
    /// # Errors
    /// If a sequence does not fit the model.
    pub fn losses<S: AsRef<[u32]>>(&self, sequences: &[S]) -> Result<Vec<f64>, ModelError> {
        batch::check(&self.config, sequences)?;
        let seq_len = self.config.seq_len;
        let mut of_sequences = Vec::with_capacity(sequences.len());
        for sequences in sequences.chunks((TOKENS_MAX / seq_len).max(1)) {
            let (tokens_bt, targets) = batch::tokens_and_targets(sequences, &self.device);
            let hidden = self.model.hidden(tokens_bt, &self.constants);
            let of_tokens = loss::losses(hidden, &self.model.embedding_VD, &targets, self.place).read();
            of_sequences
                .extend(of_tokens.chunks(seq_len).map(|losses| losses.iter().sum::<f64>() / seq_len as f64));
        }
        Ok(of_sequences)
    }

    /// `θ ← fl(θ − fl(rate·u))` at the entries of `update`, the same bits as `protocol::merge::apply`.
    ///
    /// # Errors
    /// If `update` does not have this model's tensors. Nothing has changed then.
    pub fn apply_sparse(&mut self, update: &Sparse, rate: f32) -> Result<Undo, ModelError> {
        self.check(update)?;
        let tensors = self.model.tensors_mut().into_iter().zip(&update.tensors).map(|(weights, update)| {
            let previous =
                as_slice(weights, |weights| sparse::apply(weights, &update.positions, &update.values, rate));
            (update.positions.clone(), previous)
        });
        Ok(Undo { tensors: tensors.collect() })
    }

    /// Takes back what gave `undo`: the weights have the bits they had before it.
    ///
    /// # Panics
    /// If `undo` is of an evaluator of another model.
    pub fn undo(&mut self, undo: Undo) {
        let weights = self.model.tensors_mut();
        assert_eq!(weights.len(), undo.tensors.len(), "an undo goes back to the evaluator that gave it");
        for (weights, (positions, previous)) in weights.into_iter().zip(undo.tensors) {
            as_slice(weights, |weights| sparse::restore(weights, &positions, &previous));
        }
    }

    /// The losses of `sequences` with `update` applied. It is taken back before this returns.
    ///
    /// # Errors
    /// If the update or a sequence does not fit the model.
    pub fn losses_with<S: AsRef<[u32]>>(
        &mut self,
        update: &Sparse,
        rate: f32,
        sequences: &[S],
    ) -> Result<Vec<f64>, ModelError> {
        let undo = self.apply_sparse(update, rate)?;
        let losses = self.losses(sequences);
        self.undo(undo);
        losses
    }

    /// Checks what a decoder has checked already, should the update have come by another road.
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
