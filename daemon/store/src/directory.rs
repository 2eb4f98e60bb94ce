//! A store in a local directory: objects that a node keeps for its peers and that are not in a bucket.

use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::Bytes;
use protocol::ensure;
use protocol::keys::ObjectKey;

use crate::{Action, Entry, Listing, Store, StoreError, Traffic, TrafficTotals, is_below, trimmed};

/// Folder of unfinished objects. No object's name begins like this.
const PARTIAL: &str = ".partial";

/// A [`Store`] whose objects are files, each at its name below a directory.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
    traffic: Traffic,
}

/// An object that is being written. It is removed unless it is [kept](DirectoryStore::keep).
pub struct Partial(tempfile::NamedTempFile);

impl Partial {
    /// Appends bytes.
    ///
    /// # Errors
    /// If the disk is full or fails.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }
}

impl DirectoryStore {
    /// Uses `root`, and creates it if it is missing. Removes the unfinished objects of a killed process.
    ///
    /// # Errors
    /// If the directory cannot be created or cleaned.
    pub fn open(root: &Path) -> io::Result<DirectoryStore> {
        let partial = root.join(PARTIAL);
        match std::fs::remove_dir_all(&partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => std::fs::create_dir_all(&partial)?,
        }
        Ok(DirectoryStore { root: root.to_owned(), traffic: Traffic::default() })
    }

    /// Starts an object.
    ///
    /// # Errors
    /// If its file cannot be created.
    pub fn begin(&self) -> io::Result<Partial> {
        tempfile::NamedTempFile::new_in(self.root.join(PARTIAL)).map(Partial)
    }

    /// Publishes the written bytes as an object. No reader ever sees a part of it, even after a power failure. Waits
    /// for the disk.
    ///
    /// # Errors
    /// If the file cannot be synced or renamed.
    pub fn keep(&self, key: &ObjectKey, partial: Partial) -> io::Result<()> {
        let path = self.path(key);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        partial.0.as_file().sync_all()?;
        partial.0.persist(path).map(drop).map_err(|error| error.error)
    }

    pub fn contains(&self, key: &ObjectKey) -> bool {
        self.path(key).is_file()
    }

    /// Returns the path of an object. No name can leave the directory: see [`ObjectKey`].
    fn path(&self, key: &ObjectKey) -> PathBuf {
        self.root.join(key.as_str())
    }

    fn failed(&self, action: Action, key: &str, error: io::Error) -> StoreError {
        let (store, name) = (self.describe(), key.to_owned());
        match error.kind() {
            io::ErrorKind::NotFound => StoreError::NotFound { key: name },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                StoreError::Full { store, action, name, source: Box::new(error) }
            }
            _ => StoreError::Unavailable { store, action, name, source: Box::new(error) },
        }
    }

    /// Runs one operation on the files off the executor.
    async fn on_files<T: Send + 'static>(
        &self,
        action: Action,
        key: &str,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let root = self.root.clone();
        let done = tokio::task::spawn_blocking(move || work(&root)).await;
        done.unwrap_or_else(|died| Err(io::Error::other(died)))
            .map_err(|error| self.failed(action, key, error))
    }

    async fn write(
        &self,
        key: &ObjectKey,
        fill: impl FnOnce(&mut Partial) -> io::Result<u64> + Send + 'static,
    ) -> Result<u64, StoreError> {
        let name = key.clone();
        let length = self.on_files(Action::Write, key.as_str(), move |root| {
            let store = DirectoryStore { root: root.to_owned(), traffic: Traffic::default() };
            let mut partial = store.begin()?;
            let length = fill(&mut partial)?;
            store.keep(&name, partial)?;
            Ok(length)
        });
        let length = length.await?;
        self.traffic.add_up(length);
        Ok(length)
    }
}

#[async_trait]
impl Store for DirectoryStore {
    fn describe(&self) -> String {
        self.root.display().to_string()
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        let fill = move |partial: &mut Partial| partial.write(&bytes).map(|()| bytes.len() as u64);
        self.write(key, fill).await.map(drop)
    }

    async fn put_file(&self, key: &ObjectKey, path: &Path) -> Result<u64, StoreError> {
        let from = path.to_owned();
        let mut file = std::fs::File::open(&from)
            .map_err(|source| StoreError::File { path: from.display().to_string(), source })?;
        self.write(key, move |partial| io::copy(&mut file, &mut partial.0)).await
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        let (bytes, whole) = self.read(key, 0..max_bytes).await?;
        ensure!(bytes <= max_bytes, StoreError::TooLarge { key: key.to_string(), bytes, max_bytes });
        Ok(whole)
    }

    async fn read(&self, key: &ObjectKey, range: Range<u64>) -> Result<(u64, Bytes), StoreError> {
        let name = key.clone();
        let read = self.on_files(Action::Read, key.as_str(), move |root| {
            let mut file = std::fs::File::open(root.join(name.as_str()))?;
            let length = file.metadata()?.len();
            let mut bytes = Vec::new();
            file.seek(SeekFrom::Start(range.start))?;
            file.take(range.end.saturating_sub(range.start)).read_to_end(&mut bytes)?;
            Ok((length, Bytes::from(bytes)))
        });
        let (length, bytes) = read.await?;
        self.traffic.add_down(bytes.len() as u64);
        Ok((length, bytes))
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let name = key.clone();
        let removed = self.on_files(Action::Delete, key.as_str(), move |root| {
            let path = root.join(name.as_str());
            std::fs::remove_file(&path)?;
            // Removes folders that are now empty; others are kept.
            path.ancestors()
                .skip(1)
                .take_while(|folder| *folder != root)
                .all(|folder| std::fs::remove_dir(folder).is_ok());
            Ok(())
        });
        match removed.await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }

    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        let prefix = trimmed(prefix).to_owned();
        ensure!(
            prefix.split('/').all(|part| part != ".." && part != PARTIAL),
            StoreError::BadName { name: prefix, why: "it leads out of the store".into() }
        );
        let below = prefix.clone();
        let entries = self.on_files(Action::List, &prefix, move |root| {
            let mut entries = std::collections::BTreeSet::new();
            let mut folders = vec![root.join(&below)];
            while let Some(folder) = folders.pop() {
                let found = match std::fs::read_dir(&folder) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    found => found?,
                };
                for entry in found {
                    let entry = entry?;
                    if entry.file_name() == PARTIAL {
                        continue;
                    }
                    let (path, about) = (entry.path(), entry.metadata()?);
                    if about.is_dir() {
                        folders.push(path);
                    } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str)
                        && is_below(name, &below)
                    {
                        entries.insert(Entry { name: name.to_owned(), bytes: about.len() });
                        if entries.len() > max_entries.saturating_add(1) {
                            entries.pop_last();
                        }
                    }
                }
            }
            Ok(entries)
        });
        let entries = entries.await?;
        let complete = entries.len() <= max_entries;
        Ok(Listing { entries: entries.into_iter().take(max_entries).collect(), complete })
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Digest, RunId, Window, keys};

    #[tokio::test]
    async fn objects_are_whole_or_absent_and_outlive_the_process() {
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryStore::open(home.path()).unwrap();
        let key = keys::contribution(RunId(1), Window(2), &Digest::of(b"object"));
        assert!(store.get(&key, 10).await.unwrap_err().is_not_found());
        let mut partial = store.begin().unwrap();
        partial.write(b"obj").unwrap();
        assert!(!store.contains(&key));
        partial.write(b"ect").unwrap();
        store.keep(&key, partial).unwrap();
        let store = DirectoryStore::open(home.path()).unwrap();
        assert_eq!(&store.get(&key, 6).await.unwrap()[..], b"object");
        assert!(matches!(store.get(&key, 5).await, Err(StoreError::TooLarge { bytes: 6, max_bytes: 5, .. })));
        for (range, part) in [(1..3, "bj"), (4..99, "ct"), (7..9, "")] {
            assert_eq!(store.read(&key, range).await.unwrap(), (6, Bytes::from(part)));
        }
    }

    #[tokio::test]
    async fn what_is_listed_is_in_order_and_no_folder_is_left_behind() {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("outside");
        std::fs::write(&file, b"four").unwrap();
        let store = DirectoryStore::open(&home.path().join("objects")).unwrap();
        let key = |window| keys::update(RunId(1), Window(window), &Digest::of(b"four"));
        for window in [3, 1, 2] {
            assert_eq!(store.put_file(&key(window), &file).await.unwrap(), 4);
        }
        let _unfinished = store.begin().unwrap();
        let all = store.list("", 10).await.unwrap();
        let names: Vec<_> = all.entries.iter().filter_map(Entry::key).collect();
        assert_eq!((names, all.complete), (vec![key(1), key(2), key(3)], true));
        let two = store.list("runs/1/windows", 2).await.unwrap();
        assert_eq!((two.entries.len(), two.complete), (2, false));
        assert_eq!(store.list("runs/1/windows/00000002", 9).await.unwrap().entries.len(), 1);
        assert!(store.list("runs/../..", 9).await.is_err());
        for window in 1..4 {
            store.delete(&key(window)).await.unwrap();
            store.delete(&key(window)).await.unwrap();
        }
        assert_eq!(store.list("", 10).await.unwrap().entries, Vec::new());
        assert!(!home.path().join("objects/runs").exists());
        assert_eq!(store.traffic().up_bytes, 12);
    }
}
