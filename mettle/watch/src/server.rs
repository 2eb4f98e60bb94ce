//! Serves the page to browsers, read-only: one static page that is part of the program, answers from the latest
//! [`Snapshot`], and the evidence behind it.
//!
//! Everybody who reaches the address may read it, so it is this machine's own unless the operator says otherwise.
//! Names and endpoints come from strangers: they leave here as JSON, and the page writes them as text.

use crate::{
    evidence::{Evidence, EvidenceError},
    page::{POINTS_MAX, Question, SEATS_MAX, Snapshot, TILE},
};
use bytes::Bytes;
use daemon::error_chain;
use futures::Stream;
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use protocol::{Uid, Window};
use serde_json::{Value, json};
use std::{
    convert::Infallible,
    io,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::Poll,
    time::{Duration, Instant},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, Semaphore, mpsc},
    task::{JoinHandle, JoinSet},
};

/// Connections at once; more are closed.
const CONNECTIONS_MAX: usize = 128;
/// Readers of events among them.
const READERS_MAX: usize = 32;
/// Events that wait for a reader. One that lets more wait is dropped; its browser connects again by itself.
const EVENTS_WAITING_MAX: usize = 4;
/// The longest connection, but that of a reader of events.
const CONNECTION_WITHIN: Duration = Duration::from_secs(30);
/// Between two events at most: a browser that is gone is noticed by them.
const EVENT_EVERY: Duration = Duration::from_secs(10);
/// Reads of evidence at once; more wait, and give up with their time.
const EVIDENCE_AT_ONCE: usize = 4;
/// How long evidence may take: validators' buckets may be slow.
const EVIDENCE_WITHIN: Duration = Duration::from_secs(20);
/// Bytes of a request's path and query.
const TARGET_MAX: usize = 256;
/// Bytes of a request's head.
const HEAD_MAX: usize = 16 << 10;

/// Nothing but this server's own files: no inline script, no other site, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const HTML: &str = "text/html; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
/// The text format of Prometheus.
const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const WAITING: &str = "the chain has not answered yet";

/// The icon of our pages.
pub const ICON: &str = include_str!("../assets/icon.svg");

/// The page: path, type and content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, include_str!("../assets/index.html")),
    ("/page.js", SCRIPT, include_str!("../assets/page.js")),
    ("/timeline.js", SCRIPT, include_str!("../assets/timeline.js")),
    ("/page.css", STYLE, include_str!("../assets/page.css")),
    ("/icon.svg", "image/svg+xml", ICON),
    ("/uplot.js", SCRIPT, include_str!("../assets/uplot/uplot.js")),
    ("/uplot.css", STYLE, include_str!("../assets/uplot/uplot.css")),
    ("/uplot-licence.txt", PLAIN, include_str!("../assets/uplot/LICENSE")),
];

#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("the page cannot be served at {address}: another program uses the port. Choose another one")]
    PortTaken { address: SocketAddr },
    #[error("the page cannot be served at {address}: is it an address of this machine?")]
    Listen { address: SocketAddr, source: io::Error },
}

/// The page, served as long as this value lives.
pub struct Page {
    shared: Arc<Shared>,
    address: SocketAddr,
    task: JoinHandle<()>,
}

struct Shared {
    evidence: Box<dyn Evidence>,
    evidence_slots: Semaphore,
    state: Mutex<State>,
    /// Whether only this machine reaches the address.
    is_private: bool,
}

#[derive(Default)]
struct State {
    /// `None` until the chain has answered.
    snapshot: Option<Arc<Snapshot>>,
    /// The last event that was sent.
    event: Bytes,
    sent: Option<Instant>,
    readers: Vec<Reader>,
}

/// A browser that reads events.
struct Reader {
    events: mpsc::Sender<Bytes>,
    connection: Arc<Connection>,
}

#[derive(Default)]
struct Connection {
    reads_events: AtomicBool,
    dropped: Notify,
}

/// The body of an answer, whole or in parts.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

impl Page {
    /// Serves at `address` from now on; port 0 is a free one.
    pub async fn serve(address: SocketAddr, evidence: Box<dyn Evidence>) -> Result<Page, PageError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => PageError::PortTaken { address },
            _ => PageError::Listen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared {
            evidence,
            evidence_slots: Semaphore::new(EVIDENCE_AT_ONCE),
            state: Mutex::default(),
            is_private: address.ip().is_loopback(),
        });
        let task = tokio::spawn(accept(listener, shared.clone()));
        Ok(Page { shared, address, task })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Shows this from now on, and tells the browsers.
    pub fn publish(&self, snapshot: Snapshot) {
        let event = event(&snapshot.answer(Question::Overview));
        let mut state = self.shared.state();
        state.snapshot = Some(Arc::new(snapshot));
        let now = Instant::now();
        let is_due = state.sent.is_none_or(|sent| EVENT_EVERY <= now.saturating_duration_since(sent));
        if state.event != event || is_due {
            state.event = event;
            state.sent = Some(now);
            state.send();
        }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn event(overview: &Value) -> Bytes {
    // JSON has no line break, which would end the event's data.
    Bytes::from(format!("event: overview\ndata: {overview}\n\n"))
}

impl State {
    /// Sends the event to every reader, and drops those that do not keep up.
    fn send(&mut self) {
        let event = self.event.clone();
        self.readers.retain(|reader| {
            let is_sent = reader.events.try_send(event.clone()).is_ok();
            if !is_sent {
                reader.connection.dropped.notify_one();
            }
            is_sent
        });
    }
}

impl Shared {
    /// No write under the lock can panic half way.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream of events, the latest first; `None` if there are too many readers.
    fn subscribe(&self, connection: &Arc<Connection>) -> Option<mpsc::Receiver<Bytes>> {
        let mut state = self.state();
        state.readers.retain(|reader| !reader.events.is_closed());
        if READERS_MAX <= state.readers.len() {
            return None;
        }
        let (events, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
        if !state.event.is_empty() {
            // An empty channel has room.
            let _ = events.try_send(state.event.clone());
        }
        connection.reads_events.store(true, Ordering::Relaxed);
        state.readers.push(Reader { events, connection: connection.clone() });
        Some(receiver)
    }
}

/// Accepts connections until the task is aborted, and with it all of them.
async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // For example out of descriptors: a retry at once would fail too.
                    tracing::debug!(%error, "a connection for the page was not taken");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tracing::debug!("too many connections for the page, one was closed");
            continue;
        };
        let shared = shared.clone();
        connections.spawn(async move {
            let _permit = permit;
            converse(stream, shared).await;
        });
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, shared: Arc<Shared>) {
    let connection = Arc::new(Connection::default());
    let of = connection.clone();
    let answer = move |request: Request<Incoming>| {
        let (shared, connection) = (shared.clone(), of.clone());
        async move { Ok::<_, Infallible>(answer(&shared, &request, &connection).await) }
    };
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(HEAD_MAX)
        .serve_connection(TokioIo::new(stream), service_fn(answer));
    let too_long = async {
        tokio::time::sleep(CONNECTION_WITHIN).await;
        if connection.reads_events.load(Ordering::Relaxed) {
            connection.dropped.notified().await;
        }
    };
    tokio::select! {
        served = served => {
            if let Err(error) = served {
                tracing::debug!(%error, "a connection for the page broke");
            }
        }
        () = too_long => tracing::debug!("a connection for the page was too slow"),
    }
}

async fn answer(
    shared: &Shared,
    request: &Request<Incoming>,
    connection: &Arc<Connection>,
) -> Response<Body> {
    let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
    let refused = if *request.method() != Method::GET {
        Some((StatusCode::METHOD_NOT_ALLOWED, "only GET"))
    } else if TARGET_MAX < path.len().saturating_add(query.len()) {
        Some((StatusCode::URI_TOO_LONG, "the address is too long"))
    } else if shared.is_private && !is_own_name(request.headers().get(header::HOST)) {
        // Another site whose name was made to lead to this machine.
        Some((StatusCode::MISDIRECTED_REQUEST, "open the page at 127.0.0.1 or localhost"))
    } else {
        None
    };
    if let Some((status, why)) = refused {
        return text(status, PLAIN, format!("{why}\n"));
    }
    if let Some((_, kind, content)) = FILES.iter().find(|(name, _, _)| *name == path) {
        return text(StatusCode::OK, kind, *content);
    }
    if path == "/metrics" {
        return match shared.state().snapshot.clone() {
            Some(snapshot) => text(StatusCode::OK, METRICS, snapshot.metrics().to_owned()),
            None => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, format!("{WAITING}\n")),
        };
    }
    let Some(name) = path.strip_prefix("/api/") else {
        return text(StatusCode::NOT_FOUND, PLAIN, "not found: the page is at /\n");
    };
    if name == "events" {
        return match shared.subscribe(connection) {
            Some(events) => stream(events),
            None => text(StatusCode::SERVICE_UNAVAILABLE, PLAIN, "too many browsers are open\n"),
        };
    }
    match api(shared, name, query).await {
        Ok(value) => text(StatusCode::OK, JSON, value.to_string()),
        Err((status, why)) => text(status, JSON, json!({ "error": why }).to_string()),
    }
}

type Refusal = (StatusCode, String);

async fn api(shared: &Shared, name: &str, query: &str) -> Result<Value, Refusal> {
    let bad = |why: String| (StatusCode::BAD_REQUEST, why);
    let query = Query::parse(query).map_err(bad)?;
    if name == "cell" || name == "seat" {
        let uid = Uid(query.number("uid", None, u16::MAX).map_err(bad)?);
        let window = match name {
            "cell" => Some(Window(query.number("window", None, u32::MAX).map_err(bad)?)),
            _ => None,
        };
        return evidence(shared, uid, window).await;
    }
    let question = query.question(name).map_err(bad)?;
    let Some(question) = question else { return Err((StatusCode::NOT_FOUND, "no such answer".into())) };
    let snapshot = shared.state().snapshot.clone();
    let waiting = || (StatusCode::SERVICE_UNAVAILABLE, WAITING.to_owned());
    Ok(snapshot.ok_or_else(waiting)?.answer(question))
}

async fn evidence(shared: &Shared, uid: Uid, window: Option<Window>) -> Result<Value, Refusal> {
    let read = async {
        let _slot = shared.evidence_slots.acquire().await;
        match window {
            Some(window) => shared.evidence.cell(uid, window).await,
            None => shared.evidence.seat(uid).await,
        }
    };
    let late = |_| (StatusCode::GATEWAY_TIMEOUT, "chain and buckets took too long: ask again".to_owned());
    let read = tokio::time::timeout(EVIDENCE_WITHIN, read).await.map_err(late)?;
    read.map_err(|error| {
        let status = match error {
            EvidenceError::NoSeat { .. } => StatusCode::NOT_FOUND,
            EvidenceError::Chain(_) => StatusCode::BAD_GATEWAY,
        };
        (status, error_chain(&error))
    })
}

/// The numbers of a query.
struct Query<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Query<'a> {
    fn parse(query: &'a str) -> Result<Query<'a>, String> {
        let parts = query.split('&').filter(|part| !part.is_empty());
        let pair = |part: &'a str| part.split_once('=').ok_or_else(|| "a query is name=number&…".to_owned());
        parts.map(pair).collect::<Result<_, _>>().map(Query)
    }

    /// A number of at most `max`; without it, `default`.
    fn number<T: FromStr + PartialOrd + std::fmt::Display>(
        &self,
        name: &str,
        default: Option<T>,
        max: T,
    ) -> Result<T, String> {
        let wrong = || format!("{name} is a number from 0 to {max}");
        match self.0.iter().find(|(of, _)| *of == name) {
            Some((_, value)) => value.parse().ok().filter(|number| *number <= max).ok_or_else(wrong),
            None => default.ok_or_else(wrong),
        }
    }

    /// `None` if nothing has this name.
    fn question(&self, name: &str) -> Result<Option<Question>, String> {
        Ok(Some(match name {
            "overview" => Question::Overview,
            "seats" => Question::Seats {
                from: self.number("from", Some(0), usize::from(u16::MAX))?,
                limit: self.number("limit", Some(SEATS_MAX), SEATS_MAX)?,
            },
            "losses" => Question::Losses {
                from: Window(self.number("from", Some(0), u32::MAX)?),
                to: Window(self.number("to", Some(u32::MAX), u32::MAX)?),
                points: self.number("points", Some(POINTS_MAX), POINTS_MAX)?,
            },
            "tile" => {
                let window: u32 = self.number("window", None, u32::MAX)?;
                let uid: u16 = self.number("uid", None, u16::MAX)?;
                if !window.is_multiple_of(TILE) || !u32::from(uid).is_multiple_of(TILE) {
                    return Err(format!("a tile begins at multiples of {TILE}"));
                }
                Question::Tile { window: Window(window), uid: Uid(uid) }
            }
            _ => return Ok(None),
        }))
    }
}

/// Whether a request was made to an address or to `localhost`, and not to the name of another site.
pub fn is_own_name(host: Option<&HeaderValue>) -> bool {
    let Some(host) = host.and_then(|host| host.to_str().ok()) else { return false };
    let without_port = match host.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => host,
    };
    let name = without_port.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || IpAddr::from_str(name).is_ok()
}

fn text(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    with_headers(status, kind, Full::new(content.into()).boxed_unsync())
}

fn stream(mut events: mpsc::Receiver<Bytes>) -> Response<Body> {
    let frames = futures::stream::poll_fn(move |context| match events.poll_recv(context) {
        Poll::Ready(Some(event)) => Poll::Ready(Some(Ok::<_, Infallible>(Frame::data(event)))),
        Poll::Ready(None) => Poll::Ready(None),
        Poll::Pending => Poll::Pending,
    });
    fn body(frames: impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send + 'static) -> Body {
        StreamBody::new(frames).boxed_unsync()
    }
    with_headers(StatusCode::OK, "text/event-stream", body(frames))
}

/// An answer that lets a browser do nothing but what the page needs, and keep nothing.
pub fn with_headers(status: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (header::HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{page::About, sample};
    use async_trait::async_trait;
    use chain_client::ChainError;
    use std::collections::BTreeMap;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Knows the seats 0 to 9. The chain is away for seat 1.
    struct TenSeats;

    #[async_trait]
    impl Evidence for TenSeats {
        async fn cell(&self, uid: Uid, window: Window) -> Result<Value, EvidenceError> {
            Ok(json!({ "uid": self.seat(uid).await?["uid"], "window": window }))
        }

        async fn seat(&self, uid: Uid) -> Result<Value, EvidenceError> {
            match uid.0 {
                1 => {
                    let waited = Duration::from_secs(7);
                    Err(ChainError::TimedOut { doing: "reading".into(), waited, sent: false }.into())
                }
                0..10 => Ok(json!({ "uid": uid })),
                _ => Err(EvidenceError::NoSeat { uid }),
            }
        }
    }

    fn snapshot(windows: u32) -> Snapshot {
        let about = About {
            name: Some("<img src=x onerror=alert(1)>"),
            parameters: None,
            text: None,
            absences: BTreeMap::new(),
            block_time: Duration::from_secs(1),
            silence: Duration::ZERO,
        };
        Snapshot::of(&sample::large(300, windows), &about)
    }

    async fn page() -> Page {
        let page = Page::serve(SocketAddr::from(([127, 0, 0, 1], 0)), Box::new(TenSeats)).await.unwrap();
        page.publish(snapshot(200));
        page
    }

    async fn send(page: &Page, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(page.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Status line and headers, and the body.
    async fn ask(page: &Page, method: &str, target: &str, host: &str) -> (String, String) {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        let mut text = String::new();
        send(page, &request).await.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    async fn get(page: &Page, target: &str) -> (u16, Value) {
        let (head, body) = ask(page, "GET", target, "127.0.0.1").await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, serde_json::from_str(&body).unwrap_or(Value::String(body)))
    }

    #[tokio::test]
    async fn every_answer_forbids_scripts_of_others_and_guessed_types() {
        let page = page().await;
        for target in
            FILES.iter().map(|(name, _, _)| *name).chain(["/api/overview", "/api/nothing", "/nothing"])
        {
            let (head, _) = ask(&page, "GET", target, "localhost").await;
            for line in [
                "content-security-policy: default-src 'none'; script-src 'self';",
                "x-content-type-options: nosniff",
                "x-frame-options: DENY",
                "referrer-policy: no-referrer",
                "cache-control: no-store",
            ] {
                assert!(head.contains(line), "{target} lacks {line}: {head}");
            }
        }
        assert!(!POLICY.contains("unsafe"));
    }

    #[test]
    fn the_page_has_no_inline_script_and_writes_no_html() {
        let of = |path: &str| FILES.iter().find(|(name, _, _)| *name == path).unwrap().2;
        let html = of("/");
        assert_eq!(html.matches("<script").count(), html.matches("<script src=\"/").count());
        for forbidden in
            [" onload=", " onclick=", " onerror=", " style=", "javascript:", "http://", "https://"]
        {
            assert!(!html.contains(forbidden), "{forbidden} is in the page");
        }
        for path in ["/page.js", "/timeline.js", "/uplot.js"] {
            for forbidden in
                ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"]
            {
                assert!(!of(path).contains(forbidden), "{forbidden} is in {path}");
            }
        }
        // Whatever the page asks for is a file of this server.
        for part in html.split(['"']).filter(|part| part.starts_with('/')) {
            assert!(FILES.iter().any(|(name, _, _)| *name == part), "{part} is not served");
        }
    }

    #[tokio::test]
    async fn names_of_strangers_leave_as_json() {
        let page = page().await;
        let (head, body) = ask(&page, "GET", "/api/seats?limit=3", "127.0.0.1").await;
        assert!(
            head.starts_with("HTTP/1.1 200 OK") && head.contains("content-type: application/json"),
            "{head}"
        );
        let value: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((&value["total"], value["seats"].as_array().unwrap().len()), (&json!(300), 3));
        let (_, overview) = get(&page, "/api/overview").await;
        assert_eq!(overview["name"], "<img src=x onerror=alert(1)>");
    }

    #[tokio::test]
    async fn what_is_out_of_bounds_is_refused_with_the_bound() {
        let page = page().await;
        let far = format!("/api/seats?from={}", "9".repeat(300));
        for (target, status) in [
            ("/api/seats?limit=201", 400),
            ("/api/seats?from=-1", 400),
            ("/api/seats?from", 400),
            ("/api/losses?points=1001", 400),
            ("/api/tile?window=63&uid=0", 400),
            ("/api/tile?window=64", 400),
            ("/api/cell?uid=65536&window=1", 400),
            ("/api/cell?uid=1.5&window=1", 400),
            ("/api/events/more", 404),
            ("/api/", 404),
            ("/../../etc/passwd", 404),
            ("/%2e%2e/etc/passwd", 404),
            ("//", 404),
            (&far, 414),
        ] {
            assert_eq!(get(&page, target).await.0, status, "{target}");
        }
        assert_eq!(get(&page, "/metrics").await.0, 200);
        let (_, refusal) = get(&page, "/api/seats?limit=201").await;
        assert_eq!(refusal["error"], "limit is a number from 0 to 200");
        for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"] {
            assert!(ask(&page, method, "/", "127.0.0.1").await.0.starts_with("HTTP/1.1 405"), "{method}");
        }
    }

    #[tokio::test]
    async fn another_sites_name_for_this_machine_is_refused() {
        let page = page().await;
        for (host, status) in [
            ("evil.example", "421"),
            ("evil.example:80", "421"),
            ("localhost.evil.example", "421"),
            ("", "421"),
            ("localhost:1234", "200"),
            ("127.0.0.1:1234", "200"),
            ("[::1]:80", "200"),
        ] {
            let (head, _) = ask(&page, "GET", "/api/overview", host).await;
            assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {head}");
        }
    }

    #[tokio::test]
    async fn evidence_is_read_for_the_asked_cell_and_its_failures_are_told() {
        let page = page().await;
        assert_eq!(get(&page, "/api/cell?uid=3&window=7").await, (200, json!({ "uid": 3, "window": 7 })));
        let (status, body) = get(&page, "/api/seat?uid=10").await;
        assert_eq!(status, 404);
        assert!(body["error"].as_str().unwrap().contains("no uid 10"), "{body}");
        let (status, body) = get(&page, "/api/seat?uid=1").await;
        assert_eq!(status, 502);
        assert!(body["error"].as_str().unwrap().starts_with("the chain does not answer"), "{body}");
    }

    #[tokio::test]
    async fn before_the_chain_has_answered_the_page_says_so() {
        let page = Page::serve(SocketAddr::from(([127, 0, 0, 1], 0)), Box::new(TenSeats)).await.unwrap();
        assert_eq!(get(&page, "/api/overview").await.0, 503);
        assert_eq!(get(&page, "/metrics").await.0, 503);
        assert_eq!(ask(&page, "GET", "/", "127.0.0.1").await.0.split(' ').nth(1), Some("200"));
        let taken = Page::serve(page.address, Box::new(TenSeats)).await;
        assert!(matches!(taken, Err(PageError::PortTaken { .. })));
    }

    #[tokio::test]
    async fn a_browser_gets_the_latest_event_at_once_and_each_change() {
        let page = page().await;
        let mut stream = send(&page, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let mut read = String::new();
        let mut until = async |count: usize| {
            while read.matches("\n\n").count() < count {
                let mut buffer = [0; 4096];
                let length = stream.read(&mut buffer).await.unwrap();
                assert_ne!(length, 0, "the stream ended: {read}");
                read.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
            }
            read.clone()
        };
        let first = until(1).await;
        assert!(first.contains("content-type: text/event-stream"), "{first}");
        assert!(first.contains("event: overview\ndata: {"), "{first}");
        page.publish(snapshot(200));
        page.publish(snapshot(201));
        let all = until(2).await;
        assert_eq!(all.matches("\"window\":201").count(), 1, "an event that says the same is not sent");
        assert_eq!(all.matches("event: overview").count(), 2, "{all}");
    }

    #[tokio::test]
    async fn a_reader_that_does_not_keep_up_is_dropped_and_more_than_the_bound_are_refused() {
        let shared = Shared {
            evidence: Box::new(TenSeats),
            evidence_slots: Semaphore::new(1),
            state: Mutex::default(),
            is_private: true,
        };
        shared.state().event = Bytes::from_static(b"event");
        let slow = Arc::new(Connection::default());
        let mut events = shared.subscribe(&slow).unwrap();
        for _ in 1..EVENTS_WAITING_MAX {
            shared.state().send();
        }
        assert_eq!(shared.state().readers.len(), 1, "the queue is full, and nothing is lost yet");
        shared.state().send();
        assert!(shared.state().readers.is_empty());
        slow.dropped.notified().await;
        for _ in 0..EVENTS_WAITING_MAX {
            assert!(events.recv().await.is_some());
        }
        assert!(events.recv().await.is_none(), "the stream ends");

        let mut readers: Vec<_> = (0..READERS_MAX).map(|_| shared.subscribe(&slow).unwrap()).collect();
        assert!(shared.subscribe(&slow).is_none());
        readers.pop();
        assert!(shared.subscribe(&slow).is_some(), "a browser that left makes room");
    }
}
