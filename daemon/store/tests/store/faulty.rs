//! Stores with faults, and fetching from several of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mettle_store::fetch::FetchPlan;
use mettle_store::memory::MemoryFetcher;
use mettle_store::{
    Faults, FaultyStore, Fetch, FetchError, Limits, MemoryStore, Rate, Store, StoreError, fetch_verified,
};
use protocol::Digest;
use protocol::keys::{self, ObjectKey};

fn object(text: &str) -> (ObjectKey, Digest, Bytes) {
    let bytes = Bytes::from(text.to_owned());
    let digest = Digest::of(&bytes);
    (keys::piece(&digest), digest, bytes)
}

/// The results of a fixed list of operations, as letters.
async fn story(seed: u64, faults: Faults, reversed: bool) -> Vec<String> {
    let store = FaultyStore::new(Arc::new(MemoryStore::new()), seed, faults);
    let mut objects: Vec<_> = (0..20).map(|number| object(&format!("object {number}"))).collect();
    if reversed {
        objects.reverse();
    }
    let mut story = Vec::new();
    for (key, digest, bytes) in objects {
        let mut line = format!("{key} ");
        for _ in 0..5 {
            line.push(match store.put(&key, bytes.clone()).await {
                Ok(()) => 'W',
                Err(_) => '!',
            });
            line.push(match store.get(&key, 100).await {
                Ok(got) if Digest::of(&got) == digest => 'R',
                Ok(_) => 'X',
                Err(StoreError::NotFound { .. }) => 'N',
                Err(StoreError::CutShort { .. }) => 'C',
                Err(_) => '!',
            });
        }
        story.push(line);
    }
    story.sort();
    story
}

#[tokio::test]
async fn a_seed_replays_every_fault_in_any_order_of_objects() {
    let faults = Faults {
        unavailable: Rate::Share(0.2),
        answer_lost: Rate::Share(0.2),
        missing: Rate::Share(0.1),
        truncated: Rate::Share(0.1),
        flipped: Rate::Share(0.2),
        delay_max: Duration::from_micros(50),
        ..Faults::default()
    };
    let first = story(1, faults.clone(), false).await;
    assert_eq!(first, story(1, faults.clone(), true).await);
    assert_ne!(first, story(2, faults, false).await);
    let seen = first.concat();
    for kind in ['W', 'R', 'X', 'N', 'C', '!'] {
        assert!(seen.contains(kind), "{kind} never happened");
    }
    assert!(story(1, Faults::default(), false).await.concat().chars().all(|c| !"XNC!".contains(c)));
}

#[tokio::test]
async fn a_lost_answer_has_done_the_work() {
    let store = FaultyStore::new(
        Arc::new(MemoryStore::new()),
        1,
        Faults { answer_lost: Rate::Always, ..Faults::default() },
    );
    let (key, _, bytes) = object("kept");
    assert!(matches!(store.put(&key, bytes.clone()).await, Err(error) if error.may_pass()));
    assert_eq!(store.inner().get(&key, 10).await.expect("there"), bytes);
    store.inject(Faults::default());
    store.put(&key, bytes).await.expect("harmless to repeat");
}

#[tokio::test]
async fn a_full_store_takes_nothing() {
    let faults = Faults { full: true, ..Faults::default() };
    let store = FaultyStore::new(Arc::new(MemoryStore::new()), 1, faults);
    let (key, _, bytes) = object("12345678");
    assert!(matches!(store.put(&key, bytes).await, Err(StoreError::Full { .. })));
    assert!(matches!(store.get(&key, 10).await, Err(StoreError::NotFound { .. })));
}

/// Five mirrors: unavailable, empty, flipping bits, too large, honest.
struct Market {
    network: MemoryFetcher,
    key: ObjectKey,
    digest: Digest,
    bytes: Bytes,
}

async fn market() -> Market {
    let (key, digest, bytes) = object("what everybody wants");
    let network = MemoryFetcher::new();
    network.serve("empty", Arc::new(MemoryStore::new()));
    let spoiling = FaultyStore::new(
        Arc::new(MemoryStore::new()),
        3,
        Faults { flipped: Rate::Always, ..Faults::default() },
    );
    spoiling.put(&key, bytes.clone()).await.expect("put");
    network.serve("spoiling", Arc::new(spoiling));
    let large = MemoryStore::new();
    large.put(&key, Bytes::from(vec![0; 1000])).await.expect("put");
    network.serve("large", Arc::new(large));
    let honest = MemoryStore::new();
    honest.put(&key, bytes.clone()).await.expect("put");
    network.serve("honest", Arc::new(honest));
    Market { network, key, digest, bytes }
}

#[tokio::test]
async fn the_failure_of_each_mirror_is_reported_and_the_next_one_is_asked() {
    let Market { network, key, digest, bytes } = market().await;
    let plan = FetchPlan::new(["away", "empty", "spoiling", "large", "honest"]);
    let fetched = plan.fetch(&network, &key, &digest, &Limits::for_bytes(100)).await;
    let (got, failures) = fetched.expect("one is honest");
    assert_eq!(got, bytes);
    let mirrors: Vec<_> =
        failures.iter().map(|failure| (failure.mirror.as_str(), failure.error.is_theirs())).collect();
    assert_eq!(mirrors, [("away", false), ("empty", true), ("spoiling", true), ("large", true)]);
    assert!(matches!(
        failures.into_iter().map(|failure| failure.error).collect::<Vec<_>>()[..],
        [
            FetchError::Unreachable { .. },
            FetchError::Missing,
            FetchError::WrongDigest { .. },
            FetchError::TooLarge { .. }
        ]
    ));
    assert!(network.traffic().down_bytes > 0);
}

#[tokio::test]
async fn a_mirror_that_failed_for_good_is_not_asked_again() {
    let Market { network, key, digest, .. } = market().await;
    let plan = FetchPlan::new(["away", "spoiling", "large"]).rounds(3, Duration::from_millis(1));
    let error =
        plan.fetch(&network, &key, &digest, &Limits::for_bytes(100)).await.expect_err("no mirror is honest");
    let asked: Vec<_> = error.failures.iter().map(|failure| failure.mirror.as_str()).collect();
    assert_eq!(asked, ["away", "spoiling", "large", "away", "away"]);
    assert!(error.to_string().contains("3 mirrors"), "{error}");
}

#[tokio::test]
async fn a_mirror_that_comes_back_is_found_in_a_later_round() {
    let Market { network, key, digest, bytes } = market().await;
    let back = MemoryStore::new();
    back.put(&key, bytes).await.expect("put");
    let network = Arc::new(network);
    let plan = FetchPlan::new(["late"]).rounds(1000, Duration::from_millis(1));
    let fetching = tokio::spawn({
        let network = network.clone();
        async move { plan.fetch(&*network, &key, &digest, &Limits::for_bytes(100)).await }
    });
    tokio::time::sleep(Duration::from_millis(5)).await;
    network.serve("late", Arc::new(back));
    let (_, failures) = fetching.await.expect("no panic").expect("it came back");
    assert!(!failures.is_empty());
}

#[tokio::test]
async fn a_plan_without_mirrors_fails_without_failures() {
    let Market { network, key, digest, .. } = market().await;
    let none = FetchPlan::new([""; 0]).fetch(&network, &key, &digest, &Limits::for_bytes(1)).await;
    assert!(matches!(none, Err(error) if error.failures.is_empty()));
}

#[tokio::test]
async fn a_slow_mirror_is_given_up_at_the_deadline_of_the_limits() {
    let Market { network, key, digest, .. } = market().await;
    let slow = Faults { delay_max: Duration::from_secs(3600), ..Faults::default() };
    network.serve("slow", Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), 1, slow)));
    let limits = Limits::for_bytes(100).within(Duration::from_millis(10));
    let error = FetchPlan::new(["slow"; 5]).fetch(&network, &key, &digest, &limits).await;
    let error = error.expect_err("too slow");
    assert_eq!(error.failures.len(), 5);
    assert!(error.failures.iter().all(|failure| !failure.error.is_theirs()));
}

#[tokio::test]
async fn bytes_without_their_digest_are_refused_with_both_digests() {
    let Market { network, key, digest, .. } = market().await;
    match fetch_verified(&network, "spoiling", &key, &digest, &Limits::for_bytes(100)).await {
        Err(FetchError::WrongDigest { expected, got }) => assert!(expected == digest && got != digest),
        other => panic!("{other:?}"),
    }
    // Large objects are hashed elsewhere, with the same result.
    let body = Bytes::from(vec![7; 3 << 20]);
    let digest = Digest::of(&body);
    let large = MemoryStore::new();
    large.put(&keys::piece(&digest), body.clone()).await.expect("put");
    network.serve("large", Arc::new(large));
    let limits = Limits::for_bytes(4 << 20);
    assert_eq!(fetch_verified(&network, "large", &keys::piece(&digest), &digest, &limits).await, Ok(body));
}
