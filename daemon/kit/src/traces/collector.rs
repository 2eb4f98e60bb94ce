//! The collector, as the standard variables of OpenTelemetry name it.

use chain_client::is_private;
use percent_encoding::percent_decode_str;
use std::time::Duration;
use store::{HttpPoster, PostError};

/// The URL that takes traces.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// The URL of a collector, which takes traces at `/v1/traces` below it.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// The variables for headers and for the protocol: of traces first, and then of all that is exported.
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const PROTOCOL: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
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
    #[error("{variable} is no list NAME=VALUE,NAME=VALUE")]
    Headers { variable: &'static str },
    #[error(
        "{variable} is {protocol:?}, and traces are sent over HTTP: unset it, and name the port for HTTP (4318)"
    )]
    Protocol { variable: &'static str, protocol: String },
}

/// Whether the environment names a collector.
pub(super) fn is_named(variable: impl Fn(&str) -> Option<String>) -> bool {
    named(variable).is_some()
}

/// The variable that names a collector, and the URL that takes traces.
fn named(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let set = |name| set(&variable, name);
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let whole = set(TRACES_ENDPOINT).map(|url| (TRACES_ENDPOINT, url));
    whole.or_else(|| Some((ENDPOINT, format!("{}/v1/traces", set(ENDPOINT)?.trim_end_matches('/')))))
}

/// A variable's value, if it has one.
fn set(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
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
        let first =
            |names: [&'static str; 2]| names.into_iter().find_map(|name| Some((name, set(&variable, name)?)));
        if let Some((variable, protocol)) = first(PROTOCOL)
            // A collector takes both at the same port.
            && !["http/json", "http/protobuf"].contains(&protocol.as_str())
        {
            return Err(CollectorError::Protocol { variable, protocol });
        }
        let (of_headers, text) = first(HEADERS).unwrap_or_default();
        let headers = headers(&text).ok_or(CollectorError::Headers { variable: of_headers })?;
        let opened = HttpPoster::new(&url, &headers, POST_WITHIN);
        let poster = opened.map_err(|source| {
            let variable = if matches!(source, PostError::BadHeader { .. }) { of_headers } else { name };
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
