//! `θ_0`: the first model of a run, from a seed, bit for bit the same on every machine.
//!
//! `ln` and `cos` differ between machines in the last bit, so Box–Muller is not reproducible. A weight is the integer
//! sum of twelve 16-bit numbers from a BLAKE3 stream (Irwin–Hall: mean and variance of a normal, tails up to six
//! standard deviations), converted exactly, then scaled with one rounding.

use crate::config::{ConfigError, ModelConfig};

/// Domain of the stream, so that no other use of the seed has the same stream.
const CONTEXT: &str = "mettle/1/initial-weights";
/// 16-bit numbers per weight.
const TERMS: usize = 12;
const BYTES_PER_WEIGHT: usize = 2 * TERMS;

/// Returns the flat parameter vector of `seed`, in schema order.
///
/// Norms start at 1. Matrices are normal: see `deviation`. Each tensor has its own stream, named by seed and tensor,
/// so its values do not depend on other tensors.
///
/// # Errors
/// If the configuration is invalid.
pub fn init_flat(config: &ModelConfig, seed: u64) -> Result<Vec<f32>, ConfigError> {
    config.validate()?;
    let mut flat = vec![0.0; config.parameters()];
    init_into(config, seed, &mut flat)?;
    Ok(flat)
}

/// Writes [`init_flat`] into a row of the model's length.
///
/// # Errors
/// If the configuration is invalid.
///
/// # Panics
/// If `flat` has another length.
pub fn init_into(config: &ModelConfig, seed: u64, flat: &mut [f32]) -> Result<(), ConfigError> {
    config.validate()?;
    assert_eq!(flat.len(), config.parameters(), "a row has all of its model's values");
    let mut rest = flat;
    for (name, [rows, columns]) in config.shapes() {
        let (tensor, behind) = rest.split_at_mut(rows * columns);
        if rows == 1 {
            tensor.fill(1.0);
        } else {
            normal(seed, &name, deviation(&name, columns), tensor);
        }
        rest = behind;
    }
    Ok(())
}

/// Returns the standard deviation of a matrix's initial values, with `columns` inputs.
///
/// A projection has `1/√columns`, which preserves the size of its input. A projection into the residual stream has a
/// tenth of that, since a fresh layer must not drown its token. The embedding is also the output, so it sets the size
/// of the first logits.
fn deviation(name: &str, columns: usize) -> f64 {
    let share = if name.ends_with("embed_tokens.weight") {
        0.8
    } else if name.ends_with("o_proj.weight") || name.ends_with("down_proj.weight") {
        0.1
    } else {
        1.0
    };
    share / (columns as f64).sqrt()
}

/// Fills a tensor with the first values of the stream of `seed` and `name`.
fn normal(seed: u64, name: &str, deviation: f64, into: &mut [f32]) {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
    let mut stream = hasher.finalize_xof();

    // Twelve uniform numbers from 0 to 65535 have the mean 6·65535 and the variance 2^32 − 1.
    let unit = (deviation / 65536.0) as f32;
    let mut bytes = vec![0; BYTES_PER_WEIGHT * 4096];
    for block in into.chunks_mut(4096) {
        let bytes = &mut bytes[..BYTES_PER_WEIGHT * block.len()];
        stream.fill(bytes);
        for (value, weight) in block.iter_mut().zip(bytes.chunks_exact(BYTES_PER_WEIGHT)) {
            let sum: i32 =
                weight.chunks_exact(2).map(|pair| i32::from(u16::from_le_bytes([pair[0], pair[1]]))).sum();
            // At most 393,210 in size: exact as f32.
            *value = (sum - 6 * 65535) as f32 * unit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_model_on_every_machine() {
        let config = ModelConfig::preset("117k").unwrap();
        let flat = init_flat(&config, 7).unwrap();
        assert_eq!(flat.len(), config.parameters());
        let bytes: Vec<u8> = flat.iter().flat_map(|value| value.to_le_bytes()).collect();
        assert_eq!(
            protocol::Digest::of(&bytes).to_string(),
            "f34f90872150e8a76b58ba76638c7b53e0adc68f73eb9e9c0baccf3ba4aa39f9"
        );
        assert_ne!(flat, init_flat(&config, 8).unwrap());
    }

    #[test]
    fn the_values_of_a_tensor_do_not_depend_on_those_before_it() {
        let config = ModelConfig::preset("117k").unwrap();
        let wider = ModelConfig { vocab: 300, ..config.clone() };
        let (flat, wide) = (init_flat(&config, 7).unwrap(), init_flat(&wider, 7).unwrap());
        assert_eq!(flat[256 * 64..], wide[300 * 64..]);
    }

    #[test]
    fn the_values_are_normal_enough() {
        let mut values = vec![0.0; 200_000];
        normal(1, "a test", 2.0, &mut values);
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = values.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n;
        let within_one = values.iter().filter(|x| x.abs() < 2.0).count() as f64 / n;
        assert!(mean.abs() < 0.02, "{mean}");
        assert!((variance - 4.0).abs() < 0.05, "{variance}");
        assert!((within_one - 0.683).abs() < 0.01, "{within_one}");
    }
}
