//! Merges contributions into an update (PROT-17, PROT-18), from bytes to bytes; applies an update to a model, and
//! subtracts a sent body from a residual.
//!
//! A section of the update depends only on the same section of each contribution and of the merge buffer. So all
//! threads merge sections one by one and pass them on in order. Besides the buffer, each thread holds one section's
//! entries of all inputs and a few finished sections. A section is merged chunk by chunk, so a chunk's sums and counts
//! stay in the first-level cache during the addition of the inputs.
//!
//! # Cost of a merge
//!
//! Twenty contributions at a density of 1/64, the update at 1107/4096, in bytes per value of the model:
//!
//! | | bytes |
//! |---|---|
//! | the payloads, read | 0.38 |
//! | the update, written | 0.17 |
//! | the merge buffer, read and written | 8 |
//!
//! The buffer has 14 times as many bytes as payloads and update together, and must be read to find its largest values.
//! The limit is arithmetic, not memory: 31 instructions per value with AVX2 (8 to unpack 0.31 entries, 6 to add and
//! divide, 17 to encode the sum). With AVX-512 one core (Zen 4) takes 2.3 ns, 1.5 of them to encode. A copy of all
//! 8.55 bytes takes the same core 0.3 to 0.45 ns. Cores share memory but not arithmetic, so the ratio falls with more
//! cores.

use crate::{
    accumulate::step,
    decode::{Rejected, parts, split},
    encode::{Feedback, SectionEncoder, Source},
    in_order::{Stopped, in_order},
    lanes::widest,
    unpack::{INDEX, LEVEL_SHIFT, Unpacked},
    wire::{CHUNK, Layout, Section},
};
use std::convert::Infallible;

/// Divisor of the sum at a coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Number of contributions with an entry at the coordinate.
    MeanOverHits,
    /// Number of all contributions.
    MeanOverAll,
}

/// Reason why a merge is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError<E = Infallible> {
    #[error("there is nothing to merge")]
    NoInputs,
    #[error("section {section} of input {input} is not one that the encoder writes")]
    Rejected { input: usize, section: usize },
    #[error("tensor {tensor} of the merge buffer is not finite at {position}")]
    NotFinite { tensor: usize, position: usize },
    /// The error of the sink.
    #[error("the update could not be written")]
    Sink(#[source] E),
}

/// Merges contributions; returns the update's body. See [`merge_into`].
///
/// # Errors
/// Same as [`merge_into`], except that writing cannot fail.
pub fn merge(
    layout: &Layout,
    rule: Rule,
    merged: &Layout,
    bodies: &[&[u8]],
    scales: &[Vec<f32>],
    buffer: &mut [f32],
) -> Result<Vec<u8>, MergeError> {
    let mut body = Vec::new();
    merge_into(layout, rule, merged, bodies, scales, buffer, &mut |bytes| {
        body.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(body)
}

/// Merges the bodies of contributions, in uid order, into `buffer`, and encodes the update from it: `b ← b + mean`,
/// encode `b`, `b ← b − decoded` (PROT-18). Passes the update's body to `sink`, section by section, and returns its
/// length in bytes.
///
/// `layout` is that of the contributions, `merged` that of the update: the same tensors, at its own density. `scales`
/// are `[tensor][input]`; an input with a scale of 0 is left out of the tensor. On an error the buffer may be partly
/// merged: keep a copy.
///
/// # Panics
/// If the two layouts have different tensors, `scales` or `buffer` has another length than theirs, or there are more
/// than 65,535 bodies.
///
/// # Errors
/// If `bodies` is empty, a body is invalid, a value of the sum is not finite, or `sink` fails.
pub fn merge_into<E: Send>(
    layout: &Layout,
    rule: Rule,
    merged: &Layout,
    bodies: &[&[u8]],
    scales: &[Vec<f32>],
    buffer: &mut [f32],
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<u64, MergeError<E>> {
    assert!(layout.ranges().eq(merged.ranges()), "an update has the tensors of its contributions");
    assert_eq!(scales.len(), layout.tensors(), "there are scales for each tensor");
    assert!(scales.iter().all(|scales| scales.len() == bodies.len()), "there is one scale for each input");
    assert_eq!(buffer.len(), layout.values(), "a row has all of its layout's values");
    assert!(bodies.len() <= usize::from(u16::MAX), "hits are counted in sixteen bits");
    if bodies.is_empty() {
        return Err(MergeError::NoInputs);
    }
    let mut inputs = Vec::with_capacity(bodies.len());
    for (input, body) in bodies.iter().enumerate() {
        let rejected = |Rejected { section }| MergeError::Rejected { input, section };
        inputs.push(split(layout, body).map_err(rejected)?);
    }

    let merge_one = |scratch: &mut Scratch, (section, values): (usize, &mut [f32]), out: &mut Vec<u8>| {
        let place = &layout.sections()[section];
        let bytes = inputs.iter().map(|input| input[section]);
        let rejected = |input| MergeError::Rejected { input, section };
        scratch.unpack(layout.density(), place, bytes).map_err(rejected)?;
        let Scratch { inputs, sums, hits, encoder } = scratch;
        for (chunk, buffer) in values.chunks_mut(CHUNK).enumerate() {
            add_mean(rule, inputs, &scales[place.tensor], chunk, sums, hits, buffer);
        }
        encoder.encode(merged.density(), values, Source::Nothing, Feedback::Spend, out).map_err(|position| {
            MergeError::NotFinite { tensor: place.tensor, position: place.start as usize + position }
        })
    };
    let jobs = parts(layout, buffer).into_iter().enumerate();
    in_order(jobs, merge_one, sink).map_err(|stopped| match stopped {
        Stopped::Make(error) => error,
        Stopped::Sink(error) => MergeError::Sink(error),
    })
}

/// Buffers of one thread for merging a section.
struct Scratch {
    inputs: Vec<Unpacked>,
    sums: Box<[f32; CHUNK]>,
    /// Number of inputs with an entry at each value of a chunk.
    hits: Box<[u16; CHUNK]>,
    encoder: SectionEncoder,
}

impl Default for Scratch {
    fn default() -> Scratch {
        Scratch {
            inputs: Vec::new(),
            sums: Box::new([0.0; CHUNK]),
            hits: Box::new([0; CHUNK]),
            encoder: SectionEncoder::default(),
        }
    }
}

impl Scratch {
    /// Unpacks the section of each input. The error is the first input that is refused.
    fn unpack<'a>(
        &mut self,
        density: u16,
        place: &Section,
        inputs: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<(), usize> {
        self.inputs.resize_with(inputs.len(), Unpacked::default);
        for (input, (unpacked, bytes)) in self.inputs.iter_mut().zip(inputs).enumerate() {
            if !unpacked.read(density, place.values.len(), bytes) {
                return Err(input);
            }
        }
        Ok(())
    }
}

widest! {
    /// Computes `b ← b + mean` for one chunk, only at values with an entry. Elsewhere not even the sign of a zero
    /// changes.
    fn add_mean(
        rule: Rule, inputs: &[Unpacked], scales: &[f32], chunk: usize,
        sums: &mut [f32; CHUNK], hits: &mut [u16; CHUNK], buffer: &mut [f32],
    ) = add_mean_body;
}

#[inline(always)]
fn add_mean_body(
    rule: Rule,
    inputs: &[Unpacked],
    scales: &[f32],
    chunk: usize,
    sums: &mut [f32; CHUNK],
    hits: &mut [u16; CHUNK],
    buffer: &mut [f32],
) {
    sums[..buffer.len()].fill(0.0);
    hits[..buffer.len()].fill(0);
    for (input, scale) in inputs.iter().zip(scales).filter(|(_, scale)| **scale != 0.0) {
        let chunk = input.chunk(chunk);
        let scaled = chunk.levels.map(|level| scale * level);
        for entry in chunk.entries {
            let at = usize::from(entry & INDEX);
            sums[at] += scaled[usize::from(entry >> LEVEL_SHIFT) % 4];
            hits[at] += 1;
        }
    }
    let all = scales.iter().filter(|scale| **scale != 0.0).count() as f32;
    for ((value, sum), hits) in buffer.iter_mut().zip(&*sums).zip(&*hits) {
        let mean = sum
            / match rule {
                Rule::MeanOverHits => f32::from(*hits),
                Rule::MeanOverAll => all,
            };
        *value = if *hits > 0 { *value + mean } else { *value };
    }
}

/// Computes `θ ← fl(θ − fl(rate · u))` at every entry of the update's body (PROT-18).
///
/// On an error, whole sections may have been applied. Check a body with `decode::norms` first if that matters.
///
/// # Panics
/// If `theta` is not as long as the layout.
///
/// # Errors
/// If a section of the body is invalid.
pub fn apply(layout: &Layout, body: &[u8], rate: f32, theta: &mut [f32]) -> Result<(), Rejected> {
    step(layout, body, theta, |_, level| -(rate * level))
}

/// Returns whether [`apply`] would change any value of `theta`. Stops at the first one.
///
/// # Panics
/// If `theta` is not as long as the layout.
///
/// # Errors
/// If a section of the body is invalid.
pub fn changes_any(layout: &Layout, body: &[u8], rate: f32, theta: &[f32]) -> Result<bool, Rejected> {
    assert_eq!(theta.len(), layout.values(), "a row has all of its layout's values");
    let mut unpacked = Unpacked::default();
    for (section, (place, bytes)) in layout.sections().iter().zip(split(layout, body)?).enumerate() {
        if !unpacked.read(layout.density(), place.values.len(), bytes) {
            return Err(Rejected { section });
        }
        let values = &theta[place.values.clone()];
        let changes = unpacked.chunks().any(|chunk| {
            let steps = chunk.levels.map(|level| rate * level);
            chunk.entries.iter().any(|entry| {
                let value = values[chunk.start + usize::from(entry & INDEX)];
                value - steps[usize::from(entry >> LEVEL_SHIFT) % 4] != value
            })
        });
        if changes {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Subtracts the sent values from their residual: `e ← fl(e − sent)` at every entry of a body (PROT-10).
///
/// # Panics
/// If `residual` is not as long as the layout.
///
/// # Errors
/// Same as [`apply`].
pub fn subtract_sent(layout: &Layout, body: &[u8], residual: &mut [f32]) -> Result<(), Rejected> {
    step(layout, body, residual, |_, level| -level)
}
