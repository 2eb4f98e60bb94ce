//! A contribution on its way: who made it, for which window, from which model (PROT-9).
//!
//! A stranger's bytes climb: bytes → [`Submission`] (decoded, bounds checked) → [`VerifiedSubmission`] (the right
//! seat, window and model, signed, and every entry in place). Only the last is ever merged or put on a device.
//!
//! ```text
//! object = "MTLC" ‖ header, 114 bytes ‖ signature, 64 bytes ‖ body
//! ```
//!
//! The header is in SCALE: its fields in order, integers little-endian. The signature is over the header and the
//! body's digest; the digest committed on the chain is over the whole object.

use crate::{
    Digest, Hotkey, RunId, Uid, Window,
    contribution::{self, CODEC, DecodeError, LEVEL_MAX, Schema, Sparse},
    identity::{self, Domain, Signature},
    params::Density,
};
use alloc::vec::Vec;
use codec::{Decode, Encode, MaxEncodedLen};

/// What the bytes of a contribution begin with.
pub const MAGIC: [u8; 4] = *b"MTLC";

const SIGNATURE_BYTES: usize = 64;

/// A larger root mean square of the values sent in any tensor is no training: the largest level is 15 (PROT-14).
pub const RMS_MAX: f64 = LEVEL_MAX as f64 / 2.0;

/// What a contribution is bound to: nobody else, and no other window or model, can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, MaxEncodedLen)]
pub struct Header {
    /// The version of the body's format: [`CODEC`].
    pub codec: u16,
    pub run: RunId,
    pub window: Window,
    pub uid: Uid,
    pub hotkey: Hotkey,
    /// Lineage of `θ_w`, the model that was trained from.
    pub base: Digest,
    /// Digest of the schema of that model.
    pub schema: Digest,
    pub density: Density,
    /// `t`: how many of the seat's sequences it finished, from the first on; at least one (PROT-6).
    pub trained: u32,
}

/// The exact bytes to commit to and upload, signed.
pub fn seal(header: &Header, body: &[u8], key: &ed25519_dalek::SigningKey) -> Vec<u8> {
    let header = header.encode();
    let signature = identity::sign(key, Domain::Contribution, &signed_message(&header, body));
    let mut bytes = Vec::with_capacity(PREFIX_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(&signature.0);
    bytes.extend_from_slice(body);
    bytes
}

/// The most bytes a submission can have: a fetcher's cap, known before a byte is fetched (PROT-8, PROT-13).
pub fn largest_bytes(schema: &Schema, density: Density) -> usize {
    schema.largest_body(density).saturating_add(PREFIX_BYTES)
}

/// Bytes with a header, not yet believed.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    pub header: Header,
    signature: Signature,
    body: &'a [u8],
    bytes: &'a [u8],
}

/// What the chain knows of a contribution before it is fetched.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub run: RunId,
    pub window: Window,
    pub uid: Uid,
    pub hotkey: Hotkey,
    /// Lineage of `θ_w`.
    pub base: Digest,
    pub schema: &'a Schema,
    pub density: Density,
    pub sequences_per_seat: u32,
    /// The digest that the seat committed.
    pub digest: Digest,
}

/// A contribution that everything was checked of. Its values are in place for the schema, finite and bounded.
#[derive(Clone, Debug, PartialEq)]
pub struct VerifiedSubmission {
    pub header: Header,
    pub update: Sparse,
}

/// Why a submission does not count (PROT-14). It is evidence, and lowers a rating; it never stops a window.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    #[error("it committed to bytes that it did not provide")]
    Missing,
    #[error("its bytes came after the deadline")]
    Late,
    #[error("it has {bytes} bytes, where {largest} are the most")]
    TooLarge { bytes: u64, largest: u64 },
    #[error("its bytes are not those it committed to")]
    WrongDigest,
    #[error("it is no submission: {0}")]
    Malformed(&'static str),
    #[error("it is written in version {got} of the format, not {CODEC}")]
    WrongCodec { got: u16 },
    #[error("it was made for run {got}")]
    WrongRun { got: RunId },
    #[error("it was made for window {got}")]
    WrongWindow { got: Window },
    #[error("it was made by the seat {got}")]
    WrongSeat { got: Uid },
    #[error("it names a hotkey that does not hold the seat")]
    WrongHotkey,
    #[error("it was trained from another model")]
    WrongBase,
    #[error("its tensors are another model's")]
    WrongSchema,
    #[error("it has a density of {}/4096", got.0)]
    WrongDensity { got: Density },
    #[error("it claims {trained} sequences, where 1 to {assigned} can be")]
    WrongTrained { trained: u32, assigned: u32 },
    #[error("its signature is not the hotkey's")]
    BadSignature,
    #[error("its body cannot be decoded: {0}")]
    Undecodable(DecodeError),
    #[error("the root mean square of what it sends is {rms}, not above 0 and at most {RMS_MAX}")]
    AbnormalNorm { rms: f64 },
}

const PREFIX_BYTES: usize = 4 + 114 + SIGNATURE_BYTES;

impl<'a> Submission<'a> {
    /// Finds the header and the body in a stranger's bytes.
    pub fn read(bytes: &'a [u8]) -> Result<Submission<'a>, Fault> {
        let (prefix, body) =
            bytes.split_at_checked(PREFIX_BYTES).ok_or(Fault::Malformed("it ends inside its header"))?;
        let (magic, rest) = prefix.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(Fault::Malformed("it does not begin as a contribution does"));
        }
        let mut rest = rest;
        let header = Header::decode(&mut rest).map_err(|_| Fault::Malformed("its header is broken"))?;
        let signature = Signature::decode(&mut rest).map_err(|_| Fault::Malformed("its header is broken"))?;
        Ok(Submission { header, signature, body, bytes })
    }

    /// Checks everything that makes a submission count, cheapest first, and decodes it.
    pub fn verify(&self, expected: &Expected<'_>) -> Result<VerifiedSubmission, Fault> {
        let header = self.header;
        let largest = largest_bytes(expected.schema, expected.density);
        if self.bytes.len() > largest {
            return Err(Fault::TooLarge { bytes: self.bytes.len() as u64, largest: largest as u64 });
        }
        if Digest::of(self.bytes) != expected.digest {
            return Err(Fault::WrongDigest);
        }

        if header.codec != CODEC {
            return Err(Fault::WrongCodec { got: header.codec });
        }
        if header.run != expected.run {
            return Err(Fault::WrongRun { got: header.run });
        }
        if header.window != expected.window {
            return Err(Fault::WrongWindow { got: header.window });
        }
        if header.uid != expected.uid {
            return Err(Fault::WrongSeat { got: header.uid });
        }
        if header.hotkey != expected.hotkey {
            return Err(Fault::WrongHotkey);
        }
        if header.base != expected.base {
            return Err(Fault::WrongBase);
        }
        if header.schema != expected.schema.digest() {
            return Err(Fault::WrongSchema);
        }
        if header.density != expected.density {
            return Err(Fault::WrongDensity { got: header.density });
        }
        if !(1..=expected.sequences_per_seat).contains(&header.trained) {
            let assigned = expected.sequences_per_seat;
            return Err(Fault::WrongTrained { trained: header.trained, assigned });
        }

        let message = signed_message(&header.encode(), self.body);
        identity::verify(&header.hotkey, Domain::Contribution, &message, &self.signature)
            .map_err(|_| Fault::BadSignature)?;
        let update =
            contribution::decode(expected.schema, expected.density, self.body).map_err(Fault::Undecodable)?;
        check_norm(&update)?;
        Ok(VerifiedSubmission { header, update })
    }
}

impl Fault {
    /// A short name that stays the same, for counters and receipts.
    pub fn label(&self) -> &'static str {
        match self {
            Fault::Missing => "missing",
            Fault::Late => "late",
            Fault::TooLarge { .. } => "too-large",
            Fault::WrongDigest => "wrong-digest",
            Fault::Malformed(_) => "malformed",
            Fault::WrongCodec { .. } => "wrong-codec",
            Fault::WrongRun { .. } => "wrong-run",
            Fault::WrongWindow { .. } => "wrong-window",
            Fault::WrongSeat { .. } => "wrong-seat",
            Fault::WrongHotkey => "wrong-hotkey",
            Fault::WrongBase => "wrong-base",
            Fault::WrongSchema => "wrong-schema",
            Fault::WrongDensity { .. } => "wrong-density",
            Fault::WrongTrained { .. } => "wrong-trained",
            Fault::BadSignature => "bad-signature",
            Fault::Undecodable(_) => "undecodable",
            Fault::AbnormalNorm { .. } => "abnormal-norm",
        }
    }
}

/// The header and the body's digest: short, so that signing copies no body.
fn signed_message(header: &[u8], body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(header.len() + 32);
    message.extend_from_slice(header);
    message.extend_from_slice(&Digest::of(body).0);
    message
}

/// Refuses what is no work at all, and what has left every bound of training. Between the two the merge clips.
fn check_norm(update: &Sparse) -> Result<(), Fault> {
    let mut total = 0.0;
    for tensor in &update.tensors {
        let rms = libm::sqrt(tensor.square_norm / tensor.positions.len() as f64);
        if rms > RMS_MAX {
            return Err(Fault::AbnormalNorm { rms });
        }
        total += tensor.square_norm;
    }
    if total > 0.0 { Ok(()) } else { Err(Fault::AbnormalNorm { rms: 0.0 }) }
}
