//! Spans of a network of real processes, at a collector in this process, and the network's behaviour while the
//! collector is busy, hangs or is absent (ADR 0058).

use crate::support::{self, Net, WHEN_IDLE, harness, last_finalised, merged_since};
use libtest_mimic::Trial;
use localnet::{
    seats::Seats,
    setup::{LOOPBACK, free_port},
};
use s3_server::Faults;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard},
};
use store::Rate;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

pub fn tests() -> Vec<Trial> {
    harness::on_their_own!(
        "traces",
        [all_seats_spans_of_a_window_are_one_trace_and_a_lost_collector_costs_no_window,]
    )
}

/// Response of the collector to a request.
#[derive(Clone, Copy, Default)]
enum Answer {
    #[default]
    Take,
    Status500,
    /// Reads the request and never answers.
    Hang,
}

/// A span as it arrived.
#[derive(Clone, Debug)]
struct Span {
    trace: String,
    id: String,
    parent: Option<String>,
    name: String,
    role: String,
    uid: u64,
    window: u64,
    begin: u64,
    end: u64,
    error: Option<String>,
    attributes: BTreeMap<String, String>,
}

#[derive(Default)]
struct Arrived {
    answer: Answer,
    spans: Vec<Span>,
}

/// An OTLP/HTTP receiver. Dropping it stops it.
struct Collector {
    address: SocketAddr,
    arrived: Arc<Mutex<Arrived>>,
    _tasks: JoinSet<()>,
}

impl Collector {
    fn start() -> Collector {
        let listener = free_port(LOOPBACK).expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        Collector::serve(TcpListener::from_std(listener).expect("a socket"))
    }

    /// Restarts at the same address.
    async fn listen(address: SocketAddr) -> Collector {
        Collector::serve(TcpListener::bind(address).await.expect("no other program takes the port"))
    }

    fn serve(listener: TcpListener) -> Collector {
        let address = listener.local_addr().expect("it listens");
        let arrived = Arc::<Mutex<Arrived>>::default();
        let (mut tasks, into) = (JoinSet::new(), arrived.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(serve(stream, into.clone()));
            }
        });
        Collector { address, arrived, _tasks: tasks }
    }

    fn arrived(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().expect("no connection panics")
    }

    fn answer(&self, answer: Answer) {
        self.arrived().answer = answer;
    }
}

/// Serves one connection until its first invalid request.
async fn serve(mut stream: TcpStream, arrived: Arc<Mutex<Arrived>>) {
    while let Some(request) = request(&mut stream).await {
        let answer = {
            let mut arrived = arrived.lock().expect("no connection panics");
            if matches!(arrived.answer, Answer::Take) {
                arrived.spans.extend(spans_of(&request));
            }
            arrived.answer
        };
        let reply = match answer {
            Answer::Take => "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
            Answer::Status500 => "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n",
            Answer::Hang => std::future::pending().await,
        };
        if stream.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

async fn request(stream: &mut TcpStream) -> Option<Value> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).expect("a head is text").to_lowercase();
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("its length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).await.ok()?;
    Some(serde_json::from_slice(&body).expect("JSON"))
}

fn spans_of(request: &Value) -> Vec<Span> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let number =
        |value: &Value| -> u64 { value.as_str().expect("64 bits are a text").parse().expect("a number") };
    let attributes = |of: &Value| -> BTreeMap<String, String> {
        let pair = |attribute: &Value| {
            let (_, value) =
                attribute["value"].as_object().expect("a value").iter().next().expect("of a type");
            (text(&attribute["key"]), value.as_str().map_or_else(|| value.to_string(), str::to_owned))
        };
        of["attributes"].as_array().expect("a list").iter().map(pair).collect()
    };
    let mut spans = Vec::new();
    for of_process in request["resourceSpans"].as_array().expect("a list") {
        let resource = attributes(&of_process["resource"]);
        assert_eq!(resource["service.name"], format!("mettle-{}", resource["mettle.role"]));
        for span in of_process["scopeSpans"][0]["spans"].as_array().expect("a list") {
            let attributes = attributes(span);
            spans.push(Span {
                trace: text(&span["traceId"]),
                id: text(&span["spanId"]),
                parent: span.get("parentSpanId").map(text),
                name: text(&span["name"]),
                role: resource["mettle.role"].clone(),
                uid: resource["mettle.uid"].parse().expect("a number"),
                window: attributes["mettle.window"].parse().expect("a number"),
                begin: number(&span["startTimeUnixNano"]),
                end: number(&span["endTimeUnixNano"]),
                error: span.get("status").map(|status| text(&status["message"])),
                attributes,
            });
        }
    }
    spans
}

/// Names of spans that no part of the loop waits for. They may begin before the window's root or end after it.
const BESIDE_THE_LOOP: &[&str] = &["training", "evaluate", "judge", "anchor receipts", "publish receipts"];
const OF_A_MINER: &[&str] =
    &["wait", "train", "rebase", "training", "encode", "commit", "upload", "follow", "save"];
const OF_A_VALIDATOR: &[&str] = &[
    "wait", "gather", "attest", "submit", "select", "mirror", "merge", "publish", "measure", "vote",
    "evaluate", "judge", "follow", "save",
];

/// Checks the trace of a window: four roots, and every span below one of them.
fn check(spans: &[Span], window: u64) {
    let of_window: Vec<&Span> = spans.iter().filter(|span| span.window == window).collect();
    let traces: BTreeSet<_> = of_window.iter().map(|span| &span.trace).collect();
    assert_eq!(traces.len(), 1, "window {window} is one trace");
    let trace = traces.first().expect("one");
    assert!(spans.iter().all(|span| span.window == window || span.trace != **trace), "of no other window");
    let ids: BTreeSet<_> = of_window.iter().map(|span| &span.id).collect();
    assert_eq!(ids.len(), of_window.len(), "no id is given twice");
    let roots: Vec<&&Span> = of_window.iter().filter(|span| span.parent.is_none()).collect();
    let seats: BTreeSet<_> = roots.iter().map(|root| (root.role.as_str(), root.uid)).collect();
    assert!(roots.len() == 4 && seats.len() == 4, "a root for each seat: {roots:?}");
    assert!(roots.iter().all(|root| root.name == "window"), "{roots:?}");
    for span in &of_window {
        assert!(span.begin <= span.end, "{span:?}");
        let Some(parent) = &span.parent else { continue };
        let parent = of_window.iter().find(|other| other.id == *parent);
        let parent = parent.unwrap_or_else(|| panic!("{span:?} has a parent that is not there"));
        assert_eq!((&parent.role, parent.uid), (&span.role, span.uid), "{span:?}");
        let is_inside = parent.begin <= span.begin && span.end <= parent.end;
        assert!(is_inside || BESIDE_THE_LOOP.contains(&&*span.name), "{span:?} is not inside {parent:?}");
    }
    for root in roots {
        let of_seat = of_window.iter().filter(|span| (&span.role, span.uid) == (&root.role, root.uid));
        let names: BTreeSet<&str> = of_seat.map(|span| &*span.name).collect();
        let expected = if root.role == "miner" { OF_A_MINER } else { OF_A_VALIDATOR };
        let missing: Vec<_> = expected.iter().filter(|name| !names.contains(**name)).collect();
        assert!(missing.is_empty(), "uid {} has no span {missing:?}: {names:?}", root.uid);
    }
    let attribute = |name: &str, key: &str| {
        let span = of_window.iter().find(|span| span.name == name).expect("checked above");
        span.attributes.get(key).unwrap_or_else(|| panic!("no {key} in {span:?}")).clone()
    };
    assert_eq!(attribute("follow", "mettle.outcome"), "merged");
    assert_eq!(attribute("gather", "mettle.valid"), "2");
    for (name, key) in [
        ("training", "mettle.loss_last"),
        ("training", "mettle.steps"),
        ("encode", "mettle.bytes"),
        ("upload", "mettle.bytes"),
        ("publish", "mettle.bytes"),
        ("merge", "mettle.contributions"),
        ("judge", "mettle.held_out_loss"),
    ] {
        let value: f64 = attribute(name, key).parse().expect("a number");
        assert!(0.0 < value, "{name} {key}: {value}");
    }
}

/// Renders a window's trace for error messages.
fn tree(spans: &[Span], window: u64) -> String {
    let first = spans.iter().filter(|span| span.window == window).map(|span| span.begin).min().unwrap_or(0);
    let mut text = format!("window {window}\n");
    let mut roots: Vec<_> =
        spans.iter().filter(|span| span.window == window && span.parent.is_none()).collect();
    roots.sort_by_key(|root| (&root.role, root.uid));
    roots.into_iter().for_each(|root| branch(spans, root, first, 1, &mut text));
    text
}

fn branch(spans: &[Span], span: &Span, first: u64, depth: usize, text: &mut String) {
    let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6;
    let name = match span.parent {
        None => format!("{} {}", span.role, span.uid),
        Some(_) => span.name.clone(),
    };
    let begin = milliseconds(span.begin.saturating_sub(first));
    let took = milliseconds(span.end.saturating_sub(span.begin));
    let more: Vec<_> = span.attributes.iter().filter(|(key, _)| *key != "mettle.window").collect();
    let more: Vec<_> =
        more.iter().map(|(key, value)| format!("{}={value}", &key["mettle.".len()..])).collect();
    let error = span.error.as_ref().map_or(String::new(), |error| format!(" ERROR {error}"));
    let indented = format!("{}{name}", "  ".repeat(depth));
    *text += &format!("{indented:<28} {begin:>9.1} ms {took:>9.1} ms  {}{error}\n", more.join(" "));
    let mut children: Vec<_> = spans.iter().filter(|child| child.parent.as_ref() == Some(&span.id)).collect();
    children.sort_by_key(|child| child.begin);
    children.into_iter().for_each(|child| branch(spans, child, first, depth + 1, text));
}

impl Collector {
    /// Waits until the spans satisfy `done`, while the network runs.
    async fn until(&self, net: &mut Net, what: &str, done: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        net.until(what, |_| done(&self.arrived().spans)).await;
        self.arrived().spans.clone()
    }
}

async fn all_seats_spans_of_a_window_are_one_trace_and_a_lost_collector_costs_no_window(home: &Path) {
    let wanted = support::wanted(WHEN_IDLE, Seats::honest(2, 2), support::params(2), 2).await;
    let mut net = Net::set_up(home, &wanted).await;
    let collector = Collector::start();
    let address = collector.address;
    let endpoint = format!("http://{address}");
    net.network.environment.push(("OTEL_EXPORTER_OTLP_ENDPOINT".into(), endpoint.into()));
    net.start_seats();

    // A whole merged window, and its successors.
    net.until("three windows are merged", |seen| 3 <= merged_since(seen, 0)).await;
    let mut merged = net.observer.outcomes.iter().filter(|(_, outcome)| support::merged(outcome));
    let window = u64::from(merged.next_back().expect("three").0.0);
    let judges = |spans: &[Span]| {
        spans.iter().filter(|span| span.window == window && matches!(&*span.name, "judge" | "window")).count()
    };
    let spans = collector.until(&mut net, "its spans have arrived", |spans| judges(spans) == 4 + 2).await;
    println!("{}", tree(&spans, window));
    check(&spans, window);

    // A bucket that refuses everything: the seat's upload fails, and with it its window.
    net.inject("miner-1", &Faults { unavailable: Rate::Always, ..Faults::default() }).await;
    let uid = u64::from(net.uid("miner-1").0);
    // On a busy machine, a window may have failed for another reason.
    let is_refused = |span: &&Span, name: &str| {
        let why = span.error.as_deref().unwrap_or_default();
        span.uid == uid && span.name == name && why.contains("did not take the contribution")
    };
    let spans = collector
        .until(&mut net, "the miner's window has failed", |spans| {
            spans.iter().any(|span| is_refused(&span, "window"))
        })
        .await;
    net.inject("miner-1", &Faults::default()).await;
    let root = spans.iter().find(|span| is_refused(span, "window")).expect("waited for");
    let of_root = |span: &&Span| is_refused(span, "upload") && span.parent.as_ref() == Some(&root.id);
    let upload = spans.iter().find(of_root).expect("it was tried");
    assert_eq!((&upload.trace, &upload.error), (&root.trace, &root.error));
    println!("{}", tree(&spans, root.window));

    // Two windows are merged while the collector is busy, while it hangs, and without it.
    let mut collector = Some(collector);
    for (what, answer) in
        [("answers 500", Some(Answer::Status500)), ("hangs", Some(Answer::Hang)), ("is away", None)]
    {
        match (answer, &collector) {
            (Some(answer), Some(collector)) => collector.answer(answer),
            _ => drop(collector.take()),
        }
        let from = last_finalised(&net.observer) + 1;
        let what = format!("two windows are merged while the collector {what}");
        net.until(&what, |seen| 2 <= merged_since(seen, from)).await;
    }

    // The kept spans are sent when the collector is back. Each node has logged both events once.
    let from = u64::from(last_finalised(&net.observer));
    let collector = Collector::listen(address).await;
    collector
        .until(&mut net, "it is sent the newest windows again", |spans| {
            let seats = spans.iter().filter(|span| span.name == "window" && from <= span.window);
            let seats: BTreeSet<_> = seats.map(|root| (&root.role, root.uid)).collect();
            seats.len() == 4
        })
        .await;
    let logs: Vec<_> = net.plan.seats.iter().map(|seat| net.network.log_of(&seat.name)).collect();
    let lines = |words: &str| -> Vec<usize> {
        let of = |log| std::fs::read_to_string(log).expect("it has a log");
        logs.iter().map(|log| of(log).lines().filter(|line| line.contains(words)).count()).collect()
    };
    net.until("each node has said that it is back", |_| lines("the collector takes traces again") == [1; 4])
        .await;
    assert_eq!(lines("the collector takes no traces"), [1; 4]);
    assert!(net.observer.lineage_agreed(), "every node held the chain's model at every window");
    net.down().await;
}
