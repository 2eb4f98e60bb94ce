//! A dataset and a model for tests of single nodes, built in milliseconds.

use model::ModelConfig;
use prepare::{OutputDirectory, PrepareError, PrepareOptions, Source, TokenizerChoice};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Prepares a text of sums as sequences of 16 tokens. Returns the dataset's directory, `data` in `directory`.
///
/// # Errors
/// If the text cannot be written or prepared.
pub fn dataset(directory: &Path) -> Result<PathBuf, PrepareError> {
    let (text, data) = (directory.join("text"), directory.join("data"));
    let line = |at: u32| format!("Line {at}: {} and {} make {}.\n", at % 97, at % 61, at % 97 + at % 61);
    fs::create_dir(&text).expect("the caller's directory is empty and writable");
    fs::write(text.join("sums.txt"), (0..6000).map(line).collect::<String>())
        .expect("the directory is writable");
    let options = PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: 300 },
        seq_len: 16,
        held_out_sequences_min: 8,
        ..PrepareOptions::new(Source::directory(text), OutputDirectory::Directory(data.clone()))
    };
    prepare::prepare(options, &mut |_| {})?;
    Ok(data)
}

/// Returns a model of one layer and width 16.
pub fn model(vocab: usize, seq_len: usize) -> ModelConfig {
    ModelConfig {
        vocab,
        d_model: 16,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        d_ff: 32,
        seq_len,
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    }
}
