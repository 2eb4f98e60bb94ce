//! Number formats of values on a GPU and in files.

use half::{bf16, f16};
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Number format of a GPU's products, or of values in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    F32,
    /// The upper half of an `f32`: 8 bits of exponent, like f32, and 8 of precision.
    Bf16,
    /// 5 bits of exponent, 11 of precision: small gradients vanish. For tests on devices without bf16.
    F16,
}

impl Precision {
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Bf16, Precision::F16];

    pub const fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
        }
    }

    /// Returns the number of bytes of a value.
    pub const fn bytes(self) -> usize {
        match self {
            Precision::F32 => 4,
            Precision::Bf16 | Precision::F16 => 2,
        }
    }

    /// Appends `values`, little-endian, each rounded to the nearest, ties to even.
    pub(crate) fn encode(self, values: &[f32], into: &mut Vec<u8>) {
        let values = values.iter();
        match self {
            Precision::F32 => into.extend(values.flat_map(|value| value.to_le_bytes())),
            Precision::Bf16 => into.extend(values.flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
            Precision::F16 => into.extend(values.flat_map(|value| f16::from_f32(*value).to_le_bytes())),
        }
    }

    /// Appends the values of `bytes`, exactly.
    pub(crate) fn decode(self, bytes: &[u8], into: &mut Vec<f32>) {
        let (words, halves) = (bytes.as_chunks::<4>().0.iter(), bytes.as_chunks::<2>().0.iter());
        match self {
            Precision::F32 => into.extend(words.map(|bytes| f32::from_le_bytes(*bytes))),
            Precision::Bf16 => into.extend(halves.map(|bytes| bf16::from_le_bytes(*bytes).to_f32())),
            Precision::F16 => into.extend(halves.map(|bytes| f16::from_le_bytes(*bytes).to_f32())),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Precision, String> {
        let named = Precision::ALL.into_iter().find(|precision| precision.name() == text);
        named.ok_or_else(|| "write f32, bf16 or f16".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tie_rounds_to_even() {
        let mut bytes = Vec::new();
        // 1 + 2^-8 is halfway between 1, which is even, and 1 + 2^-7; 1 + 3·2^-8 is halfway between 1 + 2^-7 and 1 +
        // 2^-6.
        Precision::Bf16.encode(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0], &mut bytes);
        let mut values = Vec::new();
        Precision::Bf16.decode(&bytes, &mut values);
        assert_eq!(values, [1.0, 1.0 + 1.0 / 64.0]);
    }

    #[test]
    fn an_unknown_type_is_refused_with_the_known_ones() {
        assert_eq!("bf16".parse(), Ok(Precision::Bf16));
        assert_eq!("bfloat".parse::<Precision>().unwrap_err(), "write f32, bf16 or f16");
    }
}
