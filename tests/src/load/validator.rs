//! One validator with a crowd: honest contributions among many that are absent, too long, different from the committed
//! bytes, invalid only at their end, or slow.
//!
//! The validator is the program's own loop, on the simulated chain, in virtual time and with the default schedule. A
//! window with only the honest seats comes first. Then the crowd commits too. At first it has no consensus weights, so
//! a bounded number of its contributions is fetched. Then it has higher weights than the honest seats, so all of its
//! contributions are fetched, and first.

use super::{MIB, Report, files_below, processor_seconds, resident_bytes};
use crate::sim::{
    buckets::{Buckets, Reader},
    chain::{Sealing, SharedChain, SimChain},
    small,
};
use anyhow::{Context as _, ensure};
use async_trait::async_trait;
use bytes::Bytes;
use daemon::{Blocking, Codec, Entry, Follower, Journal, ModelState, Node, Storage, SyncDriver};
use dataset::Dataset;
use ed25519_dalek::SigningKey;
use gauntlet::gathering::unweighted_max;
use mettle_runtime::{AccountId, RuntimeCall, SLOT_DURATION};
use model::{Recipe, RunSpec, init_flat};
use nn::{Device, Evaluator};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, RunParams, Schedule, Terms, Uid, contribution,
    identity::Signer,
    keys::{self, ObjectKey},
    lineage,
    submission::{self, Header},
    view::{Verdict, WindowView},
};
use sp_keyring::Sr25519Keyring;
use std::{
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};
use store::{Faults, Fetch, FetchError, Limits, MemoryStore, Rate, Store as _, TrafficTotals};
use tokio::time::Instant;
use validator::{
    evaluate::DeviceEvaluator, gather::IN_MEMORY, run::Validator, salt::Salts, signed_db::SignedDb,
    strategy::Strategy,
};

const RUN: RunId = RunId(0);
const MTL: u128 = 1_000_000_000_000;
/// Maximum latency of a bucket.
const ANSWER: Duration = Duration::from_millis(500);
/// Bytes per second of a slow bucket. A contribution of this model has some hundred bytes.
const SLOW: u32 = 1;
/// Maximum number of windows until the seats have the weights that the validator gives them.
const CONSENSUS_WINDOWS: u32 = 10;
/// Maximum delay of the last honest contribution with strangers, as a multiple of the delay without them.
const LATER: f64 = 1.5;
/// Maximum memory that the crowd adds to the validator, the chain and the buckets in this process.
const CROWD_BYTES: f64 = 64.0 * MIB;

/// Numbers of the seats.
pub struct Size {
    pub honest: u16,
    pub junk: u16,
}

impl Size {
    pub const FULL: Size = Size { honest: 124, junk: 900 };
    pub const SHORT: Size = Size { honest: 12, junk: 88 };

    fn miners(&self) -> u16 {
        self.honest + self.junk
    }
}

/// Error in a seat's contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Honest,
    Absent,
    TooLong,
    /// Different from the committed bytes.
    Other,
    /// Correctly signed and committed, but the last part of the body is garbage.
    Garbage,
    Slow,
}

impl Work {
    fn of(size: &Size, seat: u16) -> Work {
        match seat.checked_sub(size.honest).map(|junk| junk % 5) {
            None => Work::Honest,
            Some(0) => Work::Absent,
            Some(1) => Work::TooLong,
            Some(2) => Work::Other,
            Some(3) => Work::Garbage,
            Some(_) => Work::Slow,
        }
    }
}

fn params() -> RunParams {
    RunParams {
        schedule: Schedule { start: Block(20), ..RunParams::default().schedule },
        epoch_windows: 2,
        reveal_windows: 1,
        evaluation_sequences: 4,
        newcomer_windows: 1,
        localnet: true,
        ..RunParams::default()
    }
}

fn key(seat: u16) -> SigningKey {
    SigningKey::from_bytes(&Digest::of_parts(&[b"crowd", &seat.to_le_bytes()]).0)
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

fn accepted(results: Vec<Result<(), String>>) -> anyhow::Result<()> {
    results.into_iter().try_for_each(|result| result.map_err(|refusal| anyhow::anyhow!("refused: {refusal}")))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the validator's fetches.
struct Watched {
    inner: Reader,
    /// Base URLs of the honest seats.
    honest: Vec<String>,
    seen: Mutex<Fetched>,
    at_once: AtomicUsize,
}

/// Fetches of one window.
#[derive(Default)]
struct Fetched {
    contributions: usize,
    at_once_max: usize,
    /// Time at which the last honest contribution arrived.
    last_honest: Option<Instant>,
}

#[async_trait]
impl Fetch for Watched {
    async fn fetch(&self, base_url: &str, key: &ObjectKey, limits: &Limits) -> Result<Bytes, FetchError> {
        if keys::contribution_of(key).is_none() {
            return self.inner.fetch(base_url, key, limits).await;
        }
        let now = self.at_once.fetch_add(1, Relaxed) + 1;
        // A fetch may be dropped when its time is over.
        let _ended = Ended(&self.at_once);
        {
            let mut seen = lock(&self.seen);
            (seen.contributions, seen.at_once_max) = (seen.contributions + 1, seen.at_once_max.max(now));
        }
        let fetched = self.inner.fetch(base_url, key, limits).await;
        if fetched.is_ok() && self.honest.iter().any(|honest| honest == base_url) {
            lock(&self.seen).last_honest = Some(Instant::now());
        }
        fetched
    }

    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}

struct Ended<'a>(&'a AtomicUsize);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// Gives the honest seats equal weights and, from some window on, the crowd higher ones.
struct Weighing {
    honest: u16,
    miners: u16,
    is_crowd_weighed: Arc<AtomicBool>,
    gathered: PathBuf,
    files: Arc<AtomicUsize>,
}

impl Strategy for Weighing {
    fn verdicts(&mut self, _: &WindowView, own: Vec<(Uid, Verdict)>) -> Option<Vec<(Uid, Verdict)>> {
        self.files.store(files_below(&self.gathered).0, Relaxed);
        Some(own)
    }

    fn weights(&mut self, _: &WindowView, _: Vec<(Uid, u16)>) -> Vec<(Uid, u16)> {
        let weighed = if self.is_crowd_weighed.load(Relaxed) { self.miners } else { self.honest };
        let weight = |seat: u16| if seat < self.honest { u16::MAX / 4 } else { u16::MAX };
        (0..weighed).map(|seat| (Uid(seat), weight(seat))).collect()
    }
}

/// Costs of one window.
struct Cost {
    fetched: Fetched,
    /// Seconds from the commit deadline to the last honest contribution.
    seconds: f64,
    processor: f64,
    memory: f64,
    files: usize,
    /// Honest seats that were not attested as valid.
    lost: Vec<Uid>,
    /// Blocks left until the attestations' deadline.
    left: u32,
}

struct Scene<'a> {
    size: &'a Size,
    home: tempfile::TempDir,
    chain: SharedChain,
    stores: Vec<Arc<MemoryStore>>,
    spec: RunSpec,
    dataset: Dataset,
    fetch: Arc<Watched>,
    follower: Follower,
    /// Model of the open window.
    state: ModelState,
    entries: Arc<Mutex<Vec<Entry>>>,
    is_crowd_weighed: Arc<AtomicBool>,
    files: Arc<AtomicUsize>,
}

/// Runs the scenario on a separate executor with a virtual clock.
pub fn run(size: &Size) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    runtime.block_on(async {
        let mut scene = Scene::new(size)?;
        let validator = scene.validator().await?;
        tokio::select! {
            ended = validator.run() => Err(anyhow::anyhow!("the validator ended: {ended:?}")),
            report = scene.load() => report,
        }
    })
}

impl<'a> Scene<'a> {
    fn new(size: &'a Size) -> anyhow::Result<Scene<'a>> {
        let home = tempfile::tempdir()?;
        let dataset = Dataset::open(&small::dataset(home.path())?, None)?;
        let model = small::model(dataset.vocab() as usize, dataset.seq_len());
        let recipe = Recipe { batch: 4, micro_batch: 4, ..Recipe::default() };
        let spec = RunSpec { version: 1, name: "crowd".into(), model, seed: 0, weights: None, recipe };
        let theta = init_flat(&spec.model, 0)?;
        let mut chain = SimChain::new(Digest::of(b"crowd"));
        let terms = Terms {
            validator_stake_min: MTL,
            miner_stake_min: MTL / 100,
            miner_seats_max: size.miners(),
            seat_price_min: 0,
            ..Terms::default()
        };
        let create = pallet_registry::Call::create_run {
            params: params(),
            terms,
            spec: spec.digest(),
            manifest: dataset.digest(),
            theta0: lineage::weights_root(&theta),
            published_at: b"https://origin.invalid".to_vec().try_into().expect("it is short"),
        };
        accepted(chain.block(vec![(Sr25519Keyring::Alice.to_account_id(), create.into())]))?;
        let validator = size.miners();
        let register = |seat: u16| {
            let role = if seat == validator { Role::Validator } else { Role::Miner };
            let stake = if seat == validator { 1_000 * MTL } else { MTL };
            chain.registration(Sr25519Keyring::Bob.to_account_id(), &key(seat), RUN, role, &url(seat), stake)
        };
        let seats = (0..=validator).map(register).collect();
        accepted(chain.block(seats))?;
        let chain = SharedChain::new(chain, Sealing::Manual);
        let buckets = Arc::new(Buckets::default());
        let store = |seat: u16| {
            let slow = Faults { dripped: Rate::Always, drip_bytes_per_second: SLOW, ..Faults::default() };
            let faults = match Work::of(size, seat) {
                Work::Slow => slow,
                _ if seat == validator => Faults::default(),
                _ => Faults { delay_max: ANSWER, ..Faults::default() },
            };
            buckets.add_faulty(&url(seat), faults)
        };
        let stores = (0..=validator).map(store).collect();
        let codec =
            |density| -> anyhow::Result<Arc<Codec>> { Ok(Arc::new(Codec::new(&spec.schema()?, density)?)) };
        let reader = || Reader::new(buckets.clone(), String::new(), Digest::of(b"reader"), 0);
        let fetch = Arc::new(Watched {
            inner: reader(),
            honest: (0..size.honest).map(url).collect(),
            seen: Mutex::default(),
            at_once: AtomicUsize::new(0),
        });
        let follower = Follower {
            chain: Arc::new(chain.clone()),
            fetch: Arc::new(reader()),
            run: chain.run_now(RUN).context("the run was created")?,
            spec: spec.clone(),
            sent: codec(params().density)?,
            merged: codec(params().merge_density)?,
            keeps_buffer: false,
            turn: 0,
            storage: Storage::memory(),
            blocking: Blocking::Inline,
        };
        let mut state = ModelState::genesis(RUN, &params(), &dataset.digest(), theta);
        state.buffer = None;
        let (entries, is_crowd_weighed, files) = Default::default();
        Ok(Scene {
            size,
            home,
            chain,
            stores,
            spec,
            dataset,
            fetch,
            follower,
            state,
            entries,
            is_crowd_weighed,
            files,
        })
    }

    async fn validator(&self) -> anyhow::Result<Validator> {
        let seat = self.size.miners();
        let chain = self.chain.signed_by(account(seat));
        let directory = self.home.path().join("validator");
        let follower = Follower {
            chain: Arc::new(chain.clone()),
            fetch: self.fetch.clone(),
            keeps_buffer: true,
            ..self.follower.clone()
        };
        let entries = self.entries.clone();
        let mut journal = Journal::in_memory(Box::new(move |entry| lock(&entries).push(entry.clone())));
        std::fs::create_dir_all(&directory)?;
        let path = directory.join("model.state");
        let (sync, _) = SyncDriver::open(Arc::new(follower), path, &mut journal).await?;
        let evaluator = Evaluator::new(&self.spec.model, Device::CPU, &sync.state.theta)?;
        let (dataset, genesis) = (Arc::new(self.dataset.clone()), self.follower.chain.genesis());
        let view = self.chain.seats_now(RUN).into_iter().find(|seat| seat.role == Role::Validator);
        let node = Node {
            heads: sync.follower.chain.heads(),
            sync,
            store: self.stores[usize::from(seat)].clone(),
            dataset: dataset.clone(),
            signer: Signer::new(key(seat), genesis),
            seat: view.context("the validator is registered")?,
            journal,
            directory: directory.clone(),
            blocking: Blocking::Inline,
            traffic: Box::new(|| (0, 0)),
            windows_max: None,
            witness: None,
            lock: None,
        };
        let signed = SignedDb::open(&directory, genesis, RUN, 0)?.0;
        let salts = Salts::new(&key(seat).to_bytes(), &genesis);
        let strategy = Box::new(Weighing {
            honest: self.size.honest,
            miners: self.size.miners(),
            is_crowd_weighed: self.is_crowd_weighed.clone(),
            gathered: directory.join("gathered"),
            files: self.files.clone(),
        });
        let evaluator = Box::new(DeviceEvaluator { evaluator, dataset });
        let mut validator = Validator::new(node, evaluator, signed, salts, strategy);
        (validator.evaluation.contributions_max, validator.evaluation.held_out_sequences) = (8, 4);
        Ok(validator)
    }

    async fn load(&mut self) -> anyhow::Result<Report> {
        let (honest, all) = (0..self.size.honest, 0..self.size.miners());
        self.until_weighed(honest.len(), honest.clone()).await?;
        let alone = self.window(honest.clone()).await?;
        let strangers = self.window(all.clone()).await?;
        self.is_crowd_weighed.store(true, Relaxed);
        self.until_weighed(all.len(), honest).await?;
        let weighed = self.window(all.clone()).await?;

        let mut report = Report::new("validator");
        report.figure("commitments", all.len() as f64, "");
        report.figure("of them junk", f64::from(self.size.junk), "");
        for (name, cost, later) in [
            ("honest seats alone", &alone, 1.0),
            ("junk without weight", &strangers, LATER),
            // Unbounded, as long as it is in time.
            ("junk with the most weight", &weighed, f64::INFINITY),
        ] {
            let Cost { fetched, seconds, processor, memory, files, lost, left } = cost;
            let Fetched { contributions, at_once_max, .. } = fetched;
            report.figure(format!("{name}: the last honest one after"), *seconds, "s, virtual");
            report.figure(format!("{name}: the same, over alone"), seconds / alone.seconds, "");
            report.figure(format!("{name}: processor time over alone"), processor / alone.processor, "");
            report.figure(format!("{name}: blocks left to attest"), f64::from(*left), "");
            report.figure(format!("{name}: fetches"), *contributions as f64, "");
            report.figure(format!("{name}: fetches at once"), *at_once_max as f64, "");
            report.figure(format!("{name}: files of contributions"), *files as f64, "");
            report.figure(format!("{name}: memory more than alone"), (memory - alone.memory) / MIB, "MiB");
            report.promise(lost.is_empty(), || {
                format!("{name}: {} honest seats were not attested, the first is {}", lost.len(), lost[0])
            });
            report.promise(*at_once_max <= IN_MEMORY, || {
                format!("{name}: {at_once_max} contributions in memory at once, and {IN_MEMORY} are allowed")
            });
            report.promise(*seconds <= later * alone.seconds, || {
                format!("{name}: {:.1} times as late as alone, at most {later:.1}", seconds / alone.seconds)
            });
            report.promise(memory - alone.memory <= CROWD_BYTES, || {
                format!("{name}: {:.0} MiB more than alone", (memory - alone.memory) / MIB)
            });
        }
        let files_max = usize::from(self.size.honest) + unweighted_max(&params());
        report.promise(strangers.files <= files_max, || {
            format!("strangers: {} files, at most {files_max}", strangers.files)
        });
        Ok(report)
    }

    /// Runs windows of `seats` until this many seats have a weight.
    async fn until_weighed(&mut self, weighed: usize, seats: std::ops::Range<u16>) -> anyhow::Result<()> {
        let first = self.state.window.0;
        loop {
            self.go_past(params().schedule.opens_at(self.state.window)).await;
            let has = self.chain.window_now(RUN, self.state.window).map_or(0, |view| view.weights.len());
            if has == weighed {
                return Ok(());
            }
            let window = self.state.window.0;
            ensure!(
                window - first < CONSENSUS_WINDOWS,
                "{has} of {weighed} seats have a weight in window {window}"
            );
            self.window(seats.clone()).await?;
        }
    }

    /// Makes blocks, one after each block time, until one after `block` is made.
    async fn go_past(&self, block: Block) {
        while self.chain.lock().head().block <= block {
            self.seal().await;
        }
    }

    async fn seal(&self) {
        tokio::time::sleep(Duration::from_millis(SLOT_DURATION)).await;
        self.chain.lock().seal();
    }

    /// Makes blocks until the validator's journal has such an entry, but not past `block`.
    async fn until<T>(&self, block: Block, found: impl Fn(&Entry) -> Option<T>) -> anyhow::Result<T> {
        loop {
            if let Some(found) = lock(&self.entries).iter().rev().find_map(&found) {
                return Ok(found);
            }
            let head = self.chain.lock().head().block;
            ensure!(head < block, "the validator did not get so far by block {}", block.0);
            self.seal().await;
        }
    }

    /// Runs one window in which `seats` commit.
    async fn window(&mut self, seats: std::ops::Range<u16>) -> anyhow::Result<Cost> {
        let (window, schedule) = (self.state.window, params().schedule);
        let end = schedule.opens_at(window.next());
        self.go_past(schedule.opens_at(window)).await;
        let holds = |entry: &Entry| matches!(entry, Entry::Holds { window: held, .. } if *held == window);
        self.until(schedule.commit_deadline(window), |entry| holds(entry).then_some(())).await?;
        let mut commits = Vec::new();
        for seat in seats {
            let (digest, bytes) = self.work(seat)?;
            let commit = pallet_windows::Call::commit { run: RUN, window, digest };
            commits.push((account(seat), RuntimeCall::from(commit)));
            if let Some(bytes) = bytes {
                let key = keys::contribution(RUN, window, &digest);
                self.stores[usize::from(seat)].put(&key, bytes.into()).await?;
            }
        }
        accepted(self.chain.lock().block(commits))?;
        *lock(&self.fetch.seen) = Fetched::default();
        self.go_past(schedule.commit_deadline(window)).await;
        let (began, processor) = (Instant::now(), processor_seconds()?);
        let attested = |entry: &Entry| match entry {
            Entry::Attested { window: of, valid, .. } if *of == window => Some(valid.clone()),
            _ => None,
        };
        let valid = self.until(end, attested).await?;
        let at = self.chain.lock().head().block;
        let judged = |entry: &Entry| matches!(entry, Entry::Judged { window: of, .. } if *of == window);
        // A window is judged in the next window's commit phase.
        let cost = Cost {
            fetched: std::mem::take(&mut *lock(&self.fetch.seen)),
            seconds: 0.0,
            processor: 0.0,
            memory: resident_bytes()? as f64,
            files: self.files.load(Relaxed),
            lost: (0..self.size.honest).map(Uid).filter(|uid| !valid.contains(uid)).collect(),
            left: schedule.attest_deadline(window).0.saturating_sub(at.0),
        };
        self.go_past(Block(end.0 - 1)).await;
        self.follower.step(&mut self.state, None).await?;
        ensure!(self.state.window == window.next(), "window {} is not over", window.0);
        self.until(schedule.commit_deadline(window.next()), |entry| judged(entry).then_some(())).await?;
        let seconds = cost.fetched.last_honest.map_or(0.0, |last| (last - began).as_secs_f64());
        Ok(Cost { seconds, processor: processor_seconds()? - processor, ..cost })
    }

    /// Returns a seat's commitment, and the object in its bucket under that name.
    fn work(&self, seat: u16) -> anyhow::Result<(Digest, Option<Vec<u8>>)> {
        let sealed = self.sealed(seat, Work::of(self.size, seat) == Work::Garbage)?;
        let digest = Digest::of(&sealed);
        Ok(match Work::of(self.size, seat) {
            Work::Honest | Work::Garbage | Work::Slow => (digest, Some(sealed)),
            Work::Absent => (digest, None),
            Work::TooLong => {
                let long = vec![seat as u8; self.follower.contribution_limits().max_bytes as usize + 1];
                (Digest::of(&long), Some(long))
            }
            Work::Other => (digest, Some(sealed.iter().rev().copied().collect())),
        })
    }

    /// Returns a signed contribution of small steps, made without training. If it is garbage, its last part is noise.
    fn sealed(&self, seat: u16, is_garbage: bool) -> anyhow::Result<Vec<u8>> {
        let schema = self.spec.schema()?;
        let mut noise = vec![0; 4 * schema.values()];
        let window = self.state.window;
        blake3::Hasher::new()
            .update(&seat.to_le_bytes())
            .update(&window.0.to_le_bytes())
            .finalize_xof()
            .fill(&mut noise);
        let step = |word: &[u8; 4]| (u32::from_le_bytes(*word) as f32 / 2.0f32.powi(31) - 1.0) * 1e-4;
        let values: Vec<f32> = noise.as_chunks().0.iter().map(step).collect();
        let mut body = contribution::encode(&schema, params().density, &values)?;
        if is_garbage {
            let from = body.len() - body.len() / 8;
            let length = body.len() - from;
            body[from..].copy_from_slice(&noise[..length]);
        }
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RUN,
            window,
            uid: Uid(seat),
            hotkey: hotkey(seat),
            base: self.state.lineage,
            schema: schema.digest(),
            density: params().density,
            trained: params().sequences_per_seat,
        };
        Ok(submission::seal(&header, &body, &Signer::new(key(seat), self.follower.chain.genesis())))
    }
}
