//! The training recipe inside a window: batch, learning rate, optimiser.
//!
//! It is part of a run's specification, as a recommendation: no rule of the protocol can check how a miner trains.

use protocol::ensure;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Sequences per step.
    pub batch: usize,
    /// Sequences on the device at once; the gradients of a larger batch are accumulated.
    pub micro_batch: usize,
    /// The highest learning rate, at the end of the warm-up.
    pub learning_rate: f64,
    /// Steps of the warm-up, in which the learning rate rises from zero.
    pub warmup_steps: u64,
    /// Steps of the decay, by `schedule`. After them the rate is constant.
    pub decay_steps: u64,
    /// The final learning rate, as a share of the highest.
    pub final_fraction: f64,
    /// AdamW's decay of the mean gradient and of the mean squared gradient.
    pub betas: [f64; 2],
    pub epsilon: f64,
    /// Weight decay of matrices, times the learning rate. Norms do not decay.
    pub weight_decay: f64,
    /// Euclidean length to which longer gradients are scaled.
    pub clip_norm: f64,
    // Later fields. A specification without them keeps its meaning and its bytes: its digest is on the chain.
    /// The optimiser.
    #[serde(default, skip_serializing_if = "is_default")]
    pub optimiser: Optimiser,
    /// The learning rate after the warm-up.
    #[serde(default, skip_serializing_if = "is_default")]
    pub schedule: RateSchedule,
    /// Steps at the highest rate between warm-up and decay: [`RateSchedule::Wsd`] has them, the others have none.
    #[serde(default, skip_serializing_if = "is_default")]
    pub stable_steps: u64,
}

/// The optimiser. Both work with the same learning rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Optimiser {
    #[default]
    #[serde(rename = "adamw")]
    AdamW,
    /// Orthogonalised momentum for the matrices inside the layers, AdamW for the embedding and the norms' gains.
    #[serde(rename = "muon")]
    Muon,
}

/// The learning rate after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateSchedule {
    /// Falls along half a cosine for `decay_steps`.
    #[default]
    Cosine,
    /// Constant.
    Constant,
    /// Warm-up, stable, decay: constant for `stable_steps`, then falls linearly for `decay_steps`. The end can be
    /// decided late: raise `stable_steps` while the rate is still constant.
    Wsd,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Reason why a [`Recipe`] is invalid.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecipeError {
    #[error("{name} must be above zero")]
    Zero { name: &'static str },
    #[error("{name} is {value}, but must be a number {bounds}")]
    OutOfBounds { name: &'static str, value: f64, bounds: &'static str },
    #[error(
        "stable_steps is {value}, but only the schedule \"wsd\" has a stable part: name it, or leave stable_steps out"
    )]
    NoStablePart { value: u64 },
}

/// The recipe with which the `localnet` preset learnt fastest per CPU second, in short runs on Rust source.
impl Default for Recipe {
    fn default() -> Recipe {
        Recipe {
            batch: 16,
            micro_batch: 16,
            learning_rate: 4e-3,
            warmup_steps: 25,
            decay_steps: 10_000,
            final_fraction: 0.1,
            betas: [0.9, 0.95],
            epsilon: 1e-8,
            weight_decay: 0.1,
            clip_norm: 1.0,
            optimiser: Optimiser::AdamW,
            schedule: RateSchedule::Cosine,
            stable_steps: 0,
        }
    }
}

impl Recipe {
    /// Checks every bound of the recipe.
    ///
    /// # Errors
    /// [`RecipeError`] for the first bound that does not hold.
    pub fn validate(&self) -> Result<(), RecipeError> {
        for (name, value) in [("batch", self.batch), ("micro_batch", self.micro_batch)] {
            ensure!(value != 0, RecipeError::Zero { name });
        }
        let above_zero = |x: f64| x.is_finite() && x > 0.0;
        for (name, value, holds, bounds) in [
            ("learning_rate", self.learning_rate, above_zero(self.learning_rate), "above 0"),
            (
                "final_fraction",
                self.final_fraction,
                (0.0..=1.0).contains(&self.final_fraction),
                "from 0 to 1",
            ),
            ("betas[0]", self.betas[0], (0.0..1.0).contains(&self.betas[0]), "from 0 to below 1"),
            ("betas[1]", self.betas[1], (0.0..1.0).contains(&self.betas[1]), "from 0 to below 1"),
            ("epsilon", self.epsilon, above_zero(self.epsilon), "above 0"),
            ("weight_decay", self.weight_decay, (0.0..=1.0).contains(&self.weight_decay), "from 0 to 1"),
            ("clip_norm", self.clip_norm, above_zero(self.clip_norm), "above 0"),
        ] {
            ensure!(holds, RecipeError::OutOfBounds { name, value, bounds });
        }
        let value = self.stable_steps;
        ensure!(value == 0 || self.schedule == RateSchedule::Wsd, RecipeError::NoStablePart { value });
        Ok(())
    }

    /// Returns the learning rate of the step after `step` steps.
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let falling = (step - self.warmup_steps).checked_sub(self.stable_steps);
        let Some(falling) = falling.filter(|_| self.schedule != RateSchedule::Constant) else {
            return self.learning_rate;
        };
        let lowest = self.learning_rate * self.final_fraction;
        if falling >= self.decay_steps {
            return lowest;
        }
        let done = falling as f64 / self.decay_steps as f64;
        let half_cosine = (1.0 + (std::f64::consts::PI * done).cos()) / 2.0;
        let left = if self.schedule == RateSchedule::Wsd { 1.0 - done } else { half_cosine };
        lowest + (self.learning_rate - lowest) * left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_learning_rate_rises_falls_and_stays() {
        let recipe = Recipe {
            learning_rate: 1.0,
            warmup_steps: 4,
            decay_steps: 100,
            final_fraction: 0.1,
            ..Recipe::default()
        };
        let rates: Vec<f64> = (0..5).map(|step| recipe.learning_rate_at(step)).collect();
        assert_eq!(rates, [0.25, 0.5, 0.75, 1.0, 1.0]);
        assert!((recipe.learning_rate_at(54) - 0.55).abs() < 1e-12, "half way down is half way between");
        assert!((4..103).all(|step| recipe.learning_rate_at(step) > recipe.learning_rate_at(step + 1)));
        assert_eq!(recipe.learning_rate_at(104), 0.1);
        assert_eq!(recipe.learning_rate_at(u64::MAX), 0.1);
    }

    #[test]
    fn without_warm_up_or_decay_the_rate_is_constant() {
        let recipe = Recipe { warmup_steps: 0, decay_steps: 0, final_fraction: 1.0, ..Recipe::default() };
        assert_eq!(recipe.learning_rate_at(0), recipe.learning_rate);
        assert_eq!(recipe.learning_rate_at(9), recipe.learning_rate);
    }

    #[test]
    fn a_constant_rate_stays_and_a_stable_one_falls_linearly_after_its_stable_steps() {
        let recipe = Recipe {
            learning_rate: 1.0,
            warmup_steps: 2,
            decay_steps: 10,
            final_fraction: 0.0,
            schedule: RateSchedule::Constant,
            ..Recipe::default()
        };
        assert_eq!([0, 1, 2, 1000].map(|step| recipe.learning_rate_at(step)), [0.5, 1.0, 1.0, 1.0]);

        let recipe = Recipe { schedule: RateSchedule::Wsd, stable_steps: 100, ..recipe };
        let rates = [1, 2, 101, 102, 107, 112, u64::MAX].map(|step| recipe.learning_rate_at(step));
        assert_eq!(rates, [1.0, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn a_recipe_without_the_later_fields_reads_and_keeps_its_bytes() {
        let old = r#"{"batch":16,"micro_batch":16,"learning_rate":0.004,"warmup_steps":25,"decay_steps":10000,"final_fraction":0.1,"betas":[0.9,0.95],"epsilon":1e-8,"weight_decay":0.1,"clip_norm":1.0}"#;
        let recipe: Recipe = serde_json::from_str(old).unwrap();
        assert_eq!(recipe, Recipe::default());
        assert_eq!(serde_json::to_string(&recipe).unwrap(), old);

        let chosen = Recipe {
            optimiser: Optimiser::Muon,
            schedule: RateSchedule::Wsd,
            stable_steps: 7,
            ..Recipe::default()
        };
        let text = serde_json::to_string(&chosen).unwrap();
        assert!(text.ends_with(r#","optimiser":"muon","schedule":"wsd","stable_steps":7}"#), "{text}");
        assert_eq!(serde_json::from_str::<Recipe>(&text).unwrap(), chosen);
        assert!(serde_json::from_str::<Recipe>(&text.replace("muon", "sgd")).is_err());
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Recipe), says: &str) {
        let mut recipe = Recipe::default();
        change(&mut recipe);
        assert_eq!(recipe.validate().unwrap_err().to_string(), says);
    }

    #[test]
    fn an_invalid_recipe_is_refused_with_the_field() {
        assert_eq!(Recipe::default().validate(), Ok(()));
        check(|r| r.batch = 0, "batch must be above zero");
        check(|r| r.micro_batch = 0, "micro_batch must be above zero");
        check(|r| r.learning_rate = f64::INFINITY, "learning_rate is inf, but must be a number above 0");
        check(|r| r.final_fraction = 1.5, "final_fraction is 1.5, but must be a number from 0 to 1");
        check(|r| r.betas[0] = 1.0, "betas[0] is 1, but must be a number from 0 to below 1");
        check(|r| r.betas[1] = -0.1, "betas[1] is -0.1, but must be a number from 0 to below 1");
        check(|r| r.epsilon = 0.0, "epsilon is 0, but must be a number above 0");
        check(|r| r.weight_decay = f64::NAN, "weight_decay is NaN, but must be a number from 0 to 1");
        check(|r| r.clip_norm = 0.0, "clip_norm is 0, but must be a number above 0");
        check(
            |r| r.stable_steps = 5,
            r#"stable_steps is 5, but only the schedule "wsd" has a stable part: name it, or leave stable_steps out"#,
        );
    }
}
