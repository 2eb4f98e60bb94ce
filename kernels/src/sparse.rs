//! A sparse step `θ ← fl(θ − fl(rate·v))`, and its exact undo.
//!
//! A contribution is judged by the loss with and without it (PROT-22). Subtracting and adding again would change bits,
//! and a copy of the model would double the memory, so the step returns the overwritten values. The arithmetic is that
//! of the agreed update (PROT-18): two operations, each rounded once.

use rayon::prelude::*;
use std::ops::Range;

/// Number of entries that one thread processes at a time.
const BLOCK: usize = 1 << 14;

/// Steps `theta` at `positions` (ascending), one after the other. Returns the previous values.
///
/// # Panics
/// If the two lists differ in length or a position lies outside `theta`.
pub fn apply_reference(theta: &mut [f32], positions: &[u32], values: &[f32], rate: f32) -> Vec<f32> {
    assert_eq!(positions.len(), values.len(), "a sparse step has one value for each position");
    let mut previous = Vec::with_capacity(positions.len());
    for (&position, &value) in positions.iter().zip(values) {
        let place = &mut theta[position as usize];
        previous.push(*place);
        *place -= rate * value;
    }
    previous
}

/// Steps `theta` at `positions` (strictly ascending), in parallel. Returns the previous values, for [`restore`].
///
/// # Panics
/// If the two lists differ in length, the positions do not ascend, or one lies outside `theta`.
pub fn apply(theta: &mut [f32], positions: &[u32], values: &[f32], rate: f32) -> Vec<f32> {
    let mut previous = values.to_vec();
    visit(theta, positions, &mut previous, |place, value| {
        let before = *place;
        *place -= rate * *value;
        *value = before;
    });
    previous
}

/// Restores the values that [`apply`] returned, so that `theta` has its previous bits.
///
/// # Panics
/// Same as [`apply`].
pub fn restore(theta: &mut [f32], positions: &[u32], mut previous: Vec<f32>) {
    visit(theta, positions, &mut previous, |place, value| *place = *value);
}

/// Calls `each` with a reference to every position and its value, in parallel.
fn visit(theta: &mut [f32], positions: &[u32], values: &mut [f32], each: impl Fn(&mut f32, &mut f32) + Sync) {
    assert_eq!(positions.len(), values.len(), "a sparse step has one value for each position");
    if positions.len() <= BLOCK {
        let places = positions.iter().zip(values);
        return places.for_each(|(&position, value)| each(&mut theta[position as usize], value));
    }
    stretches(theta, positions)
        .into_par_iter()
        .zip(positions.par_chunks(BLOCK))
        .zip(values.par_chunks_mut(BLOCK))
        .for_each(|((stretch, positions), values)| {
            for (&position, value) in positions.iter().zip(values) {
                each(&mut stretch.values[position as usize - stretch.range.start], value);
            }
        });
}

/// Part of `theta` with one block of positions.
struct Stretch<'a> {
    range: Range<usize>,
    values: &'a mut [f32],
}

/// Splits `theta` into one part per block of positions. The parts are disjoint, since positions ascend.
fn stretches<'a>(theta: &'a mut [f32], positions: &[u32]) -> Vec<Stretch<'a>> {
    assert!(positions.is_sorted_by(|a, b| a < b), "the positions of a sparse step ascend");
    let mut rest = theta;
    let mut cut = 0;
    let mut stretches = Vec::with_capacity(positions.len().div_ceil(BLOCK));
    for block in positions.chunks(BLOCK) {
        let (first, last) = (block[0] as usize, block[block.len() - 1] as usize);
        let (_, from_first) = rest.split_at_mut(first - cut);
        let (values, behind) = from_first.split_at_mut(last + 1 - first);
        stretches.push(Stretch { range: first..last + 1, values });
        rest = behind;
        cut = last + 1;
    }
    stretches
}
