//! Fetches and checks what miners committed to. One seat's trouble never touches another's (PROT-13, PROT-14).

use chain_client::Head;
use futures::{StreamExt as _, stream};
use protocol::{
    Block, Digest, Schedule, Uid, Window,
    keys::{self, ObjectKey},
    submission::Fault,
    view::{SeatView, WindowView},
};
use replica::{Contribution, Follower, causes, wait_past};
use std::{collections::BTreeMap, time::Duration};
use store::{Fetch, FetchError, Limits, Receive, fetch_verified_into};
use tokio::sync::watch;

/// Fetches in flight at once.
const AT_ONCE: usize = 16;
/// Between two tries of one seat.
const RETRY: Duration = Duration::from_millis(400);

/// What could be said of each committed seat by the reveal deadline.
#[derive(Debug, Default)]
pub struct Gathered {
    pub valid: BTreeMap<Uid, Contribution>,
    pub faulty: BTreeMap<Uid, Fault>,
    /// Seats that we could not look at, and why: our network, our disk, our time. No evidence against anybody.
    pub not_observed: BTreeMap<Uid, String>,
}

enum Seen {
    Valid(Contribution),
    Faulty(Fault),
    /// Its endpoint answered too slowly, or we read too slowly: which it was, the other seats tell.
    Slow(String),
    NotObserved(String),
}

/// How long contributions are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Until {
    /// What is not there when this is past is missing.
    pub reveal_by: Block,
    /// No look is waited for when this is past. To mirror and to attest takes a few blocks, and finality trails by some: most of the time
    /// up to the attest deadline is for that.
    pub give_up: Block,
}

impl Until {
    pub fn of(schedule: &Schedule, window: Window) -> Until {
        let reveal_by = schedule.reveal_deadline(window);
        let phase = schedule.attest_deadline(window).0.saturating_sub(reveal_by.0);
        Until { reveal_by, give_up: Block(reveal_by.0.saturating_add(phase / 4)) }
    }
}

/// Looks at every commitment of the window until it is there or the time for it is past. A look that still goes on when no time is left to
/// wait ends with it: who crawls costs its own seat, and not the attestation of all others (PROT-13).
pub async fn gather(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    heads: &watch::Receiver<Head>,
    until: Until,
) -> Gathered {
    let looks = view.commitments.iter().map(|(uid, digest)| async move {
        (*uid, look(follower, view, seats, *uid, digest, heads, until).await)
    });
    let mut looks = stream::iter(looks).buffer_unordered(AT_ONCE);
    let mut gathered = Gathered::default();
    let mut slow = BTreeMap::new();
    while let Some((uid, seen)) = looks.next().await {
        match seen {
            Seen::Valid(contribution) => {
                gathered.valid.insert(uid, contribution);
            }
            Seen::Faulty(fault) => {
                gathered.faulty.insert(uid, fault);
            }
            Seen::Slow(reason) => {
                slow.insert(uid, reason);
            }
            Seen::NotObserved(reason) => {
                gathered.not_observed.insert(uid, reason);
            }
        }
    }
    gathered.judge_slow(slow);
    for (uid, fault) in &gathered.faulty {
        tracing::info!(window = view.window.0, uid = uid.0, %fault, "faulty contribution");
    }
    for (uid, reason) in &gathered.not_observed {
        tracing::warn!(window = view.window.0, uid = uid.0, reason, "could not look at a contribution");
    }
    gathered
}

impl Gathered {
    /// Who was too slow has not provided its bytes, unless more were too slow than came whole: then our own link is the
    /// likelier cause, and it is no evidence against anybody (PROT-14).
    fn judge_slow(&mut self, slow: BTreeMap<Uid, String>) {
        let ours = self.valid.len() < slow.len();
        for (uid, reason) in slow {
            if ours {
                let reason = format!("{reason}; most others were as slow, so it may be our own link");
                self.not_observed.insert(uid, reason);
            } else {
                self.faulty.insert(uid, Fault::Missing);
            }
        }
    }
}

/// Looks at one seat. Trouble that may pass is tried again until the deadline; what it was then decides whose fault it is.
async fn look(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    uid: Uid,
    digest: &Digest,
    heads: &watch::Receiver<Head>,
    until: Until,
) -> Seen {
    let Some(seat) = seats.iter().find(|seat| seat.id.uid == uid) else {
        return Seen::NotObserved("the seat is gone from the chain".into());
    };
    if until.give_up < heads.borrow().block {
        return Seen::NotObserved("no time was left to look".into());
    }
    let key = keys::contribution(follower.run.id, view.window, digest);
    let limits = follower.contribution_limits();
    let mut incoming = follower.incoming_contribution();
    let wanted = Wanted { endpoint: &seat.endpoint, key: &key, digest, limits: &limits, until };
    match fetch_by(&*follower.fetch, &wanted, &mut incoming, heads, RETRY).await {
        Ok(()) => {}
        Err(NotHad::Failed(error)) => return seen_by(&error),
        Err(NotHad::StillComing) => {
            return Seen::Slow("its bytes were still coming when it was time to attest".into());
        }
    }
    match follower.verify(view, seat, digest, incoming.finish()) {
        Ok(contribution) => Seen::Valid(contribution),
        Err(fault) => Seen::Faulty(fault),
    }
}

/// Bytes that a seat committed to, and until when they count.
struct Wanted<'a> {
    endpoint: &'a str,
    key: &'a ObjectKey,
    digest: &'a Digest,
    limits: &'a Limits,
    until: Until,
}

/// Why there are no bytes.
#[derive(Debug)]
enum NotHad {
    /// What went wrong last.
    Failed(FetchError),
    /// Nothing went wrong but the time.
    StillComing,
}

/// Asks again and again until the bytes are there or their time is over; the last failure then counts.
async fn fetch_by(
    fetch: &dyn Fetch,
    wanted: &Wanted<'_>,
    to: &mut dyn Receive,
    heads: &watch::Receiver<Head>,
    retry: Duration,
) -> Result<(), NotHad> {
    let Wanted { endpoint, key, digest, limits, until } = *wanted;
    let mut past_heads = heads.clone();
    let mut no_time_left = std::pin::pin!(wait_past(&mut past_heads, until.give_up));
    let mut last = None;
    loop {
        let fetched = tokio::select! {
            biased;
            fetched = fetch_verified_into(fetch, endpoint, key, digest, limits, to) => fetched,
            // A chain that is gone is said elsewhere.
            _ = &mut no_time_left => return Err(last.map_or(NotHad::StillComing, NotHad::Failed)),
        };
        match fetched {
            Err(error) if until.reveal_by < heads.borrow().block => return Err(NotHad::Failed(error)),
            Err(error) => {
                last = Some(error);
                tokio::time::sleep(retry).await;
            }
            Ok(()) => return Ok(()),
        }
    }
}

/// What a failed fetch says of the seat; nothing, where it may as well have been our own network (PROT-14).
fn seen_by(error: &FetchError) -> Seen {
    match error {
        error if !error.is_theirs() => Seen::NotObserved(causes(error)),
        FetchError::Stalled { .. } | FetchError::Crawled { .. } => Seen::Slow(causes(error)),
        FetchError::WrongDigest { .. } => Seen::Faulty(Fault::WrongDigest),
        _ => Seen::Faulty(Fault::Missing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use protocol::{Hotkey, RunId, params::Density, submission::Header};
    use std::sync::atomic::{AtomicU64, Ordering};
    use store::{TrafficTotals, Whole};

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

    /// Who is at fault, and who was not observed, where so many came whole and so many were too slow.
    fn judged(whole: u16, slow: u16) -> (usize, usize) {
        let valid = (0..whole).map(Uid).map(|uid| (uid, contribution(uid))).collect();
        let mut gathered = Gathered { valid, ..Gathered::default() };
        let crawled = FetchError::Crawled { bytes: 1, window: Duration::from_secs(5) };
        let slow = (0..slow).map(|index| match seen_by(&crawled) {
            Seen::Slow(reason) => (Uid(whole + index), reason),
            _ => panic!("to crawl is to be slow"),
        });
        gathered.judge_slow(slow.collect());
        (gathered.faulty.len(), gathered.not_observed.len())
    }

    #[test]
    fn one_that_crawls_among_many_that_do_not_has_not_provided_its_bytes() {
        assert_eq!(judged(5, 1), (1, 0));
        assert_eq!(judged(3, 3), (3, 0));
    }

    #[test]
    fn where_most_crawl_it_may_be_our_own_link_and_nobody_is_at_fault() {
        assert_eq!(judged(1, 5), (0, 5));
        assert_eq!(judged(0, 1), (0, 1));
    }

    /// An endpoint that has the bytes, behind a network that fails one fetch in twenty, and for one seat in twenty all window long. Each
    /// fetch takes a block.
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

    fn bytes_of(seat: u64) -> bytes::Bytes {
        seat.to_le_bytes().to_vec().into()
    }

    #[tokio::test]
    async fn in_a_thousand_seat_windows_of_a_bad_network_nobody_is_blamed() {
        let (mut errors, mut unseen) = (0, 0);
        for seat in 0..1000 {
            let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
            let network =
                BadNetwork { heads: sender, seat, fetches: AtomicU64::new(0), errors: AtomicU64::new(0) };
            let digest = Digest::of(&bytes_of(seat));
            let key = keys::contribution(RunId(0), Window(1), &digest);
            let limits = Limits::for_bytes(100);
            let until = Until { reveal_by: Block(5), give_up: Block(7) };
            let wanted = Wanted { endpoint: "", key: &key, digest: &digest, limits: &limits, until };
            let mut whole = Whole::default();
            match fetch_by(&network, &wanted, &mut whole, &heads, Duration::ZERO).await {
                Ok(()) => assert_eq!(whole.into_bytes(), bytes_of(seat)),
                Err(NotHad::Failed(error)) => {
                    assert!(matches!(seen_by(&error), Seen::NotObserved(_)), "{error}");
                    unseen += 1;
                }
                Err(NotHad::StillComing) => panic!("this network fails at once"),
            }
            errors += network.errors.load(Ordering::Relaxed);
        }
        assert!(errors > 300 && (20..100).contains(&unseen), "the network failed: {errors} {unseen}");
    }

    #[tokio::test]
    async fn what_comes_after_the_deadline_is_not_waited_for() {
        let (sender, heads) = watch::channel(Head { block: Block(6), hash: Digest::default() });
        let network =
            BadNetwork { heads: sender, seat: 1, fetches: AtomicU64::new(0), errors: AtomicU64::new(0) };
        let digest = Digest::of(b"other bytes than it shows");
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = Until { reveal_by: Block(5), give_up: Block(9) };
        let wanted = Wanted { endpoint: "", key: &key, digest: &digest, limits: &limits, until };
        let error = fetch_by(&network, &wanted, &mut Whole::default(), &heads, Duration::ZERO).await;
        assert!(error.is_err());
        assert_eq!(network.fetches.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_last_look_leaves_most_of_the_phase_to_attest() {
        let schedule = Schedule {
            start: Block(100),
            blocks_per_window: 60,
            commit_by: 30,
            reveal_by: 40,
            attest_by: 48,
            vote_by: 55,
        };
        let until = Until::of(&schedule, Window(1));
        assert_eq!(until, Until { reveal_by: Block(200), give_up: Block(202) });
        let short = Schedule { attest_by: 43, ..schedule };
        assert_eq!(Until::of(&short, Window(1)).give_up, Block(200));
    }

    /// An endpoint that keeps sending and never ends.
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
    async fn who_still_crawls_when_it_is_time_to_attest_is_not_waited_for() {
        let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
        let digest = Digest::of(b"bytes that never come");
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = Until { reveal_by: Block(5), give_up: Block(7) };
        let wanted = Wanted { endpoint: "", key: &key, digest: &digest, limits: &limits, until };
        let crawler = Crawler(sender);
        let ended = fetch_by(&crawler, &wanted, &mut Whole::default(), &heads, Duration::ZERO).await;
        assert!(matches!(ended, Err(NotHad::StillComing)));
        assert!((7..12).contains(&heads.borrow().block.0), "{:?}", heads.borrow().block);
    }

    #[test]
    fn what_failed_says_whose_doing_it_was() {
        assert!(matches!(seen_by(&FetchError::Missing), Seen::Faulty(Fault::Missing)));
        let got = FetchError::WrongDigest { expected: Digest([1; 32]), got: Digest([2; 32]) };
        assert!(matches!(seen_by(&got), Seen::Faulty(Fault::WrongDigest)));
        let unreachable = FetchError::Unavailable { status: 503 };
        assert!(matches!(seen_by(&unreachable), Seen::NotObserved(_)));
    }
}
