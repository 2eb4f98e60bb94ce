//! Checks of token sequences before they reach an engine. A token outside the vocabulary would be an index out of
//! bounds.

use model::ModelConfig;

/// Reason why a model cannot read sequences.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    #[error("there is no sequence to train on")]
    Empty,
    #[error("sequence {sequence} has {len} tokens, but this model takes {expected} (seq_len and one more)")]
    Length { sequence: usize, len: usize, expected: usize },
    #[error("there are {len} tokens, but this model reads from 1 to {max} at once")]
    Text { len: usize, max: usize },
    #[error("sequence {sequence} has token {token} at {position}, outside the vocabulary of {vocab}")]
    Token { sequence: usize, position: usize, token: u32, vocab: usize },
}

/// Checks that every sequence has `seq_len + 1` tokens of the vocabulary.
pub(crate) fn check(config: &ModelConfig, sequences: &[&[u32]]) -> Result<(), BatchError> {
    for (sequence, tokens) in sequences.iter().enumerate() {
        if tokens.len() != config.seq_len + 1 {
            return Err(BatchError::Length { sequence, len: tokens.len(), expected: config.seq_len + 1 });
        }
        check_vocabulary(config, sequence, tokens)?;
    }
    Ok(())
}

/// Checks that there are 1 to `seq_len` tokens of the vocabulary.
pub(crate) fn check_text(config: &ModelConfig, tokens: &[u32]) -> Result<(), BatchError> {
    if !(1..=config.seq_len).contains(&tokens.len()) {
        return Err(BatchError::Text { len: tokens.len(), max: config.seq_len });
    }
    check_vocabulary(config, 0, tokens)
}

pub(crate) fn check_vocabulary(
    config: &ModelConfig,
    sequence: usize,
    tokens: &[u32],
) -> Result<(), BatchError> {
    match tokens.iter().position(|&token| token as usize >= config.vocab) {
        Some(position) => {
            Err(BatchError::Token { sequence, position, token: tokens[position], vocab: config.vocab })
        }
        None => Ok(()),
    }
}

/// Whole sequences as an engine reads them, row by row.
pub struct Batch {
    /// `[N]`
    pub tokens: Vec<u32>,
    /// `[N]`: the token that follows each.
    pub targets: Vec<u32>,
}

impl Batch {
    pub fn new(sequences: &[&[u32]]) -> Batch {
        let tokens = sequences.iter().flat_map(|sequence| &sequence[..sequence.len() - 1]).copied();
        let targets = sequences.iter().flat_map(|sequence| &sequence[1..]).copied();
        Batch { tokens: tokens.collect(), targets: targets.collect() }
    }
}
