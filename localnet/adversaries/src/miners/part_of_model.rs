//! Trains a part of the model, and declares the whole window.
//!
//! Such a miner needs one forward pass and a fraction of the backward pass. The engine has no such mode, so this
//! adversary trains the whole model and keeps the change of some tensors: an upper bound for the cheap training.
//!
//! Sees: its own work.
//! Stopped by: PROT-22 to PROT-25. It helps less than the seats it is compared with, and is paid in proportion.

use crate::adversary::{Adversary, MinerContext, TrainedWindow, delta, moved, norm};

/// Tensors that it trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartOfModel {
    /// The last block, the last norm, and the matrix of embedding and output.
    LastLayers,
    /// The last block, at a rate so large that its change has the norm of the whole model's.
    BigRate,
}

impl PartOfModel {
    fn keeps(self, name: &str, last_block: Option<&str>) -> bool {
        let in_last_block = last_block.is_some_and(|block| name.starts_with(block));
        match self {
            PartOfModel::LastLayers => in_last_block || !name.contains(".layers."),
            PartOfModel::BigRate => in_last_block,
        }
    }
}

impl Adversary for PartOfModel {
    fn outcome(&mut self, at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        let TrainedWindow { before, after, .. } = *trained;
        let mut work = delta(before, after);
        let whole = norm(&work);
        let tensors = at.codec.schema().tensors();
        let last_block = tensors.iter().rev().find_map(|tensor| block_of(&tensor.name));
        for (range, tensor) in at.codec.schema().ranges().zip(tensors) {
            if !self.keeps(&tensor.name, last_block) {
                work[range].fill(0.0);
            }
        }
        let kept = norm(&work);
        if *self == PartOfModel::BigRate && 0.0 < kept {
            let factor = (whole / kept) as f32;
            work.iter_mut().for_each(|value| *value *= factor);
        }
        Some(moved(before, &work))
    }
}

/// Returns the block's prefix: `model.layers.7.` of `model.layers.7.mlp.up_proj.weight`. `None` for other tensors.
fn block_of(name: &str) -> Option<&str> {
    let number = name.find(".layers.")? + ".layers.".len();
    let end = number + name.get(number..)?.find('.')? + 1;
    name.get(..end)
}
