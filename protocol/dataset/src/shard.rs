//! Writes the tokens of one split as shards, each named by its digest.
//!
//! Documents follow one another without a gap, and the stream is cut into sequences: each starts at the last
//! token of the one before, which was only a target there. So every token of the stream but the first is a
//! target once. What is left at the end and fills no sequence is dropped.

use crate::{
    files::{shard_path, shards_path},
    manifest::ShardInfo,
};
use protocol::Digest;
use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Bytes gathered before they are hashed and written.
const BUFFER_BYTES: usize = 1 << 20;

pub(crate) struct SplitWriter {
    directory: PathBuf,
    /// The file being written has this name until its digest is known.
    unfinished: PathBuf,
    sequence_tokens: usize,
    token_bytes: u8,
    sequences_per_shard: u64,
    /// Tokens that fill no sequence yet.
    tokens: Vec<u32>,
    shard: Option<Unfinished>,
    shards: Vec<ShardInfo>,
}

struct Unfinished {
    file: File,
    hasher: blake3::Hasher,
    buffer: Vec<u8>,
    sequences: u64,
}

impl SplitWriter {
    /// `name` tells two writers of one directory apart. `token_bytes` is 2 or 4, and no shard has more than
    /// `shard_bytes`, or one sequence.
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

    /// Closes the last shard and tells all of them.
    pub fn finish(mut self) -> io::Result<Vec<ShardInfo>> {
        self.close()?;
        Ok(self.shards)
    }

    fn write(&mut self, sequence: &[u32]) -> io::Result<()> {
        let shard = match &mut self.shard {
            Some(shard) => shard,
            none => none.insert(Unfinished::create(&self.unfinished)?),
        };
        for token in sequence {
            shard.buffer.extend_from_slice(&token.to_le_bytes()[..usize::from(self.token_bytes)]);
        }
        shard.sequences += 1;
        if shard.buffer.len() >= BUFFER_BYTES {
            shard.flush()?;
        }
        if shard.sequences == self.sequences_per_shard {
            self.close()?;
        }
        Ok(())
    }

    fn close(&mut self) -> io::Result<()> {
        let Some(mut shard) = self.shard.take() else { return Ok(()) };
        shard.flush()?;
        shard.file.sync_all()?;
        let digest = Digest(*shard.hasher.finalize().as_bytes());
        fs::rename(&self.unfinished, shard_path(&self.directory, &digest))?;
        self.shards.push(ShardInfo { digest, sequences: shard.sequences });
        Ok(())
    }
}

impl Unfinished {
    fn create(path: &Path) -> io::Result<Unfinished> {
        let file = File::create(path)?;
        Ok(Unfinished { file, hasher: blake3::Hasher::new(), buffer: Vec::new(), sequences: 0 })
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
        // Each shard is written through to the disk, which takes its time.
        #![proptest_config(ProptestConfig::with_cases(12))]

        #[test]
        fn every_token_but_the_first_is_a_target_once(
            documents in proptest::collection::vec(proptest::collection::vec(0u32..70_000, 0..40), 0..12),
            sequence_tokens in 2usize..9, shard_bytes in 1u64..800,
        ) {
            let directory = tempfile::tempdir().expect("a temporary directory");
            fs::create_dir(shards_path(directory.path())).expect("writable");
            let mut writer = SplitWriter::new(directory.path(), "split", sequence_tokens, 4, shard_bytes);
            documents.iter().try_for_each(|document| writer.push(document)).expect("writable");
            let shards = writer.finish().expect("writable");

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
        let mut shard = Unfinished::create(Path::new("/dev/full")).expect("every Linux has it");
        shard.buffer.push(1);
        assert_eq!(shard.flush().expect_err("it is always full").kind(), io::ErrorKind::StorageFull);
    }
}
