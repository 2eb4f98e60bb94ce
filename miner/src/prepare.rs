//! `miner dataset prepare`: text in, a dataset that a run can name out.

use anyhow::Context as _;
use dataset::{Place, PrepareOptions, Progress, Source, TokenizerChoice};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

#[derive(Clone, Debug, clap::Args)]
pub struct Prepare {
    /// A directory of UTF-8 text. Without it: the Rust source of crates that every build of this project needs.
    #[arg(long, value_name = "DIR")]
    pub text: Option<PathBuf>,
    /// Where the dataset goes: a new or an empty directory.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Tokens that the model sees at once.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub sequence: u32,
    /// Train a byte-level BPE with at most so many tokens.
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with = "tokenizer")]
    pub vocabulary: u32,
    /// Use this tokenizer.json instead.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// The token between two documents, where the tokenizer does not have a usual one.
    #[arg(long, value_name = "TOKEN", requires = "tokenizer")]
    pub end_of_document: Option<String>,
    /// The largest shard, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub shard_bytes: u64,
}

pub fn run(prepare: Prepare) -> anyhow::Result<()> {
    let source = match prepare.text {
        Some(directory) => Source::directory(directory),
        None => Source::default_text(dataset::cargo_homes(|name| std::env::var_os(name))),
    };
    let tokenizer = match prepare.tokenizer {
        Some(path) => TokenizerChoice::File { path, end_of_document: prepare.end_of_document },
        None => TokenizerChoice::Train { vocab: prepare.vocabulary },
    };
    let options = PrepareOptions {
        tokenizer,
        seq_len: prepare.sequence,
        shard_bytes: prepare.shard_bytes,
        ..PrepareOptions::new(source, Place::Directory(prepare.out))
    };
    let mut said: Option<(std::mem::Discriminant<Progress>, Instant)> = None;
    let prepared = dataset::prepare(options, &mut |progress| {
        // Every new stage, and now and then how far it is.
        let stage = std::mem::discriminant(&progress);
        if said.is_none_or(|(last, at)| last != stage || Duration::from_secs(1) < at.elapsed()) {
            eprintln!("{progress}");
            said = Some((stage, Instant::now()));
        }
    })
    .context("could not prepare the dataset")?;
    let manifest = &prepared.manifest;
    println!(
        "{}: {} training and {} held-out sequences of {} tokens, vocabulary {}, manifest {}",
        prepared.directory.display(),
        manifest.training_sequences(),
        manifest.held_out_sequences(),
        manifest.seq_len(),
        manifest.vocab,
        prepared.digest,
    );
    println!("always predicting how often a token occurs costs {:.4} nats per token", prepared.unigram_loss);
    Ok(())
}
