//! A directory as a store: for what one keeps for oneself, and for tests without a network.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use object_store::local::LocalFileSystem;

use crate::object::{Objects, Transfer};
use crate::{StoreError, Traffic};

/// A directory as a store. Objects are files of the same name; each appears whole or not at all, and stays after a
/// power cut. Open it with `DiskStore::open`.
pub type DiskStore = Objects<LocalFileSystem>;

impl DiskStore {
    /// Opens the directory, creating it where there is none.
    pub fn open(directory: &Path) -> Result<DiskStore, StoreError> {
        let unusable = |what: String| StoreError::Settings { what };
        std::fs::create_dir_all(directory).map_err(|error| {
            unusable(format!("cannot create the directory {}: {error}", directory.display()))
        })?;
        let backend = LocalFileSystem::new_with_prefix(directory)
            .map_err(|error| unusable(format!("cannot use the directory {}: {error}", directory.display())))?
            .with_fsync(true)
            .with_automatic_cleanup(true);
        Ok(Objects {
            backend,
            describe: format!("the directory {}", directory.display()),
            transfer: Transfer {
                deadline: Duration::from_secs(600),
                single_put_bytes_max: 8 << 20,
                part_bytes: 8 << 20,
                parts_at_once: 1,
            },
            traffic: Arc::new(Traffic::default()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_no_directory() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        assert!(matches!(DiskStore::open(file.path()), Err(StoreError::Settings { .. })));
    }
}
