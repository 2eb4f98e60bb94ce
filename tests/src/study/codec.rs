//! Codecs that a contribution could have had, in slow and plain code: what is grouped, how much is kept, what a kept
//! value becomes, and how many bits all of it takes.
//!
//! [`Codec::ours`] is the protocol's (PROT-7), and the study checks while it runs that both give the same.

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

/// Which values of a tensor compete with each other for a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Groups {
    /// So many consecutive ones.
    Consecutive(usize),
    /// Square tiles of a matrix with sides this long, cut at its edges; a vector is cut in runs as long as a tile has values.
    Tiles(usize),
}

/// What a kept value is sent as. Every one has a sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Itself.
    Exact,
    /// The mean magnitude of its chunk.
    Mean(LevelFormat),
    /// One of two levels: the means of those above the chunk's mean magnitude, and of the others.
    Two(LevelFormat),
    /// One of two levels, cut where the squared error is least.
    TwoBest(LevelFormat),
    /// One of four levels: each class of [`Values::Two`] cut at its own mean.
    Four(LevelFormat),
}

impl Codec {
    /// The protocol's own (PROT-7).
    pub fn ours(density: Density) -> Codec {
        Codec { groups: Groups::Consecutive(CHUNK_VALUES), density, values: Values::Two(LevelFormat::OURS) }
    }
}

/// What was sent, and what it took.
#[derive(Clone, Debug, Default)]
pub struct Encoded {
    pub sparse: Sparse,
    pub bits: Bits,
    pub fidelity: Fidelity,
    /// Gaps of each chunk, section by section, for [`index_code`].
    pub sections: Vec<SectionGaps>,
}

/// Where the entries of a section lie.
#[derive(Clone, Debug, Default)]
pub struct SectionGaps {
    /// Values of each chunk, and the gaps before its entries.
    pub chunks: Vec<(usize, Vec<u32>)>,
}

/// Bits of a whole contribution, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Bits {
    pub values: u64,
    pub index: u64,
    pub sign: u64,
    pub magnitude: u64,
    pub levels: u64,
    /// Lengths and Rice parameters of sections, and padding: what a small model pays too much for.
    pub framing: u64,
}

impl Bits {
    /// Without framing, which a large model does not notice.
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

/// Sums of squares: how near what was sent is to what was meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fidelity {
    /// Of all values.
    pub all: f64,
    /// Of the kept ones.
    pub kept: f64,
    /// Of the kept ones' errors.
    pub error: f64,
}

impl Fidelity {
    /// Relative L2 error of the kept values.
    pub fn relative_error(&self) -> f64 {
        (self.error / self.kept).sqrt()
    }

    /// Share of the squared norm that the kept values have.
    pub fn captured(&self) -> f64 {
        self.kept / self.all
    }

    /// Relative L2 distance of what was sent from all that there was.
    pub fn distance(&self) -> f64 {
        ((self.all - self.kept + self.error) / self.all).sqrt()
    }

    pub fn add(&mut self, other: &Fidelity) {
        self.all += other.all;
        self.kept += other.kept;
        self.error += other.error;
    }
}

/// A codec for one schema: where each chunk's values lie is worked out once.
pub struct Coder {
    codec: Codec,
    tensors: Vec<TensorChunks>,
}

struct TensorChunks {
    start: usize,
    /// Positions in the tensor, chunk by chunk.
    chunks: Vec<Vec<u32>>,
}

impl Coder {
    pub fn new(schema: &Schema, codec: Codec) -> Coder {
        let tensors = schema.ranges().zip(schema.tensors()).map(|(range, tensor)| TensorChunks {
            start: range.start,
            chunks: codec.groups.of(&tensor.shape),
        });
        Coder { codec, tensors: tensors.collect() }
    }

    /// Encodes `values`, all the schema's and finite.
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
            for places in section {
                let chunk: Vec<f32> =
                    places.iter().map(|place| values[tensor.start + *place as usize]).collect();
                let kept = largest(&chunk, self.codec.density.kept(chunk.len()));
                let meant: Vec<f32> = kept.iter().map(|index| chunk[*index]).collect();
                let sent = self.codec.values.quantise(&meant, &mut bits);

                encoded.fidelity.add(&fidelity(&chunk, &meant, &sent.values));
                square_norm += sent.square_norm;
                entries.extend(kept.iter().zip(&sent.values).map(|(index, value)| (places[*index], *value)));
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
            // Length and Rice parameter, and the rest of the last byte.
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

    /// The positions of each chunk of a tensor of this shape, in the order in which its gaps are counted.
    pub fn of(self, shape: &[u32]) -> Vec<Vec<u32>> {
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

/// Indices of the `count` values largest in magnitude, ascending; ties to the lower index.
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

fn fidelity(all: &[f32], meant: &[f32], sent: &[f32]) -> Fidelity {
    let square = |values: &[f32]| values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
    let error =
        meant.iter().zip(sent).map(|(meant, sent)| (f64::from(*meant) - f64::from(*sent)).powi(2)).sum();
    Fidelity { all: square(all), kept: square(meant), error }
}

/// The kept values of one chunk as their receiver has them.
struct Sent {
    values: Vec<f32>,
    /// From the levels, as PROT-17 has it.
    square_norm: f64,
}

impl Values {
    fn quantise(self, meant: &[f32], bits: &mut Bits) -> Sent {
        bits.values += meant.len() as u64;
        bits.sign += meant.len() as u64;
        let magnitudes: Vec<f64> = meant.iter().map(|value| f64::from(value.abs())).collect();
        // Values above a cut are in the next class; the class says which level a value gets.
        let (format, classes, magnitude_bits) = match self {
            Values::Exact => {
                bits.magnitude += 31 * meant.len() as u64;
                let square_norm = magnitudes.iter().map(|magnitude| magnitude * magnitude).sum();
                return Sent { values: meant.to_vec(), square_norm };
            }
            Values::Mean(format) => (format, vec![0; meant.len()], 0),
            Values::Two(format) => (format, classes(&magnitudes, &[mean(&magnitudes)]), 1),
            Values::TwoBest(format) => (format, classes(&magnitudes, &[best_cut(&magnitudes)]), 1),
            Values::Four(format) => {
                let middle = mean(&magnitudes);
                let (high, low): (Vec<f64>, Vec<f64>) = magnitudes.iter().partition(|value| **value > middle);
                (format, classes(&magnitudes, &[mean(&low), middle, mean(&high)]), 2)
            }
        };
        bits.magnitude += magnitude_bits * meant.len() as u64;
        bits.levels += format.bits() << magnitude_bits;

        let mut levels = Vec::new();
        let mut square_norm = 0.0;
        for class in 0..1usize << magnitude_bits {
            let of_class: Vec<f64> = magnitudes
                .iter()
                .zip(&classes)
                .filter(|(_, of)| **of == class)
                .map(|(value, _)| *value)
                .collect();
            let level = if of_class.is_empty() { 0.0 } else { format.round(mean(&of_class)) };
            square_norm += of_class.len() as f64 * (f64::from(level) * f64::from(level));
            levels.push(level);
        }
        let signed = |(value, class): (&f32, &usize)| {
            let level = levels[*class];
            if *value < 0.0 && level != 0.0 { -level } else { level }
        };
        Sent { values: meant.iter().zip(&classes).map(signed).collect(), square_norm }
    }
}

/// In which class each magnitude is: above how many of the ascending `cuts` it lies.
fn classes(magnitudes: &[f64], cuts: &[f64]) -> Vec<usize> {
    magnitudes.iter().map(|value| cuts.iter().filter(|cut| value > *cut).count()).collect()
}

/// In the order given. Nothing for nothing.
fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// The magnitude up to which values belong to the lower of two classes, where the squared error is least.
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
        // The squared error is the sum of squares less this.
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
    fn the_order_of_tiles_is_a_permutation() {
        for shape in [&[130u32, 70][..], &[64, 64], &[1, 5], &[5000], &[200, 64]] {
            for groups in [Groups::Tiles(64), Groups::Tiles(16), Groups::Consecutive(4096)] {
                let chunks = groups.of(shape);
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
        let tiles = Groups::Tiles(2).of(&[3, 5]);
        assert_eq!(
            tiles,
            [vec![0, 1, 5, 6], vec![2, 3, 7, 8], vec![4, 9], vec![10, 11], vec![12, 13], vec![14]]
        );
        assert_eq!(Groups::Tiles(64).of(&[128, 64]), Groups::Consecutive(4096).of(&[128, 64]));
    }

    #[test]
    fn our_codec_is_the_protocols() {
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
    fn more_levels_and_better_cuts_are_nearer() {
        let schema = schema(&[&[256, 64]]);
        let values = values(3, schema.values());
        let error = |of: fn(LevelFormat) -> Values| {
            let codec = Codec { values: of(LevelFormat::F32), ..Codec::ours(Density(64)) };
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
    fn the_best_cut_is_where_a_search_finds_it() {
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
