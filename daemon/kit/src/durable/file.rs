//! Small files that are whole or absent after a crash: written to a temporary file, synced, then renamed. For files as
//! large as the model see [`DurableFile`](super::DurableFile).

use dataset::durable::{Readers, UNFINISHED};
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// Age after which an unfinished file counts as abandoned. No small file takes so long to write.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

/// Error of reading or writing a file of the node. The path is in the message, the cause in the source.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not write {}; is the disk full, or the directory not writable?", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged, and so is its backup: the next start begins without it", path.display())]
    Damaged { path: PathBuf },
}

/// Returns whether an error, or one of its causes, is a write that failed for lack of space: on the disk, in a quota,
/// or below a limit on a file's length. The same write succeeds once there is space.
pub fn is_full(error: &(dyn Error + 'static)) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    let mut next = Some(error);
    while let Some(cause) = next {
        let io = match cause.downcast_ref() {
            Some(redb::Error::Io(error)) => Some(error),
            _ => cause.downcast_ref::<io::Error>(),
        };
        if io.is_some_and(|error| matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)) {
            return true;
        }
        next = cause.source();
    }
    false
}

/// Adds the number of needed bytes to the error of a [full](is_full) disk. Its kind is preserved.
pub(crate) fn with_need(error: io::Error, bytes: u64) -> io::Error {
    let what_to_do = match error.kind() {
        io::ErrorKind::FileTooLarge => "make room, or raise the limit on a file's length",
        _ => "make room",
    };
    match is_full(&error) {
        true => io::Error::new(error.kind(), format!("{bytes} bytes are needed: {what_to_do}: {error}")),
        false => error,
    }
}

/// Returns options to read and write a file. If they create it, only its owner can read it, because it may reveal a
/// node's past and future statements.
pub fn owners_file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Replaces `path` by `bytes`. A crash at any moment leaves either the old file or the new one.
///
/// # Errors
/// If the disk is full or fails.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |source| {
        let source = with_need(source, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        FileError::Write { path: path.to_owned(), source }
    };
    dataset::durable::write_atomic(path, bytes, Readers::Owner).map_err(failed)
}

/// Removes unfinished files that killed processes left in `directory`. Another process may be writing there, so only
/// files that have not changed for ten minutes are removed. Nothing reads the others.
pub fn sweep(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with('.') && name.contains(UNFINISHED));
        let age =
            entry.metadata().and_then(|metadata| metadata.modified()).map(|modified| modified.elapsed());
        if is_ours
            && matches!(age, Ok(Ok(age)) if LEFT_BEHIND <= age)
            && fs::remove_file(entry.path()).is_ok()
        {
            tracing::info!(path = %entry.path().display(), "removed an unfinished file of a killed process");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        write_atomic(&path, b"old").unwrap();
        // A directory blocks the path: the rename fails, also for root.
        let blocked = directory.path().join("blocked");
        fs::create_dir_all(blocked.join("child")).unwrap();
        assert!(matches!(write_atomic(&blocked, b"new"), Err(FileError::Write { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file stays behind");
    }

    #[test]
    fn a_sweep_removes_only_old_unfinished_files() {
        let directory = tempfile::tempdir().unwrap();
        let names = [".a.unfinished-x", ".b.unfinished-y", "a", "c.unfinished-z", ".hidden"];
        for name in names {
            let file = fs::File::create(directory.path().join(name)).unwrap();
            if name != ".b.unfinished-y" {
                file.set_modified(std::time::SystemTime::now() - 2 * LEFT_BEHIND).unwrap();
            }
        }
        sweep(directory.path());
        let there = |name: &&str| directory.path().join(name).exists();
        let left: Vec<&str> = names.into_iter().filter(there).collect();
        assert_eq!(left, names[1..]);
        sweep(&directory.path().join("nowhere"));
    }

    #[test]
    fn only_a_full_disk_names_the_bytes_needed() {
        let error = FileError::Write {
            path: "state".into(),
            source: with_need(io::ErrorKind::StorageFull.into(), 4711),
        };
        assert!(is_full(&error));
        let said = crate::error_chain(&error);
        assert!(
            said.contains("state")
                && said.contains("4711 bytes are needed: make room")
                && said.contains("no storage space"),
            "{said}"
        );
        let limited = with_need(io::ErrorKind::FileTooLarge.into(), 4711);
        assert!(limited.to_string().contains("or raise the limit on a file's length"), "{limited}");
        let other = with_need(io::ErrorKind::PermissionDenied.into(), 4711);
        assert_eq!(other.to_string(), io::Error::from(io::ErrorKind::PermissionDenied).to_string());
    }
}
