//! Many seats that commit valid contributions without work. The tests count the real validator's fetches, files and
//! copies in its bucket, on the simulated chain.

use async_trait::async_trait;
use bytes::Bytes;
use daemon::{Blocking, Codec, Entry, Followed, Follower, Journal, ModelState, Node, Storage, SyncDriver};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use mettle_runtime::{AccountId, RuntimeCall};
use model::{Recipe, RunSpec, init_flat};
use nn::{Device, Evaluator};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, Window, contribution,
    identity::Signer,
    keys::{self, ObjectKey},
    lineage,
    params::Density,
    submission::{self, Header},
    view::{Outcome, Verdict, WindowView},
};
use sp_keyring::Sr25519Keyring;
use std::{
    collections::BTreeSet,
    fs,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use store::{Fetch, FetchError, Limits, MemoryStore, Store, TrafficTotals};
use tests::sim::{
    buckets::{Buckets, Reader},
    chain::{Sealing, SharedChain, SimChain},
    small,
};
use validator::{
    evaluate::DeviceEvaluator, run::Validator, salt::Salts, signed_db::SignedDb, strategy::Strategy,
};

const RUN: RunId = RunId(0);
const MTL: u128 = 1_000_000_000_000;
const HONEST: std::ops::Range<u16> = 0..8;
const JUNK: std::ops::Range<u16> = 8..158;
const VALIDATOR: u16 = 158;
/// Number of places in the merge. Twice as many seats without a weight are fetched.
const PLACES: usize = 24;
const TRAINED: u32 = 16;
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
        epoch_windows: 2,
        reveal_windows: 1,
        hidden_blocks: 0,
        sequences_per_seat: TRAINED,
        evaluation_sequences: 4,
        density: Density(512),
        merge_density: Density(512),
        places: 20,
        reserve_places: 4,
        min_contributions: 1,
        localnet: true,
        ..RunParams::default()
    }
}

fn key(seat: u16) -> SigningKey {
    let mut seed = [7; 32];
    seed[..2].copy_from_slice(&seat.to_le_bytes());
    SigningKey::from_bytes(&seed)
}

fn hotkey(seat: u16) -> Hotkey {
    Hotkey(key(seat).verifying_key().to_bytes())
}

fn account(seat: u16) -> AccountId {
    AccountId::from(hotkey(seat).0)
}

fn url(seat: u16) -> String {
    format!("https://seat-{seat}.invalid")
}

fn bounded(url: &str) -> pallet_registry::Url {
    url.as_bytes().to_vec().try_into().expect("these URLs are short")
}

fn accepted(results: Vec<Result<(), String>>) {
    results.into_iter().for_each(|result| result.expect("the runtime accepts the call"));
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "timeout: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Counts the fetched contributions.
struct Counting {
    inner: Reader,
    fetched: AtomicUsize,
}

#[async_trait]
impl Fetch for Counting {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let fetched = self.inner.fetch(base_url, key, limits).await?;
        if key.to_string().contains("/contributions/") {
            self.fetched.fetch_add(1, SeqCst);
        }
        Ok(fetched)
    }

    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}

/// Gives the honest seats equal weights, and counts the files on the disk when it attests.
struct Weighing {
    gathered: PathBuf,
    files: Arc<AtomicUsize>,
}

impl Strategy for Weighing {
    fn verdicts(&mut self, _: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        self.files.store(files(&self.gathered), SeqCst);
        Some(own)
    }

    fn weights(&mut self, _: &WindowView, _: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        HONEST.map(|uid| (Uid(uid), u16::MAX)).collect()
    }
}

fn files(directory: &PathBuf) -> usize {
    fs::read_dir(directory).map_or(0, Iterator::count)
}

struct Scene {
    home: tempfile::TempDir,
    chain: SharedChain,

    stores: Vec<Arc<MemoryStore>>,
    spec: RunSpec,

    dataset: Dataset,
    fetch: Arc<Counting>,
    follower: Follower,
    /// Model of the open window.
    state: ModelState,
    entries: Arc<Mutex<Vec<Entry>>>,
    files: Arc<AtomicUsize>,
}

impl Scene {
    fn new() -> Scene {
        let home = tempfile::tempdir().unwrap();
        let data = small::dataset(home.path()).unwrap();
        let dataset = Dataset::open(&data, None).unwrap();
        let model = small::model(dataset.vocab() as usize, dataset.seq_len());
        let recipe = Recipe { batch: 4, micro_batch: 4, learning_rate: 1e-2, ..Recipe::default() };
        let spec = RunSpec { version: 1, name: "data-plane".into(), model, seed: 0, weights: None, recipe };
        let theta = init_flat(&spec.model, 0).unwrap();
        let mut chain = SimChain::new(Digest::of(b"data plane"));
        let terms = Terms {
            validator_stake_min: MTL,
            miner_stake_min: MTL / 100,
            seat_price_min: 0,
            ..Terms::default()
        };
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms,
            spec: spec.digest(),
            manifest: dataset.digest(),
            theta0: lineage::weights_root(&theta),
            published_at: bounded("https://origin.invalid"),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]));
        let register = |seat: u16| {
            let (role, stake) = match seat {
                VALIDATOR => (Role::Validator, 1_000 * MTL),
                _ => (Role::Miner, MTL),
            };
            chain.registration(Sr25519Keyring::Bob.to_account_id(), &key(seat), RUN, role, &url(seat), stake)
        };
        let seats = (0..=VALIDATOR).map(register).collect();
        accepted(chain.block(seats));
        let chain = SharedChain::new(chain, Sealing::Instant);
        let buckets = Arc::new(Buckets::default());
        let stores = (0..=VALIDATOR).map(|seat| buckets.add(&url(seat))).collect();
        let codec = Arc::new(Codec::new(&spec.schema().unwrap(), params().density).unwrap());
        let reader = || Reader::new(buckets.clone(), String::new(), Digest::of(b"reader"), 0);
        let fetch = Arc::new(Counting { inner: reader(), fetched: AtomicUsize::new(0) });
        let follower = Follower {
            chain: Arc::new(chain.clone()),
            fetch: Arc::new(reader()),
            run: chain.run_now(RUN).expect("the run was created"),
            spec: spec.clone(),
            sent: codec.clone(),
            merged: codec.clone(),
            keeps_buffer: false,
            turn: 0,
            storage: Storage::memory(),
            blocking: Blocking::Pool,
        };
        let mut state = ModelState::genesis(RUN, &params(), &dataset.digest(), theta);
        state.buffer = None;
        let (entries, files) = Default::default();
        Scene { home, chain, stores, spec, dataset, fetch, follower, state, entries, files }
    }

    fn gathered(&self) -> PathBuf {
        self.home.path().join("validator").join("gathered")
    }

    async fn validator(&self) -> Validator {
        let chain = self.chain.signed_by(account(VALIDATOR));
        let directory = self.home.path().join("validator");
        let follower = Follower {
            chain: Arc::new(chain.clone()),
            fetch: self.fetch.clone(),
            keeps_buffer: true,
            ..self.follower.clone()
        };
        let mut journal = Journal::open(&directory.join("journal.jsonl")).unwrap();
        let entries = self.entries.clone();
        journal.watch(Box::new(move |entry| lock(&entries).push(entry.clone())));
        let path = directory.join("model.state");
        let (sync, _) = SyncDriver::open(Arc::new(follower), path, &mut journal).await.unwrap();
        let evaluator = Evaluator::new(&self.spec.model, Device::CPU, &sync.state.theta).unwrap();
        let dataset = Arc::new(self.dataset.clone());
        let genesis = self.follower.chain.genesis();
        let seat = self.chain.seats_now(RUN).into_iter().find(|seat| seat.role == Role::Validator).unwrap();
        let node = Node {
            heads: sync.follower.chain.heads(),
            sync,
            store: self.stores[usize::from(VALIDATOR)].clone(),
            dataset: dataset.clone(),
            signer: Signer::new(key(VALIDATOR), genesis),
            seat,
            journal,
            directory: directory.clone(),
            blocking: Blocking::Pool,
            traffic: Box::new(|| (0, 0)),
            windows_max: None,
            witness: None,
            lock: None,
        };
        let signed = SignedDb::open(&directory, genesis, RUN, 0).unwrap().0;
        let salts = Salts::new(&key(VALIDATOR).to_bytes(), &genesis);
        let strategy = Box::new(Weighing { gathered: self.gathered(), files: self.files.clone() });
        let evaluator = Box::new(DeviceEvaluator { evaluator, dataset });
        let mut validator = Validator::new(node, evaluator, signed, salts, strategy);
        (validator.evaluation.contributions_max, validator.evaluation.held_out_sequences) = (8, 4);
        validator
    }

    async fn until(&self, what: &str, matches: impl Fn(&Entry) -> bool) {
        eventually(what, || lock(&self.entries).iter().any(&matches)).await;
    }

    fn go_past(&self, block: Block) {
        self.chain.lock().advance_to(Block(block.0 + 1));
    }

    fn view(&self) -> WindowView {
        self.chain.window_now(RUN, self.state.window).expect("the window is open")
    }

    /// Returns a signed contribution of small steps, made without training.
    fn sealed(&self, seat: u16) -> Vec<u8> {
        let schema = self.spec.schema().unwrap();
        let mut random = vec![0; 4 * schema.values()];
        let seed = Digest::of_parts(&[&seat.to_le_bytes(), &self.state.window.0.to_le_bytes()]);
        for (word, number) in random.as_chunks_mut::<4>().0.iter_mut().zip(0u32..) {
            word.copy_from_slice(&Digest::of_parts(&[&seed.0, &number.to_le_bytes()]).0[..4]);
        }
        let step = |word: &[u8; 4]| (u32::from_le_bytes(*word) as f32 / 2.0f32.powi(31) - 1.0) * 1e-4;
        let values: Vec<f32> = random.as_chunks().0.iter().map(step).collect();
        let body = contribution::encode(&schema, params().density, &values).unwrap();
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RUN,
            window: self.state.window,
            uid: Uid(seat),
            hotkey: hotkey(seat),
            base: self.state.lineage,
            schema: schema.digest(),
            density: params().density,
            trained: TRAINED,
        };
        submission::seal(&header, &body, &Signer::new(key(seat), self.follower.chain.genesis()))
    }

    /// Runs one window in which `seats` commit and upload. Returns the contributions that the validator attested as
    /// valid.
    async fn window(&mut self, seats: std::ops::Range<u16>) -> BTreeSet<Uid> {
        let (window, schedule) = (self.state.window, params().schedule);
        let is_held = |entry: &Entry| matches!(entry, Entry::Holds { window: held, .. } if *held == window);
        self.until("the validator holds the model", is_held).await;
        self.go_past(schedule.opens_at(window));
        let mut commits = Vec::new();
        for seat in seats {
            let sealed = self.sealed(seat);
            let digest = Digest::of(&sealed);
            let commit = pallet_windows::Call::commit { run: RUN, window, digest };
            commits.push((account(seat), RuntimeCall::from(commit)));
            let store = &self.stores[usize::from(seat)];
            store.put(&keys::contribution(RUN, window, &digest), sealed.into()).await.unwrap();
        }
        accepted(self.chain.lock().block(commits));
        self.go_past(schedule.commit_deadline(window));
        // Half of the time for uploads has passed, so seats without a weight are fetched, regardless of the others.
        self.go_past(Block(schedule.commit_deadline(window).0 + 5));
        let attested = |entry: &Entry| match entry {
            Entry::Attested { window: of, valid, .. } if *of == window => Some(valid.clone()),
            _ => None,
        };
        self.until("the window is attested", |entry| attested(entry).is_some()).await;
        let valid = lock(&self.entries).iter().find_map(attested).expect("it is there");
        self.go_past(schedule.attest_deadline(window));
        let is_voted = |entry: &Entry| matches!(entry, Entry::Voted { window: of, .. } if *of == window);
        self.until("the window is voted", is_voted).await;
        // The chain shows an epoch's weights in the next one.
        self.go_past(schedule.vote_deadline(window));
        let Followed::Advanced { outcome } = self.follower.step(&mut self.state, None).await.unwrap() else {
            panic!("the window is not over");
        };
        assert!(matches!(outcome, Outcome::Merged(_)), "{outcome:?}");
        let is_judged = |entry: &Entry| matches!(entry, Entry::Judged { window: of, .. } if *of == window);
        self.until("the window is judged", is_judged).await;
        valid.into_iter().collect()
    }

    /// Returns the number of `window`'s contributions in the validator's bucket.
    async fn copies(&self, window: Window) -> usize {
        let digest = Digest::default();
        let key = keys::contribution(RUN, window, &digest).to_string();
        let prefix = key.strip_suffix(&digest.to_string()).expect("the key ends with the digest");
        let store = &self.stores[usize::from(VALIDATOR)];
        store.list(prefix, 1_000).await.unwrap().entries.len()
    }
}

#[tokio::test]
async fn a_crowd_of_150_seats_costs_a_validator_a_bounded_amount_and_hides_no_honest_seat() {
    let mut scene = Scene::new();
    let validator = scene.validator().await;
    let scenario = async {
        // Until the honest seats have a weight.
        while scene.chain.window_now(RUN, scene.state.window).is_none_or(|view| view.weights.is_empty()) {
            assert!(scene.state.window.0 < 8, "no consensus");
            scene.window(HONEST).await;
            scene.go_past(params().schedule.opens_at(scene.state.window));
        }
        let (weights, before) = (scene.view().weights, scene.fetch.fetched.load(SeqCst));
        assert_eq!(weights.len(), HONEST.len(), "{weights:?}");
        let crowded = scene.state.window;
        let valid = scene.window(HONEST.start..JUNK.end).await;

        let fetched = scene.fetch.fetched.load(SeqCst) - before;
        let most = HONEST.len() + 2 * PLACES;
        println!("fetched {fetched}, on the disk {}", scene.files.load(SeqCst));
        assert!(fetched <= most, "{fetched} contributions were fetched");
        assert!(scene.files.load(SeqCst) <= most, "{} files", scene.files.load(SeqCst));
        assert!(HONEST.map(Uid).all(|uid| valid.contains(&uid)), "every honest seat is attested: {valid:?}");
        let copies = scene.copies(crowded).await;
        println!("copied {copies}");
        assert!(copies <= PLACES, "{copies} contributions were copied");
        eventually("the files of a judged window are removed", || files(&scene.gathered()) == 0).await;
    };
    tokio::select! {
        ended = validator.run() => panic!("{ended:?}"),
        () = scenario => {}
    }
}
