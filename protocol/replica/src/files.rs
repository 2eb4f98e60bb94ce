//! Files that are whole or absent: written beside their place, synced, then renamed over it.

use protocol::Digest;
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// What went wrong with a file of ours. The path is in the message, the cause in the source.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("could not write {}; is the disk full, or the directory not ours?", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is damaged: its contents do not match the digest at its end; remove it to start afresh", path.display())]
    Damaged { path: PathBuf },
}

/// Replaces `path` by `bytes` so that a crash at any moment leaves either the old file or the new one.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    let failed = |source| FileError::Write { path: path.to_owned(), source };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(directory).map_err(failed)?;
    let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|refused| failed(refused.error))?;
    // The rename itself is durable only once the directory is synced.
    fs::File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)
}

/// [`write_atomic`], with the digest of `bytes` behind them.
pub fn write_sealed(path: &Path, mut bytes: Vec<u8>) -> Result<(), FileError> {
    let digest = Digest::of(&bytes);
    bytes.extend_from_slice(&digest.0);
    write_atomic(path, &bytes)
}

/// Reads what [`write_sealed`] wrote; `None` if there is no such file.
pub fn read_sealed(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(FileError::Read { path: path.to_owned(), source }),
    };
    let damaged = || FileError::Damaged { path: path.to_owned() };
    let body = bytes.len().checked_sub(32).ok_or_else(damaged)?;
    if Digest::of(&bytes[..body]).0 != bytes[body..] {
        return Err(damaged());
    }
    bytes.truncate(body);
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_file_reads_back_or_says_that_it_is_damaged() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep").join("state");
        assert!(read_sealed(&path).unwrap().is_none());

        write_sealed(&path, b"weights".to_vec()).unwrap();
        assert_eq!(read_sealed(&path).unwrap().unwrap(), b"weights");

        let mut bytes = fs::read(&path).unwrap();
        bytes[3] ^= 1;
        fs::write(&path, &bytes).unwrap();
        assert!(matches!(read_sealed(&path), Err(FileError::Damaged { .. })));
        fs::write(&path, b"short").unwrap();
        assert!(matches!(read_sealed(&path), Err(FileError::Damaged { .. })));
    }

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
}
