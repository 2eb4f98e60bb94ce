//! Losses of hidden states: the product with the vocabulary, softmax and negative log-likelihood.
//!
//! The logits, rows × vocabulary, are the largest matrix. They are computed for a few rows at a time, forward and
//! backward, so memory does not grow with the batch. Autograd ends before the vocabulary.

use crate::ids;
use burn::tensor::{IndexingUpdateOp, Tensor, activation};
use nn::engine::cpu::logits_chunks;

/// Losses `[n]` of each chunk of rows, on the device, and the gradients of `scale · Σ losses`.
pub struct LossesAndGradients {
    pub losses: Vec<Tensor<1>>,
    pub grad_hidden_ND: Tensor<2>,
    pub grad_embedding_VD: Tensor<2>,
}

/// Returns the loss of each row of `hidden_ND`, in chunks of rows.
pub fn losses(hidden_ND: Tensor<2>, embedding_VD: &Tensor<2>, targets: &[u32]) -> Vec<Tensor<1>> {
    let [V, _] = embedding_VD.dims();
    let chunk = |(first, targets_n): (usize, &[u32])| {
        let hidden_nD = hidden_ND.clone().narrow(0, first, targets_n.len());
        row_losses(hidden_nD.matmul(embedding_VD.clone().transpose()), targets_n).0
    };
    logits_chunks(targets, V).map(chunk).collect()
}

/// Returns the loss of each row of `hidden_ND`, and the gradients of `scale · Σ losses`.
pub fn losses_and_gradients(
    hidden_ND: Tensor<2>,
    embedding_VD: &Tensor<2>,
    targets: &[u32],
    scale: f32,
) -> LossesAndGradients {
    let [V, D] = embedding_VD.dims();
    let (mut losses, mut grad_hidden) = (Vec::new(), Vec::new());
    let mut grad_embedding_VD = Tensor::zeros([V, D], &embedding_VD.device());
    for (first, targets_n) in logits_chunks(targets, V) {
        let hidden_nD = hidden_ND.clone().narrow(0, first, targets_n.len());
        let logits_nV = hidden_nD.clone().matmul(embedding_VD.clone().transpose());
        let (losses_n, grad_logits_nV) = row_losses(logits_nV, targets_n);
        losses.push(losses_n);
        let grad_logits_nV = grad_logits_nV.mul_scalar(scale);
        grad_hidden.push(grad_logits_nV.clone().matmul(embedding_VD.clone()));
        grad_embedding_VD = grad_embedding_VD + grad_logits_nV.transpose().matmul(hidden_nD);
    }
    LossesAndGradients { losses, grad_hidden_ND: Tensor::cat(grad_hidden, 0), grad_embedding_VD }
}

/// Returns the losses of rows, and the gradient of their sum.
fn row_losses(logits_nV: Tensor<2>, targets: &[u32]) -> (Tensor<1>, Tensor<2>) {
    let n = targets.len();
    let device = logits_nV.device();
    let targets_n1 = ids(targets, [n, 1], &device);
    let log_p_nV = activation::log_softmax(logits_nV, 1);
    let losses_n = log_p_nV.clone().gather(1, targets_n1.clone()).neg().reshape([n]);
    let minus_one_n1 = Tensor::ones([n, 1], &device).neg();
    let grad_logits_nV = log_p_nV.exp().scatter(1, targets_n1, minus_one_n1, IndexingUpdateOp::Add);
    (losses_n, grad_logits_nV)
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Device, TensorData};

    /// Returns numbers between −1 and 1, the same for the same seed.
    fn noise(shape: [usize; 2], seed: usize) -> Tensor<2> {
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|i| ((i * 7919 + seed * 104_729) as f32).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn values<const RANK: usize>(tensor: Tensor<RANK>) -> Vec<f32> {
        tensor.into_data().as_slice::<f32>().unwrap().to_vec()
    }

    #[track_caller]
    fn assert_close(one: &[f32], other: &[f32]) {
        assert_eq!(one.len(), other.len());
        for (one, other) in one.iter().zip(other) {
            assert!((one - other).abs() < 1e-4, "{one} {other}");
        }
    }

    #[test]
    fn chunks_and_autograd_agree() {
        // With this vocabulary, the rows are split into three chunks.
        let (N, D, V) = (5, 6, 1 << 19);
        let (hidden_ND, embedding_VD) = (noise([N, D], 1), noise([V, D], 2));
        let targets: Vec<u32> = (0..N as u32).map(|row| row * 50_000 + 3).collect();
        let scale = 0.5;

        let chunks = losses_and_gradients(hidden_ND.clone(), &embedding_VD, &targets, scale);
        assert_eq!(chunks.losses.len(), 3);
        let alone = losses(hidden_ND.clone(), &embedding_VD, &targets);
        assert_eq!(values(Tensor::cat(chunks.losses, 0)), values(Tensor::cat(alone, 0)));

        let (hidden, embedding) =
            (hidden_ND.autodiff().require_grad(), embedding_VD.autodiff().require_grad());
        let logits = hidden.clone().matmul(embedding.clone().transpose());
        let targets_N1 = ids(&targets, [N, 1], &logits.device());
        let mut grads =
            activation::log_softmax(logits, 1).gather(1, targets_N1).sum().mul_scalar(-scale).backward();
        assert_close(&values(chunks.grad_hidden_ND), &values(hidden.grad_remove(&mut grads).unwrap()));
        assert_close(&values(chunks.grad_embedding_VD), &values(embedding.grad_remove(&mut grads).unwrap()));
    }
}
