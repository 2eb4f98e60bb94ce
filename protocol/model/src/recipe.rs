//! How a model is trained inside a window: the numbers that go with the loop in `train`.
//!
//! They are part of a run's specification, as good advice: no rule of the protocol can see how a miner trains, only what
//! comes of it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// Sequences in one step.
    pub batch: usize,
    /// Sequences on the device at once; a larger batch is added up from several.
    pub micro_batch: usize,
    /// Learning rate at the end of the warm-up, its highest.
    pub learning_rate: f64,
    /// Steps in which the learning rate rises from zero.
    pub warmup_steps: u64,
    /// Steps in which it then falls along a cosine. After them it stays.
    pub decay_steps: u64,
    /// What it falls to, as a share of the highest.
    pub final_fraction: f64,
    /// AdamW: how much of the mean gradient, and of the mean squared gradient, a step keeps.
    pub betas: [f64; 2],
    pub epsilon: f64,
    /// Share of each matrix, times the learning rate, that a step takes away. Norms do not decay.
    pub weight_decay: f64,
    /// A gradient longer than this is scaled down to it.
    pub clip_norm: f64,
}

/// Why a [`Recipe`] cannot be followed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecipeError {
    #[error("{name} must be above zero")]
    Zero { name: &'static str },
    #[error("{name} is {value}, but must be a number {bounds}")]
    OutOfBounds { name: &'static str, value: f64, bounds: &'static str },
}

/// What made the `localnet` preset learn fastest for a second of CPU time, in short runs on Rust source.
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
        }
    }
}

impl Recipe {
    pub fn validate(&self) -> Result<(), RecipeError> {
        for (name, value) in [("batch", self.batch), ("micro_batch", self.micro_batch)] {
            if value == 0 {
                return Err(RecipeError::Zero { name });
            }
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
            if !holds {
                return Err(RecipeError::OutOfBounds { name, value, bounds });
            }
        }
        Ok(())
    }

    /// Learning rate of the step after `step` steps: a straight rise, then half a cosine, then level.
    pub fn learning_rate_at(&self, step: u64) -> f64 {
        if step < self.warmup_steps {
            return self.learning_rate * (step + 1) as f64 / self.warmup_steps as f64;
        }
        let falling = step - self.warmup_steps;
        let lowest = self.learning_rate * self.final_fraction;
        if falling >= self.decay_steps {
            return lowest;
        }
        let done = falling as f64 / self.decay_steps as f64;
        let cosine = (1.0 + (std::f64::consts::PI * done).cos()) / 2.0;
        lowest + (self.learning_rate - lowest) * cosine
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
    fn without_warm_up_or_decay_the_rate_is_level() {
        let recipe = Recipe { warmup_steps: 0, decay_steps: 0, final_fraction: 1.0, ..Recipe::default() };
        assert_eq!(recipe.learning_rate_at(0), recipe.learning_rate);
        assert_eq!(recipe.learning_rate_at(9), recipe.learning_rate);
    }

    #[track_caller]
    fn check(change: impl FnOnce(&mut Recipe), says: &str) {
        let mut recipe = Recipe::default();
        change(&mut recipe);
        assert_eq!(recipe.validate().unwrap_err().to_string(), says);
    }

    #[test]
    fn a_recipe_that_cannot_be_followed_is_refused_by_name() {
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
    }
}
