//! AdamW, and its state as bytes.
//!
//! The state is a miner's own, but it must survive a crash to the bit (PROT-10), so its format does not depend on the
//! library that does the arithmetic.

use crate::{
    llama::{Llama, replace},
    recipe::Recipe,
};
use burn::tensor::{Tensor, TensorData};
use protocol::Digest;

/// First bytes of a saved state; the last one is the format's version.
const MAGIC: &[u8; 8] = b"mtl-adm\x01";
const DIGEST: usize = 32;

pub(crate) struct AdamW {
    pub steps: u64,
    moments: Vec<Moments>,
}

/// Moving averages for one tensor: of the gradient, and of its square.
struct Moments {
    mean: Tensor<2>,
    square: Tensor<2>,
}

/// Why a saved optimiser cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    #[error("this is no optimiser state, or one of another release")]
    NotOurs,
    #[error("the optimiser state is damaged: {len} bytes whose digest is not the one at their end")]
    Damaged { len: usize },
    #[error("the optimiser state is of another model (schema {got}, not {expected})")]
    OtherModel { expected: Digest, got: Digest },
}

impl AdamW {
    pub fn new(model: &Llama) -> AdamW {
        let zeros = |tensor: &&Tensor<2>| Moments { mean: tensor.zeros_like(), square: tensor.zeros_like() };
        AdamW { steps: 0, moments: model.tensors().iter().map(zeros).collect() }
    }

    /// One step along `gradients`, which stand in schema order.
    pub fn step(
        &mut self,
        recipe: &Recipe,
        learning_rate: f64,
        model: &mut Llama,
        gradients: Vec<Tensor<2>>,
    ) {
        self.steps += 1;
        let [beta_mean, beta_square] = recipe.betas;
        // Averages that began at zero are too small at first: divide by the weight they have so far.
        let so_far = |beta: f64| 1.0 - beta.powf(self.steps as f64);
        let (mean_weight, square_weight) = (so_far(beta_mean), so_far(beta_square));

        for ((weights, gradient), moments) in
            model.tensors_mut().into_iter().zip(gradients).zip(&mut self.moments)
        {
            replace(&mut moments.mean, |mean| {
                mean.mul_scalar(beta_mean) + gradient.clone().mul_scalar(1.0 - beta_mean)
            });
            replace(&mut moments.square, |square| {
                square.mul_scalar(beta_square) + gradient.square().mul_scalar(1.0 - beta_square)
            });
            let mean = moments.mean.clone().div_scalar(mean_weight);
            let root = moments.square.clone().div_scalar(square_weight).sqrt();
            let direction = mean / root.add_scalar(recipe.epsilon);

            // A norm's gain is one row. It has no business at zero.
            let decay = if weights.dims()[0] > 1 { learning_rate * recipe.weight_decay } else { 0.0 };
            replace(weights, |weights| weights.mul_scalar(1.0 - decay) - direction.mul_scalar(learning_rate));
        }
    }

    /// Layout: magic, schema digest, steps (`u64`), the moments tensor by tensor (`f32`: mean, then square), and the
    /// blake3 digest of all that. Numbers are little-endian.
    pub fn to_bytes(&self, schema: &Digest) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&schema.0);
        bytes.extend_from_slice(&self.steps.to_le_bytes());
        for tensor in self.moments.iter().flat_map(|moments| [&moments.mean, &moments.square]) {
            let data = tensor.clone().into_data();
            let values = data.as_slice::<f32>().expect("moments are f32");
            bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        }
        let digest = Digest::of(&bytes);
        bytes.extend_from_slice(&digest.0);
        bytes
    }

    pub fn from_bytes(bytes: &[u8], schema: &Digest, model: &Llama) -> Result<AdamW, StateError> {
        let rest = bytes.strip_prefix(MAGIC).ok_or(StateError::NotOurs)?;
        let damaged = || StateError::Damaged { len: bytes.len() };
        let (_, digest) = bytes.split_last_chunk::<DIGEST>().ok_or_else(damaged)?;
        if Digest::of(&bytes[..bytes.len() - DIGEST]).0 != *digest {
            return Err(damaged());
        }
        let (got, rest) = rest.split_first_chunk::<DIGEST>().ok_or_else(damaged)?;
        if *got != schema.0 {
            return Err(StateError::OtherModel { expected: *schema, got: Digest(*got) });
        }
        let (steps, rest) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;

        let mut values = rest[..rest.len() - DIGEST].chunks_exact(4);
        let mut moments = Vec::new();
        for tensor in model.tensors() {
            let mut next = || {
                let shape = tensor.dims();
                let len = shape[0] * shape[1];
                let values: Vec<f32> = values
                    .by_ref()
                    .take(len)
                    .map(|bytes| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
                    .collect();
                if values.len() != len {
                    return Err(damaged());
                }
                Ok(Tensor::from_data(TensorData::new(values, shape), &tensor.device()))
            };
            moments.push(Moments { mean: next()?, square: next()? });
        }
        if values.next().is_some() || !values.remainder().is_empty() {
            return Err(damaged());
        }
        Ok(AdamW { steps: u64::from_le_bytes(*steps), moments })
    }
}
