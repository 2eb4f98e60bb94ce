//! The collector, as the standard variables of OpenTelemetry name it.

use chain_client::is_private;
use percent_encoding::percent_decode_str;
use std::time::Duration;
use store::{HttpPoster, PostError};

/// The URL that takes traces.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// The URL of a collector, which takes traces at `/v1/traces` below it.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
/// For one report and its answer.
const POST_WITHIN: Duration = Duration::from_secs(10);

/// Where traces are sent.
#[derive(Debug)]
pub struct Collector {
    pub(super) poster: HttpPoster,
    /// The variable that names it.
    pub(super) variable: &'static str,
}

#[derive(Debug, thiserror::Error)]
pub enum CollectorError {
    #[error(
        "{variable} cannot be used for traces: correct it, or unset OTEL_EXPORTER_OTLP_ENDPOINT to send none"
    )]
    Post { variable: &'static str, source: PostError },
    #[error(
        "{variable} is not encrypted, and its host is not in a private network: use https://, or a collector on this machine"
    )]
    Open { variable: &'static str },
    #[error("{} is no list NAME=VALUE,NAME=VALUE", HEADERS)]
    Headers,
    #[error(
        "{} is {protocol:?}, and traces are sent over HTTP: unset it, and name the port for HTTP (4318)",
        PROTOCOL
    )]
    Protocol { protocol: String },
}

/// Whether the environment names a collector.
pub(super) fn is_named(variable: impl Fn(&str) -> Option<String>) -> bool {
    named(variable).is_some()
}

/// The variable that names a collector, and the URL that takes traces.
fn named(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let set = |name| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let whole = set(TRACES_ENDPOINT).map(|url| (TRACES_ENDPOINT, url));
    whole.or_else(|| Some((ENDPOINT, format!("{}/v1/traces", set(ENDPOINT)?.trim_end_matches('/')))))
}

impl Collector {
    /// The collector that the environment names, if it names one.
    ///
    /// # Errors
    /// If it cannot be used. No error holds a header's value.
    pub fn from_environment() -> Result<Option<Collector>, CollectorError> {
        Collector::open(|name| std::env::var(name).ok())
    }

    pub(super) fn open(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Collector>, CollectorError> {
        let Some((name, url)) = named(&variable) else { return Ok(None) };
        match variable(PROTOCOL).as_deref() {
            // A collector takes both at the same port.
            None | Some("" | "http/json" | "http/protobuf") => {}
            Some(other) => return Err(CollectorError::Protocol { protocol: other.to_owned() }),
        }
        let headers = headers(&variable(HEADERS).unwrap_or_default()).ok_or(CollectorError::Headers)?;
        let opened = HttpPoster::new(&url, &headers, POST_WITHIN);
        let poster = opened.map_err(|source| {
            let variable = if matches!(source, PostError::BadHeader { .. }) { HEADERS } else { name };
            CollectorError::Post { variable, source }
        })?;
        if !url.to_ascii_lowercase().starts_with("https://") && !is_private(&url) {
            return Err(CollectorError::Open { variable: name });
        }
        Ok(Some(Collector { poster, variable: name }))
    }
}

/// Reads `NAME=VALUE,…`, with values as in a URL.
fn headers(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let header = |part: &str| {
        let (name, value) = part.split_once('=')?;
        // Otherwise it may be a secret, for which no error may show it.
        name.trim()
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            .then_some(())?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().to_owned(), value.into_owned()))
    };
    parts.map(header).collect()
}
