//! [`Faults`] as the query string of a request.

use std::time::Duration;

use store::faults::{Faults, InvalidRate, Rate};
use url::form_urlencoded;

/// A query string that does not describe faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFaults {
    #[error("there is no fault {0:?}")]
    UnknownFault(String),
    #[error("{value:?} is no value of {fault}")]
    BadValue { fault: String, value: String },
}

/// Parses a query string such as `unavailable=3&stalled=always&stall_ms=2000`.
///
/// # Errors
/// If a fault is unknown or its value is invalid.
pub fn from_query(query: &str) -> Result<Faults, InvalidFaults> {
    let mut faults = Faults::default();
    for (fault, value) in form_urlencoded::parse(query.as_bytes()) {
        let bad = || InvalidFaults::BadValue { fault: fault.to_string(), value: value.to_string() };
        let rate = || value.parse::<Rate>().map_err(|InvalidRate(_)| bad());
        let millis = || value.parse().map(Duration::from_millis).map_err(|_| bad());
        match fault.as_ref() {
            "prefix" => faults.prefix = value.to_string(),
            "unavailable" => faults.unavailable = rate()?,
            "answer_lost" => faults.answer_lost = rate()?,
            "missing" => faults.missing = rate()?,
            "redirected" => faults.redirected = rate()?,
            "redirect_to" => faults.redirect_to = value.to_string(),
            "truncated" => faults.truncated = rate()?,
            "flipped" => faults.flipped = rate()?,
            "stalled" => faults.stalled = rate()?,
            "stall_ms" => faults.stall = millis()?,
            "dripped" => faults.dripped = rate()?,
            "drip_bytes_per_second" => faults.drip_bytes_per_second = value.parse().map_err(|_| bad())?,
            "delay_max_ms" => faults.delay_max = millis()?,
            "clock_skew_seconds" => faults.clock_skew_seconds = value.parse().map_err(|_| bad())?,
            "full" => faults.full = value.parse().map_err(|_| bad())?,
            _ => return Err(InvalidFaults::UnknownFault(fault.to_string())),
        }
    }
    Ok(faults)
}

/// Returns the query string that [`from_query`] parses. Times are cut to milliseconds.
pub fn to_query(faults: &Faults) -> String {
    form_urlencoded::Serializer::new(String::new())
        .append_pair("prefix", &faults.prefix)
        .append_pair("unavailable", &faults.unavailable.to_string())
        .append_pair("answer_lost", &faults.answer_lost.to_string())
        .append_pair("missing", &faults.missing.to_string())
        .append_pair("redirected", &faults.redirected.to_string())
        .append_pair("redirect_to", &faults.redirect_to)
        .append_pair("truncated", &faults.truncated.to_string())
        .append_pair("flipped", &faults.flipped.to_string())
        .append_pair("stalled", &faults.stalled.to_string())
        .append_pair("stall_ms", &faults.stall.as_millis().to_string())
        .append_pair("dripped", &faults.dripped.to_string())
        .append_pair("drip_bytes_per_second", &faults.drip_bytes_per_second.to_string())
        .append_pair("delay_max_ms", &faults.delay_max.as_millis().to_string())
        .append_pair("clock_skew_seconds", &faults.clock_skew_seconds.to_string())
        .append_pair("full", &faults.full.to_string())
        .finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_query_that_names_no_faults_is_refused() {
        assert_eq!(from_query("exploded=1"), Err(InvalidFaults::UnknownFault("exploded".into())));
        let bad = from_query("missing=-1");
        assert_eq!(bad, Err(InvalidFaults::BadValue { fault: "missing".into(), value: "-1".into() }));
        assert_eq!(from_query(""), Ok(Faults::default()));
    }

    fn rate() -> impl Strategy<Value = Rate> {
        prop_oneof![
            Just(Rate::Never),
            Just(Rate::Always),
            (1u32..).prop_map(Rate::Next),
            (0.0f64..=1.0).prop_map(Rate::Share),
            any::<u32>().prop_map(Rate::AfterFirst),
        ]
    }

    proptest! {
        #[test]
        fn faults_read_back_as_they_were_written(
            prefix: String, redirect_to: String, rates in proptest::array::uniform8(rate()), millis: [u32; 2],
            drip_bytes_per_second: u32, clock_skew_seconds: i64, full: bool,
        ) {
            let [unavailable, answer_lost, missing, redirected, truncated, flipped, stalled, dripped] = rates;
            let [stall, delay_max] = millis.map(|millis| Duration::from_millis(millis.into()));
            let faults = Faults {
                prefix, unavailable, answer_lost, missing, redirected, redirect_to, truncated, flipped, stalled, stall,
                dripped, drip_bytes_per_second, delay_max, clock_skew_seconds, full,
            };
            prop_assert_eq!(from_query(&to_query(&faults)), Ok(faults));
        }
    }
}
