//! Reference implementations of alternative codecs of a contribution: grouping, density, quantisation, size in bits.
//!
//! [`Codec::ours`] is the protocol's codec (PROT-7). The study checks while it runs that both give the same result.

use super::{index_code, level::LevelFormat};
use protocol::{
    contribution::{SECTION_CHUNKS, Schema, Sparse, SparseTensor},
    params::{CHUNK_VALUES, Density},
};
use serde::Serialize;
use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Codec {
    pub groups: Groups,
    pub density: Density,
    pub values: Values,
}

/// The groups of a tensor's values; each group keeps its largest values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// Groups of this many consecutive values.
    Consecutive(usize),
    /// Square tiles of a matrix with this side length, cut off at its edges. A vector is divided into runs with as
    /// many values as a tile.
    Tiles(usize),
}

/// The encoding of a kept value, besides its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// The value itself.
    Exact,
    /// The mean magnitude of its chunk.
    Mean(LevelFormat),
    /// One of two levels: the mean of the magnitudes above the chunk's mean, and the mean of the others.
    Two(LevelFormat),
    /// One of two levels, with the cut at the least squared error.
    TwoBest(LevelFormat),
    /// One of four levels: each class of [`Values::Two`] is divided at its own mean.
    Four(LevelFormat),
}

impl Codec {
    /// The protocol's codec (PROT-7).
    pub fn ours(density: Density) -> Codec {
        Codec { groups: Groups::Consecutive(CHUNK_VALUES), density, values: Values::Two(LevelFormat::OURS) }
    }
}

/// A decoded contribution, its size and its error.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    pub sparse: Sparse,
    pub bits: Bits,
    pub fidelity: Fidelity,
    /// The gaps of each section, for [`index_code`].
    pub sections: Vec<SectionGaps>,
}

/// The positions of a section's entries.
#[derive(Clone, Debug, Default)]
pub struct SectionGaps {
    /// For each chunk, its number of values and the gaps before its entries.
    pub chunks: Vec<(usize, Vec<u32>)>,
}

/// The size of a contribution in bits, by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bits {
    pub values: u64,
    pub index: u64,
    pub sign: u64,
    pub magnitude: u64,
    pub levels: u64,
    /// Lengths and Rice parameters of sections, and padding: a large share in a small model.
    pub framing: u64,
}

impl Bits {
    /// The size without framing, which is negligible in a large model.
    pub fn payload(&self) -> u64 {
        self.index + self.sign + self.magnitude + self.levels
    }

    pub fn all(&self) -> u64 {
        self.payload() + self.framing
    }

    pub fn per_value(&self) -> f64 {
        self.payload() as f64 / self.values as f64
    }

    pub fn add(&mut self, other: &Bits) {
        self.values += other.values;
        self.index += other.index;
        self.sign += other.sign;
        self.magnitude += other.magnitude;
        self.levels += other.levels;
        self.framing += other.framing;
    }
}

/// Sums of squares of original values and of errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fidelity {
    /// Sum over all original values.
    pub all: f64,
    /// Sum over the kept original values.
    pub kept: f64,
    /// Sum over the errors of the kept values.
    pub error: f64,
}

impl Fidelity {
    /// Relative L2 error of the kept values.
    pub fn relative_error(&self) -> f64 {
        (self.error / self.kept).sqrt()
    }

    /// Share of the squared norm in the kept values.
    pub fn captured(&self) -> f64 {
        self.kept / self.all
    }

    /// Relative L2 distance between sent and original values.
    pub fn distance(&self) -> f64 {
        ((self.all - self.kept + self.error) / self.all).sqrt()
    }

    pub fn add(&mut self, other: &Fidelity) {
        self.all += other.all;
        self.kept += other.kept;
        self.error += other.error;
    }
}

/// A codec for one schema, with precomputed positions of each chunk's values.
pub struct Coder {
    codec: Codec,
    tensors: Vec<TensorChunks>,
}

struct TensorChunks {
    start: usize,
    /// The positions in the tensor of each chunk's values.
    chunks: Vec<Vec<u32>>,
}

impl Coder {
    pub fn new(schema: &Schema, codec: Codec) -> Coder {
        let tensors = schema.ranges().zip(schema.tensors()).map(|(range, tensor)| TensorChunks {
            start: range.start,
            chunks: codec.groups.positions(&tensor.shape),
        });
        Coder { codec, tensors: tensors.collect() }
    }

    /// Encodes `values`: finite, and as many as the schema has.
    pub fn encode(&self, values: &[f32]) -> Encoded {
        let mut encoded = Encoded::default();
        for tensor in &self.tensors {
            let sent = self.encode_tensor(tensor, values, &mut encoded);
            encoded.sparse.tensors.push(sent);
        }
        encoded
    }

    fn encode_tensor(&self, tensor: &TensorChunks, values: &[f32], encoded: &mut Encoded) -> SparseTensor {
        let mut entries: Vec<(u32, f32)> = Vec::new();
        let mut square_norm = 0.0;
        let chunks_in_section = SECTION_CHUNKS * CHUNK_VALUES / self.codec.groups.chunk_values();
        for section in tensor.chunks.chunks(chunks_in_section) {
            let mut gaps = SectionGaps::default();
            let mut bits = Bits::default();
            for positions in section {
                let chunk: Vec<f32> =
                    positions.iter().map(|position| values[tensor.start + *position as usize]).collect();
                let kept = largest(&chunk, self.codec.density.kept(chunk.len()));
                let original: Vec<f32> = kept.iter().map(|index| chunk[*index]).collect();
                let sent = self.codec.values.quantise(&original, &mut bits);

                encoded.fidelity.add(&fidelity(&chunk, &original, &sent.values));
                square_norm += sent.square_norm;
                entries
                    .extend(kept.iter().zip(&sent.values).map(|(index, value)| (positions[*index], *value)));
                let mut next = 0;
                gaps.chunks.push((
                    chunk.len(),
                    kept.iter()
                        .map(|index| {
                            let gap = u32::try_from(index - next).expect("a tensor has under 2^32 values");
                            next = index + 1;
                            gap
                        })
                        .collect(),
                ));
            }
            bits.index = index_code::rice_by_section(&gaps);
            // Length, Rice parameter, and padding of the last byte.
            bits.framing = 40 + bits.payload().next_multiple_of(8) - bits.payload();
            encoded.bits.add(&bits);
            encoded.sections.push(gaps);
        }
        entries.sort_unstable_by_key(|(position, _)| *position);
        let (positions, values) = entries.into_iter().unzip();
        SparseTensor { positions, values, square_norm }
    }
}

impl Groups {
    fn chunk_values(self) -> usize {
        match self {
            Groups::Consecutive(values) => values,
            Groups::Tiles(side) => side * side,
        }
    }

    /// The positions of each chunk of a tensor with this shape, in the order of its gaps.
    pub fn positions(self, shape: &[u32]) -> Vec<Vec<u32>> {
        let values: u32 = shape.iter().product();
        match (self, shape) {
            (Groups::Tiles(side), &[rows, columns]) => {
                let side = u32::try_from(side).expect("a tile is small");
                let blocks =
                    |length: u32| (0..length).step_by(side as usize).map(move |at| at..length.min(at + side));
                let tile = |rows: std::ops::Range<u32>, across: std::ops::Range<u32>| {
                    rows.flat_map(|row| across.clone().map(move |column| row * columns + column)).collect()
                };
                blocks(rows)
                    .flat_map(|rows| blocks(columns).map(move |across| tile(rows.clone(), across)))
                    .collect()
            }
            _ => {
                let positions: Vec<u32> = (0..values).collect();
                positions.chunks(self.chunk_values()).map(<[u32]>::to_vec).collect()
            }
        }
    }
}

/// Ascending indices of the `count` values with the largest magnitudes; ties to the lower index.
fn largest(chunk: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..chunk.len()).collect();
    let key = |index: &usize| (std::cmp::Reverse(chunk[*index].abs().to_bits()), *index);
    if count < chunk.len() {
        order.select_nth_unstable_by_key(count, key);
        order.truncate(count);
    }
    order.sort_unstable();
    order
}

fn fidelity(all: &[f32], original: &[f32], sent: &[f32]) -> Fidelity {
    let square = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let error = original
        .iter()
        .zip(sent)
        .map(|(original, sent)| (f64::from(*original) - f64::from(*sent)).powi(2))
        .sum();
    Fidelity { all: square(all), kept: square(original), error }
}

/// The decoded values of one chunk.
struct Sent {
    values: Vec<f32>,
    /// Computed from the levels (PROT-17).
    square_norm: f64,
}

impl Values {
    fn quantise(self, original: &[f32], bits: &mut Bits) -> Sent {
        bits.values += original.len() as u64;
        bits.sign += original.len() as u64;
        let magnitudes: Vec<f64> = original.iter().map(|value| f64::from(value.abs())).collect();
        // A value above a cut is in the next class; each class has one level.
        let (format, classes, magnitude_bits) = match self {
            Values::Exact => {
                bits.magnitude += 31 * original.len() as u64;
                let square_norm = magnitudes.iter().map(|magnitude| magnitude * magnitude).sum();
                return Sent { values: original.to_vec(), square_norm };
            }
            Values::Mean(format) => (format, vec![0; original.len()], 0),
            Values::Two(format) => (format, classes(&magnitudes, &[mean(&magnitudes)]), 1),
            Values::TwoBest(format) => (format, classes(&magnitudes, &[best_cut(&magnitudes)]), 1),
            Values::Four(format) => {
                let middle = mean(&magnitudes);
                let (high, low): (Vec<f64>, Vec<f64>) = magnitudes.iter().partition(|value| **value > middle);
                (format, classes(&magnitudes, &[mean(&low), middle, mean(&high)]), 2)
            }
        };
        bits.magnitude += magnitude_bits * original.len() as u64;
        bits.levels += format.bits() << magnitude_bits;

        let mut levels = Vec::new();
        let mut square_norm = 0.0;
        for class in 0..1usize << magnitude_bits {
            let members: Vec<f64> = magnitudes
                .iter()
                .zip(&classes)
                .filter(|(_, other)| **other == class)
                .map(|(value, _)| *value)
                .collect();
            let level = if members.is_empty() { 0.0 } else { format.round(mean(&members)) };
            square_norm += members.len() as f64 * (f64::from(level) * f64::from(level));
            levels.push(level);
        }
        let signed = |(value, class): (&f32, &usize)| {
            let level = levels[*class];
            if *value < 0.0 && level != 0.0 { -level } else { level }
        };
        Sent { values: original.iter().zip(&classes).map(signed).collect(), square_norm }
    }
}

/// The class of each magnitude: the number of `cuts` below it.
fn classes(magnitudes: &[f64], cuts: &[f64]) -> Vec<usize> {
    magnitudes.iter().map(|value| cuts.iter().filter(|cut| value > *cut).count()).collect()
}

/// The mean, summed in order; 0 for no values.
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The largest magnitude of the lower of two classes, divided at the least squared error.
fn best_cut(magnitudes: &[f64]) -> f64 {
    let mut sorted = magnitudes.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let total: f64 = sorted.iter().sum();
    let mut below = 0.0;
    let mut best = (f64::NEG_INFINITY, 0.0);
    for (index, value) in sorted.iter().enumerate() {
        below += value;
        let (low, high) = ((index + 1) as f64, (sorted.len() - index - 1) as f64);
        let above = if high > 0.0 { (total - below).powi(2) / high } else { 0.0 };
        // The squared error is the sum of squares minus this.
        let explained = below.powi(2) / low + above;
        if explained > best.0 {
            best = (explained, *value);
        }
    }
    best.1
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Groups::Consecutive(values) => write!(f, "{values} consecutive"),
            Groups::Tiles(side) => write!(f, "{side}×{side} tiles"),
        }
    }
}

impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Values::Exact => f.write_str("exact f32"),
            Values::Mean(format) => write!(f, "sign × mean, {format}"),
            Values::Two(format) => write!(f, "sign + 1 bit, {format}"),
            Values::TwoBest(format) => write!(f, "sign + 1 bit, best cut, {format}"),
            Values::Four(format) => write!(f, "sign + 2 bits, {format}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::random::Random;
    use protocol::contribution::{self, TensorSpec};

    fn schema(shapes: &[&[u32]]) -> Schema {
        let tensor = |(index, shape): (usize, &&[u32])| TensorSpec {
            name: format!("tensor{index}"),
            shape: shape.to_vec(),
        };
        Schema::new(shapes.iter().enumerate().map(tensor).collect()).unwrap()
    }

    fn values(seed: u64, count: usize) -> Vec<f32> {
        let mut random = Random::new(seed);
        (0..count).map(|_| 1e-3 * random.normal() as f32).collect()
    }

    #[test]
    fn the_groups_of_a_tensor_contain_every_position_once() {
        for shape in [&[130u32, 70][..], &[64, 64], &[1, 5], &[5000], &[200, 64]] {
            for groups in [Groups::Tiles(64), Groups::Tiles(16), Groups::Consecutive(4096)] {
                let chunks = groups.positions(shape);
                let mut positions: Vec<u32> = chunks.concat();
                positions.sort_unstable();
                assert_eq!(
                    positions,
                    (0..shape.iter().product()).collect::<Vec<_>>(),
                    "{groups} of {shape:?}"
                );
                assert!(chunks.iter().all(|chunk| (1..=groups.chunk_values()).contains(&chunk.len())));
            }
        }
    }

    #[test]
    fn a_tile_is_a_square_of_the_matrix() {
        let tiles = Groups::Tiles(2).positions(&[3, 5]);
        assert_eq!(
            tiles,
            [vec![0, 1, 5, 6], vec![2, 3, 7, 8], vec![4, 9], vec![10, 11], vec![12, 13], vec![14]]
        );
        assert_eq!(Groups::Tiles(64).positions(&[128, 64]), Groups::Consecutive(4096).positions(&[128, 64]));
    }

    #[test]
    fn our_codec_equals_the_protocols() {
        let schema = schema(&[&[130, 70], &[64], &[5000], &[600, 500]]);
        for (seed, density) in [64, 32, 512, 4096, 1].map(Density).into_iter().enumerate() {
            let mut values = values(seed as u64, schema.values());
            values[..200].fill(0.25);
            values[9100..9164].fill(-0.0);
            let encoded = Coder::new(&schema, Codec::ours(density)).encode(&values);
            let body = contribution::encode(&schema, density, &values).unwrap();
            let decoded = contribution::decode(&schema, density, &body).unwrap();
            assert_eq!(encoded.bits.all(), 8 * body.len() as u64);
            assert_eq!(encoded.sparse, decoded);
        }
    }

    #[test]
    fn more_levels_and_better_cuts_have_a_smaller_error() {
        let schema = schema(&[&[256, 64]]);
        let values = values(3, schema.values());
        let error = |values_in: fn(LevelFormat) -> Values| {
            let codec = Codec { values: values_in(LevelFormat::F32), ..Codec::ours(Density(64)) };
            Coder::new(&schema, codec).encode(&values).fidelity.relative_error()
        };
        let (one, two, best, four) =
            (error(Values::Mean), error(Values::Two), error(Values::TwoBest), error(Values::Four));
        assert!(four < best && best <= two && two < one, "{four} {best} {two} {one}");
        let exact = Codec { values: Values::Exact, ..Codec::ours(Density(64)) };
        let exact = Coder::new(&schema, exact).encode(&values);
        assert_eq!(exact.fidelity.error, 0.0);
        assert!(exact.fidelity.captured() > 0.05 && exact.fidelity.captured() < 0.2);
    }

    #[test]
    fn the_best_cut_equals_that_of_an_exhaustive_search() {
        let magnitudes: Vec<f64> = values(5, 40).iter().map(|value| f64::from(value.abs())).collect();
        let error = |cut: f64| -> f64 {
            let (high, low): (Vec<f64>, Vec<f64>) = magnitudes.iter().partition(|value| **value > cut);
            let square =
                |values: &[f64]| values.iter().map(|value| (value - mean(values)).powi(2)).sum::<f64>();
            square(&low) + square(&high)
        };
        let least = magnitudes.iter().map(|cut| error(*cut)).fold(f64::INFINITY, f64::min);
        assert!((error(best_cut(&magnitudes)) - least).abs() <= 1e-12 * least);
    }
}
