//! Merges contributions into one update, bit for bit the same on every machine (PROT-17, PROT-18).
//!
//! Three steps: each contribution is scaled down to the reference norm, tensor by tensor; the scaled values are
//! averaged coordinate by coordinate, in the order of uids; and the mean is encoded again, with an
//! error-feedback buffer of its own that is the same on every node. There is one rounding per operation and
//! no fused multiply-add, so the order of operations determines every bit.
//!
//! ```text
//! object = "MTLU" ‖ codec u16 ‖ run u32 ‖ window u32 ‖ base ‖ schema ‖ density u16
//!          ‖ n u32 ‖ n × (uid u16 ‖ digest) ‖ m u32 ‖ m × norm f64 ‖ body
//! ```
//!
//! Numbers are little-endian. The norms are those that the window adds to the running norms: one per
//! tensor, or none. So a node that does not merge has them, too. The object is not signed: all validators
//! compute the same one, and vote on its digest.

use crate::{
    Digest, RunId, Uid, Window,
    contribution::{self, CODEC, DecodeError, EncodeError, Schema, Sparse, SparseTensor},
    ensure,
    norms::{self, RunningNorms},
    params::{Density, MergeRule},
    select::Selected,
};
use alloc::{vec, vec::Vec};
use codec::{Decode, Encode};

/// The first bytes of an update.
pub const MAGIC: [u8; 4] = *b"MTLU";

/// One selected contribution.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub uid: Uid,
    /// Consensus weight at the opening of the window; 0 if the seat has none.
    pub weight: u16,
    pub update: &'a Sparse,
}

/// Reason why a merge fails. Verified submissions and a buffer of this schema cause none of these.
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

/// Result of a merge.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    /// The update's body.
    pub body: Vec<u8>,
    /// Norms that the window adds to the running norms: the reference norm of each tensor; empty if no
    /// input has a weight.
    pub norms: Vec<f64>,
}

/// Merges contributions in uid order into `buffer`, and subtracts the update: `b ← b + mean`, encode `b`,
/// `b ← b − decoded` (PROT-18).
///
/// The mean is added only at coordinates that some contribution sent: elsewhere not even the sign of a zero
/// changes.
///
/// # Errors
/// [`MergeError`] if there are no inputs, or if they or the buffer do not fit. The buffer is then unchanged.
pub fn merge(
    schema: &Schema,
    rule: MergeRule,
    density: Density,
    inputs: &[Input<'_>],
    running: &RunningNorms,
    buffer: &mut [f32],
) -> Result<Merged, MergeError> {
    ensure!(!inputs.is_empty(), MergeError::NoInputs);
    if let Some(pair) = inputs.windows(2).find(|pair| pair[0].uid >= pair[1].uid) {
        return Err(MergeError::OutOfOrder { uid: pair[1].uid });
    }
    if let Some(input) = inputs.iter().find(|input| !fits(schema, input.update)) {
        return Err(MergeError::WrongShape { uid: input.uid });
    }
    contribution::check_encodable(schema, density, buffer)?;

    let updates: Vec<&Sparse> = inputs.iter().map(|input| input.update).collect();
    let weights: Vec<u16> = inputs.iter().map(|input| input.weight).collect();
    let square_norms: Vec<Vec<f64>> = updates.iter().map(|update| square_norms(update)).collect();
    let references = reference_norms(&square_norms, &weights, running);
    let scales = clip_scales(&square_norms, &references);
    for (tensor, (range, scales)) in schema.ranges().zip(&scales).enumerate() {
        let parts: Vec<(&SparseTensor, f32)> =
            updates.iter().zip(scales).map(|(update, scale)| (&update.tensors[tensor], *scale)).collect();
        add_mean(rule, &parts, &mut buffer[range]);
    }
    let body = contribution::encode_with_feedback(schema, density, buffer)?;
    Ok(Merged { body, norms: norms_to_keep(references, &weights) })
}

/// Returns the norms that a window's merge adds to the running norms. Without weights there are none:
/// unweighted reference norms would be chosen by the holder of most seats.
pub fn norms_to_keep(references: Vec<f64>, weights: &[u16]) -> Vec<f64> {
    if weights.iter().all(|weight| *weight == 0) { Vec::new() } else { references }
}

/// Lower bound of a tensor's norm, as a part of the reference norm. Below it the merge leaves the
/// contribution out of the tensor (PROT-17).
pub const NORM_PART_MIN: f64 = 1.0 / 1024.0;

/// Returns the norm of each tensor to which larger ones are scaled down, in f64 (PROT-17). It is the
/// weighted median of the contributions' norms, unweighted if no input has a weight, kept within a factor
/// of the running norm. `square_norms` are `[input][tensor]`.
pub fn reference_norms(
    square_norms: &[impl AsRef<[f64]>],
    weights: &[u16],
    running: &RunningNorms,
) -> Vec<f64> {
    let tensors = square_norms.iter().map(|norms| norms.as_ref().len()).min().unwrap_or(0);
    (0..tensors)
        .map(|tensor| {
            let norms: Vec<f64> =
                square_norms.iter().map(|norms| libm::sqrt(norms.as_ref()[tensor])).collect();
            running.reference(tensor, median_norm(&norms, weights))
        })
        .collect()
}

/// Returns the factor of each contribution, `[tensor][input]`: `min(1, reference norm / own norm)`, and 0
/// for one that is left out. `square_norms` are `[input][tensor]`. Norms and their quotient are in f64, the
/// scale is rounded to f32 (PROT-17).
pub fn clip_scales(square_norms: &[impl AsRef<[f64]>], references: &[f64]) -> Vec<Vec<f32>> {
    let scale =
        |norms: &[f64], tensor: usize, reference: f64| clip_scale(libm::sqrt(norms[tensor]), reference);
    references
        .iter()
        .enumerate()
        .map(|(tensor, reference)| {
            square_norms.iter().map(|norms| scale(norms.as_ref(), tensor, *reference)).collect()
        })
        .collect()
}

/// Returns the least norm at which half of the weight is reached; unweighted if the weights add up to 0. 0
/// without norms.
pub fn median_norm(norms: &[f64], weights: &[u16]) -> f64 {
    let by_head = weights.iter().all(|weight| *weight == 0);
    let votes = |weight: u16| if by_head { 1 } else { u64::from(weight) };
    let mut sorted: Vec<(f64, u64)> =
        norms.iter().zip(weights).map(|(norm, weight)| (*norm, votes(*weight))).collect();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let total: u64 = sorted.iter().map(|(_, votes)| votes).sum();
    let mut reached = 0;
    let median = sorted.iter().find(|(_, votes)| {
        reached += votes;
        total <= 2 * reached
    });
    median.map_or(0.0, |(norm, _)| *norm)
}

/// Returns the scale of a contribution whose tensor has this norm.
pub fn clip_scale(norm: f64, reference: f64) -> f32 {
    if norm < NORM_PART_MIN * reference {
        0.0
    } else if norm > reference {
        (reference / norm) as f32
    } else {
        1.0
    }
}

/// Computes `θ ← fl(θ − fl(α·u))` at every coordinate that was sent (PROT-18).
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

/// Returns the square norm of each tensor.
pub fn square_norms(update: &Sparse) -> Vec<f64> {
    update.tensors.iter().map(|tensor| tensor.square_norm).collect()
}

/// Adds the mean of one tensor's parts to its part of the buffer. Parts with a scale of 0 are left out.
fn add_mean(rule: MergeRule, parts: &[(&SparseTensor, f32)], buffer: &mut [f32]) {
    let mut sums = vec![(0.0f32, 0u32); buffer.len()];
    let counted = || parts.iter().filter(|(_, scale)| *scale != 0.0);
    for (tensor, scale) in counted() {
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            let (sum, hits) = &mut sums[*position as usize];
            *sum += scale * value;
            *hits += 1;
        }
    }
    for (value, (sum, hits)) in buffer.iter_mut().zip(sums).filter(|(_, (_, hits))| *hits > 0) {
        let divisor = match rule {
            MergeRule::MeanOverHits => hits as f32,
            MergeRule::MeanOverAll => counted().count() as f32,
        };
        *value += sum / divisor;
    }
}

/// Returns whether an update has this schema's tensors, with ascending positions inside them and a finite
/// value at each.
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

/// Header of an update.
#[derive(Clone, Debug, PartialEq)]
pub struct UpdateHeader {
    /// The version of the body's format: [`CODEC`].
    pub codec: u16,
    pub run: RunId,
    pub window: Window,
    /// Lineage of `θ_w`, the model that the update is applied to.
    pub base: Digest,
    pub schema: Digest,
    pub density: Density,
    /// Merged contributions, in uid order: the chain's selection.
    pub inputs: Vec<Selected>,
    /// Norms that the window adds to the running norms: [`Merged::norms`].
    pub norms: Vec<f64>,
}

/// Reason why bytes are not a window's update.
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
    #[error("the update's norms are not one number per tensor, or none at all")]
    WrongNorms,
    #[error("the update's body cannot be decoded")]
    Undecodable(#[from] DecodeError),
}

/// The part of the header with a fixed length: its fields, and the number of inputs.
type FixedHeader = (u16, RunId, Window, Digest, Digest, Density, u32);

const FIXED_BYTES: usize = MAGIC.len() + 80;
const SELECTED_BYTES: usize = 34;
const NORM_COUNT_BYTES: usize = 4;
const NORM_BYTES: usize = 8;

/// Returns the exact bytes whose digest validators vote on. `header.inputs` are in uid order, as the chain
/// gives them.
pub fn seal_update(header: &UpdateHeader, body: &[u8]) -> Vec<u8> {
    let UpdateHeader { codec, run, window, base, schema, density, inputs, norms } = header;
    let count = u32::try_from(inputs.len()).expect("there are fewer seats than uids");
    let norm_count = u32::try_from(norms.len()).expect("tensors are counted in 32 bits");
    let lists = SELECTED_BYTES * inputs.len() + NORM_COUNT_BYTES + NORM_BYTES * norms.len();
    let mut bytes = Vec::with_capacity(FIXED_BYTES + lists + body.len());
    bytes.extend_from_slice(&MAGIC);
    (*codec, *run, *window, *base, *schema, *density, count).encode_to(&mut bytes);
    inputs.iter().for_each(|selected| selected.encode_to(&mut bytes));
    norm_count.encode_to(&mut bytes);
    norms.iter().for_each(|norm| norm.encode_to(&mut bytes));
    bytes.extend_from_slice(body);
    bytes
}

/// Reads the header of an update of this window and model, and returns it with the body, which is not
/// decoded. The caller has checked that the digest of `bytes` is the one voted.
///
/// # Errors
/// [`UpdateError`] if the bytes are not an update, or one of another run, window, model or density.
pub fn open_update<'a>(
    bytes: &'a [u8],
    schema: &Schema,
    density: Density,
    run: RunId,
    window: Window,
    base: Digest,
) -> Result<(UpdateHeader, &'a [u8]), UpdateError> {
    let (fixed, rest) =
        bytes.split_at_checked(FIXED_BYTES).ok_or(UpdateError::Malformed("it ends inside its header"))?;
    let (magic, mut fixed) = fixed.split_at(MAGIC.len());
    ensure!(magic == MAGIC, UpdateError::Malformed("it does not begin as an update does"));
    let (codec, of_run, of_window, of_base, of_schema, of_density, count) =
        FixedHeader::decode(&mut fixed).map_err(|_| UpdateError::Malformed("its header is broken"))?;
    ensure!(codec == CODEC, UpdateError::WrongCodec { got: codec });
    ensure!(of_run == run, UpdateError::WrongRun { got: of_run });
    ensure!(of_window == window, UpdateError::WrongWindow { got: of_window });
    ensure!(of_base == base, UpdateError::WrongBase);
    ensure!(of_schema == schema.digest(), UpdateError::WrongSchema);
    ensure!(of_density == density, UpdateError::WrongDensity { got: of_density });

    let (mut list, rest) = (count as usize)
        .checked_mul(SELECTED_BYTES)
        .and_then(|length| rest.split_at_checked(length))
        .ok_or(UpdateError::Malformed("it ends inside the list of its inputs"))?;
    let inputs = (0..count)
        .map(|_| Selected::decode(&mut list))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| UpdateError::Malformed("its list of inputs is broken"))?;
    ensure!(!inputs.is_empty() && inputs.is_sorted_by(|a, b| a.uid < b.uid), UpdateError::InputsOutOfOrder);

    let ends_inside_norms = UpdateError::Malformed("it ends inside its norms");
    let (count, rest) = rest.split_first_chunk().ok_or(ends_inside_norms.clone())?;
    let (norms, body) = (u32::from_le_bytes(*count) as usize)
        .checked_mul(NORM_BYTES)
        .and_then(|length| rest.split_at_checked(length))
        .ok_or(ends_inside_norms)?;
    let norms: Vec<f64> = norms.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect();
    let fit = norms.is_empty() || norms.len() == schema.tensors().len();
    ensure!(fit && norms::are_norms(&norms), UpdateError::WrongNorms);
    Ok((UpdateHeader { codec, run, window, base, schema: of_schema, density, inputs, norms }, body))
}

/// Returns the maximum length of the update of a merge with `places` places, in bytes: a fetcher's limit.
pub fn largest_update(schema: &Schema, density: Density, places: usize) -> usize {
    schema
        .largest_body(density)
        .saturating_add(places.saturating_mul(SELECTED_BYTES))
        .saturating_add(schema.tensors().len().saturating_mul(NORM_BYTES))
        .saturating_add(NORM_COUNT_BYTES)
        .saturating_add(FIXED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contribution::tests::{dense, gaussian, rows};
    use proptest::prelude::*;

    const LENGTHS: [u32; 3] = [4096, 1, 5000];
    const SENT: Density = Density(64);
    const MERGED: Density = Density(256);

    fn contributions(schema: &Schema, seed: u64, count: usize) -> Vec<Sparse> {
        (0..count as u64)
            .map(|index| {
                let scale = 0.001 * (1 + index) as f32;
                let values: Vec<f32> =
                    gaussian(seed ^ index << 32, schema.values()).iter().map(|x| x * scale).collect();
                let body = contribution::encode(schema, SENT, &values).unwrap();
                contribution::decode(schema, SENT, &body).unwrap()
            })
            .collect()
    }

    fn inputs(updates: &[Sparse]) -> Vec<Input<'_>> {
        let input = |(uid, update)| Input { uid: Uid(uid), weight: uid % 4, update };
        (0..).step_by(3).zip(updates).map(input).collect()
    }

    /// Returns the norms of ten windows: those of the last tensor bind from above, those of the middle one
    /// from below.
    fn running() -> RunningNorms {
        let mut running = RunningNorms::default();
        (0..10).for_each(|_| running.push(vec![0.01, 0.1, 0.001]));
        running
    }

    /// Returns the mean, coordinate by coordinate over the whole model, as PROT-17 defines it; `None` where
    /// nothing was sent.
    fn mean_by_the_book(schema: &Schema, rule: MergeRule, updates: &[Sparse]) -> Vec<Option<f32>> {
        let norms: Vec<Vec<f64>> = updates.iter().map(square_norms).collect();
        let weights: Vec<u16> = inputs(updates).iter().map(|input| input.weight).collect();
        let scales = clip_scales(&norms, &reference_norms(&norms, &weights, &running()));
        let (mut sums, mut hits) = (vec![0.0f32; schema.values()], vec![0; schema.values()]);
        let mut counted = vec![0; schema.values()];
        for (which, update) in updates.iter().enumerate() {
            for ((range, tensor), scales) in schema.ranges().zip(&update.tensors).zip(&scales) {
                if scales[which] == 0.0 {
                    continue;
                }
                for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                    let at = range.start + *position as usize;
                    let scaled = scales[which] * value;
                    sums[at] += scaled;
                    hits[at] += 1;
                }
                counted[range].iter_mut().for_each(|counted| *counted += 1);
            }
        }
        let divisor = |hits: usize, counted: usize| match rule {
            MergeRule::MeanOverHits => hits as f32,
            MergeRule::MeanOverAll => counted as f32,
        };
        let mean = |((sum, hits), counted)| (hits > 0).then(|| sum / divisor(hits, counted));
        sums.into_iter().zip(hits).zip(counted).map(mean).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_merge_follows_the_book(
            seed in any::<u64>(),
            count in 1usize..7,
            rule in prop_oneof![Just(MergeRule::MeanOverHits), Just(MergeRule::MeanOverAll)],
        ) {
            let schema = rows(&LENGTHS);
            let updates = contributions(&schema, seed, count);
            let mut buffer: Vec<f32> =
                gaussian(!seed, schema.values()).iter().map(|x| x * 1e-4).collect();

            let mut expected = buffer.clone();
            for (value, mean) in expected.iter_mut().zip(mean_by_the_book(&schema, rule, &updates)) {
                *value += mean.unwrap_or(-0.0);
            }
            let expected_body = contribution::encode_with_feedback(&schema, MERGED, &mut expected).unwrap();

            let merged = merge(&schema, rule, MERGED, &inputs(&updates), &running(), &mut buffer).unwrap();
            prop_assert!(merged.body == expected_body);
            prop_assert!(buffer.iter().map(|x| x.to_bits()).eq(expected.iter().map(|x| x.to_bits())));
        }

        #[test]
        fn a_merge_depends_on_inputs_and_buffer_alone(seed in any::<u64>()) {
            let schema = rows(&LENGTHS);
            let updates = contributions(&schema, seed, 4);
            let (mut one, mut other) = (vec![0.0; schema.values()], vec![0.0; schema.values()]);
            let first = merge(&schema, MergeRule::MeanOverHits, MERGED, &inputs(&updates), &running(), &mut one).unwrap();
            let renamed: Vec<_> = inputs(&updates).into_iter().map(|input| Input { uid: Uid(input.uid.0 + 100), ..input }).collect();
            let second = merge(&schema, MergeRule::MeanOverHits, MERGED, &renamed, &running(), &mut other).unwrap();
            prop_assert!(first == second && one == other);
        }

        #[test]
        fn what_is_merged_and_not_sent_waits_in_the_buffer(seed in any::<u64>()) {
            let schema = rows(&LENGTHS);
            let updates = contributions(&schema, seed, 3);
            let mut buffer = vec![0.0; schema.values()];
            let merged =
                merge(&schema, MergeRule::MeanOverHits, Density(16), &inputs(&updates), &running(), &mut buffer);
            let body = merged.unwrap().body;
            let sent = dense(&schema, &contribution::decode(&schema, Density(16), &body).unwrap());
            let means = mean_by_the_book(&schema, MergeRule::MeanOverHits, &updates);
            for ((mean, sent), left) in means.into_iter().zip(sent).zip(buffer) {
                prop_assert_eq!(left, mean.unwrap_or(0.0) - sent);
            }
        }
    }

    /// Returns an update of one tensor of 4096 values, with the given entries.
    fn update(entries: &[(u32, f32)]) -> Sparse {
        let tensor = SparseTensor {
            positions: entries.iter().map(|(position, _)| *position).collect(),
            values: entries.iter().map(|(_, value)| *value).collect(),
            square_norm: entries.iter().map(|(_, value)| f64::from(*value).powi(2)).sum(),
        };
        Sparse { tensors: vec![tensor] }
    }

    #[test]
    fn the_mean_is_over_those_who_sent_a_coordinate_or_over_all() {
        let schema = rows(&[4096]);
        let updates = [update(&[(1, 3.0), (2, 4.0)]), update(&[(2, 3.0), (3, -4.0)])];
        let sent = |rule| {
            let mut buffer = vec![0.0; 4096];
            merge(&schema, rule, Density(1), &inputs(&updates), &none(), &mut buffer).unwrap();
            buffer
        };
        // One value is sent, and leaves the buffer: the largest one, or the lower of two.
        assert_eq!(sent(MergeRule::MeanOverHits)[1..4], [3.0, 3.5, 0.0]);
        assert_eq!(sent(MergeRule::MeanOverAll)[1..4], [1.5, 0.0, -2.0]);
    }

    #[test]
    fn a_coordinate_that_nobody_sent_keeps_even_the_sign_of_its_zero() {
        let schema = rows(&[4096]);
        let mut buffer = vec![-0.0; 4096];
        merge(
            &schema,
            MergeRule::MeanOverHits,
            Density(1),
            &inputs(&[update(&[(7, 1.0), (9, 0.0)])]),
            &none(),
            &mut buffer,
        )
        .unwrap();
        assert!(buffer[8].is_sign_negative() && buffer[10].is_sign_negative());
        assert!(buffer[7].is_sign_positive() && buffer[9].is_sign_positive());
    }

    #[test]
    fn who_is_louder_than_the_median_is_turned_down_to_it() {
        let of = |norm: f32| update(&[(0, norm)]);
        let check = |norms: &[f32], expected: &[f32]| {
            let updates: Vec<Sparse> = norms.iter().map(|norm| of(*norm)).collect();
            let norms: Vec<Vec<f64>> = updates.iter().map(square_norms).collect();
            let references = reference_norms(&norms, &vec![0; norms.len()], &none());
            assert_eq!(clip_scales(&norms, &references), [expected]);
        };
        check(&[1.0, 100.0, 2.0], &[1.0, 0.02, 1.0]);
        // An even number has the lower median: half of the contributions cannot raise it.
        check(&[1.0, 100.0, 2.0, 100.0], &[1.0, 0.02, 1.0, 0.02]);
        check(&[4.0, 1.0], &[0.25, 1.0]);
        check(&[5.0], &[1.0]);
        check(&[0.0, 0.0, 3.0], &[1.0, 1.0, 0.0]);
        check(&[2.0 / 1024.0, 2.0, 3.0], &[1.0, 1.0, (2.0f64 / 3.0) as f32]);
        assert!(reference_norms(&[[0.0; 0]; 0], &[], &none()).is_empty());
    }

    fn none() -> RunningNorms {
        RunningNorms::default()
    }

    /// Returns how far a merge moves the model, and how far its honest work does. Of 24 seats with equal
    /// weights `honest` ones send a norm of 1, and the others `norm`. Each sends a coordinate of its own.
    fn steps(honest: usize, norm: f32, running: &RunningNorms) -> (f64, f64) {
        let schema = rows(&[4096]);
        let norms = vec![1.0; honest].into_iter().chain(vec![norm; 24 - honest]);
        let updates: Vec<Sparse> = (1..).zip(norms).map(|(at, norm)| update(&[(at, norm)])).collect();
        let inputs: Vec<_> = inputs(&updates).into_iter().map(|input| Input { weight: 1, ..input }).collect();
        let mut buffer = vec![0.0; 4096];
        let merged = merge(&schema, MergeRule::MeanOverHits, MERGED, &inputs, running, &mut buffer).unwrap();
        let update = dense(&schema, &contribution::decode(&schema, MERGED, &merged.body).unwrap());
        let moved = |range: core::ops::Range<usize>| {
            range.map(|at| f64::from(update[at] + buffer[at]).powi(2)).sum::<f64>().sqrt()
        };
        (moved(1..25), moved(1..honest + 1))
    }

    /// Returns the norms of a run in which honest work has had a norm of 1.
    fn usual(windows: usize) -> RunningNorms {
        let mut running = RunningNorms::default();
        (0..windows).for_each(|_| running.push(vec![1.0]));
        running
    }

    #[test]
    fn a_majority_of_huge_norms_moves_the_model_at_most_four_times_as_far() {
        let honest = steps(24, 1.0, &none()).0;
        let times = |windows| steps(11, 7500.0, &usual(windows)).0 / honest;
        let (without, with) = (times(norms::WINDOWS_MIN - 1), times(norms::WINDOWS_MIN));
        std::println!(
            "a bomb of 13 of 24 seats: {without:.1} times an honest step, with a running norm {with:.2}"
        );
        assert!(5000.0 < without);
        assert!(with < norms::FACTOR_MAX);
    }

    #[test]
    fn a_majority_of_tiny_norms_leaves_honest_work_a_quarter_of_its_step() {
        let honest = steps(12, 1.0, &none()).1;
        for norm in [1e-9, 1e-6, 2e-3] {
            let share = |windows| steps(12, norm, &usual(windows)).1 / honest;
            let (without, with) = (share(norms::WINDOWS_MIN - 1), share(norms::WINDOWS_MIN));
            std::println!(
                "12 of 24 seats at {norm:e}: honest work has {without:.1e}, with a running norm {with:.2}"
            );
            assert!(without < 1.1 * f64::from(norm));
            assert!((1.0 / norms::FACTOR_MAX - 0.01..=1.0).contains(&with));
        }
    }

    #[test]
    fn norms_that_count_heads_are_not_kept() {
        let schema = rows(&[4096]);
        let updates = [update(&[(1, 3.0)]), update(&[(1, 4.0)])];
        let merged = |weight| {
            let inputs: Vec<_> =
                inputs(&updates).into_iter().map(|input| Input { weight, ..input }).collect();
            let mut buffer = vec![0.0; 4096];
            merge(&schema, MergeRule::MeanOverHits, Density(64), &inputs, &none(), &mut buffer).unwrap()
        };
        assert_eq!(merged(1).norms, [3.0]);
        assert_eq!(merged(0), Merged { norms: Vec::new(), ..merged(1) });
    }

    #[test]
    fn a_majority_by_head_without_a_weight_does_not_move_the_median() {
        let norms = |junk: f64| -> Vec<Vec<f64>> {
            [1.0, 1.1].into_iter().chain([junk; 10]).map(|norm: f64| vec![norm * norm]).collect()
        };
        let weights: Vec<u16> = [300, 200].into_iter().chain([0; 10]).collect();
        let scales = |junk| {
            let norms = norms(junk);
            clip_scales(&norms, &reference_norms(&norms, &weights, &none())).remove(0)
        };
        // A huge norm is scaled down to the median of the two seats with a weight.
        assert_eq!(scales(7500.0)[..3], [1.0, (1.0f64 / 1.1) as f32, (1.0 / 7500.0) as f32]);
        // A tiny norm does not scale down others, and is left out.
        assert_eq!(scales(1e-6)[..3], [1.0, (1.0f64 / 1.1) as f32, 0.0]);
    }

    #[test]
    fn the_median_is_the_least_norm_that_half_of_the_weight_reaches() {
        assert_eq!(median_norm(&[1.0, 2.0, 3.0], &[1, 1, 2]), 2.0);
        assert_eq!(median_norm(&[1.0, 2.0, 3.0], &[1, 1, 3]), 3.0);
        assert_eq!(median_norm(&[3.0, 1.0], &[u16::MAX, u16::MAX]), 1.0);
        assert_eq!(median_norm(&[3.0, 1.0, 5.0], &[0, 0, 0]), 3.0);
        assert_eq!(median_norm(&[], &[]), 0.0);
    }

    #[test]
    fn a_contribution_far_below_the_median_does_not_thin_out_the_mean() {
        let schema = rows(&[4096]);
        let updates = [update(&[(1, 3.0)]), update(&[(1, 4.0)]), update(&[(1, 1e-3)])];
        for rule in [MergeRule::MeanOverHits, MergeRule::MeanOverAll] {
            let mut buffer = vec![0.0; 4096];
            let inputs: Vec<_> =
                inputs(&updates).into_iter().map(|input| Input { weight: 1, ..input }).collect();
            let body = merge(&schema, rule, Density(64), &inputs, &none(), &mut buffer).unwrap().body;
            let sent = dense(&schema, &contribution::decode(&schema, Density(64), &body).unwrap());
            assert_eq!(sent[1] + buffer[1], 3.0, "both are scaled to 3, the third does not count");
        }
    }

    #[test]
    fn what_cannot_be_merged_is_refused_and_leaves_the_buffer_alone() {
        let schema = rows(&[4096]);
        let good = update(&[(1, 1.0)]);
        let buffer = vec![0.5f32; 4096];
        let refused = |inputs: &[Input<'_>], buffer: &[f32]| {
            let mut copy = buffer.to_vec();
            let error =
                merge(&schema, MergeRule::MeanOverHits, MERGED, inputs, &none(), &mut copy).unwrap_err();
            assert!(copy.iter().map(|x| x.to_bits()).eq(buffer.iter().map(|x| x.to_bits())));
            error
        };
        fn input(uid: u16, update: &Sparse) -> Input<'_> {
            Input { uid: Uid(uid), weight: 0, update }
        }

        assert_eq!(refused(&[], &buffer), MergeError::NoInputs);
        for uid in [2, 3] {
            let unordered = [input(3, &good), input(uid, &good)];
            assert_eq!(refused(&unordered, &buffer), MergeError::OutOfOrder { uid: Uid(uid) });
        }
        let negative =
            Sparse { tensors: vec![SparseTensor { square_norm: -1.0, ..good.tensors[0].clone() }] };
        let uneven = Sparse { tensors: vec![SparseTensor { values: vec![], ..good.tensors[0].clone() }] };
        for bad in [
            Sparse { tensors: vec![] },
            update(&[(4096, 1.0)]),
            update(&[(2, 1.0), (2, 1.0)]),
            update(&[(2, f32::NAN)]),
            negative,
            uneven,
        ] {
            let mixed = [input(1, &good), input(2, &bad)];
            assert_eq!(refused(&mixed, &buffer), MergeError::WrongShape { uid: Uid(2) });
        }
        let wrong = EncodeError::WrongLength { expected: 4096, got: 1 };
        assert_eq!(refused(&[input(1, &good)], &[0.0]), MergeError::Buffer(wrong));
        let mut broken = buffer.clone();
        broken[9] = f32::INFINITY;
        let wrong = EncodeError::NotFinite { tensor: "row0".into(), position: 9 };
        assert_eq!(refused(&[input(1, &good)], &broken), MergeError::Buffer(wrong));
    }

    #[test]
    fn an_update_moves_only_what_it_names() {
        let schema = rows(&[4096]);
        let mut theta = vec![-0.0f32; 4096];
        theta[5] = 1.0;
        apply(&schema, &mut theta, &update(&[(5, 0.5), (6, -2.0)]), 0.7);
        assert_eq!(theta[5].to_bits(), (1.0f32 - 0.7f32 * 0.5).to_bits());
        assert_eq!(theta[6], 0.7 * 2.0);
        assert!(theta[4].is_sign_negative());
    }

    const BASE: Digest = Digest([5; 32]);

    fn sealed(change: impl FnOnce(&mut UpdateHeader), body: &[u8]) -> Vec<u8> {
        let selected = |uid| Selected { uid: Uid(uid), digest: Digest([uid as u8; 32]) };
        let mut header = UpdateHeader {
            codec: CODEC,
            run: RunId(1),
            window: Window(2),
            base: BASE,
            schema: rows(&[4096]).digest(),
            density: MERGED,
            inputs: vec![selected(3), selected(8)],
            norms: vec![0.5],
        };
        change(&mut header);
        seal_update(&header, body)
    }

    fn read(bytes: &[u8]) -> Result<(UpdateHeader, Sparse), UpdateError> {
        let schema = rows(&[4096]);
        let (header, body) = open_update(bytes, &schema, MERGED, RunId(1), Window(2), BASE)?;
        Ok((header, contribution::decode(&schema, MERGED, body)?))
    }

    #[test]
    fn an_update_reads_back_as_it_was_sealed() {
        let schema = rows(&[4096]);
        let body = contribution::encode(&schema, MERGED, &gaussian(1, 4096)).unwrap();
        let bytes = sealed(|_| (), &body);
        let (header, update) = read(&bytes).unwrap();
        assert_eq!(seal_update(&header, &body), bytes);
        assert_eq!(update, contribution::decode(&schema, MERGED, &body).unwrap());
        assert!(bytes.len() <= largest_update(&schema, MERGED, 2));
        for length in 0..bytes.len() {
            assert!(read(&bytes[..length]).is_err());
        }
    }

    #[test]
    fn an_update_of_something_else_is_refused_for_what_differs() {
        let body = contribution::encode(&rows(&[4096]), MERGED, &gaussian(1, 4096)).unwrap();
        let refused = |change: fn(&mut UpdateHeader)| read(&sealed(change, &body)).unwrap_err();

        assert_eq!(refused(|header| header.codec = 2), UpdateError::WrongCodec { got: 2 });
        assert_eq!(refused(|header| header.run = RunId(0)), UpdateError::WrongRun { got: RunId(0) });
        assert_eq!(refused(|header| header.window = Window(3)), UpdateError::WrongWindow { got: Window(3) });
        assert_eq!(refused(|header| header.base = Digest([6; 32])), UpdateError::WrongBase);
        assert_eq!(refused(|header| header.schema = BASE), UpdateError::WrongSchema);
        assert_eq!(refused(|header| header.density = SENT), UpdateError::WrongDensity { got: SENT });
        assert_eq!(refused(|header| header.inputs.reverse()), UpdateError::InputsOutOfOrder);
        assert_eq!(refused(|header| header.inputs.clear()), UpdateError::InputsOutOfOrder);
        assert_eq!(refused(|header| header.inputs[1] = header.inputs[0]), UpdateError::InputsOutOfOrder);
        assert_eq!(refused(|header| header.norms.push(0.5)), UpdateError::WrongNorms);
        for norm in [f64::NAN, f64::INFINITY, -0.5] {
            assert_eq!(
                read(&sealed(|header| header.norms = vec![norm], &body)),
                Err(UpdateError::WrongNorms)
            );
        }
        assert!(read(&sealed(|header| header.norms.clear(), &body)).is_ok());

        let bytes = sealed(|_| (), &body);
        assert!(matches!(read(&bytes[..bytes.len() - 1]), Err(UpdateError::Undecodable(_))));
        assert!(matches!(read(&bytes[1..]), Err(UpdateError::Malformed(_))));
        assert!(matches!(read(b"MTLU"), Err(UpdateError::Malformed(_))));
        for count in [FIXED_BYTES - 4, FIXED_BYTES + 2 * SELECTED_BYTES] {
            let mut endless = bytes.clone();
            endless[count..count + 4].fill(0xff);
            assert!(matches!(read(&endless), Err(UpdateError::Malformed(_))));
        }
    }
}
