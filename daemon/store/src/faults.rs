//! Injected faults: which faults affect the operations of one bucket, and at what rate.
//!
//! [`FaultyStore`] applies them to any [`Store`], and the S3 server of localnet to its buckets. A fault with a share
//! depends only on the seed, the operation, the object and the number of earlier operations on that object: neither on
//! the order of tasks nor on other objects. So a failed simulation can be repeated.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use protocol::ensure;
use protocol::keys::ObjectKey;

use crate::{Action, Listing, Store, StoreError, TrafficTotals};

/// Maximum number of counters; beyond it, counters are dropped.
const COUNTED_OBJECTS_MAX: usize = 1 << 16;

/// The operations that a fault affects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Rate {
    #[default]
    Never,
    Always,
    /// This number of next operations.
    Next(u32),
    /// This share of all operations, from 0 to 1.
    Share(f64),
    /// On each object, every operation after this number: its first readers find it, the others do not.
    AfterFirst(u32),
}

/// The faults of a bucket. Reads include those of a whole object and of a range.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Restricts the faults to objects whose names begin with it. Empty: every operation.
    pub prefix: String,
    /// An operation fails without an effect: 503 SlowDown.
    pub unavailable: Rate,
    /// A write or deletion takes effect, but reports a failure.
    pub answer_lost: Rate,
    /// A read finds no object.
    pub missing: Rate,
    /// A read over HTTP is redirected to `redirect_to` with 307.
    pub redirected: Rate,
    pub redirect_to: String,
    /// A read ends after half of its bytes.
    pub truncated: Rate,
    /// A read has one inverted bit in the middle of its bytes.
    pub flipped: Rate,
    /// The contents of a read start after `stall`.
    pub stalled: Rate,
    pub stall: Duration,
    /// A read is limited to `drip_bytes_per_second`.
    pub dripped: Rate,
    pub drip_bytes_per_second: u32,
    /// Maximum random delay of every operation.
    pub delay_max: Duration,
    /// Error of the bucket's clock, visible in every `Last-Modified`.
    pub clock_skew_seconds: i64,
    /// Every write fails for lack of space.
    pub full: bool,
}

/// The faults of one read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadFaults {
    pub missing: bool,
    pub redirect_to: Option<String>,
    pub truncated: bool,
    pub flipped: bool,
    pub stall: Duration,
    /// Rate limit; 0 means no limit.
    pub drip_bytes_per_second: u32,
}

/// Draws the faults of each operation of one bucket.
#[derive(Debug, Default)]
pub struct FaultInjector {
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    /// Number of draws of each fault for each operation on each object.
    draws: BTreeMap<(Fault, Action, String), u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Unavailable,
    AnswerLost,
    Missing,
    Redirected,
    Truncated,
    Flipped,
    Stalled,
    Dripped,
    Delayed,
}

impl FaultInjector {
    pub fn new(seed: u64) -> FaultInjector {
        FaultInjector { seed, state: Mutex::default() }
    }

    /// Replaces the faults. `Faults::default()` removes them.
    pub fn inject(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Returns the remaining faults: [`Rate::Next`] counts down.
    pub fn remaining(&self) -> Faults {
        self.state().faults.clone()
    }

    /// Returns whether this operation fails before any effect, and its delay. `object` is `None` if the operation does
    /// not concern a single object.
    pub fn draw(&self, action: Action, object: Option<&str>) -> (bool, Duration) {
        let mut state = self.state();
        if !state.faults.concern(object) {
            return (false, Duration::ZERO);
        }
        let object = object.unwrap_or_default();
        let longest = state.faults.delay_max;
        let share =
            if longest.is_zero() { 0.0 } else { state.uniform(self.seed, Fault::Delayed, action, object) };
        let delay = longest.mul_f64(share);
        (state.hits(self.seed, Fault::Unavailable, action, object), delay)
    }

    /// Returns the faults of this read. A fault that prevents the read does not use up any other.
    pub fn draw_read(&self, action: Action, object: &str) -> ReadFaults {
        let mut state = self.state();
        if !state.faults.concern(Some(object)) {
            return ReadFaults::default();
        }
        let faults = state.faults.clone();
        let mut hits = |fault| state.hits(self.seed, fault, action, object);
        if hits(Fault::Missing) {
            return ReadFaults { missing: true, ..ReadFaults::default() };
        }
        if hits(Fault::Redirected) {
            return ReadFaults { redirect_to: Some(faults.redirect_to), ..ReadFaults::default() };
        }
        ReadFaults {
            truncated: hits(Fault::Truncated),
            flipped: hits(Fault::Flipped),
            stall: if hits(Fault::Stalled) { faults.stall } else { Duration::ZERO },
            drip_bytes_per_second: if hits(Fault::Dripped) { faults.drip_bytes_per_second.max(1) } else { 0 },
            ..ReadFaults::default()
        }
    }

    /// Returns whether the answer to this write or deletion is lost.
    pub fn draw_answer_lost(&self, action: Action, object: &str) -> bool {
        let mut state = self.state();
        state.faults.concern(Some(object)) && state.hits(self.seed, Fault::AnswerLost, action, object)
    }

    /// Returns whether the bucket has no space for this object.
    pub fn is_full(&self, object: &str) -> bool {
        let state = self.state();
        state.faults.full && state.faults.concern(Some(object))
    }

    pub fn clock_skew_seconds(&self) -> i64 {
        self.state().faults.clock_skew_seconds
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is a single step, so a panic elsewhere leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn hits(&mut self, seed: u64, fault: Fault, action: Action, object: &str) -> bool {
        let faults = &mut self.faults;
        let rate = match fault {
            Fault::Unavailable => &mut faults.unavailable,
            Fault::AnswerLost => &mut faults.answer_lost,
            Fault::Missing => &mut faults.missing,
            Fault::Redirected => &mut faults.redirected,
            Fault::Truncated => &mut faults.truncated,
            Fault::Flipped => &mut faults.flipped,
            Fault::Stalled => &mut faults.stalled,
            Fault::Dripped => &mut faults.dripped,
            Fault::Delayed => return false,
        };
        match *rate {
            Rate::Never => false,
            Rate::Always => true,
            Rate::Next(left) => {
                let hits = left > 0;
                *rate = if left > 1 { Rate::Next(left - 1) } else { Rate::Never };
                hits
            }
            Rate::Share(share) => self.uniform(seed, fault, action, object) < share,
            Rate::AfterFirst(first) => u64::from(first) <= self.count(fault, action, object),
        }
    }

    /// Returns a random number in [0, 1).
    fn uniform(&mut self, seed: u64, fault: Fault, action: Action, object: &str) -> f64 {
        let nth = self.count(fault, action, object);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(&[fault as u8, action as u8]).update(&nth.to_le_bytes());
        let mut bytes = [0; 8];
        hasher.update(object.as_bytes()).finalize_xof().fill(&mut bytes);
        (u64::from_le_bytes(bytes) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Returns the number of earlier draws.
    fn count(&mut self, fault: Fault, action: Action, object: &str) -> u64 {
        if COUNTED_OBJECTS_MAX <= self.draws.len() {
            self.draws.pop_first();
        }
        let count = self.draws.entry((fault, action, object.to_owned())).or_default();
        *count += 1;
        *count - 1
    }
}

impl Faults {
    fn concern(&self, object: Option<&str>) -> bool {
        self.prefix.is_empty() || object.is_some_and(|object| object.starts_with(&self.prefix))
    }
}

/// `0`, `always`, `3` (the next three), `share:0.25`, `after:2`.
impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rate::Never => f.write_str("0"),
            Rate::Always => f.write_str("always"),
            Rate::Next(count) => write!(f, "{count}"),
            Rate::Share(share) => write!(f, "share:{share}"),
            Rate::AfterFirst(count) => write!(f, "after:{count}"),
        }
    }
}

/// Error of a text that is not a [`Rate`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is none of `always`, a count, `share:` with a number from 0 to 1, `after:` with a count")]
pub struct InvalidRate(pub String);

impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Rate, InvalidRate> {
        let invalid = || InvalidRate(text.to_owned());
        let count = |text: &str| text.parse::<u32>().map_err(|_| invalid());
        match text.split_once(':') {
            None if text == "always" => Ok(Rate::Always),
            None if text == "0" => Ok(Rate::Never),
            None => count(text).map(Rate::Next),
            Some(("after", first)) => count(first).map(Rate::AfterFirst),
            Some(("share", share)) => {
                let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share));
                share.map(Rate::Share).ok_or_else(invalid)
            }
            Some(_) => Err(invalid()),
        }
    }
}

/// Inverts one bit of the byte at `at`.
pub fn flip_bit(bytes: &Bytes, at: usize) -> Bytes {
    let mut flipped = BytesMut::from(&bytes[..]);
    if let Some(byte) = flipped.get_mut(at) {
        *byte ^= 1;
    }
    flipped.freeze()
}

/// Any [`Store`] with [`Faults`].
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    injector: FaultInjector,
}

impl FaultyStore {
    pub fn new(inner: Arc<dyn Store>, seed: u64, faults: Faults) -> FaultyStore {
        let injector = FaultInjector::new(seed);
        injector.inject(faults);
        FaultyStore { inner, injector }
    }

    /// Replaces the faults. `Faults::default()` removes them.
    pub fn inject(&self, faults: Faults) {
        self.injector.inject(faults);
    }

    pub fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn begin(&self, action: Action, name: &str) -> Result<(), StoreError> {
        let (unavailable, delay) = self.injector.draw(action, Some(name));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if unavailable { Err(self.failed(action, name, "injected: unavailable")) } else { Ok(()) }
    }

    async fn begin_write(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.begin(Action::Write, key.as_str()).await?;
        ensure!(
            !self.injector.is_full(key.as_str()),
            StoreError::Full {
                store: self.describe(),
                action: Action::Write,
                name: key.to_string(),
                source: "injected: full".into(),
            }
        );
        Ok(())
    }

    fn failed(&self, action: Action, name: &str, why: &str) -> StoreError {
        StoreError::Unavailable { store: self.describe(), action, name: name.to_owned(), source: why.into() }
    }

    fn answer<T>(&self, action: Action, key: &ObjectKey, answer: T) -> Result<T, StoreError> {
        if self.injector.draw_answer_lost(action, key.as_str()) {
            Err(self.failed(action, key.as_str(), "injected: the answer is lost"))
        } else {
            Ok(answer)
        }
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn describe(&self) -> String {
        format!("{} with faults", self.inner.describe())
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        self.begin_write(key).await?;
        self.inner.put(key, bytes).await?;
        self.answer(Action::Write, key, ())
    }

    async fn put_file(&self, key: &ObjectKey, path: &std::path::Path) -> Result<u64, StoreError> {
        self.begin_write(key).await?;
        let written = self.inner.put_file(key, path).await?;
        self.answer(Action::Write, key, written)
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        self.begin(Action::Read, key.as_str()).await?;
        let bytes = self.inner.get(key, max_bytes).await?;
        // Drawn only for existing objects: a read before the object exists does not count as the first.
        let faults = self.injector.draw_read(Action::Read, key.as_str());
        ensure!(!faults.missing, StoreError::NotFound { key: key.to_string() });
        if let Some(to) = &faults.redirect_to {
            return Err(self.failed(Action::Read, key.as_str(), &format!("injected: redirected to {to:?}")));
        }
        if !faults.stall.is_zero() {
            tokio::time::sleep(faults.stall).await;
        }
        let expected = bytes.len() as u64;
        if 0 < faults.drip_bytes_per_second {
            let seconds = expected as f64 / f64::from(faults.drip_bytes_per_second);
            tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
        }
        if faults.truncated && 0 < expected {
            let (store, got) = (self.describe(), expected / 2);
            return Err(StoreError::CutShort { store, key: key.to_string(), got, expected });
        }
        Ok(if faults.flipped { flip_bit(&bytes, bytes.len() / 2) } else { bytes })
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        self.begin(Action::Delete, key.as_str()).await?;
        self.inner.delete(key).await?;
        self.answer(Action::Delete, key, ())
    }

    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        self.begin(Action::List, prefix).await?;
        self.inner.list(prefix, max_entries).await
    }

    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unavailable(injector: &FaultInjector, object: Option<&str>) -> bool {
        injector.draw(Action::Write, object).0
    }

    fn injector(faults: Faults) -> FaultInjector {
        let injector = FaultInjector::new(1);
        injector.inject(faults);
        injector
    }

    #[test]
    fn a_counted_fault_ends_when_it_is_used_up() {
        let injector =
            injector(Faults { unavailable: Rate::Next(2), missing: Rate::Always, ..Faults::default() });
        assert!(unavailable(&injector, None) && unavailable(&injector, Some("a")));
        assert!(!unavailable(&injector, None));
        for _ in 0..5 {
            assert!(injector.draw_read(Action::Read, "a").missing);
        }
        assert_eq!(injector.remaining(), Faults { missing: Rate::Always, ..Faults::default() });
    }

    #[test]
    fn a_fault_may_concern_some_objects_only() {
        let injector = injector(Faults {
            prefix: "runs/0/".into(),
            unavailable: Rate::Next(1),
            flipped: Rate::Next(1),
            full: true,
            ..Faults::default()
        });
        assert!(!unavailable(&injector, None) && !unavailable(&injector, Some("pieces/1")));
        assert!(!injector.draw_read(Action::Read, "pieces/1").flipped);
        assert!(injector.draw_read(Action::Read, "runs/0/x").flipped);
        assert!(!injector.is_full("pieces/1") && injector.is_full("runs/0/x"));
        assert!(unavailable(&injector, Some("runs/0/x")));
    }

    #[test]
    fn the_first_readers_of_each_object_see_it_and_later_ones_do_not() {
        let injector = injector(Faults { missing: Rate::AfterFirst(2), ..Faults::default() });
        let missing = |object| injector.draw_read(Action::Read, object).missing;
        assert_eq!([missing("a"), missing("a"), missing("b"), missing("a")], [false, false, false, true]);
        assert_eq!([missing("b"), missing("b"), missing("a")], [false, true, true]);
    }

    #[test]
    fn a_rate_reads_back_and_nonsense_is_refused() {
        for rate in [
            Rate::Never,
            Rate::Always,
            Rate::Next(3),
            Rate::Next(u32::MAX),
            Rate::Share(0.25),
            Rate::AfterFirst(0),
        ] {
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        for nonsense in ["", "-1", "share:2", "share:x", "share:NaN", "after:", "sometimes"] {
            assert_eq!(nonsense.parse::<Rate>(), Err(InvalidRate(nonsense.into())));
        }
    }

    proptest! {
        #[test]
        fn a_share_is_hit_about_as_often_as_it_says(seed: u64, share in 0.0f64..=1.0) {
            let injector = FaultInjector::new(seed);
            injector.inject(Faults { unavailable: Rate::Share(share), ..Faults::default() });
            let hits = (0..1000).filter(|_| unavailable(&injector, Some("a"))).count() as f64;
            prop_assert!((hits / 1000.0 - share).abs() < 0.1, "{hits} of 1000 at {share}");
        }
    }
}
