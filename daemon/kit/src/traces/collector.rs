//! The collector, configured by the standard variables of OpenTelemetry.

use chain_client::is_private;
use percent_encoding::percent_decode_str;
use std::time::Duration;
use store::{HttpPoster, PostError};

/// Variable with the URL for traces.
const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
/// Variable with the URL of a collector, which receives traces at `/v1/traces` below it.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
/// Variables for headers and for the protocol: the one for traces first, then the one for all signals.
const HEADERS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"];
const PROTOCOL: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
/// Time limit of one report and its answer.
const POST_WITHIN: Duration = Duration::from_secs(10);

/// The destination of traces.
#[derive(Debug)]
pub struct Collector {
    pub(super) poster: HttpPoster,
    /// The variable that names the collector.
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

/// Returns whether the environment names a collector.
pub(super) fn is_named(variable: impl Fn(&str) -> Option<String>) -> bool {
    named(variable).is_some()
}

/// Returns the variable that names a collector, and the URL for traces.
fn named(variable: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
    let set = |name| set(&variable, name);
    if set("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return None;
    }
    let whole = set(TRACES_ENDPOINT).map(|url| (TRACES_ENDPOINT, url));
    whole.or_else(|| Some((ENDPOINT, format!("{}/v1/traces", set(ENDPOINT)?.trim_end_matches('/')))))
}

/// Returns a variable's value, if it is not empty.
fn set(variable: impl Fn(&str) -> Option<String>, name: &str) -> Option<String> {
    variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
}

impl Collector {
    /// Returns the collector that the environment names, if any.
    ///
    /// # Errors
    /// If the collector cannot be used. No error contains a header's value.
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
            // A collector accepts both at the same port.
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

/// Parses `NAME=VALUE,…`, with percent-encoded values.
fn headers(text: &str) -> Option<Vec<(String, String)>> {
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let header = |part: &str| {
        let (name, value) = part.split_once('=')?;
        // An invalid name may be a secret in the wrong place, so errors do not show it.
        name.trim()
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
            .then_some(())?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        Some((name.trim().to_owned(), value.into_owned()))
    };
    parts.map(header).collect()
}
