//! The fused engine on a GPU: [`cpu`](super::cpu) over buffers, with the kernels in `layers/*/gpu.rs`. It supports
//! AdamW only, except for a rank, whose optimiser is on the host.
//!
//! All memory is in [`Workspace`], allocated before the first step, so its size is known in advance
//! ([`MemoryEstimate`](crate::MemoryEstimate)). The CPU engine is the reference in the tests.
//!
//! **Precision.** Products read and write `F`, bf16 or f32, and so do the kernels between them. The residual stream,
//! its gradient, norms, losses, gradients of weights, weights and moments are f32. In bf16 a matrix has a copy for
//! products, which each optimiser step rewrites.
//!
//! **Waiting.** Work is queued. Only reads wait for it: the norm of all gradients and the losses, once per step. So
//! the next micro-batch is uploaded during the computation of the previous one, and the next batch is prepared during
//! the optimiser's step. With profiling on, the CPU also waits at the end of each span.

#[cfg(any(feature = "cuda", test))]
mod exchange;
mod network;
mod passes;
#[cfg(feature = "cuda")]
mod peers;
mod workspace;

use super::{
    stacks::{Stack, of_layer, ranges, stacks},
    traits::{Blocks, Engine, Gradients, RankEngine, Reduce},
};
use crate::{
    Device, DeviceMemory, MemoryEstimate, ModelError, Precision, StepParams,
    batch::Batch,
    estimate,
    gpu::{Array, GpuError, Result},
    layers::matmul::Write,
    optim::{adamw::Coefficients, weight_decay},
    slices::{parts_of, take, take_mut},
};
use model::{ModelConfig, Recipe};
use network::{Network, Weight};
use std::{borrow::Cow, ops::Range};
use workspace::Workspace;

/// Maximum number of tokens that are evaluated at once: enough to fill a GPU.
const TOKENS_MAX: usize = 8192;

/// Weights, moments and buffers in a GPU's memory.
pub struct GpuEngine {
    network: Network,
    /// One per stack.
    weights: Vec<Weight>,
    workspace: Workspace,
    training: Option<Training>,
    /// Copy of the weights in the machine's memory for evaluation, so that an edit need not download them; else empty.
    flat: Vec<f32>,
    /// `true` if the device has all of the latest weights; `false` if copying them failed.
    is_current: bool,
}

/// Purpose of an engine.
#[derive(Clone, Copy)]
pub(super) enum Purpose<'a> {
    Evaluation,
    Training(&'a Recipe),
    /// Gradients for [`DataParallel`](super::DataParallel), as one of several ranks.
    Rank {
        recipe: &'a Recipe,
        ranks: usize,
    },
}

struct Training {
    recipe: Recipe,
    /// Number of ranks; `None` for training without others.
    ranks: Option<usize>,
    /// Gradients, one array per stack. All layers share their arrays in a rank that passes on each layer's gradient at
    /// once.
    gradients: Vec<Array>,
    adds_micro_batches: bool,
    /// Moments, one per stack; `None` for a rank.
    moments: Option<Vec<Moments>>,
}

/// Reason why micro-batches of a rank failed.
enum RankFailure {
    Gpu(GpuError),
    /// The exchange of the gradient failed.
    Exchange(ModelError),
}

impl From<GpuError> for RankFailure {
    fn from(error: GpuError) -> RankFailure {
        RankFailure::Gpu(error)
    }
}

/// AdamW's moving averages of a gradient and of its square, in f32.
struct Moments {
    mean: Array,
    square: Array,
}

impl GpuEngine {
    /// Opens an engine. The caller has checked settings, recipe and length.
    ///
    /// Evaluation is in f32 unless the device names a precision: a score is a small difference of losses.
    pub(super) fn new(
        device: Device,
        config: &ModelConfig,
        purpose: Purpose<'_>,
        flat: &[f32],
    ) -> Result<GpuEngine, ModelError> {
        let (recipe, ranks) = match purpose {
            Purpose::Evaluation => (None, None),
            Purpose::Training(recipe) => (Some(recipe), None),
            Purpose::Rank { recipe, ranks } => (Some(recipe), Some(ranks)),
        };
        let precision = match recipe {
            Some(_) => device.precision_for_training(),
            None => device.precision.unwrap_or(Precision::F32),
        };
        let network = Network::open(config, device, precision)?;
        let explain = |error: &GpuError| match recipe {
            Some(recipe) => explained(config, recipe, ranks, device, error),
            None => error.on(device).into(),
        };
        let made = || -> Result<_> {
            let weights = network.weights()?;
            network.overwrite(&weights, flat)?;
            let sequences = recipe.map_or_else(|| TOKENS_MAX / config.seq_len, sequences_at_once).max(1);
            let workspace = Workspace::new(&network, sequences * config.seq_len, recipe.is_some())?;
            let training = recipe.map(|recipe| Training::new(&network, recipe, ranks)).transpose()?;
            // Buffers are allocated at the first write or wait, so lack of memory fails here.
            network.gpu.finish()?;
            Ok((weights, workspace, training))
        };
        let (weights, workspace, training) = made().map_err(|error| explain(&error))?;
        let flat = if training.is_none() { flat.to_vec() } else { Vec::new() };
        Ok(GpuEngine { network, weights, workspace, training, flat, is_current: true })
    }

    fn failed(&self, error: &GpuError) -> ModelError {
        error.on(self.network.gpu.device()).into()
    }

    fn check_current(&self) -> Result<(), ModelError> {
        let stale = || GpuError::Device("copying the latest weights to it failed".into());
        if self.is_current { Ok(()) } else { Err(self.failed(&stale())) }
    }

    /// Copies `flat`, of the right length, to the device.
    fn overwrite(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.is_current = false;
        self.network.overwrite(&self.weights, flat).map_err(|error| self.failed(&error))?;
        self.is_current = true;
        Ok(())
    }

    fn optimiser(&self) -> Result<(&Training, &[Moments]), ModelError> {
        let training = self.training.as_ref().ok_or(ModelError::NotForTraining)?;
        Ok((training, training.moments.as_deref().ok_or(ModelError::NotForTraining)?))
    }

    /// Appends a part of the flat vector that these arrays form, one per stack.
    fn read(&self, arrays: &[&Array], range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError> {
        let mut parts = parts_of(range, arrays.iter().map(|array| array.len()));
        let read =
            parts.try_for_each(|(index, part)| self.network.gpu.read_part(arrays[index], part, values));
        read.map_err(|error| self.failed(&error))
    }

    /// Returns the exchange of this engine's gradients and weights with the other ranks.
    #[cfg(any(feature = "cuda", test))]
    fn exchange_by<T: exchange::Transport>(
        &self,
        transport: T,
        [rank, ranks]: [usize; 2],
    ) -> Result<exchange::ArrayExchange<T>, ModelError> {
        let training = self.training.as_ref().ok_or(ModelError::NotForTraining)?;
        let weights = self.weights.iter().map(|weight| weight.values.clone()).collect();
        let (gpu, gradients) = (self.network.gpu.clone(), training.gradients.clone());
        let made = exchange::ArrayExchange::new(transport, gpu, [rank, ranks], gradients, weights);
        made.map_err(|error| match error {
            GpuError::OutOfMemory { .. } => ModelError::Ranks {
                why: format!(
                    "{}; or set rank_exchange = \"tcp\" under [train], whose buffers are not on the GPU",
                    training.explained(&self.network, &error)
                ),
            },
            error => self.failed(&error),
        })
    }

    fn download(&self, array: &Array) -> Result<Vec<f32>, ModelError> {
        self.network.gpu.download(array).map_err(|error| self.failed(&error))
    }

    /// Returns the mean and square of each tensor of a stack, in schema order.
    fn moments_of(&self, stack: &Stack, Moments { mean, square }: &Moments) -> Result<Vec<f32>, ModelError> {
        let (mean, square) = (self.download(mean)?, self.download(square)?);
        let (mut means, mut squares) = (&mean[..], &square[..]);
        let tensor = |&len: &usize| [take(&mut means, len), take(&mut squares, len)].concat();
        Ok(stack.tensors.iter().flat_map(tensor).collect())
    }
}

impl Training {
    fn new(network: &Network, recipe: &Recipe, ranks: Option<usize>) -> Result<Training> {
        let device = network.gpu.device();
        let adds_micro_batches =
            ranks.is_none_or(|ranks| estimate::adds_micro_batches(recipe, device, ranks));
        let stacks = stacks(&network.config);
        let zeros = |stack: &Stack| -> Result<Array> {
            let zeros = network.gpu.array(stack.len(), Precision::F32)?;
            network.gpu.fill(&zeros, 0.0)?;
            Ok(zeros)
        };
        let moments =
            |stack| -> Result<Moments> { Ok(Moments { mean: zeros(stack)?, square: zeros(stack)? }) };
        let mut gradients: Vec<Array> = Vec::with_capacity(stacks.len());
        let (first, layers) = (of_layer(0), of_layer(0).start..stacks.len() - 1);
        for (index, stack) in stacks.iter().enumerate() {
            let is_shared = !adds_micro_batches && layers.contains(&index) && !first.contains(&index);
            gradients.push(match is_shared {
                true => gradients[index - first.len()].clone(),
                false => zeros(stack)?,
            });
        }
        Ok(Training {
            recipe: recipe.clone(),
            ranks,
            gradients,
            adds_micro_batches,
            moments: match ranks {
                None => Some(stacks.iter().map(moments).collect::<Result<_>>()?),
                Some(_) => None,
            },
        })
    }

    fn explained(&self, network: &Network, error: &GpuError) -> ModelError {
        explained(&network.config, &self.recipe, self.ranks, network.gpu.device(), error)
    }

    /// Returns the losses of tokens, by micro-batch. Leaves the gradient of `Σ losses / rows` in `gradients`. During a
    /// micro-batch, calls `written` with the stacks whose gradients are complete.
    fn losses<E: From<GpuError>>(
        &self,
        network: &Network,
        weights: &[Weight],
        sequences: &[&[u32]],
        rows: usize,
        workspace: &Workspace,
        written: &mut dyn FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<Vec<Array>, E> {
        if sequences.is_empty() {
            self.gradients.iter().try_for_each(|gradient| network.gpu.fill(gradient, 0.0))?;
        }
        let scale = 1.0 / rows as f32;
        let mut on_device = Vec::new();
        for batch in sequences.chunks(sequences_at_once(&self.recipe)) {
            let batch = Batch::new(batch);
            // The first micro-batch overwrites the gradient of an earlier step.
            let write = if on_device.is_empty() { Write::Set } else { Write::Add };
            on_device.push(network.losses_and_gradients(
                weights,
                &batch,
                scale,
                write,
                &self.gradients,
                workspace,
                written,
            )?);
        }
        Ok(on_device)
    }

    /// Returns the loss of each token, and the norm of the gradient, which is left in `gradients`.
    fn losses_and_norm(
        &self,
        network: &Network,
        weights: &[Weight],
        sequences: &[&[u32]],
        workspace: &Workspace,
    ) -> Result<(Vec<f32>, f64), GpuError> {
        let (gpu, rows) = (&network.gpu, sequences.len() * network.config.seq_len);
        let on_device =
            self.losses::<GpuError>(network, weights, sequences, rows, workspace, &mut |_| Ok(()))?;
        // The CPU waits here for the device, once per step.
        let norm = tracing::trace_span!(target: "profile", "norm")
            .in_scope(|| gpu.sum_of_squares(&self.gradients.iter().collect::<Vec<_>>()))?
            .sqrt();
        let mut losses = Vec::new();
        for micro_batch in &on_device {
            losses.extend(gpu.download(micro_batch)?);
        }
        Ok((losses, norm))
    }

    #[tracing::instrument(name = "optimiser", target = "profile", level = "trace", skip_all)]
    fn step(
        &self,
        network: &Network,
        weights: &[Weight],
        moments: &[Moments],
        params: &StepParams,
    ) -> Result {
        for ((weight, gradient), Moments { mean, square }) in weights.iter().zip(&self.gradients).zip(moments)
        {
            let decay = weight_decay(&self.recipe, weight.shape);
            let coefficients = Coefficients::new(&self.recipe, params, decay);
            let copy = weight.copy.as_ref();
            network.gpu.adamw(&coefficients, &weight.values, copy, mean, square, gradient)?;
        }
        network.gpu.finish_if_profiled()
    }
}

impl Moments {
    /// Overwrites all moments with `values`, in the order of [`Engine::moments`].
    fn load(moments: &[Moments], network: &Network, values: &[f32]) -> Result {
        let mut rest = values;
        for (stack, Moments { mean, square }) in stacks(&network.config).iter().zip(moments) {
            let (mut means, mut squares) = (Vec::with_capacity(stack.len()), Vec::with_capacity(stack.len()));
            for &len in &stack.tensors {
                means.extend_from_slice(take(&mut rest, len));
                squares.extend_from_slice(take(&mut rest, len));
            }
            network.gpu.overwrite(mean, &means)?;
            network.gpu.overwrite(square, &squares)?;
        }
        network.gpu.finish()
    }
}

impl Engine for GpuEngine {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        if self.training.is_none() {
            self.flat.copy_from_slice(flat);
        }
        self.overwrite(flat)
    }

    fn weights(&self) -> Blocks<'_> {
        if self.training.is_none() {
            return Box::new(std::iter::once(Ok(Cow::Borrowed(&self.flat[..]))));
        }
        Box::new(self.weights.iter().map(|weight| Ok(Cow::Owned(self.download(&weight.values)?))))
    }

    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        let mut flat = match self.training {
            None => std::mem::take(&mut self.flat),
            Some(_) => self.weights().collect::<Result<Vec<_>, _>>()?.concat(),
        };
        let mut rest = &mut flat[..];
        let lens = stacks(&self.network.config).into_iter().flat_map(|stack| stack.tensors);
        lens.enumerate().for_each(|(tensor, len)| edit(tensor, take_mut(&mut rest, len)));
        let written = self.overwrite(&flat);
        if self.training.is_none() {
            self.flat = flat;
        }
        written
    }

    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        self.check_current()?;
        let mut losses = Vec::new();
        for batch in sequences.chunks(self.workspace.tokens / self.network.config.seq_len) {
            let on_device = self.network.losses(&self.weights, &Batch::new(batch), &self.workspace);
            let on_device = on_device.map_err(|error| self.failed(&error))?;
            losses.extend(self.download(&on_device)?.into_iter().map(f64::from));
        }
        Ok(losses)
    }

    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        self.check_current()?;
        let logits = self.network.first_logits(&self.weights, tokens, rows, &self.workspace);
        logits.map_err(|error| self.failed(&error))
    }

    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        self.check_current()?;
        let GpuEngine { network, weights, workspace, training, .. } = self;
        let training = training.as_ref().ok_or(ModelError::NotForTraining)?;
        let explain = |error| training.explained(network, &error);
        let found = training.losses_and_norm(network, weights, sequences, workspace);
        let (losses, norm) = found.map_err(explain)?;
        Ok(Gradients {
            loss: losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64,
            norm,
        })
    }

    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let (training, moments) = self.optimiser()?;
        let stepped = training.step(&self.network, &self.weights, moments, params);
        stepped.map_err(|error| self.failed(&error))
    }

    fn moments(&self) -> Blocks<'_> {
        let moments = self.training.iter().filter_map(|training| training.moments.as_ref()).flatten();
        let stacks = stacks(&self.network.config).into_iter().zip(moments);
        Box::new(stacks.map(|(stack, moments)| Ok(Cow::Owned(self.moments_of(&stack, moments)?))))
    }

    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        let (_, own) = self.optimiser()?;
        Moments::load(own, &self.network, moments).map_err(|error| self.failed(&error))
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(self.network.gpu.memory())
    }
}

impl RankEngine for GpuEngine {
    fn engine(&self) -> &dyn Engine {
        self
    }

    fn engine_mut(&mut self) -> &mut dyn Engine {
        self
    }

    fn adds_micro_batches(&self) -> bool {
        self.training.as_ref().is_some_and(|training| training.adds_micro_batches)
    }

    fn micro_batches(
        &mut self,
        sequences: &[&[u32]],
        rows: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Vec<f64>, ModelError> {
        self.check_current()?;
        let this = &*self;
        let GpuEngine { network, weights, workspace, training, .. } = this;
        let training = training.as_ref().ok_or(ModelError::NotForTraining)?;
        let ranges = ranges(&stacks(&network.config));
        let gradients: Vec<&Array> = training.gradients.iter().collect();
        let mut give = |stacks: Range<usize>| {
            let range = ranges[stacks.start].start..ranges[stacks.end - 1].end;
            reduce(range, &mut |part, values| this.read(&gradients, part, values))
        };
        let found = match training.adds_micro_batches {
            true => {
                training.losses::<RankFailure>(network, weights, sequences, rows, workspace, &mut |_| Ok(()))
            }
            false => training.losses(network, weights, sequences, rows, workspace, &mut |stacks| {
                give(stacks).map_err(RankFailure::Exchange)
            }),
        };
        let on_device = found.map_err(|failure| match failure {
            RankFailure::Gpu(error) => training.explained(network, &error),
            RankFailure::Exchange(error) => error,
        })?;
        if training.adds_micro_batches {
            give(0..ranges.len())?;
        }
        let mut losses = Vec::with_capacity(rows);
        for micro_batch in &on_device {
            losses.extend(self.download(micro_batch)?.into_iter().map(f64::from));
        }
        Ok(losses)
    }

    fn read_weights(&self, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError> {
        self.read(&self.weights.iter().map(|weight| &weight.values).collect::<Vec<_>>(), range, values)
    }

    fn write_weights(&mut self, first: usize, values: &[f32]) -> Result<(), ModelError> {
        self.is_current = false;
        let mut rest = values;
        let range = first..first + values.len();
        let mut parts = parts_of(range, self.weights.iter().map(|weight| weight.values.len()));
        let written = parts.try_for_each(|(index, part)| {
            let values = take(&mut rest, part.len());
            self.network.gpu.overwrite_part(&self.weights[index].values, part.start, values)
        });
        written.map_err(|error| self.failed(&error))
    }

    fn finish_weights(&mut self) -> Result<(), ModelError> {
        self.network.copy(&self.weights).map_err(|error| self.failed(&error))?;
        self.is_current = true;
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn connect_gpus(
        &self,
        membership: &crate::nccl::Membership,
        watch: &mut crate::collective::error::Watch<'_>,
    ) -> Result<Box<dyn super::traits::GpuExchange>, ModelError> {
        let peers = peers::Peers::connect(&self.network.gpu, membership, watch)?;
        Ok(Box::new(self.exchange_by(peers, [membership.rank, membership.ranks])?))
    }
}

/// Returns the number of sequences of a micro-batch.
fn sequences_at_once(recipe: &Recipe) -> usize {
    recipe.micro_batch.min(recipe.batch)
}

/// Converts a device's error; if memory ran out, adds the setting to change.
fn explained(
    config: &ModelConfig,
    recipe: &Recipe,
    ranks: Option<usize>,
    device: Device,
    error: &GpuError,
) -> ModelError {
    match error {
        GpuError::OutOfMemory { .. } => MemoryEstimate::ran_out(config, recipe, device, ranks).into(),
        // Smaller micro-batches make the array shorter. Checkpointing and ranks do not.
        GpuError::TooLong { .. } if 1 < sequences_at_once(recipe) => {
            MemoryEstimate::ran_out(config, recipe, device, None).into()
        }
        other => other.on(device).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceName;
    use model::init_flat;

    /// Losses of all rows and the gradients of their mean.
    type Found = (Vec<f32>, Vec<Vec<f32>>);

    fn config() -> ModelConfig {
        let config = ModelConfig::preset("117k").unwrap();
        ModelConfig {
            vocab: 100,
            d_model: 64,
            layers: 2,
            heads: 4,
            kv_heads: 2,
            d_ff: 96,
            seq_len: 32,
            ..config
        }
    }

    /// Returns `None` if the device lacks a precision of 16 bits.
    fn open(precision: Precision, recipe: Option<&Recipe>) -> Option<GpuEngine> {
        let device = Device { precision: Some(precision), ..Device::new(DeviceName::Vulkan(None)) };
        let purpose = recipe.map_or(Purpose::Evaluation, Purpose::Training);
        match GpuEngine::new(device, &config(), purpose, &flat()) {
            Err(ModelError::Device(error)) if precision != Precision::F32 => {
                println!("not compared in {precision:?}: {error}");
                None
            }
            engine => Some(engine.unwrap()),
        }
    }

    fn flat() -> Vec<f32> {
        init_flat(&config(), 1).unwrap().into_iter().map(|value| 2.0 * value).collect()
    }

    fn sequences() -> Vec<Vec<u32>> {
        (0..3u32).map(|first| (0..33).map(|at| (first * 31 + at * at * 7) % 100).collect()).collect()
    }

    fn losses_and_gradients(precision: Precision, logits_rows: usize) -> Option<Found> {
        let recipe = Recipe { batch: 3, micro_batch: 2, ..Recipe::default() };
        let mut engine = open(precision, Some(&recipe))?;
        engine.network.logits_rows = logits_rows;
        engine.workspace = Workspace::new(&engine.network, 2 * 32, true).unwrap();
        let training = engine.training.as_ref().unwrap();
        let sequences = sequences();
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let found = training.losses_and_norm(&engine.network, &engine.weights, &sequences, &engine.workspace);
        let (losses, _) = found.unwrap();
        let gradients = training.gradients.iter().map(|array| engine.download(array).unwrap());
        Some((losses, gradients.collect()))
    }

    fn largest(values: &[f32]) -> f32 {
        values.iter().fold(0.0, |largest, value| value.abs().max(largest))
    }

    #[test]
    #[ignore = "needs a Vulkan device; a CPU's stand-in (lavapipe) is enough"]
    fn logits_some_rows_at_a_time_are_those_of_all_at_once() {
        for (precision, allowed) in [(Precision::F32, 1e-5), (Precision::F16, 2e-2)] {
            let Some((exact_losses, exact)) = losses_and_gradients(precision, 1 << 20) else { continue };
            // The last value divides neither the 64 rows of the first micro-batch nor the 32 of the second.
            for logits_rows in [32, 16, 24] {
                let (losses, gradients) = losses_and_gradients(precision, logits_rows).unwrap();
                assert_eq!(losses.len(), 96);
                for (one, other) in losses.iter().zip(&exact_losses) {
                    assert!((one - other).abs() <= allowed * other.abs(), "{logits_rows}: {one} {other}");
                }
                for (part, (ours, exact)) in gradients.iter().zip(&exact).enumerate() {
                    let apart: Vec<f32> = ours.iter().zip(exact).map(|(one, other)| one - other).collect();
                    let (apart, of) = (largest(&apart), largest(exact));
                    assert!(
                        apart <= allowed * of,
                        "{precision:?} {logits_rows}, part {part}: {apart} of {of}"
                    );
                }
            }
        }
    }

    #[test]
    #[ignore = "needs a Vulkan device; a CPU's stand-in (lavapipe) is enough"]
    fn evaluation_finds_the_same_some_rows_at_a_time() {
        for (precision, allowed) in [(Precision::F32, 1e-5), (Precision::F16, 2e-2)] {
            let Some(mut engine) = open(precision, None) else { continue };
            let sequences = sequences();
            let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
            let tokens = Batch::new(&sequences).tokens;
            let found = |engine: &GpuEngine| {
                let losses = engine.losses(&sequences).unwrap();
                (losses, engine.logits(&tokens, tokens.len()).unwrap())
            };
            let (exact_losses, exact) = found(&engine);
            engine.network.logits_rows = 20;
            let (losses, logits) = found(&engine);
            assert_eq!([losses.len(), logits.len()], [96, 96 * 100]);
            for (one, other) in losses.iter().zip(&exact_losses) {
                assert!((one - other).abs() <= f64::from(allowed) * other.abs(), "{one} {other}");
            }
            let apart: Vec<f32> = logits.iter().zip(&exact).map(|(one, other)| one - other).collect();
            assert!(largest(&apart) <= allowed * largest(&exact), "{precision:?}");
        }
    }
}
