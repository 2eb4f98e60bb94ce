//! Probes: proof that a validator measured its votes (PROT-2, PROT-27, PROT-30).
//!
//! A part of a window's common sequences is the same for all validators. A validator's losses on them after each
//! selected contribution are the leaves of a Merkle tree, whose root the validator anchors with its receipt. After the
//! epoch, a block hash draws a few pairs of window and seat. The validator opens its leaves for them on the chain.
//! The losses on which more than half of the stake agrees are right.
//!
//! ```text
//! root ── node ── leaf 0: the losses after the contribution of the first selected seat
//!      │       └─ leaf 1
//!      └─ leaf 2: the last node of an odd level is moved up as it is
//! ```
//!
//! A window's tree has one leaf for each selected seat, in uid order. So each seat has one place, and a validator
//! cannot bind itself to two answers for it. A leaf includes its validator's seat, so a validator cannot reuse
//! another's root.

use crate::{Digest, RunId, SeatId, Uid, Window, consensus::ONE, draw, ensure};
use alloc::{vec, vec::Vec};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// Maximum number of pairs of window and seat that are drawn for an epoch.
pub const PROBES: u32 = 8;

/// Maximum number of common sequences of a window that are the same for all validators.
pub const SEQUENCES_MAX: u32 = 16;

/// Minimum number of windows between a window and the first epoch end that draws from it: the time to anchor its
/// root.
pub const DELAY_WINDOWS: u32 = 2;

/// Maximum number of hashes in a proof: enough for 2048 seats.
pub const PROOF_MAX: u32 = 11;

/// A selected contribution for which validators show losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Probe {
    pub window: Window,
    pub uid: Uid,
}

/// A validator's response to a [`Probe`]: a leaf and its proof.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, TypeInfo)]
pub struct Answer {
    /// Losses after the contribution on the window's probe sequences, in millionths of a nat per token. `None` proves
    /// that the leaf has no losses: the validator did not measure the contribution.
    pub losses: Option<Vec<u32>>,
    /// The sibling hashes on the path from the leaf to the root.
    pub proof: Vec<Digest>,
}

/// Context of the leaves of one validator and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    pub run: RunId,
    pub window: Window,
    /// The validator's seat, with the block of its registration: its successor cannot open its leaves.
    pub validator: SeatId,
}

/// A validator at the close of an epoch, with its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The stake that counts, even if the validator showed nothing.
    pub stake: u128,
    /// Index in the draw of the first contribution since the holder registered. Earlier ones do not count for it.
    pub first: usize,
    /// Its losses for each drawn contribution, in the order of the draw. Missing ones at the end count as `None`.
    pub answers: Vec<Option<Vec<u32>>>,
}

/// Result of an epoch's probes for one validator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeVerdict {
    /// Contributions since its registration on whose losses more than half of the stake agrees. If there were none
    /// since then, all of them: nothing shows that it measured.
    pub counted: u32,
    /// Counted contributions for which the validator showed the right losses.
    pub right: u32,
    /// Counted contributions for which it showed other losses.
    pub wrong: u32,
}

/// Reason why an answer does not belong to a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    #[error("the seat is not among those that the tree has leaves of")]
    NoSuchLeaf,
    #[error("the proof has another length than the tree has levels")]
    Length,
    #[error("the losses do not belong to the anchored root")]
    OtherLosses,
}

/// Converts a loss in nats per token to the unit of a leaf: millionths, rounded, within the bounds of the type.
pub fn millionths(loss: f64) -> u32 {
    // The conversion rounds down and saturates; NaN becomes 0.
    (loss * 1e6 + 0.5) as u32
}

/// Returns how many of `evaluation_sequences` common sequences are the same for all validators: a quarter, rounded
/// up, at most [`SEQUENCES_MAX`]. The others are drawn with the validator's salt, which block authors do not know.
pub fn sequences(evaluation_sequences: u32) -> usize {
    evaluation_sequences.div_ceil(4).min(SEQUENCES_MAX) as usize
}

impl Leaves {
    /// Returns the leaf of the selected seat `uid`; `losses` is `None` if the validator did not measure it.
    pub fn leaf(&self, uid: Uid, losses: Option<&[u32]>) -> Digest {
        let Leaves { run, window, validator } = self;
        let bytes = (run, window, validator, uid, losses).encode();
        Digest::of_parts(&[b"mettle/1/probe-leaf", &bytes])
    }
}

/// Returns the root over the leaves of a window's selected seats, in uid order. Without leaves it is a constant.
pub fn root(leaves: &[Digest]) -> Digest {
    let mut level = leaves.to_vec();
    while level.len() > 1 {
        level = level_above(&level);
    }
    level.first().copied().unwrap_or_else(|| Digest::of(b"mettle/1/probe-none"))
}

/// Returns the sibling hashes of the leaf at `place`, lowest first; `None` if there is no such leaf.
pub fn proof(leaves: &[Digest], place: usize) -> Option<Vec<Digest>> {
    ensure_place(place, leaves.len()).ok()?;
    let (mut level, mut place, mut proof) = (leaves.to_vec(), place, Vec::new());
    while level.len() > 1 {
        proof.extend(level.get(place ^ 1));
        level = level_above(&level);
        place /= 2;
    }
    Some(proof)
}

/// Checks that `leaf` is at `place` of the `count` leaves under `root`.
///
/// # Errors
/// If there is no such place, or the proof does not lead from the leaf to the root.
pub fn verify(
    root: &Digest,
    count: usize,
    place: usize,
    leaf: Digest,
    proof: &[Digest],
) -> Result<(), ProofError> {
    ensure_place(place, count)?;
    let (mut node, mut place, mut count, mut rest) = (leaf, place, count, proof.iter());
    while count > 1 {
        if place ^ 1 < count {
            let neighbour = rest.next().ok_or(ProofError::Length)?;
            node = if place % 2 == 0 { join(&node, neighbour) } else { join(neighbour, &node) };
        }
        (place, count) = (place / 2, count.div_ceil(2));
    }
    ensure!(rest.next().is_none(), ProofError::Length);
    ensure!(node == *root, ProofError::OtherLosses);
    Ok(())
}

/// Returns the pairs that the opening of `first`, the first window after an epoch, draws from the epoch's probe
/// windows ([`crate::RunParams::probe_windows`]). `selected` has each merged window's selected seats, both in order.
/// At most [`PROBES`], all different, in order.
pub fn draw(run: RunId, first: Window, opening_hash: &Digest, selected: &[(Window, Vec<Uid>)]) -> Vec<Probe> {
    let pairs: Vec<Probe> = selected
        .iter()
        .flat_map(|(window, seats)| seats.iter().map(|uid| Probe { window: *window, uid: *uid }))
        .collect();
    let seed = draw::seed(draw::domain::PROBES, run, first, opening_hash);
    let order = draw::Permutation::new(&seed, pairs.len() as u64);
    let places = order.iter().take(PROBES as usize);
    let mut drawn: Vec<Probe> =
        places.filter_map(|place| pairs.get(usize::try_from(place).ok()?).copied()).collect();
    drawn.sort_unstable();
    drawn
}

/// Judges the answers of an active set's validators on `drawn` contributions, each by the others (PROT-30).
///
/// The right losses are the medians by stake of those shown, per sequence. They count if more than half of all stake
/// showed losses within `tolerance` of them: so less than half of the stake cannot make others wrong.
pub fn judge(drawn: usize, validators: &[Shown], tolerance: u32) -> Vec<ProbeVerdict> {
    let mut verdicts = vec![ProbeVerdict { counted: 0, right: 0, wrong: 0 }; validators.len()];
    let total = stake_of(validators.iter().map(|shown| shown.stake));
    let mut counted = 0;
    for place in 0..drawn {
        let answers: Vec<(u128, &[u32])> =
            validators.iter().filter_map(|shown| Some((shown.stake, shown.answer(place)?))).collect();
        let Some(right) = median_losses(&answers) else { continue };
        let is_right = |losses: &[u32]| {
            let near = |(one, other): (&u32, &u32)| one.abs_diff(*other) <= tolerance;
            losses.len() == right.len() && losses.iter().zip(&right).all(near)
        };
        let agreed = stake_of(answers.iter().filter(|(_, losses)| is_right(losses)).map(|(stake, _)| *stake));
        if agreed <= total / 2 {
            continue;
        }
        counted += 1;
        for (verdict, shown) in verdicts.iter_mut().zip(validators).filter(|(_, shown)| shown.first <= place)
        {
            verdict.counted += 1;
            match shown.answer(place) {
                Some(losses) if is_right(losses) => verdict.right += 1,
                Some(_) => verdict.wrong += 1,
                None => {}
            }
        }
    }
    for verdict in verdicts.iter_mut().filter(|verdict| verdict.counted == 0) {
        verdict.counted = counted;
    }
    verdicts
}

impl Shown {
    fn answer(&self, place: usize) -> Option<&[u32]> {
        self.answers.get(place).filter(|_| self.first <= place)?.as_deref()
    }
}

impl ProbeVerdict {
    /// Returns the part of its dividends that the validator earns, in parts of [`ONE`]. It is 0 after a wrong answer,
    /// otherwise the part of the counted contributions that it showed. If none counts, it is [`ONE`].
    pub fn earns(&self) -> u64 {
        let ProbeVerdict { counted, right, wrong } = *self;
        match (wrong, counted) {
            (1.., _) => 0,
            (0, 0) => ONE,
            _ => ONE * u64::from(right) / u64::from(counted),
        }
    }
}

/// Returns the medians by stake, per sequence, of the answers with the median number of sequences; `None` without
/// any.
fn median_losses(answers: &[(u128, &[u32])]) -> Option<Vec<u32>> {
    let lengths = answers.iter().map(|(stake, losses)| (losses.len(), *stake)).collect();
    let length = median_by_stake(lengths)?;
    let of_length = |place: usize| {
        let losses = answers.iter().filter(|(_, losses)| losses.len() == length);
        losses.filter_map(|(stake, losses)| Some((*losses.get(place)?, *stake))).collect()
    };
    (0..length).map(|place| median_by_stake(of_length(place))).collect()
}

/// Returns the least value at which half of the stake is reached.
fn median_by_stake<V: Copy + Ord>(mut values: Vec<(V, u128)>) -> Option<V> {
    values.sort_unstable();
    let total = stake_of(values.iter().map(|(_, stake)| *stake));
    let half = total.div_ceil(2);
    let mut reached = 0u128;
    values.into_iter().find_map(|(value, stake)| {
        reached = reached.saturating_add(stake);
        (half <= reached).then_some(value)
    })
}

fn stake_of(stakes: impl Iterator<Item = u128>) -> u128 {
    stakes.fold(0, u128::saturating_add)
}

fn ensure_place(place: usize, count: usize) -> Result<(), ProofError> {
    ensure!(place < count, ProofError::NoSuchLeaf);
    Ok(())
}

fn level_above(level: &[Digest]) -> Vec<Digest> {
    let node = |pair: &[Digest]| match pair {
        [left, right] => Some(join(left, right)),
        [last] => Some(*last),
        _ => None,
    };
    level.chunks(2).filter_map(node).collect()
}

fn join(left: &Digest, right: &Digest) -> Digest {
    Digest::of_parts(&[b"mettle/1/probe-node", &left.0, &right.0])
}

#[cfg(test)]
mod tests;
