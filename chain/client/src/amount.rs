//! Amounts of the chain's token.

use codec::Encode;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt, str::FromStr};

/// Number of decimal places of one MTL.
pub const DECIMALS: u32 = 12;

/// Symbol of the token.
pub const SYMBOL: &str = "MTL";

const UNITS_PER_TOKEN: u128 = 10u128.pow(DECIMALS);

/// An amount of MTL, counted in its smallest unit, 10⁻¹² MTL.
///
/// Written and parsed as `12.5 MTL`. A number without a unit is in MTL too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode)]
pub struct Amount(pub u128);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AmountError {
    #[error("`{0}` is not an amount. Write it as in `12.5 MTL`")]
    NotANumber(String),
    #[error("`{0}` has more than {DECIMALS} decimal places, and MTL has no smaller part")]
    TooFine(String),
    #[error("`{0}` is more MTL than an account can hold")]
    TooLarge(String),
}

impl Amount {
    pub const ZERO: Amount = Amount(0);

    /// Returns an amount of whole MTL.
    pub const fn mtl(tokens: u64) -> Amount {
        // 2^64 · 10^12 < 2^128, so this never saturates.
        Amount((tokens as u128).saturating_mul(UNITS_PER_TOKEN))
    }

    pub fn saturating_add(self, other: Amount) -> Amount {
        Amount(self.0.saturating_add(other.0))
    }

    pub fn saturating_sub(self, other: Amount) -> Amount {
        Amount(self.0.saturating_sub(other.0))
    }
}

/// Exact by default. With a precision, as in `{:.2}`, rounds down to that many decimals, for tables.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / UNITS_PER_TOKEN, self.0 % UNITS_PER_TOKEN);
        if let Some(decimals @ 1..) = f.precision() {
            let decimals = decimals.min(DECIMALS as usize);
            let part = format!("{part:0width$}", width = DECIMALS as usize);
            let shown = &part[..decimals];
            // A small amount must not look like zero.
            if self.0 > 0 && whole == 0 && shown.bytes().all(|digit| digit == b'0') {
                return write!(f, "<0.{:0>decimals$} {SYMBOL}", 1);
            }
            return write!(f, "{whole}.{shown} {SYMBOL}");
        }
        let text = if part == 0 {
            format!("{whole} {SYMBOL}")
        } else {
            let part = format!("{part:0width$}", width = DECIMALS as usize);
            format!("{whole}.{} {SYMBOL}", part.trim_end_matches('0'))
        };
        f.pad(&text)
    }
}

impl FromStr for Amount {
    type Err = AmountError;

    fn from_str(text: &str) -> Result<Amount, AmountError> {
        let not_a_number = || AmountError::NotANumber(text.to_owned());
        let trimmed = text.trim();
        let digits_end = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(digits_end);
        let unit = unit.trim();
        if !unit.is_empty() && !unit.eq_ignore_ascii_case(SYMBOL) {
            return Err(not_a_number());
        }

        let (whole, part) = match number.split_once('.') {
            Some((whole, part)) if !part.is_empty() => (whole, part),
            Some(_) => return Err(not_a_number()),
            None => (number, ""),
        };
        if whole.is_empty() || part.contains('.') {
            return Err(not_a_number());
        }
        let part = part.trim_end_matches('0');
        if part.len() > DECIMALS as usize {
            return Err(AmountError::TooFine(text.to_owned()));
        }

        let too_large = || AmountError::TooLarge(text.to_owned());
        let whole: u128 = whole.parse().map_err(|_| too_large())?;
        let part: u128 =
            format!("{part:0<width$}", width = DECIMALS as usize).parse().map_err(|_| not_a_number())?;
        let units = whole.checked_mul(UNITS_PER_TOKEN).and_then(|units| units.checked_add(part));
        units.map(Amount).ok_or_else(too_large)
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Amount, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, units: u128) {
        assert_eq!(text.parse(), Ok(Amount(units)), "{text}");
    }

    #[test]
    fn an_amount_is_read_with_or_without_its_unit() {
        check("12.5 MTL", 12_500_000_000_000);
        check("12.5MTL", 12_500_000_000_000);
        check(" 12.5 mtl ", 12_500_000_000_000);
        check("12.5", 12_500_000_000_000);
        check("0", 0);
        check("1", 1_000_000_000_000);
        check("0.000000000001", 1);
        check("1.50000000000000000", 1_500_000_000_000);
        check("340282366920938463463374607.431768211455", u128::MAX);
    }

    #[test]
    fn a_text_that_is_no_amount_is_refused_with_a_reason() {
        for text in ["", "MTL", ".5", "5.", "1.2.3", "-1", "+1", "1e3", "1,5", "12 DOT", "1 000", "0x10"] {
            assert_eq!(text.parse::<Amount>(), Err(AmountError::NotANumber(text.into())), "{text}");
        }
        let fine = "0.0000000000001";
        assert_eq!(fine.parse::<Amount>(), Err(AmountError::TooFine(fine.into())));
        for text in ["340282366920938463463374607.431768211456", "999999999999999999999999999999999999999999"]
        {
            assert_eq!(text.parse::<Amount>(), Err(AmountError::TooLarge(text.into())));
        }
    }

    #[test]
    fn an_amount_is_shown_without_needless_zeros() {
        assert_eq!(Amount::mtl(3).to_string(), "3 MTL");
        assert_eq!(Amount(1_050_000_000_000).to_string(), "1.05 MTL");
        assert_eq!(Amount(1).to_string(), "0.000000000001 MTL");
        assert_eq!(format!("{:>8}", Amount::mtl(3)), "   3 MTL");
        assert_eq!(format!("{:.2}", Amount::mtl(3)), "3.00 MTL");
        assert_eq!(format!("{:.2}", Amount(1_059_999_999_999)), "1.05 MTL");
        assert_eq!(format!("{:.2}", Amount(9_999_999_999)), "<0.01 MTL");
        assert_eq!(format!("{:.2}", Amount::ZERO), "0.00 MTL");
        assert_eq!(serde_json::to_string(&Amount::mtl(3)).unwrap(), "\"3 MTL\"");
    }

    proptest! {
        #[test]
        fn an_amount_reads_back_what_it_shows(units: u128) {
            prop_assert_eq!(Amount(units).to_string().parse(), Ok(Amount(units)));
            let json = serde_json::to_string(&Amount(units)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Amount>(&json).unwrap(), Amount(units));
        }

        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = text.parse::<Amount>();
        }
    }
}
