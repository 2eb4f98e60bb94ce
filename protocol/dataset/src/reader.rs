//! Reads a dataset from disk without trust: checks the manifest against the digest from the chain, and the tokenizer
//! and each shard against the manifest, before their first use (PROT-4).
//!
//! Shards are memory-mapped, so that processes on one machine share one copy and read only what they need. A shard is
//! verified at its first use, once per process; after that, reading a sequence is a copy.

use crate::{
    durable::{self, Readers},
    files::{manifest_path, read_bounded, shard_path, tokenizer_path, unigram_path},
    manifest::{MAX_MANIFEST_BYTES, Manifest, ManifestError, ShardInfo},
};
use memmap2::Mmap;
use protocol::{Digest, ensure};
use std::{
    fmt,
    fs::{self, File},
    io::{self, BufReader, Read as _},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

/// Maximum size of a tokenizer, in bytes: larger than any in use.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// An open dataset. Clones share all data.
#[derive(Clone)]
pub struct Dataset(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    manifest: Manifest,
    digest: Digest,
    tokenizer: Vec<u8>,
    training: Split,
    held_out: Split,
    unigram_loss: OnceLock<f64>,
    /// The source of shards that are not in the directory.
    pieces: Option<Arc<dyn PieceSource>>,
    /// Replaces damaged shards.
    repair: Option<Arc<dyn ShardRepair>>,
}

/// A source of parts of shards that are not on this disk.
pub trait PieceSource: Send + Sync {
    /// Reads the bytes of these ranges in order, each checked against the digest of its shard. Blocks until they
    /// arrive.
    ///
    /// # Errors
    /// If a range cannot be fetched.
    fn read(&self, wanted: &[ShardRange]) -> Result<Vec<Vec<u8>>, PieceSourceError>;
}

/// Restores a shard that is damaged or missing.
pub trait ShardRepair: Send + Sync {
    /// Replaces `path` by the `bytes` bytes of `shard`, by a rename, so that readers of the old file are not
    /// disturbed. Blocks until they arrive.
    ///
    /// # Errors
    /// If the shard cannot be fetched or written.
    fn repair(&self, shard: Digest, bytes: u64, path: &Path) -> Result<(), PieceSourceError>;
}

/// A range of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardRange {
    pub shard: Digest,
    pub range: Range<u64>,
}

/// Failure of a [`PieceSource`].
pub type PieceSourceError = Box<dyn std::error::Error + Send + Sync>;

/// Reason why a directory is not the expected dataset.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{} holds no usable manifest", path.display())]
    Manifest { path: PathBuf, source: ManifestError },
    #[error("{} holds the dataset {found}, the run uses {expected}", directory.display())]
    OtherDataset { directory: PathBuf, expected: Digest, found: Digest },
    #[error("{} is not the tokenizer that the manifest names", path.display())]
    OtherTokenizer { path: PathBuf },
    #[error("shard {} has {found} bytes instead of {expected}", path.display())]
    ShardLength { path: PathBuf, expected: u64, found: u64 },
}

impl OpenError {
    /// Returns whether a file is missing or damaged, so that fetching it again would help.
    pub fn is_damage(&self) -> bool {
        !matches!(self, OpenError::Unreadable { source, .. } if source.kind() != io::ErrorKind::NotFound)
    }
}

/// Failure to read tokens.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("sequence {index} was asked for, the split has {sequences}")]
    OutOfRange { index: u64, sequences: u64 },
    #[error("cannot read {}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("shard {} does not match its digest; it is damaged and must be fetched or prepared again", path.display())]
    Damaged { path: PathBuf },
    #[error("shard {} has token {token}, which is outside the vocabulary of {vocab}", path.display())]
    OutsideVocabulary { path: PathBuf, token: u32, vocab: u32 },
    #[error("could not fetch what is needed of the data")]
    NotFetched(#[source] PieceSourceError),
    #[error("shard {} is damaged, and could not be fetched again", path.display())]
    NotMended { path: PathBuf, source: PieceSourceError },
}

impl Dataset {
    /// Opens a directory with a manifest, a tokenizer and shards. `expected` is the manifest digest on the chain;
    /// without it, any dataset is opened.
    ///
    /// # Errors
    /// If the directory does not contain the expected dataset.
    pub fn open(directory: impl AsRef<Path>, expected: Option<Digest>) -> Result<Dataset, OpenError> {
        Dataset::open_with_repair(directory, expected, None)
    }

    /// Opens a directory like [`Dataset::open`]; `repair` replaces a shard that is damaged at its first use.
    ///
    /// # Errors
    /// As [`Dataset::open`].
    pub fn open_with_repair(
        directory: impl AsRef<Path>,
        expected: Option<Digest>,
        repair: Option<Arc<dyn ShardRepair>>,
    ) -> Result<Dataset, OpenError> {
        let directory = directory.as_ref().to_owned();
        let path = manifest_path(&directory);
        let bytes = read_bounded(&path, MAX_MANIFEST_BYTES)
            .map_err(|source| OpenError::Unreadable { path: path.clone(), source })?
            .ok_or_else(|| OpenError::Manifest { path: path.clone(), source: ManifestError::TooLong })?;
        let manifest = Manifest::from_bytes(&bytes).map_err(|source| OpenError::Manifest { path, source })?;
        let digest = Digest::of(&bytes);
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            return Err(OpenError::OtherDataset { directory, expected, found: digest });
        }

        let path = tokenizer_path(&directory);
        let tokenizer = read_bounded(&path, MAX_TOKENIZER_BYTES)
            .map_err(|source| OpenError::Unreadable { path: path.clone(), source })?
            .filter(|bytes| Digest::of(bytes) == manifest.tokenizer)
            .ok_or(OpenError::OtherTokenizer { path })?;

        let dataset = Dataset::new(directory, manifest, tokenizer, None, repair);
        let manifest = &dataset.0.manifest;
        for Shard { info, path, .. } in dataset.0.training.shards.iter().chain(&dataset.0.held_out.shards) {
            let expected = manifest.shard_bytes(info);
            let metadata = fs::metadata(path);
            let found =
                metadata.map_err(|source| OpenError::Unreadable { path: path.clone(), source })?.len();
            ensure!(found == expected, OpenError::ShardLength { path: path.clone(), expected, found });
        }
        Ok(dataset)
    }

    /// Creates a dataset whose shards are elsewhere: `pieces` reads their parts. `tokenizer` is the bytes of the
    /// manifest's tokenizer; `directory` keeps derived values.
    ///
    /// # Errors
    /// If the manifest is invalid or the tokenizer is another one.
    pub fn remote(
        directory: PathBuf,
        manifest: Manifest,
        tokenizer: Vec<u8>,
        pieces: Arc<dyn PieceSource>,
    ) -> Result<Dataset, OpenError> {
        manifest.check().map_err(|source| OpenError::Manifest { path: manifest_path(&directory), source })?;
        ensure!(
            Digest::of(&tokenizer) == manifest.tokenizer,
            OpenError::OtherTokenizer { path: tokenizer_path(&directory) }
        );
        Ok(Dataset::new(directory, manifest, tokenizer, Some(pieces), None))
    }

    fn new(
        directory: PathBuf,
        manifest: Manifest,
        tokenizer: Vec<u8>,
        pieces: Option<Arc<dyn PieceSource>>,
        repair: Option<Arc<dyn ShardRepair>>,
    ) -> Dataset {
        Dataset(Arc::new(Inner {
            digest: manifest.digest(),
            training: Split::of(&directory, &manifest.training),
            held_out: Split::of(&directory, &manifest.held_out),
            directory,
            manifest,
            tokenizer,
            unigram_loss: OnceLock::new(),
            pieces,
            repair,
        }))
    }

    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Returns the digest of the manifest.
    pub fn digest(&self) -> Digest {
        self.0.digest
    }

    pub fn directory(&self) -> &Path {
        &self.0.directory
    }

    /// Returns the number of tokens that the model sees of one sequence.
    pub fn seq_len(&self) -> usize {
        self.0.manifest.seq_len()
    }

    /// Returns the vocabulary's size: every token is below it.
    pub fn vocab(&self) -> u32 {
        self.0.manifest.vocab
    }

    pub fn training_sequences(&self) -> u64 {
        self.0.training.sequences
    }

    pub fn held_out_sequences(&self) -> u64 {
        self.0.held_out.sequences
    }

    /// Reads training sequences in the order of `indices`, which count from 0: `seq_len + 1` tokens each. The inputs
    /// are all but the last, the targets all but the first.
    ///
    /// # Errors
    /// If an index is out of range, or a shard cannot be read or is damaged.
    pub fn sequences(&self, indices: &[u64]) -> Result<Vec<Vec<u32>>, ReadError> {
        self.read(&self.0.training, indices)
    }

    /// Reads held-out sequences, in the order of `indices` and the shape of [`Dataset::sequences`].
    ///
    /// # Errors
    /// As [`Dataset::sequences`].
    pub fn held_out_sequences_at(&self, indices: &[u64]) -> Result<Vec<Vec<u32>>, ReadError> {
        self.read(&self.0.held_out, indices)
    }

    fn read(&self, split: &Split, indices: &[u64]) -> Result<Vec<Vec<u32>>, ReadError> {
        let Inner { manifest, pieces, repair, .. } = &*self.0;
        match pieces {
            Some(pieces) => split.fetched(manifest, &**pieces, indices),
            None => indices.iter().map(|&index| split.sequence(manifest, repair.as_deref(), index)).collect(),
        }
    }

    /// Returns the bytes of `tokenizer.json`.
    pub fn tokenizer(&self) -> &[u8] {
        &self.0.tokenizer
    }

    /// Returns the unigram baseline: the loss of predicting by token frequency alone. It is the mean over all
    /// held-out targets, in nats per token, of `−ln p(target)`, where `p` is the share of a token among all training
    /// targets, with one added to each count. The held-out loss of a model is a mean over the same targets.
    ///
    /// For reporting only: the logarithm is that of the machine. Reads the whole dataset once and keeps the result
    /// beside the manifest.
    ///
    /// # Errors
    /// As [`Dataset::sequences`].
    pub fn unigram_loss(&self) -> Result<f64, ReadError> {
        if let Some(loss) = self.0.unigram_loss.get() {
            return Ok(*loss);
        }
        if let Some(loss) = self.kept_unigram_loss() {
            return Ok(*self.0.unigram_loss.get_or_init(|| loss));
        }
        let loss = self.compute_unigram_loss()?;
        let line = format!("{} {loss}\n", self.0.digest);
        let path = unigram_path(&self.0.directory);
        if let Err(error) = durable::write_atomic(&path, line.as_bytes(), Readers::Umask) {
            // The directory may be read-only; the number is then computed each time.
            tracing::debug!(directory = %self.0.directory.display(), %error, "the unigram loss is not kept");
        }
        Ok(*self.0.unigram_loss.get_or_init(|| loss))
    }

    fn compute_unigram_loss(&self) -> Result<f64, ReadError> {
        let nats = self.unigram_nats()?;
        let held_out = self.0.held_out.count_targets(&self.0.manifest, self.0.pieces.as_deref())?;
        let sum: f64 = nats.iter().zip(&held_out).map(|(nats, &targets)| nats * targets as f64).sum();
        Ok(sum / held_out.iter().sum::<u64>() as f64)
    }

    /// Computes `−ln p` of each token, as in [`Dataset::unigram_loss`]. Reads all training shards.
    pub(crate) fn unigram_nats(&self) -> Result<Vec<f64>, ReadError> {
        let training = self.0.training.count_targets(&self.0.manifest, self.0.pieces.as_deref())?;
        let smoothed_total = training.iter().sum::<u64>() as f64 + training.len() as f64;
        Ok(training.iter().map(|&count| (smoothed_total / (count as f64 + 1.0)).ln()).collect())
    }

    /// Reads the stored number, if it belongs to this manifest.
    fn kept_unigram_loss(&self) -> Option<f64> {
        let bytes = read_bounded(&unigram_path(&self.0.directory), 256).ok()??;
        let (manifest, loss) = std::str::from_utf8(&bytes).ok()?.trim_end().split_once(' ')?;
        let loss = loss.parse().ok().filter(|loss: &f64| loss.is_finite() && *loss >= 0.0)?;
        (manifest.parse() == Ok(self.0.digest)).then_some(loss)
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("directory", &self.0.directory)
            .field("digest", &self.0.digest)
            .finish()
    }
}

/// Sequences numbered through several shards.
struct Split {
    shards: Vec<Shard>,
    sequences: u64,
}

struct Shard {
    info: ShardInfo,
    path: PathBuf,
    /// Number of this shard's first sequence in the split.
    first: u64,
    /// Set by the verification.
    map: OnceLock<Mmap>,
    /// Locked while one thread restores the shard.
    mending: Mutex<()>,
}

impl Split {
    fn of(directory: &Path, shards: &[ShardInfo]) -> Split {
        let mut split = Split { shards: Vec::with_capacity(shards.len()), sequences: 0 };
        for info in shards {
            let path = shard_path(directory, &info.digest);
            split.shards.push(Shard {
                info: info.clone(),
                path,
                first: split.sequences,
                map: OnceLock::new(),
                mending: Mutex::default(),
            });
            split.sequences += info.sequences;
        }
        split
    }

    /// Returns the shard of a sequence.
    fn shard_of(&self, index: u64) -> Result<&Shard, ReadError> {
        ensure!(index < self.sequences, ReadError::OutOfRange { index, sequences: self.sequences });
        // The first shard starts at 0, so at least one starts at or before any index.
        Ok(&self.shards[self.shards.partition_point(|shard| shard.first <= index) - 1])
    }

    /// Fetches sequences of shards that are elsewhere.
    fn fetched(
        &self,
        manifest: &Manifest,
        pieces: &dyn PieceSource,
        indices: &[u64],
    ) -> Result<Vec<Vec<u32>>, ReadError> {
        let bytes = manifest.sequence_bytes();
        let range = |&index: &u64| {
            let shard = self.shard_of(index)?;
            let start = (index - shard.first) * bytes;
            Ok(ShardRange { shard: shard.info.digest, range: start..start + bytes })
        };
        let wanted = indices.iter().map(range).collect::<Result<Vec<_>, ReadError>>()?;
        let found = pieces.read(&wanted).map_err(ReadError::NotFetched)?;
        let sequence = |(bytes, index): (Vec<u8>, &u64)| {
            let sequence: Vec<u32> = tokens(&bytes, manifest.token_bytes).collect();
            let outside = sequence.iter().find(|&&token| token >= manifest.vocab);
            self.shard_of(*index)?.in_vocabulary(manifest, outside.copied()).map(|()| sequence)
        };
        found.into_iter().zip(indices).map(sequence).collect()
    }

    fn sequence(
        &self,
        manifest: &Manifest,
        repair: Option<&dyn ShardRepair>,
        index: u64,
    ) -> Result<Vec<u32>, ReadError> {
        let shard = self.shard_of(index)?;
        let bytes = match repair {
            None => shard.verified(manifest)?,
            Some(repair) => shard.mended(manifest, repair)?,
        };
        let sequence_bytes = manifest.sequence_bytes() as usize;
        // Below the length of a mapped file, so it fits an address.
        let start = (index - shard.first) as usize * sequence_bytes;
        Ok(tokens(&bytes[start..start + sequence_bytes], manifest.token_bytes).collect())
    }

    /// Counts the occurrences of each token as a target.
    fn count_targets(
        &self,
        manifest: &Manifest,
        pieces: Option<&dyn PieceSource>,
    ) -> Result<Vec<u64>, ReadError> {
        let mut counts = vec![0; manifest.vocab as usize];
        let Some(pieces) = pieces else {
            self.shards.iter().try_for_each(|shard| shard.count_targets(manifest, &mut counts))?;
            return Ok(counts);
        };
        let indices: Vec<u64> = (0..self.sequences).collect();
        for indices in indices.chunks(256) {
            for sequence in self.fetched(manifest, pieces, indices)? {
                sequence[1..].iter().for_each(|&token| counts[token as usize] += 1);
            }
        }
        Ok(counts)
    }
}

impl Shard {
    /// Returns the shard's bytes after checking length, digest and that every token is in the vocabulary.
    fn verified(&self, manifest: &Manifest) -> Result<&[u8], ReadError> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        // Two threads may verify at once with the same result; one map is kept.
        let map = self.map_file().map_err(|source| self.unreadable(source))?;
        self.is(map.len() as u64 == manifest.shard_bytes(&self.info) && Digest::of(&map) == self.info.digest)?;
        let outside = tokens(&map, manifest.token_bytes).find(|&token| token >= manifest.vocab);
        self.in_vocabulary(manifest, outside)?;
        Ok(self.map.get_or_init(|| map))
    }

    /// Returns the verified bytes, after a repair if the shard is damaged or missing.
    fn mended(&self, manifest: &Manifest, repair: &dyn ShardRepair) -> Result<&[u8], ReadError> {
        if let Some(map) = self.map.get() {
            return Ok(map);
        }
        let _mending = self.mending.lock().unwrap_or_else(PoisonError::into_inner);
        match self.verified(manifest) {
            Err(ReadError::Damaged { .. }) => {}
            Err(ReadError::Unreadable { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
            other => return other,
        }
        repair
            .repair(self.info.digest, manifest.shard_bytes(&self.info), &self.path)
            .map_err(|source| ReadError::NotMended { path: self.path.clone(), source })?;
        self.verified(manifest)
    }

    /// Adds the count of each token as a target, and verifies the shard. The data does not stay in memory, unlike a
    /// mapped file.
    fn count_targets(&self, manifest: &Manifest, counts: &mut [u64]) -> Result<(), ReadError> {
        let unreadable = |source| self.unreadable(source);
        let file = File::open(&self.path).map_err(unreadable)?;
        self.is(file.metadata().map_err(unreadable)?.len() == manifest.shard_bytes(&self.info))?;
        let mut file = BufReader::with_capacity(1 << 20, file);
        let mut hasher = blake3::Hasher::new();
        let mut sequence = vec![0; manifest.sequence_bytes() as usize];
        let mut outside = None;
        for _ in 0..self.info.sequences {
            file.read_exact(&mut sequence).map_err(unreadable)?;
            hasher.update(&sequence);
            for (at, token) in tokens(&sequence, manifest.token_bytes).enumerate() {
                match counts.get_mut(token as usize) {
                    Some(count) => *count += u64::from(at > 0),
                    None => outside = outside.or(Some(token)),
                }
            }
        }
        self.is(Digest(*hasher.finalize().as_bytes()) == self.info.digest)?;
        self.in_vocabulary(manifest, outside)
    }

    fn unreadable(&self, source: io::Error) -> ReadError {
        ReadError::Unreadable { path: self.path.clone(), source }
    }

    /// Returns an error unless the file `is_this` shard's.
    fn is(&self, is_this: bool) -> Result<(), ReadError> {
        if is_this { Ok(()) } else { Err(ReadError::Damaged { path: self.path.clone() }) }
    }

    fn in_vocabulary(&self, manifest: &Manifest, outside: Option<u32>) -> Result<(), ReadError> {
        let (path, vocab) = (self.path.clone(), manifest.vocab);
        outside.map_or(Ok(()), |token| Err(ReadError::OutsideVocabulary { path, token, vocab }))
    }

    fn map_file(&self) -> io::Result<Mmap> {
        let file = File::open(&self.path)?;
        // SAFETY: a shard is written once, under its digest, and replaced only by a rename, which does not affect
        // this map. Bytes are read as plain numbers and checked before they are used as an index. So a file that
        // another program changes in place could give wrong tokens, or end the process if it is truncated, but not
        // break memory.
        unsafe { Mmap::map(&file) }
    }
}

fn tokens(bytes: &[u8], token_bytes: u8) -> impl Iterator<Item = u32> + '_ {
    bytes.chunks_exact(usize::from(token_bytes)).map(|token| {
        let mut wide = [0; 4];
        wide[..token.len()].copy_from_slice(token);
        u32::from_le_bytes(wide)
    })
}
