//! Writes a trace in the Trace Event Format, which Perfetto and Chrome read: complete events (`ph` is `X`) with times
//! in microseconds, and a name for each lane.

use super::recorder::{Lane, Recorder, SpanEnded};
use serde_json::json;
use std::{
    io::{self, BufWriter, Write},
    time::Duration,
};

/// Writes the spans that ended.
///
/// # Errors
/// If `sink` fails.
pub(super) fn write(recorder: &Recorder, sink: impl Write) -> io::Result<()> {
    let mut sink = BufWriter::new(sink);
    let process = std::process::id();
    let other = json!({
        "program": concat!("miner ", env!("CARGO_PKG_VERSION")),
        "spans_dropped": recorder.dropped(),
    });
    writeln!(sink, "{{\"displayTimeUnit\":\"ms\",\"otherData\":{other},\"traceEvents\":[")?;
    let name = |what: &str, lane: usize, name: &str| json!({ "ph": "M", "name": what, "pid": process, "tid": lane, "args": { "name": name } });
    write!(sink, "{}", name("process_name", 0, "miner"))?;
    for lane in Lane::ALL {
        write!(sink, ",\n{}", name("thread_name", tid(lane), lane_name(lane)))?;
    }
    for span in recorder.spans() {
        let SpanEnded { lane, name, window, at, duration } = span;
        // Names are words of this program, and need no escaping.
        write!(sink, ",\n{{\"ph\":\"X\",\"name\":\"{name}\",\"cat\":\"profile\",\"pid\":{process}")?;
        write!(sink, ",\"tid\":{},\"ts\":{},\"dur\":{}", tid(lane), micros(at), micros(duration))?;
        match window {
            Some(window) => write!(sink, ",\"args\":{{\"window\":{window}}}}}")?,
            None => write!(sink, "}}")?,
        }
    }
    writeln!(sink, "\n]}}")?;
    sink.flush()
}

fn tid(lane: Lane) -> usize {
    lane as usize + 1
}

fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Loop => "loop",
        Lane::Training => "training thread",
    }
}

/// Formats microseconds with three decimals: exact, so that spans stay nested.
fn micros(time: Duration) -> String {
    format!("{}.{:03}", time.as_micros(), time.subsec_nanos() % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::recorder::SpanBegun;
    use serde_json::Value;

    #[test]
    fn a_trace_has_what_the_format_asks_for() {
        let mut recorder = Recorder::new(None);
        recorder.begin(Duration::ZERO);
        let begun = SpanBegun { id: 1, name: "training", window: Some(7) };
        recorder.open(Lane::Training, begun, Duration::from_nanos(1_000_001_002));
        recorder.close(Lane::Training, 1, Duration::from_nanos(1_000_003_005));
        recorder.end(Duration::from_secs(2));
        let mut bytes = Vec::new();
        write(&recorder, &mut bytes).unwrap();

        let trace: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(trace["otherData"]["spans_dropped"], 0);
        let events = trace["traceEvents"].as_array().unwrap();
        assert_eq!(events.len(), 1 + 2 + 1);
        assert!(events.iter().all(|event| event["pid"] == std::process::id()));
        assert_eq!(events[2]["args"]["name"], "training thread");
        let span = &events[3];
        assert_eq!((&span["ph"], &span["name"], &span["tid"]), (&json!("X"), &json!("training"), &json!(2)));
        assert_eq!(span["args"]["window"], 7);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.contains("\"ts\":1000001.002,\"dur\":2.003"), "{text}");
    }
}
