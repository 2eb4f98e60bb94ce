//! `mettle dataset`: prepares datasets from text, and joins them.

use crate::{help, output::Output};
use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use daemon::config::StoreFile;
use prepare::{
    Bucket, BucketOutput, BucketUrl, OutputDirectory, PrepareError, PrepareOptions, Prepared, Progress,
    QualityRule, Source, SourceStats, TEXT_FIELD, TokenizerChoice,
};
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};
use tokio::runtime::Handle;
use watch::block_clock::span;

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    #[command(after_help = help::reading(&[
        "mettle dataset prepare --text corpus --out data --sequence 1024 --vocabulary 32768",
        "mettle dataset prepare --mix mixture.toml --out data --tokenizer tokenizer.json",
        "mettle dataset prepare --text s3://texts/web --out s3://texts/data --store https://s3.example.org \\",
        "    --access-key ID --secret-file secret",
    ]))]
    Prepare(Box<Prepare>),
    #[command(after_help = help::reading(&[
        "mettle dataset prepare --text web/3 --out parts/3 --tokenizer tokenizer.json",
        "mettle dataset join --out data parts/*",
    ]))]
    Join(Join),
}

/// Prepare tokenised shards and a manifest from text
///
/// Reads text files, JSON lines (.jsonl, .ndjson) and Parquet; text and JSON lines may be compressed (.gz, .zst).
/// Memory use does not depend on the text's size. After Ctrl-C or a kill the same command resumes with a few seconds
/// lost, including an upload to s3://. With several machines, prepare a part of the text on each, and join them:
/// `mettle dataset join`.
#[derive(Clone, Debug, Args)]
pub struct Prepare {
    /// A file, a directory or s3://BUCKET/PREFIX [default: the Rust source of this project's dependencies].
    #[arg(long, value_name = "PATH", conflicts_with = "mix")]
    pub text: Option<String>,
    /// Several weighted sources: a TOML file with `[[source]]` path, weight, optional name and field, and `epochs`,
    /// the maximum number of readings of the scarcest source.
    #[arg(long, value_name = "FILE")]
    pub mix: Option<PathBuf>,
    /// The field of JSON lines, or the column of Parquet files, with the text.
    #[arg(long, value_name = "NAME", default_value = TEXT_FIELD, conflicts_with = "mix")]
    pub field: String,
    /// The dataset's directory: a new or an empty one; or s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR")]
    pub out: String,
    /// With --out s3://…: the directory to prepare before the upload [default: the prefix's last part and `.work`].
    #[arg(long, value_name = "DIR")]
    pub work: Option<PathBuf>,
    #[command(flatten)]
    pub bucket: StoreFlags,
    /// Sequence length in tokens.
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub sequence: u32,
    /// Train a byte-level BPE tokenizer with at most this many tokens.
    #[arg(long, value_name = "N", default_value_t = 4096, conflicts_with = "tokenizer")]
    pub vocabulary: u32,
    /// Use this tokenizer.json, in Hugging Face format, instead of training one.
    #[arg(long, value_name = "FILE")]
    pub tokenizer: Option<PathBuf>,
    /// The token between two documents, if the tokenizer has none of the usual names.
    #[arg(long, value_name = "TOKEN", requires = "tokenizer")]
    pub end_of_document: Option<String>,
    /// The largest shard, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20)]
    pub shard_bytes: u64,
    /// Encoding threads [default: the number of cores]. The dataset does not depend on it.
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Omit documents that share at least about this part of their text with an earlier one, from 0.5 to 0.99.
    #[arg(long, value_name = "SIMILARITY")]
    pub near_duplicates: Option<f64>,
    /// Omit documents that break these rules: `gopher`, `fineweb`, a rule such as `short-lines`, or a rule with own
    /// bounds such as `words=20..5000`.
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub filter: Vec<String>,
}

/// Join datasets that several machines prepared with the same tokenizer
///
/// Checks that all parts have one tokenizer, sequence length and token width, and links or copies their shards. The
/// sequences follow in the order of the parts. A document in several parts stays in each. After Ctrl-C the same
/// command starts over.
#[derive(Clone, Debug, Args)]
pub struct Join {
    /// The directory of the joined dataset: a new or an empty one.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
    /// Directories of prepared datasets.
    #[arg(value_name = "PART", required = true, num_args = 2..)]
    pub parts: Vec<PathBuf>,
}

/// The store of texts and datasets whose path begins with `s3://`
#[derive(Clone, Debug, Args)]
pub struct StoreFlags {
    /// The store of s3://BUCKET/… as https://host[:port], without a bucket.
    #[arg(long, value_name = "URL", requires = "access_key")]
    store: Option<String>,
    /// The name of the key that reads the texts and writes the dataset.
    #[arg(long, value_name = "ID", requires = "store")]
    access_key: Option<String>,
    /// A file with the secret of that key [default: the variable METTLE_STORE_SECRET].
    #[arg(long, value_name = "FILE", requires = "store")]
    secret_file: Option<PathBuf>,
}

impl StoreFlags {
    /// Opens the bucket of a URL. Sends nothing.
    pub fn open(&self, url: &BucketUrl) -> anyhow::Result<Bucket> {
        let (Some(endpoint), Some(access_key)) = (self.store.clone(), self.access_key.clone()) else {
            anyhow::bail!(
                "{url} is in a bucket: name its store with --store URL and --access-key ID (docs/store.md)"
            );
        };
        let secret_key_file = self.secret_file.clone();
        let file =
            StoreFile { endpoint, bucket: url.bucket.clone(), access_key, secret_key: None, secret_key_file };
        Ok(Bucket::new(file.open()?, Handle::current()))
    }
}

/// Runs a command; prints through `output`.
pub async fn run(command: DatasetCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let prepared = match command {
        DatasetCommand::Prepare(prepare) => {
            let (options, to_bucket) = options(*prepare)?;
            let work = move |show: &mut dyn FnMut(Progress)| match to_bucket {
                Some(bucket) => prepare::prepare_into_bucket(options, &bucket, show),
                None => prepare::prepare(options, show),
            };
            finished(work, "could not prepare the dataset", "resumes from here").await?
        }
        DatasetCommand::Join(Join { out, parts }) => {
            let work = move |show: &mut dyn FnMut(Progress)| prepare::join(&out, &parts, show);
            finished(work, "could not join the datasets", "begins anew").await?
        }
    };
    Ok(output.result(&summary(&prepared), summary_json(&prepared))?)
}

/// Runs `work` on its own thread and shows its progress. `failure` describes its error, and `again` what the same
/// command does after Ctrl-C.
async fn finished(
    work: impl FnOnce(&mut dyn FnMut(Progress)) -> Result<Prepared, PrepareError> + Send + 'static,
    failure: &'static str,
    again: &str,
) -> anyhow::Result<Prepared> {
    let work = tokio::task::spawn_blocking(move || {
        let mut bar = Bar::new();
        let done = work(&mut |progress| bar.show(&progress));
        bar.end();
        done
    });
    tokio::select! {
        done = work => done?.context(failure),
        () = daemon::program::stop_requested() => {
            eprintln!();
            bail!("interrupted; the same command {again}")
        }
    }
}

/// Returns the options, and the dataset's place if it is in a bucket.
fn options(prepare: Prepare) -> anyhow::Result<(PrepareOptions, Option<BucketOutput>)> {
    let store = &prepare.bucket;
    let source = match (prepare.text, prepare.mix) {
        (_, Some(mix)) => {
            Source::mixture_file(&mix, |url| Ok(store.open(url)?)).context("could not read the mixture")?
        }
        (Some(path), None) => match BucketUrl::parse(&path).context("--text")? {
            Some(url) => Source::bucket(store.open(&url).context("--text")?, url).with_field(&prepare.field),
            None => Source::directory(path).with_field(&prepare.field),
        },
        (None, None) => Source::default_text(prepare::cargo_homes(|name| std::env::var_os(name))),
    };
    let tokenizer = match prepare.tokenizer {
        Some(path) => TokenizerChoice::File { path, end_of_document: prepare.end_of_document },
        None => TokenizerChoice::Train { vocab: prepare.vocabulary },
    };
    let mut quality = Vec::new();
    for rule in &prepare.filter {
        quality.extend(QualityRule::parse(rule).context("--filter")?);
    }
    let (to_bucket, directory) = match BucketUrl::parse(&prepare.out).context("--out")? {
        Some(url) => {
            let bucket = store.open(&url).context("--out")?;
            let name = url.prefix.rsplit('/').next().unwrap_or_default();
            let work = prepare.work.unwrap_or_else(|| format!("{name}.work").into());
            (Some(BucketOutput { bucket, url }), work)
        }
        None if prepare.work.is_some() => bail!("--work is for --out s3://BUCKET/PREFIX only"),
        None => (None, prepare.out.into()),
    };
    let options = PrepareOptions {
        near_duplicates: prepare.near_duplicates,
        quality,
        tokenizer,
        seq_len: prepare.sequence,
        shard_bytes: prepare.shard_bytes,
        threads: prepare.threads,
        ..PrepareOptions::new(source, OutputDirectory::Directory(directory))
    };
    Ok((options, to_bucket))
}

fn summary(prepared: &Prepared) -> String {
    let (manifest, figures) = (&prepared.manifest, &prepared.figures);
    let mut text = format!(
        "{}: {} training and {} held-out sequences of {} tokens, vocabulary {}, manifest {}\n",
        prepared.directory.display(),
        manifest.training_sequences(),
        manifest.held_out_sequences(),
        manifest.seq_len(),
        manifest.vocab,
        prepared.digest,
    );
    text += &format!(
        "{} documents ({} held out), {} of text, {} tokens; skipped: {} duplicates, {} empty lines or rows, {} files that are not text\n",
        figures.documents,
        figures.held_out_documents,
        size(figures.text_bytes),
        figures.tokens,
        figures.duplicates,
        figures.empty,
        figures.skipped_files,
    );
    if let Some(near) = figures.near_duplicates {
        text += &format!("{near} near-duplicates left out\n");
    }
    for (rule, documents) in figures.refused.iter().filter(|(_, documents)| **documents > 0) {
        text += &format!("{documents} documents left out by {rule}\n");
    }
    let sources = figures.sources.iter().filter(|_| figures.sources.len() > 1);
    for source in sources {
        text += &format!(
            "  {}: {:.2} % of the text, {:.2} % of the tokens, read {:.3} times\n",
            source.name,
            100.0 * source.text_bytes as f64 / figures.text_bytes as f64,
            100.0 * source.tokens as f64 / figures.tokens as f64,
            source.epochs_milli as f64 / 1000.0,
        );
    }
    text + &format!("unigram baseline {:.4} nats per token", prepared.unigram_loss)
}

fn summary_json(prepared: &Prepared) -> Value {
    let (manifest, figures) = (&prepared.manifest, &prepared.figures);
    let source = |source: &SourceStats| {
        json!({
            "name": source.name, "text_bytes": source.text_bytes, "tokens": source.tokens,
            "epochs": source.epochs_milli as f64 / 1000.0,
        })
    };
    json!({
        "directory": prepared.directory, "manifest": prepared.digest.to_string(), "vocabulary": manifest.vocab,
        "sequence": manifest.seq_len(), "training_sequences": manifest.training_sequences(),
        "held_out_sequences": manifest.held_out_sequences(), "documents": figures.documents,
        "held_out_documents": figures.held_out_documents, "text_bytes": figures.text_bytes,
        "tokens": figures.tokens, "duplicates": figures.duplicates, "empty": figures.empty,
        "near_duplicates": figures.near_duplicates, "refused": figures.refused,
        "skipped_files": figures.skipped_files, "unigram_loss": prepared.unigram_loss,
        "sources": figures.sources.iter().map(source).collect::<Vec<_>>(),
    })
}

/// Progress on standard error: one line redrawn on a terminal, otherwise a line every ten seconds.
struct Bar {
    terminal: bool,
    stage: Option<std::mem::Discriminant<Progress>>,
    /// The stage's start, and the bytes done at that time.
    began: (Instant, u64),
    shown: Instant,
}

impl Bar {
    fn new() -> Bar {
        let now = Instant::now();
        Bar { terminal: io::stderr().is_terminal(), stage: None, began: (now, 0), shown: now }
    }

    fn show(&mut self, progress: &Progress) {
        let stage = std::mem::discriminant(progress);
        let pause = Duration::from_millis(if self.terminal { 200 } else { 10_000 });
        let new = self.stage != Some(stage);
        if new {
            self.end();
            self.stage = Some(stage);
            self.began = (Instant::now(), measure(progress).map_or(0, |(done, _)| done));
        } else if self.shown.elapsed() < pause {
            return;
        }
        self.shown = Instant::now();
        let line = line(progress, self.began.1, self.began.0.elapsed());
        if self.terminal {
            eprint!("\r{line}\x1b[K");
            let _ = io::stderr().flush();
        } else {
            eprintln!("{line}");
        }
    }

    /// Ends the line.
    fn end(&mut self) {
        if self.terminal && self.stage.take().is_some() {
            eprintln!();
        }
    }
}

/// Returns the completed and the total bytes.
fn measure(progress: &Progress) -> Option<(u64, u64)> {
    match *progress {
        Progress::Reading { bytes, of, .. }
        | Progress::Encoding { bytes, of, .. }
        | Progress::Copying { bytes, of } => Some((bytes, of)),
        _ => None,
    }
}

/// Formats a progress bar with the average speed and the remaining time.
fn line(progress: &Progress, began_at: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 20;
    let Some((done, of)) = measure(progress).filter(|(_, of)| *of > 0) else { return progress.to_string() };
    let name = match progress {
        Progress::Reading { .. } => "reading ",
        Progress::Copying { .. } => "copying ",
        _ => "encoding",
    };
    let filled = (done.min(of) * WIDTH / of) as usize;
    let bar = format!("{}{}", "#".repeat(filled), ".".repeat(WIDTH as usize - filled));
    let mut line = format!("{name} [{bar}] {} of {}", size(done), size(of));
    let seconds = elapsed.as_secs_f64();
    let speed = done.saturating_sub(began_at) as f64 / seconds;
    if seconds >= 1.0 && speed > 0.0 {
        let left = of.saturating_sub(done) as f64 / speed;
        line += &format!(", {}/s, {} left", size(speed as u64), span(left.ceil() as u64));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_progress_line_has_bytes_speed_and_remaining_time() {
        let progress = Progress::Encoding { bytes: 1_500_000_000, of: 6_000_000_000, resumed: 500_000_000 };
        assert_eq!(
            line(&progress, 500_000_000, Duration::from_secs(100)),
            "encoding [#####...............] 1.5 GB of 6.0 GB, 10.0 MB/s, 7 min 30 s left"
        );
        assert_eq!(
            line(&progress, 1_500_000_000, Duration::from_secs(100)),
            "encoding [#####...............] 1.5 GB of 6.0 GB",
            "no progress: the remaining time is unknown"
        );
        let reading = Progress::Reading { files: 3, bytes: 7_000, of: 7_000 };
        assert_eq!(line(&reading, 0, Duration::ZERO), "reading  [####################] 7.0 kB of 7.0 kB");
        let copying = Progress::Copying { bytes: 500, of: 1000 };
        assert_eq!(line(&copying, 0, Duration::ZERO), "copying  [##########..........] 0.5 kB of 1.0 kB");
        let empty = Progress::Reading { files: 0, bytes: 0, of: 0 };
        assert_eq!(line(&empty, 0, Duration::ZERO), "read 0 files, 0.0 of 0.0 MB");
    }
}
