//! Fetches and checks the contributions that miners committed to. A slow or faulty seat affects no other (PROT-13,
//! PROT-14).

mod hosts;

use crate::run::Validator;
use chain_client::Head;
use futures::{StreamExt as _, stream::FuturesUnordered};
use hosts::HostBudgets;
use node::{Codec, Contribution, Follower, ModelState, error_chain, wait_past};
use protocol::{
    Block, Digest, Schedule, Uid, Window,
    keys::{self, ObjectKey},
    submission::Fault,
    view::{SeatView, WindowView},
};
use rayon::prelude::*;
use std::{collections::BTreeMap, time::Duration};
use store::{Fetch, FetchError, Limits, Sink, fetch_verified_into};
use tokio::sync::{Semaphore, watch};

/// Fetches with a slot at the same time.
const SLOTS: usize = 16;
/// Pause after the first failed attempt for a seat. It doubles with each further one, up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(400);
const RETRY_MAX: Duration = Duration::from_millis(6400);

/// The result for each committed seat.
#[derive(Debug, Default)]
pub struct Gathered {
    pub valid: BTreeMap<Uid, Contribution>,
    pub faulty: BTreeMap<Uid, Fault>,
    /// Seats that this validator could not observe, and why. No evidence against them.
    pub not_observed: BTreeMap<Uid, String>,
}

enum Observation {
    Valid(Contribution),
    Faulty(Fault),
    /// The endpoint sent too slowly, or this validator's link is slow: the other seats tell which.
    Slow(String),
    NotObserved(String),
}

/// Until when contributions are fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatherDeadlines {
    /// A contribution that is not in its bucket by then is missing.
    pub reveal_by: Block,
    /// Unfinished downloads are cancelled then. The rest of the phase is for copying and attesting.
    pub give_up: Block,
}

impl GatherDeadlines {
    pub fn of(schedule: &Schedule, window: Window) -> GatherDeadlines {
        let reveal_by = schedule.reveal_deadline(window);
        let phase = schedule.attest_deadline(window).0.saturating_sub(reveal_by.0);
        GatherDeadlines { reveal_by, give_up: Block(reveal_by.0.saturating_add(phase / 4)) }
    }
}

impl Validator {
    pub(crate) async fn gather(&mut self, view: &WindowView, seats: &[SeatView]) -> Gathered {
        let until = GatherDeadlines::of(&self.node.schedule(), view.window);
        let mut gathered = gather(self.node.follower(), view, seats, &self.node.heads, until).await;
        let (codec, base) = (self.node.follower().sent.clone(), view.lineage);
        let rate = self.node.run().params.outer_rate.get();
        let refuse = move |state: &mut ModelState| {
            if state.lineage == base {
                gathered.refuse_without_effect(&codec, rate, &state.theta);
            }
            gathered
        };
        self.node.blocking.with(&mut self.node.sync.state, refuse).await
    }
}

/// Fetches every committed contribution until it arrives or `give_up` passes. Unfinished downloads are then
/// cancelled, so a slow seat harms only itself (PROT-13). `Slots` gives every seat a turn.
pub async fn gather(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    heads: &watch::Receiver<Head>,
    until: GatherDeadlines,
) -> Gathered {
    let slots = Slots::until(until.reveal_by, heads.borrow().block, view.commitments.len());
    let observer = &Observer { follower, view, seats, heads, until, slots };
    let observations = view
        .commitments
        .iter()
        .map(|(uid, digest)| async move { (*uid, observer.observe(*uid, digest).await) });
    let mut observations: FuturesUnordered<_> = observations.collect();
    let mut gathered = Gathered::default();
    let mut slow = BTreeMap::new();
    while let Some((uid, observation)) = observations.next().await {
        match observation {
            Observation::Valid(contribution) => drop(gathered.valid.insert(uid, contribution)),
            Observation::Faulty(fault) => drop(gathered.faulty.insert(uid, fault)),
            Observation::Slow(reason) => drop(slow.insert(uid, reason)),
            Observation::NotObserved(reason) => drop(gathered.not_observed.insert(uid, reason)),
        }
    }
    gathered.judge_slow(slow);
    for (uid, fault) in &gathered.faulty {
        tracing::info!(window = view.window.0, uid = uid.0, %fault, "faulty contribution");
    }
    for (uid, reason) in &gathered.not_observed {
        tracing::warn!(window = view.window.0, uid = uid.0, reason, "could not observe a contribution");
    }
    gathered
}

impl Gathered {
    /// Moves contributions that change no weight of `theta` at the outer rate to the faulty ones (PROT-14).
    pub fn refuse_without_effect(&mut self, codec: &Codec, rate: f32, theta: &[f32]) {
        let (valid, without): (BTreeMap<Uid, Contribution>, BTreeMap<Uid, Contribution>) =
            std::mem::take(&mut self.valid)
                .into_par_iter()
                .partition(|(_, held)| codec.changes_any(held.body(), rate, theta));
        self.valid = valid;
        for uid in without.into_keys() {
            tracing::info!(uid = uid.0, fault = %Fault::NoEffect, "faulty contribution");
            self.faulty.insert(uid, Fault::NoEffect);
        }
    }

    /// A slow seat counts as missing, unless more seats were slow than arrived: then this validator's link is the
    /// likelier cause (PROT-14).
    fn judge_slow(&mut self, slow: BTreeMap<Uid, String>) {
        let ours = self.valid.len() < slow.len();
        for (uid, reason) in slow {
            if ours {
                let reason = format!("{reason}; most others were slow too, so it may be our own link");
                self.not_observed.insert(uid, reason);
            } else {
                self.faulty.insert(uid, Fault::Missing);
            }
        }
    }
}

/// Slots for fetches. Each attempt waits for a slot in turn, so a second attempt comes after every first one. An
/// attempt that exceeds its share of the time continues without its slot: every first attempt begins before the
/// deadline, and a slow one loses no bytes.
struct Slots {
    free: Semaphore,
    /// Blocks for which an attempt keeps its slot.
    share: u32,
    /// How soon a host may be asked again.
    hosts: HostBudgets,
}

impl Slots {
    /// For `seats` seats, from block `now` to the deadline. Each group of [`SLOTS`] seats has an equal part of the
    /// time.
    fn until(deadline: Block, now: Block, seats: usize) -> Slots {
        let turns = u32::try_from(seats.div_ceil(SLOTS)).unwrap_or(u32::MAX).max(1);
        let share = (deadline.0.saturating_sub(now.0) / turns).max(1);
        Slots { free: Semaphore::new(SLOTS), share, hosts: HostBudgets::default() }
    }
}

/// Observes the commitments of one window.
struct Observer<'a> {
    follower: &'a Follower,
    view: &'a WindowView,
    seats: &'a [SeatView],
    heads: &'a watch::Receiver<Head>,
    until: GatherDeadlines,
    slots: Slots,
}

impl Observer<'_> {
    /// Fetches and checks one contribution. Failures are retried until the deadline; the last one decides whose fault
    /// it is.
    async fn observe(&self, uid: Uid, digest: &Digest) -> Observation {
        let Some(seat) = self.seats.iter().find(|seat| seat.id.uid == uid) else {
            return Observation::NotObserved("the seat is gone from the chain".into());
        };
        let key = keys::contribution(self.follower.run.id, self.view.window, digest);
        let limits = self.follower.contribution_limits();
        let mut incoming = self.follower.incoming_contribution();
        let wanted =
            Wanted { endpoint: &seat.endpoint, key: &key, digest, limits: &limits, until: self.until };
        let fetch = &*self.follower.fetch;
        match fetch_until(fetch, &wanted, &mut incoming, self.heads, &self.slots, RETRY).await {
            Ok(()) => self
                .follower
                .verify(self.view, seat, digest, incoming.finish())
                .map_or_else(Observation::Faulty, Observation::Valid),
            Err(NotFetched::NoSlot) => Observation::NotObserved("the deadline came before its turn".into()),
            Err(NotFetched::Failed(error)) => observation_of(&error),
            Err(NotFetched::Unfinished) => {
                Observation::Slow("the download was unfinished when it was time to attest".into())
            }
        }
    }
}

/// Bytes to fetch.
struct Wanted<'a> {
    endpoint: &'a str,
    key: &'a ObjectKey,
    digest: &'a Digest,
    limits: &'a Limits,
    until: GatherDeadlines,
}

/// Why there are no bytes.
#[derive(Debug)]
enum NotFetched {
    /// The last attempt failed.
    Failed(FetchError),
    /// The first attempt was still running.
    Unfinished,
    /// No slot was free before the deadline.
    NoSlot,
}

/// Retries until the bytes are complete or the deadline passes, with growing pauses and within the host's budget. After
/// the deadline there is one more attempt: bytes that came in time are found. Neither this nor the first attempt needs
/// the host's budget, so no seat can use up another's.
async fn fetch_until(
    fetch: &dyn Fetch,
    wanted: &Wanted<'_>,
    to: &mut dyn Sink,
    heads: &watch::Receiver<Head>,
    slots: &Slots,
    retry: Duration,
) -> Result<(), NotFetched> {
    let Wanted { endpoint, key, digest, limits, until } = *wanted;
    let (mut past_heads, mut share_heads, mut deadline_heads) = (heads.clone(), heads.clone(), heads.clone());
    let (mut retry, retry_max) = (retry, retry.max(RETRY_MAX));
    let mut give_up = std::pin::pin!(wait_past(&mut past_heads, until.give_up));
    let mut last = None;
    loop {
        // A lost chain ends these waits too; the caller notices it.
        let mut slot = tokio::select! {
            biased;
            _ = &mut give_up => return Err(last.map_or(NotFetched::NoSlot, NotFetched::Failed)),
            slot = slots.free.acquire() => slot.ok(),
        };
        let began = heads.borrow().block;
        let kept_until = Block(began.0.saturating_add(slots.share - 1));
        let mut fetching = std::pin::pin!(fetch_verified_into(fetch, endpoint, key, digest, limits, to));
        let fetched = loop {
            tokio::select! {
                biased;
                fetched = &mut fetching => break fetched,
                _ = &mut give_up => return Err(last.map_or(NotFetched::Unfinished, NotFetched::Failed)),
                _ = wait_past(&mut share_heads, kept_until), if slot.is_some() => slot = None,
            }
        };
        drop(slot);
        match fetched {
            Err(error) if until.reveal_by < began => return Err(NotFetched::Failed(error)),
            Err(error) => {
                last = Some(error);
                let pause = async {
                    tokio::time::sleep(retry).await;
                    slots.hosts.turn(endpoint).await;
                };
                tokio::select! {
                    biased;
                    _ = wait_past(&mut deadline_heads, until.reveal_by) => {}
                    () = pause => {}
                }
                retry = retry.saturating_mul(2).min(retry_max);
            }
            Ok(()) => {
                slots.hosts.served(endpoint);
                return Ok(());
            }
        }
    }
}

/// A failure that our own network may have caused is no evidence (PROT-14).
fn observation_of(error: &FetchError) -> Observation {
    match error {
        error if !error.is_theirs() => Observation::NotObserved(error_chain(error)),
        FetchError::Stalled { .. } | FetchError::Crawled { .. } => Observation::Slow(error_chain(error)),
        FetchError::WrongDigest { .. } => Observation::Faulty(Fault::WrongDigest),
        _ => Observation::Faulty(Fault::Missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use protocol::{
        Hotkey, RunId,
        contribution::{Schema, TensorSpec},
        params::Density,
        submission::Header,
    };
    use std::sync::atomic::{AtomicU64, Ordering};
    use store::{BufferSink, TrafficTotals};

    fn contribution(uid: Uid) -> Contribution {
        let digest = Digest::default();
        let header = Header {
            codec: protocol::PROTOCOL_VERSION,
            run: RunId(0),
            window: Window(0),
            uid,
            hotkey: Hotkey([0; 32]),
            base: digest,
            schema: digest,
            density: Density(64),
            trained: 1,
        };
        Contribution { digest, bytes: Vec::new().into(), header, square_norms: Vec::new() }
    }

    #[test]
    fn a_contribution_that_changes_no_weight_is_a_fault() {
        let tensor = TensorSpec { name: "weight".into(), shape: vec![4096] };
        let codec = Codec::new(&Schema::new(vec![tensor]).unwrap(), Density(64)).unwrap();
        let key = ed25519_dalek::SigningKey::from_bytes(&[7; 32]);
        let signer = protocol::identity::Signer::new(key, protocol::identity::GenesisHash([0; 32]));
        let of_level = |uid: u16, level: f32| {
            let body = protocol::contribution::encode(codec.schema(), Density(64), &[level; 4096]).unwrap();
            let empty = contribution(Uid(uid));
            let bytes = protocol::submission::seal(&empty.header, &body, &signer).into();
            (Uid(uid), Contribution { bytes, ..empty })
        };
        let mute = 1.0 / (1u32 << 30) as f32;
        let valid = [of_level(1, mute), of_level(2, 1e-3), of_level(3, -mute)].into();
        let mut gathered = Gathered { valid, ..Gathered::default() };
        gathered.refuse_without_effect(&codec, 0.7, &[0.02; 4096]);
        assert_eq!(gathered.valid.keys().copied().collect::<Vec<_>>(), [Uid(2)]);
        assert_eq!(gathered.faulty, [(Uid(1), Fault::NoEffect), (Uid(3), Fault::NoEffect)].into());
    }

    /// The numbers of faulty and of unobserved seats, if `whole` seats arrived and `slow` seats were slow.
    fn judged(whole: u16, slow: u16) -> (usize, usize) {
        let valid = (0..whole).map(Uid).map(|uid| (uid, contribution(uid))).collect();
        let mut gathered = Gathered { valid, ..Gathered::default() };
        let crawled = FetchError::Crawled { bytes: 1, window: Duration::from_secs(5) };
        let slow = (0..slow).map(|index| match observation_of(&crawled) {
            Observation::Slow(reason) => (Uid(whole + index), reason),
            _ => panic!("a crawling seat is slow"),
        });
        gathered.judge_slow(slow.collect());
        (gathered.faulty.len(), gathered.not_observed.len())
    }

    #[test]
    fn a_slow_seat_among_fast_ones_counts_as_missing() {
        assert_eq!(judged(5, 1), (1, 0));
        assert_eq!(judged(3, 3), (3, 0));
    }

    #[test]
    fn if_most_seats_are_slow_none_is_at_fault() {
        assert_eq!(judged(1, 5), (0, 5));
        assert_eq!(judged(0, 1), (0, 1));
    }

    /// An endpoint behind a network that fails one fetch in twenty, and every fetch of one seat in twenty. Each fetch
    /// takes a block.
    struct BadNetwork {
        heads: watch::Sender<Head>,
        seat: u64,
        fetches: AtomicU64,
        errors: AtomicU64,
    }

    #[async_trait]
    impl Fetch for BadNetwork {
        async fn fetch(&self, _: &str, _: &ObjectKey, limits: &Limits) -> Result<bytes::Bytes, FetchError> {
            let nth = self.fetches.fetch_add(1, Ordering::Relaxed);
            self.heads.send_modify(|head| head.block = Block(head.block.0 + 1));
            let _ = limits;
            let digest = Digest::of(&[self.seat.to_le_bytes(), nth.to_le_bytes()].concat()).0;
            let lasting = Digest::of(&self.seat.to_le_bytes()).0;
            if u32::from(digest[0]) * 20 >= 256 && u32::from(lasting[0]) * 20 >= 256 {
                return Ok(bytes_of(self.seat));
            }
            self.errors.fetch_add(1, Ordering::Relaxed);
            let what = "on purpose".to_owned();
            Err(match digest[1] % 6 {
                0 => FetchError::Unresolved { what },
                1 => FetchError::Unreachable { what },
                2 => FetchError::Broken { got: 1, expected: 9, what },
                3 => FetchError::Unavailable { status: 503 },
                4 => FetchError::Deadline { after: Duration::from_secs(1) },
                _ => FetchError::Ours { what },
            })
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    /// Slots for one seat.
    fn enough() -> Slots {
        Slots::until(Block(5), Block(0), 1)
    }

    fn bytes_of(seat: u64) -> bytes::Bytes {
        seat.to_le_bytes().to_vec().into()
    }

    #[tokio::test]
    async fn a_bad_network_blames_no_seat_in_a_thousand_windows() {
        let (mut errors, mut unseen) = (0, 0);
        for seat in 0..1000 {
            let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
            let network =
                BadNetwork { heads: sender, seat, fetches: AtomicU64::new(0), errors: AtomicU64::new(0) };
            let digest = Digest::of(&bytes_of(seat));
            let key = keys::contribution(RunId(0), Window(1), &digest);
            let limits = Limits::for_bytes(100);
            let until = GatherDeadlines { reveal_by: Block(5), give_up: Block(7) };
            let wanted = Wanted { endpoint: "", key: &key, digest: &digest, limits: &limits, until };
            let mut whole = BufferSink::default();
            match fetch_until(&network, &wanted, &mut whole, &heads, &enough(), Duration::ZERO).await {
                Ok(()) => assert_eq!(whole.into_bytes(), bytes_of(seat)),
                Err(NotFetched::Failed(error)) => {
                    assert!(matches!(observation_of(&error), Observation::NotObserved(_)), "{error}");
                    unseen += 1;
                }
                Err(NotFetched::Unfinished | NotFetched::NoSlot) => {
                    panic!("this network fails without delay")
                }
            }
            errors += network.errors.load(Ordering::Relaxed);
        }
        assert!(errors > 300 && (20..100).contains(&unseen), "the network failed: {errors} {unseen}");
    }

    #[tokio::test]
    async fn after_the_deadline_there_is_one_attempt() {
        let (sender, heads) = watch::channel(Head { block: Block(6), hash: Digest::default() });
        let network =
            BadNetwork { heads: sender, seat: 1, fetches: AtomicU64::new(0), errors: AtomicU64::new(0) };
        let digest = Digest::of(b"other bytes than it shows");
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = GatherDeadlines { reveal_by: Block(5), give_up: Block(9) };
        let wanted = Wanted { endpoint: "", key: &key, digest: &digest, limits: &limits, until };
        let error =
            fetch_until(&network, &wanted, &mut BufferSink::default(), &heads, &enough(), Duration::ZERO)
                .await;
        assert!(error.is_err());
        assert_eq!(network.fetches.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn three_quarters_of_the_phase_remain_to_attest() {
        let schedule = Schedule {
            start: Block(100),
            blocks_per_window: 60,
            commit_by: 30,
            reveal_by: 40,
            attest_by: 48,
            vote_by: 55,
        };
        let until = GatherDeadlines::of(&schedule, Window(1));
        assert_eq!(until, GatherDeadlines { reveal_by: Block(200), give_up: Block(202) });
        let short = Schedule { attest_by: 43, ..schedule };
        assert_eq!(GatherDeadlines::of(&short, Window(1)).give_up, Block(200));
    }

    /// An endpoint whose answer never ends.
    struct Crawler(watch::Sender<Head>);

    #[async_trait]
    impl Fetch for Crawler {
        async fn fetch(&self, _: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            loop {
                self.0.send_modify(|head| head.block = Block(head.block.0 + 1));
                tokio::task::yield_now().await;
            }
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    #[tokio::test]
    async fn a_download_that_never_ends_is_cancelled() {
        let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
        let digest = Digest::of(b"bytes that never come");
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = GatherDeadlines { reveal_by: Block(5), give_up: Block(7) };
        let wanted = Wanted { endpoint: "", key: &key, digest: &digest, limits: &limits, until };
        let crawler = Crawler(sender);
        let ended =
            fetch_until(&crawler, &wanted, &mut BufferSink::default(), &heads, &enough(), Duration::ZERO)
                .await;
        assert!(matches!(ended, Err(NotFetched::Unfinished)));
        assert!((7..12).contains(&heads.borrow().block.0), "{:?}", heads.borrow().block);
    }

    /// Endpoints by name: some have their bytes from a block on, some never, and the answers of the others never end.
    struct Many {
        heads: watch::Receiver<Head>,
        /// From when on honest endpoints have their bytes.
        uploaded: Block,
    }

    #[async_trait]
    impl Fetch for Many {
        async fn fetch(&self, endpoint: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            // An answer takes a while; others are served meanwhile.
            tokio::task::yield_now().await;
            match endpoint {
                "honest" if self.uploaded <= self.heads.borrow().block => Ok(bytes_of(1)),
                "honest" | "withholds" => Err(FetchError::Missing),
                _ => std::future::pending().await,
            }
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    /// The result of each of `seats`, fetched in this order, with 40 blocks until the deadline and 10 more until it
    /// gives up.
    async fn observe_all(seats: &[&str], uploaded: Block, slots: Slots) -> Vec<Result<(), NotFetched>> {
        let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
        let network = Many { heads: heads.clone(), uploaded };
        let digest = Digest::of(&bytes_of(1));
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = GatherDeadlines { reveal_by: Block(40), give_up: Block(50) };
        let fetches = seats.iter().map(|endpoint| {
            let (network, heads, key, digest, limits) = (&network, &heads, &key, &digest, &limits);
            let slots = &slots;
            async move {
                let wanted = Wanted { endpoint, key, digest, limits, until };
                fetch_until(network, &wanted, &mut BufferSink::default(), heads, slots, Duration::ZERO).await
            }
        });
        let fetches = futures::future::join_all(fetches);
        let blocks = async {
            for block in 1..60 {
                // Each fetch is polled several times per block.
                for _ in 0..seats.len() * 4 {
                    tokio::task::yield_now().await;
                }
                sender.send_modify(|head| head.block = Block(block));
            }
        };
        futures::future::join(fetches, blocks).await.0
    }

    /// 60 bad seats, and 4 honest ones after them.
    fn crowd(bad: &'static str) -> Vec<&'static str> {
        [vec![bad; 60], vec!["honest"; 4]].concat()
    }

    #[tokio::test]
    async fn honest_seats_behind_sixty_slow_ones_are_fetched_in_time() {
        let seats = crowd("crawls");
        let ended = observe_all(&seats, Block(0), Slots::until(Block(40), Block(0), seats.len())).await;
        assert!(ended[60..].iter().all(Result::is_ok), "{:?}", &ended[60..]);
        assert!(ended[..60].iter().all(|ended| matches!(ended, Err(NotFetched::Unfinished))));

        // Without shares the slow seats keep their slots, and the others get none.
        let keeps = Slots { free: Semaphore::new(SLOTS), share: 1_000, hosts: HostBudgets::default() };
        let ended = observe_all(&seats, Block(0), keeps).await;
        assert!(ended[SLOTS..].iter().all(|ended| matches!(ended, Err(NotFetched::NoSlot))), "{ended:?}");
    }

    #[tokio::test]
    async fn honest_seats_behind_sixty_empty_ones_are_retried_until_they_upload() {
        let seats = crowd("withholds");
        let slots_of = Slots::until(Block(40), Block(0), seats.len());
        let ended = observe_all(&seats, Block(30), slots_of).await;
        assert!(ended[60..].iter().all(Result::is_ok), "{:?}", &ended[60..]);
        let missing =
            |ended: &Result<(), NotFetched>| matches!(ended, Err(NotFetched::Failed(FetchError::Missing)));
        assert!(ended[..60].iter().all(missing), "{:?}", &ended[..60]);
    }

    /// A host of a stranger, which seats name as theirs. It counts the requests, and has no contribution.
    #[derive(Default)]
    struct Victim(AtomicU64);

    #[async_trait]
    impl Fetch for Victim {
        async fn fetch(&self, _: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            self.0.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(50)).await;
            Err(FetchError::Missing)
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    /// The default schedule in virtual time: blocks of 6 s, ten of them until the deadline, two more to give up.
    #[tokio::test(start_paused = true)]
    async fn a_host_that_150_seats_name_gets_few_requests_per_window() {
        let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
        let victim = Victim::default();
        let digest = Digest::of(b"bytes that are nowhere");
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = GatherDeadlines { reveal_by: Block(10), give_up: Block(12) };
        let slots = Slots::until(until.reveal_by, Block(0), 150);
        let fetches = (0..150).map(|_| async {
            let endpoint = "https://victim.example/bucket";
            let wanted = Wanted { endpoint, key: &key, digest: &digest, limits: &limits, until };
            fetch_until(&victim, &wanted, &mut BufferSink::default(), &heads, &slots, RETRY).await
        });
        let fetches = futures::future::join_all(fetches);
        let blocks = async {
            for block in 1..15 {
                tokio::time::sleep(Duration::from_secs(6)).await;
                sender.send_modify(|head| head.block = Block(block));
            }
        };
        let ended = futures::future::join(fetches, blocks).await.0;
        let requests = victim.0.load(Ordering::Relaxed);
        assert!(requests <= 400, "the host got {requests} requests from one validator");
        let missing =
            |ended: &Result<(), NotFetched>| matches!(ended, Err(NotFetched::Failed(FetchError::Missing)));
        assert!(ended.iter().all(missing), "each seat is asked, and found to have nothing");
    }

    #[test]
    fn every_first_attempt_begins_before_the_deadline() {
        let share = |seats| Slots::until(Block(140), Block(100), seats).share;
        assert_eq!((share(0), share(1), share(SLOTS)), (40, 40, 40));
        assert_eq!((share(SLOTS + 1), share(4 * SLOTS), share(1000)), (20, 10, 1));
        assert_eq!(Slots::until(Block(100), Block(140), 20).share, 1, "past the deadline");
    }

    #[test]
    fn the_kind_of_failure_decides_whose_fault_it_is() {
        assert!(matches!(observation_of(&FetchError::Missing), Observation::Faulty(Fault::Missing)));
        let got = FetchError::WrongDigest { expected: Digest([1; 32]), got: Digest([2; 32]) };
        assert!(matches!(observation_of(&got), Observation::Faulty(Fault::WrongDigest)));
        let unreachable = FetchError::Unavailable { status: 503 };
        assert!(matches!(observation_of(&unreachable), Observation::NotObserved(_)));
    }
}
