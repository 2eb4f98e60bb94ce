//! Optimisers: what turns a gradient into a step of the weights.

pub mod adamw;
pub mod muon;
pub mod norm;
pub mod state;

use model::{ModelConfig, Optimiser, Recipe};

/// What changes from step to step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepParams {
    /// Counted from 1.
    pub step: u64,
    pub learning_rate: f64,
    /// The factor that clips the gradient: 1, or less where it is too long.
    pub gradient_scale: f64,
}

/// The optimiser of one tensor, `index` in schema order. Muon is for the matrices inside the layers: not for the
/// embedding, the first tensor, whose rows are tokens and no directions, and not for a norm's gain, one row.
pub fn optimiser_of(optimiser: Optimiser, index: usize, shape: [usize; 2]) -> Optimiser {
    if index > 0 && shape[0] > 1 { optimiser } else { Optimiser::AdamW }
}

/// A tensor's weight decay: none for a norm's gain, one row, which must not be pulled to zero.
pub fn weight_decay(recipe: &Recipe, shape: [usize; 2]) -> f64 {
    if shape[0] > 1 { recipe.weight_decay } else { 0.0 }
}

/// Values of all moments: mean and square of a tensor that AdamW steps, the mean alone where Muon does.
pub fn moment_count(config: &ModelConfig, optimiser: Optimiser) -> usize {
    let shapes = config.shapes().into_iter().enumerate();
    let values = |(index, (_, shape)): (usize, (String, [usize; 2]))| {
        let moments = match optimiser_of(optimiser, index, shape) {
            Optimiser::AdamW => 2,
            Optimiser::Muon => 1,
        };
        moments * shape[0] * shape[1]
    };
    shapes.map(values).sum()
}
