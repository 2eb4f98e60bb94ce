//! The objects of a server, in memory or in a directory.
//!
//! In a directory, each object is a file that is written elsewhere, synced, and renamed: it is there whole or not at
//! all after a kill. The listing is in memory and read from the directory at start, so a lock gives the directory to
//! one server at a time.

use std::collections::BTreeMap;
use std::fs::{File, TryLockError};
use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};

use crate::ServerError;

/// All buckets' objects.
pub(super) struct Objects {
    disk: Option<Disk>,
    buckets: BTreeMap<String, Mutex<BTreeMap<String, Object>>>,
    used: Arc<AtomicU64>,
    capacity_bytes: u64,
    object_bytes_max: u64,
}

struct Disk {
    objects: PathBuf,
    incoming: PathBuf,
    /// Held while the server lives.
    lock: File,
}

/// One object, as listed.
#[derive(Clone, Debug)]
pub(super) struct Object {
    pub bytes: u64,
    pub etag: String,
    pub modified: SystemTime,
    content: Content,
}

#[derive(Clone, Debug)]
enum Content {
    Memory(Bytes),
    File(PathBuf),
}

/// Why an object could not be written or read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ObjectError {
    #[error("the bucket does not exist")]
    NoBucket,
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
/// Bytes read or copied at a time.
const CHUNK_BYTES: usize = 256 << 10;

impl Objects {
    pub async fn open(
        directory: Option<PathBuf>,
        buckets: Vec<String>,
        capacity_bytes: Option<u64>,
        object_bytes_max: u64,
    ) -> Result<Objects, ServerError> {
        let opened = tokio::task::spawn_blocking(move || {
            let disk = directory.as_deref().map(Disk::open).transpose()?;
            let mut found = BTreeMap::new();
            let mut used = 0u64;
            for name in buckets {
                let objects = match &disk {
                    None => BTreeMap::new(),
                    Some(disk) => disk.load(&name)?,
                };
                used += objects.values().map(|object| object.bytes).sum::<u64>();
                found.insert(name, Mutex::new(objects));
            }
            Ok(Objects {
                disk,
                buckets: found,
                used: Arc::new(AtomicU64::new(used)),
                capacity_bytes: capacity_bytes.unwrap_or(u64::MAX),
                object_bytes_max,
            })
        });
        opened.await.expect("opening a directory does not panic and is not cancelled")
    }

    fn bucket(&self, name: &str) -> Result<MutexGuard<'_, BTreeMap<String, Object>>, ObjectError> {
        let bucket = self.buckets.get(name).ok_or(ObjectError::NoBucket)?;
        Ok(bucket.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn find(&self, bucket: &str, key: &str) -> Result<Object, ObjectError> {
        self.bucket(bucket)?.get(key).cloned().ok_or(ObjectError::NotFound)
    }

    /// The first `max` objects after `after` whose names begin with `prefix`, and whether there are more.
    pub fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: &str,
        max: usize,
    ) -> Result<(Vec<(String, Object)>, bool), ObjectError> {
        let objects = self.bucket(bucket)?;
        let from = if after >= prefix { after } else { prefix };
        let mut found = objects
            .range::<str, _>((Bound::Included(from), Bound::Unbounded))
            .skip_while(|(name, _)| !after.is_empty() && name.as_str() <= after)
            .take_while(|(name, _)| name.starts_with(prefix));
        let page = found.by_ref().take(max).map(|(name, object)| (name.clone(), object.clone())).collect();
        Ok((page, found.next().is_some()))
    }

    pub fn delete(&self, bucket: &str, key: &str) -> Result<(), ObjectError> {
        let mut objects = self.bucket(bucket)?;
        let Some(object) = objects.get(key) else { return Ok(()) };
        if let Content::File(path) = &object.content {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                _ => self.remove_empty_parents(bucket, path),
            }
        }
        self.used.fetch_sub(object.bytes, Ordering::Relaxed);
        objects.remove(key);
        Ok(())
    }

    /// Removes the directories above a removed file that are empty now.
    fn remove_empty_parents(&self, bucket: &str, file: &Path) {
        let Some(disk) = &self.disk else { return };
        let top = disk.objects.join(bucket);
        let above = file.ancestors().skip(1).take_while(|directory| *directory != top);
        for directory in above {
            if std::fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }

    /// Begins an object, which readers see once it is [placed](Objects::place).
    pub async fn begin(&self) -> Result<Incoming, ObjectError> {
        let sink = match &self.disk {
            None => Sink::Memory(BytesMut::new()),
            Some(disk) => {
                let directory = disk.incoming.clone();
                let file = tokio::task::spawn_blocking(move || tempfile::NamedTempFile::new_in(directory))
                    .await
                    .map_err(io::Error::other)??;
                let (file, path) = file.into_parts();
                let writer =
                    tokio::io::BufWriter::with_capacity(CHUNK_BYTES, tokio::fs::File::from_std(file));
                Sink::File(writer, path)
            }
        };
        Ok(Incoming {
            sink,
            bytes: 0,
            hasher: blake3::Hasher::new(),
            used: self.used.clone(),
            capacity_bytes: self.capacity_bytes,
            object_bytes_max: self.object_bytes_max,
        })
    }

    /// Gives a finished object its name, in place of the object that had it.
    pub fn place(&self, bucket: &str, key: &str, mut stored: Stored) -> Result<Object, ObjectError> {
        let path = match &self.disk {
            None => None,
            Some(disk) => Some(disk.path(bucket, key)?),
        };
        check_name(key)?;
        let mut objects = self.bucket(bucket)?;
        let bytes = stored.bytes;
        let (content, modified) = match (stored.kept.take(), path) {
            (Some(Kept::Memory(bytes)), _) => (Content::Memory(bytes), SystemTime::now()),
            (Some(Kept::File(incoming)), Some(path)) => {
                if let Some(parent) = path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                incoming.persist(&path).map_err(|error| error.error)?;
                let modified = std::fs::metadata(&path)?.modified()?;
                (Content::File(path), modified)
            }
            _ => return Err(ObjectError::Disk(io::Error::other("the object was received by another store"))),
        };
        // The space now belongs to the named object.
        stored.bytes = 0;
        let object = Object { bytes, etag: etag(key, bytes, modified), modified, content };
        if let Some(old) = objects.insert(key.to_owned(), object.clone()) {
            self.used.fetch_sub(old.bytes, Ordering::Relaxed);
        }
        Ok(object)
    }

    /// Opens an object for reading. A reader keeps its object even if it is replaced meanwhile.
    pub async fn read(&self, bucket: &str, key: &str) -> Result<(Object, Reader), ObjectError> {
        // The object may be replaced between the lookup and the opening of its file: then look it up again.
        for _ in 0..8 {
            let object = self.find(bucket, key)?;
            match &object.content {
                Content::Memory(bytes) => {
                    let reader = Reader::Memory(bytes.clone());
                    return Ok((object, reader));
                }
                Content::File(path) => match tokio::fs::File::open(path).await {
                    Ok(file) => {
                        let metadata = file.metadata().await?;
                        if metadata.len() == object.bytes && metadata.modified()? == object.modified {
                            return Ok((object, Reader::File(file)));
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                },
            }
            tokio::task::yield_now().await;
        }
        Err(ObjectError::NotFound)
    }
}

/// An opened object.
pub(super) enum Reader {
    Memory(Bytes),
    File(tokio::fs::File),
}

impl Reader {
    /// Moves to the byte `to`.
    pub async fn seek(&mut self, to: u64) -> io::Result<()> {
        match self {
            Reader::Memory(bytes) => {
                let to = usize::try_from(to).unwrap_or(usize::MAX).min(bytes.len());
                let _ = bytes.split_to(to);
            }
            Reader::File(file) => {
                file.seek(io::SeekFrom::Start(to)).await?;
            }
        }
        Ok(())
    }

    /// The next bytes, at most `max` and at most a chunk.
    pub async fn chunk(&mut self, max: u64) -> io::Result<Bytes> {
        let max = usize::try_from(max).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        match self {
            Reader::Memory(bytes) => Ok(bytes.split_to(max.min(bytes.len()))),
            Reader::File(file) => {
                let mut chunk = vec![0; max];
                let read = file.read(&mut chunk).await?;
                chunk.truncate(read);
                Ok(chunk.into())
            }
        }
    }
}

/// An object that is being received. Dropping it leaves no trace.
pub(super) struct Incoming {
    sink: Sink,
    bytes: u64,
    hasher: blake3::Hasher,
    used: Arc<AtomicU64>,
    capacity_bytes: u64,
    object_bytes_max: u64,
}

enum Sink {
    Memory(BytesMut),
    File(tokio::io::BufWriter<tokio::fs::File>, tempfile::TempPath),
    Taken,
}

/// A received object without a name. Dropping it leaves no trace.
pub(super) struct Stored {
    pub bytes: u64,
    /// Of the contents.
    pub digest: String,
    kept: Option<Kept>,
    used: Arc<AtomicU64>,
}

enum Kept {
    Memory(Bytes),
    File(tempfile::TempPath),
}

impl Incoming {
    pub async fn write(&mut self, chunk: &[u8]) -> Result<(), ObjectError> {
        let length = chunk.len() as u64;
        if self.bytes + length > self.object_bytes_max {
            return Err(ObjectError::TooLarge(self.object_bytes_max));
        }
        let used = self.used.fetch_add(length, Ordering::Relaxed);
        self.bytes += length;
        if used.saturating_add(length) > self.capacity_bytes {
            return Err(ObjectError::Full);
        }
        self.hasher.update(chunk);
        match &mut self.sink {
            Sink::Memory(bytes) => bytes.extend_from_slice(chunk),
            Sink::File(file, _) => file.write_all(chunk).await?,
            Sink::Taken => {}
        }
        Ok(())
    }

    /// Syncs the object.
    pub async fn finish(mut self) -> Result<Stored, ObjectError> {
        let kept = match std::mem::replace(&mut self.sink, Sink::Taken) {
            Sink::Memory(bytes) => Some(Kept::Memory(bytes.freeze())),
            Sink::File(mut file, path) => {
                file.flush().await?;
                file.get_ref().sync_all().await?;
                Some(Kept::File(path))
            }
            Sink::Taken => None,
        };
        let digest = self.hasher.finalize().to_hex()[..32].to_owned();
        let stored = Stored { bytes: self.bytes, digest, kept, used: self.used.clone() };
        // The space now belongs to the stored object.
        self.bytes = 0;
        Ok(stored)
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Stored {
    /// Opens it for reading, to join it with other parts.
    pub async fn read(&self) -> Result<Reader, ObjectError> {
        match &self.kept {
            Some(Kept::Memory(bytes)) => Ok(Reader::Memory(bytes.clone())),
            Some(Kept::File(path)) => Ok(Reader::File(tokio::fs::File::open(path).await?)),
            None => Err(ObjectError::NotFound),
        }
    }
}

impl Drop for Stored {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Changes with the object, and is the same after a restart.
fn etag(key: &str, bytes: u64, modified: SystemTime) -> String {
    let since = modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes.to_le_bytes()).update(&since.as_nanos().to_le_bytes()).update(key.as_bytes());
    hasher.finalize().to_hex()[..32].to_owned()
}

impl Drop for Disk {
    /// Closing the file does not unlock it while a child that has just been forked holds a copy of the descriptor.
    fn drop(&mut self) {
        self.lock.unlock().ok();
    }
}

impl Disk {
    /// Opens an empty directory, or that of a store which no other server has open.
    fn open(path: &Path) -> Result<Disk, ServerError> {
        let unusable = |source| ServerError::Directory { path: path.to_owned(), source };
        let foreign =
            |why: &str| ServerError::ForeignDirectory { path: path.to_owned(), why: why.to_owned() };
        match std::fs::create_dir_all(path) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory) =>
            {
                return Err(foreign("it is a file"));
            }
            created => created.map_err(unusable)?,
        }
        let marker = path.join(MARKER);
        match std::fs::read_to_string(&marker) {
            Ok(text) if text == MARKER_TEXT => {}
            Ok(_) => return Err(foreign("it was made by another version")),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                return Err(foreign("it was made by another version"));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if std::fs::read_dir(path).map_err(unusable)?.next().is_some() {
                    return Err(foreign("it has other files"));
                }
                // Renamed, so that a marker is whole or not there.
                let new = tempfile::NamedTempFile::new_in(path).map_err(unusable)?;
                std::fs::write(new.path(), MARKER_TEXT).map_err(unusable)?;
                new.as_file().sync_all().map_err(unusable)?;
                new.persist(&marker).map_err(|error| unusable(error.error))?;
            }
            Err(error) => return Err(unusable(error)),
        }
        let lock = File::open(&marker).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(ServerError::DirectoryInUse { path: path.to_owned() });
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        // Objects that the last server had not received completely.
        let incoming = path.join("incoming");
        match std::fs::remove_dir_all(&incoming) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unusable(error)),
            _ => {}
        }
        std::fs::create_dir(&incoming).map_err(unusable)?;
        let objects = path.join("buckets");
        std::fs::create_dir_all(&objects).map_err(unusable)?;
        Ok(Disk { objects, incoming, lock })
    }

    fn load(&self, bucket: &str) -> Result<BTreeMap<String, Object>, ServerError> {
        let top = self.objects.join(bucket);
        let unusable = |source| ServerError::Directory { path: top.clone(), source };
        let mut found = BTreeMap::new();
        std::fs::create_dir_all(&top).map_err(unusable)?;
        let mut directories = vec![(String::new(), top.clone())];
        while let Some((prefix, directory)) = directories.pop() {
            for entry in std::fs::read_dir(&directory).map_err(unusable)? {
                let entry = entry.map_err(unusable)?;
                let metadata = entry.metadata().map_err(unusable)?;
                let name = entry.file_name();
                let name = name.to_str().and_then(|name| {
                    let (name, is_object) = match name.strip_suffix(OBJECT_SUFFIX) {
                        Some(name) => (name, true),
                        None => (name, false),
                    };
                    (is_object == metadata.is_file()).then(|| decoded(name)).flatten()
                });
                let Some(name) = name else {
                    tracing::warn!(path = %entry.path().display(), "ignored: not an object of this store");
                    continue;
                };
                let key = if prefix.is_empty() { name } else { format!("{prefix}/{name}") };
                if metadata.is_dir() {
                    directories.push((key, entry.path()));
                } else {
                    let (bytes, modified) = (metadata.len(), metadata.modified().map_err(unusable)?);
                    let content = Content::File(entry.path());
                    found.insert(
                        key.clone(),
                        Object { bytes, etag: etag(&key, bytes, modified), modified, content },
                    );
                }
            }
        }
        Ok(found)
    }

    fn path(&self, bucket: &str, key: &str) -> Result<PathBuf, ObjectError> {
        check_name(key)?;
        let mut path = self.objects.join(bucket);
        let mut parts = key.split('/').peekable();
        while let Some(part) = parts.next() {
            let mut name = encoded(part);
            if parts.peek().is_none() {
                name.push_str(OBJECT_SUFFIX);
            }
            if name.len() > 255 {
                return Err(ObjectError::BadName("a part of it is too long"));
            }
            path.push(name);
        }
        Ok(path)
    }
}

/// Ends the name of every file of an object, so that `a` and `a/b` can both exist.
const OBJECT_SUFFIX: &str = "~";

fn check_name(key: &str) -> Result<(), ObjectError> {
    if key.is_empty() || key.len() > 1024 {
        return Err(ObjectError::BadName("it must have 1 to 1024 bytes"));
    }
    if key.split('/').any(str::is_empty) {
        return Err(ObjectError::BadName("a part of it is empty"));
    }
    Ok(())
}

/// A part of a name as a file name: all but plain characters become `%` and two hex digits, leading dots included, so
/// that no name leads out of the directory.
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
    async fn an_object_that_never_arrives_takes_no_space() {
        let objects = Objects::open(None, vec!["bucket".into()], Some(100), 80).await.expect("memory");
        let mut incoming = objects.begin().await.expect("room");
        incoming.write(&[0; 60]).await.expect("room");
        let mut second = objects.begin().await.expect("room");
        assert!(matches!(second.write(&[0; 60]).await, Err(ObjectError::Full)));
        drop(second);
        assert!(matches!(incoming.write(&[0; 30]).await, Err(ObjectError::TooLarge(80))));
        let stored = incoming.finish().await.expect("finished");
        assert_eq!(objects.used.load(Ordering::Relaxed), 60);
        drop(stored);
        assert_eq!(objects.used.load(Ordering::Relaxed), 0);
    }
}
