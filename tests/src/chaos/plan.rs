//! The draw of a seed: the cheating seats, and the faults with their start and end.

use super::CALM_WINDOWS_MAX;
use crate::sim::{
    network::{Cast, Event, Leaves, Link, MinerSeat, Outage, Timed, ValidatorSeat},
    nodes::EVALUATES_ALL,
    planted::{self, Planted},
    second_thread::SECOND_THREAD,
    world::World,
};
use adversaries::{SeededRng, Setup, SharedMailbox};
use daemon::Blocking;
use mettle_runtime::SLOT_DURATION;
use protocol::{Block, Role, RunParams, Schedule, Terms, Window};
use serde::Serialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::Range,
    time::Duration,
};
use store::faults::{Faults, Rate};

/// Maximum duration of a fault, in blocks: a window and a half.
const LONGEST_BLOCKS: u64 = 18;
/// Maximum time without finality, in blocks.
pub(super) const LONGEST_STALL: u32 = 9;
/// Maximum latency of the chain. Kills fall between any two answers.
const LATENCY_MAX: Duration = Duration::from_millis(40);
/// Number of seat-windows per fault of each kind in a small network. Most windows have a fault of the whole network,
/// or of more than a third of the validators.
const SEAT_WINDOWS_PER_FAULT: u64 = 20;
/// Maximum number of seats of a small network. In a larger one, each role and the whole network have their own faults,
/// so that most windows are merged: only then is a missing contribution a violation.
const SMALL_NETWORK_SEATS_MAX: usize = 24;
/// The same as [`SEAT_WINDOWS_PER_FAULT`] for the miners of a larger network.
const MINER_WINDOWS_PER_FAULT: u64 = 40;
/// The same for its validators.
const VALIDATOR_WINDOWS_PER_FAULT: u64 = 160;
/// Number of a larger network's windows per fault of finality.
const WINDOWS_PER_STALL: u32 = 24;
/// Number of its windows per period of late calls.
const WINDOWS_PER_LATE_CALLS: u32 = 24;
/// Number of its windows per outage that divides the whole network.
const WINDOWS_PER_PARTITION: u32 = 8;
/// Number of windows per upgrade of the runtime, in any network.
const WINDOWS_PER_UPGRADE: u32 = 24;
/// Maximum number of seats of one role that are disconnected together in a larger network.
const CUT_OFF_MAX: usize = 6;

/// Maximum number of windows between two checkpoints, unless the network needs more.
const CHECKPOINT_WINDOWS_MAX: u32 = 12;

/// Number of contributions that a validator of a larger network evaluates in a window: the default of `validator
/// serve`.
const EVALUATIONS_MAX: usize = 64;

/// Parameters that determine a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Options {
    pub seed: u64,
    pub miners: usize,
    pub validators: usize,
    pub windows: u32,
    /// Numbers of the faults that occur; `None`: all drawn faults.
    pub keep: Option<BTreeSet<usize>>,
    #[serde(skip)]
    pub planted: Option<Planted>,
}

/// A fault of some seats, from the head `from` until the head `until`.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Number from 1, in the order in which faults are drawn.
    pub number: usize,
    pub kind: Kind,
    /// Uids of the affected seats. Empty: the fault affects no single seat.
    pub seats: BTreeSet<usize>,
    pub from: u32,
    pub until: u32,
    /// Delay after these heads.
    after: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// The seats follow the adversary of this name.
    Cheat(&'static str),
    /// The node is killed at any await and reopened immediately. Unless a disk loses data, it must lose nothing.
    Kill(Leaves),
    /// The node is killed, and reopened at the end.
    Down,
    /// The seats are disconnected from the chain and the others, or in one direction only.
    CutOff(Link),
    /// The node sees heads this many blocks late.
    HeadLag(u32),
    /// The chain includes calls up to this many blocks late, and in another order.
    LateCalls(u32),
    /// The chain does not answer the node.
    Silence,
    /// No block is finalised until the end of the fault, which finalises all blocks together.
    LateFinality,
    /// The same, and at the end the blocks are replaced by others. Their calls are included again, or lost until their
    /// clients resubmit them.
    Fork { loses_calls: bool },
    /// The chain's runtime is upgraded: its migrations run, calls in the pool are lost until their clients resubmit
    /// them, and all clients reconnect.
    Upgrade,
    /// The node's reads are answered from the block at which the fault began.
    OldReads,
    /// The node sees the best block as final. Until the fault ends, it may write statements that a fork then reverts.
    ShowsBest,
    /// The chain includes the node's calls, but does not send it the results.
    NoResults,
    /// Each operation on the bucket fails, or every second one.
    BucketFails(Rate),
    /// Objects arrive late and slowly.
    BucketIsSlow,
    /// The bucket serves other bytes, too few, or none.
    BucketLies,
    /// The bucket has no space.
    BucketIsFull,
    /// No file of the node grows beyond this many bytes.
    FullDisk(u64),
    /// A miner registers.
    Join,
    /// The miner stops and deregisters its seat.
    Leave,
}

impl Options {
    pub fn new(seed: u64, miners: usize, validators: usize, windows: u32) -> Options {
        Options { seed, miners, validators, windows, keep: None, planted: None }
    }

    /// Returns the number of windows without faults at the end.
    pub fn calm_windows(&self) -> u32 {
        (self.windows / 2).min(CALM_WINDOWS_MAX)
    }

    /// Returns the first window without faults.
    pub(super) fn calm(&self) -> Window {
        Window(self.windows - self.calm_windows())
    }

    /// Returns the number of windows between two checkpoints, so that one follows the calm's first window, which is
    /// merged. A validator that failed to get a selected contribution for half a minute has no vote until the next
    /// checkpoint.
    fn checkpoint_windows(&self) -> u32 {
        let second = self.calm().next().0;
        (2..=CHECKPOINT_WINDOWS_MAX).rev().find(|windows| second.is_multiple_of(*windows)).unwrap_or(second)
    }

    /// Extends the run of `world` to all seats, and shortens epochs so that a short network has several.
    pub(super) fn adapt(&self, world: &mut World) {
        let seats = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        *world = world.with_small_model();
        let checkpoint_windows = self.checkpoint_windows();
        world.params = RunParams { epoch_windows: 2, checkpoint_windows, ..world.params };
        world.terms = Terms {
            miner_seats_max: seats(self.miners + 16),
            validator_seats_max: seats(self.validators),
            active_set_max: seats(self.validators).max(world.terms.active_set_max),
            ..world.terms
        };
    }

    /// Returns the number of seats that begin with the network.
    fn seats(&self) -> usize {
        self.miners + self.validators
    }

    fn is_large(&self) -> bool {
        SMALL_NETWORK_SEATS_MAX < self.seats()
    }

    /// Returns the name of a seat that begins with the network.
    pub(super) fn name(&self, seat: usize) -> String {
        let role = if seat < self.miners { Role::Miner } else { Role::Validator };
        format!("{role}-{seat}")
    }

    /// Returns the arguments that repeat the network.
    pub fn arguments(&self) -> String {
        let Options { seed, miners, validators, windows, keep, .. } = self;
        let mut text =
            format!("--seed {seed} --miners {miners} --validators {validators} --windows {windows}");
        if let Some(keep) = keep {
            let numbers: Vec<String> = keep.iter().map(usize::to_string).collect();
            text += &format!(" --keep {}", numbers.join(","));
        }
        text
    }
}

impl Fault {
    /// Returns whether the fault allows the seat to be idle and look faulty between these heads.
    pub fn excuses(&self, seat: usize, from: u32, until: u32) -> bool {
        let is_disturbed = match self.kind {
            Kind::Kill(leaves) => leaves == Leaves::Truncated,
            Kind::LateCalls(_) | Kind::LateFinality | Kind::Fork { .. } | Kind::Upgrade => true,
            // The fault also excuses readers of the bucket, if the plan names them.
            Kind::BucketIsSlow => true,
            _ => self.seats.contains(&seat),
        };
        // A node that lags at that point needs some blocks.
        let ends = self.until.saturating_add(LONGEST_LAG + 1);
        let is_of_seat =
            self.seats.is_empty() || self.seats.contains(&seat) || self.kind == Kind::BucketIsSlow;
        is_disturbed && is_of_seat && self.kind != Kind::Join && self.from < until && from <= ends
    }

    fn events(&self) -> Vec<Event> {
        let Some(seat) = self.seats.first().copied() else {
            return match self.kind {
                Kind::LateCalls(blocks) => {
                    vec![Event::DelayCalls { blocks }, Event::DelayCalls { blocks: 0 }]
                }
                Kind::Join => vec![Event::Register],
                Kind::LateFinality => [true, false].map(|is_stalled| Event::Stall { is_stalled }).into(),
                Kind::Fork { .. } => vec![Event::Stall { is_stalled: true }],
                Kind::Upgrade => [false, true].map(|is_over| Event::Upgrade { is_over }).into(),
                _ => Vec::new(),
            };
        };
        let inject = |faults: Faults| Event::Inject { seat, faults: Box::new(faults) };
        let bucket = |faults| vec![inject(faults), inject(Faults::default())];
        match self.kind {
            Kind::Cheat(_)
            | Kind::CutOff(_)
            | Kind::LateCalls(_)
            | Kind::LateFinality
            | Kind::Fork { .. }
            | Kind::Upgrade
            | Kind::Join => Vec::new(),
            Kind::OldReads => [true, false].map(|is_held| Event::HoldBack { seat, is_held }).into(),
            Kind::ShowsBest => [true, false].map(|is_shown| Event::ShowBest { seat, is_shown }).into(),
            Kind::NoResults => [true, false].map(|are_kept| Event::KeepResults { seat, are_kept }).into(),
            Kind::Kill(leaves) => vec![Event::Kill { seat, leaves }, Event::Open { seat }],
            Kind::Down => vec![Event::Kill { seat, leaves: Leaves::Whole }, Event::Open { seat }],
            Kind::HeadLag(blocks) => vec![Event::Lag { seat, blocks }, Event::Lag { seat, blocks: 0 }],
            Kind::Silence => [true, false].map(|is_silent| Event::Silence { seat, is_silent }).into(),
            Kind::FullDisk(bytes) => {
                [Some(bytes), None].map(|bytes| Event::LimitFiles { seat, bytes }).into()
            }
            Kind::Leave => vec![Event::Leave { seat }],
            Kind::BucketFails(unavailable) => {
                bucket(Faults { unavailable, answer_lost: Rate::Share(0.1), ..Faults::default() })
            }
            Kind::BucketIsSlow => bucket(Faults {
                delay_max: Duration::from_secs(6),
                stalled: Rate::Share(0.3),
                stall: Duration::from_secs(15),
                dripped: Rate::Share(0.3),
                drip_bytes_per_second: 512,
                ..Faults::default()
            }),
            Kind::BucketLies => bucket(Faults {
                flipped: Rate::Share(0.3),
                truncated: Rate::Share(0.3),
                missing: Rate::Share(0.3),
                ..Faults::default()
            }),
            Kind::BucketIsFull => bucket(Faults { full: true, ..Faults::default() }),
        }
    }
}

/// Maximum number of blocks by which heads are late.
const LONGEST_LAG: u32 = 4;

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { number, kind, seats, from, until, after } = self;
        write!(f, "{number}: {kind:?}")?;
        if !seats.is_empty() {
            write!(f, " of seats {seats:?}")?;
        }
        match *until {
            u32::MAX => write!(f, " from block {from} on"),
            until if until == *from => write!(f, " at block {from} + {} ms", after.as_millis()),
            until => write!(f, " from block {from} to {until} + {} ms", after.as_millis()),
        }
    }
}

/// Numbers of faults, by the affected seats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounts {
    pub cheats: usize,
    /// Faults of the chain or of no seat in particular.
    pub of_all: usize,
    /// Faults of validators, and possibly of miners too.
    pub of_validators: usize,
    pub of_miners: usize,
}

/// The draw of a seed.
pub struct Plan {
    pub faults: Vec<Fault>,
    /// Head at which a node without a seat joins.
    pub late_join: Block,
    /// Indices in `faults` of the faults of each seat.
    of_seat: BTreeMap<usize, Vec<usize>>,
    /// Indices in `faults` of the faults that disturb every seat.
    of_all: Vec<usize>,
}

struct Drawing<'a> {
    random: SeededRng,
    options: &'a Options,
    schedule: &'a Schedule,
    faults: Vec<Fault>,
    /// Honest seats that stay, by uid.
    stay: Vec<usize>,
}

/// Seats with the same density of faults.
struct Group {
    /// Number of seats at the start.
    size: usize,
    /// Honest seats that stay.
    stay: Vec<usize>,
    windows_per_fault: u64,
    cut_off_max: usize,
}

impl Drawing<'_> {
    /// Draws a number of faults of one kind.
    fn count_of(&mut self, seats: usize, windows_per_fault: u64) -> u64 {
        let windows = u64::from(self.options.calm().0);
        self.random.below(1 + 2 * (seats as u64 * windows).div_ceil(windows_per_fault))
    }

    fn count(&mut self) -> u64 {
        self.count_of(self.options.seats(), SEAT_WINDOWS_PER_FAULT)
    }

    /// Draws a number of faults of the whole network of one kind.
    fn count_of_all(&mut self, windows_per_fault: u32) -> u64 {
        let most =
            if self.options.is_large() { self.options.calm().0.div_ceil(windows_per_fault) } else { 2 };
        self.count().min(most.into())
    }

    fn groups(&self) -> Vec<Group> {
        let Options { miners, validators, .. } = *self.options;
        let group = |seats: Range<usize>, windows_per_fault, cut_off_max| Group {
            size: seats.len(),
            stay: self.stay.iter().copied().filter(|seat| seats.contains(seat)).collect(),
            windows_per_fault,
            cut_off_max,
        };
        let seats = miners + validators;
        if !self.options.is_large() {
            return vec![group(0..seats, SEAT_WINDOWS_PER_FAULT, seats.div_ceil(3))];
        }
        vec![
            group(0..miners, MINER_WINDOWS_PER_FAULT, CUT_OFF_MAX),
            group(miners..seats, VALIDATOR_WINDOWS_PER_FAULT, CUT_OFF_MAX.min(validators.div_ceil(3))),
        ]
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.random.below(of.len() as u64) as usize]
    }

    /// Draws a head before the calm.
    fn block(&mut self) -> u32 {
        let (from, calm) = (self.schedule.opens_at(Window::FIRST).0, self.calm());
        from + self.random.below(u64::from(calm - from)) as u32
    }

    fn calm(&self) -> u32 {
        self.schedule.opens_at(self.options.calm()).0
    }

    /// Adds a fault with a duration.
    fn lasting(&mut self, kind: Kind, seats: impl IntoIterator<Item = usize>) {
        let from = self.block();
        let until = from + 1 + self.random.below(LONGEST_BLOCKS) as u32;
        let after = Duration::from_millis(self.random.below(SLOT_DURATION));
        self.add(kind, seats, from, until.min(self.calm()), after);
    }

    /// Adds a fault of finality, after the end of the last one.
    fn stall(&mut self, kind: Kind) {
        let (from, calm) = (self.block(), self.calm());
        let until = (from + 1 + self.random.below(u64::from(LONGEST_STALL)) as u32).min(calm);
        let after = Duration::from_millis(self.random.below(SLOT_DURATION));
        let stalls = |fault: &&Fault| matches!(fault.kind, Kind::LateFinality | Kind::Fork { .. });
        if self.faults.iter().filter(stalls).all(|fault| until < fault.from || fault.until < from) {
            self.add(kind, [], from, until, after);
        }
    }

    /// Adds an instantaneous fault.
    fn at(&mut self, kind: Kind, seats: impl IntoIterator<Item = usize>, lasts: u32) {
        let (at, after) = (self.block(), Duration::from_millis(self.random.below(SLOT_DURATION)));
        self.add(kind, seats, at, at.saturating_add(lasts), after);
    }

    fn add(
        &mut self,
        kind: Kind,
        seats: impl IntoIterator<Item = usize>,
        from: u32,
        until: u32,
        after: Duration,
    ) {
        let (number, seats): (_, BTreeSet<usize>) = (self.faults.len() + 1, seats.into_iter().collect());
        if matches!(kind, Kind::Cheat(_) | Kind::Leave) {
            self.stay.retain(|seat| !seats.contains(seat));
        }
        self.faults.push(Fault { number, kind, seats, from, until, after });
    }

    /// Draws the cheats: a fifth of the miners, and one validator of four or more.
    fn cheats(&mut self) {
        let kinds = |role| -> Vec<&'static str> {
            let kinds = adversaries::KINDS.iter().filter(|kind| kind.role == role && !kind.in_pairs);
            kinds.map(|kind| kind.name).collect()
        };
        let (miners, validators) = (self.options.miners, self.options.validators);
        for back in 0..miners / 5 {
            let name = self.pick(&kinds(Role::Miner));
            self.add(Kind::Cheat(name), [miners - 1 - back], 0, u32::MAX, Duration::ZERO);
        }
        if 4 <= validators {
            let name = self.pick(&kinds(Role::Validator));
            self.add(Kind::Cheat(name), [miners + validators - 1], 0, u32::MAX, Duration::ZERO);
        }
    }

    fn draw(&mut self) {
        self.cheats();
        for _ in 0..self.count().min(self.options.miners as u64 / 4) {
            let at = self.random.below(self.stay.len() as u64) as usize;
            let seat = Some(self.stay[at]).filter(|seat| *seat < self.options.miners);
            if let Some(seat) = seat {
                self.at(Kind::Leave, [seat], u32::MAX);
            }
        }
        for _ in 0..self.count().min(4) {
            self.at(Kind::Join, [], 0);
        }
        for _ in 0..self.count_of_all(WINDOWS_PER_LATE_CALLS) {
            let blocks = 1 + self.random.below(2) as u32;
            self.lasting(Kind::LateCalls(blocks), []);
        }
        let groups = self.groups();
        groups.iter().for_each(|group| self.faults_of(group));
        if self.options.is_large() {
            let (all, most) = (self.stay.clone(), self.options.seats().div_ceil(3));
            for _ in 0..self.count_of_all(WINDOWS_PER_PARTITION) {
                self.cut_off(&all, most);
            }
        }
        for _ in 0..self.count_of_all(WINDOWS_PER_STALL) {
            let loses_calls = self.pick(&[true, false]);
            let kind = self.pick(&[Kind::LateFinality, Kind::Fork { loses_calls }]);
            self.stall(kind);
        }
        for group in &groups {
            for _ in 0..self.count_of(group.size, group.windows_per_fault) {
                let seat = self.pick(&group.stay);
                let kind = self.pick(&[Kind::OldReads, Kind::ShowsBest, Kind::NoResults]);
                self.lasting(kind, [seat]);
            }
        }
        let upgrades = self.options.calm().0.div_ceil(WINDOWS_PER_UPGRADE);
        for _ in 0..self.random.below(u64::from(upgrades) + 1) {
            self.at(Kind::Upgrade, [], 1);
        }
    }

    /// Disconnects up to `most` of `seats` together.
    fn cut_off(&mut self, seats: &[usize], most: usize) {
        let link = self.pick(&[Link::All, Link::All, Link::Heads, Link::Calls, Link::Reads, Link::Readers]);
        let size = 1 + self.random.below(most as u64);
        let seats: Vec<usize> = (0..size).map(|_| self.pick(seats)).collect();
        self.lasting(Kind::CutOff(link), seats);
    }

    /// Draws faults of the seats of a group.
    fn faults_of(&mut self, group: &Group) {
        let Group { size, windows_per_fault, .. } = *group;
        for _ in 0..2 * self.count_of(size, windows_per_fault) {
            let leaves = self.pick(&[Leaves::Whole, Leaves::Whole, Leaves::Unfinished, Leaves::Renamed]);
            let seat = self.pick(&group.stay);
            self.at(Kind::Kill(leaves), [seat], 0);
        }
        for _ in 0..self.count_of(size, windows_per_fault) {
            self.cut_off(&group.stay, group.cut_off_max);
        }
        // Each fault affects one node.
        let kinds = [
            Kind::Kill(Leaves::Truncated),
            Kind::Down,
            Kind::HeadLag(LONGEST_LAG),
            Kind::Silence,
            Kind::BucketFails(Rate::Always),
            Kind::BucketFails(Rate::Share(0.5)),
            Kind::BucketIsSlow,
            Kind::BucketLies,
            Kind::BucketIsFull,
            Kind::FullDisk(4096),
        ];
        for _ in 0..5 * self.count_of(size, windows_per_fault) {
            let seat = self.pick(&group.stay);
            match self.pick(&kinds) {
                kind @ Kind::Kill(_) => self.at(kind, [seat], 0),
                Kind::HeadLag(longest) => {
                    let blocks = 1 + self.random.below(u64::from(longest)) as u32;
                    self.lasting(Kind::HeadLag(blocks), [seat]);
                }
                Kind::FullDisk(first) => {
                    let bytes = first << self.random.below(8);
                    self.lasting(Kind::FullDisk(bytes), [seat]);
                }
                kind => self.lasting(kind, [seat]),
            }
        }
    }
}

impl Plan {
    /// Draws all faults, then removes those that are not kept. Removing one changes no other.
    pub fn draw(options: &Options, schedule: &Schedule) -> Plan {
        let mut random = SeededRng::new(&[b"chaos", &options.seed.to_le_bytes()]);
        let into = random.below(u64::from(schedule.blocks_per_window)) as u32;
        let last = Window(options.windows - 3);
        let stay = (0..options.seats()).collect();
        let mut drawing = Drawing { random, options, schedule, faults: Vec::new(), stay };
        drawing.draw();
        let mut faults = drawing.faults;
        faults.retain(|fault| options.keep.as_ref().is_none_or(|keep| keep.contains(&fault.number)));
        let (mut of_seat, mut of_all) = (BTreeMap::<usize, Vec<usize>>::new(), Vec::new());
        for (place, fault) in faults.iter().enumerate() {
            fault.seats.iter().for_each(|seat| of_seat.entry(*seat).or_default().push(place));
            // A miner waits ten seconds for a bucket before it tries another one. It has six to commit.
            let is_waited_for =
                fault.kind == Kind::BucketIsSlow && fault.seats.iter().any(|seat| options.miners <= *seat);
            if is_waited_for {
                (0..options.miners).for_each(|miner| of_seat.entry(miner).or_default().push(place));
            }
            if fault.seats.is_empty() {
                of_all.push(place);
            }
        }
        Plan { faults, late_join: Block(schedule.opens_at(last).0 + into), of_seat, of_all }
    }

    /// Returns the faults that disturb one seat: its own, those of all, and slow buckets of validators.
    pub(super) fn of(&self, seat: usize) -> impl Iterator<Item = &Fault> {
        let own = self.of_seat.get(&seat).into_iter().flatten();
        own.chain(&self.of_all).map(|place| &self.faults[*place])
    }

    pub(super) fn counts(&self, options: &Options) -> FaultCounts {
        let mut counts = FaultCounts::default();
        for fault in &self.faults {
            let count = match fault.seats.last() {
                _ if matches!(fault.kind, Kind::Cheat(_)) => &mut counts.cheats,
                None => &mut counts.of_all,
                Some(seat) if options.miners <= *seat => &mut counts.of_validators,
                Some(_) => &mut counts.of_miners,
            };
            *count += 1;
        }
        counts
    }

    /// Returns the adversary's name, if the seat cheats.
    pub fn cheat(&self, seat: usize) -> Option<&'static str> {
        self.of(seat).find_map(|fault| match fault.kind {
            Kind::Cheat(name) => Some(name),
            _ => None,
        })
    }

    pub fn leaves(&self, seat: usize) -> bool {
        self.of(seat).any(|fault| fault.kind == Kind::Leave)
    }

    /// Returns the seats and faults for the simulation.
    pub(super) fn cast(&self, options: &Options) -> Cast {
        let mailbox = SharedMailbox::default();
        let setup = |index: usize| Setup {
            index: index as u16,
            validators: options.validators as u16,
            mailbox: mailbox.clone(),
            ..Setup::default()
        };
        let all = 0..options.miners + options.validators;
        let miners = all.clone().take(options.miners).map(|seat| {
            let adversary = self.cheat(seat).and_then(|name| adversaries::miner(name, &setup(seat)));
            (
                options.name(seat),
                adversary.map_or_else(|| planted::miner(options.planted), MinerSeat::Adversary),
            )
        });
        let validators = all.clone().skip(options.miners).map(|seat| {
            let strategy = self.cheat(seat).and_then(|name| adversaries::validator(name, &setup(seat)));
            let honest = || planted::validator(options.planted);
            (options.name(seat), strategy.map_or_else(honest, ValidatorSeat::Adversary))
        });
        let cast = Cast::new(options.seed, miners.collect(), validators.collect());
        let timed = |fault: &Fault| {
            let (at, after) = ([fault.from, fault.until], fault.after);
            let events = fault.events().into_iter().zip(at);
            let events = events.map(move |(event, at)| Timed { at: Block(at), after, event });
            let mut events = events.collect::<Vec<_>>();
            if let Kind::Fork { loses_calls } = fault.kind {
                let end = [Event::Reorganise { are_lost: loses_calls }, Event::Stall { is_stalled: false }];
                events.extend(end.map(|event| Timed { at: Block(fault.until), after, event }));
            }
            events
        };
        let outages = self.faults.iter().filter_map(|fault| match fault.kind {
            Kind::CutOff(link) => Some(fault.seats.iter().map(move |seat| Outage {
                seat: *seat,
                from: Block(fault.from),
                until: Block(fault.until),
                link,
            })),
            _ => None,
        });
        Cast {
            same_evaluation: true,
            blocking: Blocking::By(&*SECOND_THREAD),
            evaluations_max: if options.is_large() { EVALUATIONS_MAX } else { EVALUATES_ALL },
            outages: outages.flatten().collect(),
            late_joins: vec![self.late_join],
            events: self.faults.iter().flat_map(timed).collect(),
            latency_max: LATENCY_MAX,
            planted: options.planted,
            expendable: all
                .filter(|seat| self.cheat(*seat).is_some())
                .map(|seat| options.name(seat))
                .collect(),
            misled: self
                .faults
                .iter()
                .filter(|fault| fault.kind == Kind::ShowsBest)
                .flat_map(|fault| &fault.seats)
                .map(|seat| options.name(*seat))
                .collect(),
            is_cut_off: true,
            ..cast
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule {
        start: Block(12),
        blocks_per_window: 12,
        commit_by: 3,
        reveal_by: 4,
        attest_by: 7,
        vote_by: 10,
    };

    #[test]
    fn faults_of_the_network_and_of_validators_do_not_grow_with_the_miners() {
        let mean = |miners| {
            let counts = (0..50).map(|seed| {
                let options = Options::new(seed, miners, 16, 30);
                Plan::draw(&options, &SCHEDULE).counts(&options)
            });
            counts.fold([0; 3], |[all, validators, miners], counts| {
                [all + counts.of_all, validators + counts.of_validators, miners + counts.of_miners]
            })
        };
        let ([all, validators, miners], [all_of_many, validators_of_many, miners_of_many]) =
            (mean(100), mean(1000));
        assert!(10 * all_of_many <= 11 * all, "{all_of_many} of all, {all} with a tenth of the miners");
        assert!(5 * validators_of_many <= 6 * validators, "{validators_of_many} of validators, {validators}");
        assert!(5 * miners <= miners_of_many, "{miners_of_many} of miners, {miners}");
    }

    #[test]
    fn a_fault_that_is_left_out_changes_no_other_and_no_fault_reaches_the_calm() {
        for seed in 0..50 {
            let options = Options::new(seed, 12, 5, 14);
            let plan = Plan::draw(&options, &SCHEDULE);
            let calm = SCHEDULE.opens_at(options.calm());
            let cast = plan.cast(&options);
            assert!(cast.events.iter().all(|timed| timed.at <= calm || timed.event == Event::Register));
            assert!(cast.outages.iter().all(|outage| outage.until <= calm));
            assert!(3 * cast.expendable.len() < options.miners + options.validators);
            let keep = plan.faults.iter().map(|fault| fault.number).filter(|number| number % 2 == 0);
            let fewer = Options { keep: Some(keep.collect()), ..options };
            let mut even = plan.faults;
            even.retain(|fault| fault.number % 2 == 0);
            assert_eq!(Plan::draw(&fewer, &SCHEDULE).faults, even);
        }
    }
}
