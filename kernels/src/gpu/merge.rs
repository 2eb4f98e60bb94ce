//! Many contributions on one row: sums and hits of one contribution, and the mean of all into the merge's buffer
//! (PROT-17, PROT-18).
//!
//! In the words of the reference, `protocol::merge`: `sum ← fl(sum + fl(scale · level))` in uid order, from zero, and
//! `b ← fl(b + fl(sum / hits))` at the coordinates that some contribution sent, and only there. The buffer is then
//! encoded as a residual is, by [`super::select`].
//!
//! One cube a chunk. A contribution names a coordinate once, so its entries fall in different places and need no
//! order among themselves; the contributions follow each other.

use super::{
    Device, GpuError, Source, Values, array, cubes,
    number::{add, divide, from_count, multiply, value_of},
    parts::places,
    select::{CHUNK_WORDS, ENTRY_HIGH, ENTRY_INDEX, ENTRY_SIGN, UNITS},
    unpack::Decoded,
};
use crate::{encode::Feedback, merge::Rule, wire::Layout};
use cubecl::prelude::*;
use std::ops::Range;

/// Contributions that one merge can have: hits are counted in 16 bits.
const INPUTS_MAX: usize = 0xffff;

/// The signed level that an entry is worth.
#[cube]
pub(super) fn value(entry: u32, codes: u32) -> u32 {
    let mut code = codes & 0xffu32;
    if ((entry >> ENTRY_HIGH) & 1u32) == 1u32 {
        code = codes >> 8u32;
    }
    value_of(code) | (((entry >> ENTRY_SIGN) & 1u32) << 31u32)
}

/// `sums ← fl(sums + fl(scale · level))`, and one more hit, at every entry. `scales` are one a tensor of the part.
#[cube(launch)]
pub(super) fn accumulate(
    chunks: &[u32],
    entries: &[u32],
    levels: &[u32],
    scales: &[u32],
    sums: &mut [u32],
    hits: &mut [u32],
) {
    let chunk = CHUNK_WORDS * CUBE_POS;
    let start = chunks[chunk] as usize;
    let kept = (chunks[chunk + 1usize] >> 16u32) as usize;
    let first = chunks[chunk + 2usize] as usize;
    let scale = scales[chunks[chunk + 3usize] as usize];
    let codes = levels[CUBE_POS];
    let mut entry = UNIT_POS as usize;
    while entry < kept {
        let word = entries[first + entry];
        let at = start + (word & ENTRY_INDEX) as usize;
        sums[at] = add(sums[at], multiply(scale, value(word, codes)));
        hits[at] += 1u32;
        entry += UNITS;
    }
}

/// Adds the mean of all contributions to the buffer. Their entries and levels lie behind each other in uid order;
/// `scales` are `[tensor of the part][contribution]`.
#[cube(launch)]
pub(super) fn mean(
    chunks: &[u32],
    entries: &[u32],
    levels: &[u32],
    scales: &[u32],
    buffer: &mut [u32],
    inputs: u32,
    entry_count: u32,
    chunk_count: u32,
    #[comptime] over_hits: bool,
) {
    let chunk = CHUNK_WORDS * CUBE_POS;
    let unit = UNIT_POS as usize;
    let start = chunks[chunk] as usize;
    let counts = chunks[chunk + 1usize];
    let length = (counts & 0xffffu32) as usize;
    let kept = (counts >> 16u32) as usize;
    let first = chunks[chunk + 2usize] as usize;
    let tensor = chunks[chunk + 3usize] as usize;

    let mut sums = Shared::<[u32]>::new_slice(4096usize);
    // Two counts of 16 bits a word.
    let hits = Shared::<[Atomic<u32>]>::new_slice(2048usize);
    for turn in 0..4096usize / UNITS {
        sums[turn * UNITS + unit] = 0u32;
    }
    for turn in 0..2048usize / UNITS {
        hits[turn * UNITS + unit].store(0u32);
    }
    sync_cube();
    for input in 0..inputs as usize {
        let codes = levels[input * chunk_count as usize + CUBE_POS];
        let scale = scales[tensor * inputs as usize + input];
        let from = input * entry_count as usize + first;
        let mut entry = unit;
        while entry < kept {
            let word = entries[from + entry];
            let at = (word & ENTRY_INDEX) as usize;
            sums[at] = add(sums[at], multiply(scale, value(word, codes)));
            hits[at >> 1usize].fetch_add(1u32 << (16u32 * ((at & 1usize) as u32)));
            entry += UNITS;
        }
        sync_cube();
    }
    for turn in 0..4096usize / UNITS {
        let at = turn * UNITS + unit;
        if at < length {
            let count = (hits[at >> 1usize].load() >> (16u32 * ((at & 1usize) as u32))) & 0xffffu32;
            if count > 0u32 {
                let mut divisor = inputs;
                if comptime!(over_hits) {
                    divisor = count;
                }
                let mean = divide(sums[at], from_count(divisor));
                buffer[start + at] = add(buffer[start + at], mean);
            }
        }
    }
}

impl Device {
    /// `sums ← fl(sums + fl(scale · level))` at every entry of a contribution, `scales` being one a tensor; and a hit more
    /// in `hits`, which is a row of u32.
    pub fn accumulate(
        &self,
        update: &Decoded,
        scales: &[f32],
        sums: &mut Values,
        hits: &mut Values,
    ) -> Result<(), GpuError> {
        let layout = &update.layout;
        if scales.len() != layout.tensors() {
            return Err(GpuError::WrongScales { expected: layout.tensors(), got: scales.len() });
        }
        let parts = self.parts_of(layout, &[sums, hits])?;
        if parts.len() != update.parts.len() {
            return Err(GpuError::OtherParts);
        }
        for (index, (part, found)) in parts.iter().zip(&update.parts).enumerate() {
            let table = self.words(&part.chunk_table(layout, 1));
            let scales = self.client.create_from_slice(f32::as_bytes(&scales[part.tensors.clone()]));
            accumulate::launch(
                &self.client,
                cubes(part.chunks),
                CubeDim::new_1d(UNITS as u32),
                array(&table, CHUNK_WORDS * part.chunks),
                array(&found.entries, part.entries),
                array(&found.levels, part.chunks),
                array(&scales, part.tensors.len()),
                array(&sums.parts[index], part.values.len()),
                array(&hits.parts[index], part.values.len()),
            );
        }
        Ok(())
    }

    /// Merges contributions in uid order into the buffer, and takes the update out of it: the body that
    /// `protocol::merge::merge` gives. `merged` has the tensors of `layout` and the density of the update; `scales` are
    /// `[tensor][contribution]`, as PROT-17 clips them.
    ///
    /// On an error the buffer may be changed in part.
    pub fn merge(
        &self,
        layout: &Layout,
        rule: Rule,
        merged: &Layout,
        bodies: &[&[u8]],
        scales: &[Vec<f32>],
        buffer: &mut Values,
    ) -> Result<Vec<u8>, GpuError> {
        let inputs = bodies.len();
        if inputs == 0 || inputs > INPUTS_MAX {
            return Err(GpuError::Inputs);
        }
        if scales.len() != layout.tensors() || scales.iter().any(|scales| scales.len() != inputs) {
            let got = scales.iter().map(Vec::len).sum();
            return Err(GpuError::WrongScales { expected: layout.tensors() * inputs, got });
        }
        self.parts_of(merged, &[buffer])?;
        let parts = self.parts_of(layout, &[buffer])?;
        let places: Vec<Vec<Range<usize>>> = bodies
            .iter()
            .map(|body| places(layout, body).map_err(|section| GpuError::Rejected { section }))
            .collect::<Result<_, _>>()?;
        let bodies: Vec<(&[u8], &[Range<usize>])> =
            bodies.iter().zip(&places).map(|(body, places)| (*body, &places[..])).collect();
        let page = usize::try_from(self.client.properties().memory.max_page_size).unwrap_or(usize::MAX);
        for (index, part) in parts.iter().enumerate() {
            // Entries of all contributions lie in one buffer, and their bits are counted in u32.
            let entries = part.entries.saturating_mul(inputs);
            if entries.saturating_mul(4) > page || entries > 1 << 28 {
                return Err(GpuError::Inputs);
            }
            let found = self.unpack(layout, part, &bodies);
            self.accept(&part.sections, &found)?;
            let table = self.words(&part.chunk_table(layout, 1));
            let flat: Vec<f32> = scales[part.tensors.clone()].iter().flatten().copied().collect();
            let flat_scales = self.client.create_from_slice(f32::as_bytes(&flat));
            mean::launch(
                &self.client,
                cubes(part.chunks),
                CubeDim::new_1d(UNITS as u32),
                array(&table, CHUNK_WORDS * part.chunks),
                array(&found.entries, entries),
                array(&found.levels, part.chunks * inputs),
                array(&flat_scales, flat.len()),
                array(&buffer.parts[index], part.values.len()),
                inputs as u32,
                part.entries as u32,
                part.chunks as u32,
                rule == Rule::MeanOverHits,
            );
        }
        self.encode(merged, buffer, Source::Nothing, Feedback::Spend)
    }
}
