//! Commit–reveal: a party commits to a value before it shows it (PROT-30).
//!
//! Weights, and in some runs attestations and votes, are committed as a hash by a deadline and shown after it. A
//! reader of the chain in between has nothing to copy: the salt hides the few likely values, and the hotkey in the
//! hash makes a copied hash useless.

use crate::{Digest, Hotkey};
use alloc::vec::Vec;
use blake2::{Blake2b, Digest as _, digest::consts::U32};
use codec::Encode;

/// Random bytes that hide a committed value. Drawn anew for each commitment, and kept until it is revealed.
pub type Salt = [u8; 32];

/// Returns `blake2_256(SCALE(payload) ‖ salt ‖ hotkey)`, the hash that is committed (PROT-30).
///
/// Salt and hotkey have a fixed length and come last, so no two different triples share the hashed bytes.
pub fn commitment<P: Encode + ?Sized>(payload: &P, salt: &Salt, hotkey: &Hotkey) -> Digest {
    let mut bytes: Vec<u8> = payload.encode();
    bytes.extend_from_slice(salt);
    bytes.extend_from_slice(&hotkey.0);
    Digest(Blake2b::<U32>::digest(&bytes).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Uid;

    #[test]
    fn a_commitment_binds_payload_salt_and_hotkey() {
        let weights = [(Uid(1), 65535u16), (Uid(4), 7)].as_slice().to_vec();
        let (salt, hotkey) = ([3; 32], Hotkey([9; 32]));
        let this = commitment(&weights, &salt, &hotkey);
        assert_eq!(this, commitment(&weights, &salt, &hotkey));
        assert_ne!(this, commitment(&weights[..1].to_vec(), &salt, &hotkey));
        assert_ne!(this, commitment(&weights, &[4; 32], &hotkey));
        assert_ne!(this, commitment(&weights, &salt, &Hotkey([8; 32])));
    }

    /// The value from Python: `blake2b(b"\x04\x07" + bytes(32) + b"\x01" * 32, digest_size=32)`.
    #[test]
    fn a_commitment_is_the_hash_that_any_blake2_library_computes() {
        let this = commitment(&alloc::vec![7u8], &[0; 32], &Hotkey([1; 32]));
        assert_eq!(
            alloc::format!("{this}"),
            "295bb1bc899642eeb3c9c7841d78a6c2b1b9c7d39e1d1bb1d87d58f5c74ede58"
        );
    }
}
