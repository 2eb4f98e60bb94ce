//! The HTTP server: OpenAI's API, and a page to chat with the model.
//!
//! Any client that reaches the address may use it, so it is this machine's own unless the operator says otherwise. What
//! a stranger can make the server hold or wait for is bounded. Prompts and answers are in no log.

use super::{
    About, Served,
    answer::{self, Answer, Choice, Usage},
    request::{self, Endpoint, Refusal},
    worker::{Command, Event, Job},
};
use ::watch::server::{Body, is_own_name, with_headers};
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited, StreamBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    header::{self, HeaderName, HeaderValue},
    http::request::Parts,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc, watch},
    task::{JoinHandle, JoinSet},
    time::Instant,
};

/// Connections beyond those whose texts are in work or wait; more are closed.
const CONNECTIONS_SPARE: usize = 64;
/// How long a client may take to send its request, and to take each part of the answer.
const CLIENT_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of a request's head and body.
const HEAD_MAX: usize = 16 << 10;
const BODY_MAX: usize = 1 << 20;
/// Bytes of a refused request that are read before the refusal is sent, and for how long.
const REST_MAX: usize = 8 << 20;
const REST_WITHIN: Duration = Duration::from_secs(10);
/// Bytes of each part of a whole answer.
const PART_BYTES: usize = 64 << 10;
/// Bodies that are parsed at once; more wait. JSON takes many times its bytes in memory.
const PARSED_AT_ONCE: usize = 4;
/// Seconds after which a client may try again when too many wait.
const RETRY_AFTER_SECONDS: &str = "2";

const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";

/// The chat page: path, type and content.
const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("../../../assets/chat.html")),
    ("/chat.js", "text/javascript; charset=utf-8", include_str!("../../../assets/chat.js")),
    ("/chat.css", "text/css; charset=utf-8", include_str!("../../../assets/chat.css")),
    ("/icon.svg", "image/svg+xml", ::watch::server::ICON),
];

/// The server, until it is dropped or drained.
pub(super) struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

struct Shared {
    /// The newest model.
    served: watch::Receiver<Arc<Served>>,
    commands: mpsc::Sender<Command>,
    parser_slots: Arc<Semaphore>,
    requests: AtomicU64,
    /// Whether only this machine reaches the address.
    is_private: bool,
}

impl Server {
    /// Serves at `address` from now on; port 0 is a free one. At most `connections` are open, and some more.
    ///
    /// # Errors
    /// If the address is taken or not this machine's.
    pub async fn start(
        address: SocketAddr,
        connections: usize,
        served: watch::Receiver<Arc<Served>>,
        commands: mpsc::Sender<Command>,
    ) -> io::Result<Server> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            served,
            commands,
            parser_slots: Arc::new(Semaphore::new(PARSED_AT_ONCE)),
            requests: AtomicU64::new(0),
            is_private: address.ip().is_loopback(),
        });
        let (stop, stopped) = watch::channel(false);
        let room = Arc::new(Semaphore::new(connections + CONNECTIONS_SPARE));
        let task = tokio::spawn(accept(listener, room, shared, stopped));
        Ok(Server { address, stop, task })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no further connection, closes those without a request, and waits for the answers of the others.
    pub async fn drain(self) {
        self.stop.send_replace(true);
        let _ = self.task.await;
    }
}

async fn accept(
    listener: TcpListener,
    room: Arc<Semaphore>,
    shared: Arc<Shared>,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // For example out of descriptors: a retry at once would fail too.
                    tracing::debug!(%error, "a connection was not taken");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
            () = until_stopped(&mut stopped) => break,
        };
        let Ok(permit) = room.clone().try_acquire_owned() else {
            tracing::debug!("too many connections, one was closed");
            continue;
        };
        let (shared, stopped) = (shared.clone(), stopped.clone());
        connections.spawn(async move {
            let _permit = permit;
            converse(stream, shared, stopped).await;
        });
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

/// Returns when the server drains or is dropped.
async fn until_stopped(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stop| *stop).await;
}

/// Whose turn it is on a connection: the client's until a time, or the model's.
type Turn = Arc<watch::Sender<Option<Instant>>>;

fn client_turn(turn: &Turn) {
    turn.send_replace(Some(Instant::now() + CLIENT_WITHIN));
}

/// One request and its answer.
async fn converse(stream: TcpStream, shared: Arc<Shared>, mut stopped: watch::Receiver<bool>) {
    let (turn, mut turns) = watch::channel(Some(Instant::now() + CLIENT_WITHIN));
    let turn = Arc::new(turn);
    let serve = move |request: Request<Incoming>| {
        let (shared, turn) = (shared.clone(), turn.clone());
        async move {
            let answered = answer(&shared, request, &turn).await;
            client_turn(&turn);
            Ok::<_, Infallible>(answered)
        }
    };
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .max_buf_size(HEAD_MAX)
            .serve_connection(TokioIo::new(stream), service_fn(serve))
    );
    let too_slow = async {
        loop {
            let until = *turns.borrow_and_update();
            let changed = match until {
                Some(until) => tokio::select! {
                    changed = turns.changed() => changed,
                    () = tokio::time::sleep_until(until) => return,
                },
                None => turns.changed().await,
            };
            if changed.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut too_slow = pin!(too_slow);
    let mut is_stopped = false;
    loop {
        tokio::select! {
            ended = &mut served => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            () = &mut too_slow => {
                tracing::debug!("a client was too slow");
                return;
            }
            () = until_stopped(&mut stopped), if !is_stopped => {
                // A connection on which nothing was sent ends.
                is_stopped = true;
                served.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn answer(shared: &Arc<Shared>, request: Request<Incoming>, turn: &Turn) -> Response<Body> {
    let (head, mut body) = request.into_parts();
    match route(shared, &head, &mut body, turn).await {
        Ok(response) => response,
        Err(refusal) => {
            // A connection that is closed with bytes unread is reset, and the client may lose the answer.
            let _ = tokio::time::timeout(REST_WITHIN, read_rest(&mut body)).await;
            let mut response = text(refusal.status, JSON, refusal.json().to_string());
            if refusal.status == StatusCode::TOO_MANY_REQUESTS {
                let seconds = HeaderValue::from_static(RETRY_AFTER_SECONDS);
                response.headers_mut().insert(header::RETRY_AFTER, seconds);
            }
            response
        }
    }
}

/// Reads and drops what is left of a body, up to `REST_MAX` bytes.
async fn read_rest(body: &mut Incoming) {
    let mut bytes = 0;
    while bytes < REST_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
}

async fn route(
    shared: &Arc<Shared>,
    head: &Parts,
    body: &mut Incoming,
    turn: &Turn,
) -> Result<Response<Body>, Refusal> {
    if shared.is_private && !is_own_name(head.headers.get(header::HOST)) {
        // Another site whose name was made to lead to this machine.
        let message = "ask at 127.0.0.1 or localhost: the server is this machine's own";
        return Err(Refusal::new(StatusCode::MISDIRECTED_REQUEST, message));
    }
    let path = head.uri.path();
    let endpoint = match path {
        "/v1/completions" => Some(Endpoint::Completions),
        "/v1/chat/completions" => Some(Endpoint::Chat),
        _ => None,
    };
    if let Some(endpoint) = endpoint {
        return match head.method {
            Method::POST => complete(shared, endpoint, head, body, turn).await,
            _ => Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "only POST")),
        };
    }
    let file = FILES.iter().find(|(name, _, _)| *name == path);
    let model = path.strip_prefix("/v1/models").and_then(|rest| match rest {
        "" => Some(None),
        _ => rest.strip_prefix('/').map(Some),
    });
    if file.is_none() && model.is_none() {
        let message = "not found: there are /v1/models, /v1/completions and /v1/chat/completions";
        return Err(Refusal::new(StatusCode::NOT_FOUND, message));
    }
    if head.method != Method::GET {
        return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "only GET"));
    }
    if let Some((_, kind, content)) = file {
        return Ok(text(StatusCode::OK, kind, *content));
    }
    let served = shared.served.borrow().clone();
    let about = &served.about;
    let value = match model.flatten() {
        None => json!({ "object": "list", "data": [answer::model(about)] }),
        Some(name) if name == about.name => answer::model(about),
        Some(name) => return Err(request::no_such_model(name, &served)),
    };
    Ok(of_model(text(StatusCode::OK, JSON, value.to_string()), about))
}

async fn complete(
    shared: &Arc<Shared>,
    endpoint: Endpoint,
    head: &Parts,
    body: &mut Incoming,
    turn: &Turn,
) -> Result<Response<Body>, Refusal> {
    let kind = head.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let kind = kind.and_then(|kind| kind.split(';').next()).map(str::trim);
    // A page of another site can send anything but this type without asking this server first.
    if kind != Some(JSON) {
        let message = "the header content-type has to be application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message));
    }
    let body = Limited::new(body, BODY_MAX).collect().await.map_err(|error| {
        match error.downcast_ref::<LengthLimitError>() {
            Some(_) => {
                let message = format!("the body has more than {BODY_MAX} bytes");
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, message)
            }
            None => Refusal::new(StatusCode::BAD_REQUEST, "the body could not be read"),
        }
    })?;
    // From now on, the client waits.
    turn.send_replace(None);
    let body = body.to_bytes();
    let slot = shared.parser_slots.clone().acquire_owned().await;
    let served = shared.served.borrow().clone();
    let number = shared.requests.fetch_add(1, Ordering::Relaxed);
    let seed = now().as_nanos() as u64 ^ number.rotate_right(16);
    let parsed = tokio::task::spawn_blocking(move || {
        // The slot is taken until the parser ends, also if the client hangs up before.
        let _slot = slot;
        request::parse(endpoint, &body, &served, seed)
    })
    .await;
    let request = parsed
        .map_err(|_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "the request cannot be read"))??;

    let has_logprobs = request.texts.iter().any(|text| text.logprobs.is_some());
    let (jobs, mut events): (Vec<Job>, Vec<_>) = request.texts.into_iter().map(Job::new).unzip();
    shared.commands.try_send(Command::Continue(jobs)).map_err(|error| match error {
        mpsc::error::TrySendError::Full(_) => Refusal {
            code: Some("queue_full"),
            ..Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too many requests wait: try again later")
        },
        mpsc::error::TrySendError::Closed(_) => failed(),
    })?;
    // Headers name the model that answers, which is certain when the first text is begun.
    let Some(Event::Started(about)) = events[0].recv().await else { return Err(failed()) };
    let answer = Answer {
        endpoint,
        id: format!(
            "{}-{:016x}",
            if endpoint == Endpoint::Chat { "chatcmpl" } else { "cmpl" },
            now().as_nanos() as u64
        ),
        created: now().as_secs(),
        model: about.name.clone(),
        has_logprobs,
    };
    if request.is_stream {
        let first = Event::Started(about.clone());
        let body = body_of(stream(answer, first, events, request.stream_usage), turn.clone());
        return Ok(of_model(with_headers(StatusCode::OK, EVENTS, body), &about));
    }
    let mut choices = Vec::with_capacity(events.len());
    let mut usage = Usage::default();
    for mut events in events {
        let mut choice = Choice::default();
        while let Some(event) = events.recv().await {
            usage.add(&event);
            choice.add(event);
        }
        if !choice.is_ended() {
            return Err(failed());
        }
        choices.push(choice);
    }
    let value = answer.whole(&choices, usage);
    let content = Bytes::from(value.to_string());
    let bytes = HeaderValue::from(content.len());
    let mut response = with_headers(StatusCode::OK, JSON, body_of(parts(content), turn.clone()));
    response.headers_mut().insert(header::CONTENT_LENGTH, bytes);
    Ok(of_model(response, &about))
}

fn failed() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "the model has stopped: see the server's log")
}

fn now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The answer as server-sent events.
fn stream(
    answer: Answer,
    first: Event,
    events: Vec<mpsc::Receiver<Event>>,
    with_usage: bool,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let texts = events.len();
    let events = events.into_iter().enumerate().map(|(index, mut events)| {
        let events = futures::stream::poll_fn(move |context| events.poll_recv(context));
        events.map(move |event| (index, event))
    });
    let events = futures::stream::iter([(0, first)]).chain(futures::stream::select_all(events));
    let mut usage = Usage::default();
    let (mut offsets, mut ended) = (vec![0; texts], 0);
    let parts = events.map(Some).chain(futures::stream::iter([None])).map(move |event| match event {
        Some((index, event)) => {
            usage.add(&event);
            let part = answer.part(index, &event, offsets[index]);
            match &event {
                Event::Part { text, .. } => offsets[index] += text.chars().count(),
                Event::Ended { .. } => ended += 1,
                Event::Started(_) if answer.endpoint == Endpoint::Completions => return String::new(),
                Event::Started(_) => {}
            }
            format!("data: {part}\n\n")
        }
        None if ended < texts => format!("data: {}\n\n", failed().json()),
        None if with_usage => format!("data: {}\n\ndata: [DONE]\n\n", answer.usage(usage)),
        None => "data: [DONE]\n\n".to_owned(),
    });
    parts.filter(|part| std::future::ready(!part.is_empty())).map(Bytes::from)
}

/// A whole answer in parts, as it may be long.
fn parts(mut content: Bytes) -> impl Stream<Item = Bytes> + Send + 'static {
    futures::stream::iter(std::iter::from_fn(move || {
        let part = content.split_to(content.len().min(PART_BYTES));
        (!part.is_empty()).then_some(part)
    }))
}

/// The parts as a body. While it waits for a part, it is the model's turn.
fn body_of(parts: impl Stream<Item = Bytes> + Send + 'static, turn: Turn) -> Body {
    let mut parts = Box::pin(parts);
    let frames = futures::stream::poll_fn(move |context| {
        let polled = parts.as_mut().poll_next(context);
        match &polled {
            Poll::Pending => drop(turn.send_replace(None)),
            Poll::Ready(_) => client_turn(&turn),
        }
        polled.map(|part| part.map(|part| Ok::<_, Infallible>(Frame::data(part))))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn text(status: StatusCode, kind: &'static str, content: impl Into<Bytes>) -> Response<Body> {
    with_headers(status, kind, Full::new(content.into()).boxed_unsync())
}

/// Names the model in the headers.
fn of_model(mut response: Response<Body>, about: &About) -> Response<Body> {
    let mut name = |header: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(HeaderName::from_static(header), value);
        }
    };
    name("x-mettle-root", about.weights_root.to_string());
    if let Some(of) = &about.of_run {
        name("x-mettle-run", of.run.to_string());
        name("x-mettle-window", of.window.0.to_string());
        name("x-mettle-lineage", of.lineage.to_string());
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_slow_client_has_its_time_for_each_part_of_a_whole_answer() {
        let (turn, turns) = watch::channel(None);
        let content = Bytes::from(vec![b'x'; 3 * PART_BYTES + 1]);
        let mut body = body_of(parts(content.clone()), Arc::new(turn));
        let (mut frames, mut taken) = (0, Vec::new());
        while let Some(frame) = body.frame().await {
            taken.extend(frame.unwrap().into_data().unwrap());
            frames += 1;
            assert_eq!(*turns.borrow(), Some(Instant::now() + CLIENT_WITHIN));
            tokio::time::advance(CLIENT_WITHIN / 2).await;
        }
        assert!(frames == 4 && taken == content, "{frames}");
    }

    #[test]
    fn the_page_has_no_inline_script_and_writes_no_html() {
        let of = |path: &str| FILES.iter().find(|(name, _, _)| *name == path).unwrap().2;
        let html = of("/");
        assert_eq!(html.matches("<script").count(), html.matches("<script src=\"/").count());
        for forbidden in
            [" onload=", " onclick=", " onsubmit=", " style=", "javascript:", "http://", "https://"]
        {
            assert!(!html.contains(forbidden), "{forbidden} is in the page");
        }
        for forbidden in
            ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("]
        {
            assert!(!of("/chat.js").contains(forbidden), "{forbidden} is in the script");
        }
        assert!(!of("/chat.css").contains("url("));
        // Whatever the page asks for is a file of this server.
        for part in html.split(['"']).filter(|part| part.starts_with('/')) {
            assert!(FILES.iter().any(|(name, _, _)| *name == part), "{part} is not served");
        }
        // Each field has a name for a screen reader.
        let fields = ["<input", "<select", "<textarea"].map(|field| html.matches(field).count());
        assert_eq!(html.matches("<label").count(), fields.iter().sum::<usize>());
    }
}
