//! Writes the tokens of one split as shards, each named by its digest.
//!
//! Documents follow one another without a gap, and the stream is cut into sequences: each starts at the last token of
//! the previous one, which was only a target there. So every token of the stream but the first is a target once.
//! Tokens at the end that fill no sequence are dropped.

use dataset::{ShardInfo, shard_path, shards_path};
use protocol::Digest;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
};

/// Size of the buffer before hashing and writing, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

/// Writes the tokens of one split.
pub(crate) struct SplitWriter {
    directory: PathBuf,
    /// The path of a shard until its digest is known.
    unfinished: PathBuf,
    sequence_tokens: usize,
    token_bytes: u8,
    sequences_per_shard: u64,
    /// Tokens that fill no sequence yet.
    tokens: Vec<u32>,
    shard: Option<Unfinished>,
    shards: Vec<ShardInfo>,
}

/// The state of a split, for resuming.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplitState {
    shards: Vec<ShardInfo>,
    /// Sequences in the unfinished shard, and its digest so far.
    sequences: u64,
    digest: Digest,
    tokens: Vec<u32>,
}

/// A shard that is being written.
struct Unfinished {
    file: HashedFile,
    sequences: u64,
}

/// A file that is hashed while it is written.
struct HashedFile {
    file: File,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
}

impl SplitWriter {
    /// Creates a writer. `name` distinguishes two writers of one directory. `token_bytes` is 2 or 4, and no shard has
    /// more than `shard_bytes`, or one sequence.
    pub fn new(
        directory: &Path,
        name: &str,
        sequence_tokens: usize,
        token_bytes: u8,
        shard_bytes: u64,
    ) -> SplitWriter {
        let sequence_bytes = sequence_tokens as u64 * u64::from(token_bytes);
        SplitWriter {
            directory: directory.to_owned(),
            unfinished: shards_path(directory).join(name),
            sequence_tokens,
            token_bytes,
            sequences_per_shard: (shard_bytes / sequence_bytes).max(1),
            tokens: Vec::new(),
            shard: None,
            shards: Vec::new(),
        }
    }

    /// Closes the last shard and returns all of them.
    pub fn finish(mut self) -> io::Result<Vec<ShardInfo>> {
        self.close()?;
        Ok(self.shards)
    }

    fn write(&mut self, sequence: &[u32]) -> io::Result<()> {
        let shard = match &mut self.shard {
            Some(shard) => shard,
            none => none.insert(Unfinished { file: HashedFile::create(&self.unfinished)?, sequences: 0 }),
        };
        shard.file.push(sequence, self.token_bytes)?;
        shard.sequences += 1;
        if shard.sequences == self.sequences_per_shard {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(mut shard) = self.shard.take() else { return Ok(()) };
        let digest = shard.file.sync()?;
        fs::rename(&self.unfinished, shard_path(&self.directory, &digest))?;
        self.shards.push(ShardInfo { digest, sequences: shard.sequences });
        Ok(())
    }

    /// Resumes from `state`, and drops later data. Returns `None` if the files of `state` are missing.
    pub fn resume(mut self, state: SplitState) -> io::Result<Option<SplitWriter>> {
        if state.sequences > 0 {
            // The shard may have been finished and renamed after that.
            let mut candidates = vec![self.unfinished.clone()];
            for entry in fs::read_dir(shards_path(&self.directory))? {
                candidates.push(entry?.path());
            }
            let known: Vec<PathBuf> =
                state.shards.iter().map(|shard| shard_path(&self.directory, &shard.digest)).collect();
            let bytes = state.sequences * self.sequence_tokens as u64 * u64::from(self.token_bytes);
            let candidates = candidates.into_iter().filter(|path| !known.contains(path));
            for path in candidates {
                if let Some(file) = HashedFile::resume(&path, bytes, state.digest)? {
                    fs::rename(path, &self.unfinished)?;
                    self.shard = Some(Unfinished { file, sequences: state.sequences });
                    break;
                }
            }
            if self.shard.is_none() {
                return Ok(None);
            }
        }
        (self.shards, self.tokens) = (state.shards, state.tokens);
        Ok(Some(self))
    }

    /// Syncs, and returns the state for resuming.
    pub fn state(&mut self) -> io::Result<SplitState> {
        let (mut sequences, mut digest) = (0, Digest::default());
        if let Some(shard) = &mut self.shard {
            (sequences, digest) = (shard.sequences, shard.file.sync()?);
        }
        Ok(SplitState { shards: self.shards.clone(), sequences, digest, tokens: self.tokens.clone() })
    }

    /// Adds the tokens of a document.
    pub fn push(&mut self, tokens: &[u32]) -> io::Result<()> {
        self.tokens.extend_from_slice(tokens);
        let waiting = std::mem::take(&mut self.tokens);
        let mut start = 0;
        while let Some(sequence) = waiting.get(start..start + self.sequence_tokens) {
            self.write(sequence)?;
            start += self.sequence_tokens - 1;
        }
        self.tokens = waiting;
        self.tokens.drain(..start);
        Ok(())
    }
}

impl HashedFile {
    fn create(path: &Path) -> io::Result<HashedFile> {
        Ok(HashedFile { file: File::create(path)?, hasher: blake3::Hasher::new(), buffer: Vec::new() })
    }

    /// Resumes with the first `bytes` of a file, if they have this digest.
    fn resume(path: &Path, bytes: u64, digest: Digest) -> io::Result<Option<HashedFile>> {
        let mut file = match OpenOptions::new().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        if file.metadata()?.len() < bytes {
            return Ok(None);
        }
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut left = bytes;
        while left > 0 {
            let next = &mut buffer[..left.min(BUFFER_BYTES as u64) as usize];
            file.read_exact(next)?;
            hasher.update(next);
            left -= next.len() as u64;
        }
        if Digest(*hasher.finalize().as_bytes()) != digest {
            return Ok(None);
        }
        file.set_len(bytes)?;
        file.seek(SeekFrom::Start(bytes))?;
        Ok(Some(HashedFile { file, hasher, buffer: Vec::new() }))
    }

    /// Adds tokens of 2 or 4 bytes each.
    fn push(&mut self, tokens: &[u32], token_bytes: u8) -> io::Result<()> {
        for token in tokens {
            self.buffer.extend_from_slice(&token.to_le_bytes()[..usize::from(token_bytes)]);
        }
        if self.buffer.len() >= BUFFER_BYTES { self.flush() } else { Ok(()) }
    }

    /// Makes all data durable, and returns the digest so far.
    fn sync(&mut self) -> io::Result<Digest> {
        self.flush()?;
        self.file.sync_all()?;
        Ok(Digest(*self.hasher.finalize().as_bytes()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.hasher.update(&self.buffer);
        self.file.write_all(&self.buffer)?;
        self.buffer.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        // Each shard is synced to the disk, which takes time.
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn every_token_but_the_first_is_a_target_once(
            documents in proptest::collection::vec(proptest::collection::vec(0u32..70_000, 0..40), 0..12),
            sequence_tokens in 2usize..9, shard_bytes in 1u64..800, stop in 0usize..12,
        ) {
            let directory = tempfile::tempdir().expect("a temporary directory");
            fs::create_dir(shards_path(directory.path())).expect("writable");
            let mut writer = SplitWriter::new(directory.path(), "split", sequence_tokens, 4, shard_bytes);
            documents.iter().try_for_each(|document| writer.push(document)).expect("writable");
            let shards = writer.finish().expect("writable");

            // Stopped after any document, and resumed from any earlier state: the same files.
            let again = tempfile::tempdir().expect("a temporary directory");
            fs::create_dir(shards_path(again.path())).expect("writable");
            let new = || SplitWriter::new(again.path(), "split", sequence_tokens, 4, shard_bytes);
            let (kept, lost) = (stop.min(documents.len()) / 2, stop.min(documents.len()));
            let mut killed = new();
            documents[..kept].iter().try_for_each(|document| killed.push(document)).expect("writable");
            let state = killed.state().expect("writable");
            documents[kept..lost].iter().try_for_each(|document| killed.push(document)).expect("writable");
            drop(killed);
            let mut resumed = new().resume(state).expect("readable").expect("it is there");
            documents[kept..].iter().try_for_each(|document| resumed.push(document)).expect("writable");
            prop_assert_eq!(&resumed.finish().expect("writable"), &shards);

            let all: Vec<u32> = documents.concat();
            let expected: Vec<u32> = (0..)
                .map_while(|sequence| all.get(sequence * (sequence_tokens - 1)..)?.get(..sequence_tokens))
                .flatten().copied().collect();
            let mut stored = Vec::new();
            for shard in &shards {
                let bytes = fs::read(shard_path(directory.path(), &shard.digest)).expect("the shard is there");
                prop_assert_eq!(Digest::of(&bytes), shard.digest);
                prop_assert_eq!(bytes.len() as u64, shard.sequences * sequence_tokens as u64 * 4);
                prop_assert!(shard.sequences == 1 || bytes.len() as u64 <= shard_bytes);
                stored.extend(bytes.chunks_exact(4).map(|token| u32::from_le_bytes(token.try_into().expect("4 bytes"))));
            }
            prop_assert_eq!(stored, expected);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_is_an_error() {
        let mut shard = HashedFile::create(Path::new("/dev/full")).expect("every Linux has it");
        shard.buffer.push(1);
        assert_eq!(shard.flush().expect_err("it is always full").kind(), io::ErrorKind::StorageFull);
    }
}
