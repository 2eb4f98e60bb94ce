//! AdamW and Muon in tensor operations. The formulas are in `mettle_nn::optim`.

use burn::tensor::Tensor;
use model::Recipe;
use nn::{
    StepParams,
    optim::muon::{ITERATIONS, MOMENTUM, NORM_MIN, QUINTIC, step_scale},
};

/// Moving averages of one tensor.
pub struct Moments {
    pub mean: Tensor<2>,
    /// Moving average of the squared gradient. AdamW has one, Muon does not.
    pub square: Option<Tensor<2>>,
}

impl Moments {
    /// Updates the weights and these moments.
    pub fn step(
        &mut self,
        recipe: &Recipe,
        params: &StepParams,
        decay: f64,
        weights: &mut Tensor<2>,
        gradient: Tensor<2>,
    ) {
        let &StepParams { step, learning_rate, gradient_scale } = params;
        let gradient = if gradient_scale < 1.0 { gradient.mul_scalar(gradient_scale) } else { gradient };
        let direction = match self.square {
            Some(_) => self.adamw(recipe, step, gradient),
            None => self.muon(gradient),
        };
        replace(weights, |weights| {
            weights.mul_scalar(1.0 - learning_rate * decay) - direction.mul_scalar(learning_rate)
        });
    }

    /// Returns AdamW's step, in multiples of the learning rate.
    fn adamw(&mut self, recipe: &Recipe, step: u64, gradient: Tensor<2>) -> Tensor<2> {
        let [beta_mean, beta_square] = recipe.betas;
        // Averages that start at zero are biased towards zero.
        let bias = |beta: f64| 1.0 - beta.powf(step as f64);
        replace(&mut self.mean, |mean| {
            mean.mul_scalar(beta_mean) + gradient.clone().mul_scalar(1.0 - beta_mean)
        });
        let square = self.square.as_mut().expect("AdamW has a second moment");
        replace(square, |square| {
            square.mul_scalar(beta_square) + gradient.square().mul_scalar(1.0 - beta_square)
        });
        let root = square.clone().div_scalar(bias(beta_square)).sqrt();
        self.mean.clone().div_scalar(bias(beta_mean)) / root.add_scalar(recipe.epsilon)
    }

    /// Returns Muon's step, in multiples of the learning rate.
    fn muon(&mut self, gradient: Tensor<2>) -> Tensor<2> {
        let shape = gradient.dims();
        let taken = gradient.mul_scalar(1.0 - MOMENTUM);
        replace(&mut self.mean, |mean| mean.mul_scalar(MOMENTUM) + taken.clone());
        let ahead = taken + self.mean.clone().mul_scalar(MOMENTUM);
        orthogonalised(ahead).mul_scalar(step_scale(shape))
    }
}

/// Returns the nearly orthogonal result of the Newton–Schulz iterations.
fn orthogonalised(matrix: Tensor<2>) -> Tensor<2> {
    let [rows, columns] = matrix.dims();
    // The product along the short side is cheaper.
    let tall = rows > columns;
    let x = if tall { matrix.transpose() } else { matrix };
    let norm = x.clone().square().sum().sqrt().clamp_min(NORM_MIN);
    let mut x = x / norm.reshape([1, 1]);
    let [a, b, c] = QUINTIC;
    for _ in 0..ITERATIONS {
        let square = x.clone().matmul(x.clone().transpose());
        let polynomial = square.clone().mul_scalar(b) + square.clone().matmul(square).mul_scalar(c);
        x = x.clone().mul_scalar(a) + polynomial.matmul(x);
    }
    if tall { x.transpose() } else { x }
}

/// Replaces a tensor. `with` owns the old one, so that it can be written in place.
fn replace(tensor: &mut Tensor<2>, with: impl FnOnce(Tensor<2>) -> Tensor<2>) {
    let empty = Tensor::empty([1, 1], &tensor.device());
    *tensor = with(std::mem::replace(tensor, empty));
}
