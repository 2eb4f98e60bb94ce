//! Makes a dataset out of text: split off what is held out, train the tokenizer, encode, write, check, and
//! only then give it its name.
//!
//! Everything is written beside the final directory and renamed at the end, so a directory of that name is
//! complete or not there, whenever the power fails. What was left half-written is removed by the next
//! attempt. Several processes may ask for the same directory at once: one works, the others wait for it.
//!
//! The result depends on text and options alone; threads, machines and earlier attempts leave no trace in it.

use crate::{
    files::{manifest_path, prepared_path, read_bounded, shards_path, tokenizer_path},
    manifest::{self, Manifest, ManifestError, token_bytes_for},
    reader::{Dataset, MAX_TOKENIZER_BYTES, OpenError, ReadError},
    shard::SplitWriter,
    source::{Document, Source, SourceError, Text},
    tokenizer::{MIN_VOCAB, TextTokenizer, TokenizerError},
};
use protocol::Digest;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    fmt,
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Written into every prepared directory; another format is another dataset.
const FORMAT: &str = "mettle/1/dataset";
/// One byte in so many is held out, …
const HELD_OUT_SHARE: u64 = 40;
/// … unless the least number of sequences needs more; then at most one in so many.
const MOST_HELD_OUT_SHARE: u64 = 5;
/// A token stands for this many bytes at most, in texts we have seen.
const TOKEN_TEXT_BYTES: u64 = 6;
/// The tokenizer learns from this much text: more changes its merges little, and takes longer.
const SAMPLE_BYTES: u64 = 4 << 20;
/// Text in memory while it is encoded.
const BATCH_BYTES: u64 = 4 << 20;
/// No description of ours is longer.
const MAX_PREPARED_BYTES: u64 = 64 << 10;

/// What to make, and where.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    pub source: Source,
    pub place: Place,
    pub tokenizer: TokenizerChoice,
    /// Tokens the model sees at once. A stored sequence has one more.
    pub seq_len: u32,
    /// The largest shard. In bytes.
    pub shard_bytes: u64,
    /// Hold out at least about this many sequences, even where 1/40 of the text is less.
    pub held_out_sequences_min: u64,
}

/// Where the dataset goes.
#[derive(Clone, Debug)]
pub enum Place {
    /// This directory, which is not there, empty, or holds just this dataset.
    Directory(PathBuf),
    /// A directory of its own below this one, named after text and options.
    CacheUnder(PathBuf),
}

#[derive(Clone, Debug)]
pub enum TokenizerChoice {
    /// Train a byte-level BPE with at most this many tokens.
    Train { vocab: u32 },
    /// Use a `tokenizer.json`. The token between documents is `end_of_document`, or else a usual one.
    File { path: PathBuf, end_of_document: Option<String> },
}

/// A dataset that stands.
#[derive(Clone, Debug)]
pub struct Prepared {
    pub directory: PathBuf,
    /// Of the manifest, for the chain.
    pub digest: Digest,
    pub manifest: Manifest,
    pub figures: Figures,
    /// In nats per token; see [`Dataset::unigram_loss`].
    pub unigram_loss: f64,
    /// It stood already.
    pub reused: bool,
}

/// What went in, and how it was divided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// Training and held-out documents.
    pub documents: u64,
    pub held_out_documents: u64,
    /// Of all documents together.
    pub text_bytes: u64,
    /// Of all documents together, with one end of document each.
    pub tokens: u64,
    /// Documents left out because another has the same contents.
    pub duplicates: u64,
    /// Files left out because they are no text.
    pub skipped_files: u64,
}

/// How far it is. Shown to people; `Display` is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The text is being read and hashed.
    Reading { files: u64, bytes: u64 },
    /// Another process is preparing the same directory.
    Waiting { directory: PathBuf },
    /// The directory stands already.
    Reused { directory: PathBuf },
    /// The tokenizer is being trained.
    Tokenizer { tokens: u32, of: u32 },
    /// Text is being turned into tokens. In bytes.
    Encoding { bytes: u64, of: u64 },
    /// What was written is being read back.
    Checking,
    /// It has its name.
    Finished { directory: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    #[error("the text cannot be used")]
    Source(#[from] SourceError),
    #[error("the tokenizer {} cannot be used", path.display())]
    TokenizerFile { path: PathBuf, source: TokenizerError },
    #[error("cannot read the tokenizer {}", path.display())]
    TokenizerUnreadable { path: PathBuf, source: io::Error },
    #[error("{} has more than {MAX_TOKENIZER_BYTES} bytes and is no tokenizer", path.display())]
    TokenizerTooLarge { path: PathBuf },
    #[error("the text cannot be turned into tokens")]
    Tokenizer(#[from] TokenizerError),
    #[error("{option} is {value}; it must be between {least} and {most}")]
    BadOption { option: &'static str, value: u64, least: u64, most: u64 },
    #[error("too little text: {bytes} bytes, where sequences of {seq_len} tokens need at least {needed}")]
    TooLittleText { bytes: u64, needed: u64, seq_len: u32 },
    #[error(
        "{} holds something that is not a dataset prepared by this program; choose another directory",
        directory.display()
    )]
    Foreign { directory: PathBuf },
    #[error(
        "{} holds a dataset of another text or with other options; remove it or choose another directory",
        directory.display()
    )]
    OtherInputs { directory: PathBuf },
    #[error("the dataset in {} is damaged; remove it to have it made again", directory.display())]
    Damaged { directory: PathBuf, source: OpenError },
    #[error("cannot read {}", directory.display())]
    Unreadable { directory: PathBuf, source: io::Error },
    #[error("the disk is full: cannot write {}", path.display())]
    DiskFull { path: PathBuf },
    #[error("cannot write {}", path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("the text makes a dataset that no manifest can describe")]
    Manifest(#[from] ManifestError),
    #[error("the dataset in {} does not read back; remove it to have it made again", directory.display())]
    NotReadBack { directory: PathBuf, source: ReadError },
}

impl PrepareOptions {
    /// The options of a localnet: 2048 tokens, sequences of 128.
    pub fn new(source: Source, place: Place) -> PrepareOptions {
        PrepareOptions {
            source,
            place,
            tokenizer: TokenizerChoice::Train { vocab: 2048 },
            seq_len: 128,
            shard_bytes: 8 << 20,
            held_out_sequences_min: 256,
        }
    }

    fn check(&self) -> Result<(), PrepareError> {
        let (vocab_max, seq_len_max, shard_bytes_max) = manifest::limits();
        let mut bounds = vec![
            ("seq_len", u64::from(self.seq_len), 1, u64::from(seq_len_max)),
            // A shard that holds one of the longest sequences is always allowed.
            ("shard_bytes", self.shard_bytes, 1, shard_bytes_max),
            ("held_out_sequences_min", self.held_out_sequences_min, 1, 1 << 32),
        ];
        if let TokenizerChoice::Train { vocab } = self.tokenizer {
            bounds.push(("vocab", u64::from(vocab), u64::from(MIN_VOCAB), u64::from(vocab_max)));
        }
        match bounds.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            Some((option, value, least, most)) => Err(PrepareError::BadOption { option, value, least, most }),
            None => Ok(()),
        }
    }
}

/// Makes the dataset, or finds it made.
pub fn prepare(
    options: PrepareOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<Prepared, PrepareError> {
    options.check()?;

    // What is asked for.
    let text = options.source.read(&mut |files, bytes| progress(Progress::Reading { files, bytes }))?;
    let given = given_tokenizer(&options.tokenizer)?;
    let divided = divide(&text, &options)?;
    let inputs = inputs_digest(&options, &text, given.as_ref());
    let directory = options.place.directory(&inputs);

    // It may be there, or somebody may be at it.
    if let Some(prepared) = standing(&directory, &inputs)? {
        progress(Progress::Reused { directory });
        return Ok(prepared);
    }
    let claim = Claim::take(&directory, progress)?;
    if let Some(prepared) = standing(&directory, &inputs)? {
        progress(Progress::Reused { directory });
        return Ok(prepared);
    }
    claim.begin()?;

    // Make it.
    let tokenizer = match given {
        Some(tokenizer) => tokenizer,
        None => train_tokenizer(&text, &divided, &options, progress)?,
    };
    let (manifest, tokens) = encode(&text, &divided, &tokenizer, &options, &claim.partial, progress)?;
    let figures = Figures {
        documents: text.documents.len() as u64,
        held_out_documents: divided.held_out.len() as u64,
        text_bytes: text.bytes,
        tokens,
        duplicates: text.duplicates,
        skipped_files: text.skipped,
    };
    write(&manifest_path(&claim.partial), &manifest.to_bytes())?;
    write(&tokenizer_path(&claim.partial), tokenizer.json())?;
    let prepared = Description { format: FORMAT.into(), inputs, manifest: manifest.digest(), figures };
    let bytes = serde_json::to_vec_pretty(&prepared).expect("numbers and strings are always JSON");
    write(&prepared_path(&claim.partial), &bytes)?;

    // Read it back, and give it its name.
    progress(Progress::Checking);
    check(&claim.partial, manifest.digest())?;
    claim.publish()?;
    let prepared = standing(&directory, &inputs)?
        .ok_or_else(|| PrepareError::Foreign { directory: directory.clone() })?;
    progress(Progress::Finished { directory });
    Ok(Prepared { reused: false, ..prepared })
}

/// Which documents are held out, and which the tokenizer learns from. Both by index.
struct Divided {
    held_out: BTreeSet<usize>,
    sample: Vec<usize>,
}

/// Whole documents, in an order that hashes of names and contents give: first the held-out ones until there
/// are enough, then those the tokenizer learns from. So the choice depends on the text alone, and the
/// tokenizer never sees what is held out.
fn divide(text: &Text, options: &PrepareOptions) -> Result<Divided, PrepareError> {
    let least = options
        .held_out_sequences_min
        .saturating_mul(u64::from(options.seq_len))
        .saturating_mul(TOKEN_TEXT_BYTES);
    let needed = least.saturating_mul(MOST_HELD_OUT_SHARE);
    if text.bytes < needed || text.documents.len() < 2 {
        return Err(PrepareError::TooLittleText { bytes: text.bytes, needed, seq_len: options.seq_len });
    }

    let mut order: Vec<(Digest, usize)> =
        text.documents.iter().enumerate().map(|(at, document)| (held_out_key(document), at)).collect();
    order.sort_unstable();
    let mut order = order.into_iter().map(|(_, at)| at).peekable();
    let mut take = |bytes_wanted: u64| {
        let mut taken = Vec::new();
        let mut bytes = 0;
        while bytes < bytes_wanted && order.peek().is_some() {
            taken.extend(order.next().inspect(|&at| bytes += text.documents[at].bytes));
        }
        taken
    };
    let held_out = take(least.max(text.bytes / HELD_OUT_SHARE)).into_iter().collect();
    let sample = take(SAMPLE_BYTES);
    Ok(Divided { held_out, sample })
}

fn held_out_key(document: &Document) -> Digest {
    let mut hasher = blake3::Hasher::new_derive_key("mettle/1 held-out document");
    hasher.update(&document.digest.0);
    hasher.update(document.name.as_bytes());
    Digest(*hasher.finalize().as_bytes())
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

fn train_tokenizer(
    text: &Text,
    divided: &Divided,
    options: &PrepareOptions,
    progress: &mut dyn FnMut(Progress),
) -> Result<TextTokenizer, PrepareError> {
    let TokenizerChoice::Train { vocab } = options.tokenizer else {
        unreachable!("a given tokenizer is not trained");
    };
    progress(Progress::Tokenizer { tokens: 0, of: vocab });
    let sample: Result<Vec<String>, SourceError> =
        divided.sample.iter().map(|&at| text.documents[at].read()).collect();
    Ok(TextTokenizer::train(&sample?, vocab, &mut |tokens| {
        let tokens = u32::try_from(tokens).unwrap_or(vocab);
        progress(Progress::Tokenizer { tokens, of: vocab });
    })?)
}

/// Writes the shards of both splits, and returns the manifest and the number of tokens.
fn encode(
    text: &Text,
    divided: &Divided,
    tokenizer: &TextTokenizer,
    options: &PrepareOptions,
    partial: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<(Manifest, u64), PrepareError> {
    let shards = shards_path(partial);
    let unwritable = |source| unwritable(&shards, source);
    fs::create_dir(&shards).map_err(unwritable)?;
    let sequence_tokens = options.seq_len + 1;
    let token_bytes = token_bytes_for(tokenizer.vocab());
    let writer =
        |name| SplitWriter::new(partial, name, sequence_tokens as usize, token_bytes, options.shard_bytes);
    let (mut training, mut held_out) = (writer("training"), writer("held-out"));

    let (mut bytes_encoded, mut tokens) = (0, 0);
    for batch in batches(&text.documents) {
        progress(Progress::Encoding { bytes: bytes_encoded, of: text.bytes });
        let encoded: Result<Vec<Vec<u32>>, PrepareError> = text.documents[batch.clone()]
            .par_iter()
            .map(|document| {
                let mut tokens = tokenizer.encode(&document.read()?)?;
                tokens.push(tokenizer.end_of_document());
                Ok(tokens)
            })
            .collect();
        for (at, document) in batch.clone().zip(encoded?) {
            let split = if divided.held_out.contains(&at) { &mut held_out } else { &mut training };
            split.push(&document).map_err(unwritable)?;
            tokens += document.len() as u64;
            bytes_encoded += text.documents[at].bytes;
        }
    }
    progress(Progress::Encoding { bytes: bytes_encoded, of: text.bytes });

    let training = training.finish().map_err(unwritable)?;
    let held_out = held_out.finish().map_err(unwritable)?;
    if training.is_empty() || held_out.is_empty() {
        // More bytes a token than we thought. What the text has is too little, and as much again will do.
        let needed = text.bytes.saturating_mul(2);
        return Err(PrepareError::TooLittleText { bytes: text.bytes, needed, seq_len: options.seq_len });
    }
    let manifest = Manifest::new(tokenizer.digest(), tokenizer.vocab(), sequence_tokens, training, held_out);
    manifest.check()?;
    Ok((manifest, tokens))
}

/// Ranges of documents of about [`BATCH_BYTES`] together.
fn batches(documents: &[Document]) -> Vec<std::ops::Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, document) in documents.iter().enumerate() {
        bytes += document.bytes;
        if bytes >= BATCH_BYTES {
            batches.push(start..at + 1);
            (start, bytes) = (at + 1, 0);
        }
    }
    if start < documents.len() {
        batches.push(start..documents.len());
    }
    batches
}

fn inputs_digest(options: &PrepareOptions, text: &Text, tokenizer: Option<&TextTokenizer>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(FORMAT.as_bytes());
    for number in [u64::from(options.seq_len), options.shard_bytes, options.held_out_sequences_min] {
        part(&number.to_le_bytes());
    }
    match (&options.tokenizer, tokenizer) {
        (_, Some(tokenizer)) => {
            part(&tokenizer.digest().0);
            part(&tokenizer.end_of_document().to_le_bytes());
        }
        (TokenizerChoice::Train { vocab }, None) => part(&vocab.to_le_bytes()),
        (TokenizerChoice::File { .. }, None) => unreachable!("a tokenizer in a file is read before"),
    }
    for document in &text.documents {
        part(document.name.as_bytes());
        part(&document.digest.0);
    }
    Digest(*hasher.finalize().as_bytes())
}

impl Place {
    fn directory(&self, inputs: &Digest) -> PathBuf {
        match self {
            Place::Directory(directory) => directory.clone(),
            Place::CacheUnder(cache) => cache.join(&inputs.to_string()[..16]),
        }
    }
}

/// What a prepared directory says of itself.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    format: String,
    inputs: Digest,
    manifest: Digest,
    figures: Figures,
}

/// What stands at `directory`: the dataset that is wanted, nothing, or something that must not be touched.
fn standing(directory: &Path, inputs: &Digest) -> Result<Option<Prepared>, PrepareError> {
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
    let description: Description = read_bounded(&prepared_path(directory), MAX_PREPARED_BYTES)
        .ok()
        .flatten()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .filter(|description: &Description| description.format == FORMAT)
        .ok_or_else(foreign)?;
    if description.inputs != *inputs {
        return Err(PrepareError::OtherInputs { directory: directory.to_owned() });
    }
    let dataset = Dataset::open(directory, Some(description.manifest))
        .map_err(|source| PrepareError::Damaged { directory: directory.to_owned(), source })?;
    let unigram_loss = dataset
        .unigram_loss()
        .map_err(|source| PrepareError::NotReadBack { directory: directory.to_owned(), source })?;
    Ok(Some(Prepared {
        directory: directory.to_owned(),
        digest: dataset.digest(),
        manifest: dataset.manifest().clone(),
        figures: description.figures,
        unigram_loss,
        reused: true,
    }))
}

/// Reads all that was written as any later reader will.
fn check(partial: &Path, digest: Digest) -> Result<(), PrepareError> {
    let dataset = Dataset::open(partial, Some(digest))
        .map_err(|source| PrepareError::Damaged { directory: partial.to_owned(), source })?;
    dataset
        .verify()
        .and_then(|()| dataset.unigram_loss())
        .map(drop)
        .map_err(|source| PrepareError::NotReadBack { directory: partial.to_owned(), source })
}

/// The right to make one directory, held by one process at a time.
struct Claim {
    directory: PathBuf,
    partial: PathBuf,
    lock_path: PathBuf,
    lock: File,
}

impl Claim {
    /// Waits for whoever is at it.
    fn take(directory: &Path, progress: &mut dyn FnMut(Progress)) -> Result<Claim, PrepareError> {
        let name =
            directory.file_name().ok_or_else(|| PrepareError::Foreign { directory: directory.to_owned() })?;
        let parent = directory.parent().unwrap_or(Path::new(""));
        let beside = |ending: &str| parent.join(format!(".{}.{ending}", name.to_string_lossy()));
        if !parent.as_os_str().is_empty() {
            fs::create_dir_all(parent).map_err(|source| unwritable(parent, source))?;
        }

        // The system lets go of the lock however this process ends.
        let lock_path = beside("lock");
        let lock = File::create(&lock_path).map_err(|source| unwritable(&lock_path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(Progress::Waiting { directory: directory.to_owned() });
                lock.lock().map_err(|source| unwritable(&lock_path, source))?;
            }
            Err(TryLockError::Error(source)) => return Err(unwritable(&lock_path, source)),
        }

        Ok(Claim { directory: directory.to_owned(), partial: beside("partial"), lock_path, lock })
    }

    /// Removes what an interrupted attempt left, and makes room. Only where the directory is not there: two may have a claim at
    /// the moment when a third has finished, one on the lock that it removed and one on the next.
    fn begin(&self) -> Result<(), PrepareError> {
        match fs::remove_dir_all(&self.partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(&self.partial, error)),
            _ => fs::create_dir(&self.partial).map_err(|source| unwritable(&self.partial, source)),
        }
    }

    /// Gives the finished directory its name. From here on it is there, also after a power failure.
    fn publish(self) -> Result<(), PrepareError> {
        let parent =
            self.partial.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        sync_directory(&shards_path(&self.partial))?;
        sync_directory(&self.partial)?;
        fs::rename(&self.partial, &self.directory).map_err(|source| unwritable(&self.directory, source))?;
        sync_directory(parent)?;
        // Whoever waits on this file finds the directory made. After a failure it stays: a third one must not
        // lock another file of this name.
        let _ = fs::remove_file(&self.lock_path);
        Ok(())
    }
}

impl Drop for Claim {
    /// Nothing half-written stays; if it cannot be removed now, the next attempt will.
    fn drop(&mut self) {
        if self.partial.exists()
            && let Err(error) = fs::remove_dir_all(&self.partial)
        {
            tracing::warn!(directory = %self.partial.display(), %error, "an unfinished dataset is left behind");
        }
        // In so many words: a child that is just being started may still hold a copy of the descriptor.
        self.lock.unlock().ok();
    }
}

fn sync_directory(path: &Path) -> Result<(), PrepareError> {
    // Only Unix can open a directory.
    if cfg!(unix) {
        File::open(path)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| unwritable(path, source))?;
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), PrepareError> {
    let write = || {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| unwritable(path, source))
}

fn unwritable(path: &Path, source: io::Error) -> PrepareError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => PrepareError::DiskFull { path },
        _ => PrepareError::Unwritable { path, source },
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        match self {
            Progress::Reading { files, bytes } => {
                write!(f, "read {files} files, {:.1} MB", megabytes(*bytes))
            }
            Progress::Waiting { directory } => {
                write!(f, "another process is preparing {}: waiting for it", directory.display())
            }
            Progress::Reused { directory } => write!(f, "{} is prepared already", directory.display()),
            Progress::Tokenizer { tokens, of } => {
                write!(f, "training the tokenizer: {tokens} of {of} tokens")
            }
            Progress::Encoding { bytes, of } => {
                write!(f, "encoding: {:.1} of {:.1} MB", megabytes(*bytes), megabytes(*of))
            }
            Progress::Checking => f.write_str("reading back what was written"),
            Progress::Finished { directory } => write!(f, "{} is prepared", directory.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_cheap_to_hand_on() {
        assert!(
            size_of::<PrepareError>() < 128 && size_of::<OpenError>() < 128 && size_of::<ReadError>() < 128
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_has_its_own_message() {
        let error = write(Path::new("/dev/full"), b"text").expect_err("it is always full");
        assert!(matches!(&error, PrepareError::DiskFull { path } if path == Path::new("/dev/full")));
        assert!(error.to_string().contains("the disk is full"));
    }
}
