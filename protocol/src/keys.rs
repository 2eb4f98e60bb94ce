//! The names of objects in a bucket (PROT-12). No other module makes names.
//!
//! A name ends in the digest of the object's bytes, except for a validator's [`peer`] record, which is
//! signed. So a reader computes the name from chain data and does not list buckets, and the bytes of a name
//! are right or wrong, never old. Objects of one window have a common prefix, so that old windows can be
//! deleted.

use crate::{Digest, Hotkey, RunId, Uid, Window};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::{convert::identity, fmt, str::FromStr};

/// The name of an object, relative to a bucket. Lower-case letters, digits, `/` and `-` only, so that it needs no
/// escaping in a URL or a path and cannot lead out of a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(String);

/// A name that does not come from a function of this module.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of an object")]
pub struct InvalidKey(pub String);

/// Returns the name of a sealed contribution: [`crate::submission::seal`].
pub fn contribution(run: RunId, window: Window, digest: &Digest) -> ObjectKey {
    ObjectKey(format!("{}contributions/{digest}", window_prefix(run, window)))
}

/// Returns the run, window and digest of a contribution's name; `None` for another name.
pub fn contribution_of(key: &ObjectKey) -> Option<(RunId, Window, Digest)> {
    let parts: Vec<&str> = key.0.split('/').collect();
    let ["runs", run, "windows", window, "contributions", digest] = parts[..] else { return None };
    Some((RunId(run.parse().ok()?), Window(window.parse().ok()?), digest.parse().ok()?))
}

/// Returns the name of a window's merged update: [`crate::merge::seal_update`].
pub fn update(run: RunId, window: Window, digest: &Digest) -> ObjectKey {
    ObjectKey(format!("{}updates/{digest}", window_prefix(run, window)))
}

/// Returns the name of the list of pieces of the model state at the opening of `window` (PROT-20).
pub fn checkpoint(run: RunId, window: Window, digest: &Digest) -> ObjectKey {
    ObjectKey(format!("{}checkpoints/{digest}", window_prefix(run, window)))
}

/// Returns the name of a validator's receipt of a window (PROT-27).
pub fn receipt(run: RunId, window: Window, uid: Uid, digest: &Digest) -> ObjectKey {
    ObjectKey(format!("{}receipts/{uid}/{digest}", window_prefix(run, window)))
}

/// Returns whether an object is a receipt. Receipts are kept longer than the objects that they describe.
pub fn is_receipt(key: &ObjectKey) -> bool {
    key.0.contains("/receipts/")
}

/// Returns whether an object is a window's merged update.
pub fn is_update(key: &ObjectKey) -> bool {
    key.0.contains("/updates/")
}

/// Returns whether an object is the list of a checkpoint's pieces.
pub fn is_checkpoint(key: &ObjectKey) -> bool {
    key.0.contains("/checkpoints/")
}

/// Returns the name of a checkpoint's piece. Checkpoints share equal pieces.
pub fn piece(digest: &Digest) -> ObjectKey {
    ObjectKey(format!("pieces/{digest}"))
}

/// Returns the name of a validator's peer record: the only object that changes. The name ends in the
/// hotkey, which signs the object ([`crate::peer::PeerRecord`]).
pub fn peer(hotkey: &Hotkey) -> ObjectKey {
    ObjectKey(format!("peers/{}", Digest(hotkey.0)))
}

/// Returns the name of a run's specification: the model's shape and the inner recipe.
pub fn spec(digest: &Digest) -> ObjectKey {
    ObjectKey(format!("specs/{digest}"))
}

/// Returns the name of a dataset's manifest (PROT-4).
pub fn manifest(digest: &Digest) -> ObjectKey {
    ObjectKey(format!("manifests/{digest}"))
}

/// Returns the name of a shard of a dataset (PROT-4).
pub fn shard(digest: &Digest) -> ObjectKey {
    ObjectKey(format!("shards/{digest}"))
}

/// Returns the name of the hashes of a shard's pieces. They are checked against the shard's digest, which
/// is their root (PROT-4).
pub fn shard_tree(shard: &Digest) -> ObjectKey {
    ObjectKey(format!("trees/{shard}"))
}

/// Returns the name of a dataset's tokenizer (PROT-4).
pub fn tokenizer(digest: &Digest) -> ObjectKey {
    ObjectKey(format!("tokenizers/{digest}"))
}

/// Returns the prefix of the names of a window's own objects. Windows sort by time.
pub fn window_prefix(run: RunId, window: Window) -> String {
    format!("runs/{run}/windows/{window}/")
}

impl ObjectKey {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the last part of the name: the digest of the object's bytes or of its leaves, or the hotkey
    /// of a [`peer`] record.
    pub fn digest(&self) -> Digest {
        let last = self.0.rsplit('/').next().unwrap_or_default();
        last.parse().expect("every name ends in a digest")
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for ObjectKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<ObjectKey, InvalidKey> {
        if is_key(text) { Ok(ObjectKey(text.to_string())) } else { Err(InvalidKey(text.to_string())) }
    }
}

fn is_key(text: &str) -> bool {
    let parts: Vec<&str> = text.split('/').collect();
    let is_digest = |part| is_written(part, identity::<Digest>);
    let is_window = |run, window| is_written(run, RunId) && is_written(window, Window);
    match parts[..] {
        ["pieces" | "peers" | "specs" | "manifests" | "shards" | "trees" | "tokenizers", digest] => {
            is_digest(digest)
        }
        ["runs", run, "windows", window, "contributions" | "updates" | "checkpoints", digest] => {
            is_window(run, window) && is_digest(digest)
        }
        ["runs", run, "windows", window, "receipts", uid, digest] => {
            is_window(run, window) && is_written(uid, Uid) && is_digest(digest)
        }
        _ => false,
    }
}

/// Returns whether a part of a name is the canonical spelling of a value. Numbers with a sign or extra
/// zeros, and upper-case digits, are not.
fn is_written<N: FromStr, V: ToString>(part: &str, value: impl Fn(N) -> V) -> bool {
    part.parse().is_ok_and(|number| value(number).to_string() == part)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: RunId = RunId(7);
    const WINDOW: Window = Window(42);

    #[test]
    fn every_name_reads_back_and_ends_in_the_digest_of_its_object() {
        let digest = Digest::of(b"object");
        let names = [
            contribution(RUN, WINDOW, &digest),
            update(RUN, WINDOW, &digest),
            checkpoint(RUN, WINDOW, &digest),
            receipt(RUN, WINDOW, Uid(3), &digest),
            contribution(RunId(u32::MAX), Window(u32::MAX), &digest),
            piece(&digest),
            spec(&digest),
            manifest(&digest),
            shard(&digest),
            shard_tree(&digest),
            tokenizer(&digest),
            peer(&Hotkey(digest.0)),
        ];
        for (index, name) in names.iter().enumerate() {
            assert_eq!(name.as_str().parse(), Ok(name.clone()));
            assert_eq!(name.digest(), digest);
            let is_contribution = contribution_of(name).is_some_and(|(_, _, of)| of == digest);
            assert_eq!(is_contribution, name.as_str().contains("/contributions/"));
            assert_eq!(is_receipt(name), *name == receipt(RUN, WINDOW, Uid(3), &digest));
            assert_eq!(is_checkpoint(name), *name == checkpoint(RUN, WINDOW, &digest));
            assert!(names.iter().skip(index + 1).all(|other| other != name));
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '/' || c == '-';
            assert!(name.as_str().chars().all(plain));
        }
    }

    #[test]
    fn names_are_what_every_release_must_still_find() {
        let digest = Digest([0xab; 32]);
        let hex = "ab".repeat(32);
        assert_eq!(
            contribution(RUN, WINDOW, &digest).as_str(),
            format!("runs/7/windows/00000042/contributions/{hex}")
        );
        assert_eq!(update(RUN, WINDOW, &digest).as_str(), format!("runs/7/windows/00000042/updates/{hex}"));
        assert_eq!(
            checkpoint(RUN, WINDOW, &digest).as_str(),
            format!("runs/7/windows/00000042/checkpoints/{hex}")
        );
        assert_eq!(
            receipt(RUN, WINDOW, Uid(3), &digest).as_str(),
            format!("runs/7/windows/00000042/receipts/3/{hex}")
        );
        assert_eq!(piece(&digest).as_str(), format!("pieces/{hex}"));
        assert_eq!(shard(&digest).as_str(), format!("shards/{hex}"));
    }

    #[test]
    fn other_spellings_and_ways_out_of_a_bucket_are_no_names() {
        let hex = "ab".repeat(32);
        for text in [
            "".into(),
            "pieces".into(),
            "pieces/".into(),
            format!("/pieces/{hex}"),
            format!("pieces/{hex}/"),
            format!("pieces/../{hex}"),
            format!("pieces/{}", hex.to_uppercase()),
            format!("pieces/0x{hex}"),
            format!("secrets/{hex}"),
            format!("runs/7/windows/42/updates/{hex}"),
            format!("runs/+7/windows/00000042/updates/{hex}"),
            format!("runs/7/doors/00000042/updates/{hex}"),
            format!("runs/7/windows/00000042/receipts/{hex}"),
            format!("runs/7/windows/00000042/receipts/70000/{hex}"),
            format!("runs/7/windows/00000042/others/{hex}"),
        ] {
            assert_eq!(text.parse::<ObjectKey>(), Err(InvalidKey(text.clone())));
        }
    }
}
