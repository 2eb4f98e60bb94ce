//! Buffers of the forward and backward passes.

#![allow(non_snake_case, reason = "a length is named by its letter: see layers/mod.rs")]

use super::network::Network;
use crate::{
    ActivationCheckpointing, Precision,
    gpu::{Array, Gpu, Result},
};
use model::ModelConfig;

/// Buffers of the forward and backward passes, for at most `tokens` tokens.
pub(super) struct Workspace {
    pub tokens: usize,
    /// Activations of each layer. Buffers that are not kept, or not needed for evaluation, are shared by all layers.
    pub layers: Vec<Activations>,
    /// f32 `[N, D]`: output of the last layer, and f32 `[N]`: inverse roots of the last norm.
    pub last: Array,
    pub last_roots: Array,
    /// `[N, D]`: output of a norm.
    pub normed: Array,
    /// `[N, D]`: output of a product for the residual stream; backward, the stream's gradient as products read it.
    pub added: Array,
    /// `[N, F]`: the feed-forward half between its products, and its gradient.
    pub inner: Array,
    /// `[rows, V]`: logits of a few rows.
    pub logits: Array,
    /// f32 `[N, D]`: gradient of the residual stream. This and the next two are empty for evaluation.
    pub grad_x: Array,
    /// `[N, D]`: gradient of a product's input or output.
    pub grad_normed: Array,
    /// `[N, W]`: gradient of queries, keys and values.
    pub grad_rows: Array,
}

/// Values that a layer's forward pass keeps for its backward pass.
pub(super) struct Activations {
    /// f32 `[N, D]`: the layer's input, and f32 `[N]`: its norm's inverse roots.
    pub x: Array,
    pub roots: Array,
    /// `[N, W]`: queries, keys and values, rotated.
    pub rows: Array,
    /// f32 `[B, H, T]`: see `layers::attention`.
    pub log_sums: Array,
    /// `[N, D]`: attention's output, before its last product.
    pub mixed: Array,
    /// f32 `[N, D]`: the residual stream between the halves, and f32 `[N]`: its norm's inverse roots.
    pub middle: Array,
    pub middle_roots: Array,
    /// `[N, 2F]`: gates, then ups.
    pub gates_and_ups: Array,
}

impl Workspace {
    /// Allocates buffers for `tokens` tokens, and for their gradients if `training`.
    pub fn new(network: &Network, tokens: usize, training: bool) -> Result<Workspace> {
        let ModelConfig { d_model: D, d_ff: F, vocab: V, heads: H, layers, .. } = network.config;
        let (gpu, W, N) = (&network.gpu, network.shape.row_width(), tokens);
        let (wide, narrow) = (Precision::F32, network.precision);
        let array = |width: usize, precision| gpu.array(N * width, precision);
        let keeps_most = training && network.checkpointing() != ActivationCheckpointing::Layers;
        let keeps_all = training && network.checkpointing() == ActivationCheckpointing::None;
        // A layer after the first has its own buffers for kept values, and shares the rest.
        let layer = |first: Option<&Activations>| -> Result<Activations> {
            let array = |is_kept: bool, of: fn(&Activations) -> &Array, width, precision| match first {
                Some(first) if !is_kept => Ok(of(first).clone()),
                _ => array(width, precision),
            };
            Ok(Activations {
                x: array(training, |it| &it.x, D, wide)?,
                roots: array(keeps_most, |it| &it.roots, 1, wide)?,
                rows: array(keeps_most, |it| &it.rows, W, narrow)?,
                log_sums: array(keeps_most, |it| &it.log_sums, H, wide)?,
                mixed: array(keeps_most, |it| &it.mixed, D, narrow)?,
                middle: array(keeps_most, |it| &it.middle, D, wide)?,
                middle_roots: array(keeps_most, |it| &it.middle_roots, 1, wide)?,
                gates_and_ups: array(keeps_all, |it| &it.gates_and_ups, 2 * F, narrow)?,
            })
        };
        let mut all = vec![layer(None)?];
        while all.len() < layers {
            all.push(layer(Some(&all[0]))?);
        }
        let if_training = |width| if training { width } else { 0 };
        Ok(Workspace {
            tokens,
            last: if training { array(D, wide)? } else { all[0].x.clone() },
            layers: all,
            last_roots: array(1, wide)?,
            normed: array(D, narrow)?,
            added: array(D, narrow)?,
            inner: array(F, narrow)?,
            logits: gpu.array(network.logits_rows.min(N) * V, narrow)?,
            grad_x: array(if_training(D), wide)?,
            grad_normed: array(if_training(D), narrow)?,
            grad_rows: array(if_training(W), narrow)?,
        })
    }

    /// Returns the same buffers for fewer tokens.
    pub fn part(&self, gpu: &Gpu, tokens: usize) -> Result<Workspace> {
        let part = |array: &Array| match array.is_empty() {
            true => Ok(array.clone()),
            false => gpu.part(array, 0, array.len() / self.tokens * tokens),
        };
        let layer = |layer: &Activations| -> Result<Activations> {
            Ok(Activations {
                x: part(&layer.x)?,
                roots: part(&layer.roots)?,
                rows: part(&layer.rows)?,
                log_sums: part(&layer.log_sums)?,
                mixed: part(&layer.mixed)?,
                middle: part(&layer.middle)?,
                middle_roots: part(&layer.middle_roots)?,
                gates_and_ups: part(&layer.gates_and_ups)?,
            })
        };
        Ok(Workspace {
            tokens,
            layers: self.layers.iter().map(layer).collect::<Result<_>>()?,
            last: part(&self.last)?,
            last_roots: part(&self.last_roots)?,
            normed: part(&self.normed)?,
            added: part(&self.added)?,
            inner: part(&self.inner)?,
            logits: self.logits.clone(),
            grad_x: part(&self.grad_x)?,
            grad_normed: part(&self.grad_normed)?,
            grad_rows: part(&self.grad_rows)?,
        })
    }
}
