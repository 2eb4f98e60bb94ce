//! Optimisers, which convert a gradient into a step of the weights.

pub mod adamw;
pub mod muon;
pub mod norm;
pub mod state;

use crate::slices::take_mut;
use adamw::{Coefficients, Parameter};
use model::{ModelConfig, Optimiser, Recipe};

/// Parameters of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepParams {
    /// Number of the step, from 1.
    pub step: u64,
    pub learning_rate: f64,
    /// Factor that clips the gradient, at most 1.
    pub gradient_scale: f64,
}

/// Returns the optimiser of tensor `index` in schema order. Muon applies to the matrices inside the layers. It does
/// not apply to the embedding, the first tensor, whose rows are tokens, or to a norm's gain, a single row.
pub fn optimiser_of(optimiser: Optimiser, index: usize, shape: [usize; 2]) -> Optimiser {
    if index > 0 && shape[0] > 1 { optimiser } else { Optimiser::AdamW }
}

/// Returns a tensor's weight decay: 0 for a norm's gain, a single row, which must not decay to zero.
pub fn weight_decay(recipe: &Recipe, shape: [usize; 2]) -> f64 {
    if shape[0] > 1 { recipe.weight_decay } else { 0.0 }
}

/// Returns the number of values of all moments: mean and square for a tensor of AdamW, only the mean for Muon.
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

/// Properties of a tensor, or of a part of an AdamW tensor, that a step needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tensor {
    pub shape: [usize; 2],
    pub optimiser: Optimiser,
    pub decay: f64,
}

impl Tensor {
    /// Returns the properties of a model's tensor `index` in schema order.
    pub fn of(recipe: &Recipe, index: usize, shape: [usize; 2]) -> Tensor {
        let optimiser = optimiser_of(recipe.optimiser, index, shape);
        Tensor { shape, optimiser, decay: weight_decay(recipe, shape) }
    }
}

/// Updates `weights` with `gradient` on the CPU. Takes the tensor's moments off the front of `moments`.
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
