//! The state of a run, from the chain and, where available, from the nodes' journals and the validators' receipts.
//! The table, the report and the page show it.

use crate::{
    receipts::WindowReceipts,
    timeline::{Past, Timeline, WindowRow},
    why::KEPT_WINDOWS,
};
use chain_client::{Chain, ChainError};
use daemon::{Entry, journal};
use dataset::LossEstimate;
use protocol::{
    Block, Digest, Phase, Role, RunId, Uid, Window,
    receipt::Observed,
    view::{Outcome, RunView, SeatView, VoidReason, WindowView},
};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

/// The record of a seat.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeatSeen {
    /// Windows with a commitment of the miner.
    pub committed: u32,
    /// Miners: windows in which two thirds attested the contribution as valid. Validators: windows with an
    /// attestation.
    pub attested: u32,
    /// Miners: windows in which the contribution was selected. Validators: windows with a vote.
    pub selected: u32,
    /// Validators: windows with a vote for another update than that of two thirds.
    pub minority_votes: u32,
    /// Reduction of the loss on common sequences in each judgement, in nats per token.
    pub gains: Vec<f64>,
    pub score: Option<f64>,
    pub train_seconds: f64,
    /// The part of `train_seconds` spent waiting for data.
    pub data_seconds: f64,
    pub bytes_up: u64,
    pub bytes_down: u64,
    /// Sequences per second in the last window in which the miner trained.
    pub sequences_per_second: Option<f64>,
}

impl SeatSeen {
    /// Returns the share of the training time spent waiting for data; `None` before any training.
    pub fn data_wait_share(&self) -> Option<f64> {
        (0.0 < self.train_seconds).then(|| self.data_seconds / self.train_seconds)
    }
}

/// A fault of a seat that a validator reports.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FaultSeen {
    pub window: u32,
    pub uid: u16,
    /// The validator.
    pub by: String,
    pub label: String,
    pub reason: String,
}

/// A node's journal, and the position up to which it has been read.
struct Source {
    name: String,
    path: PathBuf,
    offset: u64,
    /// Bytes up and down of this node's earlier processes: each process counts from 0.
    before: (u64, u64),
    latest: (u64, u64),
    /// Block and time at which the last entry was read.
    heard: (Block, Instant),
}

/// Maximum silence of a node beyond a window, in blocks. A node writes several entries per window.
const SILENT_BLOCKS: u32 = 4;
/// Number of finalised windows without an action of an external seat after which it counts as away.
const AWAY_WINDOWS: u32 = 2;

/// Reason for a seat's absence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Absence {
    /// Its process has ended and restarts after this time.
    Ended { again_in: Duration },
    /// A node of this network does not write to its journal.
    Silent { since: Duration },
    /// An external seat has not acted on the chain since this window.
    Away { since: Window },
}

/// Training time of all miners, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TrainTime {
    pub trained: f64,
    /// The part spent waiting for data.
    pub waited: f64,
}

/// The strategy of an honest seat.
pub const HONEST: &str = "honest";
/// Strategy of a seat outside this network's plan.
const EXTERNAL: &str = "external";

/// The current activity of a seat in the open window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doing {
    pub word: &'static str,
    pub mark: Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    Plain,
    Good,
    Poor,
    Bad,
}

/// The sequences on which a curve of losses is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossSample {
    /// One sample of the held-out split, the same in each window.
    HeldOut,
    /// The sequences on which a window's contributions are measured; they differ between windows.
    Common,
}

impl LossSample {
    pub fn name(self) -> &'static str {
        match self {
            LossSample::HeldOut => "held-out loss",
            LossSample::Common => "loss on common sequences",
        }
    }
}

/// Facts on the text that are known before training.
#[derive(Clone, Copy, Debug)]
pub struct Text {
    /// Predicted tokens per sequence.
    pub sequence_tokens: u64,
    /// The unigram baseline on the sample of the held-out loss.
    pub unigram: LossEstimate,
}

/// Everything observed so far.
pub struct Observer {
    pub run: RunView,
    pub seats: Vec<SeatView>,
    pub weights: BTreeMap<Uid, u16>,
    pub current: Option<WindowView>,
    pub block: Block,
    /// Finalised windows in order.
    pub outcomes: BTreeMap<Window, Outcome>,
    /// Lineage of the model at each window's start, from the chain.
    pub lineages: BTreeMap<Window, Digest>,
    /// The same lineage from each node's journal.
    pub held: BTreeMap<String, BTreeMap<Window, Digest>>,
    /// Held-out loss of the model at each window's start, from each validator on its part of the sample.
    pub held_out: BTreeMap<Window, BTreeMap<String, LossEstimate>>,
    /// Loss of the model at each window's start on the window's common sequences, from a public receipt.
    pub common: BTreeMap<Window, LossEstimate>,
    pub timeline: Timeline,
    /// The size of the sample that the validators share; `None` if each measures the same.
    pub held_out_sequences: Option<u64>,
    /// Sequences that this network's miners trained on, by window.
    pub trained: BTreeMap<Window, u64>,
    pub seen: BTreeMap<Uid, SeatSeen>,
    pub faults: Vec<FaultSeen>,
    /// Steps that a node missed, and minority votes: window, node and reason.
    pub missed: Vec<(Window, String, String)>,
    /// The last merge: window, bytes of the update, number of contributions.
    pub last_merge: Option<(Window, u64, usize)>,
    /// The last finalised window in which a seat acted on the chain.
    pub active: BTreeMap<Uid, Window>,
    sources: Vec<Source>,
    uids: BTreeMap<String, Uid>,
    /// The strategy of each seat of the plan by name; empty if no plan is known.
    strategies: BTreeMap<String, String>,
    earlier: TrainTime,
}

impl Observer {
    /// Observes `run`. `journals` has each node's name, uid and journal.
    ///
    /// # Errors
    /// If the chain does not answer.
    pub async fn new(
        chain: &dyn Chain,
        run: RunId,
        journals: Vec<(String, Uid, PathBuf)>,
    ) -> Result<Observer, ChainError> {
        let run = chain.run(run).await?;
        let seats = chain.seats(run.id).await?;
        Ok(Observer::from_start(run, seats, chain.heads().borrow().block, journals))
    }

    /// Creates an observer that has read only the run and its seats.
    pub fn from_start(
        run: RunView,
        seats: Vec<SeatView>,
        block: Block,
        journals: Vec<(String, Uid, PathBuf)>,
    ) -> Observer {
        let heard = (block, Instant::now());
        Observer {
            seats,
            run,
            weights: BTreeMap::new(),
            current: None,
            block,
            outcomes: BTreeMap::new(),
            lineages: BTreeMap::new(),
            held: BTreeMap::new(),
            held_out: BTreeMap::new(),
            common: BTreeMap::new(),
            timeline: Timeline::default(),
            held_out_sequences: None,
            trained: BTreeMap::new(),
            active: BTreeMap::new(),
            seen: BTreeMap::new(),
            faults: Vec::new(),
            missed: Vec::new(),
            last_merge: None,
            strategies: BTreeMap::new(),
            earlier: TrainTime::default(),
            uids: journals.iter().map(|(name, uid, _)| (name.clone(), *uid)).collect(),
            sources: journals
                .into_iter()
                .map(|(name, _, path)| Source {
                    name,
                    path,
                    offset: 0,
                    before: (0, 0),
                    latest: (0, 0),
                    heard,
                })
                .collect(),
        }
    }

    /// Adds the plan of a network: each seat's strategy by name, and the size of the sample for the held-out loss.
    pub fn with_plan(
        mut self,
        strategies: BTreeMap<String, String>,
        held_out_sequences: Option<u64>,
    ) -> Observer {
        self.strategies = strategies;
        self.held_out_sequences = held_out_sequences;
        self
    }

    /// Returns the strategy: honest, the name of an adversary, or external for a seat outside the plan.
    pub fn strategy_of(&self, uid: Uid) -> &str {
        match self.strategies.get(&self.name_of(uid)) {
            Some(strategy) => strategy,
            None if self.strategies.is_empty() => HONEST,
            None => EXTERNAL,
        }
    }

    /// Returns whether a seat is outside the plan; always false if no plan is known.
    pub fn is_external(&self, uid: Uid) -> bool {
        self.strategy_of(uid) == EXTERNAL
    }

    /// Begins a session, from which [`Observer::train_time`] counts.
    pub fn begin_session(&mut self) {
        self.earlier = TrainTime::default();
        self.earlier = self.train_time();
    }

    /// Returns the training time since the session began.
    pub fn train_time(&self) -> TrainTime {
        let sum = |of: fn(&SeatSeen) -> f64| self.seen.values().map(of).sum::<f64>();
        TrainTime {
            trained: sum(|seen| seen.train_seconds) - self.earlier.trained,
            waited: sum(|seen| seen.data_seconds) - self.earlier.waited,
        }
    }

    /// Reads the changes on the chain and in the journals.
    ///
    /// # Errors
    /// If the chain does not answer.
    pub async fn look(&mut self, chain: &dyn Chain) -> Result<(), ChainError> {
        self.block = chain.heads().borrow().block;
        self.run = chain.run(self.run.id).await?;
        self.seats = chain.seats(self.run.id).await?;
        self.weights = chain.weights(self.run.id).await?.into_iter().collect();
        let Some(open) = self.run.params.schedule.window_at(self.block) else {
            self.read_journals();
            return Ok(());
        };
        let oldest = Window(open.0.saturating_sub(KEPT_WINDOWS));
        let mut window = self.outcomes.keys().next_back().map_or(oldest, |last| last.next().max(oldest));
        while window <= open {
            let Some(view) = chain.window(self.run.id, window).await? else {
                // The chain has removed it, or does not know yet that it is open.
                window = window.next();
                continue;
            };
            self.lineages.insert(window, view.lineage);
            let Some(outcome) = view.outcome else {
                self.current = Some(view);
                break;
            };
            self.add_finalised(&view, outcome);
            self.current = Some(view);
            window = window.next();
        }
        self.read_journals();
        Ok(())
    }

    /// Restores a window that an earlier program observed. It is shown but not counted.
    pub fn restore(&mut self, window: Window, row: WindowRow, loss: Option<LossEstimate>) {
        self.timeline.add(window, row);
        if let Some(loss) = loss {
            self.common.insert(window, loss);
        }
    }

    fn add_finalised(&mut self, view: &WindowView, outcome: Outcome) {
        self.outcomes.insert(view.window, outcome);
        self.timeline.add(view.window, WindowRow::of(view, Past::default()));
        for (uid, _) in &view.commitments {
            self.active.insert(*uid, view.window);
            self.seen.entry(*uid).or_default().committed += 1;
        }
        for uid in &view.attested {
            self.active.insert(*uid, view.window);
            self.seen.entry(*uid).or_default().attested += 1;
        }
        for (uid, vote) in &view.votes {
            self.active.insert(*uid, view.window);
            let seen = self.seen.entry(*uid).or_default();
            seen.selected += 1;
            if matches!(outcome, Outcome::Merged(fixed) if fixed.update != vote.update) {
                seen.minority_votes += 1;
                let reason = "voted for another update than two thirds of the stake".to_owned();
                self.missed.push((view.window, self.name_of(*uid), reason));
            }
        }
        let Some(selection) = &view.selection else { return };
        for uid in &selection.valid {
            self.seen.entry(*uid).or_default().attested += 1;
        }
        for selected in &selection.selected {
            self.seen.entry(selected.uid).or_default().selected += 1;
        }
    }

    fn read_journals(&mut self) {
        for index in 0..self.sources.len() {
            let source = &self.sources[index];
            let Ok((entries, offset)) = journal::read_from(&source.path, source.offset) else { continue };
            self.sources[index].offset = offset;
            if !entries.is_empty() {
                self.sources[index].heard = (self.block, Instant::now());
            }
            for entry in entries {
                self.add_entry(index, entry);
            }
        }
    }

    fn add_entry(&mut self, index: usize, entry: Entry) {
        let name = self.sources[index].name.clone();
        let uid = self.uids.get(&name).copied().unwrap_or_default();
        match entry {
            Entry::Started { .. } => {
                let source = &mut self.sources[index];
                source.before.0 = source.before.0.saturating_add(source.latest.0);
                source.before.1 = source.before.1.saturating_add(source.latest.1);
                source.latest = (0, 0);
            }
            Entry::Traffic { bytes_up, bytes_down, .. } => {
                let source = &mut self.sources[index];
                source.latest = (bytes_up, bytes_down);
                let seen = self.seen.entry(uid).or_default();
                seen.bytes_up = source.before.0.saturating_add(bytes_up);
                seen.bytes_down = source.before.1.saturating_add(bytes_down);
            }
            Entry::Holds { window, lineage, .. } => {
                self.held.entry(name).or_default().insert(window, lineage);
            }
            Entry::Trained { window, sequences, train_seconds, data_seconds, .. } => {
                *self.trained.entry(window).or_default() += u64::from(sequences);
                let seen = self.seen.entry(uid).or_default();
                seen.train_seconds += train_seconds;
                let rate = f64::from(sequences) / train_seconds;
                seen.sequences_per_second = rate.is_finite().then_some(rate);
                seen.data_seconds += data_seconds;
            }
            Entry::Attested { window, faulty, not_observed, .. } => {
                for fault in faulty.into_iter().chain(not_observed) {
                    self.faults.push(FaultSeen {
                        window: window.0,
                        uid: fault.uid.0,
                        by: name.clone(),
                        label: fault.label,
                        reason: fault.reason,
                    });
                }
            }
            Entry::Judged {
                window,
                held_out_loss: loss,
                held_out_standard_error: standard_error,
                held_out_sequences: sequences,
                seats,
                ..
            } => {
                let estimate = LossEstimate { sequences, loss, standard_error };
                self.held_out.entry(window).or_default().insert(name, estimate);
                let measured = seats.iter().filter(|judged| judged.common_gain.is_some());
                self.timeline.score(window, measured.map(|judged| judged.uid));
                for judged in seats {
                    let seen = self.seen.entry(judged.uid).or_default();
                    seen.score = Some(judged.score);
                    seen.gains.extend(judged.common_gain);
                }
            }
            Entry::Voted { window, bytes, inputs, .. } => {
                if self.last_merge.is_none_or(|(last, _, _)| last <= window) {
                    self.last_merge = Some((window, bytes, inputs.len()));
                }
            }
            Entry::Missed { window, reason }
            | Entry::Abstained { window, reason }
            | Entry::Unpublished { window, reason } => {
                self.missed.push((window, name, reason));
            }
            Entry::Committed { .. }
            | Entry::Uploaded { .. }
            | Entry::Vetoed { .. }
            | Entry::Posted { .. }
            | Entry::Answered { .. }
            | Entry::Anchored { .. }
            | Entry::Published { .. }
            | Entry::Repaired { .. }
            | Entry::Resumed { .. }
            | Entry::Repeated { .. }
            | Entry::FellBack { .. } => {}
        }
    }

    /// Adds data from validators' public receipts of a window: the measured seats and the model's loss. All
    /// validators measure the loss on the same sequences.
    pub fn add_receipts(&mut self, receipts: &WindowReceipts) {
        let read = receipts.receipts.iter().filter_map(|(_, receipt)| receipt.as_ref().ok());
        for judgement in read.filter_map(|receipt| receipt.judgement.as_ref()) {
            let losses: Vec<f64> = judgement.common.iter().map(|baseline| baseline.before.get()).collect();
            if !losses.is_empty() {
                self.common.entry(receipts.window).or_insert_with(|| LossEstimate::of(&losses));
            }
            let mut measured = Vec::new();
            for judged in &judgement.seats {
                let uid = judged.seat.uid;
                if matches!(judged.observed, Observed::Valid { measured: Some(_), .. }) {
                    measured.push(uid);
                    let seen = self.seen.entry(uid).or_default();
                    seen.score = Some(judged.result.score.get());
                }
            }
            self.timeline.score(receipts.window, measured);
        }
    }

    /// Returns the open window and its row.
    pub fn open_row(&self) -> Option<(Window, WindowRow)> {
        let view = self.current.as_ref().filter(|view| view.outcome.is_none())?;
        let (schedule, hidden) = (self.run.params.schedule, self.run.params.hidden_blocks);
        let past = Past {
            commit: self.is_past(schedule.commit_by),
            vote: self.is_past(schedule.vote_by.saturating_add(hidden)),
        };
        Some((view.window, WindowRow::of(view, past)))
    }

    /// Returns a seat's activity in the open window.
    pub fn doing(&self, seat: &SeatView) -> Doing {
        let doing = |mark, word| Doing { word, mark };
        let (uid, params) = (seat.id.uid, &self.run.params);
        let Some(view) = &self.current else { return doing(Mark::Plain, "") };
        if seat.role == Role::Miner {
            let selection = view.selection.as_ref();
            return if !view.slots.contains(&uid) {
                doing(Mark::Plain, "joining")
            } else if selection.is_some_and(|selection| selection.faulty.contains(&uid)) {
                doing(Mark::Bad, "faulty")
            } else if selection.is_some_and(|selection| selection.selected.iter().any(|one| one.uid == uid)) {
                doing(Mark::Good, "selected")
            } else if view.commitments.iter().any(|(other, _)| *other == uid) {
                doing(Mark::Good, "committed")
            } else if self.is_past(params.schedule.commit_by) {
                doing(Mark::Poor, "missed")
            } else {
                doing(Mark::Plain, "training")
            };
        }
        // Hidden attestations become visible only this much later.
        let hidden = params.hidden_blocks;
        if view.votes.iter().any(|(other, _)| *other == uid) {
            doing(Mark::Good, "voted")
        } else if self.is_past(params.schedule.vote_by.saturating_add(hidden)) {
            doing(Mark::Poor, "no vote")
        } else if view.attested.contains(&uid) {
            doing(Mark::Good, "attested")
        } else if self.is_past(params.schedule.attest_by.saturating_add(hidden)) {
            doing(Mark::Poor, "not attested")
        } else {
            doing(Mark::Plain, "waiting")
        }
    }

    /// Returns whether a deadline of the open window has passed and its last block has been read.
    fn is_past(&self, deadline: u32) -> bool {
        let place = self.run.params.schedule.locate(self.block);
        place.is_some_and(|(_, offset)| deadline.saturating_add(1) < offset)
    }

    /// Returns the tokens per second of all miners in the last complete window: miners report at a window's end.
    pub fn tokens_per_second(&self, sequence_tokens: u64, block_time: Duration) -> Option<f64> {
        let blocks = self.run.params.schedule.blocks_per_window;
        let seconds = block_time.saturating_mul(blocks).as_secs_f64();
        let open = self.current.as_ref().map_or(Window::FIRST, |view| view.window);
        let (_, sequences) = self.trained.range(..open).next_back()?;
        (0.0 < seconds).then(|| *sequences as f64 * sequence_tokens as f64 / seconds)
    }

    /// Returns the number of finalised windows.
    pub fn windows(&self) -> u32 {
        u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX)
    }

    /// Returns the held-out loss of the model at a window's start, on the measured parts of the sample; `None` while
    /// no validator has measured it.
    pub fn held_out_loss(&self, window: Window) -> Option<LossEstimate> {
        // A validator without time for it measured nothing.
        let measured = self.held_out.get(&window)?.values().filter(|estimate| 0 < estimate.sequences);
        let mut parts: Vec<LossEstimate> = measured.copied().collect();
        let estimate = LossEstimate::of_parts(&parts);
        // Without a plan of parts, each validator measures a sample of its own.
        match self.held_out_sequences {
            Some(sample) if estimate.sequences <= sample => (0 < estimate.sequences).then_some(estimate),
            _ => parts.pop(),
        }
    }

    /// Returns [`Observer::held_out_loss`] of every measured window.
    pub fn held_out_losses(&self) -> Vec<(Window, LossEstimate)> {
        self.held_out.keys().filter_map(|window| Some((*window, self.held_out_loss(*window)?))).collect()
    }

    /// Returns the loss by window: on the held-out sample if a journal has it or will have it (`is_expected`), else
    /// on the common sequences of validators' receipts.
    pub fn losses(&self, is_expected: bool) -> (LossSample, Vec<(Window, LossEstimate)>) {
        let held_out = self.held_out_losses();
        if is_expected || !held_out.is_empty() {
            return (LossSample::HeldOut, held_out);
        }
        (LossSample::Common, self.common.iter().map(|(window, loss)| (*window, *loss)).collect())
    }

    /// Returns the number of sequences that this network's miners have trained on.
    pub fn sequences_trained(&self) -> u64 {
        self.trained.values().sum()
    }

    /// Returns the reason for a seat's absence at `now`; `None` if all is well. Ended processes are not known here.
    pub fn absence(&self, uid: Uid, now: Instant) -> Option<Absence> {
        let name = self.name_of(uid);
        let window_blocks = self.run.params.schedule.blocks_per_window;
        if let Some(source) = self.sources.iter().find(|source| source.name == name) {
            let (block, at) = source.heard;
            let silent = window_blocks.saturating_add(SILENT_BLOCKS) < self.block.0.saturating_sub(block.0);
            return silent.then(|| Absence::Silent { since: now.saturating_duration_since(at) });
        }
        let registered = self.seats.iter().find(|seat| seat.id.uid == uid)?.id.registered_at;
        // A seat participates from the window after its registration on, or the one after that.
        let joined = self.run.params.schedule.window_at(registered).map_or(0, |window| window.0 + 2);
        let since = self.active.get(&uid).map_or(joined, |window| window.0 + 1);
        let last = self.outcomes.keys().next_back()?.0;
        (since.saturating_add(AWAY_WINDOWS) <= last.saturating_add(1))
            .then_some(Absence::Away { since: Window(since) })
    }

    /// Returns whether every node's journal agrees with the chain's model at every window.
    pub fn lineage_agreed(&self) -> bool {
        self.held
            .values()
            .flatten()
            .all(|(window, lineage)| self.lineages.get(window).is_none_or(|fixed| fixed == lineage))
    }

    pub fn seats_of(&self, role: Role) -> impl Iterator<Item = &SeatView> {
        self.seats.iter().filter(move |seat| seat.role == role)
    }

    /// Returns a miner's share of all weights; `None` while it has none.
    pub fn weight_share(&self, uid: Uid) -> Option<f64> {
        let total: u64 = self.weights.values().map(|weight| u64::from(*weight)).sum();
        let weight = *self.weights.get(&uid)?;
        (0 < total).then(|| f64::from(weight) / total as f64)
    }

    /// Sorts seats by the number in their name, with seats outside the plan last.
    pub fn place_of(&self, uid: Uid) -> (bool, usize, String) {
        let name = self.name_of(uid);
        (!self.uids.contains_key(&name), name.len(), name)
    }

    pub fn name_of(&self, uid: Uid) -> String {
        let found = self.uids.iter().find(|(_, other)| **other == uid);
        found.map_or_else(|| format!("uid {uid}"), |(name, _)| name.clone())
    }
}

pub fn outcome_word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Merged(_) => "merged",
        Outcome::Void(VoidReason::TooFewContributions) => "void: too few contributions",
        Outcome::Void(VoidReason::NoAgreement) => "void: no agreement",
        Outcome::Void(VoidReason::Paused) => "void: paused",
    }
}

pub fn phase_word(phase: Phase) -> &'static str {
    match phase {
        Phase::Commit => "train and commit",
        Phase::Reveal => "reveal",
        Phase::Attest => "attest",
        Phase::Vote => "merge and vote",
        Phase::Finalise => "finalise",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{receipts::tests as receipts, sample::network, timeline::Fate};

    #[test]
    fn the_share_of_waiting_is_of_the_time_trained() {
        assert_eq!(SeatSeen::default().data_wait_share(), None, "nothing was trained yet");
        let seen = SeatSeen { train_seconds: 8.0, data_seconds: 2.0, ..SeatSeen::default() };
        assert_eq!(seen.data_wait_share(), Some(0.25));
    }

    #[test]
    fn a_session_counts_its_own_training_only() {
        let mut observer = network();
        assert_eq!(observer.train_time().trained, 320.0);
        observer.begin_session();
        assert_eq!(observer.train_time(), TrainTime::default());
        observer.seen.entry(Uid(3)).or_default().train_seconds += 7.0;
        assert_eq!(observer.train_time().trained, 7.0);
    }

    #[test]
    fn the_validators_parts_of_the_held_out_sample_are_joined() {
        let mut observer = network();
        let loss = |observer: &Observer, window| observer.held_out_loss(Window(window));
        let whole = loss(&observer, 6).unwrap();
        assert_eq!(whole.sequences, 1536);
        assert!((whole.loss - 3.07).abs() < 1e-9 && (whole.standard_error - 0.018).abs() < 1e-4, "{whole:?}");
        observer.held_out.entry(Window(5)).or_default().remove("validator-0");
        assert_eq!(loss(&observer, 5).map(|estimate| estimate.sequences), Some(1024));
        // A validator that measured nothing.
        let unknown = LossEstimate { sequences: 0, ..whole };
        observer.held_out.insert(Window(4), BTreeMap::from([("validator-0".to_owned(), unknown)]));
        assert_eq!(loss(&observer, 4), None);
        observer.held_out_sequences = None;
        assert_eq!(loss(&observer, 6).map(|estimate| estimate.sequences), Some(512), "not joined");
        observer.held_out_sequences = Some(512);
        assert_eq!(loss(&observer, 3).map(|estimate| estimate.sequences), Some(512), "each has the whole");
    }

    #[test]
    fn a_node_is_silent_after_a_window_without_an_entry_and_not_because_the_chain_stands_still() {
        let mut observer = network();
        let began = Instant::now();
        let source = observer.sources.iter_mut().find(|source| source.name == "miner-0").unwrap();
        source.heard = (Block(300), began);
        let window = observer.run.params.schedule.blocks_per_window;
        let now = began + Duration::from_secs(30);
        observer.block = Block(300 + window + SILENT_BLOCKS);
        assert_eq!(observer.absence(Uid(3), now), None);
        observer.block = Block(300 + window + SILENT_BLOCKS + 1);
        assert_eq!(observer.absence(Uid(3), now), Some(Absence::Silent { since: Duration::from_secs(30) }));
    }

    #[test]
    fn an_external_seat_is_away_after_two_windows_without_a_deed() {
        let mut observer = network();
        let now = Instant::now();
        // Registered before the first window, and never seen.
        assert_eq!(observer.absence(Uid(7), now), Some(Absence::Away { since: Window(0) }));
        observer.active.insert(Uid(7), Window(4));
        assert_eq!(observer.absence(Uid(7), now), None);
        observer.active.insert(Uid(7), Window(3));
        assert_eq!(observer.absence(Uid(7), now), Some(Absence::Away { since: Window(4) }));
    }

    #[test]
    fn a_seat_outside_the_plan_is_external() {
        let observer = network();
        assert_eq!([observer.strategy_of(Uid(6)), observer.strategy_of(Uid(7))], ["copycat", EXTERNAL]);
    }

    #[test]
    fn public_receipts_tell_the_loss_of_a_window_and_who_was_measured() {
        let mut observer = network();
        let gathered = vec![Fate::Gathered; 5];
        observer.timeline.add(Window(5), WindowRow::with(None, gathered));
        observer.add_receipts(&receipts::window(Err("its bucket is away".into())));
        assert!(observer.common.is_empty());
        observer.add_receipts(&receipts::window(Ok(receipts::receipt(receipts::measured()))));
        let common = observer.common[&Window(5)];
        assert_eq!((common.sequences, common.loss), (1, 3.0));
        let row = observer.timeline.row(Window(5)).unwrap();
        assert_eq!([row.fate(Uid(3)), row.fate(Uid(4))], [Fate::Gathered, Fate::Scored]);
        assert_eq!(observer.seen[&Uid(4)].score, Some(0.125));
    }

    #[test]
    fn the_open_window_has_a_row_of_its_own() {
        let (window, row) = network().open_row().unwrap();
        assert_eq!(window, Window(6));
        let fates = (0..8).map(|uid| row.fate(Uid(uid))).collect::<Vec<_>>();
        use Fate::{Absent, Attested, Missed, Refused, Unseen, Voted};
        assert_eq!(fates, [Attested, Voted, Absent, Unseen, Unseen, Missed, Refused, Missed]);
    }
}
