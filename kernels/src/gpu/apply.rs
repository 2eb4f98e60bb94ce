//! A sparse step `θ ← fl(θ − fl(rate · v))`, and taking it back exactly (PROT-18, PROT-22).
//!
//! The reference is [`crate::sparse::apply_reference`]. The step keeps the bits that it writes over, so that undoing it
//! is no arithmetic. With a rate of 1 it takes what was sent out of a residual (PROT-10).

use super::{
    Device, GpuError, Values, array, cubes,
    merge::value,
    number::{add, multiply},
    select::{CHUNK_WORDS, ENTRY_INDEX, UNITS},
    unpack::Decoded,
};
use cubecl::{prelude::*, server::Handle};

/// Steps `theta` at every entry, and hands back what stood there, in the entries' order.
#[cube(launch)]
pub(super) fn apply(
    chunks: &[u32],
    entries: &[u32],
    levels: &[u32],
    theta: &mut [u32],
    previous: &mut [u32],
    rate: u32,
) {
    let chunk = CHUNK_WORDS * CUBE_POS;
    let start = chunks[chunk] as usize;
    let kept = (chunks[chunk + 1usize] >> 16u32) as usize;
    let first = chunks[chunk + 2usize] as usize;
    let codes = levels[CUBE_POS];
    let mut entry = UNIT_POS as usize;
    while entry < kept {
        let word = entries[first + entry];
        let at = start + (word & ENTRY_INDEX) as usize;
        let before = theta[at];
        previous[first + entry] = before;
        theta[at] = add(before, multiply(rate, value(word, codes)) ^ 0x8000_0000u32);
        entry += UNITS;
    }
}

/// Puts back what [`apply`] handed back.
#[cube(launch)]
pub(super) fn undo(chunks: &[u32], entries: &[u32], theta: &mut [u32], previous: &[u32]) {
    let chunk = CHUNK_WORDS * CUBE_POS;
    let start = chunks[chunk] as usize;
    let kept = (chunks[chunk + 1usize] >> 16u32) as usize;
    let first = chunks[chunk + 2usize] as usize;
    let mut entry = UNIT_POS as usize;
    while entry < kept {
        let at = start + (entries[first + entry] & ENTRY_INDEX) as usize;
        theta[at] = previous[first + entry];
        entry += UNITS;
    }
}

/// What stood where a step was made, on the device.
pub struct Previous {
    parts: Vec<Handle>,
}

impl Device {
    /// `θ ← fl(θ − fl(rate · v))` at every entry (PROT-18). Returns what stood there, for [`Device::undo`].
    pub fn apply(&self, update: &Decoded, rate: f32, theta: &mut Values) -> Result<Previous, GpuError> {
        let mut previous = Previous { parts: Vec::with_capacity(update.parts.len()) };
        for (index, part) in self.parts_of(&update.layout, &[theta])?.iter().enumerate() {
            let found = update.parts.get(index).ok_or(GpuError::OtherParts)?;
            let table = self.words(&part.chunk_table(&update.layout, 1));
            let before = self.room(part.entries);
            apply::launch(
                &self.client,
                cubes(part.chunks),
                CubeDim::new_1d(UNITS as u32),
                array(&table, CHUNK_WORDS * part.chunks),
                array(&found.entries, part.entries),
                array(&found.levels, part.chunks),
                array(&theta.parts[index], part.values.len()),
                array(&before, part.entries),
                rate.to_bits(),
            );
            previous.parts.push(before);
        }
        Ok(previous)
    }

    /// Takes back the last step that was made on these values. After it they have the bits that they had before.
    pub fn undo(&self, update: &Decoded, previous: &Previous, theta: &mut Values) -> Result<(), GpuError> {
        for (index, part) in self.parts_of(&update.layout, &[theta])?.iter().enumerate() {
            let (Some(found), Some(before)) = (update.parts.get(index), previous.parts.get(index)) else {
                return Err(GpuError::OtherParts);
            };
            let table = self.words(&part.chunk_table(&update.layout, 1));
            undo::launch(
                &self.client,
                cubes(part.chunks),
                CubeDim::new_1d(UNITS as u32),
                array(&table, CHUNK_WORDS * part.chunks),
                array(&found.entries, part.entries),
                array(&theta.parts[index], part.values.len()),
                array(before, part.entries),
            );
        }
        Ok(())
    }

    /// `e ← fl(e − sent)` at every entry (PROT-10).
    pub fn subtract_sent(&self, update: &Decoded, residual: &mut Values) -> Result<(), GpuError> {
        self.apply(update, 1.0, residual).map(|_| ())
    }
}
