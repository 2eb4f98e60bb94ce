//! The objects of a server: files of a directory.
//!
//! An object is written elsewhere, synced, and renamed, so after a kill it is either complete or absent. The directory
//! is the only record of the objects, so a lock restricts it to one server at a time.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tempfile::{NamedTempFile, TempDir, TempPath};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufWriter};

use crate::{ServerConfig, ServerError};

/// Objects of all buckets.
pub(super) struct Objects {
    /// Directory with one subdirectory for each bucket.
    objects: PathBuf,
    incoming: PathBuf,
    /// Lock on the directory, held while the server lives.
    lock: File,
    /// The temporary directory, if the settings name none.
    temporary: Option<TempDir>,
    /// Lock held while objects are named or removed.
    names: Mutex<()>,
    object_bytes_max: u64,
}

/// Properties of one object, as listed.
pub(super) struct Object {
    pub bytes: u64,
    pub etag: String,
    pub modified: SystemTime,
}

/// Error of a read or write of an object.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    #[error("the object does not exist")]
    NotFound,
    #[error("there is no space left")]
    Full,
    #[error("the object is larger than {0} bytes")]
    TooLarge(u64),
    #[error("an object cannot have this name: {0}")]
    BadName(&'static str),
    #[error("the disk failed")]
    Disk(#[source] io::Error),
}

impl From<io::Error> for ObjectError {
    fn from(error: io::Error) -> ObjectError {
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ObjectError::Full,
            _ => ObjectError::Disk(error),
        }
    }
}

const MARKER: &str = "mettle-store";
const MARKER_TEXT: &str = "An S3 server's objects, layout 1. Do not change anything here by hand.\n";
/// Maximum number of bytes read or copied at a time.
const CHUNK_BYTES: usize = 256 << 10;

impl Objects {
    /// Opens an empty directory, or the directory of a store that no other server has open.
    pub fn open(config: &ServerConfig) -> Result<Objects, ServerError> {
        let (path, temporary) = match &config.data_dir {
            Some(path) => (path.clone(), None),
            None => {
                let directory = tempfile::tempdir();
                let directory = directory.map_err(|source| unusable(&std::env::temp_dir(), source))?;
                (directory.path().to_owned(), Some(directory))
            }
        };
        let failed = |source| unusable(&path, source);
        let lock = File::open(marked(&path)?).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(ServerError::DirectoryInUse { path }),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Objects that the last server did not receive completely.
        let incoming = path.join("incoming");
        match fs::remove_dir_all(&incoming) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
            _ => {}
        }
        fs::create_dir(&incoming).map_err(failed)?;
        let objects = path.join("buckets");
        let objects = Objects {
            objects,
            incoming,
            lock,
            temporary,
            names: Mutex::default(),
            object_bytes_max: config.object_bytes_max,
        };
        config.buckets.iter().try_for_each(|bucket| objects.add_bucket(&bucket.name))?;
        Ok(objects)
    }

    pub fn add_bucket(&self, name: &str) -> Result<(), ServerError> {
        let top = self.objects.join(name);
        fs::create_dir_all(&top).map_err(|source| unusable(&top, source))
    }

    fn names(&self) -> MutexGuard<'_, ()> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the objects whose names begin with `prefix`.
    pub fn list(&self, bucket: &str, prefix: &str) -> Result<BTreeMap<String, Object>, ObjectError> {
        let _names = self.names();
        Ok(walk(&self.objects.join(bucket), prefix)?)
    }

    /// Deletes the object, if it exists.
    pub fn delete(&self, bucket: &str, key: &str) -> Result<(), ObjectError> {
        let Ok(path) = self.path(bucket, key) else { return Ok(()) };
        let _names = self.names();
        match fs::remove_file(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            removed => removed?,
        }
        // Directories that are now empty.
        let top = self.objects.join(bucket);
        let above = path.ancestors().skip(1).take_while(|directory| *directory != top);
        for directory in above {
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Begins an object, which readers see once it is [placed](Objects::place).
    pub fn begin(&self) -> Result<Incoming<'_>, ObjectError> {
        let (file, path) = NamedTempFile::new_in(&self.incoming)?.into_parts();
        let file = BufWriter::with_capacity(CHUNK_BYTES, tokio::fs::File::from_std(file));
        Ok(Incoming { objects: self, file, path, hasher: blake3::Hasher::new(), bytes: 0 })
    }

    /// Names a received object, and replaces an existing object of that name.
    pub fn place(&self, bucket: &str, key: &str, received: Received) -> Result<Object, ObjectError> {
        let path = self.path(bucket, key)?;
        let _names = self.names();
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        received.path.persist(&path).map_err(|error| error.error)?;
        Ok(Object::of(key, &fs::metadata(&path)?)?)
    }

    /// Opens an object for reading. A reader keeps its object even if it is replaced during the read.
    pub async fn read(&self, bucket: &str, key: &str) -> Result<(Object, tokio::fs::File), ObjectError> {
        let path = self.path(bucket, key).map_err(|_| ObjectError::NotFound)?;
        let file = tokio::fs::File::open(path).await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ObjectError::NotFound,
            _ => error.into(),
        })?;
        Ok((Object::of(key, &file.metadata().await?)?, file))
    }

    fn path(&self, bucket: &str, key: &str) -> Result<PathBuf, ObjectError> {
        if key.is_empty() || key.len() > 1024 {
            return Err(ObjectError::BadName("it must have 1 to 1024 bytes"));
        }
        let mut path = self.objects.join(bucket);
        let mut parts = key.split('/').peekable();
        while let Some(part) = parts.next() {
            let mut name = encoded(part);
            if parts.peek().is_none() {
                name.push_str(OBJECT_SUFFIX);
            }
            if part.is_empty() {
                return Err(ObjectError::BadName("a part of it is empty"));
            }
            if name.len() > 255 {
                return Err(ObjectError::BadName("a part of it is too long"));
            }
            path.push(name);
        }
        Ok(path)
    }
}

impl Drop for Objects {
    /// Unlocks the file. Closing it would not, if a child that was just forked holds a copy of the descriptor.
    fn drop(&mut self) {
        self.lock.unlock().ok();
    }
}

/// Reads the next bytes of an opened object: at most `max`, and at most one chunk.
pub(super) async fn next_chunk(file: &mut tokio::fs::File, max: u64) -> io::Result<Bytes> {
    let mut chunk = vec![0; usize::try_from(max).unwrap_or(usize::MAX).min(CHUNK_BYTES)];
    let read = file.read(&mut chunk).await?;
    chunk.truncate(read);
    Ok(chunk.into())
}

/// An object being received. Dropping it leaves no trace.
pub(super) struct Incoming<'a> {
    objects: &'a Objects,
    file: BufWriter<tokio::fs::File>,
    path: TempPath,
    hasher: blake3::Hasher,
    bytes: u64,
}

/// A received object without a name. Dropping it leaves no trace.
pub(super) struct Received {
    pub bytes: u64,
    /// Digest of the contents.
    pub digest: String,
    path: TempPath,
}

impl Incoming<'_> {
    pub async fn write(&mut self, chunk: &[u8]) -> Result<(), ObjectError> {
        self.bytes += chunk.len() as u64;
        if self.bytes > self.objects.object_bytes_max {
            return Err(ObjectError::TooLarge(self.objects.object_bytes_max));
        }
        self.hasher.update(chunk);
        Ok(self.file.write_all(chunk).await?)
    }

    /// Appends all of a received object, as a part of this one.
    pub async fn append(&mut self, part: &Received) -> Result<(), ObjectError> {
        let mut file = tokio::fs::File::open(&part.path).await?;
        let mut left = part.bytes;
        while left > 0 {
            let chunk = next_chunk(&mut file, left).await?;
            if chunk.is_empty() {
                return Err(ObjectError::Disk(io::ErrorKind::UnexpectedEof.into()));
            }
            left -= chunk.len() as u64;
            self.write(&chunk).await?;
        }
        Ok(())
    }

    /// Syncs the object, unless the directory is temporary.
    pub async fn finish(mut self) -> Result<Received, ObjectError> {
        self.file.flush().await?;
        if self.objects.temporary.is_none() {
            self.file.get_ref().sync_all().await?;
        }
        let digest = self.hasher.finalize().to_hex()[..32].to_owned();
        Ok(Received { bytes: self.bytes, digest, path: self.path })
    }
}

impl Object {
    /// Describes a file. The etag changes with the object, and is the same after a restart.
    fn of(key: &str, file: &Metadata) -> io::Result<Object> {
        let (bytes, modified) = (file.len(), file.modified()?);
        let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut hasher = blake3::Hasher::new();
        hasher.update(&bytes.to_le_bytes()).update(&since.as_nanos().to_le_bytes()).update(key.as_bytes());
        Ok(Object { bytes, etag: hasher.finalize().to_hex()[..32].to_owned(), modified })
    }
}

fn unusable(path: &Path, source: io::Error) -> ServerError {
    ServerError::Directory { path: path.to_owned(), source }
}

/// Returns the file that marks `path` as the directory of a store. Writes it if the directory is empty.
fn marked(path: &Path) -> Result<PathBuf, ServerError> {
    let failed = |source| unusable(path, source);
    let foreign =
        |why: &str| Err(ServerError::ForeignDirectory { path: path.to_owned(), why: why.to_owned() });
    match fs::create_dir_all(path) {
        Err(error) if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) => {
            return foreign("it is a file");
        }
        created => created.map_err(failed)?,
    }
    let marker = path.join(MARKER);
    match fs::read(&marker) {
        Ok(text) if text == MARKER_TEXT.as_bytes() => {}
        Ok(_) => return foreign("it was made by another version"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if fs::read_dir(path).map_err(failed)?.next().is_some() {
                return foreign("it has other files");
            }
            // Renamed, so that a marker is either complete or absent.
            let new = NamedTempFile::new_in(path).map_err(failed)?;
            fs::write(new.path(), MARKER_TEXT).map_err(failed)?;
            new.as_file().sync_all().map_err(failed)?;
            new.persist(&marker).map_err(|error| failed(error.error))?;
        }
        Err(error) => return Err(failed(error)),
    }
    Ok(marker)
}

/// Lists the objects in the bucket directory `top` whose names begin with `wanted`, by name.
fn walk(top: &Path, wanted: &str) -> io::Result<BTreeMap<String, Object>> {
    let mut found = BTreeMap::new();
    let mut directories = vec![(String::new(), top.to_owned())];
    while let Some((prefix, directory)) = directories.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let file = entry.metadata()?;
            let name = entry.file_name();
            let name = name.to_str().and_then(|name| match name.strip_suffix(OBJECT_SUFFIX) {
                Some(name) => decoded(name).filter(|_| file.is_file()),
                None => decoded(name).filter(|_| file.is_dir()),
            });
            let Some(name) = name else {
                tracing::warn!(path = %entry.path().display(), "ignored: not an object of this store");
                continue;
            };
            let key = format!("{prefix}{name}");
            if file.is_dir() {
                let below = format!("{key}/");
                if below.starts_with(wanted) || wanted.starts_with(&below) {
                    directories.push((below, entry.path()));
                }
            } else if key.starts_with(wanted) {
                let object = Object::of(&key, &file)?;
                found.insert(key, object);
            }
        }
    }
    Ok(found)
}

/// Suffix of an object's file name, so that `a` and `a/b` can both exist.
const OBJECT_SUFFIX: &str = "~";

/// Encodes a part of a name as a file name: characters other than plain ones become `%` and two hex digits, as do
/// leading dots, so that no name leaves the directory.
fn encoded(part: &str) -> String {
    let mut name = String::with_capacity(part.len());
    for (index, byte) in part.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' => name.push(byte as char),
            b'.' if index > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02x}")),
        }
    }
    name
}

fn decoded(name: &str) -> Option<String> {
    let mut part = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            part.extend(hex::decode(after.get(..2)?).ok()?);
            rest = &after[2..];
        } else {
            part.push(byte);
            rest = after;
        }
    }
    let part = String::from_utf8(part).ok()?;
    (encoded(&part) == name).then_some(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_name_has_one_file_and_no_name_leads_out(part in "[^/]{1,40}") {
            let name = encoded(&part);
            prop_assert!(!name.contains('/') && !name.contains('~') && !name.starts_with('.'));
            prop_assert_eq!(decoded(&name), Some(part));
        }
    }

    #[test]
    fn a_full_disk_is_told_from_a_broken_one() {
        assert!(matches!(io::Error::from(io::ErrorKind::StorageFull).into(), ObjectError::Full));
        assert!(matches!(io::Error::from(io::ErrorKind::BrokenPipe).into(), ObjectError::Disk(_)));
    }

    #[tokio::test]
    async fn an_object_that_never_arrives_leaves_nothing() {
        let config = ServerConfig {
            object_bytes_max: 80,
            ..ServerConfig::temporary(vec![crate::BucketConfig::new("bucket", "key", "secret")])
        };
        let objects = Objects::open(&config).expect("a directory");
        let mut incoming = objects.begin().expect("a file");
        incoming.write(&[0; 60]).await.expect("small");
        assert!(matches!(incoming.write(&[0; 30]).await, Err(ObjectError::TooLarge(80))));
        drop(incoming);
        let mut incoming = objects.begin().expect("a file");
        incoming.write(&[0; 60]).await.expect("small");
        drop(incoming.finish().await.expect("finished"));
        assert_eq!(fs::read_dir(&objects.incoming).expect("there").count(), 0);
        assert!(objects.list("bucket", "").expect("there").is_empty());
    }
}
