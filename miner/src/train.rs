//! The inner loop: what a miner does with its sequences between the opening of a window and the commit deadline.

use dataset::{Dataset, ReadError};
use model::{ModelError, Trainer};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// What came out of one window's training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trained {
    /// `t`: sequences finished, a prefix of those assigned (PROT-6).
    pub sequences: u32,
    pub steps: u32,
    /// Mean loss of the first and the last step, nats per token.
    pub loss_first: f64,
    pub loss_last: f64,
    pub seconds: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum TrainingError {
    #[error("could not read the assigned data")]
    Data(#[from] ReadError),
    #[error("a training step failed")]
    Step(#[from] ModelError),
    #[error("the loss is no longer a number after {steps} steps; lower the learning rate")]
    Diverged { steps: u32 },
}

/// Trains on `sequences` in the order given, `batch` at a time, until they are done or `stop` is set. Whatever was done by then counts:
/// slow hardware is paid for what it did (PROT-6).
pub fn train(
    trainer: &mut Trainer,
    dataset: &Dataset,
    sequences: &[u64],
    batch: usize,
    stop: &AtomicBool,
) -> Result<Trained, TrainingError> {
    let started = Instant::now();
    let mut trained = Trained { sequences: 0, steps: 0, loss_first: 0.0, loss_last: 0.0, seconds: 0.0 };

    for indices in sequences.chunks(batch.max(1)) {
        if stop.load(Ordering::Relaxed) {
            break;
        }

        // Read.
        let tokens = indices.iter().map(|index| dataset.sequence(*index)).collect::<Result<Vec<_>, _>>()?;

        // Step.
        let loss = trainer.step(&tokens)?.loss;

        // Log.
        trained.steps += 1;
        trained.sequences += u32::try_from(indices.len()).expect("a batch is far below 2^32 sequences");
        if !loss.is_finite() {
            return Err(TrainingError::Diverged { steps: trained.steps });
        }
        if trained.steps == 1 {
            trained.loss_first = loss;
        }
        trained.loss_last = loss;
        tracing::debug!(step = trained.steps, loss, "step");
    }

    trained.seconds = started.elapsed().as_secs_f64();
    Ok(trained)
}
