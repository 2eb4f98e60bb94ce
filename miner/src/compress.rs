//! From a trained model to the bytes that are committed: pseudo-gradient, error feedback, encoding (PROT-10).

use protocol::contribution::{self, DecodeError, EncodeError, Schema};
use protocol::params::Density;

/// `e ← decay·e + (θ_w − θ_local)`, in place.
pub fn accumulate(residual: &mut [f32], decay: f32, theta: &[f32], trained: &[f32]) {
    for ((entry, before), after) in residual.iter_mut().zip(theta).zip(trained) {
        *entry = decay * *entry + (before - after);
    }
}

/// The residual of a miner that was away for `windows` windows: `e ← decay^windows · e`.
pub fn fade(residual: &mut [f32], decay: f32, windows: u32) {
    if windows == 0 {
        return;
    }
    let factor = decay.powi(i32::try_from(windows).unwrap_or(i32::MAX));
    residual.iter_mut().for_each(|entry| *entry *= factor);
}

/// The body that is sent. The residual keeps everything until the commitment is on the chain; see [`spend`].
pub fn encode(schema: &Schema, density: Density, residual: &[f32]) -> Result<Vec<u8>, EncodeError> {
    contribution::encode(schema, density, residual)
}

/// `e ← e − decode(body)`: what was committed leaves the residual, whether it is merged or not.
pub fn spend(
    schema: &Schema,
    density: Density,
    body: &[u8],
    residual: &mut [f32],
) -> Result<(), DecodeError> {
    let sent = contribution::decode(schema, density, body)?;
    for (range, tensor) in schema.ranges().zip(&sent.tensors) {
        let residual = &mut residual[range];
        for (position, value) in tensor.positions.iter().zip(&tensor.values) {
            residual[*position as usize] -= value;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use protocol::contribution::TensorSpec;

    fn schema(values: u32) -> Schema {
        Schema::new(vec![TensorSpec { name: "w".into(), shape: vec![values] }]).unwrap()
    }

    #[test]
    fn a_miner_that_was_away_forgets_as_if_it_had_sent_nothing() {
        let mut away = vec![8.0, -4.0];
        fade(&mut away, 0.5, 2);
        assert_eq!(away, [2.0, -1.0]);

        let mut silent = vec![8.0, -4.0];
        accumulate(&mut silent, 0.5, &[1.0, 1.0], &[1.0, 1.0]);
        accumulate(&mut silent, 0.5, &[1.0, 1.0], &[1.0, 1.0]);
        assert_eq!(silent, away);
    }

    proptest! {
        #[test]
        fn spending_later_is_the_same_as_encoding_with_feedback(
            values in prop::collection::vec(-1e3f32..1e3, 1..200),
        ) {
            let schema = schema(values.len() as u32);
            let density = Density(512);
            let body = encode(&schema, density, &values).unwrap();
            let mut spent = values.clone();
            spend(&schema, density, &body, &mut spent).unwrap();

            let mut fed_back = values.clone();
            let same = contribution::encode_with_feedback(&schema, density, &mut fed_back).unwrap();
            prop_assert_eq!(body, same);
            prop_assert_eq!(spent, fed_back);
        }
    }
}
