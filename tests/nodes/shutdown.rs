//! A miner with slow computations stays responsive: its executor keeps running and `/health` answers over HTTP. Ctrl-C
//! ends its process within two seconds more than an idle process takes. The tests run the program's own loop with a
//! slow engine, on the simulated chain.

#![cfg(unix)]

use chain_client::Chain as _;
use daemon::{Blocking, Codec, Entry, Follower, Journal, Metrics, Node, Storage, SyncDriver, program};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use mettle_runtime::AccountId;
use miner::{
    progress::SnapshotInterval,
    run::{Miner, MinerOptions},
    shutdown::ShutdownHandle,
    strategy::DefaultStrategy,
};
use model::{Recipe, RunSpec, init_flat};
use nn::{
    Device, ModelError, StepParams, Trainer,
    engine::{self, Blocks, Engine, Gradients},
};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Window, identity::Signer, lineage,
    params::Density,
};
use sp_keyring::Sr25519Keyring;
use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc,
    },
    time::{Duration, Instant},
};
use tests::sim::{
    buckets::{Buckets, Reader},
    chain::{Sealing, SharedChain, SimChain},
    small,
};

const RUN: RunId = RunId(0);
const MTL: u128 = 1_000_000_000_000;
const SCHEDULE: Schedule = Schedule {
    start: Block(20),
    blocks_per_window: 60,
    commit_by: 20,
    reveal_by: 30,
    attest_by: 40,
    vote_by: 50,
};

fn params() -> RunParams {
    RunParams {
        schedule: SCHEDULE,
        sequences_per_seat: 16,
        density: Density(512),
        merge_density: Density(512),
        min_contributions: 1,
        localnet: true,
        ..RunParams::default()
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn account(key: &SigningKey) -> AccountId {
    AccountId::from(key.verifying_key().to_bytes())
}

fn url(name: &str) -> pallet_registry::Url {
    format!("https://{name}.invalid").into_bytes().try_into().expect("these URLs are short")
}

fn accepted(results: Vec<Result<(), String>>) {
    results.into_iter().for_each(|result| result.expect("the runtime accepts an honest call"));
}

/// A long call of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Load,
    Gradients,
    Weights,
    Moments,
}

/// An engine that calls `slow` on its thread before each long call.
struct SlowEngine {
    inner: Box<dyn Engine>,
    slow: Arc<dyn Fn(Call) + Send + Sync>,
}

impl Engine for SlowEngine {
    fn load(&mut self, flat: &[f32]) -> Result<(), ModelError> {
        (self.slow)(Call::Load);
        self.inner.load(flat)
    }
    fn weights(&self) -> Blocks<'_> {
        (self.slow)(Call::Weights);
        self.inner.weights()
    }
    fn edit(&mut self, edit: &mut dyn FnMut(usize, &mut [f32])) -> Result<(), ModelError> {
        self.inner.edit(edit)
    }
    fn losses(&self, sequences: &[&[u32]]) -> Result<Vec<f64>, ModelError> {
        self.inner.losses(sequences)
    }
    fn logits(&self, tokens: &[u32], rows: usize) -> Result<Vec<f32>, ModelError> {
        self.inner.logits(tokens, rows)
    }
    fn gradients(&mut self, sequences: &[&[u32]]) -> Result<Gradients, ModelError> {
        (self.slow)(Call::Gradients);
        self.inner.gradients(sequences)
    }
    fn step(&mut self, params: &StepParams) -> Result<(), ModelError> {
        self.inner.step(params)
    }
    fn moments(&self) -> Blocks<'_> {
        (self.slow)(Call::Moments);
        self.inner.moments()
    }
    fn load_moments(&mut self, moments: &[f32]) -> Result<(), ModelError> {
        self.inner.load_moments(moments)
    }
}

/// A run with one real miner.
struct Scene {
    chain: SharedChain,
    buckets: Arc<Buckets>,
    spec: RunSpec,
    dataset: Arc<Dataset>,
}

impl Scene {
    fn new(home: &Path) -> Scene {
        let data = small::dataset(home).unwrap();
        let dataset = Dataset::open(&data, None).unwrap();
        let model = small::model(dataset.vocab() as usize, dataset.seq_len());
        let recipe = Recipe { batch: 8, micro_batch: 8, ..Recipe::default() };
        let spec = RunSpec { version: 1, name: "shutdown".into(), model, seed: 0, weights: None, recipe };
        let mut chain = SimChain::new(Digest::of(b"shutdown"));
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms: Terms {
                validator_stake_min: MTL,
                miner_stake_min: MTL,
                seat_price_min: 0,
                ..Terms::default()
            },
            spec: spec.digest(),
            manifest: dataset.digest(),
            theta0: lineage::weights_root(&init_flat(&spec.model, 0).unwrap()),
            published_at: url("origin"),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]));
        let coldkey = Sr25519Keyring::Bob.to_account_id();
        let seat = chain.registration(coldkey, &key(1), RUN, Role::Miner, "https://miner.invalid", MTL);
        accepted(chain.block(vec![seat]));
        let chain = SharedChain::new(chain, Sealing::Instant);
        chain.lock().advance_to(Block(SCHEDULE.opens_at(Window::FIRST).0 + 1));
        Scene { chain, buckets: Arc::default(), spec, dataset: Arc::new(dataset) }
    }

    /// Opens the miner as the program does, with a slow engine. `watch` receives its journal entries.
    async fn miner(
        &self,
        directory: &Path,
        shutdown: Arc<ShutdownHandle>,
        slow: Arc<dyn Fn(Call) + Send + Sync>,
        watch: Box<dyn Fn(&Entry) + Send + Sync>,
        metrics: Option<&mut Metrics>,
    ) -> anyhow::Result<Miner> {
        let chain = Arc::new(self.chain.signed_by(account(&key(1))));
        let codec = Arc::new(Codec::new(&self.spec.schema()?, params().density)?);
        let follower = Arc::new(Follower {
            chain: chain.clone(),
            fetch: Arc::new(Reader::new(self.buckets.clone(), String::new(), Digest::of(b"reader"), 0)),
            run: self.chain.run_now(RUN).expect("the run was created"),
            spec: self.spec.clone(),
            sent: codec.clone(),
            merged: codec,
            keeps_buffer: false,
            turn: 0,
            storage: Storage::memory(),
            blocking: Blocking::Pool,
        });
        let mut journal = Journal::in_memory(watch);
        fs::create_dir_all(directory)?;
        let hotkey = Hotkey(key(1).verifying_key().to_bytes());
        let seat = self.chain.seats_now(RUN).into_iter().find(|seat| seat.hotkey == hotkey).expect("a seat");
        if let Some(metrics) = metrics {
            metrics.follow(&seat, &follower, Box::new(|| (0, 0)), None, &mut journal);
        }
        let path = directory.join("model.state");
        let (sync, _) = SyncDriver::open(follower, path, &mut journal).await?;
        let (config, recipe) = (&self.spec.model, &self.spec.recipe);
        let inner = engine::open(Device::CPU, config, Some(recipe), &sync.state.theta)?;
        let trainer = Trainer::from_engine(config, recipe, Box::new(SlowEngine { inner, slow }))?;
        let node = Node {
            heads: sync.follower.chain.heads(),
            sync,
            store: self.buckets.add("https://miner.invalid"),
            dataset: self.dataset.clone(),
            signer: Signer::new(key(1), self.chain.genesis()),
            seat,
            journal,
            directory: directory.to_owned(),
            blocking: Blocking::Pool,
            traffic: Box::new(|| (0, 0)),
            windows_max: Some(1),
            witness: None,
            lock: None,
        };
        let options = MinerOptions {
            commit_margin_blocks: 3,
            batch_sequences: recipe.batch,
            ahead: 0.5,
            // Far too slow for a window, so it trains ahead immediately.
            pace: Some(0.1),
            residual_share: 0.75,
            snapshot_interval: SnapshotInterval::Steps(1),
        };
        Ok(Miner::open(node, trainer, Box::new(DefaultStrategy), options, shutdown).await?)
    }
}

/// Activity of the executor while the miner computes.
#[derive(Default)]
struct Progress {
    answers: AtomicUsize,
    ticks: AtomicUsize,
}

impl Progress {
    /// Blocks this thread until the executor has completely answered `/health` and run a timer.
    ///
    /// # Panics
    /// If the executor does neither, because it is blocked too.
    fn wait(&self) {
        // The first of two may have begun before this call.
        let counters = [&self.answers, &self.ticks];
        let wanted = counters.map(|counter| counter.load(SeqCst) + 2);
        let began = Instant::now();
        while std::iter::zip(counters, wanted).any(|(counter, wanted)| counter.load(SeqCst) < wanted) {
            assert!(began.elapsed() < Duration::from_secs(60), "the executor is blocked");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Requests `/health` until the miner ends. Returns all answers.
fn ask_for_health(address: SocketAddr, progress: &Progress, is_over: &AtomicBool) -> Vec<String> {
    let ask = || -> io::Result<String> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    let mut answers = Vec::new();
    while !is_over.load(SeqCst) {
        answers.push(ask().expect("the node answers"));
        progress.answers.fetch_add(1, SeqCst);
        std::thread::sleep(Duration::from_millis(10));
    }
    answers
}

#[test]
fn the_executor_keeps_running_and_health_answers_while_the_miner_computes() {
    let home = tempfile::tempdir().unwrap();
    let scene = Scene::new(home.path());
    let (sender, entries) = mpsc::sync_channel(64);
    let calls = Arc::new(AtomicUsize::new(0));
    let progress = Arc::new(Progress::default());
    let (counted, awaited) = (calls.clone(), progress.clone());
    let slow = Arc::new(move |_| {
        counted.fetch_add(1, SeqCst);
        awaited.wait();
    });
    let watch =
        Box::new(move |entry: &Entry| sender.send(entry.clone()).expect("the block producer is running"));

    // The block producer follows the miner's progress.
    let chain = scene.chain.clone();
    let blocks = std::thread::spawn(move || {
        let mut seen = Vec::new();
        while let Ok(entry) = entries.recv() {
            match &entry {
                Entry::Committed { window, .. } => {
                    chain.lock().advance_to(Block(SCHEDULE.commit_deadline(*window).0 + 1));
                }
                Entry::Uploaded { window, .. } | Entry::Missed { window, .. } => {
                    chain.lock().advance_to(Block(SCHEDULE.opens_at(window.next()).0 + 1));
                }
                _ => {}
            }
            seen.push(entry);
        }
        seen
    });

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (metrics, asking) = runtime.block_on(async {
        let ticking = progress.clone();
        let ticker = tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticking.ticks.fetch_add(1, SeqCst);
            }
        });
        let directory = home.path().join("miner");
        let mut metrics = Metrics::serve("127.0.0.1:0".parse().unwrap(), Role::Miner).await.unwrap();
        let (address, over) = (metrics.address(), Arc::new(AtomicBool::new(false)));
        let is_over = over.clone();
        let asking = std::thread::spawn(move || ask_for_health(address, &progress, &is_over));
        let miner = scene.miner(&directory, Arc::default(), slow, watch, Some(&mut metrics)).await.unwrap();
        miner.run().await.unwrap();
        ticker.abort();
        over.store(true, SeqCst);
        (metrics, asking)
    });
    // The requester may be waiting for a last answer, which the runtime still gives.
    while !asking.is_finished() {
        runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
    }
    let answers = asking.join().unwrap();
    assert!(answers.iter().all(|answer| answer.contains("\"role\":\"miner\"")), "{answers:?}");
    assert!(answers.iter().any(|answer| answer.starts_with("HTTP/1.1 200")), "{answers:?}");
    drop(metrics);
    drop(runtime);
    let seen = blocks.join().unwrap();
    assert!(seen.iter().any(|entry| matches!(entry, Entry::Uploaded { .. })), "{seen:?}");
    let calls = calls.load(SeqCst);
    // The first snapshot, loading the model, two steps with a snapshot each, reading the weights, and the snapshots of
    // the contribution and the commitment.
    assert!(8 <= calls, "{calls} slow calls");
    assert!(calls * 2 <= answers.len(), "{} answers of /health", answers.len());
}

/// Environment variables of the child process: the moment at which it is slow, and its directory.
const MOMENT: &str = "METTLE_TEST_SHUTDOWN_MOMENT";
const HOME: &str = "METTLE_TEST_SHUTDOWN_HOME";
/// Moment of a process that computes nothing.
const IDLE: &str = "idle";

/// The child process of the next test.
#[test]
#[ignore = "the child process of the next test"]
fn child_process_with_a_slow_engine() {
    let (Ok(moment), Some(home)) = (std::env::var(MOMENT), std::env::var_os(HOME)) else { return };
    let home = Path::new(&home).to_owned();
    let slow_from = match moment.as_str() {
        IDLE => None,
        "starting" => Some((Call::Moments, 1)),
        "loading" => Some((Call::Load, 1)),
        "training" => Some((Call::Gradients, 2)),
        "reading" => Some((Call::Weights, 1)),
        "saving" => Some((Call::Moments, 2)),
        other => panic!("{other}"),
    };
    let is_idle = slow_from.is_none();
    let reached = move || {
        println!("\nnow {moment}");
        io::stdout().flush().expect("the parent reads the output");
    };
    let calls = AtomicUsize::new(0);
    let at_moment = reached.clone();
    let slow = Arc::new(move |called: Call| {
        if slow_from.is_some_and(|(call, from)| called == call && from <= calls.fetch_add(1, SeqCst) + 1) {
            at_moment();
            std::thread::sleep(Duration::from_secs(600));
        }
    });
    let shutdown = Arc::new(ShutdownHandle::default());
    let working = shutdown.clone();
    let exit = program::run_to_exit(Box::pin(async move {
        let work = async {
            if is_idle {
                reached();
                std::future::pending::<()>().await;
            }
            let scene = Scene::new(&home);
            let miner = scene.miner(&home.join("miner"), working, slow, Box::new(|_| {}), None).await?;
            Ok(miner.run().await?)
        };
        shutdown.run_until_stopped(Box::pin(work), Box::pin(std::future::pending())).await
    }));
    // Like a program's end, this does not wait for threads.
    let success = exit == std::process::ExitCode::SUCCESS;
    std::process::exit(if success { 0 } else { 1 });
}

/// A child process at a moment.
struct Stopping {
    child: Child,
    moment: &'static str,
    _home: tempfile::TempDir,
}

impl Stopping {
    /// Starts the process and waits until it is at `moment`.
    fn at(moment: &'static str) -> Stopping {
        let home = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "shutdown::child_process_with_a_slow_engine",
                "--exact",
                "--ignored",
                "--nocapture",
                "--test-threads",
                "1",
            ])
            .env(MOMENT, moment)
            .env(HOME, home.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let reached = stdout.lines().map_while(Result::ok).any(|line| line == format!("now {moment}"));
        assert!(reached, "the process ended before {moment}");
        Stopping { child, moment, _home: home }
    }

    /// Sends Ctrl-C. Returns the time until the process ends.
    fn interrupt(mut self) -> Duration {
        let moment = self.moment;
        let signalled = Instant::now();
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(signalled.elapsed() < Duration::from_secs(300), "{moment}: the process does not end");
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(status.success(), "{moment}: {status}");
        signalled.elapsed()
    }
}

#[test]
fn ctrl_c_ends_the_process_within_two_seconds_during_any_computation() {
    for moment in ["starting", "loading", "training", "reading", "saving"] {
        // An idle process shows the time that the machine takes for it in the same second.
        let [busy, idle] = [moment, IDLE].map(Stopping::at);
        let idle = std::thread::spawn(move || idle.interrupt());
        let (took, idle) = (busy.interrupt(), idle.join().unwrap());
        println!("{moment}: {took:?}, idle {idle:?}");
        assert!(took < Duration::from_secs(2) + 4 * idle, "{moment}: {took:?}, idle {idle:?}");
    }
}

/// Mines windows 0 and 1 in a new network. Its chain makes a block every 5 ms, and waits where the miner has work to do
/// first: for the commitment of each window, and for all training ahead before window 1 opens. If `killed`, the miner
/// is killed once it has written a snapshot of its training in window 1 or ahead of it, and another miner starts.
/// Returns the digest of its commitment in window 1, and its journal.
fn mine_two_windows(ahead: f64, residual_share: f64, killed: bool) -> (Digest, Vec<Entry>) {
    let home = tempfile::tempdir().unwrap();
    let scene = Scene::new(home.path());
    let directory = home.path().join("miner");
    let snapshot = directory.join("training.snapshot");
    let (sender, entries) = mpsc::sync_channel(256);
    let is_over = Arc::new(AtomicBool::new(false));
    // Windows that the miner has committed to.
    let committed = Arc::new(AtomicUsize::new(0));
    let (chain, over) = (scene.chain.clone(), is_over.clone());
    let (windows, trained_ahead) = (committed.clone(), snapshot.clone());
    let blocks = std::thread::spawn(move || {
        while !over.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
            let next = Block(chain.lock().head().block.0 + 1);
            let is_open = |window: Window| SCHEDULE.opens_at(window) <= next;
            // Training stops a few blocks before the deadline.
            let is_due = |window: Window| SCHEDULE.opens_at(window).0 + SCHEDULE.commit_by / 2 <= next.0;
            let waits = match windows.load(SeqCst) {
                0 => is_due(Window(0)),
                1 => is_due(Window(1)) || 0.0 < ahead && is_open(Window(1)) && !trained_ahead.exists(),
                _ => false,
            };
            if !waits {
                chain.lock().advance_to(next);
            }
        }
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let open = async |windows: u32| {
        let (sender, committed) = (sender.clone(), committed.clone());
        let watch = Box::new(move |entry: &Entry| {
            if let Entry::Committed { window, .. } = entry {
                committed.store(window.0 as usize + 1, SeqCst);
            }
            sender.send(entry.clone()).expect("the test waits for it");
        });
        let mut miner = scene.miner(&directory, Arc::default(), Arc::new(|_| {}), watch, None).await.unwrap();
        miner.options.ahead = ahead;
        miner.options.residual_share = residual_share;
        miner.node.windows_max = Some(windows);
        miner
    };
    runtime.block_on(async {
        if killed {
            let mut run = open(2).await.run();
            let mut seen = Vec::new();
            while !(seen.iter().any(|entry| matches!(entry, Entry::Committed { .. })) && snapshot.exists()) {
                seen.extend(entries.try_iter());
                let mined = tokio::time::timeout(Duration::from_millis(1), &mut run).await;
                assert!(mined.is_err(), "the miner ended by itself: {mined:?}");
            }
        }
        open(2).await.run().await.unwrap();
    });
    is_over.store(true, SeqCst);
    blocks.join().unwrap();
    let entries: Vec<Entry> = entries.try_iter().collect();
    let committed = entries.iter().find_map(|entry| match entry {
        Entry::Committed { window: Window(1), digest, .. } => Some(*digest),
        _ => None,
    });
    (committed.unwrap_or_else(|| panic!("no commitment: {entries:?}")), entries)
}

#[test]
fn a_miner_killed_while_it_trains_ahead_commits_to_the_same_bytes() {
    let trained = |entries: &[Entry]| {
        entries.iter().any(|entry| matches!(entry, Entry::Trained { window: Window(1), sequences: 16, .. }))
    };
    let (undisturbed, entries) = mine_two_windows(0.5, 0.75, false);
    assert!(trained(&entries), "{entries:?}");
    let (resumed, entries) = mine_two_windows(0.5, 0.75, true);
    let is_resumed =
        |entry: &Entry| matches!(entry, Entry::Resumed { window: Window(1), sequences: 8, steps: 1 });
    assert!(trained(&entries) && entries.iter().any(is_resumed), "{entries:?}");
    assert_eq!(resumed, undisturbed);
    let (waited, _) = mine_two_windows(0.0, 0.75, false);
    assert_ne!(waited, undisturbed, "half of the window's steps began at the miner's own weights");
}

#[test]
fn a_miner_that_starts_a_step_ahead_commits_to_the_same_bytes_if_it_is_killed() {
    let (undisturbed, _) = mine_two_windows(0.0, 0.75, false);
    let (resumed, entries) = mine_two_windows(0.0, 0.75, true);
    let is_resumed = |entry: &Entry| matches!(entry, Entry::Resumed { window: Window(1), .. });
    assert!(entries.iter().any(is_resumed), "{entries:?}");
    assert_eq!(resumed, undisturbed);
    let (from_model, _) = mine_two_windows(0.0, 0.0, false);
    assert_ne!(from_model, undisturbed, "what was not sent in window 0 is in the start of window 1");
}
