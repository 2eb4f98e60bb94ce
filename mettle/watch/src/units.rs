//! Formats numbers for people. Exact values are in the JSON report.

use chain_client::Amount;
use dataset::LossEstimate;
use std::time::Duration;

/// Formats an amount of the smallest unit in tokens, with two decimals.
pub fn amount(smallest_units: u128) -> String {
    format!("{:.2}", Amount(smallest_units))
}

pub fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} bytes"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats a loss with its standard error, in nats per token.
pub fn loss(estimate: LossEstimate) -> String {
    format!("{:.2} ± {:.2}", estimate.loss, estimate.standard_error)
}

/// Formats a count with a prefix: `12.3 M`.
pub fn thousands(count: f64) -> String {
    match count {
        count if count < 1e3 => format!("{count:.0}"),
        count if count < 1e6 => format!("{:.1} k", count / 1e3),
        count if count < 1e9 => format!("{:.1} M", count / 1e6),
        _ => format!("{:.2} G", count / 1e9),
    }
}

/// Formats a time in its two largest units.
pub fn duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

/// Formats a count with its noun: `1 window`, `2 windows`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_has_two_decimals_and_is_never_rounded_up() {
        assert_eq!(amount(0), "0.00 MTL");
        assert_eq!(amount(297_398_538_212_279), "297.39 MTL");
        assert_eq!(amount(999_999_999_999), "0.99 MTL");
        assert_eq!(amount(1_234_050_000_000_000), "1234.05 MTL");
    }

    #[test]
    fn bytes_have_a_unit_that_fits() {
        assert_eq!([bytes(999), bytes(91_614), bytes(12_345_678)], ["999 bytes", "91.6 kB", "12.3 MB"]);
        assert_eq!(bytes(5_430_000_000), "5.43 GB");
    }

    #[test]
    fn counts_and_times_have_units_that_fit() {
        assert_eq!(
            [999.0, 4_130.0, 12_345_678.0, 2.5e9].map(thousands),
            ["999", "4.1 k", "12.3 M", "2.50 G"]
        );
        assert_eq!(
            [59, 61, 7_320].map(|s| duration(Duration::from_secs(s))),
            ["59 s", "1 min 1 s", "2 h 2 min"]
        );
    }
}
