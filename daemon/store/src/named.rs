//! Objects with arbitrary names: texts and datasets that users keep in a bucket. The objects of nodes have the names
//! of [`Store`](crate::Store).

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::ensure;

use crate::object::{parsed, unreadable};
use crate::{Action, S3Store, Store, StoreError};

/// An object with an arbitrary name, from a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedObject {
    pub name: String,
    pub bytes: u64,
    /// The store's tag of the contents, or the time of the last change.
    pub version: String,
}

impl From<ObjectMeta> for NamedObject {
    fn from(meta: ObjectMeta) -> NamedObject {
        let version = meta.e_tag.clone().unwrap_or_else(|| last_modified(&meta));
        NamedObject { name: meta.location.to_string(), bytes: meta.size, version }
    }
}

/// Returns the time in seconds, as in the answer to a read; a listing has fractions of a second.
fn last_modified(meta: &ObjectMeta) -> String {
    meta.last_modified.timestamp().to_string()
}

impl S3Store {
    /// Lists the objects below `prefix/`, or else the one with that name: at most `most`, in the store's order. The
    /// deadline of an operation applies to each page.
    ///
    /// # Errors
    /// If the prefix is not a valid name or the store fails.
    pub async fn list_named(&self, prefix: &str, most: usize) -> Result<Vec<NamedObject>, StoreError> {
        let below = if prefix.is_empty() { None } else { Some(parsed(prefix)?) };
        let mut pages = self.backend.list(below.as_ref());
        let mut found = Vec::new();
        while found.len() < most {
            let next = async { Ok(pages.try_next().await?) };
            match self.within(self.deadline, Action::List, prefix, next).await? {
                Some(object) => found.push(NamedObject::from(object)),
                None => break,
            }
        }
        if found.is_empty()
            && let Some(at) = below
        {
            let look = async { Ok(self.backend.head(&at).await?) };
            match self.within(self.deadline, Action::LookUp, prefix, look).await {
                Ok(object) => found.push(object.into()),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Reads all bytes `range` of an object from a listing.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if it now has another version; otherwise if the store fails.
    pub async fn read_named(&self, object: &NamedObject, range: Range<u64>) -> Result<Bytes, StoreError> {
        let name = &object.name;
        let at = parsed(name)?;
        let (store, expected) = (self.describe(), range.end - range.start);
        self.within(self.deadline, Action::Read, name, async {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            let found = self.backend.get_opts(&at, options).await?;
            let meta = &found.meta;
            // Some stores omit tags in listings, but return them here.
            let is_same = meta.size == object.bytes
                && (meta.e_tag.as_deref() == Some(&object.version) || last_modified(meta) == object.version);
            ensure!(is_same, StoreError::Changed { store: store.clone(), name: name.clone() });
            let bytes = found.bytes().await?;
            self.traffic.add_down(bytes.len() as u64);
            let got = bytes.len() as u64;
            ensure!(got == expected, StoreError::CutShort { store, key: name.clone(), got, expected });
            Ok(bytes)
        })
        .await
    }

    /// Writes the contents of an object, of any version, into a file, atomically.
    ///
    /// # Errors
    /// If the store or the disk fails. There is then no file.
    pub async fn download_named(&self, name: &str, path: &Path) -> Result<(), StoreError> {
        let at = parsed(name)?;
        let failed = |source| StoreError::FileWrite { path: path.display().to_string(), source };
        let found = async { Ok(self.backend.get(&at).await?) };
        let found = self.within(self.deadline, Action::Read, name, found).await?;
        let expected = found.meta.size;
        let directory = path.parent().unwrap_or(Path::new("."));
        let mut file = tempfile::NamedTempFile::new_in(directory).map_err(failed)?;
        let mut to = tokio::fs::File::from_std(file.as_file().try_clone().map_err(failed)?);
        let (mut chunks, mut got) = (found.into_stream(), 0);
        loop {
            // The deadline limits each silence, not the whole download.
            let next = async { Ok(chunks.try_next().await?) };
            let Some(chunk) = self.within(self.deadline, Action::Read, name, next).await? else { break };
            got += chunk.len() as u64;
            self.traffic.add_down(chunk.len() as u64);
            tokio::io::AsyncWriteExt::write_all(&mut to, &chunk).await.map_err(failed)?;
        }
        let (store, key) = (self.describe(), name.to_owned());
        ensure!(got == expected, StoreError::CutShort { store, key, got, expected });
        tokio::io::AsyncWriteExt::flush(&mut to).await.map_err(failed)?;
        drop(to);
        file.as_file_mut().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
    }

    /// Uploads the contents of a file, a long one in parts. No reader sees a part of it.
    ///
    /// # Errors
    /// If the file cannot be read or the store fails.
    pub async fn upload_named(&self, name: &str, path: &Path) -> Result<u64, StoreError> {
        let failed = |source| unreadable(path, source);
        let file = tokio::fs::File::open(path).await.map_err(failed)?;
        let length = file.metadata().await.map_err(failed)?.len();
        self.upload(name, path, length, file).await
    }

    /// Removes an object. Succeeds if the object does not exist.
    ///
    /// # Errors
    /// If the store fails.
    pub async fn delete_named(&self, name: &str) -> Result<(), StoreError> {
        let at = parsed(name)?;
        let delete = async { Ok(self.backend.delete(&at).await?) };
        match self.within(self.deadline, Action::Delete, name, delete).await {
            Err(StoreError::NotFound { .. }) => Ok(()),
            other => other,
        }
    }
}
