//! The network: tokens in, hidden states out. What follows the last norm is in `loss`.
//!
//! Weights are kept as the flat model state has them, a projection as `[out, in]`, so that nothing is transposed between
//! the agreed state and the device; a product with the transpose costs the same. A tensor's name ends in its shape:
//!
//! | letter | length |
//! |---|---|
//! | `B` | sequences in the batch |
//! | `T` | tokens of a sequence |
//! | `N` | `B·T`, all tokens of the batch |
//! | `D` | width of the residual stream |
//! | `H`, `K`, `R` | query heads, key and value heads, `H / K` |
//! | `C` | width of a head |
//! | `F` | width inside the feed-forward half |
//! | `V` | vocabulary |
#![allow(non_snake_case, reason = "a tensor's name ends in its shape")]

use crate::ModelError;
use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use model::ModelConfig;

/// All weights. A vector is a matrix of one row.
#[derive(Clone, Debug)]
pub(crate) struct Llama {
    pub embedding_VD: Tensor<2>,
    layers: Vec<Layer>,
    norm_1D: Tensor<2>,
}

#[derive(Clone, Debug)]
struct Layer {
    attention_norm_1D: Tensor<2>,
    query_DD: Tensor<2>,
    key_KCxD: Tensor<2>,
    value_KCxD: Tensor<2>,
    output_DD: Tensor<2>,
    feed_forward_norm_1D: Tensor<2>,
    gate_FD: Tensor<2>,
    up_FD: Tensor<2>,
    down_DF: Tensor<2>,
}

/// What the forward pass needs besides the weights, and never changes.
#[derive(Clone, Debug)]
pub(crate) struct Constants {
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    norm_epsilon: f64,
    rotary: Rotary,
    /// 0 where a token may look, −∞ where it may not: at what comes after it.
    mask_11TT: Tensor<4>,
}

/// Rotary positions in the rotate-half layout: `x·cos + (x·turn)·sin`, where `x·turn` is `[−second half, first half]`.
#[derive(Clone, Debug)]
struct Rotary {
    turn_CC: Tensor<2>,
    /// For queries and keys side by side. The queries' part also carries attention's `1/√C`.
    cos_1TW: Tensor<3>,
    sin_1TW: Tensor<3>,
}

impl Llama {
    /// Hidden states after the last norm, for tokens `[B, T]`.
    pub fn hidden(&self, tokens_BT: Tensor<2, Int>, constants: &Constants) -> Tensor<2> {
        let [B, T] = tokens_BT.dims();
        let mut x_ND = self.embedding_VD.clone().select(0, tokens_BT.reshape([B * T]));
        for layer in &self.layers {
            let normed_ND = rms_norm(x_ND.clone(), &layer.attention_norm_1D, constants);
            x_ND = x_ND + layer.attend(normed_ND, [B, T], constants);
            let normed_ND = rms_norm(x_ND.clone(), &layer.feed_forward_norm_1D, constants);
            x_ND = x_ND + layer.feed_forward(normed_ND);
        }
        rms_norm(x_ND, &self.norm_1D, constants)
    }
}

impl Layer {
    fn attend(&self, x_ND: Tensor<2>, [B, T]: [usize; 2], constants: &Constants) -> Tensor<2> {
        let &Constants { heads: H, kv_heads: K, head_width: C, .. } = constants;
        let R = H / K;

        let query_NHC = x_ND.clone().matmul(self.query_DD.clone().transpose());
        let key_NKC = x_ND.clone().matmul(self.key_KCxD.clone().transpose());
        let value_NKC = x_ND.matmul(self.value_KCxD.clone().transpose());

        // Query heads that share a key head stand one below the other, so keys and values need no copies.
        let both_BTHC = constants.rotary.turn(Tensor::cat(vec![query_NHC, key_NKC], 1), [B, T]);
        let query_BKRTC = both_BTHC.clone().narrow(2, 0, H).swap_dims(1, 2).reshape([B, K, R * T, C]);
        let key_BKTC = both_BTHC.narrow(2, H, K).swap_dims(1, 2);
        let value_BKTC = value_NKC.reshape([B, T, K, C]).swap_dims(1, 2);

        let scores_BHTT = query_BKRTC.matmul(key_BKTC.transpose()).reshape([B, H, T, T]);
        let looks_BHTT = activation::softmax(scores_BHTT + constants.mask_11TT.clone(), 3);
        let mixed_BKRTC = looks_BHTT.reshape([B, K, R * T, T]).matmul(value_BKTC);

        let mixed_ND = mixed_BKRTC.reshape([B, H, T, C]).swap_dims(1, 2).reshape([B * T, H * C]);
        mixed_ND.matmul(self.output_DD.clone().transpose())
    }

    fn feed_forward(&self, x_ND: Tensor<2>) -> Tensor<2> {
        let gate_NF = x_ND.clone().matmul(self.gate_FD.clone().transpose());
        let up_NF = x_ND.matmul(self.up_FD.clone().transpose());
        (activation::silu(gate_NF) * up_NF).matmul(self.down_DF.clone().transpose())
    }
}

fn rms_norm(x_ND: Tensor<2>, gain_1D: &Tensor<2>, constants: &Constants) -> Tensor<2> {
    let mean_square_N1 = x_ND.clone().square().mean_dim(1);
    let root_N1 = (mean_square_N1 + constants.norm_epsilon).sqrt();
    x_ND / root_N1 * gain_1D.clone()
}

impl Rotary {
    /// Turns `[N, heads·C]` by position; gives `[B, T, heads, C]`.
    fn turn(&self, x_NW: Tensor<2>, [B, T]: [usize; 2]) -> Tensor<4> {
        let [N, W] = x_NW.dims();
        let [C, _] = self.turn_CC.dims();
        let turned_NW = x_NW.clone().reshape([N * W / C, C]).matmul(self.turn_CC.clone()).reshape([N, W]);
        let cos_1TW = self.cos_1TW.clone().narrow(1, 0, T);
        let sin_1TW = self.sin_1TW.clone().narrow(1, 0, T);
        let x_BTW = x_NW.reshape([B, T, W]) * cos_1TW + turned_NW.reshape([B, T, W]) * sin_1TW;
        x_BTW.reshape([B, T, W / C, C])
    }
}

impl Constants {
    pub fn new(config: &ModelConfig, device: &Device) -> Constants {
        let (C, T) = (config.head_width(), config.seq_len);
        let half = C / 2;

        let mut turn = vec![0.0f32; C * C];
        for i in 0..half {
            turn[(i + half) * C + i] = -1.0;
            turn[i * C + i + half] = 1.0;
        }

        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for position in 0..T {
            for head in 0..config.heads + config.kv_heads {
                let scale = if head < config.heads { 1.0 / (C as f64).sqrt() } else { 1.0 };
                for i in 0..C {
                    let exponent = 2.0 * (i % half) as f64 / C as f64;
                    let angle = position as f64 / config.rope_theta.powf(exponent);
                    cos.push((angle.cos() * scale) as f32);
                    sin.push((angle.sin() * scale) as f32);
                }
            }
        }

        let mut mask = vec![0.0f32; T * T];
        for (row, looks) in mask.chunks_exact_mut(T).enumerate() {
            looks[row + 1..].fill(f32::NEG_INFINITY);
        }

        let W = (config.heads + config.kv_heads) * C;
        Constants {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_width: C,
            norm_epsilon: config.norm_epsilon,
            rotary: Rotary {
                turn_CC: Tensor::from_data(TensorData::new(turn, [C, C]), device),
                cos_1TW: Tensor::from_data(TensorData::new(cos, [1, T, W]), device),
                sin_1TW: Tensor::from_data(TensorData::new(sin, [1, T, W]), device),
            },
            mask_11TT: Tensor::from_data(TensorData::new(mask, [1, 1, T, T]), device),
        }
    }
}

/// The flat model state on a device, and back. One place knows the order: it is that of [`ModelConfig::schema`].
impl Llama {
    /// # Errors
    /// If `flat` has another length than a model of this configuration.
    pub fn load(config: &ModelConfig, flat: &[f32], device: &Device) -> Result<Llama, ModelError> {
        let expected = config.parameters();
        if flat.len() != expected {
            return Err(ModelError::FlatLength { expected, got: flat.len() });
        }
        let mut rest = flat;
        let tensors = config.shapes().into_iter().map(|(_, shape)| {
            let (values, behind) = rest.split_at(shape[0] * shape[1]);
            rest = behind;
            Tensor::from_data(TensorData::new(values.to_vec(), shape), device)
        });
        Ok(Llama::from_tensors(tensors.collect()))
    }

    /// The flat model state: all tensors in schema order, row-major.
    pub fn to_flat(&self) -> Vec<f32> {
        let mut flat = Vec::new();
        for tensor in self.tensors() {
            let data = tensor.clone().into_data();
            flat.extend_from_slice(data.as_slice::<f32>().expect("weights are f32 on every device"));
        }
        flat
    }

    /// Hands all weights to `work` as slices, in schema order. In the host's own memory that moves nothing, if the tensors are
    /// nobody else's.
    pub fn with_values<R>(&mut self, work: impl FnOnce(&[&[f32]]) -> R) -> R {
        let device = self.embedding_VD.device();
        let take =
            |tensor: &mut Tensor<2>| std::mem::replace(tensor, Tensor::empty([1, 1], &device)).into_data();
        let data: Vec<TensorData> = self.tensors_mut().into_iter().map(take).collect();
        let values: Vec<&[f32]> =
            data.iter().map(|data| data.as_slice().expect("weights are f32 on every device")).collect();
        let result = work(&values);
        for (tensor, data) in self.tensors_mut().into_iter().zip(data) {
            *tensor = Tensor::from_data(data, &device);
        }
        result
    }

    /// In schema order.
    pub fn tensors(&self) -> Vec<&Tensor<2>> {
        let mut tensors = vec![&self.embedding_VD];
        for layer in &self.layers {
            tensors.extend([
                &layer.attention_norm_1D,
                &layer.query_DD,
                &layer.key_KCxD,
                &layer.value_KCxD,
                &layer.output_DD,
                &layer.feed_forward_norm_1D,
                &layer.gate_FD,
                &layer.up_FD,
                &layer.down_DF,
            ]);
        }
        tensors.push(&self.norm_1D);
        tensors
    }

    /// In schema order.
    pub fn tensors_mut(&mut self) -> Vec<&mut Tensor<2>> {
        let mut tensors = vec![&mut self.embedding_VD];
        for layer in &mut self.layers {
            tensors.extend([
                &mut layer.attention_norm_1D,
                &mut layer.query_DD,
                &mut layer.key_KCxD,
                &mut layer.value_KCxD,
                &mut layer.output_DD,
                &mut layer.feed_forward_norm_1D,
                &mut layer.gate_FD,
                &mut layer.up_FD,
                &mut layer.down_DF,
            ]);
        }
        tensors.push(&mut self.norm_1D);
        tensors
    }

    /// From tensors in schema order.
    pub fn from_tensors(tensors: Vec<Tensor<2>>) -> Llama {
        let layers = (tensors.len() - 2) / 9;
        let mut tensors = tensors.into_iter();
        let mut next = || tensors.next().expect("a model has nine tensors a layer, and two more");
        Llama {
            embedding_VD: next(),
            layers: (0..layers)
                .map(|_| Layer {
                    attention_norm_1D: next(),
                    query_DD: next(),
                    key_KCxD: next(),
                    value_KCxD: next(),
                    output_DD: next(),
                    feed_forward_norm_1D: next(),
                    gate_FD: next(),
                    up_FD: next(),
                    down_DF: next(),
                })
                .collect(),
            norm_1D: next(),
        }
    }

    /// The same weights as leaves of a gradient tape.
    pub fn tracked(&self) -> Llama {
        let track = |tensor: &Tensor<2>| tensor.clone().autodiff().require_grad();
        Llama::from_tensors(self.tensors().into_iter().map(track).collect())
    }
}

/// Replaces a tensor by what `with` makes of it. The tensor is given away, so that it can be written in place.
pub(crate) fn replace(tensor: &mut Tensor<2>, with: impl FnOnce(Tensor<2>) -> Tensor<2>) {
    let nothing = Tensor::empty([1, 1], &tensor.device());
    *tensor = with(std::mem::replace(tensor, nothing));
}

/// Hands the values of a tensor to `work` as a slice, row-major, and puts them back. In the host's own memory that moves
/// nothing, if the tensor is nobody else's.
pub(crate) fn as_slice<R>(tensor: &mut Tensor<2>, work: impl FnOnce(&mut [f32]) -> R) -> R {
    as_slices([tensor], |[values]| work(values))
}

/// As [`as_slice`], several tensors at once.
pub(crate) fn as_slices<const COUNT: usize, R>(
    tensors: [&mut Tensor<2>; COUNT],
    work: impl FnOnce([&mut [f32]; COUNT]) -> R,
) -> R {
    let device = tensors[0].device();
    let mut taken = tensors.map(|tensor| {
        let nothing = Tensor::empty([1, 1], &device);
        let data = std::mem::replace(tensor, nothing).into_data();
        (tensor, data)
    });
    let values =
        taken.each_mut().map(|(_, data)| data.as_mut_slice().expect("weights are f32 on every device"));
    let result = work(values);
    for (tensor, data) in taken {
        *tensor = Tensor::from_data(data, &device);
    }
    result
}
