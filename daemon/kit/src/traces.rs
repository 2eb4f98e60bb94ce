//! Traces of windows for an OpenTelemetry collector: a node's actions in each window, with times and results (ADR
//! 0066).
//!
//! Disabled unless the environment names a collector. The spans are the existing ones of the loops, of target
//! `profile` at level `debug`: the phases of a window, without the steps of the training. The trace's id follows from
//! chain, run and window. So the spans of all seats in a window are one trace, and seats exchange no ids.
//!
//! No span waits for the collector. Ended spans enter a bounded queue, and a task sends them.

mod collector;
mod export;
mod otlp;
#[cfg(test)]
mod tests;

pub use collector::{Collector, CollectorError};

use export::{Exporter, Queue};
use protocol::{GenesisHash, Role, RunId, Uid, Window};
use std::{
    fmt,
    sync::{
        Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{sync::Notify, task::JoinHandle};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};
use tracing_subscriber::{
    Layer,
    filter::Targets,
    layer::Context,
    registry::{LookupSpan, Registry},
};

/// Target of the spans that are sent, and of the events that mark a span as failed.
const TARGET: &str = "profile";
/// The span of a whole window: the root of a seat's part of the trace.
const ROOT: &str = "window";
/// Maximum number of attributes of a span.
const ATTRIBUTES_MAX: usize = 16;
/// Maximum length of a text, in characters.
const TEXT_MAX: usize = 300;
/// Maximum time for which the end of a program waits until the last spans are sent.
const FLUSH_WITHIN: Duration = Duration::from_millis(400);

/// The spans of this process, if it is traced.
static PROCESS: LazyLock<Arc<Shared>> = LazyLock::new(Arc::default);

/// The shared state of layer and exporter.
#[derive(Default)]
struct Shared {
    /// The traced seat. Nothing is recorded before it is set.
    source: OnceLock<Source>,
    spans_begun: AtomicU64,
    queue: Mutex<Queue>,
    /// Makes the exporter send the remaining spans and end.
    ending: Notify,
    exporter: Mutex<Option<JoinHandle<()>>>,
}

/// The seat whose windows are traced.
#[derive(Clone, Copy, Debug)]
pub struct TracedSeat {
    pub genesis: GenesisHash,
    pub run: RunId,
    pub role: Role,
    pub uid: Uid,
}

/// A seat in this process.
struct Source {
    seat: TracedSeat,
    /// Differs with every start of the process, so that no id occurs twice in a window.
    instance: [u8; 32],
}

type TraceId = [u8; 16];
type SpanId = [u8; 8];

/// Returns the id of a window's trace: the first 16 bytes of the BLAKE3 hash of genesis hash, run and window, the last
/// two as four bytes each, little-endian.
fn trace_id(genesis: &GenesisHash, run: RunId, window: Window) -> TraceId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&genesis.0).update(&run.0.to_le_bytes()).update(&window.0.to_le_bytes());
    first_bytes(&hasher.finalize())
}

fn first_bytes<const N: usize>(hash: &blake3::Hash) -> [u8; N] {
    *hash.as_bytes().first_chunk().expect("a hash has 32 bytes")
}

impl Source {
    fn new(seat: TracedSeat) -> Source {
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let mut hasher = blake3::Hasher::new();
        hasher.update(seat.role.to_string().as_bytes()).update(&seat.uid.0.to_le_bytes());
        hasher.update(&std::process::id().to_le_bytes()).update(&started.to_le_bytes());
        Source { seat, instance: *hasher.finalize().as_bytes() }
    }

    fn trace(&self, window: u64) -> TraceId {
        let window = Window(u32::try_from(window).unwrap_or(u32::MAX));
        trace_id(&self.seat.genesis, self.seat.run, window)
    }

    /// Returns the id of the window's root, known before it begins and after it ended: training ahead begins before.
    fn root(&self, window: u64) -> SpanId {
        self.hash(b"window", window)
    }

    fn span(&self, number: u64) -> SpanId {
        self.hash(b"span", number)
    }

    fn hash(&self, kind: &[u8], number: u64) -> SpanId {
        let mut hasher = blake3::Hasher::new();
        first_bytes(&hasher.update(&self.instance).update(kind).update(&number.to_le_bytes()).finalize())
    }
}

impl Shared {
    /// Locks the queue. No write under the lock can panic half way.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exporter(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.exporter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until everything is sent, for a limited time.
    async fn flush(&self) {
        let Some(exporter) = self.exporter().take() else { return };
        self.ending.notify_one();
        match tokio::time::timeout(FLUSH_WITHIN, exporter).await {
            Ok(Ok(())) => {}
            Ok(Err(died)) => tracing::warn!(%died, "the task that sends traces died"),
            Err(_) => tracing::info!("the collector is slow or away: the last spans are not sent"),
        }
    }
}

impl Collector {
    /// Sends the spans of this seat's windows from now on, until the program ends.
    pub fn follow(self, seat: TracedSeat) {
        self.follow_in(&PROCESS, seat);
    }

    fn follow_in(self, shared: &Arc<Shared>, seat: TracedSeat) {
        let source = shared.source.get_or_init(|| Source::new(seat));
        let resource = otlp::resource(&source.seat, &source.instance);
        let exporter = Exporter::new(self, resource, shared.clone());
        *shared.exporter() = Some(tokio::spawn(exporter.run()));
    }
}

/// Returns the layer that records spans, if the environment names a collector.
pub(crate) fn layer() -> Option<impl Layer<Registry> + Send + Sync> {
    let is_wanted = collector::is_named(|name| std::env::var(name).ok());
    is_wanted.then(|| layer_of(PROCESS.clone()))
}

fn layer_of(shared: Arc<Shared>) -> impl Layer<Registry> + Send + Sync {
    Layer::<Registry>::with_filter(SpanLayer(shared), Targets::new().with_target(TARGET, Level::DEBUG))
}

/// Waits at the end of a program until the last spans are sent, for a limited time.
pub(crate) async fn flush() {
    PROCESS.flush().await;
}

/// Marks the innermost span of a window's phases as failed, for a step that does not return the error.
pub fn failed(reason: &str) {
    tracing::debug!(target: TARGET, error = reason);
}

struct SpanLayer(Arc<Shared>);

/// A recorded span, stored in the extensions of its registry.
struct OpenSpan {
    window: u64,
    id: SpanId,
    parent: Option<SpanId>,
    begin: SystemTime,
    begun: Instant,
    fields: Fields,
}

/// An ended span.
#[derive(Clone, Debug, PartialEq)]
struct EndedSpan {
    trace: TraceId,
    id: SpanId,
    parent: Option<SpanId>,
    name: &'static str,
    begin: SystemTime,
    duration: Duration,
    attributes: Vec<(&'static str, Value)>,
    error: Option<String>,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
enum Value {
    Int(i64),
    Float(f64),
    Bool(bool),
    Text(String),
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for SpanLayer {
    /// Records a span with the window of its own fields or of the enclosing span; without either it is not recorded.
    /// Its parent is the nearest enclosing span of the same window, or the window's root.
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some((source, span)) = self.0.source.get().zip(context.span(id)) else { return };
        let around = span.scope().skip(1).find_map(|span| {
            let extensions = span.extensions();
            extensions.get::<OpenSpan>().map(|around| (around.window, around.id))
        });
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let Some(window) = fields.window.or(around.map(|(window, _)| window)) else { return };
        let root = source.root(window);
        let (id, parent) = if attributes.metadata().name() == ROOT {
            (root, None)
        } else {
            let parent = around.filter(|(of, _)| *of == window).map_or(root, |(_, id)| id);
            (source.span(self.0.spans_begun.fetch_add(1, Ordering::Relaxed)), Some(parent))
        };
        let (begin, begun) = (SystemTime::now(), Instant::now());
        span.extensions_mut().insert(OpenSpan { window, id, parent, begin, begun, fields });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut open.fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Some(error) = fields.error else { return };
        let mut around = context.event_scope(event).into_iter().flatten();
        let span = around.find(|span| span.extensions().get::<OpenSpan>().is_some());
        let Some(span) = span else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            open.fields.error = Some(error);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some((source, span)) = self.0.source.get().zip(context.span(&id)) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else { return };
        let OpenSpan { window, id, parent, begin, begun, fields } = open;
        let (trace, name, duration) = (source.trace(window), span.name(), begun.elapsed());
        let mut attributes = vec![("window", Value::Int(i64::try_from(window).unwrap_or(i64::MAX)))];
        attributes.extend(fields.others);
        let error = fields.error;
        self.0.queue().push(EndedSpan { trace, id, parent, name, begin, duration, attributes, error });
    }
}

/// The fields of a span or an event.
#[derive(Default)]
struct Fields {
    window: Option<u64>,
    error: Option<String>,
    others: Vec<(&'static str, Value)>,
}

impl Fields {
    fn set(&mut self, field: &Field, value: Value) {
        match (field.name(), value) {
            ("window", Value::Int(window)) => self.window = u64::try_from(window).ok(),
            ("error", Value::Text(error)) => self.error = Some(error),
            (name, value) => {
                self.others.retain(|(other, _)| *other != name);
                if self.others.len() < ATTRIBUTES_MAX {
                    self.others.push((name, value));
                }
            }
        }
    }
}

impl Visit for Fields {
    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, Value::Int(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, Value::Int(value));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no representation of other values.
        if value.is_finite() {
            self.set(field, Value::Float(value));
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, Value::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, Value::Text(value.chars().take(TEXT_MAX).collect()));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}
