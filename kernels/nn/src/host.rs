//! The network on the CPU, forward and back, over slices: `llama` and `loss` once more, without a tape.
//!
//! There each operation walks its matrix, allocates the next one, and leaves a note for the way back. Here the whole way is
//! written down: products add into what they belong to, the kernels do all that lies between two products in one pass, and
//! what is needed twice is kept or made again, whichever is cheaper. All memory is in [`Room`], which is used again, so its
//! size is known beforehand (`memory.rs`). `llama` and `loss` are its slow twin in the tests, and what other devices run.
//!
//! The gradient of a product `y = x·Wᵀ` is `of_y·W` for `x` and `of_yᵀ·x` for `W`. Names of tensors do not end in their
//! shape here, since all are slices: the comment beside a buffer in [`Room`] and [`Kept`] has it, in the letters of `llama`
//! (and `W` for the width of a row of queries, keys and values, `(H + 2K)·C`).

#![allow(non_snake_case, reason = "a length is named by its letter: see llama.rs")]

use crate::{ModelError, loss::chunks};
use kernels::{
    attention, cross_entropy,
    matmul::{Mat, MatMut, Threads, Write, matmul},
    rms_norm,
    rotary::{self, Angles, Rotation},
    swiglu,
};
use model::ModelConfig;
use rayon::prelude::*;

/// What the passes need besides weights and room, and never changes.
#[derive(Debug)]
pub(crate) struct Host {
    config: ModelConfig,
    attention: attention::Shape,
    angles: Angles,
}

/// Where the passes work. It grows to what the largest batch takes, and stays so.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// One for each layer, or a single one where nothing is learnt.
    layers: Vec<Kept>,
    /// `[N, D]`: what the last layer gives, and `[N]`: one over the last norm's roots.
    last: Vec<f32>,
    last_roots: Vec<f32>,
    /// `[N, D]`: what a norm gives.
    normed: Vec<f32>,
    /// `[N, F]`: the feed-forward half between its products, and its gradient.
    inner: Vec<f32>,
    /// Some rows of `V`.
    logits: Vec<f32>,
    /// `[N, D]`: gradients of the residual stream, and of what goes into or comes out of a product.
    of_x: Vec<f32>,
    of_normed: Vec<f32>,
    /// `[N, W]`
    of_rows: Vec<f32>,
    /// `[W, D]` or `[2F, D]`: weights that share what they are multiplied with, one below the other, and their gradient.
    stacked: Vec<f32>,
    of_stacked: Vec<f32>,
}

/// What a layer leaves for the way back.
#[derive(Debug, Default)]
struct Kept {
    /// `[N, D]`: what came in, and `[N]`: one over the norm's roots.
    x: Vec<f32>,
    roots: Vec<f32>,
    /// `[N, W]`: queries, keys and values, turned.
    rows: Vec<f32>,
    /// `[B, H, T]`: see `kernels::attention`.
    log_sums: Vec<f32>,
    /// `[N, D]`: what attention gives, before its last product.
    mixed: Vec<f32>,
    /// `[N, D]`: the residual stream between the halves, and `[N]`: one over the norm's roots.
    middle: Vec<f32>,
    middle_roots: Vec<f32>,
    /// `[N, 2F]`: gates, then ups.
    gates_and_ups: Vec<f32>,
}

/// All tensors of a model, by their place in the schema: weights to read, or gradients to write.
struct Tensors<T> {
    embedding: T,
    layers: Vec<LayerTensors<T>>,
    norm: T,
}

struct LayerTensors<T> {
    attention_norm: T,
    query: T,
    key: T,
    value: T,
    output: T,
    feed_forward_norm: T,
    gate: T,
    up: T,
    down: T,
}

impl<T> Tensors<T> {
    fn in_schema_order(tensors: impl ExactSizeIterator<Item = T>) -> Tensors<T> {
        let layers = (tensors.len() - 2) / 9;
        let mut tensors = tensors;
        let mut next = || tensors.next().expect("a model has nine tensors a layer, and two more");
        Tensors {
            embedding: next(),
            layers: (0..layers)
                .map(|_| LayerTensors {
                    attention_norm: next(),
                    query: next(),
                    key: next(),
                    value: next(),
                    output: next(),
                    feed_forward_norm: next(),
                    gate: next(),
                    up: next(),
                    down: next(),
                })
                .collect(),
            norm: next(),
        }
    }
}

impl Host {
    pub fn new(config: &ModelConfig) -> Host {
        Host {
            attention: attention::Shape {
                seq_len: config.seq_len,
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_width: config.head_width(),
            },
            angles: Angles::new(config.seq_len, config.head_width(), config.rope_theta),
            config: config.clone(),
        }
    }

    /// The loss of each row of whole sequences, in nats. `weights` are in schema order.
    pub fn losses<W: AsRef<[f32]>>(
        &self,
        weights: &[W],
        tokens: &[u32],
        targets: &[u32],
        room: &mut Room,
    ) -> Vec<f64> {
        let weights = Tensors::in_schema_order(weights.iter().map(AsRef::as_ref));
        self.hidden(&weights, tokens, 1, room);
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let mut losses = Vec::with_capacity(targets.len());
        for (first, targets) in chunks(targets, V) {
            let rows = targets.len();
            let hidden = Mat::new(&room.normed[first * D..][..rows * D], [rows, D]);
            let logits = sized(&mut room.logits, rows * V);
            product(Write::Over, logits, [rows, V], hidden, Mat::new(weights.embedding, [V, D]).transposed());
            losses.extend(cross_entropy::losses(logits, V, targets));
        }
        losses
    }

    /// The logits of the first `rows` tokens of whole sequences, `[rows, V]` row-major. `weights` are in schema order.
    pub fn logits<W: AsRef<[f32]>>(
        &self,
        weights: &[W],
        tokens: &[u32],
        rows: usize,
        room: &mut Room,
    ) -> Vec<f32> {
        let weights = Tensors::in_schema_order(weights.iter().map(AsRef::as_ref));
        self.hidden(&weights, tokens, 1, room);
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let hidden = Mat::new(&room.normed[..rows * D], [rows, D]);
        let mut logits = vec![0.0; rows * V];
        product(
            Write::Over,
            &mut logits,
            [rows, V],
            hidden,
            Mat::new(weights.embedding, [V, D]).transposed(),
        );
        logits
    }

    /// The loss of each row, and the gradients of `scale · Σ losses`, added to `gradients`. Both are in schema order.
    pub fn losses_and_gradients<W: AsRef<[f32]>>(
        &self,
        weights: &[W],
        tokens: &[u32],
        targets: &[u32],
        scale: f32,
        gradients: &mut [Vec<f32>],
        room: &mut Room,
    ) -> Vec<f64> {
        let weights = Tensors::in_schema_order(weights.iter().map(AsRef::as_ref));
        let mut gradients = Tensors::in_schema_order(gradients.iter_mut().map(Vec::as_mut_slice));
        self.hidden(&weights, tokens, weights.layers.len(), room);

        // The vocabulary, forward and back, a few rows at a time.
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let mut losses = Vec::with_capacity(targets.len());
        let of_normed = sized(&mut room.of_normed, tokens.len() * D);
        for (first, targets) in chunks(targets, V) {
            let rows = targets.len();
            let hidden = Mat::new(&room.normed[first * D..][..rows * D], [rows, D]);
            let embedding = Mat::new(weights.embedding, [V, D]);
            let logits = sized(&mut room.logits, rows * V);
            product(Write::Over, logits, [rows, V], hidden, embedding.transposed());
            losses.extend(cross_entropy::losses_and_gradient(logits, V, targets, scale));
            let of_logits = Mat::new(logits, [rows, V]);
            product(Write::Over, &mut of_normed[first * D..][..rows * D], [rows, D], of_logits, embedding);
            product(Write::Add, gradients.embedding, [V, D], of_logits.transposed(), hidden);
        }
        let of_x = sized(&mut room.of_x, tokens.len() * D);
        of_x.fill(0.0);
        rms_norm::backward(&room.last, weights.norm, &room.last_roots, of_normed, of_x, gradients.norm);

        // The layers, from the last.
        for layer in (0..weights.layers.len()).rev() {
            self.feed_forward_back(&weights.layers[layer], &mut gradients.layers[layer], layer, room);
            self.attend_back(&weights.layers[layer], &mut gradients.layers[layer], layer, room);
        }
        for (row, &token) in room.of_x.chunks_exact(D).zip(tokens) {
            let of_token = &mut gradients.embedding[token as usize * D..][..D];
            for (sum, value) in of_token.iter_mut().zip(row) {
                *sum += value;
            }
        }
        losses
    }

    /// Hidden states after the last norm, in `room.normed`. Of the layers the last `kept` leave what the way back needs.
    fn hidden(&self, weights: &Tensors<&[f32]>, tokens: &[u32], kept: usize, room: &mut Room) {
        let D = self.config.d_model;
        room.layers.resize_with(kept.max(room.layers.len()), Kept::default);
        // A smaller batch than the last one leaves nothing behind.
        let embedded = sized(&mut room.layers[0].x, tokens.len() * D);
        for (row, &token) in embedded.chunks_exact_mut(D).zip(tokens) {
            row.copy_from_slice(&weights.embedding[token as usize * D..][..D]);
        }
        for (index, layer) in weights.layers.iter().enumerate() {
            let (here, behind) = room.layers.split_at_mut(if kept > 1 { index + 1 } else { 1 });
            let here = here.last_mut().expect("it holds at least one");
            let next = match behind.first_mut() {
                Some(next) if kept > 1 => &mut next.x,
                _ => &mut room.last,
            };
            self.attend(layer, here, &mut room.normed, &mut room.stacked);
            self.feed_forward(layer, here, &mut room.normed, &mut room.inner, &mut room.stacked, next);
            if kept == 1 && index + 1 < weights.layers.len() {
                std::mem::swap(&mut here.x, next);
            }
        }
        self.norm(&room.last, weights.norm, &mut room.normed, &mut room.last_roots);
    }

    /// The half of a layer that looks at other tokens: from `kept.x` to `kept.middle`.
    fn attend(
        &self,
        weights: &LayerTensors<&[f32]>,
        kept: &mut Kept,
        normed: &mut Vec<f32>,
        stacked: &mut Vec<f32>,
    ) {
        let ModelConfig { d_model: D, heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        let N = kept.x.len() / D;
        let W = self.attention.row_width();
        self.norm(&kept.x, weights.attention_norm, normed, &mut kept.roots);
        let normed = Mat::new(normed, [N, D]);

        let rows = sized(&mut kept.rows, N * W);
        let weight = Mat::new(stack([weights.query, weights.key, weights.value], stacked), [W, D]);
        product(Write::Over, rows, [N, W], normed, weight.transposed());
        rotary::rotate(rows, W, [H, K], T, &self.angles, Rotation::Forward);

        let (mixed, log_sums) = (sized(&mut kept.mixed, N * D), sized(&mut kept.log_sums, N * H));
        attention::forward(&self.attention, rows, mixed, log_sums);
        let middle = copied(&kept.x, &mut kept.middle);
        let weight = Mat::new(weights.output, [D, D]);
        product(Write::Add, middle, [N, D], Mat::new(mixed, [N, D]), weight.transposed());
    }

    /// The half that works on each token: from `kept.middle` to `next`.
    fn feed_forward(
        &self,
        weights: &LayerTensors<&[f32]>,
        kept: &mut Kept,
        normed: &mut Vec<f32>,
        inner: &mut Vec<f32>,
        stacked: &mut Vec<f32>,
        next: &mut Vec<f32>,
    ) {
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let N = kept.middle.len() / D;
        self.norm(&kept.middle, weights.feed_forward_norm, normed, &mut kept.middle_roots);
        let normed = Mat::new(normed, [N, D]);

        let gates_and_ups = sized(&mut kept.gates_and_ups, N * 2 * F);
        let weight = Mat::new(stack([weights.gate, weights.up], stacked), [2 * F, D]);
        product(Write::Over, gates_and_ups, [N, 2 * F], normed, weight.transposed());
        let inner = sized(inner, N * F);
        swiglu::forward(gates_and_ups, F, inner);

        let next = copied(&kept.middle, next);
        let weight = Mat::new(weights.down, [D, F]);
        product(Write::Add, next, [N, D], Mat::new(inner, [N, F]), weight.transposed());
    }

    /// Turns `room.of_x` from the gradient of what [`feed_forward`](Self::feed_forward) gave into that of what it took.
    fn feed_forward_back(
        &self,
        weights: &LayerTensors<&[f32]>,
        gradients: &mut LayerTensors<&mut [f32]>,
        layer: usize,
        room: &mut Room,
    ) {
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let kept = &mut room.layers[layer];
        let N = kept.middle.len() / D;
        let of_next = Mat::new(&room.of_x, [N, D]);

        let inner = sized(&mut room.inner, N * F);
        product(Write::Over, inner, [N, F], of_next, Mat::new(weights.down, [D, F]));
        // Afterwards `gates_and_ups` are gradients, and `inner` is what it was on the way forward.
        swiglu::backward(&mut kept.gates_and_ups, F, inner);
        product(Write::Add, gradients.down, [D, F], of_next.transposed(), Mat::new(inner, [N, F]));

        let normed = sized(&mut room.normed, N * D);
        rms_norm::forward_from_roots(&kept.middle, weights.feed_forward_norm, &kept.middle_roots, normed);
        let of_normed = sized(&mut room.of_normed, N * D);
        let of_both = Mat::new(&kept.gates_and_ups, [N, 2 * F]);
        let weight = Mat::new(stack([weights.gate, weights.up], &mut room.stacked), [2 * F, D]);
        product(Write::Over, of_normed, [N, D], of_both, weight);
        let of_stacked = sized(&mut room.of_stacked, 2 * F * D);
        product(Write::Over, of_stacked, [2 * F, D], of_both.transposed(), Mat::new(normed, [N, D]));
        add_parts(of_stacked, [&mut *gradients.gate, gradients.up]);
        rms_norm::backward(
            &kept.middle,
            weights.feed_forward_norm,
            &kept.middle_roots,
            of_normed,
            &mut room.of_x,
            gradients.feed_forward_norm,
        );
    }

    /// Turns `room.of_x` from the gradient of what [`attend`](Self::attend) gave into that of what it took.
    fn attend_back(
        &self,
        weights: &LayerTensors<&[f32]>,
        gradients: &mut LayerTensors<&mut [f32]>,
        layer: usize,
        room: &mut Room,
    ) {
        let ModelConfig { d_model: D, heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        let kept = &room.layers[layer];
        let N = kept.x.len() / D;
        let W = self.attention.row_width();
        let of_middle = Mat::new(&room.of_x, [N, D]);

        let of_mixed = sized(&mut room.of_normed, N * D);
        product(Write::Over, of_mixed, [N, D], of_middle, Mat::new(weights.output, [D, D]));
        product(Write::Add, gradients.output, [D, D], of_middle.transposed(), Mat::new(&kept.mixed, [N, D]));
        let of_rows = sized(&mut room.of_rows, N * W);
        attention::backward(&self.attention, &kept.rows, &kept.mixed, &kept.log_sums, of_mixed, of_rows);
        rotary::rotate(of_rows, W, [H, K], T, &self.angles, Rotation::Back);

        let normed = sized(&mut room.normed, N * D);
        rms_norm::forward_from_roots(&kept.x, weights.attention_norm, &kept.roots, normed);
        let of_normed = sized(&mut room.of_normed, N * D);
        let of_rows = Mat::new(of_rows, [N, W]);
        let weight = stack([weights.query, weights.key, weights.value], &mut room.stacked);
        product(Write::Over, of_normed, [N, D], of_rows, Mat::new(weight, [W, D]));
        let of_stacked = sized(&mut room.of_stacked, W * D);
        product(Write::Over, of_stacked, [W, D], of_rows.transposed(), Mat::new(normed, [N, D]));
        add_parts(of_stacked, [&mut *gradients.query, gradients.key, gradients.value]);
        rms_norm::backward(
            &kept.x,
            weights.attention_norm,
            &kept.roots,
            of_normed,
            &mut room.of_x,
            gradients.attention_norm,
        );
    }

    fn norm(&self, x: &[f32], gain: &[f32], into: &mut Vec<f32>, roots: &mut Vec<f32>) {
        let (into, roots) = (sized(into, x.len()), sized(roots, x.len() / gain.len()));
        rms_norm::forward(x, gain, self.config.norm_epsilon as f32, into, roots);
    }
}

/// The flat model state as tensors, in schema order.
///
/// # Errors
/// If `flat` has another length than a model of this configuration.
pub(crate) fn split(config: &ModelConfig, flat: &[f32]) -> Result<Vec<Vec<f32>>, ModelError> {
    let expected = config.parameters();
    if flat.len() != expected {
        return Err(ModelError::FlatLength { expected, got: flat.len() });
    }
    let mut rest = flat;
    let tensors = config.shapes().into_iter().map(|(_, [rows, columns])| {
        let (values, behind) = rest.split_at(rows * columns);
        rest = behind;
        values.to_vec()
    });
    Ok(tensors.collect())
}

/// A product over all threads, into a slice as a matrix of this shape.
fn product(write: Write, into: &mut [f32], shape: [usize; 2], a: Mat, b: Mat) {
    matmul(write, &mut MatMut::new(into, shape), a, b, Threads::Pool);
}

/// Matrices of the same width, one below the other.
fn stack<'a, const COUNT: usize>(parts: [&[f32]; COUNT], buffer: &'a mut Vec<f32>) -> &'a [f32] {
    buffer.clear();
    parts.iter().for_each(|part| buffer.extend_from_slice(part));
    buffer
}

/// Adds to each part what stands at its place in the stack.
fn add_parts<const COUNT: usize>(stacked: &[f32], parts: [&mut [f32]; COUNT]) {
    let mut rest = stacked;
    for part in parts {
        let (of_part, behind) = rest.split_at(part.len());
        rest = behind;
        part.iter_mut().zip(of_part).for_each(|(sum, value)| *sum += value);
    }
}

/// The buffer with `len` values, whatever they are.
fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}

/// The buffer as a copy of `from`.
fn copied<'a>(from: &[f32], buffer: &'a mut Vec<f32>) -> &'a mut [f32] {
    const VALUES: usize = 1 << 16;
    let into = sized(buffer, from.len());
    into.par_chunks_mut(VALUES)
        .zip(from.par_chunks(VALUES))
        .for_each(|(into, from)| into.copy_from_slice(from));
    into
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        llama::{Constants, Llama},
        loss::{self, ids},
    };
    use burn::tensor::{Device, Tensor};
    use model::init_flat;
    use proptest::prelude::*;

    /// Losses and gradients by tensor operations and the gradient tape.
    fn by_tape(
        config: &ModelConfig,
        flat: &[f32],
        tokens: &[u32],
        targets: &[u32],
        scale: f32,
    ) -> (Vec<f64>, Vec<Vec<f32>>) {
        let device = Device::flex();
        let model = Llama::load(config, flat, &device).unwrap();
        let tracked = model.tracked();
        let shape = [tokens.len() / config.seq_len, config.seq_len];
        let hidden = tracked.hidden(ids(tokens, shape, &device), &Constants::new(config, &device));
        let head = loss::losses_and_gradients(hidden.clone().inner(), &model.embedding_VD, targets, scale);
        let mut tape = (hidden * head.hidden_ND.autodiff()).sum().backward();
        let mut of_head = Some(head.embedding_VD);
        let gradients = tracked.tensors().into_iter().map(|tensor: &Tensor<2>| {
            let gradient = tensor.grad_remove(&mut tape).unwrap();
            let gradient = match of_head.take() {
                Some(of_head) => gradient + of_head,
                None => gradient,
            };
            gradient.into_data().as_slice::<f32>().unwrap().to_vec()
        });
        let gradients = gradients.collect();
        (head.losses.read(), gradients)
    }

    fn zeros(config: &ModelConfig) -> Vec<Vec<f32>> {
        config.shapes().iter().map(|(_, [rows, columns])| vec![0.0; rows * columns]).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn losses_and_gradients_are_those_of_the_gradient_tape(
            vocab in 2usize..300, layers in 1usize..4, kv_heads in 1usize..3, shared in 1usize..3, half in 1usize..9,
            d_ff in 2usize..70, seq_len in 1usize..80, count in 1usize..5, seed: u32,
        ) {
            let heads = kv_heads * shared;
            let config = ModelConfig {
                vocab, d_model: heads * 2 * half, layers, heads, kv_heads, d_ff, seq_len, rope_theta: 10_000.0, norm_epsilon: 1e-5,
            };
            // Twice the first weights: what a layer adds and how unevenly a query looks must matter.
            let flat: Vec<f32> = init_flat(&config, 1).unwrap().into_iter().map(|value| 2.0 * value).collect();
            let rows = count * seq_len;
            let token = |i: usize| (i as u32).wrapping_mul(seed | 1).wrapping_mul(2_654_435_761) % vocab as u32;
            let tokens: Vec<u32> = (0..rows).map(token).collect();
            let targets: Vec<u32> = (rows..2 * rows).map(token).collect();
            let scale = 1.0 / rows as f32;

            let host = Host::new(&config);
            let (weights, mut gradients, mut room) = (split(&config, &flat).unwrap(), zeros(&config), Room::default());
            // A room that another batch has been in.
            let (larger, same) = ([&tokens[..], &tokens].concat(), [&targets[..], &targets].concat());
            host.losses(&weights, &larger, &same, &mut room);
            let losses = host.losses_and_gradients(&weights, &tokens, &targets, scale, &mut gradients, &mut room);

            let (exact, of_tape) = by_tape(&config, &flat, &tokens, &targets, scale);
            // A row that a norm finds nearly zero is turned up, its rounding with it: single rows have more room than all together.
            for (loss, exact) in losses.iter().zip(&exact) {
                prop_assert!((loss - exact).abs() < 2e-3 * exact.max(1.0), "{} by the tape {}", loss, exact);
            }
            let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
            prop_assert!((mean(&losses) - mean(&exact)).abs() < 2e-4 * mean(&exact).max(1.0));
            let largest_of_all = of_tape.iter().flatten().fold(0.0f32, |max, x| max.max(x.abs()));
            for ((gradient, of_tape), (name, _)) in gradients.iter().zip(&of_tape).zip(config.shapes()) {
                let largest = of_tape.iter().fold(0.0f32, |max, x| max.max(x.abs()));
                for (one, other) in gradient.iter().zip(of_tape) {
                    prop_assert!((one - other).abs() <= 5e-3 * largest + 1e-4 * largest_of_all, "{}: {} by the tape {}", name, one, other);
                }
            }
            let alone = host.losses(&weights, &tokens, &targets, &mut Room::default());
            prop_assert!(alone.iter().zip(&losses).all(|(one, other)| (one - other).abs() < 1e-5 * other.max(1.0)));
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let config = ModelConfig { vocab: 700, ..ModelConfig::preset("1m").unwrap() };
        let weights = split(&config, &init_flat(&config, 1).unwrap()).unwrap();
        let tokens: Vec<u32> = (0..4 * 128).map(|i| i * 7919 % 700).collect();
        let targets: Vec<u32> = (0..4 * 128).map(|i| i * 104_729 % 700).collect();
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut gradients = zeros(&config);
                let host = Host::new(&config);
                let losses = host.losses_and_gradients(
                    &weights,
                    &tokens,
                    &targets,
                    1e-3,
                    &mut gradients,
                    &mut Room::default(),
                );
                let losses: Vec<u64> = losses.iter().map(|loss| loss.to_bits()).collect();
                (losses, gradients.concat().iter().map(|value| value.to_bits()).collect::<Vec<u32>>())
            })
        };
        let alone = on(1);
        for threads in [2, 3, 5] {
            assert!(on(threads) == alone, "{threads} threads give other bits than one");
        }
    }
}
