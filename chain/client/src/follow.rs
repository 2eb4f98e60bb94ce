//! Keeps a connection to the chain, and tells of finalised blocks.
//!
//! One task owns the connection. It makes a new one whenever the old one breaks, falls silent, knows an older runtime than
//! the chain has or turns out to lead to another chain, waiting longer from try to try; everybody else looks at its [`Standing`] and waits for the next
//! connection, up to a patience of their own.

use crate::{
    ChainError, Head,
    link::{Link, LinkError, OpenError, head_of},
    online::Timing,
};
use protocol::Digest;
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;

/// Where we stand with the chain.
#[derive(Clone)]
pub(crate) enum Standing {
    Up(Arc<Link>),
    Down {
        why: String,
    },
    /// Whatever answers at the URL now is another chain.
    NotOurs(ChainError),
}

/// What the tasks and the client share of the connection.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) url: Arc<str>,
    pub(crate) timing: Timing,
    pub(crate) heads: watch::Receiver<Head>,
    pub(crate) standing: watch::Receiver<Standing>,
}

impl Line {
    /// The connection, if there is one now.
    pub(crate) fn link(&self) -> Option<Arc<Link>> {
        match &*self.standing.borrow() {
            Standing::Up(link) => Some(link.clone()),
            _ => None,
        }
    }

    /// Asks until there is an answer, over whichever connection there is, for as long as the patience lasts.
    pub(crate) async fn read<T, F>(&self, doing: &str, ask: impl Fn(Arc<Link>) -> F) -> Result<T, ChainError>
    where
        F: Future<Output = Result<T, LinkError>>,
    {
        let started = Instant::now();
        let mut standing = self.standing.clone();
        loop {
            let now = standing.borrow_and_update().clone();
            let last = match now {
                Standing::Up(link) => match ask(link).await {
                    Err(LinkError::Broken(why)) => why,
                    answer => return answer.map_err(|error| error.into_chain_error(doing)),
                },
                Standing::Down { why } => why,
                Standing::NotOurs(error) => return Err(error),
            };
            let waited = started.elapsed();
            let left = self.timing.patience.saturating_sub(waited);
            if left.is_zero() {
                return Err(self.unreachable(doing, waited, last));
            }
            // A connection that is up and gives no answer is asked again after a moment.
            let changed = tokio::time::timeout(left.min(self.timing.retry), standing.changed()).await;
            if let Ok(Err(_)) = changed {
                return Err(ChainError::Stopped { part: "follower of finalised blocks" });
            }
        }
    }

    pub(crate) fn unreachable(&self, doing: &str, waited: Duration, last: String) -> ChainError {
        ChainError::Unreachable { doing: doing.to_owned(), url: self.url.to_string(), waited, last }
    }
}

/// The task that keeps the connection.
pub(crate) struct Follower {
    pub(crate) url: Arc<str>,
    pub(crate) timing: Timing,
    /// What the first connection led to: every later one must lead there too.
    pub(crate) genesis: Digest,
    pub(crate) heads: watch::Sender<Head>,
    pub(crate) standing: watch::Sender<Standing>,
}

impl Follower {
    /// Follows the chain for ever, starting with a connection that is open already.
    pub(crate) async fn run(self, first: Arc<Link>) {
        let mut link = first;
        loop {
            self.standing.send_replace(Standing::Up(link.clone()));
            self.tell(&link, link.head());
            let why = tokio::select! {
                ended = self.follow(&link) => match ended {
                    Ok(never) => match never {},
                    Err(error) => error.to_string(),
                },
                // A new connection reads the new metadata.
                () = link.outgrown() => "its runtime was upgraded".to_owned(),
            };
            tracing::warn!(url = %self.url, why, "lost the chain; trying to reach it again");
            let lost = Instant::now();
            self.standing.send_replace(Standing::Down { why });
            link = self.reconnect().await;
            let away = lost.elapsed();
            tracing::info!(url = %self.url, ?away, head = %link.head().block, "the chain is back");
        }
    }

    /// Tells of finalised blocks until the connection is of no more use.
    async fn follow(&self, link: &Link) -> Result<std::convert::Infallible, LinkError> {
        let mut blocks = link.subscribe().await?;
        let mut stalled = false;
        loop {
            match tokio::time::timeout(self.timing.heartbeat, blocks.next()).await {
                Ok(Some(Ok(header))) => {
                    self.tell(link, head_of(&header)?);
                    stalled = false;
                }
                Ok(Some(Err(error))) => return Err(error.into()),
                Ok(None) => return Err(LinkError::Broken("it closed the connection".into())),
                // Silence is a chain that finalises nothing, a subscription that died, or a machine that did.
                Err(_) => {
                    let head = link.finalised_head().await?;
                    if head.block > link.head().block {
                        return Err(LinkError::Broken("its subscription fell silent".into()));
                    }
                    if !stalled {
                        tracing::warn!(url = %self.url, block = %head.block, "no block is being finalised");
                    }
                    stalled = true;
                }
            }
        }
    }

    fn tell(&self, link: &Link, head: Head) {
        link.heard_of(head);
        let went_back = self.heads.borrow().block.0.saturating_sub(head.block.0);
        if went_back > 0 {
            // Possible only where a chain lost finalised blocks when it was stopped. Nobody is told the same block twice.
            tracing::warn!(url = %self.url, block = %head.block, "the finalised chain went back by {went_back} blocks");
        }
        self.heads.send_if_modified(|latest| {
            let later = head.block > latest.block;
            if later {
                *latest = head;
            }
            later
        });
    }

    async fn reconnect(&self) -> Arc<Link> {
        let mut pause = self.timing.backoff_first;
        loop {
            tokio::time::sleep(spread(pause)).await;
            pause = pause.saturating_mul(2).min(self.timing.backoff_longest);
            match Link::open(&self.url, Some(self.genesis), self.timing.request).await {
                Ok(link) => return Arc::new(link),
                Err(OpenError::Broken(why)) => {
                    tracing::debug!(url = %self.url, why, "the chain is still away");
                    self.standing.send_replace(Standing::Down { why });
                }
                Err(OpenError::NotOurs { wanted, found }) => {
                    let error = ChainError::NotOurs { url: self.url.to_string(), wanted, found };
                    tracing::error!("{error}");
                    self.standing.send_replace(Standing::NotOurs(error));
                }
            }
        }
    }
}

/// `pause` give or take a quarter, so that a hundred clients do not come back at the same moment.
fn spread(pause: Duration) -> Duration {
    let mut random = [0];
    // Without randomness the pause is merely shorter.
    let _ = getrandom::fill(&mut random);
    pause.mul_f64(0.75 + f64::from(random[0]) / 512.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_spread_by_a_quarter_to_either_side() {
        for _ in 0..100 {
            let pause = spread(Duration::from_secs(4));
            assert!((Duration::from_secs(3)..=Duration::from_secs(5)).contains(&pause));
        }
    }
}
