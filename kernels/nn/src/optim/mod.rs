//! Optimisers: what turns a gradient into a step of the weights.

pub mod adamw;
pub mod muon;
pub mod norm;
pub mod state;

use crate::engine::take_mut;
use adamw::{Coefficients, Parameter};
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

/// What a step needs to know of a tensor, or of a part of one that AdamW steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor {
    pub shape: [usize; 2],
    pub optimiser: Optimiser,
    pub decay: f64,
}

impl Tensor {
    /// Tensor `index` of a model in schema order.
    pub fn of(recipe: &Recipe, index: usize, shape: [usize; 2]) -> Tensor {
        let optimiser = optimiser_of(recipe.optimiser, index, shape);
        Tensor { shape, optimiser, decay: weight_decay(recipe, shape) }
    }
}

/// Steps `weights` along `gradient` on the CPU. Takes the moments off the front of `moments`.
pub(crate) fn step(
    recipe: &Recipe,
    params: &StepParams,
    tensor: &Tensor,
    weights: &mut [f32],
    gradient: &[f32],
    moments: &mut &mut [f32],
    scratch: &mut muon::Scratch,
) {
    let Tensor { shape, optimiser, decay } = *tensor;
    let mean = take_mut(moments, weights.len());
    match optimiser {
        Optimiser::AdamW => {
            let coefficients = Coefficients::new(recipe, params, decay);
            let square = take_mut(moments, weights.len());
            adamw::step(&coefficients, Parameter { weights, mean, square }, gradient);
        }
        Optimiser::Muon => {
            muon::step(params, decay, muon::Matrix { shape, weights, mean }, gradient, scratch)
        }
    }
}
