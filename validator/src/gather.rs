//! Fetches and checks what miners committed to. One seat's trouble never touches another's (PROT-13, PROT-14).

use chain_client::Head;
use futures::{StreamExt as _, stream};
use protocol::{
    Block, Digest, Uid, keys,
    submission::Fault,
    view::{SeatView, WindowView},
};
use replica::{Contribution, Follower, causes};
use std::{collections::BTreeMap, time::Duration};
use store::{FetchError, fetch_verified_into};
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

/// Looks at every commitment of the window until it is there or `reveal_by` is past.
pub async fn gather(
    follower: &Follower,
    view: &WindowView,
    seats: &[SeatView],
    heads: &watch::Receiver<Head>,
    reveal_by: Block,
) -> Gathered {
    let looks = view.commitments.iter().map(|(uid, digest)| async move {
        (*uid, look(follower, view, seats, *uid, digest, heads, reveal_by).await)
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
    reveal_by: Block,
) -> Seen {
    let Some(seat) = seats.iter().find(|seat| seat.id.uid == uid) else {
        return Seen::NotObserved("the seat is gone from the chain".into());
    };
    let key = keys::contribution(follower.run.id, view.window, digest);
    let limits = follower.contribution_limits();
    let mut incoming = follower.incoming_contribution();
    loop {
        let fetch = &*follower.fetch;
        match fetch_verified_into(fetch, &seat.endpoint, &key, digest, &limits, &mut incoming).await {
            Ok(()) => break,
            Err(error) if reveal_by < heads.borrow().block => {
                return seen_by(&error);
            }
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
    match follower.verify(view, seat, digest, incoming.finish()) {
        Ok(contribution) => Seen::Valid(contribution),
        Err(fault) => Seen::Faulty(fault),
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
    use protocol::{Hotkey, RunId, Window, params::Density, submission::Header};

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

    #[test]
    fn what_failed_says_whose_doing_it_was() {
        assert!(matches!(seen_by(&FetchError::Missing), Seen::Faulty(Fault::Missing)));
        let got = FetchError::WrongDigest { expected: Digest([1; 32]), got: Digest([2; 32]) };
        assert!(matches!(seen_by(&got), Seen::Faulty(Fault::WrongDigest)));
        let unreachable = FetchError::Unavailable { status: 503 };
        assert!(matches!(seen_by(&unreachable), Seen::NotObserved(_)));
    }
}
