//! The inner loop: training on the assigned sequences between the opening of a window and the commit margin.
//!
//! A step whose loss is not finite, or above the trainer's limit, is not taken. It is repeated from the same state:
//! if it succeeds, the device had computed wrongly, and training continues; if not, the window is abandoned with a
//! diagnosis.

use codec::{Decode, Encode};
use dataset::{Dataset, Prefetch, ReadError};
use model::Recipe;
use nn::{ModelError, Step, Trainer};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// Number of batches that are read ahead.
const BATCHES_AHEAD: usize = 4;

/// The training of one window so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
pub struct Trained {
    /// `t`: sequences finished, a prefix of those assigned (PROT-6).
    pub sequences: u32,
    pub steps: u32,
    /// Mean loss of the first and the last step, nats per token.
    pub loss_first: f64,
    pub loss_last: f64,
    /// Time of all processes that trained in this window, in seconds.
    pub seconds: f64,
    /// Part of `seconds` spent waiting for data.
    pub data_seconds: f64,
}

/// Division of a window into steps, and its place in the run. Learning rates follow the run, not the seat (ADR 0046).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSteps {
    /// Sequences of one step of this miner.
    pub batch: usize,
    /// Sequences of one step by the run's recipe.
    pub run_batch: usize,
    /// Windows of the run before this one.
    pub windows_before: u32,
    /// Sequences per seat in a window (PROT-5).
    pub sequences_per_seat: u32,
}

impl WindowSteps {
    /// Returns the learning rate of the step after `sequences` of the window, for an optimiser with `own` steps. It
    /// is the run's; while the optimiser is new, it is at most a share of the highest rate. That share rises to 1
    /// within the memory of the gradients' mean, `1 / (1 - beta_1)` steps, or in the recipe's warm-up if that is
    /// shorter.
    fn learning_rate(&self, recipe: &Recipe, sequences: u32, own: u64) -> f64 {
        let before = u64::from(self.windows_before) * u64::from(self.sequences_per_seat);
        let batch = (self.run_batch as u64).max(1);
        let of_run = recipe.learning_rate_at((before + u64::from(sequences)) / batch);
        // The recipe bounds the quotient from below; a cast bounds it from above.
        let new_for = recipe.warmup_steps.min((1.0 / (1.0 - recipe.betas[0])).round() as u64);
        if own < new_for {
            of_run.min(recipe.learning_rate * (own + 1) as f64 / new_for as f64)
        } else {
            of_run
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    #[error("could not read the assigned data")]
    Data(#[from] ReadError),
    #[error("could not start the thread that reads data")]
    NoReader(#[source] std::io::Error),
    #[error("the weights that were trained could not be read from the device")]
    Weights(#[source] ModelError),
    #[error("sequences {first_sequence} to {last_sequence}, step {step}: {cause}")]
    GivenUp {
        step: u32,
        /// The first and the last sequence of the step, as the dataset counts them.
        first_sequence: u64,
        last_sequence: u64,
        cause: Cause,
        #[source]
        error: ModelError,
    },
}

impl TrainingError {
    /// Returns whether another start may help: a step could not be taken, although device, program and ranks work.
    pub fn may_be_of_the_start(&self) -> bool {
        matches!(self, TrainingError::GivenUp { cause: Cause::Data | Cause::State, .. })
    }
}

/// The diagnosis of a repeated step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    /// The repetition gave another result, or the device failed.
    #[error(
        "run again from the same state it came out otherwise, or the device failed again, so it is the device: check its memory, temperature and clock, or use another"
    )]
    Device,
    /// The weights or the optimiser's moments are not finite: no step can succeed.
    #[error(
        "the weights or the optimiser hold something that is no number, so it is neither this step's data nor the device now: they are loaded afresh before training goes on"
    )]
    State,
    /// The repetition gave the same result from a finite state, or the data does not fit the model.
    #[error(
        "run again from the same state it came out the same, so it is not the device: it is these sequences, or a learning rate that is too high (train.learning_rate)"
    )]
    Data,
    /// The program of `engine = "command"` failed. It has no state to run the step again from.
    #[error("the program under [train.command] failed; the next window starts it afresh")]
    Command,
    /// A process of `ranks` failed, and with it a part of the optimiser.
    #[error("a rank under [train] failed; the next window starts the ranks afresh")]
    Ranks,
}

/// Returns the loss above which training has diverged, in nats per token: twice that of uniform guesses, `ln vocab`.
/// A fresh model starts at or a little above `ln vocab`; hard data does not double it.
pub fn loss_max(vocab: usize) -> f64 {
    2.0 * (vocab.max(2) as f64).ln()
}

/// Observes the steps.
pub trait TrainObserver {
    /// Returns the sequences to train on, from those that a step read.
    fn read(&self, of_step: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        of_step
    }
    /// Called after each step, to write a snapshot.
    fn stepped(&mut self, trainer: &Trainer, trained: &Trained);
    /// Called when step `step`, counted from 1, failed with `error` and succeeded when repeated.
    fn repeated(&mut self, step: u32, error: &ModelError);
    /// Returns whether the process is shutting down, so that training does not wait for data.
    fn is_leaving(&self) -> bool {
        false
    }
}

/// Observes nothing.
impl TrainObserver for () {
    fn stepped(&mut self, _: &Trainer, _: &Trained) {}
    fn repeated(&mut self, _: u32, _: &ModelError) {}
}

/// Trains on `sequences` in order, a batch at a time, from where `trained` ends until they are done or `stop` is set.
/// Finished sequences count, so slow hardware is paid for its part (PROT-6).
///
/// # Errors
/// If the data cannot be read, or a step cannot be taken. The trainer then has the state after the last good step.
pub fn train(
    trainer: &mut Trainer,
    dataset: &Dataset,
    sequences: &[u64],
    steps: &WindowSteps,
    mut trained: Trained,
    stop: &AtomicBool,
    beside: &mut dyn TrainObserver,
) -> Result<Trained, TrainingError> {
    let (started, before) = (Instant::now(), trained.seconds);
    let done = usize::try_from(trained.sequences).unwrap_or(usize::MAX).min(sequences.len());

    let waited_before = trained.data_seconds;
    let sequences = &sequences[done..];
    let batch = steps.batch.max(1);
    let mut batches =
        Prefetch::new(dataset, sequences, batch, BATCHES_AHEAD).map_err(TrainingError::NoReader)?;

    for indices in sequences.chunks(batch) {
        if stop.load(Ordering::Relaxed) {
            break;
        }

        // Read: usually read ahead. Damaged data that is fetched again may take long.
        let over = || stop.load(Ordering::Relaxed) || beside.is_leaving();
        let tokens = batches.next_unless(over).transpose()?;
        trained.data_seconds = waited_before + batches.waited().as_secs_f64();
        let Some(tokens) = tokens else { break };

        // Step.
        let step = trained.steps.saturating_add(1);
        let rate = steps.learning_rate(trainer.recipe(), trained.sequences, trainer.steps());
        let taken = self::step(trainer, &beside.read(tokens), rate, |error| beside.repeated(step, error));
        let stepped = taken.map_err(|(cause, error)| {
            let (first_sequence, last_sequence) = (indices[0], indices[indices.len() - 1]);
            TrainingError::GivenUp { step, first_sequence, last_sequence, cause, error }
        })?;

        // Log.
        trained.steps = step;
        trained.sequences += u32::try_from(indices.len()).expect("a batch is far below 2^32 sequences");
        if trained.steps == 1 {
            trained.loss_first = stepped.loss;
        }
        trained.loss_last = stepped.loss;
        trained.seconds = before + started.elapsed().as_secs_f64();
        tracing::debug!(step, loss = stepped.loss, learning_rate = rate, "step");
        beside.stepped(trainer, &trained);
    }
    trained.seconds = before + started.elapsed().as_secs_f64();
    Ok(trained)
}

/// Takes a step at `learning_rate`. A failed one is repeated from the same state; if that succeeds, `repeated` is
/// called with the first error.
///
/// # Errors
/// The first error, with the diagnosis of the repetition, or that of ranks that failed in it. The trainer is
/// unchanged.
#[tracing::instrument(name = "step", target = "profile", level = "trace", skip_all)]
pub fn step<S: AsRef<[u32]>>(
    trainer: &mut Trainer,
    sequences: &[S],
    learning_rate: f64,
    repeated: impl FnOnce(&ModelError),
) -> Result<Step, (Cause, ModelError)> {
    let first = match trainer.step_at(sequences, learning_rate) {
        Ok(step) => return Ok(step),
        Err(first @ ModelError::Command { .. }) => return Err((Cause::Command, first)),
        Err(first @ ModelError::Ranks { .. }) => return Err((Cause::Ranks, first)),
        Err(first) => first,
    };
    let again = match trainer.step_at(sequences, learning_rate) {
        Err(second @ ModelError::Ranks { .. }) => return Err((Cause::Ranks, second)),
        again => again,
    };
    match judge(&first, again, || trainer.is_finite()) {
        Ok(step) => {
            repeated(&first);
            Ok(step)
        }
        Err(cause) => Err((cause, first)),
    }
}

/// Diagnoses a step that failed with `first` and was repeated with the result `again`.
fn judge(
    first: &ModelError,
    again: Result<Step, ModelError>,
    is_finite: impl FnOnce() -> Result<bool, ModelError>,
) -> Result<Step, Cause> {
    let second = match again {
        Ok(step) => return Ok(step),
        Err(second) => second,
    };
    match (measured(first), measured(&second)) {
        (Some(first), Some(second)) => match is_finite() {
            Ok(false) => Err(Cause::State),
            Ok(true) if std::iter::zip(first, second).all(alike) => Err(Cause::Data),
            Err(ModelError::Ranks { .. }) => Err(Cause::Ranks),
            Ok(true) | Err(_) => Err(Cause::Device),
        },
        (None, None) if [first, &second].into_iter().any(of_device) => Err(Cause::Device),
        (None, None) => Err(Cause::Data),
        (Some(_), None) | (None, Some(_)) => Err(Cause::Device),
    }
}

/// Returns whether the device failed, or lacks memory.
fn of_device(error: &ModelError) -> bool {
    matches!(error, ModelError::Device(_) | ModelError::Memory(_))
}

/// Returns the loss and norm for which a step was refused; `None` for other errors.
fn measured(error: &ModelError) -> Option<[f64; 2]> {
    match error {
        ModelError::NotFinite { loss, gradient_norm } | ModelError::Exploded { loss, gradient_norm, .. } => {
            Some([*loss, *gradient_norm])
        }
        _ => None,
    }
}

/// Returns whether two computations from the same state agree. A correct GPU sums in varying order, which changes the
/// last digits; a faulty one has larger errors.
fn alike((one, other): (f64, f64)) -> bool {
    match (one.is_finite(), other.is_finite()) {
        (true, true) => (one - other).abs() <= 1e-3 * one.abs().max(other.abs()),
        (false, false) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nn::{Device, DeviceError, DeviceName};

    const NAN: ModelError = ModelError::NotFinite { loss: f64::NAN, gradient_norm: f64::NAN };

    fn gone() -> ModelError {
        ModelError::Device(DeviceError::Failed {
            device: Device::new(DeviceName::Cuda(0)),
            why: "gone".into(),
        })
    }

    fn exploded(loss: f64) -> ModelError {
        ModelError::Exploded { loss, gradient_norm: 3.0, loss_max: 20.0 }
    }

    const WINDOW: WindowSteps =
        WindowSteps { batch: 4, run_batch: 4, windows_before: 0, sequences_per_seat: 32 };

    fn recipe(warmup_steps: u64) -> Recipe {
        Recipe {
            learning_rate: 1.0,
            warmup_steps,
            decay_steps: 100,
            final_fraction: 0.0,
            ..Recipe::default()
        }
    }

    /// Returns the rates of a seat that takes `steps` steps in each of the three windows from `first` on.
    fn rates(recipe: &Recipe, first: u32, steps: u32) -> Vec<Vec<f64>> {
        let mut own = 0;
        let mut window = |windows_before: u32| {
            let window = WindowSteps { windows_before, ..WINDOW };
            let mut step = |done: u32| {
                own += 1;
                window.learning_rate(recipe, 4 * done, own - 1)
            };
            (0..steps).map(&mut step).collect()
        };
        (first..first + 3).map(&mut window).collect()
    }

    #[test]
    fn a_seat_that_misses_nothing_has_the_recipes_rates() {
        for warmup_steps in [0, 5, 8, 20] {
            let recipe = recipe(warmup_steps);
            let of_recipe: Vec<f64> = (0..24).map(|step| recipe.learning_rate_at(step)).collect();
            assert_eq!(rates(&recipe, 0, 8).concat(), of_recipe, "{warmup_steps}");
        }
    }

    #[test]
    fn a_slow_seat_has_the_rates_of_the_others_once_its_optimiser_is_not_new() {
        let recipe = recipe(20);
        let (whole, slow) = (rates(&recipe, 0, 8), rates(&recipe, 0, 2));
        assert_eq!(slow[0], whole[0][..2]);
        // 9 of 20 steps of the run's warm-up, and 3 and 4 of 10 of its own.
        assert_eq!(slow[1], [0.3, 0.4]);
        assert_eq!(whole[1][..2], [0.45, 0.5]);
        assert_eq!(slow[2], [0.5, 0.6]);
    }

    #[test]
    fn a_newcomer_has_the_rates_of_the_others_once_its_optimiser_is_not_new() {
        let recipe = Recipe { final_fraction: 0.7, ..recipe(5) };
        let of_run = |step| recipe.learning_rate_at(step);
        let late = rates(&recipe, 10, 8);
        assert_eq!(late[0][..3], [0.2, 0.4, 0.6]);
        assert_eq!(late[0][3..], [83, 84, 85, 86, 87].map(of_run), "below 0.8 by then");
        assert_eq!(late[1][0], of_run(88));
    }

    #[test]
    fn neither_ones_own_batch_nor_a_window_of_broken_steps_changes_the_place_in_the_run() {
        let recipe = recipe(0);
        let of_run = |step| recipe.learning_rate_at(step);
        let larger = WindowSteps { batch: 16, windows_before: 3, ..WINDOW };
        assert_eq!(larger.learning_rate(&recipe, 16, 7), of_run(3 * 8 + 4));
        let broken = WindowSteps { windows_before: 3, sequences_per_seat: 34, ..WINDOW };
        assert_eq!(broken.learning_rate(&recipe, 4, 30), of_run((3 * 34 + 4) / 4));
        let most =
            WindowSteps { run_batch: 0, windows_before: u32::MAX, sequences_per_seat: u32::MAX, ..WINDOW };
        assert_eq!(most.learning_rate(&recipe, u32::MAX, u64::MAX), 0.0);
    }

    #[test]
    fn a_step_that_succeeds_when_repeated_is_a_fault_of_the_device() {
        let fine = Step { loss: 2.0, gradient_norm: 1.0, learning_rate: 1e-3 };
        assert_eq!(judge(&NAN, Ok(fine), || unreachable!()), Ok(fine));
        assert_eq!(judge(&exploded(30.0), Ok(fine), || unreachable!()), Ok(fine));
    }

    #[test]
    fn equal_failures_blame_the_data_and_different_ones_the_device() {
        let judge = |first, second| judge(&first, Err(second), || Ok(true)).unwrap_err();
        assert_eq!(judge(NAN, NAN), Cause::Data);
        assert_eq!(judge(exploded(30.0), exploded(30.01)), Cause::Data, "a GPU's last digits");
        assert_eq!(judge(exploded(30.0), exploded(40.0)), Cause::Device);
        assert_eq!(judge(NAN, exploded(40.0)), Cause::Device);
        assert_eq!(judge(exploded(40.0), NAN), Cause::Device);
        let infinite = ModelError::NotFinite { loss: 2.0, gradient_norm: f64::INFINITY };
        assert_eq!(judge(infinite.clone(), infinite.clone()), Cause::Data);
        assert_eq!(judge(infinite, NAN), Cause::Device);
        let length = ModelError::FlatLength { expected: 1, got: 2 };
        assert_eq!(judge(length.clone(), length.clone()), Cause::Data);
        assert_eq!(judge(length.clone(), NAN), Cause::Device);
        assert_eq!(judge(gone(), gone()), Cause::Device);
        assert_eq!(judge(length, gone()), Cause::Device);
    }

    #[test]
    fn a_state_that_is_not_finite_is_named_as_the_cause() {
        assert_eq!(judge(&NAN, Err(NAN), || Ok(false)), Err(Cause::State));
        assert_eq!(judge(&exploded(30.0), Err(NAN), || Ok(false)), Err(Cause::State));
    }

    #[test]
    fn a_device_that_cannot_report_its_state_is_the_cause() {
        assert_eq!(judge(&NAN, Err(NAN), || Err(gone())), Err(Cause::Device));
        assert_eq!(judge(&exploded(30.0), Err(exploded(30.0)), || Err(gone())), Err(Cause::Device));
    }

    #[test]
    fn trained_encodes_to_the_bit() {
        let trained = Trained {
            sequences: 3,
            steps: 2,
            loss_first: -0.0,
            loss_last: f64::MIN_POSITIVE / 2.0,
            seconds: 0.1,
            data_seconds: 0.01,
        };
        let bytes = trained.encode();
        assert_eq!(bytes[8..16], (-0.0f64).to_bits().to_le_bytes());
        assert_eq!(bytes.len(), 4 + 4 + 4 * 8);
        assert_eq!(Trained::decode(&mut &bytes[..]).unwrap().encode(), bytes);
        assert_eq!(Trained::decode(&mut &bytes[..]).unwrap(), trained);
    }
}
