//! The median of values that count differently.

/// The least value at which half of the weight is reached; `None` without weight. Values that are not finite and
/// weights that are not positive do not count.
pub fn weighted_median(values: impl Iterator<Item = (f64, f64)>) -> Option<f64> {
    let mut values: Vec<(f64, f64)> =
        values.filter(|(value, weight)| value.is_finite() && 0.0 < *weight).collect();
    values.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
    let half = values.iter().map(|(_, weight)| weight).sum::<f64>() / 2.0;
    let mut reached = 0.0;
    let median = values.iter().find(|(_, weight)| {
        reached += weight;
        half <= reached
    });
    // Rounded sums may end just below the half.
    median.or(values.last()).map(|(value, _)| *value)
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
}
