//! `mettle dataset prepare`: turns text into a dataset.

mod bucket;

use crate::{help, output::Output};
use anyhow::{Context as _, bail};
use bucket::StoreFlags;
use clap::Subcommand;
use prepare::{
    BucketOutput, BucketUrl, OutputDirectory, Part, PrepareOptions, Prepared, Progress, QualityRule, Source,
    SourceStats, Stage, StageResult, TEXT_FIELD, TokenizerChoice,
};
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
    time::{Duration, Instant},
};
use watch::block_clock::span;

#[derive(Debug, Subcommand)]
pub enum DatasetCommand {
    #[command(after_help = help::reading(&[
        "mettle dataset prepare --text corpus --out data --sequence 1024 --vocabulary 32768",
        "mettle dataset prepare --mix mixture.toml --out data --tokenizer tokenizer.json",
        "mettle dataset prepare --mix mixture.toml --out data --tokenizer tokenizer.json --stage scan --part 3/16",
        "mettle dataset prepare --text s3://texts/web --out s3://texts/data --store https://s3.example.org \\",
        "    --access-key ID --secret-file secret",
    ]))]
    Prepare(Prepare),
}

/// Turn text into tokenised shards and a manifest
///
/// Reads text files, JSON lines (.jsonl, .ndjson) and Parquet; text and JSON lines may be compressed (.gz, .zst).
/// Memory does not grow with the text. After Ctrl-C the same command resumes with a few seconds lost.
#[derive(Clone, Debug, clap::Args)]
pub struct Prepare {
    /// A file, a directory or s3://BUCKET/PREFIX [default: the Rust source of this project's dependencies].
    #[arg(long, value_name = "PATH", conflicts_with = "mix")]
    pub text: Option<String>,
    /// Several weighted sources: a TOML file with `[[source]]` path, weight, optional name and field, and `epochs`,
    /// how often the scarcest source may be read.
    #[arg(long, value_name = "FILE")]
    pub mix: Option<PathBuf>,
    /// The field of JSON lines, or the column of Parquet files, with the text.
    #[arg(long, value_name = "NAME", default_value = TEXT_FIELD, conflicts_with = "mix")]
    pub field: String,
    /// The dataset's directory: a new or an empty one; or s3://BUCKET/PREFIX.
    #[arg(long, value_name = "DIR")]
    pub out: String,
    /// With --out s3://…: a directory for the work, where it resumes [default: the prefix's last part and `.work`].
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
    /// Leave out documents that share at least about this part of their text with an earlier one, from 0.5 to 0.99.
    #[arg(long, value_name = "SIMILARITY")]
    pub near_duplicates: Option<f64>,
    /// Leave out documents that break these rules: `gopher`, `fineweb`, a rule such as `short-lines`, or a rule with
    /// own bounds such as `words=20..5000`.
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub filter: Vec<String>,
    /// Do one stage of the work, on one of many machines that share the directory of `--out`.
    #[arg(long, value_name = "STAGE")]
    pub stage: Option<StageName>,
    /// The part to scan or encode, such as 3/16 (the first is 0/16). `auto` is this task of a SLURM array, and
    /// `auto/16` the part of 16 that SLURM_ARRAY_TASK_ID or JOB_COMPLETION_INDEX (Kubernetes) names.
    #[arg(long, value_name = "INDEX/COUNT", requires = "stage", default_value = "auto")]
    pub part: String,
}

/// A stage of the work on many machines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StageName {
    /// Record the documents of a part
    Scan,
    /// Once: find duplicates, choose the splits, train the tokenizer
    Select,
    /// Turn a part into tokens
    Encode,
    /// Once: put the parts together
    Join,
}

/// Runs a command; prints through `output`.
pub async fn run(command: DatasetCommand, output: &mut Output<'_>) -> anyhow::Result<()> {
    output.bare_json();
    let DatasetCommand::Prepare(prepare) = command;
    let stage = prepare.stage.map(|name| stage(name, &prepare.part)).transpose()?;
    let (options, to_bucket) = options(prepare)?;
    let work = tokio::task::spawn_blocking(move || {
        let mut bar = Bar::new();
        let mut show = |progress| bar.show(&progress);
        let done = match (stage, to_bucket) {
            (stage, Some(bucket)) => prepare::prepare_into_bucket(options, stage, &bucket, &mut show),
            (None, None) => {
                prepare::prepare(options, &mut show).map(|prepared| StageResult::Joined(Box::new(prepared)))
            }
            (Some(stage), None) => prepare::prepare_stage(&options, stage, &mut show),
        };
        bar.end();
        done
    });
    let done = tokio::select! {
        done = work => done?.context("could not prepare the dataset")?,
        () = daemon::program::stop_requested() => {
            eprintln!();
            bail!("stopped; the same command resumes from here")
        }
    };
    let (text, value) = stage_summary(&done);
    Ok(output.result(&text, value)?)
}

fn stage(name: StageName, given: &str) -> anyhow::Result<Stage> {
    let part = || part(given, |name| std::env::var(name).ok());
    Ok(match name {
        StageName::Scan => Stage::Scan(part()?),
        StageName::Select => Stage::Select,
        StageName::Encode => Stage::Encode(part()?),
        StageName::Join => Stage::Join,
    })
}

/// The part that is `given` or that a cluster says in its variables.
fn part(given: &str, variable: impl Fn(&str) -> Option<String>) -> anyhow::Result<Part> {
    let number = |name: &str| -> anyhow::Result<Option<u32>> {
        let Some(value) = variable(name) else { return Ok(None) };
        Ok(Some(value.parse().with_context(|| format!("{name} is {value:?}, which is no number"))?))
    };
    let slurm = number("SLURM_ARRAY_TASK_ID")?;
    let (index, count) = match (given, given.strip_prefix("auto/")) {
        ("auto", _) => {
            let index =
                slurm.context("this is no task of a SLURM array; give --part INDEX/COUNT, or auto/COUNT")?;
            let of_array = |name: &str| number(name)?.with_context(|| format!("{name} is not set"));
            let first = of_array("SLURM_ARRAY_TASK_MIN")?;
            let count = of_array("SLURM_ARRAY_TASK_COUNT")?;
            if of_array("SLURM_ARRAY_TASK_MAX")?.checked_sub(first) != count.checked_sub(1) || index < first {
                bail!("the SLURM array has gaps, so its tasks are not all parts; give --part auto/COUNT");
            }
            (index - first, count)
        }
        (_, Some(count)) => {
            let count = count.parse().with_context(|| format!("{given} names no part; write auto/COUNT"))?;
            let index = match slurm {
                Some(index) => index,
                None => number("JOB_COMPLETION_INDEX")?.context(
                    "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX is set; give --part INDEX/COUNT",
                )?,
            };
            (index, count)
        }
        _ => return Ok(given.parse()?),
    };
    Ok(Part::new(index, count)?)
}

fn stage_summary(done: &StageResult) -> (String, Value) {
    match done {
        StageResult::Scanned { part, files, documents } => (
            format!("part {part} is scanned: {documents} documents in {files} files"),
            json!({ "stage": "scan", "part": part.to_string(), "files": files, "documents": documents }),
        ),
        StageResult::Selected { parts, documents, duplicates, near_duplicates } => (
            format!(
                "selected from {documents} documents in {parts} parts; left out: {duplicates} duplicates, \
                 {near_duplicates} near-duplicates"
            ),
            json!({
                "stage": "select", "parts": parts, "documents": documents, "duplicates": duplicates,
                "near_duplicates": near_duplicates,
            }),
        ),
        StageResult::Encoded { part, documents, tokens } => (
            format!("part {part} is encoded: {documents} documents, {tokens} tokens"),
            json!({ "stage": "encode", "part": part.to_string(), "documents": documents, "tokens": tokens }),
        ),
        StageResult::Joined(prepared) => (summary(prepared), summary_json(prepared)),
    }
}

/// The options, and the place of the dataset if it is in a bucket.
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
    let to_bucket = match BucketUrl::parse(&prepare.out).context("--out")? {
        Some(url) => {
            let bucket = store.open(&url).context("--out")?;
            let name = url.prefix.rsplit('/').next().unwrap_or_default();
            let work = prepare.work.unwrap_or_else(|| format!("{name}.work").into());
            Some(BucketOutput { bucket, url, work })
        }
        None if prepare.work.is_some() => bail!("--work is for --out s3://BUCKET/PREFIX only"),
        None => None,
    };
    let options = PrepareOptions {
        near_duplicates: prepare.near_duplicates,
        quality,
        tokenizer,
        seq_len: prepare.sequence,
        shard_bytes: prepare.shard_bytes,
        threads: prepare.threads,
        ..PrepareOptions::new(source, OutputDirectory::Directory(prepare.out.into()))
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

/// Bytes done, and bytes in total.
fn measure(progress: &Progress) -> Option<(u64, u64)> {
    match *progress {
        Progress::Reading { bytes, of, .. }
        | Progress::Encoding { bytes, of, .. }
        | Progress::Copying { bytes, of }
        | Progress::Joining { bytes, of } => Some((bytes, of)),
        _ => None,
    }
}

/// A progress bar with the average speed and the remaining time.
fn line(progress: &Progress, began_at: u64, elapsed: Duration) -> String {
    const WIDTH: u64 = 20;
    let Some((done, of)) = measure(progress).filter(|(_, of)| *of > 0) else { return progress.to_string() };
    let name = match progress {
        Progress::Reading { .. } => "reading ",
        Progress::Joining { .. } => "joining ",
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
        let joining = Progress::Joining { bytes: 500, of: 1000 };
        assert_eq!(line(&joining, 0, Duration::ZERO), "joining  [##########..........] 0.5 kB of 1.0 kB");
        let empty = Progress::Reading { files: 0, bytes: 0, of: 0 };
        assert_eq!(line(&empty, 0, Duration::ZERO), "read 0 files, 0.0 of 0.0 MB");
    }

    #[test]
    fn a_part_is_given_or_said_by_the_cluster() {
        let of = |given: &str, set: &[(&str, &str)]| {
            let variable =
                |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            part(given, variable).map(|part| part.to_string()).map_err(|error| format!("{error:#}"))
        };
        let array = |id, min, max, count| {
            let names = ["ID", "MIN", "MAX", "COUNT"].map(|name| format!("SLURM_ARRAY_TASK_{name}"));
            names.into_iter().zip([id, min, max, count]).collect::<Vec<(String, &str)>>()
        };
        let slurm = |given: &str, id, min, max, count| {
            let set = array(id, min, max, count);
            of(given, &set.iter().map(|(name, value)| (name.as_str(), *value)).collect::<Vec<_>>())
        };
        assert_eq!(of("3/16", &[]).as_deref(), Ok("3/16"));
        assert_eq!(slurm("auto", "5", "0", "15", "16").as_deref(), Ok("5/16"));
        assert_eq!(slurm("auto", "16", "1", "16", "16").as_deref(), Ok("15/16"));
        // The missing parts of an array, again.
        assert_eq!(slurm("auto/16", "7", "3", "7", "2").as_deref(), Ok("7/16"));
        let pod = [("JOB_COMPLETION_INDEX", "15")];
        assert_eq!(of("auto/16", &pod).as_deref(), Ok("15/16"));

        let says = |found: Result<String, String>, part: &str| {
            let error = found.expect_err(part);
            assert!(error.contains(part), "{error}");
        };
        says(slurm("auto", "7", "3", "7", "2"), "has gaps");
        says(of("auto", &pod), "no task of a SLURM array");
        says(of("auto", &[("SLURM_ARRAY_TASK_ID", "1")]), "SLURM_ARRAY_TASK_MIN is not set");
        says(of("auto/16", &[]), "neither SLURM_ARRAY_TASK_ID nor JOB_COMPLETION_INDEX");
        says(of("auto/16", &[("JOB_COMPLETION_INDEX", "x")]), "is \"x\", which is no number");
        says(of("auto/x", &pod), "write auto/COUNT");
        says(of("auto/15", &pod), "there is no part 15 of 15");
        says(of("16/16", &[]), "there is no part 16 of 16");
        says(of("seven", &[]), "INDEX/COUNT");
    }
}
