//! The network against a slow twin: loops over `f64`, written from the description of Llama, that read the flat state by
//! the names of the schema. So names, order, layout, rotary positions, grouped heads and the causal mask are checked at once.

use mettle_nn::{DeviceChoice, Evaluator};
use model::{ModelConfig, init_flat};
use std::collections::HashMap;

struct Reference<'a> {
    config: &'a ModelConfig,
    /// Values and width of a row.
    tensors: HashMap<String, (Vec<f64>, usize)>,
}

impl Reference<'_> {
    fn new<'a>(config: &'a ModelConfig, flat: &[f32]) -> Reference<'a> {
        let schema = config.schema().unwrap();
        let named = schema.tensors().iter().zip(schema.ranges()).map(|(spec, range)| {
            let values = flat[range].iter().map(|&value| f64::from(value)).collect();
            (spec.name.clone(), (values, *spec.shape.last().unwrap() as usize))
        });
        Reference { config, tensors: named.collect() }
    }

    /// `weight · x`, with `weight` as `[out, in]`.
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

    /// Turns each head by its position: value `i` with value `i + half`.
    fn turn(&self, x: &[f64], position: usize) -> Vec<f64> {
        let width = self.config.head_width();
        let mut turned = x.to_vec();
        for (head, x) in turned.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
            for i in 0..width / 2 {
                let angle = position as f64 / self.config.rope_theta.powf(2.0 * i as f64 / width as f64);
                let (a, b) = (x[i], x[i + width / 2]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[i + width / 2] = b * angle.cos() + a * angle.sin();
            }
        }
        turned
    }

    fn attend(&self, layer: &str, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (width, shared) = (self.config.head_width(), self.config.heads / self.config.kv_heads);
        let part = |part: &str, x: &[f64]| self.project(&format!("{layer}.self_attn.{part}_proj.weight"), x);
        let turned = |name: &str| -> Vec<Vec<f64>> {
            normed.iter().enumerate().map(|(position, x)| self.turn(&part(name, x), position)).collect()
        };
        let (queries, keys) = (turned("q"), turned("k"));
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

    fn loss(&self, sequence: &[u32]) -> f64 {
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

/// Losses beside those of the reference: the model's, and the exact ones.
fn losses(config: &ModelConfig) -> Vec<(f64, f64)> {
    // Far from the beginning, so that every part matters: gains off 1, projections large.
    let mut flat = init_flat(config, 5).unwrap();
    let schema = config.schema().unwrap();
    for (spec, range) in schema.tensors().iter().zip(schema.ranges()) {
        for (index, value) in flat[range].iter_mut().enumerate() {
            *value = if spec.shape.len() == 1 { 1.0 + 0.3 * (index as f32).sin() } else { *value * 2.0 };
        }
    }
    let sequences: Vec<Vec<u32>> = (0..4)
        .map(|i| (0..=config.seq_len).map(|j| ((i * 13 + j * j * 7 + j) % config.vocab) as u32).collect())
        .collect();

    let reference = Reference::new(config, &flat);
    let losses = Evaluator::new(config, DeviceChoice::Cpu, &flat).unwrap().losses(&sequences).unwrap();
    sequences.iter().zip(losses).map(|(sequence, loss)| (loss, reference.loss(sequence))).collect()
}

fn check(config: &ModelConfig) {
    for (loss, exact) in losses(config) {
        assert!((loss - exact).abs() < 1e-5 * exact, "{loss}, but the reference has {exact}");
    }
}

/// However a machine orders its sums, it strays from the exact loss by rounding alone. An audit tolerates 1e-5 nats a token between two
/// machines: of what one of them was seen to stray by, twenty times as much.
#[test]
fn rounding_takes_a_loss_less_far_than_an_audit_tolerates() {
    for preset in ["117k", "localnet", "1m"] {
        let losses = losses(&ModelConfig::preset(preset).unwrap());
        let apart = losses.iter().map(|(loss, exact)| (loss - exact).abs()).fold(0.0, f64::max);
        let mean = losses.iter().map(|(_, exact)| exact).sum::<f64>() / losses.len() as f64;
        std::eprintln!("{preset}: off by {apart:e} at most, of a mean of {mean:.3}");
        assert!(apart < 5e-6, "{preset}: {apart:e}");
    }
}

#[test]
fn the_network_is_the_one_that_llama_describes() {
    let shape = |heads, kv_heads| ModelConfig {
        vocab: 60,
        d_model: 24,
        layers: 2,
        heads,
        kv_heads,
        d_ff: 40,
        seq_len: 10,
        rope_theta: 100.0,
        norm_epsilon: 1e-3,
    };
    check(&shape(4, 4));
    check(&shape(4, 2));
    check(&shape(6, 1));
    check(&shape(1, 1));
}
