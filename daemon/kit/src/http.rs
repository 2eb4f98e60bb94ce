//! The HTTP server for metrics, pages and models: an axum [`Router`] behind one accept loop and one set of limits.
//!
//! No authentication. Every resource that a client can occupy is bounded. A server on a loopback address belongs to
//! its machine: it refuses a request whose `Host` or `Origin` names a site, so that no site can reach it through the
//! browsers of its visitors.

use axum::{
    Router,
    body::{Body, Bytes},
    http::{HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
    routing::get,
};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::{body::Incoming, server::conn::http1, service::Service as _, service::service_fn};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use serde_json::{Value, json};
use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::TcpListener,
    sync::oneshot,
    task::JoinSet,
    time::{error::Elapsed, sleep, timeout},
};
use tokio_io_timeout::TimeoutStream;

/// The limits that differ between servers.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections; further ones are closed.
    connections: usize,
    /// Maximum size of a request's body, in bytes.
    body_bytes: usize,
}

impl Limits {
    /// Limits of a server that only answers GET.
    pub const READ_ONLY: Limits = Limits { connections: 128, body_bytes: 4 << 10 };

    /// Returns the limits of a server with `requests` in progress or waiting.
    pub const fn with_requests(requests: usize) -> Limits {
        Limits { connections: requests + 64, body_bytes: 1 << 20 }
    }
}

/// Time limit for a client to send a request's head, to send its body, and to accept any byte of the answer.
const CLIENT_WITHIN: Duration = Duration::from_secs(30);
/// Maximum size of a request's head, and of path and query in it, in bytes.
const HEAD_BYTES_MAX: usize = 16 << 10;
const TARGET_BYTES_MAX: usize = 256;
/// Maximum number of bytes of a refused request that are read before the refusal is sent, and the time limit.
const REFUSED_BYTES_MAX: usize = 16 << 20;
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// Time limit of answers in progress after [`Server::drain`].
const DRAIN_WITHIN: Duration = Duration::from_secs(60);
/// Delay before accepting again after a failure, such as too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Allows only this server's own files: no inline script, no other site, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Headers of every answer. A browser may do only what our pages need, and stores nothing.
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
    /// Accepting stops when this is dropped.
    stop: oneshot::Sender<()>,
    task: JoinSet<()>,
}

impl Server {
    /// Starts to serve `what`, named in errors, at `address`; port 0 selects a free one.
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

    /// Returns the address with the selected port.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops accepting connections, closes those without a request, and waits for the answers of the others.
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
                let mut stream = TimeoutStream::new(stream);
                stream.set_write_timeout(Some(CLIENT_WITHIN));
                let service = service.clone();
                let answer = service_fn(move |request| {
                    let service = service.clone();
                    async move { service.answer(request).await }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(CLIENT_WITHIN)
                    .keep_alive(false)
                    .max_buf_size(HEAD_BYTES_MAX)
                    .serve_connection(TokioIo::new(Box::pin(stream)), answer);
                let connection = graceful.watch(connection);
                connections.spawn(async move {
                    if let Err(error) = connection.await {
                        tracing::debug!(%error, "a connection broke");
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

struct Service {
    router: TowerToHyperService<Router>,
    limits: Limits,
    /// The address can be reached only from this machine.
    is_private: bool,
}

impl Service {
    /// # Errors
    /// If the client takes too long to send its request: the connection is closed.
    async fn answer(&self, request: Request<Incoming>) -> Result<Response, Elapsed> {
        let (head, mut body) = request.into_parts();
        let mut response = match timeout(CLIENT_WITHIN, self.receive(&head, &mut body)).await? {
            Ok(bytes) => {
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
        Ok(response)
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

/// Returns whether a request was made to an address or `localhost`, and not by a page of another site. A browser
/// always sends `Host`; simple monitors do not.
fn names_this_machine(headers: &HeaderMap) -> bool {
    let is_own = |authority: &str| {
        let name = match authority.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => name,
            _ => authority,
        };
        name == "localhost" || name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok()
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

/// Returns routes to files.
pub fn files<S: Clone + Send + Sync + 'static>(files: &'static [File]) -> Router<S> {
    files.iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(|| async { ([(header::CONTENT_TYPE, *kind)], *content) }))
    })
}

/// Returns an answer in JSON.
pub fn json_response(status: StatusCode, value: &Value) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], value.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::post;
    use std::{convert::Infallible, future::pending};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
        time::Instant,
    };

    async fn start(limits: Limits, router: Router) -> Server {
        Server::start("a test", SocketAddr::from(([127, 0, 0, 1], 0)), limits, router).await.unwrap()
    }

    /// Starts a server that counts the bytes of a body and never answers at `/never`.
    async fn echo() -> Server {
        let router = Router::new()
            .route("/", get(async || "here"))
            .route("/count", post(async |body: Bytes| body.len().to_string()))
            .route("/never", get(pending::<()>));
        start(Limits { connections: 2, body_bytes: 1000 }, router).await
    }

    async fn send(server: &Server, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    async fn ask(server: &Server, request: &str) -> String {
        let mut answer = String::new();
        send(server, request).await.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn get_of(headers: &str) -> String {
        format!("GET / HTTP/1.1\r\n{headers}\r\n\r\n")
    }

    #[tokio::test]
    async fn a_request_out_of_bounds_is_refused_with_the_bound_and_safe_headers() {
        let server = echo().await;
        let post = |bytes: usize| {
            let body = "x".repeat(bytes);
            format!("POST /count HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n{body}")
        };
        assert!(ask(&server, &post(1000)).await.ends_with("1000"));
        let long = get_of("Host: localhost").replace(" / ", &format!(" /{} ", "x".repeat(TARGET_BYTES_MAX)));
        for (request, status, message) in [
            (post(1001), 413, "the body has more than 1000 bytes"),
            (post(10 << 20), 413, "the body has more than 1000 bytes"),
            (long, 414, "more than 256 bytes"),
            (get_of("Host: localhost").replace("GET", "HEAD"), 405, ""),
            (get_of("Host: evil.example"), 421, "use 127.0.0.1 or localhost"),
        ] {
            let answer = ask(&server, &request).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
            assert!(answer.contains(message), "{answer}");
            for line in ["content-security-policy: default-src 'none';", "x-content-type-options: nosniff"] {
                assert!(answer.contains(line), "{status} lacks {line}: {answer}");
            }
        }
        let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nx: {}\r\n\r\n", "x".repeat(HEAD_BYTES_MAX));
        assert!(ask(&server, &head).await.starts_with("HTTP/1.1 431 "));
    }

    #[tokio::test]
    async fn only_a_request_to_this_machine_is_answered_on_a_loopback_address() {
        let server = echo().await;
        for (headers, status) in [
            ("Host: localhost", 200),
            ("Host: 127.0.0.1:8440", 200),
            ("Host: [::1]:80", 200),
            ("Accept: */*", 200),
            ("Host: localhost\r\nOrigin: http://localhost:3000", 200),
            ("Host: ", 421),
            ("Host: evil.example:80", 421),
            ("Host: localhost.evil.example", 421),
            ("Host: localhost\r\nOrigin: https://evil.example", 421),
            ("Host: localhost\r\nOrigin: null", 421),
        ] {
            let answer = ask(&server, &get_of(headers)).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{headers}: {answer}");
        }
    }

    #[tokio::test]
    async fn connections_beyond_the_bound_are_closed_until_one_ends() {
        let server = echo().await;
        let never = "GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let mut open = vec![send(&server, never).await, send(&server, never).await];
        let third = async || {
            let mut answer = Vec::new();
            let mut stream = TcpStream::connect(server.address()).await.unwrap();
            // A connection that was closed may be reset.
            let _ = stream.write_all(get_of("Host: localhost").as_bytes()).await;
            let _ = stream.read_to_end(&mut answer).await;
            answer
        };
        assert!(third().await.is_empty());
        open.pop();
        let answered = async || while third().await.is_empty() {};
        timeout(Duration::from_secs(20), answered()).await.expect("there is room again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_no_answer_is_dropped() {
        let endless =
            || Body::from_stream(futures::stream::repeat(Ok::<_, Infallible>(Bytes::from(vec![0; 1 << 20]))));
        let server = start(Limits::READ_ONLY, Router::new().route("/", get(async move || endless()))).await;
        let mut client = send(&server, &get_of("Host: localhost")).await;
        let began = Instant::now();
        sleep(2 * CLIENT_WITHIN).await;
        let mut buffer = vec![0; 1 << 20];
        // The content of the system's buffers, and then the end or a reset.
        while let Ok(1..) = client.read(&mut buffer).await {}
        assert!(began.elapsed() < 3 * CLIENT_WITHIN, "the body was endless");
    }

    /// A tenth of the answer every 20 s: more than a minute in all.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_its_answer_slowly_gets_all_of_it() {
        const BYTES: usize = 64 << 20;
        let router = Router::new().route("/", get(async || vec![b'x'; BYTES]));
        let server = start(Limits::READ_ONLY, router).await;
        let mut client = send(&server, &get_of("Host: localhost")).await;
        let (mut part, mut taken) = (vec![0; BYTES / 10], 0);
        for _ in 0..10 {
            client.read_exact(&mut part).await.unwrap();
            taken += part.len();
            sleep(2 * CLIENT_WITHIN / 3).await;
        }
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert!(BYTES < taken + rest.len(), "{}", rest.len());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_drains_waits_for_an_answer_but_not_for_ever() {
        let begun = Arc::new(tokio::sync::Notify::new());
        let never = {
            let begun = begun.clone();
            async move || {
                begun.notify_one();
                pending::<()>().await
            }
        };
        let server = start(Limits::READ_ONLY, Router::new().route("/never", get(never))).await;
        let address = server.address();
        let mut idle = TcpStream::connect(address).await.unwrap();
        let mut client = send(&server, "GET /never HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        begun.notified().await;
        let began = Instant::now();
        let drained = tokio::spawn(server.drain());
        assert_eq!(idle.read(&mut [0]).await.unwrap(), 0, "a connection without a request ends at once");
        assert!(drained.await.unwrap().is_err());
        assert!(DRAIN_WITHIN <= began.elapsed() && began.elapsed() < 2 * DRAIN_WITHIN);
        assert!(!matches!(client.read(&mut [0]).await, Ok(1..)), "the answer never came");
        assert!(TcpStream::connect(address).await.is_err());
    }
}
