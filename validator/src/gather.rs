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
    while let Some((uid, seen)) = looks.next().await {
        match seen {
            Seen::Valid(contribution) => {
                gathered.valid.insert(uid, contribution);
            }
            Seen::Faulty(fault) => {
                tracing::info!(window = view.window.0, uid = uid.0, %fault, "faulty contribution");
                gathered.faulty.insert(uid, fault);
            }
            Seen::NotObserved(reason) => {
                tracing::warn!(
                    window = view.window.0,
                    uid = uid.0,
                    reason,
                    "could not look at a contribution"
                );
                gathered.not_observed.insert(uid, reason);
            }
        }
    }
    gathered
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
                return match fault_of(&error) {
                    Some(fault) => Seen::Faulty(fault),
                    None => Seen::NotObserved(causes(&error)),
                };
            }
            Err(_) => tokio::time::sleep(RETRY).await,
        }
    }
    match follower.verify(view, seat, digest, incoming.finish()) {
        Ok(contribution) => Seen::Valid(contribution),
        Err(fault) => Seen::Faulty(fault),
    }
}

/// What a failed fetch says of the seat; `None` where it may as well have been our own network (PROT-14).
fn fault_of(error: &FetchError) -> Option<Fault> {
    if !error.is_theirs() {
        return None;
    }
    Some(match error {
        FetchError::WrongDigest { .. } => Fault::WrongDigest,
        _ => Fault::Missing,
    })
}
