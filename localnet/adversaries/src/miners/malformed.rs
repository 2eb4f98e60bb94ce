//! Provokes every fault in turn, one per window.
//!
//! Sees: its own work.
//! Stopped by: PROT-8, PROT-9 and PROT-14. Each fault is detected before any byte of the contribution is used.

use crate::adversary::{
    Adversary, Commit, Content, MinerContext, OwnContribution, Presentation, Timing, Upload,
};
use bytes::Bytes;
use ed25519_dalek::SigningKey;
use protocol::{
    Digest, Hotkey, RunId, Uid, Window, contribution,
    params::Density,
    submission::{self, Header, SIGNATURE_BYTES},
};

/// The faults in the order of the attempts, by their [`protocol::submission::Fault::label`].
pub const FAULTS: [&str; 17] = [
    "missing",
    "late",
    "too-large",
    "wrong-digest",
    "malformed",
    "wrong-codec",
    "wrong-run",
    "wrong-window",
    "wrong-seat",
    "wrong-hotkey",
    "wrong-base",
    "wrong-schema",
    "wrong-density",
    "wrong-trained",
    "bad-signature",
    "undecodable",
    "abnormal-norm",
];

#[derive(Default)]
pub struct Malformed {
    tried: usize,
}

impl Adversary for Malformed {
    fn present(&mut self, at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
        let fault = FAULTS[self.tried % FAULTS.len()];
        self.tried += 1;
        spoilt(fault, at, own)
    }
}

/// Returns a presentation with this fault, and with none that is checked earlier. An unknown label gives no fault.
pub fn spoilt(fault: &str, at: &MinerContext<'_>, own: &OwnContribution<'_>) -> Presentation {
    let header = own.header;
    let resealed = |header: Header| Presentation::of(own.sealed_as(header));
    match fault {
        "missing" => Presentation { uploads: Vec::new(), ..Presentation::honest(own) },
        "late" => {
            let mut late = Presentation::honest(own);
            late.uploads.iter_mut().for_each(|show| show.when = Timing::Late);
            late
        }
        "too-large" => {
            let mut bytes = own.bytes.to_vec();
            bytes.resize(submission::largest_bytes(at.codec.schema(), at.codec.density()) + 1, 0);
            Presentation::of(bytes.into())
        }
        "wrong-digest" => {
            let bytes = own.sealed_as(Header { trained: header.trained ^ 1, ..header });
            Presentation {
                commits: vec![Commit { digest: own.digest(), when: Timing::InTime }],
                uploads: vec![Upload {
                    under: own.digest(),
                    what: Content::Bytes(bytes),
                    when: Timing::InTime,
                }],
            }
        }
        "malformed" => Presentation::of(Bytes::from_static(b"a letter, and no contribution")),
        "wrong-codec" => resealed(Header { codec: header.codec.wrapping_add(1), ..header }),
        "wrong-run" => resealed(Header { run: RunId(header.run.0.wrapping_add(1)), ..header }),
        "wrong-window" => resealed(Header { window: Window(header.window.0.wrapping_add(1)), ..header }),
        "wrong-seat" => resealed(Header { uid: Uid(header.uid.0.wrapping_add(1)), ..header }),
        "wrong-hotkey" => {
            let other = SigningKey::from_bytes(blake3::hash(b"somebody else's key").as_bytes());
            resealed(Header { hotkey: Hotkey(other.verifying_key().to_bytes()), ..header })
        }
        "wrong-base" => resealed(Header { base: Digest::of(b"another model"), ..header }),
        "wrong-schema" => resealed(Header { schema: Digest::of(b"another shape"), ..header }),
        "wrong-density" => resealed(Header { density: Density(header.density.0 ^ 1), ..header }),
        "wrong-trained" => {
            resealed(Header { trained: at.params.sequences_per_seat.saturating_add(1), ..header })
        }
        "bad-signature" => {
            let mut bytes = own.bytes.to_vec();
            let first_of_signature = bytes.len().saturating_sub(SIGNATURE_BYTES);
            if let Some(byte) = bytes.get_mut(first_of_signature) {
                *byte ^= 1;
            }
            Presentation::of(bytes.into())
        }
        "undecodable" => {
            let (_, cut) = own.body().split_last().unwrap_or((&0, &[]));
            Presentation::of(submission::seal(&header, cut, own.signer).into())
        }
        "abnormal-norm" => {
            let values = vec![contribution::LEVEL_MAX; at.codec.schema().values()];
            let body = contribution::encode(at.codec.schema(), at.codec.density(), &values);
            let body = body.expect("what is finite and as long as the schema can be encoded");
            Presentation::of(submission::seal(&header, &body, own.signer).into())
        }
        _ => Presentation::honest(own),
    }
}
