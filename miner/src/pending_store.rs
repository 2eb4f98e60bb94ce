//! A contribution from the model to the upload, as the disk sees it: what is written when, so that a miner killed at any moment goes on.
//!
//! ```text
//! spool file ── snapshot names it ── commit ── body leaves the residual, snapshot says so ── upload
//! ```
//!
//! Killed left of the first arrow's end, a miner finds a file that nothing names, or half of one, and trains the window again. Between
//! snapshot and commitment it finds the contribution; should its file be lost, the residual still holds all of it, and it is written once
//! more, to the same bytes. Once the body has left the residual, a file that is lost is lost for good, and so is the window.

use crate::{
    contribution_store::{ContributionStore, ContributionStoreError},
    snapshot::{Optimiser, PendingContribution, Snapshot, SnapshotError},
};
use ed25519_dalek::SigningKey;
use kernels::encode::Source;
use nn::StateError;
use node::{
    Codec,
    durable::{DurableFile, Recovered},
};
use protocol::{RunId, SeatId, submission::Header};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Where a seat keeps what is on its way, and what it takes to make it.
pub struct PendingStore<'a> {
    /// The seat's directory.
    pub directory: &'a Path,
    pub run: RunId,
    pub seat: SeatId,
    pub key: &'a SigningKey,
    pub codec: &'a Codec,
}

#[derive(Debug, thiserror::Error)]
pub enum PendingStoreError {
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error(transparent)]
    ContributionStore(#[from] ContributionStoreError),
}

impl PendingStoreError {
    /// Whether the disk took no more. What was kept before stands, and what was to be kept is to be made again from it.
    pub fn is_full(&self) -> bool {
        match self {
            PendingStoreError::Snapshot(error) => error.is_full(),
            PendingStoreError::ContributionStore(error) => error.is_full(),
        }
    }
}

/// Passes over an optimiser that is on disk.
struct PassedOver;

impl Optimiser for PassedOver {
    fn write(&self, _: &mut dyn io::Write) -> io::Result<()> {
        Ok(())
    }

    fn read(&mut self, source: &mut dyn io::Read) -> Result<(), StateError> {
        let passed = io::copy(source, &mut io::sink());
        passed.map(drop).map_err(|error| StateError::Unreadable { kind: error.kind() })
    }
}

impl PendingStore<'_> {
    /// The seat's snapshot, with its optimiser, or `None` if it has none yet; and away with what a killed predecessor left unfinished.
    pub fn open(&self, optimiser: &mut dyn Optimiser) -> Result<Option<Recovered<Snapshot>>, SnapshotError> {
        let found = self.load(optimiser)?;
        self.prune(found.as_ref().map(|found| &found.value));
        Ok(found)
    }

    /// Writes a seat's first snapshot. That the disk has no room for it is found out now, and not when a window's work is done.
    pub fn begin(&self, snapshot: &Snapshot, optimiser: &dyn Optimiser) -> Result<(), SnapshotError> {
        self.save(snapshot, optimiser)
    }

    /// Puts the optimiser where the snapshot has it: where the last window left it that was not given up.
    pub fn restore(&self, optimiser: &mut dyn Optimiser) -> Result<(), SnapshotError> {
        self.load(optimiser).map(drop)
    }

    /// What is on disk of the residual and of what is on its way, for an error that left the copy in memory half changed; the optimiser at work
    /// goes on. `None` if nothing is there, which cannot be after [`begin`](Self::begin).
    pub fn reload(&self) -> Result<Option<Snapshot>, SnapshotError> {
        Ok(self.load(&mut PassedOver)?.map(|found| found.value))
    }

    /// Compresses the window's work into a file, and then names it in the snapshot.
    ///
    /// On an error the residual in memory may be half stepped: what is on disk counts.
    pub fn make(
        &self,
        snapshot: &mut Snapshot,
        header: &Header,
        source: Source<'_>,
        optimiser: &dyn Optimiser,
    ) -> Result<PendingContribution, PendingStoreError> {
        let sealed =
            self.contribution_store().write(self.codec, header, self.key, &mut snapshot.residual, source)?;
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

    /// A predecessor's contribution, checked. If its file was lost it is written once more, where the residual still has it: `header` says
    /// for whom, in this window. An `Err` inside says what is lost for good.
    pub fn resume(
        &self,
        snapshot: &mut Snapshot,
        pending: PendingContribution,
        header: &Header,
        optimiser: &dyn Optimiser,
    ) -> Result<Result<PendingContribution, ContributionStoreError>, PendingStoreError> {
        let Err(lost) = self.check(&pending) else { return Ok(Ok(pending)) };
        if pending.committed {
            return Ok(Err(lost));
        }
        tracing::warn!(window = pending.window.0, error = %lost, "writing the contribution once more");
        self.make(snapshot, header, Source::Nothing, optimiser).map(Ok)
    }

    /// The commitment is in a finalised block: the body leaves the residual, merged or not (PROT-10).
    ///
    /// On an error the residual in memory may be half spent: what is on disk counts.
    pub fn committed(
        &self,
        snapshot: &mut Snapshot,
        pending: &PendingContribution,
        optimiser: &dyn Optimiser,
    ) -> Result<(), PendingStoreError> {
        self.contribution_store().subtract_sent(self.codec, &pending.sealed(), &mut snapshot.residual)?;
        snapshot.pending = Some(PendingContribution { committed: true, ..pending.clone() });
        self.save(snapshot, optimiser)?;
        Ok(())
    }

    /// Whether the file is what was committed to: nobody is shown anything else.
    pub fn check(&self, pending: &PendingContribution) -> Result<(), ContributionStoreError> {
        self.contribution_store().check(&pending.sealed())
    }

    /// The file to upload.
    pub fn path(&self, pending: &PendingContribution) -> PathBuf {
        self.contribution_store().path(&pending.digest)
    }

    fn contribution_store(&self) -> ContributionStore {
        ContributionStore::new(self.directory)
    }

    fn prune(&self, snapshot: Option<&Snapshot>) {
        let pending = snapshot.and_then(|snapshot| snapshot.pending.as_ref());
        self.contribution_store().prune(pending.map(|pending| &pending.digest));
    }

    fn load(&self, optimiser: &mut dyn Optimiser) -> Result<Option<Recovered<Snapshot>>, SnapshotError> {
        Snapshot::load(&self.kept(), self.run, self.seat, self.codec.schema().values(), optimiser)
    }

    fn save(&self, snapshot: &Snapshot, optimiser: &dyn Optimiser) -> Result<(), SnapshotError> {
        snapshot.save(&self.kept(), self.run, self.seat, optimiser).map(drop)
    }

    fn kept(&self) -> DurableFile {
        DurableFile::new(self.directory.join("miner.snapshot"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::tests::{codec, header, key};
    use protocol::{Block, Uid, Window, contribution};
    use std::fs;

    const VALUES: usize = 5003;
    const OPTIMISER: [u8; 3] = [1, 2, 3];

    struct Home {
        directory: tempfile::TempDir,
        key: SigningKey,
        codec: Codec,
    }

    impl Home {
        fn new() -> Home {
            Home { directory: tempfile::tempdir().unwrap(), key: key(), codec: codec(&[5000, 3]) }
        }

        fn pending_store(&self) -> PendingStore<'_> {
            PendingStore {
                directory: self.directory.path(),
                run: RunId(1),
                seat: SeatId { uid: Uid(4), registered_at: Block(9) },
                key: &self.key,
                codec: &self.codec,
            }
        }

        fn header(&self) -> Header {
            header(&self.codec)
        }

        /// What the miner trains, the same each time it does.
        fn train(&self, snapshot: &mut Snapshot) -> PendingContribution {
            let theta = vec![0.0; VALUES];
            let trained: Vec<f32> = (0..VALUES).map(|at| ((at * 37 % 101) as f32 - 50.0) * 1e-3).collect();
            let source = Source::Difference { decay: 0.5, before: &theta, after: &trained };
            self.pending_store().make(snapshot, &self.header(), source, &OPTIMISER.to_vec()).unwrap()
        }

        /// What a process finds that is started after the one before it was killed.
        fn restarted(&self) -> Snapshot {
            let mut optimiser = Vec::new();
            match self.pending_store().open(&mut optimiser).unwrap() {
                Some(found) => {
                    assert_eq!(optimiser, OPTIMISER);
                    found.value
                }
                None => Snapshot::fresh(Window(9), VALUES),
            }
        }

        fn resume(&self, snapshot: &mut Snapshot) -> Result<PendingContribution, ContributionStoreError> {
            let pending = snapshot.pending.clone().unwrap();
            self.pending_store().resume(snapshot, pending, &self.header(), &OPTIMISER.to_vec()).unwrap()
        }

        fn committed(
            &self,
            snapshot: &mut Snapshot,
            pending: &PendingContribution,
        ) -> Result<(), PendingStoreError> {
            self.pending_store().committed(snapshot, pending, &OPTIMISER.to_vec())
        }

        fn files(&self) -> usize {
            fs::read_dir(self.directory.path().join("contributions")).unwrap().count()
        }

        /// Bytes uploaded and residual kept by a miner that nothing happens to.
        fn undisturbed() -> (Vec<u8>, Vec<f32>) {
            let home = Home::new();
            let mut snapshot = home.restarted();
            let pending = home.train(&mut snapshot);
            home.committed(&mut snapshot, &pending).unwrap();
            home.ends_like(None, snapshot)
        }

        /// Checks that the window can be ended, and gives what comes of it.
        fn ends_like(
            &self,
            expected: Option<(Vec<u8>, Vec<f32>)>,
            snapshot: Snapshot,
        ) -> (Vec<u8>, Vec<f32>) {
            let pending = snapshot.pending.clone().unwrap();
            assert!(pending.committed);
            self.pending_store().check(&pending).unwrap();
            assert_eq!(self.restarted(), snapshot, "what is in memory is on disk");
            assert_eq!(self.files(), 1);
            let ended = (fs::read(self.pending_store().path(&pending)).unwrap(), snapshot.residual);
            assert!(expected.is_none_or(|expected| expected == ended));
            ended
        }
    }

    #[test]
    fn what_a_miner_keeps_is_what_encoding_with_feedback_keeps() {
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
    fn killed_between_file_and_snapshot_a_miner_trains_again_and_gets_the_same_bytes() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        home.train(&mut snapshot);
        // As if the snapshot had not come to be: the file is there, and nothing names it.
        fs::remove_file(home.pending_store().kept().path()).unwrap();
        fs::write(home.directory.path().join("contributions/.unfinished-1"), "half of one").unwrap();

        let mut snapshot = home.restarted();
        assert_eq!(snapshot, Snapshot::fresh(Window(9), VALUES));
        assert_eq!(home.files(), 0, "what nothing names is removed");
        let pending = home.train(&mut snapshot);
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn killed_between_snapshot_and_commitment_a_miner_commits_to_the_same_bytes() {
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
    fn a_file_lost_before_the_commitment_is_written_once_more() {
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
            lose(&home.pending_store().path(&made));

            let mut snapshot = home.restarted();
            let pending = home.resume(&mut snapshot).unwrap();
            assert_eq!(pending, made);
            home.committed(&mut snapshot, &pending).unwrap();
            home.ends_like(Some(Home::undisturbed()), snapshot);
        }
    }

    #[test]
    fn killed_between_commitment_and_upload_a_miner_uploads_the_same_bytes_and_spends_once() {
        // The commitment is in a block, and the snapshot does not say so yet: as before it, the chain will say that it is there.
        let home = Home::new();
        home.train(&mut home.restarted());
        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        home.committed(&mut snapshot, &pending).unwrap();

        // Now it says so.
        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        assert!(pending.committed);
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn a_file_lost_after_the_commitment_is_lost_and_nothing_else_is() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let pending = home.train(&mut snapshot);
        home.committed(&mut snapshot, &pending).unwrap();
        fs::remove_file(home.pending_store().path(&pending)).unwrap();

        let mut again = home.restarted();
        assert!(matches!(home.resume(&mut again), Err(ContributionStoreError::Gone { .. })));
        assert_eq!(again, snapshot, "the residual and the optimiser are as they were");
    }

    #[test]
    fn a_file_damaged_while_the_commitment_was_on_its_way_stops_the_miner_and_heals() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let pending = home.train(&mut snapshot);
        let path = home.pending_store().path(&pending);
        let mut bytes = fs::read(&path).unwrap();
        let last = bytes.len() - 70;
        bytes[last] ^= 1;
        fs::write(&path, bytes).unwrap();
        let refused = home.committed(&mut snapshot, &pending);
        assert!(matches!(
            refused,
            Err(PendingStoreError::ContributionStore(ContributionStoreError::Digest { .. }))
        ));

        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    /// No room for the file, or for the note of the commitment: the residual in memory is half changed then.
    #[test]
    fn what_an_error_left_half_changed_is_taken_as_kept_and_the_window_ends_alike() {
        let half = |snapshot: &mut Snapshot| {
            snapshot.residual[..VALUES / 2].iter_mut().for_each(|value| *value = 0.5 * *value + 7e-3);
            snapshot.residual_for = Window(77);
            snapshot.pending = None;
        };
        let home = Home::new();
        let mut snapshot = home.restarted();
        home.pending_store().begin(&snapshot, &OPTIMISER.to_vec()).unwrap();
        half(&mut snapshot);
        snapshot = home.pending_store().reload().unwrap().unwrap();
        assert_eq!(snapshot, Snapshot::fresh(Window(9), VALUES));

        let pending = home.train(&mut snapshot);
        half(&mut snapshot);
        snapshot = home.pending_store().reload().unwrap().unwrap();
        assert_eq!(snapshot.pending.as_ref(), Some(&pending));
        home.committed(&mut snapshot, &pending).unwrap();
        half(&mut snapshot);
        snapshot = home.pending_store().reload().unwrap().unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn a_damaged_snapshot_falls_back_to_the_one_before_and_the_window_ends_alike() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let pending = home.train(&mut snapshot);
        home.committed(&mut snapshot, &pending).unwrap();
        fs::write(home.pending_store().kept().path(), "damaged").unwrap();

        // It says that nothing is committed yet; the chain will say that it is.
        let mut snapshot = home.restarted();
        let pending = home.resume(&mut snapshot).unwrap();
        assert!(!pending.committed);
        home.committed(&mut snapshot, &pending).unwrap();
        home.ends_like(Some(Home::undisturbed()), snapshot);
    }

    #[test]
    fn the_next_window_replaces_the_file_of_the_last() {
        let home = Home::new();
        let mut snapshot = home.restarted();
        let first = home.train(&mut snapshot);
        home.committed(&mut snapshot, &first).unwrap();
        let header = Header { window: Window(10), ..home.header() };
        let second =
            home.pending_store().make(&mut snapshot, &header, Source::Nothing, &OPTIMISER.to_vec()).unwrap();
        assert_ne!(first.digest, second.digest);
        assert!(!home.pending_store().path(&first).exists() && home.pending_store().path(&second).exists());
    }
}
