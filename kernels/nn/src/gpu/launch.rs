//! Common code of launches: number of cubes, width of vectors, sums over a cube, and `eˣ` and `ln`.
//!
//! On an NVIDIA GPU CubeCL's `exp` and `ln` come from `libdevice`, which is part of CUDA's toolkit, not of the driver.
//! A kernel that calls them does not compile on a machine with only the driver. Sums, products, division, roots and
//! rounding are the GPU's own instructions.

use super::array::{Array, GpuError, Result, VALUES_MAX};
use cubecl::prelude::*;

/// Default number of units of a cube.
pub(crate) const UNITS: usize = 256;
/// Maximum number of cubes along one side of a grid, on any device.
const SIDE_MAX: usize = 65_535;
/// ln 2 in two parts; the first is short enough that its product with a whole number is exact.
const LN2_HIGH: f32 = 355.0 / 512.0;
const LN2_LOW: f32 = -2.121_944_4e-4;
const LOG2_E: f32 = std::f32::consts::LOG2_E;
const SQRT_2: f32 = std::f32::consts::SQRT_2;
/// Number of partial results that a cube adds up last.
const LAST: usize = 16;

/// Returns a grid of at least `cubes` cubes, in as many rows as needed. A kernel must ignore the excess ones.
pub(crate) fn grid(cubes: usize) -> CubeCount {
    let rows = cubes.div_ceil(SIDE_MAX).max(1);
    CubeCount::Static(cubes.div_ceil(rows).max(1) as u32, rows as u32, 1)
}

/// Returns a grid with at least `count` units.
pub(crate) fn grid_of_units(count: usize) -> CubeCount {
    grid(count.div_ceil(UNITS))
}

/// Returns the dimensions of a cube of `units` units.
pub(crate) fn line(units: usize) -> CubeDim {
    CubeDim::new_1d(units as u32)
}

/// Returns the largest vector length, at most four, that divides all these widths.
pub(crate) fn lanes(widths: &[usize]) -> usize {
    [4, 2].into_iter().find(|lanes| widths.iter().all(|width| width.is_multiple_of(*lanes))).unwrap_or(1)
}

/// Returns the units of a cube for a row of `vectors`: a power of two from 32 to [`UNITS`].
pub(crate) fn units_for(vectors: usize) -> usize {
    vectors.next_power_of_two().clamp(32, UNITS)
}

/// Checks that two arrays hold the same kind of values.
pub(crate) fn same(one: &Array, other: &Array) -> Result {
    one.expect_precision(other.precision())
}

/// Returns `rows · width`, if an array can have that many values.
pub(crate) fn area(rows: usize, width: usize) -> Result<usize> {
    rows.checked_mul(width).filter(|len| *len <= VALUES_MAX).ok_or(GpuError::TooLong { max: VALUES_MAX })
}

/// Returns the sum of a vector's values, in their order.
#[cube]
pub(crate) fn across<N: Size>(vector: Vector<f32, N>) -> f32 {
    let mut sum = vector.extract(0usize);
    #[unroll]
    for lane in 1..N::value() {
        sum += vector.extract(lane);
    }
    sum
}

/// Adds up one value per unit, always in the same order. All units receive the sum.
#[cube]
pub(crate) fn cube_sum(value: f32, #[comptime] units: usize) -> f32 {
    let mut values = Shared::<[f32]>::new_slice(units);
    let mut sums = Shared::<[f32]>::new_slice(LAST);
    let unit = UNIT_POS as usize;
    values[unit] = value;
    sync_cube();
    if unit < LAST {
        let mut sum = values[unit];
        for turn in 1..comptime!(units / LAST) {
            sum += values[turn * LAST + unit];
        }
        sums[unit] = sum;
    }
    sync_cube();
    let mut sum = sums[0];
    for last in 1..LAST {
        sum += sums[last];
    }
    sum
}

/// Returns the largest value of a cube's units, ignoring NaNs, to all units.
#[cube]
pub(crate) fn cube_max(value: f32, #[comptime] units: usize) -> f32 {
    let mut values = Shared::<[f32]>::new_slice(units);
    let mut largest = Shared::<[f32]>::new_slice(LAST);
    let unit = UNIT_POS as usize;
    values[unit] = value;
    sync_cube();
    if unit < LAST {
        let mut most = values[unit];
        for turn in 1..comptime!(units / LAST) {
            most = max(most, values[turn * LAST + unit]);
        }
        largest[unit] = most;
    }
    sync_cube();
    let mut most = largest[0];
    for last in 1..LAST {
        most = max(most, largest[last]);
    }
    most
}

/// Computes `eˣ` for `x` up to 88; 0 below −87, where the result would be subnormal. NaN stays NaN.
///
/// It uses the polynomial of [`cross_entropy::exp`](crate::layers::cross_entropy::exp). Its error is a few units in
/// the last place, plus `|x|·2⁻²⁴` if the driver's compiler adds the two parts of ln 2 before the multiplication, as
/// Mesa's does.
#[cube]
pub(crate) fn exp<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let least = Vector::<f32, N>::new(-87.0f32);
    let is_less = x.less_than(&least);
    let x = select_many(is_less, least, x);
    // The integer nearest to x / ln 2. A NaN becomes a number here, and a NaN again in r.
    let n = (x * Vector::new(LOG2_E) + Vector::new(0.5f32)).floor();
    let n = n.clamp(Vector::new(-126.0f32), Vector::new(127.0f32));
    let r = x - n * Vector::new(LN2_HIGH) - n * Vector::new(LN2_LOW);

    let mut polynomial = Vector::<f32, N>::new(1.987_569_1e-4f32);
    polynomial = polynomial * r + Vector::new(1.398_199_9e-3f32);
    polynomial = polynomial * r + Vector::new(8.333_452e-3f32);
    polynomial = polynomial * r + Vector::new(4.166_579_6e-2f32);
    polynomial = polynomial * r + Vector::new(1.666_666_5e-1f32);
    polynomial = polynomial * r + Vector::new(5.000_000_3e-1f32);
    let e_to_r = polynomial * r * r + r + Vector::new(1.0f32);

    let exponent = Vector::<u32, N>::cast_from(n + Vector::new(127.0f32));
    let scale = Vector::<f32, N>::reinterpret(exponent << Vector::new(23u32));
    select_many(is_less, Vector::new(0.0f32), e_to_r * scale)
}

/// Computes [`exp`] of one value.
#[cube]
pub(crate) fn exp_of(x: f32) -> f32 {
    exp::<Const<1>>(Vector::new(x)).extract(0usize)
}

/// Computes the natural logarithm of a normal number above 0, by the polynomial of Moshier's Cephes library (`logf`),
/// within two units in the last place. Infinity and NaN are preserved.
#[cube]
pub(crate) fn ln(x: f32) -> f32 {
    let bits = u32::reinterpret(x);
    let mut exponent = f32::cast_from(bits >> 23u32) - 127.0f32;
    let mut mantissa = f32::reinterpret((bits & 0x007f_ffffu32) | 0x3f80_0000u32);
    if mantissa > SQRT_2 {
        mantissa *= 0.5f32;
        exponent += 1.0f32;
    }
    let f = mantissa - 1.0f32;
    let mut polynomial = 7.037_683_6e-2f32;
    polynomial = polynomial * f - 1.151_461e-1f32;
    polynomial = polynomial * f + 1.167_699_9e-1f32;
    polynomial = polynomial * f - 1.242_014_1e-1f32;
    polynomial = polynomial * f + 1.424_932_3e-1f32;
    polynomial = polynomial * f - 1.666_805_7e-1f32;
    polynomial = polynomial * f + 2.000_071_5e-1f32;
    polynomial = polynomial * f - 2.499_999_4e-1f32;
    polynomial = polynomial * f + 3.333_333e-1f32;
    let square = f * f;
    let rest = polynomial * f * square + exponent * LN2_LOW - 0.5f32 * square;
    let mut result = x;
    if x < f32::new(f32::MAX) {
        result = f + rest + exponent * LN2_HIGH;
    }
    result
}
