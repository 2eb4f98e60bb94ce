//! Serialisation of the optimiser's state.
//!
//! The state is private to a miner, but must survive a crash bit for bit (PROT-10). Its format does not depend on the
//! engine, so every engine can read the state of any other.
//!
//! Layout: magic (8 bytes, the last is the version), schema digest (32), steps (`u64`), the moments tensor by tensor
//! in schema order (`f32`: mean, then square where there is one), BLAKE3 digest of all that (32). Numbers are
//! little-endian.

use crate::Blocks;
use model::Optimiser;
use protocol::Digest;
use std::io::{self, Read, Write};

/// Number of values that are converted at a time.
const PIECE: usize = 1 << 16;

const fn magic(optimiser: Optimiser) -> &'static [u8; 8] {
    match optimiser {
        Optimiser::AdamW => b"mtl-adm\x01",
        Optimiser::Muon => b"mtl-muo\x01",
    }
}

/// Reason why a saved state cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("this is no optimiser state, or one of another release")]
    NotOurs,
    #[error("the optimiser state is damaged: the digest does not match after {len} bytes")]
    Damaged { len: usize },
    #[error("the optimiser state belongs to another model (schema {got}, not {expected})")]
    OtherModel { expected: Digest, got: Digest },
    #[error(
        "the optimiser state is {got:?}'s, but the recipe's optimiser is {expected:?}: change the recipe, or start without the state"
    )]
    OtherOptimiser { expected: Optimiser, got: Optimiser },
    #[error("the optimiser state could not be read: {kind}")]
    Unreadable { kind: io::ErrorKind },
    #[error("the optimiser state could not be copied to the device: {why}")]
    Device { why: String },
}

/// Writes the state.
///
/// # Errors
/// If `sink` or the device of `moments` fails.
pub(crate) fn write(
    optimiser: Optimiser,
    schema: &Digest,
    steps: u64,
    moments: Blocks<'_>,
    sink: &mut dyn Write,
) -> io::Result<()> {
    let mut hasher = blake3::Hasher::new();
    let mut put = |bytes: &[u8]| {
        hasher.update(bytes);
        sink.write_all(bytes)
    };
    put(magic(optimiser))?;
    put(&schema.0)?;
    put(&steps.to_le_bytes())?;
    write_values(moments, &mut put)?;
    sink.write_all(hasher.finalize().as_bytes())
}

/// Passes the values of all blocks to `put` as little-endian bytes.
pub(crate) fn write_values(
    blocks: Blocks<'_>,
    put: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    for block in blocks {
        for values in block.map_err(io::Error::other)?.chunks(PIECE) {
            bytes.clear();
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
            put(&bytes)?;
        }
    }
    Ok(())
}

/// Reads exactly the bytes of [`write`]: the steps and the `count` values of the moments.
///
/// # Errors
/// If the state is damaged, or not of this optimiser and schema, or `source` fails.
pub(crate) fn read(
    optimiser: Optimiser,
    schema: &Digest,
    count: usize,
    source: &mut dyn Read,
) -> Result<(u64, Vec<f32>), StateError> {
    let mut source = Hashed { source, hasher: blake3::Hasher::new(), read: 0 };
    let mut first = [0; 8];
    match source.fill(&mut first) {
        Ok(()) => check_magic(&first, optimiser)?,
        Err(StateError::Damaged { .. }) => return Err(StateError::NotOurs),
        Err(error) => return Err(error),
    }
    let mut got = Digest::default();
    source.fill(&mut got.0)?;
    if got != *schema {
        return Err(StateError::OtherModel { expected: *schema, got });
    }
    let mut steps = [0; 8];
    source.fill(&mut steps)?;
    let moments = source.values(count)?;
    let expected = *source.hasher.finalize().as_bytes();
    let mut digest = [0; 32];
    source.fill(&mut digest)?;
    if digest != expected {
        return Err(source.damaged());
    }
    Ok((u64::from_le_bytes(steps), moments))
}

fn check_magic(first: &[u8; 8], expected: Optimiser) -> Result<(), StateError> {
    let got = [Optimiser::AdamW, Optimiser::Muon].into_iter().find(|optimiser| magic(*optimiser) == first);
    match got {
        Some(got) if got == expected => Ok(()),
        Some(got) => Err(StateError::OtherOptimiser { expected, got }),
        None => Err(StateError::NotOurs),
    }
}

/// A source whose bytes are counted and hashed as they are read.
struct Hashed<'a> {
    source: &'a mut dyn Read,
    hasher: blake3::Hasher,
    read: usize,
}

impl Read for Hashed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.source.read(bytes)?;
        self.hasher.update(&bytes[..count]);
        self.read += count;
        Ok(count)
    }
}

impl Hashed<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        self.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged(),
            kind => StateError::Unreadable { kind },
        })
    }

    fn values(&mut self, len: usize) -> Result<Vec<f32>, StateError> {
        let mut values = Vec::with_capacity(len);
        let mut piece = vec![0; PIECE.min(len) * 4];
        while values.len() < len {
            let bytes = &mut piece[..PIECE.min(len - values.len()) * 4];
            self.fill(bytes)?;
            values.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        }
        Ok(values)
    }

    fn damaged(&self) -> StateError {
        StateError::Damaged { len: self.read }
    }
}
