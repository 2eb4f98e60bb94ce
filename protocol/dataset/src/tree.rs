//! Pieces of a shard, each checked against the digest of the shard.
//!
//! BLAKE3 is a tree over its input, and its digest is the root. So the hashes of all pieces of 16 KiB are enough to
//! check any piece against the digest in the manifest: a reader joins the hashes, from any source, up to the root,
//! and if that is the digest, all of them are right. The manifest contains nothing about pieces, and any holder of a
//! shard can build its tree.

use blake3::hazmat::{self, HasherExt as _, Mode};
use protocol::{Digest, ensure};
use std::ops::Range;

/// Length of a piece in bytes; the last piece of a shard may be shorter.
pub const PIECE_BYTES: u64 = 16 << 10;
const HASH_BYTES: u64 = 32;

/// The verified hashes of the pieces of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTree {
    shard: Digest,
    bytes: u64,
    /// Empty for a shard of one piece, whose hash is the digest of the shard.
    hashes: Vec<[u8; 32]>,
}

/// Bytes that are not the tree of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("these are not the hashes of the pieces of shard {shard}")]
pub struct TreeMismatch {
    pub shard: Digest,
}

impl ShardTree {
    /// Returns the length of the tree of a shard of `bytes` bytes, in bytes.
    pub fn length(bytes: u64) -> u64 {
        let pieces = bytes.div_ceil(PIECE_BYTES);
        if pieces <= 1 { 0 } else { pieces * HASH_BYTES }
    }

    /// Reads the tree of the shard with this digest and length from untrusted bytes.
    ///
    /// # Errors
    /// If the bytes are not this tree.
    pub fn from_bytes(shard: Digest, bytes: u64, tree: &[u8]) -> Result<ShardTree, TreeMismatch> {
        ensure!(tree.len() as u64 == ShardTree::length(bytes), TreeMismatch { shard });
        let hashes = tree.chunks_exact(32).map(|hash| hash.try_into().expect("32 bytes")).collect();
        ShardTree { shard, bytes, hashes }.checked()
    }

    fn checked(self) -> Result<ShardTree, TreeMismatch> {
        let is_right = self.hashes.is_empty() || root(&self.hashes, self.bytes) == self.shard;
        ensure!(is_right, TreeMismatch { shard: self.shard });
        Ok(self)
    }

    /// Returns the stored form.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.hashes.concat()
    }

    /// Returns the pieces that `range` touches.
    pub fn pieces(range: &Range<u64>) -> Range<u64> {
        range.start / PIECE_BYTES..range.end.div_ceil(PIECE_BYTES)
    }

    /// Returns the range of piece `number` in the shard.
    pub fn range(&self, number: u64) -> Range<u64> {
        let start = number * PIECE_BYTES;
        start..(start + PIECE_BYTES).min(self.bytes)
    }

    /// Returns whether these are the bytes of piece `number`.
    pub fn holds(&self, number: u64, piece: &[u8]) -> bool {
        let range = self.range(number);
        if range.is_empty() || range.end - range.start != piece.len() as u64 {
            return false;
        }
        match usize::try_from(number).ok().and_then(|number| self.hashes.get(number)) {
            Some(hash) => hash_of(number, piece) == *hash,
            None => Digest::of(piece) == self.shard,
        }
    }
}

/// Builds a tree from the bytes of a shard as they arrive.
pub struct TreeBuilder {
    bytes: u64,
    piece: Vec<u8>,
    hashes: Vec<[u8; 32]>,
}

impl TreeBuilder {
    /// Creates a builder for a shard of `bytes` bytes.
    pub fn new(bytes: u64) -> TreeBuilder {
        TreeBuilder { bytes, piece: Vec::new(), hashes: Vec::new() }
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.piece.len() == PIECE_BYTES as usize {
                self.end_piece();
            }
            let room = PIECE_BYTES as usize - self.piece.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
        }
    }

    fn end_piece(&mut self) {
        self.hashes.push(hash_of(self.hashes.len() as u64, &self.piece));
        self.piece.clear();
    }

    /// Returns the tree, if the bytes were those of `shard`.
    ///
    /// # Errors
    /// If they were not.
    pub fn finish(mut self, shard: Digest) -> Result<ShardTree, TreeMismatch> {
        if self.hashes.is_empty() {
            ensure!(Digest::of(&self.piece) == shard, TreeMismatch { shard });
        } else {
            self.end_piece();
        }
        ensure!(
            self.hashes.len() as u64 * HASH_BYTES == ShardTree::length(self.bytes),
            TreeMismatch { shard }
        );
        ShardTree { shard, bytes: self.bytes, hashes: self.hashes }.checked()
    }
}

fn hash_of(number: u64, piece: &[u8]) -> [u8; 32] {
    blake3::Hasher::new().set_input_offset(number * PIECE_BYTES).update(piece).finalize_non_root()
}

/// Computes the digest of `bytes` bytes from the hashes of its pieces, two or more.
fn root(hashes: &[[u8; 32]], bytes: u64) -> Digest {
    let (left, right) = halves(hashes, bytes);
    Digest(*hazmat::merge_subtrees_root(&left, &right, Mode::Hash).as_bytes())
}

fn halves(hashes: &[[u8; 32]], bytes: u64) -> ([u8; 32], [u8; 32]) {
    // A power of two, at least a piece, because there is more than one piece.
    let left = hazmat::left_subtree_len(bytes);
    let (first, second) = hashes.split_at((left / PIECE_BYTES) as usize);
    (joined(first, left), joined(second, bytes - left))
}

fn joined(hashes: &[[u8; 32]], bytes: u64) -> [u8; 32] {
    match hashes {
        [one] => *one,
        _ => {
            let (left, right) = halves(hashes, bytes);
            hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shard(bytes: usize) -> Vec<u8> {
        (0..bytes as u64)
            .flat_map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).to_le_bytes()[7..].to_vec())
            .collect()
    }

    fn tree(shard: &[u8]) -> ShardTree {
        let mut builder = TreeBuilder::new(shard.len() as u64);
        shard.chunks(1000).for_each(|bytes| builder.push(bytes));
        builder.finish(Digest::of(shard)).expect("its own bytes")
    }

    #[test]
    fn every_piece_of_every_length_is_checked_against_the_digest() {
        const PIECE: usize = PIECE_BYTES as usize;
        for bytes in
            [1, 1000, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 7, 8 * PIECE, 13 * PIECE + 1025]
        {
            let shard = shard(bytes);
            let tree = tree(&shard);
            let stored = tree.to_bytes();
            assert_eq!(stored.len() as u64, ShardTree::length(bytes as u64));
            assert_eq!(ShardTree::from_bytes(Digest::of(&shard), bytes as u64, &stored), Ok(tree.clone()));
            for (number, piece) in (0..).zip(shard.chunks(PIECE)) {
                assert!(tree.holds(number, piece), "{bytes} {number}");
                assert!(!tree.holds(number + 1, piece));
                assert!(!tree.holds(number, &piece[1..]));
                let mut wrong = piece.to_vec();
                wrong[piece.len() / 2] ^= 1;
                assert!(!tree.holds(number, &wrong));
            }
            assert!(!tree.holds(shard.len().div_ceil(PIECE) as u64, &[]));
        }
        assert_eq!(ShardTree::pieces(&(PIECE_BYTES - 1..PIECE_BYTES + 1)), 0..2);
        assert_eq!(ShardTree::pieces(&(PIECE_BYTES..2 * PIECE_BYTES)), 1..2);
    }

    proptest! {
        #[test]
        fn no_other_bytes_are_its_tree(bytes in 1usize..100_000, at in any::<usize>(), bit in 0u8..8, cut in 0usize..40) {
            let shard = shard(bytes);
            let (digest, bytes) = (Digest::of(&shard), bytes as u64);
            let mut stored = tree(&shard).to_bytes();
            if !stored.is_empty() {
                let at = at % stored.len();
                stored[at] ^= 1 << bit;
                prop_assert_eq!(ShardTree::from_bytes(digest, bytes, &stored), Err(TreeMismatch { shard: digest }));
                stored[at] ^= 1 << bit;
            }
            stored.resize(stored.len() + 1 + cut, 0);
            prop_assert!(ShardTree::from_bytes(digest, bytes, &stored).is_err());
            let mut builder = TreeBuilder::new(bytes);
            builder.push(&shard[1..]);
            prop_assert!(builder.finish(digest).is_err());
        }
    }
}
