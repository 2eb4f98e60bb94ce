//! Losses of single sequences, with and without a contribution (PROT-22).
//!
//! A contribution is judged by a difference of losses that is small beside the losses themselves, so both are measured by
//! one evaluator, on one device, on the same sequences, and a sequence's tokens are added up in `f64` on the host. The
//! contribution is applied to the weights in place and taken back exactly: there is no copy of the model.

#[cfg(not(feature = "gpu"))]
use crate::device::DeviceError;
#[cfg(feature = "gpu")]
use crate::gpu;
use crate::{
    ModelError, batch,
    device::{DeviceChoice, Place},
    host::{self, Host, Room},
    llama::{Constants, Llama, as_slice},
    loss::{self, ids},
};
use burn::tensor::Device;
use kernels::sparse;
use model::ModelConfig;
use protocol::contribution::{Sparse, SparseTensor};

/// Tokens on the device at once. More would not be faster on a CPU.
const TOKENS_MAX: usize = 2048;

/// A model that is only read, but for contributions tried on it.
pub struct Evaluator {
    config: ModelConfig,
    engine: Engine,
}

/// The weights, and what computes with them.
#[allow(clippy::large_enum_variant, reason = "an evaluator has one, and never moves it")]
enum Engine {
    /// On the CPU, over slices: the tensors in schema order.
    Host { host: Host, weights: Vec<Vec<f32>> },
    /// Anywhere, by tensor operations.
    Tape { device: Device, constants: Constants, model: Llama },
    /// By kernels on a GPU.
    #[cfg(feature = "gpu")]
    Gpu(gpu::Reader),
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
        let engine = match on.place() {
            Place::Host => {
                on.open()?;
                Engine::Host { host: Host::new(config), weights: host::split(config, flat)? }
            }
            Place::Tape => {
                let device = on.open()?;
                Engine::Tape {
                    constants: Constants::new(config, &device),
                    model: Llama::load(config, flat, &device)?,
                    device,
                }
            }
            #[cfg(feature = "gpu")]
            Place::Gpu(_) => Engine::Gpu(gpu::Reader::new(config, on, flat)?),
            #[cfg(not(feature = "gpu"))]
            Place::Gpu(_) => return Err(on.check().err().unwrap_or(DeviceError::BuiltWithout).into()),
        };
        Ok(Evaluator { config: config.clone(), engine })
    }

    /// Takes on other weights.
    ///
    /// # Errors
    /// If `flat` is not the state of such a model; the evaluator keeps the weights it has.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        match &mut self.engine {
            Engine::Host { weights, .. } => *weights = host::split(&self.config, flat)?,
            Engine::Tape { device, model, .. } => *model = Llama::load(&self.config, flat, device)?,
            #[cfg(feature = "gpu")]
            Engine::Gpu(reader) => reader.load(flat)?,
        }
        Ok(())
    }

    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The weights as the flat model state, with whatever is applied.
    pub fn weights_flat(&self) -> Vec<f32> {
        match &self.engine {
            Engine::Host { weights, .. } => weights.concat(),
            Engine::Tape { model, .. } => model.to_flat(),
            #[cfg(feature = "gpu")]
            Engine::Gpu(reader) => reader.flat().to_vec(),
        }
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
        let mut room = Room::default();
        let mut of_sequences = Vec::with_capacity(sequences.len());
        let tokens_max = match &self.engine {
            Engine::Host { .. } | Engine::Tape { .. } => TOKENS_MAX,
            #[cfg(feature = "gpu")]
            Engine::Gpu(_) => gpu::Reader::TOKENS_MAX,
        };
        for sequences in sequences.chunks((tokens_max / seq_len).max(1)) {
            let (tokens, targets) = batch::tokens_and_targets(sequences);
            let of_tokens = match &self.engine {
                Engine::Host { host, weights } => host.losses(weights, &tokens, &targets, &mut room),
                Engine::Tape { device, constants, model } => {
                    let hidden = model.hidden(ids(&tokens, [sequences.len(), seq_len], device), constants);
                    loss::losses(hidden, &model.embedding_VD, &targets).read()
                }
                #[cfg(feature = "gpu")]
                Engine::Gpu(reader) => reader.losses(&tokens, &targets)?,
            };
            of_sequences
                .extend(of_tokens.chunks(seq_len).map(|losses| losses.iter().sum::<f64>() / seq_len as f64));
        }
        Ok(of_sequences)
    }

    /// What the model expects after each of `tokens`, of which there may be up to `seq_len`: the logits, `[T, V]` row-major.
    ///
    /// # Errors
    /// If there is no token, or too many, or one that the model does not know.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, ModelError> {
        batch::check_text(&self.config, tokens)?;
        // The network reads `seq_len` tokens at once. What fills them up comes later, so nothing before it sees it.
        let mut filled = tokens.to_vec();
        filled.resize(self.config.seq_len, 0);
        Ok(match &self.engine {
            Engine::Host { host, weights } => {
                host.logits(weights, &filled, tokens.len(), &mut Room::default())
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(reader) => reader.logits(&filled, tokens.len())?,
            Engine::Tape { device, constants, model } => {
                let hidden = model.hidden(ids(&filled, [1, filled.len()], device), constants);
                let hidden = hidden.narrow(0, 0, tokens.len());
                let logits = hidden.matmul(model.embedding_VD.clone().transpose()).into_data();
                logits.as_slice::<f32>().expect("logits are f32 on every device").to_vec()
            }
        })
    }

    /// `θ ← fl(θ − fl(rate·u))` at the entries of `update`, the same bits as `protocol::merge::apply`.
    ///
    /// # Errors
    /// If `update` does not have this model's tensors. Nothing has changed then.
    pub fn apply_sparse(&mut self, update: &Sparse, rate: f32) -> Result<Undo, ModelError> {
        self.check(update)?;
        let apply = |weights: &mut [f32], update: &SparseTensor| {
            let previous = sparse::apply(weights, &update.positions, &update.values, rate);
            (update.positions.clone(), previous)
        };
        let tensors = match &mut self.engine {
            Engine::Host { weights, .. } => weights
                .iter_mut()
                .zip(&update.tensors)
                .map(|(weights, update)| apply(weights, update))
                .collect(),
            #[cfg(feature = "gpu")]
            Engine::Gpu(reader) => {
                let (tensors, written) =
                    reader.change(|tensor, weights| apply(weights, &update.tensors[tensor]));
                if let Err(error) = written {
                    self.undo(Undo { tensors });
                    return Err(error);
                }
                tensors
            }
            Engine::Tape { model, .. } => {
                let tensors = model.tensors_mut().into_iter().zip(&update.tensors);
                tensors.map(|(tensor, update)| as_slice(tensor, |weights| apply(weights, update))).collect()
            }
        };
        Ok(Undo { tensors })
    }

    /// Takes back what gave `undo`: the weights have the bits they had before it.
    ///
    /// # Panics
    /// If `undo` is of an evaluator of another model.
    pub fn undo(&mut self, undo: Undo) {
        let undo = undo.tensors.into_iter();
        match &mut self.engine {
            Engine::Host { weights, .. } => {
                assert_eq!(weights.len(), undo.len(), "an undo goes back to the evaluator that gave it");
                for (weights, (positions, previous)) in weights.iter_mut().zip(undo) {
                    sparse::restore(weights, &positions, &previous);
                }
            }
            #[cfg(feature = "gpu")]
            Engine::Gpu(reader) => {
                let undo: Vec<_> = undo.collect();
                assert_eq!(
                    self.config.shapes().len(),
                    undo.len(),
                    "an undo goes back to the evaluator that gave it"
                );
                // Should the device fail here, it says so when it is next asked for losses.
                let _ = reader.change(|tensor, weights| {
                    let (positions, previous) = &undo[tensor];
                    sparse::restore(weights, positions, previous);
                });
            }
            Engine::Tape { model, .. } => {
                let tensors = model.tensors_mut();
                assert_eq!(tensors.len(), undo.len(), "an undo goes back to the evaluator that gave it");
                for (tensor, (positions, previous)) in tensors.into_iter().zip(undo) {
                    as_slice(tensor, |weights| sparse::restore(weights, &positions, &previous));
                }
            }
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
