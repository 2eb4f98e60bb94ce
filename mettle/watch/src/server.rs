//! Serves the page to browsers, read-only: one static page that is part of the program, answers from the latest
//! [`Snapshot`], and the evidence behind it.
//!
//! No authentication; the operator chooses the address, by default loopback. Names and endpoints come from strangers:
//! they are sent as JSON, and the page writes them as text.

use crate::{
    evidence::{Evidence, EvidenceError},
    page::{POINTS_MAX, Question, SEATS_MAX, Snapshot, TILE},
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, RawQuery, State},
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use daemon::{
    error_chain,
    http::{File, Limits, ListenError, Server, files, json_response},
};
use protocol::{Uid, Window};
use serde_json::{Value, json};
use std::{convert::Infallible, fmt::Display, net::SocketAddr, str::FromStr, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, watch},
    time::timeout,
};

/// Maximum number of browsers that read events at once.
const READERS_MAX: usize = 32;
/// Keep-alive interval of the event stream; detects closed browsers.
const EVENT_EVERY: Duration = Duration::from_secs(10);
/// Maximum number of concurrent reads of evidence. Further ones wait until their time limit.
const EVIDENCE_AT_ONCE: usize = 4;
/// Time limit of a read of evidence: validators' buckets may be slow.
const EVIDENCE_WITHIN: Duration = Duration::from_secs(20);

const SCRIPT: &str = "text/javascript; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const WAITING: &str = "the chain has not answered yet";

/// The icon of our pages.
pub const ICON: File = ("/icon.svg", "image/svg+xml", include_str!("../assets/icon.svg"));

/// The page.
const FILES: &[File] = &[
    ("/", "text/html; charset=utf-8", include_str!("../assets/index.html")),
    ("/page.js", SCRIPT, include_str!("../assets/page.js")),
    ("/timeline.js", SCRIPT, include_str!("../assets/timeline.js")),
    ("/page.css", STYLE, include_str!("../assets/page.css")),
    ICON,
    ("/uplot.js", SCRIPT, include_str!("../assets/uplot/uplot.js")),
    ("/uplot.css", STYLE, include_str!("../assets/uplot/uplot.css")),
    ("/uplot-licence.txt", "text/plain; charset=utf-8", include_str!("../assets/uplot/LICENSE")),
];

/// The page, served until this value is dropped.
pub struct Page {
    shared: Arc<Shared>,
    server: Server,
}

struct Shared {
    evidence: Box<dyn Evidence>,
    evidence_slots: Semaphore,
    /// `None` until the first answer of the chain.
    snapshot: watch::Sender<Option<Arc<Snapshot>>>,
    /// The latest event; empty before the first. A slow reader misses earlier ones.
    event: watch::Sender<Bytes>,
    reader_slots: Arc<Semaphore>,
}

impl Page {
    /// Starts to serve at `address`; port 0 selects a free one.
    ///
    /// # Errors
    /// If another program uses the port, or the address is not this machine's.
    pub async fn serve(address: SocketAddr, evidence: Box<dyn Evidence>) -> Result<Page, ListenError> {
        let shared = Arc::new(Shared {
            evidence,
            evidence_slots: Semaphore::new(EVIDENCE_AT_ONCE),
            snapshot: watch::Sender::default(),
            event: watch::Sender::default(),
            reader_slots: Arc::new(Semaphore::new(READERS_MAX)),
        });
        let router = Router::new()
            .route("/metrics", get(metrics))
            .route("/api/events", get(events))
            .route("/api/{name}", get(api))
            .merge(files(FILES))
            .fallback((StatusCode::NOT_FOUND, "not found: the page is at /\n"))
            .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "only GET\n"))
            .with_state(shared.clone());
        let server = Server::start("the page", address, Limits::READ_ONLY, router).await?;
        Ok(Page { shared, server })
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.server.address())
    }

    /// Publishes a snapshot, and notifies the browsers if the overview has changed.
    pub fn publish(&self, snapshot: Snapshot) {
        // JSON has no line break, which would end the event's data.
        let event = format!("event: overview\ndata: {}\n\n", snapshot.answer(Question::Overview));
        self.shared.snapshot.send_replace(Some(Arc::new(snapshot)));
        self.shared.event.send_if_modified(|sent| {
            let is_new = *sent != event;
            if is_new {
                *sent = event.into();
            }
            is_new
        });
    }
}

async fn metrics(State(shared): State<Arc<Shared>>) -> Response {
    let snapshot = shared.snapshot.borrow().clone();
    match snapshot {
        Some(snapshot) => {
            let prometheus = "text/plain; version=0.0.4; charset=utf-8";
            ([(CONTENT_TYPE, prometheus)], snapshot.metrics().to_owned()).into_response()
        }
        None => (StatusCode::SERVICE_UNAVAILABLE, format!("{WAITING}\n")).into_response(),
    }
}

/// Returns a stream of events, beginning with the latest.
async fn events(State(shared): State<Arc<Shared>>) -> Response {
    let Ok(slot) = shared.reader_slots.clone().try_acquire_owned() else {
        return (StatusCode::SERVICE_UNAVAILABLE, "too many browsers are open\n").into_response();
    };
    let mut events = shared.event.subscribe();
    if !events.borrow().is_empty() {
        events.mark_changed();
    }
    let parts = futures::stream::unfold((events, slot), async |(mut events, slot)| {
        let part = match timeout(EVENT_EVERY, events.changed()).await {
            Ok(changed) => changed.ok().map(|()| events.borrow_and_update().clone())?,
            // A comment.
            Err(_) => Bytes::from_static(b":\n\n"),
        };
        Some((Ok::<_, Infallible>(part), (events, slot)))
    });
    ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(parts)).into_response()
}

type Refusal = (StatusCode, String);

async fn api(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Response {
    match answer(&shared, &name, &query.unwrap_or_default()).await {
        Ok(value) => json_response(StatusCode::OK, &value),
        Err((status, why)) => json_response(status, &json!({ "error": why })),
    }
}

async fn answer(shared: &Shared, name: &str, query: &str) -> Result<Value, Refusal> {
    let question = match name {
        "cell" | "seat" => {
            let uid = Uid(number(query, "uid", None, u16::MAX)?);
            let window = match name {
                "cell" => Some(Window(number(query, "window", None, u32::MAX)?)),
                _ => None,
            };
            return evidence(shared, uid, window).await;
        }
        "overview" => Question::Overview,
        "seats" => Question::Seats {
            from: number(query, "from", Some(0), usize::from(u16::MAX))?,
            limit: number(query, "limit", Some(SEATS_MAX), SEATS_MAX)?,
        },
        "losses" => Question::Losses {
            from: Window(number(query, "from", Some(0), u32::MAX)?),
            to: Window(number(query, "to", Some(u32::MAX), u32::MAX)?),
            points: number(query, "points", Some(POINTS_MAX), POINTS_MAX)?,
        },
        "tile" => {
            let window: u32 = number(query, "window", None, u32::MAX)?;
            let uid: u16 = number(query, "uid", None, u16::MAX)?;
            if !window.is_multiple_of(TILE) || !u32::from(uid).is_multiple_of(TILE) {
                return Err((StatusCode::BAD_REQUEST, format!("a tile begins at multiples of {TILE}")));
            }
            Question::Tile { window: Window(window), uid: Uid(uid) }
        }
        _ => return Err((StatusCode::NOT_FOUND, "no such answer".into())),
    };
    let snapshot = shared.snapshot.borrow().clone();
    snapshot
        .map(|snapshot| snapshot.answer(question))
        .ok_or_else(|| (StatusCode::SERVICE_UNAVAILABLE, WAITING.into()))
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
    timeout(EVIDENCE_WITHIN, read).await.map_err(late)?.map_err(|error| {
        let status = match error {
            EvidenceError::NoSeat { .. } => StatusCode::NOT_FOUND,
            EvidenceError::Chain(_) => StatusCode::BAD_GATEWAY,
        };
        (status, error_chain(&error))
    })
}

/// Parses a number of the query, at most `max`; returns `default` if it is absent.
fn number<T: FromStr + PartialOrd + Display>(
    query: &str,
    name: &str,
    default: Option<T>,
    max: T,
) -> Result<T, Refusal> {
    let mut pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let number = match pairs.find(|(of, _)| *of == name) {
        Some((_, value)) => value.parse().ok().filter(|number| *number <= max),
        None => default,
    };
    number.ok_or_else(|| (StatusCode::BAD_REQUEST, format!("{name} is a number from 0 to {max}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{page::About, sample};
    use async_trait::async_trait;
    use chain_client::ChainError;
    use std::collections::BTreeMap;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

    /// Has the seats 0 to 9. For seat 1 the chain is not available.
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
        let mut stream = TcpStream::connect(page.server.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Returns the status line with the headers, and the body.
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
                assert!(!head.contains("unsafe"), "{head}");
            }
        }
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
        // Every file that the page requests is served here.
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
        let taken = Page::serve(page.server.address(), Box::new(TenSeats)).await;
        assert!(matches!(taken, Err(ListenError::PortTaken { .. })));
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
    async fn browsers_beyond_the_bound_are_refused_and_one_that_leaves_makes_room() {
        let page = page().await;
        let request = "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut readers = Vec::new();
        for _ in 0..READERS_MAX {
            let mut reader = send(&page, request).await;
            // Its slot is taken before it is answered.
            reader.read_exact(&mut [0; 12]).await.unwrap();
            readers.push(reader);
        }
        assert_eq!(get(&page, "/api/events").await, (503, json!("too many browsers are open\n")));
        readers.pop();
        let is_free = async || {
            while page.shared.reader_slots.available_permits() == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(20), is_free()).await.expect("the browser that left is noticed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_browser_that_does_not_read_its_events_is_dropped() {
        let page = page().await;
        let browser = send(&page, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let free = || page.shared.reader_slots.available_permits();
        while free() == READERS_MAX {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // More than the system's buffers hold.
        for _ in 0..64 {
            page.shared.event.send_replace(Bytes::from(vec![b'x'; 1 << 20]));
            tokio::time::sleep(EVENT_EVERY / 10).await;
        }
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(free(), READERS_MAX);
        drop(browser);
    }

    #[tokio::test(start_paused = true)]
    async fn a_browser_without_news_gets_a_comment() {
        let page = page().await;
        let mut stream = send(&page, "GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let mut read = String::new();
        while !read.contains("\n:\n\n") {
            let mut buffer = [0; 4096];
            let length = stream.read(&mut buffer).await.unwrap();
            assert_ne!(length, 0, "the stream ended: {read}");
            read.push_str(std::str::from_utf8(&buffer[..length]).unwrap());
        }
        assert_eq!(read.matches("event: overview").count(), 1, "{read}");
    }
}
