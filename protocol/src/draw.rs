//! Draws from hashes of blocks: seeds and keyed permutations (PROT-2).

use crate::{Digest, RunId, Window};

/// Purposes of seeds. Two domains never share a seed.
pub mod domain {
    /// The assignment of a window's positions to seats (PROT-5).
    pub const ASSIGN: &str = "assign";
    /// The draws of the selection (PROT-16).
    pub const SELECT: &str = "select";
    /// The sequences that a validator judges by (PROT-22).
    pub const EVALUATE: &str = "evaluate";
    /// The common sequences that are the same for all validators (PROT-22).
    pub const PROBE: &str = "probe";
    /// The measurements that validators show after an epoch (PROT-30).
    pub const PROBES: &str = "probes";
    /// The validators that a miner without a bucket sends its contribution to (PROT-34).
    pub const RECEIVERS: &str = "receivers";
}

/// Returns `blake3(domain ‖ run ‖ w ‖ hash)`, numbers as four bytes, little-endian; `hash` is of a block,
/// or a mix of revealed salts (PROT-2). Everything after the domain has a fixed length, so two different
/// inputs never give the same bytes.
pub fn seed(domain: &str, run: RunId, window: Window, hash: &Digest) -> Digest {
    Digest::of_parts(&[domain.as_bytes(), &run.0.to_le_bytes(), &window.0.to_le_bytes(), &hash.0])
}

/// A keyed bijection of `0..len` onto itself, computed for one position at a time in constant memory.
///
/// A Feistel network over pairs `(left < a, right < b)` with `a·b ≥ len`, adding the round function modulo
/// `a` and `b` in turn. A result outside `0..len` is passed through again; as `a·b < len + a`, that is
/// rare.
#[derive(Clone, Debug)]
pub struct Permutation {
    key: [u8; 32],
    len: u64,
    /// `⌈√len⌉`, at least 1: number of values of the left half.
    lefts: u64,
    /// `⌈len / lefts⌉`, at least 1: number of values of the right half.
    rights: u64,
}

/// Enough that no statistic of small domains distinguishes the result from a random order; each round costs
/// one compression.
const ROUNDS: u8 = 10;

impl Permutation {
    pub fn new(key: &Digest, len: u64) -> Permutation {
        let floor = len.isqrt();
        let lefts = if floor.checked_mul(floor) == Some(len) { floor } else { floor + 1 }.max(1);
        Permutation { key: key.0, len, lefts, rights: len.div_ceil(lefts).max(1) }
    }

    /// Returns the value at `position`. A position past the end wraps around; in an empty permutation every
    /// value is 0.
    pub fn at(&self, position: u64) -> u64 {
        self.walk(position, |permutation, value| permutation.forward(value))
    }

    /// Returns the position of `value`: the inverse of [`Permutation::at`].
    pub fn position_of(&self, value: u64) -> u64 {
        self.walk(value, |permutation, value| permutation.backward(value))
    }

    /// Returns every value once, in order of position.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len).map(|position| self.at(position))
    }

    /// Follows the cycle of the larger domain until it re-enters `0..len`. It does, because it started
    /// there.
    fn walk(&self, start: u64, step: impl Fn(&Permutation, u64) -> u64) -> u64 {
        let Some(mut value) = start.checked_rem(self.len) else { return 0 };
        loop {
            value = step(self, value);
            if value < self.len {
                return value;
            }
        }
    }

    fn forward(&self, value: u64) -> u64 {
        let (mut left, mut right) = (value % self.lefts, value / self.lefts);
        for round in 0..ROUNDS {
            if round % 2 == 0 {
                left = (left + self.round(round, right) % self.lefts) % self.lefts;
            } else {
                right = (right + self.round(round, left) % self.rights) % self.rights;
            }
        }
        right * self.lefts + left
    }

    fn backward(&self, value: u64) -> u64 {
        let (mut left, mut right) = (value % self.lefts, value / self.lefts);
        for round in (0..ROUNDS).rev() {
            if round % 2 == 0 {
                left = (left + self.lefts - self.round(round, right) % self.lefts) % self.lefts;
            } else {
                right = (right + self.rights - self.round(round, left) % self.rights) % self.rights;
            }
        }
        right * self.lefts + left
    }

    fn round(&self, round: u8, half: u64) -> u64 {
        let mut input = [0; 9];
        input[0] = round;
        input[1..].copy_from_slice(&half.to_le_bytes());
        first_u64(blake3::keyed_hash(&self.key, &input).as_bytes())
    }
}

/// Returns the first eight bytes of a hash as a little-endian number.
pub(crate) fn first_u64(hash: &[u8; 32]) -> u64 {
    hash.iter().take(8).rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
