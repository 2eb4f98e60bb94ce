//! A run of the study: trains the workers window by window and measures the held-out loss.

use super::exchange::{Exchange, ExchangeError, Scheme, Traffic};
use super::random::Random;
use dataset::{Dataset, ReadError};
use model::{ConfigError, ModelConfig, Optimiser, RateSchedule, Recipe, init_flat};
use nn::{Device, Evaluator, ModelError, Trainer};
use serde::{Deserialize, Serialize};
use std::time::Instant;

const DEVICE: Device = Device::CPU;
/// Number of equal parts of a run; the held-out loss is measured at the end of each.
const STAGES: usize = 16;
/// Number of last windows after which the loss is also measured. Their mean is the final loss: one window's loss is
/// noisy.
const LAST_WINDOWS: usize = 4;
/// Share of all inner steps in which the learning rate rises.
const WARM_UP: f64 = 0.04;
/// Share of all inner steps in which the rate of [`RateSchedule::Wsd`] falls.
const WSD_DECAY: f64 = 0.2;

/// All inputs of a run. Equal runs have equal results, on one machine bit for bit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub scheme: Scheme,
    /// `R`: number of workers.
    pub workers: usize,
    /// `H`: inner steps per window.
    pub steps: usize,
    pub windows: usize,
    /// Sequences per step, over all workers.
    pub batch: usize,
    pub optimiser: Optimiser,
    pub schedule: RateSchedule,
    pub learning_rate: f64,
    /// Width of the model, which has one layer and two heads.
    pub width: usize,
    pub seq_len: usize,
    /// Seed of the initial weights and of the order of the data.
    pub seed: u64,
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub run: Run,
    pub parameters: usize,
    /// Number of windows, and the held-out loss after them in nats per token.
    pub losses: Vec<(usize, f64)>,
    /// Mean loss of the last windows; `None` if training diverged.
    pub final_loss: Option<f64>,
    pub traffic: Traffic,
    /// Wall-clock time of the run.
    pub seconds: f64,
}

#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error("a batch of {batch} sequences cannot be divided evenly among {workers} workers")]
    Uneven { workers: usize, batch: usize },
    #[error("an update that arrives after {late} inner steps is too late for windows of {steps}")]
    TooLate { late: usize, steps: usize },
    #[error("the text has {got} sequences, but the run needs {needed}")]
    TooLittleData { got: u64, needed: u64 },
    #[error("could not train")]
    Model(#[from] ModelError),
    #[error("the model's shape cannot be used")]
    Config(#[from] ConfigError),
    #[error("could not read the data")]
    Data(#[from] ReadError),
    #[error("could not exchange the workers' updates")]
    Exchange(#[from] ExchangeError),
}

impl Run {
    pub fn config(&self, vocab: u32) -> ModelConfig {
        ModelConfig {
            vocab: vocab as usize,
            d_model: self.width,
            layers: 1,
            heads: 2,
            kv_heads: 2,
            d_ff: self.width * 11 / 4,
            seq_len: self.seq_len,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-5,
        }
    }

    /// Returns the number of inner steps of one worker.
    pub fn inner_steps(&self) -> u64 {
        (self.windows * self.steps) as u64
    }

    /// Returns the training tokens of all workers in one window.
    pub fn window_tokens(&self) -> u64 {
        (self.steps * self.batch * self.seq_len) as u64
    }

    fn recipe(&self) -> Recipe {
        let steps = self.inner_steps();
        let share = |share: f64| (steps as f64 * share).round() as u64;
        let warmup_steps = share(WARM_UP);
        let (stable_steps, decay_steps) = match self.schedule {
            RateSchedule::Wsd => (steps - warmup_steps - share(WSD_DECAY), share(WSD_DECAY)),
            RateSchedule::Cosine | RateSchedule::Constant => (0, steps - warmup_steps),
        };
        let batch = self.batch / self.workers;
        Recipe {
            batch,
            micro_batch: batch,
            learning_rate: self.learning_rate,
            warmup_steps,
            stable_steps,
            decay_steps,
            final_fraction: 0.1,
            optimiser: self.optimiser,
            schedule: self.schedule,
            ..Recipe::default()
        }
    }

    /// Trains, and measures the loss on `held_out`. A diverged run is a result, not an error.
    ///
    /// # Errors
    /// If the batch cannot be divided among the workers, updates arrive after more than a window, the dataset is too
    /// small for one pass or unreadable, or the model's shape is invalid.
    pub fn train(&self, dataset: &Dataset, held_out: &[Vec<u32>]) -> Result<Outcome, RunError> {
        let started = Instant::now();
        let &Run { workers, steps, windows, batch, seed, .. } = self;
        if workers == 0 || !batch.is_multiple_of(workers) {
            return Err(RunError::Uneven { workers, batch });
        }
        let late = self.scheme.late_steps();
        if late > steps {
            return Err(RunError::TooLate { late, steps });
        }
        let (needed, got) = ((windows * steps * batch) as u64, dataset.training_sequences());
        if got < needed {
            return Err(RunError::TooLittleData { got, needed });
        }
        let order = Random::new(seed).order(got);

        let config = self.config(dataset.vocab());
        let recipe = self.recipe();
        let schema = config.schema()?;
        let mut theta = init_flat(&config, seed)?;
        let mut trainers = (0..workers)
            .map(|_| Trainer::new(&config, &recipe, DEVICE, &theta))
            .collect::<Result<Vec<_>, _>>()?;
        let mut evaluator = Evaluator::new(&config, DEVICE, &theta)?;
        let mut exchange = Exchange::new(&schema, &self.scheme, workers);
        let mut outcome = Outcome {
            run: self.clone(),
            parameters: theta.len(),
            losses: Vec::new(),
            final_loss: None,
            traffic: Traffic::default(),
            seconds: 0.0,
        };

        let mut after = vec![theta.clone(); workers];
        for window in 0..windows {
            for (worker, trainer) in trainers.iter_mut().enumerate() {
                let start = exchange.start(worker, &after[worker], &theta);
                // A worker that trains alone keeps its own weights.
                if window > 0 && self.scheme != Scheme::Alone {
                    trainer.load(&start)?;
                }
                // Before the first window no update is in transit.
                let arrival = (window > 0 && late > 0).then_some(late);
                for step in 0..steps {
                    if arrival == Some(step) {
                        let mut weights = trainer.weights_flat()?;
                        exchange.rebase(worker, &mut weights, &theta);
                        trainer.load(&weights)?;
                    }
                    // A step has the same sequences for any number of workers.
                    let first = (window * steps + step) * batch + worker * recipe.batch;
                    let sequences = dataset.sequences(&order[first..][..recipe.batch])?;
                    match trainer.step(&sequences) {
                        Ok(_) => {}
                        Err(ModelError::NotFinite { .. }) => return Ok(outcome.diverged(started)),
                        Err(error) => return Err(error.into()),
                    }
                }
                after[worker] = trainer.weights_flat()?;
                if arrival == Some(steps) {
                    exchange.rebase(worker, &mut after[worker], &theta);
                }
            }
            exchange.window(&after, &mut theta)?;

            if self.is_measured(window + 1) {
                evaluator.load(&theta)?;
                let losses = evaluator.losses(held_out)?;
                let loss = losses.iter().sum::<f64>() / losses.len() as f64;
                if !loss.is_finite() {
                    return Ok(outcome.diverged(started));
                }
                outcome.losses.push((window + 1, loss));
            }
        }
        let last: Vec<f64> = outcome.losses.iter().rev().take(LAST_WINDOWS).map(|(_, loss)| *loss).collect();
        outcome.final_loss = Some(last.iter().sum::<f64>() / last.len() as f64);
        outcome.traffic = exchange.traffic;
        outcome.seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    fn is_measured(&self, after: usize) -> bool {
        let stage = |part: usize| part * self.windows / STAGES;
        after + LAST_WINDOWS > self.windows || (1..STAGES).any(|part| after == stage(part))
    }
}

impl Outcome {
    fn diverged(mut self, started: Instant) -> Outcome {
        self.seconds = started.elapsed().as_secs_f64();
        self
    }

    /// Returns the bits of one contribution, per parameter of the model.
    pub fn sent_per_parameter(&self) -> f64 {
        self.per_parameter(self.traffic.sent) / self.run.workers as f64
    }

    /// Returns the bits that one worker fetches in a window, per parameter of the model.
    pub fn fetched_per_parameter(&self) -> f64 {
        self.per_parameter(self.traffic.updates)
    }

    /// Returns the mean share of coordinates that at least one worker sent.
    pub fn union(&self) -> f64 {
        self.traffic.union / self.traffic.windows.max(1) as f64
    }

    fn per_parameter(&self, bytes: u64) -> f64 {
        8.0 * bytes as f64 / (self.traffic.windows.max(1) as f64 * self.parameters as f64)
    }
}
