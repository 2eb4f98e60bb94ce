//! The fused engine on the CPU: the network forward and backward over slices, without autograd.
//!
//! Products add into their destination, and a kernel does everything between two products in one pass. Inputs of the
//! backward pass are kept or recomputed, whichever is cheaper. All buffers are in `Workspace`, which is reused, so its
//! size is known in advance ([`MemoryEstimate`](crate::MemoryEstimate)).
//!
//! The gradient of a product `y = x·Wᵀ` is `grad_y·W` for `x` and `grad_yᵀ·x` for `W`. The letters of shapes are in
//! [`layers`](crate::layers).

#![allow(non_snake_case, reason = "a length is named by its letter: see layers/mod.rs")]

use super::{
    stacks::{LayerStacks, Stack, Stacks, ranges, stacks},
    traits::{Blocks, Engine, Gradients, KvCache, RankEngine, Read, Reduce},
};
use crate::{
    ModelError, StepParams,
    batch::Batch,
    estimate::LOGITS_MAX,
    layers::{
        attention, cross_entropy,
        matmul::{Mat, MatMut, Threads, Write, few_rows, matmul},
        rms_norm,
        rope::{self, Angles, Rotation},
        swiglu,
    },
    memory::keep_freed_memory,
    optim::{self, Tensor, muon, norm},
    slices::{take, take_mut},
};
use model::{ModelConfig, Recipe};
use rayon::prelude::*;
use std::{borrow::Cow, ops::Range};

/// Maximum number of tokens that are evaluated at once. More would not be faster.
const TOKENS_MAX: usize = 2048;

/// Weights, moments and buffers in the machine's memory.
pub struct CpuEngine {
    network: Network,
    /// The flat parameter vector.
    weights: Vec<f32>,
    /// Gradient of the flat parameter vector. Empty until the first gradient, and for a rank.
    gradients: Vec<f32>,
    workspace: Workspace,
    training: Option<Training>,
}

struct Training {
    recipe: Recipe,
    /// Moments in the order of [`Engine::moments`].
    moments: Vec<f32>,
    muon: muon::Scratch,
}

impl CpuEngine {
    /// Returns an engine for evaluation, or with a recipe for training. The caller has checked configuration and
    /// length.
    pub(crate) fn new(config: &ModelConfig, recipe: Option<&Recipe>, flat: &[f32]) -> CpuEngine {
        keep_freed_memory();
        let training = |recipe: &Recipe| Training {
            moments: vec![0.0; optim::moment_count(config, recipe.optimiser)],
            recipe: recipe.clone(),
            muon: muon::Scratch::default(),
        };
        CpuEngine {
            network: Network::new(config),
            weights: flat.to_vec(),
            gradients: Vec::new(),
            workspace: Workspace::default(),
            training: recipe.map(training),
        }
    }
}

impl Engine for CpuEngine {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.weights.copy_from_slice(flat);
        Ok(())
    }

    fn weights(&self) -> Blocks<'_> {
        Box::new(std::iter::once(Ok(Cow::Borrowed(&self.weights[..]))))
    }

    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        let mut rest = &mut self.weights[..];
        for (index, &len) in self.network.tensor_lens().enumerate() {
            edit(index, take_mut(&mut rest, len));
        }
        Ok(())
    }

    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        let mut workspace = Workspace::default();
        let batches = sequences.chunks((TOKENS_MAX / self.network.config.seq_len).max(1));
        let losses = |batch| self.network.losses(&self.weights, &Batch::new(batch), &mut workspace);
        Ok(batches.flat_map(losses).collect())
    }

    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        Ok(self.network.logits(&self.weights, tokens, rows, &mut Workspace::default()))
    }

    fn cache(&self, tokens: usize) -> Option<KvCache> {
        Some(KvCache::new(&self.network.config, tokens))
    }

    fn extend(&self, reads: &mut [Read<'_>], rows: usize) -> Result<Vec<f32>, ModelError> {
        // One thread does the work of a few rows. Started inside the pool, it does not wait for another thread to
        // wake.
        let extend = |_: &_| self.network.extend(&self.weights, reads, rows, &mut Workspace::default());
        Ok(rayon::scope(extend))
    }

    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        let CpuEngine { network, weights, gradients, workspace, training } = self;
        let Training { recipe, .. } = training.as_ref().ok_or(ModelError::NotForTraining)?;
        let rows = sequences.len() * network.config.seq_len;
        let scale = 1.0 / rows as f32;
        let gradients = zeroed(gradients, weights.len());
        let mut losses = Vec::with_capacity(rows);
        let mut add_up = |range: Range<usize>, values: &[f32]| {
            add(&mut gradients[range], values);
            Ok(())
        };
        for batch in sequences.chunks(recipe.micro_batch) {
            let batch = Batch::new(batch);
            losses.extend(network.losses_and_gradients(weights, &batch, scale, &mut add_up, workspace)?);
        }
        let norm = tracing::trace_span!(target: "profile", "norm").in_scope(|| {
            let mut rest = &gradients[..];
            let squares = network.tensor_lens().map(|&len| norm::norm_squared(take(&mut rest, len)));
            squares.sum::<f64>().sqrt()
        });
        Ok(Gradients { loss: losses.iter().sum::<f64>() / rows as f64, norm })
    }

    #[tracing::instrument(name = "optimiser", target = "profile", level = "trace", skip_all)]
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        let CpuEngine { network, weights, gradients, training, .. } = self;
        let Training { recipe, moments, muon } = training.as_mut().ok_or(ModelError::NotForTraining)?;
        let (mut gradients, mut moments, mut weights) =
            (&*sized(gradients, weights.len()), &mut moments[..], &mut weights[..]);
        for (index, (_, shape)) in network.config.shapes().into_iter().enumerate() {
            let len = shape[0] * shape[1];
            let tensor = Tensor::of(recipe, index, shape);
            let (weights, gradient) = (take_mut(&mut weights, len), take(&mut gradients, len));
            optim::step(recipe, params, &tensor, weights, gradient, &mut moments, muon);
        }
        Ok(())
    }

    fn moments(&self) -> Blocks<'_> {
        Box::new(self.training.iter().map(|training| Ok(Cow::Borrowed(&training.moments[..]))))
    }

    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        let training = self.training.as_mut().ok_or(ModelError::NotForTraining)?;
        training.moments.copy_from_slice(moments);
        Ok(())
    }
}

impl RankEngine for CpuEngine {
    fn engine(&self) -> &dyn Engine {
        self
    }

    fn engine_mut(&mut self) -> &mut dyn Engine {
        self
    }

    fn adds_micro_batches(&self) -> bool {
        false
    }

    fn micro_batches(
        &mut self,
        sequences: &[&[u32]],
        rows: usize,
        reduce: &mut Reduce<'_>,
    ) -> Result<Vec<f64>, ModelError> {
        let CpuEngine { network, weights, workspace, .. } = self;
        let mut give = |range: Range<usize>, gradient: &[f32]| {
            let first = range.start;
            let read = &mut |part: Range<usize>, values: &mut Vec<f32>| {
                values.extend_from_slice(&gradient[part.start - first..part.end - first]);
                Ok(())
            };
            reduce(range, read)
        };
        let (batch, scale) = (Batch::new(sequences), 1.0 / rows as f32);
        network.losses_and_gradients(weights, &batch, scale, &mut give, workspace)
    }

    fn read_weights(&self, range: Range<usize>, values: &mut Vec<f32>) -> Result<(), ModelError> {
        values.extend_from_slice(&self.weights[range]);
        Ok(())
    }

    fn write_weights(&mut self, first: usize, values: &[f32]) -> Result<(), ModelError> {
        self.weights[first..first + values.len()].copy_from_slice(values);
        Ok(())
    }

    fn finish_weights(&mut self) -> Result<(), ModelError> {
        Ok(())
    }
}

/// Function that receives a micro-batch's gradient of one stack, and its range of the flat vector.
type TakeGradient<'a> = dyn FnMut(Range<usize>, &[f32]) -> Result<(), ModelError> + 'a;

/// Constants of the passes.
struct Network {
    config: ModelConfig,
    stacks: Vec<Stack>,
    /// Ranges of the flat parameter vector.
    ranges: Stacks<Range<usize>>,
    attention: attention::Shape,
    angles: Angles,
}

/// Buffers of the passes. They grow to the size for the largest batch, and do not shrink.
#[derive(Default)]
struct Workspace {
    /// Activations of each layer, or a single one for evaluation.
    layers: Vec<Activations>,
    /// `[N, D]`: output of the last layer, and `[N]`: inverse roots of the last norm.
    last: Vec<f32>,
    last_roots: Vec<f32>,
    /// `[N, D]`: output of a norm.
    normed: Vec<f32>,
    /// `[N, F]`: the feed-forward half between its products, and its gradient.
    inner: Vec<f32>,
    /// `[rows, V]`: logits of a few rows.
    logits: Vec<f32>,
    /// `[N, D]`: gradients of the residual stream, and of a product's input or output.
    grad_x: Vec<f32>,
    grad_normed: Vec<f32>,
    /// `[N, W]`: gradient of queries, keys and values.
    grad_rows: Vec<f32>,
    /// A micro-batch's part of a gradient: of a stack within the layers, of the embedding `[V, D]`, of a gain `[D]`.
    /// Each value of the sum takes one addition per micro-batch, so that sums over ranks have the same bits.
    grad_stack: Vec<f32>,
    grad_embedding: Vec<f32>,
    grad_gain: Vec<f32>,
}

/// Values that a layer's forward pass keeps for its backward pass.
#[derive(Default)]
struct Activations {
    /// `[N, D]`: the layer's input, and `[N]`: its norm's inverse roots.
    x: Vec<f32>,
    roots: Vec<f32>,
    /// `[N, W]`: queries, keys and values, rotated.
    rows: Vec<f32>,
    /// `[B, H, T]`: see `layers::attention`.
    log_sums: Vec<f32>,
    /// `[N, D]`: attention's output, before its last product.
    mixed: Vec<f32>,
    /// `[N, D]`: the residual stream between the halves, and `[N]`: its norm's inverse roots.
    middle: Vec<f32>,
    middle_roots: Vec<f32>,
    /// `[N, 2F]`: gates, then ups.
    gates_and_ups: Vec<f32>,
}

impl Network {
    fn new(config: &ModelConfig) -> Network {
        let stacks = stacks(config);
        Network {
            ranges: Stacks::in_order(ranges(&stacks)),
            stacks,
            attention: config.into(),
            angles: Angles::new(config.seq_len, config.head_width(), config.rope_theta),
            config: config.clone(),
        }
    }

    /// Returns the number of values of each tensor, in schema order.
    fn tensor_lens(&self) -> impl Iterator<Item = &usize> {
        self.stacks.iter().flat_map(|stack| &stack.tensors)
    }

    /// Returns the flat parameter vector as stacks.
    fn stacks<'a>(&self, flat: &'a [f32]) -> Stacks<&'a [f32]> {
        let mut rest = flat;
        Stacks::in_order(self.stacks.iter().map(|stack| take(&mut rest, stack.len())).collect())
    }

    /// Returns the loss of each token.
    fn losses(&self, weights: &[f32], batch: &Batch, workspace: &mut Workspace) -> Vec<f64> {
        let weights = self.stacks(weights);
        self.forward_sequences(&weights, &batch.tokens, 1, workspace);
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let mut losses = Vec::with_capacity(batch.targets.len());
        for (first, targets) in logits_chunks(&batch.targets, V) {
            let rows = targets.len();
            let hidden = Mat::new(&workspace.normed[first * D..][..rows * D], [rows, D]);
            let logits = sized(&mut workspace.logits, rows * V);
            product(Write::Set, logits, [rows, V], hidden, Mat::new(weights.embedding, [V, D]).transposed());
            losses.extend(cross_entropy::losses(logits, V, targets));
        }
        losses
    }

    /// Returns the logits `[rows, V]` of the first `rows` tokens.
    fn logits(&self, weights: &[f32], tokens: &[u32], rows: usize, workspace: &mut Workspace) -> Vec<f32> {
        let weights = self.stacks(weights);
        self.forward_sequences(&weights, tokens, 1, workspace);
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let mut logits = vec![0.0; rows * V];
        Products::Whole.linear(
            Write::Set,
            &mut logits,
            &workspace.normed[..rows * D],
            weights.embedding,
            [V, D],
        );
        logits
    }

    /// Appends the tokens of each read to its cache. See [`Engine::extend`].
    fn extend(
        &self,
        weights: &[f32],
        reads: &mut [Read<'_>],
        rows: usize,
        workspace: &mut Workspace,
    ) -> Vec<f32> {
        let weights = self.stacks(weights);
        let ModelConfig { vocab: V, d_model: D, heads: H, kv_heads: K, .. } = self.config;
        let W = self.attention.row_width();
        let tokens: Vec<u32> = reads.iter().flat_map(|read| read.tokens).copied().collect();
        let (N, each) = (tokens.len(), tokens.len() / reads.len());
        let products = if each == 1 { Products::ByRow } else { Products::Whole };
        let mix = &mut |layer: usize, rows: &mut [f32], mixed: &mut [f32], _: &mut Vec<f32>| {
            for (rows, Read { cache, .. }) in rows.chunks_exact_mut(each * W).zip(&mut *reads) {
                for (at, row) in rows.chunks_exact_mut(W).enumerate() {
                    rope::rotate_at(row, [H, K], cache.tokens + at, &self.angles);
                }
                attention::append(&self.attention, rows, &mut cache.layers[layer]);
            }
            let caches: Vec<&[attention::CachedHead]> =
                reads.iter().map(|read| &read.cache.layers[layer][..]).collect();
            attention::forward_cached(&self.attention, rows, &caches, mixed);
        };
        self.forward(&weights, &tokens, 1, products, mix, workspace);
        for read in reads {
            read.cache.tokens += each;
        }
        let products = if rows == 1 { Products::ByRow } else { products };
        let hidden = &workspace.normed[(N - rows) * D..];
        let mut logits = vec![0.0; rows * V];
        products.linear(Write::Set, &mut logits, hidden, weights.embedding, [V, D]);
        logits
    }

    /// Returns the loss of each token. Passes the gradients of `scale · Σ losses` to `take`, from the last stack to
    /// the first.
    fn losses_and_gradients(
        &self,
        weights: &[f32],
        batch: &Batch,
        scale: f32,
        take: &mut TakeGradient<'_>,
        workspace: &mut Workspace,
    ) -> Result<Vec<f64>, ModelError> {
        let weights = self.stacks(weights);
        self.forward_sequences(&weights, &batch.tokens, weights.layers.len(), workspace);
        zeroed(&mut workspace.grad_embedding, weights.embedding.len());
        let losses = self.head_backward(&weights, batch, scale, take, workspace)?;
        self.backward(&weights, &batch.tokens, take, workspace)?;
        Ok(losses)
    }

    /// Runs the backward pass of the layers, from the last, and of the embedding.
    #[tracing::instrument(name = "backward", target = "profile", level = "trace", skip_all)]
    fn backward(
        &self,
        weights: &Stacks<&[f32]>,
        tokens: &[u32],
        take: &mut TakeGradient<'_>,
        workspace: &mut Workspace,
    ) -> Result<(), ModelError> {
        for (layer, weights) in weights.layers.iter().enumerate().rev() {
            self.feed_forward_backward(weights, take, layer, workspace)?;
            self.attend_backward(weights, take, layer, workspace)?;
        }
        let D = self.config.d_model;
        for (row, &token) in workspace.grad_x.chunks_exact(D).zip(tokens) {
            let gradient = &mut workspace.grad_embedding[token as usize * D..][..D];
            add(gradient, row);
        }
        take(self.ranges.embedding.clone(), &workspace.grad_embedding)
    }

    /// Runs the product with the vocabulary forward and backward, a few rows at a time, and the last norm backward.
    /// Leaves the gradient of the last layer's output in `workspace.grad_x`.
    #[tracing::instrument(name = "loss", target = "profile", level = "trace", skip_all)]
    fn head_backward(
        &self,
        weights: &Stacks<&[f32]>,
        batch: &Batch,
        scale: f32,
        take: &mut TakeGradient<'_>,
        workspace: &mut Workspace,
    ) -> Result<Vec<f64>, ModelError> {
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let mut losses = Vec::with_capacity(batch.targets.len());
        let grad_normed = sized(&mut workspace.grad_normed, batch.tokens.len() * D);
        for (first, targets) in logits_chunks(&batch.targets, V) {
            let rows = targets.len();
            let hidden = Mat::new(&workspace.normed[first * D..][..rows * D], [rows, D]);
            let embedding = Mat::new(weights.embedding, [V, D]);
            let logits = sized(&mut workspace.logits, rows * V);
            product(Write::Set, logits, [rows, V], hidden, embedding.transposed());
            losses.extend(cross_entropy::losses_and_gradient(logits, V, targets, scale));
            let grad_logits = Mat::new(logits, [rows, V]);
            product(Write::Set, &mut grad_normed[first * D..][..rows * D], [rows, D], grad_logits, embedding);
            product(Write::Add, &mut workspace.grad_embedding, [V, D], grad_logits.transposed(), hidden);
        }
        let grad_x = sized(&mut workspace.grad_x, batch.tokens.len() * D);
        grad_x.fill(0.0);
        let (last, roots) = (&workspace.last, &workspace.last_roots);
        let grad_gain = zeroed(&mut workspace.grad_gain, D);
        rms_norm::backward(last, weights.norm, roots, grad_normed, grad_x, grad_gain);
        take(self.ranges.norm.clone(), grad_gain)?;
        Ok(losses)
    }

    /// Runs [`forward`](Self::forward) for whole sequences.
    fn forward_sequences(
        &self,
        weights: &Stacks<&[f32]>,
        tokens: &[u32],
        kept: usize,
        workspace: &mut Workspace,
    ) {
        let ModelConfig { heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        let W = self.attention.row_width();
        let mix = &mut |_, rows: &mut [f32], mixed: &mut [f32], log_sums: &mut Vec<f32>| {
            rope::rotate(rows, W, [H, K], T, &self.angles, Rotation::Forward);
            let log_sums = sized(log_sums, rows.len() / W * H);
            attention::forward(&self.attention, rows, mixed, log_sums);
        };
        self.forward(weights, tokens, kept, Products::Whole, mix, workspace);
    }

    /// Writes the hidden states after the last norm to `workspace.normed`. `kept` layers keep their activations: all
    /// or one.
    #[tracing::instrument(name = "forward", target = "profile", level = "trace", skip_all)]
    fn forward(
        &self,
        weights: &Stacks<&[f32]>,
        tokens: &[u32],
        kept: usize,
        products: Products,
        mix: &mut Mix<'_>,
        workspace: &mut Workspace,
    ) {
        let D = self.config.d_model;
        workspace.layers.resize_with(kept.max(workspace.layers.len()), Activations::default);
        let embedded = sized(&mut workspace.layers[0].x, tokens.len() * D);
        for (row, &token) in embedded.chunks_exact_mut(D).zip(tokens) {
            row.copy_from_slice(&weights.embedding[token as usize * D..][..D]);
        }
        for (index, layer) in weights.layers.iter().enumerate() {
            let (here, after) = workspace.layers.split_at_mut(if kept > 1 { index + 1 } else { 1 });
            let here = here.last_mut().expect("it holds at least one");
            let next = match after.first_mut() {
                Some(next) if kept > 1 => &mut next.x,
                _ => &mut workspace.last,
            };
            self.attend(layer, here, products, mix, index, &mut workspace.normed);
            self.feed_forward(layer, here, products, &mut workspace.normed, &mut workspace.inner, next);
            if kept == 1 && index + 1 < weights.layers.len() {
                std::mem::swap(&mut here.x, next);
            }
        }
        self.norm(&workspace.last, weights.norm, &mut workspace.normed, &mut workspace.last_roots);
    }

    /// Computes the attention half of a layer, from `kept.x` to `kept.middle`.
    #[tracing::instrument(name = "attention", target = "profile", level = "trace", skip_all)]
    fn attend(
        &self,
        weights: &LayerStacks<&[f32]>,
        kept: &mut Activations,
        products: Products,
        mix: &mut Mix<'_>,
        layer: usize,
        normed: &mut Vec<f32>,
    ) {
        let D = self.config.d_model;
        let N = kept.x.len() / D;
        let W = self.attention.row_width();
        self.norm(&kept.x, weights.attention_norm, normed, &mut kept.roots);

        let rows = sized(&mut kept.rows, N * W);
        products.linear(Write::Set, rows, normed, weights.rows, [W, D]);
        let mixed = sized(&mut kept.mixed, N * D);
        mix(layer, rows, mixed, &mut kept.log_sums);
        let middle = copied(&kept.x, &mut kept.middle);
        products.linear(Write::Add, middle, mixed, weights.output, [D, D]);
    }

    /// Computes the feed-forward half, from `kept.middle` to `next`.
    #[tracing::instrument(name = "feed-forward", target = "profile", level = "trace", skip_all)]
    fn feed_forward(
        &self,
        weights: &LayerStacks<&[f32]>,
        kept: &mut Activations,
        products: Products,
        normed: &mut Vec<f32>,
        inner: &mut Vec<f32>,
        next: &mut Vec<f32>,
    ) {
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let N = kept.middle.len() / D;
        self.norm(&kept.middle, weights.feed_forward_norm, normed, &mut kept.middle_roots);

        let gates_and_ups = sized(&mut kept.gates_and_ups, N * 2 * F);
        products.linear(Write::Set, gates_and_ups, normed, weights.gates_and_ups, [2 * F, D]);
        let inner = sized(inner, N * F);
        swiglu::forward(gates_and_ups, F, inner);

        let next = copied(&kept.middle, next);
        products.linear(Write::Add, next, inner, weights.down, [D, F]);
    }

    /// Replaces `workspace.grad_x`, the gradient of [`feed_forward`](Self::feed_forward)'s output, with that of its
    /// input.
    #[tracing::instrument(name = "feed-forward", target = "profile", level = "trace", skip_all)]
    fn feed_forward_backward(
        &self,
        weights: &LayerStacks<&[f32]>,
        take: &mut TakeGradient<'_>,
        layer: usize,
        workspace: &mut Workspace,
    ) -> Result<(), ModelError> {
        let ranges = &self.ranges.layers[layer];
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let kept = &mut workspace.layers[layer];
        let N = kept.middle.len() / D;
        let grad_next = Mat::new(&workspace.grad_x, [N, D]);

        let inner = sized(&mut workspace.inner, N * F);
        product(Write::Set, inner, [N, F], grad_next, Mat::new(weights.down, [D, F]));
        // Afterwards `gates_and_ups` holds gradients, and `inner` again holds the forward pass's value.
        swiglu::backward(&mut kept.gates_and_ups, F, inner);
        let grad_stack = sized(&mut workspace.grad_stack, D * F);
        product(Write::Set, grad_stack, [D, F], grad_next.transposed(), Mat::new(inner, [N, F]));
        take(ranges.down.clone(), grad_stack)?;

        let normed = sized(&mut workspace.normed, N * D);
        rms_norm::forward_from_roots(&kept.middle, weights.feed_forward_norm, &kept.middle_roots, normed);
        let grad_normed = sized(&mut workspace.grad_normed, N * D);
        let grad_both = Mat::new(&kept.gates_and_ups, [N, 2 * F]);
        product(Write::Set, grad_normed, [N, D], grad_both, Mat::new(weights.gates_and_ups, [2 * F, D]));
        let grad_stack = sized(&mut workspace.grad_stack, 2 * F * D);
        product(Write::Set, grad_stack, [2 * F, D], grad_both.transposed(), Mat::new(normed, [N, D]));
        take(ranges.gates_and_ups.clone(), grad_stack)?;
        let (grad_x, grad_gain) = (&mut workspace.grad_x, zeroed(&mut workspace.grad_gain, D));
        rms_norm::backward(
            &kept.middle,
            weights.feed_forward_norm,
            &kept.middle_roots,
            grad_normed,
            grad_x,
            grad_gain,
        );
        take(ranges.feed_forward_norm.clone(), grad_gain)
    }

    /// Replaces `workspace.grad_x`, the gradient of [`attend`](Self::attend)'s output, with that of its input.
    #[tracing::instrument(name = "attention", target = "profile", level = "trace", skip_all)]
    fn attend_backward(
        &self,
        weights: &LayerStacks<&[f32]>,
        take: &mut TakeGradient<'_>,
        layer: usize,
        workspace: &mut Workspace,
    ) -> Result<(), ModelError> {
        let ranges = &self.ranges.layers[layer];
        let ModelConfig { d_model: D, heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        let kept = &workspace.layers[layer];
        let N = kept.x.len() / D;
        let W = self.attention.row_width();
        let grad_middle = Mat::new(&workspace.grad_x, [N, D]);

        let grad_mixed = sized(&mut workspace.grad_normed, N * D);
        product(Write::Set, grad_mixed, [N, D], grad_middle, Mat::new(weights.output, [D, D]));
        let grad_stack = sized(&mut workspace.grad_stack, D * D);
        product(Write::Set, grad_stack, [D, D], grad_middle.transposed(), Mat::new(&kept.mixed, [N, D]));
        take(ranges.output.clone(), grad_stack)?;
        let grad_rows = sized(&mut workspace.grad_rows, N * W);
        attention::backward(&self.attention, &kept.rows, &kept.mixed, &kept.log_sums, grad_mixed, grad_rows);
        rope::rotate(grad_rows, W, [H, K], T, &self.angles, Rotation::Back);

        let normed = sized(&mut workspace.normed, N * D);
        rms_norm::forward_from_roots(&kept.x, weights.attention_norm, &kept.roots, normed);
        let grad_normed = sized(&mut workspace.grad_normed, N * D);
        let grad_rows = Mat::new(grad_rows, [N, W]);
        product(Write::Set, grad_normed, [N, D], grad_rows, Mat::new(weights.rows, [W, D]));
        let grad_stack = sized(&mut workspace.grad_stack, W * D);
        product(Write::Set, grad_stack, [W, D], grad_rows.transposed(), Mat::new(normed, [N, D]));
        take(ranges.rows.clone(), grad_stack)?;
        let (grad_x, grad_gain) = (&mut workspace.grad_x, zeroed(&mut workspace.grad_gain, D));
        rms_norm::backward(&kept.x, weights.attention_norm, &kept.roots, grad_normed, grad_x, grad_gain);
        take(ranges.attention_norm.clone(), grad_gain)
    }

    fn norm(&self, x: &[f32], gain: &[f32], into: &mut Vec<f32>, roots: &mut Vec<f32>) {
        let (into, roots) = (sized(into, x.len()), sized(roots, x.len() / gain.len()));
        rms_norm::forward(x, gain, self.config.norm_epsilon as f32, into, roots);
    }
}

/// Splits `targets` into pieces whose logits fit `LOGITS_MAX`, each with its first row.
pub fn logits_chunks(targets: &[u32], vocab: usize) -> impl Iterator<Item = (usize, &[u32])> {
    let rows = (LOGITS_MAX / vocab).max(1);
    targets.chunks(rows).enumerate().map(move |(index, targets)| (index * rows, targets))
}

/// Function that computes a layer's attention: it rotates the rows `[N, W]` and writes the output `[N, D]`. The last
/// argument receives further values for the backward pass.
type Mix<'a> = dyn FnMut(usize, &mut [f32], &mut [f32], &mut Vec<f32>) + 'a;

/// Algorithm for the products of a forward pass.
#[derive(Clone, Copy)]
enum Products {
    /// Products of all rows at once. The last bits depend on the number of rows.
    Whole,
    /// Products of few rows. Each row's bits are independent of the others.
    ByRow,
}

impl Products {
    /// Writes or adds `x · weightᵀ`, for a weight of this shape.
    fn linear(self, write: Write, into: &mut [f32], x: &[f32], weight: &[f32], [outer, inner]: [usize; 2]) {
        match self {
            Products::Whole => {
                let rows = x.len() / inner;
                let weight = Mat::new(weight, [outer, inner]).transposed();
                product(write, into, [rows, outer], Mat::new(x, [rows, inner]), weight);
            }
            Products::ByRow => few_rows(write, into, x, weight, inner),
        }
    }
}

/// Computes a product with all threads, into a slice as a matrix of this shape.
fn product(write: Write, into: &mut [f32], shape: [usize; 2], a: Mat, b: Mat) {
    matmul(write, &mut MatMut::new(into, shape), a, b, Threads::Pool);
}

fn add(sums: &mut [f32], values: &[f32]) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

/// Resizes the buffer to `len` unspecified values.
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}

/// Resizes the buffer to `len` zeros.
fn zeroed(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    let zeros = sized(buffer, len);
    zeros.fill(0.0);
    zeros
}

/// Makes the buffer a copy of `from`.
fn copied<'a>(from: &[f32], buffer: &'a mut Vec<f32>) -> &'a mut [f32] {
    const VALUES: usize = 1 << 16;
    let into = sized(buffer, from.len());
    into.par_chunks_mut(VALUES)
        .zip(from.par_chunks(VALUES))
        .for_each(|(into, from)| into.copy_from_slice(from));
    into
}
