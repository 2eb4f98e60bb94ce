//! An HTTP server in front of an adversary's bucket, with faults: as much HTTP as a fetcher needs.

use crate::adversary::FaultyProxy;
use bytes::Bytes;
use protocol::keys::ObjectKey;
use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::Store;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
};

/// Readers at the same time; others wait.
const READERS: usize = 64;
/// The largest request, in bytes.
const REQUEST_BYTES: usize = 8 << 10;
/// The time in which a reader must send its request.
const ASKED_WITHIN: Duration = Duration::from_secs(10);
/// Objects whose answers are counted.
const REMEMBERED: usize = 1024;
/// Between two pieces of a slow answer.
const CRAWL: Duration = Duration::from_millis(500);
/// A time before every deadline.
const LONG_AGO: &str = "Thu, 01 Jan 1970 00:00:00 GMT";

/// The fault at this time.
pub type ChooseProxy = Box<dyn Fn() -> FaultyProxy + Send + Sync>;

/// Answers requests for `/<bucket>/<name>` at `address` from `store`, objects of at most `max_bytes`, until the
/// process ends. Called in a tokio runtime.
pub fn open(
    address: SocketAddr,
    store: Arc<dyn Store>,
    max_bytes: u64,
    choose: ChooseProxy,
) -> io::Result<()> {
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let proxy = Arc::new(Proxy { store, max_bytes, choose, shown: Mutex::default() });
    tokio::spawn(async move {
        let readers = Arc::new(Semaphore::new(READERS));
        loop {
            let Ok(place) = readers.clone().acquire_owned().await else { return };
            let Ok((stream, _)) = listener.accept().await else { continue };
            let proxy = proxy.clone();
            tokio::spawn(async move {
                if let Err(error) = proxy.answer(stream).await {
                    tracing::debug!(%error, "a reader disconnected");
                }
                drop(place);
            });
        }
    });
    Ok(())
}

struct Proxy {
    store: Arc<dyn Store>,
    max_bytes: u64,
    choose: ChooseProxy,
    /// Answers so far, by object.
    shown: Mutex<BTreeMap<String, u16>>,
}

impl Proxy {
    async fn answer(&self, mut stream: TcpStream) -> io::Result<()> {
        let request = tokio::time::timeout(ASKED_WITHIN, request(&mut stream)).await??;
        let name = name(&request);
        let key: Option<ObjectKey> = name.and_then(|name| name.parse().ok());
        let object = match &key {
            Some(key) => self.store.get(key, self.max_bytes).await.ok(),
            None => None,
        };
        let proxy = (self.choose)();
        match (object, proxy) {
            (Some(_), FaultyProxy::ForTheFirst(readers)) if !self.may_see(key.as_ref(), readers) => {
                missing(&mut stream).await
            }
            (Some(bytes), FaultyProxy::Crawling(rate)) => crawl(&mut stream, &bytes, rate).await,
            (Some(bytes), _) => {
                stream.write_all(head(bytes.len(), proxy).as_bytes()).await?;
                stream.write_all(&bytes).await
            }
            (None, _) => missing(&mut stream).await,
        }
    }

    /// Whether the reader is one of the first `readers` of this object; counts it.
    fn may_see(&self, key: Option<&ObjectKey>, readers: u16) -> bool {
        let Some(key) = key else { return false };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if REMEMBERED <= shown.len() && !shown.contains_key(key.as_str()) {
            shown.pop_first();
        }
        let count = shown.entry(key.as_str().to_owned()).or_default();
        let may = *count < readers;
        *count = count.saturating_add(1);
        may
    }
}

/// The head of a request.
async fn request(stream: &mut TcpStream) -> io::Result<String> {
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < REQUEST_BYTES {
        let read = stream.read(&mut piece).await?;
        if read == 0 {
            break;
        }
        request.extend_from_slice(&piece[..read]);
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

/// The object's name in `GET /<bucket>/<name> HTTP/1.1`.
fn name(request: &str) -> Option<&str> {
    let path = request.strip_prefix("GET /")?.split_whitespace().next()?;
    Some(path.split_once('/')?.1)
}

fn head(length: usize, proxy: FaultyProxy) -> String {
    let dates = match proxy {
        FaultyProxy::Backdating => format!("date: {LONG_AGO}\r\nlast-modified: {LONG_AGO}\r\n"),
        _ => String::new(),
    };
    format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n{dates}connection: close\r\n\r\n")
}

async fn missing(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").await
}

async fn crawl(stream: &mut TcpStream, bytes: &Bytes, rate: u32) -> io::Result<()> {
    stream.write_all(head(bytes.len(), FaultyProxy::Crawling(rate)).as_bytes()).await?;
    let step = usize::try_from(rate / 2).unwrap_or(usize::MAX).max(1);
    for piece in bytes.chunks(step) {
        stream.write_all(piece).await?;
        stream.flush().await?;
        tokio::time::sleep(CRAWL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Digest, keys};
    use store::MemoryStore;

    async fn start_proxy(proxy: FaultyProxy) -> (SocketAddr, ObjectKey) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let bytes = Bytes::from_static(b"some bytes");
        let key = keys::shard(&Digest::of(&bytes));
        store.put(&key, bytes).await.unwrap();
        // A port that was free a moment ago.
        let address = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap();
        open(address, store, 1 << 20, Box::new(move || proxy)).unwrap();
        (address, key)
    }

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_first_readers_get_an_object_and_the_others_not_found() {
        let (address, key) = start_proxy(FaultyProxy::ForTheFirst(2)).await;
        let path = format!("/miner-0/{key}");
        let answers = [ask(address, &path).await, ask(address, &path).await, ask(address, &path).await];
        assert!(answers[..2].iter().all(|answer| answer.ends_with("some bytes")), "{answers:?}");
        assert!(answers[2].starts_with("HTTP/1.1 404"), "{answers:?}");
    }

    #[tokio::test]
    async fn the_proxy_reports_false_times() {
        let (address, key) = start_proxy(FaultyProxy::Backdating).await;
        let answer = ask(address, &format!("/miner-0/{key}")).await;
        assert!(
            answer.contains("last-modified: Thu, 01 Jan 1970") && answer.ends_with("some bytes"),
            "{answer}"
        );
    }

    #[tokio::test]
    async fn a_slow_answer_sends_a_few_bytes_at_a_time() {
        let (address, key) = start_proxy(FaultyProxy::Crawling(4)).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET /b/{key} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
        let (mut answer, mut pieces) = (Vec::new(), 0);
        let mut piece = [0; 256];
        while let Ok(read @ 1..) = stream.read(&mut piece).await {
            answer.extend_from_slice(&piece[..read]);
            pieces += 1;
        }
        assert!(String::from_utf8_lossy(&answer).ends_with("some bytes"));
        assert!(3 <= pieces, "{pieces}");
    }

    #[tokio::test]
    async fn a_path_that_names_no_object_is_not_found() {
        let (address, _) = start_proxy(FaultyProxy::Store).await;
        for path in ["/", "/miner-0", "/miner-0/../secret", "/miner-0/shards/none"] {
            assert!(ask(address, path).await.starts_with("HTTP/1.1 404"), "{path}");
        }
    }
}
