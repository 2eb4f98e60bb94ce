//! Metrics for monitoring: numbers at `/metrics`, and at `/health` whether the node follows the chain.
//!
//! Off unless an address is given. Every reader of the address sees the same public data and cannot change anything.
//! Numbers come from the [`Entry`]s of the journal, so that the two agree. Events are counted from the process's
//! start. Texts, such as the last error, are in `/health` only, as a monitoring system keeps a series for every text.

use crate::{
    Entry, Follower, Journal,
    durable::{DiskStatus, free_bytes},
    http::{Limits, ListenError, Server},
    peers::Peers,
};
use axum::{
    Router,
    extract::State as Shares,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::get,
};
use chain_client::{Chain, Head};
use futures::future::BoxFuture;
use network::RefusedConnections;
use prometheus_client::{
    metrics::{
        counter::{ConstCounter, Counter},
        family::Family,
        gauge::{ConstGauge, Gauge},
    },
    registry::{Metric, Registry},
};
use protocol::{Block, Phase, Role, RunId, Schedule, Uid, Window, view::SeatView};
use serde::Serialize;
use std::{
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tokio::task::JoinSet;

/// Age of the last finalised block from which the node counts as unhealthy: ten blocks of the slowest usual chain,
/// and more than finality needs after a restart of one of its voters.
pub const HEAD_WITHIN: Duration = Duration::from_secs(60);
/// Maximum number of windows by which the held model may trail the open window: one, until the last update has
/// arrived.
const WINDOWS_BEHIND_MAX: u32 = 1;
/// Interval between two reads of the newest block and of the free disk space.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Maximum length of a stored error text, in characters.
const TEXT_MAX: usize = 300;

/// The address of the metrics.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MetricsFlag {
    /// Serve metrics at http://ADDR/metrics and health at http://ADDR/health, such as 127.0.0.1:9616. Without it:
    /// nothing is served.
    #[arg(long, value_name = "ADDR", env = "METTLE_METRICS")]
    pub metrics: Option<SocketAddr>,
}

/// A role's metrics, served until this value is dropped.
pub struct Metrics {
    shared: Arc<Shared>,
    server: Server,
    tasks: JoinSet<()>,
}

struct Shared {
    role: Role,
    since: Instant,
    started: SystemTime,
    state: Mutex<State>,
}

type Traffic = Box<dyn Fn() -> (u64, u64) + Send + Sync>;

/// The node's position on the chain, and its counters.
#[derive(Default)]
struct State {
    seat: Option<(RunId, Uid)>,
    schedule: Option<Schedule>,
    head: Option<(Head, Instant)>,
    /// The newest block of the best fork.
    best: Block,
    /// Blocks by which the finalised block trailed `best` when it was read.
    lag: u32,
    held: Option<Window>,
    /// The last window in which the role did its paid work; before the first, the window in which it started.
    done: Option<Window>,
    last_error: Option<(SystemTime, String)>,
    traffic: Option<Traffic>,
    peers: Option<Arc<Peers>>,
    disk: DiskStatus,
    free_bytes: Option<u64>,
    counts: Counts,
}

/// Numbers that are counted or measured from the journal.
#[derive(Default)]
struct Counts {
    committed: u64,
    uploaded: u64,
    attested: u64,
    voted: u64,
    vetoed: u64,
    judged: u64,
    posted: u64,
    probes_drawn: u64,
    probes_answered: u64,
    receipts_anchored: u64,
    receipts_published: u64,
    receipts_unpublished: u64,
    repaired: u64,
    missed: u64,
    steps_repeated: u64,
    files_damaged: u64,
    verdicts: Family<Label, Counter>,
    trained_sequences: u64,
    train_seconds: f64,
    data_seconds: f64,
    data_wait: f64,
    evaluate_seconds: f64,
    /// `None` until it is measured.
    train_loss: Option<f64>,
    held_out_loss: Option<f64>,
    sent_bytes: u64,
}

type Label = [(&'static str, String); 1];

/// The body of `/health`.
#[derive(Debug, Serialize)]
struct Health {
    healthy: bool,
    /// Reason, if the node is not healthy.
    why: Option<String>,
    role: Role,
    run: Option<RunId>,
    uid: Option<Uid>,
    block: Option<u32>,
    seconds_since_block: Option<f64>,
    window: Option<Window>,
    phase: Option<Phase>,
    /// The window of the held model.
    held_window: Option<Window>,
    last_error: Option<String>,
}

impl Metrics {
    /// Starts to serve at `address`. Until [`Metrics::follow`] the role is starting, and not healthy.
    ///
    /// # Errors
    /// If the address cannot be used.
    pub fn serve(address: SocketAddr, role: Role) -> BoxFuture<'static, Result<Metrics, ListenError>> {
        Box::pin(async move {
            let shared = Arc::new(Shared::new(role));
            let router = Router::new()
                .route("/metrics", get(metrics))
                .route("/health", get(health))
                .fallback((StatusCode::NOT_FOUND, "/metrics and /health are here\n"))
                .method_not_allowed_fallback(async || (StatusCode::METHOD_NOT_ALLOWED, "only GET\n"))
                .with_state(shared.clone());
            let server = Server::start("metrics", address, Limits::READ_ONLY, router).await?;
            tracing::info!(address = %server.address(), "serving /metrics and /health");
            Ok(Metrics { shared, server, tasks: JoinSet::new() })
        })
    }

    /// Returns the served address: with the selected port, if port 0 was requested.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Starts to count the role's work. `traffic` returns the bytes moved so far, up and down.
    pub fn follow(
        &mut self,
        seat: &SeatView,
        follower: &Follower,
        traffic: Traffic,
        peers: Option<Arc<Peers>>,
        journal: &mut Journal,
    ) {
        let Follower { run, chain, .. } = follower;
        self.shared.sits(run.id, seat.id.uid, run.params.schedule, traffic);
        let mut state = self.shared.state();
        (state.disk, state.peers) = (journal.disk.clone(), peers);
        drop(state);
        let watched = self.shared.clone();
        journal.watch(Box::new(move |entry| watched.take(entry)));
        self.tasks.spawn(watch_heads(chain.clone(), self.shared.clone()));
        self.tasks.spawn(watch_best(chain.clone(), self.shared.clone()));
        if let Some(directory) = follower.storage.directory() {
            self.tasks.spawn(watch_disk(directory.to_owned(), self.shared.clone()));
        }
    }
}

impl Shared {
    fn new(role: Role) -> Shared {
        let (since, started) = (Instant::now(), SystemTime::now());
        Shared { role, since, started, state: Mutex::default() }
    }

    /// Locks the state. A poisoned lock is usable: no write under the lock can panic before it is complete.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sits(&self, run: RunId, uid: Uid, schedule: Schedule, traffic: Traffic) {
        let mut state = self.state();
        state.seat = Some((run, uid));
        state.schedule = Some(schedule);
        state.traffic = Some(traffic);
    }

    /// Records a finalised block.
    fn heard(&self, head: Head, at: Instant) {
        self.state().head = Some((head, at));
    }

    /// Counts an entry of the journal.
    fn take(&self, entry: &Entry) {
        let mut state = self.state();
        let counts = &mut state.counts;
        match entry {
            Entry::Traffic { .. } | Entry::Resumed { .. } => {}
            Entry::Started { window, .. } => state.done = Some(*window),
            Entry::Repeated { window, found, .. } => {
                counts.steps_repeated += 1;
                state.failed(*window, found);
            }
            Entry::FellBack { file } => {
                counts.files_damaged += 1;
                let held = state.held.unwrap_or_default();
                state.failed(held, &format!("{file} was damaged, and the one before it is used"));
            }
            Entry::Holds { window, .. } => state.held = Some(*window),
            Entry::Trained { sequences, loss_last, train_seconds, data_seconds, .. } => {
                counts.trained_sequences += u64::from(*sequences);
                counts.train_seconds += train_seconds.max(0.0);
                counts.data_seconds += data_seconds.max(0.0);
                if 0.0 < *train_seconds {
                    counts.data_wait = data_seconds / train_seconds;
                }
                counts.train_loss = Some(*loss_last);
            }
            Entry::Committed { bytes, .. } => {
                counts.committed += 1;
                counts.sent_bytes = *bytes;
            }
            Entry::Uploaded { window, .. } => {
                counts.uploaded += 1;
                state.done = Some(*window);
            }
            Entry::Attested { valid, faulty, not_observed, .. } => {
                counts.attested += 1;
                for (verdict, seats) in
                    VERDICTS.into_iter().zip([valid.len(), faulty.len(), not_observed.len()])
                {
                    counts.verdicts.get_or_create(&[("verdict", verdict.to_owned())]).inc_by(seats as u64);
                }
            }
            Entry::Voted { window, bytes, .. } => {
                counts.voted += 1;
                counts.sent_bytes = *bytes;
                state.done = Some(*window);
            }
            Entry::Missed { window, reason } | Entry::Abstained { window, reason } => {
                counts.missed += 1;
                state.failed(*window, reason);
            }
            Entry::Vetoed { window, .. } => {
                counts.vetoed += 1;
                state.done = Some(*window);
            }
            Entry::Judged { held_out_loss, held_out_sequences, evaluate_seconds, .. } => {
                counts.judged += 1;
                if 0 < *held_out_sequences {
                    counts.held_out_loss = Some(*held_out_loss);
                }
                counts.evaluate_seconds += evaluate_seconds.max(0.0);
            }
            Entry::Posted { .. } => counts.posted += 1,
            Entry::Answered { answered, drawn, .. } => {
                counts.probes_answered += u64::from(*answered);
                counts.probes_drawn += u64::from(*drawn);
            }
            Entry::Anchored { .. } => counts.receipts_anchored += 1,
            Entry::Published { .. } => counts.receipts_published += 1,
            Entry::Unpublished { window, reason } => {
                counts.receipts_unpublished += 1;
                state.failed(*window, reason);
            }
            Entry::Repaired { pieces, .. } => counts.repaired += *pieces as u64,
        }
    }

    fn health(&self, now: Instant) -> Health {
        let state = self.state();
        let position = state.head.and_then(|(head, _)| state.schedule?.phase_at(head.block));
        let age = state.head.map(|(_, at)| now.saturating_duration_since(at));
        let starting_for = now.saturating_duration_since(self.since);
        let why = state.why_not(starting_for, age, position.map(|(window, _)| window));
        let disk = state.disk.full().map(|error| format!("the disk is full: {error}"));
        Health {
            healthy: why.is_none(),
            why,
            role: self.role,
            run: state.seat.map(|(run, _)| run),
            uid: state.seat.map(|(_, uid)| uid),
            block: state.head.map(|(head, _)| head.block.0),
            seconds_since_block: age.map(|age| age.as_secs_f64()),
            window: position.map(|(window, _)| window),
            phase: position.map(|(_, phase)| phase),
            held_window: state.held,
            last_error: disk.or_else(|| state.last_error.as_ref().map(|(_, text)| text.clone())),
        }
    }

    /// Returns all metrics in the text format of Prometheus.
    fn text(&self, now: Instant) -> String {
        let health = self.health(now);
        let mut page = Page(Registry::with_prefix("mettle"));
        let state = self.state();
        page.position(&health, &state, now.saturating_duration_since(self.since));
        page.process(self.started, &state);
        page.counts(&state.counts);
        let (up, down) = state.traffic.as_ref().map_or((0, 0), |traffic| traffic());
        page.counter("uploaded_bytes", "Bytes put into the role's bucket", up);
        page.counter("downloaded_bytes", "Bytes fetched", down);
        let network = state.peers.as_ref().map(|peers| &peers.network);
        let open = network.map_or(0, |network| network.connections());
        page.gauge("peer_connections", "Connections to peers that are open, in both directions", open);
        page.refused(&network.map(|network| network.refused()).unwrap_or_default());
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &page.0)
            .expect("writing to a string cannot fail");
        text
    }
}

impl State {
    fn failed(&mut self, window: Window, text: &str) {
        let text: String = text.chars().take(TEXT_MAX).collect();
        self.last_error = Some((SystemTime::now(), format!("window {}: {text}", window.0)));
    }

    /// Returns the reason if the role does not follow the chain. `age` is that of the last finalised block.
    fn why_not(&self, starting_for: Duration, age: Option<Duration>, open: Option<Window>) -> Option<String> {
        if let Some(error) = self.disk.full() {
            return Some(format!("the disk is full, and the node waits for space: {error}"));
        }
        let Some(((head, _), age)) = self.head.zip(age) else {
            let seconds = starting_for.as_secs();
            return Some(match self.seat {
                None => format!("starting since {seconds} s: chain, seat and run are not all there yet"),
                Some(_) => format!("no finalised block was heard of in {seconds} s"),
            });
        };
        if HEAD_WITHIN < age {
            let seconds = age.as_secs();
            return Some(format!("no block was finalised for {seconds} s; the last is {}", head.block));
        }
        let Some(held) = self.held else { return Some("no model is held yet".into()) };
        let open = open?;
        (held.0.saturating_add(WINDOWS_BEHIND_MAX) < open.0).then(|| {
            format!("the model of window {} is held, and window {} is open: catching up", held.0, open.0)
        })
    }
}

const VERDICTS: [&str; 3] = ["valid", "faulty", "not_observed"];

/// The metrics at one moment.
struct Page(Registry);

impl Page {
    fn gauge<N>(&mut self, name: &str, help: &str, value: N)
    where
        ConstGauge<N>: Metric,
    {
        self.0.register(name, help, ConstGauge::new(value));
    }

    fn counter<N>(&mut self, name: &str, help: &str, value: N)
    where
        ConstCounter<N>: Metric,
    {
        self.0.register(name, help, ConstCounter::new(value));
    }

    /// Adds chain, run and node, as in `/health`.
    fn position(&mut self, health: &Health, state: &State, running_for: Duration) {
        let block = health.block.unwrap_or(0);
        let number = |window: Option<Window>| window.map_or(-1, |window| i64::from(window.0));
        self.gauge("block", "Latest finalised block that the role has received", block);
        self.gauge("best_block", "Newest block of the best fork, final or not", state.best.0);
        self.gauge("finality_lag_blocks", "Blocks by which the finalised block trails the newest", state.lag);
        let age = health.seconds_since_block.unwrap_or(running_for.as_secs_f64());
        let help = "Time since a block was last finalised; before the first, since the process started";
        self.gauge("head_age_seconds", help, age);
        self.gauge("window", "Window that is open; -1 before the run starts", number(health.window));
        let phases = Family::<Label, Gauge>::default();
        for phase in [Phase::Commit, Phase::Reveal, Phase::Attest, Phase::Vote, Phase::Finalise] {
            let is_open = i64::from(health.phase == Some(phase));
            phases.get_or_create(&[("phase", phase.label().to_owned())]).set(is_open);
        }
        self.0.register("phase", "1 for the phase that the open window is in, 0 for the others", phases);
        let held = number(health.held_window);
        self.gauge("held_window", "Window whose model is held; -1 before there is one", held);
        let help = "Last window whose contribution was uploaded, or whose merge was voted or vetoed; before the first, \
                    the window that the process started with; -1 before that";
        self.gauge("done_window", help, number(state.done));
        let healthy = i64::from(health.healthy);
        self.gauge("healthy", "1 while /health says that the role follows the chain", healthy);
        let failed = state.last_error.as_ref().map_or(UNIX_EPOCH, |(at, _)| *at);
        let seconds = failed.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        let help = "When something last went wrong, since 1970; 0 for never. /health says what";
        self.gauge("last_error_seconds", help, seconds);
        let seat = Family::<[(&str, String); 4], Gauge>::default();
        if let Some((run, uid)) = state.seat {
            let labels = [
                ("role", health.role.to_string()),
                ("run", run.to_string()),
                ("uid", uid.to_string()),
                ("version", env!("CARGO_PKG_VERSION").to_owned()),
            ];
            seat.get_or_create(&labels).set(1);
        }
        self.0.register("seat", "The seat that this process holds", seat);
    }

    fn refused(&mut self, refused: &RefusedConnections) {
        let RefusedConnections { address_connections, address_rate, strangers, handshakes, connections } =
            *refused;
        let counts = [
            ("address_connections", address_connections),
            ("address_rate", address_rate),
            ("handshakes", handshakes),
            ("strangers", strangers),
            ("connections", connections),
        ];
        let family = Family::<Label, Counter>::default();
        for (reason, count) in counts {
            family.get_or_create(&[("reason", reason.to_owned())]).inc_by(count);
        }
        self.0.register("peer_connections_refused", "Connections of peers that were refused", family);
    }

    fn process(&mut self, started: SystemTime, state: &State) {
        let started = started.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.gauge("start_time_seconds", "When the process started, since 1970", started);
        let is_full = i64::from(state.disk.full().is_some());
        self.gauge("disk_full", "1 while a write waits for space on the node's disk", is_full);
        let free = state.free_bytes.map_or(f64::NAN, |bytes| bytes as f64);
        self.gauge("disk_free_bytes", "Space left on the disk of the node's directory", free);
    }

    fn counts(&mut self, of: &Counts) {
        self.counter("commitments", "Contributions committed to on the chain", of.committed);
        self.counter("uploads", "Contributions uploaded", of.uploaded);
        self.counter("attestations", "Windows attested", of.attested);
        self.counter("votes", "Updates voted", of.voted);
        self.counter("vetoes", "Merged models that were worse and not voted for", of.vetoed);
        self.counter("windows_judged", "Windows whose contributions were judged", of.judged);
        self.counter("weights_posted", "Epochs for which weights were posted", of.posted);
        self.counter("probes_drawn", "Measurements that the chain asked for", of.probes_drawn);
        self.counter("probes_answered", "Measurements shown on the chain", of.probes_answered);
        self.counter("receipts_anchored", "Receipts whose digest is on the chain", of.receipts_anchored);
        self.counter("receipts_published", "Receipts in the bucket", of.receipts_published);
        let help = "Failed tries to put a receipt on the chain or into the bucket";
        self.counter("receipts_unpublished", help, of.receipts_unpublished);
        self.counter("pieces_repaired", "Pieces of the model that a checkpoint set right", of.repaired);
        let help = "Windows without the role's commitment, attestation or vote, and epochs without weights or measurements";
        self.counter("windows_missed", help, of.missed);
        self.counter(
            "steps_repeated",
            "Training steps repeated as their loss was impossible",
            of.steps_repeated,
        );
        let help = "Files found damaged, and replaced by the version before";
        self.counter("files_damaged", help, of.files_damaged);
        for verdict in VERDICTS {
            drop(of.verdicts.get_or_create(&[("verdict", verdict.to_owned())]));
        }
        self.0.register("verdicts", "Contributions by their verdict", of.verdicts.clone());
        self.counter("trained_sequences", "Sequences trained on", of.trained_sequences);
        self.counter("training_seconds", "Time spent training", of.train_seconds);
        self.counter("data_wait_seconds", "Time of training spent waiting for data", of.data_seconds);
        let help = "Share of the last window's training time that was spent waiting for data";
        self.gauge("data_wait_ratio", help, of.data_wait);
        self.counter("evaluation_seconds", "Time spent evaluating", of.evaluate_seconds);
        let help = "Loss of the last batch of the last window, nats per token";
        self.gauge("train_loss", help, of.train_loss.unwrap_or(f64::NAN));
        let help = "Loss on held-out text of the model that was last judged, nats per token";
        self.gauge("held_out_loss", help, of.held_out_loss.unwrap_or(f64::NAN));
        let sent = i64::try_from(of.sent_bytes).unwrap_or(i64::MAX);
        self.gauge("sent_bytes", "Size of the last contribution or update sent", sent);
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

/// Reads the newest block at intervals; while the chain is not available, the last answer stays.
async fn watch_best(chain: Arc<dyn Chain>, shared: Arc<Shared>) {
    loop {
        if let Ok(best) = chain.best_block().await {
            let finalised = chain.heads().borrow().block;
            let mut state = shared.state();
            (state.best, state.lag) = (best, best.0.saturating_sub(finalised.0));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Reads the free disk space at intervals, off the executor: a hanging disk stops neither `/health` nor the node.
async fn watch_disk(directory: PathBuf, shared: Arc<Shared>) {
    loop {
        let read = directory.clone();
        if let Ok(free) = tokio::task::spawn_blocking(move || free_bytes(&read)).await {
            shared.state().free_bytes = free;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn metrics(Shares(shared): Shares<Arc<Shared>>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(CONTENT_TYPE, OPEN_METRICS)], shared.text(Instant::now())).into_response()
}

async fn health(Shares(shared): Shares<Arc<Shared>>) -> Response {
    let health = shared.health(Instant::now());
    let status = if health.healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::to_string(&health).expect("plain data") + "\n";
    (status, [(CONTENT_TYPE, "application/json")], body).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{durable::DiskFullRetry, journal::SeatFault};
    use protocol::{Block, Digest};
    use std::io;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpStream,
    };

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

        let mut retry = DiskFullRetry::new(&shared.state().disk);
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
            Entry::Judged {
                window,
                held_out_loss: 4.25,
                held_out_standard_error: 0.01,
                held_out_sequences: 128,
                seats: vec![],
                evaluate_seconds: 0.5,
            },
            Entry::Posted { epoch: 0, weights: vec![] },
            Entry::Answered { epoch: 0, answered: 5, drawn: 8 },
            Entry::Anchored { window, receipt: digest },
            Entry::Anchored { window: window.next(), receipt: digest },
            Entry::Published { window, receipt: digest, bytes: 9 },
            Entry::Repaired { window, pieces: 2 },
            Entry::Repeated { window, step: 3, found: "the loss is NaN".into() },
            Entry::FellBack { file: "model.state".into() },
            Entry::Unpublished { window, reason: "the bucket is away".into() },
            Entry::Missed { window, reason: "too late".into() },
            Entry::Abstained { window, reason: "é".repeat(1000) },
        ] {
            shared.take(&entry);
        }
        let text = shared.text(Instant::now());
        for line in [
            "mettle_block 39",
            "mettle_window 1",
            "mettle_phase{phase=\"finalise\"} 0",
            "mettle_phase{phase=\"commit\"} 0",
            "mettle_phase{phase=\"reveal\"} 1",
            "mettle_held_window 1",
            "mettle_done_window 1",
            "mettle_disk_full 0",
            "mettle_disk_free_bytes NaN",
            "mettle_steps_repeated_total 1",
            "mettle_files_damaged_total 1",
            "mettle_receipts_unpublished_total 1",
            "mettle_healthy 1",
            "mettle_commitments_total 1",
            "mettle_uploads_total 1",
            "mettle_attestations_total 1",
            "mettle_votes_total 1",
            "mettle_weights_posted_total 1",
            "mettle_probes_drawn_total 8",
            "mettle_probes_answered_total 5",
            "mettle_receipts_anchored_total 2",
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
            "mettle_peer_connections_refused_total{reason=\"address_rate\"} 0",
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

    #[test]
    fn a_window_is_done_with_an_upload_a_vote_or_a_veto() {
        let digest = Digest::of(b"digest");
        let done = |shared: &Shared| {
            let text = shared.text(Instant::now());
            let line = text.lines().find_map(|line| line.strip_prefix("mettle_done_window ")).unwrap();
            line.parse::<i64>().unwrap()
        };
        let shared = sitting(Role::Validator);
        assert_eq!(done(&shared), -1);
        shared.take(&Entry::Started { window: Window(7), resumed: true });
        assert_eq!(done(&shared), 7, "a node that was away for long is not late for what it missed");
        shared.take(&Entry::Missed { window: Window(8), reason: "too late".into() });
        assert_eq!(done(&shared), 7);
        for entry in [
            Entry::Uploaded { window: Window(9), bytes: 1 },
            Entry::Voted { window: Window(10), update: digest, bytes: 1, inputs: vec![] },
            Entry::Vetoed { window: Window(11), loss_before: 1.0, loss_after: 2.0 },
        ] {
            let before = done(&shared);
            shared.take(&entry);
            assert!(before < done(&shared), "{entry:?}");
        }
    }

    /// Returns the rows of the table in `docs/metrics.md` that the code would write: name, type, labels, meaning.
    fn rows_of_code() -> Vec<[String; 4]> {
        let shared = sitting(Role::Miner);
        let text = shared.text(Instant::now());
        let mut rows = Vec::new();
        let mut help = "";
        for line in text.lines() {
            if let Some((_, text)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
                help = text.strip_suffix('.').unwrap_or(text);
            } else if let Some((name, kind)) =
                line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
            {
                let name = if kind == "counter" { format!("{name}_total") } else { name.to_owned() };
                let sample = text.lines().find_map(|line| line.strip_prefix(&name)?.strip_prefix('{'));
                let labels = sample.map_or(Vec::new(), |sample| {
                    let inside = sample.split('}').next().unwrap_or_default();
                    inside.split(',').map(|label| label.split('=').next().unwrap_or_default()).collect()
                });
                rows.push([name, kind.to_owned(), labels.join(", "), help.to_owned()]);
            }
        }
        rows
    }

    #[test]
    fn the_table_of_metrics_in_the_documents_is_what_a_node_exports() {
        let document = include_str!("../../../docs/metrics.md");
        let mut documented = Vec::new();
        for line in document.lines().filter(|line| line.starts_with("| `mettle_")) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(|cell| cell.trim()).collect();
            let [name, kind, labels, unit, role, meaning] = cells[..] else { panic!("six columns: {line}") };
            let name = name.trim_matches('`');
            for suffix in ["seconds", "bytes", "blocks", "ratio"] {
                let has = name.trim_end_matches("_total").ends_with(suffix);
                assert_eq!(has, unit == suffix, "the unit of {name} is in its name");
            }
            assert!(["both", "miner", "validator"].contains(&role), "{line}");
            documented.push([name, kind, labels, meaning].map(str::to_owned));
        }
        let mut code = rows_of_code();
        code.sort();
        let mut sorted = documented.clone();
        sorted.sort();
        let table: Vec<String> = code.iter().map(|row| row.join(" | ")).collect();
        assert_eq!(sorted, code, "docs/metrics.md has to say:\n{}", table.join("\n"));
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
        let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        let disk = tempfile::tempdir().unwrap();
        let watched = tokio::spawn(watch_disk(disk.path().to_owned(), metrics.shared.clone()));
        while metrics.shared.state().free_bytes.is_none() {
            tokio::task::yield_now().await;
        }
        watched.abort();
        let told = ask(metrics.address(), &get("/metrics")).await;
        assert!(!told.contains("mettle_disk_free_bytes NaN"), "{told}");
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
        let post = "POST /health HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";
        assert!(ask(metrics.address(), post).await.starts_with("HTTP/1.1 405"));
        assert!(ask(metrics.address(), "nonsense\r\n\r\n").await.starts_with("HTTP/1.1 400"));
        let long = format!("GET /{} HTTP/1.1\r\nhost: localhost\r\n\r\n", "x".repeat(20 << 10));
        let refused = ask(metrics.address(), &long).await;
        assert!(refused.starts_with("HTTP/1.1 4"), "{refused}");
    }

    #[tokio::test]
    async fn an_address_that_cannot_be_used_is_named() {
        let first = Metrics::serve("127.0.0.1:0".parse().unwrap(), Role::Miner).await.unwrap();
        let taken = Metrics::serve(first.address(), Role::Miner).await.err().unwrap();
        assert!(taken.to_string().contains(&first.address().to_string()), "{taken}");
        assert!(matches!(taken, ListenError::PortTaken { .. }));
        let foreign = Metrics::serve("192.0.2.1:9616".parse().unwrap(), Role::Miner).await.err().unwrap();
        assert!(foreign.to_string().contains("192.0.2.1:9616"), "{foreign}");
    }
}
