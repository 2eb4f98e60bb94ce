//! The miner's state between windows: the residual, the optimiser, and the pending contribution.
//!
//! It is written twice in a window: before the commitment is sent, and when it is in a finalised block. The
//! contribution's file exists before the first of the two. A miner killed before that resumes inside the window
//! ([`crate::progress`]) and computes the same bytes; killed between the two, it finds the contribution and sends the
//! same commitment; killed later, it has only the upload left.
//!
//! The previous version is kept as a backup ([`daemon::durable`]), so that a damaged file costs one window and not
//! the residual. The state has no randomness: the chain assigns the data, and neither the model nor the optimiser
//! uses random numbers.

use crate::compress::Sealed;
use codec::{Decode, Encode, IoReader};
use daemon::durable::{self, DurableFile, FileError, Recovered};
use nn::{StateError, Trainer};
use protocol::{Digest, RunId, SeatId, Window};
use std::io::{self, Read, Write};

/// A miner's state between windows, without the optimiser, which stays in the trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The window that `residual` is ready for: earlier ones are included, or decayed.
    pub residual_for: Window,
    /// The error-feedback buffer `e` (PROT-10).
    pub residual: Vec<f32>,
    pub pending: Option<PendingContribution>,
}

/// The version of the format: version, run, seat, `residual_for`, `pending`, the residual as a SCALE vector of its
/// bits, then the optimiser in its own format. Every change of the format is a new version.
const VERSION: u16 = 4;

/// A contribution that has not been uploaded yet. Its bytes are in the file of its digest.
#[derive(Clone, Debug, PartialEq, Encode, Decode)]
pub struct PendingContribution {
    pub window: Window,
    pub digest: Digest,
    /// Length in bytes.
    pub length: u64,
    /// Sequences that the contribution declares as trained, so that it can be written again (PROT-6).
    pub trained: u32,
    /// True if the commitment is in a finalised block and the body is subtracted from the residual.
    pub committed: bool,
}

impl PendingContribution {
    pub fn sealed(&self) -> Sealed {
        Sealed { digest: self.digest, length: self.length }
    }
}

/// An optimiser that writes and reads its state in its own format.
pub trait Optimiser {
    fn write(&self, sink: &mut dyn Write) -> io::Result<()>;
    /// Reads the state that [`write`](Self::write) wrote. On an error the optimiser is unchanged.
    fn read(&mut self, source: &mut dyn Read) -> Result<(), StateError>;
}

impl Optimiser for Trainer {
    fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
        self.write_state(sink)
    }

    fn read(&mut self, source: &mut dyn Read) -> Result<(), StateError> {
        self.read_state(source)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(
        "the snapshot is of version {found}, and this release reads version {VERSION}: let the release that wrote it finish its window, or remove it to start with an empty residual"
    )]
    Version { found: u16 },
    #[error("the snapshot is not in the form this release writes; remove it to start with an empty residual")]
    Format(#[source] codec::Error),
    #[error("the snapshot belongs to another seat or run; use a directory of its own for each seat")]
    OtherSeat,
    #[error("the snapshot has {found} values, the run's model has {expected}; use another directory")]
    OtherShape { found: usize, expected: usize },
    #[error(
        "the snapshot's optimiser is not one of this model; remove the snapshot to start with a fresh one"
    )]
    Optimiser(#[source] StateError),
}

impl Snapshot {
    /// Returns the weights from which the training of `window` starts: `θ − share·e`, with the residual `e` decayed
    /// for missed windows as [`decay_residual`](crate::compress::decay_residual) does it. They already contain a
    /// share of the unsent values, so gradients are computed closer to the future model (step-ahead error feedback:
    /// Xu, Huo and Huang, "Step-Ahead Error Feedback for Distributed Training with Compressed Gradient", AAAI 2021).
    ///
    /// `None` with a share of 0: the training starts at `theta`.
    pub fn start(&self, window: Window, theta: &[f32], share: f32, decay: f32) -> Option<Vec<f32>> {
        if share == 0.0 {
            return None;
        }
        let away = i32::try_from(window.0.saturating_sub(self.residual_for.0)).unwrap_or(i32::MAX);
        let share = share * decay.powi(away);
        Some(std::iter::zip(theta, &self.residual).map(|(theta, held)| theta - share * held).collect())
    }

    /// Returns the first snapshot of a miner: `e = 0` (PROT-10).
    pub fn fresh(window: Window, values: usize) -> Snapshot {
        Snapshot { residual_for: window, residual: vec![0.0; values], pending: None }
    }

    /// Writes the snapshot and the optimiser; the previous file becomes the backup. Returns the length in bytes.
    ///
    /// # Errors
    /// [`SnapshotError`] if the disk cannot be written.
    pub fn save(
        &self,
        to: &DurableFile,
        run: RunId,
        seat: SeatId,
        optimiser: &dyn Optimiser,
    ) -> Result<u64, SnapshotError> {
        let head = (VERSION, run, seat, self.residual_for, &self.pending).encode();
        Ok(to.write(|sink| {
            sink.write_all(&head)?;
            durable::write_vector(sink, &self.residual)?;
            optimiser.write(sink)
        })?)
    }

    /// Reads a snapshot, and `optimiser` with it; `None` if there is none, and then the optimiser is unchanged.
    ///
    /// # Errors
    /// [`SnapshotError`] if the file cannot be read, or is of another run, seat or model. The optimiser may then be
    /// that of a damaged file.
    pub fn load(
        from: &DurableFile,
        run: RunId,
        seat: SeatId,
        values: usize,
        optimiser: &mut dyn Optimiser,
    ) -> Result<Option<Recovered<Snapshot>>, SnapshotError> {
        from.read(|reader| {
            let mut source = IoReader(reader);
            // The version first, because it decides how to read the rest.
            let found = u16::decode(&mut source).map_err(SnapshotError::Format)?;
            if found != VERSION {
                return Err(SnapshotError::Version { found });
            }
            let whose = <(RunId, SeatId)>::decode(&mut source).map_err(SnapshotError::Format)?;
            if whose != (run, seat) {
                return Err(SnapshotError::OtherSeat);
            }
            let residual_for = Window::decode(&mut source).map_err(SnapshotError::Format)?;
            let pending =
                Option::<PendingContribution>::decode(&mut source).map_err(SnapshotError::Format)?;
            let residual = durable::read_vector(&mut source, values)
                .map_err(SnapshotError::Format)?
                .map_err(|found| SnapshotError::OtherShape { found, expected: values })?;
            optimiser.read(source.0).map_err(SnapshotError::Optimiser)?;
            if 0 < source.0.left() {
                return Err(SnapshotError::Format("more follows than belongs there".into()));
            }
            Ok(Snapshot { residual_for, residual, pending })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::{Block, Uid};
    use std::{fs, path::Path};

    /// An optimiser of a few bytes.
    impl Optimiser for Vec<u8> {
        fn write(&self, sink: &mut dyn Write) -> io::Result<()> {
            sink.write_all(&(self.len() as u64).to_le_bytes())?;
            sink.write_all(self)
        }

        fn read(&mut self, source: &mut dyn Read) -> Result<(), StateError> {
            let damaged = |_| StateError::Damaged { len: 0 };
            let mut length = [0; 8];
            source.read_exact(&mut length).map_err(damaged)?;
            let mut bytes = vec![0; u64::from_le_bytes(length).min(1 << 20) as usize];
            source.read_exact(&mut bytes).map_err(damaged)?;
            *self = bytes;
            Ok(())
        }
    }

    /// A snapshot and its optimiser.
    type Loaded = (Recovered<Snapshot>, Vec<u8>);

    const SEAT: SeatId = SeatId { uid: Uid(4), registered_at: Block(9) };

    fn load(
        from: &DurableFile,
        seat: SeatId,
        run: u32,
        values: usize,
    ) -> Result<Option<Loaded>, SnapshotError> {
        let mut optimiser = Vec::new();
        Ok(Snapshot::load(from, RunId(run), seat, values, &mut optimiser)?.map(|found| (found, optimiser)))
    }

    fn snapshot() -> Snapshot {
        Snapshot {
            residual_for: Window(7),
            residual: vec![0.5, -0.0, f32::MIN_POSITIVE],
            pending: Some(PendingContribution {
                window: Window(6),
                digest: Digest::of(b"bytes"),
                length: 5,
                trained: 512,
                committed: true,
            }),
        }
    }

    #[test]
    fn a_window_starts_a_share_of_the_decayed_residual_ahead() {
        let snapshot = Snapshot { residual: vec![0.5, -2.0, 0.0], ..snapshot() };
        let start = |window, share| snapshot.start(Window(window), &[1.0, 1.0, 1.0], share, 0.5);
        assert_eq!(start(7, 0.75), Some(vec![0.625, 2.5, 1.0]));
        assert_eq!(start(9, 0.75), Some(vec![1.0 - 0.25 * 0.375, 1.375, 1.0]));
        assert_eq!(start(7, 0.0), None);
    }

    #[test]
    fn a_snapshot_reads_back_whole_and_only_for_its_seat() {
        let directory = tempfile::tempdir().unwrap();
        let kept = DurableFile::new(directory.path().join("snapshot"));
        assert!(load(&kept, SEAT, 0, 3).unwrap().is_none());

        let snapshot = snapshot();
        let bytes = snapshot.save(&kept, RunId(0), SEAT, &vec![1, 2, 3]).unwrap();
        assert_eq!(bytes, fs::metadata(kept.path()).unwrap().len());
        let (found, optimiser) = load(&kept, SEAT, 0, 3).unwrap().unwrap();
        assert_eq!((found, optimiser), (Recovered { value: snapshot, from_backup: false }, vec![1, 2, 3]));

        let other = SeatId { registered_at: Block(10), ..SEAT };
        assert!(matches!(load(&kept, other, 0, 3), Err(SnapshotError::OtherSeat)));
        assert!(matches!(load(&kept, SEAT, 1, 3), Err(SnapshotError::OtherSeat)));
        assert!(matches!(load(&kept, SEAT, 0, 4), Err(SnapshotError::OtherShape { found: 3, expected: 4 })));
        assert!(load(&kept, SEAT, 0, 3).unwrap().is_some(), "nothing was moved aside for that");
    }

    #[test]
    fn a_snapshot_of_another_release_or_a_broken_one_is_told_apart() {
        let directory = tempfile::tempdir().unwrap();
        let kept = DurableFile::new(directory.path().join("snapshot"));
        let refused = |bytes: &[u8]| {
            kept.write(|sink| sink.write_all(bytes)).unwrap();
            load(&kept, SEAT, 0, 3).unwrap_err()
        };
        Snapshot::fresh(Window(0), 3).save(&kept, RunId(0), SEAT, &vec![1]).unwrap();
        let good = fs::read(kept.path()).unwrap();
        let good = &good[..good.len() - 32];
        for found in [3u16, 5] {
            let error = refused(&[&found.to_le_bytes()[..], &good[2..]].concat());
            assert!(matches!(error, SnapshotError::Version { found: read } if read == found), "{error:?}");
            assert!(error.to_string().contains(&found.to_string()) && error.to_string().contains('4'));
        }
        assert!(matches!(refused(&good[..good.len() - 1]), SnapshotError::Optimiser(_)));
        assert!(matches!(refused(&good[..20]), SnapshotError::Format(_)));
        assert!(matches!(refused(&[good, b"!"].concat()), SnapshotError::Format(_)));
        assert!(matches!(refused(&[4]), SnapshotError::Format(_)));
    }

    #[test]
    fn damage_to_the_newest_costs_no_more_than_the_newest() {
        let directory = tempfile::tempdir().unwrap();
        let kept = DurableFile::new(directory.path().join("snapshot"));
        let first = Snapshot::fresh(Window(0), 3);
        first.save(&kept, RunId(0), SEAT, &vec![1]).unwrap();
        snapshot().save(&kept, RunId(0), SEAT, &vec![2]).unwrap();
        // A byte of the optimiser is changed: it can be read, but the file's digest differs.
        let mut bytes = fs::read(kept.path()).unwrap();
        let at = bytes.len() - 33;
        bytes[at] ^= 1;
        fs::write(kept.path(), bytes).unwrap();
        let (found, optimiser) = load(&kept, SEAT, 0, 3).unwrap().unwrap();
        assert_eq!((found, optimiser), (Recovered { value: first, from_backup: true }, vec![1]));
        assert!(directory.path().join("snapshot.damaged").exists());

        fs::write(kept.backup_path(), "x").unwrap();
        let error = load(&kept, SEAT, 0, 3).unwrap_err();
        assert!(matches!(error, SnapshotError::File(FileError::Damaged { .. })));
        assert!(error.to_string().contains("snapshot.before.damaged"), "{error}");
    }

    /// `golden/miner.snapshot.v4` is of this release. A change of the format needs a new version, and a decision here
    /// on how to read this one.
    #[test]
    fn the_golden_snapshot_is_read_and_written_to_the_byte_and_the_one_of_an_older_release_is_refused() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let directory = tempfile::tempdir().unwrap();
        let kept = DurableFile::new(directory.path().join("snapshot"));
        snapshot().save(&kept, RunId(0), SEAT, &vec![1, 2, 3]).unwrap();
        let version_4 = golden.join("miner.snapshot.v4");
        assert_eq!(fs::read(kept.path()).unwrap(), fs::read(&version_4).unwrap());
        assert_eq!(load(&DurableFile::new(&version_4), SEAT, 0, 3).unwrap().unwrap().0.value, snapshot());

        let version_3 = load(&DurableFile::new(golden.join("miner.snapshot.v3")), SEAT, 0, 3).unwrap_err();
        assert!(matches!(version_3, SnapshotError::Version { found: 3 }));
        assert!(version_3.to_string().contains("let the release that wrote it finish"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn saved_loaded_and_saved_again_it_is_the_same_to_the_bit(
            mut bits in prop::collection::vec(any::<u32>(), 0..200),
            optimiser in prop::collection::vec(any::<u8>(), 0..200),
            window in any::<u32>(),
            pending in any::<Option<(u32, [u8; 32], u64, u32, bool)>>(),
        ) {
            // NaNs with payloads, −0, subnormals: the residual keeps all bits.
            bits.extend([0x7fc0_0001, 0xffc1_2345, 0x7f80_0001, 0x8000_0000, 1, 0x807f_ffff]);
            let pending = pending.map(|(window, digest, length, trained, committed)| PendingContribution {
                window: Window(window), digest: Digest(digest), length, trained, committed,
            });
            let residual: Vec<f32> = bits.iter().copied().map(f32::from_bits).collect();
            let snapshot = Snapshot { residual_for: Window(window), residual, pending };
            let directory = tempfile::tempdir().unwrap();
            let (one, two) = (DurableFile::new(directory.path().join("one")), DurableFile::new(directory.path().join("two")));
            snapshot.save(&one, RunId(1), SEAT, &optimiser).unwrap();
            let (found, read) = load(&one, SEAT, 1, bits.len()).unwrap().unwrap();
            prop_assert!(found.value.residual.iter().map(|value| value.to_bits()).eq(bits.iter().copied()));
            prop_assert_eq!(&read, &optimiser);
            found.value.save(&two, RunId(1), SEAT, &read).unwrap();
            prop_assert!(fs::read(one.path()).unwrap() == fs::read(two.path()).unwrap());
        }
    }
}
