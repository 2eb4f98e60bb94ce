//! The wire format of a contribution and of the merged update: the values that are sent, and their bytes
//! (PROT-7, PROT-8).
//!
//! The encoder here is the slow reference that every fast one must equal, and it is normative: equal values give equal
//! bytes on every machine. The decoder accepts exactly the encoder's possible outputs, so that a
//! contribution has one encoding and a digest identifies it. Untrusted bytes use at most a small multiple
//! of their own length in memory, and no more than the schema allows.
//!
//! ```text
//! body     = (length u32 LE ‖ section) per section              how many there are follows from the schema
//! section  = rice u8 ‖ (lo u8 ‖ hi u8) per chunk ‖ bits         at most 64 chunks of one tensor
//! bits     = gaps of all chunks ‖ sign of every entry ‖ magnitude of every entry ‖ zero bits up to a whole byte
//! gap      = (gap >> rice) ones, a zero, then the `rice` low bits  gap = index − previous index − 1; the first: index
//! ```
//!
//! Bits are filled from the least significant one of each byte. A *chunk* is 4096 consecutive values of a tensor, the
//! last one of a tensor shorter; of each the `⌈len · ρ⌉` values largest in magnitude are entries, ties to the lower
//! index. An entry is worth `±lo` or `±hi`, the two levels of its chunk.
//!
//! Each section has its length before it. So one section can be sent while the next is encoded, decoded
//! while the next arrives, and found without decoding those before it (PROT-9).

mod bits;
mod level;
mod schema;

pub use level::{LEVEL_MAX, level_of, value_of};
pub use schema::{Schema, SchemaError, Section, TensorSpec};

use crate::{
    ensure,
    params::{CHUNK_VALUES, Density},
};
use alloc::{string::String, vec::Vec};
use bits::{BitReader, BitWriter};

/// The version of this format, named in every header.
pub const CODEC: u16 = 1;

/// Chunks in a full section: 2^18 values, 1 MiB of them.
pub const SECTION_CHUNKS: usize = 64;

/// Bytes of the length before a section.
const LENGTH_BYTES: usize = 4;

/// The largest Rice parameter: no gap inside a chunk has more than 12 bits.
const RICE_MAX: u8 = 12;

/// A decoded contribution or update: one [`SparseTensor`] per tensor of the schema.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sparse {
    pub tensors: Vec<SparseTensor>,
}

/// The entries of one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseTensor {
    /// Positions in the tensor (row-major), strictly ascending.
    pub positions: Vec<u32>,
    /// The signed level at each position. An entry may be +0; it is sent all the same.
    pub values: Vec<f32>,
    /// `Σ (n_lo·lo² + n_hi·hi²)` over the chunks, in f64 and in their order (PROT-17).
    pub square_norm: f64,
}

/// Reason why values cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    #[error("tensor {tensor}: the value at {position} is not finite")]
    NotFinite { tensor: String, position: u32 },
    #[error("the schema has {expected} values, but there are {got}")]
    WrongLength { expected: usize, got: usize },
    #[error("a density is from 1 to 4096 values in 4096, not {0}")]
    BadDensity(u16),
}

/// Reason why bytes are not a contribution. `tensor` counts the schema's tensors, `chunk` the chunks of
/// that tensor.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("a density is from 1 to 4096 values in 4096, not {0}")]
    BadDensity(u16),
    #[error("the body has {got} bytes, but its sections make {expected} or more")]
    WrongLength { expected: u64, got: u64 },
    #[error("tensor {tensor}: the section at chunk {chunk} ends before its entries do")]
    Truncated { tensor: u32, chunk: u32 },
    #[error("tensor {tensor}: the section at chunk {chunk} goes on after its entries")]
    TrailingBytes { tensor: u32, chunk: u32 },
    #[error("tensor {tensor}: the section at chunk {chunk} has padding bits that are set")]
    PaddingSet { tensor: u32, chunk: u32 },
    #[error(
        "tensor {tensor}: the section at chunk {chunk} has the Rice parameter {got}, where {expected} is shortest"
    )]
    RiceParameter { tensor: u32, chunk: u32, expected: u8, got: u8 },
    #[error("tensor {tensor}: the section at chunk {chunk} has the Rice parameter {got}, above 12")]
    RiceTooLarge { tensor: u32, chunk: u32, got: u8 },
    #[error("tensor {tensor}, chunk {chunk}: an index is outside the chunk")]
    IndexOutOfRange { tensor: u32, chunk: u32 },
    #[error("tensor {tensor}, chunk {chunk}: the lower level is above the higher")]
    LevelsOutOfOrder { tensor: u32, chunk: u32 },
    #[error("tensor {tensor}, chunk {chunk}: only one of two levels is used")]
    UnusedLevel { tensor: u32, chunk: u32 },
    #[error("tensor {tensor}, chunk {chunk}: a magnitude bit is set, but there is only one level")]
    MagnitudeWithoutLevel { tensor: u32, chunk: u32 },
    #[error("tensor {tensor}, chunk {chunk}: a zero has a sign")]
    SignedZero { tensor: u32, chunk: u32 },
}

/// Encodes the largest of `values`, which are all the schema's, in its order (PROT-7).
///
/// # Errors
/// [`EncodeError`] if the number of values or the density is wrong, or a value is not finite.
pub fn encode(schema: &Schema, density: Density, values: &[f32]) -> Result<Vec<u8>, EncodeError> {
    encode_with_feedback(schema, density, &mut values.to_vec())
}

/// Encodes the largest of `residual` and subtracts the decoded values: `e ← fl(e − decode(encode(e)))`
/// (PROT-10).
///
/// Sent values leave the buffer whether or not they are ever merged.
///
/// # Errors
/// As [`encode`]; the buffer is then unchanged.
pub fn encode_with_feedback(
    schema: &Schema,
    density: Density,
    residual: &mut [f32],
) -> Result<Vec<u8>, EncodeError> {
    check_encodable(schema, density, residual)?;
    let mut body = Vec::new();
    for place in schema.sections() {
        let values = &mut residual[place.values];
        let section = SectionEncoder::choose(density, values);
        let start = body.len() + LENGTH_BYTES;
        body.extend_from_slice(&[0; LENGTH_BYTES]);
        section.write(&mut body);
        let length = u32::try_from(body.len() - start).expect("a section is under 1 MiB");
        body[start - LENGTH_BYTES..start].copy_from_slice(&length.to_le_bytes());
        section.subtract_from(density, values);
    }
    Ok(body)
}

/// Decodes the output of [`encode`] for the same schema and density (PROT-8).
///
/// # Errors
/// [`DecodeError`] for all other bytes.
pub fn decode(schema: &Schema, density: Density, body: &[u8]) -> Result<Sparse, DecodeError> {
    ensure!(is_density(density), DecodeError::BadDensity(density.0));
    // Lengths first: nothing is allocated for a section whose bytes cannot hold its entries.
    let sections = split_sections(schema, density, body)?;
    let mut tensors = Vec::with_capacity(schema.tensors().len());
    tensors.extend(schema.ranges().map(|range| {
        let entries = entries_of(density, range.len());
        SparseTensor {
            positions: Vec::with_capacity(entries),
            values: Vec::with_capacity(entries),
            square_norm: 0.0,
        }
    }));
    let mut gaps = Vec::new();
    for (place, bytes) in schema.sections().zip(sections) {
        decode_section(bytes, &place, density, &mut gaps, &mut tensors[place.tensor as usize])?;
    }
    Ok(Sparse { tensors })
}

impl Schema {
    /// Returns the maximum length of a body in bytes: the limit of a fetcher before it has received a byte
    /// (PROT-8).
    pub fn largest_body(&self, density: Density) -> usize {
        self.sections()
            .map(|place| largest_section(density, place.values.len()).saturating_add(LENGTH_BYTES))
            .fold(0, usize::saturating_add)
    }

    /// Returns the number of entries in a contribution: the values that are sent.
    pub fn entries(&self, density: Density) -> usize {
        self.ranges().map(|range| entries_of(density, range.len())).sum()
    }
}

/// Encoder of one section.
#[derive(Default)]
struct SectionEncoder {
    /// Codes of `lo` and `hi`, a pair per chunk.
    levels: Vec<[u8; 2]>,
    /// Distance of each entry from the one before it in its chunk, less one.
    gaps: Vec<u16>,
    /// Bit 0: the sign of an entry. Bit 1: its magnitude.
    marks: Vec<u8>,
}

const SIGN: u8 = 1;
const HIGH: u8 = 2;

impl SectionEncoder {
    /// Chooses entries and levels of every chunk. `values` are finite, and at most one section.
    fn choose(density: Density, values: &[f32]) -> SectionEncoder {
        let mut section = SectionEncoder::default();
        for chunk in values.chunks(CHUNK_VALUES) {
            let kept = section.keep_largest(density.kept(chunk.len()), chunk);
            section.quantise(&kept);
        }
        section
    }

    /// Returns the `count` values of `chunk` largest in magnitude. Appends the gaps between them to `gaps`.
    fn keep_largest(&mut self, count: usize, chunk: &[f32]) -> Vec<f32> {
        // The magnitudes of finite floats are in the order of their bits.
        let mut magnitudes: Vec<u32> = chunk.iter().map(|value| magnitude(*value)).collect();
        let (_, smallest, larger) = magnitudes.select_nth_unstable(chunk.len() - count);
        let smallest = *smallest;
        let mut ties = count - larger.iter().filter(|magnitude| **magnitude > smallest).count();

        let mut kept = Vec::with_capacity(count);
        let mut next = 0;
        for (index, value) in chunk.iter().enumerate() {
            let is_tie = magnitude(*value) == smallest;
            if magnitude(*value) < smallest || (is_tie && ties == 0) {
                continue;
            }
            ties -= usize::from(is_tie);
            self.gaps.push(u16::try_from(index - next).expect("a gap is shorter than a chunk"));
            kept.push(*value);
            next = index + 1;
        }
        kept
    }

    /// Splits the kept values at their mean magnitude, and computes the level of each half.
    fn quantise(&mut self, kept: &[f32]) {
        let total: f64 = kept.iter().map(|value| f64::from(value.abs())).sum();
        let threshold = total / kept.len() as f64;
        let is_high = |value: f32| f64::from(value.abs()) > threshold;

        let (mut sums, mut counts) = ([0.0f64; 2], [0u32; 2]);
        for value in kept {
            let class = usize::from(is_high(*value));
            sums[class] += f64::from(value.abs());
            counts[class] += 1;
        }
        let class_level = |class: usize| level_of(sums[class] / f64::from(counts[class]));
        let levels = match counts {
            [_, 0] => [class_level(0); 2],
            [0, _] => [class_level(1); 2],
            _ => [class_level(0), class_level(1)],
        };

        let two = levels[0] != levels[1];
        self.marks.extend(kept.iter().map(|value| {
            let high = two && is_high(*value);
            let negative = *value < 0.0 && levels[usize::from(high)] != 0;
            (u8::from(negative) * SIGN) | (u8::from(high) * HIGH)
        }));
        self.levels.push(levels);
    }

    fn write(&self, out: &mut Vec<u8>) {
        let rice = rice_parameter(&self.gaps);
        out.push(rice);
        out.extend_from_slice(self.levels.as_flattened());
        let mut bits = BitWriter::new(out);
        for gap in &self.gaps {
            bits.put_rice(u32::from(*gap), u32::from(rice));
        }
        for which in [SIGN, HIGH] {
            self.marks.iter().for_each(|mark| bits.put(u32::from(mark & which != 0), 1));
        }
    }

    /// Subtracts the entries that [`SectionEncoder::choose`] chose from the same values.
    fn subtract_from(&self, density: Density, values: &mut [f32]) {
        let (mut gaps, mut marks) = (&self.gaps[..], &self.marks[..]);
        for (chunk, levels) in values.chunks_mut(CHUNK_VALUES).zip(&self.levels) {
            let levels = levels.map(value_of);
            let kept = density.kept(chunk.len());
            let mut next = 0;
            for (gap, mark) in gaps[..kept].iter().zip(&marks[..kept]) {
                let index = next + usize::from(*gap);
                let level = levels[usize::from(mark & HIGH != 0)];
                chunk[index] -= if mark & SIGN != 0 { -level } else { level };
                next = index + 1;
            }
            (gaps, marks) = (&gaps[kept..], &marks[kept..]);
        }
    }
}

/// Decodes one section and appends it to the entries of its tensor. `gaps` is a buffer that sections share.
fn decode_section(
    bytes: &[u8],
    place: &Section,
    density: Density,
    gaps: &mut Vec<u16>,
    entries: &mut SparseTensor,
) -> Result<(), DecodeError> {
    let (tensor, chunk) = (place.tensor, place.first_chunk());
    let (rice, rest) = (bytes[0], &bytes[1..]);
    let (levels, stream) = rest.split_at(2 * place.values.len().div_ceil(CHUNK_VALUES));
    ensure!(rice <= RICE_MAX, DecodeError::RiceTooLarge { tensor, chunk, got: rice });
    let mut bits = BitReader::new(stream);
    decode_positions(&mut bits, rice, place, density, gaps, &mut entries.positions)?;
    let expected = rice_parameter(gaps);
    ensure!(rice == expected, DecodeError::RiceParameter { tensor, chunk, expected, got: rice });

    let mut signs = bits.clone();
    bits.skip(gaps.len());
    for ((chunk, length), codes) in numbered_chunks(place).zip(levels.as_chunks().0) {
        decode_values((tensor, chunk), density.kept(length), *codes, &mut signs, &mut bits, entries)?;
    }
    ensure!(!bits.is_past_end(), DecodeError::Truncated { tensor, chunk });
    match bits.rest() {
        (_, true) => Err(DecodeError::TrailingBytes { tensor, chunk }),
        (0, false) => Ok(()),
        (_, false) => Err(DecodeError::PaddingSet { tensor, chunk }),
    }
}

/// Decodes the positions of a section's entries, and leaves `bits` at their signs.
fn decode_positions(
    bits: &mut BitReader<'_>,
    rice: u8,
    place: &Section,
    density: Density,
    gaps: &mut Vec<u16>,
    positions: &mut Vec<u32>,
) -> Result<(), DecodeError> {
    let (tensor, mut base) = (place.tensor, place.start);
    gaps.clear();
    for (chunk, length) in numbered_chunks(place) {
        let mut next = 0;
        for _ in 0..density.kept(length) {
            let index = bits
                .take_rice(u32::from(rice), CHUNK_VALUES as u32)
                .map(|gap| next + gap)
                .filter(|index| (*index as usize) < length)
                .ok_or(DecodeError::IndexOutOfRange { tensor, chunk })?;
            gaps.push((index - next) as u16);
            positions.push(base + index);
            next = index + 1;
        }
        ensure!(!bits.is_past_end(), DecodeError::Truncated { tensor, chunk: place.first_chunk() });
        base += length as u32;
    }
    Ok(())
}

/// Decodes the values of a chunk's `kept` entries. `codes` are those of its two levels.
fn decode_values(
    (tensor, chunk): (u32, u32),
    kept: usize,
    codes: [u8; 2],
    signs: &mut BitReader<'_>,
    magnitudes: &mut BitReader<'_>,
    entries: &mut SparseTensor,
) -> Result<(), DecodeError> {
    ensure!(codes[0] <= codes[1], DecodeError::LevelsOutOfOrder { tensor, chunk });
    let levels = codes.map(value_of);
    let mut high_count = 0;
    for _ in 0..kept {
        let (negative, high) = (signs.bit(), usize::from(magnitudes.bit()));
        ensure!(!(negative && codes[high] == 0), DecodeError::SignedZero { tensor, chunk });
        entries.values.push(if negative { -levels[high] } else { levels[high] });
        high_count += high;
    }
    if codes[0] == codes[1] {
        ensure!(high_count == 0, DecodeError::MagnitudeWithoutLevel { tensor, chunk });
    } else {
        ensure!(0 < high_count && high_count < kept, DecodeError::UnusedLevel { tensor, chunk });
    }
    entries.square_norm += square_sum(kept - high_count, levels[0]) + square_sum(high_count, levels[1]);
    Ok(())
}

/// Returns the number in its tensor, and the length, of each chunk of a section.
fn numbered_chunks(place: &Section) -> impl Iterator<Item = (u32, usize)> {
    (place.first_chunk()..).zip(chunk_lengths(place.values.len()))
}

/// Returns the bytes of each section. All sections must be present and long enough for their entries,
/// without trailing bytes.
fn split_sections<'a>(
    schema: &Schema,
    density: Density,
    body: &'a [u8],
) -> Result<Vec<&'a [u8]>, DecodeError> {
    let got = body.len() as u64;
    let mut sections = Vec::new();
    let mut rest = body;
    for place in schema.sections() {
        let read = (got - rest.len() as u64) + LENGTH_BYTES as u64;
        let (length, after) =
            rest.split_first_chunk().ok_or(DecodeError::WrongLength { expected: read, got })?;
        let length = u32::from_le_bytes(*length);
        ensure!(
            (length as usize) >= smallest_section(density, place.values.len()),
            DecodeError::Truncated { tensor: place.tensor, chunk: place.first_chunk() }
        );
        let expected = read + u64::from(length);
        let (section, after) =
            after.split_at_checked(length as usize).ok_or(DecodeError::WrongLength { expected, got })?;
        sections.push(section);
        rest = after;
    }
    ensure!(rest.is_empty(), DecodeError::WrongLength { expected: got - rest.len() as u64, got });
    Ok(sections)
}

/// Returns the smallest parameter that gives the least length.
///
/// The length is convex in the parameter: each step up saves `Σ ⌈(gap >> r) / 2⌉` bits, ever fewer, and
/// costs one bit per gap. So the first step that saves nothing ends the search.
fn rice_parameter(gaps: &[u16]) -> u8 {
    let quotients = |rice: u8| gaps.iter().map(|gap| u32::from(gap >> rice)).sum::<u32>() as usize;
    let mut at = quotients(0);
    for rice in 0..RICE_MAX {
        let above = quotients(rice + 1);
        if at <= above + gaps.len() {
            return rice;
        }
        at = above;
    }
    RICE_MAX
}

/// Returns the maximum length of a section of `values` values, in bytes.
///
/// With parameter `r` the quotients of a chunk's gaps add up to at most `(len − kept) >> r`, and the
/// encoder uses the best parameter.
fn largest_section(density: Density, values: usize) -> usize {
    let chunks = values.div_ceil(CHUNK_VALUES);
    let entries = entries_of(density, values);
    let longest_gaps = |rice: u8| {
        let quotients: usize =
            chunk_lengths(values).map(|length| length.saturating_sub(density.kept(length)) >> rice).sum();
        quotients + entries * (1 + usize::from(rice))
    };
    let gap_bits = (0..=RICE_MAX).map(longest_gaps).min().unwrap_or(0);
    1 + 2 * chunks + (gap_bits + 2 * entries).div_ceil(8)
}

/// Returns the minimum length: every gap is zero.
fn smallest_section(density: Density, values: usize) -> usize {
    1 + 2 * values.div_ceil(CHUNK_VALUES) + (3 * entries_of(density, values)).div_ceil(8)
}

/// Returns the number of entries of `values` values of one tensor.
pub(crate) fn entries_of(density: Density, values: usize) -> usize {
    values / CHUNK_VALUES * density.kept(CHUNK_VALUES) + density.kept(values % CHUNK_VALUES)
}

fn chunk_lengths(values: usize) -> impl Iterator<Item = usize> {
    (0..values).step_by(CHUNK_VALUES).map(move |start| CHUNK_VALUES.min(values - start))
}

fn square_sum(count: usize, level: f32) -> f64 {
    count as f64 * (f64::from(level) * f64::from(level))
}

fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

fn is_density(density: Density) -> bool {
    (1..=CHUNK_VALUES).contains(&usize::from(density.0))
}

pub(crate) fn check_encodable(schema: &Schema, density: Density, values: &[f32]) -> Result<(), EncodeError> {
    ensure!(is_density(density), EncodeError::BadDensity(density.0));
    ensure!(
        values.len() == schema.values(),
        EncodeError::WrongLength { expected: schema.values(), got: values.len() }
    );
    for (tensor, range) in schema.tensors().iter().zip(schema.ranges()) {
        if let Some(at) = values[range].iter().position(|value| !value.is_finite()) {
            let position = u32::try_from(at).unwrap_or(u32::MAX);
            return Err(EncodeError::NotFinite { tensor: tensor.name.clone(), position });
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests;
