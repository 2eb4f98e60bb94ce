//! Evaluates a window's contributions on a thread of its own, while the loop goes on.

pub use measure::{EvaluateError, Job, Measurements, mean_loss, measure};

use crate::{
    gather::Gathered,
    run::Validator,
    step::{RunError, Stop},
};
use daemon::{Work, error_chain};
use dataset::Dataset;
use gauntlet::{Seeds, form::Plan};
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

/// Measures contributions.
pub trait Evaluate: Send {
    /// Runs `job`, and blocks until it is done. `time_left` is called before each contribution, and
    /// before each part of the held-out sample: once it is false, the rest is left out.
    fn measure(
        &mut self,
        job: &Job,
        time_left: &mut dyn FnMut() -> bool,
    ) -> Result<Measurements, EvaluateError>;

    /// The mean loss of a model on training sequences, in nats per token. Blocks.
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

/// An evaluation, from its start until its window is judged.
pub(crate) struct Evaluation {
    pub view: WindowView,
    pub seats: Vec<SeatView>,
    /// `t` of every valid contribution at hand.
    pub trained: BTreeMap<Uid, u32>,
    /// Seats that this validator did not fetch, as it was not their turn.
    pub unfetched: BTreeSet<Uid>,
    /// Faults that this validator saw.
    pub faults: BTreeMap<Uid, Fault>,
    pub plan: Plan,
    /// Set when no further contribution may be started.
    time_is_up: Arc<AtomicBool>,
    progress: Progress,
}

enum Progress {
    Running(Work<Ended>),
    /// Measured. The disk was full when it was to be judged.
    Measured(Measurements),
}

/// The evaluator, back from its thread.
type Ended = (Box<dyn Evaluate>, Result<Measurements, EvaluateError>);

impl Validator {
    /// Starts to measure, unless an earlier evaluation still runs or the window's randomness is missing.
    pub(crate) async fn start_evaluation(
        &mut self,
        view: &WindowView,
        seats: &[SeatView],
        gathered: Gathered,
    ) {
        let Some((seeds, assignment)) = self.draw(view) else { return };
        if self.evaluation.is_some() {
            return;
        }
        let Gathered { valid: contributions, faulty: faults, mut unfetched, .. } = gathered;
        unfetched.retain(|uid| !contributions.contains_key(uid));
        let selected = view.selection.iter().flat_map(|selection| &selection.selected).map(|one| one.uid);
        let selected = gauntlet::in_turn(&seeds.probe, selected);
        let blocking = self.node.blocking;
        let state = blocking.with(&mut self.node.sync.state, |state| state.without_buffer()).await;
        let Some(mut evaluator) = self.evaluator.take() else { return };
        let run = self.node.run();
        let held = seats.iter().filter(|seat| contributions.contains_key(&seat.id.uid));
        let candidates: Vec<_> = held.map(|seat| seat.id).collect();
        let order = gauntlet::whom_to_evaluate(
            &seeds.own,
            view.window,
            &candidates,
            &selected,
            self.signed.reputations(),
            self.evaluations_max,
            run.params.evaluation_wait_max,
        );
        let order: Vec<Uid> = order.into_iter().map(|seat| seat.uid).collect();
        let plan = Plan {
            held: contributions.keys().copied().collect(),
            budget: u32::try_from(self.evaluations_max).unwrap_or(u32::MAX),
            order: order.clone(),
        };
        let trained = contributions.iter().map(|(uid, held)| (*uid, held.header.trained)).collect();
        let job = Job {
            held_out: self.held_out_first..self.held_out_first.saturating_add(self.held_out_sequences),
            earlier: self.sketches.clone(),
            ..Job::new(state, self.node.follower(), view, contributions, order, &assignment, seeds)
        };
        let time_is_up = Arc::new(AtomicBool::new(false));
        let (stop, window) = (time_is_up.clone(), view.window.0);
        let running = self.node.blocking.start(move || {
            let _span = tracing::debug_span!(target: "profile", "evaluate", window).entered();
            let measured = evaluator.measure(&job, &mut || !stop.load(Ordering::Relaxed));
            (evaluator, measured)
        });
        self.evaluation = Some(Evaluation {
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

    /// The seeds of this validator's measurements, and the window's assignment; `None` without a hash of the window
    /// (PROT-2, PROT-5).
    pub(crate) fn draw<'a>(&self, view: &'a WindowView) -> Option<(Seeds, Assignment<'a>)> {
        let run = self.node.run();
        let salt = self.salts.salt(run.id, view.window);
        let is_committed = view.salts.iter().any(|(uid, _)| *uid == self.node.uid());
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
            training_sequences: self.node.dataset.training_sequences(),
        };
        Some((seeds, assignment))
    }

    /// Has the evaluation end with the contribution that it is at. Seats that it has not reached come earlier in the
    /// next window (PROT-28).
    pub(crate) fn end_evaluation(&self) {
        if let Some(evaluation) = &self.evaluation {
            self.node.blocking.stop(&evaluation.time_is_up);
        }
    }

    /// Waits for the evaluation until the chain is past `until`, and takes its measurements and the evaluator back. If
    /// its data or a contribution cannot be read, the evaluation is dropped.
    pub(crate) async fn collect_evaluation(&mut self, until: Block) -> Result<(), RunError> {
        let Some(Evaluation { view, progress: Progress::Running(running), .. }) = &mut self.evaluation else {
            return Ok(());
        };
        let window = view.window;
        let (evaluator, measured) = tokio::select! {
            // An evaluation that has ended is taken, also past the last block.
            biased;
            ended = running => ended?,
            waited = daemon::wait_past(&mut self.node.heads, until) => {
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
                self.evaluation = None;
                return Ok(());
            }
            measured => self.strategy.measured(window, measured?),
        };
        self.sketches = measured.sketches.clone();
        if let Some(evaluation) = &mut self.evaluation {
            evaluation.progress = Progress::Measured(measured);
        }
        Ok(())
    }

    /// Judges the evaluation if it ends before `last_call`. Otherwise, or if the disk is full until then, it is kept
    /// for the next call.
    pub(crate) async fn judge_by(&mut self, last_call: Block) -> Result<(), RunError> {
        self.collect_evaluation(last_call).await?;
        let Some(mut evaluation) = self.evaluation.take() else { return Ok(()) };
        let window = evaluation.view.window;
        let Progress::Measured(measured) = evaluation.progress else {
            tracing::debug!(window = window.0, "the evaluation continues in the next window");
            self.evaluation = Some(evaluation);
            return Ok(());
        };
        // With hidden votes, the window is finalised some blocks after the vote deadline.
        let over = self.node.schedule().opens_at(window.next());
        if let Some(view) = self.wait_for_view(window, over, |view| view.outcome.is_some()).await? {
            evaluation.view = view;
        }
        evaluation.progress = Progress::Measured(measured);
        if evaluation.view.outcome.is_none() {
            tracing::debug!(window = window.0, "the window is not finalised yet");
            self.evaluation = Some(evaluation);
            return Ok(());
        }
        let Progress::Measured(measured) = &evaluation.progress else { return Ok(()) };
        match self.judge(&evaluation, measured, last_call).await {
            Err(Stop::Skip(skip)) => {
                tracing::warn!(window = window.0, reason = skip.reason, "not judged yet");
                self.evaluation = Some(evaluation);
                Ok(())
            }
            Err(Stop::Fail(error)) => Err(error),
            Ok(()) => Ok(()),
        }
    }
}
