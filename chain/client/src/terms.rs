//! Text form of a run's economic terms: names, amounts in MTL, shares in percent.

use crate::{Amount, AmountError};
use protocol::{
    Terms,
    params::{ParamsError, Permille, TermsLimits},
};
use serde_json::Value as Json;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    #[error("there is no term `{name}`. The terms are: {}", names())]
    Unknown { name: String },
    #[error("{name}: `{text}` is not a whole number from 0 to {max}")]
    Number { name: &'static str, text: String, max: u32 },
    #[error("{name}: `{text}` is not a share. Write thousandths, as in `125`, or percent, as in `12.5 %`")]
    Share { name: &'static str, text: String },
    #[error("{name}: {source}")]
    Amount { name: &'static str, source: AmountError },
    #[error("write a term as in `--set miner_seats_max=128`, not `{0}`")]
    NoValue(String),
    #[error("{0}: a term is a number or a string")]
    Value(String),
    #[error("terms are a JSON object, as in {{ \"miner_seats_max\": 128 }}")]
    NoObject,
    #[error("these terms contradict each other: {0}")]
    Invalid(#[from] ParamsError),
}

/// A term with a text form.
enum Field<'a> {
    Small(&'a mut u16),
    Number(&'a mut u32),
    Amount(&'a mut u128),
    Share(&'a mut Permille),
}

impl Field<'_> {
    fn show(&self) -> String {
        match self {
            Field::Small(number) => number.to_string(),
            Field::Number(number) => number.to_string(),
            Field::Amount(amount) => Amount(**amount).to_string(),
            Field::Share(share) => percent(**share),
        }
    }

    fn read(self, name: &'static str, text: &str) -> Result<(), TermsError> {
        let no_number = |max: u32| TermsError::Number { name, text: text.to_owned(), max };
        match self {
            Field::Small(number) => *number = text.parse().map_err(|_| no_number(u16::MAX.into()))?,
            Field::Number(number) => *number = text.parse().map_err(|_| no_number(u32::MAX))?,
            Field::Amount(amount) => {
                *amount = text.parse::<Amount>().map_err(|source| TermsError::Amount { name, source })?.0;
            }
            Field::Share(thousandths) => {
                *thousandths = share(text).ok_or(TermsError::Share { name, text: text.to_owned() })?;
            }
        }
        Ok(())
    }
}

/// Returns every term by name, in the order of [`Terms`].
fn fields(terms: &mut Terms) -> [(&'static str, Field<'_>); 17] {
    [
        ("active_set_max", Field::Small(&mut terms.active_set_max)),
        ("absence_windows", Field::Number(&mut terms.absence_windows)),
        ("quorum", Field::Share(&mut terms.quorum)),
        ("validator_stake_min", Field::Amount(&mut terms.validator_stake_min)),
        ("miner_stake_min", Field::Amount(&mut terms.miner_stake_min)),
        ("miner_seats_max", Field::Small(&mut terms.miner_seats_max)),
        ("validator_seats_max", Field::Small(&mut terms.validator_seats_max)),
        ("immunity_windows", Field::Number(&mut terms.immunity_windows)),
        ("unbonding_windows", Field::Number(&mut terms.unbonding_windows)),
        ("seat_price_min", Field::Amount(&mut terms.seat_price_min)),
        ("equivocation_slash", Field::Share(&mut terms.equivocation_slash)),
        ("emission_per_epoch", Field::Amount(&mut terms.emission_per_epoch)),
        ("emission_halving_epochs", Field::Number(&mut terms.emission_halving_epochs)),
        ("shares.miners", Field::Share(&mut terms.shares.miners)),
        ("shares.validators", Field::Share(&mut terms.shares.validators)),
        ("shares.owner", Field::Share(&mut terms.shares.owner)),
        ("shares.burn", Field::Share(&mut terms.shares.burn)),
    ]
}

/// Returns every term and its value, in the order of [`Terms`].
pub fn lines(terms: &Terms) -> Vec<(&'static str, String)> {
    fields(&mut terms.clone()).into_iter().map(|(name, field)| (name, field.show())).collect()
}

/// Returns every limit of the terms and its value, in the order of [`TermsLimits`].
pub fn limit_lines(limits: &TermsLimits) -> [(&'static str, String); 7] {
    let TermsLimits {
        owner_share,
        emission_per_epoch,
        equivocation_slash,
        unbonding_windows,
        validator_stake_min,
        miner_stake_min,
        seat_price_min,
    } = *limits;
    [
        ("shares.owner", percent(owner_share)),
        ("emission_per_epoch", Amount(emission_per_epoch).to_string()),
        ("equivocation_slash", percent(equivocation_slash)),
        ("unbonding_windows", unbonding_windows.to_string()),
        ("validator_stake_min", Amount(validator_stake_min).to_string()),
        ("miner_stake_min", Amount(miner_stake_min).to_string()),
        ("seat_price_min", Amount(seat_price_min).to_string()),
    ]
}

/// Returns the terms that differ: name, old value, new value.
pub fn changes(from: &Terms, to: &Terms) -> Vec<(&'static str, String, String)> {
    let pairs = lines(from).into_iter().zip(lines(to));
    pairs.filter(|((_, old), (_, new))| old != new).map(|((name, old), (_, new))| (name, old, new)).collect()
}

/// Sets one term, given as `name=value`. Does not validate the terms together: several may have to change together.
///
/// # Errors
/// Fails if the term does not exist, or the text is not a valid value for it.
pub fn set(terms: &mut Terms, assignment: &str) -> Result<(), TermsError> {
    let (name, text) =
        assignment.split_once('=').ok_or_else(|| TermsError::NoValue(assignment.to_owned()))?;
    let (name, field) = field(terms, name.trim())?;
    field.read(name, text.trim())
}

fn field<'a>(terms: &'a mut Terms, wanted: &str) -> Result<(&'static str, Field<'a>), TermsError> {
    let found = fields(terms).into_iter().find(|(name, _)| *name == wanted);
    found.ok_or_else(|| TermsError::Unknown { name: wanted.to_owned() })
}

fn names() -> String {
    fields(&mut Terms::default()).map(|(name, _)| name).join(", ")
}

/// Formats thousandths in percent: `12.5 %`.
pub fn percent(share: Permille) -> String {
    match (share.0 / 10, share.0 % 10) {
        (whole, 0) => format!("{whole} %"),
        (whole, tenth) => format!("{whole}.{tenth} %"),
    }
}

/// Parses thousandths, `125`, or percent, `12.5 %`. `None` if it is neither, or more than 1000 thousandths.
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

/// Overwrites the terms that a JSON object names. Strings are parsed as in [`set`]; numbers are in the smallest unit
/// and in thousandths, as in the JSON of [`Terms`] itself. `shares` may be a nested object.
///
/// # Errors
/// Fails if the JSON is not an object, names an unknown term, or has an invalid value.
pub fn overwrite(terms: &mut Terms, json: &Json) -> Result<(), TermsError> {
    let object = json.as_object().ok_or(TermsError::NoObject)?;
    for (name, value) in object {
        match value {
            Json::Object(inner) if name == "shares" => {
                for (name, value) in inner {
                    set_json(terms, &format!("shares.{name}"), value)?;
                }
            }
            value => set_json(terms, name, value)?,
        }
    }
    Ok(())
}

fn set_json(terms: &mut Terms, name: &str, json: &Json) -> Result<(), TermsError> {
    let refused = || TermsError::Value(name.to_owned());
    let (name, field) = field(terms, name)?;
    match (field, json) {
        (field, Json::String(text)) => field.read(name, text),
        // The text of an amount is in MTL.
        (Field::Amount(amount), Json::Number(number)) => {
            *amount = number.as_u64().ok_or_else(refused)?.into();
            Ok(())
        }
        (field, Json::Number(number)) => field.read(name, &number.as_u64().ok_or_else(refused)?.to_string()),
        _ => Err(refused()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_term_reads_what_it_shows() {
        let from = Terms::default();
        for (name, value) in lines(&from) {
            let mut to = from;
            set(&mut to, &format!("{name}={value}")).unwrap();
            assert_eq!(to, from, "{name}={value}");
        }
    }

    #[test]
    fn no_term_is_left_out() {
        let Json::Object(json) = serde_json::to_value(Terms::default()).unwrap() else { panic!() };
        let shares = json["shares"].as_object().unwrap();
        let terms = lines(&Terms::default());
        assert_eq!(terms.len(), json.len() - 1 + shares.len());
        for (name, _) in terms {
            let known = match name.strip_prefix("shares.") {
                Some(share) => shares.contains_key(share),
                None => json.contains_key(name),
            };
            assert!(known, "{name}");
        }
    }

    #[test]
    fn a_limit_has_the_name_of_its_term() {
        let terms = lines(&Terms::default());
        for (name, _) in limit_lines(&TermsLimits::default()) {
            assert!(terms.iter().any(|(term, _)| *term == name), "{name}");
        }
    }

    #[test]
    fn setting_a_term_changes_only_that_one() {
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
    fn an_unknown_term_or_a_wrong_value_is_refused_by_name() {
        let refused = |assignment: &str| set(&mut Terms::default(), assignment).unwrap_err().to_string();
        assert!(refused("density=3").contains("no term `density`"));
        assert!(refused("density=3").contains("shares.miners"));
        assert!(refused("quorum").contains("--set"));
        assert!(refused("quorum=1001").contains("12.5 %"));
        assert!(refused("quorum=100.1 %").contains("not a share"));
        assert!(refused("quorum=1.25 %").contains("not a share"));
        assert!(refused("quorum=+5 %").contains("not a share"));
        assert!(refused("miner_seats_max=65536").contains("65535"));
        assert!(refused("seat_price_min=cheap").contains("seat_price_min"));
    }

    #[test]
    fn a_file_changes_only_the_terms_it_names() {
        let mut terms = Terms::default();
        let json = serde_json::json!({
            "seat_price_min": 5, "validator_stake_min": "3 MTL", "quorum": "60 %",
            "shares": { "owner": 90, "burn": "1 %" },
        });
        overwrite(&mut terms, &json).unwrap();
        let names: Vec<&str> = changes(&Terms::default(), &terms).iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, ["quorum", "validator_stake_min", "seat_price_min", "shares.owner", "shares.burn"]);
        assert_eq!((terms.seat_price_min, terms.shares.burn), (5, Permille(10)));
        assert_eq!(terms.validate(), Ok(()));

        let refused = |json: Json| overwrite(&mut Terms::default(), &json).unwrap_err();
        assert_eq!(refused(serde_json::json!([])), TermsError::NoObject);
        assert!(matches!(refused(serde_json::json!({ "quorum": true })), TermsError::Value(_)));
        assert!(matches!(refused(serde_json::json!({ "quorum": -1 })), TermsError::Value(_)));
        assert!(matches!(refused(serde_json::json!({ "shares": { "x": 1 } })), TermsError::Unknown { .. }));
    }

    #[test]
    fn terms_serialised_by_their_own_type_are_read_back() {
        let mut terms = Terms { quorum: Permille(1), ..Terms::default() };
        overwrite(&mut terms, &serde_json::to_value(Terms::default()).unwrap()).unwrap();
        assert_eq!(terms, Terms::default());
    }

    #[test]
    fn a_share_is_shown_in_percent() {
        for (thousandths, text) in [(0, "0 %"), (5, "0.5 %"), (125, "12.5 %"), (1000, "100 %")] {
            assert_eq!(percent(Permille(thousandths)), text);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text: String) {
            let _ = set(&mut Terms::default(), &text);
            let _ = share(&text);
        }
    }
}
