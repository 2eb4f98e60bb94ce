//! The right to make one directory, held by one process at a time, and what keeps the directory whole or absent.

use crate::{
    files::{belongs, shards_path},
    prepare::{PrepareError, Progress, unwritable},
};
use std::{
    fs::{self, File, TryLockError},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

pub(crate) struct Claim {
    /// Where it is made, beside where it goes.
    pub partial: PathBuf,
    lock_path: PathBuf,
    lock: File,
}

impl Claim {
    /// Waits for whoever is at it. `name` is that of the directory, which stands in `parent`.
    pub fn take(
        parent: &Path,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<Claim, PrepareError> {
        let beside = |ending: &str| parent.join(format!(".{name}.{ending}"));
        if !parent.as_os_str().is_empty() {
            fs::create_dir_all(parent).map_err(|source| unwritable(parent, source))?;
        }
        // The system lets go of the lock however this process ends.
        let lock_path = beside("lock");
        let lock = File::create(&lock_path).map_err(|source| unwritable(&lock_path, source))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                progress(Progress::Waiting { directory: parent.join(name) });
                lock.lock().map_err(|source| unwritable(&lock_path, source))?;
            }
            Err(TryLockError::Error(source)) => return Err(unwritable(&lock_path, source)),
        }
        Ok(Claim { partial: beside("partial"), lock_path, lock })
    }

    /// Makes room, or finds what an earlier attempt at the same has left: `request` says what is asked for. What was left of
    /// another is removed.
    pub fn begin(&self, request: &str) -> Result<(), PrepareError> {
        let path = self.partial.join("request");
        if fs::read_to_string(&path).is_ok_and(|found| found == request) {
            return Ok(());
        }
        self.discard()?;
        fs::create_dir(&self.partial).map_err(|source| unwritable(&self.partial, source))?;
        write_atomic(&path, request.as_bytes())
    }

    /// Removes what was made.
    pub fn discard(&self) -> Result<(), PrepareError> {
        match fs::remove_dir_all(&self.partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(&self.partial, error)),
            _ => Ok(()),
        }
    }

    /// Removes all but the dataset.
    pub fn tidy(&self) -> Result<(), PrepareError> {
        let tidy = || {
            for entry in fs::read_dir(&self.partial)? {
                let path = entry?.path();
                if !belongs(&path) {
                    fs::remove_file(path)?;
                }
            }
            Ok(())
        };
        tidy().map_err(|source| unwritable(&self.partial, source))
    }

    /// Gives the finished directory its name. From here on it is there, also after a power failure.
    pub fn publish(&self, directory: &Path) -> Result<(), PrepareError> {
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        sync_directory(&shards_path(&self.partial))?;
        sync_directory(&self.partial)?;
        fs::rename(&self.partial, directory).map_err(|source| unwritable(directory, source))?;
        sync_directory(parent.unwrap_or(Path::new(".")))
    }

    /// Lets go once the directory stands. Whoever waits on this lock finds it made; after a failure the file stays, because a
    /// third one must not lock another file of this name.
    pub fn done(self) {
        let _ = fs::remove_file(&self.lock_path);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // In so many words: a child that is just being started may still hold a copy of the descriptor.
        self.lock.unlock().ok();
    }
}

pub(crate) fn sync_directory(path: &Path) -> Result<(), PrepareError> {
    // Only Unix can open a directory.
    if cfg!(unix) {
        File::open(path)
            .and_then(|directory| directory.sync_all())
            .map_err(|source| unwritable(path, source))?;
    }
    Ok(())
}

/// Writes a file whole or not at all.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), PrepareError> {
    let unfinished = path.with_extension("unfinished");
    let write = || {
        let mut file = File::create(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&unfinished, path)
    };
    write().map_err(|source| unwritable(path, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn a_full_disk_has_its_own_message() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("file");
        std::os::unix::fs::symlink("/dev/full", path.with_extension("unfinished")).expect("a link");
        let error = write_atomic(&path, b"text").expect_err("it is always full");
        assert!(matches!(&error, PrepareError::DiskFull { path: full } if *full == path));
        assert!(error.to_string().contains("the disk is full"));
        assert!(!path.exists());
    }
}
