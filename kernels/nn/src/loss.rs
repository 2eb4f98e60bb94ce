//! From hidden states to losses: the product with the vocabulary, softmax and negative log-likelihood.
//!
//! The logits are the largest matrix there is, rows × vocabulary. They exist only for a few rows at a time, forward and
//! backward in one go: the gradients of hidden states and embedding are added up while the rows are at hand. So memory
//! does not grow with the batch, and the gradient tape ends before the vocabulary. On the CPU `host` does the same with
//! `kernels::cross_entropy`.
#![allow(non_snake_case, reason = "a tensor's name ends in its shape: see llama.rs")]

use burn::tensor::{Device, IndexingUpdateOp, Int, Tensor, TensorData, activation};

/// Logits that exist at once, in values: 4 MiB.
pub(crate) const LOGITS_MAX: usize = 1 << 20;

/// The loss of each row, in nats, maybe still on the device.
#[derive(Debug, Default)]
pub(crate) struct RowLosses(Vec<Tensor<1>>);

/// What one batch gives: losses, and the gradients of their sum times `scale`.
pub(crate) struct LossAndGradients {
    pub losses: RowLosses,
    pub hidden_ND: Tensor<2>,
    pub embedding_VD: Tensor<2>,
}

/// The loss of each row of `hidden_ND`.
pub(crate) fn losses(hidden_ND: Tensor<2>, embedding_VD: &Tensor<2>, targets: &[u32]) -> RowLosses {
    let [V, _] = embedding_VD.dims();
    let mut losses = RowLosses::default();
    for (first, targets_n) in chunks(targets, V) {
        let hidden_nD = hidden_ND.clone().narrow(0, first, targets_n.len());
        let logits_nV = hidden_nD.matmul(embedding_VD.clone().transpose());
        losses.0.push(row_losses(logits_nV, targets_n).0);
    }
    losses
}

/// The loss of each row of `hidden_ND`, and the gradients of `scale · Σ losses`.
pub(crate) fn losses_and_gradients(
    hidden_ND: Tensor<2>,
    embedding_VD: &Tensor<2>,
    targets: &[u32],
    scale: f32,
) -> LossAndGradients {
    let [V, D] = embedding_VD.dims();
    let mut losses = RowLosses::default();
    let mut hidden_gradients = Vec::new();
    let mut embedding_gradient_VD = Tensor::zeros([V, D], &embedding_VD.device());
    for (first, targets_n) in chunks(targets, V) {
        let hidden_nD = hidden_ND.clone().narrow(0, first, targets_n.len());
        let logits_nV = hidden_nD.clone().matmul(embedding_VD.clone().transpose());
        let (of_rows, gradient_nV) = row_losses(logits_nV, targets_n);
        losses.0.push(of_rows);
        let gradient_nV = gradient_nV.mul_scalar(scale);
        hidden_gradients.push(gradient_nV.clone().matmul(embedding_VD.clone()));
        embedding_gradient_VD = embedding_gradient_VD + gradient_nV.transpose().matmul(hidden_nD);
    }
    LossAndGradients {
        losses,
        hidden_ND: Tensor::cat(hidden_gradients, 0),
        embedding_VD: embedding_gradient_VD,
    }
}

/// Losses of rows, and the gradient of their sum.
fn row_losses(logits_nV: Tensor<2>, targets: &[u32]) -> (Tensor<1>, Tensor<2>) {
    let n = targets.len();
    let device = logits_nV.device();
    let targets_n1 = ids(targets, [n, 1], &device);
    let log_p_nV = activation::log_softmax(logits_nV, 1);
    let losses_n = log_p_nV.clone().gather(1, targets_n1.clone()).neg().reshape([n]);
    let minus_one_n1 = Tensor::ones([n, 1], &device).neg();
    let gradient_nV = log_p_nV.exp().scatter(1, targets_n1, minus_one_n1, IndexingUpdateOp::Add);
    (losses_n, gradient_nV)
}

/// Token ids as a tensor.
pub(crate) fn ids<const RANK: usize>(
    ids: &[u32],
    shape: [usize; RANK],
    device: &Device,
) -> Tensor<RANK, Int> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    Tensor::from_data(TensorData::new(ids, shape), device)
}

/// `targets` in pieces whose logits fit [`LOGITS_MAX`], each with its first row.
pub(crate) fn chunks(targets: &[u32], vocab: usize) -> impl Iterator<Item = (usize, &[u32])> {
    let rows = (LOGITS_MAX / vocab).max(1);
    targets.chunks(rows).enumerate().map(move |(index, targets)| (index * rows, targets))
}

impl RowLosses {
    /// Waits for the device, if the losses are still there.
    pub fn read(self) -> Vec<f64> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let data = Tensor::cat(self.0, 0).into_data();
        data.as_slice::<f32>().expect("losses are f32").iter().map(|&loss| f64::from(loss)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers between −1 and 1, the same every time.
    fn noise(shape: [usize; 2], seed: usize) -> Tensor<2> {
        let values: Vec<f32> =
            (0..shape[0] * shape[1]).map(|i| ((i * 7919 + seed * 104_729) as f32).sin()).collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex())
    }

    fn values(tensor: Tensor<2>) -> Vec<f32> {
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
    fn pieces_and_the_gradient_tape_agree() {
        // A vocabulary for which the rows come in three pieces.
        let (N, D, V) = (5, 6, LOGITS_MAX / 2);
        let (hidden_ND, embedding_VD) = (noise([N, D], 1), noise([V, D], 2));
        let targets: Vec<u32> = (0..N as u32).map(|row| row * 50_000 + 3).collect();
        let scale = 0.5;

        let pieces = losses_and_gradients(hidden_ND.clone(), &embedding_VD, &targets, scale);
        assert_eq!(pieces.losses.read(), losses(hidden_ND.clone(), &embedding_VD, &targets).read());

        let (hidden, embedding) =
            (hidden_ND.autodiff().require_grad(), embedding_VD.autodiff().require_grad());
        let logits = hidden.clone().matmul(embedding.clone().transpose());
        let targets_N1 = ids(&targets, [N, 1], &logits.device());
        let mut tape =
            activation::log_softmax(logits, 1).gather(1, targets_N1).sum().mul_scalar(-scale).backward();
        assert_close(&values(pieces.hidden_ND), &values(hidden.grad_remove(&mut tape).unwrap()));
        assert_close(&values(pieces.embedding_VD), &values(embedding.grad_remove(&mut tape).unwrap()));
    }
}
