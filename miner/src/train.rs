//! The inner loop: training on the assigned sequences between the opening of a window and the commit margin.
//!
//! A step whose loss is not finite, or above the trainer's bound, is not taken. It is repeated from the same state: if
//! it succeeds, the device had computed wrongly, and training goes on; if not, the window is given up with a
//! diagnosis.

use codec::{Decode, Encode};
use dataset::{Dataset, Prefetch, ReadError};
use nn::{ModelError, Step, Trainer};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// Batches that are read ahead.
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
    /// Of all processes that trained in this window.
    pub seconds: f64,
    /// Of these, spent waiting for data.
    pub data_seconds: f64,
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
        "the weights or the optimiser hold something that is no number, so it is neither this step's data nor the device now: they are loaded afresh for the next window"
    )]
    State,
    /// The repetition gave the same result from a finite state, or the data does not fit the model.
    #[error(
        "run again from the same state it came out the same, so it is not the device: it is these sequences, a learning rate that is too high (train.learning_rate), or too large a step ahead of the model (train.residual_share = 0 for none)"
    )]
    Data,
    /// The program of `engine = "command"` failed. It has no state to run the step again from.
    #[error("the program under [train.command] failed; the next window starts it afresh")]
    Command,
    /// A process of `ranks` failed, and with it a part of the optimiser.
    #[error("a rank under [train] failed; the next window starts the ranks afresh")]
    Ranks,
}

/// Observes the steps.
pub trait TrainObserver {
    /// The sequences to train on, of those that a step read.
    fn read(&self, of_step: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        of_step
    }
    /// Called after each step, to write a snapshot.
    fn stepped(&mut self, trainer: &Trainer, trained: &Trained);
    /// Called when step `step`, counted from 1, failed with `error` and succeeded when repeated.
    fn repeated(&mut self, step: u32, error: &ModelError);
    /// Whether the process is shutting down, so that data is not waited for.
    fn is_leaving(&self) -> bool {
        false
    }
}

/// Observes nothing.
impl TrainObserver for () {
    fn stepped(&mut self, _: &Trainer, _: &Trained) {}
    fn repeated(&mut self, _: u32, _: &ModelError) {}
}

/// Trains on `sequences` in order, `batch` at a time, from where `trained` ends until they are done or `stop` is set.
/// Finished sequences count, so slow hardware is paid for its part (PROT-6).
///
/// # Errors
/// If the data cannot be read, or a step cannot be taken. The trainer is then where the last good step left it.
pub fn train(
    trainer: &mut Trainer,
    dataset: &Dataset,
    sequences: &[u64],
    batch: usize,
    mut trained: Trained,
    stop: &AtomicBool,
    beside: &mut dyn TrainObserver,
) -> Result<Trained, TrainingError> {
    let (started, before) = (Instant::now(), trained.seconds);
    let done = usize::try_from(trained.sequences).unwrap_or(usize::MAX).min(sequences.len());

    let waited_before = trained.data_seconds;
    let sequences = &sequences[done..];
    let mut batches =
        Prefetch::new(dataset, sequences, batch, BATCHES_AHEAD).map_err(TrainingError::NoReader)?;

    for indices in sequences.chunks(batch.max(1)) {
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
        let taken = self::step(trainer, &beside.read(tokens), |error| beside.repeated(step, error));
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
        tracing::debug!(step, loss = stepped.loss, "step");
        beside.stepped(trainer, &trained);
    }
    trained.seconds = before + started.elapsed().as_secs_f64();
    Ok(trained)
}

/// Takes a step. A failed one is repeated from the same state; if that succeeds, `repeated` gets the first error.
///
/// # Errors
/// The first error, with the diagnosis of the repetition. The trainer is unchanged.
#[tracing::instrument(name = "step", target = "profile", level = "trace", skip_all)]
pub fn step<S: AsRef<[u32]>>(
    trainer: &mut Trainer,
    sequences: &[S],
    repeated: impl FnOnce(&ModelError),
) -> Result<Step, (Cause, ModelError)> {
    let first = match trainer.step(sequences) {
        Ok(step) => return Ok(step),
        Err(first @ ModelError::Command { .. }) => return Err((Cause::Command, first)),
        Err(first @ ModelError::Ranks { .. }) => return Err((Cause::Ranks, first)),
        Err(first) => first,
    };
    let again = trainer.step(sequences);
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
            Ok(true) | Err(_) => Err(Cause::Device),
        },
        (None, None) if [first, &second].into_iter().any(of_device) => Err(Cause::Device),
        (None, None) => Err(Cause::Data),
        (Some(_), None) | (None, Some(_)) => Err(Cause::Device),
    }
}

/// Whether the device failed, or lacks memory.
fn of_device(error: &ModelError) -> bool {
    matches!(error, ModelError::Device(_) | ModelError::Memory(_))
}

/// The loss and norm that a step was refused for; `None` for other errors.
fn measured(error: &ModelError) -> Option<[f64; 2]> {
    match error {
        ModelError::NotFinite { loss, gradient_norm } | ModelError::Exploded { loss, gradient_norm, .. } => {
            Some([*loss, *gradient_norm])
        }
        _ => None,
    }
}

/// Whether two computations from the same state agree. A sound GPU sums in varying order, which changes the last
/// digits; an unsound one errs by more.
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
