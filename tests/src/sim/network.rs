//! One network, window after window. What waits in the product is done here in the order in which it would come about.

use super::{
    buckets::{Access, Buckets, Reader},
    chain::{Refusal, SharedChain, SimChain},
    published,
    world::{HELD_OUT, MTL, World},
};
use adversaries::adversary::{self, Adversary, Content, MinerContext, OwnContribution, Presentation, Timing};
use bytes::Bytes;
use chain_client::Chain as _;
use ed25519_dalek::SigningKey;
use kernels::encode::Source;
use mettle_runtime::{AccountId, RuntimeCall};
use miner::{
    compress,
    train::{self, Trained},
};
use model::init_flat;
use nn::{Device, Evaluator, ModelError, Trainer};
use node::{Blocking, Codec, Contribution, Followed, Follower, ModelState, follow::OwnMerge};
use protocol::{
    Block, Digest, Hotkey, Role, RunId, SeatId, Uid, Window,
    assign::{self, Assignment},
    keys, lineage, reveal,
    submission::{Header, PREFIX_BYTES, SIGNATURE_BYTES},
    view::{Outcome, SeatView, Verdict, Vote, WindowView},
};
use serde::Serialize;
use sp_keyring::Sr25519Keyring;
use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{Arc, atomic::AtomicBool},
};
use store::{MemoryStore, Store as _};
use validator::{
    attest,
    evaluate::{self, Job, Measurements},
    gather::{self, Gathered},
    gauntlet::{self, Reputations, Sketches},
    judge, merge,
    salt::Salts,
    strategy,
};

const ON: Device = Device::CPU;
const RUN: RunId = RunId(0);
const OWNER: Sr25519Keyring = Sr25519Keyring::Alice;
const COLDKEY: Sr25519Keyring = Sr25519Keyring::Bob;
const VALIDATOR_STAKE: u128 = 1_000 * MTL;
const TREASURY: u128 = 100_000 * MTL;
/// Windows whose contributions are kept for those who want to see them.
const KEPT_WINDOWS: usize = 4;

/// How a miner's seat is filled.
pub enum MinerSeat {
    /// Does all of its work, `batch` sequences at a time, as far as `share` of it goes before the deadline.
    Honest { share: f64, batch: usize },
    /// Does something else.
    Adversary(Box<dyn Adversary>),
}

/// How a validator's seat is filled.
pub enum ValidatorSeat {
    Honest,
    /// Computes what an honest one does and says something else.
    Adversary(Box<dyn strategy::Strategy>),
    /// Computes nothing, holds no model, and says something.
    Idle(Box<dyn strategy::Strategy>),
}

/// Who takes part, and what goes wrong.
pub struct Cast {
    pub seed: u64,
    /// Names are for the record; seats get their uids in this order, miners first.
    pub miners: Vec<(String, MinerSeat)>,
    pub validators: Vec<(String, ValidatorSeat)>,
    /// How many times the stake of one that cheats an honest validator has.
    pub honest_stake: u128,
    /// Whether honest validators draw the same evaluation: then it is computed once. Their salts are equal, and nothing else is different.
    /// One that cheats always draws what the first honest one does.
    pub same_evaluation: bool,
    /// How many of a million of a validator's fetches fail by nobody's fault.
    pub failures_ppm: u32,
}

/// What became of one seat in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeatRecord {
    /// All that was credited to it so far, in MTL.
    pub earned: f64,
    pub observed: String,
    pub selected: bool,
    /// Of validators that attested a fault.
    pub faults_attested: usize,
    pub own_gain: Option<f64>,
    pub common_gain: Option<f64>,
    /// The own-data test: gap and outcome.
    pub gap: Option<f64>,
    pub outcome: Option<f64>,
    pub rank: Option<u32>,
    pub ordinal: f64,
    pub mark: f64,
    pub score: f64,
    pub weight: u16,
    pub penalties: Vec<String>,
    /// What the published rules would have credited to it so far, in MTL.
    pub earned_published: f64,
}

/// What became of one window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowRecord {
    pub window: u32,
    pub merged: bool,
    /// Of the model that the window opened with, in nats per token.
    pub held_out_loss: f64,
    /// By uid.
    pub seats: Vec<SeatRecord>,
}

/// What became of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct History {
    pub seed: u64,
    /// Names by uid, miners first.
    pub seats: Vec<String>,
    pub miners: usize,
    /// By uid, in MTL.
    pub stakes: Vec<f64>,
    pub windows: Vec<WindowRecord>,
    /// After the last window.
    pub held_out_loss: f64,
    pub lineage: String,
}

/// What stopped a simulation: none of it happens in a network that is set up rightly.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error("the model could not be trained or evaluated")]
    Model(#[from] ModelError),
    #[error("the model's shape cannot be used")]
    Shape(#[from] model::ConfigError),
    #[error("training failed")]
    Training(#[source] Box<train::TrainingError>),
    #[error("the evaluation failed")]
    Evaluate(#[from] evaluate::EvaluateError),
    #[error("the data could not be read")]
    Data(#[from] dataset::ReadError),
    #[error("a node could not follow")]
    Follow(#[source] Box<node::FollowError>),
    #[error("a bucket did not take an object")]
    Store(#[from] store::StoreError),
    #[error("the codec cannot be made")]
    Codec(#[from] node::codec::LayoutError),
    #[error("no runtime for what waits")]
    Tokio(#[from] std::io::Error),
    #[error("the chain refused {what}: {refusal}")]
    Refused { what: &'static str, refusal: Refusal },
    #[error("the chain does not know window {window}")]
    NoWindow { window: u32 },
    #[error("in window {window} the lineage of {who} is not the chain's")]
    Diverged { window: u32, who: String },
    #[error("window {window} was not fixed")]
    NotFixed { window: u32 },
}

impl From<train::TrainingError> for SimError {
    fn from(error: train::TrainingError) -> SimError {
        SimError::Training(Box::new(error))
    }
}

impl From<node::FollowError> for SimError {
    fn from(error: node::FollowError) -> SimError {
        SimError::Follow(Box::new(error))
    }
}

struct Miner {
    name: String,
    id: SeatId,
    key: SigningKey,
    url: String,
    store: Arc<MemoryStore>,
    strategy: Way,
    trainer: Trainer,
    residual: Vec<f32>,
    /// The window that the residual is ready for.
    residual_for: Window,
}

enum Way {
    Honest { share: f64, batch: usize },
    Adversary(Box<dyn Adversary>),
}

struct Validator {
    name: String,
    id: SeatId,
    key: SigningKey,
    store: Arc<MemoryStore>,
    strategy: Box<dyn strategy::Strategy>,
    honest: bool,
    /// `None`: it holds no model.
    state: Option<ModelState>,
    follower: Follower,
    salts: Salts,
    reputations: Reputations,
    sketches: Sketches,
    /// What it committed to for an epoch, and must reveal.
    ballot: Option<(u32, Vec<(Uid, u16)>)>,
}

/// What a miner made of a window, before anybody else sees it.
struct Made {
    header: Header,
    bytes: Bytes,
}

/// Calls and who signs them.
type Calls = Vec<(SigningKey, RuntimeCall)>;

/// A running network.
pub struct Network<'a> {
    world: &'a World,
    seed: Digest,
    cast_seed: u64,
    chain: SharedChain,
    buckets: Arc<Buckets>,
    waits: tokio::runtime::Runtime,
    codec: Arc<Codec>,
    miners: Vec<Miner>,
    validators: Vec<Validator>,
    /// What every miner holds, and how it follows.
    model: ModelState,
    follower: Follower,
    evaluator: Evaluator,
    window: Window,
    /// Valid contributions of the last windows, the latest first.
    seen: Vec<Vec<Contribution>>,
    published: published::Judge,
    records: Vec<WindowRecord>,
}

fn hotkey(key: &SigningKey) -> Hotkey {
    Hotkey(key.verifying_key().to_bytes())
}

fn account(key: &SigningKey) -> AccountId {
    AccountId::from(hotkey(key).0)
}

impl<'a> Network<'a> {
    /// Makes the run on a new chain and gives everybody a seat.
    ///
    /// # Errors
    /// If the world or the cast cannot be set up.
    pub fn new(world: &'a World, cast: Cast) -> Result<Network<'a>, SimError> {
        let seed = Digest::of_parts(&[b"mettle 1 simulation", &cast.seed.to_le_bytes()]);
        let schema = world.spec.schema()?;
        let params = world.params;
        let theta = init_flat(&world.spec.model, cast.seed)?;
        let sent = Arc::new(Codec::new(&schema, params.density)?);
        let merged = Arc::new(Codec::new(&schema, params.merge_density)?);
        let waits = tokio::runtime::Builder::new_current_thread().enable_time().build()?;
        let buckets = Arc::new(Buckets::default());

        // The run, and the seats.
        let url = |index: usize| format!("https://seat-{index}.invalid");
        let key = |index: usize| {
            let seed = Digest::of_parts(&[&seed.0, b"hotkey", &(index as u64).to_le_bytes()]);
            SigningKey::from_bytes(&seed.0)
        };
        let bounded = |text: &str| -> pallet_registry::Url {
            text.as_bytes().to_vec().try_into().expect("these URLs are short")
        };
        let mut chain = SimChain::new(seed);
        let spec = model::RunSpec { seed: cast.seed, ..world.spec.clone() };
        let create = pallet_registry::Call::create_run {
            params,
            terms: world.terms,
            spec: spec.digest(),
            manifest: world.dataset.digest(),
            theta0: lineage::weights_root(&theta),
            published_at: bounded("https://origin.invalid"),
        };
        let fund = pallet_rewards::Call::fund { run: RUN, amount: TREASURY };
        let owner = OWNER.to_account_id();
        accepted("the run", chain.block(vec![(owner.clone(), create.into()), (owner, fund.into())]))?;
        let miners = cast.miners.len();
        let register = |index: usize| {
            let role = if index < miners { Role::Miner } else { Role::Validator };
            let honest = |place: usize| matches!(cast.validators[place].1, ValidatorSeat::Honest);
            let stake = match index.checked_sub(miners) {
                None => MTL,
                Some(place) if honest(place) => VALIDATOR_STAKE * cast.honest_stake,
                Some(_) => VALIDATOR_STAKE,
            };
            let (hotkey, endpoint) = (account(&key(index)), bounded(&url(index)));
            let call = pallet_registry::Call::register {
                run: RUN,
                role,
                hotkey,
                endpoint,
                stake,
                price_max: u128::MAX,
            };
            (COLDKEY.to_account_id(), RuntimeCall::from(call))
        };
        let all = miners + cast.validators.len();
        accepted("a seat", chain.block((0..all).map(register).collect()))?;
        let chain = SharedChain::new(chain);
        let run = chain.run_now(RUN).expect("it was created above");
        let seats = chain.seats_now(RUN);

        let follower = |place: Option<usize>, keeps_buffer: bool| {
            let place_seed =
                Digest::of_parts(&[&seed.0, b"reader", &(place.unwrap_or(all) as u64).to_le_bytes()]);
            let failures_ppm = if place.is_some() { cast.failures_ppm } else { 0 };
            Follower {
                chain: Arc::new(chain.clone()),
                fetch: Arc::new(Reader::new(buckets.clone(), place, place_seed, failures_ppm)),
                run: run.clone(),
                spec: spec.clone(),
                sent: sent.clone(),
                merged: merged.clone(),
                keeps_buffer,
                turn: place.unwrap_or(0),
                directory: None,
                blocking: Blocking::Inline,
            }
        };
        let genesis = ModelState::genesis(RUN, &params, &world.dataset.digest(), theta.clone());
        let mut names = Vec::new();
        let mut mining = Vec::new();
        for (index, (name, seat)) in cast.miners.into_iter().enumerate() {
            names.push(name.clone());
            mining.push(Miner {
                name,
                id: seats[index].id,
                key: key(index),
                store: buckets.add(&url(index)),
                url: url(index),
                strategy: match seat {
                    MinerSeat::Honest { share, batch } => Way::Honest { share, batch },
                    MinerSeat::Adversary(adversary) => Way::Adversary(adversary),
                },
                trainer: Trainer::new(&spec.model, &spec.recipe, ON, &theta)?,
                residual: vec![0.0; theta.len()],
                residual_for: Window::FIRST,
            });
        }
        let mut validating = Vec::new();
        for (place, (name, seat)) in cast.validators.into_iter().enumerate() {
            let index = miners + place;
            let alike = cast.same_evaluation || !matches!(seat, ValidatorSeat::Honest);
            let secret = Digest::of(&key(if alike { miners } else { index }).to_bytes());
            let (strategy, honest, holds): (Box<dyn strategy::Strategy>, _, _) = match seat {
                ValidatorSeat::Honest => (Box::new(strategy::DefaultStrategy), true, true),
                ValidatorSeat::Adversary(strategy) => (strategy, false, true),
                ValidatorSeat::Idle(strategy) => (strategy, false, false),
            };
            validating.push(Validator {
                name,
                id: seats[index].id,
                key: key(index),
                store: buckets.add(&url(index)),
                strategy,
                honest,
                state: holds.then(|| genesis.clone()),
                follower: follower(Some(place), true),
                salts: Salts::new(&secret.0),
                reputations: Reputations::default(),
                sketches: Sketches::default(),
                ballot: None,
            });
        }
        Ok(Network {
            world,
            seed,
            cast_seed: cast.seed,
            follower: follower(None, false),
            chain,
            buckets,
            waits,
            codec: sent,
            miners: mining,
            validators: validating,
            model: ModelState { buffer: None, ..genesis },
            evaluator: Evaluator::new(&spec.model, ON, &theta)?,
            window: Window::FIRST,
            seen: Vec::new(),
            published: published::Judge::default(),
            records: Vec::new(),
        })
    }

    /// Plays so many windows.
    ///
    /// # Errors
    /// If something happens that no seat's strategy can bring about.
    pub fn run(mut self, windows: u32) -> Result<History, SimError> {
        for _ in 0..windows {
            self.play()?;
        }
        // What the last window's work came to is credited as the next one opens.
        let opens = self.world.params.schedule.opens_at(self.window);
        self.chain.lock().go_to(opens);
        let held_out_loss = self.held_out_loss()?;
        let names = self.miners.iter().map(|miner| &miner.name);
        let names = names.chain(self.validators.iter().map(|validator| &validator.name));
        let stakes = self.chain.seats_now(RUN).iter().map(|seat| seat.stake as f64 / MTL as f64).collect();
        Ok(History {
            stakes,
            seed: self.cast_seed,
            seats: names.cloned().collect(),
            miners: self.miners.len(),
            windows: self.records,
            held_out_loss,
            lineage: self.model.lineage.to_string(),
        })
    }

    /// One window, top to bottom.
    fn play(&mut self) -> Result<(), SimError> {
        let (world, window) = (self.world, self.window);
        let schedule = world.params.schedule;
        let opens = schedule.opens_at(window);
        let at = |offset: u32| Block(opens.0 + offset);

        // The window opens; who committed to weights shows them.
        self.chain.lock().go_to(opens);
        self.reveal_weights()?;
        self.chain.lock().go_to(at(1));
        let view = self.view()?;
        if view.lineage != self.model.lineage {
            return Err(SimError::Diverged { window: window.0, who: "the miners".into() });
        }
        let seats = self.chain.seats_now(RUN);
        let assignment = Assignment {
            run: RUN,
            window,
            opening_hash: view.opening_hash.unwrap_or_default(),
            slots: &view.slots,
            cursor: view.cursor,
            sequences_per_seat: world.params.sequences_per_seat,
            training_sequences: world.dataset.training_sequences(),
        };

        // Miners train and commit, those who want to see the others' commitments last.
        let made = self.train(&assignment)?;
        let (mut commits, mut shown) = (Vec::new(), BTreeMap::new());
        for waits in [false, true] {
            let view = self.view()?;
            for (index, made) in &made {
                let presentation =
                    self.miners[*index].present(waits, made, &view, &world.params, &self.codec);
                let Some(presentation) = presentation else { continue };
                let key = self.miners[*index].key.clone();
                commits.extend(presentation.commits.iter().map(|commit| (key.clone(), *commit)));
                shown.insert(*index, presentation);
            }
            let (now, later): (Vec<_>, Vec<_>) =
                commits.drain(..).partition(|(_, commit)| commit.when == Timing::InTime);
            self.send(
                now.into_iter().map(|(key, commit)| (key, commit_call(window, commit.digest))).collect(),
            );
            commits = later;
        }
        self.subtract_sent(&made, &self.view()?);
        self.chain.lock().go_to(schedule.commit_deadline(window));
        self.send(
            commits.into_iter().map(|(key, commit)| (key, commit_call(window, commit.digest))).collect(),
        );

        // They upload, and validators look.
        self.upload(&shown, Timing::InTime)?;
        self.chain.lock().go_to(Block(schedule.reveal_deadline(window).0 + 1));
        let view = self.view()?;
        let mut gathered = Vec::new();
        let heads = self.chain.heads();
        for validator in &self.validators {
            let found = match validator.state {
                Some(_) => {
                    // Everything that comes in time is there: one look at each is enough.
                    let (reveal_by, give_up) =
                        (schedule.reveal_deadline(window), schedule.attest_deadline(window));
                    let until = gather::GatherDeadlines { reveal_by, give_up };
                    let looking = gather::gather(&validator.follower, &view, &seats, &heads, until);
                    self.waits.block_on(looking)
                }
                None => Gathered::default(),
            };
            gathered.push(found);
        }
        self.upload(&shown, Timing::Late)?;

        // They attest: those who may want to see what others attested, last. Where that is hidden they show it after the deadline.
        let hidden_blocks = world.params.hidden_blocks;
        let mut uploads = Vec::new();
        let mut seen = Vec::new();
        for honest in [true, false] {
            uploads.extend(self.attest(&gathered, honest, &mut seen)?);
        }
        self.chain.lock().go_to(schedule.attest_deadline(window));
        self.mirror(&gathered)?;
        if !uploads.is_empty() {
            self.send(uploads);
        }
        self.chain.lock().go_to(Block(schedule.attest_deadline(window).0 + hidden_blocks + 1));

        // They merge and vote.
        let mut own: Vec<Option<OwnMerge>> = vec![None; self.validators.len()];
        let mut uploads = Vec::new();
        for honest in [true, false] {
            uploads.extend(self.vote(&gathered, &seats, honest, &mut own)?);
        }
        if !uploads.is_empty() {
            self.chain.lock().go_to(schedule.vote_deadline(window));
            self.send(uploads);
        }

        // They commit to what everyone's work was worth up to here, and measure this window's.
        self.commit_weights()?;
        self.chain.lock().go_to(Block(schedule.vote_deadline(window).0 + hidden_blocks + 1));
        let view = self.view()?;
        let Some(outcome) = view.outcome else { return Err(SimError::NotFixed { window: window.0 }) };
        let held_out_loss = self.held_out_loss()?;
        let mut record = WindowRecord {
            window: window.0,
            merged: matches!(outcome, Outcome::Merged(_)),
            held_out_loss,
            seats: vec![SeatRecord::default(); self.miners.len() + self.validators.len()],
        };
        if record.merged {
            self.judge(&view, &seats, &gathered, &assignment, &mut record)?;
        }

        // Everyone follows.
        for (validator, own) in self.validators.iter_mut().zip(own) {
            let Some(state) = &mut validator.state else { continue };
            let followed = self.waits.block_on(validator.follower.step(state, own))?;
            if !matches!(followed, Followed::Advanced { .. }) || state.window != window.next() {
                return Err(SimError::NotFixed { window: window.0 });
            }
        }
        self.waits.block_on(self.follower.step(&mut self.model, None))?;
        for validator in &self.validators {
            if validator.state.as_ref().is_some_and(|state| state.lineage != self.model.lineage) {
                return Err(SimError::Diverged { window: window.0, who: validator.name.clone() });
            }
        }

        // For the record, and for those who look back.
        let selection = view.selection.as_ref();
        let seats = self.chain.seats_now(RUN);
        for (seat, record) in seats.iter().zip(&mut record.seats) {
            record.earned = seat.earned as f64 / MTL as f64;
            record.selected = selection.is_some_and(|selection| {
                selection.selected.iter().any(|selected| selected.uid == seat.id.uid)
            });
            let uid = seat.id.uid;
            record.faults_attested = gathered.iter().filter(|found| found.faulty.contains_key(&uid)).count();
        }
        self.published.credit(&world.params, window, &mut record.seats[..self.miners.len()]);
        self.records.push(record);
        let valid = gathered.iter().find(|found| !found.valid.is_empty());
        self.seen.insert(0, valid.map(|found| found.valid.values().cloned().collect()).unwrap_or_default());
        self.seen.truncate(KEPT_WINDOWS);
        self.buckets.forget();
        for store in
            self.miners.iter().map(|miner| &miner.store).chain(self.validators.iter().map(|seat| &seat.store))
        {
            self.waits.block_on(node::prune(&**store, RUN, window));
        }
        self.window = window.next();
        Ok(())
    }

    fn view(&self) -> Result<WindowView, SimError> {
        self.chain.window_now(RUN, self.window).ok_or(SimError::NoWindow { window: self.window.0 })
    }

    /// One block of these calls. What the chain refuses is the signer's own affair.
    fn send(&self, calls: Vec<(SigningKey, RuntimeCall)>) {
        let calls = calls.into_iter().map(|(key, call)| (account(&key), call)).collect();
        for refused in self.chain.lock().block(calls).into_iter().filter_map(Result::err) {
            tracing::debug!(window = self.window.0, refused, "a call was refused");
        }
    }

    /// Everybody's work of the window, by the miner's place.
    fn train(&mut self, assignment: &Assignment<'_>) -> Result<BTreeMap<usize, Made>, SimError> {
        let (world, window) = (self.world, self.window);
        let mut made = BTreeMap::new();
        let mut waiting = Vec::new();
        for (index, miner) in self.miners.iter_mut().enumerate() {
            let Some(assigned) = assignment.of(miner.id.uid) else { continue };
            let of = assigned.len() as u32;
            let moment = moment(miner.id.uid, window, world, &self.codec);
            let (sequences, batch) = match &mut miner.strategy {
                Way::Honest { share, batch } => {
                    // What is done when the deadline comes is a whole number of steps.
                    let done = (f64::from(of) * *share) as usize / *batch * *batch;
                    (assigned[..done.min(assigned.len())].to_vec(), *batch)
                }
                Way::Adversary(adversary) => (
                    adversary.sequences(&moment, assigned, world.dataset.training_sequences()),
                    world.spec.recipe.batch,
                ),
            };
            miner.trainer.load(&self.model.theta)?;
            let stop = AtomicBool::new(false);
            let fresh = Trained::default();
            let trained =
                train::train(&mut miner.trainer, &world.dataset, &sequences, batch, fresh, &stop, &mut ())?;
            let after = miner.trainer.weights_flat()?;
            let (declared, outcome) = match &mut miner.strategy {
                Way::Honest { .. } => (trained.sequences, Some(after.clone())),
                Way::Adversary(adversary) => {
                    let declared = adversary.declares(&moment, trained.sequences, of);
                    let back = (adversary.looks_back() as usize).min(self.seen.len());
                    let seen: Vec<Contribution> = self.seen[..back].iter().flatten().cloned().collect();
                    (declared, adversary.outcome(&moment, &seen, &self.model.theta, &after))
                }
            };
            if declared == 0 {
                continue;
            }
            match outcome {
                Some(outcome) => {
                    if let Some(own) = miner.make(&self.model, &self.codec, world, declared, &outcome) {
                        made.insert(index, own);
                    }
                }
                None => waiting.push((index, declared, after)),
            }
        }
        // Who wanted to be asked again.
        for (index, declared, after) in waiting {
            let miner = &mut self.miners[index];
            let moment = moment(miner.id.uid, window, world, &self.codec);
            let outcome = match &mut miner.strategy {
                Way::Adversary(adversary) => adversary.outcome(&moment, &[], &self.model.theta, &after),
                Way::Honest { .. } => None,
            };
            let own =
                outcome.and_then(|outcome| miner.make(&self.model, &self.codec, world, declared, &outcome));
            if let Some(own) = own {
                made.insert(index, own);
            }
        }
        Ok(made)
    }

    /// What was committed leaves the residual, merged or not (PROT-10).
    fn subtract_sent(&mut self, made: &BTreeMap<usize, Made>, view: &WindowView) {
        for (index, made) in made {
            let miner = &mut self.miners[*index];
            if !view.commitments.iter().any(|(uid, _)| *uid == miner.id.uid) {
                continue;
            }
            let sent = self.codec.decode(body_of(&made.bytes)).expect("the encoder wrote it");
            for (range, tensor) in self.codec.schema().ranges().zip(&sent.tensors) {
                for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                    miner.residual[range.start + *position as usize] -= value;
                }
            }
        }
    }

    /// Puts what is shown `when` where its seat shows it, and as it shows it.
    fn upload(&self, shown: &BTreeMap<usize, Presentation>, when: Timing) -> Result<(), SimError> {
        let bytes_of = |uid: Uid, digest: &Digest| {
            let (_, presentation) = shown.iter().find(|(index, _)| self.miners[**index].id.uid == uid)?;
            presentation.uploads.iter().find(|show| show.under == *digest).and_then(|show| match &show.what {
                Content::Bytes(bytes) => Some(bytes.clone()),
                Content::BytesOf(_) => None,
            })
        };
        for (index, presentation) in shown {
            let miner = &self.miners[*index];
            for show in presentation.uploads.iter().filter(|show| show.when == when) {
                let bytes = match &show.what {
                    Content::Bytes(bytes) => Some(bytes.clone()),
                    Content::BytesOf(uid) => bytes_of(*uid, &show.under),
                };
                let Some(bytes) = bytes else { continue };
                let name = keys::contribution(RUN, self.window, &show.under);
                match miner.proxy() {
                    adversary::FaultyProxy::Store | adversary::FaultyProxy::Backdating => {
                        self.waits.block_on(miner.store.put(&name, bytes))?;
                    }
                    adversary::FaultyProxy::ForTheFirst(readers) => {
                        self.buckets.guard(&miner.url, name, bytes, Access::First(usize::from(readers)));
                    }
                    adversary::FaultyProxy::Crawling(_) => {
                        self.buckets.guard(&miner.url, name, bytes, Access::Crawls);
                    }
                }
            }
        }
        Ok(())
    }

    /// What `validator::serve` says of what was seen (PROT-14), and what is left to show of it where it is hidden at first (PROT-30).
    /// `seen` is what the first to attest said in the open, for those who copy it.
    fn attest(
        &mut self,
        gathered: &[Gathered],
        honest: bool,
        seen: &mut Vec<(Uid, Verdict)>,
    ) -> Result<Calls, SimError> {
        let (view, window, hidden) = (self.view()?, self.window, 0 < self.world.params.hidden_blocks);
        let (mut calls, mut uploads) = (Vec::new(), Vec::new());
        for (validator, found) in self.validators.iter_mut().zip(gathered) {
            if validator.honest != honest {
                continue;
            }
            let mut verdicts: Vec<(Uid, Verdict)> =
                found.valid.keys().map(|uid| (*uid, Verdict::Valid)).collect();
            verdicts.extend(found.faulty.keys().map(|uid| (*uid, Verdict::Faulty)));
            verdicts.sort_by_key(|(uid, _)| *uid);
            if validator.state.is_none() {
                // Whom others attest as valid shows in their buckets, where it is not hidden.
                verdicts.clone_from(seen);
            }
            let Some(verdicts) = validator.strategy.verdicts(&view, verdicts) else { continue };
            let next_salt = validator.salts.commitment(RUN, window.next());
            let key = &validator.key;
            let salt = hiding_salt(&self.seed, b"attestation", validator.id.uid, window);
            let hash = reveal::commitment(&verdicts, &salt, &hotkey(key));
            if !hidden && seen.is_empty() {
                seen.clone_from(&verdicts);
            }
            let verdicts = verdicts.try_into().expect("there are no more seats than the chain has room for");
            if hidden {
                let hide = pallet_windows::Call::attest_hidden { run: RUN, window, hash, next_salt };
                calls.push((key.clone(), hide.into()));
                let show = pallet_windows::Call::reveal_attestation { run: RUN, window, verdicts, salt };
                uploads.push((key.clone(), show.into()));
            } else {
                let call = pallet_windows::Call::attest { run: RUN, window, verdicts, next_salt };
                calls.push((key.clone(), call.into()));
            }
        }
        self.send(calls);
        Ok(uploads)
    }

    /// Who attests bytes as valid makes sure that others can have them (PROT-15).
    fn mirror(&self, gathered: &[Gathered]) -> Result<(), SimError> {
        for (validator, found) in self.validators.iter().zip(gathered) {
            let mirroring = attest::mirror(&*validator.store, &validator.follower, self.window, &found.valid);
            self.waits.block_on(mirroring)?;
        }
        Ok(())
    }

    /// Merges what the chain selected, publishes it, and votes (PROT-16 to PROT-20). What is left to show of it where votes are hidden.
    fn vote(
        &mut self,
        gathered: &[Gathered],
        seats: &[SeatView],
        honest: bool,
        own: &mut [Option<OwnMerge>],
    ) -> Result<Calls, SimError> {
        let (view, window, hidden) = (self.view()?, self.window, 0 < self.world.params.hidden_blocks);
        let selected = view.selection.as_ref().is_some_and(|selection| !selection.selected.is_empty());
        let (mut calls, mut uploads) = (Vec::new(), Vec::new());
        for (place, validator) in self.validators.iter_mut().enumerate() {
            if validator.honest != honest {
                continue;
            }
            let mut vote = None;
            if let Some(state) = validator.state.as_ref().filter(|_| selected) {
                let follower = &validator.follower;
                let contributions =
                    self.waits.block_on(merge::selected(follower, &view, seats, &gathered[place].valid));
                let merged = contributions.ok().and_then(|inputs| follower.merge(state, &view, &inputs).ok());
                if let Some(merged) = merged {
                    let publish = merge::publish(Blocking::Inline, &*validator.store, follower, merged);
                    let (merged, cast) = self.waits.block_on(publish)?;
                    (own[place], vote) = (Some(merged), Some(cast));
                }
            }
            // Who merged nothing is not asked in the product either; who holds no model lives off others' votes.
            if vote.is_none() && validator.state.is_some() {
                continue;
            }
            let Some(vote): Option<Vote> = validator.strategy.vote(&view, vote) else { continue };
            let key = &validator.key;
            if hidden {
                let salt = hiding_salt(&self.seed, b"vote", validator.id.uid, window);
                let hash = reveal::commitment(&vote, &salt, &hotkey(key));
                let hide = pallet_windows::Call::vote_hidden { run: RUN, window, hash };
                calls.push((key.clone(), hide.into()));
                let show = pallet_windows::Call::reveal_vote { run: RUN, window, vote, salt };
                uploads.push((key.clone(), show.into()));
            } else {
                let call = pallet_windows::Call::vote { run: RUN, window, vote };
                calls.push((key.clone(), call.into()));
            }
        }
        self.send(calls);
        Ok(uploads)
    }

    /// In the last window of an epoch (PROT-26, PROT-30).
    fn commit_weights(&mut self) -> Result<(), SimError> {
        let (view, window) = (self.view()?, self.window);
        let epoch_windows = self.world.params.epoch_windows;
        let epoch = window.epoch(epoch_windows);
        if window.next().epoch(epoch_windows) == epoch {
            return Ok(());
        }
        let mut calls = Vec::new();
        for validator in &mut self.validators {
            let weights = validator.strategy.weights(&view, gauntlet::weights(&validator.reputations));
            if weights.is_empty() {
                continue;
            }
            let salt = ballot_salt(&self.seed, validator.id.uid, epoch);
            let hash = reveal::commitment(&weights, &salt.0, &hotkey(&validator.key));
            validator.ballot = Some((epoch, weights));
            calls
                .push((validator.key.clone(), pallet_weights::Call::commit { run: RUN, epoch, hash }.into()));
        }
        self.send(calls);
        Ok(())
    }

    fn reveal_weights(&mut self) -> Result<(), SimError> {
        let epoch = self.window.epoch(self.world.params.epoch_windows);
        let mut calls = Vec::new();
        for validator in &mut self.validators {
            let Some((of, weights)) = validator.ballot.take_if(|(of, _)| *of < epoch) else { continue };
            let salt = ballot_salt(&self.seed, validator.id.uid, of).0;
            let weights = weights.try_into().expect("there are no more seats than the chain has room for");
            let call = pallet_weights::Call::reveal { run: RUN, epoch: of, weights, salt };
            calls.push((validator.key.clone(), call.into()));
        }
        if !calls.is_empty() {
            self.send(calls);
        }
        Ok(())
    }

    /// Every validator that holds a model measures and judges. Whose evaluations would be the same to the last bit share one.
    fn judge(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        gathered: &[Gathered],
        assignment: &Assignment<'_>,
        record: &mut WindowRecord,
    ) -> Result<(), SimError> {
        let (world, window) = (self.world, self.window);
        let Some(evaluation_hash) = view.evaluation_hash else { return Ok(()) };
        let mut measured_already: Vec<(Digest, Vec<Digest>, Measurements)> = Vec::new();
        let mut recorded = false;
        for (validator, found) in self.validators.iter_mut().zip(gathered) {
            let Some(state) = &validator.state else { continue };
            let salt = validator.salts.salt(RUN, window);
            let seed = assign::evaluation_seed(RUN, window, &evaluation_hash, &salt);
            let candidates: Vec<SeatId> = seats
                .iter()
                .filter(|seat| found.valid.contains_key(&seat.id.uid))
                .map(|seat| seat.id)
                .collect();
            let order = gauntlet::whom_to_evaluate(
                &seed,
                window,
                &candidates,
                &validator.reputations,
                candidates.len(),
                world.params.evaluation_wait_max,
            );
            let order: Vec<Uid> = order.into_iter().map(|seat| seat.uid).collect();
            let digests: Vec<Digest> = found.valid.values().map(|held| held.digest).collect();
            let known = measured_already.iter().find(|(of, among, _)| *of == seed && *among == digests);
            let measured = match known {
                Some((_, _, measured)) => measured.clone(),
                None => {
                    let (theta, valid) = (state.theta.clone(), found.valid.clone());
                    let job = Job::new(theta, &validator.follower, valid, order, assignment, seed);
                    let job = Job { held_out: 1, earlier: validator.sketches.clone(), ..job };
                    let measured =
                        evaluate::measure(&mut self.evaluator, &world.dataset, &job, &mut || true)?;
                    measured_already.push((seed, digests, measured.clone()));
                    measured
                }
            };
            validator.sketches = measured.sketches.clone();
            let measured = validator.strategy.measured(window, measured);
            let trained = found.valid.iter().map(|(uid, held)| (*uid, held.header.trained)).collect();
            let evidence = judge::evidence(view, seats, &trained, &found.faulty, &measured);
            let verdict = gauntlet::judge(&world.params, &validator.reputations, window, &evidence);
            validator.reputations = verdict.reputations;
            if validator.honest && !recorded {
                recorded = true;
                self.published.judge(&evidence);
                for report in &verdict.reports {
                    let Some(seat) = record.seats.get_mut(usize::from(report.seat.uid.0)) else { continue };
                    seat.observed = format!("{:?}", report.observed);
                    seat.own_gain = report.own_gain;
                    seat.common_gain = report.common_gain;
                    seat.gap = report.own_data.map(|own| own.gap);
                    seat.outcome = report.own_data.map(|own| own.outcome);
                    seat.rank = report.rank;
                    seat.ordinal = report.ordinal;
                    seat.mark = report.own_data_score_after;
                    seat.score = report.score;
                    seat.weight = report.weight;
                    seat.penalties =
                        report.penalties.iter().map(|penalty| format!("{:?}", penalty.reason)).collect();
                }
            }
        }
        Ok(())
    }

    /// Of the model that the miners hold.
    fn held_out_loss(&mut self) -> Result<f64, SimError> {
        self.evaluator.load(&self.model.theta)?;
        let count = HELD_OUT.min(self.world.dataset.held_out_sequences());
        let held_out =
            (0..count).map(|index| self.world.dataset.held_out(index)).collect::<Result<Vec<_>, _>>()?;
        let losses = self.evaluator.losses(&held_out)?;
        Ok(losses.iter().sum::<f64>() / losses.len().max(1) as f64)
    }
}

impl Miner {
    /// Compresses what came out of a window. `None` where it cannot be encoded: no contribution, then.
    fn make(
        &mut self,
        model: &ModelState,
        codec: &Codec,
        world: &World,
        declared: u32,
        outcome: &[f32],
    ) -> Option<Made> {
        let decay = world.params.error_feedback_decay.get();
        let away = model.window.0.saturating_sub(self.residual_for.0);
        compress::decay_residual(&mut self.residual, decay, away);
        self.residual_for = model.window.next();
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RUN,
            window: model.window,
            uid: self.id.uid,
            hotkey: hotkey(&self.key),
            base: model.lineage,
            schema: codec.schema().digest(),
            density: codec.density(),
            trained: declared,
        };
        let mut bytes = Vec::new();
        let source = Source::Difference { decay, before: &model.theta, after: outcome };
        let sealed = compress::compress::<Infallible>(
            codec,
            &header,
            &self.key,
            &mut self.residual,
            source,
            &mut |piece| {
                bytes.extend_from_slice(piece);
                Ok(())
            },
        );
        match sealed {
            Ok(_) => Some(Made { header, bytes: bytes.into() }),
            Err(error) => {
                tracing::debug!(name = self.name, %error, "nothing to commit to");
                self.residual.fill(0.0);
                None
            }
        }
    }

    /// What it commits to and shows, if now is when it decides.
    fn present(
        &mut self,
        waits: bool,
        made: &Made,
        view: &WindowView,
        params: &protocol::RunParams,
        codec: &Codec,
    ) -> Option<Presentation> {
        let own = OwnContribution { header: made.header, bytes: made.bytes.clone(), key: &self.key };
        match &mut self.strategy {
            Way::Honest { .. } => (!waits).then(|| Presentation::honest(&own)),
            Way::Adversary(adversary) => (adversary.waits_for_commitments() == waits).then(|| {
                let moment = MinerContext { run: RUN, window: view.window, uid: self.id.uid, params, codec };
                adversary.present(&moment, &own, &view.commitments)
            }),
        }
    }

    fn proxy(&self) -> adversary::FaultyProxy {
        match &self.strategy {
            Way::Honest { .. } => adversary::FaultyProxy::Store,
            Way::Adversary(adversary) => adversary.proxy(),
        }
    }
}

fn moment<'a>(uid: Uid, window: Window, world: &'a World, codec: &'a Codec) -> MinerContext<'a> {
    MinerContext { run: RUN, window, uid, params: &world.params, codec }
}

fn body_of(bytes: &Bytes) -> &[u8] {
    &bytes[PREFIX_BYTES..bytes.len() - SIGNATURE_BYTES]
}

fn commit_call(window: Window, digest: Digest) -> RuntimeCall {
    pallet_windows::Call::commit { run: RUN, window, digest }.into()
}

/// Salts are drawn from the seed, as all is; nobody in the network looks there.
fn hiding_salt(seed: &Digest, what: &[u8], uid: Uid, window: Window) -> reveal::Salt {
    Digest::of_parts(&[&seed.0, what, &uid.0.to_le_bytes(), &window.0.to_le_bytes()]).0
}

fn ballot_salt(seed: &Digest, uid: Uid, epoch: u32) -> Digest {
    Digest::of_parts(&[&seed.0, b"ballot", &uid.0.to_le_bytes(), &epoch.to_le_bytes()])
}

fn accepted(what: &'static str, results: Vec<Result<(), Refusal>>) -> Result<(), SimError> {
    match results.into_iter().find_map(Result::err) {
        None => Ok(()),
        Some(refusal) => Err(SimError::Refused { what, refusal }),
    }
}
