//! What a network leaves behind, read from what its nodes report: journal entries, the first validator's judgements, and the chain.

use super::{chain::SharedChain, published, world::MTL};
use node::{Entry, journal::Watcher};
use protocol::{Digest, RunId, RunParams, Uid, Window, view::Outcome};
use serde::Serialize;
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use validator::{
    gauntlet::{Evidence, SeatReport},
    strategy::Strategy,
};

/// One seat in one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct SeatRecord {
    /// All that was credited to the seat so far, in MTL.
    pub earned: f64,
    pub observed: String,
    pub selected: bool,
    /// Validators that saw a fault.
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

/// One window of a network.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct WindowRecord {
    pub window: u32,
    pub merged: bool,
    /// Of the model that the window opened with, in nats per token.
    pub held_out_loss: f64,
    /// By uid.
    pub seats: Vec<SeatRecord>,
}

/// A network from its first window to its last.
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
    /// Of the chain, after its last block.
    pub state_root: String,
    /// Nodes that resumed from their directory.
    pub resumed: usize,
}

/// Collects the reports of one network's nodes.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Reports>>);

#[derive(Default)]
struct Reports {
    /// Validators that saw a fault, by window and seat.
    faults: BTreeMap<(Window, Uid), usize>,
    /// The first validator's judgement of each window.
    judged: BTreeMap<Window, Vec<SeatReport>>,
    /// The lineage of each window's model, as the first node held it.
    lineages: BTreeMap<Window, Digest>,
    /// The first node that held another one.
    diverged: Option<(Window, String)>,
    /// Mean loss of each window's model on held-out sequences.
    held_out_losses: BTreeMap<Window, f64>,
    published: published::Judge,
    /// Nodes that resumed from their directory.
    resumed: usize,
}

impl Recorder {
    fn reports(&self) -> MutexGuard<'_, Reports> {
        // A holder that panicked has ended the whole simulation.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the journal of the node `name`.
    pub fn journal_of(&self, name: String) -> Watcher {
        let recorder = self.clone();
        Box::new(move |entry| recorder.read(&name, entry))
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
            Entry::Attested { window, faulty, .. } => {
                for fault in faulty {
                    *reports.faults.entry((*window, fault.uid)).or_default() += 1;
                }
            }
            Entry::Missed { window, reason } => tracing::debug!(name, window = window.0, reason, "missed"),
            Entry::Abstained { window, reason } => {
                tracing::debug!(name, window = window.0, reason, "abstained")
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

    /// The first node that held another model than the others, and the window.
    pub fn diverged(&self) -> Option<(Window, String)> {
        self.reports().diverged.clone()
    }

    /// How many nodes resumed from their directory.
    pub fn resumed(&self) -> usize {
        self.reports().resumed
    }

    pub fn lineage_of(&self, window: Window) -> Option<Digest> {
        self.reports().lineages.get(&window).copied()
    }

    /// The record of `window`, whose last block is the chain's head. The first `miners` seats are miners'. `None` if the
    /// window was not finalised.
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
        let mut records = vec![SeatRecord::default(); seats.len()];
        for (seat, record) in seats.iter().zip(&mut records) {
            let uid = seat.id.uid;
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

/// An honest validator that reports its judgements, and has the published rules judge the same evidence.
pub struct Reporting(pub Recorder);

impl Strategy for Reporting {
    fn judged(&mut self, window: Window, evidence: &[Evidence], seats: &[SeatReport]) {
        let mut reports = self.0.reports();
        reports.published.judge(evidence);
        reports.judged.insert(window, seats.to_vec());
    }
}
