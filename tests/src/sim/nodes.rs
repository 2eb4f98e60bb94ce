//! Opens the nodes of a network: the programs' own miners and validators, on the simulation's chain, buckets and
//! clock.

use super::{
    buckets::{Buckets, Reader},
    chain::{SealedCall, SharedChain},
    network::{MinerSeat, ValidatorSeat},
    record::{Recorder, Reporting},
    world::{HELD_OUT, World},
};
use adversaries::act::ActingStrategy;
use chain_client::Chain as _;
use daemon::{Blocking, Codec, Entry, Follower, Journal, Node, Storage, SyncDriver};
use dataset::LossEstimate;
use ed25519_dalek::SigningKey;
use gauntlet::{NearDuplicate, Sketch, Sketches};
use miner::{
    progress::SnapshotInterval,
    run::{Miner, MinerOptions},
    shutdown::ShutdownHandle,
};
use model::RunSpec;
use nn::{Device, Evaluator, Trainer};
use protocol::{
    Digest, SeatId, Uid, Window,
    identity::Signer,
    lineage,
    view::{RunView, SeatView},
};
use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    error::Error,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};
use store::Store;
use validator::{
    evaluate::{self, Evaluate, EvaluateError, Job, Measurements},
    run::Validator,
    salt::Salts,
    signed_db::SignedDb,
};

const DEVICE: Device = Device::CPU;
/// Contributions that a validator of a small network evaluates in a window: all of them.
pub const EVALUATES_ALL: usize = 1_000;
/// Held-out sequences that a validator measures for its report. The observer measures the network's loss.
const VALIDATOR_HELD_OUT: u64 = 1;

/// The error that ended a node before its last window.
pub type NodeFailed = Box<dyn Error + Send + Sync>;

/// The parts that all nodes of a network share.
pub struct Shared {
    pub world: World,
    pub spec: RunSpec,
    pub run: RunView,
    pub seed: Digest,
    pub sent: Arc<Codec>,
    pub merged: Arc<Codec>,
    pub chain: SharedChain,
    pub buckets: Arc<Buckets>,
    pub recorder: Recorder,
    pub evaluations: Evaluations,
    /// Parent of the nodes' directories.
    pub home: PathBuf,
    /// Fetches per million that fail for a validator.
    pub failures_ppm: u32,
    /// Maximum number of contributions that a validator evaluates in a window.
    pub evaluations_max: usize,
    /// Share of a window's sequences that an honest miner trains before the window's model arrives.
    pub ahead: f64,
    pub pace: Option<f64>,
    /// Share of the residual with which an honest miner's training starts.
    pub residual_share: f64,
    /// Delay of an update of the model to a miner.
    pub update_delay: Duration,
    /// Executor of the nodes' blocking work.
    pub blocking: Blocking,
    /// Interval of miners' snapshots inside a window.
    pub snapshots: SnapshotInterval,
    pub windows: u32,
    /// True if the network ends even if nodes still run; nodes then run windows without an end.
    pub is_cut_off: bool,
    /// Names of nodes that may temporarily hold another model than the others.
    pub misled: BTreeSet<String>,
    /// Observer of all events.
    pub watch: Option<Watch>,
}

/// An event in a network.
pub enum Seen<'a> {
    /// A node wrote to its journal. Errors in it may name files below `home`, the parent of the nodes' directories.
    Entry { chain: &'a SharedChain, home: &'a Path, name: &'a str, entry: &'a Entry },
    /// A block was made.
    Block {
        chain: &'a SharedChain,
        calls: &'a [SealedCall],
        /// Write requests to each seat's bucket so far.
        writes: &'a BTreeMap<usize, u64>,
    },
}

/// Callback for all events of a network, in order.
pub type Watch = Arc<dyn Fn(Seen<'_>) + Send + Sync>;

/// The parts of one node.
#[derive(Clone)]
pub struct Seat {
    pub name: String,
    pub view: SeatView,
    pub key: SigningKey,
    pub store: Arc<dyn Store>,
    /// Handle that signs calls as the seat.
    pub chain: SharedChain,
    /// Index among the validators; `None` for a miner.
    pub validator_index: Option<usize>,
    /// Maximum size of the node's files, in bytes; 0: unlimited.
    pub bytes_max: Arc<AtomicU64>,
}

impl Shared {
    /// Returns the follower of a node. `seat` is `None` for a node without one.
    fn follower(&self, chain: &SharedChain, seat: Option<&Seat>) -> Follower {
        let validator_index = seat.and_then(|seat| seat.validator_index);
        let url = seat.map(|seat| seat.view.endpoint.clone()).unwrap_or_default();
        let number = validator_index.map_or(u64::MAX, |validator_index| validator_index as u64);
        let seed = Digest::of_parts(&[&self.seed.0, b"reader", &number.to_le_bytes()]);
        let failures_ppm = if validator_index.is_some() { self.failures_ppm } else { 0 };
        let is_miner = seat.is_some() && validator_index.is_none();
        let update_delay = if is_miner { self.update_delay } else { Duration::ZERO };
        let reader = Reader::new(self.buckets.clone(), url, seed, failures_ppm);
        Follower {
            chain: Arc::new(chain.clone()),
            fetch: Arc::new(reader.with_update_delay(update_delay)),
            run: self.run.clone(),
            spec: self.spec.clone(),
            sent: self.sent.clone(),
            merged: self.merged.clone(),
            keeps_buffer: validator_index.is_some(),
            turn: seat.map_or(0, |seat| usize::from(seat.view.id.uid.0)),
            storage: Storage::memory(),
            blocking: self.blocking,
        }
    }

    /// Opens the node of a seat from its directory, or joins the run if the directory is empty.
    async fn node(
        &self,
        seat: Seat,
        follower: Arc<Follower>,
        store: Arc<dyn Store>,
    ) -> Result<Node, NodeFailed> {
        let directory = self.directory(&seat.view.id);
        std::fs::create_dir_all(&directory)?;
        let mut journal = self.journal(seat.name);
        let (sync, _) = SyncDriver::open(follower, directory.join("model.state"), &mut journal).await?;
        let windows_max = (!self.is_cut_off).then(|| self.windows.saturating_sub(sync.window().0));
        Ok(Node {
            heads: sync.follower.chain.heads(),
            blocking: sync.follower.blocking,
            sync,
            store,
            dataset: self.world.dataset.clone(),
            signer: Signer::new(seat.key, seat.chain.genesis()),
            seat: seat.view,
            journal,
            directory,
            traffic: Box::new(|| (0, 0)),
            windows_max,
            witness: None,
            lock: None,
        })
    }

    fn journal(&self, name: String) -> Journal {
        let is_compared = !self.misled.contains(&name);
        let mut journal = Journal::in_memory(self.recorder.journal_of(name.clone(), is_compared));
        if let Some(watch) = self.watch.clone() {
            let (chain, home) = (self.chain.clone(), self.home.clone());
            journal.watch(Box::new(move |entry| {
                watch(Seen::Entry { chain: &chain, home: &home, name: &name, entry });
            }));
        }
        journal
    }

    pub fn directory(&self, seat: &SeatId) -> PathBuf {
        self.home.join(format!("seat-{}-{}", seat.uid.0, seat.registered_at.0))
    }
}

/// Runs a miner until the last window.
///
/// # Errors
/// If the node fails before the last window.
pub async fn mine(shared: Arc<Shared>, seat: Seat, behaviour: MinerSeat) -> Result<(), NodeFailed> {
    let follower = Arc::new(shared.follower(&seat.chain, Some(&seat)));
    let mut batch_sequences = shared.spec.recipe.batch;
    let strategy: Box<dyn miner::strategy::Strategy> = match behaviour {
        MinerSeat::Honest { share, batch } => {
            batch_sequences = batch;
            Box::new(PartTime { share, batch })
        }
        MinerSeat::Other(strategy) => strategy,
        MinerSeat::Adversary(adversary) => {
            let signer = Signer::new(seat.key.clone(), seat.chain.genesis());
            Box::new(ActingStrategy::new(adversary, follower.clone(), signer, seat.view.id.uid))
        }
    };
    let store = seat.store.clone();
    let node = shared.node(seat, follower, store).await?;
    let mut trainer = Trainer::new(&shared.spec.model, &shared.spec.recipe, DEVICE, &node.sync.state.theta)?;
    trainer.refuse_loss_above(miner::train::loss_max(shared.spec.model.vocab));
    let options = MinerOptions {
        // Training takes hardly any virtual time, so one block is enough.
        commit_margin_blocks: 1,
        batch_sequences,
        ahead: shared.ahead,
        pace: shared.pace,
        residual_share: shared.residual_share,
        snapshot_interval: shared.snapshots,
    };
    let shutdown = Arc::new(ShutdownHandle::default());
    Ok(Miner::open(node, trainer, strategy, options, shutdown).await?.run().await?)
}

/// A miner with time for `share` of its sequences, rounded down to whole steps of `batch`.
struct PartTime {
    share: f64,
    batch: usize,
}

impl miner::strategy::Strategy for PartTime {
    fn sequences(&mut self, _window: Window, mut assigned: Vec<u64>, _of: u64) -> Vec<u64> {
        let in_time = (assigned.len() as f64 * self.share) as usize / self.batch * self.batch;
        assigned.truncate(in_time);
        assigned
    }
}

/// Runs a validator until the last window. Its salts derive from `secret`.
///
/// # Errors
/// If the node fails before the last window.
pub async fn validate(
    shared: Arc<Shared>,
    seat: Seat,
    behaviour: ValidatorSeat,
    secret: [u8; 32],
) -> Result<(), NodeFailed> {
    let is_first = seat.validator_index == Some(0);
    let directory = shared.directory(&seat.view.id);
    let strategy: Box<dyn validator::strategy::Strategy> = match behaviour {
        ValidatorSeat::Honest if is_first => Box::new(Reporting(shared.recorder.clone())),
        ValidatorSeat::Honest => Box::new(validator::strategy::DefaultStrategy),
        ValidatorSeat::Adversary(strategy) => strategy,
    };
    let follower =
        Follower { keeps_buffer: strategy.computes(), ..shared.follower(&seat.chain, Some(&seat)) };
    let (store, genesis) = (seat.store.clone(), seat.chain.genesis());
    let node = shared.node(seat, Arc::new(follower), store).await?;
    let salts = Salts::new(&secret, &genesis);
    let (signed, _) = SignedDb::open(&directory, genesis, shared.run.id, 0)?;
    let evaluator = Box::new(shared.evaluations.clone());
    let mut validator = Validator::new(node, evaluator, signed, salts, strategy);
    validator.evaluation.contributions_max = shared.evaluations_max;
    validator.evaluation.held_out_sequences = VALIDATOR_HELD_OUT;
    Ok(validator.run().await?)
}

/// Follows the run without a seat and measures each window's model on held-out sequences.
///
/// # Errors
/// If the node fails, or a model cannot be measured.
pub async fn observe(shared: Arc<Shared>, chain: SharedChain, name: String) -> Result<(), NodeFailed> {
    let directory = shared.home.join(&name);
    std::fs::create_dir_all(&directory)?;
    let follower = Arc::new(shared.follower(&chain, None));
    let mut journal = shared.journal(name);
    let (mut sync, _) = SyncDriver::open(follower, directory.join("model.state"), &mut journal).await?;
    let dataset = &shared.world.dataset;
    let count = HELD_OUT.min(dataset.held_out_sequences());
    let sequences = Arc::new(dataset.held_out_sequences_at(&(0..count).collect::<Vec<_>>())?);
    let mut evaluator = Evaluator::new(&shared.spec.model, DEVICE, &sync.state.theta)?;
    let (mut heads, mut done) = (chain.heads(), None);
    loop {
        sync.sync_to_open_window(&mut heads, done, &mut None, &mut journal).await?;
        let window = sync.window();
        let (theta, sequences) = (sync.state.theta.clone(), sequences.clone());
        let measure = move || {
            let losses = evaluator.load(&theta).and_then(|()| evaluator.losses(&sequences));
            (evaluator, losses)
        };
        let losses;
        (evaluator, losses) = shared.blocking.run(measure).await;
        let losses = losses?;
        let loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        shared.recorder.held_out_loss(window, loss);
        if shared.windows <= window.0 {
            return Ok(());
        }
        done = Some(window);
    }
}

/// An evaluator that all validators share. It computes equal inputs only once.
#[derive(Clone)]
pub struct Evaluations(Arc<Mutex<Measured>>);

struct Measured {
    evaluator: Evaluator,
    dataset: Arc<dataset::Dataset>,
    window: Window,
    /// Measurements of single contributions.
    seats: BTreeMap<(Measurement, Uid, Digest), gauntlet::Measured>,
    held_out: BTreeMap<Measurement, LossEstimate>,
    /// Sketches by window and digest of the contribution.
    sketches: BTreeMap<(Window, Digest), Arc<Sketch>>,
    /// Near-duplicates by window and compared contributions.
    near_duplicates: BTreeMap<Digest, BTreeMap<Uid, NearDuplicate>>,
    /// Mean losses of models since the last change of window: root of the model, sequences, loss.
    losses: Vec<((Digest, Vec<u64>), f64)>,
}

/// Hash of all inputs of a measurement except the contribution.
type Measurement = Digest;

impl Evaluations {
    pub fn new(world: &World, theta: &[f32]) -> Result<Evaluations, nn::ModelError> {
        let measured = Measured {
            evaluator: Evaluator::new(&world.spec.model, DEVICE, theta)?,
            dataset: world.dataset.clone(),
            window: Window::FIRST,
            seats: BTreeMap::new(),
            held_out: BTreeMap::new(),
            sketches: BTreeMap::new(),
            near_duplicates: BTreeMap::new(),
            losses: Vec::new(),
        };
        Ok(Evaluations(Arc::new(Mutex::new(measured))))
    }
}

/// Returns the hash of the inputs of `job`'s measurements other than the contributions.
fn measurement(job: &Job) -> Measurement {
    let numbers =
        |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let norms: Vec<u64> =
        job.reference_norms.iter().map(|norm| norm.map_or(u64::MAX, f64::to_bits)).collect();
    let held_out = [job.held_out.start, job.held_out.end];
    Digest::of_parts(&[
        &lineage::weights_root(&job.theta).0,
        &job.seed.0,
        &numbers(&norms),
        &(job.common.len() as u64).to_le_bytes(),
        &numbers(&job.common),
        &numbers(&held_out),
    ])
}

impl Measured {
    /// Runs [`evaluate::measure`] on contributions that no validator has measured before.
    fn measure(
        &mut self,
        job: &Job,
        time_left: &mut dyn FnMut() -> bool,
    ) -> Result<Measurements, EvaluateError> {
        let started = Instant::now();
        let of = measurement(job);
        let is_new = |uid: &Uid| {
            let held = job.contributions.get(uid);
            held.is_some_and(|held| !self.seats.contains_key(&(of, *uid, held.digest)))
        };
        let order: Vec<Uid> = job.order.iter().copied().filter(is_new).collect();
        if !order.is_empty() || !self.held_out.contains_key(&of) {
            let contributions: BTreeMap<_, _> =
                order.iter().filter_map(|uid| Some((*uid, job.contributions.get(uid)?.clone()))).collect();
            let new = Job {
                theta: job.theta.clone(),
                codec: job.codec.clone(),
                reference_norms: job.reference_norms.clone(),
                assigned: job.assigned.clone(),
                common: job.common.clone(),
                held_out: job.held_out.clone(),
                earlier: Sketches::default(),
                contributions,
                order,
                ..*job
            };
            let measured = evaluate::measure(&mut self.evaluator, &self.dataset, &new, time_left)?;
            self.held_out.insert(of, measured.held_out);
            for (uid, seat) in measured.seats {
                self.seats.insert((of, uid, job.contributions[&uid].digest), seat);
            }
        }
        let mut sketches = job.earlier.clone();
        for (uid, held) in &job.contributions {
            let key = (job.window, held.digest);
            let sketch = match self.sketches.entry(key) {
                btree_map::Entry::Occupied(found) => found.get().clone(),
                btree_map::Entry::Vacant(place) => {
                    let Ok(read) = held.read() else { continue };
                    let update = job.codec.decode(read.body());
                    let update = update.map_err(|source| EvaluateError::Decode { uid: *uid, source })?;
                    place.insert(Arc::new(Sketch::of(&update))).clone()
                }
            };
            sketches.add(job.window, *uid, held.digest, sketch);
        }
        let seats = job.order.iter().filter_map(|uid| {
            let digest = job.contributions.get(uid)?.digest;
            Some((*uid, self.seats.get(&(of, *uid, digest))?.clone()))
        });
        let seats = seats.collect();
        let mut compared = blake3::Hasher::new();
        for (window, uid, digest) in sketches.contributions() {
            compared.update(&window.0.to_le_bytes()).update(&uid.0.to_le_bytes()).update(&digest.0);
        }
        let compared = Digest(*compared.finalize().as_bytes());
        let near_duplicates = self.near_duplicates.entry(compared);
        let near_duplicates = near_duplicates.or_insert_with(|| sketches.near_duplicates(job.window)).clone();
        let (held_out, seconds) = (self.held_out[&of], started.elapsed().as_secs_f64());
        Ok(Measurements { held_out, seats, near_duplicates, sketches, seconds })
    }
}

impl Evaluate for Evaluations {
    fn measure(
        &mut self,
        job: &Job,
        time_left: &mut dyn FnMut() -> bool,
    ) -> Result<Measurements, EvaluateError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.window != job.window {
            shared.window = job.window;
            shared.seats.clear();
            shared.held_out.clear();
            shared.sketches.retain(|(window, _), _| job.window <= *window);
            shared.near_duplicates.clear();
            shared.losses.clear();
        }
        shared.measure(job, time_left)
    }

    fn mean_loss(&mut self, theta: &[f32], sequences: &[u64]) -> Result<f64, EvaluateError> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Measured { evaluator, dataset, losses, .. } = &mut *shared;
        let subject = (lineage::weights_root(theta), sequences.to_vec());
        if let Some((_, loss)) = losses.iter().find(|(of, _)| *of == subject) {
            return Ok(*loss);
        }
        let loss = evaluate::mean_loss(evaluator, dataset, theta, sequences)?;
        losses.push((subject, loss));
        Ok(loss)
    }
}
