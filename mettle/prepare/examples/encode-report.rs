//! Speed and memory of preparing a dataset from text, compared with the batch encoding of the `tokenizers` crate in
//! the same run.
//!
//!     cargo run --release -p mettle-prepare --example encode-report -- make TEXT FILE.jsonl MEGABYTES
//!     cargo run --release -p mettle-prepare --example encode-report -- measure FILE.jsonl TOKENIZER.json [MEGABYTES [THREADS]]
//!
//! `make` writes documents of which no two are equal: pieces of the files below TEXT, in a random order, with some of
//! their words exchanged. `measure` prepares the whole file (reading, hashing, selecting, encoding, writing, reading
//! back). It lets `tokenizers` encode the first MEGABYTES, which are in memory by then, and compares the tokens of
//! those. Speeds are bytes of text per second of processor time, so that a busy machine has little effect. Linux
//! only.

use mettle_prepare::{OutputDirectory, PrepareOptions, Source, TokenizerChoice, prepare};
use std::{
    error::Error,
    fs::{self, File},
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    path::{Path, PathBuf},
    time::Instant,
};
use tokenizer::TextTokenizer;

/// Size of the documents given to `tokenizers` at once, in bytes.
const BATCH_BYTES: usize = 4 << 20;

#[allow(clippy::disallowed_methods, reason = "the arguments are read in `main`")]
fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["make", text, file, megabytes] => make(Path::new(text), Path::new(file), megabytes.parse()?),
        ["measure", file, tokenizer] => measure(file, tokenizer, 32, None),
        ["measure", file, tokenizer, megabytes] => measure(file, tokenizer, megabytes.parse()?, None),
        ["measure", file, tokenizer, megabytes, threads] => {
            measure(file, tokenizer, megabytes.parse()?, Some(threads.parse()?))
        }
        _ => Err(
            "usage: encode-report make TEXT FILE MEGABYTES | measure FILE TOKENIZER [MEGABYTES [THREADS]]"
                .into(),
        ),
    }
}

fn make(text: &Path, file: &Path, megabytes: u64) -> Result<(), Box<dyn Error>> {
    let mut paragraphs = Vec::new();
    let mut directories = vec![text.to_owned()];
    let mut files = Vec::new();
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let path = entry?.path();
            if path.is_dir() { directories.push(path) } else { files.push(path) }
        }
    }
    files.sort();
    for path in files {
        if let Ok(text) = fs::read_to_string(path) {
            paragraphs.extend(text.split_inclusive("\n\n").filter(|part| part.len() > 40).map(str::to_owned));
        }
    }
    if paragraphs.is_empty() {
        return Err("there is no text".into());
    }
    let mut dice = Dice(1);
    let words: Vec<String> = (0..2000)
        .flat_map(|_| dice.of(&paragraphs).split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    let mut out = BufWriter::new(File::create(file)?);
    let (mut bytes, mut number) = (0, 0u64);
    while bytes < megabytes * 1_000_000 {
        let mut document = format!("Document {number}\n\n");
        for _ in 0..2 + dice.roll(12) {
            for word in dice.of(&paragraphs).split_inclusive([' ', '\n']) {
                // One word in eight is exchanged.
                match dice.roll(8) {
                    0 => document.extend([dice.of(&words).as_str(), " "]),
                    _ => document += word,
                }
            }
        }
        bytes += document.len() as u64;
        number += 1;
        serde_json::to_writer(&mut out, &serde_json::json!({ "text": document }))?;
        out.write_all(b"\n")?;
    }
    out.flush()?;
    println!("{number} documents, {bytes} bytes of text");
    Ok(())
}

fn measure(
    file: &str,
    tokenizer: &str,
    megabytes: usize,
    threads: Option<usize>,
) -> Result<(), Box<dyn Error>> {
    let threads = threads.unwrap_or_else(rayon::current_num_threads);
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;

    // The whole file first, so that the peak is its own.
    let out = tempfile::tempdir_in(
        Path::new(file).parent().filter(|parent| parent.is_dir()).unwrap_or(Path::new(".")),
    )?;
    let options = PrepareOptions {
        tokenizer: TokenizerChoice::File { path: PathBuf::from(tokenizer), end_of_document: None },
        seq_len: 2048,
        shard_bytes: 64 << 20,
        threads: Some(threads),
        ..PrepareOptions::new(Source::directory(file), OutputDirectory::Directory(out.path().join("data")))
    };
    let (began, cpu) = (Instant::now(), cpu_seconds()?);
    let prepared = prepare(options, &mut |_| {})?;
    let (wall, cpu) = (began.elapsed().as_secs_f64(), cpu_seconds()? - cpu);
    let peak = peak_bytes()?;
    let text_bytes = prepared.figures.text_bytes as f64;

    // The beginning of the file, by `tokenizers`.
    let mut theirs = tokenizers::Tokenizer::from_file(tokenizer).map_err(|error| error.to_string())?;
    theirs.set_encode_special_tokens(true);
    let ours = TextTokenizer::from_json(fs::read(tokenizer)?, None)?;
    let mut encoder = ours.encoder();
    let (mut bytes, mut theirs_cpu, mut ours_cpu, mut tokens, mut differing) = (0, 0.0, 0.0, 0, 0);
    let mut lines = BufReader::new(File::open(file)?).lines();
    while bytes < megabytes * 1_000_000 {
        let mut batch: Vec<String> = Vec::new();
        let mut batch_bytes = 0;
        while batch_bytes < BATCH_BYTES {
            let Some(line) = lines.next().transpose()? else { break };
            let document: serde_json::Value = serde_json::from_str(&line)?;
            let text = document["text"].as_str().unwrap_or_default().to_owned();
            batch_bytes += text.len();
            batch.push(text);
        }
        if batch.is_empty() {
            break;
        }
        let before = cpu_seconds()?;
        let encodings = theirs.encode_batch_fast(batch.clone(), false).map_err(|error| error.to_string())?;
        let between = cpu_seconds()?;
        for (text, encoding) in batch.iter().zip(&encodings) {
            let mut found = Vec::new();
            encoder.encode_into(text, &mut found)?;
            tokens += found.len();
            differing += usize::from(found != encoding.get_ids());
        }
        theirs_cpu += between - before;
        ours_cpu += cpu_seconds()? - between;
        bytes += batch_bytes;
    }
    let speed = |bytes: f64, seconds: f64| (bytes / seconds / 1e4).round() / 100.0;
    let report = serde_json::json!({
        "text_bytes": prepared.figures.text_bytes,
        "documents": prepared.figures.documents,
        "duplicates": prepared.figures.duplicates,
        "tokens": prepared.figures.tokens,
        "threads": threads,
        "prepare_wall_seconds": wall,
        "prepare_cpu_seconds": cpu,
        "prepare_peak_rss_bytes": peak,
        "prepare_mb_per_cpu_second": speed(text_bytes, cpu),
        "compared_bytes": bytes,
        "compared_tokens": tokens,
        "documents_with_other_tokens": differing,
        "tokenizers_batch_mb_per_cpu_second": speed(bytes as f64, theirs_cpu),
        "encoder_alone_mb_per_cpu_second": speed(bytes as f64, ours_cpu),
        "prepare_over_tokenizers": (text_bytes / cpu) / (bytes as f64 / theirs_cpu),
        "manifest": prepared.digest.to_string(),
    });
    println!("{report:#}");
    Ok(())
}

/// Returns the processor time of this process, user and system.
fn cpu_seconds() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    // Fields 14 and 15, in hundredths of a second; the second field may contain any text but ends in the last
    // parenthesis.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}

/// Returns the peak memory of this process, in bytes.
fn peak_bytes() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").trim().parse::<u64>()? * 1024)
}

/// Random numbers, the same ones every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % sides
    }

    fn of<'a, T>(&mut self, things: &'a [T]) -> &'a T {
        &things[self.roll(things.len() as u64) as usize]
    }
}
