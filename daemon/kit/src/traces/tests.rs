//! Recorded spans, and a collector that accepts or refuses them, hangs or is unavailable.

use super::{collector, export::QUEUE_MAX, *};
use serde_json::Value as Json;
use std::{collections::HashMap, io};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tracing_subscriber::layer::SubscriberExt as _;

const SEAT: TracedSeat =
    TracedSeat { genesis: GenesisHash([7; 32]), run: RunId(3), role: Role::Miner, uid: Uid(5) };

macro_rules! span {
    ($($fields:tt)*) => {
        tracing::debug_span!(target: "profile", $($fields)*)
    };
}

fn traced() -> Arc<Shared> {
    let shared = Arc::<Shared>::default();
    assert!(shared.source.set(Source::new(SEAT)).is_ok());
    shared
}

/// Runs `work` under the layer, and returns the ended spans by name.
fn spans_of(shared: &Arc<Shared>, work: impl FnOnce()) -> HashMap<&'static str, EndedSpan> {
    let subscriber = tracing_subscriber::registry().with(layer_of(shared.clone()));
    tracing::subscriber::with_default(subscriber, work);
    shared.queue().take().into_iter().map(|span| (span.name, span)).collect()
}

#[test]
fn the_id_of_a_trace_is_that_of_chain_run_and_window() {
    let id = |genesis, run, window| trace_id(&GenesisHash([genesis; 32]), RunId(run), Window(window));
    let preimage = [&[7; 32][..], &3u32.to_le_bytes(), &9u32.to_le_bytes()].concat();
    assert_eq!(id(7, 3, 9), blake3::hash(&preimage).as_bytes()[..16]);
    assert!(id(7, 3, 9) != id(8, 3, 9) && id(7, 3, 9) != id(7, 4, 9) && id(7, 3, 9) != id(7, 3, 10));
    // Another seat of the run has the same trace and another root.
    let sources = [SEAT, TracedSeat { role: Role::Validator, uid: Uid(6), ..SEAT }].map(Source::new);
    assert_eq!(sources[0].trace(9), sources[1].trace(9));
    assert_ne!(sources[0].root(9), sources[1].root(9));
}

#[test]
fn a_span_has_the_trace_of_its_window_and_the_parent_of_the_same_window() {
    let shared = traced();
    let spans = spans_of(&shared, || {
        // Outside a window, or a span of an engine.
        drop(span!("wait"));
        drop(tracing::trace_span!(target: "profile", "step", window = 7u32));
        drop(tracing::debug_span!(target: "other", "other", window = 7u32));
        span!("window", window = 7u32).in_scope(|| {
            span!("encode", window = 7u32, bytes = tracing::field::Empty).in_scope(|| {
                tracing::Span::current().record("bytes", 12u64).record("bytes", 13u64);
                drop(span!("save", ratio = 0.5, whole = true, name = "x", none = f64::NAN));
            });
            span!("follow", window = 7u32).in_scope(|| drop(span!("upload", window = 8u32)));
            // A new thread has no enclosing span.
            std::thread::scope(|scope| {
                let dispatch = tracing::dispatcher::get_default(Clone::clone);
                scope.spawn(move || {
                    tracing::dispatcher::with_default(&dispatch, || drop(span!("training", window = 8u32)));
                });
            });
        });
    });
    let source = shared.source.get().unwrap();
    let mut names: Vec<_> = spans.keys().copied().collect();
    names.sort_unstable();
    assert_eq!(names, ["encode", "follow", "save", "training", "upload", "window"]);
    let root = &spans["window"];
    assert_eq!((root.trace, root.id, root.parent), (source.trace(7), source.root(7), None));
    for (name, window, parent) in [
        ("encode", 7, source.root(7)),
        ("save", 7, spans["encode"].id),
        ("follow", 7, source.root(7)),
        ("upload", 8, source.root(8)),
        ("training", 8, source.root(8)),
    ] {
        let span = &spans[name];
        assert_eq!((span.trace, span.parent), (source.trace(window), Some(parent)), "{name}");
    }
    let attributes = |name: &str| spans[name].attributes.clone();
    assert_eq!(attributes("encode"), [("window", Value::Int(7)), ("bytes", Value::Int(13))]);
    let expected = [
        ("window", Value::Int(7)),
        ("ratio", Value::Float(0.5)),
        ("whole", Value::Bool(true)),
        ("name", Value::Text("x".into())),
    ];
    assert_eq!(attributes("save"), expected, "a fraction that is no number is left out");
}

#[test]
fn an_error_marks_its_span_and_not_those_around_it() {
    #[tracing::instrument(target = "profile", level = "debug", skip_all, err(level = "debug"))]
    fn commit() -> Result<(), io::Error> {
        Err(io::Error::other("é".repeat(1000)))
    }
    let shared = traced();
    let spans = spans_of(&shared, || {
        failed("outside of every span");
        span!("window", window = 7u32).in_scope(|| {
            span!("train").in_scope(|| commit().unwrap_err());
            tracing::error!(error = "of another target", "it is in the log");
        });
        span!("follow", window = 7u32).in_scope(|| failed("no vote"));
    });
    let error = |name: &str| spans[name].error.clone();
    assert_eq!(error("commit"), Some("é".repeat(TEXT_MAX)));
    assert_eq!((error("train"), error("window")), (None, None));
    assert_eq!(error("follow").as_deref(), Some("no vote"));
}

#[test]
fn nothing_is_recorded_before_the_seat_is_known_and_attributes_have_a_bound() {
    let shared = Arc::<Shared>::default();
    assert!(spans_of(&shared, || drop(span!("window", window = 7u32))).is_empty());
    let shared = traced();
    let spans = spans_of(&shared, || {
        drop(span!(
            "window",
            window = 7u32,
            a = 1,
            b = 1,
            c = 1,
            d = 1,
            e = 1,
            f = 1,
            g = 1,
            h = 1,
            i = 1,
            j = 1,
            k = 1,
            l = 1,
            m = 1,
            n = 1,
            o = 1,
            p = 1,
            q = 1,
            r = 1
        ));
    });
    assert_eq!(spans["window"].attributes.len(), 1 + ATTRIBUTES_MAX);
}

#[test]
fn a_queue_keeps_the_newest_spans() {
    let shared = traced();
    let subscriber = tracing_subscriber::registry().with(layer_of(shared.clone()));
    tracing::subscriber::with_default(subscriber, || {
        for window in 0..QUEUE_MAX as u64 + 3 {
            drop(span!("window", window));
        }
    });
    let window = |span: &EndedSpan| span.attributes[0].1.clone();
    let mut count = 0;
    let first = shared.queue().take();
    assert_eq!(window(&first[0]), Value::Int(3), "the oldest three are gone");
    count += first.len();
    loop {
        let batch = shared.queue().take();
        if batch.is_empty() {
            break;
        }
        count += batch.len();
    }
    assert_eq!(count, QUEUE_MAX);
}

fn open(variables: &[(&str, &str)]) -> Result<Option<Collector>, CollectorError> {
    let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
    Collector::open(|name| find(name).map(|(_, value)| (*value).to_owned()))
}

const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const TRACES_HEADERS: &str = "OTEL_EXPORTER_OTLP_TRACES_HEADERS";
const TRACES_PROTOCOL: &str = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL";

#[test]
fn the_standard_variables_name_the_collector() {
    let url =
        |variables: &[(&str, &str)]| open(variables).unwrap().map(|found| format!("{:?}", found.poster));
    let traces = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
    let at = |url: &str| Some(format!("HttpPoster({url})"));
    assert_eq!(url(&[]), None);
    assert_eq!(url(&[(ENDPOINT, "  ")]), None);
    assert_eq!(url(&[(ENDPOINT, "http://localhost:4318")]), at("http://localhost:4318/v1/traces"));
    assert_eq!(url(&[(ENDPOINT, "https://tempo.example/otlp/")]), at("https://tempo.example/otlp/v1/traces"));
    assert_eq!(url(&[(ENDPOINT, "http://a"), (traces, "http://b/c")]), at("http://b/c"));
    assert_eq!(url(&[(ENDPOINT, "http://a"), ("OTEL_SDK_DISABLED", "true")]), None);
    // Variables for traces override those for all signals.
    let protocols = [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), (TRACES_PROTOCOL, "http/protobuf")];
    assert_eq!(
        url(&[(ENDPOINT, "http://localhost"), protocols[0], protocols[1]]),
        at("http://localhost/v1/traces")
    );
    let headers = [(HEADERS, "no list"), (TRACES_HEADERS, "a=b")];
    assert_eq!(
        url(&[(ENDPOINT, "http://localhost"), headers[0], headers[1]]),
        at("http://localhost/v1/traces")
    );
    assert!(collector::is_named(|name| (name == ENDPOINT).then(|| "nonsense".into())));
}

#[test]
fn a_collector_that_cannot_be_used_is_refused_with_its_variable_and_without_a_secret() {
    for (variables, says) in [
        (&[(ENDPOINT, "localhost:4318")][..], ENDPOINT),
        (&[(ENDPOINT, "http://me:hunter2@localhost")], "credential"),
        (&[(ENDPOINT, "http://tempo.example")], "https://"),
        (&[(ENDPOINT, "http://localhost"), (HEADERS, "hunter2")], HEADERS),
        (&[(ENDPOINT, "http://localhost"), (HEADERS, "a=hunter2%0Ax")], "line break"),
        (&[(ENDPOINT, "http://localhost"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "4318"),
        (&[(ENDPOINT, "http://localhost"), (TRACES_PROTOCOL, "grpc")], TRACES_PROTOCOL),
        (&[(ENDPOINT, "http://localhost"), (HEADERS, "a=b"), (TRACES_HEADERS, "hunter2")], TRACES_HEADERS),
    ] {
        let error = store::error_chain(&open(variables).unwrap_err());
        assert!(error.contains(says) && !error.contains("hunter2"), "{variables:?}: {error}");
    }
}

/// Reads one request of a connection: its head in lower case, and its body.
async fn request(stream: &mut TcpStream) -> Option<(String, Json)> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some((head, serde_json::from_slice(&body).unwrap()))
}

/// Answers each request with the next of `answers`, then repeats the last one. An empty answer means no answer.
async fn serve(listener: TcpListener, answers: &'static [&'static str], seen: mpsc::Sender<(String, Json)>) {
    let mut turn = 0;
    let mut held = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        while let Some(request) = request(&mut stream).await {
            let answer = answers[turn.min(answers.len() - 1)];
            turn += 1;
            seen.send(request).await.unwrap();
            if answer.is_empty() {
                break;
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        held.push(stream);
    }
}

const TAKEN: &str = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
const BUSY: &str = "HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n";
const REFUSED: &str = "HTTP/1.1 400 No\r\ncontent-length: 0\r\n\r\n";

/// Returns an exporter that sends every 5 ms to a collector with these answers, and the requests of the collector.
async fn collector(answers: &'static [&'static str]) -> (Arc<Shared>, mpsc::Receiver<(String, Json)>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let (seen, requests) = mpsc::channel(64);
    tokio::spawn(serve(listener, answers, seen));
    let headers = "authorization=Bearer%20hunter2, x-scope=a";
    let collector = open(&[(ENDPOINT, &endpoint), (HEADERS, headers)]).unwrap().unwrap();
    let shared = traced();
    let source = shared.source.get().unwrap();
    let exporter = Exporter::new(collector, otlp::resource(&SEAT, &source.instance), shared.clone());
    let exporter = exporter.sending_every(Duration::from_millis(5));
    *shared.exporter() = Some(tokio::spawn(exporter.run()));
    (shared, requests)
}

fn window(shared: &Arc<Shared>, window: u64) {
    let subscriber = tracing_subscriber::registry().with(layer_of(shared.clone()));
    tracing::subscriber::with_default(subscriber, || {
        span!("window", window).in_scope(|| {
            drop(span!("train"));
            failed("late");
        });
    });
}

fn spans(request: &Json) -> &Vec<Json> {
    request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap()
}

#[tokio::test]
async fn a_collector_is_sent_otlp_in_json() {
    let (shared, mut requests) = collector(&[TAKEN]).await;
    window(&shared, 7);
    let (head, request) = requests.recv().await.unwrap();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    for line in ["content-type: application/json", "authorization: bearer hunter2", "x-scope: a"] {
        assert!(head.lines().any(|found| found == line), "{line} is not in {head}");
    }
    let attribute = |of: &Json, key: &str| {
        let all = of["attributes"].as_array().unwrap();
        all.iter().find(|attribute| attribute["key"] == key).unwrap()["value"].clone()
    };
    let resource = &request["resourceSpans"][0]["resource"];
    for (key, value) in [
        ("service.name", serde_json::json!({ "stringValue": "mettle-miner" })),
        ("service.version", serde_json::json!({ "stringValue": env!("CARGO_PKG_VERSION") })),
        ("mettle.run", serde_json::json!({ "intValue": "3" })),
        ("mettle.uid", serde_json::json!({ "intValue": "5" })),
        ("mettle.role", serde_json::json!({ "stringValue": "miner" })),
    ] {
        assert_eq!(attribute(resource, key), value);
    }
    let [train, root] = &spans(&request)[..] else { panic!("{request}") };
    assert_eq!((&train["name"], &root["name"]), (&"train".into(), &"window".into()));
    assert_eq!((&train["parentSpanId"], &train["traceId"]), (&root["spanId"], &root["traceId"]));
    assert!(root.get("parentSpanId").is_none() && train.get("status").is_none());
    assert_eq!(root["status"], serde_json::json!({ "code": 2, "message": "late" }));
    let digits = |field: &str, count: usize| root[field].as_str().unwrap().len() == count;
    assert!(digits("traceId", 32) && digits("spanId", 16), "{root}");
    let time = |of: &Json, field: &str| of[field].as_str().unwrap().parse::<u64>().unwrap();
    assert!(time(root, "startTimeUnixNano") <= time(train, "startTimeUnixNano"));
    assert!(time(train, "endTimeUnixNano") <= time(root, "endTimeUnixNano"));
    assert_eq!(attribute(root, "mettle.window"), serde_json::json!({ "intValue": "7" }));
    // A span that ends later is sent by the flush.
    window(&shared, 8);
    shared.flush().await;
    assert_eq!(spans(&requests.recv().await.unwrap().1).len(), 2);
}

#[tokio::test]
async fn spans_wait_for_a_collector_that_is_busy_and_what_it_refuses_is_dropped() {
    let (shared, mut requests) = collector(&[BUSY, BUSY, TAKEN, REFUSED, TAKEN]).await;
    window(&shared, 7);
    let mut sent = Vec::new();
    for _ in 0..3 {
        sent.push(requests.recv().await.unwrap().1);
    }
    assert!(sent[0] == sent[1] && sent[1] == sent[2], "the same spans until they are taken");
    window(&shared, 8);
    assert_eq!(spans(&requests.recv().await.unwrap().1).len(), 2);
    window(&shared, 9);
    let last = requests.recv().await.unwrap().1;
    assert_eq!(spans(&last).len(), 2);
    assert!(spans(&last)[1]["attributes"].to_string().contains("\"9\""), "window 8 was refused: {last}");
}

#[tokio::test]
async fn a_collector_that_hangs_or_is_away_delays_the_end_by_less_than_a_second() {
    let (shared, mut requests) = collector(&[""]).await;
    window(&shared, 7);
    requests.recv().await.unwrap();
    // The collector holds the first request, and spans are still accepted.
    (8..108).for_each(|of| window(&shared, of));
    // Virtual time does not depend on the load of the machine.
    tokio::time::pause();
    let began = tokio::time::Instant::now();
    shared.flush().await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    tokio::time::resume();

    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let endpoint = format!("http://{nobody}");
    let shared = Arc::<Shared>::default();
    open(&[(ENDPOINT, &endpoint)]).unwrap().unwrap().follow_in(&shared, SEAT);
    window(&shared, 7);
    // The connection is refused, and the flush does not try again.
    tokio::time::timeout(Duration::from_secs(60), shared.flush()).await.expect("the flush ends");
    assert!(!shared.queue().take().is_empty(), "they are kept");
    // Without an exporter the flush returns immediately.
    shared.flush().await;
}

#[test]
fn a_partial_refusal_is_read_and_nonsense_is_none() {
    let refused = |reply: &str| otlp::refused(reply.as_bytes());
    assert_eq!(
        refused(r#"{"partialSuccess":{"rejectedSpans":"3","errorMessage":"old"}}"#),
        Some((3, "old".into()))
    );
    assert_eq!(refused(r#"{"partialSuccess":{"rejectedSpans":2}}"#), Some((2, String::new())));
    for nothing in
        ["", "{}", r#"{"partialSuccess":{}}"#, r#"{"partialSuccess":{"rejectedSpans":"0"}}"#, "[1]"]
    {
        assert_eq!(refused(nothing), None, "{nothing}");
    }
}
