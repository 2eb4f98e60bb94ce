//! Numbers in JSON that read back to the last bit, for `#[serde(with = "exact")]`: each is written as its shortest
//! exact text. A plain JSON number may be read one bit off.

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:?}"))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let text = String::deserialize(deserializer)?;
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or_else(|| D::Error::custom(format!("{text:?} is not a finite number")))
}
