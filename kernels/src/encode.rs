//! Encodes a residual into the body of a contribution, in one pass over memory (PROT-7, PROT-9, PROT-10).
//!
//! `e ← β·e + Δ`, the choice of the largest values, their levels, the bytes, and `e ← e − sent` are five kernels
//! ([`topk`](crate::topk), [`quantise`], [`pack`] and the step here). One after the other, they would read the model
//! five times. Here a chunk of 16 KiB passes through all of them in the first-level cache, so 12 bytes per value move:
//! `e` and `Δ` are read, `e` is written. A copy moves 8, so an encoder has at most 8/12 of a copy's speed.
//!
//! Instructions add to this, partly in parallel with loading the next chunk. One core of a Zen 4 with AVX-512 takes,
//! from the cache, 0.34 ns per value at density 64/4096, 0.7 at 512 and 1.1 at 1107; a copy from memory takes 0.32. An
//! entry costs about 3 ns: 1 for the search, 0.6 for the levels, 1 for its bits and 0.5 to write back the remainder
//! (`benches/encode.rs`).
//!
//! The bytes are those of `protocol::contribution::encode` and `encode_with_feedback`, for any input, vector width and
//! number of threads. Sections are encoded in parallel and passed on in order during the encoding of later ones.

use crate::{
    in_order::{Stopped, in_order},
    lanes::widest,
    pack::{self, BitRow},
    quantise,
    topk::{Ahead, TopK},
    wire::{CHUNK, Layout, SECTION, Section, kept},
};
use std::convert::Infallible;

/// Step of the residual before its largest values are sent. Each operation is rounded once.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// No step.
    Nothing,
    /// `e ← fl(fl(decay·e) + Δ)`
    Delta { decay: f32, delta: &'a [f32] },
    /// `e ← fl(fl(decay·e) + fl(before − after))`
    Difference { decay: f32, before: &'a [f32], after: &'a [f32] },
}

/// Treatment of the residual after its largest values are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// Keeps the sent values, until the commitment is final.
    Keep,
    /// `e ← fl(e − sent)`
    Spend,
}

/// Reason why encoding failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError<E = Infallible> {
    /// Position of the first stepped value that is not finite, in the order of the body.
    #[error("tensor {tensor}: the value at {position} is not finite")]
    NotFinite { tensor: usize, position: usize },
    #[error("the layout has {expected} values, but {got} were given")]
    WrongLength { expected: usize, got: usize },
    /// The error of the sink.
    #[error("the encoded bytes could not be written")]
    Sink(#[source] E),
}

/// Encodes the largest values of the stepped `residual`; returns the whole body. See [`encode_into`].
///
/// # Errors
/// Same as [`encode_into`], except that writing cannot fail.
pub fn encode(
    layout: &Layout,
    residual: &mut [f32],
    source: Source<'_>,
    feedback: Feedback,
) -> Result<Vec<u8>, EncodeError> {
    let mut body = Vec::new();
    encode_into(layout, residual, source, feedback, &mut |bytes| {
        body.extend_from_slice(bytes);
        Ok(())
    })?;
    Ok(body)
}

/// Steps `residual` by `source`, encodes its largest values, and passes the body to `sink` piece by piece: the length
/// of a section, or the section. Returns the length of the body in bytes.
///
/// Runs on the threads of the current rayon pool; `sink` runs on the calling thread. Needs less than 4 MiB per thread
/// besides its arguments, for any size of the model.
///
/// On an error, part of the residual may be stepped and spent, and part of the body passed to `sink`. To continue, the
/// caller needs a copy of the residual.
///
/// # Errors
/// If a length differs from the layout's, a stepped value is not finite, or `sink` fails.
pub fn encode_into<E>(
    layout: &Layout,
    residual: &mut [f32],
    source: Source<'_>,
    feedback: Feedback,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<u64, EncodeError<E>> {
    let expected = layout.values();
    if let Some(got) = std::iter::once(residual.len()).chain(source.lengths()).find(|got| *got != expected) {
        return Err(EncodeError::WrongLength { expected, got });
    }

    let mut rest = residual;
    let jobs = layout.sections().iter().map(|place| {
        let values = rest.split_off_mut(..place.values.len()).expect("the lengths add up to the layout's");
        (place, values)
    });
    let encode_one =
        |encoder: &mut SectionEncoder, (place, values): (&Section, &mut [f32]), out: &mut Vec<u8>| {
            let encoded = encoder.encode(
                layout.density(),
                values,
                source.range(place.values.start, place.values.end),
                feedback,
                out,
            );
            encoded.map_err(|position| (place.tensor, place.start as usize + position))
        };
    in_order(jobs, encode_one, sink).map_err(|stopped| match stopped {
        Stopped::Make((tensor, position)) => EncodeError::NotFinite { tensor, position },
        Stopped::Sink(error) => EncodeError::Sink(error),
    })
}

impl<'a> Source<'a> {
    fn lengths(self) -> impl Iterator<Item = usize> {
        let (first, second) = match self {
            Source::Nothing => (None, None),
            Source::Delta { delta, .. } => (Some(delta.len()), None),
            Source::Difference { before, after, .. } => (Some(before.len()), Some(after.len())),
        };
        first.into_iter().chain(second)
    }

    /// Returns the part of the source for a section from value `start` on.
    fn ahead<'b>(self, residual: &'b [f32], start: usize) -> Ahead<'b>
    where
        'a: 'b,
    {
        let arrays = match self {
            Source::Nothing => [residual, &[], &[]],
            Source::Delta { delta, .. } => [residual, &delta[start..], &[]],
            Source::Difference { before, after, .. } => [residual, &before[start..], &after[start..]],
        };
        Ahead { arrays }
    }

    fn range(self, start: usize, end: usize) -> Source<'a> {
        match self {
            Source::Nothing => Source::Nothing,
            Source::Delta { decay, delta } => Source::Delta { decay, delta: &delta[start..end] },
            Source::Difference { decay, before, after } => {
                Source::Difference { decay, before: &before[start..end], after: &after[start..end] }
            }
        }
    }
}

/// Encodes sections one after the other in reused buffers: under 1 MiB for any density.
#[derive(Clone, Debug, Default)]
pub struct SectionEncoder {
    top: TopK,
    levels: Vec<[u8; 2]>,
    gaps: Vec<u16>,
    signs: BitRow,
    magnitudes: BitRow,
}

impl SectionEncoder {
    /// Steps the values of one section, and appends the section to `out`, without its length.
    ///
    /// # Errors
    /// If a stepped value is not finite: its position in the section, for the first one. Chunks up to it are then
    /// stepped, and `out` is unchanged.
    ///
    /// # Panics
    /// If `values` is empty or longer than [`SECTION`], the source has another length, or the density is not from 1 to
    /// 4096.
    pub fn encode(
        &mut self,
        density: u16,
        residual: &mut [f32],
        source: Source<'_>,
        feedback: Feedback,
        out: &mut Vec<u8>,
    ) -> Result<(), usize> {
        assert!((1..=SECTION).contains(&residual.len()), "a section has from 1 to {SECTION} values");
        assert!(source.lengths().all(|length| length == residual.len()), "each value has its source");
        self.levels.clear();
        self.gaps.clear();
        self.signs.clear();
        self.magnitudes.clear();

        let mut rest = residual;
        let mut start = 0;
        while !rest.is_empty() {
            let (chunk, after) = rest.split_at_mut(CHUNK.min(rest.len()));
            let end = start + chunk.len();
            let count = kept(density, chunk.len());
            step(chunk, source.range(start, end));
            if self.top.select(chunk, count, source.ahead(after, end)).is_none() {
                let position = chunk.iter().position(|value| !value.is_finite());
                return Err(start + position.expect("the largest is not finite"));
            }
            self.quantise(chunk, feedback);
            (rest, start) = (after, end);
        }
        pack::section(out, &self.levels, &self.gaps, &self.signs, &self.magnitudes);
        Ok(())
    }

    /// Records the levels and entries of the chunk whose largest values are chosen, and subtracts them.
    fn quantise(&mut self, chunk: &mut [f32], feedback: Feedback) {
        let (positions, values) = self.top.chosen();
        let levels = quantise::levels(values);
        self.levels.push(levels.codes);
        pack::gaps_between(positions, &mut self.gaps);
        for values in values.chunks(64) {
            let (signs, magnitudes) = quantise::marks(values, levels);
            self.signs.push(signs, values.len());
            self.magnitudes.push(magnitudes, values.len());
        }
        if feedback == Feedback::Spend {
            quantise::subtract(values, levels);
            for (position, left) in positions.iter().zip(values) {
                chunk[*position as usize] = *left;
            }
        }
    }
}

widest! {
    /// Steps a chunk. All slow memory reads of the encoding are here.
    fn step(chunk: &mut [f32], source: Source<'_>) = step_body;
}

#[inline(always)]
fn step_body(chunk: &mut [f32], source: Source<'_>) {
    match source {
        Source::Nothing => {}
        Source::Delta { decay, delta } => {
            for (value, delta) in chunk.iter_mut().zip(delta) {
                *value = decay * *value + delta;
            }
        }
        Source::Difference { decay, before, after } => {
            for ((value, before), after) in chunk.iter_mut().zip(before).zip(after) {
                *value = decay * *value + (before - after);
            }
        }
    }
}
