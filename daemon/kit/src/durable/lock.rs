//! One process per directory: a second one would overwrite the first one's model and signed statements.

use std::{
    fs::{File, TryLockError},
    io,
    path::{Path, PathBuf},
};

const LOCK_FILE: &str = "lock";

/// The lock of a node's directory, held while this value lives. The system releases it when the process dies.
#[derive(Debug)]
pub struct DirectoryLock {
    file: File,
}

impl Drop for DirectoryLock {
    /// Unlocks explicitly: closing the file would not unlock it while a newly forked child has a copy of the
    /// descriptor.
    fn drop(&mut self) {
        self.file.unlock().ok();
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LockError {
    #[error(
        "another process uses the directory {}: stop it first, or give this one its own (--directory)",
        directory.display()
    )]
    InUse { directory: PathBuf },
    #[error("could not lock the directory {}", directory.display())]
    Io { directory: PathBuf, source: io::Error },
}

impl DirectoryLock {
    /// Locks `directory`, which must exist. Needs no space on the disk.
    ///
    /// # Errors
    /// [`LockError::InUse`] if another process holds the lock; [`LockError::Io`] if the file cannot be opened.
    pub fn acquire(directory: &Path) -> Result<DirectoryLock, LockError> {
        let failed = |source| LockError::Io { directory: directory.to_owned(), source };
        let path = directory.join(LOCK_FILE);
        let file = File::options().create(true).truncate(false).write(true).open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(DirectoryLock { file }),
            Err(TryLockError::WouldBlock) => Err(LockError::InUse { directory: directory.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_lock_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let first = DirectoryLock::acquire(directory.path()).unwrap();
        let refused = DirectoryLock::acquire(directory.path()).unwrap_err();
        assert!(matches!(&refused, LockError::InUse { directory: named } if named == directory.path()));
        assert!(refused.to_string().contains(directory.path().to_str().unwrap()));
        drop(first);
        DirectoryLock::acquire(directory.path()).unwrap();
        assert!(matches!(DirectoryLock::acquire(Path::new("/no/such/place")), Err(LockError::Io { .. })));
    }
}
