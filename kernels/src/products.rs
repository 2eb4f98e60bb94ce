//! Products of one vector with several others in one pass.

use crate::lanes::{LANES, widest};

widest! {
    /// Adds to each lane of `sums` the products of `values` with that lane of `others`, in the order of the values.
    /// The longer of `values` and `others` is not read to its end.
    pub fn add_products(values: &[f32], others: &[[f64; LANES]], sums: &mut [f64; LANES]) = add;
}

#[inline(always)]
fn add(values: &[f32], others: &[[f64; LANES]], sums: &mut [f64; LANES]) {
    // The copy stays in registers.
    let mut lanes = *sums;
    for (value, others) in values.iter().zip(others) {
        let value = f64::from(*value);
        for (lane, other) in lanes.iter_mut().zip(others) {
            *lane += value * other;
        }
    }
    *sums = lanes;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Width, limit};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn each_lane_is_a_sum_in_order(
            values in prop::collection::vec(any::<f32>(), 0..40),
            others in prop::collection::vec(prop::array::uniform16(any::<f32>()), 0..40),
            start in any::<f64>(),
        ) {
            let others: Vec<[f64; LANES]> = others.iter().map(|row| row.map(f64::from)).collect();
            for width in Width::ALL {
                limit(width);
                let mut sums = [start; LANES];
                add_products(&values, &others, &mut sums);
                for (lane, sum) in sums.iter().enumerate() {
                    let mut expected = start;
                    for (value, row) in values.iter().zip(&others) {
                        expected += f64::from(*value) * row[lane];
                    }
                    prop_assert_eq!(sum.to_bits(), expected.to_bits());
                }
            }
            limit(Width::Avx512);
        }
    }
}
