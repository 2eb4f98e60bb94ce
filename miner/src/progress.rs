//! How far into its window a miner is: weights, optimiser, and which sequences are done, written now and then while it trains.
//!
//! A window may last hours. A miner killed inside it goes on from here, and since a step depends on nothing else, it comes to the bits that
//! it would have come to: the same weights, and so the same contribution. What is here is good for one window only: the model that it opened
//! with, by its lineage and the root of its weights, and the sequences that were dealt. To another one it is nothing, and is passed over.

use crate::train::Trained;
use codec::{Compact, Decode, Encode, IoReader};
use nn::{ModelError, StateError, Trainer};
use node::durable::{self, DurableFile, FileError, Recovered};
use protocol::{Digest, RunId, SeatId, Window};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// The version of the form on disk: itself, what it is of, what was trained, the weights as a SCALE vector of their bits, and to the end the
/// optimiser as it writes itself. A change of the form is a new one.
const VERSION: u16 = 1;
/// Of the time that training takes, snapshots take no more than one part in so many, whatever the settings say.
const SHARE: u32 = 50;

/// One window's training, so that no other goes on from it.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct SnapshotKey {
    pub run: RunId,
    pub seat: SeatId,
    pub window: Window,
    /// The lineage that the window opened with.
    pub lineage: Digest,
    /// The root of the weights that the window opened with: those may be repaired under the same lineage (PROT-20).
    pub weights: Digest,
    /// [`digest_of`] the sequences to train on.
    pub sequences: Digest,
}

/// What sequences, in their order, are told apart by.
pub fn digest_of(sequences: &[u64]) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for sequence in sequences {
        hasher.update(&sequence.to_le_bytes());
    }
    Digest(*hasher.finalize().as_bytes())
}

/// How often a snapshot is written inside a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotInterval {
    /// After so long, but never more often than `SHARE` allows.
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

/// Where a seat keeps how far it is.
#[derive(Debug)]
pub struct Progress {
    kept: DurableFile,
    of: SnapshotKey,
    every: SnapshotInterval,
    /// When the last snapshot was through, and after how many steps.
    last: (Instant, u32),
    /// What the last one cost.
    cost: Duration,
    pub written: Written,
}

/// What the snapshots of one window came to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Written {
    pub snapshots: u32,
    pub bytes: u64,
    pub seconds: f64,
}

/// Where a seat whose files are in `directory` keeps how far it is.
pub fn kept(directory: &Path) -> DurableFile {
    DurableFile::new(directory.join("training.snapshot"))
}

impl Progress {
    pub fn new(directory: &Path, of: SnapshotKey, every: SnapshotInterval) -> Progress {
        let written = Written::default();
        Progress {
            kept: kept(directory),
            of,
            every,
            last: (Instant::now(), 0),
            cost: Duration::ZERO,
            written,
        }
    }

    /// Puts `trainer` where a predecessor was killed inside this window, and says what was trained by then; `None` if there is nothing of this
    /// window, and then the trainer is as it was.
    ///
    /// # Errors
    /// If what there is cannot be used. The trainer may have taken part of it.
    pub fn resume(&mut self, trainer: &mut Trainer) -> Result<Option<Recovered<Trained>>, ProgressError> {
        let of = &self.of;
        let found = self.kept.read(|reader| {
            let mut source = IoReader(reader);
            // The version first: the rest of another one may mean anything.
            let found = u16::decode(&mut source).map_err(ProgressError::Format)?;
            if found != VERSION {
                return Err(ProgressError::Version { found });
            }
            if SnapshotKey::decode(&mut source).map_err(ProgressError::Format)? != *of {
                return Ok(None);
            }
            let trained = Trained::decode(&mut source).map_err(ProgressError::Format)?;
            let weights = durable::read_vector(&mut source, trainer.parameters())
                .map_err(ProgressError::Format)?
                .map_err(|got| ModelError::FlatLength { expected: trainer.parameters(), got })
                .map_err(ProgressError::Weights)?;
            trainer.load(&weights).map_err(ProgressError::Weights)?;
            trainer.read_state(source.0).map_err(ProgressError::Optimiser)?;
            if 0 < source.0.left() {
                return Err(ProgressError::Format("more follows than belongs there".into()));
            }
            Ok(Some(trained))
        })?;
        let found =
            found.and_then(|found| Some(Recovered { value: found.value?, from_backup: found.from_backup }));
        self.last = (Instant::now(), found.as_ref().map_or(0, |found| found.value.steps));
        Ok(found)
    }

    /// Writes a snapshot if one is due.
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
    /// If the disk does not take it. The last good one is as it was, and the next is tried when its time comes.
    pub fn write(&mut self, trainer: &Trainer, trained: &Trained) -> Result<(), FileError> {
        let started = Instant::now();
        let head = (VERSION, &self.of, trained, Compact(trainer.parameters() as u64)).encode();
        let written = self.kept.write(|sink| {
            sink.write_all(&head)?;
            trainer.write_weights(sink)?;
            trainer.write_state(sink)
        });
        self.cost = started.elapsed();
        self.last = (Instant::now(), trained.steps);
        self.written.bytes = written?;
        self.written.snapshots += 1;
        self.written.seconds += self.cost.as_secs_f64();
        Ok(())
    }

    /// Forgets the window: it is over, or given up.
    pub fn remove(&self) {
        self.kept.remove();
    }
}

/// Whether a snapshot is due, so many steps and so long after the last, which took `cost`.
fn is_due(every: SnapshotInterval, steps: u32, elapsed: Duration, cost: Duration) -> bool {
    match every {
        SnapshotInterval::Time(time) => time.max(cost.saturating_mul(SHARE)) <= elapsed,
        SnapshotInterval::Steps(count) => count.max(1) <= steps,
        SnapshotInterval::Never => false,
    }
}
