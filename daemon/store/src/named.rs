//! Objects of any name: texts and datasets that people keep in a bucket. The objects of nodes have the names of
//! [`Store`](crate::Store).

use std::ops::Range;
use std::path::Path;

use bytes::Bytes;
use futures::TryStreamExt;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt};
use protocol::ensure;

use crate::object::{parsed, unreadable};
use crate::{Action, S3Store, Store, StoreError};

/// An object of any name, as it was listed.
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

/// In seconds, as in the answer to a read; a listing has parts of a second.
fn last_modified(meta: &ObjectMeta) -> String {
    meta.last_modified.timestamp().to_string()
}

impl S3Store {
    /// The objects below `prefix/`, or else the one of that name: at most `most`, in the store's order. The deadline of
    /// an operation counts for each page.
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

    /// The bytes `range` of an object as it was listed, all of them.
    ///
    /// # Errors
    /// [`StoreError::Changed`] if it has another version by now.
    pub async fn read_named(&self, object: &NamedObject, range: Range<u64>) -> Result<Bytes, StoreError> {
        let name = &object.name;
        let at = parsed(name)?;
        let (store, expected) = (self.describe(), range.end - range.start);
        self.within(self.deadline, Action::Read, name, async {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
            let found = self.backend.get_opts(&at, options).await?;
            let meta = &found.meta;
            // Some stores list no tags, but name them here.
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

    /// Writes the contents of a file, in parts where it is long. No reader sees a part of it.
    pub async fn upload_named(&self, name: &str, path: &Path) -> Result<u64, StoreError> {
        let failed = |source| unreadable(path, source);
        let file = tokio::fs::File::open(path).await.map_err(failed)?;
        let length = file.metadata().await.map_err(failed)?.len();
        self.upload(name, path, length, file).await
    }
}
