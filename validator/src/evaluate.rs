//! Evaluates a window's contributions on a separate thread, while the loop continues.

pub use measure::{EvaluateError, Job, Measurements, mean_loss, measure};

use crate::{gather::Gathered, salt::Salts, step::RunError, strategy::Strategy};
use daemon::{Blocking, Node, Work, error_chain};
use dataset::Dataset;
use gauntlet::{Reputations, Seeds, Sketches, form::Plan};
use nn::Evaluator;
use protocol::{
    Block, Uid,
    assign::{self, Assignment},
    submission::Fault,
    view::{SeatView, WindowView},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The size of the sample of held-out sequences on which the model's loss is reported, if the settings do not say.
pub const HELD_OUT_SEQUENCES: u64 = 128;

/// Measures contributions.
pub trait Evaluate: Send {
    /// Runs `job`, and blocks until it is done. `time_left` is called before each contribution, and before each part
    /// of the held-out sample: once it is false, the rest is left out.
    fn measure(
        &mut self,
        job: &Job,
        time_left: &mut dyn FnMut() -> bool,
    ) -> Result<Measurements, EvaluateError>;

    /// Returns the mean loss of a model on training sequences, in nats per token. Blocks.
    fn mean_loss(&mut self, theta: &[f32], sequences: &[u64]) -> Result<f64, EvaluateError>;
}

/// Measures on a device of this machine.
pub struct DeviceEvaluator {
    pub evaluator: Evaluator,
    pub dataset: Arc<Dataset>,
}

impl Evaluate for DeviceEvaluator {
    fn measure(
        &mut self,
        job: &Job,
        time_left: &mut dyn FnMut() -> bool,
    ) -> Result<Measurements, EvaluateError> {
        measure(&mut self.evaluator, &self.dataset, job, time_left)
    }

    fn mean_loss(&mut self, theta: &[f32], sequences: &[u64]) -> Result<f64, EvaluateError> {
        mean_loss(&mut self.evaluator, &self.dataset, theta, sequences)
    }
}

/// A window that is measured, from the start of its evaluation until it is judged.
pub(crate) struct EvaluatedWindow {
    pub view: WindowView,
    pub seats: Vec<SeatView>,
    /// `t` of every valid contribution that the validator holds.
    pub trained: BTreeMap<Uid, u32>,
    /// Seats that this validator did not fetch, because they were over the limit.
    pub unfetched: BTreeSet<Uid>,
    /// Faults that this validator found.
    pub faults: BTreeMap<Uid, Fault>,
    pub plan: Plan,
    /// Set when no further contribution may be started.
    time_is_up: Arc<AtomicBool>,
    pub progress: Progress,
}

pub(crate) enum Progress {
    Running(Work<Ended>),
    /// Measured, but not judged: the disk was full.
    Measured(Measurements),
}

/// The evaluator with its result, returned by its thread.
type Ended = (Box<dyn Evaluate>, Result<Measurements, EvaluateError>);

/// Measures one window at a time, beside the loop.
pub struct Evaluation {
    /// `None` while a measurement has it.
    evaluator: Option<Box<dyn Evaluate>>,
    /// The window that is measured, or waits to be judged.
    pub(crate) window: Option<EvaluatedWindow>,
    /// Sketches of the last windows' contributions. After a restart, copies of older work are found again only as the
    /// sketches fill.
    sketches: Sketches,
    /// Maximum number of contributions evaluated in one window (PROT-28).
    pub contributions_max: usize,
    /// Size of the sample of held-out sequences on which the model's loss is reported.
    pub held_out_sequences: u64,
    /// Position of the first of them in the sample's order.
    pub held_out_first: u64,
}

impl Evaluation {
    pub fn new(evaluator: Box<dyn Evaluate>) -> Evaluation {
        Evaluation {
            evaluator: Some(evaluator),
            window: None,
            sketches: Sketches::default(),
            contributions_max: 64,
            held_out_sequences: HELD_OUT_SEQUENCES,
            held_out_first: 0,
        }
    }

    /// Starts to measure, unless an earlier evaluation still runs or the window's randomness is missing.
    pub(crate) async fn start(
        &mut self,
        node: &mut Node,
        salts: &Salts,
        reputations: &Reputations,
        (view, seats): (&WindowView, &[SeatView]),
        gathered: Gathered,
    ) {
        let Some((seeds, assignment)) = draw(node, salts, view) else { return };
        if self.window.is_some() {
            return;
        }
        let Gathered { valid: contributions, faulty: faults, mut unfetched, .. } = gathered;
        unfetched.retain(|uid| !contributions.contains_key(uid));
        let selected = view.selection.iter().flat_map(|selection| &selection.selected).map(|one| one.uid);
        let selected = gauntlet::in_turn(&seeds.probe, selected);
        let state = node.blocking.with(&mut node.sync.state, |state| state.without_buffer()).await;
        let Some(mut evaluator) = self.evaluator.take() else { return };
        let held = seats.iter().filter(|seat| contributions.contains_key(&seat.id.uid));
        let candidates: Vec<_> = held.map(|seat| seat.id).collect();
        let order = gauntlet::whom_to_evaluate(
            &seeds.own,
            view.window,
            &candidates,
            &selected,
            reputations,
            self.contributions_max,
            node.run().params.evaluation_wait_max,
        );
        let order: Vec<Uid> = order.into_iter().map(|seat| seat.uid).collect();
        let plan = Plan {
            held: contributions.keys().copied().collect(),
            budget: u32::try_from(self.contributions_max).unwrap_or(u32::MAX),
            order: order.clone(),
        };
        let trained = contributions.iter().map(|(uid, held)| (*uid, held.header.trained)).collect();
        let job = Job {
            held_out: self.held_out_first..self.held_out_first.saturating_add(self.held_out_sequences),
            earlier: self.sketches.clone(),
            ..Job::new(state, node.follower(), view, contributions, order, &assignment, seeds)
        };
        let time_is_up = Arc::new(AtomicBool::new(false));
        let (stop, window) = (time_is_up.clone(), view.window.0);
        let running = node.blocking.start(move || {
            let _span = tracing::debug_span!(target: "profile", "evaluate", window).entered();
            let measured = evaluator.measure(&job, &mut || !stop.load(Ordering::Relaxed));
            (evaluator, measured)
        });
        self.window = Some(EvaluatedWindow {
            view: view.clone(),
            seats: seats.to_vec(),
            trained,
            unfetched,
            faults,
            plan,
            time_is_up,
            progress: Progress::Running(running),
        });
    }

    /// Ends the evaluation after the current contribution. Seats that it has not reached come earlier in the next
    /// window (PROT-28).
    pub(crate) fn end(&self, blocking: Blocking) {
        if let Some(evaluated) = &self.window {
            blocking.stop(&evaluated.time_is_up);
        }
    }

    /// Waits for the evaluation until the chain is past `until`, and takes its measurements and the evaluator back. If
    /// its data or a contribution cannot be read, the evaluation is dropped.
    pub(crate) async fn collect(
        &mut self,
        node: &mut Node,
        strategy: &mut dyn Strategy,
        until: Block,
    ) -> Result<(), RunError> {
        let Some(EvaluatedWindow { view, progress: Progress::Running(running), .. }) = &mut self.window
        else {
            return Ok(());
        };
        let window = view.window;
        let (evaluator, measured) = tokio::select! {
            // An ended evaluation is accepted, even past the last block.
            biased;
            ended = running => ended?,
            waited = daemon::wait_past(&mut node.heads, until) => {
                waited?;
                return Ok(());
            }
        };
        self.evaluator = Some(evaluator);
        let measured = match measured {
            Err(error @ (EvaluateError::Data(_) | EvaluateError::Held(_))) => {
                let error = error_chain(&error);
                tracing::error!(
                    window = window.0,
                    error,
                    "its data cannot be read: the window is not judged"
                );
                self.window = None;
                return Ok(());
            }
            measured => strategy.measured(window, measured?),
        };
        self.sketches = measured.sketches.clone();
        if let Some(evaluated) = &mut self.window {
            evaluated.progress = Progress::Measured(measured);
        }
        Ok(())
    }

    /// Lends the evaluator to a shorter measurement; `None` while an evaluation has it.
    pub(crate) fn lend(&mut self) -> Option<Box<dyn Evaluate>> {
        self.evaluator.take()
    }

    /// Takes a lent evaluator back.
    pub(crate) fn give_back(&mut self, evaluator: Box<dyn Evaluate>) {
        self.evaluator = Some(evaluator);
    }
}

/// The seeds of this validator's measurements, and the window's assignment; `None` without a hash of the window
/// (PROT-2, PROT-5).
pub(crate) fn draw<'a>(node: &Node, salts: &Salts, view: &'a WindowView) -> Option<(Seeds, Assignment<'a>)> {
    let run = node.run();
    let salt = salts.salt(run.id, view.window);
    let is_committed = view.salts.iter().any(|(uid, _)| *uid == node.uid());
    let salt = is_committed.then_some(&salt);
    let hash = view.evaluation_hash?;
    let seeds = Seeds {
        probe: assign::probe_seed(run.id, view.window, &hash),
        own: assign::evaluation_seed(run.id, view.window, &hash, salt),
    };
    let assignment = Assignment {
        run: run.id,
        window: view.window,
        deal_seed: view.deal_seed?,
        slots: &view.slots,
        cursor: view.cursor,
        sequences_per_seat: run.params.sequences_per_seat,
        training_sequences: node.dataset.training_sequences(),
    };
    Some((seeds, assignment))
}
