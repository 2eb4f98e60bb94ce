//! The fused engine on a GPU: [`cpu`](super::cpu) over buffers, by the kernels in `layers/*/gpu.rs`. AdamW only.
//!
//! All memory is in [`Workspace`], taken before the first step, so its size is known beforehand
//! ([`MemoryEstimate`](crate::MemoryEstimate)). The CPU's engine is its reference in the tests.
//!
//! **Precision.** Products read and write `F`, bf16 or f32, and so does what they read later. The residual stream,
//! its gradient, norms, losses, gradients of weights, weights and moments are f32. In bf16 a matrix has a copy for
//! products, which the optimiser writes when it steps.
//!
//! **Layout.** Matrices with a common input are one [`Stack`], as they lie in the flat parameter vector: queries,
//! keys and values are one product, gates and ups another.
//!
//! **Waiting.** Work is queued. Only reads wait for it: the norm of all gradients and the losses, once per step. So
//! the next micro-batch is uploaded while the last one computes, and the next batch is prepared while the optimiser
//! steps.

#![allow(non_snake_case, reason = "a length is named by its letter: see layers/mod.rs")]

use super::{Blocks, Engine, Gradients, tokens_and_targets};
use crate::{
    ActivationCheckpointing, Device, DeviceError, DeviceMemory, MemoryEstimate, ModelError, Precision,
    StepParams,
    estimate::logits_rows,
    gpu::{Array, Gpu, GpuAngles, GpuError},
    layers::{
        attention::Shape,
        matmul::{Write, gpu::View},
        rope::{Angles, Rotation},
    },
    optim::{adamw::Coefficients, weight_decay},
};
use model::{ModelConfig, Recipe};
use std::borrow::Cow;

/// Tokens that are evaluated at once: enough to fill a GPU.
pub(super) const TOKENS_MAX: usize = 8192;

/// Weights, moments and buffers in a GPU's memory.
pub struct GpuEngine {
    network: Network,
    weights: Stacks<Weight>,
    workspace: Workspace,
    purpose: Purpose,
    /// Whether the device has all of the latest weights. Not where copying them failed.
    is_current: bool,
}

enum Purpose {
    Training(Box<Training>),
    /// The weights lie in the machine's memory too, so that an edit need not download them.
    Evaluation {
        flat: Vec<f32>,
    },
}

struct Training {
    recipe: Recipe,
    gradients: Stacks<Array>,
    moments: Stacks<Moments>,
}

/// f32: AdamW's moving averages, of a gradient and of its square.
struct Moments {
    mean: Array,
    square: Array,
}

/// What the passes need besides weights and buffers, and never changes.
struct Network {
    gpu: Gpu,
    config: ModelConfig,
    shape: Shape,
    angles: GpuAngles,
    precision: Precision,
    /// Rows whose logits exist at once, at most.
    logits_rows: usize,
}

/// The buffers of forward and backward pass, for at most `tokens` tokens.
struct Workspace {
    tokens: usize,
    /// One for each layer. What is not kept, or not needed for evaluation, is the same buffer in all of them.
    layers: Vec<Activations>,
    /// f32 `[N, D]`: output of the last layer, and f32 `[N]`: inverse roots of the last norm.
    last: Array,
    last_roots: Array,
    /// `[N, D]`: output of a norm.
    normed: Array,
    /// `[N, D]`: what a product adds to the residual stream; backward, the stream's gradient as products read it.
    added: Array,
    /// `[N, F]`: the feed-forward half between its products, and its gradient.
    inner: Array,
    /// `[rows, V]`, a few rows.
    logits: Array,
    /// For training only.
    grads: Option<ActivationGradients>,
}

/// Gradients of activations.
struct ActivationGradients {
    /// f32 `[N, D]`: of the residual stream.
    x: Array,
    /// `[N, D]`: of a product's input or output.
    normed: Array,
    /// `[N, W]`
    rows: Array,
}

/// What a layer's forward pass keeps for its backward pass.
#[derive(Clone)]
struct Activations {
    /// f32 `[N, D]`: the layer's input, and f32 `[N]`: its norm's inverse roots.
    x: Array,
    roots: Array,
    /// `[N, W]`: queries, keys and values, rotated.
    rows: Array,
    /// f32 `[B, H, T]`: see `layers::attention`.
    log_sums: Array,
    /// `[N, D]`: attention's output, before its last product.
    mixed: Array,
    /// f32 `[N, D]`: the residual stream between the halves, and f32 `[N]`: its norm's inverse roots.
    middle: Array,
    middle_roots: Array,
    /// `[N, 2F]`: gates, then ups.
    gates_and_ups: Array,
}

/// One value per stack of a model, in the order of the flat parameter vector.
struct Stacks<T> {
    embedding: T,
    layers: Vec<LayerStacks<T>>,
    norm: T,
}

struct LayerStacks<T> {
    attention_norm: T,
    /// `[W, D]`: of queries, keys and values.
    rows: T,
    output: T,
    feed_forward_norm: T,
    /// `[2F, D]`: of gates and ups.
    gates_and_ups: T,
    down: T,
}

/// Neighbouring tensors of the schema that are one matrix here.
struct Stack {
    shape: [usize; 2],
    /// Values of each tensor.
    tensors: Vec<usize>,
}

/// The weights of a stack.
struct Weight {
    shape: [usize; 2],
    /// f32: the agreed weights.
    values: Array,
    /// The same for products, where those are not in f32.
    copy: Option<Array>,
}

impl GpuEngine {
    /// An engine for evaluation, or with a recipe for training. The caller has checked settings, recipe and length.
    ///
    /// Evaluation is in f32 unless the device names a precision: a score is a small difference of losses.
    pub(super) fn new(
        device: Device,
        config: &ModelConfig,
        recipe: Option<&Recipe>,
        flat: &[f32],
    ) -> Result<GpuEngine, ModelError> {
        let precision = match recipe {
            Some(_) => device.precision_for_training(),
            None => device.precision.unwrap_or(Precision::F32),
        };
        let network = Network::open(config, device, precision)?;
        let explain = |error: &GpuError| match recipe {
            Some(recipe) => explained(config, recipe, device, error),
            None => failed(device, error),
        };
        let made = || -> Result<_, GpuError> {
            let weights = network.weights()?;
            network.overwrite(&weights, flat)?;
            let sequences = recipe.map_or_else(|| TOKENS_MAX / config.seq_len, sequences_at_once).max(1);
            let workspace = network.workspace(sequences * config.seq_len, recipe.is_some())?;
            let purpose = match recipe {
                Some(recipe) => Purpose::Training(Box::new(Training::new(&network, recipe)?)),
                None => Purpose::Evaluation { flat: flat.to_vec() },
            };
            // Buffers are taken when they are first written or waited for: what does not fit fails here.
            network.gpu.finish()?;
            Ok((weights, workspace, purpose))
        };
        let (weights, workspace, purpose) = made().map_err(|error| explain(&error))?;
        Ok(GpuEngine { network, weights, workspace, purpose, is_current: true })
    }

    fn failed(&self, error: &GpuError) -> ModelError {
        failed(self.network.gpu.device(), error)
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

    fn download(&self, array: &Array) -> Result<Vec<f32>, ModelError> {
        self.network.gpu.download(array).map_err(|error| self.failed(&error))
    }

    /// The mean and square of each tensor of a stack, in schema order.
    fn moments_of(&self, stack: &Stack, Moments { mean, square }: &Moments) -> Result<Vec<f32>, ModelError> {
        let (mean, square) = (self.download(mean)?, self.download(square)?);
        let mut values = Vec::with_capacity(2 * mean.len());
        let (mut means, mut squares) = (&mean[..], &square[..]);
        for &len in &stack.tensors {
            for rest in [&mut means, &mut squares] {
                let (tensor, after) = rest.split_at(len);
                values.extend_from_slice(tensor);
                *rest = after;
            }
        }
        Ok(values)
    }
}

impl Training {
    fn new(network: &Network, recipe: &Recipe) -> Result<Training, GpuError> {
        let stacks = stacks(&network.config);
        let zeros = |stack: &Stack| {
            let zeros = network.gpu.array(stack.len(), Precision::F32)?;
            network.gpu.fill(&zeros, 0.0)?;
            Ok(zeros)
        };
        let gradients = stacks.iter().map(zeros).collect::<Result<Vec<Array>, GpuError>>()?;
        let moments = stacks.iter().map(|stack| Ok(Moments { mean: zeros(stack)?, square: zeros(stack)? }));
        let moments = moments.collect::<Result<Vec<Moments>, GpuError>>()?;
        Ok(Training {
            recipe: recipe.clone(),
            gradients: Stacks::in_order(gradients),
            moments: Stacks::in_order(moments),
        })
    }

    /// The loss of each token, and the length of the gradient, which is left in `gradients`.
    fn losses_and_norm(
        &self,
        network: &Network,
        weights: &Stacks<Weight>,
        sequences: &[&[u32]],
        workspace: &Workspace,
    ) -> Result<(Vec<f32>, f64), GpuError> {
        let gpu = &network.gpu;
        let gradients = self.gradients.all();
        for gradient in &gradients {
            gpu.fill(gradient, 0.0)?;
        }
        let scale = 1.0 / (sequences.len() * network.config.seq_len) as f32;
        let mut on_device = Vec::new();
        for sequences in sequences.chunks(sequences_at_once(&self.recipe)) {
            let (tokens, targets) = tokens_and_targets(sequences);
            let batch = Batch { tokens: &tokens, targets: &targets, scale };
            on_device.push(network.losses_and_gradients(weights, &batch, &self.gradients, workspace)?);
        }
        // The CPU waits here for the device, once per step.
        let norm = gpu.sum_of_squares(&gradients)?.sqrt();
        let mut losses = Vec::new();
        for micro_batch in &on_device {
            losses.extend(gpu.download(micro_batch)?);
        }
        Ok((losses, norm))
    }

    fn step(&self, network: &Network, weights: &Stacks<Weight>, params: &StepParams) -> Result<(), GpuError> {
        let (gradients, moments) = (self.gradients.all(), self.moments.all());
        for (index, weight) in weights.all().into_iter().enumerate() {
            let decay = weight_decay(&self.recipe, weight.shape);
            let coefficients = Coefficients::new(&self.recipe, params, decay);
            let (Moments { mean, square }, gradient) = (moments[index], gradients[index]);
            let copy = weight.copy.as_ref();
            network.gpu.adamw(&coefficients, &weight.values, copy, mean, square, gradient)?;
        }
        Ok(())
    }

    /// Overwrites all moments with `values`, in the order of [`Engine::moments`].
    fn load_moments(&self, network: &Network, values: &[f32]) -> Result<(), GpuError> {
        let mut rest = values;
        for (stack, Moments { mean, square }) in stacks(&network.config).iter().zip(self.moments.all()) {
            let (mut means, mut squares) = (Vec::with_capacity(stack.len()), Vec::with_capacity(stack.len()));
            for &len in &stack.tensors {
                for values in [&mut means, &mut squares] {
                    let (tensor, after) = rest.split_at(len);
                    values.extend_from_slice(tensor);
                    rest = after;
                }
            }
            network.gpu.overwrite(mean, &means)?;
            network.gpu.overwrite(square, &squares)?;
        }
        network.gpu.finish()
    }
}

impl Engine for GpuEngine {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        let expected = self.network.config.parameters();
        if flat.len() != expected {
            return Err(ModelError::FlatLength { expected, got: flat.len() });
        }
        if let Purpose::Evaluation { flat: copy } = &mut self.purpose {
            copy.copy_from_slice(flat);
        }
        self.overwrite(flat)
    }

    fn weights(&self) -> Blocks<'_> {
        match &self.purpose {
            Purpose::Evaluation { flat } => Box::new(std::iter::once(Ok(Cow::Borrowed(&flat[..])))),
            Purpose::Training(_) => {
                let weights = self.weights.all().into_iter();
                Box::new(weights.map(|weight| Ok(Cow::Owned(self.download(&weight.values)?))))
            }
        }
    }

    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        let mut flat = match &mut self.purpose {
            Purpose::Evaluation { flat } => std::mem::take(flat),
            Purpose::Training(_) => self.weights().collect::<Result<Vec<_>, _>>()?.concat(),
        };
        let mut rest = &mut flat[..];
        let lens = stacks(&self.network.config).into_iter().flat_map(|stack| stack.tensors);
        for (tensor, len) in lens.enumerate() {
            let (values, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            edit(tensor, values);
        }
        let written = self.overwrite(&flat);
        if let Purpose::Evaluation { flat: copy } = &mut self.purpose {
            *copy = flat;
        }
        written
    }

    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        self.check_current()?;
        let mut losses = Vec::new();
        for sequences in sequences.chunks(self.workspace.tokens / self.network.config.seq_len) {
            let (tokens, targets) = tokens_and_targets(sequences);
            let on_device = self.network.losses(&self.weights, &tokens, &targets, &self.workspace);
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
        let GpuEngine { network, weights, workspace, purpose, .. } = self;
        let Purpose::Training(training) = purpose else { return Err(ModelError::NotForTraining) };
        let explain = |error| explained(&network.config, &training.recipe, network.gpu.device(), &error);
        let found = training.losses_and_norm(network, weights, sequences, workspace);
        let (losses, norm) = found.map_err(explain)?;
        Ok(Gradients {
            loss: losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / losses.len() as f64,
            norm,
        })
    }

    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let Purpose::Training(training) = &self.purpose else { return Err(ModelError::NotForTraining) };
        training.step(&self.network, &self.weights, params).map_err(|error| self.failed(&error))
    }

    fn moments(&self) -> Blocks<'_> {
        let Purpose::Training(training) = &self.purpose else { return Box::new(std::iter::empty()) };
        let stacks = stacks(&self.network.config).into_iter().zip(training.moments.all());
        Box::new(stacks.map(|(stack, moments)| Ok(Cow::Owned(self.moments_of(&stack, moments)?))))
    }

    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        let Purpose::Training(training) = &self.purpose else { return Err(ModelError::NotForTraining) };
        let expected = 2 * self.network.config.parameters();
        if moments.len() != expected {
            return Err(ModelError::FlatLength { expected, got: moments.len() });
        }
        training.load_moments(&self.network, moments).map_err(|error| self.failed(&error))
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(self.network.gpu.memory())
    }
}

/// Whole sequences to learn from.
struct Batch<'a> {
    /// `[N]`
    tokens: &'a [u32],
    /// `[N]`
    targets: &'a [u32],
    /// The gradient is that of `scale · Σ losses`.
    scale: f32,
}

impl<T> Stacks<T> {
    fn in_order(stacks: Vec<T>) -> Stacks<T> {
        let layers = (stacks.len() - 2) / 6;
        let mut stacks = stacks.into_iter();
        let mut next = || stacks.next().expect("a model has six stacks per layer, and two more");
        Stacks {
            embedding: next(),
            layers: (0..layers)
                .map(|_| LayerStacks {
                    attention_norm: next(),
                    rows: next(),
                    output: next(),
                    feed_forward_norm: next(),
                    gates_and_ups: next(),
                    down: next(),
                })
                .collect(),
            norm: next(),
        }
    }

    fn all(&self) -> Vec<&T> {
        let mut all = vec![&self.embedding];
        for layer in &self.layers {
            let LayerStacks { attention_norm, rows, output, feed_forward_norm, gates_and_ups, down } = layer;
            all.extend([attention_norm, rows, output, feed_forward_norm, gates_and_ups, down]);
        }
        all.push(&self.norm);
        all
    }
}

/// The stacks of a model, in the order of the flat parameter vector.
fn stacks(config: &ModelConfig) -> Vec<Stack> {
    let shapes: Vec<[usize; 2]> = config.shapes().into_iter().map(|(_, shape)| shape).collect();
    let one = |shape: &[usize; 2]| Stack { shape: *shape, tensors: vec![shape[0] * shape[1]] };
    let together = |shapes: &[[usize; 2]]| Stack {
        shape: [shapes.iter().map(|[rows, _]| rows).sum(), shapes[0][1]],
        tensors: shapes.iter().map(|[rows, columns]| rows * columns).collect(),
    };
    let mut stacks = vec![one(&shapes[0])];
    for layer in shapes[1..shapes.len() - 1].chunks_exact(9) {
        stacks.extend([one(&layer[0]), together(&layer[1..4]), one(&layer[4])]);
        stacks.extend([one(&layer[5]), together(&layer[6..8]), one(&layer[8])]);
    }
    stacks.push(one(&shapes[shapes.len() - 1]));
    stacks
}

impl Stack {
    fn len(&self) -> usize {
        self.shape[0] * self.shape[1]
    }
}

impl Weight {
    /// As products read it.
    fn view(&self) -> View<'_> {
        View::new(self.copy.as_ref().unwrap_or(&self.values), self.shape)
    }
}

/// Sequences of a micro-batch.
fn sequences_at_once(recipe: &Recipe) -> usize {
    recipe.micro_batch.min(recipe.batch)
}

impl Network {
    fn open(config: &ModelConfig, device: Device, precision: Precision) -> Result<Network, ModelError> {
        let gpu = Gpu::open(device)?;
        if !gpu.supports(precision) {
            return Err(DeviceError::NoSuchPrecision { device }.into());
        }
        let angles = Angles::new(config.seq_len, config.head_width(), config.rope_theta);
        Ok(Network {
            angles: gpu.upload_angles(&angles).map_err(|error| failed(device, &error))?,
            shape: config.into(),
            precision,
            logits_rows: logits_rows(config.vocab, usize::MAX),
            config: config.clone(),
            gpu,
        })
    }

    fn checkpointing(&self) -> ActivationCheckpointing {
        self.gpu.device().activation_checkpointing
    }

    /// Buffers for `tokens` tokens, and for their gradients when `training`.
    fn workspace(&self, tokens: usize, training: bool) -> Result<Workspace, GpuError> {
        let ModelConfig { d_model: D, d_ff: F, vocab: V, heads: H, .. } = self.config;
        let W = self.shape.row_width();
        let N = tokens;
        let narrow = |width: usize| self.gpu.array(N * width, self.precision);
        let f32s = |width: usize| self.gpu.array(N * width, Precision::F32);
        let activations = || -> Result<Activations, GpuError> {
            Ok(Activations {
                x: f32s(D)?,
                roots: f32s(1)?,
                rows: narrow(W)?,
                log_sums: f32s(H)?,
                mixed: narrow(D)?,
                middle: f32s(D)?,
                middle_roots: f32s(1)?,
                gates_and_ups: narrow(2 * F)?,
            })
        };
        let first = activations()?;
        let mut layers = vec![first.clone()];
        while layers.len() < self.config.layers {
            layers.push(match self.checkpointing() {
                _ if !training => first.clone(),
                ActivationCheckpointing::Layers => Activations { x: f32s(D)?, ..first.clone() },
                ActivationCheckpointing::FeedForward => Activations {
                    x: f32s(D)?,
                    roots: f32s(1)?,
                    rows: narrow(W)?,
                    log_sums: f32s(H)?,
                    mixed: narrow(D)?,
                    middle: f32s(D)?,
                    middle_roots: f32s(1)?,
                    gates_and_ups: first.gates_and_ups.clone(),
                },
                ActivationCheckpointing::None => activations()?,
            });
        }
        Ok(Workspace {
            tokens,
            layers,
            last: if training { f32s(D)? } else { first.x },
            last_roots: f32s(1)?,
            normed: narrow(D)?,
            added: narrow(D)?,
            inner: narrow(F)?,
            logits: self.gpu.array(self.logits_rows.min(N) * V, self.precision)?,
            grads: match training {
                true => Some(ActivationGradients { x: f32s(D)?, normed: narrow(D)?, rows: narrow(W)? }),
                false => None,
            },
        })
    }

    /// Weights that are not yet written.
    fn weights(&self) -> Result<Stacks<Weight>, GpuError> {
        let make = |stack: Stack| {
            // A norm's gain goes into no product.
            let copied = stack.shape[0] > 1 && self.precision != Precision::F32;
            Ok(Weight {
                shape: stack.shape,
                values: self.gpu.array(stack.len(), Precision::F32)?,
                copy: if copied { Some(self.gpu.array(stack.len(), self.precision)?) } else { None },
            })
        };
        Ok(Stacks::in_order(stacks(&self.config).into_iter().map(make).collect::<Result<_, GpuError>>()?))
    }

    /// Writes `flat` over these weights.
    fn overwrite(&self, weights: &Stacks<Weight>, flat: &[f32]) -> Result<(), GpuError> {
        let mut rest = flat;
        weights.all().into_iter().try_for_each(|Weight { values, copy, .. }| {
            let (new, after) = rest.split_at(values.len());
            rest = after;
            self.gpu.overwrite(values, new)?;
            copy.as_ref().map_or(Ok(()), |copy| self.gpu.cast(values, copy))
        })
    }

    /// `y = x·Wᵀ`
    fn product(&self, y: &Array, x: &Array, weight: &Weight) -> Result<(), GpuError> {
        let [outputs, inputs] = weight.shape;
        let rows = y.len() / outputs;
        let (x, weight) = (View::new(x, [rows, inputs]), weight.view().transposed());
        self.gpu.product(Write::Set, y, [rows, outputs], x, weight)
    }

    /// `grad_x = grad_y·W`
    fn product_backward(&self, grad_x: &Array, grad_y: &Array, weight: &Weight) -> Result<(), GpuError> {
        let [outputs, inputs] = weight.shape;
        let rows = grad_x.len() / inputs;
        self.gpu.product(
            Write::Set,
            grad_x,
            [rows, inputs],
            View::new(grad_y, [rows, outputs]),
            weight.view(),
        )
    }

    /// `grad_W += grad_yᵀ·x`
    fn add_gradient(
        &self,
        gradient: &Array,
        [outputs, inputs]: [usize; 2],
        grad_y: &Array,
        x: &Array,
    ) -> Result<(), GpuError> {
        let rows = x.len() / inputs;
        let (grad_y, x) = (View::new(grad_y, [rows, outputs]), View::new(x, [rows, inputs]));
        self.gpu.product(Write::Add, gradient, [outputs, inputs], grad_y.transposed(), x)
    }

    /// The loss of each token of whole sequences, in nats.
    fn losses(
        &self,
        weights: &Stacks<Weight>,
        tokens: &[u32],
        targets: &[u32],
        workspace: &Workspace,
    ) -> Result<Array, GpuError> {
        let workspace = &self.part_of(workspace, tokens.len())?;
        self.hidden(weights, tokens, workspace)?;
        let targets = self.gpu.upload_tokens(self.config.vocab, targets)?;
        let losses = self.gpu.array(tokens.len(), Precision::F32)?;
        for (first, rows) in self.chunks(tokens.len()) {
            let logits = self.logits(weights, workspace, first, rows)?;
            self.gpu.cross_entropy(&logits, &targets, first, &losses)?;
        }
        Ok(losses)
    }

    /// The logits `[rows, V]` of the first `rows` tokens of whole sequences.
    fn first_logits(
        &self,
        weights: &Stacks<Weight>,
        tokens: &[u32],
        rows: usize,
        workspace: &Workspace,
    ) -> Result<Vec<f32>, GpuError> {
        let workspace = &self.part_of(workspace, tokens.len())?;
        self.hidden(weights, tokens, workspace)?;
        let mut values = Vec::with_capacity(rows * self.config.vocab);
        for (first, rows) in self.chunks(rows) {
            values.extend(self.gpu.download(&self.logits(weights, workspace, first, rows)?)?);
        }
        Ok(values)
    }

    /// The loss of each token. Adds the batch's gradients to `gradients`.
    fn losses_and_gradients(
        &self,
        weights: &Stacks<Weight>,
        batch: &Batch,
        gradients: &Stacks<Array>,
        workspace: &Workspace,
    ) -> Result<Array, GpuError> {
        let workspace = &self.part_of(workspace, batch.tokens.len())?;
        let Some(grads) = &workspace.grads else {
            return Err(GpuError::WrongLength { expected: batch.tokens.len() * self.config.d_model, got: 0 });
        };
        self.hidden(weights, batch.tokens, workspace)?;
        let losses = self.head_backward(weights, batch, gradients, workspace, grads)?;

        // The layers, from the last, whose activations are kept in any case.
        for (layer, activations) in workspace.layers.iter().enumerate().rev() {
            let is_last = layer + 1 == workspace.layers.len();
            let (weights, gradients) = (&weights.layers[layer], &gradients.layers[layer]);
            if self.checkpointing() == ActivationCheckpointing::Layers && !is_last {
                self.attend(weights, activations, workspace)?;
                self.norm(
                    &activations.middle,
                    &weights.feed_forward_norm,
                    workspace,
                    &activations.middle_roots,
                )?;
            }
            let again = self.checkpointing() != ActivationCheckpointing::None && !is_last;
            self.feed_forward_backward(weights, gradients, activations, workspace, grads, again)?;
            self.attend_backward(weights, gradients, activations, workspace, grads)?;
        }
        let segments = self.gpu.upload_segments(self.config.vocab, batch.tokens)?;
        self.gpu.embedding_backward(&segments, &grads.x, &gradients.embedding)?;
        Ok(losses)
    }

    /// The vocabulary, forward and backward, a few rows at a time, and the last norm. Leaves the gradient of the last
    /// layer's output in `grads.x`.
    fn head_backward(
        &self,
        weights: &Stacks<Weight>,
        batch: &Batch,
        gradients: &Stacks<Array>,
        workspace: &Workspace,
        grads: &ActivationGradients,
    ) -> Result<Array, GpuError> {
        let (D, gpu) = (self.config.d_model, &self.gpu);
        let targets = gpu.upload_tokens(self.config.vocab, batch.targets)?;
        let losses = gpu.array(batch.tokens.len(), Precision::F32)?;
        for (first, rows) in self.chunks(batch.tokens.len()) {
            let logits = self.logits(weights, workspace, first, rows)?;
            gpu.cross_entropy_gradient(&logits, &targets, first, &losses, batch.scale)?;
            let hidden = gpu.part(&workspace.normed, first * D, rows * D)?;
            let grad_hidden = gpu.part(&grads.normed, first * D, rows * D)?;
            self.product_backward(&grad_hidden, &logits, &weights.embedding)?;
            self.add_gradient(&gradients.embedding, weights.embedding.shape, &logits, &hidden)?;
        }
        gpu.fill(&grads.x, 0.0)?;
        let (x, roots, gain) = (&workspace.last, &workspace.last_roots, &weights.norm.values);
        gpu.rms_norm_backward(x, gain, roots, &grads.normed, &grads.x, &gradients.norm)?;
        Ok(losses)
    }

    /// Hidden states after the last norm, in `workspace.normed`.
    fn hidden(
        &self,
        weights: &Stacks<Weight>,
        tokens: &[u32],
        workspace: &Workspace,
    ) -> Result<(), GpuError> {
        let tokens = self.gpu.upload_tokens(self.config.vocab, tokens)?;
        self.gpu.embedding(&weights.embedding.values, &tokens, &workspace.layers[0].x)?;
        for (index, (weights, activations)) in weights.layers.iter().zip(&workspace.layers).enumerate() {
            let next = workspace.layers.get(index + 1).map_or(&workspace.last, |next| &next.x);
            self.attend(weights, activations, workspace)?;
            self.feed_forward(weights, activations, workspace, next)?;
        }
        self.norm(&workspace.last, &weights.norm, workspace, &workspace.last_roots)
    }

    /// The half of a layer that mixes tokens: from `activations.x` to `activations.middle`.
    fn attend(
        &self,
        weights: &LayerStacks<Weight>,
        activations: &Activations,
        workspace: &Workspace,
    ) -> Result<(), GpuError> {
        let Activations { x, roots, rows, log_sums, mixed, middle, .. } = activations;
        self.norm(x, &weights.attention_norm, workspace, roots)?;
        self.product(rows, &workspace.normed, &weights.rows)?;
        self.rotate(rows, Rotation::Forward)?;
        self.gpu.attention(&self.shape, rows, mixed, log_sums)?;
        self.product(&workspace.added, mixed, &weights.output)?;
        self.gpu.add(x, &workspace.added, middle)
    }

    /// The half that works on single tokens: from `activations.middle` to `next`.
    fn feed_forward(
        &self,
        weights: &LayerStacks<Weight>,
        activations: &Activations,
        workspace: &Workspace,
        next: &Array,
    ) -> Result<(), GpuError> {
        let Activations { middle, middle_roots, gates_and_ups, .. } = activations;
        self.norm(middle, &weights.feed_forward_norm, workspace, middle_roots)?;
        self.product(gates_and_ups, &workspace.normed, &weights.gates_and_ups)?;
        self.gpu.swiglu(gates_and_ups, self.config.d_ff, &workspace.inner)?;
        self.product(&workspace.added, &workspace.inner, &weights.down)?;
        self.gpu.add(middle, &workspace.added, next)
    }

    /// Replaces `grads.x`, the gradient of what [`feed_forward`](Self::feed_forward) wrote, by that of what it read.
    /// Gates and ups are computed `again` if they were not kept.
    fn feed_forward_backward(
        &self,
        weights: &LayerStacks<Weight>,
        gradients: &LayerStacks<Array>,
        activations: &Activations,
        workspace: &Workspace,
        grads: &ActivationGradients,
        again: bool,
    ) -> Result<(), GpuError> {
        let Activations { middle, middle_roots, gates_and_ups, .. } = activations;
        let gain = &weights.feed_forward_norm.values;
        self.gpu.rms_norm_from_roots(middle, gain, middle_roots, &workspace.normed)?;
        if again {
            self.product(gates_and_ups, &workspace.normed, &weights.gates_and_ups)?;
        }
        let grad_next = self.as_operand(&grads.x, workspace)?;
        self.product_backward(&workspace.inner, grad_next, &weights.down)?;
        // Afterwards `gates_and_ups` are gradients, and `inner` is what it was in the forward pass.
        self.gpu.swiglu_backward(gates_and_ups, self.config.d_ff, &workspace.inner)?;
        self.add_gradient(&gradients.down, weights.down.shape, grad_next, &workspace.inner)?;

        let shape = weights.gates_and_ups.shape;
        self.add_gradient(&gradients.gates_and_ups, shape, gates_and_ups, &workspace.normed)?;
        self.product_backward(&grads.normed, gates_and_ups, &weights.gates_and_ups)?;
        let grad_gain = &gradients.feed_forward_norm;
        self.gpu.rms_norm_backward(middle, gain, middle_roots, &grads.normed, &grads.x, grad_gain)
    }

    /// Replaces `grads.x`, the gradient of what [`attend`](Self::attend) wrote, by that of what it read.
    fn attend_backward(
        &self,
        weights: &LayerStacks<Weight>,
        gradients: &LayerStacks<Array>,
        activations: &Activations,
        workspace: &Workspace,
        grads: &ActivationGradients,
    ) -> Result<(), GpuError> {
        let Activations { x, roots, rows, log_sums, mixed, .. } = activations;
        let grad_middle = self.as_operand(&grads.x, workspace)?;
        let grad_mixed = &grads.normed;
        self.product_backward(grad_mixed, grad_middle, &weights.output)?;
        self.add_gradient(&gradients.output, weights.output.shape, grad_middle, mixed)?;
        self.gpu.attention_backward(&self.shape, rows, mixed, log_sums, grad_mixed, &grads.rows)?;
        self.rotate(&grads.rows, Rotation::Back)?;

        let gain = &weights.attention_norm.values;
        self.gpu.rms_norm_from_roots(x, gain, roots, &workspace.normed)?;
        self.add_gradient(&gradients.rows, weights.rows.shape, &grads.rows, &workspace.normed)?;
        self.product_backward(&grads.normed, &grads.rows, &weights.rows)?;
        self.gpu.rms_norm_backward(x, gain, roots, &grads.normed, &grads.x, &gradients.attention_norm)
    }

    fn rotate(&self, rows: &Array, rotation: Rotation) -> Result<(), GpuError> {
        let ModelConfig { heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        self.gpu.rope(rows, self.shape.row_width(), [H, K], T, &self.angles, rotation)
    }

    fn norm(&self, x: &Array, gain: &Weight, workspace: &Workspace, roots: &Array) -> Result<(), GpuError> {
        self.gpu.rms_norm(x, &gain.values, self.config.norm_epsilon as f32, &workspace.normed, roots)
    }

    /// The residual stream's gradient as products read it: itself, or rounded into `workspace.added`.
    fn as_operand<'a>(&self, grad_x: &'a Array, workspace: &'a Workspace) -> Result<&'a Array, GpuError> {
        if self.precision == Precision::F32 {
            return Ok(grad_x);
        }
        self.gpu.cast(grad_x, &workspace.added)?;
        Ok(&workspace.added)
    }

    /// The logits of some rows of `workspace.normed`.
    fn logits(
        &self,
        weights: &Stacks<Weight>,
        workspace: &Workspace,
        first: usize,
        rows: usize,
    ) -> Result<Array, GpuError> {
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let hidden = self.gpu.part(&workspace.normed, first * D, rows * D)?;
        let logits = self.gpu.part(&workspace.logits, 0, rows * V)?;
        self.product(&logits, &hidden, &weights.embedding)?;
        Ok(logits)
    }

    /// `rows` in chunks whose logits exist at once: the first of each, and their number.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let most = self.logits_rows;
        (0..rows).step_by(most).map(move |first| (first, most.min(rows - first)))
    }

    /// The same buffers for fewer tokens.
    fn part_of(&self, workspace: &Workspace, tokens: usize) -> Result<Workspace, GpuError> {
        let of = |array: &Array| self.gpu.part(array, 0, array.len() / workspace.tokens * tokens);
        let activations = |activations: &Activations| {
            Ok(Activations {
                x: of(&activations.x)?,
                roots: of(&activations.roots)?,
                rows: of(&activations.rows)?,
                log_sums: of(&activations.log_sums)?,
                mixed: of(&activations.mixed)?,
                middle: of(&activations.middle)?,
                middle_roots: of(&activations.middle_roots)?,
                gates_and_ups: of(&activations.gates_and_ups)?,
            })
        };
        Ok(Workspace {
            tokens,
            layers: workspace
                .layers
                .iter()
                .map(activations)
                .collect::<Result<Vec<Activations>, GpuError>>()?,
            last: of(&workspace.last)?,
            last_roots: of(&workspace.last_roots)?,
            normed: of(&workspace.normed)?,
            added: of(&workspace.added)?,
            inner: of(&workspace.inner)?,
            logits: workspace.logits.clone(),
            grads: match &workspace.grads {
                Some(ActivationGradients { x, normed, rows }) => {
                    Some(ActivationGradients { x: of(x)?, normed: of(normed)?, rows: of(rows)? })
                }
                None => None,
            },
        })
    }
}

/// A device's error with the setting to change, where memory ran out.
fn explained(config: &ModelConfig, recipe: &Recipe, device: Device, error: &GpuError) -> ModelError {
    match error {
        GpuError::OutOfMemory { .. } | GpuError::TooLong { .. } => {
            MemoryEstimate::ran_out(config, recipe, device).into()
        }
        other => failed(device, other),
    }
}

fn failed(device: Device, error: &GpuError) -> ModelError {
    DeviceError::Failed { device, why: error.to_string() }.into()
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

    /// `None` where there is no such device, or it lacks the precision.
    fn open(precision: Precision, recipe: Option<&Recipe>) -> Option<GpuEngine> {
        let device = Device { precision: Some(precision), ..Device::new(DeviceName::Vulkan) };
        match GpuEngine::new(device, &config(), recipe, &flat()) {
            Err(ModelError::Device(error)) => {
                println!("left out: {error}");
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
        engine.workspace = engine.network.workspace(2 * 32, true).unwrap();
        let Purpose::Training(training) = &engine.purpose else { panic!("it was opened with a recipe") };
        let sequences = sequences();
        let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
        let found = training.losses_and_norm(&engine.network, &engine.weights, &sequences, &engine.workspace);
        let (losses, _) = found.unwrap();
        let gradients = training.gradients.all().into_iter().map(|array| engine.download(array).unwrap());
        Some((losses, gradients.collect()))
    }

    fn largest(values: &[f32]) -> f32 {
        values.iter().fold(0.0, |largest, value| value.abs().max(largest))
    }

    #[test]
    fn logits_some_rows_at_a_time_are_those_of_all_at_once() {
        for (precision, allowed) in [(Precision::F32, 1e-5), (Precision::F16, 2e-2)] {
            let Some((exact_losses, exact)) = losses_and_gradients(precision, 1 << 20) else { continue };
            // The last divides neither the 64 rows of the first micro-batch nor the 32 of the second.
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
    fn evaluation_finds_the_same_some_rows_at_a_time() {
        for (precision, allowed) in [(Precision::F32, 1e-5), (Precision::F16, 2e-2)] {
            let Some(mut engine) = open(precision, None) else { continue };
            let sequences = sequences();
            let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
            let (tokens, _) = tokens_and_targets(&sequences);
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
