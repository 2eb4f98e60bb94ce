//! Layout of a body's sections and values of its level codes (PROT-7, PROT-9), for encoder and decoder.
//!
//! `protocol::contribution` specifies the format.

use std::ops::Range;

/// Number of values in a full chunk.
pub const CHUNK: usize = 4096;
/// Number of chunks in a full section.
pub const SECTION_CHUNKS: usize = 64;
/// Number of values in a full section: 1 MiB.
pub const SECTION: usize = SECTION_CHUNKS * CHUNK;
/// Largest Rice parameter.
pub const RICE_MAX: u8 = 12;
/// Number of bytes of the length before a section.
pub const LENGTH_BYTES: usize = 4;

/// Tensors of a flat row, and the density.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// End of each tensor in the flat row.
    ends: Vec<usize>,
    density: u16,
    sections: Vec<Section>,
}

/// A part of one tensor that is encoded independently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    pub tensor: usize,
    /// Offset of the section in its tensor.
    pub start: u32,
    /// Range of its values in the flat row: from 1 to [`SECTION`] values.
    pub values: Range<usize>,
}

/// Reason why a layout is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("the density is {0} of 4096, but must be from 1 to 4096")]
    BadDensity(u16),
    #[error("tensor {tensor} has no values, or more than 2^32 - 1")]
    BadTensor { tensor: usize },
    #[error("there are more values than this machine can count")]
    TooLarge,
}

impl Layout {
    /// Returns the layout of tensors of these lengths, one after the other, with `density` of 4096 values sent.
    ///
    /// # Errors
    /// If `density` is not from 1 to 4096, a tensor is empty or longer than 2^32 − 1, or the total overflows.
    pub fn new(lengths: &[usize], density: u16) -> Result<Layout, LayoutError> {
        if !(1..=CHUNK).contains(&usize::from(density)) {
            return Err(LayoutError::BadDensity(density));
        }
        let mut ends = Vec::with_capacity(lengths.len());
        let mut sections = Vec::new();
        let mut end = 0usize;
        for (tensor, &length) in lengths.iter().enumerate() {
            if length == 0 || u32::try_from(length).is_err() {
                return Err(LayoutError::BadTensor { tensor });
            }
            let begin = end;
            end =
                end.checked_add(length).filter(|end| *end <= usize::MAX / 16).ok_or(LayoutError::TooLarge)?;
            ends.push(end);
            sections.extend((begin..end).step_by(SECTION).map(|start| Section {
                tensor,
                start: (start - begin) as u32,
                values: start..end.min(start + SECTION),
            }));
        }
        Ok(Layout { ends, density, sections })
    }

    /// Returns the number of values of all tensors.
    pub fn values(&self) -> usize {
        self.ends.last().copied().unwrap_or(0)
    }

    pub fn tensors(&self) -> usize {
        self.ends.len()
    }

    /// Returns the range of each tensor in the flat row.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = Range<usize>> + Clone {
        let start = |index: usize| index.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.ends.iter().enumerate().map(move |(index, end)| start(index)..*end)
    }

    /// Returns the sections in the order of the body.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns the number of values sent per 4096.
    pub fn density(&self) -> u16 {
        self.density
    }

    /// Returns the number of values sent of a chunk of `length` values: `⌈length · density / 4096⌉`.
    pub fn kept(&self, length: usize) -> usize {
        kept(self.density, length)
    }

    /// Returns the number of values sent of `values` in a row that starts with a chunk.
    pub fn entries(&self, values: usize) -> usize {
        values / CHUNK * self.kept(CHUNK) + self.kept(values % CHUNK)
    }
}

/// Returns `⌈length · density / 4096⌉` for a chunk of `length` values.
pub fn kept(density: u16, length: usize) -> usize {
    (length * usize::from(density)).div_ceil(CHUNK)
}

impl Section {
    pub fn chunks(&self) -> usize {
        self.values.len().div_ceil(CHUNK)
    }
}

/// Returns the value of a level code: an unsigned float with 5 bits of exponent, bias 28, and 3 of mantissa.
pub fn value_of(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> 3), u32::from(code & 7));
    if exponent == 0 {
        mantissa as f32 / 1_073_741_824.0
    } else {
        f32::from_bits((exponent + 127 - 28) << 23 | mantissa << 20)
    }
}

/// Returns the code of the level nearest to a magnitude, ties to the even code. The magnitude must be finite and not
/// negative.
pub fn level_of(magnitude: f64) -> u8 {
    // 2^-27 is the smallest normal level. Below, levels are multiples of 2^-30.
    if magnitude < 1.0 / 134_217_728.0 {
        let steps = magnitude * 1_073_741_824.0;
        let below = steps as u8;
        let past = steps - f64::from(below);
        return below + u8::from(past > 0.5 || (past == 0.5 && below % 2 == 1));
    }
    let bits = magnitude.to_bits();
    let dropped = f64::MANTISSA_DIGITS - 1 - 3;
    let (above, half) = (bits >> dropped, 1 << (dropped - 1));
    let rest = bits & ((1 << dropped) - 1);
    let rounded = above + u64::from(rest > half || (rest == half && above % 2 == 1));
    u8::try_from(rounded - (u64::from(1023u32 - 28) << 3)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::{
        contribution::{self, Schema, TensorSpec},
        params::Density,
    };

    proptest! {
        #[test]
        fn the_layout_is_that_of_the_schema(
            lengths in prop::collection::vec(1usize..700_000, 1..6),
            density in 1u16..=4096,
            some in 0usize..5000,
        ) {
            let row = |(index, length): (usize, &usize)| TensorSpec { name: index.to_string(), shape: vec![*length as u32] };
            let schema = Schema::new(lengths.iter().enumerate().map(row).collect()).unwrap();
            let layout = Layout::new(&lengths, density).unwrap();
            let theirs = schema.sections().map(|section| (section.tensor as usize, section.start, section.values));
            let ours = layout.sections().iter().map(|section| (section.tensor, section.start, section.values.clone()));
            prop_assert!(ours.eq(theirs));
            prop_assert!(layout.ranges().eq(schema.ranges()));
            prop_assert_eq!(layout.kept(some), Density(density).kept(some));
            let entries: usize = layout.ranges().map(|range| layout.entries(range.len())).sum();
            prop_assert_eq!(entries, schema.entries(Density(density)));
        }

        #[test]
        fn levels_are_those_of_the_format(magnitude in prop_oneof![0.0..16.0f64, 0.0..1e-7f64, 0.0..1e38f64]) {
            prop_assert_eq!(level_of(magnitude), contribution::level_of(magnitude));
        }
    }

    #[test]
    fn every_code_stands_for_the_same_level_and_back() {
        for code in 0..=u8::MAX {
            assert_eq!(value_of(code).to_bits(), contribution::value_of(code).to_bits());
            assert_eq!(level_of(f64::from(value_of(code))), code);
        }
    }

    #[test]
    fn what_is_no_layout_is_refused() {
        assert_eq!(Layout::new(&[1], 0), Err(LayoutError::BadDensity(0)));
        assert_eq!(Layout::new(&[1], 4097), Err(LayoutError::BadDensity(4097)));
        assert_eq!(Layout::new(&[1, 0], 64), Err(LayoutError::BadTensor { tensor: 1 }));
        assert_eq!(Layout::new(&[1 << 32], 64), Err(LayoutError::BadTensor { tensor: 0 }));
        assert_eq!(Layout::new(&[u32::MAX as usize; 3], 64).unwrap().values(), 3 * u32::MAX as usize);
    }
}
