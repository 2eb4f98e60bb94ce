//! Adds a body to a dense row directly from its bytes, without a list of its entries.

use crate::{
    decode::{Rejected, each_section, parts, split},
    lanes::widest,
    unpack::{INDEX, LEVEL_SHIFT},
    wire::{CHUNK, Layout},
};

/// Computes `sums[p] ← fl(sums[p] + fl(scale · level))` at every entry `p` of the body, with one scale per tensor
/// (PROT-17).
///
/// On an error, whole sections may have been added. Check a body with `decode::norms` first if that matters.
///
/// # Panics
/// If `sums` is not as long as the layout, or there is not one scale for each tensor.
///
/// # Errors
/// If a section of the body is invalid.
pub fn accumulate(layout: &Layout, body: &[u8], scales: &[f32], sums: &mut [f32]) -> Result<(), Rejected> {
    assert_eq!(scales.len(), layout.tensors(), "there is one scale for each tensor");
    step(layout, body, sums, |tensor, level| scales[tensor] * level)
}

/// Adds `change(tensor, level)` to `row` at every entry.
pub(crate) fn step(
    layout: &Layout,
    body: &[u8],
    row: &mut [f32],
    change: impl Fn(usize, f32) -> f32 + Sync,
) -> Result<(), Rejected> {
    assert_eq!(row.len(), layout.values(), "a row has all of its layout's values");
    let sections = split(layout, body)?;
    each_section(layout, &sections, parts(layout, row), |place, section, row| {
        for chunk in section.chunks() {
            let row = &mut row[chunk.start..][..chunk.length];
            add(chunk.entries, chunk.levels.map(|level| change(place.tensor, level)), row);
        }
    })
}

widest! {
    /// Adds one of four numbers at each entry of a chunk.
    fn add(entries: &[u16], changes: [f32; 4], row: &mut [f32]) = add_body;
}

#[inline(always)]
fn add_body(entries: &[u16], changes: [f32; 4], row: &mut [f32]) {
    let change = |entry: u16| changes[usize::from(entry >> LEVEL_SHIFT) % 4];
    match <&mut [f32; CHUNK]>::try_from(&mut *row) {
        // Every index is in bounds.
        Ok(row) => entries.iter().for_each(|entry| row[usize::from(entry & INDEX)] += change(*entry)),
        Err(_) => entries.iter().for_each(|entry| row[usize::from(entry & INDEX)] += change(*entry)),
    }
}
