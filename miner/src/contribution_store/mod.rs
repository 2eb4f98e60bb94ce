//! A contribution from compression to upload, in the order of its writes, so that a miner killed at any moment
//! resumes.
//!
//! ```text
//! file ── snapshot names it ── commitment on the chain ── body leaves the residual, snapshot says so ── upload
//! ```
//!
//! Killed before the snapshot names the file, the miner trains the window again. Killed between snapshot and
//! commitment, it finds the contribution; if the file is lost, the residual still holds all of it, and the same bytes
//! are written again. Once the body has left the residual, a lost file means a missed window.

mod files;
mod snapshot;

pub use files::{ContributionFileError, ContributionFiles};
pub use snapshot::{Optimiser, PendingContribution, Snapshot, SnapshotError};

use daemon::{
    Codec,
    durable::{DurableFile, Recovered},
};
use kernels::encode::Source;
use nn::StateError;
use protocol::{RunId, SeatId, identity::Signer, submission::Header};
use std::{io, path::PathBuf, sync::Arc};

/// The files of a seat, and the dependencies for making a contribution. Clones share everything large.
#[derive(Clone)]
pub struct ContributionStore {
    /// The seat's directory.
    pub directory: PathBuf,
    pub run: RunId,
    pub seat: SeatId,
    pub signer: Signer,
    pub codec: Arc<Codec>,
}

#[derive(Debug, thiserror::Error)]
pub enum ContributionStoreError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    File(#[from] ContributionFileError),
    /// The file of a committed contribution is lost, and its body has left the residual.
    #[error("the committed contribution cannot be uploaded")]
    Lost(#[source] ContributionFileError),
    #[error("the snapshot is gone from the disk: the next start begins with an empty residual")]
    SnapshotGone,
}

/// Reads past an optimiser in a file.
struct SkippedOptimiser;

impl Optimiser for SkippedOptimiser {
    fn write(&self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn read(&mut self, source: &mut dyn io::Read) -> Result<(), StateError> {
        let skipped = io::copy(source, &mut io::sink());
        skipped.map(drop).map_err(|error| StateError::Unreadable { kind: error.kind() })
    }
}

impl ContributionStore {
    /// Reads the seat's snapshot, with its optimiser, or `None` if it has none yet. Removes unfinished files of a
    /// killed process.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot cannot be read.
    pub fn open(&self, optimiser: &mut dyn Optimiser) -> Result<Option<Recovered<Snapshot>>, SnapshotError> {
        let found = self.load(optimiser)?;
        self.prune(found.as_ref().map(|found| &found.value));
        Ok(found)
    }

    /// Resets the optimiser to the snapshot's: the end of the last window that was not abandoned.
    ///
    /// # Errors
    /// [`SnapshotError`] if the snapshot cannot be read.
    pub fn restore(&self, optimiser: &mut dyn Optimiser) -> Result<(), SnapshotError> {
        self.load(optimiser).map(drop)
    }

    /// Reads residual and pending contribution again, after an error left those in memory half changed. The trainer's
    /// optimiser stays.
    ///
    /// # Errors
    /// If the snapshot cannot be read, or does not exist.
    pub fn reload(&self) -> Result<Snapshot, ContributionStoreError> {
        let found = self.load(&mut SkippedOptimiser)?;
        Ok(found.ok_or(ContributionStoreError::SnapshotGone)?.value)
    }

    /// Compresses the window's work into a file, then names it in the snapshot.
    ///
    /// # Errors
    /// If values cannot be encoded, or the disk cannot be written. The residual in memory may then be partly changed;
    /// the file on disk is not.
    pub fn make(
        &self,
        snapshot: &mut Snapshot,
        header: &Header,
        source: Source<'_>,
        optimiser: &dyn Optimiser,
    ) -> Result<PendingContribution, ContributionStoreError> {
        let sealed = self.files().write(&self.codec, header, &self.signer, &mut snapshot.residual, source)?;
        let pending = PendingContribution {
            window: header.window,
            digest: sealed.digest,
            length: sealed.length,
            trained: header.trained,
            committed: false,
        };
        snapshot.residual_for = header.window.next();
        snapshot.pending = Some(pending.clone());
        self.save(snapshot, optimiser)?;
        self.prune(Some(snapshot));
        Ok(pending)
    }

    /// Resumes the contribution of a killed process. If its file is lost, it is written again from the residual, with
    /// `header`.
    ///
    /// # Errors
    /// [`ContributionStoreError::Lost`] if the file is lost and its body has left the residual.
    pub fn resume(
        &self,
        snapshot: &mut Snapshot,
        pending: PendingContribution,
        header: &Header,
        optimiser: &dyn Optimiser,
    ) -> Result<PendingContribution, ContributionStoreError> {
        let Err(lost) = self.check(&pending) else { return Ok(pending) };
        if pending.committed {
            return Err(ContributionStoreError::Lost(lost));
        }
        tracing::warn!(window = pending.window.0, error = %lost, "writing the contribution again");
        self.make(snapshot, header, Source::Nothing, optimiser)
    }

    /// Records that the commitment is in a finalised block: the body leaves the residual, merged or not (PROT-10).
    ///
    /// # Errors
    /// If a file cannot be read or written. The residual in memory may then be partly changed; the file on disk is
    /// not.
    pub fn committed(
        &self,
        snapshot: &mut Snapshot,
        pending: &PendingContribution,
        optimiser: &dyn Optimiser,
    ) -> Result<(), ContributionStoreError> {
        self.files().subtract_sent(&self.codec, &pending.sealed(), &mut snapshot.residual)?;
        snapshot.pending = Some(PendingContribution { committed: true, ..pending.clone() });
        self.save(snapshot, optimiser)?;
        Ok(())
    }

    /// Checks that the file has the committed digest.
    ///
    /// # Errors
    /// If the file cannot be read, or has another length or digest.
    pub fn check(&self, pending: &PendingContribution) -> Result<(), ContributionFileError> {
        self.files().check(&pending.sealed())
    }

    /// Returns the file to upload.
    pub fn path(&self, pending: &PendingContribution) -> PathBuf {
        self.files().path(&pending.digest)
    }

    fn files(&self) -> ContributionFiles {
        ContributionFiles::new(&self.directory)
    }

    fn prune(&self, snapshot: Option<&Snapshot>) {
        let pending = snapshot.and_then(|snapshot| snapshot.pending.as_ref());
        self.files().prune(pending.map(|pending| &pending.digest));
    }

    fn load(&self, optimiser: &mut dyn Optimiser) -> Result<Option<Recovered<Snapshot>>, SnapshotError> {
        Snapshot::load(&self.file(), self.run, self.seat, self.codec.schema().values(), optimiser)
    }

    /// Writes the seat's snapshot. The first one is written at the start, so that a full disk shows up then.
    ///
    /// # Errors
    /// [`SnapshotError`] if the disk cannot be written.
    #[tracing::instrument(name = "snapshot", target = "profile", level = "trace", skip_all)]
    pub fn save(&self, snapshot: &Snapshot, optimiser: &dyn Optimiser) -> Result<(), SnapshotError> {
        snapshot.save(&self.file(), self.run, self.seat, optimiser).map(drop)
    }

    fn file(&self) -> DurableFile {
        DurableFile::new(self.directory.join("miner.snapshot"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::tests::{codec, header, key};
    use protocol::{Block, Uid, Window, contribution};
    use std::{fs, path::Path};

    const VALUES: usize = 5003;
    const OPTIMISER: [u8; 3] = [1, 2, 3];

    struct Home {
        directory: tempfile::TempDir,
        signer: Signer,
        codec: Arc<Codec>,
    }

    impl Home {
        fn new() -> Home {
            Home {
                directory: tempfile::tempdir().unwrap(),
                signer: key(),
                codec: Arc::new(codec(&[5000, 3])),
            }
        }

        fn store(&self) -> ContributionStore {
            ContributionStore {
                directory: self.directory.path().to_owned(),
                run: RunId(1),
                seat: SeatId { uid: Uid(4), registered_at: Block(9) },
                signer: self.signer.clone(),
                codec: self.codec.clone(),
            }
        }

        fn header(&self) -> Header {
            header(&self.codec)
        }

        /// Returns the contribution of the miner's training, the same each time.
        fn train(&self, snapshot: &mut Snapshot) -> PendingContribution {
            let theta = vec![0.0; VALUES];
            let trained: Vec<f32> = (0..VALUES).map(|at| ((at * 37 % 101) as f32 - 50.0) * 1e-3).collect();
            let source = Source::Difference { decay: 0.5, before: &theta, after: &trained };
            self.store().make(snapshot, &self.header(), source, &OPTIMISER.to_vec()).unwrap()
        }

        /// Returns the snapshot of a process that is started after another was killed.
        fn restarted(&self) -> Snapshot {
            let mut optimiser = Vec::new();
            match self.store().open(&mut optimiser).unwrap() {
                Some(found) => {
                    assert_eq!(optimiser, OPTIMISER);
                    found.value
                }
                None => Snapshot::fresh(Window(9), VALUES),
            }
        }

        fn resume(&self, snapshot: &mut Snapshot) -> Result<PendingContribution, ContributionStoreError> {
            let pending = snapshot.pending.clone().unwrap();
            self.store().resume(snapshot, pending, &self.header(), &OPTIMISER.to_vec())
        }

        fn committed(
            &self,
            snapshot: &mut Snapshot,
            pending: &PendingContribution,
        ) -> Result<(), ContributionStoreError> {
            self.store().committed(snapshot, pending, &OPTIMISER.to_vec())
        }

        fn files(&self) -> usize {
            fs::read_dir(self.directory.path().join("contributions")).unwrap().count()
        }

        /// Returns the uploaded bytes and the residual of an undisturbed miner.
        fn undisturbed() -> (Vec<u8>, Vec<f32>) {
            let home = Home::new();
            let mut snapshot = home.restarted();
            let pending = home.train(&mut snapshot);
            home.committed(&mut snapshot, &pending).unwrap();
            home.ends_like(None, snapshot)
        }

        /// Checks that the window can be ended, and returns its result.
        fn ends_like(
            &self,
            expected: Option<(Vec<u8>, Vec<f32>)>,
            snapshot: Snapshot,
        ) -> (Vec<u8>, Vec<f32>) {
            let pending = snapshot.pending.clone().unwrap();
            assert!(pending.committed);
            self.store().check(&pending).unwrap();
            assert_eq!(self.restarted(), snapshot, "what is in memory is on disk");
            assert_eq!(self.files(), 1);
            let ended = (fs::read(self.store().path(&pending)).unwrap(), snapshot.residual);
            assert!(expected.is_none_or(|expected| expected == ended));
            ended
        }
    }

    #[test]
    fn the_residual_after_a_window_equals_encoding_with_feedback() {
        let (bytes, kept) = Home::undisturbed();
        let home = Home::new();
        let mut residual: Vec<f32> =
            (0..VALUES).map(|at| -(((at * 37 % 101) as f32 - 50.0) * 1e-3)).collect();
        let (schema, density) = (home.codec.schema(), home.codec.density());
        let body = contribution::encode_with_feedback(schema, density, &mut residual).unwrap();
        assert_eq!(bytes, protocol::submission::seal(&home.header(), &body, &key()));
        assert_eq!(kept, residual);
    }

    #[test]
    fn killed_between_file_and_snapshot_the_miner_makes_the_same_bytes_again() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        home.train(&mut snapshot);
        // As if the snapshot had not been written: the file exists, and the snapshot does not name it.
        fs::remove_file(home.store().file().path()).unwrap();
        fs::write(home.directory.path().join("contributions/.unfinished-1"), "half of one").unwrap();

        let mut snapshot = home.restarted();
        assert_eq!(snapshot, Snapshot::fresh(Window(9), VALUES));
        assert_eq!(home.files(), 0, "what nothing names is removed");
        let pending = home.train(&mut snapshot);
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn killed_between_snapshot_and_commitment_the_miner_commits_to_the_same_bytes() {
        let home = Home::new();
        let made = home.train(&mut home.restarted());

        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        assert_eq!(pending, made);
        assert_eq!(snapshot.residual_for, Window(10));
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn a_file_lost_before_the_commitment_is_written_again() {
        let lose: [fn(&Path); 3] = [
            |path| fs::remove_file(path).unwrap(),
            |path| fs::write(path, &fs::read(path).unwrap()[..100]).unwrap(),
            |path| {
                fs::write(path, fs::read(path).unwrap().iter().map(|byte| !byte).collect::<Vec<u8>>())
                    .unwrap()
            },
        ];
        for lose in lose {
            let home = Home::new();
            let made = home.train(&mut home.restarted());
            lose(&home.store().path(&made));

            let mut snapshot = home.restarted();
            let pending = home.resume(&mut snapshot).unwrap();
            assert_eq!(pending, made);
            home.committed(&mut snapshot, &pending).unwrap();
            home.ends_like(Some(Home::undisturbed()), snapshot);
        }
    }

    #[test]
    fn killed_between_commitment_and_upload_the_miner_uploads_the_same_bytes_and_subtracts_once() {
        // The commitment is in a block, and the snapshot does not record it yet: as before, the chain reports it.
        let home = Home::new();
        home.train(&mut home.restarted());
        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        home.committed(&mut snapshot, &pending).unwrap();

        // Now the snapshot records it.
        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        assert!(pending.committed);
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn a_file_lost_after_the_commitment_leaves_residual_and_optimiser_unchanged() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let pending = home.train(&mut snapshot);
        home.committed(&mut snapshot, &pending).unwrap();
        fs::remove_file(home.store().path(&pending)).unwrap();

        let mut again = home.restarted();
        let lost = home.resume(&mut again).unwrap_err();
        assert!(matches!(lost, ContributionStoreError::Lost(ContributionFileError::Gone { .. })), "{lost:?}");
        assert_eq!(again, snapshot, "the residual and the optimiser are as they were");
    }

    #[test]
    fn a_file_damaged_during_the_commitment_is_an_error_and_is_repaired_at_the_next_start() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let pending = home.train(&mut snapshot);
        let path = home.store().path(&pending);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 70;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let refused = home.committed(&mut snapshot, &pending);
        assert!(matches!(refused, Err(ContributionStoreError::File(ContributionFileError::Digest { .. }))));

        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    /// The disk is full for the file, or for recording the commitment: the residual in memory is then partly changed.
    #[test]
    fn a_half_changed_snapshot_is_reloaded_and_the_window_ends_the_same() {
        let half = |snapshot: &mut Snapshot| {
            snapshot.residual[..VALUES / 2].iter_mut().for_each(|value| *value = 0.5 * *value + 7e-3);
            snapshot.residual_for = Window(77);
            snapshot.pending = None;
        };
        let home = Home::new();
        let mut snapshot = home.restarted();
        home.store().save(&snapshot, &OPTIMISER.to_vec()).unwrap();
        half(&mut snapshot);
        snapshot = home.store().reload().unwrap();
        assert_eq!(snapshot, Snapshot::fresh(Window(9), VALUES));

        let pending = home.train(&mut snapshot);
        half(&mut snapshot);
        snapshot = home.store().reload().unwrap();
        assert_eq!(snapshot.pending.as_ref(), Some(&pending));
        home.committed(&mut snapshot, &pending).unwrap();
        half(&mut snapshot);
        snapshot = home.store().reload().unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn a_damaged_snapshot_falls_back_to_the_backup_and_the_window_ends_the_same() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let pending = home.train(&mut snapshot);
        home.committed(&mut snapshot, &pending).unwrap();
        fs::write(home.store().file().path(), "damaged").unwrap();

        // The snapshot has no commitment yet; the chain will report it.
        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        assert!(!pending.committed);
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn the_next_window_replaces_the_file_of_the_previous() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let first = home.train(&mut snapshot);
        home.committed(&mut snapshot, &first).unwrap();
        let header = Header { window: Window(10), ..home.header() };
        let second = home.store().make(&mut snapshot, &header, Source::Nothing, &OPTIMISER.to_vec()).unwrap();
        assert_ne!(first.digest, second.digest);
        assert!(!home.store().path(&first).exists() && home.store().path(&second).exists());
    }
}
