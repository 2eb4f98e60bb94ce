//! Small files that are whole or absent: written beside their place, synced, then renamed over it. For large ones see `kept`.

use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    time::Duration,
};

/// In the name of a file that is being written.
const UNFINISHED: &str = ".unfinished-";
/// Nobody takes so long to write a small file.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

/// What went wrong with a file of ours. The path is in the message, the cause in the source.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not write {}; is the disk full, or the directory not ours?", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("what was kept in {} is damaged, and nothing before it is whole: the next start begins without it", path.display())]
    Damaged { path: PathBuf },
}

impl FileError {
    /// Whether the disk took no more: with room on it, the same would do.
    pub fn is_full(&self) -> bool {
        matches!(self, FileError::Write { source, .. } if is_full(source))
    }
}

/// Whether a write failed because there was no room: on the disk, in a quota, or below a limit on a file's length.
pub fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// How much room a write takes that found none. The kind of error stays what it was.
#[derive(Debug, thiserror::Error)]
#[error("{bytes} bytes are needed: {what_to_do}")]
struct Needs {
    bytes: u64,
    what_to_do: &'static str,
    source: io::Error,
}

/// Says with an error that there was [no room](is_full) how much is needed.
pub(crate) fn with_need(error: io::Error, bytes: u64) -> io::Error {
    let what_to_do = match error.kind() {
        io::ErrorKind::FileTooLarge => "make room, or raise the limit on a file's length",
        _ => "make room",
    };
    if is_full(&error) {
        io::Error::new(error.kind(), Needs { bytes, what_to_do, source: error })
    } else {
        error
    }
}

/// Replaces `path` by `bytes` so that a crash at any moment leaves either the old file or the new one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |source| {
        let source = with_need(source, u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        FileError::Write { path: path.to_owned(), source }
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(failed)?;
    // What a kill leaves of it is known by its name, and is never taken for a file.
    let unfinished = format!(".{}{UNFINISHED}", path.file_name().unwrap_or_default().to_string_lossy());
    let mut file = tempfile::Builder::new().prefix(&unfinished).tempfile_in(directory).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|refused| failed(refused.error))?;
    // The rename itself is durable only once the directory is synced.
    sync_directory(directory).map_err(failed)
}

/// Makes a rename in `directory` durable.
///
/// # Errors
/// If the disk does not sync. The new file has its name by then, so this never counts as [full](is_full): what was written is not to be made
/// again from what was there before.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(after_the_rename)
}

fn after_the_rename(error: io::Error) -> io::Error {
    io::Error::other(error)
}

/// Removes what killed processes left of [`write_atomic`] in `directory`. Another process may be writing there just now, so only what
/// has not changed for ten minutes goes; what cannot be removed stays, and nothing reads it.
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
            tracing::info!(path = %entry.path().display(), "removed what a killed process left of a file");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_written_leaves_the_old_one() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state");
        write_atomic(&path, b"old").unwrap();
        // A directory in the way: the rename fails, whoever runs the test.
        let blocked = directory.path().join("blocked");
        fs::create_dir_all(blocked.join("child")).unwrap();
        assert!(matches!(write_atomic(&blocked, b"new"), Err(FileError::Write { .. })));
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2, "no temporary file stays behind");
    }

    #[test]
    fn what_a_kill_left_is_swept_and_what_is_being_written_or_is_not_ours_is_not() {
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
    fn who_finds_no_room_is_told_how_much_is_needed_and_nobody_else_is() {
        let error = FileError::Write {
            path: "state".into(),
            source: with_need(io::ErrorKind::StorageFull.into(), 4711),
        };
        assert!(error.is_full());
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

    #[test]
    fn a_full_disk_after_the_rename_is_no_reason_to_do_it_again() {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        for kind in [StorageFull, QuotaExceeded, FileTooLarge] {
            let (before, after) = (io::Error::from(kind), after_the_rename(kind.into()));
            assert!(is_full(&before) && !is_full(&after));
            assert_eq!(after.to_string(), before.to_string(), "the cause is said");
        }
        assert!(sync_directory(tempfile::tempdir().unwrap().path()).is_ok());
        assert!(sync_directory(Path::new("/nowhere/at/all")).is_err());
    }
}
