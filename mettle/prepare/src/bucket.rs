//! Texts and datasets in a bucket. An object is read in blocks, one ahead, so that memory is bounded.

use crate::error::{BucketError, SourceError};
use bytes::Bytes;
use protocol::ensure;
use std::{
    fmt,
    fs::File,
    io::{self, Read, Seek as _, SeekFrom},
    path::{Path, PathBuf},
    str::FromStr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::{NamedObject, S3Store, Store as _, StoreError};
use tokio::{runtime::Handle, task::JoinHandle};

const SCHEME: &str = "s3://";
/// Maximum number of objects in one source. In memory, each takes about the size of its name.
const MAX_OBJECTS: usize = 1 << 22;
/// Size of a block, in bytes.
const BLOCK_BYTES: u64 = 4 << 20;
/// Maximum number of tries after a temporary failure, beyond those of the requests: a body may end early. The pause
/// doubles.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// A bucket at an S3-compatible provider. Every call blocks and retries temporary failures; it must not come from a
/// thread of the runtime.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<S3Store>,
    runtime: Handle,
}

/// Shows the bucket and no secret.
impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.store.describe())
    }
}

/// Reads bytes at any position of a file or an object.
pub trait ReadAt: Send + Sync {
    /// Returns the length in bytes.
    fn length(&self) -> u64;

    /// Reads some bytes from `start` on. Reads none at the end.
    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<usize>;
}

/// Reads from a position to the end.
pub struct ReadFrom {
    file: Arc<dyn ReadAt>,
    next: u64,
}

impl ReadFrom {
    pub fn new(file: Arc<dyn ReadAt>, start: u64) -> ReadFrom {
        ReadFrom { file, next: start }
    }
}

impl Read for ReadFrom {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.file.read_at(self.next, into)?;
        self.next += bytes as u64;
        Ok(bytes)
    }
}

/// A file of this machine.
pub(crate) struct LocalFile {
    file: Mutex<File>,
    length: u64,
}

impl LocalFile {
    pub fn open(path: &Path) -> io::Result<LocalFile> {
        let file = File::open(path)?;
        let length = file.metadata()?.len();
        Ok(LocalFile { file: Mutex::new(file), length })
    }
}

impl ReadAt for LocalFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(start))?;
        file.read(into)
    }
}

/// A URL `s3://BUCKET/PREFIX`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketUrl {
    pub bucket: String,
    /// Prefix without slashes at its ends.
    pub prefix: String,
}

impl BucketUrl {
    /// Parses a URL; `None` for a path.
    ///
    /// # Errors
    /// If it begins like a URL of a bucket but is not valid.
    pub fn parse(given: &str) -> Result<Option<BucketUrl>, SourceError> {
        let Some(rest) = given.strip_prefix(SCHEME) else { return Ok(None) };
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        // A key in the URL would be logged, and a port would be ignored.
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let wrong = |reason| SourceError::Url { url: given.to_owned(), reason };
        ensure!(!bucket.is_empty() && bucket.chars().all(allowed), {
            let url = format!("{SCHEME}…/{prefix}");
            SourceError::Url { url, reason: "the name of a bucket has letters, digits, dots and dashes only" }
        });
        let prefix = prefix.trim_matches('/');
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
        ensure!(
            prefix.is_empty() || prefix.split('/').all(is_plain),
            wrong("a part of the prefix is empty or dots")
        );
        Ok(Some(BucketUrl { bucket: bucket.to_owned(), prefix: prefix.to_owned() }))
    }

    /// Returns whether an object at `other` is at or below this URL, in the same store.
    pub(crate) fn covers(&self, other: &BucketUrl) -> bool {
        let rest = other.prefix.strip_prefix(&self.prefix);
        let is_below = |rest: &str| self.prefix.is_empty() || rest.is_empty() || rest.starts_with('/');
        self.bucket == other.bucket && rest.is_some_and(is_below)
    }

    /// Returns the URL of an object in the same bucket.
    pub(crate) fn of(&self, name: &str) -> String {
        BucketUrl { prefix: name.to_owned(), ..self.clone() }.to_string()
    }
}

impl FromStr for BucketUrl {
    type Err = SourceError;

    fn from_str(given: &str) -> Result<BucketUrl, SourceError> {
        let none = || SourceError::Url { url: given.to_owned(), reason: "it does not begin with s3://" };
        BucketUrl::parse(given)?.ok_or_else(none)
    }
}

impl fmt::Display for BucketUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.bucket)?;
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

impl Bucket {
    /// Creates a bucket whose requests are sent by `runtime`.
    pub fn new(store: S3Store, runtime: Handle) -> Bucket {
        Bucket { store: Arc::new(store), runtime }
    }

    /// Runs an operation on the runtime, and blocks until it ends.
    fn wait<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send>(
        &self,
        operation: impl Fn(Arc<S3Store>) -> F + Send + Sync + 'static,
    ) -> Result<T, BucketError> {
        let store = self.store.clone();
        let tries = self.runtime.spawn(async move { patiently(|| operation(store.clone())).await });
        Ok(self.runtime.block_on(tries)??)
    }

    /// Opens an object in its listed version: a later version is an error.
    pub(crate) fn open(&self, object: &NamedObject) -> Arc<dyn ReadAt> {
        let (store, runtime) = (self.store.clone(), self.runtime.clone());
        Arc::new(S3Object { store, runtime, object: Arc::new(object.clone()), blocks: Mutex::default() })
    }

    /// Uploads a file into an object, completely or not at all.
    pub(crate) fn upload(&self, file: PathBuf, name: String) -> Result<(), BucketError> {
        let upload = move |store: Arc<S3Store>| {
            let (file, name) = (file.clone(), name.clone());
            async move { store.upload_named(&name, &file).await.map(drop) }
        };
        self.wait(upload)
    }

    /// Lists the objects at or below a URL by name, without the empty objects that consoles write for directories.
    ///
    /// # Errors
    /// If the listing fails, or there are more than 2²² objects.
    pub(crate) fn objects(&self, url: &BucketUrl) -> Result<Vec<NamedObject>, SourceError> {
        let place = || url.to_string();
        let prefix = url.prefix.clone();
        let list = move |store: Arc<S3Store>| {
            let prefix = prefix.clone();
            async move { store.list_named(&prefix, MAX_OBJECTS + 1).await }
        };
        let mut listed = self.wait(list).map_err(|source| SourceError::Bucket { place: place(), source })?;
        ensure!(
            listed.len() <= MAX_OBJECTS,
            SourceError::TooManyObjects { place: place(), most: MAX_OBJECTS }
        );
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let is_directory = |object: &NamedObject| {
            let below = format!("{}/", object.name);
            let next = listed.get(listed.partition_point(|other| other.name < below));
            object.name == url.prefix || next.is_some_and(|next| next.name.starts_with(&below))
        };
        let is_object = |object: &&NamedObject| object.bytes != 0 || !is_directory(object);
        Ok(listed.iter().filter(is_object).cloned().collect())
    }

    /// Lists the files of a text, in the order of a directory with these names, and without hidden ones.
    pub(crate) fn files(&self, url: &BucketUrl) -> Result<Vec<NamedObject>, SourceError> {
        let below = |name: &str| match name.strip_prefix(&url.prefix) {
            Some("") => Some(String::new()),
            Some(rest) if url.prefix.is_empty() => Some(rest.to_owned()),
            Some(rest) => rest.strip_prefix('/').map(str::to_owned),
            None => None,
        };
        let mut found: Vec<(String, NamedObject)> = Vec::new();
        for object in self.objects(url)? {
            let Some(rest) = below(&object.name) else { continue };
            let is_hidden = rest.split('/').any(|part| part.is_empty() || part.starts_with('.'));
            if rest.is_empty() || !is_hidden {
                found.push((rest, object));
            }
        }
        ensure!(!found.is_empty(), SourceError::NoObject { place: url.to_string() });
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found.into_iter().map(|(_, object)| object).collect())
    }
}

/// Repeats an operation after temporary failures.
async fn patiently<T, F: Future<Output = Result<T, StoreError>>>(
    operation: impl Fn() -> F,
) -> Result<T, StoreError> {
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match operation().await {
            Err(error) if error.may_pass() => {
                tracing::debug!(error = store::error_chain(&error), "trying again");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            done => return done,
        }
    }
    operation().await
}

/// An object that is read in blocks. At most three are in memory: two that were read, and the next.
struct S3Object {
    store: Arc<S3Store>,
    runtime: Handle,
    object: Arc<NamedObject>,
    blocks: Mutex<Blocks>,
}

#[derive(Default)]
struct Blocks {
    /// Blocks that were read; the last is first.
    read: [Option<(u64, Bytes)>; 2],
    next: Option<(u64, Fetch)>,
}

/// A block that is being fetched. Dropping it ends the request.
struct Fetch(JoinHandle<Result<Bytes, StoreError>>);

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl S3Object {
    fn fetch(&self, block: u64) -> Fetch {
        let (store, object) = (self.store.clone(), self.object.clone());
        let start = block * BLOCK_BYTES;
        let range = start..object.bytes.min(start + BLOCK_BYTES);
        Fetch(self.runtime.spawn(async move { patiently(|| store.read_named(&object, range.clone())).await }))
    }

    /// Returns a block, and starts to fetch the next one.
    fn block(&self, block: u64) -> io::Result<Bytes> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let Blocks { read, next } = &mut *blocks;
        if let Some((_, bytes)) = read.iter().flatten().find(|(number, _)| *number == block) {
            return Ok(bytes.clone());
        }
        let mut fetch = match next.take() {
            Some((number, fetch)) if number == block => fetch,
            _ => self.fetch(block),
        };
        let bytes =
            self.runtime.block_on(&mut fetch.0).map_err(io::Error::other)?.map_err(io::Error::other)?;
        if (block + 1) * BLOCK_BYTES < self.object.bytes {
            *next = Some((block + 1, self.fetch(block + 1)));
        }
        read.swap(0, 1);
        read[0] = Some((block, bytes.clone()));
        Ok(bytes)
    }
}

impl ReadAt for S3Object {
    fn length(&self) -> u64 {
        self.object.bytes
    }

    fn read_at(&self, start: u64, into: &mut [u8]) -> io::Result<usize> {
        if self.object.bytes <= start {
            return Ok(0);
        }
        let block = self.block(start / BLOCK_BYTES)?;
        // Less than the length of a block, which is in memory.
        let from = (start % BLOCK_BYTES) as usize;
        let found = block.get(from..).unwrap_or_default();
        let bytes = found.len().min(into.len());
        into[..bytes].copy_from_slice(&found[..bytes]);
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_bucket_and_prefix_and_a_path_is_none() {
        let parse = |given: &str| BucketUrl::parse(given);
        let url = |bucket: &str, prefix: &str| BucketUrl { bucket: bucket.into(), prefix: prefix.into() };
        for path in ["text", "/text", "./s3:/a", "s3:/a"] {
            assert!(matches!(parse(path), Ok(None)), "{path}");
        }
        assert_eq!(parse("s3://my-bucket/a/b/").ok().flatten(), Some(url("my-bucket", "a/b")));
        assert_eq!(parse("s3://my.bucket").ok().flatten(), Some(url("my.bucket", "")));
        assert_eq!(url("a", "b/c").to_string(), "s3://a/b/c");
        assert_eq!(url("a", "").to_string(), "s3://a");
        for wrong in ["s3://", "s3:///a", "s3://a//b/c/./d", "s3://a/b/../c", "s3://host:9000/a"] {
            assert!(matches!(parse(wrong), Err(SourceError::Url { .. })), "{wrong}");
        }
        let covers = |text: &str| url("a", text).covers(&url("a", "texts/data"));
        assert!(["", "texts", "texts/data"].into_iter().all(covers));
        assert!(!["text", "texts/dat", "texts/data/0"].into_iter().any(covers));
        assert!(!url("b", "texts").covers(&url("a", "texts/data")));
        let secret = parse("s3://key:hunter2@bucket/a").expect_err("a secret in a URL").to_string();
        assert!(!secret.contains("hunter2"), "{secret}");
    }
}
