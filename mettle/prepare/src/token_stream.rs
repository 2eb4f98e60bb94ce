//! The tokens of one split in one part: one file, without the cuts into sequences and shards, which depend on the
//! parts before.

use crate::shard::{HashedFile, SplitWriter, TokenWriter};
use dataset::durable::directory_of;
use protocol::Digest;
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    path::{Path, PathBuf},
};

/// Bytes copied at once.
const COPY_BYTES: u64 = 1 << 18;

pub(crate) struct TokenStream {
    path: PathBuf,
    token_bytes: u8,
    /// None before the first token.
    file: Option<HashedFile>,
    stored: StoredTokens,
}

/// The tokens of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoredTokens {
    tokens: u64,
    /// Of their bytes; of nothing where there is no token and no file.
    digest: Digest,
}

impl TokenStream {
    /// `token_bytes` is 2 or 4.
    pub fn new(directory: &Path, name: &str, token_bytes: u8) -> TokenStream {
        let path = directory.join(name);
        TokenStream { path, token_bytes, file: None, stored: StoredTokens::default() }
    }
}

impl TokenWriter for TokenStream {
    type State = StoredTokens;

    fn resume(mut self, state: StoredTokens) -> io::Result<Option<TokenStream>> {
        if state.tokens > 0 {
            let bytes = state.tokens * u64::from(self.token_bytes);
            self.file = HashedFile::resume(&self.path, bytes, state.digest)?;
            if self.file.is_none() {
                return Ok(None);
            }
        } else if !directory_of(&self.path).is_dir() {
            return Ok(None);
        }
        Ok(Some(TokenStream { stored: state, ..self }))
    }

    fn state(&mut self) -> io::Result<StoredTokens> {
        if let Some(file) = &mut self.file {
            self.stored.digest = file.sync()?;
        }
        Ok(self.stored.clone())
    }

    fn push(&mut self, tokens: &[u32]) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(HashedFile::create(&self.path)?),
        };
        file.push(tokens, self.token_bytes)?;
        self.stored.tokens += tokens.len() as u64;
        Ok(())
    }
}

/// Copies a [`TokenStream`] into shards, some tokens at a time.
pub(crate) struct TokenCopy {
    path: PathBuf,
    token_bytes: u8,
    copied: u64,
    hasher: blake3::Hasher,
}

impl TokenCopy {
    pub fn new(directory: &Path, name: &str, token_bytes: u8) -> TokenCopy {
        let path = directory.join(name);
        TokenCopy { path, token_bytes, copied: 0, hasher: blake3::Hasher::new() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The next `tokens` tokens, some at a time. The file is open only during the call, because there is one for each
    /// part. The outer error is that of reading, the inner one that of writing.
    pub fn copy(
        &mut self,
        tokens: u64,
        to: &mut SplitWriter,
        mut copied: impl FnMut(u64),
    ) -> io::Result<io::Result<()>> {
        if tokens == 0 {
            return Ok(Ok(()));
        }
        let width = u64::from(self.token_bytes);
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.copied * width))?;
        let mut left = tokens * width;
        let mut buffer = vec![0; left.min(COPY_BYTES) as usize];
        let mut tokens = Vec::new();
        while left > 0 {
            let bytes = &mut buffer[..left.min(COPY_BYTES) as usize];
            file.read_exact(bytes)?;
            self.hasher.update(bytes);
            tokens.clear();
            tokens.extend(bytes.chunks_exact(width as usize).map(|token| {
                let mut wide = [0; 4];
                wide[..token.len()].copy_from_slice(token);
                u32::from_le_bytes(wide)
            }));
            if let Err(error) = to.push(&tokens) {
                return Ok(Err(error));
            }
            left -= bytes.len() as u64;
            self.copied += tokens.len() as u64;
            copied(bytes.len() as u64);
        }
        Ok(Ok(()))
    }

    /// Whether the copied tokens are exactly these.
    pub fn is(&self, stored: &StoredTokens) -> bool {
        let digest =
            if self.copied > 0 { Digest(*self.hasher.finalize().as_bytes()) } else { Digest::default() };
        *stored == StoredTokens { tokens: self.copied, digest }
    }
}
