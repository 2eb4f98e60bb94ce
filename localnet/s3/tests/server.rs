//! The S3 server: access, restarts, and every fault.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use mettle_s3_server::{
    AdminConfig, BucketConfig, Faults, Rate, S3Server, ServerConfig, ServerError, UnknownBucket, admin,
};
use protocol::keys::{self, ObjectKey};
use protocol::{Digest, RunId, Window};
use reqwest::StatusCode;
use store::fetch::FetchPolicy;
use store::{
    BucketError, Credentials, Fetch, FetchError, HttpFetcher, Limits, S3Settings, S3Store, Sink, Store,
    StoreError, check_bucket, fetch_verified, fetch_verified_into,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

fn buckets() -> Vec<BucketConfig> {
    vec![BucketConfig::new("miner-0", "key-0", "secret-0"), BucketConfig::new("miner-1", "key-1", "secret-1")]
}

async fn in_memory() -> S3Server {
    S3Server::start(ServerConfig::temporary(buckets())).await.expect("a server")
}

/// Returns an address where no other test listens, so that no server answers after this one stops.
fn home(number: u8) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, if cfg!(target_os = "linux") { number } else { 1 }], 0))
}

fn on_disk(directory: &Path) -> ServerConfig {
    ServerConfig { data_dir: Some(directory.to_owned()), ..ServerConfig::temporary(buckets()) }
}

/// Settings with few and short retries, so that expected failures are quick.
fn settings(server: &S3Server, bucket: &str, access_key: &str, secret_key: &str) -> S3Settings {
    let credentials = Credentials { access_key: access_key.into(), secret_key: secret_key.into() };
    S3Settings { retries: 1, ..S3Settings::new(server.endpoint(), bucket, credentials) }
}

fn store(server: &S3Server) -> S3Store {
    S3Store::open(&settings(server, "miner-0", "key-0", "secret-0")).expect("a store")
}

fn fetcher() -> HttpFetcher {
    HttpFetcher::new(FetchPolicy::localnet()).expect("a fetcher")
}

fn object(text: &str) -> (ObjectKey, Digest, Bytes) {
    let bytes = Bytes::from(text.to_owned());
    let digest = Digest::of(&bytes);
    (keys::piece(&digest), digest, bytes)
}

fn large(seed: u8, bytes: usize) -> (ObjectKey, Digest, Bytes) {
    let mut body = vec![0; bytes];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut body);
    let digest = Digest::of(&body);
    (keys::piece(&digest), digest, body.into())
}

fn client() -> reqwest::Client {
    store::tls::install_provider();
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .build()
        .expect("a client")
}

// Access.

#[tokio::test]
async fn a_key_writes_to_its_own_bucket_and_to_no_other() {
    let server = in_memory().await;
    let (key, _, bytes) = object("mine");
    store(&server).put(&key, bytes.clone()).await.expect("own bucket");

    let cross = S3Store::open(&settings(&server, "miner-1", "key-0", "secret-0")).expect("settings");
    let refused = |result: Result<(), StoreError>| {
        assert!(matches!(&result, Err(StoreError::Denied { .. })), "{result:?}");
    };
    refused(cross.put(&key, bytes.clone()).await);
    refused(cross.put(&key, Bytes::from(vec![0; 9 << 20])).await);
    refused(cross.delete(&key).await);
    refused(cross.list("", 10).await.map(|_| ()));
    assert!(
        matches!(cross.get(&key, 100).await, Err(StoreError::NotFound { .. })),
        "reading is for everybody"
    );
    assert!(server.traffic("miner-1").expect("a bucket").refused >= 4);

    let wrong = S3Store::open(&settings(&server, "miner-0", "key-0", "secret-1")).expect("settings");
    refused(wrong.put(&key, bytes.clone()).await);
    refused(wrong.get(&key, 100).await.map(|_| ()));
    let unknown = S3Store::open(&settings(&server, "miner-0", "key-9", "secret-9")).expect("settings");
    refused(unknown.put(&key, bytes.clone()).await);
    let elsewhere = S3Store::open(&settings(&server, "miner-9", "key-0", "secret-0")).expect("settings");
    refused(elsewhere.put(&key, bytes).await);
}

#[tokio::test]
async fn a_bucket_is_added_while_the_server_runs() {
    let server = in_memory().await;
    let added = BucketConfig::new("miner-2", "key-2", "secret-2");
    let own = S3Store::open(&settings(&server, "miner-2", "key-2", "secret-2")).expect("a store");
    let (key, _, body) = object("early");
    own.put(&key, body).await.expect_err("there is no such bucket yet");
    server.add_bucket(&added).expect("a new bucket");
    check_bucket(&own, &fetcher(), &server.base_url("miner-2")).await.expect("it works");
    let (key, _, body) = object("kept");
    own.put(&key, body.clone()).await.expect("it works");
    server.add_bucket(&added).expect("the same again");
    assert_eq!(own.get(&key, 100).await.expect("it is there"), body);
    for (bucket, why) in [
        (BucketConfig::new("miner-2", "key-2", "another"), "two of that name"),
        (BucketConfig::new("miner-3", "key-0", "secret"), "another bucket has"),
        (BucketConfig::new("No_Bucket", "key-3", "secret"), "lower-case"),
    ] {
        let error = server.add_bucket(&bucket).expect_err(why).to_string();
        assert!(error.contains(why), "{error}");
    }
    check_bucket(&store(&server), &fetcher(), &server.base_url("miner-0"))
        .await
        .expect("the others still work");
}

#[tokio::test]
async fn a_client_without_a_key_reads_an_object_by_its_exact_name_and_does_nothing_else() {
    let server = in_memory().await;
    let (key, _, bytes) = object("public");
    store(&server).put(&key, bytes).await.expect("put");
    let (client, base) = (client(), server.base_url("miner-0"));
    let url = format!("{base}/{key}");

    let got = client.get(&url).send().await.expect("answered");
    assert_eq!(got.status(), StatusCode::OK);
    assert_eq!(got.content_length(), Some(6));
    assert_eq!(got.text().await.expect("text"), "public");
    let head = client.head(&url).send().await.expect("answered");
    assert!(head.status() == StatusCode::OK && head.headers()["content-length"] == "6");
    let missing = client.get(format!("{base}/nothing")).send().await.expect("answered");
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);

    let endpoint = server.endpoint();
    for (what, request) in [
        ("list", client.get(&base)),
        ("list v2", client.get(format!("{base}?list-type=2&prefix=pieces"))),
        ("list buckets", client.get(&endpoint)),
        ("put", client.put(&url).body("theirs")),
        ("delete", client.delete(&url)),
        ("make a bucket", client.put(format!("{endpoint}/miner-7"))),
        ("begin an upload", client.post(format!("{url}?uploads"))),
        ("delete many", client.post(format!("{base}?delete")).body("<Delete/>")),
        ("policy", client.get(format!("{base}?policy"))),
        ("copy", client.put(format!("{base}/copy")).header("x-amz-copy-source", format!("/miner-0/{key}"))),
        (
            "post a form",
            client.post(&base).header("content-type", "multipart/form-data; boundary=x").body("--x--"),
        ),
        ("other bucket", client.get(format!("{endpoint}/unknown-bucket/{key}"))),
    ] {
        let status = request.send().await.expect("answered").status();
        assert!(status.is_client_error() && status != StatusCode::NOT_FOUND, "{what}: {status}");
    }
    assert_eq!(store(&server).get(&key, 10).await.expect("still there"), "public");
}

#[tokio::test]
async fn ranges_and_conditions_on_reads_are_served() {
    let server = in_memory().await;
    let (key, _, bytes) = object("0123456789");
    store(&server).put(&key, bytes).await.expect("put");
    let (client, url) = (client(), format!("{}/{key}", server.base_url("miner-0")));
    for (range, status, expected, shown) in [
        ("bytes=2-4", 206, "234", "bytes 2-4/10"),
        ("bytes=7-", 206, "789", "bytes 7-9/10"),
        ("bytes=-2", 206, "89", "bytes 8-9/10"),
        ("bytes=8-100", 206, "89", "bytes 8-9/10"),
    ] {
        let got = client.get(&url).header("range", range).send().await.expect("answered");
        assert_eq!(got.status().as_u16(), status, "{range}");
        assert_eq!(got.headers()["content-range"], shown);
        assert_eq!(got.text().await.expect("text"), expected);
    }
    let beyond = client.get(&url).header("range", "bytes=10-").send().await.expect("answered");
    assert_eq!(beyond.status(), StatusCode::RANGE_NOT_SATISFIABLE);

    let etag = client.head(&url).send().await.expect("answered").headers()["etag"].clone();
    let same = client.get(&url).header("if-none-match", etag.clone()).send().await.expect("answered");
    assert_eq!(same.status(), StatusCode::NOT_MODIFIED);
    let other = client.get(&url).header("if-match", "\"other\"").send().await.expect("answered");
    assert_eq!(other.status(), StatusCode::PRECONDITION_FAILED);
    let right = client.get(&url).header("if-match", etag).send().await.expect("answered");
    assert_eq!(right.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_range_of_an_object_is_fetched_to_the_byte_and_nothing_beyond_it() {
    let server = in_memory().await;
    let (key, _, body) = large(4, 300_000);
    store(&server).put(&key, body.clone()).await.expect("put");
    let (fetcher, base) = (fetcher(), server.base_url("miner-0"));
    let fetch = async |range: std::ops::Range<u64>| {
        fetcher.fetch_range(&base, &key, range, &Limits::for_bytes(300_000)).await
    };
    let mut expected = 0;
    for (start, end) in [(0, 1), (16_384, 49_152), (299_999, 300_000), (0, 300_000), (7, 7)] {
        let got = fetch(start..end).await.expect("a range of it");
        assert!(got == body[start as usize..end as usize], "{start}..{end}");
        expected += end - start;
        assert_eq!(fetcher.traffic().down_bytes, expected, "no other byte comes down");
    }
    // Ranges beyond the end, in part or entirely.
    for (start, end) in [(299_999, 300_001), (300_000, 300_010)] {
        let error = fetch(start..end).await.expect_err("it has no such bytes");
        assert!(matches!(error, FetchError::OtherRange { first, .. } if first == start), "{error:?}");
    }
    let other = object("not there").0;
    let error = fetcher.fetch_range(&base, &other, 0..4, &Limits::for_bytes(4)).await;
    assert_eq!(error, Err(FetchError::Missing));
    for (faults, label) in [
        (Faults { truncated: Rate::Next(1), ..Faults::default() }, "CutShort"),
        (Faults { unavailable: Rate::Next(1), ..Faults::default() }, "Unavailable"),
    ] {
        server.inject("miner-0", faults).expect("a bucket");
        let error = fetch(10..200_000).await.expect_err(label);
        assert!(format!("{error:?}").starts_with(label), "{error:?}");
    }
}

#[tokio::test]
async fn lists_go_on_where_they_stopped() {
    let server = in_memory().await;
    let store = store(&server);
    let puts = (0..1101u32).map(|number| {
        let key = keys::contribution(RunId(0), Window(number % 3), &Digest::of(&number.to_le_bytes()));
        let store = &store;
        async move { store.put(&key, Bytes::from_static(b"x")).await }
    });
    use futures::StreamExt;
    let put: Vec<_> = futures::stream::iter(puts).buffer_unordered(16).collect().await;
    assert!(put.iter().all(Result::is_ok));
    let all = store.list("runs/0", 5000).await.expect("list");
    assert!(all.complete && all.entries.len() == 1101 && all.entries.is_sorted());
    assert_eq!(store.list("runs/0/windows/00000001", 5000).await.expect("list").entries.len(), 367);
}

// Restarts and space.

#[tokio::test]
async fn a_directory_survives_a_restart_and_names_survive_the_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    let server = S3Server::start(on_disk(directory.path())).await.expect("a server");
    let own = store(&server);
    let (key, _, bytes) = object("kept");
    own.put(&key, bytes).await.expect("put");
    let (big, digest, body) = large(1, 11 << 20);
    own.put(&big, body).await.expect("put");
    let (gone, _, bytes) = object("deleted");
    own.put(&gone, bytes).await.expect("put");
    own.delete(&gone).await.expect("deleted");
    let url = |server: &S3Server| format!("{}/{key}", server.base_url("miner-0"));
    let head =
        |url: String| async move { client().head(url).send().await.expect("answered").headers().clone() };
    let before = head(url(&server)).await;
    server.shutdown().await;

    let server = S3Server::start(on_disk(directory.path())).await.expect("a server again");
    let own = store(&server);
    assert_eq!(own.get(&key, 10).await.expect("kept"), "kept");
    assert_eq!(Digest::of(&own.get(&big, 20 << 20).await.expect("kept")), digest);
    assert!(own.get(&gone, 10).await.is_err());
    assert_eq!(own.list("", 10).await.expect("list").entries.len(), 2);
    let after = head(url(&server)).await;
    assert_eq!((&before["etag"], &before["last-modified"]), (&after["etag"], &after["last-modified"]));
}

#[tokio::test]
async fn an_object_that_was_being_received_when_the_server_died_is_gone() {
    let directory = tempfile::tempdir().expect("a directory");
    drop(S3Server::start(on_disk(directory.path())).await.expect("a server"));
    // State left by a killed server: half an object in the directory of incoming objects.
    std::fs::write(directory.path().join("incoming/.tmp123"), b"half").expect("written");
    std::fs::write(directory.path().join("buckets/miner-0/stray"), b"no object").expect("written");
    let server = restarted(directory.path()).await;
    assert!(store(&server).list("", 10).await.expect("list").entries.is_empty());
    assert_eq!(std::fs::read_dir(directory.path().join("incoming")).expect("there").count(), 0);
}

/// Restarts a server. A dropped server ends when its task does, which is soon.
async fn restarted(directory: &Path) -> S3Server {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(60) {
        match S3Server::start(on_disk(directory)).await {
            Ok(server) => return server,
            Err(ServerError::DirectoryInUse { .. }) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(other) => panic!("{other}"),
        }
    }
    panic!("the directory was never free");
}

#[tokio::test]
async fn a_foreign_directory_is_refused_untouched() {
    let start = |path: std::path::PathBuf| async move {
        match S3Server::start(on_disk(&path)).await {
            Err(error) => error,
            Ok(_) => panic!("started"),
        }
    };
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("thesis.tex"), b"years of work").expect("written");
    let error = start(directory.path().to_owned()).await;
    assert!(matches!(error, ServerError::ForeignDirectory { .. }), "{error}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("there").count(), 1);

    let other = tempfile::tempdir().expect("a directory");
    std::fs::write(other.path().join("mettle-store"), b"layout 9").expect("written");
    let error = start(other.path().to_owned()).await;
    assert!(error.to_string().contains("another version"), "{error}");

    let file = tempfile::NamedTempFile::new().expect("a file");
    let error = start(file.path().to_owned()).await;
    assert!(matches!(error, ServerError::ForeignDirectory { .. }), "{error}");

    let used = tempfile::tempdir().expect("a directory");
    let _server = S3Server::start(on_disk(used.path())).await.expect("a server");
    let error = start(used.path().to_owned()).await;
    assert!(matches!(error, ServerError::DirectoryInUse { .. }), "{error}");
}

#[tokio::test]
async fn a_taken_port_and_settings_that_cannot_work_have_errors_of_their_own() {
    let server = in_memory().await;
    let failed = |config: ServerConfig| async move {
        match S3Server::start(config).await {
            Err(error) => error,
            Ok(_) => panic!("started"),
        }
    };
    let taken = failed(ServerConfig { listen: server.address(), ..ServerConfig::temporary(buckets()) }).await;
    assert!(matches!(taken, ServerError::PortTaken { address } if address == server.address()), "{taken}");

    let nowhere = SocketAddr::from(([192, 0, 2, 1], 0));
    let error = failed(ServerConfig { listen: nowhere, ..ServerConfig::temporary(buckets()) }).await;
    assert!(matches!(error, ServerError::Listen { .. }), "{error}");

    let admin = Some(AdminConfig { listen: SocketAddr::from(([0, 0, 0, 0], 0)), token: "hush".into() });
    let error = failed(ServerConfig { admin, ..ServerConfig::temporary(buckets()) }).await;
    assert!(matches!(error, ServerError::AdminNotLocal { .. }), "{error}");

    for (bucket, why) in [
        (BucketConfig::new("No_Bucket", "a", "b"), "lower-case"),
        (BucketConfig::new("miner-2", "", "b"), "secret"),
        (BucketConfig::new("miner-2", "key-0", "b"), "another bucket has"),
        (BucketConfig::new("miner-0", "key-2", "b"), "two of that name"),
    ] {
        let error = failed(ServerConfig::temporary([buckets(), vec![bucket]].concat())).await;
        assert!(matches!(error, ServerError::BadBucket { .. }) && error.to_string().contains(why), "{error}");
    }
}

#[tokio::test]
async fn a_full_store_reports_it_and_never_keeps_half_an_object() {
    let directory = tempfile::tempdir().expect("a directory");
    for data_dir in [None, Some(directory.path().to_owned())] {
        let server = S3Server::start(ServerConfig { data_dir, ..ServerConfig::temporary(buckets()) })
            .await
            .expect("a server");
        let own = store(&server);
        let (first, digest, body) = large(1, 7 << 20);
        own.put(&first, body).await.expect("room");
        server.inject("miner-0", Faults { full: true, ..Faults::default() }).expect("a bucket");
        // In one request, and in parts.
        for bytes in [6 << 20, 9 << 20] {
            let (second, _, body) = large(2, bytes);
            let error = own.put(&second, body).await.expect_err("no room");
            assert!(matches!(error, StoreError::Full { .. }) && error.may_pass(), "{error:?}");
            assert!(own.get(&second, 1 << 20).await.expect_err("nothing of it").is_not_found());
        }
        assert_eq!(Digest::of(&own.get(&first, 10 << 20).await.expect("unharmed")), digest);
        assert_eq!(own.list("", 10).await.expect("list").entries.len(), 1);
        server.inject("miner-0", Faults::default()).expect("a bucket");
        own.delete(&first).await.expect("deleted");
        let (again, _, body) = large(4, 7 << 20);
        own.put(&again, body).await.expect("room again");
    }
    let incoming = std::fs::read_dir(directory.path().join("incoming")).expect("there").count();
    assert_eq!(incoming, 0, "nothing is left behind");
}

#[tokio::test]
async fn an_object_above_the_limit_is_refused() {
    let config = ServerConfig { object_bytes_max: 1000, ..ServerConfig::temporary(buckets()) };
    let server = S3Server::start(config).await.expect("a server");
    let (key, _, body) = large(1, 1001);
    assert!(store(&server).put(&key, body.clone()).await.is_err());
    store(&server).put(&key, body.slice(..1000)).await.expect("room");
}

#[tokio::test]
async fn a_shutdown_finishes_requests_in_progress() {
    let config = ServerConfig { listen: home(2), ..ServerConfig::temporary(buckets()) };
    let server = S3Server::start(config).await.expect("a server");
    let (key, digest, body) = large(1, 2 << 20);
    store(&server).put(&key, body).await.expect("put");
    server
        .inject(
            "miner-0",
            Faults { stalled: Rate::Next(1), stall: Duration::from_millis(300), ..Faults::default() },
        )
        .expect("a bucket");
    let (base, address) = (server.base_url("miner-0"), server.address());
    let fetching = tokio::spawn(async move {
        fetch_verified(&fetcher(), &base, &key, &digest, &Limits::for_bytes(2 << 20)).await
    });
    // Requests are in progress only once they have arrived.
    while server.traffic("miner-0").expect("a bucket").requests < 2 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.shutdown().await;
    assert!(fetching.await.expect("no panic").is_ok());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

// Faults.

#[tokio::test]
async fn a_short_series_of_503_is_retried_and_a_long_one_is_reported() {
    let server = in_memory().await;
    let own = S3Store::open(&S3Settings { retries: 4, ..settings(&server, "miner-0", "key-0", "secret-0") });
    let own = own.expect("a store");
    let (key, _, bytes) = object("weathered");
    server.inject("miner-0", Faults { unavailable: Rate::Next(3), ..Faults::default() }).expect("a bucket");
    own.put(&key, bytes.clone()).await.expect("the fourth try");
    assert_eq!(server.faults("miner-0"), Ok(Faults::default()));

    server.inject("miner-0", Faults { unavailable: Rate::Always, ..Faults::default() }).expect("a bucket");
    let error = store(&server).put(&key, bytes).await.expect_err("always");
    assert!(matches!(error, StoreError::Unavailable { .. }) && error.may_pass(), "{error:?}");
    let error = fetcher().fetch(&server.base_url("miner-0"), &key, &Limits::for_bytes(100)).await;
    assert_eq!(error, Err(FetchError::Unavailable { status: 503 }));
    let other = S3Store::open(&settings(&server, "miner-1", "key-1", "secret-1")).expect("a store");
    other.put(&key, Bytes::from_static(b"x")).await.expect("another bucket is not touched");
}

#[tokio::test]
async fn one_deadline_covers_all_tries() {
    let server = in_memory().await;
    let (key, _, bytes) = object("late");
    let hasty = S3Settings {
        retries: 1000,
        deadline: Duration::from_millis(400),
        ..settings(&server, "miner-0", "key-0", "secret-0")
    };
    server.inject("miner-0", Faults { unavailable: Rate::Always, ..Faults::default() }).expect("a bucket");
    let error = S3Store::open(&hasty).expect("a store").put(&key, bytes).await.expect_err("always");
    assert!(error.may_pass(), "{error:?}");
    assert!(matches!(error, StoreError::Deadline { .. } | StoreError::Unavailable { .. }), "{error:?}");
    let away = S3Settings { endpoint: "http://127.0.0.1:1".into(), ..hasty };
    let error = S3Store::open(&away).expect("a store").get(&key, 1).await.expect_err("nobody is there");
    assert!(error.may_pass(), "{error:?}");
}

#[tokio::test]
async fn every_fault_of_a_read_is_seen_for_what_it_is() {
    let server = in_memory().await;
    let (key, digest, body) = large(1, 300_000);
    store(&server).put(&key, body.clone()).await.expect("put");
    let base = server.base_url("miner-0");
    // The clock judges only deliberately slow answers: all others have as much time as a busy machine may need.
    let patient = Limits {
        first_byte: Duration::from_secs(60),
        min_bytes_per_second: 100_000,
        rate_window: Duration::from_secs(60),
        ..Limits::for_bytes(300_000)
    };
    let hasty = Limits { rate_window: Duration::from_millis(400), ..patient };
    let fetcher = fetcher();
    let fetch = |limits: Limits| {
        let (fetcher, base, key, digest) = (&fetcher, &base, &key, &digest);
        async move { fetch_verified(fetcher, base, key, digest, &limits).await }
    };
    let after_within = |faults: Faults, limits: Limits| {
        server.inject("miner-0", faults).expect("a bucket");
        fetch(limits)
    };
    let after = |faults: Faults| after_within(faults, patient);
    let none = Faults::default();

    let error = after(Faults { missing: Rate::Next(1), ..none.clone() }).await.expect_err("missing");
    assert_eq!(error, FetchError::Missing);
    let redirect_to = "http://127.0.0.1:1/".to_owned();
    let error = after(Faults { redirected: Rate::Next(1), redirect_to, ..none.clone() })
        .await
        .expect_err("redirected");
    assert_eq!(error, FetchError::Redirected { status: 307 });
    let error = after(Faults { truncated: Rate::Next(1), ..none.clone() }).await.expect_err("truncated");
    assert!(matches!(error, FetchError::CutShort { got: ..=150_000, expected: 300_000 }), "{error:?}");
    let error = after(Faults { flipped: Rate::Next(1), ..none.clone() }).await.expect_err("flipped");
    assert!(matches!(error, FetchError::WrongDigest { .. }), "{error:?}");
    let error = after_within(
        Faults { stalled: Rate::Next(1), stall: Duration::from_millis(60_000), ..none.clone() },
        hasty,
    )
    .await
    .expect_err("stalled");
    assert!(matches!(error, FetchError::Crawled { bytes: 0, .. }), "{error:?}");
    let slow = Faults { dripped: Rate::Next(1), drip_bytes_per_second: 1000, ..none.clone() };
    let error = after_within(slow, hasty).await.expect_err("dripped");
    assert!(matches!(error, FetchError::Crawled { .. }), "{error:?}");
    let error = after(Faults { unavailable: Rate::Next(1), ..none.clone() }).await.expect_err("unavailable");
    assert_eq!(error, FetchError::Unavailable { status: 503 });
    // Each fault was for one read only.
    assert_eq!(fetch(patient).await.expect("all faults are used up"), body);
}

/// Sink that checks each piece against the expected object.
struct Compared<'a> {
    whole: &'a [u8],
    at: usize,
    pieces: usize,
}

impl Sink for Compared<'_> {
    fn begin(&mut self, length: u64) {
        assert_eq!(length, self.whole.len() as u64);
        (self.at, self.pieces) = (0, 0);
    }

    fn piece(&mut self, bytes: &[u8]) {
        assert!(self.whole[self.at..].starts_with(bytes), "other bytes, or in another order");
        self.at += bytes.len();
        self.pieces += 1;
    }
}

#[tokio::test]
async fn a_large_object_comes_piece_by_piece_and_is_the_same() {
    let server = in_memory().await;
    let (key, digest, body) = large(3, (5 << 20) | 77);
    store(&server).put(&key, body.clone()).await.expect("put");
    let base = server.base_url("miner-0");
    let limits = Limits::for_bytes(body.len() as u64);
    let fetcher = fetcher();
    let mut compared = Compared { whole: &body, at: 0, pieces: 0 };
    fetch_verified_into(&fetcher, &base, &key, &digest, &limits, &mut compared).await.expect("there");
    assert_eq!(compared.at, body.len());
    assert!(compared.pieces > 1, "it came whole");
    assert_eq!(fetcher.traffic().down_bytes, body.len() as u64);

    // The reader detects the truncation, and the received bytes are the object's beginning.
    server.inject("miner-0", Faults { truncated: Rate::Next(1), ..Faults::default() }).expect("a bucket");
    let cut = fetch_verified_into(&fetcher, &base, &key, &digest, &limits, &mut compared).await;
    assert!(matches!(cut, Err(FetchError::CutShort { got, .. }) if got == compared.at as u64), "{cut:?}");
}

#[tokio::test]
async fn later_readers_find_nothing_and_a_lost_answer_has_done_its_work() {
    let server = in_memory().await;
    let own = store(&server);
    let (key, _, bytes) = object("for the first");
    own.put(&key, bytes).await.expect("put");
    let faults = Faults { missing: Rate::AfterFirst(2), ..Faults::default() };
    server.inject("miner-0", faults).expect("a bucket");
    let (fetcher, base, limits) = (fetcher(), server.base_url("miner-0"), Limits::for_bytes(100));
    for _ in 0..2 {
        fetcher.fetch(&base, &key, &limits).await.expect("one of the first two readers");
    }
    assert_eq!(fetcher.fetch(&base, &key, &limits).await, Err(FetchError::Missing));

    let (key, _, bytes) = object("unanswered");
    let faults = Faults { answer_lost: Rate::Always, ..Faults::default() };
    server.inject("miner-0", faults).expect("a bucket");
    let error = own.put(&key, bytes).await.expect_err("no answer");
    assert!(error.may_pass(), "{error:?}");
    server.inject("miner-0", Faults::default()).expect("a bucket");
    assert_eq!(own.get(&key, 100).await.expect("it was written"), "unanswered");
}

#[tokio::test]
async fn exactly_one_bit_is_flipped() {
    let server = in_memory().await;
    let (key, _, body) = large(1, 700_001);
    let own = store(&server);
    own.put(&key, body.clone()).await.expect("put");
    server.inject("miner-0", Faults { flipped: Rate::Next(1), ..Faults::default() }).expect("a bucket");
    let got = own.get(&key, 1 << 20).await.expect("get");
    let bits: u32 = got.iter().zip(&body).map(|(left, right)| (left ^ right).count_ones()).sum();
    assert_eq!((got.len(), bits), (body.len(), 1));
}

#[tokio::test]
async fn a_wrong_clock_shows_in_the_headers_and_changes_nothing_else() {
    let server = in_memory().await;
    let (key, digest, bytes) = object("when");
    let own = store(&server);
    own.put(&key, bytes).await.expect("put");
    let url = format!("{}/{key}", server.base_url("miner-0"));
    let shown = || async {
        let head = client().head(&url).send().await.expect("answered");
        head.headers()["last-modified"].to_str().expect("text").to_owned()
    };
    let right = shown().await;
    server
        .inject("miner-0", Faults { clock_skew_seconds: -86_400 * 365, ..Faults::default() })
        .expect("a bucket");
    let wrong = shown().await;
    assert_ne!(right, wrong);
    let limits = Limits::for_bytes(10);
    fetch_verified(&fetcher(), &server.base_url("miner-0"), &key, &digest, &limits)
        .await
        .expect("all the same");
    own.put(&key, Bytes::from_static(b"when")).await.expect("signatures have their own clock");
}

#[tokio::test]
async fn a_fault_may_concern_one_kind_of_object() {
    let server = in_memory().await;
    let own = store(&server);
    let contribution = keys::contribution(RunId(0), Window(1), &Digest([1; 32]));
    let (piece, _, bytes) = object("a piece");
    own.put(&contribution, bytes.clone()).await.expect("put");
    own.put(&piece, bytes).await.expect("put");
    let faults = Faults {
        prefix: "runs/0/windows/00000001/".into(),
        missing: Rate::Always,
        full: true,
        ..Faults::default()
    };
    server.inject("miner-0", faults).expect("a bucket");
    assert!(own.get(&contribution, 10).await.expect_err("ordered").is_not_found());
    let full = own.put(&contribution, Bytes::new()).await;
    assert!(matches!(full, Err(StoreError::Full { .. })), "{full:?}");
    assert_eq!(own.get(&piece, 10).await.expect("not concerned"), "a piece");
    own.put(&piece, Bytes::new()).await.expect("not concerned");
}

#[tokio::test]
async fn an_unknown_bucket_takes_no_faults() {
    let server = in_memory().await;
    assert_eq!(server.inject("nobody", Faults::default()), Err(UnknownBucket("nobody".into())));
    assert!(server.faults("nobody").is_err() && server.traffic("nobody").is_err());
}

#[tokio::test]
async fn another_process_injects_faults_through_the_admin_port() {
    let admin_config = AdminConfig { listen: home(3), token: "hush".into() };
    let config = ServerConfig { admin: Some(admin_config), ..ServerConfig::temporary(buckets()) };
    let server = S3Server::start(config).await.expect("a server");
    let address = server.admin_address().expect("an admin port");
    let faults = Faults {
        prefix: "a&b/ü".into(),
        unavailable: Rate::Next(7),
        stall: Duration::from_millis(5),
        full: true,
        ..Faults::default()
    };
    admin::inject(address, "hush", "miner-0", &faults).await.expect("ordered");
    assert_eq!(server.faults("miner-0"), Ok(faults.clone()));
    assert_eq!(server.faults("miner-1"), Ok(Faults::default()));

    let ask = |method: &str, path: &str, token: &str| {
        let method = method.parse().expect("a method");
        let request =
            client().request(method, format!("http://{address}{path}")).header(admin::TOKEN_HEADER, token);
        async move {
            let response = request.send().await.expect("answered");
            (response.status().as_u16(), response.text().await.expect("text"))
        }
    };
    assert_eq!(ask("GET", "/faults/miner-0", "hush").await, (200, "prefix=a%26b%2F%C3%BC&unavailable=7&answer_lost=0&missing=0&redirected=0&redirect_to=&truncated=0&flipped=0&stalled=0&stall_ms=5&dripped=0&drip_bytes_per_second=0&delay_max_ms=0&clock_skew_seconds=0&full=true\n".to_owned()));
    assert_eq!(ask("PUT", "/faults/miner-0?exploded=1", "hush").await.0, 400);
    assert_eq!(server.faults("miner-0"), Ok(faults));
    assert_eq!(ask("DELETE", "/faults/miner-0", "hush").await.0, 200);
    assert_eq!(server.faults("miner-0"), Ok(Faults::default()));
    assert_eq!(ask("POST", "/faults/miner-0", "hush").await.0, 405);
    assert_eq!(ask("PUT", "/faults/nobody?missing=1", "hush").await.0, 404);
    assert_eq!(ask("GET", "/elsewhere", "hush").await.0, 404);
    assert_eq!(ask("PUT", "/faults/miner-0?missing=1", "guess").await.0, 401);
    let refused = admin::inject(address, "guess", "miner-0", &Faults::default()).await;
    assert!(matches!(refused, Err(admin::InjectError::Refused { status: 401, .. })));
    assert_eq!(server.faults("miner-0"), Ok(Faults::default()));

    let (key, _, bytes) = object("counted");
    store(&server).put(&key, bytes).await.expect("put");
    assert_eq!(ask("GET", "/traffic", "hush").await, (200, "miner-0 7 0 1 0\nminer-1 0 0 0 0\n".to_owned()));
    let mut garbage = tokio::net::TcpStream::connect(address).await.expect("a connection");
    garbage.write_all(b"a b c\r\n\r\n").await.expect("sent");
    let mut answer = String::new();
    garbage.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    server.shutdown().await;
    let away = admin::inject(address, "hush", "miner-0", &Faults::default()).await;
    assert!(matches!(away, Err(admin::InjectError::Unreachable { .. })));
}

#[tokio::test]
async fn traffic_is_counted_per_bucket() {
    let server = in_memory().await;
    let (key, digest, body) = large(1, 12 << 20);
    let own = store(&server);
    own.put(&key, body).await.expect("put");
    let limits = Limits::for_bytes(12 << 20);
    let fetcher = fetcher();
    fetch_verified(&fetcher, &server.base_url("miner-0"), &key, &digest, &limits).await.expect("fetched");
    let bucket = server.traffic("miner-0").expect("a bucket");
    assert_eq!((bucket.received_bytes, bucket.sent_bytes), (12 << 20, 12 << 20));
    assert_eq!(server.traffic("miner-1").expect("a bucket").requests, 0);
    assert_eq!((own.traffic().up_bytes, fetcher.traffic().down_bytes), (12 << 20, 12 << 20));
}

// Integrity of written objects.

#[tokio::test]
async fn a_body_without_its_announced_checksum_is_not_kept() {
    use object_store::aws::AmazonS3Builder;
    use object_store::signer::{SignedUrlOptions, Signer};
    let server = in_memory().await;
    store::tls::install_provider();
    let raw = AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_bucket_name("miner-0")
        .with_region("us-east-1")
        .with_access_key_id("key-0")
        .with_secret_access_key("secret-0")
        .build()
        .expect("a client");
    let (name, value) = ("x-amz-checksum-sha256", "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=");
    let signed = SignedUrlOptions::new()
        .with_signed_header(name.parse().expect("a name"), value.parse().expect("a value"));
    let (path, minute) = (object_store::path::Path::from("a"), Duration::from_secs(60));
    let url = raw.signed_url_opts(reqwest::Method::PUT, &path, minute, &signed).await.expect("signed");
    let put = |body: &'static str| client().put(url.as_str()).header(name, value).body(body).send();
    assert_eq!(put("hellp").await.expect("answered").status(), StatusCode::BAD_REQUEST);
    let at = format!("{}/a", server.base_url("miner-0"));
    assert_eq!(client().get(&at).send().await.expect("answered").status(), StatusCode::NOT_FOUND);
    assert_eq!(put("hello").await.expect("answered").status(), StatusCode::OK);
    assert_eq!(client().get(&at).send().await.expect("answered").text().await.expect("text"), "hello");

    // A signed URL is valid only for its request, and only until it expires.
    let get = raw.signed_url(reqwest::Method::GET, &path, minute).await.expect("signed");
    let tampered = get.as_str().replace("/a?", "/b?");
    assert_eq!(client().get(tampered).send().await.expect("answered").status(), StatusCode::FORBIDDEN);
    let used_to_write = client().put(get.as_str()).body("x").send().await.expect("answered").status();
    assert_eq!(used_to_write, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn names_that_could_lead_out_of_the_directory_stay_inside() {
    let directory = tempfile::tempdir().expect("a directory");
    let inside = directory.path().join("inside");
    let server = S3Server::start(on_disk(&inside)).await.expect("a server");
    use object_store::aws::AmazonS3Builder;
    use object_store::signer::Signer;
    store::tls::install_provider();
    let raw = AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_bucket_name("miner-0")
        .with_region("us-east-1")
        .with_access_key_id("key-0")
        .with_secret_access_key("secret-0")
        .build()
        .expect("a client");
    for name in ["a~", "%2e%2e", "..", ".hidden", "a", "a/b", "ü/%/~"] {
        let path = object_store::path::Path::from_iter(name.split('/'));
        let url = raw.signed_url(reqwest::Method::PUT, &path, Duration::from_secs(60)).await.expect("signed");
        let status = client().put(url.as_str()).body(name).send().await.expect("answered").status();
        assert_eq!(status, StatusCode::OK, "{name}");
        let url = raw.signed_url(reqwest::Method::GET, &path, Duration::from_secs(60)).await.expect("signed");
        assert_eq!(
            client().get(url.as_str()).send().await.expect("answered").text().await.expect("text"),
            name
        );
    }
    assert_eq!(std::fs::read_dir(directory.path()).expect("there").count(), 1);
    assert_eq!(std::fs::read_dir(&inside).expect("there").count(), 3);
}

#[tokio::test]
async fn a_write_under_a_condition_is_refused() {
    let server = in_memory().await;
    use object_store::aws::AmazonS3Builder;
    use object_store::{ObjectStoreExt as _, PutMode};
    let raw = AmazonS3Builder::new()
        .with_endpoint(server.endpoint())
        .with_allow_http(true)
        .with_bucket_name("miner-0")
        .with_region("us-east-1")
        .with_access_key_id("key-0")
        .with_secret_access_key("secret-0")
        .build()
        .expect("a client");
    let path = object_store::path::Path::from("a");
    let put = object_store::ObjectStore::put_opts(&raw, &path, "x".into(), PutMode::Create.into()).await;
    assert!(put.is_err(), "{put:?}");
    assert!(matches!(raw.head(&path).await, Err(object_store::Error::NotFound { .. })));
}

// The check of a bucket.

#[tokio::test]
async fn the_check_of_a_bucket_finds_a_wrong_secret_and_a_url_that_others_cannot_read() {
    let server = in_memory().await;
    let (own, fetcher) = (store(&server), fetcher());
    let check = async |store: &S3Store, url: String| check_bucket(store, &fetcher, &url).await;
    check(&own, server.base_url("miner-0")).await.expect("it works");
    assert!(own.list("", 10).await.expect("list").entries.is_empty(), "the check leaves nothing");

    let error = check(&own, server.base_url("miner-1")).await.expect_err("another bucket");
    assert!(matches!(&error, BucketError::Read { source: FetchError::Missing, .. }), "{error:?}");
    assert!(!error.may_pass() && error.to_string().contains("miner-1"), "{error}");
    assert!(own.list("", 10).await.expect("list").entries.is_empty(), "the check leaves nothing");

    let wrong = S3Store::open(&settings(&server, "miner-0", "key-0", "wrong")).expect("settings");
    let error = check(&wrong, server.base_url("miner-0")).await.expect_err("a wrong secret");
    assert!(matches!(&error, BucketError::Write { source: StoreError::Denied { .. }, .. }), "{error:?}");
    assert!(!error.may_pass() && store::error_chain(&error).contains("access key"), "{error}");

    server.inject("miner-0", Faults { flipped: Rate::Next(1), ..Faults::default() }).expect("a bucket");
    let error = check(&own, server.base_url("miner-0")).await.expect_err("other bytes");
    assert!(matches!(error, BucketError::Read { source: FetchError::WrongDigest { .. }, .. }), "{error:?}");
}
