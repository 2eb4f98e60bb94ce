//! The lock on a directory that is being prepared, and the steps that keep the directory complete or absent.

use crate::{
    error::{PrepareError, unwritable, write_atomic},
    files::belongs,
    options::Progress,
};
use dataset::{durable::sync_directory, shards_path};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

/// Name of the file with the request of the attempt.
const REQUEST: &str = "request";

pub(crate) struct OutputLock {
    /// The directory during preparation, beside its place.
    pub partial: PathBuf,
    lock_path: PathBuf,
    lock: File,
}

impl OutputLock {
    /// Locks the directory `name` in `parent`. Waits while another process holds the lock.
    pub fn lock(
        parent: &Path,
        name: &str,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<OutputLock, PrepareError> {
        let beside = |ending: &str| parent.join(format!(".{name}.{ending}"));
        if !parent.as_os_str().is_empty() {
            fs::create_dir_all(parent).map_err(|source| unwritable(parent, source))?;
        }
        // The system unlocks it however this process ends.
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
        Ok(OutputLock { partial: beside("partial"), lock_path, lock })
    }

    /// Begins or resumes an attempt at `request`. Removes the files of an attempt at another request.
    pub fn begin(&self, request: &str) -> Result<(), PrepareError> {
        let path = self.partial.join(REQUEST);
        if fs::read_to_string(&path).is_ok_and(|found| found == request) {
            return Ok(());
        }
        self.discard()?;
        fs::create_dir(&self.partial).map_err(|source| unwritable(&self.partial, source))?;
        write_atomic(&path, request.as_bytes())
    }

    /// Removes all files of the attempt.
    pub fn discard(&self) -> Result<(), PrepareError> {
        match fs::remove_dir_all(&self.partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(&self.partial, error)),
            _ => Ok(()),
        }
    }

    /// Removes all files but the dataset.
    pub fn remove_notes(&self) -> Result<(), PrepareError> {
        let remove = || {
            for entry in fs::read_dir(&self.partial)? {
                let path = entry?.path();
                if !belongs(&path) {
                    fs::remove_file(path)?;
                }
            }
            Ok(())
        };
        remove().map_err(|source| unwritable(&self.partial, source))
    }

    /// Renames the complete directory durably.
    pub fn publish(&self, directory: &Path) -> Result<(), PrepareError> {
        let parent = directory.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let sync = |path: &Path| sync_directory(path).map_err(|source| unwritable(path, source));
        sync(&shards_path(&self.partial))?;
        sync(&self.partial)?;
        fs::rename(&self.partial, directory).map_err(|source| unwritable(directory, source))?;
        sync(parent)
    }

    /// Removes the lock's file when the directory exists. After a failure the file stays, so that a third process
    /// does not lock another file of the same name.
    pub fn finish(self) {
        let _ = fs::remove_file(&self.lock_path);
    }
}

impl Drop for OutputLock {
    fn drop(&mut self) {
        // Closing does not unlock while a child that has just been forked holds a copy of the descriptor.
        self.lock.unlock().ok();
    }
}
