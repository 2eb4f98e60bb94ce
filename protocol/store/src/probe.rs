//! What a store really does, found out by doing it.
//!
//! Stores differ behind the same interface, and some say yes to what they then do not do. A role probes its bucket when
//! it starts, so that it learns of a wrong key, a missing bucket or a private one before a window depends on it.

use std::time::Duration;

use bytes::Bytes;
use protocol::{Digest, keys};
use serde::Serialize;

use crate::fetch::{Fetch, Limits, fetch_verified};
use crate::{Store, StoreError};

/// Something a store may be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ability {
    Write,
    ReadBack,
    Size,
    Bound,
    Range,
    Replace,
    List,
    Delete,
    MissingIsMissing,
    WriteIfAbsent,
    PublicRead,
}

/// How a store did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It did it.
    Works,
    /// It said that it cannot or will not.
    Refused,
    /// It said that it did, and did not.
    Misleads,
    /// Not tried, because something it needs does not work.
    Skipped,
}

/// One ability, tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub ability: Ability,
    pub outcome: Outcome,
    /// For a person: what was seen.
    pub seen: String,
}

/// All that was tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProbeReport {
    pub store: String,
    pub findings: Vec<Finding>,
}

impl Ability {
    /// Whether a role can do without. No rule relies on a conditional write, so a store may lack it.
    pub fn is_needed(self) -> bool {
        !matches!(self, Ability::WriteIfAbsent | Ability::Range | Ability::List)
    }
}

impl ProbeReport {
    /// Whether everything works that a role needs. Without [`probe_public`] that says nothing about other readers.
    pub fn is_usable(&self) -> bool {
        self.failures().next().is_none()
    }

    /// What is needed and does not work.
    pub fn failures(&self) -> impl Iterator<Item = &Finding> {
        self.findings
            .iter()
            .filter(|finding| finding.ability.is_needed() && finding.outcome != Outcome::Works)
    }

    pub fn outcome(&self, ability: Ability) -> Option<Outcome> {
        self.findings.iter().find(|finding| finding.ability == ability).map(|finding| finding.outcome)
    }

    fn add(&mut self, ability: Ability, outcome: Outcome, seen: impl Into<String>) {
        self.findings.push(Finding { ability, outcome, seen: seen.into() });
    }

    fn judge<T>(
        &mut self,
        ability: Ability,
        got: Result<T, StoreError>,
        right: impl FnOnce(&T) -> bool,
    ) -> bool {
        let (outcome, seen) = match &got {
            Ok(value) if right(value) => (Outcome::Works, String::new()),
            Ok(_) => (Outcome::Misleads, "it said yes, and gave something else".to_owned()),
            Err(error) => (Outcome::Refused, crate::error_chain(error)),
        };
        self.add(ability, outcome, seen);
        outcome == Outcome::Works
    }
}

impl std::fmt::Display for ProbeReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:", self.store)?;
        for Finding { ability, outcome, seen } in &self.findings {
            write!(f, "\n  {ability:?}: {outcome:?}")?;
            if !seen.is_empty() {
                write!(f, ", {seen}")?;
            }
        }
        Ok(())
    }
}

/// Tries what a store can do, with small objects of its own that it removes again.
pub async fn probe(store: &dyn Store) -> ProbeReport {
    let mut report = ProbeReport { store: store.describe(), findings: Vec::new() };
    let body = sample();
    let key = keys::piece(&Digest::of(&body));
    let absent = keys::piece(&Digest::of(&[&body[..], b"absent"].concat()));
    let whole = body.len() as u64;

    if !report.judge(Ability::Write, store.put(&key, body.clone()).await, |()| true) {
        for ability in [Ability::ReadBack, Ability::Size, Ability::Bound, Ability::Replace, Ability::Delete] {
            report.add(ability, Outcome::Skipped, "nothing could be written");
        }
        return report;
    }
    report.judge(Ability::ReadBack, store.get(&key, whole).await, |got| *got == body);
    report.judge(Ability::Size, store.head(&key).await, |&got| got == whole);
    match store.get(&key, whole - 1).await {
        Err(StoreError::TooLarge { .. }) => report.add(Ability::Bound, Outcome::Works, ""),
        Err(error) => report.add(Ability::Bound, Outcome::Refused, crate::error_chain(&error)),
        Ok(_) => report.add(Ability::Bound, Outcome::Misleads, "a bound on the size was ignored"),
    }
    report.judge(Ability::Range, store.get_range(&key, 10..20).await, |got| *got == body[10..20]);
    let listed = store.list("pieces", 1000).await;
    let name = key.as_str();
    report.judge(Ability::List, listed, |got| {
        !got.complete || got.entries.iter().any(|entry| entry.name == name)
    });

    match store.put_if_absent(&key, Bytes::from_static(b"second")).await {
        Ok(false) => report.add(Ability::WriteIfAbsent, Outcome::Works, ""),
        Ok(true) => report.add(Ability::WriteIfAbsent, Outcome::Misleads, "it wrote over what was there"),
        Err(error) => report.add(Ability::WriteIfAbsent, Outcome::Refused, crate::error_chain(&error)),
    }
    let replaced = match store.put(&key, Bytes::from_static(b"third")).await {
        Ok(()) => store.get(&key, whole).await,
        Err(error) => Err(error),
    };
    report.judge(Ability::Replace, replaced, |got| got == "third");
    match store.head(&absent).await {
        Err(StoreError::NotFound { .. }) => report.add(Ability::MissingIsMissing, Outcome::Works, ""),
        Err(error) => report.add(Ability::MissingIsMissing, Outcome::Refused, crate::error_chain(&error)),
        Ok(_) => report.add(Ability::MissingIsMissing, Outcome::Misleads, "it has what nobody wrote"),
    }

    let gone = match store.delete(&key).await {
        Ok(()) => store.head(&key).await,
        Err(error) => Err(error),
    };
    match gone {
        Err(StoreError::NotFound { .. }) => report.add(Ability::Delete, Outcome::Works, ""),
        Err(error) => report.add(Ability::Delete, Outcome::Refused, crate::error_chain(&error)),
        Ok(_) => report.add(Ability::Delete, Outcome::Misleads, "it is still there"),
    }
    report
}

/// [`probe`], and whether others can read at `base_url` what is written here: the one thing a miner cannot see from
/// inside.
pub async fn probe_public(store: &dyn Store, fetch: &dyn Fetch, base_url: &str) -> ProbeReport {
    let mut report = probe(store).await;
    if report.outcome(Ability::Write) != Some(Outcome::Works) {
        report.add(Ability::PublicRead, Outcome::Skipped, "nothing could be written");
        return report;
    }
    let body = sample();
    let digest = Digest::of(&body);
    let key = keys::piece(&digest);
    let limits = Limits::for_bytes(body.len() as u64).within(Duration::from_secs(30));
    match store.put(&key, body).await {
        Err(error) => report.add(Ability::PublicRead, Outcome::Skipped, crate::error_chain(&error)),
        Ok(()) => match fetch_verified(fetch, base_url, &key, &digest, &limits).await {
            Ok(_) => report.add(Ability::PublicRead, Outcome::Works, ""),
            Err(error) => report.add(Ability::PublicRead, Outcome::Refused, format!("{base_url}: {error}")),
        },
    }
    if let Err(error) = store.delete(&key).await {
        tracing::warn!(%error, "could not remove the object of a probe");
    }
    report
}

/// Different every time, so that two probes of one bucket do not meet.
fn sample() -> Bytes {
    use std::hash::{BuildHasher, Hasher};
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Bytes::from(format!("mettle probes this bucket: {random:016x}"))
}
