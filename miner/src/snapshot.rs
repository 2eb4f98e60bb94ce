//! What a miner must not lose: its residual, its optimiser, and a contribution that is made but not yet through.
//!
//! Written whole at two moments of a window: before the commitment is sent, and once it is in a finalised block. A miner killed before
//! the first trains the window again and gets the same bytes; killed between the two it finds the contribution and sends the same
//! commitment; killed later it has only the upload to finish.

use codec::{Decode, DecodeAll as _, Encode};
use protocol::{
    Digest, RunId, SeatId, Window,
    submission::{PREFIX_BYTES, SIGNATURE_BYTES},
};
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

/// A contribution on its way.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct Pending {
    pub window: Window,
    pub digest: Digest,
    /// The exact bytes that the digest is of.
    pub bytes: Vec<u8>,
    /// Whether the commitment is in a finalised block, and the body has left the residual.
    pub committed: bool,
}

impl Pending {
    /// What the codec wrote; `None` if the bytes are no contribution.
    pub fn body(&self) -> Option<&[u8]> {
        let end = self.bytes.len().checked_sub(SIGNATURE_BYTES)?;
        self.bytes.get(PREFIX_BYTES..end)
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
            version: 2,
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
                bytes: b"bytes".to_vec(),
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
}
