//! Spans as OTLP in JSON: `opentelemetry/proto/collector/trace/v1`, with 64-bit numbers as strings.

use super::{EndedSpan, TEXT_MAX, TracedSeat, Value};
use bytes::Bytes;
use serde_json::{Value as Json, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the common attributes of all spans of a process.
pub(super) fn resource(seat: &TracedSeat, instance: &[u8; 32]) -> Json {
    let TracedSeat { genesis, run, role, uid } = seat;
    let text = |key, text: String| attribute(key, &Value::Text(text));
    json!({ "attributes": [
        text("service.name", format!("mettle-{role}")),
        text("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        text("service.instance.id", hex(&instance[..16])),
        text("mettle.genesis", genesis.to_string()),
        attribute("mettle.run", &Value::Int(run.0.into())),
        text("mettle.role", role.to_string()),
        attribute("mettle.uid", &Value::Int(uid.0.into())),
    ] })
}

/// Returns the body of a request with these spans.
pub(super) fn request(resource: &Json, spans: &[EndedSpan]) -> Bytes {
    let spans: Vec<Json> = spans.iter().map(span).collect();
    let scope = json!({ "name": "mettle", "version": env!("CARGO_PKG_VERSION") });
    let scope_spans = json!([{ "scope": scope, "spans": spans }]);
    let request = json!({ "resourceSpans": [{ "resource": resource, "scopeSpans": scope_spans }] });
    request.to_string().into()
}

/// Returns the number of spans that the collector rejected in a successful reply, and the reason.
pub(super) fn refused(reply: &[u8]) -> Option<(u64, String)> {
    let reply: Json = serde_json::from_slice(reply).ok()?;
    let partial = reply.get("partialSuccess")?;
    let rejected = partial.get("rejectedSpans")?;
    let count = rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).filter(|count| 0 < *count)?;
    let why = partial.get("errorMessage").and_then(Json::as_str).unwrap_or_default();
    Some((count, why.chars().take(TEXT_MAX).collect()))
}

fn span(span: &EndedSpan) -> Json {
    let key = |(name, value): &(&str, Value)| attribute(&format!("mettle.{name}"), value);
    let mut json = json!({
        "traceId": hex(&span.trace),
        "spanId": hex(&span.id),
        "name": span.name,
        // Internal: the span neither sends nor serves a request.
        "kind": 1,
        "startTimeUnixNano": nanoseconds(span.begin, Duration::ZERO),
        "endTimeUnixNano": nanoseconds(span.begin, span.duration),
        "attributes": span.attributes.iter().map(key).collect::<Vec<_>>(),
    });
    if let Some(parent) = &span.parent {
        json["parentSpanId"] = hex(parent).into();
    }
    if let Some(error) = &span.error {
        json["status"] = json!({ "code": 2, "message": error });
    }
    json
}

fn attribute(key: &str, value: &Value) -> Json {
    let value = match value {
        Value::Int(number) => json!({ "intValue": number.to_string() }),
        Value::Float(number) => json!({ "doubleValue": number }),
        Value::Bool(is_so) => json!({ "boolValue": is_so }),
        Value::Text(text) => json!({ "stringValue": text }),
    };
    json!({ "key": key, "value": value })
}

fn nanoseconds(begin: SystemTime, after: Duration) -> String {
    (begin.duration_since(UNIX_EPOCH).unwrap_or_default() + after).as_nanos().to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
