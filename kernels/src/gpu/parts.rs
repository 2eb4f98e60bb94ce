//! A flat row in parts that a device can hold in one buffer, and the tables that its kernels read.

use super::{pack::SECTION_WORDS, select::CHUNK_WORDS};
use crate::wire::{CHUNK, LENGTH_BYTES, Layout, RICE_MAX, Section};
use std::ops::Range;

/// Chunks of a part at most: cubes that one launch may have everywhere.
const CHUNKS_MAX: usize = 32_768;

/// Whole sections in a row.
pub(super) struct Part {
    pub sections: Range<usize>,
    /// Its values in the flat row.
    pub values: Range<usize>,
    /// The tensors of which it has sections.
    pub tensors: Range<usize>,
    pub chunks: usize,
    pub entries: usize,
}

/// Cuts a layout in parts of at most so many values, or of one section. Where the cuts are depends on the lengths of the
/// tensors alone, so that layouts of the same tensors have the same parts.
pub(super) fn parts(layout: &Layout, values_max: usize) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    for (index, section) in layout.sections().iter().enumerate() {
        let (chunks, entries) = (section.chunks(), layout.entries(section.values.len()));
        match parts.last_mut() {
            Some(part)
                if section.values.end - part.values.start <= values_max
                    && part.chunks + chunks <= CHUNKS_MAX =>
            {
                part.sections.end = index + 1;
                part.values.end = section.values.end;
                part.tensors.end = section.tensor + 1;
                part.chunks += chunks;
                part.entries += entries;
            }
            _ => parts.push(Part {
                sections: index..index + 1,
                values: section.values.clone(),
                tensors: section.tensor..section.tensor + 1,
                chunks,
                entries,
            }),
        }
    }
    parts
}

impl Part {
    /// The chunk table, as [`super::select`] describes it, `times` after each other: entries follow on, values do not.
    pub fn chunk_table(&self, layout: &Layout, times: usize) -> Vec<u32> {
        let mut table = Vec::with_capacity(CHUNK_WORDS * self.chunks * times);
        let mut entry = 0;
        for _ in 0..times {
            for section in &layout.sections()[self.sections.clone()] {
                for start in section.values.clone().step_by(CHUNK) {
                    let length = CHUNK.min(section.values.end - start);
                    let kept = layout.kept(length);
                    table.extend([
                        (start - self.values.start) as u32,
                        (length | kept << 16) as u32,
                        entry as u32,
                        (section.tensor - self.tensors.start) as u32,
                    ]);
                    entry += kept;
                }
            }
        }
        table
    }

    /// The section table, as [`super::pack`] describes it, `places.len() / sections` times after each other.
    /// `places` are where each section's bytes start, and how many they are.
    pub fn section_table(&self, layout: &Layout, places: &[(u32, u32)]) -> Vec<u32> {
        let sections = &layout.sections()[self.sections.clone()];
        let mut table = Vec::with_capacity(SECTION_WORDS * places.len());
        let (mut chunk, mut entry) = (0, 0);
        for (section, (start, bytes)) in sections.iter().cycle().zip(places) {
            let (chunks, entries) = (section.chunks(), layout.entries(section.values.len()));
            table.extend([chunk as u32, chunks as u32, entry as u32, entries as u32, *start, *bytes]);
            table.push(layout.kept(CHUNK) as u32);
            chunk += chunks;
            entry += entries;
        }
        table
    }

    /// First chunk and number of chunks of each tensor's piece in the part.
    pub fn tensor_table(&self, layout: &Layout) -> Vec<u32> {
        let mut table = vec![0; 2 * self.tensors.len()];
        let mut chunk = 0;
        for section in &layout.sections()[self.sections.clone()] {
            let pair = &mut table[2 * (section.tensor - self.tensors.start)..][..2];
            if pair[1] == 0 {
                pair[0] = chunk;
            }
            pair[1] += section.chunks() as u32;
            chunk += section.chunks() as u32;
        }
        table
    }
}

/// The fewest bytes that a section can have: every gap is zero.
pub(super) fn smallest(layout: &Layout, section: &Section) -> usize {
    1 + 2 * section.chunks() + (3 * layout.entries(section.values.len())).div_ceil(8)
}

/// No section of this place has more bytes: the encoder takes the best parameter, and with any the quotients add up to
/// at most the values between the entries, shifted by it.
pub(super) fn largest(layout: &Layout, section: &Section) -> usize {
    let values = section.values.len();
    let entries = layout.entries(values);
    let gap_bits = |rice: u8| entries * (1 + usize::from(rice)) + ((values - entries) >> rice);
    let gap_bits = (0..=RICE_MAX).map(gap_bits).min().unwrap_or(0);
    1 + 2 * section.chunks() + (gap_bits + 2 * entries).div_ceil(8)
}

/// Where the sections of a body lie in it, their lengths left out; or the first section that cannot be one.
pub(super) fn places(layout: &Layout, body: &[u8]) -> Result<Vec<Range<usize>>, usize> {
    let mut places = Vec::with_capacity(layout.sections().len().min(body.len() / LENGTH_BYTES));
    let mut at = 0usize;
    for (index, section) in layout.sections().iter().enumerate() {
        let length = body.get(at..).and_then(|rest| rest.first_chunk::<LENGTH_BYTES>()).ok_or(index)?;
        let length = u32::from_le_bytes(*length) as usize;
        let start = at + LENGTH_BYTES;
        if length < smallest(layout, section)
            || length > largest(layout, section)
            || length > body.len() - start
        {
            return Err(index);
        }
        places.push(start..start + length);
        at = start + length;
    }
    if at < body.len() {
        return Err(layout.sections().len().saturating_sub(1));
    }
    Ok(places)
}
