//! One network: the programs' own loops on one thread, in virtual time.
//!
//! Tokio's clock is paused and advances when every task waits. The network seals a block after each block time. A
//! node's work takes no virtual time, or a fixed one on a [second thread](super::second_thread). So a window takes as
//! long as its computation, and the order of all events derives from the seed.

use super::{
    buckets::{Buckets, OwnBucket},
    chain::{Refusal, Sealing, SharedChain, SimChain},
    nodes::{self, Evaluations, NodeFailed, Seat, Seen, Shared, Watch},
    planted::{self, Planted},
    record::{History, Recorder, WindowRecord},
    second_thread::SECOND_THREAD,
    world::{BATCH, MTL, World},
};
use adversaries::Adversary;
use chain_client::{Call, Chain as _, ChainError};
use daemon::{Blocking, Codec, FollowError, durable::FileError};
use dataset::durable::pending_prefix;
use ed25519_dalek::SigningKey;
use mettle_runtime::{AccountId, RuntimeCall, SLOT_DURATION};
use miner::{
    contribution_store::SnapshotError,
    error::RunError,
    progress::SnapshotInterval,
    run::{AHEAD, RESIDUAL_SHARE},
};
use model::{RunSpec, init_flat};
use protocol::{Block, Digest, Role, RunId, RunParams, Window, lineage};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sp_keyring::Sr25519Keyring;
use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    error::Error,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use store::faults::Faults;
use tokio::task::{AbortHandle, JoinSet, LocalSet};
use validator::strategy::Strategy;

pub const RUN: RunId = RunId(0);
const OWNER: Sr25519Keyring = Sr25519Keyring::Alice;
const COLDKEY: Sr25519Keyring = Sr25519Keyring::Bob;
const VALIDATOR_STAKE: u128 = 1_000 * MTL;
const TREASURY: u128 = 100_000 * MTL;
/// Name of a node that joins late.
pub const LATE_JOINER: &str = "late joiner";
/// Windows after the last one until a running node counts as stuck.
const GRACE_WINDOWS: u32 = 2;

/// The miner of a seat.
pub enum MinerSeat {
    /// Works honestly, with time for `share` of its sequences, in steps of `batch`.
    Honest {
        share: f64,
        batch: usize,
    },
    Adversary(Box<dyn Adversary>),
    /// Follows the strategy.
    Other(Box<dyn miner::strategy::Strategy>),
}

/// The validator of a seat.
pub enum ValidatorSeat {
    Honest,
    Adversary(Box<dyn Strategy>),
}

/// The seats of a network, and its faults.
pub struct Cast {
    pub seed: u64,
    /// Names and behaviour. Uids follow this order, and miners precede validators.
    pub miners: Vec<(String, MinerSeat)>,
    /// The first one is honest: the record uses its scores.
    pub validators: Vec<(String, ValidatorSeat)>,
    /// The stake of an honest validator, as a multiple of an adversary's.
    pub honest_stake: u128,
    /// True if honest validators share their salts, so that they share one evaluation. An adversary always has the
    /// salts of the first honest validator.
    pub same_evaluation: bool,
    /// Fetches per million that fail for a validator.
    pub failures_ppm: u32,
    /// Maximum number of contributions that a validator evaluates in a window.
    pub evaluations_max: usize,
    /// Share of a window's sequences that an honest miner trains before the window's model arrives.
    pub ahead: f64,
    /// Assumed pace of an honest miner for its schedule of training ahead, in sequences per block: training takes
    /// hardly any virtual time. `None`: the measured pace, so that miners train ahead only if the model is late.
    pub pace: Option<f64>,
    /// Share of the residual with which an honest miner's training starts.
    pub residual_share: f64,
    /// Delay of an update of the model to a miner.
    pub update_delay: Duration,
    pub restarts: Vec<Restart>,
    pub outages: Vec<Outage>,
    pub rewind_votes: Vec<RewindVote>,
    /// Heads at which nodes without a seat join.
    pub late_joins: Vec<Block>,
    /// Timed faults, in any order.
    pub events: Vec<Timed>,
    /// Maximum latency of the chain's answers.
    pub latency_max: Duration,
    /// Executor of the nodes' blocking work.
    pub blocking: Blocking,
    /// Observer of all events.
    pub watch: Option<Watch>,
    /// Planted error, for tests of the checks.
    pub planted: Option<Planted>,
    /// Names of seats whose nodes may fail or never end.
    pub expendable: BTreeSet<String>,
    /// Names of seats whose nodes temporarily see another chain and may hold its model.
    pub misled: BTreeSet<String>,
    /// True if the network ends after the last window even if nodes still run. Otherwise each node has to end by
    /// itself, and a node that missed windows runs as many more.
    pub is_cut_off: bool,
}

impl Cast {
    /// Returns a network without faults.
    pub fn new(
        seed: u64,
        miners: Vec<(String, MinerSeat)>,
        validators: Vec<(String, ValidatorSeat)>,
    ) -> Cast {
        Cast {
            seed,
            miners,
            validators,
            honest_stake: 1,
            same_evaluation: false,
            failures_ppm: 0,
            evaluations_max: nodes::EVALUATES_ALL,
            ahead: AHEAD,
            pace: None,
            residual_share: RESIDUAL_SHARE,
            update_delay: Duration::ZERO,
            restarts: Vec::new(),
            outages: Vec::new(),
            rewind_votes: Vec::new(),
            late_joins: Vec::new(),
            events: Vec::new(),
            latency_max: Duration::ZERO,
            blocking: Blocking::Inline,
            watch: None,
            planted: None,
            expendable: BTreeSet::new(),
            misled: BTreeSet::new(),
            is_cut_off: false,
        }
    }
}

/// The start or the end of a fault. Seats are uids of honest seats.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Aborts the task of a node at any await point.
    Kill { seat: usize, leaves: Leaves },
    /// Opens a killed node from its directory.
    Open { seat: usize },
    /// Replaces the faults of a bucket, for its owner and for readers.
    Inject { seat: usize, faults: Box<Faults> },
    /// Shows a node heads this many blocks late.
    Lag { seat: usize, blocks: u32 },
    /// Delays the inclusion of each call by up to this many blocks, in random order.
    DelayCalls { blocks: u32 },
    /// Stops or resumes answering a node's requests to the chain. A node that gives up is restarted.
    Silence { seat: usize, is_silent: bool },
    /// Stops finality, or lets it catch up with the best block.
    Stall { is_stalled: bool },
    /// Replaces the blocks that are not final. Their calls move to other blocks, or are lost until their clients
    /// resubmit them.
    Reorganise { are_lost: bool },
    /// Upgrades the chain's runtime, or lets its clients reconnect.
    Upgrade { is_over: bool },
    /// Starts or stops showing the best block as final to a node.
    ShowBest { seat: usize, is_shown: bool },
    /// Pins the state that a node reads to the current one, or to the latest again.
    HoldBack { seat: usize, is_held: bool },
    /// Withholds the results of its calls from a node, or delivers them again. A node that gives up is restarted.
    KeepResults { seat: usize, are_kept: bool },
    /// Limits the size of a node's files, like a full disk. A write beyond the limit is torn.
    LimitFiles { seat: usize, bytes: Option<u64> },
    /// Registers another miner, which joins once its seat exists.
    Register,
    /// Stops a node permanently and deregisters its seat.
    Leave { seat: usize },
}

/// State of a node's large files after a kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    Whole,
    /// The next version of each file is half written.
    Unfinished,
    /// The same, and the last version was already renamed to a backup.
    Renamed,
    /// Half of each newest version is lost, because the disk did not sync.
    Truncated,
}

/// An event and its time: after the head `at`, less than a block time later.
#[derive(Clone, Debug, PartialEq)]
pub struct Timed {
    pub at: Block,
    pub after: Duration,
    pub event: Event,
}

/// A vote of a validator's coldkey to rewind to an earlier checkpoint (PROT-20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewindVote {
    /// The seat's uid.
    pub seat: usize,
    /// Head at which the vote is submitted.
    pub at: Block,
    /// Window of the checkpoint.
    pub to: Window,
}

/// Disconnects a seat. Seats that are disconnected together exchange objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The seat's uid.
    pub seat: usize,
    /// Head before the first block that does not reach the seat.
    pub from: Block,
    /// Head before the first block that reaches the seat again.
    pub until: Block,
    pub link: Link,
}

/// A connection that an outage interrupts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// All connections.
    All,
    /// New heads to the seat.
    Heads,
    /// The seat's calls to the chain.
    Calls,
    /// The seat's reads from the buckets of others.
    Reads,
    /// Reads by others from its bucket.
    Readers,
}

impl Outage {
    fn cuts(&self, link: Link) -> bool {
        self.link == Link::All || self.link == link
    }
}

/// Kills a node and reopens it from its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The uid of an honest seat that does all its work.
    pub seat: usize,
    /// Head at which the node is killed, before the next block.
    pub at: Block,
}

/// An error that stops a simulation. The behaviour of a seat cannot cause one.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("the model could not be evaluated")]
    Model(#[from] nn::ModelError),
    #[error("the model's shape cannot be used")]
    Shape(#[from] model::ConfigError),
    #[error("the codec cannot be made")]
    Codec(#[from] daemon::codec::LayoutError),
    #[error("could not create the executor or the nodes' directory")]
    Io(#[from] std::io::Error),
    #[error("the chain refused {what}: {refusal}")]
    Refused { what: &'static str, refusal: Refusal },
    #[error("the node {name} failed")]
    Node { name: String, source: NodeFailed },
    #[error("a node panicked")]
    Panicked(#[from] tokio::task::JoinError),
    #[error("in window {window} the model of {name} differs from the other nodes'")]
    Diverged { window: u32, name: String },
    #[error("window {window} was not finalised")]
    NotFinalised { window: u32 },
    #[error("at block {block} these have not finished the last window: {}", names.join(", "))]
    Stuck { block: u32, names: Vec<String> },
}

/// A node's task, which runs to the node's end.
type Task = Pin<Box<dyn Future<Output = Result<(), NodeFailed>>>>;

/// The name and result of a node's task.
type Ended = (String, Result<(), NodeFailed>);

/// A network before its first window.
pub struct Network<'a> {
    world: &'a World,
    cast: Cast,
    seed: Digest,
    chain: SharedChain,
    spec: RunSpec,
    theta: Vec<f32>,
}

/// Returns the hotkey of seat `index`.
fn key(seed: &Digest, index: usize) -> SigningKey {
    let seed = Digest::of_parts(&[&seed.0, b"hotkey", &(index as u64).to_le_bytes()]);
    SigningKey::from_bytes(&seed.0)
}

fn account(key: &SigningKey) -> AccountId {
    AccountId::from(key.verifying_key().to_bytes())
}

/// Returns the base URL of the bucket of seat `index`.
fn url(index: usize) -> String {
    format!("https://seat-{index}.invalid")
}

fn bounded(text: &str) -> pallet_registry::Url {
    text.as_bytes().to_vec().try_into().expect("these URLs are short")
}

impl<'a> Network<'a> {
    /// Creates the run on a new chain and registers every seat.
    ///
    /// # Errors
    /// If the model is invalid or the chain refuses a call.
    pub fn new(world: &'a World, cast: Cast) -> Result<Network<'a>, SimError> {
        let seed = Digest::of_parts(&[b"mettle 1 simulation", &cast.seed.to_le_bytes()]);
        let theta = init_flat(&world.spec.model, cast.seed)?;
        let spec = RunSpec { seed: cast.seed, ..world.spec.clone() };
        let mut chain = SimChain::new(seed);
        let create = pallet_registry::Call::create_run {
            params: world.params,
            terms: world.terms,
            spec: spec.digest(),
            manifest: world.dataset.digest(),
            theta0: lineage::weights_root(&theta),
            published_at: bounded("https://origin.invalid"),
        };
        let fund = pallet_rewards::Call::fund { run: RUN, amount: TREASURY };
        let owner = OWNER.to_account_id();
        accepted("the run", chain.block(vec![(owner.clone(), create.into()), (owner, fund.into())]))?;
        let chain = SharedChain::new(chain, Sealing::Manual).with_latency(cast.latency_max);
        let network = Network { world, cast, seed, chain, spec, theta };
        let registrations = (0..network.seats()).map(|index| network.registration(index)).collect();
        let registered = network.chain.lock().block(registrations);
        accepted("a seat", registered)?;
        Ok(network)
    }

    fn seats(&self) -> usize {
        self.cast.miners.len() + self.cast.validators.len()
    }

    fn key(&self, index: usize) -> SigningKey {
        key(&self.seed, index)
    }

    fn faults(&self, index: usize) -> Faults {
        match self.cast.miners.get(index) {
            Some((_, MinerSeat::Adversary(adversary))) => adversary.faults(),
            _ => Faults::default(),
        }
    }

    fn registration(&self, index: usize) -> (AccountId, RuntimeCall) {
        let (role, stake) = match index.checked_sub(self.cast.miners.len()) {
            None => (Role::Miner, MTL),
            Some(validator_index) => match self.cast.validators[validator_index].1 {
                ValidatorSeat::Honest => (Role::Validator, VALIDATOR_STAKE * self.cast.honest_stake),
                ValidatorSeat::Adversary(_) => (Role::Validator, VALIDATOR_STAKE),
            },
        };
        let (coldkey, chain) = (COLDKEY.to_account_id(), self.chain.lock());
        chain.registration(coldkey, &self.key(index), RUN, role, &url(index), stake)
    }

    /// Returns the secret from which a validator derives its salts.
    fn secret(&self, validator_index: usize) -> [u8; 32] {
        let miners = self.cast.miners.len();
        let is_honest = matches!(self.cast.validators[validator_index].1, ValidatorSeat::Honest);
        let owner = if self.cast.same_evaluation || !is_honest { 0 } else { validator_index };
        Digest::of(&self.key(miners + owner).to_bytes()).0
    }

    /// Runs every node for `windows` windows.
    ///
    /// # Errors
    /// If a node fails or gets stuck, the models diverge, or a window is not finalised.
    pub fn run(self, windows: u32) -> Result<History, SimError> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
        let memory = Path::new("/dev/shm");
        let home = if memory.is_dir() { tempfile::tempdir_in(memory)? } else { tempfile::tempdir()? };
        LocalSet::new().block_on(&runtime, self.simulate(windows, home.path()))
    }

    async fn simulate(self, windows: u32, home: &Path) -> Result<History, SimError> {
        let (params, miners) = (self.world.params, self.cast.miners.len());
        let schema = self.spec.schema()?;
        let shared = Arc::new(Shared {
            world: self.world.clone(),
            spec: self.spec.clone(),
            run: self.chain.run_now(RUN).expect("the network created the run"),
            seed: self.seed,
            sent: Arc::new(Codec::new(&schema, params.density)?),
            merged: Arc::new(Codec::new(&schema, params.merge_density)?),
            chain: self.chain.clone(),
            buckets: Arc::new(Buckets::default()),
            recorder: Recorder::default(),
            evaluations: Evaluations::new(self.world, &self.theta)?,
            home: home.to_owned(),
            failures_ppm: self.cast.failures_ppm,
            evaluations_max: self.cast.evaluations_max,
            ahead: self.cast.ahead,
            pace: self.cast.pace,
            residual_share: self.cast.residual_share,
            update_delay: self.cast.update_delay,
            blocking: self.cast.blocking,
            // Only a miner that is killed reads a snapshot.
            snapshots: match self.cast.restarts.is_empty() && self.cast.events.is_empty() {
                true => SnapshotInterval::Never,
                false => SnapshotInterval::Steps(1),
            },
            windows,
            is_cut_off: self.cast.is_cut_off,
            misled: self.cast.misled.clone(),
            watch: self.cast.watch.clone(),
        });
        let chain = self.chain.clone();
        let stakes = chain.seats_now(RUN).iter().map(|seat| seat.stake as f64 / MTL as f64).collect();
        let (seed, restarts) = (self.cast.seed, self.cast.restarts.clone());
        let outages = self.cast.outages.clone();
        let (rewind_votes, late_joins) = (self.cast.rewind_votes.clone(), self.cast.late_joins.clone());
        let (mut rewound, planted) = (None, self.cast.planted);
        let mut events = self.cast.events.clone();
        events.sort_by_key(|timed| (timed.at, timed.after));
        let mut events = VecDeque::from(events);
        let mut nodes = self.start(shared.clone());

        if planted == Some(Planted::FollowsBestBlock) {
            chain.lock().show_best_to_all();
        }
        if planted == Some(Planted::TrustsInclusion) {
            chain.lock().trust_inclusion();
        }
        let mut records: Vec<WindowRecord> = Vec::new();
        // Records the window whose last block is the finalised head.
        let record = |records: &mut Vec<WindowRecord>| {
            let window = Window(records.len() as u32);
            let head = chain.lock().head().block;
            if window.0 < windows && head.0 + 1 == params.schedule.opens_at(window.next()).0 {
                let record = shared.recorder.window(&chain, RUN, &params, miners, window);
                records.push(record.ok_or(SimError::NotFinalised { window: window.0 })?);
            }
            Ok::<(), SimError>(())
        };
        let last_block = params.schedule.opens_at(Window(windows.saturating_add(GRACE_WINDOWS)));
        // By then every node that keeps up holds the model after the last window.
        let end_block = Block(params.schedule.opens_at(Window(windows)).0.saturating_add(2));
        while !nodes.running.is_empty() {
            let (slot, head) = (Duration::from_millis(SLOT_DURATION), chain.lock().best());
            let mut passed = Duration::ZERO;
            while let Some(timed) = events.pop_front_if(|timed| timed.at <= head) {
                let after = timed.after.clamp(passed, slot);
                tokio::time::sleep(after - passed).await;
                passed = after;
                nodes.happen(timed.event).await?;
            }
            tokio::time::sleep(slot - passed).await;
            record(&mut records)?;
            let finalised = chain.lock().head().block;
            if shared.is_cut_off && end_block <= finalised {
                break;
            }
            if last_block <= finalised {
                return Err(SimError::Stuck { block: head.0, names: nodes.running });
            }
            for restart in restarts.iter().filter(|restart| restart.at == head) {
                nodes.restart(*restart).await?;
            }
            nodes.cut_off(outages.iter().filter(|outage| outage.from <= head && head < outage.until));
            rewind_votes.iter().filter(|vote| vote.at == head).for_each(|vote| nodes.vote_rewind(*vote));
            for _ in late_joins.iter().filter(|at| **at == head) {
                nodes.join_late();
            }
            chain.lock().produce();
            while chain.lock().can_finalise() {
                // The blocks that become final together may end more than one window.
                record(&mut records)?;
                let calls = chain.lock().finalise().unwrap_or_default();
                let head = chain.lock().head().block;
                if let Some(planted) = planted
                    && head.0.is_multiple_of(epoch_blocks(&params))
                {
                    chain.lock().change(|| planted.err(RUN));
                }
                if let Some(watch) = &shared.watch {
                    let writes = nodes.injected.iter().map(|(seat, store)| (*seat, store.writes())).collect();
                    watch(Seen::Block { chain: &chain, calls: &calls, writes: &writes });
                }
            }
            nodes.join_registered();
            nodes.open_fallen();
            let last = chain.run_now(RUN).and_then(|run| run.rewound);
            if let Some(window) = last.filter(|_| last != rewound) {
                // Nodes held another model of this window before the rewind opened it again.
                shared.recorder.rewound(window);
                rewound = last;
            }
            nodes.reap()?;
        }
        if let Some((window, name)) = shared.recorder.diverged() {
            return Err(SimError::Diverged { window: window.0, name });
        }
        let end = Window(windows);
        let not_finalised = || SimError::NotFinalised { window: windows.saturating_sub(1) };
        let bytes_read = nodes.seats.iter().map(|seat| seat.chain.bytes_read()).collect();
        Ok(History {
            stakes,
            seed,
            bytes_read,
            seats: nodes.seats.into_iter().map(|seat| seat.name).collect(),
            miners,
            windows: records,
            held_out_loss: shared.recorder.loss_of(end).ok_or_else(not_finalised)?,
            lineage: shared.recorder.lineage_of(end).ok_or_else(not_finalised)?.to_string(),
            resumed: shared.recorder.resumed(),
            joined: shared.recorder.joined(),
            answers: shared.recorder.answers(),
            abstained: shared.recorder.abstained(),
            state_root: chain.lock().state_root().to_string(),
        })
    }

    /// Starts the task of each seat and of the observer.
    fn start(self, shared: Arc<Shared>) -> Nodes {
        let miners = self.cast.miners.len();
        let views = self.chain.seats_now(RUN);
        // Only networks with events change a bucket's faults.
        let is_injected = |index: &usize| {
            !self.cast.events.is_empty()
                && !matches!(self.cast.miners.get(*index), Some((_, MinerSeat::Adversary(_))))
        };
        let injected: BTreeMap<usize, Arc<OwnBucket>> = (0..views.len())
            .filter(is_injected)
            .map(|index| (index, shared.buckets.add_injected(&url(index), index as u64)))
            .collect();
        // Miners subscribe first, so they receive each head first and validators find the objects uploaded at it.
        let names = self
            .cast
            .miners
            .iter()
            .map(|(name, _)| name)
            .chain(self.cast.validators.iter().map(|(name, _)| name));
        let seats: Vec<Seat> = names
            .zip(views)
            .enumerate()
            .map(|(index, (name, view))| Seat {
                name: name.clone(),
                view,
                key: self.key(index),
                store: match injected.get(&index) {
                    Some(store) => store.clone(),
                    None => shared.buckets.add_faulty(&url(index), self.faults(index)),
                },
                chain: self.chain.signed_by(account(&self.key(index))),
                validator_index: index.checked_sub(miners),
                bytes_max: Arc::default(),
            })
            .collect();
        let secrets =
            (0..self.cast.validators.len()).map(|validator_index| self.secret(validator_index)).collect();
        let tasks = JoinSet::new();
        let (planted, expendable) = (self.cast.planted, self.cast.expendable.clone());
        let mut nodes = Nodes {
            shared,
            seats,
            secrets,
            tasks,
            handles: Vec::new(),
            running: Vec::new(),
            expendable,
            injected,
            registered: 0,
            fallen: Vec::new(),
            planted,
        };
        for (index, (_, behaviour)) in self.cast.miners.into_iter().enumerate() {
            let handle = nodes.start_miner(index, behaviour);
            nodes.handles.push(handle);
        }
        for (validator_index, (_, behaviour)) in self.cast.validators.into_iter().enumerate() {
            let handle = nodes.start_validator(miners + validator_index, behaviour);
            nodes.handles.push(handle);
        }
        nodes.observe("the observer");
        nodes
    }
}

/// The running nodes of a network.
struct Nodes {
    shared: Arc<Shared>,
    seats: Vec<Seat>,
    /// The secrets from which validators derive their salts.
    secrets: Vec<[u8; 32]>,
    tasks: JoinSet<Ended>,
    /// Tasks by uid.
    handles: Vec<AbortHandle>,
    /// Names of the running nodes, except expendable ones.
    running: Vec<String>,
    /// Names of the nodes that may fail or never end.
    expendable: BTreeSet<String>,
    /// Buckets whose faults can be changed, by uid.
    injected: BTreeMap<usize, Arc<OwnBucket>>,
    /// Number of miners registered since the start whose nodes have not started.
    registered: usize,
    /// Seats whose nodes ended and must be restarted.
    fallen: Vec<usize>,
    planted: Option<Planted>,
}

impl Nodes {
    fn spawn(&mut self, name: String, task: Task) -> AbortHandle {
        if !self.expendable.contains(&name) {
            self.running.push(name.clone());
        }
        self.tasks.spawn_local(async move { (name, task.await) })
    }

    fn start_miner(&mut self, index: usize, behaviour: MinerSeat) -> AbortHandle {
        let seat = self.seats[index].clone();
        let name = seat.name.clone();
        let bytes_max = seat.bytes_max.clone();
        let node = nodes::mine(self.shared.clone(), seat, behaviour);
        self.spawn(name, Box::pin(Limited { node: Box::pin(node), bytes_max }))
    }

    fn start_validator(&mut self, index: usize, behaviour: ValidatorSeat) -> AbortHandle {
        let seat = self.seats[index].clone();
        let (name, secret) = (seat.name.clone(), self.secrets[seat.validator_index.unwrap_or(0)]);
        let bytes_max = seat.bytes_max.clone();
        let node = nodes::validate(self.shared.clone(), seat, behaviour, secret);
        self.spawn(name, Box::pin(Limited { node: Box::pin(node), bytes_max }))
    }

    /// Starts a node without a seat from an empty directory.
    fn observe(&mut self, name: &str) {
        let mut chain = self.shared.chain.signed_by(OWNER.to_account_id());
        if self.planted == Some(Planted::WrongLineage) {
            chain = chain.that_lies_about(Window(2));
        }
        let observer = nodes::observe(self.shared.clone(), chain, name.to_owned());
        self.spawn(name.to_owned(), Box::pin(observer));
    }

    fn join_late(&mut self) {
        self.observe(LATE_JOINER);
    }

    /// Submits a vote by the coldkey, for inclusion in the block after the next one.
    fn vote_rewind(&mut self, vote: RewindVote) {
        let (chain, uid) =
            (self.shared.chain.signed_by(COLDKEY.to_account_id()), self.seats[vote.seat].view.id.uid);
        let call = Call::VoteRewind { run: RUN, uid, to: Some(vote.to) };
        let submitted = async move {
            chain.submit(call).await?;
            Ok::<(), NodeFailed>(())
        };
        self.spawn("the coldkey".to_owned(), Box::pin(submitted));
    }

    /// Kills the node of an honest seat and reopens it from its directory.
    async fn restart(&mut self, restart: Restart) -> Result<(), SimError> {
        self.kill(restart.seat, Leaves::Whole).await?;
        self.open(restart.seat);
        Ok(())
    }

    fn ended(&mut self, name: &str) {
        if let Some(at) = self.running.iter().position(|running| running == name) {
            self.running.swap_remove(at);
        }
    }

    async fn kill(&mut self, seat: usize, leaves: Leaves) -> Result<(), SimError> {
        if !self.handles[seat].is_finished() {
            self.ended(&self.seats[seat].name.clone());
        }
        self.handles[seat].abort();
        while !self.handles[seat].is_finished() {
            tokio::task::yield_now().await;
        }
        self.fallen.retain(|fallen| *fallen != seat);
        leave(&self.shared.directory(&self.seats[seat].view.id), leaves)?;
        self.reap()
    }

    /// Opens the node of an honest seat from its directory, unless it is open.
    fn open(&mut self, seat: usize) {
        if !self.handles[seat].is_finished() {
            return;
        }
        let directory = self.shared.directory(&self.seats[seat].view.id);
        self.handles[seat] = if self.seats[seat].validator_index.is_none() {
            if self.planted == Some(Planted::LostCommitment) {
                remove(&directory, "miner.");
            }
            self.start_miner(seat, planted::miner(self.planted))
        } else {
            let mut validator = planted::validator(self.planted);
            if self.planted == Some(Planted::ForgottenSignatures) {
                remove(&directory, "signed.");
                validator = ValidatorSeat::Adversary(Box::new(planted::SeesOneLess));
            }
            self.start_validator(seat, validator)
        };
    }

    /// Restarts nodes that ended, as a service manager does.
    fn open_fallen(&mut self) {
        std::mem::take(&mut self.fallen).into_iter().for_each(|seat| self.open(seat));
    }

    /// Starts or ends a fault.
    async fn happen(&mut self, event: Event) -> Result<(), SimError> {
        let account = |seat: usize| AccountId::from(self.seats[seat].view.hotkey.0);
        match event {
            Event::Kill { seat, leaves } => self.kill(seat, leaves).await?,
            Event::Open { seat } => self.open(seat),
            Event::Inject { seat, faults } => {
                self.injected.get(&seat).into_iter().for_each(|store| store.inject((*faults).clone()));
            }
            Event::Lag { seat, blocks } => self.shared.chain.lock().lag(&account(seat), blocks),
            Event::DelayCalls { blocks } => self.shared.chain.lock().delay_calls(blocks),
            Event::Silence { seat, is_silent } => self.shared.chain.lock().silence(account(seat), is_silent),
            Event::Stall { is_stalled } => self.shared.chain.lock().stall(is_stalled),
            Event::Reorganise { are_lost } => self.shared.chain.lock().reorganise(are_lost),
            Event::Upgrade { is_over: false } => self.shared.chain.lock().upgrade(),
            Event::Upgrade { is_over: true } => self.shared.chain.lock().upgraded(),
            Event::ShowBest { seat, is_shown } => self.shared.chain.lock().show_best(account(seat), is_shown),
            Event::HoldBack { seat, is_held } => self.shared.chain.lock().hold_back(account(seat), is_held),
            Event::KeepResults { seat, are_kept } => {
                self.shared.chain.lock().keep_results(account(seat), are_kept);
            }
            Event::LimitFiles { seat, bytes } => {
                self.seats[seat].bytes_max.store(bytes.unwrap_or_default(), Ordering::Relaxed);
            }
            Event::Register => {
                let index = self.seats.len() + self.registered;
                self.registered += 1;
                let mut chain = self.shared.chain.lock();
                let key = key(&self.shared.seed, index);
                let (coldkey, call) =
                    chain.registration(COLDKEY.to_account_id(), &key, RUN, Role::Miner, &url(index), MTL);
                drop(chain.submit(coldkey, call));
            }
            Event::Leave { seat } => {
                self.kill(seat, Leaves::Whole).await?;
                let uid = self.seats[seat].view.id.uid;
                let call = pallet_registry::Call::leave { run: RUN, uid };
                drop(self.shared.chain.lock().submit(COLDKEY.to_account_id(), call.into()));
            }
        }
        Ok(())
    }

    /// Starts the nodes of miners whose seats now exist.
    fn join_registered(&mut self) {
        while 0 < self.registered {
            let index = self.seats.len();
            let key = key(&self.shared.seed, index);
            let hotkey = key.verifying_key().to_bytes();
            let views = self.shared.chain.seats_now(RUN);
            let Some(view) = views.into_iter().find(|view| view.hotkey.0 == hotkey) else { return };
            self.registered -= 1;
            let store = self.shared.buckets.add_injected(&url(index), index as u64);
            self.injected.insert(index, store.clone());
            let chain = self.shared.chain.signed_by(account(&key));
            let name = format!("joiner-{index}");
            let bytes_max = Arc::default();
            self.seats.push(Seat { name, view, key, store, chain, validator_index: None, bytes_max });
            let handle = self.start_miner(index, MinerSeat::Honest { share: 1.0, batch: BATCH });
            self.handles.push(handle);
        }
    }

    /// Applies these outages and connects everything else.
    fn cut_off<'a>(&self, outages: impl Iterator<Item = &'a Outage>) {
        let outages: Vec<&Outage> = outages.collect();
        let seats = |link| {
            let cut = outages.iter().filter(move |outage| outage.cuts(link));
            cut.map(|outage| &self.seats[outage.seat].view)
        };
        let accounts = |link| seats(link).map(|seat| AccountId::from(seat.hotkey.0)).collect();
        let urls = |link| seats(link).map(|seat| seat.endpoint.clone()).collect();
        self.shared.buckets.cut_off(urls(Link::Reads), urls(Link::Readers));
        self.shared.chain.lock().cut_off(accounts(Link::Heads), accounts(Link::Calls));
    }

    /// Returns whether a node that was shown another chain found that its model differs from the chain's.
    fn is_misled(&self, name: &str, error: &(dyn Error + 'static)) -> bool {
        let mut cause = Some(error).filter(|_| self.shared.misled.contains(name));
        while let Some(error) = cause {
            if matches!(error.downcast_ref(), Some(FollowError::Diverged { .. })) {
                return true;
            }
            cause = error.source();
        }
        false
    }

    /// Collects the results of the nodes that have ended.
    fn reap(&mut self) -> Result<(), SimError> {
        while let Some(ended) = self.tasks.try_join_next() {
            match ended {
                Ok((name, Ok(()))) => self.ended(&name),
                Ok((name, Err(_))) if self.expendable.contains(&name) => {}
                Ok((name, Err(error))) if is_restarted(&*error) || self.is_misled(&name, &*error) => {
                    let seat = self.seats.iter().position(|seat| seat.name == name);
                    // Do as the error says.
                    for seat in seat.iter().filter(|_| self.is_misled(&name, &*error)) {
                        remove(&self.shared.directory(&self.seats[*seat].view.id), "model.");
                    }
                    self.ended(&name);
                    self.fallen.extend(seat);
                }
                Ok((name, Err(source))) => return Err(SimError::Node { name, source }),
                // Killed.
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(SimError::Panicked(error)),
            }
        }
        Ok(())
    }
}

/// A node whose files may grow to at most `bytes_max`; 0: unlimited. The limit is the process's and is set while the
/// node is polled.
struct Limited {
    node: Task,
    bytes_max: Arc<AtomicU64>,
}

impl Future for Limited {
    type Output = Result<(), NodeFailed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        if bytes_max == 0 {
            return self.node.as_mut().poll(context);
        }
        SECOND_THREAD.alone(|| {
            let free = getrlimit(Resource::Fsize);
            let full = Rlimit { current: Some(bytes_max), ..free };
            setrlimit(Resource::Fsize, full).expect("a process may lower its limits");
            let polled = self.node.as_mut().poll(context);
            setrlimit(Resource::Fsize, free).expect("a process may raise its limits to what they were");
            polled
        })
    }
}

/// Returns whether a restart resolves the error: the chain did not answer for too long, or a file and its backup were
/// lost and the next start begins without them.
fn is_restarted(error: &(dyn Error + 'static)) -> bool {
    let is_damage = |error: &RunError| {
        matches!(error, RunError::Snapshot(SnapshotError::File(FileError::Damaged { .. })))
    };
    error.downcast_ref().is_some_and(is_damage)
        || error.downcast_ref().is_some_and(ChainError::is_transient)
        || error.source().is_some_and(is_restarted)
}

/// Leaves the large files in `directory` in a state that a kill may cause.
fn leave(directory: &Path, leaves: Leaves) -> std::io::Result<()> {
    for name in ["model.state", "miner.snapshot"] {
        let path = directory.join(name);
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let half = &bytes[..bytes.len() / 2];
        match leaves {
            Leaves::Whole => {}
            Leaves::Truncated => std::fs::write(&path, half)?,
            Leaves::Unfinished | Leaves::Renamed => {
                std::fs::write(directory.join(pending_prefix(&path) + "killed"), half)?;
                if leaves == Leaves::Renamed {
                    std::fs::rename(&path, directory.join(format!("{name}.before")))?;
                }
            }
        }
    }
    Ok(())
}

/// Removes the files whose name begins with `prefix`.
fn remove(directory: &Path, prefix: &str) {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    named.for_each(|entry| drop(std::fs::remove_file(entry.path())));
}

/// Blocks of an epoch.
fn epoch_blocks(params: &RunParams) -> u32 {
    params.schedule.blocks_per_window * params.epoch_windows
}

fn accepted(what: &'static str, results: Vec<Result<(), Refusal>>) -> Result<(), SimError> {
    match results.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(refusal) => Err(SimError::Refused { what, refusal }),
    }
}
