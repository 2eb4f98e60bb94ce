//! Number formats for the levels of a chunk. The protocol's is [`LevelFormat::OURS`] (PROT-7).

use std::fmt;

/// A number format. Rounds to the nearest number of the format, ties to even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelFormat {
    F32,
    /// Eight significant bits, and the exponents of `f32`.
    Bf16,
    /// An unsigned float with subnormals, without infinities and NaN.
    Small {
        exponent_bits: u32,
        mantissa_bits: u32,
        bias: i32,
    },
}

impl LevelFormat {
    pub const OURS: LevelFormat = LevelFormat::Small { exponent_bits: 5, mantissa_bits: 3, bias: 28 };
    /// One mantissa bit less than [`Self::OURS`].
    pub const E5M2: LevelFormat = LevelFormat::Small { exponent_bits: 5, mantissa_bits: 2, bias: 28 };
    /// One exponent bit less than [`Self::OURS`]: the largest number is 1.875, the smallest normal one 2^-14.
    pub const E4M3: LevelFormat = LevelFormat::Small { exponent_bits: 4, mantissa_bits: 3, bias: 15 };

    /// Bits of one level. `bf16` counts 16 bits, although a magnitude needs no sign.
    pub fn bits(self) -> u64 {
        match self {
            LevelFormat::F32 => 32,
            LevelFormat::Bf16 => 16,
            LevelFormat::Small { exponent_bits, mantissa_bits, .. } => {
                u64::from(exponent_bits + mantissa_bits)
            }
        }
    }

    /// The format's number nearest to `magnitude`, which is finite and not negative.
    pub fn round(self, magnitude: f64) -> f32 {
        match self {
            LevelFormat::F32 => magnitude as f32,
            LevelFormat::Bf16 => nearest(magnitude, 7, -126) as f32,
            LevelFormat::Small { exponent_bits, mantissa_bits, bias } => {
                let largest_exponent = (1 << exponent_bits) - 1 - bias;
                let largest = (2.0 - power(-(mantissa_bits as i32))) * power(largest_exponent);
                nearest(magnitude, mantissa_bits as i32, 1 - bias).min(largest) as f32
            }
        }
    }
}

impl fmt::Display for LevelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LevelFormat::F32 => f.write_str("f32"),
            LevelFormat::Bf16 => f.write_str("bf16"),
            LevelFormat::Small { exponent_bits, mantissa_bits, .. } => {
                write!(f, "e{exponent_bits}m{mantissa_bits}")
            }
        }
    }
}

fn power(exponent: i32) -> f64 {
    2f64.powi(exponent)
}

/// Rounds to `mantissa_bits` after the leading one, and below `2^smallest_exponent` to the subnormals' step.
fn nearest(magnitude: f64, mantissa_bits: i32, smallest_exponent: i32) -> f64 {
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(smallest_exponent);
    // Division and multiplication by a power of two are exact.
    let step = power(exponent - mantissa_bits);
    (magnitude / step).round_ties_even() * step
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::contribution::{level_of, value_of};

    #[test]
    fn our_format_equals_the_protocols() {
        assert_eq!(LevelFormat::OURS.to_string(), "e5m3");
        let mut magnitude = 1e-11;
        while magnitude < 40.0 {
            let theirs = value_of(level_of(magnitude));
            assert_eq!(LevelFormat::OURS.round(magnitude).to_bits(), theirs.to_bits(), "{magnitude}");
            magnitude *= 1.0037;
        }
        for code in 0..u8::MAX {
            let halfway = (f64::from(value_of(code)) + f64::from(value_of(code + 1))) / 2.0;
            assert_eq!(LevelFormat::OURS.round(halfway), value_of(level_of(halfway)), "above code {code}");
        }
        assert_eq!(LevelFormat::OURS.round(0.0).to_bits(), 0);
    }

    #[test]
    fn other_formats_round_to_their_precision_and_range() {
        assert_eq!(LevelFormat::Bf16.round(1.0 + 1.0 / 256.0), 1.0);
        assert_eq!(LevelFormat::Bf16.round(1.0 + 3.0 / 256.0), 1.0 + 2.0 / 128.0);
        assert_eq!(LevelFormat::E5M2.round(1.1), 1.0);
        assert_eq!(LevelFormat::E5M2.round(100.0), 14.0);
        assert_eq!(LevelFormat::E4M3.round(100.0), 1.875);
        assert_eq!(LevelFormat::E4M3.round(power(-17)), 2f32.powi(-17), "a subnormal");
        assert_eq!(LevelFormat::E4M3.round(power(-19)), 0.0);
        assert_eq!(LevelFormat::F32.round(0.1), 0.1f32);
    }
}
