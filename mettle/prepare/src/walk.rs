//! The files below a directory, in the same order on every machine.

use crate::error::SourceError;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
};

/// A file below a directory.
pub(crate) struct FoundFile {
    /// The path from the directory, with `/` on every system.
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// Lists the files below a directory for which `wanted` is true, sorted by name.
pub(crate) fn files_below(
    root: &Path,
    wanted: impl Fn(&Path) -> bool,
) -> Result<Vec<FoundFile>, SourceError> {
    let mut found = Vec::new();
    let mut directories = vec![(String::new(), root.to_owned())];
    while let Some((prefix, directory)) = directories.pop() {
        let unreadable = |source| SourceError::Unreadable { path: directory.clone(), source };
        for entry in fs::read_dir(&directory).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            let Some(name) = path.file_name().and_then(OsStr::to_str) else {
                return Err(SourceError::NameNotText { path });
            };
            if name.starts_with('.') {
                continue;
            }
            let name = format!("{prefix}{name}");
            let unreadable = |source| SourceError::Unreadable { path: path.clone(), source };
            // A link to a directory could lead to a directory above it.
            let is_link = path.symlink_metadata().map_err(unreadable)?.is_symlink();
            let metadata = path.metadata().map_err(unreadable)?;
            if metadata.is_dir() && !is_link {
                directories.push((name + "/", path));
            } else if metadata.is_file() && wanted(&path) {
                found.push(FoundFile { name, path, bytes: metadata.len() });
            }
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}
