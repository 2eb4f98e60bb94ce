//! Prepares the default text, or a directory of text, and prints the result.
//!
//!     cargo run --release -p mettle-dataset --example prepare -- DIRECTORY [TEXT]

use mettle_dataset::{OutputDirectory, PrepareOptions, Source, cargo_homes, prepare};
use std::{error::Error, path::PathBuf};

#[allow(clippy::disallowed_methods, reason = "the environment is read in `main`")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let directory = arguments.next().ok_or("usage: prepare DIRECTORY [TEXT]")?;
    let source = match arguments.next() {
        Some(text) => Source::directory(text),
        None => Source::default_text(cargo_homes(|name| std::env::var_os(name))),
    };
    let prepared =
        prepare(PrepareOptions::new(source, OutputDirectory::Directory(directory)), &mut |progress| {
            eprintln!("{progress}");
        })?;
    let manifest = &prepared.manifest;
    println!("{:#?}", prepared.figures);
    println!("vocabulary: {} tokens, {} bytes each", manifest.vocab, manifest.token_bytes);
    println!("training: {} sequences of {} tokens", manifest.training_sequences(), manifest.seq_len());
    println!("held out: {} sequences", manifest.held_out_sequences());
    println!("unigram loss: {:.4} nats per token", prepared.unigram_loss);
    println!("digest: {}", prepared.digest);
    Ok(())
}
