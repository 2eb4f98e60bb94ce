//! Fetches the sequences of a remote dataset on demand, a few pieces of a shard each. Pieces are checked against the
//! manifest (PROT-4) and cached in a file of bounded size.
//!
//! A window's sequences are spread over the whole dataset (PROT-5). So the node fetches only the pieces of 16 KiB that
//! a sequence touches, never a whole shard. The first access to a shard fetches its tree, the hashes of its pieces,
//! 1/512 of its length. If no mirror has the tree, the node reads the shard once and computes it. A mirror that serves
//! wrong bytes is logged and not used again.

use crate::mirrors::Mirrors;
use dataset::{Manifest, PIECE_BYTES, PieceSource, PieceSourceError, ShardRange, ShardTree, TreeBuilder};
use futures::{StreamExt as _, TryStreamExt as _};
use lru::LruCache;
use protocol::{Digest, keys};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    num::NonZeroUsize,
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use store::{Fetch, FetchError, Limits, Sink};

/// Number of concurrent requests, to hide a store's latency.
const REQUESTS_AT_ONCE: usize = 16;
/// Maximum number of trees in memory. The tree of a 64 MiB shard takes 128 KiB.
const TREES_IN_MEMORY: usize = 256;
/// Number of requests to each mirror, with a pause that doubles, before a fetch fails.
const ROUNDS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Fetches pieces and caches them.
pub struct FetchedShards {
    fetch: Arc<dyn Fetch>,
    mirrors: Vec<String>,
    /// Mirrors that served wrong bytes.
    liars: Mutex<BTreeSet<String>>,
    /// Each shard's number, for the cache, and its length.
    shards: BTreeMap<Digest, (u32, u64)>,
    trees_directory: PathBuf,
    trees: Mutex<LruCache<Digest, Arc<ShardTree>>>,
    cache: Mutex<Cache>,
    runtime: tokio::runtime::Handle,
}

/// Error for bytes of a shard that no mirror served.
#[derive(Debug, thiserror::Error)]
#[error("none of {asked} mirrors gave {what} of shard {shard}{last}")]
struct NotToBeHad {
    what: String,
    shard: Digest,
    asked: usize,
    last: String,
}

impl FetchedShards {
    /// Opens the cache: at most `cache_bytes` of pieces in `directory`, and the trees of used shards. Must be called
    /// and used within a tokio runtime. Reading blocks, so it belongs on a separate thread.
    ///
    /// # Errors
    /// If the files of the cache cannot be created or read.
    pub fn open(
        fetch: Arc<dyn Fetch>,
        mirrors: &Mirrors,
        manifest: &Manifest,
        directory: &Path,
        cache_bytes: u64,
    ) -> io::Result<FetchedShards> {
        let all = manifest.training.iter().chain(&manifest.held_out);
        let shards = (0..)
            .zip(all)
            .map(|(number, shard)| (shard.digest, (number, manifest.shard_bytes(shard))))
            .collect();
        let trees_directory = directory.join("trees");
        std::fs::create_dir_all(&trees_directory)?;
        let trees_in_memory = NonZeroUsize::new(TREES_IN_MEMORY).expect("not zero");
        Ok(FetchedShards {
            fetch,
            mirrors: mirrors.bases().map(str::to_owned).collect(),
            liars: Mutex::default(),
            shards,
            trees_directory,
            trees: Mutex::new(LruCache::new(trees_in_memory)),
            cache: Mutex::new(Cache::open(directory, cache_bytes)?),
            runtime: tokio::runtime::Handle::current(),
        })
    }

    /// Reads the bytes of one range from the cache, or fetches them.
    async fn range(&self, wanted: &ShardRange) -> Result<Vec<u8>, PieceSourceError> {
        let &(number, bytes) = self.shards.get(&wanted.shard).ok_or("the shard is not in the manifest")?;
        let tree = self.tree(wanted.shard, bytes).await?;
        let pieces = ShardTree::pieces(&wanted.range);
        let start = pieces.start * PIECE_BYTES;
        let mut have = Vec::new();
        let mut missing = pieces.start;
        // Uses valid pieces from the cache; from the first other piece on, fetches the rest in one request.
        for piece in pieces.clone() {
            let length = tree.range(piece).end - tree.range(piece).start;
            let found = lock(&self.cache).get((number, piece as u32), length as usize);
            let Some(found) = found else { break };
            if !tree.holds(piece, &found) {
                // After a failed write, which was logged, slots may hold wrong bytes.
                if !lock(&self.cache).full {
                    let shard = wanted.shard;
                    tracing::warn!(%shard, piece, "a piece of the data is damaged on this disk, and is fetched again");
                }
                break;
            }
            have.extend(found);
            missing = piece + 1;
        }
        if missing < pieces.end {
            let range = missing * PIECE_BYTES..tree.range(pieces.end - 1).end;
            let fetched = self.fetched(wanted.shard, range, &tree).await?;
            for (piece, bytes) in (missing..).zip(fetched.chunks(PIECE_BYTES as usize)) {
                lock(&self.cache).put((number, piece as u32), bytes);
            }
            have.extend(fetched);
        }
        let offset = |at: u64| usize::try_from(at - start).expect("a few pieces fit into memory");
        Ok(have[offset(wanted.range.start)..offset(wanted.range.end)].to_vec())
    }

    /// Fetches whole pieces from the first mirror that serves the right ones.
    async fn fetched(
        &self,
        shard: Digest,
        range: Range<u64>,
        tree: &ShardTree,
    ) -> Result<Vec<u8>, PieceSourceError> {
        let limits = Limits::for_bytes(range.end - range.start);
        let what = format!("bytes {} to {}", range.start, range.end);
        self.ask_each(shard, &what, async |mirror| {
            let bytes = self.fetch.fetch_range(mirror, &keys::shard(&shard), range.clone(), &limits).await?;
            let first = range.start / PIECE_BYTES;
            for (piece, contents) in (first..).zip(bytes.chunks(PIECE_BYTES as usize)) {
                if !tree.holds(piece, contents) {
                    return Err(FetchError::WrongDigest { expected: shard, got: Digest::of(&bytes) });
                }
            }
            Ok(bytes.to_vec())
        })
        .await
    }

    /// Returns the shard's tree: from memory, disk or a mirror, or computed from the whole shard.
    async fn tree(&self, shard: Digest, bytes: u64) -> Result<Arc<ShardTree>, PieceSourceError> {
        if let Some(tree) = lock(&self.trees).get(&shard) {
            return Ok(tree.clone());
        }
        let path = self.trees_directory.join(shard.to_string());
        let kept = std::fs::read(&path).ok().and_then(|kept| {
            let tree = ShardTree::from_bytes(shard, bytes, &kept);
            if let Err(error) = &tree {
                tracing::warn!(path = %path.display(), %error, "a shard's tree is damaged on this disk, and is fetched again");
            }
            tree.ok()
        });
        let tree = match kept {
            Some(tree) => tree,
            None if ShardTree::length(bytes) == 0 => ShardTree::from_bytes(shard, bytes, &[])?,
            None => {
                let tree = self.fetched_tree(shard, bytes).await?;
                if let Err(error) = crate::durable::write_atomic(&path, &tree.to_bytes()) {
                    tracing::warn!(%shard, %error, "a shard's tree is not kept, and will be fetched again");
                }
                tree
            }
        };
        let tree = Arc::new(tree);
        lock(&self.trees).put(shard, tree.clone());
        Ok(tree)
    }

    async fn fetched_tree(&self, shard: Digest, bytes: u64) -> Result<ShardTree, PieceSourceError> {
        let length = ShardTree::length(bytes);
        let limits = Limits::for_bytes(length);
        for mirror in self.honest() {
            let fetched = self.fetch.fetch(&mirror, &keys::shard_tree(&shard), &limits).await;
            match fetched.map(|tree| ShardTree::from_bytes(shard, bytes, &tree)) {
                Ok(Ok(tree)) => return Ok(tree),
                Ok(Err(error)) => self.lied(&mirror, &error.to_string()),
                Err(error) => tracing::debug!(%shard, mirror, %error, "no tree"),
            }
        }
        // For example, published before there were trees.
        let limits = Limits::for_bytes(bytes);
        self.ask_each(shard, "all", async |mirror| {
            let mut building = Building(TreeBuilder::new(bytes));
            self.fetch.fetch_into(mirror, &keys::shard(&shard), &limits, &mut building).await?;
            let wrong = |_| FetchError::WrongDigest { expected: shard, got: Digest::default() };
            building.0.finish(shard).map_err(wrong)
        })
        .await
    }

    /// Requests each mirror in turn, and all of them again after a pause.
    async fn ask_each<T>(
        &self,
        shard: Digest,
        what: &str,
        ask: impl AsyncFn(&str) -> Result<T, FetchError>,
    ) -> Result<T, PieceSourceError> {
        let mut last = String::new();
        for round in 0..ROUNDS {
            if round > 0 && !self.honest().is_empty() {
                tokio::time::sleep(FIRST_PAUSE * 2u32.pow(round - 1)).await;
            }
            for mirror in self.honest() {
                let error = match ask(&mirror).await {
                    Ok(got) => return Ok(got),
                    Err(error) => error,
                };
                let text = match error {
                    FetchError::WrongDigest { .. } => {
                        format!("{what} of shard {shard} were not those in the manifest")
                    }
                    _ => error.to_string(),
                };
                if matches!(error, FetchError::WrongDigest { .. } | FetchError::OtherRange { .. }) {
                    self.lied(&mirror, &text);
                } else {
                    tracing::debug!(%shard, mirror, error = text, "a mirror failed");
                }
                last = format!("; {mirror}: {text}");
            }
        }
        Err(Box::new(NotToBeHad { what: what.to_owned(), shard, asked: self.mirrors.len(), last }))
    }

    fn honest(&self) -> Vec<String> {
        let liars = lock(&self.liars);
        self.mirrors.iter().filter(|mirror| !liars.contains(*mirror)).cloned().collect()
    }

    fn lied(&self, mirror: &str, lie: &str) {
        tracing::warn!(mirror, "this mirror gave wrong data and is not asked again: {lie}");
        lock(&self.liars).insert(mirror.to_owned());
    }
}

impl PieceSource for FetchedShards {
    fn read(&self, wanted: &[ShardRange]) -> Result<Vec<Vec<u8>>, PieceSourceError> {
        let ranges = futures::stream::iter(wanted).map(|wanted| self.range(wanted));
        self.runtime.block_on(ranges.buffered(REQUESTS_AT_ONCE).try_collect())
    }
}

/// Computes a tree from the received bytes without keeping them.
struct Building(TreeBuilder);

impl Sink for Building {
    fn begin(&mut self, length: u64) {
        self.0 = TreeBuilder::new(length);
    }

    fn piece(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }
}

/// A piece: its shard's number in the manifest, and its number in the shard.
type PieceKey = (u32, u32);

/// Pieces in one file of fixed slots, and the index of the slots in another file. Neither file is trusted: each piece
/// is checked whenever it is read, so a truncated or mixed-up file only costs a fetch. The least recently used slot is
/// reused first.
struct Cache {
    pieces: File,
    index: File,
    slots: LruCache<PieceKey, u32>,
    next: u32,
    /// True after a failed write, which is logged once.
    full: bool,
}

const INDEX_ENTRY: u64 = 8;

impl Cache {
    fn open(directory: &Path, bytes: u64) -> io::Result<Cache> {
        let slots = usize::try_from(bytes / PIECE_BYTES).unwrap_or(usize::MAX).min(u32::MAX as usize / 2);
        let slots = NonZeroUsize::new(slots).unwrap_or(NonZeroUsize::MIN);
        let open = |name| {
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(directory.join(name))
        };
        let (pieces, index) = (open("pieces")?, open("pieces.index")?);
        // Of a formerly larger cache, only the first slots are kept.
        let kept = (index.metadata()?.len() / INDEX_ENTRY).min(slots.get() as u64);
        index.set_len(kept * INDEX_ENTRY)?;
        if pieces.metadata()?.len() > slots.get() as u64 * PIECE_BYTES {
            pieces.set_len(slots.get() as u64 * PIECE_BYTES)?;
        }
        let mut cache = Cache { pieces, index, slots: LruCache::new(slots), next: kept as u32, full: false };
        let mut entries = vec![0; (kept * INDEX_ENTRY) as usize];
        cache.index.seek(SeekFrom::Start(0))?;
        cache.index.read_exact(&mut entries)?;
        for (slot, entry) in (0..).zip(entries.chunks_exact(INDEX_ENTRY as usize)) {
            let number = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().expect("4 bytes"));
            cache.slots.put((number(0), number(4)), slot);
        }
        Ok(cache)
    }

    fn get(&mut self, key: PieceKey, length: usize) -> Option<Vec<u8>> {
        let slot = *self.slots.get(&key)?;
        let mut piece = vec![0; length];
        self.pieces.seek(SeekFrom::Start(u64::from(slot) * PIECE_BYTES)).ok()?;
        self.pieces.read_exact(&mut piece).ok()?;
        Some(piece)
    }

    fn put(&mut self, key: PieceKey, piece: &[u8]) {
        let slot = match self.slots.get(&key).copied() {
            Some(slot) => slot,
            None if self.slots.len() < self.slots.cap().get()
                && (self.next as usize) < self.slots.cap().get() =>
            {
                self.next += 1;
                self.next - 1
            }
            // Every slot except those of the kept pieces has been used.
            None => match self.slots.pop_lru() {
                Some((_, slot)) => slot,
                None => return,
            },
        };
        let entry = [key.0.to_le_bytes(), key.1.to_le_bytes()].concat();
        let mut write = || {
            self.pieces.seek(SeekFrom::Start(u64::from(slot) * PIECE_BYTES))?;
            self.pieces.write_all(piece)?;
            self.index.seek(SeekFrom::Start(u64::from(slot) * INDEX_ENTRY))?;
            self.index.write_all(&entry)
        };
        if let Err(error) = write()
            && !std::mem::replace(&mut self.full, true)
        {
            tracing::warn!(%error, "pieces of the data cannot be kept, and will be fetched again when they are wanted");
        }
        // A slot that was not written is detected when it is read.
        self.slots.put(key, slot);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::publish_dataset;
    use bytes::Bytes;
    use dataset::Dataset;
    use prepare::{OutputDirectory, PrepareOptions, Source, TokenizerChoice};
    use store::{MemoryStore, Store, memory::MemoryFetcher};

    /// A dataset on disk, and two buckets that have it.
    struct Scene {
        root: tempfile::TempDir,
        whole: Dataset,
        fetch: Arc<MemoryFetcher>,
        buckets: [Arc<MemoryStore>; 2],
    }

    const NAMES: [&str; 2] = ["http://first/data", "http://second/data"];

    impl Scene {
        async fn new() -> Scene {
            let root = tempfile::tempdir().unwrap();
            let lines: String = (0..9000)
                .map(|at| format!("{{\"text\": \"{} lines and {} more\"}}\n", at * 7919, at))
                .collect();
            let text = root.path().join("text.jsonl");
            std::fs::write(&text, lines).unwrap();
            let options = PrepareOptions {
                tokenizer: TokenizerChoice::Train { vocab: 300 },
                seq_len: 100,
                shard_bytes: 100_000,
                held_out_sequences_min: 10,
                ..PrepareOptions::new(
                    Source::directory(text),
                    OutputDirectory::Directory(root.path().join("data")),
                )
            };
            let directory = prepare::prepare(options, &mut |_| {}).unwrap().directory;
            let whole = Dataset::open(&directory, None).unwrap();
            let buckets = [Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new())];
            let fetch = Arc::new(MemoryFetcher::new());
            for (name, bucket) in NAMES.iter().zip(&buckets) {
                publish_dataset(&**bucket, &directory).await.unwrap();
                fetch.serve(*name, bucket.clone());
            }
            Scene { root, whole, fetch, buckets }
        }

        fn elsewhere(&self, cache_bytes: u64) -> (Dataset, Arc<FetchedShards>) {
            self.elsewhere_by(self.fetch.clone(), cache_bytes)
        }

        fn elsewhere_by(&self, fetch: Arc<dyn Fetch>, cache_bytes: u64) -> (Dataset, Arc<FetchedShards>) {
            let manifest = self.whole.manifest().clone();
            let mirrors = Mirrors::one(NAMES[0]).and(Mirrors::one(NAMES[1]));
            let directory = self.root.path().join("cache");
            let shards =
                Arc::new(FetchedShards::open(fetch, &mirrors, &manifest, &directory, cache_bytes).unwrap());
            let tokenizer = std::fs::read(dataset::tokenizer_path(self.whole.directory())).unwrap();
            (Dataset::remote(directory, manifest, tokenizer, shards.clone()).unwrap(), shards)
        }

        fn downloaded(&self) -> u64 {
            self.fetch.traffic().down_bytes
        }

        /// Indices from the whole dataset, some of them twice.
        fn indices(&self) -> Vec<u64> {
            (0..60).map(|at| at * 7919 % self.whole.training_sequences()).chain([3, 3]).collect()
        }

        async fn read(&self, data: &Dataset, indices: Vec<u64>) -> Result<Vec<Vec<u32>>, String> {
            let data = data.clone();
            let read = move || data.sequences(&indices).map_err(|error| crate::error_chain(&error));
            tokio::task::spawn_blocking(read).await.unwrap()
        }

        async fn check(&self, data: &Dataset) {
            assert_eq!(
                self.read(data, self.indices()).await.unwrap(),
                self.whole.sequences(&self.indices()).unwrap()
            );
        }

        /// Replaces all shards or all trees of a bucket by other bytes.
        async fn lie(&self, bucket: usize, prefix: &str) {
            for entry in self.buckets[bucket].list(prefix, 1000).await.unwrap().entries {
                let key = entry.key().unwrap();
                let mut bytes = self.buckets[bucket].get(&key, u64::MAX).await.unwrap().to_vec();
                bytes.iter_mut().step_by(100).for_each(|byte| *byte ^= 1);
                self.buckets[bucket].put(&key, Bytes::from(bytes)).await.unwrap();
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_dataset_elsewhere_reads_as_one_on_disk_and_what_was_read_is_kept() {
        let scene = Scene::new().await;
        let (data, _) = scene.elsewhere(1 << 20);
        let one = data.clone();
        let held_out =
            tokio::task::spawn_blocking(move || one.held_out_sequences_at(&[2])).await.unwrap().unwrap();
        assert_eq!(held_out, scene.whole.held_out_sequences_at(&[2]).unwrap());
        let before = scene.downloaded();
        assert!(before < 3 * PIECE_BYTES, "{before} bytes for one sequence");
        scene.check(&data).await;

        // Again, and by another process: no bytes are downloaded.
        let before = scene.downloaded();
        scene.check(&data).await;
        scene.check(&scene.elsewhere(1 << 20).0).await;
        assert_eq!(scene.downloaded(), before);

        let beyond = scene.read(&data, vec![0, scene.whole.training_sequences()]).await;
        assert!(beyond.unwrap_err().contains("was asked for"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_cache_has_a_bound_and_nothing_in_it_is_believed() {
        let scene = Scene::new().await;
        let (data, _) = scene.elsewhere(4 * PIECE_BYTES);
        scene.check(&data).await;
        let path = |name: &str| scene.root.path().join("cache").join(name);
        assert!(std::fs::metadata(path("pieces")).unwrap().len() <= 4 * PIECE_BYTES);
        assert_eq!(std::fs::metadata(path("pieces.index")).unwrap().len(), 4 * 8);

        for name in ["pieces", "pieces.index"] {
            let mut bytes = std::fs::read(path(name)).unwrap();
            bytes.iter_mut().step_by(11).for_each(|byte| *byte ^= 5);
            std::fs::write(path(name), &bytes[..bytes.len() - 3]).unwrap();
            scene.check(&scene.elsewhere(4 * PIECE_BYTES).0).await;
        }
        for entry in std::fs::read_dir(path("trees")).unwrap() {
            std::fs::write(entry.unwrap().path(), b"no tree").unwrap();
        }
        scene.check(&scene.elsewhere(2 * PIECE_BYTES).0).await;
        assert!(std::fs::metadata(path("pieces")).unwrap().len() <= 2 * PIECE_BYTES);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_mirror_that_lies_is_named_once_and_another_asked() {
        for prefix in ["shards", "trees"] {
            let scene = Scene::new().await;
            scene.lie(0, prefix).await;
            let (data, shards) = scene.elsewhere(1 << 20);
            scene.check(&data).await;
            assert_eq!(shards.honest(), [NAMES[1]], "{prefix}");
        }
        let scene = Scene::new().await;
        scene.lie(0, "shards").await;
        scene.lie(1, "shards").await;
        let (data, shards) = scene.elsewhere(1 << 20);
        let error = scene.read(&data, vec![0]).await.unwrap_err();
        assert!(error.contains(NAMES[1]) && error.contains("not those in the manifest"), "{error}");
        assert!(shards.honest().is_empty());
    }

    /// Serves a different range than requested under the first name; otherwise unchanged.
    struct OtherRanges {
        inner: Arc<MemoryFetcher>,
        asked: std::sync::atomic::AtomicUsize,
    }

    #[async_trait::async_trait]
    impl Fetch for OtherRanges {
        async fn fetch(
            &self,
            base_url: &str,
            key: &keys::ObjectKey,
            limits: &Limits,
        ) -> Result<Bytes, FetchError> {
            self.inner.fetch(base_url, key, limits).await
        }

        async fn fetch_range(
            &self,
            base_url: &str,
            key: &keys::ObjectKey,
            range: Range<u64>,
            limits: &Limits,
        ) -> Result<Bytes, FetchError> {
            if base_url == NAMES[0] {
                self.asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                let said = "bytes 0-1/2".into();
                return Err(FetchError::OtherRange { first: range.start, last: range.end - 1, said });
            }
            self.inner.fetch_range(base_url, key, range, limits).await
        }

        fn traffic(&self) -> store::TrafficTotals {
            self.inner.traffic()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_mirror_that_answers_with_another_range_is_not_asked_again() {
        let scene = Scene::new().await;
        let fetch = Arc::new(OtherRanges {
            inner: scene.fetch.clone(),
            asked: std::sync::atomic::AtomicUsize::new(0),
        });
        let (data, shards) = scene.elsewhere_by(fetch.clone(), 1 << 20);
        assert_eq!(scene.read(&data, vec![0]).await.unwrap(), scene.whole.sequences(&[0]).unwrap());
        scene.check(&data).await;
        assert_eq!(shards.honest(), [NAMES[1]]);
        assert_eq!(fetch.asked.load(std::sync::atomic::Ordering::SeqCst), 1);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_trees_a_shard_is_read_through_once() {
        let scene = Scene::new().await;
        for bucket in &scene.buckets {
            for entry in bucket.list("trees", 1000).await.unwrap().entries {
                bucket.delete(&entry.key().unwrap()).await.unwrap();
            }
        }
        scene.fetch.vanish(NAMES[0]);
        let (data, _) = scene.elsewhere(1 << 20);
        scene.check(&data).await;
        let before = scene.downloaded();
        scene.check(&scene.elsewhere(1 << 20).0).await;
        assert_eq!(scene.downloaded(), before);
    }
}
