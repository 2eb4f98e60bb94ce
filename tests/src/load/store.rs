//! A thousand readers of the localnet's S3 server, over real sockets.
//!
//! Most readers fetch the checkpoint and a contribution at full speed. The others take a kibibyte per second, or
//! nothing at all after their request. In the full form such readers then take every place of the server.

use super::{MIB, Report, allow_files, open_files, quantile, resident_bytes};
use anyhow::{Context as _, bail, ensure};
use protocol::{
    Digest, RunId, Window,
    keys::{self, ObjectKey},
};
use s3_server::{BucketConfig, CONNECTIONS_MAX, S3Server, STALL_MAX, ServerConfig};
use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use store::{S3Settings, S3Store, Store as _};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpSocket, TcpStream},
    sync::Barrier,
    task::JoinSet,
    time::timeout,
};

const BUCKET: &str = "load";
/// Number of bytes that a slow reader takes every half second.
const SLOW_BYTES: usize = 512;
/// Receive buffer of a reader that does not read: with the system's default, the whole object would fit into it.
const SMALL_BUFFER: u32 = 4096;
/// Timeout of a reader, far above any machine's need.
const HANGS: Duration = Duration::from_secs(300);
/// Maximum memory of a connection at the server: an object's piece being sent, one being read, and the request's own.
const CONNECTION_BYTES: u64 = 768 << 10;
/// Memory of the process for any number of connections: threads, and freed bytes that the allocator retains.
const PROCESS_BYTES: u64 = 32 << 20;
/// Maximum ratio of the slowest of a hundred readers to the median.
const UNFAIR: f64 = 4.0;

/// Numbers of readers of each kind.
pub struct Size {
    pub fast: usize,
    pub slow: usize,
    /// Readers that read nothing.
    pub silent: usize,
    pub checkpoint_bytes: usize,
    pub contributions: u32,
    pub contribution_bytes: usize,
    /// True if silent readers finally take all places of the server. This takes [`STALL_MAX`].
    pub exhausts: bool,
}

impl Size {
    pub const FULL: Size = Size {
        fast: 800,
        slow: 100,
        silent: 100,
        checkpoint_bytes: 8 << 20,
        contributions: 64,
        contribution_bytes: 256 << 10,
        exhausts: true,
    };
    pub const SHORT: Size = Size {
        fast: 40,
        slow: 10,
        silent: 20,
        checkpoint_bytes: 8 << 20,
        contributions: 8,
        contribution_bytes: 64 << 10,
        exhausts: false,
    };
}

/// An object of the server, and its contents' digest.
#[derive(Clone)]
struct Object {
    key: ObjectKey,
    digest: Digest,
    bytes: usize,
}

pub async fn run(size: &Size) -> anyhow::Result<Report> {
    let mut report = Report::new("store");
    allow_files(4 * (size.fast + size.slow + size.silent + CONNECTIONS_MAX) as u64)?;
    let bucket = BucketConfig::new(BUCKET, "key", "secret");
    let server = S3Server::start(ServerConfig::temporary(vec![bucket.clone()])).await?;
    let settings = S3Settings::new(server.endpoint(), BUCKET, bucket.credentials.clone());
    let store = S3Store::open(&settings)?;
    let checkpoint = put(&store, 0, size.checkpoint_bytes).await?;
    let mut contributions = Vec::new();
    for seed in 1..=size.contributions {
        contributions.push(put(&store, seed, size.contribution_bytes).await?);
    }
    let (address, before) = (server.address(), (resident_bytes()?, open_files()?));

    // Bad readers connect first, and stay.
    let mut stuck = Vec::new();
    for _ in 0..size.silent {
        stuck.push(ask(address, &checkpoint.key, true).await?);
    }
    let mut slow = JoinSet::new();
    for _ in 0..size.slow {
        let stream = ask(address, &checkpoint.key, true).await?;
        slow.spawn(read_slowly(stream));
    }

    let begin = Arc::new(Barrier::new(size.fast));
    let mut fast = JoinSet::new();
    for reader in 0..size.fast {
        let objects = [checkpoint.clone(), contributions[reader % contributions.len()].clone()];
        let begin = begin.clone();
        fast.spawn(async move {
            begin.wait().await;
            let began = Instant::now();
            read(address, &objects[0]).await?;
            let took = began.elapsed().as_secs_f64();
            read(address, &objects[1]).await?;
            anyhow::Ok(took)
        });
    }
    let (began, mut peak, mut times, mut failed) = (Instant::now(), 0, Vec::new(), Vec::new());
    while !fast.is_empty() {
        peak = peak.max(resident_bytes()?);
        match timeout(Duration::from_millis(20), fast.join_next()).await {
            Ok(Some(read)) => match read? {
                Ok(took) => times.push(took),
                Err(error) => failed.push(error),
            },
            Ok(None) => break,
            Err(_) => {}
        }
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_by(f64::total_cmp);
    let (median, slowest) = (quantile(&times, 0.5), quantile(&times, 0.99));
    let read_bytes = times.len() * (size.checkpoint_bytes + size.contribution_bytes);
    let readers = size.fast + size.slow + size.silent;
    let grown = peak.saturating_sub(before.0);
    report.figure("readers at once", readers as f64, "");
    report.figure("that read at once, slowly, not at all", size.fast as f64, "the first");
    report.figure("served to those that read at once", read_bytes as f64 / 1e6 / seconds, "MB/s");
    report.figure("99th percentile of their time, over the median", slowest / median, "");
    report.figure(
        "memory of server and readers, per connection",
        grown as f64 / 1024.0 / readers as f64,
        "KiB",
    );
    report.figure("memory of sockets in the kernel", kernel_bytes() / MIB, "MiB");
    report.promise(failed.is_empty(), || {
        let first = failed.first().map_or(String::new(), |error| format!("{error:#}"));
        format!("{} of {} readers were not served, the first as {first}", failed.len(), size.fast)
    });
    report.promise(slowest <= UNFAIR * median, || {
        format!("one reader of a hundred took {:.1} times as long as the median", slowest / median)
    });
    // The readers' own buffers are in the same process.
    let allowed = PROCESS_BYTES + readers as u64 * (CONNECTION_BYTES + READ_BYTES as u64);
    report.promise(grown <= allowed, || {
        format!("{readers} connections took {} MiB, more than {} MiB", grown >> 20, allowed >> 20)
    });

    drop(stuck);
    slow.shutdown().await;
    let mut left = settled(before.1).await?;
    if size.exhausts {
        let waited = exhaust(address, &checkpoint, &contributions[0], &mut report).await?;
        report.figure("until a full server serves again", waited.as_secs_f64(), "s");
        left = settled(before.1).await?;
    }
    report.promise(left <= before.1, || {
        format!("{left} files are open after all readers have left, and {} before", before.1)
    });
    server.shutdown().await;
    Ok(report)
}

/// Takes every place of the server by readers that read nothing. A later reader must get the object within twice the
/// server's timeout for such a reader.
async fn exhaust(
    address: SocketAddr,
    checkpoint: &Object,
    wanted: &Object,
    report: &mut Report,
) -> anyhow::Result<Duration> {
    let mut stuck = Vec::new();
    for _ in 0..CONNECTIONS_MAX {
        stuck.extend(ask(address, &checkpoint.key, true).await.ok());
    }
    let began = Instant::now();
    report.promise(read(address, wanted).await.is_err(), || {
        format!("a reader was served beside {CONNECTIONS_MAX} connections")
    });
    loop {
        match read(address, wanted).await {
            Ok(()) => return Ok(began.elapsed()),
            Err(error) if 2 * STALL_MAX < began.elapsed() => {
                report.promise(false, || format!("readers that read nothing keep all others out: {error:#}"));
                return Ok(began.elapsed());
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
}

async fn put(store: &S3Store, seed: u32, length: usize) -> anyhow::Result<Object> {
    let mut bytes = vec![0; length];
    blake3::Hasher::new().update(&seed.to_le_bytes()).finalize_xof().fill(&mut bytes);
    let digest = Digest::of(&bytes);
    let key = keys::contribution(RunId(0), Window(0), &digest);
    store.put(&key, bytes.into()).await?;
    Ok(Object { key, digest, bytes: length })
}

/// Connects and sends a request.
async fn ask(address: SocketAddr, key: &ObjectKey, is_small: bool) -> anyhow::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    if is_small {
        socket.set_recv_buffer_size(SMALL_BUFFER)?;
    }
    let mut stream = socket.connect(address).await?;
    let request = format!("GET /{BUCKET}/{key} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    Ok(stream)
}

/// Number of bytes that a reader takes at once.
const READ_BYTES: usize = 64 << 10;

/// Reads an object and compares its digest.
async fn read(address: SocketAddr, object: &Object) -> anyhow::Result<()> {
    let whole = async {
        let mut stream = ask(address, &object.key, false).await.context("asking")?;
        let mut buffer = vec![0; READ_BYTES];
        let mut head = Vec::new();
        let body_at = loop {
            let bytes = stream.read(&mut buffer).await.context("reading the answer's head")?;
            ensure!(bytes > 0, "the connection was closed without an answer");
            head.extend_from_slice(&buffer[..bytes]);
            if let Some(end) = head.windows(4).position(|ends| ends == b"\r\n\r\n") {
                break end + 4;
            }
        };
        if !head.starts_with(b"HTTP/1.1 200") {
            bail!("the answer is {}", String::from_utf8_lossy(&head[..head.len().min(60)]));
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head[body_at..]);
        let mut got = head.len() - body_at;
        loop {
            let bytes = stream.read(&mut buffer).await.context("reading the object")?;
            if bytes == 0 {
                break;
            }
            hasher.update(&buffer[..bytes]);
            got += bytes;
        }
        let is_right = Digest(*hasher.finalize().as_bytes()) == object.digest;
        ensure!(is_right, "{got} bytes came of {}, or others", object.bytes);
        Ok(())
    };
    timeout(HANGS, whole).await.context("the server does not answer")?
}

/// Takes a kibibyte per second until the server or the scenario ends it.
async fn read_slowly(mut stream: TcpStream) {
    let mut buffer = [0; SLOW_BYTES];
    while stream.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Returns the memory of all TCP sockets of the machine; 0 where the system does not report it.
fn kernel_bytes() -> f64 {
    let told = std::fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = told.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    let pages = tcp.rsplit_once("mem ").and_then(|(_, pages)| pages.trim().parse::<f64>().ok());
    pages.unwrap_or_default() * 4096.0
}

/// Waits until no more files are open than before, for at most the time in which a connection ends.
async fn settled(before: usize) -> anyhow::Result<usize> {
    let began = Instant::now();
    loop {
        let now = open_files()?;
        if now <= before || 2 * STALL_MAX < began.elapsed() {
            return Ok(now);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
