//! The agreed arithmetic, in integers.
//!
//! Rules of the codec and of the merge are exact: f32 and f64 operations of IEEE 754, each rounded once, to nearest,
//! ties to even, denormals kept. No GPU language promises that. CubeCL marks additions and multiplications for NVIDIA's
//! GPUs as free to be contracted, Vulkan lets a driver contract, flush denormals and divide 2.5 ulp wide, and many
//! devices have no f64. So numbers travel as their bits, and these functions are the operations, whatever the device.
//! Only [`step`], which every value of a model passes through, uses the device's own units, where [`super::Device::open`]
//! has seen them agree.
//!
//! What is not finite is refused at the border; here it gives some NaN.

use cubecl::prelude::*;

const SIGN: u32 = 0x8000_0000;
const MAGNITUDE: u32 = 0x7fff_ffff;
const INFINITE: u32 = 0x7f80_0000;
const NAN: u32 = 0x7fc0_0000;
/// The implicit bit of an f32, and the bits below it.
const ONE_32: u32 = 0x0080_0000;
const FRACTION_32: u32 = 0x007f_ffff;
/// The same of an f64.
const ONE_64: u64 = 0x0010_0000_0000_0000;
const FRACTION_64: u64 = 0x000f_ffff_ffff_ffff;

#[cube]
pub(super) fn leading_zeros(x: u64) -> u32 {
    let high = (x >> 32u64) as u32;
    let low = x as u32;
    let mut zeros = high.leading_zeros();
    if high == 0u32 {
        zeros = 32u32 + low.leading_zeros();
    }
    zeros
}

/// `x >> by`, of which the bits shifted out are set in the lowest bit that is left. Any `by`.
#[cube]
fn shift_sticky(x: u64, by: u32) -> u64 {
    let mut by = by as u64;
    if by > 63u64 {
        by = 63u64;
    }
    let kept = x >> by;
    let mut sticky = 0u64;
    if (kept << by) != x {
        sticky = 1u64;
    }
    kept | sticky
}

/// `x / 2^by` to the nearest integer, ties to even; `1 ≤ by`, and `x` under 2^63.
#[cube]
fn shift_round(x: u64, by: u32) -> u64 {
    let mut rounded = 0u64;
    if by < 64u32 {
        let by = by as u64;
        rounded = x >> by;
        let rest = x & ((1u64 << by) - 1u64);
        let half = 1u64 << (by - 1u64);
        if rest > half || (rest == half && (rounded & 1u64) == 1u64) {
            rounded += 1u64;
        }
    }
    rounded
}

/// The f32 nearest to `mantissa · 2^exponent`, without its sign. `mantissa` is under 2^63; its lowest bit may stand for
/// what is below it, if it has more than 25 others.
#[cube]
fn round_32(mantissa: u64, exponent: i32) -> u32 {
    let mut bits = 0u32;
    if mantissa != 0u64 {
        let length = 64i32 - leading_zeros(mantissa) as i32;
        let biased = exponent + length - 1i32 + 127i32;
        if biased > 254i32 {
            bits = INFINITE;
        } else {
            // The weight of the last bit is 2^-149 at the least.
            let mut drop = length - 24i32;
            let mut base = 0u32;
            if biased < 1i32 {
                drop = -149i32 - exponent;
            } else {
                base = ((biased - 1i32) as u32) << 23u32;
            }
            if drop > 0i32 {
                bits = base + shift_round(mantissa, drop as u32) as u32;
            } else {
                bits = base + ((mantissa << ((-drop) as u64)) as u32);
            }
        }
    }
    bits
}

/// The exponent of the last bit of an f32's mantissa, plus 150.
#[cube]
fn exponent_32(magnitude: u32) -> i32 {
    let mut exponent = (magnitude >> 23u32) as i32;
    if exponent == 0i32 {
        exponent = 1i32;
    }
    exponent
}

#[cube]
fn mantissa_32(magnitude: u32) -> u32 {
    let mut mantissa = magnitude & FRACTION_32;
    if magnitude >= ONE_32 {
        mantissa |= ONE_32;
    }
    mantissa
}

/// `fl(a + b)`.
#[cube]
pub(super) fn add(a: u32, b: u32) -> u32 {
    let mut large = a;
    let mut small = b;
    if (a & MAGNITUDE) < (b & MAGNITUDE) {
        large = b;
        small = a;
    }
    let large_magnitude = large & MAGNITUDE;
    let small_magnitude = small & MAGNITUDE;
    let mut sum = NAN.runtime();
    if large_magnitude < INFINITE {
        if large_magnitude == 0u32 {
            sum = a & b;
        } else {
            let exponent = exponent_32(large_magnitude);
            let distance = exponent - exponent_32(small_magnitude);
            let augend = (mantissa_32(large_magnitude) as u64) << 32u64;
            let addend = shift_sticky((mantissa_32(small_magnitude) as u64) << 32u64, distance as u32);
            let mut total = augend + addend;
            if ((large ^ small) & SIGN) != 0u32 {
                total = augend - addend;
            }
            sum = 0u32;
            if total != 0u64 {
                sum = (large & SIGN) | round_32(total, exponent - 182i32);
            }
        }
    }
    sum
}

/// `fl(a · b)`.
#[cube]
pub(super) fn multiply(a: u32, b: u32) -> u32 {
    let magnitude_a = a & MAGNITUDE;
    let magnitude_b = b & MAGNITUDE;
    let mut product = NAN.runtime();
    if magnitude_a < INFINITE && magnitude_b < INFINITE {
        let mantissa = (mantissa_32(magnitude_a) as u64) * (mantissa_32(magnitude_b) as u64);
        let exponent = exponent_32(magnitude_a) + exponent_32(magnitude_b) - 300i32;
        product = ((a ^ b) & SIGN) | round_32(mantissa, exponent);
    }
    product
}

/// `fl(a / b)`. `b` is not zero.
#[cube]
pub(super) fn divide(a: u32, b: u32) -> u32 {
    let magnitude_a = a & MAGNITUDE;
    let magnitude_b = b & MAGNITUDE;
    let mut quotient = NAN.runtime();
    if magnitude_a < INFINITE && magnitude_b < INFINITE && magnitude_b != 0u32 {
        quotient = (a ^ b) & SIGN;
        if magnitude_a != 0u32 {
            let mantissa = mantissa_32(magnitude_a);
            let up = leading_zeros(mantissa as u64) - 1u32;
            let dividend = (mantissa as u64) << (up as u64);
            let divisor = mantissa_32(magnitude_b) as u64;
            let mut digits = dividend / divisor;
            if digits * divisor != dividend {
                digits |= 1u64;
            }
            let exponent = exponent_32(magnitude_a) - exponent_32(magnitude_b) - up as i32;
            quotient |= round_32(digits, exponent);
        }
    }
    quotient
}

/// The f32 of an integer under 2^24.
#[cube]
pub(super) fn from_count(count: u32) -> u32 {
    round_32(count as u64, 0i32)
}

/// `fl(fl(decay · residual) + delta)`.
///
/// `fence` is zero, which no compiler knows: it keeps the sum from being fused with the product. The device's units
/// are used where neither operand nor result can be denormal.
#[cube]
pub(super) fn step(residual: u32, delta: u32, decay: u32, fence: u32, #[comptime] hardware: bool) -> u32 {
    let exponent_r = (residual >> 23u32) & 0xffu32;
    let exponent_d = (delta >> 23u32) & 0xffu32;
    let exponent_f = (decay >> 23u32) & 0xffu32;
    let plain = comptime!(hardware)
        && exponent_r >= 80u32
        && exponent_r <= 174u32
        && exponent_f >= 80u32
        && exponent_f <= 174u32
        && exponent_d >= 34u32
        && exponent_d <= 220u32;
    if plain {
        let product = f32::reinterpret(residual) * f32::reinterpret(decay);
        let product = u32::reinterpret(product) ^ fence;
        u32::reinterpret(f32::reinterpret(product) + f32::reinterpret(delta))
    } else {
        add(multiply(decay, residual), delta)
    }
}

/// The f64 equal to an f32 without its sign.
#[cube]
pub(super) fn widen(magnitude: u32) -> u64 {
    from_integer(mantissa_32(magnitude) as u64, exponent_32(magnitude) - 150i32)
}

/// The square of an f32, which an f64 holds exactly.
#[cube]
pub(super) fn square(value: u32) -> u64 {
    let magnitude = value & MAGNITUDE;
    let mantissa = mantissa_32(magnitude) as u64;
    from_integer(mantissa * mantissa, 2i32 * (exponent_32(magnitude) - 150i32))
}

/// The f64 equal to `integer · 2^exponent`; the integer has 53 bits at most.
#[cube]
pub(super) fn from_integer(integer: u64, exponent: i32) -> u64 {
    let mut bits = 0u64;
    if integer != 0u64 {
        let zeros = leading_zeros(integer);
        let biased = exponent + 63i32 - zeros as i32 + 1023i32;
        let mantissa = integer << ((zeros - 11u32) as u64);
        bits = ((biased as u64) << 52u64) | (mantissa & FRACTION_64);
    }
    bits
}

/// `fl(a + b)` of f64s that are neither negative nor denormal.
#[cube]
pub(super) fn add_wide(a: u64, b: u64) -> u64 {
    let mut large = a;
    let mut small = b;
    if a < b {
        large = b;
        small = a;
    }
    let mut sum = large;
    if small != 0u64 {
        let distance = (large >> 52u64) - (small >> 52u64);
        let augend = ((large & FRACTION_64) | ONE_64) << 9u64;
        let addend = shift_sticky(((small & FRACTION_64) | ONE_64) << 9u64, distance as u32);
        let total = augend + addend;
        let mut drop = 9u32;
        let mut exponent = large >> 52u64;
        if (total >> 62u64) != 0u64 {
            drop = 10u32;
            exponent += 1u64;
        }
        sum = ((exponent - 1u64) << 52u64) + shift_round(total, drop);
    }
    sum
}

/// `fl(total / count)` of an f64 that is neither negative nor denormal, and a count from 1 to 4096.
#[cube]
pub(super) fn divide_wide(total: u64, count: u32) -> u64 {
    let mut quotient = 0u64;
    if total != 0u64 {
        let divisor = count as u64;
        let dividend = ((total & FRACTION_64) | ONE_64) << 10u64;
        let mut digits = dividend / divisor;
        let mut rest = dividend - digits * divisor;
        let mut exponent = (total >> 52u64) as i32;
        if leading_zeros(digits) >= 9u32 {
            // Of a large count the first digits are too few: 8 more.
            digits = (digits << 8u64) | ((rest << 8u64) / divisor);
            rest = (rest << 8u64) % divisor;
            exponent -= 8i32;
        }
        if rest != 0u64 {
            digits |= 1u64;
        }
        let length = 64i32 - leading_zeros(digits) as i32;
        let biased = exponent + length - 63i32;
        quotient = (((biased - 1i32) as u64) << 52u64) + shift_round(digits, (length - 53i32) as u32);
    }
    quotient
}

/// The code of the level nearest to an f64 that is neither negative nor denormal: `wire::level_of`.
#[cube]
pub(super) fn level_of(magnitude: u64) -> u32 {
    let exponent = (magnitude >> 52u64) as u32;
    let mut code = 0u32;
    if exponent < comptime!(1023u32 - 27u32) {
        // Steps of 2^-30.
        if magnitude != 0u64 {
            let mantissa = (magnitude & FRACTION_64) | ONE_64;
            code = shift_round(mantissa, 1045u32 - exponent) as u32;
        }
    } else {
        let rounded = shift_round(magnitude, 49u32) as u32;
        code = rounded - comptime!((1023u32 - 28u32) << 3u32);
        if code > 255u32 {
            code = 255u32;
        }
    }
    code
}

/// The f32 that a code stands for: `wire::value_of`.
#[cube]
pub(super) fn value_of(code: u32) -> u32 {
    let exponent = code >> 3u32;
    let mantissa = code & 7u32;
    let mut bits = ((exponent + 99u32) << 23u32) | (mantissa << 20u32);
    if exponent == 0u32 {
        bits = round_32(mantissa as u64, -30i32);
    }
    bits
}

/// `count · level²`, which an f64 holds exactly. `count` is at most 4096.
#[cube]
pub(super) fn square_sum(count: u32, code: u32) -> u64 {
    let mut steps = code & 7u32;
    let mut exponent = (-30i32).runtime();
    if code > 7u32 {
        steps |= 8u32;
        exponent = (code >> 3u32) as i32 - 31i32;
    }
    from_integer((count * steps * steps) as u64, 2i32 * exponent)
}

#[cfg(test)]
mod tests {
    //! The functions are plain Rust too, so that a CPU's floats can be asked what they should give.

    use super::*;
    use crate::wire;
    use proptest::prelude::*;

    /// Bits of every kind of finite f32, and of neighbours.
    fn bits() -> impl Strategy<Value = u32> {
        let finite = any::<u32>().prop_filter("finite", |bits| f32::from_bits(*bits).is_finite());
        let near = (100u32..150, any::<u32>())
            .prop_map(|(exponent, bits)| (bits & 0x8000_0000) | exponent << 23 | (bits & 0x007f_ffff));
        let round = (0u32..255, any::<u32>(), 0u32..24).prop_map(|(exponent, bits, shift)| {
            (bits & 0x8000_0000) | exponent << 23 | (0x007f_ffff << shift & 0x007f_ffff)
        });
        let tiny = any::<u32>().prop_map(|bits| bits & 0x80ff_ffff);
        prop_oneof![finite, near, round, tiny, Just(0u32), Just(0x8000_0000u32)]
    }

    /// f64s as sums of magnitudes are: neither negative nor denormal.
    fn sums() -> impl Strategy<Value = f64> {
        let sum = |(a, b, c): (u32, u32, f64)| {
            let wide = |bits: u32| f64::from(f32::from_bits(bits).abs());
            wide(a) * c + wide(b)
        };
        prop_oneof![(bits(), bits(), 0.0..1.0).prop_map(sum), Just(0.0)]
            .prop_filter("normal", |x| *x == 0.0 || x.is_normal())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn operations_round_as_floats_do(a in bits(), b in bits()) {
            let (x, y) = (f32::from_bits(a), f32::from_bits(b));
            let check = |expected: f32, got: u32| -> Result<(), TestCaseError> {
                prop_assert_eq!(expected.to_bits(), got, "{:e} and {:e}: {:e}, {:e}", x, y, expected, f32::from_bits(got));
                Ok(())
            };
            check(x + y, add(a, b))?;
            check(x * y, multiply(a, b))?;
            if y != 0.0 {
                check(x / y, divide(a, b))?;
            }
            check(0.95 * x + y, step_in_integers(a, b, 0.95))?;
            prop_assert_eq!(f64::from(x.abs()).to_bits(), widen(a & MAGNITUDE));
            prop_assert_eq!((f64::from(x) * f64::from(x)).to_bits(), square(a));
        }

        #[test]
        fn wide_operations_round_as_floats_do(a in sums(), b in sums(), count in 1u32..=4096) {
            prop_assert_eq!((a + b).to_bits(), add_wide(a.to_bits(), b.to_bits()));
            let quotient = a / f64::from(count);
            if quotient == 0.0 || quotient.is_normal() {
                prop_assert_eq!(quotient.to_bits(), divide_wide(a.to_bits(), count));
            }
            prop_assert_eq!(u32::from(wire::level_of(a)), level_of(a.to_bits()));
            let small = a % 1e-7;
            if small == 0.0 || small.is_normal() {
                prop_assert_eq!(u32::from(wire::level_of(small)), level_of(small.to_bits()));
            }
        }

        #[test]
        fn counts_are_whole_numbers(count in 0u32..1 << 24) {
            prop_assert_eq!((count as f32).to_bits(), from_count(count));
        }
    }

    fn step_in_integers(residual: u32, delta: u32, decay: f32) -> u32 {
        add(multiply(decay.to_bits(), residual), delta)
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            for other in [0.0, 1.0, -2.5, f32::MAX] {
                for (a, b) in [(bad.to_bits(), other.to_bits()), (other.to_bits(), bad.to_bits())] {
                    assert!(!f32::from_bits(add(a, b)).is_finite());
                    assert!(!f32::from_bits(multiply(a, b)).is_finite());
                }
            }
        }
    }

    #[test]
    fn levels_stand_for_what_the_format_says() {
        for code in 0..=255u8 {
            let level = wire::value_of(code);
            assert_eq!(level.to_bits(), value_of(code.into()));
            assert_eq!(u32::from(code), level_of(f64::from(level).to_bits()));
            for count in [0, 1, 64, 4096] {
                let sum = f64::from(count) * (f64::from(level) * f64::from(level));
                assert_eq!(sum.to_bits(), square_sum(count, code.into()));
            }
            if code < 255 {
                let middle = (f64::from(level) + f64::from(wire::value_of(code + 1))) / 2.0;
                assert_eq!(u32::from(wire::level_of(middle)), level_of(middle.to_bits()));
            }
        }
        assert_eq!(level_of(f64::from(f32::MAX).to_bits()), 255);
    }
}
