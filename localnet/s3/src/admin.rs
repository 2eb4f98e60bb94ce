//! Fault injection from another process: an HTTP port next to the S3 port, on a loopback address only.
//!
//! | request | does |
//! |---|---|
//! | `GET /traffic` | returns one line per bucket: `name received_bytes sent_bytes requests refused` |
//! | `GET /faults/BUCKET` | returns the remaining faults, as a query string |
//! | `PUT /faults/BUCKET?unavailable=3&…` | replaces the faults: see [`Faults`] |
//! | `DELETE /faults/BUCKET` | ends the faults |
//!
//! Each request needs the header [`TOKEN_HEADER`]. A value is a [`Rate`](crate::Rate), a number, or a text.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper::http::Extensions;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use s3s::route::S3Route;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{Body, S3, S3Request, S3Response, S3Result};

use crate::faults::{from_query, to_query};
use crate::{Faults, State};

/// Name of the header with the server's token.
pub const TOKEN_HEADER: &str = "x-mettle-token";

/// Error of [`inject`].
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error("could not reach the admin port at {address}")]
    Unreachable { address: SocketAddr, source: reqwest::Error },
    #[error("the admin port refused the request: {status} {answer}")]
    Refused { status: u16, answer: String },
}

/// Replaces the faults of a bucket from another process. `Faults::default()` ends them.
///
/// # Errors
/// If the admin port is unreachable or refuses the request.
pub async fn inject(
    address: SocketAddr,
    token: &str,
    bucket: &str,
    faults: &Faults,
) -> Result<(), InjectError> {
    let unreachable = |source| InjectError::Unreachable { address, source };
    store::tls::install_provider();
    let client = reqwest::Client::builder()
        .no_proxy()
        .tls_certs_only([])
        .timeout(Duration::from_secs(10))
        .build()
        .map_err(unreachable)?;
    let url = format!("http://{address}/faults/{bucket}?{}", to_query(faults));
    let response = client.put(url).header(TOKEN_HEADER, token).send().await.map_err(unreachable)?;
    let status = response.status();
    let answer = response.text().await.map_err(unreachable)?;
    if status.is_success() { Ok(()) } else { Err(InjectError::Refused { status: status.as_u16(), answer }) }
}

/// Returns the service of the admin port. It answers every request itself and serves no operation of S3.
pub(super) fn service(state: Arc<State>, token: &str) -> S3Service {
    struct NoOperations;
    impl S3 for NoOperations {}

    let mut service = S3ServiceBuilder::new(NoOperations);
    service.set_route(Admin { state, token: blake3::hash(token.as_bytes()) });
    service.build()
}

struct Admin {
    state: Arc<State>,
    /// Hash of the token, because hashes compare in constant time.
    token: blake3::Hash,
}

#[async_trait::async_trait]
impl S3Route for Admin {
    fn is_match(&self, _: &Method, _: &Uri, _: &HeaderMap, _: &mut Extensions) -> bool {
        true
    }

    /// Allows every request here; [`Admin::answer`] checks the token.
    async fn check_access(&self, _: &mut S3Request<Body>) -> S3Result<()> {
        Ok(())
    }

    async fn call(&self, request: S3Request<Body>) -> S3Result<S3Response<Body>> {
        let (status, text) = self.answer(&request);
        Ok(S3Response::with_status(Body::from(text), status))
    }
}

impl Admin {
    fn answer(&self, request: &S3Request<Body>) -> (StatusCode, String) {
        let shown = request.headers.get(TOKEN_HEADER).map(|token| blake3::hash(token.as_bytes()));
        if shown != Some(self.token) {
            return (StatusCode::UNAUTHORIZED, format!("the header {TOKEN_HEADER} must have the token\n"));
        }
        let mut path = request.uri.path().trim_matches('/').split('/');
        let (what, bucket) = (path.next().unwrap_or_default(), path.next());
        match (request.method.as_str(), what, bucket) {
            ("GET", "traffic", None) => (StatusCode::OK, self.traffic()),
            (method, "faults", Some(name)) => match self.state.bucket(name) {
                Err(unknown) => (StatusCode::NOT_FOUND, format!("{unknown}\n")),
                Ok(bucket) => match method {
                    "GET" => (StatusCode::OK, format!("{}\n", to_query(&bucket.faults.remaining()))),
                    "DELETE" => {
                        bucket.faults.inject(Faults::default());
                        (StatusCode::OK, String::new())
                    }
                    "PUT" => match from_query(request.uri.query().unwrap_or_default()) {
                        Ok(faults) => {
                            tracing::info!(bucket = name, faults = to_query(&faults), "injecting faults");
                            bucket.faults.inject(faults);
                            (StatusCode::OK, String::new())
                        }
                        Err(bad) => (StatusCode::BAD_REQUEST, format!("{bad}\n")),
                    },
                    _ => (StatusCode::METHOD_NOT_ALLOWED, "GET, PUT or DELETE\n".into()),
                },
            },
            _ => (StatusCode::NOT_FOUND, "GET /traffic, or GET, PUT or DELETE /faults/BUCKET\n".into()),
        }
    }

    fn traffic(&self) -> String {
        let line = |(name, bucket): (&String, &Arc<crate::BucketState>)| {
            let crate::BucketTraffic { received_bytes, sent_bytes, requests, refused } = bucket.totals();
            format!("{name} {received_bytes} {sent_bytes} {requests} {refused}\n")
        };
        self.state.buckets().iter().map(line).collect()
    }
}
