//! Many contributions become one update, bit for bit the same on every machine (PROT-17, PROT-18).
//!
//! Three steps: each contribution is scaled down to the median norm, tensor by tensor; the scaled values are averaged
//! coordinate by coordinate, in the order of uids; and the mean is encoded again, with an error-feedback buffer of its
//! own that everyone holds alike. One rounding per operation and no fused multiply-add, so that an order of operations
//! is written down for every bit.
//!
//! ```text
//! object = "MTLU" ‖ codec u16 ‖ run u32 ‖ window u32 ‖ base ‖ schema ‖ density u16 ‖ n u32 ‖ n × (uid u16 ‖ digest) ‖ body
//! ```
//!
//! Integers are little-endian. The object is not signed: all validators make the same one, and vote its digest.

use crate::{
    Digest, RunId, Uid, Window,
    contribution::{self, CODEC, DecodeError, EncodeError, Schema, Sparse, SparseTensor},
    params::{CHUNK_VALUES, Density, MergeRule},
    select::Selected,
};
use alloc::{vec, vec::Vec};
use codec::{Decode, Encode};

/// What the bytes of an update begin with.
pub const MAGIC: [u8; 4] = *b"MTLU";

/// One selected contribution.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub uid: Uid,
    pub update: &'a Sparse,
}

/// Why there is no merge. None of these can come of verified submissions and a buffer of this schema's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    #[error("there is nothing to merge")]
    NoInputs,
    #[error("the contribution of uid {uid} is not after the one before it")]
    OutOfOrder { uid: Uid },
    #[error("the contribution of uid {uid} is not one of this schema's")]
    WrongShape { uid: Uid },
    #[error("the merge buffer cannot be encoded")]
    Buffer(#[from] EncodeError),
}

/// Merges contributions in uid order into `buffer`, and takes the update out of it: `b ← b + mean`, encode `b`,
/// `b ← b − decoded` (PROT-18). Returns the update's body. On an error the buffer is as it was.
///
/// The mean is added at the coordinates that some contribution sent, and only there: not even the sign of a zero
/// changes elsewhere.
pub fn merge(
    schema: &Schema,
    rule: MergeRule,
    density: Density,
    inputs: &[Input<'_>],
    buffer: &mut [f32],
) -> Result<Vec<u8>, MergeError> {
    if inputs.is_empty() {
        return Err(MergeError::NoInputs);
    }
    if let Some(pair) = inputs.windows(2).find(|pair| pair[0].uid >= pair[1].uid) {
        return Err(MergeError::OutOfOrder { uid: pair[1].uid });
    }
    if let Some(input) = inputs.iter().find(|input| !fits(schema, input.update)) {
        return Err(MergeError::WrongShape { uid: input.uid });
    }
    contribution::check_encodable(schema, density, buffer)?;

    let updates: Vec<&Sparse> = inputs.iter().map(|input| input.update).collect();
    let scales = clip_scales(&updates);
    for (tensor, (range, scales)) in schema.ranges().zip(&scales).enumerate() {
        let parts: Vec<(&SparseTensor, f32)> =
            updates.iter().zip(scales).map(|(update, scale)| (&update.tensors[tensor], *scale)).collect();
        add_mean(rule, &parts, &mut buffer[range]);
    }
    Ok(contribution::encode_with_feedback(schema, density, buffer)?)
}

/// What each contribution is multiplied by, `[tensor][input]`: `min(1, median norm / own norm)`, the median being the
/// lower one, and 1 where the own norm is 0. Norms and their quotient are in f64, the scale is rounded to f32 (PROT-17).
pub fn clip_scales(inputs: &[&Sparse]) -> Vec<Vec<f32>> {
    let tensors = inputs.iter().map(|input| input.tensors.len()).min().unwrap_or(0);
    (0..tensors)
        .map(|tensor| {
            let norms: Vec<f64> =
                inputs.iter().map(|input| libm::sqrt(input.tensors[tensor].square_norm)).collect();
            let mut sorted = norms.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            let median = sorted[(sorted.len() - 1) / 2];
            let scale = |norm: &f64| if *norm > median { (median / norm) as f32 } else { 1.0 };
            norms.iter().map(scale).collect()
        })
        .collect()
}

/// `θ ← fl(θ − fl(α·u))` at every coordinate that was sent (PROT-18).
///
/// # Panics
///
/// If `theta` is not all of the schema's values, or `update` was not decoded for the schema.
pub fn apply(schema: &Schema, theta: &mut [f32], update: &Sparse, rate: f32) {
    assert_eq!(theta.len(), schema.values(), "a model has all of its schema's values");
    for (range, tensor) in schema.ranges().zip(&update.tensors) {
        let theta = &mut theta[range];
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            theta[*position as usize] -= rate * value;
        }
    }
}

/// Adds the mean of one tensor's parts to its part of the buffer, a chunk at a time.
fn add_mean(rule: MergeRule, parts: &[(&SparseTensor, f32)], buffer: &mut [f32]) {
    let mut sums = vec![0.0f32; CHUNK_VALUES];
    let mut hits = vec![0u32; CHUNK_VALUES];
    let mut read = vec![0usize; parts.len()];
    for (start, chunk) in (0..).step_by(CHUNK_VALUES).zip(buffer.chunks_mut(CHUNK_VALUES)) {
        let (sums, hits) = (&mut sums[..chunk.len()], &mut hits[..chunk.len()]);
        sums.fill(0.0);
        hits.fill(0);
        for ((tensor, scale), read) in parts.iter().zip(&mut read) {
            let positions = &tensor.positions[*read..];
            let here = positions.iter().take_while(|position| (**position as usize) < start + chunk.len());
            let mut count = 0;
            for (position, value) in here.zip(&tensor.values[*read..]) {
                let at = *position as usize - start;
                sums[at] += scale * value;
                hits[at] += 1;
                count += 1;
            }
            *read += count;
        }
        for ((value, sum), hits) in chunk.iter_mut().zip(sums).zip(hits) {
            if *hits > 0 {
                *value += *sum
                    / match rule {
                        MergeRule::MeanOverHits => *hits as f32,
                        MergeRule::MeanOverAll => parts.len() as f32,
                    };
            }
        }
    }
}

/// Whether an update has this schema's tensors, with ascending positions inside them and a finite value at each.
fn fits(schema: &Schema, update: &Sparse) -> bool {
    let tensor_fits = |(tensor, length): (&SparseTensor, usize)| {
        tensor.positions.len() == tensor.values.len()
            && tensor.positions.is_sorted_by(|a, b| a < b)
            && tensor.positions.last().is_none_or(|last| (*last as usize) < length)
            && tensor.values.iter().all(|value| value.is_finite())
            && tensor.square_norm.is_finite()
            && tensor.square_norm >= 0.0
    };
    let lengths = schema.ranges().map(|range| range.len());
    update.tensors.len() == lengths.len() && update.tensors.iter().zip(lengths).all(tensor_fits)
}

/// What an update says of itself, before its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateHeader {
    /// The version of the body's format: [`CODEC`].
    pub codec: u16,
    pub run: RunId,
    pub window: Window,
    /// Lineage of `θ_w`, the model that the update is applied to.
    pub base: Digest,
    pub schema: Digest,
    pub density: Density,
    /// What was merged, in uid order: the chain's selection.
    pub inputs: Vec<Selected>,
}

/// Why bytes are not a window's update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    #[error("the object is no update: {0}")]
    Malformed(&'static str),
    #[error("the update is written in version {got} of the format, not {CODEC}")]
    WrongCodec { got: u16 },
    #[error("the update is of run {got}")]
    WrongRun { got: RunId },
    #[error("the update is of window {got}")]
    WrongWindow { got: Window },
    #[error("the update is of another model")]
    WrongBase,
    #[error("the update's tensors are another model's")]
    WrongSchema,
    #[error("the update has a density of {}/4096", got.0)]
    WrongDensity { got: Density },
    #[error("the update's inputs are not in uid order, or there are none")]
    InputsOutOfOrder,
    #[error("the update's body cannot be decoded")]
    Undecodable(#[from] DecodeError),
}

/// The part of the header that has a fixed length.
#[derive(Encode, Decode)]
struct FixedHeader {
    codec: u16,
    run: RunId,
    window: Window,
    base: Digest,
    schema: Digest,
    density: Density,
    inputs: u32,
}

const FIXED_BYTES: usize = MAGIC.len() + 80;
const SELECTED_BYTES: usize = 34;

/// The exact bytes whose digest validators vote. `header.inputs` are in uid order, as the chain gives them.
pub fn seal_update(header: &UpdateHeader, body: &[u8]) -> Vec<u8> {
    let UpdateHeader { codec, run, window, base, schema, density, inputs } = header;
    let fixed = FixedHeader {
        codec: *codec,
        run: *run,
        window: *window,
        base: *base,
        schema: *schema,
        density: *density,
        inputs: u32::try_from(inputs.len()).expect("there are fewer seats than uids"),
    };
    let mut bytes = Vec::with_capacity(FIXED_BYTES + SELECTED_BYTES * inputs.len() + body.len());
    bytes.extend_from_slice(&MAGIC);
    fixed.encode_to(&mut bytes);
    inputs.iter().for_each(|selected| selected.encode_to(&mut bytes));
    bytes.extend_from_slice(body);
    bytes
}

/// Reads an update of this window and model. That its digest is the one voted, its caller has checked.
pub fn read_update(
    bytes: &[u8],
    schema: &Schema,
    density: Density,
    run: RunId,
    window: Window,
    base: Digest,
) -> Result<(UpdateHeader, Sparse), UpdateError> {
    let (fixed, rest) =
        bytes.split_at_checked(FIXED_BYTES).ok_or(UpdateError::Malformed("it ends inside its header"))?;
    let (magic, mut fixed) = fixed.split_at(MAGIC.len());
    if magic != MAGIC {
        return Err(UpdateError::Malformed("it does not begin as an update does"));
    }
    let fixed =
        FixedHeader::decode(&mut fixed).map_err(|_| UpdateError::Malformed("its header is broken"))?;
    if fixed.codec != CODEC {
        return Err(UpdateError::WrongCodec { got: fixed.codec });
    }
    if fixed.run != run {
        return Err(UpdateError::WrongRun { got: fixed.run });
    }
    if fixed.window != window {
        return Err(UpdateError::WrongWindow { got: fixed.window });
    }
    if fixed.base != base {
        return Err(UpdateError::WrongBase);
    }
    if fixed.schema != schema.digest() {
        return Err(UpdateError::WrongSchema);
    }
    if fixed.density != density {
        return Err(UpdateError::WrongDensity { got: fixed.density });
    }

    let (mut list, body) = (fixed.inputs as usize)
        .checked_mul(SELECTED_BYTES)
        .and_then(|length| rest.split_at_checked(length))
        .ok_or(UpdateError::Malformed("it ends inside the list of its inputs"))?;
    let inputs = (0..fixed.inputs)
        .map(|_| Selected::decode(&mut list))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| UpdateError::Malformed("its list of inputs is broken"))?;
    if inputs.is_empty() || !inputs.is_sorted_by(|a, b| a.uid < b.uid) {
        return Err(UpdateError::InputsOutOfOrder);
    }
    let update = contribution::decode(schema, density, body)?;
    let FixedHeader { codec, run, window, base, schema, density, .. } = fixed;
    Ok((UpdateHeader { codec, run, window, base, schema, density, inputs }, update))
}

/// The most bytes that the update of a merge with so many places can have: a fetcher's cap.
pub fn largest_update(schema: &Schema, density: Density, places: usize) -> usize {
    schema
        .largest_body(density)
        .saturating_add(places.saturating_mul(SELECTED_BYTES))
        .saturating_add(FIXED_BYTES)
}
