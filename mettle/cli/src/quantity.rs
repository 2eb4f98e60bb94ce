//! Reads numbers with units, as people write them: counts, sizes, rates, times. Exact, without floating point.

use protocol::params::{CHUNK_VALUES, Density};

/// Reason why a text is not a quantity. Command lines print it after flag and value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("it has no number in front; write it as in {example}")]
    NoNumber { example: &'static str },
    #[error("the unit {unit:?} is unknown; write it as in {example}")]
    Unit { unit: String, example: &'static str },
    #[error("it is no whole number of {of}")]
    NotWhole { of: &'static str },
    #[error("it is larger than {} {of}", u64::MAX)]
    TooLarge { of: &'static str },
    #[error("it must be above zero")]
    Zero,
    #[error("a density is from 1 to {CHUNK_VALUES} values of {CHUNK_VALUES}; write it as in 64 or 1/64")]
    Density,
}

/// Reads a count, such as `70e9`, `70b`, `0.4m` or `1000`.
pub fn count(text: &str) -> Result<u64, QuantityError> {
    const EXAMPLE: &str = "70e9, 70b or 400k";
    let (number, unit) = Decimal::read(text, EXAMPLE)?;
    let scale = match unit.to_ascii_lowercase().as_str() {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "b" | "g" => 1_000_000_000,
        "t" => 1_000_000_000_000,
        _ => return Err(QuantityError::Unit { unit: unit.to_owned(), example: EXAMPLE }),
    };
    number.times(scale, "units")
}

/// Reads bytes, above zero, such as `5GB`, `1.5 GiB` or `1048576`.
pub fn bytes(text: &str) -> Result<u64, QuantityError> {
    const EXAMPLE: &str = "5GB, 512MiB or 1048576";
    let (number, unit) = Decimal::read(text, EXAMPLE)?;
    let scale = match unit {
        "" => Some(1),
        unit => unit.strip_suffix('B').and_then(prefix),
    };
    let scale = scale.ok_or_else(|| QuantityError::Unit { unit: unit.to_owned(), example: EXAMPLE })?;
    above_zero(number.times(scale, "bytes")?)
}

/// Reads bits per second, above zero, such as `110Mbit`, `110Mbit/s`, `1Gbps` or `1.5GB/s`. `b` is a bit and `B` a
/// byte.
pub fn rate(text: &str) -> Result<u64, QuantityError> {
    const EXAMPLE: &str = "110Mbit, 1Gbps or 1.5GB/s";
    let (number, unit) = Decimal::read(text, EXAMPLE)?;
    let per_second = unit.strip_suffix("/s").unwrap_or(unit);
    let (bits, of) = ["bit", "bps", "b"]
        .iter()
        .find_map(|name| Some((1, per_second.strip_suffix(name)?)))
        .or_else(|| Some((8, per_second.strip_suffix('B')?)))
        .unwrap_or((0, ""));
    let scale = prefix(of).filter(|_| 0 < bits).and_then(|scale| scale.checked_mul(bits));
    let scale = scale.ok_or_else(|| QuantityError::Unit { unit: unit.to_owned(), example: EXAMPLE })?;
    above_zero(number.times(scale, "bits per second")?)
}

/// Reads milliseconds, above zero, such as `20m`, `6s`, `500ms`, `1h30m` or `2 d`.
pub fn duration(text: &str) -> Result<u64, QuantityError> {
    const EXAMPLE: &str = "20m, 90s, 500ms or 1h30m";
    let (mut rest, mut total) = (text, 0u64);
    while !rest.trim().is_empty() {
        let (number, units) = Decimal::read(rest, EXAMPLE)?;
        let end = units.find(|letter: char| !letter.is_alphabetic()).unwrap_or(units.len());
        let (unit, after) = units.split_at(end);
        let scale = match unit {
            "ms" => 1,
            "s" | "sec" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(QuantityError::Unit { unit: unit.to_owned(), example: EXAMPLE }),
        };
        let milliseconds = number.times(scale, "milliseconds")?;
        total = total.checked_add(milliseconds).ok_or(QuantityError::TooLarge { of: "milliseconds" })?;
        rest = after;
    }
    if text.trim().is_empty() {
        return Err(QuantityError::NoNumber { example: EXAMPLE });
    }
    above_zero(total)
}

/// Reads a density (PROT-7): values of each 4096, such as `64`, or a fraction of all, such as `1/64` or `64/4096`.
pub fn density(text: &str) -> Result<Density, QuantityError> {
    let number = |text: &str| text.trim().parse::<u64>().map_err(|_| QuantityError::Density);
    let (part, of) = match text.split_once('/') {
        Some((part, of)) => (number(part)?, number(of)?),
        None => (number(text)?, CHUNK_VALUES as u64),
    };
    let kept = part.checked_mul(CHUNK_VALUES as u64).filter(|kept| of != 0 && kept.is_multiple_of(of));
    let kept = kept.map(|kept| kept / of).filter(|kept| (1..=CHUNK_VALUES as u64).contains(kept));
    kept.and_then(|kept| u16::try_from(kept).ok()).map(Density).ok_or(QuantityError::Density)
}

/// Returns the factor of a prefix such as `G` or `Gi`; 1 without one.
fn prefix(text: &str) -> Option<u64> {
    const NAMES: [char; 4] = ['k', 'm', 'g', 't'];
    let mut letters = text.chars();
    let Some(first) = letters.next() else { return Some(1) };
    let power = NAMES.iter().position(|name| *name == first.to_ascii_lowercase())?;
    let power = u32::try_from(power).ok()? + 1;
    match letters.as_str() {
        "" => Some(1_000u64.pow(power)),
        "i" => Some(1_024u64.pow(power)),
        _ => None,
    }
}

fn above_zero(value: u64) -> Result<u64, QuantityError> {
    if value == 0 { Err(QuantityError::Zero) } else { Ok(value) }
}

/// `digits · 10^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decimal {
    digits: u128,
    exponent: i32,
}

impl Decimal {
    /// Reads the number at the start of a text, and returns the rest without surrounding spaces. Digits may be
    /// grouped by `_`.
    fn read<'a>(text: &'a str, example: &'static str) -> Result<(Decimal, &'a str), QuantityError> {
        let none = || QuantityError::NoNumber { example };
        let text = text.trim();
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        if !whole.starts_with(|c: char| c.is_ascii_digit()) || part.contains(['.', '_']) {
            return Err(none());
        }
        if number.ends_with('.') {
            return Err(none());
        }
        let (power, rest) = exponent(rest);
        let digits: String = whole.chars().chain(part.chars()).filter(char::is_ascii_digit).collect();
        let digits = digits.trim_start_matches('0');
        let digits = if digits.is_empty() { Ok(0) } else { digits.parse() };
        let digits = digits.map_err(|_| QuantityError::TooLarge { of: "digits" })?;
        let places = i32::try_from(part.len()).map_err(|_| none())?;
        Ok((Decimal { digits, exponent: power.saturating_sub(places) }, rest.trim()))
    }

    /// Returns `self · scale`, if it is an integer that fits into `u64`.
    fn times(self, scale: u64, of: &'static str) -> Result<u64, QuantityError> {
        let too_large = QuantityError::TooLarge { of };
        if self.digits == 0 {
            return Ok(0);
        }
        let product = self.digits.checked_mul(scale.into()).ok_or(too_large.clone())?;
        let power = 10u128.checked_pow(self.exponent.unsigned_abs());
        let value = match (power, 0 <= self.exponent) {
            (Some(power), true) => product.checked_mul(power).ok_or(too_large.clone())?,
            (None, true) => return Err(too_large),
            (Some(power), false) if product.is_multiple_of(power) => product / power,
            (_, false) => return Err(QuantityError::NotWhole { of }),
        };
        u64::try_from(value).map_err(|_| too_large)
    }
}

/// Reads `e9`, `E-3` or `e+9` at the start of a text. Returns the power of ten, or 0 without one, and the rest.
fn exponent(text: &str) -> (i32, &str) {
    let Some(after) = text.strip_prefix(['e', 'E']) else { return (0, text) };
    let (sign, digits) = match after.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, after.strip_prefix('+').unwrap_or(after)),
    };
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    match digits[..end].parse::<i32>() {
        Ok(power) => (power.saturating_mul(sign), &digits[end..]),
        Err(_) => (0, text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_exactly() {
        for (text, value) in [
            ("70e9", 70_000_000_000),
            ("70E+9", 70_000_000_000),
            ("70b", 70_000_000_000),
            ("7.5B", 7_500_000_000),
            ("0.4m", 400_000),
            ("400k", 400_000),
            ("69_503_033_344", 69_503_033_344),
            ("69503033344", 69_503_033_344),
            ("1t", 1_000_000_000_000),
            ("1500e-3k", 1_500),
            ("0", 0),
            ("0e400", 0),
            ("18446744073709551615", u64::MAX),
            // Not exact in f64.
            ("9007199254740993", 9_007_199_254_740_993),
        ] {
            assert_eq!(count(text), Ok(value), "{text}");
        }
        let not_whole = Err(QuantityError::NotWhole { of: "units" });
        let too_large = Err(QuantityError::TooLarge { of: "units" });
        assert_eq!(count("0.5"), not_whole);
        assert_eq!(count("1e-1"), not_whole);
        assert_eq!(count("1e-400"), not_whole);
        assert_eq!(count("18446744073709551616"), too_large);
        assert_eq!(count("1e400"), too_large);
        assert_eq!(
            count("1e99999999999"),
            Err(QuantityError::Unit { unit: "e99999999999".into(), example: "70e9, 70b or 400k" })
        );
        for wrong in
            ["", " ", "b", "NaN", "inf", "-1", "1..5", "1.5.2", ".5", "5.", "_1", "70x", "7 0", "1,000"]
        {
            assert!(count(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, value) in [
            ("5GB", 5_000_000_000),
            ("5gB", 5_000_000_000),
            ("1.5GB", 1_500_000_000),
            ("512 MiB", 512 << 20),
            ("7B", 7),
            ("1048576", 1 << 20),
        ] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
        for wrong in ["", "GB", "5gb", "-1", "0", "0.5B", "99999999999GB", "5G", "5GBit"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_are_bits_or_bytes_per_second() {
        for (text, value) in [
            ("110Mbit", 110_000_000),
            ("110Mbit/s", 110_000_000),
            ("110 mbit/s", 110_000_000),
            ("110Mbps", 110_000_000),
            ("110Mb/s", 110_000_000),
            ("1Gbit", 1_000_000_000),
            ("1.5GB/s", 12_000_000_000),
            ("1.5GB", 12_000_000_000),
            ("64KiB/s", 8 << 16),
            ("9600bit", 9_600),
            ("400Gbit", 400_000_000_000),
        ] {
            assert_eq!(rate(text), Ok(value), "{text}");
        }
        assert_eq!(rate("0Mbit"), Err(QuantityError::Zero));
        assert_eq!(rate("0.5bit"), Err(QuantityError::NotWhole { of: "bits per second" }));
        assert_eq!(rate("99999999999Tbit"), Err(QuantityError::TooLarge { of: "bits per second" }));
        for wrong in ["", "110", "Mbit", "NaN", "110M", "110Mbit/m", "110xbit", "-1Mbit"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_may_have_several_units() {
        for (text, value) in [
            ("20m", 1_200_000),
            ("20min", 1_200_000),
            ("6s", 6_000),
            ("500ms", 500),
            ("0.5s", 500),
            ("1h30m", 5_400_000),
            ("1h 30 min", 5_400_000),
            ("2 d", 172_800_000),
        ] {
            assert_eq!(duration(text), Ok(value), "{text}");
        }
        assert_eq!(duration("0s"), Err(QuantityError::Zero));
        assert_eq!(duration("0.1ms"), Err(QuantityError::NotWhole { of: "milliseconds" }));
        for wrong in ["", "20", "m", "NaN", "20y", "20m5", "-1s", "9999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_density_is_a_number_of_4096_or_a_fraction() {
        for (text, value) in
            [("64", 64), ("1/64", 64), ("64/4096", 64), ("1/4", 1024), ("4096", 4096), ("1/1", 4096)]
        {
            assert_eq!(density(text), Ok(Density(value)), "{text}");
        }
        for wrong in ["", "0", "4097", "1/3", "1/0", "0/64", "2/1", "1/8192", "0.5", "NaN", "-1", "1/64/2"] {
            assert_eq!(density(wrong), Err(QuantityError::Density), "{wrong}");
        }
    }
}
