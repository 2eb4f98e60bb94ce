//! Files that are complete or absent, even after a crash: written beside their place, synced and renamed.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

/// Part of the name of every file that is being written. A kill may leave such a file, which nothing reads.
pub const UNFINISHED: &str = ".unfinished-";

/// The permitted readers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    Owner,
    /// All users that the umask of the process allows.
    Umask,
}

/// A file that is being written. It is removed if dropped before [`PendingFile::publish`].
#[derive(Debug)]
pub struct PendingFile {
    file: tempfile::NamedTempFile,
    directory: PathBuf,
}

impl PendingFile {
    /// Creates an empty file beside `path`. Creates the directory if it is missing.
    ///
    /// # Errors
    /// If the disk is full or the directory is not writable.
    pub fn create(path: &Path, readers: Readers) -> io::Result<PendingFile> {
        PendingFile::create_in(directory_of(path), &pending_prefix(path), readers)
    }

    /// Creates a file whose name depends on its contents. Until then its name begins with `prefix`.
    ///
    /// # Errors
    /// As [`PendingFile::create`].
    pub fn create_in(directory: &Path, prefix: &str, readers: Readers) -> io::Result<PendingFile> {
        fs::create_dir_all(directory)?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix);
        #[cfg(unix)]
        if readers == Readers::Umask {
            builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        }
        let file = builder.tempfile_in(directory)?;
        Ok(PendingFile { file, directory: directory.to_owned() })
    }

    /// Returns the path until publication.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    pub fn file(&mut self) -> &mut File {
        self.file.as_file_mut()
    }

    /// Makes the contents durable.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn sync(&self) -> io::Result<()> {
        self.file.as_file().sync_all()
    }

    /// Gives a synced file its name, replacing an existing file, and makes the name durable.
    ///
    /// # Errors
    /// If the rename fails; the old file is then unchanged. Or if the directory does not sync: see
    /// [`sync_directory`].
    pub fn publish(self, path: &Path) -> io::Result<()> {
        self.file.persist(path).map_err(|refused| refused.error)?;
        sync_directory(&self.directory)
    }
}

/// Returns the directory of `path`.
pub fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Returns the name prefix of files that are being written for `path`.
pub fn pending_prefix(path: &Path) -> String {
    format!(".{}{UNFINISHED}", path.file_name().unwrap_or_default().to_string_lossy())
}

/// Replaces `path` by `bytes`: a crash leaves either the old file or the new one.
///
/// # Errors
/// As [`PendingFile::create`] and [`PendingFile::publish`].
pub fn write_atomic(path: &Path, bytes: &[u8], readers: Readers) -> io::Result<()> {
    let mut pending = PendingFile::create(path, readers)?;
    pending.file().write_all(bytes)?;
    pending.sync()?;
    pending.publish(path)
}

/// Makes the renames in `directory` durable.
///
/// # Errors
/// If the disk does not sync. The kind of the error is always [`io::ErrorKind::Other`], never that of a full disk:
/// the new file already has its name, so a caller that retries after a full disk must not write it again.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    // Only Unix can open a directory.
    if cfg!(unix) {
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(io::Error::other)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.expect("readable").file_name().into_string();
        fs::read_dir(directory).expect("readable").map(|entry| name(entry).expect("UTF-8")).collect()
    }

    #[test]
    fn a_file_is_replaced_whole_and_an_abandoned_one_leaves_nothing() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("deep").join("file");
        for text in ["one", "two"] {
            write_atomic(&path, text.as_bytes(), Readers::Owner).expect("writable");
            assert_eq!(fs::read_to_string(&path).expect("readable"), text);
        }
        let mut pending = PendingFile::create(&path, Readers::Owner).expect("writable");
        pending.file().write_all(b"three").expect("writable");
        assert_eq!(names(&root.path().join("deep")).len(), 2);
        drop(pending);
        assert_eq!(names(&root.path().join("deep")), ["file"]);
        assert_eq!(fs::read_to_string(&path).expect("readable"), "two");
    }

    #[test]
    fn a_file_that_cannot_be_renamed_leaves_the_old_one() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let blocked = root.path().join("blocked");
        fs::create_dir_all(blocked.join("child")).expect("writable");
        assert!(write_atomic(&blocked, b"new", Readers::Owner).is_err());
        assert_eq!(names(root.path()), ["blocked"]);
    }

    #[cfg(unix)]
    #[test]
    fn a_private_file_is_for_its_owner_and_a_shared_one_follows_the_umask() {
        use std::os::unix::fs::PermissionsExt as _;
        let root = tempfile::tempdir().expect("a temporary directory");
        let mode = |name: &str, readers| {
            let path = root.path().join(name);
            write_atomic(&path, b"text", readers).expect("writable");
            fs::metadata(path).expect("there").permissions().mode() & 0o777
        };
        let plain = root.path().join("plain");
        File::create(&plain).expect("writable");
        let umask = fs::metadata(plain).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode("private", Readers::Owner), mode("shared", Readers::Umask)), (0o600, umask));
    }

    #[test]
    fn a_directory_that_does_not_sync_is_never_a_full_disk() {
        let error = sync_directory(Path::new("/nowhere/at/all")).expect_err("it is not there");
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }
}
