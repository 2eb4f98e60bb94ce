//! Which networks answer the questions of the table, and how they are run: each on one thread, as many at once as there are cores.
//!
//! Every network has the same ten honest miners: eight that do all their work, one slow one that does half and says so, and one whose steps
//! have another size. Adversaries that do not get into each other's way share a network with them, so what a network's loss suffers is
//! the work of all its adversaries together.

use super::{
    network::{Cast, MinerSeat, Network, SimError, ValidatorSeat},
    record::History,
    world::{BATCH, World},
};
use adversaries::{Adversary, MinerContext, Setup, SharedMailbox};
use protocol::Role;
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// An honest seat that does all its work.
pub const HONEST: &str = "honest";
/// One that does half of it, and says so.
pub const SLOW: &str = "slow";
/// One whose steps are smaller, and so more.
pub const OTHER_BATCH: &str = "other-batch";
/// Seats of [`HONEST`] beside the other two.
pub const FULL: usize = 8;
const SLOW_SHARE: f64 = 0.5;
const SMALL_BATCH: usize = BATCH * 3 / 4;
/// Validators, where it is not they who are tried.
const VALIDATORS: u16 = 4;
/// Honest validators where the others are tried: with those that vote like them they are two thirds.
const VALIDATORS_AMONG_CHEATS: usize = 4;

/// A network of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: &'static str,
    /// Who sits there besides the ten honest miners.
    pub miners: &'static [&'static str],
    pub validators: &'static [&'static str],
    /// How many times the stake of one that cheats an honest validator has.
    pub honest_stake: u128,
    /// Whether attestations and votes are hidden before they are shown (PROT-30).
    pub hiding: bool,
    /// Percent of validators' fetches that fail.
    pub failing: u32,
}

const fn miners(name: &'static str, miners: &'static [&'static str]) -> Plan {
    Plan { name, miners, validators: &[], honest_stake: 1, hiding: false, failing: 0 }
}

const fn validators(name: &'static str, honest_stake: u128, hiding: bool) -> Plan {
    const CHEATS: &[&str] =
        &["weight-copier", "inventor", "favourer", "absentee", "lazy-voter", "false-merge"];
    Plan { name, miners: &[], validators: CHEATS, honest_stake, hiding, failing: 0 }
}

/// Ten honest miners, and nobody else.
pub const BASELINE: &str = "honest";
/// The same with one more honest one: up to the poison it is [`ONE_SHOT`] to the last bit.
pub const ELEVEN: &str = "eleven";
/// The same, and the eleventh stays away in the window of the poison: what this differs by from [`ELEVEN`] is chance.
pub const ONE_AWAY: &str = "one-away";
/// The same whose eleventh poisons once.
pub const ONE_SHOT: &str = "one-shot";
/// The baseline with five cheats of different kinds who know of each other.
pub const COLLUDERS: &str = "colluders";
/// The baseline with storage that fails.
pub const FAILING: &str = "failing-storage";
/// The validators who are tried: with six parts of twenty-two of the stake, and what can be hidden is.
pub const CHEATING_VALIDATORS: &str = "validators";
/// The same where everything is posted in the open.
pub const IN_THE_OPEN: &str = "validators-in-the-open";
/// The same, and with six parts of ten of the stake.
pub const MOST_OF_THE_STAKE: &str = "validators-with-most-of-the-stake";

/// All of them.
pub const PLANS: &[Plan] = &[
    validators(CHEATING_VALIDATORS, 4, true),
    validators(IN_THE_OPEN, 4, false),
    validators(MOST_OF_THE_STAKE, 1, false),
    Plan { failing: 5, ..miners(FAILING, &[]) },
    miners(BASELINE, &[]),
    miners(
        "delivery",
        &["late", "withholder", "equivocator", "malformed", "clock-liar", "slow-loris", "freeloader-zeros"],
    ),
    miners(COLLUDERS, &["sybil", "sybil", "freeloader-random", "poison-sign", "copycat-mixture"]),
    miners("copiers", &["copycat", "copycat-last", "copycat-mixture", "sybil", "sybil"]),
    miners("idlers", &["freeloader-random", "freeloader-tiny", "freeloader-replay"]),
    miners("other-work", &["wrong-data", "partial-data", "half-data", "noise", "noise-loud"]),
    miners("poison", &["poison-sign", "poison-norm"]),
    miners(ONE_SHOT, &["poison-one-shot"]),
    miners(ELEVEN, &["honest"]),
    miners(ONE_AWAY, &[AWAY]),
];

/// An honest seat that stays away once.
const AWAY: &str = "away-once";

/// Sends nothing in the window in which another would poison.
#[derive(Default)]
struct AwayOnce {
    windows: u32,
}

impl Adversary for AwayOnce {
    fn declares(&mut self, _at: &MinerContext<'_>, trained: u32, _assigned: u32) -> u32 {
        self.windows += 1;
        if self.windows == adversaries::GOOD_WINDOWS + 1 { 0 } else { trained }
    }
}

impl Plan {
    /// Whether it is one of these networks, or has to do with one of these adversaries; what is compared with always has.
    fn concerns(&self, only: &[String]) -> bool {
        let seated = self.miners.iter().chain(self.validators);
        only.is_empty()
            || self.name == BASELINE
            || only.iter().any(|only| only == self.name || seated.clone().any(|name| only == name))
    }

    /// The seats, filled.
    fn cast(&self, seed: u64) -> Cast {
        let honest = |share, batch| MinerSeat::Honest { share, batch };
        let mut miners: Vec<(String, MinerSeat)> =
            (0..FULL).map(|_| (HONEST.to_owned(), honest(1.0, BATCH))).collect();
        miners.push((SLOW.to_owned(), honest(SLOW_SHARE, BATCH)));
        miners.push((OTHER_BATCH.to_owned(), honest(1.0, SMALL_BATCH)));
        let all_validators = match self.validators.len() {
            0 => VALIDATORS,
            cheats => (cheats + VALIDATORS_AMONG_CHEATS) as u16,
        };
        let mailbox = SharedMailbox::default();
        for (place, name) in self.miners.iter().enumerate() {
            let index = self.miners[..place].iter().filter(|other| *other == name).count() as u16;
            let setup =
                Setup { index, validators: all_validators, mailbox: mailbox.clone(), ..Setup::default() };
            let seat = match adversaries::miner(name, &setup) {
                Some(adversary) => MinerSeat::Adversary(adversary),
                None if *name == AWAY => MinerSeat::Adversary(Box::new(AwayOnce::default())),
                None => honest(1.0, BATCH),
            };
            // Of a pair only the seat that does not train is anything but honest.
            let name = if *name == "sybil" && index.is_multiple_of(2) { "sybil-trainer" } else { name };
            miners.push((name.to_owned(), seat));
        }
        let honest = if self.validators.is_empty() { VALIDATORS.into() } else { VALIDATORS_AMONG_CHEATS };
        let mut validators: Vec<(String, ValidatorSeat)> =
            (0..honest).map(|_| (HONEST.to_owned(), ValidatorSeat::Honest)).collect();
        for name in self.validators {
            let setup =
                Setup { validators: all_validators, friend: Some(protocol::Uid(0)), ..Setup::default() };
            let seat = match adversaries::validator(name, &setup) {
                Some(strategy) => ValidatorSeat::Adversary(strategy),
                None => ValidatorSeat::Honest,
            };
            validators.push(((*name).to_owned(), seat));
        }
        Cast {
            seed,
            miners,
            validators,
            honest_stake: self.honest_stake,
            // Where it is miners that are tried, one evaluation stands for all validators'.
            same_evaluation: self.validators.is_empty(),
            failures_ppm: self.failing * 10_000,
            restarts: Vec::new(),
        }
    }
}

/// Every adversary that some network of ours tries.
pub fn tried() -> impl Iterator<Item = (&'static str, Role)> {
    adversaries::KINDS.iter().map(|kind| (kind.name, kind.role)).filter(|(name, _)| {
        PLANS.iter().any(|plan| plan.miners.contains(name) || plan.validators.contains(name))
    })
}

/// What can be run alone: adversaries, and networks by name.
pub fn names() -> impl Iterator<Item = &'static str> {
    tried().map(|(name, _)| name).chain(PLANS.iter().map(|plan| plan.name))
}

/// Histories by network and seed.
pub type Histories = BTreeMap<&'static str, Vec<History>>;

/// Runs the networks that have to do with `only`, or all; `said` hears of each that is done.
///
/// # Errors
/// The first that stopped a network.
pub fn run(
    world: &World,
    seeds: &[u64],
    windows: u32,
    only: &[String],
    threads: usize,
    said: &(dyn Fn(&Plan, u64) + Sync),
) -> Result<Histories, SimError> {
    let jobs: Vec<(&Plan, u64)> = PLANS
        .iter()
        .filter(|plan| plan.concerns(only))
        .flat_map(|plan| seeds.iter().map(move |seed| (plan, *seed)))
        .collect();
    let hiding = world.hiding();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((plan, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let world = if plan.hiding { &hiding } else { world };
                    let history = alone(|| Network::new(world, plan.cast(*seed))?.run(windows));
                    said(plan, *seed);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((plan.name, *seed, history));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(name, seed, _)| (*name, *seed));
    let mut histories = Histories::new();
    for (name, _, history) in done {
        histories.entry(name).or_default().push(history?);
    }
    Ok(histories)
}

/// Runs `work` with a thread pool of one: for a model this small, handing its sums to other threads costs more than they take.
pub fn alone<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
        Ok(pool) => pool.install(work),
        // Without a pool of its own it runs on everybody's, to the same result.
        Err(_) => work(),
    }
}
