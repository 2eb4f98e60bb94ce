//! What a miner must not lose: its residual, its optimiser, and which contribution is made but not yet through.
//!
//! Written whole at two moments of a window: before the commitment is sent, and once it is in a finalised block. The contribution's bytes
//! are in a file beside it ([`crate::spool`]), which is there before the first moment. A miner killed before that trains the window again
//! and gets the same bytes; killed between the two it finds the contribution and sends the same commitment; killed later it has only the
//! upload to finish.

use crate::compress::Sealed;
use codec::{Decode, DecodeAll as _, Encode};
use protocol::{Digest, RunId, SeatId, Window};
use replica::files::{self, FileError};
use std::path::Path;

#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The window that `residual` is ready for: all earlier ones are folded in or faded.
    pub residual_for: Window,
    /// The error-feedback buffer `e` (PROT-10).
    pub residual: Vec<f32>,
    /// The optimiser's moments and step count, as the trainer writes them. Empty before the first step.
    pub optimiser: Vec<u8>,
    pub pending: Option<Pending>,
}

/// The version of the form on disk. A change of the form is a new one.
const VERSION: u16 = 3;

/// A contribution on its way. Its bytes are in the spool, under the digest's name.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Pending {
    pub window: Window,
    pub digest: Digest,
    /// Bytes that the digest is of.
    pub length: u64,
    /// What the contribution says of the sequences finished, so that it can be written once more (PROT-6).
    pub trained: u32,
    /// Whether the commitment is in a finalised block, and the body has left the residual.
    pub committed: bool,
}

impl Pending {
    pub fn sealed(&self) -> Sealed {
        Sealed { digest: self.digest, length: self.length }
    }
}

#[derive(Encode, Decode)]
struct Saved {
    version: u16,
    run: RunId,
    seat: SeatId,
    residual_for: Window,
    residual: Vec<u32>,
    optimiser: Vec<u8>,
    pending: Option<Pending>,
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "the snapshot is of version {found}, and this release reads version {VERSION}: let the release that wrote it finish, or remove it to start with an empty residual"
    )]
    Version { found: u16 },
    #[error("the snapshot is not in the form this release writes; remove it to start with an empty residual")]
    Format(#[source] codec::Error),
    #[error("the snapshot belongs to another seat or run; use a directory of its own for each seat")]
    OtherSeat,
    #[error("the snapshot has {found} values, the run's model has {expected}; use another directory")]
    OtherShape { found: usize, expected: usize },
}

impl Snapshot {
    /// A miner's first: `e = 0` (PROT-10).
    pub fn fresh(window: Window, values: usize) -> Snapshot {
        Snapshot { residual_for: window, residual: vec![0.0; values], optimiser: Vec::new(), pending: None }
    }

    pub fn save(&self, path: &Path, run: RunId, seat: SeatId) -> Result<(), SnapshotError> {
        let saved = Saved {
            version: VERSION,
            run,
            seat,
            residual_for: self.residual_for,
            residual: self.residual.iter().map(|value| value.to_bits()).collect(),
            optimiser: self.optimiser.clone(),
            pending: self.pending.clone(),
        };
        Ok(files::write_sealed(path, saved.encode())?)
    }

    /// Reads a snapshot; `None` if there is none.
    pub fn load(
        path: &Path,
        run: RunId,
        seat: SeatId,
        values: usize,
    ) -> Result<Option<Snapshot>, SnapshotError> {
        let Some(bytes) = files::read_sealed(path)? else { return Ok(None) };
        // The version first: the rest of another one may mean anything.
        let found = u16::decode(&mut &bytes[..]).map_err(SnapshotError::Format)?;
        if found != VERSION {
            return Err(SnapshotError::Version { found });
        }
        let saved = Saved::decode_all(&mut &bytes[..]).map_err(SnapshotError::Format)?;
        if (saved.run, saved.seat) != (run, seat) {
            return Err(SnapshotError::OtherSeat);
        }
        if saved.residual.len() != values {
            return Err(SnapshotError::OtherShape { found: saved.residual.len(), expected: values });
        }
        Ok(Some(Snapshot {
            residual_for: saved.residual_for,
            residual: saved.residual.into_iter().map(f32::from_bits).collect(),
            optimiser: saved.optimiser,
            pending: saved.pending,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Block, Uid};

    #[test]
    fn a_snapshot_reads_back_whole_and_only_for_its_seat() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        let seat = SeatId { uid: Uid(4), registered_at: Block(9) };
        assert!(Snapshot::load(&path, RunId(0), seat, 3).unwrap().is_none());

        let snapshot = Snapshot {
            residual_for: Window(7),
            residual: vec![0.5, -0.0, f32::MIN_POSITIVE],
            optimiser: vec![1, 2, 3],
            pending: Some(Pending {
                window: Window(6),
                digest: Digest::of(b"bytes"),
                length: 5,
                trained: 512,
                committed: true,
            }),
        };
        snapshot.save(&path, RunId(0), seat).unwrap();
        assert_eq!(Snapshot::load(&path, RunId(0), seat, 3).unwrap().unwrap(), snapshot);

        let other = SeatId { registered_at: Block(10), ..seat };
        assert!(matches!(Snapshot::load(&path, RunId(0), other, 3), Err(SnapshotError::OtherSeat)));
        assert!(matches!(Snapshot::load(&path, RunId(1), seat, 3), Err(SnapshotError::OtherSeat)));
        assert!(matches!(Snapshot::load(&path, RunId(0), seat, 4), Err(SnapshotError::OtherShape { .. })));
    }

    #[test]
    fn a_snapshot_of_another_release_or_a_broken_one_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("snapshot");
        let seat = SeatId { uid: Uid(4), registered_at: Block(9) };
        let load = |bytes: Vec<u8>| {
            files::write_sealed(&path, bytes).unwrap();
            Snapshot::load(&path, RunId(0), seat, 3).unwrap_err()
        };
        Snapshot::fresh(Window(0), 3).save(&path, RunId(0), seat).unwrap();
        let good = files::read_sealed(&path).unwrap().unwrap();
        for found in [2u16, 4] {
            let error = load([&found.to_le_bytes()[..], &good[2..]].concat());
            assert!(matches!(error, SnapshotError::Version { found: read } if read == found), "{error:?}");
            assert!(error.to_string().contains(&found.to_string()) && error.to_string().contains('3'));
        }
        assert!(matches!(load(good[..good.len() - 1].to_vec()), SnapshotError::Format(_)));
        assert!(matches!(load(vec![3]), SnapshotError::Format(_)));
        damage(&path);
        assert!(matches!(Snapshot::load(&path, RunId(0), seat, 3), Err(SnapshotError::File(_))));
    }

    fn damage(path: &Path) {
        let mut bytes = std::fs::read(path).unwrap();
        bytes[0] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
}
