//! Sums of squares, tensor by tensor, in the written order.
//!
//! The reference is [`crate::norm::norm_squared_reference`]: of a chunk of 4096, the square of value `i` is added to
//! partial sum `i mod 16`; the sixteen are added in ascending order, and then the chunks are. A contribution's own norm
//! (PROT-17) adds its chunks in the same order, so both end in [`tensors`].

use super::{
    Device, GpuError, Values, array, cubes,
    number::{add_wide, square},
    parts::Part,
    select::CHUNK_WORDS,
};
use crate::wire::Layout;
use cubecl::{prelude::*, server::Handle};

/// Units of a cube in [`tensors`].
const TENSOR_UNITS: usize = 32;

/// Partial sums of a chunk, and units of a cube in [`chunks`].
pub(super) const LANES: usize = 16;

/// The sum of the squares of each chunk's values.
#[cube(launch)]
pub(super) fn chunks(chunks: &[u32], values: &[u32], squares: &mut [u64]) {
    let chunk = CHUNK_WORDS * CUBE_POS;
    let unit = UNIT_POS as usize;
    let start = chunks[chunk] as usize;
    let length = (chunks[chunk + 1usize] & 0xffffu32) as usize;
    let mut partial = Shared::<[u64]>::new_slice(LANES);
    let mut sum = 0u64;
    let mut at = unit;
    while at < length {
        sum = add_wide(sum, square(values[start + at]));
        at += LANES;
    }
    partial[unit] = sum;
    sync_cube();
    if unit == 0usize {
        let mut total = 0u64;
        for lane in 0..LANES {
            total = add_wide(total, partial[lane]);
        }
        squares[CUBE_POS] = total;
    }
}

/// Adds each tensor's chunks to what its chunks in the parts before came to. `tensors` are first chunk and chunks, a pair
/// for each tensor of the part.
#[cube(launch)]
pub(super) fn tensors(tensors: &[u32], squares: &[u64], norms: &mut [u64], first: u32, count: u32) {
    if ABSOLUTE_POS < count as usize {
        let at = first as usize + ABSOLUTE_POS;
        let from = tensors[2usize * ABSOLUTE_POS] as usize;
        let to = from + tensors[2usize * ABSOLUTE_POS + 1usize] as usize;
        let mut total = norms[at];
        for chunk in from..to {
            total = add_wide(total, squares[chunk]);
        }
        norms[at] = total;
    }
}

impl Device {
    /// `Σ x²` of each tensor: the bits of [`crate::norm::norm_squared_reference`].
    pub fn norms_squared(&self, layout: &Layout, values: &Values) -> Result<Vec<f64>, GpuError> {
        let norms = self.cleared(2 * layout.tensors());
        for (part, row) in self.parts_of(layout, &[values])?.iter().zip(&values.parts) {
            let table = self.words(&part.chunk_table(layout, 1));
            let squares = self.room(2 * part.chunks);
            chunks::launch(
                &self.client,
                cubes(part.chunks),
                CubeDim::new_1d(LANES as u32),
                array(&table, CHUNK_WORDS * part.chunks),
                array(row, part.values.len()),
                array(&squares, part.chunks),
            );
            self.add_tensors(layout, part, &squares, &norms);
        }
        self.read_wide(&norms)
    }

    /// Adds the chunks of a part to the norms of its tensors.
    pub(super) fn add_tensors(&self, layout: &Layout, part: &Part, squares: &Handle, norms: &Handle) {
        let table = self.words(&part.tensor_table(layout));
        let count = part.tensors.len();
        tensors::launch(
            &self.client,
            cubes(count.div_ceil(TENSOR_UNITS)),
            CubeDim::new_1d(TENSOR_UNITS as u32),
            array(&table, 2 * count),
            array(squares, part.chunks),
            array(norms, layout.tensors()),
            part.tensors.start as u32,
            count as u32,
        );
    }

    pub(super) fn read_wide(&self, handle: &Handle) -> Result<Vec<f64>, GpuError> {
        let words = self.read(handle)?;
        Ok(words
            .chunks_exact(2)
            .map(|pair| f64::from_bits(u64::from(pair[0]) | u64::from(pair[1]) << 32))
            .collect())
    }
}
