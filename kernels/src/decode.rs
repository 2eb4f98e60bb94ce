//! Decodes a body's sections into positions and values. It accepts exactly the bodies that
//! `protocol::contribution::decode` accepts, with the same numbers (PROT-8).
//!
//! An error names the section only. A caller that needs the fault's name runs the reference decoder, which stops at
//! the fault.
//!
//! A body is read whole, its sections by all threads ([`decode`], [`norms`]), or while it arrives ([`StreamDecoder`]),
//! with one section in memory at a time. Lengths are checked first: a section with too few or too many bytes for its
//! entries is refused before memory is allocated.

use crate::{
    lanes::widest,
    unpack::{INDEX, LEVEL_SHIFT, Unpacked, largest, smallest},
    wire::{CHUNK, LENGTH_BYTES, Layout, Section},
};
use rayon::prelude::*;
use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Error of bytes that are not a body of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("section {section} is not one that the encoder writes")]
pub struct Rejected {
    /// The first invalid section in the order of the body; the number of sections if bytes follow the last.
    pub section: usize,
}

/// Entries of one tensor.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entries {
    /// Positions in the tensor, strictly ascending.
    pub positions: Vec<u32>,
    /// Signed level at each position.
    pub values: Vec<f32>,
    /// `Σ (n_lo·lo² + n_hi·hi²)` over the chunks, in f64 and in their order (PROT-17).
    pub square_norm: f64,
}

/// Entries of one section, as they arrive.
#[derive(Clone, Copy, Debug)]
pub struct SectionEntries<'a> {
    /// Index of the section in the layout.
    pub section: usize,
    pub tensor: usize,
    /// Positions in the tensor, strictly ascending.
    pub positions: &'a [u32],
    /// Signed level at each position.
    pub values: &'a [f32],
}

/// Returns all entries of a body, tensor by tensor.
///
/// # Errors
/// If a section of the body is invalid.
pub fn decode(layout: &Layout, body: &[u8]) -> Result<Vec<Entries>, Rejected> {
    let sections = split(layout, body)?;
    let mut tensors: Vec<Entries> = layout
        .ranges()
        .map(|range| {
            let entries = layout.entries(range.len());
            Entries { positions: vec![0; entries], values: vec![0.0; entries], square_norm: 0.0 }
        })
        .collect();
    let mut squares = vec![0.0; chunks(layout)];

    let mut rests: Vec<_> =
        tensors.iter_mut().map(|tensor| (&mut tensor.positions[..], &mut tensor.values[..])).collect();
    let mut rest = &mut squares[..];
    let mut parts = Vec::with_capacity(sections.len());
    for place in layout.sections() {
        let (positions, values) = &mut rests[place.tensor];
        let count = layout.entries(place.values.len());
        let part = (cut(positions, count), cut(values, count), cut(&mut rest, place.chunks()));
        parts.push(part);
    }
    each_section(layout, &sections, parts, |place, section, (positions, values, squares)| {
        list(place.start, section, positions, values);
        squares.copy_from_slice(section.squares());
    })?;

    for (tensor, norm) in tensors.iter_mut().zip(tensor_norms(layout, &squares)) {
        tensor.square_norm = norm;
    }
    Ok(tensors)
}

/// Returns the square norm of each tensor, as in [`Entries::square_norm`]. This is a full check of a body that does
/// not store entries.
///
/// # Errors
/// If a section of the body is invalid.
pub fn norms(layout: &Layout, body: &[u8]) -> Result<Vec<f64>, Rejected> {
    let sections = split(layout, body)?;
    let mut squares = vec![0.0; chunks(layout)];
    let mut rest = &mut squares[..];
    let parts = layout.sections().iter().map(|place| cut(&mut rest, place.chunks())).collect();
    each_section(layout, &sections, parts, |_, section, squares: &mut [f64]| {
        squares.copy_from_slice(section.squares());
    })?;
    Ok(tensor_norms(layout, &squares))
}

/// Returns the number of chunks of all sections.
fn chunks(layout: &Layout) -> usize {
    layout.sections().iter().map(Section::chunks).sum()
}

/// Returns the sums of the chunks' squares, tensor by tensor and in their order.
fn tensor_norms(layout: &Layout, squares: &[f64]) -> Vec<f64> {
    let mut rest = squares;
    let norm = |range: Range<usize>| {
        let (here, behind) = rest.split_at(range.len().div_ceil(CHUNK));
        rest = behind;
        here.iter().fold(0.0, |sum, square| sum + square)
    };
    layout.ranges().map(norm).collect()
}

/// Returns the bytes of each section, after checking that the lengths fit their entries and end with the body.
///
/// # Errors
/// If a section's length is impossible, or the sections do not end with the body.
pub fn split<'a>(layout: &Layout, body: &'a [u8]) -> Result<Vec<&'a [u8]>, Rejected> {
    let mut sections = Vec::new();
    let mut rest = body;
    for (index, place) in layout.sections().iter().enumerate() {
        let rejected = Rejected { section: index };
        let (length, after) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or(rejected)?;
        let length = length_of(layout, place, *length).ok_or(rejected)?;
        let (section, after) = after.split_at_checked(length).ok_or(rejected)?;
        sections.push(section);
        rest = after;
    }
    if rest.is_empty() { Ok(sections) } else { Err(Rejected { section: sections.len() }) }
}

/// Returns a section's length, if it is possible for its entries.
fn length_of(layout: &Layout, place: &Section, length: [u8; LENGTH_BYTES]) -> Option<usize> {
    let (density, values) = (layout.density(), place.values.len());
    let length = usize::try_from(u32::from_le_bytes(length)).ok()?;
    (smallest(density, values)..=largest(density, values)).contains(&length).then_some(length)
}

/// Unpacks every section on all threads and passes it to `each` with its part of the result. On an error, all sections
/// before the refused one were passed on, and some of those after it.
pub(crate) fn each_section<T: Send>(
    layout: &Layout,
    sections: &[&[u8]],
    parts: Vec<T>,
    each: impl Fn(&Section, &Unpacked, T) + Sync,
) -> Result<(), Rejected> {
    // The first refused section in the order of the body, not in time.
    let refused = AtomicUsize::new(usize::MAX);
    layout.sections().par_iter().zip(sections).zip(parts).enumerate().for_each_init(
        Unpacked::default,
        |unpacked, (index, ((place, bytes), part))| {
            if index > refused.load(Relaxed) {
                return;
            }
            if unpacked.read(layout.density(), place.values.len(), bytes) {
                each(place, unpacked, part);
            } else {
                refused.fetch_min(index, Relaxed);
            }
        },
    );
    match refused.into_inner() {
        usize::MAX => Ok(()),
        section => Err(Rejected { section }),
    }
}

/// Returns the part of `row` that belongs to each section.
pub(crate) fn parts<'a>(layout: &Layout, row: &'a mut [f32]) -> Vec<&'a mut [f32]> {
    let mut rest = row;
    layout.sections().iter().map(|place| cut(&mut rest, place.values.len())).collect()
}

/// Splits the first `count` values off the front.
fn cut<'a, T>(rest: &mut &'a mut [T], count: usize) -> &'a mut [T] {
    rest.split_off_mut(..count).expect("the parts of the sections make up the whole")
}

/// Writes out positions and values of an unpacked section that starts at `start` of its tensor.
fn list(start: u32, section: &Unpacked, positions: &mut [u32], values: &mut [f32]) {
    let (mut positions, mut values) = (positions, values);
    for chunk in section.chunks() {
        let count = chunk.entries.len();
        let first = start + chunk.start as u32;
        list_chunk(first, chunk.entries, chunk.levels, cut(&mut positions, count), cut(&mut values, count));
    }
}

widest! {
    fn list_chunk(
        first: u32, entries: &[u16], levels: [f32; 4], positions: &mut [u32], values: &mut [f32],
    ) = list_chunk_body;
}

#[inline(always)]
fn list_chunk_body(first: u32, entries: &[u16], levels: [f32; 4], positions: &mut [u32], values: &mut [f32]) {
    let (lo, hi) = (levels[0].to_bits(), levels[2].to_bits());
    for ((entry, position), value) in entries.iter().zip(positions).zip(values) {
        *position = first + u32::from(entry & INDEX);
        let mark = u32::from(entry >> LEVEL_SHIFT);
        let level = if mark & 2 == 0 { lo } else { hi };
        *value = f32::from_bits(level | mark << 31);
    }
}

/// Decodes a body while it arrives, in pieces of any length. Holds at most one section's bytes and entries.
pub struct StreamDecoder<'a> {
    layout: &'a Layout,
    /// Number of decoded sections.
    done: usize,
    /// Received bytes of the next section, its length first.
    begun: Vec<u8>,
    unpacked: Unpacked,
    positions: Vec<u32>,
    values: Vec<f32>,
    norms: Vec<f64>,
    refused: bool,
}

impl<'a> StreamDecoder<'a> {
    pub fn new(layout: &'a Layout) -> StreamDecoder<'a> {
        StreamDecoder {
            layout,
            done: 0,
            begun: Vec::new(),
            unpacked: Unpacked::default(),
            positions: Vec::new(),
            values: Vec::new(),
            norms: vec![0.0; layout.tensors()],
            refused: false,
        }
    }

    /// Decodes the next bytes, and passes the entries of every section that they complete to `each`.
    ///
    /// # Errors
    /// If a section is invalid. All further bytes are then refused for the same section.
    pub fn push(&mut self, bytes: &[u8], each: &mut dyn FnMut(SectionEntries<'_>)) -> Result<(), Rejected> {
        if self.refused {
            return Err(Rejected { section: self.done });
        }
        let taken = self.take(bytes, each);
        self.refused = taken.is_err();
        taken
    }

    /// Returns the square norm of each tensor.
    ///
    /// # Errors
    /// If the body was refused or is incomplete.
    pub fn finish(self) -> Result<Vec<f64>, Rejected> {
        if self.refused || self.done < self.layout.sections().len() || !self.begun.is_empty() {
            return Err(Rejected { section: self.done });
        }
        Ok(self.norms)
    }

    fn take(&mut self, bytes: &[u8], each: &mut dyn FnMut(SectionEntries<'_>)) -> Result<(), Rejected> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let rejected = Rejected { section: self.done };
            let place = self.layout.sections().get(self.done).ok_or(rejected)?;
            if self.begun.is_empty()
                && let Some((length, after)) = rest.split_first_chunk::<LENGTH_BYTES>()
            {
                // A complete section is decoded in place.
                let length = length_of(self.layout, place, *length).ok_or(rejected)?;
                if let Some((section, after)) = after.split_at_checked(length) {
                    self.section(section, each)?;
                    rest = after;
                    continue;
                }
            }
            let lacking = match self.begun.first_chunk::<LENGTH_BYTES>() {
                None => LENGTH_BYTES - self.begun.len(),
                Some(length) => {
                    let length = length_of(self.layout, place, *length).ok_or(rejected)?;
                    LENGTH_BYTES + length - self.begun.len()
                }
            };
            let (piece, after) = rest.split_at(lacking.min(rest.len()));
            self.begun.extend_from_slice(piece);
            rest = after;
            if piece.len() == lacking && self.begun.len() > LENGTH_BYTES {
                let mut begun = std::mem::take(&mut self.begun);
                self.section(&begun[LENGTH_BYTES..], each)?;
                begun.clear();
                self.begun = begun;
            }
        }
        Ok(())
    }

    fn section(&mut self, bytes: &[u8], each: &mut dyn FnMut(SectionEntries<'_>)) -> Result<(), Rejected> {
        let place = &self.layout.sections()[self.done];
        let values = place.values.len();
        if !self.unpacked.read(self.layout.density(), values, bytes) {
            return Err(Rejected { section: self.done });
        }
        let count = self.layout.entries(values);
        self.positions.resize(count, 0);
        self.values.resize(count, 0.0);
        list(place.start, &self.unpacked, &mut self.positions, &mut self.values);
        let norm = &mut self.norms[place.tensor];
        self.unpacked.squares().iter().for_each(|square| *norm += square);
        each(SectionEntries {
            section: self.done,
            tensor: place.tensor,
            positions: &self.positions,
            values: &self.values,
        });
        self.done += 1;
        Ok(())
    }
}
