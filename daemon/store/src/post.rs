//! Posts reports to a server that the operator chose, such as a collector of traces.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use protocol::ensure;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use url::Url;

use crate::{error_chain, tls};

/// Time limit for DNS, TCP and TLS together.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Maximum length of an answer that is read, in bytes.
const REPLY_BYTES_MAX: usize = 64 << 10;

/// Posts to one URL. Follows no redirect, uses no proxy, and reads only the beginning of an answer.
pub struct HttpPoster {
    client: reqwest::Client,
    url: Url,
    headers: HeaderMap,
}

#[derive(Debug, thiserror::Error)]
pub enum PostError {
    #[error("it is no usable URL: {why}")]
    BadUrl { why: String },
    /// The header's name, without the value, which may be a secret.
    #[error(
        "a header {name:?} cannot be sent: a name is letters, digits and hyphens, a value has no line break"
    )]
    BadHeader { name: String },
    #[error("cannot use TLS: {what}")]
    Tls { what: String },
    #[error("no answer: {what}")]
    Unreachable { what: String },
    #[error("it answered with status {status}")]
    Refused { status: u16 },
}

impl PostError {
    /// Returns whether the same report may be accepted later.
    pub fn may_pass(&self) -> bool {
        match self {
            PostError::Unreachable { .. } => true,
            PostError::Refused { status } => matches!(*status, 408 | 429 | 500..),
            PostError::BadUrl { .. } | PostError::BadHeader { .. } | PostError::Tls { .. } => false,
        }
    }
}

/// Omits the headers, which may contain a secret.
impl fmt::Debug for HttpPoster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HttpPoster({})", self.url)
    }
}

impl HttpPoster {
    /// Creates a poster to `url` with the time limit `within`. `headers` are sent with every report, and are never in
    /// an error.
    ///
    /// # Errors
    /// If the URL or a header cannot be used. Nothing is then sent.
    pub fn new(url: &str, headers: &[(String, String)], within: Duration) -> Result<HttpPoster, PostError> {
        let bad = |why: &str| PostError::BadUrl { why: why.to_owned() };
        let url = Url::parse(url).map_err(|error| bad(&error.to_string()))?;
        ensure!(matches!(url.scheme(), "http" | "https"), bad("it begins with neither http:// nor https://"));
        ensure!(url.has_host(), bad("it names no host"));
        ensure!(url.username().is_empty() && url.password().is_none(), bad("it holds a credential"));
        let mut checked = HeaderMap::new();
        for (name, value) in headers {
            let bad = || PostError::BadHeader { name: name.clone() };
            let header = HeaderName::try_from(name).map_err(|_| bad())?;
            let mut value = HeaderValue::try_from(value).map_err(|_| bad())?;
            value.set_sensitive(true);
            checked.append(header, value);
        }
        tls::install_provider();
        let builder = || {
            reqwest::Client::builder()
                .connect_timeout(CONNECT_WITHIN)
                .timeout(within)
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .no_proxy()
                .referer(false)
                .http1_only()
                .https_only(url.scheme() == "https")
                .pool_max_idle_per_host(1)
                .user_agent("mettle")
        };
        // A minimal container has no certificates, and needs none for http.
        let client = builder().build().or_else(|error| match url.scheme() {
            "http" => builder().tls_certs_only([]).build(),
            _ => Err(error),
        });
        let client = client.map_err(|error| PostError::Tls { what: error_chain(&error) })?;
        Ok(HttpPoster { client, url, headers: checked })
    }

    /// Posts a report in JSON. Returns the answer, or the beginning of a long one.
    ///
    /// # Errors
    /// If the server does not answer in time, or refuses the report.
    pub async fn post_json(&self, body: Bytes) -> Result<Vec<u8>, PostError> {
        let request = self.client.post(self.url.clone()).headers(self.headers.clone());
        let sent = request.header(CONTENT_TYPE, "application/json").body(body).send().await;
        let unreachable =
            |error: reqwest::Error| PostError::Unreachable { what: error_chain(&error.without_url()) };
        let mut answer = sent.map_err(unreachable)?;
        ensure!(answer.status().is_success(), PostError::Refused { status: answer.status().as_u16() });
        let mut reply = Vec::new();
        while let Some(piece) = answer.chunk().await.map_err(unreachable)? {
            let space = REPLY_BYTES_MAX - reply.len();
            reply.extend_from_slice(&piece[..piece.len().min(space)]);
            if REPLY_BYTES_MAX <= reply.len() {
                break;
            }
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WITHIN: Duration = Duration::from_secs(1);

    #[test]
    fn a_url_or_header_that_cannot_be_used_is_refused_without_its_secret() {
        for (url, why) in [
            ("127.0.0.1:4318", "relative URL"),
            ("collector", "relative URL"),
            ("ftp://collector/v1", "neither http"),
            ("http://me:hunter2@collector/v1", "credential"),
            ("http://", "empty host"),
        ] {
            let error = HttpPoster::new(url, &[], WITHIN).unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains("hunter2"), "{url}: {error}");
        }
        for (name, value) in [("a b", "hunter2"), ("a", "hunter2\nx: y"), ("", "hunter2")] {
            let headers = [(name.to_owned(), value.to_owned())];
            let error = HttpPoster::new("http://a/b", &headers, WITHIN).unwrap_err();
            assert!(matches!(error, PostError::BadHeader { .. }) && !error.to_string().contains("hunter2"));
        }
        let headers = [("authorization".to_owned(), "Bearer hunter2".to_owned())];
        let poster = HttpPoster::new("https://a/b", &headers, WITHIN).unwrap();
        assert!(!format!("{poster:?}").contains("hunter2"));
    }

    #[test]
    fn a_server_that_is_away_or_busy_may_take_the_report_later() {
        for (status, may_pass) in
            [(301, false), (400, false), (401, false), (404, false), (408, true), (429, true)]
        {
            assert_eq!(PostError::Refused { status }.may_pass(), may_pass, "{status}");
        }
        assert!(PostError::Refused { status: 503 }.may_pass());
    }

    #[tokio::test]
    async fn a_server_that_is_absent_is_unreachable() {
        // Bound and closed again: no server listens at the port.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let poster = HttpPoster::new(&format!("http://{address}/v1/traces"), &[], WITHIN).unwrap();
        let error = poster.post_json(Bytes::from_static(b"{}")).await.unwrap_err();
        assert!(matches!(error, PostError::Unreachable { .. }), "{error}");
    }
}
