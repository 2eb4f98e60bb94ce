//! Numbers as people read them. Exact values are in the JSON report.

use chain_client::Amount;

/// An amount of the smallest unit in tokens, with two decimals.
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

/// The first and the last held-out loss, beside the loss of predicting by token frequency alone. In nats per token.
pub fn losses(first: f64, last: f64, unigram: f64) -> String {
    format!("held-out loss {last:.2} (start {first:.2} · unigram baseline {unigram:.2})")
}

/// `1 window`, `2 windows`.
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
}
