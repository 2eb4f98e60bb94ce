//! State of the connection to the chain, and the handle by which the client's tasks use it.

use crate::{
    ChainError, Head,
    link::{Link, LinkError},
};
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Time limits and pauses. The defaults suit blocks of 0.2 to 12 seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time limit of the first connection.
    pub connect: Duration,
    /// Maximum wait of a read for an unreachable chain, and of a submission for the next finalised block.
    pub patience: Duration,
    /// Time limit of one request.
    pub request: Duration,
    /// Time without a finalised block after which the connection is tested.
    pub heartbeat: Duration,
    /// Pause before a failed request is repeated.
    pub retry: Duration,
    /// Pause before the first reconnection; it doubles with each attempt.
    pub backoff_first: Duration,
    /// Maximum pause before a reconnection.
    pub backoff_longest: Duration,
    /// Number of blocks for which a signed call is valid: a power of two from 4 to 128.
    pub era_blocks: u32,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            connect: Duration::from_secs(10),
            patience: Duration::from_secs(120),
            request: Duration::from_secs(20),
            heartbeat: Duration::from_secs(15),
            retry: Duration::from_millis(500),
            backoff_first: Duration::from_millis(200),
            backoff_longest: Duration::from_secs(5),
            era_blocks: 64,
        }
    }
}

/// State of the connection.
#[derive(Clone)]
pub(crate) enum ConnectionState {
    Up(Arc<Link>),
    Down {
        why: String,
    },
    /// The URL now leads to another chain.
    WrongChain(ChainError),
}

/// State of the connection, shared by the client and its tasks. Hides reconnections.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) url: Arc<str>,
    pub(crate) timing: Timing,
    pub(crate) heads: watch::Receiver<Head>,
    pub(crate) state: watch::Receiver<ConnectionState>,
}

impl Connection {
    /// Returns the link, if the connection is up.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        match &*self.state.borrow() {
            ConnectionState::Up(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// Makes a request, over each connection in turn, until it is answered or [`Timing::patience`] has passed.
    pub(crate) async fn read<T, F>(&self, doing: &str, ask: impl Fn(Arc<Link>) -> F) -> Result<T, ChainError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        let started = Instant::now();
        let mut state = self.state.clone();
        loop {
            let now = state.borrow_and_update().clone();
            let last = match now {
                ConnectionState::Up(link) => match ask(link).await {
                    Err(LinkError::Broken(why)) => why,
                    answer => return answer.map_err(|error| error.into_chain_error(doing)),
                },
                ConnectionState::Down { why } => why,
                ConnectionState::WrongChain(error) => return Err(error),
            };
            let waited = started.elapsed();
            let left = self.timing.patience.saturating_sub(waited);
            if left.is_zero() {
                return Err(self.unreachable(doing, waited, last, false));
            }
            // A request over a working connection is repeated after a pause.
            let changed = tokio::time::timeout(left.min(self.timing.retry), state.changed()).await;
            if let Ok(Err(_)) = changed {
                return Err(ChainError::Stopped { part: "follower of finalised blocks" });
            }
        }
    }

    pub(crate) fn unreachable(&self, doing: &str, waited: Duration, last: String, sent: bool) -> ChainError {
        ChainError::Unreachable { doing: doing.to_owned(), url: self.url.to_string(), waited, last, sent }
    }
}
