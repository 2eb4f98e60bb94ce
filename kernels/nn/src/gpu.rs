//! The network on a GPU, forward and back, over buffers: `host` once more, by `kernels::gpu::network`.
//!
//! What is said in `host` holds here: the whole way is written down, there is no tape, and all memory is in [`Room`], taken
//! before the first step, so its size is known beforehand (`memory.rs`). `host` is its slow twin in the tests.
//!
//! **Precision.** Products take and give `F`, bf16 or f32, and so does what they read later. The stream from layer to layer,
//! its gradient, norms, losses, gradients of weights, weights and moments are f32. In bf16 a matrix has a copy for products, which
//! the optimiser writes when it steps.
//!
//! **Layout.** Matrices that read the same lie one below the other, as they stand in the flat state: queries, keys and values
//! are one product, gates and ups another.
//!
//! **Waiting.** Work is queued and nothing waits for it but what reads: the norm of all gradients and the losses, once a step.
//! So the tokens of the next micro-batch are on their way while the last one computes, and the next batch is made ready while
//! the optimiser steps.

#![allow(non_snake_case, reason = "a length is named by its letter: see llama.rs")]

use crate::{
    ModelError, batch,
    device::{self, ActivationCheckpointing, DeviceChoice, DeviceError, GpuSettings},
    memory::{MemoryEstimate, logits_rows},
    optimiser::{StateError, read_state, values_as_bytes, write_state},
    train::Step,
};
use kernels::{
    adamw::Numbers,
    attention::Shape,
    gpu::{
        Device, GpuError,
        network::{Angles, Array, Precision, matmul::View},
    },
    matmul::Write,
    rotary::{self, Rotation},
};
use model::{ModelConfig, Optimiser, Recipe};
use protocol::Digest;
use std::io;

/// What the passes need besides weights and room, and never changes.
pub(crate) struct Network {
    device: Device,
    on: DeviceChoice,
    config: ModelConfig,
    shape: Shape,
    angles: Angles,
    precision: Precision,
    activation_checkpointing: ActivationCheckpointing,
    /// Rows whose logits exist at once, at most.
    logits_rows: usize,
}

/// Where the passes work, for so many tokens at most.
pub(crate) struct Room {
    tokens: usize,
    /// One for each layer; what is not kept, or where nothing is learnt, is the same buffer in all of them.
    layers: Vec<Kept>,
    /// f32 `[N, D]`: what the last layer gives, and f32 `[N]`: one over the last norm's roots.
    last: Array,
    last_roots: Array,
    /// `[N, D]`: what a norm gives.
    normed: Array,
    /// `[N, D]`: what a product adds to the stream; on the way back, the stream's gradient as products take it.
    added: Array,
    /// `[N, F]`: the feed-forward half between its products, and its gradient.
    inner: Array,
    /// Some rows of `V`.
    logits: Array,
    /// Only where something is learnt.
    back: Option<Back>,
}

/// Gradients of activations.
struct Back {
    /// f32 `[N, D]`: of the stream.
    of_x: Array,
    /// `[N, D]`: of what goes into or comes out of a product.
    of_normed: Array,
    /// `[N, W]`
    of_rows: Array,
}

/// What a layer leaves for the way back.
#[derive(Clone)]
struct Kept {
    /// f32 `[N, D]`: what came in, and f32 `[N]`: one over the norm's roots.
    x: Array,
    roots: Array,
    /// `[N, W]`: queries, keys and values, turned.
    rows: Array,
    /// f32 `[B, H, T]`: see `kernels::attention`.
    log_sums: Array,
    /// `[N, D]`: what attention gives, before its last product.
    mixed: Array,
    /// f32 `[N, D]`: the stream between the halves, and f32 `[N]`: one over the norm's roots.
    middle: Array,
    middle_roots: Array,
    /// `[N, 2F]`: gates, then ups.
    gates_and_ups: Array,
}

/// A buffer for each part of a model.
pub(crate) struct Parts<T> {
    embedding: T,
    layers: Vec<LayerParts<T>>,
    norm: T,
}

struct LayerParts<T> {
    attention_norm: T,
    /// `[W, D]`: of queries, keys and values.
    rows: T,
    output: T,
    feed_forward_norm: T,
    /// `[2F, D]`: of gates and ups.
    gates_and_ups: T,
    down: T,
}

/// Shape of a part, and the lengths of the schema's tensors that lie in it.
struct Part {
    shape: [usize; 2],
    tensors: Vec<usize>,
}

/// A part of the weights.
pub(crate) struct Weight {
    /// f32: what is agreed on and stepped.
    values: Array,
    /// The same for products, where they are not in f32.
    copy: Option<Array>,
}

/// A model being trained on a GPU, with its optimiser.
pub(crate) struct Learner {
    network: Network,
    weights: Parts<Weight>,
    gradients: Parts<Array>,
    moments: Parts<Moments>,
    room: Room,
    pub steps: u64,
}

/// f32: AdamW's moving averages, of a gradient and of its square.
struct Moments {
    mean: Array,
    square: Array,
}

impl<T> Parts<T> {
    fn in_order(parts: Vec<T>) -> Parts<T> {
        let layers = (parts.len() - 2) / 6;
        let mut parts = parts.into_iter();
        let mut next = || parts.next().expect("a model has six parts a layer, and two more");
        Parts {
            embedding: next(),
            layers: (0..layers)
                .map(|_| LayerParts {
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
            let LayerParts { attention_norm, rows, output, feed_forward_norm, gates_and_ups, down } = layer;
            all.extend([attention_norm, rows, output, feed_forward_norm, gates_and_ups, down]);
        }
        all.push(&self.norm);
        all
    }
}

/// The parts of a model, in the order of the flat state.
fn parts(config: &ModelConfig) -> Vec<Part> {
    let shapes: Vec<[usize; 2]> = config.shapes().into_iter().map(|(_, shape)| shape).collect();
    let one = |shape: &[usize; 2]| Part { shape: *shape, tensors: vec![shape[0] * shape[1]] };
    let together = |shapes: &[[usize; 2]]| Part {
        shape: [shapes.iter().map(|[rows, _]| rows).sum(), shapes[0][1]],
        tensors: shapes.iter().map(|[rows, columns]| rows * columns).collect(),
    };
    let mut parts = vec![one(&shapes[0])];
    for layer in shapes[1..shapes.len() - 1].chunks_exact(9) {
        parts.extend([one(&layer[0]), together(&layer[1..4]), one(&layer[4])]);
        parts.extend([one(&layer[5]), together(&layer[6..8]), one(&layer[8])]);
    }
    parts.push(one(&shapes[shapes.len() - 1]));
    parts
}

impl Weight {
    /// As products take it.
    fn operand(&self) -> &Array {
        self.copy.as_ref().unwrap_or(&self.values)
    }
}

impl Network {
    /// # Errors
    /// If the device is not there, or lacks what is needed.
    pub fn open(
        config: &ModelConfig,
        on: DeviceChoice,
        precision: device::Precision,
    ) -> Result<Network, ModelError> {
        let device = on.open_gpu()?;
        let precision = match precision {
            device::Precision::F32 => Precision::F32,
            device::Precision::Bf16 => Precision::Bf16,
            device::Precision::F16 => Precision::F16,
        };
        if !device.supports(precision) {
            return Err(DeviceError::NoSuchPrecision { device: on.to_string() }.into());
        }
        let activation_checkpointing = match on {
            DeviceChoice::Gpu(_, GpuSettings { activation_checkpointing, .. }) => activation_checkpointing,
            DeviceChoice::Cpu | DeviceChoice::Tape(_) => ActivationCheckpointing::Nothing,
        };
        let angles = rotary::Angles::new(config.seq_len, config.head_width(), config.rope_theta);
        Ok(Network {
            angles: device.upload_angles(&angles).map_err(|error| failed(on, &error))?,
            shape: Shape {
                seq_len: config.seq_len,
                heads: config.heads,
                kv_heads: config.kv_heads,
                head_width: config.head_width(),
            },
            precision,
            activation_checkpointing,
            logits_rows: logits_rows(config.vocab, usize::MAX),
            config: config.clone(),
            device,
            on,
        })
    }

    /// Room for so many tokens, and for the way back where the network is to learn.
    pub fn room(&self, tokens: usize, learns: bool) -> Result<Room, GpuError> {
        let ModelConfig { d_model: D, d_ff: F, vocab: V, heads: H, .. } = self.config;
        let W = self.shape.row_width();
        let N = tokens;
        let narrow = |width: usize| self.device.array(N * width, self.precision);
        let f32s = |width: usize| self.device.array(N * width, Precision::F32);
        let kept = || -> Result<Kept, GpuError> {
            Ok(Kept {
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
        let first = kept()?;
        let mut layers = vec![first.clone()];
        while layers.len() < self.config.layers {
            layers.push(match self.activation_checkpointing {
                _ if !learns => first.clone(),
                ActivationCheckpointing::Layers => Kept { x: f32s(D)?, ..first.clone() },
                ActivationCheckpointing::FeedForward => Kept {
                    x: f32s(D)?,
                    roots: f32s(1)?,
                    rows: narrow(W)?,
                    log_sums: f32s(H)?,
                    mixed: narrow(D)?,
                    middle: f32s(D)?,
                    middle_roots: f32s(1)?,
                    gates_and_ups: first.gates_and_ups.clone(),
                },
                ActivationCheckpointing::Nothing => kept()?,
            });
        }
        Ok(Room {
            tokens,
            layers,
            last: if learns { f32s(D)? } else { first.x },
            last_roots: f32s(1)?,
            normed: narrow(D)?,
            added: narrow(D)?,
            inner: narrow(F)?,
            logits: self.device.array(self.logits_rows.min(N) * V, self.precision)?,
            back: match learns {
                true => Some(Back { of_x: f32s(D)?, of_normed: narrow(D)?, of_rows: narrow(W)? }),
                false => None,
            },
        })
    }

    /// The weights `flat` on the device. `explain` says what its errors are to the caller.
    pub fn weights(
        &self,
        flat: &[f32],
        explain: impl Fn(&GpuError) -> ModelError,
    ) -> Result<Parts<Weight>, ModelError> {
        let make = |part: Part| {
            let len = part.shape[0] * part.shape[1];
            // A norm's gain goes into no product.
            let copied = part.shape[0] > 1 && self.precision != Precision::F32;
            Ok(Weight {
                values: self.device.array(len, Precision::F32)?,
                copy: if copied { Some(self.device.array(len, self.precision)?) } else { None },
            })
        };
        let weights = parts(&self.config).into_iter().map(make).collect::<Result<Vec<Weight>, GpuError>>();
        let weights = Parts::in_order(weights.map_err(|error| explain(&error))?);
        self.overwrite(&weights, flat, explain)?;
        Ok(weights)
    }

    /// Writes `flat` over these weights.
    fn overwrite(
        &self,
        weights: &Parts<Weight>,
        flat: &[f32],
        explain: impl Fn(&GpuError) -> ModelError,
    ) -> Result<(), ModelError> {
        let expected = self.config.parameters();
        if flat.len() != expected {
            return Err(ModelError::FlatLength { expected, got: flat.len() });
        }
        let mut rest = flat;
        let written = weights.all().into_iter().try_for_each(|Weight { values, copy }| {
            let (new, behind) = rest.split_at(values.len());
            rest = behind;
            self.device.overwrite_array(values, new)?;
            copy.as_ref().map_or(Ok(()), |copy| self.device.cast(values, copy))
        });
        written.map_err(|error| explain(&error))
    }

    /// The loss of each row of whole sequences, in nats, once it is read.
    pub fn losses(
        &self,
        weights: &Parts<Weight>,
        tokens: &[u32],
        targets: &[u32],
        room: &Room,
    ) -> Result<Array, GpuError> {
        let room = &self.part_of(room, tokens.len())?;
        self.hidden(weights, tokens, room)?;
        let targets = self.device.upload_tokens(self.config.vocab, targets)?;
        let losses = self.device.array(tokens.len(), Precision::F32)?;
        for (first, rows) in self.chunks(tokens.len()) {
            let logits = self.logits(weights, room, first, rows)?;
            self.device.cross_entropy(&logits, &targets, first, &losses)?;
        }
        Ok(losses)
    }

    /// The logits of the first `rows` tokens of whole sequences, `[rows, V]` row-major.
    pub fn first_logits(
        &self,
        weights: &Parts<Weight>,
        tokens: &[u32],
        rows: usize,
        room: &Room,
    ) -> Result<Vec<f32>, GpuError> {
        let room = &self.part_of(room, tokens.len())?;
        self.hidden(weights, tokens, room)?;
        let mut values = Vec::with_capacity(rows * self.config.vocab);
        for (first, rows) in self.chunks(rows) {
            values.extend(self.device.download_array(&self.logits(weights, room, first, rows)?)?);
        }
        Ok(values)
    }

    /// The loss of each row, once it is read, and the gradients of `scale · Σ losses`, added to `gradients`.
    fn losses_and_gradients(
        &self,
        weights: &Parts<Weight>,
        tokens: &[u32],
        targets: &[u32],
        scale: f32,
        gradients: &Parts<Array>,
        room: &Room,
    ) -> Result<Array, GpuError> {
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let device = &self.device;
        let room = &self.part_of(room, tokens.len())?;
        let back = room.back.as_ref().ok_or(GpuError::WrongLength { expected: tokens.len() * D, got: 0 })?;
        self.hidden(weights, tokens, room)?;

        // The vocabulary, forward and back, some rows at a time.
        let targets = device.upload_tokens(V, targets)?;
        let losses = device.array(tokens.len(), Precision::F32)?;
        for (first, rows) in self.chunks(tokens.len()) {
            let logits = self.logits(weights, room, first, rows)?;
            device.cross_entropy_gradient(&logits, &targets, first, &losses, scale)?;
            let of_logits = View::new(&logits, [rows, V]);
            let hidden = device.part(&room.normed, first * D, rows * D)?;
            let of_hidden = device.part(&back.of_normed, first * D, rows * D)?;
            let embedding = View::new(weights.embedding.operand(), [V, D]);
            device.product(Write::Over, &of_hidden, [rows, D], of_logits, embedding)?;
            let hidden = View::new(&hidden, [rows, D]);
            device.product(Write::Add, &gradients.embedding, [V, D], of_logits.transposed(), hidden)?;
        }
        device.fill(&back.of_x, 0.0)?;
        let (gain, of_gain) = (&weights.norm.values, &gradients.norm);
        device.rms_norm_backward(&room.last, gain, &room.last_roots, &back.of_normed, &back.of_x, of_gain)?;

        // The layers, from the last, whose activations are there in any case.
        for (layer, kept) in room.layers.iter().enumerate().rev() {
            let last = layer + 1 == room.layers.len();
            let (weights, gradients) = (&weights.layers[layer], &gradients.layers[layer]);
            if self.activation_checkpointing == ActivationCheckpointing::Layers && !last {
                self.attend(weights, kept, room)?;
                self.norm(&kept.middle, &weights.feed_forward_norm, room, &kept.middle_roots)?;
            }
            let again = self.activation_checkpointing != ActivationCheckpointing::Nothing && !last;
            self.feed_forward_back(weights, gradients, kept, room, back, again)?;
            self.attend_back(weights, gradients, kept, room, back)?;
        }
        let segments = device.upload_segments(V, tokens)?;
        device.embedding_backward(&segments, &back.of_x, &gradients.embedding)?;
        Ok(losses)
    }

    /// Hidden states after the last norm, in `room.normed`.
    fn hidden(&self, weights: &Parts<Weight>, tokens: &[u32], room: &Room) -> Result<(), GpuError> {
        let tokens = self.device.upload_tokens(self.config.vocab, tokens)?;
        self.device.embedding(&weights.embedding.values, &tokens, &room.layers[0].x)?;
        for (index, (weights, kept)) in weights.layers.iter().zip(&room.layers).enumerate() {
            let next = room.layers.get(index + 1).map_or(&room.last, |next| &next.x);
            self.attend(weights, kept, room)?;
            self.feed_forward(weights, kept, room, next)?;
        }
        self.norm(&room.last, &weights.norm, room, &room.last_roots)
    }

    /// The half of a layer that looks at other tokens: from `kept.x` to `kept.middle`.
    fn attend(&self, weights: &LayerParts<Weight>, kept: &Kept, room: &Room) -> Result<(), GpuError> {
        let ModelConfig { d_model: D, heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        let (N, W, device) = (room.tokens, self.shape.row_width(), &self.device);
        self.norm(&kept.x, &weights.attention_norm, room, &kept.roots)?;
        let normed = View::new(&room.normed, [N, D]);
        device.product(
            Write::Over,
            &kept.rows,
            [N, W],
            normed,
            View::new(weights.rows.operand(), [W, D]).transposed(),
        )?;
        device.rotary(&kept.rows, W, [H, K], T, &self.angles, Rotation::Forward)?;
        device.attention(&self.shape, &kept.rows, &kept.mixed, &kept.log_sums)?;
        let mixed = View::new(&kept.mixed, [N, D]);
        device.product(
            Write::Over,
            &room.added,
            [N, D],
            mixed,
            View::new(weights.output.operand(), [D, D]).transposed(),
        )?;
        device.add(&kept.x, &room.added, &kept.middle)
    }

    /// The half that works on each token: from `kept.middle` to `next`.
    fn feed_forward(
        &self,
        weights: &LayerParts<Weight>,
        kept: &Kept,
        room: &Room,
        next: &Array,
    ) -> Result<(), GpuError> {
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let (N, device) = (room.tokens, &self.device);
        self.norm(&kept.middle, &weights.feed_forward_norm, room, &kept.middle_roots)?;
        self.gates_and_ups(weights, kept, room)?;
        device.swiglu(&kept.gates_and_ups, F, &room.inner)?;
        let inner = View::new(&room.inner, [N, F]);
        device.product(
            Write::Over,
            &room.added,
            [N, D],
            inner,
            View::new(weights.down.operand(), [D, F]).transposed(),
        )?;
        device.add(&kept.middle, &room.added, next)
    }

    /// From `room.normed` to `kept.gates_and_ups`.
    fn gates_and_ups(&self, weights: &LayerParts<Weight>, kept: &Kept, room: &Room) -> Result<(), GpuError> {
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let (normed, weight) = (View::new(&room.normed, [room.tokens, D]), weights.gates_and_ups.operand());
        let weight = View::new(weight, [2 * F, D]).transposed();
        self.device.product(Write::Over, &kept.gates_and_ups, [room.tokens, 2 * F], normed, weight)
    }

    /// Turns `back.of_x` from the gradient of what [`feed_forward`](Self::feed_forward) gave into that of what it took.
    /// Gates and ups are computed first if they are to be made `again`.
    fn feed_forward_back(
        &self,
        weights: &LayerParts<Weight>,
        gradients: &LayerParts<Array>,
        kept: &Kept,
        room: &Room,
        back: &Back,
        again: bool,
    ) -> Result<(), GpuError> {
        let ModelConfig { d_model: D, d_ff: F, .. } = self.config;
        let (N, device) = (room.tokens, &self.device);
        let gain = &weights.feed_forward_norm.values;
        device.rms_norm_again(&kept.middle, gain, &kept.middle_roots, &room.normed)?;
        if again {
            self.gates_and_ups(weights, kept, room)?;
        }
        let of_next = View::new(self.as_operand(&back.of_x, room)?, [N, D]);
        device.product(
            Write::Over,
            &room.inner,
            [N, F],
            of_next,
            View::new(weights.down.operand(), [D, F]),
        )?;
        // Afterwards `gates_and_ups` are gradients, and `inner` is what it was on the way forward.
        device.swiglu_backward(&kept.gates_and_ups, F, &room.inner)?;
        let inner = View::new(&room.inner, [N, F]);
        device.product(Write::Add, &gradients.down, [D, F], of_next.transposed(), inner)?;

        let of_both = View::new(&kept.gates_and_ups, [N, 2 * F]);
        let normed = View::new(&room.normed, [N, D]);
        device.product(Write::Add, &gradients.gates_and_ups, [2 * F, D], of_both.transposed(), normed)?;
        let weight = View::new(weights.gates_and_ups.operand(), [2 * F, D]);
        device.product(Write::Over, &back.of_normed, [N, D], of_both, weight)?;
        let (roots, of_gain) = (&kept.middle_roots, &gradients.feed_forward_norm);
        device.rms_norm_backward(&kept.middle, gain, roots, &back.of_normed, &back.of_x, of_gain)
    }

    /// Turns `back.of_x` from the gradient of what [`attend`](Self::attend) gave into that of what it took.
    fn attend_back(
        &self,
        weights: &LayerParts<Weight>,
        gradients: &LayerParts<Array>,
        kept: &Kept,
        room: &Room,
        back: &Back,
    ) -> Result<(), GpuError> {
        let ModelConfig { d_model: D, heads: H, kv_heads: K, seq_len: T, .. } = self.config;
        let (N, W, device) = (room.tokens, self.shape.row_width(), &self.device);
        let of_middle = View::new(self.as_operand(&back.of_x, room)?, [N, D]);
        let of_mixed = &back.of_normed;
        device.product(
            Write::Over,
            of_mixed,
            [N, D],
            of_middle,
            View::new(weights.output.operand(), [D, D]),
        )?;
        let mixed = View::new(&kept.mixed, [N, D]);
        device.product(Write::Add, &gradients.output, [D, D], of_middle.transposed(), mixed)?;
        device.attention_backward(
            &self.shape,
            &kept.rows,
            &kept.mixed,
            &kept.log_sums,
            of_mixed,
            &back.of_rows,
        )?;
        device.rotary(&back.of_rows, W, [H, K], T, &self.angles, Rotation::Back)?;

        let gain = &weights.attention_norm.values;
        device.rms_norm_again(&kept.x, gain, &kept.roots, &room.normed)?;
        let (of_rows, normed) = (View::new(&back.of_rows, [N, W]), View::new(&room.normed, [N, D]));
        device.product(Write::Add, &gradients.rows, [W, D], of_rows.transposed(), normed)?;
        device.product(
            Write::Over,
            &back.of_normed,
            [N, D],
            of_rows,
            View::new(weights.rows.operand(), [W, D]),
        )?;
        let of_gain = &gradients.attention_norm;
        device.rms_norm_backward(&kept.x, gain, &kept.roots, &back.of_normed, &back.of_x, of_gain)
    }

    fn norm(&self, x: &Array, gain: &Weight, room: &Room, roots: &Array) -> Result<(), GpuError> {
        self.device.rms_norm(x, &gain.values, self.config.norm_epsilon as f32, &room.normed, roots)
    }

    /// The stream's gradient as products take it: itself, or rounded into `room.added`.
    fn as_operand<'a>(&self, of_x: &'a Array, room: &'a Room) -> Result<&'a Array, GpuError> {
        if self.precision == Precision::F32 {
            return Ok(of_x);
        }
        self.device.cast(of_x, &room.added)?;
        Ok(&room.added)
    }

    /// The logits of some rows of `room.normed`.
    fn logits(
        &self,
        weights: &Parts<Weight>,
        room: &Room,
        first: usize,
        rows: usize,
    ) -> Result<Array, GpuError> {
        let ModelConfig { vocab: V, d_model: D, .. } = self.config;
        let hidden = self.device.part(&room.normed, first * D, rows * D)?;
        let logits = self.device.part(&room.logits, 0, rows * V)?;
        let embedding = View::new(weights.embedding.operand(), [V, D]).transposed();
        self.device.product(Write::Over, &logits, [rows, V], View::new(&hidden, [rows, D]), embedding)?;
        Ok(logits)
    }

    /// `rows` in pieces whose logits exist at once: the first of each, and how many.
    fn chunks(&self, rows: usize) -> impl Iterator<Item = (usize, usize)> {
        let most = self.logits_rows;
        (0..rows).step_by(most).map(move |first| (first, most.min(rows - first)))
    }

    /// The same room for fewer tokens.
    fn part_of(&self, room: &Room, tokens: usize) -> Result<Room, GpuError> {
        let of = |array: &Array| self.device.part(array, 0, array.len() / room.tokens * tokens);
        let kept = |kept: &Kept| {
            Ok(Kept {
                x: of(&kept.x)?,
                roots: of(&kept.roots)?,
                rows: of(&kept.rows)?,
                log_sums: of(&kept.log_sums)?,
                mixed: of(&kept.mixed)?,
                middle: of(&kept.middle)?,
                middle_roots: of(&kept.middle_roots)?,
                gates_and_ups: of(&kept.gates_and_ups)?,
            })
        };
        Ok(Room {
            tokens,
            layers: room.layers.iter().map(kept).collect::<Result<Vec<Kept>, GpuError>>()?,
            last: of(&room.last)?,
            last_roots: of(&room.last_roots)?,
            normed: of(&room.normed)?,
            added: of(&room.added)?,
            inner: of(&room.inner)?,
            logits: room.logits.clone(),
            back: match &room.back {
                Some(Back { of_x, of_normed, of_rows }) => {
                    Some(Back { of_x: of(of_x)?, of_normed: of(of_normed)?, of_rows: of(of_rows)? })
                }
                None => None,
            },
        })
    }
}

impl Learner {
    /// # Errors
    /// If the device is not there or lacks what is needed, or `flat` is not the state of such a model.
    pub fn new(
        config: &ModelConfig,
        recipe: &Recipe,
        on: DeviceChoice,
        flat: &[f32],
    ) -> Result<Learner, ModelError> {
        if recipe.optimiser == Optimiser::Muon {
            return Err(DeviceError::NoMuon.into());
        }
        let precision = match on {
            DeviceChoice::Gpu(_, settings) => settings.precision_for_training(on),
            DeviceChoice::Cpu | DeviceChoice::Tape(_) => device::Precision::F32,
        };
        let network = Network::open(config, on, precision)?;
        let weights = network.weights(flat, |error| explained(config, recipe, on, error))?;
        let zeros = |part: &Part| {
            let zeros = network.device.array(part.shape[0] * part.shape[1], Precision::F32)?;
            network.device.fill(&zeros, 0.0)?;
            Ok(zeros)
        };
        let made = || -> Result<_, GpuError> {
            let parts = parts(config);
            let gradients = parts.iter().map(zeros).collect::<Result<Vec<Array>, GpuError>>()?;
            let moments = parts.iter().map(|part| Ok(Moments { mean: zeros(part)?, square: zeros(part)? }));
            let moments = moments.collect::<Result<Vec<Moments>, GpuError>>()?;
            let room = network.room(recipe.micro_batch.min(recipe.batch) * config.seq_len, true)?;
            // Buffers are taken when they are written first or waited for: what does not fit is found out here.
            network.device.finish()?;
            Ok((gradients, moments, room))
        };
        let (gradients, moments, room) = made().map_err(|error| explained(config, recipe, on, &error))?;
        Ok(Learner {
            gradients: Parts::in_order(gradients),
            moments: Parts::in_order(moments),
            network,
            weights,
            room,
            steps: 0,
        })
    }

    /// Takes on other weights. What is remembered stays.
    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        self.network.overwrite(&self.weights, flat, |error| failed(self.network.on, error))
    }

    /// One step. Nothing has changed if it is refused.
    pub fn step<S: AsRef<[u32]>>(
        &mut self,
        recipe: &Recipe,
        sequences: &[S],
        learning_rate: f64,
        loss_max: f64,
    ) -> Result<Step, ModelError> {
        let tokens = sequences.len() * self.network.config.seq_len;
        let (losses, gradient_norm) = self
            .losses_and_norm(recipe, sequences, 1.0 / tokens as f32)
            .map_err(|error| explained(&self.network.config, recipe, self.network.on, &error))?;
        let loss = losses.iter().map(|&loss| f64::from(loss)).sum::<f64>() / tokens as f64;
        let step = Step { loss, gradient_norm, learning_rate };
        let shrink = step.accepted(recipe, loss_max)?;
        let stepped = self.take_step(recipe, learning_rate, shrink);
        stepped.map_err(|error| failed(self.network.on, &error))?;
        self.steps += 1;
        Ok(step)
    }

    /// Losses of all rows, and the length of the gradient, which is left in `gradients`.
    fn losses_and_norm<S: AsRef<[u32]>>(
        &mut self,
        recipe: &Recipe,
        sequences: &[S],
        scale: f32,
    ) -> Result<(Vec<f32>, f64), GpuError> {
        let Learner { network, weights, gradients, room, .. } = self;
        let all = gradients.all();
        for gradient in &all {
            network.device.fill(gradient, 0.0)?;
        }
        let mut on_device = Vec::new();
        // As many as there is room for.
        for sequences in sequences.chunks(recipe.micro_batch.min(recipe.batch)) {
            let (tokens, targets) = batch::tokens_and_targets(sequences);
            on_device.push(network.losses_and_gradients(weights, &tokens, &targets, scale, gradients, room)?);
        }
        // Here the host waits for the device, once a step.
        let norm = network.device.sum_of_squares(&all)?.sqrt();
        let mut losses = Vec::new();
        for part in &on_device {
            losses.extend(network.device.download_array(part)?);
        }
        Ok((losses, norm))
    }

    fn take_step(&mut self, recipe: &Recipe, learning_rate: f64, shrink: f64) -> Result<(), GpuError> {
        let numbers =
            |decay| Numbers::new(recipe.betas, self.steps + 1, recipe.epsilon, learning_rate, decay, shrink);
        let (of_matrices, of_gains) = (numbers(recipe.weight_decay), numbers(0.0));
        let (weights, gradients, moments) = (self.weights.all(), self.gradients.all(), self.moments.all());
        for (index, part) in parts(&self.network.config).iter().enumerate() {
            let (weight, Moments { mean, square }) = (weights[index], moments[index]);
            // A norm's gain is one row. It has no business at zero.
            let numbers = if part.shape[0] > 1 { &of_matrices } else { &of_gains };
            let copy = weight.copy.as_ref();
            self.network.device.adamw(numbers, &weight.values, copy, mean, square, gradients[index])?;
        }
        Ok(())
    }

    /// The weights as the flat state.
    pub fn flat(&self) -> Result<Vec<f32>, ModelError> {
        let mut flat = Vec::with_capacity(self.network.config.parameters());
        for weight in self.weights.all() {
            let values = self.network.device.download_array(&weight.values);
            flat.extend(values.map_err(|error| failed(self.network.on, &error))?);
        }
        Ok(flat)
    }

    /// The weights, part by part, in the order of the flat state.
    ///
    /// # Errors
    /// If the device fails, and those of `take`.
    pub fn each_weight(&self, mut take: impl FnMut(Vec<f32>) -> io::Result<()>) -> io::Result<()> {
        self.weights.all().into_iter().try_for_each(|weight| {
            let values = self.network.device.download_array(&weight.values);
            take(values.map_err(io::Error::other)?)
        })
    }

    /// The optimiser's state, as `optimiser` writes it: the same bytes for the same numbers, wherever they lie.
    pub fn write_state(&self, schema: &Digest, sink: &mut dyn io::Write) -> io::Result<()> {
        write_state(Optimiser::AdamW, schema, self.steps, sink, |put| {
            for (part, Moments { mean, square }) in parts(&self.network.config).iter().zip(self.moments.all())
            {
                let [mean, square] = [mean, square]
                    .map(|array| self.network.device.download_array(array).map_err(io::Error::other));
                let (mean, square) = (mean?, square?);
                let mut first = 0;
                for len in &part.tensors {
                    let tensor = first..first + len;
                    first = tensor.end;
                    values_as_bytes(&mean[tensor.clone()], put)?;
                    values_as_bytes(&square[tensor], put)?;
                }
            }
            Ok(())
        })
    }

    /// Goes on where [`write_state`](Self::write_state) was called. All is read and its digest checked before it is written over
    /// what is there: beside it the device may have no room. Only where the device fails then is the old state gone.
    pub fn read_state(
        &mut self,
        schema: &Digest,
        source: &mut dyn io::Read,
        whole: bool,
    ) -> Result<(), StateError> {
        let parts = parts(&self.network.config);
        let (steps, moments) = read_state(Optimiser::AdamW, schema, source, whole, |values| {
            let mut of_parts = Vec::new();
            for part in &parts {
                let (mut mean, mut square) = (Vec::new(), Vec::new());
                for &len in &part.tensors {
                    values(len, &mut mean)?;
                    values(len, &mut square)?;
                }
                of_parts.push([mean, square]);
            }
            Ok(of_parts)
        })?;
        let device = &self.network.device;
        let write = || -> Result<(), GpuError> {
            for (Moments { mean, square }, [new_mean, new_square]) in
                self.moments.all().into_iter().zip(moments)
            {
                device.overwrite_array(mean, &new_mean)?;
                device.overwrite_array(square, &new_square)?;
            }
            device.finish()
        };
        write().map_err(|error| StateError::Device { why: error.to_string() })?;
        self.steps = steps;
        Ok(())
    }

    /// Whether every weight and both its moments are numbers.
    pub fn is_finite(&self) -> Result<bool, ModelError> {
        let weights = self.weights.all().into_iter().map(|weight| &weight.values);
        let moments = self.moments.all().into_iter().flat_map(|Moments { mean, square }| [mean, square]);
        for array in weights.chain(moments) {
            let values = self.network.device.download_array(array);
            let values = values.map_err(|error| failed(self.network.on, &error))?;
            if !values.iter().all(|value| value.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Weights that are only read, but for changes that are taken back.
///
/// They lie in the host's memory too: a change is made there, a contribution's few entries at a time, and written over what the
/// device has.
pub(crate) struct Reader {
    network: Network,
    flat: Vec<f32>,
    weights: Parts<Weight>,
    room: Room,
    /// Whether the device has what `flat` has.
    same: bool,
}

impl Reader {
    /// Tokens on the device at once: enough to fill it.
    pub const TOKENS_MAX: usize = 8192;

    /// In f32, if nothing else was named: a judgement is a small difference of losses.
    ///
    /// # Errors
    /// If the device is not there or lacks what is needed, or `flat` is not the state of such a model.
    pub fn new(config: &ModelConfig, on: DeviceChoice, flat: &[f32]) -> Result<Reader, ModelError> {
        let precision = match on {
            DeviceChoice::Gpu(_, settings) => settings.precision,
            DeviceChoice::Cpu | DeviceChoice::Tape(_) => None,
        };
        let network = Network::open(config, on, precision.unwrap_or(device::Precision::F32))?;
        let weights = network.weights(flat, |error| failed(on, error))?;
        let sequences = (Reader::TOKENS_MAX / config.seq_len).max(1);
        let room = network.room(sequences * config.seq_len, false).map_err(|error| failed(on, &error))?;
        Ok(Reader { network, flat: flat.to_vec(), weights, room, same: true })
    }

    pub fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        let expected = self.flat.len();
        if flat.len() != expected {
            return Err(ModelError::FlatLength { expected, got: flat.len() });
        }
        self.flat.copy_from_slice(flat);
        self.write()
    }

    pub fn flat(&self) -> &[f32] {
        &self.flat
    }

    /// The loss of each row of whole sequences, in nats.
    pub fn losses(&self, tokens: &[u32], targets: &[u32]) -> Result<Vec<f64>, ModelError> {
        self.asked(|| {
            let losses = self.network.losses(&self.weights, tokens, targets, &self.room)?;
            let losses = self.network.device.download_array(&losses)?;
            Ok(losses.into_iter().map(f64::from).collect())
        })
    }

    /// The logits of the first `rows` tokens of whole sequences, `[rows, V]` row-major.
    pub fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        self.asked(|| self.network.first_logits(&self.weights, tokens, rows, &self.room))
    }

    fn asked<R>(&self, ask: impl FnOnce() -> Result<R, GpuError>) -> Result<R, ModelError> {
        let stale = || GpuError::Device("it could not be given the weights that it is asked about".into());
        let asked = if self.same { ask() } else { Err(stale()) };
        asked.map_err(|error| failed(self.network.on, &error))
    }

    /// Changes every tensor of the schema, by its number, and says what each change gave, and whether the device has them.
    pub fn change<R>(
        &mut self,
        mut change: impl FnMut(usize, &mut [f32]) -> R,
    ) -> (Vec<R>, Result<(), ModelError>) {
        let mut rest = &mut self.flat[..];
        let lens = parts(&self.network.config).into_iter().flat_map(|part| part.tensors);
        let changed = lens.enumerate().map(|(tensor, len)| {
            let (values, behind) = std::mem::take(&mut rest).split_at_mut(len);
            rest = behind;
            change(tensor, values)
        });
        let changed: Vec<R> = changed.collect();
        (changed, self.write())
    }

    /// Writes `flat` over what the device has.
    fn write(&mut self) -> Result<(), ModelError> {
        self.same = false;
        self.network.overwrite(&self.weights, &self.flat, |error| failed(self.network.on, error))?;
        self.same = true;
        Ok(())
    }
}

/// A device's error with what to change, where memory ran out.
fn explained(config: &ModelConfig, recipe: &Recipe, on: DeviceChoice, error: &GpuError) -> ModelError {
    match error {
        GpuError::OutOfMemory { .. } | GpuError::TooLong { .. } => {
            MemoryEstimate::ran_out(config, recipe, on).into()
        }
        other => failed(on, other),
    }
}

impl Learner {
    /// Bytes of the device that are in use, and that are held for this process.
    pub fn memory(&self) -> [u64; 2] {
        self.network.device.memory()
    }
}

/// A device's error, by the name of the device.
pub(crate) fn failed(on: DeviceChoice, error: &GpuError) -> ModelError {
    DeviceError::Failed { device: on.to_string(), why: error.to_string() }.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Gpu;
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

    fn on(precision: device::Precision) -> DeviceChoice {
        let settings = GpuSettings {
            precision: Some(precision),
            activation_checkpointing: ActivationCheckpointing::Nothing,
        };
        DeviceChoice::Gpu(Gpu::Vulkan, settings)
    }

    fn flat() -> Vec<f32> {
        init_flat(&config(), 1).unwrap().into_iter().map(|value| 2.0 * value).collect()
    }

    fn sequences() -> Vec<Vec<u32>> {
        (0..3u32).map(|first| (0..33).map(|at| (first * 31 + at * at * 7) % 100).collect()).collect()
    }

    /// `None` where there is no such device, or it has no such precision.
    fn losses_and_gradients(precision: device::Precision, logits_rows: usize) -> Option<Found> {
        let recipe = Recipe { batch: 3, micro_batch: 2, ..Recipe::default() };
        let mut learner = match Learner::new(&config(), &recipe, on(precision), &flat()) {
            Err(ModelError::Device(error)) => {
                println!("left out: {error}");
                return None;
            }
            learner => learner.unwrap(),
        };
        learner.network.logits_rows = logits_rows;
        learner.room = learner.network.room(2 * 32, true).unwrap();
        let (losses, _) = learner.losses_and_norm(&recipe, &sequences(), 1.0 / 96.0).unwrap();
        let device = &learner.network.device;
        let gradients =
            learner.gradients.all().into_iter().map(|array| device.download_array(array).unwrap());
        let gradients = gradients.collect();
        Some((losses, gradients))
    }

    fn largest(values: &[f32]) -> f32 {
        values.iter().fold(0.0, |largest, value| value.abs().max(largest))
    }

    #[test]
    fn logits_some_rows_at_a_time_are_those_of_all_at_once() {
        for (precision, allowed) in [(device::Precision::F32, 1e-5), (device::Precision::F16, 2e-2)] {
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
    fn a_reader_finds_the_same_some_rows_at_a_time() {
        for (precision, allowed) in [(device::Precision::F32, 1e-5), (device::Precision::F16, 2e-2)] {
            let mut reader = match Reader::new(&config(), on(precision), &flat()) {
                Err(ModelError::Device(error)) => {
                    println!("left out: {error}");
                    continue;
                }
                reader => reader.unwrap(),
            };
            let (tokens, targets) = batch::tokens_and_targets(&sequences());
            let found = |reader: &Reader| {
                let losses = reader.losses(&tokens, &targets).unwrap();
                (losses, reader.logits(&tokens, tokens.len()).unwrap())
            };
            let (exact_losses, exact) = found(&reader);
            reader.network.logits_rows = 20;
            let (losses, logits) = found(&reader);
            assert_eq!([losses.len(), logits.len()], [96, 96 * 100]);
            for (one, other) in losses.iter().zip(&exact_losses) {
                assert!((one - other).abs() <= f64::from(allowed) * other.abs(), "{one} {other}");
            }
            let apart: Vec<f32> = logits.iter().zip(&exact).map(|(one, other)| one - other).collect();
            assert!(largest(&apart) <= allowed * largest(&exact), "{precision:?}");
        }
    }
}
