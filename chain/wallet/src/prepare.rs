//! `mettle dataset prepare`: text in, a dataset that a run can name out.

use crate::formats::AllFormats;
use anyhow::{Context as _, bail};
use dataset::{OutputDirectory, PrepareOptions, Prepared, Progress, Source, TEXT_FIELD, TokenizerChoice};
use node::program::say;
use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};

/// Turn text into tokenised shards and a manifest.
///
/// Reads text files, JSON lines (.jsonl, .ndjson) and Parquet; text and JSON lines also compressed (.gz, .zst). Memory does not grow
/// with the text. Ctrl-C loses at most some seconds of work: the same command goes on where it was.
#[derive(Clone, Debug, clap::Args)]
pub struct Prepare {
    /// A file, or a directory of them. Without it: the Rust source of crates that every build of this project needs.
    #[arg(long, value_name = "PATH", conflicts_with = "mix")]
    pub text: Option<PathBuf>,
    /// Several sources with weights: a TOML file with `[[source]]` path, weight, and where wanted name and field; and `epochs`, how
    /// often the scarcest may be read.
    #[arg(long, value_name = "FILE")]
    pub mix: Option<PathBuf>,
    /// The field of JSON lines, or column of Parquet files, that has the text.
    #[arg(long, value_name = "NAME", default_value = TEXT_FIELD, conflicts_with = "mix")]
    pub field: String,
    /// Where the dataset goes: a new or an empty directory.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Tokens that the model sees at once.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub sequence: u32,
    /// Train a byte-level BPE with at most so many tokens.
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with = "tokenizer")]
    pub vocabulary: u32,
    /// Use this tokenizer.json instead, of Hugging Face's format.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// The token between two documents, where the tokenizer does not have a usual one.
    #[arg(long, value_name = "TOKEN", requires = "tokenizer")]
    pub end_of_document: Option<String>,
    /// The largest shard, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub shard_bytes: u64,
    /// Threads that encode; as many as there are cores if not given. The dataset is the same.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

pub async fn run(prepare: Prepare) -> anyhow::Result<()> {
    let options = options(prepare)?;
    let work = tokio::task::spawn_blocking(move || {
        let mut bar = Bar::new();
        let prepared = dataset::prepare(options, &mut |progress| bar.show(&progress));
        bar.end();
        prepared
    });
    let prepared = tokio::select! {
        done = work => done?.context("could not prepare the dataset")?,
        () = node::program::stop_requested() => {
            eprintln!();
            bail!("stopped; what is done is kept, and the same command goes on from there")
        }
    };
    tell(&prepared)?;
    Ok(())
}

fn options(prepare: Prepare) -> anyhow::Result<PrepareOptions> {
    let source = match (prepare.text, prepare.mix) {
        (_, Some(mix)) => Source::mixture_file(&mix).context("could not read the mixture")?,
        (Some(path), None) => Source::directory(path).with_field(&prepare.field),
        (None, None) => Source::default_text(dataset::cargo_homes(|name| std::env::var_os(name))),
    };
    let tokenizer = match prepare.tokenizer {
        Some(path) => TokenizerChoice::File { path, end_of_document: prepare.end_of_document },
        None => TokenizerChoice::Train { vocab: prepare.vocabulary },
    };
    Ok(PrepareOptions {
        formats: &AllFormats,
        tokenizer,
        seq_len: prepare.sequence,
        shard_bytes: prepare.shard_bytes,
        threads: prepare.threads,
        ..PrepareOptions::new(source, OutputDirectory::Directory(prepare.out))
    })
}

fn tell(prepared: &Prepared) -> io::Result<()> {
    let (manifest, figures) = (&prepared.manifest, &prepared.figures);
    say(format_args!(
        "{}: {} training and {} held-out sequences of {} tokens, vocabulary {}, manifest {}",
        prepared.directory.display(),
        manifest.training_sequences(),
        manifest.held_out_sequences(),
        manifest.seq_len(),
        manifest.vocab,
        prepared.digest,
    ))?;
    say(format_args!(
        "{} documents ({} held out), {} of text, {} tokens; left out: {} duplicates, {} empty lines or rows, {} files that are no text",
        figures.documents,
        figures.held_out_documents,
        size(figures.text_bytes),
        figures.tokens,
        figures.duplicates,
        figures.empty,
        figures.skipped_files,
    ))?;
    if figures.sources.len() > 1 {
        for source in &figures.sources {
            say(format_args!(
                "  {}: {:.2} % of the text, {:.2} % of the tokens, read {:.3} times",
                source.name,
                100.0 * source.text_bytes as f64 / figures.text_bytes as f64,
                100.0 * source.tokens as f64 / figures.tokens as f64,
                source.epochs_milli as f64 / 1000.0,
            ))?;
        }
    }
    say(format_args!(
        "always predicting how often a token occurs costs {:.4} nats per token",
        prepared.unigram_loss
    ))
}

/// One line that is drawn again on a terminal, and a line now and then elsewhere.
struct Bar {
    terminal: bool,
    stage: Option<std::mem::Discriminant<Progress>>,
    /// When this stage began, and how far it was then.
    began: (Instant, u64),
    said: Instant,
}

impl Bar {
    fn new() -> Bar {
        let now = Instant::now();
        Bar { terminal: io::stderr().is_terminal(), stage: None, began: (now, 0), said: now }
    }

    fn show(&mut self, progress: &Progress) {
        let stage = std::mem::discriminant(progress);
        let pause = Duration::from_millis(if self.terminal { 200 } else { 10_000 });
        let new = self.stage != Some(stage);
        if new {
            self.end();
            self.stage = Some(stage);
            self.began = (Instant::now(), measure(progress).map_or(0, |(done, _)| done));
        } else if self.said.elapsed() < pause {
            return;
        }
        self.said = Instant::now();
        let line = line(progress, self.began.1, self.began.0.elapsed());
        if self.terminal {
            eprint!("\r{line}\x1b[K");
            let _ = io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// Leaves the line that stands.
    fn end(&mut self) {
        if self.terminal && self.stage.take().is_some() {
            eprintln!();
        }
    }
}

/// Bytes done, of how many.
fn measure(progress: &Progress) -> Option<(u64, u64)> {
    match *progress {
        Progress::Reading { bytes, of, .. } | Progress::Encoding { bytes, of, .. } => Some((bytes, of)),
        _ => None,
    }
}

/// A bar with the speed since the stage began, and how long the rest takes at that speed.
fn line(progress: &Progress, began_at: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 20;
    let Some((done, of)) = measure(progress).filter(|(_, of)| *of > 0) else { return progress.to_string() };
    let name = if matches!(progress, Progress::Reading { .. }) { "reading " } else { "encoding" };
    let filled = (done.min(of) * WIDTH / of) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH as usize - filled));
    let mut line = format!("{name} [{bar}] {} of {}", size(done), size(of));
    let seconds = elapsed.as_secs_f64();
    let speed = done.saturating_sub(began_at) as f64 / seconds;
    if seconds >= 1.0 && speed > 0.0 {
        let left = of.saturating_sub(done) as f64 / speed;
        line += &format!(", {}/s, {} left", size(speed as u64), time(left));
    }
    line
}

fn size(bytes: u64) -> String {
    let (value, unit) = match bytes {
        0..1_000_000 => (bytes as f64 / 1e3, "kB"),
        1_000_000..1_000_000_000 => (bytes as f64 / 1e6, "MB"),
        _ => (bytes as f64 / 1e9, "GB"),
    };
    format!("{value:.1} {unit}")
}

fn time(seconds: f64) -> String {
    let seconds = seconds.ceil() as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_how_far_how_fast_and_how_long() {
        let progress = Progress::Encoding { bytes: 1_500_000_000, of: 6_000_000_000, resumed: 500_000_000 };
        assert_eq!(
            line(&progress, 500_000_000, Duration::from_secs(100)),
            "encoding [#####...............] 1.5 GB of 6.0 GB, 10.0 MB/s, 7 min 30 s left"
        );
        assert_eq!(
            line(&progress, 1_500_000_000, Duration::from_secs(100)),
            "encoding [#####...............] 1.5 GB of 6.0 GB",
            "without any progress nobody knows how long it takes"
        );
        let reading = Progress::Reading { files: 3, bytes: 7_000, of: 7_000 };
        assert_eq!(line(&reading, 0, Duration::ZERO), "reading  [####################] 7.0 kB of 7.0 kB");
        let empty = Progress::Reading { files: 0, bytes: 0, of: 0 };
        assert_eq!(line(&empty, 0, Duration::ZERO), "looked at 0 files, 0.0 of 0.0 MB");
        assert_eq!(
            (time(59.1), time(3599.0), time(7260.0)),
            ("1 min 00 s".into(), "59 min 59 s".into(), "2 h 01 min".into())
        );
    }
}
