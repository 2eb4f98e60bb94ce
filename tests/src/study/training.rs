//! Distributed training in one process: all miners train from the same weights and send encoded contributions; the
//! merge gives the next weights (PROT-10, PROT-17, PROT-18).

use super::{
    codec::{Bits, Codec, Coder, Encoded, Fidelity},
    random::Random,
};
use dataset::{Dataset, ReadError};
use model::{ConfigError, ModelConfig, Recipe, init_flat};
use nn::{Device, Evaluator, ModelError, Trainer};
use protocol::{
    Uid,
    contribution::{self, Schema, Sparse},
    merge::{self, Input},
    norms::RunningNorms,
    params::MergeRule,
};
use serde::Serialize;
use std::time::Instant;

const DEVICE: Device = Device::CPU;
/// The held-out loss is measured after these eighths of the windows.
const STAGES: [usize; 4] = [1, 2, 4, 6];
/// The loss is also measured after each of the last windows. Their mean is the final loss: one window's loss is noisy.
const LAST_WINDOWS: usize = 4;

/// The inputs that all variants of one comparison share.
pub struct Task {
    pub config: ModelConfig,
    pub recipe: Recipe,
    pub windows: usize,
    pub miners: usize,
    /// Inner steps per window.
    pub steps: usize,
    /// Decay of a miner's residual per window (PROT-10).
    pub decay: f32,
    pub theta: Vec<f32>,
    /// Training sequences, assigned in order: by window, then miner.
    pub training: Vec<Vec<u32>>,
    pub held_out: Vec<Vec<u32>>,
}

/// How miners exchange their updates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Scheme {
    /// A single miner, with its share of the tokens.
    Alone,
    /// The uncompressed mean of all pseudo-gradients, times an outer rate.
    Dense { rate: f32 },
    /// Contributions in one codec; the merge in another, with its own residual, or uncompressed if `None`.
    Sparse { contribution: Codec, merge: Option<Codec> },
}

/// The result of a variant.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Number of windows, and the held-out loss after them in nats per token.
    pub losses: Vec<(usize, f64)>,
    /// Mean loss of the last windows; `None` if training diverged.
    pub final_loss: Option<f64>,
    /// Size of all contributions of the run.
    pub sent: Bits,
    pub fidelity: Fidelity,
    /// Size of all updates of the run.
    pub merged: Bits,
    /// Mean share of coordinates that at least one contribution of a window sent.
    pub union: f64,
    pub contributions: usize,
    pub parameters: usize,
    pub seconds: f64,
    /// Residuals before encoding at a few stages: the number of windows, and one residual per miner.
    #[serde(skip)]
    pub residuals: Vec<(usize, Vec<Vec<f32>>)>,
}

#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    #[error("could not train the model")]
    Model(#[from] ModelError),
    #[error("the model's shape cannot be used")]
    Config(#[from] ConfigError),
    #[error("could not read the data")]
    Data(#[from] ReadError),
    #[error("the text has {got} sequences, but the run needs at least {needed}")]
    TooLittleData { got: u64, needed: u64 },
    #[error("could not encode a residual")]
    Encode(#[from] contribution::EncodeError),
    #[error("the protocol could not decode its own encoding")]
    Decode(#[from] contribution::DecodeError),
    #[error("could not merge the contributions")]
    Merge(#[from] merge::MergeError),
    #[error("the study's {what} differs from the protocol's; its results are invalid")]
    NotTheProtocol { what: &'static str },
}

impl Task {
    /// A task on `dataset`; `seed` determines the initial weights and the order of the data.
    ///
    /// # Errors
    /// If the dataset is too small for one pass or unreadable, or the model's shape is invalid.
    #[allow(clippy::too_many_arguments, reason = "each is one number of the experiment")]
    pub fn new(
        dataset: &Dataset,
        config: &ModelConfig,
        recipe: &Recipe,
        windows: usize,
        miners: usize,
        steps: usize,
        held_out: u64,
        seed: u64,
    ) -> Result<Task, StudyError> {
        let needed = (windows * miners * steps * recipe.batch) as u64;
        let got = dataset.training_sequences();
        if got < needed {
            return Err(StudyError::TooLittleData { got, needed });
        }
        let order = Random::new(seed).order(got);
        let held_out: Vec<u64> = (0..dataset.held_out_sequences().min(held_out)).collect();
        let mut recipe = recipe.clone();
        recipe.decay_steps = (windows * steps) as u64;
        Ok(Task {
            theta: init_flat(config, seed)?,
            training: dataset.sequences(&order[..needed as usize])?,
            held_out: dataset.held_out_sequences_at(&held_out)?,
            config: config.clone(),
            recipe,
            windows,
            miners,
            steps,
            decay: 0.95,
        })
    }

    fn assigned(&self, window: usize, miner: usize) -> &[Vec<u32>] {
        let each = self.steps * self.recipe.batch;
        &self.training[(window * self.miners + miner) * each..][..each]
    }

    /// Trains with `scheme` from the initial weights `theta`. A diverged run is a result, not an error.
    ///
    /// # Errors
    /// If the model cannot be trained, or the study's codec or merge differs from the protocol's.
    pub fn run(&self, scheme: Scheme, theta: &[f32]) -> Result<Outcome, StudyError> {
        let started = Instant::now();
        let schema = self.config.schema()?;
        let mut theta = theta.to_vec();
        let miners = if scheme == Scheme::Alone { 1 } else { self.miners };
        let mut trainers = (0..miners)
            .map(|_| Trainer::new(&self.config, &self.recipe, DEVICE, &theta))
            .collect::<Result<Vec<_>, _>>()?;
        let mut evaluator = Evaluator::new(&self.config, DEVICE, &theta)?;
        let mut exchange = Exchange::new(&schema, scheme, miners);
        let mut outcome = Outcome::new(theta.len());

        for window in 0..self.windows {
            let mut differences = Vec::new();
            for (miner, trainer) in trainers.iter_mut().enumerate() {
                trainer.load(&theta)?;
                for batch in self.assigned(window, miner).chunks(self.recipe.batch) {
                    match trainer.step(batch) {
                        Ok(_) => {}
                        Err(ModelError::NotFinite { .. }) => {
                            outcome.seconds = started.elapsed().as_secs_f64();
                            return Ok(outcome);
                        }
                        Err(error) => return Err(error.into()),
                    }
                }
                let after = trainer.weights_flat()?;
                differences.push(theta.iter().zip(after).map(|(before, after)| before - after).collect());
            }
            let keep = self.keeps_residuals(window).then_some(window + 1);
            exchange.window(&schema, self.decay, differences, &mut theta, keep, &mut outcome)?;

            if self.is_measured(window) {
                evaluator.load(&theta)?;
                let losses = evaluator.losses(&self.held_out)?;
                outcome.losses.push((window + 1, losses.iter().sum::<f64>() / losses.len() as f64));
            }
        }
        let last = outcome.losses.iter().rev().take(LAST_WINDOWS);
        let (sum, count) = last.fold((0.0, 0), |(sum, count), (_, loss)| (sum + loss, count + 1));
        outcome.final_loss = Some(sum / f64::from(count)).filter(|loss| loss.is_finite());
        outcome.union /= self.windows as f64;
        outcome.seconds = started.elapsed().as_secs_f64();
        Ok(outcome)
    }

    fn is_measured(&self, window: usize) -> bool {
        let after = window + 1;
        self.windows < after + LAST_WINDOWS || STAGES.iter().any(|stage| after == stage * self.windows / 8)
    }

    /// Whether the outcome records the residuals of this window: one early, one in the middle, the last.
    fn keeps_residuals(&self, window: usize) -> bool {
        [self.windows / 16, self.windows / 4, self.windows].map(|after| after.max(1)).contains(&(window + 1))
    }
}

/// The state that miners and merge keep from window to window.
struct Exchange {
    scheme: Scheme,
    contribution: Option<Coder>,
    merge: Option<Coder>,
    residuals: Vec<Vec<f32>>,
    buffer: Vec<f32>,
}

impl Exchange {
    fn new(schema: &Schema, scheme: Scheme, miners: usize) -> Exchange {
        let (contribution, merge) = match scheme {
            Scheme::Sparse { contribution, merge } => (Some(contribution), merge),
            Scheme::Alone | Scheme::Dense { .. } => (None, None),
        };
        Exchange {
            scheme,
            contribution: contribution.map(|codec| Coder::new(schema, codec)),
            merge: merge.map(|codec| Coder::new(schema, codec)),
            residuals: vec![vec![0.0; schema.values()]; miners],
            buffer: vec![0.0; schema.values()],
        }
    }

    /// Applies the miners' pseudo-gradients to `theta`.
    fn window(
        &mut self,
        schema: &Schema,
        decay: f32,
        differences: Vec<Vec<f32>>,
        theta: &mut [f32],
        keep_residuals: Option<usize>,
        outcome: &mut Outcome,
    ) -> Result<(), StudyError> {
        let Some(contribution) = &self.contribution else {
            let rate = if let Scheme::Dense { rate } = self.scheme { rate } else { 1.0 };
            let count = differences.len() as f32;
            for (at, value) in theta.iter_mut().enumerate() {
                *value -= rate * differences.iter().map(|difference| difference[at]).sum::<f32>() / count;
            }
            return Ok(());
        };

        // Compress.
        for (residual, difference) in self.residuals.iter_mut().zip(differences) {
            for (value, new) in residual.iter_mut().zip(difference) {
                *value = decay * *value + new;
            }
        }
        if let Some(after) = keep_residuals {
            outcome.residuals.push((after, self.residuals.clone()));
        }
        let mut sent = Vec::new();
        for residual in &mut self.residuals {
            let encoded = contribution.encode(residual);
            if let Scheme::Sparse { contribution: codec, .. } = self.scheme
                && codec == Codec::ours(codec.density)
            {
                check_codec(schema, codec, residual, &encoded)?;
            }
            subtract(schema, residual, &encoded.sparse);
            outcome.sent.add(&encoded.bits);
            outcome.fidelity.add(&encoded.fidelity);
            outcome.contributions += 1;
            sent.push(encoded.sparse);
        }

        // Merge.
        let mean = mean_over_hits(schema, &sent);
        outcome.union += mean.iter().flatten().count() as f64 / mean.len() as f64;
        let Some(merge) = &self.merge else {
            for (value, mean) in theta.iter_mut().zip(mean) {
                *value -= mean.unwrap_or(0.0);
            }
            return Ok(());
        };
        let before = self.buffer.clone();
        for (value, mean) in self.buffer.iter_mut().zip(mean) {
            if let Some(mean) = mean {
                *value += mean;
            }
        }
        let update = merge.encode(&self.buffer);
        subtract(schema, &mut self.buffer, &update.sparse);
        if let Scheme::Sparse { merge: Some(codec), .. } = self.scheme
            && codec == Codec::ours(codec.density)
        {
            let mut buffer = before;
            let inputs: Vec<Input<'_>> =
                (0..).zip(&sent).map(|(uid, update)| Input { uid: Uid(uid), weight: 0, update }).collect();
            let (rule, norms) = (MergeRule::MeanOverHits, RunningNorms::default());
            let merged = merge::merge(schema, rule, codec.density, &inputs, &norms, &mut buffer)?;
            let same_buffer = buffer.iter().zip(&self.buffer).all(|(a, b)| a.to_bits() == b.to_bits());
            if !same_buffer || contribution::decode(schema, codec.density, &merged.body)? != update.sparse {
                return Err(StudyError::NotTheProtocol { what: "merge" });
            }
        }
        outcome.merged.add(&update.bits);
        merge::apply(schema, theta, &update.sparse, 1.0);
        Ok(())
    }
}

/// Compares the study's implementation of our codec with the protocol's.
fn check_codec(schema: &Schema, codec: Codec, values: &[f32], ours: &Encoded) -> Result<(), StudyError> {
    let body = contribution::encode(schema, codec.density, values)?;
    let theirs = contribution::decode(schema, codec.density, &body)?;
    if theirs != ours.sparse || ours.bits.all() != 8 * body.len() as u64 {
        return Err(StudyError::NotTheProtocol { what: "codec" });
    }
    Ok(())
}

fn subtract(schema: &Schema, values: &mut [f32], sent: &Sparse) {
    for (range, tensor) in schema.ranges().zip(&sent.tensors) {
        let values = &mut values[range];
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            values[*position as usize] -= value;
        }
    }
}

/// The mean of each coordinate over the miners that sent it (PROT-17); `None` if no miner did.
fn mean_over_hits(schema: &Schema, sent: &[Sparse]) -> Vec<Option<f32>> {
    let norms: Vec<Vec<f64>> = sent.iter().map(merge::square_norms).collect();
    let references = merge::reference_norms(&norms, &vec![0; norms.len()], &RunningNorms::default());
    let scales = merge::clip_scales(&norms, &references);
    let (mut sums, mut hits) = (vec![0.0f32; schema.values()], vec![0u32; schema.values()]);
    for (which, update) in sent.iter().enumerate() {
        let counted =
            schema.ranges().zip(&update.tensors).zip(&scales).filter(|(_, scales)| scales[which] != 0.0);
        for ((range, tensor), scales) in counted {
            for (position, value) in tensor.positions.iter().zip(&tensor.values) {
                let at = range.start + *position as usize;
                sums[at] += scales[which] * value;
                hits[at] += 1;
            }
        }
    }
    sums.iter().zip(hits).map(|(sum, hits)| (hits > 0).then(|| sum / hits as f32)).collect()
}

impl Outcome {
    fn new(parameters: usize) -> Outcome {
        Outcome {
            losses: Vec::new(),
            final_loss: None,
            sent: Bits::default(),
            fidelity: Fidelity::default(),
            merged: Bits::default(),
            union: 0.0,
            contributions: 0,
            parameters,
            seconds: 0.0,
            residuals: Vec::new(),
        }
    }

    /// Bits of one contribution, per parameter of the model.
    pub fn sent_per_parameter(&self) -> Option<f64> {
        let values = (self.parameters * self.contributions) as f64;
        (self.contributions > 0).then(|| self.sent.payload() as f64 / values)
    }

    /// Bits of one update, per parameter of the model.
    pub fn merged_per_parameter(&self, miners: usize) -> Option<f64> {
        let values = (self.parameters * self.contributions) as f64 / miners as f64;
        (self.merged.values > 0).then(|| self.merged.payload() as f64 / values)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::study::{codec::Groups, codec::Values, level::LevelFormat};
    use protocol::params::Density;

    /// A task that runs in one second. In its text, each token depends on the token before the last.
    pub fn task() -> Task {
        let config = ModelConfig {
            vocab: 40,
            d_model: 16,
            layers: 1,
            heads: 2,
            kv_heads: 2,
            d_ff: 32,
            seq_len: 12,
            ..ModelConfig::preset("117k").unwrap()
        };
        let mut random = Random::new(9);
        let mut sequences = |count: usize| -> Vec<Vec<u32>> {
            (0..count)
                .map(|_| {
                    let mut tokens = vec![random.below(40) as u32, random.below(40) as u32];
                    while tokens.len() < 13 {
                        tokens.push((tokens[tokens.len() - 2] + 3) % 40);
                    }
                    tokens
                })
                .collect()
        };
        let (windows, miners, steps) = (16, 2, 8);
        let recipe =
            Recipe { batch: 8, micro_batch: 8, learning_rate: 1e-2, warmup_steps: 5, ..Recipe::default() };
        Task {
            training: sequences(windows * miners * steps * recipe.batch),
            held_out: sequences(32),
            theta: init_flat(&config, 1).unwrap(),
            config,
            recipe,
            windows,
            miners,
            steps,
            decay: 0.95,
        }
    }

    #[test]
    fn every_scheme_learns_and_ours_equals_the_protocols() {
        let task = task();
        let ours = Codec::ours(Density(512));
        let tiles = Codec { groups: Groups::Tiles(8), values: Values::Four(LevelFormat::E5M2), ..ours };
        let twice = Codec::ours(Density(1024));
        let uniform = 40f64.ln();
        for scheme in [
            Scheme::Alone,
            Scheme::Dense { rate: 1.0 },
            Scheme::Sparse { contribution: ours, merge: Some(twice) },
            Scheme::Sparse { contribution: tiles, merge: None },
        ] {
            let outcome = task.run(scheme, &task.theta).unwrap();
            let loss = outcome.final_loss.unwrap();
            assert!(loss < 0.8 * uniform, "{scheme:?}: {loss} of {uniform}");
            assert_eq!(outcome.losses.len(), 4 + LAST_WINDOWS);
            if let Scheme::Sparse { merge, .. } = scheme {
                assert!(outcome.sent_per_parameter().unwrap() > 0.5);
                assert_eq!(outcome.merged_per_parameter(2).is_some(), merge.is_some());
                assert!(outcome.union > 0.125 && outcome.union < 0.3, "{}", outcome.union);
                assert_eq!(outcome.residuals.len(), 3);
            }
        }
    }

    #[test]
    fn an_exact_codec_of_full_density_gives_the_dense_mean() {
        let task = Task { windows: 2, ..task() };
        let everything =
            Codec { values: Values::Exact, density: Density(4096), ..Codec::ours(Density(4096)) };
        let all = task.run(Scheme::Sparse { contribution: everything, merge: None }, &task.theta).unwrap();
        let dense = task.run(Scheme::Dense { rate: 1.0 }, &task.theta).unwrap();
        let (all, dense) = (all.final_loss.unwrap(), dense.final_loss.unwrap());
        // The merge clips contributions to the median norm; the dense mean does not clip.
        assert!((all - dense).abs() < 0.02, "{all} {dense}");
    }

    #[test]
    fn a_repeated_run_gives_the_same_losses() {
        let task = Task { windows: 3, ..task() };
        let ours = Codec::ours(Density(512));
        let scheme = Scheme::Sparse { contribution: ours, merge: Some(ours) };
        let losses = || task.run(scheme, &task.theta).unwrap().losses;
        assert_eq!(losses(), losses());
    }
}
