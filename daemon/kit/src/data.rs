//! Transfers a run's dataset between buckets: publishes it under the digests in its manifest, fetches it and checks it
//! against them (PROT-4). A dataset that fits into the space for data is fetched whole; the node then needs no mirror.
//! Of a larger one, pieces are fetched on demand.

use crate::{
    durable::{self, DiskStatus, FileError, retry_while_full, write_atomic},
    error_chain,
    mirrors::Mirrors,
    shards::FetchedShards,
};
use bytes::Bytes;
use dataset::{
    Dataset, MAX_MANIFEST_BYTES, Manifest, ManifestError, PieceSourceError, ShardRepair, ShardTree,
    TreeBuilder, manifest_path, shard_path, tokenizer_path,
};
use protocol::{
    Digest,
    keys::{self, ObjectKey},
    view::RunView,
};
use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use store::{
    Fetch, FetchError, FetchPlan, Limits, Store, StoreError,
    fetch::{AllMirrorsFailed, Failure},
};

/// Maximum size of a tokenizer, in bytes. Larger than any in use.
pub const TOKENIZER_BYTES_MAX: u64 = 64 << 20;

/// Number of requests to each mirror for a locally damaged shard, with a pause between rounds.
const ROUNDS: u32 = 6;
const PAUSE: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(5) };

#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("shard {} is not what the manifest says; remove the dataset and prepare it again", path.display())]
    NotItsShard { path: PathBuf, source: dataset::TreeMismatch },
    #[error("could not keep data in {}", directory.display())]
    Cache { directory: PathBuf, source: io::Error },
    #[error("could not open the dataset in {}", directory.display())]
    Open { directory: PathBuf, source: dataset::OpenError },
    #[error("the run's manifest cannot be used")]
    Manifest(#[from] ManifestError),
    #[error("could not fetch the run's data")]
    Fetch(#[from] AllMirrorsFailed),
    #[error("our bucket did not take the data")]
    Put(#[from] StoreError),
    #[error("could not read {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error(transparent)]
    File(#[from] FileError),
    #[error("the task that opens the dataset died")]
    Died(#[from] tokio::task::JoinError),
}

/// Uploads a prepared dataset to our bucket: shards and tokenizer first, the manifest last. Returns the manifest.
///
/// # Errors
/// If the dataset cannot be read, or the bucket does not accept an object.
pub async fn publish_dataset(store: &dyn Store, directory: &Path) -> Result<Manifest, DataError> {
    let opened = open(directory, None, None).await?;
    let manifest = opened.manifest().clone();
    for shard in manifest.training.iter().chain(&manifest.held_out) {
        let path = shard_path(directory, &shard.digest);
        let (length, digest) = (manifest.shard_bytes(shard), shard.digest);
        let tree = {
            let path = path.clone();
            tokio::task::spawn_blocking(move || tree(&path, digest, length)).await??
        };
        store.put_file(&keys::shard(&shard.digest), &path).await?;
        store.put(&keys::shard_tree(&shard.digest), Bytes::from(tree.to_bytes())).await?;
    }
    store.put_file(&keys::tokenizer(&manifest.tokenizer), &tokenizer_path(directory)).await?;
    store.put(&keys::manifest(&manifest.digest()), Bytes::from(manifest.to_bytes())).await?;
    Ok(manifest)
}

/// Computes the tree of a shard on disk.
fn tree(path: &Path, shard: Digest, bytes: u64) -> Result<ShardTree, DataError> {
    let read = || {
        let mut builder = TreeBuilder::new(bytes);
        let (mut file, mut buffer) = (File::open(path)?, vec![0; 1 << 20]);
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(builder),
                read => builder.push(&buffer[..read]),
            }
        }
    };
    let builder = read().map_err(|source| DataError::Read { path: path.to_owned(), source })?;
    builder.finish(shard).map_err(|source| DataError::NotItsShard { path: path.to_owned(), source })
}

/// Mirrors of a run's data, and the space for it.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSource {
    /// Base URLs of other buckets with the data, tried before the run's origin.
    pub mirrors: Vec<String>,
    /// Size of the local cache, in bytes. A larger dataset is not kept whole.
    pub cache_bytes: u64,
}

/// Opens the run's dataset in `directory`, fetches it if it is missing, or prepares to fetch it in pieces.
/// Shards that an interrupted fetch left are kept; nothing is used before its digest is checked. Damaged files are
/// logged and fetched again: immediately if a name or a length is wrong, on first use if a shard has wrong bytes.
///
/// # Errors
/// On a [full](durable::is_full) disk, unless it waits with `disk` until there is space. Files that were fetched
/// before are kept, and the next call continues with them.
pub async fn fetch_dataset(
    fetch: Arc<dyn Fetch>,
    run: &RunView,
    directory: &Path,
    data_source: &DataSource,
    disk: Option<&DiskStatus>,
) -> Result<Dataset, DataError> {
    let mirrors =
        data_source.mirrors.iter().fold(Mirrors::default(), |all, base| all.and(Mirrors::one(base)));
    let mirrors = mirrors.and(Mirrors::one(&run.origin));
    let again = || -> Option<Arc<dyn ShardRepair>> {
        let runtime = tokio::runtime::Handle::current();
        Some(Arc::new(Again { fetch: fetch.clone(), mirrors: mirrors.clone(), runtime }))
    };
    let cache = directory.join("pieces-of").join(run.manifest.to_string());
    let shards = directory.join("shards");
    for place in [directory, &shards, &cache, &cache.join("trees")] {
        durable::sweep(place);
    }
    if manifest_path(directory).exists() {
        match open(directory, Some(run.manifest), again()).await {
            Err(DataError::Open { source, .. }) if source.is_damage() => {
                let error = error_chain(&source);
                tracing::warn!(
                    error,
                    "the run's data is damaged on this disk; what is wrong is fetched again"
                );
            }
            opened => return opened,
        }
    }
    if let Some((manifest, tokenizer)) = kept(&cache, run.manifest) {
        return in_pieces(fetch, &mirrors, manifest, tokenizer, cache, data_source.cache_bytes);
    }
    let (fetch_whole, plan) = (&*fetch, mirrors.plan());
    let bytes = manifest_bytes(fetch_whole, &plan, run).await?;
    let manifest = Manifest::from_bytes(&bytes)?;

    let key = keys::tokenizer(&manifest.tokenizer);
    let limits = Limits::for_bytes(TOKENIZER_BYTES_MAX);
    let tokenizer = get(fetch_whole, &plan, &key, &manifest.tokenizer, &limits).await?;

    // Larger than the cache?
    let shards = manifest.training.iter().chain(&manifest.held_out);
    if data_source.cache_bytes < shards.map(|shard| manifest.shard_bytes(shard)).sum() {
        keep(&tokenizer_path(&cache), &tokenizer, disk).await?;
        keep(&manifest_path(&cache), &bytes, disk).await?;
        return in_pieces(fetch, &mirrors, manifest, tokenizer.to_vec(), cache, data_source.cache_bytes);
    }
    keep(&tokenizer_path(directory), &tokenizer, disk).await?;
    for shard in manifest.training.iter().chain(&manifest.held_out) {
        let path = shard_path(directory, &shard.digest);
        let (held, digest) = (path.clone(), shard.digest);
        if tokio::task::spawn_blocking(move || holds(&held, &digest)).await?? {
            continue;
        }
        let limits = Limits::for_bytes(manifest.shard_bytes(shard));
        let contents = get(fetch_whole, &plan, &keys::shard(&shard.digest), &shard.digest, &limits).await?;
        keep(&path, &contents, disk).await?;
    }
    // The manifest last: a directory with a manifest is a whole dataset.
    keep(&manifest_path(directory), &bytes, disk).await?;
    open(directory, Some(run.manifest), again()).await
}

/// Fetches the manifest of the run's dataset from its origin.
///
/// # Errors
/// If the origin does not serve it, or its bytes are not a manifest.
pub async fn fetch_manifest(fetch: &dyn Fetch, run: &RunView) -> Result<Manifest, DataError> {
    let plan = Mirrors::one(&run.origin).plan();
    Ok(Manifest::from_bytes(&manifest_bytes(fetch, &plan, run).await?)?)
}

async fn manifest_bytes(
    fetch: &dyn Fetch,
    plan: &FetchPlan,
    run: &RunView,
) -> Result<Bytes, AllMirrorsFailed> {
    let limits = Limits::for_bytes(MAX_MANIFEST_BYTES);
    get(fetch, plan, &keys::manifest(&run.manifest), &run.manifest, &limits).await
}

/// Writes a fetched file. With `disk`, waits until there is space for it.
async fn keep(path: &Path, bytes: &[u8], disk: Option<&DiskStatus>) -> Result<(), FileError> {
    match disk {
        Some(disk) => retry_while_full(disk, || async { write_atomic(path, bytes) }).await,
        None => write_atomic(path, bytes),
    }
}

/// Fetches an object of the dataset from the first mirror that serves the right bytes. Logs the mirrors that do not.
async fn get(
    fetch: &dyn Fetch,
    plan: &FetchPlan,
    key: &ObjectKey,
    digest: &Digest,
    limits: &Limits,
) -> Result<Bytes, AllMirrorsFailed> {
    let got = plan.fetch(fetch, key, digest, limits).await;
    let failures = match &got {
        Ok((_, failures)) => failures,
        Err(nobody) => &nobody.failures,
    };
    for Failure { mirror, error } in failures {
        match error {
            FetchError::WrongDigest { .. } => {
                tracing::warn!(mirror, object = %key, "this mirror gave wrong data: {error}");
            }
            error => tracing::warn!(mirror, object = %key, %error, "a mirror did not give data"),
        }
    }
    Ok(got?.0)
}

/// Fetches shards that are damaged on disk again.
struct Again {
    fetch: Arc<dyn Fetch>,
    mirrors: Mirrors,
    runtime: tokio::runtime::Handle,
}

impl ShardRepair for Again {
    fn repair(&self, shard: Digest, bytes: u64, path: &Path) -> Result<(), PieceSourceError> {
        tracing::warn!(path = %path.display(), "a shard is damaged on this disk, and is fetched again");
        let limits = Limits::for_bytes(bytes);
        let key = keys::shard(&shard);
        let plan = self.mirrors.plan().rounds(ROUNDS, PAUSE);
        let contents = self.runtime.block_on(get(&*self.fetch, &plan, &key, &shard, &limits))?;
        Ok(write_atomic(path, &contents)?)
    }
}

/// The manifest and tokenizer that an earlier process fetched for a dataset in pieces.
fn kept(cache: &Path, digest: Digest) -> Option<(Manifest, Vec<u8>)> {
    let whole = |path: PathBuf, digest: Digest| {
        let bytes = std::fs::read(&path).ok()?;
        let whole = Digest::of(&bytes) == digest;
        if !whole {
            tracing::warn!(path = %path.display(), "this is damaged on this disk, and is fetched again");
        }
        whole.then_some(bytes)
    };
    let manifest = Manifest::from_bytes(&whole(manifest_path(cache), digest)?).ok()?;
    let tokenizer = whole(tokenizer_path(cache), manifest.tokenizer)?;
    Some((manifest, tokenizer))
}

fn in_pieces(
    fetch: Arc<dyn Fetch>,
    mirrors: &Mirrors,
    manifest: Manifest,
    tokenizer: Vec<u8>,
    directory: PathBuf,
    cache_bytes: u64,
) -> Result<Dataset, DataError> {
    let shards = FetchedShards::open(fetch, mirrors, &manifest, &directory, cache_bytes)
        .map_err(|source| DataError::Cache { directory: directory.clone(), source })?;
    Dataset::remote(directory.clone(), manifest, tokenizer, Arc::new(shards))
        .map_err(|source| DataError::Open { directory, source })
}

async fn open(
    directory: &Path,
    expected: Option<Digest>,
    repair: Option<Arc<dyn ShardRepair>>,
) -> Result<Dataset, DataError> {
    let directory = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || {
        Dataset::open_with_repair(&directory, expected, repair)
            .map_err(|source| DataError::Open { directory, source })
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

#[cfg(test)]
mod tests {
    use super::*;
    use prepare::{OutputDirectory, PrepareOptions, Source, TokenizerChoice};
    use protocol::{RunId, RunParams};
    use std::{
        fs,
        sync::atomic::{AtomicU32, Ordering::SeqCst},
    };
    use store::{MemoryStore, memory::MemoryFetcher};
    use tokio::runtime::Handle;

    const ORIGIN: &str = "http://origin/data";

    /// A run whose data is in a bucket, and the directory of a node.
    struct Scene {
        root: tempfile::TempDir,
        prepared: Dataset,
        bucket: Arc<MemoryStore>,
        fetch: Arc<MemoryFetcher>,
        run: RunView,
    }

    impl Scene {
        async fn new() -> Scene {
            let root = tempfile::tempdir().unwrap();
            let text = root.path().join("text.jsonl");
            let line = |at: u32| format!("{{\"text\": \"{} lines and {at} more\"}}\n", at * 7919);
            fs::write(&text, (0..3000).map(line).collect::<String>()).unwrap();
            let options = PrepareOptions {
                tokenizer: TokenizerChoice::Train { vocab: 300 },
                seq_len: 100,
                shard_bytes: 30_000,
                held_out_sequences_min: 10,
                ..PrepareOptions::new(
                    Source::directory(text),
                    OutputDirectory::Directory(root.path().join("prepared")),
                )
            };
            let directory = prepare::prepare(options, &mut |_| {}).unwrap().directory;
            let prepared = Dataset::open(&directory, None).unwrap();
            let (bucket, fetch) = (Arc::new(MemoryStore::new()), Arc::new(MemoryFetcher::new()));
            publish_dataset(&*bucket, &directory).await.unwrap();
            fetch.serve(ORIGIN, bucket.clone());
            let run = RunView {
                id: RunId(0),
                owner: [0; 32],
                params: RunParams::default(),
                terms: Default::default(),
                spec: Digest::default(),
                manifest: prepared.digest(),
                theta0: Digest::default(),
                origin: ORIGIN.into(),
                treasury: 0,
                checkpoint: None,
                rewound: None,
                paused: false,
            };
            Scene { root, prepared, bucket, fetch, run }
        }

        fn data(&self) -> PathBuf {
            self.root.path().join("node/dataset")
        }

        async fn open(&self, cache_bytes: u64) -> Result<Dataset, DataError> {
            let data_source = DataSource { mirrors: vec![], cache_bytes };
            fetch_dataset(self.fetch.clone(), &self.run, &self.data(), &data_source, None).await
        }

        /// Reads all sequences on a separate thread, like a trainer.
        async fn read(&self, data: &Dataset) -> Result<Vec<Vec<u32>>, String> {
            let data = data.clone();
            let read = move || data.sequences(&(0..data.training_sequences()).collect::<Vec<_>>());
            tokio::task::spawn_blocking(read).await.unwrap().map_err(|error| error_chain(&error))
        }

        async fn check(&self, data: &Dataset) {
            assert!(self.read(data).await.unwrap() == self.read(&self.prepared).await.unwrap());
        }

        /// The files of the node's copy.
        fn files(&self) -> Vec<PathBuf> {
            let data = self.data();
            let shards = fs::read_dir(data.join("shards")).unwrap().map(|entry| entry.unwrap().path());
            [manifest_path(&data), tokenizer_path(&data)].into_iter().chain(shards).collect()
        }

        fn downloaded(&self) -> u64 {
            self.fetch.traffic().down_bytes
        }
    }

    fn flip(path: &Path) -> Vec<u8> {
        let whole = fs::read(path).unwrap();
        let mut damaged = whole.clone();
        let middle = damaged.len() / 2;
        damaged[middle] ^= 1;
        fs::write(path, damaged).unwrap();
        whole
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_damaged_of_a_whole_copy_is_fetched_again_and_nothing_else() {
        let scene = Scene::new().await;
        scene.check(&scene.open(1 << 30).await.unwrap()).await;
        let files = scene.files();
        assert!(4 < files.len(), "several shards: {files:?}");
        let before = scene.downloaded();
        scene.check(&scene.open(1 << 30).await.unwrap()).await;
        assert_eq!(scene.downloaded(), before, "a whole copy needs nobody");

        let small: u64 = files[..2].iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        for path in &files {
            let length = fs::metadata(path).unwrap().len();
            for damage in ["flipped", "cut", "gone"] {
                let whole = match damage {
                    "flipped" => flip(path),
                    _ => fs::read(path).unwrap(),
                };
                match damage {
                    "cut" => fs::write(path, &whole[..whole.len() - 1]).unwrap(),
                    "gone" => fs::remove_file(path).unwrap(),
                    _ => {}
                }
                let before = scene.downloaded();
                scene.check(&scene.open(1 << 30).await.unwrap()).await;
                // Held-out shards are not read here, so damage to them is not detected.
                if fs::read(path).unwrap() != whole {
                    assert!(damage == "flipped", "{} is still {damage}", path.display());
                    fs::write(path, &whole).unwrap();
                    continue;
                }
                let came = scene.downloaded() - before;
                assert!(came <= length + small, "{came} bytes for {length} {damage}: {}", path.display());
            }
        }
        scene.check(&scene.open(1 << 30).await.unwrap()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shard_damaged_between_opening_and_use_is_brought_once_however_many_read() {
        let scene = Scene::new().await;
        let data = scene.open(1 << 30).await.unwrap();
        let shard = data.manifest().training[0].clone();
        let path = shard_path(&scene.data(), &shard.digest);
        flip(&path);
        let before = scene.downloaded();
        let reading = std::array::from_fn::<_, 4, _>(|_| scene.read(&data));
        for read in futures::future::join_all(reading).await {
            assert!(read.unwrap() == scene.read(&scene.prepared).await.unwrap());
        }
        assert_eq!(scene.downloaded() - before, data.manifest().shard_bytes(&shard));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_damaged_here_and_nowhere_to_be_had_is_refused_by_name_until_somebody_has_it() {
        let scene = Scene::new().await;
        let shard = scene.open(1 << 30).await.unwrap().manifest().training[0].digest;
        let path = shard_path(&scene.data(), &shard);
        flip(&path);
        scene.fetch.vanish(ORIGIN);
        let data = scene.open(1 << 30).await.unwrap();
        let error = scene.read(&data).await.unwrap_err();
        assert!(error.contains(path.to_str().unwrap()) && error.contains(ORIGIN), "{error}");

        // A mirror whose own copy is damaged is not trusted either.
        let lie = bytes::Bytes::from(fs::read(&path).unwrap());
        let truth = scene.bucket.get(&keys::shard(&shard), u64::MAX).await.unwrap();
        scene.bucket.put(&keys::shard(&shard), lie).await.unwrap();
        scene.fetch.serve(ORIGIN, scene.bucket.clone());
        let error = scene.read(&data).await.unwrap_err();
        assert!(error.contains("digest"), "{error}");
        scene.bucket.put(&keys::shard(&shard), truth).await.unwrap();
        scene.check(&data).await;
        scene.check(&scene.open(1 << 30).await.unwrap()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_shard_that_cannot_be_had_for_a_moment_is_asked_for_again() {
        let scene = Scene::new().await;
        let data = scene.open(1 << 30).await.unwrap();
        let shard = data.manifest().training[0].digest;
        flip(&shard_path(&scene.data(), &shard));
        let fetch = Arc::new(Away { inner: scene.fetch.clone(), rounds: ROUNDS.into(), asked: 0.into() });
        let again = Again { fetch: fetch.clone(), mirrors: Mirrors::one(ORIGIN), runtime: Handle::current() };
        let directory = scene.data();
        let opened = open(&directory, Some(scene.run.manifest), Some(Arc::new(again))).await.unwrap();
        assert!(scene.read(&opened).await.is_err());
        assert_eq!(fetch.asked.swap(0, SeqCst), ROUNDS, "all rounds, and no more");
        fetch.rounds.store(ROUNDS - 1, SeqCst);
        scene.check(&opened).await;
        assert_eq!(fetch.asked.load(SeqCst), ROUNDS);
    }

    /// A fetcher that does not answer the first requests.
    struct Away {
        inner: Arc<MemoryFetcher>,
        rounds: AtomicU32,
        asked: AtomicU32,
    }

    #[async_trait::async_trait]
    impl Fetch for Away {
        async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
            if self.asked.fetch_add(1, SeqCst) < self.rounds.load(SeqCst) {
                return Err(FetchError::Unavailable { status: 503 });
            }
            self.inner.fetch(base_url, key, limits).await
        }

        fn traffic(&self) -> store::TrafficTotals {
            self.inner.traffic()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_damaged_of_data_that_is_kept_in_pieces_is_fetched_again() {
        let scene = Scene::new().await;
        scene.check(&scene.open(50_000).await.unwrap()).await;
        let cache = scene.data().join("pieces-of").join(scene.run.manifest.to_string());
        let tree = fs::read_dir(cache.join("trees")).unwrap().next().unwrap().unwrap().path();
        for path in [manifest_path(&cache), tokenizer_path(&cache), tree, cache.join("pieces")] {
            let whole = flip(&path);
            scene.check(&scene.open(50_000).await.unwrap()).await;
            // Each reading changes which pieces are kept; the other files are unchanged.
            assert!(path.ends_with("pieces") || fs::read(&path).unwrap() == whole, "{}", path.display());
        }
    }
}
