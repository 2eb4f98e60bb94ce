//! Buckets of `mettle dataset prepare`: texts are read in blocks, a few ahead, so that memory is bounded.

use bytes::Bytes;
use clap::Args;
use daemon::config::StoreFile;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use prepare::{Bucket, BucketError, BucketUrl, ObjectInfo, ReadAt};
use std::{
    fmt, io,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::{NamedObject, S3Store, StoreError};
use tokio::{runtime::Handle, task::JoinHandle};

/// Bytes that are read at once.
const BLOCK_BYTES: u64 = 4 << 20;
/// Small objects that are copied or removed at once.
const AT_ONCE: usize = 8;
/// Tries of an operation whose failure may pass, beyond those of its requests: a body may end early. The pause doubles.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The store of texts and datasets whose path begins with `s3://`
#[derive(Clone, Debug, Args)]
pub struct StoreFlags {
    /// Where s3://BUCKET/… is: the store's https://host[:port], without a bucket.
    #[arg(long, value_name = "URL", requires = "access_key")]
    store: Option<String>,
    /// The name of the key that reads the texts, and writes the dataset.
    #[arg(long, value_name = "ID", requires = "store")]
    access_key: Option<String>,
    /// A file with the secret of that key [default: the variable METTLE_STORE_SECRET].
    #[arg(long, value_name = "FILE", requires = "store")]
    secret_file: Option<PathBuf>,
}

impl StoreFlags {
    /// The bucket of a URL. Sends nothing.
    pub fn open(&self, url: &BucketUrl) -> anyhow::Result<Arc<dyn Bucket>> {
        let (Some(endpoint), Some(access_key)) = (self.store.clone(), self.access_key.clone()) else {
            anyhow::bail!(
                "{url} is in a bucket: name its store with --store URL and --access-key ID (docs/store.md)"
            );
        };
        let secret_key_file = self.secret_file.clone();
        let file =
            StoreFile { endpoint, bucket: url.bucket.clone(), access_key, secret_key: None, secret_key_file };
        Ok(Arc::new(S3Bucket { store: Arc::new(file.open()?), runtime: Handle::current() }))
    }
}

/// A bucket whose calls block a thread that is not the runtime's.
struct S3Bucket {
    store: Arc<S3Store>,
    runtime: Handle,
}

impl fmt::Debug for S3Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&store::Store::describe(&*self.store))
    }
}

impl S3Bucket {
    /// Waits for some operations, a few at a time. The first error ends all.
    fn each<T: Send + 'static, F: Future<Output = Result<(), StoreError>> + Send + 'static>(
        &self,
        all: Vec<T>,
        operation: impl Fn(Arc<S3Store>, T) -> F + Send + 'static,
    ) -> Result<(), BucketError> {
        let store = self.store.clone();
        wait(&self.runtime, async move {
            let operations = all.into_iter().map(move |one| operation(store.clone(), one));
            stream::iter(operations).buffer_unordered(AT_ONCE).try_collect::<()>().await
        })
    }
}

/// Tries an operation again while its failure may pass.
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

/// Runs a future on the runtime, and blocks until it ends.
fn wait<T: Send + 'static>(
    runtime: &Handle,
    future: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, BucketError> {
    Ok(runtime.block_on(runtime.spawn(future))??)
}

impl Bucket for S3Bucket {
    fn list(&self, prefix: &str, most: usize) -> Result<Vec<ObjectInfo>, BucketError> {
        let (store, prefix) = (self.store.clone(), prefix.to_owned());
        let found = wait(&self.runtime, async move { patiently(|| store.list_named(&prefix, most)).await })?;
        let info = |NamedObject { name, bytes, version }| ObjectInfo { name, bytes, version: Some(version) };
        Ok(found.into_iter().map(info).collect())
    }

    fn open(&self, object: &ObjectInfo) -> Arc<dyn ReadAt> {
        let ObjectInfo { name, bytes, version } = object.clone();
        Arc::new(S3Object {
            store: self.store.clone(),
            runtime: self.runtime.clone(),
            object: Arc::new(NamedObject { name, bytes, version: version.unwrap_or_default() }),
            blocks: Mutex::default(),
        })
    }

    fn download(&self, files: &[(String, PathBuf)]) -> Result<(), BucketError> {
        self.each(files.to_vec(), |store, (name, path)| async move {
            patiently(|| store.download_named(&name, &path)).await
        })
    }

    fn upload(&self, files: &[(PathBuf, String)]) -> Result<(), BucketError> {
        self.each(files.to_vec(), |store, (path, name)| async move {
            patiently(|| store.upload_named(&name, &path)).await.map(drop)
        })
    }

    fn delete(&self, names: &[String]) -> Result<(), BucketError> {
        self.each(names.to_vec(), |store, name| async move { patiently(|| store.delete_named(&name)).await })
    }
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
    /// The last first.
    read: [Option<(u64, Bytes)>; 2],
    next: Option<(u64, Fetch)>,
}

/// A block on its way. Ends when dropped.
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

    /// A block, of which the following one is then on its way.
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
        // Below the length of a block, which is in memory.
        let from = (start % BLOCK_BYTES) as usize;
        let found = block.get(from..).unwrap_or_default();
        let bytes = found.len().min(into.len());
        into[..bytes].copy_from_slice(&found[..bytes]);
        Ok(bytes)
    }
}
