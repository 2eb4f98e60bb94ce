//! Prepares the default text, or a directory of text, and prints the result.
//!
//!     cargo run --release -p mettle-prepare --example prepare -- DIRECTORY [TEXT [SIMILARITY [RULES]]]
//!
//! SIMILARITY leaves out near-duplicates, and RULES, such as `gopher,fineweb`, documents of low quality.

use mettle_prepare::{OutputDirectory, PrepareOptions, QualityRule, Source, cargo_homes, prepare};
use std::{error::Error, path::PathBuf};

#[allow(clippy::disallowed_methods, reason = "the environment is read in `main`")]
fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let directory = arguments.next().ok_or("usage: prepare DIRECTORY [TEXT [SIMILARITY [RULES]]]")?;
    let source = match arguments.next() {
        Some(text) => Source::directory(text),
        None => Source::default_text(cargo_homes(|name| std::env::var_os(name))),
    };
    let mut options = PrepareOptions::new(source, OutputDirectory::Directory(directory));
    let mut text = || Some(arguments.next()?.to_string_lossy().into_owned());
    options.near_duplicates = text().map(|similarity| similarity.parse()).transpose()?;
    for rule in text().iter().flat_map(|rules| rules.split(',')) {
        options.quality.extend(QualityRule::parse(rule)?);
    }
    let mut shown = None;
    let prepared = prepare(options, &mut |progress| {
        // A line for each stage.
        if shown.replace(std::mem::discriminant(&progress)) != Some(std::mem::discriminant(&progress)) {
            eprintln!("{progress}");
        }
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
