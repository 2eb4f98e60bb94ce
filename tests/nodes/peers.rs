//! Contributions without a bucket: a miner sends its own to validators over loopback, on the simulated chain
//! (PROT-34).

use chain_client::Chain;
use daemon::{
    config::PeerFile,
    peers::{PeerStore, Peers},
};
use ed25519_dalek::SigningKey;
use mettle_runtime::AccountId;
use protocol::{
    Block, Digest, Hotkey, Role, Terms, Uid,
    identity::Signer,
    keys::{self, ObjectKey},
    peer::{PeerRecord, receivers},
    view::{RunView, SeatView, WindowView},
};
use sp_keyring::Sr25519Keyring;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use store::{Fetch, FetchError, Limits, MemoryStore, Store, StoreError, Traffic, memory::MemoryFetcher};
use tests::{
    peer_run::{MTL, RUN, WINDOW, key, params},
    sim::chain::{Sealing, SharedChain, SimChain},
};

const VALIDATORS: u16 = 4;
/// Length of a contribution, large enough that a push over loopback takes some time.
const BYTES: usize = 48 << 20;
const BYTES_MAX: u64 = 64 << 20;

fn account(key: &SigningKey) -> AccountId {
    AccountId::from(key.verifying_key().to_bytes())
}

fn accepted(results: Vec<Result<(), String>>) {
    results.into_iter().for_each(|result| result.expect("the runtime accepts an honest call"));
}

/// Returns time limits short enough for a test to wait for.
fn limits() -> Limits {
    Limits::for_bytes(BYTES_MAX).within(Duration::from_secs(60))
}

/// A run past the commit deadline of its first window: a miner without a bucket has committed to a file.
struct Scene {
    home: tempfile::TempDir,
    chain: SharedChain,
    run: RunView,
    view: WindowView,
    seats: Vec<SeatView>,
    /// Buckets of the validators.
    http: Arc<MemoryFetcher>,
    endpoint: String,
    key: ObjectKey,
}

impl Scene {
    fn new(bytes: usize) -> Scene {
        let home = tempfile::tempdir().unwrap();
        let mut chain = SimChain::new(Digest::of(b"peers"));
        let digest = Digest::default();
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms: Terms {
                validator_stake_min: MTL,
                miner_stake_min: MTL,
                seat_price_min: 0,
                ..Terms::default()
            },
            spec: digest,
            manifest: digest,
            theta0: digest,
            published_at: b"https://origin.invalid".to_vec().try_into().unwrap(),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]));
        let endpoint = daemon::peers::endpoint(&home.path().join("miner")).unwrap();
        let bob = || Sr25519Keyring::Bob.to_account_id();
        let mut seats = vec![chain.registration(bob(), &key(100), RUN, Role::Miner, &endpoint, MTL)];
        for validator in 0..VALIDATORS {
            let url = format!("https://validator-{validator}.invalid");
            seats.push(chain.registration(bob(), &key(validator), RUN, Role::Validator, &url, 1_000 * MTL));
        }
        accepted(chain.block(seats));
        let schedule = params().schedule;
        chain.advance_to(Block(schedule.opens_at(WINDOW).0 + 2));
        let contribution: Vec<u8> = (0..bytes).map(|at| (at ^ (at >> 9)) as u8).collect();
        fs::write(home.path().join("contribution"), &contribution).unwrap();
        let digest = Digest::of(&contribution);
        let commit = pallet_windows::Call::commit { run: RUN, window: WINDOW, digest };
        accepted(chain.block(vec![(account(&key(100)), commit.into())]));
        chain.advance_to(Block(schedule.commit_deadline(WINDOW).0 + 1));
        let chain = SharedChain::new(chain, Sealing::Instant);
        Scene {
            run: chain.run_now(RUN).unwrap(),
            view: chain.window_now(RUN, WINDOW).unwrap(),
            seats: chain.seats_now(RUN),
            home,
            chain,
            http: Arc::new(MemoryFetcher::new()),
            endpoint,
            key: keys::contribution(RUN, WINDOW, &digest),
        }
    }

    fn seat(&self, hotkey: &SigningKey) -> &SeatView {
        let hotkey = Hotkey(hotkey.verifying_key().to_bytes());
        self.seats.iter().find(|seat| seat.hotkey == hotkey).expect("it is registered")
    }

    /// Returns the validators in the order of the miner's requests.
    fn order(&self) -> Vec<u16> {
        let validator = |uid: Uid| {
            let of = (0..VALIDATORS).find(|validator| self.seat(&key(*validator)).id.uid == uid);
            of.expect("a validator of this scene")
        };
        receivers(&self.view, RUN, &self.endpoint).into_iter().map(validator).collect()
    }

    fn directory(&self, validator: u16) -> PathBuf {
        self.home.path().join(format!("validator-{validator}"))
    }

    fn holds(&self, validator: u16) -> bool {
        self.directory(validator).join("inbox").join(self.key.as_str()).is_file()
    }

    async fn open(&self, file: &PeerFile, role: Role, directory: &Path) -> Arc<Peers> {
        let chain: Arc<dyn Chain> = Arc::new(self.chain.clone());
        let http: Arc<dyn Fetch> = self.http.clone();
        Peers::open(file, role, directory, &chain, &self.run, &http).await.unwrap()
    }

    /// Opens a validator that accepts contributions.
    async fn validator(&self, validator: u16) -> Arc<Peers> {
        let file = PeerFile { listen: Some("127.0.0.1:0".parse().unwrap()), announce: None };
        let peers = self.open(&file, Role::Validator, &self.directory(validator)).await;
        let bucket: Arc<dyn Store> = Arc::new(MemoryStore::new());
        self.http.serve(format!("https://validator-{validator}.invalid"), bucket.clone());
        let signer = Signer::new(key(validator), self.chain.genesis());
        peers.serve(&file, BYTES_MAX, &bucket, &signer).unwrap();
        // A task publishes the addresses.
        let record = keys::peer(&signer.hotkey());
        while bucket.get(&record, 2_000).await.is_err() {
            tokio::task::yield_now().await;
        }
        peers
    }

    /// Returns the miner's replacement for a bucket, signing with `by`.
    async fn miner(&self, by: SigningKey) -> PeerStore {
        let peers = self.open(&PeerFile::default(), Role::Miner, &self.home.path().join("miner")).await;
        PeerStore {
            peers,
            uid: self.seat(&key(100)).id.uid,
            endpoint: self.endpoint.clone(),
            signer: Signer::new(by, self.chain.genesis()),
            traffic: Traffic::default(),
        }
    }

    async fn publish(&self, miner: &PeerStore) -> Result<u64, StoreError> {
        miner.put_file(&self.key, &self.home.path().join("contribution")).await
    }

    async fn read(&self, validator: &Peers) -> Result<usize, FetchError> {
        validator.fetch(&self.endpoint, &self.key, &limits()).await.map(|bytes| bytes.len())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_validators_get_a_contribution_and_the_others_read_it_from_them() {
    let scene = Scene::new(1 << 20);
    let mut validators = Vec::new();
    for validator in scene.order() {
        validators.push((validator, scene.validator(validator).await));
    }
    // Nothing was sent: every receiver reports that it has nothing, which is the miner's fault.
    for (_, validator) in &validators {
        assert_eq!(scene.read(validator).await, Err(FetchError::Missing));
    }
    let miner = scene.miner(key(100)).await;
    assert_eq!(scene.publish(&miner).await.unwrap(), 1 << 20);
    let holders: Vec<bool> = validators.iter().map(|(validator, _)| scene.holds(*validator)).collect();
    assert_eq!(holders, [true, true, true, false], "the first three of the order");
    for (_, validator) in &validators {
        assert_eq!(scene.read(validator).await, Ok(1 << 20));
    }
    // Repeating it, as after a crash, succeeds.
    scene.publish(&miner).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_dies_while_it_receives_is_replaced_by_the_next() {
    let scene = Arc::new(Scene::new(BYTES));
    let order = scene.order();
    let first = order[0];
    // Its own runtime, so that its sockets and tasks end like a process's.
    let doomed = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let shared = scene.clone();
    doomed.spawn(async move { shared.validator(first).await }).await.unwrap();
    let mut others = Vec::new();
    for validator in &order[1..] {
        others.push(scene.validator(*validator).await);
    }
    let miner = scene.miner(key(100)).await;
    let partial = scene.directory(first).join("inbox/.partial");
    let kill = async {
        let arrives = || {
            let files = fs::read_dir(&partial).into_iter().flatten().flatten();
            files.filter_map(|file| file.metadata().ok()).any(|about| about.len() > 0)
        };
        while !arrives() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        doomed.shutdown_background();
    };
    let (published, ()) = tokio::join!(scene.publish(&miner), kill);
    assert_eq!(published.unwrap(), BYTES as u64);
    assert!(!scene.holds(first), "it died before the last byte");
    let holders = order[1..].iter().filter(|validator| scene.holds(**validator)).count();
    assert!(2 <= holders, "two suffice, and a third is not waited for");
    for validator in &others {
        assert_eq!(scene.read(validator).await, Ok(BYTES));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_moved_is_found_where_its_new_record_says() {
    let scene = Arc::new(Scene::new(1000));
    let first = scene.order()[0];
    let before = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let shared = scene.clone();
    before.spawn(async move { shared.validator(first).await }).await.unwrap();
    let miner = scene.miner(key(100)).await;
    scene.publish(&miner).await.unwrap();
    assert!(scene.holds(first));

    // It restarts at another port, with nothing. The miner still has the old record.
    before.shutdown_background();
    fs::remove_dir_all(scene.directory(first).join("inbox")).unwrap();
    let _again = scene.validator(first).await;
    scene.publish(&miner).await.unwrap();
    assert!(scene.holds(first));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_did_not_answer_lately_is_asked_if_the_others_fail() {
    let scene = Arc::new(Scene::new(1000));
    let order = scene.order();
    let start_apart = async |validator: u16| {
        let apart =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let shared = scene.clone();
        apart.spawn(async move { shared.validator(validator).await }).await.unwrap();
        apart
    };
    let first = start_apart(order[0]).await;
    start_apart(order[1]).await.shutdown_background();
    let miner = scene.miner(key(100)).await;
    scene.publish(&miner).await.unwrap();
    assert!(scene.holds(order[0]) && !scene.holds(order[1]));

    // The second is back, but the miner does not know. The first is down.
    first.shutdown_background();
    let _again = scene.validator(order[1]).await;
    scene.publish(&miner).await.unwrap();
    assert!(scene.holds(order[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_no_receiver_takes_says_why_and_a_dead_receiver_is_not_the_miners_fault() {
    let scene = Scene::new(1000);
    let miner = scene.miner(key(100)).await;
    let said = |error: StoreError| daemon::error_chain(&error);
    let error = said(scene.publish(&miner).await.unwrap_err());
    assert!(error.contains("no validator of the window tells"), "{error}");
    let reader = scene.open(&PeerFile::default(), Role::Validator, &scene.home.path().join("reader")).await;
    let error = scene.read(&reader).await.unwrap_err();
    assert!(matches!(error, FetchError::Unreachable { .. }) && !error.is_theirs(), "{error}");

    // The signature is by another key than the seat's.
    let scene = Scene::new(1000);
    let order = scene.order();
    let _validator = scene.validator(order[0]).await;
    let error = said(scene.publish(&scene.miner(key(101)).await).await.unwrap_err());
    assert!(error.contains("did not sign the offer"), "{error}");
    // A contribution that the seat did not commit to.
    let miner = scene.miner(key(100)).await;
    let other = keys::contribution(RUN, WINDOW, &Digest([1; 32]));
    let error = said(miner.put_file(&other, &scene.home.path().join("contribution")).await.unwrap_err());
    assert!(error.contains("has not committed"), "{error}");
    // Too long for the schema.
    let long = scene.home.path().join("long");
    fs::File::create(&long).unwrap().set_len(BYTES_MAX + 1).unwrap();
    let error = said(miner.put_file(&scene.key, &long).await.unwrap_err());
    assert!(error.contains("at most 67108864 bytes"), "{error}");
    // Other objects have no place.
    assert!(miner.put(&scene.key, "bytes".into()).await.is_err());
    assert!(matches!(miner.get(&scene.key, 9).await, Err(StoreError::NotFound { .. })));

    // A second receiver is not at its recorded address, so its contents are unknown.
    let dead = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let scene = Arc::new(scene);
    let (shared, second) = (scene.clone(), order[1]);
    dead.spawn(async move { shared.validator(second).await }).await.unwrap();
    dead.shutdown_background();
    let reader = scene.open(&PeerFile::default(), Role::Validator, &scene.home.path().join("reader")).await;
    let error = scene.read(&reader).await.unwrap_err();
    assert!(matches!(error, FetchError::Unreachable { .. }) && !error.is_theirs(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offer_is_taken_between_the_deadlines_only() {
    let scene = Scene::new(1000);
    let first = scene.order()[0];
    let _validator = scene.validator(first).await;
    let miner = scene.miner(key(100)).await;
    scene.publish(&miner).await.unwrap();

    // After the reveal deadline, everything is refused.
    scene.chain.lock().advance_to(Block(params().schedule.reveal_deadline(WINDOW).0 + 1));
    let error = daemon::error_chain(&scene.publish(&miner).await.unwrap_err());
    assert!(error.contains("takes contributions to the window after block"), "{error}");
}

/// Returns the bytes of a validator's record in its bucket.
async fn record(scene: &Scene, validator: u16) -> Vec<u8> {
    let url = format!("https://validator-{validator}.invalid");
    let of = keys::peer(&Hotkey(key(validator).verifying_key().to_bytes()));
    scene.http.fetch(&url, &of, &Limits::for_bytes(2_000)).await.unwrap().to_vec()
}

/// Returns whether a miner that looks up a validator reaches it, and otherwise the reason.
async fn found(scene: &Scene, validator: u16) -> Result<(), String> {
    let chain: Arc<dyn Chain> = Arc::new(scene.chain.clone());
    let http: Arc<dyn Fetch> = scene.http.clone();
    let peers = Peers::look(&chain, &scene.run, &http).await.unwrap();
    let uid = scene.seat(&key(validator)).id.uid;
    let survey = peers.survey().await.unwrap();
    survey.into_iter().find(|(of, _)| *of == uid).expect("a validator of this run").1
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_ends_four_windows_after_its_block_unless_its_owner_signs_a_new_one() {
    let scene = Scene::new(1000);
    let signed = |bytes: &[u8]| {
        let hotkey = Hotkey(key(0).verifying_key().to_bytes());
        PeerRecord::open(bytes, &hotkey, &scene.chain.genesis()).unwrap().block
    };
    let _validator = scene.validator(0).await;
    let first = record(&scene, 0).await;
    assert_eq!(found(&scene, 0).await, Ok(()));

    // The owner signs a new record within a window, and is found for as long as it runs.
    let window = params().schedule.blocks_per_window;
    for _ in 0..5 {
        let next = Block(signed(&record(&scene, 0).await).0 + window);
        scene.chain.lock().advance_to(next);
        let renewed = async {
            while signed(&record(&scene, 0).await) < next {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), renewed).await.expect("a new record within a window");
        assert_eq!(found(&scene, 0).await, Ok(()));
    }

    // The operator of the bucket serves the first record again, which has expired.
    let of = keys::peer(&Hotkey(key(0).verifying_key().to_bytes()));
    let serve = async |bytes: Vec<u8>| {
        let bucket: Arc<dyn Store> = Arc::new(MemoryStore::new());
        bucket.put(&of, bytes.into()).await.unwrap();
        scene.http.serve("https://validator-0.invalid", bucket);
    };
    serve(first.clone()).await;
    let error = found(&scene, 0).await.unwrap_err();
    assert!(error.contains("a record is used for 240 blocks"), "{error}");
    let miner = scene.miner(key(100)).await;
    let error = daemon::error_chain(&scene.publish(&miner).await.unwrap_err());
    assert!(error.contains("no validator of the window tells"), "{error}");
    // The receivers' contents are unknown, so nothing is missing.
    let reader = scene.open(&PeerFile::default(), Role::Validator, &scene.home.path().join("reader")).await;
    let error = scene.read(&reader).await.unwrap_err();
    assert!(matches!(error, FetchError::Unreachable { .. }) && !error.is_theirs(), "{error}");

    // A record of a version that this node does not support.
    serve([&[9], &first[1..]].concat()).await;
    let error = found(&scene, 0).await.unwrap_err();
    assert!(error.contains("version 9") && error.contains("version 1"), "{error}");
}
