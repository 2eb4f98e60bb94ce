//! Fetches and checks the contributions that miners committed to. A slow or faulty seat affects no other (PROT-13,
//! PROT-14).
//!
//! The cost of a window is limited for any commitments: `order` limits the contributions fetched, [`IN_MEMORY`] those
//! in memory at once. Valid contributions that have arrived are on the disk.

mod hosts;
pub mod order;

use chain_client::{ChainError, Head};
use daemon::{
    Blocking, Codec, Contribution, Follower, HeldContribution, Node, Spill,
    durable::{DiskFullRetry, DiskStatus, FileError},
    error_chain, wait_past,
};
use futures::{StreamExt as _, stream::FuturesUnordered};
use gauntlet::gathering::GatherDeadlines;
use hosts::HostBudgets;
use order::{FetchHistory, FetchOrder, fetch_order};
use protocol::{
    Block, Digest, Uid, assign,
    keys::{self, ObjectKey},
    submission::Fault,
    view::{SeatView, WindowView},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use store::{Fetch, FetchError, Limits, Sink, fetch_verified_into};
use tokio::sync::{Notify, Semaphore, SemaphorePermit, watch};
use tracing::field::Empty;

/// Concurrent fetches with a slot.
const SLOTS: usize = 16;
/// Maximum number of fetches that have exceeded their share of the time, and continue without a slot.
const OVERDUE_MAX: usize = 16;
/// Maximum number of contributions in memory at the same time while a validator gathers.
pub const IN_MEMORY: usize = SLOTS + OVERDUE_MAX;
/// Pause after the first failed attempt for a seat. It doubles with each further one, up to [`RETRY_MAX`].
const RETRY: Duration = Duration::from_millis(400);
const RETRY_MAX: Duration = Duration::from_millis(6400);
/// The time for attempts after the deadline in an attest phase of fewer than four blocks, which has no block for them.
const LAST_ATTEMPT: Duration = Duration::from_millis(250);

/// The result for each committed seat.
#[derive(Debug, Default)]
pub struct Gathered {
    pub valid: BTreeMap<Uid, HeldContribution>,
    pub faulty: BTreeMap<Uid, Fault>,
    /// Seats that this validator could not observe, with the reason. This is not evidence against them.
    pub not_observed: BTreeMap<Uid, String>,
    /// The part of `not_observed` that this validator did not fetch, as more seats without a consensus weight
    /// committed than it fetches in a window.
    pub unfetched: BTreeSet<Uid>,
}

enum Observation {
    Valid(HeldContribution),
    Faulty(Fault),
    /// The endpoint sent too slowly, or this validator's link is slow: the other seats decide which.
    Slow(String),
    NotObserved(String),
}

/// Fetches and keeps the contributions of a window.
pub struct Gatherer {
    /// The bytes of gathered contributions.
    spill: Spill,
    history: FetchHistory,
}

impl Gatherer {
    /// Keeps contributions below the node's `directory`.
    pub fn new(directory: &Path) -> Gatherer {
        Gatherer { spill: Spill::new(&directory.join("gathered")), history: FetchHistory::default() }
    }

    #[tracing::instrument(
        name = "gather", target = "profile", level = "debug", skip_all,
        fields(
            window = view.window.0, committed = view.commitments.len(), valid = Empty, faulty = Empty,
            not_observed = Empty
        )
    )]
    pub(crate) async fn gather(&mut self, node: &Node, view: &WindowView, seats: &[SeatView]) -> Gathered {
        let params = node.run().params;
        let until = GatherDeadlines::of(&params.schedule, view.window);
        // Without the hash all validators still have one order, although it could be foreseen.
        let hash = draw_hash(node, view).await.unwrap_or_default();
        let seed = assign::seed(assign::domain::SELECT, node.run_id(), view.window, &hash);
        self.history.retain(seats);
        let order = fetch_order(&params, &seed, view, seats, &self.history);
        let Node { sync, heads, journal, .. } = node;
        let observer = Observer {
            follower: &sync.follower,
            view,
            seats: seats.iter().map(|seat| (seat.id.uid, seat)).collect(),
            committed: view.commitments.iter().copied().collect(),
            heads,
            until,
            slots: Slots::default(),
            spill: &self.spill,
            disk: &journal.disk,
            theta: (sync.state.lineage == view.lineage).then_some(&sync.state.theta[..]),
        };
        let gathered = observer.gather(&order).await;
        let Gathered { valid, faulty, not_observed, .. } = &gathered;
        let span = tracing::Span::current();
        span.record("valid", valid.len()).record("faulty", faulty.len());
        span.record("not_observed", not_observed.len());
        let fetched = seats.iter().filter(|seat| {
            observer.committed.contains_key(&seat.id.uid) && !gathered.unfetched.contains(&seat.id.uid)
        });
        // A window without any valid contribution indicates a fault of this validator rather than of the seats.
        for seat in fetched.filter(|_| !gathered.valid.is_empty()) {
            let failed = !gathered.valid.contains_key(&seat.id.uid);
            self.history.record(seat.id, view.window, failed);
        }
        gathered
    }

    /// Adds the contributions that `held` lacks to it. One that the disk does not take is left out.
    pub(crate) async fn keep_fetched(
        &self,
        blocking: Blocking,
        contributions: &BTreeMap<Uid, Contribution>,
        held: &mut BTreeMap<Uid, HeldContribution>,
    ) {
        for (uid, contribution) in contributions {
            if held.get(uid).is_some_and(|held| held.digest == contribution.digest) {
                continue;
            }
            let (spill, contribution) = (self.spill.clone(), contribution.clone());
            match blocking.run(move || spill.write(&contribution)).await {
                Ok(kept) => drop(held.insert(*uid, kept)),
                Err(error) => tracing::warn!(%uid, error = %error_chain(&error), "it will not be measured"),
            }
        }
    }
}

/// The hash of block `commit_by + 1`, from which the selection is drawn (PROT-2). The chain records it one block
/// later; until then it is that of the head.
async fn draw_hash(node: &Node, view: &WindowView) -> Option<Digest> {
    let at = Block(node.schedule().commit_deadline(view.window).0.saturating_add(1));
    let head = *node.heads.borrow();
    if view.evaluation_hash.is_some() || head.block == at {
        return view.evaluation_hash.or(Some(head.hash));
    }
    node.window_view(view.window).await.ok().flatten()?.evaluation_hash
}

impl Gathered {
    /// Counts a slow seat as missing, unless more seats were slow than arrived: then this validator's link is the
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

/// Slots for fetches. Attempts wait for slots in order, so a second attempt comes after every first one. An attempt
/// that exceeds its share of the time continues without its slot: every first attempt begins before the deadline, and
/// a slow one loses no bytes. Of more than [`OVERDUE_MAX`] such attempts the oldest ends, and first one for a seat
/// without a weight.
struct Slots {
    free: Semaphore,
    /// Permits for attempts, until their contribution is on the disk.
    memory: Semaphore,
    /// Permit for the contribution that is being checked.
    verifying: Semaphore,
    overdue: Mutex<Vec<Overdue>>,
    /// Request budgets of hosts.
    hosts: HostBudgets,
}

/// An attempt without a slot.
struct Overdue {
    has_weight: bool,
    end: Arc<Notify>,
}

impl Default for Slots {
    fn default() -> Slots {
        Slots {
            free: Semaphore::new(SLOTS),
            memory: Semaphore::new(IN_MEMORY),
            verifying: Semaphore::new(1),
            overdue: Mutex::default(),
            hosts: HostBudgets::default(),
        }
    }
}

impl Slots {
    async fn acquire(&self) -> (Option<SemaphorePermit<'_>>, Option<SemaphorePermit<'_>>) {
        let slot = self.free.acquire().await.ok();
        (slot, self.memory.acquire().await.ok())
    }

    fn begin_overdue(&self, has_weight: bool, end: &Arc<Notify>) {
        let mut overdue = self.overdue();
        overdue.push(Overdue { has_weight, end: end.clone() });
        if OVERDUE_MAX < overdue.len() {
            let oldest = overdue.iter().position(|attempt| !attempt.has_weight).unwrap_or(0);
            overdue.remove(oldest).end.notify_one();
        }
    }

    fn end_overdue(&self, end: &Arc<Notify>) {
        self.overdue().retain(|attempt| !Arc::ptr_eq(&attempt.end, end));
    }

    fn overdue(&self) -> MutexGuard<'_, Vec<Overdue>> {
        self.overdue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the number of blocks for which an attempt keeps its slot, if `seats` seats are fetched from block `now` to
/// `deadline`. Each group of [`SLOTS`] seats has an equal part of the time.
fn share(now: Block, deadline: Block, seats: usize) -> u32 {
    let turns = u32::try_from(seats.div_ceil(SLOTS)).unwrap_or(u32::MAX).max(1);
    (deadline.0.saturating_sub(now.0) / turns).max(1)
}

/// Observes the commitments of one window.
struct Observer<'a> {
    follower: &'a Follower,
    view: &'a WindowView,
    seats: BTreeMap<Uid, &'a SeatView>,
    committed: BTreeMap<Uid, Digest>,
    heads: &'a watch::Receiver<Head>,
    until: GatherDeadlines,
    slots: Slots,
    spill: &'a Spill,
    disk: &'a DiskStatus,
    /// The window's model, if this node has it.
    theta: Option<&'a [f32]>,
}

/// Reason why a contribution is not on the disk.
#[derive(Debug, thiserror::Error)]
enum NotHeld {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Chain(#[from] ChainError),
}

impl Observer<'_> {
    /// Fetches contributions until they arrive or `give_up` passes. Unfinished downloads are then cancelled, so a slow
    /// seat harms only itself (PROT-13). Seats without a weight come after those with one, at the latest after half of
    /// the time.
    async fn gather(&self, order: &FetchOrder) -> Gathered {
        let now = self.heads.borrow().block;
        let GatherDeadlines { reveal_by, .. } = self.until;
        let half = Block(now.0.saturating_add(reveal_by.0.saturating_sub(now.0) / 2));
        let (arrived, mut have_arrived) = watch::channel(false);
        let weighted = async {
            let share = share(now, half, order.weighted.len());
            let observed = self.observe_all(&order.weighted, true, share).await;
            arrived.send_replace(true);
            observed
        };
        let unweighted = async {
            let mut heads = self.heads.clone();
            tokio::select! {
                biased;
                _ = have_arrived.wait_for(|have_arrived| *have_arrived) => {}
                _ = wait_past(&mut heads, Block(half.0.saturating_sub(1))) => {}
            }
            let now = self.heads.borrow().block;
            self.observe_all(&order.unweighted, false, share(now, reveal_by, order.unweighted.len())).await
        };
        let (weighted, unweighted) = futures::join!(weighted, unweighted);
        let mut gathered = Gathered::default();
        let mut slow = BTreeMap::new();
        for (uid, observation) in weighted.into_iter().chain(unweighted) {
            match observation {
                Observation::Valid(held) => drop(gathered.valid.insert(uid, held)),
                Observation::Faulty(fault) => drop(gathered.faulty.insert(uid, fault)),
                Observation::Slow(reason) => drop(slow.insert(uid, reason)),
                Observation::NotObserved(reason) => drop(gathered.not_observed.insert(uid, reason)),
            }
        }
        gathered.judge_slow(slow);
        let window = self.view.window.0;
        for (uid, fault) in &gathered.faulty {
            tracing::info!(window, uid = uid.0, %fault, "faulty contribution");
        }
        for (uid, reason) in &gathered.not_observed {
            tracing::warn!(window, uid = uid.0, reason, "could not observe a contribution");
        }
        if !order.unfetched.is_empty() {
            let seats = order.unfetched.len();
            tracing::info!(
                window,
                seats,
                "seats without a weight that were not fetched: it was not their turn"
            );
        }
        let reason = "not fetched: it was not its turn among the seats without a weight";
        gathered.not_observed.extend(order.unfetched.iter().map(|uid| (*uid, reason.to_owned())));
        gathered.unfetched = order.unfetched.clone();
        gathered
    }

    async fn observe_all(&self, uids: &[Uid], has_weight: bool, share: u32) -> Vec<(Uid, Observation)> {
        let observations: FuturesUnordered<_> = uids
            .iter()
            .map(|uid| async move { (*uid, self.observe(*uid, has_weight, share).await) })
            .collect();
        observations.collect().await
    }

    /// Fetches and checks one contribution. Failures are retried until the deadline; the attempt after it decides
    /// whether the seat is at fault.
    async fn observe(&self, uid: Uid, has_weight: bool, share: u32) -> Observation {
        let Some((&seat, digest)) = self.seats.get(&uid).zip(self.committed.get(&uid)) else {
            return Observation::NotObserved("the seat is gone from the chain".into());
        };
        let key = keys::contribution(self.follower.run.id, self.view.window, digest);
        let limits = self.follower.contribution_limits();
        let mut incoming = self.follower.incoming_contribution();
        let (endpoint, until) = (&seat.endpoint[..], self.until);
        let wanted = Wanted { endpoint, key: &key, digest, limits: &limits, until, has_weight, share };
        let fetch = &*self.follower.fetch;
        match fetch_until(fetch, &wanted, &mut incoming, self.heads, &self.slots, RETRY).await {
            Ok(_memory) => {
                let arrived = match incoming.finish() {
                    Ok(arrived) => arrived,
                    Err(error) => return Observation::NotObserved(error_chain(&error)),
                };
                // Sequential: the slow decoder needs several times the memory of the bytes.
                let turn = self.slots.verifying.acquire().await;
                let verified = self.follower.verify(self.view, seat, digest, arrived).await;
                drop(turn);
                let (codec, rate) = (&self.follower.sent, self.follower.run.params.outer_rate.get());
                match verified.and_then(|contribution| with_effect(codec, rate, self.theta, contribution)) {
                    Ok(contribution) => self.hold(contribution).await,
                    Err(fault) => Observation::Faulty(fault),
                }
            }
            Err(NotFetched::NoSlot) => Observation::NotObserved(
                "it could not be asked after the reveal deadline: others took all the time".into(),
            ),
            Err(NotFetched::CutOff) => {
                Observation::NotObserved("its download ended, as too many were unfinished".into())
            }
            Err(NotFetched::Failed(error)) => observation_of(&error),
            Err(NotFetched::Unfinished) => {
                Observation::Slow("the download was unfinished when it was time to attest".into())
            }
        }
    }

    /// Writes a contribution to the disk. If the disk is full, it retries until it is time to attest.
    async fn hold(&self, contribution: Contribution) -> Observation {
        let (contribution, blocking) = (Arc::new(contribution), self.follower.blocking);
        let mut heads = self.heads.clone();
        let mut retry = DiskFullRetry::new(self.disk);
        let held = retry.wait_until(self.until.give_up, &mut heads, async || {
            let (spill, contribution) = (self.spill.clone(), contribution.clone());
            Ok::<_, NotHeld>(blocking.run(move || spill.write(&contribution)).await?)
        });
        match held.await {
            Ok(held) => Observation::Valid(held),
            Err(error) => Observation::NotObserved(error_chain(&error)),
        }
    }
}

/// Returns the contribution, unless it changes no weight of the window's model at the outer rate (PROT-14). Without
/// the model nothing is checked.
fn with_effect(
    codec: &Codec,
    rate: f32,
    theta: Option<&[f32]>,
    contribution: Contribution,
) -> Result<Contribution, Fault> {
    match theta {
        Some(theta) if !codec.changes_any(contribution.body(), rate, theta) => Err(Fault::NoEffect),
        _ => Ok(contribution),
    }
}

/// Bytes to fetch.
struct Wanted<'a> {
    endpoint: &'a str,
    key: &'a ObjectKey,
    digest: &'a Digest,
    limits: &'a Limits,
    until: GatherDeadlines,
    /// True if the seat has a consensus weight.
    has_weight: bool,
    /// Blocks for which an attempt keeps its slot.
    share: u32,
}

/// Reason why there are no bytes.
#[derive(Debug)]
enum NotFetched {
    /// The last attempt failed.
    Failed(FetchError),
    /// An attempt was still running.
    Unfinished,
    /// No slot was free for the attempt after the deadline. It may have had no earlier one either.
    NoSlot,
    /// The attempt ended as too many others were unfinished.
    CutOff,
}

/// Retries until the bytes are complete or the deadline passes, with growing pauses and within the host's budget.
/// After the deadline there is one more attempt: it finds bytes that were uploaded in time, and only this attempt is
/// evidence against the endpoint. Neither this nor the first attempt needs the host's budget, so no seat can use up
/// another's. Returns the place in memory, until the bytes are on the disk.
async fn fetch_until<'a>(
    fetch: &dyn Fetch,
    wanted: &Wanted<'_>,
    to: &mut dyn Sink,
    heads: &watch::Receiver<Head>,
    slots: &'a Slots,
    retry: Duration,
) -> Result<Option<SemaphorePermit<'a>>, NotFetched> {
    let Wanted { endpoint, key, digest, limits, until, has_weight, share } = *wanted;
    let (mut past_heads, mut share_heads, mut deadline_heads) = (heads.clone(), heads.clone(), heads.clone());
    let (mut retry, retry_max) = (retry, retry.max(RETRY_MAX));
    let mut give_up = std::pin::pin!(async {
        let past = wait_past(&mut past_heads, until.give_up).await;
        if past.is_ok() && until.give_up <= until.reveal_by {
            tokio::time::sleep(LAST_ATTEMPT).await;
        }
    });
    // A failure of this validator before the deadline. A later one of the endpoint is then not evidence.
    let mut ours = None;
    loop {
        // A lost chain also ends these waits; the caller notices it.
        let (mut slot, memory) = tokio::select! {
            biased;
            () = &mut give_up => return Err(ours.map_or(NotFetched::NoSlot, NotFetched::Failed)),
            acquired = slots.acquire() => acquired,
        };
        let began = heads.borrow().block;
        let kept_until = Block(began.0.saturating_add(share - 1));
        let end = Arc::new(Notify::new());
        let fetched = {
            let mut fetching = std::pin::pin!(fetch_verified_into(fetch, endpoint, key, digest, limits, to));
            loop {
                tokio::select! {
                    biased;
                    fetched = &mut fetching => break Some(fetched),
                    () = &mut give_up => break None,
                    () = end.notified() => return Err(NotFetched::CutOff),
                    _ = wait_past(&mut share_heads, kept_until), if slot.is_some() => {
                        slot = None;
                        slots.begin_overdue(has_weight, &end);
                    }
                }
            }
        };
        slots.end_overdue(&end);
        drop(slot);
        let Some(fetched) = fetched else {
            return Err(ours.map_or(NotFetched::Unfinished, NotFetched::Failed));
        };
        match fetched {
            Err(error) if until.reveal_by < began => return Err(NotFetched::Failed(error)),
            Err(error) => {
                ours = Some(error).filter(|error| !error.is_theirs());
                // Drops bytes from before the failure.
                to.begin(0);
                drop(memory);
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
                return Ok(memory);
            }
        }
    }
}

/// Returns the observation for a failure. One that this validator's network may have caused is not evidence
/// (PROT-14).
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
        Hotkey, RunId, Schedule, Window,
        contribution::{Schema, TensorSpec},
        params::Density,
        submission::Header,
    };
    use std::{
        cell::Cell,
        sync::atomic::{AtomicBool, AtomicU64, Ordering},
    };
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
        let checked = |level: f32, theta: Option<&[f32]>| {
            let body = protocol::contribution::encode(codec.schema(), Density(64), &[level; 4096]).unwrap();
            let empty = contribution(Uid(1));
            let bytes = protocol::submission::seal(&empty.header, &body, &signer).into();
            with_effect(&codec, 0.7, theta, Contribution { bytes, ..empty }).map(drop)
        };
        let (mute, theta) = (1.0 / (1u32 << 30) as f32, [0.02; 4096]);
        assert_eq!(checked(mute, Some(&theta)), Err(Fault::NoEffect));
        assert_eq!(checked(1e-3, Some(&theta)), Ok(()));
        assert_eq!(checked(-mute, Some(&theta)), Err(Fault::NoEffect));
        assert_eq!(checked(mute, None), Ok(()));
    }

    /// Returns the numbers of faulty and of unobserved seats, if `whole` seats arrived and `slow` seats were slow.
    fn judged(whole: u16, slow: u16) -> (usize, usize) {
        let valid = (0..whole).map(Uid).map(|uid| (uid, contribution(uid).into())).collect();
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

    /// Returns the request for the contribution of the only seat.
    fn wanted<'a>(
        key: &'a ObjectKey,
        digest: &'a Digest,
        limits: &'a Limits,
        until: GatherDeadlines,
    ) -> Wanted<'a> {
        Wanted { endpoint: "", key, digest, limits, until, has_weight: true, share: 5 }
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
            let wanted = wanted(&key, &digest, &limits, until);
            let mut whole = BufferSink::default();
            match fetch_until(&network, &wanted, &mut whole, &heads, &Slots::default(), Duration::ZERO).await
            {
                Ok(_) => assert_eq!(whole.into_bytes(), bytes_of(seat)),
                Err(NotFetched::Failed(error)) => {
                    assert!(matches!(observation_of(&error), Observation::NotObserved(_)), "{error}");
                    unseen += 1;
                }
                Err(NotFetched::Unfinished | NotFetched::NoSlot | NotFetched::CutOff) => {
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
        let wanted = wanted(&key, &digest, &limits, until);
        let (slots, mut whole) = (Slots::default(), BufferSink::default());
        let error = fetch_until(&network, &wanted, &mut whole, &heads, &slots, Duration::ZERO).await;
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

    /// An endpoint that has no bytes at first, and later sends without end.
    struct Crawler {
        heads: watch::Sender<Head>,
        missing: AtomicBool,
    }

    #[async_trait]
    impl Fetch for Crawler {
        async fn fetch(&self, _: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            if self.missing.swap(false, Ordering::Relaxed) {
                return Err(FetchError::Missing);
            }
            loop {
                self.heads.send_modify(|head| head.block = Block(head.block.0 + 1));
                tokio::task::yield_now().await;
            }
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    #[tokio::test]
    async fn a_download_that_never_ends_is_cancelled_and_not_called_missing() {
        for missing in [false, true] {
            let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
            let digest = Digest::of(b"bytes that never come");
            let key = keys::contribution(RunId(0), Window(1), &digest);
            let limits = Limits::for_bytes(100);
            let until = GatherDeadlines { reveal_by: Block(5), give_up: Block(7) };
            let wanted = wanted(&key, &digest, &limits, until);
            let crawler = Crawler { heads: sender, missing: missing.into() };
            let (slots, mut whole) = (Slots::default(), BufferSink::default());
            let ended = fetch_until(&crawler, &wanted, &mut whole, &heads, &slots, Duration::ZERO).await;
            assert!(matches!(ended, Err(NotFetched::Unfinished)), "missing at first: {missing}");
            assert!((7..12).contains(&heads.borrow().block.0), "{:?}", heads.borrow().block);
        }
    }

    /// Endpoints by name: some have their bytes from a block on, some never, and the others send without end.
    struct Many {
        heads: watch::Receiver<Head>,
        /// Block from which honest endpoints have their bytes.
        uploaded: Block,
    }

    #[async_trait]
    impl Fetch for Many {
        async fn fetch(&self, endpoint: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            // An answer takes time; others are served meanwhile.
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

    /// Returns the result of each of `seats`, fetched in this order, with 40 blocks until the deadline and 10 more
    /// until it gives up; and the largest number of places in memory that were used.
    async fn observe_all(
        seats: &[&str],
        uploaded: Block,
        share: u32,
    ) -> (Vec<Result<(), NotFetched>>, usize) {
        let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
        let (slots, free) = (&Slots::default(), Cell::new(IN_MEMORY));
        let network = Many { heads: heads.clone(), uploaded };
        let digest = Digest::of(&bytes_of(1));
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = GatherDeadlines { reveal_by: Block(40), give_up: Block(50) };
        let fetches = seats.iter().map(|endpoint| {
            let (network, heads, key, digest, limits) = (&network, &heads, &key, &digest, &limits);
            async move {
                let has_weight = *endpoint == "honest";
                let wanted = Wanted { endpoint, key, digest, limits, until, has_weight, share };
                let to = &mut BufferSink::default();
                fetch_until(network, &wanted, to, heads, slots, Duration::ZERO).await.map(drop)
            }
        });
        let fetches = futures::future::join_all(fetches);
        let blocks = async {
            for block in 1..60 {
                // Each fetch is polled several times per block.
                for _ in 0..seats.len() * 4 {
                    tokio::task::yield_now().await;
                    free.set(free.get().min(slots.memory.available_permits()));
                }
                sender.send_modify(|head| head.block = Block(block));
            }
        };
        (futures::future::join(fetches, blocks).await.0, IN_MEMORY - free.get())
    }

    /// Returns 60 bad seats, and 4 honest ones after them.
    fn crowd(bad: &'static str) -> Vec<&'static str> {
        [vec![bad; 60], vec!["honest"; 4]].concat()
    }

    #[tokio::test]
    async fn honest_seats_behind_sixty_slow_ones_are_fetched_in_time() {
        let seats = crowd("crawls");
        let (ended, in_memory) = observe_all(&seats, Block(0), share(Block(0), Block(40), seats.len())).await;
        assert!(ended[60..].iter().all(Result::is_ok), "{:?}", &ended[60..]);
        assert!(
            ended[..60].iter().all(|ended| matches!(ended, Err(NotFetched::Unfinished | NotFetched::CutOff)))
        );

        assert_eq!(in_memory, IN_MEMORY, "sixty unfinished downloads take 32 places in memory");

        // Without shares the slow seats keep their slots, and the others get none.
        let (ended, _) = observe_all(&seats, Block(0), 1_000).await;
        assert!(ended[SLOTS..].iter().all(|ended| matches!(ended, Err(NotFetched::NoSlot))), "{ended:?}");
    }

    #[tokio::test]
    async fn honest_seats_behind_sixty_empty_ones_are_retried_until_they_upload() {
        let seats = crowd("withholds");
        let (ended, _) = observe_all(&seats, Block(30), share(Block(0), Block(40), seats.len())).await;
        assert!(ended[60..].iter().all(Result::is_ok), "{:?}", &ended[60..]);
        let missing =
            |ended: &Result<(), NotFetched>| matches!(ended, Err(NotFetched::Failed(FetchError::Missing)));
        assert!(ended[..60].iter().all(missing), "{:?}", &ended[..60]);
    }

    #[tokio::test]
    async fn a_seat_that_cannot_be_asked_after_the_deadline_is_not_called_missing() {
        let seats = [vec!["honest"], vec!["crawls"; 60]].concat();
        let (ended, _) = observe_all(&seats, Block(30), 1_000).await;
        assert!(matches!(ended[0], Err(NotFetched::NoSlot)), "{:?}", ended[0]);
    }

    /// An endpoint whose attempts end as listed, by block: one before the deadline and one after it.
    struct Listed(watch::Receiver<Head>, Attempts);

    type Attempts = [fn() -> FetchError; 2];

    #[async_trait]
    impl Fetch for Listed {
        async fn fetch(&self, _: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            let block = self.0.borrow().block;
            Err(self.1[usize::from(Block(5) < block)]())
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    /// Blocks of 2 s, the deadline after five of them, and an attest phase without a block for last attempts.
    #[tokio::test(start_paused = true)]
    async fn in_a_short_phase_too_the_attempt_after_the_deadline_decides() {
        let missing = || FetchError::Missing;
        let refused = || FetchError::Unavailable { status: 503 };
        let wrong = || FetchError::WrongDigest { expected: Digest([1; 32]), got: Digest([2; 32]) };
        let cases: [(Attempts, bool); 4] = [
            ([missing, missing], true),
            ([refused, missing], true),
            ([wrong, refused], false),
            ([missing, refused], false),
        ];
        for (attempts, is_fault) in cases {
            let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
            let digest = Digest([1; 32]);
            let key = keys::contribution(RunId(0), Window(1), &digest);
            let limits = Limits::for_bytes(100);
            let until = GatherDeadlines { reveal_by: Block(5), give_up: Block(5) };
            let wanted = wanted(&key, &digest, &limits, until);
            let (endpoint, slots) = (Listed(heads.clone(), attempts), Slots::default());
            let mut to = BufferSink::default();
            let fetched = fetch_until(&endpoint, &wanted, &mut to, &heads, &slots, RETRY);
            let blocks = async {
                for block in 1..8 {
                    tokio::time::sleep(Duration::from_secs(2)).await;
                    sender.send_modify(|head| head.block = Block(block));
                }
            };
            let Err(NotFetched::Failed(error)) = futures::future::join(fetched, blocks).await.0 else {
                panic!("the attempt after the deadline failed")
            };
            assert_eq!(matches!(observation_of(&error), Observation::Faulty(_)), is_fault, "{error}");
        }
    }

    /// A third party's host, which seats name as theirs. It counts the requests, and has no contribution.
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
        let slots = Slots::default();
        let share = share(Block(0), until.reveal_by, 150);
        let fetches = (0..150).map(|_| async {
            let endpoint = "https://victim.example/bucket";
            let (key, digest, limits) = (&key, &digest, &limits);
            let wanted = Wanted { endpoint, key, digest, limits, until, has_weight: false, share };
            fetch_until(&victim, &wanted, &mut BufferSink::default(), &heads, &slots, RETRY).await.map(drop)
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
        let share = |seats| share(Block(100), Block(140), seats);
        assert_eq!((share(0), share(1), share(SLOTS)), (40, 40, 40));
        assert_eq!((share(SLOTS + 1), share(4 * SLOTS), share(1000)), (20, 10, 1));
        assert_eq!(super::share(Block(140), Block(100), 20), 1, "past the deadline");
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
