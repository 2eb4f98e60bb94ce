//! Compresses trained weights into a contribution: pseudo-gradient, error feedback, encoding and signature in one
//! pass (PROT-9, PROT-10).

use daemon::Codec;
use kernels::encode::{self, Feedback, Source};
use protocol::{
    Digest,
    contribution::EncodeError,
    identity::Signer,
    submission::{Header, SIGNATURE_BYTES, Sealer},
};

/// Reason why compression fails.
#[derive(Debug, thiserror::Error)]
pub enum CompressError<E> {
    #[error("the pseudo-gradient cannot be encoded")]
    Encode(#[source] EncodeError),
    #[error("the contribution could not be handed on")]
    Sink(#[source] E),
}

/// Digest and length of a written contribution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub digest: Digest,
    pub length: u64,
}

/// Decays the residual of a miner that missed `windows` windows: `e ← decay^windows · e`.
pub fn decay_residual(residual: &mut [f32], decay: f32, windows: u32) {
    if windows == 0 {
        return;
    }
    let factor = decay.powi(i32::try_from(windows).unwrap_or(i32::MAX));
    residual.iter_mut().for_each(|entry| *entry *= factor);
}

/// Adds `source` to `residual`, encodes its largest entries, and passes the signed object to `sink` section by
/// section. The residual keeps all values until the commitment is on the chain.
///
/// # Errors
/// If values cannot be encoded, or `sink` fails. Part of the residual is then changed and part of the object passed
/// on.
pub fn compress<E>(
    codec: &Codec,
    header: &Header,
    signer: &Signer,
    residual: &mut [f32],
    source: Source<'_>,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<Sealed, CompressError<E>> {
    let (mut sealer, prefix) = Sealer::new(header);
    sink(&prefix).map_err(CompressError::Sink)?;
    let body = encode::encode_into(codec.layout(), residual, source, Feedback::Keep, &mut |bytes| {
        sealer.push(bytes);
        sink(bytes)
    })
    .map_err(|error| match error {
        encode::EncodeError::NotFinite { tensor, position } => {
            CompressError::Encode(EncodeError::NotFinite {
                tensor: codec
                    .schema()
                    .tensors()
                    .get(tensor)
                    .map(|tensor| tensor.name.clone())
                    .unwrap_or_default(),
                position: u32::try_from(position).unwrap_or(u32::MAX),
            })
        }
        encode::EncodeError::WrongLength { expected, got } => {
            CompressError::Encode(EncodeError::WrongLength { expected, got })
        }
        encode::EncodeError::Sink(error) => CompressError::Sink(error),
    })?;
    let (signature, digest) = sealer.finish(signer);
    sink(&signature.0).map_err(CompressError::Sink)?;
    Ok(Sealed { digest, length: (prefix.len() + SIGNATURE_BYTES) as u64 + body })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ed25519_dalek::SigningKey;
    use proptest::prelude::*;
    use protocol::{
        GenesisHash, RunId, Uid, Window,
        contribution::{self, CODEC, Schema, TensorSpec},
        params::Density,
        submission,
    };
    use std::convert::Infallible;

    pub(crate) fn codec(lengths: &[u32]) -> Codec {
        let tensor =
            |(index, length): (usize, &u32)| TensorSpec { name: index.to_string(), shape: vec![*length] };
        let schema = Schema::new(lengths.iter().enumerate().map(tensor).collect()).unwrap();
        Codec::new(&schema, Density(512)).unwrap()
    }

    pub(crate) fn key() -> Signer {
        Signer::new(SigningKey::from_bytes(&[7; 32]), GenesisHash([1; 32]))
    }

    pub(crate) fn header(codec: &Codec) -> Header {
        Header {
            codec: CODEC,
            run: RunId(1),
            window: Window(9),
            uid: Uid(4),
            hotkey: key().hotkey(),
            base: Digest([5; 32]),
            schema: codec.schema().digest(),
            density: codec.density(),
            trained: 512,
        }
    }

    fn compressed(
        codec: &Codec,
        residual: &mut [f32],
        source: Source<'_>,
    ) -> Result<(Vec<u8>, Sealed), CompressError<Infallible>> {
        let mut bytes = Vec::new();
        let sealed = compress(codec, &header(codec), &key(), residual, source, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok((bytes, sealed))
    }

    /// Computes `e ← fl(fl(decay·e) + fl(θ_w − θ_local))` as PROT-10 defines it.
    pub(crate) fn accumulate(residual: &mut [f32], decay: f32, theta: &[f32], trained: &[f32]) {
        for ((entry, before), after) in residual.iter_mut().zip(theta).zip(trained) {
            *entry = decay * *entry + (before - after);
        }
    }

    #[test]
    fn a_missed_window_decays_the_residual_like_an_empty_contribution() {
        let mut away = vec![8.0, -4.0];
        decay_residual(&mut away, 0.5, 2);
        assert_eq!(away, [2.0, -1.0]);

        let mut silent = vec![8.0, -4.0];
        accumulate(&mut silent, 0.5, &[1.0, 1.0], &[1.0, 1.0]);
        accumulate(&mut silent, 0.5, &[1.0, 1.0], &[1.0, 1.0]);
        assert_eq!(silent, away);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn one_pass_gives_the_sealed_bytes_of_the_protocol(
            lengths in prop::collection::vec(1u32..6000, 1..4),
            decay in 0.1f32..=1.0,
            seed in any::<u64>(),
        ) {
            let codec = codec(&lengths);
            let values = |which: u8| -> Vec<f32> {
                let mut bytes = vec![0; codec.schema().values() * 4];
                blake3::Hasher::new().update(&seed.to_le_bytes()).update(&[which]).finalize_xof().fill(&mut bytes);
                let word = |word: &[u8; 4]| (u32::from_le_bytes(*word) as f32 / 2.0f32.powi(31) - 1.0) * 0.01;
                bytes.as_chunks().0.iter().map(word).collect()
            };
            let (mut residual, theta, trained) = (values(0), values(1), values(2));

            let mut by_the_book = residual.clone();
            accumulate(&mut by_the_book, decay, &theta, &trained);
            let body = contribution::encode(codec.schema(), codec.density(), &by_the_book).unwrap();
            let expected = submission::seal(&header(&codec), &body, &key());

            let source = Source::Difference { decay, before: &theta, after: &trained };
            let (bytes, sealed) = compressed(&codec, &mut residual, source).unwrap();
            prop_assert!(bytes == expected);
            prop_assert_eq!(sealed, Sealed { digest: Digest::of(&expected), length: expected.len() as u64 });
            prop_assert!(residual.iter().map(|x| x.to_bits()).eq(by_the_book.iter().map(|x| x.to_bits())));

            // A residual that already includes the source gives the same bytes.
            prop_assert_eq!(compressed(&codec, &mut residual, Source::Nothing).unwrap(), (bytes, sealed));
        }
    }

    #[test]
    fn an_encoding_or_sink_error_is_named() {
        let codec = codec(&[5000, 3]);
        let mut residual = vec![0.5; 5003];
        residual[5001] = f32::NAN;
        let refused = compressed(&codec, &mut residual, Source::Nothing).unwrap_err();
        let expected = EncodeError::NotFinite { tensor: "1".into(), position: 1 };
        assert!(matches!(refused, CompressError::Encode(error) if error == expected));

        let refused = compressed(&codec, &mut [0.5], Source::Nothing).unwrap_err();
        let expected = EncodeError::WrongLength { expected: 5003, got: 1 };
        assert!(matches!(refused, CompressError::Encode(error) if error == expected));

        let mut residual = vec![0.5; 5003];
        let full = &mut |_: &[u8]| Err("full");
        let refused =
            compress(&codec, &header(&codec), &key(), &mut residual, Source::Nothing, full).unwrap_err();
        assert!(matches!(refused, CompressError::Sink("full")));
    }
}
