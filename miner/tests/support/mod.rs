//! A small prepared text, and a small model for it.

use dataset::Dataset;
use model::ModelConfig;
use prepare::{OutputDirectory, PrepareOptions, Source, TokenizerChoice};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Prepares sums of small numbers below `directory`.
pub fn prepare(directory: &Path) -> PathBuf {
    let (text, data) = (directory.join("text"), directory.join("data"));
    fs::create_dir(&text).unwrap();
    let lines: Vec<String> = (0..6000u32)
        .map(|line| format!("Line {line}: {} and {} make {}.\n", line % 97, line % 61, line % 97 + line % 61))
        .collect();
    fs::write(text.join("sums.txt"), lines.concat()).unwrap();
    let options = PrepareOptions {
        tokenizer: TokenizerChoice::Train { vocab: 320 },
        seq_len: 16,
        held_out_sequences_min: 8,
        ..PrepareOptions::new(Source::directory(text), OutputDirectory::Directory(data.clone()))
    };
    prepare::prepare(options, &mut |_| {}).unwrap();
    data
}

pub fn config(dataset: &Dataset) -> ModelConfig {
    ModelConfig {
        vocab: dataset.vocab() as usize,
        d_model: 64,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        d_ff: 96,
        seq_len: dataset.seq_len(),
        rope_theta: 10_000.0,
        norm_epsilon: 1e-5,
    }
}
