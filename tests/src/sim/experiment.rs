//! The networks of the gauntlet table. Each runs on one thread; one network per core runs at a time.
//!
//! Every network has the same ten honest miners: eight do all their work, a slow one does half and declares it, and
//! one has a smaller batch. Adversaries that do not disturb each other share a network with them, so the increase of
//! a network's loss is the effect of all its adversaries together.

use super::{
    network::{Cast, Link, MinerSeat, Network, Outage, Restart, SimError, ValidatorSeat},
    record::History,
    world::{BATCH, World},
};
use adversaries::{Adversary, MinerContext, Setup, SharedMailbox};
use protocol::{Block, Digest, Role, Window, window::Schedule};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

/// The name of an honest seat that does all its work.
pub const HONEST: &str = "honest";
/// The name of an honest seat that does half of its work and declares it.
pub const SLOW: &str = "slow";
/// The name of an honest seat with a smaller batch, and hence more steps.
pub const OTHER_BATCH: &str = "other-batch";
/// Number of seats named [`HONEST`].
pub const HONEST_SEATS: usize = 8;
/// Number of honest miners: these, the slow one, and the one with the smaller batch.
pub const HONEST_MINERS: usize = HONEST_SEATS + 2;
const SLOW_SHARE: f64 = 0.5;
const SMALL_BATCH: usize = BATCH * 3 / 4;
/// Validators of a network in which only miners cheat.
const VALIDATORS: u16 = 4;
/// Honest validators of a network in which other validators cheat. Together with the cheats that vote honestly, they
/// hold two thirds of the stake.
const VALIDATORS_AMONG_CHEATS: usize = 4;

/// A network of the experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub name: &'static str,
    /// The miners besides the ten honest ones.
    pub miners: &'static [&'static str],
    pub validators: &'static [&'static str],
    /// The stake of an honest validator, as a multiple of a cheating one's.
    pub honest_stake: u128,
    /// True if validators hide attestations and votes until the reveal (PROT-30).
    pub hidden_votes: bool,
    /// Percentage of objects that a validator cannot fetch.
    pub failing_percent: u32,
    /// True if nodes are killed and reopened, and seats disconnected temporarily.
    pub outages: bool,
    /// True if the seats are those of [`CAPACITIES`] instead of the ten honest ones.
    pub capacities: bool,
}

const fn miners(name: &'static str, miners: &'static [&'static str]) -> Plan {
    Plan {
        name,
        miners,
        validators: &[],
        honest_stake: 1,
        hidden_votes: false,
        failing_percent: 0,
        outages: false,
        capacities: false,
    }
}

/// One seat of one kind, and more seats of another kind than there are honest seats.
const fn among(one: &'static str, others: &'static str) -> [&'static str; 12] {
    let mut seats = [others; 12];
    seats[0] = one;
    seats
}

const fn validators(name: &'static str, honest_stake: u128, hidden_votes: bool) -> Plan {
    const CHEATS: &[&str] = &[
        "weight-copier",
        "receipt-copier",
        "prober",
        "inventor",
        "favourer",
        "absentee",
        "lazy-voter",
        "false-merge",
    ];
    Plan { validators: CHEATS, honest_stake, hidden_votes, ..miners(name, &[]) }
}

/// The ten honest miners alone.
pub const BASELINE: &str = "honest";
/// The baseline plus one honest miner. Until the poisoned window it equals [`ONE_SHOT`], bit for bit.
pub const ELEVEN: &str = "eleven";
/// Like [`ELEVEN`], but the eleventh miner skips the poisoned window. The difference from [`ELEVEN`] is noise.
pub const ONE_AWAY: &str = "one-away";
/// The baseline plus one miner that poisons once.
pub const ONE_SHOT: &str = "one-shot";
/// The baseline plus five cheats of four kinds.
pub const COLLUDERS: &str = "colluders";
/// The baseline plus more newcomers than honest seats. They all send the largest values that are not a fault.
pub const BOMBED: &str = "bombed";
/// The baseline plus a seat that stops working, and more seats without effect than honest ones.
pub const MUTED: &str = "muted";
/// The same with seats that have almost no effect.
pub const JUNK: &str = "junk-majority";
/// The baseline with failing storage.
pub const FAILING: &str = "failing-storage";
/// The same, with nodes killed and seats disconnected.
pub const OUTAGES: &str = "outages";
/// Eight cheating validators with a third of the stake; attestations and votes are hidden.
pub const CHEATING_VALIDATORS: &str = "validators";
/// The same validators, with public attestations and votes.
pub const IN_THE_OPEN: &str = "validators-in-the-open";
/// Like [`IN_THE_OPEN`], but the cheating validators have 8/12 of the stake.
pub const MOST_OF_THE_STAKE: &str = "validators-with-most-of-the-stake";

/// Five of thirteen parts of the stake leave the first seat out of the merge.
pub const EXCLUDED: &str = "excluded";
/// Five of thirteen parts of the stake cast no vote.
pub const STALLED: &str = "stalled";

/// A network in which more than a third of the stake disturbs in the same way.
const fn minority(name: &'static str, cheats: &'static [&'static str]) -> Plan {
    Plan { validators: cheats, honest_stake: 2, ..miners(name, &[]) }
}
/// The baseline, with a third of the stake behind validators that copy weights.
pub const COPIED_WEIGHTS: &str = "copied-weights";

/// Twelve honest seats with machines of three speeds.
pub const UNEQUAL: &str = "unequal-machines";
/// Names of [`UNEQUAL`]'s seats, four each, and the share of a window's sequences that they have time for.
pub const CAPACITIES: [(&str, f64); 3] = [(HONEST, 1.0), ("quarter", 0.25), ("sixteenth", 0.0625)];

/// All networks of the experiment.
pub const PLANS: &[Plan] = &[
    validators(CHEATING_VALIDATORS, 4, true),
    validators(IN_THE_OPEN, 4, false),
    validators(MOST_OF_THE_STAKE, 1, false),
    minority(EXCLUDED, &["third-excluder"; 5]),
    minority(STALLED, &["paid-stall"; 5]),
    Plan { validators: &["receipt-copier", "weight-copier"], ..miners(COPIED_WEIGHTS, &[]) },
    Plan { failing_percent: 5, ..miners(FAILING, &[]) },
    Plan { failing_percent: 5, outages: true, ..miners(OUTAGES, &[]) },
    miners(BASELINE, &[]),
    miners(
        "delivery",
        &["late", "withholder", "equivocator", "malformed", "clock-liar", "slow-loris", "freeloader-zeros"],
    ),
    miners(COLLUDERS, &["sybil", "sybil", "freeloader-random", "poison-sign", "copycat-mixture"]),
    miners("copiers", &["copycat", "copycat-last", "copycat-mixture", "sybil", "sybil"]),
    miners("idlers", &["freeloader-random", "freeloader-tiny", "freeloader-replay"]),
    miners("other-work", &["wrong-data", "partial-data", "half-data", "noise", "noise-loud"]),
    miners("cheap-work", &["last-layers", "big-rate", "distilled", "distilled", "distilled"]),
    miners("less-text", &["truncated", "half-tokens"]),
    miners("poison", &["poison-sign", "poison-norm"]),
    miners(BOMBED, &among("newcomer-bomb", "newcomer-bomb")),
    miners(MUTED, &among("quitter", "mute")),
    miners(JUNK, &among("quitter", "junk")),
    miners(ONE_SHOT, &["poison-one-shot"]),
    miners(ELEVEN, &["honest"]),
    miners(ONE_AWAY, &[AWAY]),
    Plan { capacities: true, ..miners(UNEQUAL, &[]) },
];

/// The name of an honest seat that skips one window.
const AWAY: &str = "away-once";

/// Strategy that contributes nothing in the window in which `poison-one-shot` poisons.
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
    /// Returns whether `only` is empty or names this network or one of its adversaries. The baseline is always
    /// selected, because other networks are compared with it.
    fn is_selected(&self, only: &[String]) -> bool {
        let seated = self.miners.iter().chain(self.validators);
        only.is_empty()
            || self.name == BASELINE
            || only.iter().any(|only| only == self.name || seated.clone().any(|name| only == name))
    }

    /// Returns the seats of the network, with their behaviour.
    fn cast(&self, seed: u64, windows: u32, schedule: &Schedule) -> Cast {
        let honest = |share, batch| MinerSeat::Honest { share, batch };
        let mut miners: Vec<(String, MinerSeat)> =
            (0..HONEST_SEATS).map(|_| (HONEST.to_owned(), honest(1.0, BATCH))).collect();
        miners.push((SLOW.to_owned(), honest(SLOW_SHARE, BATCH)));
        miners.push((OTHER_BATCH.to_owned(), honest(1.0, SMALL_BATCH)));
        if self.capacities {
            miners = (0..12)
                .map(|seat| CAPACITIES[seat % CAPACITIES.len()])
                .map(|(name, share)| (name.to_owned(), honest(share, BATCH)))
                .collect();
        }
        let all_validators = match self.validators.len() {
            0 => VALIDATORS,
            cheats => (cheats + VALIDATORS_AMONG_CHEATS) as u16,
        };
        let mailbox = SharedMailbox::default();
        for (position, name) in self.miners.iter().enumerate() {
            let index = self.miners[..position].iter().filter(|other| *other == name).count() as u16;
            let setup =
                Setup { index, validators: all_validators, mailbox: mailbox.clone(), ..Setup::default() };
            let seat = match adversaries::miner(name, &setup) {
                Some(adversary) => MinerSeat::Adversary(adversary),
                None if *name == AWAY => MinerSeat::Adversary(Box::new(AwayOnce::default())),
                None => honest(1.0, BATCH),
            };
            // The first seat of a pair or group trains; the others send its work.
            let name = match *name {
                "sybil" if index.is_multiple_of(2) => "sybil-trainer",
                "distilled" if index == 0 => "distilled-trainer",
                name => name,
            };
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
            honest_stake: self.honest_stake,
            // If only miners cheat, all validators use the same evaluation.
            same_evaluation: self.validators.is_empty(),
            failures_ppm: self.failing_percent * 10_000,
            restarts: if self.outages { restarts(seed, windows, schedule) } else { Vec::new() },
            outages: if self.outages { outages(seed, windows, schedule) } else { Vec::new() },
            ..Cast::new(seed, miners, validators)
        }
    }
}

/// A number below `below`, drawn for `window`.
fn drawn(seed: u64, window: u32, what: &[u8], below: u32) -> u32 {
    let drawn = Digest::of_parts(&[b"outages", &seed.to_le_bytes(), &window.to_le_bytes(), what]);
    u32::from_le_bytes([drawn.0[0], drawn.0[1], drawn.0[2], drawn.0[3]]) % below
}

/// Draws a seat that does all its work: one of the first miners, or a validator.
fn drawn_seat(seed: u64, window: u32, what: &[u8]) -> usize {
    let seat = drawn(seed, window, what, (HONEST_SEATS + usize::from(VALIDATORS)) as u32) as usize;
    if seat < HONEST_SEATS { seat } else { seat - HONEST_SEATS + HONEST_MINERS }
}

/// Schedules one kill per window, of a random node at a random block.
fn restarts(seed: u64, windows: u32, schedule: &Schedule) -> Vec<Restart> {
    let restart = |window| Restart {
        seat: drawn_seat(seed, window, b"killed"),
        at: Block(
            schedule.opens_at(Window(window)).0 + drawn(seed, window, b"kill", schedule.blocks_per_window),
        ),
    };
    (0..windows).map(restart).collect()
}

/// Schedules one outage per window, of a random seat from a random block, for at most a window.
fn outages(seed: u64, windows: u32, schedule: &Schedule) -> Vec<Outage> {
    let outage = |window| {
        let blocks = schedule.blocks_per_window;
        let from = schedule.opens_at(Window(window)).0 + drawn(seed, window, b"cut", blocks);
        let until = from + 1 + drawn(seed, window, b"heal", blocks);
        let seat = drawn_seat(seed, window, b"cut off");
        Outage { seat, from: Block(from), until: Block(until), link: Link::All }
    };
    (0..windows).map(outage).collect()
}

/// Returns the adversaries of all networks.
pub fn tested_adversaries() -> impl Iterator<Item = (&'static str, Role)> {
    adversaries::KINDS.iter().map(|kind| (kind.name, kind.role)).filter(|(name, _)| {
        PLANS.iter().any(|plan| plan.miners.contains(name) || plan.validators.contains(name))
    })
}

/// Returns the names that [`run`] accepts: adversaries and networks.
pub fn names() -> impl Iterator<Item = &'static str> {
    tested_adversaries().map(|(name, _)| name).chain(PLANS.iter().map(|plan| plan.name))
}

/// Histories by network and seed.
pub type Histories = BTreeMap<&'static str, Vec<History>>;

/// Runs the networks that `only` selects, or all if it is empty. Calls `on_done` after each network.
///
/// # Errors
/// The first error of a network.
pub fn run(
    world: &World,
    seeds: &[u64],
    windows: u32,
    only: &[String],
    residual_share: f64,
    threads: usize,
    on_done: &(dyn Fn(&Plan, u64) + Sync),
) -> Result<Histories, SimError> {
    let jobs: Vec<(&Plan, u64)> = PLANS
        .iter()
        .filter(|plan| plan.is_selected(only))
        .flat_map(|plan| seeds.iter().map(move |seed| (plan, *seed)))
        .collect();
    let hidden_votes = world.with_hidden_votes();
    let long_windows = world.with_long_windows();
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, jobs.len().max(1)) {
            scope.spawn(|| {
                while let Some((plan, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let world = match plan {
                        Plan { hidden_votes: true, .. } => &hidden_votes,
                        Plan { capacities: true, .. } => &long_windows,
                        _ => world,
                    };
                    let history = on_one_thread(|| {
                        let cast = plan.cast(*seed, windows, &world.params.schedule);
                        Network::new(world, Cast { residual_share, ..cast })?.run(windows)
                    });
                    on_done(plan, *seed);
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

/// Runs `work` with a pool of one thread: more threads make a model this small slower.
pub fn on_one_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    match rayon::ThreadPoolBuilder::new().num_threads(1).build() {
        Ok(pool) => pool.install(work),
        // In the global pool the result is the same.
        Err(_) => work(),
    }
}
