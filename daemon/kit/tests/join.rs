//! Fetches of a checkpoint: from several mirrors of which some are slow, serve wrong bytes or lack pieces, with kills
//! in between, and with little memory.

use async_trait::async_trait;
use bytes::Bytes;
use codec::Encode as _;
use mettle_daemon::{
    Blocking, ModelState, Storage,
    checkpoint::{self, CheckpointError, CheckpointManifest},
    mirrors::Mirrors,
    pieces::{self, PiecesError},
};
use protocol::{
    Digest, RunId, RunParams, Window,
    contribution::{Schema, TensorSpec},
    keys,
    keys::ObjectKey,
    lineage,
    norms::RunningNorms,
    view::Checkpoint,
};
use s3_server::{BucketConfig, Faults, Rate, S3Server, ServerConfig};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use store::{Credentials, FaultyStore, S3Settings, S3Store};
use store::{
    Fetch, FetchError, HttpFetcher, Limits, MemoryStore, Store, StoreError, TrafficTotals,
    fetch::FetchPolicy, memory::MemoryFetcher,
};

const RUN: RunId = RunId(3);
const PIECES: usize = 12;
const VALUES: usize = (PIECES - 1) * lineage::PIECE_VALUES + 77;

fn schema() -> Schema {
    Schema::new(vec![TensorSpec { name: "w".into(), shape: vec![VALUES as u32] }]).unwrap()
}

/// A state of several pieces, all different.
fn state() -> ModelState {
    let row = |seed: u8| {
        let mut bytes = vec![0; 4 * VALUES];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
        // Any bits except those of a NaN, which is not equal to itself.
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|bytes| f32::from_bits(u32::from_le_bytes(*bytes) & !(1 << 30)))
            .collect()
    };
    let digest = Digest::of(b"manifest");
    let state = ModelState::genesis(RUN, &RunParams::default(), &digest, row(1));
    let mut norms = RunningNorms::default();
    (0..9).for_each(|window| norms.push(vec![0.1 * f64::from(window)]));
    ModelState { window: Window(1000), norms, buffer: Some(row(2).into()), ..state }
}

/// Buckets in memory, with counts of the requests to each.
struct Counted {
    buckets: MemoryFetcher,
    asked: Mutex<BTreeMap<(String, ObjectKey), usize>>,
    /// Number of fetches that are answered before the next one hangs, like that of a process about to be killed.
    left: AtomicUsize,
    in_flight: AtomicUsize,
    most_in_flight: AtomicUsize,
}

impl Counted {
    fn new() -> Counted {
        Counted {
            buckets: MemoryFetcher::new(),
            asked: Mutex::default(),
            left: AtomicUsize::new(usize::MAX),
            in_flight: AtomicUsize::new(0),
            most_in_flight: AtomicUsize::new(0),
        }
    }

    fn asked(&self) -> BTreeMap<(String, ObjectKey), usize> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

#[async_trait]
impl Fetch for Counted {
    async fn fetch(&self, base: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        *self.asked.lock().unwrap().entry((base.to_owned(), key.clone())).or_default() += 1;
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
            std::future::pending::<()>().await;
        }
        let now = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
        self.most_in_flight.fetch_max(now, Ordering::SeqCst);
        tokio::task::yield_now().await;
        let fetched = self.buckets.fetch(base, key, limits).await;
        self.in_flight.fetch_sub(1, Ordering::SeqCst);
        fetched
    }

    fn traffic(&self) -> TrafficTotals {
        self.buckets.traffic()
    }
}

/// Creates mirrors with these names, each with the whole checkpoint.
async fn mirrored(names: &[&str]) -> (Counted, Vec<Arc<MemoryStore>>, Checkpoint) {
    let counted = Counted::new();
    let (mut stores, mut published) = (Vec::new(), None);
    for name in names {
        let store = Arc::new(MemoryStore::new());
        published = Some(checkpoint::publish(Blocking::Pool, &*store, &mut state()).await.unwrap());
        counted.buckets.serve(*name, store.clone() as Arc<dyn Store>);
        stores.push(store);
    }
    (counted, stores, published.unwrap())
}

fn all(names: &[&str]) -> Mirrors {
    names.iter().fold(Mirrors::default(), |mirrors, name| mirrors.and(Mirrors::one(name)))
}

async fn join(
    directory: &Path,
    fetch: &dyn Fetch,
    mirrors: &Mirrors,
    checkpoint: &Checkpoint,
) -> Result<ModelState, CheckpointError> {
    let storage = Storage::on_disk(directory);
    checkpoint::fetch(&storage, fetch, mirrors, RUN, checkpoint, &schema(), true).await
}

fn pieces_of(state: &ModelState) -> Vec<Digest> {
    let buffer = state.buffer.as_deref().unwrap();
    [lineage::piece_digests(&state.theta), lineage::piece_digests(buffer)].concat()
}

#[tokio::test]
async fn a_checkpoint_costs_its_manifest_and_each_piece_once_and_all_mirrors_give() {
    let names = ["a", "b", "c"];
    let (fetch, _, checkpoint) = mirrored(&names).await;
    let directory = tempfile::tempdir().unwrap();
    let joined = join(directory.path(), &fetch, &all(&names), &checkpoint).await.unwrap();
    assert_eq!(joined, state());

    let asked = fetch.asked();
    let manifest = CheckpointManifest::of(&state()).unwrap().encode().len();
    assert_eq!(fetch.traffic().down_bytes, (manifest + 2 * 4 * VALUES) as u64);
    let mut keys: Vec<ObjectKey> =
        asked.iter().flat_map(|((_, key), times)| vec![key.clone(); *times]).collect();
    keys.sort();
    let mut expected: Vec<ObjectKey> = pieces_of(&state()).iter().map(keys::piece).collect();
    expected.push(keys::checkpoint(RUN, checkpoint.window, &checkpoint.state_root));
    expected.sort();
    assert_eq!(keys, expected);
    for name in names {
        assert!(asked.keys().any(|(base, _)| base == name), "{name} gave nothing");
    }
    assert!(fetch.most_in_flight.load(Ordering::SeqCst) <= pieces::AT_ONCE, "pieces wait for their turn");
}

/// Returns the number of valid pieces in the file of an unfinished join.
fn on_disk(directory: &Path) -> usize {
    let Some(Ok(file)) = std::fs::read_dir(directory).unwrap().next() else { return 0 };
    let bytes = std::fs::read(file.path()).unwrap();
    let piece = |row: usize, index: usize| {
        let start = 4 * row * VALUES + index * lineage::PIECE_BYTES;
        let end = (start + lineage::PIECE_BYTES).min(4 * (row + 1) * VALUES);
        bytes.get(start..end).map(Digest::of)
    };
    let places = (0..2).flat_map(|row| (0..PIECES).map(move |index| (row, index)));
    places
        .zip(pieces_of(&state()))
        .filter(|((row, index), digest)| piece(*row, *index) == Some(*digest))
        .count()
}

#[tokio::test]
async fn a_join_that_is_dropped_goes_on_with_what_is_on_disk() {
    let (fetch, _, checkpoint) = mirrored(&["a"]).await;
    let (directory, mirrors) = (tempfile::tempdir().unwrap(), all(&["a"]));
    let mut fetched = 0;
    for more in [1, 4, 7, 9] {
        // The manifest comes first, then this many pieces, then no more answers.
        fetch.left.store(1 + more, Ordering::SeqCst);
        fetched += more;
        let joining = join(directory.path(), &fetch, &mirrors, &checkpoint);
        let all_there = async {
            while on_disk(directory.path()) < fetched {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            done = joining => panic!("it cannot be done yet: {done:?}"),
            () = all_there => {}
        }
    }
    fetch.asked();
    fetch.left.store(usize::MAX, Ordering::SeqCst);
    assert_eq!(join(directory.path(), &fetch, &mirrors, &checkpoint).await.unwrap(), state());
    assert_eq!(fetch.asked().len(), 1 + 2 * PIECES - fetched, "the manifest, and what was not there yet");

    // Once the state is saved, the file is removed.
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    checkpoint::forget(directory.path());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// Variable with the instructions for the child of the next test.
const CHILD: &str = "METTLE_TEST_JOIN";

/// The network of a process that does not end: after this many answers it waits until it is killed.
struct Waiting {
    network: HttpFetcher,
    left: AtomicUsize,
}

#[async_trait]
impl Fetch for Waiting {
    async fn fetch(&self, base: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_err() {
            tokio::time::sleep(std::time::Duration::from_secs(600)).await;
            panic!("it was not killed");
        }
        self.network.fetch(base, key, limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.network.traffic()
    }
}

/// Joins, as the child of the next test.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "the child process of a_process_that_is_killed_fetches_no_piece_twice"]
async fn child_that_is_killed() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let (directory, base) = orders.split_once(' ').unwrap();
    // The manifest, and all pieces but two.
    let left = AtomicUsize::new(1 + 2 * PIECES - 2);
    let fetch = Waiting { network: HttpFetcher::new(FetchPolicy::localnet()).unwrap(), left };
    let mirrors = Mirrors::one(base);
    let manifest = CheckpointManifest::of(&state()).unwrap();
    let checkpoint =
        Checkpoint { window: Window(1000), state_root: manifest.state_root(), lineage: manifest.lineage };
    join(Path::new(directory), &fetch, &mirrors, &checkpoint).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_is_killed_fetches_no_piece_twice() {
    // Slow enough that the process is killed during its work.
    let slowly = Faults { dripped: Rate::Always, drip_bytes_per_second: 1 << 20, ..Faults::default() };
    let (server, mirrors, checkpoint) = served(&[("mirror", slowly)]).await;
    let directory = tempfile::tempdir().unwrap();
    let orders = format!("{} {}", directory.path().display(), server.base_url("mirror"));
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "child_that_is_killed"])
        .env(CHILD, orders)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while on_disk(directory.path()) < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    child.kill().unwrap();
    child.wait().unwrap();

    let there = on_disk(directory.path());
    assert!((3..2 * PIECES).contains(&there), "{there}");
    server.inject("mirror", Faults::default()).unwrap();
    let fetch = HttpFetcher::new(FetchPolicy::localnet()).unwrap();
    assert_eq!(join(directory.path(), &fetch, &mirrors, &checkpoint).await.unwrap(), state());
    let missing = (2 * PIECES - there) * lineage::PIECE_BYTES + 4096;
    assert!(fetch.traffic().down_bytes <= missing as u64, "{there} were there");
    server.shutdown().await;
}

#[tokio::test]
async fn what_the_disk_lost_is_fetched_again_and_an_older_checkpoint_is_forgotten() {
    let (fetch, _, checkpoint) = mirrored(&["a"]).await;
    let (directory, mirrors) = (tempfile::tempdir().unwrap(), all(&["a"]));
    std::fs::write(directory.path().join("joining-980-00"), b"old").unwrap();
    std::fs::write(directory.path().join("model.state"), b"ours").unwrap();
    join(directory.path(), &fetch, &mirrors, &checkpoint).await.unwrap();
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|file| file.unwrap().path()).collect();
    names.sort();
    assert_eq!(names.len(), 2, "{names:?}");

    let mut bytes = std::fs::read(&names[0]).unwrap();
    bytes[5 << 20] ^= 1;
    bytes.truncate(bytes.len() - 1);
    std::fs::write(&names[0], bytes).unwrap();
    fetch.asked();
    assert_eq!(join(directory.path(), &fetch, &mirrors, &checkpoint).await.unwrap(), state());
    assert_eq!(fetch.asked().len(), 1 + 2, "the manifest, the piece with the bit, and the last one");
}

#[tokio::test]
async fn what_one_mirror_lacks_another_gives_and_what_all_lack_is_named() {
    let names = ["a", "b"];
    let (fetch, stores, checkpoint) = mirrored(&names).await;
    let pieces = pieces_of(&state());
    for (index, digest) in pieces.iter().enumerate() {
        stores[index % 2].delete(&keys::piece(digest)).await.unwrap();
    }
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(join(directory.path(), &fetch, &all(&names), &checkpoint).await.unwrap(), state());
    checkpoint::forget(directory.path());

    stores[1].delete(&keys::piece(&pieces[4])).await.unwrap();
    let error = join(directory.path(), &fetch, &all(&names), &checkpoint).await.unwrap_err();
    let CheckpointError::Pieces(PiecesError::Fetch(nobody)) = &error else { panic!("{error:?}") };
    assert_eq!(
        (nobody.key.clone(), nobody.asked, nobody.failures.len()),
        (keys::piece(&pieces[4]).to_string(), 2, 2)
    );
    // The piece is available again: nothing else is fetched twice.
    let bytes: Vec<u8> = state().theta[4 * lineage::PIECE_VALUES..][..lineage::PIECE_VALUES]
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect();
    stores[0].put(&keys::piece(&pieces[4]), bytes.into()).await.unwrap();
    assert_eq!(join(directory.path(), &fetch, &all(&names), &checkpoint).await.unwrap(), state());
}

/// Uses files, like a large model; the state names two of them.
#[tokio::test]
async fn a_model_in_files_is_joined_saved_read_and_repaired_as_one_in_memory() {
    let (fetch, _, checkpoint) = mirrored(&["a"]).await;
    let (directory, mirrors) = (tempfile::tempdir().unwrap(), all(&["a"]));
    let storage = Storage::on_disk(directory.path()).mapped_from(0);
    let schema = schema();
    let joined =
        checkpoint::fetch(&storage, &fetch, &mirrors, RUN, &checkpoint, &schema, true).await.unwrap();
    assert!(joined.theta.is_mapped() && joined == state());
    let path = directory.path().join("model.state");
    joined.save(&path).unwrap();
    checkpoint::forget(directory.path());
    let mut names: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["model.state", "rows"]);
    drop(joined);

    let mut ours = ModelState::load(&path, RUN, VALUES, &storage).unwrap().unwrap();
    assert!(ours.theta.is_mapped() && ours == state());
    ours.theta.edit().unwrap()[3] += 1.0;
    ours.save(&path).unwrap();
    let manifest = checkpoint::manifest(&fetch, &mirrors, RUN, &checkpoint, &schema).await.unwrap();
    fetch.asked();
    assert_eq!(checkpoint::repair(Blocking::Pool, &fetch, &mirrors, &mut ours, &manifest).await.unwrap(), 1);
    assert_eq!(fetch.asked().len(), 1);
    assert!(ours.theta.is_mapped() && ours == state());
    assert_eq!(ours.state_root(), Some(checkpoint.state_root));
}

#[tokio::test]
async fn pieces_that_are_equal_are_fetched_once() {
    let fetch = Counted::new();
    let store = Arc::new(MemoryStore::new());
    let (theta, buffer) = (vec![0.5; VALUES].into(), Some(vec![0.0; VALUES].into()));
    let mut state = ModelState { theta, buffer, ..state() };
    let checkpoint = checkpoint::publish(Blocking::Pool, &*store, &mut state).await.unwrap();
    fetch.buckets.serve("a", store as Arc<dyn Store>);
    let (storage, mirrors) = (Storage::memory(), all(&["a"]));
    let joined =
        checkpoint::fetch(&storage, &fetch, &mirrors, RUN, &checkpoint, &schema(), true).await.unwrap();
    assert_eq!(joined, state);
    assert_eq!(fetch.asked().len(), 1 + 4, "a whole piece and the last one, of each row");
}

#[tokio::test]
async fn pieces_that_a_bucket_has_damaged_are_put_there_again_by_the_next_to_publish_them() {
    let (fetch, stores, checkpoint) = mirrored(&["a"]).await;
    let pieces = pieces_of(&state());
    let damages: [fn(&mut Vec<u8>); 3] =
        [|bytes| bytes[700] ^= 1, |bytes| bytes.truncate(99), |bytes| bytes.extend(b"more")];
    for (piece, damage) in pieces.iter().zip(damages) {
        let mut bytes = stores[0].get(&keys::piece(piece), u64::MAX).await.unwrap().to_vec();
        damage(&mut bytes);
        stores[0].put(&keys::piece(piece), bytes.into()).await.unwrap();
    }
    stores[0].delete(&keys::piece(&pieces[3])).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    assert!(join(directory.path(), &fetch, &all(&["a"]), &checkpoint).await.is_err());

    let before = stores[0].traffic().up_bytes;
    assert_eq!(checkpoint::publish(Blocking::Pool, &*stores[0], &mut state()).await.unwrap(), checkpoint);
    let manifest = CheckpointManifest::of(&state()).unwrap().encode().len();
    assert_eq!(stores[0].traffic().up_bytes - before, (4 * lineage::PIECE_BYTES + manifest) as u64);
    assert_eq!(join(directory.path(), &fetch, &all(&["a"]), &checkpoint).await.unwrap(), state());
}

#[tokio::test]
async fn pieces_that_a_bucket_does_not_give_are_put_there_again_and_the_manifest_after_them() {
    let cut_short = Faults { truncated: Rate::Always, ..Faults::default() };
    let bucket = FaultyStore::new(Arc::new(MemoryStore::new()), 0, cut_short);
    let checkpoint = checkpoint::publish(Blocking::Pool, &bucket, &mut state()).await.unwrap();
    let manifest = keys::checkpoint(RUN, checkpoint.window, &checkpoint.state_root);
    bucket.inner().delete(&manifest).await.unwrap();
    let piece = keys::piece(&pieces_of(&state())[0]);
    let cut = bucket.get(&piece, u64::MAX).await;
    assert!(matches!(cut, Err(StoreError::CutShort { .. })), "{cut:?}");

    let before = bucket.traffic().up_bytes;
    assert_eq!(checkpoint::publish(Blocking::Pool, &bucket, &mut state()).await.unwrap(), checkpoint);
    assert!(before + (8 * VALUES) as u64 <= bucket.traffic().up_bytes);
    bucket.inner().get(&manifest, 1 << 30).await.unwrap();

    // A bucket that accepts nothing reports it too.
    bucket.inject(Faults { unavailable: Rate::Always, ..Faults::default() });
    let refused = checkpoint::publish(Blocking::Pool, &bucket, &mut state()).await.unwrap_err();
    let CheckpointError::Put(StoreError::Unavailable { action, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(action, store::Action::Write);
}

#[tokio::test]
async fn only_pieces_that_differ_are_repaired() {
    let (fetch, _, checkpoint) = mirrored(&["a"]).await;
    let mirrors = all(&["a"]);
    let manifest = checkpoint::manifest(&fetch, &mirrors, RUN, &checkpoint, &schema()).await.unwrap();
    let mut ours = state();
    ours.theta.edit().unwrap()[3] += 1.0;
    ours.buffer.as_mut().unwrap().edit().unwrap()[VALUES - 1] = 0.0;
    ours.norms.push(vec![0.5]);
    fetch.asked();
    assert_eq!(checkpoint::repair(Blocking::Pool, &fetch, &mirrors, &mut ours, &manifest).await.unwrap(), 3);
    assert_eq!(ours, state());
    assert_eq!(fetch.asked().len(), 2);
}

#[tokio::test]
async fn a_manifest_with_other_running_norms_is_not_the_one_voted() {
    let (fetch, stores, checkpoint) = mirrored(&["liar", "honest"]).await;
    let mut other = state();
    other.norms.push(vec![7500.0]);
    let forged = CheckpointManifest::of(&other).unwrap().encode();
    let key = keys::checkpoint(RUN, checkpoint.window, &checkpoint.state_root);
    stores[0].put(&key, forged.into()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let refused = join(directory.path(), &fetch, &all(&["liar"]), &checkpoint).await;
    assert!(matches!(refused, Err(CheckpointError::NoManifest { .. })), "{refused:?}");
    let joined = join(directory.path(), &fetch, &all(&["liar", "honest"]), &checkpoint).await.unwrap();
    assert_eq!(joined.norms, state().norms);
}

/// Starts a server with the checkpoint in each of these buckets, with these faults.
async fn served(faults: &[(&str, Faults)]) -> (S3Server, Mirrors, Checkpoint) {
    let buckets = faults.iter().map(|(name, _)| BucketConfig::new(*name, *name, "secret")).collect();
    let server = S3Server::start(ServerConfig::temporary(buckets)).await.unwrap();
    let (mut mirrors, mut published) = (Mirrors::default(), None);
    for (name, faults) in faults {
        let credentials = Credentials { access_key: (*name).into(), secret_key: "secret".into() };
        let store = S3Store::open(&S3Settings::new(server.endpoint(), *name, credentials)).unwrap();
        published = Some(checkpoint::publish(Blocking::Pool, &store, &mut state()).await.unwrap());
        server.inject(name, faults.clone()).unwrap();
        mirrors = mirrors.and(Mirrors::one(&server.base_url(name)));
    }
    (server, mirrors, published.unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lying_and_a_crawling_mirror_lose_their_share_and_cost_nothing_but_their_own_bytes() {
    let pieces = "pieces/".to_owned();
    let lies = Faults { prefix: pieces.clone(), flipped: Rate::Always, ..Faults::default() };
    let crawls = Faults {
        prefix: pieces,
        dripped: Rate::Always,
        drip_bytes_per_second: 70 << 10,
        ..Faults::default()
    };
    let (server, mirrors, checkpoint) =
        served(&[("liar", lies), ("crawler", crawls), ("honest", Faults::default())]).await;
    let fetch = HttpFetcher::new(FetchPolicy::localnet()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    assert_eq!(join(directory.path(), &fetch, &mirrors, &checkpoint).await.unwrap(), state());

    // At 70 KiB per second the slow mirror would take fifteen seconds for one piece. The fast one finished its piece.
    let sent = |bucket: &str| server.traffic(bucket).unwrap().sent_bytes;
    let whole = (2 * 4 * VALUES) as u64;
    assert!(whole <= sent("honest"), "it gave every piece that counts");
    let lost = (pieces::AT_ONCE * lineage::PIECE_BYTES) as u64;
    assert!(sent("liar") <= lost + lost / 8, "{}", sent("liar"));
    server.shutdown().await;
}
