//! What can be ordered to go wrong with a bucket.

use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use url::form_urlencoded;

/// A count that is never used up.
pub const ALWAYS: u32 = u32::MAX;

/// What goes wrong with a bucket, for how many requests more ([`ALWAYS`]: until ordered otherwise).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Only objects whose name begins so. Empty: all of them, and requests that are about no object.
    pub prefix: String,
    /// Any request is answered with 503 SlowDown.
    pub unavailable: u32,
    /// A read finds nothing.
    pub missing: u32,
    /// A read is sent to `redirect_to` with 307.
    pub redirected: u32,
    pub redirect_to: String,
    /// A read ends after half of its bytes, the connection with it.
    pub truncated: u32,
    /// A read has one bit of its bytes, in the middle, the other way.
    pub flipped: u32,
    /// A read stops after its headers, for `stall_ms` milliseconds.
    pub stalled: u32,
    pub stall_ms: u64,
    /// A read comes at no more than `drip_bytes_per_second`.
    pub dripped: u32,
    pub drip_bytes_per_second: u32,
    /// The store's clock is wrong by this much, in every `Last-Modified`.
    pub clock_skew_seconds: i64,
    /// Every write fails for want of room.
    pub full: bool,
    /// A conditional write is accepted, and its condition ignored.
    pub conditions_ignored: bool,
}

/// An order that cannot be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidFaults {
    #[error("there is no fault {0:?}")]
    UnknownFault(String),
    #[error("{value:?} is no value for {fault}")]
    BadValue { fault: String, value: String },
}

impl Faults {
    /// Reads orders as a query string: `unavailable=3&stalled=1&stall_ms=2000`. `always` is a count.
    pub fn from_query(query: &str) -> Result<Faults, InvalidFaults> {
        let mut faults = Faults::default();
        for (fault, value) in form_urlencoded::parse(query.as_bytes()) {
            let bad = || InvalidFaults::BadValue { fault: fault.to_string(), value: value.to_string() };
            let count = || if value == "always" { Ok(ALWAYS) } else { value.parse().map_err(|_| bad()) };
            match fault.as_ref() {
                "prefix" => faults.prefix = value.to_string(),
                "unavailable" => faults.unavailable = count()?,
                "missing" => faults.missing = count()?,
                "redirected" => faults.redirected = count()?,
                "redirect_to" => faults.redirect_to = value.to_string(),
                "truncated" => faults.truncated = count()?,
                "flipped" => faults.flipped = count()?,
                "stalled" => faults.stalled = count()?,
                "stall_ms" => faults.stall_ms = value.parse().map_err(|_| bad())?,
                "dripped" => faults.dripped = count()?,
                "drip_bytes_per_second" => faults.drip_bytes_per_second = value.parse().map_err(|_| bad())?,
                "clock_skew_seconds" => faults.clock_skew_seconds = value.parse().map_err(|_| bad())?,
                "full" => faults.full = value.parse().map_err(|_| bad())?,
                "conditions_ignored" => faults.conditions_ignored = value.parse().map_err(|_| bad())?,
                _ => return Err(InvalidFaults::UnknownFault(fault.to_string())),
            }
        }
        Ok(faults)
    }

    /// The orders as [`Faults::from_query`] reads them.
    pub fn to_query(&self) -> String {
        let count = |count: u32| if count == ALWAYS { "always".to_owned() } else { count.to_string() };
        form_urlencoded::Serializer::new(String::new())
            .append_pair("prefix", &self.prefix)
            .append_pair("unavailable", &count(self.unavailable))
            .append_pair("missing", &count(self.missing))
            .append_pair("redirected", &count(self.redirected))
            .append_pair("redirect_to", &self.redirect_to)
            .append_pair("truncated", &count(self.truncated))
            .append_pair("flipped", &count(self.flipped))
            .append_pair("stalled", &count(self.stalled))
            .append_pair("stall_ms", &self.stall_ms.to_string())
            .append_pair("dripped", &count(self.dripped))
            .append_pair("drip_bytes_per_second", &self.drip_bytes_per_second.to_string())
            .append_pair("clock_skew_seconds", &self.clock_skew_seconds.to_string())
            .append_pair("full", &self.full.to_string())
            .append_pair("conditions_ignored", &self.conditions_ignored.to_string())
            .finish()
    }

    fn concern(&self, object: Option<&str>) -> bool {
        self.prefix.is_empty() || object.is_some_and(|object| object.starts_with(&self.prefix))
    }
}

/// The orders of one bucket, and what is left of them.
#[derive(Debug, Default)]
pub(super) struct FaultDesk(Mutex<Faults>);

/// What happens to one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ReadFaults {
    pub missing: bool,
    pub redirect_to: Option<String>,
    pub truncated: bool,
    pub flipped: bool,
    pub stall_ms: u64,
    /// 0: as fast as it goes.
    pub drip_bytes_per_second: u32,
}

impl FaultDesk {
    pub fn inject(&self, faults: Faults) {
        *self.lock() = faults;
    }

    pub fn left(&self) -> Faults {
        self.lock().clone()
    }

    /// Whether this request, of whatever kind, is answered with 503.
    pub fn take_unavailable(&self, object: Option<&str>) -> bool {
        let mut faults = self.lock();
        faults.concern(object) && take(&mut faults.unavailable)
    }

    /// What happens to this read. A read that does not happen uses up nothing that would have happened to it.
    pub fn take_read(&self, object: &str) -> ReadFaults {
        let mut faults = self.lock();
        if !faults.concern(Some(object)) {
            return ReadFaults::default();
        }
        if take(&mut faults.missing) {
            return ReadFaults { missing: true, ..ReadFaults::default() };
        }
        if take(&mut faults.redirected) {
            return ReadFaults { redirect_to: Some(faults.redirect_to.clone()), ..ReadFaults::default() };
        }
        ReadFaults {
            truncated: take(&mut faults.truncated),
            flipped: take(&mut faults.flipped),
            stall_ms: if take(&mut faults.stalled) { faults.stall_ms } else { 0 },
            drip_bytes_per_second: if take(&mut faults.dripped) {
                faults.drip_bytes_per_second.max(1)
            } else {
                0
            },
            ..ReadFaults::default()
        }
    }

    pub fn clock_skew_seconds(&self) -> i64 {
        self.lock().clock_skew_seconds
    }

    pub fn full(&self, object: &str) -> bool {
        let faults = self.lock();
        faults.full && faults.concern(Some(object))
    }

    pub fn conditions_ignored(&self) -> bool {
        self.lock().conditions_ignored
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Faults> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take(count: &mut u32) -> bool {
    match *count {
        0 => false,
        ALWAYS => true,
        _ => {
            *count -= 1;
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_fault_ends_when_it_is_used_up() {
        let desk = FaultDesk::default();
        desk.inject(Faults { unavailable: 2, missing: ALWAYS, ..Faults::default() });
        assert!(
            desk.take_unavailable(None) && desk.take_unavailable(Some("a")) && !desk.take_unavailable(None)
        );
        for _ in 0..5 {
            assert!(desk.take_read("a").missing);
        }
        assert_eq!(desk.left(), Faults { missing: ALWAYS, ..Faults::default() });
    }

    #[test]
    fn a_fault_may_concern_some_objects_only() {
        let desk = FaultDesk::default();
        desk.inject(Faults {
            prefix: "runs/0/".into(),
            unavailable: 1,
            flipped: 1,
            full: true,
            ..Faults::default()
        });
        assert!(!desk.take_unavailable(None) && !desk.take_unavailable(Some("pieces/1")));
        assert!(!desk.take_read("pieces/1").flipped && desk.take_read("runs/0/x").flipped);
        assert!(!desk.full("pieces/1") && desk.full("runs/0/x"));
        assert!(desk.take_unavailable(Some("runs/0/x")));
    }

    #[test]
    fn orders_that_make_no_sense_are_refused() {
        assert_eq!(Faults::from_query("exploded=1"), Err(InvalidFaults::UnknownFault("exploded".into())));
        let bad = Faults::from_query("missing=-1");
        assert_eq!(bad, Err(InvalidFaults::BadValue { fault: "missing".into(), value: "-1".into() }));
        assert_eq!(Faults::from_query(""), Ok(Faults::default()));
    }

    proptest! {
        #[test]
        fn orders_read_back_as_they_were_written(
            prefix: String, redirect_to: String, counts: [u32; 6], stall_ms: u64, rate: u32, skew: i64,
            full: bool, conditions_ignored: bool,
        ) {
            let [unavailable, missing, redirected, truncated, flipped, stalled] = counts;
            let faults = Faults {
                prefix, unavailable, missing, redirected, redirect_to, truncated, flipped, stalled, stall_ms,
                dripped: ALWAYS, drip_bytes_per_second: rate, clock_skew_seconds: skew, full, conditions_ignored,
            };
            prop_assert_eq!(Faults::from_query(&faults.to_query()), Ok(faults));
        }
    }
}
