//! A file of a source.

use crate::bucket::{Bucket, LocalFile, ReadAt, ReadFrom};
use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    sync::Arc,
};
use store::NamedObject;

/// A file of a source.
#[derive(Clone, Debug)]
pub(crate) struct TextFile {
    pub path: PathBuf,
    /// Of the file, as it is compressed.
    pub bytes: u64,
    /// The largest document that a text file is cut into, in bytes.
    pub part_bytes: usize,
    /// The object with its bytes; `None` if they are at `path` of this machine.
    pub object: Option<Object>,
}

/// An object of a bucket.
#[derive(Clone, Debug)]
pub(crate) struct Object {
    pub bucket: Bucket,
    pub info: NamedObject,
}

impl TextFile {
    /// Reads it from the beginning.
    pub fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        Ok(match &self.object {
            Some(Object { bucket, info }) => Box::new(ReadFrom::new(bucket.open(info), 0)),
            None => Box::new(File::open(&self.path)?),
        })
    }

    /// Reads it at any place.
    pub fn open_at(&self) -> io::Result<Arc<dyn ReadAt>> {
        Ok(match &self.object {
            Some(Object { bucket, info }) => bucket.open(info),
            None => Arc::new(LocalFile::open(&self.path)?),
        })
    }
}
