//! The HTTP fetcher: one plain GET, with a check at every step (PROT-13).

use std::error::Error as StdError;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use protocol::keys::{self, ObjectKey};
use protocol::{Digest, ensure};
use reqwest::header;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout, timeout_at};
use url::{Host, Url};

use super::{AddressClass, BufferSink, Fetch, FetchError, Limits, RateWindow, Sink, rate::late};
use crate::{Traffic, TrafficTotals, tls};

/// Maximum number of concurrent fetches of one fetcher. With their limits this bounds the memory.
const FETCHES_AT_ONCE: usize = 64;

/// The policy of all fetches of one fetcher.
#[derive(Clone, Debug)]
pub struct FetchPolicy {
    /// True if endpoints may have private addresses and plain `http`, as on a localnet.
    pub allow_private: bool,
    /// Time limit for DNS, TCP and TLS together. Exceeding it is never attributed to the endpoint.
    pub connect_timeout: Duration,
}

impl FetchPolicy {
    /// Returns the policy for a public network.
    pub fn public() -> FetchPolicy {
        FetchPolicy { allow_private: false, connect_timeout: Duration::from_secs(10) }
    }

    /// Returns the policy for a network on one machine.
    pub fn localnet() -> FetchPolicy {
        FetchPolicy { allow_private: true, ..FetchPolicy::public() }
    }
}

/// Resolves names to addresses. Tests use their own.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>>;
}

/// The resolver of the operating system.
pub struct SystemResolver {
    at_once: Arc<Semaphore>,
}

impl Default for SystemResolver {
    fn default() -> SystemResolver {
        // A lookup blocks a thread until the name server answers; other parties' names must not block all threads.
        SystemResolver { at_once: Arc::new(Semaphore::new(128)) }
    }
}

#[async_trait]
impl Resolver for SystemResolver {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let permit = self.at_once.clone().acquire_owned().await.map_err(io::Error::other)?;
        let name = name.to_owned();
        // A separate task, which keeps its permit after the caller has dropped the future.
        let lookup = tokio::spawn(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await;
            drop(permit);
            found.map(|addresses| addresses.map(|address| address.ip()).collect())
        });
        lookup.await.map_err(io::Error::other)?
    }
}

/// A [`Fetch`] over HTTP that treats every endpoint as hostile.
///
/// It sends no credential, follows no redirect, uses no proxy, decompresses nothing, and connects only to checked
/// addresses. [`FetchError`] lists the failures that are attributed to the endpoint.
pub struct HttpFetcher {
    client: reqwest::Client,
    policy: FetchPolicy,
    at_once: Semaphore,
    traffic: Traffic,
}

impl HttpFetcher {
    /// Creates a fetcher with the system's resolver.
    ///
    /// # Errors
    /// If the machine's certificates cannot be used.
    pub fn new(policy: FetchPolicy) -> Result<HttpFetcher, FetchError> {
        HttpFetcher::with_resolver(policy, SystemResolver::default())
    }

    /// Creates a fetcher with another resolver, whose addresses are checked as well.
    ///
    /// # Errors
    /// If the machine's certificates cannot be used.
    pub fn with_resolver(policy: FetchPolicy, resolver: impl Resolver) -> Result<HttpFetcher, FetchError> {
        tls::install_provider();
        let resolver =
            Arc::new(JudgedResolver { resolver: Arc::new(resolver), allow_private: policy.allow_private });
        let builder = || {
            reqwest::Client::builder()
                .dns_resolver(resolver.clone())
                .connect_timeout(policy.connect_timeout)
                .redirect(reqwest::redirect::Policy::none())
                .retry(reqwest::retry::never())
                .no_proxy()
                .no_gzip()
                .no_brotli()
                .no_deflate()
                .no_zstd()
                .referer(false)
                .http1_only()
                .http1_max_headers(64)
                .https_only(!policy.allow_private)
                .pool_max_idle_per_host(2)
                .pool_idle_timeout(Duration::from_secs(20))
                .user_agent("mettle")
        };
        // A localnet in a minimal container has no certificates, and does not need any.
        let client = builder().build().or_else(|error| {
            if policy.allow_private { builder().tls_certs_only([]).build() } else { Err(error) }
        });
        let client = client.map_err(|error| FetchError::Ours {
            what: format!("cannot use TLS: {}", source_chain(&error)),
        })?;
        let at_once = Semaphore::new(FETCHES_AT_ONCE);
        Ok(HttpFetcher { client, policy, at_once, traffic: Traffic::default() })
    }

    /// Gets an object or a range of it, within the limits.
    async fn get(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Option<&Range<u64>>,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let url = object_url(base_url, key, self.policy.allow_private)?;
        let ended = timeout(limits.deadline, self.exchange(url, range, limits, to)).await;
        ended.unwrap_or(Err(FetchError::Deadline { after: limits.deadline }))
    }

    /// Runs the whole exchange, without the total deadline. With a range, the answer must have exactly its bytes.
    async fn exchange(
        &self,
        url: Url,
        range: Option<&Range<u64>>,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        let _permit =
            self.at_once.acquire().await.map_err(|error| FetchError::Ours { what: error.to_string() })?;

        // Send the request. Connecting has its own, shorter limit, so a timeout here occurs after the connection. If
        // this process was suspended when the time expired, the endpoint is not to blame and gets more time.
        let mut request = self.client.get(url).header(header::ACCEPT_ENCODING, "identity");
        if let Some(range) = range {
            request = request.header(header::RANGE, format!("bytes={}-{}", range.start, range.end - 1));
        }
        let mut request = std::pin::pin!(request.send());
        let mut patience = self.policy.connect_timeout + limits.first_byte;
        let mut response = loop {
            let asked = Instant::now();
            match timeout(patience, &mut request).await {
                Ok(Ok(response)) => break response,
                Ok(Err(error)) => return Err(not_answered(&error)),
                Err(_) if late(asked, patience) => patience = limits.first_byte,
                Err(_) => return Err(FetchError::Stalled { after: limits.first_byte }),
            }
        };

        // Check the head of the answer before reading its body.
        let status = response.status().as_u16();
        match (status, range) {
            (200, None) => {}
            (206, Some(range)) => is_this_range(range, response.headers().get(header::CONTENT_RANGE))?,
            (200, Some(range)) => return Err(other_range(range, "the whole object")),
            (416, Some(range)) => return Err(other_range(range, "status 416: it has no such bytes")),
            _ => return Err(refused(status)),
        }
        if let Some(encoding) = response.headers().get(header::CONTENT_ENCODING)
            && encoding.as_bytes() != b"identity"
        {
            let encoding = String::from_utf8_lossy(encoding.as_bytes()).chars().take(32).collect();
            return Err(FetchError::Encoded { encoding });
        }
        let max_bytes = limits.max_bytes;
        let expected = response.content_length().ok_or(FetchError::NoLength)?;
        ensure!(expected <= max_bytes, FetchError::TooLarge { bytes: expected, max_bytes });
        if let Some(range) = range.filter(|range| expected < range.end - range.start) {
            return Err(FetchError::CutShort { got: expected, expected: range.end - range.start });
        }

        // Read the body and pass it on.
        to.begin(expected);
        let mut got = 0;
        let mut window = RateWindow::open(limits);
        loop {
            match timeout_at(window.end(), response.chunk()).await {
                Ok(Ok(None)) => break,
                Ok(Ok(Some(chunk))) => {
                    self.traffic.add_down(chunk.len() as u64);
                    window.add(chunk.len() as u64);
                    got += chunk.len() as u64;
                    ensure!(got <= expected, FetchError::TooLarge { bytes: got, max_bytes: expected });
                    let handed = Instant::now();
                    to.piece(&chunk);
                    window.pause(handed.elapsed());
                }
                Ok(Err(error)) => return Err(broke_off(&error, got, expected)),
                Err(_) => {}
            }
            if Instant::now() >= window.end() {
                window = window.next(limits)?;
            }
        }
        ensure!(got >= expected, FetchError::CutShort { got, expected });
        Ok(())
    }
}

#[async_trait]
impl Fetch for HttpFetcher {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let mut whole = BufferSink::default();
        self.fetch_into(base_url, key, limits, &mut whole).await?;
        Ok(whole.into_bytes())
    }

    async fn fetch_into(
        &self,
        base_url: &str,
        key: &ObjectKey,
        limits: &Limits,
        to: &mut dyn Sink,
    ) -> Result<(), FetchError> {
        self.get(base_url, key, None, limits, to).await
    }

    async fn fetch_range(
        &self,
        base_url: &str,
        key: &ObjectKey,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<Bytes, FetchError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let limits = Limits { max_bytes: range.end - range.start, ..*limits };
        let mut whole = BufferSink::default();
        self.get(base_url, key, Some(&range), &limits, &mut whole).await?;
        Ok(whole.into_bytes())
    }

    fn traffic(&self) -> TrafficTotals {
        self.traffic.totals()
    }
}

/// Returns the error of an unexpected status.
fn refused(status: u16) -> FetchError {
    match status {
        404 | 410 => FetchError::Missing,
        300..=399 => FetchError::Redirected { status },
        408 | 425 | 429 | 500..=599 => FetchError::Unavailable { status },
        _ => FetchError::Refused { status },
    }
}

/// Checks that an answer has the requested range: `bytes FIRST-LAST/LENGTH`, where the length may be `*`.
fn is_this_range(range: &Range<u64>, said: Option<&header::HeaderValue>) -> Result<(), FetchError> {
    let said =
        said.map_or_else(|| "no content-range".into(), |said| String::from_utf8_lossy(said.as_bytes()));
    let asked = format!("bytes {}-{}/", range.start, range.end - 1);
    if said.starts_with(&asked) { Ok(()) } else { Err(other_range(range, &said)) }
}

fn other_range(range: &Range<u64>, said: &str) -> FetchError {
    let said = said.chars().take(64).collect();
    FetchError::OtherRange { first: range.start, last: range.end - 1, said }
}

/// Checks the form of a base URL, like each fetch: the scheme, no credential, no forbidden address. Resolves and
/// fetches nothing.
///
/// # Errors
/// [`FetchError::BadUrl`] and [`FetchError::ForbiddenAddress`].
pub fn check_base_url(base_url: &str, policy: &FetchPolicy) -> Result<(), FetchError> {
    object_url(base_url, &keys::piece(&Digest::default()), policy.allow_private)?;
    let is_printable = base_url.bytes().all(|byte| byte.is_ascii_graphic());
    ensure!(is_printable, FetchError::BadUrl { why: "it holds spaces, or letters beyond ASCII".into() });
    Ok(())
}

/// Returns the URL of an object, if the base URL is allowed.
fn object_url(base_url: &str, key: &ObjectKey, allow_private: bool) -> Result<Url, FetchError> {
    let bad = |why: String| FetchError::BadUrl { why };
    ensure!(base_url.len() <= 256, bad(format!("it has {} characters, more than 256", base_url.len())));
    let mut url = Url::parse(base_url).map_err(|error| bad(error.to_string()))?;
    match url.scheme() {
        "https" => {}
        "http" if allow_private => {}
        "http" => return Err(bad("it must be https".into())),
        other => return Err(bad(format!("{other:?} is neither https nor http"))),
    }
    ensure!(url.username().is_empty() && url.password().is_none(), bad("it holds a credential".into()));
    ensure!(url.query().is_none() && url.fragment().is_none(), bad("it has a query or a fragment".into()));
    // A literal address is never resolved, so it is checked here.
    match url.host() {
        None => return Err(bad("it names no host".into())),
        Some(Host::Domain(_)) => {}
        Some(Host::Ipv4(address)) => judge(address.into(), allow_private)?,
        Some(Host::Ipv6(address)) => judge(address.into(), allow_private)?,
    }
    url.path_segments_mut()
        .map_err(|()| bad("it cannot have a path".into()))?
        .pop_if_empty()
        .extend(key.as_str().split('/'));
    Ok(url)
}

fn judge(address: IpAddr, allow_private: bool) -> Result<(), FetchError> {
    let class = AddressClass::of(address);
    ensure!(class.allowed(allow_private), FetchError::ForbiddenAddress { address, class });
    Ok(())
}

/// Passes only checked addresses to the client, which connects to exactly these. There is no second lookup in which a
/// name could resolve to another address.
struct JudgedResolver {
    resolver: Arc<dyn Resolver>,
    allow_private: bool,
}

impl reqwest::dns::Resolve for JudgedResolver {
    fn resolve(&self, name: reqwest::dns::Name) -> reqwest::dns::Resolving {
        let (resolver, allow_private) = (self.resolver.clone(), self.allow_private);
        Box::pin(async move {
            let found = resolver.addresses(name.as_str()).await?;
            let mut allowed: Vec<SocketAddr> = Vec::new();
            let mut refused = None;
            for address in found {
                match judge(address, allow_private) {
                    Ok(()) => allowed.push(SocketAddr::new(address, 0)),
                    Err(forbidden) => refused = refused.or(Some(forbidden)),
                }
            }
            match (allowed.is_empty(), refused) {
                (true, Some(forbidden)) => Err(forbidden.into()),
                (true, None) => Err(io::Error::other("the name has no address").into()),
                (false, _) => Ok(Box::new(allowed.into_iter()) as reqwest::dns::Addrs),
            }
        })
    }
}

/// Returns the error of a missing answer: usually a failure of the network in between, which may be ours.
fn not_answered(error: &reqwest::Error) -> FetchError {
    if let Some(forbidden) = cause::<FetchError>(error) {
        return forbidden.clone();
    }
    let what = source_chain(error);
    match error {
        error if error.is_builder() => FetchError::BadUrl { why: what },
        error if error.is_dns() => FetchError::Unresolved { what },
        _ => FetchError::Unreachable { what },
    }
}

/// Returns the error of an answer that ended early: closed properly by the endpoint, or broken on either side.
fn broke_off(error: &reqwest::Error, got: u64, expected: u64) -> FetchError {
    match cause::<io::Error>(error).map(io::Error::kind) {
        Some(io::ErrorKind::UnexpectedEof) => FetchError::CutShort { got, expected },
        _ => FetchError::Broken { got, expected, what: source_chain(error) },
    }
}

fn cause<'a, T: StdError + 'static>(error: &'a (dyn StdError + 'static)) -> Option<&'a T> {
    let mut errors = std::iter::successors(Some(error), |error| (**error).source());
    errors.find_map(|error| error.downcast_ref())
}

/// Returns the sources of an error, without its own text, which contains the URL.
fn source_chain(error: &dyn StdError) -> String {
    error.source().map_or_else(|| error.to_string(), crate::error_chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(base: &str, allow_private: bool) -> Result<String, FetchError> {
        object_url(base, &keys::piece(&Digest([7; 32])), allow_private).map(String::from)
    }

    #[test]
    fn the_object_lies_below_the_base() {
        let hex = "07".repeat(32);
        for base in ["https://host/bucket", "https://host/bucket/"] {
            assert_eq!(url(base, false), Ok(format!("https://host/bucket/pieces/{hex}")));
        }
        assert_eq!(url("https://host", false), Ok(format!("https://host/pieces/{hex}")));
        assert_eq!(url("http://127.0.0.1:9000/b", true), Ok(format!("http://127.0.0.1:9000/b/pieces/{hex}")));
    }

    #[test]
    fn a_url_with_more_than_a_host_and_a_path_is_refused_and_theirs() {
        let long = format!("https://host/{}", "a".repeat(300));
        for base in [
            "not a url",
            "host/bucket",
            "ftp://host/bucket",
            "file:///etc/passwd",
            "http://host/bucket",
            "https://me:secret@host/bucket",
            "https://host/bucket?list-type=2",
            "https://host/bucket#x",
            "https:///bucket?",
            "data:text/plain,hello",
            long.as_str(),
        ] {
            let error = url(base, false).expect_err(base);
            assert!(matches!(error, FetchError::BadUrl { .. }) && error.is_theirs(), "{base}: {error:?}");
            assert_eq!(check_base_url(base, &FetchPolicy::public()), Err(error));
        }
        for base in ["https://host/b c", "https://h\u{f6}st/b"] {
            assert!(matches!(check_base_url(base, &FetchPolicy::public()), Err(FetchError::BadUrl { .. })));
        }
        assert_eq!(check_base_url("https://host/bucket/", &FetchPolicy::public()), Ok(()));
    }

    #[test]
    fn an_address_is_judged_in_every_spelling() {
        for base in [
            "https://127.0.0.1/b",
            "https://2130706433/b",
            "https://0x7f.1/b",
            "https://0177.0.0.1/b",
            "https://127.1/b",
            "https://[::1]/b",
            "https://[::ffff:127.0.0.1]/b",
            "https://[64:ff9b::7f00:1]/b",
            "https://169.254.169.254/latest",
            "https://100.64.1.1/b",
            "https://10.0.0.1/b",
            "https://224.0.0.1/b",
            "https://0.0.0.0/b",
        ] {
            let error = url(base, false).expect_err(base);
            assert!(
                matches!(error, FetchError::ForbiddenAddress { .. }) && error.is_theirs(),
                "{base}: {error:?}"
            );
        }
        assert!(url("https://1.1.1.1/b", false).is_ok());
    }
}
