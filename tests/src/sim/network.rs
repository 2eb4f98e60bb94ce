//! One network: the programs' own loops on one thread, in virtual time.
//!
//! Tokio's clock is paused and advances when every task waits. The network seals a block after each block time; a
//! node's work between two blocks takes no virtual time. So a window takes as long as its computation, and the order
//! of all events derives from the seed.

use super::{
    buckets::Buckets,
    chain::{Refusal, Sealing, SharedChain, SimChain},
    nodes::{self, Evaluations, NodeFailed, Seat, Shared},
    record::{History, Recorder, WindowRecord},
    world::{BATCH, MTL, World},
};
use adversaries::Adversary;
use chain_client::{Call, Chain as _};
use ed25519_dalek::SigningKey;
use mettle_runtime::{AccountId, RuntimeCall, SLOT_DURATION};
use miner::progress::SnapshotInterval;
use model::{RunSpec, init_flat};
use node::Codec;
use protocol::{Block, Digest, Role, RunId, Window, lineage, view::SeatView};
use sp_keyring::Sr25519Keyring;
use std::{path::Path, pin::Pin, sync::Arc, time::Duration};
use store::faults::Faults;
use tokio::task::{AbortHandle, JoinSet, LocalSet};
use validator::strategy::Strategy;

const RUN: RunId = RunId(0);
const OWNER: Sr25519Keyring = Sr25519Keyring::Alice;
const COLDKEY: Sr25519Keyring = Sr25519Keyring::Bob;
const VALIDATOR_STAKE: u128 = 1_000 * MTL;
const TREASURY: u128 = 100_000 * MTL;
/// The name of a node that joins late.
pub const LATE_JOINER: &str = "late joiner";
/// Windows after the last one, until a node that still runs counts as stuck.
const GRACE_WINDOWS: u32 = 2;

/// The miner of a seat.
pub enum MinerSeat {
    /// Works honestly. It has time for `share` of its sequences, in steps of `batch`.
    Honest {
        share: f64,
        batch: usize,
    },
    Adversary(Box<dyn Adversary>),
}

/// The validator of a seat.
pub enum ValidatorSeat {
    Honest,
    Adversary(Box<dyn Strategy>),
}

/// The seats of a network, and its faults.
pub struct Cast {
    pub seed: u64,
    /// Names and behaviour. Uids follow this order, miners first.
    pub miners: Vec<(String, MinerSeat)>,
    /// The first one is honest: the record uses its scores.
    pub validators: Vec<(String, ValidatorSeat)>,
    /// The stake of an honest validator, as a multiple of an adversary's.
    pub honest_stake: u128,
    /// Whether honest validators share their salts, so that one evaluation serves all. An adversary always has the
    /// salts of the first honest validator.
    pub same_evaluation: bool,
    /// Objects per million that a validator cannot fetch.
    pub failures_ppm: u32,
    /// The part of a window's sequences that an honest miner trains before the window's model is there.
    pub ahead: f64,
    /// The pace of an honest miner that the schedule of its training ahead is made for, in sequences per block: training
    /// takes no virtual time. `None`: as measured, so that miners train ahead only of a model that is late.
    pub pace: Option<f64>,
    /// The time that an update of the model takes to reach a miner.
    pub update_delay: Duration,
    pub restarts: Vec<Restart>,
    pub outages: Vec<Outage>,
    pub rewind_votes: Vec<RewindVote>,
    /// The heads at which a node without a seat joins.
    pub late_joins: Vec<Block>,
}

/// A vote of a validator's coldkey to go back to an earlier checkpoint (PROT-20).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RewindVote {
    /// The uid.
    pub seat: usize,
    /// The head at which it is submitted.
    pub at: Block,
    /// The checkpoint's window.
    pub to: Window,
}

/// Cuts off a seat: it sees no new block, none of its calls is included, and it exchanges no object with others. Seats
/// that are cut off together exchange objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The uid.
    pub seat: usize,
    /// From the block after this head.
    pub from: Block,
    /// The first block that reaches it again follows this head.
    pub until: Block,
}

/// Kills a node and opens it again from its directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restart {
    /// The uid of an honest seat that does all its work.
    pub seat: usize,
    /// The head at which the node is killed, before the next block.
    pub at: Block,
}

/// An error that stops a simulation. No seat's behaviour can cause one.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("the model could not be evaluated")]
    Model(#[from] nn::ModelError),
    #[error("the model's shape cannot be used")]
    Shape(#[from] model::ConfigError),
    #[error("the codec cannot be made")]
    Codec(#[from] node::codec::LayoutError),
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
    #[error("at block {block} some nodes have not finished the last window")]
    Stuck { block: u32 },
}

/// Runs a node to its end.
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

fn account(key: &SigningKey) -> AccountId {
    AccountId::from(key.verifying_key().to_bytes())
}

/// The base URL of the bucket of seat `index`.
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
        let network =
            Network { world, cast, seed, chain: SharedChain::new(chain, Sealing::Manual), spec, theta };
        let registrations = (0..network.seats()).map(|index| network.registration(index)).collect();
        let registered = network.chain.lock().block(registrations);
        accepted("a seat", registered)?;
        Ok(network)
    }

    fn seats(&self) -> usize {
        self.cast.miners.len() + self.cast.validators.len()
    }

    fn key(&self, index: usize) -> SigningKey {
        let seed = Digest::of_parts(&[&self.seed.0, b"hotkey", &(index as u64).to_le_bytes()]);
        SigningKey::from_bytes(&seed.0)
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

    /// The secret from which a validator derives its salts.
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
            ahead: self.cast.ahead,
            pace: self.cast.pace,
            update_delay: self.cast.update_delay,
            // Only a miner that is killed reads one.
            snapshots: match self.cast.restarts.is_empty() {
                true => SnapshotInterval::Never,
                false => SnapshotInterval::Steps(1),
            },
            windows,
        });
        let chain = self.chain.clone();
        let stakes = chain.seats_now(RUN).iter().map(|seat| seat.stake as f64 / MTL as f64).collect();
        let (seed, restarts) = (self.cast.seed, self.cast.restarts.clone());
        let outages = self.cast.outages.clone();
        let (rewind_votes, late_joins) = (self.cast.rewind_votes.clone(), self.cast.late_joins.clone());
        let mut rewound = None;
        let mut nodes = self.start(shared.clone());

        let mut records: Vec<WindowRecord> = Vec::new();
        let last_block = params.schedule.opens_at(Window(windows.saturating_add(GRACE_WINDOWS)));
        while 0 < nodes.running {
            tokio::time::sleep(Duration::from_millis(SLOT_DURATION)).await;
            let window = Window(records.len() as u32);
            let head = chain.lock().head().block;
            if window.0 < windows && head.0 + 1 == params.schedule.opens_at(window.next()).0 {
                let record = shared.recorder.window(&chain, RUN, &params, miners, window);
                records.push(record.ok_or(SimError::NotFinalised { window: window.0 })?);
            }
            if last_block <= head {
                return Err(SimError::Stuck { block: head.0 });
            }
            for restart in restarts.iter().filter(|restart| restart.at == head) {
                nodes.restart(*restart).await?;
            }
            let cut = outages.iter().filter(|outage| outage.from <= head && head < outage.until);
            nodes.cut_off(cut.map(|outage| outage.seat));
            rewind_votes.iter().filter(|vote| vote.at == head).for_each(|vote| nodes.vote_rewind(*vote));
            for _ in late_joins.iter().filter(|at| **at == head) {
                nodes.join_late();
            }
            chain.lock().seal();
            let last = chain.run_now(RUN).and_then(|run| run.rewound);
            if let Some(window) = last.filter(|_| last != rewound) {
                // Nodes held another model of this window before it opened.
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
        // Miners subscribe first, so each head reaches them first and validators find the objects uploaded at it.
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
                store: shared.buckets.add_faulty(&url(index), self.faults(index)),
                chain: self.chain.signed_by(account(&self.key(index))),
                validator_index: index.checked_sub(miners),
            })
            .collect();
        let secrets =
            (0..self.cast.validators.len()).map(|validator_index| self.secret(validator_index)).collect();
        let tasks = JoinSet::new();
        let mut nodes = Nodes { shared, seats, secrets, tasks, handles: Vec::new(), running: 0 };
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
    /// By uid.
    handles: Vec<AbortHandle>,
    /// Nodes that have not ended.
    running: usize,
}

impl Nodes {
    fn spawn(&mut self, name: String, task: Task) -> AbortHandle {
        self.running += 1;
        self.tasks.spawn_local(async move { (name, task.await) })
    }

    fn start_miner(&mut self, index: usize, behaviour: MinerSeat) -> AbortHandle {
        let seat = self.seats[index].clone();
        let name = seat.name.clone();
        self.spawn(name, Box::pin(nodes::mine(self.shared.clone(), seat, behaviour)))
    }

    fn start_validator(&mut self, index: usize, behaviour: ValidatorSeat) -> AbortHandle {
        let seat = self.seats[index].clone();
        let (name, secret) = (seat.name.clone(), self.secrets[seat.validator_index.unwrap_or(0)]);
        self.spawn(name, Box::pin(nodes::validate(self.shared.clone(), seat, behaviour, secret)))
    }

    /// Starts a node without a seat from an empty directory.
    fn observe(&mut self, name: &str) {
        let chain = self.shared.chain.signed_by(OWNER.to_account_id());
        let observer = nodes::observe(self.shared.clone(), chain, name.to_owned());
        self.spawn(name.to_owned(), Box::pin(observer));
    }

    fn join_late(&mut self) {
        self.observe(LATE_JOINER);
    }

    /// Submits a vote by the coldkey, for the block after the next one.
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

    /// Kills the node of an honest seat and opens it again from its directory.
    async fn restart(&mut self, restart: Restart) -> Result<(), SimError> {
        self.handles[restart.seat].abort();
        while !self.handles[restart.seat].is_finished() {
            tokio::task::yield_now().await;
        }
        self.reap()?;
        self.handles[restart.seat] = match self.seats[restart.seat].validator_index {
            None => self.start_miner(restart.seat, MinerSeat::Honest { share: 1.0, batch: BATCH }),
            Some(_) => self.start_validator(restart.seat, ValidatorSeat::Honest),
        };
        Ok(())
    }

    /// Cuts off these seats, and connects all others.
    fn cut_off(&self, seats: impl Iterator<Item = usize>) {
        let cut: Vec<&SeatView> = seats.map(|seat| &self.seats[seat].view).collect();
        self.shared.buckets.cut_off(cut.iter().map(|seat| seat.endpoint.clone()).collect());
        self.shared.chain.lock().cut_off(cut.iter().map(|seat| AccountId::from(seat.hotkey.0)).collect());
    }

    /// Collects the results of the nodes that have ended.
    fn reap(&mut self) -> Result<(), SimError> {
        while let Some(ended) = self.tasks.try_join_next() {
            self.running -= 1;
            match ended {
                Ok((_, Ok(()))) => {}
                Ok((name, Err(source))) => return Err(SimError::Node { name, source }),
                // Killed by `restart`.
                Err(error) if error.is_cancelled() => {}
                Err(error) => return Err(SimError::Panicked(error)),
            }
        }
        Ok(())
    }
}

fn accepted(what: &'static str, results: Vec<Result<(), Refusal>>) -> Result<(), SimError> {
    match results.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(refusal) => Err(SimError::Refused { what, refusal }),
    }
}
