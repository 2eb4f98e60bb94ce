//! The median and other quantiles of values that count differently.

/// The least value at which half of the weight is reached; see [`weighted_quantile`].
pub fn weighted_median(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    weighted_quantile(values, 0.5)
}

/// The least value at which the part `rank` of the weight is reached; `None` without weight. Values that are not finite
/// and weights that are not positive do not count.
pub fn weighted_quantile(values: impl Iterator<Item = (f64, f64)>, rank: f64) -> Option<f64> {
    let mut values: Vec<(f64, f64)> =
        values.filter(|(value, weight)| value.is_finite() && 0.0 < *weight).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let enough = values.iter().map(|(_, weight)| weight).sum::<f64>() * rank;
    let mut reached = 0.0;
    let found = values.iter().find(|(_, weight)| {
        reached += weight;
        enough <= reached
    });
    // Rounded sums may end just below it.
    found.or(values.last()).map(|(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_weight_decides() {
        let median = |values: &[(f64, f64)]| weighted_median(values.iter().copied());
        assert_eq!(median(&[(3.0, 1.0), (1.0, 1.0), (2.0, 1.0)]), Some(2.0));
        assert_eq!(median(&[(2.0, 1.0), (1.0, 1.0)]), Some(1.0));
        assert_eq!(median(&[(1.0, 1.0), (2.0, 1.0), (9.0, 3.0)]), Some(9.0));
        assert_eq!(median(&[(1.0, 0.0), (f64::NAN, 5.0), (4.0, 0.1)]), Some(4.0));
        assert_eq!(median(&[(1.0, 0.0)]), None);
    }

    #[test]
    fn a_rank_of_nine_tenths_is_the_value_that_a_tenth_of_the_weight_reaches() {
        let best = |values: &[f64]| weighted_quantile(values.iter().map(|value| (*value, 1.0)), 0.9);
        assert_eq!(best(&[3.0, 1.0, 2.0]), Some(3.0));
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert_eq!(best(&ten), Some(9.0));
    }
}
