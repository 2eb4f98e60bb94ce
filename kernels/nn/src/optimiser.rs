//! The step that weights take along a gradient, by AdamW or by Muon, and what is remembered for the next one, as bytes.
//!
//! The state is a miner's own, but it must survive a crash to the bit (PROT-10), so its format does not depend on the
//! library that does the arithmetic.

use crate::{
    llama::{Llama, as_slices, replace},
    muon,
};
use burn::tensor::{Tensor, TensorData};
use kernels::adamw::{self, Numbers};
use model::{Optimiser, Recipe};
use protocol::Digest;
use std::{
    convert::Infallible,
    io::{self, Read, Write},
};

/// First bytes of a saved state; the last one is the format's version.
const fn magic(optimiser: Optimiser) -> &'static [u8; 8] {
    match optimiser {
        Optimiser::AdamW => b"mtl-adm\x01",
        Optimiser::Muon => b"mtl-muo\x01",
    }
}
const DIGEST: usize = 32;
/// Values read or written at a time.
const PIECE: usize = 1 << 16;

/// What is remembered from step to step.
pub(crate) struct OptimiserState {
    pub steps: u64,
    optimiser: Optimiser,
    moments: Vec<Moments>,
}

/// Moving averages for one tensor.
struct Moments {
    /// Of the gradient.
    mean: Tensor<2>,
    /// Of its square: AdamW's alone. Where there is none, Muon steps.
    square: Option<Tensor<2>>,
}

/// What a step goes against, tensor by tensor in schema order.
pub(crate) enum Gradients {
    /// In the host's memory, row-major.
    Slices(Vec<Vec<f32>>),
    Tensors(Vec<Tensor<2>>),
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
    #[error(
        "the optimiser state is {got:?}'s, but the recipe says {expected:?}: name the one that the state is of, or begin without it"
    )]
    OtherOptimiser { expected: Optimiser, got: Optimiser },
    #[error("the optimiser state could not be read: {kind}")]
    Unreadable { kind: io::ErrorKind },
    #[error("the optimiser state could not be put on the device: {why}")]
    Device { why: String },
}

impl OptimiserState {
    pub fn new(optimiser: Optimiser, model: &Llama) -> OptimiserState {
        let nothing = |tensor: &Tensor<2>| Ok::<_, Infallible>(tensor.zeros_like());
        let Ok(moments) = moments(optimiser, model, nothing);
        OptimiserState { steps: 0, optimiser, moments }
    }

    /// One step along `gradients` times `shrink`.
    pub fn step(
        &mut self,
        recipe: &Recipe,
        learning_rate: f64,
        shrink: f64,
        model: &mut Llama,
        gradients: Gradients,
    ) {
        self.steps += 1;
        let tensors = model.tensors_mut().into_iter().zip(&mut self.moments);
        // A norm's gain is one row. It has no business at zero.
        let decay = |weights: &Tensor<2>| if weights.dims()[0] > 1 { recipe.weight_decay } else { 0.0 };
        match gradients {
            Gradients::Slices(gradients) => {
                for ((weights, moments), gradient) in tensors.zip(gradients) {
                    let decay = decay(weights);
                    if let Moments { mean, square: Some(square) } = moments {
                        let numbers = Numbers::new(
                            recipe.betas,
                            self.steps,
                            recipe.epsilon,
                            learning_rate,
                            decay,
                            shrink,
                        );
                        as_slices([weights, mean, square], |[weights, mean, square]| {
                            adamw::step(&numbers, weights, &gradient, mean, square);
                        });
                    } else {
                        let data = TensorData::new(gradient, weights.dims());
                        let gradient = Tensor::from_data(data, &weights.device()).mul_scalar(shrink);
                        let direction = moments.direction(recipe, self.steps, gradient);
                        go(weights, direction, learning_rate, decay);
                    }
                }
            }
            Gradients::Tensors(gradients) => {
                for ((weights, moments), gradient) in tensors.zip(gradients) {
                    let gradient = if shrink < 1.0 { gradient.mul_scalar(shrink) } else { gradient };
                    let direction = moments.direction(recipe, self.steps, gradient);
                    let decay = decay(weights);
                    go(weights, direction, learning_rate, decay);
                }
            }
        }
    }

    /// All that it remembers, in the order in which it is written.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor<2>> {
        self.moments.iter().flat_map(|moments| [Some(&moments.mean), moments.square.as_ref()]).flatten()
    }

    /// Writes the state: see [`write_state`].
    pub fn write(&self, schema: &Digest, sink: &mut dyn Write) -> io::Result<()> {
        write_state(self.optimiser, schema, self.steps, sink, |put| {
            self.tensors().try_for_each(|tensor| pieces(tensor, put))
        })
    }

    /// Reads what [`write`](Self::write) wrote: see [`read_state`]. The moments are those of `model`, in number and shape.
    pub fn read(
        optimiser: Optimiser,
        schema: &Digest,
        model: &Llama,
        source: &mut dyn Read,
        whole: bool,
    ) -> Result<OptimiserState, StateError> {
        let (steps, moments) = read_state(optimiser, schema, source, whole, |values| {
            moments(optimiser, model, |like| {
                let shape = like.dims();
                let mut of_tensor = Vec::new();
                values(shape[0] * shape[1], &mut of_tensor)?;
                Ok(Tensor::from_data(TensorData::new(of_tensor, shape), &like.device()))
            })
        })?;
        Ok(OptimiserState { steps, optimiser, moments })
    }
}

/// Takes a piece of what is written.
pub(crate) type Put<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;
/// Appends so many values of what is read.
pub(crate) type Values<'a> = dyn FnMut(usize, &mut Vec<f32>) -> Result<(), StateError> + 'a;

/// Writes a state whose moments `write` writes. Layout: magic, schema digest, steps (`u64`), the moments tensor by tensor (`f32`: mean,
/// then square where there is one), and the blake3 digest of all that. Numbers are little-endian.
pub(crate) fn write_state(
    optimiser: Optimiser,
    schema: &Digest,
    steps: u64,
    sink: &mut dyn Write,
    write: impl FnOnce(&mut Put<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let mut hasher = blake3::Hasher::new();
    let mut put = |bytes: &[u8]| {
        hasher.update(bytes);
        sink.write_all(bytes)
    };
    put(magic(optimiser))?;
    put(&schema.0)?;
    put(&steps.to_le_bytes())?;
    write(&mut put)?;
    sink.write_all(hasher.finalize().as_bytes())
}

/// Reads what [`write_state`] wrote, and not a byte more: the steps, and what `read` makes of the moments' values. If it is the `whole`
/// source, nothing may follow.
pub(crate) fn read_state<M>(
    optimiser: Optimiser,
    schema: &Digest,
    source: &mut dyn Read,
    whole: bool,
    read: impl FnOnce(&mut Values<'_>) -> Result<M, StateError>,
) -> Result<(u64, M), StateError> {
    let mut source = Hashed { source, hasher: blake3::Hasher::new(), read: 0 };
    let mut first = [0; 8];
    match source.fill(&mut first) {
        Ok(()) => named(&first, optimiser)?,
        Err(StateError::Damaged { .. }) => return Err(StateError::NotOurs),
        Err(error) => return Err(error),
    }
    let mut got = Digest::default();
    source.fill(&mut got.0)?;
    if got != *schema {
        return Err(StateError::OtherModel { expected: *schema, got });
    }
    let mut steps = [0; 8];
    source.fill(&mut steps)?;
    let moments = read(&mut |len, into| source.values(len, into))?;
    let expected = *source.hasher.finalize().as_bytes();
    let mut digest = [0; DIGEST];
    source.fill(&mut digest)?;
    if digest != expected || whole && source.fill(&mut [0]).is_ok() {
        return Err(source.damaged());
    }
    Ok((u64::from_le_bytes(steps), moments))
}

/// Checks that `bytes` are all of a state of this optimiser, before anything is made of them.
pub(crate) fn check_bytes(optimiser: Optimiser, bytes: &[u8]) -> Result<(), StateError> {
    named(bytes.first_chunk().ok_or(StateError::NotOurs)?, optimiser)?;
    match bytes.split_last_chunk::<DIGEST>() {
        Some((body, digest)) if Digest::of(body).0 == *digest => Ok(()),
        _ => Err(StateError::Damaged { len: bytes.len() }),
    }
}

impl Moments {
    /// Takes a gradient in; returns what the weights go against, in learning rates.
    fn direction(&mut self, recipe: &Recipe, steps: u64, gradient: Tensor<2>) -> Tensor<2> {
        let Moments { mean, square } = self;
        let Some(square) = square else {
            replace(mean, |mean| muon::momentum(mean, gradient.clone()));
            return muon::direction(mean.clone(), gradient);
        };
        let [beta_mean, beta_square] = recipe.betas;
        // Averages that began at zero are too small at first: divide by the weight they have so far.
        let so_far = |beta: f64| 1.0 - beta.powf(steps as f64);
        replace(mean, |mean| mean.mul_scalar(beta_mean) + gradient.clone().mul_scalar(1.0 - beta_mean));
        replace(square, |square| {
            square.mul_scalar(beta_square) + gradient.square().mul_scalar(1.0 - beta_square)
        });
        let root = square.clone().div_scalar(so_far(beta_square)).sqrt();
        mean.clone().div_scalar(so_far(beta_mean)) / root.add_scalar(recipe.epsilon)
    }
}

/// A step of the weights, with their decay.
fn go(weights: &mut Tensor<2>, direction: Tensor<2>, learning_rate: f64, decay: f64) {
    replace(weights, |weights| {
        weights.mul_scalar(1.0 - learning_rate * decay) - direction.mul_scalar(learning_rate)
    });
}

/// Which averages each tensor has, made by `make` from the tensor. Muon is for the matrices inside the layers: not for the embedding, the
/// first tensor, whose rows are tokens and no directions, and not for a norm's gain, one row.
fn moments<E>(
    optimiser: Optimiser,
    model: &Llama,
    mut make: impl FnMut(&Tensor<2>) -> Result<Tensor<2>, E>,
) -> Result<Vec<Moments>, E> {
    let of_tensor = |(at, tensor): (usize, &Tensor<2>)| {
        let by_muon = optimiser == Optimiser::Muon && at > 0 && tensor.dims()[0] > 1;
        let mean = make(tensor)?;
        Ok(Moments { mean, square: if by_muon { None } else { Some(make(tensor)?) } })
    };
    model.tensors().into_iter().enumerate().map(of_tensor).collect()
}

/// Checks that a state's first bytes name this optimiser.
fn named(first: &[u8; 8], expected: Optimiser) -> Result<(), StateError> {
    let got = [Optimiser::AdamW, Optimiser::Muon].into_iter().find(|optimiser| magic(*optimiser) == first);
    match got {
        Some(got) if got == expected => Ok(()),
        Some(got) => Err(StateError::OtherOptimiser { expected, got }),
        None => Err(StateError::NotOurs),
    }
}

/// Hands a tensor's values to `put` as little-endian bytes, in pieces.
pub(crate) fn pieces(tensor: &Tensor<2>, put: &mut Put<'_>) -> io::Result<()> {
    let data = tensor.clone().into_data();
    values_as_bytes(data.as_slice::<f32>().expect("weights and moments are f32 on every device"), put)
}

/// As [`pieces`], of values.
pub(crate) fn values_as_bytes(values: &[f32], put: &mut Put<'_>) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(PIECE * 4);
    for values in values.chunks(PIECE) {
        bytes.clear();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        put(&bytes)?;
    }
    Ok(())
}

/// A source whose bytes are counted and hashed as they are read.
struct Hashed<'a> {
    source: &'a mut dyn Read,
    hasher: blake3::Hasher,
    read: usize,
}

impl Hashed<'_> {
    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), StateError> {
        let mut filled = 0;
        while filled < bytes.len() {
            match self.source.read(&mut bytes[filled..]) {
                Ok(0) => {
                    self.read += filled;
                    return Err(self.damaged());
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(StateError::Unreadable { kind: error.kind() }),
            }
        }
        self.read += filled;
        self.hasher.update(bytes);
        Ok(())
    }

    /// Appends `len` values.
    fn values(&mut self, len: usize, values: &mut Vec<f32>) -> Result<(), StateError> {
        let mut left = len;
        values.reserve(len);
        let mut piece = vec![0; PIECE.min(left) * 4];
        while 0 < left {
            let bytes = &mut piece[..PIECE.min(left) * 4];
            self.fill(bytes)?;
            values.extend(bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            left -= bytes.len() / 4;
        }
        Ok(())
    }

    fn damaged(&self) -> StateError {
        StateError::Damaged { len: self.read }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Device;
    use model::{ModelConfig, init_flat};

    #[test]
    fn steps_along_slices_are_those_along_tensors() {
        let config = ModelConfig { vocab: 50, layers: 2, ..ModelConfig::preset("117k").unwrap() };
        let device = Device::flex();
        let flat = init_flat(&config, 1).unwrap();
        for optimiser in [Optimiser::AdamW, Optimiser::Muon] {
            let recipe = Recipe { optimiser, ..Recipe::default() };
            let both = [(); 2].map(|()| {
                let model = Llama::load(&config, &flat, &device).unwrap();
                (OptimiserState::new(optimiser, &model), model)
            });
            let [(mut one, mut by_slices), (mut other, mut by_tensors)] = both;
            for (step, shrink) in [1.0, 0.3, 1.0, 0.9].into_iter().enumerate() {
                let gradients: Vec<(Vec<f32>, [usize; 2])> = config
                    .shapes()
                    .into_iter()
                    .map(|(_, shape)| {
                        let value =
                            |i: usize| ((i + 1) as f32 * (step + 1) as f32).sin() / (1 + i % 7) as f32;
                        ((0..shape[0] * shape[1]).map(value).collect(), shape)
                    })
                    .collect();
                let tensor = |(values, shape)| Tensor::from_data(TensorData::new(values, shape), &device);
                let tensors = Gradients::Tensors(gradients.iter().cloned().map(tensor).collect());
                let slices = Gradients::Slices(gradients.into_iter().map(|(values, _)| values).collect());
                one.step(&recipe, 1e-2, shrink, &mut by_slices, slices);
                other.step(&recipe, 1e-2, shrink, &mut by_tensors, tensors);
            }
            assert_eq!([one.steps, other.steps], [4, 4]);
            let (by_slices, by_tensors) = (by_slices.to_flat(), by_tensors.to_flat());
            let moved = |flat: &[f32], i: usize| (flat[i] - by_slices[i]).abs();
            assert!((0..flat.len()).all(|i| moved(&by_tensors, i) < 1e-6), "{optimiser:?}");
            assert!((0..flat.len()).any(|i| moved(&flat, i) > 1e-3), "{optimiser:?}");
        }
    }
}
