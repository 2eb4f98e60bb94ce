//! Identity of a model: a chain of hashes over all merged updates, and a hash over the values themselves
//! (PROT-19, PROT-20).
//!
//! Lineage identifies the history of a model, and can be followed without the model. The state root
//! identifies the values, in pieces of 1 MiB, so that a node that differs in one piece fetches one piece.

use crate::{Digest, RunParams};
use alloc::vec::Vec;
use codec::Encode;

/// Bytes in a piece of a checkpoint; the last one is shorter.
pub const PIECE_BYTES: usize = 1 << 20;

/// Values in a piece: each is four bytes, least significant first.
pub const PIECE_VALUES: usize = PIECE_BYTES / 4;

/// Returns `lineage_0 = blake3(params ‖ manifest ‖ weights root of θ_0)` (PROT-19).
pub fn genesis(params: &RunParams, manifest: &Digest, theta0: &Digest) -> Digest {
    Digest::of_parts(&[&params.encode(), &manifest.0, &theta0.0])
}

/// Returns `lineage_{w+1} = blake3(lineage_w ‖ digest of the update)`. A void window leaves the lineage
/// unchanged (PROT-19).
pub fn next(lineage: &Digest, update: &Digest) -> Digest {
    Digest::of_parts(&[&lineage.0, &update.0])
}

/// Returns the digest of each piece of a row, over its little-endian bytes.
pub fn piece_digests(values: &[f32]) -> Vec<Digest> {
    let mut blocks = RootOfBlocks::default();
    blocks.update(values);
    blocks.into_pieces()
}

/// A few memory pages: enough for the hash's widest lanes, without a second copy of a piece.
const HASHED_AT_ONCE: usize = 16 * 1024;

/// Returns the root of a row of values, from the digests of its pieces.
pub fn root_of_pieces(pieces: &[Digest]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"mettle/1/pieces\0");
    for piece in pieces {
        hasher.update(&piece.0);
    }
    Digest(*hasher.finalize().as_bytes())
}

/// Returns the root of a model's weights, or of a merge buffer: both are one row.
pub fn weights_root(values: &[f32]) -> Digest {
    root_of_pieces(&piece_digests(values))
}

/// Returns the root of a row of zeros: a merge buffer before the first merge.
pub fn root_of_zeros(values: usize) -> Digest {
    let of_piece = |values| Digest::of(&0f32.to_le_bytes().repeat(values));
    let whole = of_piece(PIECE_VALUES);
    let mut pieces = alloc::vec![whole; values / PIECE_VALUES];
    if !values.is_multiple_of(PIECE_VALUES) {
        pieces.push(of_piece(values % PIECE_VALUES));
    }
    root_of_pieces(&pieces)
}

/// Computes the root of a row of values that arrives in blocks, without storing it.
#[derive(Debug, Default)]
pub struct RootOfBlocks {
    piece: blake3::Hasher,
    values_in_piece: usize,
    pieces: Vec<Digest>,
}

impl RootOfBlocks {
    /// Adds the next values of the row.
    pub fn update(&mut self, mut values: &[f32]) {
        let mut bytes = Vec::with_capacity(4 * HASHED_AT_ONCE);
        while !values.is_empty() {
            let room = (PIECE_VALUES - self.values_in_piece).min(HASHED_AT_ONCE);
            let (block, rest) = values.split_at(values.len().min(room));
            bytes.clear();
            bytes.extend(block.iter().flat_map(|value| value.to_le_bytes()));
            self.piece.update(&bytes);
            self.values_in_piece += block.len();
            values = rest;
            if self.values_in_piece == PIECE_VALUES {
                self.end_piece();
            }
        }
    }

    pub fn finish(self) -> Digest {
        root_of_pieces(&self.into_pieces())
    }

    fn into_pieces(mut self) -> Vec<Digest> {
        if self.values_in_piece > 0 {
            self.end_piece();
        }
        self.pieces
    }

    fn end_piece(&mut self) {
        self.pieces.push(Digest(*self.piece.finalize().as_bytes()));
        self.piece.reset();
        self.values_in_piece = 0;
    }
}

/// Returns `blake3(weights root ‖ buffer root ‖ norms root)`, the value that validators vote on at a
/// checkpoint. A miner needs only the weights, and checks them with the two other roots (PROT-20).
pub fn state_root(weights: &Digest, buffer: &Digest, norms: &Digest) -> Digest {
    Digest::of_parts(&[&weights.0, &buffer.0, &norms.0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn a_lineage_names_every_update_and_their_order() {
        let genesis = genesis(&RunParams::default(), &Digest::of(b"manifest"), &Digest::of(b"theta"));
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        let ab = next(&next(&genesis, &a), &b);
        let ba = next(&next(&genesis, &b), &a);
        assert_ne!(ab, ba);
        assert_eq!(ab, Digest::of(&[next(&genesis, &a).0, b.0].concat()));
    }

    #[test]
    fn a_lineage_begins_with_everything_a_run_is_defined_by() {
        let (params, manifest, theta) = (RunParams::default(), Digest::of(b"manifest"), Digest::of(b"theta"));
        let of = |params: &RunParams, manifest: &Digest, theta: &Digest| genesis(params, manifest, theta);
        let this = of(&params, &manifest, &theta);
        assert_ne!(this, of(&RunParams { places: 19, ..params }, &manifest, &theta));
        assert_ne!(this, of(&params, &theta, &theta));
        assert_ne!(this, of(&params, &manifest, &manifest));
    }

    #[test]
    fn a_value_changes_its_piece_and_the_root_and_no_other_piece() {
        let mut values = vec![0.25f32; 2 * PIECE_VALUES + 3];
        let (pieces, root) = (piece_digests(&values), weights_root(&values));
        assert_eq!(pieces.len(), 3);
        assert_eq!(pieces[0], pieces[1]);
        assert_eq!(pieces[2], Digest::of(&0.25f32.to_le_bytes().repeat(3)));

        // Even the sign of a zero counts.
        values[PIECE_VALUES] = 0.0;
        let positive = piece_digests(&values);
        values[PIECE_VALUES] = -0.0;
        let negative = piece_digests(&values);
        assert_eq!([positive[0], positive[2]], [pieces[0], pieces[2]]);
        assert_ne!(positive[1], negative[1]);
        assert_ne!(weights_root(&values), root);
    }

    #[test]
    fn a_root_is_the_same_for_a_row_that_comes_in_blocks() {
        for values in [0, 1, PIECE_VALUES - 1, PIECE_VALUES, 2 * PIECE_VALUES + 3] {
            let row: Vec<f32> = (0..values).map(|i| i as f32).collect();
            for block in [1000, HASHED_AT_ONCE + 1, 3 * PIECE_VALUES] {
                let mut root = RootOfBlocks::default();
                row.chunks(block).for_each(|block| root.update(block));
                assert_eq!(root.finish(), weights_root(&row), "{values} in blocks of {block}");
            }
            assert_eq!(root_of_zeros(values), weights_root(&vec![0.0; values]));
        }
    }

    #[test]
    fn a_root_depends_on_the_order_and_number_of_pieces() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_ne!(root_of_pieces(&[a, b]), root_of_pieces(&[b, a]));
        assert_ne!(root_of_pieces(&[a]), root_of_pieces(&[a, a]));
        assert_ne!(state_root(&a, &b, &b), state_root(&b, &a, &b));
        assert_ne!(state_root(&a, &b, &b), state_root(&a, &b, &a));
    }
}
