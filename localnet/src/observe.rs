//! What the network is doing, put together from the chain and from the nodes' journals. The table and the report show it.

use crate::{layout::SeatPlan, seats::HONEST};
use chain_client::{Amount, Chain, ChainError};
use node::{Entry, journal};
use protocol::{
    Digest, Role, RunId, Uid, Window,
    view::{Outcome, RunView, SeatView, WindowView},
};
use std::{collections::BTreeMap, path::PathBuf};

/// A seat, as far as it can be seen from outside.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeatSeen {
    pub committed: u32,
    /// Windows in which two thirds attested the seat's contribution as valid; for a validator, windows it attested in.
    pub attested: u32,
    /// Windows in which the contribution was selected; for a validator, windows it voted in.
    pub selected: u32,
    /// Windows in which a validator voted another update than two thirds did.
    pub dissents: u32,
    pub gains: Vec<f64>,
    pub score: Option<f64>,
    pub train_seconds: f64,
    /// Of these, spent waiting for data.
    pub data_seconds: f64,
    pub bytes_up: u64,
    pub bytes_down: u64,
}

impl SeatSeen {
    /// The share of its training time in which a miner waited for data; `None` before it has trained.
    pub fn data_wait_share(&self) -> Option<f64> {
        (0.0 < self.train_seconds).then(|| self.data_seconds / self.train_seconds)
    }
}

/// Something that was held against a seat.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct FaultSeen {
    pub window: u32,
    pub uid: u16,
    /// The validator that says so.
    pub by: String,
    pub label: String,
    pub reason: String,
}

/// Where the journals are, and how far each has been read.
struct Source {
    name: String,
    path: PathBuf,
    offset: u64,
    /// Traffic of the processes before this one: counters begin anew with each.
    before: (u64, u64),
    latest: (u64, u64),
}

/// Everything seen so far.
pub struct Observer {
    pub run: RunView,
    pub seats: Vec<SeatView>,
    pub weights: BTreeMap<Uid, u16>,
    pub current: Option<WindowView>,
    pub block: protocol::Block,
    /// Fixed windows, in order.
    pub outcomes: BTreeMap<Window, Outcome>,
    /// Lineage of the model that each window opened with, as the chain has it.
    pub lineages: BTreeMap<Window, Digest>,
    /// The same as each node says it holds it.
    pub held: BTreeMap<String, BTreeMap<Window, Digest>>,
    /// Held-out loss of the model each window opened with, from each validator.
    pub held_out: BTreeMap<Window, BTreeMap<String, f64>>,
    pub seen: BTreeMap<Uid, SeatSeen>,
    pub faults: Vec<FaultSeen>,
    /// What a node said that it could not do, or was seen to do otherwise than all others.
    pub missed: Vec<(Window, String, String)>,
    /// The last update's size in bytes and number of contributions.
    pub last_merge: Option<(Window, u64, usize)>,
    sources: Vec<Source>,
    uids: BTreeMap<String, Uid>,
    /// How each seat behaves, by its name; honest if it is not there.
    strategies: BTreeMap<String, String>,
}

impl Observer {
    /// `journals`: each node's name, uid and journal.
    pub async fn new(
        chain: &dyn Chain,
        run: RunId,
        journals: Vec<(String, Uid, PathBuf)>,
    ) -> Result<Observer, ChainError> {
        let run = chain.run(run).await?;
        Ok(Observer {
            seats: chain.seats(run.id).await?,
            run,
            weights: BTreeMap::new(),
            current: None,
            block: chain.heads().borrow().block,
            outcomes: BTreeMap::new(),
            lineages: BTreeMap::new(),
            held: BTreeMap::new(),
            held_out: BTreeMap::new(),
            seen: BTreeMap::new(),
            faults: Vec::new(),
            missed: Vec::new(),
            last_merge: None,
            strategies: BTreeMap::new(),
            uids: journals.iter().map(|(name, uid, _)| (name.clone(), *uid)).collect(),
            sources: journals
                .into_iter()
                .map(|(name, _, path)| Source { name, path, offset: 0, before: (0, 0), latest: (0, 0) })
                .collect(),
        })
    }

    /// The same, knowing how the seats of a plan behave.
    pub fn with_strategies(mut self, seats: &[SeatPlan]) -> Observer {
        self.strategies = seats.iter().map(|seat| (seat.name.clone(), seat.strategy.clone())).collect();
        self
    }

    /// How a seat behaves: honestly, or the name of an adversary.
    pub fn strategy_of(&self, uid: Uid) -> &str {
        self.strategies.get(&self.name_of(uid)).map_or(HONEST, |strategy| strategy)
    }

    /// Reads what is new on the chain and in the journals.
    pub async fn look(&mut self, chain: &dyn Chain) -> Result<(), ChainError> {
        self.block = chain.heads().borrow().block;
        self.run = chain.run(self.run.id).await?;
        self.seats = chain.seats(self.run.id).await?;
        self.weights = chain.weights(self.run.id).await?.into_iter().collect();
        let Some(open) = self.run.params.schedule.window_at(self.block) else {
            self.read_journals();
            return Ok(());
        };
        let mut window = self.outcomes.keys().next_back().map_or(Window::FIRST, |last| last.next());
        while window <= open {
            let Some(view) = chain.window(self.run.id, window).await? else { break };
            self.lineages.insert(window, view.lineage);
            let Some(outcome) = view.outcome else {
                self.current = Some(view);
                break;
            };
            self.take_fixed(&view, outcome);
            self.current = Some(view);
            window = window.next();
        }
        self.read_journals();
        Ok(())
    }

    fn take_fixed(&mut self, view: &WindowView, outcome: Outcome) {
        self.outcomes.insert(view.window, outcome);
        for (uid, _) in &view.commitments {
            self.seen.entry(*uid).or_default().committed += 1;
        }
        for uid in &view.attested {
            self.seen.entry(*uid).or_default().attested += 1;
        }
        for (uid, vote) in &view.votes {
            let seen = self.seen.entry(*uid).or_default();
            seen.selected += 1;
            if matches!(outcome, Outcome::Merged(fixed) if fixed.update != vote.update) {
                seen.dissents += 1;
                let reason = "voted another update than two thirds of the stake".to_owned();
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
            for entry in entries {
                self.take_entry(index, entry);
            }
        }
    }

    fn take_entry(&mut self, index: usize, entry: Entry) {
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
            Entry::Trained { train_seconds, data_seconds, .. } => {
                let seen = self.seen.entry(uid).or_default();
                seen.train_seconds += train_seconds;
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
            Entry::Judged { window, held_out_loss, seats, .. } => {
                self.held_out.entry(window).or_default().insert(name, held_out_loss);
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
            | Entry::Posted { .. }
            | Entry::Published { .. }
            | Entry::Repaired { .. }
            | Entry::Resumed { .. }
            | Entry::Repeated { .. }
            | Entry::FellBack { .. } => {}
        }
    }

    /// Windows that are fixed.
    pub fn windows(&self) -> u32 {
        u32::try_from(self.outcomes.len()).unwrap_or(u32::MAX)
    }

    /// The held-out loss of the model that each window opened with: the mean over the validators that reported it.
    pub fn held_out_losses(&self) -> Vec<(Window, f64)> {
        self.held_out
            .iter()
            .map(|(window, losses)| (*window, losses.values().sum::<f64>() / losses.len().max(1) as f64))
            .collect()
    }

    /// Whether every node holds, at every window it speaks of, the model that the chain says.
    pub fn lineage_agreed(&self) -> bool {
        self.held
            .values()
            .flatten()
            .all(|(window, lineage)| self.lineages.get(window).is_none_or(|fixed| fixed == lineage))
    }

    pub fn seats_of(&self, role: Role) -> impl Iterator<Item = &SeatView> {
        self.seats.iter().filter(move |seat| seat.role == role)
    }

    pub fn paid(&self, uid: Uid) -> Amount {
        Amount(self.seats.iter().find(|seat| seat.id.uid == uid).map_or(0, |seat| seat.earned))
    }

    pub fn name_of(&self, uid: Uid) -> String {
        let found = self.uids.iter().find(|(_, other)| **other == uid);
        found.map_or_else(|| format!("uid {uid}"), |(name, _)| name.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_waiting_is_of_the_time_that_was_trained() {
        assert_eq!(SeatSeen::default().data_wait_share(), None, "nothing was trained yet");
        let seen = SeatSeen { train_seconds: 8.0, data_seconds: 2.0, ..SeatSeen::default() };
        assert_eq!(seen.data_wait_share(), Some(0.25));
    }
}
