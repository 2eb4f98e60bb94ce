//! Token sequences on their way to the device, checked: an id outside the vocabulary would be read out of bounds there.

use crate::{config::ModelConfig, loss::ids};
use burn::tensor::{Device, Int, Tensor};

/// Why sequences cannot be read by this model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("there is no sequence to train on")]
    Empty,
    #[error("sequence {sequence} has {len} tokens, but this model takes {expected} (seq_len and one more)")]
    Length { sequence: usize, len: usize, expected: usize },
    #[error("sequence {sequence} has token {token} at {position}, outside the vocabulary of {vocab}")]
    Token { sequence: usize, position: usize, token: u32, vocab: usize },
}

/// Checks that every sequence has `seq_len + 1` tokens of the vocabulary.
pub(crate) fn check<S: AsRef<[u32]>>(config: &ModelConfig, sequences: &[S]) -> Result<(), BatchError> {
    for (sequence, tokens) in sequences.iter().map(AsRef::as_ref).enumerate() {
        if tokens.len() != config.seq_len + 1 {
            return Err(BatchError::Length { sequence, len: tokens.len(), expected: config.seq_len + 1 });
        }
        if let Some(position) = tokens.iter().position(|&token| token as usize >= config.vocab) {
            return Err(BatchError::Token {
                sequence,
                position,
                token: tokens[position],
                vocab: config.vocab,
            });
        }
    }
    Ok(())
}

/// What the model reads, `[B, T]`, and the token that follows each, row after row.
pub(crate) fn tokens_and_targets<S: AsRef<[u32]>>(
    sequences: &[S],
    device: &Device,
) -> (Tensor<2, Int>, Vec<u32>) {
    let (mut tokens, mut targets) = (Vec::new(), Vec::new());
    for sequence in sequences.iter().map(AsRef::as_ref) {
        tokens.extend_from_slice(&sequence[..sequence.len() - 1]);
        targets.extend_from_slice(&sequence[1..]);
    }
    let shape = [sequences.len(), tokens.len() / sequences.len()];
    (ids(&tokens, shape, device), targets)
}
