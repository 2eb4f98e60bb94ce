//! Numbers that must come back to the last bit, for `#[serde(with = "exact")]`: written as the shortest text that names
//! them. A plain JSON number may be read one bit off, and a restart must not change a rating.

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:?}"))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    parse(&String::deserialize(deserializer)?).map_err(D::Error::custom)
}

/// The same for a list.
pub mod list {
    use super::*;
    use serde::ser::SerializeSeq as _;

    pub fn serialize<S: Serializer>(numbers: &[f64], serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(numbers.len()))?;
        for number in numbers {
            list.serialize_element(&format!("{number:?}"))?;
        }
        list.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| parse(text).map_err(D::Error::custom)).collect()
    }
}

fn parse(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(format!("{text:?} is not a finite number")),
    }
}
