//! A validator without disk space or data waits and loses nothing. The tests run the real validator on the simulated
//! chain.

use async_trait::async_trait;
use bytes::Bytes;
use chain_client::Chain as _;
use daemon::{Blocking, Codec, Entry, Followed, Follower, Journal, ModelState, Node, Storage, SyncDriver};
use dataset::{Dataset, PieceSource, PieceSourceError, ShardRange};
use ed25519_dalek::SigningKey;
use mettle_runtime::AccountId;
use model::{Recipe, RunSpec, init_flat};
use nn::{Device, Evaluator, Trainer};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, Window,
    assign::Assignment,
    contribution,
    identity::Signer,
    keys,
    keys::ObjectKey,
    lineage,
    params::Density,
    receipt,
    submission::{self, Header},
    view::{Outcome, SeatView, Verdict, Vote, WindowView},
};
use sp_keyring::Sr25519Keyring;
use std::{
    fs, io,
    path::PathBuf,
    process::Command,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use store::{Fetch, FetchError, Limits, Store, TrafficTotals};
use tests::sim::{
    buckets::{Buckets, Reader},
    chain::{Sealing, SharedChain, SimChain},
    small,
};
use validator::{
    evaluate::{DeviceEvaluator, Measurements},
    run::Validator,
    salt::Salts,
    signed_db::SignedDb,
    strategy::Strategy,
};

const RUN: RunId = RunId(0);
const MTL: u128 = 1_000_000_000_000;
const EPOCH: u32 = 2;
const TRAINED: usize = 16;
/// Upper bound for every wait of this test.
const TIMEOUT: Duration = Duration::from_secs(240);

fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Block(20),
            blocks_per_window: 60,
            commit_by: 20,
            reveal_by: 30,
            attest_by: 40,
            vote_by: 50,
        },
        epoch_windows: EPOCH,
        reveal_windows: 1,
        hidden_blocks: 0,
        sequences_per_seat: TRAINED as u32,
        evaluation_sequences: 4,
        density: Density(512),
        merge_density: Density(512),
        min_contributions: 1,
        checkpoint_windows: 3,
        localnet: true,
        ..RunParams::default()
    }
}

fn key(seed: u8) -> SigningKey {
    SigningKey::from_bytes(&[seed; 32])
}

fn hotkey(key: &SigningKey) -> Hotkey {
    Hotkey(key.verifying_key().to_bytes())
}

fn account(key: &SigningKey) -> AccountId {
    AccountId::from(hotkey(key).0)
}

fn url(name: &str) -> pallet_registry::Url {
    format!("https://{name}.invalid").into_bytes().try_into().expect("these URLs are short")
}

fn accepted(results: Vec<Result<(), String>>) {
    results.into_iter().for_each(|result| result.expect("the runtime accepts an honest call"));
}

/// A run with one real validator, and one miner that the test acts for.
struct Scene {
    home: tempfile::TempDir,
    chain: SharedChain,
    buckets: Arc<Buckets>,
    spec: RunSpec,
    codec: Arc<Codec>,
    data: PathBuf,
    dataset: Dataset,
    store: Arc<dyn Store>,
    miner: Arc<dyn Store>,
    /// The miner's own copy of the model.
    follower: Follower,
    state: ModelState,
    entries: Arc<Mutex<Vec<Entry>>>,
}

impl Scene {
    fn new() -> Scene {
        let home = tempfile::tempdir().unwrap();
        let data = small::dataset(home.path()).unwrap();
        let dataset = Dataset::open(&data, None).unwrap();
        let model = small::model(dataset.vocab() as usize, dataset.seq_len());
        let recipe = Recipe { batch: 4, micro_batch: 4, learning_rate: 1e-2, ..Recipe::default() };
        let spec = RunSpec { version: 1, name: "patience".into(), model, seed: 0, weights: None, recipe };
        let theta = init_flat(&spec.model, 0).unwrap();
        let mut chain = SimChain::new(Digest::of(b"patience"));
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
            theta0: lineage::weights_root(&theta),
            published_at: url("origin"),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]));
        let register = |role, key: &SigningKey, endpoint, stake| {
            chain.registration(Sr25519Keyring::Bob.to_account_id(), key, RUN, role, endpoint, stake)
        };
        let seats = vec![
            register(Role::Miner, &key(1), "https://miner.invalid", MTL),
            register(Role::Validator, &key(2), "https://validator.invalid", 1_000 * MTL),
        ];
        accepted(chain.block(seats));
        let chain = SharedChain::new(chain, Sealing::Instant);
        let buckets = Arc::new(Buckets::default());
        let codec = Arc::new(Codec::new(&spec.schema().unwrap(), params().density).unwrap());
        let (store, miner) = (buckets.add("https://validator.invalid"), buckets.add("https://miner.invalid"));
        let mut scene = Scene {
            follower: follower(&chain, &spec, &codec, &buckets, false),
            state: ModelState::genesis(RUN, &params(), &dataset.digest(), theta),
            home,
            chain,
            buckets,
            spec,
            codec,
            data,
            dataset,
            store,
            miner,
            entries: Arc::default(),
        };
        scene.state.buffer = None;
        scene
    }

    fn directory(&self) -> PathBuf {
        self.home.path().join("validator")
    }

    fn seat(&self, role: Role) -> SeatView {
        self.chain.seats_now(RUN).into_iter().find(|seat| seat.role == role).unwrap()
    }

    /// Opens the validator as the program does, with the given data and strategy.
    async fn validator(&self, dataset: Dataset, strategy: Box<dyn Strategy>) -> Validator {
        let chain = self.chain.signed_by(account(&key(2)));
        let follower = Arc::new(follower(&chain, &self.spec, &self.codec, &self.buckets, true));
        let directory = self.directory();
        let mut journal = Journal::open(&directory.join("journal.jsonl")).unwrap();
        let entries = self.entries.clone();
        journal.watch(Box::new(move |entry| lock(&entries).push(entry.clone())));
        let path = directory.join("model.state");
        let (sync_driver, _) = SyncDriver::open(follower, path, &mut journal).await.unwrap();
        let evaluator = Evaluator::new(&self.spec.model, Device::CPU, &sync_driver.state.theta).unwrap();
        let dataset = Arc::new(dataset);
        let evaluator = Box::new(DeviceEvaluator { evaluator, dataset: dataset.clone() });
        let node = Node {
            heads: sync_driver.follower.chain.heads(),
            sync: sync_driver,
            store: self.store.clone(),
            dataset,
            signer: Signer::new(key(2), self.chain.genesis()),
            seat: self.seat(Role::Validator),
            journal,
            directory: directory.clone(),
            blocking: Blocking::Pool,
            traffic: Box::new(|| (0, 0)),
            windows_max: None,
            witness: None,
            lock: None,
        };
        let signed = SignedDb::open(&directory, self.chain.genesis(), RUN, 0).unwrap().0;
        let salts = Salts::new(&key(2).to_bytes(), &self.chain.genesis());
        let mut validator = Validator::new(node, evaluator, signed, salts, strategy);
        (validator.evaluation.contributions_max, validator.evaluation.held_out_sequences) = (8, 4);
        validator
    }

    /// Returns the validator's signed database, as currently on disk.
    fn signed(&self) -> SignedDb {
        self.signed_from(&self.signed_bytes())
    }

    fn signed_bytes(&self) -> Vec<u8> {
        fs::read(self.directory().join("signed.redb")).unwrap()
    }

    /// Opens a copy, because the validator has the file open.
    fn signed_from(&self, bytes: &[u8]) -> SignedDb {
        let copy = tempfile::tempdir_in(self.home.path()).unwrap().keep();
        fs::write(copy.join("signed.redb"), bytes).unwrap();
        SignedDb::open(&copy, self.chain.genesis(), RUN, 0).unwrap().0
    }

    fn window(&self) -> Window {
        self.state.window
    }

    fn view(&self, window: Window) -> WindowView {
        self.chain.window_now(RUN, window).expect("the window is open")
    }

    fn go_past(&self, block: Block) {
        self.chain.lock().advance_to(Block(block.0 + 1));
    }

    /// Waits until the validator's journal has an entry that `matches`.
    async fn until(&self, what: &str, matches: impl Fn(&Entry) -> bool) {
        eventually(what, || lock(&self.entries).iter().any(&matches)).await;
    }

    fn count(&self, matches: impl Fn(&Entry) -> bool) -> usize {
        lock(&self.entries).iter().filter(|entry| matches(entry)).count()
    }

    async fn until_held(&self, window: Window) {
        let what = format!("the validator holds the model of window {window}");
        self.until(&what, |entry| matches!(entry, Entry::Holds { window: held, .. } if *held == window))
            .await;
    }

    async fn until_attested(&self) {
        let now = self.window();
        let what = format!("window {now} is attested");
        self.until(&what, |entry| matches!(entry, Entry::Attested { window, .. } if *window == now)).await;
    }

    async fn until_voted(&self) {
        let now = self.window();
        let what = format!("window {now} is voted");
        self.until(&what, |entry| matches!(entry, Entry::Voted { window, .. } if *window == now)).await;
    }

    async fn until_judged(&self, window: Window) {
        let what = format!("window {window} is judged");
        self.until(&what, |entry| matches!(entry, Entry::Judged { window: other, .. } if *other == window))
            .await;
    }

    /// Acts as the miner in the open window: trains, commits, uploads. Ends after the commit deadline.
    async fn contribute(&mut self) {
        let (window, schedule) = (self.window(), params().schedule);
        self.until_held(window).await;
        self.go_past(schedule.opens_at(window));
        let (view, seat) = (self.view(window), self.seat(Role::Miner));
        let assignment = Assignment {
            run: RUN,
            window,
            deal_seed: view.deal_seed.unwrap(),
            slots: &view.slots,
            cursor: view.cursor,
            sequences_per_seat: TRAINED as u32,
            training_sequences: self.dataset.training_sequences(),
        };
        let sequences = assignment.of(seat.id.uid).unwrap();
        let mut trainer =
            Trainer::new(&self.spec.model, &self.spec.recipe, Device::CPU, &self.state.theta).unwrap();
        for batch in sequences.chunks(4) {
            trainer.step(&self.dataset.sequences(batch).unwrap()).unwrap();
        }
        let after = trainer.weights_flat().unwrap();
        let delta: Vec<f32> =
            self.state.theta.iter().zip(&after).map(|(before, after)| before - after).collect();
        let schema = self.spec.schema().unwrap();
        let body = contribution::encode(&schema, params().density, &delta).unwrap();
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RUN,
            window,
            uid: seat.id.uid,
            hotkey: seat.hotkey,
            base: self.state.lineage,
            schema: schema.digest(),
            density: params().density,
            trained: TRAINED as u32,
        };
        let sealed = submission::seal(&header, &body, &Signer::new(key(1), self.chain.genesis()));
        let digest = Digest::of(&sealed);
        let commit = pallet_windows::Call::commit { run: RUN, window, digest };
        accepted(self.chain.lock().block(vec![(account(&key(1)), commit.into())]));
        self.miner.put(&keys::contribution(RUN, window, &digest), sealed.into()).await.unwrap();
        self.go_past(schedule.commit_deadline(window));
    }

    /// Ends the window and advances the miner's model.
    async fn follow(&mut self) -> Outcome {
        let now = self.window();
        self.go_past(params().schedule.vote_deadline(now));
        match self.follower.step(&mut self.state, None).await.unwrap() {
            Followed::Advanced { outcome } => outcome,
            other => panic!("{other:?}"),
        }
    }

    /// Runs one window without faults.
    async fn run_window(&mut self) {
        let now = self.window();
        self.contribute().await;
        self.until_attested().await;
        self.go_past(params().schedule.attest_deadline(now));
        self.until_voted().await;
        assert!(matches!(self.follow().await, Outcome::Merged(_)));
        self.until_judged(now).await;
    }
}

fn follower(
    chain: &SharedChain,
    spec: &RunSpec,
    codec: &Arc<Codec>,
    buckets: &Arc<Buckets>,
    keeps_buffer: bool,
) -> Follower {
    Follower {
        chain: Arc::new(chain.clone()),
        fetch: Arc::new(reader(buckets)),
        run: chain.run_now(RUN).expect("the run was created"),
        spec: spec.clone(),
        sent: codec.clone(),
        merged: codec.clone(),
        keeps_buffer,
        turn: 0,
        storage: Storage::memory(),
        blocking: Blocking::Pool,
    }
}

fn reader(buckets: &Arc<Buckets>) -> Reader {
    Reader::new(buckets.clone(), String::new(), Digest::of(b"reader"), 0)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `condition` holds.
async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "timeout: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A step of a window, just before the validator stores its statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Attest,
    Vote,
    Weights,
    Judge,
}

/// The default strategy, with a callback at each step.
struct Observed(Arc<dyn Fn(Step) + Send + Sync>);

impl Strategy for Observed {
    fn verdicts(&mut self, _: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        (self.0)(Step::Attest);
        Some(own)
    }

    fn vote(&mut self, _: &WindowView, own: Option<Vote>) -> Option<Vote> {
        (self.0)(Step::Vote);
        own
    }

    fn measured(&mut self, _: Window, own: Measurements) -> Measurements {
        (self.0)(Step::Judge);
        own
    }

    /// Returns weights that are never empty, although scores of the first window may be 0.
    fn weights(&mut self, view: &WindowView, _: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        (self.0)(Step::Weights);
        view.slots.iter().map(|uid| (*uid, u16::MAX)).collect()
    }
}

/// A data source that can be made unavailable.
struct Withheld {
    directory: PathBuf,
    withheld: AtomicBool,
    refused: AtomicUsize,
}

impl PieceSource for Withheld {
    fn read(&self, wanted: &[ShardRange]) -> Result<Vec<Vec<u8>>, PieceSourceError> {
        if self.withheld.load(SeqCst) {
            self.refused.fetch_add(1, SeqCst);
            return Err("withheld by the test".into());
        }
        let read = |wanted: &ShardRange| {
            let shard = fs::read(dataset::shard_path(&self.directory, &wanted.shard))?;
            Ok(shard[wanted.range.start as usize..wanted.range.end as usize].to_vec())
        };
        wanted.iter().map(read).collect()
    }
}

#[tokio::test]
async fn without_data_a_validator_leaves_the_window_unjudged_and_continues() {
    let mut scene = Scene::new();
    let tokenizer = fs::read(dataset::tokenizer_path(&scene.data)).unwrap();
    let withheld = Arc::new(Withheld {
        directory: scene.data.clone(),
        withheld: AtomicBool::new(false),
        refused: AtomicUsize::new(0),
    });
    let manifest = scene.dataset.manifest().clone();
    let data = Dataset::remote(scene.data.clone(), manifest, tokenizer, withheld.clone()).unwrap();
    let validator = scene.validator(data, Box::new(Observed(Arc::new(|_| {})))).await;
    let scenario = async {
        scene.run_window().await;

        // The validator attests and votes, which needs no data.
        withheld.withheld.store(true, SeqCst);
        let without = scene.window();
        scene.contribute().await;
        scene.until_attested().await;
        scene.go_past(params().schedule.attest_deadline(without));
        scene.until_voted().await;
        assert!(matches!(scene.follow().await, Outcome::Merged(_)));
        eventually("the validator requests the data", || 0 < withheld.refused.load(SeqCst)).await;
        scene.until_held(without.next()).await;

        withheld.withheld.store(false, SeqCst);
        scene.run_window().await;
        scene.run_window().await;
        assert_eq!(
            scene.count(|entry| matches!(entry, Entry::Judged { window, .. } if *window == without)),
            0
        );
        // Each window has a receipt, including the one without scores.
        for window in (0..3).map(Window) {
            let what = format!("the receipt of window {window} is anchored");
            scene
                .until(
                    &what,
                    |entry| matches!(entry, Entry::Anchored { window: other, .. } if *other == window),
                )
                .await;
        }
    };
    tokio::select! {
        ended = validator.run() => panic!("{ended:?}"),
        () = scenario => {}
    }
}

/// Environment variable of the child process with a full disk.
const FULL_DISK: &str = "METTLE_TEST_PATIENCE_FULL";

/// A limit on file sizes acts like a full disk on the whole process, so the test starts a child process.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_delays_each_step_of_a_validator_and_loses_nothing() {
    // Without the trap, the limit ends the process by a signal.
    let output = Command::new("sh")
        .args(["-c", "trap '' XFSZ; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "--ignored", "patience::child_process_with_a_full_disk", "--nocapture"])
        .env(FULL_DISK, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].map(|out| String::from_utf8_lossy(&out).into_owned()).concat();
    assert!(output.status.success(), "{text}");
    assert!(text.contains("1 passed"), "{text}");
}

/// The child process. Without its environment variable it would limit the files of all tests.
#[tokio::test]
#[ignore = "the child process of the test above"]
async fn child_process_with_a_full_disk() {
    if std::env::var_os(FULL_DISK).is_some() {
        fill_the_disk_at_each_step().await;
    }
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        io::Write::write(&mut io::stderr(), bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn lines(&self, text: &str) -> usize {
        String::from_utf8_lossy(&lock(&self.0)).lines().filter(|line| line.contains(text)).count()
    }

    fn refusals(&self) -> usize {
        self.lines("the disk is full: make room")
    }
}

/// Limits the size of every file of this process.
fn limit_files(bytes: &str) {
    let id = std::process::id().to_string();
    let limit = format!("--fsize={bytes}:");
    let done = Command::new("prlimit").args(["--pid", &id, &limit]).status();
    assert!(done.expect("prlimit is part of every Linux").success(), "{bytes}");
}

async fn fill_the_disk_at_each_step() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).init();
    let mut scene = Scene::new();
    let fill_at = Arc::new(Mutex::new(None));
    let order = fill_at.clone();
    let strategy = Observed(Arc::new(move |step| {
        if lock(&order).take_if(|fill_at| *fill_at == step).is_some() {
            limit_files("0");
        }
    }));
    let fill = |at: Step| *lock(&fill_at) = Some(at);
    let validator = scene.validator(scene.dataset.clone(), Box::new(strategy)).await;
    let schedule = params().schedule;
    let scenario = async {
        scene.run_window().await;

        // On a full disk, the validator waits before each step, sends nothing to the chain, and continues once there
        // is space.
        let window = scene.window();
        let uid = scene.seat(Role::Validator).id.uid;
        fill(Step::Attest);
        scene.contribute().await;
        eventually("the disk is full before the attestation", || log.refusals() == 1).await;
        assert!(!scene.view(window).attested.contains(&uid));
        limit_files("unlimited");
        scene.until_attested().await;
        assert!(scene.view(window).attested.contains(&uid));
        let signed = scene.signed();
        let report = signed.report(window).expect("the attestation is stored");
        assert!(report.attestation.is_some() && report.merged.is_none());

        fill(Step::Vote);
        scene.go_past(schedule.attest_deadline(window));
        eventually("the disk is full before the vote", || log.refusals() == 2).await;
        assert!(scene.view(window).votes.is_empty());
        fill(Step::Weights);
        limit_files("unlimited");
        scene.until_voted().await;

        eventually("the disk is full before the weight vote", || log.refusals() == 3).await;
        assert_eq!(log.lines("committed to weights"), 0);
        let on_full_disk = scene.signed_bytes();
        fill(Step::Judge);
        limit_files("unlimited");
        let signed = scene.signed_from(&on_full_disk);
        assert!(signed.report(window).is_some_and(|report| report.merged.is_some()));
        assert!(signed.weight_vote(0).is_none());
        eventually("the weights are committed to", || log.lines("committed to weights") == 1).await;
        assert!(scene.signed().weight_vote(0).is_some());

        assert!(matches!(scene.follow().await, Outcome::Merged(_)));
        eventually("the disk is full before the receipt", || log.refusals() == 4).await;
        assert_eq!(
            scene.count(|entry| matches!(entry, Entry::Judged { window: other, .. } if *other == window)),
            0
        );
        limit_files("unlimited");
        scene.until_judged(window).await;
        assert_eq!(scene.signed().signed_until(), Some(window));
        assert_eq!(log.lines("the disk has space again"), 4);

        // If there is no space before the deadline, the validator skips the step.
        let window = scene.window();
        let posted = |entry: &Entry| matches!(entry, Entry::Posted { epoch: 0, .. });
        scene.until_held(window).await;
        scene.go_past(schedule.opens_at(window));
        scene.until("the weights are shown", posted).await;
        fill(Step::Attest);
        scene.contribute().await;
        eventually("the disk is full before the attestation", || log.refusals() == 5).await;
        // The validator waits for space until five blocks before the deadline.
        scene.go_past(Block(schedule.attest_deadline(window).0 - 6));
        let skipped = |entry: &Entry| matches!(entry, Entry::Abstained { window: other, reason } if *other == window && reason.contains("the disk was full"));
        scene.until("the journal has the reason for the missing attestation", skipped).await;
        assert!(!scene.view(window).attested.contains(&uid));
        fill(Step::Judge);
        assert!(matches!(scene.follow().await, Outcome::Void(_)));
        // The validator can save neither the receipt nor the next model until there is space.
        eventually("the window is measured", || lock(&fill_at).is_none()).await;
        scene.go_past(schedule.opens_at(window.next()));
        let held =
            |entry: &Entry| matches!(entry, Entry::Holds { window: held, .. } if *held == window.next());
        eventually("the disk is full before the model is saved", || log.refusals() == 7).await;
        assert_eq!(log.lines("not judged yet"), 1);
        assert_eq!(scene.count(held), 0);
        limit_files("unlimited");
        scene.until_held(window.next()).await;
        scene.until_judged(window).await;
        scene.run_window().await;
        scene.run_window().await;

        let last = scene.window().0;
        for window in (0..last - 1).map(Window) {
            let anchored =
                |entry: &Entry| matches!(entry, Entry::Anchored { window: other, .. } if *other == window);
            scene.until(&format!("the receipt of window {window} is anchored"), anchored).await;
            assert_eq!(scene.count(anchored), 1);
        }
        // Receipts of past epochs are public.
        for window in (0..receipt::first_sealed(Window(last - 1), &params()).0).map(Window) {
            let published =
                |entry: &Entry| matches!(entry, Entry::Published { window: other, .. } if *other == window);
            scene.until(&format!("the receipt of window {window} is published"), published).await;
            assert_eq!(scene.count(published), 1);
        }
        assert!(0 < scene.count(|entry| matches!(entry, Entry::Published { .. })));
        assert_eq!(scene.count(|entry| matches!(entry, Entry::Unpublished { .. })), 0);

        // The validator can be stopped while it waits: the future is dropped below.
        fill(Step::Attest);
        let refusals = log.refusals();
        scene.contribute().await;
        eventually("the disk is full before the attestation", || log.refusals() == refusals + 1).await;
    };
    tokio::select! {
        ended = validator.run() => panic!("{ended:?}"),
        () = scenario => {}
    }
    // The disk has only complete files, and every signed statement is on the chain.
    limit_files("unlimited");
    let window = scene.window();
    let signed = scene.signed();
    assert_eq!(signed.report(window), None);
    assert!(signed.signed_until().is_some());
    assert!(signed.weight_vote(window.epoch(EPOCH)).is_none());
    let (path, values) = (scene.directory().join("model.state"), scene.state.theta.len());
    let state = ModelState::load(&path, RUN, values, &Storage::memory());
    assert_eq!(state.unwrap().unwrap().window, window);
}

/// The file of the fetched checkpoint is first a link to `/dev/full`.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_full_disk_delays_a_joining_node_until_there_is_space() {
    let mut scene = Scene::new();
    let validator = scene.validator(scene.dataset.clone(), Box::new(Observed(Arc::new(|_| {})))).await;
    let scenario = async {
        while scene.chain.run_now(RUN).unwrap().checkpoint.is_none() {
            scene.run_window().await;
        }
        scene.until_held(scene.window()).await;
        let checkpoint = scene.chain.run_now(RUN).unwrap().checkpoint.unwrap();
        let manifest = keys::checkpoint(RUN, checkpoint.window, &checkpoint.state_root);
        let started = Instant::now();
        while scene.store.get(&manifest, 1 << 30).await.is_err() {
            assert!(started.elapsed() < TIMEOUT, "the checkpoint is never published");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        checkpoint
    };
    let checkpoint = tokio::select! {
        ended = validator.run() => panic!("{ended:?}"),
        checkpoint = scenario => checkpoint,
    };

    let directory = scene.home.path().join("joiner");
    fs::create_dir(&directory).unwrap();
    let partial = directory.join(format!("joining-{}-{}", checkpoint.window.0, checkpoint.state_root));
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    let counting = Arc::new(CountingFetcher { inner: reader(&scene.buckets), pieces: AtomicUsize::new(0) });
    let joiner = Follower {
        storage: Storage::on_disk(&directory),
        fetch: counting.clone(),
        ..follower(&scene.chain, &scene.spec, &scene.codec, &scene.buckets, false)
    };
    let mut journal = Journal::open(&directory.join("journal.jsonl")).unwrap();
    let path = directory.join("model.state");
    let joining = SyncDriver::open(Arc::new(joiner), path.clone(), &mut journal);
    let make_room = async {
        eventually("the node has tried twice", || counting.pieces.load(SeqCst) == 2).await;
        assert!(!path.exists());
        fs::remove_file(&partial).unwrap();
        std::future::pending::<()>().await;
    };
    let sync_driver = tokio::select! {
        joined = joining => joined.unwrap().0,
        () = make_room => unreachable!("this future never completes"),
    };
    assert_eq!((sync_driver.window(), sync_driver.state.lineage), (checkpoint.window, checkpoint.lineage));
    assert!(path.exists() && !partial.exists());
    assert_eq!(counting.pieces.load(SeqCst), 3, "the model has one piece");
}

/// Counts requests for checkpoint pieces.
struct CountingFetcher {
    inner: Reader,
    pieces: AtomicUsize,
}

#[async_trait]
impl Fetch for CountingFetcher {
    async fn fetch(&self, base: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        if key.to_string().starts_with("pieces/") {
            self.pieces.fetch_add(1, SeqCst);
        }
        self.inner.fetch(base, key, limits).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}
