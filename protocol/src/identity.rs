//! Identities: seats, their keys, and signatures that cannot be replayed elsewhere (PROT-9, PROT-21,
//! PROT-29).

use alloc::{string::String, vec::Vec};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use core::fmt;
use scale_info::TypeInfo;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// An account of the chain.
pub type Account = [u8; 32];

/// A run: one model being trained. Numbered by the chain from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunId(pub u32);

/// A seat in a run. A seat may change hands: records about a holder are keyed by [`SeatId`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Uid(pub u16);

/// One holder's time in a seat: the uid, and the block at which this holder registered it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
pub struct SeatId {
    pub uid: Uid,
    pub registered_at: crate::Block,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Miner,
    Validator,
}

/// An online signing key: an ed25519 public key, which is also an account of the chain.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Hotkey(pub [u8; 32]);

/// A blake3 digest. Shown and read as 64 lower-case hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Digest(pub [u8; 32]);

/// The hash of a chain's block 0. Chains number runs, windows and seats alike: only this distinguishes
/// them.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[derive(Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct GenesisHash(pub [u8; 32]);

/// An ed25519 signature over `domain ‖ 0x00 ‖ genesis hash ‖ message`.
#[derive(Clone, Copy, PartialEq, Eq, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo)]
pub struct Signature(pub [u8; 64]);

/// The purpose of a signature. Two domains never share a signed message, whatever their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Domain {
    Contribution,
    Receipt,
    Statement,
    /// Consent to hold a seat.
    Hotkey,
    /// The offer of a contribution to a peer.
    Put,
    /// The addresses of a validator's node.
    Peer,
}

impl Domain {
    const fn label(self) -> &'static [u8] {
        match self {
            Domain::Contribution => b"mettle/2/contribution",
            Domain::Receipt => b"mettle/2/receipt",
            Domain::Statement => b"mettle/2/statement",
            Domain::Hotkey => b"mettle/2/hotkey",
            Domain::Put => b"mettle/2/put",
            Domain::Peer => b"mettle/2/peer",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    #[error("the hotkey is not a valid ed25519 public key")]
    BadKey,
    #[error("the signature does not belong to this key and message")]
    BadSignature,
}

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the digest of several parts, concatenated. The caller ensures that the parts cannot be
    /// confused.
    pub fn of_parts(parts: &[&[u8]]) -> Digest {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        Digest(*hasher.finalize().as_bytes())
    }
}

/// A hotkey that signs for one chain. The key is wiped when the signer is dropped.
#[derive(Clone)]
pub struct Signer {
    key: ed25519_dalek::SigningKey,
    genesis: GenesisHash,
}

impl Signer {
    pub fn new(key: ed25519_dalek::SigningKey, genesis: GenesisHash) -> Signer {
        Signer { key, genesis }
    }

    pub fn hotkey(&self) -> Hotkey {
        Hotkey(self.key.verifying_key().to_bytes())
    }

    /// Returns the chain that the signatures are for.
    pub fn genesis(&self) -> GenesisHash {
        self.genesis
    }

    /// Signs `message` for one purpose on one chain.
    pub fn sign(&self, domain: Domain, message: &[u8]) -> Signature {
        use ed25519_dalek::Signer as _;
        Signature(self.key.sign(&framed(&self.genesis, domain, message)).to_bytes())
    }

    /// Signs a proof of possession: the hotkey's consent to hold a seat of `run` for `coldkey` (PROT-29).
    pub fn prove_possession(&self, run: RunId, coldkey: &Account) -> Signature {
        self.sign(Domain::Hotkey, &(run, coldkey).encode())
    }
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer")
            .field("hotkey", &self.hotkey())
            .field("genesis", &self.genesis)
            .finish_non_exhaustive()
    }
}

/// Checks a signature made by [`Signer::sign`], refusing the malleable encodings that plain verification
/// accepts.
///
/// # Errors
/// [`SignatureError`] if the signature is not the hotkey's for this message, purpose and chain.
pub fn verify(
    hotkey: &Hotkey,
    genesis: &GenesisHash,
    domain: Domain,
    message: &[u8],
    signature: &Signature,
) -> Result<(), SignatureError> {
    let key = ed25519_dalek::VerifyingKey::from_bytes(&hotkey.0).map_err(|_| SignatureError::BadKey)?;
    let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
    key.verify_strict(&framed(genesis, domain, message), &signature).map_err(|_| SignatureError::BadSignature)
}

/// Checks a proof made by [`Signer::prove_possession`].
///
/// # Errors
/// [`SignatureError`] if the proof is for another hotkey, chain, run or coldkey.
pub fn verify_possession(
    hotkey: &Hotkey,
    genesis: &GenesisHash,
    run: RunId,
    coldkey: &Account,
    proof: &Signature,
) -> Result<(), SignatureError> {
    verify(hotkey, genesis, Domain::Hotkey, &(run, coldkey).encode(), proof)
}

/// Concatenates the signed bytes. The genesis hash has a fixed length, so no two different triples give the
/// same bytes.
fn framed(genesis: &GenesisHash, domain: Domain, message: &[u8]) -> Vec<u8> {
    [domain.label(), &[0], &genesis.0, message].concat()
}

fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.strip_prefix("0x").unwrap_or(text).as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let nibble = |digit: u8| (digit as char).to_digit(16).and_then(|value| u8::try_from(value).ok());
        *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
    }
    Some(bytes)
}

macro_rules! hex_bytes {
    ($name:ident, $what:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:.8}…)", stringify!($name), alloc::string::ToString::to_string(self))
            }
        }
        impl core::str::FromStr for $name {
            type Err = BadHex;
            fn from_str(text: &str) -> Result<$name, BadHex> {
                parse_hex(text).map($name).ok_or(BadHex { what: $what, digits: 2 * size_of::<$name>() })
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<$name, D::Error> {
                let text = String::deserialize(deserializer)?;
                text.parse().map_err(D::Error::custom)
            }
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} is {digits} hex digits")]
pub struct BadHex {
    what: &'static str,
    digits: usize,
}

hex_bytes!(Digest, "a digest");
hex_bytes!(GenesisHash, "a genesis hash");
hex_bytes!(Hotkey, "a hotkey");
hex_bytes!(Signature, "a signature");

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Uid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Miner => "miner",
            Role::Validator => "validator",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GENESIS: GenesisHash = GenesisHash([1; 32]);

    fn signer() -> Signer {
        Signer::new(ed25519_dalek::SigningKey::from_bytes(&[7; 32]), GENESIS)
    }

    #[test]
    fn a_signature_is_valid_for_one_key_chain_purpose_and_message() {
        let (signer, domain, refused) = (signer(), Domain::Contribution, Err(SignatureError::BadSignature));
        let (hotkey, signature) = (signer.hotkey(), signer.sign(domain, b"words"));

        assert_eq!(verify(&hotkey, &GENESIS, domain, b"words", &signature), Ok(()));
        assert_eq!(verify(&hotkey, &GENESIS, Domain::Receipt, b"words", &signature), refused);
        assert_eq!(verify(&hotkey, &GenesisHash([2; 32]), domain, b"words", &signature), refused);
        assert_eq!(verify(&hotkey, &GENESIS, domain, b"other words", &signature), refused);
        assert!(verify(&Hotkey([0xff; 32]), &GENESIS, domain, b"words", &signature).is_err());
    }

    #[test]
    fn a_proof_of_possession_is_valid_for_one_key_chain_run_and_coldkey() {
        let (signer, run, coldkey) = (signer(), RunId(3), [4; 32]);
        let (hotkey, proof) = (signer.hotkey(), signer.prove_possession(run, &coldkey));
        let stranger = Signer::new(ed25519_dalek::SigningKey::from_bytes(&[8; 32]), GENESIS).hotkey();
        let refused = Err(SignatureError::BadSignature);

        assert_eq!(verify_possession(&hotkey, &GENESIS, run, &coldkey, &proof), Ok(()));
        assert_eq!(verify_possession(&stranger, &GENESIS, run, &coldkey, &proof), refused);
        assert_eq!(verify_possession(&hotkey, &GenesisHash([2; 32]), run, &coldkey, &proof), refused);
        assert_eq!(verify_possession(&hotkey, &GENESIS, RunId(4), &coldkey, &proof), refused);
        assert_eq!(verify_possession(&hotkey, &GENESIS, run, &[5; 32], &proof), refused);
        // The same message, signed for another purpose, is also refused.
        let other = signer.sign(Domain::Statement, &(run, &coldkey).encode());
        assert_eq!(verify_possession(&hotkey, &GENESIS, run, &coldkey, &other), refused);
    }

    #[test]
    fn a_signer_shows_no_secret() {
        let text = alloc::format!("{:?}", signer());
        assert!(text.contains(&alloc::format!("{:?}", signer().hotkey())), "{text}");
        assert!(!text.contains("07070707") && !text.contains("7, 7, 7"), "{text}");
    }

    #[test]
    fn a_digest_reads_back_what_it_shows() {
        let digest = Digest::of(b"model");
        assert_eq!(alloc::format!("{digest}").parse(), Ok(digest));
        assert_eq!(alloc::format!("0x{digest}").parse(), Ok(digest));
        assert!("abc".parse::<Digest>().is_err());
        assert!("zz".repeat(32).parse::<Digest>().is_err());
    }
}
