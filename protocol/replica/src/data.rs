//! A run's dataset on its way between buckets: published under the digests in its manifest, fetched and checked against them (PROT-4).

use crate::mirrors::Mirrors;
use bytes::Bytes;
use dataset::{
    Dataset, MAX_MANIFEST_BYTES, Manifest, ManifestError, manifest_path, shard_path, tokenizer_path,
};
use protocol::{Digest, keys, view::RunView};
use std::{
    io,
    path::{Path, PathBuf},
};
use store::{Fetch, Limits, Store, StoreError, fetch::NobodyHadIt};

/// Larger than any tokenizer in use, in bytes.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("could not open the dataset in {}", directory.display())]
    Open { directory: PathBuf, source: dataset::OpenError },
    #[error("the run's manifest cannot be used")]
    Manifest(#[from] ManifestError),
    #[error("could not fetch the run's data")]
    Fetch(#[from] NobodyHadIt),
    #[error("our bucket did not take the data")]
    Put(#[from] StoreError),
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] crate::files::FileError),
    #[error("the task that opens the dataset died")]
    Died(#[from] tokio::task::JoinError),
}

/// Puts a prepared dataset into our bucket: shards and tokenizer first, the manifest last. Returns the manifest.
pub async fn publish_dataset(store: &dyn Store, directory: &Path) -> Result<Manifest, DataError> {
    let opened = open(directory, None).await?;
    let manifest = opened.manifest().clone();
    for shard in manifest.training.iter().chain(&manifest.held_out) {
        store.put_file(&keys::shard(&shard.digest), &shard_path(directory, &shard.digest)).await?;
    }
    store.put_file(&keys::tokenizer(&manifest.tokenizer), &tokenizer_path(directory)).await?;
    store.put(&keys::manifest(&manifest.digest()), Bytes::from(manifest.to_bytes())).await?;
    Ok(manifest)
}

/// The run's dataset in `directory`: opened if it is there, fetched from the run's origin if not. Shards that an interrupted fetch left
/// are kept; nothing is used before its digest is right.
pub async fn fetch_dataset(fetch: &dyn Fetch, run: &RunView, directory: &Path) -> Result<Dataset, DataError> {
    if manifest_path(directory).exists() {
        return open(directory, Some(run.manifest)).await;
    }
    let mirrors = Mirrors::one(&run.origin);
    let limits = Limits::for_bytes(MAX_MANIFEST_BYTES);
    let bytes = mirrors.get(fetch, &keys::manifest(&run.manifest), &run.manifest, &limits).await?;
    let manifest = Manifest::from_bytes(&bytes)?;

    let key = keys::tokenizer(&manifest.tokenizer);
    let limits = Limits::for_bytes(TOKENIZER_BYTES_MAX);
    let tokenizer = mirrors.get(fetch, &key, &manifest.tokenizer, &limits).await?;
    crate::files::write_atomic(&tokenizer_path(directory), &tokenizer)?;
    for shard in manifest.training.iter().chain(&manifest.held_out) {
        let path = shard_path(directory, &shard.digest);
        if holds(&path, &shard.digest)? {
            continue;
        }
        let limits = Limits::for_bytes(manifest.shard_bytes(shard));
        let contents = mirrors.get(fetch, &keys::shard(&shard.digest), &shard.digest, &limits).await?;
        crate::files::write_atomic(&path, &contents)?;
    }
    // The manifest last: a directory with one is a whole dataset.
    crate::files::write_atomic(&manifest_path(directory), &bytes)?;
    open(directory, Some(run.manifest)).await
}

async fn open(directory: &Path, expected: Option<Digest>) -> Result<Dataset, DataError> {
    let directory = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        Dataset::open(&directory, expected).map_err(|source| DataError::Open { directory, source })
    });
    opened.await?
}

fn holds(path: &Path, digest: &Digest) -> Result<bool, DataError> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(Digest::of(&bytes) == *digest),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(DataError::Read { path: path.to_owned(), source }),
    }
}
