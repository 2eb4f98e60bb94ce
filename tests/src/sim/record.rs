//! The record of a network, from its nodes' journals, the first validator's scores, and the chain.

use super::{chain::SharedChain, published, world::MTL};
use daemon::{Entry, journal::Watcher};
use gauntlet::{Evidence, SeatReport};
use protocol::{Digest, RunId, RunParams, Uid, Window, view::Outcome};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use validator::strategy::Strategy;

/// One seat in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeatRecord {
    /// Pay until the end of the window, in MTL.
    pub earned: f64,
    pub observed: String,
    /// Share of the assigned sequences that the contribution declares, if it is valid.
    pub trained_share: f64,
    pub selected: bool,
    /// Number of validators that attested a fault.
    pub faults_attested: usize,
    pub own_gain: Option<f64>,
    pub common_gain: Option<f64>,
    /// Gap and outcome of the own-data test.
    pub gap: Option<f64>,
    pub outcome: Option<f64>,
    pub rank: Option<u32>,
    pub ordinal: f64,
    pub mark: f64,
    pub score: f64,
    pub weight: u16,
    pub penalties: Vec<String>,
    /// Pay by the published rules until the end of the window; one epoch pays 1 in total.
    pub earned_published: f64,
}

/// One window of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowRecord {
    pub window: u32,
    pub merged: bool,
    /// Loss of the model at the start of the window, in nats per token.
    pub held_out_loss: f64,
    /// Seats by uid.
    pub seats: Vec<SeatRecord>,
}

/// A network from its first window to its last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct History {
    pub seed: u64,
    /// Names by uid, miners first.
    pub seats: Vec<String>,
    pub miners: usize,
    /// Stakes by uid, in MTL.
    pub stakes: Vec<f64>,
    pub windows: Vec<WindowRecord>,
    /// Loss of the model after the last window, in nats per token.
    pub held_out_loss: f64,
    pub lineage: String,
    /// The chain's state root after its last block.
    pub state_root: String,
    /// Encoded bytes that each node read from the chain, by uid.
    pub bytes_read: Vec<u64>,
    /// Number of nodes that resumed from their directory.
    pub resumed: usize,
    /// First window of each node that joined without a model, by name; of equal names, the last node's.
    pub joined: BTreeMap<String, u32>,
    /// By name: measurements that validators revealed, and measurements that were drawn (PROT-30).
    pub answers: BTreeMap<String, (u32, u32)>,
    /// Name of a validator, and the reason for a step that it left out.
    pub abstained: Vec<(String, String)>,
}

/// Collects the reports of one network's nodes.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Reports>>);

#[derive(Default)]
struct Reports {
    /// Number of validators that attested a fault, by window and seat.
    faults: BTreeMap<(Window, Uid), usize>,
    /// The first validator's seat reports, by window.
    judged: BTreeMap<Window, Vec<SeatReport>>,
    /// The lineage that the first node reported for each window.
    lineages: BTreeMap<Window, Digest>,
    /// The first node that reported a different lineage, and its window.
    diverged: Option<(Window, String)>,
    /// Mean loss of each window's model on held-out sequences, in nats per token.
    held_out_losses: BTreeMap<Window, f64>,
    published: published::Judge,
    /// Number of nodes that resumed from their directory.
    resumed: usize,
    joined: BTreeMap<String, u32>,
    answers: BTreeMap<String, (u32, u32)>,
    abstained: Vec<(String, String)>,
}

impl Recorder {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        // A panic while the lock is held ends the whole simulation.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a watcher that reads the journal of the node `name`. If `is_compared`, its models are compared with
    /// those of the other nodes.
    pub fn journal_of(&self, name: String, is_compared: bool) -> Watcher {
        let recorder = self.clone();
        Box::new(move |entry| {
            if is_compared || !matches!(entry, Entry::Holds { .. }) {
                recorder.read(&name, entry);
            }
        })
    }

    fn read(&self, name: &str, entry: &Entry) {
        let mut reports = self.reports();
        match entry {
            Entry::Holds { window, lineage, .. } => {
                let first = *reports.lineages.entry(*window).or_insert(*lineage);
                if first != *lineage && reports.diverged.is_none() {
                    reports.diverged = Some((*window, name.to_owned()));
                }
            }
            Entry::Started { resumed: true, .. } => reports.resumed += 1,
            Entry::Started { window, resumed: false } => {
                reports.joined.insert(name.to_owned(), window.0);
            }
            Entry::Attested { window, faulty, .. } => {
                for fault in faulty {
                    *reports.faults.entry((*window, fault.uid)).or_default() += 1;
                }
            }
            Entry::Missed { window, reason } => tracing::debug!(name, window = window.0, reason, "missed"),
            Entry::Abstained { window, reason } => {
                tracing::debug!(name, window = window.0, reason, "abstained");
                reports.abstained.push((name.to_owned(), reason.clone()));
            }
            Entry::Answered { answered, drawn, .. } => {
                let sums = reports.answers.entry(name.to_owned()).or_default();
                *sums = (sums.0 + answered, sums.1 + drawn);
            }
            _ => {}
        }
    }

    pub fn held_out_loss(&self, window: Window, loss: f64) {
        self.reports().held_out_losses.insert(window, loss);
    }

    pub fn loss_of(&self, window: Window) -> Option<f64> {
        self.reports().held_out_losses.get(&window).copied()
    }

    /// Returns the first node whose lineage differs from the others', and the window.
    pub fn diverged(&self) -> Option<(Window, String)> {
        self.reports().diverged.clone()
    }

    /// Returns the number of nodes that resumed from their directory.
    pub fn resumed(&self) -> usize {
        self.reports().resumed
    }

    /// Returns the first window of each node that joined without a model, by name.
    pub fn joined(&self) -> BTreeMap<String, u32> {
        self.reports().joined.clone()
    }

    /// Forgets the lineage that nodes reported for `window`, which has just opened with an earlier one (PROT-20).
    pub fn rewound(&self, window: Window) {
        self.reports().lineages.remove(&window);
    }

    /// Returns, by name, measurements that validators revealed, and measurements that were drawn.
    pub fn answers(&self) -> BTreeMap<String, (u32, u32)> {
        self.reports().answers.clone()
    }

    /// Returns names of validators with the reasons for steps that they left out.
    pub fn abstained(&self) -> Vec<(String, String)> {
        self.reports().abstained.clone()
    }

    pub fn lineage_of(&self, window: Window) -> Option<Digest> {
        self.reports().lineages.get(&window).copied()
    }

    /// Returns the record of `window`, whose last block is the chain's head. The first `miners` seats belong to
    /// miners.
    /// `None` if the window is not finalised.
    pub fn window(
        &self,
        chain: &SharedChain,
        run: RunId,
        params: &RunParams,
        miners: usize,
        window: Window,
    ) -> Option<WindowRecord> {
        let view = chain.window_now(run, window)?;
        let outcome = view.outcome?;
        let mut reports = self.reports();
        let seats = chain.seats_now(run);
        // An abandoned seat leaves a gap.
        let uids = seats.iter().map(|seat| usize::from(seat.id.uid.0) + 1);
        let mut records = vec![SeatRecord::default(); uids.max().unwrap_or_default().max(miners)];
        for seat in &seats {
            let uid = seat.id.uid;
            let record = &mut records[usize::from(uid.0)];
            record.earned = seat.earned as f64 / MTL as f64;
            record.selected = view
                .selection
                .as_ref()
                .is_some_and(|selection| selection.selected.iter().any(|selected| selected.uid == uid));
            record.faults_attested = reports.faults.get(&(window, uid)).copied().unwrap_or_default();
        }
        for report in reports.judged.get(&window).into_iter().flatten() {
            let Some(record) = records.get_mut(usize::from(report.seat.uid.0)) else { continue };
            record.observed = format!("{:?}", report.observed);
            record.trained_share = report.trained_share;
            record.own_gain = report.own_gain;
            record.common_gain = report.common_gain;
            record.gap = report.own_data.map(|own| own.gap);
            record.outcome = report.own_data.map(|own| own.outcome);
            record.rank = report.rank;
            record.ordinal = report.ordinal;
            record.mark = report.own_data_score_after;
            record.score = report.score;
            record.weight = report.weight;
            record.penalties =
                report.penalties.iter().map(|penalty| format!("{:?}", penalty.reason)).collect();
        }
        reports.published.credit(params, window, &mut records[..miners]);
        Some(WindowRecord {
            window: window.0,
            merged: matches!(outcome, Outcome::Merged(_)),
            held_out_loss: reports.held_out_losses.get(&window).copied().unwrap_or(f64::NAN),
            seats: records,
        })
    }
}

/// The default strategy. It reports its scores and applies the published rules to the same evidence.
pub struct Reporting(pub Recorder);

impl Strategy for Reporting {
    fn judged(&mut self, window: Window, evidence: &[Evidence], seats: &[SeatReport]) {
        let mut reports = self.0.reports();
        reports.published.judge(evidence);
        reports.judged.insert(window, seats.to_vec());
    }
}
