//! The required behaviour of every store: one suite that is run over all of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mettle_store::{Faults, FaultyStore, MemoryStore, S3Settings, S3Store, Store, StoreError};
use proptest::test_runner::{Config, TestRunner};
use protocol::keys::{self, ObjectKey};
use protocol::{Digest, RunId, Window};
use s3_server::{BucketConfig, S3Server, ServerConfig};

fn pattern(bytes: usize, seed: u8) -> Bytes {
    let mut out = vec![0; bytes];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
    out.into()
}

fn key(window: u32, name: &str) -> ObjectKey {
    keys::contribution(RunId(7), Window(window), &Digest::of(name.as_bytes()))
}

/// The suite. `what` names the store in the message of a failure.
async fn conforms(what: &str, store: &dyn Store) {
    // An object is missing before it is written.
    let first = key(1, "first");
    assert!(
        matches!(store.get(&first, 100).await, Err(StoreError::NotFound { .. })),
        "{what}: get of nothing"
    );
    store.delete(&first).await.unwrap_or_else(|error| panic!("{what}: delete of nothing: {error}"));
    let listing = store.list("", 10).await.expect("a list of nothing");
    assert!(listing.entries.is_empty() && listing.complete, "{what}: not empty");

    // An object is read back exactly, and only within the size limit.
    let body = pattern(100_000, 1);
    store.put(&first, body.clone()).await.unwrap_or_else(|error| panic!("{what}: put: {error:?}"));
    assert_eq!(store.get(&first, 100_000).await.expect("get"), body, "{what}");
    match store.get(&first, 99_999).await {
        Err(StoreError::TooLarge { bytes: 100_000, max_bytes: 99_999, .. }) => {}
        other => panic!("{what}: a bound was ignored: {other:?}"),
    }

    // Writing again replaces an object; the same bytes change nothing.
    for _ in 0..2 {
        store.put(&first, Bytes::from_static(b"second")).await.expect("put again");
        assert_eq!(store.get(&first, 6).await.expect("get"), "second", "{what}");
    }

    // An empty object is an object.
    let empty = key(1, "empty");
    store.put(&empty, Bytes::new()).await.expect("put of nothing");
    assert_eq!(store.get(&empty, 0).await.expect("get"), Bytes::new(), "{what}");

    // Large objects are sent in parts if needed, from memory and from a file alike.
    for (length, seed) in [(8 << 20, 2), (8 << 20 | 1, 3), (21 << 20 | 7, 4)] {
        let body = pattern(length, seed);
        let from_memory = key(2, &format!("memory {length}"));
        store
            .put(&from_memory, body.clone())
            .await
            .unwrap_or_else(|error| panic!("{what}: {length}: {error:?}"));
        assert!(
            store.get(&from_memory, length as u64).await.expect("get") == body,
            "{what}: {length} bytes differ"
        );

        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), &body).expect("written");
        let from_file = key(2, &format!("file {length}"));
        assert_eq!(store.put_file(&from_file, file.path()).await.expect("put_file"), length as u64, "{what}");
        assert!(
            store.get(&from_file, length as u64).await.expect("get") == body,
            "{what}: {length} bytes differ"
        );
    }
    let no_file = store.put_file(&first, std::path::Path::new("/nonexistent/file")).await;
    assert!(matches!(no_file, Err(StoreError::File { .. })), "{what}: {no_file:?}");

    // Listings are ordered, below whole parts of names, and limited.
    for window in [30, 300, 31] {
        for name in ["a", "b", "c"] {
            store.put(&key(window, name), Bytes::from(name)).await.expect("put");
        }
    }
    let below = store.list("runs/7/windows/00000030", 10).await.expect("list");
    let names: Vec<_> = below.entries.iter().map(|entry| entry.name.clone()).collect();
    let mut expected: Vec<_> = ["a", "b", "c"].iter().map(|name| key(30, name).to_string()).collect();
    expected.sort();
    assert_eq!(names, expected, "{what}");
    assert!(below.complete && below.entries.iter().all(|entry| entry.bytes == 1), "{what}");
    assert!(below.entries.iter().all(|entry| entry.key().is_some()), "{what}");
    assert!(store.list("runs/7/windows/0000003", 10).await.expect("list").entries.is_empty(), "{what}");
    assert!(store.list("no/such/place", 10).await.expect("list").entries.is_empty(), "{what}");
    let two = store.list("runs/7/windows/00000030/", 2).await.expect("list");
    let two_names: Vec<_> = two.entries.iter().map(|entry| entry.name.clone()).collect();
    assert_eq!((two_names, two.complete), (expected[..2].to_vec(), false), "{what}");
    let all = store.list("", 1000).await.expect("list");
    assert_eq!((all.entries.len(), all.complete), (17, true), "{what}");

    // A deletion is permanent, and can be repeated.
    for _ in 0..2 {
        store.delete(&first).await.expect("delete");
        assert!(matches!(store.get(&first, 100).await, Err(StoreError::NotFound { .. })), "{what}");
    }

    // Concurrent writes do not mix, and an object with several concurrent writers has the bytes of one.
    let writes = (0..24u8).map(|writer| async move {
        store.put(&key(4, &format!("own {writer}")), pattern(10_000, writer)).await.expect("put");
        store.put(&key(4, "shared"), pattern(50_000, writer)).await.expect("put");
    });
    futures::future::join_all(writes).await;
    for writer in 0..24u8 {
        let own = store.get(&key(4, &format!("own {writer}")), 10_000).await.expect("get");
        assert!(own == pattern(10_000, writer), "{what}: writer {writer}'s object is not its own");
    }
    let shared = store.get(&key(4, "shared"), 50_000).await.expect("get");
    assert!((0..24u8).any(|writer| shared == pattern(50_000, writer)), "{what}: two writes were mixed");

    // Transferred bytes are counted.
    let before = store.traffic();
    store.put(&first, pattern(1000, 1)).await.expect("put");
    store.get(&first, 1000).await.expect("get");
    let after = store.traffic();
    assert_eq!(after.up_bytes - before.up_bytes, 1000, "{what}");
    assert_eq!(after.down_bytes - before.down_bytes, 1000, "{what}");
}

/// Any sequence of operations has the same effect as on a map.
async fn behaves_like_a_map(what: &str, store: &dyn Store, operations: &[(u8, u8, u16)]) {
    let mut map: BTreeMap<String, Bytes> = BTreeMap::new();
    for &(operation, name, length) in operations {
        let key = key(u32::from(name % 2), &(name % 5).to_string());
        match operation % 4 {
            0 | 1 => {
                let body = pattern(usize::from(length), name);
                store.put(&key, body.clone()).await.expect("put");
                map.insert(key.to_string(), body);
            }
            2 => {
                store.delete(&key).await.expect("delete");
                map.remove(key.as_str());
            }
            _ => match (store.get(&key, 1 << 20).await, map.get(key.as_str())) {
                (Ok(got), Some(expected)) => assert_eq!(got, expected, "{what}"),
                (Err(StoreError::NotFound { .. }), None) => {}
                (got, expected) => panic!("{what}: {got:?}, and should be {expected:?}"),
            },
        }
    }
    let listed = store.list("", 1000).await.expect("list").entries;
    let listed: Vec<_> = listed.into_iter().map(|entry| (entry.name, entry.bytes)).collect();
    let expected: Vec<_> = map.iter().map(|(name, bytes)| (name.clone(), bytes.len() as u64)).collect();
    assert_eq!(listed, expected, "{what}");
    for name in map.keys() {
        store.delete(&name.parse().expect("a key")).await.expect("delete");
    }
}

fn check_like_a_map(what: &str, store: &dyn Store, runtime: &tokio::runtime::Runtime, cases: u32) {
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() });
    let operations = proptest::collection::vec(proptest::prelude::any::<(u8, u8, u16)>(), 0..24);
    runner
        .run(&operations, |operations| {
            runtime.block_on(behaves_like_a_map(what, store, &operations));
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{what}: {error}"));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

async fn server(data_dir: Option<std::path::PathBuf>) -> (S3Server, S3Store) {
    let bucket = BucketConfig::new("miner-0", "key-0", "secret-0");
    let credentials = bucket.credentials.clone();
    let config = ServerConfig { data_dir, ..ServerConfig::temporary(vec![bucket]) };
    let server = S3Server::start(config).await.expect("a server");
    let store = S3Store::open(&S3Settings::new(server.endpoint(), "miner-0", credentials)).expect("a store");
    (server, store)
}

#[test]
fn memory_conforms() {
    let (runtime, store) = (runtime(), MemoryStore::new());
    check_like_a_map("memory", &store, &runtime, 100);
    runtime.block_on(conforms("memory", &store));
}

#[test]
fn a_faulty_store_without_faults_conforms() {
    let runtime = runtime();
    let store = FaultyStore::new(Arc::new(MemoryStore::new()), 1, Faults::default());
    check_like_a_map("faulty", &store, &runtime, 20);
    runtime.block_on(conforms("faulty", &store));
}

#[test]
fn s3_over_a_server_in_memory_conforms() {
    let runtime = runtime();
    let (_server, store) = runtime.block_on(server(None));
    check_like_a_map("s3 in memory", &store, &runtime, 10);
    runtime.block_on(conforms("s3 in memory", &store));
}

/// Creates a file that delivers more than one part, then nothing until the writer is dropped.
fn stalling_file(
    directory: &std::path::Path,
) -> (std::path::PathBuf, std::thread::JoinHandle<std::fs::File>) {
    let path = directory.join("stalling");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo runs").success());
    let at = path.clone();
    let writer = std::thread::spawn(move || {
        let mut file = std::fs::OpenOptions::new().write(true).open(at).expect("it has a reader");
        // The reader may end after the first part.
        if let Err(error) = std::io::Write::write_all(&mut file, &pattern(9 << 20, 1)) {
            assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
        }
        file
    });
    (path, writer)
}

async fn until(what: &str, is_done: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_done() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[test]
fn an_upload_that_is_late_or_cancelled_leaves_no_part() {
    let runtime = runtime();
    runtime.block_on(async {
        for is_late in [true, false] {
            let directory = tempfile::tempdir().expect("a directory");
            let (server, store) = server(Some(directory.path().join("s3"))).await;
            let credentials = BucketConfig::new("miner-0", "key-0", "secret-0").credentials;
            let settings = S3Settings::new(server.endpoint(), "miner-0", credentials);
            let deadline = Duration::from_secs(if is_late { 2 } else { 600 });
            let store = if is_late {
                S3Store::open(&S3Settings { deadline, ..settings }).expect("a store")
            } else {
                store
            };
            let store = Arc::new(store);
            let parts = || {
                let incoming = std::fs::read_dir(directory.path().join("s3/incoming")).expect("there");
                incoming.count()
            };
            let (path, writer) = stalling_file(directory.path());
            let uploader = store.clone();
            let upload = tokio::spawn(async move { uploader.put_file(&key(1, "stalls"), &path).await });
            until("the first part arrives", || parts() == 1).await;
            if is_late {
                let error = upload.await.expect("it does not panic").expect_err("the source stalls");
                assert!(matches!(error, StoreError::Deadline { .. }), "{error:?}");
            } else {
                upload.abort();
                assert!(upload.await.expect_err("cancelled").is_cancelled());
            }
            until("the part is dropped", || parts() == 0).await;
            assert!(store.list("", 10).await.expect("list").entries.is_empty(), "nothing is visible");
            drop(writer.join().expect("the writer does not panic"));
            server.shutdown().await;
        }
    });
}

#[test]
fn s3_over_a_server_on_disk_conforms() {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = runtime();
    let (_server, store) = runtime.block_on(server(Some(directory.path().join("s3"))));
    check_like_a_map("s3 on disk", &store, &runtime, 5);
    runtime.block_on(conforms("s3 on disk", &store));
}
