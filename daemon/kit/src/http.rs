//! The HTTP server of all programs: an axum [`Router`] behind one accept loop and one set of limits.
//!
//! Any client that reaches the address may use it. What a client can make the server hold or wait for is bounded. A
//! server on a loopback address belongs to its machine: it refuses a request whose `Host` or `Origin` names a site, so
//! that no site can reach it through the browsers of its visitors.

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{body::Incoming, server::conn::http1, service::Service as _, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use serde_json::{Value, json};
use std::{convert::Infallible, io, net::IpAddr, net::SocketAddr, sync::Arc, task::Poll, time::Duration};
use tokio::{
    net::TcpListener,
    sync::{oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout, timeout_at},
};

/// The limits that differ between servers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections at once; more are closed.
    connections: usize,
    /// Bytes of a request's body.
    body_bytes: usize,
}

impl Limits {
    /// A server that only answers GET.
    pub const READ_ONLY: Limits = Limits { connections: 128, body_bytes: 4 << 10 };

    /// A server with `requests` in work or waiting.
    pub const fn with_requests(requests: usize) -> Limits {
        Limits { connections: requests + 64, body_bytes: 1 << 20 }
    }
}

/// How long a client may take to send its request, and to take each part of the answer.
pub const CLIENT_WITHIN: Duration = Duration::from_secs(30);
/// Bytes of each part of an answer.
const PART_BYTES: usize = 64 << 10;
/// Bytes of a request's head, and of path and query in it.
const HEAD_BYTES_MAX: usize = 16 << 10;
const TARGET_BYTES_MAX: usize = 256;
/// Bytes of a refused request that are read before the refusal is sent, and for how long.
const REFUSED_BYTES_MAX: usize = 16 << 20;
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// How long answers in work may take after [`Server::drain`].
const DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// Between two tries to accept after a failure, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Nothing but this server's own files: no inline script, no other site, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every answer. A browser may do nothing but what our pages need, and stores nothing.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
];

#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    #[error("{what} cannot be served at {address}: another program uses the port. Choose another one")]
    PortTaken { what: &'static str, address: SocketAddr },
    #[error("{what} cannot be served at {address}: is it an address of this machine?")]
    Address { what: &'static str, address: SocketAddr, source: io::Error },
}

#[derive(Debug, thiserror::Error)]
#[error("answers were not finished within {} s", DRAIN_WITHIN.as_secs())]
pub struct DrainError;

/// A server. Dropping it closes all connections.
pub struct Server {
    address: SocketAddr,
    /// Stops accepting when it is dropped.
    stop: oneshot::Sender<()>,
    task: JoinSet<()>,
}

impl Server {
    /// Starts to serve `what`, named in errors, at `address`; port 0 is a free one.
    ///
    /// # Errors
    /// If another program uses the port, or the address is not this machine's.
    pub async fn start(
        what: &'static str,
        address: SocketAddr,
        limits: Limits,
        router: Router,
    ) -> Result<Server, ListenError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::PortTaken { what, address },
            _ => ListenError::Address { what, address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let is_private = address.ip().is_loopback();
        let service = Service { router: TowerToHyperService::new(router), limits, is_private };
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(accept(listener, Arc::new(service), stopped));
        Ok(Server { address, stop, task })
    }

    /// The address, with the port that was found.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts no further connection, closes those without a request, and waits for the answers of the others.
    ///
    /// # Errors
    /// If they take longer than a minute; their connections are closed.
    pub async fn drain(self) -> Result<(), DrainError> {
        let Server { stop, mut task, .. } = self;
        drop(stop);
        timeout(DRAIN_WITHIN, task.join_next()).await.map(drop).map_err(|_| DrainError)
    }
}

async fn accept(listener: TcpListener, service: Arc<Service>, mut stopped: oneshot::Receiver<()>) {
    let (graceful, mut connections) = (GracefulShutdown::new(), JoinSet::new());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = &mut stopped => break,
        };
        while connections.try_join_next().is_some() {}
        match accepted {
            Ok((stream, _)) if connections.len() < service.limits.connections => {
                let (turn, turns) = Turn::new();
                let service = service.clone();
                let answer = service_fn(move |request| {
                    let (service, turn) = (service.clone(), turn.clone());
                    async move { Ok::<_, Infallible>(service.answer(request, turn).await) }
                });
                let mut builder = http1::Builder::new();
                builder.timer(TokioTimer::new()).keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
                let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), answer));
                connections.spawn(async move {
                    tokio::select! {
                        ended = connection => {
                            if let Err(error) = ended {
                                tracing::debug!(%error, "a connection broke");
                            }
                        }
                        () = too_slow(turns) => tracing::debug!("a client was too slow"),
                    }
                });
            }
            Ok(_) => tracing::debug!("too many connections, one was closed"),
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                sleep(ACCEPT_RETRY).await;
            }
        }
    }
    drop(listener);
    graceful.shutdown().await;
}

/// Whose turn it is on a connection: the client's until a time, or the server's.
#[derive(Clone)]
struct Turn(Arc<watch::Sender<Option<Instant>>>);

impl Turn {
    fn new() -> (Turn, watch::Receiver<Option<Instant>>) {
        let (turn, turns) = watch::channel(Some(Instant::now() + CLIENT_WITHIN));
        (Turn(Arc::new(turn)), turns)
    }

    fn client(&self) {
        self.0.send_replace(Some(Instant::now() + CLIENT_WITHIN));
    }

    fn server(&self) {
        self.0.send_replace(None);
    }

    /// The body in parts. While it waits for a part, it is the server's turn.
    fn paced(self, body: Body) -> Body {
        let (mut parts, mut rest) = (body.into_data_stream(), Bytes::new());
        Body::from_stream(futures::stream::poll_fn(move |context| {
            while rest.is_empty() {
                match parts.poll_next_unpin(context) {
                    Poll::Ready(Some(Ok(part))) => rest = part,
                    Poll::Ready(ended) => return Poll::Ready(ended),
                    Poll::Pending => {
                        self.server();
                        return Poll::Pending;
                    }
                }
            }
            self.client();
            let part = rest.split_to(rest.len().min(PART_BYTES));
            Poll::Ready(Some(Ok(part)))
        }))
    }
}

/// Returns when the client has exceeded its time.
async fn too_slow(mut turns: watch::Receiver<Option<Instant>>) {
    loop {
        let until = *turns.borrow_and_update();
        let changed = match until {
            Some(until) => timeout_at(until, turns.changed()).await.is_ok_and(|changed| changed.is_ok()),
            None => turns.changed().await.is_ok(),
        };
        if !changed {
            return;
        }
    }
}

struct Service {
    router: TowerToHyperService<Router>,
    limits: Limits,
    /// Whether only this machine reaches the address.
    is_private: bool,
}

impl Service {
    async fn answer(&self, request: Request<Incoming>, turn: Turn) -> Response {
        let (head, mut body) = request.into_parts();
        let mut response = match self.receive(&head, &mut body).await {
            Ok(bytes) => {
                turn.server();
                let Ok(response) = self.router.call(Request::from_parts(head, Body::from(bytes))).await;
                response
            }
            Err((status, message)) => {
                // A connection that is closed with bytes unread is reset, and the client may lose the answer.
                let _ = timeout(REFUSED_WITHIN, discard(&mut body)).await;
                // The form of OpenAI's API.
                let error = json!({ "message": message, "type": "invalid_request_error" });
                json_response(status, &json!({ "error": error }))
            }
        };
        let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
        response.headers_mut().extend(headers);
        turn.client();
        response.map(|body| turn.paced(body))
    }

    /// Checks a request and reads its body.
    async fn receive(&self, head: &Parts, body: &mut Incoming) -> Result<Bytes, (StatusCode, String)> {
        let refused = |status, message: &str| Err((status, message.to_owned()));
        if self.is_private && !names_this_machine(&head.headers) {
            return refused(
                StatusCode::MISDIRECTED_REQUEST,
                "use 127.0.0.1 or localhost: only this machine is served",
            );
        }
        if head.method == Method::HEAD {
            return refused(StatusCode::METHOD_NOT_ALLOWED, "HEAD is not served: use GET");
        }
        if head.uri.path_and_query().is_some_and(|target| TARGET_BYTES_MAX < target.as_str().len()) {
            let message = format!("path and query have more than {TARGET_BYTES_MAX} bytes");
            return refused(StatusCode::URI_TOO_LONG, &message);
        }
        let body_bytes = self.limits.body_bytes;
        match Limited::new(body, body_bytes).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => {
                let message = format!("the body has more than {body_bytes} bytes");
                refused(StatusCode::PAYLOAD_TOO_LARGE, &message)
            }
            Err(_) => refused(StatusCode::BAD_REQUEST, "the body could not be read"),
        }
    }
}

/// Reads and drops the rest of a body, up to [`REFUSED_BYTES_MAX`].
async fn discard(body: &mut Incoming) {
    let mut bytes = 0;
    while bytes < REFUSED_BYTES_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        bytes += frame.data_ref().map_or(0, Bytes::len);
    }
}

/// Whether a request was made to an address or `localhost`, and not by a page of another site. A browser always sends
/// `Host`; simple monitors do not.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let is_own = |authority: &str| {
        let name = match authority.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => authority,
        };
        name == "localhost"
            || name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
    };
    let is_own_origin =
        |origin: &str| origin.split_once("://").is_some_and(|(_, authority)| is_own(authority));
    let check = |name, is_own: &dyn Fn(&str) -> bool| {
        headers.get(name).is_none_or(|value: &HeaderValue| value.to_str().is_ok_and(is_own))
    };
    check(header::HOST, &is_own) && check(header::ORIGIN, &is_own_origin)
}

/// A file that is part of the program: path, type and content.
pub type File = (&'static str, &'static str, &'static str);

/// Routes to files.
pub fn files<S: Clone + Send + Sync + 'static>(files: &'static [File]) -> Router<S> {
    files.iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(|| async { ([(header::CONTENT_TYPE, *kind)], *content) }))
    })
}

/// An answer in JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}
