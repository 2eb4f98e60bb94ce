//! The bytes of sections (PROT-8): the shortest Rice parameter, then gaps, signs and magnitudes of all entries.
//!
//! In the words of the reference, `protocol::contribution`: `section = rice u8 ‖ (lo u8 ‖ hi u8) per chunk ‖ bits`,
//! `bits = gaps of all chunks ‖ sign of every entry ‖ magnitude of every entry ‖ zero bits up to a whole byte`, each gap
//! `(gap >> rice)` ones, a zero and the `rice` low bits, filled from the least significant bit of each byte. A section's
//! length stands before it as u32.
//!
//! One cube a section. Each unit takes entries in a row, counts the bits that they need, learns from the units before
//! it where its own begin, and writes them with `or`, since neighbours share words.

use super::{
    Device, GpuError, array, cubes,
    parts::{Part, largest},
    select::{ENTRY_HIGH, ENTRY_INDEX, ENTRY_SIGN, Selected, UNITS, scan},
};
use crate::wire::{LENGTH_BYTES, Layout};
use cubecl::{prelude::*, server::Handle};

/// Words of the section table: first chunk, chunks, first entry, entries, where its bytes start (in words when they are
/// written, in bytes when they are read), how many bytes it has when it is read, entries of a full chunk.
pub(super) const SECTION_WORDS: usize = 7;

/// Rice parameters.
const RICES: usize = 13;

/// The words of an output, all zero.
#[cube(launch)]
pub(super) fn clear(words: &[Atomic<u32>], count: u32) {
    let at = ABSOLUTE_POS;
    if at < count as usize {
        words[at].store(0u32);
    }
}

/// Distance of an entry from the one before it in its chunk, less one.
#[cube]
fn gap(entries: &[u32], first: usize, entry: usize, per_chunk: usize) -> u32 {
    let mut gap = entries[first + entry] & ENTRY_INDEX;
    if entry % per_chunk != 0usize {
        gap -= (entries[first + entry - 1usize] & ENTRY_INDEX) + 1u32;
    }
    gap
}

/// Bits on their way into words that other units write too.
#[derive(CubeType)]
struct Writer {
    word: usize,
    pending: u64,
    /// Bits in `pending`, those before the first one counted: under 32 between two calls.
    held: u32,
}

#[cube]
fn writer_at(start: usize, bit: u32) -> Writer {
    Writer { word: start + (bit >> 5u32) as usize, pending: 0u64.runtime(), held: bit & 31u32 }
}

/// The `count` low bits of `bits`, whose others are zero; at most 32.
#[cube]
fn put(writer: &mut Writer, out: &[Atomic<u32>], bits: u32, count: u32) {
    writer.pending |= (bits as u64) << (writer.held as u64);
    writer.held += count;
    if writer.held >= 32u32 {
        out[writer.word].fetch_or(writer.pending as u32);
        writer.word += 1usize;
        writer.pending = writer.pending >> 32u64;
        writer.held -= 32u32;
    }
}

#[cube]
fn finish(writer: &Writer, out: &[Atomic<u32>]) {
    if writer.held > 0u32 {
        out[writer.word].fetch_or(writer.pending as u32);
    }
}

#[cube(launch)]
pub(super) fn pack(sections: &[u32], entries: &[u32], levels: &[u32], out: &[Atomic<u32>]) {
    let section = SECTION_WORDS * CUBE_POS;
    let unit = UNIT_POS as usize;
    let first_chunk = sections[section] as usize;
    let chunks = sections[section + 1usize] as usize;
    let first = sections[section + 2usize] as usize;
    let count = sections[section + 3usize] as usize;
    let start = sections[section + 4usize] as usize;
    let per_chunk = sections[section + 6usize] as usize;

    let quotients = Shared::<[Atomic<u32>]>::new_slice(RICES);
    let mut row = Shared::<[u32]>::new_slice(UNITS);
    let mut chosen = Shared::<[u32]>::new_slice(1usize);
    if unit < RICES {
        quotients[unit].store(0u32);
    }
    sync_cube();

    // What each parameter would take: a bit more of it halves the ones and adds a bit to every gap.
    let mut own = Array::<u32>::new(RICES);
    #[unroll]
    for rice in 0..RICES {
        own[rice] = 0u32;
    }
    let mut entry = unit;
    while entry < count {
        let gap = gap(entries, first, entry, per_chunk);
        #[unroll]
        for rice in 0..RICES {
            own[rice] += gap >> comptime!(rice as u32);
        }
        entry += UNITS;
    }
    #[unroll]
    for rice in 0..RICES {
        quotients[rice].fetch_add(own[rice]);
    }
    sync_cube();
    if unit == 0usize {
        let mut rice = 0usize.runtime();
        while rice < RICES - 1usize && quotients[rice].load() > quotients[rice + 1usize].load() + count as u32
        {
            rice += 1usize;
        }
        chosen[0] = rice as u32;
    }
    sync_cube();
    let rice = chosen[0];
    let gap_bits = quotients[rice as usize].load() + (count as u32) * (1u32 + rice);

    // The head: the length, the parameter, the levels.
    let head_bits = 40u32 + 16u32 * (chunks as u32);
    let bytes = (head_bits + gap_bits + 2u32 * (count as u32) + 7u32) / 8u32;
    if unit == 0usize {
        out[start].fetch_or(bytes - 4u32);
        out[start + 1usize].fetch_or(rice);
    }
    let mut chunk = unit;
    while chunk < chunks {
        let mut head = writer_at(start, 40u32 + 16u32 * (chunk as u32));
        put(&mut head, out, levels[first_chunk + chunk], 16u32);
        finish(&head, out);
        chunk += UNITS;
    }

    let share = (count + UNITS - 1usize) / UNITS;
    let mut begin = unit * share;
    let mut end = begin + share;
    if begin > count {
        begin = count;
    }
    if end > count {
        end = count;
    }
    let mut need = 0u32;
    for entry in begin..end {
        need += (gap(entries, first, entry, per_chunk) >> rice) + 1u32 + rice;
    }
    let before = scan(&mut row, need, unit, UNITS) - need;

    let mut gaps = writer_at(start, head_bits + before);
    let mut signs = writer_at(start, head_bits + gap_bits + begin as u32);
    let mut magnitudes = writer_at(start, head_bits + gap_bits + (count + begin) as u32);
    for entry in begin..end {
        let gap = gap(entries, first, entry, per_chunk);
        let mut ones = gap >> rice;
        while ones >= 31u32 {
            put(&mut gaps, out, 0x7fff_ffffu32, 31u32);
            ones -= 31u32;
        }
        put(&mut gaps, out, (1u32 << ones) - 1u32, ones + 1u32);
        put(&mut gaps, out, gap & ((1u32 << rice) - 1u32), rice);
        let word = entries[first + entry];
        put(&mut signs, out, (word >> ENTRY_SIGN) & 1u32, 1u32);
        put(&mut magnitudes, out, (word >> ENTRY_HIGH) & 1u32, 1u32);
    }
    finish(&gaps, out);
    finish(&signs, out);
    finish(&magnitudes, out);
}

/// The sections of a part on the device, each in room for the longest.
pub(super) struct Packed {
    out: Handle,
    /// First byte of each section's length.
    starts: Vec<usize>,
}

impl Device {
    pub(super) fn pack(&self, layout: &Layout, part: &Part, selected: &Selected) -> Packed {
        let mut words = 0;
        let places: Vec<(u32, u32)> = layout.sections()[part.sections.clone()]
            .iter()
            .map(|section| {
                let start = words;
                words += (LENGTH_BYTES + largest(layout, section)).div_ceil(4) + 1;
                (start as u32, 0)
            })
            .collect();
        let table = self.words(&part.section_table(layout, &places));
        let out = self.cleared(words);
        pack::launch(
            &self.client,
            cubes(places.len()),
            CubeDim::new_1d(UNITS as u32),
            array(&table, SECTION_WORDS * places.len()),
            array(&selected.entries, part.entries),
            array(&selected.levels, part.chunks),
            array(&out, words),
        );
        Packed { out, starts: places.iter().map(|(start, _)| 4 * *start as usize).collect() }
    }

    /// Appends the sections, each after its length, to a body.
    pub(super) fn unload(&self, packed: &Packed, body: &mut Vec<u8>) -> Result<(), GpuError> {
        let bytes = self.read_bytes(&packed.out)?;
        for start in &packed.starts {
            let section = bytes.get(*start..).unwrap_or(&[]);
            let length =
                section.first_chunk::<LENGTH_BYTES>().map_or(0, |length| u32::from_le_bytes(*length));
            let section = section.get(..LENGTH_BYTES + length as usize);
            let overrun = || GpuError::Device("it wrote a section that is longer than any".into());
            body.extend_from_slice(section.ok_or_else(overrun)?);
        }
        Ok(())
    }
}
