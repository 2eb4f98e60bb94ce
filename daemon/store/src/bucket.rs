//! The check of a node's own bucket: writes with the key, reads without it.

use std::hash::{BuildHasher as _, Hasher as _};
use std::time::Duration;

use bytes::Bytes;
use protocol::{Digest, keys};

use crate::fetch::{Fetch, FetchError, Limits, fetch_verified};
use crate::{Store, StoreError};

/// Time limit of the public read.
const READ_WITHIN: Duration = Duration::from_secs(30);

/// Error of a bucket that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BucketError {
    #[error("the bucket {store} takes no object")]
    Write { store: String, source: StoreError },
    #[error(
        "others cannot read the bucket {store} at {base_url}: is that its public URL, and may everybody read its \
         objects?"
    )]
    Read { store: String, base_url: String, source: FetchError },
    #[error("the bucket {store} deletes no object, so it would fill up")]
    Delete { store: String, source: StoreError },
}

impl BucketError {
    /// Returns whether a clock is to blame, like [`StoreError::blames_clock`].
    pub fn blames_clock(&self) -> bool {
        match self {
            BucketError::Write { source, .. } | BucketError::Delete { source, .. } => source.blames_clock(),
            BucketError::Read { .. } => false,
        }
    }

    /// Returns whether a retry with the same settings may succeed.
    pub fn may_pass(&self) -> bool {
        match self {
            BucketError::Write { source, .. } | BucketError::Delete { source, .. } => source.may_pass(),
            // A store may publish an object with a delay, but a wrong URL looks the same.
            BucketError::Read { source, .. } => !source.is_theirs(),
        }
    }
}

/// Writes a small object, reads it below `base_url` without a key, like every other party, and deletes it.
///
/// # Errors
/// [`BucketError`] for the first of these steps that fails.
pub async fn check_bucket(store: &dyn Store, fetch: &dyn Fetch, base_url: &str) -> Result<(), BucketError> {
    let body = sample();
    let digest = Digest::of(&body);
    let key = keys::piece(&digest);
    let limits = Limits::for_bytes(body.len() as u64).within(READ_WITHIN);
    let described = || store.describe();

    store.put(&key, body).await.map_err(|source| BucketError::Write { store: described(), source })?;
    let read = fetch_verified(fetch, base_url, &key, &digest, &limits).await;
    let deleted = store.delete(&key).await;
    read.map_err(|source| BucketError::Read { store: described(), base_url: base_url.to_owned(), source })?;
    deleted.map_err(|source| BucketError::Delete { store: described(), source })
}

/// Returns an object that differs every time, so that concurrent checks of a bucket do not collide.
fn sample() -> Bytes {
    let random = std::collections::hash_map::RandomState::new().build_hasher().finish();
    Bytes::from(format!("mettle checks this bucket: {random:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryFetcher;
    use crate::{Faults, FaultyStore, MemoryStore, Rate};
    use std::sync::Arc;

    async fn check(faults: Faults, readers_at: &str) -> (Result<(), BucketError>, usize) {
        let store = Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1, faults));
        let network = MemoryFetcher::new();
        network.serve(readers_at, store.clone());
        let checked = check_bucket(&*store, &network, "public").await;
        let left = store.inner().list("", 10).await.expect("memory").entries.len();
        (checked, left)
    }

    #[tokio::test]
    async fn a_bucket_that_others_read_passes_and_nothing_is_left_in_it() {
        let (checked, left) = check(Faults::default(), "public").await;
        checked.expect("it works");
        assert_eq!(left, 0);
    }

    #[tokio::test]
    async fn a_bucket_that_takes_nothing_fails_and_may_do_later_if_it_was_only_away() {
        let away = Faults { unavailable: Rate::Always, ..Faults::default() };
        let error = check(away, "public").await.0.expect_err("away");
        assert!(matches!(error, BucketError::Write { .. }) && error.may_pass(), "{error:?}");
    }

    #[tokio::test]
    async fn a_bucket_that_others_cannot_read_fails_for_good_and_nothing_is_left_in_it() {
        let private = Faults { missing: Rate::Always, ..Faults::default() };
        let spoiling = Faults { flipped: Rate::Always, ..Faults::default() };
        for faults in [private, spoiling] {
            let (checked, left) = check(faults, "public").await;
            let error = checked.expect_err("no reader sees it");
            assert!(matches!(error, BucketError::Read { .. }) && !error.may_pass(), "{error:?}");
            assert!(error.to_string().contains("public"), "{error}");
            assert_eq!(left, 0);
        }
        let error = check(Faults::default(), "elsewhere").await.0.expect_err("no bucket at that URL");
        assert!(matches!(error, BucketError::Read { .. }) && error.may_pass(), "{error:?}");
    }
}
