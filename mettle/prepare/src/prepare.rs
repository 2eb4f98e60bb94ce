//! Prepares a dataset from text: scan every document, select, train the tokenizer, encode, read back, rename.
//!
//! All files are written beside the final directory and renamed at the end, so a directory of that name is complete
//! or missing, even after a power failure. The next attempt resumes a killed one. Several processes may prepare the
//! same directory at once: one works, the others wait for it.
//!
//! The text is read twice, a piece at a time, so memory does not grow with it. The result depends only on text and
//! options, not on threads, machines or earlier attempts.

use crate::{
    documents::pieces,
    encode::{self, Output, PIECE_BYTES, Plan, Taken},
    error::{PrepareError, SourceError, write_atomic},
    files::prepared_path,
    options::{OutputDirectory, PrepareOptions, Progress, TokenizerChoice},
    output_lock::OutputLock,
    scan::{Record, Scan, read_again},
    select::{Amounts, KEYS_AT_ONCE, NEAR_KEYS_AT_ONCE, ONE, Selection, Span},
    text_file::TextFile,
};
use dataset::{Dataset, MAX_TOKENIZER_BYTES, Manifest, manifest_path, read_bounded, tokenizer_path};
use protocol::{Digest, ensure};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};
use tokenizer::TextTokenizer;

/// The format of a prepared directory; another format is another dataset.
const FORMAT: &str = "mettle/2/dataset";
/// Divisor of the text for the held-out part, …
const HELD_OUT_SHARE: u64 = 40;
/// … unless the minimum number of sequences needs more; then the smallest divisor.
const MOST_HELD_OUT_SHARE: u64 = 5;
/// Maximum number of bytes per token in texts seen so far.
const TOKEN_TEXT_BYTES: u64 = 6;
/// Size of the text from which the tokenizer learns, in bytes: more takes longer and changes its merges little.
const SAMPLE_BYTES: u64 = 4 << 20;
/// Maximum size of a description, in bytes.
const MAX_PREPARED_BYTES: u64 = 4 << 20;

/// A prepared dataset.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub directory: PathBuf,
    /// Digest of the manifest, for the chain.
    pub digest: Digest,
    pub manifest: Manifest,
    pub figures: PrepareStats,
    /// Unigram loss in nats per token; see [`Dataset::unigram_loss`].
    pub unigram_loss: f64,
    /// The dataset existed already.
    pub reused: bool,
}

/// Totals of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareStats {
    /// Number of training and held-out documents; a document that is taken twice counts twice.
    pub documents: u64,
    pub held_out_documents: u64,
    /// Total size of all documents, in bytes.
    pub text_bytes: u64,
    /// Total number of tokens, with one end of document each.
    pub tokens: u64,
    /// Documents omitted because another one has the same contents.
    pub duplicates: u64,
    /// Documents omitted because an earlier one is nearly equal, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub near_duplicates: Option<u64>,
    /// Documents omitted by each quality rule.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub refused: BTreeMap<String, u64>,
    /// Lines and rows without any text.
    pub empty: u64,
    /// Files omitted because they are not text.
    pub skipped_files: u64,
    /// Totals of each source, in order.
    pub sources: Vec<SourceStats>,
}

/// Totals of one source of a mixture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceStats {
    pub name: String,
    pub documents: u64,
    pub text_bytes: u64,
    pub tokens: u64,
    /// Number of readings, in thousandths.
    pub epochs_milli: u64,
}

/// Prepares the dataset, or opens an existing one.
///
/// # Errors
/// [`PrepareError`]. After a full disk or an unreadable file, the next call resumes.
pub fn prepare(
    options: PrepareOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    options.check()?;
    let given = given_tokenizer(&options.tokenizer)?;
    if let OutputDirectory::Directory(directory) = &options.place {
        // Before the text is read.
        description(directory)?;
    }
    let files = options.source.files()?;
    let request = request(&options, given.as_ref());
    let (parent, name) = options.place.location(&request)?;

    let lock = OutputLock::lock(&parent, &name, progress)?;
    let made = lock.begin(&request.to_string()).and_then(|()| make(&options, files, given, &lock, progress));
    if made.as_ref().map_or_else(|error| !error.may_pass(), |prepared| prepared.reused) {
        lock.discard()?;
    }
    if made.is_ok() {
        lock.finish();
    }
    made
}

fn make(
    options: &PrepareOptions,
    files: Vec<Vec<TextFile>>,
    given: Option<TextTokenizer>,
    lock: &OutputLock,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    let partial = &lock.partial;

    // Scans, and searches for the finished dataset.
    let scan = Scan::make(options, files, partial, progress)?;
    let inputs = inputs_digest(options, &scan, given.as_ref());
    let directory = options.place.directory(&inputs);
    if let Some(prepared) = existing(&directory, &inputs)? {
        progress(Progress::Reused { directory });
        return Ok(prepared);
    }

    // Selects and encodes.
    progress(Progress::Selecting { documents: scan.documents() });
    let selection = select(&scan, options)?;
    let tokenizer = match given {
        Some(tokenizer) => tokenizer,
        None => trained_tokenizer(&scan, &selection, options, (partial, inputs), progress)?,
    };
    let spans = selection.spans();
    let bytes = selection.bytes.iter().sum();
    let (scan, selection) = (&scan, &selection);
    let plan = Plan { scan, selection, tokenizer: &tokenizer, spans: &spans, bytes, digest: inputs };
    let Output { training, held_out, taken, .. } = encode::encode(&plan, options, partial, progress)?;
    let manifest = encode::manifest(training, held_out, &tokenizer, options, (partial, bytes))?;
    let figures = figures(options, scan, selection, spans.iter().zip(&taken));
    finish(&manifest, tokenizer.json(), (inputs, figures), &directory, lock, progress)
}

/// Describes the dataset in the lock's directory, reads it back, and renames it to `directory`.
pub(crate) fn finish(
    manifest: &Manifest,
    tokenizer: &[u8],
    (inputs, figures): (Digest, PrepareStats),
    directory: &Path,
    lock: &OutputLock,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    let partial = &lock.partial;
    write_atomic(&manifest_path(partial), &manifest.to_bytes())?;
    write_atomic(&tokenizer_path(partial), tokenizer)?;
    let prepared = Description { format: FORMAT.into(), inputs, manifest: manifest.digest(), figures };
    let bytes = serde_json::to_vec_pretty(&prepared).expect("numbers and strings are always JSON");
    write_atomic(&prepared_path(partial), &bytes)?;

    progress(Progress::Checking);
    read_back(partial, manifest.digest())?;
    lock.remove_notes()?;
    lock.publish(directory)?;
    let prepared = existing(directory, &inputs)?
        .ok_or_else(|| PrepareError::Foreign { directory: directory.to_owned() })?;
    progress(Progress::Finished { directory: directory.to_owned() });
    Ok(Prepared { reused: false, ..prepared })
}

/// Selects the documents. Too little text is an error here, before it is encoded.
fn select(scan: &Scan, options: &PrepareOptions) -> Result<Selection, PrepareError> {
    let least = options
        .held_out_sequences_min
        .saturating_mul(u64::from(options.seq_len))
        .saturating_mul(TOKEN_TEXT_BYTES);
    let needed = least.saturating_mul(MOST_HELD_OUT_SHARE);
    let weights: Vec<Option<u64>> = options.source.parts.iter().map(|part| part.weight).collect();
    let sample_bytes = match options.tokenizer {
        TokenizerChoice::Train { .. } => SAMPLE_BYTES,
        TokenizerChoice::File { .. } => 0,
    };
    let selection = Selection::of(
        scan,
        &Amounts {
            weights: &weights,
            epochs: options.source.epochs,
            held_out_bytes: least,
            held_out_share: HELD_OUT_SHARE,
            sample_bytes,
            keys_at_once: KEYS_AT_ONCE,
            bands: options.banding().map_or(0, |banding| banding.bands),
            near_keys_at_once: NEAR_KEYS_AT_ONCE,
        },
    )?;
    let bytes = selection.bytes.iter().sum();
    ensure!(
        bytes >= needed && scan.documents() - selection.duplicates - selection.near_duplicates >= 2,
        PrepareError::TooLittleText { bytes, needed, seq_len: options.seq_len }
    );
    let sources = options.source.parts.iter().zip(&selection.bytes);
    match sources.filter(|(part, _)| part.weight.is_some()).find(|(_, bytes)| **bytes == 0) {
        Some((part, _)) => Err(PrepareError::EmptySource { name: part.name.clone() }),
        None => Ok(selection),
    }
}

/// Computes the totals from those of each span.
fn figures<'a>(
    options: &PrepareOptions,
    scan: &Scan,
    selection: &Selection,
    spans: impl Iterator<Item = (&'a Span, &'a Taken)>,
) -> PrepareStats {
    let mut taken = vec![Taken::default(); scan.sources.len()];
    for (span, of_span) in spans {
        taken[span.source].add(of_span);
    }
    let sum = |of: fn(&Taken) -> u64| taken.iter().map(of).sum();
    let sources = options.source.parts.iter().zip(&taken).zip(&selection.rates);
    let source = |((part, taken), rate): ((&crate::source::SourcePart, &Taken), &u64)| SourceStats {
        name: part.name.clone(),
        documents: taken.documents,
        text_bytes: taken.bytes,
        tokens: taken.tokens,
        epochs_milli: rate.saturating_mul(1000) / ONE,
    };
    let refused: BTreeMap<String, u64> = (0..)
        .zip(options.rules())
        .map(|(number, rule)| (rule.name().to_owned(), scan.refused(number)))
        .collect();
    PrepareStats {
        documents: sum(|taken| taken.documents),
        held_out_documents: sum(|taken| taken.held_out_documents),
        text_bytes: sum(|taken| taken.bytes),
        tokens: sum(|taken| taken.tokens),
        duplicates: selection.duplicates,
        near_duplicates: options.near_duplicates.map(|_| selection.near_duplicates),
        empty: scan.items() - scan.documents() - refused.values().sum::<u64>(),
        refused,
        skipped_files: scan.skipped(),
        sources: sources.map(source).collect(),
    }
}

fn given_tokenizer(choice: &TokenizerChoice) -> Result<Option<TextTokenizer>, PrepareError> {
    let TokenizerChoice::File { path, end_of_document } = choice else { return Ok(None) };
    let bytes = read_bounded(path, MAX_TOKENIZER_BYTES)
        .map_err(|source| PrepareError::TokenizerUnreadable { path: path.clone(), source })?
        .ok_or_else(|| PrepareError::TokenizerTooLarge { path: path.clone() })?;
    let tokenizer = TextTokenizer::from_json(bytes, end_of_document.as_deref())
        .map_err(|source| PrepareError::TokenizerFile { path: path.clone(), source })?;
    Ok(Some(tokenizer))
}

/// Trains the tokenizer, or reads the one that an earlier attempt trained on the same input.
fn trained_tokenizer(
    scan: &Scan,
    selection: &Selection,
    options: &PrepareOptions,
    (partial, inputs): (&Path, Digest),
    progress: &mut dyn FnMut(Progress),
) -> Result<TextTokenizer, PrepareError> {
    let TokenizerChoice::Train { vocab } = options.tokenizer else {
        unreachable!("a given tokenizer is not trained");
    };
    let path = partial.join(format!("tokenizer-{inputs}.json"));
    if let Ok(Some(json)) = read_bounded(&path, MAX_TOKENIZER_BYTES) {
        return Ok(TextTokenizer::from_json(json, None)?);
    }
    progress(Progress::Tokenizer { tokens: 0, of: vocab });
    let sample = sample(scan, selection)?;
    let tokenizer = TextTokenizer::train(&sample, vocab, &mut |tokens| {
        let tokens = u32::try_from(tokens).unwrap_or(vocab);
        progress(Progress::Tokenizer { tokens, of: vocab });
    })?;
    write_atomic(&path, tokenizer.json())?;
    Ok(tokenizer)
}

/// Returns the text for the tokenizer: the first piece of each sampled document.
fn sample(scan: &Scan, selection: &Selection) -> Result<Vec<String>, PrepareError> {
    let mut sample = Vec::new();
    for (at, source) in scan.sources.iter().enumerate() {
        for file in &source.files {
            let mut records = scan.records(file.first);
            // Most files have no sampled document and are not read.
            let mut wanted = Vec::new();
            for number in 0..file.log.items {
                let record = records.next()?;
                if selection.in_sample(file.first + number, &record, at) {
                    wanted.push((number, record));
                }
            }
            let mut wanted = wanted.into_iter().peekable();
            let mut batches = read_again(file, &source.field);
            while wanted.peek().is_some() {
                let Some(batch) = batches.next().transpose()? else { break };
                for (number, item) in (batch.first..).zip(batch.items) {
                    if let Some((_, record)) = wanted.next_if(|(wanted, _)| *wanted == number) {
                        let text = item.text(&source.field).ok().filter(|text| Record::of(text) == record);
                        let text =
                            text.ok_or_else(|| SourceError::Changed { path: file.file.path.clone() })?;
                        sample.extend(pieces(&text, PIECE_BYTES).next().map(str::to_owned));
                    }
                }
            }
        }
    }
    Ok(sample)
}

/// Returns a digest of the request, from the data known before the text is read.
fn request(options: &PrepareOptions, tokenizer: Option<&TextTokenizer>) -> Digest {
    let mut parts = DigestParts::new("request");
    parts.options(options, tokenizer);
    for part in &options.source.parts {
        parts.add(format!("{part:?}").as_bytes());
    }
    parts.digest()
}

/// Returns a digest of the dataset's inputs.
fn inputs_digest(options: &PrepareOptions, scan: &Scan, tokenizer: Option<&TextTokenizer>) -> Digest {
    let mut parts = DigestParts::new("inputs");
    parts.options(options, tokenizer);
    for (part, source) in options.source.parts.iter().zip(&scan.sources) {
        parts.add(&part.weight.unwrap_or(0).to_le_bytes());
        for file in source.files.iter().filter(|file| file.log.items > 0) {
            parts.add(&file.log.digest.0);
        }
    }
    parts.digest()
}

/// A digest over several parts, each with its length.
pub(crate) struct DigestParts(blake3::Hasher);

impl DigestParts {
    pub fn new(what: &str) -> DigestParts {
        let mut parts = DigestParts(blake3::Hasher::new());
        parts.add(FORMAT.as_bytes());
        parts.add(what.as_bytes());
        parts
    }

    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(&(bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    /// Adds the options that change the dataset; threads and checkpoints do not.
    fn options(&mut self, options: &PrepareOptions, tokenizer: Option<&TextTokenizer>) {
        let PrepareOptions { seq_len, shard_bytes, held_out_sequences_min, .. } = *options;
        for number in [u64::from(seq_len), shard_bytes, held_out_sequences_min] {
            self.add(&number.to_le_bytes());
        }
        self.add(&options.source.epochs.to_le_bytes());
        match (&options.tokenizer, tokenizer) {
            (_, Some(tokenizer)) => {
                self.add(&tokenizer.digest().0);
                self.add(&tokenizer.end_of_document().to_le_bytes());
            }
            (TokenizerChoice::Train { vocab }, None) => self.add(&vocab.to_le_bytes()),
            (TokenizerChoice::File { .. }, None) => unreachable!("a tokenizer in a file is read before"),
        }
        // Without these options, the digest equals that of a release that did not have them.
        if let Some(banding) = options.banding() {
            self.add(b"near-duplicates");
            self.add(&(banding.bands as u64).to_le_bytes());
            self.add(&(banding.rows as u64).to_le_bytes());
        }
        for rule in options.rules() {
            let (least, most) = rule.bounds();
            self.add(rule.name().as_bytes());
            self.add(&least.to_le_bytes());
            self.add(&most.to_le_bytes());
        }
    }

    pub fn digest(self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

/// The description in a prepared directory.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    format: String,
    inputs: Digest,
    pub manifest: Digest,
    pub figures: PrepareStats,
}

/// Reads the description of a directory; `None` if the directory is empty or missing.
pub(crate) fn description(directory: &Path) -> Result<Option<Description>, PrepareError> {
    let foreign = || PrepareError::Foreign { directory: directory.to_owned() };
    let mut entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(foreign()),
        Err(source) => return Err(PrepareError::Unreadable { directory: directory.to_owned(), source }),
    };
    if entries.next().is_none() {
        return Ok(None);
    }
    let description = read_bounded(&prepared_path(directory), MAX_PREPARED_BYTES)
        .ok()
        .flatten()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .filter(|description: &Description| description.format == FORMAT);
    description.map(Some).ok_or_else(foreign)
}

/// Opens the dataset in `directory`, if it belongs to `inputs`. Other files are an error.
pub(crate) fn existing(directory: &Path, inputs: &Digest) -> Result<Option<Prepared>, PrepareError> {
    let Some(description) = description(directory)? else { return Ok(None) };
    ensure!(description.inputs == *inputs, PrepareError::OtherInputs { directory: directory.to_owned() });
    let (dataset, unigram_loss) = read_back(directory, description.manifest)?;
    Ok(Some(Prepared {
        directory: directory.to_owned(),
        digest: dataset.digest(),
        manifest: dataset.manifest().clone(),
        figures: description.figures,
        unigram_loss,
        reused: true,
    }))
}

/// Reads everything back like a later reader: the unigram loss verifies each shard, unless it is stored already.
fn read_back(directory: &Path, manifest: Digest) -> Result<(Dataset, f64), PrepareError> {
    let at = || directory.to_owned();
    let dataset = Dataset::open(directory, Some(manifest))
        .map_err(|source| PrepareError::Damaged { directory: at(), source })?;
    let unigram_loss =
        dataset.unigram_loss().map_err(|source| PrepareError::NotReadBack { directory: at(), source })?;
    Ok((dataset, unigram_loss))
}
