//! Hostile endpoints: sockets that send arbitrary bytes (PROT-13).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mettle_store::fetch::{AddressClass, FetchPlan, FetchPolicy, HttpFetcher, Resolver};
use mettle_store::{
    Credentials, Fetch, FetchError, Limits, S3Settings, S3Store, Sink, StoreError, fetch_verified,
    fetch_verified_into,
};
use protocol::Digest;
use protocol::keys::{self, ObjectKey};
use std::mem::discriminant;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

fn a_key() -> ObjectKey {
    keys::piece(&Digest([1; 32]))
}

/// Limits that are reached only on purpose, even on a busy machine.
fn limits() -> Limits {
    Limits {
        max_bytes: 1000,
        deadline: Duration::from_secs(120),
        first_byte: Duration::from_secs(60),
        min_bytes_per_second: 10_000,
        rate_window: Duration::from_secs(60),
    }
}

/// Limits that an endpoint reaches by delaying on purpose.
fn hasty() -> Limits {
    Limits { first_byte: Duration::from_millis(300), ..limits() }
}

fn policy() -> FetchPolicy {
    FetchPolicy { connect_timeout: Duration::from_secs(60), ..FetchPolicy::localnet() }
}

/// A policy with a short connection timeout that still suffices on a busy machine.
fn brief() -> FetchPolicy {
    FetchPolicy { connect_timeout: Duration::from_secs(2), ..policy() }
}

fn fetcher() -> HttpFetcher {
    HttpFetcher::new(policy()).expect("a fetcher")
}

/// Starts an endpoint that reads a request and then runs `act`. Returns its base URL.
async fn endpoint<F>(act: impl Fn(TcpStream, String) -> F + Send + Sync + 'static) -> String
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.windows(4).any(|end| end == b"\r\n\r\n") {
                if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
                    break;
                }
            }
            tokio::spawn(act(stream, String::from_utf8_lossy(&head).into_owned()));
        }
    });
    format!("http://{address}/bucket")
}

/// Starts an endpoint that sends exactly this answer, and closes.
async fn saying(answer: &'static str) -> String {
    endpoint(move |mut stream, _| async move {
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await
}

/// Returns the error of a fetch, which is the same for a whole object and for a fetch piece by piece.
async fn error_of(base_url: &str) -> FetchError {
    error_within(base_url, &fetcher(), &limits()).await
}

async fn error_within(base_url: &str, fetcher: &HttpFetcher, limits: &Limits) -> FetchError {
    let whole = fetcher.fetch(base_url, &a_key(), limits).await.expect_err("hostile");
    let mut pieces = Pieces::default();
    let streamed = fetcher.fetch_into(base_url, &a_key(), limits, &mut pieces).await;
    assert_eq!(discriminant(&streamed.expect_err("hostile")), discriminant(&whole));
    assert!(pieces.bytes.len() as u64 <= limits.max_bytes, "more was handed on than may be");
    whole
}

/// Records the bytes that it receives.
#[derive(Default)]
struct Pieces {
    /// Announced lengths, one for every start.
    begun: Vec<u64>,
    bytes: Vec<u8>,
    pieces: usize,
}

impl Sink for Pieces {
    fn begin(&mut self, length: u64) {
        self.begun.push(length);
        self.bytes.clear();
        self.pieces = 0;
    }

    fn piece(&mut self, bytes: &[u8]) {
        assert!(!self.begun.is_empty(), "it begins before it goes on");
        self.bytes.extend_from_slice(bytes);
        self.pieces += 1;
        assert!(self.bytes.len() as u64 <= self.begun[self.begun.len() - 1]);
    }
}

#[tokio::test]
async fn an_honest_endpoint_is_read_to_the_byte() {
    let base = saying("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let fetcher = fetcher();
    assert_eq!(fetcher.fetch(&base, &a_key(), &limits()).await.expect("honest"), "hello");
    assert_eq!(fetcher.traffic().down_bytes, 5);
    let empty = saying("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
    assert_eq!(fetcher.fetch(&empty, &a_key(), &limits()).await.expect("honest"), "");
}

#[tokio::test]
async fn a_request_names_the_object_and_nothing_else() {
    let (tell, mut told) = tokio::sync::mpsc::channel(2);
    let base = endpoint(move |mut stream, head| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(head).await;
            stream.write_all(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n").await
        }
    })
    .await;
    assert_eq!(error_of(&base).await, FetchError::Missing);
    let head = told.recv().await.expect("a request").to_lowercase();
    assert!(head.starts_with(&format!("get /bucket/{} http/1.1\r\n", a_key())), "{head}");
    assert!(head.contains("accept-encoding: identity"), "{head}");
    for secret in ["authorization", "cookie", "referer", "x-amz", "range"] {
        assert!(!head.contains(secret), "{head}");
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = Arc::new(AtomicUsize::new(0));
    let count = elsewhere.clone();
    let target = endpoint(move |mut stream, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret").await }
    })
    .await;
    for status in [301u16, 302, 303, 307, 308] {
        let target = target.clone();
        let base = endpoint(move |mut stream, _| {
            let answer = format!("HTTP/1.1 {status} Go\r\nlocation: {target}\r\ncontent-length: 0\r\n\r\n");
            async move { stream.write_all(answer.as_bytes()).await }
        })
        .await;
        let error = error_of(&base).await;
        assert!(error == FetchError::Redirected { status } && error.is_theirs());
    }
    assert_eq!(elsewhere.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_object_that_is_too_large_is_refused_before_it_is_read() {
    let base = saying("HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n").await;
    let error = error_of(&base).await;
    assert!(error == FetchError::TooLarge { bytes: 1001, max_bytes: 1000 } && error.is_theirs());
    let base = saying("HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551615\r\n\r\n").await;
    assert!(!matches!(error_of(&base).await, FetchError::Ours { .. }));
}

#[tokio::test]
async fn a_body_of_unknown_length_is_refused() {
    let chunked =
        saying("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n").await;
    let until_closed = saying("HTTP/1.1 200 OK\r\n\r\nhello").await;
    for base in [chunked, until_closed] {
        let error = error_of(&base).await;
        assert!(error == FetchError::NoLength && error.is_theirs());
    }
}

#[tokio::test]
async fn a_compressed_body_is_refused_and_never_unpacked() {
    let base = saying("HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\nxx").await;
    let error = error_of(&base).await;
    assert!(error == FetchError::Encoded { encoding: "gzip".into() } && error.is_theirs());
}

#[tokio::test]
async fn statuses_are_theirs_only_where_they_are_clear() {
    for (status, expected, theirs) in [
        ("404 Not Found", FetchError::Missing, true),
        ("410 Gone", FetchError::Missing, true),
        ("403 Forbidden", FetchError::Refused { status: 403 }, true),
        ("206 Partial", FetchError::Refused { status: 206 }, true),
        ("500 Oops", FetchError::Unavailable { status: 500 }, false),
        ("503 Slow Down", FetchError::Unavailable { status: 503 }, false),
        ("429 Too Many", FetchError::Unavailable { status: 429 }, false),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n");
        let base = saying(answer.leak()).await;
        let error = error_of(&base).await;
        assert_eq!(error, expected);
        assert_eq!(error.is_theirs(), theirs, "{status}");
    }
}

#[tokio::test]
async fn silence_after_connecting_is_theirs() {
    let base = endpoint(|stream, _| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(stream);
        Ok(())
    })
    .await;
    // Connecting counts towards the same limit, and takes no time here.
    let fetcher = HttpFetcher::new(brief()).expect("a fetcher");
    let error = error_within(&base, &fetcher, &hasty()).await;
    assert!(matches!(error, FetchError::Stalled { .. }) && error.is_theirs(), "{error:?}");
}

#[tokio::test]
async fn a_body_that_stalls_or_drips_is_cut_off_and_theirs() {
    let stalling = endpoint(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n").await?;
        tokio::time::sleep(Duration::from_secs(60)).await;
        stream.shutdown().await
    })
    .await;
    let dripping = endpoint(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n").await?;
        loop {
            stream.write_all(b"x").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    let limits = Limits { rate_window: Duration::from_millis(300), ..limits() };
    for base in [stalling, dripping] {
        let error = error_within(&base, &fetcher(), &limits).await;
        assert!(matches!(error, FetchError::Crawled { .. }) && error.is_theirs(), "{error:?}");
    }
}

#[tokio::test]
async fn a_fetch_with_too_short_a_deadline_is_ours() {
    let base = endpoint(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n").await?;
        tokio::time::sleep(Duration::from_secs(60)).await;
        stream.shutdown().await
    })
    .await;
    let hasty = limits().within(Duration::from_millis(100));
    let error = fetcher().fetch(&base, &a_key(), &hasty).await.expect_err("too little time");
    assert!(matches!(error, FetchError::Deadline { .. }) && !error.is_theirs());
}

#[tokio::test]
async fn closing_early_is_theirs_and_a_reset_is_not() {
    let closing = saying("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await;
    let error = error_of(&closing).await;
    assert!(error == FetchError::CutShort { got: 5, expected: 10 } && error.is_theirs(), "{error:?}");

    let resetting = endpoint(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello").await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
        stream.set_zero_linger()?;
        drop(stream);
        Ok(())
    })
    .await;
    let error = error_of(&resetting).await;
    assert!(matches!(error, FetchError::Broken { expected: 10, .. }) && !error.is_theirs(), "{error:?}");
}

#[tokio::test]
async fn garbage_and_hanging_up_are_no_observation() {
    let garbage = saying("\0\0\0\0 not http at all\r\n\r\n").await;
    let nothing = saying("").await;
    // A port in use, so that no other test gets it, at which no server listens.
    let silent = TcpSocket::new_v4().expect("a socket");
    silent.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let refused = format!("http://{}/bucket", silent.local_addr().expect("bound"));
    for base in [garbage, nothing, refused] {
        let error = error_of(&base).await;
        assert!(matches!(error, FetchError::Unreachable { .. }) && !error.is_theirs(), "{error:?}");
    }
}

#[tokio::test]
async fn an_endless_head_is_cut_off() {
    let base = endpoint(|mut stream, _| async move {
        stream.write_all(b"HTTP/1.1 200 OK\r\n").await?;
        loop {
            stream
                .write_all(b"x-more: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n")
                .await?;
        }
    })
    .await;
    let error = error_of(&base).await;
    assert!(matches!(error, FetchError::Unreachable { .. } | FetchError::Stalled { .. }), "{error:?}");
}

#[tokio::test]
async fn the_wrong_bytes_are_theirs() {
    let base = saying("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let fetcher = fetcher();
    let right = Digest::of(b"hello");
    assert!(fetch_verified(&fetcher, &base, &a_key(), &right, &limits()).await.is_ok());
    let wrong = Digest::of(b"hullo");
    let error = fetch_verified(&fetcher, &base, &a_key(), &wrong, &limits()).await.expect_err("wrong");
    assert!(error == FetchError::WrongDigest { expected: wrong, got: right } && error.is_theirs());

    let mut pieces = Pieces::default();
    let streamed = fetch_verified_into(&fetcher, &base, &a_key(), &right, &limits(), &mut pieces).await;
    assert_eq!((streamed, &pieces.bytes[..]), (Ok(()), &b"hello"[..]));
    let streamed = fetch_verified_into(&fetcher, &base, &a_key(), &wrong, &limits(), &mut pieces).await;
    assert_eq!(streamed, Err(error));
}

/// Fetches the bytes 3 to 7 of an object from an endpoint.
async fn range_of(base: &str) -> Result<Vec<u8>, FetchError> {
    fetcher().fetch_range(base, &a_key(), 3..8, &limits()).await.map(|bytes| bytes.to_vec())
}

#[tokio::test]
async fn exactly_the_requested_bytes_are_taken() {
    let (said, asked) = std::sync::mpsc::sync_channel(4);
    let base = endpoint(move |mut stream, head| {
        let _ = said.send(head);
        async move {
            let answer = "HTTP/1.1 206 OK\r\ncontent-length: 5\r\ncontent-range: bytes 3-7/10\r\n\r\n34567";
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        }
    })
    .await;
    assert_eq!(range_of(&base).await.expect("honest"), b"34567");
    assert!(asked.recv().expect("asked").to_lowercase().contains("\r\nrange: bytes=3-7\r\n"));
    let nothing = fetcher().fetch_range(&base, &a_key(), 3..3, &limits()).await;
    assert_eq!(nothing.expect("no bytes are no request").len(), 0);
    assert!(asked.try_recv().is_err(), "no request for an empty range");
}

#[tokio::test]
async fn an_endpoint_that_answers_with_another_range_is_refused_before_it_is_read() {
    for (answer, what) in [
        // Ignores the range and sends everything.
        ("200 OK\r\ncontent-length: 10\r\n\r\n0123456789", "the whole object"),
        // The right length at a wrong or unknown offset.
        ("206 OK\r\ncontent-length: 5\r\ncontent-range: bytes 0-4/10\r\n\r\n01234", "bytes 0-4/10"),
        ("206 OK\r\ncontent-length: 5\r\n\r\n34567", "no content-range"),
        ("206 OK\r\ncontent-length: 5\r\ncontent-range: lines 3-7/10\r\n\r\n34567", "lines"),
        // Fewer bytes, and more.
        ("206 OK\r\ncontent-length: 3\r\ncontent-range: bytes 3-5/6\r\n\r\n345", "bytes 3-5/6"),
        ("206 OK\r\ncontent-length: 7\r\ncontent-range: bytes 3-9/10\r\n\r\n3456789", "bytes 3-9/10"),
        ("416 No\r\ncontent-length: 0\r\ncontent-range: bytes */2\r\n\r\n", "no such bytes"),
    ] {
        let base = saying(format!("HTTP/1.1 {answer}").leak()).await;
        let error = range_of(&base).await.expect_err(what);
        let as_asked =
            matches!(&error, FetchError::OtherRange { first: 3, last: 7, said } if said.contains(what));
        assert!(as_asked && error.is_theirs(), "{what}: {error:?}");
    }
    let long =
        format!("HTTP/1.1 206 OK\r\ncontent-length: 5\r\ncontent-range: {}\r\n\r\n34567", "x".repeat(5000));
    let error = range_of(&saying(long.leak()).await).await.expect_err("no range");
    assert!(error.to_string().len() < 200, "what an endpoint says is cut: {error}");
}

#[tokio::test]
async fn a_range_with_a_wrong_length_is_bounded() {
    let claimed = "content-range: bytes 3-7/10\r\n";
    for (length, body, expected) in [
        ("content-length: 7\r\n", "3456789", "TooLarge"),
        ("content-length: 3\r\n", "345", "CutShort"),
        ("content-length: 5\r\n", "345", "CutShort"),
        ("", "34567", "NoLength"),
    ] {
        let base = saying(format!("HTTP/1.1 206 OK\r\n{length}{claimed}\r\n{body}").leak()).await;
        let error = range_of(&base).await.expect_err(expected);
        assert!(format!("{error:?}").starts_with(expected) && error.is_theirs(), "{expected}: {error:?}");
    }
    // Bytes after the announced ones are not read.
    let base = saying(format!("HTTP/1.1 206 OK\r\ncontent-length: 5\r\n{claimed}\r\n3456789").leak()).await;
    assert_eq!(range_of(&base).await.expect("the five"), b"34567");
}

#[tokio::test]
async fn an_object_is_passed_on_while_it_arrives() {
    // The second half is sent only after the first has been passed on.
    let (tell, told) = tokio::sync::watch::channel(0);
    let base = endpoint(move |mut stream, _| {
        let mut told = told.clone();
        async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 800\r\n\r\n").await?;
            stream.write_all(&[1; 400]).await?;
            let _ = told.wait_for(|got| *got >= 400).await;
            stream.write_all(&[2; 400]).await
        }
    })
    .await;
    struct Telling(tokio::sync::watch::Sender<usize>);
    impl Sink for Telling {
        fn begin(&mut self, length: u64) {
            assert_eq!(length, 800);
        }
        fn piece(&mut self, bytes: &[u8]) {
            self.0.send_modify(|got| *got += bytes.len());
        }
    }
    let mut telling = Telling(tell);
    fetcher().fetch_into(&base, &a_key(), &limits(), &mut telling).await.expect("honest");
    assert_eq!(*telling.0.borrow(), 800);
}

#[tokio::test]
async fn an_endpoint_that_breaks_off_leaves_nothing_in_the_next_ones_object() {
    let breaking = saying("HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\nhalf of").await;
    let lying = saying("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhullo").await;
    let honest = saying("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let (fetcher, digest, mut pieces) = (fetcher(), Digest::of(b"hello"), Pieces::default());
    let plan = FetchPlan::new([&breaking, &lying, &honest]);
    let failures = plan.fetch_into(&fetcher, &a_key(), &digest, &limits(), &mut pieces).await.expect("found");
    let errors: Vec<_> = failures.into_iter().map(|failure| failure.error).collect();
    assert!(
        matches!(errors[..], [FetchError::CutShort { .. }, FetchError::WrongDigest { .. }]),
        "{errors:?}"
    );
    assert_eq!((&pieces.begun[..], &pieces.bytes[..]), (&[900, 5, 5][..], &b"hello"[..]));
}

#[tokio::test]
async fn the_time_of_the_receiver_is_not_the_endpoints() {
    // The second half is sent after the first has been passed on, and the receiver idles for longer than the rate's
    // window at each piece.
    struct Slow(tokio::sync::watch::Sender<usize>);
    impl Sink for Slow {
        fn begin(&mut self, _length: u64) {}
        fn piece(&mut self, bytes: &[u8]) {
            std::thread::sleep(Duration::from_millis(1200));
            self.0.send_modify(|got| *got += bytes.len());
        }
    }
    let (tell, told) = tokio::sync::watch::channel(0);
    let base = endpoint(move |mut stream, _| {
        let mut told = told.clone();
        async move {
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n").await?;
            stream.write_all(&[1; 450]).await?;
            let _ = told.wait_for(|got| *got >= 450).await;
            stream.write_all(&[2; 450]).await
        }
    })
    .await;
    let mut slow = Slow(tell);
    let limits = Limits { rate_window: Duration::from_secs(1), ..limits() };
    fetcher().fetch_into(&base, &a_key(), &limits, &mut slow).await.expect("honest");
    assert_eq!(*slow.0.borrow(), 900);
}

#[tokio::test]
async fn a_silent_endpoint_does_not_delay_another() {
    let silent = endpoint(|stream, _| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(stream);
        Ok(())
    })
    .await;
    let honest = saying("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello").await;
    let (fetcher, key, limits) = (fetcher(), a_key(), limits());
    let silences = futures::future::join_all((0..20).map(|_| fetcher.fetch(&silent, &key, &limits)));
    let honest = fetcher.fetch(&honest, &key, &limits);
    let (silences, honest) = tokio::select! {
        biased;
        honest = honest => (None, honest),
        silences = silences => (Some(silences), Err(FetchError::Ours { what: "held up".into() })),
    };
    assert!(silences.is_none() && honest.is_ok());
}

/// A resolver with a different answer each time.
struct Liar {
    answers: Vec<Vec<IpAddr>>,
    asked: Arc<AtomicUsize>,
}

#[async_trait::async_trait]
impl Resolver for Liar {
    async fn addresses(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
        let nth = self.asked.fetch_add(1, Ordering::SeqCst);
        Ok(self.answers[nth.min(self.answers.len() - 1)].clone())
    }
}

fn liar(answers: &[&[&str]]) -> (Liar, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let parse =
        |answer: &&[&str]| answer.iter().map(|address| address.parse().expect("an address")).collect();
    (Liar { answers: answers.iter().map(parse).collect(), asked: asked.clone() }, asked)
}

fn public() -> FetchPolicy {
    FetchPolicy { connect_timeout: policy().connect_timeout, ..FetchPolicy::public() }
}

#[tokio::test]
async fn a_name_with_a_private_address_is_theirs() {
    for (address, class) in [
        ("127.0.0.1", AddressClass::Loopback),
        ("10.0.0.1", AddressClass::Private),
        ("169.254.169.254", AddressClass::LinkLocal),
        ("100.100.100.200", AddressClass::CarrierGrade),
        ("::ffff:10.0.0.1", AddressClass::Translated),
        ("64:ff9b::a00:1", AddressClass::Translated),
        ("fd00::1", AddressClass::Private),
    ] {
        let (liar, _) = liar(&[&[address]]);
        let fetcher = HttpFetcher::with_resolver(public(), liar).expect("a fetcher");
        let error =
            fetcher.fetch("https://innocent.example/b", &a_key(), &limits()).await.expect_err("private");
        assert_eq!(
            error,
            FetchError::ForbiddenAddress { address: address.parse().expect("an address"), class }
        );
        assert!(error.is_theirs());
    }
}

#[tokio::test]
async fn the_fetcher_connects_to_the_address_that_it_judged() {
    // The endpoint is on loopback, and the name resolves to it only at the second request.
    let (tell, mut told) = tokio::sync::mpsc::channel(8);
    let base = endpoint(move |mut stream, head| {
        let tell = tell.clone();
        async move {
            let _ = tell.send(head).await;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nsecret").await
        }
    })
    .await;
    let port = base.parse::<url::Url>().expect("a URL").port().expect("a port");
    let (liar, asked) = liar(&[&["192.0.2.1"], &["127.0.0.1"]]);
    let fetcher = HttpFetcher::with_resolver(brief(), liar).expect("a fetcher");
    let url = format!("http://rebinding.example:{port}/b");
    let error = fetcher.fetch(&url, &a_key(), &limits()).await.expect_err("there is no server at 192.0.2.1");
    assert!(!matches!(error, FetchError::Ours { .. }));
    assert_eq!(asked.load(Ordering::SeqCst), 1, "a name is asked for once a fetch");
    assert!(told.try_recv().is_err(), "the second meaning was connected to");

    // With a consistent resolver, a name works like any address.
    let (honest, _) = self::liar(&[&["127.0.0.1"]]);
    let fetcher = HttpFetcher::with_resolver(policy(), honest).expect("a fetcher");
    assert_eq!(fetcher.fetch(&url, &a_key(), &limits()).await.expect("found"), "secret");
    assert!(told.recv().await.expect("asked").contains("rebinding.example"));
}

#[tokio::test]
async fn private_addresses_among_public_ones_are_left_out() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    let (liar, _) = liar(&[&["127.0.0.1", "2001:db8::1", "10.0.0.1"]]);
    let fetcher = HttpFetcher::with_resolver(public(), liar).expect("a fetcher");
    let url = format!("https://mixed.example:{port}/b");
    let error = fetcher.fetch(&url, &a_key(), &limits()).await.expect_err("all forbidden");
    assert!(matches!(error, FetchError::ForbiddenAddress { class: AddressClass::Loopback, .. }), "{error:?}");
    let nothing_connected = tokio::time::timeout(Duration::from_millis(20), listener.accept()).await.is_err();
    assert!(nothing_connected);
}

#[tokio::test]
async fn a_name_without_an_address_is_no_observation() {
    struct Broken;
    #[async_trait::async_trait]
    impl Resolver for Broken {
        async fn addresses(&self, _name: &str) -> io::Result<Vec<IpAddr>> {
            Err(io::Error::other("the name server is away"))
        }
    }
    let fetcher = HttpFetcher::with_resolver(public(), Broken).expect("a fetcher");
    let error = fetcher.fetch("https://nowhere.example/b", &a_key(), &limits()).await.expect_err("broken");
    assert!(matches!(&error, FetchError::Unresolved { what } if what.contains("away")), "{error:?}");
    assert!(!error.is_theirs());
    let (empty, _) = liar(&[&[]]);
    let fetcher = HttpFetcher::with_resolver(public(), empty).expect("a fetcher");
    let error = fetcher.fetch("https://nowhere.example/b", &a_key(), &limits()).await.expect_err("empty");
    assert!(matches!(error, FetchError::Unresolved { .. }), "{error:?}");
}

#[tokio::test]
async fn a_public_network_refuses_plain_http_and_literal_private_addresses() {
    let fetcher = HttpFetcher::new(public()).expect("a fetcher");
    let error = fetcher.fetch("http://host.example/b", &a_key(), &limits()).await.expect_err("plain");
    assert!(matches!(error, FetchError::BadUrl { .. }) && error.is_theirs());
    let error = fetcher.fetch("https://[::1]:9000/b", &a_key(), &limits()).await.expect_err("loopback");
    assert!(matches!(error, FetchError::ForbiddenAddress { .. }) && error.is_theirs());
}

#[test]
fn every_error_has_a_label_of_its_own() {
    let digest = Digest([0; 32]);
    let address = SocketAddr::from(([127, 0, 0, 1], 1)).ip();
    let second = Duration::from_secs(1);
    let text = String::new;
    let errors = [
        FetchError::BadUrl { why: text() },
        FetchError::ForbiddenAddress { address, class: AddressClass::Loopback },
        FetchError::Missing,
        FetchError::Refused { status: 403 },
        FetchError::Redirected { status: 302 },
        FetchError::NoLength,
        FetchError::Encoded { encoding: text() },
        FetchError::TooLarge { bytes: 2, max_bytes: 1 },
        FetchError::Stalled { after: second },
        FetchError::Crawled { bytes: 1, window: second },
        FetchError::CutShort { got: 1, expected: 2 },
        FetchError::OtherRange { first: 1, last: 2, said: text() },
        FetchError::WrongDigest { expected: digest, got: digest },
        FetchError::Unresolved { what: text() },
        FetchError::Unreachable { what: text() },
        FetchError::Broken { got: 1, expected: 2, what: text() },
        FetchError::Unavailable { status: 503 },
        FetchError::Deadline { after: second },
        FetchError::Ours { what: text() },
    ];
    let texts: std::collections::BTreeSet<_> = errors.iter().map(FetchError::to_string).collect();
    assert_eq!(texts.len(), errors.len());
    assert!(
        errors[..13].iter().all(FetchError::is_theirs) && !errors[13..].iter().any(FetchError::is_theirs)
    );
}

/// Gateways to other kinds of stores may have no tags, and list times more precisely than in answers.
#[tokio::test]
async fn a_store_without_tags_tells_versions_by_the_time() {
    let changed = Arc::new(AtomicUsize::new(0));
    let seconds = changed.clone();
    let url = endpoint(move |mut stream, request| {
        let second = seconds.load(Ordering::Relaxed);
        async move {
            let (head, body) = if request.contains("list-type=2") {
                let contents = "<Contents><Key>texts/a</Key><Size>5</Size>\
                    <LastModified>2026-11-26T10:00:00.250Z</LastModified></Contents>";
                (String::from("200 OK\r\n"), format!("<ListBucketResult>{contents}</ListBucketResult>"))
            } else {
                let time = format!("Last-Modified: Thu, 26 Nov 2026 10:00:0{second} GMT");
                (format!("206 Partial Content\r\nContent-Range: bytes 0-4/5\r\n{time}\r\n"), "hello".into())
            };
            let length = body.len();
            let answer =
                format!("HTTP/1.1 {head}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}");
            stream.write_all(answer.as_bytes()).await?;
            stream.shutdown().await
        }
    })
    .await;
    let credentials = Credentials { access_key: "key".into(), secret_key: "secret".into() };
    let endpoint = url.strip_suffix("/bucket").expect("its name");
    let store = S3Store::open(&S3Settings::new(endpoint, "bucket", credentials)).expect("settings");
    let listed = store.list_named("texts", 10).await.expect("a listing");
    assert_eq!(listed.len(), 1);
    assert_eq!(&store.read_named(&listed[0], 0..5).await.expect("unchanged")[..], b"hello");
    changed.store(1, Ordering::Relaxed);
    let error = store.read_named(&listed[0], 0..5).await.expect_err("changed");
    assert!(matches!(error, StoreError::Changed { .. }), "{error:?}");
}
