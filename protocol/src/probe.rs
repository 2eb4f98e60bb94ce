//! Probes: proof that a validator measured what it votes on (PROT-2, PROT-27, PROT-30).
//!
//! A part of a window's common sequences is the same for all validators. A validator's losses on them after each
//! selected contribution are the leaves of a Merkle tree, whose root goes on the chain with its receipt. After the
//! epoch, a block hash draws a few pairs of window and seat. The validator opens its leaves for them on the chain. The
//! losses that more than half of the stake agree on are right.
//!
//! ```text
//! root ── node ── leaf 0: the losses after the contribution of the first selected seat
//!      │       └─ leaf 1
//!      └─ leaf 2: the last node of an odd level is moved up as it is
//! ```
//!
//! A window's tree has one leaf for each selected seat, in uid order. So each seat has one place, and a validator cannot
//! bind itself to two answers for it. A leaf names its validator, so that another's root is worthless as one's own.

use crate::{Digest, RunId, SeatId, Uid, Window, assign, ensure};
use alloc::vec::Vec;
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use serde::{Deserialize, Serialize};

/// Pairs of window and seat that are drawn for an epoch, at most.
pub const PROBES: u32 = 8;

/// Common sequences of a window that are the same for all validators, at most.
pub const SEQUENCES_MAX: u32 = 16;

/// Windows between a window and the first epoch end that draws from it, at least: the time to anchor its root.
pub const DELAY_WINDOWS: u32 = 2;

/// Hashes of a proof, at most: enough for 2048 seats.
pub const PROOF_MAX: u32 = 11;

/// A selected contribution whose losses the validators show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct Probe {
    pub window: Window,
    pub uid: Uid,
}

/// A leaf and its proof: what a validator shows for a [`Probe`].
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, TypeInfo)]
pub struct Answer {
    /// Losses after the contribution on the window's probe sequences, in millionths of a nat per token.
    pub losses: Vec<u32>,
    /// The neighbours on the way from the leaf to the root.
    pub proof: Vec<Digest>,
}

/// The leaves of one validator and window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaves {
    pub run: RunId,
    pub window: Window,
    /// The validator's seat, with the block of its registration: its successor cannot open its leaves.
    pub validator: SeatId,
}

/// Why an answer does not belong to a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProofError {
    #[error("the seat is not among those that the tree has leaves of")]
    NoSuchLeaf,
    #[error("the proof has another length than the tree has levels")]
    Length,
    #[error("the losses do not belong to the anchored root")]
    OtherLosses,
}

/// A loss in nats per token as it stands in a leaf: in millionths, rounded, within the bounds of the type.
pub fn millionths(loss: f64) -> u32 {
    // The conversion rounds down and saturates; what is not a number becomes 0.
    (loss * 1e6 + 0.5) as u32
}

/// How many of `evaluation_sequences` common sequences are the same for all validators: a quarter, rounded up, at most
/// [`SEQUENCES_MAX`]. The others are drawn with the validator's salt, which no block author knows.
pub fn sequences(evaluation_sequences: u32) -> usize {
    evaluation_sequences.div_ceil(4).min(SEQUENCES_MAX) as usize
}

impl Leaves {
    /// The leaf of the selected seat `uid`; `losses` is `None` if the validator did not measure it.
    pub fn leaf(&self, uid: Uid, losses: Option<&[u32]>) -> Digest {
        let Leaves { run, window, validator } = self;
        let bytes = (run, window, validator, uid, losses).encode();
        Digest::of_parts(&[b"mettle/1/probe-leaf", &bytes])
    }
}

/// The root over the leaves of a window's selected seats, in uid order. Without leaves it is a constant.
pub fn root(leaves: &[Digest]) -> Digest {
    let mut level = leaves.to_vec();
    while level.len() > 1 {
        level = level_above(&level);
    }
    level.first().copied().unwrap_or_else(|| Digest::of(b"mettle/1/probe-none"))
}

/// The neighbours of the leaf at `place` on its way to the root, lowest first; `None` if there is no such leaf.
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

/// Checks that `leaf` stands at `place` of the `count` leaves under `root`.
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

/// The pairs that the opening of `first`, the first window after an epoch, draws from the epoch's probe windows
/// ([`crate::RunParams::probe_windows`]): for each merged one its selected seats, both in order. At most [`PROBES`],
/// all different, in order.
pub fn draw(run: RunId, first: Window, opening_hash: &Digest, selected: &[(Window, Vec<Uid>)]) -> Vec<Probe> {
    let pairs: Vec<Probe> = selected
        .iter()
        .flat_map(|(window, seats)| seats.iter().map(|uid| Probe { window: *window, uid: *uid }))
        .collect();
    let seed = assign::seed(assign::domain::PROBES, run, first, opening_hash);
    let order = assign::Permutation::new(&seed, pairs.len() as u64);
    let places = order.iter().take(PROBES as usize);
    let mut drawn: Vec<Probe> =
        places.filter_map(|place| pairs.get(usize::try_from(place).ok()?).copied()).collect();
    drawn.sort_unstable();
    drawn
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
