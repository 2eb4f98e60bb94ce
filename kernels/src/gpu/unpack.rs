//! Sections read back into entries, and every other spelling refused (PROT-8).
//!
//! The reference is `protocol::contribution::decode`, and what it accepts is accepted here, no more and no less. Here
//! is only a yes or a no for a section: whoever wants the fault named asks the reference.
//!
//! Where a gap ends is not known before it is read, so one unit reads the gaps of a section, and a model has sections
//! enough to keep a GPU's units busy. Signs and magnitudes lie where the number of entries says: one unit a chunk.

use super::{
    Device, GpuError, array, cubes,
    number::{add_wide, square_sum},
    pack::SECTION_WORDS,
    parts::{Part, parts, places},
    select::{CHUNK_WORDS, ENTRY_HIGH, ENTRY_SIGN},
};
use crate::wire::{CHUNK, Layout, SECTION_CHUNKS};
use cubecl::{prelude::*, server::Handle};
use std::ops::Range;

/// Entries that a launch of [`gaps`] reads of a section, or one chunk's. Mesa's CPU devices end any loop after 65,535
/// turns, inner ones counted in, and a GPU that draws a screen should not be held for long.
const TURN_ENTRIES: usize = 16_384;
/// What [`gaps`] remembers of a section from launch to launch: the place reached, in bits, or 0 if it is refused; and sums of
/// quotients for the Rice parameter below, for its own and for the one above.
const STATE_WORDS: usize = 4;

/// Units of a cube in [`gaps`], each with a section of its own.
pub(super) const GAP_UNITS: usize = 32;
/// Units of a cube in [`marks`]: one for each chunk of a section.
pub(super) const MARK_UNITS: usize = 64;

/// The 32 bits from a place on. What lies behind a section's end is read too, and refused when the section ends.
#[cube]
fn ahead(body: &[u32], bit: u32) -> u32 {
    let word = (bit >> 5u32) as usize;
    let pair = (body[word] as u64) | ((body[word + 1usize] as u64) << 32u64);
    (pair >> ((bit & 31u32) as u64)) as u32
}

/// Reads the gaps of the chunks `from..to` of all sections into indices. After a section's last chunk, its state has the
/// place after the gaps.
#[cube(launch)]
pub(super) fn gaps(
    sections: &[u32],
    chunks: &[u32],
    body: &[u32],
    entries: &mut [u32],
    states: &mut [u32],
    count: u32,
    from: u32,
    to: u32,
) {
    if ABSOLUTE_POS < count as usize && from < sections[SECTION_WORDS * ABSOLUTE_POS + 1usize] {
        let section = SECTION_WORDS * ABSOLUTE_POS;
        let first_chunk = sections[section] as usize;
        let chunk_count = sections[section + 1usize];
        let entry_count = sections[section + 3usize];
        let start = sections[section + 4usize] * 8u32;
        let end = start + sections[section + 5usize] * 8u32;

        let rice = ahead(body, start) & 0xffu32;
        let mut good = rice <= 12u32;
        let mut rice_safe = rice;
        let mut below = 0u32;
        if !good {
            rice_safe = 0u32;
        }
        if rice_safe > 0u32 {
            below = rice_safe - 1u32;
        }

        // Sums of the quotients for this parameter and for its neighbours: the shortest one is shorter than the one below
        // and no longer than the one above. The length is convex in the parameter, so two neighbours are enough.
        let state = STATE_WORDS * ABSOLUTE_POS;
        let mut quotients_below = 0u32;
        let mut quotients = 0u32;
        let mut quotients_above = 0u32;
        let mut bit = start + 8u32 + 16u32 * chunk_count;
        if from > 0u32 {
            bit = states[state];
            quotients_below = states[state + 1usize];
            quotients = states[state + 2usize];
            quotients_above = states[state + 3usize];
            if bit == 0u32 {
                good = false;
            }
        }

        let mut stop = to;
        if stop > chunk_count {
            stop = chunk_count;
        }
        let mut chunk = from;
        while good && chunk < stop {
            let mut at = chunks[CHUNK_WORDS * (first_chunk + chunk as usize) + 2usize] as usize;
            let counts = chunks[CHUNK_WORDS * (first_chunk + chunk as usize) + 1usize];
            let length = counts & 0xffffu32;
            let kept = counts >> 16u32;
            let mut next = 0u32;
            let mut entry = 0u32;
            while good && entry < kept {
                let mut ones = (!ahead(body, bit)).trailing_zeros();
                let mut quotient = ones;
                bit += ones;
                while ones == 32u32 && quotient < 4096u32 {
                    ones = (!ahead(body, bit)).trailing_zeros();
                    quotient += ones;
                    bit += ones;
                }
                bit += 1u32;
                // A gap of 4096 or more is outside every chunk; so is what runs over the end of the section.
                if quotient > 4095u32 || bit > end {
                    good = false;
                } else {
                    let low = ahead(body, bit) & ((1u32 << rice_safe) - 1u32);
                    bit += rice_safe;
                    let gap = (quotient << rice_safe) | low;
                    quotients_below += gap >> below;
                    quotients += quotient;
                    quotients_above += gap >> (rice_safe + 1u32);
                    next += gap;
                    if next >= length {
                        good = false;
                    } else {
                        entries[at] = next;
                        at += 1usize;
                        next += 1u32;
                    }
                }
                entry += 1u32;
            }
            if bit > end {
                good = false;
            }
            chunk += 1u32;
        }

        if stop == chunk_count {
            if rice_safe > 0u32 && quotients_below <= quotients + entry_count {
                good = false;
            }
            if rice_safe < 12u32 && quotients > quotients_above + entry_count {
                good = false;
            }
            // Signs and magnitudes end in the section's last byte, with zeros up to its end.
            let used = bit + 2u32 * entry_count;
            if ((used + 7u32) / 8u32) * 8u32 != end {
                good = false;
            } else {
                if used < end && (ahead(body, used) & ((1u32 << (end - used)) - 1u32)) != 0u32 {
                    good = false;
                }
            }
        }
        let mut found = 0u32;
        if good {
            found = bit;
        }
        states[state] = found;
        states[state + 1usize] = quotients_below;
        states[state + 2usize] = quotients;
        states[state + 3usize] = quotients_above;
    }
}

/// Gives the entries their signs and magnitudes, and each chunk its levels and the sum of its squares (PROT-17).
/// `refused` is set for each section that no encoder writes.
#[cube(launch)]
pub(super) fn marks(
    sections: &[u32],
    chunks: &[u32],
    body: &[u32],
    states: &[u32],
    entries: &mut [u32],
    levels: &mut [u32],
    squares: &mut [u64],
    refused: &[Atomic<u32>],
) {
    let section = SECTION_WORDS * CUBE_POS;
    let chunk = UNIT_POS;
    let first_chunk = sections[section] as usize;
    let chunk_count = sections[section + 1usize];
    let entry_count = sections[section + 3usize];
    let start = sections[section + 4usize] * 8u32;
    let end = states[STATE_WORDS * CUBE_POS];
    if chunk == 0u32 && end == 0u32 {
        refused[CUBE_POS].fetch_or(1u32);
    }
    if end != 0u32 && chunk < chunk_count {
        let place = first_chunk + chunk as usize;
        let kept = chunks[CHUNK_WORDS * place + 1usize] >> 16u32;
        let first = chunks[CHUNK_WORDS * place + 2usize] as usize;
        let before = (first - sections[section + 2usize] as usize) as u32;

        let codes = ahead(body, start + 8u32 + 16u32 * chunk) & 0xffffu32;
        let low = codes & 0xffu32;
        let high = codes >> 8u32;
        let mut bad = low > high;
        let mut highs = 0u32;
        let mut entry = 0u32;
        while entry < kept {
            let mut count = kept - entry;
            let mut mask = 0xffff_ffffu32;
            if count < 32u32 {
                mask = (1u32 << count) - 1u32;
            } else {
                count = 32u32;
            }
            let signs = ahead(body, end + before + entry) & mask;
            let magnitudes = ahead(body, end + entry_count + before + entry) & mask;
            // A zero has no sign: not at the lower level if that is zero, at neither if both are.
            let mut zeros = 0u32;
            if low == 0u32 {
                zeros = !magnitudes;
                if high == 0u32 {
                    zeros = 0xffff_ffffu32;
                }
            }
            if (signs & zeros) != 0u32 {
                bad = true;
            }
            highs += magnitudes.count_ones();
            for bit in 0..count {
                let at = first + (entry + bit) as usize;
                let marks =
                    (((signs >> bit) & 1u32) << ENTRY_SIGN) | (((magnitudes >> bit) & 1u32) << ENTRY_HIGH);
                entries[at] = entries[at] | marks;
            }
            entry += 32u32;
        }
        if low == high {
            if highs != 0u32 {
                bad = true;
            }
        } else {
            if highs == 0u32 || highs == kept {
                bad = true;
            }
        }
        if bad {
            refused[CUBE_POS].fetch_or(1u32);
        }
        levels[place] = codes;
        squares[place] = add_wide(square_sum(kept - highs, low), square_sum(highs, high));
    }
}

/// The entries of a contribution or an update, on a device.
pub struct Decoded {
    pub(super) layout: Layout,
    pub(super) parts: Vec<Unpacked>,
    norms: Vec<f64>,
}

impl Decoded {
    /// `Σ (n_lo·lo² + n_hi·hi²)` of each tensor, in f64 and in the order of its chunks (PROT-17).
    pub fn square_norms(&self) -> &[f64] {
        &self.norms
    }
}

/// The entries of one part, of one or of more bodies after each other.
pub(super) struct Unpacked {
    pub entries: Handle,
    pub levels: Handle,
    squares: Handle,
    refused: Handle,
}

impl Device {
    /// Decodes a body onto the device. Refuses exactly what `protocol::contribution::decode` does.
    pub fn decode(&self, layout: &Layout, body: &[u8]) -> Result<Decoded, GpuError> {
        let places = places(layout, body).map_err(|section| GpuError::Rejected { section })?;
        let norms = self.cleared(2 * layout.tensors());
        let mut unpacked = Vec::new();
        for part in &parts(layout, self.part_values) {
            let found = self.unpack(layout, part, &[(body, &places)]);
            self.add_tensors(layout, part, &found.squares, &norms);
            unpacked.push((part.sections.clone(), found));
        }
        let mut parts = Vec::with_capacity(unpacked.len());
        for (sections, found) in unpacked {
            self.accept(&sections, &found)?;
            parts.push(found);
        }
        Ok(Decoded { layout: layout.clone(), parts, norms: self.read_wide(&norms)? })
    }

    /// Unpacks one part of several bodies, which lie behind each other in what comes back.
    pub(super) fn unpack(
        &self,
        layout: &Layout,
        part: &Part,
        bodies: &[(&[u8], &[Range<usize>])],
    ) -> Unpacked {
        let mut bytes = Vec::new();
        let mut table = Vec::with_capacity(part.sections.len() * bodies.len());
        for (body, places) in bodies {
            let places = &places[part.sections.clone()];
            let (first, last) = (places[0].start, places[places.len() - 1].end);
            let shift = bytes.len();
            table.extend(
                places.iter().map(|place| ((place.start - first + shift) as u32, place.len() as u32)),
            );
            bytes.extend_from_slice(&body[first..last]);
        }
        // Whole words, and two more: readers look that far ahead.
        bytes.resize(bytes.len().next_multiple_of(4) + 8, 0);
        let words = bytes.len() / 4;
        let (chunks, entries) = (part.chunks * bodies.len(), part.entries * bodies.len());

        let body = self.client.create_from_slice(&bytes);
        let chunk_table = self.words(&part.chunk_table(layout, bodies.len()));
        let section_table = self.words(&part.section_table(layout, &table));
        let states = self.room(STATE_WORDS * table.len());
        let found = Unpacked {
            entries: self.room(entries),
            levels: self.room(chunks),
            squares: self.room(2 * chunks),
            refused: self.cleared(table.len()),
        };
        let turn = (TURN_ENTRIES / layout.kept(CHUNK)).max(1);
        for from in (0..SECTION_CHUNKS).step_by(turn) {
            gaps::launch(
                &self.client,
                cubes(table.len().div_ceil(GAP_UNITS)),
                CubeDim::new_1d(GAP_UNITS as u32),
                array(&section_table, SECTION_WORDS * table.len()),
                array(&chunk_table, CHUNK_WORDS * chunks),
                array(&body, words),
                array(&found.entries, entries),
                array(&states, STATE_WORDS * table.len()),
                table.len() as u32,
                from as u32,
                (from + turn) as u32,
            );
        }
        marks::launch(
            &self.client,
            cubes(table.len()),
            CubeDim::new_1d(MARK_UNITS as u32),
            array(&section_table, SECTION_WORDS * table.len()),
            array(&chunk_table, CHUNK_WORDS * chunks),
            array(&body, words),
            array(&states, STATE_WORDS * table.len()),
            array(&found.entries, entries),
            array(&found.levels, chunks),
            array(&found.squares, chunks),
            array(&found.refused, table.len()),
        );
        found
    }

    /// Whether no section of a part was refused, `sections` being those of each of the bodies in it.
    pub(super) fn accept(&self, sections: &Range<usize>, found: &Unpacked) -> Result<(), GpuError> {
        match self.read(&found.refused)?.iter().position(|refused| *refused != 0) {
            None => Ok(()),
            Some(at) => Err(GpuError::Rejected { section: sections.start + at % sections.len() }),
        }
    }
}
