//! A run's terms as people read and write them: by name, amounts in MTL, shares in percent.
//!
//! One table says which terms there are and what kind of value each has; showing, setting and reading a file all go by it.

use crate::{Amount, AmountError, call::percent};
use protocol::{
    Terms,
    params::{ParamsError, Permille},
};
use serde_json::Value;

/// Where a term's value stands, and what it is.
enum Slot<'a> {
    Small(&'a mut u16),
    Count(&'a mut u32),
    Money(&'a mut u128),
    Share(&'a mut Permille),
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    #[error("there is no term `{name}`. The terms are: {}", NAMES.join(", "))]
    Unknown { name: String },
    #[error("{name}: `{text}` is not a whole number from 0 to {max}")]
    Number { name: &'static str, text: String, max: u32 },
    #[error("{name}: `{text}` is no share. Write thousandths, as in `125`, or percent, as in `12.5 %`")]
    Share { name: &'static str, text: String },
    #[error("{name}: {source}")]
    Amount { name: &'static str, source: AmountError },
    #[error("write a term as in `--set miner_seats_max=128`, not `{0}`")]
    NoValue(String),
    #[error("{0}: a term is a number or a text")]
    Value(String),
    #[error("terms are a JSON object, as in {{ \"miner_seats_max\": 128 }}")]
    NoObject,
    #[error("these terms contradict each other: {0}")]
    Invalid(#[from] ParamsError),
}

/// Every term, in the order of [`Terms`].
const NAMES: [&str; 17] = [
    "electorate_max",
    "absence_windows",
    "quorum",
    "validator_stake_min",
    "miner_stake_min",
    "miner_seats_max",
    "validator_seats_max",
    "immunity_windows",
    "unbonding_windows",
    "seat_price_min",
    "equivocation_slash",
    "emission_per_epoch",
    "emission_halving_epochs",
    "shares.miners",
    "shares.validators",
    "shares.owner",
    "shares.burn",
];

/// In the order of [`NAMES`].
fn slots(terms: &mut Terms) -> [Slot<'_>; 17] {
    [
        Slot::Small(&mut terms.electorate_max),
        Slot::Count(&mut terms.absence_windows),
        Slot::Share(&mut terms.quorum),
        Slot::Money(&mut terms.validator_stake_min),
        Slot::Money(&mut terms.miner_stake_min),
        Slot::Small(&mut terms.miner_seats_max),
        Slot::Small(&mut terms.validator_seats_max),
        Slot::Count(&mut terms.immunity_windows),
        Slot::Count(&mut terms.unbonding_windows),
        Slot::Money(&mut terms.seat_price_min),
        Slot::Share(&mut terms.equivocation_slash),
        Slot::Money(&mut terms.emission_per_epoch),
        Slot::Count(&mut terms.emission_halving_epochs),
        Slot::Share(&mut terms.shares.miners),
        Slot::Share(&mut terms.shares.validators),
        Slot::Share(&mut terms.shares.owner),
        Slot::Share(&mut terms.shares.burn),
    ]
}

/// Every term and its value, in the order of [`Terms`].
pub fn lines(terms: &Terms) -> Vec<(&'static str, String)> {
    let mut terms = *terms;
    let text = |slot: Slot<'_>| match slot {
        Slot::Small(number) => number.to_string(),
        Slot::Count(number) => number.to_string(),
        Slot::Money(units) => Amount(*units).to_string(),
        Slot::Share(share) => percent(*share),
    };
    NAMES.into_iter().zip(slots(&mut terms).map(text)).collect()
}

/// What differs between two sets of terms: name, old value, new value.
pub fn changes(from: &Terms, to: &Terms) -> Vec<(&'static str, String, String)> {
    let pairs = lines(from).into_iter().zip(lines(to));
    pairs.filter(|((_, old), (_, new))| old != new).map(|((name, old), (_, new))| (name, old, new)).collect()
}

/// Sets one term, given as `name=value`. The whole is not validated: several may have to change together.
pub fn set(terms: &mut Terms, assignment: &str) -> Result<(), TermsError> {
    let (name, text) =
        assignment.split_once('=').ok_or_else(|| TermsError::NoValue(assignment.to_owned()))?;
    set_text(terms, name.trim(), text.trim())
}

fn set_text(terms: &mut Terms, wanted: &str, text: &str) -> Result<(), TermsError> {
    let found = NAMES.into_iter().zip(slots(terms)).find(|(name, _)| *name == wanted);
    let (name, slot) = found.ok_or_else(|| TermsError::Unknown { name: wanted.to_owned() })?;
    let number = |max: u32| TermsError::Number { name, text: text.to_owned(), max };
    match slot {
        Slot::Small(value) => *value = text.parse().map_err(|_| number(u16::MAX.into()))?,
        Slot::Count(value) => *value = text.parse().map_err(|_| number(u32::MAX))?,
        Slot::Money(value) => {
            *value = text.parse::<Amount>().map_err(|source| TermsError::Amount { name, source })?.0;
        }
        Slot::Share(value) => {
            *value = share(text).ok_or_else(|| TermsError::Share { name, text: text.to_owned() })?;
        }
    }
    Ok(())
}

/// Reads thousandths, `125`, or percent, `12.5 %`. Nothing above 1000 thousandths.
pub fn share(text: &str) -> Option<Permille> {
    let text = text.trim();
    let thousandths = match text.strip_suffix('%') {
        None => text.parse::<u16>().ok()?,
        Some(percents) => {
            let (whole, tenth) = percents.trim().split_once('.').unwrap_or((percents.trim(), "0"));
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            if tenth.len() != 1 || !digits(tenth) || !digits(whole) {
                return None;
            }
            whole.parse::<u16>().ok()?.checked_mul(10)?.checked_add(tenth.parse().ok()?)?
        }
    };
    (thousandths <= 1000).then_some(Permille(thousandths))
}

/// Lays a JSON object over `terms`: what it does not name stays. Texts are read as by [`set`]; numbers are in the smallest
/// unit and in thousandths, as [`Terms`] itself is written. `shares` may be an object of its own.
pub fn lay_over(terms: &mut Terms, json: &Value) -> Result<(), TermsError> {
    let object = json.as_object().ok_or(TermsError::NoObject)?;
    for (name, value) in object {
        match value {
            Value::Object(inner) if name == "shares" => {
                for (name, value) in inner {
                    set_value(terms, &format!("shares.{name}"), value)?;
                }
            }
            value => set_value(terms, name, value)?,
        }
    }
    Ok(())
}

fn set_value(terms: &mut Terms, name: &str, value: &Value) -> Result<(), TermsError> {
    match value {
        Value::String(text) => set_text(terms, name, text),
        Value::Number(number) => {
            let is_money = |slot: &Slot<'_>| matches!(slot, Slot::Money(_));
            let mut probe = *terms;
            let money = NAMES
                .into_iter()
                .zip(slots(&mut probe))
                .any(|(known, slot)| known == name && is_money(&slot));
            let units = number.as_u64().ok_or_else(|| TermsError::Value(name.to_owned()))?;
            let text = if money { Amount(units.into()).to_string() } else { units.to_string() };
            set_text(terms, name, &text)
        }
        _ => Err(TermsError::Value(name.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_term_reads_back_what_it_shows() {
        let from = Terms::default();
        for (name, value) in lines(&from) {
            let mut to = from;
            set(&mut to, &format!("{name}={value}")).unwrap();
            assert_eq!(to, from, "{name}={value}");
        }
    }

    #[test]
    fn no_term_is_left_out() {
        // As many as the type has fields, the shares counted singly.
        let Value::Object(fields) = serde_json::to_value(Terms::default()).unwrap() else { panic!() };
        let shares = fields["shares"].as_object().unwrap();
        assert_eq!(NAMES.len(), fields.len() - 1 + shares.len());
        for name in NAMES {
            let known = match name.strip_prefix("shares.") {
                Some(share) => shares.contains_key(share),
                None => fields.contains_key(name),
            };
            assert!(known, "{name}");
        }
    }

    #[test]
    fn setting_a_term_sets_that_one() {
        for (assignment, expected) in [
            ("miner_seats_max=7", ("miner_seats_max", "192", "7")),
            ("unbonding_windows = 9", ("unbonding_windows", "200", "9")),
            ("validator_stake_min=2.5", ("validator_stake_min", "1 MTL", "2.5 MTL")),
            ("quorum=66.7 %", ("quorum", "50 %", "66.7 %")),
            ("shares.burn=5", ("shares.burn", "0 %", "0.5 %")),
        ] {
            let mut terms = Terms::default();
            set(&mut terms, assignment).unwrap();
            let (name, old, new) = expected;
            assert_eq!(changes(&Terms::default(), &terms), [(name, old.into(), new.into())], "{assignment}");
        }
    }

    #[test]
    fn what_is_no_term_or_no_value_of_it_is_refused_by_name() {
        let refused = |assignment: &str| set(&mut Terms::default(), assignment).unwrap_err().to_string();
        assert!(refused("density=3").contains("no term `density`"));
        assert!(refused("density=3").contains("shares.miners"));
        assert!(refused("quorum").contains("--set"));
        assert!(refused("quorum=1001").contains("12.5 %"));
        assert!(refused("quorum=100.1 %").contains("no share"));
        assert!(refused("quorum=1.25 %").contains("no share"));
        assert!(refused("quorum=+5 %").contains("no share"));
        assert!(refused("miner_seats_max=65536").contains("65535"));
        assert!(refused("seat_price_min=cheap").contains("seat_price_min"));
    }

    #[test]
    fn a_file_changes_what_it_names_and_nothing_else() {
        let mut terms = Terms::default();
        let json = serde_json::json!({
            "seat_price_min": 5, "validator_stake_min": "3 MTL", "quorum": "60 %",
            "shares": { "owner": 90, "burn": "1 %" },
        });
        lay_over(&mut terms, &json).unwrap();
        let names: Vec<&str> = changes(&Terms::default(), &terms).iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["quorum", "validator_stake_min", "seat_price_min", "shares.owner", "shares.burn"]);
        assert_eq!((terms.seat_price_min, terms.shares.burn), (5, Permille(10)));
        assert_eq!(terms.validate(), Ok(()));

        let refused = |json: Value| lay_over(&mut Terms::default(), &json).unwrap_err();
        assert_eq!(refused(serde_json::json!([])), TermsError::NoObject);
        assert!(matches!(refused(serde_json::json!({ "quorum": true })), TermsError::Value(_)));
        assert!(matches!(refused(serde_json::json!({ "quorum": -1 })), TermsError::Value(_)));
        assert!(matches!(refused(serde_json::json!({ "shares": { "x": 1 } })), TermsError::Unknown { .. }));
    }

    #[test]
    fn the_terms_as_their_own_type_writes_them_are_read_back() {
        let mut terms = Terms { quorum: Permille(1), ..Terms::default() };
        lay_over(&mut terms, &serde_json::to_value(Terms::default()).unwrap()).unwrap();
        assert_eq!(terms, Terms::default());
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = set(&mut Terms::default(), &text);
            let _ = share(&text);
        }
    }
}
