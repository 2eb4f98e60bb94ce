//! The network's forward and backward passes over buffers.

#![allow(non_snake_case, reason = "a length is named by its letter: see layers/mod.rs")]

use super::{
    network::{Network, Weight},
    workspace::{Activations, Workspace},
};
use crate::{
    ActivationCheckpointing, Precision,
    batch::Batch,
    engine::stacks::{LayerStacks, Stacks, of_layer},
    gpu::{Array, GpuError, Result, View},
    layers::{matmul::Write, rope::Rotation},
};
use model::ModelConfig;
use std::ops::Range;

impl Network {
    /// Computes `y = x·Wᵀ`.
    fn product(&self, y: &Array, x: &Array, weight: &Weight) -> Result {
        let [outputs, inputs] = weight.shape;
        let rows = y.len() / outputs;
        let (x, weight) = (View::new(x, [rows, inputs]), weight.view().transposed());
        self.gpu.product(Write::Set, y, [rows, outputs], x, weight)
    }

    /// Computes `grad_x = grad_y·W`.
    fn product_backward(&self, grad_x: &Array, grad_y: &Array, weight: &Weight) -> Result {
        let [outputs, inputs] = weight.shape;
        let rows = grad_x.len() / inputs;
        let grad_y = View::new(grad_y, [rows, outputs]);
        self.gpu.product(Write::Set, grad_x, [rows, inputs], grad_y, weight.view())
    }

    /// Computes `grad_W = grad_yᵀ·x` or `grad_W += grad_yᵀ·x`.
    fn weight_gradient(
        &self,
        write: Write,
        gradient: &Array,
        weight: &Weight,
        grad_y: &Array,
        x: &Array,
    ) -> Result {
        let [outputs, inputs] = weight.shape;
        let rows = x.len() / inputs;
        let (grad_y, x) = (View::new(grad_y, [rows, outputs]), View::new(x, [rows, inputs]));
        self.gpu.product(write, gradient, [outputs, inputs], grad_y.transposed(), x)
    }

    /// Returns the loss of each token, in nats.
    pub fn losses(&self, weights: &[Weight], batch: &Batch, workspace: &Workspace) -> Result<Array> {
        let Batch { tokens, targets } = batch;
        let weights = &Stacks::in_order(weights.iter().collect());
        let workspace = &workspace.part(&self.gpu, tokens.len())?;
        self.hidden(weights, tokens, workspace)?;
        let targets = self.gpu.upload_tokens(self.config.vocab, targets)?;
        let losses = self.gpu.array(tokens.len(), Precision::F32)?;
        for (first, rows) in self.chunks(tokens.len()) {
            let logits = self.logits(weights, workspace, first, rows)?;
            self.gpu.cross_entropy(&logits, &targets, first, &losses, None)?;
        }
        Ok(losses)
    }

    /// Returns the logits `[rows, V]` of the first `rows` tokens of whole sequences.
    pub fn first_logits(
        &self,
        weights: &[Weight],
        tokens: &[u32],
        rows: usize,
        workspace: &Workspace,
    ) -> Result<Vec<f32>> {
        let weights = &Stacks::in_order(weights.iter().collect());
        let workspace = &workspace.part(&self.gpu, tokens.len())?;
        self.hidden(weights, tokens, workspace)?;
        let mut values = Vec::with_capacity(rows * self.config.vocab);
        for (first, rows) in self.chunks(rows) {
            values.extend(self.gpu.download(&self.logits(weights, workspace, first, rows)?)?);
        }
        Ok(values)
    }

    /// Returns the loss of each token. Writes the gradients of `scale · Σ losses` to `gradients`, one per stack, or
    /// adds them, from the last stack to the first. Calls `written` with the stacks that are complete.
    pub fn losses_and_gradients<E: From<GpuError>>(
        &self,
        weights: &[Weight],
        batch: &Batch,
        scale: f32,
        write: Write,
        gradients: &[Array],
        workspace: &Workspace,
        written: &mut dyn FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<Array, E> {
        let stacks = gradients.len();
        let weights = &Stacks::in_order(weights.iter().collect());
        let gradients = &Stacks::in_order(gradients.iter().collect());
        let workspace = &workspace.part(&self.gpu, batch.tokens.len())?;
        self.hidden(weights, &batch.tokens, workspace)?;
        let losses = self.head_backward(weights, batch, scale, write, gradients, workspace)?;
        written(stacks - 1..stacks)?;
        self.backward(weights, batch, write, gradients, workspace, written)?;
        Ok(losses)
    }

    /// Runs the backward pass of the layers, from the last, whose activations are always kept, and of the embedding.
    #[tracing::instrument(name = "backward", target = "profile", level = "trace", skip_all)]
    fn backward<E: From<GpuError>>(
        &self,
        weights: &Stacks<&Weight>,
        batch: &Batch,
        write: Write,
        gradients: &Stacks<&Array>,
        workspace: &Workspace,
        written: &mut dyn FnMut(Range<usize>) -> Result<(), E>,
    ) -> Result<(), E> {
        for (layer, activations) in workspace.layers.iter().enumerate().rev() {
            let is_last = layer + 1 == workspace.layers.len();
            let (weights, gradients) = (&weights.layers[layer], &gradients.layers[layer]);
            if write == Write::Set {
                self.gpu.fill(gradients.feed_forward_norm, 0.0)?;
                self.gpu.fill(gradients.attention_norm, 0.0)?;
            }
            if self.checkpointing() == ActivationCheckpointing::Layers && !is_last {
                self.attend(weights, activations, workspace)?;
                let Activations { middle, middle_roots, .. } = activations;
                self.norm(middle, weights.feed_forward_norm, workspace, middle_roots)?;
            }
            let again = self.checkpointing() != ActivationCheckpointing::None && !is_last;
            self.feed_forward_backward(weights, write, gradients, activations, workspace, again)?;
            self.attend_backward(weights, write, gradients, activations, workspace)?;
            written(of_layer(layer))?;
        }
        let segments = self.gpu.upload_segments(self.config.vocab, &batch.tokens)?;
        self.gpu.embedding_backward(&segments, &workspace.grad_x, gradients.embedding)?;
        self.gpu.finish_if_profiled()?;
        written(0..1)
    }

    /// Runs the product with the vocabulary forward and backward, a few rows at a time, and the last norm backward.
    /// Leaves the gradient of the last layer's output in `workspace.grad_x`.
    #[tracing::instrument(name = "loss", target = "profile", level = "trace", skip_all)]
    fn head_backward(
        &self,
        weights: &Stacks<&Weight>,
        batch: &Batch,
        scale: f32,
        write: Write,
        gradients: &Stacks<&Array>,
        workspace: &Workspace,
    ) -> Result<Array> {
        let (D, gpu) = (self.config.d_model, &self.gpu);
        let targets = gpu.upload_tokens(self.config.vocab, &batch.targets)?;
        let losses = gpu.array(batch.tokens.len(), Precision::F32)?;
        for (first, rows) in self.chunks(batch.tokens.len()) {
            let logits = self.logits(weights, workspace, first, rows)?;
            gpu.cross_entropy(&logits, &targets, first, &losses, Some(scale))?;
            let hidden = gpu.part(&workspace.normed, first * D, rows * D)?;
            let grad_hidden = gpu.part(&workspace.grad_normed, first * D, rows * D)?;
            self.product_backward(&grad_hidden, &logits, weights.embedding)?;
            let write = if first == 0 { write } else { Write::Add };
            self.weight_gradient(write, gradients.embedding, weights.embedding, &logits, &hidden)?;
        }
        gpu.fill(&workspace.grad_x, 0.0)?;
        // A norm's gain gradient is always added.
        if write == Write::Set {
            gpu.fill(gradients.norm, 0.0)?;
        }
        let (x, roots, gain) = (&workspace.last, &workspace.last_roots, &weights.norm.values);
        gpu.rms_norm_backward(x, gain, roots, &workspace.grad_normed, &workspace.grad_x, gradients.norm)?;
        gpu.finish_if_profiled()?;
        Ok(losses)
    }

    /// Writes the hidden states after the last norm to `workspace.normed`.
    #[tracing::instrument(name = "forward", target = "profile", level = "trace", skip_all)]
    fn hidden(&self, weights: &Stacks<&Weight>, tokens: &[u32], workspace: &Workspace) -> Result {
        let tokens = self.gpu.upload_tokens(self.config.vocab, tokens)?;
        self.gpu.embedding(&weights.embedding.values, &tokens, &workspace.layers[0].x)?;
        for (index, (weights, activations)) in weights.layers.iter().zip(&workspace.layers).enumerate() {
            let next = workspace.layers.get(index + 1).map_or(&workspace.last, |next| &next.x);
            self.attend(weights, activations, workspace)?;
            self.feed_forward(weights, activations, workspace, next)?;
        }
        self.norm(&workspace.last, weights.norm, workspace, &workspace.last_roots)?;
        self.gpu.finish_if_profiled()
    }

    /// Computes the attention half of a layer, from `activations.x` to `activations.middle`.
    fn attend(
        &self,
        weights: &LayerStacks<&Weight>,
        activations: &Activations,
        workspace: &Workspace,
    ) -> Result {
        let Activations { x, roots, rows, log_sums, mixed, middle, .. } = activations;
        self.norm(x, weights.attention_norm, workspace, roots)?;
        self.product(rows, &workspace.normed, weights.rows)?;
        self.rotate(rows, Rotation::Forward)?;
        self.gpu.attention(&self.shape, rows, mixed, log_sums)?;
        self.product(&workspace.added, mixed, weights.output)?;
        self.gpu.add(x, &workspace.added, middle)
    }

    /// Computes the feed-forward half, from `activations.middle` to `next`.
    fn feed_forward(
        &self,
        weights: &LayerStacks<&Weight>,
        activations: &Activations,
        workspace: &Workspace,
        next: &Array,
    ) -> Result {
        let Activations { middle, middle_roots, gates_and_ups, .. } = activations;
        self.norm(middle, weights.feed_forward_norm, workspace, middle_roots)?;
        self.product(gates_and_ups, &workspace.normed, weights.gates_and_ups)?;
        self.gpu.swiglu(gates_and_ups, self.config.d_ff, &workspace.inner)?;
        self.product(&workspace.added, &workspace.inner, weights.down)?;
        self.gpu.add(middle, &workspace.added, next)
    }

    /// Replaces `workspace.grad_x`, the gradient of [`feed_forward`](Self::feed_forward)'s output, with that of its
    /// input. Gates and ups are computed `again` if they were not kept.
    fn feed_forward_backward(
        &self,
        weights: &LayerStacks<&Weight>,
        write: Write,
        gradients: &LayerStacks<&Array>,
        activations: &Activations,
        workspace: &Workspace,
        again: bool,
    ) -> Result {
        let Activations { middle, middle_roots, gates_and_ups, .. } = activations;
        let gain = &weights.feed_forward_norm.values;
        self.gpu.rms_norm(middle, gain, None, &workspace.normed, middle_roots)?;
        if again {
            self.product(gates_and_ups, &workspace.normed, weights.gates_and_ups)?;
        }
        let grad_next = self.as_operand(&workspace.grad_x, workspace)?;
        self.product_backward(&workspace.inner, grad_next, weights.down)?;
        // Afterwards `gates_and_ups` holds gradients, and `inner` again holds the forward pass's value.
        self.gpu.swiglu_backward(gates_and_ups, self.config.d_ff, &workspace.inner)?;
        self.weight_gradient(write, gradients.down, weights.down, grad_next, &workspace.inner)?;

        self.weight_gradient(
            write,
            gradients.gates_and_ups,
            weights.gates_and_ups,
            gates_and_ups,
            &workspace.normed,
        )?;
        self.product_backward(&workspace.grad_normed, gates_and_ups, weights.gates_and_ups)?;
        let grad_gain = gradients.feed_forward_norm;
        self.gpu.rms_norm_backward(
            middle,
            gain,
            middle_roots,
            &workspace.grad_normed,
            &workspace.grad_x,
            grad_gain,
        )
    }

    /// Replaces `workspace.grad_x`, the gradient of [`attend`](Self::attend)'s output, with that of its input.
    fn attend_backward(
        &self,
        weights: &LayerStacks<&Weight>,
        write: Write,
        gradients: &LayerStacks<&Array>,
        activations: &Activations,
        workspace: &Workspace,
    ) -> Result {
        let Activations { x, roots, rows, log_sums, mixed, .. } = activations;
        let grad_middle = self.as_operand(&workspace.grad_x, workspace)?;
        let grad_mixed = &workspace.grad_normed;
        self.product_backward(grad_mixed, grad_middle, weights.output)?;
        self.weight_gradient(write, gradients.output, weights.output, grad_middle, mixed)?;
        self.gpu.attention_backward(&self.shape, rows, mixed, log_sums, grad_mixed, &workspace.grad_rows)?;
        self.rotate(&workspace.grad_rows, Rotation::Back)?;

        let gain = &weights.attention_norm.values;
        self.gpu.rms_norm(x, gain, None, &workspace.normed, roots)?;
        self.weight_gradient(write, gradients.rows, weights.rows, &workspace.grad_rows, &workspace.normed)?;
        self.product_backward(&workspace.grad_normed, &workspace.grad_rows, weights.rows)?;
        self.gpu.rms_norm_backward(
            x,
            gain,
            roots,
            &workspace.grad_normed,
            &workspace.grad_x,
            gradients.attention_norm,
        )
    }

    fn rotate(&self, rows: &Array, rotation: Rotation) -> Result {
        let ModelConfig { heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        self.gpu.rope(rows, self.shape.row_width(), [H, K], T, &self.angles, rotation)
    }

    fn norm(&self, x: &Array, gain: &Weight, workspace: &Workspace, roots: &Array) -> Result {
        self.gpu.rms_norm(x, &gain.values, Some(self.config.norm_epsilon as f32), &workspace.normed, roots)
    }

    /// Returns the residual stream's gradient as products read it: unchanged, or rounded into `workspace.added`.
    fn as_operand<'a>(&self, grad_x: &'a Array, workspace: &'a Workspace) -> Result<&'a Array> {
        if self.precision == Precision::F32 {
            return Ok(grad_x);
        }
        self.gpu.cast(grad_x, &workspace.added)?;
        Ok(&workspace.added)
    }

    /// Computes the logits of some rows of `workspace.normed`.
    fn logits(
        &self,
        weights: &Stacks<&Weight>,
        workspace: &Workspace,
        first: usize,
        rows: usize,
    ) -> Result<Array> {
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let hidden = self.gpu.part(&workspace.normed, first * D, rows * D)?;
        let logits = self.gpu.part(&workspace.logits, 0, rows * V)?;
        self.product(&logits, &hidden, weights.embedding)?;
        Ok(logits)
    }

    /// Splits `rows` into chunks whose logits fit at once: first row and length of each.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let most = self.logits_rows;
        (0..rows).step_by(most).map(move |first| (first, most.min(rows - first)))
    }
}
