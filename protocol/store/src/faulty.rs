//! A store that fails on purpose, and fails the same way again from the same seed.
//!
//! What happens to the n-th operation of a kind on an object depends on the seed, the kind, the object and n, and on
//! nothing else: neither on how tasks were scheduled nor on what happened to other objects. So a simulation that broke
//! can be run again.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use protocol::keys::ObjectKey;

use crate::{Action, Listing, Store, StoreError, TrafficTotals};

/// How often what goes wrong. Shares of all operations, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Faults {
    /// Nothing is done, and it says so.
    pub unavailable: f64,
    /// A write or a deletion is done, but its answer is lost: the caller is told that it failed.
    pub answer_lost: f64,
    /// A read finds nothing, although there is something.
    pub overlooked: f64,
    /// A read is told its bytes are fewer than they are.
    pub cut_short: f64,
    /// One bit of what is read is not what was written. Only a digest shows it.
    pub flipped: f64,
    /// Every operation takes up to this much longer.
    pub delay_max: Duration,
}

/// Any [`Store`], made unreliable.
pub struct FaultyStore<S> {
    inner: S,
    seed: u64,
    faults: Mutex<Faults>,
    counts: Mutex<BTreeMap<(u8, String), u64>>,
}

impl<S: Store> FaultyStore<S> {
    pub fn new(inner: S, seed: u64, faults: Faults) -> FaultyStore<S> {
        FaultyStore { inner, seed, faults: Mutex::new(faults), counts: Mutex::default() }
    }

    /// From now on these are the faults: `Faults::default()` is a store that works.
    pub fn set(&self, faults: Faults) {
        *self.faults.lock().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// What will happen to the next operation of this kind on this object.
    async fn fate(&self, action: Action, name: &str) -> Result<Fate, StoreError> {
        let faults = *self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        let nth = {
            let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
            let count = counts.entry((action as u8, name.to_owned())).or_default();
            *count += 1;
            *count
        };
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.seed.to_le_bytes()).update(&[action as u8]).update(&nth.to_le_bytes());
        let mut dice = Dice(hasher.update(name.as_bytes()).finalize_xof());

        let delay = faults.delay_max.mul_f64(dice.roll());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if dice.roll() < faults.unavailable {
            return Err(self.failed(action, name, "the store was ordered to be unavailable"));
        }
        Ok(Fate {
            answer_lost: dice.roll() < faults.answer_lost,
            overlooked: dice.roll() < faults.overlooked,
            cut_short: dice.roll() < faults.cut_short,
            flipped: (dice.roll() < faults.flipped).then(|| dice.word()),
        })
    }

    fn failed(&self, action: Action, name: &str, why: &str) -> StoreError {
        StoreError::Unavailable { store: self.describe(), action, name: name.to_owned(), source: why.into() }
    }

    /// The answer to a change: done, but perhaps nobody hears of it.
    fn answered<T>(&self, fate: &Fate, action: Action, name: &str, answer: T) -> Result<T, StoreError> {
        if fate.answer_lost {
            Err(self.failed(action, name, "the answer was ordered to be lost"))
        } else {
            Ok(answer)
        }
    }

    fn spoilt(&self, fate: &Fate, key: &ObjectKey, bytes: Bytes) -> Result<Bytes, StoreError> {
        if fate.cut_short && !bytes.is_empty() {
            let expected = bytes.len() as u64;
            return Err(StoreError::CutShort {
                store: self.describe(),
                key: key.to_string(),
                got: expected / 2,
                expected,
            });
        }
        let Some(word) = fate.flipped.filter(|_| !bytes.is_empty()) else { return Ok(bytes) };
        let mut spoilt = BytesMut::from(&bytes[..]);
        let bit = word % (spoilt.len() as u64 * 8);
        spoilt[(bit / 8) as usize] ^= 1 << (bit % 8);
        Ok(spoilt.freeze())
    }
}

struct Fate {
    answer_lost: bool,
    overlooked: bool,
    cut_short: bool,
    /// Which bit, as a number to be reduced by the number of bits.
    flipped: Option<u64>,
}

struct Dice(blake3::OutputReader);

impl Dice {
    fn word(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.0.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// From 0 up to, never reaching, 1.
    fn roll(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[async_trait]
impl<S: Store> Store for FaultyStore<S> {
    fn describe(&self) -> String {
        format!("{} (made unreliable)", self.inner.describe())
    }

    async fn put(&self, key: &ObjectKey, bytes: Bytes) -> Result<(), StoreError> {
        let fate = self.fate(Action::Write, key.as_str()).await?;
        self.inner.put(key, bytes).await?;
        self.answered(&fate, Action::Write, key.as_str(), ())
    }

    async fn put_file(&self, key: &ObjectKey, path: &std::path::Path) -> Result<u64, StoreError> {
        let fate = self.fate(Action::Write, key.as_str()).await?;
        let written = self.inner.put_file(key, path).await?;
        self.answered(&fate, Action::Write, key.as_str(), written)
    }

    async fn get(&self, key: &ObjectKey, max_bytes: u64) -> Result<Bytes, StoreError> {
        let fate = self.fate(Action::Read, key.as_str()).await?;
        if fate.overlooked {
            return Err(StoreError::NotFound { key: key.to_string() });
        }
        let bytes = self.inner.get(key, max_bytes).await?;
        self.spoilt(&fate, key, bytes)
    }

    async fn get_range(&self, key: &ObjectKey, range: Range<u64>) -> Result<Bytes, StoreError> {
        let fate = self.fate(Action::Read, key.as_str()).await?;
        if fate.overlooked {
            return Err(StoreError::NotFound { key: key.to_string() });
        }
        let bytes = self.inner.get_range(key, range).await?;
        self.spoilt(&fate, key, bytes)
    }

    async fn head(&self, key: &ObjectKey) -> Result<u64, StoreError> {
        let fate = self.fate(Action::LookUp, key.as_str()).await?;
        if fate.overlooked {
            return Err(StoreError::NotFound { key: key.to_string() });
        }
        self.inner.head(key).await
    }

    async fn delete(&self, key: &ObjectKey) -> Result<(), StoreError> {
        let fate = self.fate(Action::Delete, key.as_str()).await?;
        self.inner.delete(key).await?;
        self.answered(&fate, Action::Delete, key.as_str(), ())
    }

    async fn list(&self, prefix: &str, max_entries: usize) -> Result<Listing, StoreError> {
        self.fate(Action::List, prefix).await?;
        self.inner.list(prefix, max_entries).await
    }

    async fn put_if_absent(&self, key: &ObjectKey, bytes: Bytes) -> Result<bool, StoreError> {
        let fate = self.fate(Action::Write, key.as_str()).await?;
        let written = self.inner.put_if_absent(key, bytes).await?;
        self.answered(&fate, Action::Write, key.as_str(), written)
    }

    fn traffic(&self) -> TrafficTotals {
        self.inner.traffic()
    }
}
