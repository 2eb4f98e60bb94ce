//! Metrics for monitoring: numbers at `/metrics`, and at `/health` whether the node follows the chain.
//!
//! Off unless an address is given. Every reader of the address sees the same public data, and cannot change anything.
//! Numbers come from the [`Entry`]s of the journal, so that the two agree. Events are counted since the process
//! started. Texts, such as the last error, are in `/health` only, as a monitoring system keeps a series for every
//! text.

use crate::{Entry, NodeContext, durable::DiskStatus};
use bytes::Bytes;
use chain_client::{Chain, Head};
use futures::future::BoxFuture;
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, server::conn::http1, service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};
use protocol::{Phase, Role, RunId, Schedule, Uid, Window};
use serde::Serialize;
use std::{
    convert::Infallible,
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicU64, atomic::Ordering},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinHandle,
};

/// Without a finalised block for longer than this, the node is not healthy: ten blocks of the slowest usual chain, and
/// more than finality needs after a restart of one of its voters.
pub const HEAD_WITHIN: Duration = Duration::from_secs(60);
/// Windows by which the held model may trail the open window: one, until the last update has arrived.
const WINDOWS_BEHIND_MAX: u32 = 1;
/// Connections at once; more wait.
const CONNECTIONS_MAX: usize = 16;
/// The longest connection.
const CONNECTION_WITHIN: Duration = Duration::from_secs(10);
/// Between two reads of the newest block.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Characters of an error's text that are kept.
const TEXT_MAX: usize = 300;

/// The address of the metrics.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MetricsFlag {
    /// Serve metrics at http://ADDR/metrics and health at http://ADDR/health, such as 127.0.0.1:9616. Without it:
    /// nothing is served.
    #[arg(long, value_name = "ADDR", env = "METTLE_METRICS")]
    pub metrics: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub enum MetricsError {
    #[error(
        "metrics cannot be served at {address}: another program uses the port. Give --metrics another one"
    )]
    PortTaken { address: SocketAddr },
    #[error("metrics cannot be served at {address}: is it an address of this machine?")]
    Listen { address: SocketAddr, source: io::Error },
}

/// A role's metrics, served as long as this value lives.
#[derive(Debug)]
pub struct Metrics {
    shared: Arc<Shared>,
    address: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
}

type Labels = [(&'static str, String); 1];

/// Everything that is counted or measured.
struct Numbers {
    block: Gauge,
    best_block: Gauge,
    finality_lag: Gauge,
    head_age: Gauge<f64, AtomicU64>,
    window: Gauge,
    phase: Family<Labels, Gauge>,
    held_window: Gauge,
    healthy: Gauge,
    committed: Counter,
    uploaded: Counter,
    attested: Counter,
    voted: Counter,
    judged: Counter,
    posted: Counter,
    receipts: Counter,
    repaired: Counter,
    missed: Counter,
    verdicts: Family<Labels, Counter>,
    trained_sequences: Counter,
    train_seconds: Counter<f64, AtomicU64>,
    data_seconds: Counter<f64, AtomicU64>,
    data_wait: Gauge<f64, AtomicU64>,
    evaluate_seconds: Counter<f64, AtomicU64>,
    train_loss: Gauge<f64, AtomicU64>,
    held_out_loss: Gauge<f64, AtomicU64>,
    update_bytes: Gauge,
    bytes_up: Counter,
    bytes_down: Counter,
    last_error: Gauge<f64, AtomicU64>,
    seat: Family<[(&'static str, String); 4], Gauge>,
}

struct Shared {
    role: Role,
    registry: Registry,
    numbers: Numbers,
    following: Mutex<Following>,
}

type Traffic = Box<dyn Fn() -> (u64, u64) + Send>;

/// What is known of the node's position on the chain.
struct Following {
    since: Instant,
    seat: Option<(RunId, Uid)>,
    schedule: Option<Schedule>,
    head: Option<(Head, Instant)>,
    held: Option<Window>,
    last_error: Option<String>,
    traffic: Option<Traffic>,
    disk: DiskStatus,
}

/// The body of `/health`.
#[derive(Debug, Serialize)]
struct Health {
    healthy: bool,
    /// Why not.
    why: Option<String>,
    role: Role,
    run: Option<RunId>,
    uid: Option<Uid>,
    block: Option<u32>,
    seconds_since_block: Option<f64>,
    window: Option<Window>,
    phase: Option<Phase>,
    /// The window whose model is held.
    held_window: Option<Window>,
    last_error: Option<String>,
}

impl Metrics {
    /// Serves at `address` from now on. Until [`Metrics::follow`] the role is starting, and not healthy.
    pub fn serve(address: SocketAddr, role: Role) -> BoxFuture<'static, Result<Metrics, MetricsError>> {
        Box::pin(Metrics::start(address, role))
    }

    async fn start(address: SocketAddr, role: Role) -> Result<Metrics, MetricsError> {
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::AddrInUse => MetricsError::PortTaken { address },
            _ => MetricsError::Listen { address, source },
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared::new(role));
        let tasks = vec![tokio::spawn(accept(listener, shared.clone()))];
        tracing::info!(%address, "serving /metrics and /health");
        Ok(Metrics { shared, address, tasks })
    }

    /// The address that is served: with the port that was found, if port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Counts what the role does from now on.
    pub fn follow(&mut self, opened: &mut NodeContext) {
        let run = opened.run();
        self.shared.sits(run.id, opened.seat.id.uid, run.params.schedule, opened.traffic());
        self.shared.following().disk = opened.journal.disk.clone();
        let watched = self.shared.clone();
        opened.journal.watch(Box::new(move |entry| watched.take(entry)));
        self.tasks.push(tokio::spawn(watch_heads(opened.chain.clone(), self.shared.clone())));
        self.tasks.push(tokio::spawn(watch_best(opened.chain.clone(), self.shared.clone())));
    }
}

impl Drop for Metrics {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("role", &self.role).finish_non_exhaustive()
    }
}

impl Numbers {
    fn registered(registry: &mut Registry) -> Numbers {
        fn add<M>(registry: &mut Registry, name: &str, help: &str) -> M
        where
            M: prometheus_client::registry::Metric + Default + Clone,
        {
            let metric = M::default();
            registry.register(name, help, metric.clone());
            metric
        }
        fn add_in<M>(registry: &mut Registry, name: &str, help: &str, unit: Unit) -> M
        where
            M: prometheus_client::registry::Metric + Default + Clone,
        {
            let metric = M::default();
            registry.register_with_unit(name, help, unit, metric.clone());
            metric
        }
        let r = registry;
        Numbers {
            block: add(r, "block", "Latest finalised block that the role has heard of"),
            best_block: add(r, "best_block", "Newest block of the best fork, final or not"),
            finality_lag: add(
                r,
                "finality_lag_blocks",
                "Blocks by which the finalised block trails the newest",
            ),
            head_age: add_in(r, "head_age", "Time since a block was last finalised", Unit::Seconds),
            window: add(r, "window", "Window that is open; -1 before the run starts"),
            phase: add(r, "phase", "1 for the phase that the open window is in, 0 for the others"),
            held_window: add(r, "held_window", "Window whose model is held; -1 before there is one"),
            healthy: add(r, "healthy", "1 while /health says that the role follows the chain"),
            committed: add(r, "commitments", "Contributions committed to on the chain"),
            uploaded: add(r, "uploads", "Contributions uploaded"),
            attested: add(r, "attestations", "Windows attested"),
            voted: add(r, "votes", "Updates voted"),
            judged: add(r, "windows_judged", "Windows whose contributions were judged"),
            posted: add(r, "weights_posted", "Epochs for which weights were posted"),
            receipts: add(r, "receipts_published", "Windows whose receipt is in the bucket and on the chain"),
            repaired: add(r, "pieces_repaired", "Pieces of the model that a checkpoint set right"),
            missed: add(r, "windows_missed", "Windows without the role's commitment, attestation or vote"),
            verdicts: add(r, "verdicts", "Contributions by what was said of them"),
            trained_sequences: add(r, "trained_sequences", "Sequences trained on"),
            train_seconds: add_in(r, "training", "Time spent training", Unit::Seconds),
            data_seconds: add_in(r, "data_wait", "Time of training spent waiting for data", Unit::Seconds),
            data_wait: add(
                r,
                "data_wait_ratio",
                "Share of the last window's training time that was spent waiting for data",
            ),
            evaluate_seconds: add_in(r, "evaluation", "Time spent evaluating", Unit::Seconds),
            train_loss: add(r, "train_loss", "Loss of the last batch of the last window, nats per token"),
            held_out_loss: add(
                r,
                "held_out_loss",
                "Loss on held-out text of the model that was last judged, nats per token",
            ),
            update_bytes: add_in(r, "sent", "Size of what was last committed or voted", Unit::Bytes),
            bytes_up: add_in(r, "uploaded", "Bytes put into the role's bucket", Unit::Bytes),
            bytes_down: add_in(r, "downloaded", "Bytes fetched", Unit::Bytes),
            last_error: add_in(
                r,
                "last_error",
                "When something last went wrong, since 1970; 0 for never. /health says what",
                Unit::Seconds,
            ),
            seat: add(r, "seat", "The seat that this process holds"),
        }
    }
}

impl Shared {
    fn new(role: Role) -> Shared {
        let mut registry = Registry::with_prefix("mettle");
        let numbers = Numbers::registered(&mut registry);
        numbers.window.set(-1);
        numbers.held_window.set(-1);
        // Not measured yet, so not 0.
        numbers.train_loss.set(f64::NAN);
        numbers.held_out_loss.set(f64::NAN);
        let following = Following {
            since: Instant::now(),
            seat: None,
            schedule: None,
            head: None,
            held: None,
            last_error: None,
            traffic: None,
            disk: DiskStatus::default(),
        };
        Shared { role, registry, numbers, following: Mutex::new(following) }
    }

    /// No write under the lock can panic half way.
    fn following(&self) -> MutexGuard<'_, Following> {
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sits(&self, run: RunId, uid: Uid, schedule: Schedule, traffic: Traffic) {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let labels = [
            ("role", self.role.to_string()),
            ("run", run.to_string()),
            ("uid", uid.to_string()),
            ("version", version),
        ];
        self.numbers.seat.get_or_create(&labels).set(1);
        let mut following = self.following();
        following.seat = Some((run, uid));
        following.schedule = Some(schedule);
        following.traffic = Some(traffic);
    }

    /// A block was finalised.
    fn heard(&self, head: Head, at: Instant) {
        let numbers = &self.numbers;
        let mut following = self.following();
        following.head = Some((head, at));
        numbers.block.set(i64::from(head.block.0));
        let Some((window, phase)) = following.schedule.and_then(|schedule| schedule.phase_at(head.block))
        else {
            return;
        };
        numbers.window.set(i64::from(window.0));
        for one in [Phase::Commit, Phase::Reveal, Phase::Attest, Phase::Vote, Phase::Finalise] {
            let label = [("phase", one.label().to_owned())];
            numbers.phase.get_or_create(&label).set(i64::from(one == phase));
        }
    }

    fn wrong(&self, window: Window, text: &str) {
        let mut text: String = text.chars().take(TEXT_MAX).collect();
        text.insert_str(0, &format!("window {}: ", window.0));
        self.following().last_error = Some(text);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.numbers.last_error.set(now.as_secs_f64());
    }

    fn verdict(&self, verdict: &str, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.numbers.verdicts.get_or_create(&[("verdict", verdict.to_owned())]).inc_by(count);
    }

    /// Counts an entry of the journal.
    fn take(&self, entry: &Entry) {
        let numbers = &self.numbers;
        match entry {
            Entry::Started { .. } | Entry::Traffic { .. } | Entry::Resumed { .. } => {}
            Entry::Repeated { window, found, .. } => self.wrong(*window, found),
            Entry::FellBack { file } => {
                let held = self.following().held.unwrap_or_default();
                self.wrong(held, &format!("{file} was damaged, and the one before it is used"));
            }
            Entry::Holds { window, .. } => {
                self.following().held = Some(*window);
                numbers.held_window.set(i64::from(window.0));
            }
            Entry::Trained { sequences, loss_last, train_seconds, data_seconds, .. } => {
                numbers.trained_sequences.inc_by(u64::from(*sequences));
                numbers.train_seconds.inc_by(train_seconds.max(0.0));
                numbers.data_seconds.inc_by(data_seconds.max(0.0));
                if 0.0 < *train_seconds {
                    numbers.data_wait.set(data_seconds / train_seconds);
                }
                numbers.train_loss.set(*loss_last);
            }
            Entry::Committed { bytes, .. } => {
                numbers.committed.inc();
                numbers.update_bytes.set(i64::try_from(*bytes).unwrap_or(i64::MAX));
            }
            Entry::Uploaded { .. } => {
                numbers.uploaded.inc();
            }
            Entry::Attested { valid, faulty, not_observed, .. } => {
                numbers.attested.inc();
                self.verdict("valid", valid.len());
                self.verdict("faulty", faulty.len());
                self.verdict("not_observed", not_observed.len());
            }
            Entry::Voted { bytes, .. } => {
                numbers.voted.inc();
                numbers.update_bytes.set(i64::try_from(*bytes).unwrap_or(i64::MAX));
            }
            Entry::Missed { window, reason } | Entry::Abstained { window, reason } => {
                numbers.missed.inc();
                self.wrong(*window, reason);
            }
            Entry::Judged { held_out_loss, evaluate_seconds, .. } => {
                numbers.judged.inc();
                numbers.held_out_loss.set(*held_out_loss);
                numbers.evaluate_seconds.inc_by(evaluate_seconds.max(0.0));
            }
            Entry::Posted { .. } => {
                numbers.posted.inc();
            }
            Entry::Published { .. } => {
                numbers.receipts.inc();
            }
            Entry::Unpublished { window, reason } => self.wrong(*window, reason),
            Entry::Repaired { pieces, .. } => {
                numbers.repaired.inc_by(u64::try_from(*pieces).unwrap_or(u64::MAX));
            }
        }
    }

    fn health(&self, now: Instant) -> Health {
        let following = self.following();
        let schedule = following.schedule;
        let position = following.head.and_then(|(head, _)| schedule?.phase_at(head.block));
        let age = following.head.map(|(_, at)| now.saturating_duration_since(at));
        let why = following.why_not(now, position.map(|(window, _)| window));
        let disk = following.disk.full().map(|error| format!("the disk is full: {error}"));
        Health {
            healthy: why.is_none(),
            why,
            role: self.role,
            run: following.seat.map(|(run, _)| run),
            uid: following.seat.map(|(_, uid)| uid),
            block: following.head.map(|(head, _)| head.block.0),
            seconds_since_block: age.map(|age| age.as_secs_f64()),
            window: position.map(|(window, _)| window),
            phase: position.map(|(_, phase)| phase),
            held_window: following.held,
            last_error: disk.or_else(|| following.last_error.clone()),
        }
    }

    /// Everything as text, in the format that Prometheus reads.
    fn text(&self, now: Instant) -> String {
        let health = self.health(now);
        self.numbers.healthy.set(i64::from(health.healthy));
        self.numbers.head_age.set(health.seconds_since_block.unwrap_or(0.0));
        let moved = self.following().traffic.as_ref().map(|traffic| traffic());
        if let Some((up, down)) = moved {
            self.numbers.bytes_up.inner().store(up, Ordering::Relaxed);
            self.numbers.bytes_down.inner().store(down, Ordering::Relaxed);
        }
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)
            .expect("writing to a string cannot fail");
        text
    }
}

impl Following {
    /// Why the role is not following the chain, if it is not.
    fn why_not(&self, now: Instant, open: Option<Window>) -> Option<String> {
        if let Some(error) = self.disk.full() {
            return Some(format!("the disk is full, and the node waits for space: {error}"));
        }
        let Some((head, at)) = self.head else {
            let seconds = now.saturating_duration_since(self.since).as_secs();
            return Some(match self.seat {
                None => format!("starting since {seconds} s: chain, seat and run are not all there yet"),
                Some(_) => format!("no finalised block was heard of in {seconds} s"),
            });
        };
        let age = now.saturating_duration_since(at);
        if HEAD_WITHIN < age {
            return Some(format!(
                "no block was finalised for {} s; the last is {}",
                age.as_secs(),
                head.block
            ));
        }
        let Some(held) = self.held else { return Some("no model is held yet".into()) };
        let open = open?;
        (held.0.saturating_add(WINDOWS_BEHIND_MAX) < open.0).then(|| {
            format!("the model of window {} is held, and window {} is open: catching up", held.0, open.0)
        })
    }
}

async fn watch_heads(chain: Arc<dyn Chain>, shared: Arc<Shared>) {
    let mut heads = chain.heads();
    // The first head came with the connection, a moment ago.
    loop {
        let head = *heads.borrow_and_update();
        shared.heard(head, Instant::now());
        if heads.changed().await.is_err() {
            return;
        }
    }
}

/// Reads the newest block now and then; while the chain is away, the last answer stays.
async fn watch_best(chain: Arc<dyn Chain>, shared: Arc<Shared>) {
    loop {
        if let Ok(best) = chain.best_block().await {
            let block = chain.heads().borrow().block;
            shared.numbers.best_block.set(i64::from(best.0));
            shared.numbers.finality_lag.set(i64::from(best.0.saturating_sub(block.0)));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // For example out of descriptors: a retry at once would fail too.
                tracing::debug!(%error, "a connection for metrics was not taken");
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let shared = shared.clone();
        tokio::spawn(async move {
            if tokio::time::timeout(CONNECTION_WITHIN, converse(stream, shared)).await.is_err() {
                tracing::debug!("a connection for metrics took too long");
            }
            drop(place);
        });
    }
}

/// One request and its answer.
async fn converse(stream: TcpStream, shared: Arc<Shared>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(&shared, request.method(), request.uri().path());
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = served.await {
        tracing::debug!(%error, "a connection for metrics broke");
    }
}

fn answer(shared: &Shared, method: &Method, path: &str) -> Response<Full<Bytes>> {
    const TEXT: &str = "text/plain; charset=utf-8";
    let now = Instant::now();
    let (status, kind, body) = match (path, method) {
        ("/metrics" | "/health", method) if method != Method::GET => {
            (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned())
        }
        ("/metrics", _) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            (StatusCode::OK, kind, shared.text(now))
        }
        ("/health", _) => {
            let health = shared.health(now);
            let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            let mut body = serde_json::to_string(&health).expect("plain data");
            body.push('\n');
            (status, "application/json", body)
        }
        _ => (StatusCode::NOT_FOUND, TEXT, "/metrics and /health are here\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(hyper::header::CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{durable::DiskFullRetry, journal::SeatFault};
    use protocol::{Block, Digest};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const SCHEDULE: Schedule = Schedule {
        start: Block(10),
        blocks_per_window: 20,
        commit_by: 8,
        reveal_by: 11,
        attest_by: 14,
        vote_by: 17,
    };

    fn head(block: u32) -> Head {
        Head { block: Block(block), hash: Digest::of(&block.to_le_bytes()) }
    }

    fn sitting(role: Role) -> Shared {
        let shared = Shared::new(role);
        shared.sits(RunId(3), Uid(5), SCHEDULE, Box::new(|| (70, 900)));
        shared
    }

    fn holds(window: u32) -> Entry {
        Entry::Holds { window: Window(window), lineage: Digest::of(b"lineage"), outcome_before: None }
    }

    fn why(shared: &Shared, at: Instant) -> String {
        let health = shared.health(at);
        assert_eq!(health.healthy, health.why.is_none());
        health.why.unwrap_or_default()
    }

    #[test]
    fn a_node_is_healthy_only_while_it_follows_the_chain() {
        let start = Instant::now();
        let starting = Shared::new(Role::Miner);
        assert!(why(&starting, start).contains("starting"));

        let shared = sitting(Role::Miner);
        assert!(why(&shared, start).contains("no finalised block"));
        shared.heard(head(4), start);
        assert!(why(&shared, start).contains("no model"));
        shared.take(&holds(0));
        assert_eq!(why(&shared, start), "", "before the run starts there is nothing to be behind with");
        shared.heard(head(35), start);
        assert_eq!(why(&shared, start), "", "window 1 is open: its model is on its way");
        assert_eq!(why(&shared, start + HEAD_WITHIN), "");
        let late = start + HEAD_WITHIN + Duration::from_secs(1);
        assert!(why(&shared, late).contains("no block was finalised for 61 s; the last is #35"));
        shared.heard(head(52), late);
        assert!(why(&shared, late).contains("window 0 is held, and window 2 is open"));
        shared.take(&holds(2));
        assert_eq!(why(&shared, late), "");

        let mut retry = DiskFullRetry::new(&shared.following().disk);
        retry.refused(&io::Error::other("no space for model.state"));
        assert!(
            why(&shared, late).contains("the disk is full") && why(&shared, late).contains("model.state")
        );
        assert!(shared.health(late).last_error.is_some_and(|error| error.contains("the disk is full")));
        retry.found();
        assert_eq!(why(&shared, late), "");
    }

    #[test]
    fn entries_of_the_journal_are_counted() {
        let shared = sitting(Role::Validator);
        let (window, digest) = (Window(1), Digest::of(b"digest"));
        let fault = SeatFault { uid: Uid(1), label: "missing".into(), reason: "gone".into() };
        shared.heard(head(39), Instant::now());
        for entry in [
            Entry::Started { window, resumed: true },
            holds(1),
            Entry::Trained {
                window,
                sequences: 64,
                loss_first: 6.0,
                loss_last: 5.5,
                train_seconds: 1.5,
                data_seconds: 0.375,
            },
            Entry::Trained {
                window,
                sequences: 0,
                loss_first: 6.0,
                loss_last: 5.5,
                train_seconds: 0.0,
                data_seconds: 0.0,
            },
            Entry::Committed { window, digest, bytes: 9 },
            Entry::Uploaded { window, bytes: 9 },
            Entry::Attested {
                window,
                valid: vec![Uid(2), Uid(3)],
                faulty: vec![fault],
                not_observed: vec![],
            },
            Entry::Voted { window, update: digest, bytes: 11, inputs: vec![Uid(2)] },
            Entry::Judged { window, held_out_loss: 4.25, seats: vec![], evaluate_seconds: 0.5 },
            Entry::Posted { epoch: 0, weights: vec![] },
            Entry::Published { window, receipt: digest, bytes: 9 },
            Entry::Repaired { window, pieces: 2 },
            Entry::Missed { window, reason: "too late".into() },
            Entry::Abstained { window, reason: "é".repeat(1000) },
        ] {
            shared.take(&entry);
        }
        let text = shared.text(Instant::now());
        for line in [
            "mettle_block 39",
            "mettle_window 1",
            "mettle_phase{phase=\"settle\"} 0",
            "mettle_phase{phase=\"commit\"} 0",
            "mettle_phase{phase=\"reveal\"} 1",
            "mettle_held_window 1",
            "mettle_healthy 1",
            "mettle_commitments_total 1",
            "mettle_uploads_total 1",
            "mettle_attestations_total 1",
            "mettle_votes_total 1",
            "mettle_weights_posted_total 1",
            "mettle_receipts_published_total 1",
            "mettle_pieces_repaired_total 2",
            "mettle_windows_missed_total 2",
            "mettle_windows_judged_total 1",
            "mettle_verdicts_total{verdict=\"valid\"} 2",
            "mettle_verdicts_total{verdict=\"faulty\"} 1",
            "mettle_trained_sequences_total 64",
            "mettle_training_seconds_total 1.5",
            "mettle_data_wait_seconds_total 0.375",
            "mettle_data_wait_ratio 0.25",
            "mettle_train_loss 5.5",
            "mettle_held_out_loss 4.25",
            "mettle_sent_bytes 11",
            "mettle_uploaded_bytes_total 70",
            "mettle_downloaded_bytes_total 900",
            "mettle_seat{role=\"validator\",run=\"3\",uid=\"5\",version=\"0.1.0\"} 1",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert!(!text.contains('é'), "texts are no series");
        let health = shared.health(Instant::now());
        let error = health.last_error.unwrap();
        assert!(error.starts_with("window 1: é") && error.chars().count() < TEXT_MAX + 20, "{error}");
        assert!(text.ends_with("# EOF\n"));
    }

    async fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_and_health_are_served_and_nothing_else() {
        let metrics = Metrics::serve("127.0.0.1:0".parse().unwrap(), Role::Miner).await.unwrap();
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: us\r\n\r\n");
        let told = ask(metrics.address(), &get("/metrics")).await;
        assert!(told.starts_with("HTTP/1.1 200") && told.contains("mettle_healthy 0"), "{told}");
        assert!(told.contains("mettle_held_out_loss NaN"), "a loss that nobody measured is none: {told}");
        let health = ask(metrics.address(), &get("/health")).await;
        assert!(health.starts_with("HTTP/1.1 503") && health.contains("\"healthy\":false"), "{health}");
        metrics.shared.sits(RunId(0), Uid(1), SCHEDULE, Box::new(|| (0, 0)));
        metrics.shared.heard(head(11), Instant::now());
        metrics.shared.take(&holds(0));
        let health = ask(metrics.address(), &get("/health")).await;
        assert!(health.starts_with("HTTP/1.1 200") && health.contains("\"why\":null"), "{health}");
        assert!(ask(metrics.address(), &get("/")).await.starts_with("HTTP/1.1 404"));
        let post = "POST /health HTTP/1.1\r\nhost: us\r\ncontent-length: 0\r\n\r\n";
        assert!(ask(metrics.address(), post).await.starts_with("HTTP/1.1 405"));
        assert!(ask(metrics.address(), "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        let long = format!("GET /{} HTTP/1.1\r\nhost: us\r\n\r\n", "x".repeat(20 << 10));
        let refused = ask(metrics.address(), &long).await;
        assert!(refused.starts_with("HTTP/1.1 4"), "{refused}");
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_used_is_named() {
        let first = Metrics::serve("127.0.0.1:0".parse().unwrap(), Role::Miner).await.unwrap();
        let taken = Metrics::serve(first.address(), Role::Miner).await.unwrap_err();
        assert!(taken.to_string().contains(&first.address().to_string()), "{taken}");
        assert!(matches!(taken, MetricsError::PortTaken { .. }));
        let foreign = Metrics::serve("192.0.2.1:9616".parse().unwrap(), Role::Miner).await.unwrap_err();
        assert!(foreign.to_string().contains("192.0.2.1:9616"), "{foreign}");
    }
}
