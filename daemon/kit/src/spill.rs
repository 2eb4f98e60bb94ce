//! Keeps gathered contributions on the disk until they are merged and measured, so that a validator's memory does not
//! grow with the number of seats.
//!
//! A file lives as long as its [`HeldContribution`]. Files of a killed process are removed by the next one.

use crate::{
    codec::Contribution,
    durable::{FileError, owners_file, with_need},
    storage,
};
use bytes::Bytes;
use protocol::{Digest, keys::ObjectKey, submission::Header};
use std::{
    fs, io,
    io::Write as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use store::{Store, StoreError};

/// A directory for contributions. It belongs to one process. Clones share it.
#[derive(Clone, Debug)]
pub struct Spill {
    directory: PathBuf,
    /// Number of the next file.
    next: Arc<AtomicU64>,
}

/// A verified contribution whose bytes are read when they are needed.
#[derive(Clone, Debug)]
pub struct HeldContribution {
    pub digest: Digest,
    pub header: Header,
    /// Square norm of each tensor (PROT-17).
    pub square_norms: Vec<f64>,
    bytes: HeldBytes,
}

#[derive(Clone, Debug)]
enum HeldBytes {
    Memory(Bytes),
    File(Arc<SpillFile>),
}

/// Removes its file when it is dropped.
#[derive(Debug)]
struct SpillFile(PathBuf);

impl Drop for SpillFile {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "could not remove a contribution that is no longer needed");
        }
    }
}

impl Spill {
    /// Uses `directory`, and removes files that a killed process left in it.
    pub fn new(directory: &Path) -> Spill {
        match fs::remove_dir_all(directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let path = directory.display();
                tracing::warn!(%path, %error, "could not remove the contributions of an earlier process");
            }
            _ => {}
        }
        Spill { directory: directory.to_owned(), next: Arc::default() }
    }

    /// Writes a contribution without syncing it: after a crash it is fetched again.
    ///
    /// # Errors
    /// If the disk is full or fails. The file is then removed.
    pub fn write(&self, contribution: &Contribution) -> Result<HeldContribution, FileError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let path = self.directory.join(format!("{number}-{}", contribution.digest));
        let failed = |source| {
            let bytes = u64::try_from(contribution.bytes.len()).unwrap_or(u64::MAX);
            FileError::Write { path: path.clone(), source: with_need(source, bytes) }
        };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let mut file = owners_file().create_new(true).open(&path).map_err(failed)?;
        // From here on, the file is removed if writing fails.
        let spilled = SpillFile(path.clone());
        file.write_all(&contribution.bytes).map_err(failed)?;
        let Contribution { digest, header, square_norms, .. } = contribution.clone();
        Ok(HeldContribution { digest, header, square_norms, bytes: HeldBytes::File(Arc::new(spilled)) })
    }
}

impl HeldContribution {
    /// Reads the bytes and checks them against the digest.
    ///
    /// # Errors
    /// If the file cannot be read or has changed.
    pub fn read(&self) -> Result<Contribution, FileError> {
        let bytes = match &self.bytes {
            HeldBytes::Memory(bytes) => bytes.clone(),
            HeldBytes::File(file) => {
                let failed = |source| FileError::Read { path: file.0.clone(), source };
                // SAFETY: the directory belongs to this process, which writes a file once and then only removes it.
                let bytes = unsafe { storage::read_file(&file.0) }.map_err(failed)?;
                if Digest::of(&bytes) != self.digest {
                    return Err(failed(io::Error::other("it has changed since it was written")));
                }
                bytes
            }
        };
        let HeldContribution { digest, header, square_norms, .. } = self.clone();
        Ok(Contribution { digest, bytes, header, square_norms })
    }
}

impl HeldContribution {
    /// Uploads the bytes to a bucket without reading all of them into memory.
    ///
    /// # Errors
    /// If the file cannot be read or the bucket does not accept the object.
    pub async fn put(&self, store: &dyn Store, key: &ObjectKey) -> Result<(), StoreError> {
        match &self.bytes {
            HeldBytes::Memory(bytes) => store.put(key, bytes.clone()).await,
            HeldBytes::File(file) => store.put_file(key, &file.0).await.map(drop),
        }
    }
}

impl From<Contribution> for HeldContribution {
    /// Keeps the bytes in memory.
    fn from(contribution: Contribution) -> HeldContribution {
        let Contribution { digest, bytes, header, square_norms } = contribution;
        HeldContribution { digest, header, square_norms, bytes: HeldBytes::Memory(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Hotkey, RunId, Uid, Window, params::Density};

    fn contribution(uid: u16) -> Contribution {
        let bytes = Bytes::from(vec![uid as u8; 1000]);
        let digest = Digest::of(&bytes);
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RunId(0),
            window: Window(0),
            uid: Uid(uid),
            hotkey: Hotkey([0; 32]),
            base: digest,
            schema: digest,
            density: Density(64),
            trained: 1,
        };
        Contribution { digest, bytes, header, square_norms: vec![1.0] }
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
        entries.map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn a_contribution_is_read_back_until_it_is_dropped() {
        let home = tempfile::tempdir().unwrap();
        let spill = Spill::new(&home.path().join("gathered"));
        let held: Vec<HeldContribution> =
            [1, 2, 1].map(|uid| spill.write(&contribution(uid)).unwrap()).into();
        assert_eq!(files(&spill.directory).len(), 3);
        assert_eq!(held[1].clone().read().unwrap(), contribution(2));
        drop(held);
        assert_eq!(files(&spill.directory), [] as [PathBuf; 0]);
    }

    #[test]
    fn the_files_of_a_killed_process_are_removed() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("gathered");
        std::mem::forget(Spill::new(&directory).write(&contribution(1)).unwrap());
        assert_eq!(files(&directory).len(), 1);
        let held = Spill::new(&directory).write(&contribution(2)).unwrap();
        assert_eq!(files(&directory).len(), 1);
        assert_eq!(held.read().unwrap(), contribution(2));
    }

    #[test]
    fn a_changed_file_is_not_used() {
        let home = tempfile::tempdir().unwrap();
        let spill = Spill::new(home.path());
        let held = spill.write(&contribution(1)).unwrap();
        let path = files(home.path()).remove(0);
        fs::write(&path, [9; 1000]).unwrap();
        assert!(matches!(held.read(), Err(FileError::Read { .. })));
    }
}
