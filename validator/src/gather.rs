//! Fetches and checks what miners committed to. One seat's trouble never touches another's (PROT-13, PROT-14).

use chain_client::Head;
use futures::{StreamExt as _, stream::FuturesUnordered};
use node::{Contribution, Follower, error_chain, wait_past};
use protocol::{
    Block, Digest, Schedule, Uid, Window,
    keys::{self, ObjectKey},
    submission::Fault,
    view::{SeatView, WindowView},
};
use std::{collections::BTreeMap, time::Duration};
use store::{Fetch, FetchError, Limits, Sink, fetch_verified_into};
use tokio::sync::{Semaphore, watch};

/// Fetches that have a place at once: so many share the link as long as all goes well.
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
/// wait ends with it: who crawls costs its own seat, and not the attestation of all others (PROT-13). Nor does it cost the others their
/// turn, however many they are (`Places`).
pub async fn gather(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    heads: &watch::Receiver<Head>,
    until: Until,
) -> Gathered {
    let places = Places::until(until.reveal_by, heads.borrow().block, view.commitments.len());
    let watch = &Watch { follower, view, seats, heads, until, places };
    let looks =
        view.commitments.iter().map(|(uid, digest)| async move { (*uid, watch.look(*uid, digest).await) });
    let mut looks: FuturesUnordered<_> = looks.collect();
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

/// Places for fetches. One is had for a single try, and waited for in turn, so that who is tried again comes after all others. A try that
/// takes longer than its share of the time gives its place to the next, and goes on without one: so everyone's first try begins before the
/// deadline, though all others crawl, and who is slow for a good reason loses nothing of what has come.
struct Places {
    free: Semaphore,
    /// Blocks for which a try keeps its place.
    share: u32,
}

impl Places {
    /// For so many seats, from block `now` to the deadline. Each [`AT_ONCE`] of them have an equal part of the time.
    fn until(deadline: Block, now: Block, seats: usize) -> Places {
        let turns = u32::try_from(seats.div_ceil(AT_ONCE)).unwrap_or(u32::MAX).max(1);
        let share = (deadline.0.saturating_sub(now.0) / turns).max(1);
        Places { free: Semaphore::new(AT_ONCE), share }
    }
}

/// A window whose commitments are looked at, and what that takes.
struct Watch<'a> {
    follower: &'a Follower,
    view: &'a WindowView,
    seats: &'a [SeatView],
    heads: &'a watch::Receiver<Head>,
    until: Until,
    places: Places,
}

impl Watch<'_> {
    /// Looks at one seat. Trouble that may pass is tried again until the deadline; what it was then decides whose fault it is.
    async fn look(&self, uid: Uid, digest: &Digest) -> Seen {
        let Some(seat) = self.seats.iter().find(|seat| seat.id.uid == uid) else {
            return Seen::NotObserved("the seat is gone from the chain".into());
        };
        let key = keys::contribution(self.follower.run.id, self.view.window, digest);
        let limits = self.follower.contribution_limits();
        let mut incoming = self.follower.incoming_contribution();
        let wanted =
            Wanted { endpoint: &seat.endpoint, key: &key, digest, limits: &limits, until: self.until };
        match fetch_by(&*self.follower.fetch, &wanted, &mut incoming, self.heads, &self.places, RETRY).await {
            Ok(()) => {}
            Err(NotHad::NoTurn) => return Seen::NotObserved("no time was left to look".into()),
            Err(NotHad::Failed(error)) => return seen_by(&error),
            Err(NotHad::StillComing) => {
                return Seen::Slow("its bytes were still coming when it was time to attest".into());
            }
        }
        match self.follower.verify(self.view, seat, digest, incoming.finish()) {
            Ok(contribution) => Seen::Valid(contribution),
            Err(fault) => Seen::Faulty(fault),
        }
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
    /// It was not asked for: there was no place, and then no time.
    NoTurn,
}

/// Asks again and again until the bytes are there or their time is over; the last failure then counts.
async fn fetch_by(
    fetch: &dyn Fetch,
    wanted: &Wanted<'_>,
    to: &mut dyn Sink,
    heads: &watch::Receiver<Head>,
    places: &Places,
    retry: Duration,
) -> Result<(), NotHad> {
    let Wanted { endpoint, key, digest, limits, until } = *wanted;
    let (mut past_heads, mut share_heads) = (heads.clone(), heads.clone());
    let mut no_time_left = std::pin::pin!(wait_past(&mut past_heads, until.give_up));
    let mut last = None;
    loop {
        // A chain that is gone, which ends both waits too, is said elsewhere.
        let place = tokio::select! {
            biased;
            _ = &mut no_time_left => return Err(last.map_or(NotHad::NoTurn, NotHad::Failed)),
            place = places.free.acquire() => place,
        };
        let kept_until = Block(heads.borrow().block.0.saturating_add(places.share - 1));
        let mut fetching = std::pin::pin!(fetch_verified_into(fetch, endpoint, key, digest, limits, to));
        let fetched = tokio::select! {
            biased;
            fetched = &mut fetching => Some(fetched),
            _ = &mut no_time_left => return Err(last.map_or(NotHad::StillComing, NotHad::Failed)),
            _ = wait_past(&mut share_heads, kept_until) => None,
        };
        drop(place);
        let fetched = match fetched {
            Some(fetched) => fetched,
            None => tokio::select! {
                biased;
                fetched = &mut fetching => fetched,
                _ = &mut no_time_left => return Err(last.map_or(NotHad::StillComing, NotHad::Failed)),
            },
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
        error if !error.is_theirs() => Seen::NotObserved(error_chain(error)),
        FetchError::Stalled { .. } | FetchError::Crawled { .. } => Seen::Slow(error_chain(error)),
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

    /// Places for one seat alone.
    fn enough() -> Places {
        Places::until(Block(5), Block(0), 1)
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
            let mut whole = BufferSink::default();
            match fetch_by(&network, &wanted, &mut whole, &heads, &enough(), Duration::ZERO).await {
                Ok(()) => assert_eq!(whole.into_bytes(), bytes_of(seat)),
                Err(NotHad::Failed(error)) => {
                    assert!(matches!(seen_by(&error), Seen::NotObserved(_)), "{error}");
                    unseen += 1;
                }
                Err(NotHad::StillComing | NotHad::NoTurn) => panic!("this network fails at once"),
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
        let error =
            fetch_by(&network, &wanted, &mut BufferSink::default(), &heads, &enough(), Duration::ZERO).await;
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
        let ended =
            fetch_by(&crawler, &wanted, &mut BufferSink::default(), &heads, &enough(), Duration::ZERO).await;
        assert!(matches!(ended, Err(NotHad::StillComing)));
        assert!((7..12).contains(&heads.borrow().block.0), "{:?}", heads.borrow().block);
    }

    /// Endpoints by their names: some have their bytes once a block is past, some never have them, and the others send for ever.
    struct Many {
        heads: watch::Receiver<Head>,
        /// When those appear that are looked for last.
        uploaded: Block,
    }

    #[async_trait]
    impl Fetch for Many {
        async fn fetch(&self, who: &str, _: &ObjectKey, _: &Limits) -> Result<bytes::Bytes, FetchError> {
            // An answer takes a while, and others are served meanwhile.
            tokio::task::yield_now().await;
            match who {
                "honest" if self.uploaded <= self.heads.borrow().block => Ok(bytes_of(1)),
                "honest" | "withholds" => Err(FetchError::Missing),
                _ => std::future::pending().await,
            }
        }

        fn traffic(&self) -> TrafficTotals {
            TrafficTotals::default()
        }
    }

    /// How each look ends, where all of `seats` are looked at in this order, with 40 blocks until the deadline and then 10 more.
    async fn looked_at(seats: &[&str], uploaded: Block, places: Places) -> Vec<Result<(), NotHad>> {
        let (sender, heads) = watch::channel(Head { block: Block(0), hash: Digest::default() });
        let network = Many { heads: heads.clone(), uploaded };
        let digest = Digest::of(&bytes_of(1));
        let key = keys::contribution(RunId(0), Window(1), &digest);
        let limits = Limits::for_bytes(100);
        let until = Until { reveal_by: Block(40), give_up: Block(50) };
        let looks = seats.iter().map(|who| {
            let (network, heads, key, digest, limits) = (&network, &heads, &key, &digest, &limits);
            let places = &places;
            async move {
                let wanted = Wanted { endpoint: who, key, digest, limits, until };
                fetch_by(network, &wanted, &mut BufferSink::default(), heads, places, Duration::ZERO).await
            }
        });
        let looks = futures::future::join_all(looks);
        let blocks = async {
            for block in 1..60 {
                // Everyone has had many chances to be polled in a block.
                for _ in 0..seats.len() * 4 {
                    tokio::task::yield_now().await;
                }
                sender.send_modify(|head| head.block = Block(block));
            }
        };
        futures::future::join(looks, blocks).await.0
    }

    /// 60 seats that are no good, and 4 honest ones that come after all of them.
    fn crowd(bad: &'static str) -> Vec<&'static str> {
        [vec![bad; 60], vec!["honest"; 4]].concat()
    }

    #[tokio::test]
    async fn honest_seats_behind_sixty_that_crawl_are_looked_at_in_time() {
        let seats = crowd("crawls");
        let ended = looked_at(&seats, Block(0), Places::until(Block(40), Block(0), seats.len())).await;
        assert!(ended[60..].iter().all(Result::is_ok), "{:?}", &ended[60..]);
        assert!(ended[..60].iter().all(|ended| matches!(ended, Err(NotHad::StillComing))));

        // Without a share, whoever has a place keeps it, and nobody else has a turn.
        let keeps = Places { free: Semaphore::new(AT_ONCE), share: 1_000 };
        let ended = looked_at(&seats, Block(0), keeps).await;
        assert!(ended[AT_ONCE..].iter().all(|ended| matches!(ended, Err(NotHad::NoTurn))), "{ended:?}");
    }

    #[tokio::test]
    async fn honest_seats_behind_sixty_that_show_nothing_are_looked_at_until_they_show() {
        let seats = crowd("withholds");
        let places = Places::until(Block(40), Block(0), seats.len());
        let ended = looked_at(&seats, Block(30), places).await;
        assert!(ended[60..].iter().all(Result::is_ok), "{:?}", &ended[60..]);
        let missing = |ended: &Result<(), NotHad>| matches!(ended, Err(NotHad::Failed(FetchError::Missing)));
        assert!(ended[..60].iter().all(missing), "{:?}", &ended[..60]);
    }

    #[test]
    fn the_first_tries_of_all_begin_before_the_deadline() {
        let share = |seats| Places::until(Block(140), Block(100), seats).share;
        assert_eq!((share(0), share(1), share(AT_ONCE)), (40, 40, 40));
        assert_eq!((share(AT_ONCE + 1), share(4 * AT_ONCE), share(1000)), (20, 10, 1));
        assert_eq!(Places::until(Block(100), Block(140), 20).share, 1, "past the deadline");
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
