//! Snapshots inside a window: weights, optimiser, and the finished sequences.
//!
//! A window may last hours. A miner killed inside it resumes here, and computes the same bits as an undisturbed one,
//! as a step depends on nothing else. A snapshot is valid for one window only: for its assigned sequences, and for
//! the start of its training ([`Base`]). It is ignored in other windows.

use crate::train::Trained;
use codec::{Compact, Decode, Encode, IoReader};
use daemon::durable::{self, DurableFile, DurableReader, FileError, Recovered};
use nn::{ModelError, StateError, Trainer};
use protocol::{Digest, RunId, SeatId, Window};
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// The version of the format: version, [`SnapshotKey`], [`Trained`], the weights as a SCALE vector of their bits, the
/// weights at the start of the training as an option of such a vector, then the optimiser in its own format. Every
/// change of the format is a new version.
const VERSION: u16 = 3;
/// Snapshots take at most this share (one part in N) of the training time, whatever the settings.
const SHARE: u32 = 50;

/// Identifies one window's training, so that no other resumes from its snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotKey {
    pub run: RunId,
    pub seat: SeatId,
    pub window: Window,
    pub base: Base,
    /// [`digest_of`] the assigned sequences.
    pub sequences: Digest,
}

/// Start of a window's training.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub enum Base {
    /// The window's model, or a step ahead of it: its lineage, and the root of its weights, which may be repaired
    /// under the same lineage (PROT-20). Also after a rebase.
    Model { lineage: Digest, weights: Digest },
    /// The miner's own weights after the previous window, which opened with `lineage` (ADR 0046).
    Own { lineage: Digest },
}

/// Returns the digest of sequences in their order.
pub fn digest_of(sequences: &[u64]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for sequence in sequences {
        hasher.update(&sequence.to_le_bytes());
    }
    Digest(*hasher.finalize().as_bytes())
}

/// Interval of snapshots inside a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotInterval {
    /// Interval in time, but not shorter than `SHARE` allows.
    Time(Duration),
    Steps(u32),
    Never,
}

#[derive(Debug, thiserror::Error)]
pub enum ProgressError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the snapshot inside the window is not in the form this release writes")]
    Format(#[source] codec::Error),
    #[error("the snapshot inside the window is of version {found}, and this release reads version {VERSION}")]
    Version { found: u16 },
    #[error("the weights inside the window are not the model's")]
    Weights(#[source] ModelError),
    #[error("the optimiser inside the window is not the model's")]
    Optimiser(#[source] StateError),
}

/// The snapshots of one window.
#[derive(Debug)]
pub struct Progress {
    file: DurableFile,
    key: SnapshotKey,
    every: SnapshotInterval,
    /// Time of the last snapshot, and the number of steps by then.
    last: (Instant, u32),
    /// The duration of writing the last one.
    cost: Duration,
    /// The weights at the start of the training; `None`: the window's model.
    pub reference: Option<Arc<Vec<f32>>>,
    pub written: Written,
}

/// Number, size and time of the snapshots of one window.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Written {
    pub snapshots: u32,
    pub bytes: u64,
    pub seconds: f64,
}

/// Returns the file of the snapshots of the seat in `directory`.
pub fn file(directory: &Path) -> DurableFile {
    DurableFile::new(directory.join("training.snapshot"))
}

impl Progress {
    pub fn new(directory: &Path, key: SnapshotKey, every: SnapshotInterval) -> Progress {
        let written = Written::default();
        Progress {
            file: file(directory),
            key,
            every,
            last: (Instant::now(), 0),
            cost: Duration::ZERO,
            reference: None,
            written,
        }
    }

    pub fn key(&self) -> &SnapshotKey {
        &self.key
    }

    /// Returns the snapshots in the same file, for the training of `key`.
    pub fn of(&self, key: SnapshotKey) -> Progress {
        Progress { key, reference: None, file: self.file.clone(), ..*self }
    }

    /// Reads the snapshot of this window into `trainer`, and returns its progress; `None` if there is none, and then
    /// the trainer is unchanged.
    ///
    /// # Errors
    /// If the snapshot cannot be used. The trainer may have read part of it.
    pub fn resume(&mut self, trainer: &mut Trainer) -> Result<Option<Recovered<Trained>>, ProgressError> {
        let key = &self.key;
        let found = self.file.read(|reader| {
            let mut source = IoReader(reader);
            // The version first, because it decides how to read the rest.
            let found = u16::decode(&mut source).map_err(ProgressError::Format)?;
            if found != VERSION {
                return Err(ProgressError::Version { found });
            }
            if SnapshotKey::decode(&mut source).map_err(ProgressError::Format)? != *key {
                return Ok(None);
            }
            let trained = Trained::decode(&mut source).map_err(ProgressError::Format)?;
            let weights = read_weights(&mut source, trainer.parameters())?;
            trainer.load(&weights).map_err(ProgressError::Weights)?;
            // Freed before the optimiser is read, which may be twice as large.
            drop(weights);
            let reference = match bool::decode(&mut source).map_err(ProgressError::Format)? {
                true => Some(Arc::new(read_weights(&mut source, trainer.parameters())?)),
                false => None,
            };
            if reference.is_none() && matches!(key.base, Base::Own { .. }) {
                return Err(ProgressError::Format(
                    "it lacks the weights that the training began with".into(),
                ));
            }
            trainer.read_state(source.0).map_err(ProgressError::Optimiser)?;
            if 0 < source.0.left() {
                return Err(ProgressError::Format("more follows than belongs there".into()));
            }
            Ok(Some((trained, reference)))
        })?;
        let found = found.and_then(|found| {
            let (trained, reference) = found.value?;
            self.reference = reference;
            Some(Recovered { value: trained, from_backup: found.from_backup })
        });
        self.last = (Instant::now(), found.as_ref().map_or(0, |found| found.value.steps));
        Ok(found)
    }

    /// Writes a snapshot if one is due.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn stepped(&mut self, trainer: &Trainer, trained: &Trained) -> Result<(), FileError> {
        let (at, steps) = self.last;
        if is_due(self.every, trained.steps.saturating_sub(steps), at.elapsed(), self.cost) {
            self.write(trainer, trained)
        } else {
            Ok(())
        }
    }

    /// Writes a snapshot now.
    ///
    /// # Errors
    /// If the disk cannot be written. The last good snapshot is unchanged, and the next is written when it is due.
    #[tracing::instrument(name = "snapshot", target = "profile", level = "trace", skip_all)]
    pub fn write(&mut self, trainer: &Trainer, trained: &Trained) -> Result<(), FileError> {
        let started = Instant::now();
        let head = (VERSION, &self.key, trained, Compact(trainer.parameters() as u64)).encode();
        let written = self.file.write(|sink| {
            sink.write_all(&head)?;
            trainer.write_weights(sink)?;
            sink.write_all(&self.reference.is_some().encode())?;
            if let Some(reference) = &self.reference {
                sink.write_all(&Compact(reference.len() as u64).encode())?;
                durable::write_values(sink, reference)?;
            }
            trainer.write_state(sink)
        });
        self.cost = started.elapsed();
        self.last = (Instant::now(), trained.steps);
        self.written.bytes = written?;
        self.written.snapshots += 1;
        self.written.seconds += self.cost.as_secs_f64();
        Ok(())
    }

    /// Removes the snapshots: the window is over, or abandoned.
    pub fn remove(&self) {
        self.file.remove();
    }
}

/// Reads as many weights as the model has.
fn read_weights(
    source: &mut IoReader<&mut DurableReader>,
    expected: usize,
) -> Result<Vec<f32>, ProgressError> {
    durable::read_vector(source, expected)
        .map_err(ProgressError::Format)?
        .map_err(|got| ProgressError::Weights(ModelError::FlatLength { expected, got }))
}

/// Returns whether a snapshot is due, `steps` and `elapsed` after the last, which took `cost`.
fn is_due(every: SnapshotInterval, steps: u32, elapsed: Duration, cost: Duration) -> bool {
    match every {
        SnapshotInterval::Time(time) => time.max(cost.saturating_mul(SHARE)) <= elapsed,
        SnapshotInterval::Steps(count) => count.max(1) <= steps,
        SnapshotInterval::Never => false,
    }
}
