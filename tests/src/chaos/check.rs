//! The rules that a network must keep under all faults.
//!
//! A seat that a fault disturbs is excused in that window and the next one. It need not contribute, and may look
//! faulty to others. A kill does not excuse a node that reopens immediately. Never excused are two statements for one
//! window, another lineage than the chain's, a journal entry without its counterpart on the chain, and wrong sums of
//! money.

use super::{
    CALM_WINDOWS_MAX, Options, Plan,
    plan::{Fault, Kind, LONGEST_STALL},
};
use crate::sim::{
    chain::{SealedCall, SharedChain},
    network::{LATE_JOINER, RUN, SimError},
    nodes::Seen,
    second_thread::SECOND_THREAD,
};
use daemon::{Entry, Executor as _};
use mettle_runtime::{AccountId, Nomination, Registry, Rewards, RuntimeCall, Weights, Windows};
use protocol::{
    Block, Digest, RunParams, Uid, Window,
    view::{Outcome, SeatView, Verdict, WindowView},
};
use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
    sync::{Arc, OnceLock},
};

/// Maximum number of calls of one seat in a window.
const CALLS_MAX: usize = 64;
/// Maximum number of a seat's operations on its own bucket in a window: twice those of an upload that is retried for
/// its maximum time.
const WRITES_MAX: u64 = 400;

/// Number of valid contributions to merged windows after which the noise of measurements leaves almost no miner
/// without a weight. Most have one after two.
const PAID_AFTER: u32 = 6;

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    pub check: &'static str,
    pub block: u32,
    pub what: String,
}

/// Digest of all events in order. The second thread computes it.
#[derive(Default)]
struct Trace {
    /// Events since the last block.
    events: Vec<Event>,
    /// Parent of the nodes' directories, whose name differs in each run.
    home: Option<Arc<str>>,
    /// Digests of the events between two blocks.
    digests: Vec<Arc<OnceLock<Digest>>>,
}

enum Event {
    /// A journal entry: the block before it, the node, and the entry.
    Entry(u32, String, Arc<Entry>),
    /// A block, and the chain's state root after it.
    Block(Block, Digest),
}

impl Trace {
    /// Schedules the digest of the events since the last block.
    fn digest_events(&mut self) {
        let (events, digest) = (std::mem::take(&mut self.events), Arc::new(OnceLock::new()));
        self.digests.push(digest.clone());
        let home = self.home.clone();
        SECOND_THREAD.run_later(Box::new(move || {
            digest.get_or_init(|| digest_of(&events, home.as_deref()));
        }));
    }

    fn digest(&mut self) -> String {
        self.digest_events();
        SECOND_THREAD.finish();
        let digests: Vec<&[u8]> =
            self.digests.iter().filter_map(|digest| digest.get()).map(|digest| &digest.0[..]).collect();
        Digest::of_parts(&digests).to_string()
    }
}

fn digest_of(events: &[Event], home: Option<&str>) -> Digest {
    let mut hasher = blake3::Hasher::new();
    for event in events {
        let (block, name, text) = match event {
            Event::Entry(block, name, entry) => {
                let text = without_seconds(&**entry);
                let text = match home {
                    Some(home) => text.replace(home, "home"),
                    None => text,
                };
                (*block, &name[..], text)
            }
            Event::Block(block, root) => (block.0, "block", root.to_string()),
        };
        hasher.update(&block.to_le_bytes());
        for part in [name, &text] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
    }
    Digest(*hasher.finalize().as_bytes())
}

/// A seat that began with the network.
struct Member {
    name: String,
    is_miner: bool,
    is_honest: bool,
}

pub(super) struct Checks {
    params: RunParams,
    options: Options,
    plan: Arc<Plan>,
    members: Vec<Member>,
    /// Index of each seat, by name.
    seat_of: BTreeMap<String, usize>,
    pub violations: Vec<Violation>,
    trace: Trace,
    pub events: u64,
    pub merged_windows: u32,
    pub merged_under_faults: u32,
    pub checked_windows: u32,
    pub valid_contributions: u64,
    /// Number of merged windows with a valid contribution, in epochs paid before the network ends, by seat.
    payable: BTreeMap<usize, u32>,
    block: u32,
    /// Journal entries about windows that have not ended, with their nodes.
    entries: Vec<(String, Arc<Entry>)>,
    /// Latest window whose model each node held, and the lineage, by node.
    held: BTreeMap<String, (Window, Digest)>,
    /// Lineage of the chain after the last window.
    last_lineage: Option<Digest>,
    /// Statement of an honest seat on the chain and its block, by account and subject.
    statements: BTreeMap<(AccountId, String), (u32, String)>,
    /// Number of calls in the open window, by account.
    calls: BTreeMap<AccountId, usize>,
    /// Number of the owner's operations until the last window's end, by bucket.
    writes: BTreeMap<usize, u64>,
    /// Seats at the network's start.
    first: Vec<SeatView>,
    /// Seats when the calm began.
    before: Vec<SeatView>,
    /// Current seats.
    seats: Vec<SeatView>,
}

impl Checks {
    pub fn new(options: &Options, plan: Arc<Plan>, params: &RunParams) -> Checks {
        let member = |seat| Member {
            name: options.name(seat),
            is_miner: seat < options.miners,
            is_honest: plan.cheat(seat).is_none(),
        };
        let members: Vec<Member> = (0..options.miners + options.validators).map(member).collect();
        Checks {
            params: *params,
            seat_of: members.iter().enumerate().map(|(seat, member)| (member.name.clone(), seat)).collect(),
            members,
            options: options.clone(),
            plan,
            violations: Vec::new(),
            trace: Trace::default(),
            events: 0,
            merged_windows: 0,
            merged_under_faults: 0,
            checked_windows: 0,
            valid_contributions: 0,
            payable: BTreeMap::new(),
            block: 0,
            entries: Vec::new(),
            held: BTreeMap::new(),
            last_lineage: None,
            statements: BTreeMap::new(),
            calls: BTreeMap::new(),
            writes: BTreeMap::new(),
            first: Vec::new(),
            before: Vec::new(),
            seats: Vec::new(),
        }
    }

    /// Returns the digest of all events so far.
    pub fn trace(&mut self) -> String {
        self.trace.digest()
    }

    pub fn see(&mut self, seen: Seen<'_>) {
        self.events += 1;
        match seen {
            Seen::Entry { chain, home, name, entry } => {
                self.trace.home.get_or_insert_with(|| home.display().to_string().into());
                let entry = Arc::new(entry.clone());
                self.trace.events.push(Event::Entry(self.block, name.to_owned(), entry.clone()));
                self.entry(chain, name, entry);
            }
            Seen::Block { chain, calls, writes } => {
                let (head, root) = {
                    let chain = chain.lock();
                    (chain.head().block, chain.state_root())
                };
                self.block = head.0;
                self.trace.events.push(Event::Block(head, root));
                self.trace.digest_events();
                self.block(chain, calls, writes);
            }
        }
    }

    fn broken(&mut self, check: &'static str, what: String) {
        // The first violations show the cause; the others follow from them.
        if self.violations.len() < 20 {
            self.violations.push(Violation { check, block: self.block, what });
        }
    }

    /// Returns whether a fault disturbs the seat in the window or the one before it.
    fn is_excused(&self, seat: usize, window: Window) -> bool {
        let schedule = &self.params.schedule;
        let from = schedule.opens_at(window).0.saturating_sub(schedule.blocks_per_window);
        let until = schedule.opens_at(window.next()).0;
        self.plan.of(seat).any(|fault| fault.excuses(seat, from, until))
    }

    fn honest(&self, name: &str) -> Option<usize> {
        self.seat_of.get(name).copied().filter(|seat| self.members[*seat].is_honest)
    }

    /// Returns whether the seat's node may see a block that is not final, now or some blocks ago.
    fn was_shown_best(&self, seat: usize) -> bool {
        let is_shown = |fault: &Fault| {
            fault.from <= self.block + LONGEST_STALL && self.block <= fault.until + LONGEST_STALL
        };
        self.plan.of(seat).any(|fault| fault.kind == Kind::ShowsBest && is_shown(fault))
    }

    /// Returns the number of seats without a weight whose contributions a validator fetches in one window (ADR 0043).
    fn fetched_max(&self) -> usize {
        gauntlet::gathering::unweighted_max(&self.params)
    }

    fn uid(&self, seat: usize) -> Option<Uid> {
        Some(self.first.get(seat)?.id.uid)
    }

    fn entry(&mut self, chain: &SharedChain, name: &str, entry: Arc<Entry>) {
        if let Entry::Holds { window, lineage, .. } = &*entry {
            self.held.insert(name.to_owned(), (*window, *lineage));
        }
        let seat = self.seat_of.get(name).copied();
        let is_cheat = seat.is_some_and(|seat| !self.members[seat].is_honest);
        // The chain that such a node saw had it.
        let is_misled = seat.is_some_and(|seat| self.was_shown_best(seat));
        if !is_cheat && !is_misled {
            self.is_final(chain, name, &entry);
            self.entries.push((name.to_owned(), entry));
        }
    }

    /// Checks that a node does nothing irreversible on a state that is not final.
    fn is_final(&mut self, chain: &SharedChain, name: &str, entry: &Entry) {
        let Some(window) = window_of(entry) else { return };
        if let Entry::Holds { .. } = entry {
            let Some(before) = window.0.checked_sub(1).map(Window) else { return };
            let is_over = self.params.schedule.opens_at(window).0 <= chain.lock().head().block.0;
            let outcome = chain.window_now(RUN, before).and_then(|view| view.outcome);
            // The chain forgets old windows.
            if !is_over && outcome.is_none() {
                let what = format!("{name} holds window {}, and the one before is not final", window.0);
                self.broken("finality", what);
            }
            return;
        }
        let Some(view) = chain.window_now(RUN, window) else { return };
        let seat = self.honest(name);
        if seat.is_some_and(|seat| !self.is_on(&view, seat, entry)) {
            self.broken("finality", format!("{name} wrote {entry:?}, which is not final"));
        }
    }

    fn block(&mut self, chain: &SharedChain, calls: &[SealedCall], writes: &BTreeMap<usize, u64>) {
        if self.first.is_empty() {
            self.first = chain.seats_now(RUN);
        }
        for call in calls {
            self.call(call);
        }
        let schedule = self.params.schedule;
        let blocks = schedule.blocks_per_window;
        if self.block == self.plan.late_join.0 + blocks {
            self.late_joiner();
        }
        let Some(window) = schedule.window_at(Block(self.block)) else { return };
        if self.options.windows <= window.0 {
            self.last_lineage = chain.window_now(RUN, Window(self.options.windows)).map(|view| view.lineage);
            return;
        }
        if self.block == schedule.opens_at(self.options.calm()).0 {
            self.before = chain.seats_now(RUN);
        }
        // The window's last block.
        if self.block + 1 == schedule.opens_at(window.next()).0 {
            self.seats = chain.seats_now(RUN);
            match chain.window_now(RUN, window) {
                Some(view) => {
                    self.journals(chain, window);
                    self.window(chain, &view);
                }
                None => self.broken("finality", format!("the chain has no window {}", window.0)),
            }
            self.money(chain);
            self.bounds(writes);
        }
    }

    /// Checks that a seat does not make two statements on one subject.
    fn call(&mut self, sealed: &SealedCall) {
        let SealedCall { signer, call, result } = sealed;
        let Some(seat) =
            self.first.iter().position(|seat| seat.hotkey.0[..] == *AsRef::<[u8]>::as_ref(signer))
        else {
            return;
        };
        *self.calls.entry(signer.clone()).or_default() += 1;
        if !self.members.get(seat).is_some_and(|member| member.is_honest) {
            return;
        }
        // A disconnected validator may attest after the deadline. The chain refuses that.
        if let (RuntimeCall::Windows(pallet_windows::Call::attest { window, verdicts, .. }), Ok(())) =
            (call, result)
        {
            self.accusations(seat, *window, verdicts);
        }
        let Some((subject, content)) = statement(call) else { return };
        let told = (self.block, content);
        let (block, before) =
            self.statements.entry((signer.clone(), subject.clone())).or_insert(told.clone());
        if *before != told.1 {
            let name = &self.members[seat].name;
            let text = format!(
                "{name} told the chain two things about {subject}: at block {block} {before}, and now {}",
                told.1
            );
            self.broken("two statements", text);
        }
    }

    /// Checks that an honest validator attests no fault of an undisturbed honest miner.
    fn accusations(&mut self, accuser: usize, window: Window, verdicts: &[(Uid, Verdict)]) {
        for (uid, _) in verdicts.iter().filter(|(_, verdict)| *verdict == Verdict::Faulty) {
            let of = (0..self.members.len()).find(|seat| self.uid(*seat) == Some(*uid));
            if let Some(of) = of.filter(|of| self.members[*of].is_honest && !self.is_excused(*of, window)) {
                let (accuser, of) = (&self.members[accuser].name, &self.members[of].name);
                let what = format!("{accuser} attested a fault of {of} in window {}", window.0);
                self.broken("honest seat at fault", what);
            }
        }
    }

    /// Checks that a joining node has the open window's model within one window.
    fn late_joiner(&mut self) {
        let open = self.params.schedule.window_at(Block(self.block)).unwrap_or_default();
        match self.held.get(LATE_JOINER).map(|(held, _)| *held) {
            Some(held) if open <= held => {}
            held => {
                let held = held.map_or("none".to_owned(), |held| held.0.to_string());
                let text =
                    format!("a window after it joined, the late joiner holds window {held} of {}", open.0);
                self.broken("late joiner", text);
            }
        }
    }

    /// Checks a window in its last block.
    fn window(&mut self, chain: &SharedChain, view: &WindowView) {
        let window = view.window;
        let is_merged = matches!(view.outcome, Some(Outcome::Merged(_)));
        self.merged_windows += u32::from(is_merged);
        self.merged_under_faults += u32::from(is_merged && window < self.options.calm());
        let is_working = |seat: usize| self.members[seat].is_honest && !self.is_excused(seat, window);
        let stake_of = |seat: usize| {
            let uid = self.uid(seat)?;
            view.active_set.iter().find(|(of, _)| *of == uid).map(|(_, stake)| *stake)
        };
        let validators = (0..self.members.len()).filter(|seat| !self.members[*seat].is_miner);
        let working: u128 = validators.filter(|seat| is_working(*seat)).filter_map(stake_of).sum();
        let all: u128 = view.active_set.iter().map(|(_, stake)| *stake).sum();
        // Whether two thirds could have received an undisturbed miner's contribution.
        let has_quorum = 0 < all && 2 * all <= 3 * working;
        let valid = view.selection.iter().flat_map(|selection| &selection.valid);
        let valid: BTreeSet<Uid> = valid.copied().collect();
        let committed: BTreeSet<Uid> = view.commitments.iter().map(|(uid, _)| *uid).collect();
        let weighted = view.weights.iter().filter(|(_, weight)| 0 < *weight);
        let weighted: BTreeSet<Uid> = weighted.map(|(uid, _)| *uid).collect();
        // A validator fetches each seat with a weight, and at most this many others: [`Checks::fetched_max`].
        let without_weight = committed.difference(&weighted).count();
        let fetches_all = without_weight <= self.fetched_max();
        let (mut lost, mut valid_contributions) = (Vec::new(), 0);
        for seat in (0..self.members.len()).filter(|seat| self.members[*seat].is_miner && is_working(*seat)) {
            let Some(uid) = self.uid(seat).filter(|uid| view.slots.contains(uid)) else { continue };
            let name = &self.members[seat].name;
            let is_fetched = fetches_all || weighted.contains(&uid);
            if !committed.contains(&uid) {
                lost.push(format!("{name} has no commitment in window {}", window.0));
            } else if has_quorum && is_fetched && !valid.contains(&uid) {
                lost.push(format!("{name}'s contribution to window {} is not valid", window.0));
            } else if valid.contains(&uid) {
                valid_contributions += 1;
            }
        }
        self.valid_contributions += valid_contributions;
        // Other windows are not judged.
        if is_merged && window.0 + 2 * self.params.epoch_windows < self.options.windows {
            let is_valid = |seat: &usize| self.uid(*seat).is_some_and(|uid| valid.contains(&uid));
            let seats: Vec<usize> = (0..self.members.len()).filter(is_valid).collect();
            seats.into_iter().for_each(|seat| *self.payable.entry(seat).or_default() += 1);
        }
        self.checked_windows += u32::from(has_quorum);
        lost.into_iter().for_each(|what| self.broken("lost contribution", what));
        let is_calm = self.options.calm().0 < window.0;
        if is_calm && has_quorum && !is_merged {
            self.broken(
                "liveness",
                format!("window {} ended {:?} without any fault", window.0, view.outcome),
            );
        }
        if self.options.windows == window.next().0 && self.options.calm_windows() == CALM_WINDOWS_MAX {
            self.paid(chain);
        }
    }

    /// Compares journal entries on this window and earlier ones with the chain.
    fn journals(&mut self, chain: &SharedChain, window: Window) {
        let mut views = BTreeMap::new();
        for (name, entry) in std::mem::take(&mut self.entries) {
            match window_of(&entry) {
                Some(of) if window < of => self.entries.push((name, entry)),
                Some(of) => {
                    // The chain forgets old windows.
                    let view = views.entry(of).or_insert_with(|| chain.window_now(RUN, of));
                    if let Some(view) = view {
                        self.journal(view, &name, &entry);
                    }
                }
                None => {}
            }
        }
    }

    /// Checks that an entry of an honest node's journal agrees with the chain.
    fn journal(&mut self, view: &WindowView, name: &str, entry: &Entry) {
        let window = view.window;
        if let Entry::Holds { lineage, .. } = entry
            && *lineage != view.lineage
        {
            let what =
                format!("{name} holds {lineage} in window {}, the chain has {}", window.0, view.lineage);
            self.broken("lineage", what);
        }
        let Some(seat) = self.honest(name) else { return };
        if !self.is_on(view, seat, entry) {
            self.broken("journal", format!("{name} wrote {entry:?}, which the chain does not have"));
        }
    }

    /// Returns whether the chain has the content of an entry in the seat's journal.
    fn is_on(&self, view: &WindowView, seat: usize, entry: &Entry) -> bool {
        let Some(uid) = self.uid(seat) else { return true };
        match entry {
            Entry::Committed { digest, .. } => view.commitments.contains(&(uid, *digest)),
            Entry::Attested { .. } => view.attested.contains(&uid),
            Entry::Voted { update, .. } => {
                view.votes.iter().any(|(of, vote)| *of == uid && vote.update == *update)
            }
            Entry::Anchored { receipt, .. } => view.receipts.contains(&(uid, *receipt)),
            _ => true,
        }
    }

    /// Checks that no honest seat loses stake, and that no unit of money appears or vanishes.
    fn money(&mut self, chain: &SharedChain) {
        for (seat, first) in self.first.clone().iter().enumerate() {
            let now = self.seats.iter().find(|now| now.id == first.id).map(|now| now.stake);
            if self.members[seat].is_honest && now.is_some_and(|now| now < first.stake) {
                let name = self.members[seat].name.clone();
                self.broken("slashed", format!("{name} had {} at stake and has {now:?}", first.stake));
            }
        }
        let invariants: [fn() -> Result<(), &'static str>; 5] = [
            Registry::check_invariants,
            Windows::check_invariants,
            Weights::check_invariants,
            Rewards::check_invariants,
            Nomination::check_invariants,
        ];
        let found = chain.lock().read(|| invariants.into_iter().find_map(|check| check().err()));
        if let Some(found) = found {
            self.broken("money", format!("an invariant of the chain does not hold: {found}"));
        }
        let treasury = chain.lock().read(|| Rewards::treasury_view(RUN));
        let sum = treasury.treasury + treasury.claimable + treasury.paid + treasury.burnt;
        if treasury.funded != sum {
            self.broken("money", format!("{} was funded, and {sum} is accounted for", treasury.funded));
        }
        let claimable: u128 = self.seats.iter().map(|seat| seat.claimable).sum();
        if treasury.claimable < claimable {
            let what = format!("seats may claim {claimable}, of {} set aside", treasury.claimable);
            self.broken("money", what);
        }
    }

    /// Checks that no seat repeats a request without end.
    fn bounds(&mut self, writes: &BTreeMap<usize, u64>) {
        for (signer, calls) in std::mem::take(&mut self.calls) {
            if CALLS_MAX < calls {
                self.broken("unbounded", format!("{signer} sent {calls} calls in a window"));
            }
        }
        for (seat, until_now) in writes {
            let before = self.writes.insert(*seat, *until_now).unwrap_or_default();
            let count = until_now - before;
            if WRITES_MAX < count {
                self.broken(
                    "unbounded",
                    format!("seat {seat} wrote to its bucket {count} times in a window"),
                );
            }
        }
    }

    /// Checks which of the remaining honest seats were paid for the calm: each validator, each miner whose
    /// contributions were valid often enough, and half of the miners.
    fn paid(&mut self, chain: &SharedChain) {
        // If there are more miners than a validator fetches, some wait for their first weight.
        let are_all_fetched = self.seats.len() <= self.fetched_max();
        let (mut miners, mut unpaid_miners) = (0, Vec::new());
        for (seat, member) in self.members.iter().enumerate() {
            let Some(first) = self.first.get(seat) else { continue };
            if !member.is_honest || self.plan.leaves(seat) || (member.is_miner && !are_all_fetched) {
                continue;
            }
            let (name, id) = (&member.name, first.id);
            let earned = |seats: &[SeatView]| seats.iter().find(|of| of.id == id).map_or(0, |of| of.earned);
            let (before, now) = (earned(&self.before), earned(&self.seats));
            miners += usize::from(member.is_miner);
            if before < now {
                continue;
            }
            let valid = self.payable.get(&seat).copied().unwrap_or_default();
            if member.is_miner {
                unpaid_miners.push(name.as_str());
            }
            if !member.is_miner || PAID_AFTER <= valid {
                let payslips = chain.payslips_now(RUN, id.uid);
                let what = format!(
                    "{name} earned {now} until the calm and nothing in it, after {valid} valid contributions: {payslips:?}"
                );
                self.violations.push(Violation { check: "unpaid", block: self.block, what });
            }
        }
        if miners < 2 * unpaid_miners.len() {
            let what =
                format!("of {miners} miners these earned nothing in the calm: {}", unpaid_miners.join(", "));
            self.violations.push(Violation { check: "unpaid", block: self.block, what });
        }
    }

    /// Checks that every remaining honest node holds the model after the last window.
    pub fn finish(&mut self) {
        let mut behind = Vec::new();
        for (seat, member) in self.members.iter().enumerate().filter(|(_, member)| member.is_honest) {
            if self.plan.leaves(seat) {
                continue;
            }
            let held = self.held.get(&member.name).copied();
            let last = (Window(self.options.windows), self.last_lineage.unwrap_or_default());
            if held != Some(last) {
                behind.push(format!(
                    "{} holds {held:?} after window {}",
                    member.name,
                    self.options.windows - 1
                ));
            }
        }
        behind.into_iter().for_each(|what| self.broken("liveness", what));
    }

    /// Records that the network stopped before its end.
    pub fn stopped(&mut self, error: &SimError) {
        let check = match error {
            SimError::Diverged { .. } => "lineage",
            SimError::NotFinalised { .. } => "liveness",
            _ => "stopped",
        };
        self.broken(check, crate::describe_error(error));
    }
}

/// Returns the subject of a call that makes a permanent statement, and the statement.
fn statement(call: &RuntimeCall) -> Option<(String, String)> {
    use pallet_weights::Call as W;
    use pallet_windows::Call as C;
    Some(match call {
        RuntimeCall::Windows(C::commit { window, digest, .. }) => {
            (format!("the commitment of window {}", window.0), digest.to_string())
        }
        RuntimeCall::Windows(C::attest { window, verdicts, next_salt, .. }) => {
            let verdicts: Vec<String> =
                verdicts.iter().map(|(uid, verdict)| format!("{uid} {verdict:?}")).collect();
            (
                format!("the attestation of window {}", window.0),
                format!("{} with salt {next_salt}", verdicts.join(", ")),
            )
        }
        RuntimeCall::Windows(C::vote { window, vote, .. }) => {
            (format!("the vote of window {}", window.0), format!("{vote:?}"))
        }
        RuntimeCall::Windows(C::anchor_receipts { window, digest, .. }) => {
            (format!("the receipt of window {}", window.0), digest.to_string())
        }
        RuntimeCall::Weights(W::commit { epoch, hash, .. }) => {
            (format!("the weights of epoch {epoch}"), hash.to_string())
        }
        _ => return None,
    })
}

/// Returns the window of an entry, if it can be compared with the chain.
fn window_of(entry: &Entry) -> Option<Window> {
    match entry {
        Entry::Holds { window, .. }
        | Entry::Committed { window, .. }
        | Entry::Attested { window, .. }
        | Entry::Voted { window, .. }
        | Entry::Anchored { window, .. } => Some(*window),
        _ => None,
    }
}

/// Returns the entry as JSON without the values of wall times, the only part that differs between two runs of one
/// seed.
fn without_seconds(entry: &impl Serialize) -> String {
    let mut json = Vec::new();
    let mut serializer = serde_json::Serializer::with_formatter(&mut json, WithoutSeconds::default());
    entry.serialize(&mut serializer).expect("an entry is plain data");
    String::from_utf8(json).expect("JSON is UTF-8")
}

/// Compact JSON that omits the value of a field if it is an `f64` and the field's name ends with `seconds`.
#[derive(Default)]
struct WithoutSeconds {
    is_name: bool,
    is_wall_time: bool,
}

impl Formatter for WithoutSeconds {
    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        (self.is_name, self.is_wall_time) = (true, false);
        CompactFormatter.begin_object_key(writer, first)
    }

    fn end_object_key<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.is_name = false;
        CompactFormatter.end_object_key(writer)
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        self.is_wall_time |= self.is_name && text.ends_with("seconds");
        CompactFormatter.write_string_fragment(writer, text)
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        if self.is_wall_time { Ok(()) } else { CompactFormatter.write_f64(writer, value) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wall_times_are_no_part_of_the_trace() {
        let entry = Entry::Trained {
            window: Window(1),
            sequences: 8,
            loss_first: 1.5,
            loss_last: 1.25,
            train_seconds: 0.5,
            data_seconds: 0.1,
        };
        let text = without_seconds(&entry);
        assert!(text.contains("\"loss_last\":1.25,\"train_seconds\":,\"data_seconds\":}"), "{text}");
    }
}
