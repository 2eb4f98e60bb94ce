//! Possible magnitudes of an entry: an unsigned float of 8 bits (PROT-7).
//!
//! Five bits of exponent with bias 28, three of mantissa, subnormals, no infinity and no NaN: every code is a level.
//! From 2^-30 to 15 in steps of at most an eighth; below is 0, above is 15.

const MANTISSA_BITS: u32 = 3;
const BIAS: u32 = 28;

/// The largest level, to which everything larger is rounded.
pub const LEVEL_MAX: f32 = 15.0;

/// Returns the code of the level nearest to a magnitude, ties to the even code. The magnitude is finite and
/// not negative.
pub fn level_of(magnitude: f64) -> u8 {
    // 2^-27: the smallest level with an exponent of its own. Below, levels are multiples of 2^-30.
    if magnitude < 1.0 / 134_217_728.0 {
        let steps = magnitude * 1_073_741_824.0;
        let below = steps as u8;
        let past = steps - f64::from(below);
        return below + u8::from(past > 0.5 || (past == 0.5 && below % 2 == 1));
    }
    // The bits of a float are its exponent and mantissa in a row, so that rounding up carries into the exponent.
    let bits = magnitude.to_bits();
    let dropped = f64::MANTISSA_DIGITS - 1 - MANTISSA_BITS;
    let (above, half) = (bits >> dropped, 1 << (dropped - 1));
    let rest = bits & ((1 << dropped) - 1);
    let rounded = above + u64::from(rest > half || (rest == half && above % 2 == 1));
    let code = rounded - (u64::from(1023 - BIAS) << MANTISSA_BITS);
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Returns the value of a code. Exact: every level is an f32.
pub fn value_of(code: u8) -> f32 {
    let (exponent, mantissa) = (u32::from(code >> MANTISSA_BITS), u32::from(code & 7));
    if exponent == 0 {
        mantissa as f32 / 1_073_741_824.0
    } else {
        f32::from_bits((exponent + 127 - BIAS) << 23 | mantissa << (23 - MANTISSA_BITS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_code_is_a_level_and_levels_rise() {
        for code in 0..=u8::MAX {
            assert_eq!(level_of(f64::from(value_of(code))), code);
            assert!(code == 0 || value_of(code - 1) < value_of(code));
        }
        assert_eq!(value_of(0).to_bits(), 0);
        assert_eq!(value_of(1), 2f32.powi(-30));
        assert_eq!(value_of(8), 2f32.powi(-27));
        assert_eq!(value_of(u8::MAX), LEVEL_MAX);
    }

    #[test]
    fn halfway_goes_to_the_even_code_and_the_top_saturates() {
        for code in 0..u8::MAX {
            let (below, above) = (f64::from(value_of(code)), f64::from(value_of(code + 1)));
            assert_eq!(level_of((below + above) / 2.0), code + code % 2);
        }
        assert_eq!(level_of(15.5), u8::MAX);
        assert_eq!(level_of(f64::MAX), u8::MAX);
        assert_eq!(level_of(f64::from(f32::MIN_POSITIVE)), 0);
        assert_eq!(level_of(f64::MIN_POSITIVE), 0);
    }

    proptest! {
        #[test]
        fn no_other_level_is_nearer(magnitude in prop_oneof![0.0..16.0, 0.0..1e-7]) {
            let chosen = (f64::from(value_of(level_of(magnitude))) - magnitude).abs();
            for code in 0..=u8::MAX {
                prop_assert!(chosen <= (f64::from(value_of(code)) - magnitude).abs());
            }
        }
    }
}
