//! The network in plain loops over `f64`, written from the description of Llama. It reads the flat parameter vector by
//! the names of the schema. So it checks names, order, layout, rotary positions, grouped heads and the causal mask.

use model::ModelConfig;
use std::collections::HashMap;

/// The network, and weights by the names of the schema.
pub struct Reference<'a> {
    config: &'a ModelConfig,
    /// Values and row width of each tensor, by name.
    tensors: HashMap<String, (Vec<f64>, usize)>,
}

impl Reference<'_> {
    /// # Panics
    /// If `flat` does not have the model's length.
    pub fn new<'a>(config: &'a ModelConfig, flat: &[f32]) -> Reference<'a> {
        let schema = config.schema().unwrap();
        let named = schema.tensors().iter().zip(schema.ranges()).map(|(spec, range)| {
            let values = flat[range].iter().map(|&value| f64::from(value)).collect();
            (spec.name.clone(), (values, *spec.shape.last().unwrap() as usize))
        });
        Reference { config, tensors: named.collect() }
    }

    /// Returns `weight · x`, with `weight` as `[out, in]`.
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let (values, width) = &self.tensors[name];
        assert_eq!(*width, x.len(), "{name}");
        values.chunks_exact(*width).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean_square + self.config.norm_epsilon).sqrt();
        x.iter().zip(&self.tensors[name].0).map(|(x, gain)| x / root * gain).collect()
    }

    /// Rotates each head by its position: value `i` with value `i + half`.
    fn rotate(&self, x: &[f64], position: usize) -> Vec<f64> {
        let width = self.config.head_width();
        let mut rotated = x.to_vec();
        for (head, x) in rotated.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            for i in 0..width / 2 {
                let angle = position as f64 / self.config.rope_theta.powf(2.0 * i as f64 / width as f64);
                let (a, b) = (x[i], x[i + width / 2]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + width / 2] = b * angle.cos() + a * angle.sin();
            }
        }
        rotated
    }

    fn attend(&self, layer: &str, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (width, shared) = (self.config.head_width(), self.config.heads / self.config.kv_heads);
        let part = |part: &str, x: &[f64]| self.project(&format!("{layer}.self_attn.{part}_proj.weight"), x);
        let rotated = |name: &str| -> Vec<Vec<f64>> {
            normed.iter().enumerate().map(|(position, x)| self.rotate(&part(name, x), position)).collect()
        };
        let (queries, keys) = (rotated("q"), rotated("k"));
        let values: Vec<Vec<f64>> = normed.iter().map(|x| part("v", x)).collect();

        let at = |position: usize| {
            let mut mixed = vec![0.0; self.config.d_model];
            for head in 0..self.config.heads {
                let (own, served) = (head * width, head / shared * width);
                let score = |other: usize| {
                    let dot: f64 =
                        (0..width).map(|i| queries[position][own + i] * keys[other][served + i]).sum();
                    (dot / (width as f64).sqrt()).exp()
                };
                let total: f64 = (0..=position).map(score).sum();
                for (other, value) in values.iter().enumerate().take(position + 1) {
                    for i in 0..width {
                        mixed[own + i] += score(other) / total * value[served + i];
                    }
                }
            }
            part("o", &mixed)
        };
        (0..normed.len()).map(at).collect()
    }

    fn feed_forward(&self, layer: &str, x: &[f64]) -> Vec<f64> {
        let part = |part: &str, x: &[f64]| self.project(&format!("{layer}.mlp.{part}_proj.weight"), x);
        let gated: Vec<f64> = part("gate", x)
            .iter()
            .zip(part("up", x))
            .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
            .collect();
        part("down", &gated)
    }

    /// Returns the mean loss of a sequence, in nats per token.
    pub fn loss(&self, sequence: &[u32]) -> f64 {
        let (embedding, width) = &self.tensors["model.embed_tokens.weight"];
        let tokens = &sequence[..sequence.len() - 1];
        let mut stream: Vec<Vec<f64>> =
            tokens.iter().map(|&token| embedding[token as usize * width..][..*width].to_vec()).collect();
        let add = |stream: &mut Vec<Vec<f64>>, change: Vec<Vec<f64>>| {
            stream.iter_mut().flatten().zip(change.iter().flatten()).for_each(|(x, change)| *x += change);
        };
        for layer in (0..self.config.layers).map(|layer| format!("model.layers.{layer}")) {
            let normed = |name: &str, stream: &[Vec<f64>]| -> Vec<Vec<f64>> {
                stream.iter().map(|x| self.norm(&format!("{layer}.{name}.weight"), x)).collect()
            };
            let attended = self.attend(&layer, &normed("input_layernorm", &stream));
            add(&mut stream, attended);
            let fed = normed("post_attention_layernorm", &stream)
                .iter()
                .map(|x| self.feed_forward(&layer, x))
                .collect();
            add(&mut stream, fed);
        }
        let of_token = |(x, &target): (&Vec<f64>, &u32)| {
            let logits = self.project("model.embed_tokens.weight", &self.norm("model.norm.weight", x));
            let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
            total.ln() - logits[target as usize]
        };
        stream.iter().zip(&sequence[1..]).map(of_token).sum::<f64>() / tokens.len() as f64
    }
}
