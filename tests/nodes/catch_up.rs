//! A node that joins at window 1,000 fetches only one checkpoint and the updates since. The test compares the names
//! and sizes of all fetched objects, on the real runtime after a thousand merged windows.

use async_trait::async_trait;
use bytes::Bytes;
use chain_client::Chain as _;
use codec::Encode as _;
use daemon::{
    Blocking, ChainWitness, Codec, Followed, Follower, ModelState, Storage, WitnessError, checkpoint,
};
use ed25519_dalek::SigningKey;
use mettle_runtime::{AccountId, RuntimeCall};
use model::{Recipe, RunSpec, init_flat};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Window, contribution,
    identity::Signer,
    keys,
    keys::ObjectKey,
    lineage,
    params::Density,
    submission::{self, Header},
    view::{Outcome, Verdict, Vote},
};
use sp_keyring::Sr25519Keyring;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};
use store::{Fetch, FetchError, Limits, Store, TrafficTotals};
use tests::sim::{
    buckets::{Buckets, Reader},
    chain::{Sealing, SharedChain, SimChain},
    small,
};

const RUN: RunId = RunId(0);
const MTL: u128 = 1_000_000_000_000;
const CHECKPOINT: u32 = 1_000;
const NOW: u32 = 1_007;

/// Records each fetched object and its size.
struct RecordingFetcher {
    inner: Reader,
    fetched: Mutex<Vec<(ObjectKey, usize)>>,
}

#[async_trait]
impl Fetch for RecordingFetcher {
    async fn fetch(&self, base: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        let bytes = self.inner.fetch(base, key, limits).await?;
        let mut fetched = self.fetched.lock().unwrap_or_else(PoisonError::into_inner);
        fetched.push((key.clone(), bytes.len()));
        Ok(bytes)
    }

    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}

fn params() -> RunParams {
    RunParams {
        schedule: Schedule {
            start: Block(6),
            blocks_per_window: 12,
            commit_by: 3,
            reveal_by: 5,
            attest_by: 7,
            vote_by: 10,
        },
        epoch_windows: 10,
        reveal_windows: 1,
        hidden_blocks: 0,
        density: Density(512),
        merge_density: Density(512),
        min_contributions: 1,
        checkpoint_windows: 20,
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

fn url(name: &str) -> pallet_registry::Url {
    format!("https://{name}.invalid").into_bytes().try_into().expect("these URLs are short")
}

/// A run with one miner and one validator, and the validator's state.
struct SmallRun {
    chain: SharedChain,
    buckets: Arc<Buckets>,
    spec: RunSpec,
    codec: Arc<Codec>,
    validator: Follower,
    state: ModelState,
    store: Arc<dyn Store>,
    miner: Arc<dyn Store>,
}

impl SmallRun {
    fn new() -> SmallRun {
        SmallRun::on(b"catch up")
    }

    /// Returns the run on a chain whose blocks derive from `chain`.
    fn on(chain: &[u8]) -> SmallRun {
        let model = small::model(32, 8);
        let name = "small".to_owned();
        let spec = RunSpec { version: 1, name, model, seed: 0, weights: None, recipe: Recipe::default() };
        let theta = init_flat(&spec.model, 0).unwrap();
        let (params, manifest) = (params(), Digest::of(b"a manifest"));
        let mut chain = SimChain::new(Digest::of(chain));
        let create = pallet_registry::Call::create_run {
            params,
            terms: Terms {
                validator_stake_min: MTL,
                miner_stake_min: MTL,
                seat_price_min: 0,
                ..Terms::default()
            },
            spec: spec.digest(),
            manifest,
            theta0: lineage::weights_root(&theta),
            published_at: url("origin"),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]));
        let register = |role, key: SigningKey, endpoint, stake| {
            chain.registration(Sr25519Keyring::Bob.to_account_id(), &key, RUN, role, endpoint, stake)
        };
        let seats = vec![
            register(Role::Miner, key(1), "https://miner.invalid", MTL),
            register(Role::Validator, key(2), "https://validator.invalid", 1_000 * MTL),
        ];
        accepted(chain.block(seats));
        let chain = SharedChain::new(chain, Sealing::Instant);
        let buckets = Arc::new(Buckets::default());
        let codec = Arc::new(Codec::new(&spec.schema().unwrap(), params.density).unwrap());
        let (store, miner) = (buckets.add("https://validator.invalid"), buckets.add("https://miner.invalid"));
        let reader = Reader::new(buckets.clone(), String::new(), Digest::of(b"validator"), 0);
        SmallRun {
            validator: follower(&chain, &spec, &codec, Arc::new(reader), true),
            state: ModelState::genesis(RUN, &params, &manifest, theta),
            chain,
            buckets,
            spec,
            codec,
            store,
            miner,
        }
    }

    fn send(&self, key: &SigningKey, call: impl Into<RuntimeCall>) {
        accepted(self.chain.lock().block(vec![(AccountId::from(hotkey(key).0), call.into())]));
    }

    fn advance_to(&self, block: u32) {
        self.chain.lock().advance_to(Block(block));
    }

    /// Runs one window: a contribution, an attestation, a vote.
    async fn run_window(&mut self) {
        let (window, schedule) = (self.state.window, params().schedule);
        let opens = schedule.opens_at(window).0;
        self.advance_to(opens + 1);
        let seats = self.chain.seats_now(RUN);
        let (miner, validator) = (&seats[0], &seats[1]);

        let values = self.state.theta.iter().enumerate();
        let delta: Vec<f32> =
            values.map(|(i, value)| value * 0.01 + (i as f32 + window.0 as f32).sin() * 1e-3).collect();
        let schema = self.spec.schema().unwrap();
        let body = contribution::encode(&schema, params().density, &delta).unwrap();
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RUN,
            window,
            uid: miner.id.uid,
            hotkey: miner.hotkey,
            base: self.state.lineage,
            schema: schema.digest(),
            density: params().density,
            trained: 1,
        };
        let sealed = submission::seal(&header, &body, &Signer::new(key(1), self.chain.genesis()));
        let digest = Digest::of(&sealed);
        self.send(&key(1), pallet_windows::Call::commit { run: RUN, window, digest });
        self.miner.put(&keys::contribution(RUN, window, &digest), sealed.into()).await.unwrap();

        self.advance_to(schedule.reveal_deadline(window).0);
        let verdicts =
            vec![(miner.id.uid, Verdict::Valid)].try_into().expect("one verdict is within the bound");
        let next_salt = Digest::of(&window.0.to_le_bytes());
        self.send(&key(2), pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt });

        self.advance_to(schedule.attest_deadline(window).0 + 1);
        let view = self.chain.window_now(RUN, window).unwrap();
        let sources = self.validator.contribution_sources(&view, &seats);
        let contribution = self.validator.fetch_contribution(&sources, miner.id.uid, &digest).await.unwrap();
        let own = self
            .validator
            .merge(&self.state, &view, &BTreeMap::from([(miner.id.uid, contribution)]))
            .unwrap_or_else(|error| panic!("window {window}: {error}; uid {}", validator.id.uid));
        self.store.put(&keys::update(RUN, window, &own.digest), own.bytes.clone()).await.unwrap();
        let state_root = params().is_checkpoint(window).then(|| own.state_root());
        let vote = Vote { update: own.digest, state_root };
        self.send(&key(2), pallet_windows::Call::vote { run: RUN, window, vote });

        self.advance_to(schedule.vote_deadline(window).0 + 1);
        let followed = self.validator.step(&mut self.state, Some(own)).await.unwrap();
        assert!(
            matches!(followed, Followed::Advanced { outcome: Outcome::Merged(_) }),
            "{window}: {followed:?}"
        );
        if self.state.window.0.is_multiple_of(20) {
            checkpoint::publish(Blocking::Pool, &*self.store, &mut self.state).await.unwrap();
        }
    }
}

fn follower(
    chain: &SharedChain,
    spec: &RunSpec,
    codec: &Arc<Codec>,
    fetch: Arc<dyn Fetch>,
    keeps_buffer: bool,
) -> Follower {
    Follower {
        chain: Arc::new(chain.clone()),
        fetch,
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

fn accepted(results: Vec<Result<(), String>>) {
    results.into_iter().for_each(|result| result.expect("the runtime accepts an honest call"));
}

/// The first endpoint shows a separate fork, with the same run and window.
#[tokio::test]
async fn a_window_that_two_endpoints_open_in_different_blocks_is_not_confirmed() {
    let (fork, network) = (SmallRun::on(b"a liar's fork"), SmallRun::on(b"the network"));
    let schedule = params().schedule;
    for run in [&fork, &network] {
        run.advance_to(schedule.opens_at(Window(0)).0 + 2);
    }
    let urls = || ["wss://liar.example".to_owned(), "wss://honest.example".to_owned()];
    let witness = ChainWitness::new(Arc::new(network.chain.clone()), urls());
    let view = |of: &SmallRun| of.chain.window_now(RUN, Window(0)).unwrap();
    let seen_at = Block(schedule.opens_at(Window(0)).0 + 2);
    let hash = |of: &SmallRun| view(of).opening_hash;
    witness.confirm(RUN, schedule, Window(0), hash(&network), seen_at).await.unwrap();
    assert!(!ChainWitness::is_overdue(schedule, Window(0), None, seen_at));
    assert!(
        ChainWitness::is_overdue(schedule, Window(0), None, Block(seen_at.0 + 7)),
        "a hash that is left out is not confirmed"
    );
    let error = witness.confirm(RUN, schedule, Window(0), hash(&fork), seen_at).await.unwrap_err();
    assert!(matches!(error, WitnessError::Disagree { .. }), "{error}");
    let text = error.to_string();
    let hashes = [hash(&fork), hash(&network)].map(|hash| hash.unwrap().to_string());
    assert!(urls().iter().chain(&hashes).all(|part| text.contains(part)), "{text}");
}

#[tokio::test]
async fn a_node_that_joins_at_window_1000_fetches_one_checkpoint_and_the_updates_since() {
    let mut small = SmallRun::new();
    let mut updates = BTreeMap::new();
    while small.state.window < Window(NOW) {
        let window = small.state.window;
        small.run_window().await;
        let view = small.chain.window_now(RUN, window).unwrap();
        let Some(Outcome::Merged(vote)) = view.outcome else { panic!("{window} is merged") };
        let key = keys::update(RUN, window, &vote.update);
        let bytes = small.store.get(&key, 1 << 30).await.unwrap().len();
        updates.insert(window.0, (key, bytes));
    }
    let checkpoint =
        small.chain.run(RUN).await.unwrap().checkpoint.expect("validators vote for one every twenty windows");
    assert_eq!(checkpoint.window, Window(CHECKPOINT));

    let inner = Reader::new(small.buckets.clone(), String::new(), Digest::of(b"joiner"), 0);
    let recording = Arc::new(RecordingFetcher { inner, fetched: Mutex::default() });
    let joiner = follower(&small.chain, &small.spec, &small.codec, recording.clone(), false);
    let mut state = joiner.join().await.unwrap();
    let pieces = lineage::piece_digests(&state.theta);
    while state.window < small.state.window {
        let followed = joiner.step(&mut state, None).await.unwrap();
        assert!(matches!(followed, Followed::Advanced { .. }));
    }
    assert_eq!(state, ModelState { buffer: None, ..small.state.clone() });

    // Expect the checkpoint's manifest, the pieces of the weights, and seven updates.
    let manifest = keys::checkpoint(RUN, checkpoint.window, &checkpoint.state_root);
    let manifest_bytes = small.store.get(&manifest, 1 << 30).await.unwrap().len();
    let mut expected = vec![(manifest, manifest_bytes)];
    expected.extend(pieces.iter().map(|digest| (keys::piece(digest), 4 * state.theta.len())));
    expected.extend((CHECKPOINT..NOW).map(|window| updates[&window].clone()));
    assert_eq!(expected.len(), 1 + 1 + 7, "the model has one piece");
    let mut fetched = recording.fetched.lock().unwrap().clone();
    fetched.sort();
    expected.sort();
    assert_eq!(fetched, expected);
    let bytes: usize = fetched.iter().map(|(_, bytes)| bytes).sum();
    let all: usize = updates.values().map(|(_, bytes)| bytes).sum();
    println!("{bytes} bytes fetched for {NOW} windows; all updates have {all} bytes");
    assert_eq!(manifest_bytes, checkpoint::CheckpointManifest::of(&small.state).unwrap().encode().len());
}

/// A miner, a validator and an observer follow a merge that two thirds then undo; a fourth node joins afterwards.
#[tokio::test]
async fn every_node_goes_on_from_the_checkpoint_that_two_thirds_went_back_to() {
    let mut small = SmallRun::new();
    let node = |small: &SmallRun, name: &str, keeps_buffer| {
        let reader = Reader::new(small.buckets.clone(), String::new(), Digest::of(name.as_bytes()), 0);
        follower(&small.chain, &small.spec, &small.codec, Arc::new(reader), keeps_buffer)
    };
    let (miner, watcher) = (node(&small, "miner", false), node(&small, "watcher", true));
    let (mut mined, mut watched) = (small.state.clone().without_buffer(), small.state.clone());
    let mut good = None;
    while small.state.window < Window(23) {
        if small.state.window == Window(20) {
            good = Some(small.state.clone());
        }
        if small.state.window == Window(22) {
            let validator = small.chain.seats_now(RUN)[1].id.uid;
            let call = pallet_windows::Call::vote_rewind { run: RUN, uid: validator, to: Some(Window(20)) };
            accepted(small.chain.lock().block(vec![(Sr25519Keyring::Bob.to_account_id(), call.into())]));
        }
        small.run_window().await;
    }
    // The watcher is absent from window 21 on, and no bucket has that window's update any more.
    while mined.window < Window(23) {
        miner.step(&mut mined, None).await.unwrap();
    }
    while watched.window < Window(21) {
        watcher.step(&mut watched, None).await.unwrap();
    }
    let good = good.unwrap();
    assert_eq!(mined.lineage, small.state.lineage);
    assert_ne!(mined.theta, good.theta);
    let view = small.chain.window_now(RUN, Window(21)).unwrap();
    let Some(Outcome::Merged(vote)) = view.outcome else { panic!("window 21 is merged") };
    small.store.delete(&keys::update(RUN, Window(21), &vote.update)).await.unwrap();

    // Every node that followed holds the undone model at this point, and the window's own has not opened.
    assert_eq!(miner.step(&mut mined, None).await.unwrap(), Followed::Waiting);
    small.advance_to(params().schedule.opens_at(Window(23)).0 + 1);
    let run = small.chain.run(RUN).await.unwrap();
    assert_eq!((run.rewound, run.checkpoint.unwrap().window), (Some(Window(23)), Window(20)));

    let expected = ModelState { window: Window(23), ..good };
    assert_eq!(small.validator.step(&mut small.state, None).await.unwrap(), Followed::Rejoined);
    assert_eq!(small.state, expected);
    assert_eq!(miner.step(&mut mined, None).await.unwrap(), Followed::Rejoined);
    assert_eq!(mined, expected.without_buffer());
    assert_eq!(watcher.step(&mut watched, None).await.unwrap(), Followed::Rejoined);
    assert_eq!(watched, expected);

    // All merge the next windows, and end with one root.
    for _ in 0..2 {
        small.run_window().await;
    }
    let joiner = node(&small, "joiner", true);
    let mut joined = joiner.join().await.unwrap();
    assert_eq!(joined, expected);
    let nodes = [(&miner, &mut mined), (&watcher, &mut watched), (&joiner, &mut joined)];
    for (follower, state) in nodes {
        while state.window < small.state.window {
            let followed = follower.step(state, None).await.unwrap();
            assert!(matches!(followed, Followed::Advanced { outcome: Outcome::Merged(_) }), "{followed:?}");
        }
        assert_eq!((state.lineage, state.weights_root()), (small.state.lineage, small.state.weights_root()));
    }
    assert!(small.state.state_root().is_some());
    assert_eq!(watched.state_root(), small.state.state_root());
    assert_eq!(joined.state_root(), small.state.state_root());
}
