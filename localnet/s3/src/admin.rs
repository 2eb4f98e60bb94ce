//! Fault injection from another process: an HTTP port beside the S3 port, on a loopback address only.
//!
//! | request | does |
//! |---|---|
//! | `GET /traffic` | returns one line per bucket: `name received_bytes sent_bytes requests refused` |
//! | `GET /faults/BUCKET` | returns the faults that are left, as a query string |
//! | `PUT /faults/BUCKET?unavailable=3&…` | replaces the faults: see [`Faults`] |
//! | `DELETE /faults/BUCKET` | ends the faults |
//!
//! Each request needs the header [`TOKEN_HEADER`]. A value is a [`Rate`](crate::Rate), a number, or a text.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::faults::{from_query, to_query};
use crate::{Faults, State};

/// The header with the token of the server.
pub const TOKEN_HEADER: &str = "x-mettle-token";

/// Why faults could not be injected.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error("could not reach the admin port at {address}")]
    Unreachable { address: SocketAddr, source: reqwest::Error },
    #[error("the admin port refused the request: {status} {answer}")]
    Refused { status: u16, answer: String },
}

/// Replaces the faults of a bucket from another process. `Faults::default()` ends them.
pub async fn inject(
    address: SocketAddr,
    token: &str,
    bucket: &str,
    faults: &Faults,
) -> Result<(), InjectError> {
    let url = format!("http://{address}/faults/{bucket}?{}", to_query(faults));
    ask(address, token, Method::PUT, url).await.map(|_| ())
}

/// The traffic of each bucket: the lines of `GET /traffic`.
pub async fn traffic(address: SocketAddr, token: &str) -> Result<String, InjectError> {
    ask(address, token, Method::GET, format!("http://{address}/traffic")).await
}

async fn ask(address: SocketAddr, token: &str, method: Method, url: String) -> Result<String, InjectError> {
    let unreachable = |source| InjectError::Unreachable { address, source };
    store::tls::install_provider();
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .timeout(std::time::Duration::from_secs(10))
        .build()
        .map_err(unreachable)?;
    let response =
        client.request(method, url).header(TOKEN_HEADER, token).send().await.map_err(unreachable)?;
    let status = response.status();
    let answer = response.text().await.map_err(unreachable)?;
    if status.is_success() {
        Ok(answer)
    } else {
        Err(InjectError::Refused { status: status.as_u16(), answer })
    }
}

/// Serves until dropped. An exchange is one short request without a body, one answer, and the end of the connection.
pub(super) async fn serve(listener: TcpListener, state: Arc<State>, token: String) {
    let admin = Admin { state, token: blake3::hash(token.as_bytes()) };
    loop {
        match listener.accept().await {
            // One at a time: the clients are tests and localnet.
            Ok((stream, _)) => {
                let exchange = tokio::time::timeout(Duration::from_secs(5), admin.exchange(stream));
                match exchange.await {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::debug!(%error, "an admin request broke off"),
                    Err(_) => tracing::debug!("an admin request took too long"),
                }
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

struct Admin {
    state: Arc<State>,
    /// Hashed, because hashes compare in constant time.
    token: blake3::Hash,
}

/// The used parts of a request's head.
struct Request {
    method: String,
    path: String,
    query: String,
    token: Option<String>,
}

const HEAD_BYTES_MAX: usize = 8 << 10;

impl Admin {
    async fn exchange(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut head = Vec::new();
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            if head.len() > HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
                return stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await;
            }
        }
        let (status, text) = match Request::read(&String::from_utf8_lossy(&head)) {
            None => ("400 Bad Request", "not an HTTP request\n".to_owned()),
            Some(request) => self.answer(&request),
        };
        let length = text.len();
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{text}"
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    }

    fn answer(&self, request: &Request) -> (&'static str, String) {
        let shown = request.token.as_ref().map(|token| blake3::hash(token.as_bytes()));
        if shown != Some(self.token) {
            return ("401 Unauthorized", format!("the header {TOKEN_HEADER} must have the token\n"));
        }
        let mut path = request.path.trim_matches('/').split('/');
        let (what, bucket) = (path.next().unwrap_or_default(), path.next());
        match (request.method.as_str(), what, bucket) {
            ("GET", "traffic", None) => ("200 OK", self.traffic()),
            (method, "faults", Some(name)) => match self.state.bucket(name) {
                Err(unknown) => ("404 Not Found", format!("{unknown}\n")),
                Ok(bucket) => match method {
                    "GET" => ("200 OK", format!("{}\n", to_query(&bucket.faults.remaining()))),
                    "DELETE" => {
                        bucket.faults.inject(Faults::default());
                        ("200 OK", String::new())
                    }
                    "PUT" => match from_query(&request.query) {
                        Ok(faults) => {
                            tracing::info!(bucket = name, faults = to_query(&faults), "injecting faults");
                            bucket.faults.inject(faults);
                            ("200 OK", String::new())
                        }
                        Err(bad) => ("400 Bad Request", format!("{bad}\n")),
                    },
                    _ => ("405 Method Not Allowed", "GET, PUT or DELETE\n".into()),
                },
            },
            _ => ("404 Not Found", "GET /traffic, or GET, PUT or DELETE /faults/BUCKET\n".into()),
        }
    }

    fn traffic(&self) -> String {
        let mut lines = String::new();
        for (name, bucket) in &self.state.buckets {
            let crate::BucketTraffic { received_bytes, sent_bytes, requests, refused } = bucket.totals();
            writeln!(lines, "{name} {received_bytes} {sent_bytes} {requests} {refused}")
                .expect("writing to a string cannot fail");
        }
        lines
    }
}

impl Request {
    fn read(head: &str) -> Option<Request> {
        let mut lines = head.split("\r\n");
        let mut first = lines.next()?.split(' ');
        let (method, target, version) = (first.next()?, first.next()?, first.next()?);
        if first.next().is_some() || !version.starts_with("HTTP/1.") || !target.starts_with('/') {
            return None;
        }
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let token = lines.find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case(TOKEN_HEADER).then(|| value.trim().to_owned())
        });
        Some(Request { method: method.into(), path: path.into(), query: query.into(), token })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_and_anything_else_is_refused() {
        let head = "PUT /faults/a?missing=1 HTTP/1.1\r\nhost: x\r\nX-Mettle-Token:  hush \r\n\r\n";
        let request = Request::read(head).expect("a request");
        assert_eq!((request.method.as_str(), request.path.as_str()), ("PUT", "/faults/a"));
        assert_eq!((request.query.as_str(), request.token.as_deref()), ("missing=1", Some("hush")));
        for garbage in ["", "GET", "GET / HTTP/2 x", "GET http://elsewhere/ HTTP/1.1", "a b c"] {
            assert!(Request::read(garbage).is_none(), "{garbage:?}");
        }
    }
}
