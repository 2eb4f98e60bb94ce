//! The object of a contribution: its body with its seat, window, model and signature (PROT-9).
//!
//! Bytes are first decoded within bounds ([`Submission`]), then verified against seat, window, model and signature
//! ([`Submission::verify`]). Only verified entries are merged.
//!
//! ```text
//! object = "MTLC" ‖ header, 114 bytes ‖ body ‖ signature, 64 bytes
//! ```
//!
//! The header is in SCALE: its fields in order, integers little-endian. The signature is over the chain's genesis
//! hash, the header and the body's digest; the digest committed on the chain is over the whole object. The signature
//! comes last, so that an object is written and hashed in one pass, section by section ([`Sealer`]).

use crate::{
    Digest, GenesisHash, Hotkey, RunId, Uid, Window,
    contribution::{self, CODEC, DecodeError, LEVEL_MAX, Schema, Sparse},
    ensure,
    identity::{self, Domain, Signature, Signer},
    params::Density,
};
use alloc::vec::Vec;
use codec::{Decode, Encode, MaxEncodedLen};

/// The first bytes of a contribution.
pub const MAGIC: [u8; 4] = *b"MTLC";

/// Length of the signature after the body.
pub const SIGNATURE_BYTES: usize = 64;

/// Upper bound of the root mean square of the values sent in any tensor; the largest level is 15 (PROT-14).
pub const RMS_MAX: f64 = LEVEL_MAX as f64 / 2.0;

/// Header that binds a contribution: it is invalid for another seat, window or model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode, MaxEncodedLen)]
pub struct Header {
    /// The version of the body's format: [`CODEC`].
    pub codec: u16,
    pub run: RunId,
    pub window: Window,
    pub uid: Uid,
    pub hotkey: Hotkey,
    /// Lineage of `θ_w`, the model at the start of the training.
    pub base: Digest,
    /// Digest of the schema of that model.
    pub schema: Digest,
    pub density: Density,
    /// `t`: number of the seat's sequences that it finished, from the first on; at least one (PROT-6).
    pub trained: u32,
}

/// Returns the exact signed bytes to commit to and upload.
pub fn seal(header: &Header, body: &[u8], signer: &Signer) -> Vec<u8> {
    let (mut sealer, prefix) = Sealer::new(header);
    sealer.push(body);
    [&prefix[..], body, &sealer.finish(signer).0.0].concat()
}

/// Seals a body that is still being written: it hashes the bytes as they pass, and signs at the end (PROT-9).
#[derive(Clone, Debug)]
pub struct Sealer {
    header: Vec<u8>,
    /// Hash of the body alone, which is signed.
    body: blake3::Hasher,
    /// Hash of the whole object, which is committed.
    object: blake3::Hasher,
}

impl Sealer {
    /// Also returns the first bytes of the object.
    pub fn new(header: &Header) -> (Sealer, [u8; PREFIX_BYTES]) {
        let header = header.encode();
        let mut prefix = [0; PREFIX_BYTES];
        prefix.copy_from_slice(&[&MAGIC[..], &header].concat());
        let mut object = blake3::Hasher::new();
        object.update(&prefix);
        (Sealer { header, body: blake3::Hasher::new(), object }, prefix)
    }

    /// Adds the next bytes of the body.
    pub fn push(&mut self, body: &[u8]) {
        self.body.update(body);
        self.object.update(body);
    }

    /// Returns the signature, which ends the object, and the object's digest.
    pub fn finish(mut self, signer: &Signer) -> (Signature, Digest) {
        let body = Digest(*self.body.finalize().as_bytes());
        let signature = signer.sign(Domain::Contribution, &signed_message(&self.header, &body));
        self.object.update(&signature.0);
        (signature, Digest(*self.object.finalize().as_bytes()))
    }
}

/// Returns the maximum length of a submission in bytes: a fetcher's limit, known before a byte is fetched (PROT-8,
/// PROT-13).
pub fn largest_bytes(schema: &Schema, density: Density) -> usize {
    schema.largest_body(density).saturating_add(FRAME_BYTES)
}

/// Bytes with a header, not verified yet.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'a> {
    pub header: Header,
    signature: Signature,
    body: &'a [u8],
    bytes: &'a [u8],
}

/// The chain's data about a contribution before it is fetched.
#[derive(Clone, Copy, Debug)]
pub struct Expected<'a> {
    pub genesis: GenesisHash,
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

/// Reason why a submission is invalid (PROT-14). It is evidence, and lowers a rating; it never stops a window.
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
    #[error("it changes no weight of the model")]
    NoEffect,
}

const HEADER_BYTES: usize = 114;
/// Length of the part before the body.
pub const PREFIX_BYTES: usize = MAGIC.len() + HEADER_BYTES;
/// Length of the parts around the body.
const FRAME_BYTES: usize = PREFIX_BYTES + SIGNATURE_BYTES;

impl<'a> Submission<'a> {
    /// Splits untrusted bytes into header and body.
    ///
    /// # Errors
    /// [`Fault::Malformed`] if the bytes are too short, have another magic, or a header that cannot be decoded.
    pub fn read(bytes: &'a [u8]) -> Result<Submission<'a>, Fault> {
        let ends = Fault::Malformed("it ends inside its header");
        let (prefix, rest) = bytes.split_at_checked(PREFIX_BYTES).ok_or(ends.clone())?;
        let (body, signature) = rest.split_last_chunk::<SIGNATURE_BYTES>().ok_or(ends)?;
        let (magic, mut fields) = prefix.split_at(MAGIC.len());
        ensure!(magic == MAGIC, Fault::Malformed("it does not begin as a contribution does"));
        let header = Header::decode(&mut fields).map_err(|_| Fault::Malformed("its header is broken"))?;
        let signature = Signature(*signature);
        Ok(Submission { header, signature, body, bytes })
    }

    /// Checks the submission, cheapest checks first, and decodes it.
    ///
    /// # Errors
    /// [`Fault`] for the first check that fails.
    pub fn verify(&self, expected: &Expected<'_>) -> Result<Sparse, Fault> {
        let body = self.check(expected)?;
        let update =
            contribution::decode(expected.schema, expected.density, body).map_err(Fault::Undecodable)?;
        let square_norms: Vec<f64> = update.tensors.iter().map(|tensor| tensor.square_norm).collect();
        check_norms(expected.schema, expected.density, &square_norms)?;
        Ok(update)
    }

    /// Runs the checks of [`Submission::verify`] except those of the body, and returns the body. The caller decodes
    /// it and calls [`check_norms`], or keeps the bytes only.
    ///
    /// # Errors
    /// [`Fault`] for the first check that fails.
    pub fn check(&self, expected: &Expected<'_>) -> Result<&'a [u8], Fault> {
        let header = self.header;
        let largest = largest_bytes(expected.schema, expected.density);
        ensure!(
            self.bytes.len() <= largest,
            Fault::TooLarge { bytes: self.bytes.len() as u64, largest: largest as u64 }
        );
        ensure!(Digest::of(self.bytes) == expected.digest, Fault::WrongDigest);

        ensure!(header.codec == CODEC, Fault::WrongCodec { got: header.codec });
        ensure!(header.run == expected.run, Fault::WrongRun { got: header.run });
        ensure!(header.window == expected.window, Fault::WrongWindow { got: header.window });
        ensure!(header.uid == expected.uid, Fault::WrongSeat { got: header.uid });
        ensure!(header.hotkey == expected.hotkey, Fault::WrongHotkey);
        ensure!(header.base == expected.base, Fault::WrongBase);
        ensure!(header.schema == expected.schema.digest(), Fault::WrongSchema);
        ensure!(header.density == expected.density, Fault::WrongDensity { got: header.density });
        let (trained, assigned) = (header.trained, expected.sequences_per_seat);
        ensure!((1..=assigned).contains(&trained), Fault::WrongTrained { trained, assigned });

        let message = signed_message(&header.encode(), &Digest::of(self.body));
        identity::verify(&header.hotkey, &expected.genesis, Domain::Contribution, &message, &self.signature)
            .map_err(|_| Fault::BadSignature)?;
        Ok(self.body)
    }
}

/// Refuses contributions without any work, and those far outside the bounds of training, by the square norm of each
/// tensor of the schema. Between these limits the merge clips (PROT-14). [`Fault::NoEffect`] needs the model, and is
/// not found here.
///
/// # Errors
/// [`Fault`] if a norm is outside the limits.
pub fn check_norms(schema: &Schema, density: Density, square_norms: &[f64]) -> Result<(), Fault> {
    let mut total = 0.0;
    for (range, square_norm) in schema.ranges().zip(square_norms) {
        let rms = libm::sqrt(square_norm / contribution::entries_of(density, range.len()) as f64);
        if rms > RMS_MAX {
            return Err(Fault::AbnormalNorm { rms });
        }
        total += square_norm;
    }
    if total > 0.0 { Ok(()) } else { Err(Fault::AbnormalNorm { rms: 0.0 }) }
}

impl Fault {
    /// Returns a short, stable name for counters and receipts.
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
            Fault::NoEffect => "no-effect",
        }
    }
}

/// Returns the header and the body's digest: short, so that signing copies no body.
fn signed_message(header: &[u8], body: &Digest) -> Vec<u8> {
    [header, &body.0].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contribution::tests::{gaussian, rows};
    use ed25519_dalek::SigningKey;

    const DENSITY: Density = Density(64);

    const GENESIS: GenesisHash = GenesisHash([1; 32]);

    fn key() -> Signer {
        Signer::new(SigningKey::from_bytes(&[7; 32]), GENESIS)
    }

    fn schema() -> Schema {
        rows(&[5000, 3])
    }

    fn header() -> Header {
        Header {
            codec: CODEC,
            run: RunId(1),
            window: Window(9),
            uid: Uid(4),
            hotkey: key().hotkey(),
            base: Digest([5; 32]),
            schema: schema().digest(),
            density: DENSITY,
            trained: 512,
        }
    }

    fn body() -> Vec<u8> {
        contribution::encode(&schema(), DENSITY, &gaussian(1, 5003)).unwrap()
    }

    fn verify(bytes: &[u8]) -> Result<Sparse, Fault> {
        verify_against(bytes, Digest::of(bytes))
    }

    fn verify_against(bytes: &[u8], digest: Digest) -> Result<Sparse, Fault> {
        let Header { run, window, uid, hotkey, base, density, .. } = header();
        let schema = &schema();
        let sequences_per_seat = 512;
        let genesis = GENESIS;
        let expected =
            Expected { genesis, run, window, uid, hotkey, base, schema, density, sequences_per_seat, digest };
        Submission::read(bytes)?.verify(&expected)
    }

    #[test]
    fn what_was_sealed_is_verified() {
        let bytes = seal(&header(), &body(), &key());
        assert_eq!(Submission::read(&bytes).unwrap().header, header());
        assert_eq!(verify(&bytes).unwrap(), contribution::decode(&schema(), DENSITY, &body()).unwrap());
        assert_eq!(bytes.len(), FRAME_BYTES + body().len());
        assert_eq!(Header::max_encoded_len(), HEADER_BYTES);
        assert!(bytes.len() <= largest_bytes(&schema(), DENSITY));
    }

    #[test]
    fn a_body_sealed_piece_by_piece_is_the_same_object() {
        let (mut sealer, prefix) = Sealer::new(&header());
        body().chunks(37).for_each(|piece| sealer.push(piece));
        let (signature, digest) = sealer.finish(&key());
        let bytes = [&prefix[..], &body(), &signature.0].concat();
        assert_eq!(bytes, seal(&header(), &body(), &key()));
        assert_eq!(digest, Digest::of(&bytes));
    }

    #[test]
    fn a_submission_for_anything_else_is_refused_for_what_differs() {
        let refused = |change: fn(&mut Header)| {
            let mut header = header();
            change(&mut header);
            verify(&seal(&header, &body(), &key())).unwrap_err()
        };
        assert_eq!(refused(|header| header.codec = 2), Fault::WrongCodec { got: 2 });
        assert_eq!(refused(|header| header.run = RunId(0)), Fault::WrongRun { got: RunId(0) });
        assert_eq!(refused(|header| header.window = Window(8)), Fault::WrongWindow { got: Window(8) });
        assert_eq!(refused(|header| header.uid = Uid(5)), Fault::WrongSeat { got: Uid(5) });
        assert_eq!(refused(|header| header.hotkey = Hotkey([1; 32])), Fault::WrongHotkey);
        assert_eq!(refused(|header| header.base = Digest([6; 32])), Fault::WrongBase);
        assert_eq!(refused(|header| header.schema = Digest([6; 32])), Fault::WrongSchema);
        assert_eq!(refused(|header| header.density = Density(8)), Fault::WrongDensity { got: Density(8) });
        assert_eq!(refused(|header| header.trained = 0), Fault::WrongTrained { trained: 0, assigned: 512 });
        assert_eq!(
            refused(|header| header.trained = 513),
            Fault::WrongTrained { trained: 513, assigned: 512 }
        );
    }

    #[test]
    fn nobody_can_sign_for_the_seat_or_change_what_it_signed() {
        let stranger = Signer::new(SigningKey::from_bytes(&[8; 32]), GENESIS);
        assert_eq!(verify(&seal(&header(), &body(), &stranger)), Err(Fault::BadSignature));

        // Copy attack: another seat's body under the attacker's signature, with a claim of its own.
        let bytes = seal(&Header { trained: 100, ..header() }, &body(), &key());
        let mut claimed = seal(&header(), &body(), &key());
        let signature = bytes.len() - SIGNATURE_BYTES;
        claimed[signature..].copy_from_slice(&bytes[signature..]);
        assert_eq!(verify(&claimed), Err(Fault::BadSignature));

        let mut changed = seal(&header(), &body(), &key());
        changed[signature - 1] ^= 1;
        assert_eq!(verify(&changed), Err(Fault::BadSignature));
    }

    #[test]
    fn only_the_committed_bytes_count_and_any_flipped_bit_is_seen() {
        let bytes = seal(&header(), &body(), &key());
        let committed = Digest::of(&bytes);
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            assert!(verify_against(&flipped, committed).is_err());
            // Committing to the flipped bytes does not help either.
            assert!(verify(&flipped).is_err());
        }
        assert_eq!(verify_against(&bytes, Digest::default()), Err(Fault::WrongDigest));
    }

    #[test]
    fn bytes_that_are_no_submission_are_refused() {
        let bytes = seal(&header(), &body(), &key());
        for length in 0..FRAME_BYTES {
            assert!(matches!(verify(&bytes[..length]), Err(Fault::Malformed(_))));
        }
        assert!(matches!(verify(&[&b"GIF8"[..], &bytes[4..]].concat()), Err(Fault::Malformed(_))));

        let broken = seal(&header(), &body()[..100], &key());
        assert!(matches!(verify(&broken), Err(Fault::Undecodable(DecodeError::WrongLength { .. }))));

        let largest = largest_bytes(&schema(), DENSITY);
        let long = seal(&header(), &vec![0; largest], &key());
        let bytes = long.len() as u64;
        assert_eq!(verify(&long), Err(Fault::TooLarge { bytes, largest: largest as u64 }));
    }

    #[test]
    fn nothing_at_all_and_far_too_much_are_abnormal() {
        let sealed = |values: &[f32]| {
            let body = contribution::encode(&schema(), DENSITY, values).unwrap();
            verify(&seal(&header(), &body, &key()))
        };
        assert_eq!(sealed(&[0.0; 5003]), Err(Fault::AbnormalNorm { rms: 0.0 }));
        assert_eq!(sealed(&[1e-20; 5003]), Err(Fault::AbnormalNorm { rms: 0.0 }));
        assert_eq!(sealed(&[f32::MAX; 5003]), Err(Fault::AbnormalNorm { rms: 15.0 }));

        // One tensor is enough, however small it is relative to the others.
        let mut values = [0.001; 5003];
        assert!(sealed(&values).is_ok());
        values[5000..].fill(9.0);
        assert_eq!(sealed(&values), Err(Fault::AbnormalNorm { rms: 9.0 }));
    }

    #[test]
    fn every_fault_has_a_name_of_its_own() {
        let faults = [
            Fault::Missing,
            Fault::Late,
            Fault::TooLarge { bytes: 2, largest: 1 },
            Fault::WrongDigest,
            Fault::Malformed("why"),
            Fault::WrongCodec { got: 2 },
            Fault::WrongRun { got: RunId(2) },
            Fault::WrongWindow { got: Window(2) },
            Fault::WrongSeat { got: Uid(2) },
            Fault::WrongHotkey,
            Fault::WrongBase,
            Fault::WrongSchema,
            Fault::WrongDensity { got: DENSITY },
            Fault::WrongTrained { trained: 2, assigned: 1 },
            Fault::BadSignature,
            Fault::Undecodable(DecodeError::BadDensity(0)),
            Fault::AbnormalNorm { rms: 9.0 },
        ];
        let labels: std::collections::BTreeSet<_> = faults.iter().map(Fault::label).collect();
        assert_eq!(labels.len(), faults.len());
    }
}
