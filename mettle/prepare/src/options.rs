//! The options of [`prepare`](crate::prepare), and its progress.

use crate::{
    error::{PrepareError, SIMILARITIES},
    near::Banding,
    quality::{self, QualityRule},
    source::Source,
};
use dataset::{MAX_SEQUENCE_TOKENS, MAX_SHARD_BYTES, MAX_VOCAB};
use protocol::{Digest, ensure};
use std::{
    fmt,
    path::{Path, PathBuf},
};
use tokenizer::MIN_VOCAB;

/// Size of the text between two checkpoints, in bytes: some seconds of work.
const NOTE_EVERY_BYTES: u64 = 32 << 20;
/// Maximum number of readings of a text: more have no effect on training.
const MAX_EPOCHS: u64 = 1000;
const MAX_THREADS: u64 = 4096;

/// The text to prepare, the place of the dataset, and its form.
#[derive(Clone, Debug)]
pub struct PrepareOptions {
    pub source: Source,
    pub place: OutputDirectory,
    pub tokenizer: TokenizerChoice,
    /// Number of tokens of a sequence that the model sees. A stored sequence has one more.
    pub seq_len: u32,
    /// Maximum size of a shard, in bytes.
    pub shard_bytes: u64,
    /// Minimum number of held-out sequences, approximately, even if 1/40 of the text is less.
    pub held_out_sequences_min: u64,
    /// Omit documents whose similarity to an earlier one is at least about this, from 0.5 to 0.99.
    pub near_duplicates: Option<f64>,
    /// Rules for documents; those that break one are omitted. Of several rules with one name the last counts.
    pub quality: Vec<QualityRule>,
    /// Number of encoding threads; `None` for one per core. The result is the same.
    pub threads: Option<usize>,
    /// Size of the text between two checkpoints, in bytes: a kill loses at most this much. The result is the same.
    pub note_every_bytes: u64,
}

/// The directory of the dataset.
#[derive(Clone, Debug)]
pub enum OutputDirectory {
    /// This directory, which must be missing, be empty, or contain this dataset.
    Directory(PathBuf),
    /// A directory below this one, named after text and options.
    CacheUnder(PathBuf),
}

#[derive(Clone, Debug)]
pub enum TokenizerChoice {
    /// Train a byte-level BPE with at most this many tokens.
    Train { vocab: u32 },
    /// Use a `tokenizer.json`. The token between documents is `end_of_document`, or a usual one.
    File { path: PathBuf, end_of_document: Option<String> },
}

/// The progress of [`prepare`](crate::prepare). `Display` is one line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The first pass: finished files, and bytes of files.
    Reading { files: u64, bytes: u64, of: u64 },
    /// Documents are being selected.
    Selecting { documents: u64 },
    /// Another process is preparing the same directory.
    Waiting { directory: PathBuf },
    /// The directory is complete already.
    Reused { directory: PathBuf },
    /// The tokenizer is being trained.
    Tokenizer { tokens: u32, of: u32 },
    /// The second pass, in bytes, of which an earlier attempt encoded `resumed`.
    Encoding { bytes: u64, of: u64, resumed: u64 },
    /// Files are copied to a bucket, or from parts into a joined dataset, in bytes.
    Copying { bytes: u64, of: u64 },
    /// The dataset is being read back.
    Checking,
    /// The directory has its final name.
    Finished { directory: PathBuf },
}

impl PrepareOptions {
    /// Returns the options of a localnet: 2048 tokens, sequences of 128.
    pub fn new(source: Source, place: OutputDirectory) -> PrepareOptions {
        PrepareOptions {
            source,
            place,
            tokenizer: TokenizerChoice::Train { vocab: 2048 },
            seq_len: 128,
            shard_bytes: 8 << 20,
            held_out_sequences_min: 256,
            near_duplicates: None,
            quality: Vec::new(),
            threads: None,
            note_every_bytes: NOTE_EVERY_BYTES,
        }
    }

    pub(crate) fn check(&self) -> Result<(), PrepareError> {
        let mut bounds = vec![
            ("seq_len", u64::from(self.seq_len), 1, u64::from(MAX_SEQUENCE_TOKENS) - 1),
            // A shard with one of the longest sequences is always allowed.
            ("shard_bytes", self.shard_bytes, 1, MAX_SHARD_BYTES),
            ("held_out_sequences_min", self.held_out_sequences_min, 1, 1 << 32),
            ("epochs", u64::from(self.source.epochs), 1, MAX_EPOCHS),
        ];
        bounds.extend(self.threads.map(|threads| ("threads", threads as u64, 1, MAX_THREADS)));
        if let TokenizerChoice::Train { vocab } = self.tokenizer {
            bounds.push(("vocab", u64::from(vocab), u64::from(MIN_VOCAB), u64::from(MAX_VOCAB)));
        }
        if let Some(given) = self.near_duplicates {
            ensure!(SIMILARITIES.contains(&given), PrepareError::Similarity { given });
        }
        match bounds.into_iter().find(|(_, value, least, most)| !(least..=most).contains(&value)) {
            Some((option, value, least, most)) => Err(PrepareError::BadOption { option, value, least, most }),
            None => Ok(()),
        }
    }

    /// Returns the rules in force, in the order in which a document is judged.
    pub(crate) fn rules(&self) -> Vec<QualityRule> {
        quality::in_force(&self.quality)
    }

    pub(crate) fn banding(&self) -> Option<Banding> {
        self.near_duplicates.map(Banding::of)
    }

    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(rayon::current_num_threads)
    }
}

impl OutputDirectory {
    /// Returns the parent and the name of the directory to lock.
    pub(crate) fn location(&self, request: &Digest) -> Result<(PathBuf, String), PrepareError> {
        match self {
            OutputDirectory::Directory(directory) => {
                let foreign = || PrepareError::Foreign { directory: directory.clone() };
                let name = directory.file_name().ok_or_else(foreign)?;
                let parent = directory.parent().unwrap_or(Path::new(""));
                Ok((parent.to_owned(), name.to_string_lossy().into_owned()))
            }
            OutputDirectory::CacheUnder(cache) => Ok((cache.clone(), request.to_string()[..16].to_owned())),
        }
    }

    /// Returns the directory of the dataset that is made from `inputs`.
    pub(crate) fn directory(&self, inputs: &Digest) -> PathBuf {
        match self {
            OutputDirectory::Directory(directory) => directory.clone(),
            OutputDirectory::CacheUnder(cache) => cache.join(&inputs.to_string()[..16]),
        }
    }
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        match self {
            Progress::Reading { files, bytes, of } => {
                write!(f, "read {files} files, {:.1} of {:.1} MB", megabytes(*bytes), megabytes(*of))
            }
            Progress::Selecting { documents } => write!(f, "selecting from {documents} documents"),
            Progress::Waiting { directory } => {
                write!(f, "another process is preparing {}: waiting for it", directory.display())
            }
            Progress::Reused { directory } => write!(f, "{} is prepared already", directory.display()),
            Progress::Tokenizer { tokens, of } => {
                write!(f, "training the tokenizer: {tokens} of {of} tokens")
            }
            Progress::Encoding { bytes, of, .. } => {
                write!(f, "encoding: {:.1} of {:.1} MB", megabytes(*bytes), megabytes(*of))
            }
            Progress::Copying { bytes, of } => {
                write!(f, "copying: {:.1} of {:.1} MB", megabytes(*bytes), megabytes(*of))
            }
            Progress::Checking => f.write_str("reading the dataset back"),
            Progress::Finished { directory } => write!(f, "{} is prepared", directory.display()),
        }
    }
}
