//! The network in tensor operations, from tokens to hidden states. `head` follows the last norm.
//!
//! Weights are kept as in the flat parameter vector, a projection as `[out, in]`, so that nothing is transposed
//! between the agreed state and the device. A tensor's name ends in its shape, in the letters of `mettle_nn::layers`.

use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use model::ModelConfig;
use nn::engine::take;

/// All weights in schema order. A vector is a matrix of one row.
#[derive(Clone, Debug)]
pub(crate) struct Llama {
    pub tensors: Vec<Tensor<2>>,
}

/// Constants of the forward pass.
#[derive(Clone, Debug)]
pub(crate) struct Constants {
    heads: usize,
    kv_heads: usize,
    head_width: usize,
    norm_epsilon: f64,
    rotary: Rotary,
    /// Attention mask: 0 at visible tokens, −∞ at later ones.
    mask_11TT: Tensor<4>,
}

/// Rotary positions in the rotate-half layout: `x·cos + (x·swap)·sin`, where `x·swap` is `[−second half, first half]`.
#[derive(Clone, Debug)]
struct Rotary {
    swap_CC: Tensor<2>,
    /// Cosines for queries and keys side by side. The queries' part also carries attention's `1/√C`.
    cos_1TW: Tensor<3>,
    sin_1TW: Tensor<3>,
}

impl Llama {
    /// Copies `flat`, in schema order and of the right length, to a device.
    pub fn load(config: &ModelConfig, flat: &[f32], device: &Device) -> Llama {
        let mut rest = flat;
        let tensors = config.shapes().into_iter().map(|(_, shape)| {
            let values = take(&mut rest, shape[0] * shape[1]).to_vec();
            Tensor::from_data(TensorData::new(values, shape), device)
        });
        Llama { tensors: tensors.collect() }
    }

    /// Returns the same weights as leaves of autograd.
    pub fn tracked(&self) -> Llama {
        let track = |tensor: &Tensor<2>| tensor.clone().autodiff().require_grad();
        Llama { tensors: self.tensors.iter().map(track).collect() }
    }

    /// Returns the embedding, which is also the output matrix.
    pub fn embedding_VD(&self) -> &Tensor<2> {
        &self.tensors[0]
    }

    /// Returns the hidden states after the last norm, for tokens `[B, T]`.
    pub fn hidden(&self, tokens_BT: Tensor<2, Int>, constants: &Constants) -> Tensor<2> {
        let [B, T] = tokens_BT.dims();
        let [embedding_VD, layers @ .., norm_1D] = &self.tensors[..] else {
            unreachable!("the schema begins with the embedding and ends with a norm")
        };
        let mut x_ND = embedding_VD.clone().select(0, tokens_BT.reshape([B * T]));
        let (layers, _) = layers.as_chunks::<9>();
        for [attention_norm_1D, query_DD, key_KCxD, value_KCxD, output_DD, feed_forward @ ..] in layers {
            let [feed_forward_norm_1D, gate_FD, up_FD, down_DF] = feed_forward;
            let normed_ND = rms_norm(x_ND.clone(), attention_norm_1D, constants);
            let mixed_ND = attend(normed_ND, [query_DD, key_KCxD, value_KCxD], [B, T], constants);
            x_ND = x_ND + project(mixed_ND, output_DD);
            let normed_ND = rms_norm(x_ND.clone(), feed_forward_norm_1D, constants);
            let gate_NF = activation::silu(project(normed_ND.clone(), gate_FD));
            x_ND = x_ND + project(gate_NF * project(normed_ND, up_FD), down_DF);
        }
        rms_norm(x_ND, norm_1D, constants)
    }
}

/// Computes `x·Wᵀ`.
fn project(x: Tensor<2>, weight: &Tensor<2>) -> Tensor<2> {
    x.matmul(weight.clone().transpose())
}

/// Computes attention's output `[N, D]` before its last product.
fn attend(
    x_ND: Tensor<2>,
    [query_DD, key_KCxD, value_KCxD]: [&Tensor<2>; 3],
    [B, T]: [usize; 2],
    constants: &Constants,
) -> Tensor<2> {
    let &Constants { heads: H, kv_heads: K, head_width: C, .. } = constants;
    let R = H / K;

    let query_NHC = project(x_ND.clone(), query_DD);
    let key_NKC = project(x_ND.clone(), key_KCxD);
    let value_NKC = project(x_ND, value_KCxD);

    // Query heads that share a key head are stacked, so keys and values need no copies.
    let both_BTHC = constants.rotary.rotate(Tensor::cat(vec![query_NHC, key_NKC], 1), [B, T]);
    let query_BKRTC = both_BTHC.clone().narrow(2, 0, H).swap_dims(1, 2).reshape([B, K, R * T, C]);
    let key_BKTC = both_BTHC.narrow(2, H, K).swap_dims(1, 2);
    let value_BKTC = value_NKC.reshape([B, T, K, C]).swap_dims(1, 2);

    let scores_BHTT = query_BKRTC.matmul(key_BKTC.transpose()).reshape([B, H, T, T]);
    let probs_BHTT = activation::softmax(scores_BHTT + constants.mask_11TT.clone(), 3);
    let mixed_BKRTC = probs_BHTT.reshape([B, K, R * T, T]).matmul(value_BKTC);
    mixed_BKRTC.reshape([B, H, T, C]).swap_dims(1, 2).reshape([B * T, H * C])
}

fn rms_norm(x_ND: Tensor<2>, gain_1D: &Tensor<2>, constants: &Constants) -> Tensor<2> {
    let mean_square_N1 = x_ND.clone().square().mean_dim(1);
    let root_N1 = (mean_square_N1 + constants.norm_epsilon).sqrt();
    x_ND / root_N1 * gain_1D.clone()
}

impl Rotary {
    /// Rotates `[N, heads·C]` by position; returns `[B, T, heads, C]`.
    fn rotate(&self, x_NW: Tensor<2>, [B, T]: [usize; 2]) -> Tensor<4> {
        let [N, W] = x_NW.dims();
        let [C, _] = self.swap_CC.dims();
        let swapped_NW = x_NW.clone().reshape([N * W / C, C]).matmul(self.swap_CC.clone()).reshape([N, W]);
        let cos_1TW = self.cos_1TW.clone().narrow(1, 0, T);
        let sin_1TW = self.sin_1TW.clone().narrow(1, 0, T);
        let x_BTW = x_NW.reshape([B, T, W]) * cos_1TW + swapped_NW.reshape([B, T, W]) * sin_1TW;
        x_BTW.reshape([B, T, W / C, C])
    }
}

impl Constants {
    pub fn new(config: &ModelConfig, device: &Device) -> Constants {
        let (C, T) = (config.head_width(), config.seq_len);
        let half = C / 2;

        let mut swap = vec![0.0f32; C * C];
        for i in 0..half {
            swap[(i + half) * C + i] = -1.0;
            swap[i * C + i + half] = 1.0;
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
        for (row, scores) in mask.chunks_exact_mut(T).enumerate() {
            scores[row + 1..].fill(f32::NEG_INFINITY);
        }

        let W = (config.heads + config.kv_heads) * C;
        Constants {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_width: C,
            norm_epsilon: config.norm_epsilon,
            rotary: Rotary {
                swap_CC: Tensor::from_data(TensorData::new(swap, [C, C]), device),
                cos_1TW: Tensor::from_data(TensorData::new(cos, [1, T, W]), device),
                sin_1TW: Tensor::from_data(TensorData::new(sin, [1, T, W]), device),
            },
            mask_11TT: Tensor::from_data(TensorData::new(mask, [1, 1, T, T]), device),
        }
    }
}
