//! A reference implementation of SparseLoCo's contribution, after the paper (arXiv 2508.15706) and its public code.
//!
//! A matrix is divided into tiles whose sides are the largest divisors up to 64, a vector into runs. Each tile keeps
//! its `k` largest values, an even number. The kept values of a tensor share one quantiser of four bins, which span
//! three standard deviations on both sides of their mean; a bin's value is the mean of its members. An index takes 12
//! bits, a value two.

use protocol::{
    contribution::{Schema, Sparse, SparseTensor},
    params::{CHUNK_VALUES, Density},
};

/// Longest side of a tile, and of a run.
const SIDE: u32 = 64;
const BINS: usize = 4;
/// The range of all bins, in standard deviations.
const RANGE: f64 = 6.0;
const INDEX_BITS: u64 = 12;
const VALUE_BITS: u64 = 2;
/// Shift, scale, and one value per bin, as `f32`.
const TENSOR_BITS: u64 = 32 * (2 + BINS as u64);

/// The published format for one schema.
pub struct Published {
    tensors: Vec<Tiles>,
}

struct Tiles {
    start: usize,
    /// Positions of each tile in the tensor, and the number of kept values.
    tiles: Vec<(Vec<u32>, usize)>,
}

impl Published {
    pub fn new(schema: &Schema, density: Density) -> Published {
        let tensors = schema.ranges().zip(schema.tensors()).map(|(range, tensor)| Tiles {
            start: range.start,
            tiles: tiles(&tensor.shape)
                .into_iter()
                .map(|positions| {
                    let share = (positions.len() * usize::from(density.0)).div_ceil(CHUNK_VALUES);
                    let kept = share.next_multiple_of(2).min(positions.len());
                    (positions, kept)
                })
                .collect(),
        });
        Published { tensors: tensors.collect() }
    }

    /// Returns the decoded form of `values`, and the size of its encoding in bits.
    pub fn encode(&self, values: &[f32]) -> (Sparse, u64) {
        let mut bits = 0;
        let tensors = self.tensors.iter().map(|tensor| {
            let mut entries: Vec<(u32, f32)> = Vec::new();
            let mut order = Vec::new();
            for (positions, kept) in &tensor.tiles {
                let value = |position: u32| values[tensor.start + position as usize];
                order.clear();
                order.extend_from_slice(positions);
                if *kept < order.len() {
                    let largest_first =
                        |position: &u32| (std::cmp::Reverse(value(*position).abs().to_bits()), *position);
                    order.select_nth_unstable_by_key(*kept, largest_first);
                    order.truncate(*kept);
                }
                entries.extend(order.iter().map(|position| (*position, value(*position))));
            }
            entries.sort_unstable_by_key(|(position, _)| *position);
            bits += entries.len() as u64 * (INDEX_BITS + VALUE_BITS) + TENSOR_BITS;
            let (positions, mut values): (Vec<u32>, Vec<f32>) = entries.into_iter().unzip();
            quantise(&mut values);
            let square_norm = values.iter().map(|value| f64::from(*value).powi(2)).sum();
            SparseTensor { positions, values, square_norm }
        });
        (Sparse { tensors: tensors.collect() }, bits)
    }
}

/// Returns the positions of each tile of a tensor.
fn tiles(shape: &[u32]) -> Vec<Vec<u32>> {
    let side =
        |length: u32| (1..=SIDE.min(length)).rev().find(|side| length.is_multiple_of(*side)).unwrap_or(1);
    match *shape {
        [rows, columns] => {
            let (down, across) = (side(rows), side(columns));
            let tile = |row: u32, column: u32| -> Vec<u32> {
                (row..row + down)
                    .flat_map(|row| (column..column + across).map(move |column| row * columns + column))
                    .collect()
            };
            (0..rows)
                .step_by(down as usize)
                .flat_map(|row| (0..columns).step_by(across as usize).map(move |column| (row, column)))
                .map(|(row, column)| tile(row, column))
                .collect()
        }
        _ => {
            let length: u32 = shape.iter().product();
            let run = side(length);
            (0..length).step_by(run as usize).map(|start| (start..start + run).collect()).collect()
        }
    }
}

/// Replaces each value by the mean of its bin.
fn quantise(values: &mut [f32]) {
    let mean = |values: &mut dyn Iterator<Item = f64>| {
        let (sum, count) = values.fold((0.0, 0u32), |(sum, count), value| (sum + value, count + 1));
        if count == 0 { 0.0 } else { sum / f64::from(count) }
    };
    let shift = mean(&mut values.iter().map(|value| f64::from(*value)));
    let spread = values.iter().map(|value| (f64::from(*value) - shift).powi(2)).sum::<f64>();
    let deviation = (spread / (values.len().max(2) - 1) as f64).sqrt();
    let scale = if deviation > 0.0 { RANGE * deviation / BINS as f64 } else { 1.0 };
    let bin = |value: f32| {
        let at = ((f64::from(value) - shift) / scale + BINS as f64 / 2.0).round_ties_even();
        at.clamp(0.0, (BINS - 1) as f64) as usize
    };
    let bin_means: [f64; BINS] = std::array::from_fn(|which| {
        mean(&mut values.iter().filter(|value| bin(**value) == which).map(|value| f64::from(*value) - shift))
    });
    for value in values {
        *value = (bin_means[bin(*value)] + shift) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::contribution::TensorSpec;

    #[test]
    fn tiles_cover_a_tensor_once_and_their_sides_divide_it() {
        for (shape, count, length) in [
            (vec![258, 32], 6, 43 * 32),
            (vec![128, 128], 4, 4096),
            (vec![88, 32], 2, 44 * 32),
            (vec![96], 2, 48),
        ] {
            let tiles = tiles(&shape);
            assert_eq!(tiles.len(), count, "{shape:?}");
            assert!(tiles.iter().all(|tile| tile.len() == length), "{shape:?}");
            let mut all: Vec<u32> = tiles.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..shape.iter().product()));
        }
        assert_eq!(
            tiles(&[128, 128])[1][64],
            128 + 64,
            "the second tile's second row starts in the middle of a matrix row"
        );
    }

    #[test]
    fn the_quantiser_has_its_centre_at_the_third_bin() {
        // Mean 0, deviation √(20/7), so a bin is 2.535 wide: −3 is in the second bin and 3 in the last.
        let mut values = [-3.0, -1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 3.0];
        quantise(&mut values);
        let middle = 0.0;
        assert_eq!(values, [-3.0, middle, middle, middle, middle, middle, middle, 3.0]);

        // A single value has no deviation and is unchanged.
        let mut one = [0.25];
        quantise(&mut one);
        assert_eq!(one, [0.25]);
        quantise(&mut []);
    }

    #[test]
    fn each_tile_keeps_an_even_number_of_its_largest_values() {
        let schema = Schema::new(vec![TensorSpec { name: "m".into(), shape: vec![128, 64] }]).unwrap();
        let published = Published::new(&schema, Density(64));
        let values: Vec<f32> = (0..128 * 64).map(|at| ((at * 31) as f32).sin()).collect();
        let (sent, bits) = published.encode(&values);
        let positions = &sent.tensors[0].positions;
        assert_eq!(positions.iter().filter(|position| **position < 4096).count(), 64);
        assert_eq!(positions.len(), 128);
        assert_eq!(bits, 128 * 14 + 192);
        let smallest = positions.iter().map(|at| values[*at as usize].abs()).fold(f32::MAX, f32::min);
        assert!(smallest > 0.99);

        let odd = Published::new(&schema, Density(1));
        assert_eq!(odd.encode(&values).0.tensors[0].positions.len(), 4, "one of 4096 is rounded up to two");
    }
}
