//! The decisions of a dishonest miner, as plain functions without clock, network or disk, for processes
//! ([`crate::act`]) and simulations.

use crate::seeded_rng::SeededRng;
use bytes::Bytes;
use daemon::{Codec, Contribution};
use miner::strategy::Reading;
use protocol::{
    Digest, RunId, RunParams, Uid, Window,
    identity::Signer,
    submission::{self, Header, PREFIX_BYTES, SIGNATURE_BYTES},
};
use store::faults::Faults;

/// Run, window and seat of a decision. All of it is public.
#[derive(Clone, Copy, Debug)]
pub struct MinerContext<'a> {
    pub run: RunId,
    pub window: Window,
    pub uid: Uid,
    pub params: &'a RunParams,
    /// Codec of the run's contributions.
    pub codec: &'a Codec,
    /// Commitments on the chain when the miner presents its contribution; empty before that.
    pub commitments: &'a [(Uid, Digest)],
}

/// Inputs and result of a window's training.
#[derive(Clone, Copy, Debug)]
pub struct TrainedWindow<'a> {
    /// Contributions of other seats to the earlier windows, the latest first, in uid order.
    pub seen: &'a [Contribution],
    /// Weights of the window's model.
    pub before: &'a [f32],
    /// Weights after the training.
    pub after: &'a [f32],
}

impl MinerContext<'_> {
    /// Returns randomness of this seat in this window, equal on every call with this purpose.
    pub fn rng(&self, purpose: &str) -> SeededRng {
        SeededRng::new(&[
            purpose.as_bytes(),
            &self.run.0.to_le_bytes(),
            &self.window.0.to_le_bytes(),
            &self.uid.0.to_le_bytes(),
        ])
    }
}

/// Decisions of one miner, in the order of a window. The defaults are those of an honest miner.
pub trait Adversary: Send {
    /// Returns the sequences to train on, in order. `assigned` are the seat's, out of `of` in the training split. If
    /// the result is empty, it does not train.
    fn sequences(&mut self, _at: &MinerContext<'_>, assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        assigned
    }

    /// Returns whether it trains on the next window's data before that window's model arrives, like honest miners. By
    /// default it decides with the model available.
    fn trains_ahead(&self) -> bool {
        false
    }

    /// Returns how its training reads the text of each step; `None`: all of it.
    fn reading(&self) -> Option<Reading> {
        None
    }

    /// Returns the prefix `t` to declare.
    fn declares(&mut self, _at: &MinerContext<'_>, trained: u32, _assigned: u32) -> u32 {
        trained
    }

    /// Returns the number of earlier windows of which it needs valid contributions. The caller fetches some of each
    /// before it requests the outcome.
    fn looks_back(&self) -> u32 {
        0
    }

    /// Returns the weights whose difference from the window's model it submits. `None`: not yet; the caller tries
    /// again.
    fn outcome(&mut self, _at: &MinerContext<'_>, trained: &TrainedWindow<'_>) -> Option<Vec<f32>> {
        Some(trained.after.to_vec())
    }

    /// Returns whether it commits as late as possible, to see the other commitments first.
    fn waits_for_commitments(&self) -> bool {
        false
    }

    /// Returns its commitments and uploads. `own` is the honest contribution.
    fn present(&mut self, _at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        Presentation::honest(own)
    }

    /// Returns the faults that its bucket injects for readers.
    fn faults(&self) -> Faults {
        Faults::default()
    }
}

/// The honest contribution, sealed, and the key to seal another one.
#[derive(Clone, Debug)]
pub struct OwnContribution<'a> {
    pub header: Header,
    /// Header, body and signature.
    pub bytes: Bytes,
    pub signer: &'a Signer,
}

impl OwnContribution<'_> {
    pub fn body(&self) -> &[u8] {
        let end = self.bytes.len().saturating_sub(SIGNATURE_BYTES);
        self.bytes.get(PREFIX_BYTES..end).unwrap_or_default()
    }

    pub fn digest(&self) -> Digest {
        Digest::of(&self.bytes)
    }

    /// Returns the same body under another header.
    pub fn sealed_as(&self, header: Header) -> Bytes {
        submission::seal(&header, self.body(), self.signer).into()
    }
}

/// The commitments and uploads of a miner's window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Presentation {
    /// Commitments in order; the last one in time binds (PROT-11).
    pub commits: Vec<Commit>,
    pub uploads: Vec<Upload>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Commit {
    pub digest: Digest,
    pub when: Timing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upload {
    /// Digest that names the object.
    pub under: Digest,
    pub what: Content,
    pub when: Timing,
}

/// Before or after the deadline of commitments, or of uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    InTime,
    Late,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Bytes(Bytes),
    /// The bytes that this seat publishes under the same digest, once they are published.
    BytesOf(Uid),
}

impl Presentation {
    /// Commits and uploads in time.
    pub fn honest(own: &OwnContribution<'_>) -> Presentation {
        Presentation::of(own.bytes.clone())
    }

    /// Commits to these bytes and uploads them.
    pub fn of(bytes: Bytes) -> Presentation {
        let digest = Digest::of(&bytes);
        Presentation {
            commits: vec![Commit { digest, when: Timing::InTime }],
            uploads: vec![Upload { under: digest, what: Content::Bytes(bytes), when: Timing::InTime }],
        }
    }
}

/// Returns the pseudo-gradient `before − after`.
pub fn delta(before: &[f32], after: &[f32]) -> Vec<f32> {
    before.iter().zip(after).map(|(before, after)| before - after).collect()
}

/// Returns the weights that differ from `before` by `delta`.
pub fn moved(before: &[f32], delta: &[f32]) -> Vec<f32> {
    before.iter().zip(delta).map(|(before, delta)| before - delta).collect()
}

/// Returns all values of a contribution, with zeros for unsent ones. `None` if its body cannot be decoded.
pub fn values(codec: &Codec, contribution: &Contribution) -> Option<Vec<f32>> {
    let update = codec.decode(contribution.body()).ok()?;
    let mut values = vec![0.0; codec.schema().values()];
    for (range, tensor) in codec.schema().ranges().zip(&update.tensors) {
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            values[range.start + *position as usize] = *value;
        }
    }
    Some(values)
}

/// Returns the root of the sum of squares.
pub fn norm(values: &[f32]) -> f64 {
    libm::sqrt(values.iter().map(|value| f64::from(*value) * f64::from(*value)).sum())
}

/// Returns the lower median of the norms of `seen`; `None` if it is empty.
pub fn median_norm(seen: &[Contribution]) -> Option<f64> {
    let mut norms: Vec<f64> = seen.iter().map(|seen| libm::sqrt(seen.square_norms.iter().sum())).collect();
    norms.sort_by(f64::total_cmp);
    norms.get(norms.len().checked_sub(1)? / 2).copied()
}
